//! Segments of send, receive and shared-receive work queue entries.
//!
//! A WQE is a row of 16-byte units (`ds` counts them) in a ring of 64-byte basic blocks (WQEBB); it starts at a block
//! and goes on at the start of the ring when it meets the end. Sources: Linux `include/linux/mlx5/qp.h`, rdma-core
//! `mlx5dv.h`, recorded WQEs.

use bitfield_struct::bitfield;
use zerocopy::big_endian::{U16, U32, U64};

use super::format;

/// Bytes of a work queue basic block.
pub const WQEBB: usize = 64;
/// Bytes of the unit that `ds` counts.
pub const OCTOWORD: usize = 16;

/// Send opcodes, the low byte of the first word of a WQE (and the high byte of a requester CQE's `sop_drop_qpn`).
pub mod opcode {
    /// No operation.
    pub const NOP: u8 = 0x00;
    /// SEND that invalidates an rkey of the peer.
    pub const SEND_INVALIDATE: u8 = 0x01;
    /// RDMA WRITE.
    pub const WRITE: u8 = 0x08;
    /// RDMA WRITE with immediate.
    pub const WRITE_IMM: u8 = 0x09;
    /// SEND.
    pub const SEND: u8 = 0x0a;
    /// SEND with immediate.
    pub const SEND_IMM: u8 = 0x0b;
    /// Large send (TCP segmentation).
    pub const LSO: u8 = 0x0e;
    /// WAIT for a CQ, a time or a memory value.
    pub const WAIT: u8 = 0x0f;
    /// RDMA READ.
    pub const READ: u8 = 0x10;
    /// Atomic compare and swap of 8 bytes.
    pub const COMPARE_SWAP: u8 = 0x11;
    /// Atomic fetch and add of 8 bytes.
    pub const FETCH_ADD: u8 = 0x12;
    /// Atomic masked (extended) compare and swap.
    pub const MASKED_COMPARE_SWAP: u8 = 0x14;
    /// Atomic masked (extended) fetch and add.
    pub const MASKED_FETCH_ADD: u8 = 0x15;
    /// Invalidate a local key.
    pub const LOCAL_INVALIDATE: u8 = 0x1b;
    /// Set a protection signature (PSV).
    pub const SET_PSV: u8 = 0x20;
    /// User-mode memory registration: change an mkey.
    pub const UMR: u8 = 0x25;
    /// Memory-to-memory operations: DMA, and others by `opmod`.
    pub const MMO: u8 = 0x2f;
}

/// Fence modes: values of `fm` in the control segment.
pub mod fence {
    /// No fence.
    pub const NONE: u8 = 0;
    /// Initiator small fence: wait until earlier UMRs took effect.
    pub const INITIATOR_SMALL: u8 = 1;
    /// Fence: wait until earlier READs and atomics completed.
    pub const FENCE: u8 = 2;
    /// Strong ordering.
    pub const STRONG_ORDERING: u8 = 3;
    /// Fence and initiator small fence in one.
    pub const FENCE_AND_INITIATOR_SMALL: u8 = 4;
}

/// Completion modes: values of `ce` in the control segment.
pub mod completion {
    /// A CQE only if the request fails.
    pub const ON_ERROR: u8 = 0;
    /// A CQE only for the first failing request.
    pub const ON_FIRST_ERROR: u8 = 1;
    /// Always a CQE.
    pub const ALWAYS: u8 = 2;
    /// A CQE, and an EQE too.
    pub const ALWAYS_AND_EVENT: u8 = 3;
}

/// The first 8 bytes of a WQE. They are also what a doorbell writes to the UAR.
#[bitfield(u64, order = Msb)]
#[derive(PartialEq, Eq)]
pub struct CtrlWord {
    /// Modifier of the opcode.
    pub opmod: u8,
    /// Index of the WQE's first WQEBB since the queue was created, modulo 65536.
    pub wqe_index: u16,
    /// What to do, one of [`opcode`].
    pub opcode: u8,
    /// Number of the QP or SQ.
    #[bits(24)]
    pub qpn: u32,
    #[bits(2)]
    __: u8,
    /// Length of the WQE in 16-byte units, control segment included.
    #[bits(6)]
    pub ds: u8,
}

