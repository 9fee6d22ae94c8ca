//! The state of an instance, which its handle and its work queue share, and the queue pair behind
//! it.
//!
//! The queue pair is in two parts. The engine in the work queue has its queues; its states are
//! here, behind a lock that no job takes. It is made when first needed: for an export or a
//! connection, with a completion queue of its own, or when the instance is added to a work queue,
//! with the completion queue of that.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use verbless_command::AccessKey;
use verbless_queue::{Cq, CqConfig, CqTarget, ErrorKind as LowerKind, Qp, QpControl, QpQueues};

use super::blob::{ConnectionDescriptor, Fields, Nonce, describe, parse};
use super::properties::Properties;
use crate::context::core::{Core, CtxId};
use crate::device::Dev;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::Reach;

/// The state of an instance (`enum doca_rdma_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum RdmaState {
    /// The instance is not started: it is an [`RdmaBuilder`](super::RdmaBuilder).
    Reset = 0,
    /// The instance is started: it can be exported and connected, and accepts receives.
    Init = 1,
    /// The instance is connected, and accepts all jobs.
    Connected = 2,
    /// A job failed in flight, or the connection was given up: stop it to start over.
    Error = 3,
}

/// A state, and how often the instance was started until then: one word, which is compared as a
/// whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word(u32);

impl Word {
    const fn new(starts: u32, state: RdmaState) -> Self {
        Self(starts << 2 | state as u32)
    }

    pub(super) const fn state(self) -> RdmaState {
        match self.0 & 3 {
            0 => RdmaState::Reset,
            1 => RdmaState::Init,
            2 => RdmaState::Connected,
            _ => RdmaState::Error,
        }
    }

    /// How often the instance was started, modulo 2^30.
    pub(super) const fn starts(self) -> u32 {
        self.0 >> 2
    }
}

/// The id of no device; it also differs from 0, the reader of memory whose reach is unknown.
const NOBODY: u64 = u64::MAX >> 1;

/// Descriptors that an instance remembers having connected by. One from before leads nowhere all
/// the same: its queue pair is gone.
const REMEMBERED: usize = 256;

/// An instance, shared by its handle and its engine. Only the handle has the [`Core`], so that a
/// work queue notices when the handle is dropped.
#[derive(Debug)]
pub(super) struct Instance {
    dev: Dev,
    id: CtxId,
    /// A [`Word`].
    word: AtomicU32,
    /// The device's id while the engine posts sends, reads, writes and atomics after a check of
    /// their buffers alone; else [`NOBODY`]: the engine then reads the state first. The engine
    /// [opens](Instance::open) it for a state, and whoever ends that state closes it.
    sends_to: AtomicU64,
    /// Like `sends_to`, for receives.
    receives_to: AtomicU64,
    /// `sends_to` as [`Reach::reader_of_peer`] has it, for buffers of the peer's memory.
    peers_to: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    properties: Properties,
    /// The queue pair.
    live: Option<Live>,
    /// The queues, until the engine takes them.
    queues: Option<QpQueues>,
    /// The completion queue that was made with the queue pair, until a work queue takes it.
    own: Option<Cq>,
    /// The completion queue of the queue pair, and its room; `None` until it is known.
    target: Option<(CqTarget, u32)>,
    /// Its place in the work queue, while it is on one.
    place: Option<u32>,
    /// Whether the work queue was told to give back its jobs.
    given_back: bool,
    /// The nonces of the peers that it has connected to since it was made.
    seen: Vec<Nonce>,
}

#[derive(Debug)]
struct Live {
    control: QpControl,
    descriptor: ConnectionDescriptor,
    exported: bool,
}

impl Instance {
    /// A started instance.
    pub(super) fn new(core: &Core, properties: Properties) -> Self {
        let inner = Inner {
            properties,
            live: None,
            queues: None,
            own: None,
            target: None,
            place: None,
            given_back: false,
            seen: Vec::new(),
        };
        Self {
            dev: core.dev().clone(),
            id: core.id(),
            word: AtomicU32::new(Word::new(1, RdmaState::Init).0),
            sends_to: AtomicU64::new(NOBODY),
            receives_to: AtomicU64::new(NOBODY),
            peers_to: AtomicU64::new(NOBODY),
            inner: Mutex::new(inner),
        }
    }

