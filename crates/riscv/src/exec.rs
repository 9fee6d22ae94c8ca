//! The interpreter: executes blocks of operations.
//!
//! Most time goes into one `match` over decoded operations, which compiles to a jump table.
//! Registers are an array of 256, so that a register number in a byte needs no check: the program's
//! 32, and [`SINK`](crate::op::SINK). Counters, the budget, breakpoints and the request to stop
//! are checked only between blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

use crate::arith;
use crate::block::{Block, Blocks, UNKNOWN};
use crate::mmu::{Mmu, Stored};
use crate::op::{Amo, Counter, Kind, Op};

/// The clock that RDTIME reads; the environment chooses its unit.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Why the interpreter returns.
pub(crate) enum Leave {
    Budget,
    Stopped,
    Ecall,
    Ebreak,
    Wait,
    Pause,
    Breakpoint,
    /// An illegal instruction: its encoding.
    Illegal(u64),
    /// An instruction that could not be fetched: its address.
    FetchFault(u64),
    /// A failed access: [`Mmu::failure`] has its cause, [`Core::stalled`] the operation.
    DataFault,
}

/// Why [`follow`] returns: the next step is rare, or not one of the fast loop.
enum End {
    /// The next block is longer than the budget, or a stop was requested.
    Before,
    /// The block is done; its successor in this way, at this address, is not linked.
    Unlinked(usize, u64),
    /// The block is done; a computed jump led to an address that is not in the cache.
    Computed(u64),
    /// At this operation, which [`Core::special`] executes.
    Special(Op),
    /// At this operation: its access failed.
    Fault(Op),
    /// After this operation, which stored into code.
    IntoCode(Op),
}

/// The state of a hart.
pub(crate) struct Core {
    pub(crate) x: [u64; 256],
    pub(crate) pc: u64,
    /// Instructions completed.
    pub(crate) retired: u64,
    pub(crate) clock: Option<Clock>,
    pub(crate) mmu: Mmu,
    pub(crate) blocks: Blocks,
    /// The breakpoint at which the last run returned.
    pub(crate) reported: Option<u64>,
    /// The operation of the last data fault, and the address after it.
    pub(crate) stalled: Option<(Op, u64)>,
}

impl Core {
    pub(crate) fn flush(&mut self) {
        self.blocks.forget();
        self.mmu.forget_code();
    }

    /// Executes at most `budget` instructions, and consumes `stop` if it is set.
    pub(crate) fn run(&mut self, budget: u64, stop: &AtomicBool) -> Leave {
        let mut left = budget;
        let leave = self.run_blocks(budget, &mut left, stop);
        self.retired += budget - left;
        if self.mmu.code_changed() {
            self.flush();
        }
        leave
    }

    fn run_blocks(&mut self, budget: u64, left: &mut u64, stop: &AtomicBool) -> Leave {
        // A block and the way in which it was left, if its successor at the pc can be linked.
        let mut from = None;
        loop {
            if stop.load(Ordering::Relaxed) && stop.swap(false, Ordering::AcqRel) {
                return Leave::Stopped;
            }
            if *left == 0 {
                return Leave::Budget;
            }
            if self.at_breakpoint() {
                return Leave::Breakpoint;
            }
            let mut index = self.blocks.find(&mut self.mmu, self.pc);
            if let Some((block, way)) = from.take() {
                self.blocks.link(block, way, index);
            }
            let fits = u64::from(self.blocks.block(index).count) <= *left;
            if !fits {
                index = self.blocks.add_beginning(&mut self.mmu, self.pc, *left);
            }
            let end = follow(&self.blocks, &mut index, left, &mut self.x, &mut self.mmu, stop);
            let block = *self.blocks.block(index);
            let mut leave = None;
            match end {
                End::Before => self.pc = block.pc,
                End::Unlinked(way, pc) => {
                    self.pc = pc;
                    from = (fits && self.blocks.may_link(pc)).then_some((index, way));
                }
                End::Computed(pc) => self.pc = pc,
                End::Special(op) => {
                    let retired = self.retired.wrapping_add(budget - *left);
                    leave = self.special(&block, &op, retired, left);
                }
                End::Fault(op) => {
                    self.stalled = Some((op, self.address_after(&block, &op)));
                    self.go_to(&block, &op, left);
                    leave = Some(Leave::DataFault);
                }
                End::IntoCode(op) => {
                    match self.following(&block, &op) {
                        Some(next) => self.go_to(&block, &next, left),
                        None => self.pc = block.end,
                    }
                    self.flush();
                }
            }
            if !fits {
                self.blocks.remove_beginning();
            }
            if let Some(leave) = leave {
                return leave;
            }
        }
    }

    /// Whether a breakpoint at the pc must be reported: once, until the hart continues.
    fn at_breakpoint(&mut self) -> bool {
        let reported = self.reported.take();
        if !self.blocks.breakpoints.contains(&self.pc) || reported == Some(self.pc) {
            return false;
        }
        self.reported = Some(self.pc);
        true
    }

