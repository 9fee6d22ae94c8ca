//! Buffers: inventories, pools, arrays, and the getters of a buffer.

use verbless_doca::{AccessFlags, BufArray, BufPool, DynamicMmap, ErrorKind, Inventory, Memory};
use verbless_queue::wr::Write;
use verbless_queue::{ConnectOptions, CqConfig, Domain, QpConfig, Sge};

use super::rig::{Rig, map, open, refusal};
use crate::case::cases;
use crate::endpoint::until;
use crate::{Lab, Stop, ensure, ensure_eq, pattern};

cases!(
    "doca_buf",
    "Buffers of DOCA on registered memory: inventories, pools and arrays.":
    duplicated_buf_shares_bytes,
    pool_bufs_do_not_overlap,
    buf_array_yields_bufs_by_index,
    memrange_is_freed_after_mmap_and_last_buf,
    qp_accepts_mkey_of_buf,
);

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
    ensure_eq!(freed.load(Ordering::Relaxed), 0, "freed while a buffer refers to the memory");
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
    ensure!(bridged != dev, "the bridged device equals the open one");
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
