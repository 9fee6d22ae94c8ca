//! The model's controls for tests: failed requests, lost messages, watched requests, virtual time.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use verbless_command::{Device, KeyAccess};
use verbless_devx::{Backend, Errno, EventChannel};
use verbless_model::{
    Builder, FaultPlan, Ioctl, Model, ObjectCounts, Profile, QueueKind, Request, Watch,
};
use verbless_model_kernel::InProcess;
use verbless_prm::hot::event_type;
use verbless_prm::{CqStatus, CqeSyndrome, QpState};
use verbless_queue::wr::Write;
use verbless_queue::{
    CompletionError, ConnectOptions, Cq, CqConfig, Domain, Error, Qp, QpConfig, Region,
};

/// Two devices of a stepped model, with a queue pair from the first to the second.
struct Wire {
    model: Model,
    _here: Domain,
    /// The channel for the failure events of the queues: of the CQ and of the QP.
    events: EventChannel,
    cq: Cq,
    qp: Qp,
    from: Region,
    to: Region,
    _far: (Qp, Cq),
    requests: Receiver<Request>,
    _watch: Watch,
}

impl Wire {
    fn new(build: impl FnOnce(Builder) -> Builder) -> Self {
        let card = Profile::load("connectx6dx").expect("the profile is built in");
        let builder = Model::builder().device(card.clone()).device(card).stepped();
        let model = build(builder).build();
        let (sender, requests) = channel();
        let watch = model.watch_requests(move |request| sender.send(*request).unwrap_or_default());
        let backend = InProcess::of(&model);
        let devices = backend.enumerate().expect("two");
        let open =
            |number: usize| Device::open(&backend, &devices[number]).expect("the device opens");
        let (device, other) = (open(0), open(1));
        let [here, there] = [&device, &other].map(|it| Domain::new(it).expect("a domain"));
        let cq = here.completion_queue(&CqConfig::new(64)).expect("a completion queue");
        let far_cq = there.completion_queue(&CqConfig::new(64)).expect("a completion queue");
        let config = QpConfig::new(16, 16);
        let mut qp = here.queue_pair(&config, &cq, &cq).expect("a queue pair");
        let mut far_qp = there.queue_pair(&config, &far_cq, &far_cq).expect("a queue pair");
        let options = ConnectOptions::default();
        let address = here.address(&qp, &options).expect("an address");
        let far = there.address(&far_qp, &options).expect("an address");
        here.connect(&mut qp, &far, &options).expect("the QP connects");
        there.connect(&mut far_qp, &address, &options).expect("the QP connects");
        let events = device.event_channel(false).expect("a channel");
        events
            .subscribe(Some(cq.object().object()), &[event_type::CQ_ERROR.into()], CQ)
            .expect("events of the CQ");
        events
            .subscribe(Some(qp.object().object()), &[event_type::WQ_CATASTROPHIC_ERROR.into()], QP)
            .expect("events of the QP");
        let from = here.region(4096, KeyAccess::LOCAL).expect("memory");
        let to = there.region(4096, KeyAccess::ALL).expect("memory");
        Self {
            model,
            _here: here,
            events,
            cq,
            qp,
            from,
            to,
            _far: (far_qp, far_cq),
            requests,
            _watch: watch,
        }
    }

    fn qpn(&self) -> u32 {
        self.qp.qpn().0
    }

    /// Posts a WRITE of 8 bytes without a CQE.
    fn post(&mut self, cookie: u64) {
        let remote = self.to.remote(0, 8).expect("a remote key");
        let write = Write::new(self.from.sge(0, 8).expect("room"), remote);
        self.qp.post(&write, cookie).expect("room");
    }

    /// The cookie of the request of the next error CQE.
    fn failed(&mut self) -> u64 {
        match self.qp.poll(&mut self.cq) {
            Some(Err(CompletionError::Failed(failure))) => failure.cookie,
            other => panic!("{other:?}, and not a failure"),
        }
    }

    /// Cookies and types of the events so far.
    fn events(&self) -> Vec<(u64, u8)> {
        std::iter::from_fn(|| self.events.read().expect("the device lives"))
            .map(|event| (event.cookie, event.eqe.expect("with its data")[1]))
            .collect()
    }

    fn state(&self) -> QpState {
        self.qp.object().query().expect("the QP answers the query").state()
    }

