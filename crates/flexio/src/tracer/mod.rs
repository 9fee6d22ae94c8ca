//! The tracer: reports of a program's trace points (`tp!`, `verbless_flexio_dev::trace`), while the
//! host has tracing started.
//!
#![cfg_attr(verbless_dpa_program, doc = "```")]
#![cfg_attr(not(verbless_dpa_program), doc = "```no_run")]
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/documented.rs"));
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let process = compiled()?;
//! use verbless_flexio::tracer::{OutputMode, TraceFile};
//! use verbless_flexio::{Function, Tracer};
//!
//! let path = std::env::temp_dir().join(format!("documented-{}", std::process::id()));
//! let mut setup = Tracer::init(&process)?;
//! setup.set_output_mode(OutputMode::Bin).set_out_filename(path);
//! let tracer = setup.create()?;
//! tracer.start()?;
//! let points = Function::<(u64, u64), u64>::named("points");
//! process.call(points, (0, 1000))?;
//! tracer.stop()?;
//! let path = tracer.file().ok_or("it writes a file")?;
//! let reports = TraceFile::new(std::io::BufReader::new(std::fs::File::open(path)?))?;
//! for (n, report) in (0..).zip(reports) {
//!     assert_eq!(report?.arguments[0], n);
//! }
//! # std::fs::remove_file(path)?;
//! # Ok(())
//! # }
//! ```
//!
//! # From init to destroy
//! [`Tracer::init`] begins the setup, the setters of [`TracerSetup`] follow, and
//! [`TracerSetup::create`] creates a [`Tracer`], which has no setters. It can be started and
//! stopped any number of times. It keeps the process alive, so it must be destroyed before the
//! process. A process has at most one tracer at a time.
//!
//! # Reports
//! A [`Record`] of 64 bytes: the trace point's number, the thread's, up to six words, and its own
//! number, which continues over starts. The DPA has no clock for programs, so a report has no time.
//! FlexIO's reports (`dtrace_tp_report`, `msg_bin_report`) are not published; this format is
//! verbless's own, and its files have a version ([`trace_file`]).
//!
//! # Losses
//! The process's memory for reports is limited; reports without room are lost and counted
//! ([`Tracer::lost`]), and none is overwritten. With UC, reports are also lost in transit if the
//! host is slower. A lossless start ([`Tracer::start_lossless`]) keeps everything in the process's
//! memory until the tracer stops: the reports that fit arrive with any transport, and tracing ends
//! once the memory is full.
//!
//! A file never exceeds the disk space limit; later reports are dropped and counted.

mod config;
mod fifo;
mod output;
pub mod trace_file;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use verbless_command::Affinity;
use verbless_flexio_dev::Level;
use verbless_flexio_dev::stream::control::HOLDS;
use verbless_flexio_dev::stream::entry::LOG_RECORD_BYTES;
use verbless_flexio_dev::stream::table::TRACER;

use crate::channel::{Channel, ChannelConfig};
use crate::error::Error;
use crate::holders::Holding;
use crate::process::Process;

use config::TracerPlan;
use fifo::{Command, Fifo};
use output::Output;

pub use crate::stream::Record;
pub use config::{
    DEFAULT_BATCH, DEFAULT_DBUF, DEFAULT_DISK, DEFAULT_FIFO, DEFAULT_FILE, DEFAULT_MEMORY,
    MIN_DISK, MIN_MEMORY, MIN_USER_MEMORY, OutputMode, REPORT_BYTES, TracerSetup, TracerTransport,
};
pub use trace_file::TraceFile;

/// The tracer of a process. A drop destroys it.
#[derive(Debug)]
pub struct Tracer {
    shared: Arc<TracerInner>,
    thread: Option<JoinHandle<()>>,
    fifo: Option<PathBuf>,
    file: Option<PathBuf>,
    closed: bool,
}

/// Reports that were lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TracerLosses {
    /// Reports that found no room in the process's memory.
    pub without_room: u64,
    /// Reports that did not arrive: UC lost them, or their run was terminated.
    pub undelivered: u64,
    /// Arrivals that were not valid reports.
    pub damaged: u64,
    /// Reports that arrived, but the file was full or could not be written, or the callback did not
    /// accept them.
    pub dropped: u64,
}

