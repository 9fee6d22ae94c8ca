//! The position of a field in the PRM's notation: byte offset of the dword, then bits hi:lo within
//! it.

use std::fmt;

/// A parsed `at`: `0x00` (the whole dword), `0x00.17`, `0x00.31:28`, or `0x30:8` (eight bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At {
    /// Byte offset of the dword, a multiple of 4.
    pub(crate) dword: u32,
    /// The part after the offset.
    pub(crate) rest: Rest,
}

/// The part of an `at` after the dword's offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// No bits: the whole dword, or as much as the field's `bits`, `bytes` or `struct` states.
    None,
    /// `.hi:lo` or `.bit`, bit 31 being the first.
    Bits(u32, u32),
    /// `:n`, a number of bytes.
    Bytes(u32),
}

/// A run of bits in a structure, counted from its first bit (bit 31 of the first dword).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    /// First bit.
    pub(crate) start: u32,
    /// Number of bits.
    pub(crate) width: u32,
}

impl Span {
    /// The first bit after it.
    pub(crate) fn end(self) -> u32 {
        self.start + self.width
    }
}

impl At {
    /// Parses an `at`; the error says what to write instead.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (offset, rest) = match text.find(['.', ':']) {
            Some(i) => (&text[..i], Some((text.as_bytes()[i], &text[i + 1..]))),
            None => (text, None),
        };
        let dword = hex(offset)
            .ok_or_else(|| format!("`{text}` does not start with a byte offset like 0x1c"))?;
        if dword % 4 != 0 {
            let bit = 31 - (dword % 4) * 8;
            return Err(format!(
                "offset 0x{dword:02x} is not a multiple of 4; write the dword's offset and the \
                 bits, for example 0x{:02x}.{bit}:0",
                dword & !3
            ));
        }
        if dword > 0x10_0000 {
            return Err(format!("offset 0x{dword:x} is larger than a structure can be"));
        }
        let rest = match rest {
            None => Rest::None,
            Some((b':', bytes)) => match hex(bytes).or_else(|| bytes.parse().ok()) {
                Some(n) if n > 0 && n <= 0x10_0000 => Rest::Bytes(n),
                _ => return Err(format!("`{bytes}` is not a number of bytes, as in 0x30:8")),
            },
            Some((_, bits)) => {
                let (hi, lo) = bits.split_once(':').unwrap_or((bits, bits));
                match (hi.parse::<u32>(), lo.parse::<u32>()) {
                    (Ok(hi), Ok(lo)) if hi <= 31 && lo <= hi => Rest::Bits(hi, lo),
                    (Ok(hi), Ok(lo)) if hi <= 31 && lo <= 31 => {
                        return Err(format!("bits are written high:low, so .{lo}:{hi}"));
                    }
                    _ => return Err(format!("`.{bits}` is not .hi:lo or .bit within 31:0")),
                }
            }
        };
        Ok(Self { dword, rest })
    }

    /// The first bit, counted from the start of the structure.
    pub(crate) fn start(self) -> u32 {
        self.dword * 8
            + match self.rest {
                Rest::Bits(hi, _) => 31 - hi,
                _ => 0,
            }
    }

    /// The width in the text, 32 if there is none.
    pub(crate) fn width(self) -> u32 {
        match self.rest {
            Rest::None => 32,
            Rest::Bits(hi, lo) => hi - lo + 1,
            Rest::Bytes(n) => n * 8,
        }
    }

    /// The span in the text.
    pub(crate) fn span(self) -> Span {
        Span { start: self.start(), width: self.width() }
    }

    /// The `at` of a field of `width` bits from bit `start`, and its `bits` if `at` does not give
    /// the width.
    pub(crate) fn of_field(start: u32, width: u32) -> (Self, Option<u32>) {
        let (dword, bit) = (start / 32 * 4, start % 32);
        if bit == 0 && width == 32 {
            (Self { dword, rest: Rest::None }, None)
        } else if bit + width <= 32 && width > 0 {
            (Self { dword, rest: Rest::Bits(31 - bit, 32 - bit - width) }, None)
        } else if bit == 0 {
            (Self { dword, rest: Rest::None }, Some(width))
        } else {
            (Self { dword, rest: Rest::Bits(31 - bit, 0) }, Some(width))
        }
    }

    /// The entries of a `reserved` list for a gap.
    pub(crate) fn of_gap(gap: Span) -> Vec<Self> {
        let (mut start, mut positions) = (gap.start, Vec::new());
        while start < gap.end() {
            let left = gap.end() - start;
            let width =
                if start % 32 == 0 && left >= 32 { left & !31 } else { left.min(32 - start % 32) };
            let dword = start / 32 * 4;
            let rest = match (start % 32, width) {
                (0, width) if width > 32 => Rest::Bytes(width / 8),
                (0, 32) => Rest::None,
                (bit, width) => Rest::Bits(31 - bit, 32 - bit - width),
            };
            positions.push(Self { dword, rest });
            start += width;
        }
        positions
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:02x}", self.dword)?;
        match self.rest {
            Rest::None => Ok(()),
            Rest::Bits(hi, lo) if hi == lo => write!(f, ".{hi}"),
            Rest::Bits(hi, lo) => write!(f, ".{hi}:{lo}"),
            Rest::Bytes(n) => write!(f, ":{n}"),
        }
    }
}

fn hex(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_text_round_trips() {
        for text in ["0x00", "0x00.17", "0x00.31:28", "0x30:8", "0x110", "0x100000"] {
            assert_eq!(At::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn bit_31_is_first_of_dword() {
        assert_eq!(At::parse("0x04.31").unwrap().span(), Span { start: 32, width: 1 });
        assert_eq!(At::parse("0x04.3:0").unwrap().span(), Span { start: 60, width: 4 });
    }

    #[test]
    fn malformed_position_is_rejected_with_hint() {
        for (text, says) in [
            ("12", "byte offset"),
            ("", "byte offset"),
            ("0x06", "0x04.15:0"),
            ("0x00.3:8", "high:low"),
            ("0x00.32", ".hi:lo"),
            ("0x00.a", ".hi:lo"),
            ("0x00:0", "number of bytes"),
            ("0xfffffffc", "larger than a structure"),
            ("0x100004", "larger than a structure"),
        ] {
            let error = At::parse(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn field_position_gives_width_if_ambiguous() {
        for (start, width, at, bits) in [
            (32, 32, "0x04", None),
            (40, 8, "0x04.23:16", None),
            (40, 24, "0x04.23:0", None),
            (40, 25, "0x04.23:0", Some(25)),
            (64, 33, "0x08", Some(33)),
            (64, 0, "0x08", Some(0)),
        ] {
            let (position, more) = At::of_field(start, width);
            assert_eq!((position.to_string().as_str(), more), (at, bits), "{start}, {width}");
            assert_eq!(position.start(), start);
        }
    }

    #[test]
    fn gap_is_written_in_whole_dwords() {
        let written = |start, width| -> Vec<String> {
            At::of_gap(Span { start, width }).iter().map(At::to_string).collect()
        };
        assert_eq!(written(737, 1439), ["0x5c.30:0", "0x60:176"]);
        assert_eq!(written(4, 2), ["0x00.27:26"]);
        assert_eq!(written(32, 40), ["0x04", "0x08.31:24"]);
    }
}
