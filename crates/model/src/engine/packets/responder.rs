//! The receive side of a connected QP whose messages come in packets: places each where it belongs,
//! and answers for it (RC), or drops what does not fit (UC).
//!
//! A PSN that is expected is executed; one that lies ahead is reported once; one that lies behind
//! is answered again: READs from memory, atomics from what is remembered, so that each is executed
//! exactly once.
//!
//! Sources: InfiniBand specification, volume 1, 9.7.4 (request packets at the responder), 9.7.5
//! (responses), 9.8.2 (unreliable connection).

use verbless_prm::hot::{cqe_opcode, cqe_syndrome, event_type};
use verbless_prm::{Aeth, AethNak, AtomicAckEth, Bth};

use super::super::context::QueuePair;
use super::super::counters::Count;
use super::super::cqe::Received;
use super::super::keys::Need;
use super::super::operation::Operation;
use super::super::responder::Nak;
use super::super::scratch::Scratch;
use super::super::transfer;
use super::super::work::Operands;
use super::egress::Outgoing;
use crate::connection::{Answer, Distance, Incoming, Replay, Target, advance, distance};
use crate::hca::objects::QpState;
use crate::wire::{Extensions, Message, Opcode, Packet, Place, Route, Service};

/// Packets of answers that go out in one turn.
const PACKETS_A_TURN: u32 = 16;
/// The credit count of an ACK that tells nothing of credits.
const NO_CREDITS: u8 = 0x1f;
/// What kind of AETH syndrome it is: bits 6:5.
const RNR_NAK: u8 = 0x20;
const NAK: u8 = 0x60;