#[derive(Debug)]
struct TracerInner {
    _holding: Holding,
    process: Process,
    managed: bool,
    stop: AtomicBool,
    state: Mutex<TracerState>,
}

#[derive(Debug)]
struct TracerState {
    channel: Channel,
    output: Output,
    fifo: Option<Fifo>,
    run: Option<TracerRun>,
    damaged: u64,
    /// Maximum number of reports that wait for the callback; the others stay in the ring.
    max_pending: usize,
}

/// Tracing between a start and a stop.
#[derive(Debug)]
struct TracerRun {
    lossless: bool,
    until: Option<Instant>,
}

/// Pauses of the reading thread.
const MIN_PAUSE: Duration = Duration::from_micros(50);
const MAX_PAUSE: Duration = Duration::from_millis(5);

impl TracerState {
    fn receive(&mut self) -> Result<u64, Error> {
        if self.output.pending() >= self.max_pending {
            return Ok(0);
        }
        let (output, damaged) = (&mut self.output, &mut self.damaged);
        self.channel.receive(&mut |_, entry| put(output, damaged, entry))
    }

    fn begin(&mut self, lossless: bool, until: Option<Instant>) -> Result<(), Error> {
        if self.run.is_some() {
            return Err(Error::Failed("the tracer runs already: stop it first".into()));
        }
        self.channel.alive()?;
        // Reports that arrive now are from before the last stop, and too late for its output.
        self.output.begin()?;
        self.start_program(lossless).inspect_err(|_| {
            // The start has failed, and its error has the reason.
            let _closed = self.output.end();
        })?;
        self.run = Some(TracerRun { lossless, until });
        Ok(())
    }

    /// Starts tracing in the program, into a ring without incomplete entries.
    fn start_program(&mut self, lossless: bool) -> Result<(), Error> {
        let (output, damaged) = (&mut self.output, &mut self.damaged);
        let mut take = |_: u64, entry: &[u8]| put(output, damaged, entry);
        if self.channel.is_held_up(&mut take)? {
            self.channel.renew(&mut take)?;
        }
        if lossless {
            self.channel.empty_ring(&mut take)?;
        }
        let level = Level::Debug as u32 | if lossless { HOLDS } else { 0 };
        self.channel.set_level(level)
    }

    fn end(&mut self, timeout: Duration) -> Result<(), Error> {
        let Some(run) = self.run.take() else {
            return Err(Error::Failed("the tracer does not run: start it first".into()));
        };
        let hold = if run.lossless { HOLDS } else { 0 };
        let (output, damaged) = (&mut self.output, &mut self.damaged);
        let mut take = |_: u64, entry: &[u8]| put(output, damaged, entry);
        let silent = self.channel.set_level(hold);
        // A run that was terminated in a trace point blocks later entries of other threads.
        let flushed = match self.channel.flush(&mut take) {
            Ok(()) => match self.channel.is_held_up(&mut take) {
                Ok(true) => {
                    self.channel.renew(&mut take).and_then(|()| self.channel.flush(&mut take))
                }
                Ok(false) | Err(Error::Fatal(_)) => Ok(()),
                Err(error) => Err(error),
            },
            error => error,
        };
        let emptied = match run.lossless {
            true => self.channel.set_level(0).and_then(|()| self.channel.empty_ring(&mut take)),
            false => Ok(()),
        };
        let begun = Instant::now();
        self.output.deliver(true);
        while self.output.pending() > 0 && begun.elapsed() < timeout {
            thread::sleep(MIN_PAUSE);
            self.output.deliver(true);
        }
        let ended = self.output.end();
        // An ended process need not be told to stop.
        let reported = |outcome| match outcome {
            Err(Error::Fatal(_)) => Ok(()),
            other => other,
        };
        reported(silent).and(flushed).and(reported(emptied)).and(ended)
    }
}

/// Passes an entry to the output, if it is a report.
fn put(output: &mut Output, damaged: &mut u64, entry: &[u8]) {
    match Record::parse(entry) {
        Some(record) => output.put(record),
        None => *damaged += 1,
    }
}

impl Tracer {
    /// Begins the setup of a process's tracer (`flexio_dtrace_init`).
    ///
    /// # Errors
    /// The process has a tracer, or one is being set up; the process has ended.
    pub fn init(process: &Process) -> Result<TracerSetup, Error> {
        process.alive()?;
        let mut streams = process.streams();
        if std::mem::replace(&mut streams.tracer, true) {
            return Err(Error::Failed(
                "the process has a tracer: destroy it before creating another".into(),
            ));
        }
        drop(streams);
        Ok(TracerSetup::new(process))
    }

