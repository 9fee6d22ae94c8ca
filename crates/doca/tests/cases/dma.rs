//! DMA copies.

use std::sync::Arc;
use std::time::Duration;

use verbless_doca::dma::{Dma, MemcpyDone};
use verbless_doca::{
    AccessFlags, Buf, Context, Dev, DevInfo, ErrorKind, Event, Inventory, JobError, Mmap, Retrieve,
    WorkQ,
};

use verbless_devx::Backend;
use verbless_model::{Fault, Link, Model, Profile, QueueKind};
use verbless_model_kernel::InProcess;
use verbless_prm::{CommandStatus, CqeSyndrome, INIT2RTR_QP};

use crate::support::{dev, map, plain};

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));

struct Rig {
    dev: Dev,
    map: Mmap,
    inventory: Inventory,
    dma: Dma,
    workq: WorkQ,
}

fn rig(workq: WorkQ) -> Rig {
    rig_on(&dev(), workq)
}

fn rig_on(dev: &Dev, workq: WorkQ) -> Rig {
    let dev = dev.clone();
    let (map, inventory) = plain(&dev, 4 << 20, 512);
    let dma = Dma::builder(&dev).start().unwrap();
    let mut workq = workq;
    workq.add(&dma).unwrap();
    Rig { dev, map, inventory, dma, workq }
}

impl Rig {
    /// A buffer of the map whose dataroom is the whole buffer.
    fn data(&self, at: u64, length: u64) -> Buf {
        self.inventory.buf_by_data(&self.map, self.map.address() + at, length).unwrap()
    }

    /// A buffer with an empty dataroom.
    fn room(&self, at: u64, length: u64) -> Buf {
        self.inventory.buf_by_addr(&self.map, self.map.address() + at, length).unwrap()
    }

    fn fill(&self, at: usize, length: usize, seed: u8) -> Vec<u8> {
        let bytes: Vec<u8> = (0..length).map(|n| (n as u8).wrapping_mul(7) ^ seed).collect();
        self.map.write_at(at, &bytes).unwrap();
        bytes
    }

    fn bytes(&self, at: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.map.read_at(at, &mut bytes).unwrap();
        bytes
    }
}

