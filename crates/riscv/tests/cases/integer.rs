//! Each instruction of RV64I and M on boundary values, against results computed in `i128`.

use crate::support::*;
use verbless_riscv::Exit;

/// Values around signs, widths and zero.
const EDGES: [u64; 20] = [
    0,
    1,
    2,
    3,
    31,
    32,
    63,
    64,
    0x7f,
    0x80,
    0x7fff_ffff,
    0x8000_0000,
    0x8000_0001,
    0xffff_ffff,
    0x1_0000_0000,
    0x0123_4567_89ab_cdef,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0xffff_ffff_8000_0000,
    0xffff_ffff_ffff_ffff,
];

/// Immediates of 12 bits.
const IMMEDIATES: [i32; 9] = [0, 1, 2, -1, 5, 0x555, 2047, -2047, -2048];

type Value = fn(u64, u64) -> i128;

fn signed(value: u64) -> i128 {
    i128::from(value as i64)
}

fn word(value: u64) -> i128 {
    i128::from(value as i32)
}

fn low(value: u64) -> i128 {
    i128::from(value as u32)
}

fn unsigned(value: u64) -> i128 {
    i128::from(value)
}

/// The high half of a product of two values that have at most 65 bits.
fn high(a: i128, b: i128) -> i128 {
    // The product of two u64 can exceed i128; wrapping keeps its bits, so that the high half is
    // right.
    a.wrapping_mul(b) >> 64
}

/// The quotient towards zero, with the specified result for a divisor of zero.
fn quotient(a: i128, b: i128) -> i128 {
    if b == 0 { -1 } else { a / b }
}

fn remainder(a: i128, b: i128) -> i128 {
    if b == 0 { a } else { a % b }
}

/// R-type instructions: name, opcode, funct3, funct7, whether the result is a sign-extended word,
/// result.
const R_TYPE: [(&str, u32, u32, u32, bool, Value); 28] = [
    ("add", 0x33, 0, 0, false, |a, b| signed(a) + signed(b)),
    ("sub", 0x33, 0, 0x20, false, |a, b| signed(a) - signed(b)),
    ("sll", 0x33, 1, 0, false, |a, b| unsigned(a) << (b % 64)),
    ("slt", 0x33, 2, 0, false, |a, b| (signed(a) < signed(b)).into()),
    ("sltu", 0x33, 3, 0, false, |a, b| (unsigned(a) < unsigned(b)).into()),
    ("xor", 0x33, 4, 0, false, |a, b| unsigned(a) ^ unsigned(b)),
    ("srl", 0x33, 5, 0, false, |a, b| unsigned(a) >> (b % 64)),
    ("sra", 0x33, 5, 0x20, false, |a, b| signed(a) >> (b % 64)),
    ("or", 0x33, 6, 0, false, |a, b| unsigned(a) | unsigned(b)),
    ("and", 0x33, 7, 0, false, |a, b| unsigned(a) & unsigned(b)),
    ("addw", 0x3b, 0, 0, true, |a, b| word(a) + word(b)),
    ("subw", 0x3b, 0, 0x20, true, |a, b| word(a) - word(b)),
    ("sllw", 0x3b, 1, 0, true, |a, b| low(a) << (b % 32)),
    ("srlw", 0x3b, 5, 0, true, |a, b| low(a) >> (b % 32)),
    ("sraw", 0x3b, 5, 0x20, true, |a, b| word(a) >> (b % 32)),
    ("mul", 0x33, 0, 1, false, |a, b| signed(a).wrapping_mul(signed(b))),
    ("mulh", 0x33, 1, 1, false, |a, b| high(signed(a), signed(b))),
    ("mulhsu", 0x33, 2, 1, false, |a, b| high(signed(a), unsigned(b))),
    ("mulhu", 0x33, 3, 1, false, |a, b| high(unsigned(a), unsigned(b))),
    ("div", 0x33, 4, 1, false, |a, b| quotient(signed(a), signed(b))),
    ("divu", 0x33, 5, 1, false, |a, b| quotient(unsigned(a), unsigned(b))),
    ("rem", 0x33, 6, 1, false, |a, b| remainder(signed(a), signed(b))),
    ("remu", 0x33, 7, 1, false, |a, b| remainder(unsigned(a), unsigned(b))),
    ("mulw", 0x3b, 0, 1, true, |a, b| word(a) * word(b)),
    ("divw", 0x3b, 4, 1, true, |a, b| quotient(word(a), word(b))),
    ("divuw", 0x3b, 5, 1, true, |a, b| quotient(low(a), low(b))),
    ("remw", 0x3b, 6, 1, true, |a, b| remainder(word(a), word(b))),
    ("remuw", 0x3b, 7, 1, true, |a, b| remainder(low(a), low(b))),
];

fn result(value: i128, is_word: bool) -> u64 {
    if is_word { value as i32 as u64 } else { value as u64 }
}

