//! Shared by the tests: a small assembler, and a hart with code and data.

#![allow(dead_code, unreachable_pub)]

use std::sync::Arc;

use verbless_riscv::{AddressSpace, Exit, Hart, Permissions, Ram, Region};

/// Address of the code.
pub const CODE: u64 = 0x4000_0000;
/// Address of the data.
pub const DATA: u64 = 0x8000_0000;
/// Bytes of each.
pub const SIZE: u64 = 0x10000;

/// Registers by the names of the calling convention.
pub const RA: u32 = 1;
pub const SP: u32 = 2;
pub const A0: u32 = 10;
pub const A1: u32 = 11;
pub const A2: u32 = 12;
pub const A3: u32 = 13;
pub const T0: u32 = 5;

pub const ECALL: u32 = 0x73;
pub const EBREAK: u32 = 0x0010_0073;
pub const FENCE_I: u32 = 0x100f;

pub fn r(opcode: u32, funct3: u32, funct7: u32, rd: u32, rs1: u32, rs2: u32) -> u32 {
    opcode | rd << 7 | funct3 << 12 | rs1 << 15 | rs2 << 20 | funct7 << 25
}

pub fn i(opcode: u32, funct3: u32, rd: u32, rs1: u32, imm: i32) -> u32 {
    assert!((-2048..2048).contains(&imm), "{imm}");
    opcode | rd << 7 | funct3 << 12 | rs1 << 15 | (imm as u32 & 0xfff) << 20
}

pub fn s(funct3: u32, rs1: u32, rs2: u32, imm: i32) -> u32 {
    assert!((-2048..2048).contains(&imm), "{imm}");
    let imm = imm as u32;
    0x23 | (imm & 0x1f) << 7 | funct3 << 12 | rs1 << 15 | rs2 << 20 | (imm >> 5 & 0x7f) << 25
}

pub fn b(funct3: u32, rs1: u32, rs2: u32, offset: i32) -> u32 {
    assert!((-4096..4096).contains(&offset) && offset % 2 == 0, "{offset}");
    let o = offset as u32;
    let low = (o >> 11 & 1) << 7 | (o >> 1 & 0xf) << 8;
    0x63 | low | funct3 << 12 | rs1 << 15 | rs2 << 20 | (o >> 5 & 0x3f) << 25 | (o >> 12 & 1) << 31
}

pub fn j(rd: u32, offset: i32) -> u32 {
    assert!((-(1 << 20)..1 << 20).contains(&offset) && offset % 2 == 0, "{offset}");
    let o = offset as u32;
    let high = (o >> 12 & 0xff) << 12 | (o >> 11 & 1) << 20 | (o >> 1 & 0x3ff) << 21;
    0x6f | rd << 7 | high | (o >> 20 & 1) << 31
}

pub fn addi(rd: u32, rs1: u32, imm: i32) -> u32 {
    i(0x13, 0, rd, rs1, imm)
}

pub fn amo(funct5: u32, wide: bool, rd: u32, rs1: u32, rs2: u32) -> u32 {
    r(0x2f, 2 + u32::from(wide), funct5 << 2, rd, rs1, rs2)
}

/// A hart with code (RWX) and data (RW), and their RAM.
pub struct Machine {
    pub hart: Hart,
    pub code: Ram,
    pub data: Ram,
}

impl Machine {
    pub fn new(words: &[u32]) -> Self {
        let (code, data) = (Ram::new(SIZE), Ram::new(SIZE));
        let regions =
            [Region::ram(CODE, &code, Permissions::RWX), Region::ram(DATA, &data, Permissions::RW)];
        let mut hart = Hart::new(Arc::new(AddressSpace::new(regions).unwrap()));
        hart.set_pc(CODE);
        let machine = Self { hart, code, data };
        machine.put(0, words);
        machine
    }

    /// A machine with 16-bit instructions.
    pub fn short(words: &[u16]) -> Self {
        let machine = Self::new(&[]);
        let bytes: Vec<u8> = words.iter().flat_map(|it| it.to_le_bytes()).collect();
        assert!(machine.code.write(0, &bytes));
        machine
    }

    pub fn put(&self, at: u64, words: &[u32]) {
        let bytes: Vec<u8> = words.iter().flat_map(|it| it.to_le_bytes()).collect();
        assert!(self.code.write(at, &bytes));
    }

    pub fn set(&mut self, register: u32, value: u64) -> &mut Self {
        self.hart.set_x(register as usize, value);
        self
    }

    pub fn get(&self, register: u32) -> u64 {
        self.hart.x(register as usize)
    }

    pub fn store(&self, at: u64, value: u64) {
        assert!(self.data.write(at, &value.to_le_bytes()));
    }

    pub fn load(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        assert!(self.data.read(at, &mut bytes));
        u64::from_le_bytes(bytes)
    }

    /// Runs up to the ECALL that must come.
    pub fn finish(&mut self) -> &mut Self {
        assert_eq!(self.hart.run(1_000_000), Exit::Ecall, "{:x?}", self.hart.registers());
        self
    }
}