fn done(workq: &mut WorkQ) -> MemcpyDone {
    match workq.retrieve_within(TIMEOUT).unwrap().expect("a minute is enough") {
        Event::Dma(done) => done,
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
fn copy_appends_to_destination_data() {
    let mut rig = rig(WorkQ::new(4).unwrap());
    let bytes = rig.fill(0, 1000, 1);
    let mut into = rig.room(0x1000, 2000);
    into.append(b"in front").unwrap();
    let job = rig.dma.memcpy(rig.data(0, 1000), into).user_data(5);
    rig.workq.submit(job).unwrap();
    let done = done(&mut rig.workq);
    assert_eq!((done.user_data.0, done.source.data_len()), (5, 1000));
    assert_eq!(done.destination.data_len(), 1008);
    assert_eq!(rig.bytes(0x1000, 8), b"in front");
    assert_eq!(rig.bytes(0x1008, 1000), bytes);
    // Again into the rest of the tailroom, which is too short.
    let again = rig.dma.memcpy(done.source, done.destination);
    let refused = rig.workq.submit(again).map(|()| done_len(&mut rig.workq));
    assert_eq!(refused.map_err(|it| it.error.kind()).unwrap_err(), ErrorKind::InvalidValue);
}

fn done_len(workq: &mut WorkQ) -> u64 {
    done(workq).destination.data_len()
}

#[test]
fn copy_takes_0_bytes_to_2_mib() {
    let mut rig = rig(WorkQ::new(4).unwrap());
    let bytes = rig.fill(0, 2 << 20, 3);
    for length in [0, 1, 4095, 256 << 10, 2 << 20] {
        let job = rig.dma.memcpy(rig.data(0, length), rig.room(2 << 20, 2 << 20));
        rig.workq.submit(job).unwrap();
        let done = done(&mut rig.workq);
        assert_eq!(done.destination.data_len(), length);
        let length = length as usize;
        assert_eq!(rig.bytes(2 << 20, length), bytes[..length], "{length}");
    }
}

#[test]
fn chains_of_unequal_pieces_copy_as_one() {
    let mut rig = rig(WorkQ::new(4).unwrap());
    let bytes = rig.fill(0, 6000, 9);
    let (mut source, mut at) = (rig.data(0, 0), 0);
    for length in [1, 999, 0, 3000, 2000] {
        source.link(rig.data(at, length)).unwrap();
        at += length;
    }
    let base = 1 << 20;
    let mut into = rig.room(base, 100);
    into.append(&[0xee; 40]).unwrap();
    for (at, length) in [(1000, 0), (2000, 1500), (4000, 4000), (9000, 4000)] {
        into.link(rig.room(base + at, length)).unwrap();
    }
    rig.workq.submit(rig.dma.memcpy(source, into)).unwrap();
    let done = done(&mut rig.workq);
    assert_eq!((done.source.chain_data_len(), done.destination.chain_data_len()), (6000, 6040));
    let base = base as usize;
    let got = [
        rig.bytes(base + 40, 60),
        rig.bytes(base + 2000, 1500),
        rig.bytes(base + 4000, 4000),
        rig.bytes(base + 9000, 440),
    ];
    assert_eq!(got.concat(), bytes);
    let lengths: Vec<_> = done.destination.datarooms().map(|(_, length)| length).collect();
    assert_eq!(lengths, [100, 0, 1500, 4000, 440]);
}

#[test]
fn chain_length_is_limited_by_capability() {
    let mut rig = rig(WorkQ::new(4).unwrap());
    let most = Dma::max_list_buf_num_elem(&rig.dev).unwrap();
    let bytes = rig.fill(0, 10 * most as usize, 2);
    let chain = |rig: &Rig, count: u32| {
        let mut first = rig.data(0, 10);
        (1..count).for_each(|n| first.link(rig.data(10 * u64::from(n), 10)).unwrap());
        first
    };
    let into = || rig.room(1 << 20, 1 << 20);
    let too_long = rig.dma.memcpy(chain(&rig, most + 1), into());
    let longest = rig.dma.memcpy(chain(&rig, most), into());
    assert_eq!(kind(rig.workq.submit(too_long)), ErrorKind::InvalidValue);
    rig.workq.submit(longest).unwrap();
    done(&mut rig.workq);
    assert_eq!(rig.bytes(1 << 20, bytes.len()), bytes);
}

#[test]
fn thousand_copies_each_complete_once() {
    let mut rig = rig(WorkQ::new(128).unwrap());
    rig.fill(0, 128 * 64, 5);
    let (mut submitted, mut seen) = (0u64, vec![0u8; 1000]);
    while submitted < 1000 || rig.workq.in_flight() > 0 {
        while submitted < 1000 {
            let slot = submitted % 128;
            let job = rig.dma.memcpy(rig.data(64 * slot, 64), rig.room(0x10_0000 + 64 * slot, 64));
            match rig.workq.submit(job.user_data(submitted)) {
                Ok(()) => submitted += 1,
                Err(refused) => {
                    assert_eq!(refused.error.kind(), ErrorKind::Again);
                    break;
                }
            }
        }
        seen[done(&mut rig.workq).user_data.0 as usize] += 1;
    }
    assert!(seen.iter().all(|&count| count == 1));
    assert_eq!(rig.bytes(0x10_0000, 128 * 64), rig.bytes(0, 128 * 64));
}

#[test]
fn mmap_permissions_are_enforced() {
    let mut rig = rig(WorkQ::new(4).unwrap());
    let read_only = map(&rig.dev, 4096, AccessFlags::LOCAL_READ_ONLY);
    let rdma_only = map(&rig.dev, 4096, AccessFlags::RDMA_WRITE);
    let foreign = map(&dev(), 4096, AccessFlags::LOCAL_READ_WRITE);
    let at = |map: &Mmap| rig.inventory.buf_by_addr(map, map.address(), 64).unwrap();
    let full = |map: &Mmap| rig.inventory.buf_by_data(map, map.address(), 64).unwrap();
    for map in [&read_only, &rdma_only, &foreign] {
        let job = rig.dma.memcpy(rig.data(0, 64), at(map));
        assert_eq!(kind(rig.workq.submit(job)), ErrorKind::NotPermitted);
    }
    let from_foreign = rig.dma.memcpy(full(&foreign), rig.room(0, 64));
    let from_read_only = rig.dma.memcpy(full(&read_only), rig.room(0, 64));
    assert_eq!(kind(rig.workq.submit(from_foreign)), ErrorKind::NotPermitted);
    rig.workq.submit(from_read_only).unwrap();
    done(&mut rig.workq);
}

#[test]
fn rdma_import_is_rejected_by_dma() {
    let list = DevInfo::list_of(&crate::support::backend("bluefield3")).unwrap();
    let (dev, other) = (list[0].open().unwrap(), list[1].open().unwrap());
    let far = map(&other, 4096, AccessFlags::LOCAL_READ_WRITE | AccessFlags::RDMA_READ);
    let descriptor = far.export_rdma(&other).unwrap();
    let far = Mmap::create_from_export(descriptor.as_bytes(), &dev).unwrap();
    let (near, inventory) = plain(&dev, 4096, 2);
    let dma = Dma::builder(&dev).start().unwrap();
    let mut workq = WorkQ::new(1).unwrap();
    workq.add(&dma).unwrap();
    let source = inventory.buf_by_data(&far, far.address(), 8).unwrap();
    let job = dma.memcpy(source, inventory.buf_by_addr(&near, near.address(), 8).unwrap());
    assert_eq!(kind(workq.submit(job)), ErrorKind::NotPermitted);
}

/// Bytes in the destination of a copy.
fn grown(event: &Event) -> u64 {
    match event {
        Event::Dma(done) => done.destination.chain_data_len(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn failed_job_fails_alone() {
    let (model, dev) = crate::support::disturbed();
    let mut rig = rig_on(&dev, WorkQ::new(16).unwrap());
    let bytes = rig.fill(0, 64, 1);
    // Two jobs of a batch may fail, and the jobs of the second round are chains of four requests.
    for (round, chained) in [(0, false), (1, true)].into_iter().cycle().take(20).enumerate() {
        let nth = 1 + round as u32 % 8;
        model.fail_request(0, None, nth, CqeSyndrome::LOCAL_PROTECTION);
        model.fail_request(0, None, nth + 1, CqeSyndrome::LOCAL_QP_OPERATION);
        for n in 0..10u64 {
            let mut into = rig.room(0x1000 * (n + 1), if chained.1 { 16 } else { 64 });
            if chained.1 {
                (1..4).for_each(|at| into.link(rig.room(0x1000 * (n + 1) + 16 * at, 16)).unwrap());
            }
            rig.map.write_at(0x1000 * (n as usize + 1), &[0; 64]).unwrap();
            let job = rig.dma.memcpy(rig.data(0, 64), into).user_data(n);
            rig.workq.submit(job).unwrap();
        }
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        while rig.workq.in_flight() > 0 {
            match rig.workq.retrieve_within(TIMEOUT) {
                Ok(Some(event)) => {
                    assert_eq!(grown(&event), 64);
                    good.push(event.user_data().0);
                }
                Err(Retrieve::IoFailed(event)) => {
                    assert_eq!(grown(&event), 0);
                    let error = event.result().unwrap_err();
                    assert_ne!(error.kind(), ErrorKind::Shutdown, "{error}");
                    bad.push(event.user_data().0);
                }
                other => panic!("{other:?}"),
            }
        }
        assert!((1..=2).contains(&bad.len()), "round {round}: {bad:?}");
        assert_eq!(good.len() + bad.len(), 10, "round {round}: {good:?}, {bad:?}");
        for n in good {
            assert_eq!(rig.bytes(0x1000 * (n as usize + 1), 64), bytes, "{n}");
        }
    }
}

#[test]
fn abort_yields_every_job_once_and_drop_frees_bufs() {
    let mut rig = rig(WorkQ::new(64).unwrap());
    let submit = |rig: &mut Rig, n: u64| {
        let job = rig.dma.memcpy(rig.data(0, 1 << 20), rig.room(1 << 20, 1 << 20)).user_data(n);
        rig.workq.submit(job)
    };
    (0..64).for_each(|n| submit(&mut rig, n).unwrap());
    rig.workq.abort(&rig.dma).unwrap();
    let mut seen = [0; 64];
    while rig.workq.in_flight() > 0 {
        let event = match rig.workq.retrieve_within(TIMEOUT) {
            Ok(Some(event)) => {
                assert_eq!(grown(&event), 1 << 20);
                event
            }
            Err(Retrieve::IoFailed(event)) => {
                assert_eq!(event.result().unwrap_err().kind(), ErrorKind::Shutdown);
                assert_eq!(grown(&event), 0);
                event
            }
            other => panic!("{other:?}"),
        };
        seen[event.user_data().0 as usize] += 1;
    }
    assert_eq!(seen, [1; 64]);
    assert_eq!(kind(submit(&mut rig, 0)), ErrorKind::Shutdown);
    rig.workq.remove(&rig.dma).unwrap();
    rig.workq.add(&rig.dma).unwrap();
    (0..64).for_each(|n| submit(&mut rig, n).unwrap());
    drop(rig.workq);
    assert_eq!((rig.inventory.num_free_elements(), rig.map.buffers()), (512, 0));
    assert_eq!(rig.dma.workqs(), 0);
}

#[test]
fn event_driven_workq_misses_no_copy() {
    let mut rig = rig(WorkQ::builder(4).event_driven().build().unwrap());
    for n in 0..2000 {
        let count = 1 + n % 3;
        for _ in 0..count {
            let job = rig.dma.memcpy(rig.data(0, 64), rig.room(0x1000, 64));
            rig.workq.submit(job).unwrap();
        }
        for _ in 0..count {
            done(&mut rig.workq);
        }
    }
    assert!(rig.workq.retrieve_within(Some(Duration::from_millis(5))).unwrap().is_none());
}

#[test]
fn workq_serves_ctxs_of_several_devices() {
    use verbless_doca::sha::{Algorithm, Sha};
    let list = DevInfo::list_of(&crate::support::backend("bluefield3")).unwrap();
    let devs = [list[0].open().unwrap(), list[1].open().unwrap()];
    let mut workq = WorkQ::builder(16).event_driven().build().unwrap();
    let dmas = devs.each_ref().map(|dev| Dma::builder(dev).start().unwrap());
    let sha = Sha::builder(&devs[1]).start().unwrap();
    dmas.iter().for_each(|dma| workq.add(dma).unwrap());
    workq.add(&sha).unwrap();
    let maps = devs.each_ref().map(|dev| plain(dev, 4096, 8));
    for round in 0..100 {
        for (dma, (map, inventory)) in dmas.iter().zip(&maps) {
            let from = inventory.buf_by_data(map, map.address(), 64).unwrap();
            let to = inventory.buf_by_addr(map, map.address() + 64, 64).unwrap();
            workq.submit(dma.memcpy(from, to)).unwrap();
        }
        let (map, inventory) = &maps[1];
        let from = inventory.buf_by_data(map, map.address(), 64).unwrap();
        let to = inventory.buf_by_addr(map, map.address() + 64, 64).unwrap();
        workq.submit(sha.hash(Algorithm::Sha1, from, to)).unwrap();
        let kinds = [(); 3].map(|()| workq.retrieve_within(TIMEOUT).unwrap().unwrap().job_type());
        assert_eq!(kinds.iter().filter(|it| format!("{it:?}") == "ShaHash").count(), 1, "{round}");
    }
    workq.remove(&dmas[0]).unwrap();
    workq.remove(&sha).unwrap();
    workq.remove(&dmas[1]).unwrap();
    workq.destroy().unwrap();
}

#[test]
fn device_without_dma_engine_is_not_supported() {
    let dev = DevInfo::list_of(&crate::support::backend("connectx6dx")).unwrap()[0].open().unwrap();
    assert_eq!(kind(Dma::memcpy_supported(&dev)), ErrorKind::NotSupported);
    assert_eq!(kind(Dma::max_buf_size(&dev)), ErrorKind::NotSupported);
    assert_eq!(kind(Dma::builder(&dev).start()), ErrorKind::NotSupported);
    let dev = crate::support::dev();
    assert_eq!(Dma::max_buf_size(&dev).unwrap(), 1 << 31);
}

/// Two buffers of 16 bytes in a chain, with data or with room.
fn chain_of_two(rig: &Rig, at: u64, full: bool) -> Buf {
    let make = |at| if full { rig.data(at, 16) } else { rig.room(at, 16) };
    let mut chain = make(at);
    chain.link(make(at + 64)).unwrap();
    chain
}

#[test]
fn chain_submitted_during_flush_completes_after() {
    let (model, dev) = crate::support::disturbed();
    let mut rig = rig_on(&dev, WorkQ::new(16).unwrap());
    let bytes = rig.fill(0, 128, 3);
    for round in 0..20 {
        model.fail_request(0, None, 1, CqeSyndrome::LOCAL_PROTECTION);
        for number in 0..2 {
            let job = rig.dma.memcpy(rig.data(0, 16), rig.room(0x8000, 16)).user_data(number);
            rig.workq.submit(job).unwrap();
        }
        let failed = rig.workq.retrieve_within(TIMEOUT);
        assert!(matches!(failed, Err(Retrieve::IoFailed(_))), "round {round}: {failed:?}");
        // The second is not retrieved yet, so the device's queue is stopped.
        rig.map.write_at(0x1000, &[0; 128]).unwrap();
        let (from, to) = (chain_of_two(&rig, 0, true), chain_of_two(&rig, 0x1000, false));
        rig.workq.submit(rig.dma.memcpy(from, to).user_data(2)).unwrap();
        for number in 1..3 {
            assert_eq!(done(&mut rig.workq).user_data.0, number, "round {round}");
        }
        assert_eq!(rig.bytes(0x1000, 16), bytes[..16], "round {round}");
        assert_eq!(rig.bytes(0x1040, 16), bytes[64..80], "round {round}");
    }
}

#[test]
fn checks_apply_during_flush() {
    let (model, dev) = crate::support::disturbed();
    let mut rig = rig_on(&dev, WorkQ::new(16).unwrap());
    let read_only = map(&dev, 4096, AccessFlags::LOCAL_READ_ONLY);
    model.fail_request(0, None, 1, CqeSyndrome::LOCAL_PROTECTION);
    for _ in 0..2 {
        rig.workq.submit(rig.dma.memcpy(rig.data(0, 16), rig.room(0x8000, 16))).unwrap();
    }
    assert!(matches!(rig.workq.retrieve_within(TIMEOUT), Err(Retrieve::IoFailed(_))));
    let into = rig.inventory.buf_by_addr(&read_only, read_only.address(), 64).unwrap();
    let refused = rig.workq.submit(rig.dma.memcpy(chain_of_two(&rig, 0, true), into));
    assert_eq!(kind(refused), ErrorKind::NotPermitted);
    // Buffers with other references are refused, too.
    let (from, to) = (rig.data(0, 16), rig.room(0x8000, 16));
    let (first, second) = (from.add_ref().unwrap(), to.add_ref().unwrap());
    assert_eq!(kind(rig.workq.submit(rig.dma.memcpy(from, to))), ErrorKind::InvalidValue);
    drop((first, second));
    done(&mut rig.workq);
    rig.workq.submit(rig.dma.memcpy(rig.data(0, 16), rig.room(0x8000, 16))).unwrap();
    done(&mut rig.workq);
}

#[test]
fn chain_after_abort_is_rejected() {
    let mut rig = rig(WorkQ::new(16).unwrap());
    for number in 0..4 {
        let job = rig.dma.memcpy(rig.data(0, 4096), rig.room(0x8000, 4096)).user_data(number);
        rig.workq.submit(job).unwrap();
    }
    rig.workq.abort(&rig.dma).unwrap();
    for _ in 0..3 {
        let (from, to) = (chain_of_two(&rig, 0, true), chain_of_two(&rig, 0x1000, false));
        assert_eq!(kind(rig.workq.submit(rig.dma.memcpy(from, to))), ErrorKind::Shutdown);
    }
    assert_eq!(rig.workq.drain().count(), 4);
    rig.workq.remove(&rig.dma).unwrap();
}

/// Submits `count` copies of 64 bytes.
fn submit(rig: &mut Rig, count: u64) {
    for number in 0..count {
        let job = rig.dma.memcpy(rig.data(0, 64), rig.room(0x8000, 64)).user_data(number);
        rig.workq.submit(job).unwrap();
    }
}

/// The errors of the jobs in flight, all of which fail.
fn errors(rig: &mut Rig) -> Vec<JobError> {
    let failed = |event| match event {
        Err(Retrieve::IoFailed(event)) => event.result().unwrap_err(),
        other => panic!("{other:?}"),
    };
    rig.workq.drain().map(failed).collect()
}

#[test]
fn lost_flush_cqes_delay_no_job() {
    let (model, dev) = crate::support::stepped();
    let mut rig = rig_on(&dev, WorkQ::new(16).unwrap());
    for round in 0..4 {
        model.fail_request(0, None, 2, CqeSyndrome::LOCAL_PROTECTION);
        // A valid job, and the job that fails.
        model.inject(0, Fault::LoseCompletion, 2, 6);
        submit(&mut rig, 8);
        let mut results = Vec::new();
        for _ in 0..100 {
            model.run_until_idle();
            match rig.workq.progress_retrieve() {
                Err(Retrieve::Again) => {}
                other => results.push(other.is_ok()),
            }
        }
        let alone: Vec<_> = (0..8).map(|number| number != 1).collect();
        assert_eq!(results, alone, "round {round}");
    }
}

#[test]
fn jobs_of_dead_device_end_with_abort_or_drop() {
    let ways: [fn(&Model); 2] = [|model| model.kill(0), |model| model.remove(0)];
    for (way, driven) in ways.into_iter().flat_map(|way| [(way, false), (way, true)]) {
        let (model, dev) = crate::support::disturbed();
        let builder = WorkQ::builder(16);
        let builder = if driven { builder.event_driven() } else { builder };
        let mut rig = rig_on(&dev, builder.build().unwrap());
        way(&model);
        submit(&mut rig, 8);
        rig.workq.abort(&rig.dma).unwrap();
        let kinds: Vec<_> = errors(&mut rig).iter().map(JobError::kind).collect();
        assert_eq!(kinds, [ErrorKind::Shutdown; 8]);
        assert_eq!(rig.inventory.num_free_elements(), 512);
        rig.workq.remove(&rig.dma).unwrap();
        // Or with a drop of the work queue.
        let (model, dev) = crate::support::disturbed();
        let mut rig = rig_on(&dev, WorkQ::new(16).unwrap());
        way(&model);
        submit(&mut rig, 8);
        drop(rig.workq);
        assert_eq!(rig.inventory.num_free_elements(), 512);
    }
}

#[test]
fn failed_qp_recovers_unless_same_job_fails_it_again() {
    let (model, dev) = crate::support::disturbed();
    let mut rig = rig_on(&dev, WorkQ::new(16).unwrap());
    model.fail_queue_later(0, QueueKind::Qp, None, 2);
    submit(&mut rig, 4);
    assert!(rig.workq.drain().all(|event| event.is_ok()));
    for nth in 1..3 {
        model.fail_queue_later(0, QueueKind::Qp, None, nth);
    }
    submit(&mut rig, 4);
    let results: Vec<_> = rig.workq.drain().map(|event| event.is_ok()).collect();
    assert_eq!(results, [false, true, true, true]);
}

#[test]
fn failed_recovery_is_reported_with_each_job() {
    let (model, dev) = crate::support::disturbed();
    let mut rig = rig_on(&dev, WorkQ::new(16).unwrap());
    model.fail_request(0, None, 1, CqeSyndrome::LOCAL_PROTECTION);
    model.fail_command(
        0,
        verbless_prm::Opcode(INIT2RTR_QP.opcode),
        1,
        CommandStatus::NO_RES,
        0x1234,
    );
    submit(&mut rig, 4);
    let errors = errors(&mut rig);
    assert_eq!(errors[0].kind(), ErrorKind::NotPermitted);
    assert_eq!(errors.len(), 4);
    let job = rig.dma.memcpy(rig.data(0, 64), rig.room(0x8000, 64));
    let refused = rig.workq.submit(job).unwrap_err().error;
    assert_eq!(refused.kind(), ErrorKind::Shutdown);
    for text in errors[1..].iter().map(JobError::to_string).chain([refused.to_string()]) {
        assert!(text.contains("INIT2RTR_QP") && text.contains("0x1234"), "{text}");
    }
    rig.workq.remove(&rig.dma).unwrap();
    rig.workq.add(&rig.dma).unwrap();
    submit(&mut rig, 4);
    assert!(rig.workq.drain().all(|event| event.is_ok()));
}

/// A BlueField on Ethernet whose network device is in another network namespace.
fn without_a_network(profile: Profile) -> (Model, Dev) {
    let model = Model::builder().device(profile.with_link(Link::Ethernet)).build();
    let backend = InProcess::of(&model);
    backend.move_netdev_away(0);
    let backend: Arc<dyn Backend> = Arc::new(backend);
    assert_eq!(backend.enumerate().unwrap()[0].ports[0].gids, []);
    let dev = DevInfo::list_of(&backend).unwrap()[0].open().unwrap();
    (model, dev)
}

#[test]
fn copy_needs_no_port_address_with_forced_loopback() {
    let (model, dev) = without_a_network(Profile::load("bluefield3").unwrap());
    let mut rig = rig_on(&dev, WorkQ::new(16).unwrap());
    let bytes = rig.fill(0, 64, 5);
    for number in 0..4 {
        model.set_port(0, 1, number % 2 == 0);
        model.fail_request(0, None, 2, CqeSyndrome::LOCAL_PROTECTION);
        submit(&mut rig, 4);
        assert_eq!(rig.workq.drain().filter(Result::is_ok).count(), 3);
        assert_eq!(rig.bytes(0x8000, 64), bytes);
    }
}

#[test]
fn device_needing_gid_fails_at_workq_add() {
    let text = include_str!("../../../model/profiles/bluefield3.toml");
    let less = text.replace("fl_rc_qp_when_roce_enabled = true", "");
    assert_ne!(less, text);
    let (_model, dev) = without_a_network(Profile::from_toml(&less).unwrap());
    let dma = Dma::builder(&dev).start().unwrap();
    let error = WorkQ::new(1).unwrap().add(&dma).unwrap_err();
    assert!(error.to_string().contains("the port has no GID"), "{error}");
}

#[test]
fn small_mmo_limit_still_copies_chains() {
    let text = include_str!("../../../model/profiles/bluefield3.toml");
    let little = text.replace("log_dma_mmo_size = 31", "log_dma_mmo_size = 15");
    assert_ne!(little, text);
    let model = Model::builder().device(Profile::from_toml(&little).unwrap()).build();
    let backend: Arc<dyn Backend> = Arc::new(InProcess::of(&model));
    let dev = DevInfo::list_of(&backend).unwrap()[0].open().unwrap();
    let mut rig = rig_on(&dev, WorkQ::new(16).unwrap());
    let bytes = rig.fill(0, 1 << 15, 3);
    let (from, to) = (chain_of_two(&rig, 0, true), chain_of_two(&rig, 0x1_0000, false));
    rig.workq.submit(rig.dma.memcpy(from, to)).unwrap();
    done(&mut rig.workq);
    assert_eq!(rig.bytes(0x1_0000, 16), bytes[..16]);
    assert_eq!(rig.bytes(0x1_0040, 16), bytes[64..80]);
    for _ in 0..2 {
        let job = rig.dma.memcpy(rig.data(0, 1 << 15), rig.room(0x1_0000, 1 << 15));
        rig.workq.submit(job).unwrap();
        done(&mut rig.workq);
        assert!(rig.bytes(0x1_0000, 1 << 15) == bytes);
    }
    let job = rig.dma.memcpy(rig.data(0, (1 << 15) + 1), rig.room(0x1_0000, 1 << 16));
    assert_eq!(kind(rig.workq.submit(job)), ErrorKind::InvalidValue);
}

#[test]
fn flushed_chain_requests_keep_their_cq_entries() {
    let (model, dev) = crate::support::stepped();
    let mut rig = rig_on(&dev, WorkQ::new(2).unwrap());
    let [second, third] = [(); 2].map(|()| Dma::builder(&dev).start().unwrap());
    rig.workq.add(&second).unwrap();
    rig.workq.add(&third).unwrap();
    let most = u64::from(Dma::max_list_buf_num_elem(&dev).unwrap());
    // Pieces of both ends that never align: nearly twice as many requests as elements.
    let ends = |rig: &Rig| {
        let mut source = rig.data(0, 10);
        (1..most).for_each(|n| source.link(rig.data(10 * n, 10)).unwrap());
        let mut room = rig.room(1 << 20, 5);
        let rooms = (1..most - 1).map(|n| rig.room((1 << 20) + 10 * n, 10));
        rooms.for_each(|next| room.link(next).unwrap());
        room.link(rig.room(1 << 21, 15)).unwrap();
        (source, room)
    };
    let bytes = rig.fill(0, 10 * most as usize, 7);
    model.fail_request(0, None, 1, CqeSyndrome::LOCAL_PROTECTION);
    let (source, room) = ends(&rig);
    rig.workq.submit(rig.dma.memcpy(source, room)).unwrap();
    model.run_until_idle();
    let failed = rig.workq.progress_retrieve();
    assert!(matches!(failed, Err(Retrieve::IoFailed(_))), "{failed:?}");
    // Its other requests were flushed, and their CQEs are unread.
    let (source, room) = ends(&rig);
    rig.workq.submit(second.memcpy(source, room)).unwrap();
    let (source, room) = ends(&rig);
    let mut job = third.memcpy(source, room);
    let mut tries = 0;
    while let Err(refused) = rig.workq.submit(job) {
        assert_eq!(refused.error.kind(), ErrorKind::Again);
        assert!(matches!(rig.workq.progress_retrieve(), Err(Retrieve::Again)));
        (job, tries) = (refused.given, tries + 1);
        assert!(tries < 1000, "their CQ entries never come back");
    }
    assert!(tries > 0, "the CQ would be overrun");
    model.run_until_idle();
    for _ in 0..2 {
        let done = (0..1000).find_map(|_| match rig.workq.progress_retrieve() {
            Err(Retrieve::Again) => None,
            other => Some(other),
        });
        assert!(matches!(done, Some(Ok(_))), "{done:?}");
    }
    let first = rig.bytes(1 << 20, 5);
    assert_eq!(first, bytes[..5]);
}
