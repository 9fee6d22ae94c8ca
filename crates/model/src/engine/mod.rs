//! The data path: doorbells, WQEs, packets, CQEs and EQEs.
//!
//! ```text
//!   doorbell   takes doorbells from UAR pages, wakes queues
//!   sender     what QPs and SQs have in common as they send
//!   requester  a send WQE of a QP a turn: work (parse), keys (translate)   --fabric-->   responder
//!   sq         a WQE of an SQ a turn
//!   shared     receive queues that QPs share
//!   transfer   payload, from piece to piece
//!   umr        changes of memory keys
//!   datagram   requests that go where they say, to whoever is there
//!   completion CQEs, overrun, arming -> events   EQEs, interrupts
//!   failure    the error state, flush
//!   counters   what QPs count
//! ```
//!
//! A message moves in one go: its packets are counted (the PSN is), not sent one by one. So requests of one QP complete in
//! order, and a fence has nothing to wait for.

mod blueflame;
mod completion;
mod counters;
mod datagram;
mod doorbell;
mod events;
mod failure;
mod inject;
mod keys;
mod requester;
mod responder;
mod ring;
mod sender;
mod shared;
mod sq;
mod state;
#[cfg(test)]
mod tests;
mod thread;
mod transfer;
mod umr;
mod work;

use std::time::Duration;

use crate::hca::Hca;
use crate::world::{HcaId, World};
use requester::Turn;

pub(crate) use blueflame::trapped_write;
pub(crate) use completion::cq_resize;
pub(crate) use doorbell::{cq_changed, is_named, mmio_write, sender_changed};
pub(crate) use failure::to_error as qp_to_error;
pub use inject::Fault;
pub(crate) use sq::{reset as sq_reset, to_error as sq_to_error};
#[cfg(test)]
pub(crate) use state::Strike;
pub(crate) use state::{Bench, CqRuntime, QpRuntime, SendRuntime, State};
pub(crate) use thread::spawn;

/// While queues are busy, doorbells are looked for once in so many turns.
const TURNS_PER_SCAN: u32 = 8;
/// While queues are busy, QPs in the error state are looked at once in so many turns.
const TURNS_PER_FLUSH: u32 = 1024;
/// QPs in the error state that are looked at in one turn of the model's thread.
const LATE_FLUSHES: usize = 64;

/// The engine's time, in nanoseconds since the model began.
#[derive(Debug)]
pub(crate) struct Clock {
    /// Virtual time; in threaded mode it follows the real one.
    pub now: u64,
    /// When the model began, in threaded mode.
    pub began: Option<std::time::Instant>,
}

impl Clock {
    pub(crate) fn new(stepped: bool) -> Self {
        Self { now: 0, began: (!stepped).then(std::time::Instant::now) }
    }

    pub(crate) fn advance(&mut self, by: Duration) {
        self.now = self.now.saturating_add(nanoseconds(by));
    }

    /// Lets the time follow the real one, in threaded mode.
    pub(crate) fn tick(&mut self) {
        if let Some(began) = self.began {
            self.now = nanoseconds(began.elapsed());
        }
    }
}

/// Nanoseconds of a duration; the longest ones are as long as 64 bits say.
pub(crate) fn nanoseconds(of: Duration) -> u64 {
    u64::try_from(of.as_nanos()).unwrap_or(u64::MAX)
}

/// Does one piece of work: takes the doorbells that wait, or executes one WQE, or lets a timer run out. False when
/// there is none.
pub(crate) fn step(world: &mut World) -> bool {
    run(world, 1) == 1
}

/// Does up to `limit` pieces of work; says how many there were.
fn run(world: &mut World, limit: u32) -> u32 {
    world.clock.tick();
    let mut bench = std::mem::take(&mut world.bench);
    world.hcas.iter().for_each(|hca| hca.memory.hold());
    let mut done = 0;
    while done < limit && work(world, &mut bench) {
        done += 1;
    }
    world.hcas.iter().for_each(|hca| hca.memory.let_go());
    world.bench = bench;
    done
}

