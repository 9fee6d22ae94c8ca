//! The jobs of a sync event on one work queue.
//!
//! Two queues of the device execute them: one the gets, sets and adds, the other one the waits, so
//! that a wait delays nothing else.

use std::sync::Arc;

use verbless_queue::access::KeyAccess;
use verbless_queue::{Cqe, Region, Sge};

use super::done::SyncEventDone;
use super::job_queue::{JobOutcome, JobQueue, QueuedRequest};
use super::link::LinkOperation;
use super::support;
use super::word::{BYTES, CounterWord};
use crate::context::device_cq::DeviceCq;
use crate::context::engine::{EndedJobs, Engine, EngineArgs};
use crate::context::event::{Done, Event, EventSlot, Tag};
use crate::context::failure::JobError;
use crate::context::job_type::JobType;
use crate::error::{Error, ErrorKind, Result};
use crate::types::UserData;

/// A job in flight, or an empty slot for one.
#[derive(Clone, Copy)]
struct RunningSyncJob {
    in_flight: bool,
    operation: LinkOperation,
    order: u64,
    user_data: UserData,
    tag: Tag,
}

/// The jobs, by their slot, which is the cookie of their request.
pub struct SyncEngine {
    updates: JobQueue,
    /// The queue of waits, if the device supports waits for data.
    waits: Option<JobQueue>,
    jobs: Box<[RunningSyncJob]>,
    free: Vec<u32>,
    /// Count of gets, sets and adds.
    count: u64,
    /// Why the engine accepts no more jobs, and fails those that are not posted.
    shutdown_error: Option<JobError>,
    /// Set when the context was aborted and the device released all jobs: the index of the
    /// completion queue at that time.
    released_at: Option<u32>,
    /// A result word for each job.
    results: Region,
    word: Arc<CounterWord>,
}

impl LinkOperation {
    pub(super) const fn job_type(self) -> JobType {
        match self {
            Self::Get => JobType::SyncEventGet,
            Self::Set(_) => JobType::SyncEventSet,
            Self::Add(_) => JobType::SyncEventAdd,
            Self::WaitGt(_) => JobType::SyncEventWait,
        }
    }
}

impl SyncEngine {
    pub(super) fn new(word: &Arc<CounterWord>, args: &EngineArgs<'_>) -> Result<Self> {
        let depth = args.depth;
        let can_wait = support::check_job(word.dev(), JobType::SyncEventWait).is_ok();
        let (operation, user_data) = (LinkOperation::Get, UserData(0));
        let nothing =
            RunningSyncJob { in_flight: false, operation, order: 0, user_data, tag: Tag::PROGRAM };
        Ok(Self {
            updates: JobQueue::new(word, args, false)?,
            waits: if can_wait { Some(JobQueue::new(word, args, true)?) } else { None },
            jobs: vec![nothing; depth as usize].into(),
            free: (0..depth).rev().collect(),
            count: 0,
            shutdown_error: None,
            released_at: None,
            results: word.domain().region(depth as usize * BYTES, KeyAccess::LOCAL)?,
            word: word.clone(),
        })
    }

    /// Begins a job. The work queue has ensured a slot for it.
    pub(super) fn begin(
        &mut self,
        operation: LinkOperation,
        user_data: UserData,
        tag: Tag,
    ) -> Result<()> {
        if let Some(why) = &self.shutdown_error {
            return Err(shut_down(why));
        }
        let Some(&slot) = self.free.last() else {
            let text =
                "the work queue is full (its depth of jobs is in flight): retrieve some first";
            return Err(Error::plain(ErrorKind::Again, text));
        };
        // Waits are ordered by their thresholds, other jobs by their submission.
        let order = match operation {
            LinkOperation::WaitGt(threshold) => threshold,
            _ => self.count,
        };
        let request = self.request(slot, operation, order);
        let job_queue = match (operation, &mut self.waits) {
            (LinkOperation::WaitGt(_), Some(waits)) => waits,
            (LinkOperation::WaitGt(_), None) => {
                let text = "the device does not wait for data: submit gets, and compare";
                return Err(Error::plain(ErrorKind::NotSupported, text));
            }
            _ => &mut self.updates,
        };
        job_queue.take(&self.word, request)?;
        self.count += 1;
        self.free.pop();
        self.jobs[slot as usize] =
            RunningSyncJob { in_flight: true, operation, order, user_data, tag };
        Ok(())
    }

    fn job_queue(&mut self, of_waits: bool) -> &mut JobQueue {
        match &mut self.waits {
            Some(waits) if of_waits => waits,
            _ => &mut self.updates,
        }
    }

    fn request(&self, slot: u32, operation: LinkOperation, order: u64) -> QueuedRequest {
        let at = self.results.address() + u64::from(slot) * BYTES as u64;
        let into = Sge::new(at, BYTES as u32, self.results.lkey());
        QueuedRequest { slot, operation, into, order }
    }

