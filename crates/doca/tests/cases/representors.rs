//! The topology of section 3.2.1.2 of 2.2: two PFs and three VFs at the host, two PFs and two SFs
//! at the DPU, and the representor of each.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use verbless_devx::{Backend, DeviceInfo, RepresentorInfo};
use verbless_doca::{
    AccessFlags, Dev, DevInfo, DevInfoRep, ErrorKind, Mmap, PciAddress, PciFuncType,
};
use verbless_model::{Model, Profile, Side};
use verbless_model_kernel::InProcess;

use crate::support::{map, sides};

/// A card with all its functions, from both sides.
struct Card {
    model: Model,
    kernel: InProcess,
    host: Arc<dyn Backend>,
    dpu: Arc<dyn Backend>,
}

fn card() -> Card {
    let profile = Profile::load("bluefield3").unwrap();
    let model = Model::builder().device_with_topology(profile).build();
    let kernel = InProcess::of(&model);
    let side = |side| -> Arc<dyn Backend> { Arc::new(kernel.clone().on_side(side)) };
    Card { host: side(Side::Host), dpu: side(Side::Dpu), kernel, model }
}

fn address(text: &str) -> PciAddress {
    text.parse().unwrap()
}

fn pf(backend: &Arc<dyn Backend>, at: &str) -> Dev {
    DevInfo::find_in(backend, at).unwrap().open().unwrap()
}

fn names(reps: &[DevInfoRep]) -> Vec<&str> {
    reps.iter().map(DevInfoRep::interface_name).collect()
}

#[test]
fn host_and_dpu_list_devices_of_guide_diagram() {
    let card = card();
    let list = |backend| {
        let infos = DevInfo::list_of(backend).unwrap();
        let functions = infos.iter().map(|it| (it.pci_address().unwrap(), it.function_type()));
        (functions.collect::<Vec<_>>(), infos)
    };
    let (on_host, host) = list(&card.host);
    let (pf, vf, sf) = (PciFuncType::Pf, PciFuncType::Vf, PciFuncType::Sf);
    let expected =
        [("0b:00.0", pf), ("0b:00.1", pf), ("0b:00.2", vf), ("0b:00.3", vf), ("0b:00.4", vf)];
    assert_eq!(on_host, expected.map(|(at, kind)| (address(at), kind)));
    let (on_dpu, dpu) = list(&card.dpu);
    let expected = [("03:00.0", pf), ("03:00.1", pf), ("03:00.0", sf), ("03:00.1", sf)];
    assert_eq!(on_dpu, expected.map(|(at, kind)| (address(at), kind)));
    let vuids: BTreeSet<_> = host.iter().chain(&dpu).map(|it| it.vuid().unwrap()).collect();
    assert_eq!(vuids.len(), 9, "each has its own: {vuids:?}");
    let ids = |infos: &[DevInfo]| -> Vec<_> {
        infos.iter().map(|it| it.device_info().device_id).collect()
    };
    assert_eq!(ids(&host), [0xa2dc, 0xa2dc, 0x101e, 0x101e, 0x101e], "VFs have their own id");
    assert_eq!(ids(&dpu), [0xa2dc; 4]);
}

#[test]
fn representor_has_pci_address_and_vuid_of_function() {
    let card = card();
    // The guide's table, section 3.2.1.3; the SFs are the DPU's own.
    let mut matched = 0;
    for (manager, table) in [
        ("03:00.0", [("pf0hpf", "0b:00.0"), ("pf0vf0", "0b:00.2"), ("pf0vf1", "0b:00.3")].to_vec()),
        ("03:00.1", [("pf1hpf", "0b:00.1"), ("pf1vf0", "0b:00.4")].to_vec()),
    ] {
        let reps = DevInfoRep::list(&pf(&card.dpu, manager)).unwrap();
        assert_eq!(reps.len(), table.len() + 1, "{manager}: {reps:?}");
        for (name, at) in table {
            let at = address(at);
            let rep = reps.iter().find(|rep| rep.pci_address().ok() == Some(at)).unwrap();
            assert_eq!(rep.interface_name(), name);
            let host = DevInfo::find_in(&card.host, &at.to_string()).unwrap();
            assert_eq!(host.pci_address().unwrap(), at);
            assert_eq!(rep.vuid().unwrap(), host.vuid().unwrap());
            assert_eq!(rep.function_type(), host.function_type());
            matched += 1;
        }
        let sf = reps.iter().find(|rep| rep.function_type() == PciFuncType::Sf).unwrap();
        let error = sf.pci_address().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("it represents a sub-function"), "{error}");
        let infos = DevInfo::list_of(&card.dpu).unwrap();
        let local = infos.iter().find(|it| it.vuid().unwrap() == sf.vuid().unwrap()).unwrap();
        assert_eq!(local.function_type(), PciFuncType::Sf);
        assert_eq!(local.pci_address().unwrap(), address(manager), "its parent's");
    }
    assert_eq!(matched, 5);
}

