//! A context from before a reset has no effect on the queues of a later context.

use std::thread;
use std::time::Duration;

use verbless_command::Device;
use verbless_devx::Backend;
use verbless_model::memory::UAR_PAGE;
use verbless_model::{Model, Profile};
use verbless_model_kernel::InProcess;
use verbless_queue::cq::Notify;
use verbless_queue::wr::Nop;
use verbless_queue::{ConnectOptions, Cq, CqConfig, CqEvents, Domain, Qp, QpConfig};

/// Offset of the CQ arm doorbell in a UAR page.
const CQ_ARM: u64 = 0x20;

fn open(model: &Model) -> Domain {
    let backend = InProcess::of(model);
    let info = backend.enumerate().expect("the model has devices").remove(0);
    Domain::new(&Device::open(&backend, &info).expect("the model opens")).expect("a domain")
}

/// A connected queue pair whose CQ is on `events`.
fn pair(domain: &Domain, events: &CqEvents) -> (Qp, Cq) {
    let mut cq = domain.completion_queue(&CqConfig::new(16)).expect("a completion queue");
    let mut qp = domain.queue_pair(&QpConfig::new(4, 4), &cq, &cq).expect("a queue pair");
    domain.connect_loopback(&mut qp, &ConnectOptions::default()).expect("a connection to itself");
    events.add(&mut cq, 7).expect("the CQ is not added yet");
    (qp, cq)
}

fn model() -> Model {
    Model::builder().device(Profile::load("connectx6dx").expect("a profile")).build()
}

/// Waits until the engine's threads have read the doorbells.
fn wait_for_engine() {
    thread::sleep(Duration::from_millis(50));
}

/// Whether a completion of the queue pair raises a completion event.
fn completion_is_event(qp: &mut Qp, cq: &mut Cq, events: &CqEvents) -> bool {
    qp.post(&Nop::new().signaled(), 1).expect("room");
    wait_for_engine();
    let event = events.try_next().expect("the channel is open").is_some();
    assert!(qp.poll(cq).expect("the request completes").is_ok());
    event
}

#[test]
fn doorbell_mapped_before_reset_reaches_no_later_queue() {
    let model = model();
    let earlier = open(&model);
    let earlier_events = CqEvents::new(earlier.device()).expect("a channel");
    let (mut old_qp, mut old_cq) = pair(&earlier, &earlier_events);
    model.device(0).reset();
    let later = open(&model);
    let events = CqEvents::new(later.device()).expect("a channel");
    let (mut qp, mut cq) = pair(&later, &events);
    assert_eq!((old_cq.cqn(), old_qp.qpn()), (cq.cqn(), qp.qpn()), "QPNs and CQNs are reused");
    old_cq.arm(Notify::Next);
    let _ = old_qp.post(&Nop::new().signaled(), 9);
    wait_for_engine();
    assert!(!completion_is_event(&mut qp, &mut cq, &events), "the later CQ is not armed");
    cq.arm(Notify::Next);
    wait_for_engine();
    assert!(completion_is_event(&mut qp, &mut cq, &events));
}

#[test]
fn mmio_write_of_driver_from_before_reset_is_dropped() {
    let model = model();
    let earlier = model.device(0).attach().expect("a memfd");
    model.device(0).reset();
    let current = model.device(0).attach().expect("a memfd");
    let domain = open(&model);
    let events = CqEvents::new(domain.device()).expect("a channel");
    let (mut qp, mut cq) = pair(&domain, &events);
    for (consumed, driver, armed) in [(0, &earlier, false), (1, &current, true)] {
        // Arms the CQ with sequence number 1 on every UAR page: the CQ's own page is unknown here.
        let word = ((1_u64 << 28 | consumed) << 32 | u64::from(cq.cqn().0)).to_be_bytes();
        for page in 0..model.device(0).uars().pages() {
            driver.mmio_write(u64::from(page) * UAR_PAGE + CQ_ARM, &word);
        }
        assert_eq!(completion_is_event(&mut qp, &mut cq, &events), armed);
    }
}
