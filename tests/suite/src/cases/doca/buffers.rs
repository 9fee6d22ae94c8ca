//! Buffers: inventories, pools, arrays, and the getters of a buffer.

use verbless_doca::{
    AccessFlags, BufArray, BufPool, BufRef, DynamicMmap, ErrorKind, Inventory, Memory, UserData,
};
use verbless_queue::wr::Write;
use verbless_queue::{ConnectOptions, CqConfig, Domain, QpConfig, Sge};

use super::rig::{Rig, copied, map, open, refusal, refused_job, submit};
use crate::case::cases;
use crate::endpoint::until;
use crate::need::cap;
use crate::{Lab, Stop, ensure, ensure_eq, pattern};

cases!(
    "doca_buf",
    "Buffers of DOCA on registered memory: inventories, pools and arrays.":
    buf_tracks_head_data_and_tail_room,
    duplicated_buf_shares_bytes,
    buf_with_second_reference_is_rejected_in_job [cap!(dma_mmo_qp)],
    pool_bufs_do_not_overlap,
    buf_array_yields_bufs_by_index,
    inventory_and_mmap_keep_set_properties,
    memrange_is_freed_after_mmap_and_last_buf,
    qp_accepts_mkey_of_buf,
);

fn buf_tracks_head_data_and_tail_room(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let at = rig.map.address();
    let mut buffer = rig.inventory.buf_by_args(&rig.map, at, 1000, at + 100, 200)?;
    ensure_eq!(
        (buffer.head(), buffer.len(), buffer.data(), buffer.data_len(), buffer.tail_len()),
        (at, 1000, at + 100, 200, 700),
        "rooms"
    );
    buffer.set_data(at + 500, 500)?;
    ensure_eq!(buffer.tail_len(), 0, "tailroom");
    ensure_eq!(refusal(buffer.append(&[1]))?, ErrorKind::InvalidValue, "no tailroom");
    let kind = refusal(buffer.set_data(at + 500, 501))?;
    ensure_eq!(kind, ErrorKind::InvalidValue, "a dataroom that leaves the buffer");
    buffer.reset_data_len();
    ensure_eq!((buffer.data(), buffer.data_len()), (at + 500, 0), "dataroom");
    ensure_eq!(rig.map.buffers(), 1, "buffers of the map");
    drop(buffer);
    ensure_eq!(rig.map.buffers(), 0, "buffers of the map");
    Ok(())
}

fn duplicated_buf_shares_bytes(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    rig.fill(0, &pattern(1, 300))?;
    let mut first = rig.data(0, 100)?;
    first.link(rig.data(100, 200)?).map_err(|refused| refused.error)?;
    let second = rig.inventory.buf_dup(&first)?;
    ensure_eq!((second.chain_len(), second.chain_data_len()), (2, 300), "the chain");
    let tail = first.unlink().ok_or_else(|| Stop::fail("the chain has no second buffer"))?;
    drop((first, tail));
    rig.fill(0, &pattern(2, 300))?;
    ensure!(second.to_vec()? == pattern(2, 100), "other bytes");
    Ok(())
}

fn buf_with_second_reference_is_rejected_in_job(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::new(lab)?;
    let dma = rig.dma()?;
    let source = rig.data(0, 64)?;
    let reference: BufRef = source.add_ref()?;
    ensure_eq!((source.refcount(), reference.refcount()), (2, 2), "references");
    let job = dma.memcpy(source, rig.room(4096, 64)?);
    let (kind, job) = refused_job(rig.workq.submit(job))?;
    ensure_eq!(kind, ErrorKind::InvalidValue, "kind of the refusal");
    drop(reference);
    submit(&mut rig.workq, job.user_data(UserData(3)))?;
    ensure_eq!(copied(&mut rig.workq)?.user_data, UserData(3), "user data");
    Ok(())
}

fn pool_bufs_do_not_overlap(lab: &Lab) -> Result<(), Stop> {
    let dev = open(lab, lab.info())?;
    let map = map(&dev, 1 << 16, AccessFlags::LOCAL_READ_WRITE)?;
    let pool = BufPool::builder(&map, 16, 1000).alignment(64).start()?;
    let mut buffers = (0..16).map(|_| pool.alloc()).collect::<Result<Vec<_>, _>>()?;
    ensure_eq!(refusal(pool.alloc())?, ErrorKind::Empty, "one more");
    buffers.sort_unstable_by_key(|buffer| buffer.head());
    for two in buffers.windows(2) {
        ensure!(two[0].head() + 1000 <= two[1].head(), "{two:?} overlap");
    }
    ensure!(buffers.iter().all(|buffer| buffer.head() % 64 == 0), "not aligned");
    drop(buffers);
    ensure_eq!(pool.num_free_elements(), 16, "free buffers");
    Ok(())
}

