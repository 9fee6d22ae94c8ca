//! The questions that only a card answers: `tests/suite/unknowns.toml`, which hwtest contains, and
//! `docs/hardware-unknowns.md`, which is made from it.

use std::fmt::Write as _;

use serde::Deserialize;

use crate::workspace::Result;

/// A question.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Unknown {
    /// Words joined by hyphens.
    pub(super) name: String,
    question: String,
    /// What follows from each answer.
    answers: Vec<String>,
    /// Rows of the ledger that raise it.
    #[serde(default)]
    pub(super) rows: Vec<String>,
    /// The case of the conformance suite whose outcome answers it; empty if there is none.
    #[serde(default)]
    pub(super) case: String,
    /// How to ask a card if no case does.
    #[serde(default)]
    ask: String,
    /// The place in the documentation, or the commit, that it comes from.
    source: String,
}

/// Reads the questions.
pub(super) fn read(text: &str) -> Result<Vec<Unknown>> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Unknowns {
        unknown: Vec<Unknown>,
    }
    Ok(toml::from_str::<Unknowns>(text)?.unknown)
}

impl Unknown {
    /// What is wrong with it by itself.
    pub(super) fn fault(&self) -> Option<&'static str> {
        let is_name = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
        let words = self.name.split('-');
        if { words }.any(|word| word.is_empty() || !word.chars().all(is_name)) {
            return Some("the name is not lower-case words joined by hyphens");
        }
        if self.question.trim().is_empty() || self.source.trim().is_empty() {
            return Some("question or source is empty");
        }
        if self.answers.is_empty() {
            return Some("it has no answer: what would follow from it");
        }
        let unasked = self.case.is_empty() && self.ask.trim().is_empty();
        unasked.then_some("it names neither a case nor a way to ask")
    }
}

/// The text of `docs/hardware-unknowns.md`.
pub(super) fn render(unknowns: &[Unknown]) -> String {
    let intro = "No card has met the driver yet. This page lists what the model and public sources \
                 leave open, what each answer would mean, and how to ask. `hwtest --unknowns` runs \
                 the cases that answer a question and reports just these; send the file of \
                 `hwtest --unknowns --json FILE`. `cargo xtask ledger --render` makes this page \
                 from `tests/suite/unknowns.toml`.";
    let mut out = format!("# What only a card can answer\n\n{}", wrapped(intro, ""));
    let (with, without): (Vec<&Unknown>, Vec<&Unknown>) =
        unknowns.iter().partition(|it| !it.case.is_empty());
    for (title, part) in
        [("Answered by a case of the suite", with), ("To be asked in another way", without)]
    {
        let _ = write!(out, "\n## {title}\n");
        for it in part {
            let _ = write!(out, "\n### {}\n\n", it.name);
            out += &wrapped(&it.question, "");
            out.push('\n');
            for answer in &it.answers {
                out += &wrapped(&format!("- {answer}"), "  ");
            }
            out.push('\n');
            if !it.case.is_empty() {
                out += &wrapped(&format!("Case: `{}`.", it.case), "");
            }
            if !it.ask.trim().is_empty() {
                out += &wrapped(&format!("To ask: {}", it.ask.trim()), "");
            }
            let rows = match it.rows.len() {
                0 => String::new(),
                _ => format!(" Ledger: {}.", it.rows.join(", ")),
            };
            out += &wrapped(&format!("From: {}.{rows}", it.source.trim_end_matches('.')), "");
        }
    }
    out
}

/// A paragraph in lines of at most 120 columns; `indent` begins all but the first.
fn wrapped(text: &str, indent: &str) -> String {
    const WIDTH: usize = 120;
    let mut out = String::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.trim().is_empty() && line.chars().count() + 1 + word.chars().count() > WIDTH {
            out += &format!("{line}\n");
            line = format!("{indent}{word}");
        } else if line.trim().is_empty() {
            line += word;
        } else {
            line += &format!(" {word}");
        }
    }
    out + &line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[[unknown]]\nname = \"a-1\"\nquestion = \"Does it?\"\n\
                        answers = [\"If it does: right.\", \"If not: change it.\"]\n\
                        case = \"rc::a\"\nsource = \"fidelity.md\"\n";

    #[test]
    fn question_needs_name_answer_and_way_to_ask() {
        let fault = |from: &str, to: &str| read(&TEXT.replace(from, to)).unwrap()[0].fault();
        assert_eq!(fault("a-1", "a-1"), None);
        assert!(fault("a-1", "A 1").unwrap().contains("name"));
        assert!(fault("rc::a", "").unwrap().contains("case"));
        let both = "\"If it does: right.\", \"If not: change it.\"";
        assert!(fault(both, "").unwrap().contains("no answer"));
    }

    #[test]
    fn page_has_section_with_case_for_each_question() {
        let page = render(&read(TEXT).unwrap());
        assert!(page.contains("\n### a-1\n\nDoes it?\n\n- If it does: right.\n"));
        assert!(page.contains("\nCase: `rc::a`.\nFrom: fidelity.md.\n"));
        let long = wrapped(&"word ".repeat(60), "  ");
        assert!(long.lines().all(|line| line.chars().count() <= 120) && long.contains("\n  word"));
    }
}
