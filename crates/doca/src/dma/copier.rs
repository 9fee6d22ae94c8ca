//! The copies of one work queue.
//!
//! The device completes them in order, so they are in a ring: a job is written there once when it
//! begins, and read once when it ends. Most jobs are *simple*: one buffer to one buffer, by one
//! request. Inlined code begins and ends them; everything else is in separate functions. The
//! dataroom of a simple job's destination grows when the job begins, because the program cannot see
//! it before the end; it shrinks again if the job fails.

use std::mem;

use verbless_queue::completion::FailedRequest;
use verbless_queue::{CompletionError, Cqe, Lkey, RequestId, Sge, WcStatus};

use super::done::MemcpyDone;
use super::job::Memcpy;
use super::queue::{CopyQueue, refused};
use super::segments::{MAX_LIST, MAX_SEGMENT_BYTES, check, checked_key, refuse, segments};
use crate::buffer::{Buf, KeyedRange};
use crate::context::core::CtxId;
use crate::context::device_cq::{self, DeviceCq, DeviceCqLookup};
use crate::context::engine::{EndedJobs, Engine, EngineArgs};
use crate::context::event::{Done, Event, EventSlot, Tag};
use crate::context::failure::JobError;
use crate::device::Dev;
use crate::error::{Error, ErrorKind, Refused, Result};
use crate::types::UserData;

/// Maximum number of requests per job: a request has one SGE of source and of destination.
const MAX_REQUESTS: u32 = 2 * MAX_LIST + 2;
const _: () = assert!(MAX_REQUESTS <= device_cq::MAX_JOB_CQES, "each request may have a CQE");
/// The id of no device; it also differs from 0, the reader in [`CachedKey::UNKNOWN`].
///
/// [`CachedKey::UNKNOWN`]: crate::memory::CachedKey::UNKNOWN
const NO_DEVICE: u64 = u64::MAX;
/// Maximum bytes of a request.
const MAX_REQUEST_BYTES: u32 = 0x7fff_ffff;

/// The jobs of a work queue, and the device's queue that executes them.
pub struct Copier {
    /// `device` while simple jobs can be posted at once; else [`NO_DEVICE`].
    fast_device: u64,
    /// The device's id; [`NO_DEVICE`] if its maximum copy is shorter than a buffer with a cached
    /// key may be.
    device: u64,
    /// The numbers of the next job and of the first in flight, modulo 2^32. `jobs[number & mask]`
    /// holds a job in between; the length of `jobs` is a power of two, `mask + 1`.
    next: u32,
    first: u32,
    jobs: Box<[JobSlot]>,
    mask: u32,
    /// Maximum bytes of a simple job.
    max_simple_bytes: u64,
    queue: CopyQueue,
    /// Maximum bytes of a job.
    max_bytes: u64,
    /// For each slot: the number of its job's requests beside the first; 0 for a simple job.
    extra_requests: Box<[u32]>,
    /// The sum of `extra_requests` over all jobs in flight.
    extra_in_flight: u32,
    state: CopierState,
    /// Set when the device has released all jobs: the index of the completion queue at that time.
    /// `None`: the device flushes the jobs one by one. Meaningless while jobs run.
    released_at: Option<u32>,
    /// The number of the first job that was not posted.
    posted: u32,
    /// The first failure of the job whose last request has not completed.
    failure: Option<FailedRequest>,
    /// The number of the first job when the device's queue last failed.
    returned: Option<u32>,
    /// The error of jobs that end unexecuted.
    shutdown_error: JobError,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopierState {
    Running,
    /// A job failed: the device has released those after it, and they are posted again when all
    /// earlier CQEs have been read.
    Failed,
    /// Final: all jobs end.
    Aborted,
}

/// A job in flight.
struct RunningCopy {
    source: Buf,
    destination: Buf,
    user_data: UserData,
    tag: Tag,
}

/// The slot of a job in flight, or kept. Its buffers are optional, instead of the whole job: an
/// empty optional job would be moved, too.
#[derive(Default)]
struct JobSlot {
    source: Option<Buf>,
    destination: Option<Buf>,
    user_data: UserData,
    tag: Tag,
}

impl JobSlot {
    /// Puts a job into an empty slot.
    #[inline(always)]
    fn put(&mut self, job: RunningCopy) {
        let RunningCopy { source, destination, user_data, tag } = job;
        // The slot is empty, so this leaks nothing.
        mem::forget((self.source.take(), self.destination.take()));
        (self.source, self.destination) = (Some(source), Some(destination));
        (self.user_data, self.tag) = (user_data, tag);
    }

