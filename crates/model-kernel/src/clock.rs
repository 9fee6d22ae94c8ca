//! `mlx5_ib_clock_info`: the page by which a library turns timestamps of CQEs into nanoseconds of
//! real time.
//!
//! The page holds a time, the value of the device's counter at that time, and the factor between
//! them. A reader checks `sign` before and after; it is odd while the rest changes. A product with
//! the factor overflows after a while, so a thread updates the page more often than that while any
//! page is mapped. Source: Linux `net/ethernet/mellanox/mlx5/core/lib/clock.c`.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::uio::pwrite;

use super::kernel::Kernel;
use super::pages::SystemPage;

/// Mask of the counter's bits.
const MASK: u64 = (1 << 41) - 1;
/// Update interval of the pages, much shorter than the overflow period of any factor.
const PERIOD: Duration = Duration::from_secs(1);
/// Jiffies per second: the unit of the page's overflow period.
const JIFFIES: u64 = 250;

/// The device's counter as a clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CycleCounter {
    nanoseconds: u64,
    cycles: u64,
    /// The remaining fraction of a nanosecond, in units of 2^-shift.
    fraction: u64,
    multiplier: u32,
    shift: u32,
}

impl CycleCounter {
    /// The clock of a counter that is at `cycles` when the real time is `nanoseconds`.
    fn new(khz: u32, nanoseconds: u64, cycles: u64) -> Option<Self> {
        const NANOSECONDS_PER_MILLISECOND: u32 = 1_000_000;
        let most = u64::from(u32::MAX / NANOSECONDS_PER_MILLISECOND) * u64::from(khz);
        let shift = (khz.checked_ilog2()? + 16).min(most.checked_ilog2()?);
        let multiplier = ((1_000_000u64 << shift) + u64::from(khz / 2)) / u64::from(khz);
        let multiplier = u32::try_from(multiplier).ok()?;
        Some(Self { nanoseconds, cycles: cycles & MASK, fraction: 0, multiplier, shift })
    }

    /// Advances the time to the counter's current value.
    fn advance(&mut self, cycles: u64) {
        let cycles = cycles & MASK;
        let gone = cycles.wrapping_sub(self.cycles) & MASK;
        let scaled = u128::from(gone) * u128::from(self.multiplier) + u128::from(self.fraction);
        self.nanoseconds = self.nanoseconds.wrapping_add((scaled >> self.shift) as u64);
        self.fraction = (scaled & ((1 << self.shift) - 1)) as u64;
        self.cycles = cycles;
    }

    /// Jiffies within which the page must be updated: the page's overflow period.
    fn period(&self) -> u64 {
        // The multiplier has 31 bits or more: these cycles are fewer than a third of the counter's
        // range.
        let cycles = u64::MAX / 2 / u64::from(self.multiplier);
        let nanoseconds = (u128::from(cycles) * u128::from(self.multiplier)) >> self.shift;
        (nanoseconds as u64 / (1_000_000_000 / JIFFIES)).max(1)
    }

    /// The page's fields after `sign`.
    fn page(&self) -> [u8; 52] {
        let mut bytes = [0; 52];
        let mut put =
            |at: usize, value: &[u8]| bytes[at - 4..][..value.len()].copy_from_slice(value);
        put(8, &self.nanoseconds.to_ne_bytes());
        put(16, &self.cycles.to_ne_bytes());
        put(24, &self.fraction.to_ne_bytes());
        put(32, &self.multiplier.to_ne_bytes());
        put(36, &self.shift.to_ne_bytes());
        put(40, &MASK.to_ne_bytes());
        put(48, &self.period().to_ne_bytes());
        bytes
    }
}

/// A clock page: a page of a file that clients map.
#[derive(Debug)]
pub(super) struct ClockPage {
    file: Arc<OwnedFd>,
    offset: i64,
    sign: Mutex<u32>,
}

impl ClockPage {
    /// Makes a clock page of this size in its own file.
    pub(super) fn alone(page: SystemPage) -> Result<Self, Errno> {
        let file = memfd_create(c"verbless-clock", MFdFlags::MFD_CLOEXEC)?;
        nix::unistd::ftruncate(&file, page.bytes() as i64)?;
        Ok(Self::at(Arc::new(file), 0))
    }

