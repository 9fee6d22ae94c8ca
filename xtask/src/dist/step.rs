//! The step "dist" of `cargo xtask test`: our programs and the tests of the lowest crates for a
//! BlueField's own cores, under QEMU's user mode.
//!
//! A program that is shipped is optimised, which takes minutes; here the same sources are compiled
//! for the same target as fast as possible. All other steps run code of x86-64.

use std::path::PathBuf;
use std::process::Command;

use super::build::{Build, Built};
use super::packages::Packages;
use super::program::{AARCH64, HWTEST, MODEL};
use super::trial;
use crate::commands::{Counts, cargo, count};
use crate::outcome::Outcome;
use crate::vm::program::has_std;
use crate::workspace::{Result, commit, workspace_root};

/// Crates whose tests check layouts, rings and packets; they run on an emulated Arm core.
const TESTED: [&str; 3] = ["verbless-prm", "verbless-ring", "verbless-wire"];

/// Number of inputs for each property test; the other steps try more.
const CASES: &str = "16";

pub(crate) fn check() -> Result<Outcome> {
    let target = AARCH64.target();
    if let Err(error) = has_std(&target) {
        return Ok(Outcome::Skipped(error.to_string()));
    }
    if let Some(why) = trial::obstacle(AARCH64) {
        return Ok(Outcome::Skipped(why));
    }
    let (passed, failed) = trial::run(AARCH64, &built()?)?;
    let tests = count(tests(&target))?;
    Ok(Counts { passed: passed + tests.passed, failed: failed + tests.failed, ..tests }.outcome())
}

/// hwtest and the model for Arm cores, unoptimised.
fn built() -> Result<Vec<Built>> {
    let (directory, commit, target) = (directory(), commit(), AARCH64.target());
    let build = Build {
        source: workspace_root(),
        directory: &directory,
        target: &target,
        profile: "dev",
        programs: &[HWTEST, MODEL],
        commit: commit.as_deref(),
    };
    build.run(&Packages::read(workspace_root(), &target)?)
}

/// The suite for Arm cores, unoptimised, as the step "dist" tries it.
pub(crate) fn arm_suite() -> Result<PathBuf> {
    has_std(&AARCH64.target())?;
    let found = built()?.into_iter().find(|it| it.program.name == HWTEST.name);
    Ok(found.map(|it| it.path).ok_or("cargo built no suite for Arm cores")?)
}

/// The tests of [`TESTED`] on an emulated Arm core.
fn tests(target: &str) -> Command {
    let mut tests = cargo(&["test", "--no-fail-fast", "--lib", "--tests", "--target", target]);
    tests
        .args(TESTED.iter().flat_map(|package| ["--package", package]))
        .args(["--config", &format!("target.{target}.linker=\"rust-lld\"")])
        .args(["--config", &format!("target.{target}.runner={:?}", trial::EMULATOR)])
        .env("CARGO_TARGET_DIR", directory())
        .env("PROPTEST_CASES", CASES);
    tests
}

fn directory() -> PathBuf {
    workspace_root().join("target/musl")
}
