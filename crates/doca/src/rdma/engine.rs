//! The jobs of an instance on its work queue.
//!
//! The device completes those of a queue in their order. So each of the two queues has a ring of
//! jobs: a job is written there once when it begins, and read once when it ends. What is there
//! besides the job is made for those that have single buffers whose reach is known: all others are
//! looked through in a function of its own.

use std::hint::cold_path;
use std::mem;
use std::sync::Arc;

use verbless_queue::completion::Failure;
use verbless_queue::wr::{CompareSwap, FetchAdd, PostError, Read, Send, SendImm, Write, WriteImm};
use verbless_queue::{
    Completion, CompletionError, Cqe, ErrorKind as LowerKind, PlainCqe, QpQueues, RemoteAddr, Rkey,
    Sge, Status, WqeIndex,
};

use super::checks::{Limits, check, refuse, remember};
use super::done::{RdmaDone, RdmaOpcode};
use super::instance::{Instance, RdmaState, Word};
use super::job::{Operation, RdmaJob};
use super::properties::{Properties, longest};
use crate::buffer::{Buf, Room};
use crate::context::engine::{Engine, Place};
use crate::context::event::{Done, Event, Tag};
use crate::context::failure::{JobError, JobType};
use crate::context::side::{Side, SideOf};
use crate::error::{Error, ErrorKind, Refused, Result};
use crate::types::UserData;

/// No device, nor the 0 of a buffer that nobody is known to reach.
const NOBODY: u64 = u64::MAX >> 1;
/// Bytes of a buffer whose reach is known, at most.
const LONG: u64 = 1 << 30;

/// The jobs, and the queue pair that does them.
pub struct RdmaEngine {
    /// The device's id while jobs that are no receives go to it at once; else [`NOBODY`].
    sends_to: u64,
    /// The same for receives.
    receives_to: u64,
    /// What the two are for: another word changes them.
    known: Word,
    sends: Lane,
    receives: Lane,
    queues: QpQueues,
    instance: Arc<Instance>,
    limits: Limits,
    /// The completion queue's index when the device was found to be gone: it flushes nothing.
    gone: Option<u32>,
}

/// The jobs of one queue.
struct Lane {
    /// The numbers of the next job and of the first in flight, modulo 2^32: what is between them
    /// is at its number modulo the length of `jobs`, a power of two, which is `mask` and 1.
    next: u32,
    first: u32,
    mask: u32,
    /// Jobs in flight at most.
    most: u32,
    jobs: Box<[Running]>,
}

/// A job in flight, or the place of one, without buffers.
struct Running {
    local: Buf,
    remote: Buf,
    user_data: UserData,
    tag: Tag,
    job_type: JobType,
}

impl Running {
    const fn none() -> Self {
        Self {
            local: Buf::none(),
            remote: Buf::none(),
            user_data: UserData(0),
            tag: Tag::PROGRAM,
            job_type: JobType::RdmaReceive,
        }
    }
}

impl Lane {
    fn new(most: u32) -> Self {
        let places = most.next_power_of_two();
        let jobs = (0..places).map(|_| Running::none()).collect();
        Self { next: 0, first: 0, mask: places - 1, most, jobs }
    }

    #[inline(always)]
    fn in_flight(&self) -> u32 {
        self.next.wrapping_sub(self.first)
    }

    #[inline(always)]
    fn is_full(&self) -> bool {
        self.in_flight() >= self.most
    }

    #[inline(always)]
    fn put(&mut self, job: Running) {
        if let Some(place) = self.jobs.get_mut((self.next & self.mask) as usize) {
            // No buffers are there, so that none are forgotten.
            mem::forget(mem::replace(place, job));
        }
        self.next = self.next.wrapping_add(1);
    }

    /// Takes the first job out.
    #[inline(always)]
    fn take_first(&mut self) -> Option<Running> {
        let Running { local, remote, user_data, tag, job_type } =
            self.jobs.get_mut((self.first & self.mask) as usize)?;
        let local = mem::replace(local, Buf::none());
        let remote = mem::replace(remote, Buf::none());
        let (user_data, tag, job_type) = (*user_data, *tag, *job_type);
        self.first = self.first.wrapping_add(1);
        Some(Running { local, remote, user_data, tag, job_type })
    }
}

/// What a request of a single buffer has as an entry. None is longer than [`LONG`].
#[inline(always)]
fn sge(room: Room) -> Sge {
    Sge::new(room.address, room.length as u32, room.lkey)
}

/// What a request names the peer's memory by.
#[inline(always)]
fn remote(room: Room) -> RemoteAddr {
    RemoteAddr::new(room.address, Rkey(room.lkey.0))
}

