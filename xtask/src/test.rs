//! `cargo xtask test`: everything that this machine can check, in one run.
//!
//! Levels 1 (unit, property, golden and documentation tests, sanitizers), 2 (the conformance suite
//! on the model in process), 3 (the suite and rdma-core's programs on a real kernel in a VM) and 4
//! (the same under `verbless-model run`), with formatting, lints, documentation, the description of
//! the PRM, the instruction counts of the data path, 10 s of each fuzz target and our programs for
//! aarch64. A step that cannot run here is skipped with its reason, and so is a check of a step;
//! with `CI=true` such a skip is a failure, unless `xtask/expected-skips.toml` lists it.
//!
//! Several steps run beside each other ([`lanes`]), each as a process ([`crate::steps`]); a single
//! one runs in this process.

mod sanitizers;

use std::process::{Command, Stdio};
use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::commands::{Counts, cargo, count, installed, std_sources};
use crate::lanes::{self, Resource};
use crate::outcome::{ExpectedSkips, Outcome, Skip};
use crate::steps::Report;
use crate::vm::arch::{AARCH64, X86_64};
use crate::vm::program::has_std;
use crate::vm::series::{KernelFlavour, Series};
use crate::workspace::{Result, workspace_root};

/// Options of `cargo xtask test`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Run only the steps whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// Run only the steps that find most mistakes soonest: format, lints, tables, unit tests, and
    /// the suite on the model in process.
    #[arg(long, conflicts_with = "only")]
    fast: bool,
    /// List the steps and stop.
    #[arg(long)]
    list: bool,
    /// Run the step of exactly this name, as one process of a run does.
    #[arg(long, hide = true, conflicts_with_all = ["only", "fast", "list"])]
    step: Option<String>,
}

struct Step {
    name: &'static str,
    resource: Resource,
    run: fn() -> Result<Outcome>,
}

/// Features of `verbless` that programs may use; its documentation tests use the model.
pub(crate) const FEATURES: &str = "verbless/doca,verbless/dpa,verbless/model,verbless/serde,\
                                   verbless/toml,verbless/tokio,\
                                   verbless/tracing,verbless-riscv/gdb,\
                                   verbless-prm-tool/book";

/// The features of `verbless-prm` that compile a family each.
const PRM_FEATURES: [&str; 8] =
    ["structures", "kernel", "packets", "qos", "queues", "registers", "steering", "virtualization"];

/// Crates that a program depends on without the model: each must build with only its own features,
/// which a build of the workspace does not show.
const EMBEDDED: [&str; 5] =
    ["verbless-command", "verbless-queue", "verbless-doca", "verbless-flexio", "verbless"];

/// Crates of which a program compiles less than the workspace does, unless it requests features.
const REDUCED: [&str; 2] = ["verbless-command", "verbless-model"];

