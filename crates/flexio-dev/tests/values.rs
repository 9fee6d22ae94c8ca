//! Log levels match the C enum; a result converts to `flexio_dev_status_t`.

use verbless_flexio_dev::{Failed, Level, Status};

#[test]
fn levels_match_c_enumeration() {
    let levels = [Level::None, Level::Always, Level::Error, Level::Warn, Level::Info, Level::Debug];
    for (number, level) in (0..).zip(levels) {
        assert_eq!(Level::from_number(number), Some(level));
        assert_eq!(level as u8, number);
    }
    assert_eq!([6, 255].map(Level::from_number), [None; 2]);
}

#[test]
fn result_converts_to_status() {
    assert_eq!(Status::from(Ok(())), Status::Success);
    assert_eq!(Status::from(Err(Failed)), Status::Failed);
    assert!(Failed.to_string().contains("the thread has no such outbox"));
}
