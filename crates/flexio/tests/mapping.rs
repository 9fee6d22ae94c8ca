//! docs/mapping/flexio.md has one row for each name of the list beside it, and claims nothing that
//! no test shows. That the Rust items exist is checked by rustdoc, which has the page as a module.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const PAGE: &str = include_str!("../../../docs/mapping/flexio.md");
/// What the documents name, one a line.
const NAMES: &str = include_str!("../../../docs/mapping/flexio.names");

/// The cells of a table.
const NAME: usize = 8;
const DECISION: usize = 3;

fn rows(cells: usize) -> Vec<Vec<&'static str>> {
    let tables = PAGE.lines().filter(|line| line.starts_with('|') && !line.starts_with("|---"));
    let rows = tables.map(|line| line.trim_matches('|').split('|').map(str::trim).collect());
    let of = |row: &Vec<&str>| row.len() == cells && !["name", "what"].contains(&row[0]);
    rows.filter(of).collect()
}

/// The tests that a cell names.
fn tests(cell: &'static str) -> impl Iterator<Item = &'static str> {
    cell.split(", ").map(|name| name.trim_matches('`')).filter(|name| *name != "—")
}

/// The functions of all sources in a directory and those below it.
fn functions(directory: PathBuf) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(directory).expect("the sources are there") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(functions(path));
        } else if path.extension().is_some_and(|it| it == "rs") {
            let source = std::fs::read_to_string(path).expect("a source is text");
            let named = source.lines().filter_map(|line| {
                let line = line.trim_start();
                line.strip_prefix("pub(super) ").unwrap_or(line).strip_prefix("fn ")
            });
            found.extend(named.filter_map(|rest| Some(rest.split_once('(')?.0.to_owned())));
        }
    }
    found
}

/// The cases of the conformance suite, and the tests of this crate.
fn shown() -> (BTreeSet<String>, BTreeSet<String>) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let suite = functions(here.join("../../tests/suite/src/cases"));
    let mut own = functions(here.join("src"));
    own.extend(functions(here.join("tests")));
    own.extend(functions(here.join("../../tests/misuse/tests")));
    (suite, own)
}

#[test]
fn every_name_of_the_host_chapters_has_one_row_and_every_row_is_of_a_name() {
    let mut named: Vec<_> = rows(NAME).iter().map(|row| row[0].trim_matches('`')).collect();
    named.sort_unstable();
    let mut names: Vec<_> = NAMES.lines().collect();
    names.sort_unstable();
    assert_eq!(named, names);
}

#[test]
fn every_cell_that_says_yes_is_shown_by_a_test_that_runs_there() {
    let (suite, own) = shown();
    for row in rows(NAME) {
        let [_, _, _, proof, process, run, vm, hardware] = row[..] else { unreachable!() };
        for name in tests(proof) {
            assert!(suite.contains(name) || own.contains(name), "{name} is gone: {row:?}");
        }
        let some = tests(proof).count() > 0;
        let claim = |cell| ["yes", "refused"].contains(&cell);
        assert_eq!(claim(process), some, "a test and no claim, or the reverse: {row:?}");
        let everywhere = some && tests(proof).all(|name| suite.contains(name));
        let claims = [run, vm].map(claim);
        assert_eq!(claims, [everywhere; 2], "cases run everywhere, and tests do not: {row:?}");
        assert!(["refused", "not applicable", "not yet"].contains(&hardware), "{row:?}");
    }
}

#[test]
fn every_test_of_a_decision_is_there() {
    let (suite, own) = shown();
    let mut found = 0;
    for row in rows(DECISION) {
        assert!(row[1].contains("not yet") || tests(row[2]).count() > 0, "no test: {row:?}");
        for name in tests(row[2]) {
            assert!(suite.contains(name) || own.contains(name), "{name} is gone: {row:?}");
            found += 1;
        }
    }
    assert!(found > 15, "{found} tests");
}

#[test]
fn sixty_seven_functions_are_marked_as_hostful_only() {
    let hostful: Vec<_> =
        rows(NAME).into_iter().filter(|row| row[1].ends_with(", hostful only")).collect();
    assert_eq!(hostful.len(), 67);
    // Only 3.2.0 knows programs without a host.
    assert!(hostful.iter().all(|row| !row[1].starts_with("2022")), "{hostful:?}");
}

#[test]
fn every_code_block_of_the_chapter_is_part_of_the_example() {
    const CHAPTER: &str = include_str!("../../../docs/flexio.md");
    const EXAMPLE: [&str; 2] =
        [include_str!("../examples/guide.rs"), include_str!("../programs/guide/src/main.rs")];
    /// A comment that stands for what is left out.
    const LEFT_OUT: &str = "// The loop over CQEs.";
    // A block may begin within another, and is indented as if it did not.
    let plain = |text: &str| text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
    let example = EXAMPLE.map(plain);
    let mut found = 0;
    for block in CHAPTER.split("```rust,ignore\n").skip(1) {
        let (block, _) = block.split_once("```\n").expect("a block has an end");
        let shown =
            plain(block).split(LEFT_OUT).all(|part| example.iter().any(|file| file.contains(part)));
        assert!(shown, "the example has no\n{block}");
        found += 1;
    }
    assert!(found > 15, "{found} blocks");
    assert_eq!(CHAPTER.matches("```").count(), 2 * found, "blocks of another language");
}
