//! Messages and records from entries. The program's data are untrusted: an invalid entry is counted
//! and dropped, and no message mixes parts of two.

use verbless_flexio_dev::Level;
use verbless_flexio_dev::stream::entry::{
    ARGUMENTS, CONTINUES, HEAD_BYTES, MORE, RECORD_BYTES, TEXT_BYTES, TEXT_ENTRY_BYTES,
};

/// A message of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The number of the message's first entry in the stream, from 0.
    pub number: u64,
    /// The message's level; `None` for a trace record, which has none.
    pub level: Option<Level>,
    /// The number of the thread that wrote the message
    /// ([`EventHandler::id`](crate::EventHandler::id)); 0 for a thread without a number, such as a
    /// call without attributes.
    pub thread: u32,
    /// The text. Bytes that are not UTF-8 are shown as U+FFFD.
    pub text: String,
}

/// Joins the segments of messages.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    open: Option<OpenMessage>,
    /// The number of the next entry.
    next: u64,
    /// Maximum number of entries of a message.
    most: u64,
    /// Messages with a missing or damaged part.
    pub(crate) broken: u64,
}

#[derive(Debug)]
struct OpenMessage {
    number: u64,
    level: Level,
    thread: u32,
    bytes: Vec<u8>,
}

/// A segment, as stored in an entry.
struct Segment<'a> {
    level: Level,
    thread: u32,
    more: bool,
    continues: bool,
    text: &'a [u8],
}

impl<'a> Segment<'a> {
    fn parse(entry: &'a [u8]) -> Option<Self> {
        if entry.len() != TEXT_ENTRY_BYTES {
            return None;
        }
        let (head, text) = entry.split_at(HEAD_BYTES);
        let length = usize::from(u16::from_le_bytes([head[0], head[1]]));
        let (level, flags) = (Level::from_number(head[2])?, head[3]);
        if flags & !(MORE | CONTINUES) != 0 {
            return None;
        }
        let more = flags & MORE != 0;
        // All segments but the last are full.
        if length > TEXT_BYTES || more && length != TEXT_BYTES {
            return None;
        }
        Some(Self {
            level,
            thread: u32::from_le_bytes([head[4], head[5], head[6], head[7]]),
            more,
            continues: flags & CONTINUES != 0,
            text: &text[..length],
        })
    }
}

impl Messages {
    /// A joiner for a stream whose messages have at most `most` entries.
    pub(crate) fn new(most: u64) -> Self {
        Self { most, ..Self::default() }
    }

    /// Takes an entry, in the order of numbers; returns the message that it completes, if any.
    pub(crate) fn take(&mut self, number: u64, entry: &[u8]) -> Option<Message> {
        let follows = number == self.next;
        self.next = number.wrapping_add(1);
        let mut open = self.open.take();
        if !follows && open.take().is_some() {
            self.broken += 1;
        }
        let Some(segment) = Segment::parse(entry) else {
            self.broken += 1;
            return None;
        };
        let mut open = match (segment.continues, open) {
            (false, None) => OpenMessage {
                number,
                level: segment.level,
                thread: segment.thread,
                bytes: Vec::new(),
            },
            (true, Some(open)) if (open.level, open.thread) == (segment.level, segment.thread) => {
                open
            }
            // The continuation of a message whose start is missing: that was counted already.
            (_, open) => {
                self.broken += u64::from(open.is_some());
                return None;
            }
        };
        open.bytes.extend_from_slice(segment.text);
        if segment.more {
            if number - open.number + 1 >= self.most {
                self.broken += 1;
            } else {
                self.open = Some(open);
            }
            return None;
        }
        Some(Message {
            number: open.number,
            level: Some(open.level),
            thread: open.thread,
            text: String::from_utf8_lossy(&open.bytes).into_owned(),
        })
    }
}

/// A record that a program traced: a number and six words (`flexio_tracer_msg`,
/// `dtrace_tp_report`).
///
/// The layout of `dtrace_tp_report` is not published: these fields are verbless's own. Their
/// encoding has a version: between program and host the streams'
/// ([`control::VERSION`](verbless_flexio_dev::stream::control::VERSION)), and programs refuse any
/// other; in a file, [`trace_file::VERSION`](crate::tracer::trace_file::VERSION).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// The record's number in the stream or the tracer, from 0.
    pub number: u64,
    /// The number of the record's format or trace point.
    pub id: u32,
    /// The number of the thread that wrote the record; 0 for a thread without a number.
    pub thread: u32,
    /// The arguments; 0 for omitted ones.
    pub arguments: [u64; ARGUMENTS],
}

impl Record {
    /// Bytes of a record in memory and in a file.
    pub const BYTES: usize = RECORD_BYTES;

    /// Parses an entry; `None` if the record is incomplete.
    pub(crate) fn parse(entry: &[u8]) -> Option<Self> {
        let entry: &[u8; RECORD_BYTES] = entry.try_into().ok()?;
        let (words, _) = entry.as_chunks::<8>();
        let word = |index: usize| u64::from_le_bytes(words[index]);
        Some(Self {
            number: word(1).checked_sub(1)?,
            id: word(0) as u32,
            thread: (word(0) >> 32) as u32,
            arguments: std::array::from_fn(|index| word(2 + index)),
        })
    }

