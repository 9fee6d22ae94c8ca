//! What a DMA job costs in instructions beside what it is made of. Run by `cargo xtask bench` under
//! callgrind, which counts what happens inside a function `measured_…`; the argument names the
//! case. Alone it only checks that the cases work.
//!
//! Both cases copy the same 64 bytes by the same engine of a stepped model in this process, and
//! what the model does is not counted. `queue` is the layer below: a copy posted to a queue pair
//! that is its own peer, and polled. `job` is the submit of a job with two buffers, and the
//! retrieve that gives them back.

use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;

use verbless_devx::Backend;
use verbless_doca::dma::Dma;
use verbless_doca::{AccessFlags, Buf, DevInfo, Event, Inventory, Memory, Mmap, WorkQ};
use verbless_model::{Model, Profile};
use verbless_model_kernel::InProcess;
use verbless_queue::access::KeyAccess;
use verbless_queue::wr::MemoryCopy;
use verbless_queue::{ConnectOptions, Cq, CqConfig, Qp, QpConfig, Sge};

/// Operations of one round, between which the model does them.
const ROUND: usize = 64;
const ROUNDS: usize = 32;
/// Bytes of a copy.
const LENGTH: usize = 64;

type Result<T> = std::result::Result<T, Box<dyn Error>>;
type Pairs = Vec<Option<(Buf, Buf)>>;

fn main() -> Result<()> {
    let builder = Model::builder().device(Profile::load("bluefield3")?).stepped();
    let model = builder.build();
    let backend: Arc<dyn Backend> = Arc::new(InProcess::of(&model));
    match std::env::args().nth(1).as_deref() {
        Some("queue") => queue(&model, &backend)?,
        Some("job") => job(&model, &backend)?,
        // `cargo test` gives arguments of its own.
        _ => {
            queue(&model, &backend)?;
            job(&model, &backend)?;
        }
    }
    println!("operations: {}", ROUND * ROUNDS);
    Ok(())
}

/// The layer below.
fn queue(model: &Model, backend: &Arc<dyn Backend>) -> Result<()> {
    let dev = DevInfo::find_in(backend, "mlx5_0")?.open()?;
    let domain = dev.domain();
    let mut cq = domain.completion_queue(&CqConfig::new(256))?;
    let config = QpConfig { memory_copies: true, inline: 0, ..QpConfig::new(ROUND as u32, 1) };
    let mut qp = domain.queue_pair(&config, &cq, &cq)?;
    domain.connect_to_itself(&mut qp, &ConnectOptions::default())?;
    let region = domain.region(4096, KeyAccess::LOCAL)?;
    let scratch = region.sge(0, 64)?;
    let (from, to) = (region.sge(1024, LENGTH)?, region.sge(2048, LENGTH)?);
    for round in 0..ROUNDS {
        region.write_at(1024, &[round as u8; LENGTH])?;
        measured_post(&mut qp, black_box((scratch, from, to)));
        model.run_until_idle();
        measured_poll(&mut qp, &mut cq);
        let mut copied = [0; LENGTH];
        region.read_at(2048, &mut copied)?;
        assert_eq!(copied, [round as u8; LENGTH]);
    }
    Ok(())
}

#[inline(never)]
fn measured_post(qp: &mut Qp, (scratch, from, to): (Sge, Sge, Sge)) {
    for cookie in 0..ROUND as u64 {
        qp.post(&MemoryCopy::new(scratch, from, to).signaled(), cookie).expect("there is room");
    }
}

#[inline(never)]
fn measured_poll(qp: &mut Qp, cq: &mut Cq) {
    for cookie in 0..ROUND as u64 {
        let done = qp.poll(cq).expect("the model is idle").expect("it does not fail");
        assert_eq!(done.cookie, cookie);
    }
}

/// Jobs of DOCA Core.
fn job(model: &Model, backend: &Arc<dyn Backend>) -> Result<()> {
    let dev = DevInfo::find_in(backend, "mlx5_0")?.open()?;
    let map = Mmap::builder()
        .memrange(Memory::allocate(4096)?)
        .permissions(AccessFlags::LOCAL_READ_WRITE)
        .add_dev(&dev)
        .start()?;
    let inventory = Inventory::builder(2 * ROUND).start()?;
    let dma = Dma::builder(&dev).start()?;
    let mut workq = WorkQ::new(ROUND as u32)?;
    workq.add(&dma)?;
    let (from, to) = (map.address() + 1024, map.address() + 2048);
    let length = LENGTH as u64;
    let mut pairs: Pairs = (0..ROUND)
        .map(|_| {
            let source = inventory.buf_by_data(&map, from, length)?;
            Ok(Some((source, inventory.buf_by_addr(&map, to, length)?)))
        })
        .collect::<Result<_>>()?;
    for round in 0..ROUNDS {
        map.write_at(1024, &[round as u8; LENGTH])?;
        measured_submit(&mut workq, &dma, &mut pairs);
        model.run_until_idle();
        measured_retrieve(&mut workq, &mut pairs);
        let mut copied = [0; LENGTH];
        map.read_at(2048, &mut copied)?;
        assert_eq!(copied, [round as u8; LENGTH]);
        for (_, destination) in pairs.iter_mut().flatten() {
            assert_eq!(destination.data_len(), length);
            destination.reset_data_len();
        }
    }
    Ok(())
}

#[inline(never)]
fn measured_submit(workq: &mut WorkQ, dma: &Dma, pairs: &mut Pairs) {
    for (number, pair) in pairs.iter_mut().enumerate() {
        let (source, destination) = pair.take().expect("it came back");
        let job = dma.memcpy(source, destination).user_data(number as u64);
        assert!(workq.submit(job).is_ok(), "there is room");
    }
}

#[inline(never)]
fn measured_retrieve(workq: &mut WorkQ, pairs: &mut Pairs) {
    for _ in 0..ROUND {
        match workq.progress_retrieve() {
            Ok(Event::Dma(done)) => {
                pairs[done.user_data.0 as usize] = Some((done.source, done.destination));
            }
            other => panic!("the model is idle: {other:?}"),
        }
    }
}
