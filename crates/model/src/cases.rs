//! How many random cases a property is tried with.

use proptest::test_runner::Config;

/// So many, or what `PROPTEST_CASES` says if that is less: where a case costs much and the count
/// adds little, as under a sanitizer of races to a test of one thread.
pub(crate) fn at_most(cases: u32) -> Config {
    let said = std::env::var("PROPTEST_CASES").ok().and_then(|said| said.parse().ok());
    Config { cases: said.map_or(cases, |said: u32| said.min(cases)), ..Config::default() }
}