    /// The record's bytes in an entry.
    pub(crate) fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..4].copy_from_slice(&self.id.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.thread.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.number.wrapping_add(1).to_le_bytes());
        for (bytes, word) in bytes[HEAD_BYTES..].chunks_exact_mut(8).zip(self.arguments) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use verbless_flexio_dev::stream::control;

    use super::*;

    fn entry(text: &[u8], level: u8, flags: u8) -> Vec<u8> {
        let mut entry = vec![0; TEXT_ENTRY_BYTES];
        entry[..2].copy_from_slice(&(text.len() as u16).to_le_bytes());
        (entry[2], entry[3], entry[4]) = (level, flags, 7);
        entry[HEAD_BYTES..HEAD_BYTES + text.len()].copy_from_slice(text);
        entry
    }

    fn texts(entries: &[(u64, Vec<u8>)]) -> (Vec<String>, u64) {
        let mut messages = Messages::new(8);
        let taken = entries.iter().filter_map(|(number, entry)| messages.take(*number, entry));
        let texts = taken.map(|message| message.text).collect();
        (texts, messages.broken)
    }

    #[test]
    fn message_joins_segments_with_first_metadata() {
        let mut messages = Messages::new(8);
        let part = [b'a'; TEXT_BYTES];
        assert_eq!(messages.take(5, &entry(&part, 4, MORE)), None);
        assert_eq!(messages.take(6, &entry(&part, 4, MORE | CONTINUES)), None);
        let message = messages.take(7, &entry(b"end", 4, CONTINUES)).unwrap();
        assert_eq!((message.number, message.thread, message.level), (5, 7, Some(Level::Info)));
        assert_eq!(message.text, "a".repeat(2 * TEXT_BYTES) + "end");
        assert_eq!(messages.take(8, &entry(b"\xff!", 2, 0)).unwrap().text, "\u{fffd}!");
        assert_eq!(messages.broken, 0);
    }

    #[test]
    fn message_with_lost_part_is_dropped_alone() {
        let part = [b'a'; TEXT_BYTES];
        let (one, begin) = (entry(b"one", 4, 0), entry(&part, 4, MORE));
        let (middle, end) = (entry(&part, 4, MORE | CONTINUES), entry(b"end", 4, CONTINUES));
        let all = [one.clone(), begin, middle, end, one];
        let without = |leave: &[u64]| {
            let all = (0..).zip(all.clone());
            texts(&all.filter(|(number, _)| !leave.contains(number)).collect::<Vec<_>>())
        };
        let whole = "a".repeat(2 * TEXT_BYTES) + "end";
        assert_eq!(without(&[]).0, ["one", &whole, "one"]);
        for leave in [&[1][..], &[2], &[3], &[1, 2], &[2, 3]] {
            assert_eq!(without(leave).0, ["one", "one"], "without {leave:?}");
        }
        assert_eq!(without(&[2]).1, 1);
        assert_eq!(without(&[0, 1, 2, 3]).0, ["one"]);
    }

    #[test]
    fn invalid_entry_counts_as_broken() {
        let mut long = entry(b"x", 4, 0);
        long[..2].copy_from_slice(&241_u16.to_le_bytes());
        let wrong = [entry(b"x", 6, 0), entry(b"x", 4, 4), entry(b"x", 4, MORE), vec![0; 64], long];
        for wrong in wrong {
            let good = entry(b"good", 4, 0);
            assert_eq!(texts(&[(0, wrong), (1, good)]), (vec!["good".to_string()], 1));
        }
    }

    #[test]
    fn endless_message_is_dropped() {
        let mut messages = Messages::new(3);
        let part = [b'a'; TEXT_BYTES];
        messages.take(0, &entry(&part, 4, MORE));
        for number in 1..20 {
            assert_eq!(messages.take(number, &entry(&part, 4, MORE | CONTINUES)), None);
            assert!(messages.open.as_ref().is_none_or(|open| open.bytes.len() <= 3 * TEXT_BYTES));
        }
        assert_eq!(messages.broken, 1);
    }

    #[test]
    fn record_round_trips_through_bytes() {
        let record =
            Record { number: 8, id: 0x1234_5678, thread: 9, arguments: [1, 2, 3, 4, 5, u64::MAX] };
        assert_eq!(Record::parse(&record.to_bytes()), Some(record));
        assert_eq!(Record::parse(&[0; RECORD_BYTES]), None, "a record without a number");
        assert_eq!(Record::parse(&[1; 63]), None);
        // A change of these bytes needs a new version, of streams and of files.
        let versions = (control::VERSION, crate::tracer::trace_file::VERSION);
        assert_eq!(versions, (2, 1), "the versions of these bytes");
        let words = [0x0000_0009_1234_5678, 9, 1, 2, 3, 4, 5, u64::MAX];
        assert_eq!(record.to_bytes()[..], words.map(u64::to_le_bytes).concat());
    }
}
