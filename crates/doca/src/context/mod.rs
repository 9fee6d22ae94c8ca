//! Contexts and work queues (`doca_ctx.h`; section 3.4 of 2.2, 4.8, 4.9, 5.5 and 5.6 of 1.3).
//!
//! A *context* is an instance of a library ([`Dma`](crate::dma::Dma), [`Sha`](crate::sha::Sha)) on a
//! device. It is configured by a builder, and started; only a started one can be used. A *work
//! queue* ([`WorkQ`]) is one thread's way to contexts: it is added to them, takes jobs for them, and
//! yields an [`Event`] for each job when it is done.
//!
//! | in C | here |
//! |---|---|
//! | `doca_T_create`, `doca_T_as_ctx`, `doca_ctx_dev_add`, `doca_ctx_start` | `T::builder(&dev)…start()` |
//! | `doca_ctx_workq_add`, `doca_ctx_workq_rm` | [`WorkQ::add`], [`WorkQ::remove`] |
//! | `doca_workq_submit` | [`WorkQ::submit`], which takes the job with its buffers |
//! | `doca_workq_progress_retrieve` | [`WorkQ::progress_retrieve`], which gives them back |
//! | `doca_ctx_stop`, `doca_ctx_dev_rm`, `doca_T_destroy` | `T::stop`, drops |

mod core;
mod engine;
mod event;
mod handle;
mod job;
mod queues;
mod side;
mod wait;
mod workq;

pub(crate) use self::core::{Core, CtxId};
pub(crate) use engine::{Engine, Place};
pub use event::{Event, JobError, JobType, Retrieve};
pub use job::Job;
pub(crate) use job::sealed as job_sealed;
pub(crate) use job::{Done, Tag};
pub(crate) use queues::Queues;
pub(crate) use side::Side;
pub use wait::Events;
pub use workq::{WorkQ, WorkQBuilder};

pub(crate) mod sealed {
    use std::sync::Arc;

    use super::{Core, Engine, Place};
    use crate::Result;

    pub trait Sealed {
        fn core(&self) -> &Arc<Core>;

        /// What runs the jobs of one work queue.
        fn engine(&self, place: &mut Place<'_>) -> Result<Box<dyn Engine>>;
    }
}

/// A started instance of a library, which work queues are added to (`struct doca_ctx`). It is
/// `Send` and `Sync`.
pub trait Context: sealed::Sealed {
    /// Whether a work queue in event-driven mode can be added to it
    /// (`doca_ctx_get_event_driven_supported`).
    fn event_driven_supported(&self) -> bool {
        self.core().event_driven
    }

    /// Work queues that it is on.
    fn workqs(&self) -> u32 {
        self.core().workqs()
    }
}
