//! docs/mapping/flexio.md has one row for each name of the list beside it, and a test for each
//! claim. rustdoc checks that the Rust items exist, because the page is a module.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const PAGE: &str = include_str!("../../../../docs/mapping/flexio.md");
/// The names of the documents, one per line.
const NAMES: &str = include_str!("../../../../docs/mapping/flexio.names");

/// The cells of a table.
const NAME: usize = 8;
const DECISION: usize = 3;

fn rows(cells: usize) -> Vec<Vec<&'static str>> {
    let tables = PAGE.lines().filter(|line| line.starts_with('|') && !line.starts_with("|---"));
    let rows = tables.map(|line| line.trim_matches('|').split('|').map(str::trim).collect());
    let of = |row: &Vec<&str>| row.len() == cells && !["name", "what"].contains(&row[0]);
    rows.filter(of).collect()
}

/// The tests in a cell.
fn tests(cell: &'static str) -> impl Iterator<Item = &'static str> {
    cell.split(", ").map(|name| name.trim_matches('`')).filter(|name| *name != "—")
}

/// A test of the suite or of a package.
#[derive(Debug)]
struct Test {
    /// The file's path, without `.rs`.
    path: PathBuf,
    /// Whether it is a case of the conformance suite, which runs everywhere.
    case: bool,
    /// Whether it creates objects that hardware refuses.
    layouts: bool,
}

/// All tests by name.
struct Tests(BTreeMap<String, Vec<Test>>);

impl Tests {
    /// The cases of the conformance suite, the tests of this crate, and the compile-fail tests.
    fn find() -> Self {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut found = Self(BTreeMap::new());
        found.take(&here.join("../../tests/suite/src/cases"));
        for directory in ["src", "tests", "../../tests/misuse/tests"] {
            found.take(&here.join(directory));
        }
        found
    }

    /// Adds the tests of all sources in a directory, recursively.
    fn take(&mut self, directory: &Path) {
        for entry in std::fs::read_dir(directory).expect("the sources are there") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                self.take(&path);
            } else if path.extension().is_some_and(|it| it == "rs") {
                let source = std::fs::read_to_string(&path).expect("a source is text");
                let words: String = source.split_whitespace().collect();
                let layouts = words.contains("needs[Need::DpaLayouts");
                for (name, case) in tests_of(&source) {
                    let test = Test { path: path.with_extension(""), case, layouts };
                    self.0.entry(name).or_default().push(test);
                }
            }
        }
    }

    /// The test of a cell: by its name, with its module's before it if several have the name.
    fn named(&self, name: &str) -> &Test {
        let mut modules: Vec<_> = name.split("::").collect();
        let bare = modules.pop().expect("a name");
        let is_it = |test: &&Test| {
            let parts: Vec<_> = test.path.iter().filter_map(|part| part.to_str()).collect();
            modules.iter().all(|module| parts.contains(module))
        };
        let found: Vec<_> = self.0.get(bare).into_iter().flatten().filter(is_it).collect();
        let [test] = found[..] else { panic!("{name} is {} tests: {found:?}", found.len()) };
        test
    }
}

/// The tests of a source: cases of a group, functions with `#[test]`, and those in a table `TESTS`
/// of a program; and whether each is a case.
fn tests_of(source: &str) -> Vec<(String, bool)> {
    let ident = |text: &str| {
        let end = text.find(|it: char| !it.is_alphanumeric() && it != '_').unwrap_or(text.len());
        (end > 0).then(|| text[..end].to_owned())
    };
    let mut found = Vec::new();
    if let Some((_, group)) = source.split_once("\ncases!(") {
        let (group, _) = group.split_once("\n);").expect("a group has an end");
        let lines = group.lines().map(str::trim).filter(|line| !line.starts_with("needs "));
        found.extend(lines.filter_map(ident).map(|name| (name, true)));
    }
    if let Some((_, table)) = source.split_once("\nconst TESTS: ") {
        let (table, _) = table.split_once("\n];").expect("a table has an end");
        let last = |line: &str| Some(line.strip_suffix("),")?.rsplit(", ").next()?.to_owned());
        found.extend(table.lines().filter_map(last).map(|name| (name, false)));
    }
    for test in source.split("#[test]").skip(1) {
        let (_, rest) = test.split_once("fn ").expect("a test is a function");
        found.extend(ident(rest).map(|name| (name, false)));
    }
    found
}

