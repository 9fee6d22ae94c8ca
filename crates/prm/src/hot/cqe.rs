//! Completion queue entries: the 64-byte entry, its error form, and the compressed ones.
//!
//! An entry belongs to software when its owner bit equals bit `log_cq_size` of the consumer index and its opcode is
//! not [`cqe_opcode::INVALID`]. In a CQ of 128-byte entries the 64 bytes described here are the second half. Sources:
//! Linux `include/linux/mlx5/device.h`, rdma-core `mlx5dv.h`, recorded CQEs.

use bitfield_struct::bitfield;
use zerocopy::big_endian::{U16, U32, U64};

use super::format;

/// Values of `opcode` in a CQE's last byte.
pub mod cqe_opcode {
    /// A send request completed.
    pub const REQUESTER: u8 = 0x0;
    /// A WRITE with immediate arrived and took a receive.
    pub const RESPONDER_WRITE_IMM: u8 = 0x1;
    /// A SEND arrived.
    pub const RESPONDER_SEND: u8 = 0x2;
    /// A SEND with immediate arrived.
    pub const RESPONDER_SEND_IMM: u8 = 0x3;
    /// A SEND with invalidate arrived.
    pub const RESPONDER_SEND_INVALIDATE: u8 = 0x4;
    /// The CQ was resized; the next entry is in the new buffer.
    pub const RESIZE: u8 = 0x5;
    /// No packet: tag matching, DPA.
    pub const NO_PACKET: u8 = 0x6;
    /// A signature did not match.
    pub const SIGNATURE_ERROR: u8 = 0xc;
    /// A send request failed.
    pub const REQUESTER_ERROR: u8 = 0xd;
    /// A receive failed.
    pub const RESPONDER_ERROR: u8 = 0xe;
    /// Never written by the device: marks an entry as still empty.
    pub const INVALID: u8 = 0xf;
}

/// Values of `format` in a CQE's last byte.
pub mod cqe_format {
    /// The entry holds no data.
    pub const PLAIN: u8 = 0;
    /// Up to 32 bytes of data in the entry's first half.
    pub const INLINE_32: u8 = 1;
    /// Up to 64 bytes of data in the 64 bytes before the entry.
    pub const INLINE_64: u8 = 2;
    /// An array of [`MiniCqe`](super::MiniCqe).
    pub const COMPRESSED: u8 = 3;
}

/// Values of `syndrome` in an error CQE.
pub mod cqe_syndrome {
    /// A message longer than the receive, or a bad length of ours.
    pub const LOCAL_LENGTH: u8 = 0x01;
    /// The QP could not do it: bad WQE, bad opcode, bad state.
    pub const LOCAL_QP_OPERATION: u8 = 0x02;
    /// A local key, its PD, its bounds or its rights.
    pub const LOCAL_PROTECTION: u8 = 0x04;
    /// The QP went to the error state before this request ran.
    pub const FLUSHED: u8 = 0x05;
    /// A memory window could not be bound.
    pub const MEMORY_WINDOW_BIND: u8 = 0x06;
    /// The peer answered with something that it should not.
    pub const BAD_RESPONSE: u8 = 0x10;
    /// The responder could not access its own memory.
    pub const LOCAL_ACCESS: u8 = 0x11;
    /// The peer found the request invalid.
    pub const REMOTE_INVALID_REQUEST: u8 = 0x12;
    /// The peer refused the access: rkey, PD, bounds or rights.
    pub const REMOTE_ACCESS: u8 = 0x13;
    /// The peer failed while it served the request.
    pub const REMOTE_OPERATION: u8 = 0x14;
    /// No answer in time, too often.
    pub const TRANSPORT_RETRY_EXCEEDED: u8 = 0x15;
    /// The peer had no receive, too often.
    pub const RNR_RETRY_EXCEEDED: u8 = 0x16;
    /// The peer aborted.
    pub const REMOTE_ABORTED: u8 = 0x22;
}

/// The last byte of a CQE: what it is, and whose.
#[bitfield(u8, order = Msb)]
#[derive(PartialEq, Eq)]
pub struct OpOwn {
    /// One of [`cqe_opcode`].
    #[bits(4)]
    pub opcode: u8,
    /// One of [`cqe_format`].
    #[bits(2)]
    pub format: u8,
    /// Solicited.
    pub se: bool,
    /// Owner bit.
    pub owner: bool,
}

/// `sop_drop_qpn`, or `s_wqe_opcode_qpn` of an error CQE.
#[bitfield(u32, order = Msb)]
#[derive(PartialEq, Eq)]
pub struct OpcodeQpn {
    /// Opcode of the send WQE (requester CQEs).
    pub wqe_opcode: u8,
    /// The QP that the WQE was posted to.
    #[bits(24)]
    pub qpn: u32,
}

