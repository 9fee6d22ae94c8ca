//! Decodes instruction words to [`Op`]s: RV64I, M, A, the user-level part of Zicsr, and Zifencei.
//!
//! Source: The RISC-V Instruction Set Manual, volume I, version 20240411 (chapters 2, 4 to 8, 13,
//! 14), and the opcode map in its chapter on listings. Every reserved encoding, and every encoding
//! of another extension, becomes [`Kind::Illegal`]; hints become [`Kind::Nop`].

use crate::op::{Amo, Counter, Kind, Op, SINK};

/// Bits `low..low + width` of an instruction.
fn bits(word: u32, low: u32, width: u32) -> u32 {
    word >> low & ((1 << width) - 1)
}

/// The immediate of an I-type instruction.
fn i_type(word: u32) -> i64 {
    (word as i32 >> 20).into()
}

/// The immediate of an S-type instruction.
fn s_type(word: u32) -> i64 {
    ((word as i32 >> 25 << 5) | bits(word, 7, 5) as i32).into()
}

/// The offset of a branch.
fn b_type(word: u32) -> i64 {
    let low = bits(word, 8, 4) << 1 | bits(word, 25, 6) << 5 | bits(word, 7, 1) << 11;
    ((word as i32 >> 31 << 12) | low as i32).into()
}

/// The offset of JAL.
fn j_type(word: u32) -> i64 {
    let low = bits(word, 21, 10) << 1 | bits(word, 20, 1) << 11 | bits(word, 12, 8) << 12;
    ((word as i32 >> 31 << 20) | low as i32).into()
}

/// Decodes the 32-bit instruction `word` at `pc`.
pub(crate) fn decode(word: u32, pc: u64) -> Op {
    operation(word, pc).unwrap_or(Op { imm: word.into(), ..Op::new(Kind::Illegal) })
}

fn operation(word: u32, pc: u64) -> Option<Op> {
    let (rd, rs1, rs2) = (bits(word, 7, 5), bits(word, 15, 5) as u8, bits(word, 20, 5) as u8);
    let target = if rd == 0 { SINK } else { rd as u8 };
    let op = Op { rd: target, rs1, rs2, ..Op::new(Kind::Nop) };
    let with = |kind, imm| Some(Op { kind, imm, ..op });
    let from_pc = |offset: i64| pc.wrapping_add_signed(offset) as i64;
    // An instruction that only computes is a NOP if its destination is x0.
    let compute =
        |kind, imm| Some(if rd == 0 { Op::new(Kind::Nop) } else { Op { kind, imm, ..op } });
    let (funct3, funct7) = (bits(word, 12, 3), bits(word, 25, 7));
    match word & 0x7f {
        0x37 => compute(Kind::Const, (word & 0xffff_f000) as i32 as i64),
        0x17 => compute(Kind::Const, from_pc((word & 0xffff_f000) as i32 as i64)),
        0x6f => with(Kind::Jal, from_pc(j_type(word))),
        0x67 if funct3 == 0 => with(Kind::Jalr, i_type(word)),
        0x63 => with(branch(funct3)?, from_pc(b_type(word))),
        0x03 => with(load(funct3)?, i_type(word)),
        0x23 => with(store(funct3)?, s_type(word)),
        0x13 => {
            let (kind, imm) = immediate(funct3, word)?;
            match (kind, imm, rs1) {
                (Kind::Addi, imm, 0) => compute(Kind::Const, imm),
                (Kind::Addi, 0, _) => compute(Kind::Move, 0),
                _ => compute(kind, imm),
            }
        }
        0x1b => {
            let (kind, imm) = immediate_word(funct3, funct7, word)?;
            compute(kind, imm)
        }
        0x33 => match (register(funct3, funct7)?, rs1, rs2) {
            // C.MV is ADD with x0.
            (Kind::Add, 0, _) => Some(Op { rs1: rs2, ..compute(Kind::Move, 0)? }),
            (kind, ..) => compute(kind, 0),
        },
        0x3b => compute(register_word(funct3, funct7)?, 0),
        0x2f => atomic(word, op),
        0x0f => fence(word, op),
        0x73 => system(word, op),
        _ => None,
    }
}

fn branch(funct3: u32) -> Option<Kind> {
    use Kind::*;
    [Some(Beq), Some(Bne), None, None, Some(Blt), Some(Bge), Some(Bltu), Some(Bgeu)]
        [funct3 as usize]
}

fn load(funct3: u32) -> Option<Kind> {
    [Kind::Lb, Kind::Lh, Kind::Lw, Kind::Ld, Kind::Lbu, Kind::Lhu, Kind::Lwu]
        .get(funct3 as usize)
        .copied()
}

fn store(funct3: u32) -> Option<Kind> {
    [Kind::Sb, Kind::Sh, Kind::Sw, Kind::Sd].get(funct3 as usize).copied()
}

/// Register and immediate, 64 bits. The shift amount has six bits; the bits above it select the
/// operation.
fn immediate(funct3: u32, word: u32) -> Option<(Kind, i64)> {
    let (shift, above) = (i64::from(bits(word, 20, 6)), bits(word, 26, 6));
    let imm = i_type(word);
    Some(match (funct3, above) {
        (0, _) => (Kind::Addi, imm),
        (1, 0) => (Kind::Slli, shift),
        (2, _) => (Kind::Slti, imm),
        (3, _) => (Kind::Sltiu, imm),
        (4, _) => (Kind::Xori, imm),
        (5, 0) => (Kind::Srli, shift),
        (5, 0x10) => (Kind::Srai, shift),
        (6, _) => (Kind::Ori, imm),
        (7, _) => (Kind::Andi, imm),
        _ => return None,
    })
}