/// The steps in the order of their start, as far as their resources allow (see [`lanes`]): steps
/// that find mistakes soonest come first, and long steps before short ones.
const STEPS: &[Step] = &[
    Step { name: "format", resource: Resource::Debug, run: format },
    Step { name: "dependencies", resource: Resource::Debug, run: dependencies },
    Step { name: "prm check", resource: Resource::Debug, run: || once(xtask(&["prm", "check"])) },
    Step { name: "prm verify", resource: Resource::Debug, run: prm_verify },
    Step { name: "clippy", resource: Resource::Debug, run: clippy },
    Step { name: "unit tests", resource: Resource::Debug, run: unit_tests },
    Step { name: SUITE_IN_PROCESS, resource: Resource::Debug, run: suite_in_process },
    Step { name: "tests", resource: Resource::Debug, run: tests },
    Step { name: "features", resource: Resource::Debug, run: features },
    Step { name: "engine in packets", resource: Resource::Debug, run: engine_in_packets },
    Step { name: "rustdoc", resource: Resource::Debug, run: rustdoc },
    Step { name: "run: rdma-core", resource: Resource::Release, run: crate::run::rdma_core },
    Step { name: "run: pyverbs", resource: Resource::Release, run: crate::pyverbs::check },
    Step { name: "run: clients", resource: Resource::Release, run: crate::clients::clients },
    Step { name: "run: peers", resource: Resource::Release, run: crate::peers::under_run },
    Step { name: "run: chaos", resource: Resource::Release, run: crate::run::chaos },
    Step { name: "hwtest on the model", resource: Resource::Release, run: hwtest_on_the_model },
    Step { name: "hwtest in packets", resource: Resource::Release, run: hwtest_in_packets },
    Step { name: "capability sweep", resource: Resource::Release, run: sweep },
    Step { name: "run: process", resource: Resource::Release, run: crate::run::process },
    Step { name: "run: sandboxes", resource: Resource::Release, run: crate::sandbox::check },
    Step {
        name: "run: hwtest",
        resource: Resource::Release,
        run: || counted(crate::run::conformance()?),
    },
    Step { name: "instruction counts", resource: Resource::Release, run: bench },
    Step { name: "VM: hwtest", resource: Resource::Guest, run: hwtest_in_a_vm },
    Step { name: "VM: frames", resource: Resource::Guest, run: frames_in_a_vm },
    Step { name: "VM: Ethernet", resource: Resource::Guest, run: ethernet_in_a_vm },
    Step { name: "VM: process", resource: Resource::Guest, run: process_in_a_vm },
    Step {
        name: "VM: rdma-core",
        resource: Resource::Guest,
        run: || in_a_vm("connectx6dx", &["--rdma-core-suite"]),
    },
    Step { name: "VM: arm64", resource: Resource::Guest, run: arm64_in_a_vm },
    Step { name: "VM: peers", resource: Resource::Guest, run: peers_in_a_vm },
    Step { name: "VM: rxe", resource: Resource::Guest, run: rxe },
    Step { name: "thread sanitizer", resource: Resource::Own, run: sanitizers::thread },
    Step { name: "address sanitizer", resource: Resource::Own, run: sanitizers::address },
    Step { name: "fuzz targets", resource: Resource::Spare, run: fuzz_targets },
    Step { name: "aarch64 barriers", resource: Resource::Spare, run: aarch64_barriers },
    Step { name: "dist", resource: Resource::Spare, run: crate::dist::step },
    Step { name: "riscv64imac", resource: Resource::Spare, run: riscv64imac },
    Step { name: "packages", resource: Resource::Spare, run: crate::packages::check },
    Step { name: "dpa", resource: Resource::Guest, run: crate::dpa::test },
    Step { name: "rates", resource: Resource::Alone, run: rates },
    Step { name: "fuzz smoke", resource: Resource::Alone, run: fuzz_smoke },
];

/// The steps of `--fast`.
const FAST: [&str; 6] =
    ["format", "dependencies", "prm check", "clippy", "unit tests", SUITE_IN_PROCESS];

/// A part of the step "tests", which a whole run therefore leaves out.
const SUITE_IN_PROCESS: &str = "suite in process";

/// Whether these options ask for the step.
fn is_chosen(step: &str, options: &Options) -> bool {
    match &options.only {
        _ if options.fast => FAST.contains(&step),
        Some(part) => step.contains(part.as_str()),
        None => step != SUITE_IN_PROCESS,
    }
}

/// Runs the steps and prints `N passed, N failed, N skipped`; returns whether all passed.
pub(crate) fn run(options: &Options) -> Result<bool> {
    if let Some(name) = &options.step {
        let step = STEPS.iter().find(|step| step.name == name).ok_or("there is no such step")?;
        crate::steps::take_signals()?;
        return one(step);
    }
    let steps: Vec<&Step> = STEPS.iter().filter(|it| is_chosen(it.name, options)).collect();
    if options.list {
        steps.iter().for_each(|step| println!("{}", step.name));
        return Ok(true);
    }
    if let [step] = steps[..] {
        return one(step);
    }
    let start = Instant::now();
    crate::steps::end_all_when_interrupted()?;
    let resources: Vec<Resource> = steps.iter().map(|step| step.resource).collect();
    let reports =
        lanes::run(&resources, |index, spare| crate::steps::run(steps[index].name, spare));
    for (step, report) in steps.iter().zip(&reports).filter(|it| it.1.failed > 0) {
        println!("=== what failed of {}", step.name);
        report.failure_lines().for_each(|line| println!("{line}"));
    }
    println!("=== summary");
    for (step, report) in steps.iter().zip(&reports) {
        let Report { seconds, cpu, verdict, .. } = report;
        println!("{:24} {seconds:>4.0} s {cpu:>5} s of CPU  {verdict}", step.name);
    }
    println!("{:24} {:>4.0} s", "all steps", start.elapsed().as_secs_f64());
    let sum = |count: fn(&Report) -> u64| reports.iter().map(count).sum::<u64>();
    let failed = sum(|it| it.failed);
    println!("{} passed, {failed} failed, {} skipped", sum(|it| it.passed), sum(|it| it.skipped));
    Ok(failed == 0)
}

