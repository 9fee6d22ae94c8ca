//! Numbers and texts of levels and results.

use verbless_flexio_dev::{Failed, Level, Status};

#[test]
fn a_level_has_the_number_of_the_c_enumeration() {
    let levels = [Level::None, Level::Always, Level::Error, Level::Warn, Level::Info, Level::Debug];
    for (number, level) in (0..).zip(levels) {
        assert_eq!(Level::from_number(number), Some(level));
        assert_eq!(level as u8, number);
    }
    assert_eq!([6, 255].map(Level::from_number), [None; 2]);
}

#[test]
fn a_result_is_the_status_of_older_versions() {
    assert_eq!(Status::from(Ok(())), Status::Success);
    assert_eq!(Status::from(Err(Failed)), Status::Failed);
    assert!(Failed.to_string().contains("the thread has no such outbox"));
}
