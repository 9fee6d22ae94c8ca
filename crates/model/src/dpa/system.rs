//! System calls: the number in a7, arguments from a0 on.

use verbless_prm::DpaFault;
use verbless_riscv::Hart;

/// What a system call asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SystemCall {
    /// The run is over.
    End(End),
    /// The process is over, with this status.
    Exit(u8),
    /// Others may have the core's time.
    Pause,
    /// A thread of the process is to run.
    Activate(u64),
}

/// How a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// By returning this.
    Return(u64),
    /// To be started by the next event.
    Reschedule,
    /// For good.
    Finish,
    /// To be started again at once.
    Retrigger,
    /// To go on behind the call at the next event.
    Yield,
    /// To go on behind the call at once.
    YieldAndRetrigger,
}

const A0: usize = 10;
const A7: usize = 17;

/// The system call that a hart has come to.
pub(super) fn decode(hart: &Hart) -> SystemCall {
    let argument = hart.x(A0);
    match hart.x(A7) {
        0 => SystemCall::End(End::Return(argument)),
        1 => SystemCall::End(End::Reschedule),
        2 => SystemCall::End(End::Finish),
        3 => SystemCall::End(End::Retrigger),
        4 => SystemCall::Exit(DpaFault::FINISHED.0),
        5 => SystemCall::Exit(match argument {
            64..=255 => argument as u8,
            _ => DpaFault::ILLEGAL_ERROR.0,
        }),
        6 => SystemCall::Pause,
        7 => SystemCall::Activate(argument),
        8 => SystemCall::End(End::Yield),
        9 => SystemCall::End(End::YieldAndRetrigger),
        _ => SystemCall::Exit(DpaFault::SYSTEM_CALL.0),
    }
}
