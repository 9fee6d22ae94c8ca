//! SHA, a context whose jobs software executes, and the rules of work queues that need no device.

use std::time::{Duration, Instant};

use sha2::Digest;
use verbless_doca::sha::{Algorithm, HashDone, Sha};
use verbless_doca::{
    AccessFlags, Buf, Context, ErrorKind, Event, Inventory, JobType, Mmap, Retrieve, WorkQ,
};

use crate::support::{dev, map, plain};

struct Rig {
    map: Mmap,
    inventory: Inventory,
    sha: Sha,
    workq: WorkQ,
}

fn rig(workq: WorkQ) -> Rig {
    let dev = dev();
    let (map, inventory) = plain(&dev, 1 << 20, 64);
    let sha = Sha::builder(&dev).start().unwrap();
    let mut workq = workq;
    workq.add(&sha).unwrap();
    Rig { map, inventory, sha, workq }
}

impl Rig {
    /// A buffer with these bytes at an offset.
    fn message(&self, at: u64, bytes: &[u8]) -> Buf {
        let address = self.map.address() + at;
        let mut buffer =
            self.inventory.buf_by_addr(&self.map, address, bytes.len() as u64).unwrap();
        buffer.append(bytes).unwrap();
        buffer
    }

    fn room(&self, at: u64) -> Buf {
        self.inventory.buf_by_addr(&self.map, self.map.address() + at, 64).unwrap()
    }
}

fn done(workq: &mut WorkQ) -> HashDone {
    match workq.retrieve_within(Some(Duration::from_secs(60))).unwrap().unwrap() {
        Event::Sha(done) => done,
        other => panic!("{other:?}"),
    }
}

fn kind<T, E: Into<verbless_doca::Error>>(result: Result<T, E>) -> ErrorKind {
    match result {
        Ok(_) => panic!("the call was not refused"),
        Err(error) => error.into().kind(),
    }
}

#[test]
fn digests_match_reference() {
    let mut rig = rig(WorkQ::new(4).unwrap());
    let text: Vec<u8> = (0..200_000u32).map(|n| n as u8).collect();
    let expected: [Vec<u8>; 3] = [
        sha1::Sha1::digest(&text).to_vec(),
        sha2::Sha256::digest(&text).to_vec(),
        sha2::Sha512::digest(&text).to_vec(),
    ];
    let all = [Algorithm::Sha1, Algorithm::Sha256, Algorithm::Sha512];
    for (algorithm, expected) in all.into_iter().zip(expected) {
        // In one buffer, and in a chain of three with an empty one between.
        let mut chain = rig.message(0, &text[..70_001]);
        chain.link(rig.message(0x4_0000, b"")).unwrap();
        chain.link(rig.message(0x4_0000, &text[70_001..])).unwrap();
        for source in [rig.message(0x8_0000, &text), chain] {
            let job = rig.sha.hash(algorithm, source, rig.room(0xf_0000)).user_data(9);
            rig.workq.submit(job).unwrap();
            let done = done(&mut rig.workq);
            assert_eq!(done.destination.unwrap().to_vec().unwrap(), expected, "{algorithm:?}");
            assert_eq!((done.user_data.0, done.job_type), (9, JobType::ShaHash));
        }
    }
}

#[test]
fn partial_hash_equals_whole_and_session_is_reusable() {
    let mut rig = rig(WorkQ::new(4).unwrap());
    let text = [7; 1000];
    let mut session = Some(rig.sha.partial(Algorithm::Sha512));
    for _ in 0..2 {
        for part in text[..896].chunks(128) {
            let job = rig.sha.update(session.take().unwrap(), rig.message(0, part));
            rig.workq.submit(job).unwrap();
            let done = done(&mut rig.workq);
            assert_eq!(done.job_type, JobType::ShaPartial);
            assert!(done.destination.is_none());
            session = done.session;
        }
        let last = rig.message(0, &text[896..]);
        let job = rig.sha.finish(session.take().unwrap(), last, rig.room(0x1000));
        rig.workq.submit(job).unwrap();
        let done = done(&mut rig.workq);
        assert_eq!(
            done.destination.unwrap().to_vec().unwrap(),
            sha2::Sha512::digest(text).to_vec()
        );
        session = done.session;
    }
    let odd = rig.sha.update(rig.sha.partial(Algorithm::Sha512), rig.message(0, &[0; 64]));
    assert_eq!(kind(rig.workq.submit(odd)), ErrorKind::InvalidValue, "half a block");
}

