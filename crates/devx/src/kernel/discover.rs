//! Finds mlx5 devices through sysfs; explains why there is none.
//!
//! Sources: Linux `Documentation/ABI/stable/sysfs-class-infiniband`,
//! `drivers/infiniband/core/{uverbs_main,sysfs}.c`, `drivers/infiniband/hw/mlx5/main.c` (board_id),
//! the PCI id table of `mlx5_core`.

use std::path::Path;

use super::representors;
use super::sysfs::{guid, hex16, link_name, names, resolved, text};
use crate::error::{Error, ErrorKind, Result};
use crate::info::{DeviceInfo, FunctionKind, Gid, GidInfo, GidType, LinkLayer, PortInfo};

/// PCI vendor of mlx5 functions.
const VENDOR: u16 = 0x15b3;

/// The mlx5 devices that sysfs shows, in the order of their uverbs numbers; those whose node is in
/// `dev` come first.
pub(super) fn devices(sysfs: &Path, dev: &Path) -> Result<Vec<DeviceInfo>> {
    let class = sysfs.join("class/infiniband_verbs");
    let mut found: Vec<_> = names(&class)
        .into_iter()
        .filter(|node| node.starts_with("uverbs"))
        .filter_map(|node| device(sysfs, dev, &class.join(&node), node))
        .collect();
    found.sort_by_key(|info| !info.has_node);
    if found.is_empty() { Err(none(sysfs)) } else { Ok(found) }
}

/// Describes the device of a uverbs node; `None` if it is not an mlx5 device.
fn device(sysfs: &Path, dev: &Path, entry: &Path, node: String) -> Option<DeviceInfo> {
    let name = text(entry.join("ibdev"))?;
    let parent = resolved(entry.join("device"));
    // A sub-function's parent is an auxiliary device, somewhere below its PCI function.
    let function = parent.ancestors().find(|path| path.join("vendor").is_file()).unwrap_or(&parent);
    let vendor_id = hex16(function.join("vendor")).unwrap_or(0);
    let is_mlx5 = match link_name(parent.join("driver")) {
        Some(driver) => driver.starts_with("mlx5_core"),
        None => vendor_id == VENDOR,
    };
    if !is_mlx5 {
        return None;
    }
    let device_id = hex16(function.join("device")).unwrap_or(0);
    let kind = if function != parent {
        FunctionKind::Sub
    } else if function.join("physfn").exists() || is_virtual_id(vendor_id, device_id) {
        FunctionKind::Virtual
    } else {
        FunctionKind::Physical
    };
    let netdevs = representors::of_function(sysfs, function);
    let rdma = sysfs.join("class/infiniband").join(&name);
    let attribute = |file: &str| text(rdma.join(file)).unwrap_or_default();
    Some(DeviceInfo {
        // What cannot be examined is not missing: opening says why.
        has_node: dev.join(&node).try_exists().unwrap_or(true),
        node,
        pci_address: function
            .file_name()
            .and_then(|name| name.to_str())
            .filter(|name| is_pci_address(name))
            .map(str::to_owned),
        function: kind,
        vendor_id,
        device_id,
        board_id: attribute("board_id"),
        firmware: attribute("fw_ver"),
        node_guid: guid(rdma.join("node_guid")).unwrap_or(0),
        system_image_guid: guid(rdma.join("sys_image_guid")).unwrap_or(0),
        embedded_cpu: representors::is_embedded(sysfs, &netdevs),
        netdevs: if kind == FunctionKind::Sub { names(parent.join("net")) } else { netdevs.own },
        ports: ports(&rdma.join("ports")),
        name,
    })
}

fn ports(directory: &Path) -> Vec<PortInfo> {
    names(directory)
        .into_iter()
        .filter_map(|name| {
            let path = directory.join(&name);
            Some(PortInfo {
                number: name.parse().ok()?,
                link_layer: match text(path.join("link_layer")).as_deref() {
                    Some("InfiniBand") => LinkLayer::InfiniBand,
                    Some("Ethernet") => LinkLayer::Ethernet,
                    _ => LinkLayer::Unspecified,
                },
                // "4: ACTIVE"
                state: text(path.join("state"))
                    .and_then(|text| text.split(':').next()?.parse().ok())
                    .unwrap_or(0),
                gids: Vec::new(),
            })
        })
        .map(|port| {
            let gids = gids(&directory.join(port.number.to_string()), port.link_layer);
            PortInfo { gids, ..port }
        })
        .collect()
}

