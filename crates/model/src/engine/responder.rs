//! The receive side of a QP: receive WQEs, and the execution of each request that arrives at a
//! connected QP. The services (`transport`) answer the requester.

use verbless_prm::hot::{cqe_opcode, cqe_syndrome, event_type};

use super::context::Missing;
use super::counters::Count;
use super::cqe::{Completion, Received};
use super::invalid::InvalidReason;
use super::keys::{self, AccessRight, KeyUser, Keys, Range, Sge};
use super::operation::{Atomic, Operands, Remote};
use super::queue_pair::QueuePair;
use super::ring::record;
use super::scratch::Scratch;
use super::srq;
use super::transfer::{self, TransferEnd};
use super::work::{Segment, Work, receive_segments};
use super::{arrivals, completion, failure};
use crate::connection::{Incoming, Target};
use crate::hca::objects::{QpState, Srq};
use crate::watch::QueueSide;

/// log2 of the longest receive WQE.
const LOG_LONGEST_STRIDE: u32 = 12;
/// Attempts of an atomic against a client that changes the word all the time.
const ATTEMPTS: u32 = 1 << 16;

/// A request on the wire between connected QPs.
pub(super) struct WholeRequest<'a> {
    /// The LID that the request left from.
    pub slid: u16,
    pub psn: u32,
    pub packets: u32,
    pub work: &'a Work,
    /// Bytes of payload, or requested bytes.
    pub length: u64,
    /// The part of these bytes that comes now.
    pub part: MessagePart,
}

/// A part of a message that is carried whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MessagePart {
    /// Offset of the part in the message, and its length.
    pub at: u64,
    pub length: u64,
    /// Bytes of the whole message.
    pub whole: u64,
}

impl MessagePart {
    pub(super) fn begins(self) -> bool {
        self.at == 0
    }

    pub(super) fn ends(self) -> bool {
        self.at + self.length >= self.whole
    }

    fn is_all(self) -> bool {
        self.begins() && self.ends()
    }
}

/// The reason of the responder's refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Nak {
    /// The memory key refused, or does not allow it.
    Access,
    /// The operation is not enabled, misaligned, or too long for the receive WQE.
    InvalidRequest,
    /// The responder itself failed.
    Operation,
    /// There is no receive WQE.
    NotReady,
    /// The requester's own memory faulted.
    Source,
}

/// The counter that the responder increases when a message was executed, or refused for this
/// reason.
pub(super) fn counted(remote: Remote, refused: Option<Nak>) -> Option<Count> {
    match refused {
        None => remote.count(),
        Some(Nak::NotReady) => Some(Count::OutOfBuffer),
        Some(Nak::Access) => Some(Count::ResponderAccess),
        Some(Nak::InvalidRequest) => Some(Count::ResponderInvalid),
        Some(Nak::Operation | Nak::Source) => None,
    }
}

impl From<Missing> for Nak {
    fn from(missing: Missing) -> Self {
        tracing::error!(%missing, "a message cannot be received");
        Self::Operation
    }
}

