//! Cached facts must be true: the key of a buffer, and the context of a slot.

use std::time::Duration;

use verbless_doca::dma::{Dma, MemcpyDone};
use verbless_doca::{
    AccessFlags, Buf, BufPool, Dev, DevInfo, ErrorKind, Event, Inventory, Memory, Mmap, Refused,
    WorkQ,
};

use crate::support::{dev, plain};

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));

fn done(workq: &mut WorkQ) -> MemcpyDone {
    match workq.retrieve_within(TIMEOUT).unwrap().expect("a minute is enough") {
        Event::Dma(done) => done,
        other => panic!("{other:?}"),
    }
}

fn on(dev: &Dev) -> (Dma, WorkQ) {
    let dma = Dma::builder(dev).start().unwrap();
    let mut workq = WorkQ::new(4).unwrap();
    workq.add(&dma).unwrap();
    (dma, workq)
}

/// Two buffers of 64 bytes, the first one full, that have been copied before.
fn copied(dma: &Dma, workq: &mut WorkQ, map: &Mmap, inventory: &Inventory) -> (Buf, Buf) {
    let from = inventory.buf_by_data(map, map.address(), 64).unwrap();
    let into = inventory.buf_by_addr(map, map.address() + 64, 64).unwrap();
    workq.submit(dma.memcpy(from, into)).unwrap();
    let MemcpyDone { source, mut destination, .. } = done(workq);
    assert_eq!(destination.data_len(), 64);
    destination.reset_data_len();
    (source, destination)
}

#[test]
fn held_buf_reference_blocks_copy() {
    let dev = dev();
    let ((dma, mut workq), (map, inventory)) = (on(&dev), plain(&dev, 4096, 8));
    let (source, destination) = copied(&dma, &mut workq, &map, &inventory);
    let held = source.add_ref().unwrap();
    let Refused { error, given } = workq.submit(dma.memcpy(source, destination)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidValue);
    drop(held);
    let (source, destination) = given.into_bufs();
    let held = destination.add_ref().unwrap();
    let Refused { error, given } = workq.submit(dma.memcpy(source, destination)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidValue);
    assert_eq!(workq.in_flight(), 0);
    drop(held);
    let (mut source, mut destination) = given.into_bufs();
    for _ in 0..2 {
        workq.submit(dma.memcpy(source, destination)).unwrap();
        (source, destination) = {
            let done = done(&mut workq);
            (done.source, done.destination)
        };
        assert_eq!(destination.data_len(), 64);
        destination.reset_data_len();
    }
}

#[test]
fn copied_bufs_copy_whole_as_chains() {
    let dev = dev();
    let ((dma, mut workq), (map, inventory)) = (on(&dev), plain(&dev, 4096, 8));
    let bytes: Vec<u8> = (0..96).collect();
    let (mut source, mut destination) = copied(&dma, &mut workq, &map, &inventory);
    map.write_at(0, &bytes[..64]).unwrap();
    map.write_at(1024, &bytes[64..]).unwrap();
    source.link(inventory.buf_by_data(&map, map.address() + 1024, 32).unwrap()).unwrap();
    destination.link(inventory.buf_by_addr(&map, map.address() + 2048, 64).unwrap()).unwrap();
    workq.submit(dma.memcpy(source, destination)).unwrap();
    let MemcpyDone { mut source, mut destination, .. } = done(&mut workq);
    let rooms: Vec<_> = destination.datarooms().map(|room| room.1).collect();
    assert_eq!(rooms, [64, 32]);
    let mut got = [0; 96];
    map.read_at(64, &mut got[..64]).unwrap();
    map.read_at(2048, &mut got[64..]).unwrap();
    assert_eq!(got[..], bytes[..]);
    // Unlinked, they are as before.
    drop((source.unlink(), destination.unlink()));
    destination.reset_data_len();
    workq.submit(dma.memcpy(source, destination)).unwrap();
    assert_eq!(done(&mut workq).destination.data_len(), 64);
}

