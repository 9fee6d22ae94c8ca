//! What sorts of jobs there are, and why they fail.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use verbless_queue::Status;
use verbless_queue::completion::Failure;

use crate::error::{Error, ErrorKind};

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
    /// A receive of RDMA (`DOCA_RDMA_JOB_RECV`).
    RdmaReceive,
    /// A send (`DOCA_RDMA_JOB_SEND`).
    RdmaSend,
    /// A send with immediate (`DOCA_RDMA_JOB_SEND_IMM`).
    RdmaSendImm,
    /// A write (`DOCA_RDMA_JOB_WRITE`).
    RdmaWrite,
    /// A write with immediate (`DOCA_RDMA_JOB_WRITE_IMM`).
    RdmaWriteImm,
    /// A read (`DOCA_RDMA_JOB_READ`).
    RdmaRead,
    /// A compare and swap (`DOCA_RDMA_JOB_ATOMIC_CMP_SWP`).
    RdmaCompareSwap,
    /// A fetch and add (`DOCA_RDMA_JOB_ATOMIC_FETCH_ADD`).
    RdmaFetchAdd,
    /// An instance of a graph (`DOCA_GRAPH_JOB`).
    Graph,
    /// No job: an external event, of a device.
    AsyncEvent,
}

/// Why a job failed.
///
/// It is `Copy`: events that had something to drop would cost each job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobError {
    kind: ErrorKind,
    cause: Cause,
}

/// What is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Unknown,
    Device(Failure),
    /// Why the context ended its jobs.
    Told(&'static str),
}

/// Texts that are kept at most; there is one for each way in which contexts gave up.
const TEXTS: usize = 256;

/// Keeps a text for good, once; `None` if there are too many.
fn keep(text: String) -> Option<&'static str> {
    static KEPT: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(same) = kept.iter().find(|kept| **kept == text) {
        return Some(same);
    }
    (kept.len() < TEXTS).then(|| {
        kept.push(text.leak());
        kept[kept.len() - 1]
    })
}

impl JobError {
    pub(crate) const fn new(kind: ErrorKind) -> Self {
        Self { kind, cause: Cause::Unknown }
    }

    /// Of a job that the device was to have, when this kept it from there.
    pub(crate) fn told(error: &Error) -> Self {
        let cause = keep(error.to_string()).map_or(Cause::Unknown, Cause::Told);
        Self { kind: error.kind(), cause }
    }

    /// The same failure, where one knows better what sort it is.
    pub(crate) const fn of_kind(self, kind: ErrorKind) -> Self {
        Self { kind, ..self }
    }

    /// DOCA's value: what sort of failure it was.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What the device said, if it was the device.
    pub const fn cause(&self) -> Option<Failure> {
        match self.cause {
            Cause::Device(failure) => Some(failure),
            _ => None,
        }
    }

    /// What kept the context from its work, if that ended the job.
    pub(crate) const fn why(&self) -> Option<&'static str> {
        match self.cause {
            Cause::Told(why) => Some(why),
            _ => None,
        }
    }
}

impl From<Failure> for JobError {
    fn from(failure: Failure) -> Self {
        let kind = match failure.status {
            Status::LocalProtection | Status::LocalAccess | Status::RemoteAccess => {
                ErrorKind::NotPermitted
            }
            Status::Flushed => ErrorKind::Shutdown,
            // Nobody answered: what the other side did of it, nobody knows.
            Status::TransportRetryExceeded | Status::RnrRetryExceeded => ErrorKind::TimeOut,
            Status::LocalLength | Status::RemoteInvalidRequest => ErrorKind::InvalidValue,
            Status::RemoteAborted => ErrorKind::ConnectionAborted,
            _ => ErrorKind::IoFailed,
        };
        Self { kind, cause: Cause::Device(failure) }
    }
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the job failed: {}", self.kind.name())?;
        match &self.cause {
            Cause::Unknown => Ok(()),
            Cause::Device(failure) => {
                write!(f, ": {failure}")?;
                match failure.status {
                    Status::LocalProtection | Status::RemoteAccess => f.write_str(
                        "; of memory that another function exported, its owner may have taken it \
                         back",
                    ),
                    _ => Ok(()),
                }
            }
            Cause::Told(why) => write!(f, ": {why}"),
        }
    }
}

impl std::error::Error for JobError {}
