//! DMA (`doca_dma.h`): the device copies memory.
//!
//! The device's memory-to-memory engine copies, without the CPU, between memory of this side and,
//! on a DPU, memory that its host exported. Source and destination may be chains of buffers; a copy
//! reads the source's datarooms as one, and appends them to the destination's.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
//! # use verbless_doca::{Event, WorkQ};
//! use verbless_doca::dma::Dma;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dev = doc::dev();
//! # let (source, destination) = (doc::data(&dev, b"by the device"), doc::room(&dev));
//! let dma = Dma::builder(&dev).start()?;
//! let mut workq = WorkQ::new(16)?;
//! workq.add(&dma)?;
//! workq.submit(dma.memcpy(source, destination))?;
//! let Some(Event::Dma(done)) = workq.retrieve_within(None)? else { panic!("no other jobs") };
//! assert_eq!(done.destination.to_vec()?, b"by the device");
//! # Ok(())
//! # }
//! ```
//!
//! A failed job does not affect others: the device's queue stops at it, and the flushed jobs after
//! it are posted again. The destination of a failed job is undefined.

pub(crate) mod copier;
pub(crate) mod done;
mod job;
mod queue;
mod segments;

use std::sync::Arc;

use crate::as_dev::AsDev;
use crate::buffer::Buf;
use crate::context::core::{Core, CtxId};
use crate::context::device_cq::DeviceCqLookup;
use crate::context::engine::EngineArgs;
use crate::context::engines::AnyEngine;
use crate::context::event::Tag;
use crate::context::job::Job;
use crate::context::job_type::JobType;
use crate::context::library::Context;
use crate::context::{job_sealed, sealed};
use crate::device::Dev;
use crate::error::{Refused, Result};
use crate::types::UserData;

use copier::Copier;
pub use done::MemcpyDone;
pub use job::Memcpy;
use segments::MAX_LIST;

/// A started DMA context. It takes any number of work queues, in either mode.
#[derive(Debug)]
pub struct Dma {
    core: Arc<Core>,
}

/// A DMA context that is being configured.
#[derive(Clone, Debug)]
pub struct DmaBuilder {
    dev: Dev,
}

impl DmaBuilder {
    /// The device.
    pub const fn dev(&self) -> &Dev {
        &self.dev
    }

    /// Starts the context.
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`](crate::ErrorKind::NotSupported) if the device does not support
    /// copies.
    pub fn start(self) -> Result<Dma> {
        Dma::memcpy_supported(&self.dev)?;
        Ok(Dma { core: Arc::new(Core::new(&self.dev, true, u32::MAX)) })
    }
}

impl Dma {
    /// A context on `dev`, to be configured.
    #[must_use = "a context exists when it is started"]
    pub fn builder(dev: &Dev) -> DmaBuilder {
        DmaBuilder { dev: dev.clone() }
    }

    /// The context's device.
    pub fn dev(&self) -> &Dev {
        self.core.dev()
    }

    /// Whether `dev` supports memory copies (`doca_dma_job_get_supported`).
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`](crate::ErrorKind::NotSupported) if it does not, with the missing
    /// capability; the device cannot be opened.
    pub fn memcpy_supported(dev: &impl AsDev) -> Result<()> {
        queue::supported(&dev.dev()?)
    }

    /// Maximum number of buffers in the chain of a source or destination
    /// (`doca_dma_get_max_list_buf_num_elem`).
    ///
    /// # Errors
    /// As [`Dma::memcpy_supported`].
    pub fn max_list_buf_num_elem(dev: &impl AsDev) -> Result<u32> {
        Self::memcpy_supported(dev).map(|()| MAX_LIST)
    }

    /// Maximum bytes of a job (`doca_dma_get_max_buf_size`).
    ///
    /// # Errors
    /// As [`Dma::memcpy_supported`].
    pub fn max_buf_size(dev: &impl AsDev) -> Result<u64> {
        let dev = dev.dev()?;
        queue::supported(&dev).map(|()| queue::max_bytes(&dev))
    }

    /// A job: copies the datarooms of `source` into the tailrooms of `destination`.
    #[inline]
    pub fn memcpy(&self, source: Buf, destination: Buf) -> Memcpy {
        Memcpy { ctx: self.core.id(), user_data: UserData::default(), source, destination }
    }

    /// Ends the context.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`](crate::ErrorKind::InUse) while it is on a work queue.
    pub fn stop(self) -> std::result::Result<DmaBuilder, Refused<Self>> {
        match self.core.may_stop() {
            Ok(()) => Ok(DmaBuilder { dev: self.core.dev().clone() }),
            Err(error) => Err(Refused::new(error, self)),
        }
    }
}

impl sealed::Sealed for Dma {
    fn core(&self) -> &Arc<Core> {
        &self.core
    }

    fn engine(&self, args: &mut EngineArgs<'_>) -> Result<AnyEngine> {
        Ok(Copier::new(args)?.into())
    }
}

impl Context for Dma {}

impl job_sealed::Sealed for Memcpy {
    type Engine = Copier;

    #[inline(always)]
    fn context(&self) -> CtxId {
        self.ctx
    }

    fn job_type(&self) -> JobType {
        JobType::DmaMemcpy
    }

    const KEEPS: bool = true;

    fn begin(
        self,
        tag: Tag,
        engine: &mut Copier,
        device_cq: DeviceCqLookup<'_>,
    ) -> std::result::Result<(), Refused<Self>> {
        let ctx = self.ctx;
        match engine.begin_simple(self, tag) {
            true => Ok(()),
            false => engine.begin_kept(ctx, device_cq),
        }
    }

    #[inline(always)]
    fn begin_simple(self, tag: Tag, engine: &mut Copier) -> bool {
        engine.begin_simple(self, tag)
    }

    fn begin_kept(
        context: CtxId,
        engine: &mut Copier,
        device_cq: DeviceCqLookup<'_>,
    ) -> std::result::Result<(), Refused<Self>> {
        engine.begin_kept(context, device_cq)
    }
}

impl Job for Memcpy {}