    /// Returns to an operation of a block whose instructions were all counted as executed.
    fn go_to(&mut self, block: &Block, op: &Op, left: &mut u64) {
        self.pc = block.pc.wrapping_add(op.offset.into());
        *left += u64::from(block.count) - u64::from(op.index);
    }

    /// The operation that follows another one in a block.
    fn following(&self, block: &Block, op: &Op) -> Option<Op> {
        let mut following = self.blocks.ops(block).iter();
        following.find(|it| it.offset == op.offset);
        following.next().copied()
    }

    /// The address after an operation of a block.
    fn address_after(&self, block: &Block, op: &Op) -> u64 {
        self.following(block, op)
            .map_or(block.end, |next| block.pc.wrapping_add(next.offset.into()))
    }

    /// Executes the last operation of a block, after `retired` instructions.
    fn special(&mut self, block: &Block, op: &Op, retired: u64, left: &mut u64) -> Option<Leave> {
        let value = op.imm as u64;
        let leave = match op.kind {
            Kind::Ecall => Leave::Ecall,
            Kind::Ebreak => Leave::Ebreak,
            Kind::FetchFault => Leave::FetchFault(value),
            Kind::Illegal => Leave::Illegal(value),
            Kind::Wfi | Kind::Pause => {
                self.pc = block.end;
                return Some(if op.kind == Kind::Wfi { Leave::Wait } else { Leave::Pause });
            }
            Kind::Counter => {
                self.pc = block.end;
                self.x[usize::from(op.rd)] =
                    match (Counter::ALL[usize::from(op.extra)], &self.clock) {
                        (Counter::Time, Some(clock)) => clock(),
                        _ => retired - 1,
                    };
                return None;
            }
            _ => {
                self.pc = block.end;
                self.flush();
                return None;
            }
        };
        self.go_to(block, op, left);
        Some(leave)
    }
}

