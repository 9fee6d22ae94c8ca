//! Text for the host: messages with a level, for a stream of the host, for the default stream, or
//! for all. A long message takes several consecutive [entries](crate::stream::entry).
//!
//! Until the host creates a stream, its messages are discarded, as with the C library.

use core::fmt::{self, Write as _};

use crate::context::ThreadContext;
use crate::stream::control::Control;
use crate::stream::entry::{CONTINUES, MORE, TEXT_BYTES, TEXT_ENTRY_BYTES, text_head};
pub use crate::stream::table::MAX_STREAMS;
use crate::stream::table::with;

/// The level of a message (`flexio_msg_dev_level`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Not written; as a stream's level: no message is written (`FLEXIO_MSG_DEV_NO_PRINT`).
    None = 0,
    /// Written at every level of the stream except `None` (`FLEXIO_MSG_DEV_ALWAYS_PRINT`).
    Always = 1,
    /// An error (`FLEXIO_MSG_DEV_ERROR`).
    Error = 2,
    /// A warning (`FLEXIO_MSG_DEV_WARN`).
    Warn = 3,
    /// Information (`FLEXIO_MSG_DEV_INFO`).
    Info = 4,
    /// For debugging (`FLEXIO_MSG_DEV_DEBUG`).
    Debug = 5,
}

impl Level {
    /// The level of this number, if there is one.
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::None,
            1 => Self::Always,
            2 => Self::Error,
            3 => Self::Warn,
            4 => Self::Info,
            5 => Self::Debug,
            _ => return None,
        })
    }
}

/// A message stream, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream(u8);

impl Stream {
    /// The default stream, for messages without a stream (`FLEXIO_MSG_DEV_DEFAULT_STREAM_ID`).
    pub const DEFAULT: Self = Self(0);
    /// All streams (`FLEXIO_MSG_DEV_BROADCAST_STREAM`).
    pub const BROADCAST: Self = Self(0xff);

    /// Stream `number`, which the host passes to the program.
    pub const fn new(number: u8) -> Self {
        Self(number)
    }

    /// The stream's number.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Writes a message for a thread; returns the bytes of its text, or 0 if it was not written:
    /// the host has no such stream, its level is lower, or there is no room (which the stream
    /// counts).
    pub fn write(self, context: &ThreadContext, level: Level, text: fmt::Arguments<'_>) -> usize {
        if self == Self::BROADCAST {
            let all = (0..MAX_STREAMS as u8).map(Self);
            return all.map(|stream| stream.write(context, level, text)).max().unwrap_or(0);
        }
        let written = with(self.0.into(), |control| write(control, context, level, text));
        written.flatten().unwrap_or(0)
    }

    /// Whether a message of this level would be written.
    pub(crate) fn shows(control: &Control, level: Level) -> bool {
        level != Level::None && level as u8 <= control.level().0
    }
}

/// Writes a message into entries of a stream of text.
fn write(
    control: &Control,
    context: &ThreadContext,
    level: Level,
    text: fmt::Arguments<'_>,
) -> Option<usize> {
    if !Stream::shows(control, level) || control.entry_bytes() != TEXT_ENTRY_BYTES as u64 {
        return None;
    }
    let mut length = Length(0);
    // Parts of the text may fail; their output so far counts.
    let _ = length.write_fmt(text);
    let segments = length.0.div_ceil(TEXT_BYTES) as u64;
    if segments == 0 {
        return None;
    }
    let first = control.claim(context, segments)?;
    let thread = context.metadata().map_or(0, |it| it.id);
    let end = first + segments;
    let mut segments = Segments {
        control,
        level,
        thread,
        first,
        index: first,
        end,
        bytes: [0; TEXT_BYTES],
        length: 0,
        written: 0,
    };
    let _ = segments.write_fmt(text);
    let written = segments.finish();
    control.hand_over(context, 1);
    Some(written)
}

/// Counts bytes.
struct Length(usize);

impl fmt::Write for Length {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}

/// Writes text into its claimed entries.
struct Segments<'a> {
    control: &'a Control,
    level: Level,
    thread: u32,
    first: u64,
    index: u64,
    end: u64,
    bytes: [u8; TEXT_BYTES],
    length: usize,
    written: usize,
}

