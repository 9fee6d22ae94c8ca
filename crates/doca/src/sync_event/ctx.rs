//! A sync event in asynchronous mode: a context with jobs for work queues.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;

use super::Stopped;
use super::engine::SyncEngine;
use super::job::SyncEventJob;
use super::link::{LinkOperation, MAX_THRESHOLD};
use super::word::CounterWord;
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
use crate::error::{Error, ErrorKind, Refused, Result};
use crate::memory::ExportDescriptor;

/// A started sync event in asynchronous mode. It takes any number of work queues, in either mode.
///
/// On each of them, gets, sets and adds are executed in order, and do not delay waits. Each wait
/// ends once the value is above its own threshold, in any order of submission. The device's queue
/// executes waits one after the other, the lowest threshold first. A wait with a lower threshold
/// than the queued ones costs a change of the queue's state, by commands, which allocate: submit
/// lower thresholds first. A wait may miss a value that is above its threshold only for a moment,
/// like a poll.
///
/// A failed job does not affect others: those after it are posted again. They fail with
/// [`ErrorKind::Shutdown`] only if it is unknown whether the device executed them, for example when
/// the queue itself fails.
///
/// It is `Send`, but not `Sync`: one thread at a time uses it.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// use verbless_doca::sync_event::{Location, SyncEvent};
/// use verbless_doca::{Event, WorkQ};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dev = doc::dev();
/// let event = SyncEvent::builder(&dev)
///     .publisher_add_location(Location::Cpu)?
///     .subscriber_add_location(Location::Cpu)?
///     .as_ctx()
///     .start()?;
/// let mut workq = WorkQ::builder(4).event_driven().build()?;
/// workq.add(&event)?;
/// workq.submit(event.wait_gt(5).user_data(1))?;
/// workq.submit(event.add(6).user_data(2))?;
/// let mut seen: Vec<_> = workq.drain().collect::<Result<_, _>>()?;
/// seen.sort_by_key(Event::user_data);
/// let Event::SyncEvent(added) = &seen[1] else { panic!("no other jobs") };
/// assert_eq!(added.value, Some(0), "the value before");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SyncEventCtx {
    core: Arc<Core>,
    word: Arc<CounterWord>,
    _not_sync: PhantomData<Cell<()>>,
}

impl SyncEventCtx {
    pub(super) fn new(word: CounterWord) -> Self {
        let core = Arc::new(Core::new(word.dev(), true, u32::MAX));
        Self { core, word: Arc::new(word), _not_sync: PhantomData }
    }

    /// The context's device.
    pub fn dev(&self) -> &Dev {
        self.core.dev()
    }

    /// A job: gets the value (`doca_sync_event_job_get`).
    pub fn get(&self) -> SyncEventJob {
        SyncEventJob::new(self.core.id(), LinkOperation::Get)
    }

    /// A job: sets the value (`doca_sync_event_job_update_set`).
    pub fn set(&self, value: u64) -> SyncEventJob {
        SyncEventJob::new(self.core.id(), LinkOperation::Set(value))
    }

    /// A job: adds to the value, atomically among all adds of this card
    /// (`doca_sync_event_job_update_add`). Its event has the old value.
    pub fn add(&self, increment: u64) -> SyncEventJob {
        SyncEventJob::new(self.core.id(), LinkOperation::Add(increment))
    }

    /// A job: waits until the value is greater than a threshold (`doca_sync_event_job_wait`).
    ///
    /// Threshold and value are limited to the range from 0 to 254: a larger threshold is refused
    /// with [`ErrorKind::InvalidValue`] at the submission, and of a value beyond 255 only the
    /// lowest byte reliably counts. On a device without waits for data
    /// ([`SyncEvent::job_supported`](super::SyncEvent::job_supported)), the job is refused with
    /// [`ErrorKind::NotSupported`]: get the value and compare.
    pub fn wait_gt(&self, threshold: u64) -> SyncEventJob {
        SyncEventJob::new(self.core.id(), LinkOperation::WaitGt(threshold))
    }

    /// Exports the event for the DPU: see
    /// [`SyncEvent::export_to_dpu`](super::SyncEvent::export_to_dpu).
    ///
    /// # Errors
    /// As [`SyncEvent::export_to_dpu`](super::SyncEvent::export_to_dpu).
    pub fn export_to_dpu(&self) -> Result<ExportDescriptor> {
        self.word.export()
    }

    /// Stops the context (`doca_ctx_stop`); it can then only be destroyed.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] while it is on a work queue.
    pub fn stop(self) -> std::result::Result<Stopped, Refused<Self>> {
        match self.core.may_stop() {
            Ok(()) => Ok(Stopped::new(self.word)),
            Err(error) => Err(Refused::new(error, self)),
        }
    }
}

impl sealed::Sealed for SyncEventCtx {
    fn core(&self) -> &Arc<Core> {
        &self.core
    }

    fn engine(&self, args: &mut EngineArgs<'_>) -> Result<AnyEngine> {
        Ok(SyncEngine::new(&self.word, args)?.into())
    }
}

impl Context for SyncEventCtx {}

impl job_sealed::Sealed for SyncEventJob {
    type Engine = SyncEngine;

    fn context(&self) -> CtxId {
        self.ctx
    }

    fn job_type(&self) -> JobType {
        self.operation.job_type()
    }

    fn begin(
        self,
        tag: Tag,
        engine: &mut SyncEngine,
        _device_cq: DeviceCqLookup<'_>,
    ) -> std::result::Result<(), Refused<Self>> {
        if let LinkOperation::WaitGt(threshold) = self.operation
            && threshold > MAX_THRESHOLD
        {
            let text = "a wait job takes thresholds from 0 to 254: wait synchronously, or get the \
                        value and compare";
            return Err(Refused::new(Error::plain(ErrorKind::InvalidValue, text), self));
        }
        engine.begin(self.operation, self.user_data, tag).map_err(|error| Refused::new(error, self))
    }
}

impl Job for SyncEventJob {}
