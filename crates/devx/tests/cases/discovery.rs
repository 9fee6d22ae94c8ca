//! Devices are found through sysfs, and when there is none the error says why.

use crate::support::tree::Tree;
use verbless_devx::{Backend, Errno, ErrorKind, FunctionKind, GidType, LinkLayer};

#[test]
fn device_info_comes_from_sysfs() {
    let tree = Tree::new();
    tree.function("0000:08:00.0", Some("mlx5_core")).rdma(
        "rocep8s0f0",
        "uverbs0",
        "pci0000:00/0000:08:00.0",
    );
    let devices = tree.kernel().enumerate().unwrap();
    let device = &devices[0];
    assert_eq!((devices.len(), &*device.name, &*device.node), (1, "rocep8s0f0", "uverbs0"));
    assert_eq!(device.pci_address.as_deref(), Some("0000:08:00.0"));
    assert_eq!((device.vendor_id, device.device_id), (0x15b3, 0x101d));
    assert_eq!((&*device.board_id, &*device.firmware), ("MT_0000000359", "22.31.1014"));
    assert_eq!(
        (device.node_guid, device.system_image_guid),
        (0x0c42_a103_0065_1234, 0x0c42_a103_0065_1200)
    );
    assert_eq!(device.netdevs, ["ens1f0np0"]);
    let port = &device.ports[0];
    assert_eq!((port.number, port.link_layer, port.state), (1, LinkLayer::Ethernet, 4));
    let gids: Vec<_> =
        port.gids.iter().map(|gid| (gid.index, gid.kind, gid.netdev.as_deref())).collect();
    let netdev = Some("ens1f0np0");
    assert_eq!(
        gids,
        [(0, GidType::RoceV1, netdev), (1, GidType::RoceV2, netdev), (10, GidType::RoceV2, netdev)]
    );
}

#[test]
fn sf_has_pci_address_of_its_parent() {
    let tree = Tree::new();
    let parent = "pci0000:00/0000:08:00.0/mlx5_core.sf.2";
    tree.function("0000:08:00.0", Some("mlx5_core")).rdma("mlx5_2", "uverbs2", parent);
    tree.directory("sys/bus/auxiliary/drivers/mlx5_core.sf");
    tree.link(&format!("sys/devices/{parent}/driver"), "sys/bus/auxiliary/drivers/mlx5_core.sf");
    let devices = tree.kernel().enumerate().unwrap();
    assert_eq!(
        (devices[0].pci_address.as_deref(), devices[0].device_id),
        (Some("0000:08:00.0"), 0x101d)
    );
}

#[test]
fn enumerate_sorts_by_node_number() {
    let tree = Tree::new();
    for (at, node) in ["uverbs10", "uverbs9", "uverbs0"].into_iter().enumerate() {
        let address = format!("0000:0{at}:00.0");
        let parent = format!("pci0000:00/{address}");
        tree.function(&address, Some("mlx5_core")).rdma(&format!("mlx5_{at}"), node, &parent);
    }
    let nodes: Vec<_> =
        tree.kernel().enumerate().unwrap().into_iter().map(|device| device.node).collect();
    assert_eq!(nodes, ["uverbs0", "uverbs9", "uverbs10"]);
}

/// A container sees all of its host's devices in sysfs.
#[test]
fn devices_without_node_come_last() {
    let tree = Tree::new();
    for at in 0..3 {
        let (address, node) = (format!("0000:0{at}:00.0"), format!("uverbs{at}"));
        let parent = format!("pci0000:00/{address}");
        tree.function(&address, Some("mlx5_core")).rdma(&format!("mlx5_{at}"), &node, &parent);
    }
    let seen = || {
        let devices = tree.kernel().enumerate().unwrap();
        devices.into_iter().map(|it| (it.name, it.has_node)).collect::<Vec<_>>()
    };
    let [zero, one, two] = ["mlx5_0", "mlx5_1", "mlx5_2"].map(str::to_owned);
    let found = [(zero.clone(), false), (one.clone(), false), (two.clone(), false)];
    assert_eq!(seen(), found, "the error of opening one says what is missing");
    tree.file("dev/uverbs1", "");
    assert_eq!(seen(), [(one, true), (zero, false), (two, false)]);
    assert_eq!(tree.kernel().find("mlx5_0").unwrap().node, "uverbs0", "a name finds any of them");
}