    /// The watched requests: operation, bytes and syndrome.
    fn seen(&self) -> Vec<(&'static str, u64, Option<u8>)> {
        let seen = self.requests.try_iter();
        seen.inspect(|request| assert_eq!((request.function, request.qpn), (0, self.qpn())))
            .map(|request| (request.operation, request.bytes, request.syndrome))
            .collect()
    }
}

/// Cookies of events.
const CQ: u64 = 1;
const QP: u64 = 2;

const DONE: (&str, u64, Option<u8>) = ("WRITE", 8, None);

fn failed(syndrome: CqeSyndrome) -> (&'static str, u64, Option<u8>) {
    ("WRITE", 0, Some(syndrome.0))
}

#[test]
fn every_request_is_watched_signaled_or_not() {
    let mut wire = Wire::new(|builder| builder);
    (0..3).for_each(|cookie| wire.post(cookie));
    assert_eq!(wire.seen(), []);
    wire.model.run_until_idle();
    assert_eq!(wire.seen(), [DONE; 3]);
    assert!(wire.qp.poll(&mut wire.cq).is_none());
}

#[test]
fn nth_request_fails_with_syndrome_then_flushes() {
    for any in [false, true] {
        let mut wire = Wire::new(|builder| builder);
        let qpn = (!any).then_some(wire.qpn());
        wire.model.fail_request(0, qpn, 2, CqeSyndrome::REMOTE_ACCESS);
        (0..3).for_each(|cookie| wire.post(cookie));
        wire.model.run_until_idle();
        let (refused, flushed) = (CqeSyndrome::REMOTE_ACCESS, CqeSyndrome::FLUSHED);
        assert_eq!(wire.seen(), [DONE, failed(refused), failed(flushed)]);
        assert_eq!(wire.failed(), 1);
    }
}

#[test]
fn request_fault_is_limited_to_its_qp() {
    let mut wire = Wire::new(|builder| builder);
    let other = wire.qpn() + 1;
    wire.model.fail_request(0, Some(other), 1, CqeSyndrome::REMOTE_ACCESS);
    wire.model.lose_messages(0, other, 0, u32::MAX);
    wire.model.fail_request(1, None, 1, CqeSyndrome::REMOTE_ACCESS);
    wire.post(0);
    wire.model.run_until_idle();
    assert_eq!(wire.seen(), [DONE]);
}

#[test]
fn lost_message_is_resent_within_same_request() {
    let mut wire = Wire::new(Builder::auto_advance);
    wire.model.lose_messages(0, wire.qpn(), 0, 2);
    wire.model.fail_request(0, None, 2, CqeSyndrome::REMOTE_OPERATION);
    (0..2).for_each(|cookie| wire.post(cookie));
    wire.model.run_until_idle();
    assert_eq!(wire.seen(), [DONE, failed(CqeSyndrome::REMOTE_OPERATION)]);
}

#[test]
fn auto_advance_runs_timeouts_until_idle() {
    let mut still = Wire::new(|builder| builder);
    still.model.lose_messages(0, still.qpn(), 0, 1);
    still.post(0);
    still.model.run_until_idle();
    assert_eq!(still.seen(), [], "the request waits for its ACK");
    still.model.advance(Duration::from_secs(10));
    still.model.run_until_idle();
    assert_eq!(still.seen(), [DONE]);

    let mut jumping = Wire::new(Builder::auto_advance);
    jumping.model.lose_messages(0, jumping.qpn(), 0, u32::MAX);
    jumping.post(0);
    jumping.model.run_until_idle();
    assert_eq!(jumping.seen(), [failed(CqeSyndrome::TRANSPORT_RETRY_EXCEEDED)]);
    assert_eq!(jumping.failed(), 0);
}

#[test]
fn failing_qp_raises_event_and_flushes() {
    for in_packets in [false, true] {
        let mut wire = Wire::new(|it| if in_packets { it.in_packets() } else { it });
        let plan = format!("[[queue]]\nkind = \"qp\"\nnumber = {}\nnth = 2", wire.qpn());
        wire.model
            .apply(&FaultPlan::parse(&plan).expect("a plan"))
            .expect("the plan names the model's devices");
        // An unacknowledged request is flushed as well.
        wire.post(0);
        wire.model.run_until_idle();
        (1..3).for_each(|cookie| wire.post(cookie));
        wire.model.run_until_idle();
        let flushed = failed(CqeSyndrome::FLUSHED);
        assert_eq!(wire.seen(), [DONE, flushed, flushed], "in packets: {in_packets}");
        assert_eq!(wire.events(), [(QP, event_type::WQ_CATASTROPHIC_ERROR)]);
        assert_eq!(wire.state(), QpState::ERR);
        assert_eq!([wire.failed(), wire.failed()], [1, 2]);
        assert!(!wire.model.fail_queue(0, QueueKind::Qp, wire.qpn()), "the QP has failed already");
        assert_eq!(wire.events(), []);
    }
}

