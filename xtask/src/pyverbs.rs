//! rdma-core's own Python tests under `verbless-model run`: each in a run of its own, on InfiniBand
//! and on Ethernet; tests that always skip share one run. A step of `cargo xtask test`.
//!
//! The tests are those of Debian 12's python3-pyverbs, in its documentation directory. None may
//! fail. A test that skips must be in `tests/suite/pyverbs/skips.txt` with the reason, and each
//! listed test must skip, so that the list neither hides a test nor becomes outdated.

use std::collections::VecDeque;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::debian::Debian;
use crate::outcome::Outcome;
use crate::run::model;
use crate::workspace::{Result, workspace_root};

/// The release of the tests in the list of skips.
const RELEASE: &str = "44.";
const PACKAGE: &str = "python3-pyverbs";
/// Debian's own Python, the package's target.
const PYTHON: &str = "/usr/bin/python3";
/// The package's directory of tests, some of them compressed.
const TESTS: &str = "usr/share/doc/rdma-core/tests";
/// Seconds after which a test counts as hung; a test takes half a second.
const LIMIT: &str = "60";

/// The link type of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    InfiniBand,
    Ethernet,
}

impl Link {
    const ALL: [Self; 2] = [Self::InfiniBand, Self::Ethernet];

    fn name(self) -> &'static str {
        match self {
            Self::InfiniBand => "infiniband",
            Self::Ethernet => "ethernet",
        }
    }
}

/// The result of a test.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Passed,
    /// Skipped, with the test's reason.
    Skipped(String),
    Failed,
}

impl Verdict {
    /// Reads the output of the runner of one test.
    fn of(success: bool, text: &str) -> Self {
        let ran = text.contains("Ran 1 test in");
        match text.lines().find_map(|line| line.split_once("... skipped ").map(|it| it.1)) {
            Some(reason) if success && ran => Self::Skipped(reason.to_string()),
            None if success && ran => Self::Passed,
            _ => Self::Failed,
        }
    }
}

/// Whether a runner of several tests says that this one skipped: in the line that names it, or,
/// if the test has a description, in the next one.
fn did_skip(text: &str, test: &str) -> bool {
    let named = format!("({test})");
    let mut lines = text.lines().skip_while(|line| !line.contains(&named));
    let (Some(line), next) = (lines.next(), lines.next().unwrap_or_default()) else { return false };
    let skips = |line: &str| line.contains("... skipped ");
    skips(line) || !line.contains(" ... ") && skips(next)
}

/// A line of the list: the tests, and the links on which they skip.
#[derive(Debug, PartialEq, Eq)]
struct Skip {
    link: Option<Link>,
    /// The machine decides whether it skips: if it runs, it must pass.
    perhaps: bool,
    /// Whether the test fails, or skips, for the given reason; it never passes.
    fails: bool,
    /// A test's name, or its prefix.
    name: String,
    is_prefix: bool,
}

impl Skip {
    /// Reads a line: `both`, `infiniband` or `ethernet`, perhaps with `?` or `!`; a test, or a
    /// prefix and a star; the reason. Empty lines and comments (`#`) are ignored.
    fn parse(line: &str) -> std::result::Result<Option<Self>, String> {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            return Ok(None);
        }
        let mut words = line.split_whitespace();
        let (Some(link), Some(name), Some(_)) = (words.next(), words.next(), words.next()) else {
            return Err(format!("{line:?} has no reason: write LINK TEST REASON"));
        };
        let perhaps = link.ends_with('?');
        let fails = link.ends_with('!');
        let link = match link.trim_end_matches(['?', '!']) {
            "both" => None,
            "infiniband" => Some(Link::InfiniBand),
            "ethernet" => Some(Link::Ethernet),
            other => {
                return Err(format!(
                    "{line:?} begins with {other:?}, not with both, infiniband or ethernet"
                ));
            }
        };
        let is_prefix = name.ends_with('*');
        Ok(Some(Self { link, perhaps, fails, name: name.trim_end_matches('*').into(), is_prefix }))
    }

    /// Whether the tests skip on every machine.
    fn always(&self) -> bool {
        !self.perhaps && !self.fails
    }

    fn is_about(&self, link: Link, test: &str) -> bool {
        let named = if self.is_prefix { test.starts_with(&self.name) } else { test == self.name };
        named && self.link.is_none_or(|own| own == link)
    }
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.name, if self.is_prefix { "*" } else { "" })
    }
}

/// Compares a verdict with the list; `None` if it is as listed.
fn complaint(skips: &[Skip], link: Link, test: &str, verdict: &Verdict) -> Option<String> {
    let listed = skips.iter().find(|skip| skip.is_about(link, test));
    match (verdict, listed) {
        (Verdict::Failed, Some(skip)) if skip.fails => None,
        (Verdict::Failed, _) => Some("it failed".into()),
        (Verdict::Skipped(reason), None) => {
            Some(format!("it skips and is not in the list of skips: {reason}"))
        }
        (Verdict::Passed, Some(skip)) if !skip.perhaps => {
            Some(format!("it passes, and the list of skips has {skip}"))
        }
        _ => None,
    }
}