    /// Takes the job out.
    #[inline(always)]
    fn take(&mut self) -> Option<RunningCopy> {
        match (self.source.take(), self.destination.take()) {
            (Some(source), Some(destination)) => {
                Some(RunningCopy { source, destination, user_data: self.user_data, tag: self.tag })
            }
            // Both are `None`.
            none => {
                mem::forget(none);
                None
            }
        }
    }
}

/// Flags in a request's cookie above the job's number; none if the job is simple.
const LAST: u64 = 1 << 32;
const MORE_FOLLOW: u64 = 2 << 32;

impl Copier {
    pub(super) fn new(args: &mut EngineArgs<'_>) -> Result<Self> {
        let depth = args.depth;
        let queue = CopyQueue::new(args, depth.max(MAX_REQUESTS))?;
        let max_bytes = super::queue::max_bytes(&args.device_cq.dev);
        let slots = depth.next_power_of_two();
        let device =
            if max_bytes < MAX_SEGMENT_BYTES { NO_DEVICE } else { args.device_cq.dev.id() };
        Ok(Self {
            fast_device: device,
            device,
            next: 0,
            first: 0,
            jobs: (0..slots).map(|_| JobSlot::default()).collect(),
            mask: slots - 1,
            max_simple_bytes: max_bytes.min(MAX_SEGMENT_BYTES),
            queue,
            max_bytes,
            extra_requests: (0..slots).map(|_| 0).collect(),
            extra_in_flight: 0,
            state: CopierState::Running,
            released_at: None,
            posted: 0,
            failure: None,
            returned: None,
            shutdown_error: JobError::new(ErrorKind::Shutdown),
        })
    }

    /// The slot of a job.
    #[inline(always)]
    fn slot(&self, number: u32) -> usize {
        (number & self.mask) as usize
    }

    /// Begins a job if it is known to be simple and can begin. The work queue has ensured a slot
    /// for it; a job that does not begin is kept in that slot.
    #[inline(always)]
    pub(super) fn begin_simple(&mut self, job: Memcpy, tag: Tag) -> bool {
        let Memcpy { user_data, source, destination, .. } = job;
        let number = self.next;
        let mut job = RunningCopy { source, destination, user_data, tag };
        let Some(from) = job.source.readable_by(self.fast_device) else { return self.put(job) };
        let Some(to) = job.destination.writable_by(self.fast_device) else { return self.put(job) };
        // No buffer is long enough to truncate this.
        let length = from.length as u32;
        if from.length > to.length || length.wrapping_sub(1) >= MAX_REQUEST_BYTES {
            return self.put(job);
        }
        let Some(slot) = self.jobs.get_mut((number & self.mask) as usize) else {
            return self.put(job);
        };
        job.destination.grow_first(from.length);
        slot.put(job);
        // Read after the stores, so that they need not be kept in registers.
        let lkey = |buffer: &Option<Buf>| buffer.as_ref().map_or(Lkey(0), Buf::lkey);
        let keys = (lkey(&slot.source), lkey(&slot.destination));
        self.next = number.wrapping_add(1);
        let from = Sge::new(from.address, length, keys.0);
        match self.queue.copy((from, Sge::new(to.address, length, keys.1)), number.into()) {
            Ok(_) => true,
            Err(_) => self.take_back(from.length),
        }
    }

    /// Puts a job that has not begun into the next slot.
    #[inline(always)]
    fn put(&mut self, job: RunningCopy) -> bool {
        let RunningCopy { source, destination, user_data, tag } = job;
        self.put_parts(source, destination, user_data, tag)
    }

    /// Puts a job into the next slot; its parts are passed in registers.
    #[cold]
    #[inline(never)]
    fn put_parts(&mut self, source: Buf, destination: Buf, user_data: UserData, tag: Tag) -> bool {
        let at = self.slot(self.next);
        self.jobs[at].put(RunningCopy { source, destination, user_data, tag });
        false
    }

    /// The post of the last job failed: moves it into the slot of the next one.
    #[cold]
    #[inline(never)]
    fn take_back(&mut self, length: u32) -> bool {
        self.next = self.next.wrapping_sub(1);
        let at = self.slot(self.next);
        if let Some(destination) = &mut self.jobs[at].destination {
            destination.shrink_first(length.into());
        }
        false
    }

