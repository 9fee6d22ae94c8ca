//! A device can do everything that it claims, and refuses everything else with NotSupported. For
//! every profile of the model and each of its sides.

use std::sync::Arc;
use std::time::Duration;

use sha2::Digest;
use verbless_devx::Backend;
use verbless_doca::dma::Dma;
use verbless_doca::sha::{Algorithm, Sha};
use verbless_doca::{
    AccessFlags, Context, Dev, DevInfo, Error, ErrorKind, Event, Job, Mmap, WorkQ,
};
use verbless_model::{Model, Profile, Side};
use verbless_model_kernel::InProcess;

use crate::support::{map, plain};

/// A device of each side of a card of each profile; the host's side first.
fn cards() -> Vec<(&'static str, Vec<(Side, Dev)>)> {
    let card = |name| {
        let profile = Profile::load(name).unwrap();
        let model = Model::builder().device_with_sides(profile.clone()).build();
        let open = |side| {
            let backend: Arc<dyn Backend> = Arc::new(InProcess::of(&model).on_side(side));
            (side, DevInfo::list_of(&backend).unwrap()[0].open().unwrap())
        };
        (name, profile.sides().map(|it| open(it.side())).collect())
    };
    Profile::names().map(card).collect()
}

/// Whether the answer is yes; a no must be NotSupported.
fn is_supported(answer: Result<(), Error>) -> bool {
    match answer {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NotSupported, "{error}");
            false
        }
    }
}

/// Runs one job, with a sleep if the context supports event-driven mode.
fn run(context: &impl Context, job: impl Job + std::fmt::Debug) -> Event {
    let mut workq = match context.event_driven_supported() {
        true => WorkQ::builder(1).event_driven().build().unwrap(),
        false => WorkQ::new(1).unwrap(),
    };
    workq.add(context).unwrap();
    workq.submit(job).unwrap();
    workq.retrieve_within(Some(Duration::from_secs(60))).unwrap().unwrap()
}

#[test]
fn dma_works_only_with_memcpy_capability() {
    let mut seen = [0; 2];
    for (name, devs) in cards() {
        for (side, dev) in devs {
            let can = is_supported(Dma::memcpy_supported(&dev));
            seen[usize::from(can)] += 1;
            assert_eq!(is_supported(Dma::max_list_buf_num_elem(&dev).map(drop)), can);
            assert_eq!(is_supported(Dma::max_buf_size(&dev).map(drop)), can);
            let made = Dma::builder(&dev).start();
            let Ok(dma) = made else {
                assert!(!can, "{name} {side:?}");
                assert_eq!(made.err().unwrap().kind(), ErrorKind::NotSupported);
                continue;
            };
            assert!(can, "{name} {side:?}");
            let (map, inventory) = plain(&dev, 64, 2);
            map.write_at(0, b"capable").unwrap();
            let source = inventory.buf_by_data(&map, map.address(), 7).unwrap();
            let into = inventory.buf_by_addr(&map, map.address() + 32, 7).unwrap();
            let Event::Dma(done) = run(&dma, dma.memcpy(source, into)) else { panic!() };
            assert_eq!(done.destination.to_vec().unwrap(), b"capable");
        }
    }
    assert!(seen.iter().all(|&count| count > 0), "devices with and without DMA: {seen:?}");
}

#[test]
fn sha_works_on_every_device_in_software() {
    for (_, devs) in cards() {
        for (_, dev) in devs {
            assert!(!is_supported(Sha::hardware_supported(&dev)));
            for algorithm in [Algorithm::Sha1, Algorithm::Sha256, Algorithm::Sha512] {
                assert!(is_supported(Sha::job_supported(&dev, algorithm)));
                let sha = Sha::builder(&dev).start().unwrap();
                let (map, inventory) = plain(&dev, 128, 2);
                let source = inventory.buf_by_data(&map, map.address(), 3).unwrap();
                let into = inventory.buf_by_addr(&map, map.address() + 32, 64).unwrap();
                let Event::Sha(done) = run(&sha, sha.hash(algorithm, source, into)) else {
                    panic!()
                };
                let digest = done.destination.unwrap().to_vec().unwrap();
                assert_eq!(digest.len(), algorithm.digest_len());
                if algorithm == Algorithm::Sha256 {
                    assert_eq!(digest, sha2::Sha256::digest([0; 3])[..]);
                }
            }
        }
    }
}

#[test]
fn dpu_export_and_import_need_capabilities() {
    let (mut exported, mut imported) = (0, 0);
    for (name, devs) in cards() {
        // An export of another host, for devices that import nothing.
        let (far_host, _) = crate::support::sides();
        let far = map(&far_host, 64, AccessFlags::DPU_READ_ONLY);
        let mut descriptor = far.export_dpu(&far_host).unwrap();
        let mut kept = Vec::new();
        for (side, dev) in &devs {
            let can = is_supported(dev.info().mmap_export_dpu_supported());
            let own = map(dev, 64, AccessFlags::DPU_READ_ONLY);
            own.write_at(0, b"exported").unwrap();
            match own.export_dpu(dev) {
                Ok(made) => {
                    assert!(can, "{name} {side:?}");
                    exported += 1;
                    descriptor = made;
                    kept.push(own);
                }
                Err(error) => {
                    assert!(!can, "{name} {side:?}: {error}");
                    assert_eq!(error.kind(), ErrorKind::NotSupported, "{error}");
                }
            }
        }
        for (side, dev) in &devs {
            let can = is_supported(dev.info().mmap_from_export_dpu_supported());
            match Mmap::create_from_export(descriptor.as_bytes(), dev) {
                Ok(far) => {
                    assert!(can, "{name} {side:?}");
                    imported += 1;
                    let (near, inventory) = plain(dev, 64, 2);
                    let source = inventory.buf_by_data(&far, far.address(), 8).unwrap();
                    let into = inventory.buf_by_addr(&near, near.address(), 8).unwrap();
                    let dma = Dma::builder(dev).start().unwrap();
                    let Event::Dma(done) = run(&dma, dma.memcpy(source, into)) else { panic!() };
                    assert_eq!(done.destination.to_vec().unwrap(), b"exported");
                }
                Err(error) => {
                    assert!(!can, "{name} {side:?}: {error}");
                    assert_eq!(error.kind(), ErrorKind::NotSupported, "{error}");
                }
            }
        }
    }
    assert_eq!((exported, imported), (3, 3), "of three profiles, from BlueField's host to its DPU");
}

#[test]
fn hotplug_manager_is_unsupported() {
    for (_, devs) in cards() {
        for (_, dev) in devs {
            assert!(!is_supported(dev.info().hotplug_manager_supported()));
        }
    }
}
