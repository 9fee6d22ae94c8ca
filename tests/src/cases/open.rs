//! Finding and opening devices.

use verbless_command::Device;

use crate::case::cases;
use crate::{Lab, Stop, ensure, ensure_eq};

cases!("open":
    a_device_opens_and_says_which_it_is,
    the_first_port_is_active,
    nop_goes_to_the_device_and_back,
    two_contexts_of_one_device_are_independent,
);

fn a_device_opens_and_says_which_it_is(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    ensure_eq!(device.adapter().psid, lab.info().board_id, "PSID and board id");
    ensure_eq!(device.adapter().is_model(), lab.is_model(), "what the PSID says of the device");
    Ok(())
}

fn the_first_port_is_active(lab: &Lab) -> Result<(), Stop> {
    let port = lab.device()?.query_port(1)?;
    ensure!(port.is_active(), "port 1 is in state {}", port.raw.state);
    Ok(())
}

fn nop_goes_to_the_device_and_back(lab: &Lab) -> Result<(), Stop> {
    Ok(lab.device()?.nop()?)
}

fn two_contexts_of_one_device_are_independent(lab: &Lab) -> Result<(), Stop> {
    let first = lab.device()?;
    let second = Device::open(lab.backend(), lab.info())?;
    drop(first);
    Ok(second.nop()?)
}
