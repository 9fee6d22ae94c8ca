//! UARs: the doorbell pages.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/documented.rs"));
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let process = process()?;
//! use verbless_flexio::{Outbox, OutboxConfig, Uar};
//!
//! // One beside the process's: only outboxes of it ring for queues that name it.
//! let uar = Uar::create(&process)?;
//! let config = OutboxConfig { uar: Some(uar.clone()), ..OutboxConfig::default() };
//! let outbox = Outbox::create(&process, &config)?;
//! assert_eq!(outbox.uar().id(), uar.id());
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

use verbless_command::{Device, DpaUarExtension};
use verbless_devx::UarKind;

use crate::error::Error;
use crate::holders::Holding;
use crate::ids::{UarDeviceId, UarId};
use crate::process::Process;

/// A UAR of a process's device (`flexio_uar`): an outbox rings for the queues on the same UAR.
#[derive(Debug, Clone)]
pub struct Uar {
    // The extension is dropped before the page.
    extension: Option<Arc<DpaUarExtension>>,
    page: Arc<verbless_devx::Uar>,
    process: Process,
    _holding: Arc<Holding>,
}

impl Uar {
    /// Allocates a UAR (`flexio_uar_create`; in 2022 it took a DevX UAR, as [`Uar::of`] does).
    ///
    /// # Errors
    /// The process has ended; the device has no UAR left.
    pub fn create(process: &Process) -> Result<Self, Error> {
        process.alive()?;
        let page = Arc::new(process.device().uar_alloc(UarKind::NonCached)?);
        crate::log::debug!("made UAR {:#x}", page.page_id());
        Ok(Self::of(process, page))
    }

    /// Wraps an existing UAR page (`flexio_uar_create` of 2022).
    pub fn of(process: &Process, page: Arc<verbless_devx::Uar>) -> Self {
        let name = format!("UAR {:#x}", page.page_id());
        let _holding = Arc::new(Holding::minor(name, vec![process.key()]));
        Self { extension: None, page, process: process.clone(), _holding }
    }

    /// Creates a UAR of another device context, whose queues the process can then ring
    /// (`flexio_uar_extend`): of another function of the card, or of the same one opened a second
    /// time. Queues of that context use the new UAR by [`Uar::id`], programs by
    /// [`Uar::extended_id`]; an outbox may start with it
    /// ([`OutboxConfig::uar`](crate::OutboxConfig::uar)).
    ///
    /// # Errors
    /// The process has ended; the context is the process's; the device is of another card, or out
    /// of reach of the process's function (the host's functions do not reach the DPU's); it has no
    /// UAR left.
    pub fn extend(&self, device: &Device) -> Result<Self, Error> {
        self.process.alive()?;
        if device.is(self.process.device()) {
            let why = "a UAR is extended to another device context, and this is the process's own";
            return Err(Error::Failed(why.into()));
        }
        let token = device.as_model().ok_or_else(|| {
            Error::Failed("a UAR is extended to devices of verbless's model only".into())
        })?;
        let page = Arc::new(device.uar_alloc(UarKind::NonCached)?);
        let (owner, process) = (self.process.device(), self.process.object());
        let extension = device.create_dpa_uar_extension(&token, &page, owner, process)?;
        crate::log::debug!("extended to UAR {:#x}: {:#x}", page.page_id(), extension.device_id());
        Ok(Self { extension: Some(Arc::new(extension)), ..Self::of(&self.process, page) })
    }

    /// The number of a UAR from [`Uar::extend`] for programs of the process
    /// (`flexio_uar_get_extended_id`, a `flexio_uar_device_id`); `None` for any other.
    pub fn extended_id(&self) -> Option<UarDeviceId> {
        self.extension.as_ref().map(|extension| UarDeviceId(extension.device_id()))
    }

    pub(crate) const fn extension(&self) -> Option<&Arc<DpaUarExtension>> {
        self.extension.as_ref()
    }

    /// The page's number, for queues (`flexio_uar_get_id`).
    pub fn id(&self) -> UarId {
        UarId(self.page.page_id())
    }

    /// The page.
    pub fn page(&self) -> &Arc<verbless_devx::Uar> {
        &self.page
    }

    /// The process of the UAR.
    pub fn process(&self) -> &Process {
        &self.process
    }
}
