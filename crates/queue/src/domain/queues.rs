//! Completion queues and queue pairs: their memory, and their objects on the device.

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use verbless_command::{
    CqAttr, CqEventTarget, CqObject, Cqn, Eqn, Error, ErrorKind, QpAttr, QpObject, RmpObject,
};
use verbless_devx::{DevxObject, EventChannel};
use verbless_prm::hot::event_type;
use verbless_prm::{CqeSize, QpState};

use super::cq_users::{CqUse, CqUsers};
use super::device_qp::{Cleaners, DeviceQp};
use super::pool::layout;
use super::protection::Domain;
use super::requirements;
use super::srq::Srq;
use crate::events::{Subscription, Watchable, sealed};
use crate::wait::poll_within;
use verbless_ring::completion::{Completion, CompletionError};
use verbless_ring::cq::{CompletionQueue, CompletionQueueParts, CqCleaner, Cqe};
use verbless_ring::dispatch::{SendCqe, WorkQueue};
use verbless_ring::qp::{
    BlueFlame, QueuePair, ReceiveQueue, ReceiveQueueParts, ReceiveSide, SendQueue, SendQueueParts,
    WithSrq,
};
use verbless_ring::ring::{OutOfBounds, RecordMemory, RingMemory};
use verbless_ring::service::{Eth, Rc, Service};
use verbless_ring::srq::SrqReturns;
use verbless_ring::wr::Capability;

/// Completion queue configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CqConfig {
    /// Minimum number of completions that the queue holds; rounded up to a power of two of at least
    /// 2.
    pub entries: u32,
    /// Size of an entry: 64 or 128 bytes. One of 128 has room for 64 bytes of data.
    pub cqe_size: CqeSize,
    /// The completion vector of the device that gets the queue's events.
    pub vector: u32,
    /// New completions overwrite unread ones instead of breaking the queue.
    pub ignore_overrun: bool,
    /// Accepts queues whose rings together hold more requests than the queue has entries. The
    /// program then keeps the number of outstanding requests within the entries by itself: an
    /// overrun breaks a CQ permanently, with every queue that completes in it. All requests of a
    /// ring are flushed, unsignaled ones too, when the queue pair fails, and when a queue pair with
    /// an SRQ is reset or dropped. Removed CQEs of queues that were reset or dropped keep their
    /// entries until the CQ is polled past them.
    pub overcommit: bool,
}

impl CqConfig {
    /// A queue of `entries` 64-byte entries on vector 0. It needs one entry for each request that
    /// the rings of its queues hold ([`QpConfig::cqes`]).
    pub const fn new(entries: u32) -> Self {
        Self {
            entries,
            cqe_size: CqeSize::BYTES_64,
            vector: 0,
            ignore_overrun: false,
            overcommit: false,
        }
    }
}

/// Queue pair configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpConfig {
    /// Minimum number of sends that can be outstanding; 0 counts as 1. The ring has room for this
    /// many sends, READs and atomics of the limits below. A
    /// [`LocalInvalidate`](crate::wr::LocalInvalidate) takes 2 wqebbs of 64 bytes, and a
    /// [`Umr`](crate::wr::Umr) 2 or 3, or with its KLMs inline up to 15: a queue pair that posts
    /// them needs more `sends` ([`QpConfig::send_cqes`] is the length of the ring in wqebbs).
    pub sends: u32,
    /// Minimum number of receives that can be outstanding; 0 counts as 1.
    pub receives: u32,
    /// Maximum number of scatter/gather entries of a send.
    pub send_sges: u32,
    /// Maximum number of scatter/gather entries of a receive.
    pub receive_sges: u32,
    /// Maximum of inline data bytes of a send.
    pub inline: u32,
    /// Every send gets a completion, signaled or not.
    pub signal_all: bool,
    /// When a request is copied to the device along with its doorbell, if a BlueFlame register is
    /// free: see [`domain`](crate::domain).
    pub blueflame: BlueFlame,
    /// User index (24 bits): the device writes it into CQEs beside the QPN.
    pub user_index: u32,
    /// Whether it takes memory copies within the device ([`DmaMmo`](crate::wr::DmaMmo))
    /// besides its other requests. Connected to itself ([`Domain::connect_loopback`]), it needs no
    /// peer. The device must support it ([`Domain::supports`]).
    pub dma_mmo: bool,
}

