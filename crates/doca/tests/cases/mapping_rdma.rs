//! docs/mapping/doca-rdma.md covers all names of the guide, and all tests in it exist. rustdoc
//! checks that the Rust items exist, because the page is a module.

use super::mapping::tests_in;

const PAGE: &str = include_str!("../../../../docs/mapping/doca-rdma.md");
/// The names of the guide, one per line.
const NAMES: &str = include_str!("../../../../docs/mapping/doca-rdma.names");

fn rows(cells: usize) -> Vec<Vec<&'static str>> {
    let tables = PAGE.lines().filter(|line| line.starts_with('|') && !line.starts_with("|---"));
    let rows = tables.map(|line| line.trim_matches('|').split('|').map(str::trim).collect());
    rows.filter(|row: &Vec<_>| row.len() == cells).collect()
}

#[test]
fn guide_names_match_rows_one_to_one() {
    let mut named: Vec<_> = rows(6).iter().map(|row| row[0].trim_matches('`')).collect();
    named.retain(|name| *name != "name");
    named.sort_unstable();
    let mut names: Vec<_> = NAMES.lines().collect();
    names.sort_unstable();
    assert_eq!(named, names);
}

#[test]
fn every_test_cited_by_rules_exists() {
    let tests = tests_in(&["tests", "src", "../../tests/suite/src/cases/doca"]);
    let mut found = 0;
    for row in rows(4).iter().filter(|row| row[0] != "section") {
        for test in row[3].split(", ").filter(|test| *test != "—") {
            let name = test.trim_matches('`');
            assert!(tests.contains(name), "{name} is not a test: {row:?}");
            found += 1;
        }
    }
    assert!(found > 20, "{found} tests");
}
