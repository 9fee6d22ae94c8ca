//! Sleeping until completions arrive.
//!
//! An *armed* completion queue makes one event when its next completion arrives, and the event
//! makes a file readable. [`CqEvents`] is that file for any number of completion queues. It counts
//! the events of each queue and arms it with the right sequence number, so a program cannot lose a
//! wake-up by polling, arming and polling again in the wrong order:
//!
//! 1. Poll the queue until it is empty.
//! 2. [`CqEvents::park`] it. [`Parked::Ready`]: a completion has arrived meanwhile, go to 1.
//!    [`Parked::Armed`]: the next completion makes an event.
//! 3. Sleep until the file is readable ([`CqEvents::wait`], or a reactor such as tokio's `AsyncFd`,
//!    which takes a `CqEvents`), take the tokens of the queues that fired, and go to 1 with these.
//!
//! Failures make events too: a CQ that overran or could not be written, another queue with a
//! catastrophic error that the CQ [watches](CqEvents::watch), a [port](CqEvents::watch_port) that
//! goes down. [`CqEvents::wait`] then returns the CQ's token, and parking that CQ fails, once the
//! CQEs that it holds have been polled. A loop over events therefore ends; it does not wait for
//! completions that cannot come.
//!
//! For one queue, [`CqEvents::wait_for`], the iterator [`CqEvents::completions`] and the future
//! [`CqEvents::ready`] do all of these steps.
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

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use verbless_command::{Device, Error, ErrorKind};
use verbless_devx::{
    AsyncEvent, AsyncEventChannel, DevxObject, Errno, EventChannel, LinkLayer, Waiter,
};
use verbless_prm::hot::event_type;

use crate::domain::queues::Cq;
use verbless_ring::cq::{Cqe, Notify};

/// The result of [`CqEvents::park`]: completions are there, or the queue is armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a queue that is `Ready` makes no event for the completions that it has: poll it"]
pub enum Parked {
    /// Completions are there: poll, and park again. They may make an event as well.
    Ready,
    /// The queue is empty, and the next completion makes an event.
    Armed,
}

/// The completion and error events of any number of completion queues of one device, as one file.
///
/// It may be shared: one thread sleeps in [`CqEvents::wait`] and hands tokens to others, which poll
/// and park the queues that they own. [`CqEvents::wait_for`] and the methods built on it take it
/// exclusively, because they also read the events of other queues; they keep those for
/// [`CqEvents::wait`].
pub struct CqEvents {
    device: Device,
    channel: EventChannel,
    /// The async events of verbs. Only they report a failed device: DevX's channels stay silent
    /// until its removal.
    verbs: AsyncEventChannel,
    /// Readable while `channel` or `verbs` is.
    files: Waiter,
    state: Mutex<CqEventsState>,
    /// Queues hold a weak reference to it: it identifies their channel, and whether that still
    /// exists.
    alive: Arc<()>,
}

/// A cookie is an entry's number, with the event type in its lowest byte.
const TYPE_BITS: u32 = 8;

/// The longest sleep before the status query of a CQ, on a device that reports no CQ errors.
const CHECK_AFTER: Duration = Duration::from_secs(1);

#[derive(Default)]
struct CqEventsState {
    /// The number of the next entry.
    next: u64,
    /// The CQs, and the queues that they watch, by the numbers in the cookies of their
    /// subscriptions.
    queues: HashMap<u64, SubscriptionEntry>,
    /// Entry count at which `insert` first removes the entries of dropped queues.
    prune_at: usize,
    /// Numbers of CQs whose events were read and counted, but not returned yet.
    fired: VecDeque<u64>,
    /// The error after which no event can come: the device has failed, or was removed. An
    /// edge-triggered reactor wakes once for it, so later waits test this before they sleep.
    gone: Option<Error>,
    /// The file is held readable: `fired` was not empty, or the device has failed.
    held: bool,
}

struct SubscriptionEntry {
    /// What [`CqEvents::wait`] returns for the CQ.
    token: u64,
    /// The entry of the CQ: this one, or that of the CQ that watches the queue.
    cq: u64,
    reports: Weak<CqReports>,
    source: EventSource,
}

