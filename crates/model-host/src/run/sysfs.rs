//! The files of a device: sysfs attributes in the kernel's format, and nodes below /dev.
//!
//! Names and formats are those of Linux 6.12: `drivers/infiniband/core/{sysfs,uverbs_main}.c`,
//! mlx5's `main.c` and `counters.c`, and the PCI core's `pci-sysfs.c`. Port attributes come from
//! QUERY_PORT. Files are written once: counters stay 0.

use std::fmt::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::{fs, io};

use verbless_devx::{Backend, DeviceInfo, FunctionKind, RepresentorInfo};

use verbless_model::function::Function;
use verbless_model::{FunctionPlace, Link, Role};
use verbless_model_kernel::InProcess;
use verbless_model_kernel::remote::{FwctlFile, PortState, device_flags};

use super::node::Node;

/// PCI domain of the modelled functions; no machine has it.
const PCI_DOMAIN: &str = "fb0b";
/// Major and first minor number of uverbs devices.
pub(super) const MAJOR: u32 = 231;
pub(super) const FIRST_MINOR: u32 = 192;
/// Major number of fwctl devices, which Linux allocates dynamically.
const CONTROL_MAJOR: u32 = 240;
/// Lines of `resource`: BARs, ROM, bridge windows.
const RESOURCES: usize = 13;
/// `ib_uverbs_gid_type` of RoCE v2.
const ROCE_V2: u32 = 2;

/// Files of a port's `counters`.
const COUNTERS: [&str; 21] = [
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_discards",
    "port_xmit_constraint_errors",
    "port_rcv_constraint_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "VL15_dropped",
    "port_xmit_data",
    "port_rcv_data",
    "port_xmit_packets",
    "port_rcv_packets",
    "port_xmit_wait",
    "unicast_rcv_packets",
    "unicast_xmit_packets",
    "multicast_rcv_packets",
    "multicast_xmit_packets",
];
/// Files of a port's `hw_counters` on every mlx5 device.
const HARDWARE_COUNTERS: [&str; 5] = [
    "rx_write_requests",
    "rx_read_requests",
    "rx_atomic_requests",
    "rx_dct_connect",
    "out_of_buffer",
];
/// With the capability `out_of_seq_cnt`.
const SEQUENCE_COUNTERS: [&str; 1] = ["out_of_sequence"];
/// With the capability `retransmission_q_counters`.
const RETRANSMISSION_COUNTERS: [&str; 5] = [
    "duplicate_request",
    "rnr_nak_retry_err",
    "packet_seq_err",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
];

/// A device as programs see it.
#[derive(Debug)]
pub(super) struct ShownDevice {
    /// The device's number in the model.
    pub number: usize,
    pub info: DeviceInfo,
    /// `ib_uverbs_device_cap_flags`.
    pub flags: u64,
    /// Ports, from 1 on.
    pub ports: Vec<PortState>,
    /// Paths of the device's files.
    paths: DevicePaths,
    /// Number of its control file (`fwctlN`), if it has one.
    pub control: Option<usize>,
    /// Representors of other functions on its e-switch.
    representors: Vec<RepresentorInfo>,
    /// Entries of each port's GID table and P_Key table.
    gids: u32,
    pkeys: u32,
    pub counters: Vec<&'static str>,
    /// The PCI configuration space.
    config: Box<[u8]>,
}

/// Paths of a device's files.
#[derive(Debug)]
struct DevicePaths {
    /// The PCI function: its bus, and its address.
    root: String,
    slot: String,
    /// Directory name of a sub-function below its PCI function.
    sub: Option<String>,
    on_card: FunctionPlace,
}

impl DevicePaths {
    /// The paths of device `number`; picks a PCI address if it has none.
    fn new(number: usize, on_card: FunctionPlace) -> Self {
        let address = match &on_card.address {
            Some(address) => address.clone(),
            None => format!("00:{:02x}.0", number + 1),
        };
        let bus = address.split(':').next().unwrap_or_default();
        let is_sub = on_card.role == Role::Sf;
        Self {
            root: format!("pci{PCI_DOMAIN}:{bus}"),
            slot: format!("{PCI_DOMAIN}:{address}"),
            sub: is_sub.then(|| format!("mlx5_core.sf.{number}")),
            on_card,
        }
    }

    /// The PCI function's directory, below /sys/devices.
    fn function(&self) -> String {
        format!("{}/{}", self.root, self.slot)
    }

