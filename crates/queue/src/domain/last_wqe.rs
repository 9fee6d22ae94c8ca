//! Last WQE Reached: a queue pair in ERR has released its shared receive queue.
//!
//! A device takes a receive from the SRQ when a message begins. A queue pair that is reset in the
//! middle of a message never completes that receive, and nothing identifies it: it would be lost.
//! In ERR the queue pair completes it as flushed, and then raises Last WQE Reached (event 0x13). So
//! a queue pair with an SRQ moves to ERR, and to RESET after that event, as in UCX
//! (`uct_rc_mlx5_ep_t` cleanup).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use verbless_command::{Device, Error, ErrorKind, QpObject};
use verbless_devx::{Errno, EventChannel};
use verbless_prm::hot::event_type;

/// How long a queue pair waits for the event. After that it is reset without the event, and the
/// receive that it had taken from the SRQ may be lost.
const TIMEOUT: Duration = Duration::from_secs(1);
/// The shorter timeout: for a device that does not report the event, or after the last [`MISSES`]
/// waits of this SRQ's queue pairs timed out.
const SHORT_TIMEOUT: Duration = Duration::from_millis(10);
/// Consecutive timeouts after which the device is assumed not to report the event. A single timeout
/// may be a late event.
const MISSES: u32 = 2;

/// The attempted operation in errors.
const GIVE_BACK: &str = "giving back receives of an SRQ";

/// The Last WQE Reached events of the queue pairs of one SRQ.
#[derive(Debug)]
pub(super) struct LastWqeEvents {
    channel: EventChannel,
    /// Events of each queue pair, by its cookie.
    events: Mutex<HashMap<u64, LastWqeCounts>>,
    next: AtomicU64,
    misses: TimeoutCount,
}

/// Events of one queue pair.
#[derive(Clone, Copy, Debug, Default)]
struct LastWqeCounts {
    /// Read, but not yet waited for.
    arrived: u32,
    /// Waits that timed out: their events may still come.
    overdue: u32,
}

impl LastWqeCounts {
    /// Whether the awaited event has arrived: overdue events of earlier waits arrive first. The
    /// answer holds until the queue pair is in RESET, because a reset that fails is tried again.
    fn has_arrived(self) -> bool {
        self.arrived > self.overdue
    }

    /// Counts a timeout. If one overdue event has arrived, the others count as lost; otherwise
    /// every later wait would time out.
    fn miss(&mut self) {
        self.overdue = if self.arrived > 0 { 0 } else { self.overdue + 1 };
        self.arrived = 0;
    }

    /// Forgets the events that have arrived.
    fn forget(&mut self) {
        self.overdue = self.overdue.saturating_sub(self.arrived);
        self.arrived = 0;
    }
}

/// Consecutive timeouts since the last event.
#[derive(Debug, Default)]
struct TimeoutCount(AtomicU32);

impl TimeoutCount {
    fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Time limit for the next wait.
    fn timeout(&self) -> Duration {
        match self.0.load(Ordering::Relaxed) {
            MISSES.. => SHORT_TIMEOUT,
            _ => TIMEOUT,
        }
    }
}

/// The subscription of one queue pair.
#[derive(Debug)]
pub(super) struct LastWqe {
    events: Arc<LastWqeEvents>,
    /// `None` where the device does not report the event.
    cookie: Option<u64>,
}

impl LastWqeEvents {
    pub(super) fn new(device: &Device) -> Result<Self, Error> {
        // A channel that omits data merges an event into an unread one of the same queue pair.
        let channel = device.event_channel(false)?;
        Ok(Self {
            channel,
            events: Mutex::default(),
            next: AtomicU64::new(0),
            misses: TimeoutCount::default(),
        })
    }

