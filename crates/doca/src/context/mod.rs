//! Contexts and work queues (`doca_ctx.h`; section 3.4 of 2.2, 4.8, 4.9, 5.5 and 5.6 of 1.3).
//!
//! A *context* is an instance of a library ([`Dma`](crate::dma::Dma), [`Sha`](crate::sha::Sha)) on
//! a device. It is configured by a builder, and started; only a started one can be used. A *work
//! queue* ([`WorkQ`]) is one thread's way to contexts: it is added to them, takes jobs for them,
//! and yields an [`Event`] for each job when it is done.
//!
//! | in C | here |
//! |---|---|
//! | `doca_T_create` to `doca_ctx_start` | `T::builder(&dev)…start()` |
//! | `doca_ctx_workq_add`, `doca_ctx_workq_rm` | [`WorkQ::add`], [`WorkQ::remove`] |
//! | `doca_workq_submit` | [`WorkQ::submit`], which takes the job with its buffers |
//! | `doca_workq_progress_retrieve` | [`WorkQ::progress_retrieve`], which gives them back |
//! | `doca_ctx_stop`, `doca_ctx_dev_rm`, `doca_T_destroy` | `T::stop`, drops |

pub(crate) mod core;
pub(crate) mod engine;
pub(crate) mod engines;
pub(crate) mod event;
pub(crate) mod failure;
mod handle;
pub(crate) mod job;
pub(crate) mod library;
pub(crate) mod queues;
pub(crate) mod side;
pub(crate) mod wait;
pub(crate) mod workq;

pub use event::{Event, Retrieve};
pub use failure::{JobError, JobType};
pub use job::Job;
pub(crate) use job::sealed as job_sealed;
pub use library::Context;
pub(crate) use library::sealed;
pub use wait::Events;
pub use workq::{WorkQ, WorkQBuilder};
