//! Jobs that a work queue accepts.

pub(crate) mod sealed {
    use crate::context::core::CtxId;
    use crate::context::engines::Listed;
    use crate::context::event::Tag;
    use crate::context::failure::JobType;
    use crate::context::side::SideOf;
    use crate::error::Refused;

    pub trait Sealed: Sized + Send + 'static {
        /// The engine that executes jobs of this type.
        type Engine: Listed;

        /// The context that the job is for.
        fn context(&self) -> CtxId;

        /// The type of the job.
        fn job_type(&self) -> JobType;

        /// Whether [`Sealed::begin_kept`] is what begins a job that is not simple.
        const KEEPS: bool = false;

        /// Begins the job, or gives it back. There is room for its completion; if it has more of
        /// them, they take room of the side.
        fn begin(
            self,
            tag: Tag,
            engine: &mut Self::Engine,
            side: SideOf<'_>,
        ) -> std::result::Result<(), Refused<Self>>;

        /// For jobs that [are kept](Sealed::KEEPS): begins a simple job; any other is kept by the
        /// engine, and [`Sealed::begin_kept`] is called at once. So the caller needs neither job
        /// nor engine any more, which would cost time for every job.
        #[inline(always)]
        fn begin_simple(self, tag: Tag, engine: &mut Self::Engine) -> bool {
            let _ = (self, tag, engine);
            false
        }

        /// Begins the job that the engine of `context` keeps, or gives it back.
        fn begin_kept(
            context: CtxId,
            engine: &mut Self::Engine,
            side: SideOf<'_>,
        ) -> std::result::Result<(), Refused<Self>> {
            let _ = (context, engine, side);
            unreachable!("jobs of this type are not kept")
        }
    }
}

/// A job (`struct doca_job`): made by a context, and submitted to a work queue together with its
/// buffers.
pub trait Job: sealed::Sealed {}
