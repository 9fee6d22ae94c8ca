//! The interpreter: executes blocks of operations one after the other.
//!
//! Time goes into one `match` over operations that were decoded before, which compiles to a jump by
//! a table. Registers are an array of 256, so that a register number in a byte needs no check: 32
//! of the program and [`SINK`](crate::op::SINK). Counters, the budget, breakpoints and the request
//! to stop are looked at between blocks only.

use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence, fence};

use crate::arith;
use crate::block::{Block, Blocks, UNKNOWN};
use crate::mmu::{Mmu, Stored};
use crate::op::{Amo, Counter, Kind, Op};

/// The clock that RDTIME reads; its unit is whatever the environment says.
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
    /// With the instruction.
    Illegal(u64),
    /// With the address.
    FetchFault(u64),
    /// [`Mmu::failure`] has more.
    DataFault,
}

/// Where control goes from a block.
enum Flow {
    /// To the address behind the block.
    Behind,
    /// To the target of its last operation.
    Taken(u64),
    /// To a computed address.
    Computed(u64),
    /// Behind this operation, which stored into code: all blocks must go.
    IntoCode(usize),
    /// Behind the block, after all blocks went.
    Flush,
    /// A counter is to be read, behind which the block goes on.
    Counter(Op),
    /// Out, at this operation, which is not completed.
    At(usize, Leave),
    /// Out, behind the block.
    Out(Leave),
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
}

impl Core {
    pub(crate) fn flush(&mut self) {
        self.blocks.forget();
        self.mmu.forget_code();
    }

    /// Executes at most `budget` instructions; `stop` is asked before each block.
    pub(crate) fn run(&mut self, budget: u64, mut stop: impl FnMut() -> bool) -> Leave {
        let mut left = budget;
        let guarded = !self.blocks.breakpoints.is_empty();
        // The block that was just executed and how it was left, until its successor is known.
        let mut from = None;
        let mut next = UNKNOWN;
        loop {
            if stop() {
                return Leave::Stopped;
            }
            if left == 0 {
                return Leave::Budget;
            }
            if guarded && self.at_breakpoint() {
                return Leave::Breakpoint;
            }
            if next == UNKNOWN {
                let (found, forgot) = self.blocks.find(&mut self.mmu, self.pc);
                match from.take() {
                    Some((block, way)) if !forgot => self.blocks.link(block, way, found),
                    _ => {}
                }
                next = found;
            }
            let index = next;
            let mut block = *self.blocks.block(index);
            let (flow, whole) = if u64::from(block.count) <= left {
                let ops = self.blocks.ops(&block);
                (execute(ops, &block, &mut self.x, &mut self.mmu), true)
            } else {
                let (ops, beginning) = self.blocks.beginning(&mut self.mmu, self.pc, left);
                block = beginning;
                let flow = execute(&ops, &block, &mut self.x, &mut self.mmu);
                // What leaves within the block must find its operations.
                if let Flow::At(at, leave) = flow {
                    return self.leave_at(&block, &ops[at], leave);
                }
                if let Flow::IntoCode(at) = flow {
                    left -= self.go_behind(&block, ops.get(at + 1));
                    self.flush();
                    (from, next) = (None, UNKNOWN);
                    continue;
                }
                (flow, false)
            };
            next = UNKNOWN;
            let way = match flow {
                Flow::Behind => {
                    self.pc = block.end;
                    Some(0)
                }
                Flow::Taken(target) => {
                    self.pc = target;
                    Some(1)
                }
                Flow::Computed(target) => {
                    self.pc = target;
                    None
                }
                Flow::At(at, leave) => {
                    let op = self.blocks.ops(&block)[at];
                    return self.leave_at(&block, &op, leave);
                }
                Flow::IntoCode(at) => {
                    let following = self.blocks.ops(&block).get(at + 1).copied();
                    left -= self.go_behind(&block, following.as_ref());
                    self.flush();
                    from = None;
                    continue;
                }
                Flow::Flush => {
                    self.pc = block.end;
                    self.flush();
                    self.retired += u64::from(block.count);
                    left -= u64::from(block.count);
                    from = None;
                    continue;
                }
                Flow::Counter(op) => {
                    let before = u64::from(block.count) - 1;
                    self.x[usize::from(op.rd)] = self.counter(op.extra, before);
                    self.pc = block.end;
                    Some(0)
                }
                Flow::Out(leave) => {
                    self.pc = block.end;
                    self.retired += u64::from(block.count);
                    return leave;
                }
            };
            self.retired += u64::from(block.count);
            left -= u64::from(block.count);
            if let (Some(way), true) = (way, whole) {
                next = block.next[way];
                from = Some((index, way));
            } else {
                from = None;
            }
        }
    }

