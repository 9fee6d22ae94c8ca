//! The order of work: doorbells, timers, and one WQE of a queue at a time, function by function.

use super::context::Missing;
use super::cq::CompletionQueue;
use super::function::FunctionEngine;
use super::scratch::{Phase, Scratch};
use super::sender::Turn;
use super::state::{Delayed, Egress};
use super::transport::Carrier;
use super::{blueflame, doorbell, dpa, flush, packets, sweep, transport, wait};
use crate::fabric::Vport;
use crate::locked::LockedFunctions;

/// While queues are busy, one turn in this many scans for doorbells.
const TURNS_PER_SCAN: u32 = 8;
/// While queues are busy, one turn in this many reads the records of queues whose doorbells may be
/// lost.
const TURNS_PER_SWEEP: u32 = 16;
/// In stepped mode, one turn in this many goes to a DPA program, whatever other work there is.
const TURNS_PER_PROGRAM: u32 = 16;
/// Packets taken in a row; their answers go out together.
const ARRIVALS_PER_PHASE: u8 = 16;
/// Number of kinds of [`Phase`]; a turn may return to the first.
const PHASES: usize = 4;
/// While queues are busy, one turn in this many looks at QPs in the error state.
const TURNS_PER_FLUSH: u32 = 1024;

/// Bytes that a thread moves before other threads may lock the function.
const BATCH_BYTES: u64 = 1 << 20;

/// Does one unit of work of any function, with all functions locked: takes pending doorbells,
/// executes one WQE, or expires a timer. False if there is no work.
pub(crate) fn step(locked: &mut LockedFunctions) -> bool {
    begin(locked);
    let worked = with_scratch(locked, |locked, scratch| {
        scratch.steps = scratch.steps.wrapping_add(1);
        // While some functions are busy, one step in [`TURNS_PER_SCAN`] looks at the others.
        let first = scratch.steps.is_multiple_of(TURNS_PER_PROGRAM) && step_program(locked);
        first
            || !scratch.steps.is_multiple_of(TURNS_PER_SCAN)
                && step_one(locked, scratch, FunctionEngine::is_busy)
            || step_one(locked, scratch, |_| true)
            || step_program(locked)
    });
    end(locked);
    worked
}

/// Gives a turn to a program on some DPA.
fn step_program(locked: &mut LockedFunctions) -> bool {
    (0..locked.functions.len()).any(|id| dpa::step(locked, id))
}

/// Does one piece of work with the next function that `which` selects.
fn step_one(
    locked: &mut LockedFunctions,
    scratch: &mut Scratch,
    which: impl Fn(&FunctionEngine) -> bool,
) -> bool {
    let count = locked.functions.len();
    let first = scratch.next;
    (0..count).map(|at| (first + at) % count).any(|id| {
        scratch.next = id + 1;
        which(&locked.functions[id]) && work(locked, id, scratch)
    })
}

/// Moves the clock of a stepped model to the next timer, and expires it; false if none runs.
pub(crate) fn jump(locked: &mut LockedFunctions) -> bool {
    // A frame that is still on a link is not work.
    while let Some(due) =
        locked.functions.iter().filter_map(FunctionEngine::next_timer).chain(arrival(locked)).min()
    {
        locked.clock.now = locked.clock.now.max(due);
        if step(locked) {
            return true;
        }
    }
    false
}

/// When the next frame arrives somewhere.
fn arrival(locked: &LockedFunctions) -> Option<u64> {
    locked.fabric().lock().next_due()
}

/// Does up to `limit` pieces of work with a locked function, or as much as its time allows; returns
/// their number.
pub(super) fn run(locked: &mut LockedFunctions, id: usize, limit: u32) -> u32 {
    begin(locked);
    let done = with_scratch(locked, |locked, scratch| {
        let (mut done, mut moved) = (0, 0);
        while done < limit
            && moved < BATCH_BYTES
            && locked.contended.is_none()
            && work(locked, id, scratch)
        {
            done += 1;
            moved += std::mem::take(&mut locked.functions[id].engine.moved_bytes);
        }
        done
    });
    end(locked);
    done
}

/// Begins work: memory may collect writes until [`end`].
fn begin(locked: &mut LockedFunctions) {
    locked.clock.tick();
    locked.refresh_directory();
    locked.functions.iter().for_each(|function| function.hca.memory.hold());
}

fn end(locked: &mut LockedFunctions) {
    locked.functions.iter().for_each(|function| function.hca.memory.release());
}

fn with_scratch<R>(
    locked: &mut LockedFunctions,
    work: impl FnOnce(&mut LockedFunctions, &mut Scratch) -> R,
) -> R {
    let mut scratch = std::mem::take(&mut locked.scratch);
    let result = work(locked, &mut scratch);
    locked.scratch = scratch;
    result
}

