//! Devices, memory maps and buffers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use verbless_doca::dma::Dma;
use verbless_doca::{
    AccessFlags, BufArray, BufPool, Dev, DevInfo, DevType, DynamicMmap, ErrorKind, Extensions,
    Inventory, Memory, Mmap, PciFuncType, WorkQ,
};

use crate::support::rdma::TIMEOUT;
use crate::support::{backend, dev, map, plain};

const READ_WRITE: AccessFlags = AccessFlags::LOCAL_READ_WRITE;

#[test]
fn reopened_device_is_equal() {
    let backend = backend("bluefield3");
    let list = DevInfo::list_of(&backend).unwrap();
    let (first, second) = (list[0].open().unwrap(), list[1].open().unwrap());
    assert_ne!(first, second);
    assert_eq!(first, DevInfo::find_in(&backend, "mlx5_0").unwrap().open().unwrap());
    drop(list);
    assert_eq!(first.info().ib_device_name(), "mlx5_0");
    let stranger = crate::support::dev();
    assert_ne!(first, stranger, "the same name in another backend is another device");
}

#[test]
fn device_closes_with_last_handle() {
    let (model, backend) = crate::support::disturbable("bluefield3");
    let info = DevInfo::list_of(&backend).unwrap().remove(0);
    let closed = model.counts(0);
    let (first, second) = (info.open().unwrap(), info.open().unwrap());
    drop(first);
    let third = info.open().unwrap();
    assert_eq!(second, third);
    drop((second, third.clone()));
    let map = map(&third, 64, READ_WRITE);
    drop(third);
    assert_ne!(model.counts(0), closed, "the map has it open");
    drop(map);
    assert_eq!(model.counts(0), closed);
    assert!(info.open().is_ok());
}

#[test]
fn model_device_is_software_pf_without_pci_address() {
    let info = DevInfo::list_of(&backend("bluefield3")).unwrap().remove(1);
    assert_eq!(info.ib_device_name(), "mlx5_1");
    assert_eq!(info.function_type(), PciFuncType::Pf);
    assert_eq!(info.dev_type().unwrap(), DevType::Software);
    assert_eq!(info.pci_address().unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(info.ipv4().unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(
        DevInfo::find_in(&backend("bluefield3"), "mlx5_7").unwrap_err().kind(),
        ErrorKind::NotFound
    );
}

#[test]
fn mmap_needs_memory_and_device_and_checks_range() {
    let dev = dev();
    assert_eq!(Mmap::builder().add_dev(&dev).start().unwrap_err().kind(), ErrorKind::BadState);
    let memory = Memory::allocate(4096).unwrap();
    let bare = Mmap::builder().memrange(memory);
    assert_eq!(bare.clone().start().unwrap_err().kind(), ErrorKind::BadState);
    let map = bare.permissions(READ_WRITE).add_dev(&dev).add_dev(&dev).start().unwrap();
    map.write_at(4090, b"abcdef").unwrap();
    let mut bytes = [0; 6];
    map.read_at(4090, &mut bytes).unwrap();
    assert_eq!(&bytes, b"abcdef");
    assert_eq!(map.write_at(4091, b"abcdef").unwrap_err().kind(), ErrorKind::InvalidValue);
}

#[test]
fn mmap_shares_memory_across_devices() {
    let list = DevInfo::list_of(&backend("bluefield3")).unwrap();
    let (a, b) = (list[0].open().unwrap(), list[1].open().unwrap());
    let memory = Memory::allocate(4096).unwrap();
    let map = Mmap::builder().memrange(memory.clone()).permissions(READ_WRITE);
    let map = map.add_dev(&a).add_dev(&b).start().unwrap();
    let inventory = Inventory::builder(2).start().unwrap();
    // Each device reads the bytes of the one before it.
    memory.write_at(0, b"x").unwrap();
    for (at, dev) in [(0, &a), (1, &b), (2, &a)] {
        let dma = Dma::builder(dev).start().unwrap();
        let mut workq = WorkQ::new(1).unwrap();
        workq.add(&dma).unwrap();
        let from = inventory.buf_by_data(&map, map.address() + at, 1).unwrap();
        let into = inventory.buf_by_addr(&map, map.address() + at + 1, 1).unwrap();
        workq.submit(dma.memcpy(from, into)).unwrap();
        workq.retrieve_within(TIMEOUT).unwrap().expect("a minute is enough");
    }
    let mut bytes = [0; 4];
    map.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"xxxx");
}

#[test]
fn mmap_with_bufs_cannot_stop_but_restarts_later() {
    let dev = dev();
    let (map, inventory) = plain(&dev, 4096, 4);
    let buffer = inventory.buf_by_addr(&map, map.address(), 64).unwrap();
    assert_eq!(map.buffers(), 1);
    let refused = map.stop().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InUse);
    let map = refused.given.destroy().unwrap_err().given;
    drop(buffer);
    let address = map.address();
    let again = map.stop().unwrap().start().unwrap();
    assert_eq!((again.address(), again.len(), again.permissions()), (address, 4096, READ_WRITE));
    again.destroy().unwrap();
}

