//! The hash functions, and their states.

use std::fmt;

use sha2::Digest;

/// A hash function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// SHA-1: 20 bytes.
    Sha1,
    /// SHA-256: 32 bytes.
    Sha256,
    /// SHA-512: 64 bytes.
    Sha512,
}

impl Algorithm {
    /// Bytes of a digest (`doca_sha_get_min_dst_buf_size`).
    pub const fn digest_len(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }

    /// Block size of the function: all parts of a hash except the last are multiples of it
    /// (`doca_sha_get_partial_hash_block_size`).
    pub const fn block_len(self) -> usize {
        match self {
            Self::Sha1 | Self::Sha256 => 64,
            Self::Sha512 => 128,
        }
    }
}

/// A hash of several parts (`struct doca_sha_partial_session`).
pub struct Partial {
    pub(super) algorithm: Algorithm,
    pub(super) state: Box<HashState>,
}

impl Partial {
    /// The hash function.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl fmt::Debug for Partial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Partial({:?})", self.algorithm)
    }
}

/// A function, and its state so far.
pub(super) enum HashState {
    Sha1(sha1::Sha1),
    Sha256(sha2::Sha256),
    Sha512(sha2::Sha512),
}

impl HashState {
    pub(super) fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Sha1 => Self::Sha1(Digest::new()),
            Algorithm::Sha256 => Self::Sha256(Digest::new()),
            Algorithm::Sha512 => Self::Sha512(Digest::new()),
        }
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha1(state) => state.update(bytes),
            Self::Sha256(state) => state.update(bytes),
            Self::Sha512(state) => state.update(bytes),
        }
    }

    /// Writes the digest, and resets the state.
    pub(super) fn finish(&mut self, into: &mut [u8; 64]) -> usize {
        match self {
            Self::Sha1(state) => put(into, &state.finalize_reset()),
            Self::Sha256(state) => put(into, &state.finalize_reset()),
            Self::Sha512(state) => put(into, &state.finalize_reset()),
        }
    }
}

fn put(into: &mut [u8; 64], digest: &[u8]) -> usize {
    into[..digest.len()].copy_from_slice(digest);
    digest.len()
}
