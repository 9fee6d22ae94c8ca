//! The send side of a connected QP whose messages go in packets: fetches requests, sends their
//! packets, and completes them, in order, as the peer acknowledges them.
//!
//! Sources: InfiniBand specification, volume 1, 9.7 (reliable connection: 9.7.3 request packets,
//! 9.7.5 responses, 9.7.6 the requester's timers and retries), 9.8.2 (unreliable connection).

use verbless_prm::hot::{CtrlSegment, cqe_syndrome};
use verbless_prm::{Aeth, AethNak, AtomicEth, Bth, Ieth, Immdt, Reth, WqeFence};

use super::super::clock::rnr_timer;
use super::super::context::{Missing, QueuePair};
use super::super::counters::Count;
use super::super::keys::{self, Need, Range, Sge, User};
use super::super::operation::{Action, Refused};
use super::super::scratch::Scratch;
use super::super::sender::Turn;
use super::super::transfer::{self, End};
use super::super::umr::{self, Asker};
use super::super::work::{self, Placed, Segment, Work, segments};
use super::egress::Outgoing;
use crate::connection::{PSN_MASK, Place, Request, Response, Timer, advance};
use crate::hca::objects::QpState;
use crate::wire;
use crate::wire::{Extensions, Message, Opcode, Packet};

/// Packets that a QP sends in one turn.
const PACKETS_A_TURN: u32 = 16;
/// PSNs that a requester lets go out before it hears of the first.
const MOST_IN_FLIGHT: u32 = 128;
/// Requests that it looks ahead.
const MOST_REQUESTS: usize = 64;
/// It asks for an acknowledgement at least once in so many packets.
const PACKETS_PER_REQUEST: u32 = 16;
/// An RNR retry limit that means: for ever.
const FOR_EVER: u8 = 7;
/// Unit of the ACK timeout: 4.096 µs.
const TIMEOUT_UNIT: u64 = 4096;
/// Fence modes of a WQE that wait for earlier responses.
const FENCES: [WqeFence; 2] = [WqeFence::FENCE, WqeFence::FENCE_AND_INITIATOR_SMALL];

/// What became of an attempt to send or fetch.
enum Attempt {
    Done,
    /// There is nothing, or it must wait.
    Waits,
}

