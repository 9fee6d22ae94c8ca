//! Ranges of memory maps: adding and removing them, and the state after a failed call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use verbless_devx::Backend;
use verbless_doca::dma::Dma;
use verbless_doca::{
    AccessFlags, Dev, DevInfo, DynamicMmap, ErrorKind, Event, Extensions, Inventory, Memory, WorkQ,
};
use verbless_model::{Ioctl, Model, Profile};
use verbless_model_kernel::InProcess;
use verbless_prm::{CommandStatus, Opcode};

use crate::support::{dev, plain};

/// Two devices of a model for fault injection.
fn two() -> (Model, [Dev; 2]) {
    let card = Profile::load("bluefield3").unwrap();
    let model = Model::builder().device(card.clone()).device(card).build();
    let backend: Arc<dyn Backend> = Arc::new(InProcess::of(&model));
    let list = DevInfo::list_of(&backend).unwrap();
    let devs = [0, 1].map(|at: usize| list[at].open().unwrap());
    (model, devs)
}

/// A started map with these limits of ranges and devices.
fn started(chunks: u32, devices: u32) -> DynamicMmap {
    let mut map = DynamicMmap::new("ranges");
    map.set_max_chunks(chunks).unwrap();
    map.set_max_devices(devices).unwrap();
    map.set_access_flags(AccessFlags::LOCAL_READ_WRITE).unwrap();
    map.start().unwrap();
    map
}

#[test]
fn failed_dev_add_registers_no_range() {
    let (model, [a, b]) = two();
    let mut map = started(2, 2);
    let memory = || Memory::allocate(4096).unwrap();
    let first = memory();
    map.populate(first.clone(), 4096, None).unwrap();
    map.populate(memory(), 4096, None).unwrap();
    map.dev_add(&a).unwrap();
    let inventory = Inventory::builder(1).start().unwrap();
    // A buffer is out, so that only the map could remove a key of its range.
    let buffer = inventory.buf_by_addr(&map, first.address(), 64).unwrap();
    let before = model.counts(1);
    let register = Ioctl::named("DEVX_UMEM_REG").unwrap();
    model.fail_ioctl(1, register, 2, 12);
    let refused = map.dev_add(&b).unwrap_err();
    assert_ne!(refused.kind(), ErrorKind::Full, "{refused}");
    assert_eq!(model.counts(1), before, "what the first range got is gone");
    assert_eq!(map.devices(), std::slice::from_ref(&a));
    assert_eq!(buffer.mkey(&b).unwrap_err().kind(), ErrorKind::NotPermitted);
    map.dev_add(&b).unwrap();
    buffer.mkey(&b).unwrap();
    drop(buffer);
    map.dev_rm(&a).unwrap();
    assert_eq!(map.devices(), [b]);
}

#[test]
fn failed_populate_returns_memory_and_callback() {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let (model, [a, b]) = two();
    let mut map = started(1, 2);
    map.dev_add(&a).unwrap();
    map.dev_add(&b).unwrap();
    let before = [model.counts(0), model.counts(1)];
    model.fail_ioctl(1, Ioctl::named("DEVX_UMEM_REG").unwrap(), 1, 12);
    let memory = Memory::allocate(4096).unwrap();
    let free = Box::new(|_, _| {
        CALLS.fetch_add(1, Ordering::Relaxed);
    });
    let refused = map.populate(memory, 4096, Some(free)).unwrap_err();
    assert_eq!([model.counts(0), model.counts(1)], before);
    assert_eq!(map.ranges().len(), 0);
    assert_eq!(CALLS.load(Ordering::Relaxed), 0, "{refused}");
    let given = refused.given;
    let range = (given.memory.address(), 4096);
    map.populate(given.memory, 4096, given.free).unwrap();
    assert_eq!(map.ranges().collect::<Vec<_>>(), [range]);
    map.destroy().unwrap();
    assert_eq!(CALLS.load(Ordering::Relaxed), 1);
}