impl QpConfig {
    /// A queue pair for `sends` send requests and `receives` receives of one SGE each, with 64
    /// bytes of inline data, and BlueFlame where the device has it.
    pub const fn new(sends: u32, receives: u32) -> Self {
        Self {
            sends,
            receives,
            send_sges: 1,
            receive_sges: 1,
            inline: 64,
            signal_all: false,
            blueflame: BlueFlame::Always,
            user_index: 0,
            dma_mmo: false,
        }
    }

    /// The limit of requests in the send ring of a queue pair of service `S`, and so of its
    /// outstanding CQEs: wqebbs, rounded up to a power of two. A request takes one or more.
    pub fn send_cqes<S: Service>(&self) -> u32 {
        self.min_wqebbs(S::ADDRESS_DS).checked_next_power_of_two().unwrap_or(u32::MAX)
    }

    /// The limit of receives in the ring of a queue pair, and so of its outstanding CQEs.
    pub fn receive_cqes(&self) -> u32 {
        let count = self.receives.max(self.min_receives());
        count.checked_next_power_of_two().unwrap_or(u32::MAX)
    }

    /// The limit of outstanding CQEs of a queue pair of service `S`: the entries of a completion
    /// queue in which both of its rings complete.
    pub fn cqes<S: Service>(&self) -> u32 {
        self.send_cqes::<S>().saturating_add(self.receive_cqes())
    }

    /// Bytes of a receive WQE.
    fn receive_stride(&self) -> usize {
        (self.receive_sges.max(1) as usize * 16).next_power_of_two()
    }

    /// The receive ring comes first, and the send ring follows without a gap: so the receive ring
    /// fills at least a wqebb.
    fn min_receives(&self) -> u32 {
        (64 / self.receive_stride() as u32).max(1)
    }

    fn min_wqebbs(&self, address: u32) -> u32 {
        self.sends.max(1).saturating_mul(self.wqebbs_per_send(address))
    }

    /// Wqebbs of the longest request; `address` is the ds of its datagram address.
    fn wqebbs_per_send(&self, address: u32) -> u32 {
        // Control segment, and a remote address segment or an address vector.
        let head = 16 + 16 * address.max(1);
        let atomic = head + 16 + 16;
        let gathered = head + self.send_sges * 16;
        let inline = head + (4 + self.inline).next_multiple_of(16);
        gathered.max(inline).max(atomic).div_ceil(64)
    }
}

/// A completion queue on a device. It derefs to the [`CompletionQueue`] for polling and arming.
///
/// It is `Send`: one thread at a time polls it. Its [`CqEvents`](crate::CqEvents) lets a thread
/// sleep until completions arrive.
pub struct Cq {
    queue: CompletionQueue,
    object: Arc<CqObject>,
    users: Arc<CqUsers>,
    pub(crate) subscription: Option<Subscription>,
    /// When a poll with a time limit last queried the queue's status.
    checked: Option<Instant>,
}

/// A completion queue as the target of queue pairs, without the right to poll it: one thread can
/// create queue pairs that complete in a queue that another thread polls ([`Cq::target`]). It keeps
/// the object on the device alive.
#[derive(Clone)]
pub struct CqTarget {
    pub(super) object: Arc<CqObject>,
    pub(super) cleaner: CqCleaner,
    pub(super) users: Arc<CqUsers>,
}

