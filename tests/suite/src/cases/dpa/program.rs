//! A program for the DPA, assembled here, so that the cases need no compiler: an ELF file of two
//! segments, and the addresses of its functions.

use std::collections::BTreeMap;

/// Addresses of code and data.
pub(super) const CODE: u64 = 0x4000_0000;
pub(super) const DATA: u64 = 0x8000_0000;
/// Bytes of data, initially 0.
pub(super) const DATA_BYTES: u64 = 0x2000;

const ZERO: u32 = 0;
const RA: u32 = 1;
const SP: u32 = 2;
const TP: u32 = 4;
const T0: u32 = 5;
const T1: u32 = 6;
const T2: u32 = 7;
const T3: u32 = 28;
const T4: u32 = 29;
const A0: u32 = 10;
const A1: u32 = 11;
const A2: u32 = 12;
const A7: u32 = 17;

/// Registers of an outbox page.
pub(super) const UCTL: u64 = 0x000;
pub(super) const BUFFER: u64 = 0x040;
pub(super) const CQ_DB: u64 = 0x100;
pub(super) const EQ_DB_REARM: u64 = 0x140;
pub(super) const EQ_DB_NO_REARM: u64 = 0x180;
pub(super) const SXD_DB: u64 = 0x1c0;
pub(super) const CC_DB: u64 = 0x340;
pub(super) const EMU_CAP: u64 = 0x200;
pub(super) const EMU_CAP_TRIGGER: u64 = 0x240;
pub(super) const RXT_DB: u64 = 0x280;
pub(super) const RXC_RD: u64 = 0x300;

fn i(opcode: u32, funct3: u32, rd: u32, rs1: u32, imm: i32) -> u32 {
    (imm as u32 & 0xfff) << 20 | rs1 << 15 | funct3 << 12 | rd << 7 | opcode
}

fn s(funct3: u32, rs2: u32, rs1: u32, imm: i32) -> u32 {
    let imm = imm as u32;
    (imm >> 5 & 0x7f) << 25 | rs2 << 20 | rs1 << 15 | funct3 << 12 | (imm & 0x1f) << 7 | 0x23
}

fn bne(rs1: u32, rs2: u32, offset: i32) -> u32 {
    let at = offset as u32;
    let low = (at >> 1 & 0xf) << 8 | (at >> 11 & 1) << 7;
    let high = (at >> 12 & 1) << 31 | (at >> 5 & 0x3f) << 25;
    high | rs2 << 20 | rs1 << 15 | 1 << 12 | low | 0x63
}

fn jal(rd: u32, offset: i32) -> u32 {
    let at = offset as u32;
    let imm = (at >> 20 & 1) << 31 | (at >> 1 & 0x3ff) << 21 | (at >> 11 & 1) << 20;
    imm | (at >> 12 & 0xff) << 12 | rd << 7 | 0x6f
}

fn addi(rd: u32, rs1: u32, imm: i32) -> u32 {
    i(0x13, 0, rd, rs1, imm)
}

fn add(rd: u32, rs1: u32, rs2: u32) -> u32 {
    rs2 << 20 | rs1 << 15 | rd << 7 | 0x33
}

fn or(rd: u32, rs1: u32, rs2: u32) -> u32 {
    add(rd, rs1, rs2) | 6 << 12
}

fn ld(rd: u32, rs1: u32, imm: i32) -> u32 {
    i(0x03, 3, rd, rs1, imm)
}

fn sd(rs2: u32, rs1: u32, imm: i32) -> u32 {
    s(3, rs2, rs1, imm)
}

const RET: u32 = 0x0000_8067;
const ECALL: u32 = 0x0000_0073;
const EBREAK: u32 = 0x0010_0073;
const ILLEGAL: u32 = 0;

/// Waits until the outbox page in `page` is idle.
fn idle(page: u32) -> [u32; 3] {
    [ld(T2, page, 0), i(0x13, 7, T2, T2, 1), bne(T2, ZERO, -8)]
}

fn call_system(number: i32) -> [u32; 2] {
    [addi(A7, ZERO, number), ECALL]
}

