//! Event handlers: threads of a process that events start.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/documented.rs"));
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let process = process()?;
//! use verbless_flexio::{EventHandler, EventHandlerConfig, Handler, Outbox, OutboxConfig};
//!
//! let config = EventHandlerConfig {
//!     outbox: Some(Outbox::create(&process, &OutboxConfig::default())?),
//!     name: "worker".into(),
//!     ..EventHandlerConfig::new(Handler::named("handler"))
//! };
//! let handler = EventHandler::create(&process, &config)?;
//! // From now on events start it, with this argument.
//! handler.run(0x1234)?;
//! assert_eq!(handler.query()?.runs, 0);
//! handler.destroy()?;
//! # Ok(())
//! # }
//! ```

use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use verbless_command::{
    Affinity, DpaEntry, DpaThread, DpaThreadInfo, DpaThreadKind, DpaThreadState, ErrorKind,
};
use verbless_flexio_dev::metadata::{BYTES, ThreadMetadata};

use crate::error::Error;
use crate::function::Handler;
use crate::memory::{Buffer, storage_of};
use crate::outbox::Outbox;
use crate::process::Process;
use crate::window::Window;

/// How an event handler is made (`flexio_event_handler_attr`).
#[derive(Debug, Clone)]
pub struct EventHandlerConfig {
    /// The function.
    pub handler: Handler,
    /// Whether it may yield: the next event then continues where it yielded.
    pub continuable: bool,
    /// Whether it may poll for any time: the watchdog ignores it.
    pub polling: bool,
    /// The argument, until [`EventHandler::run`] sets another.
    pub argument: u64,
    /// The thread-local storage, which the handler keeps alive.
    pub storage: Option<Buffer>,
    /// The execution units on which the handler may run.
    pub affinity: Affinity,
    /// The thread's name, cut to 16 bytes.
    pub name: String,
    /// The outbox that is configured when a run starts; `None`: the handler chooses one by its
    /// number, as handlers do since 2023.
    pub outbox: Option<Outbox>,
    /// The windows that are configured when a run starts.
    pub windows: [Option<Window>; 2],
}

impl EventHandlerConfig {
    /// A configuration with this function and defaults.
    pub fn new(handler: Handler) -> Self {
        Self {
            handler,
            continuable: false,
            polling: false,
            argument: 0,
            storage: None,
            affinity: Affinity::None,
            name: String::new(),
            outbox: None,
            windows: [None, None],
        }
    }
}

/// A thread that events start (`flexio_event_handler`). Clones are the same one.
///
/// It is made in its init state, in which events do not start it and are lost;
/// [`run`](EventHandler::run) takes it to the running state.
#[derive(Debug, Clone)]
pub struct EventHandler {
    shared: Arc<EventHandlerShared>,
}

#[derive(Debug)]
struct EventHandlerShared {
    /// `None` once the thread was destroyed.
    thread: Option<DpaThread>,
    id: u32,
    name: String,
    process: Process,
    /// Buffers that the thread uses: its metadata, its storage, and those given to
    /// [`EventHandler::keep`].
    memory: Mutex<Vec<Buffer>>,
}

impl EventHandlerShared {
    /// Destroys the thread in any state. If the device refuses, its buffers are kept: it may still
    /// run.
    fn end(&mut self) -> Result<(), Error> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        // Seen before it is ended, so that a run that begins meanwhile is not counted.
        let runs = thread.query().is_ok_and(|info| info.state == DpaThreadState::RUNNING);
        let ended = thread.destroy();
        match &ended {
            Ok(()) if runs => self.process.count_taken_away(),
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::DeviceGone => {}
            Err(_) => {
                let memory = self.memory.get_mut().unwrap_or_else(PoisonError::into_inner);
                mem::forget(mem::take(memory));
            }
        }
        Ok(ended?)
    }
}

impl Drop for EventHandlerShared {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            crate::log::error!("ending event handler {} {:?}: {error}", self.id, self.name);
        }
    }
}

