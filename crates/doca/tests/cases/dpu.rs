//! The host's memory at the DPU.

use std::sync::Arc;
use std::time::Duration;

use verbless_devx::Backend;
use verbless_doca::dma::Dma;
use verbless_doca::{
    AccessFlags, Dev, DevInfo, DynamicMmap, ErrorKind, Event, Extensions, Inventory, JobError,
    Memory, Mmap, Retrieve, WorkQ,
};
use verbless_model::{Model, Profile, Side};
use verbless_model_kernel::InProcess;

use crate::support::{map, sides};

/// Copies all bytes of one map to another on `dev`.
fn copy(dev: &Dev, from: &Mmap, to: &Mmap) -> Result<(), JobError> {
    let inventory = Inventory::builder(2).start().unwrap();
    let dma = Dma::builder(dev).start().unwrap();
    let mut workq = WorkQ::new(1).unwrap();
    workq.add(&dma).unwrap();
    let source = inventory.buf_by_data(from, from.address(), from.len()).unwrap();
    let into = inventory.buf_by_addr(to, to.address(), to.len()).unwrap();
    workq.submit(dma.memcpy(source, into)).unwrap();
    match workq.retrieve_within(Some(Duration::from_secs(60))) {
        Ok(Some(Event::Dma(_))) => Ok(()),
        Err(Retrieve::IoFailed(event)) => Err(event.result().unwrap_err()),
        other => panic!("{other:?}"),
    }
}

fn bytes(map: &Mmap) -> Vec<u8> {
    let mut bytes = vec![0; map.len() as usize];
    map.read_at(0, &mut bytes).unwrap();
    bytes
}

fn kind<T, E: Into<verbless_doca::Error>>(result: Result<T, E>) -> ErrorKind {
    match result {
        Ok(_) => panic!("the call was not refused"),
        Err(error) => error.into().kind(),
    }
}

const LENGTH: usize = 700_000;

#[test]
fn dpu_copies_from_and_to_host_memory() {
    let (host, dpu) = sides();
    let far = map(&host, LENGTH, AccessFlags::DPU_READ_WRITE);
    let near = map(&dpu, LENGTH, AccessFlags::LOCAL_READ_WRITE);
    let text: Vec<u8> = (0..LENGTH).map(|n| (n * 31) as u8).collect();
    far.write_at(0, &text).unwrap();
    let descriptor = far.export_dpu(&host).unwrap();
    assert_eq!(descriptor, far.export_dpu(&host).unwrap(), "every time the same");
    let imported = Mmap::create_from_export(descriptor.as_bytes(), &dpu).unwrap();
    assert_eq!((imported.address(), imported.len()), (far.address(), far.len()));
    assert_eq!(kind(imported.read_at(0, &mut [0])), ErrorKind::NotPermitted, "not by the CPU");
    copy(&dpu, &imported, &near).unwrap();
    assert!(bytes(&near) == text);
    near.write_at(0, &[7; LENGTH]).unwrap();
    copy(&dpu, &near, &imported).unwrap();
    assert!(bytes(&far) == [7; LENGTH]);
}

#[test]
fn dpu_read_only_export_rejects_write() {
    let (host, dpu) = sides();
    let far = map(&host, 4096, AccessFlags::DPU_READ_ONLY | AccessFlags::LOCAL_READ_WRITE);
    let near = map(&dpu, 4096, AccessFlags::LOCAL_READ_WRITE);
    let imported =
        Mmap::create_from_export(far.export_dpu(&host).unwrap().as_bytes(), &dpu).unwrap();
    copy(&dpu, &imported, &near).unwrap();
    let inventory = Inventory::builder(2).start().unwrap();
    let dma = Dma::builder(&dpu).start().unwrap();
    let mut workq = WorkQ::new(1).unwrap();
    workq.add(&dma).unwrap();
    let into = inventory.buf_by_addr(&imported, imported.address(), 64).unwrap();
    let from = inventory.buf_by_data(&near, near.address(), 64).unwrap();
    assert_eq!(kind(workq.submit(dma.memcpy(from, into))), ErrorKind::NotPermitted);
}

#[test]
fn forged_export_rights_are_stopped_by_device() {
    use sha2::Digest;
    let (host, dpu) = sides();
    let far = map(&host, 4096, AccessFlags::DPU_READ_ONLY);
    let near = map(&dpu, 4096, AccessFlags::LOCAL_READ_WRITE);
    near.write_at(0, &[9; 4096]).unwrap();
    let mut forged = far.export_dpu(&host).unwrap().as_bytes().to_vec();
    forged[12..16].copy_from_slice(&AccessFlags::DPU_READ_WRITE.bits().to_be_bytes());
    let covered = forged.len() - 8;
    let sum = sha2::Sha256::digest(&forged[..covered]);
    forged[covered..].copy_from_slice(&sum[..8]);
    let imported = Mmap::create_from_export(&forged, &dpu).unwrap();
    let error = copy(&dpu, &near, &imported).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotPermitted, "{error}");
    assert!(bytes(&far) == [0; 4096]);
    // With another access key, the device refuses the alias.
    forged[60] ^= 1;
    let sum = sha2::Sha256::digest(&forged[..covered]);
    forged[covered..].copy_from_slice(&sum[..8]);
    assert_eq!(kind(Mmap::create_from_export(&forged, &dpu)), ErrorKind::NotPermitted);
}

