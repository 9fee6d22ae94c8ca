//! What must not compile.

#[test]
fn wrong_arguments_and_results_do_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/misuse/*.rs");
}