    /// Begins the kept job in the next slot, which may not be simple, or returns why not.
    #[cold]
    #[inline(never)]
    pub(super) fn begin_kept(
        &mut self,
        ctx: CtxId,
        device_cq: DeviceCqLookup<'_>,
    ) -> std::result::Result<(), Refused<Memcpy>> {
        let at = self.slot(self.next);
        let RunningCopy { source, destination, user_data, tag } =
            self.jobs[at].take().expect("the slot has a job");
        self.begin_other(Memcpy { ctx, user_data, source, destination }, tag, device_cq.get())
    }

    /// Begins any job.
    fn begin_other(
        &mut self,
        job: Memcpy,
        tag: Tag,
        device_cq: &mut DeviceCq,
    ) -> std::result::Result<(), Refused<Memcpy>> {
        match self.post_checked(&job, device_cq) {
            Ok(requests) => {
                let (number, at) = (self.next, self.slot(self.next));
                let simple = self.is_simple(&job.source, &job.destination);
                let grown = if simple { job.source.data_len() } else { 0 };
                let Memcpy { user_data, source, mut destination, .. } = job;
                destination.grow_first(grown);
                self.jobs[at].put(RunningCopy { source, destination, user_data, tag });
                self.extra_requests[at] = requests - 1;
                self.extra_in_flight += requests - 1;
                self.next = number.wrapping_add(1);
                Ok(())
            }
            Err(error) => Err(Refused::new(error, job)),
        }
    }

    /// Posts a job, unless the device's queue is stopped; then it is posted with the others.
    /// Returns its number of requests.
    fn post_checked(&mut self, job: &Memcpy, device_cq: &mut DeviceCq) -> Result<u32> {
        if self.state == CopierState::Aborted {
            return Err(shut_down(&self.shutdown_error));
        }
        let ends = (&job.source, &job.destination);
        let (bytes, requests) = check(ends, &device_cq.dev, self.max_bytes)?;
        // The next job of these buffers is simple.
        ends.0.cache_key(checked_key(ends.0.first(), &device_cq.dev, false)?);
        ends.1.cache_key(checked_key(ends.1.first(), &device_cq.dev, true)?);
        let taken = self.in_flight() + self.extra_in_flight;
        if taken + requests > self.queue.capacity() || !device_cq.take_room(requests - 1) {
            let text = "the device's queue of requests is full: retrieve some jobs first";
            return Err(refuse(ErrorKind::Again, text));
        }
        if self.state == CopierState::Running
            && let Err(error) = self.post(self.next, ends, bytes, &device_cq.dev)
        {
            device_cq.spare.release(requests - 1);
            return Err(error);
        }
        Ok(requests)
    }

    /// Whether a job of these buffers is simple, provided that it is valid.
    fn is_simple(&self, source: &Buf, destination: &Buf) -> bool {
        let alone = source.first().next().is_none() && destination.first().next().is_none();
        alone && source.data_len().wrapping_sub(1) < self.max_simple_bytes
    }

    /// Posts the requests of a job, all or none. Its destination has not grown.
    fn post(
        &mut self,
        number: u32,
        (source, destination): (&Buf, &Buf),
        bytes: u64,
        dev: &Dev,
    ) -> Result<()> {
        let number = u64::from(number);
        if bytes == 0 {
            return self.queue.nop(number | LAST).map(drop).map_err(refused);
        }
        let simple = self.is_simple(source, destination);
        let mut left = bytes;
        self.queue.copy_batch(segments(source, destination, bytes).map(|segment| {
            left -= segment.length;
            let from = checked_key(segment.source, dev, false)?.lkey;
            let to = checked_key(segment.destination, dev, true)?.lkey;
            let from = KeyedRange { address: segment.from, length: segment.length, lkey: from };
            let to = KeyedRange { address: segment.to, length: segment.length, lkey: to };
            let cookie = match (simple, left) {
                (true, _) => number,
                (false, 0) => number | LAST,
                (false, _) => number | MORE_FOLLOW,
            };
            Ok((ends(from, to), cookie))
        }))
    }

    /// Takes the first job out.
    #[inline(always)]
    fn take_first(&mut self) -> Option<RunningCopy> {
        let at = self.slot(self.first);
        let job = self.jobs.get_mut(at)?.take()?;
        self.first = self.first.wrapping_add(1);
        Some(job)
    }

