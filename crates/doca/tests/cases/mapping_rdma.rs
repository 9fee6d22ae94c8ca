//! docs/mapping/doca-rdma.md leaves out nothing that the guide names, and no test that it names is
//! gone. That the Rust items exist is checked by rustdoc, which has the page as a module.

use std::path::Path;

const PAGE: &str = include_str!("../../../../docs/mapping/doca-rdma.md");
/// What the guide names, one a line.
const NAMES: &str = include_str!("../../../../docs/mapping/doca-rdma.names");

fn rows(cells: usize) -> Vec<Vec<&'static str>> {
    let tables = PAGE.lines().filter(|line| line.starts_with('|') && !line.starts_with("|---"));
    let rows = tables.map(|line| line.trim_matches('|').split('|').map(str::trim).collect());
    rows.filter(|row: &Vec<_>| row.len() == cells).collect()
}

#[test]
fn every_name_of_the_guide_has_one_row_and_every_row_is_of_a_name() {
    let mut named: Vec<_> = rows(6).iter().map(|row| row[0].trim_matches('`')).collect();
    named.retain(|name| *name != "name");
    named.sort_unstable();
    let mut names: Vec<_> = NAMES.lines().collect();
    names.sort_unstable();
    assert_eq!(named, names);
}

#[test]
fn every_test_of_the_rules_is_there() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = [
        here.join("tests"),
        here.join("tests/cases"),
        here.join("../../tests/suite/src/cases/doca"),
    ];
    let files = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let sources: String = files
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|it| it == "rs"))
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect();
    let mut found = 0;
    for row in rows(4).iter().filter(|row| row[0] != "section" && row[3] != "—") {
        let name = row[3].trim_matches('`');
        assert!(sources.contains(&format!("fn {name}(")), "{name} is gone: {row:?}");
        found += 1;
    }
    assert!(found > 20, "{found} tests");
}
