//! Access of DPA programs to the device: outboxes, windows, and UARs extended to processes of
//! another function or context.
//!
//! The hardware's commands for them are not published. As with processes ([`Device::as_model`]),
//! these layouts are the software model's own.

use std::sync::Arc;

use verbless_devx::{Error, ModelToken, Pd, Uar};
use verbless_prm as prm;
use verbless_prm::GeneralObjectType;

use crate::device::Device;
use crate::dpa::{DpaProcess, make, query};
use crate::general::GeneralObject;

/// An outbox: a page of doorbells for the threads of a process.
#[derive(Debug)]
pub struct DpaOutbox {
    object: GeneralObject,
    id: u16,
    process: Arc<DpaProcess>,
    _parents: (Arc<Uar>, Option<Arc<DpaUarExtension>>),
}

/// A window of a process onto memory under keys of a protection domain.
#[derive(Debug)]
pub struct DpaWindow {
    object: GeneralObject,
    id: u16,
    process: Arc<DpaProcess>,
    _pd: Pd,
}

/// Lets a DPA process of another function or context ring doorbells on this UAR page, for the
/// queues that use the page. After a drop no process can ring through it.
#[derive(Debug)]
pub struct DpaUarExtension {
    object: GeneralObject,
    device_id: u32,
    // The page outlives the extension.
    uar: Arc<Uar>,
}

impl Device {
    /// Creates an outbox. A process rings through it for queues on this UAR page.
    ///
    /// # Errors
    /// The process has ended, or has reached its limit of outboxes.
    pub fn create_dpa_outbox(
        &self,
        process: &Arc<DpaProcess>,
        uar: &Arc<Uar>,
    ) -> Result<Arc<DpaOutbox>, Error> {
        self.dpa_outbox(process, uar, None)
    }

    /// Creates an outbox that initially rings for queues of another function or context, by
    /// `extension`. A program may switch it to the queues of `uar`.
    ///
    /// # Errors
    /// As [`create_dpa_outbox`](Self::create_dpa_outbox).
    pub fn create_extended_dpa_outbox(
        &self,
        process: &Arc<DpaProcess>,
        uar: &Arc<Uar>,
        extension: &Arc<DpaUarExtension>,
    ) -> Result<Arc<DpaOutbox>, Error> {
        self.dpa_outbox(process, uar, Some(extension))
    }

    fn dpa_outbox(
        &self,
        process: &Arc<DpaProcess>,
        uar: &Arc<Uar>,
        extension: Option<&Arc<DpaUarExtension>>,
    ) -> Result<Arc<DpaOutbox>, Error> {
        let mut context = prm::DpaOutbox::default();
        context.set_process_id(process.id()).set_uar_page(uar.page_id());
        if let Some(extension) = extension {
            context.set_extended(true).set_device_id(extension.device_id());
        }
        let object = make(self, GeneralObjectType::DPA_OUTBOX, &context)?;
        let id = query::<prm::DpaOutbox>(&object)?.config_id();
        let parents = (uar.clone(), extension.cloned());
        Ok(Arc::new(DpaOutbox { object, id, process: process.clone(), _parents: parents }))
    }

    /// Creates a window. A DPA thread sets the window's mkey; the mkey must belong to `pd`.
    ///
    /// # Errors
    /// The process has ended, or has reached its limit of windows.
    pub fn create_dpa_window(
        &self,
        process: &Arc<DpaProcess>,
        pd: &Pd,
    ) -> Result<Arc<DpaWindow>, Error> {
        let mut context = prm::DpaWindow::default();
        context.set_process_id(process.id()).set_pd(pd.pdn());
        let object = make(self, GeneralObjectType::DPA_WINDOW, &context)?;
        let id = query::<prm::DpaWindow>(&object)?.config_id();
        Ok(Arc::new(DpaWindow { object, id, process: process.clone(), _pd: pd.clone() }))
    }

    /// Extends a UAR page of this device to a process of `owner`'s DPA. Both are functions of one
    /// card, and `owner`, the function whose DPA runs the process, must have access to this
    /// function: a DPU function has access to host and DPU functions, a host function to host
    /// functions only.
    ///
    /// # Errors
    /// `owner` has no access to this function; the page is of another context.
    pub fn create_dpa_uar_extension(
        &self,
        _: &ModelToken,
        uar: &Arc<Uar>,
        owner: &Device,
        process: &DpaProcess,
    ) -> Result<DpaUarExtension, Error> {
        let mut context = prm::DpaUarExtension::default();
        context
            .set_uar_page(uar.page_id())
            .set_vhca_id(owner.vhca_id())
            .set_process_serial(process.serial());
        let object = make(self, GeneralObjectType::DPA_UAR_EXTENSION, &context)?;
        let device_id = query::<prm::DpaUarExtension>(&object)?.device_id();
        Ok(DpaUarExtension { object, device_id, uar: uar.clone() })
    }
}

impl DpaOutbox {
    /// The outbox's number in its process.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// The process that the outbox belongs to.
    pub fn process(&self) -> &Arc<DpaProcess> {
        &self.process
    }

    /// Destroys the outbox.
    ///
    /// # Errors
    /// A thread or call has the outbox in its entry.
    pub fn destroy(self) -> Result<(), Error> {
        self.object.destroy()
    }
}

impl DpaWindow {
    /// The window's number in its process.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// The process that the window belongs to.
    pub fn process(&self) -> &Arc<DpaProcess> {
        &self.process
    }

    /// Destroys the window.
    ///
    /// # Errors
    /// A thread or call has the window in its entry.
    pub fn destroy(self) -> Result<(), Error> {
        self.object.destroy()
    }
}

impl DpaUarExtension {
    /// The number of the extension for programs.
    pub const fn device_id(&self) -> u32 {
        self.device_id
    }

    /// The page.
    pub const fn uar(&self) -> &Arc<Uar> {
        &self.uar
    }

    /// Destroys the extension: doorbells through it then reach no queue.
    ///
    /// # Errors
    /// The device does not respond.
    pub fn destroy(self) -> Result<(), Error> {
        self.object.destroy()
    }
}