#[test]
fn representor_is_found_by_pci_address_or_name() {
    let card = card();
    let dev = pf(&card.dpu, "03:00.0");
    for (by, name) in [("0b:00.3", "pf0vf1"), ("0000:0b:00.0", "pf0hpf"), ("pf0sf0", "pf0sf0")] {
        assert_eq!(DevInfoRep::find(&dev, by).unwrap().interface_name(), name);
    }
    // The representor of the other PF, and unknown names.
    for by in ["0b:00.1", "0001:0b:00.0", "pf1vf0", "", "0b:00"] {
        let refused = DevInfoRep::find(&dev, by).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotFound);
        assert!(refused.to_string().contains("pf0hpf, pf0vf0, pf0vf1, pf0sf0"), "{refused}");
    }
    let host = pf(&card.host, "0b:00.0");
    let refused = DevInfoRep::find(&host, "0b:00.0").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotSupported);
}

#[test]
fn represented_pf_imports_mmaps_of_host_functions() {
    let card = card();
    let mut imported = 0;
    for manager in ["03:00.0", "03:00.1"] {
        let dev = pf(&card.dpu, manager);
        for rep in DevInfoRep::list(&dev).unwrap() {
            let Ok(at) = rep.pci_address() else { continue };
            let host = pf(&card.host, &at.to_string());
            host.info().mmap_export_dpu_supported().unwrap();
            let far = map(&host, 64, AccessFlags::DPU_READ_ONLY);
            let descriptor = far.export_dpu(&host).unwrap();
            let near = Mmap::create_from_export(descriptor.as_bytes(), &dev).unwrap();
            assert_eq!(near.address(), far.address());
            imported += 1;
        }
    }
    assert_eq!(imported, 5);
}

#[test]
fn representor_list_outlives_device() {
    let card = card();
    let dev = pf(&card.dpu, "03:00.0");
    let reps = DevInfoRep::list(&dev).unwrap();
    drop(dev);
    assert_eq!(names(&reps), ["pf0hpf", "pf0vf0", "pf0vf1", "pf0sf0"]);
    let [first, again] = [0, 0].map(|at: usize| reps[at].open().unwrap());
    let other = reps[1].open().unwrap();
    assert_eq!(first, again);
    assert_ne!(first, other);
    drop(reps);
    assert_eq!(first.info().interface_name(), "pf0hpf");
    assert_eq!(other.info().pci_address().unwrap(), address("0b:00.2"));
}

#[test]
fn device_lists_are_snapshots() {
    let card = card();
    let dev = pf(&card.dpu, "03:00.0");
    // The host's PF removes its VFs (devices 2 and 3 of the model).
    [2, 3].iter().for_each(|&vf| card.kernel.set_present(vf, false));
    let before = DevInfoRep::list(&dev).unwrap();
    let devices = || DevInfo::list_of(&card.host).unwrap();
    let devices_before = devices();
    assert_eq!(names(&before), ["pf0hpf", "pf0sf0"]);
    assert_eq!(devices_before.len(), 3);
    card.kernel.set_present(3, true);
    assert_eq!(names(&before), ["pf0hpf", "pf0sf0"], "a snapshot");
    let after = DevInfoRep::list(&dev).unwrap();
    assert_eq!(names(&after), ["pf0hpf", "pf0vf1", "pf0sf0"]);
    assert_eq!((devices_before.len(), devices().len()), (3, 4));
    assert_eq!(devices()[2].pci_address().unwrap(), address("0b:00.3"));
    let vf = after[1].open().unwrap();
    // It is removed again: the lists do not change, and their entry cannot be opened.
    card.kernel.set_present(3, false);
    assert_eq!(names(&after), ["pf0hpf", "pf0vf1", "pf0sf0"]);
    assert_eq!(after[1].pci_address().unwrap(), address("0b:00.3"));
    assert_eq!(after[1].open().unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(vf.info(), &after[1], "an open one stays");
    assert_eq!(names(&DevInfoRep::list(&dev).unwrap()), ["pf0hpf", "pf0sf0"]);
}

#[test]
fn non_manager_has_no_representors() {
    let card = card();
    let kind = |dev: &Dev| DevInfoRep::list(dev).map(drop).unwrap_err().kind();
    for info in DevInfo::list_of(&card.host).unwrap() {
        assert_eq!(kind(&info.open().unwrap()), ErrorKind::NotSupported, "{info:?}");
    }
    let sf = DevInfo::list_of(&card.dpu).unwrap().remove(2).open().unwrap();
    assert_eq!(sf.info().function_type(), PciFuncType::Sf);
    assert_eq!(kind(&sf), ErrorKind::NotSupported);
    // A card of two functions: the DPU's represents the host's.
    let (host, dpu) = sides();
    assert_eq!(kind(&host), ErrorKind::NotSupported);
    let reps = DevInfoRep::list(&dpu).unwrap();
    assert_eq!(names(&reps), ["pf0hpf"]);
    assert_eq!(reps[0].vuid().unwrap(), host.info().vuid().unwrap());
    let refused = reps[0].pci_address().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotFound, "it is on no bus: {refused}");
}

