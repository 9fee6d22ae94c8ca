//! docs/mapping/doca-core.md leaves out nothing that the documents name, and no test that it names
//! is gone. That the Rust items of its table exist is checked by rustdoc, which has the page as the
//! module `mapping`: a link to nothing is an error there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const PAGE: &str = include_str!("../../../../docs/mapping/doca-core.md");
/// What the documents name, one a line, with the documents' versions.
const NAMES: &str = include_str!("../../../../docs/mapping/doca-core.names");

/// The cells of every row of the page's tables.
fn rows() -> impl Iterator<Item = Vec<&'static str>> {
    let tables = PAGE.lines().filter(|line| line.starts_with('|') && !line.starts_with("|---"));
    tables.map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
}

/// Rows of names, by name.
fn named() -> BTreeMap<&'static str, Vec<&'static str>> {
    let mut rows_by_name = BTreeMap::new();
    for row in rows().filter(|row| row.len() == 7 && row[0] != "name") {
        let name = row[0].trim_matches('`');
        assert!(rows_by_name.insert(name, row).is_none(), "{name} has two rows");
    }
    rows_by_name
}

#[test]
fn every_name_of_the_documents_has_a_row_with_its_version_and_every_cell_says_something() {
    let rows = named();
    for line in NAMES.lines() {
        let (name, versions) = line.split_once(' ').unwrap();
        let row = rows.get(name).unwrap_or_else(|| panic!("{name} has no row"));
        let said: BTreeSet<_> = row[1].split(" and ").collect();
        assert_eq!(said, versions.split(' ').collect(), "versions of {name}");
    }
    for (name, row) in &rows {
        assert!(row.iter().all(|cell| !cell.is_empty()), "{name}: {row:?}");
        let missing = row[3].starts_with("not ") || row[3].starts_with("no:");
        assert!(missing || row[2].chars().any(char::is_alphabetic), "{name} works as what?");
    }
}

#[test]
fn the_page_names_nothing_of_doca_that_the_documents_do_not() {
    let known: BTreeSet<_> = NAMES.lines().filter_map(|line| line.split(' ').next()).collect();
    for name in named().into_keys().filter(|name| name.to_lowercase().starts_with("doca_")) {
        assert!(known.contains(name), "{name} is in no document");
    }
}

/// So that the program of the chapter that is compiled is the one that is explained.
#[test]
fn the_pieces_of_the_chapter_are_those_of_its_program() {
    let chapter = include_str!("../../../../docs/doca.md");
    let (pieces, program) = chapter.split_once("## The whole program").unwrap();
    let program: String = program.lines().map(|line| line.trim().to_owned() + "\n").collect();
    let mut from = 0;
    let pieces = pieces.split("```rust,ignore\n").skip(1);
    let pieces: Vec<_> = pieces.map(|piece| piece.split("```").next().unwrap()).collect();
    assert!(pieces.len() > 5);
    for piece in pieces {
        let piece: String = piece.lines().map(|line| line.trim().to_owned() + "\n").collect();
        let at = program[from..].find(&piece).unwrap_or_else(|| panic!("not there:\n{piece}"));
        from += at + piece.len();
    }
}

#[test]
fn every_error_of_the_crate_has_its_row() {
    let rows = named();
    for kind in verbless_doca::ErrorKind::ALL {
        let item = format!("[`ErrorKind::{kind:?}`]");
        assert_eq!(rows[kind.name()][2], item);
    }
}

#[test]
fn every_test_of_the_rules_is_there() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let in_directory = |name| std::fs::read_dir(here.join(name)).unwrap();
    let files = ["tests", "tests/cases", "src/context", "../../tests/misuse/tests"]
        .map(in_directory)
        .into_iter()
        .flatten();
    let files = files.map(|entry| entry.unwrap().path());
    let sources: String = files
        .filter(|path| path.extension().is_some_and(|it| it == "rs"))
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect();
    let mut found = 0;
    for row in rows().filter(|row| row.len() == 4 && row[0] != "document") {
        for test in row[3].split(", ").filter(|test| *test != "—") {
            let name = test.trim_matches('`');
            assert!(sources.contains(&format!("fn {name}()")), "{name} is gone: {row:?}");
            found += 1;
        }
    }
    assert!(found > 50, "{found} tests");
}