impl QueuePair<'_> {
    /// Gives the send side its turn.
    pub(in crate::engine) fn send_packets(
        &mut self,
        scratch: &mut Scratch,
    ) -> Result<Turn, Missing> {
        match self.qp.state {
            QpState::Rts | QpState::SqDrained => {}
            QpState::SqError => {
                self.flush_send_queue();
                return Ok(Turn::Sleep);
            }
            QpState::Error => {
                self.flush();
                return Ok(Turn::Sleep);
            }
            _ => return Ok(Turn::Sleep),
        }
        if let Some(due) = self.qp.runtime.resume_at {
            let waits = due > self.context.now;
            match self.qp.runtime.connection().window.timer {
                Timer::NotReady if waits => return Ok(Turn::Sleep),
                Timer::NotReady => self.qp.runtime.resume_at = None,
                Timer::Acknowledge if waits => {}
                Timer::Acknowledge => {
                    self.qp.runtime.resume_at = None;
                    self.count(Count::Timeout);
                    self.qp.runtime.connection().window.missed = None;
                    if let Some(oldest) = self.qp.runtime.connection().window.oldest() {
                        self.send_again(oldest);
                    }
                }
            }
        }
        self.retire();
        for _ in 0..PACKETS_A_TURN {
            let window = &mut self.qp.runtime.connection().window;
            window.skip_sent();
            if window.has_failed() {
                return Ok(Turn::Sleep);
            }
            if window.next == window.requests.len()
                && matches!(self.fetch_next(scratch)?, Attempt::Waits)
            {
                return Ok(Turn::Sleep);
            }
            // One that is decided already sends nothing.
            let attempt = self.send_next(scratch);
            let connection = self.qp.runtime.connection();
            let whole = connection.window.is_sent();
            self.retire();
            match attempt {
                _ if !self.is_sending() => return Ok(Turn::Sleep),
                Attempt::Waits => return Ok(Turn::Sleep),
                // The next request has its turn after those of other queues.
                Attempt::Done if whole => break,
                Attempt::Done => {}
            }
        }
        Ok(Turn::Again)
    }

    /// Nothing of the QP is on its way, and nothing is to be answered.
    pub(in crate::engine) fn is_settled(&self) -> bool {
        self.qp
            .runtime
            .started()
            .is_none_or(|connection| connection.window.requests.is_empty() && !connection.answers)
    }

    fn is_sending(&self) -> bool {
        matches!(self.qp.state, QpState::Rts | QpState::SqDrained)
    }

    /// Takes the next WQE out of the ring into the window.
    fn fetch_next(&mut self, scratch: &mut Scratch) -> Result<Attempt, Missing> {
        if self.qp.state != QpState::Rts {
            return Ok(Attempt::Waits);
        }
        let longest = self.context.limits.max_wqe_sz_sq;
        let sq = self.qp.sq.as_mut().ok_or(Missing::SendQueue(self.qpn))?;
        if sq.consumer == sq.producer {
            sq.awake = false;
            return Ok(Attempt::Waits);
        }
        let index = sq.consumer;
        let fetched = sq.fetch(self.context.memory, longest, &mut scratch.wqe);
        let (service, general) = (self.qp.service, self.context.caps.general());
        let work = fetched.map_err(Refused::from).and_then(|wqebbs| {
            let work = Work::parse(&scratch.wqe, self.qpn, index, service, general)?;
            Ok((work, wqebbs))
        });
        if let Ok((work, _)) = &work
            && !self.may_follow(work, &scratch.wqe)
        {
            // It is fetched again when there is room for it.
            self.unfetch(index, scratch);
            return Ok(Attempt::Waits);
        }
        let sq = self.qp.sq.as_mut().ok_or(Missing::SendQueue(self.qpn))?;
        sq.consumer = index.wrapping_add(fetched.unwrap_or(1));
        let connection = self.qp.runtime.connection();
        let mut wqe = connection.window.buffer();
        wqe.clone_from(&scratch.wqe);
        let mut request = Request {
            index,
            wqebbs: fetched.unwrap_or(1),
            wqe,
            length: 0,
            psn: self.qp.requester.psn,
            packets: 1,
            sent: 0,
            reached: 0,
            done: 0,
            response: Response::Acknowledgement,
            inline: [0; 64],
            decided: None,
        };
        request.decided = match work {
            Ok((work, _)) => self.decide(&work, &mut request, scratch),
            Err(why) => {
                let (qpn, opcode) = (self.qpn, work::opcode(&scratch.wqe));
                tracing::info!(qpn, ?service, opcode, ?why, "a QP does not do what a WQE asks for");
                Some(Err(cqe_syndrome::LOCAL_QP_OPERATION))
            }
        };
        if request.decided.is_none() {
            let next = advance(request.psn, request.packets);
            self.qp.requester.psn = next;
        }
        self.qp.runtime.connection().window.requests.push_back(request);
        Ok(Attempt::Done)
    }

    /// Leaves a WQE for later; one that came by BlueFlame is put back.
    fn unfetch(&mut self, index: u16, scratch: &Scratch) {
        if let Some(sq) = self.qp.sq.as_mut() {
            sq.runtime.copies.put_back(index, &scratch.wqe);
        }
    }

    /// Whether there is room for a request beside those that are not completed, and it need not
    /// wait for any of them.
    fn may_follow(&self, work: &Work, wqe: &[u8]) -> bool {
        let Some(connection) = self.qp.runtime.started() else { return true };
        let window = &connection.window;
        let responses = window.responses();
        let fence = CtrlSegment::from_prefix(wqe).map_or(0, |it| it.ctrl_flags().fm());
        let fence = WqeFence(fence);
        match work.operation.action {
            // Whatever changes a key or waits for nothing has its place in the order.
            Action::Umr | Action::Nop => window.requests.is_empty(),
            _ if fence == WqeFence::STRONG_ORDERING => window.requests.is_empty(),
            _ if FENCES.contains(&fence) && responses > 0 => false,
            _ if work.operation.scatters() => responses < self.qp.requester.max_rd_atomic.into(),
            _ => window.requests.len() < MOST_REQUESTS,
        }
    }

    /// What there is to know of a request before it is sent: how long it is, or how it ends.
    fn decide(
        &mut self,
        work: &Work,
        request: &mut Request,
        scratch: &mut Scratch,
    ) -> Option<Result<(), u8>> {
        if let Some(syndrome) = self.context.state.faults.fails_request(self.qpn) {
            return Some(Err(syndrome));
        }
        request.length = match self.gather_list(work, scratch) {
            Ok(length) => length,
            Err(syndrome) => {
                let operation = work.operation.name;
                tracing::info!(self.qpn, operation, syndrome, "the data segments are no good");
                return Some(Err(syndrome));
            }
        };
        request.packets = self.packets(request.length);
        request.response = match work.operation.action {
            Action::Read => Response::Read,
            Action::CompareSwap | Action::FetchAdd => Response::Atomic,
            _ => Response::Acknowledgement,
        };
        match work.operation.action {
            Action::Nop => Some(Ok(())),
            Action::Umr => {
                let asker = Asker::of(self.qpn, self.qp);
                Some(umr::execute(&mut self.context, &asker, work.immediate, scratch))
            }
            _ => None,
        }
    }

    /// Packets of a message of so many bytes.
    pub(super) fn packets(&self, length: u64) -> u32 {
        length.div_ceil(1 << self.log_mtu()).max(1) as u32
    }

    /// log2 of the path MTU.
    pub(super) fn log_mtu(&self) -> u32 {
        self.qp.log_mtu.clamp(8, 12)
    }

    /// Sends the next packet of the window, if it may go out.
    fn send_next(&mut self, scratch: &mut Scratch) -> Attempt {
        let log_mtu = self.log_mtu();
        let connection = self.qp.runtime.connection();
        let window = &mut connection.window;
        let in_flight = window.in_flight();
        let number = window.next;
        let Some(request) = window.requests.get_mut(number) else { return Attempt::Waits };
        if request.decided.is_some() {
            return Attempt::Done;
        }
        if in_flight >= MOST_IN_FLIGHT {
            return Attempt::Waits;
        }
        let packet = request.sent;
        let at = u64::from(packet) << log_mtu;
        std::mem::swap(&mut scratch.wqe, &mut request.wqe);
        let (index, length, psn) = (request.index, request.length, advance(request.psn, packet));
        let (packets, responds) = (request.packets, request.responds());
        let general = self.context.caps.general();
        let work = Work::parse(&scratch.wqe, self.qpn, index, self.qp.service, general);
        let sent = match &work {
            Ok(work) => {
                let part = Part { packet, packets, at, length, psn };
                self.send_packet(work, &part, scratch)
            }
            Err(_) => Err(cqe_syndrome::LOCAL_QP_OPERATION),
        };
        let now_sent = if responds { packets } else { packet + 1 };
        let reliable = self.qp.service.is_reliable();
        let window = &mut self.qp.runtime.connection().window;
        let request = &mut window.requests[number];
        std::mem::swap(&mut scratch.wqe, &mut request.wqe);
        match sent {
            Ok(()) => {
                request.sent = now_sent;
                request.reached = request.reached.max(now_sent);
                if reliable {
                    self.start_timer();
                } else {
                    // Nobody answers: what has left is done with.
                    request.done = now_sent;
                }
            }
            Err(syndrome) => request.decided = Some(Err(syndrome)),
        }
        Attempt::Done
    }

    /// Builds a packet of a request, whose WQE is in the scratch buffer, and sends it; the error is
    /// the syndrome.
    fn send_packet(&mut self, work: &Work, part: &Part, scratch: &mut Scratch) -> Result<(), u8> {
        let operation = work.operation;
        let (first, last) = (part.packet == 0, part.packet + 1 == part.packets);
        let scatters = operation.scatters();
        let place = match (first, last) {
            _ if scatters => wire::Place::Only,
            (true, true) => wire::Place::Only,
            (true, false) => wire::Place::First,
            (false, false) => wire::Place::Middle,
            (false, true) => wire::Place::Last,
        };
        let message = operation.message.ok_or(cqe_syndrome::LOCAL_QP_OPERATION)?;
        let invalidate = place.ends() && operation.action == (Action::Send { invalidate: true });
        let immediate = place.ends() && operation.immediate && !invalidate;
        let service = self.qp.service.wire().ok_or(cqe_syndrome::LOCAL_QP_OPERATION)?;
        let opcode = Opcode { service, message, place, immediate, invalidate };
        let opcode = opcode.bits().ok_or(cqe_syndrome::LOCAL_QP_OPERATION)?;
        let rest = part.length - part.at.min(part.length);
        let mut extensions = Extensions::default();
        if message == Message::ReadRequest || message == Message::Write && place.begins() {
            let mut reth = Reth::zeroed();
            reth.set_virtual_address(work.remote_address.wrapping_add(part.at))
                .set_rkey(work.rkey)
                .set_dma_length(rest as u32);
            extensions.reth = Some(reth);
        }
        if operation.is_atomic() {
            let mut atomic = AtomicEth::zeroed();
            atomic
                .set_virtual_address(work.remote_address)
                .set_rkey(work.rkey)
                .set_swap_or_add(work.operands.swap_add)
                .set_compare(work.operands.compare);
            extensions.atomic_eth = Some(atomic);
        }
        if immediate {
            let mut immdt = Immdt::zeroed();
            immdt.set_immediate(work.immediate);
            extensions.immdt = Some(immdt);
        }
        if invalidate {
            let mut ieth = Ieth::zeroed();
            ieth.set_rkey(work.immediate);
            extensions.ieth = Some(ieth);
        }
        let asks = place.ends() || (part.packet + 1).is_multiple_of(PACKETS_PER_REQUEST);
        let mut bth = Bth::zeroed();
        bth.set_opcode(opcode)
            .set_solicited(place.ends() && work.solicited)
            .set_acknowledge(self.qp.service.is_reliable() && asks)
            .set_psn(part.psn);
        let bytes = if scatters { 0 } else { rest.min(1 << self.log_mtu()) as usize };
        if !scatters {
            self.gather_part(work, part.at, bytes as u64, scratch)?;
        }
        let lost = place.begins() && self.context.state.faults.loses_message(self.qpn);
        let out = Outgoing { bth, extensions, payload: bytes };
        let memory = self.context.memory;
        let Scratch { local, wqe, .. } = scratch;
        let fill = |into: &mut [u8]| {
            if scatters { Ok(()) } else { transfer::gather(memory, local, wqe, into) }
        };
        match self.emit(&out, lost, fill) {
            Ok(()) => Ok(()),
            Err(End::Source | End::Target) => Err(cqe_syndrome::LOCAL_PROTECTION),
        }
    }

    /// Finds the memory of a part of the WQE's data; the error is the syndrome.
    fn gather_part(
        &self,
        work: &Work,
        at: u64,
        length: u64,
        scratch: &mut Scratch,
    ) -> Result<(), u8> {
        let need = if work.operation.scatters() { Need::LocalWrite } else { Need::LocalRead };
        let user = User { pd: self.qp.pd, qpn: self.qpn, reserved_lkey: self.qp.context.rlky() };
        let Scratch { local, wqe, .. } = scratch;
        local.clear();
        let mut visits = keys::VISITS;
        let (mut skip, mut rest) = (at, length);
        for segment in segments(wqe, work.data) {
            if rest == 0 {
                break;
            }
            let size = match segment {
                Ok(Segment::Pointer { length, .. } | Segment::Inline { length, .. }) => length,
                Err(_) => return Err(cqe_syndrome::LOCAL_QP_OPERATION),
            };
            if skip >= size {
                skip -= size;
                continue;
            }
            let here = (size - skip).min(rest);
            match segment {
                Ok(Segment::Pointer { lkey, address, .. }) => {
                    let address = address.wrapping_add(skip);
                    let range = Range { key: lkey, address, length: here };
                    self.context
                        .keys()
                        .resolve(user, range, need, &mut visits, local)
                        .map_err(|_| cqe_syndrome::LOCAL_PROTECTION)?;
                }
                Ok(Segment::Inline { at, .. }) => {
                    local.push(Sge::Inline { at: at + skip as usize, length: here });
                }
                Err(_) => {}
            }
            rest -= here;
            skip = 0;
        }
        if rest == 0 { Ok(()) } else { Err(cqe_syndrome::LOCAL_LENGTH) }
    }

    /// Takes what the peer answers.
    pub(super) fn take_answer(
        &mut self,
        packet: &Packet<'_>,
        opcode: Opcode,
        scratch: &mut Scratch,
    ) {
        if !self.is_sending() || !self.qp.service.is_reliable() {
            return;
        }
        let transport = &packet.headers.transport;
        let psn = transport.bth.psn();
        let Some(place) = self.qp.runtime.connection().window.place(psn) else { return };
        let syndrome = transport.extensions.aeth.map_or(0, |aeth: Aeth| aeth.syndrome());
        let (kind, value) = (syndrome >> 5 & 3, syndrome & 0x1f);
        let progress = match opcode.message {
            Message::Acknowledge if kind == 0 => self.acknowledged(place),
            Message::Acknowledge => self.refused(place, kind, value),
            // Data and a refusal at once.
            _ if kind != 0 => false,
            Message::ReadResponse => self.read_arrived(place, opcode, packet.payload, scratch),
            Message::AtomicAcknowledge => {
                let value = transport.extensions.atomic_ack_eth.map_or(0, |it| it.original());
                self.atomic_arrived(place, value, scratch)
            }
            _ => false,
        };
        if progress {
            let requester = &mut self.qp.requester;
            requester.retries_left = requester.retry_limit;
            requester.rnr_retries_left = requester.rnr_retry_limit;
            self.qp.runtime.connection().window.missed = None;
            if self.qp.runtime.connection().window.timer == Timer::Acknowledge {
                self.stop_timer();
            }
        }
        self.retire();
        if self.is_sending() {
            if self.qp.runtime.connection().window.oldest().is_some() {
                self.start_timer();
            }
            self.goes_on();
        }
    }

    /// An ACK: everything up to the packet has arrived.
    fn acknowledged(&mut self, place: Place) -> bool {
        let window = &mut self.qp.runtime.connection().window;
        let through = Place { packet: place.packet + 1, ..place };
        let before = window.oldest();
        if let Err(missing) = window.acknowledge_before(through) {
            self.response_lost(missing);
        }
        self.qp.runtime.connection().window.oldest() != before
    }

    /// A NAK: everything before the packet has arrived, and it has not.
    fn refused(&mut self, place: Place, kind: u8, value: u8) -> bool {
        let window = &mut self.qp.runtime.connection().window;
        let before = window.oldest();
        if let Err(missing) = window.acknowledge_before(place) {
            self.response_lost(missing);
            return false;
        }
        let progress = self.qp.runtime.connection().window.oldest() != before;
        match (kind, AethNak(value)) {
            (1, _) => self.not_ready(place, value),
            // What was dropped since the peer was not ready is not lost.
            (3, AethNak::PSN_SEQUENCE) if self.waits_for_receiver() => {}
            (3, AethNak::PSN_SEQUENCE) => self.lost(place, Count::SequenceNak),
            (3, why) => {
                let syndrome = match why {
                    AethNak::INVALID_REQUEST => cqe_syndrome::REMOTE_INVALID_REQUEST,
                    AethNak::REMOTE_ACCESS => cqe_syndrome::REMOTE_ACCESS,
                    AethNak::REMOTE_OPERATION => cqe_syndrome::REMOTE_OPERATION,
                    _ => cqe_syndrome::BAD_RESPONSE,
                };
                self.decide_at(place.request, syndrome);
            }
            _ => {}
        }
        progress
    }

    /// A request ends with this syndrome.
    fn decide_at(&mut self, request: usize, syndrome: u8) {
        if let Some(request) = self.qp.runtime.connection().window.requests.get_mut(request) {
            request.decided = Some(Err(syndrome));
        }
    }

    /// A later packet was answered, and the response to this one is missing: it is asked for again.
    fn response_lost(&mut self, missing: Place) {
        self.lost(missing, Count::ImpliedNak);
    }

    /// A packet, or its response, is missing: it is sent again, unless that was said before.
    fn lost(&mut self, missing: Place, what: Count) {
        if self.is_news(missing) {
            self.count(what);
            self.send_again(missing);
        }
    }

    /// Whether nobody has said yet that this packet is missing, or its response; else it is sent
    /// again already, and should that be lost as well, time will tell.
    fn is_news(&mut self, missing: Place) -> bool {
        let window = &mut self.qp.runtime.connection().window;
        let psn = window.requests.get(missing.request).map(|it| advance(it.psn, missing.packet));
        std::mem::replace(&mut window.missed, psn) != psn
    }

    /// Sends again what follows `place`, if a retry is left.
    fn send_again(&mut self, place: Place) {
        if self.qp.requester.retries_left == 0 {
            return self.decide_at(place.request, cqe_syndrome::TRANSPORT_RETRY_EXCEEDED);
        }
        self.qp.requester.retries_left -= 1;
        self.qp.runtime.connection().window.go_back(place);
    }

    /// The receiver was not ready, and has still time.
    fn waits_for_receiver(&mut self) -> bool {
        let timer = self.qp.runtime.connection().window.timer;
        timer == Timer::NotReady && self.qp.runtime.resume_at.is_some()
    }

    /// RNR NAK: sends again after a time that the receiver chose.
    fn not_ready(&mut self, place: Place, timer: u8) {
        if self.waits_for_receiver() {
            return;
        }
        let requester = &mut self.qp.requester;
        let ends = requester.rnr_retry_limit != FOR_EVER;
        if ends && requester.rnr_retries_left == 0 {
            return self.decide_at(place.request, cqe_syndrome::RNR_RETRY_EXCEEDED);
        }
        requester.rnr_retries_left -= u8::from(ends);
        self.count(Count::RnrNak);
        let window = &mut self.qp.runtime.connection().window;
        window.go_back(place);
        window.timer = Timer::NotReady;
        self.wait_for(rnr_timer(timer));
    }

    /// A packet of the response to a READ. True if it is the next one.
    fn read_arrived(
        &mut self,
        place: Place,
        opcode: Opcode,
        payload: &[u8],
        scratch: &mut Scratch,
    ) -> bool {
        let log_mtu = self.log_mtu();
        let window = &mut self.qp.runtime.connection().window;
        // What came before it is done: the peer answers in order.
        if let Err(missing) = window.acknowledge_before(Place { packet: 0, ..place }) {
            self.response_lost(missing);
            return false;
        }
        let request = &mut self.qp.runtime.connection().window.requests[place.request];
        if request.decided.is_some() || place.packet < request.done {
            return false;
        }
        if request.response != Response::Read {
            self.decide_at(place.request, cqe_syndrome::BAD_RESPONSE);
            return false;
        }
        if place.packet > request.done {
            let missing = Place { packet: request.done, ..place };
            self.response_lost(missing);
            return false;
        }
        let at = u64::from(place.packet) << log_mtu;
        let expected = (request.length - at.min(request.length)).min(1 << log_mtu);
        let ends = place.packet + 1 == request.packets;
        if payload.len() as u64 != expected || opcode.place.ends() != ends {
            self.decide_at(place.request, cqe_syndrome::BAD_RESPONSE);
            return false;
        }
        self.put_response(place, at, payload, scratch)
    }

    /// What was there before an atomic.
    fn atomic_arrived(&mut self, place: Place, value: u64, scratch: &mut Scratch) -> bool {
        let window = &mut self.qp.runtime.connection().window;
        if let Err(missing) = window.acknowledge_before(Place { packet: 0, ..place }) {
            self.response_lost(missing);
            return false;
        }
        let request = &self.qp.runtime.connection().window.requests[place.request];
        if request.is_over() {
            return false;
        }
        if request.response != Response::Atomic {
            self.decide_at(place.request, cqe_syndrome::BAD_RESPONSE);
            return false;
        }
        self.put_response(place, 0, &value.to_ne_bytes(), scratch)
    }

    /// Puts a part of a response where the WQE wants it.
    fn put_response(&mut self, place: Place, at: u64, bytes: &[u8], scratch: &mut Scratch) -> bool {
        let room = u64::from(self.qp.requester_inline);
        let request = &mut self.qp.runtime.connection().window.requests[place.request];
        let (index, length) = (request.index, request.length);
        std::mem::swap(&mut scratch.wqe, &mut request.wqe);
        let general = self.context.caps.general();
        let work = Work::parse(&scratch.wqe, self.qpn, index, self.qp.service, general);
        let put = work.map_err(|_| cqe_syndrome::LOCAL_QP_OPERATION).and_then(|work| {
            if work.signaled && length > 0 && length <= room {
                return Ok(true);
            }
            self.gather_part(&work, at, bytes.len() as u64, scratch)?;
            transfer::scatter(self.context.memory, &scratch.local, bytes)
                .map_err(|_| cqe_syndrome::LOCAL_PROTECTION)?;
            Ok(false)
        });
        let request = &mut self.qp.runtime.connection().window.requests[place.request];
        std::mem::swap(&mut scratch.wqe, &mut request.wqe);
        match put {
            Ok(in_cqe) => {
                if in_cqe {
                    request.inline[at as usize..][..bytes.len()].copy_from_slice(bytes);
                }
                request.done = place.packet + 1;
                request.sent = request.sent.max(request.done);
                true
            }
            Err(syndrome) => {
                request.decided = Some(Err(syndrome));
                false
            }
        }
    }

    /// Completes the requests that are over, oldest first.
    fn retire(&mut self) {
        while self.is_sending() {
            let Some(request) = self.qp.runtime.connection().window.retire() else { break };
            let Request { index, wqebbs, length, .. } = request;
            match request.decided.unwrap_or(Ok(())) {
                Ok(()) => {
                    let general = self.context.caps.general();
                    let service = self.qp.service;
                    let work = Work::parse(&request.wqe, self.qpn, index, service, general);
                    if let Ok(work) = work {
                        let placed = Placed { work, index, wqebbs, length };
                        self.report(&placed, &request);
                    }
                }
                Err(syndrome) => {
                    self.stop_timer();
                    let opcode = work::opcode(&request.wqe);
                    tracing::info!(self.qpn, opcode, syndrome, "a send request failed");
                    self.fail(index, opcode, syndrome);
                }
            }
            self.qp.runtime.connection().window.reuse(request.wqe);
        }
    }

    /// The CQE of a request that is done, if one is wanted.
    fn report(&mut self, placed: &Placed, request: &Request) {
        let (length, room) = (request.length, u64::from(self.qp.requester_inline));
        let in_cqe = request.responds() && placed.work.signaled && length > 0 && length <= room;
        let bytes = if request.responds() { length as u32 } else { 0 };
        let inline = in_cqe.then(|| &request.inline[..length as usize]);
        self.completed(placed, bytes, inline);
    }

    /// Lets the timer of the oldest request run, if it does not yet.
    fn start_timer(&mut self) {
        if self.qp.runtime.resume_at.is_some() {
            return;
        }
        let time = match self.qp.requester.ack_timeout {
            0 => return,
            timeout => TIMEOUT_UNIT << timeout.min(31),
        };
        self.qp.runtime.connection().window.timer = Timer::Acknowledge;
        self.wait_for(time);
    }

    fn stop_timer(&mut self) {
        let waits = self.qp.runtime.resume_at.take();
        self.context.state.stop_timer(waits, self.qpn);
    }

    /// Lets the QP have a turn when so much time has passed.
    fn wait_for(&mut self, time: u64) {
        self.stop_timer();
        let at = self.context.now.saturating_add(time);
        self.qp.runtime.resume_at = Some(at);
        self.context.state.timers.insert((at, self.qpn));
    }

    /// The send side may have something to do.
    fn goes_on(&mut self) {
        let Some(sq) = self.qp.sq.as_mut() else { return };
        if !std::mem::replace(&mut sq.runtime.queued, true) {
            self.context.state.active.push_back(self.qpn);
        }
    }
}

/// A packet of a request.
struct Part {
    /// Which of how many.
    packet: u32,
    packets: u32,
    /// Where its payload begins in the message, and how long that is.
    at: u64,
    length: u64,
    psn: u32,
}

const _: () = assert!(MOST_IN_FLIGHT < PSN_MASK / 2);