#[test]
fn digest_is_appended_and_short_tail_room_rejected() {
    let mut rig = rig(WorkQ::new(4).unwrap());
    let mut room = rig.room(0x1000);
    room.append(b"digest: ").unwrap();
    let job = rig.sha.hash(Algorithm::Sha1, rig.message(0, b"abc"), room);
    rig.workq.submit(job).unwrap();
    let bytes = done(&mut rig.workq).destination.unwrap().to_vec().unwrap();
    assert_eq!((&bytes[..8], bytes.len()), (&b"digest: "[..], 28));
    let mut short = rig.room(0x1000);
    short.append(&[0; 45]).unwrap();
    let refused = rig.workq.submit(rig.sha.hash(Algorithm::Sha1, rig.message(0, b"a"), short));
    let refused = refused.unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidValue);
    assert_eq!(
        refused.given.into_bufs().1.unwrap().data_len(),
        45,
        "the refused buffer comes back"
    );
}

#[test]
fn referenced_or_read_only_bufs_are_rejected() {
    let mut rig = rig(WorkQ::new(4).unwrap());
    let source = rig.message(0, b"abc");
    let reference = source.add_ref().unwrap();
    let refused = rig.workq.submit(rig.sha.hash(Algorithm::Sha1, source, rig.room(64)));
    let refused = refused.unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidValue, "a second reference");
    drop(reference);
    rig.workq.submit(refused.given).unwrap();
    done(&mut rig.workq);

    let read_only = map(rig.sha_dev(), 4096, AccessFlags::LOCAL_READ_ONLY);
    let into = rig.inventory.buf_by_addr(&read_only, read_only.address(), 64).unwrap();
    let job = rig.sha.hash(Algorithm::Sha1, rig.message(0, b"abc"), into);
    assert_eq!(kind(rig.workq.submit(job)), ErrorKind::NotPermitted);
}

impl Rig {
    fn sha_dev(&self) -> &verbless_doca::Dev {
        self.sha.dev()
    }
}

#[test]
fn full_workq_returns_job_with_again() {
    let mut rig = rig(WorkQ::new(2).unwrap());
    let job = |rig: &Rig, n| {
        rig.sha.hash(Algorithm::Sha1, rig.message(n, b"abc"), rig.room(0x1000 * n)).user_data(n)
    };
    rig.workq.submit(job(&rig, 1)).unwrap();
    rig.workq.submit(job(&rig, 2)).unwrap();
    let refused = rig.workq.submit(job(&rig, 3)).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::Again);
    assert_eq!(rig.workq.in_flight(), 2);
    assert_eq!(done(&mut rig.workq).user_data.0, 1);
    rig.workq.submit(refused.given).unwrap();
    let rest = [(); 2].map(|()| done(&mut rig.workq).user_data.0);
    assert_eq!((rest, rig.workq.in_flight()), ([2, 3], 0));
    assert!(matches!(rig.workq.progress_retrieve(), Err(Retrieve::Again)));
}

#[test]
fn workq_and_ctx_enforce_state_order() {
    let Rig { map, inventory, sha, mut workq } = rig(WorkQ::new(2).unwrap());
    let buffer = || inventory.buf_by_addr(&map, map.address(), 64).unwrap();
    assert_eq!(kind(workq.add(&sha)), ErrorKind::AlreadyExist);
    assert_eq!(kind(workq.set_depth(4)), ErrorKind::BadState);
    assert_eq!(kind(workq.set_event_driven(true)), ErrorKind::BadState);
    assert_eq!(kind(workq.arm()), ErrorKind::BadState, "polling mode");
    assert_eq!(sha.workqs(), 1);
    let sha = sha.stop().unwrap_err();
    assert_eq!(sha.error.kind(), ErrorKind::InUse);
    let sha = sha.given;
    workq.submit(sha.hash(Algorithm::Sha1, buffer(), buffer())).unwrap();
    assert_eq!(kind(workq.remove(&sha)), ErrorKind::InUse, "a job is in flight");
    let refused = workq.destroy().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InUse);
    workq = refused.given;
    done(&mut workq);
    workq.remove(&sha).unwrap();
    assert_eq!(kind(workq.remove(&sha)), ErrorKind::NotFound);
    let job = sha.hash(Algorithm::Sha1, buffer(), buffer());
    let refused = workq.submit(job).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::BadState);
    workq.set_depth(1).unwrap();
    assert_eq!(kind(workq.set_depth(0)), ErrorKind::InvalidValue);
    workq.add(&sha).unwrap();
    workq.submit(refused.given).unwrap();
    drop(workq);
    assert_eq!(inventory.num_free_elements(), 64, "the drop frees the bufs of jobs in flight");
    let again = sha.stop().unwrap().start().unwrap();
    assert_eq!(again.workqs(), 0);
    assert_eq!(kind(WorkQ::new(0)), ErrorKind::InvalidValue);
}

