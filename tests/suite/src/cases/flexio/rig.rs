//! The rig of the cases: a process of the compiled program, through the host library.

use std::sync::Arc;

use verbless_command::{Device, KeyAccess};
use verbless_flexio::{
    App, Error, EventHandler, EventHandlerConfig, Function, Handler, Outbox, OutboxConfig, Process,
    ProcessConfig,
};
use verbless_queue::Region;

use crate::{Lab, Stop};

/// The compiled program.
pub(super) fn app() -> Result<App, Stop> {
    let path = crate::dpa_program()
        .ok_or_else(|| Stop::fail("no compiled program was given (--dpa-program)"))?;
    Ok(App::new("shown", &std::fs::read(&path)?)?)
}

/// A device, the program, and a process of it.
pub(super) struct Rig {
    pub(super) process: Process,
}

impl Rig {
    pub(super) fn new(lab: &Lab) -> Result<Self, Stop> {
        Self::with(lab, &ProcessConfig::default())
    }

    pub(super) fn with(lab: &Lab, config: &ProcessConfig) -> Result<Self, Stop> {
        Self::on(&lab.device()?, config)
    }

    pub(super) fn on(device: &Device, config: &ProcessConfig) -> Result<Self, Stop> {
        Ok(Self { process: Process::create(device, &app()?, config)? })
    }

    /// Memory of the host in the process's protection domain.
    pub(super) fn region(&self, length: usize) -> Result<Arc<Region>, Stop> {
        Ok(Arc::new(self.process.domain().region(length, KeyAccess::ALL)?))
    }

    pub(super) fn outbox(&self) -> Result<Outbox, Stop> {
        Ok(Outbox::create(&self.process, &OutboxConfig::default())?)
    }

    pub(super) fn handler(&self, name: &str) -> Result<EventHandler, Error> {
        EventHandler::create(&self.process, &EventHandlerConfig::new(Handler::named(name)))
    }

    /// Gives a thread of the process an event.
    pub(super) fn activate(&self, handler: &EventHandler) -> Result<(), Stop> {
        let errno = self.process.call(activate(), (handler.activation_id().0,))?;
        crate::ensure_eq!(errno, 0, "errno after the activation");
        Ok(())
    }
}

pub(super) fn activate() -> Function<(u32,), u32> {
    Function::named("activate")
}

/// Ends the process with a code of its own.
pub(super) fn ends_with() -> Function<(u8,), ()> {
    Function::named("ends_with")
}

pub(super) fn add() -> Function<(u64, u32), u64> {
    Function::named("add")
}
