//! Structures of the generic uverbs ABI. All fields are native-endian.
//!
//! Sources: Linux `include/uapi/rdma/ib_user_verbs.h` and `ib_user_ioctl_verbs.h`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `struct ib_uverbs_query_port_resp_ex`: properties and state of a port.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct QueryPortResponse {
    /// `enum ib_uverbs_query_port_cap_flags`.
    pub port_cap_flags: u32,
    /// Longest message, in bytes.
    pub max_msg_sz: u32,
    /// P_Key violations counted.
    pub bad_pkey_cntr: u32,
    /// Q_Key violations counted.
    pub qkey_viol_cntr: u32,
    /// Entries of the GID table, including unused ones.
    pub gid_tbl_len: u32,
    /// Entries of the P_Key table.
    pub pkey_tbl_len: u16,
    /// Base LID; 0 on Ethernet.
    pub lid: u16,
    /// LID of the subnet manager.
    pub sm_lid: u16,
    /// [`port_state`].
    pub state: u8,
    /// Largest MTU, [`mtu_bytes`] code.
    pub max_mtu: u8,
    /// MTU in force, [`mtu_bytes`] code.
    pub active_mtu: u8,
    /// log2 of the number of LIDs of this port.
    pub lmc: u8,
    /// Virtual lanes, as the PortInfo code.
    pub max_vl_num: u8,
    /// Service level of the subnet manager.
    pub sm_sl: u8,
    /// Subnet timeout code.
    pub subnet_timeout: u8,
    /// Kind of initialisation done.
    pub init_type_reply: u8,
    /// Link width code: 1, 2, 4, 8, 16 for 1X, 4X, 8X, 12X, 2X.
    pub active_width: u8,
    /// Link speed code, superseded by `active_speed_ex` when that is not 0.
    pub active_speed: u8,
    /// Physical state code; 5 is LinkUp.
    pub phys_state: u8,
    /// [`link_layer`].
    pub link_layer: u8,
    /// `enum ib_uverbs_query_port_flags`: bit 0, a GRH is required.
    pub flags: u8,
    /// Zero.
    pub reserved: u8,
    /// More capability flags.
    pub port_cap_flags2: u16,
    /// Zero.
    pub reserved2: [u8; 2],
    /// Link speed code with 16 significant bits.
    pub active_speed_ex: u32,
}

/// `struct ib_uverbs_gid_entry`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct GidEntry {
    /// The GID, in network order.
    pub gid: [u8; 16],
    /// Index in the port's table.
    pub gid_index: u32,
    /// 1-based port.
    pub port_num: u32,
    /// [`gid_type`].
    pub gid_type: u32,
    /// Interface index of the network device, or 0.
    pub netdev_ifindex: u32,
}

/// `struct ib_uverbs_alloc_pd` (the core input of ALLOC_PD).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct AllocPd {
    /// Address of the response; the ioctl path ignores it.
    pub response: u64,
}

/// `struct ib_uverbs_alloc_pd_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct AllocPdResponse {
    /// Handle of the new PD.
    pub pd_handle: u32,
}

/// `struct ib_uverbs_global_route`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct GlobalRoute {
    /// Destination GID.
    pub dgid: [u8; 16],
    /// 20 bits.
    pub flow_label: u32,
    /// Index of the source GID.
    pub sgid_index: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Zero.
    pub reserved: u8,
}

/// `struct ib_uverbs_ah_attr`: a path.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct AhAttributes {
    /// Global route; valid if `is_global` is 1.
    pub grh: GlobalRoute,
    /// Destination LID; 0 on Ethernet.
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// Source path bits.
    pub src_path_bits: u8,
    /// Static rate code.
    pub static_rate: u8,
    /// 1 if `grh` is valid; always 1 on Ethernet.
    pub is_global: u8,
    /// 1-based port.
    pub port_num: u8,
    /// Zero.
    pub reserved: u8,
}

/// `struct ib_uverbs_create_ah` (the core input of CREATE_AH).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct CreateAh {
    /// Address of the response; the ioctl path ignores it.
    pub response: u64,
    /// Returned in events; 0 here.
    pub user_handle: u64,
    /// Handle of the PD.
    pub pd_handle: u32,
    /// Zero.
    pub reserved: u32,
    /// The path.
    pub attr: AhAttributes,
}

/// `struct ib_uverbs_create_ah_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct CreateAhResponse {
    /// Handle of the new address handle.
    pub ah_handle: u32,
}

