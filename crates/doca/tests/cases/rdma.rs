//! RDMA: the eight operations, with every rule of chapter 4 of the guide.

use verbless_doca::rdma::RdmaOpcode;
use verbless_doca::{AccessFlags, ErrorKind, JobType};

use crate::support::rdma::{NETWORKS, all, connect, ends, kind, pair};

#[test]
fn immediate_arrives_unchanged() {
    for profile in NETWORKS {
        let [mut a, mut b] = pair(profile);
        b.workq.submit(b.rdma().receive(None)).unwrap();
        a.workq.submit(a.rdma().send_imm(None, 0xdead_beef)).unwrap();
        assert!(a.done().local.is_none());
        let came = b.done();
        assert_eq!(came.opcode, Some(RdmaOpcode::RecvSendWithImm));
        assert_eq!(came.immediate, Some(0xdead_beef));
    }
}

#[test]
fn write_and_read_bypass_peer_workq() {
    for profile in NETWORKS {
        let [mut a, mut b] = pair(profile);
        let bytes = a.fill(0, 3000, 3);
        a.workq.submit(a.rdma().write(a.data(0, 3000), a.remote(4096, 3000))).unwrap();
        let done = a.done();
        assert_eq!(done.job_type, JobType::RdmaWrite);
        assert_eq!((done.local.unwrap().data_len(), done.remote.unwrap().data_len()), (3000, 0));
        assert_eq!(b.bytes(4096, 3000), bytes, "{profile}");
        a.workq.submit(a.rdma().read(a.remote(4096, 3000), a.data(8192, 3000))).unwrap();
        let done = a.done();
        assert_eq!(done.local.unwrap().to_vec().unwrap(), bytes);
        assert_eq!(done.remote.unwrap().data_len(), 0);
        assert_eq!(b.workq.in_flight(), 0);
        assert_eq!(
            b.workq.retrieve_within(Some(std::time::Duration::ZERO)).unwrap().map(drop),
            None
        );
    }
}

#[test]
fn atomics_return_old_value() {
    for profile in NETWORKS {
        let [mut a, b] = pair(profile);
        b.map.write_at(64, &5u64.to_ne_bytes()).unwrap();
        let word = || a.remote(64, 8).unwrap();
        let result = || a.data(0, 8).unwrap();
        let add = a.rdma().fetch_and_add(word(), result(), 10);
        let swapped = a.rdma().compare_and_swap(word(), result(), 15, 99);
        let kept = a.rdma().compare_and_swap(word(), result(), 15, 1);
        for (job, was, is) in [(add, 5u64, 15u64), (swapped, 15, 99), (kept, 99, 99)] {
            a.workq.submit(job).unwrap();
            let done = a.done();
            assert_eq!(done.local.unwrap().to_vec().unwrap(), was.to_ne_bytes(), "{profile}");
            assert_eq!(b.bytes(64, 8), is.to_ne_bytes());
        }
    }
}

#[test]
fn mmap_with_rdma_write_only_accepts_peer_writes() {
    let mut ends = ends("bluefield3", |builder| builder, AccessFlags::RDMA_WRITE);
    connect(&ends);
    let [a, b] = &mut ends;
    let sent = a.fill(0, 64, 3);
    a.workq.submit(a.rdma().write(a.data(0, 64), a.remote(128, 64))).unwrap();
    a.done();
    assert_eq!(b.bytes(128, 64), sent);
    // A job of this side has no permission to write there either.
    for job in [b.rdma().receive(b.room(0, 64)), b.rdma().read(b.remote(0, 64), b.room(0, 64))] {
        assert_eq!(kind(b.workq.submit(job)), ErrorKind::NotPermitted);
    }
}

#[test]
fn instance_without_rdma_rights_rejects_peer() {
    let local = AccessFlags::LOCAL_READ_WRITE;
    let mut ends = ends("bluefield3", |builder| builder.permissions(local), all());
    connect(&ends);
    let [a, _] = &mut ends;
    a.workq.submit(a.rdma().write(a.data(0, 8), a.remote(0, 8))).unwrap();
    assert_eq!(a.failed().result.unwrap_err().kind(), ErrorKind::NotPermitted);
}

#[test]
fn mmap_with_rdma_atomic_only_accepts_peer_atomics() {
    let mut ends = ends("bluefield3", |builder| builder, AccessFlags::RDMA_ATOMIC);
    connect(&ends);
    let [a, b] = &mut ends;
    let own = crate::support::map(&a.dev, 64, AccessFlags::LOCAL_READ_WRITE);
    let here = a.inventory.buf_by_data(&own, own.address(), 8).unwrap();
    a.workq.submit(a.rdma().fetch_and_add(a.remote(8, 8).unwrap(), here, 5)).unwrap();
    a.done();
    assert_eq!(b.bytes(8, 8), 5_u64.to_ne_bytes());
    assert_eq!(kind(b.workq.submit(b.rdma().receive(b.room(0, 8)))), ErrorKind::NotPermitted);
}
