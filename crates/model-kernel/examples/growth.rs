//! How the cost of a thing grows with the number of its kind: of doorbells, registrations, objects,
//! connections, flow rules, mappings and subscriptions.
//!
//! `cargo run --release -p verbless-model-kernel --example growth [ROW]` prints a line per row
//! whose name contains ROW: the time of one with few others and with many, in microseconds, and
//! their ratio. A time is the best of several rounds, since a round may be disturbed. `--kernel`
//! before the row uses the kernel's first device; `verbless-model run -- growth --kernel` shows
//! that.

// Mappings beside which regions are registered.
#![allow(unsafe_code)]

use std::time::Instant;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use verbless_command::{Device, FlowAttr, KeyAccess};
use verbless_devx::{Backend, Kernel};
use verbless_model::{Model, Profile};
use verbless_model_kernel::InProcess;
use verbless_queue::wr::Write;
use verbless_queue::{
    ConnectOptions, Cq, CqConfig, Domain, Memory, Qp, QpConfig, RqConfig, SqConfig,
};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Numbers of others.
const FEW: usize = 100;
const MANY: usize = 10_000;
/// QPs of a page with few of them, and those that post in turn.
const FEW_QPS: usize = 10;
const POSTING: usize = 1000;
/// Mappings beside which regions are registered.
const MAPPINGS: usize = 40_000;
const PAGE: usize = 4096;
/// Rounds, the best of which counts, and units of a round.
const ROUNDS: usize = 12;
const UNITS: usize = 25;

fn main() -> Result {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let kernel = words.first().is_some_and(|word| word == "--kernel");
    words.drain(..usize::from(kernel));
    let part = words.first().cloned().unwrap_or_default();
    let profile = Profile::from_toml("base = \"connectx6dx\"\nlink = \"ethernet\"\n")?;
    let model = (!kernel).then(|| Model::builder().device(profile).threaded().build());
    let backend: Box<dyn Backend> = match &model {
        Some(model) => Box::new(InProcess::of(model)),
        None => Box::new(Kernel::new()),
    };
    let first = backend.enumerate()?.into_iter().next().ok_or("there is no device")?;
    let bench = Bench { device: Device::open(&*backend, &first)?, part };
    bench.doorbells()?;
    bench.objects()?;
    bench.mappings()
}

struct Bench {
    device: Device,
    /// The part of a name by which rows are chosen.
    part: String,
}

/// A queue pair that is connected to itself, and its CQ.
struct Loop {
    qp: Qp,
    cq: Cq,
}

impl Bench {
    fn chooses(&self, name: &str) -> bool {
        name.contains(&self.part)
    }

    fn domain(&self) -> Result<Domain> {
        Ok(Domain::new(&self.device)?)
    }

    /// Writes of 8 bytes, one at a time, on a page of many queue pairs.
    fn doorbells(&self) -> Result {
        let (one, in_turn) = ("doorbell, one QP posts", "doorbell, QPs post in turn");
        if !self.chooses(one) && !self.chooses(in_turn) {
            return Ok(());
        }
        let domain = self.domain()?;
        let region = domain.region(64, KeyAccess::ALL)?;
        let write = Write::new(region.sge(0, 8)?, region.remote(8, 0)?).signaled();
        let mut loops = Vec::new();
        let grow = |loops: &mut Vec<Loop>, count| -> Result {
            while loops.len() < count {
                loops.push(connected(&domain)?);
            }
            Ok(())
        };
        let turn = |loops: &mut [Loop], count: usize| -> Result {
            for Loop { qp, cq } in &mut loops[..count] {
                qp.post(&write, 0)?;
                let mut done = [None];
                while qp.poll_into(cq, &mut done) == 0 {
                    std::hint::spin_loop();
                }
                done[0].take().ok_or("a CQE")??;
            }
            Ok(())
        };
        let measure = |loops: &mut [Loop]| -> Result<(f64, f64)> {
            let (posting, count) = (loops.len().min(POSTING), 400_usize);
            let alone = best(ROUNDS, || (0..count).try_for_each(|_| turn(loops, 1)))?;
            let each = count.div_ceil(posting);
            let turns = best(ROUNDS, || (0..each).try_for_each(|_| turn(loops, posting)))?;
            Ok((alone / count as f64, turns / (each * posting) as f64))
        };
        grow(&mut loops, FEW_QPS)?;
        let few = measure(&mut loops)?;
        grow(&mut loops, MANY)?;
        let many = measure(&mut loops)?;
        self.print(one, few.0, many.0);
        self.print(in_turn, few.1, many.1);
        Ok(())
    }

