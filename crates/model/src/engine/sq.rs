//! SQs: one WQE a turn, as for the send half of a QP; but no peer, no service and no retries. Packets are not sent yet.

use verbless_prm::SqState;
use verbless_prm::hot::{completion as wanted, cqe_opcode, cqe_syndrome, event_type, opcode};

use super::completion::{self, Requested};
use super::requester::{Turn, fetch};
use super::state::{Bench, Completion};
use super::work::control;
use super::{events, failure};
use crate::world::{HcaId, World};

/// Gives an SQ its turn: executes one WQE, if its state lets it.
pub(super) fn turn(world: &mut World, id: HcaId, sqn: u32, bench: &mut Bench) -> Turn {
    let hca = &mut world.hcas[id];
    let limits = hca.objects.limits;
    let now = limits.ticks(world.clock.now);
    let Some(sq) = hca.objects.sqs.get_mut(&sqn) else { return Turn::Sleep };
    match sq.state {
        SqState::RDY => {}
        SqState::ERR => {
            flush(world, id, sqn);
            return Turn::Sleep;
        }
        _ => return Turn::Sleep,
    }
    let queue = &mut sq.queue;
    if queue.consumer == queue.producer {
        queue.awake = false;
        return Turn::Sleep;
    }
    let index = queue.consumer;
    let copy = queue.runtime.copies.take(index);
    let fetched = fetch(&*hca.memory, queue, copy, limits.max_wqe_sz_sq, &mut bench.wqe);
    let read = fetched.and_then(|blocks| Ok((blocks, control(&bench.wqe, sqn, index)?)));
    let Ok((blocks, (word, flags))) = read else {
        let opcode = bench.wqe.get(3).copied().unwrap_or(opcode::NOP);
        fail(world, id, sqn, index, fetched.unwrap_or(1), opcode);
        return Turn::Sleep;
    };
    let opcode = word.opcode();
    if opcode != opcode::NOP {
        tracing::warn!(sqn, opcode, "an SQ does not do this");
        fail(world, id, sqn, index, blocks, opcode);
        return Turn::Sleep;
    }
    queue.consumer = index.wrapping_add(blocks);
    if flags.ce() < wanted::ALWAYS {
        return Turn::Again;
    }
    let event = flags.ce() == wanted::ALWAYS_AND_EVENT;
    let done = Requested { opcode, index, bytes: 0, event, now };
    let cqn = queue.cqn;
    let completion = Completion::requester(sq, sqn, &done, None);
    if completion::complete(world, id, cqn, completion).is_err() {
        events::send_queue(&mut world.hcas[id], event_type::WQ_CATASTROPHIC, sqn);
        to_error(world, id, sqn);
        return Turn::Sleep;
    }
    Turn::Again
}

/// The WQE is nothing that the SQ does: an error CQE, and the SQ goes no further.
fn fail(world: &mut World, id: HcaId, sqn: u32, index: u16, blocks: u16, opcode: u8) {
    let Some(sq) = world.hcas[id].objects.sqs.get_mut(&sqn) else { return };
    sq.queue.consumer = index.wrapping_add(blocks);
    let cqn = sq.queue.cqn;
    let syndrome = cqe_syndrome::LOCAL_QP_OPERATION;
    let kind = cqe_opcode::REQUESTER_ERROR;
    let completion = Completion::error(sq, sqn, kind, opcode, index, syndrome);
    tracing::info!(sqn, index, opcode, "a send request failed");
    let _ = completion::complete(world, id, cqn, completion);
    to_error(world, id, sqn);
}

/// Moves an SQ to the error state, and flushes it.
pub(crate) fn to_error(world: &mut World, id: HcaId, sqn: u32) {
    if let Some(sq) = world.hcas[id].objects.sqs.get_mut(&sqn) {
        sq.state = SqState::ERR;
        flush(world, id, sqn);
    }
}

/// Completes everything that is posted to an SQ in the error state as flushed, if its owner wants to hear of it.
fn flush(world: &mut World, id: HcaId, sqn: u32) {
    failure::at_most_a_ring(|| flush_one(world, id, sqn));
}

fn flush_one(world: &mut World, id: HcaId, sqn: u32) -> Option<()> {
    let hca = &mut world.hcas[id];
    let sq = hca.objects.sqs.get(&sqn)?;
    if sq.state != SqState::ERR || !sq.context.flush_in_error_en() {
        return None;
    }
    let (index, wqe_opcode) = hca.objects.sender(sqn)?.skip(&*hca.memory)?;
    let sq = hca.objects.sqs.get(&sqn)?;
    let (cqn, kind, flushed) = (sq.queue.cqn, cqe_opcode::REQUESTER_ERROR, cqe_syndrome::FLUSHED);
    let completion = Completion::error(sq, sqn, kind, wqe_opcode, index, flushed);
    let _ = completion::complete(world, id, cqn, completion);
    Some(())
}

/// An SQ was reset or is about to be destroyed: forgets what was posted, without completions.
pub(crate) fn reset(world: &mut World, id: HcaId, sqn: u32) {
    let hca = &mut world.hcas[id];
    super::doorbell::unqueue(hca, sqn);
    if let Some(sq) = hca.objects.sqs.get_mut(&sqn) {
        sq.queue.reset();
    }
}
