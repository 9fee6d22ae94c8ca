//! Queues on a model device: `Debug` output, halves and control of a queue pair, and failures.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use verbless_command::{Device, InitAttr, KeyAccess, RemoteAccess};
use verbless_devx::{Backend, Pd, UarKind};
use verbless_model::{
    FrameEffect, FrameFault, FrameSelector, Link, LinkSettings, Model, Occurrence, Profile,
    QueueKind, Side, Times,
};
use verbless_model_kernel::{InProcess, KernelRelease, SystemPage};
use verbless_prm::{CommandStatus, EqeQpSrq, EqeQueueType, Opcode, QpState, SqState};
use verbless_queue::wr::{Nop, PostError, Send, Write};
use verbless_queue::{
    AccessKey, ConnectOptions, Cq, CqConfig, CqEvents, Domain, ErrorKind, Memory, Parked,
    PeerAddress, Qp, QpConfig, QpControl, Rc, RqConfig, SharedRegion, SqConfig, SrqConfig, WithSrq,
    WorkQueue,
};

/// Time limit for a completion on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

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

/// Waits until the CQ has a completion.
fn arrives(cq: &Cq) {
    let end = Instant::now() + TIMEOUT;
    while cq.is_empty() {
        assert!(Instant::now() < end, "no completion comes");
        std::thread::yield_now();
    }
}

fn state(qp: &Qp<Rc>) -> QpState {
    qp.object().state().expect("the device answers")
}

/// Checks the whole `Debug` output of a value.
#[track_caller]
fn shown(value: &dyn Debug, expected: String) {
    assert_eq!(format!("{value:?}"), expected);
}

