//! `dpa examples`: programs for the DPA with their hosts. Each is built, and runs both as a process
//! of its own under `verbless-model run` and with a model in its own process.
//!
//! An example is a directory `crates/flexio/programs/NAME`, the crate of the program, and a file
//! `crates/flexio/examples/NAME.rs`, its host.

use std::process::Command;

use super::build;
use crate::commands::lines_of;
use crate::outcome::{Outcome, Skip};
use crate::workspace::{Result, workspace_root};

const PROGRAMS: &str = "crates/flexio/programs";

/// Examples that need two devices on one Ethernet.
const ON_ETHERNET: &[&str] = &["packets"];

/// Where each example runs.
const ENVIRONMENTS: [&str; 2] = ["in process", "under run"];

/// Their names.
pub(crate) fn names() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(workspace_root().join(PROGRAMS))? {
        let entry = entry?;
        if entry.path().join("Cargo.toml").exists() {
            names.push(entry.file_name().into_string().map_err(|_| "a program's name")?);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Builds and runs all of them.
pub(super) fn run() -> Result<Outcome> {
    let names = names()?;
    if let Err(why) = build::Core::find() {
        let skips = all_skipped(&names, &why.to_string());
        for Skip { name, reason } in &skips {
            println!("skipped: {name}: {reason}");
        }
        return Ok(Outcome::Ran { passed: 0, failed: 0, skips, more: 0 });
    }
    let mut programs = Vec::new();
    for name in &names {
        let built = build::build(&workspace_root().join(PROGRAMS).join(name))?;
        programs.push(built.into_iter().next().ok_or_else(|| format!("{name} is not a program"))?);
    }
    // This builds the examples, too.
    let model = crate::run::model()?;
    let hosts = crate::run::target().join("release/examples");
    let (mut passed, mut failed, mut skips) = (0, 0, Vec::new());
    for (name, program) in names.iter().zip(&programs) {
        let host = hosts.join(name);
        let mut under = Command::new(&model);
        under.args(["run", "--profile", "bluefield3"]);
        if ON_ETHERNET.contains(&name.as_str()) {
            under.args(["--link", "ethernet", "--devices", "2"]);
        }
        under.arg("--").arg(&host).arg(program).arg("mlx5_0");
        let mut here = Command::new(&host);
        here.arg(program);
        for (environment, command) in ENVIRONMENTS.into_iter().zip([here, under]) {
            match one(&format!("{name} {environment}"), command, &mut skips)? {
                true => passed += 1,
                false => failed += 1,
            }
        }
    }
    Ok(Outcome::Ran { passed, failed, skips, more: 0 })
}

/// Each example in each environment, as skipped.
fn all_skipped(names: &[String], reason: &str) -> Vec<Skip> {
    let both = |name: &String| ENVIRONMENTS.map(|environment| format!("{name} {environment}"));
    let skip = |name| Skip { name, reason: reason.into() };
    names.iter().flat_map(both).map(skip).collect()
}

/// Runs one; returns whether it passed. Parts of it may be skipped: lines `skipped: WHAT: WHY`.
fn one(name: &str, command: Command, skips: &mut Vec<Skip>) -> Result<bool> {
    println!("{name}");
    let began = std::time::Instant::now();
    let good = lines_of(command, |line| {
        skips.extend(Skip::of_line(line));
        println!("  {line}");
    })?;
    let word = if good { "ok     " } else { "FAILED " };
    println!("{word} {name} ({:.1} s)", began.elapsed().as_secs_f32());
    Ok(good)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn examples_without_core_are_skipped() {
        let names = names().unwrap();
        let skips = all_skipped(&names, "no core");
        assert_eq!(skips.len(), 2 * names.len());
        assert!(skips.iter().all(|skip| skip.reason == "no core"), "{skips:?}");
        assert!(skips.iter().any(|skip| skip.name == "rdma under run"), "{skips:?}");
        let line = |ci| {
            let skips = all_skipped(&names, "no core");
            let ran = Outcome::Ran { passed: 3, failed: 1, skips, more: 0 };
            crate::dpa::closing(ran, ci).unwrap()
        };
        let count = 2 * names.len() as u64;
        assert_eq!(line(false), (format!("3 passed, 1 failed, {count} skipped"), 1));
        // If skips are not allowed, a skip is a failure.
        let failed = 1 + count;
        assert_eq!(line(true), (format!("3 passed, {failed} failed, 0 skipped"), failed));
    }

    #[test]
    fn programs_and_hosts_match() {
        let names = names().unwrap();
        assert!(names.iter().any(|name| name == "window"), "{names:?}");
        let hosts = workspace_root().join("crates/flexio/examples");
        let is_host = |path: &Path| path.extension().is_some_and(|it| it == "rs");
        let mut found: Vec<_> = std::fs::read_dir(hosts)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| is_host(path))
            .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
            .collect();
        found.sort_unstable();
        assert_eq!(found, names);
    }
}
