//! InfiniBand packets of a hostile peer, from nearly valid to wrong. The input chooses whether the
//! ICRC is computed, because no fuzzer guesses it.

use arbitrary::Arbitrary;
use verbless_prm::BthOpcode;
use verbless_wire::{Message, Opcode, Position, Service, seal_infiniband};

use crate::machine::{ObjectKind, ObjectNumbers};
use crate::object::{Q_KEY, RemoteRange};

/// A packet for a QP.
#[derive(Arbitrary, Debug)]
pub struct Frame {
    opcode: Code,
    /// The solicited bit, and the AckReq bit.
    flags: u8,
    /// P_Key; `None`: the default.
    pkey: Option<u16>,
    /// Distance from the next PSN; `None`: the next PSN.
    psn: Option<i8>,
    /// Address and key in RETH and AtomicETH.
    remote: RemoteRange,
    /// The length in the RETH is that of the payload.
    reth_length_matches: bool,
    operands: [u64; 2],
    /// In the AETH: ACK, RNR NAK or NAK.
    syndrome: u8,
    /// Q_Key of a UD packet; `None`: the valid one.
    qkey: Option<u32>,
    /// The immediate; for SEND with invalidate, the index of the invalidated rkey.
    immediate: u32,
    payload: u16,
    fill: u8,
    /// Changes of bytes before the ICRC is computed: offset and XOR mask.
    flips: Vec<(u8, u8)>,
    /// The ICRC is valid; otherwise it is 0.
    sealed: bool,
}

/// An opcode: of the QP's own service, or any.
#[derive(Arbitrary, Debug, Clone, Copy)]
enum Code {
    Own(u8),
    Any(u8),
}

/// Sender and receiver of a packet.
pub struct Ends<'a> {
    /// LIDs of the sender and of the receiver.
    pub lids: [u16; 2],
    pub qpn: u32,
    /// Bits 7:5 of the opcodes of the QP's service.
    pub service: u8,
    /// The next PSN.
    pub psn: u32,
    /// The receiver, whose keys the packet names.
    pub known: &'a ObjectNumbers,
}

/// Bytes of the longest payload.
const MAX_PAYLOAD_BYTES: u16 = 4096;

impl Frame {
    /// The packet's bytes, and whether it has the next PSN.
    pub fn bytes(&self, ends: &Ends<'_>) -> (Vec<u8>, bool) {
        let code = match self.opcode {
            Code::Own(code) => ends.service << 5 | code & 0x1f,
            Code::Any(code) => code,
        };
        let opcode = Opcode::of(BthOpcode(code));
        let carries = opcode.is_some_and(Opcode::has_payload);
        let length = if carries { self.payload % (MAX_PAYLOAD_BYTES + 1) } else { 0 };
        let pad = length.wrapping_neg() & 3;
        let mut rest = Vec::new();
        if let Some(opcode) = opcode {
            self.extend(opcode, ends, length, &mut rest);
        }
        rest.resize(rest.len() + usize::from(length), self.fill);
        rest.resize(rest.len() + usize::from(pad) + 4, 0);

        let psn = ends.psn.wrapping_add(self.psn.unwrap_or(0) as u32) & 0xff_ffff;
        let pkey = self.pkey.unwrap_or(0xffff).to_be_bytes();
        let mut bytes = vec![0, 2];
        bytes.extend(ends.lids[1].to_be_bytes());
        bytes.extend((((8 + 12 + rest.len()) / 4) as u16).to_be_bytes());
        bytes.extend(ends.lids[0].to_be_bytes());
        bytes.extend([code, self.flags & 0x80 | (pad as u8) << 4, pkey[0], pkey[1]]);
        bytes.extend((ends.qpn & 0xff_ffff).to_be_bytes());
        bytes.extend((u32::from(self.flags & 1) << 31 | psn).to_be_bytes());
        bytes.extend(rest);
        for (at, by) in self.flips.iter().take(3) {
            // Only headers are worth changing.
            let at = usize::from(*at) % bytes.len().min(64);
            bytes[at] ^= by;
        }
        if self.sealed {
            let _ = seal_infiniband(&mut bytes);
        }
        (bytes, self.psn.is_none())
    }

    /// The headers after the BTH.
    fn extend(&self, opcode: Opcode, ends: &Ends<'_>, length: u16, into: &mut Vec<u8>) {
        let key = ends.known.pick(ObjectKind::Key, self.remote.key).to_be_bytes();
        let begins = matches!(opcode.position, Position::First | Position::Only);
        if opcode.service == Service::Ud {
            into.extend(self.qkey.unwrap_or(Q_KEY).to_be_bytes());
            into.extend((ends.qpn & 0xff_ffff).to_be_bytes());
        }
        match opcode.message {
            Message::Write if !begins => {}
            Message::Write | Message::ReadRequest => {
                into.extend(self.remote.at.get().to_be_bytes());
                into.extend(key);
                let length =
                    if self.reth_length_matches { u32::from(length) } else { self.remote.length };
                into.extend(length.to_be_bytes());
            }
            Message::CompareSwap | Message::FetchAdd => {
                into.extend(self.remote.at.get().to_be_bytes());
                into.extend(key);
                self.operands.iter().for_each(|it| into.extend(it.to_be_bytes()));
            }
            Message::Acknowledge | Message::AtomicAcknowledge => {
                into.extend(u32::from(self.syndrome).rotate_right(8).to_be_bytes());
                if opcode.message == Message::AtomicAcknowledge {
                    into.extend(self.operands[0].to_be_bytes());
                }
            }
            Message::ReadResponse if opcode.position != Position::Middle => {
                into.extend(u32::from(self.syndrome).rotate_right(8).to_be_bytes());
            }
            _ => {}
        }
        if opcode.immediate {
            into.extend(self.immediate.to_be_bytes());
        }
        if opcode.invalidate {
            into.extend(ends.known.pick(ObjectKind::Key, self.immediate as u8).to_be_bytes());
        }
    }
}
