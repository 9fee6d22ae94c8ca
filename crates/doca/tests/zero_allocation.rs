//! Started objects do not allocate: buffers, pools, jobs and their results (sections 3.1 and
//! 3.3.4.1 of the DOCA 2.2 document).

#![allow(unsafe_code, reason = "a global allocator is unsafe to implement")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use verbless_doca::dma::Dma;
use verbless_doca::sha::{Algorithm, HashDone, Sha};
use verbless_doca::sync_event::{Location, SyncEvent};
use verbless_doca::{
    AccessFlags, BufArray, BufPool, Dev, Event, Extensions, Inventory, Mmap, Retrieve, WorkQ,
};

use verbless_prm::CqeSyndrome;

use support::rdma::End;
use support::{dev, map, plain};

/// Counts the allocations and frees of the current thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u32> = const { Cell::new(0) };
}

fn count() {
    // A thread that ends frees after its counter is destroyed.
    let _ended = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: forwards every call to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller promises the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller promises the same.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Counts the allocations and frees of `work`.
fn allocations(work: impl FnOnce()) -> u32 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

#[test]
fn allocation_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 2);
}

/// The next result. An error's text is not formatted, because that would allocate.
fn next(workq: &mut WorkQ) -> Event {
    loop {
        match workq.progress_retrieve() {
            Ok(event) | Err(Retrieve::IoFailed(event)) => return event,
            Err(Retrieve::Again) => std::hint::spin_loop(),
            Err(Retrieve::Failed(error)) => panic!("{error}"),
        }
    }
}

#[test]
fn bufs_are_used_without_allocation() {
    let (map, inventory) = plain(&dev(), 4096, 8);
    let at = map.address();
    let work = || {
        for _ in 0..1000 {
            let mut buffer = inventory.buf_by_addr(&map, at, 64).unwrap();
            buffer.append(b"some bytes").unwrap();
            buffer.link(inventory.buf_by_data(&map, at + 64, 64).unwrap()).unwrap();
            buffer.link(inventory.buf_by_args(&map, at, 64, at + 8, 8).unwrap()).unwrap();
            let copy = inventory.buf_dup(&buffer).unwrap();
            let reference = buffer.add_ref().unwrap();
            buffer.unlink();
            buffer.reset_data_len();
            drop((buffer, copy));
            drop(reference);
        }
        // The inventory is empty: the error has a constant text.
        let all: [_; 8] = std::array::from_fn(|_| inventory.buf_by_addr(&map, at, 1).unwrap());
        assert!(inventory.buf_by_addr(&map, at, 1).is_err());
        drop(all);
    };
    assert_eq!(allocations(work), 0);
    assert_eq!(inventory.num_free_elements(), 8);
}

#[test]
fn pools_and_arrays_are_used_without_allocation() {
    let map = map(&dev(), 4096, AccessFlags::LOCAL_READ_WRITE);
    let pool = BufPool::builder(&map, 8, 64).extensions(Extensions::LINKED_LIST).start().unwrap();
    let mut array = BufArray::builder(&map, 8, 64).start().unwrap();
    let work = || {
        for index in 0..1000 {
            let mut buffer = pool.alloc().unwrap();
            buffer.link(pool.alloc().unwrap()).unwrap();
            drop(buffer);
            let element = array.take(index % 8).unwrap();
            array.put(element).unwrap();
        }
        let all: [_; 8] = std::array::from_fn(|_| pool.alloc().unwrap());
        assert!(pool.alloc().is_err());
        drop(all);
    };
    assert_eq!(allocations(work), 0);
}

/// A map, an inventory, a DMA and a SHA context, and a work queue on both.
fn rig(dev: &Dev, workq: WorkQ) -> (Mmap, Inventory, Dma, Sha, WorkQ) {
    let (map, inventory) = plain(dev, 4096, 64);
    let dma = Dma::builder(dev).start().unwrap();
    let sha = Sha::builder(dev).start().unwrap();
    let mut workq = workq;
    workq.add(&dma).unwrap();
    workq.add(&sha).unwrap();
    (map, inventory, dma, sha, workq)
}

