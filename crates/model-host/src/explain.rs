//! `verbless-model explain`: the meaning of error codes in messages, including the model's
//! refusals.

use verbless_model::Refusal;
use verbless_prm::NUMBERS;
use verbless_prm::numbers::{self, Reading, beyond, near, readings};

/// The high half of the model's syndromes.
const MARK: u64 = 0x564c;

/// Explains each code. Codes that together form one message ("bad parameter", "status 12") count as
/// one.
///
/// # Errors
/// A code is unknown; the error says which codes are near or valid.
pub(crate) fn explain_all(codes: &[String]) -> Result<String, String> {
    let whole = codes.join(" ");
    if codes.len() > 1 && numbers::explain(NUMBERS, &whole).is_some() {
        return explain(&whole);
    }
    let texts: Result<Vec<_>, _> = codes.iter().map(|code| explain(code)).collect();
    Ok(texts?.join("\n"))
}

/// Explains a code: a syndrome of the model, or every meaning of a smaller code, a name or the text
/// of a message, each with the messages that contain it.
///
/// # Errors
/// The code is unknown; the error says which codes are near or valid.
pub(crate) fn explain(code: &str) -> Result<String, String> {
    let readings = readings(code);
    let syndrome = readings.iter().find_map(|reading| match *reading {
        Reading::Hexadecimal(value) | Reading::Decimal(value) | Reading::Bare(value) => {
            Refusal::of_syndrome(u32::try_from(value).ok()?)
        }
        Reading::Negative(_) => None,
    });
    if let Some(refusal) = syndrome {
        let (number, status, text) = (refusal.syndrome(), refusal.status(), refusal.text());
        let name = status.name().unwrap_or_default();
        return Ok(format!(
            "syndrome {number:#010x} of the model, with status {name} ({:#x}): {text}",
            status.0
        ));
    }
    if let Some(text) = numbers::explain(NUMBERS, code) {
        return Ok(text);
    }
    Err(match readings.first() {
        None => {
            let mut error = format!(
                "'{code}' is no code: give a number of a message (12, 0x15, err(-22), 564c0008), \
                 or a name or the words for one (IBV_WC_RETRY_EXC_ERR, \"bad parameter\")"
            );
            let near = near(NUMBERS, code, 8);
            if !near.is_empty() {
                error += &format!("; near: {}", near.join(", "));
            }
            error
        }
        Some(&(Reading::Hexadecimal(value) | Reading::Decimal(value) | Reading::Bare(value)))
            if value > 0xff =>
        {
            if value >> 16 == MARK {
                format!("{value:#010x} is not a syndrome of this release of the model")
            } else {
                format!("{}. Syndromes of the model begin with {MARK:#x}", beyond(NUMBERS, value))
            }
        }
        Some(_) => format!(
            "{code} has no meaning in: {}",
            NUMBERS.iter().map(|it| it.kind).collect::<Vec<_>>().join(", ")
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syndrome_is_explained_with_text_and_status() {
        for code in ["564c0008", "0x564c0008", "0x564C0008", "syndrome (0x564c0008)"] {
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
    fn hexadecimal_number_is_found_in_every_table() {
        let text = explain("0x10").expect("both");
        assert!(text.contains("command status 0x10, BAD_QP_STATE: The QP is not in"), "{text}");
        assert!(text.contains("CQE syndrome 0x10, BAD_RESPONSE: The peer sent"), "{text}");
        assert!(text.contains("ibv_wc_status 16, REM_ABORT_ERR: "), "{text}");
        assert!(text.contains("health syndrome 0x10, HIGH_TEMP_ERR: "), "{text}");
        assert!(text.contains("errno 16, EBUSY: "), "{text}");
        let named = explain("BAD_QP_STATE").expect("a name");
        assert!(text.contains(&named), "{named}");
        assert!(explain("remote_access").expect("a name").contains("0x13"));
    }

    /// What perftest and NCCL print is ibv_wc_status, in decimal.
    #[test]
    fn explain_lists_wc_status_before_cqe_syndrome() {
        for code in ["12", "status=12", "status 12"] {
            let text = explain(code).expect("a number");
            let wc = text.find("ibv_wc_status 12, RETRY_EXC_ERR").expect("first");
            let errno = text.find("errno 12, ENOMEM").expect("an errno");
            let cqe = text.find("CQE syndrome 0x12, REMOTE_INVALID_REQUEST").expect("as 0x12");
            assert!(wc < errno && errno < cqe, "{text}");
            assert!(text.contains("perftest: `Failed status 12: wr_id"), "{text}");
            assert!(text.contains("NCCL: `Got completion from peer … with status=12 "), "{text}");
        }
    }

    #[test]
    fn vendor_syndrome_is_explained_in_decimal_and_hex() {
        let (decimal, hex) = (explain("129").unwrap(), explain("0x81").unwrap());
        for text in [&decimal, &hex] {
            assert!(text.contains("CQE syndrome TRANSPORT_RETRY_EXCEEDED (0x15)"), "{text}");
            assert!(text.contains("NCCL's `vendor err 129`, perftest's `syndrom 0x81`"), "{text}");
        }
    }

    #[test]
    fn words_of_a_message_are_taken_together() {
        let words =
            |text: &str| explain_all(&text.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert!(words("bad parameter").unwrap().starts_with("command status 0x3, BAD_PARAM"));
        assert!(words("status 12").unwrap().starts_with("ibv_wc_status 12"));
        assert!(words("564c0008 BAD_QP_STATE").unwrap().contains("command status 0x10"));
        assert!(explain("err(-22)").unwrap().starts_with("errno 22, EINVAL"));
    }

    #[test]
    fn explain_rejects_unknown_codes() {
        for (code, why) in [
            ("xyz", "is no code"),
            ("flush", "near: FLUSHED"),
            ("0x564cffff", "of this release"),
            ("0x12345678", "only those that public reports explain"),
            ("300", "300 (0x12c) is in no table: command status, "),
            ("0x100", "at most 8 bits; delivery status ends at 16; ibv_wc_status ends at 23"),
            ("4095", "errno ends at "),
            ("0x1234567890", "No number of mlx5's messages has more than 32 bits"),
            ("0xee", "no meaning in: command status"),
        ] {
            let error = explain(code).expect_err("the code means nothing");
            assert!(error.contains(why), "{code}: {error}");
        }
    }
}
