//! The memory for the device's result of a memory copy (MMO).

use verbless_prm::hot::MmoSegment;
use zerocopy::transmute;

use crate::types::Sge;

/// 64 bytes of memory, aligned to 64, that the device writes during a
/// [`DmaMmo`](super::DmaMmo): the first word is a syndrome, the third the bytes copied.
/// Requests of one queue pair may share it.
///
/// Source: rdma-core `providers/mlx5/verbs.c` (`reg_opaque_mr`), which aligns it so; DPDK
/// `drivers/common/mlx5/mlx5_prm.h` (`struct mlx5_gga_compress_opaque`), which has the words.
#[derive(Clone, Copy, Debug)]
pub struct Scratch(MmoSegment);

impl Scratch {
    /// Size in bytes, and alignment of its address.
    pub const BYTES: u32 = 64;

    /// The memory of an SGE; `None` unless that has 64 bytes at a multiple of 64.
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
    fn scratch_is_64_aligned_bytes_and_nothing_else() {
        let sge = |address, length| Scratch::new(Sge::new(address, length, Lkey(0x0102_0304)));
        for (address, length) in [(0x2001, 64), (0x2020, 64), (0x2000, 63), (0x2000, 65), (0, 0)] {
            assert!(sge(address, length).is_none(), "{length} bytes at {address:#x}");
        }
        let segment: [u8; 16] = transmute!(sge(0x0506_0708_090a_0bc0, 64).unwrap().segment());
        assert_eq!(segment, [0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0x0b, 0xc0]);
    }
}