/// A queue pair on a device. It derefs to the [`QueuePair`] for posting.
///
/// **Receives** may be posted right after creation: a program that posts them before it sends its
/// address to the peer never answers a first message with RNR. InfiniBand lets a device ignore
/// receives until INIT, so the receives stay in the ring: [`Qp::to_init`], and so
/// [`Domain::connect`] and [`Qp::start`], writes their count to the doorbell record once more.
/// **Sends** may be posted once it is in RTS, after [`Domain::connect`] or [`Qp::start`].
///
/// A drop moves it to RESET, removes its CQEs from the completion queues and destroys the object.
/// Unpolled CQEs are lost.
///
/// Two threads drive it as two halves: [`Qp::split`].
pub struct Qp<S: Service = Rc, R: ReceiveSide = ReceiveQueue> {
    pub(super) device: DeviceQp,
    pub(super) queue: QueuePair<S, R>,
}

impl Domain {
    /// Creates a completion queue.
    pub fn completion_queue(&self, config: &CqConfig) -> Result<Cq, Error> {
        let most = self.device.caps().log_max_cqes;
        let entries =
            checked_power_of_two("completion queue entries", config.entries.max(2), most)?;
        let entry = if config.cqe_size == CqeSize::BYTES_128 { 128 } else { 64 };
        let ring = self.shared.pool.ring(entries as usize * entry)?;
        let (record, record_memory) = self.shared.pool.record()?;
        let page = self.shared.plain.clone();
        let parts = CompletionQueueParts {
            cqn: Cqn(0),
            ring: ring.memory,
            entry_size: entry,
            record,
            uar: page.memory,
        };
        // `new` marks every entry as the device's, so it runs before CREATE_CQ.
        let queue = CompletionQueue::new(parts).map_err(layout)?;
        let object = self.device.create_cq(CqAttr {
            uar: page.uar,
            ring: ring.queue,
            record: record_memory,
            log_cqes: entries.ilog2() as u8,
            cqe_size: config.cqe_size,
            element: CqEventTarget::Eq(Eqn(self.device.query_eqn(config.vector)?)),
            ignore_overrun: config.ignore_overrun,
        })?;
        let queue = queue.with_cqn(object.cqn()).map_err(layout)?;
        let counted = !config.overcommit && !config.ignore_overrun;
        let cleaner = Mutex::new(queue.cleaner());
        let consumed = move || cleaner.lock().unwrap_or_else(PoisonError::into_inner).consumed();
        let spare = queue.spare_entries();
        let users = CqUsers::new(counted.then_some(entries), spare, consumed);
        Ok(Cq { queue, object: Arc::new(object), users, subscription: None, checked: None })
    }

    /// Creates a reliable connected queue pair in RESET that completes in the two given queues.
    pub fn queue_pair(
        &self,
        config: &QpConfig,
        send_cq: &Cq,
        receive_cq: &Cq,
    ) -> Result<Qp, Error> {
        self.queue_pair_of(config, send_cq, receive_cq)
    }

    /// Like [`Domain::queue_pair`], for any service: `queue_pair_of::<Uc>(…)`.
    pub fn queue_pair_of<S: Service>(
        &self,
        config: &QpConfig,
        send_cq: &Cq,
        receive_cq: &Cq,
    ) -> Result<Qp<S>, Error> {
        self.queue_pair_towards(config, &send_cq.target(), &receive_cq.target())
    }

