//! Doorbell records in memory, and the registers of a UAR page.
//!
//! Sources: Linux `include/linux/mlx5/{doorbell,cq,driver}.h`, `eq.c`; recorded doorbells.

use bitfield_struct::bitfield;
use zerocopy::big_endian::{U32, U64};

use super::format;

/// Byte offsets in a 4096-byte UAR page.
pub mod uar {
    /// Bytes of a UAR page.
    pub const PAGE: usize = 4096;
    /// CQ doorbell: 8 bytes, a [`CqDoorbell`](super::CqDoorbell).
    pub const CQ: usize = 0x20;
    /// EQ doorbell that arms: 4 bytes, EQ number 31:24, consumer index 23:0.
    pub const EQ_ARM: usize = 0x40;
    /// EQ doorbell that only tells the consumer index.
    pub const EQ: usize = 0x48;
    /// First BlueFlame register; the second one follows after half of `log_bf_reg_size`.
    pub const BLUEFLAME: usize = 0x800;
    /// Bytes of one BlueFlame buffer with the usual 512-byte register: send doorbells alternate between two.
    pub const BLUEFLAME_BUFFER: usize = 0x100;
}

format! {
    /// Doorbell record of a QP.
    pub struct QueueRecord[8] {
        /// Receive producer counter, bits 15:0.
        pub receive: U32,
        /// Send producer counter in WQEBBs, bits 15:0.
        pub send: U32,
    }
}

format! {
    /// Doorbell record of a CQ.
    pub struct CqRecord[8] {
        /// Consumer counter, bits 23:0.
        pub consumer: U32,
        /// A [`CqArm`].
        pub arm: U32,
    }
}

/// The arm word of a CQ, in its record and in its doorbell.
#[bitfield(u32, order = Msb)]
#[derive(PartialEq, Eq)]
pub struct CqArm {
    #[bits(2)]
    __: u8,
    /// Counts events, so that a late doorbell does not arm twice.
    #[bits(2)]
    pub sequence: u8,
    #[bits(3)]
    __: u8,
    /// Only a solicited completion, or an error, makes an event.
    pub solicited: bool,
    /// Consumer counter: completions from here on make the event.
    #[bits(24)]
    pub consumer: u32,
}

impl CqArm {
    /// The word of these fields; bits that are too many are cut off. Inlined, unlike the builder methods.
    #[inline(always)]
    pub const fn pack(sequence: u8, solicited: bool, consumer: u32) -> Self {
        Self::from_bits(
            (sequence as u32 & 3) << Self::SEQUENCE_OFFSET
                | (solicited as u32) << Self::SOLICITED_OFFSET
                | (consumer & 0xff_ffff) << Self::CONSUMER_OFFSET,
        )
    }
}

format! {
    /// What is written to [`uar::CQ`] to arm a CQ.
    pub struct CqDoorbell[8] {
        /// A [`CqArm`] in the upper half, the CQ's number in the lower.
        pub word: U64,
    }
}

impl CqDoorbell {
    /// Arms CQ `cqn` (bits 23:0).
    #[inline]
    pub const fn new(arm: CqArm, cqn: u32) -> Self {
        Self { word: U64::new((arm.into_bits() as u64) << 32 | cqn as u64) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    #[test]
    fn an_arm_doorbell_has_the_bytes_that_rdma_core_writes() {
        let arm = CqArm::new().with_solicited(true).with_consumer(0x3fedb);
        assert_eq!(CqDoorbell::new(arm, 0x456).as_bytes(), [1, 3, 0xfe, 0xdb, 0, 0, 4, 0x56]);
        assert_eq!(CqArm::new().with_sequence(3).into_bits(), 0x3000_0000);
        assert_eq!(CqArm::pack(7, true, 0xff03_fedb), arm.with_sequence(3));
    }
}
