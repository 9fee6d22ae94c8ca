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
use super::queues::{Cq, Qp, QpConfig, over, power};
use crate::events::{Watchable, sealed};

use verbless_ring::qp::WithSrq;
use verbless_ring::service::Service;
use verbless_ring::shared::{SharedReceiveQueue, SharedReceiveQueueParts};

/// Shared receive queue configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SrqConfig {
    /// Receives that can be outstanding at least.
    pub receives: u32,
    /// Scatter/gather entries of a receive at most.
    pub sges: u32,
}

impl SrqConfig {
    /// A shared receive queue for `receives` messages of one SGE each.
    pub const fn new(receives: u32) -> Self {
        Self { receives, sges: 1 }
    }
}

/// A shared receive queue on a device. It derefs to the [`SharedReceiveQueue`] that is posted to.
/// Queue pairs that draw from it keep its object and memory, whichever is dropped first.
pub struct Srq {
    queue: SharedReceiveQueue,
    object: Arc<RmpObject>,
    last_wqes: Arc<LastWqeEvents>,
}

impl Domain {
    /// Makes a receive queue for several queue pairs.
    pub fn srq(&self, config: &SrqConfig) -> Result<Srq, Error> {
        // The link takes the room of one entry.
        let most = self.device.caps().max_receive_sges().min(512 / 16).saturating_sub(1);
        // A receive of no entries has the room of one.
        over("making a shared receive queue", "sges", config.sges.max(1), most)?;
        let stride = ((config.sges.max(1) as usize + 1) * 16).next_power_of_two();
        // One is always kept back: the last one, whose link is not known yet.
        let least = config.receives.max(1).saturating_add(1);
        let room = self.device.caps().general.log_max_srq_sz();
        let count = power("shared receive ring entries", least, room)?;
        let ring = self.shared.pool.ring(count as usize * stride)?;
        let (record, record_place) = self.shared.pool.record()?;
        let parts = SharedReceiveQueueParts { ring: ring.memory, stride, record };
        let queue = SharedReceiveQueue::new(parts).map_err(layout)?;
        let object = self.device.create_rmp(RmpAttr {
            pd: self.pd.clone(),
            ring: ring.place,
            record: record_place,
            log_wqes: count.ilog2() as u8,
            log_stride: stride.ilog2() as u8,
            cyclic: false,
        })?;
        let last_wqes = Arc::new(LastWqeEvents::new(&self.device)?);
        Ok(Srq { queue, object: Arc::new(object), last_wqes })
    }

    /// Makes a queue pair in RESET, of any service, that receives into `receives`. The receive
    /// settings of `config` are ignored.
    ///
    /// Reset, destroyed or dropped, it first goes to ERR and waits until it has let go of the SRQ
    /// (Last WQE Reached), a second at most: a receive that a message had begun to fill comes back
    /// to the SRQ ([`SharedReceiveQueue::take_returned`]). After that second, and on a device that
    /// does not report the event, such a receive is lost.
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

    /// Asks for one event when fewer than `limit` receives are left.
    pub fn arm_limit(&self, limit: u16) -> Result<(), Error> {
        self.object.arm_limit(limit)
    }

    /// Delivers the events that [`Srq::arm_limit`] asks for to `channel` with `cookie`.
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
