//! Executes request packets: writes each payload to its memory, and completes a message with its
//! last packet.
//!
//! Source: InfiniBand specification, volume 1, 9.7.4 (request packets at the responder).

use verbless_prm::hot::cqe_opcode;

use super::super::arrivals;
use super::super::cqe::Received;
use super::super::invalid::InvalidReason;
use super::super::keys::AccessRight;
use super::super::operation::{Atomic, Operands};
use super::super::queue_pair::QueuePair;
use super::super::responder::Nak;
use super::super::scratch::Scratch;
use super::super::transfer;
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
            _ => (self.take_receive(scratch)?, 0),
        };
        let (at, length) = (bytes, payload.len() as u64);
        bytes += length;
        let longest = self.context.limits.longest_message(self.qp);
        if bytes > longest {
            self.keep_receive(index, bytes, scratch);
            return Err(self.invalid(InvalidReason::TooLong { length: bytes, longest }));
        }
        // A message of one packet may fit into its CQE.
        let room = u64::from(self.qp.responder_inline);
        let in_cqe = opcode.place == Position::Only && length > 0 && length <= room;
        if let Err(syndrome) = self.scatter_part(at, length, scratch) {
            return Err(self.part_refused(index, syndrome));
        }
        if !in_cqe && transfer::scatter(self.context.spaces, &scratch.remote, payload).is_err() {
            self.keep_receive(index, bytes, scratch);
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
            self.keep_receive(index, bytes, scratch);
            self.arrived(1, false);
            return Ok(());
        }
        let extensions = &packet.headers.transport.extensions;
        let invalidated = extensions.ieth.map(|ieth| ieth.rkey());
        if let Some(key) = invalidated
            && let Err(nak) = self.invalidate(key)
        {
            self.keep_receive(index, bytes, scratch);
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
            self.use_up(index)?;
        }
        let inline = in_cqe.then_some(payload);
        self.message_complete(packet, index, kind, value, bytes, inline)
    }

    /// Takes the receive WQE of a message into the scratch buffer, and returns its index. A WQE of
    /// a shared queue is used up here: another QP may take the next one before the message is
    /// complete.
    pub(in crate::engine) fn take_receive(&mut self, scratch: &mut Scratch) -> Result<u16, Nak> {
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

    /// Keeps the receive WQE of the scratch buffer for the rest of a message of which `bytes` bytes
    /// have arrived; or, if the QP fails and the WQE is of a shared queue, for its flush.
    pub(in crate::engine) fn keep_receive(
        &mut self,
        index: u16,
        bytes: u64,
        scratch: &mut Scratch,
    ) {
        let wqe = std::mem::take(&mut scratch.receive);
        let into = Target::Receive { index, wqe };
        self.qp.runtime.connection().arriving.message = Some(Incoming { into, bytes });
    }

    /// Takes back the WQE of a shared queue from a message that is incomplete or was cut off.
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
                    self.range(key, start, whole, AccessRight::RemoteWrite, scratch)?;
                    (key, start, whole, 0)
                }
                (None, Some(Incoming { into: Target::Range { key, address, length }, bytes })) => {
                    (*key, *address, *length, *bytes)
                }
                _ => return Err(self.invalid(InvalidReason::OutOfOrder)),
            };
        let bytes = at + length;
        if bytes > whole || opcode.place.ends() && bytes != whole {
            return Err(self.invalid(InvalidReason::OutOfOrder));
        }
        let immediate = extensions.immdt.map(|immdt| immdt.immediate());
        let index = match immediate {
            Some(_) => Some(self.next_receive(None)?),
            None => None,
        };
        if length > 0 {
            let address = start.wrapping_add(at);
            self.range(key, address, length, AccessRight::RemoteWrite, scratch)?;
            transfer::scatter(self.context.spaces, &scratch.remote, payload)
                .map_err(|_| self.of_remote(Nak::Operation, &scratch.remote))?;
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
                self.use_up(index)?;
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
        self.range(key, address, length, AccessRight::RemoteRead, scratch)?;
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
        self.check_alignment(address)?;
        self.check_answers()?;
        self.range(key, address, 8, AccessRight::Atomic, scratch)?;
        let operands = Operands { swap_add: header.swap_or_add(), compare: header.compare() };
        let value = self.exchange_word(atomic, operands, scratch)?;
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
            true => Err(self.invalid(InvalidReason::TooLong { length, longest })),
            false => Ok(()),
        }
    }

    /// Refuses a READ or atomic if the number of them without a sent response has reached
    /// `max_dest_rd_atomic`.
    fn check_answers(&mut self) -> Result<(), Nak> {
        let max_dest_rd_atomic = self.qp.responder.max_dest_rd_atomic;
        let unanswered = self.qp.runtime.connection().arriving.unanswered();
        match unanswered >= usize::from(max_dest_rd_atomic) {
            true => Err(self.invalid(InvalidReason::TooManyAnswers { max_dest_rd_atomic })),
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
        self.report_receive(&of, inline)
    }
}