/// The source of a subscription's events.
enum EventSource {
    Cq,
    /// A queue that a CQ watches: its kind, its number, and a value that lives as long as it.
    Queue(&'static str, u32, Weak<dyn Any + Send + Sync>),
    /// A port that a CQ watches, from 1.
    Port(u8),
}

/// A source that a CQ watches and that reported an error.
#[derive(Clone)]
enum WatchedFailure {
    /// Kind and number of the queue, type of the event, and a value that lives as long as the
    /// queue.
    Queue(&'static str, u32, u8, Weak<dyn Any + Send + Sync>),
    /// The port changed its state.
    Port(u8),
}

/// The events read for a CQ. Its [`Subscription`] owns them, and the `CqEvents` refers to them.
#[derive(Default)]
struct CqReports {
    /// Completion events.
    completions: AtomicU32,
    /// The CQ may have failed: the device reported an error of its number, or events were lost. The
    /// error may be that of a destroyed CQ with the same number, so the status of the CQ decides.
    unsure: AtomicBool,
    /// `failed` is not empty.
    any_failed: AtomicBool,
    /// Ports reported as down, as a bitmap.
    ports_down: AtomicU32,
    failed: Mutex<Vec<WatchedFailure>>,
}

/// A completion queue's subscription to the [`CqEvents`] that it was added to.
pub(crate) struct Subscription {
    number: u64,
    reports: Arc<CqReports>,
    /// How many of the completion events the CQ's arm sequence number has counted.
    counted: u32,
    /// The device sends no CQ error events, so the status of the CQ is queried instead.
    needs_queries: bool,
    /// Time of the last status query of such a CQ.
    checked: Instant,
    /// The channel, while it lives.
    channel: Weak<()>,
}

/// A queue whose catastrophic errors end the waits of a completion queue: see [`CqEvents::watch`].
pub trait Watchable: sealed::Sealed {}

pub(crate) mod sealed {
    use std::any::Any;
    use std::sync::Weak;

    use verbless_devx::DevxObject;

    pub trait Sealed {
        /// The kind of the queue, and its number.
        fn name(&self) -> (&'static str, u32);
        /// The value that lives as long as the queue.
        fn life(&self) -> Weak<dyn Any + Send + Sync>;
        /// Types of the events that report its failure.
        fn errors(&self) -> &'static [u16];
        fn object(&self) -> &DevxObject;
        /// Whether it is in its error state.
        fn is_failed(&self) -> Result<bool, verbless_command::Error>;
    }
}

impl CqEvents {
    /// Creates a file for the completion queues of `device`.
    ///
    /// # Errors
    /// EMFILE when the process has too many files.
    pub fn new(device: &Device) -> Result<Self, Error> {
        let channel = device.event_channel(true)?;
        let verbs = device.async_event_alloc()?;
        let files = Waiter::new([channel.as_fd(), verbs.as_fd()])?;
        let device = device.clone();
        let (state, alive) = (Mutex::default(), Arc::default());
        Ok(Self { device, channel, verbs, files, state, alive })
    }