/// Executes block `index` and its linked successors. Afterwards `index` is the last one, and `left`
/// is reduced by the instructions of all.
fn follow(
    blocks: &Blocks,
    index: &mut u32,
    left: &mut u64,
    x: &mut [u64; 256],
    mmu: &mut Mmu,
    stop: &AtomicBool,
) -> End {
    'blocks: loop {
        let block = blocks.block(*index);
        let count = u64::from(block.count);
        if count > *left || stop.load(Ordering::Relaxed) {
            return End::Before;
        }
        *left -= count;
        macro_rules! go {
            ($way:expr, $pc:expr) => {{
                let next = block.next[$way];
                if next == UNKNOWN {
                    return End::Unlinked($way, $pc);
                }
                *index = next;
                continue 'blocks;
            }};
        }
        macro_rules! branch {
            ($taken:expr, $pc:expr) => {
                if $taken { go!(1, $pc) } else { go!(0, block.end) }
            };
        }
        for op in blocks.ops(block) {
            let (rd, rs1, rs2) = (usize::from(op.rd), usize::from(op.rs1), usize::from(op.rs2));
            let (a, b) = (x[rs1], x[rs2]);
            let imm = op.imm as u64;
            macro_rules! load {
                ($int:ty, $signed:ty) => {
                    match mmu.load::<$int>(a.wrapping_add(imm)) {
                        Some(value) => x[rd] = value as $signed as i64 as u64,
                        None => return End::Fault(*op),
                    }
                };
            }
            macro_rules! stored {
                ($stored:expr) => {
                    match $stored {
                        Stored::Done => {}
                        Stored::IntoCode => return End::IntoCode(*op),
                        Stored::Failed => return End::Fault(*op),
                    }
                };
            }
            match op.kind {
                Kind::Nop => {}
                Kind::Const => x[rd] = imm,
                Kind::Move => x[rd] = a,
                Kind::Addi => x[rd] = a.wrapping_add(imm),
                Kind::Slti => x[rd] = ((a as i64) < op.imm).into(),
                Kind::Sltiu => x[rd] = (a < imm).into(),
                Kind::Xori => x[rd] = a ^ imm,
                Kind::Ori => x[rd] = a | imm,
                Kind::Andi => x[rd] = a & imm,
                Kind::Slli => x[rd] = a << (imm & 63),
                Kind::Srli => x[rd] = a >> (imm & 63),
                Kind::Srai => x[rd] = (a as i64 >> (imm & 63)) as u64,
                Kind::Addiw => x[rd] = arith::extend((a as u32).wrapping_add(imm as u32)),
                Kind::Slliw => x[rd] = arith::extend((a as u32) << (imm & 31)),
                Kind::Srliw => x[rd] = arith::extend(a as u32 >> (imm & 31)),
                Kind::Sraiw => x[rd] = (a as i32 >> (imm & 31)) as u64,
                Kind::Add => x[rd] = a.wrapping_add(b),
                Kind::Sub => x[rd] = a.wrapping_sub(b),
                Kind::Sll => x[rd] = a << (b & 63),
                Kind::Slt => x[rd] = ((a as i64) < b as i64).into(),
                Kind::Sltu => x[rd] = (a < b).into(),
                Kind::Xor => x[rd] = a ^ b,
                Kind::Srl => x[rd] = a >> (b & 63),
                Kind::Sra => x[rd] = (a as i64 >> (b & 63)) as u64,
                Kind::Or => x[rd] = a | b,
                Kind::And => x[rd] = a & b,
                Kind::Addw => x[rd] = arith::extend((a as u32).wrapping_add(b as u32)),
                Kind::Subw => x[rd] = arith::extend((a as u32).wrapping_sub(b as u32)),
                Kind::Sllw => x[rd] = arith::extend((a as u32) << (b & 31)),
                Kind::Srlw => x[rd] = arith::extend(a as u32 >> (b & 31)),
                Kind::Sraw => x[rd] = (a as i32 >> (b & 31)) as u64,
                Kind::Mul => x[rd] = a.wrapping_mul(b),
                Kind::Mulh => x[rd] = arith::mulh(a, b),
                Kind::Mulhsu => x[rd] = arith::mulhsu(a, b),
                Kind::Mulhu => x[rd] = arith::mulhu(a, b),
                Kind::Div => x[rd] = arith::div(a, b),
                Kind::Divu => x[rd] = arith::divu(a, b),
                Kind::Rem => x[rd] = arith::rem(a, b),
                Kind::Remu => x[rd] = arith::remu(a, b),
                Kind::Mulw => x[rd] = arith::extend((a as u32).wrapping_mul(b as u32)),
                Kind::Divw => x[rd] = arith::divw(a, b),
                Kind::Divuw => x[rd] = arith::divuw(a, b),
                Kind::Remw => x[rd] = arith::remw(a, b),
                Kind::Remuw => x[rd] = arith::remuw(a, b),
                Kind::Lb => load!(u8, i8),
                Kind::Lh => load!(u16, i16),
                Kind::Lw => load!(u32, i32),
                Kind::Ld => load!(u64, i64),
                Kind::Lbu => load!(u8, u8),
                Kind::Lhu => load!(u16, u16),
                Kind::Lwu => load!(u32, u32),
                Kind::Sb => stored!(mmu.store::<u8>(a.wrapping_add(imm), b)),
                Kind::Sh => stored!(mmu.store::<u16>(a.wrapping_add(imm), b)),
                Kind::Sw => stored!(mmu.store::<u32>(a.wrapping_add(imm), b)),
                Kind::Sd => stored!(mmu.store::<u64>(a.wrapping_add(imm), b)),
                Kind::LrW => match mmu.load_reserved::<u32>(a) {
                    Some(value) => x[rd] = arith::extend(value as u32),
                    None => return End::Fault(*op),
                },
                Kind::LrD => match mmu.load_reserved::<u64>(a) {
                    Some(value) => x[rd] = value,
                    None => return End::Fault(*op),
                },
                Kind::ScW | Kind::ScD => {
                    let (stored, success) = match op.kind {
                        Kind::ScW => mmu.store_conditional::<u32>(a, b),
                        _ => mmu.store_conditional::<u64>(a, b),
                    };
                    if stored != Stored::Failed {
                        x[rd] = (!success).into();
                    }
                    stored!(stored);
                }
                Kind::AmoW | Kind::AmoD => {
                    let amo = Amo::ALL[usize::from(op.extra)];
                    let (stored, old) = match op.kind {
                        Kind::AmoW => mmu.amo::<u32>(amo, a, b),
                        _ => mmu.amo::<u64>(amo, a, b),
                    };
                    if stored != Stored::Failed {
                        x[rd] = old;
                    }
                    stored!(stored);
                }
                Kind::Fence if op.extra != 0 => fence(Ordering::SeqCst),
                Kind::Fence => {
                    fence(Ordering::AcqRel);
                    compiler_fence(Ordering::SeqCst);
                }
                Kind::Beq => branch!(a == b, imm),
                Kind::Bne => branch!(a != b, imm),
                Kind::Blt => branch!((a as i64) < b as i64, imm),
                Kind::Bge => branch!(a as i64 >= b as i64, imm),
                Kind::Bltu => branch!(a < b, imm),
                Kind::Bgeu => branch!(a >= b, imm),
                Kind::Jal => {
                    x[rd] = block.end;
                    go!(1, imm);
                }
                Kind::Jalr => {
                    let target = a.wrapping_add(imm) & !1;
                    x[rd] = block.end;
                    let next = blocks.jump(target);
                    if next == UNKNOWN {
                        return End::Computed(target);
                    }
                    *index = next;
                    continue 'blocks;
                }
                Kind::End => go!(0, block.end),
                Kind::AddiBne => {
                    let sum = a.wrapping_add_signed((op.extra as i8).into());
                    x[rd] = sum;
                    branch!(sum != b, imm)
                }
                Kind::SlliSrli => x[rd] = a << (imm & 63) >> (op.extra & 63),
                Kind::SlliAdd => x[rd] = (a << (imm & 63)).wrapping_add(b),
                Kind::FenceI
                | Kind::Counter
                | Kind::Wfi
                | Kind::Pause
                | Kind::Ecall
                | Kind::Ebreak
                | Kind::Illegal
                | Kind::FetchFault => return End::Special(*op),
            }
        }
        // Every block ends with an operation that leaves it.
        return End::Unlinked(0, block.end);
    }
}
