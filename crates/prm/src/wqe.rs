//! Sizes and values of work queue entries that are no field's.
//!
//! A WQE is a row of 16-byte octowords (its `ds` counts them) in a ring of 64-byte basic blocks
//! (WQEBBs). Sources: Linux `MLX5_SEND_WQE_BB`, `MLX5_SEND_WQE_DS`, `MLX5_INVALID_LKEY`.

use crate::generated::hot::DataSegment;

/// Bytes of a work queue basic block.
pub const WQEBB: usize = 64;
/// Bytes of the unit that `ds` counts.
pub const OCTOWORD: usize = 16;

impl DataSegment {
    /// The lkey that ends a receive WQE with fewer entries than its queue allows.
    pub const END_LKEY: u32 = 0x100;
    /// The entry that ends a receive WQE with fewer entries than its queue allows.
    pub const END: Self = Self::new(0, Self::END_LKEY, 0);
    /// The longest length that one segment states as it is.
    pub const MAX_BYTES: u32 = 0x7fff_ffff;
}