#[test]
fn host_api_names_match_rows_one_to_one() {
    let mut named: Vec<_> = rows(NAME).iter().map(|row| row[0].trim_matches('`')).collect();
    named.sort_unstable();
    let mut names: Vec<_> = NAMES.lines().collect();
    names.sort_unstable();
    assert_eq!(named, names);
}

#[test]
fn every_yes_cell_has_test_running_there() {
    let all = Tests::find();
    for row in rows(NAME) {
        let [_, _, _, proof, process, run, vm, hardware] = row[..] else { unreachable!() };
        let proofs: Vec<_> = tests(proof).map(|name| all.named(name)).collect();
        let some = !proofs.is_empty();
        let claim = |cell| ["yes", "refused"].contains(&cell);
        assert_eq!(claim(process), some, "a test and no claim, or the reverse: {row:?}");
        let everywhere = some && proofs.iter().all(|test| test.case);
        let claims = [run, vm].map(claim);
        assert_eq!(claims, [everywhere; 2], "cases run everywhere, and tests do not: {row:?}");
        // A row is refused on hardware exactly if its cases need a process.
        let layouts = proofs.iter().filter(|test| test.case && test.layouts).count();
        let bare = proofs.iter().filter(|test| test.case && !test.layouts).count();
        match hardware {
            "refused" => assert!(layouts > 0, "no case of it needs a process: {row:?}"),
            "yes" => assert!(layouts == 0, "its cases do not run on hardware: {row:?}"),
            "not tried" => assert!(bare > 0, "none of its cases runs on hardware: {row:?}"),
            other => assert!(["not applicable", "not yet"].contains(&other), "{row:?}"),
        }
    }
}

#[test]
fn every_test_cited_by_decisions_exists() {
    let all = Tests::find();
    let mut found = 0;
    for row in rows(DECISION) {
        assert!(row[1].contains("not yet") || tests(row[2]).count() > 0, "no test: {row:?}");
        for name in tests(row[2]) {
            all.named(name);
            found += 1;
        }
    }
    assert!(found > 15, "{found} tests");
}

#[test]
fn duplicate_test_name_needs_its_module() {
    let source = |test: &str| format!("#[test]\nfn {test}() {{}}\nfn helper() {{}}\n");
    assert_eq!(tests_of(&source("one")), [("one".to_owned(), false)]);
    let group = "\ncases!(\n    \"g\",\n    needs [Need::A]:\n    a_case,\n    b [Need::B],\n);";
    assert_eq!(tests_of(group), [("a_case".to_owned(), true), ("b".to_owned(), true)]);
    let at = |path: &str| Test { path: path.into(), case: true, layouts: false };
    let tests = [("twice", vec![at("a/first"), at("a/second")]), ("once", vec![at("a/first")])];
    let all = Tests(tests.into_iter().map(|(name, tests)| (name.to_owned(), tests)).collect());
    assert_eq!(all.named("second::twice").path, Path::new("a/second"));
    assert_eq!(all.named("once").path, Path::new("a/first"));
    for wrong in ["twice", "third::twice", "second::once", "never"] {
        assert!(std::panic::catch_unwind(|| all.named(wrong).case).is_err(), "{wrong}");
    }
}

#[test]
fn sixty_seven_functions_are_hostful_only() {
    let hostful: Vec<_> =
        rows(NAME).into_iter().filter(|row| row[1].ends_with(", hostful only")).collect();
    assert_eq!(hostful.len(), 67);
    // Only 3.2.0 has programs without a host.
    assert!(hostful.iter().all(|row| !row[1].starts_with("2022")), "{hostful:?}");
}

#[test]
fn code_blocks_of_chapter_are_part_of_example() {
    const CHAPTER: &str = include_str!("../../../../docs/flexio.md");
    const EXAMPLE: [&str; 2] =
        [include_str!("../../examples/guide.rs"), include_str!("../../programs/guide/src/main.rs")];
    /// The comment in place of an omitted part.
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
    let commands = CHAPTER.matches("```sh\n").count();
    let blocks = CHAPTER.matches("```").count();
    assert_eq!(blocks, 2 * (found + commands), "blocks of another language");
}
