//! How the model serves other work while it moves much data.
//!
//! `cargo run --release -p verbless-model-kernel --example busy [ROUNDS]` prints how long commands
//! take while one device writes 1 GiB at a time to another: commands of a third device, of the
//! writing device and of the written device. It measures a query and a pair of commands that
//! creates and destroys an mkey. Then it compares the throughput of two devices that each talk to
//! themselves with that of one device. The best of several rounds counts.

use std::time::{Duration, Instant};

use verbless_command::{Device, KeyAccess};
use verbless_devx::Backend;
use verbless_model::{Model, Profile};
use verbless_model_kernel::InProcess;
use verbless_queue::wr::Write;
use verbless_queue::{ConnectOptions, Cq, CqConfig, Domain, Qp, QpConfig, Region, Sge};

type Error = Box<dyn std::error::Error>;

/// Bytes of a long message: the maximum of a device.
const LONG_MESSAGE: usize = 1 << 30;
/// Bytes of a message that fits a CPU cache, and the most messages in flight.
const SHORT_MESSAGE: usize = 128 << 10;
const DEPTH: usize = 256;
const ROUND: Duration = Duration::from_millis(700);

fn main() -> Result<(), Error> {
    let rounds = std::env::args().nth(1).map_or(Ok(3), |word| word.parse::<u32>())?;
    let card = Profile::load("connectx6dx")?;
    let builder = (0..3).fold(Model::builder(), |builder, _| builder.device(card.clone()));
    let backend = InProcess::of(&builder.threaded().build());
    let devices = backend.enumerate()?;
    let open = |at: usize| Device::open(&backend, &devices[at]);
    let devices = [open(0)?, open(1)?, open(2)?];
    let domains = [Domain::new(&devices[0])?, Domain::new(&devices[1])?, Domain::new(&devices[2])?];

    let mut long = Stream::new(&domains[0], &domains[1], LONG_MESSAGE, 2)?;
    let mut shortest = [Duration::MAX; 3];
    for _ in 0..rounds {
        let longest = answer_times(&mut long, &devices, &domains)?;
        for (shortest, longest) in shortest.iter_mut().zip(longest) {
            *shortest = longest.min(*shortest);
        }
    }
    for (whose, time) in ["writer", "target", "other"].iter().zip(shortest) {
        println!("{whose}: {:.3} ms", time.as_secs_f64() * 1e3);
    }
    long.finish()?;
    drop(long);

    let mut ratio = 0.0_f64;
    for _ in 0..rounds {
        let mut one = Stream::new(&domains[0], &domains[0], SHORT_MESSAGE, DEPTH)?;
        let mut other = Stream::new(&domains[1], &domains[1], SHORT_MESSAGE, DEPTH)?;
        let alone = moved(&mut [&mut one])?;
        let together = moved(&mut [&mut one, &mut other])?;
        ratio = ratio.max(together / alone);
    }
    println!("two devices: {ratio:.2} of one");
    Ok(())
}

/// The longest time that a command of each device takes while a stream runs.
fn answer_times(
    stream: &mut Stream,
    devices: &[Device; 3],
    domains: &[Domain; 3],
) -> Result<[Duration; 3], Error> {
    let mut longest = [Duration::ZERO; 3];
    let (start, before) = (Instant::now(), stream.done);
    while start.elapsed() < ROUND || stream.done == before {
        for ((device, domain), longest) in devices.iter().zip(domains).zip(&mut longest) {
            stream.fill()?;
            let sent = Instant::now();
            device.query_vport_state()?;
            let completed = Instant::now();
            let region = domain.region(4096, KeyAccess::ALL)?;
            let created = Instant::now();
            drop(region);
            for time in [completed - sent, created - completed, created.elapsed()] {
                *longest = time.max(*longest);
            }
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    Ok(longest)
}

/// Messages per second that all streams move together.
fn moved(streams: &mut [&mut Stream]) -> Result<f64, Error> {
    let before: usize = streams.iter().map(|stream| stream.done).sum();
    let start = Instant::now();
    while start.elapsed() < ROUND {
        for stream in &mut *streams {
            stream.fill()?;
        }
        // Leaves the CPUs to the model: enough WQEs are posted.
        std::thread::sleep(Duration::from_micros(100));
    }
    let done = streams.iter().map(|stream| stream.done).sum::<usize>() - before;
    let rate = done as f64 / start.elapsed().as_secs_f64();
    streams.iter_mut().try_for_each(|stream| stream.finish())?;
    Ok(rate)
}

/// A queue pair that writes the same bytes again and again.
struct Stream {
    cq: Cq,
    qp: Qp,
    _peer: (Cq, Qp),
    source: Region,
    target: Region,
    write: Write<Sge>,
    depth: usize,
    posted: usize,
    done: usize,
}

impl Stream {
    fn new(here: &Domain, there: &Domain, size: usize, depth: usize) -> Result<Self, Error> {
        let config = QpConfig::new(depth as u32, 1);
        let cq = here.completion_queue(&CqConfig::new(config.cqes::<verbless_queue::Rc>()))?;
        let mut qp = here.queue_pair(&config, &cq, &cq)?;
        let peer_cq =
            there.completion_queue(&CqConfig::new(config.cqes::<verbless_queue::Rc>()))?;
        let mut peer = there.queue_pair(&config, &peer_cq, &peer_cq)?;
        let options = ConnectOptions::default();
        here.connect(&mut qp, &there.address(&peer, &options)?, &options)?;
        there.connect(&mut peer, &here.address(&qp, &options)?, &options)?;
        let source = here.region(size, KeyAccess::LOCAL_READ)?;
        for at in [0, size / 3, size - 8] {
            source.write_at(at, b"whatever")?;
        }
        let target = there.region(size, KeyAccess::ALL)?;
        let write = Write::new(source.sge(0, size)?, target.remote(0, 0)?).signaled();
        let (posted, done) = (0, 0);
        Ok(Self { cq, qp, _peer: (peer_cq, peer), source, target, write, depth, posted, done })
    }

    /// Posts messages until the SQ is full.
    fn fill(&mut self) -> Result<(), Error> {
        self.poll()?;
        let mut batch = self.qp.batch();
        while self.posted - self.done < self.depth {
            batch.post(&self.write, 0)?;
            self.posted += 1;
        }
        batch.ring();
        Ok(())
    }

    fn poll(&mut self) -> Result<(), Error> {
        let mut completions: [_; 32] = std::array::from_fn(|_| None);
        loop {
            let count = self.qp.poll_into(&mut self.cq, &mut completions);
            for completion in completions[..count].iter_mut().filter_map(Option::take) {
                completion?;
                self.done += 1;
            }
            if count < completions.len() {
                return Ok(());
            }
        }
    }

    /// Waits for the posted messages and checks the bytes at their target.
    fn finish(&mut self) -> Result<(), Error> {
        while self.done < self.posted {
            self.poll()?;
            std::thread::sleep(Duration::from_micros(100));
        }
        for at in [0, self.source.len() / 3, self.source.len() - 8] {
            let mut found = [0; 8];
            self.target.read_at(at, &mut found)?;
            if &found != b"whatever" {
                return Err(format!("all writes completed, but {at:#x} holds {found:x?}").into());
            }
        }
        Ok(())
    }
}
