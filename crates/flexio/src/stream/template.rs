//! Formats of trace records: printf's integer conversions, checked at the stream's creation.
//!
//! `%[flags][width][length]conversion`: the flags `-`, `0`, `+`, space and `#`, a width of up to
//! two digits, a length of C (`hh`, `h`, `l`, `ll`, `z`, `j`, `t`; it selects the number of bits,
//! 32 by default), and `d i u x X o c p` or `%%`. A record cannot hold strings or floating-point
//! numbers.

use verbless_flexio_dev::stream::entry::ARGUMENTS;

use crate::error::Error;

/// A format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Template {
    parts: Vec<TemplatePart>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum TemplatePart {
    Text(String),
    Word(Conversion),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Conversion {
    left: bool,
    zeros: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    width: usize,
    bits: u32,
    kind: char,
}

type Characters<'a> = std::iter::Peekable<std::str::Chars<'a>>;

impl Template {
    /// Parses the text of a format.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let wrong = |why: String| Error::Failed(format!("the format {text:?} {why}"));
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text.chars().peekable();
        let mut words = 0;
        while let Some(character) = rest.next() {
            if character != '%' || rest.next_if_eq(&'%').is_some() {
                plain.push(character);
                continue;
            }
            let conversion = Conversion::parse(&mut rest).map_err(wrong)?;
            words += 1;
            if words > ARGUMENTS {
                return Err(wrong(format!("has more than the {ARGUMENTS} words of a record")));
            }
            parts.push(TemplatePart::Text(std::mem::take(&mut plain)));
            parts.push(TemplatePart::Word(conversion));
        }
        parts.push(TemplatePart::Text(plain));
        Ok(Self { parts })
    }

    /// The text with these words inserted.
    pub(crate) fn text(&self, arguments: &[u64; ARGUMENTS]) -> String {
        let mut words = arguments.iter();
        let texts = self.parts.iter().map(|part| match part {
            TemplatePart::Text(text) => text.clone(),
            TemplatePart::Word(conversion) => conversion.text(*words.next().unwrap_or(&0)),
        });
        texts.collect()
    }
}

impl Conversion {
    /// Parses the conversion after a percent sign; the error has the reason.
    fn parse(rest: &mut Characters<'_>) -> Result<Self, String> {
        let mut made = Self { bits: 32, ..Self::default() };
        while let Some(flag) = rest.next_if(|it| "-0+ #".contains(*it)) {
            match flag {
                '-' => made.left = true,
                '0' => made.zeros = true,
                '+' => made.plus = true,
                ' ' => made.space = true,
                _ => made.alternate = true,
            }
        }
        while let Some(digit) = rest.peek().and_then(|it| it.to_digit(10)) {
            rest.next();
            made.width = made.width * 10 + digit as usize;
            if made.width > 99 {
                return Err("has a width of more than two digits".into());
            }
        }
        if let Some(length) = rest.next_if(|it| "hlzjt".contains(*it)) {
            let twice = "hl".contains(length) && rest.next_if_eq(&length).is_some();
            made.bits = match (length, twice) {
                ('h', true) => 8,
                ('h', false) => 16,
                _ => 64,
            };
        }
        match rest.next() {
            Some(kind @ ('d' | 'i' | 'u' | 'x' | 'X' | 'o' | 'c')) => Ok(Self { kind, ..made }),
            Some('p') => Ok(Self { kind: 'x', bits: 64, alternate: true, ..made }),
            Some(other) => Err(format!(
                "has the conversion {other:?}: a record has integers, for d, i, u, x, X, o, c and p"
            )),
            None => Err("ends within a conversion; %% is a percent sign".into()),
        }
    }

    fn text(&self, word: u64) -> String {
        let unused = 64 - self.bits;
        let unsigned = word << unused >> unused;
        let signed = (word << unused) as i64 >> unused;
        let prefix = |prefix| if self.alternate && unsigned != 0 { prefix } else { "" };
        let (sign, digits) = match self.kind {
            'd' | 'i' => {
                let sign = match signed {
                    ..0 => "-",
                    _ if self.plus => "+",
                    _ if self.space => " ",
                    _ => "",
                };
                (sign, signed.unsigned_abs().to_string())
            }
            'x' => (prefix("0x"), format!("{unsigned:x}")),
            'X' => (prefix("0X"), format!("{unsigned:X}")),
            'o' => (prefix("0"), format!("{unsigned:o}")),
            'c' => ("", char::from(word as u8).to_string()),
            _ => ("", unsigned.to_string()),
        };
        let missing = self.width.saturating_sub(sign.len() + digits.chars().count());
        if self.left {
            format!("{sign}{digits}{}", " ".repeat(missing))
        } else if self.zeros && self.kind != 'c' {
            format!("{sign}{}{digits}", "0".repeat(missing))
        } else {
            format!("{}{sign}{digits}", " ".repeat(missing))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(format: &str, words: [u64; ARGUMENTS]) -> String {
        Template::parse(format).unwrap().text(&words)
    }

    #[test]
    fn words_format_like_printf() {
        let minus = -5_i64 as u64;
        let words = |first| [first, 2, 3, 4, 5, 6];
        for (format, first, expected) in [
            ("nothing", 1, "nothing"),
            ("100%% of %d", 7, "100% of 7"),
            ("%d %i", minus, "-5 2"),
            ("%u", minus, "4294967291"),
            ("%lu", minus, "18446744073709551611"),
            ("%llx", minus, "fffffffffffffffb"),
            ("%hhd|%hx", 0x1_80ff, "-1|2"),
            ("%zu %jd %td", 1, "1 2 3"),
            ("%#x %#X %#o %p", 0xab, "0xab 0X2 03 0x4"),
            ("%5d|%-5d|%05d", 42, "   42|2    |00003"),
            ("%+d|% d", 3, "+3| 2"),
            ("%05d", minus, "-0005"),
            ("%c%%", 0x41, "A%"),
            ("%d%d%d%d%d%d", 1, "123456"),
        ] {
            assert_eq!(shown(format, words(first)), expected, "{format}");
        }
    }

    #[test]
    fn unsupported_format_is_rejected() {
        for (format, why) in [
            ("%s", "conversion 's'"),
            ("%f", "conversion 'f'"),
            ("%n", "conversion 'n'"),
            ("50%", "ends within"),
            ("%-5l", "ends within"),
            ("%100d", "two digits"),
            ("%d%d%d%d%d%d%d", "more than the 6 words"),
        ] {
            let error = Template::parse(format).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
