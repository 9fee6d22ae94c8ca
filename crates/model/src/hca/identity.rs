//! The names that make each device unique: GUIDs, MACs, LIDs and GIDs, all derived from the
//! device's number.

/// What a device calls itself.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub node_guid: u64,
    pub system_image_guid: u64,
    pub ports: Vec<PortIdentity>,
}

/// What one of its ports is called.
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

/// A locally administered MAC prefix (the low octet of the first byte is 02): no vendor's.
const MAC_PREFIX: u64 = 0x02_56_4c;

impl Identity {
    /// The identity of device number `seed` with `ports` ports.
    pub(crate) fn new(seed: u32, ports: u32) -> Self {
        let mac = |port: u32| MAC_PREFIX << 24 | u64::from(seed & 0xffff) << 8 | u64::from(port);
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
    /// The VUID: 128 bytes of text, ended by a zero, that name the function wherever it is plugged.
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