    fn state(&self) -> MutexGuard<'_, CqEventsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers the completion events of `cq`, and its errors, to this channel. [`CqEvents::wait`]
    /// returns `token` for it; it need not be unique. The queue may be dropped at any time.
    ///
    /// If the device does not support subscriptions to CQ errors, [`CqEvents::wait_for`] and
    /// [`CqEvents::completions`] query the status of the queue every second of their sleep. A
    /// program that sleeps otherwise ([`CqEvents::wait`], [`CqEvents::ready`], a reactor) must then
    /// call [`Cq::check`] by itself.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if `cq` is already on a `CqEvents`, this one or another; the
    /// kernel refuses, for example a queue of another context.
    pub fn add(&self, cq: &mut Cq, token: u64) -> Result<(), Error> {
        if cq.subscription.as_ref().is_some_and(|there| there.channel.strong_count() > 0) {
            let hint = "it was added to another CqEvents already: drop that one first";
            let attempted = format!("adding CQ {} to an event channel", cq.cqn());
            return Err(Error::new(ErrorKind::InvalidInput, attempted, hint));
        }
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        cq.subscribe(&self.channel, number << TYPE_BITS)?;
        let needs_queries = match self.subscribe(Some(cq.object().object()), number, &[CQ_ERROR]) {
            Ok(()) => false,
            Err(error) if error.errno() == Some(Errno::EINVAL) => true,
            Err(error) => return Err(error),
        };
        // An event to an earlier channel may have answered the last sequence number.
        cq.event_received();
        let reports = Arc::new(CqReports::default());
        // The CQ may have failed before, or its event went to an earlier channel.
        match cq.check() {
            Err(error) if error.kind() == ErrorKind::QueueFailed => {
                reports.unsure.store(true, Ordering::Release);
            }
            checked => checked?,
        }
        let weak = Arc::downgrade(&reports);
        let entry = SubscriptionEntry { token, cq: number, reports: weak, source: EventSource::Cq };
        state.insert(number, entry);
        let channel = Arc::downgrade(&self.alive);
        let checked = Instant::now();
        let subscription =
            Subscription { number, reports, counted: 0, needs_queries, checked, channel };
        cq.subscription = Some(subscription);
        Ok(())
    }

    /// Lets errors of `queue` (a queue pair, an SRQ, an SQ or RQ of frames) end the waits for `cq`,
    /// its completion queue: parking `cq` fails with [`ErrorKind::QueueFailed`], once for each
    /// error, after the CQEs that it holds have been polled. An error from before a reset may still
    /// be reported after it. Watch a queue pair before you split it. Most errors of a queue pair
    /// flush its requests, and so complete them; this method catches the errors that complete
    /// nothing, such as those of a queue pair whose other CQ overran.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if `cq` was not [added](CqEvents::add) here; the kernel refuses
    /// (EINVAL if the device does not report these errors).
    pub fn watch(&self, cq: &Cq, queue: &impl Watchable) -> Result<(), Error> {
        let (kind, id) = queue.name();
        let source = EventSource::Queue(kind, id, queue.life());
        let subscription = self.watch_for(cq, source, Some(queue.object()), queue.errors())?;
        // The queue may have failed before the subscription.
        if queue.is_failed()? {
            let event = event_type::WQ_CATASTROPHIC_ERROR;
            self.fail(subscription, WatchedFailure::Queue(kind, id, event, queue.life()));
        }
        Ok(())
    }

    /// Lets a port (from 1) that is not ACTIVE end the waits for `cq`: parking `cq` fails with
    /// [`ErrorKind::PortDown`], once each time that the port goes down, after the CQEs that `cq`
    /// holds have been polled. Otherwise a queue pair that only receives waits for as long as the
    /// port is down.
    ///
    /// Watch no port of a bond (LAG): the kernel delivers only the events of the first function's
    /// port, which may go down while the bond carries on over the other. Take the state of a bond
    /// from its network interface.
    ///
    /// # Errors
    /// As [`CqEvents::watch`]; [`ErrorKind::NotSupported`] for port 2 of a device that has one
    /// function per port: the kernel reports only the events of port 1.
    pub fn watch_port(&self, cq: &Cq, port: u8) -> Result<(), Error> {
        self.device.query_port(port)?;
        if port > 1 && self.device.caps().general.num_vhca_ports() > 1 {
            let attempted = format!("watching port {port} for CQ {}", cq.cqn());
            let hint = "the kernel reports only the events of port 1, as each port of this device \
                        is a function of its own (num_vhca_ports is 2)";
            return Err(Error::new(ErrorKind::NotSupported, attempted, hint));
        }
        let types = [event_type::PORT_CHANGE as u16];
        let subscription = self.watch_for(cq, EventSource::Port(port), None, &types)?;
        // The port may be down already.
        self.fail(subscription, WatchedFailure::Port(port));
        Ok(())
    }

