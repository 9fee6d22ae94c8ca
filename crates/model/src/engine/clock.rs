//! The engine's time.

use std::time::Duration;

/// The engine's time, in nanoseconds since the model began.
#[derive(Debug)]
pub(crate) struct Clock {
    /// Virtual time; in threaded mode it follows the real one.
    pub now: u64,
    /// When the model began, in threaded mode.
    pub began: Option<std::time::Instant>,
}

impl Clock {
    pub(crate) fn new(stepped: bool) -> Self {
        Self { now: 0, began: (!stepped).then(std::time::Instant::now) }
    }

    pub(crate) fn advance(&mut self, by: Duration) {
        self.now = self.now.saturating_add(nanoseconds(by));
    }

    /// Lets the time follow the real one, in threaded mode.
    pub(crate) fn tick(&mut self) {
        if let Some(began) = self.began {
            self.now = nanoseconds(began.elapsed());
        }
    }
}

/// Nanoseconds of a duration; the longest ones are as long as 64 bits say.
pub(crate) fn nanoseconds(of: Duration) -> u64 {
    u64::try_from(of.as_nanos()).unwrap_or(u64::MAX)
}
