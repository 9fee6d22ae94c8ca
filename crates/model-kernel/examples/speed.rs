//! How fast the model moves data: RDMA WRITEs through verbless's own queues, each checked on
//! arrival.
//!
//! `cargo run --release -p verbless-model-kernel --example speed [SECONDS [ROUNDS [OPERATIONS
//! GIGABYTES]]]` prints operations and bytes per second for messages of 8 bytes and of 64 KiB,
//! between two modelled devices in this process; one thread posts and polls, the model's own thread
//! is the device. Of several rounds the best counts, and there are no more once one reaches so many
//! operations, or gigabytes, per second. `--kernel` before the numbers takes the kernel's first
//! device, which talks to itself; that is what `verbless-model run -- speed --kernel` shows.
//!
//! A write carries its number at either end of its bytes, in a place that no other write in flight
//! uses: it must be where it belongs when the completion is seen, or the program fails.

use std::time::{Duration, Instant};

use verbless_command::{Device, KeyAccess};
use verbless_devx::{Backend, Kernel};
use verbless_model::{Model, Profile};
use verbless_model_kernel::InProcess;
use verbless_queue::wr::Write;
use verbless_queue::{ConnectOptions, CqConfig, Domain, QpConfig, Region};

type Error = Box<dyn std::error::Error>;

/// Requests in flight at most.
const DEPTH: usize = 128;
/// Requests under one doorbell.
const BATCH: usize = 16;
/// Bytes of a write's number.
const STAMP: usize = 8;

fn main() -> Result<(), Error> {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let on_kernel = words.first().is_some_and(|word| word == "--kernel");
    words.drain(..usize::from(on_kernel));
    let number = |at: usize, otherwise| {
        words.get(at).map_or(Ok::<f64, Error>(otherwise), |word| Ok(word.parse()?))
    };
    let (seconds, rounds) = (number(0, 2.0)?, number(1, 1.0)? as u32);
    let enough = [number(2, f64::INFINITY)?, number(3, f64::INFINITY)? * 1e9 / f64::from(64 << 10)];
    let backend: Box<dyn Backend> = if on_kernel { Box::new(Kernel::new()) } else { model()? };
    let devices = backend.enumerate()?;
    let first = devices.first().ok_or("there is no device")?;
    let second = devices.get(1).filter(|_| !on_kernel).unwrap_or(first);
    let here = Domain::new(&Device::open(&*backend, first)?)?;
    let there = Domain::new(&Device::open(&*backend, second)?)?;
    for (size, enough) in [STAMP, 64 << 10].into_iter().zip(enough) {
        let mut rate = 0.0_f64;
        for _ in 0..rounds {
            let (operations, spent) = run(&here, &there, size, Duration::from_secs_f64(seconds))?;
            rate = rate.max(operations as f64 / spent.as_secs_f64());
            if rate >= enough {
                break;
            }
        }
        println!("{size:>6} B: {rate:>10.0} operations/s, {:>6.2} GB/s", rate * size as f64 / 1e9);
    }
    Ok(())
}

/// Two modelled devices.
fn model() -> Result<Box<dyn Backend>, Error> {
    let profile = || Profile::load("connectx6dx");
    let model = Model::builder().device(profile()?).device(profile()?).threaded().build();
    Ok(Box::new(InProcess::of(&model)))
}

/// Writes `size` bytes again and again for `length`; how often, and how long it took.
fn run(
    here: &Domain,
    there: &Domain,
    size: usize,
    length: Duration,
) -> Result<(u64, Duration), Error> {
    let config = QpConfig::new(DEPTH as u32, 1);
    let mut cq = here.completion_queue(&CqConfig::new(DEPTH as u32))?;
    let mut qp = here.queue_pair(&config, &cq, &cq)?;
    let peer_cq = there.completion_queue(&CqConfig::new(DEPTH as u32))?;
    let mut peer = there.queue_pair(&config, &peer_cq, &peer_cq)?;
    let options = ConnectOptions::default();
    here.connect(&mut qp, &there.address(&peer, &options)?, &options)?;
    there.connect(&mut peer, &here.address(&qp, &options)?, &options)?;
    let bytes = size.max(DEPTH * STAMP);
    let source = here.region(bytes, KeyAccess::LOCAL_READ)?;
    let target = there.region(bytes, KeyAccess::ALL)?;
    // Long messages are all of the region; short ones have a slot each.
    let at = |slot| if size == STAMP { slot * STAMP } else { 0 };
    let mut writes = Vec::new();
    for slot in 0..DEPTH {
        let remote = target.remote(at(slot), 0)?;
        writes.push(Write::new(source.sge(at(slot), size)?, remote).signaled());
    }
    let mut places: [_; 32] = std::array::from_fn(|_| None);
    let (mut posted, mut done) = (0, 0);
    let start = Instant::now();
    loop {
        let open = start.elapsed() < length;
        if open && posted - done <= DEPTH - BATCH {
            let mut batch = qp.batch();
            for _ in 0..BATCH {
                stamp(&source, posted)?;
                batch.post(&writes[posted % DEPTH], 0)?;
                posted += 1;
            }
            batch.ring();
        }
        let count = qp.poll_into(&mut cq, &mut places);
        for place in &mut places[..count] {
            if let Some(completion) = place.take() {
                completion?;
            }
            check(&target, done)?;
            done += 1;
        }
        if !open && done == posted {
            return Ok((done as u64, start.elapsed()));
        }
    }
}

/// Where write `number` carries its number: at the start and at the end.
fn stamps(region: &Region, number: usize) -> [usize; 2] {
    let slot = number % DEPTH * STAMP;
    [slot, region.len() - DEPTH * STAMP + slot]
}

fn stamp(source: &Region, number: usize) -> Result<(), Error> {
    for at in stamps(source, number) {
        source.write_at(at, &(number as u64 + 1).to_ne_bytes())?;
    }
    Ok(())
}

fn check(target: &Region, number: usize) -> Result<(), Error> {
    for at in stamps(target, number) {
        let mut found = [0; STAMP];
        target.read_at(at, &mut found)?;
        let found = u64::from_ne_bytes(found);
        if found != number as u64 + 1 {
            return Err(format!("write {number} is done, and {found} stands at {at:#x}").into());
        }
    }
    Ok(())
}
