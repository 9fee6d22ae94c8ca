//! The end of a process by a fatal error: its status, a file to poll, crash data, a core dump, and
//! an error handler that runs in the process before it ends.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/documented.rs"));
//! use verbless_flexio::Handler;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let process = process()?;
//! process.set_error_handler(&Handler::named("handler"))?;
//! let ended = process.error_fd()?; // for select, poll or epoll
//! # let _ = ended;
//! // Now and then, and when that has something to read:
//! if process.error_status()? != 0 {
//!     process.crash_data(None)?;
//!     process.core_dump(None)?;
//!     process.display_error(&mut std::io::stderr())?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! All of it works after the process has ended, when all other operations return [`Error::Fatal`].

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::eventfd::{EfdFlags, EventFd};
use verbless_command::{DpaProcess, DpaProcessInfo, ErrorKind};
use verbless_devx::EventChannel;
use verbless_queue::Memory;

use crate::error::Error;
use crate::function::Handler;
use crate::process::Process;

/// The host's record of the process's end.
#[derive(Debug, Default)]
pub(crate) struct ProcessEnd {
    signal: OnceLock<Signal>,
    displayed: AtomicBool,
}

/// An eventfd, signalled by the device's event.
#[derive(Debug)]
struct Signal {
    // The subscription is dropped before the file.
    _channel: EventChannel,
    file: EventFd,
}

impl Signal {
    fn new(process: &DpaProcess, channel: EventChannel) -> Result<Self, Error> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let file = EventFd::from_value_and_flags(0, flags).map_err(failed("making an eventfd"))?;
        process.signal_end(&channel, file.as_fd())?;
        Ok(Self { _channel: channel, file })
    }
}

fn failed<E: std::fmt::Display>(what: &str) -> impl Fn(E) -> Error {
    move |error| Error::Failed(format!("{what}: {error}"))
}

/// The directory for files with a relative name, if the current directory refuses them.
const FALLBACK_DIRECTORY: &str = "/tmp";
/// Initial capacity for a core dump in bytes, beside that for the heap.
const DUMP_BYTES: u64 = 1 << 20;

impl Process {
    /// Sets an event handler of the program that runs in the process when an error ends it, before
    /// the end is reported (`flexio_process_error_handler_set`). Its argument is the status;
    /// outbox, windows and metadata are those of the failed run. Nothing else runs in the process
    /// by then; the handler's output to message streams and through windows reaches the host. It
    /// does not run if the process finishes without an error.
    ///
    /// 3.2.0 takes a handle, which is a constant of [`embed!`](crate::embed); 2022 took a name:
    /// [`Handler::named`].
    ///
    /// # Errors
    /// The program has no such event handler; the process already had an event handler; the process
    /// has ended.
    pub fn set_error_handler(&self, handler: &Handler) -> Result<(), Error> {
        let address = self.app().address_of_handler(handler)?;
        self.object().set_error_handler(address).map_err(|error| match self.fatal_or(error) {
            Error::Device(error) if error.kind() == ErrorKind::Command => Error::Failed(format!(
                "{} did not become the error handler, which is set before the first event handler \
                 is created: {error}",
                handler.name()
            )),
            other => other,
        })
    }

    /// The status of a process that a fatal error has ended; 0 without an error, or if the process
    /// finished without one (`flexio_err_status`). [`display_error`](Self::display_error) resets it
    /// to 0; [`status`](Self::status) keeps reporting the end.
    ///
    /// # Errors
    /// The device does not respond.
    pub fn error_status(&self) -> Result<u8, Error> {
        let status = self.status()?.status;
        let shown = self.end().displayed.load(Ordering::Relaxed);
        Ok(if status.is_error() && !shown { status.0 } else { 0 })
    }

    /// Writes a report of the process's end and its registers, if it has ended
    /// (`flexio_err_display`, which writes to stderr). After that
    /// [`error_status`](Self::error_status) is 0, and [`error_fd`](Self::error_fd) is cleared; an
    /// event still in flight signals it again.
    ///
    /// # Errors
    /// The device does not respond; the text cannot be written.
    pub fn display_error(&self, to: &mut impl Write) -> Result<(), Error> {
        let info = self.status()?;
        if info.status.runs() {
            return Ok(());
        }
        to.write_all(self.report(&info).as_bytes()).map_err(failed("writing an error"))?;
        self.end().displayed.store(true, Ordering::Relaxed);
        if let Some(signal) = self.end().signal.get() {
            // EAGAIN: it was read already, or the event is in flight.
            let _ = signal.file.read();
        }
        Ok(())
    }