    /// Like [`Domain::queue_pair_of`], with completion queues that another thread may own.
    pub fn queue_pair_towards<S: Service>(
        &self,
        config: &QpConfig,
        send_cq: &CqTarget,
        receive_cq: &CqTarget,
    ) -> Result<Qp<S>, Error> {
        self.check::<S>(config)?;
        let stride = config.receive_stride();
        let most = self.device.caps().log_max_qp_wqebbs;
        let least = config.receives.max(config.min_receives());
        let count = checked_power_of_two("receive ring entries", least, most)?;
        let ring = ReceiveSource::Own { count, stride };
        let sends = self.send_wqebbs::<S>(config)?;
        receive_cq.users.takes_receives("making a queue pair")?;
        let uses = match send_cq.is_same(receive_cq) {
            true => [send_cq.users.pair(sends.saturating_add(count))?, receive_cq.users.pair(0)?],
            false => [send_cq.users.pair(sends)?, receive_cq.users.pair(count)?],
        };
        let cleaners = cleaners(send_cq, receive_cq, None, uses);
        let built = self.build::<S>(config, send_cq, receive_cq, ring)?;
        let receive = ReceiveQueue::new(ReceiveQueueParts {
            qpn: built.object.qpn(),
            ring: built.receives,
            stride,
            record: built.record,
        })
        .map_err(layout)?;
        let queue = QueuePair::new(built.send, receive);
        Ok(Qp { queue, device: DeviceQp::new(built.object, cleaners, None) })
    }

    /// Builds a queue pair without a receive queue of its own.
    pub(super) fn build_sharing<S: Service>(
        &self,
        config: &QpConfig,
        send_cq: &CqTarget,
        receive_cq: &CqTarget,
        srq: &Srq,
    ) -> Result<Qp<S, WithSrq>, Error> {
        let (pool, returns) = (srq.object().clone(), srq.returns());
        let sends = self.send_wqebbs::<S>(config)?;
        let receives = 1 << pool.attr().log_wqes;
        let receiving = receive_cq.users.srq_pair(pool.rmpn().0, receives)?;
        let uses = [send_cq.users.pair(sends)?, receiving];
        let cleaners = cleaners(send_cq, receive_cq, Some(returns), uses);
        let built =
            self.build::<S>(config, send_cq, receive_cq, ReceiveSource::DomainShared(pool))?;
        let last_wqe = srq.last_wqes().of(&built.object)?;
        let queue = QueuePair::new(built.send, WithSrq);
        Ok(Qp { queue, device: DeviceQp::new(built.object, cleaners, Some(last_wqe)) })
    }

    fn build<S: Service>(
        &self,
        config: &QpConfig,
        send_cq: &CqTarget,
        receive_cq: &CqTarget,
        receives: ReceiveSource,
    ) -> Result<QpParts<S>, Error> {
        self.check::<S>(config)?;
        if S::TYPE == Eth::TYPE {
            let hint = "raw Ethernet has no queue pairs: create a send queue and a receive queue";
            return Err(Error::new(ErrorKind::InvalidInput, "making a queue pair", hint));
        }
        let wqebbs = self.send_wqebbs::<S>(config)?;
        let (receive_bytes, log_receive_wqes, log_receive_stride, shared) = match receives {
            ReceiveSource::Own { count, stride } => {
                let log = Some(count.ilog2() as u8);
                (count as usize * stride, log, stride.ilog2() as u8, None)
            }
            ReceiveSource::DomainShared(pool) => (0, None, 0, Some(pool)),
        };
        let send_bytes = wqebbs as usize * 64;
        let rings = self.shared.pool.ring(receive_bytes + send_bytes)?;
        let (receives, sends) = rings.memory.split_at(receive_bytes).map_err(out_of_bounds)?;
        let (record, record_memory) = self.shared.pool.record()?;
        let (page, doorbell) = self.doorbell(config.blueflame != BlueFlame::Never);
        let object = self.device.create_qp(QpAttr {
            service: S::TYPE,
            pd: self.pd.clone(),
            uar: page.uar,
            send_cq: send_cq.object.clone(),
            receive_cq: receive_cq.object.clone(),
            rings: rings.queue,
            record: record_memory,
            log_send_wqebbs: Some(wqebbs.ilog2() as u8),
            log_receive_wqes,
            rmp: shared,
            log_receive_stride,
            user_index: config.user_index,
            dma_mmo: config.dma_mmo,
        })?;
        let mut send = SendQueue::of(SendQueueParts {
            qpn: object.qpn(),
            ring: sends,
            record: record.clone(),
            doorbell,
            max_sges: config.send_sges,
            max_inline: config.inline,
            signal_all: config.signal_all,
            blueflame: config.blueflame,
        })
        .map_err(layout)?;
        send.set_capabilities(|capability| {
            let set_up = capability != Capability::Dma || config.dma_mmo;
            set_up && requirements::has(self.device.caps(), capability)
        });
        send.set_umr_rules(requirements::umr_rules(self.device.caps()));
        send.close();
        Ok(QpParts { object, send, receives, record })
    }

