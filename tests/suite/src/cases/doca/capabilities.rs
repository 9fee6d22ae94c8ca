//! The capabilities that a device reports, compared with its behaviour.

use verbless_doca::dma::Dma;
use verbless_doca::sha::Sha;
use verbless_doca::sync_event::{Location, SyncEvent};
use verbless_doca::{
    AccessFlags, Context, Dev, Error, ErrorKind, JobType, Mmap, Result as DocaResult, WorkQ,
};

use super::rig::{Rig, copied, event, map, open, refusal, submit};
use crate::case::cases;
use crate::{Lab, Stop, ensure, ensure_eq};

cases!(
    "doca_cap",
    "Capabilities in DOCA: a missing one is refused with NotSupported.":
    dma_support_matches_capability,
    event_driven_workq_matches_capability,
    mmap_dpu_export_and_import_match_capability,
    sync_event_dpu_export_matches_capability,
    sync_event_jobs_match_capability,
    pci_address_finds_its_device_again,
);

/// Whether the device said yes; a no must be NotSupported.
fn is_supported<T>(answer: DocaResult<T>) -> Result<bool, Stop> {
    match answer {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotSupported => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Fails unless an answer agrees with the reported capability.
fn ensure_matches_capability<T, E: Into<Error>>(
    what: &str,
    can: bool,
    does: Result<T, E>,
) -> Result<(), Stop> {
    ensure_eq!(is_supported(does.map_err(Into::into))?, can, what);
    Ok(())
}

fn devices(lab: &Lab) -> Result<[Dev; 2], Stop> {
    Ok([open(lab, lab.info())?, open(lab, lab.other_info())?])
}

fn dma_support_matches_capability(lab: &Lab) -> Result<(), Stop> {
    let mut rig = Rig::new(lab)?;
    let can = is_supported(Dma::memcpy_supported(&rig.dev))?;
    ensure_eq!(is_supported(Dma::memcpy_supported(rig.dev.info()))?, can, "asked of its info");
    ensure_matches_capability("buffers of a chain", can, Dma::max_list_buf_num_elem(&rig.dev))?;
    ensure_matches_capability("bytes", can, Dma::max_buf_size(&rig.dev))?;
    ensure_matches_capability("a context", can, Dma::builder(&rig.dev).start())?;
    if can {
        let dma = rig.dma()?;
        rig.fill(0, b"capable")?;
        let job = dma.memcpy(rig.data(0, 7)?, rig.room(64, 7)?);
        submit(&mut rig.workq, job)?;
        ensure_eq!(copied(&mut rig.workq)?.destination.to_vec()?, b"capable", "bytes");
    }
    Ok(())
}

fn event_driven_workq_matches_capability(lab: &Lab) -> Result<(), Stop> {
    fn check(what: &str, context: &impl Context) -> Result<(), Stop> {
        let mut workq = WorkQ::builder(4).event_driven().build()?;
        ensure_matches_capability(what, context.event_driven_supported(), workq.add(context))
    }
    let dev = open(lab, lab.info())?;
    check("SHA", &Sha::builder(&dev).start()?)?;
    check("a sync event", &configured(&dev)?.as_ctx().start()?)?;
    if is_supported(Dma::memcpy_supported(&dev))? {
        check("DMA", &Dma::builder(&dev).start()?)?;
    }
    Ok(())
}

fn mmap_dpu_export_and_import_match_capability(lab: &Lab) -> Result<(), Stop> {
    let devices = devices(lab)?;
    let mut exported = Vec::new();
    for dev in &devices {
        let own = map(dev, 64, AccessFlags::DPU_READ_ONLY)?;
        let can = is_supported(dev.info().mmap_export_dpu_supported())?;
        let made = own.export_dpu(dev);
        if let Ok(descriptor) = &made {
            exported.push((*descriptor, own));
        }
        ensure_matches_capability("an export", can, made)?;
    }
    for dev in &devices {
        let can = is_supported(dev.info().mmap_from_export_dpu_supported())?;
        ensure!(!can || dev.info().device_info().embedded_cpu, "{dev:?} is not of a DPU");
        for (descriptor, _own) in &exported {
            ensure_matches_capability(
                "an import",
                can,
                Mmap::create_from_export(descriptor.as_bytes(), dev),
            )?;
        }
    }
    Ok(())
}

fn configured(dev: &Dev) -> Result<verbless_doca::sync_event::SyncEventBuilder, Stop> {
    let event = SyncEvent::builder(dev).publisher_add_location(Location::Cpu)?;
    Ok(event.subscriber_add_location(Location::Cpu)?)
}

fn sync_event_dpu_export_matches_capability(lab: &Lab) -> Result<(), Stop> {
    let devices = devices(lab)?;
    let mut exported = Vec::new();
    for dev in &devices {
        ensure!(!is_supported(SyncEvent::export_to_dpa_supported(dev))?, "a DPA can use it");
        ensure!(!is_supported(SyncEvent::export_to_gpu_supported(dev))?, "a GPU can use it");
        let own = configured(dev)?.start()?;
        let made = own.export_to_dpu();
        if let Ok(descriptor) = &made {
            exported.push((*descriptor, own));
        }
        ensure_matches_capability(
            "an export",
            is_supported(SyncEvent::export_to_dpu_supported(dev))?,
            made,
        )?;
    }
    for dev in &devices {
        let can = is_supported(SyncEvent::create_from_export_supported(dev))?;
        for (descriptor, _own) in &exported {
            ensure_matches_capability(
                "an import",
                can,
                SyncEvent::create_from_export(descriptor.as_bytes(), dev),
            )?;
        }
        if !can {
            ensure_matches_capability(
                "an import of an empty descriptor",
                can,
                SyncEvent::create_from_export(&[], dev),
            )?;
        }
    }
    Ok(())
}

fn sync_event_jobs_match_capability(lab: &Lab) -> Result<(), Stop> {
    let dev = open(lab, lab.info())?;
    let context = configured(&dev)?.as_ctx().start()?;
    let mut workq = WorkQ::new(4)?;
    workq.add(&context)?;
    for (job_type, job) in [
        (JobType::SyncEventGet, context.get()),
        (JobType::SyncEventSet, context.set(1)),
        (JobType::SyncEventAdd, context.add(1)),
        (JobType::SyncEventWait, context.wait_gt(0)),
    ] {
        let can = is_supported(SyncEvent::job_supported(&dev, job_type))?;
        ensure_matches_capability(&format!("{job_type:?}"), can, workq.submit(job))?;
        if can {
            ensure_eq!(event(&mut workq)?.job_type(), job_type, "the completed job");
        }
    }
    Ok(())
}

fn pci_address_finds_its_device_again(lab: &Lab) -> Result<(), Stop> {
    let info = open(lab, lab.info())?.info().clone();
    if lab.info().pci_address.is_none() {
        ensure_eq!(refusal(info.pci_address())?, ErrorKind::NotFound, "of one on no bus");
        return Ok(());
    }
    let address = info.pci_address()?;
    let again = verbless_doca::DevInfo::find_in(lab.shared_backend(), &address.to_string())?;
    ensure_eq!(again.pci_address()?, address, "address of the device found by it");
    if let Ok(name) = info.interface_name() {
        ensure!(!name.is_empty(), "an interface without a name");
    }
    Ok(())
}
