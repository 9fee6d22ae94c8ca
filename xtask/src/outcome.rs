//! The outcome of a step of `cargo xtask test`, and its expected skips.
//!
//! A test that cannot run here prints `skipped: NAME: REASON` to standard error, since its runner
//! knows only ok and failed. With `CI=true` such a skip fails the step, unless
//! `xtask/expected-skips.toml` lists it: the environment cannot offer everything.

use std::collections::BTreeMap;

use crate::workspace::Result;

/// The list of expected skips, by step, compiled into this program.
const LIST: &str = include_str!("../expected-skips.toml");

/// The outcome of a step.
pub(crate) enum Outcome {
    /// The step ran: the numbers of passed and failed checks, and the skipped ones. `more`: skips
    /// that the runner counted itself, and compares with lists of its own.
    Ran { passed: u64, failed: u64, skips: Vec<Skip>, more: u64 },
    /// The step cannot run here.
    Skipped(String),
}

impl Outcome {
    /// The outcome of a step that ran without skips.
    pub(crate) fn ran(passed: u64, failed: u64) -> Self {
        Self::Ran { passed, failed, skips: Vec::new(), more: 0 }
    }
}

/// A check that did not run.
#[derive(Debug, PartialEq)]
pub(crate) struct Skip {
    pub(crate) name: String,
    pub(crate) reason: String,
}

impl Skip {
    /// The skip in a line of a test's output. The test's name precedes it if the tests run one at a
    /// time.
    pub(crate) fn of_line(line: &str) -> Option<Self> {
        let behind_a_name = || line.strip_prefix("test ")?.split_once(" ... ").map(|it| it.1);
        let text = behind_a_name().unwrap_or(line).strip_prefix("skipped: ")?;
        let (name, reason) = text.split_once(": ")?;
        Some(Self { name: name.into(), reason: reason.into() })
    }
}

/// Names of checks that may be skipped in each step, with the reasons.
pub(crate) struct ExpectedSkips(BTreeMap<String, BTreeMap<String, String>>);

impl ExpectedSkips {
    pub(crate) fn read() -> Result<Self> {
        Ok(Self(toml::from_str(LIST)?))
    }

    pub(crate) fn has(&self, step: &str, skip: &Skip) -> bool {
        self.0.get(step).is_some_and(|names| names.contains_key(&skip.name))
    }

    /// All entries, as steps and names.
    #[cfg(test)]
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .flat_map(|(step, names)| names.keys().map(move |name| (step.as_str(), name.as_str())))
    }
}

#[cfg(test)]
mod tests {
    use super::{ExpectedSkips, Skip};

    #[test]
    fn skip_line_is_parsed_with_test_name() {
        let skip = || Some(Skip { name: "a_test".into(), reason: "no python3: sorry".into() });
        assert_eq!(Skip::of_line("skipped: a_test: no python3: sorry"), skip());
        assert_eq!(Skip::of_line("test a_test ... skipped: a_test: no python3: sorry"), skip());
        assert_eq!(Skip::of_line("test a_test ... ok"), None);
        assert_eq!(Skip::of_line("3 passed, 0 failed, 1 skipped: none"), None);
    }

    #[test]
    fn skip_is_expected_in_own_step_only() {
        let list = ExpectedSkips::read().unwrap();
        let (step, name) = list.entries().next().unwrap();
        let skip = Skip { name: name.into(), reason: String::new() };
        assert!(list.has(step, &skip));
        assert!(!list.has("format", &skip));
        assert!(!list.has(step, &Skip { name: "another".into(), reason: String::new() }));
    }

    #[test]
    fn expected_skips_name_existing_steps_and_tests() {
        let file = crate::workspace::workspace_root().join("crates/model-host/tests/preflight.rs");
        let tests = std::fs::read_to_string(file).unwrap();
        for (step, name) in ExpectedSkips::read().unwrap().entries() {
            assert!(crate::test::is_step(step), "there is no step {step:?}");
            let known = tests.contains(&format!("fn {name}()"))
                || crate::sandbox::has(name)
                || name == crate::vm::rxe::BY_UDP
                || name == "ifc header";
            assert!(known, "there is neither a test, a sandbox nor a check {name:?}");
        }
    }
}
