//! The state of an RDMA instance, shared by its handle and its work queue, and its queue pair.
//!
//! The queue pair is split: the engine in the work queue has its SQ and RQ; its state changes are
//! here, behind a lock that no job takes. It is created on first need: for an export or a
//! connection, with a completion queue of its own, or when the instance is added to a work queue,
//! with the work queue's completion queue.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use verbless_command::AccessKey;
use verbless_queue::{Cq, CqConfig, CqTarget, ErrorKind as LowerKind, Qp, QpControl};

use super::blob::{ConnectionDescriptor, DescriptorFields, Nonce, describe, parse};
use super::job_queue::StartQueues;
use super::properties::Properties;
use crate::context::core::{Core, CtxId};
use crate::device::Dev;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::CachedKey;

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
    /// A job failed in flight, or the connection was aborted: stop it to start over.
    Error = 3,
}

/// A state, and the count of starts so far: one word, compared as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StateWord(u32);

impl StateWord {
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

    /// Count of starts, modulo 2^30.
    pub(super) const fn starts(self) -> u32 {
        self.0 >> 2
    }
}

/// The id of no device; it also differs from 0, the reader in [`CachedKey::UNKNOWN`].
const NO_DEVICE: u64 = u64::MAX >> 1;

/// Maximum number of stored nonces. Older descriptors cannot connect anyway: their queue pairs are
/// destroyed.
const MAX_SEEN_NONCES: usize = 256;

/// An instance, shared by its handle and its engine. Only the handle has the [`Core`], so that a
/// work queue notices the drop of the handle.
#[derive(Debug)]
pub(super) struct Instance {
    dev: Dev,
    id: CtxId,
    /// A [`StateWord`].
    word: AtomicU32,
    /// The device's id while the engine may post sends, reads, writes and atomics without reading
    /// the state; else [`NO_DEVICE`]. The engine [opens](Instance::open) it for a state; the code
    /// that ends that state closes it.
    send_device: AtomicU64,
    /// Like `send_device`, for receives.
    receive_device: AtomicU64,
    /// `send_device` as a [`CachedKey::reader_of_peer`], for buffers of the peer's memory.
    peer_device: AtomicU64,
    inner: Mutex<InstanceInner>,
}

#[derive(Debug)]
struct InstanceInner {
    properties: Properties,
    /// The queue pair.
    qp: Option<LiveQp>,
    /// The queues, until the engine takes them.
    queues: Option<StartQueues>,
    /// The queues of an earlier start, which the engine has exchanged. The next call of the handle
    /// drops them, which frees memory and destroys the queue pair.
    retired_queues: Option<StartQueues>,
    /// The completion queue created with the queue pair, until a work queue takes it.
    own: Option<Cq>,
    /// The completion queue of the queue pair, and its number of entries; `None` until it is known.
    target: Option<(CqTarget, u32)>,
    /// The instance's slot in its work queue, while it is added to one.
    slot: Option<u32>,
    /// Whether this start was aborted: the work queue returns its jobs.
    aborted: bool,
    /// The nonces of the peers that the instance has connected to since its creation.
    seen_nonces: Vec<Nonce>,
}

#[derive(Debug)]
struct LiveQp {
    control: QpControl,
    descriptor: ConnectionDescriptor,
    exported: bool,
}

impl Instance {
    /// A started instance.
    pub(super) fn new(core: &Core, properties: Properties) -> Self {
        let inner = InstanceInner {
            properties,
            qp: None,
            queues: None,
            retired_queues: None,
            own: None,
            target: None,
            slot: None,
            aborted: false,
            seen_nonces: Vec::new(),
        };
        Self {
            dev: core.dev().clone(),
            id: core.id(),
            word: AtomicU32::new(StateWord::new(1, RdmaState::Init).0),
            send_device: AtomicU64::new(NO_DEVICE),
            receive_device: AtomicU64::new(NO_DEVICE),
            peer_device: AtomicU64::new(NO_DEVICE),
            inner: Mutex::new(inner),
        }
    }

    pub(super) fn id(&self) -> CtxId {
        self.id
    }

    fn inner(&self) -> MutexGuard<'_, InstanceInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline(always)]
    pub(super) fn word(&self) -> StateWord {
        StateWord(self.word.load(Ordering::Acquire))
    }

