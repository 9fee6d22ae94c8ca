//! The results as JUnit XML, which CI systems show: one suite per group.

use std::time::Duration;

use quick_junit::{NonSuccessKind, Report, SerializeError, TestCase, TestCaseStatus, TestSuite};

use super::run::{Outcome, Row, Run};

impl Run {
    /// The run as JUnit XML.
    ///
    /// # Errors
    /// The writer refuses: writing to memory does not fail.
    pub fn junit(&self) -> Result<String, SerializeError> {
        let mut report = Report::new(format!("verbless hwtest on {}", self.device));
        for rows in self.cases.chunk_by(|a, b| a.group() == b.group()) {
            let mut suite = TestSuite::new(rows.first().map_or("", Row::group));
            suite.add_test_cases(rows.iter().map(case));
            report.add_test_suite(suite);
        }
        report.to_string()
    }
}

fn case(row: &Row) -> TestCase {
    let status = match &row.outcome {
        Outcome::Passed => TestCaseStatus::success(),
        Outcome::Failed(reason) => {
            let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
            status.set_message(reason.as_str());
            status
        }
        Outcome::Skipped(reason) | Outcome::Blocked(reason) => {
            let mut status = TestCaseStatus::skipped();
            status.set_message(reason.as_str());
            status
        }
    };
    let mut case = TestCase::new(row.name(), status);
    case.set_classname(row.group());
    case.set_time(Duration::from_secs_f64(row.seconds));
    case
}

#[cfg(test)]
mod tests {
    use quick_xml::Reader;
    use quick_xml::events::Event;

    use super::*;

    /// The elements of an XML text in order, each as its name and attributes.
    fn elements(text: &str) -> Vec<(String, Vec<(String, String)>)> {
        let mut reader = Reader::from_str(text);
        let mut found = Vec::new();
        loop {
            match reader.read_event().expect("well-formed") {
                Event::Start(tag) | Event::Empty(tag) => {
                    let attributes = tag.attributes().map(|it| {
                        let it = it.expect("an attribute");
                        let value = String::from_utf8_lossy(&it.value).into_owned();
                        let value = quick_xml::escape::unescape(&value).expect("known entities");
                        (String::from_utf8_lossy(it.key.as_ref()).into(), value.into_owned())
                    });
                    let name = String::from_utf8_lossy(tag.name().as_ref()).into_owned();
                    found.push((name, attributes.collect()));
                }
                Event::Eof => return found,
                _ => {}
            }
        }
    }

    #[test]
    fn junit_has_suites_counts_and_exact_reasons() {
        let reason = "QP 0x80 is \"in\" <RESET> & stays\nthere";
        let row = |case: &str, outcome| Row {
            case: case.into(),
            outcome,
            seconds: 0.25,
            failed_commands: Vec::new(),
            kernel_log: Vec::new(),
        };
        let run = Run {
            device: "the model".into(),
            preconditions: Vec::new(),
            cases: vec![
                row("qp::one", Outcome::Passed),
                row("qp::two", Outcome::Failed(reason.into())),
                row("umr::one", Outcome::Skipped("it needs a & b".into())),
                row("umr::two", Outcome::Blocked("blocked by port".into())),
            ],
        };
        let found = elements(&run.junit().unwrap());
        let names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            [
                "testsuites",
                "testsuite",
                "testcase",
                "testcase",
                "failure",
                "testsuite",
                "testcase",
                "skipped",
                "testcase",
                "skipped"
            ]
        );
        let of = |at: usize, key: &str| {
            let (_, attributes) = &found[at];
            attributes.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
        };
        assert_eq!((of(0, "tests"), of(2, "time")), (Some("4"), Some("0.250")));
        assert_eq!(
            (of(1, "name"), of(1, "failures"), of(1, "disabled")),
            (Some("qp"), Some("1"), Some("0"))
        );
        assert_eq!((of(3, "classname"), of(3, "name")), (Some("qp"), Some("two")));
        assert_eq!(of(4, "message"), Some(reason));
        assert_eq!(of(7, "message"), Some("it needs a & b"));
        assert_eq!(of(9, "message"), Some("blocked by port"));
    }
}