#[test]
fn job_of_dropped_ctx_is_rejected() {
    let mut rig = rig(WorkQ::new(2).unwrap());
    let job = rig.sha.hash(Algorithm::Sha1, rig.message(0, b"abc"), rig.room(64));
    rig.workq.remove(&rig.sha).unwrap();
    let dev = rig.sha.dev().clone();
    drop(rig.sha);
    // The new context has the slot of the dropped one.
    let other = Sha::builder(&dev).start().unwrap();
    rig.workq.add(&other).unwrap();
    assert_eq!(kind(rig.workq.submit(job)), ErrorKind::BadState);
}

#[test]
fn abort_yields_each_job_once_and_rejects_more() {
    let mut rig = rig(WorkQ::new(8).unwrap());
    for n in 0..5 {
        let job = rig.sha.hash(Algorithm::Sha1, rig.message(n, b"a"), rig.room(64 * n));
        rig.workq.submit(job.user_data(n)).unwrap();
    }
    rig.workq.abort(&rig.sha).unwrap();
    let job = rig.sha.hash(Algorithm::Sha1, rig.message(9, b"a"), rig.room(640));
    assert_eq!(kind(rig.workq.submit(job)), ErrorKind::Shutdown);
    let mut seen = Vec::new();
    while rig.workq.in_flight() > 0 {
        match rig.workq.progress_retrieve() {
            Err(Retrieve::IoFailed(event)) => {
                assert_eq!(event.result().unwrap_err().kind(), ErrorKind::Shutdown);
                seen.push(event.user_data().0);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, [0, 1, 2, 3, 4]);
    rig.workq.remove(&rig.sha).unwrap();
    rig.workq.add(&rig.sha).unwrap();
    let job = rig.sha.hash(Algorithm::Sha1, rig.message(9, b"a"), rig.room(640));
    rig.workq.submit(job).unwrap();
    done(&mut rig.workq);
}

#[test]
fn arm_signals_before_and_after_submit() {
    let mut rig = rig(WorkQ::builder(4).event_driven().build().unwrap());
    let readable = |workq: &WorkQ| {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let mut files = [PollFd::new(workq.event_handle(), PollFlags::POLLIN)];
        poll(&mut files, PollTimeout::ZERO).unwrap() == 1
    };
    let job = |rig: &Rig| rig.sha.hash(Algorithm::Sha1, rig.message(0, b"a"), rig.room(64));
    assert!(!readable(&rig.workq));
    // Arm, submit, wait.
    rig.workq.arm().unwrap();
    assert!(!readable(&rig.workq));
    rig.workq.submit(job(&rig)).unwrap();
    assert!(readable(&rig.workq));
    rig.workq.clear().unwrap();
    assert!(!readable(&rig.workq));
    done(&mut rig.workq);
    // Submit, arm, wait.
    rig.workq.submit(job(&rig)).unwrap();
    rig.workq.arm().unwrap();
    assert!(readable(&rig.workq), "there is something to retrieve");
    rig.workq.clear().unwrap();
    done(&mut rig.workq);
    let start = Instant::now();
    let none = rig.workq.retrieve_within(Some(Duration::from_millis(30))).unwrap();
    assert!(none.is_none() && start.elapsed() >= Duration::from_millis(30));
}

#[test]
fn hash_takes_64_kib_per_progress_call() {
    const TURN: usize = 64 << 10;
    let mut rig = rig(WorkQ::new(2).unwrap());
    for length in [3, TURN, TURN + 1] {
        let text = vec![7; length];
        let job = rig.sha.hash(Algorithm::Sha256, rig.message(0, &text), rig.room(512 << 10));
        rig.workq.submit(job).unwrap();
        if length > TURN {
            assert!(matches!(rig.workq.progress_retrieve(), Err(Retrieve::Again)));
        }
        let Ok(Event::Sha(done)) = rig.workq.progress_retrieve() else {
            panic!("{length} bytes are not hashed");
        };
        assert_eq!(done.destination.unwrap().data_len(), 32);
    }
}

#[test]
fn hash_completes_under_constant_copies() {
    let mut rig = rig(WorkQ::new(8).unwrap());
    let dev = rig.sha.dev().clone();
    let dma = verbless_doca::dma::Dma::builder(&dev).start().unwrap();
    rig.workq.add(&dma).unwrap();
    let hash = rig.sha.hash(Algorithm::Sha1, rig.message(0, &[7; 300_000]), rig.room(0x8_0000));
    rig.workq.submit(hash).unwrap();
    for number in 0..4 {
        let at = rig.map.address() + 0x9_0000 + 256 * number;
        let from = rig.inventory.buf_by_data(&rig.map, at, 64).unwrap();
        let to = rig.inventory.buf_by_addr(&rig.map, at + 64, 64).unwrap();
        rig.workq.submit(dma.memcpy(from, to)).unwrap();
    }
    for _ in 0..100_000 {
        match rig.workq.progress_retrieve() {
            Ok(Event::Dma(mut done)) => {
                done.destination.reset_data_len();
                rig.workq.submit(dma.memcpy(done.source, done.destination)).unwrap();
            }
            Ok(Event::Sha(_)) => return,
            Err(Retrieve::Again) => {}
            other => panic!("{other:?}"),
        }
    }
    panic!("the hash starved");
}

#[test]
fn partial_aborted_midway_returns_no_session() {
    let mut rig = rig(WorkQ::new(2).unwrap());
    let text = vec![7; 512 << 10];
    for steps in 0..3 {
        let part = rig.sha.partial(Algorithm::Sha256);
        let job = rig.sha.update(part, rig.message(0, &text));
        rig.workq.submit(job).unwrap();
        for _ in 0..steps {
            assert!(matches!(rig.workq.progress_retrieve(), Err(Retrieve::Again)));
        }
        rig.workq.abort(&rig.sha).unwrap();
        let Err(Retrieve::IoFailed(Event::Sha(done))) = rig.workq.progress_retrieve() else {
            panic!("an aborted job did not fail");
        };
        assert_eq!(done.session.is_some(), steps == 0, "after {steps} steps");
        rig.workq.remove(&rig.sha).unwrap();
        rig.workq.add(&rig.sha).unwrap();
    }
}

#[test]
fn mmap_without_ctx_device_is_rejected() {
    let mut rig = rig(WorkQ::new(2).unwrap());
    let other = map(&dev(), 4096, AccessFlags::LOCAL_READ_WRITE);
    let source = rig.inventory.buf_by_data(&other, other.address(), 64).unwrap();
    let job = rig.sha.hash(Algorithm::Sha1, source, rig.room(0));
    assert_eq!(kind(rig.workq.submit(job)), ErrorKind::NotPermitted);
}

#[test]
fn ctx_added_to_armed_workq_wakes_it() {
    use verbless_doca::dma::Dma;
    let dev = dev();
    let (map, inventory) = plain(&dev, 4096, 2);
    let dma = Dma::builder(&dev).start().unwrap();
    let mut workq = WorkQ::builder(2).event_driven().build().unwrap();
    workq.arm().unwrap();
    workq.add(&dma).unwrap();
    let from = inventory.buf_by_data(&map, map.address(), 64).unwrap();
    let to = inventory.buf_by_addr(&map, map.address() + 64, 64).unwrap();
    workq.submit(dma.memcpy(from, to)).unwrap();
    let mut files = [nix::poll::PollFd::new(workq.event_handle(), nix::poll::PollFlags::POLLIN)];
    assert_eq!(nix::poll::poll(&mut files, 10_000u16).unwrap(), 1, "no thread was woken");
}

#[test]
fn bufs_must_be_local_to_ctx_device() {
    let list = verbless_doca::DevInfo::list_of(&crate::support::backend("bluefield3")).unwrap();
    let (dev, other) = (list[0].open().unwrap(), list[1].open().unwrap());
    let (near, inventory) = plain(&dev, 4096, 4);
    let foreign = map(&other, 4096, AccessFlags::LOCAL_READ_WRITE | AccessFlags::RDMA_READ);
    let export = foreign.export_rdma(&other).unwrap();
    let far = Mmap::create_from_export(export.as_bytes(), &dev).unwrap();
    let sha = Sha::builder(&dev).start().unwrap();
    let mut workq = WorkQ::new(1).unwrap();
    workq.add(&sha).unwrap();
    let data = |map: &Mmap| inventory.buf_by_data(map, map.address(), 8).unwrap();
    let room = |map: &Mmap| inventory.buf_by_addr(map, map.address() + 64, 64).unwrap();
    for (map, expected) in [(&foreign, ErrorKind::NotPermitted), (&far, ErrorKind::NotSupported)] {
        for (source, into) in [(map, &near), (&near, map)] {
            let job = sha.hash(Algorithm::Sha1, data(source), room(into));
            assert_eq!(kind(workq.submit(job)), expected);
        }
    }
    let (source, into) = (data(&near), room(&near));
    workq.submit(sha.hash(Algorithm::Sha1, source, into)).unwrap();
    done(&mut workq);
}
