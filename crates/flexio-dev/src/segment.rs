//! Segments of send WQEs, 16 bytes each; a program writes them into a ring one after another.
//!
//! Segments use the types of `verbless-prm`, except the transpose segment, which its tables lack
//! (FlexIO SDK 25.1, device headers). Numbers wider than their field are truncated.

use verbless_prm::hot::{
    AtomicSegment, CtrlFlags, CtrlSegment, CtrlWord, DataSegment, EthChecksums, EthInline,
    EthSegment, EthSwpFlags, InlineHeader, InlineWord, RaddrSegment, SrqNextSegment, U16,
    completion, opcode,
};
pub use verbless_prm::hot::{DatagramSegment, WQEBB, WaitDataSegment};

/// log2 of the segments in a WQEBB, the unit of a send queue's depth (`LOG_SQE_NUM_SEGS`).
pub const LOG_PER_WQEBB: u8 = 2;
/// Bytes of a segment.
pub const BYTES: usize = 16;
/// Maximum bytes of [`Segment::inline`].
pub const INLINE_BYTES: usize = 12;

/// The 8-byte words of a segment at `address`, with their addresses, for stores to a WQE.
pub fn words(address: u64, segment: &[u8; BYTES]) -> impl Iterator<Item = (u64, u64)> {
    let words = segment.as_chunks::<8>().0.iter().map(|bytes| u64::from_ne_bytes(*bytes));
    (address..).step_by(8).zip(words)
}

/// Opcode of local memory operations in the DPA's headers, where `verbless-prm` has MMO.
const LOCAL_MMO: u8 = 0x32;

/// 16 bytes of a send WQE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct Segment([u8; BYTES]);

/// The operation of a WQE, which decides its segments: `flexio_ctrl_seg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A packet of an Ethernet SQ: control, Ethernet, data.
    EthernetSend,
    /// A message of an RC or UC QP: control, data.
    ConnectedSend,
    /// A message of a UD QP to a peer without an address extension: control, address, data.
    DatagramSend,
    /// A copy in local memory: four segments.
    LocalDma,
    /// RDMA WRITE: control, remote address, data.
    RdmaWrite,
    /// RDMA READ: control, remote address, data.
    RdmaRead,
    /// Ethernet send with segmentation offload (TSO): four segments.
    Lso,
    /// NOP: only the control segment.
    Nop,
    /// RDMA WRITE with immediate: control, remote address, data. See [`Segment::ctrl_with_imm`].
    RdmaWriteImm,
    /// Transposes a matrix in local memory: four segments.
    Transpose,
    /// Waits for a value in memory: control, and the two segments of [`Segment::wait_on_data`].
    WaitOnData,
    /// Atomic compare and swap: control, remote address, atomic, data.
    CompareSwap,
    /// Atomic fetch and add: control, remote address, atomic, data.
    FetchAdd,
}

impl Request {
    /// Opcode, its modifier, and the number of segments, control included.
    const fn parts(self) -> (u8, u8, u8) {
        match self {
            Self::EthernetSend | Self::DatagramSend => (opcode::SEND, 0, 3),
            Self::ConnectedSend => (opcode::SEND, 0, 2),
            Self::LocalDma => (LOCAL_MMO, 1, 4),
            Self::RdmaWrite => (opcode::WRITE, 0, 3),
            Self::RdmaRead => (opcode::READ, 0, 3),
            Self::Lso => (opcode::LSO, 0, 4),
            Self::Nop => (opcode::NOP, 0, 1),
            Self::RdmaWriteImm => (opcode::WRITE_IMM, 0, 3),
            Self::Transpose => (LOCAL_MMO, 0, 4),
            Self::WaitOnData => (opcode::WAIT, 1, 3),
            Self::CompareSwap => (opcode::COMPARE_SWAP, 0, 4),
            Self::FetchAdd => (opcode::FETCH_ADD, 0, 4),
        }
    }
}

/// When a WQE makes a CQE: `cq_ce_mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CompletionMode {
    /// On error only.
    OnError = completion::ON_ERROR,
    /// On the first error only.
    OnFirstError = completion::ON_FIRST_ERROR,
    /// Always.
    Always = completion::ALWAYS,
    /// Always, and an EQE as well.
    AlwaysAndEvent = completion::ALWAYS_AND_EVENT,
}