/// Runs a step in this process. [`crate::steps`] reads its last two lines.
fn one(step: &Step) -> Result<bool> {
    let ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
    let expected = ExpectedSkips::read()?;
    let start = Instant::now();
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    let verdict = match (step.run)() {
        Ok(Outcome::Ran { passed: good, failed: mut bad, skips, more }) => {
            skipped = more;
            for skip in &skips {
                println!("skipped: {}: {}", skip.name, skip.reason);
                if ci && !expected.has(step.name, skip) {
                    println!("{}: must not be skipped where CI=true", skip.name);
                    bad += 1;
                } else {
                    skipped += 1;
                }
            }
            (passed, failed) = (good, bad);
            verdict(good, bad, skipped)
        }
        Ok(Outcome::Skipped(reason)) if ci => {
            failed = 1;
            format!("FAILED: must not be skipped where CI=true: {reason}")
        }
        Ok(Outcome::Skipped(reason)) => {
            skipped = 1;
            format!("skipped: {reason}")
        }
        Err(error) => {
            failed = 1;
            // The verdict is one line.
            let text = error.to_string();
            let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
            rest.lines().for_each(|line| println!("{line}"));
            format!("FAILED: {first}")
        }
    };
    let (seconds, cpu) = (start.elapsed().as_secs_f64(), processor_seconds()?);
    println!("--- {}: {verdict} ({seconds:.0} s, {cpu:.0} s of CPU)", step.name);
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    Ok(failed == 0)
}

/// Processor time of this process and of the processes that it has waited for, in seconds.
fn processor_seconds() -> Result<f64> {
    let of = |who| -> Result<f64> {
        let usage = getrusage(who)?;
        let seconds = |time: TimeVal| time.num_microseconds() as f64 / 1e6;
        Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
    };
    Ok(of(UsageWho::RUSAGE_SELF)? + of(UsageWho::RUSAGE_CHILDREN)?)
}

/// The verdict of a step that ran.
fn verdict(passed: u64, failed: u64, skipped: u64) -> String {
    match (passed, failed, skipped) {
        (0, 0, skipped) => format!("skipped, all {skipped}"),
        (passed, 0, 0) => format!("ok, {passed} passed"),
        (passed, 0, skipped) => format!("ok, {passed} passed, {skipped} skipped"),
        (passed, failed, 0) => format!("FAILED, {failed} of {}", passed + failed),
        (passed, failed, skipped) => {
            format!("FAILED, {failed} of {}, {skipped} skipped", passed + failed)
        }
    }
}

#[cfg(test)]
pub(crate) fn is_step(name: &str) -> bool {
    STEPS.iter().any(|step| step.name == name)
}

/// Every declared dependency has a user, the driver uses the packages that it builds on, lock files
/// are current, and `deny.toml` allows each package's licence, source and version.
fn dependencies() -> Result<Outcome> {
    let mut lines = crate::dependencies::unused(workspace_root())?;
    lines.extend(crate::dependencies::missing(workspace_root())?);
    lines.extend(crate::dependencies::outdated(workspace_root())?);
    lines.iter().for_each(|line| println!("{line}"));
    let (mut passed, mut failed) = (u64::from(lines.is_empty()), lines.len() as u64);
    let mut skips = Vec::new();
    if installed("cargo-deny") {
        let deny = cargo(&["deny", "check", "licenses", "bans", "sources"]).status()?.success();
        passed += u64::from(deny);
        failed += u64::from(!deny);
    } else {
        let reason = "cargo-deny is not installed (cargo install --locked cargo-deny)".into();
        skips.push(Skip { name: "deny.toml".into(), reason });
    }
    Ok(Outcome::Ran { passed, failed, skips, more: 0 })
}