    fn send_wqebbs<S: Service>(&self, config: &QpConfig) -> Result<u32, Error> {
        let least = config.min_wqebbs(S::ADDRESS_DS);
        checked_power_of_two("wqebbs of a send ring", least, self.device.caps().log_max_qp_wqebbs)
    }

    /// Checks the lengths of WQEs: a datagram's begins with a longer head than those of connected
    /// queue pairs.
    fn check<S: Service>(&self, config: &QpConfig) -> Result<(), Error> {
        const WHAT: &str = "making a queue pair";
        let caps = self.device.caps();
        let (sges, inline) = match S::ADDRESS_DS {
            0 => (caps.max_send_sges(), caps.max_inline()),
            _ => (caps.max_datagram_sges(), caps.max_datagram_inline()),
        };
        check_limit(WHAT, "send_sges", config.send_sges, sges)?;
        check_limit(
            WHAT,
            "receive_sges",
            config.receive_sges,
            caps.max_receive_sges().min(512 / 16),
        )?;
        check_limit(WHAT, "inline", config.inline, inline)
    }
}

/// Where a queue pair takes its receive WQEs from.
enum ReceiveSource {
    /// The queue pair's own receives.
    Own { count: u32, stride: usize },
    /// Receives of an SRQ.
    DomainShared(Arc<RmpObject>),
}

/// A queue pair without its receive side.
struct QpParts<S: Service> {
    object: QpObject,
    send: SendQueue<S>,
    /// The receive ring; empty with an SRQ.
    receives: RingMemory,
    record: RecordMemory,
}

/// The cleaners of the completion queues and the SRQ that a queue pair uses.
fn cleaners(
    send_cq: &CqTarget,
    receive_cq: &CqTarget,
    returns: Option<SrqReturns>,
    uses: [CqUse; 2],
) -> Cleaners {
    let receive_cleaner = (!send_cq.is_same(receive_cq)).then(|| receive_cq.cleaner.clone());
    Cleaners::new(send_cq.cleaner.clone(), receive_cleaner, returns, uses)
}

/// The error for rings that exceed the memory given for them.
pub(super) fn out_of_bounds(error: OutOfBounds) -> Error {
    Error::new(ErrorKind::InvalidInput, "laying out a queue pair", error.to_string())
}

/// Fails if `value` exceeds the device's limit.
pub(super) fn check_limit(
    attempted: &'static str,
    what: &str,
    value: u32,
    most: usize,
) -> Result<(), Error> {
    if value as usize <= most {
        return Ok(());
    }
    let hint = format!("{what} is {value}; this device supports at most {most}");
    Err(Error::new(ErrorKind::InvalidInput, attempted, hint))
}

/// The next power of two, if it is at most the device's limit `2^most`. Call it before memory is
/// allocated and pinned.
pub(super) fn checked_power_of_two(what: &str, least: u32, most: u8) -> Result<u32, Error> {
    let log = most.min(24);
    let most = 1 << log;
    least
        .checked_next_power_of_two()
        .filter(|&checked_power_of_two| checked_power_of_two <= most)
        .ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidInput,
                format!("laying out {least} {what}"),
                format!("this device supports at most {most} (2^{log}): request fewer"),
            )
        })
}

