//! Jobs as futures, on any executor.
//!
//! Tasks share an [`AsyncWorkQ`], a work queue. Each submits its jobs and awaits their own events.
//! The library has no thread and no reactor: one task has to [drive](AsyncWorkQ::drive) the queue
//! for all, with the executor's wait for the queue's file.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
//! # use verbless_doca::{WorkQ, dma::Dma, future::AsyncWorkQ};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dev = doc::dev();
//! # let dma = Dma::builder(&dev).start()?;
//! # let mut workq = WorkQ::builder(4).event_driven().build()?;
//! # workq.add(&dma)?;
//! # let [source, source2] = [b"one", b"two"].map(|bytes| doc::data(&dev, bytes));
//! # let [destination, destination2] = [(); 2].map(|()| doc::room(&dev));
//! # let example = async {
//! let queue = AsyncWorkQ::new(workq)?;
//! let readable = async || doc::readable(queue.file()).await; // of your executor
//! let work = async {
//!     let one = queue.submit(dma.memcpy(source, destination))?;
//!     let other = queue.submit(dma.memcpy(source2, destination2))?;
//!     Ok::<_, verbless_doca::Error>((one.await, other.await))
//! };
//! let (one, other) = queue.drive_until(readable, work).await??;
//! assert!(one?.result().is_ok() && other?.result().is_ok());
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # };
//! # doc::block_on(example)?;
//! # Ok(())
//! # }
//! ```
//!
//! With tokio, where `file` is an `AsyncFd` of [`AsyncWorkQ::file`], it is
//! `async || { file.readable().await?.clear_ready(); Ok(()) }`.
//!
//! A dropped future loses only its event: the job continues, and when it is done its buffers return
//! to their stores. The event of a forgotten future ([`mem::forget`]) is kept until the queue is
//! dropped.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::future::{Future, poll_fn};
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::{Pin, pin};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::context::event::{Done, Event, Owner, Retrieve, Tag};
use crate::context::job::Job;
use crate::context::wait::{BURST, not_readable};
use crate::context::workq::WorkQ;
use crate::error::{Error, ErrorKind, Refused, Result};
use crate::graph::instance::Instance;
use crate::graph::plan::Graph;
use crate::types::UserData;

/// A work queue whose jobs are futures. It is `Send` and `Sync`.
pub struct AsyncWorkQ {
    file: OwnedFd,
    inner: Mutex<Inner>,
}

struct Inner {
    workq: WorkQ,
    slots: Vec<JobSlot>,
    free: Vec<u32>,
    /// Futures that wait for room in the work queue.
    room: Vec<Waker>,
    /// External events, and futures that wait for one.
    external: VecDeque<Event>,
    listeners: Vec<Waker>,
}

/// The destination of a job's event.
enum JobSlot {
    Free,
    /// A future waits for it.
    Waits(Option<Waker>),
    /// The future was dropped.
    Dropped,
    /// The event has arrived.
    Ended(Event),
}

impl AsyncWorkQ {
    /// Takes a work queue in event-driven mode that has nothing in flight.
    ///
    /// # Errors
    /// [`ErrorKind::BadState`] if it is in polling mode or has jobs in flight;
    /// [`ErrorKind::OperatingSystem`] if the process has too many files.
    #[expect(clippy::result_large_err, reason = "it gives back the work queue")]
    pub fn new(workq: WorkQ) -> std::result::Result<Self, Refused<WorkQ>> {
        let text = match (workq.is_event_driven(), workq.in_flight()) {
            (false, _) => "the work queue is in polling mode: build it with `event_driven`",
            (true, 0) => {
                return match workq.event_handle().try_clone_to_owned() {
                    Ok(file) => Ok(Self { file, inner: Mutex::new(Inner::of(workq)) }),
                    Err(error) => Err(Refused::new(not_readable(error), workq)),
                };
            }
            _ => "jobs are in flight on the work queue: retrieve them first",
        };
        Err(Refused::new(Error::plain(ErrorKind::BadState, text), workq))
    }

    /// Adds the work queue to a context: [`WorkQ::add`].
    ///
    /// # Errors
    /// As [`WorkQ::add`].
    pub fn add<C: crate::Context + ?Sized>(&self, context: &C) -> Result<()> {
        self.lock().workq.add(context)
    }

    /// Removes the work queue from a context: [`WorkQ::remove`].
    ///
    /// # Errors
    /// As [`WorkQ::remove`].
    pub fn remove<C: crate::context::Removable + ?Sized>(&self, context: &C) -> Result<()> {
        self.lock().workq.remove(context)
    }

    /// Ends all jobs in flight of a context: [`WorkQ::abort`]. Their futures complete when the
    /// queue is driven.
    ///
    /// # Errors
    /// As [`WorkQ::abort`].
    pub fn abort<C: crate::Context + ?Sized>(&self, context: &C) -> Result<()> {
        self.lock().workq.abort(context)
    }

