//! Number of random cases of a property test.

use proptest::test_runner::Config;

/// `cases` cases, or fewer if `PROPTEST_CASES` is lower: for tests whose cases are slow and gain
/// little from repetition, such as single-threaded ones under a thread sanitizer.
pub(crate) fn at_most(cases: u32) -> Config {
    let limit = std::env::var("PROPTEST_CASES").ok().and_then(|limit| limit.parse().ok());
    Config { cases: limit.map_or(cases, |limit: u32| limit.min(cases)), ..Config::default() }
}
