//! Functions with the same results on every machine. The example `compiled` contains them as well,
//! and compares its results with those on a hart.

use core::fmt::Write;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

type Function = fn(u64) -> u64;

/// All functions, each with its name.
pub(crate) const WORK: [(&str, Function); 8] = [
    ("sorts numbers", sort),
    ("hashes bytes", hash),
    ("divides 128 bits", divide),
    ("copies ranges", copy),
    ("uses atomics", atomics),
    ("formats numbers", format),
    ("computes with floating point", float),
    ("matches and calls through a table", dispatch),
];

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

fn fold(values: impl Iterator<Item = u64>) -> u64 {
    values.fold(0xcbf2_9ce4_8422_2325, |hash, value| {
        (hash ^ value).wrapping_mul(0x100_0000_01b3).rotate_left(23)
    })
}

fn sort(seed: u64) -> u64 {
    let mut random = Random(seed);
    let mut wide = [0u64; 200];
    wide.fill_with(|| random.next());
    wide.sort_unstable();
    let mut narrow = [0i16; 300];
    narrow.fill_with(|| random.next() as i16);
    narrow.sort_unstable_by_key(|it| (it.unsigned_abs(), *it));
    fold(wide.iter().copied().chain(narrow.iter().map(|it| *it as u64)))
}

/// CRC-32 by a table, and SHA-256's rotations over the same bytes.
fn hash(seed: u64) -> u64 {
    let mut table = [0u32; 256];
    for (index, entry) in (0u32..).zip(&mut table) {
        *entry = (0..8).fold(index, |crc, _| (crc >> 1) ^ (0xedb8_8320 * (crc & 1)));
    }
    let mut random = Random(seed);
    let (mut crc, mut mixed) = (!0u32, 0x6a09_e667u32);
    for _ in 0..500 {
        let byte = random.next() as u8;
        crc = crc >> 8 ^ table[usize::from(crc as u8 ^ byte)];
        let turned = mixed.rotate_right(6) ^ mixed.rotate_right(11) ^ mixed.rotate_right(25);
        mixed = mixed.wrapping_add(turned).wrapping_add(byte.into());
    }
    u64::from(crc) << 32 | u64::from(mixed)
}

fn divide(seed: u64) -> u64 {
    let mut random = Random(seed);
    let mut wide = || u128::from(random.next()) << 64 | u128::from(random.next());
    fold((0..40).map(|shift| {
        let (a, b) = (wide(), wide() >> (3 * shift) | 1);
        let (c, d) = (a as i128, (b as i128) >> shift | 1);
        let product = (a >> 64).wrapping_mul(b);
        let signed = (c / d) ^ (c % d);
        ((a / b) ^ (a % b) ^ product ^ signed as u128) as u64
    }))
}

fn copy(seed: u64) -> u64 {
    let mut random = Random(seed);
    let mut bytes = [0u8; 700];
    bytes.fill_with(|| random.next() as u8);
    for _ in 0..60 {
        let (from, to, length) = (
            random.next() as usize % 400,
            random.next() as usize % 400,
            random.next() as usize % 300,
        );
        bytes.copy_within(from..from + length, to);
        let (left, right) = bytes.split_at_mut(350);
        if left[..length / 2] < right[..length / 2] {
            left[..length / 2].copy_from_slice(&right[..length / 2]);
        }
        bytes[to..to + length / 8].fill(length as u8);
    }
    fold(bytes.iter().map(|it| u64::from(*it)))
}

fn atomics(seed: u64) -> u64 {
    let mut random = Random(seed);
    let (byte, word, wide) = (AtomicU8::new(1), AtomicU32::new(2), AtomicU64::new(3));
    fold((0..100).map(|_| {
        let value = random.next();
        let old = match value % 7 {
            0 => wide.fetch_add(value, Ordering::AcqRel),
            1 => word.fetch_max(value as u32, Ordering::Relaxed).into(),
            2 => byte.fetch_xor(value as u8, Ordering::SeqCst).into(),
            3 => wide.fetch_and(value | 0xff, Ordering::Acquire),
            4 => word.swap(value as u32, Ordering::Release).into(),
            5 => byte
                .compare_exchange(
                    byte.load(Ordering::Acquire),
                    value as u8,
                    Ordering::SeqCst,
                    Ordering::Relaxed,
                )
                .map_or(999, u64::from),
            _ => wide
                .fetch_update(Ordering::SeqCst, Ordering::Relaxed, |it| {
                    (it % 3 != 0).then_some(it.rotate_left(9))
                })
                .unwrap_or(1234),
        };
        old ^ wide.load(Ordering::Relaxed) ^ u64::from(word.load(Ordering::Relaxed))
    }))
}

/// A buffer for formatted text.
struct Text {
    bytes: [u8; 256],
    length: usize,
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let end = self.length + text.len();
        self.bytes
            .get_mut(self.length..end)
            .ok_or(core::fmt::Error)?
            .copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

fn format(seed: u64) -> u64 {
    let mut random = Random(seed);
    let mut text = Text { bytes: [0; 256], length: 0 };
    let (a, b, c) = (random.next(), random.next() as i32, random.next() as u8);
    let ratio = a as f64 / 1e9;
    let written = write!(text, "{a:#034b} {b:+} {c:>9x} {:?} {ratio:.3}", Some((a as u128) << 40));
    let parsed = core::str::from_utf8(&text.bytes[..text.length])
        .ok()
        .and_then(|it| it.split(' ').nth(1)?.parse::<i32>().ok());
    fold(text.bytes.iter().map(|it| u64::from(*it)))
        ^ u64::from(written.is_ok())
        ^ u64::from(parsed == Some(b)) << 1
}

/// Uses the compiler's own library: there is no floating-point unit.
fn float(seed: u64) -> u64 {
    let mut random = Random(seed);
    let mut x = 1.0 + (random.next() >> 12) as f64 / 1e15;
    fold((0..60).map(|_| {
        let y = random.next() as i32 as f64;
        x = (x * 1.000_1 + y) / (1.0 + x * x) - (y as f32 / 3.0) as f64;
        x.to_bits() ^ (x as i64 as u64) ^ u64::from(x > y)
    }))
}

fn dispatch(seed: u64) -> u64 {
    const STEPS: [fn(u64, u64) -> u64; 5] = [
        |a, b| a.wrapping_add(b),
        |a, b| a.rotate_left(b as u32 % 64),
        |a, b| a.checked_div(b % 1000).unwrap_or(b),
        |a, b| a.leading_zeros() as u64 ^ b.swap_bytes(),
        |a, b| if (a as i64) < (b as i64) { a.count_ones().into() } else { !b },
    ];
    let mut random = Random(seed);
    (0..200).fold(seed, |value, _| {
        let other = random.next();
        match other % 11 {
            0 => value.reverse_bits(),
            1 => value.saturating_sub(other),
            2 => u64::from(value as u16 as i8 as u32),
            3 => value.isqrt(),
            _ => STEPS[(other >> 32) as usize % 5](value, other),
        }
    })
}
