//! The version is set once per process, so this test has its own program.

use verbless_flexio::version::{Version, set_version, version};

#[test]
fn set_version_accepts_one_older_version() {
    let older = Version::new(24, 10, 0);
    assert_eq!(version(), Version::CURRENT, "without one");
    // A refused version sets nothing.
    let later = set_version(Version::new(25, 1, 1)).unwrap_err().to_string();
    assert!(later.contains("above 25.1.0") && later.contains("Version::CURRENT"), "{later}");
    assert_eq!(version(), Version::CURRENT, "after a refusal");
    for _ in 0..2 {
        set_version(older).unwrap();
        assert_eq!(version(), older);
    }
    let another = set_version(Version::CURRENT).unwrap_err().to_string();
    assert!(another.contains("is 24.10.0, and cannot become 25.1.0"), "{another}");
    assert_eq!(version(), older, "after another one");
}
