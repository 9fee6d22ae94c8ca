//! Structures of the generic uverbs ABI. All fields are native-endian.
//!
//! Sources: Linux `include/uapi/rdma/ib_user_verbs.h` and `ib_user_ioctl_verbs.h`.

use bytemuck::{Pod, Zeroable};

macro_rules! layout {
    ($(
        $(#[$doc:meta])*
        $name:ident[$bytes:literal] { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            #[repr(C)]
            pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }

            const _: () = {
                const fn plain<T: Pod>() {}
                $(plain::<$type>();)*
                assert!(size_of::<$name>() == $bytes);
                assert!(size_of::<$name>() == 0 $(+ size_of::<$type>())*, "it has no padding");
            };

            // SAFETY: the fields are, as the lines above see to.
            #[allow(unsafe_code, reason = "derives would take longer to compile than the crate")]
            unsafe impl Zeroable for $name {}

            // SAFETY: it is laid out in the order of its fields, each of which is plain data, and
            // nothing is between them: the lines above see to both.
            #[allow(unsafe_code, reason = "derives would take longer to compile than the crate")]
            unsafe impl Pod for $name {}

            impl $name {
                /// The structure's bytes.
                #[must_use]
                pub fn as_bytes(&self) -> &[u8] {
                    bytemuck::bytes_of(self)
                }

                /// The structure's bytes, mutable.
                pub fn as_bytes_mut(&mut self) -> &mut [u8] {
                    bytemuck::bytes_of_mut(self)
                }
            }
        )*
    };
}
pub(super) use layout;

layout! {
    /// `struct ib_uverbs_query_port_resp_ex`: properties and state of a port.
    QueryPortResponse[48] {
        /// `enum ib_uverbs_query_port_cap_flags`.
        port_cap_flags: u32,
        /// Longest message, in bytes.
        max_msg_sz: u32,
        /// P_Key violations counted.
        bad_pkey_cntr: u32,
        /// Q_Key violations counted.
        qkey_viol_cntr: u32,
        /// Entries of the GID table, used or not.
        gid_tbl_len: u32,
        /// Entries of the P_Key table.
        pkey_tbl_len: u16,
        /// Base LID; 0 on Ethernet.
        lid: u16,
        /// LID of the subnet manager.
        sm_lid: u16,
        /// [`port_state`].
        state: u8,
        /// Largest MTU, [`mtu_bytes`] code.
        max_mtu: u8,
        /// MTU in force, [`mtu_bytes`] code.
        active_mtu: u8,
        /// log2 of the number of LIDs of this port.
        lmc: u8,
        /// Virtual lanes, as the PortInfo code.
        max_vl_num: u8,
        /// Service level of the subnet manager.
        sm_sl: u8,
        /// Subnet timeout code.
        subnet_timeout: u8,
        /// Kind of initialisation done.
        init_type_reply: u8,
        /// Link width code: 1, 2, 4, 8, 16 for 1X, 4X, 8X, 12X, 2X.
        active_width: u8,
        /// Link speed code, superseded by `active_speed_ex` when that is not 0.
        active_speed: u8,
        /// Physical state code; 5 is LinkUp.
        phys_state: u8,
        /// [`link_layer`].
        link_layer: u8,
        /// `enum ib_uverbs_query_port_flags`: bit 0, a GRH is required.
        flags: u8,
        /// Zero.
        reserved: u8,
        /// More capability flags.
        port_cap_flags2: u16,
        /// Zero.
        reserved2: [u8; 2],
        /// Link speed code with 16 significant bits.
        active_speed_ex: u32,
    }

    /// `struct ib_uverbs_gid_entry`.
    GidEntry[32] {
        /// The GID, in network order.
        gid: [u8; 16],
        /// Index in the port's table.
        gid_index: u32,
        /// 1-based port.
        port_num: u32,
        /// [`gid_type`].
        gid_type: u32,
        /// Interface index of the network device, or 0.
        netdev_ifindex: u32,
    }

    /// `struct ib_uverbs_alloc_pd` (the core input of ALLOC_PD).
    AllocPd[8] {
        /// Address of the response; the ioctl path ignores it.
        response: u64,
    }

    /// `struct ib_uverbs_alloc_pd_resp`.
    AllocPdResponse[4] {
        /// Handle of the new PD.
        pd_handle: u32,
    }

    /// `struct ib_uverbs_global_route`.
    GlobalRoute[24] {
        /// Destination GID.
        dgid: [u8; 16],
        /// 20 bits.
        flow_label: u32,
        /// Index of the source GID.
        sgid_index: u8,
        /// Hop limit.
        hop_limit: u8,
        /// Traffic class.
        traffic_class: u8,
        /// Zero.
        reserved: u8,
    }

    /// `struct ib_uverbs_ah_attr`: a path.
    AhAttributes[32] {
        /// Global route, meaningful when `is_global`.
        grh: GlobalRoute,
        /// Destination LID; 0 on Ethernet.
        dlid: u16,
        /// Service level.
        sl: u8,
        /// Source path bits.
        src_path_bits: u8,
        /// Static rate code.
        static_rate: u8,
        /// 1 if `grh` counts; always on Ethernet.
        is_global: u8,
        /// 1-based port.
        port_num: u8,
        /// Zero.
        reserved: u8,
    }

    /// `struct ib_uverbs_create_ah` (the core input of CREATE_AH).
    CreateAh[56] {
        /// Address of the response; the ioctl path ignores it.
        response: u64,
        /// Returned in events; 0 here.
        user_handle: u64,
        /// Handle of the PD.
        pd_handle: u32,
        /// Zero.
        reserved: u32,
        /// The path.
        attr: AhAttributes,
    }

    /// `struct ib_uverbs_create_ah_resp`.
    CreateAhResponse[4] {
        /// Handle of the new address handle.
        ah_handle: u32,
    }

    /// `struct ib_uverbs_async_event_desc`: one record of the async event file.
    AsyncEventDescriptor[16] {
        /// User handle of the object, or a port number.
        element: u64,
        /// [`event_type`].
        event_type: u32,
        /// Zero.
        reserved: u32,
    }
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
}

/// Bytes of an MTU code (`enum ib_mtu`): 256 for 1 up to 4096 for 5; `None` for any other code.
#[must_use]
pub const fn mtu_bytes(code: u8) -> Option<u32> {
    match code {
        1..=5 => Some(128 << code),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{access, mtu_bytes};

    #[test]
    fn access_flags_are_those_of_linux() {
        use access::{LOCAL_WRITE, RELAXED_ORDERING, REMOTE_READ, REMOTE_WRITE};
        let flags = [LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, RELAXED_ORDERING];
        assert_eq!(flags, [1, 2, 4, 0x10_0000]);
    }

    #[test]
    fn mtu_codes_are_powers_of_two_from_256_to_4096() {
        assert_eq!(
            (0..=6).map(mtu_bytes).collect::<Vec<_>>(),
            [None, Some(256), Some(512), Some(1024), Some(2048), Some(4096), None]
        );
    }
}
