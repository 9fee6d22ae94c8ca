//! Send WQEs: from untrusted bytes to what is to be done.

use super::datagram;
use crate::hca::objects::Service;
use verbless_prm::hot::{
    AtomicSegment, CtrlFlags, CtrlSegment, CtrlWord, DataSegment, InlineHeader, OCTOWORD,
    RaddrSegment, completion, opcode,
};

/// Bytes of the longest WQE: 63 units of 16.
pub(crate) const LONGEST: usize = 63 * OCTOWORD;

/// The WQE is no request that this device knows: a local QP operation error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// What a send WQE asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Nop,
    Send,
    SendImm,
    SendInvalidate,
    Write,
    WriteImm,
    Read,
    CompareSwap {
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        add: u64,
    },
    /// A change of a key; what it changes is read where it is executed.
    Umr,
}

/// A send WQE without its data segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Work {
    pub kind: Kind,
    pub opcode: u8,
    /// A CQE when it succeeded, too.
    pub signaled: bool,
    /// Its CQE is worth an event to who asked for solicited ones only.
    pub event: bool,
    /// The peer's CQE is.
    pub solicited: bool,
    /// Immediate, or the rkey to invalidate.
    pub immediate: u32,
    pub remote_address: u64,
    pub rkey: u32,
    /// Where the data segments start.
    pub data: usize,
}

/// A data segment of a send or receive WQE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Segment {
    Pointer { lkey: u32, address: u64, length: u64 },
    Inline { at: usize, length: u64 },
}

/// The control segment of a WQE, whose index and queue must be those of its place.
pub(crate) fn control(
    wqe: &[u8],
    number: u32,
    index: u16,
) -> Result<(CtrlWord, CtrlFlags), Malformed> {
    let control = CtrlSegment::read(wqe).ok_or(Malformed)?;
    let word = control.control();
    if word.qpn() != number || word.wqe_index() != index || word.opmod() != 0 {
        return Err(Malformed);
    }
    Ok((word, control.flags()))
}

impl Work {
    /// Reads a WQE that is whole: as many bytes as its `ds` says. Index and QP must be those of its place, and its
    /// segments those that the QP's service has.
    pub(crate) fn parse(
        wqe: &[u8],
        qpn: u32,
        index: u16,
        service: Service,
    ) -> Result<Self, Malformed> {
        let (word, flags) = control(wqe, qpn, index)?;
        let mut at = CtrlSegment::BYTES;
        let mut remote = RaddrSegment::zeroed();
        let opcode = word.opcode();
        if service.is_datagram() && opcode != opcode::NOP {
            let (_, length) = datagram::address_vector(wqe, true).ok_or(Malformed)?;
            at += length;
        }
        let has_remote = matches!(
            opcode,
            opcode::WRITE
                | opcode::WRITE_IMM
                | opcode::READ
                | opcode::COMPARE_SWAP
                | opcode::FETCH_ADD
        );
        if has_remote {
            remote = RaddrSegment::read(wqe.get(at..).ok_or(Malformed)?).ok_or(Malformed)?;
            at += RaddrSegment::BYTES;
        }
        let kind = match opcode {
            opcode::NOP => Kind::Nop,
            opcode::SEND => Kind::Send,
            opcode::SEND_IMM => Kind::SendImm,
            opcode::SEND_INVALIDATE => Kind::SendInvalidate,
            opcode::WRITE => Kind::Write,
            opcode::WRITE_IMM => Kind::WriteImm,
            opcode::READ => Kind::Read,
            opcode::COMPARE_SWAP | opcode::FETCH_ADD => {
                let operands =
                    AtomicSegment::read(wqe.get(at..).ok_or(Malformed)?).ok_or(Malformed)?;
                at += AtomicSegment::BYTES;
                if opcode == opcode::FETCH_ADD {
                    Kind::FetchAdd { add: operands.swap_add.get() }
                } else {
                    Kind::CompareSwap {
                        compare: operands.compare.get(),
                        swap: operands.swap_add.get(),
                    }
                }
            }
            opcode::UMR => {
                at = wqe.len();
                Kind::Umr
            }
            _ => return Err(Malformed),
        };
        Ok(Self {
            kind,
            opcode,
            signaled: flags.ce() >= completion::ALWAYS,
            event: flags.ce() == completion::ALWAYS_AND_EVENT,
            solicited: flags.se(),
            immediate: flags.imm(),
            remote_address: remote.address.get(),
            rkey: remote.rkey.get(),
            data: at,
        })
    }

    /// Whether memory of ours receives the data.
    pub(crate) fn scatters(&self) -> bool {
        self.kind == Kind::Read || self.is_atomic()
    }