#[test]
fn queues_show_numbers_in_debug() {
    let (_model, domain) = on(Link::Infiniband);
    let (qp, sends, _receives) = pair(&domain);
    let (qpn, cqn) = (qp.qpn(), sends.object().cqn());
    shown(&qp, format!("Qp({qpn})"));
    shown(&sends, format!("Cq({cqn})"));
    shown(&sends.target(), format!("CqTarget({cqn})"));
    let (send, receive) = qp.split().expect("the QP has two CQs");
    shown(&send, format!("SendHalf({qpn})"));
    shown(&receive, format!("ReceiveHalf({qpn})"));
    let (other, ..) = pair(&domain);
    let other_number = other.qpn();
    let (other_send, other_receive) = other.split().expect("the other QP has two CQs");
    let error = Qp::join(send, other_receive).expect_err("the halves are of two QPs");
    shown(&error, format!("JoinError(SendHalf({qpn}), ReceiveHalf({other_number}))"));
    let (send, _) = error.into_halves();
    let (queues, control) =
        Qp::join(send, receive).expect("the halves are of one QP").with_control();
    shown(&queues, format!("QpQueues({qpn})"));
    shown(&control, format!("QpControl({qpn})"));
    drop(other_send);
    let one = domain.queue_pair(&QpConfig::new(1, 1), &sends, &sends).expect("a queue pair");
    let number = one.qpn();
    shown(&one.split().expect_err("both sides use one CQ"), format!("SplitError(Qp({number}))"));
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
fn ethernet_queues_show_numbers_and_enter_error() {
    let (_model, domain) = on(Link::Ethernet);
    let mut completions = cq(&domain);
    let mut sq = domain.sq(&SqConfig::new(4), &completions).expect("a send queue");
    let rq = domain.rq(&RqConfig::new(4), &completions).expect("a receive queue");
    shown(&sq, format!("Sq({})", sq.object().sqn()));
    shown(&rq, format!("Rq({})", rq.object().rqn()));
    assert_eq!(sq.object().query().expect("the context").state(), SqState::RDY);
    sq.post(&Nop::new().signaled(), 9).expect("there is room");
    arrives(&completions);
    let good = completions.peek_send().expect("a successful CQE");
    assert_eq!(
        WorkQueue::complete_success(&mut sq, good).expect("the CQE is of this SQ").cookie,
        9
    );
    completions.consume_peeked();
    sq.to_error().expect("the device accepts the transition");
    assert_eq!(sq.object().query().expect("the context").state(), SqState::ERR);
}

/// Linux 5.10 refuses UMEM_REG's page-size bitmap; Linux 5.15 refuses page sizes below its own. An
/// RMP must begin in the first half of a page. Forty rings reach the second half of a chunk.
#[test]
fn queues_work_on_old_kernels_and_on_larger_pages() {
    let (old, newer) = (KernelRelease::V5_10, KernelRelease::V5_15);
    for (release, pages, by_address, lacks_small) in [
        (old, 4, true, false),
        (old, 64, true, false),
        (newer, 4, false, false),
        (newer, 64, false, true),
        (KernelRelease::Newest, 64, false, false),
    ] {
        let profile = Profile::load("connectx6dx").expect("a profile").with_link(Link::Ethernet);
        let model = Model::builder().device(profile).build();
        let page = SystemPage::new(pages).expect("not below the pages of x86-64");
        let backend = InProcess::of(&model).like(release).with_pages(page);
        let info = backend.enumerate().expect("the model has devices").remove(0);
        let device = Device::open(&backend, &info).expect("the model opens");
        assert_eq!(device.page_size() as u64, page.bytes());
        assert!(!device.pages_follow_address(), "nothing was registered yet");
        let domain = Domain::new(&device).expect("a domain");
        let mut completions = cq(&domain);
        let found = (device.pages_follow_address(), device.umems_lack_small_pages());
        assert_eq!(found, (by_address, lacks_small), "{release} {page}");
        let srqs =
            [(); 40].map(|()| domain.srq(&SrqConfig::new(4)).expect("a shared receive queue"));
        let region = domain.region(1 << 20, KeyAccess::LOCAL).expect("a region");
        let mut sq = domain.sq(&SqConfig::new(4), &completions).expect("a send queue");
        sq.post(&Nop::new().signaled(), 9).expect("there is room");
        arrives(&completions);
        let good = completions.peek_send().expect("a good one");
        let done = WorkQueue::complete_success(&mut sq, good).expect("the CQE is of this SQ");
        assert_eq!(done.cookie, 9, "{release} {page}");
        completions.consume_peeked();
        drop((srqs, region, sq, completions, domain));
        assert_eq!(device.leaked(), 0, "{release} {page}");
    }
}

/// A UAR's mapping is one page of the kernel; the UAR is its first 4 KiB.
#[test]
fn uar_fills_a_page_of_the_kernel() {
    let profile = Profile::load("connectx6dx").expect("a profile");
    for (pages, uars) in [(16, 4), (64, 16)] {
        let model = Model::builder().device(profile.clone()).build();
        let page = SystemPage::new(pages).expect("not below the pages of x86-64");
        let backend = InProcess::of(&model).with_pages(page);
        let info = backend.enumerate().expect("the model has devices").remove(0);
        let device = Device::open(&backend, &info).expect("the model opens");
        let made = [(); 3].map(|()| device.uar_alloc(UarKind::NonCached).expect("a UAR"));
        for uar in &made {
            assert_eq!(uar.mapping().len() as u64, page.bytes());
            assert!(uar.page_id().is_multiple_of(uars), "{:#x}", uar.page_id());
        }
        assert_ne!(made[0].page_id(), made[1].page_id());
    }
}

/// A region's pages may be larger than the kernel's, and begin anywhere in one.
#[test]
fn regions_begin_anywhere_in_a_larger_page() {
    let profile = Profile::load("connectx6dx").expect("a profile");
    for release in [KernelRelease::V5_10, KernelRelease::V5_15, KernelRelease::Newest] {
        let model = Model::builder().device(profile.clone()).build();
        let page = SystemPage::new(64).expect("not below the pages of x86-64");
        let backend = InProcess::of(&model).like(release).with_pages(page);
        let info = backend.enumerate().expect("the model has devices").remove(0);
        let domain = Domain::new(&Device::open(&backend, &info).expect("the device opens"))
            .expect("a domain");
        let whole = Memory::allocate(1 << 20).expect("memory");
        for (offset, length) in
            [(0, 1 << 20), (0x1000, 0x1000), (0xf040, 0x2_0000), (0x1_0000, 0x1_0000), (7, 1)]
        {
            let part = whole.slice(offset, length).expect("within");
            let region = domain.region_of(&part, KeyAccess::ALL).expect("a region");
            assert_eq!(region.address(), whole.address() + offset as u64, "{release}");
        }
    }
}

/// The device may still write to the leaked objects, so this test leaks memory.
#[test]
fn undestroyed_ethernet_queues_count_as_leaks() {
    let (model, domain) = on(Link::Ethernet);
    let completions = cq(&domain);
    let sq = domain.sq(&SqConfig::new(4), &completions).expect("a send queue");
    let rq = domain.rq(&RqConfig::new(4), &completions).expect("a receive queue");
    let refuse = |opcode: Opcode| {
        model.fail_command(0, opcode, 1, CommandStatus::BAD_RES_STATE, 7);
    };
    refuse(Opcode::DESTROY_SQ);
    sq.destroy().expect_err("the device refused it");
    // The same holds for queues that the device fails to move to RST.
    let leaked = domain.device().leaked();
    let sq = domain.sq(&SqConfig::new(4), &completions).expect("a send queue");
    refuse(Opcode::MODIFY_SQ);
    drop(sq);
    refuse(Opcode::MODIFY_RQ);
    drop(rq);
    assert_eq!(domain.device().leaked(), leaked + 2);
}

#[test]
fn receive_half_moves_whole_qp_to_error() {
    let (_model, domain) = on(Link::Infiniband);
    let options = ConnectOptions::default();
    let (mut qp, mut sends, mut receives) = pair(&domain);
    domain.connect_loopback(&mut qp, &options).expect("a connection to itself");
    qp.post_receive([], 7).expect("there is room");
    let (mut send, mut receive) = qp.split().expect("the QP has two CQs");
    receive.to_error().expect("the device accepts the transition");
    send.post(&Nop::new().signaled(), 8).expect("there is room");
    let flushed = sends.poll_within(TIMEOUT).expect("no error").expect("a completion");
    assert!(send.complete(flushed).is_err(), "the request is flushed");
    let flushed = receives.poll_within(TIMEOUT).expect("no error").expect("a completion");
    assert!(receive.complete(flushed).is_err(), "the request is flushed");
    assert_eq!(state(&Qp::join(send, receive).expect("the halves are of one QP")), QpState::ERR);
}

#[test]
fn device_queues_complete_by_fast_path() {
    let (_model, domain) = on(Link::Infiniband);
    let (mut qp, mut sends, _receives) = pair(&domain);
    domain.connect_loopback(&mut qp, &ConnectOptions::default()).expect("a connection to itself");
    qp.post(&Nop::new().signaled(), 7).expect("there is room");
    arrives(&sends);
    let completion =
        WorkQueue::complete_success(&mut qp, sends.peek_send().expect("a successful CQE"));
    assert_eq!(completion.expect("the CQE is of the QP").cookie, 7);
    sends.consume_peeked();
    let (mut send, _receive) = qp.split().expect("the QP has two CQs");
    send.post(&Nop::new().signaled(), 8).expect("there is room");
    arrives(&sends);
    let completion =
        WorkQueue::complete_success(&mut send, sends.peek_send().expect("a successful CQE"));
    assert_eq!(completion.expect("the CQE is of the half").cookie, 8);
}

#[test]
fn qp_control_connects_its_qp() {
    let (_model, domain) = on(Link::Infiniband);
    let options = ConnectOptions::default();
    let (qp, ..) = pair(&domain);
    let (_queues, control): (_, QpControl) = qp.with_control();
    control.to_init(&options).expect("INIT");
    assert!(control.is_in_init().expect("the state"));
    let own: PeerAddress = control.address(&domain, &options).expect("the address");
    control.connect(&domain, &own, &options).expect("a connection to itself");
    assert!(!control.is_in_init().expect("the state"));
    let bytes: [u8; PeerAddress::BYTES] = own.into();
    assert_eq!(bytes, own.to_bytes());
}

#[test]
fn imported_region_has_length_of_shared() {
    let (_model, domain) = open(Profile::load("bluefield3").expect("a profile"));
    let secret = AccessKey::new([7; 32]);
    let region = domain.region(4096, KeyAccess::ALL).expect("a region");
    let shared = domain.share(&region, &secret).expect("the device shares keys");
    let imported = domain.import(&shared, &secret).expect("the secret is right");
    assert_eq!((imported.len(), imported.is_empty()), (4096, false));
    let nothing = verbless_queue::SharedRegion { length: 0, ..shared };
    assert!(domain.import(&nothing, &secret).expect("the secret is right").is_empty());
    let expected = format!("ImportedRegion {{ address: {:#x}, len: 4096, ", region.address());
    assert!(format!("{imported:?}").starts_with(&expected), "{imported:?}");
}

#[test]
fn missing_gid_index_error_lists_existing_ones() {
    let (_model, domain) = on(Link::Ethernet);
    let (qp, ..) = pair(&domain);
    let options = ConnectOptions { gid_index: Some(200), ..ConnectOptions::default() };
    let error = domain.address(&qp, &options).expect_err("there are fewer").to_string();
    assert!(error.contains("choosing GID 200 of port 1"), "{error}");
    assert!(error.contains("the port has GIDs at 0, 1"), "{error}");
}

#[test]
fn builder_rejects_pd_of_another_device() {
    let ((_model, domain), (_other_model, other)) = (on(Link::Infiniband), on(Link::Infiniband));
    let of = |pd: &Pd| Domain::builder(domain.device()).protection_domain(pd.clone()).build();
    assert_eq!(of(domain.pd()).expect("the domain of this device").pd().pdn(), domain.pd().pdn());
    let error = of(other.pd()).expect_err("the PD is of another device");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("of another context"), "{error}");
}

