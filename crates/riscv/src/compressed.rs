//! Expands 16-bit instructions (the C extension for RV64 without floating point) to 32-bit
//! instructions.
//!
//! Source: The RISC-V Instruction Set Manual, volume I, version 20240411, chapter 26 (C); the
//! tables of its section 26.8 list the reserved encodings and the hints. A hint expands to a 32-bit
//! hint.

/// Bits `low..low + width` of `word`, moved to bit `to`.
fn field(word: u16, low: u32, width: u32, to: u32) -> u32 {
    (u32::from(word) >> low & ((1 << width) - 1)) << to
}

/// `value` with bit `sign` and all above it equal.
fn extend(value: u32, sign: u32) -> u32 {
    ((value << (31 - sign)) as i32 >> (31 - sign)) as u32
}

const LOAD: u32 = 0x03;
const OP_IMM: u32 = 0x13;
const OP_IMM_32: u32 = 0x1b;
const STORE: u32 = 0x23;
const OP: u32 = 0x33;
const LUI: u32 = 0x37;
const OP_32: u32 = 0x3b;
const BRANCH: u32 = 0x63;
const JALR: u32 = 0x67;
const JAL: u32 = 0x6f;

fn i(opcode: u32, funct3: u32, rd: u32, rs1: u32, imm: u32) -> u32 {
    opcode | rd << 7 | funct3 << 12 | rs1 << 15 | (imm & 0xfff) << 20
}

fn r(opcode: u32, funct3: u32, funct7: u32, rd: u32, rs1: u32, rs2: u32) -> u32 {
    opcode | rd << 7 | funct3 << 12 | rs1 << 15 | rs2 << 20 | funct7 << 25
}

fn s(funct3: u32, rs1: u32, rs2: u32, imm: u32) -> u32 {
    STORE | (imm & 0x1f) << 7 | funct3 << 12 | rs1 << 15 | rs2 << 20 | (imm >> 5 & 0x7f) << 25
}

fn branch(funct3: u32, rs1: u32, offset: u32) -> u32 {
    BRANCH
        | (offset >> 11 & 1) << 7
        | (offset >> 1 & 0xf) << 8
        | funct3 << 12
        | rs1 << 15
        | (offset >> 5 & 0x3f) << 25
        | (offset >> 12 & 1) << 31
}

/// JAL that stores no return address.
fn jump(offset: u32) -> u32 {
    JAL | (offset >> 12 & 0xff) << 12
        | (offset >> 11 & 1) << 20
        | (offset >> 1 & 0x3ff) << 21
        | (offset >> 20 & 1) << 31
}

/// The instruction that `word` abbreviates; `None` if it is reserved, or of an unsupported
/// extension.
pub(crate) fn expand(word: u16) -> Option<u32> {
    let funct3 = word >> 13;
    match word & 3 {
        0 => quadrant_0(word, funct3),
        1 => quadrant_1(word, funct3),
        2 => quadrant_2(word, funct3),
        _ => None,
    }
}

/// Loads and stores of registers x8 to x15.
fn quadrant_0(word: u16, funct3: u16) -> Option<u32> {
    let (low, high) = (8 + field(word, 2, 3, 0), 8 + field(word, 7, 3, 0));
    let four = field(word, 6, 1, 2) | field(word, 10, 3, 3) | field(word, 5, 1, 6);
    let eight = field(word, 10, 3, 3) | field(word, 5, 2, 6);
    Some(match funct3 {
        // C.ADDI4SPN; an immediate of 0 is reserved, and so is a word of zeros.
        0 => {
            let imm = field(word, 6, 1, 2)
                | field(word, 5, 1, 3)
                | field(word, 11, 2, 4)
                | field(word, 7, 4, 6);
            if imm == 0 {
                return None;
            }
            i(OP_IMM, 0, low, 2, imm)
        }
        2 => i(LOAD, 2, low, high, four),
        3 => i(LOAD, 3, low, high, eight),
        6 => s(2, high, low, four),
        7 => s(3, high, low, eight),
        // C.FLD, C.FSD, and a reserved one.
        _ => return None,
    })
}

