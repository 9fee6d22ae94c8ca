//! docs/mapping/flexio-dev.md has one row for each name of the list beside it. That the Rust items
//! exist is checked by rustdoc, which has the page as a module.

const PAGE: &str = include_str!("../../../docs/mapping/flexio-dev.md");
/// What the documents name, one a line.
const NAMES: &str = include_str!("../../../docs/mapping/flexio-dev.names");

#[test]
fn every_name_of_the_device_api_has_one_row_and_every_row_is_of_a_name() {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let mut rows: Vec<_> = rows.collect();
    rows.sort_unstable();
    let mut names: Vec<_> = NAMES.lines().collect();
    names.sort_unstable();
    assert_eq!(rows, names);
}
