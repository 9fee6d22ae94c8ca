//! Sync events (`doca_sync_event.h`; section 3.4.6 of 2.2): a 64-bit counter that a host and its
//! DPU set, add to, and wait for.
//!
//! A sync event is created on one side, and started in one of two modes: as a [`SyncEvent`], whose
//! operations block the caller, or as a context, [`SyncEventCtx`], whose operations are jobs. The
//! type is the mode, so the mode cannot change later. The other side creates a handle from the
//! [export](SyncEvent::export_to_dpu), and starts it in either mode.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
//! use verbless_doca::sync_event::{Location, SyncEvent};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let first = |device_cq| verbless_doca::DevInfo::list_of(device_cq)?[0].open();
//! # let [host, dpu] = &doc::sides();
//! # let (host, dpu) = (&first(host)?, &first(dpu)?);
//! let event = SyncEvent::builder(host)
//!     .publisher_add_location(Location::Cpu)?
//!     .subscriber_add_location(Location::Cpu)?
//!     .start()?;
//! let descriptor = event.export_to_dpu()?;
//!
//! // At the DPU, which has got the descriptor's bytes.
//! let there = SyncEvent::create_from_export(descriptor.as_bytes(), dpu)?.start()?;
//! there.update_set(6)?;
//!
//! event.wait_gt(5)?;
//! assert_eq!(event.update_add(1)?, 6);
//! assert_eq!(there.get()?, 7);
//! # Ok(())
//! # }
//! ```
//!
//! # Permissions
//! Locations are hints. Every handle, the host's and the DPU's, may publish and subscribe. A DPU
//! uses the export; the DPA and GPUs cannot use one.
//!
//! # Atomicity
//! Adds of a CPU and of a device are not atomic to each other, because few machines let devices
//! lock memory. So after an export, and in all jobs, the device executes the adds of both sides; it
//! is atomic with itself. Sets are single stores, not atomic with adds: of a concurrent set and
//! add, either may be lost.
//!
//! The event's memory is [the program's own](SyncEventBuilder::memory), or the event allocates it.
//! Its word is little-endian, like the CPU's. The device's waits compare big-endian words, so a
//! wait job is limited to [values below 256](SyncEventCtx::wait_gt).

mod config;
mod ctx;
pub(crate) mod done;
pub(crate) mod engine;
mod job;
mod job_queue;
mod link;
mod support;
mod word;

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub use config::{Imported, Location, SyncEventBuilder, SyncEventCtxBuilder};
pub use ctx::SyncEventCtx;
pub use done::SyncEventDone;
pub use job::SyncEventJob;

use crate::as_dev::AsDev;
use crate::context::job_type::JobType;
use crate::device::{Dev, capability};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::ExportDescriptor;
use link::{BlockingLink, LinkOperation};
use word::CounterWord;

/// A started sync event in synchronous mode (`struct doca_sync_event`): its operations block the
/// caller until they are done.
///
/// It is `Send`, but not `Sync`: one thread at a time uses it.
pub struct SyncEvent {
    /// The device's queue, created by the first operation that needs it. Declared, and so dropped,
    /// before the word.
    calls: RefCell<Option<Box<BlockingLink>>>,
    word: Arc<CounterWord>,
}

impl SyncEvent {
    /// A sync event on `dev`, to be configured (`doca_sync_event_create`).
    pub fn builder(dev: &Dev) -> SyncEventBuilder {
        SyncEventBuilder::new(dev)
    }

