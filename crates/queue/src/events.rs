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
//! What stops makes an event too: a CQ that overran or could not be written, another queue with a
//! catastrophic error that the CQ [watches](CqEvents::watch), a [port](CqEvents::watch_port) that
//! goes down. [`CqEvents::wait`] then returns the CQ's token, and parking that CQ fails, once the
//! CQEs that it holds have been polled. So a loop over events ends, and does not wait for
//! completions that cannot come.
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

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use verbless_command::{Device, Error, ErrorKind};
use verbless_devx::{DevxObject, Errno, EventChannel, LinkLayer};
use verbless_prm::hot::event_type;

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

/// The completion events of any number of completion queues of one device, and their errors, as one
/// file.
///
/// It may be shared: one thread sleeps in [`CqEvents::wait`] and hands tokens to others, which poll
/// and park the queues that they own. [`CqEvents::wait_for`] and what is built on it take it
/// exclusively, since they also read the events of other queues; these are kept for
/// [`CqEvents::wait`].
pub struct CqEvents {
    device: Device,
    channel: EventChannel,
    state: Mutex<State>,
    /// Queues hold a weak reference to it: it tells them which channel they are on, and whether
    /// that still exists.
    alive: Arc<()>,
}

/// A cookie is the number of an entry, and the type of the event in its lowest byte.
const TYPE_BITS: u32 = 8;

/// How long a wait sleeps at a time where the device reports no CQ errors, which it then asks for.
const CHECK_AFTER: Duration = Duration::from_secs(1);

#[derive(Default)]
struct State {
    /// The number of the next entry.
    next: u64,
    /// The CQs, and the queues that they watch, by the numbers in the cookies of their
    /// subscriptions.
    queues: HashMap<u64, Entry>,
    /// When this many queues are registered, the entries of dropped ones are removed.
    prune_at: usize,
    /// Numbers of CQs whose events were read and counted, and not handed out.
    fired: VecDeque<u64>,
}

struct Entry {
    /// What [`CqEvents::wait`] returns for the CQ.
    token: u64,
    /// The entry of the CQ: this one, or that of the CQ that watches the queue.
    cq: u64,
    reports: Weak<Reports>,
    source: Source,
}

/// What a subscription is to.
enum Source {
    Cq,
    /// A queue that a CQ watches: its kind, its number, and what lives as long as it.
    Queue(&'static str, u32, Weak<dyn Any + Send + Sync>),
    /// A port that a CQ watches, from 1.
    Port(u8),
}

/// What a CQ watches, with an error that it reported.
#[derive(Clone)]
enum Failure {
    /// Kind and number of the queue, type of the event, and what lives as long as the queue.
    Queue(&'static str, u32, u8, Weak<dyn Any + Send + Sync>),
    /// The port changed its state.
    Port(u8),
}

/// What was read of a CQ. Owned by its [`Subscription`], and known to the `CqEvents`.
#[derive(Default)]
struct Reports {
    /// Completion events.
    completions: AtomicU32,
    /// The device reported an error of the CQ.
    cq_failed: AtomicBool,
    /// Events were lost, which may have been errors.
    unsure: AtomicBool,
    /// There is something in `failed`.
    any_failed: AtomicBool,
    /// Ports that were reported as down, by their bits.
    ports_down: AtomicU32,
    failed: Mutex<Vec<Failure>>,
}

/// A completion queue's subscription to the [`CqEvents`] that it was added to.
pub(crate) struct Subscription {
    number: u64,
    reports: Arc<Reports>,
    /// How many of the events the queue's arm sequence number has counted.
    counted: u32,
    /// The device reports no errors of CQs.
    mute: bool,
    /// When the status of a mute one was last asked for.
    checked: Instant,
    /// The channel, as long as it lives.
    channel: Weak<()>,
}

/// A queue whose catastrophic errors end the waits of a completion queue: see [`CqEvents::watch`].
pub trait Watchable: sealed::Sealed {}

pub(crate) mod sealed {
    use std::any::Any;
    use std::sync::Weak;

    use verbless_devx::DevxObject;