/// Runs all tests on both links.
pub(crate) fn check() -> Result<Outcome> {
    let Some(version) = installed() else {
        return Ok(Outcome::Skipped(format!("{PACKAGE} is not installed: apt-get install it")));
    };
    if !version.starts_with(RELEASE) {
        return Ok(Outcome::Skipped(format!(
            "{PACKAGE} is {version}: the list of skips is about {RELEASE}x, of Debian 12"
        )));
    }
    let list = workspace_root().join("tests/suite/pyverbs/skips.txt");
    let skips = fs::read_to_string(&list)?
        .lines()
        .filter_map(|line| Skip::parse(line).transpose())
        .collect::<std::result::Result<Vec<_>, _>>()?;
    let model = model()?;
    let tree = tests()?;
    let names = names(&tree)?;
    if let Some(skip) = skips.iter().find(|skip| {
        let is_about = |test: &String| Link::ALL.iter().any(|&link| skip.is_about(link, test));
        !names.iter().any(is_about)
    }) {
        return Err(format!("{}: there is no test {skip}", list.display()).into());
    }
    let mut jobs = VecDeque::new();
    let mut counts = [[0u64; 3]; 2];
    for link in Link::ALL {
        let skips = |name: &&String| {
            skips.iter().any(|skip| skip.always() && skip.is_about(link, name.as_str()))
        };
        let listed: Vec<&str> = names.iter().filter(skips).map(String::as_str).collect();
        // Tests that did not skip run again, each by itself; if the shared run fails, all do.
        let (success, text) = run(&model, &tree, link, &listed);
        let skipped: Vec<&str> =
            listed.into_iter().filter(|test| success && did_skip(&text, test)).collect();
        counts[link as usize][1] += skipped.len() as u64;
        let others = names.iter().map(String::as_str).filter(|name| !skipped.contains(name));
        jobs.extend(others.map(|name| (link, name)));
    }
    let jobs = Mutex::new(jobs);
    let counts = Mutex::new(counts);
    let workers = std::thread::available_parallelism().map_or(2, |cores| cores.get() + 1).min(8);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some((link, test)) = lock(&jobs).pop_front() {
                    let (success, text) = run(&model, &tree, link, &[test]);
                    let verdict = Verdict::of(success, &text);
                    let complaint = complaint(&skips, link, test, &verdict);
                    let column = match (&complaint, &verdict) {
                        (Some(_), _) => 2,
                        (None, Verdict::Skipped(_) | Verdict::Failed) => 1,
                        (None, _) => 0,
                    };
                    lock(&counts)[link as usize][column] += 1;
                    if let Some(complaint) = complaint {
                        println!("FAIL  {test} on {}: {complaint}\n{text}", link.name());
                    }
                }
            });
        }
    });
    let counts = *lock(&counts);
    for link in Link::ALL {
        let [passed, skipped, failed] = counts[link as usize];
        println!("{}: {passed} passed, {failed} failed, {skipped} skipped", link.name());
    }
    let sum = |column: usize| counts.iter().map(|counts| counts[column]).sum::<u64>();
    let bridge = u64::from(bridge(&model)?);
    Ok(Outcome::ran(sum(0) + bridge, sum(2) + 1 - bridge))
}

/// The example `bridge`, on a context and a protection domain of rdma-core.
fn bridge(model: &Path) -> Result<bool> {
    const SCRIPT: &str = "crates/doca/examples/bridge.py";
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", LIMIT]).arg(model);
    command.args(["run", "--profile", "bluefield3", "--", PYTHON, SCRIPT]);
    command.arg(crate::run::program("examples/bridge")?).current_dir(workspace_root());
    let output = command.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        let [out, errors] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
        println!("FAIL  the bridge to a context of rdma-core's\n{out}{errors}");
    }
    Ok(output.status.success())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The version of the package.
fn installed() -> Option<String> {
    let mut query = Command::new("dpkg-query");
    let output = query.args(["-W", "-f", "${db:Status-Abbrev} ${Version}", PACKAGE]).output();
    let text = String::from_utf8(output.ok()?.stdout).ok()?;
    text.strip_prefix("ii").map(|version| version.trim().to_string())
}

/// A directory with the tests, unpacked. They come from the package's documentation, or, if that is
/// not installed (as in many containers), from the package itself.
fn tests() -> Result<PathBuf> {
    let tree = workspace_root().join("target/pyverbs");
    let tests = tree.join("tests");
    if tests.join("run_tests.py").exists() {
        return Ok(tree);
    }
    let mut from = Path::new("/").join(TESTS);
    if !from.join("run_tests.py").exists() {
        let package = workspace_root().join("target/pyverbs-package");
        Debian::new(&workspace_root().join("target/debian"), &["bookworm"], None)?
            .unpack_one(PACKAGE, RELEASE, &package)?;
        from = package.join(TESTS);
    }
    let unfinished = tree.join("unfinished");
    fs::create_dir_all(&unfinished)?;
    for entry in fs::read_dir(&from)? {
        let file = entry?.path();
        fs::copy(&file, unfinished.join(file.file_name().ok_or("a file without a name")?))?;
    }
    let unpacked =
        Command::new("gunzip").args(["--recursive", "--force"]).arg(&unfinished).status()?;
    if !unpacked.success() {
        return Err("gunzip does not unpack the tests".into());
    }
    fs::rename(unfinished, tests)?;
    Ok(tree)
}

