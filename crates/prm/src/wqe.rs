//! Constants of WQEs that belong to no field.
//!
//! A WQE is a sequence of 16-byte octowords (`ds` counts them) in a ring of 64-byte basic blocks
//! (WQEBBs). Sources: Linux `MLX5_SEND_WQE_BB`, `MLX5_SEND_WQE_DS`, `MLX5_INVALID_LKEY`.

use crate::generated::hot::DataSegment;

/// Bytes of a work queue basic block.
pub const WQEBB: usize = 64;
/// Bytes of the unit that `ds` counts.
pub const OCTOWORD: usize = 16;

impl DataSegment {
    /// The lkey of [`Self::END`].
    pub const END_LKEY: u32 = 0x100;
    /// The segment that ends a receive WQE with fewer segments than its queue allows.
    pub const END: Self = Self::new(0, Self::END_LKEY, 0);
    /// The largest length that one segment encodes directly. Bit 31 of byte_count marks an inline
    /// segment.
    pub const MAX_BYTES: u32 = 0x7fff_ffff;
}
