//! Properties of a device that are known before it is opened.

use std::fmt;

/// A device as [`Backend::enumerate`](crate::Backend::enumerate) finds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceInfo {
    /// RDMA device name, such as `mlx5_0`.
    pub name: String,
    /// Name of its character device, such as `uverbs0`.
    pub node: String,
    /// Whether the character device exists. Without it the device cannot be opened: a container
    /// sees all devices of its host in sysfs, but has only the nodes that it was given.
    pub has_node: bool,
    /// PCI address, such as `0000:08:00.0`; of the parent function when the device is a
    /// sub-function.
    pub pci_address: Option<String>,
    /// Type of the PCI function.
    pub function: FunctionKind,
    /// PCI vendor id; 0x15b3 for hardware.
    pub vendor_id: u16,
    /// PCI device id, such as 0x101d.
    pub device_id: u16,
    /// Board id (PSID), such as `MT_0000000359`. A software model shows a reserved one.
    pub board_id: String,
    /// Firmware version, such as `22.31.1014`.
    pub firmware: String,
    /// Node GUID.
    pub node_guid: u64,
    /// System image GUID: equal for the functions of one card.
    pub system_image_guid: u64,
    /// Whether the device is a function of a DPU's embedded CPU, by what the kernel shows: it has
    /// representors of the host's functions, or the machine is a BlueField.
    pub embedded_cpu: bool,
    /// Names of the network devices of the PCI function, without representors.
    pub netdevs: Vec<String>,
    /// The ports, in the order of their numbers.
    pub ports: Vec<PortInfo>,
}

/// The type of a device's function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FunctionKind {
    /// A physical PCI function (PF).
    #[default]
    Physical,
    /// A virtual PCI function (VF).
    Virtual,
    /// A sub-function (SF): part of a PCI function, without an address of its own.
    Sub,
}

/// A representor: a network device that represents a function behind an embedded switch
/// ([`Backend::representors`](crate::Backend::representors)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepresentorInfo {
    /// Name of the representor's network device, such as `pf0hpf`.
    pub name: String,
    /// Id of the switch (`phys_switch_id`).
    pub switch_id: String,
    /// Whether the function belongs to another host: the host of a DPU.
    pub external: bool,
    /// Type of the represented function.
    pub function: FunctionKind,
    /// Number of the represented function if it is a PF; of its parent if it is a VF or SF.
    pub pf: u32,
    /// Number of the VF, or the user's number of the SF; `None` for a PF.
    pub number: Option<u32>,
    /// PCI address of the represented function on its own host, if the kernel shows it; an SF has
    /// none.
    pub pci_address: Option<String>,
    /// The function's VUID, if the kernel shows it.
    pub vuid: Option<String>,
}

/// A port of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortInfo {
    /// 1-based number.
    pub number: u8,
    /// The type of link.
    pub link_layer: LinkLayer,
    /// State when enumerated, as [`port_state`](crate::abi::core::port_state); 0 if unknown.
    pub state: u8,
    /// GIDs in use when enumerated, in the order of their indexes.
    pub gids: Vec<GidInfo>,
}

/// An entry of a port's GID table that is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidInfo {
    /// Index in the table.
    pub index: u32,
    /// The GID.
    pub gid: Gid,
    /// The type of the GID.
    pub kind: GidType,
    /// Name of the network device that the GID belongs to; RoCE only.
    pub netdev: Option<String>,
}

/// The type of link that a port is connected to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkLayer {
    /// The kernel did not say.
    #[default]
    Unspecified,
    /// InfiniBand.
    InfiniBand,
    /// Ethernet, with RoCE.
    Ethernet,
}

impl LinkLayer {
    /// From `enum rdma_link_layer`.
    #[must_use]
    pub const fn from_code(code: u8) -> Self {
        match code {
            crate::abi::core::link_layer::INFINIBAND => Self::InfiniBand,
            crate::abi::core::link_layer::ETHERNET => Self::Ethernet,
            _ => Self::Unspecified,
        }
    }
}

