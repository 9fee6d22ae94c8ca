//! State of a connected QP whose messages travel in packets: the requests that are not acknowledged
//! yet, the message that is arriving, and the answers that are still to be sent.

use std::collections::VecDeque;

use crate::wire::Message;

/// PSNs and MSNs count in 24 bits.
pub(crate) const PSN_MASK: u32 = 0xff_ffff;
/// A PSN that is less than this far ahead is ahead; else it lies behind.
const PSN_HALF: u32 = 1 << 23;

/// How far `psn` lies behind `from`, or how far ahead of it.
pub(crate) fn distance(from: u32, psn: u32) -> Distance {
    match psn.wrapping_sub(from) & PSN_MASK {
        0 => Distance::Same,
        ahead if ahead < PSN_HALF => Distance::Ahead(ahead),
        behind => Distance::Behind(behind.wrapping_neg() & PSN_MASK),
    }
}

/// The PSN that is `by` PSNs after `psn`.
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
    /// Whether it waits for a turn to send its answers.
    pub answers: bool,
}

/// Requests that were fetched and are not completed, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Window {
    pub requests: VecDeque<Request>,
    /// The one that sends next, counted from the oldest; their number when all were sent.
    pub next: usize,
    /// The PSN that the peer was last found to miss, or whose response was, since anything
    /// arrived: hearing of it once more is no other loss.
    pub missed: Option<u32>,
    /// The purpose of the QP's timer.
    pub timer: Timer,
    /// WQE buffers that are free.
    spare: Vec<Vec<u8>>,
}

/// The purpose of a QP's running timer.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timer {
    /// The peer was not ready to receive: nothing is sent before it runs out.
    #[default]
    NotReady,
    /// The oldest request waits for its acknowledgement.
    Acknowledge,
}

/// A request that was fetched.
#[derive(Debug)]
pub(crate) struct Request {
    /// Index and size of its WQE.
    pub index: u16,
    pub wqebbs: u16,
    pub wqe: Vec<u8>,
    /// Bytes that its data segments name.
    pub length: u64,
    /// The first PSN, and the number of PSNs: of its packets, or of those of its response.
    pub psn: u32,
    pub packets: u32,
    /// Packets that went out since the last return, and the most that ever did.
    pub sent: u32,
    pub reached: u32,
    /// Packets that are acknowledged; of a READ, those of its response that arrived.
    pub done: u32,
    /// The answer that acknowledges the request.
    pub response: Response,
    /// Whether it is a READ of whose response a missing part was requested again, in several
    /// requests: then the last packet of each is marked as last.
    pub in_parts: bool,
    /// The first bytes of a response that goes into the CQE.
    pub inline: [u8; 64],
    /// The syndrome that it failed with.
    pub failed: Option<u8>,
}

/// The answer that acknowledges a request.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Response {
    /// An ACK, of it or of what follows it.
    #[default]
    Acknowledgement,
    /// The data of a READ; an ACK is not enough.
    Read,
    /// The old value of an atomic; an ACK is not enough.
    Atomic,
}

impl Request {
    /// Whether only its response acknowledges the request.
    pub(crate) fn responds(&self) -> bool {
        self.response != Response::Acknowledgement
    }

    pub(crate) fn is_over(&self) -> bool {
        self.failed.is_some() || self.done == self.packets
    }

    /// Every packet that it sends has gone out.
    pub(crate) fn is_sent(&self) -> bool {
        self.failed.is_some() || self.sent == self.packets
    }
}

/// The position of a PSN in a window: the request, and the packet in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PsnPosition {
    pub request: usize,
    pub packet: u32,
}

impl Window {
    /// A buffer for a WQE.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes the oldest request out, if it is over.
    pub(crate) fn retire(&mut self) -> Option<Request> {
        self.requests.front().filter(|request| request.is_over())?;
        self.next = self.next.saturating_sub(1);
        self.requests.pop_front()
    }

    /// Takes a buffer back.
    pub(crate) fn reuse(&mut self, buffer: Vec<u8>) {
        self.spare.push(buffer);
    }

