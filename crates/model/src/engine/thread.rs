//! The threads that move a threaded model.
//!
//! Clients ring by storing into memory, so nothing can wake a thread: the first one looks. It spins
//! for a moment after work, then sleeps for ever longer, up to [`LONGEST_SLEEP`]; a command wakes
//! it at once. Looking needs no lock; only work takes a function, for a while, and whoever waits
//! for the function gets it before the next batch. As long as more functions than one have work,
//! the other threads help: each takes a function that no other has.
//!
//! None yields in order to wait. Where programs that poll have every processor, whoever yields
//! goes to the end of the scheduler's queue and comes back after their time slices, milliseconds
//! later; whoever slept for microseconds has used less than its share and runs as soon as its timer
//! fires.

use std::num::NonZero;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nix::sys::prctl;

use super::scratch::Scratch;
use super::{dpa, run};
use crate::bell::Bell;
use crate::memory::{MOST_MOVERS, set_mover};
use crate::shared::SharedWorld;

/// Steps that are done before a function is offered to others.
const BATCH: u32 = 64;
/// How long the thread looks for doorbells without a pause after the last work: where a processor
/// is left for it, and where there are so few that it takes the time from programs that would ring.
const SPIN: Duration = Duration::from_micros(20);
const SPIN_ON_FEW: Duration = Duration::from_micros(5);
/// Fewer processors than these are few: two programs, the thread, and what else the machine does.
const ENOUGH_PROCESSORS: usize = 4;
const SHORTEST_SLEEP: Duration = Duration::from_micros(20);
/// Longest sleep, and so longest wait of a doorbell, while programs use the device now and then.
const LONGEST_SLEEP: Duration = Duration::from_micros(200);
/// After this time without work nobody seems to use the device, and the thread sleeps for
/// [`IDLE_SLEEP`] at a time: a process that is awake 5,000 times a second for nothing takes two
/// hundredths of a processor.
const IDLE: Duration = Duration::from_secs(1);
const IDLE_SLEEP: Duration = Duration::from_millis(2);
/// The system may let a thread sleep for 50 µs more than it asked for, to wake it together with
/// others: not this one.
const TIMER_SLACK_NS: u64 = 1;

/// Starts the threads; they end when the last other handle does.
pub(crate) fn spawn(shared: &Arc<SharedWorld>) {
    dpa::spawn(shared);
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = shared.count().min(processors).clamp(1, MOST_MOVERS);
    for number in 0..threads {
        let (bell, shared) = (shared.bell.clone(), Arc::downgrade(shared));
        std::thread::Builder::new()
            .name("verbless-model".into())
            .spawn(move || {
                set_mover(number);
                match number {
                    0 => look(&shared, processors),
                    _ => help(&shared, &bell, number),
                }
            })
            .expect("a thread for the model");
    }
}

/// Looks for work all the time, does it, and calls for help when there is much.
fn look(shared: &Weak<SharedWorld>, processors: usize) {
    if let Err(errno) = prctl::set_timerslack(TIMER_SLACK_NS) {
        tracing::debug!(%errno, "the engine's thread sleeps with the system's timer slack");
    }
    let spin = if processors < ENOUGH_PROCESSORS { SPIN_ON_FEW } else { SPIN };
    let mut scratch = Scratch::default();
    let mut last_work = Instant::now();
    let mut sleep = SHORTEST_SLEEP;
    // What nothing tells of is looked at after every sleep, and as often while there is none.
    let mut looked = Instant::now();
    let mut all = true;
    while let Some(shared) = shared.upgrade() {
        let rings = shared.bell.rings();
        all |= looked.elapsed() > LONGEST_SLEEP;
        let round = round(&shared, 0, all, &mut scratch);
        if all {
            looked = Instant::now();
        }
        if round.busy > 1 {
            shared.bell.call_help();
        }
        all = false;
        if round.worked {
            last_work = Instant::now();
            sleep = SHORTEST_SLEEP;
            continue;
        }
        if round.missed {
            // Another thread has the function that has work: it does the work, or soon leaves it.
            shared.bell.sleep(rings, SHORTEST_SLEEP);
        }
        while !has_work(&shared) {
            if last_work.elapsed() > spin {
                doze(&shared, rings, &mut sleep, last_work.elapsed());
                all = true;
                break;
            }
            std::hint::spin_loop();
        }
    }
}

/// Helps whenever it is called, for as long as there is something to do.
fn help(shared: &Weak<SharedWorld>, bell: &Bell, number: usize) {
    let mut scratch = Scratch::default();
    while bell.rest() {
        let mut last_work = Instant::now();
        while let Some(shared) = shared.upgrade()
            && last_work.elapsed() < SPIN
        {
            if round(&shared, number, false, &mut scratch).worked {
                last_work = Instant::now();
            }
            std::hint::spin_loop();
        }
        // The first thread may sleep, and not know of timers that began meanwhile.
        bell.ring();
    }
}

/// The result of a round through the functions.
struct Round {
    worked: bool,
    /// Functions that have more to do at once.
    busy: usize,
    /// Whether another thread has a function that may have work.
    missed: bool,
}

/// Lets every function that has work, or that may have some, do a batch of it, from a number on.
fn round(shared: &SharedWorld, first: usize, all: bool, scratch: &mut Scratch) -> Round {
    let count = shared.count();
    let mut found = Round { worked: false, busy: 0, missed: false };
    let now = shared.clock().now;
    for id in (0..count).map(|at| (first + at) % count) {
        if !all && !wants(shared, id, now) {
            continue;
        }
        match shared.work(id, scratch, |world| run::run(world, id, BATCH)) {
            Some(done) => found.worked |= done > 0,
            None => found.missed = true,
        }
        found.busy += usize::from(shared.slot(id).busy.load(Ordering::Relaxed));
    }
    found
}

/// Whether a function may have work.
fn wants(shared: &SharedWorld, id: usize, now: u64) -> bool {
    let slot = shared.slot(id);
    slot.busy.load(Ordering::Relaxed)
        || slot.bar.rung()
        || slot.due.load(Ordering::Relaxed) <= now
        || shared.common.fabric.has_for(id, now)
}

fn has_work(shared: &SharedWorld) -> bool {
    let now = shared.clock().now;
    (0..shared.count()).any(|id| wants(shared, id, now))
}

/// Sleeps until it is time to look again, a timer runs out or the bell wakes the thread, if it was
/// not rung since it had been rung so often.
fn doze(shared: &SharedWorld, rings: u64, sleep: &mut Duration, idle: Duration) {
    let longest = if idle > IDLE { IDLE_SLEEP } else { LONGEST_SLEEP };
    let timers = (0..shared.count()).map(|id| shared.slot(id).due.load(Ordering::Relaxed));
    let due = timers.chain([shared.common.fabric.due()]).min().unwrap_or(u64::MAX);
    let timer = Duration::from_nanos(due.saturating_sub(shared.clock().now));
    shared.bell.sleep(rings, timer.min(*sleep));
    *sleep = (*sleep * 2).min(longest);
}
