//! The scratch memory (opaque buffer) into which the device writes the result of a DMA MMO WQE.

use verbless_prm::hot::MmoSegment;
use zerocopy::transmute;

use crate::types::Sge;

/// 64 bytes of memory, aligned to 64, that the device writes during a
/// [`DmaMmo`](super::DmaMmo): the first word is a syndrome, the third the bytes copied.
/// Requests of one queue pair may share it.
///
/// Sources: for the alignment, rdma-core `providers/mlx5/verbs.c` (`reg_opaque_mr`); for the words,
/// DPDK `drivers/common/mlx5/mlx5_prm.h` (`struct mlx5_gga_compress_opaque`).
#[derive(Clone, Copy, Debug)]
pub struct Scratch(MmoSegment);

impl Scratch {
    /// Size in bytes, and alignment of its address.
    pub const BYTES: u32 = 64;

    /// `None` unless the SGE is 64 bytes long and 64-byte aligned.
    pub fn new(sge: Sge) -> Option<Self> {
        let fits = sge.length == Self::BYTES && sge.address.is_multiple_of(Self::BYTES.into());
        fits.then(|| Self(MmoSegment::new(0, sge.lkey.0, sge.address)))
    }

    #[inline(always)]
    pub(super) fn segment(self) -> [u64; 2] {
        transmute!(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Lkey;

    #[test]
    fn new_accepts_only_64_aligned_bytes() {
        let sge = |address, length| Scratch::new(Sge::new(address, length, Lkey(0x0102_0304)));
        for (address, length) in [(0x2001, 64), (0x2020, 64), (0x2000, 63), (0x2000, 65), (0, 0)] {
            assert!(sge(address, length).is_none(), "{length} bytes at {address:#x}");
        }
        let segment: [u8; 16] = transmute!(sge(0x0506_0708_090a_0bc0, 64).unwrap().segment());
        assert_eq!(segment, [0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0x0b, 0xc0]);
    }
}
