//! Constants of KLMs, the entries of indirect mkeys.

use crate::generated::Klm;

impl Klm {
    /// The largest length of an entry (DPDK `MLX5_MAX_KLM_BYTE_COUNT`), in CREATE_MKEY and in UMR
    /// WQEs. The byte_count of a KLM has 32 bits, unlike that of a data segment.
    pub const MAX_BYTES: u32 = 1 << 31;
}