    fn of(mut setup: TracerSetup, plan: &TracerPlan) -> Result<Self, Error> {
        let process = setup.process.clone();
        let fifo = setup.fifo.as_deref().map(Fifo::open).transpose()?;
        let output = match (setup.mode, setup.callback.take()) {
            (OutputMode::Callback, Some(callback)) => {
                Output::callback(callback, plan.batch as usize)
            }
            (mode, _) => Output::file(&setup.file, mode, setup.disk),
        };
        let mut channel = Channel::create(
            &process,
            ChannelConfig {
                number: TRACER,
                transport: plan.entry_transport,
                log_entry_bytes: LOG_RECORD_BYTES,
                ring_bytes: plan.ring_bytes,
                ring_at: plan.ring_at,
                host_bytes: plan.host_bytes,
                batch: plan.batch,
                // A tracing thread does not wait.
                room_retries: 0,
                affinity: Affinity::None,
            },
        )?;
        channel.keep(setup.kept());
        channel.attach(Level::None as u32)?;
        let (fifo_path, file) = (setup.fifo.clone(), output.path().map(Path::to_owned));
        let shared = Arc::new(TracerInner {
            _holding: Holding::new("the tracer".into(), vec![process.key()]),
            process,
            managed: fifo.is_some(),
            stop: AtomicBool::new(false),
            state: Mutex::new(TracerState {
                channel,
                output,
                fifo,
                run: None,
                damaged: 0,
                max_pending: (plan.host_bytes / REPORT_BYTES) as usize,
            }),
        });
        let thread = match setup.thread {
            true => {
                let shared = shared.clone();
                let named = thread::Builder::new().name("dpa tracer".into());
                Some(named.spawn(move || shared.read()).map_err(|error| {
                    Error::Failed(format!("the reading thread of the tracer: {error}"))
                })?)
            }
            false => None,
        };
        // The tracer takes over the process's tracer slot.
        setup.claimed = false;
        crate::log::debug!("made the tracer of process {:#x}", shared.process.object().id());
        Ok(Self { shared, thread, fifo: fifo_path, file, closed: false })
    }

    /// Starts tracing (`flexio_dtrace_start`), and empties the file.
    ///
    /// # Errors
    /// It already runs, or a FIFO controls it; the file cannot be opened; the process has ended; a
    /// run was terminated in a trace point, and the heap has no room for another ring.
    /// [`Error::Timeout`] and [`Error::CopyTimeout`]: it does not run, though the program may trace
    /// until the tracer is started or destroyed.
    pub fn start(&self) -> Result<(), Error> {
        self.begin(false)
    }

    /// Starts tracing without losses: when the process's memory for reports is full, tracing ends
    /// until the next start (`flexio_dtrace_ll_start`).
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_lossless(&self) -> Result<(), Error> {
        self.begin(true)
    }

    fn begin(&self, lossless: bool) -> Result<(), Error> {
        if let Some(fifo) = &self.fifo {
            let fifo = fifo.display();
            return Err(Error::Failed(format!(
                "the tracer is managed by the FIFO {fifo}: echo SECONDS > {fifo}"
            )));
        }
        self.shared.state().begin(lossless, None)?;
        self.wake();
        Ok(())
    }

    /// Stops tracing (`flexio_dtrace_stop`): delivers all reports so far, including an incomplete
    /// batch, and closes the file. It works after a fatal error, too.
    ///
    /// # Errors
    /// It does not run; the file could not be written, or the callback accepted nothing for
    /// [`ProcessConfig::timeout`](crate::ProcessConfig). [`Error::Timeout`] and
    /// [`Error::CopyTimeout`]: it is stopped, though the program may trace until the tracer is
    /// started or destroyed; the remaining reports come after the next start.
    pub fn stop(&self) -> Result<(), Error> {
        self.shared.state().end(self.shared.process.timeout())
    }

    /// Whether tracing is started.
    pub fn runs(&self) -> bool {
        self.shared.state().run.is_some()
    }