impl RdmaEngine {
    pub(super) fn new(instance: &Arc<Instance>, place: &Place<'_>) -> Result<Self> {
        let (queues, known, properties) = instance.attach(place.user_index, &place.side.cq)?;
        let longest = longest(&place.side.dev);
        let mut this = Self {
            sends_to: NOBODY,
            receives_to: NOBODY,
            known,
            sends: Lane::new(0),
            receives: Lane::new(0),
            queues,
            instance: instance.clone(),
            limits: Limits { send_chain: 0, receive_chain: 0, longest },
            gone: None,
        };
        this.set(&properties);
        Ok(this)
    }

    /// Makes the places of jobs; there are none.
    fn set(&mut self, properties: &Properties) {
        self.sends = Lane::new(properties.send_queue_size);
        self.receives = Lane::new(properties.recv_queue_size);
        self.limits.send_chain = properties.send_buf_chain_len;
        self.limits.receive_chain = properties.recv_buf_chain_len;
    }

    /// Begins a job. The work queue has seen to it that its completion has room.
    #[inline(always)]
    pub(super) fn begin(
        &mut self,
        job: RdmaJob,
        tag: Tag,
        side: SideOf<'_>,
    ) -> std::result::Result<(), Refused<RdmaJob>> {
        if self.post_known(&job).is_none() {
            cold_path();
            return self.begin_other(job, tag, side);
        }
        let RdmaJob { user_data, operation, local, remote, .. } = job;
        let job_type = operation.job_type();
        let running = Running { local, remote, user_data, tag, job_type };
        match operation {
            Operation::Receive => self.receives.put(running),
            _ => self.sends.put(running),
        }
        Ok(())
    }

    /// Posts a job of single buffers whose reach is known, if nothing is against it.
    #[inline(always)]
    fn post_known(&mut self, job: &RdmaJob) -> Option<WqeIndex> {
        let of_receives = job.operation == Operation::Receive;
        let lane = if of_receives { &self.receives } else { &self.sends };
        if self.instance.word() != self.known || lane.is_full() {
            return None;
        }
        let (number, device) = (u64::from(lane.next), self.sends_to);
        let queue = &mut self.queues.send;
        let posted = match job.operation {
            Operation::Receive => {
                let into = sge(job.local.rest_writable_by(self.receives_to)?);
                self.queues.post_receive(into, number)
            }
            Operation::Send => {
                let from = sge(job.local.readable_by(device)?);
                queue.post(&Send::new(from).signaled(), number)
            }
            Operation::SendImm(immediate) => {
                let from = sge(job.local.readable_by(device)?);
                queue.post(&SendImm::new(from, immediate).signaled(), number)
            }
            Operation::Write => {
                let (from, to) = ends(job.local.readable_by(device)?, job, device)?;
                queue.post(&Write::new(from, to).signaled(), number)
            }
            Operation::WriteImm(immediate) => {
                let (from, to) = ends(job.local.readable_by(device)?, job, device)?;
                queue.post(&WriteImm::new(from, to, immediate).signaled(), number)
            }
            Operation::Read => {
                let (into, from) = ends(job.local.data_writable_by(device)?, job, device)?;
                queue.post(&Read::new(into, from).signaled(), number)
            }
            Operation::CompareSwap { compare, swap } => {
                let (old, word) = word(job, device)?;
                queue.post(&CompareSwap::new(old, word, compare, swap).signaled(), number)
            }
            Operation::FetchAdd(add) => {
                let (old, word) = word(job, device)?;
                queue.post(&FetchAdd::new(old, word, add).signaled(), number)
            }
        };
        posted.ok()
    }

    /// Begins whatever job, or tells why not.
    #[inline(never)]
    fn begin_other(
        &mut self,
        job: RdmaJob,
        tag: Tag,
        side: SideOf<'_>,
    ) -> std::result::Result<(), Refused<RdmaJob>> {
        match self.post_checked(&job, side.get()) {
            Ok(()) => {
                let RdmaJob { user_data, operation, local, remote, .. } = job;
                let job_type = operation.job_type();
                let running = Running { local, remote, user_data, tag, job_type };
                self.lane(operation == Operation::Receive).put(running);
                Ok(())
            }
            Err(error) => Err(Refused::new(error, job)),
        }
    }

    fn lane(&mut self, of_receives: bool) -> &mut Lane {
        if of_receives { &mut self.receives } else { &mut self.sends }
    }