    /// The device's directory, below /sys/devices.
    fn device(&self) -> String {
        self.function() + &self.sub.as_ref().map_or(String::new(), |sub| format!("/{sub}"))
    }

    /// The last component of [`Self::device`].
    fn leaf(&self) -> &str {
        self.sub.as_deref().unwrap_or(&self.slot)
    }

    /// The relative path to /sys from a directory `below` levels below the device's.
    fn up(&self, below: usize) -> String {
        "../".repeat(3 + usize::from(self.sub.is_some()) + below)
    }
}

/// The devices of a backend.
pub(super) fn shown(backend: &InProcess) -> Vec<ShownDevice> {
    let infos = backend.enumerate().unwrap_or_default();
    let mut controls = 0..;
    let shown = |(number, (info, device)): (usize, (DeviceInfo, &Function))| {
        let ports = (1..).map_while(|number| backend.port(device.number(), number)).collect();
        let caps = device.capabilities();
        let pkeys = match device.profile().link() {
            Link::Infiniband => device.pkey_table_length(),
            Link::Ethernet => 1,
        };
        let mut counters = HARDWARE_COUNTERS.to_vec();
        if caps.out_of_seq_cnt() {
            counters.extend(SEQUENCE_COUNTERS);
        }
        if caps.retransmission_q_counters() {
            counters.extend(RETRANSMISSION_COUNTERS);
        }
        let (flags, gids) = (device_flags(&caps), device.gid_table_length());
        let paths = DevicePaths::new(number, device.on_card());
        let representors = backend.represented(device.number());
        let control = FwctlFile::is_offered(device).then(|| controls.next()).flatten();
        let config = crate::pci::config::ConfigSpace::image(&device.profile());
        let number = device.number();
        ShownDevice {
            number,
            info,
            flags,
            ports,
            paths,
            control,
            representors,
            gids,
            pkeys,
            counters,
            config,
        }
    };
    infos.into_iter().zip(backend.shown()).enumerate().map(shown).collect()
}

/// Writes files below a directory that stands for `/`.
struct Writer<'a>(&'a Path);

impl Writer<'_> {
    fn directory(&self, at: &str) -> io::Result<()> {
        fs::create_dir_all(self.0.join(at))
    }

    /// Writes a text file.
    fn file(&self, at: &str, text: &str) -> io::Result<()> {
        let path = self.0.join(at);
        fs::create_dir_all(path.parent().unwrap_or(self.0))?;
        fs::write(path, format!("{text}\n"))
    }

    fn link(&self, at: &str, to: &str) -> io::Result<()> {
        let path = self.0.join(at);
        fs::create_dir_all(path.parent().unwrap_or(self.0))?;
        symlink(to, path)
    }
}

/// Writes all files below `root`.
pub(super) fn fill(root: &Path, devices: &[ShownDevice]) -> io::Result<()> {
    let to = Writer(root);
    for place in [
        "sys/class/infiniband",
        "sys/class/fwctl",
        "sys/bus/pci/devices",
        "sys/bus/pci/drivers/mlx5_core",
        "dev/infiniband",
        "dev/fwctl",
    ] {
        to.directory(place)?;
    }
    to.file("sys/class/infiniband_verbs/abi_version", "6")?;
    to.file("sys/module/mlx5_core/initstate", "live")?;
    to.file("sys/module/mlx5_core/refcnt", "0")?;
    let driver = "sys/bus/pci/drivers/mlx5_core";
    to.link("sys/module/mlx5_core/drivers/pci:mlx5_core", &format!("../../../../{driver}"))?;
    to.link(&format!("{driver}/module"), "../../../../module/mlx5_core")?;
    functions_of_the_machine(&to)?;
    for (number, device) in devices.iter().enumerate() {
        match device.paths.sub {
            Some(_) => sub_function(&to, device)?,
            None => pci_function(&to, device)?,
        }
        rdma_device(&to, device)?;
        verbs_device(&to, FIRST_MINOR + number as u32, device)?;
        fwctl_device(&to, device)?;
        representors(&to, device)?;
    }
    virtual_functions(&to, devices)
}

