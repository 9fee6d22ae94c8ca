//! The receive side of a connected QP whose messages are carried whole: executes each request, or
//! a part of it. The services (`transport`) answer the requester.

use verbless_prm::hot::{cqe_opcode, cqe_syndrome, event_type};

use super::access::{self, Nak, counted};
use super::cqe::Received;
use super::invalid::InvalidReason;
use super::keys::AccessRight;
use super::operation::{Atomic, Remote};
use super::queue_pair::QueuePair;
use super::scratch::Scratch;
use super::transfer::{self, TransferEnd};
use super::work::Work;
use super::{arrivals, receive};
use crate::connection::{Incoming, Target};
use crate::hca::objects::{QpObject, QpState};
use crate::watch::QueueSide;

/// A request on the wire between connected QPs.
pub(super) struct WholeRequest<'a> {
    /// The LID that the request left from.
    pub slid: u16,
    pub psn: u32,
    pub packets: u32,
    pub work: &'a Work,
    /// Bytes of payload, or requested bytes.
    pub length: u64,
    /// The part of these bytes that is carried now.
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

/// Executes a request, and counts it. An atomic returns the old value; a READ leaves its memory in
/// `Scratch::remote`.
pub(super) fn perform(
    pair: &mut QueuePair<'_>,
    message: &WholeRequest<'_>,
    scratch: &mut Scratch,
) -> Result<Option<u64>, Nak> {
    let length = message.length;
    let longest = pair.context.limits.longest_message(pair.qp);
    if pair.qp.state == QpState::Rtr && !std::mem::replace(&mut pair.qp.runtime.established, true) {
        pair.context.events.qp(event_type::COMMUNICATION_ESTABLISHED, pair.qpn);
    }
    // Only operations of the peer come here.
    let Some(remote) = message.work.operation.remote() else { return Ok(None) };
    let done = match length > longest {
        true => Err(access::invalid(pair.qpn, InvalidReason::TooLong { length, longest })),
        false => execute(pair, remote, message, scratch),
    };
    if (done.is_err() || message.part.ends())
        && let Some(what) = counted(remote, done.err())
    {
        pair.counters().count(what);
    }
    done
}

/// Executes a part of a request.
fn execute(
    pair: &mut QueuePair<'_>,
    remote: Remote,
    message: &WholeRequest<'_>,
    scratch: &mut Scratch,
) -> Result<Option<u64>, Nak> {
    match remote {
        Remote::Send => send(pair, message, scratch).map(|()| None),
        Remote::Write => write(pair, message, scratch).map(|()| None),
        Remote::Read => resolve(pair, message, AccessRight::RemoteRead, scratch).map(|()| None),
        Remote::Atomic(kind) => atomic(pair, message, kind, scratch).map(Some),
    }
}

