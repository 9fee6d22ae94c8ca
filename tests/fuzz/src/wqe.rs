//! Work requests: nearly valid, wrong, or random.

use arbitrary::Arbitrary;
use verbless_prm::hot::{
    AtomicSegment, CtrlFlags, CtrlSegment, CtrlWord, DataSegment, InlineHeader, InlineWord,
    RaddrSegment, opcode,
};
use verbless_prm::{DatagramSegment, MkeyContext, UmrCtrlSegment, UmrMkeyMask};

use crate::address::{DATA, DATA_BYTES};
use crate::machine::{ObjectKind, ObjectNumbers};
use crate::object::{Q_KEY, RemoteRange, VARIANT};

/// A send WQE.
#[derive(Arbitrary, Debug)]
pub struct Wqe {
    opcode: Opcode,
    /// Bits of the second word: completion, solicited, fence.
    flags: u8,
    immediate: Immediate,
    body: Body,
    data: Vec<Data>,
    /// The control segment is wrong.
    corruption: Option<Corruption>,
}

#[derive(Arbitrary, Debug, Clone, Copy)]
enum Corruption {
    Length(u8),
    Index(u16),
    Qpn(u32),
    OpMod(u8),
    /// A byte at any offset.
    Byte(u8, u8),
}

#[derive(Arbitrary, Debug, Clone, Copy)]
enum Opcode {
    Nop,
    Send,
    SendImm,
    SendInvalidate,
    Write,
    WriteImm,
    Read,
    CompareSwap,
    FetchAdd,
    Umr,
    Other(u8),
}

impl Opcode {
    fn get(self) -> u8 {
        match self {
            Self::Nop => opcode::NOP,
            Self::Send => opcode::SEND,
            Self::SendImm => opcode::SEND_IMM,
            Self::SendInvalidate => opcode::SEND_INVALIDATE,
            Self::Write => opcode::WRITE,
            Self::WriteImm => opcode::WRITE_IMM,
            Self::Read => opcode::READ,
            Self::CompareSwap => opcode::COMPARE_SWAP,
            Self::FetchAdd => opcode::FETCH_ADD,
            Self::Umr => opcode::UMR,
            Self::Other(code) => code,
        }
    }
}

/// A number, or a key.
#[derive(Arbitrary, Debug, Clone, Copy)]
enum Immediate {
    Number(u32),
    Key(u8),
    /// A key of the other function's guest.
    Peer(u8),
}

/// The segments after the control segment.
#[derive(Arbitrary, Debug)]
enum Body {
    /// The segments that the opcode requires.
    Right(Vector, RemoteRange, [u64; 2], Umr),
    /// Nothing.
    None,
    Random(Vec<u8>),
}

/// The key in the address vector.
#[derive(Arbitrary, Debug, Clone, Copy)]
struct Vector {
    compact: bool,
    grh: bool,
    lid: u8,
    qp: u8,
    key: Option<u32>,
    gid: u8,
}

/// The changes of a UMR.
#[derive(Arbitrary, Debug, Clone, Copy)]
struct Umr {
    mask: u64,
    free: bool,
    flags: u8,
    entries: u16,
    offset: u32,
    log_page_size: u8,
    length: u64,
    start: u64,
    rights: u8,
    klm: [u8; 2],
    pd: u8,
}

/// A data segment.
#[derive(Arbitrary, Debug)]
enum Data {
    Memory(RemoteRange),
    Inline { length: u16, fill: u8 },
    End,
    Raw([u8; 16]),
}

/// Sender and receiver of a request.
pub struct Endpoints<'a> {
    pub known: &'a ObjectNumbers,
    pub peer: &'a ObjectNumbers,
    pub qpn: u32,
    pub index: u16,
    pub datagram: bool,
}

impl Wqe {
    /// Its bytes.
    pub fn bytes(&self, endpoints: &Endpoints<'_>) -> Vec<u8> {
        let mut bytes = vec![0; CtrlSegment::BYTES];
        let code = self.opcode.get();
        match &self.body {
            Body::Right(vector, remote, operands, umr) => {
                if endpoints.datagram && code != opcode::NOP {
                    vector.put(endpoints, &mut bytes);
                }
                if (opcode::WRITE..=opcode::WRITE_IMM).contains(&code)
                    || (opcode::READ..=opcode::FETCH_ADD).contains(&code)
                {
                    let rkey = endpoints.peer.pick(ObjectKind::Key, remote.key);
                    bytes.extend(RaddrSegment::new(remote.at.get(), rkey).as_bytes());
                }
                if (opcode::COMPARE_SWAP..=opcode::FETCH_ADD).contains(&code) {
                    bytes.extend(AtomicSegment::new(operands[0], operands[1]).as_bytes());
                }
                if code == opcode::UMR {
                    umr.put(endpoints, &mut bytes);
                }
            }
            Body::None => {}
            Body::Random(random) => bytes.extend(random),
        }
        for data in self.data.iter().take(64) {
            data.put(endpoints, &mut bytes);
        }
        bytes.truncate(63 * 16);
        bytes.resize(bytes.len().next_multiple_of(16), 0);
        let mut word = (endpoints.qpn, endpoints.index, (bytes.len() / 16) as u8, 0);
        match self.corruption {
            Some(Corruption::Length(length)) => word.2 = length,
            Some(Corruption::Index(index)) => word.1 = index,
            Some(Corruption::Qpn(qpn)) => word.0 = qpn,
            Some(Corruption::OpMod(op_mod)) => word.3 = op_mod,
            Some(Corruption::Byte(..)) | None => {}
        }
        let control = CtrlWord::new()
            .with_opmod(word.3)
            .with_wqe_index(word.1)
            .with_opcode(code)
            .with_qpn(word.0 & 0xff_ffff)
            .with_ds(word.2 & 0x3f);
        let immediate = match self.immediate {
            Immediate::Number(number) => number,
            Immediate::Key(index) => endpoints.known.pick(ObjectKind::Key, index),
            Immediate::Peer(index) => endpoints.peer.pick(ObjectKind::Key, index),
        };
        let flags = CtrlFlags::new()
            .with_fm(self.flags >> 5)
            .with_ce(self.flags & 3)
            .with_se(self.flags >> 2 & 1 == 1)
            .with_imm(immediate);
        bytes[..16].copy_from_slice(CtrlSegment::new(control, flags).as_bytes());
        if let Some(Corruption::Byte(at, value)) = self.corruption {
            let at = usize::from(at) % bytes.len();
            bytes[at] = value;
        }
        bytes
    }
}

