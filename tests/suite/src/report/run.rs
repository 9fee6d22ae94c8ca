//! The results of a run.

use crate::FailedCommand;

/// How a case ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The case passed.
    Passed,
    /// The case failed, for this reason.
    Failed(String),
    /// The case could not run; says what is missing.
    Skipped(String),
    /// The case needs a link of the doctor's chain that failed; names the link.
    Blocked(String),
}

/// The result of a case.
#[derive(Debug, Clone)]
pub struct Row {
    /// `group::name` of the case.
    pub case: String,
    /// The outcome of the case.
    pub outcome: Outcome,
    /// Wall-clock seconds that it took.
    pub seconds: f64,
    /// The last commands that failed before the case did.
    pub failed_commands: Vec<FailedCommand>,
    /// Lines of mlx5 that the kernel logged while the case failed, if its log may be read.
    pub kernel_log: Vec<String>,
}

/// A whole run.
#[derive(Debug, Clone)]
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

    /// Cases that a failed link of the chain blocked.
    pub fn blocked(&self) -> usize {
        self.cases.iter().filter(|row| matches!(row.outcome, Outcome::Blocked(_))).count()
    }

    /// The failures by cause, the most frequent first: a reason, and the cases that failed for it.
    /// Reasons that differ only in numbers are one cause.
    pub fn causes(&self) -> Vec<(&str, Vec<&str>)> {
        let mut causes: Vec<(String, &str, Vec<&str>)> = Vec::new();
        for row in &self.cases {
            let Outcome::Failed(reason) = &row.outcome else { continue };
            let cause = cause(reason);
            match causes.iter_mut().find(|(known, ..)| *known == cause) {
                Some((_, _, cases)) => cases.push(&row.case),
                None => causes.push((cause, reason, vec![&row.case])),
            }
        }
        causes.sort_by_key(|(_, _, cases)| std::cmp::Reverse(cases.len()));
        causes.into_iter().map(|(_, reason, cases)| (reason, cases)).collect()
    }

    /// The cause of every failure so far, if there are at least `min`, all for this one cause,
    /// and no case has passed.
    pub fn sole_cause(&self, min: usize) -> Option<&str> {
        let (passed, failed, _) = self.counts();
        let causes = if passed == 0 && failed >= min { self.causes() } else { return None };
        match causes[..] {
            [(reason, _)] => Some(reason),
            _ => None,
        }
    }
}

/// A reason without its numbers.
fn cause(reason: &str) -> String {
    let mut cause = String::new();
    let mut in_number = false;
    for letter in reason.chars() {
        let digit =
            letter.is_ascii_digit() || in_number && (letter.is_ascii_hexdigit() || letter == 'x');
        match (digit, in_number) {
            (true, false) => cause.push('#'),
            (true, true) => {}
            (false, _) => cause.push(letter),
        }
        in_number = digit;
    }
    cause
}

impl Row {
    /// The group of the case.
    pub fn group(&self) -> &str {
        self.case.split_once("::").map_or(&self.case, |(group, _)| group)
    }

    /// The name of the case within its group.
    pub fn name(&self) -> &str {
        self.case.split_once("::").map_or(&self.case, |(_, name)| name)
    }

    /// The row of the table.
    pub fn line(&self) -> String {
        let milliseconds = self.seconds * 1e3;
        match &self.outcome {
            Outcome::Passed => format!("pass  {:<86} {milliseconds:>8.1} ms", self.case),
            Outcome::Failed(reason) => format!("FAIL  {}\n      {reason}", self.case),
            Outcome::Skipped(reason) => format!("skip  {}\n      {reason}", self.case),
            Outcome::Blocked(reason) => format!("BLOCK {}\n      {reason}", self.case),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(rows: &[(&str, Outcome)]) -> Run {
        let row = |(case, outcome): &(&str, Outcome)| Row {
            case: case.to_string(),
            outcome: outcome.clone(),
            seconds: 0.0,
            failed_commands: Vec::new(),
            kernel_log: Vec::new(),
        };
        let cases = rows.iter().map(row).collect();
        Run { device: "the model".into(), preconditions: Vec::new(), cases }
    }

    #[test]
    fn failures_differing_in_numbers_share_one_cause() {
        let failed = |why: &str| Outcome::Failed(why.into());
        let run = run(&[
            ("a::one", failed("umem at 0x7f12ab: ENOMEM")),
            ("a::two", Outcome::Passed),
            ("b::one", failed("hung: no end after 60 s")),
            ("b::two", failed("umem at 0x55: ENOMEM")),
        ]);
        let causes = run.causes();
        assert_eq!(causes[0], ("umem at 0x7f12ab: ENOMEM", vec!["a::one", "b::two"]));
        assert_eq!(causes[1], ("hung: no end after 60 s", vec!["b::one"]));
        assert_eq!(causes.len(), 2);
    }

    #[test]
    fn sole_cause_needs_enough_failures_and_no_pass() {
        let failed = |why: &str| Outcome::Failed(why.into());
        let two = [("a::one", failed("port 1 is DOWN")), ("a::two", failed("port 1 is DOWN"))];
        assert_eq!(run(&two).sole_cause(2), Some("port 1 is DOWN"));
        assert_eq!(run(&two).sole_cause(3), None);
        let passed = [two[0].clone(), two[1].clone(), ("a::three", Outcome::Passed)];
        assert_eq!(run(&passed).sole_cause(2), None);
        let other = [two[0].clone(), ("a::two", failed("ENOMEM"))];
        assert_eq!(run(&other).sole_cause(2), None);
    }
}
