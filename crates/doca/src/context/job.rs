//! What a work queue takes.

use super::{CtxId, Engine, Event, JobType, Side};
use crate::error::Refused;

/// Whose a job is. It comes back with the job's event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tag {
    /// The program's: it retrieves the event.
    #[default]
    Program,
    /// A node's of an instance of a graph.
    Node { run: u32, node: u32 },
    /// A future's.
    Future(u32),
}

/// A job that ended.
pub struct Done {
    pub(crate) tag: Tag,
    pub(crate) event: Event,
}

pub(crate) mod sealed {
    use super::{CtxId, Engine, JobType, Refused, Side, Tag};

    pub trait Sealed: Sized + Send + 'static {
        /// What runs jobs of this type.
        type Engine: Engine;

        /// The context that it is for.
        fn context(&self) -> CtxId;

        /// What sort of job it is.
        fn job_type(&self) -> JobType;

        /// Says whose it is.
        fn set_tag(&mut self, tag: Tag);

        /// Begins it, or gives it back.
        fn begin(self, engine: &mut Self::Engine, side: &mut Side) -> Result<(), Refused<Self>>;
    }
}

/// A job (`struct doca_job`): a context makes it, a work queue takes it with its buffers.
pub trait Job: sealed::Sealed {}