/// Type of a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GidType {
    /// InfiniBand.
    InfiniBand,
    /// RoCE version 1.
    RoceV1,
    /// RoCE version 2.
    RoceV2,
    /// A type that this crate does not know.
    Other(u32),
}

impl GidType {
    /// From `enum ib_uverbs_gid_type`.
    #[must_use]
    pub const fn from_code(code: u32) -> Self {
        use crate::abi::core::gid_type;
        match code {
            gid_type::IB => Self::InfiniBand,
            gid_type::ROCE_V1 => Self::RoceV1,
            gid_type::ROCE_V2 => Self::RoceV2,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InfiniBand => f.write_str("IB"),
            Self::RoceV1 => f.write_str("RoCE v1"),
            Self::RoceV2 => f.write_str("RoCE v2"),
            Self::Other(code) => write!(f, "GID type {code}"),
        }
    }
}

/// A global identifier, in network order. Prints as eight groups, the way sysfs does.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Reads the form that sysfs uses: `fe80:0000:0000:0000:0200:00ff:fe00:0001`, all eight groups.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 16];
        let mut groups = text.trim().split(':');
        for pair in bytes.chunks_exact_mut(2) {
            pair.copy_from_slice(&u16::from_str_radix(groups.next()?, 16).ok()?.to_be_bytes());
        }
        groups.next().is_none().then_some(Self(bytes))
    }

    /// True for an unused entry.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }

    /// Whether the interface id, the last 8 bytes, is 0. No InfiniBand port has such a GID: an
    /// unused entry of its table reads as zero, or as the subnet's prefix alone. A RoCE port may
    /// have it, because a GID there is an IP address.
    #[must_use]
    pub fn lacks_interface_id(self) -> bool {
        self.0[8..] == [0; 8]
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, pair) in self.0.chunks_exact(2).enumerate() {
            let separator = if at == 0 { "" } else { ":" };
            write!(f, "{separator}{:02x}{:02x}", pair[0], pair[1])?;
        }
        Ok(())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gid_round_trips_through_text() {
        let text = "fe80:0000:0000:0000:0200:00ff:fe00:0001";
        let gid = Gid::parse(text).unwrap();
        assert_eq!(gid.0[..2], [0xfe, 0x80]);
        assert_eq!(gid.to_string(), text);
        assert!(!gid.is_zero() && !gid.lacks_interface_id());
        let prefix = Gid::parse("fe80:0000:0000:0000:0000:0000:0000:0000").unwrap();
        assert!(!prefix.is_zero() && prefix.lacks_interface_id());
    }

    #[test]
    fn link_and_gid_codes_map_to_names() {
        let layers = [0, 1, 2, 3].map(LinkLayer::from_code);
        let unknown = LinkLayer::Unspecified;
        assert_eq!(layers, [unknown, LinkLayer::InfiniBand, LinkLayer::Ethernet, unknown]);
        let kinds = [0, 1, 2, 9].map(GidType::from_code);
        assert_eq!(kinds.map(|it| it.to_string()), ["IB", "RoCE v1", "RoCE v2", "GID type 9"]);
        let text = format!("{:?}", Gid([0xfe; 16]));
        assert_eq!(text, "Gid(fefe:fefe:fefe:fefe:fefe:fefe:fefe:fefe)");
        assert!(Gid::default().is_zero() && !Gid([0xfe; 16]).is_zero());
    }

    #[test]
    fn gid_parse_requires_eight_groups() {
        for text in [
            "",
            "::",
            "fe80",
            "1:2:3:4:5:6:7",
            "1:2:3:4:5:6:7:8:9",
            "1:2:3:4:5:6:7:x",
            "1:2:3:4:5:6:7:12345",
        ] {
            assert_eq!(Gid::parse(text), None, "{text}");
        }
    }
}
