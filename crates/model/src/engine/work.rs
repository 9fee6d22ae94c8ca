//! Send WQEs: parses untrusted bytes into operations.

use verbless_prm::hot::{
    AtomicSegment, CtrlSegment, CtrlWord, DataSegment, InlineHeader, InlineWord, MmoSegment,
    OCTOWORD, RaddrSegment, completion,
};
use verbless_prm::{DatagramSegment, HcaCap, WaitDataSegment};

use super::operation::{Operands, Operation, WqeRefusal, WqeSegment};
use super::sender::Malformed;
use crate::hca::objects::LIST_END;
use crate::hca::qp_type::QpType;

/// Bytes of an address vector that is not extended.
const COMPACT: usize = 16;

/// A send WQE without its data segments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    pub operation: &'static Operation,
    /// Whether the WQE causes a CQE even when it succeeds.
    pub signaled: bool,
    /// Whether the WQE's CQE causes an event at a CQ that is armed for solicited completions only.
    pub event: bool,
    /// Whether the peer's CQE causes an event at such a CQ.
    pub solicited: bool,
    /// Immediate data, or the memory key that the WQE is about.
    pub immediate: u32,
    /// The remote address, under `rkey`; for a memory copy, the address of the device's opaque
    /// buffer.
    pub remote_address: u64,
    pub rkey: u32,
    pub operands: Operands,
    /// Offset of the data segments.
    pub data: usize,
}

/// A decoded send WQE, with its index in the ring.
pub(crate) struct PostedWqe {
    pub work: Work,
    pub index: u16,
    pub wqebbs: u16,
    /// Bytes that the WQE's data segments name.
    pub length: u64,
}

/// A data segment of a send or receive WQE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Segment {
    Pointer { lkey: u32, address: u64, length: u64 },
    Inline { at: usize, length: u64 },
}

/// The first word of a WQE, whatever is wrong with the rest; `None`: it is shorter.
pub(crate) fn first_word(wqe: &[u8]) -> Option<CtrlWord> {
    wqe.first_chunk().map(|bytes| CtrlWord::from_bits(u64::from_be_bytes(*bytes)))
}

/// The opcode that a WQE shows, whatever else is wrong with it.
pub(crate) fn opcode(wqe: &[u8]) -> u8 {
    first_word(wqe).map_or(verbless_prm::hot::opcode::NOP, |word| word.opcode())
}

impl Work {
    /// Parses the control segment of a WQE, whose index and queue must be those of its slot.
    #[inline]
    pub(crate) fn control(wqe: &[u8], number: u32, index: u16) -> Result<Self, WqeRefusal> {
        let control = CtrlSegment::from_prefix(wqe).ok_or(Malformed)?;
        let (word, flags) = (control.ctrl_word, control.ctrl_flags);
        if word.qpn() != number || word.wqe_index() != index {
            return Err(WqeRefusal::Malformed);
        }
        Ok(Self {
            operation: Operation::find(word.opcode(), word.opmod())?,
            signaled: flags.ce() >= completion::ALWAYS,
            event: flags.ce() == completion::ALWAYS_AND_EVENT,
            solicited: flags.se(),
            immediate: flags.imm(),
            remote_address: 0,
            rkey: 0,
            operands: Operands::default(),
            data: CtrlSegment::BYTES,
        })
    }

    /// Parses a complete WQE: as many bytes as its `ds` says. Its index and QP must be those of its
    /// slot, and its segments those that the operation has in a QP of this type.
    pub(crate) fn parse(
        wqe: &[u8],
        qpn: u32,
        index: u16,
        qp_type: &QpType,
        general: &HcaCap,
    ) -> Result<Self, WqeRefusal> {
        let mut work = Self::control(wqe, qpn, index)?;
        work.operation.check(qp_type, general)?;
        if wqe.len() > work.operation.longest {
            return Err(WqeRefusal::Malformed);
        }
        for part in work.operation.segments {
            let rest = wqe.get(work.data..).ok_or(Malformed)?;
            work.data += match part {
                WqeSegment::Address if qp_type.is_datagram() => {
                    address_vector(wqe).ok_or(Malformed)?.1
                }
                WqeSegment::Address => 0,
                WqeSegment::Remote => {
                    let remote = RaddrSegment::from_prefix(rest).ok_or(Malformed)?;
                    (work.remote_address, work.rkey) = (remote.raddr(), remote.rkey());
                    RaddrSegment::BYTES
                }
                WqeSegment::Atomic => {
                    let operands = AtomicSegment::from_prefix(rest).ok_or(Malformed)?;
                    let (swap_add, compare) = (operands.swap_add(), operands.compare());
                    work.operands = Operands { swap_add, compare };
                    AtomicSegment::BYTES
                }
                WqeSegment::Metadata | WqeSegment::Wait | WqeSegment::Umr => {
                    work.take_own(*part, rest)?
                }
            };
        }
        Ok(work)
    }

