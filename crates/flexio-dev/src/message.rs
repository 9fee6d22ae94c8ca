//! Text for the host: streams of messages, each a ring of slots in the host's memory that a thread
//! writes through a window.
//!
//! A host makes a ring, describes it in the process's memory ([`StreamConfig`]) and attaches it by
//! a call of [`attach`] ([`program!`](crate::program) exports it as `verbless_stream_attach`). As
//! long as it has not, messages go nowhere, as with the C library. The layouts are the project's
//! own.
//!
//! | the ring, little-endian | |
//! |---|---|
//! | 0x00 | messages that the host has taken, in slots (8 bytes; the host writes it) |
//! | 0x08 | messages that were lost because there was no room (8 bytes; threads write it) |
//! | 0x40 | the slots, [`SLOT_BYTES`] each |
//!
//! | a slot | |
//! |---|---|
//! | 0x00 | its number in the stream plus 1 (8 bytes), written last: the slot is whole |
//! | 0x08 | bytes of text in it (2 bytes), level (1), 1 if more is in the next slot (1) |
//! | 0x0c | number of the thread |
//! | 0x10 | the text, UTF-8 once the slots of a message are joined |
//!
//! A run that is taken away while it writes a message (a call that took too long, a thread that was
//! destroyed) leaves slots without their numbers. A host that has taken away a run may pass over
//! such a slot when one behind it is whole.
#![allow(unsafe_code)]

use core::fmt::{self, Write as _};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::context::ThreadContext;
use crate::mmio;
use crate::status::Failed;
use crate::window::Window;

/// Bytes of a slot, and of the text in it.
pub const SLOT_BYTES: usize = 256;
/// Bytes of text in a slot.
pub const TEXT_BYTES: usize = SLOT_BYTES - 16;
/// Where the slots begin in a ring.
pub const SLOTS_AT: u64 = 0x40;
const LOST_AT: u64 = 8;

/// How important a message is (`flexio_msg_dev_level`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// It is not written at all; of a stream: nothing is (`FLEXIO_MSG_DEV_NO_PRINT`).
    None = 0,
    /// It is written whatever the level of the stream is, but for `None`
    /// (`FLEXIO_MSG_DEV_ALWAYS_PRINT`).
    Always = 1,
    /// An error (`FLEXIO_MSG_DEV_ERROR`).
    Error = 2,
    /// A warning (`FLEXIO_MSG_DEV_WARN`).
    Warn = 3,
    /// Information (`FLEXIO_MSG_DEV_INFO`).
    Info = 4,
    /// For whoever looks for a mistake (`FLEXIO_MSG_DEV_DEBUG`).
    Debug = 5,
}

/// What a stream is, in the process's memory, little-endian; the host writes it before it attaches
/// the stream, and threads count in it.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct StreamConfig {
    /// Version of the layout: [`Self::VERSION`].
    pub version: u32,
    /// Memory key of the ring.
    pub mkey: u32,
    /// Address of the ring under that key, a multiple of 8.
    pub ring: u64,
    /// Messages of a level above this one are not written. The host may change it.
    pub level: AtomicU32,
    /// The window that leads to the ring, which must have no other use.
    pub window: u16,
    /// log2 of the number of slots.
    pub log_slots: u16,
    /// Slots that threads have taken.
    claimed: AtomicU64,
    lost: AtomicU64,
}

impl StreamConfig {
    /// The version of the layout.
    pub const VERSION: u32 = 1;

    /// A stream whose ring is at `ring` under `mkey`, through window `window`.
    pub const fn new(window: u16, mkey: u32, ring: u64, log_slots: u16, level: Level) -> Self {
        Self {
            version: Self::VERSION,
            mkey,
            ring,
            level: AtomicU32::new(level as u32),
            window,
            log_slots,
            claimed: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }
    }
}

/// A stream, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream(u8);

/// Streams that there may be (`FLEXIO_MSG_DEV_MAX_STREAMS_AMOUNT`).
pub const MAX_STREAMS: usize = 255;
static STREAMS: [AtomicPtr<StreamConfig>; MAX_STREAMS] =
    [const { AtomicPtr::new(null_mut()) }; MAX_STREAMS];

impl Stream {
    /// The stream of messages that name none (`FLEXIO_MSG_DEV_DEFAULT_STREAM_ID`).
    pub const DEFAULT: Self = Self(0);
    /// All streams (`FLEXIO_MSG_DEV_BROADCAST_STREAM`).
    pub const BROADCAST: Self = Self(0xff);

