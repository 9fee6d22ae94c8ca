//! The tests of a program with mutants: which mutants each test reaches, and whether it passes with
//! one of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::program::Executable;
use super::trial::{self, Tree};
use crate::workspace::Result;

/// A test counts as hung after this time plus [`TIMEOUT_FACTOR`] times its time without a mutant.
const TEST_TIMEOUT: Duration = Duration::from_secs(10);
const TIMEOUT_FACTOR: u32 = 10;
/// At most one test in this many may fail without a mutant, because of the switches in the sources.
const TESTS_PER_FAILURE: usize = 20;
/// Number of tests that run one by one; the tests after them run in ever larger groups.
const SINGLE_RUNS: usize = 4;

/// The mutants that a test or a set of tests reaches.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Trace {
    pub(super) reached: BTreeSet<u32>,
    /// Mutants whose operands had a bit in common.
    pub(super) overlapped: BTreeSet<u32>,
}

impl Trace {
    fn read(text: &str) -> Self {
        let mut trace = Self::default();
        for line in text.lines() {
            let (kind, number) = line.split_at_checked(1).unwrap_or_default();
            let Ok(number) = number.parse() else { continue };
            match kind {
                "r" => trace.reached.insert(number),
                "o" => trace.overlapped.insert(number),
                _ => false,
            };
        }
        trace
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.reached.extend(&other.reached);
        self.overlapped.extend(&other.overlapped);
    }
}

/// A test program, and how to run some of its tests.
struct Program {
    executable: Executable,
    names: Vec<String>,
    /// `--exact` takes several names.
    takes_many: bool,
    /// The time to run all tests in one process, and the time to run none.
    whole: Duration,
    start: Duration,
}

/// A test that passes without a mutant.
#[derive(Debug, Clone, PartialEq)]
struct Test {
    /// The index of its program.
    program: usize,
    name: String,
    time: Duration,
    /// `None` if it passes only untraced: it may reach any mutant.
    trace: Option<Trace>,
}

/// The tests of one or more packages.
pub(super) struct Tests<'run> {
    tree: &'run Tree,
    programs: Vec<Program>,
    tests: Vec<Test>,
    /// The mutants that at least one of them reaches.
    trace: Trace,
    skip: Option<&'static str>,
}

impl<'run> Tests<'run> {
    /// Lists the tests of these programs, except those whose name contains `skip`.
    pub(super) fn list(
        tree: &'run Tree,
        executables: Vec<Executable>,
        skip: Option<&'static str>,
    ) -> Result<Self> {
        let mut programs = Vec::new();
        for executable in executables {
            let start = Instant::now();
            let all = tree.output(&executable, &["--list", "--format", "terse"])?;
            let start = start.elapsed();
            let ignored =
                tree.output(&executable, &["--list", "--format", "terse", "--ignored"])?;
            let ignored: BTreeSet<_> = names(&ignored).collect();
            let is_run = |name: &&str| {
                !ignored.contains(name) && skip.is_none_or(|skip| !name.contains(skip))
            };
            let names: Vec<String> = names(&all).filter(is_run).map(str::to_owned).collect();
            if names.is_empty() {
                continue;
            }
            let takes_many = match &names[..] {
                [first, second, ..] => {
                    let listed = tree.output(&executable, &["--list", "--exact", first, second]);
                    listed.is_ok_and(|it| self::names(&it).count() == 2)
                }
                _ => true,
            };
            let whole = Duration::MAX;
            programs.push(Program { executable, names, takes_many, whole, start });
        }
        Ok(Self { tree, programs, tests: Vec::new(), trace: Trace::default(), skip })
    }

    pub(super) fn count(&self) -> usize {
        self.programs.iter().map(|it| it.names.len()).sum()
    }

    /// The mutants that at least one test reaches.
    pub(super) fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Whether a test could fail with this mutant. If the mutant's operands are observed, it makes
    /// a difference only in a test in which they have a bit in common.
    pub(super) fn may_kill(&self, number: u32, is_observed: bool) -> bool {
        let makes_a_difference =
            if is_observed { &self.trace.overlapped } else { &self.trace.reached };
        makes_a_difference.contains(&number) || self.tests.iter().any(|it| it.trace.is_none())
    }

    /// Runs each program once, and notes which mutants it reaches; whether all tests pass.
    pub(super) fn trace_whole(&mut self) -> Result<bool> {
        let mut all_pass = true;
        for at in 0..self.programs.len() {
            let start = Instant::now();
            let (passed, trace) = self.traced(at, &self.whole())?;
            self.programs[at].whole = start.elapsed();
            self.trace.add(&trace);
            all_pass &= passed;
        }
        Ok(all_pass)
    }

    /// The time of one run of all tests.
    pub(super) fn whole_time(&self) -> Duration {
        self.programs.iter().map(|it| it.whole).fold(Duration::ZERO, Duration::saturating_add)
    }

    /// The approximate time to trace each test.
    pub(super) fn each_time(&self) -> Duration {
        let each = |it: &Program| it.start * u32::try_from(it.names.len()).unwrap_or(u32::MAX);
        self.programs.iter().map(each).sum::<Duration>()
    }

