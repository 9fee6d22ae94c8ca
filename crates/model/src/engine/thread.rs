//! The thread that moves a threaded model.
//!
//! Clients ring by storing into memory, so nothing can wake the thread: it looks. It spins for a moment after work,
//! then gives way, then sleeps for ever longer, up to [`LONGEST_SLEEP`]; a command wakes it at once. Looking needs no
//! lock; only work takes it, and whoever waits for the lock gets it before the next batch.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::next_timer;
use crate::memory::UarSpace;
use crate::world::Shared;

/// Steps that are done before the lock is offered to others.
const BATCH: u32 = 64;
/// How long it looks for doorbells without a pause after the last work.
const SPIN: Duration = Duration::from_micros(20);
/// How long it goes on looking, giving way to other threads each time.
const YIELD: Duration = Duration::from_micros(300);
const SHORTEST_SLEEP: Duration = Duration::from_micros(20);
const LONGEST_SLEEP: Duration = Duration::from_millis(2);

/// Starts the thread; it ends when the last other handle does.
pub(crate) fn spawn(shared: &Arc<Shared>) {
    let pages: Vec<Arc<UarSpace>> = shared.lock().hcas.iter().map(|hca| hca.bar.clone()).collect();
    let shared = Arc::downgrade(shared);
    std::thread::Builder::new()
        .name("verbless-model".into())
        .spawn(move || run(&shared, &pages))
        .expect("a thread for the model");
}

fn run(shared: &Weak<Shared>, pages: &[Arc<UarSpace>]) {
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
        let idle = loop {
            let idle = last_work.elapsed();
            if idle > YIELD || rung() {
                break idle;
            }
            if idle > SPIN {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        };
        if idle > YIELD && !rung() {
            let world = shared.lock();
            let timer = next_timer(&world).map_or(LONGEST_SLEEP, Duration::from_nanos);
            let _ = shared.wake.wait_timeout(world, sleep.min(timer));
            sleep = (sleep * 2).min(LONGEST_SLEEP);
        }
    }
}

/// Does what there is to do, but not for long; true if there was anything.
fn batch(shared: &Shared) -> bool {
    shared.with_unheard(|world| super::run(world, BATCH)) > 0
}
