//! Finds a device or builds the model, for all examples.

use verbless::{Backend, Device, DeviceInfo, ErrorKind, Kernel};
use verbless_model::{Model, Profile};
use verbless_model_kernel::InProcess;

/// Devices to use.
pub(crate) struct Found {
    /// The backend of the devices.
    pub(crate) backend: Box<dyn Backend>,
    /// The devices.
    pub(crate) devices: Vec<DeviceInfo>,
    /// A description of them for the user.
    pub(crate) description: String,
}

impl Found {
    /// The other end of a connection from device 0: the model's second device, or the same port
    /// looped back.
    #[allow(dead_code, reason = "each example compiles this file for itself; not all connect")]
    pub(crate) fn peer(&self) -> Result<Device, verbless::DeviceError> {
        let first = Device::open(&*self.backend, &self.devices[0])?;
        if first.adapter().is_model() { self.device(1) } else { Ok(first) }
    }

    /// Opens device number `at`, or the last one if there are fewer.
    pub(crate) fn device(&self, at: usize) -> Result<Device, verbless::DeviceError> {
        Device::open(&*self.backend, &self.devices[at.min(self.devices.len() - 1)])
    }
}

/// Finds `wanted`: `auto` is every device of the kernel that has a node, or the model if there is
/// none; `model` is the model.
pub(crate) fn find(wanted: &str, profile: &str) -> Result<Found, Box<dyn std::error::Error>> {
    if wanted != "model" {
        let kernel = Kernel::new();
        match kernel.enumerate() {
            Ok(mut devices) => {
                // If no device has a node, opening the first one says what is missing.
                let any = devices.iter().any(|info| info.has_node);
                devices.retain(|info| match wanted {
                    "auto" => info.has_node || !any,
                    name => info.name == name,
                });
                if let Some(first) = devices.first() {
                    let description = format!("On {} ({}).", first.name, first.board_id);
                    return Ok(Found { backend: Box::new(kernel), devices, description });
                }
            }
            Err(error) if wanted == "auto" && error.kind() == ErrorKind::NoDevice => {}
            Err(error) => return Err(error.into()),
        }
        if wanted != "auto" {
            return Err(format!("this machine has no device {wanted}").into());
        }
    }
    let card = Profile::load(profile)?;
    let model = Model::builder().device(card.clone()).device(card).build();
    let backend = InProcess::of(&model);
    let devices = backend.enumerate()?;
    let description =
        format!("On the model, profile {profile} (--device model, or no mlx5 device here).");
    Ok(Found { backend: Box::new(backend), devices, description })
}