    /// Notes a failure without an event. A thread in [`CqEvents::wait`], or the next one, gets the
    /// token of the queue.
    fn fail(&self, subscription: &Subscription, failure: WatchedFailure) {
        subscription.reports.fail(failure);
        let mut state = self.state();
        state.fired.push_back(subscription.number);
        self.hold_for_others(&mut state);
    }

    /// Keeps the file readable while tokens are left that no channel reports, or after the device
    /// has failed, so that other sleeping threads wake.
    fn hold_for_others(&self, state: &mut CqEventsState) {
        let hold = state.gone.is_some() || !state.fired.is_empty();
        self.hold(state, hold);
    }

    fn hold(&self, state: &mut CqEventsState, hold: bool) {
        match (state.held, hold) {
            (false, true) => self.files.hold(),
            (true, false) => self.files.release(),
            _ => {}
        }
        state.held = hold;
    }

    fn watch_for<'c>(
        &self,
        cq: &'c Cq,
        source: EventSource,
        object: Option<&DevxObject>,
        types: &[u16],
    ) -> Result<&'c Subscription, Error> {
        let Some(subscription) = cq.subscription.as_ref().filter(|there| self.has(there)) else {
            let attempted = format!("watching {source} for CQ {}", cq.cqn());
            return Err(Error::new(ErrorKind::InvalidInput, attempted, NOT_ADDED));
        };
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        self.subscribe(object, number, types)?;
        let cq = subscription.number;
        let token = state.queues.get(&cq).map_or(0, |entry| entry.token);
        let reports = Arc::downgrade(&subscription.reports);
        state.insert(number, SubscriptionEntry { token, cq, reports, source });
        Ok(subscription)
    }

    /// Subscribes to events of an object, or of the device, with the event type in the cookie.
    fn subscribe(
        &self,
        object: Option<&DevxObject>,
        number: u64,
        types: &[u16],
    ) -> Result<(), Error> {
        types.iter().try_for_each(|&event| {
            let cookie = number << TYPE_BITS | u64::from(event);
            self.channel.subscribe(object, &[event], cookie)
        })
    }

    /// Whether a subscription belongs to this channel.
    fn has(&self, subscription: &Subscription) -> bool {
        subscription.channel.ptr_eq(&Arc::downgrade(&self.alive))
    }

    /// Arms the queue: requests an event for the next completion, unless completions are already
    /// there.
    ///
    /// An event can come without an unpolled completion, if the completion was polled after its
    /// event was made. The poll then finds nothing, and the caller parks the queue again.
    ///
    /// An unread event keeps the file readable, and no other event comes before it is read. Before
    /// it sleeps, an edge-triggered reactor must call [`CqEvents::try_next`] until it yields
    /// `None`.
    ///
    /// # Errors
    /// [`ErrorKind::QueueFailed`] if the queue has no CQE left and none will come: it overran, or
    /// could not be written. The same, once, if a queue that it [watches](CqEvents::watch) failed.
    /// [`ErrorKind::InvalidInput`] if the queue was not [added](CqEvents::add) here.
    pub fn park(&self, cq: &mut Cq) -> Result<Parked, Error> {
        self.park_for(cq, Notify::Next)
    }

    /// Like [`park`](Self::park), but arms only for the completions that `notify` selects. `Ready`
    /// still means any completion.
    ///
    /// # Errors
    /// As [`CqEvents::park`].
    pub fn park_for(&self, cq: &mut Cq, notify: Notify) -> Result<Parked, Error> {
        let Some(subscription) = cq.subscription.as_mut().filter(|there| self.has(there)) else {
            let attempted = format!("parking CQ {}", cq.cqn());
            return Err(Error::new(ErrorKind::InvalidInput, attempted, NOT_ADDED));
        };
        // Read before the queue is checked: CQEs written before the failure come first.
        let failed = subscription.reports.may_have_failed();
        let events = subscription.reports.completions.load(Ordering::Acquire);
        // The sequence number has two bits.
        let missed = events.wrapping_sub(subscription.counted) % 4;
        subscription.counted = events;
        (0..missed).for_each(|_| cq.event_received());
        if !cq.is_empty() {
            return Ok(Parked::Ready);
        }
        if failed {
            self.check(cq)?;
        }
        cq.arm(notify);
        // A completion that arrived after the check above, and before the device saw the arm, makes
        // an event as well; but the caller need not sleep until that comes.
        Ok(if cq.is_empty() { Parked::Armed } else { Parked::Ready })
    }

