//! Receiving Ethernet frames: what a CQE says of one, and the queue that they arrive in.
//!
//! A raw receive queue is a [`ReceiveQueue`] whose CQEs are others than a queue pair's: the flow
//! tag of the rule that led to the queue stands where a queue pair has its number, and the user
//! index alone tells which queue it is. So CQEs of frames are taken with their words
//! ([`FrameReceiver::poll`], [`CompletionQueue::poll_frame`]), and cleaned by user index
//! ([`CqCleaner::clean_frames`](crate::CqCleaner::clean_frames)).
//!
//! ```no_run
//! # fn f(mut frames: verbless_ring::FrameReceiver, mut cq: verbless_ring::CompletionQueue,
//! #      buffer: verbless_ring::Sge) -> Result<(), Box<dyn std::error::Error>> {
//! frames.post(buffer, 7)?;
//! while let Some(frame) = frames.poll(&mut cq) {
//!     let frame = frame?;
//!     println!("{} bytes in buffer {}", frame.byte_len(), frame.cookie);
//! }
//! # Ok(())
//! # }
//! ```

use core::fmt;

use verbless_prm::hot::{
    self, CqeFrame, CqePath, CqeSourceLid, CqeUserIndex, OpcodeQpn, cqe_format, cqe_opcode,
};
use verbless_prm::{CqeHashIp, CqeHashL4, CqeL3Type, CqeL4Type};

use crate::completion::{Completion, CompletionError, Malformed, malformed};
use crate::cq::{CompletionQueue, Cqe, RequestId};
use crate::dispatch::Completes;
use crate::qp::{ReceiveBatch, ReceiveQueue};
use crate::ring::{LayoutError, Look};
use crate::types::{Be32, Qpn, WqeIndex};
use crate::wr::{Gather, PostError};

/// The network header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// The transport header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// What the device hashed of a frame (RSS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveHash {
    /// The hash.
    pub value: u32,
    /// The network header whose addresses were hashed.
    pub network: Option<Network>,
    /// The transport header whose ports were hashed.
    pub transport: Option<Transport>,
}

/// The words of a CQE that describe a frame, except its length, in the byte order of the CQE.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FrameWords {
    frame: u32,
    hash: u32,
    hash_types: u32,
    checksum: u32,
}

impl FrameWords {
    /// Reads the words from the ring, after the barrier of [`RequestId::read`].
    #[inline(always)]
    fn read(look: &Look<'_>) -> Self {
        Self {
            frame: look.dword::<{ CqeFrame::AT }>(),
            hash: look.dword::<{ hot::Cqe::RX_HASH_RESULT_AT }>(),
            hash_types: look.dword::<{ CqePath::AT }>(),
            checksum: look.dword::<{ CqeSourceLid::AT }>(),
        }
    }
}

/// A frame that arrived.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ReceivedFrame {
    /// The cookie with which the frame's memory was posted.
    pub cookie: u64,
    // As they stand in the CQE: what nobody asks for is not converted.
    byte_count: u32,
    /// An [`OpcodeQpn`], with the flow tag in the number's place.
    opcode_qpn: Be32,
    immediate: u32,
    words: FrameWords,
}

impl ReceivedFrame {
    /// Length of the frame in bytes, from the destination address on; without the frame check
    /// sequence unless the queue keeps it, and without a VLAN tag that was stripped
    /// ([`ReceivedFrame::vlan`]).
    #[inline(always)]
    pub const fn byte_len(&self) -> u32 {
        u32::from_be(self.byte_count)
    }

    /// The tag of the flow rule that led to the queue, 24 bits; 0 of a rule without one.
    #[inline(always)]
    pub const fn flow_tag(&self) -> u32 {
        OpcodeQpn::from_bits(self.opcode_qpn.get()).qpn()
    }

    /// The value that a flow rule wrote into the frame's metadata register, where the device
    /// reports it.
    pub const fn metadata(&self) -> u32 {
        u32::from_be(self.immediate)
    }

    const fn frame(&self) -> CqeFrame {
        CqeFrame::from_be(self.words.frame)
    }

    /// Whether the Ethernet frame is sound.
    #[inline(always)]
    pub const fn l2_ok(&self) -> bool {
        self.frame().l2_ok()
    }

    /// Whether there is a valid IP header: that of IPv4 has the right checksum.
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
    pub const fn network(&self) -> Option<Network> {
        match CqeL3Type(self.frame().l3_hdr_type()) {
            CqeL3Type::IPV4 => Some(Network::Ipv4),
            CqeL3Type::IPV6 => Some(Network::Ipv6),
            _ => None,
        }
    }

    /// The frame's transport header; `None` if it is neither TCP nor UDP.
    pub const fn transport(&self) -> Option<Transport> {
        match CqeL4Type(self.frame().l4_hdr_type()) {
            CqeL4Type::UDP => Some(Transport::Udp),
            CqeL4Type::TCP_NO_ACK | CqeL4Type::TCP_ACK_NO_DATA | CqeL4Type::TCP_ACK_AND_DATA => {
                Some(Transport::Tcp)
            }
            _ => None,
        }
    }

