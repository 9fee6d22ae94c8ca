//! Results as a table, as JSON and as JUnit XML.

#[cfg(feature = "junit")]
use std::time::Duration;

#[cfg(feature = "junit")]
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};
use serde::Serialize;

/// How a case ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "outcome", content = "reason")]
pub enum Outcome {
    /// The case passed.
    Passed,
    /// The case failed, for this reason.
    Failed(String),
    /// The case could not run; says what is missing.
    Skipped(String),
}

/// The result of a case.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// `group::name` of the case.
    pub case: String,
    /// The outcome of the case.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Wall-clock seconds that it took.
    pub seconds: f64,
}

/// A whole run.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// The device: `model …` or `hardware …`.
    pub device: String,
    /// Facts checked before the run: port state, GID, memory limit, capabilities of the process.
    pub preconditions: Vec<String>,
    /// The results, one for each case.
    pub cases: Vec<Row>,
}

impl Run {
    /// Cases that passed, failed and were skipped.
    pub fn counts(&self) -> (usize, usize, usize) {
        let count = |matches: fn(&Outcome) -> bool| {
            self.cases.iter().filter(|row| matches(&row.outcome)).count()
        };
        (
            count(|outcome| *outcome == Outcome::Passed),
            count(|outcome| matches!(outcome, Outcome::Failed(_))),
            count(|outcome| matches!(outcome, Outcome::Skipped(_))),
        )
    }

    /// The run as JSON: device, preconditions, counts, and an entry per case.
    pub fn json(&self) -> serde_json::Result<String> {
        #[derive(Serialize)]
        struct Whole<'a> {
            passed: usize,
            failed: usize,
            skipped: usize,
            #[serde(flatten)]
            run: &'a Run,
        }
        let (passed, failed, skipped) = self.counts();
        serde_json::to_string_pretty(&Whole { passed, failed, skipped, run: self })
    }

    /// The run as JUnit XML, one suite per group.
    #[cfg(feature = "junit")]
    pub fn junit(&self) -> Result<String, quick_junit::SerializeError> {
        let mut report = Report::new(format!("verbless hwtest on {}", self.device));
        for rows in self.cases.chunk_by(|a, b| group(&a.case) == group(&b.case)) {
            let mut suite = TestSuite::new(group(&rows[0].case));
            for row in rows {
                let status = match &row.outcome {
                    Outcome::Passed => TestCaseStatus::success(),
                    Outcome::Failed(reason) => {
                        let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
                        status.set_message(reason.as_str());
                        status
                    }
                    Outcome::Skipped(reason) => {
                        let mut status = TestCaseStatus::skipped();
                        status.set_message(reason.as_str());
                        status
                    }
                };
                let mut case = TestCase::new(name(&row.case), status);
                case.set_time(Duration::from_secs_f64(row.seconds));
                suite.add_test_case(case);
            }
            report.add_test_suite(suite);
        }
        report.to_string()
    }
}

#[cfg(feature = "junit")]
fn group(case: &str) -> &str {
    case.split_once("::").map_or(case, |(group, _)| group)
}

#[cfg(feature = "junit")]
fn name(case: &str) -> &str {
    case.split_once("::").map_or(case, |(_, name)| name)
}

impl Row {
    /// The row of the table.
    pub fn line(&self) -> String {
        let milliseconds = self.seconds * 1e3;
        match &self.outcome {
            Outcome::Passed => format!("pass  {:<86} {milliseconds:>8.1} ms", self.case),
            Outcome::Failed(reason) => format!("FAIL  {}\n      {reason}", self.case),
            Outcome::Skipped(reason) => format!("skip  {}\n      {reason}", self.case),
        }
    }
}