impl Segment {
    /// The control segment, the first one of a WQE: WQEBB index `pi` of the QP or SQ `number` (24
    /// bits).
    pub const fn ctrl(pi: u16, number: u32, mode: CompletionMode, request: Request) -> Self {
        Self::ctrl_with_imm(pi, number, mode, request, 0)
    }

    /// The control segment with immediate data (in host order), or the request's other value in the
    /// same field.
    pub const fn ctrl_with_imm(
        pi: u16,
        number: u32,
        mode: CompletionMode,
        request: Request,
        imm: u32,
    ) -> Self {
        let (code, modifier, ds) = request.parts();
        let word = CtrlWord::new()
            .with_opmod(modifier)
            .with_wqe_index(pi)
            .with_opcode(code)
            .with_qpn(number & 0xff_ffff)
            .with_ds(ds);
        let flags = CtrlFlags::new().with_ce(mode as u8).with_imm(imm);
        Self(*CtrlSegment::new(word, flags).as_bytes())
    }

    /// The remote address segment of RDMA and atomics: `address` under the remote key `rkey`.
    pub const fn rdma(rkey: u32, address: u64) -> Self {
        Self(*RaddrSegment::new(address, rkey).as_bytes())
    }

    /// `bytes` bytes at `address` under the local key `lkey`; receive WQEs use it too.
    pub const fn data(bytes: u32, lkey: u32, address: u64) -> Self {
        Self(*DataSegment::new(bytes, lkey, address).as_bytes())
    }

    /// Up to [`INLINE_BYTES`] bytes of data in the WQE itself; `None` if there are more.
    pub fn inline(data: &[u8]) -> Option<Self> {
        let mut segment = Self::default();
        segment.0[4..].get_mut(..data.len())?.copy_from_slice(data);
        let header = InlineHeader::new(
            InlineWord::new().with_inline(true).with_byte_count(data.len() as u16),
        );
        segment.0[..4].copy_from_slice(header.as_bytes());
        Some(segment)
    }

    /// A segment of any 16 bytes, for the data after an inline header or an Ethernet segment.
    pub const fn bytes(bytes: [u8; BYTES]) -> Self {
        Self(bytes)
    }

    /// The operands of an atomic. Only compare and swap uses `compare`.
    pub const fn atomic(swap_or_add: u64, compare: u64) -> Self {
        Self(*AtomicSegment::new(swap_or_add, compare).as_bytes())
    }

    /// An Ethernet segment: checksum flags ([`eth`]), the MSS (0 except for [`Request::Lso`]), the
    /// length of all inline headers in bytes, and their first two bytes.
    pub const fn eth(flags: u16, mss: u16, header_bytes: u16, header: [u8; 2]) -> Self {
        let [checksums, parser] = flags.to_be_bytes();
        let segment = EthSegment {
            eth_checksums: EthChecksums::from_bits(checksums),
            eth_swp_flags: EthSwpFlags::from_bits(parser),
            mss: U16::new(mss),
            eth_inline: EthInline::new()
                .with_inline_hdr_sz(header_bytes)
                .with_inline_hdr_start(u16::from_be_bytes(header)),
            ..EthSegment::zeroed()
        };
        Self(*segment.as_bytes())
    }

    /// The first segment of an SRQ WQE: the index of the next WQE in the list.
    pub fn shared_receive(next_wqe_index: u16, signature: u8) -> Self {
        let mut segment = SrqNextSegment::zeroed();
        segment.set_next_wqe_index(next_wqe_index);
        segment.set_signature(signature);
        Self(*segment.as_bytes())
    }

    /// A matrix to transpose: bytes of an element, columns and rows (7 bits each).
    pub const fn transpose(element_bytes: u8, columns: u8, rows: u8) -> Self {
        let mut bytes = [0; BYTES];
        bytes[3] = element_bytes;
        bytes[5] = columns & 0x7f;
        bytes[7] = rows & 0x7f;
        Self(bytes)
    }

