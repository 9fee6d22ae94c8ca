//! Configuration of a tracer, between `init` and `create`: the setters of the C library, its
//! defaults and its limits (DOCA 3.2.0).

use std::fmt;
use std::path::PathBuf;

use crate::channel::EntryTransport;
use crate::error::Error;
use crate::memory::Buffer;
use crate::process::Process;
use crate::stream::Record;

use super::Tracer;

/// The destination of reports (`flexio_dtrace_output_mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum OutputMode {
    /// A file of the format of [`trace_file`](super::trace_file)
    /// (`FLEXIO_DTRACE_OUTPUT_MODE_BIN`).
    Bin = 0,
    /// A file of lines with commas (`FLEXIO_DTRACE_OUTPUT_MODE_CSV`).
    #[default]
    Csv = 1,
    /// Calls a function (`FLEXIO_DTRACE_OUTPUT_MODE_CB`).
    Callback = 2,
}

/// How reports reach the host (`flexio_dtrace_transport_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum TracerTransport {
    /// SENDs of an unreliable connected queue pair (`FLEXIO_DTRACE_TRANSPORT_TYPE_QP_UC`).
    #[default]
    Uc = 0,
    /// Stores through a window (`FLEXIO_DTRACE_TRANSPORT_TYPE_WINDOW`).
    Window = 1,
    /// Reports stay in a buffer of the process; the host reads them there
    /// (`FLEXIO_DTRACE_TRANSPORT_TYPE_DBUF`).
    Dbuf = 2,
    /// Reports stay in memory of the process that the user provides; the host reads them there
    /// (`FLEXIO_DTRACE_TRANSPORT_TYPE_UMEM`).
    Umem = 3,
}

/// Bytes of a report.
pub const REPORT_BYTES: u64 = Record::BYTES as u64;
/// Default number of reports in a batch.
pub const DEFAULT_BATCH: u64 = 64;
/// Default bytes of memory on either side.
pub const DEFAULT_MEMORY: u64 = 512 << 10;
/// Default bytes of the device's memory with [`TracerTransport::Dbuf`].
pub const DEFAULT_DBUF: u64 = 16 << 10;
/// Minimum bytes of memory.
pub const MIN_MEMORY: u64 = 1 << 10;
/// Minimum bytes of the user's memory: a quarter of it holds a report.
pub const MIN_USER_MEMORY: u64 = 4 * REPORT_BYTES;
/// Default limit of a file in bytes.
pub const DEFAULT_DISK: u64 = 1 << 30;
/// Minimum of the limit of a file.
pub const MIN_DISK: u64 = 1 << 20;
/// Default name of the FIFO.
pub const DEFAULT_FIFO: &str = "/tmp/flexio_dtrace_cli.fifo";
/// Default name of the file, without its suffix.
pub const DEFAULT_FILE: &str = "/tmp/flexio_dtrace";

/// Receives reports; returns the number of accepted ones, or the reason of a failure.
pub(super) type Callback = Box<dyn FnMut(&[Record]) -> Result<usize, String> + Send>;

/// A tracer that is being configured. [`create`](Self::create) turns it into a tracer, which has no
/// setters.
pub struct TracerSetup {
    pub(super) process: Process,
    batch: Option<u64>,
    device: Option<u64>,
    host: u64,
    pub(super) disk: u64,
    pub(super) file: PathBuf,
    pub(super) mode: OutputMode,
    transport: TracerTransport,
    umem: Option<(Buffer, u64, u64)>,
    pub(super) callback: Option<Callback>,
    pub(super) fifo: Option<PathBuf>,
    pub(super) thread: bool,
    /// Whether this setup holds the process's tracer slot.
    pub(super) claimed: bool,
}

/// The validated parameters of a [`TracerSetup`].
#[derive(Debug)]
pub(super) struct TracerPlan {
    pub(super) entry_transport: EntryTransport,
    pub(super) ring_bytes: u64,
    pub(super) ring_at: Option<u64>,
    pub(super) host_bytes: u64,
    pub(super) batch: u32,
}

fn power_of_two(what: &str, value: u64, least: u64) -> Result<u64, Error> {
    match value.is_power_of_two() && value >= least {
        true => Ok(value),
        false => Err(Error::Failed(format!(
            "{what} of {value}: it must be a power of two, {least} or more"
        ))),
    }
}

impl TracerSetup {
    pub(super) fn new(process: &Process) -> Self {
        Self {
            process: process.clone(),
            batch: None,
            device: None,
            host: DEFAULT_MEMORY,
            disk: DEFAULT_DISK,
            file: DEFAULT_FILE.into(),
            mode: OutputMode::default(),
            transport: TracerTransport::default(),
            umem: None,
            callback: None,
            fifo: None,
            thread: true,
            claimed: true,
        }
    }

    /// Sets the reports per batch, a power of two; [`DEFAULT_BATCH`] by default
    /// (`flexio_dtrace_set_batch_depth`). [`create`](Self::create) checks the maximum: the device's
    /// memory / 4 / [`REPORT_BYTES`].
    ///
    /// # Errors
    /// It is not a power of two.
    pub fn set_batch_depth(&mut self, reports: u64) -> Result<&mut Self, Error> {
        self.batch = Some(power_of_two("a batch depth", reports, 1)?);
        Ok(self)
    }

