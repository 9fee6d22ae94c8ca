//! Rules of the two documents without another test: sections 3.3 and 3.4 of 2.2, chapters 4 to 6 of
//! 1.3. docs/mapping/doca-core.md has all rules with their tests.

use std::time::Duration;

use verbless_doca::dma::{Dma, MemcpyDone};
use verbless_doca::{
    AccessFlags, BufPool, DynamicMmap, ErrorKind, Event, Inventory, Memory, MemoryMap, Mmap,
    Retrieve, WorkQ,
};

use crate::support::{dev, map, plain};

const READ_WRITE: AccessFlags = AccessFlags::LOCAL_READ_WRITE;

fn done(workq: &mut WorkQ) -> MemcpyDone {
    match workq.retrieve_within(Some(Duration::from_secs(60))).unwrap() {
        Some(Event::Dma(done)) => done,
        other => panic!("{other:?}"),
    }
}

#[test]
fn copy_preserves_head_room() {
    let dev = dev();
    let (map, inventory) = plain(&dev, 4096, 2);
    let dma = Dma::builder(&dev).start().unwrap();
    let mut workq = WorkQ::new(1).unwrap();
    workq.add(&dma).unwrap();
    let bytes: Vec<u8> = (0..=255).collect();
    map.write_at(0, &bytes).unwrap();
    let (from, to) = (map.address(), map.address() + 1024);
    let source = inventory.buf_by_args(&map, from, 256, from + 100, 50).unwrap();
    let into = inventory.buf_by_args(&map, to, 256, to + 32, 0).unwrap();
    workq.submit(dma.memcpy(source, into)).unwrap();
    let done = done(&mut workq);
    assert_eq!((done.source.data(), done.source.data_len()), (from + 100, 50));
    assert_eq!((done.destination.data(), done.destination.data_len()), (to + 32, 50));
    let mut whole = [0xff; 256];
    map.read_at(1024, &mut whole).unwrap();
    assert_eq!(whole[..32], [0; 32], "the headroom");
    assert_eq!(whole[32..82], bytes[100..150]);
    assert_eq!(whole[82..], [0; 174], "what is left of the tailroom");
}

#[test]
fn chain_fills_from_front() {
    let dev = dev();
    let (map, inventory) = plain(&dev, 4096, 4);
    let dma = Dma::builder(&dev).start().unwrap();
    let mut workq = WorkQ::new(1).unwrap();
    workq.add(&dma).unwrap();
    let at = map.address();
    let source = inventory.buf_by_data(&map, at, 100).unwrap();
    let mut into = inventory.buf_by_addr(&map, at + 1024, 64).unwrap();
    for place in [2048, 3072] {
        into.link(inventory.buf_by_addr(&map, at + place, 64).unwrap()).unwrap();
    }
    workq.submit(dma.memcpy(source, into)).unwrap();
    let lengths: Vec<u64> = done(&mut workq).destination.datarooms().map(|it| it.1).collect();
    assert_eq!(lengths, [64, 36, 0]);
}

#[test]
fn inventory_serves_static_and_dynamic_mmaps() {
    let dev = dev();
    let fixed = map(&dev, 4096, READ_WRITE);
    let mut dynamic = DynamicMmap::new("");
    dynamic.start().unwrap();
    let memory = Memory::allocate(4096).unwrap();
    let address = memory.address();
    dynamic.populate(memory, 1, None).unwrap();
    let inventory = Inventory::builder(2).start().unwrap();
    let both = [
        inventory.buf_by_addr(&fixed, fixed.address(), 4096).unwrap(),
        inventory.buf_by_addr(&dynamic, address, 1).unwrap(),
    ];
    assert_eq!(both.map(|buffer| buffer.len()), [4096, 1]);
}

