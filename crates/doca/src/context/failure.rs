//! What sorts of jobs there are, and why they fail.

use std::fmt;

use verbless_queue::Status;
use verbless_queue::completion::Failure;

use crate::error::ErrorKind;

/// What sort of job an event is of (`doca_event::type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JobType {
    /// A DMA copy.
    DmaMemcpy,
    /// A hash of one buffer.
    ShaHash,
    /// A part of a hash.
    ShaPartial,
    /// A sync event's value.
    SyncEventGet,
    /// A new value of a sync event.
    SyncEventSet,
    /// An addition to a sync event's value.
    SyncEventAdd,
    /// A wait for a sync event.
    SyncEventWait,
    /// An instance of a graph (`DOCA_GRAPH_JOB`).
    Graph,
}

/// Why a job failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobError {
    kind: ErrorKind,
    cause: Option<Failure>,
}

impl JobError {
    pub(crate) const fn new(kind: ErrorKind) -> Self {
        Self { kind, cause: None }
    }

    /// DOCA's value: what sort of failure it was.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What the device said, if it was the device.
    pub const fn cause(&self) -> Option<Failure> {
        self.cause
    }
}

impl From<Failure> for JobError {
    fn from(failure: Failure) -> Self {
        let kind = match failure.status {
            Status::LocalProtection | Status::LocalAccess | Status::RemoteAccess => {
                ErrorKind::NotPermitted
            }
            Status::Flushed => ErrorKind::Shutdown,
            Status::TransportRetryExceeded | Status::RnrRetryExceeded => ErrorKind::TimeOut,
            Status::LocalLength | Status::RemoteInvalidRequest => ErrorKind::InvalidValue,
            Status::RemoteAborted => ErrorKind::ConnectionAborted,
            _ => ErrorKind::IoFailed,
        };
        Self { kind, cause: Some(failure) }
    }
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the job failed: {}", self.kind.name())?;
        self.cause.iter().try_for_each(|cause| write!(f, ": {cause}"))
    }
}

impl std::error::Error for JobError {}