    /// The token of a queue that had an event, or `None`. Call it until `None`; the descriptor then
    /// becomes readable on the next event.
    ///
    /// # Errors
    /// [`ErrorKind::DeviceGone`] when the device has failed or was removed.
    pub fn try_next(&self) -> Result<Option<u64>, Error> {
        let mut state = self.state();
        let taken = self.take(&mut state);
        self.hold_for_others(&mut state);
        taken
    }

    fn take(&self, state: &mut CqEventsState) -> Result<Option<u64>, Error> {
        loop {
            while let Some(number) = state.fired.pop_front() {
                // The CQ of an event that was read earlier may have been dropped since.
                if let Some(entry) = state.queues.get(&number) {
                    return Ok(Some(entry.token));
                }
            }
            if !self.read(state)? {
                return Ok(None);
            }
        }
    }

    /// Fails if an earlier read found that the device has failed or was removed.
    pub(crate) fn check_gone(&self) -> Result<(), Error> {
        self.state().gone.clone().map_or(Ok(()), Err)
    }

    /// Fails if the device has failed; discards the other async events of verbs.
    fn check_device(&self, gone: &mut Option<Error>) -> Result<(), Error> {
        while gone.is_none()
            && let Some(event) = self.verbs.read()?
        {
            if event == AsyncEvent::DeviceFatal {
                let hint = "its firmware or its PCI link failed (IBV_EVENT_DEVICE_FATAL), and \
                            nothing completes any more: open it again once the kernel has \
                            recovered it";
                let attempted = "waiting for events of the device";
                *gone = Some(Error::new(ErrorKind::DeviceGone, attempted, hint));
            }
        }
        gone.clone().map_or(Ok(()), Err)
    }

    /// Takes an event from the channel and counts it; false if there is none. Records that the
    /// device was removed.
    fn read(&self, state: &mut CqEventsState) -> Result<bool, Error> {
        let CqEventsState { queues, fired, gone, .. } = state;
        let read = match self.channel.read() {
            Ok(None) => self.check_device(gone).map(|()| false),
            Ok(Some(event)) => {
                let entry = queues.get(&(event.cookie >> TYPE_BITS));
                if let Some(entry) = entry.filter(|entry| entry.count(event.cookie as u8)) {
                    fired.push_back(entry.cq);
                }
                Ok(true)
            }
            // Any queue may have had a completion event or an error.
            Err(error) if error.kind() == ErrorKind::EventsLost => {
                let counted = queues.values().filter(|entry| entry.count_lost());
                fired.extend(counted.map(|entry| entry.cq));
                Ok(true)
            }
            Err(error) => Err(error),
        };
        read.map_err(|error| match error.kind() {
            ErrorKind::DeviceGone => gone.get_or_insert(error).clone(),
            _ => error,
        })
    }

    /// Sleeps until a queue has had an event, and returns its token; `None` if `timeout` passes
    /// first. Without a timeout it waits forever.
    ///
    /// Two threads that wait at the same time get different events.
    ///
    /// # Errors
    /// [`ErrorKind::DeviceGone`] when the device has failed or was removed: poll every queue a last
    /// time, because the kernel discards unread events of a removed device.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<u64>, Error> {
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(token) = self.try_next()? {
                return Ok(Some(token));
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if !self.files.wait(left)? {
                return Ok(None);
            }
        }
    }

