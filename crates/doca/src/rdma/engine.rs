//! The jobs of an instance on its work queue.
//!
//! The device completes the jobs of a queue in order. So each of the two queues has a ring of jobs:
//! a job is written there once when it begins, and read once when it ends.

use std::mem;
use std::sync::Arc;

use verbless_queue::completion::FailedRequest;
use verbless_queue::wr::{CompareSwap, FetchAdd, PostError, Read, Send, SendImm, Write, WriteImm};
use verbless_queue::{
    CompletionError, Cqe, ErrorKind as LowerKind, QpQueues, ReceiveCqe, RequestId, WcOpcode,
    WcStatus,
};

use super::checks::{RdmaLimits, cache_keys, check, refuse};
use super::done::{RdmaDone, RdmaOpcode};
use super::instance::{Instance, RdmaState, StateWord};
use super::job::{JobOperation, RdmaJob};
use super::job_queue::{JobQueue, RunningJob, StartQueues};
use super::properties::{Properties, longest, max_read_buf_chain_len};
use crate::context::core::CtxId;
use crate::context::device_cq::DeviceCq;
use crate::context::engine::{EndedJobs, Engine, EngineArgs};
use crate::context::event::{Done, Event, EventSlot, Tag};
use crate::context::failure::JobError;
use crate::context::job_type::JobType;
use crate::error::{Error, ErrorKind, Result};

/// Maximum bytes of a buffer with a cached key.
const MAX_FAST_BYTES: u64 = 1 << 30;

/// The jobs, and the queue pair that executes them.
pub struct RdmaEngine {
    /// The instance's state at the last set-up of the queues.
    pub(super) known: StateWord,
    pub(super) sends: JobQueue,
    pub(super) receives: JobQueue,
    pub(super) queues: QpQueues,
    pub(super) instance: Arc<Instance>,
    pub(super) limits: RdmaLimits,
    pub(super) ctx: CtxId,
    /// A job for the full checks.
    pub(super) kept: Option<(RdmaJob, Tag)>,
    /// The operation of `kept`, stored first, because only it is passed in registers.
    pub(super) kept_operation: JobOperation,
    /// The completion queue's index when the jobs were taken back from the device, which then
    /// flushes nothing.
    pub(super) released_at: Option<u32>,
    /// The error of those jobs.
    pub(super) shutdown_error: JobError,
}

impl RdmaEngine {
    pub(super) fn new(instance: &Arc<Instance>, args: &EngineArgs<'_>) -> Result<Self> {
        let (start, known, properties) = instance.attach(args.user_index, &args.device_cq.cq)?;
        let StartQueues { queues, sends, receives } = start;
        let longest = longest(&args.device_cq.dev);
        let read_chain = max_read_buf_chain_len(&args.device_cq.dev);
        let mut this = Self {
            known,
            sends,
            receives,
            queues,
            instance: instance.clone(),
            limits: RdmaLimits { send_chain: 0, receive_chain: 0, read_chain, longest },
            ctx: instance.id(),
            kept: None,
            kept_operation: JobOperation::Receive,
            released_at: None,
            shutdown_error: JobError::new(ErrorKind::Shutdown),
        };
        this.limit(&properties);
        Ok(this)
    }

    fn limit(&mut self, properties: &Properties) {
        self.limits.send_chain = properties.send_buf_chain_len;
        self.limits.receive_chain = properties.recv_buf_chain_len;
    }

    pub(super) fn job_queue(&mut self, of_receives: bool) -> &mut JobQueue {
        if of_receives { &mut self.receives } else { &mut self.sends }
    }

    /// Posts a job if the instance accepts it.
    pub(super) fn post_checked(&mut self, job: &RdmaJob, device_cq: &DeviceCq) -> Result<()> {
        let of_receives = job.operation == JobOperation::Receive;
        self.may_begin(of_receives, device_cq.dev.id())?;
        let (sges, remote) = check(job, &device_cq.dev, &self.limits)?;
        cache_keys(job, &device_cq.dev);
        let job_queue = self.job_queue(of_receives);
        if job_queue.is_full() {
            let text = match of_receives {
                true => "as many receives are in flight as recv_queue_size: retrieve some first",
                false => "as many jobs are in flight as send_queue_size: retrieve some first",
            };
            return Err(refuse(ErrorKind::Again, text));
        }
        let number = u64::from(job_queue.next);
        let (queue, sges) = (&mut self.queues.send, sges.as_slice());
        let posted = match job.operation {
            JobOperation::Receive => self.queues.post_receive(sges, number),
            JobOperation::Send => queue.post(&Send::new(sges).signaled(), number),
            JobOperation::SendImm(immediate) => {
                queue.post(&SendImm::new(sges, immediate).signaled(), number)
            }
            JobOperation::Write => queue.post(&Write::new(sges, remote).signaled(), number),
            JobOperation::WriteImm(immediate) => {
                queue.post(&WriteImm::new(sges, remote, immediate).signaled(), number)
            }
            JobOperation::Read => queue.post(&Read::new(sges, remote).signaled(), number),
            JobOperation::CompareSwap { compare, swap } => {
                let request = CompareSwap::new(sges[0], remote, compare, swap);
                queue.post(&request.signaled(), number)
            }
            JobOperation::FetchAdd(add) => {
                queue.post(&FetchAdd::new(sges[0], remote, add).signaled(), number)
            }
        };
        posted.map(drop).map_err(refused)
    }

