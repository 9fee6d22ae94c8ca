//! The receive side of a connected QP: what a message does when it arrives, and what goes back.

use verbless_prm::hot::{cqe_opcode, cqe_syndrome, event_type};

use super::completion::{self, Received};
use super::counters::{self, Count};
use super::keys::{self, Need, Piece, Range, Refusal, User};
use super::ring::record;
use super::state::{Bench, Completion};
use super::transfer::{self, End};
use super::work::{Kind, Segment, Work, segments};
use super::{events, failure, shared};
use crate::fabric;
use crate::hca::objects::{QpState, Service};
use crate::memory::HostMemory;
use crate::world::{HcaId, World};

/// PSNs count in 24 bits.
pub(crate) const PSN: u32 = 0xff_ffff;
/// A PSN that is less than this far ahead is ahead; else it lies behind.
const PSN_HALF: u32 = 1 << 23;
/// log2 of the longest receive WQE.
const LOG_LONGEST_STRIDE: u32 = 12;
/// Attempts of an atomic against a client that changes the word all the time.
const ATTEMPTS: u32 = 1 << 16;

/// A request on the wire.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message {
    pub from: HcaId,
    pub from_qpn: u32,
    pub service: Service,
    /// The port that it left from, from 1.
    pub port: u8,
    pub to_qpn: u32,
    pub psn: u32,
    pub packets: u32,
    pub work: Work,
    /// Bytes of payload, or bytes asked for.
    pub length: u64,
}

/// What comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Acknowledged. An atomic gives what was there; a READ's memory is in `Bench::remote`.
    Done { original: Option<u64> },
    /// RNR NAK with this timer code.
    NotReady { timer: u8 },
    /// NAK: the PSN lies ahead of the one expected.
    OutOfSequence,
    /// NAK, or a failure at home: the requester's syndrome.
    Failed(u8),
    /// Nothing: there is nobody, or it drops the packet.
    Silence,
}

/// What the responder found wrong.
pub(super) enum Nak {
    /// The memory key refused, or does not allow it.
    Access,
    /// The operation is not enabled, misaligned, or too long for the receive WQE.
    InvalidRequest,
    /// The responder's own trouble.
    Operation,
    /// No receive WQE.
    NotReady,
    /// The requester's own memory faulted.
    Source,
}

/// A QP at its function.
pub(super) type Place = (HcaId, u32);

