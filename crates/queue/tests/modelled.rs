//! Queues on a device of the model's: what they say of themselves, and that both halves of a queue
//! pair, and its control, reach the device.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use verbless_command::{Device, KeyAccess, RemoteAccess};
use verbless_devx::{Backend, Pd};
use verbless_model::{Link, Model, Profile};
use verbless_model_kernel::InProcess;
use verbless_prm::{CommandStatus, Opcode, QpState, SqState};
use verbless_queue::wr::{Nop, PostError};
use verbless_queue::{
    AccessKey, Completes, ConnectOptions, Cq, CqConfig, CqEvents, Domain, ErrorKind, PeerAddress,
    Qp, QpConfig, QpControl, Rc, RqConfig, SqConfig, SrqConfig,
};

/// How long a completion may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

fn open(profile: Profile) -> (Model, Domain) {
    let model = Model::builder().device(profile).build();
    let backend = InProcess::of(&model);
    let info = backend.enumerate().expect("the model has devices").remove(0);
    let device = Device::open(&backend, &info).expect("the model opens");
    let domain = Domain::new(&device).expect("a domain");
    (model, domain)
}

fn on(link: Link) -> (Model, Domain) {
    open(Profile::load("connectx6dx").expect("a profile").with_link(link))
}

fn cq(domain: &Domain) -> Cq {
    domain.completion_queue(&CqConfig::new(16)).expect("a completion queue")
}

/// A queue pair with a completion queue for each side.
fn pair(domain: &Domain) -> (Qp<Rc>, Cq, Cq) {
    let (sends, receives) = (cq(domain), cq(domain));
    let qp = domain.queue_pair(&QpConfig::new(4, 4), &sends, &receives).expect("a queue pair");
    (qp, sends, receives)
}

/// Waits until a completion can be looked at.
fn arrives(cq: &Cq) {
    let end = Instant::now() + PATIENCE;
    while cq.is_empty() {
        assert!(Instant::now() < end, "no completion comes");
        std::thread::yield_now();
    }
}

fn state(qp: &Qp<Rc>) -> QpState {
    qp.object().state().expect("the device answers")
}

/// Whether a value is printed as this and nothing else.
#[track_caller]
fn shown(value: &dyn Debug, expected: String) {
    assert_eq!(format!("{value:?}"), expected);
}

#[test]
fn queues_of_a_device_are_printed_with_their_numbers() {
    let (_model, domain) = on(Link::Infiniband);
    let (qp, sends, _receives) = pair(&domain);
    let (qpn, cqn) = (qp.qpn(), sends.object().cqn());
    shown(&qp, format!("Qp({qpn})"));
    shown(&sends, format!("Cq({cqn})"));
    shown(&sends.target(), format!("CqTarget({cqn})"));
    let (send, receive) = qp.split().expect("it has two completion queues");
    shown(&send, format!("SendHalf({qpn})"));
    shown(&receive, format!("ReceiveHalf({qpn})"));
    let (other, ..) = pair(&domain);
    let other_number = other.qpn();
    let (other_send, other_receive) = other.split().expect("it has two as well");
    let error = Qp::join(send, other_receive).expect_err("they are of two queue pairs");
    shown(&error, format!("JoinError(SendHalf({qpn}), ReceiveHalf({other_number}))"));
    let (send, _) = error.into_halves();
    let (queues, control) = Qp::join(send, receive).expect("its halves").with_control();
    shown(&queues, format!("QpQueues({qpn})"));
    shown(&control, format!("QpControl({qpn})"));
    drop(other_send);
    let one = domain.queue_pair(&QpConfig::new(1, 1), &sends, &sends).expect("a queue pair");
    let number = one.qpn();
    shown(&one.split().expect_err("one for both"), format!("SplitError(Qp({number}))"));
    let srq = domain.srq(&SrqConfig::new(4)).expect("a shared receive queue");
    assert!(format!("{srq:?}").starts_with("Srq("), "{srq:?}");
    let events = CqEvents::new(domain.device()).expect("a channel");
    assert!(format!("{events:?}").starts_with("CqEvents { fd: "), "{events:?}");
    let region = domain.region(4096, KeyAccess::LOCAL).expect("a region");
    let address = format!("Region {{ address: {:#x}, ", region.address());
    assert!(format!("{region:?}").starts_with(&address), "{region:?}");
    assert!(format!("{domain:?}").contains("ring chunks, "), "{domain:?}");
}

