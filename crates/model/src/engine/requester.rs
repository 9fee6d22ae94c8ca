//! The send side of a QP: one WQE a turn, from the ring to its completion.

use verbless_prm::hot::{CtrlSegment, WQEBB, cqe_opcode, cqe_syndrome, opcode};

use super::completion::{self, Requested};
use super::counters::{self, Count};
use super::keys::{self, Need, Range, User};
use super::responder::{self, Answer, Message, Place};
use super::state::{Bench, Completion};
use super::transfer::{self, End};
use super::work::{Kind, LONGEST, Malformed, Segment, Work, segments};
use super::{datagram, failure, umr, wait};
use crate::fabric;
use crate::hca::objects::{Objects, QpState, SendQueue, Service};
use crate::memory::{Fault, HostMemory};
use crate::world::{HcaId, World};

/// An RNR retry limit that means: for ever.
const FOR_EVER: u8 = 7;
/// Blocks of WQEs that are read at once where that saves calls.
const BLOCKS_AHEAD: usize = 32;
/// Unit of the ACK timeout: 4.096 µs.
const TIMEOUT_UNIT: u64 = 4096;

/// What became of a QP's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// There may be more to do.
    Again,
    /// Nothing to do until a doorbell, a command or a timer.
    Sleep,
}

/// Gives a QP its turn: executes one WQE, if its state lets it.
pub(crate) fn turn(world: &mut World, id: HcaId, qpn: u32, bench: &mut Bench) -> Turn {
    let hca = &mut world.hcas[id];
    let Some(qp) = hca.objects.qps.get_mut(&qpn) else { return Turn::Sleep };
    match qp.state {
        QpState::Rts => {}
        QpState::SqError => {
            failure::flush_send_queue(world, id, qpn);
            return Turn::Sleep;
        }
        QpState::Error => {
            failure::flush(world, id, qpn);
            return Turn::Sleep;
        }
        _ => return Turn::Sleep,
    }
    if qp.requester.resume_at.is_some_and(|at| at > world.clock.now) {
        return Turn::Sleep;
    }
    qp.requester.resume_at = None;
    let Some(sq) = qp.sq.as_mut() else { return Turn::Sleep };
    if sq.consumer == sq.producer {
        sq.awake = false;
        return Turn::Sleep;
    }
    let index = sq.consumer;
    let copy = sq.runtime.copies.take(index);
    let limits = hca.objects.limits;
    let blocks = match fetch(&*hca.memory, sq, copy, limits.max_wqe_sz_sq, &mut bench.wqe) {
        Ok(blocks) => blocks,
        Err(Malformed) => {
            let opcode = bench.wqe.get(3).copied().unwrap_or(opcode::NOP);
            fail(world, id, qpn, index, 1, opcode, cqe_syndrome::LOCAL_QP_OPERATION);
            return Turn::Sleep;
        }
    };
    let Ok(work) = Work::parse(&bench.wqe, qpn, index, qp.service) else {
        let opcode = bench.wqe[3];
        fail(world, id, qpn, index, blocks, opcode, cqe_syndrome::LOCAL_QP_OPERATION);
        return Turn::Sleep;
    };
    if !carries(qp.service, work.kind) {
        tracing::info!(qpn, service = ?qp.service, kind = ?work.kind, "not in this service");
        fail(world, id, qpn, index, blocks, work.opcode, cqe_syndrome::LOCAL_QP_OPERATION);
        return Turn::Sleep;
    }
    if work.is_atomic() && !hca.caps.general().atomic() {
        tracing::info!(qpn, "an atomic, and the capabilities have none");
        fail(world, id, qpn, index, blocks, work.opcode, cqe_syndrome::LOCAL_QP_OPERATION);
        return Turn::Sleep;
    }
    let user = User { pd: qp.pd, qpn, reserved_lkey: qp.context.rlky() };
    let longest = limits.longest_message(qp);
    let length = match gather_list(&hca.objects, user, &work, longest, bench) {
        Ok(length) => length,
        Err(syndrome) => {
            fail(world, id, qpn, index, blocks, work.opcode, syndrome);
            return Turn::Sleep;
        }
    };
    execute(world, id, qpn, &Placed { work, index, blocks, length }, bench)
}