/// Takes a message at `id`.
pub(crate) fn receive(
    world: &mut World,
    id: HcaId,
    message: &Message,
    bench: &mut Bench,
) -> Answer {
    let qpn = message.to_qpn;
    if !expected(world, id, message) {
        return Answer::Silence;
    }
    let hca = &mut world.hcas[id];
    let Some(qp) = hca.objects.qps.get_mut(&qpn) else { return Answer::Silence };
    if !message.service.is_reliable() {
        // Whatever was lost before it is lost.
        qp.responder.psn = message.psn;
    }
    let ahead = message.psn.wrapping_sub(qp.responder.psn) & PSN;
    if ahead != 0 {
        tracing::info!(qpn, psn = message.psn, expected = qp.responder.psn, "out of sequence");
        let (what, answer) = match ahead < PSN_HALF {
            true => (Count::OutOfSequence, Answer::OutOfSequence),
            false => (Count::Duplicate, Answer::Silence),
        };
        counters::count(&mut hca.objects, qpn, what);
        return answer;
    }
    let timer = qp.responder.min_rnr_timer;
    let too_long = message.length > hca.objects.limits.longest_message(qp);
    if qp.state == QpState::Rtr && !std::mem::replace(&mut qp.runtime.established, true) {
        events::queue(hca, event_type::COMMUNICATION_ESTABLISHED, qpn);
    }
    let done = match message.work.kind {
        _ if too_long => Err(Nak::InvalidRequest),
        Kind::Send | Kind::SendImm | Kind::SendInvalidate => {
            send(world, (id, qpn), message, bench).map(|()| None)
        }
        Kind::Write => write(world, (id, qpn), message, bench).map(|()| None),
        Kind::WriteImm => write_imm(world, (id, qpn), message, bench).map(|()| None),
        Kind::Read => read(world, (id, qpn), message, bench).map(|()| None),
        Kind::CompareSwap { .. } | Kind::FetchAdd { .. } => {
            atomic(world, (id, qpn), message, bench).map(Some)
        }
        Kind::Nop | Kind::Umr => Ok(None),
    };
    if let Some(what) = counted(&message.work, &done) {
        counters::count(&mut world.hcas[id].objects, qpn, what);
    }
    let failed = |world: &mut World, event: Option<u8>, syndrome| {
        if let Some(event) = event {
            events::queue(&mut world.hcas[id], event, qpn);
        }
        let gone = is_gone(world, (id, qpn));
        failure::to_error(world, id, qpn);
        if gone { Answer::Silence } else { Answer::Failed(syndrome) }
    };
    match done {
        Ok(original) => {
            if let Some(qp) = world.hcas[id].objects.qps.get_mut(&qpn) {
                qp.responder.psn = qp.responder.psn.wrapping_add(message.packets) & PSN;
            }
            Answer::Done { original }
        }
        // Nobody hears of it: the message is lost, and the next one is welcome.
        Err(nak) if !message.service.is_reliable() => match nak {
            Nak::Source => Answer::Failed(cqe_syndrome::LOCAL_PROTECTION),
            _ => Answer::Silence,
        },
        Err(Nak::NotReady) => Answer::NotReady { timer },
        Err(Nak::Source) => Answer::Failed(cqe_syndrome::LOCAL_PROTECTION),
        Err(Nak::Access) => {
            failed(world, Some(event_type::WQ_ACCESS_ERROR), cqe_syndrome::REMOTE_ACCESS)
        }
        Err(Nak::InvalidRequest) => {
            let reported = world.hcas[id].objects.qps.get(&qpn).map(|qp| qp.state);
            // A receive WQE that was too short told of it by its CQE already; else an event does.
            let event =
                (reported != Some(QpState::Error)).then_some(event_type::WQ_INVALID_REQUEST);
            failed(world, event, cqe_syndrome::REMOTE_INVALID_REQUEST)
        }
        Err(Nak::Operation) => failed(world, None, cqe_syndrome::REMOTE_OPERATION),
    }
}

/// What a request counts as at its responder.
fn counted(work: &Work, done: &Result<Option<u64>, Nak>) -> Option<Count> {
    match (done, work.kind) {
        (Err(Nak::NotReady), _) => Some(Count::OutOfBuffer),
        (Err(Nak::Access), _) => Some(Count::ResponderAccess),
        (Err(Nak::InvalidRequest), _) => Some(Count::ResponderInvalid),
        (Err(_), _) => None,
        (Ok(_), Kind::Write | Kind::WriteImm) => Some(Count::Writes),
        (Ok(_), Kind::Read) => Some(Count::Reads),
        (Ok(_), Kind::CompareSwap { .. } | Kind::FetchAdd { .. }) => Some(Count::Atomics),
        _ => None,
    }
}

/// Whether the program that a QP is for is no more: nobody learns that from what its memory does now, but only from its silence.
pub(super) fn is_gone(world: &World, (id, qpn): Place) -> bool {
    let hca = &world.hcas[id];
    let Some(qp) = hca.objects.qps.get(&qpn) else { return true };
    let rings = [qp.sq.as_ref().map(|sq| &sq.memory), qp.rq.as_ref().map(|rq| &rq.memory)];
    let pages = rings.into_iter().flatten().filter_map(|ring| ring.pages.first().copied());
    pages.chain([qp.record]).any(|address| hca.memory.is_gone(address))
}

/// Whether there is a QP that takes messages, and takes them from this sender.
fn expected(world: &World, id: HcaId, message: &Message) -> bool {
    let Some(qp) = world.hcas[id].objects.qps.get(&message.to_qpn) else { return false };
    let ready =
        matches!(qp.state, QpState::Rtr | QpState::Rts | QpState::SqError | QpState::SqDrained);
    ready
        && qp.service == message.service
        && qp.remote_qpn == message.from_qpn
        && qp.remote.and_then(|remote| fabric::reach(world, id, qp.port, remote))
            == Some(message.from)
}