impl QueuePair<'_> {
    /// Executes a request, and counts it. An atomic returns the old value; a READ leaves its memory
    /// in `Scratch::remote`.
    pub(super) fn perform(
        &mut self,
        message: &WholeRequest<'_>,
        scratch: &mut Scratch,
    ) -> Result<Option<u64>, Nak> {
        let length = message.length;
        let longest = self.context.limits.longest_message(self.qp);
        if self.qp.state == QpState::Rtr
            && !std::mem::replace(&mut self.qp.runtime.established, true)
        {
            self.context.events.qp(event_type::COMMUNICATION_ESTABLISHED, self.qpn);
        }
        // Only operations of the peer come here.
        let Some(remote) = message.work.operation.remote() else { return Ok(None) };
        let done = match length > longest {
            true => Err(self.invalid(InvalidReason::TooLong { length, longest })),
            false => self.execute_whole(remote, message, scratch),
        };
        if (done.is_err() || message.part.ends())
            && let Some(what) = counted(remote, done.err())
        {
            self.counters().count(what);
        }
        done
    }

    /// Executes a part of a request.
    fn execute_whole(
        &mut self,
        remote: Remote,
        message: &WholeRequest<'_>,
        scratch: &mut Scratch,
    ) -> Result<Option<u64>, Nak> {
        match remote {
            Remote::Send => self.send(message, scratch).map(|()| None),
            Remote::Write => self.write(message, scratch).map(|()| None),
            Remote::Read => self.remote(message, AccessRight::RemoteRead, scratch).map(|()| None),
            Remote::Atomic(atomic) => self.atomic(message, atomic, scratch).map(Some),
        }
    }

    /// Whether the QP's program has ended. Its peer sees nothing of that in its memory, only its
    /// silence.
    pub(super) fn is_gone(&self) -> bool {
        let rings =
            [self.qp.sq.as_ref().map(|sq| &sq.memory), self.qp.rq.as_ref().map(|rq| &rq.memory)];
        let pages = rings.into_iter().flatten().filter_map(|ring| ring.pages.first().copied());
        pages.chain([self.qp.record]).any(|address| self.context.memory.is_gone(address))
    }

    /// The NAK for memory that a peer named and that is absent. Memory of a program that has ended
    /// is refused, as its keys will be in a moment: a card pins memory until the keys go, the model
    /// cannot. If the key is an alias, that program may be another than the QP's, whose QP then
    /// answers.
    pub(super) fn of_remote(&self, nak: Nak, remote: &[Sge]) -> Nak {
        match nak {
            Nak::Operation if keys::are_gone(self.context.spaces, remote) => Nak::Access,
            other => other,
        }
    }

    /// Logs why a request is invalid; the requester gets the NAK alone.
    pub(super) fn invalid(&self, why: InvalidReason) -> Nak {
        tracing::info!(qpn = self.qpn, %why, "an invalid request");
        Nak::InvalidRequest
    }

    /// Refuses an atomic whose address is not aligned to its 8 bytes.
    pub(super) fn check_alignment(&self, address: u64) -> Result<(), Nak> {
        match address.is_multiple_of(8) {
            true => Ok(()),
            false => Err(self.invalid(InvalidReason::UnalignedAtomic(address))),
        }
    }

    /// Resolves the remote range of a part of a READ, WRITE or atomic into `Scratch::remote`. The
    /// first part checks the whole range, before any byte moves.
    pub(super) fn remote(
        &self,
        message: &WholeRequest<'_>,
        need: AccessRight,
        scratch: &mut Scratch,
    ) -> Result<(), Nak> {
        let (Work { rkey, remote_address, .. }, part) = (*message.work, message.part);
        if part.begins() && !part.ends() {
            self.range(rkey, remote_address, message.length, need, scratch)?;
        }
        self.range(rkey, remote_address.wrapping_add(part.at), part.length, need, scratch)
    }

    /// Resolves a range that the peer names into `Scratch::remote`.
    pub(super) fn range(
        &self,
        key: u32,
        address: u64,
        length: u64,
        need: AccessRight,
        scratch: &mut Scratch,
    ) -> Result<(), Nak> {
        let responder = &self.qp.responder;
        let (enabled, field, is_answered) = match need {
            AccessRight::RemoteRead => (responder.allow_read, "rre", true),
            AccessRight::Atomic => (responder.allow_atomic, "rae", true),
            _ => (responder.allow_write, "rwe", false),
        };
        let max_dest_rd_atomic = responder.max_dest_rd_atomic;
        if !enabled {
            return Err(self.invalid(InvalidReason::Disabled { field }));
        }
        if is_answered && max_dest_rd_atomic == 0 {
            return Err(self.invalid(InvalidReason::TooManyAnswers { max_dest_rd_atomic }));
        }
        scratch.remote.clear();
        if length == 0 {
            return Ok(());
        }
        let user = KeyUser { pd: self.qp.pd, qpn: self.qpn, reserved_lkey: false };
        let range = Range { key, address, length };
        let keys = self.context.keys();
        keys.resolve(user, range, need, &mut { keys::VISITS }, &mut scratch.remote).map_err(
            |refusal| {
                tracing::info!(qpn = self.qpn, ?range, ?refusal, "a remote key refused");
                Nak::Access
            },
        )
    }

    /// The payload of a WRITE.
    fn payload_written(&self, scratch: &Scratch) -> Result<(), Nak> {
        self.payload(scratch).map_err(|nak| self.of_remote(nak, &scratch.remote))
    }

    /// Copies the message's payload into `Scratch::remote`.
    fn payload(&self, scratch: &Scratch) -> Result<(), Nak> {
        let Scratch { local, wqe, remote, .. } = scratch;
        transfer::transfer(self.context.spaces, local, wqe, remote).map_err(|end| match end {
            TransferEnd::Source => Nak::Source,
            TransferEnd::Target => Nak::Operation,
        })?;
        arrivals::data(
            self.context.state,
            self.context.spaces,
            self.qpn,
            QueueSide::Responder,
            remote,
        );
        Ok(())
    }

    /// Whether a part of a message follows the parts before it.
    pub(super) fn follows(&self, message: &WholeRequest<'_>) -> bool {
        let started = self.qp.runtime.started();
        let before = started.and_then(|connection| connection.arriving.message.as_ref());
        let (part, operation) = (message.part, message.work.operation);
        match before {
            // Each part of a READ is a new request.
            None => part.begins() || operation.scatters(),
            Some(Incoming { into, bytes }) => {
                let same = operation.remote().is_some_and(|remote| into.is_of(remote.message()));
                same && !part.begins() && *bytes == part.at
            }
        }
    }

    pub(super) fn write(
        &mut self,
        message: &WholeRequest<'_>,
        scratch: &mut Scratch,
    ) -> Result<(), Nak> {
        let part = message.part;
        self.remote(message, AccessRight::RemoteWrite, scratch)?;
        if !part.ends() {
            self.payload_written(scratch)?;
            let Work { rkey: key, remote_address: address, .. } = *message.work;
            let into = Target::Range { key, address, length: part.whole };
            let bytes = part.at + part.length;
            self.qp.runtime.connection().arriving.message = Some(Incoming { into, bytes });
            return Ok(());
        }
        match message.work.operation.responder_cqe {
            None => self.payload_written(scratch)?,
            Some(opcode) => {
                let index = self.next_receive(None)?;
                self.payload_written(scratch)?;
                self.received(message, index, opcode, None)?;
            }
        }
        if !part.begins() {
            self.qp.runtime.connection().arriving.message = None;
        }
        Ok(())
    }

    /// Executes an atomic; returns the old value.
    pub(super) fn atomic(
        &mut self,
        message: &WholeRequest<'_>,
        atomic: Atomic,
        scratch: &mut Scratch,
    ) -> Result<u64, Nak> {
        self.check_alignment(message.work.remote_address)?;
        self.remote(message, AccessRight::Atomic, scratch)?;
        self.exchange_word(atomic, message.work.operands, scratch)
    }

    /// Executes an atomic on the word in `Scratch::remote`; returns the old value.
    pub(super) fn exchange_word(
        &mut self,
        atomic: Atomic,
        operands: Operands,
        scratch: &Scratch,
    ) -> Result<u64, Nak> {
        let next = |now: u64| atomic.next(now, operands);
        // Numbers have the host's byte order: the kernel selects that mode (SET_HCA_CAP, atomic
        // page).
        let spaces = self.context.spaces;
        match scratch.remote[..] {
            [Sge::Memory { space, address, .. }] if address.is_multiple_of(8) => {
                let mut guess = 0;
                for _ in 0..ATTEMPTS {
                    let found = spaces
                        .get(space)
                        .compare_exchange64(address, guess, next(guess))
                        .map_err(|_| self.of_remote(Nak::Operation, &scratch.remote))?;
                    if found == guess {
                        arrivals::data(
                            self.context.state,
                            self.context.spaces,
                            self.qpn,
                            QueueSide::Responder,
                            &scratch.remote,
                        );
                        return Ok(found);
                    }
                    guess = found;
                }
                Err(Nak::Operation)
            }
            [Sge::Null { .. }] => Ok(0),
            // Aligned in the key but not in memory: only the device's own accesses are atomic then.
            _ => {
                let mut word = [0; 8];
                transfer::gather(spaces, &scratch.remote, &[], &mut word)
                    .map_err(|_| self.of_remote(Nak::Operation, &scratch.remote))?;
                let found = u64::from_ne_bytes(word);
                transfer::scatter(spaces, &scratch.remote, &next(found).to_ne_bytes())
                    .map_err(|_| self.of_remote(Nak::Operation, &scratch.remote))?;
                arrivals::data(
                    self.context.state,
                    self.context.spaces,
                    self.qpn,
                    QueueSide::Responder,
                    &scratch.remote,
                );
                Ok(found)
            }
        }
    }

    pub(super) fn send(
        &mut self,
        message: &WholeRequest<'_>,
        scratch: &mut Scratch,
    ) -> Result<(), Nak> {
        let left_over = self.qp.runtime.started().is_some_and(|it| it.arriving.held.is_some());
        if !message.part.is_all() || left_over {
            return self.send_part(message, scratch);
        }
        let index = self.next_receive(Some(&mut scratch.receive))?;
        if let Err(syndrome) = self.scatter_part(0, message.length, scratch) {
            self.receive_failed(index, syndrome);
            return Err(match syndrome {
                cqe_syndrome::LOCAL_LENGTH => Nak::InvalidRequest,
                _ => Nak::Operation,
            });
        }
        let operation = message.work.operation;
        let in_cqe = message.length > 0 && message.length <= u64::from(self.qp.responder_inline);
        let mut inline = [0; 64];
        let inline = &mut inline[..if in_cqe { message.length as usize } else { 0 }];
        if in_cqe {
            transfer::gather(self.context.spaces, &scratch.local, &scratch.wqe, inline)
                .map_err(|_| Nak::Source)?;
        } else {
            self.payload(scratch)?;
        }
        if operation.invalidate {
            self.invalidate(message.work.immediate)?;
        }
        let opcode = operation.responder_cqe.unwrap_or(cqe_opcode::RESPONDER_SEND);
        self.received(message, index, opcode, in_cqe.then_some(inline))
    }

    /// Takes a later part of a SEND, into the receive WQE of the part before it.
    fn send_part(&mut self, message: &WholeRequest<'_>, scratch: &mut Scratch) -> Result<(), Nak> {
        let part = message.part;
        let index = if part.begins() {
            self.take_receive(scratch)?
        } else {
            match self.qp.runtime.connection().arriving.message.take() {
                Some(Incoming { into: Target::Receive { index, wqe }, bytes })
                    if bytes == part.at =>
                {
                    scratch.receive = wqe;
                    index
                }
                _ => return Err(self.invalid(InvalidReason::OutOfOrder)),
            }
        };
        if let Err(syndrome) = self.scatter_part(part.at, part.length, scratch) {
            return Err(self.part_refused(index, syndrome));
        }
        let operation = message.work.operation;
        let mut done = self.payload(scratch);
        if done.is_ok() && part.ends() && operation.invalidate {
            done = self.invalidate(message.work.immediate);
        }
        if done.is_err() || !part.ends() {
            self.keep_receive(index, part.at + part.length, scratch);
            return done;
        }
        if self.qp.srq.is_none() {
            self.use_up(index)?;
        }
        let opcode = operation.responder_cqe.unwrap_or(cqe_opcode::RESPONDER_SEND);
        let of = self.report_of(message, index, opcode);
        self.report_receive(&of, None)
    }

    /// Fails the QP, and the receive WQE that has no room for a part of its message, by an error
    /// CQE.
    pub(super) fn part_refused(&mut self, index: u16, syndrome: u8) -> Nak {
        // A WQE of a shared queue was used up when it was taken.
        if self.qp.srq.is_none()
            && let Err(nak) = self.use_up(index)
        {
            return nak;
        }
        self.report_receive_error(index, syndrome);
        failure::enter_error(self);
        match syndrome {
            cqe_syndrome::LOCAL_LENGTH => Nak::InvalidRequest,
            _ => Nak::Operation,
        }
    }

    /// Finds the memory that the receive WQE in `Scratch::receive` gives to `length` bytes of a
    /// message from byte `at` on; the error is the syndrome.
    pub(super) fn scatter_part(
        &self,
        at: u64,
        length: u64,
        scratch: &mut Scratch,
    ) -> Result<(), u8> {
        // The keys of a shared queue's WQEs belong to its domain.
        let shared = self.qp.srq.and_then(|number| self.context.srqs.get(&number));
        let pd = shared.map_or(self.qp.pd, |queue| queue.pd);
        let user = KeyUser { pd, qpn: self.qpn, reserved_lkey: self.qp.context.rlky() };
        let Scratch { receive, remote, .. } = scratch;
        place(&self.context.keys(), user, (at, length), (receive, remote))
    }

    /// Frees the key that a SEND with invalidate names.
    pub(super) fn invalidate(&mut self, key: u32) -> Result<(), Nak> {
        let mkey = self.context.mkeys.get_mut(&(key >> 8)).ok_or(Nak::Access)?;
        let right = u32::from(mkey.variant) == key & 0xff && mkey.pd == self.qp.pd && !mkey.free;
        if !right || !mkey.context.en_rinval() {
            return Err(Nak::Access);
        }
        mkey.free = true;
        Ok(())
    }

    /// The SRQ or RMP of a QP without a receive queue of its own.
    fn srq(&mut self) -> Result<Option<(u32, &mut Srq)>, Missing> {
        let Some(number) = self.qp.srq else { return Ok(None) };
        let queue = self.context.srqs.get_mut(&number).ok_or(Missing::Srq(number))?;
        Ok(Some((number, queue)))
    }

    /// The index of the next receive WQE; `wqe` receives a copy of it. Only this function reads the
    /// record.
    pub(super) fn next_receive(&mut self, wqe: Option<&mut Vec<u8>>) -> Result<u16, Nak> {
        let memory = self.context.memory;
        if let Some((_, queue)) = self.srq()? {
            let next = srq::next(memory, queue, wqe).map_err(|_| Nak::Operation)?;
            return next.ok_or(Nak::NotReady);
        }
        let rq = self.qp.rq.as_ref().ok_or(Nak::NotReady)?;
        let posted = record(memory, self.qp.record).map_err(|_| Nak::Operation)? as u16;
        if posted == rq.consumer {
            return Err(Nak::NotReady);
        }
        if let Some(wqe) = wqe {
            if rq.log_stride > LOG_LONGEST_STRIDE || rq.log_size >= 32 {
                return Err(Nak::Operation);
            }
            let slot = u64::from(rq.consumer) & ((1 << rq.log_size) - 1);
            wqe.resize(1 << rq.log_stride, 0);
            rq.memory
                .read_wrapping(memory, slot << rq.log_stride, wqe)
                .map_err(|_| Nak::Operation)?;
        }
        Ok(rq.consumer)
    }

    /// Uses up the receive WQE at `index`.
    pub(super) fn use_up(&mut self, index: u16) -> Result<(), Nak> {
        if let Some(number) = self.qp.srq {
            let queue = self.context.srqs.get_mut(&number).ok_or(Missing::Srq(number))?;
            srq::used(&mut self.context.events, number, queue);
            return Ok(());
        }
        self.qp.rq.as_mut().ok_or(Nak::NotReady)?.consumer = index.wrapping_add(1);
        Ok(())
    }

    /// Completes a message: uses up the receive WQE and writes its CQE.
    fn received(
        &mut self,
        message: &WholeRequest<'_>,
        index: u16,
        opcode: u8,
        inline: Option<&[u8]>,
    ) -> Result<(), Nak> {
        let of = self.report_of(message, index, opcode);
        self.complete_receive(&of, inline)
    }

    /// The contents of a message's CQE.
    fn report_of(&self, message: &WholeRequest<'_>, index: u16, opcode: u8) -> Received {
        let Work { immediate, solicited, operation, .. } = *message.work;
        Received {
            opcode,
            index,
            bytes: message.length as u32,
            immediate: if operation.immediate { immediate } else { 0 },
            solicited,
            slid: message.slid,
            peer: self.qp.remote_qpn & 0xff_ffff,
            now: self.context.ticks(),
        }
    }

    /// Uses up the receive WQE of a message and writes its CQE; an overrun of the CQ fails the QP.
    pub(super) fn complete_receive(
        &mut self,
        of: &Received,
        inline: Option<&[u8]>,
    ) -> Result<(), Nak> {
        self.use_up(of.index)?;
        self.report_receive(of, inline)
    }

    /// Writes the CQE of a message whose receive WQE is used up.
    pub(super) fn report_receive(
        &mut self,
        of: &Received,
        inline: Option<&[u8]>,
    ) -> Result<(), Nak> {
        let completion = Completion::responder(self.qp, self.qpn, of, inline);
        let cqn = self.receive_cq();
        if completion::write(&mut self.context, self.qpn, cqn, completion).is_err() {
            failure::cq_overran(self);
            return Err(Nak::Operation);
        }
        Ok(())
    }

    /// Fails a receive WQE: writes its error CQE, and moves the QP to the error state.
    pub(super) fn receive_failed(&mut self, index: u16, syndrome: u8) {
        if self.use_up(index).is_ok() {
            self.report_receive_error(index, syndrome);
        }
        failure::enter_error(self);
    }

    /// Writes the error CQE of a receive WQE that is used up.
    pub(super) fn report_receive_error(&mut self, index: u16, syndrome: u8) {
        self.counters().receive_error(syndrome);
        let kind = cqe_opcode::RESPONDER_ERROR;
        let completion = Completion::error(self.qp, self.qpn, kind, 0, index, syndrome);
        // The QP is about to be in error; an event of the CQ reports an overrun.
        let cqn = self.receive_cq();
        let _ = completion::write(&mut self.context, self.qpn, cqn, completion);
    }
}