    /// The page at an offset of a client's file.
    pub(super) fn at(file: Arc<OwnedFd>, offset: u64) -> Self {
        Self { file, offset: offset as i64, sign: Mutex::new(0) }
    }

    pub(super) fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Writes the page with separate system calls, so that readers of the mapping see the stores in
    /// this order.
    fn write(&self, time: &CycleCounter) -> Result<(), Errno> {
        self.store(time, |at, bytes| pwrite(&*self.file, bytes, self.offset + at).map(drop))
    }

    /// The stores of an update, in order: `put` takes an offset in the page and bytes.
    fn store(
        &self,
        time: &CycleCounter,
        mut put: impl FnMut(i64, &[u8]) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut sign = self.sign.lock().unwrap_or_else(PoisonError::into_inner);
        put(0, &sign.wrapping_add(1).to_ne_bytes())?;
        put(4, &time.page())?;
        *sign = sign.wrapping_add(2);
        put(0, &sign.to_ne_bytes())
    }
}

/// The clock of one device, and the pages that show it.
#[derive(Debug, Default)]
pub(super) struct Clock {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    time: Option<CycleCounter>,
    pages: Vec<Weak<ClockPage>>,
    /// A thread keeps the pages up to date.
    has_updater: bool,
}

impl Clock {
    /// Writes a page, and keeps it up to date while any client has it.
    pub(super) fn add_page(
        &self,
        kernel: &Arc<Kernel>,
        page: &Arc<ClockPage>,
    ) -> Result<(), Errno> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let time = inner.now(kernel).ok_or(Errno::EOPNOTSUPP)?;
        page.write(&time)?;
        inner.pages.push(Arc::downgrade(page));
        if !inner.has_updater {
            let kernel = Arc::downgrade(kernel);
            let updater = std::thread::Builder::new().name("verbless-clock".into());
            updater.spawn(move || update_pages(&kernel)).map_err(|_| Errno::EAGAIN)?;
            inner.has_updater = true;
        }
        Ok(())
    }

    /// Whether a thread keeps pages up to date.
    #[cfg(test)]
    pub(super) fn has_updater(&self) -> bool {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).has_updater
    }

    /// Whether it continues from a time; otherwise the next page begins with the real time.
    #[cfg(test)]
    pub(super) fn has_time(&self) -> bool {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).time.is_some()
    }

    /// Updates all pages; false when there is none.
    pub(super) fn refresh(&self, kernel: &Kernel) -> bool {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.pages.retain(|page| page.strong_count() > 0);
        if let Some(time) = inner.now(kernel) {
            for page in inner.pages.iter().filter_map(Weak::upgrade) {
                let _ = page.write(&time);
            }
        }
        inner.has_updater = !inner.pages.is_empty();
        if !inner.has_updater {
            // Whole wraps of the counter would be lost until the next page.
            inner.time = None;
        }
        inner.has_updater
    }
}

impl Inner {
    /// The current time; `None` if the device does not report its frequency.
    fn now(&mut self, kernel: &Kernel) -> Option<CycleCounter> {
        let cycles = kernel.function.cycles();
        match &mut self.time {
            Some(time) => time.advance(cycles),
            none => {
                let real = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let khz = kernel.caps.device_frequency_khz();
                *none = CycleCounter::new(khz, real.as_nanos() as u64, cycles);
            }
        }
        self.time
    }
}