    /// Whether the instance accepts a job; reads its state.
    fn may_begin(&mut self, of_receives: bool, device: u64) -> Result<()> {
        let mut word = self.instance.word();
        while word.starts() != self.known.starts() {
            self.restart_queues()?;
            word = self.instance.word();
            if word.state() == RdmaState::Reset {
                break;
            }
        }
        self.instance.open(word, device, self.limits.longest >= MAX_FAST_BYTES);
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

    /// Handles a restart of the instance: switches to the new queue pair when the old one has no
    /// jobs left.
    fn restart_queues(&mut self) -> Result<()> {
        if self.in_flight() > 0 {
            let text = "jobs from before the instance was stopped are not retrieved yet: do so \
                        first";
            return Err(refuse(ErrorKind::Again, text));
        }
        // `None`: it is stopped.
        let mine = (&mut self.queues, &mut self.sends, &mut self.receives);
        let exchanged = self.instance.exchange(|start| StartQueues {
            queues: mem::replace(mine.0, start.queues),
            sends: mem::replace(mine.1, start.sends),
            receives: mem::replace(mine.2, start.receives),
        });
        if let Some((known, properties)) = exchanged {
            (self.known, self.released_at) = (known, None);
            self.shutdown_error = JobError::new(ErrorKind::Shutdown);
            self.limit(&properties);
        }
        Ok(())
    }

    /// The event of a receive.
    #[inline(always)]
    fn received(
        &mut self,
        operation: WcOpcode,
        bytes: u32,
        immediate: Option<u32>,
        into: &mut EventSlot,
    ) -> Option<Tag> {
        let RunningJob { mut local, remote, user_data, tag, job_type } =
            self.receives.take_first()?;
        let opcode = match operation {
            WcOpcode::ReceiveWriteImm => RdmaOpcode::RecvWriteWithImm,
            _ => {
                if let Some(local) = &mut local {
                    local.fill(bytes.into());
                }
                match immediate {
                    Some(_) => RdmaOpcode::RecvSendWithImm,
                    None => RdmaOpcode::RecvSend,
                }
            }
        };
        let opcode = Some(opcode);
        let result = Ok(());
        let done = RdmaDone { user_data, job_type, result, opcode, immediate, local, remote };
        // The slot is empty, so this leaks nothing.
        mem::forget(into.replace(Ok(Event::Rdma(done))));
        Some(tag)
    }

    /// Ends the job of the CQE.
    fn completed(&mut self, cqe: Cqe, into: &mut EventSlot) -> Result<Option<Tag>> {
        let receive = cqe.is_receive();
        let first = u64::from(self.job_queue(receive).first);
        let cookie = match self.queues.complete(cqe) {
            Ok(completion) => {
                let cookie = completion.cookie;
                if cookie != first {
                    return Err(out_of_order(cookie, first));
                }
                return Ok(match receive {
                    true => self.received(
                        completion.operation(),
                        completion.byte_len(),
                        completion.immediate(),
                        into,
                    ),
                    false => self.sends.take_first().map(|job| done(job, Ok(())).put(into)),
                });
            }
            Err(CompletionError::Failed(failure)) if failure.cookie == first => {
                return Ok(self.failed(failure).map(|done| done.put(into)));
            }
            Err(CompletionError::Failed(failure)) => failure.cookie,
            Err(other) => {
                let error = Error::new(ErrorKind::InvalidValue, other.to_string());
                return Err(error.with_source(other));
            }
        };
        Err(out_of_order(cookie, first))
    }

    /// Takes the jobs back from the device. Its completions are read before they end.
    ///
    /// # Errors
    /// The device may continue with them.
    fn take_back(&mut self, device_cq: &DeviceCq) -> Result<()> {
        match self.queues.to_reset() {
            // A removed device does nothing.
            Err(error) if error.kind() != LowerKind::DeviceGone => Err(error.into()),
            _ => {
                self.released_at.get_or_insert(device_cq.cq.consumer_index());
                Ok(())
            }
        }
    }

    /// Handles a failed job: the device takes no others, and returns the jobs that it has.
    fn failed(&mut self, failure: FailedRequest) -> Option<Done> {
        self.instance.fail(self.known.starts());
        let job = self.job_queue(failure.receive).take_first()?;
        let why = JobError::from(failure);
        let why = match (failure.status, job.job_type) {
            // Their lengths were checked, so the peer's instance does not permit them.
            (
                WcStatus::RemoteInvalidRequest,
                JobType::RdmaWrite
                | JobType::RdmaWriteImm
                | JobType::RdmaRead
                | JobType::RdmaCompareSwap
                | JobType::RdmaFetchAdd,
            ) => why.of_kind(ErrorKind::NotPermitted),
            _ => why,
        };
        Some(done(job, Err(why)))
    }
}

/// The event of a job that is not a receive, or that failed.
#[inline(always)]
fn done(job: RunningJob, result: std::result::Result<(), JobError>) -> Done {
    let RunningJob { local, remote, user_data, tag, job_type } = job;
    let (opcode, immediate) = (None, None);
    let done = RdmaDone { user_data, job_type, result, opcode, immediate, local, remote };
    Done { tag, event: Event::Rdma(done) }
}

#[cold]
fn out_of_order(number: u64, first: u64) -> Error {
    let text = format!("the device completed job {number} before job {first}");
    Error::new(ErrorKind::InvalidValue, text)
}

impl Engine for RdmaEngine {
    const WORKS: bool = false;
    const PROGRESSES: bool = false;

