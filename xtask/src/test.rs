//! `cargo xtask test`: everything that this machine can check, in one run.
//!
//! Levels 1 (unit, property, golden and documentation tests, sanitizers), 2 (the conformance suite on the model in process), 3 (the
//! suite and rdma-core's programs on a real kernel in a VM) and 4 (the same under `verbless-model run`), with formatting, lints, documentation, the description of the PRM, the
//! instruction counts of the data path, 45 s of each fuzz target and a check for aarch64. A step that cannot run here is skipped
//! with its reason; where `CI=true` such a skip is a failure.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::debian::Debian;
use crate::{Result, workspace_root};

/// Options of `cargo xtask test`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Run only the steps whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// List the steps and stop.
    #[arg(long)]
    list: bool,
}

/// What a step has to say.
enum Outcome {
    /// It ran; so many checks passed and failed.
    Ran { passed: u64, failed: u64 },
    /// It cannot run here.
    Skipped(String),
}

impl From<crate::run::Outcome> for Outcome {
    fn from(outcome: crate::run::Outcome) -> Self {
        match outcome {
            crate::run::Outcome::Ran { passed, failed } => Self::Ran { passed, failed },
            crate::run::Outcome::Skipped(reason) => Self::Skipped(reason),
        }
    }
}

struct Step {
    name: &'static str,
    run: fn() -> Result<Outcome>,
}

const STEPS: &[Step] = &[
    Step { name: "format", run: format },
    Step { name: "dependencies", run: dependencies },
    Step { name: "prm check", run: || once(xtask(&["prm", "check"])) },
    Step { name: "prm verify", run: || once(xtask(&["prm", "verify"])) },
    Step {
        name: "clippy",
        run: || once(cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])),
    },
    Step { name: "tests", run: || counted(cargo(&["test", "--workspace", "--no-fail-fast"])) },
    Step { name: "hwtest on the model", run: || counted(xtask(&["hwtest", "--device", "model"])) },
    Step { name: "VM: hwtest", run: || in_a_vm(&[]) },
    Step { name: "VM: rdma-core", run: || in_a_vm(&["--rdma-core-suite"]) },
    Step { name: "run: rdma-core", run: run_rdma_core },
    Step { name: "run: pyverbs", run: || Ok(crate::pyverbs::check()?.into()) },
    Step { name: "run: clients", run: || Ok(crate::clients::clients()?.into()) },
    Step { name: "run: trials", run: run_trials },
    Step { name: "run: sandboxes", run: || Ok(crate::sandbox::check()?.into()) },
    Step { name: "run: hwtest", run: || counted(crate::run::conformance()?) },
    Step {
        name: "rustdoc",
        run: || {
            let mut doc = cargo(&["doc", "--workspace", "--no-deps"]);
            doc.env("RUSTDOCFLAGS", "-D warnings");
            once(doc)
        },
    },
    Step { name: "instruction counts", run: bench },
    Step { name: "address sanitizer", run: address_sanitizer },
    Step { name: "thread sanitizer", run: thread_sanitizer },
    Step { name: "fuzz smoke", run: fuzz_smoke },
    Step { name: "aarch64", run: aarch64 },
    Step { name: "aarch64 barriers", run: aarch64_barriers },
];

/// Runs the steps and prints `N passed, N failed, N skipped`; the result says whether all is well.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    let mut summary = Vec::new();
    for step in STEPS {
        if options.only.as_ref().is_some_and(|part| !step.name.contains(part.as_str())) {
            continue;
        }
        if options.list {
            println!("{}", step.name);
            continue;
        }
        println!("\n=== {}", step.name);
        let start = Instant::now();
        let verdict = match (step.run)() {
            Ok(Outcome::Ran { passed: good, failed: bad }) => {
                passed += good;
                failed += bad;
                if bad == 0 {
                    format!("ok, {good} passed")
                } else {
                    format!("FAILED, {bad} of {}", good + bad)
                }
            }
            Ok(Outcome::Skipped(reason)) if ci => {
                failed += 1;
                format!("FAILED: must not be skipped where CI=true: {reason}")
            }
            Ok(Outcome::Skipped(reason)) => {
                skipped += 1;
                format!("skipped: {reason}")
            }
            Err(error) => {
                failed += 1;
                format!("FAILED: {error}")
            }
        };
        println!("--- {}: {verdict} ({:.0} s)", step.name, start.elapsed().as_secs_f64());
        summary.push((step.name, verdict));
    }
    if options.list {
        return Ok(true);
    }
    println!("\n=== summary");
    for (name, verdict) in summary {
        println!("{name:24} {verdict}");
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    Ok(failed == 0)
}