    /// Subscribes to the event of a queue pair, if the device reports it.
    pub(super) fn of(self: &Arc<Self>, object: &QpObject) -> Result<LastWqe, Error> {
        let cookie = self.next.fetch_add(1, Ordering::Relaxed);
        let events = [event_type::SRQ_LAST_WQE.into()];
        let cookie = match self.channel.subscribe(Some(object.object()), &events, cookie) {
            Ok(()) => {
                self.lock().insert(cookie, LastWqeCounts::default());
                Some(cookie)
            }
            Err(error) if error.errno() == Some(Errno::EINVAL) => None,
            Err(error) => return Err(error),
        };
        Ok(LastWqe { events: self.clone(), cookie })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, LastWqeCounts>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the events that have arrived, except those of dropped queue pairs.
    fn read(&self, events: &mut HashMap<u64, LastWqeCounts>) -> Result<(), Error> {
        while let Some(event) = self.channel.read()? {
            self.misses.clear();
            if let Some(due) = events.get_mut(&event.cookie) {
                due.arrived += 1;
            }
        }
        Ok(())
    }
}

impl LastWqe {
    /// Waits for the event of a queue pair in ERR, which may have arrived already; fails on a
    /// timeout. If the device does not report the event, sleeps for [`SHORT_TIMEOUT`] so that the
    /// queue pair can complete its receive.
    pub(super) fn wait(&self) -> Result<(), Error> {
        let lost = |hint| Err(Error::new(ErrorKind::QueueFailed, GIVE_BACK, hint));
        let Some(cookie) = self.cookie else {
            thread::sleep(SHORT_TIMEOUT);
            return lost("the device does not report Last WQE Reached (event 0x13)");
        };
        let misses = &self.events.misses;
        let end = Instant::now() + misses.timeout();
        // Held while this thread sleeps: it reads the events of other waiters too, which find them
        // in the map.
        let mut events = self.events.lock();
        loop {
            self.events.read(&mut events)?;
            let due = events.entry(cookie).or_default();
            if due.has_arrived() {
                return Ok(());
            }
            let left = end.saturating_duration_since(Instant::now());
            if !self.events.channel.wait(Some(left))? {
                due.miss();
                misses.add();
                return lost("Last WQE Reached (event 0x13) did not come");
            }
        }
    }

    /// Forgets an event that arrived: the queue pair is in RESET, and raises another one later.
    pub(super) fn forget(&self) {
        let Some(cookie) = self.cookie else { return };
        let mut events = self.events.lock();
        // The next wait finds events that this call cannot read.
        let _unread = self.events.read(&mut events);
        events.entry(cookie).or_default().forget();
    }
}

impl Drop for LastWqe {
    fn drop(&mut self) {
        if let Some(cookie) = self.cookie {
            self.events.lock().remove(&cookie);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LastWqeCounts, SHORT_TIMEOUT, TIMEOUT, TimeoutCount};

    #[test]
    fn single_late_event_keeps_full_timeout() {
        let misses = TimeoutCount::default();
        misses.add();
        assert_eq!(misses.timeout(), TIMEOUT);
        misses.add();
        assert_eq!(misses.timeout(), SHORT_TIMEOUT);
        misses.clear();
        misses.add();
        assert_eq!(misses.timeout(), TIMEOUT);
    }

    #[test]
    fn late_event_ends_no_later_wait() {
        let mut due = LastWqeCounts::default();
        due.miss();
        // The late event.
        due.arrived += 1;
        assert!(!due.has_arrived(), "the event is of the wait before");
        due.arrived += 1;
        assert!(due.has_arrived());
        due.forget();
        assert!(!due.has_arrived());
        // It comes late, and is read before the next wait.
        due.miss();
        due.arrived += 1;
        due.forget();
        due.arrived += 1;
        assert!(due.has_arrived());
        due.forget();
        // It never comes.
        due.miss();
        due.arrived += 1;
        assert!(!due.has_arrived());
        due.miss();
        due.arrived += 1;
        assert!(due.has_arrived());
    }
}