#[test]
fn infiniband_gid_without_interface_id_is_not_listed() {
    let tree = Tree::new();
    let parent = "pci0000:00/0000:08:00.0";
    tree.function("0000:08:00.0", Some("mlx5_core")).rdma("mlx5_0", "uverbs0", parent);
    let port = "sys/class/infiniband/mlx5_0/ports/1";
    let prefix = "fe80:0000:0000:0000:0000:0000:0000:0000";
    tree.file(format!("{port}/gids/1"), prefix);
    let indexes = || -> Vec<_> {
        let device = tree.kernel().enumerate().unwrap().remove(0);
        device.ports[0].gids.iter().map(|gid| gid.index).collect()
    };
    assert_eq!(indexes(), [0, 1, 10], "an IP address of RoCE may end in zeros");
    tree.file(format!("{port}/link_layer"), "InfiniBand");
    assert_eq!(indexes(), [0, 10]);
}

#[test]
fn invalid_sysfs_attributes_leave_fields_empty() {
    let tree = Tree::new();
    tree.function("0000:08:00.0", Some("mlx5_core"));
    tree.file("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0");
    tree.link("sys/class/infiniband_verbs/uverbs0/device", "sys/devices/pci0000:00/0000:08:00.0");
    let rdma = "sys/class/infiniband/mlx5_0";
    tree.file(format!("{rdma}/node_guid"), "zzzz:1:2:3").file(format!("{rdma}/ports/x/state"), "?");
    tree.file(format!("{rdma}/ports/1/state"), "up")
        .file(format!("{rdma}/ports/1/gids/0"), "not a gid");
    tree.file("sys/class/infiniband_verbs/abi_version", "6")
        .directory("sys/class/infiniband_verbs/uverbs1");
    let devices = tree.kernel().enumerate().unwrap();
    assert_eq!((devices.len(), devices[0].node_guid, devices[0].ports.len()), (1, 0, 1));
    assert_eq!((devices[0].ports[0].state, devices[0].ports[0].gids.len()), (0, 0));
}

#[test]
fn enumerate_error_names_cause_of_missing_device() {
    const FUNCTION: &str = "0000:08:00.0";
    type Make = fn(&Tree);
    let rows: [(Make, ErrorKind, &[&str]); 9] = [
        (|_| (), ErrorKind::NoDevice, &["none on the PCI bus", "software model"]),
        (|tree| _ = tree.rdma("rxe0", "uverbs0", "virtual/rxe0"), ErrorKind::NoDevice, &["rxe0"]),
        (
            |tree| _ = tree.function(FUNCTION, Some("vfio-pci")),
            ErrorKind::NoDevice,
            &["0000:08:00.0 is bound to vfio-pci"],
        ),
        (
            |tree| _ = tree.function(FUNCTION, None),
            ErrorKind::ModuleMissing,
            &["modprobe mlx5_core", "\"disagrees about version\"", "mokutil"],
        ),
        (
            |tree| {
                // ConnectX-10 NVLink-C2C.
                let device = "sys/devices/pci0000:00/0000:08:00.0/device";
                tree.function(FUNCTION, None).file(device, "0x2101");
            },
            ErrorKind::ModuleMissing,
            &["modprobe mlx5_core"],
        ),
        (
            |tree| _ = tree.function(FUNCTION, Some("mlx5_core")),
            ErrorKind::ModuleMissing,
            &["modprobe mlx5_ib"],
        ),
        (
            |tree| {
                tree.function(FUNCTION, Some("mlx5_core"));
                tree.directory("sys/class/infiniband/mlx5_0");
            },
            ErrorKind::ModuleMissing,
            &["modprobe ib_uverbs"],
        ),
        (
            |tree| {
                tree.function(FUNCTION, None).directory("sys/module/mlx5_core");
            },
            ErrorKind::NotProbed,
            &["dmesg", "mlx5_core"],
        ),
        (
            |tree| {
                tree.function(FUNCTION, Some("mlx5_core")).directory("sys/module/mlx5_ib");
            },
            ErrorKind::NotProbed,
            &["dmesg", "mlx5_ib", "enable_rdma"],
        ),
    ];
    for (make, kind, words) in rows {
        let tree = Tree::new();
        make(&tree);
        let error = tree.kernel().enumerate().unwrap_err();
        assert_eq!(error.kind(), kind, "{words:?}");
        let text = error.to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{words:?}: {text}");
    }
}