fn work(locked: &mut LockedFunctions, id: usize, scratch: &mut Scratch) -> bool {
    let now = locked.clock.now;
    let function = &mut locked.functions[id];
    #[cfg(test)]
    assert!(!function.engine.faults.panic, "a test asked for a panic");
    if function.hca.fatal {
        discard_pending_work(function);
        doorbell::discard(&function.hca);
        collect(locked, id);
        locked.functions[id].engine.ingress.clear();
        return false;
    }
    if !locked.lock_owners(id) {
        return false;
    }
    let function = &mut locked.functions[id];
    let turns = function.engine.turns.wrapping_add(1);
    function.engine.turns = turns;
    let mut worked = false;
    if function.engine.active.is_empty() || turns.is_multiple_of(TURNS_PER_SCAN) {
        worked |= doorbell::scan(function, now, scratch);
    }
    if function.engine.sweeps.is_busy()
        && (function.engine.active.is_empty() || turns.is_multiple_of(TURNS_PER_SWEEP))
    {
        worked |= sweep::turn(function, now);
    }
    // A busy engine still flushes failed queues.
    if turns.is_multiple_of(TURNS_PER_FLUSH) {
        worked |= flush::find_late_receives(locked, id);
    }
    worked |= expire(&mut locked.functions[id], now);
    worked |= flush::turn(&mut locked.functions[id], now);
    worked |= wait::give_due_turns(locked, id);
    let engine = &locked.functions[id].engine;
    if engine.answering.is_empty() && engine.ingress.is_empty() && !locked.fabric().has_for(id, now)
    {
        let engine = &mut locked.functions[id].engine;
        // The packets that this turn sends are taken before the next turn.
        engine.phase = Phase::Arrivals(ARRIVALS_PER_PHASE - 1);
        return give_turn(locked, id, scratch) || worked || flush::find_late_receives(locked, id);
    }
    for _ in 0..PHASES {
        let phase = locked.functions[id].engine.phase;
        let (did, next) = match phase {
            Phase::Arrivals(more) => match take_arrival(locked, id, scratch) {
                true => (true, more.checked_sub(1).map_or(Phase::Answers, Phase::Arrivals)),
                false => (false, Phase::Answers),
            },
            Phase::Answers => (answer(locked, id, scratch), Phase::Turns),
            Phase::Turns => {
                (give_turn(locked, id, scratch), Phase::Arrivals(ARRIVALS_PER_PHASE - 1))
            }
        };
        locked.functions[id].engine.phase = next;
        if did {
            return true;
        }
    }
    worked || flush::find_late_receives(locked, id)
}

/// Takes the next packet that has arrived for a function.
fn take_arrival(locked: &mut LockedFunctions, id: usize, scratch: &mut Scratch) -> bool {
    if locked.functions[id].engine.ingress.is_empty() {
        collect(locked, id);
    }
    let now = locked.clock.now;
    let (function, others) = locked.functions.split(id);
    let Some(delivery) = function.engine.ingress.pop_front() else { return false };
    packets::arrive(function, others, &delivery, now, scratch);
    function.engine.spent.push(delivery.frame);
    send_packets(locked, id);
    true
}

/// Takes some of the packets that have arrived for a function, and returns buffers.
fn collect(locked: &mut LockedFunctions, id: usize) {
    let now = locked.clock.now;
    if !locked.fabric().has_for(id, now) {
        return;
    }
    let mut fabric = locked.common.fabric.lock();
    let engine = &mut locked.functions[id].engine;
    engine.spent.drain(..).for_each(|frame| fabric.recycle(frame));
    fabric.share_buffers(&mut engine.buffers);
    for _ in 0..ARRIVALS_PER_PHASE {
        let Some(delivery) = fabric.take(now, id) else { break };
        engine.ingress.push_back(delivery);
    }
}

/// Lets a QP send answers.
fn answer(locked: &mut LockedFunctions, id: usize, scratch: &mut Scratch) -> bool {
    let function = &mut locked.functions[id];
    let Some(qpn) = function.engine.answering.pop_front() else { return false };
    let pair = locked.functions.pair(id, qpn, locked.clock.now);
    match pair.map(|mut pair| packets::answers::send(&mut pair, scratch)) {
        Ok(true) => locked.functions[id].engine.answering.push_back(qpn),
        Ok(false) => {}
        Err(missing) => tracing::error!(%missing, "a QP was destroyed before its response"),
    }
    send_packets(locked, id);
    true
}

