//! Windows: a process's access to memory under mkeys, mainly the host's.
//!
#![cfg_attr(verbless_dpa_program, doc = "```")]
#![cfg_attr(not(verbless_dpa_program), doc = "```no_run")]
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/documented.rs"));
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let process = compiled()?;
//! use verbless_command::KeyAccess;
//! use verbless_flexio::{Function, Window, WindowId};
//!
//! let window = Window::create(&process, process.pd())?;
//! let region = process.domain().region(4096, KeyAccess::ALL)?;
//! region.write_at(8, &77_u64.to_le_bytes())?;
//! // The program loads the word there through the window.
//! let peek = Function::<(WindowId, u32, u64), u64>::named("peek");
//! let seen = process.call(peek, (window.id(), region.lkey().0, region.address() + 8))?;
//! assert_eq!(seen, 77);
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

use verbless_command::DpaWindow;
use verbless_devx::Pd;

use crate::error::Error;
use crate::holders::{Holding, in_use, key};
use crate::ids::WindowId;
use crate::process::Process;

/// A window of a process (`flexio_window`). A thread selects its mkey. Clones are the same window.
#[derive(Debug, Clone)]
pub struct Window {
    object: Arc<DpaWindow>,
    process: Process,
    _holding: Arc<Holding>,
}

impl Window {
    /// Creates a window for keys of `pd` (`flexio_window_create`).
    ///
    /// # Errors
    /// The process has ended, or has reached its limit of windows; the domain is of another device.
    pub fn create(process: &Process, pd: &Pd) -> Result<Self, Error> {
        if !pd.context().is(process.device()) {
            let why = "the protection domain of the window is of another context than the process";
            return Err(Error::Failed(why.into()));
        }
        process.alive()?;
        let object = process
            .device()
            .create_dpa_window(process.object(), pd)
            .map_err(|error| process.fatal_or(error))?;
        let name = format!("window {}", object.id());
        let _holding = Arc::new(Holding::new(name, vec![process.key()]));
        Ok(Self { object, process: process.clone(), _holding })
    }

    /// The number of the window for threads (`flexio_window_get_id`).
    pub fn id(&self) -> WindowId {
        WindowId(self.object.id())
    }

    /// The process.
    pub const fn process(&self) -> &Process {
        &self.process
    }

    pub(crate) const fn object(&self) -> &Arc<DpaWindow> {
        &self.object
    }

    /// Destroys the window (`flexio_window_destroy`). The drop of the last clone destroys it too,
    /// and ignores the error.
    ///
    /// # Errors
    /// A clone or an event handler keeps it alive; the device refuses.
    pub fn destroy(self) -> Result<(), Error> {
        let (name, key) = (format!("window {}", self.id()), key(&self.object));
        let in_use = || in_use(&name, key);
        Ok(Arc::into_inner(self.object).ok_or_else(in_use)?.destroy()?)
    }
}
