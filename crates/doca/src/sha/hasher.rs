//! The hashes of one work queue.

use std::collections::VecDeque;

use super::done::HashDone;
use super::function::{Algorithm, HashState, Partial};
use crate::buffer::Buf;
use crate::context::device_cq::DeviceCq;
use crate::context::engine::Engine;
use crate::context::event::{Done, Event, Tag};
use crate::context::failure::JobError;
use crate::context::job_type::JobType;
use crate::error::{ErrorKind, Result};
use crate::types::UserData;

/// Bytes that one call of `progress_retrieve` hashes: about a tenth of a millisecond.
const STEP: u64 = 64 << 10;

/// A job in flight.
pub(super) struct RunningHash {
    pub(super) tag: Tag,
    pub(super) kind: JobType,
    pub(super) user_data: UserData,
    pub(super) algorithm: Algorithm,
    pub(super) state: HashRef,
    pub(super) source: Buf,
    pub(super) destination: Option<Buf>,
    /// Bytes of the source already hashed.
    pub(super) done: u64,
}

/// A job's hash function: its own, or for a partial hash that of its session.
#[expect(clippy::large_enum_variant, reason = "a job allocates nothing")]
pub(super) enum HashRef {
    Whole(HashState),
    Part(Box<HashState>),
}

impl HashRef {
    fn get(&mut self) -> &mut HashState {
        match self {
            Self::Whole(state) => state,
            Self::Part(state) => state,
        }
    }
}

impl RunningHash {
    /// Hashes a step; true when all is hashed.
    fn step(&mut self) -> std::result::Result<bool, ErrorKind> {
        let mut skip = self.done;
        let mut bytes = [0; 4096];
        let mut budget = STEP;
        for link in self.source.chain() {
            let (address, length) = link.data();
            if skip >= length {
                skip -= length;
                continue;
            }
            let mut at = std::mem::take(&mut skip);
            while at < length && budget > 0 {
                let now = (length - at).min(bytes.len() as u64).min(budget);
                let part = &mut bytes[..now as usize];
                link.read(address + at, part).map_err(|error| error.kind())?;
                self.state.get().update(part);
                at += now;
                self.done += now;
                budget -= now;
            }
            if at < length {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn end(mut self, result: std::result::Result<(), JobError>) -> Done {
        let mut result = result;
        if result.is_ok()
            && let Some(into) = &mut self.destination
        {
            let mut digest = [0; 64];
            let length = self.state.get().finish(&mut digest);
            if let Err(error) = into.append(&digest[..length]) {
                result = Err(JobError::unposted(&error));
            }
        }
        let algorithm = self.algorithm;
        // A half-hashed part cannot be hashed again: its digest would be wrong.
        let failed_midway = result.is_err() && self.done > 0;
        let session = match self.state {
            HashRef::Part(state) if !failed_midway => Some(Partial { algorithm, state }),
            HashRef::Part(_) | HashRef::Whole(_) => None,
        };
        let event = Event::Sha(HashDone {
            user_data: self.user_data,
            job_type: self.kind,
            result,
            source: self.source,
            destination: self.destination,
            session,
        });
        Done { tag: self.tag, event }
    }
}

/// The jobs of one work queue, executed in order.
pub struct Hasher {
    jobs: VecDeque<RunningHash>,
    aborted: bool,
}

impl Hasher {
    /// Creates a hasher for `depth` jobs.
    pub(super) fn new(depth: u32) -> Self {
        Self { jobs: VecDeque::with_capacity(depth as usize), aborted: false }
    }

    /// Whether it was aborted and accepts no more jobs.
    pub(super) fn is_aborted(&self) -> bool {
        self.aborted
    }

    /// Accepts a checked job.
    pub(super) fn push(&mut self, job: RunningHash) {
        self.jobs.push_back(job);
    }
}

impl Engine for Hasher {
    fn progress(&mut self, _device_cq: &mut DeviceCq) -> Option<Done> {
        let job = self.jobs.front_mut()?;
        let result = match if self.aborted { Err(ErrorKind::Shutdown) } else { job.step() } {
            Ok(false) => return None,
            Ok(true) => Ok(()),
            Err(kind) => Err(JobError::new(kind)),
        };
        self.jobs.pop_front().map(|job| job.end(result))
    }

    fn has_work(&self) -> bool {
        !self.jobs.is_empty()
    }

    fn in_flight(&self) -> u32 {
        self.jobs.len() as u32
    }

    fn abort(&mut self, _device_cq: &mut DeviceCq) -> Result<()> {
        self.aborted = true;
        Ok(())
    }
}
