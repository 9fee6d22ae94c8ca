//! The data path: doorbells, WQEs, packets, CQEs and EQEs.

mod state;

use std::sync::Arc;
use std::time::Duration;

use crate::world::{HcaId, Shared, World};

/// The engine's time, in nanoseconds since the model began.
#[derive(Debug)]
pub(crate) struct Clock {
    /// Virtual time; in threaded mode it follows the real one.
    pub now: u64,
    /// When the model began, in threaded mode.
    pub began: Option<std::time::Instant>,
}

impl Clock {
    pub(crate) fn new(stepped: bool) -> Self {
        Self { now: 0, began: (!stepped).then(std::time::Instant::now) }
    }

    pub(crate) fn advance(&mut self, by: Duration) {
        self.now += u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
    }
}

pub(crate) use state::{CqRuntime, QpRuntime, State};

/// Starts the thread that moves a threaded model; it ends when the last other handle does.
pub(crate) fn spawn(_shared: &Arc<Shared>) {}

/// Does one piece of work; false when there is none.
pub(crate) fn step(_world: &mut World) -> bool {
    false
}

/// Reports an asynchronous event: an EQE of type `kind` with `data` (bytes 0x20 to 0x3c) in every EQ that asked for it.
pub(crate) fn event(_world: &mut World, _hca: HcaId, _kind: u8, _data: [u8; 28]) {}

/// Moves a QP to the error state: what is posted will be flushed. `hca::execute` calls it for 2ERR; the context follows.
pub(crate) fn qp_to_error(world: &mut World, hca: HcaId, qpn: u32) {
    if let Some(qp) = world.hcas[hca].objects.qps.get_mut(&qpn) {
        qp.state = crate::hca::objects::QpState::Error;
    }
}

/// A QP was reset or is about to be destroyed: forgets what is in flight for it.
pub(crate) fn qp_forgotten(_world: &mut World, _hca: HcaId, _qpn: u32) {}

/// A command may have created, moved or removed a queue: which doorbell wakes what is looked up afresh.
pub(crate) fn queues_changed(world: &mut World, hca: HcaId) {
    world.hcas[hca].engine.stale = true;
}

/// A UAR page was allocated: its words are cleared and looked at from now on.
pub(crate) fn uar_allocated(world: &mut World, hca: HcaId, page: u32) {
    world.hcas[hca].bar.set_allocated(page, true);
}

/// A UAR page was freed.
pub(crate) fn uar_freed(world: &mut World, hca: HcaId, page: u32) {
    world.hcas[hca].bar.set_allocated(page, false);
}
