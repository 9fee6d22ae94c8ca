//! A queue of the device for jobs of a sync event, and the jobs not posted to it yet.
//!
//! The device executes the requests of a queue in order. That has two effects that a program does
//! not expect: a failed job would fail those after it, and a wait would delay later waits with
//! lower thresholds. In both cases the queue goes through the error state, in which the device
//! flushes the unexecuted requests. They are posted again: waits in the order of their thresholds,
//! other jobs in the order of their submission.

use verbless_queue::completion::FailedRequest;
use verbless_queue::{CompletionError, Cqe, ErrorKind as LowerKind, Sge, WcStatus};

use super::link::{Link, LinkOperation};
use super::word::CounterWord;
use crate::context::engine::EngineArgs;
use crate::error::{Error, ErrorKind, Result};

/// A job as a request of the device's queue.
#[derive(Clone, Copy)]
pub(super) struct QueuedRequest {
    /// The slot of the job, which is the cookie.
    pub(super) slot: u32,
    pub(super) operation: LinkOperation,
    /// The memory for the result.
    pub(super) into: Sge,
    /// Requests with a smaller order are posted first.
    pub(super) order: u64,
}

/// The handling of flushed requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum JobQueueState {
    Works,
    /// The device flushes its requests, and has executed none of those.
    Returns,
    /// The device flushes its requests, but may have executed them.
    Loses,
}

/// A queue.
pub(super) struct JobQueue {
    link: Link,
    /// Whether the queue executes only waits.
    of_waits: bool,
    state: JobQueueState,
    /// Posted requests.
    in_flight: u32,
    /// Completed requests, modulo 2^32.
    completed: u32,
    /// The order of the last posted request.
    last: u64,
    /// Requests that are not posted, in order.
    held: Vec<QueuedRequest>,
}

/// The outcome of a completion for the job in a slot.
pub(super) enum JobOutcome {
    Done(u64),
    Failed(FailedRequest),
    /// The request was not executed, and is posted again unless the job fails.
    Returned(FailedRequest),
}

impl JobQueue {
    pub(super) fn new(word: &CounterWord, args: &EngineArgs<'_>, of_waits: bool) -> Result<Self> {
        let link = Link::new(word, &args.device_cq.cq, args.depth, args.user_index)?;
        let held = Vec::with_capacity(args.depth as usize);
        Ok(Self {
            link,
            of_waits,
            state: JobQueueState::Works,
            in_flight: 0,
            completed: 0,
            last: 0,
            held,
        })
    }

    pub(super) fn is(&self, cqe: &Cqe) -> bool {
        self.link.qp.qpn() == cqe.qpn()
    }

    /// Accepts a job.
    pub(super) fn take(&mut self, word: &CounterWord, request: QueuedRequest) -> Result<()> {
        if self.state == JobQueueState::Works && self.in_flight > 0 && request.order < self.last {
            self.link.qp.to_error()?;
            self.state = JobQueueState::Returns;
        }
        match self.state {
            JobQueueState::Works => self.post(word, &request)?,
            JobQueueState::Returns | JobQueueState::Loses => self.hold(request),
        }
        Ok(())
    }

    fn post(&mut self, word: &CounterWord, request: &QueuedRequest) -> Result<()> {
        let &QueuedRequest { slot, operation, into, order } = request;
        self.link.post(word, operation, into, slot.into())?;
        self.in_flight += 1;
        self.last = order;
        Ok(())
    }

    /// Keeps a job until it can be posted. There is room for all jobs.
    pub(super) fn hold(&mut self, request: QueuedRequest) {
        let at = self.held.partition_point(|held| held.order <= request.order);
        self.held.insert(at, request);
    }

    /// The first job that is not posted.
    pub(super) fn take_held(&mut self) -> Option<QueuedRequest> {
        (!self.held.is_empty()).then(|| self.held.remove(0))
    }

    pub(super) fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// The outcome of a completed request.
    pub(super) fn complete(&mut self, cqe: Cqe) -> Result<JobOutcome> {
        let ended = match self.link.qp.complete(cqe) {
            Ok(completion) => JobOutcome::Done(completion.cookie),
            Err(CompletionError::Failed(failure)) => self.failed(failure),
            Err(other) => {
                let error = Error::new(ErrorKind::InvalidValue, other.to_string());
                return Err(error.with_source(other));
            }
        };
        self.in_flight -= 1;
        self.completed = self.completed.wrapping_add(1);
        Ok(ended)
    }

    /// The count of completed requests, while some are in flight.
    pub(super) fn completed(&self) -> Option<u32> {
        (self.in_flight > 0).then_some(self.completed)
    }

    fn failed(&mut self, failure: FailedRequest) -> JobOutcome {
        if self.state == JobQueueState::Works {
            // A responder that refuses a request executes none of those after it. After any other
            // failure the answer to an executed add may be lost: it must not be executed twice. A
            // wait changes nothing.
            let refused = matches!(
                failure.status,
                WcStatus::RemoteAccess | WcStatus::RemoteInvalidRequest | WcStatus::RemoteOperation
            );
            self.state = if refused || self.of_waits {
                JobQueueState::Returns
            } else {
                JobQueueState::Loses
            };
        }
        match (failure.status, self.state) {
            (WcStatus::Flushed, JobQueueState::Returns) => JobOutcome::Returned(failure),
            _ => JobOutcome::Failed(failure),
        }
    }

    /// Posts the held jobs again, once the device has flushed all requests.
    pub(super) fn resume(&mut self, word: &CounterWord) -> Result<()> {
        if self.state == JobQueueState::Works || self.in_flight > 0 {
            return Ok(());
        }
        self.link.recover(word)?;
        self.state = JobQueueState::Works;
        let held = std::mem::take(&mut self.held);
        let mut posted = 0;
        let result = held.iter().try_for_each(|request| {
            self.post(word, request)?;
            posted += 1;
            Ok(())
        });
        self.held = held;
        self.held.drain(..posted);
        result
    }

    /// Fails if the queue pair is in the error state.
    pub(super) fn check(&self) -> std::result::Result<(), verbless_queue::DeviceError> {
        self.link.qp.check()
    }

    /// Takes the requests back from the device. Its completions can still be read.
    pub(super) fn take_back(&mut self) -> Result<()> {
        match self.link.qp.to_reset() {
            // A removed device does nothing.
            Err(error) if error.kind() != LowerKind::DeviceGone => Err(error.into()),
            _ => Ok(()),
        }
    }
}
