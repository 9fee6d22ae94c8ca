//! Domains on a model device: lengths of WQEs by service, GIDs and paths, doorbells without
//! BlueFlame.

use std::time::Duration;

use verbless_command::{Device, Gid, QKey};
use verbless_devx::{Backend, ErrorKind};
use verbless_model::{Link, Model, Profile};
use verbless_model_kernel::InProcess;
use verbless_prm::{CommandStatus, Opcode, QpState};
use verbless_ring::service::{Rc, Ud};
use verbless_ring::types::Sge;
use verbless_ring::wr::{Inline, Nop, Send};

use super::{ConnectOptions, Cq, CqConfig, DatagramOptions, Domain, Qp, QpConfig, SqConfig};

/// Time limit for a completion on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

fn open(profile: Profile) -> (Model, Domain) {
    let model = Model::builder().device(profile).build();
    let backend = InProcess::of(&model);
    let info = backend.enumerate().expect("the model has devices").remove(0);
    let device = Device::open(&backend, &info).expect("the model opens");
    (model, Domain::new(&device).expect("a domain"))
}

fn on(name: &str, link: Link) -> (Model, Domain) {
    open(Profile::load(name).expect("a profile").with_link(link))
}

/// A ConnectX-6 Dx with other capabilities.
fn with_caps(lines: &str) -> (Model, Domain) {
    let text = format!("base = \"connectx6dx\"\n[caps.general]\n{lines}");
    open(Profile::from_toml(&text).expect("a profile"))
}

fn cq(domain: &Domain) -> Cq {
    domain.completion_queue(&CqConfig::new(64)).expect("a completion queue")
}

fn rc(domain: &Domain, cq: &Cq) -> Qp<Rc> {
    domain.queue_pair(&QpConfig::new(4, 4), cq, cq).expect("a queue pair")
}

/// A known card takes WQEs of 1024 bytes, in which the longest of each service fits.
#[test]
fn wqe_limits_depend_on_service() {
    let (_model, domain) = with_caps("max_wqe_sz_sq = 512\n");
    let mut cq = cq(&domain);
    let config = |send_sges, inline| QpConfig { send_sges, inline, ..QpConfig::new(2, 2) };
    let refused = |error: verbless_command::Error, words: &str| {
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(words), "{error}");
    };
    // Control, remote address and an atomic's operands; control, remote address, inline header.
    domain.queue_pair_of::<Rc>(&config(29, 476), &cq, &cq).expect("the limits");
    let error = domain.queue_pair_of::<Rc>(&config(30, 0), &cq, &cq).expect_err("too many");
    refused(error, "send_sges is 30; this device supports at most 29");
    let error = domain.queue_pair_of::<Rc>(&config(1, 477), &cq, &cq).expect_err("too long");
    refused(error, "inline is 477; this device supports at most 476");
    // Control and an address vector of 48 bytes.
    let error = domain.queue_pair_of::<Ud>(&config(29, 0), &cq, &cq).expect_err("too many");
    refused(error, "send_sges is 29; this device supports at most 28");
    let error = domain.queue_pair_of::<Ud>(&config(1, 445), &cq, &cq).expect_err("too long");
    refused(error, "inline is 445; this device supports at most 444");
    let mut qp = domain.queue_pair_of::<Ud>(&config(28, 444), &cq, &cq).expect("the limits");
    qp.start(&DatagramOptions::new(QKey(1))).expect("RTS");
    let options = ConnectOptions::default();
    let own = domain.address(&qp, &options).expect("an address");
    let to = domain.destination(&own, QKey(1), &options).expect("a destination");
    let region = domain.region(4096, verbless_command::KeyAccess::LOCAL).expect("a region");
    let sges: Vec<Sge> =
        (0..28).map(|i| region.sge(8 * i, 8).expect("the SGE is in the region")).collect();
    qp.post(&Send::new(Inline(&[7; 444])).signaled().to(&to), 1).expect("there is room");
    qp.post(&Send::new(&sges[..]).signaled().to(&to), 2).expect("there is room");
    for cookie in [1, 2] {
        let cqe = cq.poll_within(TIMEOUT).expect("the CQ works").expect("a completion");
        let done = qp.complete(cqe).expect("the device takes WQEs of 512 bytes");
        assert_eq!(done.cookie, cookie);
    }
}

#[test]
fn frame_limits_are_joint() {
    let (_model, domain) = with_caps("max_wqe_sz_sq = 512\n");
    let cq = cq(&domain);
    let make = |inline, sges| domain.sq(&SqConfig { inline, sges, ..SqConfig::new(2) }, &cq);
    // Control and Ethernet segment, whose last 2 bytes begin the header: 2 + 1 + 29 ds.
    make(18, 29).expect("the limits");
    let error = make(19, 29).expect_err("2 + 2 + 29 ds").to_string();
    let words = "of 19 inline bytes and 29 SGEs, has 528 bytes; this device supports at most 512";
    assert!(error.contains(words), "{error}");
}