#[test]
fn export_needs_permission_and_device_of_mmap() {
    let list = DevInfo::list_of(&backend("bluefield3")).unwrap();
    let (dev, other) = (list[0].open().unwrap(), list[1].open().unwrap());
    let local = map(&dev, 64, READ_WRITE | AccessFlags::DPU_READ_WRITE);
    assert_eq!(local.export_rdma(&dev).unwrap_err().kind(), ErrorKind::NotPermitted);
    let shared = map(&dev, 64, READ_WRITE | AccessFlags::RDMA_WRITE);
    assert_eq!(shared.export_rdma(&other).unwrap_err().kind(), ErrorKind::NotPermitted);
    assert_eq!(shared.export_dpu(&dev).unwrap_err().kind(), ErrorKind::NotPermitted);
    let descriptor = shared.export_rdma(&dev).unwrap();
    assert_eq!(descriptor, shared.export_rdma(&dev).unwrap());

    let there = Mmap::create_from_export(descriptor.as_bytes(), &other).unwrap();
    assert!(there.is_from_export() && !shared.is_from_export());
    assert_eq!((there.address(), there.len()), (shared.address(), 64));
    assert_eq!(there.write_at(0, b"x").unwrap_err().kind(), ErrorKind::NotPermitted);
    assert_eq!(there.export_rdma(&other).unwrap_err().kind(), ErrorKind::NotPermitted);
    let refused = there.stop().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::NotPermitted);
    refused.given.destroy().unwrap();
}

#[test]
fn dynamic_mmap_adds_ranges_and_devices_while_started() {
    let list = DevInfo::list_of(&backend("bluefield3")).unwrap();
    let (a, b) = (list[0].open().unwrap(), list[1].open().unwrap());
    let memory = || Memory::allocate(4096).unwrap();
    let mut map = DynamicMmap::new("pool");
    assert_eq!((map.max_chunks(), map.max_devices(), map.name()), (1, 1, "pool"));
    assert_eq!(map.populate(memory(), 1, None).unwrap_err().error.kind(), ErrorKind::BadState);
    assert_eq!(map.dev_add(&a).unwrap_err().kind(), ErrorKind::BadState);
    map.set_max_chunks(2).unwrap();
    map.set_max_devices(2).unwrap();
    map.set_access_flags(READ_WRITE).unwrap();
    assert_eq!(map.set_max_chunks(0).unwrap_err().kind(), ErrorKind::InvalidValue);
    map.start().unwrap();
    assert_eq!(map.start().unwrap_err().kind(), ErrorKind::BadState);
    assert_eq!(map.set_max_chunks(3).unwrap_err().kind(), ErrorKind::BadState);

    map.dev_add(&a).unwrap();
    let first = memory();
    map.populate(first.clone(), 4096, None).unwrap();
    map.dev_add(&b).unwrap();
    assert_eq!(map.dev_add(&b).unwrap_err().kind(), ErrorKind::AlreadyExist);
    assert_eq!(map.dev_add(&dev()).unwrap_err().kind(), ErrorKind::Full);
    map.populate(memory(), 4096, None).unwrap();
    assert_eq!(map.populate(memory(), 4096, None).unwrap_err().error.kind(), ErrorKind::Full);

    let inventory = Inventory::builder(2).start().unwrap();
    let buffer = inventory.buf_by_addr(&map, first.address(), 4096).unwrap();
    assert_eq!(map.buffers(), 1);
    assert_eq!(map.dev_rm(&b).unwrap_err().kind(), ErrorKind::InUse);
    drop(buffer);
    map.dev_rm(&b).unwrap();
    assert_eq!(map.dev_rm(&b).unwrap_err().kind(), ErrorKind::NotFound);
    map.stop().unwrap();
    let stopped = inventory.buf_by_addr(&map, first.address(), 1).unwrap_err();
    assert_eq!(stopped.kind(), ErrorKind::BadState);
    assert_eq!(map.set_max_chunks(3).unwrap_err().kind(), ErrorKind::BadState, "for good");
    map.start().unwrap();
    map.dev_add(&b).unwrap();
    map.destroy().unwrap();
}

