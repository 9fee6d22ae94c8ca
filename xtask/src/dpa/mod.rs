//! `cargo xtask dpa`: programs for a DPA's cores.
//!
//! `dpa build` compiles a program for a DPA. `dpa run` runs a program on the core in software,
//! optionally under a debugger. `dpa test` checks that core (`crates/riscv`): its instruction
//! tests, random programs against QEMU's user mode, programs that rustc compiles for riscv64imac,
//! the order of loads in the machine code of the device API's poll; and a program that uses the
//! device API (`crates/flexio-dev`) on the model's DPA. `dpa examples` builds and runs the examples
//! of `crates/flexio`, each with its program.

mod build;
pub(crate) mod examples;
mod poll_order;

use std::path::PathBuf;
use std::process::Command;

use build::TARGET;

use crate::commands::{cargo, count};
use crate::outcome::Outcome;
use crate::workspace::{FEATURES, Result, workspace_root};

/// Tasks for the DPA.
#[derive(clap::Subcommand, Debug)]
pub(crate) enum Task {
    /// Tests the RISC-V core: each instruction, random programs against QEMU, compiled programs.
    Test,
    /// Compiles the crate of a program for a DPA, checks the addresses of its code and data, and
    /// puts it into target/dpa.
    Build {
        /// The crate's directory.
        #[arg(value_name = "CRATE")]
        directory: PathBuf,
    },
    /// Builds the examples of crates/flexio with their programs, and runs each with a model of its
    /// own and as a process under `verbless-model run`.
    Examples,
    /// Runs an ELF file for riscv64imac on the core until it ends with ECALL; succeeds if a0 is 0
    /// then.
    Run {
        /// The file, linked statically with an entry point.
        file: PathBuf,
        /// Wait for a debugger on this TCP port of this machine first; 0: any, which is printed.
        /// `gdb-multiarch FILE -ex 'target remote :PORT'`.
        #[arg(long, value_name = "PORT")]
        gdb: Option<u16>,
    },
}

const PACKAGE: &str = "verbless-riscv";
const PROGRAM: &str = "crates/riscv/tests/program";
/// Programs of 2000 snippets in each class that are compared with QEMU.
const ROUNDS: &str = "8";

/// Runs the task; returns whether it succeeded.
pub(crate) fn run(task: &Task) -> Result<bool> {
    match task {
        Task::Build { directory } => build::build(directory).map(|_| true),
        Task::Run { file, gdb } => {
            let file = std::path::absolute(file)?;
            let mut debug = cargo(&["run", "--quiet", "--release", "--package", PACKAGE]);
            debug.args(["--features", "gdb", "--example", "debug", "--"]).arg(file);
            if let Some(port) = gdb {
                debug.args(["--gdb", &port.to_string()]);
            }
            Ok(debug.status()?.success())
        }
        Task::Test => closed(test()?),
        Task::Examples => closed(examples::run()?),
    }
}

/// Prints the closing line; returns whether all passed.
fn closed(outcome: Outcome) -> Result<bool> {
    let (line, failed) = closing(outcome, std::env::var("CI").is_ok_and(|ci| ci == "true"))?;
    println!("{line}");
    Ok(failed == 0)
}

/// The closing line, and the number of failures: in CI, skips count too.
fn closing(outcome: Outcome, ci: bool) -> Result<(String, u64)> {
    let Outcome::Ran { passed, failed, skips, more } = outcome else {
        return Err("nothing ran".into());
    };
    let failed = failed + if ci { skips.len() as u64 } else { 0 };
    let skipped = more + if ci { 0 } else { skips.len() as u64 };
    Ok((format!("{passed} passed, {failed} failed, {skipped} skipped"), failed))
}

/// The program that exercises the device API, for the cases `dpa_programs` and `flexio` of the
/// suite.
const API_PROGRAM: &str = "crates/flexio-dev/tests/program";

/// Why no program can be compiled, if none can.
pub(crate) fn cannot_compile() -> Option<String> {
    build::Core::find().err().map(|error| error.to_string())
}

/// Builds it; returns its path.
pub(crate) fn api_program() -> Result<PathBuf> {
    let programs = build::build(&workspace_root().join(API_PROGRAM))?;
    programs.into_iter().next().ok_or_else(|| "the crate has no program".into())
}

/// A host with that program in its binary.
const EMBEDDED: &str = "crates/flexio/tests/embedded";

