//! Structures and numbers of the mlx5 part of the ABI. All fields are native-endian.
//!
//! Sources: Linux `include/uapi/rdma/mlx5-abi.h` and `mlx5_user_ioctl_verbs.h`; the offset encoding
//! from `drivers/infiniband/hw/mlx5/{main.c,mlx5_ib.h}`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `struct mlx5_ib_alloc_ucontext_req_v2`: the driver's input of GET_CONTEXT.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct AllocContextRequest {
    /// Static BlueFlame registers; ignored with [`LIB_CAP_DYN_UAR`].
    pub total_num_bfregs: u32,
    /// How many of the BlueFlame registers are for low latency.
    pub num_low_latency_bfregs: u32,
    /// [`CONTEXT_DEVX`] or 0.
    pub flags: u32,
    /// Zero.
    pub comp_mask: u32,
    /// Newest CQE version that the user understands.
    pub max_cqe_version: u8,
    /// Zero.
    pub reserved0: u8,
    /// Zero.
    pub reserved1: u16,
    /// Zero.
    pub reserved2: u32,
    /// [`LIB_CAP_4K_UAR`], [`LIB_CAP_DYN_UAR`].
    pub lib_caps: u64,
}

/// `struct mlx5_ib_alloc_ucontext_resp`: the driver's output of GET_CONTEXT. Only the first
/// `response_length` bytes are written.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct AllocContextResponse {
    /// Entries of the QP table.
    pub qp_tab_size: u32,
    /// Bytes of a BlueFlame register (two halves alternate); 0 without write combining.
    pub bf_reg_size: u32,
    /// Static BlueFlame registers; 0 with dynamic UARs.
    pub tot_bfregs: u32,
    /// Bytes of the host's cache line.
    pub cache_line_size: u32,
    /// Longest send WQE, in bytes.
    pub max_sq_desc_sz: u16,
    /// Longest receive WQE, in bytes.
    pub max_rq_desc_sz: u16,
    /// Most WQEBBs (64 bytes) of a send queue.
    pub max_send_wqebb: u32,
    /// Maximum number of receive WQEs of a QP.
    pub max_recv_wr: u32,
    /// Maximum number of receive WQEs of an SRQ.
    pub max_srq_recv_wr: u32,
    /// Ports of the device.
    pub num_ports: u16,
    /// Flow actions supported.
    pub flow_action_flags: u16,
    /// `RESP_MASK_*`: which later fields are valid and which features exist.
    pub comp_mask: u32,
    /// Bytes of this response that the kernel wrote.
    pub response_length: u32,
    /// CQE version in force.
    pub cqe_version: u8,
    /// [`SUPP_UHW_CREATE_AH`] and others.
    pub cmds_supp_uhw: u8,
    /// Minimum inline mode of Ethernet sends (`enum mlx5_user_inline_mode`): the firmware's value
    /// plus one; 0 if the port is not Ethernet.
    pub eth_min_inline: u8,
    /// Bit 0: the clock information page can be mapped.
    pub clock_info_versions: u8,
    /// Offset of the core clock in its page, with [`RESP_MASK_CORE_CLOCK_OFFSET`].
    pub hca_core_clock_offset: u64,
    /// log2 of the bytes of a UAR.
    pub log_uar_size: u32,
    /// UARs per system page.
    pub num_uars_per_page: u32,
    /// BlueFlame registers that can still be allocated.
    pub num_dyn_bfregs: u32,
    /// The null mkey: reads return zeros, writes are discarded; valid with
    /// [`RESP_MASK_DUMP_FILL_MKEY`].
    pub dump_fill_mkey: u32,
}

/// `struct mlx5_ib_alloc_pd_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct AllocPdDriverResponse {
    /// PD number for command mailboxes.
    pub pdn: u32,
}

/// `struct mlx5_ib_create_ah_resp`; written for RoCE only.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct CreateAhDriverResponse {
    /// 10 when `dmac` was written, 0 when not.
    pub response_length: u32,
    /// Destination MAC address that the kernel resolved.
    pub dmac: [u8; 6],
    /// Zero.
    pub reserved: [u8; 6],
}

/// `struct mlx5_ib_uapi_devx_async_event_hdr` without its data: a record of an event channel
/// made with [`OMIT_DATA`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct EventHeader {
    /// Cookie of the subscription.
    pub cookie: u64,
}

/// A record of an event channel made without [`OMIT_DATA`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct EventWithData {
    /// Cookie of the subscription.
    pub header: EventHeader,
    /// The event queue entry, as the device wrote it.
    pub eqe: Eqe,
}

/// `struct mlx5_ib_uapi_devx_async_cmd_hdr` without its data: starts a record of an async
/// command channel, and the command's output follows.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct AsyncCommandHeader {
    /// The `wr_id` of the query.
    pub wr_id: u64,
}

/// Bytes of an event queue entry (`struct mlx5_eqe`).
pub const EQE_BYTES: usize = 64;

/// The bytes of an event queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Eqe(pub [u8; EQE_BYTES]);

impl Default for Eqe {
    fn default() -> Self {
        Self([0; EQE_BYTES])
    }
}

/// `MLX5_IB_ALLOC_UCTX_DEVX`: the context may use DevX and gets a uid.
pub const CONTEXT_DEVX: u32 = 1;
/// `MLX5_LIB_CAP_4K_UAR`: the user supports UARs of 4 KiB in larger pages.
pub const LIB_CAP_4K_UAR: u64 = 1;
/// `MLX5_LIB_CAP_DYN_UAR`: the user allocates its UARs itself, so none are made with the context.
pub const LIB_CAP_DYN_UAR: u64 = 1 << 1;

