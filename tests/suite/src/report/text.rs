//! Texts of a report for people: they come from others, and must not steer what shows them.

use std::fmt::Write as _;

/// The text without control characters and without marks that change the direction of writing.
pub(crate) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => plain.push_str("\\n"),
            _ if c.is_control() || is_direction_mark(c) => {
                let _ = write!(plain, "{}", c.escape_unicode());
            }
            _ => plain.push(c),
        }
    }
    plain
}

/// Applies `plain` to each line of a text, and keeps the line breaks.
pub(super) fn plain_lines(text: &str) -> String {
    text.lines().map(plain).collect::<Vec<_>>().join("\n")
}

fn is_direction_mark(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}')
        || matches!(c, '\u{2066}'..='\u{2069}')
}

/// A time in the unit that suits it.
pub(super) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.0} µs", s * 1e6),
        s if s < 9.95e-3 => format!("{:.1} ms", s * 1e3),
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 100.0 => format!("{s:.1} s"),
        s => format!("{s:.0} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_direction_marks_are_escaped() {
        assert_eq!(plain("a\u{1b}[31m\nb\u{202e}c é"), "a\\u{1b}[31m\\nb\\u{202e}c é");
        assert_eq!(plain_lines("a\u{7}\nb"), "a\\u{7}\nb");
    }

    #[test]
    fn duration_has_a_suitable_unit() {
        let shown = [2e-6, 5e-3, 0.25, 2.0, 300.0].map(duration);
        assert_eq!(shown, ["2 µs", "5.0 ms", "250 ms", "2.0 s", "300 s"]);
    }
}