#[test]
fn range_kept_by_device_skips_free_callback() {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let (model, [a, b]) = two();
    let mut map = started(2, 2);
    map.dev_add(&a).unwrap();
    map.dev_add(&b).unwrap();
    for _ in 0..2 {
        let free = Box::new(|_, _| {
            CALLS.fetch_add(1, Ordering::Relaxed);
        });
        map.populate(Memory::allocate(4096).unwrap(), 4096, Some(free)).unwrap();
    }
    model.fail_command(1, Opcode::DESTROY_MKEY, 1, CommandStatus::BAD_RES_STATE, 1);
    map.destroy().unwrap();
    assert_eq!(CALLS.load(Ordering::Relaxed), 1, "one of the two may still be written to");
}

#[test]
fn misaligned_or_overlapping_range_is_rejected() {
    let mut map = started(3, 1);
    let whole = Memory::allocate(4096).unwrap();
    let part = |offset, length| whole.slice(offset, length).unwrap();
    let kind = |result: Result<(), verbless_doca::Refused<_>>| result.unwrap_err().error.kind();
    assert_eq!(kind(map.populate(part(8, 64), 4096, None)), ErrorKind::InvalidValue);
    assert_eq!(kind(map.populate(part(8, 64), 3, None)), ErrorKind::InvalidValue);
    assert_eq!(kind(map.populate(part(1000, 0), 1, None)), ErrorKind::InvalidValue);
    map.populate(part(1000, 1000), 8, None).unwrap();
    for (offset, length) in [(1000, 1000), (0, 1001), (1999, 1), (1500, 8), (0, 4096)] {
        let refused = map.populate(part(offset, length), 1, None);
        assert_eq!(kind(refused), ErrorKind::AlreadyExist, "{length} from {offset} on");
    }
    map.populate(part(2000, 8), 1, None).unwrap();
    map.populate(part(0, 1000), 1, None).unwrap();
    let base = whole.address();
    let ranges: Vec<_> = map.ranges().collect();
    assert_eq!(ranges, [(base, 1000), (base + 1000, 1000), (base + 2000, 8)]);
}

#[test]
fn unlimited_mmap_allocates_on_demand() {
    let mut map = started(u32::MAX, u32::MAX);
    map.populate(Memory::allocate(64).unwrap(), 1, None).unwrap();
    map.dev_add(&dev()).unwrap();
    map.dev_add(&dev()).unwrap();
    assert_eq!((map.devices().len(), map.max_devices()), (2, u32::MAX));
}

#[test]
fn buf_lookup_finds_range_or_names_nearest() {
    const RANGES: usize = 1000;
    let mut map = started(RANGES as u32, 1);
    let whole = Memory::allocate(RANGES * 128).unwrap();
    // Out of order: 7 is coprime to their number.
    for at in (0..RANGES).map(|number| number * 7 % RANGES) {
        map.populate(whole.slice(at * 128, 64).unwrap(), 1, None).unwrap();
    }
    let inventory = Inventory::builder(1).start().unwrap();
    for at in 0..RANGES as u64 {
        let address = whole.address() + at * 128;
        assert_eq!(inventory.buf_by_addr(&map, address, 64).unwrap().head(), address);
        let between = inventory.buf_by_addr(&map, address + 63, 2).unwrap_err();
        assert_eq!(between.kind(), ErrorKind::InvalidValue);
        let text = between.to_string();
        assert!(text.contains(&format!("{address:#x}")), "{text}");
        assert!(text.len() < 300, "{text}");
    }
    let below = inventory.buf_by_addr(&map, 1, 1).unwrap_err().to_string();
    assert!(below.contains(&format!("{:#x}", whole.address())), "{below}");
}

