//! Files of reports: a head of 64 bytes, and records of 64 bytes.
//!
//! | the head, little-endian | |
//! |---|---|
//! | 0x00 | `vbtrace` and a zero |
//! | 0x08 | version: 1 (4 bytes) |
//! | 0x0c | bytes of a record: 64 (4 bytes) |
//! | 0x10 | zeros |
//!
//! A record is an entry of a stream of records (`verbless_flexio_dev::stream::entry`): the trace
//! point's number, the thread's number, the record's number plus 1, and six words. FlexIO's format
//! of such files is not published; this one is verbless's own.

use std::fmt;
use std::io::{self, Read};

use crate::stream::Record;

/// The version of the format.
pub const VERSION: u32 = 1;
/// Bytes of the head.
pub const HEAD_BYTES: usize = 64;
const MAGIC: [u8; 8] = *b"vbtrace\0";

/// The head of a file.
pub(super) fn head() -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(&MAGIC);
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    head[12..16].copy_from_slice(&(Record::BYTES as u32).to_le_bytes());
    head
}

/// Why a file cannot be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum FileError {
    /// An I/O error.
    Io(io::Error),
    /// The file does not begin like a trace file.
    NotATrace,
    /// The file has this unknown version, or records of this unexpected size in bytes.
    Version(u32, u32),
    /// The file ends within this record, counted from 0 in the file.
    Truncated(u64),
    /// This record of the file has no number, or one that does not exceed the previous record's.
    Number(u64),
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::NotATrace => f.write_str("not a trace file, as OutputMode::Bin writes"),
            Self::Version(version, bytes) => write!(
                f,
                "it has version {version} and records of {bytes} bytes; this reads version \
                 {VERSION} with {} bytes",
                Record::BYTES
            ),
            Self::Truncated(record) => write!(f, "the file ends within record {record}"),
            Self::Number(record) => {
                write!(
                    f,
                    "record {record} has no number, or one that does not exceed the previous \
                     record's"
                )
            }
        }
    }
}

impl std::error::Error for FileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            _ => None,
        }
    }
}

/// A reader of files of reports. The files are untrusted.
///
/// ```
/// use verbless_flexio::tracer::trace_file::{FileError, TraceFile};
///
/// # let bytes = {
/// #     let mut bytes = b"vbtrace\0\x01\0\0\0\x40\0\0\0".to_vec();
/// #     bytes.resize(64, 0);
/// #     bytes.extend([7, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
/// #     bytes.resize(128, 0);
/// #     bytes
/// # };
/// for record in TraceFile::new(&bytes[..])? {
///     let record = record?;
///     assert_eq!((record.id, record.thread, record.number), (7, 2, 0));
/// }
/// assert!(matches!(TraceFile::new(&b"number,point"[..]), Err(FileError::NotATrace)));
/// # Ok::<(), FileError>(())
/// ```
#[derive(Debug)]
pub struct TraceFile<R> {
    from: R,
    /// Count of records read, and the number of the last.
    records: u64,
    last: Option<u64>,
    ended: bool,
}

/// Reads until `into` is full or the end; returns the number of bytes.
fn read_whole(from: &mut impl Read, into: &mut [u8]) -> Result<usize, FileError> {
    let mut length = 0;
    while length < into.len() {
        match from.read(&mut into[length..]) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(FileError::Io(error)),
        }
    }
    Ok(length)
}

