//! Waits for events of completion queues end when the device or a watched queue fails, in any
//! thread.

use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use verbless_command::Device;
use verbless_devx::{Backend, Waiter};
use verbless_model::{Model, Profile, QueueKind};
use verbless_model_kernel::InProcess;
use verbless_prm::hot::event_type;
use verbless_queue::wr::Nop;
use verbless_queue::{
    ConnectOptions, Cq, CqConfig, CqEvents, Domain, ErrorKind, Parked, Qp, QpConfig,
};

/// Time limit for a wait on a busy machine.
const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));

fn model() -> Model {
    Model::builder().device(Profile::load("connectx6dx").expect("a profile")).build()
}

fn open(model: &Model) -> Domain {
    let backend = InProcess::of(model);
    let info = backend.enumerate().expect("the model has devices").remove(0);
    Domain::new(&Device::open(&backend, &info).expect("the model opens")).expect("a domain")
}

/// A connected queue pair whose CQ is on `events` with `token`.
fn pair(domain: &Domain, events: &CqEvents, token: u64) -> (Qp, Cq) {
    let mut cq = domain.completion_queue(&CqConfig::new(16)).expect("a completion queue");
    let mut qp = domain.queue_pair(&QpConfig::new(4, 4), &cq, &cq).expect("a queue pair");
    domain.connect_loopback(&mut qp, &ConnectOptions::default()).expect("a connection to itself");
    events.add(&mut cq, token).expect("the CQ is not added yet");
    (qp, cq)
}

/// Gives another thread time to fall asleep.
fn let_sleep() {
    thread::sleep(Duration::from_millis(50));
}

fn is_readable(events: &CqEvents) -> bool {
    let file = Waiter::new([events.as_fd()]).expect("a file");
    file.wait(Some(Duration::ZERO)).expect("the file can be waited for")
}

#[test]
fn watch_of_failed_qp_wakes_sleeper() {
    let model = model();
    let domain = open(&model);
    let events = CqEvents::new(domain.device()).expect("a channel");
    let (qp, cq) = pair(&domain, &events, 7);
    model.fail_queue(0, QueueKind::Qp, qp.qpn().0);
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| events.wait(TIMEOUT));
        let_sleep();
        events.watch(&cq, &qp).expect("the device reports these events");
        assert_eq!(sleeper.join().expect("the thread ends").expect("a token"), Some(7));
    });
}

#[test]
fn file_is_readable_until_last_token_is_taken() {
    let model = model();
    let domain = open(&model);
    let mut events = CqEvents::new(domain.device()).expect("a channel");
    let mut pairs = [7, 8].map(|token| pair(&domain, &events, token));
    assert!(!is_readable(&events));
    for (qp, cq) in &pairs {
        model.fail_queue(0, QueueKind::Qp, qp.qpn().0);
        events.watch(cq, qp).expect("the device reports these events");
    }
    for token in [7, 8] {
        assert!(is_readable(&events), "token {token} is left");
        assert_eq!(events.try_next().expect("no error"), Some(token));
    }
    assert!(!is_readable(&events));
    // A wait for one queue sleeps, though a token of another is left.
    let (qp, cq) = &pairs[0];
    events.watch(cq, qp).expect("the device reports these events");
    let other = &mut pairs[1].1;
    events.park(other).expect_err("a queue pair of the CQ failed");
    let wait = events.wait_for(other, Some(Duration::from_millis(20)));
    assert!(!wait.expect("the failure was reported"), "no CQE comes");
    assert!(!is_readable(&events));
    assert_eq!(events.try_next().expect("no error"), Some(7));
}

