//! An encoding outside RV64IMAC, Zicsr and Zifencei traps, and hints do nothing.

use crate::support::*;
use verbless_riscv::{Cause, Exit, Trap};

fn illegal(value: u64) -> Exit {
    Exit::Trap(Trap { cause: Cause::Illegal, value })
}

#[test]
fn reserved_32_bit_encodings_trap_as_illegal() {
    let reserved = [
        ("all ones", 0xffff_ffff),
        ("48 bits", 0x0000_001f),
        ("64 bits", 0x0000_003f),
        ("ld with funct3 7", i(0x03, 7, A0, A1, 0)),
        ("store with funct3 4", s(4, A1, A0, 0)),
        ("branch with funct3 2", b(2, A0, A1, 8)),
        ("branch with funct3 3", b(3, A0, A1, 8)),
        ("jalr with funct3 1", i(0x67, 1, A0, A1, 0)),
        ("slli with bit 26", r(0x13, 1, 2, A0, A0, 0)),
        ("slli with bit 30", r(0x13, 1, 0x20, A0, A0, 0)),
        ("srli with bit 27", r(0x13, 5, 4, A0, A0, 0)),
        ("srai with bit 31", r(0x13, 5, 0x60, A0, A0, 0)),
        ("slliw with a shift of 32", r(0x1b, 1, 1, A0, A0, 0)),
        ("srliw with a shift of 32", r(0x1b, 5, 1, A0, A0, 0)),
        ("sraiw with a shift of 32", r(0x1b, 5, 0x21, A0, A0, 0)),
        ("op-imm-32 with funct3 2", i(0x1b, 2, A0, A0, 0)),
        ("op with funct7 2", r(0x33, 0, 2, A0, A0, A0)),
        ("sll with funct7 0x20", r(0x33, 1, 0x20, A0, A0, A0)),
        ("andn", r(0x33, 7, 0x20, A0, A0, A0)),
        ("sh1add", r(0x33, 2, 0x10, A0, A0, A0)),
        ("op-32 with funct3 2", r(0x3b, 2, 0, A0, A0, A0)),
        ("mulhw, which there is not", r(0x3b, 1, 1, A0, A0, A0)),
        ("subw with funct3 1", r(0x3b, 1, 0x20, A0, A0, A0)),
        ("amo of a byte", amo(0, false, A0, A1, A2) & !(7 << 12)),
        ("amo of 16 bytes", amo(0, false, A0, A1, A2) | 4 << 12),
        ("lr with rs2", amo(2, true, A0, A1, A2)),
        ("amo with funct5 5 (amocas)", amo(5, true, A0, A1, A2)),
        ("misc-mem with funct3 2 (cbo)", i(0x0f, 2, 0, A0, 0)),
        ("mret", 0x3020_0073),
        ("sret", 0x1020_0073),
        ("wrs.nto", 0x00d0_0073),
        ("ecall with rd", ECALL | A0 << 7),
        ("ebreak with rs1", EBREAK | A0 << 15),
        ("flw", i(0x07, 2, A0, A1, 0)),
        ("fadd.d", 0x02b5_0553),
        ("vsetvli", 0x0005_7557),
        ("custom-0", 0x0000_000b),
    ];
    for (name, code) in reserved {
        let mut machine = Machine::new(&[addi(A3, 0, 1), code, ECALL]);
        machine.set(A1, DATA);
        assert_eq!(machine.hart.run(9), illegal(code.into()), "{name}: {code:#010x}");
        assert_eq!((machine.hart.pc(), machine.hart.instructions()), (CODE + 4, 1), "{name}");
    }
}

#[test]
fn reserved_16_bit_encodings_trap_as_illegal() {
    for code in [0x0000, 0x0008, 0x2000, 0x8000, 0x2005, 0x6501, 0x9c41, 0x4002, 0x8002, 0xa02a] {
        let mut machine = Machine::short(&[0x4685, code]);
        assert_eq!(machine.hart.run(9), illegal(code.into()), "{code:#06x}");
        assert_eq!((machine.hart.pc(), machine.get(A3)), (CODE + 2, 1));
    }
}

#[test]
fn hint_instructions_have_no_effect() {
    let hints = [
        0x0000_1037,
        0x0000_1017,
        addi(0, A0, 5),
        i(0x13, 2, 0, A0, 1),
        r(0x33, 0, 0, 0, 0, 2),
        r(0x33, 0, 0, 0, A0, A1),
        r(0x3b, 0, 0, 0, A0, A1),
        r(0x13, 1, 0, 0, A0, 5),
        // Fences: all sets, none, TSO, and a mode that is reserved.
        0x0ff0_000f,
        0x0000_000f,
        0x8330_000f,
        0x9330_000f,
        0x0ff5_050f,
        // FENCE.I with fields that must be ignored.
        0x0015_150f,
    ];
    for hint in hints {
        let mut machine = Machine::new(&[hint, ECALL]);
        machine.set(A0, 3).set(A1, 4).finish();
        let registers = machine.hart.registers();
        assert_eq!(registers.x.iter().sum::<u64>(), 7, "{hint:#010x}: {registers:x?}");
        assert_eq!((registers.pc, machine.hart.instructions()), (CODE + 4, 1));
    }
    let short = [0x0005, 0x0501, 0x4015, 0x6005, 0x0006, 0x0502, 0x8101, 0x802a, 0x902a, 0x0001];
    for hint in short {
        let mut machine = Machine::short(&[hint, 0x9002]);
        machine.set(A0, 3);
        assert_eq!(machine.hart.run(9), Exit::Ebreak);
        let registers = machine.hart.registers();
        assert_eq!(registers.x.iter().sum::<u64>(), 3, "{hint:#06x}: {registers:x?}");
        assert_eq!((registers.pc, machine.hart.instructions()), (CODE + 2, 1));
    }
}

#[test]
fn compressed_call_returns_to_next_instruction() {
    // c.jalr a0, on a block's end; the link must not depend on how it is expanded.
    let mut machine = Machine::short(&[0x0001, 0x9502]);
    machine.set(A0, CODE + 0x101);
    assert_eq!(machine.hart.run(2), Exit::Budget);
    assert_eq!((machine.get(RA), machine.hart.pc()), (CODE + 4, CODE + 0x100));
}