/// `hca_core_clock_offset` is valid.
pub const RESP_MASK_CORE_CLOCK_OFFSET: u32 = 1;
/// `dump_fill_mkey` is valid.
pub const RESP_MASK_DUMP_FILL_MKEY: u32 = 1 << 1;
/// Enhanced connection establishment.
pub const RESP_MASK_ECE: u32 = 1 << 2;
/// A QP may go from SQD to RTS after a signature error.
pub const RESP_MASK_SQD2RTS: u32 = 1 << 3;
/// CQE timestamps may be real time.
pub const RESP_MASK_REAL_TIME_TS: u32 = 1 << 4;
/// The kernel takes the variant byte of an mkey from the user.
pub const RESP_MASK_MKEY_UPDATE_TAG: u32 = 1 << 5;

/// QUERY_DEVICE has driver data (`MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE`).
pub const SUPP_UHW_QUERY_DEVICE: u8 = 1;
/// CREATE_AH answers with the destination MAC (`MLX5_USER_CMDS_SUPP_UHW_CREATE_AH`).
pub const SUPP_UHW_CREATE_AH: u8 = 1 << 1;

/// `MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF`: mapped write-combining.
pub const UAR_BLUE_FLAME: u64 = 0;
/// `MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC`: mapped non-cached.
pub const UAR_NON_CACHED: u64 = 1;

/// `MLX5_IB_UAPI_DEVX_CR_EV_CH_FLAGS_OMIT_DATA`: records carry the cookie only, and equal pending
/// ones merge.
pub const OMIT_DATA: u32 = 1;

/// Maximum number of event types of one subscription (`MAX_NUM_EVENTS` of `devx.c`).
pub const MAX_SUBSCRIBE_EVENTS: usize = 16;

/// Maximum bytes of answers that may wait in an async command channel
/// (`MAX_ASYNC_BYTES_IN_USE` of `devx.c`); above it a query gets EAGAIN.
pub const MAX_ASYNC_BYTES: usize = 1024 * 1024;

/// mmap commands (`enum mlx5_ib_mmap_cmd`, and the range that allocated objects use).
pub mod mmap_command {
    /// Core clock page, read-only.
    pub const CORE_CLOCK: u64 = 5;
    /// First command that allocated objects (UARs among them) use: `MLX5_IB_MMAP_OFFSET_START`.
    pub const OFFSET_START: u64 = 9;
    /// Last one: `MLX5_IB_MMAP_OFFSET_END`.
    pub const OFFSET_END: u64 = 255;
    /// Clock information page, read-only.
    pub const CLOCK_INFO: u64 = 7;
}

/// Byte offset for mmap that carries an 8-bit `command` and a 16-bit `index`, with pages of `1 <<
/// page_shift` bytes. In pages: index bits 7:0 at bit 0, the command at bit 8, index bits 15:8 at
/// bit 16.
#[must_use]
pub const fn mmap_offset(command: u64, index: u64, page_shift: u32) -> u64 {
    (((index >> 8 & 0xff) << 16) | ((command & 0xff) << 8) | (index & 0xff)) << page_shift
}

/// Command and index of a byte offset; the reverse of [`mmap_offset`].
#[must_use]
pub const fn mmap_decode(offset: u64, page_shift: u32) -> (u64, u64) {
    let pages = offset >> page_shift;
    (pages >> 8 & 0xff, pages & 0xff | (pages >> 16 & 0xff) << 8)
}

// Sizes in the kernel's headers.
const _: () = {
    assert!(size_of::<AllocContextRequest>() == 32);
    assert!(size_of::<AllocContextResponse>() == 72);
    assert!(size_of::<AllocPdDriverResponse>() == 4);
    assert!(size_of::<CreateAhDriverResponse>() == 16);
    assert!(size_of::<EventHeader>() == 8);
    assert!(size_of::<EventWithData>() == 72);
    assert!(size_of::<AsyncCommandHeader>() == 8);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_and_limits_match_linux() {
        let masks = [
            RESP_MASK_CORE_CLOCK_OFFSET,
            RESP_MASK_DUMP_FILL_MKEY,
            RESP_MASK_ECE,
            RESP_MASK_SQD2RTS,
            RESP_MASK_REAL_TIME_TS,
            RESP_MASK_MKEY_UPDATE_TAG,
        ];
        assert_eq!(masks, [1, 2, 4, 8, 0x10, 0x20]);
        assert_eq!([SUPP_UHW_QUERY_DEVICE, SUPP_UHW_CREATE_AH], [1, 2]);
        assert_eq!([LIB_CAP_4K_UAR, LIB_CAP_DYN_UAR], [1, 2]);
        assert_eq!(MAX_ASYNC_BYTES, 0x10_0000);
    }

    #[test]
    fn mmap_offset_puts_command_between_index_halves() {
        assert_eq!(mmap_offset(9, 0xabcd, 12), 0x00ab_09cd << 12);
        assert_eq!(mmap_offset(7, 0, 16), 0x700_0000);
        assert_eq!(mmap_decode((0x00ab_09cd << 12) + 0xfff, 12), (9, 0xabcd));
    }

    #[test]
    fn mmap_offset_decodes_to_command_and_index() {
        for index in [0, 1, 0xff, 0x100, 0xabcd, 0xffff] {
            for command in
                [mmap_command::CORE_CLOCK, mmap_command::OFFSET_START, mmap_command::OFFSET_END]
            {
                assert_eq!(mmap_decode(mmap_offset(command, index, 12), 12), (command, index));
            }
        }
    }
}
