//! Random numbers for PSNs and mkey variants.

use std::hash::{BuildHasher, RandomState};

/// A random number. The keys of each [`RandomState`] come from the system's random numbers.
pub(crate) fn random_u64() -> u64 {
    RandomState::new().hash_one(0_u8)
}