    #[inline(always)]
    pub(super) fn send_device(&self) -> u64 {
        self.send_device.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn receive_device(&self) -> u64 {
        self.receive_device.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn peer_device(&self) -> u64 {
        self.peer_device.load(Ordering::Relaxed)
    }

    /// Lets the engine post the jobs that the state of `word` accepts to the device of this id,
    /// without reading the state for each. Without `sends`, only receives.
    pub(super) fn open(&self, word: StateWord, device: u64, sends: bool) {
        let to = |taken, device| if taken { device } else { NO_DEVICE };
        let connected = word.state() == RdmaState::Connected;
        let receives = connected || word.state() == RdmaState::Init;
        let sends = connected && sends;
        self.send_device.store(to(sends, device), Ordering::SeqCst);
        self.peer_device.store(to(sends, CachedKey::reader_of_peer(device)), Ordering::SeqCst);
        self.receive_device.store(to(receives, device), Ordering::SeqCst);
        // A thread that changed the state since then has closed it before this opened it, or sees
        // it open.
        if self.word.load(Ordering::SeqCst) != word.0 {
            self.close();
        }
    }

    /// Makes the engine read the changed state before the next job.
    fn close(&self) {
        for to in [&self.send_device, &self.peer_device, &self.receive_device] {
            to.store(NO_DEVICE, Ordering::SeqCst);
        }
    }

    fn set(&self, word: StateWord) {
        self.word.store(word.0, Ordering::SeqCst);
        self.close();
    }

    fn set_state(&self, state: RdmaState) {
        self.set(StateWord::new(self.word().starts(), state));
    }

    /// Moves the instance to the error state if `starts` is its current start: its jobs are
    /// flushed.
    pub(super) fn fail(&self, starts: u32) {
        let to_error = |word| {
            let word = StateWord(word);
            let continues = matches!(word.state(), RdmaState::Init | RdmaState::Connected);
            (word.starts() == starts && continues)
                .then(|| StateWord::new(starts, RdmaState::Error).0)
        };
        if self.word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, to_error).is_ok() {
            self.close();
        }
    }

    /// Restarts the instance after [`Instance::stop`].
    pub(super) fn restart(&self, properties: Properties) -> Result<()> {
        let mut inner = self.inner();
        inner.retired_queues = None;
        let needed = properties.send_queue_size.saturating_add(properties.recv_queue_size);
        // The work queue's own completion queue has an entry for each job; one that it took over
        // from the instance may be too small for larger queues.
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
        inner.aborted = false;
        if inner.slot.is_some() {
            self.create_qp(&mut inner)?;
        }
        let starts = self.word().starts().wrapping_add(1) & (u32::MAX >> 2);
        self.set(StateWord::new(starts, RdmaState::Init));
        Ok(())
    }

    /// Creates the queue pair.
    fn create_qp(&self, inner: &mut InstanceInner) -> Result<()> {
        let domain = self.dev.domain();
        let properties = inner.properties;
        let (own, target) = match &inner.target {
            Some((target, _)) => (None, target.clone()),
            None => {
                // A job is one request: the queues never have more in flight than entries.
                let entries = properties.send_queue_size + properties.recv_queue_size;
                let config = CqConfig { overcommit: true, ..CqConfig::new(entries) };
                let cq = domain.completion_queue(&config)?;
                let target = cq.target();
                (Some(cq), target)
            }
        };
        let slot = inner.slot.unwrap_or(self.id.likely_slot());
        let qp: Qp = domain.queue_pair_towards(&properties.config(slot), &target, &target)?;
        let (queues, control) = qp.with_control();
        let options = properties.options();
        control.to_init(&options)?;
        let random = AccessKey::random().map_err(|error| {
            let text = format!("generating the nonce of a connection: {error}");
            Error::new(ErrorKind::OperatingSystem, text).with_source(error)
        })?;
        let descriptor = describe(&DescriptorFields {
            permissions: properties.permissions,
            nonce: std::array::from_fn(|at| random.as_bytes()[at]),
            address: control.address(domain, &options)?,
        });
        if let Some(cq) = own {
            inner.target = Some((target, cq.entries()));
            inner.own = Some(cq);
        }
        inner.qp = Some(LiveQp { control, descriptor, exported: false });
        inner.queues = Some(StartQueues::new(queues, &properties));
        Ok(())
    }

    fn qp<'i>(&self, inner: &'i mut InstanceInner) -> Result<&'i mut LiveQp> {
        if inner.qp.is_none() {
            self.create_qp(inner)?;
        }
        let none = Error::plain(ErrorKind::Unexpected, "the instance has no queue pair");
        inner.qp.as_mut().ok_or(none)
    }

    pub(super) fn export(&self) -> Result<ConnectionDescriptor> {
        let mut inner = self.inner();
        inner.retired_queues = None;
        if self.word().state() == RdmaState::Error {
            let text = "the instance is in the error state: stop it, and export it when it is \
                        started again";
            return Err(Error::plain(ErrorKind::BadState, text));
        }
        let qp = self.qp(&mut inner)?;
        qp.exported = true;
        Ok(qp.descriptor)
    }

    /// Checks that the instance can be connected to a peer with this descriptor.
    fn may_connect(&self, inner: &InstanceInner, peer: &DescriptorFields) -> Result<()> {
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
        if inner.seen_nonces.contains(&peer.nonce) {
            let text = "the instance was connected by this descriptor before: have the peer stop, \
                        start, and export again";
            return Err(Error::plain(ErrorKind::InvalidValue, text));
        }
        Ok(())
    }

    pub(super) fn connect(&self, bytes: &[u8]) -> Result<()> {
        let peer = parse(bytes)?;
        let mut inner = self.inner();
        inner.retired_queues = None;
        self.may_connect(&inner, &peer)?;
        let options = inner.properties.options();
        let control = self.qp(&mut inner)?.control.clone();
        drop(inner);
        // Without the lock: the kernel may wait for address resolution, and an export, abort or
        // removal of the instance must not.
        let domain = self.dev.domain();
        let path = control.resolve_path(domain, &peer.address, &options)?;
        let mut inner = self.inner();
        self.may_connect(&inner, &peer)?;
        if !inner.qp.as_ref().is_some_and(|qp| qp.control.is(&control)) {
            let text = "the instance was removed from its work queue while the path to the peer \
                        was resolved: exchange new descriptors";
            return Err(Error::plain(ErrorKind::BadState, text));
        }
        if let Err(error) = control.connect_over(domain, &path) {
            if !control.is_in_init().unwrap_or(false) {
                // The connection is incomplete: posted requests come back, and the peer cannot
                // reach it.
                let _refused = control.to_error();
                self.set_state(RdmaState::Error);
            }
            return Err(error.into());
        }
        if inner.seen_nonces.len() == MAX_SEEN_NONCES {
            inner.seen_nonces.remove(0);
        }
        inner.seen_nonces.push(peer.nonce);
        // A peer that connected first may already have failed a receive: the error state stays.
        let starts = self.word().starts();
        let (init, connected) =
            (StateWord::new(starts, RdmaState::Init), StateWord::new(starts, RdmaState::Connected));
        let moved =
            self.word.compare_exchange(init.0, connected.0, Ordering::AcqRel, Ordering::Acquire);
        if moved.is_err() {
            let text = "packets of the peer failed the connection during its setup: stop the \
                        instance, start it again, and exchange new descriptors";
            return Err(Error::plain(ErrorKind::BadState, text));
        }
        Ok(())
    }

    /// Stops the instance. The work queue returns the jobs in flight.
    pub(super) fn stop(&self) -> Result<()> {
        let mut inner = self.inner();
        inner.retired_queues = None;
        if let Some(qp) = &inner.qp {
            match qp.control.to_error() {
                _ if inner.aborted => {}
                // On a removed device nothing is connected.
                Err(error) if error.kind() == LowerKind::DeviceGone => {
                    if inner.slot.is_some() {
                        let text = "the device is gone, and flushes nothing: abort the instance \
                                    on its work queue, and stop it then";
                        return Err(Error::plain(ErrorKind::Shutdown, text).with_source(error));
                    }
                }
                ended => ended?,
            }
        }
        inner.qp = None;
        inner.queues = None;
        if inner.slot.is_none() {
            (inner.own, inner.target) = (None, None);
        }
        self.set_state(RdmaState::Reset);
        Ok(())
    }

    /// Called at the drop of the handle. A stopped instance has no queue pair.
    pub(super) fn abandon(&self) {
        let inner = self.inner();
        if let Some(qp) = &inner.qp
            && inner.slot.is_some()
            && !inner.aborted
        {
            // A refusal of the device changes nothing.
            let _refused = qp.control.to_error();
            drop(inner);
            self.fail(self.word().starts());
        }
    }

    /// Ends the current start: no more jobs are accepted. The work queue may still have the queue
    /// pair of an earlier start.
    pub(super) fn abort(&self) {
        self.abort_locked(self.inner());
    }

    /// Ends the start of this number only: if the instance was restarted since, the new start
    /// continues.
    pub(super) fn abort_start(&self, starts: u32) {
        let inner = self.inner();
        // The count changes only under the lock.
        if self.word().starts() == starts {
            self.abort_locked(inner);
        }
    }

    /// Whether [`stop`](Self::stop) ended the start of this number.
    pub(super) fn was_stopped_since(&self, starts: u32) -> bool {
        let word = self.word();
        word.starts() != starts || word.state() == RdmaState::Reset
    }

    fn abort_locked(&self, mut inner: MutexGuard<'_, InstanceInner>) {
        inner.aborted = true;
        if let Some(qp) = &inner.qp {
            // The engine reports a refusal of the device.
            let _refused = qp.control.to_error();
        }
        let starts = self.word().starts();
        drop(inner);
        self.fail(starts);
    }

    /// The completion queue created with the queue pair, unless a work queue has taken it.
    pub(super) fn own_cq(&self) -> Result<Option<Cq>> {
        let mut inner = self.inner();
        if !matches!(self.word().state(), RdmaState::Init | RdmaState::Connected) {
            let text = "the instance is in the error state, or stopped: start it again, then add \
                        the work queue";
            return Err(Error::plain(ErrorKind::BadState, text));
        }
        Ok(inner.own.take())
    }

    /// The target of the instance's own completion queue, if it has one.
    #[cfg(test)]
    pub(super) fn own_target(&self) -> Option<CqTarget> {
        self.inner().own.as_ref().map(Cq::target)
    }

    /// Attaches the instance to a slot of a work queue, whose completion queue is `cq`.
    pub(super) fn attach(
        &self,
        slot: u32,
        cq: &Cq,
    ) -> Result<(StartQueues, StateWord, Properties)> {
        let mut inner = self.inner();
        if let Some((target, _)) = &inner.target {
            if !target.is(cq) {
                let text = "adding the instance to a work queue failed before: stop it, and start \
                            it again";
                return Err(Error::plain(ErrorKind::BadState, text));
            }
        } else {
            // Each job of the work queue has its entry there.
            inner.target = Some((cq.target(), u32::MAX));
        }
        inner.slot = Some(slot);
        let made = self.qp(&mut inner).map(drop);
        let Some(queues) = made.map(|()| inner.queues.take()).inspect_err(|_| {
            (inner.slot, inner.target) = (None, None);
        })?
        else {
            let text = "the instance has no queues: its engine has taken them";
            return Err(Error::plain(ErrorKind::Unexpected, text));
        };
        Ok((queues, self.word(), inner.properties))
    }

    /// Exchanges the engine's queues, which have no jobs, for those of the current start, if there
    /// are new ones; returns their state. It neither allocates nor frees.
    pub(super) fn exchange(
        &self,
        exchange: impl FnOnce(StartQueues) -> StartQueues,
    ) -> Option<(StateWord, Properties)> {
        let mut inner = self.inner();
        let queues = inner.queues.take()?;
        inner.retired_queues = Some(exchange(queues));
        Some((self.word(), inner.properties))
    }

    /// Detaches the instance from its work queue: its connection is lost.
    pub(super) fn detach(&self) {
        let mut inner = self.inner();
        let qp = inner.qp.take();
        (inner.queues, inner.retired_queues) = (None, None);
        (inner.own, inner.target, inner.slot) = (None, None, None);
        let known = qp.is_some_and(|qp| qp.exported) || self.word().state() == RdmaState::Connected;
        if known {
            self.fail(self.word().starts());
        }
    }
}
