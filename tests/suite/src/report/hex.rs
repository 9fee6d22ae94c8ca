//! Bytes as a report has them: hexadecimal digits, without the zero bytes at the end.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Bytes; those beyond the end of the text are 0.
#[derive(Clone, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(transparent))]
pub struct Hex(
    #[cfg_attr(test, schemars(with = "String", regex(pattern = r"^([0-9a-f]{2}){0,16384}$")))]
    Vec<u8>,
);

/// Limit for one run of bytes: a mailbox of the largest command is far below it.
const MAX_BYTES: usize = 0x4000;

impl Hex {
    /// The bytes, without the zeros at their end.
    pub fn new(bytes: &[u8]) -> Self {
        let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        Self(bytes[..end].to_vec())
    }

    /// The bytes up to the last that is not 0.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The first `len` bytes, zeros at the end included.
    pub fn padded(&self, len: usize) -> Vec<u8> {
        let mut bytes = self.0.clone();
        bytes.resize(len, 0);
        bytes
    }

    fn parse(text: &str) -> Result<Self, String> {
        if !text.len().is_multiple_of(2) {
            return Err(format!("{} hexadecimal digits are no whole number of bytes", text.len()));
        }
        if text.len() / 2 > MAX_BYTES {
            return Err(format!("{} bytes are more than {MAX_BYTES}", text.len() / 2));
        }
        let digit = |digit: u8| (digit as char).to_digit(16).map(|digit| digit as u8);
        let byte = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(pair[1])?);
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks_exact(2).map(byte).collect();
        let bytes = bytes.ok_or("bytes are hexadecimal digits without spaces")?;
        Ok(Self::new(&bytes))
    }
}

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_at_the_end_are_left_out() {
        let hex = Hex::new(&[0, 0x0f, 0xa0, 0, 0]);
        assert_eq!(hex.to_string(), "000fa0");
        assert_eq!(hex.padded(5), [0, 0x0f, 0xa0, 0, 0]);
        assert_eq!(Hex::new(&[0; 9]), Hex::default());
        assert_eq!(Hex::parse("000fa000"), Ok(hex));
    }

    #[test]
    fn text_that_is_not_bytes_is_refused() {
        for (text, why) in [("0", "whole number"), ("0g", "digits"), ("é", "digits")] {
            assert!(Hex::parse(text).unwrap_err().contains(why), "{text}");
        }
        assert!(Hex::parse(&"00".repeat(MAX_BYTES)).is_ok());
        assert!(Hex::parse(&"00".repeat(MAX_BYTES + 1)).unwrap_err().contains("more than"));
    }
}
