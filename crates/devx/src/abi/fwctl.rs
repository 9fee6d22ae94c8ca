//! The ioctls of `/dev/fwctl/fwctlN`, which pass firmware commands that uverbs refuses. All fields
//! are native-endian.
//!
//! Sources: Linux `include/uapi/fwctl/{fwctl,mlx5}.h`, `drivers/fwctl/{main,mlx5/main}.c`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `FWCTL_INFO`: describes the device, as [`Info`].
pub const FWCTL_INFO: u32 = 0x9a00;
/// `FWCTL_RPC`: a command, as [`Rpc`].
pub const FWCTL_RPC: u32 = 0x9a01;
/// `FWCTL_DEVICE_TYPE_MLX5`.
pub const DEVICE_TYPE_MLX5: u32 = 1;
/// Bytes of a mailbox: from a command header to the kernel's limit.
pub const MAILBOX_BYTES: std::ops::RangeInclusive<usize> = 16..=2 << 20;

/// `enum fwctl_rpc_scope`: the purpose that a caller declares for a command.
pub mod scope {
    /// Settings that a user may change.
    pub const CONFIGURATION: u32 = 0;
    /// Reading state of the device.
    pub const DEBUG_READ_ONLY: u32 = 1;
    /// Writing for debugging; taints the kernel.
    pub const DEBUG_WRITE: u32 = 2;
    /// Unrestricted writing for debugging: needs CAP_SYS_RAWIO, and taints the kernel.
    pub const DEBUG_WRITE_FULL: u32 = 3;
}

/// `struct fwctl_info`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Info {
    /// Bytes of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// Output: the driver, such as [`DEVICE_TYPE_MLX5`].
    pub out_device_type: u32,
    /// Input: size of the buffer for the driver's data; output: size of that data.
    pub device_data_len: u32,
    /// Address of the buffer for the driver's data: [`Mlx5Info`].
    pub out_device_data: u64,
}

/// `struct fwctl_info_mlx5`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Mlx5Info {
    /// The uid of the open file's user context.
    pub uid: u32,
    /// Capabilities of the user context (`uctx_cap` of prm).
    pub uctx_caps: u32,
}

/// `struct fwctl_rpc`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Rpc {
    /// Bytes of this structure.
    pub size: u32,
    /// The declared purpose: one of [`scope`].
    pub scope: u32,
    /// Bytes of the input mailbox.
    pub in_len: u32,
    /// Bytes of the output mailbox; output: bytes that the device wrote.
    pub out_len: u32,
    /// Address of the input mailbox.
    pub input: u64,
    /// Address of the output mailbox.
    pub output: u64,
}

/// Minimum size of a request's structure; `None` for a request that fwctl does not have.
pub const fn structure_bytes(request: u32) -> Option<usize> {
    match request {
        FWCTL_INFO => Some(size_of::<Info>()),
        FWCTL_RPC => Some(size_of::<Rpc>()),
        _ => None,
    }
}

/// Whether the size in the structure's first field, which is what the kernel reads, is at least the
/// request's minimum and at most the structure's own size.
pub fn is_whole(request: u32, structure: &[u64]) -> bool {
    let size = structure.first().map_or(0, |word| {
        let [a, b, c, d, ..] = word.to_ne_bytes();
        u32::from_ne_bytes([a, b, c, d]) as usize
    });
    let least = structure_bytes(request).unwrap_or(usize::MAX);
    size >= least && size <= size_of_val(structure)
}

// Sizes in the kernel's headers.
const _: () = {
    assert!(size_of::<Info>() == 24);
    assert!(size_of::<Mlx5Info>() == 8);
    assert!(size_of::<Rpc>() == 32);
};