    fn objects(&self) -> Result {
        let domain = self.domain()?;
        let config = QpConfig::new(1, 1);
        let cq = domain.completion_queue(&CqConfig { overcommit: true, ..CqConfig::new(16) })?;
        self.grows("protection domain", |_| Ok(self.device.alloc_pd()?))?;
        self.grows("region of 4 KiB", |_| Ok(domain.region(4096, KeyAccess::ALL)?))?;
        self.grows("completion queue", |_| Ok(domain.completion_queue(&CqConfig::new(2))?))?;
        self.grows("queue pair", |_| Ok(domain.queue_pair(&config, &cq, &cq)?))?;
        self.grows("send queue of frames", |_| Ok(domain.sq(&SqConfig::new(2), &cq)?))?;
        self.grows("connection", |_| connected(&domain))?;
        let rq = domain.rq(&RqConfig::new(2), &cq)?;
        self.grows("flow rule", |number| {
            let [_, _, a, b] = (number as u32).to_be_bytes();
            Ok(rq.steer(&FlowAttr::to([2, 0, 0, 0, a, b]))?)
        })?;
        let channel = self.device.event_channel(true)?;
        self.grows("subscription to a new CQ", |number| {
            let cq = domain.completion_queue(&CqConfig::new(2))?;
            cq.subscribe(&channel, number as u64)?;
            Ok(cq)
        })
    }

    /// Registers regions of 4 KiB while the process has many mappings.
    fn mappings(&self) -> Result {
        let name = "region beside 40,000 mappings";
        if !self.chooses(name) {
            return Ok(());
        }
        let domain = self.domain()?;
        let memory = Memory::allocate(4096)?;
        let time = || -> Result<f64> {
            let round = || {
                (0..UNITS).try_for_each(|_| {
                    domain.region_of(&memory, KeyAccess::ALL)?;
                    Ok(())
                })
            };
            Ok(best(ROUNDS, round)? / UNITS as f64)
        };
        let few = time()?;
        // Neighbours of different access are mappings of their own.
        let pages = Mappings::new(MAPPINGS)?;
        let many = time()?;
        drop(pages);
        self.print(name, few, many);
        Ok(())
    }

    /// Measures making and ending one of a kind beside few and many others.
    fn grows<T>(&self, name: &str, mut make: impl FnMut(usize) -> Result<T>) -> Result {
        if !self.chooses(name) {
            return Ok(());
        }
        let mut others = Vec::new();
        let mut times = [0.0; 2];
        for (time, count) in times.iter_mut().zip([FEW, MANY]) {
            while others.len() < count {
                others.push(make(others.len())?);
            }
            let round =
                || (0..UNITS).map(|k| make(count + k)).collect::<Result<Vec<_>>>().map(drop);
            *time = best(ROUNDS, round)? / UNITS as f64;
        }
        self.print(name, times[0], times[1]);
        Ok(())
    }

    fn print(&self, name: &str, few: f64, many: f64) {
        if self.chooses(name) {
            let ratio = many / few;
            println!("{name}: few {few:.2} us, many {many:.2} us, ratio: {ratio:.2}");
        }
    }
}

/// A queue pair that is connected to itself.
fn connected(domain: &Domain) -> Result<Loop> {
    let config = QpConfig::new(1, 1);
    let cq = domain.completion_queue(&CqConfig::new(config.cqes::<verbless_queue::Rc>()))?;
    let mut qp = domain.queue_pair(&config, &cq, &cq)?;
    domain.connect_loopback(&mut qp, &ConnectOptions::default())?;
    Ok(Loop { qp, cq })
}

/// The microseconds of the best of some rounds.
fn best(rounds: usize, mut round: impl FnMut() -> Result) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..rounds {
        let start = Instant::now();
        round()?;
        best = best.min(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(best)
}

/// Neighbouring pages of different access, so that each is a mapping of its own.
struct Mappings {
    start: std::ptr::NonNull<std::ffi::c_void>,
    bytes: std::num::NonZero<usize>,
}

impl Mappings {
    fn new(count: usize) -> Result<Self> {
        let bytes = std::num::NonZero::new(count * PAGE).ok_or("no mappings")?;
        let (read, private) =
            (ProtFlags::PROT_READ, MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE);
        // SAFETY: a new mapping.
        let start = unsafe { mmap_anonymous(None, bytes, read, private)? };
        for at in (0..count).step_by(2) {
            // SAFETY: a page of that mapping, which nothing uses.
            unsafe { mprotect(start.byte_add(at * PAGE), PAGE, ProtFlags::PROT_NONE)? };
        }
        Ok(Self { start, bytes })
    }
}

impl Drop for Mappings {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing uses it.
        let _ = unsafe { munmap(self.start, self.bytes.get()) };
    }
}
