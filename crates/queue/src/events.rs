//! Sleeping until completions arrive.
//!
//! A completion queue that is *armed* makes one event when its next completion arrives, and the
//! event makes a file readable. [`CqEvents`] is that file for any number of completion queues. It
//! counts the events of each queue and arms it with the right sequence number, so that the order of
//! polling, arming and looking again, in which a wake-up is easily lost, is not the program's
//! business:
//!
//! 1. Poll the queue until it is empty.
//! 2. [`CqEvents::park`] it. [`Parked::Ready`]: a completion has arrived meanwhile, go to 1.
//!    [`Parked::Armed`]: the next completion makes an event.
//! 3. Sleep until the file is readable ([`CqEvents::wait`], or a reactor such as tokio's `AsyncFd`,
//!    which takes a `CqEvents`), take the tokens of the queues that fired, and go to 1 with these.
//!
//! For one queue, [`CqEvents::wait_for`], the iterator [`CqEvents::completions`] and the future
//! [`CqEvents::ready`] do all of that.
//!
//! ```no_run
//! # fn f(domain: &verbless_queue::Domain, mut qp: verbless_queue::Qp, mut cq: verbless_queue::Cq)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! use verbless_queue::CqEvents;
//!
//! let mut events = CqEvents::new(domain.device())?;
//! events.add(&mut cq, 0)?;
//! while events.wait_for(&mut cq, None)? {
//!     while let Some(done) = qp.poll(&mut cq) {
//!         println!("request {} is done", done?.cookie);
//!     }
//! }
//! # Ok(())
//! # }
//! ```

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use verbless_command::{Device, Error, ErrorKind};
use verbless_devx::EventChannel;

use crate::domain::queues::Cq;
use verbless_ring::cq::{Cqe, Notify};

/// Whether there is something to wait for: the answer of [`CqEvents::park`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a queue that is `Ready` makes no event for the completions that it has: poll it"]
pub enum Parked {
    /// Completions are there: poll, and park again. An event may come for them, too.
    Ready,
    /// The queue is empty, and the next completion makes an event.
    Armed,
}

/// The completion events of any number of completion queues of one device, as one file.
///
/// It may be shared: one thread sleeps in [`CqEvents::wait`] and hands tokens to others, which poll
/// and park the queues that they own. [`CqEvents::wait_for`] and what is built on it take it
/// exclusively, since they also read the events of other queues; these are kept for
/// [`CqEvents::wait`].
pub struct CqEvents {
    channel: EventChannel,
    state: Mutex<State>,
    /// Queues hold a weak reference to it: it tells them which channel they are on, and whether
    /// that still exists.
    alive: Arc<()>,
}

#[derive(Default)]
struct State {
    /// The cookie of the next subscription.
    next: u64,
    /// The queues by the cookies of their subscriptions.
    queues: HashMap<u64, Entry>,
    /// When this many queues are registered, the entries of dropped ones are removed.
    prune_at: usize,
    /// Cookies of events that were read and counted, and not handed out.
    fired: VecDeque<u64>,
}

struct Entry {
    token: u64,
    events: Weak<AtomicU32>,
}

/// A completion queue's subscription to the [`CqEvents`] that it was added to.
pub(crate) struct Subscription {
    cookie: u64,
    /// Events of this queue that were read. Owned here, and known to the `CqEvents`.
    events: Arc<AtomicU32>,
    /// How many of the events the queue's arm sequence number has counted.
    counted: u32,
    /// The channel, as long as it lives.
    channel: Weak<()>,
}

