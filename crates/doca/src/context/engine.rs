//! Engines, which execute the jobs of a context on one work queue.

use std::os::fd::BorrowedFd;

use verbless_queue::{Cqe, ReceiveCqe, RequestId};

use super::event::{Done, Settled, Tag};
use super::side::Side;
use crate::error::{Error, ErrorKind, Result};

/// The environment in which an engine is made.
pub struct Place<'w> {
    /// Jobs at a time at most.
    pub(crate) depth: u32,
    /// The user index of its queues.
    pub(crate) user_index: u32,
    /// The device, and the completion queue of the work queue on it.
    pub(crate) side: &'w mut Side,
}

/// The jobs of one context on one work queue.
///
/// A job that it took is in flight until it has yielded an event for it.
pub trait Engine: Send {
    /// Whether a job that has begun may be work for [`Engine::progress`].
    const WORKS: bool = true;

    /// Whether [`Engine::progress`] ever does anything.
    const PROGRESSES: bool = true;

    /// The job that a good CQE of one of its queues ends, as most do. With `None`, nothing has
    /// changed, and [`Engine::complete`] is asked. An engine that leaves this out is only slower.
    /// Here stands what is open code in programs: no more than what most jobs need, and no call
    /// that yields the job.
    #[inline(always)]
    fn succeed(&mut self, request: RequestId) -> Option<Done> {
        let _ = request;
        None
    }

    /// Like [`Engine::succeed`], for the CQE of a successful receive: the event is written to
    /// `into`, and the job's tag returned.
    fn receive(&mut self, cqe: &ReceiveCqe<'_>, into: &mut Settled) -> Option<Tag> {
        let _ = (cqe, into);
        None
    }

    /// Handles a CQE of one of its queues. If it ends a job, the job's event is written to `into`
    /// and its tag returned; the job may also go on.
    ///
    /// # Errors
    /// A CQE that cannot be.
    fn complete(&mut self, cqe: Cqe, side: &mut Side, into: &mut Settled) -> Result<Option<Tag>> {
        let _ = (side, into);
        let text = format!("the device completed a request of {}, which has no queue", cqe.qpn());
        Err(Error::new(ErrorKind::InvalidValue, text))
    }

    /// Does a bit of what no device does. It may complete a job, or yield an external event.
    fn progress(&mut self, side: &mut Side) -> Option<Done>;

    /// Whether [`Engine::progress`] has something to do.
    fn has_work(&self) -> bool;

    /// A file that is readable while [`Engine::progress`] has something to do of which no
    /// completion queue tells.
    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Jobs in flight.
    fn in_flight(&self) -> u32;

    /// Ends every job in flight soon: done, or failed with
    /// [`Shutdown`](crate::ErrorKind::Shutdown).
    ///
    /// # Errors
    /// The device does not let go of them.
    fn abort(&mut self, side: &mut Side) -> Result<()>;
}
