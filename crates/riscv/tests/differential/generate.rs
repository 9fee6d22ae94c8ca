//! Random snippets by class of instructions. None uses x31, jumps out of its slot, or depends on
//! an address or a time that differs on QEMU.

use crate::image::{SCRATCH, SHARED, body};
use crate::support::*;

/// A few instructions, and the initial values of x1 to x30.
#[derive(Debug)]
pub struct Snippet {
    pub code: Vec<u16>,
    pub registers: [u64; 30],
}

impl Snippet {
    fn word(&mut self, word: u32) {
        self.code.extend([word as u16, (word >> 16) as u16]);
    }

    fn set(&mut self, register: u32, value: u64) {
        self.registers[register as usize - 1] = value;
    }
}

#[derive(Clone, Copy)]
pub struct Class {
    pub name: &'static str,
    generate: fn(&mut Random, &mut Snippet, usize),
}

impl Class {
    pub fn snippets(&self, seed: u64, count: usize) -> Vec<Snippet> {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.name.len() as u64);
        let one = |index| {
            let registers = std::array::from_fn(|_| random.value());
            let mut snippet = Snippet { code: Vec::new(), registers };
            (self.generate)(&mut random, &mut snippet, index);
            snippet
        };
        (0..count).map(one).collect()
    }
}

pub const CLASSES: [Class; 8] = [
    Class { name: "arithmetic", generate: arithmetic },
    Class { name: "multiplication", generate: multiplication },
    Class { name: "loads_and_stores", generate: loads_and_stores },
    Class { name: "atomics", generate: atomics },
    Class { name: "branches", generate: branches },
    Class { name: "compressed", generate: compressed },
    Class { name: "changed_code", generate: changed_code },
    Class { name: "any_word", generate: any_word },
];

/// SplitMix64.
pub struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }

    /// A random value, often near a boundary.
    fn value(&mut self) -> u64 {
        let near = self.below(9).wrapping_sub(4);
        match self.below(5) {
            0 => self.next(),
            1 => self.next() as i32 as u64,
            2 => near,
            3 => (1u64 << self.below(64)).wrapping_add(near),
            _ => self.below(256).wrapping_sub(128),
        }
    }

    /// A register of x0 to x28. Half of the draws are among x0 to x4, so that instructions depend
    /// on each other.
    fn register(&mut self) -> u32 {
        let end = if self.below(2) == 0 { 29 } else { 5 };
        self.below(end) as u32
    }

    /// A register as above that is not among `others`.
    fn register_but(&mut self, others: &[u32]) -> u32 {
        loop {
            let register = self.register();
            if !others.contains(&register) {
                return register;
            }
        }
    }

    fn imm(&mut self) -> i32 {
        match self.below(3) {
            0 => self.of(&[0, 1, -1, 2047, -2048]),
            _ => self.below(4096) as i32 - 2048,
        }
    }

    /// An instruction that computes into `rd`.
    fn computation(&mut self, rd: u32) -> u32 {
        let (rs1, rs2) = (self.register(), self.register());
        match self.below(6) {
            0 | 1 => {
                let (funct3, funct7) = self.of(&[
                    (0, 0),
                    (0, 0x20),
                    (1, 0),
                    (2, 0),
                    (3, 0),
                    (4, 0),
                    (5, 0),
                    (5, 0x20),
                    (6, 0),
                    (7, 0),
                ]);
                r(0x33, funct3, funct7, rd, rs1, rs2)
            }
            2 => {
                let (funct3, funct7) = self.of(&[(0, 0), (0, 0x20), (1, 0), (5, 0), (5, 0x20)]);
                r(0x3b, funct3, funct7, rd, rs1, rs2)
            }
            3 => {
                let (opcode, funct3) = self.of(&[
                    (0x13, 0),
                    (0x13, 2),
                    (0x13, 3),
                    (0x13, 4),
                    (0x13, 6),
                    (0x13, 7),
                    (0x1b, 0),
                ]);
                i(opcode, funct3, rd, rs1, self.imm())
            }
            4 => {
                let (opcode, bits) = self.of(&[(0x13, 64), (0x1b, 32)]);
                let (funct3, funct7) = self.of(&[(1, 0), (5, 0), (5, 0x20)]);
                r(opcode, funct3, funct7, rd, rs1, 0) | (self.below(bits) as u32) << 20
            }
            _ => (self.next() as u32) << 12 | rd << 7 | self.of(&[0x37, 0x17]),
        }
    }
}