impl CqEvents {
    /// A file for the completion queues of `device`.
    ///
    /// # Errors
    /// EMFILE when the process has too many files.
    pub fn new(device: &Device) -> Result<Self, Error> {
        let channel = device.event_channel(true)?;
        Ok(Self { channel, state: Mutex::default(), alive: Arc::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers the completion events of `cq` to this channel. `token` is what [`CqEvents::wait`]
    /// returns for it; it need not be unique. The queue may be dropped at any time.
    ///
    /// # Errors
    /// [`ErrorKind::Input`] if `cq` is on a `CqEvents` already, this one or another; the kernel's
    /// refusal, for example of a queue of another context.
    pub fn add(&self, cq: &mut Cq, token: u64) -> Result<(), Error> {
        if cq.subscription.as_ref().is_some_and(|there| there.channel.strong_count() > 0) {
            let hint = "it was added to another CqEvents already: drop that one first";
            let attempted = format!("adding CQ {} to an event channel", cq.cqn());
            return Err(Error::new(ErrorKind::Input, attempted, hint));
        }
        let mut state = self.state();
        let cookie = state.next;
        cq.subscribe(&self.channel, cookie)?;
        // An event that went to a channel of before may have answered the last sequence number.
        cq.event_received();
        let events = Arc::new(AtomicU32::new(0));
        state.next += 1;
        if state.queues.len() >= state.prune_at {
            state.queues.retain(|_, entry| entry.events.strong_count() > 0);
            state.prune_at = 2 * state.queues.len() + 16;
        }
        state.queues.insert(cookie, Entry { token, events: Arc::downgrade(&events) });
        // So that to take an event allocates nothing: a queue makes one for each time it was armed.
        let most = 2 * state.queues.len();
        let State { fired, .. } = &mut *state;
        fired.reserve(most.saturating_sub(fired.len()));
        let channel = Arc::downgrade(&self.alive);
        cq.subscription = Some(Subscription { cookie, events, counted: 0, channel });
        Ok(())
    }

    /// Arms the queue: asks for an event when the next completion arrives, unless completions are
    /// there already.
    ///
    /// An event can come without a completion that has not been polled yet: for one that was polled
    /// after its event was made. Polling then finds nothing, and the queue is parked again.
    ///
    /// An event that nobody has read keeps the file readable, and no other comes before it is read:
    /// a reactor that tells of changes only must call [`CqEvents::try_next`] until it yields `None`
    /// before it sleeps.
    ///
    /// # Errors
    /// [`ErrorKind::Input`] if the queue was not [added](CqEvents::add) here.
    pub fn park(&self, cq: &mut Cq) -> Result<Parked, Error> {
        self.park_for(cq, Notify::Next)
    }

    /// Like [`park`](Self::park), but armed for the completions that `notify` names only. `Ready`
    /// still means any completion.
    ///
    /// # Errors
    /// As [`CqEvents::park`].
    pub fn park_for(&self, cq: &mut Cq, notify: Notify) -> Result<Parked, Error> {
        let here = |there: &&mut Subscription| there.channel.ptr_eq(&Arc::downgrade(&self.alive));
        let Some(subscription) = cq.subscription.as_mut().filter(here) else {
            let attempted = format!("parking CQ {}", cq.cqn());
            let hint = "it was not added to this CqEvents: call `add` first";
            return Err(Error::new(ErrorKind::Input, attempted, hint));
        };
        let events = subscription.events.load(Ordering::Acquire);
        // Two bits of it are the sequence number.
        let missed = events.wrapping_sub(subscription.counted) % 4;
        subscription.counted = events;
        (0..missed).for_each(|_| cq.event_received());
        if !cq.is_empty() {
            return Ok(Parked::Ready);
        }
        cq.arm(notify);
        // What arrived before the device saw the arm, and after the look above, makes an event as
        // well; but there is no need to sleep until it comes.
        Ok(if cq.is_empty() { Parked::Armed } else { Parked::Ready })
    }

    /// The token of a queue that had an event, or `None`. Call until `None`; the descriptor then
    /// becomes readable on the next event.
    ///
    /// # Errors
    /// [`ErrorKind::DeviceGone`] when the device was removed.
    pub fn try_next(&self) -> Result<Option<u64>, Error> {
        let mut state = self.state();
        loop {
            while let Some(cookie) = state.fired.pop_front() {
                // The event of a queue that is gone is nobody's.
                if let Some(entry) = state.queues.get(&cookie) {
                    return Ok(Some(entry.token));
                }
            }
            if !self.read(&mut state)? {
                return Ok(None);
            }
        }
    }

    /// Takes an event from the channel and counts it; false if there is none.
    fn read(&self, state: &mut State) -> Result<bool, Error> {
        let State { queues, fired, .. } = state;
        match self.channel.read() {
            Ok(None) => return Ok(false),
            Ok(Some(event)) => {
                if queues.get(&event.cookie).is_some_and(Entry::count) {
                    fired.push_back(event.cookie);
                }
            }
            // Nobody knows whose: each queue may have had one.
            Err(error) if error.kind() == ErrorKind::EventsLost => {
                let counted = queues.iter().filter(|(_, entry)| entry.count());
                fired.extend(counted.map(|(cookie, _)| cookie));
            }
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Sleeps until a queue has had an event, and gives its token; `None` when `timeout` passed
    /// first. Without a timeout it waits for good.
    ///
    /// Two threads that wait at the same time get different events.
    ///
    /// # Errors
    /// [`ErrorKind::DeviceGone`] when the device was removed.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<u64>, Error> {
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(token) = self.try_next()? {
                return Ok(Some(token));
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if !self.channel.wait(left)? {
                return Ok(None);
            }
        }
    }

    /// Sleeps until `cq` has completions: false when `timeout` passed first. Without a timeout it
    /// waits for good. Poll the queue until it is empty before the next call.
    ///
    /// # Errors
    /// As [`CqEvents::park`] and [`CqEvents::wait`].
    pub fn wait_for(&mut self, cq: &mut Cq, timeout: Option<Duration>) -> Result<bool, Error> {
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if self.park(cq)? == Parked::Ready {
                return Ok(true);
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if !self.channel.wait(left)? {
                return Ok(!cq.is_empty());
            }
            self.collect(cq)?;
        }
    }

    /// The completions of `cq` as they come; sleeps while there is none, and ends when none comes
    /// within `timeout`. Each is for [`QueuePair::complete`](crate::QueuePair::complete) of its
    /// queue pair.
    pub fn completions<'e>(
        &'e mut self,
        cq: &'e mut Cq,
        timeout: Option<Duration>,
    ) -> Completions<'e> {
        Completions { events: self, cq, timeout }
    }

    /// Waits asynchronously until `cq` has completions. `readable` waits until the file is
    /// readable; it is the only thing that an executor has to provide, and may come back too early.
    /// Dropped before it is done, it has lost nothing.
    ///
    /// With tokio, where `file` is an `AsyncFd` of the `CqEvents`' descriptor:
    ///
    /// ```ignore
    /// let readable = async || {
    ///     file.readable().await?.clear_ready();
    ///     Ok(())
    /// };
    /// events.ready(&mut cq, readable).await?;
    /// ```
    ///
    /// # Errors
    /// As [`CqEvents::park`] and [`CqEvents::wait`]; what `readable` fails with.
    pub async fn ready(
        &mut self,
        cq: &mut Cq,
        mut readable: impl AsyncFnMut() -> std::io::Result<()>,
    ) -> Result<(), Error> {
        loop {
            if self.park(cq)? == Parked::Ready {
                return Ok(());
            }
            readable().await?;
            self.collect(cq)?;
        }
    }

    /// Takes every event that has come, and keeps those that are not of `cq`.
    fn collect(&mut self, cq: &Cq) -> Result<(), Error> {
        let ours = cq.subscription.as_ref().map(|there| there.cookie);
        let mut state = self.state();
        while self.read(&mut state)? {}
        state.fired.retain(|&cookie| Some(cookie) != ours);
        Ok(())
    }
}

impl Entry {
    /// Counts an event of the queue; false if the queue is gone.
    fn count(&self) -> bool {
        self.events.upgrade().map(|events| events.fetch_add(1, Ordering::AcqRel)).is_some()
    }
}

/// The completions of a queue as they come: see [`CqEvents::completions`].
pub struct Completions<'e> {
    events: &'e mut CqEvents,
    cq: &'e mut Cq,
    timeout: Option<Duration>,
}

impl Iterator for Completions<'_> {
    type Item = Result<Cqe, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(cqe) = self.cq.poll() {
                return Some(Ok(cqe));
            }
            match self.events.wait_for(self.cq, self.timeout) {
                // What was there may have been of a queue pair that is gone.
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl AsFd for CqEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// The channel's file, for a reactor: non-blocking, and readable while there are events to read.
/// Take tokens until [`CqEvents::try_next`] yields `None` before sleeping on it.
impl AsRawFd for CqEvents {
    fn as_raw_fd(&self) -> RawFd {
        self.channel.as_raw_fd()
    }
}

impl fmt::Debug for CqEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CqEvents").field("fd", &self.as_raw_fd()).finish_non_exhaustive()
    }
}
