//! docs/mapping/doca-core.md covers all names of the documents, and all tests in it exist. rustdoc
//! checks that the Rust items of its table exist, because the page is the module `mapping`: a
//! broken link is an error there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const PAGE: &str = include_str!("../../../../docs/mapping/doca-core.md");
/// The documents' names, one per line, with the versions that have them.
const NAMES: &str = include_str!("../../../../docs/mapping/doca-core.names");

/// The cells of every row of the page's tables.
fn rows() -> impl Iterator<Item = Vec<&'static str>> {
    let tables = PAGE.lines().filter(|line| line.starts_with('|') && !line.starts_with("|---"));
    tables.map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
}

/// The rows of the tables of names, by name.
fn named() -> BTreeMap<&'static str, Vec<&'static str>> {
    let mut rows_by_name = BTreeMap::new();
    for row in rows().filter(|row| row.len() == 7 && row[0] != "name") {
        let name = row[0].trim_matches('`');
        assert!(rows_by_name.insert(name, row).is_none(), "{name} has two rows");
    }
    rows_by_name
}

#[test]
fn every_doca_name_has_complete_row() {
    let rows = named();
    for line in NAMES.lines() {
        let (name, versions) = line.split_once(' ').unwrap();
        let row = rows.get(name).unwrap_or_else(|| panic!("{name} has no row"));
        let stated: BTreeSet<_> = row[1].split(" and ").collect();
        assert_eq!(stated, versions.split(' ').collect(), "versions of {name}");
    }
    for (name, row) in &rows {
        assert!(row.iter().all(|cell| !cell.is_empty()), "{name}: {row:?}");
        let missing = row[3].starts_with("not ") || row[3].starts_with("no:");
        let has_item = row[2].chars().any(char::is_alphabetic);
        assert!(missing || has_item, "{name} has no Rust item, and is not marked as missing");
    }
}

#[test]
fn page_has_only_documented_doca_names() {
    let known: BTreeSet<_> = NAMES.lines().filter_map(|line| line.split(' ').next()).collect();
    for name in named().into_keys().filter(|name| name.to_lowercase().starts_with("doca_")) {
        assert!(known.contains(name), "{name} is in no document");
    }
}

#[test]
fn program_names_are_unique_and_undocumented() {
    let page = include_str!("../../../../docs/mapping/doca-programs.md");
    let rdma = include_str!("../../../../docs/mapping/doca-rdma.names");
    let printed: BTreeSet<_> =
        NAMES.lines().filter_map(|line| line.split(' ').next()).chain(rdma.lines()).collect();
    let (programs, misspelt) = page.split_once("## Names as the guides misspell them").unwrap();
    let cells = |line: &'static str| -> Vec<_> {
        line.trim_matches('|').split('|').map(|cell| cell.trim()).collect()
    };
    let mut rows = BTreeSet::new();
    for line in programs.lines().filter(|line| line.starts_with("| `")) {
        let [name, item] = cells(line)[..] else { panic!("{line}") };
        let name = name.trim_matches('`');
        assert!(!item.is_empty() && !printed.contains(name), "{name}: it is a guide's name");
        assert!(rows.insert(name), "{name} has two rows");
    }
    assert!(rows.len() > 150, "{} names", rows.len());
    let mut aliases = 0;
    for line in misspelt.lines().filter(|line| line.starts_with("| `")) {
        let [name, meant, item] = cells(line)[..] else { panic!("{line}") };
        let (name, meant) = (name.trim_matches('`'), meant.trim_matches('`'));
        assert!(!printed.contains(name), "{name} has a row already");
        assert!(printed.contains(meant), "{meant} is in no guide");
        assert!(item.contains("[`"), "{line}");
        aliases += 1;
    }
    assert!(aliases > 10, "{aliases} misspelt names");
}

/// Only the whole program is compiled; the snippets that explain it are parts of it, in order.
#[test]
fn guide_snippets_are_in_its_whole_program() {
    let guide = include_str!("../../../../docs/doca.md");
    let (snippets, program) = guide.split_once("## The whole program").unwrap();
    let program: String = program.lines().map(|line| line.trim().to_owned() + "\n").collect();
    let mut from = 0;
    let snippets = snippets.split("```rust,ignore\n").skip(1);
    let snippets: Vec<_> = snippets.map(|it| it.split("```").next().unwrap()).collect();
    assert!(snippets.len() > 5);
    for snippet in snippets {
        let snippet: String = snippet.lines().map(|line| line.trim().to_owned() + "\n").collect();
        let at = program[from..].find(&snippet);
        let at = at.unwrap_or_else(|| panic!("the whole program lacks:\n{snippet}"));
        from += at + snippet.len();
    }
}

#[test]
fn every_error_kind_has_row() {
    let rows = named();
    for kind in verbless_doca::ErrorKind::ALL {
        let item = format!("[`ErrorKind::{kind:?}`]");
        assert_eq!(rows[kind.name()][2], item);
    }
}

/// The tests of all sources in these directories of the crate, and below them.
pub(crate) fn tests_in(directories: &[&str]) -> BTreeSet<String> {
    fn take(directory: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                take(&path, found);
            } else if path.extension().is_some_and(|it| it == "rs") {
                found.extend(tests_of(&std::fs::read_to_string(path).unwrap()));
            }
        }
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = BTreeSet::new();
    directories.iter().for_each(|directory| take(&here.join(directory), &mut found));
    found
}

/// The tests of a source: functions with `#[test]`, and the cases of a group of the conformance
/// suite.
fn tests_of(source: &str) -> Vec<String> {
    let name = |text: &str| {
        let end = text.find(|it: char| !it.is_alphanumeric() && it != '_').unwrap_or(text.len());
        text[..end].to_owned()
    };
    let (mut found, mut marked) = (Vec::new(), false);
    let (mut in_group, mut in_list) = (false, false);
    for line in source.lines() {
        let text = line.trim();
        if text == "#[test]" {
            marked = true;
        } else if let Some(rest) = text.strip_prefix("fn ") {
            found.extend(marked.then(|| name(rest)));
            marked = false;
        } else if !text.starts_with("#[") && !text.starts_with("//") {
            marked = false;
        }
        // The list of a group follows its needs, which end with a colon.
        match line {
            "cases!(" => (in_group, in_list) = (true, false),
            ");" => in_group = false,
            _ if in_group && in_list => found.push(name(text)),
            _ if in_group => in_list = text.ends_with(':'),
            _ => {}
        }
    }
    found
}

#[test]
fn tests_of_finds_marked_and_grouped_tests() {
    let source = "\
        #[test]\nfn one() {}\nfn helper() {}\n\
        mod tests {\n    #[test]\n    #[ignore]\n    // Why.\n    fn two() {}\n}\n\
        cases!(\n    \"group\",\n    \"It: with text.\",\n    needs [Need::A]:\n    three,\n    \
        four [Need::B],\n);\nfn three(lab: &Lab) {}\n";
    assert_eq!(tests_of(source), ["one", "two", "three", "four"]);
}

#[test]
fn every_test_cited_by_rules_exists() {
    let tests = tests_in(&["tests", "src", "../../tests/misuse/tests"]);
    let mut found = 0;
    for row in rows().filter(|row| row.len() == 4 && row[0] != "document") {
        for test in row[3].split(", ").filter(|test| *test != "—") {
            let name = test.trim_matches('`');
            assert!(tests.contains(name), "{name} is not a test: {row:?}");
            found += 1;
        }
    }
    assert!(found > 50, "{found} tests");
}