    /// Sleeps until `cq` has completions; returns false if `timeout` passes first. Without a
    /// timeout it waits until there are some, or an event reports a failure. A queue that another
    /// thread resets or drops makes no event. Poll the queue until it is empty before the next
    /// call.
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
            let until_check = cq.subscription.as_ref().and_then(Subscription::until_check);
            let sleep = [left, until_check].into_iter().flatten().min();
            let woken = self.files.wait(sleep)?;
            if woken {
                self.collect(cq)?;
            } else if !cq.is_empty() {
                return Ok(true);
            }
            if cq.subscription.as_mut().is_some_and(Subscription::takes_check) {
                cq.check()?;
            }
            if !woken && sleep == left {
                return Ok(false);
            }
        }
    }

    /// The completions of `cq` as they come. The iterator sleeps while there is none, and ends if
    /// none comes within `timeout`. Give each to
    /// [`QueuePair::complete`](crate::QueuePair::complete) of its queue pair.
    pub fn completions<'e>(
        &'e mut self,
        cq: &'e mut Cq,
        timeout: Option<Duration>,
    ) -> Completions<'e> {
        Completions { events: self, cq, timeout }
    }

    /// Waits asynchronously until `cq` has completions. `readable` waits until the file is
    /// readable, and may return too early; an executor has to provide nothing else. A future that
    /// is dropped early loses no event.
    ///
    /// For tokio, the feature `tokio` provides all of this as `AsyncCqEvents`.
    ///
    /// # Errors
    /// As [`CqEvents::park`] and [`CqEvents::wait`]; errors of `readable`.
    pub async fn ready(
        &mut self,
        cq: &mut Cq,
        mut readable: impl AsyncFnMut() -> std::io::Result<()>,
    ) -> Result<(), Error> {
        loop {
            if self.park(cq)? == Parked::Ready {
                return Ok(());
            }
            self.check_gone()?;
            readable().await?;
            self.collect(cq)?;
        }
    }

    /// Takes every event that has come, and keeps those of other queues than `cq`.
    pub(crate) fn collect(&mut self, cq: &Cq) -> Result<(), Error> {
        let ours = cq.subscription.as_ref().map(|there| there.number);
        let mut state = self.state();
        let read = loop {
            match self.read(&mut state) {
                Ok(true) => {}
                read => break read,
            }
        };
        state.fired.retain(|&number| Some(number) != ours);
        // No other thread waits now, and the tokens of others must not keep this one awake.
        let gone = state.gone.is_some();
        self.hold(&mut state, gone);
        match read {
            // Completions from before the device's failure come first; `gone` keeps the error.
            Err(error) if error.kind() == ErrorKind::DeviceGone && !cq.is_empty() => Ok(()),
            read => read.map(drop),
        }
    }
}

#[cfg(feature = "tokio")]
impl Cq {
    /// How long a program may sleep before the next status query of this queue; `None` if an event
    /// reports its errors.
    pub(crate) fn until_check(&self) -> Option<Duration> {
        self.subscription.as_ref().and_then(Subscription::until_check)
    }

    /// Queries the status of this queue if it is due.
    pub(crate) fn check_when_due(&mut self) -> Result<(), Error> {
        if self.subscription.as_mut().is_some_and(Subscription::takes_check) {
            self.check()?;
        }
        Ok(())
    }
}

/// The hint for a queue that is not on the channel.
const NOT_ADDED: &str = "it was not added to this CqEvents: call `add` first";
/// Type of the event that a CQ overran or could not be written.
const CQ_ERROR: u16 = event_type::CQ_ERROR as u16;