fn arithmetic(random: &mut Random, snippet: &mut Snippet, _: usize) {
    for _ in 0..10 {
        let rd = random.register();
        snippet.word(random.computation(rd));
        // A pair of shifts, an address of an element, a constant of two.
        let (rs, other) = (random.register(), random.register());
        let by = |random: &mut Random| (random.below(64) as u32) << 20;
        let first = r(0x13, 1, 0, rd, rs, 0) | by(random);
        match random.below(6) {
            0 => {
                snippet.word(first);
                snippet.word(r(0x13, 5, 0, rd, rd, 0) | by(random));
            }
            1 => {
                snippet.word(first);
                snippet.word(r(0x33, 0, 0, rd, rd, other));
            }
            2 => {
                snippet.word((random.next() as u32) << 12 | rd << 7 | 0x37);
                snippet.word(i(random.of(&[0x13, 0x1b]), 0, rd, rd, random.imm()));
            }
            _ => {}
        }
    }
}

fn multiplication(random: &mut Random, snippet: &mut Snippet, _: usize) {
    for _ in 0..10 {
        let (rd, rs1, rs2) = (random.register(), random.register(), random.register());
        let (opcode, funct3) = match random.below(13) {
            wide @ 0..8 => (0x33, wide as u32),
            narrow => (0x3b, [0, 4, 5, 6, 7][narrow as usize - 8]),
        };
        snippet.word(r(opcode, funct3, 1, rd, rs1, rs2));
    }
}

fn loads_and_stores(random: &mut Random, snippet: &mut Snippet, _: usize) {
    for base in [A0, A1] {
        snippet.set(base, SHARED + 1024 + random.below(2048));
    }
    for _ in 0..12 {
        let rd = random.register_but(&[A0, A1]);
        let (base, offset) = (random.of(&[A0, A1]), random.below(2040) as i32 - 1024);
        snippet.word(match random.below(5) {
            0 | 1 => i(0x03, random.below(7) as u32, rd, base, offset),
            2 | 3 => s(random.below(4) as u32, base, random.register(), offset),
            _ => random.computation(rd),
        });
    }
}

fn atomics(random: &mut Random, snippet: &mut Snippet, _: usize) {
    for base in [A0, A1] {
        snippet.set(base, SHARED + 8 * random.below(SCRATCH / 8));
    }
    for _ in 0..10 {
        let (rd, rs2) = (random.register_but(&[A0, A1]), random.register());
        let (base, wide) = (random.of(&[A0, A1]), random.below(2) == 0);
        let order = (random.below(4) as u32) << 25;
        let mut push = |word| snippet.word(word | order);
        match random.below(6) {
            // LR and SC, together and apart, with and without a store between.
            0 => {
                push(amo(2, wide, rd, base, 0));
                if random.below(3) == 0 {
                    push(s(2 + u32::from(wide), random.of(&[A0, A1]), rs2, 0) & !(3 << 25));
                }
                let rd = random.register_but(&[A0, A1]);
                push(amo(3, wide, rd, random.of(&[base, A1]), rs2));
            }
            1 => push(amo(3, wide, rd, base, rs2)),
            _ => {
                let funct5 = random.of(&[0x01, 0x00, 0x04, 0x0c, 0x08, 0x10, 0x14, 0x18, 0x1c]);
                push(amo(funct5, wide, rd, base, rs2));
            }
        }
    }
}

/// A loop with jumps forward in it.
fn branches(random: &mut Random, snippet: &mut Snippet, _: usize) {
    let counter = 29;
    snippet.set(counter, 1 + random.below(5));
    for _ in 0..6 {
        let over = 1 + random.below(3) as i32;
        let (rd, rs1, rs2) = (random.register(), random.register(), random.register());
        match random.below(8) {
            0 => snippet.word(j(rd, 4 + 4 * over)),
            1 => {
                // t0 = pc; jumps past the following ones.
                snippet.word(T0 << 7 | 0x17);
                snippet.word(i(0x67, 0, rd, T0, 8 + 4 * over + (over & 1)));
            }
            _ => {
                let funct3 = random.of(&[0, 1, 4, 5, 6, 7]);
                snippet.word(b(funct3, rs1, rs2, 4 + 4 * over));
            }
        }
        for _ in 0..over {
            let rd = random.register();
            snippet.word(random.computation(rd));
        }
    }
    let back = -2 * snippet.code.len() as i32;
    snippet.word(addi(counter, counter, -1));
    snippet.word(b(1, counter, 0, back - 4));
}