impl CtrlWord {
    /// The word of these fields; bits that are too many are cut off. The builder methods are not inlined into other
    /// crates and can panic, so posting packs by this.
    #[inline(always)]
    pub const fn pack(opmod: u8, wqe_index: u16, opcode: u8, qpn: u32, ds: u8) -> Self {
        Self::from_bits(
            (opmod as u64) << Self::OPMOD_OFFSET
                | (wqe_index as u64) << Self::WQE_INDEX_OFFSET
                | (opcode as u64) << Self::OPCODE_OFFSET
                | (qpn as u64 & 0xff_ffff) << Self::QPN_OFFSET
                | (ds as u64 & 0x3f) << Self::DS_OFFSET,
        )
    }
}

/// The second 8 bytes of a WQE.
#[bitfield(u64, order = Msb)]
#[derive(PartialEq, Eq)]
pub struct CtrlFlags {
    /// XOR signature of the WQE, if the queue has signatures.
    pub signature: u8,
    /// Stream of a DCI that has streams.
    pub dci_stream_channel: u16,
    /// Fence mode, one of [`fence`].
    #[bits(3)]
    pub fm: u8,
    #[bits(1)]
    __: u8,
    /// Completion mode, one of [`completion`].
    #[bits(2)]
    pub ce: u8,
    /// Solicited event at the peer.
    pub se: bool,
    #[bits(1)]
    __: u8,
    /// Immediate, rkey to invalidate, or UMR mkey, by opcode. On the wire an immediate has the byte order it has here.
    pub imm: u32,
}

impl CtrlFlags {
    /// The word of these fields, as [`CtrlWord::pack`].
    #[inline(always)]
    pub const fn pack(fm: u8, ce: u8, se: bool, imm: u32) -> Self {
        Self::from_bits(
            (fm as u64 & 7) << Self::FM_OFFSET
                | (ce as u64 & 3) << Self::CE_OFFSET
                | (se as u64) << Self::SE_OFFSET
                | (imm as u64) << Self::IMM_OFFSET,
        )
    }
}

format! {
    /// Control segment: starts every send WQE.
    pub struct CtrlSegment[16] {
        /// Opcode, index, QP and size: a [`CtrlWord`].
        pub control: U64,
        /// Fence, completion mode, immediate: a [`CtrlFlags`].
        pub flags: U64,
    }
}

impl CtrlSegment {
    /// A control segment of these two words.
    #[inline]
    pub const fn new(control: CtrlWord, flags: CtrlFlags) -> Self {
        Self { control: U64::new(control.into_bits()), flags: U64::new(flags.into_bits()) }
    }

    /// The first word, unpacked.
    #[inline]
    pub const fn control(&self) -> CtrlWord {
        CtrlWord::from_bits(self.control.get())
    }

    /// The second word, unpacked.
    #[inline]
    pub const fn flags(&self) -> CtrlFlags {
        CtrlFlags::from_bits(self.flags.get())
    }
}

format! {
    /// Remote address segment: READ, WRITE, atomics.
    pub struct RaddrSegment[16] {
        /// Address in the peer's key.
        pub address: U64,
        /// The peer's key.
        pub rkey: U32,
        /// Zero.
        pub reserved: U32,
    }
}

impl RaddrSegment {
    /// A remote address under a remote key.
    #[inline]
    pub const fn new(address: u64, rkey: u32) -> Self {
        Self { address: U64::new(address), rkey: U32::new(rkey), reserved: U32::ZERO }
    }
}

format! {
    /// Operands of COMPARE_SWAP and FETCH_ADD.
    pub struct AtomicSegment[16] {
        /// The value to swap in, or to add.
        pub swap_add: U64,
        /// The value to compare with; unused by FETCH_ADD.
        pub compare: U64,
    }
}

impl AtomicSegment {
    /// Operands of an atomic.
    #[inline]
    pub const fn new(swap_add: u64, compare: u64) -> Self {
        Self { swap_add: U64::new(swap_add), compare: U64::new(compare) }
    }
}

format! {
    /// Operands of the masked atomics of 8 bytes.
    pub struct MaskedAtomicSegment[32] {
        /// The value to swap in, or to add.
        pub swap_add: U64,
        /// The value to compare with; unused by fetch and add.
        pub compare: U64,
        /// Bits that are swapped; for fetch and add, bits at which a carry stops.
        pub swap_add_mask: U64,
        /// Bits that are compared.
        pub compare_mask: U64,
    }
}

format! {
    /// Pointer to local memory. Also an entry of a receive WQE, where [`DataSegment::END`] ends a short list.
    pub struct DataSegment[16] {
        /// Length in bytes, up to 0x7fff_ffff; 0 means 2 GiB.
        pub byte_count: U32,
        /// Local key.
        pub lkey: U32,
        /// Address in that key.
        pub address: U64,
    }
}

