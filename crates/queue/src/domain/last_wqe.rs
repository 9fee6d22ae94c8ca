//! Last WQE Reached: when a queue pair in ERR has let go of its shared receive queue.
//!
//! A device takes a receive from the SRQ when a message begins. A queue pair that is reset in the
//! middle of one never completes that receive, and nothing says which it was: it would be lost for
//! good. In ERR the queue pair completes it as flushed, and then raises Last WQE Reached (event
//! 0x13). So a queue pair with an SRQ is moved to ERR, and reset after that event, as in UCX
//! (`uct_rc_mlx5_ep_t` cleanup).

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use verbless_command::{Device, Error, QpObject};
use verbless_devx::{Errno, EventChannel};
use verbless_prm::hot::event_type;

/// How long a queue pair waits for the event. Then it is reset all the same, and the receive that
/// it had taken from the SRQ may be lost.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long, where the last event that a queue pair of this SRQ waited for has not come.
const LITTLE_PATIENCE: Duration = Duration::from_millis(10);

/// The Last WQE Reached events of the queue pairs of one SRQ.
#[derive(Debug)]
pub(super) struct LastWqeEvents {
    channel: EventChannel,
    /// Cookies of events that were read, and not waited for yet.
    reached: Mutex<HashSet<u64>>,
    next: AtomicU64,
    /// Whether the last one has not come in time: the device may not report them.
    missed: AtomicBool,
}

/// The subscription of one queue pair.
#[derive(Debug)]
pub(super) struct LastWqe {
    events: Arc<LastWqeEvents>,
    cookie: u64,
}

impl LastWqeEvents {
    pub(super) fn new(device: &Device) -> Result<Self, Error> {
        let channel = device.event_channel(true)?;
        Ok(Self {
            channel,
            reached: Mutex::default(),
            next: AtomicU64::new(0),
            missed: AtomicBool::new(false),
        })
    }

    /// Subscribes to the event of a queue pair; `None` where the device does not report it.
    pub(super) fn of(self: &Arc<Self>, object: &QpObject) -> Result<Option<LastWqe>, Error> {
        let cookie = self.next.fetch_add(1, Ordering::Relaxed);
        let events = [event_type::SRQ_LAST_WQE.into()];
        match self.channel.subscribe(Some(object.object()), &events, cookie) {
            Ok(()) => Ok(Some(LastWqe { events: self.clone(), cookie })),
            Err(error) if error.errno() == Some(Errno::EINVAL) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl LastWqe {
    /// Waits for the event, which may have come before; false if it has not come in time.
    pub(super) fn wait(&self) -> Result<bool, Error> {
        let missed = &self.events.missed;
        let patience = match missed.load(Ordering::Relaxed) {
            true => LITTLE_PATIENCE,
            false => PATIENCE,
        };
        let end = Instant::now() + patience;
        // Held while it sleeps: others that wait here find their event among those that were read.
        let mut reached = self.events.reached.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            while let Some(event) = self.events.channel.read()? {
                reached.insert(event.cookie);
            }
            if reached.remove(&self.cookie) {
                missed.store(false, Ordering::Relaxed);
                return Ok(true);
            }
            let left = end.saturating_duration_since(Instant::now());
            if !self.events.channel.wait(Some(left))? {
                missed.store(true, Ordering::Relaxed);
                return Ok(false);
            }
        }
    }

    /// Forgets an event that came: the queue pair is in RESET, and raises another the next time.
    pub(super) fn forget(&self) {
        let mut reached = self.events.reached.lock().unwrap_or_else(PoisonError::into_inner);
        while let Ok(Some(event)) = self.events.channel.read() {
            reached.insert(event.cookie);
        }
        reached.remove(&self.cookie);
    }
}
