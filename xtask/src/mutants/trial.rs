//! Trying mutants: the copy of the workspace that is changed, and its tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::list::Mutant;
use super::roots::Packages;
use crate::vm::child::Signals;
use crate::workspace::Result;

/// The crates that the conformance suite covers. The tests of `verbless-command` cover the
/// encodings of commands: the suite uses few commands, and none in every form.
pub(super) const OF_THE_SUITE: [&str; 7] = [
    "verbless-ring",
    "verbless-queue",
    "verbless-devx",
    "verbless-doca",
    "verbless-flexio",
    "verbless-model",
    "verbless-model-kernel",
];
pub(super) const SUITE: &str = "verbless-conformance";
/// Minimum timeout of tests; otherwise it is [`TIMEOUT_FACTOR`] times their time without a mutant.
const MIN_TEST_TIMEOUT: Duration = Duration::from_secs(60);
const TIMEOUT_FACTOR: u32 = 5;

/// A program of tests.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Executable {
    pub(super) path: PathBuf,
    /// The folder of its package, in which it runs.
    pub(super) folder: PathBuf,
}

/// The result of a mutant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fate {
    /// The mutant does not compile.
    Unviable,
    /// It cannot be switched, so it was not tried.
    Unswitched,
    /// Its operands never have common bits in a test: the mutant is equivalent to the original.
    Equivalent,
    /// A test of its own crate failed or hung.
    KilledByOwn,
    /// A case of the conformance suite failed or hung.
    KilledBySuite,
    Missed,
    /// No test reaches it.
    NotReached,
}

impl Fate {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Unviable => "unviable",
            Self::KilledByOwn => "killed",
            Self::KilledBySuite => "suite",
            Self::Missed | Self::NotReached => "missed",
            Self::Unswitched => "unswitched",
            Self::Equivalent => "excluded",
        }
    }
}

/// The copy of the workspace, and the times of its tests.
pub(super) struct Tree {
    directory: PathBuf,
    /// The suite's program for the DPA, if it can be compiled: without it, the cases of FlexIO are
    /// skipped.
    dpa_program: Option<PathBuf>,
    packages: Packages,
    /// The libraries of the compiler, which programs of procedural macros need.
    libraries: String,
    limits: BTreeMap<String, Duration>,
}

impl Tree {
    /// Makes the copy, or brings it up to date.
    pub(super) fn make(root: &Path, packages: &BTreeSet<&str>) -> Result<Self> {
        let directory = root.join("target/mutants");
        copy(root, &directory.join("tree"))?;
        let has_suite = packages.iter().any(|package| OF_THE_SUITE.contains(package));
        let dpa_program = match crate::dpa::cannot_compile() {
            _ if !has_suite => None,
            None => Some(crate::dpa::api_program()?),
            Some(why) => {
                println!("cases of programs for the DPA kill no mutant: {why}");
                None
            }
        };
        let sysroot =
            Command::new("rustc").args(["--print", "sysroot"]).current_dir(root).output()?;
        let sysroot = String::from_utf8(sysroot.stdout)?;
        let libraries = format!("{}/lib", sysroot.trim());
        let packages = Packages::of(&directory.join("tree"))?;
        Ok(Self { directory, dpa_program, packages, libraries, limits: BTreeMap::new() })
    }

    /// Runs the tests of these packages and the suite: they must pass without a mutant.
    pub(super) fn measure(&mut self, packages: &BTreeSet<&str>) -> Result {
        let mut packages = packages.clone();
        if packages.iter().any(|package| OF_THE_SUITE.contains(package)) {
            packages.insert(SUITE);
        }
        for package in packages {
            println!("testing {package} without a mutant");
            let passed = self.builds(package)? && {
                let start = Instant::now();
                let passed = self.passes(package)?;
                let limit = MIN_TEST_TIMEOUT.max(start.elapsed() * TIMEOUT_FACTOR);
                self.limits.insert(package.into(), limit);
                passed
            };
            if !passed {
                let log = self.log();
                return Err(format!(
                    "the tests of {package} fail without a mutant; see {}",
                    log.display()
                )
                .into());
            }
        }
        Ok(())
    }

    /// The copied sources.
    pub(super) fn sources(&self) -> PathBuf {
        self.directory.join("tree")
    }

    pub(super) fn packages(&self) -> &Packages {
        &self.packages
    }

    /// The file of the module that switches mutants.
    pub(super) fn support(&self) -> PathBuf {
        self.directory.join("active.rs")
    }

