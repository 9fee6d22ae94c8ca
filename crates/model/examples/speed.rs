//! How fast the in-process model moves data: RDMA WRITEs between two modelled devices, through verbless's own queues.
//!
//! `cargo run --release -p verbless-model --example speed [SECONDS [ROUNDS [OPERATIONS GIGABYTES]]]` prints operations and bytes
//! per second for messages of 8 bytes and of 64 KiB; one thread posts and polls, the model's own thread is the device. Of several
//! rounds the best counts, and there are no more once one reaches so many operations, or gigabytes, per second.

use std::time::{Duration, Instant};

use verbless_command::{Device, KeyAccess};
use verbless_devx::Backend;
use verbless_model::{Model, Profile};
use verbless_queue::wr::Write;
use verbless_queue::{ConnectOptions, CqConfig, Domain, QpConfig};

type Error = Box<dyn std::error::Error>;

/// Requests in flight at most.
const DEPTH: u32 = 128;
/// Requests under one doorbell.
const BATCH: u32 = 16;

fn main() -> Result<(), Error> {
    let number = |at, otherwise| {
        std::env::args().nth(at).map_or(Ok::<f64, Error>(otherwise), |word| Ok(word.parse()?))
    };
    let (seconds, rounds) = (number(1, 2.0)?, number(2, 1.0)? as u32);
    let enough = [number(3, f64::INFINITY)?, number(4, f64::INFINITY)? * 1e9 / f64::from(64 << 10)];
    let profile = || Profile::load("connectx6dx");
    let model = Model::builder().device(profile()?).device(profile()?).threaded().build();
    let backend = model.backend();
    let mut domains = Vec::new();
    for info in backend.enumerate()? {
        domains.push(Domain::new(&Device::open(&backend, &info)?)?);
    }
    let [here, there] = &domains[..] else { return Err("two devices were asked for".into()) };
    for (size, enough) in [8, 64 << 10].into_iter().zip(enough) {
        let mut rate = 0.0_f64;
        for _ in 0..rounds {
            let (operations, spent) = run(here, there, size, Duration::from_secs_f64(seconds))?;
            rate = rate.max(operations as f64 / spent.as_secs_f64());
            if rate >= enough {
                break;
            }
        }
        println!("{size:>6} B: {rate:>10.0} operations/s, {:>6.2} GB/s", rate * size as f64 / 1e9);
    }
    Ok(())
}

/// Writes `size` bytes again and again for `length`; how often, and how long it took.
fn run(
    here: &Domain,
    there: &Domain,
    size: usize,
    length: Duration,
) -> Result<(u64, Duration), Error> {
    let config = QpConfig::new(DEPTH, 1);
    let mut cq = here.completion_queue(&CqConfig::new(DEPTH))?;
    let mut qp = here.queue_pair(&config, &cq, &cq)?;
    let peer_cq = there.completion_queue(&CqConfig::new(DEPTH))?;
    let peer = there.queue_pair(&config, &peer_cq, &peer_cq)?;
    let options = ConnectOptions::default();
    here.connect(&qp, &there.address(&peer, &options)?, &options)?;
    there.connect(&peer, &here.address(&qp, &options)?, &options)?;
    let source = here.region(size, KeyAccess::LOCAL_READ)?;
    let target = there.region(size, KeyAccess::ALL)?;
    let sge = source.sge(0, size)?;
    let remote = target.remote(0).ok_or("the target takes no remote writes")?;
    let write = Write::new(sge, remote).signaled();
    let mut places: [_; 32] = std::array::from_fn(|_| None);
    let (mut posted, mut done) = (0_u64, 0_u64);
    let start = Instant::now();
    while start.elapsed() < length {
        if posted - done <= u64::from(DEPTH - BATCH) {
            let mut batch = qp.batch();
            for _ in 0..BATCH {
                batch.post(&write, 0)?;
            }
            batch.ring();
            posted += u64::from(BATCH);
        }
        let count = qp.poll_into(&mut cq, &mut places);
        for place in &mut places[..count] {
            if let Some(completion) = place.take() {
                completion?;
            }
        }
        done += count as u64;
    }
    let spent = start.elapsed();
    while done < posted {
        done += qp.poll_into(&mut cq, &mut places) as u64;
    }
    Ok((done, spent))
}