    /// The VLAN tag that was stripped: priority, DEI, number.
    pub const fn vlan(&self) -> Option<u16> {
        let frame = self.frame();
        if frame.has_vlan() { Some(frame.vlan_info()) } else { None }
    }

    /// The ones' complement sum over the packet behind the Ethernet header, where the device makes
    /// one.
    pub const fn checksum(&self) -> u16 {
        CqeSourceLid::from_be(self.words.checksum).check_sum()
    }

    /// The receive hash, if one was computed.
    pub const fn hash(&self) -> Option<ReceiveHash> {
        let types = CqePath::from_be(self.words.hash_types);
        let network = match CqeHashIp(types.rx_hash_ip()) {
            CqeHashIp::IPV4 => Some(Network::Ipv4),
            CqeHashIp::IPV6 => Some(Network::Ipv6),
            _ => None,
        };
        let transport = match CqeHashL4(types.rx_hash_l4()) {
            CqeHashL4::TCP => Some(Transport::Tcp),
            CqeHashL4::UDP => Some(Transport::Udp),
            _ => None,
        };
        if network.is_none() && transport.is_none() {
            return None;
        }
        Some(ReceiveHash { value: u32::from_be(self.words.hash), network, transport })
    }
}

impl fmt::Debug for ReceivedFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceivedFrame")
            .field("cookie", &self.cookie)
            .field("byte_len", &self.byte_len())
            .field("flow_tag", &self.flow_tag())
            .field("l2_ok", &self.l2_ok())
            .field("network", &self.network())
            .field("l3_ok", &self.l3_ok())
            .field("transport", &self.transport())
            .field("l4_ok", &self.l4_ok())
            .field("vlan", &self.vlan())
            .field("hash", &self.hash())
            .finish_non_exhaustive()
    }
}

/// A CQE with the words that describe a frame, copied out of the ring of a completion queue that
/// several queues report to. The contents are as the device wrote them, unchecked.
#[derive(Debug, PartialEq, Eq)]
pub struct FrameCqe {
    cqe: Cqe,
    words: FrameWords,
}

impl fmt::Debug for FrameWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", CqeFrame::from_be(self.frame))
    }
}

impl FrameCqe {
    /// The CQE itself: whether it is of a receive, and the user index of its queue.
    pub fn cqe(&self) -> &Cqe {
        &self.cqe
    }

    /// The CQE as the send queue that it came from takes it, or a
    /// [`SharedReceiveQueue`](crate::SharedReceiveQueue). It no longer tells of a received frame:
    /// call [`FrameCqe::frame`] first.
    pub fn into_cqe(self) -> Cqe {
        self.cqe
    }

    /// The frame that the CQE reports, with a cookie of the caller's; `None` if it reports none.
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

impl CompletionQueue {
    /// Takes the next CQE with the words that describe a frame, if there is one. For a completion
    /// queue that several receivers, or a receiver and a send queue, report to.
    pub fn poll_frame(&mut self) -> Option<FrameCqe> {
        let taken = self.take_frame();
        if taken.is_some() {
            self.publish();
        }
        taken
    }

    fn take_frame(&mut self) -> Option<FrameCqe> {
        let mut skipped = false;
        loop {
            let look = self.look();
            if look.is_not_ours() {
                // It may be full of what was cleaned away.
                if skipped {
                    self.publish();
                }
                return None;
            }
            let _ = RequestId::read(&look);
            let words = FrameWords::read(&look);
            if let Some(cqe) = self.read_whole() {
                return Some(FrameCqe { cqe, words });
            }
            skipped = true;
        }
    }
}

/// The receive queue of a raw Ethernet queue (RQ): memory for frames, in the order in which they
/// will come.
#[derive(Debug)]
pub struct FrameReceiver {
    queue: ReceiveQueue,
    user_index: u32,
}

impl FrameReceiver {
    /// The queue of an RQ that was created with this user index. A completion queue that several
    /// receivers report to tells them apart by it.
    ///
    /// # Errors
    /// The user index has more than 24 bits, or is 0xffffff, which a CQE has in its place that was
    /// cleaned away.
    pub fn new(queue: ReceiveQueue, user_index: u32) -> Result<Self, LayoutError> {
        if user_index >= NOBODY {
            let why = "is not below 0xffffff, which stands for no queue";
            return Err(LayoutError::new("the user index of a receiver", why, user_index.into()));
        }
        Ok(Self { queue, user_index })
    }

    /// The number of the RQ.
    pub fn rqn(&self) -> Qpn {
        self.queue.qpn()
    }

    /// The user index in the queue's CQEs.
    pub fn user_index(&self) -> u32 {
        self.user_index
    }

    /// Frames that the ring has room for.
    pub fn capacity(&self) -> u32 {
        self.queue.capacity()
    }

    /// Receives that can be posted now.
    pub fn free(&self) -> u32 {
        self.queue.free()
    }