/// Whether a QP of this service does such a thing.
fn carries(service: Service, kind: Kind) -> bool {
    match service {
        Service::Rc => true,
        Service::Uc => matches!(
            kind,
            Kind::Nop | Kind::Umr | Kind::Send | Kind::SendImm | Kind::Write | Kind::WriteImm
        ),
        Service::Ud | Service::Qp0 | Service::Qp1 => {
            matches!(kind, Kind::Nop | Kind::Send | Kind::SendImm)
        }
        Service::RegUmr => matches!(kind, Kind::Nop | Kind::Umr),
    }
}

/// A WQE at its place in the ring.
struct Placed {
    work: Work,
    index: u16,
    /// WQEBBs that it takes.
    blocks: u16,
    /// Bytes that its data segments name.
    length: u64,
}

/// Copies the WQE at the consumer index out of the ring, unless it came by BlueFlame (`copy`); gives the number of its blocks.
pub(super) fn fetch(
    memory: &dyn HostMemory,
    sq: &mut SendQueue,
    copy: Option<Vec<u8>>,
    longest: usize,
    wqe: &mut Vec<u8>,
) -> Result<u16, Malformed> {
    let size = 1_u32.checked_shl(sq.log_size).ok_or(Malformed)?;
    let posted = sq.producer.wrapping_sub(sq.consumer);
    if let Some(copy) = copy {
        *wqe = copy;
        let blocks = wqe.len().div_ceil(WQEBB) as u16;
        // The record may say less than when the copy came.
        return if blocks <= posted && wqe.len() <= longest { Ok(blocks) } else { Err(Malformed) };
    }
    // One block holds the control segment, and most often all of it.
    wqe.resize(WQEBB, 0);
    read_blocks(memory, sq, 0, wqe).map_err(|_| Malformed)?;
    let control = CtrlSegment::read(wqe).ok_or(Malformed)?.control();
    let bytes = usize::from(control.ds()) * 16;
    let blocks = bytes.div_ceil(WQEBB) as u16;
    if bytes == 0 || bytes > longest || blocks > posted || u32::from(blocks) > size {
        return Err(Malformed);
    }
    debug_assert!(bytes <= LONGEST);
    if bytes > WQEBB {
        wqe.resize(bytes, 0);
        read_blocks(memory, sq, 1, &mut wqe[WQEBB..]).map_err(|_| Malformed)?;
    }
    wqe.truncate(bytes);
    Ok(blocks)
}

/// Copies from block `skip` of the WQE at the consumer index on. Where each access is a system call, the blocks that are posted behind
/// it come along: whoever rang for them does not change them any more.
fn read_blocks(
    memory: &dyn HostMemory,
    sq: &mut SendQueue,
    skip: u16,
    into: &mut [u8],
) -> Result<(), Fault> {
    let index = sq.consumer.wrapping_add(skip);
    let slot = u64::from(index) & ((1_u64 << sq.log_size.min(16)) - 1);
    let at = slot * WQEBB as u64;
    if !memory.is_remote() {
        return sq.memory.read_wrapping(memory, at, into);
    }
    if let Some(blocks) = sq.runtime.ahead.blocks(index, into.len()) {
        into.copy_from_slice(blocks);
        return Ok(());
    }
    let posted = usize::from(sq.producer.wrapping_sub(index)).min(BLOCKS_AHEAD) * WQEBB;
    let ahead = &mut sq.runtime.ahead;
    ahead.first = index;
    ahead.bytes.resize(posted.max(into.len()), 0);
    let read = sq.memory.read_wrapping(memory, at, &mut ahead.bytes);
    if read.is_err() {
        ahead.bytes.clear();
        return read;
    }
    into.copy_from_slice(&ahead.bytes[..into.len()]);
    Ok(())
}

