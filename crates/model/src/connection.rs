//! State of a connected QP whose messages travel in packets: the unacknowledged requests, the
//! arriving message, and the responses still to send.

use std::collections::VecDeque;

use verbless_wire::Message;

/// Mask of PSNs and MSNs: 24 bits.
pub(crate) const PSN_MASK: u32 = 0xff_ffff;
/// A PSN less than this distance ahead counts as ahead; any other counts as behind.
const PSN_HALF: u32 = 1 << 23;

/// The RNR retry limit that stands for no limit.
pub(crate) const UNLIMITED_RNR_RETRIES: u8 = 7;

/// The distance of `psn` behind or ahead of `from`.
pub(crate) fn distance(from: u32, psn: u32) -> Distance {
    match psn.wrapping_sub(from) & PSN_MASK {
        0 => Distance::Same,
        ahead if ahead < PSN_HALF => Distance::Ahead(ahead),
        behind => Distance::Behind(behind.wrapping_neg() & PSN_MASK),
    }
}

/// The PSN `by` PSNs after `psn`; also for MSNs.
pub(crate) fn advance(psn: u32, by: u32) -> u32 {
    psn.wrapping_add(by) & PSN_MASK
}

/// The position of one PSN relative to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Distance {
    Same,
    Ahead(u32),
    Behind(u32),
}

/// Both halves of a connection.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    pub window: Window,
    pub arriving: Arriving,
    /// Whether the QP waits for a turn to send its responses.
    pub answers: bool,
}

/// Fetched requests that are not complete, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Window {
    pub requests: VecDeque<Request>,
    /// Index from the oldest of the request that sends next; the number of requests when all were
    /// sent.
    pub next: usize,
    /// The last loss that an answer reported: the PSN that the peer misses, or the PSN of the
    /// missing response. A second report of it is not a new loss.
    pub missed: Option<u32>,
    /// The PSN of the last response that arrived instead of the missing one.
    pub revealed: Option<u32>,
    /// The purpose of the QP's timer.
    pub timer: Timer,
    /// When the acknowledgement timer started.
    pub since: u64,
    /// When the timer expires at the latest.
    pub expires: u64,
    /// How long the rest of a begun response may be missing before the requester requests it again.
    pub response_wait: Option<u64>,
    /// Whether the requester requested the rest of the response again since the timer started.
    pub repeated: bool,
    /// Longest time in nanoseconds from a start of the timer, without `repeated`, to an ACK.
    pub slowest: u64,
    /// Free WQE buffers.
    spare: Vec<Vec<u8>>,
}

/// The purpose of a QP's running timer.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timer {
    /// The peer was not ready to receive: the QP sends no packet before the timer expires.
    #[default]
    NotReady,
    /// The oldest request waits for its acknowledgement.
    Acknowledge,
}

/// A fetched request.
#[derive(Debug)]
pub(crate) struct Request {
    /// Index and size of its WQE.
    pub index: u16,
    pub wqebbs: u16,
    pub wqe: Vec<u8>,
    /// Bytes in the data segments.
    pub length: u64,
    /// The first PSN and the number of PSNs: of the request's packets, or of its response's.
    pub psn: u32,
    pub packets: u32,
    /// Packets sent since the last go-back, and the most ever sent.
    pub sent: u32,
    pub reached: u32,
    /// Acknowledged packets; for a READ, the response packets that arrived.
    pub done: u32,
    /// The response that acknowledges the request.
    pub response: Response,
    /// Whether the requester requested a missing part of this READ's response again, in several
    /// requests: the last packet of each is then marked as last.
    pub in_parts: bool,
    /// The first bytes of a response that the CQE carries inline.
    pub inline: [u8; 64],
    /// The syndrome of the failure.
    pub failed: Option<u8>,
}

/// The kind of response that acknowledges a request.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Response {
    /// An ACK of this request or of a later one.
    #[default]
    Acknowledgement,
    /// The data of a READ; an ACK is not enough.
    Read,
    /// The old value of an atomic; an ACK is not enough.
    Atomic,
}

impl Request {
    /// Whether only a response acknowledges the request.
    pub(crate) fn responds(&self) -> bool {
        self.response != Response::Acknowledgement
    }

    pub(crate) fn is_over(&self) -> bool {
        self.failed.is_some() || self.done == self.packets
    }

    /// Whether every packet of the request was sent.
    pub(crate) fn is_sent(&self) -> bool {
        self.failed.is_some() || self.sent == self.packets
    }
}

/// The position of a PSN in a window: the request, and its packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PsnPosition {
    pub request: usize,
    pub packet: u32,
}