    /// The name of a test to skip: with a program for the DPA, the suite skips fewer cases than the
    /// expected skips list, and this test of the list fails.
    pub(super) fn skip(&self) -> Option<&'static str> {
        self.dpa_program.as_ref().map(|_| "only expected skips")
    }

    /// Tries a mutant, and reverts it.
    pub(super) fn fate(&self, mutant: &Mutant) -> Result<Fate> {
        let file = self.directory.join("tree").join(&mutant.file);
        let text = fs::read_to_string(&file)?;
        fs::write(&file, mutant.apply(&text)?)?;
        let fate = self.fate_of_tree(&mutant.package);
        fs::write(&file, text)?;
        fate
    }

    fn fate_of_tree(&self, package: &str) -> Result<Fate> {
        if !self.builds(package)? {
            return Ok(Fate::Unviable);
        }
        if !self.passes(package)? {
            return Ok(Fate::KilledByOwn);
        }
        if !OF_THE_SUITE.contains(&package) {
            return Ok(Fate::Missed);
        }
        // Other features may be on there, so the mutant may not compile.
        if !self.builds(SUITE)? {
            return Ok(Fate::Unviable);
        }
        Ok(if self.passes(SUITE)? { Fate::Missed } else { Fate::KilledBySuite })
    }

    fn builds(&self, package: &str) -> Result<bool> {
        Ok(self.cargo(package, &["--no-run"])?.wait()?.success())
    }

    /// Whether the built tests of a package pass in time.
    fn passes(&self, package: &str) -> Result<bool> {
        let limit = self.limits.get(package).copied().unwrap_or(Duration::from_secs(1200));
        ends_well(self.cargo(package, &[])?, limit, || false)
    }

    /// `cargo test` of a package. With all features: a test cannot kill a mutant in code that is
    /// not compiled.
    fn cargo(&self, package: &str, more: &[&str]) -> Result<Child> {
        let mut command =
            self.command(&["test", "--quiet", "--tests", "--all-features", "--package", package])?;
        command.args(more);
        if let (SUITE, Some(skip)) = (package, self.skip()) {
            command.args(["--", "--skip", skip]);
        }
        spawn(command)
    }

    /// cargo in the copy, in a process group of its own, with as little work for the compiler as
    /// possible; a lint is not a test.
    pub(super) fn command(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command
            .args(arguments)
            .current_dir(self.sources())
            .env("CARGO_TARGET_DIR", self.directory.join("target"))
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env("RUSTFLAGS", "--cap-lints=allow")
            // `active` is `const` by an unstable function. The same value for every build, because
            // build scripts run again when it changes.
            .env("RUSTC_BOOTSTRAP", self.packages.crates());
        self.prepare(&mut command)?;
        Ok(command)
    }

    /// A program of tests, as cargo runs it.
    pub(super) fn test(&self, program: &Executable, arguments: &[String]) -> Result<Command> {
        let mut command = Command::new(&program.path);
        command
            .args(arguments)
            .current_dir(&program.folder)
            .env("CARGO_MANIFEST_DIR", &program.folder)
            .env("LD_LIBRARY_PATH", &self.libraries);
        self.prepare(&mut command)?;
        Ok(command)
    }

    /// The output of a program of tests.
    pub(super) fn output(&self, program: &Executable, arguments: &[&str]) -> Result<String> {
        let arguments: Vec<String> = arguments.iter().map(|&it| it.into()).collect();
        let mut command = self.test(program, &arguments)?;
        command.stdout(Stdio::piped());
        let output = spawn(command)?.wait_with_output()?;
        match output.status.success() {
            true => Ok(String::from_utf8(output.stdout)?),
            false => {
                Err(format!("{} {arguments:?}: {}", program.path.display(), output.status).into())
            }
        }
    }

    fn prepare(&self, command: &mut Command) -> Result {
        let log = File::create(self.log())?;
        command
            .envs(self.dpa_program.iter().map(|program| ("VERBLESS_DPA_PROGRAM", program)))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0);
        Ok(())
    }

    /// The output of the last command.
    pub(super) fn log(&self) -> PathBuf {
        self.directory.join("last.log")
    }
}

/// Whether a test succeeds before the time limit.
pub(super) fn passes(command: Command, limit: Duration) -> Result<bool> {
    ends_well(spawn(command)?, limit, || false)
}

/// As `passes`, for many tests whose output goes to `log`: the first failure is enough.
pub(super) fn all_pass(command: Command, limit: Duration, log: &Path) -> Result<bool> {
    ends_well(spawn(command)?, limit, || fs::read(log).is_ok_and(|text| has_failure(&text)))
}

/// Whether a program of tests has printed that a test failed.
fn has_failure(output: &[u8]) -> bool {
    let failed = |line: &[u8]| line.starts_with(b"test ") && line.ends_with(b"... FAILED");
    output.split(|byte| *byte == b'\n').any(failed)
}

