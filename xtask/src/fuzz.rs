//! `cargo xtask fuzz`: the fuzz targets of `tests/fuzz/`, each for a number of seconds, under the
//! address sanitizer.
//!
//! cargo builds them below `target/fuzz`, with the flags that libFuzzer, a C++ library that runs
//! them, needs. Their inputs stay in `target/fuzz/corpus` for the next run; the first run begins
//! with `tests/fuzz/seeds`. A panic, a memory error, a leak, a hang or too much memory is a
//! finding: its input is kept, with the command that reproduces it.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::workspace::{Result, workspace_root};

/// Compiler flags of fuzzed code. Counters and a table of their addresses show libFuzzer the edges
/// taken; it also sees the operands of comparisons. The address sanitizer sees the rest.
const FLAGS: &[&str] = &[
    "--cfg=fuzzing",
    "-Zsanitizer=address",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-sanitizer-coverage-stack-depth",
    // Two branches that fold into one are one edge.
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
];
/// Seconds that one input may take: longer is a hang, even on a busy machine.
const TIMEOUT: u32 = 25;
/// Bytes of the longest input: operations are short, files are not.
const MAX_INPUT_BYTES: u32 = 2048;
const MAX_TEXT_BYTES: u32 = 8192;
/// Megabytes of memory.
const MEMORY: u32 = 3072;

/// Seconds of each target in `cargo xtask test`.
const SMOKE: u32 = 10;

/// The optimisation of the targets, and their directory below `target/fuzz`.
#[derive(Clone, Copy)]
enum Build {
    /// For a long run.
    Campaign,
    /// For `cargo xtask test`, which fuzzes each for 10 s: optimisation would cost more than it
    /// saves.
    Smoke,
}

/// A fuzz target.
struct Target {
    name: &'static str,
    what: &'static str,
    /// Bytes of the longest input.
    longest: u32,
    /// Whether `cargo xtask test` runs it.
    smoke: bool,
}

const TARGETS: &[Target] = &[
    Target {
        name: "commands",
        what: "the model's command interface, against a hostile guest",
        longest: MAX_INPUT_BYTES,
        smoke: true,
    },
    Target {
        name: "requests",
        what: "the model's data path, against hostile queues and packets of hostile peers",
        longest: MAX_INPUT_BYTES,
        smoke: true,
    },
    Target {
        name: "ioctls",
        what: "the in-process kernel, against a hostile client",
        longest: MAX_INPUT_BYTES,
        smoke: true,
    },
    Target {
        name: "notifications",
        what: "the system calls that run answers, while the caller's memory changes",
        longest: MAX_INPUT_BYTES,
        smoke: true,
    },
    Target {
        name: "packets",
        what: "the packet parser, against frames of a link and datagrams of a socket",
        longest: MAX_INPUT_BYTES,
        smoke: true,
    },
    Target {
        name: "descriptors",
        what: "the import of export descriptors, against a hostile peer",
        longest: MAX_INPUT_BYTES,
        smoke: true,
    },
    Target {
        name: "programs",
        what: "the DPA's loader and core, against arbitrary ELF files",
        longest: MAX_INPUT_BYTES,
        smoke: true,
    },
    Target {
        name: "dpa",
        what: "the model's DPA, against hostile programs and hosts",
        longest: MAX_INPUT_BYTES,
        smoke: true,
    },
    Target {
        name: "completions",
        what: "the driver's completion queues, against a device that writes invalid CQEs",
        longest: MAX_INPUT_BYTES,
        smoke: false,
    },
    Target {
        name: "texts",
        what: "the parsers of device profiles, fault plans and the input of prm decode",
        longest: MAX_TEXT_BYTES,
        smoke: false,
    },
];

/// Options of `cargo xtask fuzz`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// The target to run; without it, all of them in turn.
    target: Option<String>,
    /// Seconds for each.
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Only run this input, once: to reproduce a finding.
    #[arg(long, requires = "target")]
    input: Option<PathBuf>,
    /// List the targets and stop.
    #[arg(long)]
    list: bool,
}

