//! The device's side of a queue pair, and how it goes: reset, cleaned out of its completion queues,
//! destroyed.

use std::mem;

use super::cq_users::CqUse;
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
}

/// The completion queues of a queue pair, for when it goes.
pub(super) struct Cleaners {
    send: CqCleaner,
    /// `None` if it is the same queue as `send`.
    receive: Option<CqCleaner>,
    /// Where receives taken from a shared receive queue are given back.
    returns: Option<SrqReturns>,
    /// Its entries among the users of both completion queues.
    _reports: [CqUse; 2],
}

impl Cleaners {
    /// `receive` is `None` where one completion queue takes both.
    pub(super) fn new(
        send: CqCleaner,
        receive: Option<CqCleaner>,
        returns: Option<SrqReturns>,
        reports: [CqUse; 2],
    ) -> Self {
        if returns.is_some() {
            receive.as_ref().unwrap_or(&send).claim_receives();
        }
        Self { send, receive, returns, _reports: reports }
    }

    fn clean(&self, qpn: Qpn) {
        for cleaner in std::iter::once(&self.send).chain(&self.receive) {
            match &self.returns {
                Some(returns) => cleaner.clean_shared(qpn, returns),
                None => cleaner.clean(qpn),
            }
        }
    }
}

impl OnDevice {
    pub(super) fn new(object: QpObject, cleaners: Cleaners) -> Self {
        Self { object: Some(object), cleaners }
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

    /// Moves the queue pair to RESET if it may have written completions, and removes these.
    fn leave(&mut self) -> Result<(), Error> {
        let Some(object) = &mut self.object else { return Ok(()) };
        let left = match object.has_left_reset() {
            true => object.to_reset(),
            false => Ok(()),
        };
        self.clean();
        left
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
            mem::forget(object);
        }
    }
}