    /// A peer's address; without an extension its first segment is enough.
    pub fn datagram(address: &DatagramSegment) -> [Self; 3] {
        split(address.as_bytes())
    }

    /// The condition of [`Request::WaitOnData`]. Value and mask are in host order and written
    /// big-endian. The C function writes the bytes of its argument unchanged: do not swap the value
    /// here.
    pub fn wait_on_data(wait: &WaitDataSegment) -> [Self; 2] {
        split(wait.as_bytes())
    }

    /// The address of a segment of [`Segment::data`], for example of a receive WQE
    /// (`flexio_dev_rwqe_get_addr`).
    pub const fn data_address(&self) -> u64 {
        let [_, _, _, _, _, _, _, _, a, b, c, d, e, f, g, h] = self.0;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }

    /// The segment's bytes in ring order.
    pub const fn as_bytes(&self) -> &[u8; BYTES] {
        &self.0
    }
}

/// `bytes` as `N` segments; their length must be that of `N` segments.
fn split<const N: usize>(bytes: &[u8]) -> [Segment; N] {
    let mut segments = [Segment::default(); N];
    for (segment, bytes) in segments.iter_mut().zip(bytes.chunks_exact(BYTES)) {
        segment.0.copy_from_slice(bytes);
    }
    segments
}

/// Flags of [`Segment::eth`]: the checksums that the device fills in, and software's findings about
/// a packet's inner headers. The flags for outer headers have no name here: Linux has them in bits
/// 5 and 4 (`enum mlx5_wqe_swp_flags`), the DPA's headers in 6 and 5, and we have no third source.
pub mod eth {
    use verbless_prm::hot::EthChecksums;

    /// The flags are the checksum word and the byte after it.
    const fn flags(checksums: EthChecksums) -> u16 {
        (checksums.into_bits() as u16) << 8
    }

    /// Checksum of the outer L4 header.
    pub const L4_CHECKSUM: u16 = flags(EthChecksums::new().with_l4_cs(true));
    /// Checksum of the outer IP header.
    pub const L3_CHECKSUM: u16 = flags(EthChecksums::new().with_l3_cs(true));
    /// Checksum of the inner L4 header.
    pub const INNER_L4_CHECKSUM: u16 = flags(EthChecksums::new().with_l4_inner_cs(true));
    /// Checksum of the inner IP header.
    pub const INNER_L3_CHECKSUM: u16 = flags(EthChecksums::new().with_l3_inner_cs(true));
    /// A trailer is aligned (25.1).
    pub const TRAILER_ALIGN: u16 = 0x0200;
    /// Set by software if the inner L4 header is UDP.
    pub const INNER_L4_UDP: u16 = 0x0002;
    /// Set by software if the inner L3 header is IPv6.
    pub const INNER_L3_IPV6: u16 = 0x0001;
}

#[cfg(test)]
mod tests {
    use verbless_prm::WaitCondition;

    use super::*;

    /// 32 hexadecimal digits as bytes.
    fn bytes(hex: &str) -> [u8; BYTES] {
        u128::from_str_radix(hex, 16).unwrap().to_be_bytes()
    }

    #[test]
    fn ctrl_segment_has_opcode_modifier_and_ds() {
        let rows = [
            (Request::EthernetSend, 0x0a, 0, 3),
            (Request::ConnectedSend, 0x0a, 0, 2),
            (Request::DatagramSend, 0x0a, 0, 3),
            (Request::LocalDma, 0x32, 1, 4),
            (Request::RdmaWrite, 0x08, 0, 3),
            (Request::RdmaRead, 0x10, 0, 3),
            (Request::Lso, 0x0e, 0, 4),
            (Request::Nop, 0x00, 0, 1),
            (Request::RdmaWriteImm, 0x09, 0, 3),
            (Request::Transpose, 0x32, 0, 4),
            (Request::WaitOnData, 0x0f, 1, 3),
            (Request::CompareSwap, 0x11, 0, 4),
            (Request::FetchAdd, 0x12, 0, 4),
        ];
        for (request, code, modifier, ds) in rows {
            let segment = Segment::ctrl(0x1234, 0x56_789a, CompletionMode::Always, request);
            let expected = [modifier, 0x12, 0x34, code, 0x56, 0x78, 0x9a, ds, 0, 0, 0, 8];
            assert_eq!(segment.as_bytes()[..12], expected, "{request:?}");
            assert_eq!(segment.as_bytes()[12..], [0; 4], "{request:?}");
        }
    }

