//! Whose turn it is: doorbells, timers, and one WQE of a queue at a time, function by function.

use super::context::Missing;
use super::cq::CompletionQueue;
use super::function::Function;
use super::requester::Step;
use super::scratch::{Phase, Scratch};
use super::sender::Turn;
use super::state::{Delayed, Egress};
use super::transport::Carrier;
use super::{blueflame, doorbell, packets};
use crate::fabric::Vport;
use crate::world::World;

/// While queues are busy, doorbells are looked for once in so many turns.
const TURNS_PER_SCAN: u32 = 8;
/// Packets that are taken in a row; answers to them go out together.
const ARRIVALS: u8 = 16;
/// Kinds of [`Phase`], the first of which may come again.
const PHASES: usize = 4;
/// While queues are busy, QPs in the error state are looked at once in so many turns.
const TURNS_PER_FLUSH: u32 = 1024;
/// QPs in the error state that are looked at in one turn of the model's thread.
const LATE_FLUSHES: usize = 64;

/// Does one piece of work: takes the doorbells that wait, or executes one WQE, or lets a timer run
/// out. False when there is none.
pub(crate) fn step(world: &mut World) -> bool {
    run(world, 1) == 1
}

/// Moves the clock of a stepped model to the next timer, and lets that run out. False when none
/// runs.
pub(crate) fn jump(world: &mut World) -> bool {
    // A frame that is halfway is no work yet.
    while let Some(wait) = next_timer(world) {
        world.clock.now = world.clock.now.saturating_add(wait);
        if step(world) {
            return true;
        }
    }
    false
}

/// Does up to `limit` pieces of work; says how many there were.
pub(super) fn run(world: &mut World, limit: u32) -> u32 {
    world.clock.tick();
    let mut scratch = std::mem::take(&mut world.scratch);
    world.functions.iter().for_each(|function| function.hca.memory.hold());
    let mut done = 0;
    while done < limit && work(world, &mut scratch) {
        done += 1;
    }
    world.functions.iter().for_each(|function| function.hca.memory.let_go());
    world.scratch = scratch;
    done
}

fn work(world: &mut World, scratch: &mut Scratch) -> bool {
    #[cfg(test)]
    assert!(
        !world.functions.iter().any(|function| function.engine.faults.panic),
        "a test asked for a panic"
    );
    scratch.turns = scratch.turns.wrapping_add(1);
    let mut worked = false;
    world.functions.iter_mut().filter(|it| it.hca.fatal).for_each(forget_plans);
    let idle = world.functions.iter().all(|function| function.engine.active.is_empty());
    if idle || scratch.turns.is_multiple_of(TURNS_PER_SCAN) {
        for id in 0..world.functions.len() {
            match world.functions[id].hca.fatal {
                true => doorbell::ignore(&world.functions[id].hca),
                false => worked |= doorbell::scan(world, id, scratch),
            }
        }
    }
    // Whoever keeps the engine busy does not keep it from those that have failed.
    if scratch.turns.is_multiple_of(TURNS_PER_FLUSH) {
        worked |= flush_late(world);
    }
    for id in 0..world.functions.len() {
        worked |= expire(world, id);
    }
    let answering = || world.functions.iter().any(|it| !it.engine.answering.is_empty());
    if world.fabric.is_empty() && !answering() {
        // What this turn sends is taken before the next one.
        scratch.phase = Phase::Arrivals(ARRIVALS - 1);
        return take_turn(world, scratch) || worked || flush_late(world);
    }
    for _ in 0..PHASES {
        let phase = scratch.phase;
        scratch.phase = match phase {
            Phase::Arrivals(more @ 1..) => Phase::Arrivals(more - 1),
            Phase::Arrivals(0) => Phase::Answers,
            Phase::Answers => Phase::Turns,
            Phase::Turns => Phase::Arrivals(ARRIVALS - 1),
        };
        let did = match phase {
            Phase::Arrivals(_) => take_arrival(world, scratch),
            Phase::Answers => answer(world, scratch),
            Phase::Turns => take_turn(world, scratch),
        };
        if did {
            return true;
        }
        if matches!(phase, Phase::Arrivals(_)) {
            scratch.phase = Phase::Answers;
        }
    }
    worked || flush_late(world)
}

/// Gives a queue of the next function that has one awake its turn.
fn take_turn(world: &mut World, scratch: &mut Scratch) -> bool {
    for _ in 0..world.functions.len() {
        let id = if scratch.next < world.functions.len() { scratch.next } else { 0 };
        scratch.next = id + 1;
        if give_turn(world, id, scratch) {
            return true;
        }
    }
    false
}

/// Takes the next packet that has arrived.
fn take_arrival(world: &mut World, scratch: &mut Scratch) -> bool {
    let now = world.clock.now;
    let Some(id) = world.fabric.next_receiver(now) else { return false };
    let Some(delivery) = world.fabric.take(now, id) else { return false };
    packets::arrive(&mut world.functions[id], &delivery, now, scratch);
    world.fabric.recycle(delivery.frame);
    send_packets(world, id);
    true
}

