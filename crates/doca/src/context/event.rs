//! The events of a work queue.

use std::fmt;

use super::failure::JobError;
use super::job_type::JobType;
use crate::async_event::done::AsyncEvent;
use crate::dma::done::MemcpyDone;
use crate::error::{Error, ErrorKind};
use crate::graph::done::GraphDone;
use crate::rdma::done::RdmaDone;
use crate::sha::done::HashDone;
use crate::sync_event::done::SyncEventDone;
use crate::types::UserData;

/// The result of a job (`struct doca_event`), with the job's buffers; or an external event.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A DMA copy.
    Dma(MemcpyDone),
    /// A hash.
    Sha(HashDone),
    /// A job of a sync event.
    SyncEvent(SyncEventDone),
    /// A job of RDMA.
    Rdma(RdmaDone),
    /// An instance of a graph.
    Graph(GraphDone),
    /// No job: an external event of a device.
    Async(AsyncEvent),
}

impl Event {
    /// The user data of the job; for an external event, of its context.
    pub fn user_data(&self) -> UserData {
        match self {
            Self::Dma(done) => done.user_data,
            Self::Sha(done) => done.user_data,
            Self::SyncEvent(done) => done.user_data,
            Self::Rdma(done) => done.user_data,
            Self::Graph(done) => done.user_data,
            Self::Async(event) => event.user_data,
        }
    }

    /// The type of the job.
    pub fn job_type(&self) -> JobType {
        match self {
            Self::Dma(_) => JobType::DmaMemcpy,
            Self::Sha(done) => done.job_type,
            Self::SyncEvent(done) => done.job_type,
            Self::Rdma(done) => done.job_type,
            Self::Graph(_) => JobType::Graph,
            Self::Async(_) => JobType::AsyncEvent,
        }
    }

    /// The result (`doca_event::result`).
    pub fn result(&self) -> std::result::Result<(), JobError> {
        match self {
            Self::Dma(done) => done.result,
            Self::Sha(done) => done.result,
            Self::SyncEvent(done) => done.result,
            Self::Rdma(done) => done.result,
            Self::Graph(done) => done.result,
            Self::Async(event) => event.result.map(drop),
        }
    }

    /// Whether the event is retrieved as a failure. The end of a graph's instance is a success,
    /// whatever its status.
    pub(crate) fn is_failed_job(&self) -> bool {
        !matches!(self, Self::Graph(_)) && self.result().is_err()
    }
}

/// Why a work queue yields no completed job, or a failed one (section 3.4.8 of 2.2).
#[derive(Debug)]
pub enum Retrieve {
    /// No job is done (`DOCA_ERROR_AGAIN`).
    Again,
    /// This job failed (`DOCA_ERROR_IO_FAILED`): [`Event::result`] has the reason.
    IoFailed(Event),
    /// The work queue itself failed, without a job: the device sent an impossible completion
    /// (`DOCA_ERROR_INVALID_VALUE`), or waiting failed; the error's kind says which.
    Failed(Error),
}

impl Retrieve {
    /// DOCA's value.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Again => ErrorKind::Again,
            Self::IoFailed(_) => ErrorKind::IoFailed,
            Self::Failed(error) => error.kind(),
        }
    }
}

/// Drops the event, if there is one: its buffers return to their stores.
impl From<Retrieve> for Error {
    fn from(why: Retrieve) -> Self {
        match why {
            Retrieve::Again => Self::plain(ErrorKind::Again, "no job is done yet"),
            Retrieve::IoFailed(event) => match event.result() {
                Ok(()) => Self::plain(ErrorKind::IoFailed, "the job failed"),
                Err(error) => Self::new(ErrorKind::IoFailed, error.to_string()).with_source(error),
            },
            Retrieve::Failed(error) => error,
        }
    }
}

impl fmt::Display for Retrieve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Again => f.write_str("DOCA_ERROR_AGAIN: no job is done yet"),
            Self::IoFailed(event) => match event.result() {
                Ok(()) => f.write_str("DOCA_ERROR_IO_FAILED"),
                Err(error) => write!(f, "DOCA_ERROR_IO_FAILED: {error}"),
            },
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Retrieve {}

/// The owner of a job, in one word. The job's event has the same tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag(u64);

/// The submitter that a [`Tag`] identifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The program, which retrieves the event.
    Program,
    /// A node of an instance of a graph.
    Node { run: u32, node: u32 },
    /// A future.
    Future(u32),
    /// No owner: an external event has no job.
    External,
}

impl Tag {
    pub(crate) const PROGRAM: Self = Self(0);
    pub(crate) const EXTERNAL: Self = Self(2 << 32);

    /// Encodes the owner. Runs and futures number fewer than 2^31, because each has memory of its
    /// own.
    pub(crate) const fn of(owner: Owner) -> Self {
        Self(match owner {
            Owner::Program => 0,
            Owner::External => Self::EXTERNAL.0,
            Owner::Node { run, node } => 1 << 63 | (run as u64) << 32 | node as u64,
            Owner::Future(slot) => 1 << 32 | slot as u64,
        })
    }

    pub(crate) const fn owner(self) -> Owner {
        let (upper, lower) = ((self.0 >> 32) as u32, self.0 as u32);
        match upper {
            0 => Owner::Program,
            1 => Owner::Future(lower),
            2 => Owner::External,
            _ => Owner::Node { run: upper & !(1 << 31), node: lower },
        }
    }
}

/// An event of a work queue, or an empty slot for one ([`None`]).
pub(crate) type EventSlot = Option<std::result::Result<Event, Retrieve>>;

/// A job that ended.
pub struct Done {
    pub(crate) tag: Tag,
    pub(crate) event: Event,
}

impl Done {
    /// Writes the event to `into`; returns its owner.
    pub(crate) fn put(self, into: &mut EventSlot) -> Tag {
        *into = Some(Ok(self.event));
        self.tag
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_round_trips_owner() {
        let most = (1 << 31) - 1;
        let nodes = [(0, 0), (1, 0), (0, 1), (most, u32::MAX)];
        let nodes = nodes.map(|(run, node)| Owner::Node { run, node });
        let futures = [0, 1, u32::MAX].map(Owner::Future);
        for owner in nodes.into_iter().chain(futures).chain([Owner::Program, Owner::External]) {
            assert_eq!(Tag::of(owner).owner(), owner);
        }
        assert_eq!(Tag::of(Owner::Program), Tag::PROGRAM);
    }
}
