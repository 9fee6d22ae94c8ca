//! The reasons for which a responder refuses a request as invalid. All of them have the same NAK
//! and the same CQE syndrome; the log names the field and its limit.

use std::fmt;

/// What is wrong with the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InvalidReason {
    /// The address of an atomic is not a multiple of its 8 bytes.
    UnalignedAtomic(u64),
    /// A bit of the QP's context forbids the operation.
    Disabled { field: &'static str },
    /// As many READs and atomics as the QP may have wait for their answers.
    TooManyAnswers { max_dest_rd_atomic: u8 },
    /// The message is longer than the QP's longest.
    TooLong { length: u64, longest: u64 },
    /// A packet or part does not follow the one before it, or does not have its length.
    OutOfOrder,
}

impl fmt::Display for InvalidReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnalignedAtomic(address) => {
                write!(f, "atomic address {address:#x} is not aligned to 8 bytes")
            }
            Self::Disabled { field } => write!(f, "{field} of the QP is 0"),
            Self::TooManyAnswers { max_dest_rd_atomic } => {
                write!(f, "a READ or atomic exceeds the {max_dest_rd_atomic} of max_dest_rd_atomic")
            }
            Self::TooLong { length, longest } => {
                write!(f, "message of {length} bytes exceeds the QP's longest of {longest}")
            }
            Self::OutOfOrder => f.write_str("a packet does not continue its message"),
        }
    }
}
