//! System calls: the number in a7, arguments from a0 on.

use verbless_prm::DpaFault;
use verbless_riscv::Hart;

/// A system call of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SystemCall {
    /// The run is over.
    End(RunEnd),
    /// The process is over, with this status.
    Exit(u8),
    /// Others may have the core's time.
    Pause,
    /// A thread of the process is to run.
    Activate(u64),
    /// The outbox of the thread context rings for the queues of an extension of a UAR from now on,
    /// or for its own again.
    Extend(Option<u32>),
    /// A send queue of such an extension has WQEs up to this WQEBB index.
    Ring { device_id: u32, number: u32, index: u16 },
}

/// How a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunEnd {
    /// The run returns this value.
    Return(u64),
    /// To be started by the next event.
    Reschedule,
    /// The thread finishes for good.
    Finish,
    /// To be started again at once.
    Retrigger,
    /// To go on behind the call at the next event.
    Yield,
    /// To go on behind the call at once.
    YieldAndRetrigger,
}

/// Stands for no extension of a UAR.
const NO_DEVICE: u32 = u32::MAX;

/// The register of the first argument, and of the answer.
pub(super) const A0: usize = 10;
const A1: usize = 11;
const A2: usize = 12;
const A7: usize = 17;

/// The system call that a hart has come to.
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
        // Numbers of 32 bits are sign-extended in registers, or not, as a compiler likes.
        10 => SystemCall::Extend(Some(argument as u32).filter(|&id| id != NO_DEVICE)),
        11 => SystemCall::Ring {
            device_id: argument as u32,
            number: hart.x(A1) as u32,
            index: hart.x(A2) as u16,
        },
        _ => SystemCall::Exit(DpaFault::SYSTEM_CALL.0),
    }
}
