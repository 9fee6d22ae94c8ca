//! The properties of devices: of the model in this process, and as Linux reports them, from a
//! directory in place of /sys.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use verbless_devx::{Backend, Kernel};
use verbless_doca::{DevInfo, DevInfoRep, DevType, ErrorKind, PciFuncType};
use verbless_model::{Link, Model, Profile};
use verbless_model_kernel::InProcess;
use verbless_prm::{CommandStatus, Opcode};

/// Files in place of /sys, removed at the end.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str) -> Self {
        let root =
            std::env::temp_dir().join(format!("verbless-doca-{}-{name}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        Self(root)
    }

    fn file(&self, at: impl AsRef<Path>, text: &str) {
        let path = self.0.join(at);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    fn link(&self, at: &str, to: &str) {
        let path = self.0.join(at);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(self.0.join(to), path).unwrap();
    }

    /// A PCI function at this address, and its RDMA device with this number.
    fn device(&self, address: &str, number: u32) {
        let at = format!("devices/pci0000:03/{address}");
        self.file(format!("{at}/vendor"), "0x15b3");
        self.file(format!("{at}/device"), "0xa2dc");
        self.link(&format!("bus/pci/devices/{address}"), &at);
        let verbs = format!("class/infiniband_verbs/uverbs{number}");
        self.file(format!("{verbs}/ibdev"), &format!("mlx5_{number}"));
        self.link(&format!("{verbs}/device"), &at);
        self.file(format!("class/infiniband/mlx5_{number}/ports/1/link_layer"), "Ethernet");
    }

    fn gids(&self, number: u32, gids: &[&str]) {
        for (index, gid) in gids.iter().enumerate() {
            let port = format!("class/infiniband/mlx5_{number}/ports/1");
            self.file(format!("{port}/gids/{index}"), gid);
            self.file(format!("{port}/gid_attrs/types/{index}"), "RoCE v2");
        }
    }

    fn list(&self) -> Vec<DevInfo> {
        let kernel: Arc<dyn Backend> =
            Arc::new(Kernel::with_roots(self.0.clone(), self.0.join("dev")));
        DevInfo::list_of(&kernel).unwrap()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn kind<T>(result: verbless_doca::Result<T>) -> ErrorKind {
    result.map(drop).unwrap_err().kind()
}

#[test]
fn linux_reports_function_properties() {
    let tree = Tree::new("function");
    tree.device("0000:03:00.0", 0);
    fs::create_dir_all(tree.0.join("devices/pci0000:03/0000:03:00.0/net/ens1f0np0")).unwrap();
    let local = "fe80:0000:0000:0000:0e42:a1ff:fe65:1234";
    let wide = "2001:0db8:0000:0000:0000:0000:0000:0007";
    tree.gids(0, &[local, "0000:0000:0000:0000:0000:ffff:c000:0205", wide]);
    let info = &tree.list()[0];
    assert_eq!(info.pci_address().unwrap().to_string(), "0000:03:00.0");
    assert_eq!(info.interface_name().unwrap(), "ens1f0np0");
    assert_eq!(info.ib_device_name(), "mlx5_0");
    assert_eq!(info.ipv4().unwrap().to_string(), "192.0.2.5");
    assert_eq!(info.ipv6().unwrap().to_string(), "2001:db8::7", "before a link-local one");
    assert_eq!(info.function_type(), PciFuncType::Pf);
    // A second device with only a link-local address.
    tree.device("0000:03:00.1", 1);
    tree.gids(1, &[local]);
    let info = &tree.list()[1];
    assert_eq!(info.ipv6().unwrap().to_string(), "fe80::e42:a1ff:fe65:1234");
    assert_eq!(kind(info.ipv4()), ErrorKind::NotFound);
    assert_eq!(kind(info.interface_name()), ErrorKind::NotFound);
}

#[test]
fn linux_distinguishes_pf_vf_and_sf() {
    let tree = Tree::new("kinds");
    tree.device("0000:03:00.0", 0);
    tree.device("0000:03:00.2", 1);
    let pf = "devices/pci0000:03/0000:03:00.0";
    tree.link("devices/pci0000:03/0000:03:00.2/physfn", pf);
    let sf = format!("{pf}/mlx5_core.sf.4");
    tree.file(format!("{sf}/sfnum"), "88");
    tree.file("class/infiniband_verbs/uverbs2/ibdev", "mlx5_2");
    tree.link("class/infiniband_verbs/uverbs2/device", &sf);
    let listed_types =
        |info: &DevInfo| (info.function_type(), info.pci_address().unwrap().function);
    let listed_types: Vec<_> = tree.list().iter().map(listed_types).collect();
    let expected = [(PciFuncType::Pf, 0), (PciFuncType::Vf, 2), (PciFuncType::Sf, 0)];
    assert_eq!(listed_types, expected, "the SF has its parent's address");
}

#[test]
fn model_reports_function_properties() {
    let card = Profile::load("connectx6dx").unwrap().with_link(Link::Ethernet);
    let model = Model::builder().device(card).build();
    let kernel = InProcess::of(&model);
    kernel.add_address(0, "192.0.2.1".parse().unwrap()).unwrap();
    kernel.add_address(0, "2001:db8::1".parse().unwrap()).unwrap();
    let backend: Arc<dyn Backend> = Arc::new(kernel);
    let info = DevInfo::list_of(&backend).unwrap().remove(0);
    let vuid = info.vuid().unwrap();
    assert_eq!(vuid, format!("VBL{:016X}", info.device_info().node_guid));
    assert_eq!(vuid, info.vuid().unwrap(), "constant");
    assert_eq!(info.ipv4().unwrap().to_string(), "192.0.2.1");
    assert_eq!(info.ipv6().unwrap().to_string(), "2001:db8::1");
    assert_eq!(
        kind(info.interface_name()),
        ErrorKind::NotFound,
        "the device has no network interface"
    );
    assert_eq!(kind(info.pci_address()), ErrorKind::NotFound, "the device is on no bus");
    assert_eq!(info.dev_type().unwrap(), DevType::Software);
    assert_eq!(info.function_type(), PciFuncType::Pf);
}

#[test]
fn dpu_representors_lack_host_addresses() {
    let tree = Tree::new("dpu");
    tree.device("0000:03:00.0", 0);
    for (netdev, port) in [("p0", "p0"), ("pf0hpf", "c1pf0"), ("pf0vf1", "c1pf0vf1")] {
        let at = format!("devices/pci0000:03/0000:03:00.0/net/{netdev}");
        tree.file(format!("{at}/phys_port_name"), port);
        tree.file(format!("{at}/phys_switch_id"), "0200004c0000");
    }
    let info = &tree.list()[0];
    assert_eq!(info.interface_name().unwrap(), "p0", "representors are none of its own");
    let listed = info.device_info();
    assert!(listed.embedded_cpu);
    let listed_reps = Kernel::with_roots(tree.0.clone(), "").representors(listed).unwrap();
    let listed_reps: Vec<_> =
        listed_reps.iter().map(|it| (&*it.name, &it.pci_address, &it.vuid)).collect();
    assert_eq!(listed_reps, [("pf0hpf", &None, &None), ("pf0vf1", &None, &None)]);
    // The model without addresses reports none either.
    let (_, dpu) = crate::support::sides();
    let rep = DevInfoRep::list(&dpu).unwrap().remove(0);
    assert_eq!(kind(rep.pci_address()), ErrorKind::NotFound);
}

#[test]
fn rejected_vuid_query_is_not_supported() {
    let model = Model::builder().device(Profile::load("bluefield3").unwrap()).build();
    let backend: Arc<dyn Backend> = Arc::new(InProcess::of(&model));
    let info = DevInfo::list_of(&backend).unwrap().remove(0);
    let _open = info.open().unwrap();
    model.fail_command(0, Opcode::QUERY_VUID, 1, CommandStatus::BAD_OP, 1);
    let error = info.vuid().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    assert!(error.to_string().contains("does not report its VUID"), "{error}");
    model.remove(0);
    assert_eq!(kind(info.vuid()), ErrorKind::Shutdown);
}

#[test]
fn device_list_is_never_empty() {
    assert!(DevInfo::list().map_or(true, |all| !all.is_empty()));
}
