//! Waiting by spinning, with a limit.
//!
//! On a machine with at most two processors, a waiting thread yields after a while: two ends that
//! spin there would keep a software device from its work. With more processors it never yields,
//! because a system call would be a part of the measured latency.

use std::thread::{available_parallelism, yield_now};
use std::time::{Duration, Instant};

use crate::Result;

/// Maximum time without progress.
pub(crate) const STALL: Duration = Duration::from_secs(10);
/// Maximum time of a whole measurement.
pub(crate) const LIMIT: Duration = Duration::from_secs(100);
/// Fruitless looks before a thread yields on a small machine.
const EAGER: u32 = 64;
/// Fruitless looks between two readings of the clock.
const CLOCK: u32 = 1 << 12;

/// A wait for something of the device.
pub(crate) struct Wait {
    small: bool,
    vain: u32,
    /// The point in time at which the last look at the clock found progress.
    since: Option<Instant>,
    begun: Instant,
}

impl Wait {
    pub(crate) fn new() -> Self {
        let small = available_parallelism().map_or(true, |count| count.get() <= 2);
        Self { small, vain: 0, since: None, begun: Instant::now() }
    }

    /// Notes progress: the wait begins anew.
    #[inline(always)]
    pub(crate) fn progress(&mut self) {
        self.vain = 0;
    }

    /// Notes a look without progress. Fails after 10 s without progress, or if the measurement
    /// takes longer than 100 s.
    #[inline(always)]
    pub(crate) fn vain(&mut self) -> Result {
        self.vain += 1;
        if self.small && self.vain > EAGER {
            yield_now();
        } else {
            std::hint::spin_loop();
        }
        if self.vain.is_multiple_of(CLOCK) { self.look() } else { Ok(()) }
    }

    #[cold]
    fn look(&mut self) -> Result {
        let now = Instant::now();
        if self.vain == CLOCK {
            self.since = Some(now);
        }
        if self.since.is_some_and(|since| now - since > STALL) {
            return Err(format!("nothing has arrived for {} s", STALL.as_secs()).into());
        }
        self.in_time(now)
    }

    /// Fails if the measurement has taken too long.
    pub(crate) fn in_time(&self, now: Instant) -> Result {
        match now - self.begun > LIMIT {
            true => Err(format!(
                "it takes longer than {} s: measure with fewer iterations",
                LIMIT.as_secs()
            )
            .into()),
            false => Ok(()),
        }
    }

    /// Whether nothing has happened for `length`, as far as the last look at the clock knows.
    pub(crate) fn is_quiet(&self, length: Duration) -> bool {
        self.vain > CLOCK && self.since.is_some_and(|since| since.elapsed() > length)
    }
}
