//! Contexts and work queues (`doca_ctx.h`; section 3.4 of 2.2, 4.8, 4.9, 5.5 and 5.6 of 1.3).
//!
//! A *context* is an instance of a library ([`Dma`](crate::dma::Dma), [`Sha`](crate::sha::Sha)) on
//! a device. A builder configures and starts it; only a started one can be used. A *work queue*
//! ([`WorkQ`]) is one thread's access to contexts: it is added to them, accepts jobs for them, and
//! yields an [`Event`] for each completed job.
//!
//! | in C | here |
//! |---|---|
//! | `doca_T_create` to `doca_ctx_start` | `T::builder(&dev)…start()` |
//! | `doca_ctx_workq_add`, `doca_ctx_workq_rm` | [`WorkQ::add`], [`WorkQ::remove`] |
//! | `doca_workq_submit` | [`WorkQ::submit`], which takes the job with its buffers |
//! | `doca_workq_progress_retrieve` | [`WorkQ::progress_retrieve`], which gives them back |
//! | `doca_ctx_stop`, `doca_ctx_dev_rm`, `doca_T_destroy` | `T::stop`, drops |
//!
//! [`WorkQ::retrieve_within`] waits according to the mode. A program with its own loop waits for
//! the [file](WorkQ::event_handle):
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
//! # use verbless_doca::dma::Dma;
//! use verbless_doca::{Event, Retrieve, WorkQ};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dev = doc::dev();
//! # let (source, destination) = (doc::data(&dev, b"by the device"), doc::room(&dev));
//! # let dma = Dma::builder(&dev).start()?;
//! # fn sleep(file: std::os::fd::BorrowedFd<'_>) -> std::io::Result<()> {
//! #     doc::block_on(doc::readable(file))
//! # }
//! let mut workq = WorkQ::builder(16).event_driven().build()?;
//! workq.add(&dma)?;
//! workq.submit(dma.memcpy(source, destination))?;
//! let done = loop {
//!     match workq.progress_retrieve() {
//!         Ok(Event::Dma(done)) => break done,
//!         Ok(other) => println!("{other:?}"),
//!         Err(Retrieve::Again) => {
//!             workq.arm()?;
//!             sleep(workq.event_handle())?; // in poll, epoll or select
//!             workq.clear()?;
//!         }
//!         Err(Retrieve::IoFailed(event)) => panic!("job {:?} failed", event.user_data()),
//!         Err(Retrieve::Failed(error)) => return Err(error.into()),
//!     }
//! };
//! assert_eq!(done.destination.to_vec()?, b"by the device");
//! # Ok(())
//! # }
//! ```

pub(crate) mod core;
pub(crate) mod device_cq;
pub(crate) mod engine;
pub(crate) mod engines;
pub(crate) mod event;
pub(crate) mod failure;
mod handle;
pub(crate) mod job;
pub(crate) mod job_type;
pub(crate) mod library;
pub(crate) mod queues;
pub(crate) mod wait;
pub(crate) mod workq;

pub use event::{Event, Retrieve};
pub use failure::JobError;
pub use job::Job;
pub(crate) use job::sealed as job_sealed;
pub use job_type::JobType;
pub(crate) use library::sealed;
pub use library::{Context, Removable};
pub use wait::Events;
pub use workq::{WorkQ, WorkQBuilder};