#[test]
fn open_error_of_node_suggests_remedy() {
    for (target, kind, errno, words) in [
        // Read-only for all users, root included.
        (
            Some("/proc/sys/kernel/ostype"),
            ErrorKind::Permission,
            Errno::EACCES,
            ["uverbs0 for mlx5_0", "chmod"],
        ),
        (None, ErrorKind::NoDevice, Errno::ENOENT, ["--device=/dev/infiniband/uverbs0", ""]),
    ] {
        let tree = Tree::new();
        let function = tree.function("0000:08:00.0", Some("mlx5_core"));
        function.rdma("mlx5_0", "uverbs0", "pci0000:00/0000:08:00.0");
        if let Some(target) = target {
            tree.link("dev/uverbs0", target);
        }
        let kernel = tree.kernel();
        let error =
            kernel.open(&kernel.enumerate().unwrap()[0]).err().expect("the device does not open");
        assert_eq!((error.kind(), error.errno()), (kind, Some(errno)), "{target:?}");
        let text = error.to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{target:?}: {text}");
    }
}

#[test]
fn uverbs_node_with_wrong_dev_number_is_rejected() {
    let tree = Tree::new();
    let function = tree.function("0000:08:00.0", Some("mlx5_core"));
    function.rdma("mlx5_0", "uverbs0", "pci0000:00/0000:08:00.0");
    tree.link("dev/uverbs0", "/dev/null");
    let kernel = tree.kernel();
    let open = || kernel.open(&kernel.enumerate().unwrap()[0]);
    assert!(open().is_ok(), "sysfs has no number");
    tree.file("sys/class/infiniband_verbs/uverbs0/dev", "1:3");
    assert!(open().is_ok(), "the number is its own");
    tree.file("sys/class/infiniband_verbs/uverbs0/dev", "231:192");
    let error = open().err().expect("the number is another's");
    assert_eq!((error.kind(), error.errno()), (ErrorKind::Refused, None));
    assert!(error.to_string().contains("of another device"), "{error}");
}

#[test]
fn find_by_name_or_pci_address_lists_alternatives() {
    let tree = Tree::new();
    for (at, address) in ["0000:08:00.0", "0000:08:00.1"].into_iter().enumerate() {
        let parent = format!("pci0000:00/{address}");
        let (name, node) = (format!("mlx5_{at}"), format!("uverbs{at}"));
        tree.function(address, Some("mlx5_core")).rdma(&name, &node, &parent);
    }
    let kernel = tree.kernel();
    for name in ["mlx5_1", "0000:08:00.1"] {
        assert_eq!(kernel.find(name).expect(name).node, "uverbs1");
    }
    let error = kernel.find("mlx5_7").expect_err("there is none");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(
        error.to_string(),
        "looking for the device mlx5_7 failed; the kernel has mlx5_0 (0000:08:00.0), mlx5_1 \
         (0000:08:00.1)"
    );
}

#[test]
fn find_without_devices_fails_with_no_device() {
    let error = Tree::new().kernel().find("mlx5_0").expect_err("there is none");
    assert_eq!(error.kind(), ErrorKind::NoDevice);
}

/// A DPU's PF as Linux 6 shows it: representors are network devices of the PF.
fn dpu(tree: &Tree) -> verbless_devx::DeviceInfo {
    let pf = "pci0000:00/0000:03:00.0";
    tree.function("0000:03:00.0", Some("mlx5_core")).rdma("mlx5_0", "uverbs0", pf);
    for (name, port) in [
        ("p0", "p0"),
        ("pf0hpf", "c1pf0"),
        ("pf0vf0", "c1pf0vf0"),
        ("en3f0pf0sf88", "pf0sf88"),
        // No port name, and a name of no function.
        ("odd", ""),
        ("odder", "pf0xx"),
    ] {
        let at = format!("sys/devices/{pf}/net/{name}");
        tree.file(format!("{at}/phys_port_name"), port);
        tree.file(format!("{at}/phys_switch_id"), "e41d2d0003a3b4c0");
    }
    tree.kernel().enumerate().unwrap().remove(0)
}

