//! Misuse that the types rule out: each program of `doca/` and `flexio/` must not compile, for the
//! reason that its `.stderr` file has.
//!
//! `TRYBUILD=overwrite cargo test -p verbless-misuse` rewrites these files.

#[test]
fn misuse_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/doca/*.rs");
}

#[test]
fn wrong_arguments_and_results_do_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/flexio/*.rs");
}
