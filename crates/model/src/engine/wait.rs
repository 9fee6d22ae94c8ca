//! WAIT on data: a send queue that stops until a word in memory fulfils a condition.
//!
//! No event reports a change of memory to the device, so it polls: soon at first, then at intervals
//! that grow with the wait, up to a millisecond, so that a queue that waits long costs little. A
//! stepped model polls at every step.

use verbless_prm::hot::cqe_syndrome;

use super::completion;
use super::condition::{Condition, WORD};
use super::doorbell;
use super::keys::{self, AccessRight, Range};
use super::queue_pair::QueuePair;
use super::scratch::Scratch;
use super::sender::Turn;
use super::state::{WaitingQueue, Waits};
use super::transfer;
use super::work::PostedWqe;
use crate::hca::objects::QpState;
use crate::locked::LockedFunctions;

/// Shortest and longest interval between two reads of the word that a queue waits for, in
/// nanoseconds.
const MIN_INTERVAL: u64 = 2_000;
const MAX_INTERVAL: u64 = 1_000_000;
/// The interval until the next read is the time that the queue has waited, divided by this.
const WAIT_DIVISOR: u64 = 8;

/// Checks a wait WQE; returns 0, the number of bytes that it moves, or a syndrome.
#[cold]
pub(super) fn check(wqe: &[u8]) -> Result<u64, u8> {
    Condition::of(wqe).map(|_| 0).ok_or(cqe_syndrome::LOCAL_QP_OPERATION)
}

/// Executes a WAIT WQE: continues if its condition holds, otherwise stops the queue.
#[cold]
pub(super) fn execute(pair: &mut QueuePair<'_>, posted: &PostedWqe, scratch: &Scratch) -> Turn {
    let holds = Condition::of(&scratch.wqe)
        .ok_or(cqe_syndrome::LOCAL_QP_OPERATION)
        .and_then(|condition| Ok((condition, holds(pair, &condition)?)));
    match holds {
        Ok((condition, false)) => {
            if let Some(sq) = pair.qp.sq.as_mut() {
                sq.runtime.copies.put_back(posted.index, &scratch.wqe);
            }
            pair.context.state.waits.add(pair.qpn, condition, pair.context.now);
            Turn::Sleep
        }
        done => {
            pair.context.state.waits.remove(pair.qpn);
            completion::finish(pair, posted, done.map(drop))
        }
    }
}

/// Whether the word in memory fulfils a condition; the error is a syndrome.
fn holds(pair: &QueuePair<'_>, condition: &Condition) -> Result<bool, u8> {
    let user = pair.user();
    let range = Range { key: condition.lkey, address: condition.address, length: WORD };
    let (mut visits, mut sges) = (keys::VISITS, Vec::new());
    pair.context
        .keys()
        .resolve(user, range, AccessRight::LocalRead, &mut visits, &mut sges)
        .map_err(|refusal| {
            tracing::info!(qpn = pair.qpn, ?range, ?refusal, "the key of a wait refused");
            cqe_syndrome::LOCAL_PROTECTION
        })?;
    let mut word = [0; WORD as usize];
    transfer::gather(pair.context.spaces, &sges, &[], &mut word)
        .map_err(|_| cqe_syndrome::LOCAL_PROTECTION)?;
    Ok(condition.holds(u64::from_be_bytes(word)))
}

/// Gives a turn to the send queues of a function that wait for data, if their words are due and may
/// fulfil the condition; true if one had a turn.
#[inline]
pub(super) fn give_due_turns(locked: &mut LockedFunctions, id: usize) -> bool {
    !locked.functions[id].engine.waits.is_empty() && give_all_due(locked, id)
}

#[cold]
fn give_all_due(locked: &mut LockedFunctions, id: usize) -> bool {
    let now = locked.clock.now;
    let (function, others) = locked.functions.split(id);
    let mut worked = false;
    for (qpn, condition) in function.engine.waits.due(now) {
        let pair = match function.pair_among(qpn, now, others) {
            Ok(pair) => pair,
            Err(missing) => {
                tracing::error!(qpn, %missing, "a queue that waits for data was destroyed");
                function.engine.waits.remove(qpn);
                continue;
            }
        };
        // The queue's turn reports an error.
        if pair.qp.state != QpState::Rts || holds(&pair, &condition) != Ok(false) {
            function.engine.waits.remove(qpn);
            doorbell::queue(function, qpn);
            worked = true;
        } else {
            function.engine.waits.later(qpn, now);
        }
    }
    worked
}

impl Waits {
    /// Begins the wait of a queue, or continues it.
    fn add(&mut self, qpn: u32, condition: Condition, now: u64) {
        let new = WaitingQueue { condition, since: now, due: now };
        self.queues.get_or_insert_with(qpn, || new).condition = condition;
        self.later(qpn, now);
    }

    /// Schedules the next read of the queue's word, after a time that grows with its wait.
    fn later(&mut self, qpn: u32, now: u64) {
        if let Some(waiting) = self.queues.get_mut(&qpn) {
            let pause = (now.saturating_sub(waiting.since) / WAIT_DIVISOR)
                .clamp(MIN_INTERVAL, MAX_INTERVAL);
            waiting.due = now + pause;
        }
    }

    /// The queues with words to read at time `now`: all of them, without timers.
    fn due(&self, now: u64) -> Vec<(u32, Condition)> {
        let all = self.at_every_step;
        let due = self.queues.iter().filter(|(_, waiting)| all || waiting.due <= now);
        due.map(|(&qpn, waiting)| (qpn, waiting.condition)).collect()
    }
}
