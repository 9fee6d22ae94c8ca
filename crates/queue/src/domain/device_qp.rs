//! The device's side of a queue pair, and its end: reset, removal of its CQEs, destroy.

use std::mem;
use std::sync::Arc;

use super::cq_users::CqUse;
use super::last_wqe::LastWqe;
use verbless_command::{Error, ErrorKind, QpObject};
use verbless_ring::cq::CqCleaner;
use verbless_ring::srq::SrqReturns;
use verbless_ring::types::Qpn;

/// The object of a queue pair, and its cleanup. The object keeps the memory of the rings and of the
/// record until its destroy succeeds, even if the queues were dropped.
pub(super) struct DeviceQp {
    /// Dropped before the object, which keeps the SRQ's RMP number in use: the CQ counts the
    /// SRQ's entries by that number.
    cleaners: Cleaners,
    /// `None` only during the drop.
    object: Option<QpObject>,
    /// Set for a queue pair with an SRQ.
    last_wqe: Option<LastWqe>,
    /// Whether the QP is in RESET while its rings still have the old requests: after
    /// [`Self::leave_to_reset`], before [`Self::reset`].
    has_stale_rings: bool,
    /// Lives as long as the queue pair; watchers hold it weakly.
    life: Arc<()>,
}

/// The completion queues of a queue pair, for its cleanup.
pub(super) struct Cleaners {
    send: CqCleaner,
    /// `None` if it is the same queue as `send`.
    receive: Option<CqCleaner>,
    /// The SRQ's list of receives to post again.
    returns: Option<SrqReturns>,
    /// Its entries among the users of both completion queues.
    uses: Option<[CqUse; 2]>,
}

impl Cleaners {
    /// `receive` is `None` if one completion queue serves both sides.
    pub(super) fn new(
        send: CqCleaner,
        receive: Option<CqCleaner>,
        returns: Option<SrqReturns>,
        uses: [CqUse; 2],
    ) -> Self {
        if returns.is_some() {
            receive.as_ref().unwrap_or(&send).claim_receives();
        }
        Self { send, receive, returns, uses: Some(uses) }
    }

    fn clean(&self, qpn: Qpn) {
        let cleaners = std::iter::once(&self.send).chain(&self.receive);
        for (cleaner, reports) in cleaners.zip(self.uses.iter().flatten()) {
            reports.retire(match &self.returns {
                Some(returns) => cleaner.clean_with_srq(qpn, returns),
                None => cleaner.clean(qpn),
            });
        }
    }
}

impl DeviceQp {
    pub(super) fn new(object: QpObject, cleaners: Cleaners, last_wqe: Option<LastWqe>) -> Self {
        let (has_stale_rings, life) = (false, Arc::default());
        Self { object: Some(object), cleaners, last_wqe, has_stale_rings, life }
    }

    /// The value that lives as long as the queue pair.
    pub(super) fn life(&self) -> &Arc<()> {
        &self.life
    }

    pub(super) fn object(&self) -> &QpObject {
        self.object.as_ref().expect("a queue pair has its object until it is dropped")
    }

    pub(super) fn object_mut(&mut self) -> &mut QpObject {
        self.object.as_mut().expect("a queue pair has its object until it is dropped")
    }

    /// Removes the queue pair's CQEs from its completion queues, by the QPN of the object: the
    /// caller may have swapped the rings with another queue pair's.
    pub(super) fn clean(&self) {
        self.cleaners.clean(self.object().qpn());
    }

    pub(super) fn destroy(mut self) -> Result<(), Error> {
        self.leave()?;
        self.cleaners.uses = None;
        match self.object.take() {
            Some(object) => object.destroy(),
            None => Ok(()),
        }
    }

    /// Moves the queue pair to RESET, and removes its completions. The caller clears its rings
    /// afterwards.
    pub(super) fn reset(&mut self) -> Result<(), Error> {
        self.enter_reset()?;
        self.clean();
        self.has_stale_rings = false;
        Ok(())
    }

    /// Moves the queue pair to RESET; its rings and its completions stay.
    pub(super) fn leave_to_reset(&mut self) -> Result<(), Error> {
        self.enter_reset()?;
        self.has_stale_rings = true;
        Ok(())
    }

    /// Whether the QP is in RESET, and must not leave it before its rings are cleared.
    pub(super) fn is_in_reset(&self) -> bool {
        self.has_stale_rings
    }

    /// Moves the queue pair to RESET.
    pub(super) fn enter_reset(&mut self) -> Result<(), Error> {
        self.give_back();
        self.object_mut().to_reset()?;
        if let Some(last_wqe) = &self.last_wqe {
            last_wqe.forget();
        }
        Ok(())
    }

    /// Fails if the queue pair cannot leave RESET: its rings still have the old requests, or its
    /// completion queues lack room for its requests because old CQEs have not been polled past.
    pub(super) fn check_start(&self) -> Result<(), Error> {
        if self.has_stale_rings {
            let hint = "its rings still have requests from before 2RST_QP, and the device begins \
                        at index 0: call `reset` first";
            return Err(Error::new(ErrorKind::InvalidInput, "RST2INIT_QP", hint));
        }
        self.cleaners.uses.iter().flatten().try_for_each(CqUse::check)
    }

    /// Moves the queue pair to RESET if it has ever left RESET, and removes its completions.
    fn leave(&mut self) -> Result<(), Error> {
        let Some(object) = &self.object else { return Ok(()) };
        let left = match object.has_left_reset() {
            true => self.enter_reset(),
            false => Ok(()),
        };
        self.clean();
        left
    }

    /// Moves the queue pair to ERR and waits until it has completed the receive that it took from
    /// its SRQ. If the command fails or the wait times out, the receive may be lost.
    fn give_back(&mut self) {
        let (Some(object), Some(last_wqe)) = (&mut self.object, &self.last_wqe) else { return };
        // Before RTR it has received nothing.
        if !object.has_reached_rtr() {
            return;
        }
        let Err(lost) = object.to_error().and_then(|()| last_wqe.wait()) else { return };
        if lost.kind() != ErrorKind::DeviceGone {
            let context = object.object().context();
            context.count_leak("receive taken from an SRQ by QP", object.qpn().0, &lost);
        }
    }
}

/// The device releases the queues, and the CQEs are removed, before the number may become another
/// queue pair's.
///
/// A queue pair that fails to go to RESET may complete requests after the cleanup, until it is
/// destroyed; so no other queue pair may ever get its number. It is then leaked and counted
/// ([`Context::leaked`](verbless_devx::Context::leaked)).
impl Drop for DeviceQp {
    fn drop(&mut self) {
        if let Err(error) = self.leave()
            && error.kind() != ErrorKind::DeviceGone
            && let Some(object) = self.object.take()
        {
            object.object().context().count_leak("QP", object.qpn().0, &error);
            // Its CQEs may still come, and need their entries.
            mem::forget((object, self.cleaners.uses.take()));
        }
    }
}
