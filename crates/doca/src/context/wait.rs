//! Waiting for jobs: by a file, by a sleep, by a future, and as an iterator.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::event::{Event, Retrieve};
use super::workq::WorkQ;
use crate::error::{Error, ErrorKind, Result};

/// Time without an ended job before a wait or a retrieval queries the queue's state.
const CHECK_AFTER: Duration = Duration::from_millis(100);
/// The longest sleep of a wait in event-driven mode before that query.
const SLEEP: Duration = Duration::from_secs(1);

/// When a work queue checks for queues that end no jobs.
#[derive(Default)]
pub(super) struct StallCheck {
    /// Consecutive retrievals that found nothing.
    pub(super) calls: u32,
    /// The time of the last check.
    since: Option<Instant>,
}

impl WorkQ {
    /// A file that becomes readable when a job is done (`doca_workq_get_event_handle`), after
    /// [`arm`](WorkQ::arm). It exists from the beginning, stays the same, and covers all contexts
    /// and devices. In polling mode it exists too, and never becomes readable.
    pub fn event_handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    /// Makes the file readable when the next job is done (`doca_workq_event_handle_arm`), at once
    /// if one is already done. Jobs may be submitted before and after; none is missed.
    ///
    /// # Errors
    /// [`ErrorKind::BadState`] in polling mode; a device is removed, and no job is in flight on
    /// another.
    pub fn arm(&mut self) -> Result<()> {
        if !self.event_driven {
            let text = "the work queue is in polling mode: build it with `event_driven`";
            return Err(Error::plain(ErrorKind::BadState, text));
        }
        self.armed = true;
        let done = self.queues.park()?;
        if done || self.has_work() { self.handle.signal() } else { Ok(()) }
    }

    /// Takes the events that made the file readable (`doca_workq_event_handle_clear`). Then
    /// retrieve until nothing is left, and arm again.
    ///
    /// # Errors
    /// A device is removed, and no job is in flight on another.
    pub fn clear(&mut self) -> Result<()> {
        self.armed = false;
        self.handle.clear()?;
        self.queues.clear_events(&self.handle)
    }

    /// Retrieves a result, or waits for one: it sleeps in event-driven mode, and spins in polling
    /// mode. `None`: `timeout` passed. Without a timeout it waits until there is a result, or none
    /// can come. If the jobs of a context have had no result for 100 to 200 ms (in a sleep: for up
    /// to two seconds), in one call or in several, it queries whether the device still completes
    /// them, like [`WorkQ::progress_retrieve`]; then ever more rarely, down to once a second.
    ///
    /// # Errors
    /// As [`WorkQ::progress_retrieve`], but never [`Retrieve::Again`]; [`Retrieve::Failed`] with
    /// [`ErrorKind::IoFailed`] if a completion queue failed and no job in flight can report it.
    pub fn retrieve_within(
        &mut self,
        timeout: Option<Duration>,
    ) -> std::result::Result<Option<Event>, Retrieve> {
        let start = Instant::now();
        let end = timeout.and_then(|timeout| start.checked_add(timeout));
        loop {
            match self.progress_retrieve() {
                Err(Retrieve::Again) => {}
                found => {
                    // Results of other contexts may come without end. An error here is not lost: a
                    // call that finds nothing returns it.
                    let _later = self.check_if_stalled(start);
                    return found.map(Some);
                }
            }
            let now = Instant::now();
            let left = end.map(|end| end.saturating_duration_since(now));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            self.check_if_stalled(now).map_err(Retrieve::Failed)?;
            match self.event_driven {
                true => self.sleep(left).map_err(Retrieve::Failed)?,
                false => std::hint::spin_loop(),
            }
        }
    }

    /// Queries whether the devices still complete the jobs in flight (a command or two for each
    /// context that has some), and ends those that they do not complete, as waits do by themselves.
    /// A program that sleeps in another way ([`AsyncWorkQ`](crate::future::AsyncWorkQ),
    /// [`WorkQ::next`], the [file](WorkQ::event_handle)) calls it about once a second without a
    /// completion. A queue in the error state counts at the second call, because it may be
    /// flushing.
    ///
    /// # Errors
    /// A device writes no more completions; it refuses.
    pub fn check(&mut self) -> Result<()> {
        self.queues.check().map(drop)
    }

    /// Every [`CHECK_AFTER`], queries the devices about queues that have jobs in flight and have
    /// completed no job since the last time. Completions of one context do not delay the check of
    /// another.
    pub(super) fn check_if_stalled(&mut self, now: Instant) -> Result<()> {
        let since = *self.stall_check.since.get_or_insert(now);
        if now.saturating_duration_since(since) >= CHECK_AFTER {
            self.stall_check.since = Some(now);
            self.queues.check_idle(now)?;
        }
        Ok(())
    }