impl Window {
    /// Returns a buffer for a WQE.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Removes the oldest request, if it is complete.
    pub(crate) fn retire(&mut self) -> Option<Request> {
        self.requests.front().filter(|request| request.is_over())?;
        self.next = self.next.saturating_sub(1);
        self.requests.pop_front()
    }

    /// Keeps a buffer for another WQE.
    pub(crate) fn reuse(&mut self, buffer: Vec<u8>) {
        self.spare.push(buffer);
    }

    /// The position of a sent PSN; `None` if it was not sent, or was acknowledged and removed.
    pub(crate) fn position(&self, psn: u32) -> Option<PsnPosition> {
        let sent = |request: &Request| psn.wrapping_sub(request.psn) & PSN_MASK < request.reached;
        let request = self.requests.iter().position(sent)?;
        Some(PsnPosition {
            request,
            packet: psn.wrapping_sub(self.requests[request].psn) & PSN_MASK,
        })
    }

    /// Number of sent, unacknowledged PSNs.
    pub(crate) fn in_flight(&self) -> u32 {
        self.requests.iter().map(|request| request.sent.saturating_sub(request.done)).sum()
    }

    /// Number of READs and atomics that wait for their responses.
    pub(crate) fn responses(&self) -> usize {
        self.requests.iter().filter(|request| request.responds() && !request.is_over()).count()
    }

    /// Whether the oldest response has begun: the peer is sending the rest of it.
    pub(crate) fn response_has_begun(&self) -> bool {
        let oldest = self.oldest().and_then(|position| self.requests.get(position.request));
        oldest.is_some_and(|request| request.responds() && request.done > 0)
    }

    /// Forgets the last reported loss: the next report counts as new.
    pub(crate) fn forget_loss(&mut self) {
        (self.missed, self.revealed) = (None, None);
    }

    /// The PSN at a position.
    pub(crate) fn psn(&self, position: PsnPosition) -> Option<u32> {
        let request = self.requests.get(position.request)?;
        Some(advance(request.psn, position.packet))
    }

    /// The peer has acknowledged everything before `position`. The error is the position of a
    /// missing response, which contradicts the acknowledgement.
    pub(crate) fn acknowledge_before(&mut self, position: PsnPosition) -> Result<(), PsnPosition> {
        for (number, request) in self.requests.iter_mut().enumerate().take(position.request + 1) {
            let is_acknowledged = number < position.request;
            if request.responds() {
                if is_acknowledged && !request.is_over() {
                    return Err(PsnPosition { request: number, packet: request.done });
                }
                continue;
            }
            let arrived = if is_acknowledged { request.packets } else { position.packet };
            request.done = request.done.max(arrived);
            request.sent = request.sent.max(request.done);
        }
        self.skip_sent();
        Ok(())
    }

    /// Goes back: sends everything unacknowledged from `position` on again.
    pub(crate) fn go_back(&mut self, position: PsnPosition) {
        self.next = position.request;
        for request in self.requests.iter_mut().skip(position.request) {
            request.sent = request.done;
        }
        self.skip_sent();
    }

    /// Moves on to the first request with packets to send.
    pub(crate) fn skip_sent(&mut self) {
        while self.requests.get(self.next).is_some_and(Request::is_sent) {
            self.next += 1;
        }
    }

    /// Whether a request before the next one failed: the QP then sends no later request; it may
    /// have to send earlier ones again.
    pub(crate) fn has_failed(&self) -> bool {
        self.requests.iter().take(self.next).any(|request| request.failed.is_some())
    }

    /// Removes the oldest request, to flush it.
    pub(crate) fn flush(&mut self) -> Option<Request> {
        self.next = 0;
        self.requests.pop_front()
    }

    /// Whether the request that sends next has no packet left to send.
    pub(crate) fn is_sent(&self) -> bool {
        self.requests.get(self.next).is_none_or(Request::is_sent)
    }

    /// The oldest unacknowledged packet, if any was sent.
    pub(crate) fn oldest(&self) -> Option<PsnPosition> {
        let request = self.requests.iter().position(|request| !request.is_over())?;
        let oldest = &self.requests[request];
        (oldest.reached > oldest.done).then_some(PsnPosition { request, packet: oldest.done })
    }
}

/// The responder's state: the arriving message, and the responses to send.
#[derive(Debug, Default)]
pub(crate) struct Arriving {
    /// The message whose first packet has arrived, and whose last has not.
    pub message: Option<Incoming>,
    /// A receive WQE of a shared queue whose message was cut off (UC): the next message gets it.
    pub held: Option<(u16, Vec<u8>)>,
    /// The PSN of the last packet of an executed SEND or WRITE.
    pub executed: Option<u32>,
    /// A gap was reported: the responder sends no other NAK for it until it closes.
    pub reported: bool,
    /// Responses to send, in order.
    pub answers: VecDeque<Answer>,
    /// READs and atomics that the requester may repeat, oldest first.
    pub replay: VecDeque<Replay>,
}