#[test]
fn region_has_rkey_if_remote_access_is_set() {
    let (_model, domain) = on(Link::Infiniband);
    for bits in 0..8 {
        let [read, write, atomic] = [1, 2, 4].map(|bit| bits & bit != 0);
        let access = KeyAccess { remote: RemoteAccess { read, write, atomic }, ..KeyAccess::LOCAL };
        let region = domain.region(4096, access).expect("a region");
        assert_eq!(region.rkey().is_some(), bits != 0, "{access:?}");
    }
}

#[test]
fn qp_queues_reject_posts_from_to_reset_until_reset() {
    let (_model, domain) = on(Link::Infiniband);
    let (mut qp, mut sends, _receives) = pair(&domain);
    let options = ConnectOptions::default();
    domain.connect_loopback(&mut qp, &options).expect("a connection to itself");
    let memory = domain.region(64, KeyAccess::ALL).expect("a region");
    let (mut queues, control) = qp.with_control();
    queues.post_receive(memory.sge(0, 64).expect("inside"), 1).expect("there is room");
    queues.post(&Nop::new().signaled(), 2).expect("there is room");
    queues.post(&Nop::new(), 3).expect("there is room");
    arrives(&sends);
    queues.to_reset().expect("the device accepts the transition");
    assert_eq!(queues.post(&Nop::new(), 0), Err(PostError::NotConnected));
    let done = queues.poll(&mut sends).expect("the request completed before").expect("no error");
    assert_eq!(done.cookie, 2);
    assert_eq!(queues.post(&Nop::new(), 0), Err(PostError::NotConnected));
    // From RESET it goes to INIT only after its rings are cleared.
    assert!(!control.is_in_init().expect("the state"));
    let error = control.to_init(&options).expect_err("the rings have the old requests");
    assert!(
        error.kind() == ErrorKind::InvalidInput && error.to_string().contains("`reset`"),
        "{error}"
    );
    assert!(!control.is_in_init().expect("the state"));
    queues.reset().expect("the device accepts the transition");
    control.to_init(&options).expect("INIT");
    assert!(control.is_in_init().expect("the state"));
}

#[test]
fn qp_leaves_reset_only_after_its_rings_are_cleared() {
    let (_model, domain) = on(Link::Infiniband);
    let (mut qp, mut sends, _receives) = pair(&domain);
    let options = ConnectOptions::default();
    let init = InitAttr { port: 1, pkey_index: 0, access: KeyAccess::ALL.remote };
    domain.connect_loopback(&mut qp, &options).expect("a connection to itself");
    qp.post(&Nop::new().signaled(), 2).expect("there is room");
    qp.post(&Nop::new().signaled(), 3).expect("there is room");
    arrives(&sends);
    qp.to_reset().expect("the device accepts the transition");
    assert_eq!(qp.post(&Nop::new(), 0), Err(PostError::NotConnected));
    let error = qp.to_init(&init).expect_err("the rings have the old requests");
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    // ERR flushes no old request, and takes no new one.
    qp.to_error().expect("the device accepts the transition");
    assert_eq!(qp.post(&Nop::new(), 0), Err(PostError::NotConnected));
    let done = qp.poll(&mut sends).expect("the request completed before").expect("no error");
    assert_eq!(done.cookie, 2);
    qp.reset().expect("the device accepts the transition");
    domain.connect_loopback(&mut qp, &options).expect("a connection to itself");
    qp.post(&Nop::new().signaled(), 4).expect("there is room");
    let done = loop {
        arrives(&sends);
        if let Some(done) = qp.poll(&mut sends) {
            break done.expect("no error");
        }
    };
    assert_eq!(done.cookie, 4);
}

#[test]
fn send_half_of_reset_qp_stays_closed() {
    let (_model, domain) = on(Link::Infiniband);
    let (mut qp, _sends, _receives) = pair(&domain);
    domain.connect_loopback(&mut qp, &ConnectOptions::default()).expect("a connection to itself");
    qp.post(&Nop::new(), 0).expect("there is room");
    qp.to_reset().expect("the device accepts the transition");
    let (mut send, _receive) = qp.split().expect("a completion queue for each side");
    send.to_error().expect("the device accepts the transition");
    assert_eq!(send.post(&Nop::new(), 0), Err(PostError::NotConnected));
}

#[test]
fn failed_destroy_with_unknown_status_is_leaked() {
    let (model, domain) = on(Link::Infiniband);
    let (qp, ..) = pair(&domain);
    let always = Times::from(1).always();
    model.fail_command(0, Opcode::DESTROY_QP, always, CommandStatus::INTERNAL_ERR, 7);
    let error = qp.destroy().expect_err("the device refuses");
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("answers other commands"), "{error}");
    assert_eq!(domain.device().leaked(), 1);
}

