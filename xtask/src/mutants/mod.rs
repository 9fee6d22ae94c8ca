//! `cargo xtask mutants`: whether tests detect mistakes in the sources.
//!
//! cargo-mutants lists the mutants: one changed function or operator each. A copy of the workspace
//! (`target/mutants/tree`) gets all mutants of a crate, each behind a switch (`switch`), and is
//! compiled once. Each test of the crate runs once to find the mutants that it reaches; then each
//! mutant is tried with the tests that reach it, and if they pass, and if the suite covers the
//! crate, with the cases of the conformance suite on the model. A mutant that makes a test fail or
//! hang is killed, one that no test detects is missed, one that does not compile is unviable.
//!
//! Excluded are the mutants that no test can or should detect: those that `tests/mutants.toml`
//! lists, and `^` for `|` where the operands have no bit in common: in constants as the source
//! shows (`disjoint`), elsewhere in any test.
//!
//! A mutant in a constant cannot be switched; one in a `const fn` can, but if it survives, the
//! compiler may have evaluated the original. With `--each`, these are compiled and tried one by
//! one.

mod disjoint;
mod exclusions;
mod fates;
mod list;
mod program;
mod reach;
mod roots;
mod switch;
mod syntax;
mod trial;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write as _;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::workspace::{Result, workspace_root};
use exclusions::Exclusions;
use fates::Report;
use list::Mutant;
use trial::{Fate, Tree};

/// Percentage of the viable mutants that must be killed.
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
    /// Try also the mutants that cannot be switched: one build each.
    #[arg(long)]
    each: bool,
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
    let mut tried = Vec::new();
    for mutant in mutants {
        let reason = match exclusions.reason(&mutant) {
            None if disjoint::covers(&mutant)? => Some(disjoint::REASON),
            reason => reason,
        };
        match reason {
            Some(reason) => {
                println!("excluded   {} ({reason})", mutant.name);
                tally.excluded += 1;
            }
            None => tried.push(mutant),
        }
    }
    let mutants = tried;
    let packages: BTreeSet<&str> = mutants.iter().map(|mutant| &*mutant.package).collect();
    let mut tree = Tree::make(workspace_root(), &packages)?;
    let log = workspace_root().join("target/mutants/outcomes.txt");
    let mut log = File::create(log)?;
    let mut tell = |fate: Fate, mutant: &Mutant, note: &str| {
        let line = format!("{:10} {} ({note})", fate.name(), mutant.name);
        println!("{line}");
        writeln!(log, "{line}")?;
        tally.add(fate, &mutant.name);
        Result::Ok(())
    };
    let mut unswitched = Vec::new();
    for package in packages {
        let of: Vec<&Mutant> = mutants.iter().filter(|it| it.package == package).collect();
        fates::of_package(&tree, package, &of, &mut |Report { mutant, fate, note }| match fate {
            Fate::Unswitched if options.each => {
                unswitched.push(mutant);
                Ok(())
            }
            _ => tell(fate, mutant, &note),
        })?;
    }
    if !unswitched.is_empty() {
        tree.measure(&unswitched.iter().map(|mutant| &*mutant.package).collect())?;
    }
    for mutant in unswitched {
        let start = Instant::now();
        let fate = tree.fate(mutant)?;
        tell(fate, mutant, &format!("{} s", start.elapsed().as_secs()))?;
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
    unswitched: usize,
    excluded: usize,
    missed: Vec<String>,
}

impl Tally {
    fn add(&mut self, fate: Fate, name: &str) {
        *self.fates.entry(fate.name()).or_default() += 1;
        match fate {
            Fate::Unviable => self.unviable += 1,
            Fate::Unswitched => self.unswitched += 1,
            Fate::Equivalent => self.excluded += 1,
            Fate::Missed => self.missed.push(name.into()),
            Fate::NotReached => self.missed.push(format!("{name} (not reached)")),
            Fate::KilledByOwn | Fate::KilledBySuite => self.killed += 1,
        }
    }

    /// Percentage of the viable mutants that were killed, rounded down.
    fn share(&self) -> Result<usize> {
        let viable = self.killed + self.missed.len();
        (self.killed * 100)
            .checked_div(viable)
            .ok_or_else(|| "no mutant compiles: take a larger sample, or another seed".into())
    }

    fn summary(&self) -> Result<String> {
        let Self { fates, killed, unviable, unswitched, excluded, missed } = self;
        let (missed, share) = (missed.len(), self.share()?);
        let suite = fates.get(Fate::KilledBySuite.name()).unwrap_or(&0);
        Ok(format!(
            "{killed} killed ({suite} only by the suite), {missed} missed, {unviable} unviable, \
             {unswitched} not switched, {excluded} excluded; {share} % of the viable ones killed, \
             at least {BOUND} % must be"
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
            "11 killed (1 only by the suite), 1 missed, 3 unviable, 0 not switched, 0 excluded; \
             91 % of the viable ones killed, at least 92 % must be"
        );
    }
}
