//! `cargo xtask mutants`: whether tests detect mistakes in the sources.
//!
//! cargo-mutants lists the mutants: one changed function or operator each. Each is applied to a
//! copy of the workspace (`target/mutants/tree`) and tried with the tests of its own crate; if they
//! pass, and if the suite covers the crate, also with the conformance suite on the model. A mutant
//! that makes a test fail or hang is killed, one that no test detects is missed, one that does not
//! compile is unviable. `tests/mutants.toml` lists the mutants that no test can or should detect.
//! There are thousands, and each is a build: a sample, repeatable by its seed, says as much in an
//! hour.

mod exclusions;
mod list;
mod trial;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::workspace::{Result, workspace_root};
use exclusions::Exclusions;
use trial::{Fate, Tree};

/// Hundredths of the viable mutants that must be killed.
const BOUND: usize = 92;

/// Options of `cargo xtask mutants`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Try this many mutants, chosen at random, instead of all.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    sample: Option<u32>,
    /// Seed of the choice [default: the time]; it is printed, and the same seed chooses the same
    /// mutants of the same sources.
    #[arg(long, requires = "sample")]
    seed: Option<u64>,
    /// Mutate this package; may be repeated [default: every crate].
    #[arg(long, value_name = "P")]
    package: Vec<String>,
}

/// Tries mutants; returns whether enough were killed.
pub(crate) fn run(options: &Options) -> Result<bool> {
    crate::steps::end_all_when_interrupted()?;
    let mut mutants = list::all(&options.package)?;
    let exclusions = Exclusions::read()?;
    exclusions.match_something(&mutants, &options.package)?;
    let all = mutants.len();
    if let Some(count) = options.sample {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs());
        let seed = options.seed.unwrap_or_else(now);
        list::sample(&mut mutants, count as usize, seed);
        let count = mutants.len();
        println!("{count} of {all} mutants; the same again: --sample {count} --seed {seed}");
    }
    let mut tally = Tally::default();
    mutants.retain(|mutant| match exclusions.reason(mutant) {
        Some(reason) => {
            println!("excluded   {} ({reason})", mutant.name);
            tally.excluded += 1;
            false
        }
        None => true,
    });
    let packages: Vec<&str> = mutants.iter().map(|mutant| &*mutant.package).collect();
    let tree = Tree::make(workspace_root(), &packages)?;
    let log = workspace_root().join("target/mutants/outcomes.txt");
    let mut log = File::create(log)?;
    for mutant in &mutants {
        let start = Instant::now();
        let fate = tree.fate(mutant)?;
        let seconds = start.elapsed().as_secs();
        let line = format!("{:10} {} ({seconds} s)", fate.name(), mutant.name);
        println!("{line}");
        writeln!(log, "{line}")?;
        tally.add(fate, &mutant.name);
    }
    tally.missed.iter().for_each(|mutant| println!("missed: {mutant}"));
    println!("{}", tally.summary()?);
    tally.is_enough()
}

/// The results of the mutants.
#[derive(Default)]
struct Tally {
    fates: BTreeMap<&'static str, usize>,
    killed: usize,
    unviable: usize,
    excluded: usize,
    missed: Vec<String>,
}

impl Tally {
    fn add(&mut self, fate: Fate, name: &str) {
        *self.fates.entry(fate.name()).or_default() += 1;
        match fate {
            Fate::Unviable => self.unviable += 1,
            Fate::Missed => self.missed.push(name.into()),
            Fate::KilledByOwn | Fate::KilledBySuite => self.killed += 1,
        }
    }

    /// Hundredths of the viable ones that were killed, rounded down.
    fn share(&self) -> Result<usize> {
        let viable = self.killed + self.missed.len();
        (self.killed * 100)
            .checked_div(viable)
            .ok_or_else(|| "no mutant compiles: take a larger sample, or another seed".into())
    }

    fn summary(&self) -> Result<String> {
        let Self { fates, killed, unviable, excluded, missed } = self;
        let (missed, share) = (missed.len(), self.share()?);
        let suite = fates.get(Fate::KilledBySuite.name()).unwrap_or(&0);
        Ok(format!(
            "{killed} killed ({suite} by the suite alone), {missed} missed, {unviable} unviable, \
             {excluded} excluded; {share} % of the viable ones killed, at least {BOUND} % must be"
        ))
    }

    fn is_enough(&self) -> Result<bool> {
        Ok(self.share()? >= BOUND)
    }
}

#[cfg(test)]
mod tests {
    use super::{Fate, Tally};

    fn tally(killed: usize, missed: usize) -> Tally {
        let mut tally = Tally::default();
        (0..killed).for_each(|_| tally.add(Fate::KilledByOwn, ""));
        (0..missed).for_each(|_| tally.add(Fate::Missed, "a.rs:1:1: replace f with ()"));
        (0..3).for_each(|_| tally.add(Fate::Unviable, ""));
        tally
    }

    #[test]
    fn kill_rate_of_92_percent_is_enough() {
        assert!(tally(92, 8).is_enough().unwrap());
        assert!(!tally(91, 8).is_enough().unwrap());
        assert!(tally(0, 0).is_enough().is_err());
        let mut tally = tally(10, 1);
        tally.add(Fate::KilledBySuite, "");
        assert_eq!(
            tally.summary().unwrap(),
            "11 killed (1 by the suite alone), 1 missed, 3 unviable, 0 excluded; 91 % of the \
             viable ones killed, at least 92 % must be"
        );
    }
}