fn work(world: &mut World, bench: &mut Bench) -> bool {
    #[cfg(test)]
    assert!(!world.hcas.iter().any(|hca| hca.engine.faults.panic), "a test asked for a panic");
    bench.turns = bench.turns.wrapping_add(1);
    let mut worked = false;
    world.hcas.iter_mut().filter(|hca| hca.fatal).for_each(forget_plans);
    let idle = world.hcas.iter().all(|hca| hca.engine.active.is_empty());
    if idle || bench.turns.is_multiple_of(TURNS_PER_SCAN) {
        for id in 0..world.hcas.len() {
            match world.hcas[id].fatal {
                true => doorbell::ignore(&world.hcas[id]),
                false => worked |= doorbell::scan(world, id, bench),
            }
        }
    }
    // Whoever keeps the engine busy does not keep it from those that have failed.
    if bench.turns.is_multiple_of(TURNS_PER_FLUSH) {
        worked |= flush_late(world);
    }
    for id in 0..world.hcas.len() {
        worked |= expire(world, id);
    }
    for _ in 0..world.hcas.len() {
        let id = if bench.next < world.hcas.len() { bench.next } else { 0 };
        bench.next = id + 1;
        if give_turn(world, id, bench) {
            return true;
        }
    }
    worked || flush_late(world)
}

/// What a function was about to do when it died does not happen any more, and holds up no other.
fn forget_plans(hca: &mut Hca) {
    all_forgotten(hca);
    hca.engine.delayed.clear();
    hca.engine.moderated.clear();
    hca.engine.held = Default::default();
}

/// Gives the queue at the head of a function's rotation its turn; false if there is none.
fn give_turn(world: &mut World, id: HcaId, bench: &mut Bench) -> bool {
    let hca = &mut world.hcas[id];
    if hca.fatal {
        return false;
    }
    let Some(number) = hca.engine.active.pop_front() else { return false };
    if let Some(sender) = hca.objects.sender(number) {
        sender.queue.runtime.queued = false;
    }
    let turn = match hca.objects.sqs.contains_key(&number) {
        true => sq::turn(world, id, number, bench),
        false => requester::turn(world, id, number, bench),
    };
    if turn == Turn::Again {
        doorbell::queue(&mut world.hcas[id], number);
    }
    true
}

/// Lets timers run out, and delayed completions through.
fn expire(world: &mut World, id: HcaId) -> bool {
    let mut worked =
        !world.hcas[id].engine.delayed.is_empty() && completion::write_delayed(world, id);
    worked |= !world.hcas[id].engine.held.is_empty() && blueflame::expire(world, id);
    worked |= !world.hcas[id].engine.moderated.is_empty() && completion::report_late(world, id);
    let now = world.clock.now;
    let hca = &mut world.hcas[id];
    while let Some(&(at, qpn)) = hca.engine.timers.first().filter(|&&(at, _)| at <= now) {
        hca.engine.timers.remove(&(at, qpn));
        doorbell::queue(hca, qpn);
        worked = true;
    }
    worked
}

/// Flushes what was posted to QPs after they failed: their receive queues have no doorbell that would tell.
///
/// The model's thread looks at a few at a time, in turns, so that thousands of them do not hold up who rings; a test that steps
/// is told that there is nothing to do only when there is nothing.
fn flush_late(world: &mut World) -> bool {
    let most = if world.clock.began.is_some() { LATE_FLUSHES } else { usize::MAX };
    let mut worked = false;
    for id in 0..world.hcas.len() {
        let engine = &mut world.hcas[id].engine;
        let errored = std::mem::take(&mut engine.errored);
        let last = engine.flushed;
        let turn = errored.range(last.saturating_add(1)..).chain(errored.range(..=last));
        for &qpn in turn.take(most) {
            worked |= failure::flush_receive_queue(world, id, qpn);
            world.hcas[id].engine.flushed = qpn;
        }
        world.hcas[id].engine.errored = errored;
    }
    worked
}

/// Lets a QP wait for so long before its next turn; `u64::MAX` is for ever.
fn wait(world: &mut World, id: HcaId, qpn: u32, time: u64) {
    let at = world.clock.now.saturating_add(time);
    let hca = &mut world.hcas[id];
    if let Some(qp) = hca.objects.qps.get_mut(&qpn) {
        qp.requester.resume_at = Some(at);
        if at != u64::MAX {
            hca.engine.timers.insert((at, qpn));
        }
    }
}

