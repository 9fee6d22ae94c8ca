//! Translated code: blocks of operations that end at each possible jump.
//!
//! A block is translated at its first execution. A FENCE.I, a store into translated bytes, or
//! [`Blocks::forget`] discards all blocks. Blocks remember their successors, so that most steps
//! from one to the next need no look-up.

use std::collections::{BTreeSet, HashMap};

use crate::compressed::expand;
use crate::decode::decode;
use crate::mmu::Mmu;
use crate::op::{Kind, Op};

/// Maximum number of instructions in a block; [`Op::index`] and [`Op::offset`] must hold their
/// position.
const MAX_BLOCK_INSTRUCTIONS: u64 = 64;
/// Number of operations at which all blocks are discarded: enough for a program of some megabytes.
const MAX_OPS: usize = 1 << 20;
/// Entries of the cache of computed jumps.
const JUMPS: usize = 1024;

/// An unknown successor.
pub(crate) const UNKNOWN: u32 = u32::MAX;

/// A sequence of operations that is entered only at its beginning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) pc: u64,
    /// The address after the last instruction: where execution continues by default, and the
    /// return address of a call.
    pub(crate) end: u64,
    /// The range of its operations in [`Blocks::ops`].
    pub(crate) first: u32,
    pub(crate) ops_end: u32,
    /// The number of instructions of the block.
    pub(crate) count: u32,
    /// The successors: without a taken branch, and with one.
    pub(crate) next: [u32; 2],
}

pub(crate) struct Blocks {
    ops: Vec<Op>,
    blocks: Vec<Block>,
    by_pc: HashMap<u64, u32>,
    /// A cache for computed jumps: an address and its block, indexed by bits of the address.
    jumps: Box<[(u64, u32); JUMPS]>,
    /// Blocks end before these addresses.
    pub(crate) breakpoints: BTreeSet<u64>,
}

impl Blocks {
    pub(crate) fn new() -> Self {
        Self {
            ops: Vec::new(),
            blocks: Vec::new(),
            by_pc: HashMap::new(),
            jumps: Box::new([(0, UNKNOWN); JUMPS]),
            breakpoints: BTreeSet::new(),
        }
    }

    /// Discards all blocks.
    pub(crate) fn forget(&mut self) {
        self.ops.clear();
        self.blocks.clear();
        self.by_pc.clear();
        self.jumps.fill((0, UNKNOWN));
    }

    /// Discards all blocks, and frees their memory.
    pub(crate) fn release(&mut self) {
        let breakpoints = std::mem::take(&mut self.breakpoints);
        *self = Self { breakpoints, ..Self::new() };
    }

    /// Approximate bytes of memory of the blocks.
    pub(crate) fn bytes(&self) -> usize {
        self.ops.capacity() * size_of::<Op>()
            + self.blocks.capacity() * size_of::<Block>()
            + self.by_pc.capacity() * size_of::<(u64, u32)>()
    }

    #[inline(always)]
    pub(crate) fn block(&self, index: u32) -> &Block {
        &self.blocks[index as usize]
    }

    #[inline(always)]
    pub(crate) fn ops(&self, block: &Block) -> &[Op] {
        &self.ops[block.first as usize..block.ops_end as usize]
    }

    /// Links `block` to its successor `next`; `way` is 1 for a taken branch, else 0.
    pub(crate) fn link(&mut self, block: u32, way: usize, next: u32) {
        self.blocks[block as usize].next[way] = next;
    }

    /// The block at `pc` if the cache of computed jumps has it, or [`UNKNOWN`].
    #[inline(always)]
    pub(crate) fn jump(&self, pc: u64) -> u32 {
        let (at, index) = self.jumps[Self::slot(pc)];
        if at == pc { index } else { UNKNOWN }
    }

    #[inline(always)]
    fn slot(pc: u64) -> usize {
        (pc / 2) as usize % JUMPS
    }

    /// The block at `pc`; translates it if necessary.
    #[cold]
    #[inline(never)]
    pub(crate) fn find(&mut self, mmu: &mut Mmu, pc: u64) -> u32 {
        let index = match self.by_pc.get(&pc) {
            Some(&index) => index,
            None => {
                if self.is_full() {
                    self.forget();
                    mmu.forget_code();
                }
                let index = self.add(mmu, pc, MAX_BLOCK_INSTRUCTIONS);
                self.by_pc.insert(pc, index);
                index
            }
        };
        if self.breakpoints.is_empty() {
            self.jumps[Self::slot(pc)] = (pc, index);
        }
        index
    }

    fn is_full(&self) -> bool {
        self.ops.len() >= MAX_OPS
    }