/// Finds the memory of the WQE's data segments; the error is the syndrome.
fn gather_list(
    objects: &Objects,
    user: User,
    work: &Work,
    longest: u64,
    bench: &mut Bench,
) -> Result<u64, u8> {
    bench.local.clear();
    if work.opcode == opcode::NOP {
        return Ok(0);
    }
    let need = if work.scatters() { Need::LocalWrite } else { Need::LocalRead };
    let (mut total, mut visits) = (0, keys::VISITS);
    for segment in segments(&bench.wqe, work.data) {
        match segment {
            Ok(Segment::Pointer { lkey, address, length }) => {
                total += length;
                if total > longest {
                    return Err(cqe_syndrome::LOCAL_LENGTH);
                }
                let range = Range { key: lkey, address, length };
                keys::resolve(objects, user, range, need, &mut visits, &mut bench.local).map_err(
                    |refusal| {
                        tracing::info!(qpn = user.qpn, ?range, ?refusal, "a local key refused");
                        cqe_syndrome::LOCAL_PROTECTION
                    },
                )?;
            }
            Ok(Segment::Inline { at, length }) if !work.scatters() => {
                total += length;
                bench.local.push(keys::Piece::Inline { at, length });
            }
            _ => return Err(cqe_syndrome::LOCAL_QP_OPERATION),
        }
    }
    if total > longest || (work.is_atomic() && total != 8) {
        return Err(cqe_syndrome::LOCAL_LENGTH);
    }
    Ok(total)
}

fn execute(world: &mut World, id: HcaId, qpn: u32, placed: &Placed, bench: &mut Bench) -> Turn {
    let Placed { work, length, .. } = *placed;
    match work.kind {
        Kind::Nop => return succeed(world, id, qpn, placed, 0, None),
        Kind::Umr => {
            return match umr::execute(world, (id, qpn), work.immediate, bench) {
                Ok(()) => succeed(world, id, qpn, placed, 0, None),
                Err(syndrome) => {
                    fail(world, id, qpn, placed.index, placed.blocks, work.opcode, syndrome);
                    Turn::Sleep
                }
            };
        }
        _ => {}
    }
    let Some(qp) = world.hcas[id].objects.qps.get_mut(&qpn) else { return Turn::Sleep };
    if std::mem::take(&mut qp.runtime.overdue) {
        counters::count(&mut world.hcas[id].objects, qpn, Count::Timeout);
        if try_again(world, id, qpn, placed) == Turn::Sleep {
            return Turn::Sleep;
        }
    }
    let Some(qp) = world.hcas[id].objects.qps.get(&qpn) else { return Turn::Sleep };
    let service = qp.service;
    if service.is_datagram() {
        let sent = datagram::send(world, (id, qpn), &work, length, bench);
        if failed_meanwhile(world, id, qpn) {
            return Turn::Sleep;
        }
        return match sent {
            Ok(()) => succeed(world, id, qpn, placed, 0, None),
            Err(syndrome) => {
                fail(world, id, qpn, placed.index, placed.blocks, work.opcode, syndrome);
                Turn::Sleep
            }
        };
    }
    let packets = length.div_ceil(1 << qp.log_mtu.clamp(8, 12)).max(1) as u32;
    let (port, remote) = (qp.port, qp.remote);
    let message = Message {
        from: id,
        from_qpn: qpn,
        service,
        port,
        to_qpn: qp.remote_qpn,
        psn: qp.requester.psn,
        packets,
        work,
        length,
    };
    let lost = world.hcas[id].engine.faults.lose_messages.strikes();
    let target = if lost { None } else { remote.and_then(|to| fabric::reach(world, id, port, to)) };
    let answer = match target {
        Some(target) => responder::receive(world, target, &message, bench),
        None => Answer::Silence,
    };
    if failed_meanwhile(world, id, qpn) {
        return Turn::Sleep;
    }
    let Some(qp) = world.hcas[id].objects.qps.get_mut(&qpn) else { return Turn::Sleep };
    // Nobody answers an unreliable request: it is done when it has left.
    if !service.is_reliable() && !matches!(answer, Answer::Failed(_)) {
        qp.requester.psn = qp.requester.psn.wrapping_add(packets) & responder::PSN;
        return succeed(world, id, qpn, placed, 0, None);
    }
    let (target, original) = match (answer, target) {
        (Answer::Done { original }, Some(target)) => (target, original),
        (Answer::Failed(syndrome), _) => {
            fail(world, id, qpn, placed.index, placed.blocks, work.opcode, syndrome);
            return Turn::Sleep;
        }
        (Answer::NotReady { timer }, _) => {
            let ends = qp.requester.rnr_retry_limit != FOR_EVER;
            if ends && qp.requester.rnr_retries_left == 0 {
                let syndrome = cqe_syndrome::RNR_RETRY_EXCEEDED;
                fail(world, id, qpn, placed.index, placed.blocks, work.opcode, syndrome);
                return Turn::Sleep;
            }
            qp.requester.rnr_retries_left -= u8::from(ends);
            counters::count(&mut world.hcas[id].objects, qpn, Count::RnrNak);
            wait(world, id, qpn, rnr_timer(timer));
            return Turn::Sleep;
        }
        (answer, _) => return retry(world, id, qpn, placed, answer),
    };
    qp.requester.psn = qp.requester.psn.wrapping_add(packets) & responder::PSN;
    deliver(world, (id, qpn), (target, message.to_qpn), placed, original, bench)
}