    #[inline(always)]
    fn complete_success(&mut self, request: RequestId) -> Option<Done> {
        if !self.queues.send.try_complete(request, self.sends.first.into()) {
            return None;
        }
        self.sends.take_first().map(|job| done(job, Ok(())))
    }

    fn receive(&mut self, cqe: &ReceiveCqe<'_>, into: &mut EventSlot) -> Option<Tag> {
        if !self.queues.try_complete_receive(cqe.request(), self.receives.first.into()) {
            return None;
        }
        self.received(cqe.operation(), cqe.byte_len(), cqe.immediate(), into)
    }

    fn complete(
        &mut self,
        cqe: Cqe,
        device_cq: &mut DeviceCq,
        into: &mut EventSlot,
    ) -> Result<Option<Tag>> {
        self.completed(cqe, into).inspect_err(|_| {
            // It is unknown which jobs of this queue pair the device still executes: none continue.
            self.instance.abort_start(self.known.starts());
            let _refused = self.take_back(device_cq);
        })
    }

    fn in_flight(&self) -> u32 {
        self.sends.in_flight() + self.receives.in_flight()
    }

    fn ended(&self) -> EndedJobs {
        // Both are on one queue pair.
        let ended = self.sends.first.wrapping_add(self.receives.first);
        EndedJobs([(self.in_flight() > 0).then_some(ended), None])
    }

    fn progress(&mut self, device_cq: &mut DeviceCq) -> Option<Done> {
        if self.released_at.is_none_or(|index| !device_cq.has_read(index)) {
            return None;
        }
        let job_queue =
            if self.sends.in_flight() > 0 { &mut self.sends } else { &mut self.receives };
        if job_queue.in_flight() == 0 {
            return None;
        }
        let why = self.shutdown_error;
        job_queue.take_first().map(|job| done(job, Err(why)))
    }

    fn has_work(&self) -> bool {
        self.released_at.is_some() && self.in_flight() > 0
    }

    fn abort(&mut self, device_cq: &mut DeviceCq) -> Result<()> {
        self.instance.abort();
        self.take_back(device_cq)
    }

    fn check(&self) -> std::result::Result<(), verbless_queue::DeviceError> {
        self.queues.check()
    }

    fn fail(&mut self, device_cq: &mut DeviceCq, why: &Error) -> Result<()> {
        // A later start has a queue pair of its own.
        self.instance.abort_start(self.known.starts());
        // Its jobs were flushed, even if the device does not report it.
        self.shutdown_error = match self.instance.was_stopped_since(self.known.starts()) {
            true => JobError::new(ErrorKind::Shutdown),
            false => JobError::unposted(why),
        };
        self.take_back(device_cq)
    }
}

#[cold]
fn refused(error: PostError) -> Error {
    match error {
        PostError::Full => {
            let text = "the device's queue of requests is full: retrieve some jobs first";
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
            // The device may still use the memory: no memory of the jobs may be freed.
            mem::forget(mem::take(&mut self.sends.jobs));
            mem::forget(mem::take(&mut self.receives.jobs));
        }
        self.instance.detach();
    }
}

#[cfg(test)]
mod tests {
    use verbless_devx::Backend;
    use verbless_model::{Model, Profile};
    use verbless_model_kernel::InProcess;
    use verbless_queue::{ConnectOptions, CqTarget, QpConfig};

