//! Capabilities of a device: exports of memory between host and DPU, and hot-plug of emulated
//! functions (`doca_devinfo_get_is_…_supported`). A library's context has the library's
//! capabilities.

use super::{Dev, DevInfo};
use crate::error::{Error, ErrorKind, Result};

impl DevInfo {
    /// Whether a map can be exported to the DPU for this device
    /// (`doca_devinfo_get_is_mmap_export_dpu_supported`): it is a function of the host, and the
    /// card lets its DPU use a host's mkeys.
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`], with the same reason as a refused export; the device cannot be
    /// opened.
    pub fn mmap_export_dpu_supported(&self) -> Result<()> {
        self.open().and_then(|dev| check_export_to_dpu(&dev))
    }

    /// Whether this device reaches the memory of a map that its host exported
    /// (`doca_devinfo_get_is_mmap_from_export_dpu_supported`): it is a function of a DPU that can
    /// use a host's mkeys.
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`], with the same reason as a refused import; the device cannot be
    /// opened.
    pub fn mmap_from_export_dpu_supported(&self) -> Result<()> {
        self.open().and_then(|dev| check_import_from_host(&dev))
    }

    /// Whether emulated functions can be plugged in and out through this device
    /// (`doca_devinfo_get_is_hotplug_manager_supported`).
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`]: the commands for it are not public, and this crate has none.
    pub fn hotplug_manager_supported(&self) -> Result<()> {
        let name = self.ib_device_name();
        Err(Error::new(
            ErrorKind::NotSupported,
            format!("{name} cannot hot-plug functions: the commands for it are not public"),
        ))
    }
}

/// Checks that the DPU can use keys of this device.
pub(crate) fn check_export_to_dpu(dev: &Dev) -> Result<()> {
    check_cross_function_mkeys(dev)?;
    if dev.info().device_info().embedded_cpu {
        let text = format!("{dev:?} is a device of the DPU itself: the host exports to the DPU");
        return Err(Error::new(ErrorKind::NotSupported, text));
    }
    Ok(())
}

/// Checks that this device can use keys of its host.
pub(crate) fn check_import_from_host(dev: &Dev) -> Result<()> {
    check_cross_function_mkeys(dev)?;
    if !dev.info().device_info().embedded_cpu {
        let text = format!(
            "{dev:?} is not a device of a DPU: only the DPU, in switchdev mode, reaches memory \
             that its host exported"
        );
        return Err(Error::new(ErrorKind::NotSupported, text));
    }
    Ok(())
}

/// Checks that another function can use mkeys of this one.
fn check_cross_function_mkeys(dev: &Dev) -> Result<()> {
    if !dev.caps().shares_keys() {
        let text = format!("{dev:?} shares no keys with other functions of its card");
        return Err(Error::new(ErrorKind::NotSupported, text));
    }
    Ok(())
}