/// Writes the files of a sub-function, an auxiliary device below its PCI function.
fn sub_function(to: &Writer<'_>, device: &ShownDevice) -> io::Result<()> {
    let paths = &device.paths;
    let at = format!("sys/devices/{}", paths.device());
    to.link(
        &format!("{at}/driver"),
        &format!("{}bus/auxiliary/drivers/mlx5_core.sf", paths.up(0)),
    )?;
    to.link(&format!("{at}/subsystem"), &format!("{}bus/auxiliary", paths.up(0)))?;
    to.file(&format!("{at}/sfnum"), &paths.on_card.number.unwrap_or_default().to_string())?;
    to.file(&format!("{at}/modalias"), "auxiliary:mlx5_core.sf")?;
    to.file(&format!("{at}/uevent"), "DRIVER=mlx5_core.sf\nMODALIAS=auxiliary:mlx5_core.sf")
}

/// Writes the links between a VF and its PF.
fn virtual_functions(to: &Writer<'_>, devices: &[ShownDevice]) -> io::Result<()> {
    let of = |role| devices.iter().map(|it| &it.paths).filter(move |it| it.on_card.role == role);
    for own in of(Role::Vf) {
        let is_parent = |it: &&DevicePaths| it.on_card.pf == own.on_card.pf && it.root == own.root;
        let Some(parent) = of(Role::Pf).find(is_parent) else { continue };
        let number = own.on_card.number.unwrap_or_default();
        let [own_at, parent_at] = [own, parent].map(|it| format!("sys/devices/{}", it.function()));
        to.link(&format!("{own_at}/physfn"), &format!("../{}", parent.slot))?;
        to.link(&format!("{parent_at}/virtfn{number}"), &format!("../{}", own.slot))?;
    }
    Ok(())
}

/// Writes the netdevs of the representors on a PF's e-switch, and of its uplink. They carry no
/// packets. `represents` is not in Linux's sysfs.
fn representors(to: &Writer<'_>, device: &ShownDevice) -> io::Result<()> {
    let Some(first) = device.representors.first() else { return Ok(()) };
    let net = format!("sys/devices/{}/net", device.paths.function());
    let uplink = format!("p{}", device.paths.on_card.pf);
    let netdev = |name: &str, port: &str, switch: &str| {
        to.file(&format!("{net}/{name}/phys_port_name"), port)?;
        to.file(&format!("{net}/{name}/phys_switch_id"), switch)?;
        to.link(&format!("{net}/{name}/device"), &format!("../../../{}", device.paths.slot))
    };
    netdev(&uplink, &uplink, &first.switch_id)?;
    for it in &device.representors {
        let (pf, number) = (it.pf, it.number.unwrap_or_default());
        let controller = if it.external { "c1" } else { "" };
        let port = match it.function {
            FunctionKind::Physical => format!("{controller}pf{pf}"),
            FunctionKind::Virtual => format!("{controller}pf{pf}vf{number}"),
            FunctionKind::Sub => format!("{controller}pf{pf}sf{number}"),
        };
        netdev(&it.name, &port, &it.switch_id)?;
        let represents = format!("{net}/{}/represents", it.name);
        if let Some(address) = &it.pci_address {
            let address = address.split_once(':').map_or("", |(_, address)| address);
            to.file(&format!("{represents}/pci_address"), &format!("{PCI_DOMAIN}:{address}"))?;
        }
        if let Some(vuid) = &it.vuid {
            to.file(&format!("{represents}/vuid"), vuid)?;
        }
    }
    Ok(())
}

/// Lists the machine's own PCI functions. The symlinks dangle in the tree: their paths are the
/// kernel's.
fn functions_of_the_machine(to: &Writer<'_>) -> io::Result<()> {
    for entry in fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten() {
        let (Ok(name), Ok(link)) = (entry.file_name().into_string(), fs::read_link(entry.path()))
        else {
            continue;
        };
        // Inside another run, its functions are not the machine's.
        if let Some(link) = link.to_str().filter(|_| !name.starts_with(PCI_DOMAIN)) {
            to.link(&format!("sys/bus/pci/devices/{name}"), link)?;
        }
    }
    Ok(())
}

