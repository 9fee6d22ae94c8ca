//! The layout of an entry: a head of 16 bytes and its content, little-endian.
//!
//! | a segment of text, [`TEXT_ENTRY_BYTES`] | |
//! |---|---|
//! | 0x00 | bytes of text in it (2 bytes), level (1), [`MORE`] and [`CONTINUES`] (1) |
//! | 0x04 | number of the thread |
//! | 0x08 | the entry's number in its stream plus 1 (8 bytes), written last: marks it complete |
//! | 0x10 | the text, UTF-8 once the segments of a message are joined |
//!
//! | a record, [`RECORD_BYTES`] | |
//! |---|---|
//! | 0x00 | number of the format or of the trace point |
//! | 0x04 | number of the thread |
//! | 0x08 | the entry's number in its stream plus 1 |
//! | 0x10 | six arguments, 8 bytes each |
//!
//! A record is a `flexio_tracer_msg` of the headers of 25.1, with its reserved words in use.

/// Offset of an entry's number.
pub const NUMBER_AT: usize = 8;
/// Bytes of an entry before its content.
pub const HEAD_BYTES: usize = 16;

/// log2 of [`TEXT_ENTRY_BYTES`].
pub const LOG_TEXT_ENTRY_BYTES: u8 = 8;
/// Bytes of a text entry.
pub const TEXT_ENTRY_BYTES: usize = 1 << LOG_TEXT_ENTRY_BYTES;
/// Bytes of text in a segment.
pub const TEXT_BYTES: usize = TEXT_ENTRY_BYTES - HEAD_BYTES;

/// log2 of [`RECORD_BYTES`].
pub const LOG_RECORD_BYTES: u8 = 6;
/// Bytes of a record.
pub const RECORD_BYTES: usize = 1 << LOG_RECORD_BYTES;
/// Arguments of a record.
pub const ARGUMENTS: usize = 6;

/// The message continues in the next entry.
pub const MORE: u8 = 1 << 0;
/// The entry continues the previous one's message.
pub const CONTINUES: u8 = 1 << 1;

/// The first word of a segment of text.
pub(crate) const fn text_head(length: usize, level: u8, flags: u8, thread: u32) -> u64 {
    length as u64 | (level as u64) << 16 | (flags as u64) << 24 | (thread as u64) << 32
}

/// The first word of a record.
pub(crate) const fn record_head(id: u32, thread: u32) -> u64 {
    id as u64 | (thread as u64) << 32
}