/// Checks each family of generated code compiled by itself, and crates with only the features that
/// programs request.
fn features() -> Result<Outcome> {
    let mut good = 0;
    for feature in PRM_FEATURES {
        let alone = ["check", "-p", "verbless-prm", "--no-default-features", "--features", feature];
        good += u64::from(cargo(&alone).status()?.success());
    }
    for package in EMBEDDED {
        good += u64::from(cargo(&["check", "-p", package]).status()?.success());
    }
    // The model with only the features that a program's tests enable; the workspace's build enables
    // more.
    let mut reduced = cargo(&["test", "-p", "verbless", "--features", "model"]);
    good += u64::from(reduced.env("VERBLESS_TEST_REDUCED", "1").status()?.success());
    let reduced = REDUCED.iter().flat_map(|package| ["-p", package]);
    let mut lints = cargo(&["clippy", "--lib"]);
    let lints = lints.args(reduced.clone()).args(["--", "-D", "warnings"]);
    good += u64::from(lints.status()?.success());
    let mut doc = cargo(&["doc", "--no-deps"]);
    good += u64::from(doc.args(reduced).env("RUSTDOCFLAGS", "-D warnings").status()?.success());
    // The model's feature `gdb` without `toml`.
    let one = ["check", "-p", "verbless-model", "--features", "gdb"];
    good += u64::from(cargo(&one).status()?.success());
    Ok(Outcome::ran(good, 4 + (PRM_FEATURES.len() + EMBEDDED.len()) as u64 - good))
}

fn xtask(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap_or_else(|_| "xtask".into()));
    command.args(arguments).current_dir(workspace_root());
    command
}

/// Runs a command that is one check: it passes or it fails.
fn once(mut command: Command) -> Result<Outcome> {
    let good = command.status()?.success();
    Ok(Outcome::ran(good.into(), (!good).into()))
}

/// Runs a command whose output counts its checks: `N passed; N failed` or `N passed, N failed`.
fn counted(command: Command) -> Result<Outcome> {
    Ok(count(command)?.outcome())
}

/// Runs a command that counts its checks, and names and counts those that it skips.
fn listed(command: Command) -> Result<Outcome> {
    let Counts { passed, failed, skipped, skips } = count(command)?;
    let more = skipped.saturating_sub(skips.len() as u64);
    Ok(Outcome::Ran { passed, failed, skips, more })
}

/// Compares with the repository's sources, and with a header of this machine; without one, that
/// comparison is skipped.
fn prm_verify() -> Result<Outcome> {
    verified(xtask(&["prm", "verify"]))
}

/// Runs a command that is one check and reports skipped parts.
fn verified(mut command: Command) -> Result<Outcome> {
    let output = command.stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    let skips = text.lines().filter_map(Skip::of_line).collect();
    let good = output.status.success();
    Ok(Outcome::Ran { passed: good.into(), failed: (!good).into(), skips, more: 0 })
}

fn clippy() -> Result<Outcome> {
    let mut clippy = cargo(&["clippy", "--workspace", "--all-targets", "--features", FEATURES]);
    clippy.args(["--", "-D", "warnings"]);
    once(clippy)
}

/// A `cargo test` of these targets of the workspace.
fn tests_of(targets: &[&str]) -> Result<Counts> {
    let all = ["test", "--workspace", "--no-fail-fast", "--features", FEATURES];
    count(cargo(&[&all[..], targets].concat()))
}

fn unit_tests() -> Result<Outcome> {
    Ok(tests_of(&["--lib", "--bins"])?.outcome())
}

fn suite_in_process() -> Result<Outcome> {
    Ok(tests_of(&["--test", "model"])?.outcome())
}

