//! Doorbells and MSI-X of emulated devices: their parts, and their holders.

use std::sync::Arc;

use verbless_command::DpaEqAttr;
use verbless_flexio::emulation::{
    self, DoorbellToCq, EmulatedDevice, MAX_EQ_TO_MSIX_MAP_PAIRS, Msix, MsixConfig, MsixMap,
};
use verbless_flexio::{CqElement, DpaCq, DpaCqConfig, Process, QueueMemory};

use crate::documented::{Documented, process};
use crate::objects::refused;

/// A process, and a device with four vectors.
fn emulated() -> Documented<(Process, Arc<EmulatedDevice>)> {
    let process = process()?;
    let device = emulation::create_device(&process, 3, 4)?;
    Ok((process, device))
}

fn polled(process: &Process) -> Documented<DpaCq> {
    Ok(DpaCq::create(process, &DpaCqConfig::new(4, CqElement::NonDpa { vector: 0 }))?)
}

#[test]
fn doorbell_maps_one_queue_until_unmap() -> Documented<()> {
    let (process, device) = emulated()?;
    let cq = polled(&process)?;
    let [first, second] =
        [DoorbellToCq::map(&device, 0, &cq)?, DoorbellToCq::map(&device, 1, &cq)?];
    assert_eq!(first.cq().number(), cq.number());
    assert_ne!(first.id(), second.id());
    assert_eq!(first.query()?.rings, 0);
    refused(DoorbellToCq::map(&device, 1, &cq), "BAD_RES_STATE");
    refused(DoorbellToCq::map(&device, 3, &cq), "BAD_PARAM");
    first.unmap()?;
    DoorbellToCq::map(&device, 0, &cq)?.unmap()?;
    let (_other, foreign) = emulated()?;
    refused(DoorbellToCq::map(&foreign, 0, &cq), "another device context");
    Ok(())
}

#[test]
fn msix_map_size_is_limited_by_device_vectors() -> Documented<()> {
    let (process, device) = emulated()?;
    for count in [0, MAX_EQ_TO_MSIX_MAP_PAIRS + 1, u16::MAX] {
        refused(MsixMap::create(&process, &device, count), "FLEXIO_MAX_EQ_TO_MSIX_MAP_PAIRS");
    }
    let before = process.heap_info().requested;
    let some = MsixMap::create(&process, &device, 1)?;
    assert_eq!(process.heap_info().requested - before, 64 * 64, "64 entries");
    let all = MsixMap::create(&process, &device, MAX_EQ_TO_MSIX_MAP_PAIRS)?;
    let vectors = |map: &MsixMap| map.pairs().map(|(_, vector)| vector).collect::<Vec<_>>();
    assert_eq!((vectors(&some), vectors(&all)), (vec![0], vec![0, 1, 2, 3]));
    assert_eq!(all.device().id(), device.id());
    let (_other, foreign) = emulated()?;
    refused(MsixMap::create(&process, &foreign, 1), "another device context");
    Ok(())
}

#[test]
fn msix_uses_cq_or_direct_eq() -> Documented<()> {
    let (process, device) = emulated()?;
    let map = MsixMap::create(&process, &device, 4)?;
    let config = |vector| MsixConfig { vector, ..MsixConfig::default() };
    refused(Msix::create(&map, &config(4)), "vector 4 of a map of 4");
    let target = Some(process.device().clone());
    let msix = Msix::create(&map, &MsixConfig { target, ..config(3) })?;
    assert_eq!((msix.vector(), msix.cq().map(DpaCq::log_depth)), (3, Some(3)));
    let (other, _) = emulated()?;
    let target = Some(other.device().clone());
    refused(Msix::create(&map, &MsixConfig { target, ..config(3) }), "not supported");
    let direct = MsixConfig { direct: true, ..config(1) };
    let with_uar = MsixConfig { uar: Some(process.uar()), ..direct.clone() };
    refused(Msix::create(&map, &with_uar), "direct mode");
    let direct = Msix::create(&map, &direct)?;
    assert!(direct.cq().is_none());
    assert_eq!(map.pairs().nth(1), Some((direct.eq().id(), 1)));
    let mut entry = [0; 64];
    process.read(direct.eq_address(), &mut entry)?;
    assert_eq!(entry, [0xff; 64], "the device's to write");
    // One event queue raises a vector, the other none.
    let of = |eq| DpaCqConfig::new(3, CqElement::DpaMsixEmulated(eq));
    DpaCq::create(&process, &of(direct.eq().clone()))?.destroy()?;
    let ring = process.alloc(64 * 64)?;
    let attr =
        DpaEqAttr::new(QueueMemory::dpa(&ring).for_command(), 6, process.uar().page().clone());
    let plain = Arc::new(process.device().create_dpa_eq(process.token(), attr)?);
    refused(DpaCq::create(&process, &of(plain)), "raises no vector");
    Ok(())
}

#[test]
fn emulated_objects_are_in_use_until_released() -> Documented<()> {
    let (process, device) = emulated()?;
    let map = MsixMap::create(&process, &device, 1)?;
    let msix = Msix::create(&map, &MsixConfig::default())?;
    refused(map.free(), "the MSI-X map is in use by MSI-X 0: destroy");
    let cq = msix.cq().cloned();
    refused(msix.destroy(), "is in use by a clone of its handle");
    drop(cq);
    let map = MsixMap::create(&process, &device, 1)?;
    Msix::create(&map, &MsixConfig::default())?.destroy()?;
    map.free()?;
    Ok(())
}
