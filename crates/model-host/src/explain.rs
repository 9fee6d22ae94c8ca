//! `verbless-model explain`: what the numbers mean that a refused command or a failed WQE left
//! behind.

use std::fmt::Write as _;

use verbless_model::Refusal;
use verbless_prm::{CommandStatus, CqeSyndrome};

/// The high half of the model's syndromes.
const MARK: u32 = 0x564c;

/// A code in words: a syndrome of the model's, or what status and CQE syndrome a smaller number is.
/// Codes are in hexadecimal, with or without `0x`, or the name of a status.
///
/// # Errors
/// It is neither; the error says what is known.
pub(crate) fn explain(code: &str) -> Result<String, String> {
    let digits = code.strip_prefix("0x").or(code.strip_prefix("0X")).unwrap_or(code);
    let number = match u32::from_str_radix(digits, 16) {
        Ok(number) => number,
        Err(_) => named(code).ok_or_else(|| {
            format!(
                "'{code}' is no code: give a syndrome (564c0008), a command status (0x3 or \
                 BAD_PARAM) or a CQE syndrome (0x13), in hexadecimal"
            )
        })?,
    };
    if let Some(refusal) = Refusal::of_syndrome(number) {
        let status = refusal.status();
        let name = status.name().unwrap_or_default();
        let text = refusal.text();
        return Ok(format!(
            "syndrome {number:#010x} of the model, with status {name} ({:#x}): {text}",
            status.0
        ));
    }
    let Ok(small) = u8::try_from(number) else {
        return Err(if number >> 16 == MARK {
            format!("{number:#010x} is not a syndrome of this release of the model")
        } else {
            format!(
                "{number:#010x} is no syndrome of the model's, which begin with {MARK:#x}: what \
                 the firmware of a card means by one is not published"
            )
        });
    };
    let mut lines = String::new();
    let (status, syndrome) = (CommandStatus(small), CqeSyndrome(small));
    let of_command = ("command status", status.name(), status.doc());
    let of_wqe = ("CQE syndrome", syndrome.name(), syndrome.doc());
    for (kind, name, doc) in [of_command, of_wqe] {
        if let (Some(name), Some(doc)) = (name, doc) {
            let _ = writeln!(lines, "{kind} {small:#x}, {name}: {doc}");
        }
    }
    if lines.is_empty() {
        return Err(format!("{small:#x} is neither a command status nor a CQE syndrome"));
    }
    Ok(lines.trim_end().to_string())
}

fn named(name: &str) -> Option<u32> {
    let values = CommandStatus::INFO.values.iter().chain(CqeSyndrome::INFO.values);
    let (_, value) = values.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name))?;
    u32::try_from(*value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_syndrome_leads_to_its_sentence_and_its_status() {
        for code in ["564c0008", "0x564c0008", "0x564C0008"] {
            let text = explain(code).expect("one of ours");
            assert!(text.contains("the capabilities do not offer"), "{text}");
            assert!(text.contains("BAD_PARAM (0x3)"), "{text}");
        }
        for refusal in Refusal::ALL {
            let text = explain(&format!("{:x}", refusal.syndrome())).expect("one of ours");
            assert!(text.ends_with(refusal.text()), "{text}");
        }
    }

    #[test]
    fn a_small_number_is_a_status_or_a_cqe_syndrome_or_both_and_has_a_name_too() {
        let text = explain("0x10").expect("both");
        assert!(text.contains("command status 0x10, BAD_QP_STATE: The QP is not in"), "{text}");
        assert!(text.contains("CQE syndrome 0x10, BAD_RESPONSE: The peer sent"), "{text}");
        assert_eq!(explain("BAD_QP_STATE").ok(), Some(text));
        assert!(explain("remote_access").expect("a name").contains("0x13"));
    }

    #[test]
    fn what_is_no_code_is_told_what_is() {
        for (code, why) in [
            ("xyz", "command status"),
            ("0x564cffff", "of this release"),
            ("0x12345678", "not published"),
            ("0xee", "neither"),
        ] {
            let error = explain(code).expect_err("it means nothing");
            assert!(error.contains(why), "{code}: {error}");
        }
    }
}
