//! The device's side of a frame queue, and its end: RST, removal of its CQEs, destroy.

use std::mem;
use std::sync::Arc;

use verbless_command::{
    Device, Error, ErrorKind, RqObject, SqObject, TirObject, TisObject, TransportDomain,
};
use verbless_devx::DevxObject;
use verbless_ring::cq::{CqCleaner, Retired};

use super::cq_users::CqUse;

/// The device's objects of one queue for Ethernet frames: an SQ, or an RQ with its TIR.
pub(super) trait RawQueueObjects {
    /// The abbreviation of the queue's type: SQ or RQ.
    const NAME: &'static str;
    fn object(&self) -> &DevxObject;
    fn number(&self) -> u32;
    fn to_ready(&self) -> Result<(), Error>;
    fn to_reset(&self) -> Result<(), Error>;
    fn clean(&self, cleaner: &CqCleaner) -> Retired;
    fn destroy(self) -> Result<(), Error>;
}

/// A send queue.
pub(super) struct SqObjects(pub(super) SqObject);

/// A receive queue, and the TIR that forwards to it.
pub(super) struct RqObjects {
    pub(super) tir: Arc<TirObject>,
    pub(super) object: Arc<RqObject>,
    pub(super) device: Device,
}

impl RawQueueObjects for SqObjects {
    const NAME: &'static str = "SQ";

    fn object(&self) -> &DevxObject {
        self.0.object()
    }

    fn number(&self) -> u32 {
        self.0.sqn().0
    }

    fn to_ready(&self) -> Result<(), Error> {
        self.0.to_ready()
    }

    fn to_reset(&self) -> Result<(), Error> {
        self.0.to_reset()
    }

    fn clean(&self, cleaner: &CqCleaner) -> Retired {
        cleaner.clean_sends(self.0.sqn())
    }

    fn destroy(self) -> Result<(), Error> {
        self.0.destroy()
    }
}

impl RawQueueObjects for RqObjects {
    const NAME: &'static str = "RQ";

    fn object(&self) -> &DevxObject {
        self.object.object()
    }

    fn number(&self) -> u32 {
        self.object.rqn().0
    }

    fn to_ready(&self) -> Result<(), Error> {
        self.object.to_ready()
    }

    fn to_reset(&self) -> Result<(), Error> {
        self.object.to_reset()
    }

    fn clean(&self, cleaner: &CqCleaner) -> Retired {
        cleaner.clean_raw_rq(self.object.attr().user_index)
    }

    fn destroy(self) -> Result<(), Error> {
        let Self { tir, object, .. } = self;
        let number = object.rqn();
        let targets = || {
            let hint = "flow rules still lead to it: drop them first";
            Error::new(ErrorKind::InvalidInput, format!("destroying RQ {number}"), hint)
        };
        Arc::into_inner(tir).ok_or_else(targets)?.destroy()?;
        Arc::into_inner(object).ok_or_else(targets)?.destroy()
    }
}

/// Objects that all frame queues of a domain share, created on first use.
#[derive(Debug, Default)]
pub(super) struct TransportObjects {
    pub(super) domain: Option<Arc<TransportDomain>>,
    /// One TIS for each priority.
    pub(super) tis: [Option<Arc<TisObject>>; 8],
}

/// The objects of a frame queue, and their cleanup. They keep the memory of ring and record until
/// their destroy succeeds.
pub(super) struct RawQueue<S: RawQueueObjects> {
    /// `None` only during the drop.
    side: Option<S>,
    cleaner: CqCleaner,
    /// Whether the queue has been in RDY, and so may have written completions.
    ready: bool,
    /// Its entry among the users of the completion queue: no other queue may get its user index
    /// before its completions are removed.
    cq_use: Option<CqUse>,
    /// Lives as long as the queue; watchers hold it weakly.
    life: Arc<()>,
}

impl<S: RawQueueObjects> RawQueue<S> {
    /// The value that lives as long as the queue.
    pub(super) fn life(&self) -> &Arc<()> {
        &self.life
    }

    /// Wraps the objects of a queue that is in RST.
    pub(super) fn new(side: S, cleaner: CqCleaner, cq_use: Option<CqUse>) -> Self {
        Self { side: Some(side), cleaner, ready: false, cq_use, life: Arc::default() }
    }

    pub(super) fn side(&self) -> &S {
        self.side.as_ref().expect("a queue has its object until it is dropped")
    }

    /// RST → RDY.
    ///
    /// # Errors
    /// Its completion queue has no room beside removed CQEs; the device refuses.
    pub(super) fn start(&mut self) -> Result<(), Error> {
        self.cq_use.as_ref().map_or(Ok(()), CqUse::check)?;
        // A command that times out may have been executed.
        self.ready = true;
        self.side().to_ready()
    }

    /// Moves the queue to RST, if it is not there yet, and removes its completions.
    pub(super) fn reset(&mut self) -> Result<(), Error> {
        self.leave()
    }

    pub(super) fn destroy(mut self) -> Result<(), Error> {
        self.leave()?;
        match self.side.take() {
            Some(side) => side.destroy(),
            None => Ok(()),
        }
    }

    fn leave(&mut self) -> Result<(), Error> {
        let Some(side) = &self.side else { return Ok(()) };
        let left = match self.ready {
            true => side.to_reset(),
            false => Ok(()),
        };
        self.ready &= left.is_err();
        let retired = side.clean(&self.cleaner);
        if let Some(cq_use) = &self.cq_use {
            cq_use.retire(retired);
        }
        left
    }
}

/// Moves the queue to RST and removes its completions, before its number and user index may become
/// another queue's. A queue that fails to go to RST may write more CQEs, so it is leaked, and
/// counted ([`Context::leaked`](verbless_devx::Context::leaked)).
impl<S: RawQueueObjects> Drop for RawQueue<S> {
    fn drop(&mut self) {
        if let Err(error) = self.leave()
            && error.kind() != ErrorKind::DeviceGone
            && let Some(side) = self.side.take()
        {
            side.object().context().count_leak(S::NAME, side.number(), &error);
            mem::forget((side, self.cq_use.take()));
        }
    }
}