/// Runs the chosen targets; returns whether there was no finding.
pub(crate) fn run(options: &Options) -> Result<bool> {
    if options.list {
        for Target { name, what, .. } in TARGETS {
            println!("{name:12} {what}");
        }
        return Ok(true);
    }
    let chosen = |target: &&Target| options.target.as_ref().is_none_or(|name| name == target.name);
    let targets: Vec<&Target> = TARGETS.iter().filter(chosen).collect();
    if targets.is_empty() {
        let known: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        return Err(format!(
            "there is no target of that name; the targets are {}",
            known.join(", ")
        )
        .into());
    }
    let programs = build(&targets, Build::Campaign)?;
    if let (Some(input), Some(program)) = (&options.input, programs.first()) {
        return Ok(Command::new(program).arg(input).status()?.success());
    }
    let (mut passed, mut failed) = (0, 0);
    for (target, program) in targets.iter().zip(&programs) {
        let good = fuzz(target, program, options.seconds)?;
        if good { passed += 1 } else { failed += 1 }
    }
    println!("{passed} passed, {failed} failed");
    Ok(failed == 0)
}

/// Runs each target that guards a boundary of the model for a short time, one per processor at
/// once; returns the numbers of targets without and with a finding.
pub(crate) fn smoke() -> Result<(u64, u64)> {
    let targets: Vec<&Target> = TARGETS.iter().filter(|target| target.smoke).collect();
    let programs = build(&targets, Build::Smoke)?;
    let left = Mutex::new(targets.iter().zip(&programs).collect::<VecDeque<_>>());
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let worker = || {
        let (mut passed, mut failed) = (0, 0);
        while let Some((target, program)) = next() {
            match fuzz(target, program, SMOKE) {
                Ok(true) => passed += 1,
                Ok(false) => failed += 1,
                Err(error) => {
                    println!("{}: {error}", target.name);
                    failed += 1;
                }
            }
        }
        (passed, failed)
    };
    let workers = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    Ok(std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().fold((0, 0), |(passed, failed), worker| {
            // A worker that panicked reports nothing.
            let (good, bad) = worker.join().unwrap_or((0, 1));
            (passed + good, failed + bad)
        })
    }))
}

/// The reason why fuzzing cannot run here, if there is one.
pub(crate) fn obstacle() -> Option<String> {
    let works = |program: &str| {
        let mut command = Command::new(program);
        let quiet = command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        quiet.status().is_ok_and(|status| status.success())
    };
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    (!works(&compiler))
        .then(|| format!("libFuzzer is C++, and {compiler} is not installed: install g++ or clang"))
}

fn directory(part: &str) -> PathBuf {
    workspace_root().join("target/fuzz").join(part)
}

/// Builds all targets at once, so that shared crates compile once. Returns the programs of
/// `targets`, in the same order.
fn build(targets: &[&Target], how: Build) -> Result<Vec<PathBuf>> {
    if let Some(why) = obstacle() {
        return Err(why.into());
    }
    let (level, output) = match how {
        Build::Campaign => ("3", directory("build")),
        Build::Smoke => ("1", directory("smoke")),
    };
    let host = crate::commands::host()?;
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    // With a target named, the flags do not reach build scripts. A stable compiler accepts the
    // sanitizer's flag only with RUSTC_BOOTSTRAP.
    let built = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--release", "--locked", "--manifest-path", "tests/fuzz/Cargo.toml"])
        .args(["--target", &host, "--target-dir"])
        .arg(&output)
        .env("RUSTFLAGS", format!("{} {flags}", FLAGS.join(" ")).trim())
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", level)
        .current_dir(workspace_root())
        .status()?;
    if !built.success() {
        return Err("the fuzz targets do not build".into());
    }
    Ok(targets.iter().map(|target| output.join(&host).join("release").join(target.name)).collect())
}

