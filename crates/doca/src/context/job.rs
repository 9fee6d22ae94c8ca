//! What a work queue takes.

pub(crate) mod sealed {
    use crate::context::core::CtxId;
    use crate::context::engine::Engine;
    use crate::context::event::Tag;
    use crate::context::failure::JobType;
    use crate::context::side::Side;
    use crate::error::Refused;

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
