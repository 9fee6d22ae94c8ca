//! What runs the jobs of a context on one work queue.

use verbless_queue::{Cqe, PlainCqe};

use super::event::Done;
use super::side::{Room, Side};
use crate::error::{Error, ErrorKind, Result};

/// Where an engine is made.
pub struct Place<'w> {
    /// Jobs at a time at most.
    pub(crate) depth: u32,
    /// What its queues have as user index.
    pub(crate) user_index: u32,
    /// The device, and the completion queue of the work queue on it.
    pub(crate) side: &'w mut Side,
}

/// What a good CQE was.
pub enum Succeeded {
    /// Not of what the engine knows at once.
    Not,
    /// Of a job that goes on.
    GoesOn,
    /// A job's last one.
    Done(Done),
}

/// The jobs of one context on one work queue.
///
/// A job that it took is in flight until it has yielded an event for it.
pub trait Engine: Send {
    /// A good CQE of one of its queues, as most are. With [`Succeeded::Not`], nothing has changed,
    /// and [`Engine::complete`] is asked. An engine that leaves this out is only slower.
    #[inline(always)]
    fn succeed(&mut self, cqe: PlainCqe<'_>, room: &mut Room) -> Succeeded {
        let _ = (cqe, room);
        Succeeded::Not
    }

    /// A CQE of one of its queues. It may be of a job that goes on.
    ///
    /// # Errors
    /// A CQE that cannot be.
    fn complete(&mut self, cqe: Cqe, side: &mut Side) -> Result<Option<Done>> {
        let _ = side;
        let text = format!("the device completed a request of {}, which has no queue", cqe.qpn());
        Err(Error::new(ErrorKind::InvalidValue, text))
    }

    /// Does a bit of what no device does. It may complete a job.
    fn progress(&mut self, side: &mut Side) -> Option<Done> {
        let _ = side;
        None
    }

    /// Whether [`Engine::progress`] has something to do.
    fn has_work(&self) -> bool {
        false
    }

    /// Jobs in flight.
    fn in_flight(&self) -> u32;

    /// Has every job in flight yield an event soon: done, or failed with
    /// [`Shutdown`](crate::ErrorKind::Shutdown).
    fn abort(&mut self) -> Result<()>;
}
