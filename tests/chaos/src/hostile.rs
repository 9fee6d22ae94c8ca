//! Hostile clients of the kernel, several at once. Some are killed, some exec another program, some
//! exit when asked to. They must not disturb other programs, and must leave nothing behind.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use verbless_conformance::{Stop, ensure};

use crate::checkers::Checkers;
use crate::expectations;
use crate::message::Message;
use crate::programs::{Output, ProgramId, Programs};
use crate::random::{Random, seed};
use crate::roles::Role;
use crate::supervisor::Supervisor;

/// Number of concurrent hostile clients.
const MAX_CLIENTS: usize = 3;
/// How long one runs.
const MIN_LIFE: Duration = Duration::from_millis(200);
const MAX_LIFE_MILLISECONDS: u64 = 1500;
/// Interval in which the checkers must complete more rounds.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum growth of the supervisor in kilobytes: what a function keeps for its clients, on
/// two devices, plus a reserve.
const MAX_GROWTH: u64 = 2 << 20;

/// Options of `chaos hostile`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Duration in seconds.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Seed of the random choices; if not given, one is chosen and printed.
    #[arg(long)]
    seed: Option<u64>,
    /// The device.
    #[arg(long, default_value = "mlx5_0")]
    device: String,
    /// The other device.
    #[arg(long, default_value = "mlx5_1")]
    peer: String,
}

pub(crate) fn run(options: &Options) -> Result<(), Stop> {
    let seed = options.seed.unwrap_or_else(seed);
    println!("hostile clients for {} s, seed {seed}", options.seconds);
    let devices = [options.device.clone(), options.peer.clone()];
    let mut random = Random::new(seed);
    let mut programs = Programs::new();
    let checked = expectations::check(&options.device)?;
    let mut checkers = Checkers::start(&mut programs, &devices)?;
    let supervisor = Supervisor::find();
    let start = Instant::now();
    let end = start + Duration::from_secs(options.seconds);
    let mut clients: BTreeMap<ProgramId, Instant> = BTreeMap::new();
    // Calls of running clients, and of ended ones.
    let (mut counts, mut calls, mut started) = (BTreeMap::new(), 0, 0);
    let (mut rounds, mut looked) = (checkers.rounds, start);
    while Instant::now() < end || !clients.is_empty() {
        while clients.len() < MAX_CLIENTS && Instant::now() < end {
            let device = &devices[random.below(2) as usize];
            let life = MIN_LIFE + Duration::from_millis(random.below(MAX_LIFE_MILLISECONDS));
            let client = programs.start(Role::Hostile, device, random.next(), 0)?;
            clients.insert(client, Instant::now() + life);
            started += 1;
        }
        match programs.next_output(Instant::now() + Duration::from_millis(20)) {
            Some((program, output)) if checkers.has(program) => {
                checkers.handle(&mut programs, program, output)?
            }
            Some((program, _)) if !programs.has(program) => {}
            Some((program, Output::Message(Message::Rounds(count)))) => {
                // The count restarts at 0 after an exec.
                let last = counts.insert(program, count).filter(|&last| last < count);
                calls += count - last.unwrap_or(0);
            }
            Some((program, Output::End)) => return Err(programs.unexpected_end(program)),
            Some((_, output)) => {
                return Err(Stop::fail(format!(
                    "unexpected output from a hostile client: {output:?}"
                )));
            }
            None => {}
        }
        let now = Instant::now();
        let due: Vec<ProgramId> =
            clients.iter().filter(|&(_, &due)| due < now).map(|(&program, _)| program).collect();
        for program in due {
            clients.remove(&program);
            match random.below(3) {
                0 => programs.end(program)?,
                _ => programs.kill(program)?,
            }
        }
        if looked.elapsed() > CHECK_INTERVAL {
            checkers.check_progress(&mut rounds)?;
            looked = Instant::now();
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    ensure!(calls > 0, "no hostile client made a call");
    expectations::check(&options.device)?;
    if let Some(supervisor) = &supervisor {
        supervisor.check()?;
        let growth = supervisor.growth();
        ensure!(growth < MAX_GROWTH, "the supervisor has grown by {growth} kB");
        println!("the supervisor holds no additional descriptors; its memory grew by {growth} kB");
    }
    let rounds = checkers.rounds;
    checkers.end(&mut programs)?;
    Checkers::start(&mut programs, &devices)?.end(&mut programs)?;
    let rate = calls as f64 / seconds;
    println!(
        "{started} hostile clients, {calls} calls ({rate:.0} per second), {checked} errnos equal \
         to Linux's, {rounds} checker rounds"
    );
    Ok(())
}