    pub trait Sealed {
        /// What kind of queue it is, and its number.
        fn name(&self) -> (&'static str, u32);
        /// What lives as long as the queue.
        fn life(&self) -> Weak<dyn Any + Send + Sync>;
        /// Types of the events that say that it failed.
        fn errors(&self) -> &'static [u16];
        fn object(&self) -> &DevxObject;
        /// Whether it is in its error state.
        fn is_failed(&self) -> Result<bool, verbless_command::Error>;
    }
}

impl CqEvents {
    /// A file for the completion queues of `device`.
    ///
    /// # Errors
    /// EMFILE when the process has too many files.
    pub fn new(device: &Device) -> Result<Self, Error> {
        let channel = device.event_channel(true)?;
        let device = device.clone();
        Ok(Self { device, channel, state: Mutex::default(), alive: Arc::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers the completion events of `cq`, and its errors, to this channel. `token` is what
    /// [`CqEvents::wait`] returns for it; it need not be unique. The queue may be dropped at any
    /// time.
    ///
    /// Where the device lets no program subscribe to CQ errors, [`CqEvents::wait_for`] and
    /// [`CqEvents::completions`] ask for the status of the queue every second that they sleep. A
    /// program that sleeps otherwise ([`CqEvents::wait`], [`CqEvents::ready`], a reactor) has to
    /// ask by itself there ([`Cq::check`]).
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
        let number = state.next;
        state.next += 1;
        cq.subscribe(&self.channel, number << TYPE_BITS)?;
        let mute = match self.subscribe(Some(cq.object().object()), number, &[CQ_ERROR]) {
            Ok(()) => false,
            Err(error) if error.errno() == Some(Errno::EINVAL) => true,
            Err(error) => return Err(error),
        };
        // An event that went to a channel of before may have answered the last sequence number.
        cq.event_received();
        let reports = Arc::new(Reports::default());
        // It may have failed before, or its event went to a channel of before.
        match cq.check() {
            Err(error) if error.kind() == ErrorKind::QueueFailed => {
                reports.cq_failed.store(true, Ordering::Release);
            }
            checked => checked?,
        }
        let weak = Arc::downgrade(&reports);
        let entry = Entry { token, cq: number, reports: weak, source: Source::Cq };
        state.insert(number, entry);
        let channel = Arc::downgrade(&self.alive);
        let checked = Instant::now();
        let subscription = Subscription { number, reports, counted: 0, mute, checked, channel };
        cq.subscription = Some(subscription);
        Ok(())
    }

    /// Lets errors of `queue` (a queue pair, an SRQ, an SQ or RQ of frames) end the waits for `cq`,
    /// in which it completes: parking `cq` fails with [`ErrorKind::QueueFailed`], once for each
    /// error, when the CQEs that it holds have been polled. An error from before a reset may still
    /// be reported after it. Of a queue pair that is split, watch the whole before. Most errors of
    /// a queue pair flush its requests, and so complete them; this is for those that complete
    /// nothing, such as those of a queue pair whose other CQ overran.
    ///
    /// # Errors
    /// [`ErrorKind::Input`] if `cq` was not [added](CqEvents::add) here; the kernel's refusal:
    /// EINVAL where the device does not report these errors.
    pub fn watch(&self, cq: &Cq, queue: &impl Watchable) -> Result<(), Error> {
        let (kind, id) = queue.name();
        let source = Source::Queue(kind, id, queue.life());
        let subscription = self.watch_for(cq, source, Some(queue.object()), queue.errors())?;
        // Its event may have come before.
        if queue.is_failed()? {
            let event = event_type::WQ_CATASTROPHIC_ERROR;
            self.fail(subscription, Failure::Queue(kind, id, event, queue.life()));
        }
        Ok(())
    }

    /// Lets a port (from 1) that is not ACTIVE end the waits for `cq`: parking `cq` fails with
    /// [`ErrorKind::PortDown`], once each time that it goes down, when the CQEs that it holds have
    /// been polled. A queue pair that only receives would wait for as long as the port is down.
    ///
    /// # Errors
    /// As [`CqEvents::watch`]; [`ErrorKind::NotSupported`] for port 2 of a device whose ports are
    /// functions of their own: the kernel reports those of port 1 alone.
    pub fn watch_port(&self, cq: &Cq, port: u8) -> Result<(), Error> {
        self.device.query_port(port)?;
        if port > 1 && self.device.caps().general.num_vhca_ports() > 1 {
            let attempted = format!("watching port {port} for CQ {}", cq.cqn());
            let hint = "the kernel reports the events of port 1 alone, as each port of this device \
                        is a function of its own (num_vhca_ports is 2)";
            return Err(Error::new(ErrorKind::NotSupported, attempted, hint));
        }
        let types = [event_type::PORT_CHANGE as u16];
        let subscription = self.watch_for(cq, Source::Port(port), None, &types)?;
        // It may be down already.
        self.fail(subscription, Failure::Port(port));
        Ok(())
    }

    /// Notes a failure that no event told of. A thread that calls [`CqEvents::wait`] next gets the
    /// token of the queue.
    fn fail(&self, subscription: &Subscription, failure: Failure) {
        subscription.reports.fail(failure);
        self.state().fired.push_back(subscription.number);
    }

    fn watch_for<'c>(
        &self,
        cq: &'c Cq,
        source: Source,
        object: Option<&DevxObject>,
        types: &[u16],
    ) -> Result<&'c Subscription, Error> {
        let Some(subscription) = cq.subscription.as_ref().filter(|there| self.has(there)) else {
            let attempted = format!("watching {source} for CQ {}", cq.cqn());
            return Err(Error::new(ErrorKind::Input, attempted, NOT_ADDED));
        };
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        self.subscribe(object, number, types)?;
        let cq = subscription.number;
        let token = state.queues.get(&cq).map_or(0, |entry| entry.token);
        let reports = Arc::downgrade(&subscription.reports);
        state.insert(number, Entry { token, cq, reports, source });
        Ok(subscription)
    }