/// Every declared dependency has a user.
fn dependencies() -> Result<Outcome> {
    let unused = crate::dependencies::unused(workspace_root())?;
    unused.iter().for_each(|line| println!("{line}"));
    Ok(Outcome::Ran { passed: u64::from(unused.is_empty()), failed: unused.len() as u64 })
}

fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(workspace_root());
    command
}

fn xtask(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap_or_else(|_| "xtask".into()));
    command.args(arguments).current_dir(workspace_root());
    command
}

/// Runs a command that is one check: it passes or it fails.
fn once(mut command: Command) -> Result<Outcome> {
    let good = command.status()?.success();
    Ok(Outcome::Ran { passed: good.into(), failed: (!good).into() })
}

/// Runs a command whose output counts its checks: `N passed; N failed` or `N passed, N failed`.
fn counted(mut command: Command) -> Result<Outcome> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let (mut passed, mut failed) = (0, 0);
    let output = child.stdout.take().ok_or("the child's output was not captured")?;
    for line in BufReader::new(output).lines() {
        let line = line?;
        if let Some((good, bad)) = counts(&line) {
            passed += good;
            failed += bad;
        }
        println!("{line}");
    }
    if !child.wait()?.success() && failed == 0 {
        failed = 1;
    }
    if passed + failed == 0 {
        return Err("it ran no test".into());
    }
    Ok(Outcome::Ran { passed, failed })
}

/// The counts in a test runner's closing line.
fn counts(line: &str) -> Option<(u64, u64)> {
    let line = line
        .strip_prefix("test result: ok. ")
        .or(line.strip_prefix("test result: FAILED. "))
        .unwrap_or(line);
    let mut words = line.split([' ', ',', ';']).filter(|word| !word.is_empty());
    let passed = words.next()?.parse().ok()?;
    (words.next()? == "passed").then_some(())?;
    let failed = words.next()?.parse().ok()?;
    (words.next()? == "failed").then_some((passed, failed))
}

/// The workspace, and those that are not in it.
fn format() -> Result<Outcome> {
    let (mut passed, mut failed) = (0, 0);
    for manifest in ["Cargo.toml", "fuzz/Cargo.toml", "xtask/clients/loopback/Cargo.toml"] {
        let all = ["fmt", "--all", "--check", "--manifest-path", manifest];
        let good = cargo(&all).status()?.success();
        if good { passed += 1 } else { failed += 1 }
    }
    Ok(Outcome::Ran { passed, failed })
}

fn run_rdma_core() -> Result<Outcome> {
    Ok(crate::run::rdma_core()?.into())
}

fn run_trials() -> Result<Outcome> {
    Ok(crate::run::trials()?.into())
}

fn bench() -> Result<Outcome> {
    if !installed("valgrind") {
        return Ok(Outcome::Skipped("valgrind is not installed".into()));
    }
    counted(xtask(&["bench"]))
}

/// On Linux 6.1, with two devices that are connected to each other.
fn in_a_vm(options: &[&str]) -> Result<Outcome> {
    const SERIES: &str = "6.1";
    if let Err(error) = crate::vm::fetch(SERIES) {
        return Ok(Outcome::Skipped(error.to_string()));
    }
    let guest = ["vm", "--kernel", SERIES, "--profile", "bluefield3", "--profile", "connectx6dx"];
    counted(xtask(&[&guest, options].concat()))
}

/// The tests of the crates that touch raw memory, under a sanitizer. The pinned toolchain carries the runtimes; the
/// flag is one of those that a stable compiler takes only when it is told to.
fn sanitized(name: &str) -> Result<Command> {
    let mut command = cargo(&["test", "--lib", "--tests", "--target", &host()?]);
    command
        .args(SANITIZED.iter().flat_map(|package| ["--package", package]))
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", format!("-Zsanitizer={name}"))
        .env("CARGO_TARGET_DIR", workspace_root().join("target").join(format!("sanitizer-{name}")));
    Ok(command)
}

