//! A program for the DPA, built from instructions here.

pub(crate) const CODE: u64 = 0x4000_0000;
/// Addresses of its functions.
#[allow(dead_code, reason = "not every test uses every function")]
pub(crate) mod function {
    use super::CODE;

    /// Adds a1 to the word at 0x80000000 a0 times, and returns it.
    pub(crate) const COUNT: u64 = CODE;
    /// A handler: adds 1 to that word.
    pub(crate) const HANDLER: u64 = CODE + 0x20;
    /// Starts thread a0.
    pub(crate) const ACTIVATE: u64 = CODE + 0x40;
    /// Loads from address 8.
    pub(crate) const FAULT: u64 = CODE + 0x60;
    /// Loads from address 16.
    pub(crate) const FAULT_ELSEWHERE: u64 = CODE + 0x68;
    /// Writes key a1 to the window's register at a2, and then adds 1 to the word at a0 in an
    /// endless loop, with some 60 instructions after each addition.
    pub(crate) const COUNT_FOREVER: u64 = CODE + 0x70;
}

const INSTRUCTIONS: [u32; 36] = {
    let mut all = [0; 36];
    all[0] = 0x0010_0293; // li   t0, 1
    all[1] = 0x01f2_9293; // slli t0, t0, 31
    all[2] = 0x00b2_b02f; // amoadd.d zero, a1, (t0)
    all[3] = 0xfff5_0513; // addi a0, a0, -1
    all[4] = 0xfe05_1ce3; // bnez a0, -8
    all[5] = 0x0002_b503; // ld   a0, (t0)
    all[6] = 0x0000_8067; // ret
    all[8] = 0x0010_0593; // li   a1, 1
    all[9] = 0x01f5_9293; // slli t0, a1, 31
    all[10] = 0x00b2_b02f; // amoadd.d zero, a1, (t0)
    all[11] = 0x0000_8067; // ret
    all[16] = 0x0070_0893; // li   a7, 7
    all[17] = 0x0000_0073; // ecall
    all[18] = 0x0000_8067; // ret
    all[24] = 0x0080_3503; // ld   a0, 8(zero)
    all[25] = 0x0000_8067; // ret
    all[26] = 0x0100_3503; // ld   a0, 16(zero)
    all[27] = 0x0000_8067; // ret
    all[28] = 0x00b6_2023; // sw   a1, 0(a2)
    all[29] = 0x0005_3303; // ld   t1, 0(a0)
    all[30] = 0x0013_0313; // addi t1, t1, 1
    all[31] = 0x0065_3023; // sd   t1, 0(a0)
    all[32] = 0x01e0_0393; // li   t2, 30
    all[33] = 0xfff3_8393; // addi t2, t2, -1
    all[34] = 0xfe03_9ee3; // bnez t2, -4
    all[35] = 0xfe9f_f06f; // j    -24
    all
};

/// An ELF file with code at 0x40000000 and a page of data at 0x80000000.
pub(crate) fn file() -> Vec<u8> {
    const HEADERS: usize = 64 + 2 * 56;
    let mut file = vec![0; HEADERS];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"\x7fELF\x02\x01\x01");
    put(16, &[2, 0, 243, 0, 1]);
    put(32, &64_u64.to_le_bytes());
    put(52, &[64, 0, 56, 0, 2, 0, 64]);
    let bytes = size_of_val(&INSTRUCTIONS) as u64;
    let segments = [(5_u32, HEADERS as u64, CODE, bytes, bytes), (6, 0, 0x8000_0000, 0, 4096)];
    for (at, (flags, offset, address, inside, length)) in [64, 120].into_iter().zip(segments) {
        put(at, &1_u32.to_le_bytes());
        put(at + 4, &flags.to_le_bytes());
        let words = [(8, offset), (16, address), (32, inside), (40, length), (48, 1)];
        words.iter().for_each(|(word, value)| put(at + word, &value.to_le_bytes()));
    }
    file.extend(INSTRUCTIONS.iter().flat_map(|word| word.to_le_bytes()));
    file
}