    /// Posts a job if the instance takes it.
    fn post_checked(&mut self, job: &RdmaJob, side: &Side) -> Result<()> {
        let of_receives = job.operation == Operation::Receive;
        self.may_begin(of_receives, side.dev.id())?;
        let (sges, remote) = check(job, &side.dev, &self.limits)?;
        remember(job, &side.dev);
        let lane = self.lane(of_receives);
        if lane.is_full() {
            let text = match of_receives {
                true => "as many receives are in flight as recv_queue_size: retrieve some first",
                false => "as many jobs are in flight as send_queue_size: retrieve some first",
            };
            return Err(refuse(ErrorKind::Again, text));
        }
        let number = u64::from(lane.next);
        let (queue, sges) = (&mut self.queues.send, sges.as_slice());
        let posted = match job.operation {
            Operation::Receive => self.queues.post_receive(sges, number),
            Operation::Send => queue.post(&Send::new(sges).signaled(), number),
            Operation::SendImm(immediate) => {
                queue.post(&SendImm::new(sges, immediate).signaled(), number)
            }
            Operation::Write => queue.post(&Write::new(sges, remote).signaled(), number),
            Operation::WriteImm(immediate) => {
                queue.post(&WriteImm::new(sges, remote, immediate).signaled(), number)
            }
            Operation::Read => queue.post(&Read::new(sges, remote).signaled(), number),
            Operation::CompareSwap { compare, swap } => {
                let request = CompareSwap::new(sges[0], remote, compare, swap);
                queue.post(&request.signaled(), number)
            }
            Operation::FetchAdd(add) => {
                queue.post(&FetchAdd::new(sges[0], remote, add).signaled(), number)
            }
        };
        posted.map(drop).map_err(refused)
    }

    /// Whether the instance takes a job now; learns its state.
    fn may_begin(&mut self, of_receives: bool, device: u64) -> Result<()> {
        let word = self.instance.word();
        if word.starts() != self.known.starts() {
            self.begin_anew()?;
        }
        let word = self.instance.word();
        let known_to = |taken| if taken && self.limits.longest >= LONG { device } else { NOBODY };
        let connected = word.state() == RdmaState::Connected;
        self.sends_to = known_to(connected);
        self.receives_to = known_to(connected || word.state() == RdmaState::Init);
        self.known = word;
        match word.state() {
            RdmaState::Connected => {
                self.queues.send.open();
                Ok(())
            }
            RdmaState::Init if of_receives => Ok(()),
            RdmaState::Init => {
                let text = "the instance is not connected: it takes nothing but receives";
                Err(refuse(ErrorKind::NotConnected, text))
            }
            RdmaState::Reset => {
                let text = "the instance is stopped: start it again";
                Err(refuse(ErrorKind::BadState, text))
            }
            RdmaState::Error => {
                let text = "the instance is in the error state since a job failed, or it was \
                            aborted: stop it, start it, and connect it again";
                Err(refuse(ErrorKind::BadState, text))
            }
        }
    }

    /// The instance was started again: goes on with the new queue pair when nothing of the old one
    /// is left.
    fn begin_anew(&mut self) -> Result<()> {
        if self.in_flight() > 0 {
            let text = "jobs from before the instance was stopped are not retrieved yet: do so \
                        first";
            return Err(refuse(ErrorKind::Again, text));
        }
        // `None`: it is stopped.
        if let Some((queues, known, properties)) = self.instance.take_queues() {
            (self.queues, self.known) = (queues, known);
            self.set(&properties);
        }
        Ok(())
    }

    /// The event of a receive.
    fn received(&mut self, completion: &Completion) -> Option<Done> {
        let mut job = self.receives.take_first()?;
        let immediate = completion.immediate();
        let opcode = match completion.operation() {
            verbless_queue::Operation::ReceiveWriteImm => RdmaOpcode::RecvWriteWithImm,
            _ => {
                job.local.fill(completion.byte_len().into());
                match immediate {
                    Some(_) => RdmaOpcode::RecvSendWithImm,
                    None => RdmaOpcode::RecvSend,
                }
            }
        };
        Some(done(job, Ok(()), Some(opcode), immediate))
    }

    /// A job failed: the device takes no others, and gives back what it has.
    fn failed(&mut self, failure: Failure) -> Option<Done> {
        (self.sends_to, self.receives_to) = (NOBODY, NOBODY);
        self.instance.fail(self.known.starts());
        let job = self.lane(failure.receive).take_first()?;
        let why = JobError::from(failure);
        let why = match (failure.status, job.job_type) {
            // Their lengths were checked, so it is the peer's instance that does not permit them.
            (
                Status::RemoteInvalidRequest,
                JobType::RdmaWrite
                | JobType::RdmaWriteImm
                | JobType::RdmaRead
                | JobType::RdmaCompareSwap
                | JobType::RdmaFetchAdd,
            ) => why.of_kind(ErrorKind::NotPermitted),
            _ => why,
        };
        Some(done(job, Err(why), None, None))
    }
}