    /// A handle to the host's exported event (`doca_sync_event_create_from_export`), on a device of
    /// its DPU. It cannot be configured, and must be started.
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`] if `dev` reaches no memory of a host
    /// ([`SyncEvent::create_from_export_supported`]); [`ErrorKind::InvalidValue`] for bytes that
    /// are not a descriptor of a sync event, or are damaged; [`ErrorKind::UnsupportedVersion`] for
    /// another version; [`ErrorKind::NotPermitted`] if the event is destroyed, or is not this
    /// host's.
    pub fn create_from_export(descriptor: &[u8], dev: &Dev) -> Result<Imported> {
        Imported::new(descriptor, dev)
    }

    fn new(word: CounterWord) -> Self {
        Self { calls: RefCell::new(None), word: Arc::new(word) }
    }

    /// The event's device.
    pub fn dev(&self) -> &Dev {
        self.word.dev()
    }

    /// The value (`doca_sync_event_get`).
    ///
    /// # Errors
    /// The device did not reach the word.
    pub fn get(&self) -> Result<u64> {
        match self.word.here() {
            Some(word) => Ok(word.load(Ordering::Acquire)),
            None => self.call(LinkOperation::Get),
        }
    }

    /// Sets the value (`doca_sync_event_update_set`).
    ///
    /// # Errors
    /// As [`SyncEvent::get`].
    pub fn update_set(&self, value: u64) -> Result<()> {
        match self.word.here() {
            Some(word) => {
                word.store(value, Ordering::Release);
                Ok(())
            }
            None => self.call(LinkOperation::Set(value)).map(drop),
        }
    }

    /// Adds to the value, which wraps, and returns the old value (`doca_sync_event_update_add`).
    ///
    /// # Errors
    /// As [`SyncEvent::get`]; [`ErrorKind::NotSupported`] if the event is shared with the DPU and
    /// the device has no atomics.
    pub fn update_add(&self, increment: u64) -> Result<u64> {
        match self.word.here() {
            Some(word) if !self.word.is_shared() => Ok(word.fetch_add(increment, Ordering::AcqRel)),
            _ => {
                support::check_job(self.dev(), JobType::SyncEventAdd)?;
                self.call(LinkOperation::Add(increment))
            }
        }
    }

    /// Waits until the value is greater than `threshold`, by polling without a pause
    /// (`doca_sync_event_wait_gt`). Any threshold is valid; the value cannot exceed `u64::MAX`.
    ///
    /// It has no timeout. At the DPU it fails when the host's program ends; at the host, whose
    /// memory has the value, nothing reports the end of the DPU's program. To wait with a limit,
    /// poll with [`SyncEvent::get`], or submit [a job](SyncEventCtx::wait_gt), wait with the limit
    /// of [`WorkQ::retrieve_within`](crate::WorkQ::retrieve_within), and end it with
    /// [`WorkQ::abort`](crate::WorkQ::abort).
    ///
    /// # Errors
    /// As [`SyncEvent::get`].
    pub fn wait_gt(&self, threshold: u64) -> Result<()> {
        self.wait(threshold, std::hint::spin_loop)
    }

    /// Waits until the value is greater than `threshold`, and yields the processor after each poll
    /// (`doca_sync_event_wait_gt_yield`).
    ///
    /// # Errors
    /// As [`SyncEvent::get`].
    pub fn wait_gt_yield(&self, threshold: u64) -> Result<()> {
        self.wait(threshold, std::thread::yield_now)
    }

    fn wait(&self, threshold: u64, between: impl Fn()) -> Result<()> {
        while self.get()? <= threshold {
            between();
        }
        Ok(())
    }

    fn call(&self, operation: LinkOperation) -> Result<u64> {
        let mut calls = self.calls.borrow_mut();
        let calls = match &mut *calls {
            Some(there) => there,
            none => none.insert(Box::new(BlockingLink::new(&self.word)?)),
        };
        calls.perform(&self.word, operation)
    }

    /// Exports the data that the DPU needs for a handle to the event
    /// (`doca_sync_event_export_to_dpu`). Send its bytes over a trusted channel, because every
    /// holder of them can change the event. Another call returns an equal descriptor.
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`] if the device cannot share memory with a DPU
    /// ([`SyncEvent::export_to_dpu_supported`]); [`ErrorKind::NotPermitted`] for an imported
    /// handle.
    pub fn export_to_dpu(&self) -> Result<ExportDescriptor> {
        let descriptor = self.word.export()?;
        // The device executes the next add; its queue is created here, where the caller expects it.
        if support::check_job(self.dev(), JobType::SyncEventAdd).is_ok() {
            let mut calls = self.calls.borrow_mut();
            if calls.is_none() {
                *calls = Some(Box::new(BlockingLink::new(&self.word)?));
            }
        }
        Ok(descriptor)
    }

    /// Stops the event (`doca_sync_event_stop`); it can then only be destroyed. Handles of the DPU
    /// keep working until then: make sure that none is in use.
    pub fn stop(self) -> Stopped {
        Stopped::new(self.word)
    }
}

/// Capabilities of devices. `Ok` means supported, for devices of this profile and side.
impl SyncEvent {
    /// Whether `dev` supports jobs of a type (`doca_sync_event_job_get_supported`).
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`] if it does not, with the missing capability;
    /// [`ErrorKind::InvalidValue`] for a type outside of sync events.
    pub fn job_supported(dev: &impl AsDev, job_type: JobType) -> Result<()> {
        support::check_job(&dev.dev()?, job_type)
    }

    /// Whether `dev` can import sync events of the host
    /// (`doca_sync_event_get_create_from_export_supported`).
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`] if not.
    pub fn create_from_export_supported(dev: &impl AsDev) -> Result<()> {
        capability::check_import_from_host(&dev.dev()?)
    }

    /// Whether sync events of `dev` can be exported to its DPU
    /// (`doca_sync_event_get_export_to_dpu_supported`).
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`] if not.
    pub fn export_to_dpu_supported(dev: &impl AsDev) -> Result<()> {
        capability::check_export_to_dpu(&dev.dev()?)
    }

    /// Whether sync events of `dev` can be exported to its DPA
    /// (`doca_sync_event_get_export_to_dpa_supported`).
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`]: as in DOCA 2.2, the DPA cannot use one.
    pub fn export_to_dpa_supported(dev: &impl AsDev) -> Result<()> {
        let _ = dev;
        Err(support::dpa_error())
    }

    /// Whether sync events of `dev` can be exported to a GPU
    /// (`doca_sync_event_get_export_to_gpu_supported`).
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`]: none can.
    pub fn export_to_gpu_supported(dev: &impl AsDev) -> Result<()> {
        let _ = dev;
        Err(support::gpu_error())
    }
}

impl fmt::Debug for SyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SyncEvent").field(&self.word).finish()
    }
}

/// A stopped sync event, which cannot be started again. Its memory stays accessible for the DPU
/// until it is destroyed.
#[derive(Debug)]
#[must_use = "dropping it destroys it"]
pub struct Stopped {
    _word: Arc<CounterWord>,
}

impl Stopped {
    fn new(word: Arc<CounterWord>) -> Self {
        Self { _word: word }
    }

    /// Destroys the event (`doca_sync_event_destroy`), like a drop. The operations of the DPU's
    /// handles then fail.
    pub fn destroy(self) {}
}

const _: () = {
    const fn send<T: Send>() {}
    send::<SyncEvent>();
    send::<SyncEventCtx>();
};