    /// Runs each test without a mutant, and notes which mutants it reaches.
    pub(super) fn trace_each(&mut self) -> Result {
        let mut failing = Vec::new();
        let mut progress = Instant::now();
        for program in 0..self.programs.len() {
            for name in self.programs[program].names.clone() {
                let start = Instant::now();
                let only = [vec!["--exact".into()], vec![name.clone()]].concat();
                let (passed, trace) = self.traced(program, &only)?;
                let time = start.elapsed();
                self.trace.add(&trace);
                if passed {
                    self.tests.push(Test { program, name, time, trace: Some(trace) });
                } else if self.passes(program, &only, 0, Duration::from_secs(600))? {
                    self.tests.push(Test { program, name, time, trace: None });
                } else {
                    println!("fails with switches in the sources, and kills nothing: {name}");
                    failing.push(name);
                }
                if progress.elapsed() > Duration::from_secs(30) {
                    println!("traced {} of {} tests", self.tests.len(), self.count());
                    progress = Instant::now();
                }
            }
        }
        if failing.len() > 1 + self.count() / TESTS_PER_FAILURE {
            let (failed, count) = (failing.len(), self.count());
            return Err(format!(
                "{failed} of {count} tests fail without a mutant; see {}",
                self.tree.log().display()
            )
            .into());
        }
        self.tests.sort_by_key(|test| test.time);
        Ok(())
    }

    /// Whether a test fails with the mutant. Runs the tests that reach it, and those without a
    /// trace.
    pub(super) fn kill(&self, number: u32) -> Result<bool> {
        if self.tests.is_empty() {
            return any(0..self.programs.len(), |at| self.is_killed_by_all(at, number));
        }
        let reaches =
            |test: &&Test| test.trace.as_ref().is_none_or(|trace| trace.reached.contains(&number));
        let tests: Vec<&Test> = self.tests.iter().filter(reaches).collect();
        let mut rest: BTreeMap<usize, Vec<&Test>> = BTreeMap::new();
        for (at, test) in tests.into_iter().enumerate() {
            if at < SINGLE_RUNS {
                if self.is_killed_by(test.program, &[test], number)? {
                    return Ok(true);
                }
            } else {
                rest.entry(test.program).or_default().push(test);
            }
        }
        any(rest, |(program, tests)| {
            let time: Duration = tests.iter().map(|it| it.time).sum();
            if !self.programs[program].takes_many && time > self.programs[program].whole {
                return self.is_killed_by_all(program, number);
            }
            let one = !self.programs[program].takes_many;
            let (mut from, mut size) = (0, if one { 1 } else { SINGLE_RUNS });
            while from < tests.len() {
                let to = tests.len().min(from + size);
                if self.is_killed_by(program, &tests[from..to], number)? {
                    return Ok(true);
                }
                (from, size) = (to, if one { 1 } else { size * 4 });
            }
            Ok(false)
        })
    }

    fn is_killed_by(&self, program: usize, tests: &[&Test], number: u32) -> Result<bool> {
        let mut arguments = vec!["--exact".to_owned()];
        arguments.extend(tests.iter().map(|test| test.name.clone()));
        let time: Duration = tests.iter().map(|it| it.time).sum();
        Ok(!self.passes(program, &arguments, number, TEST_TIMEOUT + time * TIMEOUT_FACTOR)?)
    }

    /// Whether any test of a program fails.
    fn is_killed_by_all(&self, program: usize, number: u32) -> Result<bool> {
        let Program { executable, whole, .. } = &self.programs[program];
        let mut command = self.tree.test(executable, &self.whole())?;
        command.env("VERBLESS_MUTANT", number.to_string());
        let limit = TEST_TIMEOUT.saturating_add(whole.saturating_mul(TIMEOUT_FACTOR));
        Ok(!trial::all_pass(command, limit, &self.tree.log())?)
    }

    /// The arguments for all tests of a program.
    fn whole(&self) -> Vec<String> {
        self.skip.map_or(Vec::new(), |skip| vec!["--skip".into(), skip.into()])
    }

    fn traced(&self, program: usize, arguments: &[String]) -> Result<(bool, Trace)> {
        let file = self.trace_file();
        fs::write(&file, "")?;
        let limit = Duration::from_secs(1200);
        let mut command = self.tree.test(&self.programs[program].executable, arguments)?;
        command.env("VERBLESS_MUTANT", "trace").env("VERBLESS_MUTANT_TRACE", &file);
        let passed = trial::passes(command, limit)?;
        Ok((passed, Trace::read(&fs::read_to_string(file)?)))
    }

    fn passes(
        &self,
        program: usize,
        arguments: &[String],
        number: u32,
        limit: Duration,
    ) -> Result<bool> {
        let mut command = self.tree.test(&self.programs[program].executable, arguments)?;
        command.env("VERBLESS_MUTANT", number.to_string());
        trial::passes(command, limit)
    }

    fn trace_file(&self) -> PathBuf {
        self.tree.log().with_file_name("trace.txt")
    }
}

/// The names in a list of tests.
fn names(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter_map(|line| line.strip_suffix(": test"))
}

fn any<T>(of: impl IntoIterator<Item = T>, is: impl Fn(T) -> Result<bool>) -> Result<bool> {
    for it in of {
        if is(it)? {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_has_reached_and_overlapped_mutants() {
        let trace = Trace::read("r0000000007\no0000000012\nr0000000012\nr00000");
        assert_eq!(trace.reached, [0, 7, 12].into());
        assert_eq!(trace.overlapped, [12].into());
    }

    #[test]
    fn list_has_tests_only() {
        let list = "a::b: test\nbench: benchmark\nwith space::c: test\n\n2 tests, 1 benchmark\n";
        assert_eq!(names(list).collect::<Vec<_>>(), ["a::b", "with space::c"]);
    }
}