fn address_sanitizer() -> Result<Outcome> {
    counted(sanitized("address")?)
}

/// Crates that the sanitizers look at.
const SANITIZED: &[&str] = &["verbless-prm", "verbless-queue", "verbless-model"];

/// The thread sanitizer needs a standard library that was built with it, or it takes std's own locks for races.
fn thread_sanitizer() -> Result<Outcome> {
    match std_sources() {
        Ok(sources) => {
            let mut command = sanitized("thread")?;
            command.arg("-Zbuild-std").env("__CARGO_TESTS_ONLY_SRC_ROOT", sources);
            counted(command)
        }
        Err(error) => Ok(Outcome::Skipped(format!("the standard library's sources: {error}"))),
    }
}

/// A while for each fuzz target that guards a boundary of the model.
fn fuzz_smoke() -> Result<Outcome> {
    match crate::fuzz::obstacle() {
        Some(why) => Ok(Outcome::Skipped(why)),
        None => {
            let (passed, failed) = crate::fuzz::smoke()?;
            Ok(Outcome::Ran { passed, failed })
        }
    }
}

/// BlueField's own cores are Arm: the whole workspace is checked for them.
fn aarch64() -> Result<Outcome> {
    let sources = match std_sources() {
        Ok(sources) => sources,
        Err(error) => {
            return Ok(Outcome::Skipped(format!("the standard library's sources: {error}")));
        }
    };
    let mut command = cargo(&["check", "--workspace", "--all-targets", "-Zbuild-std"]);
    command
        .args(["--target", "aarch64-unknown-linux-gnu"])
        .env("__CARGO_TESTS_ONLY_SRC_ROOT", sources)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_DIR", workspace_root().join("target/aarch64"));
    once(command)
}

/// And the barriers of the data path are looked for in the code that is made for them.
fn aarch64_barriers() -> Result<Outcome> {
    match std_sources() {
        Ok(sources) => {
            crate::bench::aarch64::check(&sources)?;
            Ok(Outcome::Ran { passed: 3, failed: 0 })
        }
        Err(error) => Ok(Outcome::Skipped(format!("the standard library's sources: {error}"))),
    }
}

/// The sources of the standard library of this compiler: the toolchain's own, or Debian's package of the same version.
fn std_sources() -> Result<PathBuf> {
    let sysroot = output_of(Command::new("rustc").args(["--print", "sysroot"]))?;
    let own = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library");
    if own.join("Cargo.lock").exists() {
        return Ok(own);
    }
    let version = output_of(Command::new("rustc").arg("--version"))?;
    let version = version.split_whitespace().nth(1).ok_or("rustc does not say its version")?;
    let unpacked = workspace_root().join("target/rust-src");
    let library = unpacked.join(format!("usr/src/rustc-{version}/library"));
    if !library.join("Cargo.lock").exists() {
        println!("fetching the sources of the standard library {version} from Debian");
        Debian::new(&workspace_root().join("target/debian"), &["trixie-backports"])?
            .unpack_one("rust-src", version, &unpacked)?;
    }
    Ok(library)
}

/// The target triple of this machine.
pub(crate) fn host() -> Result<String> {
    output_of(Command::new("rustc").arg("-vV"))?
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .map(str::to_string)
        .ok_or_else(|| "rustc does not say its host".into())
}

fn output_of(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8(command.current_dir(workspace_root()).output()?.stdout)?)
}

fn installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

#[cfg(test)]
mod tests {
    use super::counts;

    #[test]
    fn closing_lines_of_test_runners_are_counted() {
        assert_eq!(
            counts("test result: ok. 7 passed; 0 failed; 0 ignored; 0 measured"),
            Some((7, 0))
        );
        assert_eq!(counts("test result: FAILED. 3 passed; 2 failed; 0 ignored"), Some((3, 2)));
        assert_eq!(counts("61 passed, 0 failed, 2 skipped"), Some((61, 0)));
        assert_eq!(counts("running 7 tests"), None);
        assert_eq!(counts("7 passed the salt"), None);
    }
}