#[test]
fn failing_cq_moves_its_qp_to_error() {
    for in_packets in [false, true] {
        let mut wire = Wire::new(|it| if in_packets { it.in_packets() } else { it });
        wire.post(0);
        wire.model.run_until_idle();
        wire.model.fail_queue_later(0, QueueKind::Cq, None, 1);
        let remote = wire.to.remote(0, 8).expect("a remote key");
        let write = Write::new(wire.from.sge(0, 8).expect("room"), remote).signaled();
        wire.qp.post(&write, 1).expect("room");
        wire.model.run_until_idle();
        let both = [(CQ, event_type::CQ_ERROR), (QP, event_type::WQ_CATASTROPHIC_ERROR)];
        assert_eq!(wire.events(), both, "in packets: {in_packets}");
        assert_eq!(wire.state(), QpState::ERR);
        assert!(wire.qp.poll(&mut wire.cq).is_none(), "the CQE is lost");
        let status = wire.cq.object().query().expect("the CQ answers the query").status();
        assert_eq!(status, CqStatus::WRITE_FAIL);
    }
}

#[test]
fn fail_queue_acts_at_once_and_only_once() {
    let wire = Wire::new(|builder| builder);
    let cqn = wire.cq.object().cqn().0;
    assert!(!wire.model.fail_queue(0, QueueKind::Cq, 0xff_ffff), "no CQ has this number");
    assert!(wire.model.fail_queue(0, QueueKind::Cq, cqn));
    assert_eq!(wire.events(), [(CQ, event_type::CQ_ERROR)]);
    assert_eq!(wire.state(), QpState::RTS, "the QP has no CQE to write yet");
    assert!(wire.model.fail_queue(0, QueueKind::Qp, wire.qpn()));
    assert_eq!(wire.events(), [(QP, event_type::WQ_CATASTROPHIC_ERROR)]);
    assert_eq!(wire.state(), QpState::ERR);
    assert!(!wire.model.fail_queue(0, QueueKind::Cq, cqn));
}

/// Creates the objects that a program needs before it works; the number of ioctls is unknown to the
/// test.
fn set_up(model: &Model) -> Result<(Domain, Cq, Qp, Region), Error> {
    let backend = InProcess::of(model);
    let device = Device::open(&backend, &backend.enumerate()?[0])?;
    let domain = Domain::new(&device)?;
    let cq = domain.completion_queue(&CqConfig::new(64))?;
    let qp = domain.queue_pair(&QpConfig::new(16, 16), &cq, &cq)?;
    let region = domain.region(4096, KeyAccess::ALL)?;
    Ok((domain, cq, qp, region))
}

#[test]
fn failed_ioctl_reports_errno_and_leaks_nothing() {
    let (mut failed, mut spared) = (Vec::new(), 0);
    for nth in 1.. {
        let card = Profile::load("connectx6dx").expect("the profile is built in");
        let model = Model::builder().device(card).stepped().build();
        model.fail_ioctl(0, Ioctl::Any, nth, Errno::ENOSPC as i32);
        let error = match set_up(&model) {
            Ok(made) => match made.0.device().query_eqn(0) {
                // The driver can do without the failed ioctl's result.
                Ok(_) => {
                    drop(made);
                    assert_eq!(model.counts(0), ObjectCounts::default(), "ioctl {nth}");
                    spared += 1;
                    continue;
                }
                // Every call up to here succeeded; the next ioctl would belong to an object's
                // destruction.
                Err(error) => {
                    assert_eq!(error.errno(), Some(Errno::ENOSPC));
                    break;
                }
            },
            Err(error) => error,
        };
        let errno = error.device().and_then(|it| it.errno());
        assert_eq!(errno, Some(Errno::ENOSPC), "ioctl {nth}: {error}");
        assert_eq!(model.counts(0), ObjectCounts::default(), "ioctl {nth}: {error}");
        failed.push(error.to_string());
    }
    // A context, a UAR, memory and commands of four kinds of objects, at the least.
    assert!(failed.len() > 10 && spared < failed.len(), "{spared} and {failed:#?}");
}