    /// Parses a segment of an operation that does not leave the device; returns its length.
    #[inline(never)]
    fn take_own(&mut self, part: WqeSegment, rest: &[u8]) -> Result<usize, Malformed> {
        match part {
            WqeSegment::Metadata => {
                let metadata = MmoSegment::from_prefix(rest).ok_or(Malformed)?;
                (self.remote_address, self.rkey) = (metadata.addr(), metadata.lkey());
                Ok(MmoSegment::BYTES)
            }
            WqeSegment::Wait => {
                WaitDataSegment::from_prefix(rest).ok_or(Malformed)?;
                Ok(WaitDataSegment::BYTES)
            }
            _ => Ok(rest.len()),
        }
    }
}

/// The address vector of the request in `wqe`, and the bytes that it takes there.
pub(super) fn address_vector(wqe: &[u8]) -> Option<(DatagramSegment, usize)> {
    let bytes = wqe.get(CtrlSegment::BYTES..)?;
    let mut vector = DatagramSegment::zeroed();
    vector.as_bytes_mut()[..COMPACT].copy_from_slice(bytes.get(..COMPACT)?);
    if vector.ext() {
        return Some((*DatagramSegment::from_prefix(bytes)?, DatagramSegment::BYTES));
    }
    Some((vector, COMPACT))
}

/// The data segments in `bytes[at..]`, up to the end or the entry that ends a short list.
pub(crate) fn segments(bytes: &[u8], at: usize) -> Segments<'_> {
    Segments { bytes, at, end: LIST_END }
}

/// The data segments of a receive WQE, whose list `end` ends, too.
pub(crate) fn receive_segments(bytes: &[u8], end: u32) -> Segments<'_> {
    Segments { bytes, at: 0, end }
}

/// Iterator of [`segments`]; it ends after a malformed one.
pub(crate) struct Segments<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The lkey that ends the segment list, besides [`LIST_END`].
    end: u32,
}

impl Iterator for Segments<'_> {
    type Item = Result<Segment, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.bytes.get(self.at..).filter(|rest| !rest.is_empty())?;
        let result = self.read(rest);
        if !matches!(result, Some(Ok(_))) {
            self.at = self.bytes.len();
        }
        result
    }
}

