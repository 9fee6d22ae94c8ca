//! Windows: how a process reaches memory that keys lead to, the host's above all.

use std::sync::Arc;

use verbless_command::DpaWindow;
use verbless_devx::Pd;

use crate::error::Error;
use crate::process::Process;

/// A window of a process (`flexio_window`). Which key it leads by, a thread says. Clones are the
/// same one.
#[derive(Debug, Clone)]
pub struct Window {
    object: Arc<DpaWindow>,
    process: Process,
}

impl Window {
    /// Makes one for keys of `pd` (`flexio_window_create`).
    ///
    /// # Errors
    /// The process has ended, or has as many as it may; the domain is of another device.
    pub fn create(process: &Process, pd: &Pd) -> Result<Self, Error> {
        if !pd.context().is(process.device()) {
            let why = "the protection domain of the window is of another context than the process";
            return Err(Error::Failed(why.into()));
        }
        let object = process
            .device()
            .create_dpa_window(process.object(), pd)
            .map_err(|error| process.fatal_or(error))?;
        Ok(Self { object, process: process.clone() })
    }

    /// What threads know it by (`flexio_window_get_id`).
    pub fn id(&self) -> u16 {
        self.object.id()
    }

    /// The process.
    pub const fn process(&self) -> &Process {
        &self.process
    }

    pub(crate) const fn object(&self) -> &Arc<DpaWindow> {
        &self.object
    }

    /// Destroys it, and says whether that worked (`flexio_window_destroy`); dropping the last clone
    /// does the same.
    ///
    /// # Errors
    /// A clone or an event handler keeps it; the device's refusal.
    pub fn destroy(self) -> Result<(), Error> {
        let in_use = || Error::Failed("the window is in use: drop its event handlers".into());
        Ok(Arc::into_inner(self.object).ok_or_else(in_use)?.destroy()?)
    }
}
