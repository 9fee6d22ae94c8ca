//! Copies into shared memory beside `memcpy`, in one run: `cargo bench -p verbless-ring --bench
//! copies`. A ratio of 1 means as fast.

use std::hint::black_box;
use std::time::{Duration, Instant};

use verbless_ring::ring::SharedMemory;

/// Runs of each; the fastest counts.
const RUNS: usize = 7;
/// Bytes of a run, about.
const BYTES: usize = 512 << 20;

fn main() {
    println!("{:>12} {:>9} {:>9} {:>7}", "bytes", "memcpy", "write_at", "ratio");
    for length in [8, 16, 64, 200, 1 << 10, 16 << 10, 256 << 10, 2 << 20, 16 << 20, 256 << 20] {
        let from = vec![0x5a_u8; length];
        let mut to = vec![0_u8; length];
        let memory = SharedMemory::zeroed(length);
        let (mut plain, mut ours) = (Duration::MAX, Duration::MAX);
        // In turns, so that whatever else the machine does disturbs both.
        for _ in 0..RUNS {
            plain =
                plain.min(time(length, || black_box(&mut to).copy_from_slice(black_box(&from))));
            ours = ours.min(time(length, || {
                let copied = memory.write_at(0, black_box(&from));
                assert!(copied.is_ok());
            }));
        }
        let rate = |time: Duration| length as f64 / time.as_secs_f64() / 1e9;
        let ratio = plain.as_secs_f64() / ours.as_secs_f64();
        println!("{length:>12} {:>9.2} {:>9.2} {ratio:>7.2}", rate(plain), rate(ours));
    }
    println!("in GB/s");
}

/// The time of one call, of many.
fn time(length: usize, mut copy: impl FnMut()) -> Duration {
    let calls = (BYTES / length).clamp(1, 1 << 20);
    let start = Instant::now();
    (0..calls).for_each(|_| copy());
    start.elapsed() / calls as u32
}