    /// Whether a breakpoint at the pc is to be reported: each once, until the hart goes on.
    fn at_breakpoint(&mut self) -> bool {
        let reported = self.reported.take();
        if !self.blocks.breakpoints.contains(&self.pc) || reported == Some(self.pc) {
            return false;
        }
        self.reported = Some(self.pc);
        true
    }

    #[cold]
    fn leave_at(&mut self, block: &Block, op: &Op, leave: Leave) -> Leave {
        self.pc = block.pc.wrapping_add(op.offset.into());
        self.retired += u64::from(op.index);
        if self.mmu.code_changed() {
            self.flush();
        }
        leave
    }

    /// Goes to `following` of a block, or behind it; how many instructions were executed.
    #[cold]
    fn go_behind(&mut self, block: &Block, following: Option<&Op>) -> u64 {
        let (pc, count) = match following {
            Some(op) => (block.pc.wrapping_add(op.offset.into()), op.index.into()),
            None => (block.end, block.count.into()),
        };
        self.pc = pc;
        self.retired += count;
        count
    }

    /// What a counter reads, `before` instructions into the block.
    fn counter(&self, which: u8, before: u64) -> u64 {
        let instret = self.retired.wrapping_add(before);
        match (Counter::ALL[usize::from(which)], &self.clock) {
            (Counter::Time, Some(clock)) => clock(),
            _ => instret,
        }
    }
}

/// Executes operations to the first that ends the block or fails.
#[inline(always)]
fn execute(ops: &[Op], block: &Block, x: &mut [u64; 256], mmu: &mut Mmu) -> Flow {
    for (at, op) in ops.iter().enumerate() {
        let (rd, rs1, rs2) = (usize::from(op.rd), usize::from(op.rs1), usize::from(op.rs2));
        let (a, b) = (x[rs1], x[rs2]);
        let imm = op.imm as u64;
        macro_rules! load {
            ($int:ty, $signed:ty) => {
                match mmu.load::<$int>(a.wrapping_add(imm)) {
                    Some(value) => x[rd] = value as $signed as i64 as u64,
                    None => return Flow::At(at, Leave::DataFault),
                }
            };
        }
        macro_rules! stored {
            ($stored:expr) => {
                match $stored {
                    Stored::Done => {}
                    Stored::IntoCode => return Flow::IntoCode(at),
                    Stored::Failed => return Flow::At(at, Leave::DataFault),
                }
            };
        }
        macro_rules! branch {
            ($taken:expr) => {
                return if $taken { Flow::Taken(imm) } else { Flow::Behind }
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
                None => return Flow::At(at, Leave::DataFault),
            },
            Kind::LrD => match mmu.load_reserved::<u64>(a) {
                Some(value) => x[rd] = value,
                None => return Flow::At(at, Leave::DataFault),
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
            Kind::Beq => branch!(a == b),
            Kind::Bne => branch!(a != b),
            Kind::Blt => branch!((a as i64) < b as i64),
            Kind::Bge => branch!(a as i64 >= b as i64),
            Kind::Bltu => branch!(a < b),
            Kind::Bgeu => branch!(a >= b),
            Kind::Jal => {
                x[rd] = block.end;
                return Flow::Taken(imm);
            }
            Kind::Jalr => {
                x[rd] = block.end;
                return Flow::Computed(a.wrapping_add(imm) & !1);
            }
            Kind::FenceI => return Flow::Flush,
            Kind::Counter => return Flow::Counter(*op),
            Kind::Wfi => return Flow::Out(Leave::Wait),
            Kind::Pause => return Flow::Out(Leave::Pause),
            Kind::Ecall => return Flow::At(at, Leave::Ecall),
            Kind::Ebreak => return Flow::At(at, Leave::Ebreak),
            Kind::Illegal => return Flow::At(at, Leave::Illegal(imm)),
            Kind::FetchFault => return Flow::At(at, Leave::FetchFault(imm)),
            Kind::End => return Flow::Behind,
            Kind::AddiBne => {
                let sum = a.wrapping_add_signed((op.extra as i8).into());
                x[rd] = sum;
                branch!(sum != b);
            }
            Kind::SlliSrli => x[rd] = a << (imm & 63) >> (op.extra & 63),
            Kind::SlliAdd => x[rd] = (a << (imm & 63)).wrapping_add(b),
        }
    }
    Flow::Behind
}
