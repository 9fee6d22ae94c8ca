//! The jobs of a sync event on one work queue.
//!
//! Two queues of the device do them: one the gets, sets and adds, the other one the waits, so that
//! a wait holds up no more than the waits behind it.

use std::sync::Arc;

use verbless_queue::access::KeyAccess;
use verbless_queue::{CompletionError, Cqe, Region, Sge};

use super::done::SyncEventDone;
use super::link::{Link, Operation};
use super::support;
use super::word::{BYTES, Word};
use crate::context::engine::{Engine, Place};
use crate::context::event::{Done, Event, Tag};
use crate::context::failure::{JobError, JobType};
use crate::context::side::Side;
use crate::error::{Error, ErrorKind, Result};
use crate::types::UserData;

/// A job in flight, or the place of one.
#[derive(Clone, Copy)]
struct Running {
    operation: Operation,
    user_data: UserData,
    tag: Tag,
}

/// One of the device's queues.
struct Lane {
    link: Link,
    in_flight: u32,
    /// A request failed: those behind it are flushed, then the queue starts over.
    failed: bool,
}

/// The jobs, by their place, which is the cookie of their request.
pub struct SyncEngine {
    updates: Lane,
    /// If the device waits for data.
    waits: Option<Lane>,
    jobs: Box<[Running]>,
    free: Vec<u32>,
    aborted: bool,
    /// A queue could not start over.
    broken: bool,
    /// A word for each job.
    results: Region,
    word: Arc<Word>,
}

impl Operation {
    pub(super) const fn job_type(self) -> JobType {
        match self {
            Self::Get => JobType::SyncEventGet,
            Self::Set(_) => JobType::SyncEventSet,
            Self::Add(_) => JobType::SyncEventAdd,
            Self::WaitGt(_) => JobType::SyncEventWait,
        }
    }
}

impl Lane {
    fn new(word: &Word, place: &Place<'_>) -> Result<Self> {
        let link = Link::new(word, &place.side.cq, place.depth, place.user_index)?;
        Ok(Self { link, in_flight: 0, failed: false })
    }
}

impl SyncEngine {
    pub(super) fn new(word: &Arc<Word>, place: &Place<'_>) -> Result<Self> {
        let depth = place.depth;
        let can_wait = support::job(word.dev(), JobType::SyncEventWait).is_ok();
        let nothing =
            Running { operation: Operation::Get, user_data: UserData(0), tag: Tag::PROGRAM };
        Ok(Self {
            updates: Lane::new(word, place)?,
            waits: if can_wait { Some(Lane::new(word, place)?) } else { None },
            jobs: vec![nothing; depth as usize].into(),
            free: (0..depth).rev().collect(),
            aborted: false,
            broken: false,
            results: word.domain().region(depth as usize * BYTES, KeyAccess::LOCAL)?,
            word: word.clone(),
        })
    }

    /// Begins a job. The work queue has seen to it that there is a place for it.
    pub(super) fn begin(
        &mut self,
        operation: Operation,
        user_data: UserData,
        tag: Tag,
    ) -> Result<()> {
        if self.aborted || self.broken {
            let text =
                "the context was aborted on this work queue, or the device failed: remove it";
            return Err(Error::plain(ErrorKind::Shutdown, text));
        }
        let lane = match operation {
            Operation::WaitGt(_) => self.waits.as_mut().ok_or_else(|| {
                let text = "the device does not wait for data: submit gets, and compare";
                Error::plain(ErrorKind::NotSupported, text)
            })?,
            _ => &mut self.updates,
        };
        if lane.failed {
            let text = "the device gives back the jobs behind one that failed: retrieve them first";
            return Err(Error::plain(ErrorKind::Again, text));
        }
        let Some(&slot) = self.free.last() else {
            let text = "as many jobs are in flight as the work queue takes: retrieve some first";
            return Err(Error::plain(ErrorKind::Again, text));
        };
        let at = self.results.address() + u64::from(slot) * BYTES as u64;
        let into = Sge::new(at, BYTES as u32, self.results.lkey());
        lane.link.post(&self.word, operation, into, slot.into())?;
        lane.in_flight += 1;
        self.free.pop();
        self.jobs[slot as usize] = Running { operation, user_data, tag };
        Ok(())
    }

    /// The value that the device put into the word of a job.
    fn value(&self, slot: usize) -> u64 {
        let mut bytes = [0; BYTES];
        self.results.read_at(slot * BYTES, &mut bytes).expect("each job has a word");
        u64::from_ne_bytes(bytes)
    }

    fn end(&mut self, cookie: u64, result: std::result::Result<(), JobError>) -> Result<Done> {
        let slot = cookie as usize;
        let Some(&Running { operation, user_data, tag }) = self.jobs.get(slot) else {
            let text = format!("the device completed request {cookie} of a sync event, unasked");
            return Err(Error::new(ErrorKind::InvalidValue, text));
        };
        self.free.push(slot as u32);
        let has_value = matches!(operation, Operation::Get | Operation::Add(_)) && result.is_ok();
        let value = has_value.then(|| self.value(slot));
        let job_type = operation.job_type();
        Ok(Done {
            tag,
            event: Event::SyncEvent(SyncEventDone { user_data, job_type, result, value }),
        })
    }
}

impl Engine for SyncEngine {
    fn complete(&mut self, cqe: Cqe, _side: &mut Side) -> Result<Option<Done>> {
        let lane = match &mut self.waits {
            Some(waits) if waits.link.qp.qpn() == cqe.qpn() => waits,
            _ => &mut self.updates,
        };
        let (cookie, result) = match lane.link.qp.complete(cqe) {
            Ok(completion) => (completion.cookie, Ok(())),
            Err(CompletionError::Failed(failure)) => {
                lane.failed = true;
                (failure.cookie, Err(failure.into()))
            }
            Err(other) => {
                let error = Error::new(ErrorKind::InvalidValue, other.to_string());
                return Err(error.with_source(other));
            }
        };
        lane.in_flight -= 1;
        if lane.failed && lane.in_flight == 0 && !self.aborted {
            match lane.link.recover(&self.word) {
                Ok(()) => lane.failed = false,
                Err(_) => self.broken = true,
            }
        }
        self.end(cookie, result).map(Some)
    }

    fn in_flight(&self) -> u32 {
        (self.jobs.len() - self.free.len()) as u32
    }

    fn abort(&mut self) -> Result<()> {
        if !self.aborted {
            self.updates.link.qp.to_error()?;
            if let Some(waits) = &mut self.waits {
                waits.link.qp.to_error()?;
            }
            self.aborted = true;
        }
        Ok(())
    }
}