    /// A file that becomes readable when the process has ended, for select, poll and epoll
    /// (`flexio_err_handler_fd`). It is an eventfd: reading its 8 bytes clears it. It lives as long
    /// as the process. It stays silent when the device itself fails or is removed, which the
    /// verbs report ([`Context::async_event_alloc`](verbless_devx::Context::async_event_alloc)).
    ///
    /// # Errors
    /// The kernel refuses, for example EMFILE (too many files).
    pub fn error_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        let signal = &self.end().signal;
        if signal.get().is_none() {
            let made = Signal::new(self.object(), self.device().event_channel(true)?)?;
            // An earlier end makes no event any more.
            if !self.status()?.status.runs() {
                made.file.write(1).map_err(failed("writing to an eventfd"))?;
            }
            // If two threads race, one suffices.
            let _ = signal.set(made);
        }
        Ok(signal.get().ok_or_else(|| Error::Failed("no eventfd".into()))?.file.as_fd())
    }

    /// Writes a report of the process's end to stderr and to a file: status, location in the
    /// program, registers (`flexio_crash_data`). The file's name has the device's number N of the
    /// process: `flexio_dev.N.crash`, or `path` with `.N.crash` after it. Unless that begins with a
    /// slash, it is in the current directory, or if that refuses it, in `/tmp`. Only its owner may
    /// access it, and a symbolic link is refused. Returns the path.
    ///
    /// # Errors
    /// The process has not ended; the file cannot be written.
    pub fn crash_data(&self, path: Option<&Path>) -> Result<PathBuf, Error> {
        let info = self.status()?;
        if info.status.runs() {
            return Err(Error::Failed(format!(
                "process {} of {} has not ended: there is no crash data",
                self.object().id(),
                self.app().name()
            )));
        }
        let text = self.report(&info);
        eprint!("{text}");
        self.save(path, "crash", text.as_bytes())
    }

    /// Writes a core dump of the process, for gdb and readelf (`flexio_coredump_create`): an ELF
    /// file of its memory, without windows, and the registers of the run that ended it and of the
    /// other runs at that time, which debuggers show as threads. Its name is that of
    /// [`crash_data`](Self::crash_data), with `core` for `crash`. Returns the path.
    ///
    /// # Errors
    /// Too little memory for it; the file cannot be written.
    pub fn core_dump(&self, path: Option<&Path>) -> Result<PathBuf, Error> {
        let mut room = self.app().elf().len() as u64 + self.heap_info().size + DUMP_BYTES;
        loop {
            let memory = Memory::allocate(usize::try_from(room).map_err(failed("a core dump"))?)?;
            let registered = memory.register(self.device())?;
            let length = self.device().dump_dpa_core(self.object(), &registered, 0)?;
            if length > room {
                room = length;
                continue;
            }
            let mut file = vec![0; length as usize];
            memory.read_at(0, &mut file).map_err(|error| Error::Failed(error.to_string()))?;
            return self.save(path, "core", &file);
        }
    }

    /// The token by which the user's debugger attaches to the process; 0: debugging is not allowed
    /// (`flexio_process_udbg_token_get`). The model allows it if it serves a debugger:
    /// `verbless-model run --gdb`, `Model::debug_programs`.
    ///
    /// # Errors
    /// The device does not respond.
    pub fn udbg_token(&self) -> Result<u64, Error> {
        Ok(self.status()?.udbg_token)
    }

    /// A report of the process's end.
    fn report(&self, info: &DpaProcessInfo) -> String {
        let mut text = format!("process {} of {}: {info}\n", self.object().id(), self.app().name());
        if let Some(crash) = &info.crash
            && let Some((function, offset)) = self.app().function_at(crash.pc)
        {
            let _ = writeln!(text, "pc is {offset:#x} bytes after the start of {function}");
        }
        text
    }

    fn save(&self, path: Option<&Path>, kind: &str, bytes: &[u8]) -> Result<PathBuf, Error> {
        let mut name = path.unwrap_or(Path::new("flexio_dev")).as_os_str().to_owned();
        name.push(format!(".{}.{kind}", self.object().id()));
        let (path, file) = create(PathBuf::from(name))?;
        let written = { file }.write_all(bytes);
        written.map_err(failed(&format!("writing {}", path.display())))?;
        Ok(path)
    }
}

/// Creates an empty file of this name, in the given directory or in [`FALLBACK_DIRECTORY`]. Other
/// users can guess both names, so [`crate::file::create`] creates it.
fn create(path: PathBuf) -> Result<(PathBuf, File), Error> {
    let make = |path: PathBuf| -> io::Result<_> {
        let file = crate::file::create(&path)?;
        Ok((path, file))
    };
    let made = match make(path.clone()) {
        Err(_) if path.is_relative() => make(Path::new(FALLBACK_DIRECTORY).join(&path)),
        made => made,
    };
    made.map_err(failed(&format!("making {}", path.display())))
}