    pub(super) fn id(&self) -> CtxId {
        self.id
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline(always)]
    pub(super) fn word(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    #[inline(always)]
    pub(super) fn sends_to(&self) -> u64 {
        self.sends_to.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn receives_to(&self) -> u64 {
        self.receives_to.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn peers_to(&self) -> u64 {
        self.peers_to.load(Ordering::Relaxed)
    }

    /// Lets jobs go to the device of this id at once, as far as the state of `word` accepts them;
    /// jobs other than receives only if `sends`.
    pub(super) fn open(&self, word: Word, device: u64, sends: bool) {
        let to = |taken, device| if taken { device } else { NOBODY };
        let connected = word.state() == RdmaState::Connected;
        let receives = connected || word.state() == RdmaState::Init;
        let sends = connected && sends;
        self.sends_to.store(to(sends, device), Ordering::SeqCst);
        self.peers_to.store(to(sends, Reach::reader_of_peer(device)), Ordering::SeqCst);
        self.receives_to.store(to(receives, device), Ordering::SeqCst);
        // Who changed it since then has closed it before it was opened, or sees it open.
        if self.word.load(Ordering::SeqCst) != word.0 {
            self.close();
        }
    }

    /// Makes the engine read the state, which has changed, before the next job.
    fn close(&self) {
        for to in [&self.sends_to, &self.peers_to, &self.receives_to] {
            to.store(NOBODY, Ordering::SeqCst);
        }
    }

    fn set(&self, word: Word) {
        self.word.store(word.0, Ordering::SeqCst);
        self.close();
    }

    fn set_state(&self, state: RdmaState) {
        self.set(Word::new(self.word().starts(), state));
    }

    /// Fails the instance if it is still in this start: its jobs are flushed.
    pub(super) fn fail(&self, starts: u32) {
        let to_error = |word| {
            let word = Word(word);
            let goes_on = matches!(word.state(), RdmaState::Init | RdmaState::Connected);
            (word.starts() == starts && goes_on).then(|| Word::new(starts, RdmaState::Error).0)
        };
        if self.word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, to_error).is_ok() {
            self.close();
        }
    }

    /// Starts the instance again after [`Instance::stop`].
    pub(super) fn restart(&self, properties: Properties) -> Result<()> {
        let mut inner = self.inner();
        let needed = properties.send_queue_size.saturating_add(properties.recv_queue_size);
        // Of a work queue's own, each job has its place there.
        if let Some((_, room)) = inner.target
            && needed > room
        {
            let text = format!(
                "send_queue_size and recv_queue_size are {needed} together, and the completion \
                 queue that the work queue took over from the instance has {room} entries: \
                 remove it from the work queue first, or choose less"
            );
            return Err(Error::new(ErrorKind::InvalidValue, text));
        }
        inner.properties = properties;
        inner.given_back = false;
        if inner.place.is_some() {
            self.make(&mut inner)?;
        }
        let starts = self.word().starts().wrapping_add(1) & (u32::MAX >> 2);
        self.set(Word::new(starts, RdmaState::Init));
        Ok(())
    }

    /// Makes the queue pair.
    fn make(&self, inner: &mut Inner) -> Result<()> {
        let domain = self.dev.domain();
        let properties = inner.properties;
        let (own, target) = match &inner.target {
            Some((target, _)) => (None, target.clone()),
            None => {
                // A job is one request, and no more of them are in flight than these.
                let entries = properties.send_queue_size + properties.recv_queue_size;
                let config = CqConfig { overcommit: true, ..CqConfig::new(entries) };
                let cq = domain.completion_queue(&config)?;
                let target = cq.target();
                (Some(cq), target)
            }
        };
        let place = inner.place.unwrap_or(self.id.likely_place());
        let qp: Qp = domain.queue_pair_towards(&properties.config(place), &target, &target)?;
        let (queues, control) = qp.with_control();
        let options = properties.options();
        control.to_init(&options)?;
        let random = AccessKey::random().map_err(|error| {
            let text = format!("drawing the number of a connection: {error}");
            Error::new(ErrorKind::OperatingSystem, text).with_source(error)
        })?;
        let descriptor = describe(&Fields {
            permissions: properties.permissions,
            nonce: std::array::from_fn(|at| random.as_bytes()[at]),
            address: control.address(domain, &options)?,
        });
        if let Some(cq) = own {
            inner.target = Some((target, cq.entries()));
            inner.own = Some(cq);
        }
        inner.live = Some(Live { control, descriptor, exported: false });
        inner.queues = Some(queues);
        Ok(())
    }

    fn live<'i>(&self, inner: &'i mut Inner) -> Result<&'i mut Live> {
        if inner.live.is_none() {
            self.make(inner)?;
        }
        let none = Error::plain(ErrorKind::Unexpected, "the instance has no queue pair");
        inner.live.as_mut().ok_or(none)
    }

