//! The copies of one work queue.
//!
//! The device completes them in their order. So they are in a ring: a job is written there once
//! when it begins, and read once when it ends. Most are *simple*: one buffer to one buffer, by one
//! request. All that they need to be begun and ended stands in open code, and everything else in
//! functions of its own. The destination of a simple job has grown from the beginning, as nobody
//! sees it before the end; that of one that fails shrinks again.

use std::mem;

use verbless_queue::completion::Failure;
use verbless_queue::{CompletionError, Cqe, PlainCqe, Sge, Status};

use super::done::MemcpyDone;
use super::job::Memcpy;
use super::pieces::{MAX_LIST, MAX_PIECE, check, pieces, reach, refuse};
use super::queue::{CopyQueue, refused};
use crate::buffer::{Buf, Room};
use crate::context::core::CtxId;
use crate::context::engine::{Engine, Place};
use crate::context::event::{Done, Event, Tag};
use crate::context::failure::JobError;
use crate::context::side::{self, Side, SideOf};
use crate::device::Dev;
use crate::error::{Error, ErrorKind, Refused, Result};
use crate::types::UserData;

/// Copies that one job may need: a request is of one piece of source and destination each.
const MAX_REQUESTS: u32 = 2 * MAX_LIST + 2;
/// No device, nor the 0 of a buffer that nobody is known to reach.
const NOBODY: u64 = u64::MAX;
/// Bytes of a request at most.
const MOST: u32 = 0x7fff_ffff;

/// The jobs of a work queue, and the device's queue that does them.
pub struct Copier {
    /// The device's id while simple jobs go to it at once; else [`NOBODY`]. It stays that if the
    /// device takes less at a time than a buffer may have whose reach is known.
    open_to: u64,
    /// The numbers of the next job and of the first in flight, modulo 2^32: what is between them
    /// is at its number modulo the length of `jobs`, a power of two, which is `mask` and 1.
    next: u32,
    first: u32,
    jobs: Box<[Running]>,
    mask: u32,
    /// Bytes of a simple job at most.
    longest_simple: u64,
    queue: CopyQueue,
    /// Bytes of a job at most.
    longest: u64,
    /// By the place of a job that is not simple: requests beside its first.
    more: Box<[u32]>,
    /// The sum of them of all in flight.
    sum_of_more: u32,
    state: State,
    /// The number of the first job that the device was not given; says nothing while it works.
    posted: u32,
    /// Jobs, from the first on, that it gave back undone.
    flushed: u32,
    /// The first failure of the job whose last request has not come.
    failure: Option<Failure>,
    /// Why jobs end that the device does not have.
    given_up: ErrorKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Works,
    /// A job failed: what the device has is flushed, then it goes on.
    Failed,
    /// For good.
    Aborted,
}

/// A job in flight, or the place of one, without buffers.
struct Running {
    source: Buf,
    destination: Buf,
    user_data: UserData,
    tag: Tag,
}

impl Running {
    const fn none() -> Self {
        Self {
            source: Buf::none(),
            destination: Buf::none(),
            user_data: UserData(0),
            tag: Tag::PROGRAM,
        }
    }
}

/// What the cookie of a request has above the job's number: nothing if the job is simple.
const LAST: u64 = 1 << 32;
const MORE_FOLLOW: u64 = 2 << 32;

impl Copier {
    pub(super) fn new(place: &mut Place<'_>) -> Result<Self> {
        let depth = place.depth;
        let queue = CopyQueue::new(place, depth.max(MAX_REQUESTS))?;
        let longest = super::queue::longest(&place.side.dev);
        let places = depth.next_power_of_two();
        Ok(Self {
            open_to: if longest < MAX_PIECE { NOBODY } else { place.side.dev.id() },
            next: 0,
            first: 0,
            jobs: (0..places).map(|_| Running::none()).collect(),
            mask: places - 1,
            longest_simple: longest.min(MAX_PIECE),
            queue,
            longest,
            more: (0..places).map(|_| 0).collect(),
            sum_of_more: 0,
            state: State::Works,
            posted: 0,
            flushed: 0,
            failure: None,
            given_up: ErrorKind::Shutdown,
        })
    }

    /// The place of a job.
    #[inline(always)]
    fn place(&self, number: u32) -> usize {
        (number & self.mask) as usize
    }

