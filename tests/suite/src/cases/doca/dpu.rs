//! Memory of a host at its DPU.

use verbless_doca::dma::Dma;
use verbless_doca::{AccessFlags, Dev, ErrorKind, Mmap};

use super::rig::{Rig, copied, failed_job, map, open, submit};
use crate::case::cases;
use crate::need::{LARGE_COPIES, SHARES_KEYS, cap};
use crate::{Lab, Need, Stop, ensure, ensure_eq, pattern};

cases!(
    "doca_dpu",
    "Memory of a host that its DPU copies, by exported maps.",
    needs [Need::Sides, SHARES_KEYS, cap!(dma_mmo_qp)]:
    dpu_copies_from_and_to_host_memory [LARGE_COPIES],
    imported_mmap_fails_after_export_is_destroyed,
);

const LENGTH: usize = 300_000;

/// The host's device, and a rig on the DPU's device.
fn sides(lab: &Lab) -> Result<(Dev, Rig, Dma), Stop> {
    let host = open(lab, lab.info())?;
    let mut rig = Rig::new(lab)?;
    rig.dev = open(lab, lab.other_info())?;
    rig.map = map(&rig.dev, super::rig::BYTES, AccessFlags::LOCAL_READ_WRITE)?;
    let dma = rig.dma()?;
    Ok((host, rig, dma))
}

/// The host's map, and the DPU's import of it.
fn shared(host: &Dev, dpu: &Dev, access: AccessFlags) -> Result<(Mmap, Mmap), Stop> {
    let far = map(host, LENGTH, access)?;
    let descriptor = far.export_dpu(host)?;
    let imported = Mmap::create_from_export(descriptor.as_bytes(), dpu)?;
    ensure_eq!(
        (imported.address(), imported.len()),
        (far.address(), far.len()),
        "the range of the imported map"
    );
    Ok((far, imported))
}

fn dpu_copies_from_and_to_host_memory(lab: &Lab) -> Result<(), Stop> {
    let (host, mut rig, dma) = sides(lab)?;
    let (far, imported) = shared(&host, &rig.dev, AccessFlags::DPU_READ_WRITE)?;
    far.write_at(0, &pattern(1, LENGTH))?;
    let from = rig.inventory.buf_by_data(&imported, imported.address(), LENGTH as u64)?;
    let job = dma.memcpy(from, rig.room(0, LENGTH)?);
    submit(&mut rig.workq, job)?;
    copied(&mut rig.workq)?;
    ensure!(rig.bytes(0, LENGTH)? == pattern(1, LENGTH), "the DPU's memory has other bytes");
    rig.fill(0, &pattern(2, LENGTH))?;
    let into = rig.inventory.buf_by_addr(&imported, imported.address(), LENGTH as u64)?;
    let job = dma.memcpy(rig.data(0, LENGTH)?, into);
    submit(&mut rig.workq, job)?;
    copied(&mut rig.workq)?;
    let mut bytes = vec![0; LENGTH];
    far.read_at(0, &mut bytes)?;
    ensure!(bytes == pattern(2, LENGTH), "the host's memory has other bytes");
    Ok(())
}

fn imported_mmap_fails_after_export_is_destroyed(lab: &Lab) -> Result<(), Stop> {
    let (host, mut rig, dma) = sides(lab)?;
    let (far, imported) = shared(&host, &rig.dev, AccessFlags::DPU_READ_WRITE)?;
    far.destroy().map_err(|refused| refused.error)?;
    let from = rig.inventory.buf_by_data(&imported, imported.address(), 64)?;
    let job = dma.memcpy(from, rig.room(0, 64)?);
    submit(&mut rig.workq, job)?;
    ensure_eq!(failed_job(&mut rig.workq)?, ErrorKind::NotPermitted, "kind of the failure");
    Ok(())
}
