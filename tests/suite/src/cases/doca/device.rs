//! Devices as DOCA lists and opens them.

use verbless_command::Device;
use verbless_doca::{DevInfo, DevType, ErrorKind};

use super::rig::{open, refusal};
use crate::case::cases;
use crate::need::{ETHERNET, INFINIBAND, cap};
use crate::{Lab, Stop, ensure, ensure_eq};

cases!(
    "doca_dev",
    "Devices as DOCA lists, describes and opens them.":
    devinfo_list_has_every_backend_device,
    unknown_name_error_lists_devices,
    two_opens_yield_equal_devs,
    host_function_is_pf_or_vf,
    open_dev_outlives_devinfo_list,
    dev_type_is_software_only_on_model,
    vuid_is_unique_per_function[cap!(hca_cap_2.query_vuid)],
    infiniband_dev_has_no_ip_addresses[INFINIBAND],
    ethernet_dev_has_ip_address[ETHERNET],
);

fn devinfo_list_has_every_backend_device(lab: &Lab) -> Result<(), Stop> {
    let names = |list: Vec<DevInfo>| -> Vec<String> {
        list.iter().map(|info| info.ib_device_name().to_owned()).collect()
    };
    let found: Vec<_> = lab.backend().enumerate()?.into_iter().map(|info| info.name).collect();
    ensure_eq!(names(DevInfo::list_of(lab.shared_backend())?), found, "names");
    Ok(())
}

fn unknown_name_error_lists_devices(lab: &Lab) -> Result<(), Stop> {
    let name = &lab.info().name;
    let found = DevInfo::find_in(lab.shared_backend(), name)?;
    ensure_eq!(found.ib_device_name(), name, "name");
    if let Ok(address) = found.pci_address() {
        let again = DevInfo::find_in(lab.shared_backend(), &address.to_string())?;
        ensure_eq!(again.pci_address()?, address, "PCI address");
    }
    match DevInfo::find_in(lab.shared_backend(), "mlx5_none") {
        Ok(_) => Err(Stop::fail("a device was found that does not exist")),
        Err(error) => {
            ensure_eq!(error.kind(), ErrorKind::NotFound, "kind of the error");
            ensure!(error.to_string().contains(name.as_str()), "{error} does not name {name}");
            Ok(())
        }
    }
}

fn two_opens_yield_equal_devs(lab: &Lab) -> Result<(), Stop> {
    let (first, second) = (open(lab, lab.info())?, open(lab, lab.info())?);
    ensure!(first == second, "two devices");
    if lab.has_peer() {
        ensure!(open(lab, lab.other_info())? != first, "another device is the same");
    }
    drop(first);
    ensure!(!second.info().vuid().is_ok_and(|vuid| vuid.is_empty()), "an empty VUID");
    Ok(())
}

fn host_function_is_pf_or_vf(lab: &Lab) -> Result<(), Stop> {
    use verbless_doca::PciFuncType;
    let info = open(lab, lab.info())?.info().clone();
    let virtual_function = info.device_info().device_id == 0x101e;
    let expected = if virtual_function { PciFuncType::Vf } else { PciFuncType::Pf };
    ensure_eq!(info.function_type(), expected, "type of the function");
    Ok(())
}

fn open_dev_outlives_devinfo_list(lab: &Lab) -> Result<(), Stop> {
    let list = DevInfo::list_of(lab.shared_backend())?;
    let dev = list.first().ok_or_else(|| Stop::fail("an empty list"))?.open()?;
    let name = list[0].ib_device_name().to_owned();
    drop(list);
    ensure_eq!(dev.info().ib_device_name(), name, "name");
    dev.device().query_port(1)?;
    Ok(())
}

fn dev_type_is_software_only_on_model(lab: &Lab) -> Result<(), Stop> {
    let dev = open(lab, lab.info())?;
    let model = Device::open(lab.backend(), lab.info())?.adapter().is_model();
    let expected = if model { DevType::Software } else { DevType::Hardware };
    ensure_eq!(dev.info().dev_type()?, expected, "type");
    Ok(())
}

fn vuid_is_unique_per_function(lab: &Lab) -> Result<(), Stop> {
    let vuid = open(lab, lab.info())?.info().vuid()?;
    ensure!(!vuid.is_empty() && vuid.is_ascii(), "the VUID is empty or not ASCII");
    ensure!(open(lab, lab.info())?.info().vuid()? == vuid, "the VUID differs, asked again");
    if lab.has_peer() {
        let other = open(lab, lab.other_info())?.info().vuid()?;
        ensure!(other != vuid, "two functions have one VUID");
    }
    Ok(())
}

fn infiniband_dev_has_no_ip_addresses(lab: &Lab) -> Result<(), Stop> {
    let dev = open(lab, lab.info())?;
    ensure_eq!(refusal(dev.info().ipv4())?, ErrorKind::NotFound, "IPv4");
    ensure_eq!(refusal(dev.info().ipv6())?, ErrorKind::NotFound, "IPv6");
    Ok(())
}

fn ethernet_dev_has_ip_address(lab: &Lab) -> Result<(), Stop> {
    let dev = open(lab, lab.info())?;
    let (four, six) = (dev.info().ipv4(), dev.info().ipv6());
    ensure!(four.is_ok() || six.is_ok(), "{four:?} {six:?}");
    Ok(())
}