    /// Adds the work queue to a graph: [`WorkQ::add_graph`].
    ///
    /// # Errors
    /// As [`WorkQ::add_graph`].
    pub fn add_graph(&self, graph: &Graph) -> Result<()> {
        self.lock().workq.add_graph(graph)
    }

    /// Removes the work queue from a graph: [`WorkQ::remove_graph`].
    ///
    /// # Errors
    /// As [`WorkQ::remove_graph`].
    pub fn remove_graph(&self, graph: &Graph) -> Result<()> {
        self.lock().workq.remove_graph(graph)
    }

    /// Returns the work queue. Jobs of dropped futures may be in flight; the program retrieves
    /// their events like those of other jobs. External events that no task awaited are dropped.
    pub fn into_inner(self) -> WorkQ {
        self.inner.into_inner().unwrap_or_else(PoisonError::into_inner).workq
    }

    /// The file that becomes readable when there is work. It stays the same.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits a job at once. The future yields the job's event.
    ///
    /// # Errors
    /// As [`WorkQ::submit`].
    pub fn submit<J: Job>(&self, job: J) -> std::result::Result<JobFuture<'_>, Refused<J>> {
        self.lock().submit(job).map(|slot| JobFuture { queue: self, slot })
    }

    /// Submits a job, after waiting for room if there is none. If the future is dropped early,
    /// nothing was submitted, and the job is dropped.
    ///
    /// # Errors
    /// As [`WorkQ::submit`]; [`ErrorKind::Again`] only if no job in flight can make room.
    pub async fn submit_waiting<J: Job>(
        &self,
        job: J,
    ) -> std::result::Result<JobFuture<'_>, Refused<J>> {
        let mut job = Some(job);
        poll_fn(|context| {
            let mut inner = self.lock();
            let Some(given) = job.take() else { return Poll::Pending };
            match inner.submit(given) {
                Err(Refused { error, given })
                    if error.kind() == ErrorKind::Again && inner.workq.in_flight() > 0 =>
                {
                    job = Some(given);
                    if !inner.room.iter().any(|waker| waker.will_wake(context.waker())) {
                        inner.room.push(context.waker().clone());
                    }
                    Poll::Pending
                }
                result => Poll::Ready(result.map(|slot| JobFuture { queue: self, slot })),
            }
        })
        .await
    }

    /// Submits an instance of a graph. The future yields its event.
    ///
    /// # Errors
    /// As [`WorkQ::submit_graph`].
    pub fn submit_graph(
        &self,
        instance: &Instance,
        user_data: impl Into<UserData>,
    ) -> Result<JobFuture<'_>> {
        let mut inner = self.lock();
        let slot = inner.begin();
        let submitted = inner.workq.submit_graph_tagged(instance, user_data.into(), future(slot));
        match submitted {
            Ok(()) => Ok(JobFuture { queue: self, slot }),
            Err(error) => {
                inner.release(slot);
                Err(error)
            }
        }
    }

    /// The next [external event](crate::async_event); events between calls are kept. A future that
    /// is dropped early has taken no event.
    pub async fn external(&self) -> Event {
        poll_fn(|context| {
            let mut inner = self.lock();
            if let Some(event) = inner.external.pop_front() {
                return Poll::Ready(event);
            }
            if !inner.listeners.iter().any(|waker| waker.will_wake(context.waker())) {
                inner.listeners.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    /// Retrieves events and hands them to their futures, forever. One task does this for all.
    /// `readable` waits until the [file](AsyncWorkQ::file) is readable; it may return too early.
    ///
    /// A future that is dropped loses nothing; the other futures wait until a task drives the queue
    /// again.
    ///
    /// # Errors
    /// The work queue failed ([`Retrieve::Failed`]), or `readable`
    /// ([`ErrorKind::OperatingSystem`]).
    pub async fn drive(
        &self,
        mut readable: impl AsyncFnMut() -> std::io::Result<()>,
    ) -> Result<Infallible> {
        loop {
            for _ in 0..BURST {
                if !self.step()? {
                    break;
                }
            }
            // Remaining events make the file readable at once, and other tasks have their turn.
            self.lock().workq.rearm()?;
            readable().await.map_err(not_readable)?;
        }
    }

    /// Drives the queue until `work` is done.
    ///
    /// # Errors
    /// As [`AsyncWorkQ::drive`]; `work` is dropped then.
    pub async fn drive_until<T>(
        &self,
        readable: impl AsyncFnMut() -> std::io::Result<()>,
        work: impl Future<Output = T>,
    ) -> Result<T> {
        let (mut work, mut drive) = (pin!(work), pin!(self.drive(readable)));
        poll_fn(|context| {
            if let Poll::Ready(output) = work.as_mut().poll(context) {
                return Poll::Ready(Ok(output));
            }
            match drive.as_mut().poll(context) {
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Ready(Ok(never)) => match never {},
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    /// Retrieves the available events; false if there is no work.
    fn step(&self) -> Result<bool> {
        let mut inner = self.lock();
        let before = inner.workq.in_flight();
        let retrieved = inner.workq.progress();
        let mut woken = match inner.workq.in_flight() < before {
            true => mem::take(&mut inner.room),
            false => Vec::new(),
        };
        let (ended, result) = match retrieved {
            Ok(Done { tag, event }) => match tag.owner() {
                Owner::Future(slot) => (inner.ended(slot, event), Ok(true)),
                Owner::External => {
                    inner.external.push_back(event);
                    woken.append(&mut inner.listeners);
                    (JobSlot::Free, Ok(true))
                }
                // No other code submits here.
                _ => (JobSlot::Ended(event), Ok(true)),
            },
            Err(Retrieve::Failed(error)) => (JobSlot::Free, Err(error)),
            Err(_) => (JobSlot::Free, Ok(inner.workq.has_work() || !woken.is_empty())),
        };
        // Wakers, and drops of events, may call back into the queue.
        drop(inner);
        if let JobSlot::Waits(Some(waker)) = ended {
            waker.wake();
        }
        woken.into_iter().for_each(Waker::wake);
        result
    }
}

const fn future(slot: u32) -> Tag {
    Tag::of(Owner::Future(slot))
}

impl Inner {
    fn of(workq: WorkQ) -> Self {
        let (slots, free, external) = (Vec::new(), Vec::new(), VecDeque::new());
        Self { workq, slots, free, room: Vec::new(), external, listeners: Vec::new() }
    }

    fn begin(&mut self) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(JobSlot::Free);
            self.slots.len() as u32 - 1
        });
        self.slots[slot as usize] = JobSlot::Waits(None);
        slot
    }

    fn release(&mut self, slot: u32) -> JobSlot {
        self.free.push(slot);
        mem::replace(&mut self.slots[slot as usize], JobSlot::Free)
    }

    fn submit<J: Job>(&mut self, job: J) -> std::result::Result<u32, Refused<J>> {
        let slot = self.begin();
        match self.workq.submit_tagged(job, future(slot)) {
            Ok(()) => Ok(slot),
            Err(refused) => {
                self.release(slot);
                Err(refused)
            }
        }
    }

    /// Stores the event of a slot. Returns the part to drop or wake.
    fn ended(&mut self, slot: u32, event: Event) -> JobSlot {
        if matches!(self.slots[slot as usize], JobSlot::Dropped) {
            self.release(slot);
            return JobSlot::Ended(event);
        }
        mem::replace(&mut self.slots[slot as usize], JobSlot::Ended(event))
    }
}

/// The event of a job: see [`AsyncWorkQ::submit`]. If this is dropped, the job continues.
#[must_use = "dropped, it drops the event with the job's buffers"]
pub struct JobFuture<'q> {
    queue: &'q AsyncWorkQ,
    slot: u32,
}

impl Future for JobFuture<'_> {
    /// The event; for a failed job, in [`Retrieve::IoFailed`].
    type Output = std::result::Result<Event, Retrieve>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut inner = self.queue.lock();
        let slot = &mut inner.slots[self.slot as usize];
        match slot {
            JobSlot::Waits(Some(waker)) if waker.will_wake(context.waker()) => Poll::Pending,
            JobSlot::Waits(_) => {
                let old = mem::replace(slot, JobSlot::Waits(Some(context.waker().clone())));
                drop(inner);
                drop(old);
                Poll::Pending
            }
            JobSlot::Ended(_) => match mem::replace(slot, JobSlot::Free) {
                JobSlot::Ended(event) if event.is_failed_job() => {
                    Poll::Ready(Err(Retrieve::IoFailed(event)))
                }
                JobSlot::Ended(event) => Poll::Ready(Ok(event)),
                _ => Poll::Pending,
            },
            JobSlot::Free | JobSlot::Dropped => panic!("a future was polled after it was done"),
        }
    }
}

impl Drop for JobFuture<'_> {
    fn drop(&mut self) {
        let mut inner = self.queue.lock();
        let old = match inner.slots[self.slot as usize] {
            JobSlot::Waits(_) => {
                mem::replace(&mut inner.slots[self.slot as usize], JobSlot::Dropped)
            }
            _ => inner.release(self.slot),
        };
        drop(inner);
        drop(old);
    }
}

impl fmt::Debug for AsyncWorkQ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncWorkQ").field("workq", &self.lock().workq).finish_non_exhaustive()
    }
}

impl fmt::Debug for JobFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobFuture").field("slot", &self.slot).finish_non_exhaustive()
    }
}
