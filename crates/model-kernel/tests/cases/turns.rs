//! Busy send queues of one function move equally many bytes, whatever the length of their messages:
//! carried whole and in packets.

use verbless_command::{Device, KeyAccess};
use verbless_devx::Backend;
use verbless_model::{Model, Profile};
use verbless_model_kernel::InProcess;
use verbless_queue::wr::{Read, Write};
use verbless_queue::{ConnectOptions, Cq, CqConfig, Domain, Qp, QpConfig, Region};

const LONG: usize = 1 << 20;
const SHORT: usize = 4 << 10;
/// Bytes that the queue of long messages moves before the comparison.
const MOVED_BYTES: usize = 16 * LONG;
/// Accepted range of bytes that one queue moves for each 100 bytes of the other.
const FAIR_SHARE: std::ops::RangeInclusive<usize> = 80..=125;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Write,
    Read,
}

/// A send queue that the test keeps full of messages of one length.
struct Stream {
    kind: Kind,
    cq: Cq,
    qp: Qp,
    _peer: (Cq, Qp),
    length: usize,
    room: usize,
    moved: usize,
}

impl Stream {
    fn new(here: &Domain, there: &Domain, kind: Kind, length: usize, depth: usize) -> Self {
        let config = QpConfig::new(depth as u32, 1);
        let cq = here
            .completion_queue(&CqConfig::new(config.cqes::<verbless_queue::Rc>()))
            .expect("a CQ");
        let mut qp = here.queue_pair(&config, &cq, &cq).expect("a QP");
        let peer_cq = there
            .completion_queue(&CqConfig::new(config.cqes::<verbless_queue::Rc>()))
            .expect("a CQ");
        let mut peer = there.queue_pair(&config, &peer_cq, &peer_cq).expect("a QP");
        let options = ConnectOptions::default();
        let address = there.address(&peer, &options).expect("an address");
        here.connect(&mut qp, &address, &options).expect("a connection");
        let address = here.address(&qp, &options).expect("an address");
        there.connect(&mut peer, &address, &options).expect("a connection");
        Self { kind, cq, qp, _peer: (peer_cq, peer), length, room: depth, moved: 0 }
    }

    /// Counts completions, and posts as many messages.
    fn keep_full(&mut self, here: &Region, there: &Region) {
        while let Some(done) = self.qp.poll(&mut self.cq) {
            done.expect("a completion without an error");
            self.room += 1;
            self.moved += self.length;
        }
        let local = here.sge(0, self.length).expect("room");
        let remote = there.remote(0, self.length).expect("room");
        for _ in 0..std::mem::take(&mut self.room) {
            match self.kind {
                Kind::Write => self.qp.post(&Write::new(local, remote).signaled(), 0),
                Kind::Read => self.qp.post(&Read::new(local, remote).signaled(), 0),
            }
            .expect("room in the send queue");
        }
    }
}

/// Bytes that a queue of short messages moves for each 100 bytes of a queue of long ones.
fn share(kind: Kind, in_packets: bool) -> usize {
    let profile = || Profile::load("bluefield3").expect("a built-in profile");
    let builder = Model::builder().device(profile()).device(profile()).stepped();
    let model = if in_packets { builder.in_packets().build() } else { builder.build() };
    let backend = InProcess::of(&model);
    let devices = backend.enumerate().expect("two devices");
    let [here, there] = [0, 1].map(|at| {
        let device = Device::open(&backend, &devices[at]).expect("a device");
        Domain::new(&device).expect("a domain")
    });
    let [local, remote] =
        [&here, &there].map(|domain| domain.region(LONG, KeyAccess::ALL).expect("a region"));
    let mut long = Stream::new(&here, &there, kind, LONG, 4);
    let mut short = Stream::new(&here, &there, kind, SHORT, 256);
    while long.moved < MOVED_BYTES {
        long.keep_full(&local, &remote);
        short.keep_full(&local, &remote);
        assert!(model.step(), "both queues always have work");
    }
    short.moved * 100 / long.moved
}

#[test]
fn full_queues_share_bandwidth() {
    for (what, kind, in_packets) in [
        ("WRITEs carried whole", Kind::Write, false),
        ("WRITEs in packets", Kind::Write, true),
        ("READs carried whole", Kind::Read, false),
    ] {
        let share = share(kind, in_packets);
        assert!(FAIR_SHARE.contains(&share), "{share} % of {what}");
    }
}