/// Transmits the packets that QPs of a function sent.
fn send_packets(locked: &mut LockedFunctions, id: usize) {
    if locked.functions[id].engine.egress.is_empty() {
        return;
    }
    let now = locked.clock.now;
    let mut fabric = locked.common.fabric.lock();
    let FunctionEngine { hca, engine, .. } = &mut locked.functions[id];
    for Egress { port, frame } in engine.egress.drain(..) {
        match hca.is_up(port) {
            true => fabric.transmit(now, Vport { function: id, port }, frame),
            false => fabric.recycle(frame),
        }
    }
    engine.spent.drain(..).for_each(|frame| fabric.recycle(frame));
    fabric.share_buffers(&mut engine.buffers);
}

/// Forgets the pending work of a dead function, so that it holds up no other function.
fn discard_pending_work(function: &mut FunctionEngine) {
    function.engine.forget_queues();
    function.engine.held = Default::default();
}

/// Gives the queue at the head of a function's rotation its turn; false if there is none.
///
/// Queues take turns, but one that has moved more bytes than others is skipped until they have
/// moved as many.
fn give_turn(locked: &mut LockedFunctions, id: usize, scratch: &mut Scratch) -> bool {
    let function = &mut locked.functions[id];
    let Some(number) = function.next_in_rotation() else { return false };
    function.engine.moved_bytes = 0;
    let turn = match function.hca.objects.sqs.contains_key(&number) {
        true => sq_turn(locked, id, number, scratch),
        false => qp_turn(locked, id, number, scratch),
    };
    let function = &mut locked.functions[id];
    let moved = function.engine.moved_bytes;
    match turn {
        // It has not begun yet.
        Ok(Turn::Again) if locked.contended.is_some() => function.requeue_first(number),
        Ok(Turn::Again) => function.requeue(number, moved),
        Ok(Turn::Sleep) => {}
        Err(missing) => tracing::error!(%missing, "a queue was destroyed before its turn"),
    }
    true
}

/// Gives an SQ its turn: executes one WQE, if its state allows.
fn sq_turn(
    locked: &mut LockedFunctions,
    id: usize,
    sqn: u32,
    scratch: &mut Scratch,
) -> Result<Turn, Missing> {
    let now = locked.clock.now;
    let (function, others) = locked.functions.split(id);
    let turn = function.sq_among(sqn, now, others)?.turn(scratch);
    send_packets(locked, id);
    Ok(turn)
}

/// Gives a QP its turn: executes one WQE, or a part of it, if its state allows.
fn qp_turn(
    locked: &mut LockedFunctions,
    id: usize,
    qpn: u32,
    scratch: &mut Scratch,
) -> Result<Turn, Missing> {
    let in_packets = locked.in_packets || !locked.fabric().is_undisturbed();
    let mut pair = locked.functions.pair(id, qpn, locked.clock.now)?;
    let st = pair.qp.qp_type.st;
    let transport = transport::find(st).ok_or(Missing::Transport(qpn, st))?;
    if let Some(carry) = transport.carry
        && (transport::is_being_carried(pair.qp)
            || !(in_packets && transport::leaves_the_device(pair.qp))
                && packets::requester::is_settled(pair.qp))
    {
        let mut carrier = Carrier::new(locked, (id, qpn));
        return if carrier.finds_peer()? { carrier.turn(carry, scratch) } else { Ok(Turn::Again) };
    }
    let turn = (transport.turn)(&mut pair, scratch);
    send_packets(locked, id);
    turn
}

/// Expires timers, and releases delayed completions and events.
fn expire(function: &mut FunctionEngine, now: u64) -> bool {
    let mut worked = !function.engine.held.is_empty() && blueflame::expire(function, now);
    while let Some(entry) =
        function.engine.delayed.first_entry().filter(|entry| entry.key().0 <= now)
    {
        let Delayed { cqn, completion } = entry.remove();
        with_cq(function, cqn, now, |cq| cq.write_delayed(&completion));
        worked = true;
    }
    while let Some(&(due, cqn)) = function.engine.moderated.first().filter(|&&(due, _)| due <= now)
    {
        function.engine.moderated.remove(&(due, cqn));
        with_cq(function, cqn, now, |mut cq| cq.report_late());
        worked = true;
    }
    while let Some(&(at, qpn)) = function.engine.timers.first().filter(|&&(at, _)| at <= now) {
        function.engine.timers.remove(&(at, qpn));
        doorbell::queue(function, qpn);
        worked = true;
    }
    worked
}

fn with_cq(
    function: &mut FunctionEngine,
    cqn: u32,
    now: u64,
    act: impl FnOnce(CompletionQueue<'_>),
) {
    match function.context(now).cq(cqn) {
        Ok(cq) => act(cq),
        Err(missing) => tracing::error!(%missing, "a delayed effect has no CQ"),
    }
}