#[test]
fn infiniband_gid_index_must_be_in_use() {
    let (_model, domain) = on("connectx6dx", Link::Infiniband);
    let cq = cq(&domain);
    let qp = rc(&domain, &cq);
    let absent = ConnectOptions { gid_index: Some(200), ..ConnectOptions::default() };
    let errors = [
        domain.address(&qp, &absent).expect_err("there are fewer"),
        domain.check_options(&absent).expect_err("there are fewer"),
    ];
    for error in errors.map(|error| error.to_string()) {
        assert!(error.contains("choosing GID 200 of port 1"), "{error}");
        assert!(error.contains("the port has GIDs at 0"), "{error}");
    }
    let first = domain.device().gid_table().expect("the table").remove(0).gid;
    for gid_index in [None, Some(0)] {
        let options = ConnectOptions { gid_index, ..ConnectOptions::default() };
        assert_eq!(domain.address(&qp, &options).expect("an address").gid, first);
    }
}

#[test]
fn path_with_grh_needs_gid_of_peer() {
    // The virtual port needs a GRH; a physical port has one if the peer needs it.
    for (name, grh_required) in [("connectx6vf", false), ("connectx6dx", true)] {
        let (_model, domain) = on(name, Link::Infiniband);
        let cq = cq(&domain);
        let mut qp = rc(&domain, &cq);
        let options = ConnectOptions::default();
        let own = domain.address(&qp, &options).expect("an address");
        let mut prefix = own.gid;
        prefix.0[8..].fill(0);
        for gid in [Gid::default(), prefix] {
            let peer = super::PeerAddress { gid, grh_required, ..own };
            let error = domain.connect(&mut qp, &peer, &options).expect_err("the peer has no GID");
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains("has no GID"), "{error}");
            assert_eq!(qp.object().state().expect("the device answers"), QpState::RST);
        }
        let peer = super::PeerAddress { grh_required, ..own };
        domain.connect(&mut qp, &peer, &options).expect("the peer has a GID");
        let context = qp.object().query().expect("the device answers");
        assert!(context.primary_address_path().grh(), "{name}");
    }
}

#[test]
fn loopback_uses_gid_of_options() {
    let (_model, domain) = on("connectx6dx", Link::Ethernet);
    let cq = cq(&domain);
    let second = domain.device().gid_entry(1, 1).expect("the entry").gid;
    for gid_index in [None, Some(1)] {
        let options = ConnectOptions { gid_index, ..ConnectOptions::default() };
        let [mut alone, mut one, mut other] = [(); 3].map(|()| rc(&domain, &cq));
        domain.connect_loopback(&mut alone, &options).expect("the QP connects to itself");
        domain.connect_pair((&mut one, &mut other), &options).expect("the QPs connect");
        for qp in [alone, one, other] {
            let context = qp.object().query().expect("the device answers");
            let path = context.primary_address_path();
            let seen = (path.fl(), path.src_addr_index(), *path.rgid_rip());
            let expected = match gid_index {
                None => (true, 0, [0; 16]),
                Some(index) => (false, index, second.0),
            };
            assert_eq!(seen, expected, "{gid_index:?}");
        }
    }
}

/// Creates a queue pair that wants BlueFlame, and lets it complete a request. Returns whether it
/// rings on the domain's plain page.
fn rings_plainly(domain: &Domain) -> bool {
    let mut cq = cq(domain);
    let mut qp = rc(domain, &cq);
    domain
        .connect_loopback(&mut qp, &ConnectOptions::default())
        .expect("the QP connects to itself");
    qp.post(&Nop::new().signaled(), 5).expect("there is room");
    let cqe = cq.poll_within(TIMEOUT).expect("the CQ works").expect("a completion");
    assert_eq!(qp.complete(cqe).expect("a success").cookie, 5);
    let page = qp.object().query().expect("the device answers").uar_page();
    page == domain.shared.plain.uar.page_id()
}

#[test]
fn qp_without_blueflame_rings_plain_doorbell() {
    let (model, domain) = on("connectx6dx", Link::Ethernet);
    model.fail_command(0, Opcode::ALLOC_UAR, 1, CommandStatus::LIM, 7);
    assert!(rings_plainly(&domain), "no UAR was left");
    assert!(!rings_plainly(&domain), "the next one has a UAR");
    let (_model, domain) = with_caps("bf = false\n");
    assert_eq!(domain.device().attributes().driver.bf_reg_size, 0);
    assert_eq!(
        domain
            .device()
            .uar_alloc(verbless_devx::UarKind::BlueFlame)
            .err()
            .and_then(|error| error.errno()),
        Some(verbless_devx::Errno::EOPNOTSUPP)
    );
    assert!(rings_plainly(&domain), "the system has no write combining");
}