#[test]
fn region_of_failed_device_fails_with_device_gone() {
    let (model, domain) = on(Link::Infiniband);
    model.kill(0);
    let error = domain.region(1 << 20, KeyAccess::LOCAL).expect_err("the device has failed");
    assert_eq!(error.kind(), ErrorKind::DeviceGone, "{error}");
}

#[test]
fn collapsed_cq_takes_every_send_of_one_qp() {
    let (_model, domain) = on(Link::Infiniband);
    let sends = domain.collapsed_completion_queue().expect("a collapsed completion queue");
    let config = QpConfig::new(8, 1);
    let receives = domain.completion_queue(&CqConfig::new(config.receive_cqes())).expect("a CQ");
    let mut qp: Qp<Rc> = domain
        .queue_pair_towards(&config, &sends.target(), &receives.target())
        .expect("as the documentation has it");
    domain.connect_loopback(&mut qp, &ConnectOptions::default()).expect("a connection to itself");
    for cookie in 0..8 {
        qp.post(&Nop::new().signaled(), cookie).expect("room");
    }
    let end = Instant::now() + TIMEOUT;
    let mut newest = None;
    while newest != Some(7) {
        assert!(Instant::now() < end, "the last one does not complete: {newest:?}");
        if let Some(completion) = qp.poll_collapsed(&sends) {
            newest = Some(completion.expect("a successful completion").cookie);
        }
    }
}

#[test]
fn rq_takes_at_most_32_sges() {
    let (_model, domain) = on(Link::Ethernet);
    let completions = cq(&domain);
    let most = domain.device().caps().max_receive_sges().min(32) as u32;
    let make = |sges| domain.rq(&RqConfig { sges, ..RqConfig::new(4) }, &completions).map(drop);
    make(most).expect("the most");
    assert_eq!(make(most + 1).expect_err("one above the limit").kind(), ErrorKind::InvalidInput);
}

/// A full CQ that has overrun.
fn overrun(domain: &Domain) -> (Qp<Rc>, Cq) {
    let config = CqConfig { overcommit: true, ..CqConfig::new(4) };
    let sends = domain.completion_queue(&config).expect("a completion queue");
    let mut qp = domain.queue_pair(&QpConfig::new(8, 4), &sends, &cq(domain)).expect("a QP");
    domain.connect_loopback(&mut qp, &ConnectOptions::default()).expect("a connection to itself");
    (qp, sends)
}

fn post_nops(qp: &mut Qp<Rc>, count: u64) {
    for cookie in 0..count {
        qp.post(&Nop::new().signaled(), cookie).expect("there is room");
    }
}

/// Posts more than the CQ holds, and waits until it has overrun.
fn let_overrun(qp: &mut Qp<Rc>, cq: &Cq) {
    post_nops(qp, 8);
    let end = Instant::now() + TIMEOUT;
    while cq.check().is_ok() {
        assert!(Instant::now() < end, "the CQ does not overrun");
    }
}

fn take(qp: &mut Qp<Rc>, cq: &mut Cq, count: u64) {
    for cookie in 0..count {
        arrives(cq);
        let done = qp.poll(cq).expect("the message arrived").expect("no error");
        assert_eq!(done.cookie, cookie);
    }
}

#[test]
fn cq_overrun_ends_every_wait() {
    let (_model, domain) = on(Link::Infiniband);
    let (mut qp, mut sends) = overrun(&domain);
    let mut events = CqEvents::new(domain.device()).expect("a channel");
    events.add(&mut sends, 7).expect("the CQ is not added yet");
    assert_eq!(events.park(&mut sends).expect("no error"), Parked::Armed);
    let_overrun(&mut qp, &sends);
    // Its CQEs come first, and then the error, on each call.
    assert!(events.wait_for(&mut sends, None).expect("the CQ holds CQEs"));
    take(&mut qp, &mut sends, 4);
    let errors = [
        events.wait_for(&mut sends, None).expect_err("the CQ overran"),
        events.park(&mut sends).expect_err("the CQ overran"),
        events.completions(&mut sends, None).next().expect("an item").expect_err("the CQ overran"),
        sends.check().expect_err("the CQ overran"),
        sends.poll_within(TIMEOUT).expect_err("the CQ overran"),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::QueueFailed, "{error}");
        assert!(error.to_string().contains("all 4 entries unread"), "{error}");
    }
}

#[test]
fn cq_error_wakes_token_wait() {
    let (_model, domain) = on(Link::Infiniband);
    let (mut qp, mut sends) = overrun(&domain);
    let events = CqEvents::new(domain.device()).expect("a channel");
    events.add(&mut sends, 7).expect("the CQ is not added yet");
    let_overrun(&mut qp, &sends);
    take(&mut qp, &mut sends, 4);
    // It is not armed: the error is the only event.
    assert_eq!(events.wait(Some(TIMEOUT)).expect("no error of the channel"), Some(7));
    assert_eq!(events.park(&mut sends).expect_err("the CQ overran").kind(), ErrorKind::QueueFailed);
}

#[test]
fn poll_detects_cq_overrun_within_100_ms() {
    let (_model, domain) = on(Link::Infiniband);
    let (mut qp, mut sends) = overrun(&domain);
    let_overrun(&mut qp, &sends);
    take(&mut qp, &mut sends, 4);
    let start = Instant::now();
    // Several short calls add up.
    let error = loop {
        match sends.poll_within(Duration::from_millis(5)) {
            Ok(found) => assert_eq!(found, None),
            Err(error) => break error,
        }
        assert!(start.elapsed() < TIMEOUT, "the overrun is not found");
    };
    let taken = start.elapsed();
    assert!(taken >= Duration::from_millis(90) && taken < Duration::from_secs(3), "{taken:?}");
    assert_eq!(error.kind(), ErrorKind::QueueFailed);
}