/// `struct ib_uverbs_async_event_desc`: one record of the async event file.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct AsyncEventDescriptor {
    /// User handle of the object, or a port number.
    pub element: u64,
    /// [`event_type`].
    pub event_type: u32,
    /// Zero.
    pub reserved: u32,
}

/// Access flags of memory (`enum ib_uverbs_access_flags`). A UMEM takes only these four.
pub mod access {
    /// The device may write (`IB_UVERBS_ACCESS_LOCAL_WRITE`).
    pub const LOCAL_WRITE: u32 = 1;
    /// A peer may write.
    pub const REMOTE_WRITE: u32 = 1 << 1;
    /// A peer may read.
    pub const REMOTE_READ: u32 = 1 << 2;
    /// The device may reorder its PCI writes.
    pub const RELAXED_ORDERING: u32 = 1 << 20;
}

/// Types of GID (`enum ib_uverbs_gid_type`).
pub mod gid_type {
    /// InfiniBand.
    pub const IB: u32 = 0;
    /// RoCE version 1 (Ethertype 0x8915).
    pub const ROCE_V1: u32 = 1;
    /// RoCE version 2 (UDP port 4791).
    pub const ROCE_V2: u32 = 2;
}

/// A flag of a port (`enum ib_uverbs_query_port_flags`): every packet needs a GRH.
pub const GRH_REQUIRED: u8 = 1;

/// States of a port (`enum ib_port_state`).
pub mod port_state {
    /// The port has no link.
    pub const DOWN: u8 = 1;
    /// Link up, not configured.
    pub const INIT: u8 = 2;
    /// Configured, waiting to be activated.
    pub const ARMED: u8 = 3;
    /// Carries traffic.
    pub const ACTIVE: u8 = 4;
    /// Was active, has a transient link error.
    pub const ACTIVE_DEFER: u8 = 5;
}

/// Link layers (`enum rdma_link_layer`).
pub mod link_layer {
    /// InfiniBand.
    pub const INFINIBAND: u8 = 1;
    /// Ethernet.
    pub const ETHERNET: u8 = 2;
}

/// Types of asynchronous event (`enum ib_event_type` of `include/rdma/ib_verbs.h`).
pub mod event_type {
    /// A CQ failed.
    pub const CQ_ERR: u32 = 0;
    /// The device failed.
    pub const DEVICE_FATAL: u32 = 8;
    /// A port became active.
    pub const PORT_ACTIVE: u32 = 9;
    /// A port lost its link.
    pub const PORT_ERR: u32 = 10;
    /// A port's LID changed.
    pub const LID_CHANGE: u32 = 11;
    /// A port's P_Key table changed.
    pub const PKEY_CHANGE: u32 = 12;
    /// A port's subnet manager changed.
    pub const SM_CHANGE: u32 = 13;
    /// The subnet manager asks clients to register again.
    pub const CLIENT_REREGISTER: u32 = 17;
    /// A port's GID table changed.
    pub const GID_CHANGE: u32 = 18;
    /// The speed of the device's ports changed; new kernels report it at each change of a port.
    pub const DEVICE_SPEED_CHANGE: u32 = 20;
}

/// Converts an MTU code (`enum ib_mtu`) to bytes: 256 for 1 up to 4096 for 5; `None` for any other
/// code.
#[must_use]
pub const fn mtu_bytes(code: u8) -> Option<u32> {
    match code {
        1..=5 => Some(128 << code),
        _ => None,
    }
}

// Sizes in the kernel's headers.
const _: () = {
    assert!(size_of::<QueryPortResponse>() == 48);
    assert!(size_of::<GidEntry>() == 32);
    assert!(size_of::<AllocPd>() == 8);
    assert!(size_of::<AllocPdResponse>() == 4);
    assert!(size_of::<GlobalRoute>() == 24);
    assert!(size_of::<AhAttributes>() == 32);
    assert!(size_of::<CreateAh>() == 56);
    assert!(size_of::<CreateAhResponse>() == 4);
    assert!(size_of::<AsyncEventDescriptor>() == 16);
};

#[cfg(test)]
mod tests {
    use super::{access, mtu_bytes};

    #[test]
    fn access_flags_match_linux() {
        use access::{LOCAL_WRITE, RELAXED_ORDERING, REMOTE_READ, REMOTE_WRITE};
        let flags = [LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, RELAXED_ORDERING];
        assert_eq!(flags, [1, 2, 4, 0x10_0000]);
    }

    #[test]
    fn mtu_codes_cover_256_to_4096() {
        assert_eq!(
            (0..=6).map(mtu_bytes).collect::<Vec<_>>(),
            [None, Some(256), Some(512), Some(1024), Some(2048), Some(4096), None]
        );
    }
}
