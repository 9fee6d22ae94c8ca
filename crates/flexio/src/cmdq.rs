//! Command queues: background calls on the DPA, while the host continues.
//!
//! A queue has workers. Each is a thread that the arrival of a task starts. Tasks go to the workers
//! in turn; tasks of one worker run one after another, tasks of several workers in parallel. The
//! return value of a task is lost: a task leaves its result in memory.
//!
//! A worker receives its tasks by its own queue pair, so that adding a task sends a message instead
//! of executing a command. `verbless_flexio_dev::program!` adds the workers' code to each program.
//!
#![cfg_attr(verbless_dpa_program, doc = "```")]
#![cfg_attr(not(verbless_dpa_program), doc = "```no_run")]
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/documented.rs"));
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let process = compiled()?;
//! use verbless_flexio::{Cmdq, CmdqConfig, Function};
//!
//! let mut queue = Cmdq::create(&process, &CmdqConfig { workers: 4, ..CmdqConfig::default() })?;
//! for n in 0..1000 {
//!     queue.task_add(Function::<(u64,), u64>::named("increment"), n)?;
//! }
//! queue.wait_until_empty()?;
//! assert!(queue.is_empty()?);
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use verbless_command::{Affinity, KeyAccess};
use verbless_flexio_dev::cmdq::{
    BYTES as WORKER_BYTES, DONE_AT, ENTRY, MAX_LOG_DEPTH, TASK_BYTES, Worker as Setup,
};
use verbless_flexio_dev::segment::{BYTES as WQE, Segment};
use verbless_queue::wr::Send;
use verbless_queue::{ConnectOptions, CqConfig, QpConfig, Region};

use crate::copy::Deadline;
use crate::cq::{CQE, CqElement, DpaCq, DpaCqConfig, UNWRITTEN};
use crate::error::Error;
use crate::event_handler::{EventHandler, EventHandlerConfig};
use crate::function::{Function, Handler, Word};
use crate::holders::Holding;
use crate::memory::{Buffer, QueueMemory};
use crate::mkey::{Mkey, MkeyConfig};
use crate::outbox::{Outbox, OutboxConfig};
use crate::process::Process;
use crate::qp::{DpaQp, DpaQpConfig, QpReceive};

/// The pause between two polls for room.
const PAUSE: Duration = Duration::from_micros(50);

/// Whether a queue executes its tasks or only collects them (`flexio_cmdq_state`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum CmdqState {
    /// Tasks are collected (`FLEXIO_CMDQ_STATE_PENDING`).
    #[default]
    Pending = 0,
    /// Tasks are executed (`FLEXIO_CMDQ_STATE_RUNNING`).
    Running = 1,
}

/// Configuration of a command queue (`flexio_cmdq_attr`). `log_depth` and `affinity` are verbless's
/// own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CmdqConfig {
    /// Threads that execute tasks.
    pub workers: u32,
    /// The number of tasks that a worker executes before it yields its execution unit.
    pub batch_size: u32,
    /// The initial state.
    pub state: CmdqState,
    /// log2 of the maximum number of tasks per worker, 1 to 15.
    pub log_depth: u8,
    /// The execution units on which the workers run.
    pub affinity: Affinity,
}

impl Default for CmdqConfig {
    /// One running worker, for batches of 8 and up to 256 tasks.
    fn default() -> Self {
        Self {
            workers: 1,
            batch_size: 8,
            state: CmdqState::Running,
            log_depth: 8,
            affinity: Affinity::None,
        }
    }
}

/// A command queue (`flexio_cmdq`).
#[derive(Debug)]
pub struct Cmdq {
    workers: Vec<Worker>,
    /// The index of the worker that gets the next task.
    next: usize,
    state: CmdqState,
    process: Process,
    _holding: Holding,
}

#[derive(Debug)]
struct Worker {
    // In drop order: the transport of tasks first, then the workers. Each keeps its users'
    // resources alive: the queue pair keeps the tasks with their key, the CQ its thread, and the
    // thread all the memory. So all of it stays if the device refuses to destroy one of them.
    host: verbless_queue::Qp,
    host_cq: verbless_queue::Cq,
    staging: Region,
    _qp: DpaQp,
    cq: DpaCq,
    handler: EventHandler,
    control: Buffer,
    depth: u64,
    sent: u64,
    done: u64,
    /// Whether arriving tasks start it.
    runs: bool,
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Failed(format!("a task did not reach its worker: {error}"))
}

