//! Memory of a host at its DPU.

use verbless_doca::dma::Dma;
use verbless_doca::{AccessFlags, Dev, ErrorKind, Mmap};

use super::bench::{Bench, copied, failed_job, map, open, refusal, refused_job, submit};
use crate::case::cases;
use crate::need::{LARGE_COPIES, SHARES_KEYS, cap};
use crate::{Lab, Need, Stop, ensure, ensure_eq, pattern};

cases!(
    "doca_dpu",
    "Memory of a host that its DPU copies, by exported maps.",
    needs [Need::Sides, SHARES_KEYS, cap!(dma_mmo_qp)]:
    dpu_copies_from_and_to_host_memory [LARGE_COPIES],
    dpu_read_only_mmap_rejects_write,
    host_rejects_its_own_dpu_export,
    imported_mmap_fails_after_export_is_destroyed,
);

const LENGTH: usize = 300_000;

/// The host's device, and a bench on the DPU's device.
fn sides(lab: &Lab) -> Result<(Dev, Bench, Dma), Stop> {
    let host = open(lab, lab.info())?;
    let mut bench = Bench::new(lab)?;
    bench.dev = open(lab, lab.other_info())?;
    bench.map = map(&bench.dev, super::bench::BYTES, AccessFlags::LOCAL_READ_WRITE)?;
    let dma = bench.dma()?;
    Ok((host, bench, dma))
}

/// The host's map, and the DPU's import of it.
fn shared(host: &Dev, dpu: &Dev, access: AccessFlags) -> Result<(Mmap, Mmap), Stop> {
    let far = map(host, LENGTH, access)?;
    let descriptor = far.export_dpu(host)?;
    let imported = Mmap::create_from_export(descriptor.as_bytes(), dpu)?;
    ensure_eq!((imported.address(), imported.len()), (far.address(), far.len()), "its range");
    Ok((far, imported))
}

fn dpu_copies_from_and_to_host_memory(lab: &Lab) -> Result<(), Stop> {
    let (host, mut bench, dma) = sides(lab)?;
    let (far, imported) = shared(&host, &bench.dev, AccessFlags::DPU_READ_WRITE)?;
    far.write_at(0, &pattern(1, LENGTH))?;
    let from = bench.inventory.buf_by_data(&imported, imported.address(), LENGTH as u64)?;
    let job = dma.memcpy(from, bench.room(0, LENGTH)?);
    submit(&mut bench.workq, job)?;
    copied(&mut bench.workq)?;
    ensure!(bench.bytes(0, LENGTH)? == pattern(1, LENGTH), "other bytes came out");
    bench.fill(0, &pattern(2, LENGTH))?;
    let into = bench.inventory.buf_by_addr(&imported, imported.address(), LENGTH as u64)?;
    let job = dma.memcpy(bench.data(0, LENGTH)?, into);
    submit(&mut bench.workq, job)?;
    copied(&mut bench.workq)?;
    let mut bytes = vec![0; LENGTH];
    far.read_at(0, &mut bytes)?;
    ensure!(bytes == pattern(2, LENGTH), "other bytes came in");
    Ok(())
}

fn dpu_read_only_mmap_rejects_write(lab: &Lab) -> Result<(), Stop> {
    let (host, mut bench, dma) = sides(lab)?;
    let (_far, imported) = shared(&host, &bench.dev, AccessFlags::DPU_READ_ONLY)?;
    let into = bench.inventory.buf_by_addr(&imported, imported.address(), 64)?;
    let job = dma.memcpy(bench.data(0, 64)?, into);
    let (kind, _job) = refused_job(bench.workq.submit(job))?;
    ensure_eq!(kind, ErrorKind::NotPermitted, "kind of the refusal");
    Ok(())
}

fn host_rejects_its_own_dpu_export(lab: &Lab) -> Result<(), Stop> {
    let (host, _bench, _dma) = sides(lab)?;
    let far = map(&host, 4096, AccessFlags::DPU_READ_ONLY)?;
    let descriptor = far.export_dpu(&host)?;
    ensure_eq!(
        refusal(Mmap::create_from_export(descriptor.as_bytes(), &host))?,
        ErrorKind::NotSupported,
        "kind of the refusal"
    );
    Ok(())
}

fn imported_mmap_fails_after_export_is_destroyed(lab: &Lab) -> Result<(), Stop> {
    let (host, mut bench, dma) = sides(lab)?;
    let (far, imported) = shared(&host, &bench.dev, AccessFlags::DPU_READ_WRITE)?;
    far.destroy().map_err(|refused| refused.error)?;
    let from = bench.inventory.buf_by_data(&imported, imported.address(), 64)?;
    let job = dma.memcpy(from, bench.room(0, 64)?);
    submit(&mut bench.workq, job)?;
    ensure_eq!(failed_job(&mut bench.workq)?, ErrorKind::NotPermitted, "kind of the failure");
    Ok(())
}
