//! `cargo xtask ledger`: which fixes of other mlx5 drivers concern this one, and which test shows
//! that it does not repeat the mistake.
//!
//! `tests/ledger.toml` has a row for each commit and thread. This task holds the rows to their
//! rules (`row`) and the tests that they name to existence (`tests`), prints how many rows have
//! which verdict, and lists rows by file or subject. `unknowns` has the questions that only a card
//! answers.

mod row;
mod tests;
mod unknowns;

use std::collections::{BTreeMap, BTreeSet};

use crate::workspace::{Result, workspace_root};
use row::{Row, Verdict};
use tests::Tests;
use unknowns::Unknown;

/// Options of `cargo xtask ledger`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// List the rows that concern this file or folder, such as crates/ring/src/cq.
    #[arg(long, value_name = "PATH")]
    file: Option<String>,
    /// List the rows about this subject, such as cq.
    #[arg(long)]
    subject: Option<String>,
    /// List the rows of this commit or thread, by the beginning of its id.
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// List the rows that no test shows yet, and those that only a card can show.
    #[arg(long)]
    open: bool,
    /// Write docs/hardware-unknowns.md from tests/suite/unknowns.toml.
    #[arg(long)]
    render: bool,
}

impl Options {
    fn lists(&self) -> bool {
        self.open || self.file.is_some() || self.subject.is_some() || self.id.is_some()
    }

    fn chooses(&self, row: &Row) -> bool {
        let starts = |text: &str, start: &Option<String>| {
            start.as_deref().is_none_or(|start| text.starts_with(start))
        };
        starts(&row.here, &self.file)
            && starts(&row.id, &self.id)
            && self.subject.as_ref().is_none_or(|subject| *subject == row.subject)
            && (!self.open || row.is_open())
    }
}

/// Checks the ledger, and prints counts or the chosen rows; returns whether the ledger is sound.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let unknowns = unknowns::read(&std::fs::read_to_string(workspace_root().join(UNKNOWNS))?)?;
    if options.render {
        std::fs::write(workspace_root().join(PAGE), unknowns::render(&unknowns))?;
    }
    let rows = row::read(&std::fs::read_to_string(workspace_root().join(PATH))?)?;
    if options.lists() {
        for row in rows.iter().filter(|row| options.chooses(row)) {
            println!("{row}\n");
        }
        return Ok(true);
    }
    print!("{}", counts(&rows));
    let faults = faults(&rows, &unknowns)?;
    faults.iter().for_each(|fault| println!("{fault}"));
    Ok(faults.is_empty())
}

const PATH: &str = "tests/ledger.toml";
const UNKNOWNS: &str = "tests/suite/unknowns.toml";
const PAGE: &str = "docs/hardware-unknowns.md";

/// What is wrong with the rows, the questions and their page.
fn faults(rows: &[Row], unknowns: &[Unknown]) -> Result<Vec<String>> {
    let tests = Tests::of(workspace_root())?;
    let names: BTreeSet<&str> = unknowns.iter().map(|it| &*it.name).collect();
    let mut seen = BTreeSet::new();
    let mut faults = Vec::new();
    for row in rows {
        let mut found: Vec<String> = row.fault().into_iter().collect();
        if !seen.insert((row.source, &*row.id)) {
            found.push("there is another row of this id".into());
        }
        if !row.here.is_empty() && !workspace_root().join(&row.here).exists() {
            found.push(format!("here = {:?}: no such file or folder", row.here));
        }
        match row.verdict() {
            Ok(Verdict::Shown(names)) => {
                let unknown = names.iter().filter(|name| !tests.has(name));
                found.extend(unknown.map(|name| format!("shown_by: no test is named {name:?}")));
            }
            Ok(Verdict::Hardware(name)) if !names.contains(name) => {
                found.push(format!("hardware: {UNKNOWNS} has no question {name:?}"));
            }
            _ => {}
        }
        let (source, id) = (row.source, &row.id);
        faults.extend(found.iter().map(|fault| format!("{PATH}: {source} {id}: {fault}")));
    }
    faults.extend(faults_of_unknowns(rows, unknowns, &tests));
    let page = std::fs::read_to_string(workspace_root().join(PAGE)).unwrap_or_default();
    if page != unknowns::render(unknowns) {
        faults.push(format!("{PAGE} is not that of {UNKNOWNS}: cargo xtask ledger --render"));
    }
    Ok(faults)
}

/// What is wrong with the questions.
fn faults_of_unknowns(rows: &[Row], unknowns: &[Unknown], tests: &Tests) -> Vec<String> {
    let mut faults = Vec::new();
    let mut seen = BTreeSet::new();
    for it in unknowns {
        let mut fault = |text: String| faults.push(format!("{UNKNOWNS}: {}: {text}", it.name));
        it.fault().into_iter().for_each(|text| fault(text.into()));
        if !seen.insert(&it.name) {
            fault("another question has this name".into());
        }
        if !it.case.is_empty() && !tests.has(&it.case) {
            fault(format!("no case is named {:?}", it.case));
        }
        for id in it.rows.iter().filter(|id| !rows.iter().any(|row| row.id == **id)) {
            fault(format!("the ledger has no row {id}"));
        }
    }
    faults
}

/// A line for each source, then the verdicts by subject.
fn counts(rows: &[Row]) -> String {
    let mut sources: BTreeMap<String, [usize; 4]> = BTreeMap::new();
    let mut subjects: BTreeMap<&str, [usize; 4]> = BTreeMap::new();
    for row in rows {
        let column = match row.verdict() {
            Ok(Verdict::Shown(_)) => 0,
            Ok(Verdict::Unconcerned(_)) => 1,
            Ok(Verdict::Hardware(_)) => 2,
            Ok(Verdict::Untested(_)) | Err(_) => 3,
        };
        sources.entry(row.source.to_string()).or_default()[column] += 1;
        subjects.entry(&row.subject).or_default()[column] += 1;
    }
    let line = |name: &str, [shown, unconcerned, hardware, open]: [usize; 4]| {
        format!("{name:12} {shown:>6} {unconcerned:>12} {hardware:>9} {open:>9}\n")
    };
    let head = format!(
        "{:12} {:>6} {:>12} {:>9} {:>9}\n",
        "", "tested", "unconcerned", "hardware", "untested"
    );
    let sources: String = sources.iter().map(|(name, counts)| line(name, *counts)).collect();
    let subjects: String = subjects.iter().map(|(name, counts)| line(name, *counts)).collect();
    format!("{head}{sources}\n{subjects}")
}

#[cfg(test)]
mod checks {
    use super::*;

    #[test]
    fn ledger_has_no_fault() {
        let text = std::fs::read_to_string(workspace_root().join(PATH)).unwrap();
        let rows = row::read(&text).unwrap();
        let unknowns = std::fs::read_to_string(workspace_root().join(UNKNOWNS)).unwrap();
        let unknowns = unknowns::read(&unknowns).unwrap();
        assert_eq!(faults(&rows, &unknowns).unwrap(), Vec::<String>::new());
    }
}