fn refused(qpn: u32, message: &Message, refusal: Refusal) -> Nak {
    let Work { rkey, remote_address, .. } = message.work;
    tracing::info!(qpn, rkey, remote_address, message.length, ?refusal, "a remote key refused");
    Nak::Access
}

/// Resolves the remote range of a READ, WRITE or atomic into `Bench::remote`.
fn remote_range(
    world: &World,
    (id, qpn): Place,
    message: &Message,
    need: Need,
    bench: &mut Bench,
) -> Result<(), Nak> {
    let objects = &world.hcas[id].objects;
    let Some(qp) = objects.qps.get(&qpn) else { return Err(Nak::Operation) };
    let enabled = match need {
        Need::RemoteRead => qp.responder.allow_read && qp.responder.max_dest_rd_atomic > 0,
        Need::Atomic => qp.responder.allow_atomic && qp.responder.max_dest_rd_atomic > 0,
        _ => qp.responder.allow_write,
    };
    if !enabled {
        return Err(Nak::InvalidRequest);
    }
    bench.remote.clear();
    if message.length == 0 {
        return Ok(());
    }
    let user = User { pd: qp.pd, qpn, reserved_lkey: false };
    let Work { rkey, remote_address, .. } = message.work;
    let range = Range { key: rkey, address: remote_address, length: message.length };
    keys::resolve(objects, user, range, need, &mut { keys::VISITS }, &mut bench.remote)
        .map_err(|refusal| refused(qpn, message, refusal))
}

/// Copies the message's payload into `Bench::remote`.
fn payload(world: &World, id: HcaId, message: &Message, bench: &Bench) -> Result<(), Nak> {
    let from = &*world.hcas[message.from].memory;
    let to = &*world.hcas[id].memory;
    transfer::transfer(from, &bench.local, &bench.wqe, to, &bench.remote).map_err(|end| match end {
        End::Source => Nak::Source,
        End::Target => Nak::Operation,
    })
}

fn write(world: &mut World, place: Place, message: &Message, bench: &mut Bench) -> Result<(), Nak> {
    remote_range(world, place, message, Need::RemoteWrite, bench)?;
    payload(world, place.0, message, bench)
}

fn write_imm(
    world: &mut World,
    place: Place,
    message: &Message,
    bench: &mut Bench,
) -> Result<(), Nak> {
    remote_range(world, place, message, Need::RemoteWrite, bench)?;
    let index = next_receive(world, place, None)?;
    payload(world, place.0, message, bench)?;
    received(world, place, message, index, cqe_opcode::RESPONDER_WRITE_IMM, None)
}

fn read(world: &mut World, place: Place, message: &Message, bench: &mut Bench) -> Result<(), Nak> {
    remote_range(world, place, message, Need::RemoteRead, bench)
}

fn atomic(
    world: &mut World,
    place: Place,
    message: &Message,
    bench: &mut Bench,
) -> Result<u64, Nak> {
    if !message.work.remote_address.is_multiple_of(8) {
        return Err(Nak::InvalidRequest);
    }
    remote_range(world, place, message, Need::Atomic, bench)?;
    let next = |now: u64| match message.work.kind {
        Kind::CompareSwap { compare, swap } if now == compare => swap,
        Kind::FetchAdd { add } => now.wrapping_add(add),
        _ => now,
    };
    // Numbers have the host's byte order: the kernel asks for that mode (SET_HCA_CAP, atomic page).
    let memory = &*world.hcas[place.0].memory;
    match bench.remote[..] {
        [Piece::Memory { address, .. }] if address.is_multiple_of(8) => {
            let mut guess = 0;
            for _ in 0..ATTEMPTS {
                let found = memory
                    .compare_exchange64(address, guess, next(guess))
                    .map_err(|_| Nak::Operation)?;
                if found == guess {
                    return Ok(found);
                }
                guess = found;
            }
            Err(Nak::Operation)
        }
        [Piece::Null { .. }] => Ok(0),
        // Aligned in the key but not in memory: only the device's own accesses are atomic then.
        _ => {
            let mut word = [0; 8];
            transfer::gather(memory, &bench.remote, &[], &mut word).map_err(|_| Nak::Operation)?;
            let found = u64::from_ne_bytes(word);
            transfer::scatter(memory, &bench.remote, &next(found).to_ne_bytes())
                .map_err(|_| Nak::Operation)?;
            Ok(found)
        }
    }
}

