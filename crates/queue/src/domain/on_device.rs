//! The device's side of a queue pair, and how it goes: reset, cleaned out of its completion queues,
//! destroyed.

use std::mem;
use std::sync::Arc;

use super::cq_users::CqUse;
use super::last_wqe::LastWqe;
use verbless_command::{Error, ErrorKind, QpObject};
use verbless_ring::cq::CqCleaner;
use verbless_ring::shared::SrqReturns;
use verbless_ring::types::Qpn;

/// The object of a queue pair, and what cleans up behind it. The object holds the memory of the
/// rings and of the record until its destroy has succeeded, whatever became of the queues there.
pub(super) struct OnDevice {
    /// `None` only while it is being dropped.
    object: Option<QpObject>,
    cleaners: Cleaners,
    /// Of a queue pair with an SRQ, where the device reports it.
    last_wqe: Option<LastWqe>,
    /// Lives as long as the queue pair, for those that watch it.
    life: Arc<()>,
}

/// The completion queues of a queue pair, for when it goes.
pub(super) struct Cleaners {
    send: CqCleaner,
    /// `None` if it is the same queue as `send`.
    receive: Option<CqCleaner>,
    /// Where receives taken from a shared receive queue are given back.
    returns: Option<SrqReturns>,
    /// Its entries among the users of both completion queues.
    uses: Option<[CqUse; 2]>,
}

impl Cleaners {
    /// `receive` is `None` where one completion queue takes both.
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
                Some(returns) => cleaner.clean_shared(qpn, returns),
                None => cleaner.clean(qpn),
            });
        }
    }
}

impl OnDevice {
    pub(super) fn new(object: QpObject, cleaners: Cleaners, last_wqe: Option<LastWqe>) -> Self {
        Self { object: Some(object), cleaners, last_wqe, life: Arc::default() }
    }

    /// What lives as long as the queue pair.
    pub(super) fn life(&self) -> &Arc<()> {
        &self.life
    }

    pub(super) fn object(&self) -> &QpObject {
        self.object.as_ref().expect("a queue pair has its object until it is dropped")
    }

    pub(super) fn object_mut(&mut self) -> &mut QpObject {
        self.object.as_mut().expect("a queue pair has its object until it is dropped")
    }

    /// Removes the queue pair's CQEs from its completion queues, by the number of the object: the
    /// rings may have been swapped with another queue pair's.
    pub(super) fn clean(&self) {
        self.cleaners.clean(self.object().qpn());
    }

    pub(super) fn destroy(mut self) -> Result<(), Error> {
        self.leave()?;
        match self.object.take() {
            Some(object) => object.destroy(),
            None => Ok(()),
        }
    }

    /// Moves the queue pair to RESET, and removes its completions.
    pub(super) fn reset(&mut self) -> Result<(), Error> {
        self.enter_reset()?;
        self.clean();
        Ok(())
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

    /// Fails if its completion queues have no room for all that it may complete, because of CQEs of
    /// before that have not been polled past.
    pub(super) fn check_room(&self) -> Result<(), Error> {
        self.cleaners.uses.iter().flatten().try_for_each(CqUse::check)
    }

    /// Moves the queue pair to RESET if it may have written completions, and removes these.
    fn leave(&mut self) -> Result<(), Error> {
        let Some(object) = &self.object else { return Ok(()) };
        let left = match object.has_left_reset() {
            true => self.enter_reset(),
            false => Ok(()),
        };
        self.clean();
        left
    }

    /// Lets the queue pair complete the receive that it has taken from its SRQ. If that fails or
    /// takes too long, the receive may be lost.
    fn give_back(&mut self) {
        let (Some(object), Some(last_wqe)) = (&mut self.object, &self.last_wqe) else { return };
        // Before RTR it has received nothing.
        if !object.has_reached_rtr() {
            return;
        }
        let lost = match object.to_error().and_then(|()| last_wqe.wait()) {
            Ok(true) => return,
            Ok(false) => {
                let hint = "Last WQE Reached (event 0x13) did not come";
                Error::new(ErrorKind::QueueFailed, "giving back receives of an SRQ", hint)
            }
            Err(error) => error,
        };
        if lost.kind() != ErrorKind::DeviceGone {
            let context = object.object().context();
            context.count_leak("receive taken from an SRQ by QP", object.qpn().0, &lost);
        }
    }
}

/// The device releases the queues, the completion queues forget them, and then their number may
/// be another's.
///
/// A queue pair that does not go to RESET may go on completing requests until it is destroyed,
/// behind the cleaning; so its number must never be another's. It is leaked then, and counted
/// ([`Context::leaked`](verbless_devx::Context::leaked)).
impl Drop for OnDevice {
    fn drop(&mut self) {
        if let Err(error) = self.leave()
            && error.kind() != ErrorKind::DeviceGone
            && let Some(object) = self.object.take()
        {
            object.object().context().count_leak("QP", object.qpn().0, &error);
            // Its CQEs may come until then, and take their entries.
            mem::forget((object, self.cleaners.uses.take()));
        }
    }
}
