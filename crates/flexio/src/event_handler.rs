//! Event handlers: threads of a process, started by events.
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
    Affinity, DpaEntry, DpaOutbox, DpaThread, DpaThreadInfo, DpaThreadKind, DpaThreadState,
    ErrorKind,
};
use verbless_flexio_dev::metadata::{BYTES, ThreadMetadata};

use crate::error::Error;
use crate::function::Handler;
use crate::holders::{Holding, Key, in_use, key};
use crate::ids::{HandlerId, ThreadId};
use crate::memory::{Buffer, storage_of};
use crate::outbox::Outbox;
use crate::process::Process;
use crate::window::Window;

/// Configuration of an event handler (`flexio_event_handler_attr`).
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
    /// The outbox that is configured when a run starts; `None`: the process's own
    /// ([`Process::outbox_id`]), until the handler selects another by its number, as handlers do
    /// since 2023. Handlers that ring by one outbox at the same time may lose a doorbell.
    pub outbox: Option<Outbox>,
    /// The windows that are configured when a run starts.
    pub windows: [Option<Window>; 2],
}

/// The given outbox, or the process's own.
pub(crate) fn own_or(process: &Process, outbox: Option<&Outbox>) -> Arc<DpaOutbox> {
    outbox.map_or_else(|| process.own_outbox().clone(), |outbox| outbox.object().clone())
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

impl EventHandlerConfig {
    /// Registers a handler of this configuration, with the objects that it holds.
    fn holding(&self, process: &Process, id: u32) -> Holding {
        let name = match self.name.as_str() {
            "" => format!("event handler {id}"),
            name => format!("event handler {id} {name:?}"),
        };
        let outbox = self.outbox.iter().map(|outbox| key(outbox.object()));
        let windows = self.windows.iter().flatten().map(|window| key(window.object()));
        let storage = self.storage.iter().map(Buffer::key);
        Holding::new(
            name,
            [process.key()].into_iter().chain(outbox).chain(windows).chain(storage).collect(),
        )
    }
}

/// A thread that events start (`flexio_event_handler`). Clones are the same thread.
///
/// It starts in the init state, in which events do not start it. [`run`](EventHandler::run) takes
/// it to the running state; earlier events count as one, and start it then.
#[derive(Debug, Clone)]
pub struct EventHandler {
    shared: Arc<EventHandlerShared>,
}

#[derive(Debug)]
struct EventHandlerShared {
    /// `None` after the thread's destroy.
    thread: Option<DpaThread>,
    id: u32,
    name: String,
    process: Process,
    holding: Holding,
    /// Buffers that the thread uses: its metadata, its storage, and those given to
    /// [`EventHandler::keep`].
    memory: Mutex<Vec<Buffer>>,
}

impl EventHandlerShared {
    /// Destroys the thread in any state. If the device refuses, its buffers are kept: it may still
    /// run.
    fn end(&mut self) -> Result<(), Error> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        // Read before the destroy, so that a run that begins meanwhile is not counted.
        let runs = thread.query().is_ok_and(|info| info.state == DpaThreadState::RUNNING);
        let ended = thread.destroy();
        match &ended {
            Ok(()) if runs => self.process.count_terminated_run(),
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
    /// Creates an event handler (`flexio_event_handler_create`).
    ///
    /// # Errors
    /// The program has no such handler; the process has ended, or has no free stack; the execution
    /// unit or group does not exist. [`Error::CopyTimeout`]: nothing was created.
    pub fn create(process: &Process, config: &EventHandlerConfig) -> Result<Self, Error> {
        Self::create_at(process, process.app().address_of_handler(&config.handler)?, config)
    }

    /// Creates an event handler for a function at an address.
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
            outbox: Some(own_or(process, config.outbox.as_ref())),
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
                holding: config.holding(process, id),
                memory: Mutex::new([metadata].into_iter().chain(config.storage.clone()).collect()),
            }),
        })
    }

    /// Lets events start the handler, with this argument (`flexio_event_handler_run`). If one has
    /// come since its creation, it starts at once.
    ///
    /// # Errors
    /// The process has ended.
    pub fn run(&self, argument: u64) -> Result<(), Error> {
        let shared = &self.shared;
        self.thread().run(argument).map_err(|error| shared.process.fatal_or(error))
    }

    /// Keeps these buffers alive until the event handler is destroyed.
    pub(crate) fn keep(&self, buffers: impl IntoIterator<Item = Buffer>) {
        let buffers = buffers.into_iter().inspect(|it| self.shared.holding.add(it.key()));
        self.shared.memory.lock().unwrap_or_else(PoisonError::into_inner).extend(buffers);
    }

    /// The key under which holders of the handler are registered.
    pub(crate) fn key(&self) -> Key {
        key(&self.shared)
    }

    /// The thread's number in its process, from 1, which is in its metadata
    /// (`flexio_event_handler_get_id`). Calls with attributes are numbered in the same sequence.
    pub fn id(&self) -> HandlerId {
        HandlerId(self.shared.id)
    }

    /// The thread's name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The number by which other threads of the process activate the handler
    /// (`flexio_event_handler_get_activation_id`).
    pub fn activation_id(&self) -> ThreadId {
        ThreadId(self.thread().id())
    }

    /// The number of the thread on the device (`flexio_event_handler_get_obj_id`).
    pub fn object_id(&self) -> ThreadId {
        ThreadId(self.thread().id())
    }

    /// The thread, for CQs to start (`flexio_event_handler_get_thread`,
    /// `flexio_event_handler_get_thread_obj`).
    pub fn thread(&self) -> &DpaThread {
        self.shared.thread.as_ref().expect("an event handler has its thread until it is dropped")
    }

    /// The thread's state, and how often it has run.
    ///
    /// # Errors
    /// The device does not respond.
    pub fn query(&self) -> Result<DpaThreadInfo, Error> {
        Ok(self.thread().query()?)
    }

    /// The process.
    pub fn process(&self) -> &Process {
        &self.shared.process
    }

    /// Destroys the handler in any state (`flexio_event_handler_destroy`). The drop of the last
    /// clone destroys it too, and ignores the error.
    ///
    /// # Errors
    /// A CQ or a clone keeps it alive; the device refuses.
    pub fn destroy(self) -> Result<(), Error> {
        let (name, key) = (format!("event handler {}", self.id()), self.key());
        let in_use = || in_use(&name, key);
        Arc::into_inner(self.shared).ok_or_else(in_use)?.end()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::cq::{CqElement, DpaCq, DpaCqConfig};
    use crate::process::ProcessConfig;
    use crate::program::{CODE, process};

    const HANDLER: u64 = 0;
    const START: u64 = 2;
    const RING: u64 = 6;
    const HAS_OUTBOX: u64 = 10;
    const COUNT: u64 = 14;
    const INSTRUCTIONS: [u32; 18] = [
        0x0000_0013, // nop: a handler that does nothing
        0x0000_8067, // ret
        0x0070_0893, // li   a7, 7: starts thread a0
        0x0000_0073, // ecall
        0x0000_8067, // ret
        0x0000_0013, // nop
        0x0082_3283, // ld   t0, 8(tp): rings RXT_DB of the outbox for CQ a0
        0x28a2_b023, // sd   a0, 0x280(t0)
        0x0282_6503, // lwu  a0, 0x28(tp): os_errno
        0x0000_8067, // ret
        0x00c0_0893, // li   a7, 12: whether there is outbox a0
        0x0000_0593, // li   a1, 0
        0x0000_0073, // ecall
        0x0000_8067, // ret
        0x00d0_0893, // li   a7, 13: the counter a0
        0x0000_0073, // ecall
        0x0000_8067, // ret
        0x0000_0013, // nop
    ];

    fn rig() -> (verbless::model::Model, Process, EventHandler) {
        let (model, process) = process(&INSTRUCTIONS, &[], &[], &ProcessConfig::default());
        let config = EventHandlerConfig::new(Handler::named("handler"));
        let at = CODE + 4 * HANDLER;
        let handler = EventHandler::create_at(&process, at, &config).unwrap();
        (model, process, handler)
    }

    fn call(process: &Process, function: u64, argument: u64) -> u64 {
        let entry = process.entry(CODE + 4 * function);
        let call = process.begin(&entry, [argument, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        process.finish(call).unwrap()
    }

    /// The count of runs, after waiting for the first one for a while.
    fn runs(handler: &EventHandler) -> u64 {
        let begun = Instant::now();
        loop {
            let info = handler.query().unwrap();
            let is_over = info.runs > 0 && info.state == DpaThreadState::IDLE;
            if is_over || begun.elapsed() > Duration::from_secs(20) {
                return info.runs;
            }
        }
    }

    #[test]
    fn event_before_run_starts_handler_at_run() {
        let (_model, process, handler) = rig();
        for _ in 0..3 {
            call(&process, START, handler.activation_id().0.into());
        }
        assert_eq!(handler.query().unwrap().runs, 0, "the handler is in its init state");
        handler.run(5).unwrap();
        assert_eq!(runs(&handler), 1, "three events count as one");
    }

    #[test]
    fn thread_rings_through_process_outbox() {
        let (_model, process, handler) = rig();
        let element = CqElement::Thread(handler.clone());
        let config = DpaCqConfig { no_arm: true, ..DpaCqConfig::new(4, element) };
        let cq = DpaCq::create(&process, &config).unwrap();
        handler.run(0).unwrap();
        assert_eq!(call(&process, RING, cq.number().0.into()), 0, "errno of the doorbell");
        assert_eq!(handler.query().unwrap().events, 0, "the CQ is not armed");
        cq.arm().unwrap();
        assert_eq!(runs(&handler), 1, "a CQE that is there already");
        assert!(cq.arm().unwrap_err().to_string().contains("was armed before"));
    }

    #[test]
    fn system_reports_existing_outboxes() {
        let (_model, process, _handler) = rig();
        assert_eq!(call(&process, HAS_OUTBOX, process.outbox_id().0.into()), 0);
        for absent in [u64::from(process.outbox_id().0) + 1, 0x1_0000, u64::MAX] {
            assert_eq!(call(&process, HAS_OUTBOX, absent), 4, "{absent:#x}");
        }
    }

    #[test]
    fn thread_counters_are_readable() {
        let (_model, process, _handler) = rig();
        for counter in [0, 1] {
            assert_eq!(call(&process, COUNT, counter), 1, "the one before the call");
        }
        let entry = process.entry(CODE + 4 * COUNT);
        let call = process.begin(&entry, [2, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        assert!(matches!(process.finish(call), Err(Error::Fatal(_))), "there are two");
    }
}
