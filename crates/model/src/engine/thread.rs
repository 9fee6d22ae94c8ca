//! The threads that run a threaded model.
//!
//! Clients ring by stores into memory, which wake no thread: the first thread polls. It spins for a
//! moment after work, then sleeps for longer and longer, up to [`MAX_SLEEP`]; a command wakes
//! it at once. Polling needs no lock; only work locks a function, for a while, and a thread that
//! waits for the function gets it before the next batch. While more than one function has work, the
//! other threads help: each takes a function that no other has.
//!
//! No thread yields in order to wait. Where programs that poll occupy every processor, a thread
//! that yields goes to the end of the scheduler's queue and comes back after their time slices,
//! milliseconds later. A thread that slept for microseconds has used less than its share and runs
//! as soon as its timer fires.

use std::num::NonZero;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nix::sys::prctl;

use super::scratch::Scratch;
use super::{dpa, run};
use crate::engine_waker::EngineWaker;
use crate::memory::{MAX_MOVERS, set_mover};
use crate::shared_model::SharedModel;

/// Steps that are done before a function is offered to others.
const BATCH: u32 = 64;
/// How long the thread polls for doorbells without a pause after the last work.
const SPIN: Duration = Duration::from_micros(20);
/// [`SPIN`] on few processors, where polling takes time from the programs that would ring.
const SPIN_ON_FEW: Duration = Duration::from_micros(5);
/// With fewer processors than this, [`SPIN_ON_FEW`] applies. One is for each of two programs, one
/// for the thread, and one for the rest of the machine.
const ENOUGH_PROCESSORS: usize = 4;
const MIN_SLEEP: Duration = Duration::from_micros(20);
/// Longest sleep, and so longest wait of a doorbell, while programs use the device from time to
/// time.
const MAX_SLEEP: Duration = Duration::from_micros(200);
/// After this time without work the device counts as unused, and the thread sleeps for
/// [`IDLE_SLEEP`] at a time: a process that wakes 5,000 times a second takes 2 % of a processor.
const IDLE: Duration = Duration::from_secs(1);
const IDLE_SLEEP: Duration = Duration::from_millis(2);
/// Timer slack of the thread. By default the kernel may add 50 µs to a sleep, to wake the thread
/// together with others.
const TIMER_SLACK_NS: u64 = 1;

/// Starts the threads; they end when the last other handle does.
pub(crate) fn spawn(shared: &Arc<SharedModel>) {
    dpa::spawn(shared);
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = shared.count().min(processors).clamp(1, MAX_MOVERS);
    for number in 0..threads {
        let (waker, shared) = (shared.waker.clone(), Arc::downgrade(shared));
        std::thread::Builder::new()
            .name("verbless-model".into())
            .spawn(move || {
                set_mover(number);
                match number {
                    0 => poll(&shared, processors),
                    _ => help(&shared, &waker, number),
                }
            })
            .expect("a thread for the model");
    }
}

/// Polls for work, does it, and wakes a helper when several functions have work.
fn poll(shared: &Weak<SharedModel>, processors: usize) {
    if let Err(errno) = prctl::set_timerslack(TIMER_SLACK_NS) {
        tracing::debug!(%errno, "the engine's thread sleeps with the system's timer slack");
    }
    let spin = if processors < ENOUGH_PROCESSORS { SPIN_ON_FEW } else { SPIN };
    let mut scratch = Scratch::default();
    let mut last_work = Instant::now();
    let mut sleep = MIN_SLEEP;
    // Every function is polled after each sleep, and after `MAX_SLEEP` without one: `may_have_work`
    // does not see all work.
    let mut polled_all = Instant::now();
    let mut all = true;
    while let Some(shared) = shared.upgrade() {
        let wakes = shared.waker.wakes();
        all |= polled_all.elapsed() > MAX_SLEEP;
        let round = round(&shared, 0, all, &mut scratch);
        if all {
            polled_all = Instant::now();
        }
        if round.busy > 1 {
            shared.waker.wake_helper();
        }
        all = false;
        if round.worked {
            last_work = Instant::now();
            sleep = MIN_SLEEP;
            continue;
        }
        if round.missed {
            // Another thread holds the function that has work: it does the work, or soon releases
            // the function.
            shared.waker.sleep(wakes, MIN_SLEEP);
        }
        while !has_work(&shared) {
            if last_work.elapsed() > spin {
                sleep_until_due(&shared, wakes, &mut sleep, last_work.elapsed());
                all = true;
                break;
            }
            std::hint::spin_loop();
        }
    }
}

/// Helps whenever it is woken, for as long as there is work.
fn help(shared: &Weak<SharedModel>, waker: &EngineWaker, number: usize) {
    let mut scratch = Scratch::default();
    while waker.wait_for_call() {
        let mut last_work = Instant::now();
        while let Some(shared) = shared.upgrade()
            && last_work.elapsed() < SPIN
        {
            if round(&shared, number, false, &mut scratch).worked {
                last_work = Instant::now();
            }
            std::hint::spin_loop();
        }
        // The first thread may sleep and not know the timers that began meanwhile.
        waker.wake();
    }
}

/// The result of a round through the functions.
struct RoundResult {
    worked: bool,
    /// Functions that have more to do at once.
    busy: usize,
    /// Whether another thread holds a function that may have work.
    missed: bool,
}

/// Lets every function that has work, or may have some, do a batch of it, beginning at number
/// `first`.
fn round(shared: &SharedModel, first: usize, all: bool, scratch: &mut Scratch) -> RoundResult {
    let count = shared.count();
    let mut found = RoundResult { worked: false, busy: 0, missed: false };
    let now = shared.clock().now;
    for id in (0..count).map(|at| (first + at) % count) {
        if !all && !may_have_work(shared, id, now) {
            continue;
        }
        match shared.work(id, scratch, |locked| run::run(locked, id, BATCH)) {
            Some(done) => found.worked |= done > 0,
            None => found.missed = true,
        }
        found.busy += usize::from(shared.slot(id).busy.load(Ordering::Relaxed));
    }
    found
}

/// Whether a function may have work.
fn may_have_work(shared: &SharedModel, id: usize, now: u64) -> bool {
    let slot = shared.slot(id);
    slot.busy.load(Ordering::Relaxed)
        || slot.bar.rung()
        || slot.due.load(Ordering::Relaxed) <= now
        || shared.common.fabric.has_for(id, now)
}

fn has_work(shared: &SharedModel) -> bool {
    let now = shared.clock().now;
    (0..shared.count()).any(|id| may_have_work(shared, id, now))
}

/// Sleeps until the next poll or timer is due or the waker wakes the thread; not at all if it did
/// so since its count was `wakes`.
fn sleep_until_due(shared: &SharedModel, wakes: u64, sleep: &mut Duration, idle: Duration) {
    let longest = if idle > IDLE { IDLE_SLEEP } else { MAX_SLEEP };
    let timers = (0..shared.count()).map(|id| shared.slot(id).due.load(Ordering::Relaxed));
    let due = timers.chain([shared.common.fabric.due()]).min().unwrap_or(u64::MAX);
    let timer = Duration::from_nanos(due.saturating_sub(shared.clock().now));
    shared.waker.sleep(wakes, timer.min(*sleep));
    *sleep = (*sleep * 2).min(longest);
}