    /// Sets the bytes of the process's memory for reports, a power of two; by default
    /// [`DEFAULT_MEMORY`], and [`DEFAULT_DBUF`] with DBUF (`flexio_dtrace_set_dev_mem_limit`).
    /// [`create`](Self::create) checks the maximum: the host's memory. UMEM ignores it: reports
    /// fill all of the user's memory.
    ///
    /// # Errors
    /// It is not a power of two, or less than [`MIN_MEMORY`].
    pub fn set_dev_mem_limit(&mut self, bytes: u64) -> Result<&mut Self, Error> {
        self.device = Some(power_of_two("a device memory limit", bytes, MIN_MEMORY)?);
        Ok(self)
    }

    /// Sets the bytes of the host's memory for received reports, a power of two; [`DEFAULT_MEMORY`]
    /// by default (`flexio_dtrace_set_host_mem_limit`).
    ///
    /// # Errors
    /// It is not a power of two, or less than [`MIN_MEMORY`].
    pub fn set_host_mem_limit(&mut self, bytes: u64) -> Result<&mut Self, Error> {
        self.host = power_of_two("a host memory limit", bytes, MIN_MEMORY)?;
        Ok(self)
    }

    /// Sets the limit of the file in bytes; the default is [`DEFAULT_DISK`]
    /// (`flexio_dtrace_set_diskspace_limit`). Reports beyond it are counted.
    ///
    /// # Errors
    /// It is less than [`MIN_DISK`].
    pub fn set_diskspace_limit(&mut self, bytes: u64) -> Result<&mut Self, Error> {
        if bytes < MIN_DISK {
            return Err(Error::Failed(format!(
                "a disk space limit of {bytes} bytes: it must be {MIN_DISK} or more"
            )));
        }
        self.disk = bytes;
        Ok(self)
    }

    /// Sets the file's name without its suffix, `.bin` or `.csv`; the default is [`DEFAULT_FILE`]
    /// (`flexio_dtrace_set_out_filename`).
    pub fn set_out_filename(&mut self, path: impl Into<PathBuf>) -> &mut Self {
        self.file = path.into();
        self
    }

    /// Sets the destination of reports; by default [`OutputMode::Csv`], or with a callback
    /// [`OutputMode::Callback`] (`flexio_dtrace_set_output_mode`). A file together with a callback
    /// is an error of [`create`](Self::create).
    pub fn set_output_mode(&mut self, mode: OutputMode) -> &mut Self {
        self.mode = mode;
        self
    }

    /// Sets how reports reach the host; the default is [`TracerTransport::Uc`]
    /// (`flexio_dtrace_set_transport_type`).
    pub fn set_transport_type(&mut self, transport: TracerTransport) -> &mut Self {
        self.transport = transport;
        self
    }

    /// Sets the memory of the process for [`TracerTransport::Umem`], which needs a callback, too:
    /// `bytes` bytes, a power of two, of `buffer` from byte `offset` on (`flexio_dtrace_set_umem`).
    /// The memory limits do not apply to it. The tracer keeps the buffer alive.
    ///
    /// A run that was terminated in a trace point may still hold an entry there. If a stop or start
    /// finds one, the tracer abandons the memory, and traces into the heap from then on.
    ///
    /// # Errors
    /// Its address is not a multiple of [`REPORT_BYTES`]; its length is not a power of two, or is
    /// less than [`MIN_USER_MEMORY`]; the buffer ends before `offset + bytes`, or is of another
    /// process.
    pub fn set_umem(
        &mut self,
        buffer: &Buffer,
        offset: u64,
        bytes: u64,
    ) -> Result<&mut Self, Error> {
        power_of_two("a length of user memory", bytes, MIN_USER_MEMORY)?;
        let end = offset.checked_add(bytes).filter(|&end| end <= buffer.len());
        let at = end.map(|_| buffer.address() + offset).ok_or_else(|| {
            Error::Failed(format!(
                "user memory of {bytes} bytes from byte {offset} on: the buffer has {}",
                buffer.len()
            ))
        })?;
        if !at.is_multiple_of(REPORT_BYTES) {
            return Err(Error::Failed(format!(
                "user memory at {at:#x}: it must be at a multiple of the {REPORT_BYTES} bytes of a \
                 report"
            )));
        }
        if !buffer.process().is(&self.process) {
            return Err(Error::Failed("user memory of another process than the tracer's".into()));
        }
        self.umem = Some((buffer.clone(), at, bytes));
        Ok(self)
    }

    /// Sets a function that takes reports in batches (`flexio_dtrace_set_user_cb`). It returns the
    /// number of accepted reports, in order, or the reason of a failure. It gets the remaining
    /// reports again. A failure is logged as an error, and the batch is dropped and counted
    /// ([`Tracer::lost`]) instead of repeated, so that it does not block others. This sets the
    /// output mode to [`OutputMode::Callback`]. The function must not use the tracer.
    pub fn set_user_cb(
        &mut self,
        callback: impl FnMut(&[Record]) -> Result<usize, String> + Send + 'static,
    ) -> &mut Self {
        self.callback = Some(Box::new(callback));
        self.set_output_mode(OutputMode::Callback)
    }