#[test]
fn jobs_are_handled_without_allocation() {
    let (map, inventory, dma, sha, mut workq) = rig(&dev(), WorkQ::new(8).unwrap());
    let at = map.address();
    let from = |length| inventory.buf_by_data(&map, at, length).unwrap();
    let to = || inventory.buf_by_addr(&map, at + 1024, 128).unwrap();
    let mut session = Some(sha.partial(Algorithm::Sha256));
    let work = || {
        for lap in 0..200 {
            // Eight jobs fill the work queue: copies, a copy of chains, an empty copy, hashes.
            for n in 0..3 {
                workq.submit(dma.memcpy(from(64), to()).user_data(n)).unwrap();
            }
            let (mut source, mut into) = (from(32), to());
            source.link(from(16)).unwrap();
            into.link(to()).unwrap();
            workq.submit(dma.memcpy(source, into)).unwrap();
            workq.submit(dma.memcpy(from(0), to())).unwrap();
            workq.submit(sha.hash(Algorithm::Sha1, from(100), to())).unwrap();
            workq.submit(sha.hash(Algorithm::Sha512, from(64), to())).unwrap();
            let part = session.take().unwrap();
            workq.submit(sha.update(part, from(64))).unwrap();
            // A ninth job is refused and returned.
            assert!(workq.submit(dma.memcpy(from(1), to())).is_err(), "{lap}");
            for _ in 0..8 {
                if let Event::Sha(HashDone { session: Some(back), .. }) = next(&mut workq) {
                    session = Some(back);
                }
            }
            // A job whose buffers do not fit is refused too.
            assert!(workq.submit(dma.memcpy(from(1024), to())).is_err(), "{lap}");
        }
    };
    assert_eq!(allocations(work), 0);
    assert_eq!(inventory.num_free_elements(), 64);
}

#[test]
fn sync_event_jobs_are_handled_without_allocation() {
    let dev = dev();
    let event = SyncEvent::builder(&dev).publisher_add_location(Location::Cpu).unwrap();
    let event = event.subscriber_add_location(Location::Cpu).unwrap().as_ctx().start().unwrap();
    let mut workq = WorkQ::new(8).unwrap();
    workq.add(&event).unwrap();
    let work = || {
        for _ in 0..50 {
            // The lower threshold first: otherwise commands stop and restart the device's queue.
            workq.submit(event.set(0)).unwrap();
            drop(next(&mut workq));
            workq.submit(event.wait_gt(10)).unwrap();
            workq.submit(event.wait_gt(20)).unwrap();
            workq.submit(event.add(30)).unwrap();
            workq.submit(event.get()).unwrap();
            (0..4).for_each(|_| drop(next(&mut workq)));
        }
    };
    assert_eq!(allocations(work), 0);
}

#[test]
fn rdma_jobs_are_handled_without_allocation() {
    let [mut a, mut b] = support::rdma::pair("bluefield3");
    let receive = |b: &mut End, number: u64| {
        b.workq.submit(b.rdma().receive(b.room(64 * number, 64)).user_data(number)).unwrap();
    };
    let work = || {
        for _ in 0..100 {
            (0..3).for_each(|number| receive(&mut b, number));
            let (mut chain, last) = (a.data(0, 16).unwrap(), a.data(100, 16).unwrap());
            chain.link(last).unwrap();
            a.workq.submit(a.rdma().send(Some(chain))).unwrap();
            a.workq.submit(a.rdma().send_imm(a.data(0, 64), 1)).unwrap();
            a.workq.submit(a.rdma().write_imm(a.data(0, 8), a.remote(512, 8), 2)).unwrap();
            a.workq.submit(a.rdma().write(a.data(0, 64), a.remote(512, 64))).unwrap();
            a.workq.submit(a.rdma().read(a.remote(512, 64), a.data(64, 64))).unwrap();
            let (there, here) = (a.remote(1024, 8).unwrap(), a.data(128, 8).unwrap());
            a.workq.submit(a.rdma().fetch_and_add(there, here, 1)).unwrap();
            let (there, here) = (a.remote(1024, 8).unwrap(), a.data(128, 8).unwrap());
            a.workq.submit(a.rdma().compare_and_swap(there, here, 1, 2)).unwrap();
            // A job whose remote buffer is too short is refused and returned.
            assert!(a.workq.submit(a.rdma().write(a.data(0, 64), a.remote(0, 8))).is_err());
            (0..7).for_each(|_| drop(next(&mut a.workq)));
            (0..3).for_each(|_| drop(next(&mut b.workq)));
        }
    };
    assert_eq!(allocations(work), 0);
    assert_eq!((a.workq.in_flight(), b.workq.in_flight()), (0, 0));
}