/// Receive WQEs consist only of data segments.
pub fn receive(data: &[RemoteRange], known: &ObjectNumbers) -> Vec<u8> {
    let segments =
        data.iter().take(4).flat_map(|stretch| segment(stretch, known).as_bytes().to_vec());
    let mut bytes: Vec<u8> = segments.collect();
    if bytes.len() < 64 {
        bytes.extend(DataSegment::END.as_bytes());
    }
    bytes
}

fn segment(stretch: &RemoteRange, known: &ObjectNumbers) -> DataSegment {
    DataSegment::new(stretch.length, known.pick(ObjectKind::Key, stretch.key), stretch.at.get())
}

impl Data {
    fn put(&self, endpoints: &Endpoints<'_>, bytes: &mut Vec<u8>) {
        match self {
            Self::Memory(stretch) => bytes.extend(segment(stretch, endpoints.known).as_bytes()),
            Self::Inline { length, fill } => {
                let length = usize::from(*length) % 0x400;
                let word = InlineWord::new().with_inline(true).with_byte_count(length as u16);
                bytes.extend(InlineHeader::new(word).as_bytes());
                bytes.extend(std::iter::repeat_n(*fill, length));
                bytes.resize(bytes.len().next_multiple_of(16), 0);
            }
            Self::End => bytes.extend(DataSegment::END.as_bytes()),
            Self::Raw(raw) => bytes.extend(raw),
        }
    }
}

impl Vector {
    fn put(&self, endpoints: &Endpoints<'_>, bytes: &mut Vec<u8>) {
        let mut vector = DatagramSegment::zeroed();
        let qpn = match self.qp {
            index @ 0..0xf0 => endpoints.peer.pick(ObjectKind::Qp, index),
            other => (other & 1).into(),
        };
        vector.set_ext(!self.compact).set_dqp_dct(qpn).set_q_key(self.key.unwrap_or(Q_KEY));
        vector.set_grh(self.grh).set_hop_limit(64);
        // Four LIDs that exist or are close to one that does, the multicast LIDs, or forced
        // loopback.
        match self.lid {
            lid @ 0..0xf0 => vector.set_rlid(u16::from(lid) % 4),
            0xf0..0xf8 => vector.set_rlid(0xc000 | u16::from(self.lid)),
            _ => vector.set_fl(true),
        };
        let mut gid = [0; 16];
        (gid[0], gid[15]) = (0xff, self.gid % 2);
        vector.set_rgid(&gid);
        let length = if self.compact { 16 } else { DatagramSegment::BYTES };
        bytes.extend(&vector.as_bytes()[..length]);
    }
}

impl Umr {
    fn put(&self, endpoints: &Endpoints<'_>, bytes: &mut Vec<u8>) {
        let mut control = UmrCtrlSegment::zeroed();
        control.as_bytes_mut()[0] = self.flags;
        // Most bits belong to no field: they are nearly always masked out.
        let known = UmrMkeyMask::INFO.values.iter().fold(0, |mask, (_, bit)| mask | bit);
        let mask = if self.mask >> 62 == 3 { self.mask } else { self.mask & known };
        control.set_mkey_mask(mask).set_xlt_octowords(self.entries & 0xfc);
        control.set_xlt_offset(self.offset as u16 & 0xff);
        if self.offset >> 30 == 3 {
            control.set_xlt_offset_47_16(self.offset >> 8).set_xlt_octowords(self.entries);
        }
        bytes.extend(control.as_bytes());
        let mut context = MkeyContext::zeroed();
        context.set_free(self.free).set_mkey_7_0(VARIANT).set_qpn(0xff_ffff);
        context.set_lr(self.rights & 1 == 0).set_lw(self.rights & 2 == 0);
        context.set_rr(self.rights & 4 == 0).set_rw(self.rights & 8 == 0);
        context.set_a(self.rights & 16 == 0).set_pd(endpoints.known.pick(ObjectKind::Pd, self.pd));
        let sane = self.rights & 32 == 0;
        context.set_start_addr(if sane { DATA } else { self.start });
        context.set_len(if sane { self.length % DATA_BYTES } else { self.length });
        context.set_log_page_size(if sane { 12 } else { self.log_page_size % 64 });
        bytes.extend(context.as_bytes());
        if control.inline() {
            let key = endpoints.known.pick(ObjectKind::Key, self.klm[0]);
            for entry in 0..u32::from(self.entries & 0xfc).min(32) {
                match self.klm[1] & 1 {
                    0 => {
                        bytes.extend(0x1000_u32.to_be_bytes());
                        bytes.extend(key.to_be_bytes());
                        bytes.extend((DATA + u64::from(entry) * 16).to_be_bytes());
                    }
                    _ => {
                        bytes.extend((DATA | 3).to_be_bytes());
                        bytes.extend((DATA + 0x1000 | 3).to_be_bytes());
                    }
                }
            }
        }
    }
}