impl DataSegment {
    /// The lkey that ends a receive WQE with fewer entries than its queue allows.
    pub const END_LKEY: u32 = 0x100;
    /// The entry that ends a receive WQE with fewer entries than its queue allows.
    pub const END: Self = Self::new(0, Self::END_LKEY, 0);
    /// The longest length that one segment states as it is.
    pub const MAX_BYTES: u32 = 0x7fff_ffff;

    /// `byte_count` bytes at `address` of `lkey`.
    #[inline]
    pub const fn new(byte_count: u32, lkey: u32, address: u64) -> Self {
        Self { byte_count: U32::new(byte_count), lkey: U32::new(lkey), address: U64::new(address) }
    }
}

format! {
    /// Header of inline data; the data follows at once, the segment is padded to 16 bytes.
    pub struct InlineHeader[4] {
        /// Bit 31 set, bits 30:0 the length in bytes.
        pub byte_count: U32,
    }
}

impl InlineHeader {
    /// The bit that tells inline data from a data segment.
    pub const INLINE: u32 = 1 << 31;

    /// The header of `length` bytes; bit 31 of `length` is ignored.
    #[inline]
    pub const fn new(length: u32) -> Self {
        Self { byte_count: U32::new(length | Self::INLINE) }
    }

    /// Whether this is an inline header at all, and not the start of a [`DataSegment`].
    #[inline]
    pub const fn is_inline(&self) -> bool {
        self.byte_count.get() & Self::INLINE != 0
    }

    /// Bytes of data.
    #[inline]
    pub const fn length(&self) -> u32 {
        self.byte_count.get() & !Self::INLINE
    }
}

format! {
    /// Address vector of UD and DC sends.
    pub struct DatagramSegment[48] {
        /// Q_Key in the upper half (UD), or the DC access key.
        pub key: U64,
        /// Bit 31: this is an extended address vector; bits 23:0: destination QP or DCT.
        pub dqp_dct: U32,
        /// Static rate 7:4, service level 3:0.
        pub stat_rate_sl: u8,
        /// Force loopback bit 7, source path bits (InfiniBand) 6:0.
        pub fl_mlid: u8,
        /// Destination LID (InfiniBand) or UDP source port (RoCE v2).
        pub rlid: U16,
        /// Zero.
        pub reserved: U32,
        /// Destination MAC (RoCE).
        pub rmac: [u8; 6],
        /// Traffic class.
        pub tclass: u8,
        /// Hop limit.
        pub hop_limit: u8,
        /// Bit 30: a GRH is present; 27:20 source GID index; 19:0 flow label.
        pub grh_gid_fl: U32,
        /// Destination GID.
        pub rgid: [u8; 16],
    }
}

format! {
    /// Ethernet segment of a raw-packet SQ; the rest of the inline header follows.
    pub struct EthernetSegment[16] {
        /// Not described here.
        pub reserved0: U32,
        /// Checksum requests: bit 7 L4, bit 6 L3; bits 5:4 the same of the inner headers.
        pub cs_flags: u8,
        /// Software parsing flags.
        pub swp_flags: u8,
        /// Segment size of a large send, in bytes.
        pub mss: U16,
        /// Metadata that flow tables can match.
        pub flow_table_metadata: U32,
        /// Bytes of inline header.
        pub inline_header_size: U16,
        /// The first two of them.
        pub inline_header_start: [u8; 2],
    }
}

format! {
    /// UMR control segment.
    pub struct UmrCtrlSegment[48] {
        /// Bits: 7 the list is inline, 5 check that the key is free, 4 there is a translation offset, 3 check the QP.
        pub flags: u8,
        /// Zero.
        pub reserved0: [u8; 3],
        /// Size of the KLM list in 16-byte units.
        pub klm_octowords: U16,
        /// Where in the mkey's translation, in 16-byte units; or the size of the BSF.
        pub translation_offset: U16,
        /// Which fields of the mkey change.
        pub mkey_mask: U64,
        /// Zero.
        pub reserved1: [u8; 32],
    }
}

