//! Number of random cases of a property test.

use proptest::test_runner::Config;

/// `cases` cases, or fewer if `PROPTEST_CASES` is lower: for tests whose cases are slow and gain
/// little from repetition, such as single-threaded ones under a thread sanitizer.
pub(crate) fn at_most(cases: u32) -> Config {
    let said = std::env::var("PROPTEST_CASES").ok().and_then(|said| said.parse().ok());
    Config { cases: said.map_or(cases, |said: u32| said.min(cases)), ..Config::default() }
}