/// Writes the files of the PCI function.
fn pci_function(to: &Writer<'_>, device: &ShownDevice) -> io::Result<()> {
    let (pci, slot) = (format!("sys/devices/{}", device.paths.function()), &device.paths.slot);
    let link = format!("../../../devices/{}", device.paths.function());
    to.link(&format!("sys/bus/pci/devices/{slot}"), &link)?;
    to.link(&format!("{pci}/driver"), "../../../bus/pci/drivers/mlx5_core")?;
    let of_driver = format!("../../../../devices/{}", device.paths.function());
    to.link(&format!("sys/bus/pci/drivers/mlx5_core/{slot}"), &of_driver)?;
    to.link(&format!("{pci}/subsystem"), "../../../bus/pci")?;
    let (vendor, id) = (device.info.vendor_id, device.info.device_id);
    let ethernet = device.ports.first().is_some_and(|port| port.ethernet);
    // PCI class 0x02, network controller: Ethernet, InfiniBand.
    let kind = if ethernet { 0x00 } else { 0x07 };
    let modalias = format!("pci:v{vendor:08X}d{id:08X}sv{vendor:08X}sd00000001bc02sc{kind:02x}i00");
    let (cpus, list) = online();
    for (at, text) in [
        ("vendor", format!("{vendor:#06x}")),
        ("device", format!("{id:#06x}")),
        ("subsystem_vendor", format!("{vendor:#06x}")),
        ("subsystem_device", "0x0001".into()),
        ("class", format!("{:#08x}", 0x02_0000 | kind << 8)),
        ("revision", "0x00".into()),
        ("enable", "1".into()),
        // No INTx.
        ("irq", "0".into()),
        // No NUMA affinity; all CPUs are local.
        ("numa_node", "-1".into()),
        ("local_cpus", cpus),
        ("local_cpulist", list),
        // No BAR can be mapped.
        ("resource", [&*format!("{0:#018x} {0:#018x} {0:#018x}", 0); RESOURCES].join("\n")),
        ("modalias", modalias.clone()),
        (
            "uevent",
            format!(
                "DRIVER=mlx5_core\nPCI_CLASS={:X}\nPCI_ID={vendor:04X}:{id:04X}\n\
                 PCI_SUBSYS_ID={vendor:04X}:0001\nPCI_SLOT_NAME={slot}\nMODALIAS={modalias}",
                0x2_0000 | kind << 8
            ),
        ),
    ] {
        to.file(&format!("{pci}/{at}"), &text)?;
    }
    fs::write(to.0.join(format!("{pci}/config")), &device.config)
}

/// Writes the files of the RDMA device and its ports.
fn rdma_device(to: &Writer<'_>, device: &ShownDevice) -> io::Result<()> {
    let (paths, info) = (&device.paths, &device.info);
    let name = &info.name;
    let rdma = format!("sys/devices/{}/infiniband/{name}", paths.device());
    for (at, text) in [
        ("node_type", "1: CA".into()),
        ("fw_ver", info.firmware.clone()),
        ("hw_rev", "0".into()),
        ("hca_type", format!("MT{}", info.device_id)),
        ("board_id", info.board_id.clone()),
        ("node_desc", format!("verbless model {name}")),
        ("node_guid", words(info.node_guid.to_be_bytes())),
        ("sys_image_guid", words(info.system_image_guid.to_be_bytes())),
        ("uevent", format!("NAME={name}")),
    ] {
        to.file(&format!("{rdma}/{at}"), &text)?;
    }
    to.link(&format!("{rdma}/device"), &format!("../../../{}", paths.leaf()))?;
    to.link(&format!("{rdma}/subsystem"), &format!("{}class/infiniband", paths.up(2)))?;
    to.link(
        &format!("sys/class/infiniband/{name}"),
        &format!("../../devices/{}/infiniband/{name}", paths.device()),
    )?;
    for (number, port) in (1..).zip(&device.ports) {
        port_files(to, &format!("{rdma}/ports/{number}"), device, port)?;
    }
    Ok(())
}

