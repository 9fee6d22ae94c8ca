//! Outboxes: the doorbell registers of a process's threads.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/documented.rs"));
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let process = process()?;
//! use verbless_flexio::{Outbox, OutboxConfig};
//!
//! let outbox = Outbox::create(&process, &OutboxConfig::default())?;
//! // It rings for queues that name the process's UAR. Threads know it by its number.
//! assert_eq!(outbox.uar().id(), process.uar().id());
//! println!("outbox {}", outbox.id());
//! outbox.destroy()?;
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

use verbless_command::DpaOutbox;

use crate::error::Error;
use crate::holders::{Holding, in_use, key};
use crate::ids::OutboxId;
use crate::process::Process;
use crate::uar::Uar;

/// Configuration of an outbox (`flexio_outbox_attr`).
#[derive(Debug, Clone, Default)]
pub struct OutboxConfig {
    /// The UAR whose queues the outbox rings for; `None`: the process's. Newer versions of the C
    /// library ignore this attribute and take the process's UAR. With an extended UAR
    /// ([`Uar::extend`]), the outbox rings for queues of another device context, as with
    /// `flexio_outbox_create` of 2022 and that context. The program may switch it to another
    /// extension, and to the process's own queues.
    pub uar: Option<Uar>,
    /// Doorbells of congestion control; the model has none, and refuses `true`.
    pub congestion_control: bool,
}

/// A page of doorbells (`flexio_outbox`). Clones are the same page.
#[derive(Debug, Clone)]
pub struct Outbox {
    object: Arc<DpaOutbox>,
    uar: Uar,
    _holding: Arc<Holding>,
}

impl Outbox {
    /// Creates an outbox (`flexio_outbox_create`).
    ///
    /// # Errors
    /// The process has ended, or has reached its limit of outboxes; the UAR is of another context
    /// and was not extended to this process; congestion control is requested.
    pub fn create(process: &Process, config: &OutboxConfig) -> Result<Self, Error> {
        if config.congestion_control {
            let why = "doorbells of congestion control (en_pcc) are not supported";
            return Err(Error::Failed(why.into()));
        }
        process.alive()?;
        let uar = config.uar.clone().unwrap_or_else(|| process.uar());
        let (device, owner) = (process.device(), process.object());
        let object = match uar.extension() {
            Some(extension) => {
                if !Arc::ptr_eq(uar.process().object(), owner) {
                    let why = "the outbox's UAR was extended to another process";
                    return Err(Error::Failed(why.into()));
                }
                device.create_extended_dpa_outbox(owner, process.uar().page(), extension)
            }
            None if !uar.page().context().is(device) => {
                let why = "the outbox's UAR is of another device context, and was not extended to \
                           the process (Uar::extend)";
                return Err(Error::Failed(why.into()));
            }
            None => device.create_dpa_outbox(owner, uar.page()),
        };
        let object = object.map_err(|error| process.fatal_or(error))?;
        let name = format!("outbox {}", object.id());
        let _holding = Arc::new(Holding::new(name, vec![process.key()]));
        Ok(Self { object, uar, _holding })
    }

    /// The number of the outbox for threads (`flexio_outbox_get_id`).
    pub fn id(&self) -> OutboxId {
        OutboxId(self.object.id())
    }

    /// The outbox's UAR (`flexio_outbox_get_uar`).
    pub const fn uar(&self) -> &Uar {
        &self.uar
    }

    pub(crate) const fn object(&self) -> &Arc<DpaOutbox> {
        &self.object
    }

    /// Destroys the outbox (`flexio_outbox_destroy`). The drop of the last clone destroys it too,
    /// and ignores the error.
    ///
    /// # Errors
    /// A clone or an event handler keeps it alive; the device refuses.
    pub fn destroy(self) -> Result<(), Error> {
        let (name, key) = (format!("outbox {}", self.id()), key(&self.object));
        let in_use = || in_use(&name, key);
        Ok(Arc::into_inner(self.object).ok_or_else(in_use)?.destroy()?)
    }
}
