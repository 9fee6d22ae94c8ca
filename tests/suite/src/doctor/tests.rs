//! Every link fails in a test with its own sentence: the host's in trees of files, the device's by
//! faults of the model.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use verbless_model::{Fault, Ioctl, Model, Times};
use verbless_prm::{CommandStatus, Opcode};

use super::*;

/// A directory in place of `/`, removed on drop.
struct Tree(PathBuf);

impl Tree {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("verbless-doctor-{}-{number}", std::process::id());
        let tree = Self(std::env::temp_dir().join(name));
        tree.file("proc/sys/kernel/osrelease", "6.1.0-42-amd64");
        tree
    }

    fn file(&self, path: &str, text: &str) -> &Self {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("this user owns the path");
        fs::write(path, format!("{text}\n")).expect("this user owns the path");
        self
    }

    fn folder(&self, path: &str) -> &Self {
        fs::create_dir_all(self.0.join(path)).expect("this user owns the path");
        self
    }

    fn link(&self, path: &str, to: &str) -> &Self {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("this user owns the path");
        symlink(self.0.join(to), path).expect("this user owns the path");
        self
    }

    /// A PCI function with this device id, and its driver if it has one.
    fn function(&self, device: &str, driver: Option<&str>) -> &Self {
        let at = format!("sys/bus/pci/devices/{ADDRESS}");
        self.file(&format!("{at}/vendor"), "0x15b3").file(&format!("{at}/device"), device);
        self.file(&format!("{at}/class"), "0x020000");
        if let Some(driver) = driver {
            self.folder(&format!("sys/bus/pci/drivers/{driver}"));
            self.link(&format!("{at}/driver"), &format!("sys/bus/pci/drivers/{driver}"));
        }
        self
    }

    fn modules(&self) -> &Self {
        ["mlx5_core", "mlx5_ib", "ib_uverbs"].iter().fold(self, |tree, module| {
            tree.file(&format!("sys/module/{module}/srcversion"), "0123ABCD")
        })
    }

    /// A device with a node, whose port has this state.
    fn device(&self, state: &str) -> &Self {
        self.function("0x101d", Some("mlx5_core")).modules().add("mlx5_0", "uverbs0", state)
    }

    /// One more device of the function.
    fn add(&self, name: &str, node: &str, state: &str) -> &Self {
        let (verbs, rdma) =
            (format!("sys/class/infiniband_verbs/{node}"), format!("sys/class/infiniband/{name}"));
        self.file(&format!("{verbs}/ibdev"), name)
            .link(&format!("{verbs}/device"), &format!("sys/bus/pci/devices/{ADDRESS}"))
            .file(&format!("{rdma}/board_id"), "MT_0000000359")
            .file(&format!("{rdma}/fw_ver"), "22.31.1014")
            .file(&format!("{rdma}/ports/1/link_layer"), "Ethernet")
            .file(&format!("{rdma}/ports/1/state"), state)
    }

    /// The link that fails on this machine, and its sentence; all links that were checked.
    fn examine(&self, device: &str) -> (Link, String, Vec<Check>) {
        self.examine_by(device, &Host::at(&self.0))
    }

    fn examine_by(&self, device: &str, host: &Host) -> (Link, String, Vec<Check>) {
        let found = super::examine(&choice(device), host);
        let chain = found.unwrap_or_else(|Stop(why)| panic!("{why}")).chain;
        let (link, why) = chain.failure().unwrap_or_else(|| panic!("it holds: {}", chain.table()));
        (link, why.to_string(), chain.checks.clone())
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // What is left is in the folder of temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

const ADDRESS: &str = "0000:08:00.0";

fn choice(device: &str) -> Choice {
    Choice { device: device.into(), ..Choice::default() }
}

#[test]
fn machine_without_function_fails_at_device_if_one_is_named() {
    let (link, why, _) = Tree::new().examine("mlx5_0");
    assert_eq!(link, Link::Device);
    assert!(why.contains("none on the PCI bus") && why.contains("software model"), "{why}");
}

#[test]
fn machine_without_function_gets_the_model_by_default() {
    let tree = Tree::new();
    let found = super::examine(&choice("auto"), &Host::at(&tree.0));
    let chain = found.unwrap_or_else(|Stop(why)| panic!("{why}")).chain;
    assert_eq!(chain.failure(), None, "{}", chain.table());
    let device = chain
        .checks
        .iter()
        .find(|check| check.link == Link::Device)
        .expect("the device was checked");
    let Finding::Limited(text) = &device.finding else { panic!("{}", chain.table()) };
    for part in ["the model in this process", "no hardware was checked, because", "PCI bus"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // An older card, which mlx4 drives, is none.
    tree.function("0x1003", Some("mlx4_core"));
    assert!(!Host::at(&tree.0).has_function());
}

#[test]
fn card_that_cannot_be_used_is_not_replaced_by_the_model() {
    let tree = Tree::new();
    let (link, why, _) = tree.function("0x101d", Some("vfio-pci")).examine("auto");
    assert_eq!(link, Link::Device);
    assert!(why.contains("is bound to vfio-pci"), "{why}");
}

#[test]
fn module_that_is_not_loaded_fails_at_driver() {
    let tree = Tree::new();
    let (link, why, checks) = tree.function("0x101d", None).examine("auto");
    assert_eq!(link, Link::Driver);
    assert!(
        why.contains("mlx5_core is not loaded") && why.contains("`modprobe mlx5_core`"),
        "{why}"
    );
    assert_eq!(
        checks[0].finding,
        Finding::Holds(format!("Linux 6.1.0-42-amd64 on {}", std::env::consts::ARCH))
    );
    let tree = Tree::new();
    let (link, why, _) = tree.function("0x101d", Some("mlx5_core")).examine("auto");
    assert_eq!(link, Link::Driver);
    assert!(why.contains("`modprobe mlx5_ib`"), "{why}");
}

#[test]
fn failed_probe_fails_at_driver_with_the_log_line_and_advice() {
    let tree = Tree::new();
    tree.function("0x101d", None).modules();
    let record = |number: u32, text: &str| {
        format!("3,{number},5140900,-;mlx5_core {ADDRESS}: {text}\n SUBSYSTEM=pci")
    };
    let lines = [
        record(1, "firmware version: 65535.65535.65535"),
        record(
            2,
            "mlx5_function_setup:1130:(pid 17): Firmware over 120000 MS in \
                   pre-initializing state, aborting",
        ),
        record(3, "probe_one:1764:(pid 17): mlx5_init_one failed with error code -16"),
    ];
    let (link, why, _) = tree.file("dev/kmsg", &lines.join("\n")).examine("auto");
    assert_eq!(link, Link::Driver);
    for part in ["0000:08:00.0 (15b3:101d)", "pre-initializing state", "power-cycle"] {
        assert!(why.contains(part), "{part}: {why}");
    }
}

#[test]
fn failed_probe_without_log_says_how_to_read_it() {
    let tree = Tree::new();
    let (link, why, _) = tree.function("0x101d", None).modules().examine("auto");
    assert_eq!(link, Link::Driver);
    assert!(why.contains("cannot be read here") && why.contains("`dmesg | grep"), "{why}");
    let (_, why, _) = tree.file("dev/kmsg", "6,1,0,-;something else").examine("auto");
    assert!(why.contains("has no line on a failed probe"), "{why}");
    let tree = Tree::new();
    tree.function("0x101d", Some("mlx5_core")).modules();
    let failed = "3,1,0,-;mlx5_core 0000:08:00.0: mlx5_ib_stage_init failed";
    let (link, why, _) = tree.file("dev/kmsg", failed).examine("auto");
    assert_eq!(link, Link::Driver);
    assert!(why.contains("mlx5_ib is loaded") && why.contains("mlx5_ib_stage_init"), "{why}");
}

#[test]
fn missing_rdma_device_names_devlink_and_namespaces() {
    let tree = Tree::new();
    tree.function("0x101d", Some("mlx5_core")).modules();
    let check = |last: &str| {
        let (link, why, _) = tree.examine("auto");
        assert_eq!(link, Link::Driver);
        for part in ["no RDMA device", "enable_rdma", "`rdma system`", ADDRESS, last] {
            assert!(why.contains(part), "{part}: {why}");
        }
        // PCI ids are mlx5_core's.
        assert!(!why.contains("modinfo") && !why.contains("/bind"), "{why}");
    };
    check("`dmesg | grep -e mlx5_ib -e infiniband`");
    tree.file("dev/kmsg", "6,1,0,-;something else");
    check("has no line on a failed probe");
}

#[test]
fn id_that_the_kernels_driver_does_not_know_fails_at_device() {
    let tree = Tree::new();
    let aliases = "alias pci:v000015B3d0000101Dsv*sd*bc*sc*i* mlx5_core\n\
                   alias pci:v000015B3d0000A2D6sv*sd*bc*sc*i* mlx5_core\n\
                   alias pci:v000015B3d0000A2DCsv*sd*bc*sc*i* another";
    tree.file("lib/modules/6.1.0-42-amd64/modules.alias", aliases);
    let (link, why, _) = tree.function("0xa2dc", None).modules().examine("auto");
    assert_eq!(link, Link::Device);
    for part in ["15b3:a2dc", "Linux 6.1.0-42-amd64 does not know", "DOCA-OFED"] {
        assert!(why.contains(part), "{part}: {why}");
    }
    // The same list, and a function that it has.
    let tree = Tree::new();
    tree.file("lib/modules/6.1.0-42-amd64/modules.alias", aliases);
    assert_eq!(tree.function("0xa2d6", None).modules().examine("auto").0, Link::Driver);
}

#[test]
fn function_of_another_driver_fails_at_device() {
    let tree = Tree::new();
    let (link, why, _) = tree.function("0x101d", Some("vfio-pci")).examine("mlx5_0");
    assert_eq!(link, Link::Device);
    assert!(why.contains("is bound to vfio-pci") && why.contains("mlx5_core/bind"), "{why}");
}

#[test]
fn unknown_name_fails_at_device_with_the_names_that_exist() {
    let tree = Tree::new();
    let (link, why, checks) = tree.device("4: ACTIVE").examine("mlx5_7");
    assert_eq!((link, checks.len()), (Link::Device, 3));
    assert!(why.contains("there is no device mlx5_7: this machine has mlx5_0;"), "{why}");
}

#[test]
fn missing_node_fails_at_node() {
    let tree = Tree::new();
    let (link, why, checks) = tree.device("4: ACTIVE").examine("auto");
    assert_eq!(link, Link::Node);
    assert!(why.contains("uverbs0 is missing") && why.contains("--device="), "{why}");
    let device =
        checks.iter().find(|check| check.link == Link::Device).expect("the device was checked");
    let text = "mlx5_0 at 0000:08:00.0 (15b3:101d, board MT_0000000359)";
    assert_eq!(device.finding, Finding::Holds(text.into()));
}

#[test]
fn dead_node_fails_at_node() {
    let tree = Tree::new();
    tree.device("4: ACTIVE").file("dev/infiniband/uverbs0", "");
    let host = Host::at(&tree.0).opening(|_| Err(io::Error::from_raw_os_error(libc::ENXIO)));
    let (link, why, _) = tree.examine_by("auto", &host);
    assert_eq!(link, Link::Node);
    assert!(why.contains("removed or is being reset"), "{why}");
}

#[test]
fn refused_node_fails_at_permission_with_its_mode_and_group() {
    let tree = Tree::new();
    tree.device("4: ACTIVE").file("dev/infiniband/uverbs0", "");
    let node = tree.0.join("dev/infiniband/uverbs0");
    let mode = |mode| fs::set_permissions(&node, fs::Permissions::from_mode(mode)).expect("ours");
    let gid = {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(&node).expect("the node exists").gid()
    };
    tree.file("etc/group", &format!("root:x:4000:\nrdma:x:{gid}:"));
    let refuse: fn(&Path) -> io::Result<fs::File> =
        |_| Err(io::Error::from_raw_os_error(libc::EACCES));
    let by = |uid, groups: &[u32]| {
        let host = Host::at(&tree.0).opening(refuse).with_user(uid, groups);
        let (link, why, _) = tree.examine_by("auto", &host);
        assert_eq!(link, Link::Permission, "{why}");
        why
    };
    mode(0o660);
    let why = by(1_000_000, &[1_000_000]);
    // The files of a test that a person runs belong to that person's group: it stays a number.
    let group = if gid < 1000 { "rdma".into() } else { gid.to_string() };
    for part in ["mode 0660", &format!(":{group}"), "uid 1000000"] {
        assert!(why.contains(part), "{part}: {why}");
    }
    assert!(by(1_000_000, &[gid]).contains("container or security module"));
    let why = by(0, &[0]);
    assert!(why.contains("container or security module") && why.contains("`rdma system`"), "{why}");
    mode(0o600);
    let why = by(1_000_000, &[gid]);
    assert!(why.contains("mode 0600") && why.contains("`chmod 666"), "{why}");
    assert!(why.contains("`grep -r uverbs /etc/udev /usr/lib/udev`"), "{why}");
}

#[test]
fn group_root_is_never_advised() {
    let refused = |gid| {
        let error = io::Error::from_raw_os_error(libc::EACCES);
        let host = Host::at("/nowhere").with_user(1000, &[1000]);
        host.refused("/dev/infiniband/uverbs0", &error, Some((0o660, 0, gid))).text().to_string()
    };
    assert!(refused(101).contains("`usermod -aG 101 USER`"), "{}", refused(101));
    assert!(!refused(0).contains("usermod") && refused(0).contains("chmod"), "{}", refused(0));
}

#[test]
fn permissions_name_system_accounts_alone() {
    let tree = Tree::new();
    tree.file("etc/passwd", "daemon:x:1:1::/:/bin/false\nada:x:1000:1000::/home/ada:/bin/sh");
    tree.file("etc/group", "rdma:x:999:\nada:x:1000:");
    let host = Host::at(&tree.0);
    assert_eq!(host.permissions(Some((0o660, 1, 999))), "mode 0660 of daemon:rdma");
    assert_eq!(host.permissions(Some((0o660, 1000, 1000))), "mode 0660 of 1000:1000");
}

#[test]
fn file_that_is_no_device_fails_at_devx() {
    let tree = Tree::new();
    tree.device("4: ACTIVE").file("dev/infiniband/uverbs0", "");
    let (link, why, checks) = tree.examine("auto");
    assert_eq!(link, Link::Devx);
    assert!(why.contains("GET_CONTEXT"), "{why}");
    let held: Vec<_> = checks.iter().map(|check| check.link).collect();
    let before = [Link::Kernel, Link::Driver, Link::Device, Link::Node, Link::Permission];
    assert_eq!(held[..5], before);
}

#[test]
fn auto_examines_a_device_whose_port_is_down() {
    let tree = Tree::new();
    tree.device("1: DOWN");
    assert_eq!(tree.examine("auto").0, Link::Node);
}

#[test]
fn auto_examines_the_device_with_a_gid_if_one_has_it() {
    let tree = Tree::new();
    tree.device("4: ACTIVE").add("mlx5_2", "uverbs1", "4: ACTIVE");
    tree.file(
        "sys/class/infiniband/mlx5_2/ports/1/gids/0",
        "fe80:0000:0000:0000:0200:00ff:fe00:0001",
    );
    let found = Host::at(&tree.0).kernel().enumerate().expect("two devices");
    let auto = |found: &[DeviceInfo]| wanted(found, "auto").map(|info| info.name.clone());
    assert_eq!(auto(&found).as_deref(), Some("mlx5_2"));
    assert_eq!(wanted(&found, "mlx5_0").map(|info| info.name.as_str()), Some("mlx5_0"));
    // Without any, an ACTIVE one says most.
    tree.file("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN");
    tree.file(
        "sys/class/infiniband/mlx5_2/ports/1/gids/0",
        "0000:0000:0000:0000:0000:0000:0000:0000",
    );
    let found = Host::at(&tree.0).kernel().enumerate().expect("two devices");
    assert_eq!(auto(&found).as_deref(), Some("mlx5_2"));
}

#[test]
fn modules_are_named_as_in_tree_or_the_vendors() {
    let tree = Tree::new();
    tree.device("4: ACTIVE").file("sys/module/mlx5_ib/version", "24.10-1.1.4");
    tree.file("sys/module/ib_uverbs/taint", "OE").file("sys/module/mlx5_core/version", "5.0-0");
    let checks = tree.examine("auto").2;
    let Finding::Holds(text) = &checks[1].finding else { panic!("{checks:?}") };
    let expected = "mlx5_core (in-tree 5.0-0, srcversion 0123ABCD), mlx5_ib (the vendor's \
                    24.10-1.1.4, srcversion 0123ABCD), ib_uverbs (the vendor's, srcversion \
                    0123ABCD)";
    assert_eq!(text, expected);
}

#[test]
fn old_kernel_is_a_note_unless_its_modules_are_the_vendors() {
    let tree = Tree::new();
    tree.device("4: ACTIVE").file("proc/sys/kernel/osrelease", "5.4.0-21-amd64");
    let kernel = |tree: &Tree| tree.examine("auto").2.remove(0).finding;
    assert!(
        matches!(kernel(&tree), Finding::Limited(text) if text.contains("older than the 5.10"))
    );
    tree.file("sys/module/mlx5_core/taint", "OE");
    assert!(matches!(kernel(&tree), Finding::Holds(_)));
    tree.file("proc/sys/kernel/osrelease", "6.12.1").file("sys/module/mlx5_core/taint", "");
    assert!(matches!(kernel(&tree), Finding::Holds(_)));
}

/// The chain on a model with a fault: the failed link and its sentence.
fn with_fault(fault: impl FnOnce(&Model)) -> (Link, String) {
    let lab = Lab::open(&choice("model")).unwrap_or_else(|Stop(why)| panic!("{why}"));
    fault(lab.model().unwrap_or_else(|Stop(why)| panic!("{why}")));
    let mut chain = Chain::default();
    assert!(device::check(&mut chain, &lab, &Host::new()).is_err(), "{}", chain.table());
    let (link, why) = chain.failure().expect("the chain has ended");
    (link, why.to_string())
}

fn refuse(opcode: Opcode, nth: u32) -> impl FnOnce(&Model) {
    move |model| model.fail_command(0, opcode, Times::from(nth), CommandStatus::LIM, 0x1234)
}

fn ioctl(name: &str, errno: i32) -> impl FnOnce(&Model) {
    move |model| model.fail_ioctl(0, Ioctl::named(name).expect("modelled"), 1, errno)
}

#[test]
fn every_link_of_the_device_fails_with_its_sentence() {
    type Make = Box<dyn FnOnce(&Model)>;
    let rows: Vec<(Make, Link, &[&str])> = vec![
        (Box::new(ioctl("GET_CONTEXT", libc::EINVAL)), Link::Devx, &["log_max_uctx is 0"]),
        (Box::new(ioctl("GET_CONTEXT", libc::EPERM)), Link::Permission, &["EPERM"]),
        (Box::new(refuse(Opcode::NOP, 1)), Link::Firmware, &["NOP", "LIM", "devlink health"]),
        (
            Box::new(|model| model.set_port(0, 1, false)),
            Link::Port,
            &["mlx5_0", "Ethernet, DOWN", "ip link set"],
        ),
        (Box::new(|model| model.set_port(1, 1, false)), Link::Port, &["the peer's", "mlx5_1"]),
        (Box::new(ioctl("ALLOC_PD", libc::ENOMEM)), Link::Pd, &["ENOMEM"]),
        (Box::new(refuse(Opcode::CREATE_MKEY, 1)), Link::SmallMr, &["CREATE_MKEY", "0x1234"]),
        (Box::new(refuse(Opcode::CREATE_MKEY, 2)), Link::LargeMr, &["CREATE_MKEY", "LIM"]),
        (Box::new(refuse(Opcode::CREATE_CQ, 1)), Link::Cq, &["CREATE_CQ", "0x1234"]),
        (Box::new(refuse(Opcode::CREATE_QP, 1)), Link::Qp, &["CREATE_QP", "log_max_qp"]),
        (Box::new(refuse(Opcode::RTR2RTS_QP, 1)), Link::Message, &["RTR2RTS_QP", "rdma statistic"]),
        (
            Box::new(|model| model.inject(0, Fault::LoseMessage, 0, u32::MAX)),
            Link::Message,
            &["to itself through port 1"],
        ),
        (
            Box::new(|model| model.inject(0, Fault::LoseDoorbell, 2, u32::MAX)),
            Link::Event,
            &["no event came within 3 s", "/proc/interrupts"],
        ),
        (Box::new(ioctl("DEVX_ASYNC_EVENT_FD_ALLOC", libc::EMFILE)), Link::Event, &["EMFILE"]),
    ];
    for (fault, expected, parts) in rows {
        let (link, why) = with_fault(fault);
        assert_eq!(link, expected, "{why}");
        for part in parts {
            assert!(why.contains(part), "{part}: {why}");
        }
    }
}

#[test]
fn message_without_completion_fails_at_message() {
    let (link, why) = with_fault(|model| model.inject(0, Fault::LoseCompletion, 0, u32::MAX));
    assert_eq!(link, Link::Message);
    assert!(why.contains("0 of 1 CQEs after 3 s"), "{why}");
}

#[test]
fn chain_holds_on_every_kind_of_model_within_two_seconds() {
    for (profile, link) in
        [("connectx6dx", "ethernet"), ("bluefield3", "infiniband"), ("connectx6vf", "ethernet")]
    {
        let choice = Choice { profile: profile.into(), link: Some(link.into()), ..choice("model") };
        let found = super::examine(&choice, &Host::new());
        let chain = found.unwrap_or_else(|Stop(why)| panic!("{profile}: {why}")).chain;
        assert_eq!(chain.failure(), None, "{profile}: {}", chain.table());
        let last = chain.checks.last().map(|check| check.link);
        assert_eq!(last, Some(Link::Event), "{profile}");
        let seconds: f64 = chain.checks.iter().map(|check| check.seconds).sum();
        assert!(seconds < 2.0, "{profile}: {seconds} s");
        let json = chain.json().expect("plain data");
        assert!(json.contains("\"holds\": true") && json.contains("\"large_mr\""), "{json}");
    }
}

#[test]
fn verdict_names_the_failed_link_once() {
    let mut chain = Chain::default();
    assert!(chain.check(Link::Kernel, || Finding::Limited("old".into())).is_ok());
    assert!(chain.check(Link::Port, || Finding::Fails("it is DOWN".into())).is_err());
    assert_eq!(chain.verdict(), "Doctor: port fails: it is DOWN");
    assert_eq!(chain.brief(), "Doctor: port fails: it is DOWN\n  kernel: old");
    assert_eq!(chain.failure(), Some((Link::Port, "it is DOWN")));
    let table = "note  kernel        old\nFAIL  port          it is DOWN\n";
    assert_eq!(chain.table(), table);
}

#[test]
fn memlock_is_judged_by_limit_and_privilege() {
    use host::{LOCKED_FOR_ALL, MIN_LOCKED, memlock};
    assert_eq!(memlock(u64::MAX, false), Finding::Holds("no limit".into()));
    assert!(matches!(memlock(0, true), Finding::Holds(text) if text.contains("CAP_IPC_LOCK")));
    let low = memlock(MIN_LOCKED - 1, false);
    assert!(matches!(&low, Finding::Fails(text) if text.contains("`ulimit -l")), "{low:?}");
    let some = memlock(MIN_LOCKED, false);
    assert!(matches!(&some, Finding::Limited(text) if text.contains("72 MiB")), "{some:?}");
    assert!(matches!(memlock(LOCKED_FOR_ALL, false), Finding::Holds(_)));
}
