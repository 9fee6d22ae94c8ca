//! The copies of one work queue.

use std::collections::VecDeque;
use std::mem;

use verbless_queue::completion::Failure;
use verbless_queue::{CompletionError, Cqe, Sge, Status};

use super::queue::CopyQueue;
use super::{MAX_LIST, Memcpy, MemcpyDone, refuse};
use crate::buffer::Buf;
use crate::buffer::Link;
use crate::context::engine::{Engine, Place};
use crate::context::event::{Done, Event, Tag};
use crate::context::failure::JobError;
use crate::context::side::Side;
use crate::error::{Error, ErrorKind, Refused, Result};
use crate::types::AccessFlags;
use crate::types::UserData;

/// Copies that one job may need: a request is of one piece of source and destination each.
const MAX_REQUESTS: u32 = 2 * MAX_LIST + 2;
/// Bytes of one request at most: no SGE has 2 GiB.
const MAX_PIECE: u64 = 1 << 30;

/// The jobs of a work queue, and the device's queue that does them.
pub struct Copier {
    /// `None` only while it is dropped.
    queue: Option<CopyQueue>,
    state: State,
    jobs: Box<[Option<Running>]>,
    /// Indexes of `jobs` that are free.
    free: Vec<u32>,
    /// Requests of the jobs in flight.
    reserved: u32,
    /// Those of them that the device has.
    posted: u32,
    /// Requests that it takes.
    room: u32,
    /// Bytes of a request at most.
    longest: u64,
    /// Jobs that the device flushed because of another one's failure, to be posted again.
    again: VecDeque<u32>,
    /// Jobs that ended without a completion to tell so.
    ended: VecDeque<(u32, JobError)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Works,
    /// A job failed: what the device has is flushed, then it goes on.
    Failed,
    /// For good.
    Aborted,
}

/// A job in flight.
struct Running {
    tag: Tag,
    user_data: UserData,
    source: Buf,
    destination: Buf,
    bytes: u64,
    requests: u32,
    failure: Option<Failure>,
}

/// A request's cookie: the job's index, and whether it is the last one of the job.
const fn cookie(job: u32, last: bool) -> u64 {
    (job as u64) << 1 | last as u64
}

impl Copier {
    pub(super) fn new(place: &mut Place<'_>) -> Result<Self> {
        let depth = place.depth;
        let room = depth.max(MAX_REQUESTS);
        let queue = CopyQueue::new(place, room)?;
        Ok(Self {
            queue: Some(queue),
            state: State::Works,
            jobs: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            reserved: 0,
            posted: 0,
            room,
            longest: super::queue::longest(&place.side.dev),
            again: VecDeque::with_capacity(depth as usize),
            ended: VecDeque::with_capacity(depth as usize),
        })
    }

    #[inline]
    pub(super) fn begin(
        &mut self,
        job: Memcpy,
        side: &mut Side,
    ) -> std::result::Result<(), Refused<Memcpy>> {
        if self.state == State::Aborted {
            let text = "the context was aborted on this work queue: remove it";
            return Err(Refused::new(refuse(ErrorKind::Shutdown, text), job));
        }
        let (bytes, requests) = match self.check(&job, side) {
            Ok(checked) => checked,
            Err(error) => return Err(Refused::new(error, job)),
        };
        let Some(&index) = self.free.last() else {
            let text = "as many copies are in flight as the context takes: retrieve some first";
            return Err(Refused::new(refuse(ErrorKind::Again, text), job));
        };
        if requests > self.room - self.reserved || !side.expect(requests) {
            let text = "the device has as many requests as it takes: retrieve some jobs first";
            return Err(Refused::new(refuse(ErrorKind::Again, text), job));
        }
        if self.state == State::Works {
            if let Err(error) = self.post(index, (&job.source, &job.destination), bytes, side) {
                side.came(requests);
                return Err(Refused::new(error, job));
            }
            self.posted += requests;
        } else {
            // The device's queue stands still: it is posted with the others.
            self.again.push_back(index);
        }
        self.reserved += requests;
        self.free.pop();
        let Memcpy { tag, user_data, source, destination, .. } = job;
        let failure = None;
        self.jobs[index as usize] =
            Some(Running { tag, user_data, source, destination, bytes, requests, failure });
        Ok(())
    }

