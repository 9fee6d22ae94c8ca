//! DMA (`doca_dma.h`): the device copies memory.
//!
//! The device's memory-to-memory engine does it, without the CPU: from memory of this side, or of
//! the host as the DPU sees it, to either. Source and destination may be chains of buffers; the
//! source's datarooms are taken as one, and appended to the destination's.
//!
//! ```no_run
//! # use verbless_doca::{Buf, Dev, Event, WorkQ};
//! use verbless_doca::dma::Dma;
//!
//! # fn f(dev: &Dev, source: Buf, destination: Buf) -> Result<(), Box<dyn std::error::Error>> {
//! let dma = Dma::builder(dev).start()?;
//! let mut workq = WorkQ::new(16)?;
//! workq.add(&dma)?;
//! workq.submit(dma.memcpy(source, destination))?;
//! let Some(Event::Dma(done)) = workq.retrieve_within(None)? else { panic!("no other jobs") };
//! println!("{} bytes are in the destination", done.destination.data_len());
//! # Ok(())
//! # }
//! ```
//!
//! A job that fails, fails alone: the device's queue stops at it, and those behind it, which the
//! device then has not begun, are given to it again. What a failed job has written is undefined.

mod copier;
pub(crate) mod done;
mod queue;

use std::sync::Arc;

use crate::buffer::Buf;
use crate::context::core::{Core, CtxId};
use crate::context::engine::{Engine, Place};
use crate::context::event::Tag;
use crate::context::failure::JobType;
use crate::context::job::Job;
use crate::context::library::Context;
use crate::context::side::Side;
use crate::context::{job_sealed, sealed};
use crate::device::Dev;
use crate::error::{Error, ErrorKind, Refused, Result};
use crate::types::UserData;

use copier::Copier;
pub use done::MemcpyDone;

/// Buffers that a source or a destination may be chained of at most.
const MAX_LIST: u32 = 64;

/// A started DMA context. It takes any number of work queues, in either mode.
#[derive(Debug)]
pub struct Dma {
    core: Arc<Core>,
}

/// A DMA context that is being configured.
#[derive(Clone, Debug)]
#[must_use = "a context exists when it is started"]
pub struct DmaBuilder {
    dev: Dev,
}

impl DmaBuilder {
    /// Starts it.
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`] if the device copies no memory.
    pub fn start(self) -> Result<Dma> {
        Dma::memcpy_supported(&self.dev)?;
        Ok(Dma { core: Arc::new(Core::new(&self.dev, true, u32::MAX)) })
    }
}

impl Dma {
    /// A context on `dev`, to be configured.
    pub fn builder(dev: &Dev) -> DmaBuilder {
        DmaBuilder { dev: dev.clone() }
    }

    /// Its device.
    pub fn dev(&self) -> &Dev {
        self.core.dev()
    }

    /// Whether `dev` copies memory (`doca_dma_job_get_supported`).
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`] if it does not, with the capability that it lacks.
    pub fn memcpy_supported(dev: &Dev) -> Result<()> {
        queue::supported(dev)
    }

    /// Buffers that a source or a destination may be chained of at most
    /// (`doca_dma_get_max_list_buf_num_elem`).
    ///
    /// # Errors
    /// As [`Dma::memcpy_supported`].
    pub fn max_list_buf_num_elem(dev: &Dev) -> Result<u32> {
        Self::memcpy_supported(dev).map(|()| MAX_LIST)
    }

    /// Bytes of a job at most (`doca_dma_get_max_buf_size`).
    ///
    /// # Errors
    /// As [`Dma::memcpy_supported`].
    pub fn max_buf_size(dev: &Dev) -> Result<u64> {
        Self::memcpy_supported(dev).map(|()| queue::longest(dev))
    }

    /// A job: copies the datarooms of `source` into the tailrooms of `destination`.
    pub fn memcpy(&self, source: Buf, destination: Buf) -> Memcpy {
        let (tag, user_data) = (Tag::default(), UserData::default());
        Memcpy { ctx: self.core.id(), tag, user_data, source, destination }
    }

    /// Ends the context.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] while it is on a work queue.
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

    fn engine(&self, place: &mut Place<'_>) -> Result<Box<dyn Engine>> {
        Ok(Box::new(Copier::new(place)?))
    }
}

impl Context for Dma {}

/// A copy (`struct doca_dma_job_memcpy`).
#[derive(Debug)]
#[must_use = "a job is done when it is submitted"]
pub struct Memcpy {
    ctx: CtxId,
    tag: Tag,
    user_data: UserData,
    source: Buf,
    destination: Buf,
}

impl Memcpy {
    /// What comes back with its event.
    pub fn user_data(self, user_data: impl Into<UserData>) -> Self {
        Self { user_data: user_data.into(), ..self }
    }

    /// Gives back its buffers: source, destination.
    pub fn into_bufs(self) -> (Buf, Buf) {
        (self.source, self.destination)
    }
}

impl job_sealed::Sealed for Memcpy {
    type Engine = Copier;

    #[inline]
    fn context(&self) -> CtxId {
        self.ctx
    }

    fn job_type(&self) -> JobType {
        JobType::DmaMemcpy
    }

    fn set_tag(&mut self, tag: Tag) {
        self.tag = tag;
    }

    #[inline]
    fn begin(self, engine: &mut Copier, side: &mut Side) -> std::result::Result<(), Refused<Self>> {
        engine.begin(self, side)
    }
}

impl Job for Memcpy {}

/// The refusals of a job, as they are on the path of jobs.
const fn refuse(kind: ErrorKind, text: &'static str) -> Error {
    Error::plain(kind, text)
}
