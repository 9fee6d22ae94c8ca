//! How many random cases a property is tried with.

use proptest::test_runner::Config;

/// `cases` cases, or fewer if `PROPTEST_CASES` says so: for tests whose cases are slow and gain
/// little from repetition, such as single-threaded ones under a thread sanitizer.
pub(crate) fn at_most(cases: u32) -> Config {
    let said = std::env::var("PROPTEST_CASES").ok().and_then(|said| said.parse().ok());
    Config { cases: said.map_or(cases, |said: u32| said.min(cases)), ..Config::default() }
}