#[test]
fn reset_ends_waits_of_earlier_contexts() {
    for dies_first in [false, true] {
        let model = model();
        let earlier = open(&model);
        let mut events = CqEvents::new(earlier.device()).expect("a channel");
        let (_qp, mut cq) = pair(&earlier, &events, 7);
        assert_eq!(events.park(&mut cq).expect("the CQ parks"), Parked::Armed);
        thread::scope(|scope| {
            let sleepers = [(); 2].map(|()| scope.spawn(|| events.wait(TIMEOUT)));
            let_sleep();
            if dies_first {
                model.kill(0);
            }
            model.device(0).reset();
            for sleeper in sleepers {
                let error =
                    sleeper.join().expect("the thread ends").expect_err("the device was reset");
                assert_eq!(error.kind(), ErrorKind::DeviceGone, "{error}");
            }
        });
        let errors = [
            events.wait_for(&mut cq, TIMEOUT).expect_err("the device was reset"),
            cq.check().expect_err("the device was reset"),
            CqEvents::new(earlier.device()).map(drop).expect_err("the device was reset"),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::DeviceGone, "{error}");
        }
        // A context from after the reset works, and outlives the earlier one.
        let later = open(&model);
        let mut events_after = CqEvents::new(later.device()).expect("a channel");
        let (mut qp, mut cq_after) = pair(&later, &events_after, 8);
        drop((_qp, cq, events, earlier));
        for cookie in 0..3 {
            qp.post(&Nop::new().signaled(), cookie).expect("room");
            assert!(events_after.wait_for(&mut cq_after, TIMEOUT).expect("no error"));
            let done =
                qp.poll(&mut cq_after).expect("a completion").expect("a successful completion");
            assert_eq!(done.cookie, cookie);
        }
    }
}

#[test]
fn failure_of_qp_with_reused_number_is_reported() {
    let model = model();
    let domain = open(&model);
    let events = CqEvents::new(domain.device()).expect("a channel");
    let (first, mut cq) = pair(&domain, &events, 7);
    let number = first.qpn();
    events.watch(&cq, &first).expect("the device reports these events");
    assert!(model.fail_queue(0, QueueKind::Qp, number.0));
    assert_eq!(events.wait(TIMEOUT).expect("no error"), Some(7));
    drop(first);
    let mut second = domain.queue_pair(&QpConfig::new(4, 4), &cq, &cq).expect("a queue pair");
    domain
        .connect_loopback(&mut second, &ConnectOptions::default())
        .expect("a connection to itself");
    assert_eq!(second.qpn(), number);
    events.watch(&cq, &second).expect("the device reports these events");
    assert!(model.fail_queue(0, QueueKind::Qp, number.0));
    assert_eq!(events.wait(TIMEOUT).expect("no error"), Some(7));
    let error = events.park(&mut cq).expect_err("the second queue pair failed");
    assert_eq!(error.kind(), ErrorKind::QueueFailed, "{error}");
    assert_eq!(events.park(&mut cq).expect("the failure was reported once"), Parked::Armed);
}

#[test]
fn removal_discards_unread_events() {
    let model = model();
    let domain = open(&model);
    let channel = domain.device().event_channel(false).expect("a channel");
    channel.subscribe(None, &[event_type::PORT_CHANGE.into()], 5).expect("the device reports it");
    model.set_port(0, 1, false);
    assert!(channel.wait(TIMEOUT).expect("no error"), "the event comes");
    model.remove(0);
    let_sleep();
    for _ in 0..2 {
        let error = channel.read().expect_err("the device was removed");
        assert_eq!(error.kind(), ErrorKind::DeviceGone, "{error}");
    }
}

#[test]
fn last_cqe_of_removed_device_is_polled_after_error() {
    let model = model();
    let domain = open(&model);
    let mut events = CqEvents::new(domain.device()).expect("a channel");
    let (mut qp, mut cq) = pair(&domain, &events, 7);
    assert_eq!(events.park(&mut cq).expect("the CQ parks"), Parked::Armed);
    qp.post(&Nop::new().signaled(), 9).expect("room");
    let_sleep();
    model.remove(0);
    let_sleep();
    assert!(events.wait_for(&mut cq, TIMEOUT).expect("the CQE comes first"));
    assert_eq!(qp.poll(&mut cq).expect("a CQE").expect("the request succeeded").cookie, 9);
    let error = events.wait_for(&mut cq, TIMEOUT).expect_err("the device was removed");
    assert_eq!(error.kind(), ErrorKind::DeviceGone, "{error}");
}