impl<R: Read> TraceFile<R> {
    /// Reads the head. Wrap a file in a `BufReader`.
    ///
    /// # Errors
    /// It cannot be read, is not a trace file, or has another version.
    pub fn new(mut from: R) -> Result<Self, FileError> {
        let mut head = [0; HEAD_BYTES];
        let length = read_whole(&mut from, &mut head)?;
        if length < HEAD_BYTES || head[..8] != MAGIC {
            return Err(FileError::NotATrace);
        }
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| head[at + byte]));
        let (version, bytes) = (word(8), word(12));
        if version != VERSION || bytes as usize != Record::BYTES {
            return Err(FileError::Version(version, bytes));
        }
        Ok(Self { from, records: 0, last: None, ended: false })
    }

    fn read(&mut self) -> Result<Option<Record>, FileError> {
        let mut bytes = [0; Record::BYTES];
        match read_whole(&mut self.from, &mut bytes)? {
            0 => return Ok(None),
            Record::BYTES => {}
            _ => return Err(FileError::Truncated(self.records)),
        }
        let later = |it: &Record| self.last.is_none_or(|last| it.number > last);
        let record = Record::parse(&bytes).filter(later);
        let record = record.ok_or(FileError::Number(self.records))?;
        self.records += 1;
        self.last = Some(record.number);
        Ok(Some(record))
    }
}

impl<R: Read> Iterator for TraceFile<R> {
    type Item = Result<Record, FileError>;

    /// The next record. None follows an error.
    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let record = self.read().transpose();
        self.ended = !matches!(record, Some(Ok(_)));
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u64) -> Record {
        Record { number, id: 7, thread: 1, arguments: [number, 2, 3, 4, 5, 6] }
    }

    fn file(numbers: &[u64]) -> Vec<u8> {
        let records = numbers.iter().flat_map(|&number| record(number).to_bytes());
        head().into_iter().chain(records).collect()
    }

    fn read(bytes: &[u8]) -> Result<Vec<Record>, FileError> {
        TraceFile::new(bytes)?.collect()
    }

    #[test]
    fn records_round_trip_through_trace_file() {
        assert_eq!(read(&file(&[])).unwrap(), []);
        assert_eq!(read(&file(&[0, 1, 5])).unwrap(), [record(0), record(1), record(5)]);
    }

    #[test]
    fn truncated_or_altered_trace_file_is_rejected() {
        let good = file(&[0, 1]);
        let changed = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            read(&bytes).unwrap_err()
        };
        assert!(matches!(read(&good[..63]), Err(FileError::NotATrace)));
        assert!(matches!(changed(0, b'V'), FileError::NotATrace));
        assert!(matches!(changed(8, 2), FileError::Version(2, 64)));
        assert!(matches!(changed(12, 32), FileError::Version(1, 32)));
        assert!(matches!(read(&good[..good.len() - 1]), Err(FileError::Truncated(1))));
        assert!(matches!(read(&file(&[3, 3])), Err(FileError::Number(1))));
        assert!(matches!(changed(64 + 8, 0), FileError::Number(0)));
        let mut after = TraceFile::new(&good[..good.len() - 1]).unwrap();
        assert!(after.next().unwrap().is_ok() && after.next().unwrap().is_err());
        assert!(after.next().is_none());
    }

    /// Yields a byte at a time, interrupted before each, and fails at the end if requested.
    struct Slow<'b> {
        left: &'b [u8],
        interrupts: bool,
        fails: bool,
    }

    impl Read for Slow<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.interrupts = !self.interrupts;
            if self.interrupts {
                return Err(io::ErrorKind::Interrupted.into());
            }
            match self.left.split_first() {
                Some((&first, rest)) => {
                    (into[0], self.left) = (first, rest);
                    Ok(1)
                }
                None if self.fails => Err(io::ErrorKind::PermissionDenied.into()),
                None => Ok(0),
            }
        }
    }

    #[test]
    fn trace_reader_handles_short_reads_and_errors() {
        let good = file(&[0, 1]);
        for fails in [false, true] {
            let slow = Slow { left: &good, interrupts: false, fails };
            let read: Vec<_> = TraceFile::new(slow).unwrap().collect();
            assert_eq!(read.iter().filter(|it| it.is_ok()).count(), 2);
            let error = read.get(2).map(|it| it.as_ref().unwrap_err());
            let kind = error.map(|it| match it {
                FileError::Io(error) => error.kind(),
                other => panic!("{other}"),
            });
            assert_eq!(kind, fails.then_some(io::ErrorKind::PermissionDenied));
        }
    }
}