/// The commands that check programs for the DPA on the model: the cases `dpa_programs` and `flexio`
/// in process and under `verbless-model run`, on an InfiniBand port; the cases `dpa_frames` on an
/// Ethernet port, with all of `flexio` in process and `flexio_cross` under `run`; the host with an
/// embedded program; and the documentation examples of the host library.
fn programs() -> Result<Vec<Command>> {
    let (program, suite) = (api_program()?, crate::run::program("hwtest")?);
    let chosen = |command: &mut Command| {
        command
            .args(["--filter", "dpa_programs", "--filter", "flexio", "--dpa-program"])
            .arg(&program);
    };
    let mut here = Command::new(&suite);
    here.args(["--device", "model", "--profile", "bluefield3", "--expect", "dpa infiniband"]);
    chosen(&mut here);
    let mut under = Command::new(crate::run::model()?);
    under.args(["run", "--profile", "bluefield3", "--"]).arg(&suite);
    under.args(["--expect", "dpa run"]);
    chosen(&mut under);
    let on_ethernet = |command: &mut Command, flexio: &str, environment: &str| {
        let filters = ["--filter", "dpa_frames", "--filter", flexio, "--expect", environment];
        command.args(filters).arg("--dpa-program").arg(&program);
    };
    let mut ethernet_here = Command::new(&suite);
    let device = ["--device", "model", "--profile", "bluefield3", "--link", "ethernet"];
    on_ethernet(ethernet_here.args(device), "flexio", "dpa ethernet");
    let mut ethernet_under = Command::new(crate::run::model()?);
    let devices = ["run", "--profile", "bluefield3", "--devices", "2", "--link", "ethernet", "--"];
    on_ethernet(ethernet_under.args(devices).arg(&suite), "flexio_cross", "dpa run ethernet");
    let mut embedded = cargo(&["run", "--locked"]);
    embedded
        .current_dir(workspace_root().join(EMBEDDED))
        .env("CARGO_TARGET_DIR", workspace_root().join("target"));
    // Of the workspace, as `tests` builds it; of its examples, only those of the host library.
    let mut documented = cargo(&["test", "--workspace", "--doc", "--features", FEATURES]);
    documented.arg("crates/flexio/");
    // Examples that need the program run, and do not only compile.
    documented
        .env("VERBLESS_DPA_PROGRAM", &program)
        .env("RUSTDOCFLAGS", "--cfg verbless_dpa_program");
    Ok(vec![here, under, ethernet_here, ethernet_under, embedded, documented])
}

/// All tests of the core and its programs. The step `dpa` of `cargo xtask test`.
pub(crate) fn test() -> Result<Outcome> {
    // Built as the workspace's tests build it, so that nothing is built twice.
    let mut tests = cargo(&["test", "--package", PACKAGE, "--features", "gdb", "--no-fail-fast"]);
    tests.env("VERBLESS_DIFFERENTIAL_ROUNDS", ROUNDS);
    let own = count(tests)?;
    let mut all = own.outcome();
    if let Outcome::Ran { passed, failed, skips, more } = &mut all {
        match build::Core::find() {
            Ok(core) => {
                let mut example = cargo(&["run", "--package", PACKAGE, "--example", "compiled"]);
                let compiled = count({
                    example.arg("--").arg(compile(&core)?);
                    example
                })?;
                *passed += compiled.passed;
                *failed += compiled.failed;
                match poll_order::check() {
                    Ok(()) => *passed += 1,
                    Err(why) => {
                        println!("FAILED  {why}");
                        *failed += 1;
                    }
                }
                for command in programs()? {
                    let shown = count(command)?;
                    *passed += shown.passed;
                    // A runner that counts nothing has not found its tests.
                    *failed += shown.failed + u64::from(shown.passed + shown.failed == 0);
                    *more += shown.skipped.saturating_sub(shown.skips.len() as u64);
                    skips.extend(shown.skips);
                }
                if let Outcome::Ran { passed: good, failed: bad, skips: not, .. } = examples::run()?
                {
                    *passed += good;
                    *failed += bad;
                    skips.extend(not);
                }
            }
            Err(error) => skips
                .push(crate::outcome::Skip { name: "compiled".into(), reason: error.to_string() }),
        }
    }
    Ok(all)
}

/// Compiles the program for the core; returns its path.
fn compile(core: &build::Core) -> Result<PathBuf> {
    let directory = workspace_root().join("target/riscv64imac");
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .args(["build", "--release", "--locked", "--target", TARGET])
        .current_dir(workspace_root().join(PROGRAM))
        .env("CARGO_TARGET_DIR", &directory);
    core.add_to(&mut command);
    if !command.status()?.success() {
        return Err(format!("{PROGRAM} does not compile for {TARGET}").into());
    }
    Ok(directory.join(TARGET).join("release/program"))
}