    /// The event of the first job, done or failed.
    fn end(
        &mut self,
        result: std::result::Result<(), JobError>,
        spare: &mut device_cq::SpareCqEntries,
    ) -> Option<Done> {
        let extra = mem::take(&mut self.extra_requests[self.slot(self.first)]);
        self.extra_in_flight -= extra;
        match self.released_at {
            // The CQEs of its other requests may be unread.
            Some(index) if self.state != CopierState::Running => {
                spare.release_after_poll(extra, index)
            }
            _ => spare.release(extra),
        }
        let mut job = self.take_first()?;
        let simple = self.is_simple(&job.source, &job.destination);
        match (simple, result) {
            (true, Ok(())) | (false, Err(_)) => {}
            (true, Err(_)) => job.destination.shrink_first(job.source.data_len()),
            (false, Ok(())) => job.destination.grow(job.source.chain_data_len()),
        }
        Some(done(job, result))
    }

    /// Whether a request belongs to the job that ends next.
    fn is_of_first(&self, cookie: u64) -> bool {
        cookie as u32 == self.first && self.first != self.next
    }

    /// Handles a failed request.
    fn failed(&mut self, failure: FailedRequest, device_cq: &mut DeviceCq) -> Result<Option<Done>> {
        let is_flushed = failure.status == WcStatus::Flushed;
        if self.state != CopierState::Running && self.released_at.is_some() && is_flushed {
            // The request belongs to a released job, which is posted again.
            return Ok(None);
        }
        if !self.is_of_first(failure.cookie) {
            return Err(out_of_order(failure.cookie as u32, self.first));
        }
        if self.state == CopierState::Running {
            self.halt(CopierState::Failed, self.next, device_cq);
            // A flushed request without a failed one: the queue failed by itself. If that repeats
            // at the same job, the job is the cause.
            let again = self.returned.replace(self.first) == Some(self.first);
            if is_flushed && !again && self.released_at.is_some() {
                return Ok(None);
            }
        }
        let first = *self.failure.get_or_insert(failure);
        if failure.cookie & MORE_FOLLOW != 0 && self.released_at.is_none() {
            return Ok(None);
        }
        self.failure = None;
        let why = match (self.state, first.status) {
            (CopierState::Aborted, WcStatus::Flushed) => self.shutdown_error,
            _ => first.into(),
        };
        Ok(self.end(Err(why), &mut device_cq.spare))
    }

    /// Takes the jobs back from the device, which has those before `posted`. If that fails, they
    /// end when the device flushes them: its queue has failed, and does nothing else.
    fn halt(&mut self, state: CopierState, posted: u32, device_cq: &DeviceCq) {
        (self.state, self.posted, self.fast_device) = (state, posted, NO_DEVICE);
        self.released_at = Some(device_cq.cq.consumer_index());
        if let Err(error) = self.queue.take_back() {
            self.released_at = None;
            self.fail_all(&error);
        }
    }

    /// Resumes after the device has released all jobs: posts the unexecuted ones again.
    fn recover(&mut self, device_cq: &mut DeviceCq) {
        if let Err(error) = self.queue.recover(&device_cq.dev) {
            return self.fail_all(&error);
        }
        let mut posted = self.first;
        while posted != self.next {
            if let Err(error) = self.repost(posted, &device_cq.dev) {
                self.halt(CopierState::Aborted, posted, device_cq);
                return self.fail_all(&error);
            }
            posted = posted.wrapping_add(1);
        }
        self.state = CopierState::Running;
        self.fast_device = self.device;
    }

    fn repost(&mut self, number: u32, dev: &Dev) -> Result<()> {
        let at = self.slot(number);
        // Each slot from the first job to the next one has a job.
        let Some(mut job) = self.jobs[at].take() else { return Ok(()) };
        let simple = self.is_simple(&job.source, &job.destination);
        let bytes = job.source.chain_data_len();
        if simple {
            job.destination.shrink_first(bytes);
        }
        let posted = self.post(number, (&job.source, &job.destination), bytes, dev);
        if simple {
            job.destination.grow_first(bytes);
        }
        self.jobs[at].put(job);
        posted
    }

