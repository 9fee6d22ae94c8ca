//! The answer of a build without the feature `toml` to a file.
#![cfg(feature = "model")]

use verbless::model::{Profile, ProfileError};

/// Whether this must be a build without the feature.
fn is_reduced() -> bool {
    std::env::var_os("VERBLESS_TEST_REDUCED").is_some()
}

#[test]
fn file_profile_without_toml_names_feature() {
    let error = Profile::load("/nowhere/card.toml").expect_err("there is no such file");
    let said = error.to_string();
    assert!(said.contains("/nowhere/card.toml"), "{said}");
    match error {
        ProfileError::NoFiles { .. } => assert!(said.contains("feature `toml`"), "{said}"),
        other => assert!(!is_reduced(), "{other}"),
    }
}
