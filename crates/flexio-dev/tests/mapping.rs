//! docs/mapping/flexio-dev.md has one row for each name of the list beside it. rustdoc checks that
//! the Rust items exist, because the page is a module.

const PAGE: &str = include_str!("../../../docs/mapping/flexio-dev.md");
/// The names of the documents, one per line.
const NAMES: &str = include_str!("../../../docs/mapping/flexio-dev.names");

#[test]
fn device_api_names_match_rows_one_to_one() {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let mut rows: Vec<_> = rows.collect();
    rows.sort_unstable();
    let mut names: Vec<_> = NAMES.lines().collect();
    names.sort_unstable();
    assert_eq!(rows, names);
}
