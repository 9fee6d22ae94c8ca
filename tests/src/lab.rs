//! What the cases run on: the model with two devices on one fabric, or a real device.

use std::sync::Arc;

use nix::sys::resource::{Resource, getrlimit};
use verbless_command::Device;
use verbless_devx::{Backend, DeviceInfo, ErrorKind, Kernel, LinkLayer};
use verbless_model::{Link, Model, ObjectCounts, Profile};

use crate::Stop;

/// What the user asked to run on.
#[derive(Debug, Clone)]
pub struct Choice {
    /// `auto`, `model`, or a device's name.
    pub device: String,
    /// Profile of the model: a name or a TOML file.
    pub profile: String,
    /// `infiniband` or `ethernet`, if not the profile's own.
    pub link: Option<String>,
    /// Whether a hardware run may change more than its own objects.
    pub destructive: bool,
}

/// What a case has at hand.
pub struct Lab {
    choice: Choice,
    profile: Option<Profile>,
    backend: Arc<dyn Backend>,
    /// The model, when this is one: to look into it and to break it.
    model: Option<Model>,
    devices: Vec<DeviceInfo>,
    /// What each device of the model held when it was built.
    before: Option<Vec<ObjectCounts>>,
}

impl Lab {
    /// Finds what the choice names.
    pub fn open(choice: &Choice) -> Result<Self, Stop> {
        if choice.device != "model" {
            let kernel = Kernel::new();
            match kernel.enumerate() {
                Ok(found) => {
                    let wanted = |info: &&DeviceInfo| {
                        choice.device == "auto" || choice.device == info.name
                    };
                    if let Some(info) = found.iter().find(wanted) {
                        return Ok(Self {
                            choice: choice.clone(),
                            profile: None,
                            backend: Arc::new(kernel),
                            model: None,
                            devices: vec![info.clone()],
                            before: None,
                        });
                    }
                    if choice.device != "auto" {
                        let names: Vec<_> = found.iter().map(|info| info.name.as_str()).collect();
                        return Err(Stop::fail(format!(
                            "there is no device {}; this machine has {}",
                            choice.device,
                            if names.is_empty() { "none".into() } else { names.join(", ") }
                        )));
                    }
                }
                // A machine without RDMA is what the model is for; a device that cannot be used must be heard of.
                Err(error)
                    if choice.device == "auto" && error.kind() == ErrorKind::NoDevice => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut profile = Profile::load(&choice.profile)?;
        if let Some(link) = &choice.link {
            profile = profile.with_link(match link.as_str() {
                "infiniband" => Link::Infiniband,
                "ethernet" => Link::Ethernet,
                other => {
                    return Err(Stop::fail(format!(
                        "--link {other}: there are infiniband and ethernet"
                    )));
                }
            });
        }
        Self::on_model(choice, profile)
    }

    fn on_model(choice: &Choice, profile: Profile) -> Result<Self, Stop> {
        let model = Model::builder().device(profile.clone()).device(profile.clone()).build();
        let backend = Arc::new(model.backend());
        let devices = backend.enumerate()?;
        let choice = choice.clone();
        let before = Some((0..model.devices()).map(|device| model.counts(device)).collect());
        Ok(Self { choice, profile: Some(profile), backend, model: Some(model), devices, before })
    }

    /// The lab for one case: a model is built anew, so that no case can leave anything to the next.
    pub fn fresh(&self) -> Result<Self, Stop> {
        match &self.profile {
            Some(profile) => Self::on_model(&self.choice, profile.clone()),
            None => Ok(Self {
                choice: self.choice.clone(),
                profile: None,
                backend: self.backend.clone(),
                model: None,
                devices: self.devices.clone(),
                before: None,
            }),
        }
    }

    /// The backend, for cases about opening devices.
    pub fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// The first device.
    pub fn info(&self) -> &DeviceInfo {
        &self.devices[0]
    }

    /// The other device: the model's second one, or the same device again, whose port then loops back.
    pub fn other_info(&self) -> &DeviceInfo {
        self.devices.last().unwrap_or(&self.devices[0])
    }

    /// The model's handle, or a skip: the case breaks the device on purpose.
    pub fn model(&self) -> Result<&Model, Stop> {
        self.model.as_ref().ok_or_else(|| Stop::skip("only a model can be made to fail this way"))
    }

    /// Whether this is a model.
    pub fn is_model(&self) -> bool {
        self.model.is_some()
    }

    /// Whether cases may change more than their own objects.
    pub fn destructive(&self) -> bool {
        self.choice.destructive
    }

    /// Opens the first device.
    pub fn device(&self) -> Result<Device, Stop> {
        Ok(Device::open(self.backend(), self.info())?)
    }

    /// Opens the other device.
    pub fn other_device(&self) -> Result<Device, Stop> {
        Ok(Device::open(self.backend(), self.other_info())?)
    }

    /// One line on what this is. Only what does not identify itself as the model is called hardware.
    pub fn describe(&self) -> String {
        let info = self.info();
        let sort = match Device::open(self.backend(), info) {
            Ok(device) if device.adapter().is_model() => "the model",
            Ok(_) => "hardware",
            Err(_) => "a device that does not open",
        };
        format!("{sort}: {} ({}, firmware {})", info.name, info.board_id, info.firmware)
    }

    /// Fails when the model still holds objects, other than those of its kernel.
    pub(crate) fn nothing_is_left(&self) -> Result<(), Stop> {
        let (Some(model), Some(before)) = (&self.model, &self.before) else { return Ok(()) };
        for (device, before) in before.iter().enumerate() {
            let after = model.counts(device);
            if after != *before {
                return Err(Stop::fail(format!(
                    "objects are left on device {device}: {after:?}; there were {before:?}"
                )));
            }
        }
        Ok(())
    }

    /// What has an influence on the run.
    pub fn preconditions(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for info in &self.devices {
            for port in &info.ports {
                let link = match port.link_layer {
                    LinkLayer::InfiniBand => "InfiniBand",
                    LinkLayer::Ethernet => "Ethernet",
                    LinkLayer::Unspecified => "unknown link layer",
                };
                lines.push(format!("{} port {}: {link}, {} GIDs", info.name, port.number, port.gids.len()));
            }
        }
        if let Ok((soft, _)) = getrlimit(Resource::RLIMIT_MEMLOCK) {
            lines.push(match soft {
                u64::MAX => "memlock limit: none".to_string(),
                bytes => format!("memlock limit: {} KiB", bytes >> 10),
            });
        }
        lines
    }
}