    /// The position of a PSN that was sent; `None` if it was not, or is acknowledged and forgotten.
    pub(crate) fn place(&self, psn: u32) -> Option<PsnPosition> {
        let sent = |request: &Request| psn.wrapping_sub(request.psn) & PSN_MASK < request.reached;
        let request = self.requests.iter().position(sent)?;
        Some(PsnPosition {
            request,
            packet: psn.wrapping_sub(self.requests[request].psn) & PSN_MASK,
        })
    }

    /// PSNs that went out and are not acknowledged.
    pub(crate) fn in_flight(&self) -> u32 {
        self.requests.iter().map(|request| request.sent.saturating_sub(request.done)).sum()
    }

    /// READs and atomics that wait for their responses.
    pub(crate) fn responses(&self) -> usize {
        self.requests.iter().filter(|request| request.responds() && !request.is_over()).count()
    }

    /// Everything before `place` has arrived, as the peer says. The error is where it cannot be so:
    /// a response is missing.
    pub(crate) fn acknowledge_before(&mut self, place: PsnPosition) -> Result<(), PsnPosition> {
        for (number, request) in self.requests.iter_mut().enumerate().take(place.request + 1) {
            let whole = number < place.request;
            if request.responds() {
                if whole && !request.is_over() {
                    return Err(PsnPosition { request: number, packet: request.done });
                }
                continue;
            }
            let arrived = if whole { request.packets } else { place.packet };
            request.done = request.done.max(arrived);
            request.sent = request.sent.max(request.done);
        }
        self.skip_sent();
        Ok(())
    }

    /// Goes back: from `place` on everything that is not acknowledged is sent again.
    pub(crate) fn go_back(&mut self, place: PsnPosition) {
        self.next = place.request;
        for request in self.requests.iter_mut().skip(place.request) {
            request.sent = request.done;
        }
        self.skip_sent();
    }

    /// Moves on to the first request that has something to send.
    pub(crate) fn skip_sent(&mut self) {
        while self.requests.get(self.next).is_some_and(Request::is_sent) {
            self.next += 1;
        }
    }

    /// Whether a request before the next one failed: then no later request is sent any more, while
    /// earlier ones may have to be sent again.
    pub(crate) fn has_failed(&self) -> bool {
        self.requests.iter().take(self.next).any(|request| request.failed.is_some())
    }

    /// Takes the oldest request out, to flush it.
    pub(crate) fn flush(&mut self) -> Option<Request> {
        self.next = 0;
        self.requests.pop_front()
    }

    /// The request that sends next has nothing left to send.
    pub(crate) fn is_sent(&self) -> bool {
        self.requests.get(self.next).is_none_or(Request::is_sent)
    }

    /// The oldest packet that is not acknowledged, if one went out.
    pub(crate) fn oldest(&self) -> Option<PsnPosition> {
        let request = self.requests.iter().position(|request| !request.is_over())?;
        let oldest = &self.requests[request];
        (oldest.reached > oldest.done).then_some(PsnPosition { request, packet: oldest.done })
    }
}

/// The responder's state: what arrives, and the answers to it.
#[derive(Debug, Default)]
pub(crate) struct Arriving {
    /// The message whose first packet, but not its last, has arrived.
    pub message: Option<Incoming>,
    /// A receive of a shared queue that a message was cut off from (UC): the next one gets it.
    pub held: Option<(u16, Vec<u8>)>,
    /// The PSN of the last packet of a SEND or WRITE that was executed.
    pub executed: Option<u32>,
    /// A gap was reported: nothing more is said of it before it closes.
    pub reported: bool,
    /// Answers to be sent, in order.
    pub answers: VecDeque<Answer>,
    /// READs and atomics that may be asked for again, oldest first.
    pub replay: VecDeque<Replay>,
}

/// A message of several packets that is arriving.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    /// The destination of the message.
    pub into: Target,
    /// Bytes that arrived.
    pub bytes: u64,
}

/// The destination of a message.
#[derive(Debug)]
pub(crate) enum Target {
    /// To the memory of a receive WQE, of which this is a copy.
    Receive { index: u16, wqe: Vec<u8> },
    /// To a range of a key.
    Range { key: u32, address: u64, length: u64 },
}

