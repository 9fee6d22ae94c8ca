//! `hwtest --unknowns`: the questions that only a card answers, by the cases that ask them.

use std::fmt::Write;

use serde::Deserialize;
use verbless_conformance::{Outcome, Run};

/// A question of `tests/suite/unknowns.toml`; the others of its keys are for the documentation.
#[derive(Deserialize)]
pub(crate) struct Unknown {
    name: String,
    question: String,
    answers: Vec<String>,
    /// `group::name` of the case that asks it; empty if there is none.
    #[serde(default)]
    pub(crate) case: String,
    /// What else to do.
    #[serde(default)]
    ask: String,
}

/// The questions that a case asks, in the order of the file.
pub(crate) fn asked() -> Result<Vec<Unknown>, toml::de::Error> {
    #[derive(Deserialize)]
    struct Unknowns {
        unknown: Vec<Unknown>,
    }
    let mut all: Unknowns = toml::from_str(include_str!("../../unknowns.toml"))?;
    all.unknown.retain(|unknown| !unknown.case.is_empty());
    Ok(all.unknown)
}

/// Each question with the outcome of its case, and what each answer would mean.
pub(crate) fn report(unknowns: &[Unknown], run: &Run, is_model: bool) -> String {
    let mut out = String::from("\nWhat only a card can answer (docs/hardware-unknowns.md):\n");
    if is_model {
        out += "this is the model: its outcomes answer nothing\n";
    }
    for Unknown { name, question, answers, case, ask } in unknowns {
        let outcome = run.cases.iter().find(|row| row.case == *case).map(|row| &row.outcome);
        let outcome = match outcome {
            Some(Outcome::Passed) => "passed".to_owned(),
            Some(Outcome::Failed(why)) => format!("failed: {why}"),
            Some(Outcome::Skipped(why)) => format!("skipped: {why}"),
            Some(Outcome::Blocked(why)) => format!("blocked: {why}"),
            None => "not run".to_owned(),
        };
        let _ = writeln!(out, "\n{name}\n  {question}\n  {case}: {outcome}");
        answers.iter().for_each(|answer| _ = writeln!(out, "  - {answer}"));
        if !ask.is_empty() {
            let _ = writeln!(out, "  {ask}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use verbless_conformance::{Row, cases};

    use super::*;

    #[test]
    fn each_question_with_a_case_names_one_of_the_suite() {
        let unknowns = asked().expect("the file is sound");
        assert!(unknowns.len() > 10, "{}", unknowns.len());
        for unknown in &unknowns {
            assert!(cases().any(|case| case.id() == unknown.case), "{}", unknown.case);
        }
    }

    #[test]
    fn report_has_outcome_and_answers_of_each_question() {
        let unknowns = asked().expect("the file is sound");
        let row = Row {
            case: unknowns[0].case.clone(),
            outcome: Outcome::Failed("it is so".into()),
            seconds: 0.0,
            failed_commands: Vec::new(),
            kernel_log: Vec::new(),
        };
        let run = Run { device: String::new(), preconditions: Vec::new(), cases: vec![row] };
        let text = report(&unknowns, &run, true);
        assert!(text.contains(": failed: it is so\n") && text.contains(": not run\n"), "{text}");
        assert!(text.contains("answer nothing") && text.contains(&unknowns[1].answers[0]));
        assert!(!report(&unknowns, &run, false).contains("answer nothing"));
    }
}