impl fmt::Write for Segments<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            if self.length == TEXT_BYTES {
                self.flush();
            }
            // The text was formatted once before, for its length. If it is longer now, it is cut.
            if self.index == self.end {
                return Err(fmt::Error);
            }
            let part = rest.len().min(TEXT_BYTES - self.length);
            self.bytes[self.length..][..part].copy_from_slice(&rest[..part]);
            self.length += part;
            rest = &rest[part..];
        }
        Ok(())
    }
}

impl Segments<'_> {
    /// Writes the current entry.
    fn flush(&mut self) {
        let more = if self.index + 1 != self.end { MORE } else { 0 };
        let continues = if self.index != self.first { CONTINUES } else { 0 };
        let head = text_head(self.length, self.level as u8, more | continues, self.thread);
        let (words, _) = self.bytes.as_chunks::<8>();
        let words = words.iter().map(|word| u64::from_le_bytes(*word));
        self.control.fill(self.index, head, words.take(self.length.div_ceil(8)));
        self.written += self.length;
        self.index += 1;
        self.length = 0;
    }

    /// Writes the remaining entries.
    fn finish(mut self) -> usize {
        while self.index != self.end {
            self.flush();
        }
        self.written
    }
}

/// Writes a message to a stream: `msg!(stream, level, "{} packets", n)` (`flexio_dev_msg`). Returns
/// the bytes of its text, or 0 if it was not written.
#[macro_export]
macro_rules! msg {
    ($stream:expr, $level:expr, $($text:tt)+) => {
        $crate::Stream::write(
            $stream, $crate::ThreadContext::current(), $level, ::core::format_args!($($text)+),
        )
    };
}

/// An error for a stream (`flexio_dev_msg_err`).
#[macro_export]
macro_rules! msg_err {
    ($stream:expr, $($text:tt)+) => { $crate::msg!($stream, $crate::Level::Error, $($text)+) };
}

/// A warning for a stream (`flexio_dev_msg_warn`).
#[macro_export]
macro_rules! msg_warn {
    ($stream:expr, $($text:tt)+) => { $crate::msg!($stream, $crate::Level::Warn, $($text)+) };
}

/// Information for a stream (`flexio_dev_msg_info`).
#[macro_export]
macro_rules! msg_info {
    ($stream:expr, $($text:tt)+) => { $crate::msg!($stream, $crate::Level::Info, $($text)+) };
}

/// A message of level `Debug` for a stream (`flexio_dev_msg_dbg`).
#[macro_export]
macro_rules! msg_dbg {
    ($stream:expr, $($text:tt)+) => { $crate::msg!($stream, $crate::Level::Debug, $($text)+) };
}

/// A message for the default stream (`flexio_dev_msg_dflt`).
#[macro_export]
macro_rules! msg_dflt {
    ($level:expr, $($text:tt)+) => { $crate::msg!($crate::Stream::DEFAULT, $level, $($text)+) };
}

/// A message for all streams (`flexio_dev_msg_broadcast`).
#[macro_export]
macro_rules! msg_broadcast {
    ($level:expr, $($text:tt)+) => { $crate::msg!($crate::Stream::BROADCAST, $level, $($text)+) };
}

/// Information for the default stream (`flexio_dev_print`).
#[macro_export]
macro_rules! print {
    ($($text:tt)+) => { $crate::msg_dflt!($crate::Level::Info, $($text)+) };
}

/// Makes a crate a program for a DPA. It defines the panic handler (a message to the default
/// stream, then the process ends with status 0x43), the function by which the host manages streams,
/// and the function that the workers of command queues run.
#[macro_export]
macro_rules! program {
    () => {
        #[panic_handler]
        fn panic(info: &::core::panic::PanicInfo<'_>) -> ! {
            $crate::msg_dflt!($crate::Level::Always, "{info}");
            $crate::system::panicked()
        }

        #[unsafe(no_mangle)]
        #[unsafe(link_section = ".text.dpa.verbless_stream")]
        extern "C" fn verbless_stream(first: u64, number: u64, address: u64) -> u64 {
            let context = $crate::ThreadContext::current();
            // SAFETY: the host created the process and promises it.
            unsafe { $crate::stream::table::manage(context, first, number, address) }
        }

        #[unsafe(no_mangle)]
        #[unsafe(link_section = ".text.dpa.verbless_cmdq_1")]
        extern "C" fn verbless_cmdq_1(worker: u64) -> ! {
            // SAFETY: the host created the process and promises it; nothing is on the stack when
            // the run ends.
            unsafe {
                $crate::cmdq::work($crate::ThreadContext::current(), worker);
                $crate::system::reschedule()
            }
        }
    };
}