impl Segments<'_> {
    fn read(&mut self, rest: &[u8]) -> Option<Result<Segment, Malformed>> {
        let Some(header) = InlineHeader::from_prefix(rest) else { return Some(Err(Malformed)) };
        let header = header.inline_word;
        if header.inline() {
            let length = usize::from(header.byte_count());
            if header != InlineWord::new().with_inline(true).with_byte_count(header.byte_count()) {
                return Some(Err(Malformed));
            }
            let at = self.at + InlineHeader::BYTES;
            if length > rest.len() - InlineHeader::BYTES {
                return Some(Err(Malformed));
            }
            self.at += (InlineHeader::BYTES + length).next_multiple_of(OCTOWORD);
            return Some(Ok(Segment::Inline { at, length: length as u64 }));
        }
        let Some(segment) = DataSegment::from_prefix(rest) else { return Some(Err(Malformed)) };
        self.at += DataSegment::BYTES;
        if *segment == DataSegment::END || *segment == DataSegment::new(0, self.end, 0) {
            return None;
        }
        let length = match segment.byte_count() {
            0 => 1 << 31,
            length => u64::from(length),
        };
        Some(Ok(Segment::Pointer { lkey: segment.lkey(), address: segment.addr(), length }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::sender::MAX_WQE_BYTES;
    use super::super::transport::types::RC;
    use super::*;
    use proptest::prelude::*;
    use verbless_prm::IntoBytes;
    use verbless_prm::hot::{CtrlFlags, opcode};

    fn parse(wqe: &[u8], qpn: u32, index: u16) -> Result<Work, WqeRefusal> {
        let mut general = HcaCap::zeroed();
        general.set_atomic(true);
        Work::parse(wqe, qpn, index, RC, &general)
    }

    fn wqe(opcode: u8, tail: &[u8]) -> Vec<u8> {
        let ds = ((16 + tail.len()) / 16) as u8;
        let word = CtrlWord::new().with_opcode(opcode).with_wqe_index(7).with_qpn(5).with_ds(ds);
        let flags = CtrlFlags::new().with_ce(completion::ALWAYS).with_imm(0xcafe);
        [&CtrlSegment::new(word, flags).as_bytes()[..], tail].concat()
    }

    #[test]
    fn send_with_pointers_and_inline_data_parses() {
        let tail = [
            &DataSegment::new(10, 0x100, 0x5000).as_bytes()[..],
            InlineHeader::new(InlineWord::new().with_inline(true).with_byte_count(13)).as_bytes(),
            &[9; 28],
            DataSegment::new(0, 0x200, 0x6000).as_bytes(),
        ]
        .concat();
        let bytes = wqe(opcode::SEND_IMM, &tail);
        let work = parse(&bytes, 5, 7).unwrap();
        assert_eq!((work.operation.name, work.immediate), ("SEND_IMM", 0xcafe));
        assert!(work.signaled && !work.event);
        let all: Vec<_> = segments(&bytes, work.data).collect();
        assert_eq!(
            all,
            [
                Ok(Segment::Pointer { lkey: 0x100, address: 0x5000, length: 10 }),
                Ok(Segment::Inline { at: 36, length: 13 }),
                Ok(Segment::Pointer { lkey: 0x200, address: 0x6000, length: 1 << 31 }),
            ]
        );
    }

    #[test]
    fn end_entry_ends_sge_list() {
        let tail = [DataSegment::new(10, 1, 2), DataSegment::END, DataSegment::new(11, 1, 2)];
        let tail = tail.as_bytes();
        assert_eq!(segments(tail, 0).count(), 1);
    }

    #[test]
    fn receive_list_ends_at_queried_or_common_key() {
        for (key, count) in [(0x500, 1), (LIST_END, 1), (0x600, 3)] {
            let tail = [(10, 1, 2), (0, key, 0), (11, 1, 2)];
            let tail = tail.map(|(bytes, key, at)| DataSegment::new(bytes, key, at));
            let tail = tail.as_bytes();
            assert_eq!(receive_segments(tail, 0x500).count(), count, "{key:#x}");
        }
    }

    #[test]
    fn wqe_of_wrong_queue_or_opcode_is_malformed() {
        let bytes = wqe(opcode::SEND, &[]);
        let refused = |wqe: &[u8], qpn, index| parse(wqe, qpn, index).unwrap_err();
        assert!(parse(&bytes, 5, 7).is_ok());
        assert_eq!(refused(&bytes, 6, 7), WqeRefusal::Malformed);
        assert_eq!(refused(&bytes, 5, 8), WqeRefusal::Malformed);
        assert_eq!(refused(&wqe(opcode::LSO, &[0; 112]), 5, 7), WqeRefusal::Unknown);
        assert_eq!(refused(&wqe(opcode::READ, &[]), 5, 7), WqeRefusal::Malformed);
        assert_eq!(refused(&wqe(opcode::FETCH_ADD, &[0; 16]), 5, 7), WqeRefusal::Malformed);
        let mut modified = bytes.clone();
        modified[0] = 1;
        assert_eq!(refused(&modified, 5, 7), WqeRefusal::Unknown, "SEND has no op_mod but 0");
        let long_inline = wqe(
            opcode::SEND,
            InlineHeader::new(InlineWord::new().with_inline(true).with_byte_count(13)).as_bytes(),
        );
        let work = parse(&long_inline, 5, 7).unwrap();
        assert_eq!(segments(&long_inline, work.data).collect::<Vec<_>>(), [Err(Malformed)]);
    }

    #[test]
    fn read_wqe_is_limited_to_512_bytes() {
        assert!(parse(&wqe(opcode::READ, &[0; 496]), 5, 7).is_ok());
        assert_eq!(parse(&wqe(opcode::READ, &[0; 512]), 5, 7).unwrap_err(), WqeRefusal::Malformed);
        assert!(parse(&wqe(opcode::WRITE, &[0; 512]), 5, 7).is_ok());
    }

    proptest! {
        #[test]
        fn random_wqes_parse_within_bounds(
            bytes in proptest::collection::vec(any::<u8>(), 0..MAX_WQE_BYTES)
        ) {
            let segment = CtrlSegment::from_prefix(&bytes);
            let word = segment.map_or(CtrlWord::new(), |segment| segment.ctrl_word);
            if let Ok(work) = parse(&bytes, word.qpn(), word.wqe_index()) {
                prop_assert!(work.data <= bytes.len());
            }
            for segment in segments(&bytes, 16).flatten() {
                if let Segment::Inline { at, length } = segment {
                    prop_assert!(at + length as usize <= bytes.len());
                }
            }
        }
    }
}