    /// Rejects further jobs, and ends those in flight with this error.
    fn fail_all(&mut self, why: &Error) {
        self.state = CopierState::Aborted;
        self.shutdown_error = JobError::unposted(why);
    }
}

/// The error for a job that is submitted after the context was aborted.
#[cold]
fn shut_down(shutdown_error: &JobError) -> Error {
    let text = match shutdown_error.message() {
        None => "the context was aborted on this work queue: remove it".into(),
        Some(why) => format!(
            "the context stopped on this work queue, because its queue on the device could not \
             recover ({why}): remove it, and add it again when the cause is fixed"
        ),
    };
    Error::new(ErrorKind::Shutdown, text)
}

/// The source and destination SGE of a request that copies all bytes of `from`.
#[inline(always)]
fn ends(from: KeyedRange, to: KeyedRange) -> (Sge, Sge) {
    let length = from.length as u32;
    (Sge::new(from.address, length, from.lkey), Sge::new(to.address, length, to.lkey))
}

#[inline(always)]
fn done(job: RunningCopy, result: std::result::Result<(), JobError>) -> Done {
    let RunningCopy { source, destination, user_data, tag } = job;
    Done { tag, event: Event::Dma(MemcpyDone { user_data, result, source, destination }) }
}

impl Engine for Copier {
    const WORKS: bool = false;

    #[inline(always)]
    fn complete_success(&mut self, request: RequestId) -> Option<Done> {
        // Only a simple job has nothing but its number in the cookie.
        if !self.queue.try_complete(request, self.first.into()) {
            return None;
        }
        self.take_first().map(|job| done(job, Ok(())))
    }

    fn complete(
        &mut self,
        cqe: Cqe,
        device_cq: &mut DeviceCq,
        into: &mut EventSlot,
    ) -> Result<Option<Tag>> {
        let ended = match self.queue.complete(cqe) {
            Ok(cookie) if !self.is_of_first(cookie) => {
                return Err(out_of_order(cookie as u32, self.first));
            }
            // The job is done with its last request.
            Ok(cookie) if cookie & MORE_FOLLOW != 0 => None,
            Ok(_) => self.end(Ok(()), &mut device_cq.spare),
            Err(CompletionError::Failed(failure)) => self.failed(failure, device_cq)?,
            Err(other) => {
                let error = Error::new(ErrorKind::InvalidValue, other.to_string());
                return Err(error.with_source(other));
            }
        };
        Ok(ended.map(|done| done.put(into)))
    }

    fn progress(&mut self, device_cq: &mut DeviceCq) -> Option<Done> {
        if !self.has_work() || self.released_at.is_some_and(|index| !device_cq.has_read(index)) {
            return None;
        }
        if self.state == CopierState::Failed {
            self.recover(device_cq);
            return None;
        }
        self.end(Err(self.shutdown_error), &mut device_cq.spare)
    }

    #[inline]
    fn has_work(&self) -> bool {
        match self.state {
            CopierState::Running => false,
            CopierState::Failed => true,
            CopierState::Aborted => {
                let ends = self.released_at.is_some() || self.first == self.posted;
                ends && self.first != self.next
            }
        }
    }

    fn in_flight(&self) -> u32 {
        self.next.wrapping_sub(self.first)
    }

    fn ended(&self) -> EndedJobs {
        EndedJobs([(self.in_flight() > 0).then_some(self.first), None])
    }

    fn abort(&mut self, device_cq: &mut DeviceCq) -> Result<()> {
        match self.state {
            CopierState::Aborted => return Ok(()),
            CopierState::Failed => self.state = CopierState::Aborted,
            CopierState::Running => {
                self.halt(CopierState::Aborted, self.next, device_cq);
                if self.released_at.is_none() {
                    self.queue.flush()?;
                }
            }
        }
        self.shutdown_error = JobError::new(ErrorKind::Shutdown);
        Ok(())
    }

    fn check(&self) -> std::result::Result<(), verbless_queue::DeviceError> {
        self.queue.check()
    }

    fn fail(&mut self, device_cq: &mut DeviceCq, why: &Error) -> Result<()> {
        self.abort(device_cq)?;
        // Jobs that the device was to flush end only if it releases them here.
        if self.released_at.is_none() && self.first != self.next {
            self.queue.take_back()?;
            self.released_at = Some(device_cq.cq.consumer_index());
        }
        self.fail_all(why);
        Ok(())
    }
}

#[cold]
fn out_of_order(number: u32, first: u32) -> Error {
    let text = format!("the device completed copy {number} before copy {first}");
    Error::new(ErrorKind::InvalidValue, text)
}

impl Drop for Copier {
    fn drop(&mut self) {
        if self.in_flight() > 0 && self.queue.take_back().is_err() {
            // The device may still copy: no memory of the jobs may be freed.
            mem::forget(mem::take(&mut self.jobs));
        }
    }
}

#[cfg(test)]
mod tests;