#[test]
fn chain_is_reusable_after_reset() {
    let dev = dev();
    let (map, _) = plain(&dev, 4096, 1);
    let inventory = Inventory::builder(3).extensions(Extensions::LINKED_LIST).start().unwrap();
    let dma = Dma::builder(&dev).start().unwrap();
    let mut workq = WorkQ::new(4).unwrap();
    workq.add(&dma).unwrap();
    let base = map.address();
    let mut source = inventory.buf_by_addr(&map, base, 64).unwrap();
    let mut destination = inventory.buf_by_addr(&map, base + 1024, 10).unwrap();
    destination.link(inventory.buf_by_addr(&map, base + 2048, 60).unwrap()).unwrap();
    for round in 0..3_u8 {
        source.reset_data_len();
        source.append(&[round; 20]).unwrap();
        workq.submit(dma.memcpy(source, destination)).unwrap();
        let Ok(Some(Event::Dma(done))) = workq.retrieve_within(None) else { panic!("no copy") };
        (source, destination) = (done.source, done.destination);
        assert_eq!(destination.chain_to_vec().unwrap(), [round; 20]);
        assert_eq!(destination.datarooms().map(|room| room.1).collect::<Vec<_>>(), [10, 10]);
        destination.reset_chain_data_len();
        assert_eq!(
            destination.datarooms().collect::<Vec<_>>(),
            [(base + 1024, 0), (base + 2048, 0)]
        );
    }
}

#[test]
fn buf_by_addr_copies_no_data() {
    // Section 6.2 creates both buffers by address and submits. Under 2.2, whose rule applies here,
    // a buffer by address has no data yet.
    let dev = dev();
    let (map, inventory) = plain(&dev, 4096, 2);
    map.write_at(0, &[7; 64]).unwrap();
    let dma = Dma::builder(&dev).start().unwrap();
    let mut workq = WorkQ::new(4).unwrap();
    workq.add(&dma).unwrap();
    let source = inventory.buf_by_addr(&map, map.address(), 64).unwrap();
    let destination = inventory.buf_by_addr(&map, map.address() + 64, 64).unwrap();
    workq.submit(dma.memcpy(source, destination)).unwrap();
    let Ok(Some(Event::Dma(done))) = workq.retrieve_within(None) else { panic!("no copy") };
    assert_eq!(done.destination.data_len(), 0);
    let mut bytes = [1; 64];
    map.read_at(64, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 64]);
    let (mut source, destination) = (done.source, done.destination);
    source.set_data(map.address(), 64).unwrap();
    workq.submit(dma.memcpy(source, destination)).unwrap();
    let Ok(Some(Event::Dma(done))) = workq.retrieve_within(None) else { panic!("no copy") };
    assert_eq!(done.destination.to_vec().unwrap(), [7; 64], "with the data set");
}

#[test]
fn removed_device_does_not_reopen() {
    let (model, [a, _b]) = two();
    let info = a.info().clone();
    assert_eq!(info.open().unwrap(), a);
    model.remove(0);
    // `a` still exists, but its device is dead.
    assert!(info.open().is_err());
}

#[test]
fn read_data_stays_within_data_room() {
    let (_model, [dev, _]) = two();
    let (map, inventory) = crate::support::plain(&dev, 4096, 1);
    let bytes: Vec<u8> = (0..100).collect();
    map.write_at(0, &bytes).unwrap();
    let buffer = inventory.buf_by_data(&map, map.address() + 10, 20).unwrap();
    for (offset, length, is_inside) in [
        (0, 20, true),
        (5, 15, true),
        (5, 10, true),
        (20, 0, true),
        (0, 21, false),
        (5, 16, false),
        (21, 0, false),
        (u64::MAX, 1, false),
    ] {
        let mut into = vec![0xa5; length];
        match buffer.read_data(offset, &mut into) {
            Ok(()) => {
                assert!(is_inside, "{offset}, {length}");
                let at = 10 + offset as usize;
                assert_eq!(into, bytes[at..at + length], "{offset}, {length}");
            }
            Err(error) => {
                assert!(!is_inside, "{offset}, {length}");
                assert_eq!(error.kind(), ErrorKind::InvalidValue);
            }
        }
    }
}