/// Whether a part of a message follows the parts before it.
pub(super) fn follows(qp: &QpObject, message: &WholeRequest<'_>) -> bool {
    let started = qp.runtime.started();
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

fn send(
    pair: &mut QueuePair<'_>,
    message: &WholeRequest<'_>,
    scratch: &mut Scratch,
) -> Result<(), Nak> {
    let left_over = pair.qp.runtime.started().is_some_and(|it| it.arriving.held.is_some());
    if !message.part.is_all() || left_over {
        return send_part(pair, message, scratch);
    }
    let index = receive::next(pair, Some(&mut scratch.receive))?;
    if let Err(syndrome) = receive::scatter(pair, 0, message.length, scratch) {
        receive::fail(pair, index, syndrome);
        return Err(match syndrome {
            cqe_syndrome::LOCAL_LENGTH => Nak::InvalidRequest,
            _ => Nak::Operation,
        });
    }
    let operation = message.work.operation;
    let in_cqe = message.length > 0 && message.length <= u64::from(pair.qp.responder_inline);
    let mut inline = [0; 64];
    let inline = &mut inline[..if in_cqe { message.length as usize } else { 0 }];
    if in_cqe {
        transfer::gather(pair.context.spaces, &scratch.local, &scratch.wqe, inline)
            .map_err(|_| Nak::Source)?;
    } else {
        payload(pair, scratch)?;
    }
    if operation.invalidate {
        access::invalidate(pair.context.mkeys, pair.qp.pd, message.work.immediate)?;
    }
    let opcode = operation.responder_cqe.unwrap_or(cqe_opcode::RESPONDER_SEND);
    received(pair, message, index, opcode, in_cqe.then_some(inline))
}

/// Takes a later part of a SEND, into the receive WQE of the part before it.
fn send_part(
    pair: &mut QueuePair<'_>,
    message: &WholeRequest<'_>,
    scratch: &mut Scratch,
) -> Result<(), Nak> {
    let part = message.part;
    let index = if part.begins() {
        receive::take(pair, scratch)?
    } else {
        match pair.qp.runtime.connection().arriving.message.take() {
            Some(Incoming { into: Target::Receive { index, wqe }, bytes }) if bytes == part.at => {
                scratch.receive = wqe;
                index
            }
            _ => return Err(access::invalid(pair.qpn, InvalidReason::OutOfOrder)),
        }
    };
    if let Err(syndrome) = receive::scatter(pair, part.at, part.length, scratch) {
        return Err(receive::refuse_part(pair, index, syndrome));
    }
    let operation = message.work.operation;
    let mut done = payload(pair, scratch);
    if done.is_ok() && part.ends() && operation.invalidate {
        done = access::invalidate(pair.context.mkeys, pair.qp.pd, message.work.immediate);
    }
    if done.is_err() || !part.ends() {
        receive::keep(pair.qp, index, part.at + part.length, scratch);
        return done;
    }
    if pair.qp.srq.is_none() {
        receive::consume(pair, index)?;
    }
    let opcode = operation.responder_cqe.unwrap_or(cqe_opcode::RESPONDER_SEND);
    let of = report_of(pair, message, index, opcode);
    receive::report(pair, &of, None)
}

fn write(
    pair: &mut QueuePair<'_>,
    message: &WholeRequest<'_>,
    scratch: &mut Scratch,
) -> Result<(), Nak> {
    let part = message.part;
    resolve(pair, message, AccessRight::RemoteWrite, scratch)?;
    if !part.ends() {
        payload_written(pair, scratch)?;
        let Work { rkey: key, remote_address: address, .. } = *message.work;
        let into = Target::Range { key, address, length: part.whole };
        let bytes = part.at + part.length;
        pair.qp.runtime.connection().arriving.message = Some(Incoming { into, bytes });
        return Ok(());
    }
    match message.work.operation.responder_cqe {
        None => payload_written(pair, scratch)?,
        Some(opcode) => {
            let index = receive::next(pair, None)?;
            payload_written(pair, scratch)?;
            received(pair, message, index, opcode, None)?;
        }
    }
    if !part.begins() {
        pair.qp.runtime.connection().arriving.message = None;
    }
    Ok(())
}

/// Executes an atomic; returns the old value.
fn atomic(
    pair: &mut QueuePair<'_>,
    message: &WholeRequest<'_>,
    kind: Atomic,
    scratch: &mut Scratch,
) -> Result<u64, Nak> {
    access::check_alignment(pair.qpn, message.work.remote_address)?;
    resolve(pair, message, AccessRight::Atomic, scratch)?;
    access::exchange_word(&pair.context, pair.qpn, kind, message.work.operands, &scratch.remote)
}

/// Resolves the remote range of a part of a READ, WRITE or atomic into `Scratch::remote`. The first
/// part checks the whole range, before any byte moves.
fn resolve(
    pair: &QueuePair<'_>,
    message: &WholeRequest<'_>,
    need: AccessRight,
    scratch: &mut Scratch,
) -> Result<(), Nak> {
    let (Work { rkey, remote_address, .. }, part) = (*message.work, message.part);
    if part.begins() && !part.ends() {
        access::range(pair, rkey, remote_address, message.length, need, scratch)?;
    }
    access::range(pair, rkey, remote_address.wrapping_add(part.at), part.length, need, scratch)
}

/// The payload of a WRITE.
fn payload_written(pair: &QueuePair<'_>, scratch: &Scratch) -> Result<(), Nak> {
    payload(pair, scratch)
        .map_err(|nak| access::of_remote(pair.context.spaces, nak, &scratch.remote))
}

/// Copies the message's payload into `Scratch::remote`.
fn payload(pair: &QueuePair<'_>, scratch: &Scratch) -> Result<(), Nak> {
    let Scratch { local, wqe, remote, .. } = scratch;
    transfer::transfer(pair.context.spaces, local, wqe, remote).map_err(|end| match end {
        TransferEnd::Source => Nak::Source,
        TransferEnd::Target => Nak::Operation,
    })?;
    arrivals::data(pair.context.state, pair.context.spaces, pair.qpn, QueueSide::Responder, remote);
    Ok(())
}

/// Completes a message: consumes the receive WQE and writes its CQE.
fn received(
    pair: &mut QueuePair<'_>,
    message: &WholeRequest<'_>,
    index: u16,
    opcode: u8,
    inline: Option<&[u8]>,
) -> Result<(), Nak> {
    let of = report_of(pair, message, index, opcode);
    receive::complete(pair, &of, inline)
}

/// The contents of a message's CQE.
fn report_of(pair: &QueuePair<'_>, message: &WholeRequest<'_>, index: u16, opcode: u8) -> Received {
    let Work { immediate, solicited, operation, .. } = *message.work;
    Received {
        opcode,
        index,
        bytes: message.length as u32,
        immediate: if operation.immediate { immediate } else { 0 },
        solicited,
        slid: message.slid,
        peer: pair.qp.remote_qpn & 0xff_ffff,
        now: pair.context.ticks(),
    }
}
