//! `cargo xtask mutants`: whether the tests of a crate notice that its sources are wrong.
//!
//! cargo-mutants changes one function or operator at a time and runs the tests of the crate that it
//! is in. A mutant that makes a test fail or hang is killed, one that no test notices is missed,
//! one that does not compile is unviable. There are thousands, and each is a build: a sample, which
//! its seed repeats, says as much in an hour.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::{Result, workspace_root};

/// How to get what makes the mutants.
const INSTALL: &str = "cargo install cargo-mutants --locked";
/// What is not mutated: generated code, tasks, and what is a test itself.
const EXCLUDED: [&str; 3] = ["crates/prm/src/generated/**", "xtask/**", "tests/**"];
/// Hundredths of the viable mutants that must be killed.
const BOUND: usize = 92;

/// Options of `cargo xtask mutants`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Try so many mutants, chosen at random, instead of all.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    sample: Option<u32>,
    /// What the choice begins with [default: the time]; it is printed, and the same one chooses the
    /// same mutants of the same sources.
    #[arg(long, requires = "sample")]
    seed: Option<u64>,
    /// Mutate this package; may be repeated [default: every crate].
    #[arg(long, value_name = "P")]
    package: Vec<String>,
}

/// Tries mutants; the result says whether enough were killed.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let version = cargo_mutants(&[]).arg("--version").output()?;
    if !version.status.success() {
        return Err(
            format!("cargo-mutants is not installed, or does not start; run `{INSTALL}`").into()
        );
    }
    let mut command = cargo_mutants(&options.package);
    if let Some(count) = options.sample {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs());
        let seed = options.seed.unwrap_or_else(now);
        let all = count_all(&options.package)?;
        let (shard, shards) = shard(all, count as usize, seed);
        println!(
            "about {} of {all} mutants, every {shards}th; the same again: --sample {count} --seed \
             {seed}",
            all / shards
        );
        command.args(["--sharding", "round-robin", "--shard", &format!("{shard}/{shards}")]);
    }
    let output = workspace_root().join("target/mutants");
    fs::create_dir_all(&output)?;
    let status = command.args(["--no-shuffle", "--output"]).arg(&output).status()?;
    // 2: some are missed; 3: some made a test hang.
    if !matches!(status.code(), Some(0 | 2 | 3)) {
        return Err(format!(
            "cargo-mutants ended with {status}: the tests fail without a mutant, or there is none; \
             its log is in {}",
            output.join("mutants.out").display()
        )
        .into());
    }
    let verdict = Verdict::read(&output.join("mutants.out"))?;
    verdict.missed.iter().for_each(|mutant| println!("missed: {mutant}"));
    println!("{}", verdict.summary()?);
    verdict.is_enough()
}

/// The beginning of a command that mutates packages; all, if none is named.
fn cargo_mutants(packages: &[String]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["mutants", "--colors", "never"]).current_dir(workspace_root());
    match packages {
        [] => command.arg("--workspace"),
        some => command.args(some.iter().flat_map(|package| ["--package", package])),
    };
    command.args(EXCLUDED.iter().flat_map(|files| ["--exclude", files]));
    command
}

/// How many mutants packages have.
fn count_all(packages: &[String]) -> Result<usize> {
    let output = cargo_mutants(packages).arg("--list").output()?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo-mutants does not list the mutants: {}", errors.trim()).into());
    }
    match String::from_utf8(output.stdout)?.lines().count() {
        0 => Err("there are no mutants of these packages: name one that has code".into()),
        count => Ok(count),
    }
}

/// Which of how many shards is a sample of about `count` mutants: they are dealt out in turns, so a
/// shard has some of every file. (A regular expression of names would choose any sample, but
/// cargo-mutants 27 tries all mutants of some kinds whatever it says.)
fn shard(all: usize, count: usize, seed: u64) -> (usize, usize) {
    let shards = (all / count).max(1);
    ((seed % shards as u64) as usize, shards)
}

/// What became of the mutants.
struct Verdict {
    killed: usize,
    unviable: usize,
    missed: Vec<String>,
}

impl Verdict {
    /// Reads the lists that cargo-mutants leaves.
    fn read(directory: &Path) -> Result<Self> {
        let lines = |name: &str| -> Result<Vec<String>> {
            let path = directory.join(name);
            let text = fs::read_to_string(&path)
                .map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
            Ok(text.lines().map(String::from).collect())
        };
        Ok(Self {
            killed: lines("caught.txt")?.len() + lines("timeout.txt")?.len(),
            unviable: lines("unviable.txt")?.len(),
            missed: lines("missed.txt")?,
        })
    }

    /// Hundredths of the viable ones that were killed, cut off.
    fn share(&self) -> Result<usize> {
        let viable = self.killed + self.missed.len();
        (self.killed * 100)
            .checked_div(viable)
            .ok_or_else(|| "no mutant compiles: take a larger sample, or another seed".into())
    }

    fn summary(&self) -> Result<String> {
        let Self { killed, unviable, missed } = self;
        let (missed, share) = (missed.len(), self.share()?);
        Ok(format!(
            "{killed} killed, {missed} missed, {unviable} unviable; {share} % of the viable ones \
             killed, at least {BOUND} % must be"
        ))
    }

    fn is_enough(&self) -> Result<bool> {
        Ok(self.share()? >= BOUND)
    }
}

#[cfg(test)]
mod tests {
    use super::{Verdict, shard};

    fn verdict(killed: usize, missed: usize) -> Verdict {
        Verdict { killed, unviable: 3, missed: vec!["a.rs:1:1: replace f with ()".into(); missed] }
    }

    #[test]
    fn a_sample_is_a_shard_of_about_its_size_that_the_seed_chooses() {
        assert_eq!(shard(12_000, 60, 7), (7, 200));
        assert_eq!(shard(12_000, 60, 207), (7, 200));
        assert_eq!(shard(12_000, 60, 8), (8, 200));
        assert_eq!(shard(59, 60, 7), (0, 1), "all of them");
    }

    #[test]
    fn ninety_two_of_a_hundred_viable_mutants_are_enough_and_unviable_ones_do_not_count() {
        assert!(verdict(92, 8).is_enough().unwrap());
        assert!(!verdict(91, 8).is_enough().unwrap());
        assert!(verdict(0, 0).is_enough().is_err());
        assert_eq!(
            verdict(11, 1).summary().unwrap(),
            "11 killed, 1 missed, 3 unviable; 91 % of the viable ones killed, at least 92 % must be"
        );
    }
}
