//! What a port is, as far as queries tell.

/// What a port is, as far as queries tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortState {
    /// Its link layer is Ethernet; else InfiniBand.
    pub ethernet: bool,
    /// It is ACTIVE; else DOWN.
    pub active: bool,
    /// Its LID; 0 on Ethernet.
    pub lid: u16,
    /// The subnet manager's LID.
    pub sm_lid: u16,
    /// Every packet needs a GRH.
    pub grh_required: bool,
    /// The port's capabilities, on InfiniBand.
    pub capability_mask: u32,
    /// The second mask, where the first says that there is one.
    pub capability_mask_2: u32,
    /// Path bits of the LID.
    pub lmc: u8,
    /// The subnet manager's service level.
    pub sm_sl: u8,
    /// As PortInfo encodes it.
    pub subnet_timeout: u8,
    /// As PortInfo encodes it.
    pub init_type_reply: u8,
    /// How many data VLs there are, by the code of verbs; 0 on Ethernet.
    pub max_vls: u8,
    /// The largest MTU, an `ib_mtu` code.
    pub max_mtu: u8,
    /// The MTU in force, an `ib_mtu` code.
    pub active_mtu: u8,
    /// As InfiniBand encodes it.
    pub width: u8,
    /// As InfiniBand encodes it.
    pub speed: u16,
    /// The GID table, entries in use only.
    pub gids: Vec<GidEntry>,
}

/// An entry of a GID table that is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GidEntry {
    /// Its place in the table.
    pub index: u32,
    /// The address.
    pub gid: [u8; 16],
    /// `ib_uverbs_gid_type`: 0 InfiniBand, 1 RoCE v1, 2 RoCE v2.
    pub kind: u32,
}
