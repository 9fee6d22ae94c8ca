//! What a work queue yields.

use std::fmt;

use verbless_queue::Status;
use verbless_queue::completion::Failure;

use crate::{Error, ErrorKind, UserData};
use crate::{dma, graph, sha};

/// The result of a job (`struct doca_event`), with the buffers that the job took.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A DMA copy.
    Dma(dma::MemcpyDone),
    /// A hash.
    Sha(sha::HashDone),
    /// An instance of a graph.
    Graph(graph::GraphDone),
}

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
    /// An instance of a graph (`DOCA_GRAPH_JOB`).
    Graph,
}

impl Event {
    /// What was given with the job.
    pub fn user_data(&self) -> UserData {
        match self {
            Self::Dma(done) => done.user_data,
            Self::Sha(done) => done.user_data,
            Self::Graph(done) => done.user_data,
        }
    }

    /// What sort of job it was.
    pub fn job_type(&self) -> JobType {
        match self {
            Self::Dma(_) => JobType::DmaMemcpy,
            Self::Sha(done) => done.job_type,
            Self::Graph(_) => JobType::Graph,
        }
    }

    /// How it went (`doca_event::result`).
    pub fn result(&self) -> std::result::Result<(), JobError> {
        match self {
            Self::Dma(done) => done.result,
            Self::Sha(done) => done.result,
            Self::Graph(done) => done.result,
        }
    }

    /// Whether it is retrieved as a failure. That an instance of a graph has ended is a success,
    /// whatever its status.
    pub(crate) fn is_failed_job(&self) -> bool {
        !matches!(self, Self::Graph(_)) && self.result().is_err()
    }
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

/// Why a work queue yields no completed job, or one that failed (section 3.4.8 of 2.2).
#[derive(Debug)]
pub enum Retrieve {
    /// No job is done now (`DOCA_ERROR_AGAIN`).
    Again,
    /// This job failed (`DOCA_ERROR_IO_FAILED`): [`Event::result`] says why.
    IoFailed(Event),
    /// The work queue itself failed, and no job can be named (`DOCA_ERROR_INVALID_VALUE`).
    InvalidValue(Error),
}

impl fmt::Display for Retrieve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Again => f.write_str("DOCA_ERROR_AGAIN: no job is done yet"),
            Self::IoFailed(event) => match event.result() {
                Ok(()) => f.write_str("DOCA_ERROR_IO_FAILED"),
                Err(error) => write!(f, "DOCA_ERROR_IO_FAILED: {error}"),
            },
            Self::InvalidValue(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Retrieve {}
