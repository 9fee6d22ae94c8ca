//! Bytes and texts in a recording, which is a stranger's when it is read.
//!
//! Bytes are hexadecimal digits; `0a0b*16` is 16 bytes, of which the other 14 are 0. Ten characters
//! may thus be 64 KiB, so [`within`] limits what a whole recording decodes to. A text is shown on a
//! terminal, so it loses its control characters.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::report::plain;

thread_local! {
    /// Bytes of memory that what this thread decodes may still take.
    static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Decodes what takes at most `limit` bytes of memory, without the texts, whose size is that of the
/// file.
pub(super) fn within<T>(limit: usize, decode: impl FnOnce() -> T) -> T {
    let before = LEFT.replace(limit);
    let decoded = decode();
    LEFT.set(before);
    decoded
}

/// Takes memory from the limit.
pub(super) fn take(bytes: usize) -> Result<(), String> {
    let left = LEFT.get().checked_sub(bytes);
    LEFT.set(left.ok_or("decoded, it needs too much memory: record fewer cases (--filter)")?);
    Ok(())
}

/// A list whose elements count.
pub(super) fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    struct Elements<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for Elements<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(element) = elements.next_element()? {
                take(size_of::<T>()).map_err(de::Error::custom)?;
                list.push(element);
            }
            Ok(list)
        }
    }
    deserializer.deserialize_seq(Elements(PhantomData))
}

/// A text without what would steer a terminal.
pub(super) fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(plain(&String::deserialize(deserializer)?))
}

/// The same for a text that may be absent.
pub(super) fn some_text<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.map(|text| plain(&text)))
}

/// The same for a list of texts.
pub(super) fn texts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let mut texts: Vec<String> = list(deserializer)?;
    texts.iter_mut().for_each(|text| *text = plain(text));
    Ok(texts)
}

/// Bytes of an attribute or a ring, at most [`MAX_BYTES`].
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Bytes(pub(super) Vec<u8>);

/// The longest attribute of an ioctl has 65535 bytes; a piece of payload is no longer.
const MAX_BYTES: usize = 1 << 16;

impl Bytes {
    fn parse(text: &str) -> Result<Self, String> {
        let (digits, len) = match text.split_once('*') {
            Some((digits, len)) => (digits, Some(len)),
            None => (text, None),
        };
        let digits = digits.as_bytes();
        let len = match len {
            Some(len) => len.parse().map_err(|_| format!("{len:?} is no number of bytes"))?,
            None => digits.len() / 2,
        };
        if len > MAX_BYTES || !digits.len().is_multiple_of(2) || digits.len() / 2 > len {
            let given = digits.len();
            return Err(format!("{given} digits for {len} bytes, of at most {MAX_BYTES}"));
        }
        take(len)?;
        let digit = |digit: u8| (digit as char).to_digit(16).map(|digit| digit as u8);
        let byte = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(pair[1])?);
        let bytes: Option<Vec<u8>> = digits.chunks_exact(2).map(byte).collect();
        let mut bytes = bytes.ok_or("bytes are hexadecimal digits")?;
        bytes.resize(len, 0);
        Ok(Self(bytes))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.0.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        self.0[..end].iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        match end == self.0.len() {
            true => Ok(()),
            false => write!(f, "*{}", self.0.len()),
        }
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_a_round_trip() {
        for bytes in [vec![], vec![0], vec![0; 4096], vec![1, 0, 2], vec![1, 0, 2, 0, 0]] {
            let text = Bytes(bytes.clone()).to_string();
            assert_eq!(Bytes::parse(&text), Ok(Bytes(bytes)), "{text}");
        }
        assert_eq!(Bytes(vec![10, 11, 0]).to_string(), "0a0b*3");
    }

    #[test]
    fn limit_counts_bytes_and_elements() {
        let decode = || serde_json::from_str::<Bytes>("\"*65536\"");
        assert!(within(65536, || decode().is_ok()));
        let why = within(65535, decode).expect_err("it has more").to_string();
        assert!(why.contains("too much memory"), "{why}");
        let longs = |limit| {
            within(limit, || list::<_, u64>(&mut serde_json::Deserializer::from_str("[1, 2]")))
        };
        assert!(longs(16).is_ok_and(|longs| longs == [1, 2]));
        assert!(longs(15).is_err());
        assert!(within(0, || within(1 << 17, || decode().is_ok()) && decode().is_err()));
    }

    #[test]
    fn bad_digits_and_lengths_are_refused() {
        for text in ["0", "0g", "0a0b*1", "*", "*-1", "*65537", "é0", "0a*99999999999999999999"] {
            assert!(Bytes::parse(text).is_err(), "{text}");
        }
        assert_eq!(Bytes::parse("*65536").map(|bytes| bytes.0.len()), Ok(65536));
    }
}