    /// Arms, sleeps until there is an event, and clears.
    fn sleep(&mut self, timeout: Option<Duration>) -> Result<()> {
        self.arm()?;
        // A device may not report a failed completion queue.
        let cut = timeout.is_none_or(|timeout| timeout > SLEEP);
        let timeout = if cut { Some(SLEEP) } else { timeout };
        let timeout = match timeout {
            // Rounded up, so that it does not spin through the last millisecond.
            Some(left) => {
                PollTimeout::try_from(left + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX)
            }
            None => PollTimeout::NONE,
        };
        let mut files = [PollFd::new(self.handle.as_fd(), PollFlags::POLLIN)];
        match poll(&mut files, timeout) {
            Ok(0) => self.clear().and_then(|()| self.check_if_stalled(Instant::now())),
            Ok(_) | Err(nix::errno::Errno::EINTR) => self.clear(),
            Err(errno) => {
                let text = format!("waiting for an event: {errno}");
                Err(Error::new(ErrorKind::OperatingSystem, text).with_source(errno))
            }
        }
    }

    /// The next event as a future, on any executor. `readable` waits until the
    /// [file](WorkQ::event_handle) is readable; an executor provides nothing else, and it may
    /// return too early. The work queue must be in event-driven mode.
    ///
    /// A future that is dropped early loses nothing: it takes an event only when it completes.
    ///
    /// With tokio, where `file` is an `AsyncFd` of a duplicate of the file:
    ///
    /// ```ignore
    /// let readable = async || {
    ///     file.readable().await?.clear_ready();
    ///     Ok(())
    /// };
    /// let event = workq.next(readable).await?;
    /// ```
    ///
    /// # Errors
    /// As [`WorkQ::progress_retrieve`], but never [`Retrieve::Again`];
    /// [`Retrieve::Failed`] with [`ErrorKind::BadState`] in polling mode, and with
    /// [`ErrorKind::OperatingSystem`] if `readable` fails.
    pub async fn next(
        &mut self,
        mut readable: impl AsyncFnMut() -> std::io::Result<()>,
    ) -> std::result::Result<Event, Retrieve> {
        loop {
            for _ in 0..BURST {
                match self.progress_retrieve() {
                    Err(Retrieve::Again) if self.has_work() => {}
                    Err(Retrieve::Again) => break,
                    other => return other,
                }
            }
            self.rearm().map_err(Retrieve::Failed)?;
            readable().await.map_err(|error| Retrieve::Failed(not_readable(error)))?;
        }
    }

    /// Arms from any state. Uncleared events would make an edge-triggered reactor sleep forever.
    pub(crate) fn rearm(&mut self) -> Result<()> {
        self.clear()?;
        self.arm()
    }

    /// An iterator over events as they come. Between events it waits like
    /// [`WorkQ::retrieve_within`], and it ends if none comes within `timeout`.
    pub fn events(&mut self, timeout: Option<Duration>) -> Events<'_> {
        Events { workq: self, timeout, until_idle: false, broken: false }
    }

    /// An iterator over the events of all jobs in flight; it waits for them, and ends when no job
    /// is in flight.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
    /// # use verbless_doca::{WorkQ, dma::Dma};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dev = doc::dev();
    /// # let dma = Dma::builder(&dev).start()?;
    /// # let mut workq = WorkQ::new(16)?;
    /// # workq.add(&dma)?;
    /// for part in 0..4 {
    ///     let (source, destination) = (doc::data(&dev, b"part"), doc::room(&dev));
    ///     workq.submit(dma.memcpy(source, destination).user_data(part))?;
    /// }
    /// let mut parts = 0;
    /// for event in workq.drain() {
    ///     parts += event?.user_data().0;
    /// }
    /// assert_eq!((parts, workq.in_flight()), (6, 0));
    /// # Ok(())
    /// # }
    /// ```
    pub fn drain(&mut self) -> Events<'_> {
        Events { workq: self, timeout: None, until_idle: true, broken: false }
    }
}

/// Steps of software's work that a future does before it yields.
pub(crate) const BURST: u32 = 16;

/// The error for a failed `readable` of the program.
pub(crate) fn not_readable(error: std::io::Error) -> Error {
    let text = format!("waiting for the work queue's file: {error}");
    Error::new(ErrorKind::OperatingSystem, text).with_source(error)
}

/// The events of a work queue: see [`WorkQ::events`] and [`WorkQ::drain`]. A failed job is an item
/// like others; a failure of the work queue itself is the last item.
#[derive(Debug)]
pub struct Events<'w> {
    workq: &'w mut WorkQ,
    timeout: Option<Duration>,
    until_idle: bool,
    broken: bool,
}

impl Iterator for Events<'_> {
    type Item = std::result::Result<Event, Retrieve>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.broken || (self.until_idle && self.workq.in_flight() == 0) {
            return None;
        }
        let item = self.workq.retrieve_within(self.timeout).transpose();
        self.broken = matches!(item, Some(Err(Retrieve::Failed(_))));
        item
    }
}
