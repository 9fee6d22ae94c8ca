//! Common parts of RC and UC: a QP with a peer, and requests to that peer.
//!
//! A long message is carried in parts, one a turn, so that it does not hold up other queues. The
//! PSN counts the packets of each part. The receiver keeps its state between parts in the same
//! fields as for messages in packets.

use verbless_prm::hot::cqe_syndrome;

use super::super::context::Missing;
use super::super::queue_pair::QueuePair;
use super::super::requester::{self, TurnStart};
use super::super::responder::{MessagePart, WholeRequest};
use super::super::scratch::Scratch;
use super::super::sender::Turn;
use super::super::work::PostedWqe;
use super::super::{completion, gather};
use crate::connection::advance;
use crate::hca::objects::{Address, QpObject, QpState};
use crate::hca::qp_type::QpType;
use crate::locked::LockedFunctions;

/// A QP: its function and its number.
pub(super) type QpId = (usize, u32);

/// Bytes that a turn moves at most, or one packet; few in tests, so that short messages have
/// several parts.
const MAX_TURN_BYTES: u64 = if cfg!(test) { 2 << 10 } else { 256 << 10 };

/// How a part of a request is carried whole.
pub(in crate::engine) type Carry =
    fn(&mut Carrier<'_>, &PostedWqe, MessagePart, &mut Scratch) -> Result<Turn, Missing>;

/// A QP with a message that is carried whole, and everything that the message can reach.
pub(in crate::engine) struct Carrier<'a> {
    pub(super) locked: &'a mut LockedFunctions,
    pub(super) from: QpId,
    /// The function that the QP's address reaches.
    peer: Option<usize>,
    /// The QP's fields in the packets of the current request.
    sender: Sender,
}

impl<'a> Carrier<'a> {
    pub(in crate::engine) fn new(locked: &'a mut LockedFunctions, from: QpId) -> Self {
        Self { locked, from, peer: None, sender: Sender::default() }
    }

    /// Finds and locks the function that the QP sends to; false if another thread holds that
    /// function, and the turn must begin again when it is locked.
    #[inline]
    pub(in crate::engine) fn finds_peer(&mut self) -> Result<bool, Missing> {
        let (id, qpn) = self.from;
        let qp = self.locked.functions[id].hca.objects.qps.get(&qpn).ok_or(Missing::Qp(qpn))?;
        let (to, port) = (qp.remote.filter(|_| qp.state == QpState::Rts), qp.port);
        loop {
            let found = to.and_then(|to| self.locked.directory.reach(id, port, to));
            self.peer = found;
            match found {
                Some(peer) if !self.locked.functions.has(peer) => {
                    if !self.locked.lock(peer) {
                        return Ok(false);
                    }
                    // Looks it up again, now that the address cannot change.
                }
                Some(peer) => return Ok(self.locked.lock_owners(peer)),
                None => return Ok(true),
            }
        }
    }

    /// Gives a turn to the QP, whose requests are carried whole.
    pub(in crate::engine) fn turn(
        &mut self,
        carry: Carry,
        scratch: &mut Scratch,
    ) -> Result<Turn, Missing> {
        let pair = &mut self.pair()?;
        let posted = match requester::begin(pair, scratch)? {
            TurnStart::Over(turn) => return Ok(turn),
            TurnStart::Request(posted) => posted,
        };
        let part = next_part(pair, &posted);
        if part.length < posted.length
            && let Err(syndrome) = gather::part(pair, &posted.work, part.at, part.length, scratch)
        {
            return Ok(completion::finish(pair, &posted, Err(syndrome)));
        }
        let QpObject { port, remote_qpn, qp_type, remote: to, .. } = *pair.qp;
        let packets = part.length.div_ceil(1 << pair.log_mtu()).max(1) as u32;
        let psn = pair.qp.requester.psn;
        let qp_type = Some(qp_type);
        self.sender = Sender { port, to, to_qpn: remote_qpn, qp_type, psn, packets };
        carry(self, &posted, part, scratch)
    }