/// Lets a QP of the next function that has one send answers.
fn answer(world: &mut World, scratch: &mut Scratch) -> bool {
    for _ in 0..world.functions.len() {
        let id = scratch.next_to_answer % world.functions.len();
        scratch.next_to_answer = id + 1;
        let function = &mut world.functions[id];
        let Some(qpn) = function.engine.answering.pop_front() else { continue };
        if function.hca.fatal {
            continue;
        }
        match function.pair(qpn, world.clock.now).map(|mut pair| pair.send_answers(scratch)) {
            Ok(true) => function.engine.answering.push_back(qpn),
            Ok(false) => {}
            Err(missing) => tracing::error!(%missing, "a QP that was to answer is gone"),
        }
        send_packets(world, id);
        return true;
    }
    false
}

/// Gives the packets that QPs of a function sent to its ports.
fn send_packets(world: &mut World, id: usize) {
    let World { functions, fabric, clock, .. } = world;
    let Function { hca, engine } = &mut functions[id];
    if engine.egress.is_empty() {
        return;
    }
    for Egress { port, frame } in engine.egress.drain(..) {
        match hca.is_up(port) {
            true => fabric.transmit(clock.now, Vport { function: id, port }, frame),
            false => engine.buffers.recycle(frame),
        }
    }
    fabric.share_buffers(&mut engine.buffers);
}

/// What a function was about to do when it died does not happen any more, and holds up no other.
fn forget_plans(function: &mut Function) {
    function.engine.forget_queues();
    function.engine.held = Default::default();
}

/// Gives the queue at the head of a function's rotation its turn; false if there is none.
fn give_turn(world: &mut World, id: usize, scratch: &mut Scratch) -> bool {
    let now = world.clock.now;
    let function = &mut world.functions[id];
    if function.hca.fatal {
        return false;
    }
    let Some(number) = function.engine.active.pop_front() else { return false };
    if let Some(sender) = function.hca.objects.sender(number) {
        sender.queue.runtime.queued = false;
    }
    let turn = match function.hca.objects.sqs.contains_key(&number) {
        true => function.sq(number, now).map(|mut sq| sq.turn(&mut scratch.wqe)),
        false => qp_turn(world, id, number, scratch),
    };
    match turn {
        Ok(Turn::Again) => doorbell::queue(&mut world.functions[id], number),
        Ok(Turn::Sleep) => {}
        Err(missing) => tracing::error!(%missing, "a queue that was to have a turn is gone"),
    }
    true
}

/// Gives a QP its turn: executes one WQE, if its state lets it.
fn qp_turn(world: &mut World, id: usize, qpn: u32, scratch: &mut Scratch) -> Result<Turn, Missing> {
    let in_packets = world.in_packets || !world.fabric.is_undisturbed();
    let mut pair = world.functions[id].pair(qpn, world.clock.now)?;
    let service = pair.qp.service;
    if service.is_connected() && (in_packets || !pair.is_settled()) {
        let turn = pair.send_packets(scratch);
        send_packets(world, id);
        return turn;
    }
    match pair.begin(scratch)? {
        Step::Over(turn) => Ok(turn),
        Step::Request(placed) if service.is_datagram() && in_packets => {
            let turn = pair.send_datagram(&placed, scratch);
            send_packets(world, id);
            Ok(turn)
        }
        Step::Request(placed) => Carrier::new(world, (id, qpn)).send(service, &placed, scratch),
    }
}

/// Lets timers run out, and delayed completions and events through.
fn expire(world: &mut World, id: usize) -> bool {
    let mut worked = !world.functions[id].engine.held.is_empty() && blueflame::expire(world, id);
    let now = world.clock.now;
    let function = &mut world.functions[id];
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

fn with_cq(function: &mut Function, cqn: u32, now: u64, act: impl FnOnce(CompletionQueue<'_>)) {
    match function.context(now).cq(cqn) {
        Ok(cq) => act(cq),
        Err(missing) => tracing::error!(%missing, "what was to happen later has no CQ"),
    }
}

/// Flushes what was posted to QPs after they failed: their receive queues have no doorbell that
/// would tell.
///
/// The model's thread looks at a few at a time, in turns, so that thousands of them do not hold up
/// who rings; a test that steps is told that there is nothing to do only when there is nothing.
fn flush_late(world: &mut World) -> bool {
    let most = if world.clock.began.is_some() { LATE_FLUSHES } else { usize::MAX };
    let now = world.clock.now;
    let mut worked = false;
    for id in 0..world.functions.len() {
        let engine = &mut world.functions[id].engine;
        let errored = std::mem::take(&mut engine.errored);
        let last = engine.flushed;
        let turn = errored.range(last.saturating_add(1)..).chain(errored.range(..=last));
        for &qpn in turn.take(most) {
            match world.functions[id].pair(qpn, now) {
                Ok(mut pair) => worked |= pair.flush_receive_queue(),
                Err(missing) => tracing::error!(%missing, "a QP in the error state is gone"),
            }
            world.functions[id].engine.flushed = qpn;
        }
        world.functions[id].engine.errored = errored;
    }
    worked
}

/// Nanoseconds until the next timer runs out, if one runs.
pub(super) fn next_timer(world: &World) -> Option<u64> {
    let timers = world.functions.iter().filter_map(|function| {
        let waiting = function.engine.timers.first().map(|&(at, _)| at);
        let delayed = function.engine.delayed.first_key_value().map(|(&(due, _), _)| due);
        let moderated = function.engine.moderated.first().map(|&(due, _)| due);
        let held = function.engine.held.next_due();
        waiting.into_iter().chain(delayed).chain(moderated).chain(held).min()
    });
    timers.chain(world.fabric.next_due()).min().map(|at| at.saturating_sub(world.clock.now))
}