#[test]
fn ctx_serves_several_workqs() {
    let dev = dev();
    let dma = Dma::builder(&dev).start().unwrap();
    let (map, inventory) = plain(&dev, 4096, 8);
    let mut queues: [WorkQ; 4] = std::array::from_fn(|_| WorkQ::new(1).unwrap());
    queues.iter_mut().for_each(|workq| workq.add(&dma).unwrap());
    for (n, workq) in queues.iter_mut().enumerate() {
        let from = inventory.buf_by_data(&map, map.address(), 8).unwrap();
        let to = inventory.buf_by_addr(&map, map.address() + 8, 8).unwrap();
        workq.submit(dma.memcpy(from, to).user_data(n as u64)).unwrap();
    }
    // Each work queue has its own job only.
    for (n, workq) in queues.iter_mut().enumerate().rev() {
        assert_eq!(done(workq).user_data.0, n as u64);
        assert!(matches!(workq.progress_retrieve(), Err(Retrieve::Again)));
    }
}

#[test]
fn idle_workq_returns_again() {
    let mut workq = WorkQ::new(1).unwrap();
    assert!(matches!(workq.progress_retrieve(), Err(Retrieve::Again)), "on no context");
    workq.add(&Dma::builder(&dev()).start().unwrap()).unwrap();
    assert!(matches!(workq.progress_retrieve(), Err(Retrieve::Again)));
}

#[test]
fn stopped_inventory_rejects_buf_and_dup() {
    let (map, mut inventory) = plain(&dev(), 4096, 4);
    let buffer = inventory.buf_by_addr(&map, map.address(), 1).unwrap();
    inventory.stop().unwrap();
    let addr = inventory.buf_by_addr(&map, map.address(), 1).map(drop);
    assert_eq!(addr.unwrap_err().kind(), ErrorKind::BadState);
    assert_eq!(inventory.buf_dup(&buffer).unwrap_err().kind(), ErrorKind::BadState);
    inventory.start().unwrap();
    assert_eq!(inventory.buf_dup(&buffer).unwrap().head(), map.address());
}

#[test]
fn dynamic_mmap_with_bufs_is_not_destroyed() {
    let mut map = DynamicMmap::new("");
    map.start().unwrap();
    let memory = Memory::allocate(64).unwrap();
    let address = memory.address();
    map.populate(memory, 1, None).unwrap();
    let inventory = Inventory::builder(1).start().unwrap();
    let buffer = inventory.buf_by_addr(&map, address, 64).unwrap();
    let refused = map.destroy().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InUse);
    drop(buffer);
    refused.given.destroy().unwrap();
}

#[test]
fn stopped_dynamic_mmap_rejects_changes_and_bufs() {
    let dev = dev();
    let mut map = DynamicMmap::new("");
    map.set_max_chunks(2).unwrap();
    map.set_access_flags(READ_WRITE | AccessFlags::RDMA_READ).unwrap();
    map.start().unwrap();
    map.dev_add(&dev).unwrap();
    let memory = Memory::allocate(64).unwrap();
    let address = memory.address();
    map.populate(memory, 1, None).unwrap();
    let inventory = Inventory::builder(2).start().unwrap();
    let pool = BufPool::builder(&map, 2, 8).start().unwrap();
    let buffer = inventory.buf_by_data(&map, address, 8).unwrap();

    map.stop().unwrap();
    let bad = |result: verbless_doca::Result<()>| {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::BadState);
    };
    bad(map.stop());
    bad(map.dev_rm(&dev));
    bad(map.dev_add(&crate::support::dev()));
    bad(map.populate(Memory::allocate(64).unwrap(), 1, None).map_err(Into::into));
    bad(map.export_rdma(&dev).map(drop));
    bad(inventory.buf_by_addr(&map, address, 8).map(drop));
    bad(inventory.buf_dup(&buffer).map(drop));
    bad(pool.alloc().map(drop));
    assert_eq!((inventory.num_free_elements(), pool.num_free_elements()), (1, 2));
    assert_eq!(buffer.to_vec().unwrap(), [0; 8], "an existing buffer stays valid");

    map.start().unwrap();
    assert_eq!(inventory.buf_dup(&buffer).unwrap().head(), address);
    pool.alloc().unwrap();
}