    #[test]
    fn ctrl_segment_places_completion_mode_and_imm() {
        let modes = [
            (CompletionMode::OnError, 0x0),
            (CompletionMode::OnFirstError, 0x4),
            (CompletionMode::Always, 0x8),
            (CompletionMode::AlwaysAndEvent, 0xc),
        ];
        for (mode, flags) in modes {
            let segment = Segment::ctrl_with_imm(0, 1, mode, Request::RdmaWriteImm, 0xdead_beef);
            assert_eq!(segment.as_bytes()[8..], [0, 0, 0, flags, 0xde, 0xad, 0xbe, 0xef]);
        }
    }

    #[test]
    fn segment_bytes_match_headers() {
        let rows = [
            (Segment::rdma(0x1122_3344, 0x0102_0304_0506_0708), "01020304050607081122334400000000"),
            (
                Segment::data(0x40, 0x1122_3344, 0x0102_0304_0506_0708),
                "00000040112233440102030405060708",
            ),
            (
                Segment::atomic(0x0102_0304_0506_0708, 0x1112_1314_1516_1718),
                "01020304050607081112131415161718",
            ),
            (
                Segment::eth(eth::L4_CHECKSUM | eth::L3_CHECKSUM, 0x05b4, 18, [0xaa, 0xbb]),
                "00000000c00005b4000000000012aabb",
            ),
            (Segment::shared_receive(0x1234, 0x56), "00001234560000000000000000000000"),
            (Segment::transpose(4, 0x21, 0x7f), "000000040021007f0000000000000000"),
            (Segment::inline(b"hello").unwrap(), "8000000568656c6c6f00000000000000"),
        ];
        for (segment, hex) in rows {
            assert_eq!(*segment.as_bytes(), bytes(hex), "{hex}");
        }
    }

    #[test]
    fn eth_segment_places_inner_header_flags() {
        let of =
            |flags| *EthSegment::from_prefix(Segment::eth(flags, 0, 0, [0; 2]).as_bytes()).unwrap();
        let (udp, ipv6) = (of(eth::INNER_L4_UDP), of(eth::INNER_L3_IPV6));
        assert!(udp.swp_inner_l4_udp() && !udp.swp_inner_l3_ipv6());
        assert!(ipv6.swp_inner_l3_ipv6() && !ipv6.swp_inner_l4_udp());
    }

    #[test]
    fn data_segment_returns_its_address() {
        assert_eq!(
            Segment::data(1, 2, 0x0102_0304_0506_0708).data_address(),
            0x0102_0304_0506_0708
        );
    }

    #[test]
    fn oversized_inline_data_is_rejected() {
        assert!(Segment::inline(&[0xa5; INLINE_BYTES]).is_some());
        assert_eq!(Segment::inline(&[0xa5; INLINE_BYTES + 1]), None);
    }

    #[test]
    fn long_segments_are_split_in_order() {
        let mut address = DatagramSegment::zeroed();
        address.set_q_key(0x1122_3344);
        address.set_ext(true);
        address.set_dqp_dct(0x56_789a);
        let [first, _, last] = Segment::datagram(&address);
        assert_eq!(*first.as_bytes(), bytes("11223344000000008056789a00000000"));
        assert_eq!(last, Segment::default());

        let mut wait = WaitDataSegment::zeroed();
        wait.set_condition(WaitCondition(1));
        wait.set_lkey(7);
        wait.set_va(0x1000);
        wait.set_value(0x1234);
        wait.set_mask(u64::MAX);
        let [what, value] = Segment::wait_on_data(&wait);
        assert_eq!(*what.as_bytes(), bytes("00000001000000070000000000001000"));
        assert_eq!(*value.as_bytes(), bytes("0000000000001234ffffffffffffffff"));
    }
}