format! {
    /// The mkey fields that a UMR sets.
    pub struct UmrMkeySegment[64] {
        /// Bit 6: the key becomes free (invalid).
        pub free: u8,
        /// Zero.
        pub reserved0: u8,
        /// Access rights: bits 6 atomic, 5 remote write, 4 remote read, 3 local write, 2 local read.
        pub access_flags: u8,
        /// Small fence on this key and others.
        pub sf: u8,
        /// QP 31:8 (all ones: any), variant byte of the key 7:0.
        pub qpn_mkey: U32,
        /// Zero.
        pub reserved1: U32,
        /// Flags 31:24, PD 23:0.
        pub flags_pd: U32,
        /// Start address.
        pub start_address: U64,
        /// Length in bytes.
        pub length: U64,
        /// Size of the BSF in 16-byte units.
        pub bsf_octowords: U32,
        /// Zero.
        pub reserved2: [u8; 16],
        /// Size of the translation in 16-byte units.
        pub translations_octowords: U32,
        /// Zero.
        pub reserved3: [u8; 3],
        /// log2 of the page size.
        pub log_page_size: u8,
        /// Zero.
        pub reserved4: U32,
    }
}

format! {
    /// MMO metadata: with `opmod` 1 a DMA, whose source and destination data segments follow.
    pub struct MmoSegment[16] {
        /// Control bits, by operation.
        pub control: U32,
        /// Key of the memory that the device uses for itself.
        pub lkey: U32,
        /// Its address.
        pub address: U64,
    }
}

format! {
    /// WAIT with `opmod` 0: hold the queue until a CQ has reached an index.
    pub struct WaitSegment[16] {
        /// Zero.
        pub reserved: U64,
        /// Producer index of the CQ to wait for.
        pub max_index: U32,
        /// CQ number, bits 23:0.
        pub cqn: U32,
    }
}

format! {
    /// SET_PSV: a new value for a protection signature.
    pub struct SetPsvSegment[16] {
        /// Number of the PSV.
        pub psv_index: U32,
        /// Syndrome.
        pub syndrome: U16,
        /// Zero.
        pub reserved: U16,
        /// Transient signature: guard, application tag, reference tag.
        pub transient_signature: U64,
    }
}

format! {
    /// First segment of a shared receive WQE; data segments follow.
    pub struct SrqNextSegment[16] {
        /// Zero.
        pub reserved0: U16,
        /// Index of the next free WQE.
        pub next_wqe_index: U16,
        /// Signature of the WQE, if the queue has signatures.
        pub signature: u8,
        /// Zero.
        pub reserved1: [u8; 11],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    #[test]
    fn a_control_segment_has_the_bytes_that_rdma_core_writes_for_a_fenced_write() {
        let control =
            CtrlWord::new().with_wqe_index(4).with_opcode(opcode::WRITE).with_qpn(0x123).with_ds(3);
        let flags =
            CtrlFlags::new().with_fm(fence::FENCE_AND_INITIATOR_SMALL).with_ce(completion::ALWAYS);
        let segment = CtrlSegment::new(control, flags);
        assert_eq!(segment.as_bytes(), [0, 0, 4, 8, 0, 1, 0x23, 3, 0, 0, 0, 0x88, 0, 0, 0, 0]);
        assert_eq!((segment.control(), segment.flags()), (control, flags));
    }

    #[test]
    fn packing_equals_building() {
        let built = CtrlWord::new()
            .with_opmod(1)
            .with_wqe_index(0xabcd)
            .with_opcode(9)
            .with_qpn(0xfedcba)
            .with_ds(63);
        assert_eq!(CtrlWord::pack(1, 0xabcd, 9, 0xfedcba, 63), built);
        assert_eq!(
            CtrlWord::pack(0, 0, 0, 0xff00_0001, 0x41),
            CtrlWord::new().with_qpn(1).with_ds(1)
        );
        let built = CtrlFlags::new().with_fm(4).with_ce(2).with_se(true).with_imm(0xcafe_babe);
        assert_eq!(CtrlFlags::pack(4, 2, true, 0xcafe_babe), built);
    }

    #[test]
    fn an_inline_header_is_told_from_a_data_segment_by_its_top_bit() {
        let header = InlineHeader::new(13);
        assert_eq!(header.as_bytes(), [0x80, 0, 0, 13]);
        assert!(header.is_inline());
        assert_eq!(header.length(), 13);
        let data = DataSegment::new(DataSegment::MAX_BYTES, 1, 2);
        assert!(!InlineHeader::read(data.as_bytes()).unwrap().is_inline());
    }

    #[test]
    fn reading_from_too_few_bytes_is_none() {
        assert_eq!(RaddrSegment::read(&[0; 15]), None);
        assert_eq!(RaddrSegment::read(&[0; 17]), Some(RaddrSegment::zeroed()));
    }
}