/// Whether a QP that sends to itself failed as the receiver: then its WQE was flushed with the others.
fn failed_meanwhile(world: &World, id: HcaId, qpn: u32) -> bool {
    world.hcas[id].objects.qps.get(&qpn).is_none_or(|qp| qp.state != QpState::Rts)
}

/// Puts a response where the WQE wants it, and completes.
fn deliver(
    world: &mut World,
    (id, qpn): (HcaId, u32),
    peer: Place,
    placed: &Placed,
    original: Option<u64>,
    bench: &mut Bench,
) -> Turn {
    let Placed { work, length, .. } = *placed;
    if !work.scatters() {
        return succeed(world, id, qpn, placed, 0, None);
    }
    let room = world.hcas[id].objects.qps.get(&qpn).map_or(0, |qp| u64::from(qp.requester_inline));
    let in_cqe = work.signaled && length > 0 && length <= room;
    let mut inline = [0; 64];
    let bytes = &mut inline[..if in_cqe { length as usize } else { 0 }];
    let to = &*world.hcas[id].memory;
    let from = &*world.hcas[peer.0].memory;
    let moved = match (original, in_cqe) {
        (Some(value), true) => {
            bytes.copy_from_slice(&value.to_ne_bytes());
            Ok(())
        }
        (Some(value), false) => transfer::scatter(to, &bench.local, &value.to_ne_bytes()),
        (None, true) => transfer::gather(from, &bench.remote, &[], bytes),
        (None, false) => transfer::transfer(from, &bench.remote, &[], to, &bench.local),
    };
    let (index, blocks) = (placed.index, placed.blocks);
    match moved {
        Ok(()) => {
            let inline = in_cqe.then(|| &inline[..length as usize]);
            succeed(world, id, qpn, placed, length as u32, inline)
        }
        Err(End::Target) => {
            fail(world, id, qpn, index, blocks, work.opcode, cqe_syndrome::LOCAL_PROTECTION);
            Turn::Sleep
        }
        Err(End::Source) if responder::is_gone(world, peer) => {
            failure::to_error(world, peer.0, peer.1);
            retry(world, id, qpn, placed, Answer::Silence)
        }
        Err(End::Source) => {
            fail(world, id, qpn, index, blocks, work.opcode, cqe_syndrome::REMOTE_OPERATION);
            Turn::Sleep
        }
    }
}

