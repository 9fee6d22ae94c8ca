//! Waiting for jobs: by a file, asleep, by a future, and as an iterator.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::event::{Event, Retrieve};
use super::workq::WorkQ;
use crate::error::{Error, ErrorKind, Result};

/// How long no job is done before a wait in polling mode asks whether one still can be.
const CHECK_AFTER: Duration = Duration::from_millis(100);
/// How long a wait in event-driven mode sleeps at a time before it asks so.
const SLEEP: Duration = Duration::from_secs(1);

impl WorkQ {
    /// A file that becomes readable when a job is done (`doca_workq_get_event_handle`), after
    /// [`arm`](WorkQ::arm). It is there from the beginning, stays the same, and tells of all
    /// contexts and devices. In polling mode, too, it is there, and never becomes readable.
    pub fn event_handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    /// Makes the file readable when the next job is done (`doca_workq_event_handle_arm`), at once
    /// if one is. Jobs may be submitted before and after; none is missed.
    ///
    /// # Errors
    /// [`ErrorKind::BadState`] in polling mode; the device is gone.
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
    /// retrieve until there is nothing, and arm again.
    ///
    /// # Errors
    /// The device is gone.
    pub fn clear(&mut self) -> Result<()> {
        self.armed = false;
        self.handle.clear()?;
        self.queues.clear_events()
    }

    /// Retrieves a result, or waits for one: asleep in event-driven mode, spinning in polling mode,
    /// where it asks each device every 100 ms whether its completion queue still works. `None`:
    /// `timeout` passed. Without a timeout it waits until there is a result, or none can come.
    ///
    /// # Errors
    /// As [`WorkQ::progress_retrieve`], but never [`Retrieve::Again`].
    pub fn retrieve_within(
        &mut self,
        timeout: Option<Duration>,
    ) -> std::result::Result<Option<Event>, Retrieve> {
        let start = Instant::now();
        let end = timeout.and_then(|timeout| start.checked_add(timeout));
        let mut check_at = start + CHECK_AFTER;
        loop {
            match self.progress_retrieve() {
                Err(Retrieve::Again) => {}
                Ok(event) => return Ok(Some(event)),
                Err(other) => return Err(other),
            }
            let now = Instant::now();
            let left = end.map(|end| end.saturating_duration_since(now));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            if self.event_driven {
                self.sleep(left).map_err(Retrieve::Failed)?;
            } else if now >= check_at {
                self.queues.check().map_err(Retrieve::Failed)?;
                check_at = now + CHECK_AFTER;
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Arms, sleeps until there is an event, and clears.
    fn sleep(&mut self, timeout: Option<Duration>) -> Result<()> {
        self.arm()?;
        // A device may not report that a completion queue failed.
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
            Ok(0) if cut => self.clear().and_then(|()| self.queues.check()),
            Ok(_) | Err(nix::errno::Errno::EINTR) => self.clear(),
            Err(errno) => {
                let text = format!("waiting for an event: {errno}");
                Err(Error::new(ErrorKind::OperatingSystem, text).with_source(errno))
            }
        }
    }

    /// The next event as a future, on any executor. `readable` waits until the
    /// [file](WorkQ::event_handle) is readable; it is the only thing that an executor provides, and
    /// it may come back too early. The work queue is in event-driven mode.
    ///
    /// Dropped before it is done, it has lost nothing: it takes an event only when it is done.
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

    /// Arms from any state. Events that were not cleared would make an edge-triggered reactor sleep
    /// for good.
    pub(crate) fn rearm(&mut self) -> Result<()> {
        self.clear()?;
        self.arm()
    }

    /// An iterator over events as they come. Between events it waits as [`WorkQ::retrieve_within`]
    /// does, and it ends when none comes within `timeout`.
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

/// Steps of software's work that a future does before it lets others work.
pub(crate) const BURST: u32 = 16;

/// The error for a program whose `readable` failed.
pub(crate) fn not_readable(error: std::io::Error) -> Error {
    let text = format!("waiting for the work queue's file: {error}");
    Error::new(ErrorKind::OperatingSystem, text).with_source(error)
}

/// The events of a work queue: see [`WorkQ::events`] and [`WorkQ::drain`]. A failed job is an item
/// as others are; when the work queue itself failed, that is the last item.
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