fn send(world: &mut World, place: Place, message: &Message, bench: &mut Bench) -> Result<(), Nak> {
    let (id, qpn) = place;
    let index = next_receive(world, place, Some(&mut bench.receive))?;
    if let Err(syndrome) = scatter_list(world, place, index, message.length, bench) {
        receive_failed(world, place, index, syndrome);
        return Err(match syndrome {
            cqe_syndrome::LOCAL_LENGTH => Nak::InvalidRequest,
            _ => Nak::Operation,
        });
    }
    let Some(qp) = world.hcas[id].objects.qps.get(&qpn) else { return Err(Nak::Operation) };
    let opcode = match message.work.kind {
        Kind::SendImm => cqe_opcode::RESPONDER_SEND_IMM,
        Kind::SendInvalidate => cqe_opcode::RESPONDER_SEND_INVALIDATE,
        _ => cqe_opcode::RESPONDER_SEND,
    };
    let in_cqe = message.length > 0 && message.length <= u64::from(qp.responder_inline);
    let mut inline = [0; 64];
    let inline = &mut inline[..if in_cqe { message.length as usize } else { 0 }];
    if in_cqe {
        let from = &*world.hcas[message.from].memory;
        transfer::gather(from, &bench.local, &bench.wqe, inline).map_err(|_| Nak::Source)?;
    } else {
        payload(world, id, message, bench)?;
    }
    if message.work.kind == Kind::SendInvalidate {
        invalidate(world, place, message)?;
    }
    received(world, place, message, index, opcode, in_cqe.then_some(inline))
}

/// Finds the memory that the receive WQE in `Bench::receive` gives to so many bytes; the error is the syndrome.
pub(super) fn scatter_list(
    world: &World,
    (id, qpn): Place,
    index: u16,
    length: u64,
    bench: &mut Bench,
) -> Result<(), u8> {
    let objects = &world.hcas[id].objects;
    let qp = objects.qps.get(&qpn).ok_or(cqe_syndrome::LOCAL_QP_OPERATION)?;
    // The keys of a shared queue's WQEs belong to its domain.
    let shared = qp.srq.and_then(|number| objects.shared.get(&number));
    let pd = shared.map_or(qp.pd, |queue| queue.pd);
    let user = User { pd, qpn, reserved_lkey: qp.context.rlky() };
    bench.remote.clear();
    let (mut rest, mut visits) = (length, keys::VISITS);
    for segment in segments(&bench.receive, 0) {
        if rest == 0 {
            break;
        }
        let Ok(Segment::Pointer { lkey, address, length }) = segment else {
            return Err(cqe_syndrome::LOCAL_QP_OPERATION);
        };
        let here = length.min(rest);
        let range = Range { key: lkey, address, length: here };
        keys::resolve(objects, user, range, Need::LocalWrite, &mut visits, &mut bench.remote)
            .map_err(|refusal| {
                tracing::info!(qpn, index, ?range, ?refusal, "a local key refused");
                cqe_syndrome::LOCAL_PROTECTION
            })?;
        rest -= here;
    }
    if rest > 0 { Err(cqe_syndrome::LOCAL_LENGTH) } else { Ok(()) }
}

/// Frees the key that a SEND with invalidate names.
fn invalidate(world: &mut World, (id, qpn): Place, message: &Message) -> Result<(), Nak> {
    let key = message.work.immediate;
    let objects = &mut world.hcas[id].objects;
    let pd = objects.qps.get(&qpn).map(|qp| qp.pd);
    let mkey = objects.mkeys.get_mut(&(key >> 8)).ok_or(Nak::Access)?;
    let right = u32::from(mkey.variant) == key & 0xff && Some(mkey.pd) == pd && !mkey.free;
    if !right || !mkey.context.en_rinval() {
        return Err(Nak::Access);
    }
    mkey.free = true;
    Ok(())
}

