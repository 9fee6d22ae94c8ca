//! What a recording says of its devices: all that a backend knows before it opens one.

use verbless_devx::abi::core::{gid_type, link_layer};
use verbless_devx::{DeviceInfo, FunctionKind, Gid, GidInfo, GidType, LinkLayer, PortInfo};

use super::bytes::Bytes;
use super::entry::{RecordedDevice, RecordedGid, RecordedPort};

impl From<&DeviceInfo> for RecordedDevice {
    fn from(info: &DeviceInfo) -> Self {
        Self {
            name: info.name.clone(),
            node: info.node.clone(),
            pci_address: info.pci_address.clone(),
            function: match info.function {
                FunctionKind::Physical => "physical",
                FunctionKind::Virtual => "virtual",
                FunctionKind::Sub => "sub",
            }
            .into(),
            vendor_id: info.vendor_id,
            device_id: info.device_id,
            board_id: info.board_id.clone(),
            firmware: info.firmware.clone(),
            node_guid: Bytes(info.node_guid.to_be_bytes().to_vec()),
            system_image_guid: Bytes(info.system_image_guid.to_be_bytes().to_vec()),
            embedded_cpu: info.embedded_cpu,
            netdevs: info.netdevs.clone(),
            ports: info.ports.iter().map(port).collect(),
        }
    }
}

fn port(info: &PortInfo) -> RecordedPort {
    let gid = |entry: &GidInfo| RecordedGid {
        index: entry.index,
        gid: Bytes(entry.gid.0.to_vec()),
        kind: match entry.kind {
            GidType::InfiniBand => gid_type::IB,
            GidType::RoceV1 => gid_type::ROCE_V1,
            GidType::RoceV2 => gid_type::ROCE_V2,
            GidType::Other(code) => code,
        },
        netdev: entry.netdev.clone(),
    };
    RecordedPort {
        number: info.number,
        link_layer: match info.link_layer {
            LinkLayer::InfiniBand => "infiniband",
            LinkLayer::Ethernet => "ethernet",
            LinkLayer::Unspecified => "unspecified",
        }
        .into(),
        state: info.state,
        gids: info.gids.iter().map(gid).collect(),
    }
}

impl RecordedDevice {
    /// The device as a backend shows it.
    pub(super) fn info(&self) -> Result<DeviceInfo, String> {
        let number = |bytes: &Bytes| match bytes.0[..].try_into() {
            Ok(bytes) => Ok(u64::from_be_bytes(bytes)),
            Err(_) => Err(format!("{bytes:?} is no GUID")),
        };
        Ok(DeviceInfo {
            name: self.name.clone(),
            node: self.node.clone(),
            has_node: true,
            pci_address: self.pci_address.clone(),
            function: match &*self.function {
                "physical" => FunctionKind::Physical,
                "virtual" => FunctionKind::Virtual,
                "sub" => FunctionKind::Sub,
                other => return Err(format!("{other:?} is no kind of function")),
            },
            vendor_id: self.vendor_id,
            device_id: self.device_id,
            board_id: self.board_id.clone(),
            firmware: self.firmware.clone(),
            node_guid: number(&self.node_guid)?,
            system_image_guid: number(&self.system_image_guid)?,
            embedded_cpu: self.embedded_cpu,
            netdevs: self.netdevs.clone(),
            ports: self.ports.iter().map(RecordedPort::info).collect::<Result<_, _>>()?,
        })
    }
}

impl RecordedPort {
    fn info(&self) -> Result<PortInfo, String> {
        let gid = |entry: &RecordedGid| match entry.gid.0[..].try_into() {
            Ok(bytes) => Ok(GidInfo {
                index: entry.index,
                gid: Gid(bytes),
                kind: GidType::from_code(entry.kind),
                netdev: entry.netdev.clone(),
            }),
            Err(_) => Err(format!("{:?} is no GID", entry.gid)),
        };
        Ok(PortInfo {
            number: self.number,
            link_layer: LinkLayer::from_code(match &*self.link_layer {
                "infiniband" => link_layer::INFINIBAND,
                "ethernet" => link_layer::ETHERNET,
                "unspecified" => 0,
                other => return Err(format!("{other:?} is no link layer")),
            }),
            state: self.state,
            gids: self.gids.iter().map(gid).collect::<Result<_, _>>()?,
        })
    }
}