fn buf_array_yields_bufs_by_index(lab: &Lab) -> Result<(), Stop> {
    let dev = open(lab, lab.info())?;
    let map = map(&dev, 4096, AccessFlags::LOCAL_READ_WRITE)?;
    let mut array = BufArray::builder(&map, 8, 512).start()?;
    for index in 0..8 {
        let buffer = array.get_mut(index).ok_or_else(|| Stop::fail("too few"))?;
        ensure_eq!(buffer.head(), map.address() + 512 * index as u64, "address");
        buffer.append(&[index as u8; 4])?;
    }
    let third = array.take(3).ok_or_else(|| Stop::fail("buffer 3 is missing"))?;
    ensure!(array.take(3).is_none(), "buffer 3 was taken twice");
    ensure_eq!(third.to_vec()?, [3; 4], "bytes");
    array.put(third)?;
    Ok(())
}

fn inventory_and_mmap_keep_set_properties(lab: &Lab) -> Result<(), Stop> {
    let inventory = Inventory::builder(5).name("five").start()?;
    ensure_eq!((inventory.name(), inventory.num_elements()), ("five", 5), "the inventory");
    let mut map = DynamicMmap::new("ranges");
    map.set_max_chunks(3)?;
    map.set_max_devices(2)?;
    map.set_access_flags(AccessFlags::LOCAL_READ_ONLY)?;
    map.start()?;
    let dev = open(lab, lab.info())?;
    map.dev_add(&dev)?;
    ensure_eq!(refusal(map.dev_add(&dev))?, ErrorKind::AlreadyExist, "the same device");
    for _ in 0..3 {
        map.populate(Memory::allocate(4096)?, 4096, None)?;
    }
    let kind = refusal(map.populate(Memory::allocate(4096)?, 4096, None))?;
    ensure_eq!(kind, ErrorKind::Full, "one range more");
    ensure_eq!((map.name(), map.max_chunks(), map.max_devices()), ("ranges", 3, 2), "the map");
    ensure_eq!(map.access_flags(), AccessFlags::LOCAL_READ_ONLY, "its access flags");
    ensure!(!map.is_exported() && map.buffers() == 0, "exported, or with buffers");
    Ok(())
}

fn memrange_is_freed_after_mmap_and_last_buf(lab: &Lab) -> Result<(), Stop> {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    let dev = open(lab, lab.info())?;
    let freed = Arc::new(AtomicUsize::new(0));
    let mut map = DynamicMmap::new("freed");
    map.start()?;
    map.dev_add(&dev)?;
    let memory = Memory::allocate(8192)?;
    let (address, count) = (memory.address(), freed.clone());
    let free = move |_address: u64, length: usize| {
        count.fetch_add(length, Ordering::Relaxed);
    };
    map.populate(memory, 4096, Some(Box::new(free)))?;
    let inventory = Inventory::builder(1).start()?;
    let buffer = inventory.buf_by_addr(&map, address, 64)?;
    drop(map);
    ensure_eq!(freed.load(Ordering::Relaxed), 0, "freed while a buffer points there");
    drop(buffer);
    ensure_eq!(freed.load(Ordering::Relaxed), 8192, "bytes freed");
    Ok(())
}

fn qp_accepts_mkey_of_buf(lab: &Lab) -> Result<(), Stop> {
    use verbless_command::KeyAccess;
    use verbless_doca::Dev;
    let dev = open(lab, lab.info())?;
    let domain = Domain::new(&lab.device()?)?;
    let bridged = Dev::open_from_pd(dev.info(), &domain)?;
    ensure!(bridged != dev, "it is the device that was open");
    let map = map(&bridged, 4096, AccessFlags::LOCAL_READ_WRITE)?;
    map.write_at(0, &pattern(7, 64))?;
    let inventory = Inventory::builder(1).start()?;
    let buffer = inventory.buf_by_data(&map, map.address(), 64)?;
    ensure_eq!(refusal(buffer.mkey(&dev))?, ErrorKind::NotPermitted, "of a device it is not on");
    let domain = bridged.domain();
    let region = domain.region(4096, KeyAccess::ALL)?;
    let mut cq = domain.completion_queue(&CqConfig::new(16))?;
    let mut qp = domain.queue_pair(&QpConfig::new(4, 4), &cq, &cq)?;
    domain.connect_loopback(&mut qp, &ConnectOptions::default())?;
    let local = Sge::new(buffer.data(), 64, buffer.mkey(&bridged)?);
    qp.post(&Write::new(local, region.remote(0, 64)?).signaled(), 0)?;
    until("a completion", || qp.poll(&mut cq))??;
    let mut bytes = [0; 64];
    region.read_at(0, &mut bytes)?;
    ensure!(bytes[..] == pattern(7, 64), "other bytes");
    Ok(())
}
