//! UARs: the pages that doorbells go to.

use std::sync::Arc;

use verbless_command::Device;
use verbless_devx::UarKind;

use crate::error::Error;
use crate::process::Process;

/// A UAR of a process's device (`flexio_uar`): queues name it, and outboxes ring for the queues
/// that name the same.
#[derive(Debug, Clone)]
pub struct Uar {
    page: Arc<verbless_devx::Uar>,
    process: Process,
}

impl Uar {
    /// A new one (`flexio_uar_create`; in 2022 it was made of a DevX UAR, which [`Uar::of`] takes).
    ///
    /// # Errors
    /// The device has no UAR left.
    pub fn create(process: &Process) -> Result<Self, Error> {
        let page = Arc::new(process.device().uar_alloc(UarKind::NonCached)?);
        crate::log::debug!("made UAR {:#x}", page.page_id());
        Ok(Self::of(process, page))
    }

    /// One of a page that there is (`flexio_uar_create` of 2022).
    pub fn of(process: &Process, page: Arc<verbless_devx::Uar>) -> Self {
        Self { page, process: process.clone() }
    }

    /// One of another device context, by which queues of that context are rung
    /// (`flexio_uar_extend`). The host rings it: outboxes of the process do not reach another
    /// context.
    ///
    /// # Errors
    /// The context is the process's; the device has no UAR left.
    pub fn extend(&self, device: &Device) -> Result<Self, Error> {
        if device.is(self.process.device()) {
            let why = "a UAR is extended to another device context than the process's, which this \
                       is";
            return Err(Error::Failed(why.into()));
        }
        let page = Arc::new(device.uar_alloc(UarKind::NonCached)?);
        Ok(Self::of(&self.process, page))
    }

    /// The number of one that [`Uar::extend`] has made, by which queues of that context name it
    /// (`flexio_uar_get_extended_id`); `None` of one of the process's own context.
    pub fn extended_id(&self) -> Option<u32> {
        (!self.page.context().is(self.process.device())).then(|| self.id())
    }

    /// Its number, by which queues name it (`flexio_uar_get_id`).
    pub fn id(&self) -> u32 {
        self.page.page_id()
    }

    /// The page.
    pub fn page(&self) -> &Arc<verbless_devx::Uar> {
        &self.page
    }

    /// The process that it was made for.
    pub fn process(&self) -> &Process {
        &self.process
    }
}
