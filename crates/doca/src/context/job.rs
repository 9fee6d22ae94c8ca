//! What a work queue takes.

pub(crate) mod sealed {
    use crate::context::core::CtxId;
    use crate::context::engines::Listed;
    use crate::context::event::Tag;
    use crate::context::failure::JobType;
    use crate::context::side::SideOf;
    use crate::error::Refused;

    pub trait Sealed: Sized + Send + 'static {
        /// What runs jobs of this type.
        type Engine: Listed;

        /// The context that it is for.
        fn context(&self) -> CtxId;

        /// What sort of job it is.
        fn job_type(&self) -> JobType;

        /// Begins it, or gives it back. Its completion has room; further ones of it take theirs of
        /// the side.
        fn begin(
            self,
            tag: Tag,
            engine: &mut Self::Engine,
            side: SideOf<'_>,
        ) -> Result<(), Refused<Self>>;
    }
}

/// A job (`struct doca_job`): a context makes it, a work queue takes it with its buffers.
pub trait Job: sealed::Sealed {}