/// Builds all targets; returns their number.
pub(crate) fn build_all() -> Result<u64> {
    let programs = build(&TARGETS.iter().collect::<Vec<_>>(), Build::Smoke)?;
    match programs.iter().find(|program| !program.is_file()) {
        Some(missing) => Err(format!("cargo has not built {}", missing.display()).into()),
        None => Ok(programs.len() as u64),
    }
}

/// libFuzzer's statistics of a run.
#[derive(Default)]
struct Progress {
    runs: String,
    coverage: u64,
    inputs: String,
    finding: Option<PathBuf>,
}

impl Progress {
    /// Reads a line like `#4096 pulse cov: 6132 ft: 18660 corp: 1130/396Kb lim: 2048 exec/s: 141
    /// rss: 538Mb`.
    fn read(&mut self, line: &str) {
        let behind = |label| line.split_once(label).and_then(|(_, rest)| rest.split(' ').next());
        if let Some(coverage) = behind(" cov: ").and_then(|number| number.parse().ok()) {
            self.coverage = coverage;
            self.inputs = behind(" corp: ").unwrap_or_default().into();
            let runs = line.trim_start_matches('#').split_whitespace().next();
            self.runs = runs.unwrap_or_default().into();
        }
        if let Some(path) = behind("Test unit written to ") {
            self.finding = Some(path.into());
        }
    }
}

/// Runs a target for this time; returns whether it found nothing.
fn fuzz(target: &Target, program: &Path, seconds: u32) -> Result<bool> {
    let (corpus, artifacts) = (directory("corpus"), directory("artifacts"));
    let (corpus, artifacts) = (corpus.join(target.name), artifacts.join(target.name));
    std::fs::create_dir_all(&corpus)?;
    std::fs::create_dir_all(&artifacts)?;
    println!("{}: {}, for {seconds} s", target.name, target.what);
    let seeds = workspace_root().join("tests/fuzz/seeds").join(target.name);
    let mut child = Command::new(program)
        .arg(&corpus)
        .args(Some(seeds).filter(|it| it.is_dir()))
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-timeout={TIMEOUT}"))
        .arg(format!("-rss_limit_mb={MEMORY}"))
        .arg(format!("-max_len={}", target.longest))
        .arg("-len_control=0")
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .current_dir(workspace_root())
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut progress = Progress::default();
    let mut said = Vec::new();
    let output = child.stderr.take().ok_or("the target's output was not captured")?;
    for line in BufReader::new(output).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        progress.read(&line);
        // Progress ends as one line; errors are shown in full.
        if !line.starts_with('#') || line.contains(" in ") {
            said.push(line);
        }
    }
    let good = child.wait()?.success() && progress.coverage > 0;
    let Progress { runs, coverage, inputs, finding } = progress;
    if good {
        println!("{}: {runs} runs, {coverage} edges, {inputs} inputs, nothing found", target.name);
        return Ok(true);
    }
    println!("{}:\n{}", target.name, said.join("\n"));
    match finding {
        Some(input) => println!(
            "{}: a finding after {runs} runs; again with: cargo xtask fuzz {} --input {}",
            target.name,
            target.name,
            input.display()
        ),
        None => println!("{}: it did not run to its end, or counted no edges", target.name),
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::Progress;

    #[test]
    fn progress_line_and_finding_are_parsed() {
        let mut progress = Progress::default();
        for line in [
            "INFO: Loaded 1 modules   (93017 inline 8-bit counters): 93017 [0x55d0, 0x55e6),",
            "#2\tINITED cov: 3444 ft: 3444 corp: 1/1b exec/s: 0 rss: 56Mb",
            "#21429\tDONE   cov: 6132 ft: 18660 corp: 1130/396Kb lim: 2048 exec/s: 141 rss: 538Mb",
            "artifact_prefix='a/'; Test unit written to a/crash-27e770",
        ] {
            progress.read(line);
        }
        assert_eq!((&*progress.runs, progress.coverage), ("21429", 6132));
        assert_eq!(progress.inputs, "1130/396Kb");
        assert_eq!(progress.finding.as_deref(), Some("a/crash-27e770".as_ref()));
    }
}
