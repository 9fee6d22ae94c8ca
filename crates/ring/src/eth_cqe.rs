//! The description of a received frame in its CQE.

use core::fmt;
use core::mem::offset_of;

use verbless_prm::hot::{self, CqeFrame, CqePath, CqeSourceLid, OpcodeQpn, cqe_format, cqe_opcode};
use verbless_prm::{CqeHashIp, CqeHashL4, CqeL3Type, CqeL4Type};

use crate::cq::Cqe;
use crate::ring::CqeView;
use crate::types::Be32;

/// The network header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L3Type {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// The transport header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L4Type {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// The receive hash of a frame (RSS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RssHash {
    /// The hash.
    pub value: u32,
    /// The network header whose addresses were hashed.
    pub l3_type: Option<L3Type>,
    /// The transport header whose ports were hashed.
    pub l4_type: Option<L4Type>,
}

/// The words of a CQE that describe a frame, except its length, in the byte order of the CQE.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct EthCqeWords {
    frame: u32,
    hash: u32,
    hash_types: u32,
    checksum: u32,
}

impl EthCqeWords {
    /// Reads the words from the ring, after the barrier of [`RequestId::read`].
    #[inline(always)]
    pub(crate) fn read(view: &CqeView<'_>) -> Self {
        Self {
            frame: view.dword::<{ offset_of!(hot::Cqe, cqe_frame) }>(),
            hash: view.dword::<{ offset_of!(hot::Cqe, rx_hash_result) }>(),
            hash_types: view.dword::<{ offset_of!(hot::Cqe, cqe_path) }>(),
            checksum: view.dword::<{ offset_of!(hot::Cqe, cqe_source_lid) }>(),
        }
    }
}

/// A received frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ReceivedFrame {
    /// The cookie that the frame's memory was posted with.
    pub cookie: u64,
    // In the byte order of the CQE; converted when read.
    pub(crate) byte_count: u32,
    /// An [`OpcodeQpn`] with the flow tag in place of the QPN.
    pub(crate) opcode_qpn: Be32,
    pub(crate) immediate: u32,
    pub(crate) words: EthCqeWords,
}

impl ReceivedFrame {
    /// Length of the frame in bytes, from the destination address on; without the frame check
    /// sequence unless the queue keeps it, and without a VLAN tag that was stripped
    /// ([`ReceivedFrame::vlan`]).
    #[inline(always)]
    pub const fn byte_len(&self) -> u32 {
        u32::from_be(self.byte_count)
    }

    /// The tag of the flow rule that matched, 24 bits; 0 if the rule has none.
    #[inline(always)]
    pub const fn flow_tag(&self) -> u32 {
        OpcodeQpn::from_bits(self.opcode_qpn.get()).qpn()
    }

    /// The value that a flow rule wrote to the frame's metadata register, if the device reports it.
    pub const fn metadata(&self) -> u32 {
        u32::from_be(self.immediate)
    }

    const fn frame(&self) -> CqeFrame {
        CqeFrame::from_raw(self.words.frame)
    }

    /// Whether the Ethernet frame is valid.
    #[inline(always)]
    pub const fn l2_ok(&self) -> bool {
        self.frame().l2_ok()
    }

    /// Whether there is a valid IP header (for IPv4, with the right checksum).
    #[inline(always)]
    pub const fn l3_ok(&self) -> bool {
        self.frame().l3_ok()
    }

    /// Whether there is a TCP or UDP header and its checksum is right.
    #[inline(always)]
    pub const fn l4_ok(&self) -> bool {
        self.frame().l4_ok()
    }

    /// The frame's network header; `None` if it is not IP.
    pub const fn l3_type(&self) -> Option<L3Type> {
        match CqeL3Type(self.frame().l3_hdr_type()) {
            CqeL3Type::IPV4 => Some(L3Type::Ipv4),
            CqeL3Type::IPV6 => Some(L3Type::Ipv6),
            _ => None,
        }
    }

    /// The frame's transport header; `None` if it is neither TCP nor UDP.
    pub const fn l4_type(&self) -> Option<L4Type> {
        match CqeL4Type(self.frame().l4_hdr_type()) {
            CqeL4Type::UDP => Some(L4Type::Udp),
            CqeL4Type::TCP_NO_ACK | CqeL4Type::TCP_ACK_NO_DATA | CqeL4Type::TCP_ACK_AND_DATA => {
                Some(L4Type::Tcp)
            }
            _ => None,
        }
    }

    /// The VLAN tag that was stripped: priority, DEI, number.
    pub const fn vlan(&self) -> Option<u16> {
        let frame = self.frame();
        if frame.has_vlan() { Some(frame.vlan_info()) } else { None }
    }

    /// The ones' complement sum over the packet after the Ethernet header, if the device computes
    /// it.
    pub const fn checksum(&self) -> u16 {
        CqeSourceLid::from_raw(self.words.checksum).check_sum()
    }

    /// The receive hash, if one was computed.
    pub const fn hash(&self) -> Option<RssHash> {
        let types = CqePath::from_raw(self.words.hash_types);
        let l3_type = match CqeHashIp(types.rx_hash_ip()) {
            CqeHashIp::IPV4 => Some(L3Type::Ipv4),
            CqeHashIp::IPV6 => Some(L3Type::Ipv6),
            _ => None,
        };
        let l4_type = match CqeHashL4(types.rx_hash_l4()) {
            CqeHashL4::TCP => Some(L4Type::Tcp),
            CqeHashL4::UDP => Some(L4Type::Udp),
            _ => None,
        };
        if l3_type.is_none() && l4_type.is_none() {
            return None;
        }
        Some(RssHash { value: u32::from_be(self.words.hash), l3_type, l4_type })
    }
}

impl fmt::Debug for ReceivedFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceivedFrame")
            .field("cookie", &self.cookie)
            .field("byte_len", &self.byte_len())
            .field("flow_tag", &self.flow_tag())
            .field("l2_ok", &self.l2_ok())
            .field("network", &self.l3_type())
            .field("l3_ok", &self.l3_ok())
            .field("transport", &self.l4_type())
            .field("l4_ok", &self.l4_ok())
            .field("vlan", &self.vlan())
            .field("hash", &self.hash())
            .finish_non_exhaustive()
    }
}

/// A CQE with the words that describe a frame, copied from the ring of a completion queue of
/// several queues. The contents are unchecked.
#[derive(Debug, PartialEq, Eq)]
pub struct EthCqe {
    pub(crate) cqe: Cqe,
    pub(crate) words: EthCqeWords,
}

impl fmt::Debug for EthCqeWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", CqeFrame::from_raw(self.frame))
    }
}

impl EthCqe {
    /// The CQE: whether it completes a receive, and the user index of its queue.
    pub fn cqe(&self) -> &Cqe {
        &self.cqe
    }

    /// The CQE for its send queue or [`SharedReceiveQueue`](crate::SharedReceiveQueue). It does not
    /// describe a received frame: call [`EthCqe::frame`] first.
    pub fn into_cqe(self) -> Cqe {
        self.cqe
    }

    /// The frame that the CQE reports, with the caller's cookie; `None` if it reports none.
    pub fn frame(&self, cookie: u64) -> Option<ReceivedFrame> {
        let good = self.cqe.opcode() == cqe_opcode::RESPONDER_SEND;
        (good && self.cqe.format() != cqe_format::COMPRESSED).then(|| ReceivedFrame {
            cookie,
            byte_count: self.cqe.byte_count().to_be(),
            opcode_qpn: self.cqe.request().opcode_qpn,
            immediate: self.cqe.immediate().to_be(),
            words: self.words,
        })
    }
}