    /// Subscribes to events of an object, or of the device, so that each comes with its type in the
    /// cookie.
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

    /// Whether a subscription is to this channel.
    fn has(&self, subscription: &Subscription) -> bool {
        subscription.channel.ptr_eq(&Arc::downgrade(&self.alive))
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
    /// [`ErrorKind::QueueFailed`] if the queue has no CQE left and none will come: it overran, or
    /// could not be written; once, if a queue that it [watches](CqEvents::watch) failed.
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
        let Some(subscription) = cq.subscription.as_mut().filter(|there| self.has(there)) else {
            let attempted = format!("parking CQ {}", cq.cqn());
            return Err(Error::new(ErrorKind::Input, attempted, NOT_ADDED));
        };
        // Before the look at the queue: what was written before it failed comes first.
        let failed = subscription.reports.may_have_failed();
        let events = subscription.reports.completions.load(Ordering::Acquire);
        // Two bits of it are the sequence number.
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
            while let Some(number) = state.fired.pop_front() {
                // A queue may be gone whose event was read before.
                if let Some(entry) = state.queues.get(&number) {
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
                let entry = queues.get(&(event.cookie >> TYPE_BITS));
                if let Some(entry) = entry.filter(|entry| entry.count(event.cookie as u8)) {
                    fired.push_back(entry.cq);
                }
            }
            // Any queue may have had one, or an error.
            Err(error) if error.kind() == ErrorKind::EventsLost => {
                let counted = queues.values().filter(|entry| entry.count_lost());
                fired.extend(counted.map(|entry| entry.cq));
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
    /// waits until there are some, or none can come any more. Poll the queue until it is empty
    /// before the next call.
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
            let woken = self.channel.wait(sleep)?;
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
        let ours = cq.subscription.as_ref().map(|there| there.number);
        let mut state = self.state();
        while self.read(&mut state)? {}
        state.fired.retain(|&number| Some(number) != ours);
        Ok(())
    }
}

/// The hint for a queue that is not on the channel.
const NOT_ADDED: &str = "it was not added to this CqEvents: call `add` first";
/// Type of the event that a CQ overran or could not be written.
const CQ_ERROR: u16 = event_type::CQ_ERROR as u16;

impl CqEvents {
    /// Fails if the CQ, or something that it watches, has failed.
    #[cold]
    fn check(&self, cq: &Cq) -> Result<(), Error> {
        let Some(Subscription { reports, .. }) = &cq.subscription else { return Ok(()) };
        let failed = |kind, hint: String| {
            Err(Error::new(kind, format!("waiting for CQ {}", cq.cqn()), hint))
        };
        if reports.cq_failed.load(Ordering::Acquire) {
            cq.check()?;
            // The device said so once.
            let hint = "the device reported an error of it (event 0x04): make it again";
            return failed(ErrorKind::QueueFailed, hint.into());
        }
        while let Some(failure) = reports.take_failed() {
            match failure {
                // It was dropped after the event came.
                Failure::Queue(.., ref life) if life.strong_count() == 0 => {}
                Failure::Queue(kind, number, event, _) => {
                    let what = match event {
                        event_type::WQ_INVALID_REQUEST_ERROR => "an invalid request of its peer",
                        event_type::WQ_ACCESS_ERROR => "an access violation of its peer",
                        _ => "a catastrophic error",
                    };
                    let hint = format!(
                        "{kind} {number:#x}, which completes in it, reported {what} (event \
                         {event:#04x}): reset or destroy it"
                    );
                    return failed(ErrorKind::QueueFailed, hint);
                }
                Failure::Port(port) => {
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
        if reports.unsure.load(Ordering::Acquire) {
            cq.check()?;
            reports.unsure.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Whether a port is up by what the device says. The kernel's word for an Ethernet port is its
    /// network interface's, which changes later than the event comes.
    fn is_up(&self, port: u8) -> Result<bool, Error> {
        let attributes = self.device.query_port(port)?;
        if attributes.link_layer() != LinkLayer::Ethernet || port > 1 {
            return Ok(attributes.is_active());
        }
        Ok(self.device.query_vport_state()?.state == 1)
    }
}

impl Subscription {
    /// How long until the status of a mute CQ is to be asked for; `None` of others.
    fn until_check(&self) -> Option<Duration> {
        self.mute.then(|| CHECK_AFTER.saturating_sub(self.checked.elapsed()))
    }

    /// Whether the status is to be asked for now; the time begins anew then.
    fn takes_check(&mut self) -> bool {
        let due = self.until_check() == Some(Duration::ZERO);
        if due {
            self.checked = Instant::now();
        }
        due
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cq => f.write_str("a CQ"),
            Self::Queue(kind, number, _) => write!(f, "{kind} {number:#x}"),
            Self::Port(port) => write!(f, "port {port}"),
        }
    }
}

impl Failure {
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Queue(_, one, kind, _), Self::Queue(_, two, other, _)) => {
                (one, kind) == (two, other)
            }
            (Self::Port(one), Self::Port(two)) => one == two,
            _ => false,
        }
    }
}

impl Reports {
    fn may_have_failed(&self) -> bool {
        let Self { cq_failed, unsure, any_failed, .. } = self;
        [cq_failed, unsure, any_failed].iter().any(|flag| flag.load(Ordering::Acquire))
    }

    fn failures(&self) -> MutexGuard<'_, Vec<Failure>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, failure: Failure) {
        let mut failures = self.failures();
        if !failures.iter().any(|there| there.is_same(&failure)) {
            failures.push(failure);
        }
        self.any_failed.store(true, Ordering::Release);
    }

    fn take_failed(&self) -> Option<Failure> {
        let mut failed = self.failures();
        let taken = failed.pop();
        self.any_failed.store(!failed.is_empty(), Ordering::Release);
        taken
    }
}

impl State {
    fn insert(&mut self, number: u64, entry: Entry) {
        if self.queues.len() >= self.prune_at {
            self.queues.retain(|_, entry| entry.is_alive());
            self.prune_at = 2 * self.queues.len() + 16;
        }
        self.queues.insert(number, entry);
        // So that to take an event allocates nothing: a queue makes one for each time it was armed.
        let most = 2 * self.queues.len();
        self.fired.reserve(most.saturating_sub(self.fired.len()));
    }
}

impl Entry {
    fn is_alive(&self) -> bool {
        let source = match &self.source {
            Source::Cq | Source::Port(_) => true,
            Source::Queue(.., life) => life.strong_count() > 0,
        };
        source && self.reports.strong_count() > 0
    }

    /// Counts an event of the queue; false if the CQ is gone.
    fn count(&self, event: u8) -> bool {
        let Some(reports) = self.reports.upgrade() else { return false };
        match self.source {
            Source::Cq if event == event_type::COMPLETION => {
                reports.completions.fetch_add(1, Ordering::AcqRel);
            }
            Source::Cq => reports.cq_failed.store(true, Ordering::Release),
            // The kernel keeps events of objects that are gone.
            Source::Queue(.., ref life) if life.strong_count() == 0 => return false,
            Source::Queue(kind, number, ref life) => {
                reports.fail(Failure::Queue(kind, number, event, life.clone()));
            }
            Source::Port(port) => reports.fail(Failure::Port(port)),
        }
        true
    }

    /// Counts an event that may have been lost; false if it was none of a CQ that is there.
    fn count_lost(&self) -> bool {
        let Some(reports) = self.reports.upgrade() else { return false };
        if !matches!(self.source, Source::Cq) {
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
