//! The device files that a role has open. To kill a role that is a thread, the test closes them: as
//! when a process dies, the kernel then destroys every object made through them, in its own order,
//! whatever the role still holds.
#![allow(unsafe_code, reason = "a device's `ioctl` is unsafe to call; this module passes it on")]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use verbless_command::Device;
use verbless_devx::{
    Backend, DeviceInfo, Errno, Error, Mapping, OpenDevice, Protection, RepresentorInfo,
};

use crate::Stop;

/// Files that are closed together. Clones share the files.
#[derive(Clone, Default)]
pub(crate) struct Files(Arc<Mutex<FilesState>>);

#[derive(Default)]
struct FilesState {
    /// Files that the device has not closed by its drop.
    open: Vec<Weak<File>>,
    closed: bool,
}

/// A file, until it is closed.
struct File {
    device: Mutex<Option<Arc<dyn OpenDevice>>>,
    page_size: usize,
}

impl Files {
    fn state(&self) -> MutexGuard<'_, FilesState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a device as one of these files.
    pub(crate) fn device(
        &self,
        backend: &Arc<dyn Backend>,
        info: &DeviceInfo,
    ) -> Result<Device, Stop> {
        Ok(Device::open(&*self.backend(backend), info)?)
    }

    /// A backend that opens devices through these files.
    pub(crate) fn backend(&self, backend: &Arc<dyn Backend>) -> Arc<dyn Backend> {
        Arc::new(Opener { backend: backend.clone(), files: self.clone() })
    }

    /// Closes all of them, permanently.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        for file in state.open.drain(..).filter_map(|file| file.upgrade()) {
            file.device.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }

    pub(crate) fn are_closed(&self) -> bool {
        self.state().closed
    }
}

impl File {
    /// The opened device; none for a killed role.
    fn device(&self) -> Result<Arc<dyn OpenDevice>, Errno> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or(Errno::EIO)
    }
}

/// A backend whose devices are files of a role.
struct Opener {
    backend: Arc<dyn Backend>,
    files: Files,
}

impl Backend for Opener {
    fn name(&self) -> &str {
        self.backend.name()
    }

    fn enumerate(&self) -> Result<Vec<DeviceInfo>, Error> {
        self.backend.enumerate()
    }

    fn representors(&self, device: &DeviceInfo) -> Result<Vec<RepresentorInfo>, Error> {
        self.backend.representors(device)
    }

    fn open(&self, info: &DeviceInfo) -> Result<Arc<dyn OpenDevice>, Error> {
        let device = self.backend.open(info)?;
        let page_size = device.page_size();
        let file = Arc::new(File { device: Mutex::new(Some(device)), page_size });
        self.files.state().open.push(Arc::downgrade(&file));
        Ok(file)
    }
}

// SAFETY: requests and answers are those of the device inside; when that is closed, there are none.
unsafe impl OpenDevice for File {
    unsafe fn ioctl(&self, request: &mut [u64]) -> Result<(), Errno> {
        // SAFETY: as the caller promises.
        unsafe { self.device()?.ioctl(request) }
    }

    fn page_size(&self) -> usize {
        self.page_size
    }

    fn mmap(&self, offset: u64, length: usize, protection: Protection) -> Result<Mapping, Errno> {
        self.device()?.mmap(offset, length, protection)
    }
}