/// All integration and documentation tests. The examples are left out, which this would link and
/// not run: the release build has the examples that run, and clippy checks all.
fn tests() -> Result<Outcome> {
    Ok(tests_of(&["--test", "*"])?.and(tests_of(&["--doc"])?).outcome())
}

fn rustdoc() -> Result<Outcome> {
    let mut doc = cargo(&["doc", "--workspace", "--no-deps"]);
    doc.env("RUSTDOCFLAGS", "-D warnings");
    once(doc)
}

/// The workspace and the crates outside it, and the lines that rustfmt leaves too long.
fn format() -> Result<Outcome> {
    let (mut passed, mut failed) = (0, 0);
    let programs = crate::dpa::examples::names()?;
    let programs = programs.iter().map(|name| format!("crates/flexio/programs/{name}/Cargo.toml"));
    let manifests = [
        "tests/fuzz/Cargo.toml",
        "tests/clients/loopback/Cargo.toml",
        "crates/ring/tests/device/Cargo.toml",
        "crates/riscv/tests/program/Cargo.toml",
        "crates/flexio-dev/tests/program/Cargo.toml",
        "crates/flexio/tests/embedded/Cargo.toml",
    ];
    let manifests = manifests.into_iter().map(String::from).chain(programs);
    let workspace = ["fmt", "--all", "--check"].map(String::from).to_vec();
    // With `--all`, each of these would check all workspace crates that it depends on.
    let one = |manifest| {
        ["fmt", "--check", "--manifest-path"]
            .map(String::from)
            .into_iter()
            .chain([manifest])
            .collect()
    };
    for words in std::iter::once(workspace).chain(manifests.map(one)) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        if cargo(&words).status()?.success() { passed += 1 } else { failed += 1 }
    }
    for found in
        [crate::lines::too_long(workspace_root())?, crate::phrases::banned(workspace_root())?]
    {
        found.iter().for_each(|line| println!("{line}"));
        passed += u64::from(found.is_empty());
        failed += found.len() as u64;
    }
    Ok(Outcome::ran(passed, failed))
}

/// The oldest kernel that the driver runs on.
const OLDEST_KERNEL: Hwtest =
    ("connectx6dx", "ethernet", &["--model-kernel=5.10"], "model linux 5.10");

/// Kernels with pages of 64 KiB: one that registers no memory in smaller ones, and the newest.
const LARGE_PAGES: [Hwtest; 2] = [
    (
        "connectx6dx",
        "ethernet",
        &["--model-pages=64k", "--model-kernel=5.15", "--matrix-step=20"],
        "model ethernet",
    ),
    ("bluefield3", "infiniband", &["--model-pages=64k", "--matrix-step=20"], "model infiniband"),
];

/// Devices with fewer capabilities than those of `tests`.
const REDUCED_DEVICES: [Hwtest; 2] = [
    ("connectx6dx-realtime", "ethernet", &[], "model realtime"),
    ("connectx6vf", "infiniband", &[], "model vf"),
];

/// The suite on these devices and these kernels.
fn hwtest_on_the_model() -> Result<Outcome> {
    hwtests(&[&REDUCED_DEVICES[..], &[OLDEST_KERNEL], &LARGE_PAGES].concat())
}

/// Runs the suite on both kinds of port, with messages in packets: over perfect links, where each
/// case also runs with messages carried whole and both runs must agree, and over links that lose,
/// duplicate and delay one frame in a hundred.
fn hwtest_in_packets() -> Result<Outcome> {
    const LOSSY: &[&str] = &["--faults=tests/suite/lossy.toml"];
    const BOTH: &[&str] = &["--both-ways"];
    hwtests(&[
        ("connectx6dx", "ethernet", BOTH, "model ethernet"),
        ("bluefield3", "infiniband", BOTH, "model infiniband"),
        ("connectx6dx", "ethernet", LOSSY, "lossy ethernet"),
        ("bluefield3", "infiniband", LOSSY, "lossy infiniband"),
    ])
}

/// Profile and link of a model, further options of `hwtest`, and the environment of the expected
/// skips.
type Hwtest = (&'static str, &'static str, &'static [&'static str], &'static str);