    /// Receives the available reports, and commands of the FIFO; returns the number of reports.
    /// Intended for tracers without a thread, but usable with one, too.
    ///
    /// # Errors
    /// The device failed. [`Error::CopyTimeout`]: the next poll receives the remaining entries.
    pub fn poll(&self) -> Result<u64, Error> {
        self.shared.poll()
    }

    /// The file that the tracer writes, with its suffix.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// The FIFO that controls the tracer.
    pub fn fifo(&self) -> Option<&Path> {
        self.fifo.as_deref()
    }

    /// The numbers of the queue pairs that carry reports, the host's and the program's.
    pub fn qp_numbers(&self) -> Option<(u32, u32)> {
        self.shared.state().channel.qp_numbers()
    }

    /// Counts of all losses so far, over all starts.
    ///
    /// # Errors
    /// The program's memory cannot be read, or not in time: [`Error::CopyTimeout`].
    pub fn lost(&self) -> Result<TracerLosses, Error> {
        let state = self.shared.state();
        let losses = state.channel.losses();
        Ok(TracerLosses {
            without_room: state.channel.without_room()?,
            undelivered: losses.lost,
            damaged: losses.damaged + state.damaged,
            dropped: state.output.dropped(),
        })
    }

    /// Destroys the tracer: stops it if it runs, ends the thread, removes the FIFO, and detaches it
    /// in the program (`flexio_dtrace_destroy`). Then another one can be created. A drop does the
    /// same without a report.
    ///
    /// # Errors
    /// As [`stop`](Self::stop); threads of the program do not leave the tracer, whose memory then
    /// stays with the process. The tracer is destroyed in any case.
    pub fn destroy(mut self) -> Result<(), Error> {
        self.close()
    }

    fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    fn close(&mut self) -> Result<(), Error> {
        self.closed = true;
        self.shared.stop.store(true, Ordering::Relaxed);
        self.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            crate::log::error!("the reading thread of the tracer panicked");
        }
        let mut state = self.shared.state();
        let stopped = match state.run.is_some() {
            true => state.end(self.shared.process.timeout()),
            false => Ok(()),
        };
        state.fifo = None;
        stopped.and(state.channel.detach())
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        if !self.closed
            && let Err(error) = self.close()
        {
            crate::log::error!("destroying the tracer: {error}");
        }
        self.shared.process.streams().tracer = false;
    }
}

impl TracerInner {
    fn state(&self) -> MutexGuard<'_, TracerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Executes the FIFO's commands, receives reports, and stops a run whose time is over.
    fn poll(&self) -> Result<u64, Error> {
        let mut state = self.state();
        while let Some(command) = state.fifo.as_mut().and_then(Fifo::command) {
            let done = match (command, &mut state.run) {
                (Command::Run(time), Some(run)) => {
                    run.until = Some(Instant::now() + time);
                    Ok(())
                }
                (Command::Run(time), None) => state.begin(false, Some(Instant::now() + time)),
                (Command::Stop, Some(_)) => state.end(self.process.timeout()),
                (Command::Stop, None) => Ok(()),
            };
            if let Err(error) = done {
                crate::log::error!("a command of the tracer's FIFO: {error}");
            }
        }
        let Some(run) = &state.run else { return Ok(0) };
        let over = run.until.is_some_and(|until| Instant::now() >= until);
        let taken = state.receive();
        state.output.deliver(false);
        if over && let Err(error) = state.end(self.process.timeout()) {
            crate::log::error!("a run of the tracer by its FIFO: {error}");
        }
        taken
    }

    /// The reading thread.
    fn read(&self) {
        let mut pause = MIN_PAUSE;
        while !self.stop.load(Ordering::Relaxed) {
            let taken = match self.poll() {
                Ok(taken) => taken,
                // The next poll receives the remaining entries.
                Err(error @ (Error::Timeout(_) | Error::CopyTimeout(_))) => {
                    crate::log::warning!("reading the tracer: {error}");
                    0
                }
                Err(error) => {
                    crate::log::warning!("reading the tracer ends: {error}");
                    return;
                }
            };
            pause = if taken > 0 { MIN_PAUSE } else { MAX_PAUSE.min(2 * pause) };
            match self.managed || self.state().run.is_some() {
                true => thread::park_timeout(pause),
                false => thread::park(),
            }
        }
    }
}

#[cfg(test)]
mod tests;