/// Python with the tests as a program, without arguments yet.
fn python(mut command: Command, tree: &Path) -> Command {
    command.arg("tests/run_tests.py").current_dir(tree).env("PYTHONPATH", "tests");
    command.stdin(Stdio::null());
    command
}

/// The names of all tests. This also leaves them compiled.
fn names(tree: &Path) -> Result<Vec<String>> {
    let output = python(Command::new(PYTHON), tree).arg("--list-tests").output()?;
    let text = String::from_utf8(output.stdout)?;
    let names: Vec<String> =
        text.lines().filter(|line| line.starts_with("tests.")).map(str::to_string).collect();
    if names.is_empty() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the tests cannot be listed: {errors}").into());
    }
    Ok(names)
}

/// Runs tests; returns whether none failed, and their output.
fn run(model: &Path, tree: &Path, link: Link, tests: &[&str]) -> (bool, String) {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", LIMIT]).arg(model);
    command.args(["run", "--link", link.name(), "--", PYTHON]);
    let output =
        python(command, tree).arg("-v").args(tests).env("PYTHONDONTWRITEBYTECODE", "1").output();
    match output {
        Ok(output) => {
            let text = format!(
                "{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
            (output.status.success(), text)
        }
        Err(error) => (false, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_is_parsed_from_unittest_output() {
        let text =
            "test_x (tests.test_a.B.test_x)\nWhat it does ... ok\n\nRan 1 test in 0.031s\n\nOK\n";
        assert_eq!(Verdict::of(true, text), Verdict::Passed);
        assert_eq!(Verdict::of(false, text), Verdict::Failed, "the model itself failed");
        let text = "test_x (tests.test_a.B.test_x) ... skipped 'no luck'\n\nRan 1 test in 0.1s\n";
        assert_eq!(Verdict::of(true, text), Verdict::Skipped("'no luck'".into()));
        assert_eq!(Verdict::of(true, "Ran 0 tests in 0.000s"), Verdict::Failed);
    }

    #[test]
    fn did_skip_matches_named_test() {
        let text = "test_x (tests.a.B.test_x) ... skipped 'no luck'\n\
            test_y (tests.a.B.test_y)\nWhat it does ... skipped 'nor here'\n\
            test_z (tests.a.B.test_z) ... ok\ntest_xx (tests.a.B.test_xx)\nIt does ... ok\n\
            test_v (tests.a.B.test_v) ... FAIL\ntest_w (tests.a.B.test_w) ... skipped 'no'\n";
        let skipped = ["x", "y", "z", "xx", "v", "w", "u"]
            .map(|name| did_skip(text, &format!("tests.a.B.test_{name}")));
        assert_eq!(skipped, [true, true, false, false, false, true, false]);
    }

    #[test]
    fn skip_has_link_test_and_reason() {
        let skip = Skip::parse("ethernet? tests.a.B.* there is no B").expect("a line");
        let skip = skip.expect("a skip");
        assert_eq!((skip.link, skip.perhaps, skip.is_prefix), (Some(Link::Ethernet), true, true));
        assert!(skip.is_about(Link::Ethernet, "tests.a.B.test_x"));
        assert!(!skip.is_about(Link::InfiniBand, "tests.a.B.test_x"));
        assert!(!skip.is_about(Link::Ethernet, "tests.a.C.test_x"));
        assert_eq!(Skip::parse("  # tests.a none"), Ok(None));
        assert_eq!(Skip::parse(""), Ok(None));
        assert!(Skip::parse("both tests.a.B.x").is_err(), "no reason");
        assert!(Skip::parse("all tests.a.B.x a reason").is_err(), "no link");
    }

    #[test]
    fn unlisted_skip_or_passing_listed_one_fails() {
        let list = |line: &str| vec![Skip::parse(line).expect("a line").expect("a skip")];
        let skipped = Verdict::Skipped("'no'".into());
        let complains = |skips: &[Skip], verdict: &Verdict| {
            complaint(skips, Link::InfiniBand, "tests.a.B.x", verdict).is_some()
        };
        let listed = list("both tests.a.B.x it needs B");
        let perhaps = list("both? tests.a.B.x it needs B");
        let elsewhere = list("ethernet tests.a.B.x it needs B");
        assert!(!complains(&listed, &skipped));
        assert!(complains(&listed, &Verdict::Passed));
        assert!(!complains(&perhaps, &Verdict::Passed));
        assert!(complains(&elsewhere, &skipped));
        assert!(!complains(&elsewhere, &Verdict::Passed));
        assert!(complains(&[], &skipped));
        assert!(complains(&listed, &Verdict::Failed));
        let fails = list("both! tests.a.B.x it needs B");
        assert!(!complains(&fails, &Verdict::Failed));
        assert!(complains(&fails, &Verdict::Passed) && !complains(&fails, &skipped));
    }
}