/// Arithmetic, jumps and branches.
fn quadrant_1(word: u16, funct3: u16) -> Option<u32> {
    let rd = field(word, 7, 5, 0);
    let short = 8 + field(word, 7, 3, 0);
    let imm = extend(field(word, 2, 5, 0) | field(word, 12, 1, 5), 5);
    let to_branch = extend(
        field(word, 3, 2, 1)
            | field(word, 10, 2, 3)
            | field(word, 2, 1, 5)
            | field(word, 5, 2, 6)
            | field(word, 12, 1, 8),
        8,
    );
    Some(match funct3 {
        0 => i(OP_IMM, 0, rd, rd, imm),
        // C.ADDIW; x0 is reserved.
        1 if rd != 0 => i(OP_IMM_32, 0, rd, rd, imm),
        2 => i(OP_IMM, 0, rd, 0, imm),
        3 if rd == 2 => {
            let imm = field(word, 6, 1, 4)
                | field(word, 2, 1, 5)
                | field(word, 5, 1, 6)
                | field(word, 3, 2, 7)
                | field(word, 12, 1, 9);
            if imm == 0 {
                return None;
            }
            i(OP_IMM, 0, 2, 2, extend(imm, 9))
        }
        // C.LUI; an immediate of 0 is reserved.
        3 if imm != 0 => LUI | rd << 7 | imm << 12,
        4 => return arithmetic(word, short, imm),
        5 => {
            let offset = field(word, 3, 3, 1)
                | field(word, 11, 1, 4)
                | field(word, 2, 1, 5)
                | field(word, 7, 1, 6)
                | field(word, 6, 1, 7)
                | field(word, 9, 2, 8)
                | field(word, 8, 1, 10)
                | field(word, 12, 1, 11);
            jump(extend(offset, 11))
        }
        6 => branch(0, short, to_branch),
        7 => branch(1, short, to_branch),
        _ => return None,
    })
}

/// Shifts, and operations on two registers of x8 to x15.
fn arithmetic(word: u16, rd: u32, imm: u32) -> Option<u32> {
    let rs2 = 8 + field(word, 2, 3, 0);
    let shift = imm & 0x3f;
    Some(match (word >> 10 & 3, word >> 12 & 1, word >> 5 & 3) {
        (0, ..) => i(OP_IMM, 5, rd, rd, shift),
        (1, ..) => i(OP_IMM, 5, rd, rd, shift | 0x400),
        (2, ..) => i(OP_IMM, 7, rd, rd, imm),
        (_, 0, 0) => r(OP, 0, 0x20, rd, rd, rs2),
        (_, 0, 1) => r(OP, 4, 0, rd, rd, rs2),
        (_, 0, 2) => r(OP, 6, 0, rd, rd, rs2),
        (_, 0, 3) => r(OP, 7, 0, rd, rd, rs2),
        (_, 1, 0) => r(OP_32, 0, 0x20, rd, rd, rs2),
        (_, 1, 1) => r(OP_32, 0, 0, rd, rd, rs2),
        _ => return None,
    })
}