    pub(super) fn export(&self) -> Result<ConnectionDescriptor> {
        let mut inner = self.inner();
        if self.word().state() == RdmaState::Error {
            let text = "the instance is in the error state: stop it, and export it when it is \
                        started again";
            return Err(Error::plain(ErrorKind::BadState, text));
        }
        let live = self.live(&mut inner)?;
        live.exported = true;
        Ok(live.descriptor)
    }

    /// Checks that the instance can be connected to a peer with this descriptor.
    fn may_connect(&self, inner: &Inner, peer: &Fields) -> Result<()> {
        let refuse = |text| Err(Error::plain(ErrorKind::BadState, text));
        match self.word().state() {
            RdmaState::Init => {}
            RdmaState::Connected => {
                return refuse("the instance is connected: stop it, and start it again");
            }
            _ => {
                return refuse(
                    "the instance is in the error state: stop it, start it again, and exchange \
                     new descriptors",
                );
            }
        }
        if inner.seen.contains(&peer.nonce) {
            let text = "the instance was connected by this descriptor before: have the peer stop, \
                        start, and export again";
            return Err(Error::plain(ErrorKind::InvalidValue, text));
        }
        Ok(())
    }

    pub(super) fn connect(&self, bytes: &[u8]) -> Result<()> {
        let peer = parse(bytes)?;
        let mut inner = self.inner();
        self.may_connect(&inner, &peer)?;
        let options = inner.properties.options();
        let control = self.live(&mut inner)?.control.clone();
        drop(inner);
        // The kernel may ask the network for the peer, and wait for an answer. Who exports, aborts
        // or removes the instance meanwhile does not wait for it.
        let domain = self.dev.domain();
        let way = control.way_to(domain, &peer.address, &options)?;
        let mut inner = self.inner();
        self.may_connect(&inner, &peer)?;
        if !inner.live.as_ref().is_some_and(|live| live.control.is(&control)) {
            let text = "the instance was taken from its work queue while the way to the peer was \
                        looked for: exchange new descriptors";
            return Err(Error::plain(ErrorKind::BadState, text));
        }
        if let Err(error) = control.connect_by(domain, &way) {
            if !control.is_in_init().unwrap_or(false) {
                // It is half way: what is posted comes back, and the peer reaches it no more.
                let _refused = control.to_error();
                self.set_state(RdmaState::Error);
            }
            return Err(error.into());
        }
        if inner.seen.len() == REMEMBERED {
            inner.seen.remove(0);
        }
        inner.seen.push(peer.nonce);
        // A peer that connected first may have failed a receive already: an error stays.
        let starts = self.word().starts();
        let (init, connected) =
            (Word::new(starts, RdmaState::Init), Word::new(starts, RdmaState::Connected));
        let moved =
            self.word.compare_exchange(init.0, connected.0, Ordering::AcqRel, Ordering::Acquire);
        if moved.is_err() {
            let text = "the connection failed while it was made, by what the peer sent: stop the \
                        instance, start it again, and exchange new descriptors";
            return Err(Error::plain(ErrorKind::BadState, text));
        }
        Ok(())
    }

