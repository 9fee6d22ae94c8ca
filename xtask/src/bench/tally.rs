//! Common parts of the checks of benchmarks: building a program, reading its numbers, and counting.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::workspace::{Result, workspace_root};

/// Checks that passed, failed and could not run.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) passed: u32,
    pub(super) failed: u32,
    pub(super) skipped: u32,
}

impl Tally {
    pub(super) fn count(&mut self, good: bool) {
        if good { self.passed += 1 } else { self.failed += 1 }
    }

    /// Prints a check and counts it.
    pub(super) fn report(&mut self, name: &str, outcome: std::result::Result<(), String>) {
        match &outcome {
            Ok(()) => println!("ok      {name}"),
            Err(why) => println!("FAILED  {name}: {why}"),
        }
        self.count(outcome.is_ok());
    }

    /// Prints a check that cannot run here, as [`Skip`](crate::outcome::Skip) reads it: a name ends
    /// where the reason begins.
    pub(super) fn skip(&mut self, name: &str, why: &str) {
        println!("skipped: {}: {why}", name.replace(": ", ", "));
        self.skipped += 1;
    }
}

/// A line of cargo's JSON output, as far as it matters here.
#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
    target: Option<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

impl Target {
    fn is_bench(&self, name: &str) -> bool {
        self.name == name && self.kind.iter().any(|kind| kind == "bench")
    }
}

/// Builds the benchmark `name` of a package; returns its path.
pub(super) fn build(package: &str, name: &str) -> Result<PathBuf> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--profile", "bench", "--package", package, "--bench", name]);
    built(cargo, name)
}

/// Builds with these arguments of cargo; returns the path of the benchmark `name`.
pub(super) fn built(mut cargo: Command, name: &str) -> Result<PathBuf> {
    let output = cargo
        .arg("--message-format=json-render-diagnostics")
        // Incremental code differs, and has a few instructions more.
        .env("CARGO_INCREMENTAL", "0")
        .current_dir(workspace_root())
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err("the benchmark does not build".into());
    }
    String::from_utf8(output.stdout)?
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok())
        .filter(|message| message.target.as_ref().is_some_and(|target| target.is_bench(name)))
        .find_map(|message| message.executable)
        .ok_or_else(|| "cargo built no benchmark".into())
}

/// The register that occurs most often: a function that works on a queue has its address there.
pub(super) fn commonest<'a>(registers: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut counts = BTreeMap::<_, usize>::new();
    registers.for_each(|register| *counts.entry(register).or_default() += 1);
    counts.into_iter().max_by_key(|&(_, count)| count).map(|(register, _)| register)
}

/// The number that follows `label`.
pub(super) fn number_after(text: &str, label: &str) -> Option<f64> {
    text.split_once(label)?.1.split_whitespace().next()?.parse().ok()
}