/// The suite on models.
fn hwtests(runs: &[Hwtest]) -> Result<Outcome> {
    let (mut passed, mut failed, mut skips, mut more) = (0, 0, Vec::new(), 0);
    for (profile, link, how, environment) in runs {
        let mut hwtest = Command::new(crate::run::program("hwtest")?);
        hwtest.args(["--device", "model", "--profile", profile, "--link", link]);
        hwtest.args(*how).args(["--expect", environment]).current_dir(workspace_root());
        let counts = count(hwtest)?;
        passed += counts.passed;
        failed += counts.failed;
        skips.extend(counts.skips);
        more += counts.skipped;
    }
    Ok(Outcome::Ran { passed, failed, skips, more })
}

/// The variable that makes messages go in packets in the engine's own tests.
const IN_PACKETS: &str = "VERBLESS_TEST_IN_PACKETS";

/// The engine's own tests, with messages that go in packets.
fn engine_in_packets() -> Result<Outcome> {
    // Of the workspace, so that nothing is rebuilt just for the model.
    let engine = ["test", "--workspace", "--lib", "--features", FEATURES, "engine"];
    let mut tests = cargo(&engine);
    tests.env(IN_PACKETS, "1");
    counted(tests)
}

fn bench() -> Result<Outcome> {
    if !installed("valgrind") {
        return Ok(Outcome::Skipped("valgrind is not installed".into()));
    }
    listed(xtask(&["bench", "--counts"]))
}

fn rates() -> Result<Outcome> {
    listed(xtask(&["bench", "--rates"]))
}

/// On Linux 6.1, with two devices that are connected to each other.
fn in_a_vm(other: &str, options: &[&str]) -> Result<Outcome> {
    const SERIES: &str = "6.1";
    if let Err(error) = crate::vm::fetch(&X86_64, SERIES, KernelFlavour::Cloud) {
        return Ok(Outcome::Skipped(error.to_string()));
    }
    let model = crate::run::model()?.display().to_string();
    let guest = ["vm", "--kernel", SERIES, "--profile", "bluefield3", "--profile", other];
    counted(xtask(&[&guest[..], &["--model", &model], options].concat()))
}

/// The suite on a real kernel, with every fifth case of the matrix: the kernel does the same for
/// all of them.
fn hwtest_in_a_vm() -> Result<Outcome> {
    suite_in_a_vm(&[], &["--matrix-step", "5", "--expect", "vm"])
}

/// The cases of raw Ethernet, whose flow rules pass a real kernel, and those of programs for the
/// DPA that ring for such queues of another device context. The model has no network interface, so
/// its ports count as DOWN, and the options name the second port.
fn frames_in_a_vm() -> Result<Outcome> {
    let choice = [
        "--peer",
        "mlx5_1",
        "--filter",
        "frame",
        "--filter",
        "sq_of_another_context",
        "--matrix-step",
        "5",
        "--expect",
        "vm frames",
    ];
    suite_in_a_vm(&["--link", "ethernet"], &choice)
}

/// Every 32nd capability, lowered or removed, one at a time; all of them take an hour: `cargo xtask
/// hwtest --sweep`.
fn sweep() -> Result<Outcome> {
    let suite = crate::run::program("hwtest")?;
    let mut command = Command::new(suite);
    command.args(["--sweep", "1/32", "--profile", "bluefield3", "--matrix-step", "100"]);
    listed(command)
}

/// Boots every maintained kernel with Ethernet ports, whose driver sets up steering when it probes.
/// Then shuts each down with the drivers loaded: by reboot, kexec and power off.
fn ethernet_in_a_vm() -> Result<Outcome> {
    if let Err(error) = crate::vm::fetch_for_shutdown() {
        return Ok(Outcome::Skipped(error.to_string()));
    }
    let model = crate::run::model()?.display().to_string();
    once(xtask(&[
        "vm",
        "--kernel",
        "maintained",
        "--link",
        "ethernet",
        "--shutdown",
        "--model",
        &model,
        "--",
        "true",
    ]))
}