/// An arriving message of several packets.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    /// The destination of the message.
    pub into: Target,
    /// Bytes that arrived so far.
    pub bytes: u64,
}

/// The destination of a message.
#[derive(Debug)]
pub(crate) enum Target {
    /// The memory of a receive WQE; `wqe` is a copy of it.
    Receive { index: u16, wqe: Vec<u8> },
    /// A range of a key.
    Range { key: u32, address: u64, length: u64 },
}

impl Target {
    /// Whether the target is for this kind of message.
    pub(crate) fn is_of(&self, message: Message) -> bool {
        match self {
            Self::Receive { .. } => message == Message::Send,
            Self::Range { .. } => message == Message::Write,
        }
    }
}

impl Default for Target {
    fn default() -> Self {
        Self::Range { key: 0, address: 0, length: 0 }
    }
}

/// A response packet, or a sequence of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Everything up to this PSN has arrived.
    Acknowledge { psn: u32, msn: u32 },
    /// A NAK of any kind, by its syndrome.
    Nak { psn: u32, msn: u32, syndrome: u8 },
    /// The data of a READ; `sent` of its packets were sent. `again`: the requester repeated the
    /// READ.
    Read {
        psn: u32,
        msn: u32,
        packets: u32,
        sent: u32,
        key: u32,
        address: u64,
        length: u64,
        again: bool,
    },
    /// The old value of an atomic.
    Atomic { psn: u32, msn: u32, value: u64, again: bool },
}

impl Answer {
    /// The first PSN of the response.
    fn psn(&self) -> u32 {
        let (Self::Acknowledge { psn, .. }
        | Self::Nak { psn, .. }
        | Self::Read { psn, .. }
        | Self::Atomic { psn, .. }) = *self;
        psn
    }
}

/// An executed READ or atomic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replay {
    Read { psn: u32, packets: u32 },
    Atomic { psn: u32, msn: u32, value: u64 },
}

impl Arriving {
    /// Adds a response; an ACK replaces the ACK right before it, and no response is repeated.
    pub(crate) fn answer(&mut self, answer: Answer) {
        if self.answers.back() == Some(&answer) {
            return;
        }
        if matches!(answer, Answer::Acknowledge { .. })
            && matches!(self.answers.back(), Some(Answer::Acknowledge { .. }))
        {
            self.answers.pop_back();
        }
        self.answers.push_back(answer);
    }

    /// Remembers a response that the requester may request again; forgets the oldest beyond `max`.
    pub(crate) fn remember(&mut self, replay: Replay, max: u8) {
        while self.replay.len() >= usize::from(max.max(1)) {
            self.replay.pop_front();
        }
        self.replay.push_back(replay);
    }

    /// Number of READs and atomics whose responses are not sent yet, without repeated requests.
    pub(crate) fn unanswered(&self) -> usize {
        let pending = |answer: &&Answer| {
            matches!(
                answer,
                Answer::Read { again: false, .. } | Answer::Atomic { again: false, .. }
            )
        };
        self.answers.iter().filter(pending).count()
    }