#[test]
fn register_operations_match_specification() {
    for (name, opcode, funct3, funct7, is_word, expected) in R_TYPE {
        // The destination is another register, or one of the sources; x0 stays 0.
        for (rd, rs1, rs2) in [(A2, A0, A1), (A0, A0, A1), (A1, A0, A1), (A0, A0, A0), (0, A0, A1)]
        {
            let mut machine = Machine::new(&[r(opcode, funct3, funct7, rd, rs1, rs2), ECALL]);
            for (a, b) in EDGES.iter().flat_map(|&a| EDGES.map(|b| (a, b))) {
                machine.hart.set_pc(CODE);
                machine.set(A0, a).set(A1, b).finish();
                let (a, b) = (a, if rs2 == A0 { a } else { b });
                let expected = if rd == 0 { 0 } else { result(expected(a, b), is_word) };
                assert_eq!(machine.get(rd), expected, "{name} {a:#x}, {b:#x} into x{rd}");
            }
        }
    }
}

/// I-type instructions: name, opcode, funct3, whether the result is a sign-extended word, result.
const I_TYPE: [(&str, u32, u32, bool, Value); 7] = [
    ("addi", 0x13, 0, false, |a, b| signed(a) + signed(b)),
    ("slti", 0x13, 2, false, |a, b| (signed(a) < signed(b)).into()),
    ("sltiu", 0x13, 3, false, |a, b| (unsigned(a) < unsigned(b)).into()),
    ("xori", 0x13, 4, false, |a, b| unsigned(a) ^ unsigned(b)),
    ("ori", 0x13, 6, false, |a, b| unsigned(a) | unsigned(b)),
    ("andi", 0x13, 7, false, |a, b| unsigned(a) & unsigned(b)),
    ("addiw", 0x1b, 0, true, |a, b| word(a) + word(b)),
];

#[test]
fn i_type_sign_extends_immediate() {
    for (name, opcode, funct3, is_word, expected) in I_TYPE {
        for imm in IMMEDIATES {
            for (rd, rs1) in [(A2, A0), (A0, A0), (0, A0), (A2, 0)] {
                let mut machine = Machine::new(&[i(opcode, funct3, rd, rs1, imm), ECALL]);
                for a in EDGES {
                    machine.hart.set_pc(CODE);
                    machine.set(A0, a).finish();
                    let a = if rs1 == 0 { 0 } else { a };
                    let value = result(expected(a, imm as i64 as u64), is_word);
                    let value = if rd == 0 { 0 } else { value };
                    assert_eq!(machine.get(rd), value, "{name} {a:#x}, {imm} into x{rd}");
                }
            }
        }
    }
}

#[test]
fn immediate_shift_amount_has_six_or_five_bits() {
    // Name, opcode, funct3, the bits above the amount, result.
    let shifts: [(&str, u32, u32, u32, Value); 6] = [
        ("slli", 0x13, 1, 0, |a, by| unsigned(a) << by),
        ("srli", 0x13, 5, 0, |a, by| unsigned(a) >> by),
        ("srai", 0x13, 5, 0x20, |a, by| signed(a) >> by),
        ("slliw", 0x1b, 1, 0, |a, by| low(a) << by),
        ("srliw", 0x1b, 5, 0, |a, by| low(a) >> by),
        ("sraiw", 0x1b, 5, 0x20, |a, by| word(a) >> by),
    ];
    for (name, opcode, funct3, funct7, expected) in shifts {
        let is_word = opcode == 0x1b;
        for by in 0..if is_word { 32 } else { 64 } {
            let code = r(opcode, funct3, funct7, A2, A0, 0) | by << 20;
            let mut machine = Machine::new(&[code, ECALL]);
            for a in EDGES {
                machine.hart.set_pc(CODE);
                machine.set(A0, a).finish();
                let expected = result(expected(a, by.into()), is_word);
                assert_eq!(machine.get(A2), expected, "{name} {a:#x}, {by}");
            }
        }
    }
}

#[test]
fn lui_and_auipc_sign_extend() {
    for upper in [0u32, 1, 0x7ffff, 0x80000, 0xfffff] {
        let lui = upper << 12 | A0 << 7 | 0x37;
        let auipc = upper << 12 | A1 << 7 | 0x17;
        let mut machine = Machine::new(&[lui, auipc, ECALL]);
        machine.finish();
        let value = (upper << 12) as i32 as u64;
        assert_eq!(machine.get(A0), value);
        assert_eq!(machine.get(A1), value.wrapping_add(CODE + 4));
    }
}

#[test]
fn fused_constants_equal_separate_instructions() {
    for upper in [0u32, 0x7ffff, 0x80000, 0xfffff] {
        for imm in IMMEDIATES {
            for (opcode, wide) in [(0x13, true), (0x1b, false)] {
                let code = [upper << 12 | A0 << 7 | 0x37, i(opcode, 0, A0, A0, imm), ECALL];
                let sum = signed((upper << 12) as i32 as u64) + i128::from(imm);
                let mut fused = Machine::new(&code);
                fused.finish();
                assert_eq!(fused.get(A0), result(sum, !wide), "{upper:#x} {imm}");
                // One instruction at a time.
                let mut steps = Machine::new(&code);
                assert_eq!(steps.hart.run(1), Exit::Budget);
                assert_eq!(steps.get(A0), (upper << 12) as i32 as u64);
                assert_eq!(steps.hart.run(1), Exit::Budget);
                assert_eq!(steps.hart.registers(), fused.hart.registers());
            }
        }
    }
}