    /// Stream `number`, as the host says.
    pub const fn new(number: u8) -> Self {
        Self(number)
    }

    fn config(self) -> Option<&'static StreamConfig> {
        let config = STREAMS.get(usize::from(self.0))?.load(Ordering::Acquire);
        // SAFETY: whoever attached it has promised that it stays.
        unsafe { config.as_ref() }
    }

    /// Writes a message for a thread; gives the bytes of its text, 0 if it was not written: the
    /// stream is not attached, its level is lower, or there is no room (which the ring counts).
    pub fn write(self, context: &ThreadContext, level: Level, text: fmt::Arguments<'_>) -> usize {
        if self == Self::BROADCAST {
            let all = (0..MAX_STREAMS as u8).map(Self);
            return all.map(|stream| stream.write(context, level, text)).max().unwrap_or(0);
        }
        match self.config() {
            Some(config) => config.write(context, level, text).unwrap_or(0),
            None => 0,
        }
    }
}

/// Attaches stream `number`, or detaches it if `config` is null.
///
/// # Errors
/// There are not so many streams, the version is another, or the ring is at no multiple of 8.
///
/// # Safety
/// `config` is null, or points to a stream's description that stays as long as the process does.
pub unsafe fn attach(
    context: &ThreadContext,
    number: u8,
    config: *mut StreamConfig,
) -> Result<(), Failed> {
    let place = STREAMS.get(usize::from(number)).ok_or(Failed)?;
    // SAFETY: the caller's promise.
    if let Some(config) = unsafe { config.as_ref() } {
        let misaligned = !config.ring.is_multiple_of(8);
        if config.version != StreamConfig::VERSION || config.log_slots >= 32 || misaligned {
            return Err(Failed);
        }
        context.window_at(config.window).set_mkey(config.mkey);
    }
    place.store(config, Ordering::Release);
    Ok(())
}

impl StreamConfig {
    fn write(
        &self,
        context: &ThreadContext,
        level: Level,
        text: fmt::Arguments<'_>,
    ) -> Result<usize, Failed> {
        let highest = self.level.load(Ordering::Relaxed);
        let wanted = match level {
            Level::None => false,
            Level::Always => highest != Level::None as u32,
            _ => level as u32 <= highest,
        };
        if !wanted {
            return Ok(0);
        }
        let mut length = Length(0);
        // The text's own parts may fail; what they have written counts.
        let _ = length.write_fmt(text);
        let slots = length.0.div_ceil(TEXT_BYTES) as u64;
        if slots == 0 {
            return Ok(0);
        }
        let window = context.window_at(self.window);
        let Some(first) = self.claim(&window, slots)? else {
            self.lost.fetch_add(1, Ordering::SeqCst);
            // Whoever stores last stores what is counted last.
            loop {
                let lost = self.lost.load(Ordering::SeqCst);
                window.write_u64(self.ring + LOST_AT, lost)?;
                mmio::in_order();
                if self.lost.load(Ordering::SeqCst) == lost {
                    return Ok(0);
                }
            }
        };
        let thread = context.metadata().map_or(0, |it| it.id);
        let mut slots = Slots {
            config: self,
            window,
            level,
            thread,
            index: first,
            end: first + slots,
            bytes: [0; TEXT_BYTES],
            length: 0,
            written: 0,
        };
        let _ = slots.write_fmt(text);
        slots.finish()
    }

    /// Takes so many slots; the number of the first, or `None` if they are not free.
    fn claim(&self, window: &Window<'_>, slots: u64) -> Result<Option<u64>, Failed> {
        let mut claimed = self.claimed.load(Ordering::Relaxed);
        loop {
            let taken = window.read_u64(self.ring)?;
            // The host has read a slot before it says so, and it is written after that was seen.
            mmio::in_order();
            let used = claimed.wrapping_sub(taken);
            if used.saturating_add(slots) > 1 << self.log_slots {
                // Others may have claimed meanwhile, and the host may have taken even that.
                match self.claimed.load(Ordering::Relaxed) {
                    same if same == claimed => return Ok(None),
                    other => claimed = other,
                }
                continue;
            }
            let (order, next) = (Ordering::Relaxed, claimed + slots);
            match self.claimed.compare_exchange_weak(claimed, next, order, order) {
                Ok(first) => return Ok(Some(first)),
                Err(other) => claimed = other,
            }
        }
    }
}

/// Counts bytes.
struct Length(usize);

impl fmt::Write for Length {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}

