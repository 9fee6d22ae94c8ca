//! Runs programs for tasks, above all cargo, and reads their output.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::debian::Debian;
use crate::outcome::{Outcome, Skip};
use crate::workspace::{Result, workspace_root};

pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(workspace_root());
    command
}

/// The results in a command's output.
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// The runner's own count of skips, without `skips`.
    pub(crate) skipped: u64,
    pub(crate) skips: Vec<Skip>,
}

impl Counts {
    /// The sum of both.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            skipped: self.skipped + other.skipped,
            skips: self.skips.into_iter().chain(other.skips).collect(),
        }
    }

    /// The outcome of tests that print that they are skipped and return: their runner counts them
    /// as passed.
    pub(crate) fn outcome(self) -> Outcome {
        let Self { passed, failed, skipped: more, skips } = self;
        let passed = passed.saturating_sub(skips.len() as u64);
        Outcome::Ran { passed, failed, skips, more }
    }
}

/// Runs a command and counts its results; fails if no check passed or failed.
pub(crate) fn count(command: Command) -> Result<Counts> {
    let (mut passed, mut failed, mut skipped, mut skips) = (0, 0, 0, Vec::new());
    let good = lines_of(command, |line| {
        skips.extend(Skip::of_line(line));
        if let Some([good, bad, not]) = counts(line) {
            passed += good;
            failed += bad;
            skipped += not;
        }
        println!("{line}");
    })?;
    if !good && failed == 0 {
        failed = 1;
    }
    if passed + failed == 0 {
        return Err("the command reported no test results".into());
    }
    Ok(Counts { passed, failed, skipped, skips })
}

/// Runs a command and passes each line of its output to `show`; returns whether it succeeded.
pub(crate) fn lines_of(mut command: Command, mut show: impl FnMut(&str)) -> Result<bool> {
    // One pipe for both, so that lines come out in their order: tests report skips on standard
    // error.
    let (output, end) = std::io::pipe()?;
    let mut child = command.stdout(end.try_clone()?).stderr(end).spawn()?;
    // The command also holds ends of the pipe.
    drop(command);
    for line in BufReader::new(output).lines() {
        show(&line?);
    }
    Ok(child.wait()?.success())
}

/// How many checks passed, failed and were skipped from a test runner's closing line.
fn counts(line: &str) -> Option<[u64; 3]> {
    let line = line
        .strip_prefix("test result: ok. ")
        .or(line.strip_prefix("test result: FAILED. "))
        .unwrap_or(line);
    let mut words = line.split([' ', ',', ';']).filter(|word| !word.is_empty());
    let mut next = |names: &[&str]| {
        let count = words.next()?.parse().ok()?;
        names.contains(&words.next()?).then_some(count)
    };
    let (passed, failed) = (next(&["passed"])?, next(&["failed"])?);
    Some([passed, failed, next(&["skipped", "ignored"]).unwrap_or(0)])
}

/// The sources of the standard library of this compiler: the toolchain's own, or Debian's package
/// of the same version.
pub(crate) fn std_sources() -> Result<PathBuf> {
    let sysroot = output_of(Command::new("rustc").args(["--print", "sysroot"]))?;
    let own = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library");
    if own.join("Cargo.lock").exists() {
        return Ok(own);
    }
    let version = output_of(Command::new("rustc").arg("--version"))?;
    let version = version.split_whitespace().nth(1).ok_or("rustc does not say its version")?;
    let unpacked = workspace_root().join("target/rust-src");
    std::fs::create_dir_all(&unpacked)?;
    let lock = std::fs::File::create(unpacked.join("lock"))?;
    lock.lock()?;
    let library = unpacked.join(format!("usr/src/rustc-{version}/library"));
    if !library.join("Cargo.lock").exists() {
        println!("fetching the sources of the standard library {version} from Debian");
        Debian::new(&workspace_root().join("target/debian"), &["trixie-backports"], None)?
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

pub(crate) fn output_of(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8(command.current_dir(workspace_root()).output()?.stdout)?)
}

pub(crate) fn installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{count, counts};

    #[test]
    fn count_collects_skips_from_stderr() {
        let mut command = Command::new("sh");
        let script = "echo 'skipped: a: no such tool' >&2; echo 'test a ... ok'; \
                      echo 'test result: ok. 2 passed; 0 failed; 0 ignored'";
        command.args(["-c", script]);
        let found = count(command).unwrap();
        assert_eq!((found.passed, found.failed, found.skips.len()), (2, 0, 1));
        assert_eq!((&*found.skips[0].name, &*found.skips[0].reason), ("a", "no such tool"));
    }

    #[test]
    fn run_whose_cases_are_blocked_fails() {
        let mut command = Command::new("sh");
        let closing = "echo '0 passed, 1 failed, 0 skipped, 24 blocked in 0.1 s'; exit 1";
        command.args(["-c", closing]);
        let found = count(command).unwrap();
        assert_eq!((found.passed, found.failed, found.skipped), (0, 1, 0));
    }

    #[test]
    fn closing_lines_of_test_runners_are_counted() {
        assert_eq!(
            counts("test result: ok. 7 passed; 0 failed; 3 ignored; 0 measured"),
            Some([7, 0, 3])
        );
        assert_eq!(counts("test result: FAILED. 3 passed; 2 failed; 0 ignored"), Some([3, 2, 0]));
        assert_eq!(counts("61 passed, 0 failed, 2 skipped"), Some([61, 0, 2]));
        assert_eq!(counts("4 passed, 1 failed"), Some([4, 1, 0]));
        let blocked = "104 passed, 1 failed, 2 skipped, 1188 blocked in 33.7 s (3 cases/s)";
        assert_eq!(counts(blocked), Some([104, 1, 2]));
        assert_eq!(counts("running 7 tests"), None);
        assert_eq!(counts("7 passed the salt"), None);
    }
}