#[test]
fn empty_and_oversized_copies_are_detected_on_reuse() {
    let dev = dev();
    let ((dma, mut workq), (map, inventory)) = (on(&dev), plain(&dev, 4096, 8));
    let (mut source, destination) = copied(&dma, &mut workq, &map, &inventory);
    source.reset_data_len();
    workq.submit(dma.memcpy(source, destination).user_data(3)).unwrap();
    let MemcpyDone { mut source, mut destination, user_data, .. } = done(&mut workq);
    assert_eq!((user_data.0, destination.data_len()), (3, 0));
    source.set_data(map.address(), 64).unwrap();
    destination.set_data(map.address() + 64, 1).unwrap();
    let Refused { error, given } = workq.submit(dma.memcpy(source, destination)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidValue);
    let (source, destination) = given.into_bufs();
    assert_eq!((source.data_len(), destination.data_len()), (64, 1));
}

#[test]
fn shared_pool_bufs_use_mkey_of_each_device() {
    let list = DevInfo::list_of(&crate::support::backend("bluefield3")).unwrap();
    let devs = [list[0].open().unwrap(), list[1].open().unwrap()];
    let memory = Memory::allocate(4096).unwrap();
    let map = Mmap::builder().memrange(memory).permissions(AccessFlags::LOCAL_READ_WRITE);
    let both = map.add_dev(&devs[0]).add_dev(&devs[1]).start().unwrap();
    let pool = BufPool::builder(&both, 4, 64).start().unwrap();
    let mut lab = devs.each_ref().map(on);
    let (mut from, mut into) = (pool.alloc().unwrap(), pool.alloc().unwrap());
    from.append(&[7; 64]).unwrap();
    // Each device in turn reaches the same buffers under its own key.
    for round in 0..6 {
        let (dma, workq) = &mut lab[round % 2];
        both.write_at(into.head() as usize - both.address() as usize, &[0; 64]).unwrap();
        workq.submit(dma.memcpy(from, into)).unwrap();
        let done = done(workq);
        assert_eq!(done.destination.to_vec().unwrap(), [7; 64], "round {round}");
        (from, into) = (done.source, done.destination);
        into.reset_data_len();
    }
    // The second device refuses a map that only the first device has, whatever it copied before.
    let (map, inventory) = plain(&devs[0], 4096, 4);
    let (source, destination) = copied(&lab[0].0, &mut lab[0].1, &map, &inventory);
    let (dma, workq) = &mut lab[1];
    let Refused { error, given } = workq.submit(dma.memcpy(source, destination)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotPermitted);
    drop(given);
    assert_eq!(inventory.num_free_elements(), 4);
}

#[test]
fn workq_serves_150_contexts() {
    let dev = dev();
    let (map, inventory) = plain(&dev, 4096, 8);
    let mut workq = WorkQ::new(4).unwrap();
    let dmas: Vec<_> = (0..150).map(|_| Dma::builder(&dev).start().unwrap()).collect();
    dmas.iter().for_each(|dma| workq.add(dma).unwrap());
    assert_eq!(workq.add(&dmas[149]).unwrap_err().kind(), ErrorKind::AlreadyExist);
    let mut buffers = copied(&dmas[0], &mut workq, &map, &inventory);
    for round in 0..2 {
        for (n, dma) in dmas.iter().enumerate() {
            let job = dma.memcpy(buffers.0, buffers.1).user_data(n as u64);
            let there = round == 0 || n % 3 != 0;
            buffers = match workq.submit(job) {
                Ok(()) => {
                    let done = done(&mut workq);
                    assert!(there && done.user_data.0 == n as u64, "{n}");
                    (done.source, done.destination)
                }
                Err(Refused { error, given }) => {
                    assert!(!there, "{n}: {error}");
                    assert_eq!(error.kind(), ErrorKind::BadState);
                    given.into_bufs()
                }
            };
            buffers.1.reset_data_len();
            assert_eq!(workq.in_flight(), 0);
        }
        if round == 0 {
            dmas.iter().step_by(3).for_each(|dma| workq.remove(dma).unwrap());
        }
    }
    // Their slots are free again.
    dmas.iter().step_by(3).for_each(|dma| workq.add(dma).unwrap());
    workq.submit(dmas[147].memcpy(buffers.0, buffers.1)).unwrap();
    done(&mut workq);
    dmas.iter().for_each(|dma| workq.remove(dma).unwrap());
    workq.destroy().unwrap();
}
