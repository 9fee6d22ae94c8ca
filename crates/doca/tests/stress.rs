//! No order of arming, submitting, waiting, clearing and retrieving misses a completion, and a
//! waiting thread uses no CPU.
//!
//! With a million jobs, and a million instances of graphs:
//! `cargo test --release -p verbless-doca --test stress --test allocation`.

mod support;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::poll::{PollFd, PollFlags, poll};
use nix::time::{ClockId, clock_gettime};
use verbless_doca::dma::Dma;
use verbless_doca::sha::{Algorithm, Sha};
use verbless_doca::{ErrorKind, Event, Retrieve, WorkQ};

use support::{dev, plain, stepped};

/// A million in an optimized build; otherwise as many as take a second.
const JOBS: u64 = if cfg!(debug_assertions) { 25_000 } else { 1_000_000 };
const DEPTH: u32 = 16;

/// Xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

#[test]
fn random_arm_wait_order_misses_no_completion() {
    let dev = dev();
    let (map, inventory) = plain(&dev, 1 << 16, 2 * DEPTH as usize);
    let (dma, sha) = (Dma::builder(&dev).start().unwrap(), Sha::builder(&dev).start().unwrap());
    let mut workq = WorkQ::builder(DEPTH).event_driven().build().unwrap();
    workq.add(&dma).unwrap();
    workq.add(&sha).unwrap();
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    println!("seed {seed}");
    let mut random = Random(seed | 1);
    let bufs = |at: u64| {
        let address = map.address() + 128 * at;
        let from = inventory.buf_by_data(&map, address, 8).unwrap();
        (from, inventory.buf_by_addr(&map, address + 64, 64).unwrap())
    };
    let mut spare: Vec<_> = (0..u64::from(DEPTH)).map(bufs).collect();
    let (mut submitted, mut retrieved, mut sum, mut waits) = (0, 0, 0, 0);
    let mut armed = false;
    while retrieved < JOBS {
        match random.below(8) {
            0 | 1 => {
                for _ in 0..=random.below(4) {
                    if submitted == JOBS {
                        break;
                    }
                    let Some((from, to)) = spare.pop() else { break };
                    let number = submitted;
                    match random.below(2) {
                        0 => workq.submit(dma.memcpy(from, to).user_data(number)).unwrap(),
                        _ => {
                            let hash = sha.hash(Algorithm::Sha1, from, to).user_data(number);
                            workq.submit(hash).unwrap();
                        }
                    }
                    submitted += 1;
                }
            }
            2 => {
                workq.arm().unwrap();
                armed = true;
            }
            3 => {
                workq.clear().unwrap();
                armed = false;
            }
            4 if armed && workq.in_flight() > 0 => {
                // Whatever happened since the arm.
                let mut files = [PollFd::new(workq.event_handle(), PollFlags::POLLIN)];
                let woken = poll(&mut files, 10_000u16).unwrap();
                assert_eq!(woken, 1, "{} jobs are in flight: {workq:?}", workq.in_flight());
                waits += 1;
            }
            _ => {
                let many = random.below(6);
                for _ in 0..many {
                    let (from, mut to, user_data) = match workq.progress_retrieve() {
                        Ok(Event::Dma(done)) => (done.source, done.destination, done.user_data),
                        Ok(Event::Sha(done)) => {
                            (done.source, done.destination.unwrap(), done.user_data)
                        }
                        Err(Retrieve::Again) => break,
                        other => panic!("{other:?}"),
                    };
                    to.reset_data_len();
                    spare.push((from, to));
                    retrieved += 1;
                    sum += user_data.0;
                }
            }
        }
    }
    assert_eq!((sum, workq.in_flight()), (JOBS * (JOBS - 1) / 2, 0));
    assert!(waits > JOBS / 100, "{waits} waits");
}

/// CPU time of this thread.
fn cpu() -> Duration {
    Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap())
}

#[test]
fn idle_wait_uses_no_cpu_in_event_driven_mode() {
    const WAIT: Duration = Duration::from_millis(200);
    let dev = dev();
    let dma = Dma::builder(&dev).start().unwrap();
    let mut used = [false, true].map(|event_driven| {
        let workq = WorkQ::builder(4);
        let workq = if event_driven { workq.event_driven() } else { workq };
        let mut workq = workq.build().unwrap();
        workq.add(&dma).unwrap();
        let (start, before) = (Instant::now(), cpu());
        assert!(workq.retrieve_within(Some(WAIT)).unwrap().is_none());
        assert!(start.elapsed() >= WAIT);
        (cpu() - before, workq.set_event_driven(true).map_err(|error| error.kind()))
    });
    assert!(used[1].0 < WAIT / 20, "asleep: {:?}", used[1].0);
    assert!(used[0].0 > used[1].0 * 5, "polling: {:?}, asleep: {:?}", used[0].0, used[1].0);
    assert_eq!(used.iter_mut().filter(|it| it.1 == Err(ErrorKind::BadState)).count(), 2);
}

#[test]
fn wait_for_job_in_flight_uses_no_cpu() {
    const WAIT: Duration = Duration::from_millis(200);
    // The model is stepped: the device does nothing by itself.
    let (model, dev) = stepped();
    let (map, inventory) = plain(&dev, 4096, 2);
    let dma = Dma::builder(&dev).start().unwrap();
    let mut workq = WorkQ::builder(4).event_driven().build().unwrap();
    workq.add(&dma).unwrap();
    let source = inventory.buf_by_data(&map, map.address(), 64).unwrap();
    let into = inventory.buf_by_addr(&map, map.address() + 64, 64).unwrap();
    workq.submit(dma.memcpy(source, into).user_data(8)).unwrap();
    // With a time limit, which comes first, and without.
    let (start, before) = (Instant::now(), cpu());
    assert!(workq.retrieve_within(Some(WAIT)).unwrap().is_none());
    assert!(start.elapsed() >= WAIT && workq.in_flight() == 1);
    let mut used = vec![cpu() - before];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(WAIT);
            model.run_until_idle();
        });
        let (start, before) = (Instant::now(), cpu());
        let event = workq.retrieve_within(None).unwrap().unwrap();
        assert!(start.elapsed() >= WAIT / 2, "the wait slept: {:?}", start.elapsed());
        assert_eq!(event.user_data().0, 8);
        used.push(cpu() - before);
    });
    assert!(used.iter().all(|used| *used < WAIT / 20), "asleep: {used:?}");
}
