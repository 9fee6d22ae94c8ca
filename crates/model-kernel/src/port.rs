//! State of a port, as far as queries report it.

/// State of a port, as far as queries report it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortState {
    /// Whether the link layer is Ethernet; otherwise it is InfiniBand.
    pub ethernet: bool,
    /// Whether the port is ACTIVE; otherwise it is DOWN.
    pub active: bool,
    /// The port's LID; 0 on Ethernet.
    pub lid: u16,
    /// The subnet manager's LID.
    pub sm_lid: u16,
    /// Every packet needs a GRH.
    pub grh_required: bool,
    /// The port's capabilities, on InfiniBand.
    pub capability_mask: u32,
    /// The second capability mask, if the first announces one.
    pub capability_mask_2: u32,
    /// Path bits of the LID.
    pub lmc: u8,
    /// The subnet manager's service level.
    pub sm_sl: u8,
    /// Encoded as in PortInfo.
    pub subnet_timeout: u8,
    /// Encoded as in PortInfo.
    pub init_type_reply: u8,
    /// Number of data VLs, in verbs' code; 0 on Ethernet.
    pub max_vls: u8,
    /// The largest MTU, an `ib_mtu` code.
    pub max_mtu: u8,
    /// The MTU in force, an `ib_mtu` code.
    pub active_mtu: u8,
    /// Encoded as in InfiniBand.
    pub width: u8,
    /// Encoded as in InfiniBand.
    pub speed: u16,
    /// The GID table, entries in use only.
    pub gids: Vec<GidEntry>,
}

/// An entry of a GID table that is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GidEntry {
    /// Index in the table.
    pub index: u32,
    /// The address.
    pub gid: [u8; 16],
    /// `ib_uverbs_gid_type`: 0 InfiniBand, 1 RoCE v1, 2 RoCE v2.
    pub kind: u32,
}
