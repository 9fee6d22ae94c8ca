//! The step "dist" of `cargo xtask test`: our programs and the tests of the lowest crates for a
//! BlueField's own cores, under QEMU's user mode.
//!
//! A program that is shipped is optimised, which takes minutes; here the same sources are compiled
//! for the same target as fast as possible. For x86-64, whose code all other steps run, only what
//! depends on the C library is checked.

use std::path::PathBuf;

use super::build::Build;
use super::packages::Packages;
use super::{AARCH64, MODEL, PROGRAMS, X86_64, trial};
use crate::commands::{cargo, count};
use crate::outcome::{Outcome, Skip};
use crate::run::on_the_path;
use crate::vm::program::has_std;
use crate::workspace::{Result, commit, workspace_root};

/// Crates whose own tests say on an Arm core whether layouts, rings and packets are right.
const TESTED: [&str; 3] = ["verbless-prm", "verbless-ring", "verbless-wire"];

/// Inputs of each property: every other step has more.
const CASES: &str = "16";

pub(crate) fn check() -> Result<Outcome> {
    for arch in [AARCH64, X86_64] {
        if let Err(error) = has_std(&arch.target()) {
            return Ok(Outcome::Skipped(error.to_string()));
        }
    }
    let (directory, commit) = (directory(), commit());
    let target = AARCH64.target();
    let build = Build {
        source: workspace_root(),
        directory: &directory,
        target: &target,
        profile: "dev",
        programs: PROGRAMS,
        commit: commit.as_deref(),
    };
    let packages = Packages::read(workspace_root(), &target)?;
    let outcomes = [
        trial::run(AARCH64, &build.run(&packages)?)?,
        tests(&target)?,
        check_model(&X86_64.target())?,
    ];
    Ok(sum(outcomes))
}

/// Runs the tests of [`TESTED`] on an emulated Arm core.
fn tests(target: &str) -> Result<Outcome> {
    let (emulator, package) = trial::EMULATOR;
    if !on_the_path(emulator) {
        let reason = format!("{emulator} is not installed: apt-get install {package}");
        let skips = vec![Skip { name: "tests of aarch64".into(), reason }];
        return Ok(Outcome::Ran { passed: 0, failed: 0, skips, more: 0 });
    }
    let mut tests = cargo(&["test", "--no-fail-fast", "--lib", "--tests", "--target", target]);
    tests
        .args(TESTED.iter().flat_map(|package| ["--package", package]))
        .args(["--config", &format!("target.{target}.linker=\"rust-lld\"")])
        .args(["--config", &format!("target.{target}.runner={emulator:?}")])
        .env("CARGO_TARGET_DIR", directory())
        .env("PROPTEST_CASES", CASES);
    Ok(count(tests)?.outcome())
}

/// Checks the only program that names types of the C library which musl declares in its own way.
fn check_model(target: &str) -> Result<Outcome> {
    let mut check = cargo(&["check", "--package", MODEL.package, "--target", target]);
    let good = check.env("CARGO_TARGET_DIR", directory()).status()?.success();
    Ok(Outcome::ran(good.into(), (!good).into()))
}

fn directory() -> PathBuf {
    workspace_root().join("target/musl")
}

fn sum(outcomes: impl IntoIterator<Item = Outcome>) -> Outcome {
    let (mut all, mut ran) = ((0, 0, 0), Vec::new());
    for outcome in outcomes {
        match outcome {
            Outcome::Ran { passed, failed, skips, more } => {
                all = (all.0 + passed, all.1 + failed, all.2 + more);
                ran.extend(skips);
            }
            Outcome::Skipped(reason) => ran.push(Skip { name: "aarch64".into(), reason }),
        }
    }
    Outcome::Ran { passed: all.0, failed: all.1, skips: ran, more: all.2 }
}
