//! The receive side of a connected QP that receives its messages in packets: which packets it
//! takes, and whether it answers an unexpected packet (RC) or drops it (UC).
//!
//! It executes a packet with the expected PSN, reports a PSN ahead once, and answers a PSN behind
//! again: READs from memory, atomics from their remembered results, so that each is executed
//! exactly once.
//!
//! Sources: InfiniBand specification, volume 1, 9.7.4 (request packets at the responder), 9.8.2
//! (unreliable connection).

use verbless_prm::AethNak;
use verbless_prm::hot::event_type;

use super::super::access::{self, Nak, counted};
use super::super::counters::Count;
use super::super::invalid::InvalidReason;
use super::super::operation::Remote;
use super::super::queue_pair::QueuePair;
use super::super::scratch::Scratch;
use super::super::{failure, receive};
use crate::connection::{Answer, Distance, Incoming, Response, advance, distance};
use crate::hca::objects::QpState;
use verbless_wire::{Opcode, Packet, Position};

/// Types of AETH syndromes: bits 6:5.
const RNR_NAK: u8 = 0x20;
const NAK: u8 = 0x60;

impl QueuePair<'_> {
    /// Whether the QP takes messages; the first one that arrives in RTR raises an event.
    fn receives(&mut self) -> bool {
        if self.qp.state == QpState::Rtr
            && !std::mem::replace(&mut self.qp.runtime.established, true)
        {
            self.context.events.qp(event_type::COMMUNICATION_ESTABLISHED, self.qpn);
        }
        self.qp.state.receives()
    }

    /// RC: takes a request packet, and answers it.
    pub(in crate::engine) fn take_reliable(
        &mut self,
        packet: &Packet<'_>,
        opcode: Opcode,
        scratch: &mut Scratch,
    ) {
        // A QP that is not ready for messages drops them without an answer.
        if !self.receives() {
            return;
        }
        let bth = &packet.headers.transport.bth;
        let (psn, expected) = (bth.psn(), self.qp.responder.psn);
        match distance(expected, psn) {
            Distance::Ahead(_) => {
                if !std::mem::replace(&mut self.qp.runtime.connection().arriving.reported, true) {
                    self.counters().count(Count::OutOfSequence);
                    self.refuse(expected, NAK | AethNak::PSN_SEQUENCE.0);
                }
                return;
            }
            Distance::Behind(_) => {
                self.counters().count(Count::Duplicate);
                self.take_duplicate(packet, opcode);
                return;
            }
            Distance::Same => self.qp.runtime.connection().arriving.reported = false,
        }
        let done = match self.fits(packet, opcode) {
            true => self.execute(packet, opcode, scratch),
            false => {
                self.counters().count(Count::ResponderInvalid);
                Err(access::invalid(self.qpn, InvalidReason::OutOfOrder))
            }
        };
        match done {
            Ok(Response::Acknowledgement) => {
                self.qp.runtime.connection().arriving.executed = Some(psn);
                if bth.acknowledge() {
                    let msn = self.qp.runtime.msn;
                    self.answer(Answer::Acknowledge { psn, msn });
                }
            }
            Ok(_) => {}
            Err(Nak::NotReady) => {
                // Until that packet comes again, the packets after it are dropped without an
                // answer.
                self.qp.runtime.connection().arriving.reported = true;
                let timer = self.qp.responder.min_rnr_timer;
                self.refuse(psn, RNR_NAK | timer & 0x1f);
            }
            Err(nak) => self.fail_responder(psn, nak),
        }
    }

    /// UC: takes a request packet; a lost packet loses its message.
    pub(in crate::engine) fn take_unreliable(
        &mut self,
        packet: &Packet<'_>,
        opcode: Opcode,
        scratch: &mut Scratch,
    ) {
        if !self.receives() {
            return;
        }
        let psn = packet.headers.transport.bth.psn();
        let gap = distance(self.qp.responder.psn, psn) != Distance::Same;
        self.qp.responder.psn = psn;
        if gap || opcode.place.begins() {
            receive::cut_message(self.qp);
        }
        if !self.fits(packet, opcode) || self.execute(packet, opcode, scratch).is_err() {
            receive::cut_message(self.qp);
            self.qp.responder.psn = advance(psn, 1);
        }
    }

    /// Whether a packet can follow those before it, by its own headers.
    fn fits(&mut self, packet: &Packet<'_>, opcode: Opcode) -> bool {
        let mtu = 1_usize << self.log_mtu();
        let arriving = &self.qp.runtime.connection().arriving;
        let follows = match &arriving.message {
            Some(Incoming { into, .. }) => into.is_of(opcode.message) && !opcode.place.begins(),
            None => opcode.place.begins(),
        };
        let length = packet.payload.len();
        let has_length = match opcode.place {
            Position::First | Position::Middle => length == mtu,
            Position::Last => (1..=mtu).contains(&length),
            Position::Only => length <= mtu,
        };
        follows && has_length
    }

    /// Executes a packet, counts its message when it is complete or refused, and returns the
    /// response that the message requires.
    fn execute(
        &mut self,
        packet: &Packet<'_>,
        opcode: Opcode,
        scratch: &mut Scratch,
    ) -> Result<Response, Nak> {
        let remote = Remote::of(opcode.message).ok_or(Nak::InvalidRequest)?;
        let done = match remote {
            Remote::Send => self.send_arrived(packet, opcode, scratch),
            Remote::Write => self.write_arrived(packet, opcode, scratch),
            Remote::Read => self.read_asked(packet, scratch),
            Remote::Atomic(atomic) => self.atomic_asked(packet, atomic, scratch),
        };
        if (done.is_err() || opcode.place.ends())
            && let Some(what) = counted(remote, done.err())
        {
            self.counters().count(what);
        }
        done.map(|()| remote.response())
    }

    /// Advances the expected PSN behind an executed packet.
    pub(super) fn arrived(&mut self, packets: u32, ends: bool) {
        self.qp.responder.psn = advance(self.qp.responder.psn, packets);
        if ends {
            self.qp.runtime.msn = advance(self.qp.runtime.msn, 1);
            self.qp.runtime.connection().arriving.message = None;
        }
    }

    /// Fails the QP because it cannot execute a request, and sends the requester a NAK with the
    /// reason.
    pub(super) fn fail_responder(&mut self, psn: u32, nak: Nak) {
        let (event, why) = match nak {
            Nak::Access => (Some(event_type::WQ_ACCESS_ERROR), AethNak::REMOTE_ACCESS),
            Nak::InvalidRequest => {
                // The CQE of a receive WQE that was too short has reported it already.
                let reported = self.qp.state == QpState::Error;
                let event = (!reported).then_some(event_type::WQ_INVALID_REQUEST_ERROR);
                (event, AethNak::INVALID_REQUEST)
            }
            _ => (None, AethNak::REMOTE_OPERATION),
        };
        if let Some(event) = event {
            self.context.events.qp(event, self.qpn);
        }
        let gone = access::is_gone(self.qp, self.context.memory);
        failure::enter_error(self);
        if !gone {
            self.refuse(psn, NAK | why.0);
        }
    }
}