/// Chapter 6 of 1.3: ranges that are known before, ranges found while jobs run, and a map for each
/// buffer.
#[test]
fn copies_read_memory_mapped_before_or_later() {
    let dev = dev();
    let dma = Dma::builder(&dev).start().unwrap();
    let mut workq = WorkQ::new(4).unwrap();
    workq.add(&dma).unwrap();
    let (target, inventory) = plain(&dev, 4096, 8);
    let found = |seed: u8| {
        let memory = Memory::allocate(64).unwrap();
        memory.write_at(0, &[seed; 64]).unwrap();
        memory
    };
    let copy = |workq: &mut WorkQ, map: &dyn Fn() -> verbless_doca::Buf, seed: u8| {
        let into = inventory.buf_by_addr(&target, target.address(), 64).unwrap();
        workq.submit(dma.memcpy(map(), into)).unwrap();
        assert_eq!(done(workq).destination.to_vec().unwrap(), [seed; 64]);
    };
    fn all(inventory: &Inventory, map: &impl MemoryMap, address: u64) -> verbless_doca::Buf {
        inventory.buf_by_data(map, address, 64).unwrap()
    }

    // 6.2 and 6.3.1: the second range is added after the first copy.
    let mut map = DynamicMmap::new("found");
    map.set_max_chunks(2).unwrap();
    map.start().unwrap();
    map.dev_add(&dev).unwrap();
    for seed in [1, 2] {
        let memory = found(seed);
        let address = memory.address();
        map.populate(memory, 1, None).unwrap();
        copy(&mut workq, &|| all(&inventory, &map, address), seed);
    }
    // 6.3.2.
    for seed in 3..10 {
        let memory = found(seed);
        let address = memory.address();
        let map = Mmap::builder().memrange(memory).add_dev(&dev).start().unwrap();
        copy(&mut workq, &|| all(&inventory, &map, address), seed);
        map.destroy().unwrap();
    }
}

/// 6.3.1 of 1.3: a range is added while copies out of another one are in flight.
#[test]
fn range_is_added_while_copies_are_in_flight() {
    let dev = dev();
    let dma = Dma::builder(&dev).start().unwrap();
    let mut workq = WorkQ::new(64).unwrap();
    workq.add(&dma).unwrap();
    let (target, inventory) = plain(&dev, 1 << 16, 128);
    let mut map = DynamicMmap::new("found");
    map.set_max_chunks(64).unwrap();
    map.start().unwrap();
    map.dev_add(&dev).unwrap();
    for number in 0..64 {
        let memory = Memory::allocate(64).unwrap();
        memory.write_at(0, &[number as u8; 64]).unwrap();
        let address = memory.address();
        map.populate(memory, 1, None).unwrap();
        assert_eq!(u64::from(workq.in_flight()), number, "nothing was retrieved yet");
        let source = inventory.buf_by_data(&map, address, 64).unwrap();
        let into = inventory.buf_by_addr(&target, target.address() + 64 * number, 64).unwrap();
        workq.submit(dma.memcpy(source, into).user_data(number)).unwrap();
    }
    for number in 0..64 {
        let done = done(&mut workq);
        assert_eq!(done.user_data.0, number);
        assert_eq!(done.destination.to_vec().unwrap(), [number as u8; 64]);
    }
}

#[test]
fn properties_are_readable_after_start() {
    let mut map = DynamicMmap::new("told");
    map.set_access_flags(READ_WRITE).unwrap();
    assert_eq!(map.access_flags(), READ_WRITE);
    let inventory = Inventory::builder(3).name("descriptors").start().unwrap();
    assert_eq!((inventory.name(), inventory.num_elements()), ("descriptors", 3));
    let mut workq = WorkQ::new(5).unwrap();
    workq.set_event_driven(true).unwrap();
    assert_eq!((workq.depth(), workq.is_event_driven()), (5, true));
}