impl Cq {
    /// The object on the device.
    pub fn object(&self) -> &Arc<CqObject> {
        &self.object
    }

    /// Fails if the device writes no more CQEs here, after an overrun or a failed write of a CQE.
    /// It executes a command (QUERY_CQ). A poll executes none, and so cannot distinguish such a
    /// queue from an empty one: a program that polls without [`Cq::poll_within`] or
    /// [`CqEvents`](crate::CqEvents) calls this when completions fail to come.
    ///
    /// # Errors
    /// [`ErrorKind::QueueFailed`]; the device's refusal.
    pub fn check(&self) -> Result<(), Error> {
        self.object.check()
    }

    /// Polls until there is a CQE or `timeout` has passed, like [`poll_within`]. It asks the device
    /// for the queue's status ([`Cq::check`]) each time that no CQE has come for 100 ms, in one
    /// call or in several.
    ///
    /// # Errors
    /// As [`Cq::check`]. CQEs in the queue come first.
    pub fn poll_within(&mut self, timeout: Duration) -> Result<Option<Cqe>, Error> {
        // If the clock cannot express the end, it waits forever.
        let end = Instant::now().checked_add(timeout);
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let checked = *self.checked.get_or_insert_with(Instant::now);
            let until_check = CHECK_AFTER.saturating_sub(checked.elapsed());
            let wait = left.map_or(until_check, |left| left.min(until_check));
            if let Some(cqe) = poll_within(&mut self.queue, wait) {
                self.checked = None;
                return Ok(Some(cqe));
            }
            if wait == until_check {
                self.checked = Some(Instant::now());
                self.check()?;
            }
            if left == Some(wait) {
                return Ok(None);
            }
        }
    }

    /// Destroys the queue, and returns whether that worked. A drop instead counts a failure in
    /// [`Context::leaked`](verbless_devx::Context::leaked).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] while a queue pair completes here; the device refuses.
    pub fn destroy(self) -> Result<(), Error> {
        let cqn = self.queue.cqn();
        let object = Arc::into_inner(self.object).ok_or_else(|| {
            let hint = "queue pairs still use it: drop them first";
            Error::new(ErrorKind::InvalidInput, format!("destroying CQ {cqn}"), hint)
        })?;
        object.destroy()
    }

    /// This completion queue as the target of a queue pair's completions.
    pub fn target(&self) -> CqTarget {
        let overwrites = self.object.attr().ignore_overrun;
        let cleaner = self.queue.cleaner().overwriting(overwrites);
        CqTarget { object: self.object.clone(), cleaner, users: self.users.clone() }
    }

    /// The number of completions that the queue holds.
    pub fn entries(&self) -> u32 {
        1 << self.object.attr().log_cqes
    }

    /// Delivers completion events to `channel` with `cookie`, one event each time that the queue is
    /// armed. [`CqEvents`](crate::CqEvents) does everything that a sleep needs; use this method for
    /// channels with event data, or with other events too.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn subscribe(&self, channel: &EventChannel, cookie: u64) -> Result<(), Error> {
        channel.subscribe(Some(self.object.object()), &[COMPLETION_EVENT], cookie)
    }
}

/// Type of the completion event of a CQ.
const COMPLETION_EVENT: u16 = 0;
/// Time without a CQE after which [`Cq::poll_within`] queries the queue's status.
const CHECK_AFTER: Duration = Duration::from_millis(100);

impl<S: Service, R: ReceiveSide> WorkQueue for Qp<S, R> {
    #[inline(always)]
    fn complete(&mut self, cqe: Cqe) -> Result<Completion, CompletionError> {
        QueuePair::complete(self, cqe)
    }

    #[inline(always)]
    fn complete_success(&mut self, cqe: SendCqe<'_>) -> Option<Completion> {
        WorkQueue::complete_success(&mut self.queue, cqe)
    }
}