/// The entries in use of a port's GID table.
fn gids(port: &Path, link_layer: LinkLayer) -> Vec<GidInfo> {
    names(port.join("gids"))
        .into_iter()
        .filter_map(|name| {
            let gid = Gid::parse(&text(port.join("gids").join(&name))?)?;
            if gid.is_zero() || (link_layer == LinkLayer::InfiniBand && gid.lacks_interface_id()) {
                return None;
            }
            let kind = match text(port.join("gid_attrs/types").join(&name)).as_deref() {
                Some("RoCE v2") => GidType::RoceV2,
                // "IB/RoCE v1", or nothing on InfiniBand.
                _ if link_layer == LinkLayer::Ethernet => GidType::RoceV1,
                _ => GidType::InfiniBand,
            };
            let netdev = text(port.join("gid_attrs/ndevs").join(&name));
            Some(GidInfo { index: name.parse().ok()?, gid, kind, netdev })
        })
        .collect()
}

fn is_pci_address(name: &str) -> bool {
    let mut parts = name
        .split([':', '.'])
        .map(|part| part.chars().all(|c| c.is_ascii_hexdigit()).then_some(part.len()));
    matches!(
        (parts.next(), parts.next(), parts.next(), parts.next(), parts.next()),
        (Some(Some(4..)), Some(Some(2)), Some(Some(2)), Some(Some(1)), None)
    )
}

/// Why no device was found.
fn none(sysfs: &Path) -> Error {
    const ATTEMPTED: &str = "looking for mlx5 devices";
    let missing = |module: &str, seen: &str| {
        Error::new(
            ErrorKind::ModuleMissing,
            format!("{ATTEMPTED}: {seen}, but the kernel module {module} is not loaded"),
            format!(
                "run `modprobe {module}` (as root, on the host if this is a container); if there \
                 is no such module, install the kernel's extra modules; if it is refused, `dmesg` \
                 says why: \"disagrees about version\" means modules of two sources (rebuild the \
                 initramfs, `/etc/init.d/openibd restart`), a rejected key means Secure Boot \
                 (enrol the vendor's key with mokutil)"
            ),
        )
    };
    let absent = |seen: String, hint: &'static str| {
        Error::new(ErrorKind::NoDevice, format!("{ATTEMPTED}: {seen}"), hint)
    };

    let pci = sysfs.join("bus/pci/devices");
    let functions: Vec<_> = names(&pci)
        .into_iter()
        .filter(|name| {
            hex16(pci.join(name).join("vendor")) == Some(VENDOR)
                && hex16(pci.join(name).join("device")).is_some_and(is_mlx5_id)
        })
        .map(|name| {
            let driver = link_name(pci.join(&name).join("driver"));
            (name, driver)
        })
        .collect();
    let rdma = names(sysfs.join("class/infiniband"));
    let mlx5 = functions.iter().find(|(_, driver)| driver.as_deref() == Some("mlx5_core"));
    let is_loaded = |module: &str| sysfs.join("module").join(module).is_dir();
    let unbound = |module: &str, seen: &str, other: &str| {
        Error::new(
            ErrorKind::NotProbed,
            format!("{ATTEMPTED}: {seen}; {module} is loaded, but not bound to it"),
            format!("its probe failed (see `dmesg | grep -e mlx5 -e infiniband`), or {other}"),
        )
    };
    match (mlx5, functions.first()) {
        (Some((address, _)), _) if rdma.is_empty() && is_loaded("mlx5_ib") => {
            let off = format!(
                "RDMA is off (`devlink dev param show pci/{address} name enable_rdma`), or the \
                 device belongs to another network namespace (`rdma system`)"
            );
            unbound("mlx5_ib", &format!("PCI function {address} has its driver"), &off)
        }
        (None, Some((address, None))) if is_loaded("mlx5_core") => unbound(
            "mlx5_core",
            &format!("PCI function {address} is an mlx5 device"),
            "this mlx5_core does not know the device",
        ),
        (Some((address, _)), _) if rdma.is_empty() => {
            missing("mlx5_ib", &format!("PCI function {address} has its driver"))
        }
        (Some((address, _)), _) if !sysfs.join("class/infiniband_verbs").is_dir() => missing(
            "ib_uverbs",
            &format!("PCI function {address} is the RDMA device {}", rdma.join(", ")),
        ),
        (Some((address, _)), _) => absent(
            format!("PCI function {address} has its driver, but no uverbs node"),
            "the device may be resetting, or belong to another network namespace (`rdma system`, \
             `rdma dev`)",
        ),
        (None, Some((address, Some(driver)))) => absent(
            format!("PCI function {address} is bound to {driver}"),
            "bind it to mlx5_core: unbind it in /sys/bus/pci/drivers and write its address to \
             mlx5_core/bind",
        ),
        (None, Some((address, None))) => {
            missing("mlx5_core", &format!("PCI function {address} is an mlx5 device"))
        }
        (None, None) if rdma.is_empty() => absent(
            "there is none on the PCI bus".to_owned(),
            "use a machine with a ConnectX or BlueField, pass one through to this guest, or use \
             the software model",
        ),
        (None, None) => absent(
            format!("the RDMA devices here are of other kinds ({})", rdma.join(", ")),
            "use a machine with a ConnectX or BlueField, or use the software model",
        ),
    }
}