#[test]
fn free_callback_runs_once_after_mmap_and_bufs() {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let dev = dev();
    let mut map = DynamicMmap::new("freed");
    map.start().unwrap();
    map.dev_add(&dev).unwrap();
    let memory = Memory::allocate(4096).unwrap();
    let expected = memory.address();
    let free = Box::new(move |address, length| {
        assert_eq!((address, length), (expected, 4096));
        CALLS.fetch_add(1, Ordering::Relaxed);
    });
    map.populate(memory, 4096, Some(free)).unwrap();
    let inventory = Inventory::builder(1).start().unwrap();
    let buffer = inventory.buf_by_addr(&map, expected, 1).unwrap();
    let map = map.destroy().unwrap_err().given;
    drop(map);
    assert_eq!(CALLS.load(Ordering::Relaxed), 0, "a buffer still points there");
    drop(buffer);
    assert_eq!(CALLS.load(Ordering::Relaxed), 1);
}

#[test]
fn freed_buf_leaves_memory_intact() {
    let calls = Arc::new(AtomicU32::new(0));
    let mut map = DynamicMmap::new("kept");
    map.set_access_flags(READ_WRITE).unwrap();
    map.start().unwrap();
    map.dev_add(&dev()).unwrap();
    let memory = Memory::allocate(4096).unwrap();
    let (address, freed) = (memory.address(), calls.clone());
    let free = Box::new(move |_, _| _ = freed.fetch_add(1, Ordering::Relaxed));
    map.populate(memory, 4096, Some(free)).unwrap();
    let inventory = Inventory::builder(1).start().unwrap();
    let mut buffer = inventory.buf_by_addr(&map, address, 8).unwrap();
    buffer.append(b"the data").unwrap();
    drop(buffer);
    assert_eq!((map.buffers(), inventory.num_free_elements()), (0, 1));
    assert_eq!(calls.load(Ordering::Relaxed), 0, "the map has it");
    let again = inventory.buf_by_data(&map, address, 8).unwrap();
    assert_eq!(again.to_vec().unwrap(), b"the data");
    drop(again);
    map.destroy().unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[test]
fn exported_dynamic_mmap_rejects_changes() {
    let list = DevInfo::list_of(&backend("bluefield3")).unwrap();
    let (dev, other) = (list[0].open().unwrap(), list[1].open().unwrap());
    let mut map = DynamicMmap::new("exported");
    map.set_max_chunks(2).unwrap();
    map.set_max_devices(2).unwrap();
    map.set_access_flags(READ_WRITE | AccessFlags::RDMA_READ).unwrap();
    assert_eq!(map.export_rdma(&dev).unwrap_err().kind(), ErrorKind::BadState);
    map.start().unwrap();
    map.dev_add(&dev).unwrap();
    assert_eq!(map.export_rdma(&dev).unwrap_err().kind(), ErrorKind::InvalidValue, "no range");
    map.populate(Memory::allocate(64).unwrap(), 64, None).unwrap();
    assert!(!map.is_exported(), "nothing came of it");
    let descriptor = map.export_rdma(&dev).unwrap();
    let there = DynamicMmap::create_from_export("x", descriptor.as_bytes(), &other).unwrap();
    assert!(map.is_exported() && there.is_from_export() && there.is_started());
    assert!(!map.is_from_export() && !there.is_exported());
    assert_eq!(there.max_chunks(), 1, "the remote ranges");

    type Change = fn(&mut DynamicMmap, &[Dev; 2]) -> verbless_doca::Result<()>;
    let changes: [(&str, Change); 8] = [
        ("set_max_chunks", |map, _| map.set_max_chunks(9)),
        ("set_max_devices", |map, _| map.set_max_devices(9)),
        ("set_access_flags", |map, _| map.set_access_flags(READ_WRITE)),
        ("dev_add", |map, [_, new]| map.dev_add(new)),
        ("dev_rm", |map, [there, _]| map.dev_rm(there)),
        ("populate", |map, _| {
            map.populate(Memory::allocate(64).unwrap(), 64, None).map_err(Into::into)
        }),
        ("export_rdma", |map, [there, _]| map.export_rdma(there).map(drop)),
        ("export_dpu", |map, [there, _]| map.export_dpu(there).map(drop)),
    ];
    let mut fresh = DynamicMmap::new("fresh");
    for (which, map, devices) in [
        ("exported", &mut map, [dev.clone(), other.clone()]),
        ("imported", &mut { there }, [other.clone(), dev.clone()]),
    ] {
        // It can be stopped and restarted like others; its refusals stay the same.
        for state in ["started", "stopped", "started again"] {
            match state {
                "stopped" => map.stop().unwrap(),
                "started again" => map.start().unwrap(),
                _ => {}
            }
            let before = format!("{map:?} {:?}", map.ranges().collect::<Vec<_>>());
            for (what, change) in changes {
                let error = change(map, &devices).unwrap_err();
                let case = format!("{what}, {which}, {state}: {error}");
                assert_eq!(error.kind(), ErrorKind::NotPermitted, "{case}");
            }
            assert_eq!(before, format!("{map:?} {:?}", map.ranges().collect::<Vec<_>>()));
            let starts = map.is_started() == (state != "stopped");
            assert!(starts, "{which}, {state}");
        }
    }
    // A map that is neither refuses only the changes that its state forbids.
    for (what, change) in changes {
        let refused = change(&mut fresh, &[dev.clone(), other.clone()]).map_err(|it| it.kind());
        let expected = if what.starts_with("set_") { Ok(()) } else { Err(ErrorKind::BadState) };
        assert_eq!(refused, expected, "{what}");
    }
}

#[test]
fn buf_has_head_data_and_tail_room() {
    let dev = dev();
    let (map, inventory) = plain(&dev, 4096, 4);
    let base = map.address();
    let mut by_addr = inventory.buf_by_addr(&map, base, 100).unwrap();
    assert_eq!((by_addr.data(), by_addr.data_len(), by_addr.tail_len()), (base, 0, 100));
    let by_data = inventory.buf_by_data(&map, base, 100).unwrap();
    assert_eq!((by_data.data(), by_data.data_len(), by_data.tail_len()), (base, 100, 0));
    let by_args = inventory.buf_by_args(&map, base, 100, base + 10, 20).unwrap();
    assert_eq!((by_args.head(), by_args.len()), (base, 100));
    assert_eq!((by_args.data(), by_args.data_len(), by_args.tail_len()), (base + 10, 20, 70));

    by_addr.append(b"hello ").unwrap();
    by_addr.append(b"world").unwrap();
    assert_eq!(by_addr.to_vec().unwrap(), b"hello world");
    by_addr.reset_data_len();
    by_addr.append(b"HELLO").unwrap();
    assert_eq!(by_addr.to_vec().unwrap(), b"HELLO", "the same address");
    assert_eq!(by_addr.append(&[0; 96]).unwrap_err().kind(), ErrorKind::InvalidValue);
    assert_eq!(by_addr.data_len(), 5, "nothing was appended");
    for (address, length) in [(base - 1, 1), (base, 101), (base + 100, 1), (base + 1, u64::MAX)] {
        let error = by_addr.set_data(address, length).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidValue, "{address:#x} {length}");
    }
    by_addr.set_data(base + 100, 0).unwrap();
    assert_eq!(by_addr.tail_len(), 0);
}

