//! Lists the mutants, and samples them.

use std::ops::Range;
use std::process::Command;

use serde::Deserialize;

use super::syntax::Genre;
use crate::workspace::{Result, workspace_root};

/// How to install the lister of mutants.
const INSTALL: &str = "cargo install cargo-mutants --locked";
/// Files that are not mutated: generated code, tasks, and tests.
const EXCLUDED: [&str; 3] = ["crates/*/src/**/generated/**", "xtask/**", "tests/**"];

/// A change of the sources.
#[derive(Deserialize, Debug, Clone, PartialEq)]
pub(super) struct Mutant {
    pub(super) package: String,
    /// Path below the workspace's root.
    pub(super) file: String,
    /// The file, line and column, and the change.
    pub(super) name: String,
    pub(super) span: Span,
    pub(super) replacement: String,
    pub(super) genre: Genre,
}

/// The range of the replaced text.
#[derive(Deserialize, Debug, Clone, Copy, PartialEq)]
pub(super) struct Span {
    start: Position,
    end: Position,
}

/// Both count from 1; a column is a character.
#[derive(Deserialize, Debug, Clone, Copy, PartialEq)]
struct Position {
    line: usize,
    column: usize,
}

impl Mutant {
    /// The change without its position, because lines move.
    pub(super) fn change(&self) -> &str {
        self.name.split_once(": ").map_or(&self.name, |(_, change)| change)
    }

    /// The bytes of the file that it replaces.
    pub(super) fn range(&self, text: &str) -> Result<Range<usize>> {
        let Span { start, end } = self.span;
        match (offset(text, start), offset(text, end)) {
            (Some(start), Some(end)) => Ok(start..end),
            _ => Err(format!("{} lies outside its file; did it change?", self.name).into()),
        }
    }

    /// The file's text with the change.
    pub(super) fn apply(&self, text: &str) -> Result<String> {
        let Range { start, end } = self.range(text)?;
        Ok([&text[..start], &self.replacement, &text[end..]].concat())
    }
}

fn offset(text: &str, Position { line, column }: Position) -> Option<usize> {
    let before: usize = text.split_inclusive('\n').take(line - 1).map(str::len).sum();
    let rest = text.get(before..)?;
    let within = rest.char_indices().nth(column - 1).map(|(at, _)| at);
    within.or((rest.chars().count() == column - 1).then_some(rest.len())).map(|at| before + at)
}

/// The mutants of these packages, or of all if none is named.
pub(super) fn all(packages: &[String]) -> Result<Vec<Mutant>> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["mutants", "--list", "--json"]).current_dir(workspace_root());
    match packages {
        [] => command.arg("--workspace"),
        some => command.args(some.iter().flat_map(|package| ["--package", package])),
    };
    command.args(EXCLUDED.iter().flat_map(|files| ["--exclude", files]));
    let output = command.output()?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!(
            "cargo-mutants does not list the mutants: {}; if it is not installed, run `{INSTALL}`",
            errors.trim()
        )
        .into());
    }
    let mutants: Vec<Mutant> = serde_json::from_slice(&output.stdout)?;
    match mutants.is_empty() {
        true => Err("there are no mutants of these packages: name one that has code".into()),
        false => Ok(mutants),
    }
}

/// Keeps `count` mutants; the seed decides which. The choice depends on names, so that a change of
/// one file leaves most of the choice unchanged.
pub(super) fn sample(mutants: &mut Vec<Mutant>, count: usize, seed: u64) {
    mutants.sort_by_cached_key(|mutant| rank(seed, &mutant.name));
    mutants.truncate(count);
}

/// FNV-1a of both, mixed as in splitmix64.
fn rank(seed: u64, name: &str) -> u64 {
    let bytes = seed.to_le_bytes().into_iter().chain(name.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ hash >> 31
}

#[cfg(test)]
pub(super) mod tests {
    use super::{Genre, Mutant, Position, Span, sample};

    pub(in super::super) fn mutant(file: &str, change: &str) -> Mutant {
        let (start, end) = (Position { line: 2, column: 3 }, Position { line: 3, column: 2 });
        Mutant {
            package: "verbless-ring".into(),
            file: file.into(),
            name: format!("{file}:2:3: {change}"),
            span: Span { start, end },
            replacement: "()".into(),
            genre: Genre::FnValue,
        }
    }

    #[test]
    fn mutant_replaces_its_span() {
        let mutant = mutant("a.rs", "replace f with ()");
        assert_eq!(mutant.change(), "replace f with ()");
        assert_eq!(mutant.apply("one\nßx23\n}\nend\n").unwrap(), "one\nßx()\nend\n");
        assert_eq!(mutant.apply("one\nßx23\n}").unwrap(), "one\nßx()", "the end of the file");
        assert!(mutant.apply("one\n").is_err());
    }

    #[test]
    fn sample_depends_on_seed_not_order() {
        let mut all: Vec<_> =
            (0..100).map(|at| mutant(&format!("{at}.rs"), "replace f with ()")).collect();
        let choose = |mut all: Vec<Mutant>, seed| {
            sample(&mut all, 10, seed);
            all.into_iter().map(|it| it.file).collect::<Vec<_>>()
        };
        let first = choose(all.clone(), 7);
        assert_eq!(first.len(), 10);
        assert_ne!(choose(all.clone(), 8), first);
        all.reverse();
        assert_eq!(choose(all, 7), first);
    }
}