    /// Posts memory for one frame: [`ReceiveQueue::post`].
    #[inline(always)]
    pub fn post<G: Gather>(&mut self, into: G, cookie: u64) -> Result<WqeIndex, PostError> {
        self.queue.post(into, cookie)
    }

    /// Starts a batch: [`ReceiveQueue::batch`].
    #[inline(always)]
    pub fn batch(&mut self) -> ReceiveBatch<'_> {
        self.queue.batch()
    }

    /// Starts over, as the device does when the RQ goes to RST: see
    /// [`QueuePair::reset`](crate::QueuePair::reset).
    pub fn reset(&mut self) {
        self.queue.reset();
    }

    /// Writes the count of the receives posted so far to the doorbell record again: needed after
    /// RST, where a device may ignore the record.
    pub fn publish(&mut self) {
        self.queue.publish();
    }

    /// Polls a completion queue that is this queue's alone.
    #[inline(always)]
    pub fn poll(&mut self, cq: &mut CompletionQueue) -> PolledFrame {
        let look = cq.look();
        if look.is_plain_receive() {
            if let Some(frame) = self.succeed(&look) {
                cq.step();
                cq.publish();
                return Some(Ok(frame));
            }
        } else if look.is_not_ours() {
            return None;
        }
        let polled = self.take_other(cq);
        cq.publish();
        polled
    }

    /// Polls for frames until `into` is full or no CQE is left; returns the number of results in
    /// `into`. The consumer index is written once, at the end.
    #[inline(always)]
    pub fn poll_into(&mut self, cq: &mut CompletionQueue, into: &mut [PolledFrame]) -> usize {
        let (room, mut places) = (into.len(), into.iter_mut());
        let mut left_over = 0;
        for place in &mut places {
            let look = cq.look();
            if look.is_plain_receive() {
                if let Some(frame) = self.succeed(&look) {
                    cq.step();
                    *place = Some(Ok(frame));
                    continue;
                }
            } else if look.is_not_ours() {
                left_over = 1;
                break;
            }
            let Some(polled) = self.take_other(cq) else {
                left_over = 1;
                break;
            };
            *place = Some(polled);
        }
        let polled = room - places.len() - left_over;
        if polled != 0 {
            cq.publish();
        }
        polled
    }

    /// The frame that a successful CQE reports for the oldest receive, if it is one of this queue;
    /// frees the receive's slot.
    #[inline(always)]
    fn succeed(&mut self, look: &Look<'_>) -> Option<ReceivedFrame> {
        let request = RequestId::read(look);
        let [user_index, immediate] = look.user_index_and_immediate();
        if CqeUserIndex::from_be(user_index).srqn_uidx() != self.user_index {
            return None;
        }
        let cookie = self.queue.retire(request.index())?;
        Some(ReceivedFrame {
            cookie,
            byte_count: look.dword::<{ hot::Cqe::BYTE_CNT_AT }>(),
            opcode_qpn: request.opcode_qpn,
            immediate,
            words: FrameWords::read(look),
        })
    }

    /// Takes a CQE that is no good one of ours: an error, one that cannot be, or one that was
    /// cleaned away.
    #[cold]
    #[inline(never)]
    fn take_other(&mut self, cq: &mut CompletionQueue) -> PolledFrame {
        cq.take_frame().map(|cqe| self.complete(cqe))
    }

    /// Completes this queue's oldest receive with the frame that the CQE reports; frees its slot.
    ///
    /// One of another queue comes back in [`CompletionError::OtherQueue`], without the description
    /// of its frame: look at [`Cqe::user_index`] first.
    pub fn complete(&mut self, cqe: FrameCqe) -> Result<ReceivedFrame, CompletionError> {
        let completion = self.judge(&cqe.cqe)?;
        match cqe.frame(completion.cookie) {
            Some(frame) => Ok(frame),
            None => Err(malformed(Malformed::Opcode(cqe.cqe.opcode()))),
        }
    }

    fn judge(&mut self, cqe: &Cqe) -> Result<Completion, CompletionError> {
        match cqe.opcode() {
            cqe_opcode::RESPONDER_SEND | cqe_opcode::RESPONDER_ERROR => {}
            other => return Err(malformed(Malformed::Opcode(other))),
        }
        if cqe.user_index() != self.user_index {
            return Err(CompletionError::OtherQueue(cqe.apart()));
        }
        self.queue.complete_any(cqe)
    }
}

/// Result of polling a receiver's completion queue: nothing, a frame, or why a receive failed.
pub type PolledFrame = Option<Result<ReceivedFrame, CompletionError>>;

/// A user index that no queue has: of a CQE that was cleaned away.
const NOBODY: u32 = 0xff_ffff;

/// For dispatch by user index
/// ([`Dispatcher::poll_by_user_index`](crate::Dispatcher::poll_by_user_index)): the completion has
/// the frame's length only, not the rest of its description.
impl Completes for FrameReceiver {
    fn complete(&mut self, cqe: Cqe) -> Result<Completion, CompletionError> {
        self.judge(&cqe)
    }
}