#[test]
fn forged_export_length_allocates_nothing() {
    use sha2::Digest;
    let (host, dpu) = sides();
    let far = map(&host, 4096, AccessFlags::LOCAL_READ_WRITE | AccessFlags::RDMA_READ);
    let mut forged = far.export_rdma(&host).unwrap().as_bytes().to_vec();
    forged[40..48].copy_from_slice(&(1u64 << 62).to_be_bytes());
    let covered = forged.len() - 8;
    let sum = sha2::Sha256::digest(&forged[..covered]);
    forged[covered..].copy_from_slice(&sum[..8]);
    let imported = Mmap::create_from_export(&forged, &dpu).unwrap();
    assert_eq!(imported.len(), 1 << 62);
    let inventory = Inventory::builder(2).extensions(Extensions::LINKED_LIST).start().unwrap();
    let near = map(&dpu, 64, AccessFlags::LOCAL_READ_WRITE);
    let all = inventory.buf_by_data(&imported, imported.address(), imported.len()).unwrap();
    assert_eq!(kind(all.to_vec()), ErrorKind::NotPermitted);
    let mut chain = inventory.buf_by_data(&near, near.address(), 64).unwrap();
    chain.link(all).unwrap();
    assert_eq!(chain.to_vec().unwrap(), [0; 64]);
    assert_eq!(kind(chain.chain_to_vec()), ErrorKind::NotPermitted);
}

#[test]
fn export_and_import_on_wrong_side_are_rejected() {
    let (host, dpu) = sides();
    let local = map(&host, 64, AccessFlags::LOCAL_READ_WRITE | AccessFlags::RDMA_READ);
    assert_eq!(kind(local.export_dpu(&host)), ErrorKind::NotPermitted);
    let far = map(&host, 64, AccessFlags::DPU_READ_ONLY);
    assert_eq!(kind(far.export_rdma(&host)), ErrorKind::NotPermitted);
    assert_eq!(kind(far.export_dpu(&dpu)), ErrorKind::NotPermitted, "not of the map");
    let descriptor = far.export_dpu(&host).unwrap();
    let import = |dev: &Dev| kind(Mmap::create_from_export(descriptor.as_bytes(), dev));
    assert_eq!(import(&host), ErrorKind::NotSupported, "the host imports nothing");
    // The host reaches no memory of the DPU.
    let upside_down = map(&dpu, 64, AccessFlags::DPU_READ_ONLY);
    assert_eq!(kind(upside_down.export_dpu(&dpu)), ErrorKind::NotSupported);
}

#[test]
fn import_from_another_cards_host_is_rejected() {
    let card = || Profile::load("bluefield3").unwrap();
    let model = Model::builder().device_with_sides(card()).device_with_sides(card()).build();
    let [hosts, dpus] = [Side::Host, Side::Dpu].map(|side| {
        let backend: Arc<dyn Backend> = Arc::new(InProcess::of(&model).on_side(side));
        let infos = DevInfo::list_of(&backend).unwrap();
        infos.iter().map(|info| info.open().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!((hosts.len(), dpus.len()), (2, 2));
    for (at, host) in hosts.iter().enumerate() {
        let far = map(host, 64, AccessFlags::DPU_READ_ONLY);
        let descriptor = far.export_dpu(host).unwrap();
        Mmap::create_from_export(descriptor.as_bytes(), &dpus[at]).unwrap();
        let refused = Mmap::create_from_export(descriptor.as_bytes(), &dpus[1 - at]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidValue, "{refused}");
        assert!(refused.to_string().contains("only the DPU of the same card"), "{refused}");
    }
}

#[test]
fn import_of_destroyed_mmap_fails_jobs() {
    let (host, dpu) = sides();
    let far = map(&host, 4096, AccessFlags::DPU_READ_WRITE);
    let near = map(&dpu, 4096, AccessFlags::LOCAL_READ_WRITE);
    let descriptor = far.export_dpu(&host).unwrap();
    let imported = Mmap::create_from_export(descriptor.as_bytes(), &dpu).unwrap();
    far.destroy().unwrap();
    let error = copy(&dpu, &imported, &near).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotPermitted, "{error}");
    assert_eq!(
        kind(Mmap::create_from_export(descriptor.as_bytes(), &dpu)),
        ErrorKind::NotPermitted,
        "nor is it imported again"
    );
}

#[test]
fn dynamic_mmap_exports_to_dpu_once() {
    let (host, dpu) = sides();
    let mut far = DynamicMmap::new("host");
    far.set_access_flags(AccessFlags::DPU_READ_ONLY).unwrap();
    far.start().unwrap();
    far.dev_add(&host).unwrap();
    far.populate(Memory::allocate(4096).unwrap(), 4096, None).unwrap();
    let descriptor = far.export_dpu(&host).unwrap();
    assert_eq!(kind(far.export_dpu(&host)), ErrorKind::NotPermitted);
    let imported = DynamicMmap::create_from_export("dpu", descriptor.as_bytes(), &dpu).unwrap();
    assert_eq!((imported.max_chunks(), imported.is_from_export()), (1, true));
    let inventory = Inventory::builder(1).start().unwrap();
    assert!(inventory.buf_by_data(&imported, 0, 1).is_err());
}