#[test]
fn infos_of_same_device_are_equal() {
    let card = card();
    let [first, again] = [0, 0].map(|_| DevInfo::list_of(&card.host).unwrap());
    assert_eq!(first, again);
    assert_ne!(first[0], first[1]);
    assert_ne!(first[0], DevInfo::list_of(&card.dpu).unwrap()[0], "of the same name");
    let dev = pf(&card.dpu, "03:00.0");
    let [reps, reps_again] = [0, 0].map(|_| DevInfoRep::list(&dev).unwrap());
    assert_eq!(reps, reps_again);
    assert_ne!(reps[0], reps[1]);
}

/// A side as Linux shows it: its representors have no properties of the host's functions.
struct AsLinux(Arc<dyn Backend>);

impl Backend for AsLinux {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn enumerate(&self) -> Result<Vec<DeviceInfo>, verbless_devx::Error> {
        self.0.enumerate()
    }

    fn representors(
        &self,
        device: &DeviceInfo,
    ) -> Result<Vec<RepresentorInfo>, verbless_devx::Error> {
        let mut all = self.0.representors(device)?;
        for info in all.iter_mut().filter(|info| info.external) {
            (info.pci_address, info.vuid) = (None, None);
        }
        Ok(all)
    }

    fn open(
        &self,
        device: &DeviceInfo,
    ) -> Result<Arc<dyn verbless_devx::OpenDevice>, verbless_devx::Error> {
        self.0.open(device)
    }
}

#[test]
fn missing_representor_data_is_queried_lazily() {
    let card = card();
    let dpu: Arc<dyn Backend> = Arc::new(AsLinux(card.dpu.clone()));
    let host = |at: &str| DevInfo::find_in(&card.host, at).unwrap();
    let dev = pf(&dpu, "03:00.0");
    let queries = Arc::new(AtomicUsize::new(0));
    let counted = queries.clone();
    let _watch = card.model.watch_commands(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let reps = DevInfoRep::list(&dev).unwrap();
    assert_eq!(queries.load(Ordering::Relaxed), 0, "listing them queries nothing");
    drop(dev);
    let rep = |name| reps.iter().find(|rep| rep.interface_name() == name).unwrap();
    assert_eq!(rep("pf0hpf").pci_address().unwrap(), address("0b:00.0"));
    for (name, at) in [("pf0hpf", "0b:00.0"), ("pf0vf0", "0b:00.2"), ("pf0vf1", "0b:00.3")] {
        assert_eq!(rep(name).vuid().unwrap(), host(at).vuid().unwrap(), "{name}");
    }
    // No command reports the address of a VF.
    let unknown = rep("pf0vf0").pci_address().unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
    assert!(unknown.to_string().contains("neither the kernel nor the device"), "{unknown}");
    // The other PF manages a switch of its own.
    let other = DevInfoRep::find(&pf(&dpu, "03:00.1"), "pf1hpf").unwrap();
    assert_eq!(other.pci_address().unwrap(), address("0b:00.1"));
    assert_eq!(other.vuid().unwrap(), host("0b:00.1").vuid().unwrap());
}

#[test]
fn only_switch_manager_queries_host_functions() {
    let card = card();
    let dev = pf(&card.dpu, "03:00.0");
    let manager = dev.device();
    let found = manager.query_host_pf().unwrap().unwrap();
    assert_eq!((found.bus, found.device, found.function, found.vfs), (0xb, 0, 0, 2));
    let ids: Vec<_> = (0..3).map(|id| manager.query_host_vhca_id(id).unwrap()).collect();
    assert!(manager.query_host_vhca_id(3).is_err(), "PF 0 has two VFs");
    for dev in [pf(&card.host, "0b:00.0"), pf(&card.dpu, "03:00.1")] {
        for &id in &ids {
            let own = id == dev.device().caps().general.vhca_id();
            assert_eq!(dev.device().query_vuid_of(id).is_ok(), own, "{id:#x}");
        }
    }
    let host = pf(&card.host, "0b:00.0");
    assert!(host.device().query_host_pf().is_err() && host.device().query_host_vhca_id(1).is_err());
}
