//! Shared code of both sides of a sync event, in either mode.
#![allow(dead_code, reason = "each sample uses its part")]

use verbless_doca::memory::ExportDescriptor;
use verbless_doca::sync_event::{SyncEvent, SyncEventCtx, SyncEventJob};
use verbless_doca::{Event, Retrieve, WorkQ};

use crate::support::Result;

/// The value that the host signals, and then the DPU.
pub(crate) const HOST_SIGNAL: u64 = 3;
pub(crate) const DPU_SIGNAL: u64 = 5;

/// The flags of the samples of sync events.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Start the sync event in asynchronous mode (synchronous mode by default).
    #[arg(long = "async")]
    pub(crate) is_async: bool,
    /// Depth of the work queue (for asynchronous mode).
    #[arg(long, default_value = "32", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) qdepth: u32,
    /// Signal by adding to the value (by setting it by default).
    #[arg(long)]
    atomic: bool,
}

/// A started sync event.
pub(crate) enum Handle {
    Sync(SyncEvent),
    Async(SyncEventCtx, Box<WorkQ>),
}

impl Handle {
    pub(crate) fn of_context(context: SyncEventCtx, depth: u32) -> Result<Self> {
        let mut workq = WorkQ::new(depth)?;
        workq.add(&context)?;
        Ok(Self::Async(context, Box::new(workq)))
    }

    pub(crate) fn export(&self) -> Result<ExportDescriptor> {
        Ok(match self {
            Self::Sync(event) => event.export_to_dpu()?,
            Self::Async(context, _) => context.export_to_dpu()?,
        })
    }

    pub(crate) fn get(&mut self) -> Result<u64> {
        match self {
            Self::Sync(event) => Ok(event.get()?),
            Self::Async(context, workq) => {
                perform(context.get(), workq)?.ok_or_else(|| "a get got nothing".into())
            }
        }
    }

    /// Changes the value from below `value` to `value`.
    pub(crate) fn signal(&mut self, value: u64, options: &Options) -> Result {
        if options.atomic {
            let increment = value - self.get()?;
            match self {
                Self::Sync(event) => {
                    let _before = event.update_add(increment)?;
                }
                Self::Async(context, workq) => {
                    let _before = perform(context.add(increment), workq)?;
                }
            }
        } else {
            match self {
                Self::Sync(event) => event.update_set(value)?,
                Self::Async(context, workq) => {
                    let _before = perform(context.set(value), workq)?;
                }
            }
        }
        Ok(())
    }

    pub(crate) fn wait_gt(&mut self, threshold: u64) -> Result {
        match self {
            Self::Sync(event) => event.wait_gt_yield(threshold)?,
            Self::Async(context, workq) => {
                let _before = perform(context.wait_gt(threshold), workq)?;
            }
        }
        Ok(())
    }

    /// Stops and destroys the sync event and its objects, users first.
    pub(crate) fn destroy(self) -> Result {
        let stopped = match self {
            Self::Sync(event) => event.stop(),
            Self::Async(context, mut workq) => {
                workq.remove(&context)?;
                context.stop()?
            }
        };
        stopped.destroy();
        Ok(())
    }
}

/// Submits a job, and polls until it is done.
fn perform(job: SyncEventJob, workq: &mut WorkQ) -> Result<Option<u64>> {
    workq.submit(job)?;
    loop {
        match workq.progress_retrieve() {
            Ok(Event::SyncEvent(done)) => return Ok(done.value),
            Ok(_) | Err(Retrieve::Again) => std::thread::yield_now(),
            Err(other) => return Err(other.into()),
        }
    }
}