/// Silence, or a NAK because the sequence is broken: tries again as often as the QP may.
fn retry(world: &mut World, id: HcaId, qpn: u32, placed: &Placed, answer: Answer) -> Turn {
    let Some(qp) = world.hcas[id].objects.qps.get_mut(&qpn) else { return Turn::Sleep };
    if answer != Answer::Silence {
        counters::count(&mut world.hcas[id].objects, qpn, Count::SequenceNak);
        return try_again(world, id, qpn, placed);
    }
    // It is known to be lost only when its time is over, also when no retry is left.
    qp.runtime.overdue = true;
    let time = match qp.requester.ack_timeout {
        0 => u64::MAX,
        timeout => TIMEOUT_UNIT << timeout.min(31),
    };
    wait(world, id, qpn, time);
    Turn::Sleep
}

/// Takes one of the retries that are left, or fails the request.
fn try_again(world: &mut World, id: HcaId, qpn: u32, placed: &Placed) -> Turn {
    let Some(qp) = world.hcas[id].objects.qps.get_mut(&qpn) else { return Turn::Sleep };
    if qp.requester.retries_left == 0 {
        let syndrome = cqe_syndrome::TRANSPORT_RETRY_EXCEEDED;
        fail(world, id, qpn, placed.index, placed.blocks, placed.work.opcode, syndrome);
        return Turn::Sleep;
    }
    qp.requester.retries_left -= 1;
    Turn::Again
}

/// The WQE is done: moves on, and writes the CQE if one is wanted.
fn succeed(
    world: &mut World,
    id: HcaId,
    qpn: u32,
    placed: &Placed,
    bytes: u32,
    inline: Option<&[u8]>,
) -> Turn {
    let objects = &mut world.hcas[id].objects;
    let now = objects.limits.ticks(world.clock.now);
    let Some(qp) = objects.qps.get_mut(&qpn) else { return Turn::Sleep };
    qp.requester.retries_left = qp.requester.retry_limit;
    qp.requester.rnr_retries_left = qp.requester.rnr_retry_limit;
    let Some(sq) = qp.sq.as_mut() else { return Turn::Sleep };
    sq.consumer = placed.index.wrapping_add(placed.blocks);
    if !placed.work.signaled {
        return Turn::Again;
    }
    let cqn = sq.cqn;
    let Placed { work, index, .. } = *placed;
    let of = Requested { opcode: work.opcode, index, bytes, event: work.event, now };
    let completion = Completion::requester(qp, qpn, &of, inline);
    if completion::complete(world, id, cqn, completion).is_err() {
        failure::no_room(world, id, qpn);
        return Turn::Sleep;
    }
    Turn::Again
}

/// The WQE failed: an error CQE whether or not it was signaled, and the QP or its send queue is in error.
fn fail(world: &mut World, id: HcaId, qpn: u32, index: u16, blocks: u16, opcode: u8, syndrome: u8) {
    let objects = &mut world.hcas[id].objects;
    counters::request_failed(objects, qpn, syndrome);
    let Some(qp) = objects.qps.get_mut(&qpn) else { return };
    let Some(sq) = qp.sq.as_mut() else { return };
    sq.consumer = index.wrapping_add(blocks);
    let cqn = sq.cqn;
    let completion =
        Completion::error(qp, qpn, cqe_opcode::REQUESTER_ERROR, opcode, index, syndrome);
    tracing::info!(qpn, index, opcode, syndrome, "a send request failed");
    let _ = completion::complete(world, id, cqn, completion);
    failure::of_request(world, id, qpn);
}

/// Nanoseconds of an RNR NAK timer code (InfiniBand specification, table "RNR NAK timer field").
fn rnr_timer(code: u8) -> u64 {
    const UNITS: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    UNITS[usize::from(code) % 32] * 10_000
}
