//! Jobs that a work queue accepts.

pub(crate) mod sealed {
    use crate::context::core::CtxId;
    use crate::context::device_cq::DeviceCqLookup;
    use crate::context::engines::EngineOf;
    use crate::context::event::Tag;
    use crate::context::job_type::JobType;
    use crate::error::Refused;

    pub trait Sealed: Sized + Send + 'static {
        /// The engine that executes jobs of this type.
        type Engine: EngineOf;

        /// The context that the job is for.
        fn context(&self) -> CtxId;

        /// The type of the job.
        fn job_type(&self) -> JobType;

        /// Whether [`Sealed::begin_kept`] begins the jobs that are not simple.
        const KEEPS: bool = false;

        /// Begins the job, or returns it. The work queue has reserved room for one completion;
        /// further completions of the job take spare entries.
        fn begin(
            self,
            tag: Tag,
            engine: &mut Self::Engine,
            device_cq: DeviceCqLookup<'_>,
        ) -> std::result::Result<(), Refused<Self>>;

        /// For jobs that [are kept](Sealed::KEEPS): begins a simple job. For any other, the engine
        /// keeps the job, and the caller calls [`Sealed::begin_kept`] at once. So the caller need
        /// not hold job and engine, which would cost time for every job.
        #[inline(always)]
        fn begin_simple(self, tag: Tag, engine: &mut Self::Engine) -> bool {
            let _ = (self, tag, engine);
            false
        }

        /// Begins the kept job of the engine of `context`, or returns it.
        fn begin_kept(
            context: CtxId,
            engine: &mut Self::Engine,
            device_cq: DeviceCqLookup<'_>,
        ) -> std::result::Result<(), Refused<Self>> {
            let _ = (context, engine, device_cq);
            unreachable!("jobs of this type are not kept")
        }
    }
}

/// A job (`struct doca_job`): a context creates it, and the program submits it to a work queue
/// together with its buffers.
pub trait Job: sealed::Sealed {}
