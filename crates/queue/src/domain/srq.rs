//! Shared receive queues: their memory, their object, and the queue pairs that draw from them.

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};

use verbless_command::{Error, RmpAttr, RmpObject};
use verbless_devx::{DevxObject, EventChannel};
use verbless_prm::RmpState;
use verbless_prm::hot::event_type;

use super::last_wqe::LastWqeEvents;
use super::pool::layout;
use super::protection::Domain;
use super::queues::{Cq, Qp, QpConfig, check_limit, checked_power_of_two};
use crate::events::{Watchable, sealed};

use verbless_ring::qp::WithSrq;
use verbless_ring::service::Service;
use verbless_ring::srq::{SharedReceiveQueue, SharedReceiveQueueParts};

/// Shared receive queue configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SrqConfig {
    /// Minimum number of receives that can be outstanding.
    pub receives: u32,
    /// Maximum number of scatter/gather entries of a receive.
    pub sges: u32,
}

impl SrqConfig {
    /// A shared receive queue for `receives` messages of one SGE each.
    pub const fn new(receives: u32) -> Self {
        Self { receives, sges: 1 }
    }
}

/// A shared receive queue on a device. It derefs to the [`SharedReceiveQueue`] for posting. Queue
/// pairs that draw from it keep its object and memory alive.
pub struct Srq {
    queue: SharedReceiveQueue,
    object: Arc<RmpObject>,
    last_wqes: Arc<LastWqeEvents>,
}

impl Domain {
    /// Creates a receive queue for several queue pairs.
    pub fn srq(&self, config: &SrqConfig) -> Result<Srq, Error> {
        // The link takes the room of one entry.
        let most = self.device.caps().max_receive_sges().min(512 / 16).saturating_sub(1);
        // A receive without entries takes the room of one.
        check_limit("making an SRQ", "sges", config.sges.max(1), most)?;
        let stride = ((config.sges.max(1) as usize + 1) * 16).next_power_of_two();
        // The ring always keeps the last WQE back, because its link is not known yet.
        let least = config.receives.max(1).saturating_add(1);
        let room = self.device.caps().general.log_max_srq_sz();
        let count = checked_power_of_two("SRQ ring entries", least, room)?;
        let ring = self.shared.pool.ring(count as usize * stride)?;
        let (record, record_memory) = self.shared.pool.record()?;
        let parts = SharedReceiveQueueParts { ring: ring.memory, stride, record };
        let queue = SharedReceiveQueue::new(parts).map_err(layout)?;
        let object = self.device.create_rmp(RmpAttr {
            pd: self.pd.clone(),
            ring: ring.queue,
            record: record_memory,
            log_wqes: count.ilog2() as u8,
            log_stride: stride.ilog2() as u8,
            cyclic: false,
        })?;
        let last_wqes = Arc::new(LastWqeEvents::new(&self.device)?);
        Ok(Srq { queue, object: Arc::new(object), last_wqes })
    }

    /// Creates a queue pair in RESET, of any service, that receives into `receives`. It ignores the
    /// receive settings of `config`.
    ///
    /// A reset, destroy or drop first moves the queue pair to ERR and waits for the event Last WQE
    /// Reached, a second at most. Then a receive that a message had begun to fill returns to the
    /// SRQ ([`SharedReceiveQueue::take_returned`]). Without the event, such a receive is lost and
    /// counted ([`Context::leaked`](verbless_devx::Context::leaked)). On a device that does not
    /// report the event, the queue pair waits 10 ms in ERR, and the receive is always counted.
    ///
    /// The receives of the SRQ count once against the entries of `receive_cq`. Receives that return
    /// from a queue pair that was reset or dropped keep the entries of their removed CQEs until
    /// `receive_cq` is polled past them. Poll it until it is empty before you post more to the SRQ,
    /// or create it with twice as many entries.
    pub fn queue_pair_with_srq<S: Service>(
        &self,
        config: &QpConfig,
        send_cq: &Cq,
        receive_cq: &Cq,
        receives: &Srq,
    ) -> Result<Qp<S, WithSrq>, Error> {
        let (send_cq, receive_cq) = (send_cq.target(), receive_cq.target());
        self.build_sharing(config, &send_cq, &receive_cq, receives)
    }
}

impl Srq {
    pub(super) fn last_wqes(&self) -> &Arc<LastWqeEvents> {
        &self.last_wqes
    }

    /// The object on the device.
    pub fn object(&self) -> &Arc<RmpObject> {
        &self.object
    }

    /// Requests one event when fewer than `limit` receives are left.
    pub fn arm_limit(&self, limit: u16) -> Result<(), Error> {
        self.object.arm_limit(limit)
    }

    /// Delivers the events of [`Srq::arm_limit`] to `channel` with `cookie`.
    pub fn subscribe(&self, channel: &EventChannel, cookie: u64) -> Result<(), Error> {
        channel.subscribe(Some(self.object.object()), &[event_type::SRQ_LIMIT.into()], cookie)
    }
}

impl Watchable for Srq {}

impl sealed::Sealed for Srq {
    fn name(&self) -> (&'static str, u32) {
        ("SRQ", self.object.rmpn().0)
    }

    fn life(&self) -> Weak<dyn Any + Send + Sync> {
        let life: Weak<RmpObject> = Arc::downgrade(&self.object);
        life
    }

    fn errors(&self) -> &'static [u16] {
        &[event_type::SRQ_CATASTROPHIC_ERROR as u16]
    }

    fn object(&self) -> &DevxObject {
        self.object.object()
    }

    fn is_failed(&self) -> Result<bool, Error> {
        Ok(self.object.query()?.state() == RmpState::ERR)
    }
}

impl Deref for Srq {
    type Target = SharedReceiveQueue;

    fn deref(&self) -> &SharedReceiveQueue {
        &self.queue
    }
}

impl DerefMut for Srq {
    fn deref_mut(&mut self) -> &mut SharedReceiveQueue {
        &mut self.queue
    }
}

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Srq({})", self.object.rmpn())
    }
}
