//! The path to a peer, from FlexIO's fields.

use verbless_command::{Device, GlobalRoute, Path, RoceVersion};
use verbless_devx::{GidType, LinkLayer};

use super::QpAttr;
use crate::error::Error;

pub(super) fn path(device: &Device, attr: &QpAttr) -> Result<Path, Error> {
    if attr.force_loopback {
        return Ok(Path::Loopback);
    }
    let port = attr.vhca_port_num;
    let route = GlobalRoute::new(attr.rgid, attr.gid_table_index);
    let attributes = device.query_port(port)?;
    if attributes.link_layer() != LinkLayer::Ethernet {
        let grh = attr.grh.then_some(route);
        return Ok(Path::InfiniBand { dlid: attr.rlid, sl: 0, source_path_bits: 0, grh });
    }
    let (port, index) = (u32::from(port), u32::from(attr.gid_table_index));
    let entry = device.gid_entry(port, index)?;
    let version = match entry.kind {
        GidType::RoceV1 => RoceVersion::V1,
        _ => RoceVersion::V2,
    };
    Ok(Path::Roce {
        version,
        route,
        destination_mac: attr.dest_mac,
        udp_source_port: attr.udp_sport,
        priority: 0,
    })
}