impl Worker {
    fn create(process: &Process, number: u32, config: &CmdqConfig) -> Result<Self, Error> {
        let app = process.app();
        let entry = app.symbol(ENTRY).ok_or_else(|| {
            Error::Failed(format!(
                "{} has no {ENTRY}, which verbless_flexio_dev::program! of this version makes: it \
                 has no command queues",
                app.name()
            ))
        })?;
        let outbox = Outbox::create(process, &OutboxConfig::default())?;
        let handler = EventHandlerConfig {
            outbox: Some(outbox),
            affinity: config.affinity,
            name: format!("cmdq {number}"),
            ..EventHandlerConfig::new(Handler::named(ENTRY))
        };
        let handler = EventHandler::create_at(process, entry, &handler)?;
        let log_depth = config.log_depth;
        let (depth, count) = (1_u64 << log_depth, 1_u32 << log_depth);
        let control = process.alloc(WORKER_BYTES as u64)?;
        let buffer = process.alloc(depth * TASK_BYTES as u64)?;
        let cqes = process.alloc(depth * CQE as u64)?;
        cqes.fill(UNWRITTEN)?;
        let receives = process.alloc(depth * WQE as u64)?;
        let [cq_record, qp_record] = [process.alloc_from(&[0; 8])?, process.alloc_from(&[0; 8])?];
        let memory = [&control, &buffer, &cqes, &receives, &cq_record, &qp_record];
        handler.keep(memory.map(Clone::clone));
        let mut cq = DpaCqConfig::new(log_depth, CqElement::Thread(handler.clone()));
        // The worker's handler arms it: events before the handler's first run would be lost.
        cq.no_arm = true;
        cq.ring = Some(QueueMemory::dpa(&cqes));
        cq.record = Some(QueueMemory::dpa(&cq_record));
        let cq = DpaCq::create(process, &cq)?;
        let tasks = Mkey::create(&buffer, &MkeyConfig::new(KeyAccess::LOCAL))?;
        let wqes: Vec<_> = (0..depth)
            .map(|slot| buffer.address() + slot * TASK_BYTES as u64)
            .flat_map(|at| *Segment::data(TASK_BYTES as u32, tasks.id().0, at).as_bytes())
            .collect();
        debug_assert_eq!(wqes.len() as u64, receives.len());
        receives.write_at(0, &wqes)?;
        let mut qp = DpaQpConfig::rc(&cq, &cq, 0);
        qp.log_sq_depth = None;
        qp.receive = QpReceive::Regular { log_depth };
        qp.ring = Some(QueueMemory::dpa(&receives).keeping(Arc::new(tasks)));
        qp.record = Some(QueueMemory::dpa(&qp_record));
        let mut qp = DpaQp::create(process, &qp)?;

        let domain = process.domain();
        let queues = QpConfig { inline: 0, ..QpConfig::new(count, 1) };
        let entries = queues.cqes::<verbless_queue::Rc>();
        let host_cq = domain.completion_queue(&CqConfig::new(entries))?;
        let mut host = domain.queue_pair(&queues, &host_cq, &host_cq)?;
        let options = ConnectOptions::default();
        let address = domain.address(&host, &options)?;
        domain.connect(&mut host, &qp.address(&options)?, &options)?;
        qp.connect(&address, &options)?;
        process.write(qp.record_address(), &count.to_be_bytes())?;
        let addresses =
            [cq.ring_address(), cq.record_address(), qp.record_address(), buffer.address()];
        let setup = Setup::new(addresses, cq.number().0, config.batch_size, log_depth);
        control.write_at(0, &setup.to_bytes())?;
        let staging = domain.region(depth as usize * TASK_BYTES, KeyAccess::LOCAL)?;
        Ok(Self {
            host,
            host_cq,
            staging,
            _qp: qp,
            cq,
            handler,
            control,
            depth,
            sent: 0,
            done: 0,
            runs: false,
        })
    }