/// Writes text into slots, as many as were taken.
struct Slots<'a> {
    config: &'a StreamConfig,
    window: Window<'a>,
    level: Level,
    thread: u32,
    index: u64,
    end: u64,
    bytes: [u8; TEXT_BYTES],
    length: usize,
    written: usize,
}

impl fmt::Write for Slots<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            if self.length == TEXT_BYTES {
                // A text that is longer the second time than the first is cut.
                if self.index + 1 == self.end {
                    return Err(fmt::Error);
                }
                self.flush().map_err(|Failed| fmt::Error)?;
            }
            let part = rest.len().min(TEXT_BYTES - self.length);
            self.bytes[self.length..][..part].copy_from_slice(&rest[..part]);
            self.length += part;
            rest = &rest[part..];
        }
        Ok(())
    }
}

impl Slots<'_> {
    /// Writes the slot that is being filled.
    fn flush(&mut self) -> Result<(), Failed> {
        let within = self.index & ((1 << self.config.log_slots) - 1);
        let at = self.config.ring + SLOTS_AT + within * SLOT_BYTES as u64;
        self.window.copy_to_host(at + 16, &self.bytes[..self.length])?;
        let more = self.index + 1 != self.end;
        let shape = self.length as u64 | (self.level as u64) << 16 | u64::from(more) << 24;
        self.window.write_u64(at + 8, shape | u64::from(self.thread) << 32)?;
        mmio::in_order();
        self.window.write_u64(at, self.index + 1)?;
        self.written += self.length;
        self.index += 1;
        self.length = 0;
        Ok(())
    }

    /// Writes what is left of the slots.
    fn finish(mut self) -> Result<usize, Failed> {
        while self.index != self.end {
            self.flush()?;
        }
        Ok(self.written)
    }
}

/// Writes a message to a stream: `msg!(stream, level, "{} packets", n)` (`flexio_dev_msg`). Gives
/// the bytes of its text, 0 if it was not written.
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

/// Makes a crate a program for a DPA: what a panic does (a message to the default stream, then the
/// process ends with status 0x43), and the function by which the host attaches streams.
#[macro_export]
macro_rules! program {
    () => {
        #[panic_handler]
        fn panic(info: &::core::panic::PanicInfo<'_>) -> ! {
            $crate::msg_dflt!($crate::Level::Always, "{info}");
            $crate::system::panicked()
        }

        #[unsafe(no_mangle)]
        #[unsafe(link_section = ".text.dpa.verbless_stream_attach")]
        extern "C" fn verbless_stream_attach(number: u64, config: u64) -> u64 {
            let config = ::core::ptr::with_exposed_provenance_mut(config as usize);
            let context = $crate::ThreadContext::current();
            let number = u8::try_from(number).unwrap_or(u8::MAX);
            // SAFETY: the host, which has made the process, promises it.
            let attached = unsafe { $crate::message::attach(context, number, config) };
            $crate::Status::from(attached) as u64
        }
    };
}

#[cfg(test)]
mod tests {
    use std::boxed::Box;
    use std::string::String;
    use std::vec;
    use std::vec::Vec;

    use super::*;

    const LOG_SLOTS: u16 = 2;

    /// A host with a ring, whose window 0 shows its own memory.
    struct Host {
        ring: Vec<u64>,
        keys: Box<[AtomicU32; 16]>,
    }

    impl Host {
        fn new() -> Self {
            let words = SLOTS_AT as usize + (SLOT_BYTES << LOG_SLOTS);
            let keys = Box::new([const { AtomicU32::new(0) }; 16]);
            Self { ring: vec![0; words / 8], keys }
        }

        fn context(&self) -> ThreadContext {
            ThreadContext::at(0, self.keys.as_ptr().expose_provenance() as u64, 0)
        }

        fn attach(&mut self, context: &ThreadContext, stream: u8, level: Level) {
            let ring = self.ring.as_mut_ptr().expose_provenance() as u64;
            let config = Box::leak(Box::new(StreamConfig::new(0, 0x77, ring, LOG_SLOTS, level)));
            // SAFETY: it is leaked.
            unsafe { attach(context, stream, config) }.unwrap();
        }

        /// Slot `number` of the stream: its text, level, whether there is more.
        fn slot(&self, number: u64) -> Option<(String, u8, bool)> {
            let slot = SLOTS_AT as usize + (number as usize % (1 << LOG_SLOTS)) * SLOT_BYTES;
            let words = &self.ring[slot / 8..][..SLOT_BYTES / 8];
            if words[0] != number + 1 {
                return None;
            }
            let bytes: Vec<u8> = words[2..].iter().flat_map(|word| word.to_le_bytes()).collect();
            let text = String::from_utf8(bytes[..words[1] as u16 as usize].into()).unwrap();
            Some((text, (words[1] >> 16) as u8, words[1] >> 24 & 1 == 1))
        }
    }