fn port_files(
    to: &Writer<'_>,
    at: &str,
    device: &ShownDevice,
    state: &PortState,
) -> io::Result<()> {
    let (logical, physical) =
        if state.active { ("4: ACTIVE", "5: LinkUp") } else { ("1: DOWN", "3: Disabled") };
    for (name, text) in [
        ("state", logical.into()),
        ("phys_state", physical.into()),
        ("link_layer", if state.ethernet { "Ethernet" } else { "InfiniBand" }.into()),
        ("lid", format!("{:#x}", state.lid)),
        ("lid_mask_count", state.lmc.to_string()),
        ("sm_lid", format!("{:#x}", state.sm_lid)),
        ("sm_sl", state.sm_sl.to_string()),
        ("cap_mask", format!("{:#010x}", state.flags())),
        ("rate", rate(state)),
    ] {
        to.file(&format!("{at}/{name}"), &text)?;
    }
    for index in 0..device.gids {
        let entry = state.gids.iter().find(|entry| entry.index == index);
        to.file(&format!("{at}/gids/{index}"), &words(entry.map_or([0; 16], |it| it.gid)))?;
        if let Some(entry) = entry {
            let kind = if entry.kind == ROCE_V2 { "RoCE v2" } else { "IB/RoCE v1" };
            to.file(&format!("{at}/gid_attrs/types/{index}"), kind)?;
        }
    }
    to.directory(&format!("{at}/gid_attrs/types"))?;
    // No port has a netdev.
    to.directory(&format!("{at}/gid_attrs/ndevs"))?;
    for index in 0..device.pkeys {
        let key = if index == 0 { "0xffff" } else { "0x0000" };
        to.file(&format!("{at}/pkeys/{index}"), key)?;
    }
    for counter in COUNTERS {
        to.file(&format!("{at}/counters/{counter}"), "0")?;
    }
    to.file(&format!("{at}/hw_counters/lifespan"), "10")?;
    for counter in &device.counters {
        to.file(&format!("{at}/hw_counters/{counter}"), "0")?;
    }
    Ok(())
}

/// Writes the files of the device as a verbs device.
fn verbs_device(to: &Writer<'_>, minor: u32, device: &ShownDevice) -> io::Result<()> {
    let (paths, node) = (&device.paths, &device.info.node);
    let verbs = format!("sys/devices/{}/infiniband_verbs/{node}", paths.device());
    to.file(&format!("{verbs}/ibdev"), &device.info.name)?;
    to.file(&format!("{verbs}/dev"), &format!("{MAJOR}:{minor}"))?;
    to.file(&format!("{verbs}/abi_version"), "1")?;
    let event = format!("MAJOR={MAJOR}\nMINOR={minor}\nDEVNAME=infiniband/{node}\nDEVMODE=0666");
    to.file(&format!("{verbs}/uevent"), &event)?;
    to.link(&format!("{verbs}/device"), &format!("../../../{}", paths.leaf()))?;
    to.link(&format!("{verbs}/subsystem"), &format!("{}class/infiniband_verbs", paths.up(2)))?;
    to.link(
        &format!("sys/class/infiniband_verbs/{node}"),
        &format!("../../devices/{}/infiniband_verbs/{node}", paths.device()),
    )?;
    fs::write(to.0.join(format!("dev/infiniband/{node}")), "")
}

/// Writes the files of the function's fwctl device.
fn fwctl_device(to: &Writer<'_>, device: &ShownDevice) -> io::Result<()> {
    let Some(number) = device.control else { return Ok(()) };
    let (paths, node) = (&device.paths, Node::Fwctl(number));
    let name = node.name();
    let at = format!("sys/devices/{}/fwctl/{name}", paths.device());
    let (major, minor) = numbers(node);
    to.file(&format!("{at}/dev"), &format!("{major}:{minor}"))?;
    let event = format!("MAJOR={major}\nMINOR={minor}\nDEVNAME=fwctl/{name}");
    to.file(&format!("{at}/uevent"), &event)?;
    to.link(&format!("{at}/device"), &format!("../../../{}", paths.leaf()))?;
    to.link(&format!("{at}/subsystem"), &format!("{}class/fwctl", paths.up(2)))?;
    to.link(
        &format!("sys/class/fwctl/{name}"),
        &format!("../../devices/{}/fwctl/{name}", paths.device()),
    )?;
    fs::write(to.0.join(format!("dev/fwctl/{name}")), "")
}

/// Major and minor number of a node.
pub(super) fn numbers(node: Node) -> (u32, u32) {
    match node {
        Node::Verbs(number) => (MAJOR, FIRST_MINOR + number as u32),
        Node::Fwctl(number) => (CONTROL_MAJOR, number as u32),
    }
}

/// Width and speed from InfiniBand's codes, in the kernel's format.
fn rate(port: &PortState) -> String {
    let (speed, tenths) = match port.speed {
        2 => ("DDR", 50),
        4 => ("QDR", 100),
        8 => ("FDR10", 100),
        16 => ("FDR", 140),
        32 => ("EDR", 250),
        64 => ("HDR", 500),
        128 => ("NDR", 1000),
        256 => ("XDR", 2000),
        _ => ("SDR", 25),
    };
    let width = match port.width {
        1 => 1,
        16 => 2,
        2 => 4,
        4 => 8,
        8 => 12,
        _ => 0,
    };
    let all: u32 = tenths * width;
    let half = if all.is_multiple_of(10) { "" } else { ".5" };
    format!("{}{half} Gb/sec ({width}X {speed})", all / 10)
}