impl EventHandler {
    /// Makes one (`flexio_event_handler_create`).
    ///
    /// # Errors
    /// The program has no such handler; the process has ended, or has no stack left; no such
    /// execution unit or group. [`Error::CopyTimeout`]: nothing is left of it.
    pub fn create(process: &Process, config: &EventHandlerConfig) -> Result<Self, Error> {
        Self::create_at(process, process.app().address_of_handler(&config.handler)?, config)
    }

    /// Makes one of a handler at an address.
    pub(crate) fn create_at(
        process: &Process,
        address: u64,
        config: &EventHandlerConfig,
    ) -> Result<Self, Error> {
        let storage = storage_of(config.storage.as_ref(), process)?;
        let id = process.next_thread();
        let metadata = ThreadMetadata::new(id, storage, &config.name);
        let metadata = {
            let buffer = process.alloc(BYTES as u64)?;
            buffer.write_at(0, &metadata.to_bytes())?;
            buffer
        };
        let entry = DpaEntry {
            metadata: metadata.address(),
            outbox: config.outbox.as_ref().map(|outbox| outbox.object().clone()),
            windows: config
                .windows
                .each_ref()
                .map(|window| window.as_ref().map(|window| window.object().clone())),
            affinity: config.affinity,
            ..DpaEntry::at(address)
        };
        let kind =
            DpaThreadKind { polling: config.polling, continuable: config.continuable, held: true };
        let thread = process
            .device()
            .create_dpa_thread(process.object(), &entry, config.argument, kind)
            .map_err(|error| process.fatal_or(error))?;
        crate::log::debug!("made event handler {id} {:?}, thread {:#x}", config.name, thread.id());
        Ok(Self {
            shared: Arc::new(EventHandlerShared {
                thread: Some(thread),
                id,
                name: config.name.clone(),
                process: process.clone(),
                memory: Mutex::new([metadata].into_iter().chain(config.storage.clone()).collect()),
            }),
        })
    }

    /// Lets events start the handler from now on, with this argument (`flexio_event_handler_run`).
    ///
    /// # Errors
    /// The process has ended.
    pub fn run(&self, argument: u64) -> Result<(), Error> {
        let shared = &self.shared;
        self.thread().run(argument).map_err(|error| shared.process.fatal_or(error))
    }

    /// Keeps these buffers alive until the event handler is destroyed.
    pub(crate) fn keep(&self, buffers: impl IntoIterator<Item = Buffer>) {
        self.shared.memory.lock().unwrap_or_else(PoisonError::into_inner).extend(buffers);
    }

    /// The thread's number in its process, from 1, which is in its metadata
    /// (`flexio_event_handler_get_id`). Calls with attributes are numbered in the same sequence.
    pub fn id(&self) -> u32 {
        self.shared.id
    }

    /// The thread's name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The number by which other threads of the process activate the handler
    /// (`flexio_event_handler_get_activation_id`).
    pub fn activation_id(&self) -> u32 {
        self.thread().id()
    }

    /// The number of the thread on the device (`flexio_event_handler_get_obj_id`).
    pub fn object_id(&self) -> u32 {
        self.thread().id()
    }

    /// The thread, for CQs to start (`flexio_event_handler_get_thread`,
    /// `flexio_event_handler_get_thread_obj`).
    pub fn thread(&self) -> &DpaThread {
        self.shared.thread.as_ref().expect("an event handler has its thread until it is dropped")
    }

    /// The thread's state, and how often it has run.
    ///
    /// # Errors
    /// The device does not answer.
    pub fn query(&self) -> Result<DpaThreadInfo, Error> {
        Ok(self.thread().query()?)
    }

    /// The process.
    pub fn process(&self) -> &Process {
        &self.shared.process
    }

    /// Destroys the handler in any state, and returns whether that worked
    /// (`flexio_event_handler_destroy`); dropping the last clone does the same.
    ///
    /// # Errors
    /// A CQ or a clone keeps it; the device's refusal.
    pub fn destroy(self) -> Result<(), Error> {
        let in_use = || Error::Failed("the event handler is in use: destroy its CQs first".into());
        Arc::into_inner(self.shared).ok_or_else(in_use)?.end()
    }
}