/// The suite in a guest, with the program for the DPA if it can be compiled.
fn suite_in_a_vm(guest: &[&str], choice: &[&str]) -> Result<Outcome> {
    let hwtest = crate::run::program("hwtest")?.display().to_string();
    let hwtest = [&["--", &hwtest, "--device", "mlx5_0"], choice].concat();
    if let Some(why) = crate::dpa::cannot_compile() {
        println!("no program for the DPA is compiled: {why}");
        return in_a_vm("bluefield3", &[guest, &hwtest].concat());
    }
    let program = crate::dpa::api_program()?.display().to_string();
    let options = ["--carry", &program];
    let there = ["--dpa-program", "/program/program.elf"];
    in_a_vm("bluefield3", &[guest, &options, &hwtest, &there].concat())
}

/// A part of the suite as an Arm core's program on Linux 6.12 for arm64 with pages of 16 KiB; and
/// programs of a host, on Linux 6.1, and of its DPU, on that kernel.
fn arm64_in_a_vm() -> Result<Outcome> {
    const SERIES: &str = "6.12";
    let host = (&X86_64, "6.1", KernelFlavour::Cloud);
    for (arch, series, flavour) in [(&AARCH64, SERIES, KernelFlavour::Pages16K), host] {
        if let Err(error) = crate::vm::fetch(arch, series, flavour) {
            return Ok(Outcome::Skipped(error.to_string()));
        }
    }
    let model = crate::run::model()?.display().to_string();
    let hwtest = crate::dist::arm_suite()?.display().to_string();
    let on_host = crate::run::program("hwtest")?.display().to_string();
    let guest = ["vm", "--arch", "aarch64", "--kernel", SERIES, "--pages", "16k"];
    let guest = [&guest[..], &["--model", &model]].concat();
    let program = ["--", &hwtest, "--device", "mlx5_0", "--matrix-step", "100"];
    let suite = count(xtask(&[&guest[..], &program].concat()))?;
    let sides = ["--side", "dpu", "--on-dpu", &hwtest, "--", &on_host, "--filter", "dpu"];
    let mut sides = count(xtask(&[&guest[..], &sides].concat()))?;
    if sides.passed == 0 {
        println!("host and DPU: FAILED: every case was skipped");
        sides.failed += 1;
    }
    Ok(suite.and(sides).outcome())
}

/// The cases of two programs on a real kernel.
fn process_in_a_vm() -> Result<Outcome> {
    let process = crate::run::program("process")?.display().to_string();
    in_a_vm("connectx6dx", &["--", &process, "--device", "mlx5_0", "--expect", "process run"])
}

/// A program on libibverbs and one on DOCA RDMA, on a real kernel.
fn peers_in_a_vm() -> Result<Outcome> {
    match crate::peers::in_a_guest()? {
        Ok(words) => in_a_vm("connectx6dx", &words.iter().map(String::as_str).collect::<Vec<_>>()),
        Err(why) => Ok(Outcome::Skipped(why)),
    }
}

/// Programs between the model and Linux's software implementation of RoCE.
fn rxe() -> Result<Outcome> {
    if let Err(error) = crate::vm::rxe::fetch(Series::Linux6_1) {
        return Ok(Outcome::Skipped(error.to_string()));
    }
    let model = crate::run::model()?.display().to_string();
    listed(xtask(&["vm", "--kernel", "6.1", "--rxe", "--model", &model]))
}

/// Builds every fuzz target.
fn fuzz_targets() -> Result<Outcome> {
    match crate::fuzz::obstacle() {
        Some(why) => Ok(Outcome::Skipped(why)),
        None => Ok(Outcome::ran(crate::fuzz::build_all()?, 0)),
    }
}

/// Runs each fuzz target that guards a boundary of the model for a short time.
fn fuzz_smoke() -> Result<Outcome> {
    match crate::fuzz::obstacle() {
        Some(why) => Ok(Outcome::Skipped(why)),
        None => {
            let (passed, failed) = crate::fuzz::smoke()?;
            Ok(Outcome::ran(passed, failed))
        }
    }
}