/// The index of the next receive WQE, and with `wqe` a copy of it. The record is read here, and only here.
pub(super) fn next_receive(
    world: &mut World,
    (id, qpn): Place,
    wqe: Option<&mut Vec<u8>>,
) -> Result<u16, Nak> {
    let hca = &world.hcas[id];
    let Some(qp) = hca.objects.qps.get(&qpn) else { return Err(Nak::Operation) };
    let memory: &dyn HostMemory = &*hca.memory;
    if let Some(queue) = qp.srq.and_then(|number| hca.objects.shared.get(&number)) {
        let next = shared::next(memory, queue, wqe).map_err(|_| Nak::Operation)?;
        return next.ok_or(Nak::NotReady);
    }
    let rq = qp.rq.as_ref().ok_or(Nak::NotReady)?;
    let posted = record(memory, qp.record).map_err(|_| Nak::Operation)? as u16;
    if posted == rq.consumer {
        return Err(Nak::NotReady);
    }
    if let Some(wqe) = wqe {
        if rq.log_stride > LOG_LONGEST_STRIDE || rq.log_size >= 32 {
            return Err(Nak::Operation);
        }
        let slot = u64::from(rq.consumer) & ((1 << rq.log_size) - 1);
        wqe.resize(1 << rq.log_stride, 0);
        rq.memory.read_wrapping(memory, slot << rq.log_stride, wqe).map_err(|_| Nak::Operation)?;
    }
    Ok(rq.consumer)
}

/// The receive WQE at `index` is used up; gives the CQ that hears of it.
pub(super) fn use_up(world: &mut World, (id, qpn): Place, index: u16) -> Option<u32> {
    let hca = &mut world.hcas[id];
    let qp = hca.objects.qps.get_mut(&qpn)?;
    if let Some(number) = qp.srq {
        let cqn = qp.context.cqn_rcv();
        shared::used(hca, number);
        return Some(cqn);
    }
    let rq = qp.rq.as_mut()?;
    rq.consumer = index.wrapping_add(1);
    Some(rq.cqn)
}

/// A message is complete: uses up the receive WQE and writes its CQE.
fn received(
    world: &mut World,
    (id, qpn): Place,
    message: &Message,
    index: u16,
    opcode: u8,
    inline: Option<&[u8]>,
) -> Result<(), Nak> {
    let now = world.hcas[id].objects.limits.ticks(world.clock.now);
    let slid = world.hcas[message.from]
        .ports
        .get(usize::from(message.port).wrapping_sub(1))
        .map_or(0, |port| port.lid);
    let cqn = use_up(world, (id, qpn), index).ok_or(Nak::Operation)?;
    let Some(qp) = world.hcas[id].objects.qps.get_mut(&qpn) else { return Err(Nak::Operation) };
    let Work { immediate, solicited, .. } = message.work;
    let has_immediate = opcode != cqe_opcode::RESPONDER_SEND;
    let of = Received {
        opcode,
        index,
        bytes: message.length as u32,
        immediate: if has_immediate { immediate } else { 0 },
        solicited,
        slid,
        peer: qp.remote_qpn & 0xff_ffff,
        now,
    };
    let completion = Completion::responder(qp, qpn, &of, inline);
    if completion::complete(world, id, cqn, completion).is_err() {
        failure::no_room(world, id, qpn);
        return Err(Nak::Operation);
    }
    Ok(())
}

/// A receive WQE failed: its error CQE, then the QP goes to the error state.
pub(super) fn receive_failed(world: &mut World, (id, qpn): Place, index: u16, syndrome: u8) {
    let Some(cqn) = use_up(world, (id, qpn), index) else { return };
    let objects = &mut world.hcas[id].objects;
    counters::receive_failed(objects, qpn, syndrome);
    let Some(qp) = objects.qps.get_mut(&qpn) else { return };
    let completion = Completion::error(qp, qpn, cqe_opcode::RESPONDER_ERROR, 0, index, syndrome);
    let _ = completion::complete(world, id, cqn, completion);
    failure::to_error(world, id, qpn);
}
