//! Memory maps, and their exports to peers.

use verbless_doca::{AccessFlags, DynamicMmap, ErrorKind, Inventory, Memory, Mmap};

use super::rig::{map, open, refusal};
use crate::case::cases;
use crate::{Lab, Need, Stop, ensure, ensure_eq, pattern};

cases!(
    "doca_mmap",
    "Memory maps of DOCA, and their exports to peers.":
    restarted_mmap_keeps_its_bytes,
    mmap_spans_several_devices[Need::Peer],
    rdma_export_is_stable_and_carries_range,
    dynamic_mmap_takes_chunks_until_export,
);

fn restarted_mmap_keeps_its_bytes(lab: &Lab) -> Result<(), Stop> {
    let dev = open(lab, lab.info())?;
    let first = map(&dev, 4096, AccessFlags::LOCAL_READ_WRITE)?;
    first.write_at(0, &pattern(2, 4096))?;
    let again = first.stop().map_err(|refused| refused.error)?.start()?;
    let mut bytes = vec![0; 4096];
    again.read_at(0, &mut bytes)?;
    ensure!(bytes == pattern(2, 4096), "other bytes");
    again.destroy().map_err(|refused| refused.error.into())
}

fn mmap_spans_several_devices(lab: &Lab) -> Result<(), Stop> {
    let (one, other) = (open(lab, lab.info())?, open(lab, lab.other_info())?);
    let access = AccessFlags::LOCAL_READ_WRITE | AccessFlags::RDMA_READ;
    let memory = Memory::allocate(8192)?;
    let both = Mmap::builder().memrange(memory).permissions(access).add_dev(&one).add_dev(&other);
    let both = both.start()?;
    let exports = [both.export_rdma(&one)?, both.export_rdma(&other)?];
    ensure!(exports[0] != exports[1], "two devices have one key");
    Ok(())
}

fn exported(lab: &Lab) -> Result<(Mmap, Vec<u8>), Stop> {
    let dev = open(lab, lab.info())?;
    let access = AccessFlags::LOCAL_READ_WRITE | AccessFlags::RDMA_READ | AccessFlags::RDMA_WRITE;
    let map = map(&dev, 12_345, access)?;
    let descriptor = map.export_rdma(&dev)?.as_bytes().to_vec();
    let again = map.export_rdma(&dev)?;
    ensure_eq!(again.as_bytes(), descriptor, "a second export");
    Ok((map, descriptor))
}

fn rdma_export_is_stable_and_carries_range(lab: &Lab) -> Result<(), Stop> {
    let (map, descriptor) = exported(lab)?;
    let peer = open(lab, lab.other_info())?;
    let imported = Mmap::create_from_export(&descriptor, &peer)?;
    ensure_eq!(
        (imported.address(), imported.len(), imported.is_from_export()),
        (map.address(), 12_345, true),
        "address, length, and whether it is imported"
    );
    ensure_eq!(
        refusal(imported.export_rdma(&peer))?,
        ErrorKind::NotPermitted,
        "an export of an import"
    );
    Ok(())
}

fn dynamic_mmap_takes_chunks_until_export(lab: &Lab) -> Result<(), Stop> {
    let dev = open(lab, lab.info())?;
    let mut map = DynamicMmap::new("chunks");
    map.set_access_flags(AccessFlags::LOCAL_READ_WRITE | AccessFlags::RDMA_READ)?;
    map.start()?;
    map.dev_add(&dev)?;
    let memory = Memory::allocate(8192)?;
    let address = memory.address();
    map.populate(memory, 4096, None)?;
    ensure_eq!(refusal(map.set_max_chunks(4))?, ErrorKind::BadState, "after the first start");
    let inventory = Inventory::builder(1).start()?;
    let mut buffer = inventory.buf_by_addr(&map, address, 8192)?;
    buffer.append(b"a chunk")?;
    ensure_eq!(buffer.to_vec()?, b"a chunk", "bytes");
    drop(buffer);
    let descriptor = map.export_rdma(&dev)?;
    ensure_eq!(refusal(map.dev_rm(&dev))?, ErrorKind::NotPermitted, "a device of an exported map");
    let peer = open(lab, lab.other_info())?;
    let imported = Mmap::create_from_export(descriptor.as_bytes(), &peer)?;
    ensure_eq!((imported.address(), imported.len()), (address, 8192), "address and length");
    Ok(())
}