    /// Begins a job. The work queue has seen to it that there is a place for it.
    #[inline(always)]
    pub(super) fn begin(
        &mut self,
        job: Memcpy,
        tag: Tag,
        side: SideOf<'_>,
    ) -> std::result::Result<(), Refused<Memcpy>> {
        let Memcpy { ctx, user_data, source, destination } = job;
        match self.begin_simple(source, destination, user_data, tag) {
            true => Ok(()),
            false => self.begin_put(ctx, side),
        }
    }

    /// Begins a job if it is known to be simple and there is nothing against it. If it is not
    /// begun, it is in the place of the next one.
    ///
    /// It is a function of its own, because it needs all registers, and who calls it nothing of
    /// what it needs; so it takes and returns what is passed in registers.
    #[inline(never)]
    fn begin_simple(
        &mut self,
        source: Buf,
        destination: Buf,
        user_data: UserData,
        tag: Tag,
    ) -> bool {
        let number = self.next;
        let mut job = Running { source, destination, user_data, tag };
        let Some(from) = job.source.readable_by(self.open_to) else { return self.put(job) };
        let Some(to) = job.destination.writable_by(self.open_to) else { return self.put(job) };
        // No buffer is so long that this is another number.
        let length = from.length as u32;
        if from.length > to.length || length.wrapping_sub(1) >= MOST {
            return self.put(job);
        }
        let Some(place) = self.jobs.get_mut((number & self.mask) as usize) else {
            return self.put(job);
        };
        job.destination.grow_first(from.length);
        // No buffers are there, so that none are forgotten.
        mem::forget(mem::replace(place, job));
        // Read again behind the stores, so that they need not be kept.
        let keys = (place.source.lkey(), place.destination.lkey());
        self.next = number.wrapping_add(1);
        let from = Sge::new(from.address, length, keys.0);
        match self.queue.copy((from, Sge::new(to.address, length, keys.1)), number.into(), true) {
            Ok(_) => true,
            Err(_) => self.take_back(from.length),
        }
    }

    /// Puts a job that has not begun into the next place.
    #[inline(always)]
    fn put(&mut self, job: Running) -> bool {
        let Running { source, destination, user_data, tag } = job;
        self.put_parts(source, destination, user_data, tag)
    }

    /// The same, with what is passed in registers.
    #[cold]
    #[inline(never)]
    fn put_parts(&mut self, source: Buf, destination: Buf, user_data: UserData, tag: Tag) -> bool {
        let at = self.place(self.next);
        self.jobs[at] = Running { source, destination, user_data, tag };
        false
    }

    /// The device did not take the last job: puts it into the place of the next one.
    #[cold]
    #[inline(never)]
    fn take_back(&mut self, length: u32) -> bool {
        self.next = self.next.wrapping_sub(1);
        let at = self.place(self.next);
        self.jobs[at].destination.shrink_first(length.into());
        false
    }

    /// Begins the job in the next place, which may not be simple, or tells why not.
    #[cold]
    #[inline(never)]
    fn begin_put(
        &mut self,
        ctx: CtxId,
        side: SideOf<'_>,
    ) -> std::result::Result<(), Refused<Memcpy>> {
        let at = self.place(self.next);
        let Running { source, destination, user_data, tag } =
            mem::replace(&mut self.jobs[at], Running::none());
        self.begin_other(Memcpy { ctx, user_data, source, destination }, tag, side.get())
    }

    /// Begins whatever job.
    fn begin_other(
        &mut self,
        job: Memcpy,
        tag: Tag,
        side: &mut Side,
    ) -> std::result::Result<(), Refused<Memcpy>> {
        match self.post_checked(&job, side) {
            Ok(requests) => {
                let (number, at) = (self.next, self.place(self.next));
                let simple = self.is_simple(&job.source, &job.destination);
                let grown = if simple { job.source.data_len() } else { 0 };
                let Memcpy { user_data, source, mut destination, .. } = job;
                destination.grow_first(grown);
                self.jobs[at] = Running { source, destination, user_data, tag };
                self.more[at] = requests - 1;
                self.sum_of_more += requests - 1;
                self.next = number.wrapping_add(1);
                Ok(())
            }
            Err(error) => Err(Refused::new(error, job)),
        }
    }