/// Register and immediate, 32 bits. The shift amount has five bits; a sixth is reserved.
fn immediate_word(funct3: u32, funct7: u32, word: u32) -> Option<(Kind, i64)> {
    let shift = i64::from(bits(word, 20, 5));
    Some(match (funct3, funct7) {
        (0, _) => (Kind::Addiw, i_type(word)),
        (1, 0) => (Kind::Slliw, shift),
        (5, 0) => (Kind::Srliw, shift),
        (5, 0x20) => (Kind::Sraiw, shift),
        _ => return None,
    })
}

/// Two registers, 64 bits.
fn register(funct3: u32, funct7: u32) -> Option<Kind> {
    use Kind::*;
    let column = funct3 as usize;
    match (funct7, funct3) {
        (0, _) => Some([Add, Sll, Slt, Sltu, Xor, Srl, Or, And][column]),
        (1, _) => Some([Mul, Mulh, Mulhsu, Mulhu, Div, Divu, Rem, Remu][column]),
        (0x20, 0) => Some(Sub),
        (0x20, 5) => Some(Sra),
        _ => None,
    }
}

/// Two registers, 32 bits.
fn register_word(funct3: u32, funct7: u32) -> Option<Kind> {
    use Kind::*;
    Some(match (funct7, funct3) {
        (0, 0) => Addw,
        (0, 1) => Sllw,
        (0, 5) => Srlw,
        (0x20, 0) => Subw,
        (0x20, 5) => Sraw,
        (1, 0) => Mulw,
        (1, 4) => Divw,
        (1, 5) => Divuw,
        (1, 6) => Remw,
        (1, 7) => Remuw,
        _ => return None,
    })
}

/// LR, SC and the AMOs. Bits 25 and 26 order them; here all are ordered.
fn atomic(word: u32, op: Op) -> Option<Op> {
    let wide = match bits(word, 12, 3) {
        2 => false,
        3 => true,
        _ => return None,
    };
    let amo = |amo: Amo| {
        let kind = if wide { Kind::AmoD } else { Kind::AmoW };
        Some(Op { kind, extra: amo as u8, ..op })
    };
    match bits(word, 27, 5) {
        0x02 if op.rs2 == 0 => Some(Op { kind: if wide { Kind::LrD } else { Kind::LrW }, ..op }),
        0x03 => Some(Op { kind: if wide { Kind::ScD } else { Kind::ScW }, ..op }),
        0x01 => amo(Amo::Swap),
        0x00 => amo(Amo::Add),
        0x04 => amo(Amo::Xor),
        0x0c => amo(Amo::And),
        0x08 => amo(Amo::Or),
        0x10 => amo(Amo::Min),
        0x14 => amo(Amo::Max),
        0x18 => amo(Amo::Minu),
        0x1c => amo(Amo::Maxu),
        _ => None,
    }
}

/// FENCE with any fields, FENCE.I, and PAUSE, which is FENCE W,0.
fn fence(word: u32, op: Op) -> Option<Op> {
    match bits(word, 12, 3) {
        0 if word == 0x0100_000f => Some(Op::new(Kind::Pause)),
        0 => {
            // Device output and input count as stores and loads. FENCE.TSO (fm 8) does not order
            // stores before later loads, which needs the strong barrier.
            let (stores, loads) =
                (bits(word, 24, 4) & 0b0101 != 0, bits(word, 20, 4) & 0b1010 != 0);
            let strong = stores && loads && bits(word, 28, 4) != 8;
            Some(Op { extra: strong.into(), ..Op::new(Kind::Fence) })
        }
        1 => Some(Op { kind: Kind::FenceI, ..op }),
        _ => None,
    }
}

/// ECALL, EBREAK, WFI, and reads of the counters. User code has no other CSR, and cannot write
/// these.
fn system(word: u32, op: Op) -> Option<Op> {
    match word {
        0x0000_0073 => return Some(Op::new(Kind::Ecall)),
        0x0010_0073 => return Some(Op::new(Kind::Ebreak)),
        0x1050_0073 => return Some(Op::new(Kind::Wfi)),
        _ => {}
    }
    // CSRRS and CSRRC, with a register or an immediate, write only if that field is not 0.
    let reads = matches!(bits(word, 12, 3), 2 | 3 | 6 | 7) && op.rs1 == 0;
    let counter = match bits(word, 20, 12) {
        0xc00 => Counter::Cycle,
        0xc01 => Counter::Time,
        0xc02 => Counter::Instret,
        _ => return None,
    };
    reads.then_some(Op { kind: Kind::Counter, extra: counter as u8, ..op })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fence_is_strong_if_it_orders_stores_before_loads() {
        for (word, strong) in [
            (0x0ff0_000f, true),  // fence iorw, iorw
            (0x0330_000f, true),  // fence rw, rw
            (0x0120_000f, true),  // fence w, r
            (0x0480_000f, true),  // fence o, i
            (0x0110_000f, false), // fence w, w
            (0x0310_000f, false), // fence rw, w
            (0x0230_000f, false), // fence r, rw
            (0x0840_000f, false), // fence i, o
            (0x8330_000f, false), // fence.tso
        ] {
            let op = decode(word, 0);
            assert_eq!((op.kind, op.extra != 0), (Kind::Fence, strong), "{word:#010x}");
        }
    }
}