impl Target {
    /// Whether such a message goes there.
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

/// Something that goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Everything up to this PSN has arrived.
    Acknowledge { psn: u32, msn: u32 },
    /// A NAK of any kind, by its syndrome.
    Refuse { psn: u32, msn: u32, syndrome: u8 },
    /// The data of a READ, of whose packets `sent` have gone out; `again`: it was asked for before.
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

/// A READ or atomic that was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replay {
    Read { psn: u32, packets: u32 },
    Atomic { psn: u32, msn: u32, value: u64 },
}

impl Arriving {
    /// Adds an answer; an acknowledgement speaks for those right before it, and nothing is said
    /// twice in a row.
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

    /// Remembers an answer that may be asked for again, and forgets the oldest beyond `most`.
    pub(crate) fn remember(&mut self, replay: Replay, most: u8) {
        while self.replay.len() >= usize::from(most.max(1)) {
            self.replay.pop_front();
        }
        self.replay.push_back(replay);
    }

    /// READs and atomics that are not answered yet, without those that were asked for once more.
    pub(crate) fn unanswered(&self) -> usize {
        let pending = |answer: &&Answer| {
            matches!(
                answer,
                Answer::Read { again: false, .. } | Answer::Atomic { again: false, .. }
            )
        };
        self.answers.iter().filter(pending).count()
    }

    /// Answers a READ or atomic once more: in the place of an answer that waits and has that PSN
    /// among its own, if there is one.
    pub(crate) fn answer_again(&mut self, answer: Answer) {
        let (Answer::Read { psn: of, .. } | Answer::Atomic { psn: of, .. }) = answer else {
            return self.answer(answer);
        };
        let waiting = self.answers.iter_mut().find(|answer| match **answer {
            Answer::Read { psn, packets, .. } => of.wrapping_sub(psn) & PSN_MASK < packets,
            Answer::Atomic { psn, .. } => psn == of,
            _ => false,
        });
        match waiting {
            Some(waiting) => *waiting = answer,
            None => self.answer(answer),
        }
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
    fn an_acknowledgement_counts_for_all_before_it_but_responses() {
        let mut all =
            window([request(0xff_fffe, 3, false), request(1, 2, true), request(3, 4, false)]);
        let place = all.place(4).unwrap();
        assert_eq!(place, PsnPosition { request: 2, packet: 1 });
        assert_eq!(all.acknowledge_before(place), Err(PsnPosition { request: 1, packet: 0 }));
        assert_eq!(all.requests.iter().map(|it| it.done).collect::<Vec<_>>(), [3, 0, 0]);
        all.requests[1].done = 2;
        assert_eq!(all.acknowledge_before(place), Ok(()));
        assert_eq!(all.requests.iter().map(|it| it.done).collect::<Vec<_>>(), [3, 2, 1]);
        assert_eq!(all.in_flight(), 3);
        assert_eq!((all.retire().unwrap().psn, all.retire().unwrap().psn), (0xff_fffe, 1));
        assert!(all.retire().is_none());
        assert_eq!(all.place(2), None, "it is forgotten");
        assert_eq!(all.place(7), None, "it was never sent");
    }

    #[test]
    fn going_back_sends_again_what_is_not_acknowledged_and_nothing_else() {
        let mut all = window([request(0, 4, false), request(4, 1, false), request(5, 8, true)]);
        let place = all.place(2).unwrap();
        all.acknowledge_before(place).unwrap();
        all.requests[2].done = 3;
        all.go_back(place);
        assert_eq!(all.requests.iter().map(|it| it.sent).collect::<Vec<_>>(), [2, 0, 3]);
        assert_eq!(all.next, 0);
        assert_eq!(all.place(3), Some(PsnPosition { request: 0, packet: 3 }), "it went out once");
        let late = all.place(4).unwrap();
        all.acknowledge_before(late).unwrap();
        assert_eq!(all.next, 1, "an answer to what went out before is as good");
    }

    #[test]
    fn acknowledgements_in_a_row_become_one_and_nothing_overtakes_a_read() {
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
}
