//! Message streams: a program's printed messages, and its traces by formats of the host.
//!
//! The host creates a stream for a process, and the program writes it: `print!`, `msg!` and related
//! macros (`verbless_flexio_dev::message`), or `trace!` in the mode [`MsgSyncMode::Tracer`].
//! `print!` and panics write to the default stream; other streams have the number
//! [`MsgStream::id`]. A message to `Stream::BROADCAST` goes to all streams.
//!
#![cfg_attr(verbless_dpa_program, doc = "```")]
#![cfg_attr(not(verbless_dpa_program), doc = "```no_run")]
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/documented.rs"));
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let process = compiled()?;
//! use verbless_flexio::stream::Output;
//! use verbless_flexio::{Function, MsgStream, MsgStreamConfig};
//!
//! let config = MsgStreamConfig::default_stream();
//! let stream = MsgStream::create(&process, &config, Output::stdout())?;
//! let says = Function::<(u64,), usize>::named("says");
//! assert!(process.call(says, (5,))? > 0);
//! stream.flush()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Modes
//! In the modes [`MsgSyncMode::Sync`], [`MsgSyncMode::Batch`] (the same, as in the headers of 25.1)
//! and [`MsgSyncMode::Tracer`], a thread of the library receives messages, like FlexIO's
//! (`ppthread`); it polls every few microseconds, and less often while there are none, down to
//! every 2 ms. [`MsgStreamConfig::thread`] disables it: then [`MsgStream::poll`] receives them. In
//! the mode [`MsgSyncMode::Async`] messages wait until [`MsgStream::flush`].
//!
//! # What is lost
//! A stream has [`MsgStreamConfig::buffer`] bytes on either side. A message without room is lost
//! and counted ([`MsgStream::lost`]); written messages are never overwritten. In all modes except
//! Async a thread of the DPA first waits a while for room. UC and UD also lose messages in transit
//! if the host is slower than the program: it has receives posted for the buffer's bytes. A message
//! is cut into segments of 240 bytes; UD sends each in its own datagram (as many trace records
//! together as fit the port's MTU). A lost segment leaves its message incomplete, which is counted
//! and not shown.
//!
//! After a fatal error, [`MsgStream::flush`] reads the remaining messages from the program's
//! memory: so the last message of a panicked program arrives, with any transport.
//!
//! FlexIO's transport of streams is not published; this one is verbless's own, on both sides.

mod config;
#[cfg(any(doc, feature = "sdk-2022"))]
pub mod deprecated;
pub(crate) mod numbers;
mod output;
pub mod report;
mod sink;
mod template;
mod text;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub use verbless_flexio_dev::Level;
use verbless_flexio_dev::stream::entry::{LOG_RECORD_BYTES, LOG_TEXT_ENTRY_BYTES};
/// Maximum number of streams of a process, including the default one
/// (`FLEXIO_MSG_DEV_MAX_STREAMS_AMOUNT`).
pub use verbless_flexio_dev::stream::table::MAX_STREAMS;

use crate::channel::{Channel, ChannelConfig};
use crate::error::Error;
use crate::holders::Holding;
use crate::ids::StreamId;
use crate::process::Process;

use config::check_level;
use sink::{EntryDecoder, Sink};
use template::Template;
use text::Messages;

pub use config::{MAX_BUFFER, MIN_BUFFER, MsgStreamConfig, MsgSyncMode, MsgTransport};
pub use output::Output;
pub use text::{Message, Record};

/// Counts of a stream's losses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamLosses {
    /// Messages or records that found no room.
    pub without_room: u64,
    /// Segments or records that did not arrive: UC or UD lost them, or their run was terminated.
    pub undelivered: u64,
    /// Incomplete messages, and invalid arrivals.
    pub damaged: u64,
}

/// A stream of messages (`flexio_msg_stream`). Dropping it destroys it.
#[derive(Debug)]
pub struct MsgStream {
    shared: Arc<StreamInner>,
    thread: Option<JoinHandle<()>>,
    closed: bool,
}

#[derive(Debug)]
struct StreamInner {
    name: String,
    process: Process,
    _holding: Holding,
    id: u8,
    default: bool,
    stop: AtomicBool,
    reader: Mutex<Reader>,
}

/// Receives messages; a mutex guards it, so one thread receives at a time.
#[derive(Debug)]
struct Reader {
    channel: Channel,
    sink: Sink,
}

impl Reader {
    /// Receives messages; returns their number.
    fn receive(&mut self) -> Result<u64, Error> {
        let before = self.sink.taken();
        let sink = &mut self.sink;
        self.channel.receive(&mut |number, entry| sink.take(number, entry))?;
        Ok(self.sink.taken() - before)
    }