#[test]
fn restarted_rdma_submits_without_allocation() {
    let mut ends = support::rdma::pair("bluefield3");
    for round in 0..3 {
        ends.iter_mut().for_each(End::restart);
        support::rdma::connect(&ends);
        let [a, b] = &mut ends;
        let work = || {
            b.workq.submit(b.rdma().receive(b.room(0, 64))).unwrap();
            a.workq.submit(a.rdma().send(a.data(0, 64))).unwrap();
            a.workq.submit(a.rdma().write(a.data(0, 64), a.remote(512, 64))).unwrap();
            (0..2).for_each(|_| drop(next(&mut a.workq)));
            drop(next(&mut b.workq));
        };
        assert_eq!(allocations(work), 0, "round {round}");
    }
    // The instance is started again, and not yet connected.
    let [a, _] = &mut ends;
    let stopped = a.rdma.take().unwrap().stop().unwrap();
    a.rdma = Some(stopped.start().unwrap());
    let work = || a.workq.submit(a.rdma().receive(a.room(0, 64))).unwrap();
    assert_eq!(allocations(work), 0, "a receive before the connection");
}

#[test]
fn recovered_queues_submit_without_allocation() {
    let (model, dev) = support::disturbed();
    let (map, inventory, dma, _sha, mut workq) = rig(&dev, WorkQ::new(8).unwrap());
    let event = SyncEvent::builder(&dev).publisher_add_location(Location::Cpu).unwrap();
    let event = event.subscriber_add_location(Location::Cpu).unwrap().as_ctx().start().unwrap();
    workq.add(&event).unwrap();
    let at = map.address();
    let from = || inventory.buf_by_data(&map, at, 64).unwrap();
    let to = || inventory.buf_by_addr(&map, at + 64, 64).unwrap();
    let copies = |workq: &mut WorkQ| {
        (0..3).for_each(|_| workq.submit(dma.memcpy(from(), to())).unwrap());
        (0..3).filter(|_| next(workq).result().is_err()).count()
    };
    let counts = |workq: &mut WorkQ| {
        (0..3).for_each(|_| workq.submit(event.add(1)).unwrap());
        (0..3).filter(|_| next(workq).result().is_err()).count()
    };
    type Jobs<'a> = &'a dyn Fn(&mut WorkQ) -> usize;
    for (what, jobs) in [("copies", &copies as Jobs<'_>), ("counts", &counts)] {
        for round in 0..3 {
            model.fail_request(0, None, 1, CqeSyndrome::REMOTE_ACCESS);
            // Commands reset and reconnect the device's queue; their mailboxes are allocated.
            assert_eq!(jobs(&mut workq), 1, "{what}, round {round}");
            let mut failed = 0;
            assert_eq!(allocations(|| failed = jobs(&mut workq)), 0, "{what}, round {round}");
            assert_eq!(failed, 0, "{what}, round {round}");
        }
    }
}

#[test]
fn event_driven_workq_arms_without_allocation() {
    let workq = WorkQ::builder(8).event_driven().build().unwrap();
    let (map, inventory, dma, _sha, mut workq) = rig(&dev(), workq);
    let at = map.address();
    let work = || {
        for _ in 0..200 {
            let from = inventory.buf_by_data(&map, at, 64).unwrap();
            let to = inventory.buf_by_addr(&map, at + 64, 64).unwrap();
            workq.submit(dma.memcpy(from, to)).unwrap();
            drop(workq.retrieve_within(None).unwrap());
        }
    };
    assert_eq!(allocations(work), 0);
}