/// Nanoseconds until the next timer runs out, if one runs.
fn next_timer(world: &World) -> Option<u64> {
    let timers = world.hcas.iter().filter_map(|hca| {
        let waiting = hca.engine.timers.first().map(|&(at, _)| at);
        let delayed = hca.engine.delayed.first_key_value().map(|(&(due, _), _)| due);
        let moderated = hca.engine.moderated.first().map(|&(due, _)| due);
        let held = hca.engine.held.next_due();
        waiting.into_iter().chain(delayed).chain(moderated).chain(held).min()
    });
    timers.min().map(|at| at.saturating_sub(world.clock.now))
}

/// Reports an event of type `kind` with `data` (bytes 0x20 to 0x3c) in every EQ that asked for it.
pub(crate) fn event(world: &mut World, hca: HcaId, kind: u8, data: [u8; 28]) {
    events::post(&mut world.hcas[hca], kind, 0, data);
}

/// Whether some EQ asks for events of type `kind`.
pub(crate) fn takes_event(world: &World, hca: HcaId, kind: u8) -> bool {
    events::takers(&world.hcas[hca], kind).next().is_some()
}

/// Takes a port (from 1) up or down, and says so by an event.
pub(crate) fn set_port(world: &mut World, hca: HcaId, port: u8, up: bool) {
    let hca = &mut world.hcas[hca];
    let Some(state) = hca.ports.get_mut(usize::from(port).wrapping_sub(1)) else { return };
    if std::mem::replace(&mut state.up, up) != up {
        events::port(hca, port, up);
    }
}

/// A QP was reset or is about to be destroyed: forgets what is in flight for it, without completions.
pub(crate) fn qp_forgotten(world: &mut World, hca: HcaId, qpn: u32) {
    let hca = &mut world.hcas[hca];
    doorbell::unqueue(hca, qpn);
    hca.engine.errored.remove(&qpn);
    if let Some(qp) = hca.objects.qps.get_mut(&qpn) {
        qp.runtime = QpRuntime::default();
        let waits = qp.requester.resume_at.take();
        hca.engine.stop_timer(waits, qpn);
        if let Some(sq) = &mut qp.sq {
            sq.awake = false;
            sq.runtime = SendRuntime::default();
        }
    }
}

/// Every queue of a function is about to be destroyed: there is no need to look for each one.
pub(crate) fn all_forgotten(hca: &mut Hca) {
    hca.engine.active.clear();
    hca.engine.timers.clear();
    hca.engine.errored.clear();
}

/// A test may have created, moved or removed any queue behind the commands' back.
#[cfg(test)]
pub(crate) fn queues_changed(world: &mut World, hca: HcaId) {
    let hca = &mut world.hcas[hca];
    hca.engine.index = Default::default();
    let objects = &hca.objects;
    let senders: Vec<u32> = objects.qps.keys().chain(objects.sqs.keys()).copied().collect();
    let cqs: Vec<u32> = objects.cqs.keys().copied().collect();
    senders.into_iter().for_each(|number| sender_changed(hca, number));
    cqs.into_iter().for_each(|number| cq_changed(hca, number));
}

/// A UAR page was allocated: its words are cleared and looked at from now on.
pub(crate) fn uar_allocated(world: &mut World, hca: HcaId, page: u32) {
    world.hcas[hca].bar.set_allocated(page, true);
}

/// A UAR page was freed.
pub(crate) fn uar_freed(world: &mut World, hca: HcaId, page: u32) {
    world.hcas[hca].bar.set_allocated(page, false);
}

/// A subnet manager gave a port (from 1) another LID: it says so by an event.
pub(crate) fn set_lid(hca: &mut Hca, port: u8, lid: u16) {
    let Some(state) = hca.ports.get_mut(usize::from(port).wrapping_sub(1)) else { return };
    if std::mem::replace(&mut state.lid, lid) != lid {
        events::port_lid(hca, port);
    }
}