#[test]
fn posting_drain_overruns_no_exact_size_cq() {
    let (_model, domain) = on(Link::Infiniband);
    let mut sends = domain.completion_queue(&CqConfig::new(8)).expect("a completion queue");
    let receives = cq(&domain);
    let mut qp =
        domain.queue_pair(&QpConfig::new(4, 0), &sends, &receives).expect("the queues fit the CQs");
    domain.connect_loopback(&mut qp, &ConnectOptions::default()).expect("a connection to itself");
    assert_eq!(qp.send.free(), 8, "as many as the CQ has entries");
    for cookie in 0..8 {
        qp.post(&Nop::new().signaled(), cookie).expect("there is room");
    }
    let end = Instant::now() + TIMEOUT;
    let mut taken = 0;
    while taken < 24 {
        assert!(Instant::now() < end, "{taken} came: {:?}", sends.check());
        for cqe in sends.drain(24) {
            assert_eq!(qp.complete(cqe).expect("the CQE completes").cookie, taken);
            qp.post(&Nop::new().signaled(), taken + 8).expect("there is room");
            taken += 1;
            // It completes meanwhile.
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    sends.check().expect("the CQ has not overrun");
    // With spare entries, the consumer index goes back for several CQEs at once.
    let mut wide = domain.completion_queue(&CqConfig::new(16)).expect("a completion queue");
    let mut qp =
        domain.queue_pair(&QpConfig::new(4, 0), &wide, &receives).expect("the queues fit the CQs");
    domain.connect_loopback(&mut qp, &ConnectOptions::default()).expect("a connection to itself");
    for cookie in 0..3 {
        qp.post(&Nop::new().signaled(), cookie).expect("there is room");
    }
    while taken < 27 {
        assert!(Instant::now() < end, "{taken} came");
        taken +=
            wide.drain(24).map(|cqe| qp.complete(cqe).expect("the CQE completes")).count() as u64;
    }
}

#[test]
fn fragmented_memory_is_registered_in_small_pages() {
    let (model, domain) = on(Link::Infiniband);
    model.fragment_memory(0);
    let sizes = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = sizes.clone();
    let _watch = model.watch_commands(move |executed| {
        let input = verbless_prm::CreateUmemIn::from_prefix(executed.input);
        if let Some(input) = input.filter(|it| it.opcode() == Opcode::CREATE_UMEM.0) {
            seen.lock().expect("no panic").push(input.umem().log_page_size());
        }
    });
    const LENGTH: usize = 4 << 20;
    let from = domain.region(LENGTH, KeyAccess::LOCAL).expect("memory");
    let into = domain.region(LENGTH, KeyAccess::ALL).expect("memory");
    assert_eq!(from.address() % (2 << 20), 0, "the region is aligned to 2 MiB");
    let (mut qp, mut sends, _receives) = pair(&domain);
    domain.connect_loopback(&mut qp, &ConnectOptions::default()).expect("a connection to itself");
    from.write_at(LENGTH - 8, &[0x5a; 8]).expect("room");
    let whole = from.sge(0, LENGTH).expect("a range");
    let remote = into.remote(0, LENGTH).expect("a range");
    qp.post(&verbless_queue::wr::Write::new(whole, remote).signaled(), 1).expect("room");
    let cqe = sends.poll_within(TIMEOUT).expect("the CQ works").expect("a CQE came");
    qp.complete(cqe).expect("the CQE completes");
    let mut last = [0; 8];
    into.read_at(LENGTH - 8, &mut last).expect("the range is in the region");
    assert_eq!(last, [0x5a; 8]);
    let sizes = sizes.lock().expect("no panic");
    assert!(sizes.len() >= 2 && sizes.iter().all(|&size| size == 0), "{sizes:?}");
}

#[test]
fn watched_qp_error_ends_wait_once() {
    let (model, domain) = on(Link::Infiniband);
    let (mut qp, _sends, mut receives) = pair(&domain);
    domain.connect_loopback(&mut qp, &ConnectOptions::default()).expect("a connection to itself");
    let mut events = CqEvents::new(domain.device()).expect("a channel");
    let refused = events.watch(&receives, &qp).expect_err("the CQ is not on the channel");
    assert!(refused.to_string().contains("call `add` first"), "{refused}");
    events.add(&mut receives, 7).expect("the CQ is not added yet");
    events.watch(&receives, &qp).expect("the device reports these events");
    model.fail_queue(0, verbless_model::QueueKind::Qp, qp.qpn().0);
    let error = events.wait_for(&mut receives, None).expect_err("a queue pair of the CQ failed");
    assert_eq!(error.kind(), ErrorKind::QueueFailed, "{error}");
    let qpn = format!("QP {:#x}", qp.qpn().0);
    assert!(error.to_string().contains(&qpn) && error.to_string().contains("0x05"), "{error}");
    let wait = events.wait_for(&mut receives, Some(Duration::from_millis(20)));
    assert!(!wait.expect("the failure was reported"), "no CQE comes");
}

#[test]
fn port_down_ends_wait_once() {
    for link in [Link::Infiniband, Link::Ethernet] {
        let (model, domain) = on(link);
        let mut receives = cq(&domain);
        let mut events = CqEvents::new(domain.device()).expect("a channel");
        events.add(&mut receives, 7).expect("the CQ is not added yet");
        assert!(events.watch_port(&receives, 9).is_err(), "there is no port 9");
        events.watch_port(&receives, 1).expect("port 1 exists");
        let short = Some(Duration::from_millis(20));
        assert!(!events.wait_for(&mut receives, short).expect("the port is up"), "no CQE");
        for _ in 0..2 {
            model.set_port(0, 1, false);
            let error = events.wait_for(&mut receives, None).expect_err("the port is down");
            assert_eq!(error.kind(), ErrorKind::PortDown, "{error}");
            // The first wait reported it, and a port that comes up is not an error.
            assert!(!events.wait_for(&mut receives, short).expect("once"), "no CQE");
            model.set_port(0, 1, true);
            assert!(!events.wait_for(&mut receives, short).expect("the port is up"), "no CQE");
        }
        // A port that is already down.
        model.set_port(0, 1, false);
        let mut other = cq(&domain);
        events.add(&mut other, 8).expect("the CQ is not added yet");
        events.watch_port(&other, 1).expect("port 1 exists");
        let error = events.wait_for(&mut other, None).expect_err("the port is down");
        assert_eq!(error.kind(), ErrorKind::PortDown, "{error}");
    }
}

#[test]
fn failures_before_subscription_are_found() {
    let (model, domain) = on(Link::Infiniband);
    let (mut qp, mut sends) = overrun(&domain);
    let_overrun(&mut qp, &sends);
    take(&mut qp, &mut sends, 4);
    let mut events = CqEvents::new(domain.device()).expect("a channel");
    events.add(&mut sends, 7).expect("the CQ is not added yet");
    let error = events.wait_for(&mut sends, None).expect_err("the CQ overran before");
    assert_eq!(error.kind(), ErrorKind::QueueFailed, "{error}");
    let (mut qp, _sends, mut receives) = pair(&domain);
    domain.connect_loopback(&mut qp, &ConnectOptions::default()).expect("a connection to itself");
    model.fail_queue(0, verbless_model::QueueKind::Qp, qp.qpn().0);
    events.add(&mut receives, 8).expect("the CQ is not added yet");
    events.watch(&receives, &qp).expect("the device reports these events");
    let error =
        events.wait_for(&mut receives, None).expect_err("a queue pair of the CQ failed before");
    assert_eq!(error.kind(), ErrorKind::QueueFailed, "{error}");
}

#[test]
fn srq_sq_and_rq_are_watched() {
    let (model, domain) = on(Link::Ethernet);
    let (mut sends, mut receives) = (cq(&domain), cq(&domain));
    let mut events = CqEvents::new(domain.device()).expect("a channel");
    events.add(&mut sends, 1).expect("the CQ is not added yet");
    events.add(&mut receives, 2).expect("the CQ is not added yet");
    let srq = domain.srq(&SrqConfig::new(3)).expect("an SRQ");
    let sq = domain.sq(&SqConfig::new(4), &sends).expect("a send queue");
    let rq = domain.rq(&RqConfig::new(4), &receives).expect("a receive queue");
    events.watch(&receives, &srq).expect("the device reports these events");
    events.watch(&sends, &sq).expect("the device reports these events");
    events.watch(&receives, &rq).expect("the device reports these events");
    let short = Some(Duration::from_millis(20));
    for cq in [&mut sends, &mut receives] {
        assert!(!events.wait_for(cq, short).expect("all is well"), "no CQE");
    }
    let event = |kind: u8, queue_type: EqeQueueType, number: u32| {
        let mut data = EqeQpSrq::zeroed();
        data.set_type(queue_type).set_qpn_rqn_sqn(number);
        model.device(0).report_event(kind, *data.as_bytes());
    };
    event(0x12, EqeQueueType::RQ, srq.object().rmpn().0);
    let error = events.wait_for(&mut receives, None).expect_err("the SRQ failed");
    assert!(error.to_string().contains("SRQ") && error.to_string().contains("0x12"), "{error}");
    event(0x05, EqeQueueType::SQ, sq.object().sqn().0);
    let error = events.wait_for(&mut sends, None).expect_err("the SQ failed");
    assert!(error.to_string().contains("SQ 0x"), "{error}");
    event(0x11, EqeQueueType::RQ, rq.object().rqn().0);
    let error = events.wait_for(&mut receives, None).expect_err("the RQ failed");
    assert!(error.to_string().contains("RQ 0x"), "{error}");
    // The event of a dropped queue does not reach the CQ.
    event(0x11, EqeQueueType::RQ, rq.object().rqn().0);
    drop(rq);
    assert!(!events.wait_for(&mut receives, short).expect("the failed RQ is gone"), "no CQE");
}

#[test]
fn reset_qp_waits_for_room_in_its_cq() {
    let (_model, domain) = on(Link::Infiniband);
    let config = QpConfig { inline: 0, ..QpConfig::new(8, 4) };
    let entries = CqConfig::new(config.cqes::<Rc>());
    let mut both = domain.completion_queue(&entries).expect("a completion queue");
    let mut qp = domain.queue_pair(&config, &both, &both).expect("a queue pair");
    let options = ConnectOptions::default();
    domain.connect_loopback(&mut qp, &options).expect("a connection to itself");
    post_nops(&mut qp, 8);
    let end = Instant::now() + TIMEOUT;
    while both.object().query().expect("the device answers").producer_counter() < 8 {
        assert!(Instant::now() < end, "no completion comes");
    }
    qp.reset().expect("the device accepts the transition");
    // Eight CQEs are removed, and still have their entries.
    let refused = domain.connect_loopback(&mut qp, &options).expect_err("the CQ could overrun");
    assert!(refused.to_string().contains("8 CQEs"), "{refused}");
    let other = domain.queue_pair(&QpConfig::new(1, 1), &both, &both).expect_err("no room");
    assert_eq!(other.kind(), ErrorKind::InvalidInput);
    assert!(both.poll().is_none(), "the CQEs of the reset QP are removed");
    domain.connect_loopback(&mut qp, &options).expect("the entries are free");
}

#[test]
fn qp_beyond_cq_entries_is_rejected() {
    let (_model, domain) = on(Link::Infiniband);
    let config = QpConfig::new(16, 16);
    assert_eq!(
        (config.send_cqes::<Rc>(), config.receive_cqes(), config.cqes::<Rc>()),
        (32, 16, 48)
    );
    let small = cq(&domain);
    let refused = domain.queue_pair(&config, &small, &small).expect_err("the CQ could overrun");
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    for part in ["48 requests", "16 entries", "CqConfig::new(48)", "overcommit"] {
        assert!(refused.to_string().contains(part), "{refused}");
    }
    let entries = CqConfig::new(config.cqes::<Rc>());
    let fits = domain.completion_queue(&entries).expect("a completion queue");
    domain.queue_pair(&config, &fits, &fits).expect("there is an entry for each");
}

/// Drops or resets a queue pair of an SRQ in the middle of a message.
fn leave_in_the_middle(leave: impl FnOnce(Qp<Rc, WithSrq>) -> Option<Qp<Rc, WithSrq>>) {
    let card = Profile::load("connectx6dx").expect("a profile").with_link(Link::Infiniband);
    let model = Model::builder().device(card.clone()).device(card).build();
    let backend = InProcess::of(&model);
    let infos = backend.enumerate().expect("two devices");
    let [here, there] = [0, 1].map(|number| {
        Domain::new(&Device::open(&backend, &infos[number]).expect("the device opens"))
            .expect("a domain")
    });
    let (mut sender, _sends, _receives) = pair(&here);
    let mut srq = there.srq(&SrqConfig::new(3)).expect("an SRQ");
    let (sends, receives) = (cq(&there), cq(&there));
    let config = QpConfig::new(4, 0);
    let mut qp: Qp<Rc, WithSrq> =
        there.queue_pair_with_srq(&config, &sends, &receives, &srq).expect("a queue pair");
    let options = ConnectOptions::default();
    let [near, far] = [here.address(&sender, &options), there.address(&qp, &options)];
    here.connect(&mut sender, &far.expect("an address"), &options).expect("the QP connects");
    there.connect(&mut qp, &near.expect("an address"), &options).expect("the QP connects");
    // The first packet of the message arrives, the others do not (SEND_MIDDLE and SEND_LAST).
    let lose = FrameFault {
        effect: FrameEffect::Lose,
        select: FrameSelector { opcodes: vec![1, 2], ..Default::default() },
        when: Occurrence::Chance(1.0),
    };
    model.set_link(0, 1, LinkSettings { faults: vec![lose], ..model.link(0, 1) });
    let (from, into) = (
        here.region(64 << 10, KeyAccess::LOCAL).expect("memory"),
        there.region(64 << 10, KeyAccess::LOCAL).expect("memory"),
    );
    from.write_at(0, &[0x5a; 64]).expect("room");
    srq.post(into.sge(0, 64 << 10).expect("a range"), 7).expect("there is room");
    sender.post(&Send::new(from.sge(0, 64 << 10).expect("a range")), 1).expect("there is room");
    let end = Instant::now() + TIMEOUT;
    let mut first = [0; 64];
    while first != [0x5a; 64] {
        assert!(Instant::now() < end, "the first packet does not arrive");
        into.read_at(0, &mut first).expect("the range is in the region");
    }
    let start = Instant::now();
    let _kept = leave(qp);
    assert!(start.elapsed() < Duration::from_secs(1), "the event was not waited out");
    assert_eq!(srq.take_returned(), Some(7), "the receive that the message had begun to fill");
    assert_eq!(srq.free(), 3);
    assert_eq!(there.device().leaked(), 0);
}

#[test]
fn srq_gets_receive_of_dropped_or_reset_qp_back() {
    leave_in_the_middle(|qp| {
        drop(qp);
        None
    });
    leave_in_the_middle(|mut qp| {
        qp.reset().expect("the device accepts the transition");
        Some(qp)
    });
}

#[test]
fn connect_after_reset_needs_new_address() {
    let (_model, domain) = on(Link::Infiniband);
    let (mut qp, ..) = pair(&domain);
    let (mut peer, ..) = pair(&domain);
    let options = ConnectOptions::default();
    let [sent, theirs] = [domain.address(&qp, &options), domain.address(&peer, &options)];
    let (sent, theirs) = (sent.expect("an address"), theirs.expect("an address"));
    domain.connect(&mut qp, &theirs, &options).expect("both addresses are new");
    domain.connect(&mut peer, &sent, &options).expect("both addresses are new");
    qp.reset().expect("the device accepts the transition");
    let refused = domain.connect(&mut qp, &theirs, &options).expect_err("the peer has the old one");
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    for part in
        ["was reset after its address", "Send the new address", &format!("{:#08x}", sent.psn)]
    {
        assert!(refused.to_string().contains(part), "{refused}");
    }
    assert_eq!(state(&qp), QpState::RST, "nothing has changed");
    let fixed = ConnectOptions { psn: Some(sent.psn), ..options };
    domain.connect(&mut qp, &theirs, &fixed).expect("the PSN that the peer expects");
    qp.reset().expect("the device accepts the transition");
    assert_ne!(domain.address(&qp, &options).expect("an address").psn, sent.psn);
    domain.connect(&mut qp, &theirs, &options).expect("the address was taken anew");
    // The control checks it too.
    let (mut queues, control) = qp.with_control();
    queues.reset().expect("the device accepts the transition");
    control.to_init(&options).expect("the QP is in RESET");
    let refused = control.connect(&domain, &theirs, &options).expect_err("the old one is out");
    assert!(refused.to_string().contains("Send the new address"), "{refused}");
}

#[test]
fn path_to_another_subnet_has_router_lid_and_grh() {
    let (_model, domain) = on(Link::Infiniband);
    let (mut qp, ..) = pair(&domain);
    let options = ConnectOptions::default();
    let mut peer = domain.address(&qp, &options).expect("an address");
    peer.gid.0[7] ^= 1;
    let refused = domain.connect(&mut qp, &peer, &options).expect_err("the peer has no router");
    assert!(refused.to_string().contains("router_lid"), "{refused}");
    let options = ConnectOptions { router_lid: Some(0x77), ..options };
    domain.connect(&mut qp, &peer, &options).expect("the peer has a router");
    let context = qp.object().query().expect("the device answers");
    let path = context.primary_address_path();
    assert_eq!((path.grh(), path.rlid(), path.hop_limit()), (true, 0x77, 64));
    assert_eq!(path.rgid_rip(), &peer.gid.0);
}

#[test]
fn qp_in_reused_memory_starts_with_cleared_record() {
    let (_model, domain) = on(Link::Infiniband);
    let options = ConnectOptions::default();
    let (_kept, ..) = pair(&domain);
    let mut sends = cq(&domain);
    for round in 0..8 {
        // Each has the memory of the one before: its record must not count the old requests.
        let mut qp: Qp<Rc> =
            domain.queue_pair(&QpConfig::new(4, 4), &sends, &sends).expect("a queue pair");
        domain.connect_loopback(&mut qp, &options).expect("a connection to itself");
        std::thread::sleep(Duration::from_millis(2));
        assert!(sends.is_empty(), "something was posted in round {round}");
        assert_eq!(state(&qp), QpState::RTS, "round {round}");
        for cookie in 0..3 {
            qp.post(&Nop::new().signaled(), cookie).expect("room");
            arrives(&sends);
            let cqe = sends.poll().expect("a completion");
            assert_eq!(qp.complete(cqe).expect("a successful completion").cookie, cookie);
        }
    }
}

#[test]
fn reset_of_failed_qp_finds_earlier_last_wqe_event() {
    let (model, domain) = on(Link::Infiniband);
    let cq = cq(&domain);
    let srq = domain.srq(&SrqConfig::new(4)).expect("a shared receive queue");
    let config = QpConfig::new(4, 4);
    let mut qp: Qp<Rc, WithSrq> =
        domain.queue_pair_with_srq(&config, &cq, &cq, &srq).expect("a queue pair");
    for _ in 0..2 {
        let itself = domain.address(&qp, &ConnectOptions::default()).expect("an address");
        domain.connect(&mut qp, &itself, &ConnectOptions::default()).expect("the QP connects");
        assert!(model.fail_queue(0, QueueKind::Qp, qp.qpn().0), "the QP exists");
        // The event has come before the wait.
        std::thread::sleep(Duration::from_millis(50));
        let start = Instant::now();
        qp.reset().expect("the device accepts the transition");
        assert!(start.elapsed() < Duration::from_millis(900), "the wait timed out");
        assert_eq!(domain.device().leaked(), 0);
    }
}

#[test]
fn srq_qp_without_last_wqe_event_counts_leak() {
    // Without bit 0x13.
    let profile = "base = \"connectx6dx\"\n\
                   [caps.event]\nuser_affiliated_events = [0x80311700be]\n";
    let (_model, domain) = open(Profile::from_toml(profile).expect("a profile"));
    let cq = cq(&domain);
    let srq = domain.srq(&SrqConfig::new(4)).expect("a shared receive queue");
    let config = QpConfig::new(4, 4);
    let mut qp: Qp<Rc, WithSrq> =
        domain.queue_pair_with_srq(&config, &cq, &cq, &srq).expect("a queue pair");
    qp.reset().expect("the device accepts the transition");
    assert_eq!(domain.device().leaked(), 0, "the QP has received nothing");
    domain.connect_loopback(&mut qp, &ConnectOptions::default()).expect("the QP connects");
    qp.reset().expect("the device accepts the transition");
    assert_eq!(domain.device().leaked(), 1);
}

#[test]
fn cqes_of_failed_device_are_polled_before_its_error() {
    let (model, domain) = on(Link::Infiniband);
    let (mut qp, mut sends, _receives) = pair(&domain);
    domain.connect_loopback(&mut qp, &ConnectOptions::default()).expect("a connection to itself");
    let mut events = CqEvents::new(domain.device()).expect("a channel");
    events.add(&mut sends, 0).expect("the CQ is added");
    assert_eq!(events.park(&mut sends).expect("the CQ parks"), Parked::Armed);
    qp.post(&Nop::new().signaled(), 7).expect("room");
    arrives(&sends);
    model.kill(0);
    let mut completions = events.completions(&mut sends, Some(TIMEOUT));
    assert!(completions.next().expect("a completion").is_ok());
    for _ in 0..2 {
        let error = completions.next().expect("an error").expect_err("the device was removed");
        assert_eq!(error.kind(), ErrorKind::DeviceGone, "{error}");
    }
}

#[test]
fn refused_reset_of_srq_qp_keeps_event() {
    let (model, domain) = on(Link::Infiniband);
    let cq = cq(&domain);
    let srq = domain.srq(&SrqConfig::new(4)).expect("a shared receive queue");
    let mut qp: Qp<Rc, WithSrq> =
        domain.queue_pair_with_srq(&QpConfig::new(4, 4), &cq, &cq, &srq).expect("a queue pair");
    for _ in 0..2 {
        domain.connect_loopback(&mut qp, &ConnectOptions::default()).expect("the QP connects");
        model.fail_command(0, Opcode::QP_2RST, 1, CommandStatus::INTERNAL_ERR, 0);
        assert!(qp.reset().is_err());
        let start = Instant::now();
        qp.reset().expect("the device accepts the transition");
        assert!(start.elapsed() < Duration::from_millis(900), "the wait timed out");
        assert_eq!(domain.device().leaked(), 0);
    }
}

#[test]
fn alias_names_function_by_all_bits_of_vhca_id() {
    let text = "base = \"bluefield3\"\n[caps.general]\nvhca_id = 0x1234\n\
                [dpu.caps.general]\nvhca_id = 0x1211\n";
    let profile = Profile::from_toml(text).expect("a profile").with_link(Link::Infiniband);
    let model = Model::builder().device_with_sides(profile).build();
    let [owner, user] = [Side::Host, Side::Dpu].map(|side| {
        let backend = InProcess::of(&model).on_side(side);
        let info = backend.enumerate().expect("a device on each side").remove(0);
        Domain::new(&Device::open(&backend, &info).expect("it opens")).expect("a domain")
    });
    let region = owner.region(4096, KeyAccess::ALL).expect("a region");
    let secret = AccessKey::new([7; 32]);
    let shared = owner.share(&region, &secret).expect("the device shares keys");
    assert_eq!(shared.vhca_id, 0x1234);
    for vhca_id in [0x34, 0x1200, 0x3412] {
        let refused = user.import(&SharedRegion { vhca_id, ..shared }, &secret);
        refused.expect_err("no function has this number");
    }
    let imported = user.import(&shared, &secret).expect("the host's function");
    let own = user.region(4096, KeyAccess::ALL).expect("a region");
    let (mut qp, mut sends, _receives) = pair(&user);
    user.connect_loopback(&mut qp, &ConnectOptions::default()).expect("a connection to itself");
    region.write_at(0, b"the host").expect("8 bytes");
    let from = imported.sge(0, 8).expect("8 bytes");
    let to = own.remote(0, 8).expect("8 bytes");
    qp.post(&Write::new(from, to).signaled(), 1).expect("there is room");
    arrives(&sends);
    qp.poll(&mut sends).expect("a completion").expect("the alias reaches the host's memory");
    let mut found = [0; 8];
    own.read_at(0, &mut found).expect("8 bytes");
    assert_eq!(&found, b"the host");
}
