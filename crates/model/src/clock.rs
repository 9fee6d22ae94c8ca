//! The model's time.

use std::time::Duration;

/// Time in nanoseconds since the model began.
#[derive(Debug)]
pub(crate) struct Clock {
    /// Virtual time; in threaded mode it follows real time.
    pub now: u64,
    /// The real time of the model's start, in threaded mode.
    pub began: Option<std::time::Instant>,
}

impl Clock {
    pub(crate) fn new(stepped: bool) -> Self {
        Self { now: 0, began: (!stepped).then(std::time::Instant::now) }
    }

    pub(crate) fn advance(&mut self, by: Duration) {
        self.now = self.now.saturating_add(nanoseconds(by));
    }

    /// Advances the time to the real time, in threaded mode.
    pub(crate) fn tick(&mut self) {
        if let Some(began) = self.began {
            self.now = nanoseconds(began.elapsed());
        }
    }
}

/// Nanoseconds of a duration, saturated to 64 bits.
pub(crate) fn nanoseconds(of: Duration) -> u64 {
    u64::try_from(of.as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds of an ACK timeout code, 4.096 µs × 2^code; `None` for 0: no timeout.
pub(crate) fn ack_timeout(code: u8) -> Option<u64> {
    (code != 0).then(|| 4096 << code.min(31))
}

/// Nanoseconds of an RNR NAK timer code (InfiniBand specification, table "RNR NAK timer field").
pub(crate) fn rnr_timer(code: u8) -> u64 {
    const UNITS: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    UNITS[usize::from(code) % 32] * 10_000
}

#[cfg(test)]
mod tests {
    use super::rnr_timer;

    #[test]
    fn rnr_timer_follows_table_of_specification() {
        // Milliseconds of some codes, in hundredths.
        for (code, hundredths) in [(0, 65536), (1, 1), (5, 6), (12, 64), (19, 768), (31, 49152)] {
            assert_eq!(rnr_timer(code), hundredths * 10_000, "code {code}");
        }
    }
}