#[test]
fn fused_pairs_equal_single_steps() {
    let pairs: [[u32; 2]; 10] = [
        // slli then srli, with equal and different destinations.
        [r(0x13, 1, 0, A2, A0, 0) | 32 << 20, r(0x13, 5, 0, A2, A2, 0) | 31 << 20],
        [r(0x13, 1, 0, A2, A0, 0) | 63 << 20, r(0x13, 5, 0, A2, A2, 0)],
        [r(0x13, 1, 0, A2, A0, 0) | 8 << 20, r(0x13, 5, 0, A3, A2, 0) | 8 << 20],
        // slli then add, with the sum's operands in both orders.
        [r(0x13, 1, 0, A2, A0, 0) | 3 << 20, r(0x33, 0, 0, A2, A2, A1)],
        [r(0x13, 1, 0, A2, A0, 0) | 3 << 20, r(0x33, 0, 0, A2, A2, A2)],
        [r(0x13, 1, 0, A2, A0, 0) | 3 << 20, r(0x33, 0, 0, A2, A1, A2)],
        // addi then bne; a taken branch ends at the second ECALL.
        [addi(A0, A0, -1), b(1, A0, 0, 8)],
        [addi(A0, A0, 127), b(1, A1, A0, 8)],
        [addi(A0, A0, 128), b(1, A0, A1, 8)],
        [addi(A0, A0, 1), b(1, A0, A0, 8)],
    ];
    for pair in pairs {
        for (a, b) in EDGES.iter().flat_map(|&a| EDGES.map(|b| (a, b))) {
            let code = [pair[0], pair[1], ECALL, ECALL];
            let (mut fused, mut steps) = (Machine::new(&code), Machine::new(&code));
            fused.set(A0, a).set(A1, b).finish();
            steps.set(A0, a).set(A1, b);
            while steps.hart.run(1) == Exit::Budget {}
            assert_eq!(steps.hart.registers(), fused.hart.registers(), "{pair:x?} {a:#x} {b:#x}");
        }
    }
}

#[test]
fn branches_follow_their_conditions() {
    type Condition = fn(u64, u64) -> bool;
    let branches: [(u32, Condition); 6] = [
        (0, |a, b| a == b),
        (1, |a, b| a != b),
        (4, |a, b| signed(a) < signed(b)),
        (5, |a, b| signed(a) >= signed(b)),
        (6, |a, b| a < b),
        (7, |a, b| a >= b),
    ];
    for (funct3, condition) in branches {
        for offset in [-4096, -4, 0x7f0, 4094] {
            let mut machine = Machine::new(&[]);
            machine.put(0x2000, &[b(funct3, A0, A1, offset)]);
            for (a, b) in EDGES.iter().flat_map(|&a| EDGES.map(|b| (a, b))) {
                machine.hart.set_pc(CODE + 0x2000);
                machine.set(A0, a).set(A1, b);
                assert_eq!(machine.hart.run(1), Exit::Budget);
                let by = if condition(a, b) { offset as i64 } else { 4 };
                let target = (CODE + 0x2000).wrapping_add_signed(by);
                assert_eq!(machine.hart.pc(), target, "{funct3} {a:#x} {b:#x} by {offset}");
            }
        }
    }
}

#[test]
fn jal_and_jalr_write_link_address() {
    for (rd, offset) in [(RA, 0x1234), (0, -2), (A0, -0x2000), (T0, 0xffffe), (RA, -0x100000)] {
        let mut machine = Machine::new(&[]);
        machine.put(0x2000, &[j(rd, offset)]);
        machine.hart.set_pc(CODE + 0x2000);
        assert_eq!(machine.hart.run(1), Exit::Budget);
        assert_eq!(machine.hart.pc(), (CODE + 0x2000).wrapping_add_signed(offset.into()));
        assert_eq!(machine.get(rd), if rd == 0 { 0 } else { CODE + 0x2004 });
    }
    // The target is computed before the register is written, and loses its lowest bit.
    for (rd, rs1, imm) in [(RA, A0, 5), (A0, A0, -7), (0, A0, 2047), (RA, A0, -2048)] {
        let mut machine = Machine::new(&[i(0x67, 0, rd, rs1, imm)]);
        machine.set(A0, CODE + 0x3000);
        assert_eq!(machine.hart.run(1), Exit::Budget);
        assert_eq!(machine.hart.pc(), (CODE + 0x3000).wrapping_add_signed(imm.into()) & !1);
        assert_eq!(machine.get(rd), if rd == 0 { 0 } else { CODE + 4 });
    }
}

#[test]
fn two_byte_aligned_target_is_executed() {
    let mut machine = Machine::new(&[j(0, 6), 0, 0]);
    let bytes: Vec<u8> = [addi(A0, 0, 7), ECALL].iter().flat_map(|it| it.to_le_bytes()).collect();
    machine.code.write(6, &bytes);
    assert_eq!(machine.finish().get(A0), 7);
    assert_eq!(machine.hart.pc(), CODE + 10);
}
