//! The responder's answers to a requester: ACKs, NAKs, READ responses and atomic responses, in the
//! order of the requests. A repeated request gets its answer again.
//!
//! Source: InfiniBand specification, volume 1, 9.7.5 (responses).

use verbless_prm::{Aeth, AtomicAckEth, Bth};

use super::super::access::{self, Nak};
use super::super::keys::AccessRight;
use super::super::operation::Remote;
use super::super::queue_pair::QueuePair;
use super::super::scratch::Scratch;
use super::super::transfer;
use super::egress::Outgoing;
use crate::connection::{Answer, Distance, Replay, Response, advance, distance};
use verbless_wire::{Extensions, Message, Opcode, Packet, Position, Service};

/// Packets of answers that go out in one turn.
const PACKETS_A_TURN: u32 = 16;
/// The credit count of an ACK without credit information.
const NO_CREDITS: u8 = 0x1f;

impl QueuePair<'_> {
    /// Handles a packet that was executed before and comes again: its answer was lost.
    pub(super) fn take_duplicate(&mut self, packet: &Packet<'_>, opcode: Opcode) {
        let transport = &packet.headers.transport;
        let psn = transport.bth.psn();
        let msn = self.qp.runtime.msn;
        let arriving = &self.qp.runtime.connection().arriving;
        let Some(remote) = Remote::of(opcode.message) else { return };
        match remote.response() {
            Response::Acknowledgement => {
                // Not with the PSN of a READ or atomic that was executed since: only its own
                // response acknowledges it.
                let Some(psn) = arriving.executed else {
                    tracing::debug!(
                        qpn = self.qpn,
                        psn,
                        "a duplicate of a request that was never executed"
                    );
                    return;
                };
                self.answer(Answer::Acknowledge { psn, msn });
            }
            Response::Read => {
                // The parser requires one of every READ request.
                let Some(reth) = transport.extensions.reth else {
                    tracing::error!(qpn = self.qpn, psn, "a READ request without a RETH");
                    return;
                };
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
            Response::Atomic => {
                let found = arriving.replay.iter().find_map(|it| match *it {
                    Replay::Atomic { psn: of, msn, value } if of == psn => {
                        Some(Answer::Atomic { psn, msn, value, again: true })
                    }
                    _ => None,
                });
                match found {
                    Some(answer) => self.answer(answer),
                    // The requester asks again until its retries are used up.
                    None => {
                        tracing::debug!(qpn = self.qpn, psn, "an atomic that is not remembered")
                    }
                }
            }
        }
    }

    pub(super) fn refuse(&mut self, psn: u32, syndrome: u8) {
        let msn = self.qp.runtime.msn;
        self.answer(Answer::Refuse { psn, msn, syndrome });
    }

    /// Queues an answer behind those that wait.
    pub(super) fn answer(&mut self, answer: Answer) {
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

    /// Sends waiting answers, at most [`PACKETS_A_TURN`] packets; true if some are left.
    pub(in crate::engine) fn send_answers(&mut self, scratch: &mut Scratch) -> bool {
        for _ in 0..PACKETS_A_TURN {
            let Some(&answer) = self.qp.runtime.connection().arriving.answers.front() else {
                break;
            };
            let over = match answer {
                Answer::Acknowledge { psn, msn } => self.emit_aeth(psn, msn, NO_CREDITS),
                Answer::Refuse { psn, msn, syndrome } => self.emit_aeth(psn, msn, syndrome),
                Answer::Atomic { psn, msn, value, .. } => self.emit_atomic(psn, msn, value),
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

    /// Drops all answers of a QP that software stopped.
    pub(in crate::engine) fn forget_answers(&mut self) {
        if self.qp.runtime.started().is_some() {
            self.qp.runtime.connection().arriving.answers.clear();
        }
    }

    fn emit_aeth(&mut self, psn: u32, msn: u32, syndrome: u8) -> bool {
        let out = response(Message::Acknowledge, Position::Only, psn, Some((msn, syndrome)), 0);
        self.emit_without_payload(&out)
    }

    /// Sends an answer without payload, so that no memory can be missing; none of it is left then.
    fn emit_without_payload(&mut self, out: &Outgoing) -> bool {
        if let Err(end) = self.emit(out, false, |_| Ok(())) {
            tracing::error!(qpn = self.qpn, ?end, "an answer without a payload was not sent");
        }
        true
    }

    fn emit_atomic(&mut self, psn: u32, msn: u32, value: u64) -> bool {
        let aeth = Some((msn, NO_CREDITS));
        let mut out = response(Message::AtomicAcknowledge, Position::Only, psn, aeth, 0);
        let mut original = AtomicAckEth::zeroed();
        original.set_original(value);
        out.extensions.atomic_ack_eth = Some(original);
        self.emit_without_payload(&out)
    }

    /// Sends the next packet of a READ response; true if it was the last one.
    fn emit_read(&mut self, answer: Answer, scratch: &mut Scratch) -> bool {
        let Answer::Read { psn, msn, packets, sent, key, address, length, again } = answer else {
            return true;
        };
        let log_mtu = self.log_mtu();
        let at = u64::from(sent) << log_mtu;
        let here = (length - at.min(length)).min(1 << log_mtu);
        let place = match (sent == 0, sent + 1 == packets) {
            (true, true) => Position::Only,
            (true, false) => Position::First,
            (false, false) => Position::Middle,
            (false, true) => Position::Last,
        };
        let from = address.wrapping_add(at);
        let psn = advance(psn, sent);
        if let Err(nak) = access::range(self, key, from, here, AccessRight::RemoteRead, scratch) {
            if again {
                // A requester that still waits for the response asks once more; one that has it may
                // have closed the key.
                return true;
            }
            self.qp.runtime.connection().arriving.answers.clear();
            self.fail_responder(psn, nak);
            return false;
        }
        let aeth = (place != Position::Middle).then_some((msn, NO_CREDITS));
        let out = response(Message::ReadResponse, place, psn, aeth, here as usize);
        let spaces = self.context.spaces;
        let remote = &scratch.remote;
        let emitted = self.emit(&out, false, |into| transfer::gather(spaces, remote, &[], into));
        if emitted.is_err() {
            self.qp.runtime.connection().arriving.answers.clear();
            let nak = access::of_remote(self.context.spaces, Nak::Operation, &scratch.remote);
            self.fail_responder(psn, nak);
            return false;
        }
        if let Some(Answer::Read { sent, .. }) =
            self.qp.runtime.connection().arriving.answers.front_mut()
        {
            *sent += 1;
        }
        place.ends()
    }
}

/// A response packet; `aeth`: MSN and syndrome.
fn response(
    message: Message,
    place: Position,
    psn: u32,
    aeth: Option<(u32, u8)>,
    payload: usize,
) -> Outgoing {
    let opcode =
        Opcode { service: Service::Rc, message, place, immediate: false, invalidate: false };
    let mut bth = Bth::zeroed();
    bth.set_opcode(opcode.bits().expect("RC has all responses")).set_psn(psn);
    let aeth = aeth.map(|(msn, syndrome)| {
        let mut aeth = Aeth::zeroed();
        aeth.set_msn(msn).set_syndrome(syndrome);
        aeth
    });
    Outgoing { bth, extensions: Extensions { aeth, ..Extensions::default() }, payload }
}