/// Both ends of a write or read, if the peer's has room.
#[inline(always)]
fn ends(local: Room, job: &RdmaJob, device: u64) -> Option<(Sge, RemoteAddr)> {
    let there = job.remote.rest_of_peer(device)?;
    (local.length <= there.length).then_some((sge(local), remote(there)))
}

/// Both ends of an atomic.
#[inline(always)]
fn word(job: &RdmaJob, device: u64) -> Option<(Sge, RemoteAddr)> {
    let old = job.local.data_writable_by(device)?;
    let there = job.remote.rest_of_peer(device)?;
    let fits = old.length == 8 && there.length >= 8 && there.address.is_multiple_of(8);
    fits.then_some((sge(old), remote(there)))
}

#[inline(always)]
fn done(
    job: Running,
    result: std::result::Result<(), JobError>,
    opcode: Option<RdmaOpcode>,
    immediate: Option<u32>,
) -> Done {
    let Running { local, remote, user_data, tag, job_type } = job;
    let (local, remote) = (local.into_option(), remote.into_option());
    let done = RdmaDone { user_data, job_type, result, opcode, immediate, local, remote };
    Done { tag, event: Event::Rdma(done) }
}

impl Engine for RdmaEngine {
    const WORKS: bool = false;
    const PROGRESSES: bool = false;

    #[inline(always)]
    fn settle(&mut self, cqe: &PlainCqe<'_>) -> Option<Done> {
        if !self.queues.send.settle(cqe, self.sends.first.into()) {
            return None;
        }
        self.sends.take_first().map(|job| done(job, Ok(()), None, None))
    }

    fn complete(&mut self, cqe: Cqe, _side: &mut Side) -> Result<Option<Done>> {
        let receive = cqe.is_receive();
        let first = u64::from(self.lane(receive).first);
        let (cookie, done) = match self.queues.complete(cqe) {
            Ok(completion) if receive => (completion.cookie, self.received(&completion)),
            Ok(completion) => {
                let job = self.sends.take_first();
                (completion.cookie, job.map(|job| done(job, Ok(()), None, None)))
            }
            Err(CompletionError::Failed(failure)) => (failure.cookie, self.failed(failure)),
            Err(other) => {
                let error = Error::new(ErrorKind::InvalidValue, other.to_string());
                return Err(error.with_source(other));
            }
        };
        if cookie != first {
            let text = format!("the device completed job {cookie} before job {first}");
            return Err(Error::new(ErrorKind::InvalidValue, text));
        }
        Ok(done)
    }

    fn in_flight(&self) -> u32 {
        self.sends.in_flight() + self.receives.in_flight()
    }

    fn progress(&mut self, side: &mut Side) -> Option<Done> {
        if self.gone.is_none_or(|index| !side.has_read(index)) {
            return None;
        }
        let lane = if self.sends.in_flight() > 0 { &mut self.sends } else { &mut self.receives };
        if lane.in_flight() == 0 {
            return None;
        }
        let why = JobError::new(ErrorKind::Shutdown);
        lane.take_first().map(|job| done(job, Err(why), None, None))
    }

    fn has_work(&self) -> bool {
        self.gone.is_some() && self.in_flight() > 0
    }

    fn abort(&mut self, side: &mut Side) -> Result<()> {
        // Of an instance that was stopped, the jobs in flight are of the queue pair from before.
        let ended = self.queues.to_error();
        self.instance.abort();
        match ended {
            // What it completed can still be read, and that is all that comes.
            Err(error) if error.kind() == LowerKind::DeviceGone => {
                self.gone = Some(side.cq.consumer_index());
                Ok(())
            }
            ended => Ok(ended?),
        }
    }
}

#[cold]
fn refused(error: PostError) -> Error {
    match error {
        PostError::Full => {
            let text = "the device has as many requests as it takes: retrieve some jobs first";
            refuse(ErrorKind::Again, text)
        }
        PostError::Unsupported => {
            let text = "the device lacks what the job needs: ask Rdma::job_supported";
            refuse(ErrorKind::NotSupported, text)
        }
        other => Error::new(ErrorKind::Unexpected, other.to_string()),
    }
}

impl Drop for RdmaEngine {
    fn drop(&mut self) {
        if self.in_flight() > 0
            && let Err(error) = self.queues.reset()
            && error.kind() != LowerKind::DeviceGone
        {
            // The device may still use the memory: nothing of the jobs may be freed.
            mem::forget(mem::take(&mut self.sends.jobs));
            mem::forget(mem::take(&mut self.receives.jobs));
        }
        self.instance.detach();
    }
}