    /// Stops the instance. The jobs in flight come back from the work queue.
    pub(super) fn stop(&self) -> Result<()> {
        let mut inner = self.inner();
        if let Some(live) = &inner.live {
            match live.control.to_error() {
                _ if inner.given_back => {}
                // What is gone is connected to nobody.
                Err(error) if error.kind() == LowerKind::DeviceGone => {
                    if inner.place.is_some() {
                        let text = "the device is gone, and flushes nothing: abort the instance \
                                    on its work queue, and stop it then";
                        return Err(Error::plain(ErrorKind::Shutdown, text).with_source(error));
                    }
                }
                ended => ended?,
            }
        }
        inner.live = None;
        inner.queues = None;
        if inner.place.is_none() {
            (inner.own, inner.target) = (None, None);
        }
        self.set_state(RdmaState::Reset);
        Ok(())
    }

    /// Called when the handle is dropped. A stopped instance has no queue pair.
    pub(super) fn abandon(&self) {
        let inner = self.inner();
        if let Some(live) = &inner.live
            && inner.place.is_some()
            && !inner.given_back
        {
            // What the device refuses is no worse than before.
            let _refused = live.control.to_error();
            drop(inner);
            self.fail(self.word().starts());
        }
    }

    /// Ends the current start: no more jobs are accepted. The work queue may still have the queue
    /// pair of an earlier start.
    pub(super) fn abort(&self) {
        self.give_back(self.inner());
    }

    /// Ends the start of this number only: if the instance has since been stopped and started
    /// again, the new start goes on.
    pub(super) fn abort_start(&self, starts: u32) {
        let inner = self.inner();
        // It changes under the lock alone.
        if self.word().starts() == starts {
            self.give_back(inner);
        }
    }

    fn give_back(&self, mut inner: MutexGuard<'_, Inner>) {
        inner.given_back = true;
        if let Some(live) = &inner.live {
            // The engine tells of a device that refuses.
            let _refused = live.control.to_error();
        }
        let starts = self.word().starts();
        drop(inner);
        self.fail(starts);
    }

    /// The completion queue that was made with the queue pair, if no work queue has taken it.
    pub(super) fn brings(&self) -> Result<Option<Cq>> {
        let mut inner = self.inner();
        if !matches!(self.word().state(), RdmaState::Init | RdmaState::Connected) {
            let text = "the instance is in the error state, or stopped: start it again, then add \
                        the work queue";
            return Err(Error::plain(ErrorKind::BadState, text));
        }
        Ok(inner.own.take())
    }

    /// Attaches the instance to a place of a work queue, whose completion queue is `cq`.
    pub(super) fn attach(&self, place: u32, cq: &Cq) -> Result<(QpQueues, Word, Properties)> {
        let mut inner = self.inner();
        if let Some((target, _)) = &inner.target {
            if !target.is(cq) {
                let text = "adding the instance to a work queue failed before: stop it, and start \
                            it again";
                return Err(Error::plain(ErrorKind::BadState, text));
            }
        } else {
            // There each job of the work queue has its place.
            inner.target = Some((cq.target(), u32::MAX));
        }
        inner.place = Some(place);
        let made = self.live(&mut inner).map(drop);
        let Some(queues) = made.map(|()| inner.queues.take()).inspect_err(|_| {
            (inner.place, inner.target) = (None, None);
        })?
        else {
            let text = "the instance has given its queues away";
            return Err(Error::plain(ErrorKind::Unexpected, text));
        };
        Ok((queues, self.word(), inner.properties))
    }

    /// The queues of the current start, if there are new ones, with what they are for.
    pub(super) fn take_queues(&self) -> Option<(QpQueues, Word, Properties)> {
        let mut inner = self.inner();
        let queues = inner.queues.take()?;
        Some((queues, self.word(), inner.properties))
    }

    /// Detaches the instance from its work queue: its connection is gone.
    pub(super) fn detach(&self) {
        let mut inner = self.inner();
        let live = inner.live.take();
        inner.queues = None;
        (inner.own, inner.target, inner.place) = (None, None, None);
        let known =
            live.is_some_and(|live| live.exported) || self.word().state() == RdmaState::Connected;
        if known {
            self.fail(self.word().starts());
        }
    }
}
