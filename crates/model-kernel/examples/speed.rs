//! How fast the model moves data: RDMA WRITEs through verbless's own queues, each checked on
//! arrival.
//!
//! `cargo run --release -p verbless-model-kernel --example speed [SECONDS [ROUNDS [OPERATIONS
//! GIGABYTES]]]` prints operations and bytes per second for messages of 8 bytes and of 64 KiB,
//! between two modelled devices in this process. One thread posts and polls; the model's own thread
//! is the device. The best of several rounds counts; the rounds end once one reaches OPERATIONS, or
//! GIGABYTES, per second. `--kernel` before the numbers uses the kernel's first device for both
//! QPs; `verbless-model run -- speed --kernel` shows that. `--packets` lets the modelled devices
//! carry messages in packets (RoCE v2, path MTU 4096), prints how many packets per second they send
//! together, acknowledgements included, and compares that rate with the target for 8 bytes. The
//! program and both devices then share one thread, as they would share one core.
//!
//! A write carries its number at both ends of its bytes, in a slot that no other write in flight
//! uses. The number must be in place when the program polls the completion, or the program fails.
//! At the end every byte must have arrived, if the run used every slot.

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
/// Requests per doorbell.
const BATCH: usize = 16;
/// Bytes of a write's number.
const STAMP: usize = 8;

/// A card whose network accepts packets of 4 KiB.
const JUMBO: &str = "base = \"connectx6dx\"\n[ethernet.port]\nactive_mtu = 4096\n";

fn main() -> Result<(), Error> {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let option = words.first().filter(|word| word.starts_with("--")).cloned();
    words.drain(..usize::from(option.is_some()));
    let number = |at: usize, otherwise| {
        words.get(at).map_or(Ok::<f64, Error>(otherwise), |word| Ok(word.parse()?))
    };
    let (seconds, rounds) = (number(0, 2.0)?, number(1, 1.0)? as u32);
    let enough = [number(2, f64::INFINITY)?, number(3, f64::INFINITY)? * 1e9 / f64::from(64 << 10)];
    let model = match option.as_deref() {
        None => Some(model(&Profile::load("connectx6dx")?, false)),
        Some("--packets") => Some(model(&Profile::from_toml(JUMBO)?, true)),
        Some("--kernel") => None,
        Some(other) => return Err(format!("{other}: --kernel and --packets are known").into()),
    };
    let backend: Box<dyn Backend> = match &model {
        Some(model) => Box::new(InProcess::of(model)),
        None => Box::new(Kernel::new()),
    };
    let packets = model.as_ref().filter(|_| option.is_some());
    let devices = backend.enumerate()?;
    let first = devices.first().ok_or("there is no device")?;
    let second = devices.get(1).filter(|_| model.is_some()).unwrap_or(first);
    let here = Domain::new(&Device::open(&*backend, first)?)?;
    let there = Domain::new(&Device::open(&*backend, second)?)?;
    for (size, enough) in [STAMP, 64 << 10].into_iter().zip(enough) {
        let (mut rate, mut packet_rate) = (0.0_f64, 0.0_f64);
        for _ in 0..rounds {
            let before = packets.map_or(0, sent);
            let (operations, spent) =
                run(&here, &there, packets, size, Duration::from_secs_f64(seconds))?;
            let each_second = |count: u64| count as f64 / spent.as_secs_f64();
            rate = rate.max(each_second(operations));
            packet_rate = packet_rate.max(each_second(packets.map_or(0, sent) - before));
            let reached = if size == STAMP && packets.is_some() { packet_rate } else { rate };
            if reached >= enough {
                break;
            }
        }
        print!("{size:>6} B: {rate:>10.0} operations/s, {:>6.2} GB/s", rate * size as f64 / 1e9);
        match packets {
            Some(_) => println!(", {packet_rate:>10.0} packets/s"),
            None => println!(),
        }
    }
    Ok(())
}

/// Two modelled devices.
fn model(profile: &Profile, in_packets: bool) -> Model {
    let builder = Model::builder().device(profile.clone()).device(profile.clone());
    let builder = match in_packets {
        true => builder.in_packets().stepped().auto_advance(),
        false => builder.threaded(),
    };
    builder.build()
}

/// Packets that both devices have sent.
fn sent(model: &Model) -> u64 {
    (0..2).map(|device| model.traffic(device, 1)[0].frames).sum()
}

/// Writes `size` bytes repeatedly for `length`; returns the count and the elapsed time. A stepped
/// `model` works whenever there is nothing to post.
fn run(
    here: &Domain,
    there: &Domain,
    stepped: Option<&Model>,
    size: usize,
    length: Duration,
) -> Result<(u64, Duration), Error> {
    let config = QpConfig::new(DEPTH as u32, 1);
    let mut cq = here.completion_queue(&CqConfig::new(config.cqes::<verbless_queue::Rc>()))?;
    let mut qp = here.queue_pair(&config, &cq, &cq)?;
    let peer_cq = there.completion_queue(&CqConfig::new(config.cqes::<verbless_queue::Rc>()))?;
    let mut peer = there.queue_pair(&config, &peer_cq, &peer_cq)?;
    let options = ConnectOptions::default();
    here.connect(&mut qp, &there.address(&peer, &options)?, &options)?;
    there.connect(&mut peer, &here.address(&qp, &options)?, &options)?;
    let bytes = size.max(DEPTH * STAMP);
    let source = here.region(bytes, KeyAccess::LOCAL_READ)?;
    let pattern: Vec<u8> = (0..bytes).map(|at| (at * 251 / 7) as u8).collect();
    source.write_at(0, &pattern)?;
    let target = there.region(bytes, KeyAccess::ALL)?;
    // A long message covers the whole region; a short one has a slot.
    let at = |slot| if size == STAMP { slot * STAMP } else { 0 };
    let mut writes = Vec::new();
    for slot in 0..DEPTH {
        let remote = target.remote(at(slot), 0)?;
        writes.push(Write::new(source.sge(at(slot), size)?, remote).signaled());
    }
    let mut completions: [_; 32] = std::array::from_fn(|_| None);
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
        if let Some(model) = stepped {
            model.run_until_idle();
        }
        let count = qp.poll_into(&mut cq, &mut completions);
        for slot in &mut completions[..count] {
            if let Some(completion) = slot.take() {
                completion?;
            }
            check(&target, done)?;
            done += 1;
        }
        if !open && done == posted {
            let spent = start.elapsed();
            if done >= DEPTH {
                compare(&source, &target)?;
            }
            return Ok((done as u64, spent));
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
            return Err(format!("write {number} completed, but {at:#x} holds {found}").into());
        }
    }
    Ok(())
}

fn compare(source: &Region, target: &Region) -> Result<(), Error> {
    let [mut sent, mut found] = [vec![0; source.len()], vec![0; target.len()]];
    source.read_at(0, &mut sent)?;
    target.read_at(0, &mut found)?;
    match sent.iter().zip(&found).position(|(sent, found)| sent != found) {
        Some(at) => Err(format!("all writes completed, but byte {at:#x} differs").into()),
        None => Ok(()),
    }
}
