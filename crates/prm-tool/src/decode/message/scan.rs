//! Numbers in a line, by the labels before them.

/// A number in a line, and the text after it.
#[derive(Clone, Copy)]
pub(super) struct Found<'a> {
    pub(super) value: u64,
    pub(super) is_negative: bool,
    pub(super) rest: &'a str,
}

/// The number at the start of a text, after spaces and signs that join it to its label.
pub(super) fn number(text: &str) -> Option<Found<'_>> {
    let text = text.trim_start_matches([' ', '=', ':', '(', '#', '"']);
    let (is_negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (is_hex, digits) = match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let radix = if is_hex { 16 } else { 10 };
    let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    let value = u64::from_str_radix(&digits[..end], radix).ok()?;
    let rest = &digits[end..];
    let ends = !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    ends.then_some(Found { value, is_negative, rest })
}

/// The number after the first label that has one.
pub(super) fn after<'a>(line: &'a str, labels: &[&str]) -> Option<Found<'a>> {
    let lower = line.to_ascii_lowercase();
    labels.iter().find_map(|label| {
        let mut from = 0;
        while let Some(at) = lower[from..].find(label) {
            let (start, end) = (from + at, from + at + label.len());
            // UCX forgets the space before vendor_err.
            let apart = start == 0
                || !lower.as_bytes()[start - 1].is_ascii_alphanumeric()
                || *label == "vendor_err";
            if let Some(found) = number(&line[end..]).filter(|_| apart) {
                return Some(found);
            }
            from = end;
        }
        None
    })
}

/// A number that a format prints in hexadecimal without 0x.
pub(super) fn bare_hex<'a>(line: &'a str, label: &str) -> Option<Found<'a>> {
    let digits = &line[line.find(label)? + label.len()..];
    let end = digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len());
    let value = u64::from_str_radix(&digits[..end], 16).ok()?;
    Some(Found { value, is_negative: false, rest: &digits[end..] })
}