/// Halfwords that jump at most a little forward.
fn compressed(random: &mut Random, snippet: &mut Snippet, _: usize) {
    // Bases of loads and stores: s0 and sp.
    snippet.set(8, SHARED + 8 * random.below(256));
    snippet.set(SP, SHARED + 8 * random.below(256));
    let mut count = 0;
    while count < 24 {
        let word = random.next() as u16;
        let (quadrant, funct3) = (word & 3, word >> 13);
        let (rd, rs2) = (u32::from(word >> 7 & 31), u32::from(word >> 2 & 31));
        let (high, low) = (8 + u32::from(word >> 7 & 7), 8 + u32::from(word >> 2 & 7));
        let imm = word >> 2 & 31 | word >> 7 & 32;
        let kept = |register: u32| register == 8 || register == SP || register == 31;
        let good = match (quadrant, funct3) {
            (0, 0) => word >> 5 & 0xff != 0 && !kept(low),
            (0, 2 | 3) => high == 8 && !kept(low),
            (0, 6 | 7) => high == 8,
            (1, 0 | 2) => !kept(rd),
            (1, 1) => !kept(rd) && rd != 0,
            (1, 3) => !kept(rd) && imm != 0,
            (1, 4) => !kept(high) && (word >> 10 & 7 != 7 || word >> 6 & 1 == 0),
            (2, 0) => !kept(rd),
            (2, 2 | 3) => !kept(rd) && rd != 0,
            (2, 4) => rs2 != 0 && rs2 != 31 && !kept(rd),
            (2, 6 | 7) => rs2 != 31,
            _ => false,
        };
        if good {
            snippet.code.push(word);
            count += 1;
            if random.below(6) == 0 {
                // c.j, c.beqz or c.bnez by 4, over `c.addi a0, 1`.
                let register = (random.below(8) as u16) << 7;
                let jump = random.of(&[0xa011, 0xc011 | register, 0xe011 | register]);
                snippet.code.extend([jump, 0x0505]);
            }
        }
    }
}

/// Replaces an executed instruction, and executes it after a FENCE.I.
fn changed_code(random: &mut Random, snippet: &mut Snippet, index: usize) {
    let counter = 29;
    snippet.set(counter, 2);
    snippet.set(A0, body(index) + 4);
    let rd = random.register_but(&[A0, A1]);
    snippet.set(A1, random.computation(rd).into());
    for word in [
        addi(A2, A2, 1),
        random.computation(A3),
        s(2, A0, A1, 0),
        FENCE_I,
        addi(counter, counter, -1),
        b(1, counter, 0, -20),
    ] {
        snippet.word(word);
    }
}

/// One random word or halfword: both execute it, or refuse it with the same signal.
fn any_word(random: &mut Random, snippet: &mut Snippet, _: usize) {
    // Registers point to unmapped memory, except a0 for atomics.
    for register in 1..=30 {
        snippet.set(register, random.next() | 1 << 60);
    }
    snippet.set(A0, SHARED + 8 * random.below(SCRATCH / 8));
    snippet.set(30, 0);
    if random.below(3) == 0 {
        loop {
            let word = random.next() as u16;
            let (quadrant, funct3) = (word & 3, word >> 13);
            let jumps = match quadrant {
                1 => funct3 >= 5,
                2 => funct3 == 4 && word >> 2 & 31 == 0,
                _ => false,
            };
            let pointer = word >> 7 & 31 == 31 || word >> 2 & 31 == 31;
            if quadrant != 3 && !jumps && !pointer {
                snippet.code.push(word);
                return;
            }
        }
    }
    loop {
        let mut word = random.next() as u32 | 3;
        // Fewer set bits in the fields that select an operation.
        if random.below(2) == 0 {
            word &= !(0x7f << 25) | random.of(&[0, 0x40, 0x20, 2, 4]) << 24;
        }
        let (opcode, funct3) = (word & 0x7f, word >> 12 & 7);
        let fields = [7, 15, 20].map(|at| word >> at & 31);
        let csr = word >> 20;
        // Counters differ; and QEMU gives programs the floating-point CSRs, with F or without.
        let differs = csr < 4 || (0xc00..0xd00).contains(&csr);
        let good = match opcode {
            0x63 | 0x67 | 0x6f => false,
            0x73 => funct3 != 0 && funct3 != 4 && !differs,
            0x2f => {
                word = word & !(31 << 15) | A0 << 15;
                true
            }
            _ => true,
        };
        if good && !fields.contains(&31) {
            snippet.word(word);
            return;
        }
    }
}
