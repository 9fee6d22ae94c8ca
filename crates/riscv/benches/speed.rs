//! Instructions per second of a hart, on three programs: a hash of bytes (loads and
//! multiplications), an insertion sort (loads, stores, branches that are hard to predict), and
//! recursive Fibonacci numbers (calls, returns, the stack).
//!
//! `speed SECONDS ROUNDS BOUND` prints a line for each program, `hash: N M/s`, with the best of at
//! most ROUNDS rounds of SECONDS seconds each. A round that reaches BOUND, in millions a second, is
//! the last one.

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use support::*;
use verbless_riscv::Exit;

/// FNV-1a of 64 bytes from a1 on, again and again; a0 is the hash, a2 the prime.
fn hash() -> Vec<u32> {
    let t1 = 6;
    vec![
        addi(A3, A1, 0),
        addi(T0, A1, 64),
        // do a0 = (a0 ^ *a3++) * a2 while a3 != t0
        i(0x03, 4, t1, A3, 0),
        addi(A3, A3, 1),
        r(0x33, 4, 0, A0, A0, t1),
        r(0x33, 0, 1, A0, A0, A2),
        b(1, A3, T0, -16),
        j(0, -28),
    ]
}

/// Fills 256 doublewords from a1 on with numbers of xorshift, sorts them, and begins again.
fn sort() -> Vec<u32> {
    let (x, t1, t2, t3, end) = (A0, 6, 7, 28, A3);
    let ld = |rd, rs, imm| i(0x03, 3, rd, rs, imm);
    let shift = |left: bool, by: u32| {
        let funct3 = if left { 1 } else { 5 };
        [r(0x13, funct3, 0, t1, x, 0) | by << 20, r(0x33, 4, 0, x, x, t1)]
    };
    let mut code = vec![addi(T0, A1, 0), addi(end, A1, 2047), addi(end, end, 1)];
    code.extend([shift(true, 13), shift(false, 7), shift(true, 17)].concat());
    code.extend([s(3, T0, x, 0), addi(T0, T0, 8), b(1, T0, end, -32)]);
    // for t0 in a1 + 8..end: t1 = *t0; t2 = t0
    code.push(addi(T0, A1, 8));
    code.extend([ld(t1, T0, 0), addi(t2, T0, 0)]);
    // while t2 > a1 and t2[-1] > t1: *t2 = t2[-1]; t2 -= 1
    code.extend([b(7, A1, t2, 24), ld(t3, t2, -8), b(7, t1, t3, 16)]);
    code.extend([s(3, t2, t3, 0), addi(t2, t2, -8), b(6, A1, t2, -16)]);
    code.extend([s(3, t2, t1, 0), addi(T0, T0, 8), b(1, T0, end, -40)]);
    code.push(j(0, -4 * code.len() as i32));
    code
}

/// a0 = fib(12), again and again.
fn fibonacci() -> Vec<u32> {
    let s0 = 8;
    vec![
        addi(A0, 0, 12),
        j(RA, 8),
        j(0, -8),
        // fib: if a0 < 2 return a0
        addi(T0, 0, 2),
        b(4, A0, T0, 60),
        addi(SP, SP, -16),
        s(3, SP, RA, 0),
        s(3, SP, s0, 8),
        addi(s0, A0, 0),
        addi(A0, A0, -1),
        j(RA, -28),
        addi(T0, A0, 0),
        addi(A0, s0, -2),
        addi(s0, T0, 0),
        j(RA, -44),
        r(0x33, 0, 0, A0, A0, s0),
        i(0x03, 3, RA, SP, 0),
        i(0x03, 3, s0, SP, 8),
        addi(SP, SP, 16),
        i(0x67, 0, 0, RA, 0),
    ]
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|it| it.parse::<f64>().ok());
    let mut next = |default| arguments.next().unwrap_or(default);
    let (seconds, rounds, bound) = (next(0.3), next(5.0) as u32, next(f64::INFINITY));
    for (name, code) in [("hash", hash()), ("sort", sort()), ("calls", fibonacci())] {
        let mut best = 0.0_f64;
        for _ in 0..rounds {
            best = best.max(rate(&code, Duration::from_secs_f64(seconds)));
            if best >= bound {
                break;
            }
        }
        println!("{name}: {best:.0} M/s");
    }
}

/// Millions of instructions a second.
fn rate(code: &[u32], round: Duration) -> f64 {
    let mut machine = Machine::new(code);
    machine.set(A0, 0x9e37_79b9_7f4a_7c15).set(A1, DATA).set(A2, 0x100_0000_01b3);
    machine.set(SP, DATA + SIZE);
    let start = Instant::now();
    while start.elapsed() < round {
        assert_eq!(machine.hart.run(1_000_000), Exit::Budget, "{:x?}", machine.hart.registers());
    }
    machine.hart.instructions() as f64 / start.elapsed().as_secs_f64() / 1e6
}