#[test]
fn representors_have_switch_port_names() {
    let tree = Tree::new();
    let device = dpu(&tree);
    assert!(device.embedded_cpu);
    assert_eq!(device.netdevs, ["ens1f0np0", "odd", "odder", "p0"], "no representor");
    let representors = tree.kernel().representors(&device).unwrap();
    let representors: Vec<_> = representors
        .iter()
        .map(|it| (&*it.name, it.external, it.function, it.pf, it.number))
        .collect();
    let (pf, vf, sf) = (FunctionKind::Physical, FunctionKind::Virtual, FunctionKind::Sub);
    assert_eq!(
        representors,
        [
            ("en3f0pf0sf88", false, sf, 0, Some(88)),
            ("pf0hpf", true, pf, 0, None),
            ("pf0vf0", true, vf, 0, Some(0)),
        ]
    );
}

#[test]
fn parentless_representors_match_switch_id_and_pf() {
    let tree = Tree::new();
    let pf = "pci0000:00/0000:03:00.0";
    tree.function("0000:03:00.0", Some("mlx5_core")).rdma("mlx5_0", "uverbs0", pf);
    tree.file(format!("sys/devices/{pf}/net/ens1f0np0/phys_port_name"), "p0");
    tree.file(format!("sys/devices/{pf}/net/ens1f0np0/phys_switch_id"), "0a0b");
    for (name, port, switch) in [
        ("pf0hpf", "pf0hpf", "0a0b"),
        ("pf0vf0", "pf0vf0", "0a0b"),
        // Representors of another PF on the same switch, and of another card.
        ("pf1hpf", "pf1hpf", "0a0b"),
        ("eth7", "pf0vf1", "0c0d"),
    ] {
        tree.file(format!("sys/class/net/{name}/phys_port_name"), port);
        tree.file(format!("sys/class/net/{name}/phys_switch_id"), switch);
    }
    let device = tree.kernel().enumerate().unwrap().remove(0);
    assert!(device.embedded_cpu);
    let representors = tree.kernel().representors(&device).unwrap();
    let representors: Vec<_> = representors.iter().map(|it| (&*it.name, it.external)).collect();
    assert_eq!(
        representors,
        [("pf0hpf", true), ("pf0vf0", true)],
        "the host's VFs, whatever they are called"
    );
}

#[test]
fn switchdev_host_has_vf_representors_with_pci() {
    let tree = Tree::new();
    let pf = "pci0000:00/0000:08:00.0";
    tree.function("0000:08:00.0", Some("mlx5_core")).rdma("mlx5_0", "uverbs0", pf);
    tree.function("0000:08:00.3", None);
    tree.link(&format!("sys/devices/{pf}/virtfn1"), "sys/devices/pci0000:00/0000:08:00.3");
    tree.file(format!("sys/devices/{pf}/net/eth1/phys_port_name"), "pf0vf1");
    tree.file(format!("sys/devices/{pf}/net/eth1/phys_switch_id"), "0a0b");
    let device = tree.kernel().enumerate().unwrap().remove(0);
    assert!(!device.embedded_cpu);
    let representors = tree.kernel().representors(&device).unwrap();
    assert_eq!(representors.len(), 1);
    assert_eq!(representors[0].pci_address.as_deref(), Some("0000:08:00.3"));
    assert!(!representors[0].external);
}

#[test]
fn bluefield_is_detected_and_sf_has_no_representors() {
    let tree = Tree::new();
    let device = dpu(&tree);
    let parent = "pci0000:00/0000:03:00.0/mlx5_core.sf.2";
    tree.rdma("mlx5_2", "uverbs2", parent);
    tree.directory("sys/bus/auxiliary/drivers/mlx5_core.sf");
    tree.link(&format!("sys/devices/{parent}/driver"), "sys/bus/auxiliary/drivers/mlx5_core.sf");
    let sf = tree.kernel().enumerate().unwrap().remove(1);
    assert_eq!(sf.function, FunctionKind::Sub);
    assert!(sf.embedded_cpu && device.embedded_cpu);
    assert!(tree.kernel().representors(&sf).unwrap().is_empty());
    let other = Tree::new();
    other.function("0000:03:00.0", Some("mlx5_core")).rdma(
        "mlx5_0",
        "uverbs0",
        "pci0000:00/0000:03:00.0",
    );
    let embedded = || other.kernel().enumerate().unwrap()[0].embedded_cpu;
    assert!(!embedded());
    other.directory("sys/bus/platform/devices/MLNXBF04:00");
    assert!(embedded(), "in legacy mode, without a representor");
}
