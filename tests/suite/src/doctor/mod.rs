//! The doctor: a chain of checks from the kernel's module to one message and one event.
//!
//! The chain ends at the first link that fails, with one sentence: what failed, why, and what to
//! do. A run of the suite begins with it; cases that need the failed link are blocked.
//!
//! - `chain`: the links, what a check finds, and the checks in order.
//! - `host`: what the machine offers before a device is opened; `kernel_log`: what its log says.
//! - `device`: from the first context to the first event; `port`: a port's properties in words.
//! - `blocked`: which cases need a failed link.

mod blocked;
mod chain;
mod device;
mod host;
mod kernel_log;
mod port;
#[cfg(test)]
mod tests;

use verbless_devx::abi::core::port_state;
use verbless_devx::{Backend, DeviceInfo, ErrorKind};

pub(crate) use blocked::Blockage;
pub use chain::{Chain, Check, Finding, Link};
pub use host::Host;
pub(crate) use kernel_log::KernelLog;
pub use port::gigabits;

use crate::lab::is_usable;
use crate::{Choice, Lab, Stop};

/// The chain of a choice, and the lab for the cases if a device was found.
pub struct Examination {
    /// The checks.
    pub chain: Chain,
    /// The lab, unless the chain failed before there was one.
    pub lab: Option<Lab>,
}

/// Checks the chain on the device of the choice. On the model in this process, the chain has a
/// model of its own.
///
/// An error is a mistake in the choice: an unknown profile, no such peer.
pub fn examine(choice: &Choice, host: &Host) -> Result<Examination, Stop> {
    let mut chain = Chain::default();
    let kernel = host.kernel();
    let found = match choice.device.as_str() {
        "model" => None,
        _ => Some(kernel.enumerate()),
    };
    let mut why_model = None;
    let device = match found {
        None => None,
        // A card that cannot be used must not pass as the model.
        Some(Err(error))
            if choice.device == "auto"
                && error.kind() == ErrorKind::NoDevice
                && !host.has_function() =>
        {
            why_model = Some(error.to_string());
            None
        }
        Some(Err(error)) => {
            // Ends at the link that explains why there is no device.
            let _broken = host.without_device(&mut chain, &error);
            return Ok(Examination { chain, lab: None });
        }
        Some(Ok(found)) => match wanted(&found, &choice.device) {
            Some(info) => Some(info.clone()),
            None => {
                let names: Vec<_> = found.iter().map(|info| info.name.as_str()).collect();
                let why = format!(
                    "there is no device {}: this machine has {}; name one of them with --device, \
                     or take --device auto",
                    choice.device,
                    names.join(", ")
                );
                // The chain ends here in any case.
                let _broken = host
                    .modules(&mut chain)
                    .and_then(|()| chain.check(Link::Device, || Finding::Fails(why)));
                return Ok(Examination { chain, lab: None });
            }
        },
    };
    let opened = match &device {
        // The lab itself takes only a usable device, unless it is named.
        Some(info) if !is_usable(info) => Choice { device: info.name.clone(), ..choice.clone() },
        _ => choice.clone(),
    };
    let lab = Lab::open_on(&opened, kernel)?;
    let fresh = lab.fresh()?;
    let host_holds = match &device {
        Some(info) => host.with_device(&mut chain, info),
        None => host.with_model(&mut chain, lab.info(), why_model.as_deref()),
    };
    // The chain itself says where it ended.
    let _broken = host_holds.and_then(|()| device::check(&mut chain, &fresh, host));
    Ok(Examination { chain, lab: Some(lab) })
}

/// The device of that name; for `auto` the first usable one, otherwise the first with an ACTIVE
/// port, and if none is, the first.
fn wanted<'a>(found: &'a [DeviceInfo], name: &str) -> Option<&'a DeviceInfo> {
    if name != "auto" {
        return found.iter().find(|info| info.name == name);
    }
    let first = |fits: fn(&DeviceInfo) -> bool| found.iter().find(|info| fits(info));
    first(is_usable).or_else(|| first(is_active)).or(found.first())
}

fn is_active(info: &DeviceInfo) -> bool {
    info.ports.first().is_some_and(|port| port.state == port_state::ACTIVE)
}
