//! Compares copies into and out of shared memory with `memcpy`. `cargo xtask bench` runs it and has
//! the bounds; a ratio of 1 means equal speed.

use std::hint::black_box;
use std::time::Instant;

use verbless_ring::ring::SharedMemory;

/// Bytes of a copy.
const LENGTHS: [usize; 6] = [64, 256, 1 << 10, 8 << 10, 64 << 10, 16 << 20];
/// Rounds of each copy; the fastest counts.
const TURNS: usize = 15;
/// Approximate bytes of a round.
const BYTES: usize = 64 << 20;

const PAGE: usize = 4096;

/// Part of `buffer` that begins in the middle of a page. Shared memory begins at a page. If source
/// and destination are a few bytes apart within their pages, the processor assumes that each load
/// depends on the last store (4 KiB aliasing).
fn half_a_page_in(buffer: &mut [u8], length: usize) -> &mut [u8] {
    let at = buffer.as_ptr().align_offset(PAGE) + PAGE / 2;
    &mut buffer[at..at + length]
}

fn main() {
    println!("{:>10} {:>7} {:>7} {:>7}  in GB/s", "bytes", "memcpy", "in", "out");
    for length in LENGTHS {
        let (mut from, mut to) = (vec![0x5a_u8; length + 2 * PAGE], vec![0_u8; length + 2 * PAGE]);
        let from = half_a_page_in(&mut from, length);
        let to = half_a_page_in(&mut to, length);
        let memory = SharedMemory::zeroed(length);
        let [mut plain, mut into, mut out] = [f64::INFINITY; 3];
        // Alternating, so that other load of the machine disturbs all of them.
        for _ in 0..TURNS {
            plain =
                plain.min(time(length, || black_box(&mut *to).copy_from_slice(black_box(&*from))));
            into = into.min(time(length, || {
                assert!(memory.write_at(0, black_box(&*from)).is_ok());
            }));
            out = out.min(time(length, || {
                assert!(memory.read_at(0, black_box(&mut *to)).is_ok());
            }));
        }
        assert_eq!(from, &*to, "{length} bytes did not come back");
        let [fast, a, b] = [plain, into, out].map(|time| length as f64 / time / 1e9);
        println!("{length:>10} {fast:>7.2} {a:>7.2} {b:>7.2}");
        println!("ratio in {length} B: {:.3}", a / fast);
        println!("ratio out {length} B: {:.3}", b / fast);
    }
}

/// Seconds of one call, measured over many.
fn time(length: usize, mut copy: impl FnMut()) -> f64 {
    let calls = (BYTES / length).clamp(1, 1 << 20);
    let start = Instant::now();
    (0..calls).for_each(|_| copy());
    start.elapsed().as_secs_f64() / calls as f64
}
