//! System calls: the number in a7, arguments from a0 on.

use verbless_prm::DpaFault;
use verbless_riscv::Hart;

/// A system call of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SystemCall {
    /// Ends the run.
    End(RunEnd),
    /// Ends the process with this status.
    Exit(u8),
    /// Ends the turn: other runs have theirs first.
    Pause,
    /// Activates a thread of the process.
    Activate(u64),
    /// Selects the queues that the thread context's outbox rings: those of this UAR extension, or
    /// (`None`) of the outbox's own UAR page.
    Extend(Option<u32>),
    /// Asks whether the process has the outbox or window of this number.
    Has { window: bool, id: u64 },
    /// Reads the cycle or instruction counter of the run's hart.
    Count,
    /// Rings a send queue of a UAR extension: WQEs up to this WQEBB index are posted.
    Ring { device_id: u32, number: u32, index: u16 },
}

/// How a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunEnd {
    /// The run returns this value.
    Return(u64),
    /// The next event starts the thread.
    Reschedule,
    /// The thread finishes for good.
    Finish,
    /// The thread starts again at once.
    Retrigger,
    /// The next event continues the thread after the call.
    Yield,
    /// The thread continues after the call at once.
    YieldAndRetrigger,
}

/// The device id that selects no UAR extension.
const NO_DEVICE: u32 = u32::MAX;

/// The register of the first argument, and of the result.
pub(super) const A0: usize = 10;
const A1: usize = 11;
const A2: usize = 12;
const A7: usize = 17;

/// The system call at a hart's ECALL.
pub(super) fn decode(hart: &Hart) -> SystemCall {
    let argument = hart.x(A0);
    match hart.x(A7) {
        0 => SystemCall::End(RunEnd::Return(argument)),
        1 => SystemCall::End(RunEnd::Reschedule),
        2 => SystemCall::End(RunEnd::Finish),
        3 => SystemCall::End(RunEnd::Retrigger),
        4 => SystemCall::Exit(DpaFault::FINISHED.0),
        5 => SystemCall::Exit(match argument {
            64..=255 => argument as u8,
            _ => DpaFault::ILLEGAL_ERROR.0,
        }),
        6 => SystemCall::Pause,
        7 => SystemCall::Activate(argument),
        8 => SystemCall::End(RunEnd::Yield),
        9 => SystemCall::End(RunEnd::YieldAndRetrigger),
        // A compiler may sign-extend a 32-bit number in a register, or not.
        10 => SystemCall::Extend(Some(argument as u32).filter(|&id| id != NO_DEVICE)),
        11 => SystemCall::Ring {
            device_id: argument as u32,
            number: hart.x(A1) as u32,
            index: hart.x(A2) as u16,
        },
        12 => SystemCall::Has { window: hart.x(A1) != 0, id: argument },
        // 0 reads cycles, 1 reads instructions: the model executes one instruction a cycle.
        13 if argument <= 1 => SystemCall::Count,
        _ => SystemCall::Exit(DpaFault::SYSTEM_CALL.0),
    }
}