/// Finds the memory that a receive WQE gives to `length` bytes of a message from byte `at` on; the
/// error is the syndrome.
pub(super) fn place(
    keys: &Keys<'_>,
    user: KeyUser,
    (at, length): (u64, u64),
    (wqe, memory): (&[u8], &mut Vec<Sge>),
) -> Result<(), u8> {
    memory.clear();
    let (mut skip, mut rest, mut visits) = (at, length, keys::VISITS);
    for segment in receive_segments(wqe, keys.limits.list_end) {
        if rest == 0 {
            break;
        }
        let Ok(Segment::Pointer { lkey, address, length }) = segment else {
            return Err(cqe_syndrome::LOCAL_QP_OPERATION);
        };
        if skip >= length {
            skip -= length;
            continue;
        }
        let here = (length - skip).min(rest);
        let range = Range { key: lkey, address: address.wrapping_add(skip), length: here };
        keys.resolve(user, range, AccessRight::LocalWrite, &mut visits, memory).map_err(
            |refusal| {
                tracing::info!(user.qpn, ?range, ?refusal, "a local key refused");
                cqe_syndrome::LOCAL_PROTECTION
            },
        )?;
        rest -= here;
        skip = 0;
    }
    if rest > 0 { Err(cqe_syndrome::LOCAL_LENGTH) } else { Ok(()) }
}