/// Types of the events that report a failed QP, SQ or RQ.
pub(super) const WQ_ERRORS: [u16; 3] = [
    event_type::WQ_CATASTROPHIC_ERROR as u16,
    event_type::WQ_INVALID_REQUEST_ERROR as u16,
    event_type::WQ_ACCESS_ERROR as u16,
];

impl<S: Service, R: ReceiveSide> Qp<S, R> {
    /// Fails if the queue pair is in the error state. It executes a command (QUERY_QP). The device
    /// flushes the requests of such a queue pair; if no completions come for long, [`Qp::reset`]
    /// ends them.
    ///
    /// # Errors
    /// [`ErrorKind::QueueFailed`]; the device's refusal.
    pub fn check(&self) -> Result<(), Error> {
        self.device.object().check()
    }
}

impl<S: Service, R: ReceiveSide> Watchable for Qp<S, R> {}

impl<S: Service, R: ReceiveSide> sealed::Sealed for Qp<S, R> {
    fn name(&self) -> (&'static str, u32) {
        ("QP", self.device.object().qpn().0)
    }

    fn life(&self) -> Weak<dyn Any + Send + Sync> {
        let life: Weak<()> = Arc::downgrade(self.device.life());
        life
    }

    fn errors(&self) -> &'static [u16] {
        &WQ_ERRORS
    }

    fn object(&self) -> &DevxObject {
        self.device.object().object()
    }

    fn is_failed(&self) -> Result<bool, Error> {
        Ok(self.device.object().state()? == QpState::ERR)
    }
}

impl Deref for Cq {
    type Target = CompletionQueue;

    fn deref(&self) -> &CompletionQueue {
        &self.queue
    }
}

impl DerefMut for Cq {
    fn deref_mut(&mut self) -> &mut CompletionQueue {
        &mut self.queue
    }
}

impl<S: Service, R: ReceiveSide> Deref for Qp<S, R> {
    type Target = QueuePair<S, R>;

    fn deref(&self) -> &QueuePair<S, R> {
        &self.queue
    }
}

impl<S: Service, R: ReceiveSide> DerefMut for Qp<S, R> {
    fn deref_mut(&mut self) -> &mut QueuePair<S, R> {
        &mut self.queue
    }
}

impl CqTarget {
    pub(super) fn cleaner(&self) -> CqCleaner {
        self.cleaner.clone()
    }

    pub(super) fn users(&self) -> &Arc<CqUsers> {
        &self.users
    }

    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.object, &other.object)
    }

    /// Whether `cq` is this target.
    pub fn is(&self, cq: &Cq) -> bool {
        Arc::ptr_eq(&self.object, &cq.object)
    }
}

impl fmt::Debug for CqTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CqTarget({})", self.object.cqn())
    }
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cq({})", self.object.cqn())
    }
}

impl<S: Service, R: ReceiveSide> fmt::Debug for Qp<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qp({})", self.queue.qpn())
    }
}

#[cfg(test)]
mod tests {
    use super::QpConfig;

    #[test]
    fn wqebbs_per_send_fit_longest_request() {
        // An atomic takes 64 bytes, or 96 to an address; a gathered or an inline one may be longer.
        for (address, send_sges, inline, wqebbs) in [
            (0, 1, 0, 1),
            (0, 2, 28, 1),
            (0, 3, 0, 2),
            (0, 6, 0, 2),
            (0, 7, 0, 3),
            (0, 1, 29, 2),
            (0, 1, 92, 2),
            (0, 1, 93, 3),
            (1, 2, 28, 1),
            (3, 1, 0, 2),
            (3, 4, 60, 2),
            (3, 5, 0, 3),
            (3, 1, 61, 3),
        ] {
            let config = QpConfig { send_sges, inline, ..QpConfig::new(1, 1) };
            let shape = format!("{address} ds, {send_sges} entries, {inline} bytes");
            assert_eq!(config.wqebbs_per_send(address), wqebbs, "{shape}");
        }
    }
}