impl CqEvents {
    /// Fails if the CQ, or a source that it watches, has failed.
    #[cold]
    fn check(&self, cq: &Cq) -> Result<(), Error> {
        let Some(Subscription { reports, .. }) = &cq.subscription else { return Ok(()) };
        let failed = |kind, hint: String| {
            Err(Error::new(kind, format!("waiting for CQ {}", cq.cqn()), hint))
        };
        // Cleared first: an event that comes during the query is not lost.
        if reports.unsure.swap(false, Ordering::AcqRel) {
            cq.check().inspect_err(|_| reports.unsure.store(true, Ordering::Release))?;
        }
        while let Some(failure) = reports.take_failed() {
            match failure {
                // The queue was dropped after its event came.
                _ if !failure.is_alive() => {}
                WatchedFailure::Queue(kind, number, event, _) => {
                    let what = match event {
                        event_type::WQ_INVALID_REQUEST_ERROR => "an invalid request of its peer",
                        event_type::WQ_ACCESS_ERROR => "an access violation of its peer",
                        _ => "a catastrophic error",
                    };
                    let hint = format!(
                        "{kind} {number:#x}, whose completions this CQ receives, reported {what} \
                         (event {event:#04x}): reset or destroy it"
                    );
                    return failed(ErrorKind::QueueFailed, hint);
                }
                WatchedFailure::Port(port) => {
                    let up = self.is_up(port).inspect_err(|_| reports.fail(failure))?;
                    let bit = 1 << (port & 31);
                    let down = &reports.ports_down;
                    if up {
                        down.fetch_and(!bit, Ordering::AcqRel);
                    } else if down.fetch_or(bit, Ordering::AcqRel) & bit == 0 {
                        let hint = format!(
                            "port {port} is not ACTIVE: nothing arrives until its link is up again"
                        );
                        return failed(ErrorKind::PortDown, hint);
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether the device reports the port as up. For an Ethernet port the kernel reports the state
    /// of the network interface, which changes later than the event comes.
    fn is_up(&self, port: u8) -> Result<bool, Error> {
        let attributes = self.device.query_port(port)?;
        if attributes.link_layer() != LinkLayer::Ethernet || port > 1 {
            return Ok(attributes.is_active());
        }
        Ok(self.device.query_vport_state()?.state == 1)
    }
}

impl Subscription {
    /// Time until the next status query; `None` if the device sends CQ error events.
    fn until_check(&self) -> Option<Duration> {
        self.needs_queries.then(|| CHECK_AFTER.saturating_sub(self.checked.elapsed()))
    }

    /// Whether the status query is due; if so, restarts the interval.
    fn takes_check(&mut self) -> bool {
        let due = self.until_check() == Some(Duration::ZERO);
        if due {
            self.checked = Instant::now();
        }
        due
    }
}

impl fmt::Display for EventSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cq => f.write_str("a CQ"),
            Self::Queue(kind, number, _) => write!(f, "{kind} {number:#x}"),
            Self::Port(port) => write!(f, "port {port}"),
        }
    }
}

impl WatchedFailure {
    /// Whether the source still exists.
    fn is_alive(&self) -> bool {
        match self {
            Self::Queue(.., life) => life.strong_count() > 0,
            Self::Port(_) => true,
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Queue(one, m, event, life), Self::Queue(two, n, other, other_life)) => {
                (one, m, event) == (two, n, other) && life.ptr_eq(other_life)
            }
            (Self::Port(one), Self::Port(two)) => one == two,
            _ => false,
        }
    }
}

impl CqReports {
    fn may_have_failed(&self) -> bool {
        self.unsure.load(Ordering::Acquire) || self.any_failed.load(Ordering::Acquire)
    }

    fn failures(&self) -> MutexGuard<'_, Vec<WatchedFailure>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, failure: WatchedFailure) {
        let mut failures = self.failures();
        failures.retain(WatchedFailure::is_alive);
        if !failures.iter().any(|there| there.is_same(&failure)) {
            failures.push(failure);
        }
        self.any_failed.store(true, Ordering::Release);
    }

    fn take_failed(&self) -> Option<WatchedFailure> {
        let mut failed = self.failures();
        let taken = failed.pop();
        self.any_failed.store(!failed.is_empty(), Ordering::Release);
        taken
    }
}

impl CqEventsState {
    fn insert(&mut self, number: u64, entry: SubscriptionEntry) {
        if self.queues.len() >= self.prune_at {
            self.queues.retain(|_, entry| entry.is_alive());
            self.prune_at = 2 * self.queues.len() + 16;
        }
        self.queues.insert(number, entry);
        // Reserves room so that taking an event allocates nothing: a queue makes one event per arm.
        let most = 2 * self.queues.len();
        self.fired.reserve(most.saturating_sub(self.fired.len()));
    }
}