    /// Whether a block may be linked with the block at `pc`, which is looked up next: not if the
    /// look-up may discard all blocks, nor if breakpoints must be checked before each block.
    pub(crate) fn may_link(&self, pc: u64) -> bool {
        self.breakpoints.is_empty() && (!self.is_full() || self.by_pc.contains_key(&pc))
    }

    /// Translates the block at `pc`, of at most `max` instructions.
    fn add(&mut self, mmu: &mut Mmu, pc: u64, max: u64) -> u32 {
        let first = self.ops.len() as u32;
        let (count, end) = translate(&mut self.ops, mmu, &self.breakpoints, pc, max);
        let ops_end = self.ops.len() as u32;
        self.blocks.push(Block { pc, end, first, ops_end, count, next: [UNKNOWN; 2] });
        self.blocks.len() as u32 - 1
    }

    /// Adds a block of only the first `max` instructions at `pc`, for a hart that may execute no
    /// more. No look-up finds it.
    pub(crate) fn add_beginning(&mut self, mmu: &mut Mmu, pc: u64, max: u64) -> u32 {
        self.add(mmu, pc, max)
    }

    /// Removes the block of [`Self::add_beginning`], if all blocks were not discarded since.
    pub(crate) fn remove_beginning(&mut self) {
        if let Some(block) = self.blocks.pop() {
            self.ops.truncate(block.first as usize);
        }
    }
}

/// Appends the operations of the block at `pc`; returns their number of instructions, and their
/// end.
fn translate(
    ops: &mut Vec<Op>,
    mmu: &mut Mmu,
    breakpoints: &BTreeSet<u64>,
    pc: u64,
    max: u64,
) -> (u32, u64) {
    let (mut count, mut offset) = (0u64, 0u16);
    loop {
        let at = pc.wrapping_add(offset.into());
        let locate = |op: Op| Op { index: count as u8, offset, ..op };
        if count == max || count > 0 && breakpoints.contains(&at) {
            ops.push(locate(Op::new(Kind::End)));
            return (count as u32, at);
        }
        let (op, length) = match fetch(mmu, at) {
            Ok((word, length)) => {
                (0..length).step_by(2).for_each(|half| mmu.mark_code(at.wrapping_add(half)));
                (instruction(word, length, at), length)
            }
            Err(address) => (Op { imm: address as i64, ..Op::new(Kind::FetchFault) }, 0),
        };
        if op.kind != Kind::Nop {
            push(ops, locate(op));
        }
        count += 1;
        offset += length as u16;
        if op.ends_block() {
            return (count as u32, pc.wrapping_add(offset.into()));
        }
    }
}

/// The instruction at `pc` and its length; or the address of the part that cannot be fetched.
fn fetch(mmu: &Mmu, pc: u64) -> Result<(u32, u64), u64> {
    let low = mmu.fetch(pc).ok_or(pc)?;
    if low & 3 != 3 {
        return Ok((low.into(), 2));
    }
    let second = pc.wrapping_add(2);
    let high = mmu.fetch(second).ok_or(second)?;
    Ok((u32::from(high) << 16 | u32::from(low), 4))
}

fn instruction(word: u32, length: u64, pc: u64) -> Op {
    let full = if length == 2 { expand(word as u16) } else { Some(word) };
    full.map_or(Op { imm: word.into(), ..Op::new(Kind::Illegal) }, |full| decode(full, pc))
}

/// Appends `op`, or fuses it with the operation before it in the same block.
fn push(ops: &mut Vec<Op>, op: Op) {
    if let Some(last) = ops.last_mut()
        && let Some(both) = fuse(last, &op)
    {
        *last = both;
        return;
    }
    ops.push(op);
}

/// Fuses `one` and `two` into one operation, if one does both. Neither can fail, so that no fault
/// occurs between them.
fn fuse(one: &Op, two: &Op) -> Option<Op> {
    let same = one.rd == two.rd && two.rs1 == one.rd;
    match (one.kind, two.kind) {
        (Kind::Const, Kind::Addi) if same => {
            Some(Op { imm: one.imm.wrapping_add(two.imm), ..*one })
        }
        (Kind::Const, Kind::Addiw) if same => {
            Some(Op { imm: one.imm.wrapping_add(two.imm) as i32 as i64, ..*one })
        }
        (Kind::Slli, Kind::Srli) if same => {
            Some(Op { kind: Kind::SlliSrli, extra: two.imm as u8, ..*one })
        }
        (Kind::Slli, Kind::Add) if same && two.rs2 != one.rd => {
            Some(Op { kind: Kind::SlliAdd, rs2: two.rs2, ..*one })
        }
        (Kind::Addi, Kind::Bne) if one.rd == one.rs1 => add_and_branch(one, two),
        _ => None,
    }
}

