//! Two models that reach each other over this machine's IP network, driven by verbless.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use verbless_command::{Device, KeyAccess};
use verbless_devx::Backend;
use verbless_model::{
    External, FrameEffect, FrameFault, FrameSelector, Link, LinkSettings, Model, Occurrence,
    Profile, RoceUplink,
};
use verbless_model_kernel::InProcess;
use verbless_queue::wr::Write;
use verbless_queue::{ConnectOptions, Cq, CqConfig, Domain, Qp, QpConfig, Region};

/// A model with an address of this machine.
struct Host {
    model: Model,
    _joined: External,
    domain: Domain,
    cq: Cq,
    qp: Qp,
    region: Region,
}

const LENGTH: usize = 64 << 10;

/// An address of this machine that no test in another process uses.
fn address(host: u8) -> IpAddr {
    let [.., a, b] = std::process::id().to_be_bytes();
    IpAddr::from([127, a, b, host])
}

impl Host {
    fn new([local, peer]: [u8; 2]) -> Self {
        let card = Profile::load("connectx6dx")
            .expect("the profile is built in")
            .with_link(Link::Ethernet);
        let model = Model::builder().device(card).threaded().build();
        let uplink = RoceUplink::new(address(local), vec![address(peer)]).expect("two hosts");
        let joined = model.join_roce(0, &uplink).expect("the address is ours");
        let backend = InProcess::of(&model);
        let device = &backend.enumerate().expect("the devices")[0];
        // The description before the open has the same GIDs as the open device.
        assert_eq!(device.ports[0].gids.len(), 4);
        let device = Device::open(&backend, device).expect("the device opens");
        let domain = Domain::new(&device).expect("a domain");
        let cq = domain.completion_queue(&CqConfig::new(64)).expect("a completion queue");
        let qp = domain.queue_pair(&QpConfig::new(16, 16), &cq, &cq).expect("a queue pair");
        let region = domain.region(LENGTH, KeyAccess::ALL).expect("memory");
        Self { model, _joined: joined, domain, cq, qp, region }
    }

    fn connect(&mut self, peer: &mut Self) {
        // The driver itself chooses the routable address and RoCE v2.
        let options = ConnectOptions::default();
        let here = self.domain.address(&self.qp, &options).expect("an address");
        let there = peer.domain.address(&peer.qp, &options).expect("an address");
        self.domain.connect(&mut self.qp, &there, &options).expect("the QP connects");
        peer.domain.connect(&mut peer.qp, &here, &options).expect("the QP connects");
    }

    /// Writes the whole region into the peer's.
    fn write(&mut self, peer: &Self) {
        let remote = peer.region.remote(0, LENGTH).expect("a remote key");
        let write = Write::new(self.region.sge(0, LENGTH).expect("room"), remote).signaled();
        self.qp.post(&write, 0).expect("room");
        let start = Instant::now();
        loop {
            match self.qp.poll(&mut self.cq) {
                Some(Ok(_)) => break,
                Some(Err(error)) => panic!("{error}"),
                None => assert!(
                    start.elapsed() < Duration::from_secs(60),
                    "the request did not complete"
                ),
            }
            std::thread::yield_now();
        }
    }
}

fn bytes(seed: u8) -> Vec<u8> {
    (0..LENGTH).map(|at| ((at * 31) >> 3) as u8 ^ seed).collect()
}

/// RC writes both ways between two models; checks the bytes that arrive.
fn exchange(one: &mut Host, other: &mut Host, seeds: [u8; 2]) {
    for (seed, [from, to]) in seeds.into_iter().zip([[0, 1], [1, 0]]) {
        let mut hosts = [&mut *one, &mut *other];
        hosts[from].region.write_at(0, &bytes(seed)).expect("room");
        let [here, there] = match from < to {
            true => hosts,
            false => {
                hosts.reverse();
                hosts
            }
        };
        here.write(there);
        let mut arrived = vec![0; LENGTH];
        there.region.read_at(0, &mut arrived).expect("room");
        assert!(arrived == bytes(seed), "the bytes of {seed}");
    }
}

#[test]
fn models_write_over_udp_despite_loss() {
    let (mut one, mut other) = (Host::new([1, 2]), Host::new([2, 1]));
    one.connect(&mut other);
    exchange(&mut one, &mut other, [1, 2]);
    let lose = FrameFault {
        effect: FrameEffect::Lose,
        select: FrameSelector::default(),
        when: Occurrence::Chance(0.05),
    };
    for host in [&one, &other] {
        let link = host.model.link(0, 1);
        host.model.set_link(0, 1, LinkSettings { faults: vec![lose.clone()], seed: 3, ..link });
    }
    exchange(&mut one, &mut other, [3, 4]);
    let lost = [&one, &other].map(|host| host.model.traffic(0, 1)[0].lost);
    assert!(lost.iter().sum::<u64>() > 0, "{lost:?}");
}

#[test]
fn neighbour_resolution_rejects_non_peer() {
    let (one, mut other) = (Host::new([11, 12]), Host::new([13, 11]));
    let options = ConnectOptions::default();
    let stranger = one.domain.address(&one.qp, &options).expect("an address");
    other
        .domain
        .connect(&mut other.qp, &stranger, &options)
        .expect("the stranger is a peer of `other`");
    let address = other.domain.address(&other.qp, &options).expect("an address");
    let mut one = one;
    let error = one.domain.connect(&mut one.qp, &address, &options).unwrap_err().to_string();
    assert!(error.contains("neighbour"), "{error}");
}