impl SubscriptionEntry {
    fn is_alive(&self) -> bool {
        let source = match &self.source {
            EventSource::Cq | EventSource::Port(_) => true,
            EventSource::Queue(.., life) => life.strong_count() > 0,
        };
        source && self.reports.strong_count() > 0
    }

    /// Counts an event of the source; false if the CQ or the watched queue was dropped.
    fn count(&self, event: u8) -> bool {
        let Some(reports) = self.reports.upgrade() else { return false };
        match self.source {
            EventSource::Cq if event == event_type::COMPLETION => {
                reports.completions.fetch_add(1, Ordering::AcqRel);
            }
            EventSource::Cq => reports.unsure.store(true, Ordering::Release),
            // The kernel still delivers events of destroyed objects that were not read.
            EventSource::Queue(.., ref life) if life.strong_count() == 0 => return false,
            EventSource::Queue(kind, number, ref life) => {
                reports.fail(WatchedFailure::Queue(kind, number, event, life.clone()));
            }
            EventSource::Port(port) => reports.fail(WatchedFailure::Port(port)),
        }
        true
    }

    /// Counts an event that may have been lost; false if the CQ was dropped, or for another source.
    fn count_lost(&self) -> bool {
        let Some(reports) = self.reports.upgrade() else { return false };
        if !matches!(self.source, EventSource::Cq) {
            return false;
        }
        reports.completions.fetch_add(1, Ordering::AcqRel);
        reports.unsure.store(true, Ordering::Release);
        true
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
                // `poll` may still yield none: it skips CQEs of dropped queue pairs.
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl AsFd for CqEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.files.as_fd()
    }
}

/// The file, for a reactor: readable while there are events to read, and when the device fails.
/// Take tokens until [`CqEvents::try_next`] yields `None` before you sleep on it.
impl AsRawFd for CqEvents {
    fn as_raw_fd(&self) -> RawFd {
        self.files.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for CqEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CqEvents").field("fd", &self.as_raw_fd()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use verbless_devx::Backend;
    use verbless_model::{Model, Profile};
    use verbless_model_kernel::InProcess;

    use super::*;
    use crate::domain::{CqConfig, Domain};

    #[test]
    fn error_event_of_working_cq_ends_no_wait() {
        let model = Model::builder().device(Profile::load("connectx6dx").unwrap()).build();
        let backend = InProcess::of(&model);
        let device = Device::open(&backend, &backend.enumerate().unwrap()[0]).unwrap();
        let events = CqEvents::new(&device).unwrap();
        let mut cq = Domain::new(&device).unwrap().completion_queue(&CqConfig::new(16)).unwrap();
        events.add(&mut cq, 0).unwrap();
        let number = cq.subscription.as_ref().unwrap().number;
        assert!(events.state().queues[&number].count(event_type::CQ_ERROR));
        assert_eq!(events.park(&mut cq).unwrap(), Parked::Armed);
        assert!(!cq.subscription.as_ref().unwrap().reports.may_have_failed());
    }

    #[test]
    fn reports_keep_one_failure_of_each_queue() {
        let lives = [Arc::new(()), Arc::new(())];
        let failure = |kind, life: usize| {
            let life: Weak<()> = Arc::downgrade(&lives[life]);
            WatchedFailure::Queue(kind, 5, event_type::WQ_CATASTROPHIC_ERROR, life)
        };
        let reports = CqReports::default();
        for _ in 0..2 {
            [("QP", 0), ("SQ", 0), ("RQ", 0), ("QP", 1)]
                .into_iter()
                .for_each(|(kind, life)| reports.fail(failure(kind, life)));
        }
        assert_eq!(reports.failures().len(), 4);
    }

    #[test]
    fn reports_forget_failures_of_dropped_queues() {
        let reports = CqReports::default();
        for _ in 0..10 {
            let life = Arc::new(());
            let weak: Weak<()> = Arc::downgrade(&life);
            reports.fail(WatchedFailure::Queue("QP", 5, event_type::WQ_CATASTROPHIC_ERROR, weak));
        }
        assert_eq!(reports.failures().len(), 1);
    }
}
