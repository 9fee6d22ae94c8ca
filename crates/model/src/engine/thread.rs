//! The thread that moves a threaded model.
//!
//! Clients ring by storing into memory, so nothing can wake the thread: it looks. It spins for a
//! moment after work, then sleeps for ever longer, up to [`LONGEST_SLEEP`]; a command wakes it at
//! once. Looking needs no lock; only work takes it, and whoever waits for the lock gets it before
//! the next batch.
//!
//! It never yields in order to wait. Where programs that poll have every processor, whoever yields
//! goes to the end of the scheduler's queue and comes back after their time slices, milliseconds
//! later; whoever slept for microseconds has used less than its share and runs as soon as its timer
//! fires.

use std::num::NonZero;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nix::sys::prctl;

use super::run;
use crate::memory::UarSpace;
use crate::world::SharedWorld;

/// Steps that are done before the lock is offered to others.
const BATCH: u32 = 64;
/// How long it looks for doorbells without a pause after the last work: where a processor is left
/// for it, and where there are so few that it takes the time from those who would ring.
const SPIN: Duration = Duration::from_micros(20);
const SPIN_ON_FEW: Duration = Duration::from_micros(5);
/// Fewer processors than these are few: two programs, the thread, and what else the machine does.
const ENOUGH_PROCESSORS: usize = 4;
const SHORTEST_SLEEP: Duration = Duration::from_micros(20);
/// A doorbell waits at most so long while programs use the device now and then.
const LONGEST_SLEEP: Duration = Duration::from_micros(200);
/// After so long without work nobody seems to use the device, and it sleeps for [`IDLE_SLEEP`] at a
/// time: a process that is awake 5,000 times a second for nothing takes two hundredths of a
/// processor.
const IDLE: Duration = Duration::from_secs(1);
const IDLE_SLEEP: Duration = Duration::from_millis(2);
/// The system may let a thread sleep for 50 µs more than it asked for, to wake it together with
/// others: not this one.
const TIMER_SLACK_NS: u64 = 1;

/// Starts the thread; it ends when the last other handle does.
pub(crate) fn spawn(shared: &Arc<SharedWorld>) {
    let pages: Vec<Arc<UarSpace>> = {
        let world = shared.lock();
        world.functions.iter().map(|function| function.hca.bar.clone()).collect()
    };
    let shared = Arc::downgrade(shared);
    std::thread::Builder::new()
        .name("verbless-model".into())
        .spawn(move || watch(&shared, &pages))
        .expect("a thread for the model");
}

fn watch(shared: &Weak<SharedWorld>, pages: &[Arc<UarSpace>]) {
    if let Err(errno) = prctl::set_timerslack(TIMER_SLACK_NS) {
        tracing::debug!(%errno, "the model's thread sleeps with the system's timer slack");
    }
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let spin = if processors < ENOUGH_PROCESSORS { SPIN_ON_FEW } else { SPIN };
    let rung = || pages.iter().any(|pages| pages.rung());
    let mut last_work = Instant::now();
    let mut sleep = SHORTEST_SLEEP;
    while let Some(shared) = shared.upgrade() {
        if batch(&shared) {
            last_work = Instant::now();
            sleep = SHORTEST_SLEEP;
            shared.give_way();
            continue;
        }
        while !rung() {
            if last_work.elapsed() > spin {
                doze(&shared, &mut sleep, last_work.elapsed());
                break;
            }
            std::hint::spin_loop();
        }
    }
}

/// Sleeps until it is time to look again, a timer runs out or a command wakes the thread.
fn doze(shared: &SharedWorld, sleep: &mut Duration, idle: Duration) {
    let longest = if idle > IDLE { IDLE_SLEEP } else { LONGEST_SLEEP };
    let world = shared.lock();
    let timer = run::next_timer(&world).map_or(longest, Duration::from_nanos);
    let _ = shared.wake.wait_timeout(world, timer.min(*sleep));
    *sleep = (*sleep * 2).min(longest);
}

/// Does what there is to do, but not for long; true if there was anything.
fn batch(shared: &SharedWorld) -> bool {
    shared.with_unheard(|world| run::run(world, BATCH)) > 0
}