    /// Bytes and requests of a job, if it can be done.
    #[inline]
    fn check(&self, job: &Memcpy, side: &Side) -> Result<(u64, u32)> {
        let (source, destination) = (&job.source, &job.destination);
        if !source.is_sole() || !destination.is_sole() {
            let text = "a buffer with several references can be in no job: drop the others first";
            return Err(refuse(ErrorKind::InvalidValue, text));
        }
        let (mut bytes, mut room, mut links) = (0, 0, (0, 0));
        for link in source.chain() {
            lkey(link, side, false)?;
            bytes += link.data().1;
            links.0 += 1;
        }
        for link in destination.chain() {
            lkey(link, side, true)?;
            room += link.tail().1;
            links.1 += 1;
        }
        if bytes > room {
            let text = "the destination's tailroom is shorter than the source's data";
            return Err(refuse(ErrorKind::InvalidValue, text));
        }
        if bytes > self.longest {
            let text = "the source has more data than the device copies at a time: max_buf_size";
            return Err(refuse(ErrorKind::InvalidValue, text));
        }
        if links == (1, 1) && bytes <= MAX_PIECE {
            return Ok((bytes, 1));
        }
        if links.0 > MAX_LIST || links.1 > MAX_LIST {
            let text = "a chain has more buffers than a copy takes: max_list_buf_num_elem";
            return Err(refuse(ErrorKind::InvalidValue, text));
        }
        Ok((bytes, (pieces(source, destination, bytes).count() as u32).max(1)))
    }

    /// Posts the requests of a job.
    #[inline]
    fn post(
        &mut self,
        index: u32,
        (source, destination): (&Buf, &Buf),
        bytes: u64,
        side: &Side,
    ) -> Result<()> {
        let queue = self.queue.as_mut().expect("only one that is dropped has no queue");
        if bytes == 0 {
            return queue.nothing(cookie(index, true));
        }
        let mut left = bytes;
        for piece in pieces(source, destination, bytes) {
            left -= piece.length;
            let from = lkey(piece.source, side, false)?;
            let to = lkey(piece.destination, side, true)?;
            let length = piece.length as u32;
            queue.copy(
                Sge::new(piece.from, length, from),
                Sge::new(piece.to, length, to),
                cookie(index, left == 0),
                left == 0,
            )?;
        }
        Ok(())
    }

    /// The event of a job that ended.
    #[inline]
    fn end(
        &mut self,
        index: u32,
        result: std::result::Result<(), JobError>,
        side: &mut Side,
    ) -> Option<Done> {
        let Running { tag, user_data, source, mut destination, bytes, requests, .. } =
            self.jobs.get_mut(index as usize)?.take()?;
        self.free.push(index);
        self.reserved -= requests;
        side.came(requests);
        if result.is_ok() {
            destination.grow(bytes);
        }
        let event = Event::Dma(MemcpyDone { user_data, result, source, destination });
        Some(Done { tag, event })
    }

    /// What a failed request means.
    #[cold]
    fn failed(&mut self, failure: Failure, side: &mut Side) -> Option<Done> {
        let (index, last) = ((failure.cookie >> 1) as u32, failure.cookie & 1 == 1);
        if self.state == State::Works {
            self.state = State::Failed;
        }
        let job = self.jobs.get_mut(index as usize)?.as_mut()?;
        let first = *job.failure.get_or_insert(failure);
        if !last {
            return None;
        }
        self.posted -= job.requests;
        let event = if first.status == Status::Flushed && self.state == State::Failed {
            job.failure = None;
            self.again.push_back(index);
            None
        } else {
            self.end(index, Err(first.into()), side)
        };
        if self.posted == 0 && self.state == State::Failed {
            self.recover(side);
        }
        event
    }

    /// The device has nothing of ours: goes on with what it flushed.
    fn recover(&mut self, side: &mut Side) {
        let queue = self.queue.as_mut().expect("only one that is dropped has no queue");
        if queue.recover(&side.dev).is_err() {
            self.state = State::Aborted;
            self.give_up();
            return;
        }
        self.state = State::Works;
        while let Some(index) = self.again.pop_front() {
            let Some(job) = self.jobs[index as usize].take() else { continue };
            let (requests, bytes) = (job.requests, job.bytes);
            let posted = self.post(index, (&job.source, &job.destination), bytes, side);
            self.jobs[index as usize] = Some(job);
            match posted {
                Ok(()) => self.posted += requests,
                Err(error) => {
                    self.ended.push_back((index, JobError::new(error.kind())));
                }
            }
        }
    }