/// Loads and stores at the stack pointer, moves and jumps.
fn quadrant_2(word: u16, funct3: u16) -> Option<u32> {
    let (rd, rs2) = (field(word, 7, 5, 0), field(word, 2, 5, 0));
    let high = field(word, 12, 1, 5);
    Some(match (funct3, high != 0) {
        (0, _) => i(OP_IMM, 1, rd, rd, rs2 | high),
        // C.LWSP and C.LDSP; x0 is reserved.
        (2, _) if rd != 0 => i(LOAD, 2, rd, 2, field(word, 4, 3, 2) | high | field(word, 2, 2, 6)),
        (3, _) if rd != 0 => i(LOAD, 3, rd, 2, field(word, 5, 2, 3) | high | field(word, 2, 3, 6)),
        // C.JR; x0 is reserved.
        (4, false) if rs2 == 0 => {
            if rd == 0 {
                return None;
            }
            i(JALR, 0, 0, rd, 0)
        }
        (4, false) => r(OP, 0, 0, rd, 0, rs2),
        (4, true) if rs2 == 0 && rd == 0 => 0x0010_0073,
        (4, true) if rs2 == 0 => i(JALR, 0, 1, rd, 0),
        (4, true) => r(OP, 0, 0, rd, rd, rs2),
        (6, _) => s(2, 2, rs2, field(word, 9, 4, 2) | field(word, 7, 2, 6)),
        (7, _) => s(3, 2, rs2, field(word, 10, 3, 3) | field(word, 7, 3, 6)),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::expand;

    /// Encodings by binutils 2.40 of compressed instructions and of the instructions that they
    /// abbreviate.
    const PAIRS: [(&str, u16, u32); 76] = [
        ("c.addi4spn a0,sp,4", 0x0048, 0x00410513),
        ("c.addi4spn s0,sp,1020", 0x1fe0, 0x3fc10413),
        ("c.addi4spn a5,sp,676", 0x155c, 0x2a410793),
        ("c.lw a0,0(a1)", 0x4188, 0x0005a503),
        ("c.lw s0,124(a5)", 0x5fe0, 0x07c7a403),
        ("c.lw a2,84(s1)", 0x48f0, 0x0544a603),
        ("c.ld a0,248(a1)", 0x7de8, 0x0f85b503),
        ("c.ld s1,168(s0)", 0x7444, 0x0a843483),
        ("c.sw a0,4(a1)", 0xc1c8, 0x00a5a223),
        ("c.sw a5,64(s0)", 0xc03c, 0x04f42023),
        ("c.sw a4,120(a3)", 0xdeb8, 0x06e6ac23),
        ("c.sd a0,8(a1)", 0xe588, 0x00a5b423),
        ("c.sd s1,192(a2)", 0xe264, 0x0c963023),
        ("c.addi a0,31", 0x057d, 0x01f50513),
        ("c.addi t6,-32", 0x1f81, 0xfe0f8f93),
        ("c.addi ra,-1", 0x10fd, 0xfff08093),
        ("c.nop", 0x0001, 0x00000013),
        ("c.addiw a0,31", 0x257d, 0x01f5051b),
        ("c.addiw t6,-32", 0x3f81, 0xfe0f8f9b),
        ("c.addiw s2,0", 0x2901, 0x0009091b),
        ("c.li a0,31", 0x457d, 0x01f00513),
        ("c.li t6,-32", 0x5f81, 0xfe000f93),
        ("c.addi16sp sp,16", 0x6141, 0x01010113),
        ("c.addi16sp sp,-512", 0x7101, 0xe0010113),
        ("c.addi16sp sp,496", 0x617d, 0x1f010113),
        ("c.addi16sp sp,-336", 0x714d, 0xeb010113),
        ("c.lui a0,1", 0x6505, 0x00001537),
        ("c.lui t6,31", 0x6ffd, 0x0001ffb7),
        ("c.lui ra,0xfffe0", 0x7081, 0xfffe00b7),
        ("c.lui s1,0xfffff", 0x74fd, 0xfffff4b7),
        ("c.srli a0,1", 0x8105, 0x00155513),
        ("c.srli s1,63", 0x90fd, 0x03f4d493),
        ("c.srli a5,32", 0x9381, 0x0207d793),
        ("c.srai a0,1", 0x8505, 0x40155513),
        ("c.srai s1,63", 0x94fd, 0x43f4d493),
        ("c.andi a0,31", 0x897d, 0x01f57513),
        ("c.andi s0,-32", 0x9801, 0xfe047413),
        ("c.sub a0,s1", 0x8d05, 0x40950533),
        ("c.xor a1,a5", 0x8dbd, 0x00f5c5b3),
        ("c.or a2,s0", 0x8e41, 0x00866633),
        ("c.and a3,a4", 0x8ef9, 0x00e6f6b3),
        ("c.subw a4,a3", 0x9f15, 0x40d7073b),
        ("c.addw a5,a2", 0x9fb1, 0x00c787bb),
        ("c.j .+2", 0xa009, 0x0020006f),
        ("c.j .-2048", 0xb001, 0x801ff06f),
        ("c.j .+2046", 0xaffd, 0x7fe0006f),
        ("c.j .+0x554", 0xab91, 0x5540006f),
        ("c.j .-0x2aa", 0xbb99, 0xd57ff06f),
        ("c.beqz a0,.+2", 0xc109, 0x00050163),
        ("c.beqz s0,.-256", 0xd001, 0xf00400e3),
        ("c.beqz a5,.+254", 0xcffd, 0x0e078f63),
        ("c.bnez a1,.+0xaa", 0xe5cd, 0x0a059563),
        ("c.bnez s1,.-0x56", 0xf4cd, 0xfa0495e3),
        ("c.slli a0,1", 0x0506, 0x00151513),
        ("c.slli t6,63", 0x1ffe, 0x03ff9f93),
        ("c.slli ra,32", 0x1082, 0x02009093),
        ("c.lwsp a0,0(sp)", 0x4502, 0x00012503),
        ("c.lwsp t6,252(sp)", 0x5ffe, 0x0fc12f83),
        ("c.lwsp ra,84(sp)", 0x40d6, 0x05412083),
        ("c.ldsp a0,8(sp)", 0x6522, 0x00813503),
        ("c.ldsp t6,504(sp)", 0x7ffe, 0x1f813f83),
        ("c.ldsp ra,168(sp)", 0x70aa, 0x0a813083),
        ("c.swsp a0,4(sp)", 0xc22a, 0x00a12223),
        ("c.swsp t6,252(sp)", 0xdffe, 0x0ff12e23),
        ("c.swsp zero,168(sp)", 0xd502, 0x0a012423),
        ("c.sdsp a0,8(sp)", 0xe42a, 0x00a13423),
        ("c.sdsp t6,504(sp)", 0xfffe, 0x1ff13c23),
        ("c.sdsp zero,168(sp)", 0xf502, 0x0a013423),
        ("c.jr a0", 0x8502, 0x00050067),
        ("c.jr t6", 0x8f82, 0x000f8067),
        ("c.mv a0,t6", 0x857e, 0x01f00533),
        ("c.ebreak", 0x9002, 0x00100073),
        ("c.jalr a0", 0x9502, 0x000500e7),
        ("c.jalr t6", 0x9f82, 0x000f80e7),
        ("c.add a0,t6", 0x957e, 0x01f50533),
        ("c.add ra,ra", 0x9086, 0x001080b3),
    ];

    #[test]
    fn compressed_instructions_match_assembler_output() {
        for (text, short, long) in PAIRS {
            assert_eq!(expand(short), Some(long), "{text}: {short:#06x}");
        }
    }

    #[test]
    fn reserved_and_foreign_encodings_do_not_expand() {
        let reserved = [
            ("all zeros", 0x0000),
            ("c.addi4spn a0, sp, 0", 0x0008),
            ("c.fld fs0, 0(s0)", 0x2000),
            ("quadrant 0, funct3 4", 0x8000),
            ("c.fsd fs0, 0(s0)", 0xa000),
            ("c.addiw x0, 1", 0x2005),
            ("c.lui a0, 0", 0x6501),
            ("c.lui x0, 0", 0x6001),
            ("c.addi16sp sp, 0", 0x6101),
            ("quadrant 1, 100 1 11 10", 0x9c41),
            ("quadrant 1, 100 1 11 11", 0x9c61),
            ("c.fldsp fa0, 0(sp)", 0x2502),
            ("c.lwsp x0, 0(sp)", 0x4002),
            ("c.ldsp x0, 0(sp)", 0x6002),
            ("c.jr x0", 0x8002),
            ("c.fsdsp fa0, 0(sp)", 0xa02a),
            ("32 bits", 0x0003),
            ("all ones", 0xffff),
        ];
        for (text, short) in reserved {
            assert_eq!(expand(short), None, "{text}: {short:#06x}");
        }
    }

    #[test]
    fn hints_expand_to_hints() {
        let hints = [
            ("c.nop 1", 0x0005, 0x0010_0013),
            ("c.addi a0, 0", 0x0501, 0x0005_0513),
            ("c.li x0, 5", 0x4015, 0x0050_0013),
            ("c.lui x0, 1", 0x6005, 0x0000_1037),
            ("c.slli x0, 1", 0x0006, 0x0010_1013),
            ("c.slli a0, 0", 0x0502, 0x0005_1513),
            ("c.srli a0, 0", 0x8101, 0x0005_5513),
            ("c.mv x0, a0", 0x802a, 0x00a0_0033),
            ("c.add x0, a0", 0x902a, 0x00a0_0033),
        ];
        for (text, short, long) in hints {
            assert_eq!(expand(short), Some(long), "{text}: {short:#06x}");
        }
    }
}
