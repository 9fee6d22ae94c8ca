//! Random numbers for PSNs and mkey variants.

use std::hash::{BuildHasher, RandomState};

/// A random number: the hash of a constant. The keys of a thread's first [`RandomState`] are random
/// numbers of the system, and each later one has other keys.
pub(crate) fn random_u64() -> u64 {
    RandomState::new().hash_one(0_u8)
}