    /// Ends the jobs that the device does not have.
    fn give_up(&mut self) {
        let error = JobError::new(ErrorKind::Shutdown);
        self.ended.extend(self.again.drain(..).map(|index| (index, error)));
    }
}

impl Engine for Copier {
    #[inline]
    fn complete(&mut self, cqe: Cqe, side: &mut Side) -> Result<Option<Done>> {
        let queue = self.queue.as_mut().expect("only one that is dropped has no queue");
        match queue.complete(cqe) {
            Ok(cookie) => {
                let index = (cookie >> 1) as u32;
                let requests = match self.jobs.get(index as usize) {
                    Some(Some(job)) => job.requests,
                    _ => return Ok(None),
                };
                self.posted -= requests;
                Ok(self.end(index, Ok(()), side))
            }
            Err(CompletionError::Failed(failure)) => Ok(self.failed(failure, side)),
            Err(other) => {
                Err(Error::new(ErrorKind::InvalidValue, other.to_string()).with_source(other))
            }
        }
    }

    fn progress(&mut self, side: &mut Side) -> Option<Done> {
        let (index, error) = self.ended.pop_front()?;
        self.end(index, Err(error), side)
    }

    #[inline]
    fn has_work(&self) -> bool {
        !self.ended.is_empty()
    }

    fn in_flight(&self) -> u32 {
        (self.jobs.len() - self.free.len()) as u32
    }

    fn abort(&mut self) -> Result<()> {
        if self.state != State::Aborted {
            self.queue.as_mut().expect("only one that is dropped has no queue").stop()?;
            self.state = State::Aborted;
            self.give_up();
        }
        Ok(())
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        let Some(queue) = self.queue.take() else { return };
        if queue.destroy().is_err() && self.posted > 0 {
            // The device may still copy: nothing of the jobs may be freed.
            mem::forget(mem::take(&mut self.jobs));
        }
    }
}

/// The key under which the device reaches a buffer, if the job may have it.
#[inline]
fn lkey(link: Link<'_>, side: &Side, written: bool) -> Result<verbless_queue::Lkey> {
    let chunk = link.chunk();
    let writable = match chunk.memory() {
        Some(_) => chunk.access().is_local_write(),
        None => chunk.access().contains(AccessFlags::DPU_READ_WRITE),
    };
    if written && !writable {
        let text = "the map of the destination may not be written: give it LOCAL_READ_WRITE, or \
                    DPU_READ_WRITE before it is exported";
        return Err(refuse(ErrorKind::NotPermitted, text));
    }
    let Some(key) = chunk.key(&side.dev) else {
        let text = "the map of a buffer does not have the context's device: add it to the map";
        return Err(refuse(ErrorKind::NotPermitted, text));
    };
    key.lkey().ok_or_else(|| {
        let text = "DMA reaches memory of this machine and of its host; this is a peer's: use RDMA";
        refuse(ErrorKind::NotPermitted, text)
    })
}

/// A piece of a copy, from one buffer to one buffer.
struct Piece<'b> {
    source: Link<'b>,
    destination: Link<'b>,
    from: u64,
    to: u64,
    length: u64,
}

/// The pieces of a copy of `bytes`, none of them empty.
#[inline]
fn pieces<'b>(
    source: &'b Buf,
    destination: &'b Buf,
    bytes: u64,
) -> impl Iterator<Item = Piece<'b>> {
    let (mut from, mut to) = (source.first(), destination.first());
    let (mut taken, mut put, mut left) = (0, 0, bytes);
    std::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        // What is left fits, so there is a next one whenever one is used up.
        while taken == from.data().1 {
            (from, taken) = (from.next()?, 0);
        }
        while put == to.tail().1 {
            (to, put) = (to.next()?, 0);
        }
        let length = (from.data().1 - taken).min(to.tail().1 - put).min(left).min(MAX_PIECE);
        let piece = Piece {
            source: from,
            destination: to,
            from: from.data().0 + taken,
            to: to.tail().0 + put,
            length,
        };
        (taken, put, left) = (taken + length, put + length, left - length);
        Some(piece)
    })
}