/// The functions, by name, with arguments a0, a1, a2: `store64` writes a1 to the address a0.
fn functions() -> Vec<(&'static str, Vec<u32>)> {
    let mut all = vec![
        ("add", vec![add(A0, A0, A1), RET]),
        // The sum of all eight arguments.
        ("sum", (11..18).map(|register| add(A0, A0, register)).chain([RET]).collect()),
        ("load64", vec![ld(A0, A0, 0), RET]),
        ("load32", vec![i(0x03, 6, A0, A0, 0), RET]),
        ("store64", vec![sd(A1, A0, 0), RET]),
        ("store32", vec![s(2, A1, A0, 0), RET]),
        ("store8", vec![s(0, A1, A0, 0), RET]),
        // Writes byte a1 to a2 bytes from a0 on.
        ("fill", vec![s(0, A1, A0, 0), addi(A0, A0, 1), addi(A2, A2, -1), bne(A2, ZERO, -12), RET]),
        ("context", vec![addi(A0, TP, 0), RET]),
        ("spin", vec![jal(ZERO, 0)]),
        ("illegal", vec![ILLEGAL]),
        ("breakpoint", vec![EBREAK]),
        ("jump", vec![i(0x67, 0, ZERO, A0, 0)]),
        ("recurse", vec![addi(SP, SP, -64), sd(RA, SP, 0), jal(RA, -8)]),
        ("finish", call_system(4).to_vec()),
        ("error", call_system(5).to_vec()),
        ("unknown", call_system(77).to_vec()),
        ("finish_thread", call_system(2).to_vec()),
        // Writes a2 to register a1 of the outbox page a0 twice, without reading UCTL in between;
        // returns UCTL.
        ("ring_twice", vec![add(T0, A0, A1), sd(A2, T0, 0), sd(A2, T0, 0), ld(A0, A0, 0), RET]),
        // Increments the word at a0, then retriggers the thread.
        (
            "count_again",
            [&[ld(T0, A0, 0), addi(T0, T0, 1), sd(T0, A0, 0)][..], &call_system(3)].concat(),
        ),
        ("count", vec![ld(T0, A0, 0), addi(T0, T0, 1), sd(T0, A0, 0), RET]),
    ];
    // Writes a2 to register a1 of the outbox page a0, and waits until UCTL is idle.
    let ring = [&idle(A0)[..], &[add(T0, A0, A1), sd(A2, T0, 0)], &idle(A0), &[RET]].concat();
    all.push(("ring", ring));
    // An event handler: at a0 are its count of events, the outbox page, the CQ's number, and the
    // address of the CQ's doorbell record. It increments the count, writes it to the record as the
    // consumer counter, and arms the CQ.
    let low_to_high = i(0x13, 1, T4, T0, 32);
    let take = [
        &[ld(T0, A0, 0), addi(T0, T0, 1), sd(T0, A0, 0), ld(T1, A0, 8), ld(T3, A0, 16)][..],
        &[ld(T4, A0, 24)],
        // The count, big-endian, its low byte only.
        &[s(0, T0, T4, 3), low_to_high, or(T3, T3, T4)],
        &idle(T1),
        &[sd(T3, T1, CQ_DB as i32), RET],
    ]
    .concat();
    all.push(("take", take));
    all
}

/// The program.
pub(super) struct Program {
    /// The ELF file.
    pub(super) file: Vec<u8>,
    functions: BTreeMap<&'static str, u64>,
}

impl Program {
    pub(super) fn new() -> Self {
        let (mut code, mut at) = (Vec::new(), BTreeMap::new());
        for (name, words) in functions() {
            at.insert(name, CODE + code.len() as u64);
            code.extend(words.into_iter().flat_map(u32::to_le_bytes));
        }
        Self { file: elf(&code), functions: at }
    }

    /// The address of a function.
    pub(super) fn function(&self, name: &str) -> u64 {
        self.functions.get(name).copied().unwrap_or_else(|| panic!("there is no function {name}"))
    }
}

/// A static file for RV64IMAC: code to be executed, and data.
fn elf(code: &[u8]) -> Vec<u8> {
    const HEADER: u64 = 64;
    const PROGRAM_HEADER: u64 = 56;
    const CODE_AT: u64 = 0x1000;
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // ET_EXEC, EM_RISCV.
    file.extend([2_u16, 243].into_iter().flat_map(u16::to_le_bytes));
    file.extend(1_u32.to_le_bytes());
    file.extend([0, HEADER, 0].into_iter().flat_map(u64::to_le_bytes));
    file.extend(0_u32.to_le_bytes());
    let halves = [HEADER as u16, PROGRAM_HEADER as u16, 2, 0, 0, 0];
    file.extend(halves.into_iter().flat_map(u16::to_le_bytes));
    let length = code.len() as u64;
    for (flags, offset, address, in_file, in_memory) in
        [(5_u32, CODE_AT, CODE, length, length), (6, 0, DATA, 0, DATA_BYTES)]
    {
        file.extend([1, flags].into_iter().flat_map(u32::to_le_bytes));
        let fields = [offset, address, address, in_file, in_memory, 0x1000];
        file.extend(fields.into_iter().flat_map(u64::to_le_bytes));
    }
    file.resize(CODE_AT as usize, 0);
    file.extend(code);
    file
}