    #[test]
    fn messages_come_in_order_with_their_level() {
        let mut host = Host::new();
        let context = host.context();
        let stream = Stream::new(10);
        assert_eq!(stream.write(&context, Level::Error, format_args!("nobody")), 0);
        host.attach(&context, 10, Level::Info);
        assert_eq!(host.keys[0].load(Ordering::Relaxed), 0x77, "the window's key");
        assert_eq!(stream.write(&context, Level::Info, format_args!("{} packets", 12)), 10);
        assert_eq!(stream.write(&context, Level::Error, format_args!("none left")), 9);
        assert_eq!(host.slot(0), Some(("12 packets".into(), 4, false)));
        assert_eq!(host.slot(1), Some(("none left".into(), 2, false)));
        assert_eq!(host.slot(2), None);
    }

    #[test]
    fn levels_above_the_stream_s_are_not_written_and_some_always_or_never() {
        let mut host = Host::new();
        let context = host.context();
        let stream = Stream::new(11);
        host.attach(&context, 11, Level::Warn);
        for (level, written) in [
            (Level::Info, false),
            (Level::Warn, true),
            (Level::None, false),
            (Level::Always, true),
            (Level::Debug, false),
        ] {
            assert_eq!(stream.write(&context, level, format_args!("x")) == 1, written, "{level:?}");
        }
    }

    #[test]
    fn a_long_text_takes_several_slots_in_a_row() {
        let mut host = Host::new();
        let context = host.context();
        host.attach(&context, 12, Level::Info);
        let text: String = ('a'..='z').cycle().take(TEXT_BYTES + 60).collect();
        assert_eq!(
            Stream::new(12).write(&context, Level::Info, format_args!("{text}")),
            text.len()
        );
        let (first, _, more) = host.slot(0).unwrap();
        assert_eq!((&*first, more), (&text[..TEXT_BYTES], true));
        let (second, _, more) = host.slot(1).unwrap();
        assert_eq!((&*second, more), (&text[TEXT_BYTES..], false));
    }

    #[test]
    fn what_has_no_room_is_counted_and_nothing_is_overwritten() {
        let mut host = Host::new();
        let context = host.context();
        let stream = Stream::new(13);
        host.attach(&context, 13, Level::Info);
        for number in 0..5 {
            let text = format_args!("{number}");
            assert_eq!(stream.write(&context, Level::Info, text), usize::from(number < 4));
        }
        assert_eq!(host.ring[1], 1, "messages lost");
        assert_eq!(host.slot(0).unwrap().0, "0");
        host.ring[0] = 3;
        host.ring.as_mut_ptr().expose_provenance();
        assert_eq!(stream.write(&context, Level::Info, format_args!("five")), 4);
        assert_eq!(host.slot(4).unwrap().0, "five");
        assert_eq!(host.slot(3).unwrap().0, "3");
    }

    #[test]
    fn a_text_that_differs_the_second_time_stays_within_its_slots() {
        struct Grows(core::cell::Cell<usize>);
        impl fmt::Display for Grows {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let round = self.0.replace(self.0.get() + 1);
                (0..1 + 500 * round).try_for_each(|_| f.write_str("x"))
            }
        }
        let mut host = Host::new();
        let context = host.context();
        host.attach(&context, 14, Level::Info);
        let text = Grows(0.into());
        assert_eq!(
            Stream::new(14).write(&context, Level::Info, format_args!("{text}")),
            TEXT_BYTES
        );
        assert!(host.slot(0).is_some());
        assert_eq!(host.slot(1), None);
    }

    #[test]
    fn a_stream_that_cannot_be_is_refused() {
        let host = Host::new();
        let context = host.context();
        // SAFETY: null, and what is refused is not kept.
        unsafe {
            assert_eq!(attach(&context, 255, null_mut()), Err(Failed));
            let mut other = StreamConfig::new(0, 0, 0, 2, Level::Info);
            other.version = 2;
            assert_eq!(attach(&context, 1, &mut other), Err(Failed));
            let mut odd = StreamConfig::new(0, 0, 4, 2, Level::Info);
            assert_eq!(attach(&context, 1, &mut odd), Err(Failed));
        }
    }
}