    fn run(&mut self) -> Result<(), Error> {
        // The worker's CQ must be armed only once.
        if !self.runs {
            self.handler.run(self.control.address())?;
            self.cq.arm()?;
            self.runs = true;
        }
        Ok(())
    }

    /// The number of tasks that the worker has not completed, by the last read.
    const fn pending(&self) -> u64 {
        self.sent - self.done
    }

    /// Reads the number of tasks that the worker has completed.
    fn read_done(&mut self, deadline: Deadline) -> Result<(), Error> {
        if self.pending() > 0 {
            let mut done = [0; 8];
            let at = self.control.address() + DONE_AT as u64;
            let process = self.control.process();
            process.copying_until(deadline, |copier| copier.read(at, &mut done))?;
            // The program writes this counter, so it is untrusted: at most the sent tasks are done.
            self.done = u64::from_le_bytes(done).clamp(self.done, self.sent);
        }
        Ok(())
    }

    /// Sends the worker a task, with room for it.
    fn send(&mut self, task: &[u8; TASK_BYTES], deadline: Deadline) -> Result<(), Error> {
        // Answered tasks free their slots; there are as many slots as tasks.
        while let Some(cqe) = self.host_cq.poll() {
            self.host.complete(cqe).map_err(failed)?;
        }
        let at = (self.sent % self.depth) as usize * TASK_BYTES;
        self.staging.write_at(at, task).map_err(failed)?;
        let request = Send::new(self.staging.sge(at, TASK_BYTES).map_err(failed)?).signaled();
        while self.host.post(&request, 0).is_err() {
            // The worker has ended a task whose acknowledgement is still in flight.
            let cqe = self.host_cq.poll_within(deadline.left())?;
            let cqe = cqe.ok_or(Error::QueueTimeout(deadline.timeout()))?;
            self.host.complete(cqe).map_err(failed)?;
        }
        self.sent += 1;
        Ok(())
    }
}

impl Cmdq {
    /// Creates a command queue (`flexio_cmdq_create`).
    ///
    /// # Errors
    /// The process has ended; no workers, no batch, or a depth outside of 1-15; the program has no
    /// code for workers; no room in the heap or for stacks. [`Error::CopyTimeout`]: nothing was
    /// created.
    pub fn create(process: &Process, config: &CmdqConfig) -> Result<Self, Error> {
        process.alive()?;
        for (what, value, least, most) in [
            ("workers", config.workers, 1, u32::MAX),
            ("tasks in a batch", config.batch_size, 1, u32::MAX),
            ("as log2 of the tasks of a worker", config.log_depth.into(), 1, MAX_LOG_DEPTH.into()),
        ] {
            if !(least..=most).contains(&value) {
                return Err(Error::Failed(format!(
                    "a command queue with {value} {what}: {least} to {most} are possible"
                )));
            }
        }
        let _holding = Holding::new("a command queue".into(), vec![process.key()]);
        let workers = (0..config.workers).map(|number| Worker::create(process, number, config));
        let workers = workers.collect::<Result<_, _>>()?;
        let mut queue = Self {
            workers,
            next: 0,
            state: CmdqState::Pending,
            process: process.clone(),
            _holding,
        };
        if config.state == CmdqState::Running {
            queue.state_running()?;
        }
        Ok(queue)
    }

    /// Starts the execution of tasks (`flexio_cmdq_state_running`); does nothing if it already
    /// runs.
    ///
    /// # Errors
    /// The process has ended. [`Error::CopyTimeout`]: some workers may execute their tasks; the
    /// state is still pending, and the call can be repeated.
    pub fn state_running(&mut self) -> Result<(), Error> {
        self.process.alive()?;
        if self.state == CmdqState::Pending {
            self.workers.iter_mut().try_for_each(Worker::run)?;
            self.state = CmdqState::Running;
        }
        Ok(())
    }

    /// Whether tasks are executed or only collected.
    pub const fn state(&self) -> CmdqState {
        self.state
    }