#[test]
fn out_of_range_or_excess_bufs_are_rejected() {
    let dev = dev();
    let (map, mut inventory) = plain(&dev, 4096, 2);
    let base = map.address();
    for (address, length) in [(base - 1, 1), (base, 4097), (base + 4096, 1), (u64::MAX, 2)] {
        let error = inventory.buf_by_addr(&map, address, length).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidValue, "{address:#x} {length}");
    }
    let bad_data = inventory.buf_by_args(&map, base, 8, base + 4, 8).unwrap_err();
    assert_eq!(bad_data.kind(), ErrorKind::InvalidValue);
    assert_eq!(inventory.num_free_elements(), 2, "a refusal keeps none");
    let out = [(); 2].map(|()| inventory.buf_by_addr(&map, base, 1).unwrap());
    assert_eq!(inventory.buf_by_addr(&map, base, 1).unwrap_err().kind(), ErrorKind::Empty);
    let refused = inventory.destroy().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InUse);
    inventory = refused.given;
    drop(out);
    inventory.stop().unwrap();
    assert_eq!(inventory.buf_by_addr(&map, base, 1).unwrap_err().kind(), ErrorKind::BadState);
    assert_eq!(inventory.stop().unwrap_err().kind(), ErrorKind::BadState);
    inventory.start().unwrap();
    inventory.buf_by_addr(&map, base, 1).unwrap();
    inventory.destroy().unwrap();
    assert_eq!(Inventory::builder(0).start().unwrap_err().kind(), ErrorKind::InvalidValue);
}

