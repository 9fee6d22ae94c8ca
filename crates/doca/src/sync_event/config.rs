//! A sync event before it is started.

use super::ctx::SyncEventCtx;
use super::support;
use super::word::Word;
use super::{Error, ErrorKind, Result, SyncEvent};
use crate::device::{Dev, capability};
use crate::memory::Memory;

/// The processor on which a sync event is published or waited for.
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

/// Takes the one location of a role.
fn place(there: &mut Option<Location>, location: Location, role: &'static str) -> Result<()> {
    match location {
        Location::Dpa => return Err(support::dpa()),
        Location::Gpu => return Err(support::gpu()),
        Location::Cpu => {}
    }
    if there.is_some() {
        let text = format!("the sync event has the location of its {role} already: it has one");
        return Err(Error::new(ErrorKind::AlreadyExist, text));
    }
    *there = Some(location);
    Ok(())
}

impl SyncEventBuilder {
    pub(super) fn new(dev: &Dev) -> Self {
        Self { dev: dev.clone(), publisher: None, subscriber: None, memory: None }
    }

    /// Sets where the event will be published (`doca_sync_event_publisher_add_location_…`): a hint
    /// that must be given once.
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`] for the DPA and GPUs; [`ErrorKind::AlreadyExist`] the second
    /// time.
    pub fn publisher_add_location(mut self, location: Location) -> Result<Self> {
        place(&mut self.publisher, location, "publisher").map(|()| self)
    }

    /// Sets where the event will be waited for (`doca_sync_event_subscriber_add_location_…`): a
    /// hint that must be given once.
    ///
    /// # Errors
    /// As [`SyncEventBuilder::publisher_add_location`].
    pub fn subscriber_add_location(mut self, location: Location) -> Result<Self> {
        place(&mut self.subscriber, location, "subscriber").map(|()| self)
    }

    /// Sets the memory of the counter: 8 bytes at a multiple of 8. The counter begins with the
    /// value that is there, in the CPU's byte order. The event keeps alive what `memory` does. By
    /// default, the event has memory of its own, and begins with 0.
    pub fn memory(self, memory: Memory) -> Self {
        Self { memory: Some(memory), ..self }
    }

    fn word(self) -> Result<Word> {
        let missing = match (self.publisher, self.subscriber) {
            (None, _) => "publisher",
            (_, None) => "subscriber",
            _ => return Word::own(&self.dev, self.memory),
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
    /// another length or alignment; the device's refusal.
    pub fn start(self) -> Result<SyncEvent> {
        self.word().map(SyncEvent::new)
    }

    /// Makes a context of the event (`doca_sync_event_as_ctx`), whose start is that of asynchronous
    /// mode.
    pub fn as_ctx(self) -> SyncEventCtxBuilder {
        SyncEventCtxBuilder(Unstarted::Own(self))
    }
}

/// A handle to a host's sync event that is not started. It has nothing to configure.
#[derive(Debug)]
#[must_use = "a sync event is used when it is started"]
pub struct Imported(Word);

impl Imported {
    pub(super) fn new(descriptor: &[u8], dev: &Dev) -> Result<Self> {
        capability::imports(dev)?;
        Word::imported(dev, descriptor).map(Self)
    }

    /// Starts the event in synchronous mode (`doca_sync_event_start`).
    ///
    /// # Errors
    /// None at present.
    pub fn start(self) -> Result<SyncEvent> {
        Ok(SyncEvent::new(self.0))
    }

    /// Makes a context of the event (`doca_sync_event_as_ctx`), whose start is that of asynchronous
    /// mode.
    pub fn as_ctx(self) -> SyncEventCtxBuilder {
        SyncEventCtxBuilder(Unstarted::Imported(self))
    }
}

/// A sync event that will be started as a context.
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