/// Whether a PCI device id is one of mlx5: Connect-IB and later ConnectX (0x2101 is ConnectX-10
/// NVLink-C2C), and BlueField.
fn is_mlx5_id(id: u16) -> bool {
    matches!(id, 0x1011..=0x10ff | 0x2101 | 0xa2d2..=0xa2ff)
}

/// Whether mlx5_core takes the function for a virtual one by its PCI ids (MLX5_PCI_DEV_IS_VF in
/// `mlx5_core_pci_table`). In a guest, a virtual function has no link to its physical one.
fn is_virtual_id(vendor: u16, device: u16) -> bool {
    let of_connect_ib_to_connectx_6 = matches!(device, 0x1012 | 0x1014 | 0x1016 | 0x1018 | 0x101a);
    vendor == VENDOR && (of_connect_ib_to_connectx_6 || matches!(device, 0x101c | 0x101e | 0xa2d3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mlx5_ids_are_connect_ib_and_later_or_bluefield() {
        for id in [0x1011, 0x1014, 0x101d, 0x1021, 0x10ff, 0x2101, 0xa2d2, 0xa2dc, 0xa2ff] {
            assert!(is_mlx5_id(id), "{id:#x}");
        }
        for id in [0, 0x1003, 0x1010, 0x1100, 0x2100, 0x2102, 0xa2d1, 0xa300, u16::MAX] {
            assert!(!is_mlx5_id(id), "{id:#x}");
        }
    }

    #[test]
    fn virtual_ids_are_those_of_mlx5_core() {
        for id in [0x1012, 0x1014, 0x1016, 0x1018, 0x101a, 0x101c, 0x101e, 0xa2d3] {
            assert!(is_virtual_id(VENDOR, id) && !is_virtual_id(0x8086, id), "{id:#x}");
        }
        for id in [0x1011, 0x101b, 0x101d, 0x1021, 0x2101, 0xa2d2, 0xa2d6, 0xa2dc] {
            assert!(!is_virtual_id(VENDOR, id), "{id:#x}");
        }
    }

    #[test]
    fn is_pci_address_requires_full_bdf() {
        for name in ["0000:08:00.0", "10000:e1:00.1"] {
            assert!(is_pci_address(name), "{name}");
        }
        for name in
            ["", "mlx5_core.sf.2", "0000:08:00", "0000:08:00.0.1", "uverbs0", "zzzz:08:00.0"]
        {
            assert!(!is_pci_address(name), "{name}");
        }
    }
}