impl QueuePair<'_> {
    /// Takes a packet of a request.
    pub(super) fn take_request(
        &mut self,
        packet: &Packet<'_>,
        opcode: Opcode,
        scratch: &mut Scratch,
    ) {
        if !self.qp.state.receives() {
            return;
        }
        if self.qp.state == QpState::Rtr
            && !std::mem::replace(&mut self.qp.runtime.established, true)
        {
            self.context.events.qp(event_type::COMMUNICATION_ESTABLISHED, self.qpn);
        }
        match opcode.service {
            Service::Rc => self.take_reliable(packet, opcode, scratch),
            _ => self.take_unreliable(packet, opcode, scratch),
        }
    }

    fn take_reliable(&mut self, packet: &Packet<'_>, opcode: Opcode, scratch: &mut Scratch) {
        let bth = &packet.headers.transport.bth;
        let (psn, expected) = (bth.psn(), self.qp.responder.psn);
        match distance(expected, psn) {
            Distance::Ahead(_) => {
                if !std::mem::replace(&mut self.qp.runtime.connection().arriving.reported, true) {
                    self.count(Count::OutOfSequence);
                    self.refuse(expected, NAK | AethNak::PSN_SEQUENCE.0);
                }
                return;
            }
            Distance::Behind(_) => {
                self.count(Count::Duplicate);
                self.take_duplicate(packet, opcode);
                return;
            }
            Distance::Same => self.qp.runtime.connection().arriving.reported = false,
        }
        let done = match self.fits(packet, opcode) {
            Ok(()) => self.execute(packet, opcode, scratch),
            Err(nak) => Err(nak),
        };
        self.count_done(opcode, &done);
        match done {
            Ok(()) => {
                if matches!(opcode.message, Message::Send | Message::Write) {
                    self.qp.runtime.connection().arriving.executed = Some(psn);
                }
                if bth.acknowledge() && opcode.message != Message::ReadRequest && !is_atomic(opcode)
                {
                    let msn = self.qp.runtime.connection().arriving.msn;
                    self.answer(Answer::Acknowledge { psn, msn });
                }
            }
            Err(Nak::NotReady) => {
                // Until it comes again, what follows it is dropped without a word.
                self.qp.runtime.connection().arriving.reported = true;
                let timer = self.qp.responder.min_rnr_timer;
                self.refuse(psn, RNR_NAK | timer & 0x1f);
            }
            Err(nak) => self.fail_responder(psn, nak),
        }
    }

    /// Whether a packet can follow those before it, as far as it says itself.
    fn fits(&mut self, packet: &Packet<'_>, opcode: Opcode) -> Result<(), Nak> {
        let mtu = 1_usize << self.log_mtu();
        let arriving = &self.qp.runtime.connection().arriving;
        let follows = match &arriving.message {
            Some(Incoming { into: Target::Receive { .. }, .. }) => {
                opcode.message == Message::Send && !opcode.place.begins()
            }
            Some(_) => opcode.message == Message::Write && !opcode.place.begins(),
            None => opcode.place.begins(),
        };
        let length = packet.payload.len();
        let has_length = match opcode.place {
            Place::First | Place::Middle => length == mtu,
            Place::Last => (1..=mtu).contains(&length),
            Place::Only => length <= mtu,
        };
        if follows && has_length { Ok(()) } else { Err(Nak::InvalidRequest) }
    }

    fn execute(
        &mut self,
        packet: &Packet<'_>,
        opcode: Opcode,
        scratch: &mut Scratch,
    ) -> Result<(), Nak> {
        match opcode.message {
            Message::Send => self.send_arrived(packet, opcode, scratch),
            Message::Write => self.write_arrived(packet, opcode, scratch),
            Message::ReadRequest => self.read_asked(packet, scratch),
            Message::CompareSwap | Message::FetchAdd => self.atomic_asked(packet, opcode, scratch),
            _ => Err(Nak::InvalidRequest),
        }
    }

    /// A packet was executed: the next one is expected.
    fn arrived(&mut self, packets: u32, ends: bool) {
        self.qp.responder.psn = advance(self.qp.responder.psn, packets);
        let arriving = &mut self.qp.runtime.connection().arriving;
        if ends {
            arriving.msn = advance(arriving.msn, 1);
            arriving.message = None;
        }
    }

    fn send_arrived(
        &mut self,
        packet: &Packet<'_>,
        opcode: Opcode,
        scratch: &mut Scratch,
    ) -> Result<(), Nak> {
        let payload = packet.payload;
        let message = match opcode.place.begins() {
            true => None,
            false => self.qp.runtime.connection().arriving.message.take(),
        };
        let (index, mut bytes) = match message {
            Some(Incoming { into: Target::Receive { index, wqe }, bytes }) => {
                scratch.receive = wqe;
                (index, bytes)
            }
            _ => (self.take_receive(scratch)?, 0),
        };
        let (at, length) = (bytes, payload.len() as u64);
        bytes += length;
        if bytes > self.context.limits.longest_message(self.qp) {
            return Err(Nak::InvalidRequest);
        }
        // A message of one packet may fit into its CQE.
        let room = u64::from(self.qp.responder_inline);
        let in_cqe = opcode.place == Place::Only && length > 0 && length <= room;
        if let Err(syndrome) = self.scatter_part(at, length, scratch) {
            if self.qp.srq.is_none() {
                self.use_up(index)?;
            }
            self.report_receive_error(index, syndrome);
            self.enter_error();
            return Err(match syndrome {
                cqe_syndrome::LOCAL_LENGTH => Nak::InvalidRequest,
                _ => Nak::Operation,
            });
        }
        if !in_cqe {
            transfer::scatter(self.context.memory, &scratch.remote, payload)
                .map_err(|_| Nak::Operation)?;
        }
        if !opcode.place.ends() {
            let wqe = std::mem::take(&mut scratch.receive);
            let into = Target::Receive { index, wqe };
            self.qp.runtime.connection().arriving.message = Some(Incoming { into, bytes });
            self.arrived(1, false);
            return Ok(());
        }
        let extensions = &packet.headers.transport.extensions;
        let invalidated = extensions.ieth.map(|ieth| ieth.rkey());
        if let Some(key) = invalidated {
            self.invalidate(key)?;
        }
        let immediate = extensions.immdt.map(|immdt| immdt.immediate());
        let kind = match (immediate, invalidated) {
            (Some(_), _) => cqe_opcode::RESPONDER_SEND_IMM,
            (None, Some(_)) => cqe_opcode::RESPONDER_SEND_INVALIDATE,
            (None, None) => cqe_opcode::RESPONDER_SEND,
        };
        let value = immediate.or(invalidated).unwrap_or(0);
        self.arrived(1, true);
        if self.qp.srq.is_none() {
            self.use_up(index)?;
        }
        let inline = in_cqe.then_some(payload);
        self.message_complete(packet, index, kind, value, bytes, inline)
    }

    /// Gives the receive WQE for a message, in the scratch buffer, and its index. That of a shared
    /// queue is used up now: another QP may take the next one before the message is whole.
    fn take_receive(&mut self, scratch: &mut Scratch) -> Result<u16, Nak> {
        if let Some((index, wqe)) = self.qp.runtime.connection().arriving.held.take() {
            scratch.receive = wqe;
            return Ok(index);
        }
        let index = self.next_receive(Some(&mut scratch.receive))?;
        if self.qp.srq.is_some() {
            self.use_up(index)?;
        }
        Ok(index)
    }

    /// Takes back what a message that is not whole, or was cut off, has of a shared queue.
    pub(in crate::engine) fn taken_receive(&mut self) -> Option<(u16, Vec<u8>)> {
        self.qp.srq?;
        self.qp.runtime.started()?;
        let arriving = &mut self.qp.runtime.connection().arriving;
        if let Some(held) = arriving.held.take() {
            return Some(held);
        }
        match arriving.message.take()?.into {
            Target::Receive { index, wqe } => Some((index, wqe)),
            Target::Range { .. } => None,
        }
    }

    fn write_arrived(
        &mut self,
        packet: &Packet<'_>,
        opcode: Opcode,
        scratch: &mut Scratch,
    ) -> Result<(), Nak> {
        let (payload, extensions) = (packet.payload, &packet.headers.transport.extensions);
        let length = payload.len() as u64;
        let (key, start, whole, at) =
            match (extensions.reth, &self.qp.runtime.connection().arriving.message) {
                (Some(reth), _) => {
                    let whole = u64::from(reth.dma_length());
                    if whole > self.context.limits.longest_message(self.qp) {
                        return Err(Nak::InvalidRequest);
                    }
                    let (key, start) = (reth.rkey(), reth.virtual_address());
                    // The whole range is checked before the first byte moves.
                    self.range(key, start, whole, Need::RemoteWrite, scratch)?;
                    (key, start, whole, 0)
                }
                (None, Some(Incoming { into: Target::Range { key, address, length }, bytes })) => {
                    (*key, *address, *length, *bytes)
                }
                _ => return Err(Nak::InvalidRequest),
            };
        let bytes = at + length;
        if bytes > whole || opcode.place.ends() && bytes != whole {
            return Err(Nak::InvalidRequest);
        }
        let immediate = extensions.immdt.map(|immdt| immdt.immediate());
        let index = match immediate {
            Some(_) => Some(self.next_receive(None)?),
            None => None,
        };
        if length > 0 {
            let address = start.wrapping_add(at);
            self.range(key, address, length, Need::RemoteWrite, scratch)?;
            transfer::scatter(self.context.memory, &scratch.remote, payload)
                .map_err(|_| Nak::Operation)?;
        }
        if !opcode.place.ends() {
            let into = Target::Range { key, address: start, length: whole };
            self.qp.runtime.connection().arriving.message = Some(Incoming { into, bytes });
            self.arrived(1, false);
            return Ok(());
        }
        self.arrived(1, true);
        match (index, immediate) {
            (Some(index), Some(value)) => {
                let kind = cqe_opcode::RESPONDER_WRITE_IMM;
                self.use_up(index)?;
                self.message_complete(packet, index, kind, value, whole, None)
            }
            _ => Ok(()),
        }
    }

    fn read_asked(&mut self, packet: &Packet<'_>, scratch: &mut Scratch) -> Result<(), Nak> {
        let extensions = &packet.headers.transport.extensions;
        let reth = extensions.reth.ok_or(Nak::InvalidRequest)?;
        let (key, address) = (reth.rkey(), reth.virtual_address());
        let length = u64::from(reth.dma_length());
        if length > self.context.limits.longest_message(self.qp) || self.answers_too_many() {
            return Err(Nak::InvalidRequest);
        }
        self.range(key, address, length, Need::RemoteRead, scratch)?;
        let packets = self.packets(length);
        let psn = self.qp.responder.psn;
        let most = self.qp.responder.max_dest_rd_atomic;
        self.qp.runtime.connection().arriving.remember(Replay::Read { psn, packets }, most);
        self.arrived(packets, true);
        let msn = self.qp.runtime.connection().arriving.msn;
        let (sent, again) = (0, false);
        self.answer(Answer::Read { psn, msn, packets, sent, key, address, length, again });
        Ok(())
    }

    fn atomic_asked(
        &mut self,
        packet: &Packet<'_>,
        opcode: Opcode,
        scratch: &mut Scratch,
    ) -> Result<(), Nak> {
        let header = packet.headers.transport.extensions.atomic_eth.ok_or(Nak::InvalidRequest)?;
        let (key, address) = (header.rkey(), header.virtual_address());
        if !address.is_multiple_of(8) || self.answers_too_many() {
            return Err(Nak::InvalidRequest);
        }
        self.range(key, address, 8, Need::Atomic, scratch)?;
        let operands = Operands { swap_add: header.swap_or_add(), compare: header.compare() };
        let action = Operation::of_message(opcode.message).ok_or(Nak::InvalidRequest)?.action;
        let value = self.exchange_word(action, operands, scratch)?;
        let psn = self.qp.responder.psn;
        self.arrived(1, true);
        let most = self.qp.responder.max_dest_rd_atomic;
        let arriving = &mut self.qp.runtime.connection().arriving;
        let msn = arriving.msn;
        arriving.remember(Replay::Atomic { psn, msn, value }, most);
        self.answer(Answer::Atomic { psn, msn, value });
        Ok(())
    }

    /// Whether the requester asks for more at a time than it was told that it may.
    fn answers_too_many(&mut self) -> bool {
        let most = usize::from(self.qp.responder.max_dest_rd_atomic);
        self.qp.runtime.connection().arriving.unanswered() >= most
    }

    /// A message is complete, and its receive WQE used up: its CQE is written.
    fn message_complete(
        &mut self,
        packet: &Packet<'_>,
        index: u16,
        opcode: u8,
        immediate: u32,
        bytes: u64,
        inline: Option<&[u8]>,
    ) -> Result<(), Nak> {
        let of = Received {
            opcode,
            index,
            bytes: bytes as u32,
            immediate,
            solicited: packet.headers.transport.bth.solicited(),
            slid: slid(&packet.headers.route),
            peer: self.qp.remote_qpn & 0xff_ffff,
            now: self.context.ticks(),
        };
        self.report_receive(&of, inline)
    }

    /// A packet that was executed before comes again: its answer was lost.
    fn take_duplicate(&mut self, packet: &Packet<'_>, opcode: Opcode) {
        let transport = &packet.headers.transport;
        let psn = transport.bth.psn();
        let arriving = &self.qp.runtime.connection().arriving;
        let msn = arriving.msn;
        match opcode.message {
            Message::Send | Message::Write => {
                // Not with the PSN of a READ or atomic that was executed since: only their own
                // answers acknowledge those.
                let Some(psn) = arriving.executed else { return };
                self.answer(Answer::Acknowledge { psn, msn });
            }
            Message::ReadRequest => {
                let Some(reth) = transport.extensions.reth else { return };
                let length = u64::from(reth.dma_length());
                let packets = self.packets(length);
                let known =
                    self.qp.runtime.connection().arriving.replay.iter().any(|it| match *it {
                        Replay::Read { psn: first, packets: all } => match distance(first, psn) {
                            Distance::Same => packets <= all,
                            Distance::Ahead(by) => by.saturating_add(packets) <= all,
                            Distance::Behind(_) => false,
                        },
                        Replay::Atomic { .. } => false,
                    });
                if known {
                    let (key, address) = (reth.rkey(), reth.virtual_address());
                    let (sent, again) = (0, true);
                    self.answer(Answer::Read {
                        psn,
                        msn,
                        packets,
                        sent,
                        key,
                        address,
                        length,
                        again,
                    });
                }
            }
            Message::CompareSwap | Message::FetchAdd => {
                let found = arriving.replay.iter().find_map(|it| match *it {
                    Replay::Atomic { psn: of, msn, value } if of == psn => {
                        Some(Answer::Atomic { psn, msn, value })
                    }
                    _ => None,
                });
                if let Some(answer) = found {
                    self.answer(answer);
                }
            }
            _ => {}
        }
    }

    /// What was asked for cannot be done: the QP fails, and the requester is told why.
    fn fail_responder(&mut self, psn: u32, nak: Nak) {
        let (event, why) = match nak {
            Nak::Access => (Some(event_type::WQ_ACCESS_ERROR), AethNak::REMOTE_ACCESS),
            Nak::InvalidRequest => {
                // A receive WQE that was too short told of it by its CQE already.
                let told = self.qp.state == QpState::Error;
                let event = (!told).then_some(event_type::WQ_INVALID_REQUEST_ERROR);
                (event, AethNak::INVALID_REQUEST)
            }
            _ => (None, AethNak::REMOTE_OPERATION),
        };
        if let Some(event) = event {
            self.context.events.qp(event, self.qpn);
        }
        let gone = self.is_gone();
        self.enter_error();
        if !gone {
            self.refuse(psn, NAK | why.0);
        }
    }

    fn refuse(&mut self, psn: u32, syndrome: u8) {
        let msn = self.qp.runtime.connection().arriving.msn;
        self.answer(Answer::Refuse { psn, msn, syndrome });
    }

    /// Lets an answer go out behind those that wait.
    fn answer(&mut self, answer: Answer) {
        let connection = self.qp.runtime.connection();
        match answer {
            Answer::Read { again: true, .. } | Answer::Atomic { .. } => {
                connection.arriving.answer_again(answer);
            }
            _ => connection.arriving.answer(answer),
        }
        if !std::mem::replace(&mut connection.answers, true) {
            self.context.state.answering.push_back(self.qpn);
        }
    }

    /// Sends answers that wait, but not too many; true if some are left.
    pub(in crate::engine) fn send_answers(&mut self, scratch: &mut Scratch) -> bool {
        for _ in 0..PACKETS_A_TURN {
            let Some(&answer) = self.qp.runtime.connection().arriving.answers.front() else {
                break;
            };
            let over = match answer {
                Answer::Acknowledge { psn, msn } => self.emit_aeth(psn, msn, NO_CREDITS),
                Answer::Refuse { psn, msn, syndrome } => self.emit_aeth(psn, msn, syndrome),
                Answer::Atomic { psn, msn, value } => self.emit_atomic(psn, msn, value),
                Answer::Read { .. } => self.emit_read(answer, scratch),
            };
            if over {
                self.qp.runtime.connection().arriving.answers.pop_front();
            }
        }
        let connection = self.qp.runtime.connection();
        connection.answers = !connection.arriving.answers.is_empty();
        connection.answers
    }

    /// Software stopped the QP: nothing goes out any more.
    pub(in crate::engine) fn forget_answers(&mut self) {
        if self.qp.runtime.started().is_some() {
            self.qp.runtime.connection().arriving.answers.clear();
        }
    }

    fn emit_aeth(&mut self, psn: u32, msn: u32, syndrome: u8) -> bool {
        let out = response(Message::Acknowledge, Place::Only, psn, Some((msn, syndrome)), 0);
        let _ = self.emit(&out, false, |_| Ok(()));
        true
    }

    fn emit_atomic(&mut self, psn: u32, msn: u32, value: u64) -> bool {
        let aeth = Some((msn, NO_CREDITS));
        let mut out = response(Message::AtomicAcknowledge, Place::Only, psn, aeth, 0);
        let mut original = AtomicAckEth::zeroed();
        original.set_original(value);
        out.extensions.atomic_ack_eth = Some(original);
        let _ = self.emit(&out, false, |_| Ok(()));
        true
    }

    /// Sends the next packet of the answer to a READ; true if it was the last one.
    fn emit_read(&mut self, answer: Answer, scratch: &mut Scratch) -> bool {
        let Answer::Read { psn, msn, packets, sent, key, address, length, again } = answer else {
            return true;
        };
        let log_mtu = self.log_mtu();
        let at = u64::from(sent) << log_mtu;
        let here = (length - at.min(length)).min(1 << log_mtu);
        let place = match (sent == 0, sent + 1 == packets) {
            (true, true) => Place::Only,
            (true, false) => Place::First,
            (false, false) => Place::Middle,
            (false, true) => Place::Last,
        };
        let from = address.wrapping_add(at);
        let psn = advance(psn, sent);
        if let Err(nak) = self.range(key, from, here, Need::RemoteRead, scratch) {
            if again {
                // Who still waits for it asks once more; who has it may have closed the key.
                return true;
            }
            self.qp.runtime.connection().arriving.answers.clear();
            self.fail_responder(psn, nak);
            return false;
        }
        let aeth = (place != Place::Middle).then_some((msn, NO_CREDITS));
        let out = response(Message::ReadResponse, place, psn, aeth, here as usize);
        let memory = self.context.memory;
        let remote = &scratch.remote;
        let emitted = self.emit(&out, false, |into| transfer::gather(memory, remote, &[], into));
        if emitted.is_err() {
            self.qp.runtime.connection().arriving.answers.clear();
            self.fail_responder(psn, Nak::Operation);
            return false;
        }
        if let Some(Answer::Read { sent, .. }) =
            self.qp.runtime.connection().arriving.answers.front_mut()
        {
            *sent += 1;
        }
        place.ends()
    }

    /// What a message counts as when its last packet was executed, or one was refused.
    fn count_done(&mut self, opcode: Opcode, done: &Result<(), Nak>) {
        let what = match (done, opcode.message) {
            (Err(Nak::NotReady), _) => Count::OutOfBuffer,
            (Err(Nak::Access), _) => Count::ResponderAccess,
            (Err(Nak::InvalidRequest), _) => Count::ResponderInvalid,
            (Err(_), _) => return,
            (Ok(()), Message::Write) if opcode.place.ends() => Count::Writes,
            (Ok(()), Message::ReadRequest) => Count::Reads,
            (Ok(()), Message::CompareSwap | Message::FetchAdd) => Count::Atomics,
            _ => return,
        };
        self.count(what);
    }

    /// UC: what was lost is lost, with the message that it belonged to.
    fn take_unreliable(&mut self, packet: &Packet<'_>, opcode: Opcode, scratch: &mut Scratch) {
        let psn = packet.headers.transport.bth.psn();
        let gap = distance(self.qp.responder.psn, psn) != Distance::Same;
        self.qp.responder.psn = psn;
        if gap || opcode.place.begins() {
            self.cut_message();
        }
        let done = match self.fits(packet, opcode) {
            Ok(()) => self.execute(packet, opcode, scratch),
            Err(_) => {
                self.qp.responder.psn = advance(psn, 1);
                return;
            }
        };
        self.count_done(opcode, &done);
        if done.is_err() {
            self.cut_message();
            self.qp.responder.psn = advance(psn, 1);
        }
    }

    /// The message that is arriving will not be whole: its receive WQE serves the next one.
    fn cut_message(&mut self) {
        let held = self.taken_receive();
        let arriving = &mut self.qp.runtime.connection().arriving;
        arriving.message = None;
        arriving.held = held;
    }
}

fn is_atomic(opcode: Opcode) -> bool {
    matches!(opcode.message, Message::CompareSwap | Message::FetchAdd)
}

/// The LID that a packet left from; 0 on Ethernet.
pub(super) fn slid(route: &Route) -> u16 {
    match route {
        Route::Local(lrh) | Route::Global(lrh, _) => lrh.source_lid(),
        _ => 0,
    }
}

/// A packet that goes back; `aeth`: MSN and syndrome.
fn response(
    message: Message,
    place: Place,
    psn: u32,
    aeth: Option<(u32, u8)>,
    payload: usize,
) -> Outgoing {
    let opcode =
        Opcode { service: Service::Rc, message, place, immediate: false, invalidate: false };
    let mut bth = Bth::zeroed();
    if let Some(opcode) = opcode.bits() {
        bth.set_opcode(opcode);
    }
    bth.set_psn(psn);
    let aeth = aeth.map(|(msn, syndrome)| {
        let mut aeth = Aeth::zeroed();
        aeth.set_msn(msn).set_syndrome(syndrome);
        aeth
    });
    Outgoing { bth, extensions: Extensions { aeth, ..Extensions::default() }, payload }
}