#[test]
fn chains_link_count_dup_and_unlink() {
    let dev = dev();
    let (map, inventory) = plain(&dev, 4096, 8);
    let base = map.address();
    let part = |at| inventory.buf_by_data(&map, base + at, 10).unwrap();
    let mut chain = part(0);
    chain.link(part(100)).unwrap();
    let mut tail = part(200);
    tail.link(part(300)).unwrap();
    chain.link(tail).unwrap();
    assert_eq!((chain.chain_len(), chain.chain_data_len()), (4, 40));
    let rooms: Vec<_> = chain.datarooms().map(|(address, _)| address - base).collect();
    assert_eq!(rooms, [0, 100, 200, 300]);
    let copy = inventory.buf_dup(&chain).unwrap();
    assert_eq!(copy.chain_len(), 4);
    assert_eq!(inventory.num_free_elements(), 0);
    assert_eq!(inventory.buf_dup(&chain).unwrap_err().kind(), ErrorKind::Empty);
    drop(copy);
    assert_eq!((inventory.num_free_elements(), map.buffers()), (4, 4));
    let behind = chain.unlink().unwrap();
    assert_eq!((chain.chain_len(), behind.chain_len()), (1, 3));
    assert!(chain.unlink().is_none());
    drop(behind);
    assert_eq!(inventory.num_free_elements(), 7);
    // A duplicate with too few descriptors left returns the ones it took.
    let mut long = part(0);
    (0..4).for_each(|at| long.link(part(at)).unwrap());
    assert!(inventory.buf_dup(&long).is_err());
    assert_eq!(inventory.num_free_elements(), 2);

    let plain = Inventory::builder(2).extensions(Extensions::NONE).start().unwrap();
    let single = plain.buf_by_addr(&map, base, 1).unwrap();
    let refused = long.link(single).unwrap_err();
    assert_eq!((refused.error.kind(), refused.given.len()), (ErrorKind::InvalidValue, 1));
}