fn update_pages(kernel: &Weak<Kernel>) {
    loop {
        std::thread::sleep(PERIOD);
        match kernel.upgrade() {
            Some(kernel) if kernel.clock.refresh(&kernel) => {}
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The conversion of `mlx5dv_ts_to_ns`.
    fn nanoseconds(page: &[u8], stamp: u64) -> u64 {
        let long = |at: usize| u64::from_ne_bytes(page[at..at + 8].try_into().unwrap());
        let word = |at: usize| u32::from_ne_bytes(page[at..at + 4].try_into().unwrap());
        let (nanoseconds, cycles, fraction) = (long(8), long(16), long(24));
        let (multiplier, shift, mask) = (u64::from(word(32)), word(36), long(40));
        let ahead = stamp.wrapping_sub(cycles) & mask;
        if ahead > mask / 2 {
            let elapsed = cycles.wrapping_sub(stamp) & mask;
            nanoseconds - ((elapsed * multiplier - fraction) >> shift)
        } else {
            nanoseconds + ((ahead * multiplier + fraction) >> shift)
        }
    }

    fn read(page: &ClockPage) -> [u8; 56] {
        let mut bytes = [0; 56];
        nix::sys::uio::pread(page.file(), &mut bytes, page.offset).expect("the page");
        bytes
    }

    #[test]
    fn timestamp_converts_to_nanoseconds_across_wraps() {
        let mut time = CycleCounter::new(156_250, 1_000_000, 500).expect("a clock");
        assert_eq!((time.shift, time.multiplier), (29, 3_435_973_837), "as Linux computes them");
        let page = ClockPage::alone(SystemPage::default()).expect("a page");
        page.write(&time).expect("the page exists");
        assert_eq!(nanoseconds(&read(&page), 500 + 156_250), 2_000_000, "a millisecond later");
        assert_eq!(nanoseconds(&read(&page), 500), 1_000_000);
        for second in 1..100_000_u64 {
            time.advance(500 + second * 156_250_000);
        }
        page.write(&time).expect("the page exists");
        let bytes = read(&page);
        let stamp = (500 + 100_000 * 156_250_000_u64) & MASK;
        let error = nanoseconds(&bytes, stamp).abs_diff(1_000_000 + 100_000 * 1_000_000_000);
        assert!(error < 100_000, "{error} ns after a day and more, and many wraps of the counter");
        assert_eq!(bytes[..4], 4_u32.to_ne_bytes(), "the sign is even, and another");
    }

    /// A reader of the mapped page that looks at `sign` before and after, as libmlx5 does, at any
    /// time between the stores of an update.
    #[test]
    fn reader_that_checks_sign_sees_one_update() {
        let page = ClockPage::alone(SystemPage::default()).expect("a page");
        let mut time = CycleCounter::new(1_000_000, 5, 5).expect("a clock");
        page.write(&time).expect("the page exists");
        time.advance(77);
        let mut states = vec![read(&page)];
        page.store(&time, |at, bytes| {
            // A store of many bytes becomes visible in parts.
            for (at, part) in (at..).step_by(4).zip(bytes.chunks(4)) {
                pwrite(page.file(), part, page.offset + at)?;
                states.push(read(&page));
            }
            Ok(())
        })
        .expect("it exists");
        let long = |state: &[u8; 56], at: usize| {
            u64::from_ne_bytes(*state[at..].first_chunk().expect("8 bytes"))
        };
        let sign = |state: &[u8; 56]| long(state, 0) as u32;
        let mut seen = [0; 2];
        for (first, before) in states.iter().enumerate().filter(|(_, state)| sign(state) & 1 == 0) {
            for (second, then) in states.iter().enumerate().skip(first) {
                for (third, later) in states.iter().enumerate().skip(second) {
                    let after = &states[third..];
                    if after.iter().any(|after| sign(after) == sign(before)) {
                        let (nanoseconds, cycles) = (long(then, 8), long(later, 16));
                        assert_eq!(nanoseconds, cycles, "of one update: 1 GHz");
                        seen[usize::from(cycles == 77)] += 1;
                    }
                }
            }
        }
        assert!(seen[0] > 0 && seen[1] > 0, "each update is seen: {seen:?}");
    }

    #[test]
    fn fractional_nanoseconds_accumulate() {
        let mut time = CycleCounter::new(156_250, 0, 0).expect("a clock");
        for cycle in 1..=1000 {
            time.advance(cycle);
            assert_eq!(time.nanoseconds, cycle * 64 / 10, "6.4 ns a cycle");
        }
    }

    #[test]
    fn clock_period_avoids_multiplication_overflow() {
        let time = CycleCounter::new(156_250, 0, 0).expect("a clock");
        let seconds = time.period() / JIFFIES;
        assert_eq!(seconds, 17);
        let cycles = (seconds + 1) * 156_250_000;
        assert!(
            cycles.checked_mul(time.multiplier.into()).is_some(),
            "no product overflows by then"
        );
        assert_eq!(CycleCounter::new(0, 0, 0), None, "a device that reports no frequency");
    }
}