#[test]
fn queues_of_frames_are_printed_and_go_to_error() {
    let (_model, domain) = on(Link::Ethernet);
    let mut completions = cq(&domain);
    let mut sq = domain.sq(&SqConfig::new(4), &completions).expect("a send queue");
    let rq = domain.rq(&RqConfig::new(4), &completions).expect("a receive queue");
    shown(&sq, format!("Sq({})", sq.object().sqn()));
    shown(&rq, format!("Rq({})", rq.object().rqn()));
    assert_eq!(sq.object().query().expect("its context").state(), SqState::RDY);
    sq.post(&Nop::new().signaled(), 9).expect("there is room");
    arrives(&completions);
    let good = completions.peek_plain().expect("a good one");
    assert_eq!(Completes::succeed(&mut sq, good).expect("it is the queue's").cookie, 9);
    completions.pass();
    sq.to_error().expect("the device agrees");
    assert_eq!(sq.object().query().expect("its context").state(), SqState::ERR);
}

/// What the device may still write stays there, so that this test leaves memory behind.
#[test]
fn queues_of_frames_that_the_device_keeps_are_given_up_and_counted() {
    let (model, domain) = on(Link::Ethernet);
    let completions = cq(&domain);
    let sq = domain.sq(&SqConfig::new(4), &completions).expect("a send queue");
    let rq = domain.rq(&RqConfig::new(4), &completions).expect("a receive queue");
    let refuse = |opcode: Opcode| {
        model.fail_command(0, opcode.0, 1, CommandStatus::BAD_RES_STATE.0, 7);
    };
    refuse(Opcode::DESTROY_SQ);
    sq.destroy().expect_err("the device refused it");
    // So are those that the device leaves in their state.
    let leaked = domain.device().leaked();
    let sq = domain.sq(&SqConfig::new(4), &completions).expect("a send queue");
    refuse(Opcode::MODIFY_SQ);
    drop(sq);
    refuse(Opcode::MODIFY_RQ);
    drop(rq);
    assert_eq!(domain.device().leaked(), leaked + 2);
}

#[test]
fn a_half_of_a_queue_pair_moves_all_of_it_to_the_error_state() {
    let (_model, domain) = on(Link::Infiniband);
    let options = ConnectOptions::default();
    let (mut qp, mut sends, mut receives) = pair(&domain);
    domain.connect_to_itself(&mut qp, &options).expect("it reaches itself");
    qp.post_receive([], 7).expect("there is room");
    let (mut send, mut receive) = qp.split().expect("it has two completion queues");
    receive.to_error().expect("the device agrees");
    send.post(&Nop::new().signaled(), 8).expect("there is room");
    let flushed = sends.poll_within(PATIENCE).expect("a completion");
    assert!(send.complete(flushed).is_err(), "it is flushed");
    let flushed = receives.poll_within(PATIENCE).expect("a completion");
    assert!(receive.complete(flushed).is_err(), "it is flushed");
    assert_eq!(state(&Qp::join(send, receive).expect("its halves")), QpState::ERR);
}

#[test]
fn queues_on_a_device_complete_good_requests_the_fast_way() {
    let (_model, domain) = on(Link::Infiniband);
    let (mut qp, mut sends, _receives) = pair(&domain);
    domain.connect_to_itself(&mut qp, &ConnectOptions::default()).expect("it reaches itself");
    qp.post(&Nop::new().signaled(), 7).expect("there is room");
    arrives(&sends);
    let completion = Completes::succeed(&mut qp, sends.peek_plain().expect("a good one"));
    assert_eq!(completion.expect("it is of the queue pair").cookie, 7);
    sends.pass();
    let (mut send, _receive) = qp.split().expect("it has two completion queues");
    send.post(&Nop::new().signaled(), 8).expect("there is room");
    arrives(&sends);
    let completion = Completes::succeed(&mut send, sends.peek_plain().expect("a good one"));
    assert_eq!(completion.expect("it is of the half").cookie, 8);
}

#[test]
fn the_control_of_a_queue_pair_connects_it() {
    let (_model, domain) = on(Link::Infiniband);
    let options = ConnectOptions::default();
    let (qp, ..) = pair(&domain);
    let (_queues, control): (_, QpControl) = qp.with_control();
    control.to_init(&options).expect("INIT");
    assert!(control.is_in_init().expect("its state"));
    let own: PeerAddress = control.address(&domain, &options).expect("its address");
    control.connect(&domain, &own, &options).expect("it reaches itself");
    assert!(!control.is_in_init().expect("its state"));
    let bytes: [u8; PeerAddress::BYTES] = own.into();
    assert_eq!(bytes, own.to_bytes());
}