    /// Posts a job unless the device's queue stands still; then it is posted with the others.
    /// Returns how many requests it is of.
    fn post_checked(&mut self, job: &Memcpy, side: &mut Side) -> Result<u32> {
        if self.state == State::Aborted {
            let text = "the context was aborted on this work queue: remove it";
            return Err(refuse(ErrorKind::Shutdown, text));
        }
        let ends = (&job.source, &job.destination);
        let (bytes, requests) = check(ends, &side.dev, self.longest)?;
        // The next time they are known.
        ends.0.remember(reach(ends.0.first(), &side.dev, false)?);
        ends.1.remember(reach(ends.1.first(), &side.dev, true)?);
        let taken = self.in_flight() + self.sum_of_more;
        if taken + requests > self.queue.capacity() || !side.room.take(requests - 1) {
            let text = "the device has as many requests as it takes: retrieve some jobs first";
            return Err(refuse(ErrorKind::Again, text));
        }
        if self.state == State::Works
            && let Err(error) = self.post(self.next, ends, bytes, &side.dev)
        {
            side.room.give(requests - 1);
            return Err(error);
        }
        Ok(requests)
    }

    /// Whether a job of these buffers is simple, if it can be done.
    fn is_simple(&self, source: &Buf, destination: &Buf) -> bool {
        let alone = source.first().next().is_none() && destination.first().next().is_none();
        alone && source.data_len().wrapping_sub(1) < self.longest_simple
    }

    /// Posts the requests of a job. Its destination has not grown.
    fn post(
        &mut self,
        number: u32,
        (source, destination): (&Buf, &Buf),
        bytes: u64,
        dev: &Dev,
    ) -> Result<()> {
        let number = u64::from(number);
        if bytes == 0 {
            return self.queue.nothing(number | LAST).map(drop).map_err(refused);
        }
        let simple = self.is_simple(source, destination);
        let mut left = bytes;
        for piece in pieces(source, destination, bytes) {
            left -= piece.length;
            let from = reach(piece.source, dev, false)?.lkey;
            let to = reach(piece.destination, dev, true)?.lkey;
            let from = Room { address: piece.from, length: piece.length, lkey: from };
            let to = Room { address: piece.to, length: piece.length, lkey: to };
            let cookie = match (simple, left) {
                (true, _) => number,
                (false, 0) => number | LAST,
                (false, _) => number | MORE_FOLLOW,
            };
            self.queue.copy(ends(from, to), cookie, left == 0).map_err(refused)?;
        }
        Ok(())
    }

    /// Takes the first job out.
    #[inline(always)]
    fn take_first(&mut self) -> Option<Running> {
        let at = self.place(self.first);
        let Running { source, destination, user_data, tag } = self.jobs.get_mut(at)?;
        let source = mem::replace(source, Buf::none());
        let destination = mem::replace(destination, Buf::none());
        self.first = self.first.wrapping_add(1);
        Some(Running { source, destination, user_data: *user_data, tag: *tag })
    }

    /// The event of the first job, whatever became of it.
    fn end(
        &mut self,
        result: std::result::Result<(), JobError>,
        room: &mut side::Room,
    ) -> Option<Done> {
        let more = mem::take(&mut self.more[self.place(self.first)]);
        self.sum_of_more -= more;
        room.give(more);
        let mut job = self.take_first()?;
        let simple = self.is_simple(&job.source, &job.destination);
        match (simple, result) {
            (true, Ok(())) | (false, Err(_)) => {}
            (true, Err(_)) => job.destination.shrink_first(job.source.data_len()),
            (false, Ok(())) => job.destination.grow(job.source.chain_data_len()),
        }
        Some(done(job, result))
    }

    /// A request succeeded. `None`: not the one that is the next to.
    fn succeeded(&mut self, cookie: u64, room: &mut side::Room) -> Option<Done> {
        let next = cookie as u32 == self.first && self.first != self.next && self.flushed == 0;
        if next { self.end(Ok(()), room) } else { None }
    }

    /// What a failed request means.
    fn failed(&mut self, failure: Failure, side: &mut Side) -> Option<Done> {
        if self.state == State::Works {
            self.stand_still(State::Failed);
        }
        let first = *self.failure.get_or_insert(failure);
        if failure.cookie & MORE_FOLLOW != 0 {
            return None;
        }
        self.failure = None;
        // The first job alone can have failed; those behind it are flushed.
        let its_own = first.status != Status::Flushed || self.state == State::Aborted;
        let is_first = failure.cookie as u32 == self.first && self.flushed == 0;
        let done = if its_own && is_first {
            self.end(Err(first.into()), &mut side.room)
        } else {
            self.flushed += 1;
            None
        };
        if self.state == State::Failed && self.device_has_none() {
            self.recover(side);
        }
        done
    }