/// Checks the barriers of the data path in the machine code for aarch64.
fn aarch64_barriers() -> Result<Outcome> {
    if let Err(error) = has_std(crate::bench::aarch64::TARGET) {
        return Ok(Outcome::Skipped(error.to_string()));
    }
    crate::bench::aarch64::check()?;
    Ok(Outcome::ran(3, 0))
}

/// The DPA's cores have no operating system: a program for them links only the rings.
fn riscv64imac() -> Result<Outcome> {
    match std_sources() {
        Ok(sources) => {
            crate::device::check(&sources)?;
            Ok(Outcome::ran(1, 0))
        }
        Err(error) => Ok(Outcome::Skipped(format!("the standard library's sources: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{
        FAST, IN_PACKETS, OLDEST_KERNEL, Options, REDUCED_DEVICES, STEPS, SUITE_IN_PROCESS,
        is_chosen, listed, verdict, verified,
    };
    use crate::outcome::Outcome;

    #[test]
    fn in_packets_variable_matches_engine_rig() {
        let rig = include_str!("../../crates/model/src/engine/tests/rig.rs");
        assert!(rig.contains(&format!("const IN_PACKETS: &str = {IN_PACKETS:?};")));
    }

    #[test]
    fn hwtest_list_matches_suite_test() {
        let [first, second] = REDUCED_DEVICES;
        let names = [first, second, OLDEST_KERNEL].map(|run| format!("{:?}", run.3)).join(", ");
        let test = include_str!("../../tests/suite/tests/model.rs");
        assert!(test.contains(&format!("const OF_HWTEST: [&str; 3] = [{names}];")), "{names}");
    }

    #[test]
    fn skipped_check_is_counted_as_skip() {
        let outcome = |script| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            match verified(command).unwrap() {
                Outcome::Ran { passed, failed, skips, more } => {
                    (passed, failed, skips.iter().map(|it| it.name.clone()).collect(), more)
                }
                Outcome::Skipped(reason) => panic!("all is skipped: {reason}"),
            }
        };
        let header = vec!["ifc header".to_owned()];
        let without = "echo 'skipped: ifc header: there is none'; echo 'trace: 42 commands'";
        assert_eq!(outcome(without), (1, 0, header.clone(), 0));
        assert_eq!(outcome("echo 'ifc: 3 fields'"), (1, 0, vec![], 0));
        assert_eq!(outcome("echo 'skipped: ifc header: none'; exit 1"), (0, 1, header, 0));
    }

    #[test]
    fn bench_skips_are_listed_once() {
        let mut command = Command::new("sh");
        let script = "echo 'skipped: run, compiles: there is no cc'; \
                      echo '3 passed, 0 failed, 1 skipped'";
        command.args(["-c", script]);
        let Outcome::Ran { passed, failed, skips, more } = listed(command).unwrap() else {
            panic!("all is skipped");
        };
        assert_eq!((passed, failed, more), (3, 0, 0));
        assert_eq!(skips.iter().map(|it| &*it.name).collect::<Vec<_>>(), ["run, compiles"]);
    }

    /// Names of the steps that run with these options.
    fn chosen(only: Option<&str>, fast: bool) -> Vec<&'static str> {
        let options = Options { only: only.map(Into::into), fast, list: false, step: None };
        STEPS.iter().map(|step| step.name).filter(|name| is_chosen(name, &options)).collect()
    }

    #[test]
    fn options_choose_steps() {
        assert_eq!(chosen(None, true), FAST);
        let whole = chosen(None, false);
        assert_eq!(whole.len(), STEPS.len() - 1);
        assert!(!whole.contains(&SUITE_IN_PROCESS), "the step is part of another");
        assert_eq!(chosen(Some("in process"), false), [SUITE_IN_PROCESS], "by part of its name");
    }

    #[test]
    fn step_with_only_skips_is_not_ok() {
        assert_eq!(verdict(0, 0, 4), "skipped, all 4");
        assert_eq!(verdict(2, 0, 2), "ok, 2 passed, 2 skipped");
        assert_eq!(verdict(2, 1, 0), "FAILED, 1 of 3");
    }
}