format! {
    /// A completion queue entry.
    pub struct Cqe[64] {
        /// Flow tag and hashing words; with inline data, data. Not described here.
        pub reserved0: [u8; 2],
        /// WQE of a striding or shared receive queue.
        pub wqe_id: U16,
        /// LRO and RSS words. Not described here.
        pub reserved1: [u8; 13],
        /// Source path bits.
        pub ml_path: u8,
        /// Checksums. Not described here.
        pub reserved2: [u8; 4],
        /// Source LID.
        pub slid: U16,
        /// Bits 30:28 of flags: GRH and multicast; 23:0 the peer's QP (UD).
        pub flags_rqpn: U32,
        /// Header and checksum flags.
        pub hds_ip_ext: u8,
        /// L3 and L4 types.
        pub l4_hdr_type_etc: u8,
        /// VLAN tag.
        pub vlan_info: U16,
        /// The user index of the queue (CQE version 1), or the SRQ (version 0), bits 23:0.
        pub srqn_uidx: U32,
        /// Immediate, invalidated rkey, or P_Key.
        pub imm_inval_pkey: U32,
        /// Application (tag matching).
        pub app: u8,
        /// Its operation.
        pub app_op: u8,
        /// Its data.
        pub app_info: U16,
        /// Bytes received or read.
        pub byte_cnt: U32,
        /// Free-running clock or real time, by the CQ's setting.
        pub timestamp: U64,
        /// An [`OpcodeQpn`].
        pub sop_drop_qpn: U32,
        /// Index of the WQE's first WQEBB, modulo 65536.
        pub wqe_counter: U16,
        /// Signature of the CQE.
        pub signature: u8,
        /// An [`OpOwn`]. Written last, read first.
        pub op_own: u8,
    }
}

impl Cqe {
    /// The last byte, unpacked.
    pub const fn op_own(&self) -> OpOwn {
        OpOwn::from_bits(self.op_own)
    }

    /// WQE opcode and QP, unpacked.
    pub const fn opcode_qpn(&self) -> OpcodeQpn {
        OpcodeQpn::from_bits(self.sop_drop_qpn.get())
    }
}

format! {
    /// A completion queue entry whose opcode is an error.
    pub struct ErrCqe[64] {
        /// Not described here.
        pub reserved0: [u8; 32],
        /// As in [`Cqe`].
        pub srqn_uidx: U32,
        /// Not described here.
        pub reserved1: [u8; 18],
        /// The vendor's finer reason; its values are not public.
        pub vendor_err_synd: u8,
        /// One of [`cqe_syndrome`].
        pub syndrome: u8,
        /// An [`OpcodeQpn`].
        pub s_wqe_opcode_qpn: U32,
        /// Index of the WQE's first WQEBB, modulo 65536.
        pub wqe_counter: U16,
        /// Signature of the CQE.
        pub signature: u8,
        /// An [`OpOwn`].
        pub op_own: u8,
    }
}

impl ErrCqe {
    /// The last byte, unpacked.
    pub const fn op_own(&self) -> OpOwn {
        OpOwn::from_bits(self.op_own)
    }

    /// WQE opcode and QP, unpacked.
    pub const fn opcode_qpn(&self) -> OpcodeQpn {
        OpcodeQpn::from_bits(self.s_wqe_opcode_qpn.get())
    }
}

format! {
    /// One completion in a compressed CQE, which holds up to eight.
    pub struct MiniCqe[8] {
        /// RSS hash; or checksum and stride index; or WQE counter 31:16 and WQE opcode 15:8.
        pub info: U32,
        /// Bytes received or read.
        pub byte_cnt: U32,
    }
}

impl MiniCqe {
    /// `info` of a requester: index of the WQE's first WQEBB, modulo 65536.
    pub const fn wqe_counter(&self) -> u16 {
        (self.info.get() >> 16) as u16
    }

    /// `info` of a requester: opcode of the send WQE.
    pub const fn wqe_opcode(&self) -> u8 {
        (self.info.get() >> 8) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    #[test]
    fn fields_stand_where_linux_puts_them() {
        assert_eq!(offset_of!(Cqe, ml_path), 0x11);
        assert_eq!(offset_of!(Cqe, flags_rqpn), 0x18);
        assert_eq!(offset_of!(Cqe, srqn_uidx), 0x20);
        assert_eq!(offset_of!(Cqe, imm_inval_pkey), 0x24);
        assert_eq!(offset_of!(Cqe, byte_cnt), 0x2c);
        assert_eq!(offset_of!(Cqe, timestamp), 0x30);
        assert_eq!(offset_of!(Cqe, wqe_counter), 0x3c);
        assert_eq!(offset_of!(ErrCqe, vendor_err_synd), 0x36);
        assert_eq!(offset_of!(ErrCqe, syndrome), 0x37);
        assert_eq!(offset_of!(ErrCqe, s_wqe_opcode_qpn), 0x38);
    }

    #[test]
    fn the_last_byte_unpacks_into_opcode_format_and_owner() {
        let op_own = OpOwn::from_bits(0x25);
        assert_eq!(op_own.opcode(), cqe_opcode::RESPONDER_SEND);
        assert_eq!(op_own.format(), cqe_format::INLINE_32);
        assert!(op_own.owner() && !op_own.se());
    }
}