#[test]
fn buf_references_keep_element_and_mmap_in_use() {
    let dev = dev();
    let (map, inventory) = plain(&dev, 4096, 1);
    let buffer = inventory.buf_by_addr(&map, map.address(), 32).unwrap();
    assert_eq!(buffer.refcount(), 1);
    let (first, second) = (buffer.add_ref().unwrap(), buffer.add_ref().unwrap());
    assert_eq!((buffer.refcount(), first.refcount(), first.len()), (3, 3, 32));
    assert!(!buffer.is_empty() && !first.is_empty());
    drop(buffer);
    assert_eq!((second.refcount(), second.head()), (2, map.address()));
    drop(first);
    assert_eq!((inventory.num_free_elements(), map.buffers()), (0, 1));
    drop(second);
    assert_eq!((inventory.num_free_elements(), map.buffers()), (1, 0));
    let again = inventory.buf_by_addr(&map, map.address(), 8).unwrap();
    assert_eq!(again.refcount(), 1);
    drop(again);
    let none = inventory.buf_by_addr(&map, map.address(), 0).unwrap();
    assert!(none.is_empty() && none.add_ref().unwrap().is_empty());
}

#[test]
fn bufs_and_references_drop_on_any_thread() {
    let dev = dev();
    let (map, inventory) = plain(&dev, 4096, 64);
    for _ in 0..200 {
        let taken: Vec<_> = (0..32)
            .map(|at| {
                let buffer = inventory.buf_by_addr(&map, map.address() + at, 1).unwrap();
                (buffer.add_ref().unwrap(), buffer)
            })
            .collect();
        let (references, buffers): (Vec<_>, Vec<_>) = taken.into_iter().unzip();
        std::thread::scope(|scope| {
            scope.spawn(move || drop(references));
            scope.spawn(move || drop(buffers));
        });
        assert_eq!((inventory.num_free_elements(), map.buffers()), (64, 0));
    }
}

#[test]
fn pool_bufs_are_aligned_and_disjoint() {
    let dev = dev();
    let map = map(&dev, 4096, READ_WRITE);
    let pool = BufPool::builder(&map, 5, 100).alignment(256).start().unwrap();
    let out: Vec<_> = (0..5).map(|_| pool.alloc().unwrap()).collect();
    let mut heads: Vec<_> = out.iter().map(|buffer| buffer.head()).collect();
    heads.sort_unstable();
    assert!(heads.iter().all(|head| head % 256 == 0));
    assert!(heads.windows(2).all(|pair| pair[1] - pair[0] >= 100));
    assert_eq!(pool.alloc().unwrap_err().kind(), ErrorKind::Empty);
    assert_eq!(map.buffers(), 5);
    let pool = pool.destroy().unwrap_err().given;
    drop(out);
    assert_eq!((pool.num_free_elements(), map.buffers()), (5, 0));
    let mut again = pool.alloc().unwrap();
    again.append(b"x").unwrap();
    drop(again);
    assert!((0..5).all(|_| pool.alloc().unwrap().data_len() == 0));
    pool.destroy().unwrap();
    let too_many = |count, size, alignment| {
        let pool = BufPool::builder(&map, count, size).alignment(alignment).start();
        pool.unwrap_err().kind() == ErrorKind::InvalidValue
    };
    assert!(too_many(17, 100, 256) && too_many(0, 1, 1) && too_many(1, 0, 1));
    assert!(too_many(1, 1, 3) && too_many(2, u64::MAX, 1) && too_many(2, 1, 1 << 63));
}

