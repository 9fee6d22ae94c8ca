//! Instructions of a DMA job, beside those of its request. `cargo xtask bench` runs this under
//! callgrind, which counts the functions `measured_…`; the argument selects the case. Without that
//! argument it only checks that the cases work.
//!
//! All cases copy the same 64 bytes by the same engine of a stepped model in this process; the
//! model's instructions are not counted. `queue` is verbless-queue without DOCA's objects: a copy
//! posted to a queue pair that is its own peer, and polled. `pair` is the retrieve of a job with
//! two buffers, and the submit of another one with the same buffers; `batch` is many submits and
//! then as many retrieves, with the buffers kept meanwhile.

use std::error::Error;
use std::hint::black_box;
use std::mem;
use std::sync::Arc;

use verbless_devx::Backend;
use verbless_doca::context::Retrieve;
use verbless_doca::dma::{Dma, MemcpyDone};
use verbless_doca::{AccessFlags, Buf, DevInfo, Event, Inventory, Memory, Mmap, UserData, WorkQ};
use verbless_model::{Model, Profile};
use verbless_model_kernel::InProcess;
use verbless_queue::access::KeyAccess;
use verbless_queue::wr::{DmaMmo, Scratch};
use verbless_queue::{ConnectOptions, Cq, CqConfig, Qp, QpConfig, Sge};

/// Operations per round; the model executes them between rounds.
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
        Some("pair") => pair(&model, &backend)?,
        Some("batch") => batch(&model, &backend)?,
        // `cargo test` gives arguments of its own.
        _ => {
            queue(&model, &backend)?;
            pair(&model, &backend)?;
            batch(&model, &backend)?;
        }
    }
    println!("operations: {}", ROUND * ROUNDS);
    Ok(())
}

/// Copies by verbless-queue.
fn queue(model: &Model, backend: &Arc<dyn Backend>) -> Result<()> {
    let dev = DevInfo::find_in(backend, "mlx5_0")?.open()?;
    let domain = dev.domain();
    let mut cq = domain.completion_queue(&CqConfig::new(256))?;
    let config = QpConfig { dma_mmo: true, inline: 0, ..QpConfig::new(ROUND as u32, 1) };
    let mut qp = domain.queue_pair(&config, &cq, &cq)?;
    domain.connect_loopback(&mut qp, &ConnectOptions::default())?;
    let region = domain.region(4096, KeyAccess::LOCAL)?;
    let scratch = Scratch::new(region.sge(0, 64)?).ok_or("a region begins within a page")?;
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
fn measured_post(qp: &mut Qp, (scratch, from, to): (Scratch, Sge, Sge)) {
    for cookie in 0..ROUND as u64 {
        qp.post(&DmaMmo::new(scratch, from, to).signaled(), cookie).expect("there is room");
    }
}

#[inline(never)]
fn measured_poll(qp: &mut Qp, cq: &mut Cq) {
    for cookie in 0..ROUND as u64 {
        let done = qp.poll(cq).expect("the model is idle").expect("the request succeeds");
        assert_eq!(done.cookie, cookie);
    }
}

/// Jobs of DOCA Core, one at a time.
fn pair(model: &Model, backend: &Arc<dyn Backend>) -> Result<()> {
    let mut rig = Rig::new(backend)?;
    submit(&mut rig);
    for round in 0..=ROUNDS {
        rig.map.write_at(1024, &[round as u8; LENGTH])?;
        model.run_until_idle();
        rig.check(round)?;
        if round < ROUNDS {
            measured_pair(&mut rig.workq, &rig.dma);
        }
    }
    for _ in 0..ROUND {
        rig.workq.progress_retrieve()?;
    }
    Ok(())
}

/// Each retrieved job passes its buffers to a submitted one.
#[inline(never)]
fn measured_pair(workq: &mut WorkQ, dma: &Dma) {
    for number in 0..ROUND as u64 {
        let (source, mut destination) = match workq.progress_retrieve() {
            Ok(Event::Dma(MemcpyDone { user_data, source, destination, .. })) => {
                in_order(user_data, number);
                (source, destination)
            }
            other => unexpected(other),
        };
        destination.reset_data_len();
        if let Err(refused) = workq.submit(dma.memcpy(source, destination).user_data(number)) {
            panic!("there is room: {refused}");
        }
    }
}

/// Checks that the device keeps the order. It aborts, so that the compiler emits no drop code for
/// the retrieved event.
#[inline(always)]
fn in_order(user_data: UserData, number: u64) {
    if user_data.0 != number {
        std::process::abort();
    }
}

#[cold]
#[inline(never)]
fn unexpected(other: std::result::Result<Event, Retrieve>) -> ! {
    panic!("the model is idle: {other:?}")
}

/// Jobs of DOCA Core, many at a time.
fn batch(model: &Model, backend: &Arc<dyn Backend>) -> Result<()> {
    let mut rig = Rig::new(backend)?;
    for round in 0..ROUNDS {
        rig.map.write_at(1024, &[round as u8; LENGTH])?;
        submit(&mut rig);
        model.run_until_idle();
        measured_retrieve(&mut rig.workq, &mut rig.pairs);
        rig.check(round)?;
        for (_, destination) in rig.pairs.iter_mut().flatten() {
            assert_eq!(destination.data_len(), LENGTH as u64);
            destination.reset_data_len();
        }
    }
    Ok(())
}

/// A context, a work queue, and buffers of a map.
struct Rig {
    workq: WorkQ,
    dma: Dma,
    pairs: Pairs,
    map: Mmap,
}

impl Rig {
    fn new(backend: &Arc<dyn Backend>) -> Result<Self> {
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
        let pairs = (0..ROUND).map(|_| {
            let source = inventory.buf_by_data(&map, from, length)?;
            Ok(Some((source, inventory.buf_by_addr(&map, to, length)?)))
        });
        let pairs = pairs.collect::<Result<_>>()?;
        Ok(Self { workq, dma, pairs, map })
    }

    /// Whether the bytes of a round have arrived.
    fn check(&self, round: usize) -> Result<()> {
        let mut copied = [0; LENGTH];
        self.map.read_at(2048, &mut copied)?;
        assert_eq!(copied, [round as u8; LENGTH]);
        Ok(())
    }
}

fn submit(rig: &mut Rig) {
    measured_submit(&mut rig.workq, &rig.dma, &mut rig.pairs);
}

#[inline(never)]
fn measured_submit(workq: &mut WorkQ, dma: &Dma, pairs: &mut Pairs) {
    for (number, pair) in pairs.iter_mut().enumerate() {
        let Some((source, destination)) = pair.take() else {
            panic!("the buffers did not come back")
        };
        let job = dma.memcpy(source, destination).user_data(number as u64);
        if let Err(refused) = workq.submit(job) {
            panic!("there is room: {refused}");
        }
    }
}

#[inline(never)]
fn measured_retrieve(workq: &mut WorkQ, pairs: &mut Pairs) {
    for (number, pair) in pairs.iter_mut().enumerate() {
        let buffers = match workq.progress_retrieve() {
            Ok(Event::Dma(MemcpyDone { user_data, source, destination, .. })) => {
                in_order(user_data, number as u64);
                (source, destination)
            }
            other => unexpected(other),
        };
        // It is empty, and its drop would be counted.
        mem::forget(pair.replace(buffers));
    }
}
