//! The objects of a function: commands create them, and the data path uses them.
//!
//! Commands (`hca::commands`) create, change and destroy these by their entries in the registry
//! (`hca::registry`); the engine executes the queues. Each object keeps the complete PRM context
//! that software wrote, besides the values that the data path needs, so that a query returns every
//! bit.

use verbless_prm::{HcaCap, QueryQCounterOut};

mod completions;
mod dpa;
pub(crate) mod flow;
mod memory;
pub(crate) mod multicast;
mod queue_memory;
mod queues;
mod uid;

pub(crate) use completions::*;
pub(crate) use dpa::*;
pub(crate) use memory::*;
pub(crate) use queue_memory::*;
pub(crate) use queues::*;
pub(crate) use uid::*;

pub use crate::hca::registry::ObjectCounts;
pub(crate) use crate::hca::registry::Objects;
use crate::profile::KeyNumbers;

/// A set of counters of queue events (ALLOC_Q_COUNTER).
#[derive(Debug)]
pub(crate) struct QCounter {
    pub uid: Uid,
    /// The counters as a query returns them.
    pub values: QueryQCounterOut,
}

/// Limits of the data path from the capabilities, for quick access.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Limits {
    /// The key to all of memory, for queues that may use it.
    pub reserved_lkey: u32,
    /// The key value of a repeat block's header.
    pub repeated_mkey: u32,
    pub repeated_block_disabled: bool,
    /// The lkey that ends the segment list of a receive WQE, besides the one that all devices
    /// accept.
    pub list_end: u32,
    /// The maximum depth of indirect keys.
    pub max_indirection: u32,
    /// Bytes of the longest send WQE.
    pub max_wqe_sz_sq: usize,
    /// log2 of the bytes of the longest message.
    pub log_max_msg: u8,
    /// Frequency of the device's clock.
    pub khz: u32,
}

/// The key that ends the list of a receive WQE on every device (`MLX5_INVALID_LKEY`): libmlx5
/// writes it regardless of QUERY_SPECIAL_CONTEXTS, which DevX does not pass.
pub(crate) const LIST_END: u32 = 0x100;

impl Limits {
    pub(crate) fn new(general: &HcaCap, keys: &KeyNumbers) -> Self {
        Self {
            reserved_lkey: keys.reserved_lkey,
            repeated_mkey: keys.repeated_mkey,
            repeated_block_disabled: general.repeated_block_disabled(),
            list_end: match general.terminate_scatter_list_mkey() {
                true => keys.terminate_scatter_list_mkey,
                false => LIST_END,
            },
            max_indirection: general.max_indirection().into(),
            max_wqe_sz_sq: general.max_wqe_sz_sq().into(),
            log_max_msg: general.log_max_msg(),
            khz: general.device_frequency_khz(),
        }
    }

    /// Ticks of the device's free-running clock at a time in nanoseconds.
    pub(crate) fn ticks(&self, nanoseconds: u64) -> u64 {
        (u128::from(nanoseconds) * u128::from(self.khz) / 1_000_000) as u64
    }

    /// Bytes of the longest message of a QP.
    pub(crate) fn longest_message(&self, qp: &QpObject) -> u64 {
        1 << self.log_max_msg.min(qp.context.log_msg_max())
    }
}

/// A user context; each of its objects has its uid.
#[derive(Debug)]
pub(crate) struct Uctx {
    /// Its privileges (`uctx_cap`).
    pub cap: u32,
}
