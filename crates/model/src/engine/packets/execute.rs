//! Executes request packets: writes each payload to its memory, and completes a message with its
//! last packet.
//!
//! Source: InfiniBand specification, volume 1, 9.7.4 (request packets at the responder).

use verbless_prm::hot::cqe_opcode;

use super::super::access::{self, Nak};
use super::super::cqe::Received;
use super::super::invalid::InvalidReason;
use super::super::keys::AccessRight;
use super::super::operation::{Atomic, Operands};
use super::super::queue_pair::QueuePair;
use super::super::scratch::Scratch;
use super::super::transfer;
use super::super::{arrivals, receive};
use super::path::slid;
use crate::connection::{Answer, Incoming, Replay, Target};
use crate::watch::QueueSide;
use verbless_wire::{Opcode, Packet, Position};

impl QueuePair<'_> {
    pub(in crate::engine) fn send_arrived(
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
            _ => (receive::take(self, scratch)?, 0),
        };
        let (at, length) = (bytes, payload.len() as u64);
        bytes += length;
        let longest = self.context.limits.longest_message(self.qp);
        if bytes > longest {
            receive::keep(self.qp, index, bytes, scratch);
            return Err(access::invalid(
                self.qpn,
                InvalidReason::TooLong { length: bytes, longest },
            ));
        }
        // A message of one packet may fit into its CQE.
        let room = u64::from(self.qp.responder_inline);
        let in_cqe = opcode.place == Position::Only && length > 0 && length <= room;
        if let Err(syndrome) = receive::scatter(self, at, length, scratch) {
            return Err(receive::refuse_part(self, index, syndrome));
        }
        if !in_cqe && transfer::scatter(self.context.spaces, &scratch.remote, payload).is_err() {
            receive::keep(self.qp, index, bytes, scratch);
            return Err(Nak::Operation);
        }
        if !in_cqe {
            arrivals::data(
                self.context.state,
                self.context.spaces,
                self.qpn,
                QueueSide::Responder,
                &scratch.remote,
            );
        }
        if !opcode.place.ends() {
            receive::keep(self.qp, index, bytes, scratch);
            self.arrived(1, false);
            return Ok(());
        }
        let extensions = &packet.headers.transport.extensions;
        let invalidated = extensions.ieth.map(|ieth| ieth.rkey());
        if let Some(key) = invalidated
            && let Err(nak) = access::invalidate(self.context.mkeys, self.qp.pd, key)
        {
            receive::keep(self.qp, index, bytes, scratch);
            return Err(nak);
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
            receive::use_up(self, index)?;
        }
        let inline = in_cqe.then_some(payload);
        self.message_complete(packet, index, kind, value, bytes, inline)
    }

    pub(in crate::engine) fn write_arrived(
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
                    self.check_length(whole)?;
                    let (key, start) = (reth.rkey(), reth.virtual_address());
                    // Checks the whole range before the first byte moves.
                    access::range(self, key, start, whole, AccessRight::RemoteWrite, scratch)?;
                    (key, start, whole, 0)
                }
                (None, Some(Incoming { into: Target::Range { key, address, length }, bytes })) => {
                    (*key, *address, *length, *bytes)
                }
                _ => return Err(access::invalid(self.qpn, InvalidReason::OutOfOrder)),
            };
        let bytes = at + length;
        if bytes > whole || opcode.place.ends() && bytes != whole {
            return Err(access::invalid(self.qpn, InvalidReason::OutOfOrder));
        }
        let immediate = extensions.immdt.map(|immdt| immdt.immediate());
        let index = match immediate {
            Some(_) => Some(receive::next(self, None)?),
            None => None,
        };
        if length > 0 {
            let address = start.wrapping_add(at);
            access::range(self, key, address, length, AccessRight::RemoteWrite, scratch)?;
            transfer::scatter(self.context.spaces, &scratch.remote, payload).map_err(|_| {
                access::of_remote(self.context.spaces, Nak::Operation, &scratch.remote)
            })?;
            arrivals::data(
                self.context.state,
                self.context.spaces,
                self.qpn,
                QueueSide::Responder,
                &scratch.remote,
            );
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
                receive::use_up(self, index)?;
                self.message_complete(packet, index, kind, value, whole, None)
            }
            _ => Ok(()),
        }
    }

    pub(in crate::engine) fn read_asked(
        &mut self,
        packet: &Packet<'_>,
        scratch: &mut Scratch,
    ) -> Result<(), Nak> {
        let extensions = &packet.headers.transport.extensions;
        let reth = extensions.reth.ok_or(Nak::InvalidRequest)?;
        let (key, address) = (reth.rkey(), reth.virtual_address());
        let length = u64::from(reth.dma_length());
        self.check_length(length)?;
        self.check_answers()?;
        access::range(self, key, address, length, AccessRight::RemoteRead, scratch)?;
        let packets = self.packets(length);
        let psn = self.qp.responder.psn;
        let most = self.qp.responder.max_dest_rd_atomic;
        self.qp.runtime.connection().arriving.remember(Replay::Read { psn, packets }, most);
        self.arrived(packets, true);
        let msn = self.qp.runtime.msn;
        let (sent, again) = (0, false);
        self.answer(Answer::Read { psn, msn, packets, sent, key, address, length, again });
        Ok(())
    }

    pub(in crate::engine) fn atomic_asked(
        &mut self,
        packet: &Packet<'_>,
        atomic: Atomic,
        scratch: &mut Scratch,
    ) -> Result<(), Nak> {
        let header = packet.headers.transport.extensions.atomic_eth.ok_or(Nak::InvalidRequest)?;
        let (key, address) = (header.rkey(), header.virtual_address());
        access::check_alignment(self.qpn, address)?;
        self.check_answers()?;
        access::range(self, key, address, 8, AccessRight::Atomic, scratch)?;
        let operands = Operands { swap_add: header.swap_or_add(), compare: header.compare() };
        let value =
            access::exchange_word(&self.context, self.qpn, atomic, operands, &scratch.remote)?;
        let psn = self.qp.responder.psn;
        self.arrived(1, true);
        let most = self.qp.responder.max_dest_rd_atomic;
        let msn = self.qp.runtime.msn;
        let arriving = &mut self.qp.runtime.connection().arriving;
        arriving.remember(Replay::Atomic { psn, msn, value }, most);
        self.answer(Answer::Atomic { psn, msn, value, again: false });
        Ok(())
    }

    /// Refuses a message that is longer than the QP's longest.
    fn check_length(&self, length: u64) -> Result<(), Nak> {
        let longest = self.context.limits.longest_message(self.qp);
        match length > longest {
            true => Err(access::invalid(self.qpn, InvalidReason::TooLong { length, longest })),
            false => Ok(()),
        }
    }

    /// Refuses a READ or atomic if the number of them without a sent response has reached
    /// `max_dest_rd_atomic`.
    fn check_answers(&mut self) -> Result<(), Nak> {
        let max_dest_rd_atomic = self.qp.responder.max_dest_rd_atomic;
        let unanswered = self.qp.runtime.connection().arriving.unanswered();
        match unanswered >= usize::from(max_dest_rd_atomic) {
            true => {
                Err(access::invalid(self.qpn, InvalidReason::TooManyAnswers { max_dest_rd_atomic }))
            }
            false => Ok(()),
        }
    }

    /// Writes the CQE of a complete message, whose receive WQE is used up.
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
        receive::report(self, &of, inline)
    }
}