    fn flush(&mut self) -> Result<(), Error> {
        let sink = &mut self.sink;
        let take = &mut |number, entry: &[u8]| sink.take(number, entry);
        match self.channel.flush(take).and_then(|()| self.channel.is_held_up(take)) {
            Ok(true) => {
                self.channel.renew(take)?;
                self.channel.flush(take)
            }
            Ok(false) | Err(Error::Fatal(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Retries, each after a pause, of a DPA thread without room: a few milliseconds.
const ROOM_RETRIES: u32 = 4096;
/// Pauses of the reading thread.
const MIN_PAUSE: Duration = Duration::from_micros(20);
const MAX_PAUSE: Duration = Duration::from_millis(2);

impl MsgStream {
    /// Creates a stream, and its reading thread (`flexio_msg_stream_create`).
    ///
    /// # Errors
    /// A default stream or [`MAX_STREAMS`] streams exist; an invalid configuration, with the reason
    /// in the error; the heap has no room for its buffer; the program has no streams.
    /// [`Error::CopyTimeout`]: nothing was created. [`Error::Timeout`], of the call that attaches
    /// the stream in the program: nothing was created either, unless the program has found the
    /// stream and the call that detaches it times out, too. Then its memory stays in use as long as
    /// the process exists.
    pub fn create(
        process: &Process,
        config: &MsgStreamConfig,
        output: Output,
    ) -> Result<Self, Error> {
        config.check()?;
        let templates = config.formats.iter().map(|format| Template::parse(format));
        let templates = templates.collect::<Result<Vec<_>, _>>()?;
        let id = process.streams().take(config.default)?;
        let made = Self::make(process, config, output, templates, id);
        if made.is_err() {
            process.streams().give_back(id);
        }
        made
    }

    fn make(
        process: &Process,
        config: &MsgStreamConfig,
        output: Output,
        templates: Vec<Template>,
        id: u8,
    ) -> Result<Self, Error> {
        let bytes = u64::from(config.buffer);
        let traces = config.sync_mode == MsgSyncMode::Tracer;
        let log_entry_bytes = if traces { LOG_RECORD_BYTES } else { LOG_TEXT_ENTRY_BYTES };
        let entries = bytes >> log_entry_bytes;
        let mut channel = Channel::create(
            process,
            ChannelConfig {
                number: id.into(),
                transport: config.transport.entry_transport(),
                log_entry_bytes,
                ring_bytes: bytes,
                ring_at: None,
                host_bytes: bytes,
                batch: if traces { entries as u32 / 4 } else { 1 },
                room_retries: if config.sync_mode == MsgSyncMode::Async { 0 } else { ROOM_RETRIES },
                affinity: config.affinity,
            },
        )?;
        channel.attach(config.level as u32)?;
        let texts = match traces {
            true => EntryDecoder::Records { templates, broken: 0 },
            false => EntryDecoder::Messages(Messages::new(entries)),
        };
        let shared = Arc::new(StreamInner {
            name: config.name.clone(),
            process: process.clone(),
            _holding: Holding::new(format!("message stream {id}"), vec![process.key()]),
            id,
            default: config.default,
            stop: AtomicBool::new(false),
            reader: Mutex::new(Reader { channel, sink: Sink::new(texts, output) }),
        });
        let thread = match config.thread && config.sync_mode != MsgSyncMode::Async {
            true => {
                let shared = shared.clone();
                let named = thread::Builder::new().name(format!("dpa stream {id}"));
                Some(named.spawn(move || shared.read()).map_err(|error| {
                    Error::Failed(format!("the reading thread of {}: {error}", config.name))
                })?)
            }
            false => None,
        };
        crate::log::debug!("made stream {id}, {}", config.name);
        Ok(Self { shared, thread, closed: false })
    }

    /// The number by which a program refers to the stream (`flexio_msg_stream_get_id`). 0 is the
    /// default one.
    pub fn id(&self) -> StreamId {
        StreamId(self.shared.id)
    }

    /// The stream's name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The library's thread that reads the stream, if there is one (`ppthread`).
    pub fn thread(&self) -> Option<&thread::Thread> {
        self.thread.as_ref().map(JoinHandle::thread)
    }

    /// The numbers of the queue pairs that carry the messages, the host's and the program's; `None`
    /// for a window (`flexio_msg_stream_qp_numbers_get`).
    pub fn qp_numbers(&self) -> Option<(u32, u32)> {
        self.shared.reader().channel.qp_numbers()
    }

    /// Changes the stream's level (`flexio_msg_stream_level_set`). The old level may still apply to
    /// concurrent messages.
    ///
    /// # Errors
    /// It is the default stream, whose level is fixed; the level is [`Level::Always`]; the process
    /// has ended. [`Error::Timeout`]: it has the old level or the new one.
    pub fn set_level(&self, level: Level) -> Result<(), Error> {
        let name = &self.shared.name;
        if self.shared.default {
            return Err(Error::Failed(format!(
                "{name} is the default stream, whose level stays Info: make another stream for \
                 {level:?}"
            )));
        }
        check_level(name, level)?;
        self.shared.reader().channel.set_level(level as u32)
    }

    /// Receives the available messages and writes them to the output; returns their number.
    /// Intended for streams without a reading thread, but usable with one, too.
    ///
    /// # Errors
    /// The device failed, or the output did before. [`Error::CopyTimeout`]: the next poll receives
    /// the remaining entries.
    pub fn poll(&self) -> Result<u64, Error> {
        let mut reader = self.shared.reader();
        let taken = reader.receive()?;
        reader.sink.works(&self.shared.name)?;
        Ok(taken)
    }

    /// Receives all messages written before the call and writes them to the output
    /// (`flexio_msg_stream_flush`). In the C library this does nothing in synchronous modes; here
    /// it waits for the messages. It works after a fatal error, too.
    ///
    /// A run that was terminated during a write blocks later messages. If nothing moves for a
    /// second, this delivers the complete messages and replaces the ring.
    ///
    /// # Errors
    /// The device or the output failed. [`Error::Timeout`] and [`Error::CopyTimeout`]: the next
    /// flush receives the remaining entries.
    pub fn flush(&self) -> Result<(), Error> {
        let mut reader = self.shared.reader();
        reader.flush()?;
        reader.sink.works(&self.shared.name)
    }

    /// Counts of all losses so far.
    ///
    /// # Errors
    /// The program's memory cannot be read, or not in time: [`Error::CopyTimeout`].
    pub fn lost(&self) -> Result<StreamLosses, Error> {
        let reader = self.shared.reader();
        let losses = reader.channel.losses();
        Ok(StreamLosses {
            without_room: reader.channel.without_room()?,
            undelivered: losses.lost,
            damaged: losses.damaged + reader.sink.broken(),
        })
    }

    /// Destroys the stream: receives all written messages, ends the reading thread, and detaches
    /// the stream in the program (`flexio_msg_stream_destroy`). Later messages are discarded. A
    /// drop does the same without a report.
    ///
    /// # Errors
    /// The written messages could not be received; threads of the program do not leave the stream,
    /// whose memory then stays with the process. The stream is destroyed in any case.
    pub fn destroy(mut self) -> Result<(), Error> {
        self.close()
    }

    fn close(&mut self) -> Result<(), Error> {
        self.closed = true;
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            if thread.join().is_err() {
                crate::log::error!("the reading thread of {} panicked", self.shared.name);
            }
        }
        let mut reader = self.shared.reader();
        let silent = match reader.channel.set_level(Level::None as u32) {
            Err(Error::Fatal(_)) => Ok(()),
            other => other,
        };
        let flushed = reader.flush().and_then(|()| reader.sink.works(&self.shared.name));
        let detached = reader.channel.detach();
        silent.and(flushed).and(detached)
    }
}

impl Drop for MsgStream {
    fn drop(&mut self) {
        if !self.closed
            && let Err(error) = self.close()
        {
            crate::log::error!("destroying {}: {error}", self.shared.name);
        }
        self.shared.process.streams().give_back(self.shared.id);
    }
}

impl StreamInner {
    fn reader(&self) -> MutexGuard<'_, Reader> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reading thread.
    fn read(&self) {
        let mut pause = MIN_PAUSE;
        while !self.stop.load(Ordering::Relaxed) {
            let taken = match self.reader().receive() {
                Ok(taken) => taken,
                // The next poll receives the remaining entries.
                Err(error @ (Error::Timeout(_) | Error::CopyTimeout(_))) => {
                    crate::log::warning!("reading {}: {error}", self.name);
                    0
                }
                Err(error) => {
                    crate::log::warning!("reading {} ends: {error}", self.name);
                    return;
                }
            };
            pause = if taken > 0 { MIN_PAUSE } else { MAX_PAUSE.min(2 * pause) };
            thread::park_timeout(pause);
        }
    }
}

#[cfg(test)]
mod tests;