#[test]
fn buf_array_indexes_its_elements() {
    let dev = dev();
    let map = map(&dev, 1000, READ_WRITE);
    let mut array = BufArray::builder(&map, 9, 100).start_offset(100).start().unwrap();
    assert_eq!(array.len(), 9);
    for index in 0..9 {
        let element = array.get_mut(index).unwrap();
        assert_eq!(element.head(), map.address() + 100 + 100 * index as u64);
    }
    let third = array.take(3).unwrap();
    assert!(array.take(3).is_none() && array.get_mut(3).is_none() && array.take(9).is_none());
    array.put(third).unwrap();
    let inventory = Inventory::builder(1).start().unwrap();
    let stranger = inventory.buf_by_addr(&map, map.address() + 100, 100).unwrap();
    let refused = array.put(stranger).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidValue);
    // It has the address and the length of an element that is out, and is still refused.
    let third = array.take(1).unwrap();
    let stranger = array.put(refused.given).unwrap_err().given;
    assert_eq!(stranger.head(), map.address() + 100);
    array.put(third).unwrap();
    let (one, other) = (array.take(1).unwrap(), array.take(2).unwrap());
    let refused = array.destroy().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InUse, "{}", refused.error);
    assert!(refused.error.to_string().contains("2 elements"), "{}", refused.error);
    let mut array = refused.given;
    array.put(one).unwrap();
    drop(other);
    array.destroy().unwrap();
    assert!(BufArray::builder(&map, 10, 100).start_offset(1).start().is_err());
    assert!(BufArray::builder(&map, 10, u64::MAX).start().is_err());
    let gpu = BufArray::builder(&map, 1, 1).start_for(verbless_doca::buffer::Target::Gpu);
    assert_eq!(gpu.unwrap_err().kind(), ErrorKind::NotSupported);
}

#[test]
fn two_element_inventory_makes_million_bufs() {
    // Descriptors have no numbers that could run out.
    let dev = dev();
    let (map, inventory) = plain(&dev, 4096, 2);
    for _ in 0..1_000_000 {
        drop(inventory.buf_by_addr(&map, map.address(), 8).unwrap());
    }
    assert_eq!(inventory.num_free_elements(), 2);
}

#[test]
fn handles_are_send_and_devices_are_sync() {
    fn send<T: Send>() {}
    fn sync<T: Send + Sync>() {}
    sync::<DevInfo>();
    sync::<verbless_doca::Dev>();
    sync::<verbless_doca::DevInfoRep>();
    sync::<verbless_doca::DevRep>();
    sync::<verbless_doca::rdma::Rdma>();
    sync::<verbless_doca::sha::Sha>();
    sync::<verbless_doca::dma::Dma>();
    sync::<verbless_doca::graph::Graph>();
    sync::<verbless_doca::async_event::AsyncEvents>();
    sync::<Mmap>();
    sync::<DynamicMmap>();
    sync::<verbless_doca::BufPool>();
    send::<verbless_doca::Buf>();
    sync::<Inventory>();
    send::<verbless_doca::WorkQ>();
    sync::<Arc<verbless_doca::BufRef>>();
}

#[test]
fn threads_share_mmaps_inventories_and_pools() {
    const EACH: u64 = 2000;
    let dev = dev();
    let (map, inventory) = plain(&dev, 4096, 8);
    let pool = verbless_doca::BufPool::builder(&map, 8, 64).start().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (map, inventory, pool) = (&map, &inventory, &pool);
            scope.spawn(move || {
                for round in 0..EACH {
                    let own = map.address() + 512 + 8 * thread;
                    let mut buffer = inventory.buf_by_addr(map, own, 8).unwrap();
                    buffer.append(&round.to_le_bytes()).unwrap();
                    assert_eq!(buffer.to_vec().unwrap(), round.to_le_bytes());
                    drop(pool.alloc().unwrap());
                }
            });
        }
    });
    assert_eq!((inventory.num_free_elements(), pool.num_free_elements()), (8, 8));
    pool.destroy().unwrap();
    inventory.destroy().unwrap();
    map.destroy().unwrap();
}

