//! Connecting: the kernel resolves the peer, and may be slow, or fail.

use verbless_doca::rdma::RdmaState;
use verbless_doca::{ErrorKind, WorkQ};
use verbless_model::Ioctl;

use crate::support::held::Hold;
use crate::support::rdma::{End, all, connect, ends_of, kind, opened};

const PROFILE: &str = "bluefield3 on Ethernet";
const ETIMEDOUT: i32 = 110;

#[test]
fn unresolved_peer_leaves_instance_unchanged() {
    let (model, backend) = crate::support::disturbable(PROFILE);
    let mut ends = ends_of(opened(&backend), |builder| builder, all(), 4096);
    let [a, b] = &mut ends;
    a.workq.submit(a.rdma().receive(a.room(0, 64)).user_data(5)).unwrap();
    let (ours, theirs) = (a.rdma().export().unwrap(), b.rdma().export().unwrap());
    let before = model.counts(0);
    for _ in 0..3 {
        model.fail_ioctl(0, Ioctl::named("CREATE_AH").unwrap(), 1, ETIMEDOUT);
        let error = a.rdma().connect(theirs).unwrap_err();
        assert!(error.to_string().contains("no neighbour answered"), "{error}");
        assert_eq!(a.rdma().state(), RdmaState::Init);
        assert_eq!(a.rdma().export().unwrap(), ours);
        assert_eq!(kind(a.workq.submit(a.rdma().send(None))), ErrorKind::NotConnected);
        assert_eq!((model.counts(0), a.workq.in_flight()), (before, 1));
    }
    // The attempt consumed nothing, and the receive is still posted.
    a.rdma().connect(theirs).unwrap();
    b.rdma().connect(ours).unwrap();
    let bytes = b.fill(0, 64, 1);
    b.workq.submit(b.rdma().send(b.data(0, 64))).unwrap();
    let done = a.done();
    assert_eq!((done.user_data.0, done.local.unwrap().to_vec().unwrap()), (5, bytes));
    b.done();
}

/// Two ends that are not connected, and a hold for the connecting thread.
fn held() -> (Hold, [End; 2]) {
    let (hold, backend) = Hold::of(crate::support::disturbable(PROFILE).1);
    let ends = ends_of(opened(&backend), |builder| builder, all(), 4096);
    for end in &ends {
        end.rdma().export().unwrap();
    }
    (hold, ends)
}

#[test]
fn instance_is_usable_during_connect() {
    let (hold, mut ends) = held();
    let theirs = ends[1].rdma().export().unwrap();
    let [a, _] = &mut ends;
    let End { workq, rdma: Some(rdma), map, inventory, .. } = a else {
        panic!("the context is started")
    };
    let room = inventory.buf_by_addr(map, map.address(), 64).unwrap();
    let connected = hold.during(
        || rdma.connect(theirs),
        || {
            assert_eq!(rdma.state(), RdmaState::Init);
            rdma.export().unwrap();
            workq.submit(rdma.receive(Some(room))).unwrap();
        },
    );
    connected.unwrap();
    let ours = ends[0].rdma().export().unwrap();
    ends[1].rdma().connect(ours).unwrap();
    let [a, b] = &mut ends;
    b.workq.submit(b.rdma().send(b.data(0, 8))).unwrap();
    a.done();
    b.done();
}

#[test]
fn abort_or_remove_during_connect_cancels_it() {
    for removed in [false, true] {
        let (hold, mut ends) = held();
        let theirs = ends[1].rdma().export().unwrap();
        let End { workq, rdma: Some(rdma), .. } = &mut ends[0] else {
            panic!("the context is started")
        };
        let refused = hold.during(
            || rdma.connect(theirs),
            || match removed {
                true => workq.remove(rdma).unwrap(),
                false => workq.abort(rdma).unwrap(),
            },
        );
        assert_eq!(kind(refused), ErrorKind::BadState);
        assert_eq!(rdma.state(), RdmaState::Error);
        if removed {
            workq.add(rdma).unwrap_err();
        }
        ends.iter_mut().for_each(End::restart);
        if removed {
            let End { workq, rdma: Some(rdma), .. } = &mut ends[0] else { panic!("as above") };
            workq.add(rdma).unwrap();
        }
        connect(&ends);
        let [a, b] = &mut ends;
        b.workq.submit(b.rdma().receive(None)).unwrap();
        a.workq.submit(a.rdma().send(None)).unwrap();
        a.done();
        b.done();
    }
}

#[test]
fn workq_change_during_connect_cancels_it() {
    let (hold, backend) = Hold::of(crate::support::disturbable(PROFILE).1);
    let mut ends = ends_of(opened(&backend), |builder| builder, all(), 4096);
    let theirs = ends[1].rdma().export().unwrap();
    let End { workq, rdma: Some(rdma), .. } = &mut ends[0] else {
        panic!("the context is started")
    };
    let mut other = WorkQ::new(4).unwrap();
    // It was not exported, so no peer knows the queue pair that is removed with the work queue.
    let refused = hold.during(
        || rdma.connect(theirs),
        || {
            workq.remove(rdma).unwrap();
            other.add(rdma).unwrap();
        },
    );
    assert_eq!(kind(refused), ErrorKind::BadState);
    assert_eq!(rdma.state(), RdmaState::Init);
    rdma.connect(theirs).unwrap();
}

#[test]
fn concurrent_connects_succeed_once() {
    let (hold, mut ends) = held();
    let theirs = ends[1].rdma().export().unwrap();
    let End { rdma: Some(rdma), .. } = &mut ends[0] else { panic!("the context is started") };
    let ours = rdma.export().unwrap();
    let refused = hold.during(|| rdma.connect(ours), || rdma.connect(theirs).unwrap());
    assert_eq!(kind(refused), ErrorKind::BadState);
    assert_eq!(rdma.state(), RdmaState::Connected);
    ends[1].rdma().connect(ours).unwrap();
    let [a, b] = &mut ends;
    b.workq.submit(b.rdma().receive(None)).unwrap();
    a.workq.submit(a.rdma().send(None)).unwrap();
    a.done();
    b.done();
}