    /// Adds a task: a function of the program with one argument (`flexio_cmdq_task_add`). Returns
    /// as soon as the task is sent.
    ///
    /// # Errors
    /// [`Error::Fatal`]: the process has ended. [`Error::QueueTimeout`]: no worker had room within
    /// the timeout of a call. [`Error::CopyTimeout`]: the room could not be read within the same
    /// time. [`Error::Failed`]: the program has no such function; the queue is full and does not
    /// run. In all cases the task is not added.
    pub fn task_add<A: Word, R: Word>(
        &mut self,
        function: Function<(A,), R>,
        argument: A,
    ) -> Result<(), Error> {
        let address = self.process.app().address_of(&function)?;
        self.process.alive()?;
        let mut task = [0; TASK_BYTES];
        task[..8].copy_from_slice(&address.to_le_bytes());
        task[8..].copy_from_slice(&argument.to_word().to_le_bytes());
        let deadline = Deadline::after(self.process.timeout());
        let worker = self.with_room(deadline)?;
        self.workers[worker].send(&task, deadline)
    }

    /// The next worker with room.
    fn with_room(&mut self, deadline: Deadline) -> Result<usize, Error> {
        let count = self.workers.len();
        let full = Error::QueueTimeout(deadline.timeout());
        let mut seen = false;
        loop {
            for turn in 0..count {
                let worker = (self.next + turn) % count;
                if self.workers[worker].pending() < self.workers[worker].depth {
                    self.next = (worker + 1) % count;
                    return Ok(worker);
                }
            }
            match self.workers.iter_mut().try_for_each(|worker| worker.read_done(deadline)) {
                // There was no room, and the time is over.
                Err(Error::CopyTimeout(_)) if seen => return Err(full),
                looked => looked?,
            }
            seen = true;
            if self.workers.iter().all(|worker| worker.pending() == worker.depth) {
                if self.state == CmdqState::Pending {
                    return Err(Error::Failed(format!(
                        "the command queue has {} tasks and room for no more: state_running works \
                         them off, CmdqConfig::log_depth makes room",
                        self.workers.iter().map(Worker::pending).sum::<u64>()
                    )));
                }
                if deadline.has_passed() {
                    return Err(full);
                }
                self.process.alive()?;
                thread::sleep(PAUSE);
            }
        }
    }

    /// Tasks that were added and have not ended.
    ///
    /// # Errors
    /// The process has ended. [`Error::CopyTimeout`]: the count could not be read; the tasks
    /// continue.
    pub fn pending(&mut self) -> Result<u64, Error> {
        let deadline = Deadline::after(self.process.timeout());
        self.workers.iter_mut().try_for_each(|worker| worker.read_done(deadline))?;
        let pending = self.workers.iter().map(Worker::pending).sum();
        if pending > 0 {
            self.process.alive()?;
        }
        Ok(pending)
    }

    /// Whether all added tasks have ended (`flexio_cmdq_is_empty`).
    ///
    /// # Errors
    /// The process ended before them. [`Error::CopyTimeout`]: as [`Cmdq::pending`].
    pub fn is_empty(&mut self) -> Result<bool, Error> {
        Ok(self.pending()? == 0)
    }

    /// Waits until all added tasks have ended.
    ///
    /// # Errors
    /// [`Error::QueueTimeout`]: none has ended within the timeout of a call; they continue.
    /// [`Error::CopyTimeout`]: as [`Cmdq::pending`]. [`Error::Fatal`]: the process ended before
    /// them.
    pub fn wait_until_empty(&mut self) -> Result<(), Error> {
        let timeout = self.process.timeout();
        let (mut last, mut since) = (self.pending()?, Instant::now());
        while last > 0 {
            if since.elapsed() > timeout {
                return Err(Error::QueueTimeout(timeout));
            }
            thread::sleep(PAUSE);
            let now = self.pending()?;
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        Ok(())
    }

    /// The process.
    pub const fn process(&self) -> &Process {
        &self.process
    }

    /// Destroys the queue (`flexio_cmdq_destroy`), like a drop: discards tasks that have not begun,
    /// and terminates running ones.
    pub fn destroy(self) {
        drop(self);
    }
}

#[cfg(test)]
mod tests;
