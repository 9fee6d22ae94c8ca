//! Counts the instructions that a modelled WRITE of 8 bytes costs the model. `cargo xtask bench`
//! runs this example under callgrind.
//!
//! Two devices of a stepped model in this process: the program posts 16 WRITEs under one doorbell.
//! Only [`measured_write`] counts; it lets the model execute them. That covers everything from the
//! doorbell to the last CQE; the model takes and releases its lock for each piece of work. With
//! `--packets` each WRITE is a packet, and so is its acknowledgement.

use verbless_command::{Device, KeyAccess};
use verbless_devx::Backend;
use verbless_model::{Model, Profile};
use verbless_model_kernel::InProcess;
use verbless_queue::wr::Write;
use verbless_queue::{ConnectOptions, CqConfig, Domain, QpConfig};

/// Requests per doorbell.
const BATCH: usize = 16;
const ROUNDS: usize = 100;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let profile = || Profile::load("connectx6dx");
    let builder = Model::builder().device(profile()?).device(profile()?).stepped();
    let in_packets = std::env::args().any(|word| word == "--packets");
    let model = if in_packets { builder.in_packets().build() } else { builder.build() };
    let backend = InProcess::of(&model);
    let devices = backend.enumerate()?;
    let here = Domain::new(&Device::open(&backend, &devices[0])?)?;
    let there = Domain::new(&Device::open(&backend, &devices[1])?)?;
    let config = QpConfig::new(BATCH as u32, 1);
    let mut cq = here.completion_queue(&CqConfig::new(config.cqes::<verbless_queue::Rc>()))?;
    let mut qp = here.queue_pair(&config, &cq, &cq)?;
    let peer_cq = there.completion_queue(&CqConfig::new(config.cqes::<verbless_queue::Rc>()))?;
    let mut peer = there.queue_pair(&config, &peer_cq, &peer_cq)?;
    let options = ConnectOptions::default();
    here.connect(&mut qp, &there.address(&peer, &options)?, &options)?;
    there.connect(&mut peer, &here.address(&qp, &options)?, &options)?;
    let source = here.region(4096, KeyAccess::LOCAL_READ)?;
    let target = there.region(4096, KeyAccess::ALL)?;
    let write = Write::new(source.sge(0, 8)?, target.remote(0, 0)?).signaled();
    let mut completions: [_; BATCH] = std::array::from_fn(|_| None);
    for _ in 0..ROUNDS {
        let mut batch = qp.batch();
        for _ in 0..BATCH {
            batch.post(&write, 0)?;
        }
        batch.ring();
        measured_write(&model);
        let done = qp.poll_into(&mut cq, &mut completions);
        assert_eq!(done, BATCH, "the model is idle before every write completed");
        for completion in &mut completions {
            completion.take().ok_or("a WRITE has no completion")??;
        }
    }
    println!("operations: {}", BATCH * ROUNDS);
    Ok(())
}

/// Lets the model execute the posted requests.
#[inline(never)]
fn measured_write(model: &Model) {
    model.run_until_idle();
}
