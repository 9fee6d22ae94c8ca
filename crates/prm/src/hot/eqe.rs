//! Event queue entries.
//!
//! An entry belongs to software when its owner bit equals bit `log_eq_size` of the consumer index. User space has no
//! EQs of its own under DevX: the kernel reads them, and hands the entry on through a channel. Source: Linux
//! `include/linux/mlx5/device.h`.

use zerocopy::big_endian::{U16, U32};

use super::format;

/// Values of `type` in an EQE.
pub mod event_type {
    /// Completions on an armed CQ.
    pub const COMPLETION: u8 = 0x00;
    /// Alternate path taken.
    pub const PATH_MIGRATED: u8 = 0x01;
    /// First packet of a connection arrived.
    pub const COMMUNICATION_ESTABLISHED: u8 = 0x02;
    /// The send queue is drained.
    pub const SQ_DRAINED: u8 = 0x03;
    /// A CQ failed: overrun or access.
    pub const CQ_ERROR: u8 = 0x04;
    /// A work queue failed.
    pub const WQ_CATASTROPHIC: u8 = 0x05;
    /// Alternate path could not be taken.
    pub const PATH_MIGRATION_FAILED: u8 = 0x07;
    /// The device itself failed.
    pub const INTERNAL_ERROR: u8 = 0x08;
    /// A port changed its state.
    pub const PORT_CHANGE: u8 = 0x09;
    /// A command completed.
    pub const COMMAND: u8 = 0x0a;
    /// The device asks for pages, or gives them back.
    pub const PAGE_REQUEST: u8 = 0x0b;
    /// On-demand paging fault.
    pub const PAGE_FAULT: u8 = 0x0c;
    /// NIC vport context changed.
    pub const NIC_VPORT_CHANGE: u8 = 0x0d;
    /// A request of the peer was invalid.
    pub const WQ_INVALID_REQUEST: u8 = 0x10;
    /// A request of the peer was refused.
    pub const WQ_ACCESS_ERROR: u8 = 0x11;
    /// A shared receive queue failed.
    pub const SRQ_CATASTROPHIC: u8 = 0x12;
    /// The last WQE of a shared receive queue was reached by a QP in error.
    pub const SRQ_LAST_WQE: u8 = 0x13;
    /// A shared receive queue fell below its limit.
    pub const SRQ_LIMIT: u8 = 0x14;
    /// A DCT has been drained.
    pub const DCT_DRAINED: u8 = 0x1c;
    /// A DC access key did not match.
    pub const DCT_KEY_VIOLATION: u8 = 0x1d;
    /// General event, by sub-type.
    pub const GENERAL: u8 = 0x22;
    /// A general object changed.
    pub const OBJECT_CHANGE: u8 = 0x27;
}

format! {
    /// An event queue entry.
    pub struct Eqe[64] {
        /// Zero.
        pub reserved0: u8,
        /// One of [`event_type`].
        pub event_type: u8,
        /// Zero.
        pub reserved1: u8,
        /// Detail of the type.
        pub sub_type: u8,
        /// Zero.
        pub reserved2: [u8; 28],
        /// By type: [`EventCompletion`], [`EventQueue`], [`EventCqError`], [`EventPort`].
        pub data: [u8; 28],
        /// Zero.
        pub reserved3: U16,
        /// Signature of the entry.
        pub signature: u8,
        /// Owner bit, bit 0. Written last, read first.
        pub owner: u8,
    }
}

format! {
    /// Event data of [`event_type::COMPLETION`].
    pub struct EventCompletion[28] {
        /// Zero.
        pub reserved: [u8; 24],
        /// The CQ, bits 23:0.
        pub cqn: U32,
    }
}

format! {
    /// Event data of the QP, RQ, SQ and SRQ events.
    pub struct EventQueue[28] {
        /// Zero.
        pub reserved0: [u8; 20],
        /// What the number is: 0 QP or SRQ, 1 RQ or RMP, 2 SQ.
        pub queue_type: u8,
        /// Zero.
        pub reserved1: [u8; 3],
        /// Its number, bits 23:0.
        pub number: U32,
    }
}

format! {
    /// Event data of [`event_type::CQ_ERROR`].
    pub struct EventCqError[28] {
        /// The CQ, bits 23:0.
        pub cqn: U32,
        /// Zero.
        pub reserved0: [u8; 7],
        /// 1: overrun, 2: access violation.
        pub syndrome: u8,
        /// Zero.
        pub reserved1: [u8; 16],
    }
}

format! {
    /// Event data of [`event_type::PORT_CHANGE`].
    pub struct EventPort[28] {
        /// Zero.
        pub reserved0: [u8; 8],
        /// Port number in bits 7:4.
        pub port: u8,
        /// Zero.
        pub reserved1: [u8; 19],
    }
}
