//! Instructions for the interpreter: decoded once, 16 bytes each.

/// The type of an [`Op`]. A type with an instruction's name does what the specification says; a
/// final `I` or `W` is that of the mnemonic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A hint: nothing to do.
    Nop,
    /// `rd = imm`: LUI, AUIPC, C.LI.
    Const,
    /// `rd = rs1`
    Move,
    Addi,
    Slti,
    Sltiu,
    Xori,
    Ori,
    Andi,
    Slli,
    Srli,
    Srai,
    Addiw,
    Slliw,
    Srliw,
    Sraiw,
    Add,
    Sub,
    Sll,
    Slt,
    Sltu,
    Xor,
    Srl,
    Sra,
    Or,
    And,
    Addw,
    Subw,
    Sllw,
    Srlw,
    Sraw,
    Mul,
    Mulh,
    Mulhsu,
    Mulhu,
    Div,
    Divu,
    Rem,
    Remu,
    Mulw,
    Divw,
    Divuw,
    Remw,
    Remuw,
    Lb,
    Lh,
    Lw,
    Ld,
    Lbu,
    Lhu,
    Lwu,
    Sb,
    Sh,
    Sw,
    Sd,
    LrW,
    LrD,
    ScW,
    ScD,
    /// `extra` is an [`Amo`].
    AmoW,
    AmoD,
    /// FENCE; `extra` says whether it orders stores before later loads.
    Fence,
    // The types from here on end a block. `imm` of jumps and branches is the absolute target.
    Beq,
    Bne,
    Blt,
    Bge,
    Bltu,
    Bgeu,
    Jal,
    Jalr,
    FenceI,
    /// A read of the counter `extra`, a [`Counter`].
    Counter,
    Wfi,
    Pause,
    Ecall,
    Ebreak,
    /// `imm` is the instruction.
    Illegal,
    /// The instruction here cannot be fetched; `imm` is the faulting address.
    FetchFault,
    /// The end of a block of maximum length, or before a breakpoint.
    End,
    // Two instructions in one: `second` bytes and `extra` hold the operands of the second.
    /// `Addi`, then `Bne` of its result with `rs2`: the end of most counted loops.
    AddiBne,
    /// `Slli`, then `Srli` of its result by `extra`: bits extracted or cleared.
    SlliSrli,
    /// `Slli`, then `Add` of its result and `rs2`: an address in an array.
    SlliAdd,
}

/// The operation of an AMO on the value in memory and the value in the register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Amo {
    Swap,
    Add,
    Xor,
    And,
    Or,
    Min,
    Max,
    Minu,
    Maxu,
}

impl Amo {
    pub(crate) const ALL: [Self; 9] = [
        Self::Swap,
        Self::Add,
        Self::Xor,
        Self::And,
        Self::Or,
        Self::Min,
        Self::Max,
        Self::Minu,
        Self::Maxu,
    ];
}

/// The user-level counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Counter {
    Cycle,
    Time,
    Instret,
}

impl Counter {
    pub(crate) const ALL: [Self; 3] = [Self::Cycle, Self::Time, Self::Instret];
}

/// The register for writes to x0, which no operation reads.
pub(crate) const SINK: u8 = 32;

/// One instruction, or two fused ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(crate) struct Op {
    pub(crate) imm: i64,
    pub(crate) kind: Kind,
    /// The destination; [`SINK`] instead of x0.
    pub(crate) rd: u8,
    pub(crate) rs1: u8,
    pub(crate) rs2: u8,
    /// The rest of the operation; see [`Kind`].
    pub(crate) extra: u8,
    /// The number of instructions before it in its block.
    pub(crate) index: u8,
    /// Bytes from the beginning of its block.
    pub(crate) offset: u16,
}

impl Op {
    /// An operation without operands.
    pub(crate) const fn new(kind: Kind) -> Self {
        Self { imm: 0, kind, rd: SINK, rs1: 0, rs2: 0, extra: 0, index: 0, offset: 0 }
    }

    /// Whether the operation ends its block.
    pub(crate) fn ends_block(&self) -> bool {
        (self.kind as u8) >= Kind::Beq as u8 && (self.kind as u8) <= Kind::AddiBne as u8
    }
}

impl Kind {
    /// Size of a plain load or store in bytes, and for a load whether it extends the sign.
    pub(crate) const fn access(self) -> Option<(u64, Option<bool>)> {
        Some(match self {
            Self::Lb => (1, Some(true)),
            Self::Lh => (2, Some(true)),
            Self::Lw => (4, Some(true)),
            Self::Ld => (8, Some(false)),
            Self::Lbu => (1, Some(false)),
            Self::Lhu => (2, Some(false)),
            Self::Lwu => (4, Some(false)),
            Self::Sb => (1, None),
            Self::Sh => (2, None),
            Self::Sw => (4, None),
            Self::Sd => (8, None),
            _ => return None,
        })
    }
}