    /// The QP itself.
    #[inline(always)]
    pub(super) fn pair(&mut self) -> Result<QueuePair<'_>, Missing> {
        let (function, qpn) = self.from;
        self.locked.functions.pair(function, qpn, self.locked.clock.now)
    }

    /// Carries a part of the QP's request to its peer, which handles it by `receive`.
    #[inline]
    pub(super) fn exchange(
        &mut self,
        posted: &PostedWqe,
        part: MessagePart,
        scratch: &mut Scratch,
        receive: Receive,
    ) -> Result<Exchange, Missing> {
        let (locked, (id, qpn), target) = (&mut *self.locked, self.from, self.peer);
        let Sender { port, to_qpn, psn, packets, .. } = self.sender;
        let function = &mut locked.functions[id];
        let silence = Exchange { answer: Reply::Silence, peer: None, packets };
        if part.begins() && function.engine.faults.loses_message(qpn) {
            return Ok(silence);
        }
        function.engine.moved_bytes += part.length;
        let slid = function.hca.lid(port);
        // No function has this address: the message is lost.
        let Some(target) = target else { return Ok(silence) };
        let Some(answers) = is_for(locked, target, self.from, &self.sender) else {
            return Ok(silence);
        };
        let message =
            WholeRequest { slid, psn, packets, work: &posted.work, length: posted.length, part };
        let pair = &mut locked.functions.pair(target, to_qpn, locked.clock.now)?;
        let mut answer = receive(pair, &message, scratch);
        // An error that the requester finds by itself needs no answer.
        if !answers && answer != Reply::Failed(cqe_syndrome::LOCAL_PROTECTION) {
            answer = Reply::Silence;
        }
        Ok(Exchange { answer, peer: Some((target, to_qpn)), packets })
    }
}

/// Whether a part of a message was carried, and the rest is yet to come.
pub(in crate::engine) fn is_being_carried(qp: &QpObject) -> bool {
    qp.runtime.carried > 0
}

/// Whether the QP's messages reach a port, and so may go in packets.
pub(in crate::engine) fn leaves_the_device(qp: &QpObject) -> bool {
    qp.remote != Some(Address::Own)
}

/// Whether the QP sends to itself and failed as the receiver, which flushed its WQE with the
/// others.
pub(super) fn failed_as_receiver(qp: &QpObject) -> bool {
    qp.state != QpState::Rts
}

/// The part of a request that is carried next.
fn next_part(pair: &QueuePair<'_>, posted: &PostedWqe) -> MessagePart {
    let at = pair.qp.runtime.carried;
    let rest = posted.length.saturating_sub(at);
    // All parts but the last consist of whole packets.
    let max = MAX_TURN_BYTES.next_multiple_of(1 << pair.log_mtu());
    MessagePart { at, length: rest.min(max), whole: posted.length }
}

/// Counts a part of a message, of `packets` packets, that has arrived; true if it was the last one.
pub(super) fn carried(qp: &mut QpObject, part: MessagePart, packets: u32) -> bool {
    qp.requester.psn = advance(qp.requester.psn, packets);
    if part.ends() {
        return true;
    }
    qp.runtime.carried = part.at + part.length;
    qp.requester.retries_left = qp.requester.retry_limit;
    false
}

/// The peer's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reply {
    /// Acknowledged. An atomic returns the old value; a READ's memory is in `Scratch::remote`.
    Done { original: Option<u64> },
    /// RNR NAK with this timer code.
    NotReady { timer: u8 },
    /// NAK, or a local failure: the requester's syndrome.
    Failed(u8),
    /// No answer: there is no peer, or it drops the packet.
    Silence,
}

/// A request that was sent, and the peer's answer.
pub(super) struct Exchange {
    pub answer: Reply,
    /// The QP that the message reached.
    pub peer: Option<QpId>,
    pub packets: u32,
}

/// How a service handles a message.
pub(super) type Receive = fn(&mut QueuePair<'_>, &WholeRequest<'_>, &mut Scratch) -> Reply;

/// Sender and receiver of a message.
#[derive(Default)]
struct Sender {
    port: u8,
    to: Option<Address>,
    to_qpn: u32,
    qp_type: Option<&'static QpType>,
    /// The first PSN of this part, and its number of PSNs.
    psn: u32,
    packets: u32,
}

/// Whether the QP that `sender` addresses exists in function `id` and accepts its messages: `None`
/// if not. Otherwise, whether its answers reach the sender. Function `id` must be locked.
fn is_for(
    locked: &LockedFunctions,
    id: usize,
    (function, number): QpId,
    sender: &Sender,
) -> Option<bool> {
    let hca = &locked.functions[id].hca;
    let qpn = sender.to_qpn;
    let Some(qp) = hca.objects.qps.get(&qpn) else {
        tracing::debug!(qpn, "a message for a QP that does not exist");
        return None;
    };
    let takes = !hca.fatal
        && qp.state.receives()
        && Some(qp.qp_type) == sender.qp_type
        && qp.remote_qpn == number;
    if !takes {
        return None;
    }
    locked.directory.answers((function, sender.to?), (id, qp.port, qp.remote?))
}