    /// The value that the device wrote into the result word of a job.
    fn value(&self, slot: usize) -> u64 {
        let mut bytes = [0; BYTES];
        self.results.read_at(slot * BYTES, &mut bytes).expect("each job has a word");
        u64::from_ne_bytes(bytes)
    }

    fn job(&self, cookie: u64) -> Result<RunningSyncJob> {
        self.jobs.get(cookie as usize).copied().ok_or_else(|| {
            let text = format!(
                "the device completed request {cookie} of a sync event, which is not in flight"
            );
            Error::new(ErrorKind::InvalidValue, text)
        })
    }

    fn end(&mut self, cookie: u64, result: std::result::Result<(), JobError>) -> Result<Done> {
        let slot = cookie as usize;
        let RunningSyncJob { operation, user_data, tag, .. } = self.job(cookie)?;
        self.jobs[slot].in_flight = false;
        self.free.push(slot as u32);
        let has_value =
            matches!(operation, LinkOperation::Get | LinkOperation::Add(_)) && result.is_ok();
        let value = has_value.then(|| self.value(slot));
        let job_type = operation.job_type();
        Ok(Done {
            tag,
            event: Event::SyncEvent(SyncEventDone { user_data, job_type, result, value }),
        })
    }
}

impl Engine for SyncEngine {
    const WORKS: bool = false;

    fn complete(
        &mut self,
        cqe: Cqe,
        _device_cq: &mut DeviceCq,
        into: &mut EventSlot,
    ) -> Result<Option<Tag>> {
        let is_wait = self.waits.as_ref().is_some_and(|waits| waits.is(&cqe));
        let ended = self.job_queue(is_wait).complete(cqe)?;
        let (cookie, result) = match ended {
            JobOutcome::Done(cookie) => (cookie, Some(Ok(()))),
            JobOutcome::Returned(failure) if self.shutdown_error.is_none() => {
                let cookie = failure.cookie;
                let RunningSyncJob { operation, order, .. } = self.job(cookie)?;
                let request = self.request(cookie as u32, operation, order);
                self.job_queue(is_wait).hold(request);
                (cookie, None)
            }
            JobOutcome::Failed(failure) | JobOutcome::Returned(failure) => {
                (failure.cookie, Some(Err(failure.into())))
            }
        };
        if self.shutdown_error.is_none() {
            let word = self.word.clone();
            if let Err(error) = self.job_queue(is_wait).resume(&word) {
                self.shutdown_error = Some(JobError::unposted(&error));
            }
        }
        let ended = result.map(|result| self.end(cookie, result)).transpose()?;
        Ok(ended.map(|done| done.put(into)))
    }

    fn progress(&mut self, device_cq: &mut DeviceCq) -> Option<Done> {
        let why = self.shutdown_error?;
        let waits = self.waits.as_mut();
        let held = self.updates.take_held().or_else(|| waits?.take_held());
        let slot = match (held, self.released_at) {
            (Some(held), _) => held.slot.into(),
            (None, Some(index)) if device_cq.has_read(index) => {
                self.jobs.iter().position(|job| job.in_flight)? as u64
            }
            _ => return None,
        };
        self.end(slot, Err(why)).ok()
    }

    fn has_work(&self) -> bool {
        let waits = self.waits.as_ref();
        let has_held = || self.updates.has_held() || waits.is_some_and(JobQueue::has_held);
        let has_jobs = || self.released_at.is_some() && self.in_flight() > 0;
        self.shutdown_error.is_some() && (has_held() || has_jobs())
    }

    fn in_flight(&self) -> u32 {
        (self.jobs.len() - self.free.len()) as u32
    }

    fn ended(&self) -> EndedJobs {
        let waits = self.waits.as_ref().and_then(JobQueue::completed);
        EndedJobs([self.updates.completed(), waits])
    }

    fn abort(&mut self, device_cq: &mut DeviceCq) -> Result<()> {
        if self.released_at.is_none() {
            for job_queue in std::iter::once(&mut self.updates).chain(&mut self.waits) {
                job_queue.take_back()?;
            }
            self.released_at = Some(device_cq.cq.consumer_index());
            self.shutdown_error = Some(JobError::new(ErrorKind::Shutdown));
        }
        Ok(())
    }

    fn check(&self) -> std::result::Result<(), verbless_queue::DeviceError> {
        std::iter::once(&self.updates).chain(&self.waits).try_for_each(JobQueue::check)
    }

    fn fail(&mut self, device_cq: &mut DeviceCq, why: &Error) -> Result<()> {
        self.abort(device_cq)?;
        self.shutdown_error = Some(JobError::unposted(why));
        Ok(())
    }
}

/// The error for a job that is submitted after the context was aborted.
#[cold]
fn shut_down(shutdown_error: &JobError) -> Error {
    let text = match shutdown_error.message() {
        None => "the context was aborted on this work queue: remove it".into(),
        Some(why) => format!(
            "the sync event stopped on this work queue, because its queue on the device could not \
             recover ({why}): remove it, and add it again when the cause is fixed"
        ),
    };
    Error::new(ErrorKind::Shutdown, text)
}
