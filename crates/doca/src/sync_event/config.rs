//! A sync event before it is started.

use super::ctx::SyncEventCtx;
use super::support;
use super::word::CounterWord;
use super::{Error, ErrorKind, Result, SyncEvent};
use crate::device::{Dev, capability};
use crate::memory::Memory;

/// The processor that publishes a sync event or waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// A CPU: the host's, or the DPU's.
    Cpu,
    /// The DPA.
    Dpa,
    /// A GPU.
    Gpu,
}

/// A sync event that is being configured.
#[derive(Clone, Debug)]
#[must_use = "a sync event exists when it is started"]
pub struct SyncEventBuilder {
    dev: Dev,
    publisher: Option<Location>,
    subscriber: Option<Location>,
    memory: Option<Memory>,
}

/// Sets the one location of a role.
fn set_location(
    there: &mut Option<Location>,
    location: Location,
    role: &'static str,
) -> Result<()> {
    match location {
        Location::Dpa => return Err(support::dpa_error()),
        Location::Gpu => return Err(support::gpu_error()),
        Location::Cpu => {}
    }
    if there.is_some() {
        let text = format!("the sync event already has a location of its {role}: set it once");
        return Err(Error::new(ErrorKind::AlreadyExist, text));
    }
    *there = Some(location);
    Ok(())
}

impl SyncEventBuilder {
    pub(super) fn new(dev: &Dev) -> Self {
        Self { dev: dev.clone(), publisher: None, subscriber: None, memory: None }
    }

    /// Sets the location of the publisher (`doca_sync_event_publisher_add_location_…`): a hint that
    /// is required once.
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`] for the DPA and GPUs; [`ErrorKind::AlreadyExist`] the second
    /// time.
    pub fn publisher_add_location(mut self, location: Location) -> Result<Self> {
        set_location(&mut self.publisher, location, "publisher").map(|()| self)
    }

    /// Sets the location of the subscriber (`doca_sync_event_subscriber_add_location_…`): a hint
    /// that is required once.
    ///
    /// # Errors
    /// As [`SyncEventBuilder::publisher_add_location`].
    pub fn subscriber_add_location(mut self, location: Location) -> Result<Self> {
        set_location(&mut self.subscriber, location, "subscriber").map(|()| self)
    }

    /// Sets the memory of the counter: 8 bytes at a multiple of 8. The counter begins with the
    /// value there, in the CPU's byte order. The event keeps `memory` alive. By default, the event
    /// has its own memory, and begins with 0.
    ///
    /// # Safety
    /// While the event exists, the CPU accesses these bytes only by 64-bit atomics
    /// ([`Memory::words`]): no copy and no view in bytes reaches them.
    #[allow(unsafe_code, reason = "the caller makes the promise")]
    pub unsafe fn memory(self, memory: Memory) -> Self {
        Self { memory: Some(memory), ..self }
    }

    /// The device.
    pub const fn dev(&self) -> &Dev {
        &self.dev
    }

    /// The configured location of the publisher.
    pub const fn publisher_location(&self) -> Option<Location> {
        self.publisher
    }

    /// The configured location of the subscriber.
    pub const fn subscriber_location(&self) -> Option<Location> {
        self.subscriber
    }

    /// The configured memory of the counter.
    pub const fn get_memory(&self) -> Option<&Memory> {
        self.memory.as_ref()
    }

    fn word(self) -> Result<CounterWord> {
        let missing = match (self.publisher, self.subscriber) {
            (None, _) => "publisher",
            (_, None) => "subscriber",
            _ => return CounterWord::own(&self.dev, self.memory),
        };
        let text = format!(
            "starting a sync event without a location of its {missing}: call \
             `{missing}_add_location` first"
        );
        Err(Error::new(ErrorKind::BadState, text))
    }

    /// Starts the event in synchronous mode (`doca_sync_event_start`).
    ///
    /// # Errors
    /// [`ErrorKind::BadState`] without both locations; [`ErrorKind::InvalidValue`] for memory of
    /// another length or alignment; the device refuses.
    pub fn start(self) -> Result<SyncEvent> {
        self.word().map(SyncEvent::new)
    }

    /// Turns the event into a context (`doca_sync_event_as_ctx`), for a start in asynchronous mode.
    pub fn as_ctx(self) -> SyncEventCtxBuilder {
        SyncEventCtxBuilder(Unstarted::Own(self))
    }
}

/// An unstarted handle to a host's sync event. It has nothing to configure.
#[derive(Debug)]
#[must_use = "a sync event is used when it is started"]
pub struct Imported(CounterWord);

impl Imported {
    pub(super) fn new(descriptor: &[u8], dev: &Dev) -> Result<Self> {
        capability::check_import_from_host(dev)?;
        CounterWord::imported(dev, descriptor).map(Self)
    }

    /// Starts the event in synchronous mode (`doca_sync_event_start`).
    ///
    /// # Errors
    /// None at present.
    pub fn start(self) -> Result<SyncEvent> {
        Ok(SyncEvent::new(self.0))
    }

    /// Turns the event into a context (`doca_sync_event_as_ctx`), for a start in asynchronous mode.
    pub fn as_ctx(self) -> SyncEventCtxBuilder {
        SyncEventCtxBuilder(Unstarted::Imported(self))
    }
}

/// A sync event before its start as a context.
#[derive(Debug)]
#[must_use = "a context exists when it is started"]
pub struct SyncEventCtxBuilder(Unstarted);

#[derive(Debug)]
enum Unstarted {
    Own(SyncEventBuilder),
    Imported(Imported),
}

impl SyncEventCtxBuilder {
    /// Starts the event in asynchronous mode (`doca_ctx_start`).
    ///
    /// # Errors
    /// As [`SyncEventBuilder::start`].
    pub fn start(self) -> Result<SyncEventCtx> {
        match self.0 {
            Unstarted::Own(builder) => builder.word().map(SyncEventCtx::new),
            Unstarted::Imported(Imported(word)) => Ok(SyncEventCtx::new(word)),
        }
    }
}
