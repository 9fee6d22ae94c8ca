//! The syndromes of the model, read from its source `hca/refusal/table.rs`.
//!
//! `verbless-model explain` uses the compiled model; this module works if the model does not
//! compile.

use std::path::Path;

use verbless_prm::numbers::{Reading, readings};

use super::repository::root;

/// The high half of every syndrome of the model.
const MARK: u64 = 0x564c;

/// Why the model refuses a command: an entry of the table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    number: u32,
    name: String,
    /// Name of the status, as in `command_status`.
    status: String,
    text: String,
}

/// The meaning of a syndrome of the model; `None` if it is not the model's.
pub(crate) fn explain(code: &str) -> Option<String> {
    readings(code).into_iter().find_map(|reading| match reading {
        Reading::Hexadecimal(value) | Reading::Bare(value) | Reading::Decimal(value) => {
            syndrome(u32::try_from(value).ok()?)
        }
        Reading::Negative(_) => None,
    })
}

/// As [`explain`], for a number.
pub(crate) fn syndrome(value: u32) -> Option<String> {
    if u64::from(value >> 16) != MARK {
        return None;
    }
    let found = all(&root()).into_iter().find(|refusal| refusal.number == value & 0xffff)?;
    let Refusal { status, text, .. } = found;
    Some(format!("syndrome {value:#010x} of the model, with status {status}: {text}"))
}

/// Every refusal of the model in the repository at `root`.
fn all(root: &Path) -> Vec<Refusal> {
    let table = root.join("crates/model/src/hca/refusal/table.rs");
    std::fs::read_to_string(table).map_or_else(|_| Vec::new(), |text| refusals(&text))
}

/// The refusals in a source: `Name = 0x01, STATUS, "text"`.
fn refusals(source: &str) -> Vec<Refusal> {
    let mut found = Vec::new();
    let mut rest = source;
    while let Some(at) = rest.find(" = 0x") {
        let before = &rest[..at];
        rest = &rest[at + " = 0x".len()..];
        let start = before.rfind(|c: char| !c.is_ascii_alphanumeric()).map_or(0, |at| at + 1);
        let name = &before[start..];
        let digits = rest.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(rest.len());
        let Ok(number) = u32::from_str_radix(&rest[..digits], 16) else { continue };
        let Some(after) = rest[digits..].strip_prefix(',') else { continue };
        let after = after.trim_start();
        let word = after.find(|c: char| !(c.is_ascii_uppercase() || c == '_')).unwrap_or(0);
        let (status, after) = after.split_at(word);
        let Some(text) = after.trim_start_matches(',').trim_start().strip_prefix('"') else {
            continue;
        };
        let Some(end) = text.find('"') else { continue };
        let text = text[..end].split('\\').map(str::trim_start).collect::<String>();
        found.push(Refusal { number, name: name.into(), status: status.into(), text });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_syndromes_have_status_and_text() {
        for (code, says) in [
            ("0x564c0008", "status BAD_PARAM: A field requests a feature that the capabilities"),
            ("564c0030", "status BAD_RES: No such PD for this uid."),
            ("syndrome (0x564c0031)", "status BAD_RES_STATE: Mkeys or QPs still use the PD"),
        ] {
            let text = explain(code).unwrap();
            assert!(text.contains(says), "{code}: {text}");
        }
        assert_eq!(explain("0x564cffff"), None);
        assert_eq!(explain("0x30"), None);
    }

    #[test]
    fn refusal_numbers_are_unique() {
        let all = all(&root());
        assert!(all.len() > 100, "{} refusals", all.len());
        let mut numbers: Vec<u32> = all.iter().map(|refusal| refusal.number).collect();
        numbers.sort_unstable();
        let before = numbers.len();
        numbers.dedup();
        assert_eq!(numbers.len(), before);
        for Refusal { name, status, text, .. } in &all {
            let named = name.starts_with(|c: char| c.is_ascii_uppercase());
            assert!(named && !text.is_empty() && !status.is_empty(), "{name} {status}: {text}");
        }
    }
}
