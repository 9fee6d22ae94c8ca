//! What a work queue yields.

use std::fmt;

use super::failure::{JobError, JobType};
use crate::dma::done::MemcpyDone;
use crate::error::Error;
use crate::graph::done::GraphDone;
use crate::sha::done::HashDone;
use crate::types::UserData;

/// The result of a job (`struct doca_event`), with the buffers that the job took.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A DMA copy.
    Dma(MemcpyDone),
    /// A hash.
    Sha(HashDone),
    /// An instance of a graph.
    Graph(GraphDone),
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

/// Whose a job is. It comes back with the job's event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tag {
    /// The program's: it retrieves the event.
    #[default]
    Program,
    /// A node's of an instance of a graph.
    Node { run: u32, node: u32 },
    /// A future's.
    Future(u32),
}

/// A job that ended.
pub struct Done {
    pub(crate) tag: Tag,
    pub(crate) event: Event,
}
