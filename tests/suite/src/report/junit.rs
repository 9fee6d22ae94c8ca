//! The results as JUnit XML, which CI systems show: one suite per group.
//!
//! The format has no specification; these are the elements and attributes that Jenkins, GitLab and
//! GitHub's actions read: <https://github.com/testmoapp/junitxml>.

use std::fmt::{self, Write};

use super::markup::Escaped;
use super::{Outcome, Row, Run};

impl Run {
    /// The run as JUnit XML.
    pub fn junit(&self) -> String {
        let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
        // Writing into a string does not fail.
        let _ = self.write_junit(&mut out);
        out
    }

    fn write_junit(&self, out: &mut String) -> fmt::Result {
        let name = format!("verbless hwtest on {}", self.device);
        writeln!(out, "<testsuites name=\"{}\"{}>", Escaped(name), Totals(&self.cases))?;
        for rows in self.cases.chunk_by(|a, b| a.group() == b.group()) {
            let group = rows.first().map_or("", Row::group);
            writeln!(out, "  <testsuite name=\"{}\"{}>", Escaped(group), Totals(rows))?;
            rows.iter().try_for_each(|row| case(out, row))?;
            writeln!(out, "  </testsuite>")?;
        }
        writeln!(out, "</testsuites>")
    }
}

fn case(out: &mut String, row: &Row) -> fmt::Result {
    write!(
        out,
        "    <testcase name=\"{}\" classname=\"{}\" time=\"{:.6}\"",
        Escaped(row.name()),
        Escaped(row.group()),
        row.seconds
    )?;
    match &row.outcome {
        Outcome::Passed => writeln!(out, "/>"),
        Outcome::Failed(reason) => {
            let reason = Escaped(reason);
            writeln!(out, "><failure message=\"{reason}\">{reason}</failure></testcase>")
        }
        Outcome::Skipped(reason) => {
            writeln!(out, "><skipped message=\"{}\"/></testcase>", Escaped(reason))
        }
    }
}

/// The attributes that sum up some cases.
struct Totals<'a>(&'a [Row]);

impl fmt::Display for Totals<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |is: fn(&Outcome) -> bool| self.0.iter().filter(|row| is(&row.outcome)).count();
        write!(
            f,
            " tests=\"{}\" failures=\"{}\" skipped=\"{}\" errors=\"0\" time=\"{:.6}\"",
            self.0.len(),
            count(|outcome| matches!(outcome, Outcome::Failed(_))),
            count(|outcome| matches!(outcome, Outcome::Skipped(_))),
            self.0.iter().map(|row| row.seconds).sum::<f64>()
        )
    }
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
        let row = |case: &str, outcome| Row { case: case.into(), outcome, seconds: 0.25 };
        let run = Run {
            device: "the model".into(),
            preconditions: Vec::new(),
            cases: vec![
                row("qp::one", Outcome::Passed),
                row("qp::two", Outcome::Failed(reason.into())),
                row("umr::one", Outcome::Skipped("it needs a & b".into())),
            ],
        };
        let found = elements(&run.junit());
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
                "skipped"
            ]
        );
        let of = |at: usize, key: &str| {
            let (_, attributes) = &found[at];
            attributes.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
        };
        assert_eq!((of(0, "tests"), of(0, "time")), (Some("3"), Some("0.750000")));
        assert_eq!(
            (of(1, "name"), of(1, "failures"), of(1, "skipped")),
            (Some("qp"), Some("1"), Some("0"))
        );
        assert_eq!((of(3, "classname"), of(3, "name")), (Some("qp"), Some("two")));
        assert_eq!(of(4, "message"), Some(reason));
        assert_eq!(of(7, "message"), Some("it needs a & b"));
    }
}