    /// The device's queue does nothing any more, but flush what it has.
    fn stand_still(&mut self, state: State) {
        if self.state == State::Works {
            self.posted = self.next;
        }
        (self.state, self.open_to) = (state, NOBODY);
    }

    /// Whether the device has no job; says nothing while it works.
    fn device_has_none(&self) -> bool {
        self.first.wrapping_add(self.flushed) == self.posted
    }

    /// The device has nothing of ours: goes on with what it flushed.
    fn recover(&mut self, side: &mut Side) {
        if let Err(error) = self.queue.recover(&side.dev) {
            return self.give_up(error.kind());
        }
        (self.posted, self.flushed) = (self.first, 0);
        while self.posted != self.next {
            if let Err(error) = self.post_again(self.posted, &side.dev) {
                return self.give_up(error.kind());
            }
            self.posted = self.posted.wrapping_add(1);
        }
        self.state = State::Works;
        self.open_to = if self.longest < MAX_PIECE { NOBODY } else { side.dev.id() };
    }

    fn post_again(&mut self, number: u32, dev: &Dev) -> Result<()> {
        let at = self.place(number);
        let mut job = mem::replace(&mut self.jobs[at], Running::none());
        let simple = self.is_simple(&job.source, &job.destination);
        let bytes = job.source.chain_data_len();
        if simple {
            job.destination.shrink_first(bytes);
        }
        let posted = self.post(number, (&job.source, &job.destination), bytes, dev);
        if simple {
            job.destination.grow_first(bytes);
        }
        self.jobs[at] = job;
        posted
    }

    /// Takes no more jobs; those that the device does not have end with this.
    fn give_up(&mut self, why: ErrorKind) {
        self.stand_still(State::Aborted);
        self.given_up = why;
    }
}

/// What a request copies: as many bytes as `from` has.
#[inline(always)]
fn ends(from: Room, to: Room) -> (Sge, Sge) {
    let length = from.length as u32;
    (Sge::new(from.address, length, from.lkey), Sge::new(to.address, length, to.lkey))
}

#[inline(always)]
fn done(job: Running, result: std::result::Result<(), JobError>) -> Done {
    let Running { source, destination, user_data, tag } = job;
    Done { tag, event: Event::Dma(MemcpyDone { user_data, result, source, destination }) }
}

impl Engine for Copier {
    const WORKS: bool = false;

    #[inline(always)]
    fn succeed(&mut self, cqe: &PlainCqe<'_>) -> Option<Done> {
        // Only that of a simple job has nothing but its number in the cookie.
        if !self.queue.settle(cqe, self.first.into()) {
            return None;
        }
        self.take_first().map(|job| done(job, Ok(())))
    }

    fn complete(&mut self, cqe: Cqe, side: &mut Side) -> Result<Option<Done>> {
        match self.queue.complete(cqe) {
            Ok(cookie) => match self.succeeded(cookie, &mut side.room) {
                Some(done) => Ok(Some(done)),
                None => Err(out_of_order(cookie as u32, self.first)),
            },
            Err(CompletionError::Failed(failure)) => Ok(self.failed(failure, side)),
            Err(other) => {
                Err(Error::new(ErrorKind::InvalidValue, other.to_string()).with_source(other))
            }
        }
    }

    fn progress(&mut self, side: &mut Side) -> Option<Done> {
        if !self.has_work() {
            return None;
        }
        // What the device gave back comes before what it was never given.
        match self.flushed {
            0 => self.posted = self.posted.wrapping_add(1),
            _ => self.flushed -= 1,
        }
        self.end(Err(JobError::new(self.given_up)), &mut side.room)
    }

    #[inline]
    fn has_work(&self) -> bool {
        self.state == State::Aborted && self.device_has_none() && self.first != self.next
    }

    fn in_flight(&self) -> u32 {
        self.next.wrapping_sub(self.first)
    }

    fn abort(&mut self) -> Result<()> {
        if self.state != State::Aborted {
            self.queue.stop()?;
            self.give_up(ErrorKind::Shutdown);
        }
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
        if self.in_flight() > 0 && self.queue.reset().is_err() {
            // The device may still copy: nothing of the jobs may be freed.
            mem::forget(mem::take(&mut self.jobs));
        }
    }
}
