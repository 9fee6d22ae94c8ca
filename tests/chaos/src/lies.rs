//! Programs that lie to the kernel, several at once; some are killed, some become another program,
//! some end when they are told to. Nobody else may notice, and nothing of them may be left.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use verbless_conformance::{Stop, ensure};

use crate::cast::{Actor, Cast, Said};
use crate::director::Witnesses;
use crate::message::Message;
use crate::parts::Part;
use crate::random::{Random, seed};
use crate::supervisor::Supervisor;
use crate::truths;

/// Programs that lie at once.
const AT_ONCE: usize = 3;
/// How long one lies.
const SHORTEST: Duration = Duration::from_millis(200);
const LONGEST_MILLISECONDS: u64 = 1500;
/// How often the witnesses must have got further.
const LOOK: Duration = Duration::from_secs(2);
/// Kilobytes that the supervisor may grow by: what a function keeps for its clients at most, on two
/// devices, and something.
const GROWTH: u64 = 2 << 20;

/// Options of `chaos lies`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// For how long.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// What chance comes from; printed, if not given.
    #[arg(long)]
    seed: Option<u64>,
    /// The device.
    #[arg(long, default_value = "mlx5_0")]
    device: String,
    /// Another device.
    #[arg(long, default_value = "mlx5_1")]
    peer: String,
}

pub(crate) fn run(options: &Options) -> Result<(), Stop> {
    let seed = options.seed.unwrap_or_else(seed);
    println!("lies for {} s, seed {seed}", options.seconds);
    let devices = [options.device.clone(), options.peer.clone()];
    let mut random = Random::new(seed);
    let mut cast = Cast::new();
    let told = truths::check(&options.device)?;
    let mut witnesses = Witnesses::start(&mut cast, &devices)?;
    let supervisor = Supervisor::find();
    let start = Instant::now();
    let end = start + Duration::from_secs(options.seconds);
    let mut liars: BTreeMap<Actor, Instant> = BTreeMap::new();
    // Calls of those that run, and of those that have ended.
    let (mut counts, mut calls, mut programs) = (BTreeMap::new(), 0, 0);
    let (mut rounds, mut looked) = (witnesses.rounds, start);
    while Instant::now() < end || !liars.is_empty() {
        while liars.len() < AT_ONCE && Instant::now() < end {
            let device = &devices[random.below(2) as usize];
            let life = SHORTEST + Duration::from_millis(random.below(LONGEST_MILLISECONDS));
            let liar = cast.start(Part::Liar, device, random.next(), 0)?;
            liars.insert(liar, Instant::now() + life);
            programs += 1;
        }
        match cast.hear(Instant::now() + Duration::from_millis(20)) {
            Some((actor, said)) if witnesses.has(actor) => {
                witnesses.hear(&mut cast, actor, said)?
            }
            Some((actor, _)) if !cast.has(actor) => {}
            Some((actor, Said::Message(Message::Rounds(count)))) => {
                // It begins anew when it has become another program.
                let last = counts.insert(actor, count).filter(|&last| last < count);
                calls += count - last.unwrap_or(0);
            }
            Some((actor, Said::End)) => return Err(cast.mourn(actor)),
            Some((_, said)) => return Err(Stop::fail(format!("a liar says {said:?}"))),
            None => {}
        }
        let now = Instant::now();
        let due: Vec<Actor> =
            liars.iter().filter(|&(_, &due)| due < now).map(|(&actor, _)| actor).collect();
        for actor in due {
            liars.remove(&actor);
            match random.below(3) {
                0 => cast.end(actor)?,
                _ => cast.kill(actor)?,
            }
        }
        if looked.elapsed() > LOOK {
            witnesses.check_progress(&mut rounds)?;
            looked = Instant::now();
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    ensure!(calls > 0, "the liars did not get to lie");
    truths::check(&options.device)?;
    if let Some(supervisor) = &supervisor {
        supervisor.check()?;
        let growth = supervisor.growth();
        ensure!(growth < GROWTH, "the supervisor has grown by {growth} kB");
        println!("the supervisor has no descriptor more than before, and {growth} kB");
    }
    let rounds = witnesses.rounds;
    witnesses.end(&mut cast)?;
    Witnesses::start(&mut cast, &devices)?.end(&mut cast)?;
    let rate = calls as f64 / seconds;
    println!(
        "{programs} liars, {calls} calls ({rate:.0} a second), {told} refusals as Linux has them, \
         {rounds} rounds of witnesses"
    );
    Ok(())
}
