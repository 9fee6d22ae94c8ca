//! The unique identifiers of each device: GUIDs, MACs, LIDs and GIDs, all derived from the numbers
//! of the device and of its model.

/// The identifiers of a device.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub node_guid: u64,
    pub system_image_guid: u64,
    pub ports: Vec<PortIdentity>,
}

/// The identifiers of a port.
#[derive(Debug, Clone)]
pub(crate) struct PortIdentity {
    pub guid: u64,
    /// The six bytes of the MAC, in the low 48 bits.
    pub mac: u64,
    pub lid: u16,
}

impl PortIdentity {
    /// The link-local GID, fe80::/64 with the port's GUID: index 0 of every GID table.
    pub(crate) fn link_local_gid(&self) -> [u8; 16] {
        (0xfe80_u128 << 112 | u128::from(self.guid)).to_be_bytes()
    }
}

/// A locally administered MAC prefix (the first byte is 02): no vendor's. The last two bytes are
/// mixed with the model's number.
const MAC_PREFIX: u64 = 0x02_56_4c;

impl Identity {
    /// The identity of a device with `ports` ports. `seed`: its number in the low 16 bits, its
    /// model's number above them.
    pub(crate) fn new(seed: u32, ports: u32) -> Self {
        let (model, seed) = (u64::from(seed >> 16), seed & 0xffff);
        let mac = |port: u32| (MAC_PREFIX ^ model) << 24 | u64::from(seed) << 8 | u64::from(port);
        let guid = |port| eui64(mac(port));
        Self {
            node_guid: guid(0),
            system_image_guid: guid(0),
            ports: (1..=ports)
                .map(|port| PortIdentity {
                    guid: guid(port),
                    mac: mac(port),
                    lid: (1 + seed * ports + (port - 1)) as u16,
                })
                .collect(),
        }
    }
}

impl Identity {
    /// The VUID: 128 bytes of zero-terminated text that identify the function wherever it is
    /// plugged.
    pub(crate) fn vuid(&self) -> [u8; 128] {
        let text = format!("VBL{:016X}", self.node_guid);
        let mut vuid = [0; 128];
        vuid[..text.len()].copy_from_slice(text.as_bytes());
        vuid
    }
}

/// The modified EUI-64 of a MAC.
fn eui64(mac: u64) -> u64 {
    (mac >> 24 ^ 0x02_00_00) << 40 | 0xff_fe << 24 | mac & 0xff_ff_ff
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn devices_have_distinct_macs_gids_and_guids() {
        let seeds = [0, 1, 0xffff, 1 << 16, 1 << 16 | 1, 0xffff << 16, 0x100 << 16];
        let all: Vec<_> = seeds.iter().map(|&seed| Identity::new(seed, 2)).collect();
        let ports = || all.iter().flat_map(|it| &it.ports);
        let macs: BTreeSet<_> = ports().map(|port| port.mac).collect();
        let gids: BTreeSet<_> = ports().map(PortIdentity::link_local_gid).collect();
        let nodes: BTreeSet<_> = all.iter().map(|it| it.node_guid).collect();
        assert_eq!((macs.len(), gids.len(), nodes.len()), (14, 14, 7));
        assert!(macs.iter().all(|mac| mac >> 40 == 2), "locally administered, of one port");
        assert_eq!(all[0].ports[0].mac, 0x02_56_4c_00_00_01, "the MACs of earlier releases");
    }
}
