//! On the card of section 3.2.1.2, with all its functions: an export or import works if the
//! capability reports it, and is NotSupported elsewhere.

use std::sync::Arc;
use std::time::Duration;

use verbless_devx::Backend;
use verbless_doca::dma::Dma;
use verbless_doca::sync_event::{Location, SyncEvent};
use verbless_doca::{
    AccessFlags, Dev, DevInfo, DynamicMmap, ErrorKind, Event, Mmap, PciFuncType, Result, WorkQ,
};
use verbless_model::{Model, Profile, Side};
use verbless_model_kernel::InProcess;

use crate::support::{map, plain};

/// All devices of one card, the host's first.
fn devices() -> Vec<(Side, Dev)> {
    let profile = Profile::load("bluefield3").unwrap();
    let kernel = InProcess::of(&Model::builder().device_with_topology(profile).build());
    let on = |side| {
        let backend: Arc<dyn Backend> = Arc::new(kernel.clone().on_side(side));
        let infos = DevInfo::list_of(&backend).unwrap();
        infos.into_iter().map(move |info| (side, info.open().unwrap()))
    };
    on(Side::Host).chain(on(Side::Dpu)).collect()
}

/// Whether the answer is yes; a no must be NotSupported.
fn is_supported<T>(answer: Result<T>) -> bool {
    match answer {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NotSupported, "{error}");
            false
        }
    }
}

/// The count of each type, host's and DPU's: PFs, VFs, SFs.
fn counts_by_type<'d>(devs: impl Iterator<Item = &'d (Side, Dev)>) -> [[usize; 3]; 2] {
    let mut seen = [[0; 3]; 2];
    for (side, dev) in devs {
        let sort = match dev.info().function_type() {
            PciFuncType::Pf => 0,
            PciFuncType::Vf => 1,
            PciFuncType::Sf => 2,
        };
        seen[usize::from(*side == Side::Dpu)][sort] += 1;
    }
    seen
}

#[test]
fn sync_events_export_from_host_to_dpu_only() {
    let devs = devices();
    assert_eq!(counts_by_type(devs.iter()), [[2, 3, 0], [2, 0, 2]]);
    let can_export = |dev: &Dev| is_supported(SyncEvent::export_to_dpu_supported(dev));
    let can_import = |dev: &Dev| is_supported(SyncEvent::create_from_export_supported(dev));
    let (mut exporters, mut pairs) = (Vec::new(), 0);
    for (side, dev) in &devs {
        let event = SyncEvent::builder(dev).publisher_add_location(Location::Cpu).unwrap();
        let event = event.subscriber_add_location(Location::Cpu).unwrap().start().unwrap();
        let exported = event.export_to_dpu();
        assert_eq!(can_export(dev), *side == Side::Host, "{dev:?}");
        match exported {
            Ok(descriptor) => exporters.push((event, descriptor)),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NotSupported, "{error}");
                assert!(!can_export(dev), "{dev:?}");
            }
        }
    }
    assert_eq!(exporters.len(), 5);
    for (side, dev) in &devs {
        assert_eq!(can_import(dev), *side == Side::Dpu, "{dev:?}");
        for (event, descriptor) in &exporters {
            event.update_set(40).unwrap();
            match SyncEvent::create_from_export(descriptor.as_bytes(), dev) {
                Ok(there) => {
                    assert!(can_import(dev), "{dev:?}");
                    let there = there.start().unwrap();
                    assert_eq!(there.update_add(2).unwrap(), 40);
                    assert_eq!(event.get().unwrap(), 42);
                    pairs += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NotSupported, "{error}");
                    assert!(!can_import(dev), "{dev:?}");
                }
            }
        }
    }
    assert_eq!(pairs, 5 * 4);
}

#[test]
fn mmaps_export_from_host_to_dpu_only() {
    let devs = devices();
    let (mut exporters, mut pairs) = (Vec::new(), 0);
    for (side, dev) in &devs {
        let own = map(dev, 64, AccessFlags::DPU_READ_ONLY);
        own.write_at(0, b"far away").unwrap();
        let can = is_supported(dev.info().mmap_export_dpu_supported());
        assert_eq!(can, *side == Side::Host, "{dev:?}");
        let exported = own.export_dpu(dev);
        match exported {
            Ok(descriptor) => exporters.push((own, descriptor)),
            Err(error) => assert_eq!(error.kind(), ErrorKind::NotSupported, "{error}"),
        }
    }
    assert_eq!(exporters.len(), 5);
    for (side, dev) in &devs {
        let can = is_supported(dev.info().mmap_from_export_dpu_supported());
        assert_eq!(can, *side == Side::Dpu, "{dev:?}");
        for (_, descriptor) in &exporters {
            let imported = Mmap::create_from_export(descriptor.as_bytes(), dev);
            let dynamic = DynamicMmap::create_from_export("", descriptor.as_bytes(), dev);
            assert_eq!(is_supported(dynamic), can, "{dev:?}");
            let far = match imported {
                Ok(far) => far,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NotSupported, "{error}");
                    assert!(!can, "{dev:?}");
                    continue;
                }
            };
            assert!(can, "{dev:?}");
            let (near, inventory) = plain(dev, 64, 2);
            let source = inventory.buf_by_data(&far, far.address(), 8).unwrap();
            let into = inventory.buf_by_addr(&near, near.address(), 8).unwrap();
            let dma = Dma::builder(dev).start().unwrap();
            let mut workq = WorkQ::new(1).unwrap();
            workq.add(&dma).unwrap();
            workq.submit(dma.memcpy(source, into)).unwrap();
            match workq.retrieve_within(Some(Duration::from_secs(60))) {
                Ok(Some(Event::Dma(done))) => {
                    assert_eq!(done.destination.to_vec().unwrap(), b"far away");
                }
                other => panic!("{dev:?}: {other:?}"),
            }
            pairs += 1;
        }
    }
    assert_eq!(pairs, 5 * 4);
}