    /// Answers a repeated READ or atomic: in place of a waiting response that covers its PSN, or
    /// else before those of later requests, in the requester's order.
    pub(crate) fn answer_again(&mut self, answer: Answer) {
        let (Answer::Read { psn: of, .. } | Answer::Atomic { psn: of, .. }) = answer else {
            return self.answer(answer);
        };
        let waiting = self.answers.iter_mut().find(|answer| match **answer {
            Answer::Read { psn, packets, .. } => of.wrapping_sub(psn) & PSN_MASK < packets,
            Answer::Atomic { psn, .. } => psn == of,
            _ => false,
        });
        if let Some(waiting) = waiting {
            *waiting = answer;
            return;
        }
        let is_later = |other: &Answer| matches!(distance(of, other.psn()), Distance::Ahead(_));
        let position = self.answers.iter().position(is_later).unwrap_or(self.answers.len());
        self.answers.insert(position, answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(psn: u32, packets: u32, responds: bool) -> Request {
        Request {
            index: 0,
            wqebbs: 1,
            wqe: Vec::new(),
            length: 0,
            psn,
            packets,
            sent: packets,
            reached: packets,
            done: 0,
            response: if responds { Response::Read } else { Response::Acknowledgement },
            in_parts: false,
            inline: [0; 64],
            failed: None,
        }
    }

    fn window(requests: impl IntoIterator<Item = Request>) -> Window {
        let requests: VecDeque<_> = requests.into_iter().collect();
        Window { next: requests.len(), requests, ..Window::default() }
    }

    #[test]
    fn psns_compare_across_their_wrap() {
        assert_eq!(distance(PSN_MASK, 0), Distance::Ahead(1));
        assert_eq!(distance(0, PSN_MASK), Distance::Behind(1));
        assert_eq!(distance(7, 7), Distance::Same);
        assert_eq!(distance(0, PSN_HALF - 1), Distance::Ahead(PSN_HALF - 1));
        assert_eq!(distance(0, PSN_HALF), Distance::Behind(PSN_HALF));
        assert_eq!(advance(PSN_MASK, 2), 1);
    }

    #[test]
    fn ack_is_cumulative_up_to_outstanding_read() {
        let mut all =
            window([request(0xff_fffe, 3, false), request(1, 2, true), request(3, 4, false)]);
        let position = all.position(4).unwrap();
        assert_eq!(position, PsnPosition { request: 2, packet: 1 });
        assert_eq!(all.acknowledge_before(position), Err(PsnPosition { request: 1, packet: 0 }));
        assert_eq!(all.requests.iter().map(|it| it.done).collect::<Vec<_>>(), [3, 0, 0]);
        all.requests[1].done = 2;
        assert_eq!(all.acknowledge_before(position), Ok(()));
        assert_eq!(all.requests.iter().map(|it| it.done).collect::<Vec<_>>(), [3, 2, 1]);
        assert_eq!(all.in_flight(), 3);
        assert_eq!((all.retire().unwrap().psn, all.retire().unwrap().psn), (0xff_fffe, 1));
        assert!(all.retire().is_none());
        assert_eq!(all.position(2), None, "the request was retired");
        assert_eq!(all.position(7), None, "the request was never sent");
    }

    #[test]
    fn go_back_resends_only_unacknowledged_packets() {
        let mut all = window([request(0, 4, false), request(4, 1, false), request(5, 8, true)]);
        let position = all.position(2).unwrap();
        all.acknowledge_before(position).unwrap();
        all.requests[2].done = 3;
        all.go_back(position);
        assert_eq!(all.requests.iter().map(|it| it.sent).collect::<Vec<_>>(), [2, 0, 3]);
        assert_eq!(all.next, 0);
        assert_eq!(
            all.position(3),
            Some(PsnPosition { request: 0, packet: 3 }),
            "the packet was sent before"
        );
        let late = all.position(4).unwrap();
        all.acknowledge_before(late).unwrap();
        assert_eq!(all.next, 1, "an ACK of an earlier transmission counts");
    }

    #[test]
    fn acks_coalesce_but_not_across_a_read() {
        let mut all = Arriving::default();
        let read = Answer::Read {
            psn: 3,
            msn: 3,
            packets: 2,
            sent: 0,
            key: 1,
            address: 2,
            length: 3,
            again: false,
        };
        for psn in 0..3 {
            all.answer(Answer::Acknowledge { psn, msn: psn });
        }
        all.answer(read);
        all.answer(Answer::Acknowledge { psn: 5, msn: 5 });
        let (first, last) =
            (Answer::Acknowledge { psn: 2, msn: 2 }, Answer::Acknowledge { psn: 5, msn: 5 });
        assert_eq!(all.answers, [first, read, last]);
        assert_eq!(all.unanswered(), 1);
    }

    #[test]
    fn repeated_answer_goes_before_later_ones() {
        let read = |psn: u32, sent: u32| Answer::Read {
            psn: psn & PSN_MASK,
            msn: 0,
            packets: 128,
            sent,
            key: 0,
            address: 0,
            length: 1 << 15,
            again: true,
        };
        let acknowledge = |psn: u32| Answer::Acknowledge { psn, msn: 0 };
        let mut arriving = Arriving::default();
        arriving.answer(acknowledge(PSN_MASK - 200));
        arriving.answer(read(0, 9));
        arriving.answer(acknowledge(128));
        // A repeated READ before the waiting answers, across the PSN wrap; and one that is itself
        // waiting.
        arriving.answer_again(read(PSN_MASK - 127, 0));
        arriving.answer_again(read(0, 0));
        let expected =
            [acknowledge(PSN_MASK - 200), read(PSN_MASK - 127, 0), read(0, 0), acknowledge(128)];
        assert_eq!(arriving.answers, expected);
    }
}