    /// Makes a FIFO the only control of the tracer: `echo 10 > FIFO` starts it for ten seconds, 0
    /// stops it (`flexio_dtrace_set_cli_mgmt`). `None` is [`DEFAULT_FIFO`]. Only its owner may
    /// access it; [`create`](Self::create) refuses an existing file that is not a FIFO of the same
    /// user.
    pub fn set_cli_mgmt(&mut self, path: Option<PathBuf>) -> &mut Self {
        self.fifo = Some(path.unwrap_or_else(|| DEFAULT_FIFO.into()));
        self
    }

    /// Disables the library's thread: then [`Tracer::poll`] receives reports, and commands.
    pub fn without_thread(&mut self) -> &mut Self {
        self.thread = false;
        self
    }

    /// Creates the tracer, stopped (`flexio_dtrace_create`).
    ///
    /// # Errors
    /// The device's memory exceeds the host's; a batch, even the default one, exceeds a quarter of
    /// the device's memory or the user's; UMEM without memory or callback, or the user's memory
    /// with another transport; the callback mode without a callback, or a file mode with one; the
    /// FIFO's name is taken; the heap has no room; the program has no streams. [`Error::Timeout`]
    /// and [`Error::CopyTimeout`]: as [`MsgStream::create`](crate::MsgStream::create).
    pub fn create(self) -> Result<Tracer, Error> {
        let plan = self.plan()?;
        Tracer::of(self, &plan)
    }

    pub(super) fn plan(&self) -> Result<TracerPlan, Error> {
        let failed = |why: String| Err(Error::Failed(why));
        let default = match self.transport {
            TracerTransport::Dbuf => DEFAULT_DBUF,
            _ => DEFAULT_MEMORY,
        };
        let users = self.umem.as_ref().filter(|_| self.transport == TracerTransport::Umem);
        let (device, said) = match (users, self.device) {
            (Some((_, _, bytes)), _) => (*bytes, ""),
            (None, Some(device)) => (device, ""),
            (None, None) => (default, ", the default,"),
        };
        let host = self.host;
        if users.is_none() && device > host {
            return failed(format!(
                "a device memory limit of {device} bytes{said} is more than the host memory limit \
                 of {host}: set_dev_mem_limit or set_host_mem_limit"
            ));
        }
        let (batch, said) = match self.batch {
            Some(batch) => (batch, ""),
            None => (DEFAULT_BATCH, ", the default,"),
        };
        let most = device / 4 / REPORT_BYTES;
        if batch > most {
            let (of, mend) = match users {
                Some(_) => ("the user memory", "set_umem with more"),
                None => ("the device memory limit", "set_dev_mem_limit"),
            };
            return failed(format!(
                "a batch of {batch} reports{said} is more than {most}, a quarter of the {device} \
                 bytes of {of}: set_batch_depth or {mend}"
            ));
        }
        let has_callback = self.callback.is_some();
        if self.mode != OutputMode::Callback && has_callback {
            return failed(format!(
                "the tracer has a callback, and its output mode is {:?}, which never calls it: \
                 set_output_mode(OutputMode::Callback), or leave set_user_cb out for a file",
                self.mode
            ));
        }
        if self.mode == OutputMode::Callback && !has_callback {
            return failed("the output mode is a callback and there is none: set_user_cb".into());
        }
        let ring_at = match (self.transport, &self.umem) {
            (TracerTransport::Umem, Some((_, at, _))) if has_callback => Some(*at),
            (TracerTransport::Umem, Some(_)) => {
                return failed("the transport UMEM needs a callback: set_user_cb".into());
            }
            (TracerTransport::Umem, None) => {
                return failed("the transport UMEM needs user memory: set_umem".into());
            }
            (transport, Some(_)) => {
                return failed(format!(
                    "user memory is for the transport UMEM, not {transport:?}: set_transport_type"
                ));
            }
            (_, None) => None,
        };
        let entry_transport = match self.transport {
            TracerTransport::Uc => EntryTransport::Uc,
            TracerTransport::Window => EntryTransport::Window,
            TracerTransport::Dbuf | TracerTransport::Umem => EntryTransport::Heap,
        };
        Ok(TracerPlan {
            entry_transport,
            ring_bytes: device,
            ring_at,
            host_bytes: host,
            batch: batch as u32,
        })
    }

    /// The user's memory, for the tracer to keep alive.
    pub(super) fn kept(&self) -> Option<Buffer> {
        self.umem.as_ref().map(|(buffer, ..)| buffer.clone())
    }
}

impl Drop for TracerSetup {
    fn drop(&mut self) {
        if self.claimed {
            self.process.streams().tracer = false;
        }
    }
}

impl fmt::Debug for TracerSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TracerSetup")
            .field("transport", &self.transport)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}