#[test]
fn an_imported_region_says_how_long_it_is() {
    let (_model, domain) = open(Profile::load("bluefield3").expect("a profile"));
    let secret = AccessKey::new([7; 32]);
    let region = domain.region(4096, KeyAccess::ALL).expect("a region");
    let shared = domain.share(&region, &secret).expect("the device shares keys");
    let imported = domain.import(&shared, &secret).expect("it is known");
    assert_eq!((imported.len(), imported.is_empty()), (4096, false));
    let nothing = verbless_queue::SharedRegion { length: 0, ..shared };
    assert!(domain.import(&nothing, &secret).expect("it is known").is_empty());
    let expected = format!("ImportedRegion {{ address: {:#x}, len: 4096, ", region.address());
    assert!(format!("{imported:?}").starts_with(&expected), "{imported:?}");
}

#[test]
fn a_gid_that_is_not_there_is_refused_with_those_that_are() {
    let (_model, domain) = on(Link::Ethernet);
    let (qp, ..) = pair(&domain);
    let options = ConnectOptions { gid_index: Some(200), ..ConnectOptions::default() };
    let error = domain.address(&qp, &options).expect_err("there are fewer").to_string();
    assert!(error.contains("choosing GID 200 of port 1"), "{error}");
    assert!(error.contains("the port has GIDs at 0, 1"), "{error}");
}

#[test]
fn a_domain_is_made_of_a_protection_domain_of_its_own_device() {
    let ((_model, domain), (_other_model, other)) = (on(Link::Infiniband), on(Link::Infiniband));
    let of = |pd: &Pd| Domain::builder(domain.device()).protection_domain(pd.clone()).build();
    assert_eq!(of(domain.pd()).expect("its own").pd().pdn(), domain.pd().pdn());
    let error = of(other.pd()).expect_err("it is another device's");
    assert_eq!(error.kind(), ErrorKind::Input);
    assert!(error.to_string().contains("of another context"), "{error}");
}

#[test]
fn a_region_has_a_key_for_peers_if_they_may_do_anything() {
    let (_model, domain) = on(Link::Infiniband);
    for bits in 0..8 {
        let [read, write, atomic] = [1, 2, 4].map(|bit| bits & bit != 0);
        let access = KeyAccess { remote: RemoteAccess { read, write, atomic }, ..KeyAccess::LOCAL };
        let region = domain.region(4096, access).expect("a region");
        assert_eq!(region.rkey().is_some(), bits != 0, "{access:?}");
    }
}

#[test]
fn queues_that_are_taken_back_take_nothing_more() {
    let (_model, domain) = on(Link::Infiniband);
    let (mut qp, ..) = pair(&domain);
    domain.connect_to_itself(&mut qp, &ConnectOptions::default()).expect("it reaches itself");
    let (mut queues, control) = qp.with_control();
    queues.take_back().expect("the device agrees");
    assert_eq!(queues.post(&Nop::new(), 0), Err(PostError::NotConnected));
    // From RESET it goes to INIT.
    assert!(!control.is_in_init().expect("its state"));
    control.to_init(&ConnectOptions::default()).expect("INIT");
    assert!(control.is_in_init().expect("its state"));
}

#[test]
fn a_receive_of_a_frame_has_32_entries_at_most() {
    let (_model, domain) = on(Link::Ethernet);
    let completions = cq(&domain);
    let most = domain.device().caps().max_receive_sges().min(32) as u32;
    let make = |sges| domain.rq(&RqConfig { sges, ..RqConfig::new(4) }, &completions).map(drop);
    make(most).expect("the most");
    assert_eq!(make(most + 1).expect_err("one more").kind(), ErrorKind::Input);
}

#[test]
fn queue_pair_in_reused_memory_begins_with_a_cleared_record() {
    let (_model, domain) = on(Link::Infiniband);
    let options = ConnectOptions::default();
    let (_kept, mut sends, _receives) = pair(&domain);
    for round in 0..8 {
        // Each has the memory of the one before: its record must not count what that posted.
        let mut qp: Qp<Rc> =
            domain.queue_pair(&QpConfig::new(4, 4), &sends, &sends).expect("a queue pair");
        domain.connect_to_itself(&mut qp, &options).expect("it reaches itself");
        std::thread::sleep(Duration::from_millis(2));
        assert!(sends.is_empty(), "something was posted in round {round}");
        assert_eq!(state(&qp), QpState::RTS, "round {round}");
        for cookie in 0..3 {
            qp.post(&Nop::new().signaled(), cookie).expect("room");
            arrives(&sends);
            let cqe = sends.poll().expect("a completion");
            assert_eq!(qp.complete(cqe).expect("it succeeds").cookie, cookie);
        }
    }
}