/// The online CPUs: as a mask in 32-bit words, and as the machine's own list.
fn online() -> (String, String) {
    let list = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let list = if list.trim().is_empty() { "0" } else { list.trim() };
    (mask(list), list.to_string())
}

fn mask(list: &str) -> String {
    let mut words = vec![0u32];
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else {
            continue;
        };
        for cpu in first..=last.min(first + 0xffff) {
            if words.len() <= cpu / 32 {
                words.resize(cpu / 32 + 1, 0);
            }
            words[cpu / 32] |= 1 << (cpu % 32);
        }
    }
    let words: Vec<_> = words.iter().rev().map(|word| format!("{word:08x}")).collect();
    words.join(",")
}

/// Formats GUIDs and GIDs as the kernel does: groups of four digits.
fn words<const N: usize>(bytes: [u8; N]) -> String {
    let mut text = String::new();
    for (index, pair) in bytes.chunks(2).enumerate() {
        let colon = if index == 0 { "" } else { ":" };
        let _ = write!(text, "{colon}{:02x}{:02x}", pair[0], pair[1]);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::directory::Directory;
    use super::*;
    use verbless_model::{Model, Profile, Side};

    /// The root of the tree.
    fn root(directory: &Directory) -> &Path {
        directory.path().expect("a temporary one")
    }

    #[test]
    fn port_rate_text_matches_kernel() {
        let model = Model::builder().device(Profile::load("bluefield3").expect("one")).build();
        let port = InProcess::of(&model).port(0, 1).expect("it has a port");
        let with = |width, speed| rate(&PortState { width, speed, ..port.clone() });
        assert_eq!(with(2, 64), "200 Gb/sec (4X HDR)");
        assert_eq!(with(1, 1), "2.5 Gb/sec (1X SDR)");
        assert_eq!(with(16, 32), "50 Gb/sec (2X EDR)");
        for (speed, expected) in [
            (2, "20 Gb/sec (4X DDR)"),
            (4, "40 Gb/sec (4X QDR)"),
            (8, "40 Gb/sec (4X FDR10)"),
            (16, "56 Gb/sec (4X FDR)"),
            (32, "100 Gb/sec (4X EDR)"),
            (128, "400 Gb/sec (4X NDR)"),
            (256, "800 Gb/sec (4X XDR)"),
        ] {
            assert_eq!(with(2, speed), expected);
        }
        for (width, expected) in [(4, "80 Gb/sec (8X QDR)"), (8, "120 Gb/sec (12X QDR)")] {
            assert_eq!(with(width, 4), expected);
        }
        assert_eq!(with(1, 16), "14 Gb/sec (1X FDR)");
    }

    /// The files of one side of a card with all its functions.
    fn files(side: Side, link: Link) -> Directory {
        let profile = Profile::load("bluefield3").expect("a profile").with_link(link);
        let model = Model::builder().device_with_topology(profile).build();
        let devices = shown(&InProcess::of(&model).on_side(side));
        Directory::create_temporary(|path| fill(path, &devices)).expect("a directory")
    }

    /// The listing of PCI functions.
    fn listing(directory: &Directory) -> PathBuf {
        root(directory).join("sys/bus/pci/devices")
    }

    /// Collects every symlink below a directory.
    fn links(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).expect("a directory").flatten() {
            let kind = entry.file_type().expect("the path exists");
            if kind.is_symlink() {
                found.push(entry.path());
            } else if kind.is_dir() {
                links(&entry.path(), found);
            }
        }
    }

    #[test]
    fn sysfs_links_resolve_within_tree() {
        for side in [Side::Host, Side::Dpu] {
            let directory = files(side, Link::Infiniband);
            let mut found = Vec::new();
            links(root(&directory), &mut found);
            assert!(found.len() > 20);
            for link in found {
                let target = fs::read_link(&link).expect("a link");
                let target = target.to_string_lossy();
                if !target.contains(PCI_DOMAIN) && link.starts_with(listing(&directory)) {
                    assert!(!link.exists(), "the machine's own are the kernel's");
                    continue;
                }
                // The auxiliary bus has no files.
                if !target.contains("bus/auxiliary") {
                    assert!(link.exists(), "{} -> {target}", link.display());
                    continue;
                }
                let parents = target.matches("../").count();
                let below = link.strip_prefix(root(&directory)).expect("within").components();
                assert_eq!(below.count() - 2, parents, "{} -> {target}", link.display());
            }
        }
    }

    #[test]
    fn vf_and_pf_link_each_other() {
        let directory = files(Side::Host, Link::Infiniband);
        let at = |path: &str| fs::canonicalize(root(&directory).join(path)).ok();
        let device = |number: usize| at(&format!("sys/class/infiniband/mlx5_{number}/device"));
        let link = |number: usize, name: &str| {
            at(&format!("sys/class/infiniband/mlx5_{number}/device/{name}"))
        };
        let all: Vec<_> = (0..5).map(|number| device(number).expect("a function")).collect();
        // Two PFs: two VFs of the first, one of the second.
        for (parent, number, child) in [(0, 0, 2), (0, 1, 3), (1, 0, 4)] {
            assert_eq!(link(child, "physfn").as_ref(), Some(&all[parent]));
            assert_eq!(link(parent, &format!("virtfn{number}")).as_ref(), Some(&all[child]));
        }
        assert_eq!([link(0, "physfn"), link(0, "virtfn2"), link(1, "virtfn1")], [None, None, None]);
    }

    #[test]
    fn representor_reports_port_switch_and_function() {
        let directory = files(Side::Dpu, Link::Ethernet);
        let text = |path: &str| {
            let net = root(&directory).join("sys/class/infiniband/mlx5_0/device/net");
            fs::read_to_string(net.join(path)).map(|text| text.trim_end().to_string()).ok()
        };
        assert_eq!(text("p0/phys_port_name").as_deref(), Some("p0"));
        assert_eq!(text("pf0hpf/phys_port_name").as_deref(), Some("c1pf0"));
        assert_eq!(text("pf0vf1/phys_port_name").as_deref(), Some("c1pf0vf1"));
        assert!(text("p0/phys_switch_id").is_some_and(|id| !id.is_empty()));
        assert_eq!(text("p0/phys_switch_id"), text("pf0vf1/phys_switch_id"));
        let address = text("pf0vf0/represents/pci_address");
        assert!(address.is_some_and(|it| it.starts_with("fb0b:")));
    }

    #[test]
    fn port_lists_gids_gid_types_and_pkeys() {
        for (link, kinds) in
            [(Link::Infiniband, ["IB/RoCE v1"; 1].to_vec()), (Link::Ethernet, vec![])]
        {
            let directory = files(Side::Host, link);
            let port = root(&directory).join("sys/class/infiniband/mlx5_0/ports/1");
            let text = |path: String| {
                fs::read_to_string(port.join(path)).map(|text| text.trim_end().to_string()).ok()
            };
            let gid = |index: usize| text(format!("gids/{index}")).unwrap_or_default();
            assert!(gid(0).starts_with("fe80:0000:0000:0000:"), "{}", gid(0));
            assert_eq!((gid(0).len(), &*gid(3)), (39, "0000:0000:0000:0000:0000:0000:0000:0000"));
            let types: Vec<_> =
                (0..9).map_while(|index| text(format!("gid_attrs/types/{index}"))).collect();
            match link {
                Link::Infiniband => assert_eq!(types, kinds),
                Link::Ethernet => assert_eq!(types, ["IB/RoCE v1", "RoCE v2"]),
            }
            assert!(port.join("gid_attrs/ndevs").is_dir());
            assert_eq!(text("pkeys/0".into()).as_deref(), Some("0xffff"));
            let second = (link == Link::Infiniband).then_some("0x0000");
            assert_eq!(text("pkeys/1".into()).as_deref(), second);
        }
    }

    #[test]
    fn local_cpus_are_online_cpus() {
        let directory = files(Side::Host, Link::Infiniband);
        let text = |path: &Path| fs::read_to_string(path).expect("text").trim().to_string();
        let function = root(&directory).join("sys/class/infiniband/mlx5_0/device");
        let list = text(&function.join("local_cpulist"));
        assert_eq!(list, text("/sys/devices/system/cpu/online".as_ref()));
        assert_eq!(text(&function.join("local_cpus")), mask(&list));
    }

    #[test]
    fn cpu_list_equals_mask() {
        assert_eq!(mask("0-1"), "00000003");
        assert_eq!(mask("0,2-3,33"), "00000002,0000000d");
        assert_eq!(mask(""), "00000000");
    }
}