/// Waits for a process; kills its group after `limit`, or when it is lost.
fn ends_well(mut child: Child, limit: Duration, is_lost: impl Fn() -> bool) -> Result<bool> {
    let start = Instant::now();
    let mut looked = start;
    while start.elapsed() < limit {
        if looked.elapsed() > Duration::from_secs(1) {
            looked = Instant::now();
            if is_lost() {
                break;
            }
        }
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        let pause = start.elapsed() / 8;
        std::thread::sleep(pause.clamp(Duration::from_micros(500), Duration::from_millis(20)));
    }
    killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL)?;
    child.wait()?;
    Ok(false)
}

/// Starts a program that receives signals. This process blocks them in its own threads, and a
/// program inherits that from the thread that starts it: tests that end programs would hang.
pub(super) fn spawn(mut command: Command) -> Result<Child> {
    let start = move || {
        Signals::set().thread_unblock()?;
        command.spawn()
    };
    let child = std::thread::spawn(start).join().map_err(|_| "the thread that starts a program")?;
    Ok(child?)
}

/// Makes `to` a copy of the tracked and addable files. An unchanged file is left alone, so that
/// cargo does not rebuild it.
fn copy(from: &Path, to: &Path) -> Result {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(from)
        .output()?;
    if !output.status.success() {
        return Err("git does not list the files of the workspace".into());
    }
    let names = String::from_utf8(output.stdout)?;
    let mut wanted = BTreeSet::new();
    for name in names.split_terminator('\0') {
        let source = from.join(name);
        // git lists a deleted file until the deletion is staged.
        let Ok(bytes) = fs::read(&source) else { continue };
        let target = to.join(name);
        if fs::read(&target).ok().as_ref() != Some(&bytes) {
            fs::create_dir_all(target.parent().unwrap_or(to))?;
            fs::write(&target, bytes)?;
            fs::set_permissions(&target, fs::metadata(&source)?.permissions())?;
        }
        wanted.insert(target);
    }
    remove_others(to, &wanted)
}

/// Removes unwanted files of a directory.
fn remove_others(directory: &Path, wanted: &BTreeSet<PathBuf>) -> Result {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            remove_others(&path, wanted)?;
        } else if !wanted.contains(&path) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spawned_program_has_signals_unblocked() {
        std::thread::spawn(|| {
            Signals::set().thread_block().unwrap();
            let mut command = Command::new("sh");
            command.args(["-c", "kill $$; exit 0"]);
            let status = spawn(command).unwrap().wait().unwrap();
            assert_eq!(status.code(), None, "it was not ended: {status}");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn first_failure_ends_many_tests() {
        assert!(has_failure(b"test a ... ok\ntest b  ... FAILED\ntest c"));
        assert!(!has_failure(b"test a ... ok\nlog: test b ... FAILED\ntest result: FAILED"));
        let log = std::env::temp_dir().join(format!("mutants-{}.log", std::process::id()));
        let mut command = Command::new("sh");
        command.args(["-c", "echo 'test a ... FAILED'; sleep 600"]).process_group(0);
        command.stdout(File::create(&log).unwrap());
        let start = Instant::now();
        assert!(!all_pass(command, Duration::from_secs(500), &log).unwrap());
        assert!(start.elapsed() < Duration::from_secs(100));
        fs::remove_file(log).unwrap();
    }

    #[test]
    fn copy_updates_changed_files_only() {
        let root = std::env::temp_dir().join(format!("mutants-{}", std::process::id()));
        let (from, to) = (root.join("from"), root.join("to"));
        fs::create_dir_all(from.join("src")).unwrap();
        fs::create_dir_all(to.join("src")).unwrap();
        let status = Command::new("git").args(["init", "-q"]).arg(&from).status().unwrap();
        assert!(status.success());
        for (name, text) in [("src/same.rs", "same"), ("src/other.rs", "new")] {
            fs::write(from.join(name), text).unwrap();
        }
        for (name, text) in [("src/same.rs", "same"), ("src/other.rs", "old"), ("src/x.rs", "")] {
            fs::write(to.join(name), text).unwrap();
        }
        let long_ago = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let same = File::options().append(true).open(to.join("src/same.rs")).unwrap();
        same.set_modified(long_ago).unwrap();
        copy(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("src/other.rs")).unwrap(), "new");
        assert!(!to.join("src/x.rs").exists());
        assert_eq!(same.metadata().unwrap().modified().unwrap(), long_ago);
        fs::remove_dir_all(root).unwrap();
    }
}
