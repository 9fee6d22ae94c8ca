//! The bridge to verbless-queue and verbless-devx (section 3.6 of 2.2).

use std::fs::File;

use verbless_doca::dma::Dma;
use verbless_doca::{AccessFlags, Dev, DevInfo, ErrorKind, Event, Inventory, Mmap, WorkQ};
use verbless_queue::wr::{Read, Write};
use verbless_queue::{ConnectOptions, CqConfig, Domain, QpConfig, Sge};

use crate::support::{backend, map};

/// A device of DOCA on a domain of the test.
fn bridged() -> (Domain, Dev) {
    let backend = backend("bluefield3");
    let info = DevInfo::list_of(&backend).unwrap().remove(0);
    let device = verbless_command::Device::open(&*backend, info.device_info()).unwrap();
    let domain = Domain::new(&device).unwrap();
    let dev = Dev::open_from_pd(&info, &domain).unwrap();
    (domain, dev)
}

#[test]
fn domain_qp_moves_buf_data_by_its_mkey() {
    let (domain, dev) = bridged();
    let map = map(&dev, 4096, AccessFlags::LOCAL_READ_WRITE);
    map.write_at(0, b"from a buffer").unwrap();
    let inventory = Inventory::builder(1).start().unwrap();
    let buffer = inventory.buf_by_data(&map, map.address(), 13).unwrap();
    let region = domain.region(4096, verbless_command::KeyAccess::ALL).unwrap();
    let cq = domain.completion_queue(&CqConfig::new(32)).unwrap();
    let mut cq = cq;
    let mut qp = domain.queue_pair(&QpConfig::new(8, 8), &cq, &cq).unwrap();
    domain.connect_loopback(&mut qp, &ConnectOptions::default()).unwrap();
    let local = Sge::new(buffer.data(), 13, buffer.mkey(&dev).unwrap());
    qp.post(&Write::new(local, region.remote(0, 13).unwrap()).signaled(), 1).unwrap();
    let mut done = || {
        loop {
            if let Some(done) = qp.poll(&mut cq) {
                break done.unwrap().cookie;
            }
        }
    };
    assert_eq!(done(), 1);
    let mut bytes = [0; 13];
    region.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"from a buffer");
    region.write_at(0, b"into a buffer").unwrap();
    qp.post(&Read::new(local, region.remote(0, 13).unwrap()).signaled(), 2).unwrap();
    loop {
        if let Some(done) = qp.poll(&mut cq) {
            assert_eq!(done.unwrap().cookie, 2);
            break;
        }
    }
    assert_eq!(buffer.to_vec().unwrap(), b"into a buffer");
}

#[test]
fn dev_from_pd_is_distinct_and_runs_dma() {
    let (domain, dev) = bridged();
    assert!(dev.info().open().unwrap() != dev);
    assert_eq!(dev.domain().pd().pdn(), domain.pd().pdn());
    let map = map(&dev, 4096, AccessFlags::LOCAL_READ_WRITE);
    map.write_at(0, b"copied").unwrap();
    let inventory = Inventory::builder(2).start().unwrap();
    let dma = Dma::builder(&dev).start().unwrap();
    let mut workq = WorkQ::new(1).unwrap();
    workq.add(&dma).unwrap();
    let from = inventory.buf_by_data(&map, map.address(), 6).unwrap();
    let to = inventory.buf_by_addr(&map, map.address() + 64, 6).unwrap();
    workq.submit(dma.memcpy(from, to)).unwrap();
    let Some(Event::Dma(done)) = workq.retrieve_within(None).unwrap() else { panic!() };
    assert_eq!(done.destination.to_vec().unwrap(), b"copied");
}

#[test]
fn open_from_pd_rejects_domain_of_another_device() {
    let backend = backend("bluefield3");
    let list = DevInfo::list_of(&backend).unwrap();
    let other = verbless_command::Device::open(&*backend, list[1].device_info()).unwrap();
    let domain = Domain::new(&other).unwrap();
    let error = Dev::open_from_pd(&list[0], &domain).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidValue, "{error}");
}

#[test]
fn buf_has_lkey_or_rkey_only_for_its_devices() {
    let list = DevInfo::list_of(&backend("bluefield3")).unwrap();
    let (dev, other) = (list[0].open().unwrap(), list[1].open().unwrap());
    let far = map(&other, 64, AccessFlags::RDMA_READ);
    let imported =
        Mmap::create_from_export(far.export_rdma(&other).unwrap().as_bytes(), &dev).unwrap();
    let inventory = Inventory::builder(2).start().unwrap();
    let there = inventory.buf_by_addr(&far, far.address(), 64).unwrap();
    assert_eq!(there.mkey(&dev).unwrap_err().kind(), ErrorKind::NotPermitted);
    assert_ne!(there.mkey(&other).unwrap().0, 0);
    let here = inventory.buf_by_addr(&imported, imported.address(), 64).unwrap();
    assert_eq!(here.mkey(&dev).unwrap_err().kind(), ErrorKind::NotPermitted);
    assert_eq!(here.rkey(&dev).unwrap(), there.rkey(&other).unwrap(), "as its owner exported it");
    let local = map(&dev, 64, AccessFlags::LOCAL_READ_WRITE);
    drop(here);
    let here = inventory.buf_by_addr(&local, local.address(), 64).unwrap();
    assert_eq!(here.rkey(&dev).unwrap_err().kind(), ErrorKind::NotPermitted);
}

#[test]
fn open_from_context_rejects_non_verbs_fd() {
    for file in ["/dev/null", "/proc/self/exe"] {
        let error = Dev::open_from_context(File::open(file).unwrap().into(), None).unwrap_err();
        let kinds = [ErrorKind::NotFound, ErrorKind::Initialization];
        assert!(kinds.contains(&error.kind()), "{file}: {error}");
    }
}
