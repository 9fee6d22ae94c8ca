//! Messages in a file, for tools of the host: the output of a stream with [`Output::binary`].
//!
//! | a report, little-endian | |
//! |---|---|
//! | 0x00 | `vbmsg` and a zero |
//! | 0x06 | version: 1 (2 bytes) |
//! | 0x08 | the message's number in its stream (8 bytes) |
//! | 0x10 | number of the thread that wrote it (4 bytes) |
//! | 0x14 | its level: 0 to 5, 255 without one (1 byte), and three zeros |
//! | 0x18 | bytes of its text (4 bytes), and four zeros |
//! | 0x20 | the text, in UTF-8 |
//!
//! FlexIO names a struct for it but no fields; this format is verbless's own.
//!
//! [`Output::binary`]: super::Output::binary

use std::fmt;
use std::io::{self, Read};

use verbless_flexio_dev::Level;

use super::config::MAX_BUFFER;
use super::text::Message;

/// The version of the format.
pub const VERSION: u16 = 1;
/// Bytes of a report before its text.
pub const HEAD_BYTES: usize = 32;
const MAGIC: [u8; 6] = *b"vbmsg\0";
const NO_LEVEL: u8 = 0xff;
/// Maximum bytes of a text: U+FFFD takes three bytes for one of the program's.
const MAX_TEXT_BYTES: u32 = 3 * MAX_BUFFER;

/// A message as bytes (`msg_bin_report`).
///
/// ```
/// use verbless_flexio::stream::report::MsgBinReport;
/// use verbless_flexio::stream::{Level, Message};
///
/// let message =
///     Message { number: 5, level: Some(Level::Info), thread: 2, text: "five".into() };
/// let bytes = MsgBinReport(message.clone()).to_bytes();
/// assert_eq!(MsgBinReport::read(&mut &bytes[..])?, Some(MsgBinReport(message)));
/// # Ok::<(), verbless_flexio::stream::report::ReportError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MsgBinReport(pub Message);

/// Why a file of reports cannot be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReportError {
    /// An I/O error.
    Io(io::Error),
    /// The next bytes are not a report's magic number.
    NotAReport,
    /// A report has this unknown version.
    Version(u16),
    /// The file ends within a report.
    Truncated,
    /// This field has an invalid value.
    Field(&'static str),
}

impl fmt::Display for ReportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::NotAReport => f.write_str("not a report of a message, as Output::binary writes"),
            Self::Version(version) => {
                write!(f, "a report has version {version}; this reads version {VERSION}")
            }
            Self::Truncated => f.write_str("the file ends within a report"),
            Self::Field(field) => write!(f, "a report has an invalid {field}"),
        }
    }
}

impl std::error::Error for ReportError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl MsgBinReport {
    /// The encoded report.
    pub fn to_bytes(&self) -> Vec<u8> {
        let Message { number, level, thread, text } = &self.0;
        let mut bytes = Vec::with_capacity(HEAD_BYTES + text.len());
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(number.to_le_bytes());
        bytes.extend(thread.to_le_bytes());
        bytes.extend([level.map_or(NO_LEVEL, |level| level as u8), 0, 0, 0]);
        bytes.extend((text.len() as u32).to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(text.as_bytes());
        bytes
    }

    /// Reads the next report, without trusting its contents; `None` at the end.
    ///
    /// # Errors
    /// The next bytes are not a complete report of this version.
    pub fn read(from: &mut impl Read) -> Result<Option<Self>, ReportError> {
        let mut head = Vec::new();
        from.by_ref().take(HEAD_BYTES as u64).read_to_end(&mut head).map_err(ReportError::Io)?;
        if head.is_empty() {
            return Ok(None);
        }
        if !head.starts_with(&MAGIC[..head.len().min(MAGIC.len())]) {
            return Err(ReportError::NotAReport);
        }
        let head: [u8; HEAD_BYTES] = head.try_into().map_err(|_| ReportError::Truncated)?;
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let version = u16::from_le_bytes([head[6], head[7]]);
        if version != VERSION {
            return Err(ReportError::Version(version));
        }
        let level = match head[0x14] {
            NO_LEVEL => None,
            number => Some(Level::from_number(number).ok_or(ReportError::Field("level"))?),
        };
        if word(0x14) >> 8 != 0 || word(0x1c) != 0 {
            return Err(ReportError::Field("reserved field"));
        }
        let length = word(0x18);
        if length > MAX_TEXT_BYTES {
            return Err(ReportError::Field("length"));
        }
        let mut text = Vec::new();
        from.by_ref().take(length.into()).read_to_end(&mut text).map_err(ReportError::Io)?;
        if text.len() < length as usize {
            return Err(ReportError::Truncated);
        }
        let text = String::from_utf8(text).map_err(|_| ReportError::Field("text"))?;
        let number = u64::from(word(0x08)) | u64::from(word(0x0c)) << 32;
        Ok(Some(Self(Message { number, level, thread: word(0x10), text })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> MsgBinReport {
        let level = Some(Level::Warn);
        MsgBinReport(Message { number: 1 << 40 | 7, level, thread: 9, text: "h\u{e9}re".into() })
    }

    #[test]
    fn report_bytes_match_documented_layout() {
        let bytes = report().to_bytes();
        let mut expected = b"vbmsg\0\x01\0\x07\0\0\0\0\x01\0\0\x09\0\0\0".to_vec();
        expected.extend([Level::Warn as u8, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend("h\u{e9}re".as_bytes());
        assert_eq!(bytes, expected);
        let mut two = [bytes.clone(), bytes].concat();
        two[level_offset(1)] = NO_LEVEL;
        let mut from = &two[..];
        assert_eq!(MsgBinReport::read(&mut from).unwrap(), Some(report()));
        let second = MsgBinReport::read(&mut from).unwrap().unwrap();
        assert_eq!(second.0.level, None);
        assert_eq!(MsgBinReport::read(&mut from).unwrap(), None);
    }

    /// Offset of the level of report `index` of [`report`]s.
    fn level_offset(index: usize) -> usize {
        index * report().to_bytes().len() + 0x14
    }

    #[test]
    fn truncated_or_altered_report_is_rejected() {
        let whole = report().to_bytes();
        for length in 1..whole.len() {
            let read = MsgBinReport::read(&mut &whole[..length]);
            assert!(matches!(read, Err(ReportError::Truncated)), "{length} bytes: {read:?}");
        }
        for (at, value, why) in [
            (0, b'x', "not a report"),
            (6, 2, "version 2"),
            (0x14, 9, "level"),
            (0x15, 1, "reserved"),
            (0x1f, 1, "reserved"),
            (0x1b, 0xff, "length"),
            (0x21, 0xff, "text"),
        ] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            let error = MsgBinReport::read(&mut &bytes[..]).unwrap_err().to_string();
            assert!(error.contains(why), "{at:#x}: {error}");
        }
    }
}