#[test]
fn memory_errors_are_doca_errors() {
    let kind = |error: verbless_doca::Error| error.kind();
    assert_eq!(Memory::allocate(0).map_err(kind).unwrap_err(), ErrorKind::InvalidValue);
    assert_eq!(Memory::allocate(1 << 60).map_err(kind).unwrap_err(), ErrorKind::NoMemory);
    let memory = Memory::allocate(64).unwrap();
    let refused = [
        memory.write_at(60, &[0; 5]).map_err(kind),
        memory.read_at(64, &mut [0]).map_err(kind),
        memory.slice(1, 64).map(drop).map_err(kind),
    ];
    assert_eq!(refused, [Err(ErrorKind::InvalidValue); 3]);
    memory.slice(32, 32).unwrap().write_at(0, &[7]).unwrap();
    assert_eq!(memory.bytes()[32].load(std::sync::atomic::Ordering::Relaxed), 7);
    let lower = verbless_queue::Memory::from(memory.clone());
    assert_eq!(Memory::from(lower).address(), memory.address());
}

#[test]
#[allow(unsafe_code, reason = "plain slices take a promise")]
fn buf_data_is_read_and_written_in_place() {
    use std::sync::atomic::Ordering::Relaxed;
    let dev = dev();
    let (map, inventory) = plain(&dev, 4096, 4);
    let mut buffer = inventory.buf_by_addr(&map, map.address() + 100, 64).unwrap();
    assert!(buffer.bytes().unwrap().is_empty(), "by address there is no data");
    buffer.append(b"abcdef").unwrap();
    buffer.set_data(map.address() + 102, 3).unwrap();
    let seen: Vec<_> = buffer.bytes().unwrap().iter().map(|byte| byte.load(Relaxed)).collect();
    assert_eq!(seen, b"cde", "the dataroom and nothing else");
    assert_eq!(buffer.bytes().unwrap().as_ptr() as u64, map.address() + 102, "no copy");
    // A write to the map shows in the buffer's bytes at once, and a store to these in the map.
    map.write_at(102, b"C").unwrap();
    assert_eq!(buffer.bytes().unwrap()[0].load(Relaxed), b'C');
    buffer.bytes().unwrap()[2].store(b'E', Relaxed);
    assert_eq!(buffer.to_vec().unwrap(), b"CdE");
    // SAFETY: nothing else reads or writes there.
    unsafe { buffer.slice_mut() }.unwrap()[1] = b'D';
    // SAFETY: as above.
    assert_eq!(unsafe { buffer.slice() }.unwrap(), b"CDE");
    let far = map_of_a_peer(&dev);
    let theirs = inventory.buf_by_data(&far, far.address(), 8).unwrap();
    assert_eq!(theirs.bytes().unwrap_err().kind(), ErrorKind::NotPermitted);
}

/// A map of a peer's memory.
fn map_of_a_peer(dev: &verbless_doca::Dev) -> Mmap {
    let own = map(dev, 4096, AccessFlags::LOCAL_READ_WRITE | AccessFlags::RDMA_READ);
    Mmap::create_from_export(own.export_rdma(dev).unwrap().as_bytes(), dev).unwrap()
}

#[test]
fn mmap_with_pool_or_array_is_in_use() {
    use verbless_doca::{BufArray, BufPool};
    let dev = dev();
    let map = map(&dev, 4096, AccessFlags::LOCAL_READ_WRITE);
    let pool = BufPool::builder(&map, 4, 64).start().unwrap();
    let refused = map.stop().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InUse);
    let refused = refused.given.destroy().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InUse);
    let map = refused.given;
    let buffer = pool.alloc().unwrap();
    drop(pool);
    let map = map.destroy().unwrap_err().given;
    drop(buffer);
    let array = BufArray::builder(&map, 4, 64).start().unwrap();
    let map = map.destroy().unwrap_err().given;
    drop(array);
    map.destroy().unwrap();
    let mut map = DynamicMmap::new("with a pool");
    map.start().unwrap();
    map.dev_add(&dev).unwrap();
    map.populate(Memory::allocate(4096).unwrap(), 1, None).unwrap();
    let pool = BufPool::builder(&map, 4, 64).start().unwrap();
    assert_eq!(map.dev_rm(&dev).unwrap_err().kind(), ErrorKind::InUse);
    let mut map = map.destroy().unwrap_err().given;
    drop(pool);
    map.dev_rm(&dev).unwrap();
    map.destroy().unwrap();
}
