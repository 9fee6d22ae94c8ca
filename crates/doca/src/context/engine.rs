//! Engines: each executes the jobs of a context on one work queue.

use std::os::fd::BorrowedFd;

use verbless_queue::{Cqe, ReceiveCqe, RequestId};

use super::device_cq::DeviceCq;
use super::event::{Done, EventSlot, Tag};
use crate::error::{Error, ErrorKind, Result};

/// The arguments for the creation of an engine.
pub struct EngineArgs<'w> {
    /// Maximum number of jobs at a time.
    pub(crate) depth: u32,
    /// The user index of its queues.
    pub(crate) user_index: u32,
    /// The device, and the completion queue of the work queue on it.
    pub(crate) device_cq: &'w mut DeviceCq,
}

/// For each queue of an engine with jobs in flight, the number of jobs that it ended, modulo 2^32.
#[derive(Clone, Copy, Debug)]
pub struct EndedJobs(pub(crate) [Option<u32>; 2]);

impl EndedJobs {
    pub(super) const NONE: Self = Self([None; 2]);

    /// Whether a queue has jobs in flight in both snapshots, and no job of it ended between them.
    pub(super) fn has_one_of(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).any(|(one, other)| one.is_some() && one == other)
    }
}

/// The jobs of one context on one work queue.
///
/// An accepted job is in flight until the engine has yielded its event.
pub trait Engine: Send {
    /// Whether a started job may need [`Engine::progress`].
    const WORKS: bool = true;

    /// Whether [`Engine::progress`] can ever do anything.
    const PROGRESSES: bool = true;

    /// Most jobs end here: returns the job that a successful CQE of one of its queues ends. With
    /// `None`, nothing has changed, and the caller calls [`Engine::complete`]. An engine without
    /// this function is only slower. Programs inline this function: it has only the code that most
    /// jobs need, and no call that yields the job.
    #[inline(always)]
    fn complete_success(&mut self, request: RequestId) -> Option<Done> {
        let _ = request;
        None
    }

    /// Like [`Engine::complete_success`], for the CQE of a successful receive: writes the event to
    /// `into`, and returns the job's tag.
    fn receive(&mut self, cqe: &ReceiveCqe<'_>, into: &mut EventSlot) -> Option<Tag> {
        let _ = (cqe, into);
        None
    }

    /// Handles a CQE of one of its queues. If the CQE ends a job, it writes the job's event to
    /// `into` and returns its tag; the job may also continue.
    ///
    /// # Errors
    /// An impossible CQE.
    fn complete(
        &mut self,
        cqe: Cqe,
        device_cq: &mut DeviceCq,
        into: &mut EventSlot,
    ) -> Result<Option<Tag>> {
        let _ = (device_cq, into);
        let text = format!("the device completed a request of {}, which has no queue", cqe.qpn());
        Err(Error::new(ErrorKind::InvalidValue, text))
    }

    /// Does a step of software's work. It may complete a job, or yield an external event.
    fn progress(&mut self, device_cq: &mut DeviceCq) -> Option<Done>;

    /// Whether [`Engine::progress`] has something to do.
    fn has_work(&self) -> bool;

    /// A file that is readable while [`Engine::progress`] has work without a CQE.
    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Jobs in flight.
    fn in_flight(&self) -> u32;

    /// The jobs that each of its device queues ended.
    fn ended(&self) -> EndedJobs {
        EndedJobs::NONE
    }

    /// Ends every job in flight soon: done, or failed with
    /// [`Shutdown`](crate::ErrorKind::Shutdown).
    ///
    /// # Errors
    /// The device does not release them.
    fn abort(&mut self, device_cq: &mut DeviceCq) -> Result<()>;

    /// Whether the device still works on its queues; executes one command per queue.
    ///
    /// # Errors
    /// [`QueueFailed`](verbless_queue::ErrorKind::QueueFailed) if one is in the error state; the
    /// device refuses.
    fn check(&self) -> std::result::Result<(), verbless_queue::DeviceError> {
        Ok(())
    }

    /// Like [`Engine::abort`], with the reason that its jobs report.
    ///
    /// # Errors
    /// As [`Engine::abort`].
    fn fail(&mut self, device_cq: &mut DeviceCq, why: &Error) -> Result<()> {
        let _ = why;
        self.abort(device_cq)
    }
}
