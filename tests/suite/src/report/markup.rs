//! Text as XML and HTML have it.

use std::fmt::{self, Write};

/// A text whose characters stand for themselves, between tags and in quoted attributes.
///
/// XML 1.0 has no control characters, and no reference to one: each is shown as its picture from
/// U+2400.
pub(super) struct Escaped<T>(pub(super) T);

impl<T: fmt::Display> fmt::Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Writer(f), "{}", self.0)
    }
}

struct Writer<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for Writer<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|letter| match letter {
            '&' => self.0.write_str("&amp;"),
            '<' => self.0.write_str("&lt;"),
            '>' => self.0.write_str("&gt;"),
            '"' => self.0.write_str("&quot;"),
            '\'' => self.0.write_str("&#39;"),
            // A reader turns them into spaces within an attribute.
            '\n' => self.0.write_str("&#10;"),
            '\t' => self.0.write_str("&#9;"),
            '\u{7f}' => self.0.write_char('\u{2421}'),
            '\0'..' ' => {
                self.0.write_char(char::from_u32(0x2400 + letter as u32).unwrap_or('\u{fffd}'))
            }
            '\u{80}'..='\u{9f}' | '\u{fffe}' | '\u{ffff}' => self.0.write_char('\u{fffd}'),
            letter => self.0.write_char(letter),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Escaped;

    #[test]
    fn escaped_text_survives_every_special_character() {
        let text = "a <b c=\"d\"> & 'e'\n\t";
        assert_eq!(
            Escaped(text).to_string(),
            "a &lt;b c=&quot;d&quot;&gt; &amp; &#39;e&#39;&#10;&#9;"
        );
        assert_eq!(
            Escaped("\0\x1b[1m\x7f\u{85}").to_string(),
            "\u{2400}\u{241b}[1m\u{2421}\u{fffd}"
        );
        assert_eq!(Escaped(format_args!("{}<", 1)).to_string(), "1&lt;");
    }
}