/// `AddiBne`: `imm` is the target, and `extra` the addend, if it fits in eight bits.
fn add_and_branch(one: &Op, two: &Op) -> Option<Op> {
    let addend = i8::try_from(one.imm).ok()?;
    let other = match (two.rs1 == one.rd, two.rs2 == one.rd) {
        (true, false) => two.rs2,
        (false, true) => two.rs1,
        _ => return None,
    };
    Some(Op { kind: Kind::AddiBne, imm: two.imm, rs2: other, extra: addend as u8, ..*one })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::ram::Ram;
    use crate::space::{AddressSpace, Permissions, Region};

    const CODE: u64 = 0x1000;
    /// addi a0, a0, 1
    const ADDI: u32 = 0x0015_0513;
    const ECALL: u32 = 0x73;

    fn code(words: &[u32]) -> (Blocks, Mmu) {
        let ram = Ram::new(0x1000);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert!(ram.write(0, &bytes));
        let space = AddressSpace::new([Region::ram(CODE, &ram, Permissions::RX)]).unwrap();
        (Blocks::new(), Mmu::new(Arc::new(space)))
    }

    /// The operations of the block at the start of these words, and its number of instructions.
    fn translated(words: &[u32]) -> (Vec<Kind>, u32) {
        let (mut blocks, mut mmu) = code(words);
        let block = blocks.find(&mut mmu, CODE);
        let block = *blocks.block(block);
        assert_eq!((block.pc, block.end), (CODE, CODE + 4 * u64::from(block.count)));
        (blocks.ops(&block).iter().map(|op| op.kind).collect(), block.count)
    }

    #[test]
    fn block_ends_only_at_control_transfers() {
        let ends = [
            0x00b5_0463, // beq a0, a1, .+8
            0x00b5_1463, // bne
            0x00b5_4463, // blt
            0x00b5_5463, // bge
            0x00b5_6463, // bltu
            0x00b5_7463, // bgeu
            0x0080_006f, // j .+8
            0x0005_0067, // jr a0
            0x0000_100f, // fence.i
            0xc000_2573, // rdcycle a0
            0x1050_0073, // wfi
            0x0100_000f, // pause
            ECALL,
            0x0010_0073, // ebreak
            0xffff_ffff, // illegal
        ];
        for end in ends {
            // Not of a register that the end compares.
            let (_, count) = translated(&[0x0016_0613, end, ADDI, ECALL]);
            assert_eq!(count, 2, "{end:#010x}");
        }
        // addi, ld, sd, lr.d, sc.d, amoadd.d, fence
        for other in
            [ADDI, 0x0005_b503, 0x00a5_b023, 0x1005_b52f, 0x18a5_b52f, 0x00a5_b52f, 0x0ff0_000f]
        {
            let (_, count) = translated(&[other, ADDI, ECALL]);
            assert_eq!(count, 3, "{other:#010x}");
        }
    }

    #[test]
    fn block_is_limited_to_64_instructions() {
        let (ops, count) = translated(&[ADDI; 65]);
        assert_eq!((ops.len(), ops[64], count), (65, Kind::End, 64));
        let (ops, count) = translated(&[&[ADDI; 63][..], &[ECALL]].concat());
        assert_eq!((ops.len(), ops[63], count), (64, Kind::Ecall, 64));
    }

    #[test]
    fn dependent_pairs_fuse_into_one_operation() {
        let cases: [(&[u32], &[Kind]); 18] = [
            // lui a0, 1 with addi or addiw a0, a0, 1; of another source, into another register
            (&[0x1537, ADDI], &[Kind::Const]),
            (&[0x1537, 0x0015_051b], &[Kind::Const]),
            (&[0x1537, 0x0015_8513], &[Kind::Const, Kind::Addi]),
            (&[0x1537, 0x0015_0593], &[Kind::Const, Kind::Addi]),
            (&[0x1537, 0x0015_859b], &[Kind::Const, Kind::Addiw]),
            // li a0, 1; with addi a0, a0, 1; mv a0, a1
            (&[0x0010_0513], &[Kind::Const]),
            (&[0x0010_0513, ADDI], &[Kind::Const]),
            (&[0x0005_8513], &[Kind::Move]),
            // slli a0, a0, 3 with srli a0, a0, 3 or add a0, a0, a1; of another source, twice itself
            (&[0x0035_1513, 0x0035_5513], &[Kind::SlliSrli]),
            (&[0x0035_1513, 0x0035_d513], &[Kind::Slli, Kind::Srli]),
            (&[0x0035_1513, 0x00b5_0533], &[Kind::SlliAdd]),
            (&[0x0035_1513, 0x00b5_8533], &[Kind::Slli, Kind::Add]),
            (&[0x0035_1513, 0x00a5_0533], &[Kind::Slli, Kind::Add]),
            // addi a0, a0, 1 with bne of a0 and a1, or of a1 and a0; of a1 and itself; of a0 itself
            (&[ADDI, 0x00b5_1063], &[Kind::AddiBne]),
            (&[ADDI, 0x00a5_9063], &[Kind::AddiBne]),
            (&[ADDI, 0x00b5_9063], &[Kind::Addi, Kind::Bne]),
            (&[ADDI, 0x00a5_1063], &[Kind::Addi, Kind::Bne]),
            // addi a0, a1, 1, and addi a0, a0, 128
            (&[0x0015_8513, 0x00b5_1063], &[Kind::Addi, Kind::Bne]),
        ];
        for (words, expected) in cases {
            let (ops, _) = translated(&[words, &[ECALL]].concat());
            let ops = ops.strip_suffix(&[Kind::Ecall]).unwrap_or(&ops);
            assert_eq!(ops, expected, "{words:x?}");
        }
        let (ops, _) = translated(&[0x0805_0513, 0x00b5_1063]);
        assert_eq!(ops, [Kind::Addi, Kind::Bne], "128 does not fit in eight bits");
        // nop; ecall
        assert_eq!(translated(&[0x13, ECALL]), (vec![Kind::Ecall], 2));
    }

    #[test]
    fn block_ends_before_breakpoint_and_is_unlinked() {
        let (mut blocks, mut mmu) = code(&[ADDI, ADDI, ECALL]);
        assert!(blocks.may_link(CODE));
        blocks.breakpoints.extend([CODE, CODE + 4]);
        let index = blocks.find(&mut mmu, CODE);
        assert_eq!((blocks.block(index).count, blocks.block(index).end), (1, CODE + 4));
        assert!(!blocks.may_link(CODE));
        assert_eq!(blocks.jump(CODE), UNKNOWN);
    }

    #[test]
    fn block_is_found_until_forgotten() {
        let (mut blocks, mut mmu) = code(&[ADDI, ADDI, ECALL]);
        assert_eq!((blocks.jump(0), blocks.jump(CODE)), (UNKNOWN, UNKNOWN));
        let first = blocks.find(&mut mmu, CODE);
        let second = blocks.find(&mut mmu, CODE + 4);
        assert_ne!(first, second);
        assert_eq!((blocks.find(&mut mmu, CODE), blocks.jump(CODE)), (first, first));
        assert_eq!((blocks.find(&mut mmu, CODE + 4), blocks.jump(CODE + 4)), (second, second));
        // In the same slot of the cache as the first, and in a slot of its own.
        assert_eq!(blocks.jump(CODE + 2 * JUMPS as u64), UNKNOWN);
        let third = blocks.find(&mut mmu, CODE + JUMPS as u64);
        assert_eq!((blocks.jump(CODE), blocks.jump(CODE + JUMPS as u64)), (first, third));
        assert_eq!(blocks.block(first).next, [UNKNOWN; 2]);
        blocks.link(first, 1, second);
        blocks.link(first, 0, third);
        assert_eq!(blocks.block(first).next, [third, second]);
        let [ops, found] = [blocks.ops.capacity(), blocks.by_pc.capacity()];
        let bytes = 16 * ops + 40 * blocks.blocks.capacity() + 16 * found;
        assert_eq!(blocks.bytes(), bytes, "operations, blocks and the two look-up tables");
        let operations = blocks.ops.len();
        let beginning = blocks.add_beginning(&mut mmu, CODE, 1);
        assert_eq!((blocks.block(beginning).count, blocks.jump(CODE)), (1, first));
        blocks.remove_beginning();
        assert_eq!((blocks.ops.len(), blocks.blocks.len()), (operations, 3));
        blocks.forget();
        assert_eq!((blocks.ops.len(), blocks.jump(CODE)), (0, UNKNOWN));
        blocks.release();
        assert_eq!(blocks.bytes(), 0);
    }

    #[test]
    fn full_block_cache_is_cleared_for_a_new_block() {
        let (mut blocks, mut mmu) = code(&[ADDI, ADDI, ECALL]);
        let first = blocks.find(&mut mmu, CODE);
        blocks.ops.resize(MAX_OPS - 1, Op::new(Kind::End));
        assert!(blocks.may_link(CODE + 4), "there is room");
        blocks.ops.push(Op::new(Kind::End));
        assert!(blocks.may_link(CODE) && !blocks.may_link(CODE + 4));
        assert_eq!((blocks.find(&mut mmu, CODE), blocks.ops.len()), (first, MAX_OPS));
        blocks.find(&mut mmu, CODE + 4);
        assert_eq!((blocks.blocks.len(), blocks.ops.len()), (1, 2));
        assert_eq!(blocks.jump(CODE), UNKNOWN);
    }
}