    use super::*;
    use crate::context::{Retrieve, WorkQ};
    use crate::device::{Dev, DevInfo};
    use crate::rdma::Rdma;

    /// Completes a receive in the engine's completion queue by a queue pair that the engine does
    /// not know.
    fn complete_as_a_stranger(dev: &Dev, target: &CqTarget, model: &Model) {
        let config = QpConfig::new(1, 1);
        let domain = dev.domain();
        let stranger: verbless_queue::Qp =
            domain.queue_pair_towards(&config, target, target).unwrap();
        let (mut queues, control) = stranger.with_control();
        let room = domain.region(64, verbless_command::KeyAccess::LOCAL).unwrap();
        control.to_init(&ConnectOptions::default()).unwrap();
        queues.post_receive(room.sge(0, 64).unwrap(), 0).unwrap();
        control.to_error().unwrap();
        model.run_until_idle();
        // Kept alive: its reset would remove its completions.
        mem::forget((queues, control));
    }

    #[test]
    fn forged_cqe_is_invalid_value_and_names_no_job() {
        let model = Model::builder().device(Profile::load("bluefield3").unwrap()).stepped().build();
        let backend: Arc<dyn Backend> = Arc::new(InProcess::of(&model));
        let dev = DevInfo::list_of(&backend).unwrap()[0].open().unwrap();
        let rdma = Rdma::builder(&dev).start().unwrap();
        rdma.export().unwrap();
        // The work queue takes over this completion queue.
        let target = rdma.instance.own_target().unwrap();
        let mut workq = WorkQ::new(8).unwrap();
        workq.add(&rdma).unwrap();
        workq.submit(rdma.receive(None).user_data(7)).unwrap();
        model.run_until_idle();
        assert!(matches!(workq.progress_retrieve(), Err(Retrieve::Again)));
        complete_as_a_stranger(&dev, &target, &model);
        let Err(Retrieve::Failed(error)) = workq.progress_retrieve() else {
            panic!("the CQE is of no job")
        };
        assert_eq!(error.kind(), ErrorKind::InvalidValue, "{error}");
        assert_eq!(workq.in_flight(), 1, "the error belongs to no job");
        // It is unknown which jobs of the queue pair the device still executes: each is returned
        // once, as failed.
        model.run_until_idle();
        let Err(Retrieve::IoFailed(event)) = workq.progress_retrieve() else {
            panic!("the job does not come back")
        };
        assert_eq!(event.user_data().0, 7);
        assert_eq!(event.result().unwrap_err().kind(), ErrorKind::Shutdown);
        assert!(matches!(workq.progress_retrieve(), Err(Retrieve::Again)));
    }

    #[test]
    fn forged_cqe_fails_only_current_start() {
        let model = Model::builder().device(Profile::load("bluefield3").unwrap()).stepped().build();
        let backend: Arc<dyn Backend> = Arc::new(InProcess::of(&model));
        let dev = DevInfo::list_of(&backend).unwrap()[0].open().unwrap();
        let mut device_cq = DeviceCq::for_test(&dev, 8).unwrap();
        let mut rdma = Rdma::builder(&dev).start().unwrap();
        let args = EngineArgs { depth: 8, user_index: 0, device_cq: &mut device_cq };
        let mut engine = RdmaEngine::new(&rdma.instance, &args).unwrap();
        let mut into: EventSlot = None;
        for started_again in [true, false] {
            complete_as_a_stranger(&dev, &device_cq.cq.target(), &model);
            if started_again {
                rdma = rdma.stop().unwrap().start().unwrap();
            }
            let cqe = device_cq.cq.poll().unwrap();
            assert!(engine.complete(cqe, &mut device_cq, &mut into).is_err());
            let expected = if started_again { RdmaState::Init } else { RdmaState::Error };
            assert_eq!(rdma.state(), expected);
            assert_eq!(rdma.export().is_ok(), started_again);
            // The engine continues with the new queue pair.
            engine.may_begin(true, dev.id()).map_or_else(
                |error| assert!(!started_again, "{error}"),
                |()| assert!(started_again, "it takes jobs"),
            );
        }
    }
}