    /// Whether it is COMPARE_SWAP or FETCH_ADD.
    pub(crate) fn is_atomic(&self) -> bool {
        matches!(self.kind, Kind::CompareSwap { .. } | Kind::FetchAdd { .. })
    }
}

/// The data segments in `bytes[at..]`, up to the end or the entry that ends a short list.
pub(crate) fn segments(bytes: &[u8], at: usize) -> Segments<'_> {
    Segments { bytes, at }
}

/// Iterator of [`segments`]; it ends after a malformed one.
pub(crate) struct Segments<'a> {
    bytes: &'a [u8],
    at: usize,
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
        let Some(header) = InlineHeader::read(rest) else { return Some(Err(Malformed)) };
        if header.is_inline() {
            let length = header.length() as usize;
            let at = self.at + InlineHeader::BYTES;
            if length > rest.len() - InlineHeader::BYTES {
                return Some(Err(Malformed));
            }
            self.at += (InlineHeader::BYTES + length).next_multiple_of(OCTOWORD);
            return Some(Ok(Segment::Inline { at, length: length as u64 }));
        }
        let Some(segment) = DataSegment::read(rest) else { return Some(Err(Malformed)) };
        self.at += DataSegment::BYTES;
        if segment == DataSegment::END {
            return None;
        }
        let length = match segment.byte_count.get() {
            0 => 1 << 31,
            length => u64::from(length),
        };
        Some(Ok(Segment::Pointer {
            lkey: segment.lkey.get(),
            address: segment.address.get(),
            length,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    fn wqe(opcode: u8, tail: &[u8]) -> Vec<u8> {
        let ds = ((16 + tail.len()) / 16) as u8;
        let word = CtrlWord::new().with_opcode(opcode).with_wqe_index(7).with_qpn(5).with_ds(ds);
        let flags = CtrlFlags::new().with_ce(completion::ALWAYS).with_imm(0xcafe);
        [CtrlSegment::new(word, flags).as_bytes(), tail].concat()
    }

    #[test]
    fn a_send_with_two_pointers_and_inline_data_between_them_is_read() {
        let tail = [
            DataSegment::new(10, 0x100, 0x5000).as_bytes(),
            InlineHeader::new(13).as_bytes(),
            &[9; 28],
            DataSegment::new(0, 0x200, 0x6000).as_bytes(),
        ]
        .concat();
        let bytes = wqe(opcode::SEND_IMM, &tail);
        let work = Work::parse(&bytes, 5, 7, Service::Rc).unwrap();
        assert_eq!((work.kind, work.immediate, work.signaled), (Kind::SendImm, 0xcafe, true));
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
    fn the_end_entry_ends_the_list() {
        let tail = [
            DataSegment::new(10, 1, 2).as_bytes(),
            DataSegment::END.as_bytes(),
            DataSegment::new(11, 1, 2).as_bytes(),
        ]
        .concat();
        assert_eq!(segments(&tail, 0).count(), 1);
    }

    #[test]
    fn a_wqe_of_another_place_or_of_no_known_opcode_is_malformed() {
        let bytes = wqe(opcode::SEND, &[]);
        assert!(Work::parse(&bytes, 5, 7, Service::Rc).is_ok());
        assert_eq!(Work::parse(&bytes, 6, 7, Service::Rc), Err(Malformed));
        assert_eq!(Work::parse(&bytes, 5, 8, Service::Rc), Err(Malformed));
        assert_eq!(Work::parse(&wqe(opcode::LSO, &[0; 112]), 5, 7, Service::Rc), Err(Malformed));
        assert_eq!(Work::parse(&wqe(opcode::READ, &[]), 5, 7, Service::Rc), Err(Malformed));
        assert_eq!(
            Work::parse(&wqe(opcode::FETCH_ADD, &[0; 16]), 5, 7, Service::Rc),
            Err(Malformed)
        );
        let long_inline = wqe(opcode::SEND, InlineHeader::new(13).as_bytes());
        let work = Work::parse(&long_inline, 5, 7, Service::Rc).unwrap();
        assert_eq!(segments(&long_inline, work.data).collect::<Vec<_>>(), [Err(Malformed)]);
    }

    proptest! {
        #[test]
        fn random_bytes_are_read_without_a_panic_and_within_bounds(
            bytes in proptest::collection::vec(any::<u8>(), 0..LONGEST)
        ) {
            let word = CtrlSegment::read(&bytes).map_or(CtrlWord::new(), |control| control.control());
            if let Ok(work) = Work::parse(&bytes, word.qpn(), word.wqe_index(), Service::Rc) {
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
