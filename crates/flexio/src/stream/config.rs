//! Configuration of a message stream.

use verbless_command::Affinity;
use verbless_flexio_dev::Level;
use verbless_flexio_dev::stream::control::MAX_LOG_ENTRIES;
use verbless_flexio_dev::stream::entry::{RECORD_BYTES, TEXT_ENTRY_BYTES};

use crate::channel::EntryTransport;
use crate::error::Error;

/// When messages reach the host (`flexio_msg_dev_sync_mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum MsgSyncMode {
    /// Messages are sent as they are written (`FLEXIO_MSG_DEV_SYNC_MODE_SYNC`).
    #[default]
    Sync = 0,
    /// Messages are sent when the host calls [`MsgStream::flush`](super::MsgStream::flush)
    /// (`FLEXIO_MSG_DEV_SYNC_MODE_ASYNC`).
    Async = 1,
    /// Behaves like [`MsgSyncMode::Sync`] (`FLEXIO_MSG_DEV_SYNC_MODE_BATCH`).
    Batch = 2,
    /// Records, which the host formats as text, are sent when a quarter of the buffer is full
    /// (`FLEXIO_MSG_DEV_SYNC_MODE_TRACER`).
    Tracer = 3,
}

/// How messages reach the host (`flexio_msg_transport`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum MsgTransport {
    /// SENDs of a reliable connected queue pair of the program (`FLEXIO_MSG_TRANSPORT_QP_RC`).
    #[default]
    Rc = 0,
    /// Stores through a window (`FLEXIO_MSG_TRANSPORT_WINDOW`).
    Window = 1,
    /// SENDs of an unreliable connected queue pair (`FLEXIO_MSG_TRANSPORT_QP_UC`).
    Uc = 2,
    /// Datagrams (`FLEXIO_MSG_TRANSPORT_QP_UD`).
    Ud = 3,
}

impl MsgTransport {
    pub(super) const fn entry_transport(self) -> EntryTransport {
        match self {
            Self::Rc => EntryTransport::Rc,
            Self::Window => EntryTransport::Window,
            Self::Uc => EntryTransport::Uc,
            Self::Ud => EntryTransport::Ud,
        }
    }
}

/// Minimum bytes of a stream's buffer.
pub const MIN_BUFFER: u32 = 2 << 10;
/// Maximum bytes of a stream's buffer: its ring has at most 2^20 entries of 256 bytes; in
/// [`MsgSyncMode::Tracer`], with records of 64 bytes, a quarter. It is allocated in the process's
/// heap ([`ProcessConfig::heap`](crate::ProcessConfig::heap)), and with the same size in the host's
/// memory.
pub const MAX_BUFFER: u32 = (TEXT_ENTRY_BYTES as u32) << MAX_LOG_ENTRIES;

/// Configuration of a stream (`flexio_msg_stream_attr_t`).
#[derive(Debug, Clone)]
pub struct MsgStreamConfig {
    /// The stream's name, for messages of the library.
    pub name: String,
    /// Whether this is the default stream, whose number is 0.
    pub default: bool,
    /// Messages above this level are not written. The default stream has [`Level::Info`];
    /// [`Level::Always`] is refused.
    pub level: Level,
    /// Bytes of the stream's buffer, on either side: a power of two from [`MIN_BUFFER`] to
    /// [`MAX_BUFFER`].
    pub buffer: u32,
    /// When messages reach the host.
    pub sync_mode: MsgSyncMode,
    /// The transport of messages.
    pub transport: MsgTransport,
    /// Format strings of records, by their numbers; for [`MsgSyncMode::Tracer`] only. They have
    /// printf's integer conversions, up to six per format.
    pub formats: Vec<String>,
    /// The execution units for the program's part in creating, changing and destroying the stream.
    pub affinity: Affinity,
    /// Creates a reading thread in the library, unless the mode is [`MsgSyncMode::Async`].
    pub thread: bool,
}

impl MsgStreamConfig {
    /// A stream of this name: `Sync`, by RC, 16 KiB, level [`Level::Info`].
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            default: false,
            level: Level::Info,
            buffer: 16 << 10,
            sync_mode: MsgSyncMode::default(),
            transport: MsgTransport::default(),
            formats: Vec::new(),
            affinity: Affinity::None,
            thread: true,
        }
    }

    /// The default stream.
    pub fn default_stream() -> Self {
        Self { default: true, ..Self::new("default stream") }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let name = &self.name;
        let buffer = self.buffer;
        let most = match self.sync_mode {
            MsgSyncMode::Tracer => (RECORD_BYTES as u32) << MAX_LOG_ENTRIES,
            _ => MAX_BUFFER,
        };
        if !buffer.is_power_of_two() || !(MIN_BUFFER..=most).contains(&buffer) {
            return Err(Error::Failed(format!(
                "the buffer of {name} has {buffer} bytes: it must be a power of two from \
                 {MIN_BUFFER} to {most}"
            )));
        }
        if self.default && self.level != Level::Info {
            return Err(Error::Failed(format!(
                "{name} is the default stream, whose level is Info, not {:?}: make another stream",
                self.level
            )));
        }
        check_level(name, self.level)?;
        if self.sync_mode != MsgSyncMode::Tracer && !self.formats.is_empty() {
            return Err(Error::Failed(format!(
                "{name} has formats, which its mode {:?} does not use: they are for Tracer",
                self.sync_mode
            )));
        }
        Ok(())
    }
}

/// Checks that a stream may have this level.
pub(super) fn check_level(name: &str, level: Level) -> Result<(), Error> {
    match level {
        Level::Always => Err(Error::Failed(format!(
            "{name} cannot have the level Always, which only a message has: choose None to Debug"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_config_is_rejected_with_limit() {
        type Change = fn(&mut MsgStreamConfig);
        let wrong: [(Change, &str); 7] = [
            (|it| it.buffer = 1024, "from 2048 to 268435456"),
            (|it| it.buffer = 3 << 10, "3072 bytes"),
            (|it| it.buffer = 512 << 20, "536870912 bytes"),
            (|it| (it.buffer, it.sync_mode) = (128 << 20, MsgSyncMode::Tracer), "to 67108864"),
            (|it| it.level = Level::Always, "cannot have the level Always"),
            (|it| it.formats = vec!["%d".into()], "its mode Sync does not use"),
            (|it| (it.default, it.level) = (true, Level::Debug), "not Debug"),
        ];
        for (change, why) in wrong {
            let mut config = MsgStreamConfig::new("mine");
            assert!(config.check().is_ok());
            change(&mut config);
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains("mine") && error.contains(why), "{error}");
        }
        assert!(MsgStreamConfig::default_stream().check().is_ok());
        let large = MsgStreamConfig { buffer: MAX_BUFFER, ..MsgStreamConfig::new("mine") };
        assert!(large.check().is_ok());
    }
}
