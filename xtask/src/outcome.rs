//! The outcome of a step of `cargo xtask test`, and which of its skips are right.
//!
//! A test that cannot run here prints `skipped: NAME: REASON` to standard error, since its runner
//! knows only ok and failed. Where `CI=true` such a skip fails the step, except for those in
//! `xtask/expected-skips.toml`: what the environment cannot offer.

use std::collections::BTreeMap;

use crate::workspace::Result;

/// The list of skips that are right everywhere, by step, as this program was built with it.
const LIST: &str = include_str!("../expected-skips.toml");

/// The outcome of a step.
pub(crate) enum Outcome {
    /// The step ran; these numbers of checks passed and failed, and these were skipped. `more`:
    /// skips that the runner counted itself, and compares with lists of its own.
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
    /// The one that a line of a test's output tells of. It stands behind the test's name where the
    /// tests run one at a time.
    pub(crate) fn of_line(line: &str) -> Option<Self> {
        let behind_a_name = || line.strip_prefix("test ")?.split_once(" ... ").map(|it| it.1);
        let text = behind_a_name().unwrap_or(line).strip_prefix("skipped: ")?;
        let (name, reason) = text.split_once(": ")?;
        Some(Self { name: name.into(), reason: reason.into() })
    }
}

/// Names of checks that may be skipped in each step, with why.
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
    fn a_skip_is_found_alone_on_its_line_and_behind_the_name_of_its_test() {
        let skip = || Some(Skip { name: "a_test".into(), reason: "no python3: sorry".into() });
        assert_eq!(Skip::of_line("skipped: a_test: no python3: sorry"), skip());
        assert_eq!(Skip::of_line("test a_test ... skipped: a_test: no python3: sorry"), skip());
        assert_eq!(Skip::of_line("test a_test ... ok"), None);
        assert_eq!(Skip::of_line("3 passed, 0 failed, 1 skipped: none"), None);
    }

    #[test]
    fn a_skip_is_expected_in_its_step_alone() {
        let list = ExpectedSkips::read().unwrap();
        let (step, name) = list.entries().next().unwrap();
        let skip = Skip { name: name.into(), reason: String::new() };
        assert!(list.has(step, &skip));
        assert!(!list.has("format", &skip));
        assert!(!list.has(step, &Skip { name: "another".into(), reason: String::new() }));
    }

    #[test]
    fn every_expected_skip_names_a_step_and_a_test_or_sandbox_that_exist() {
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
