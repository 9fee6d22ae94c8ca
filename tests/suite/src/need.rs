//! The needs of cases. Only this module decides whether a case is skipped: a case declares its
//! needs, and [`Facts`] has the available features.

use std::fmt;

use nix::sys::resource::{Resource, getrlimit};
use verbless_command::{CapMode, CapPage, Caps, Device, DpaEuPartitionAttr};
use verbless_devx::{Backend, DeviceInfo, Errno, GidType, LinkLayer, UarKind};
use verbless_prm::{FlowTableCap, FlowTablePropLayout, PortType, RoceCap};
use verbless_queue::{CqConfig, Domain, QpConfig};

use crate::Stop;

/// A field of `hca_cap` that is set (`cap!(uc)`), not set (`cap!(!uc)`), or at least so large
/// (`cap!(max_indirection >= 2)`); of `hca_cap_2` with `cap!(hca_cap_2.query_vuid)`.
macro_rules! cap {
    (! $field:ident) => {
        $crate::Need::Cap(concat!("!hca_cap.", stringify!($field)), |caps| {
            !$crate::need::IsSet::is_set(&caps.general.$field())
        })
    };
    (hca_cap_2.$field:ident) => {
        $crate::Need::Cap(concat!("hca_cap_2.", stringify!($field)), |caps| {
            let page = caps.general_2.as_ref();
            page.is_some_and(|page| $crate::need::IsSet::is_set(&page.$field()))
        })
    };
    ($field:ident >= $min:literal) => {
        $crate::Need::Cap(concat!("hca_cap.", stringify!($field), " >= ", $min), |caps| {
            caps.general.$field() >= $min
        })
    };
    ($field:ident) => {
        $crate::Need::Cap(concat!("hca_cap.", stringify!($field)), |caps| {
            $crate::need::IsSet::is_set(&caps.general.$field())
        })
    };
}
pub(crate) use cap;

/// A capability by its page and name, its reader, and the least value with which all cases that
/// need the capability can run.
type MinCap = (&'static str, fn(&Caps) -> u32, u32);

/// The sizes that all cases assume. Every known card has more.
const ASSUMED_SIZES: [MinCap; 12] = [
    ("hca_cap.log_max_cq_sz", |caps| caps.general.log_max_cq_sz().into(), 16),
    ("hca_cap.log_max_qp", |caps| caps.general.log_max_qp().into(), 12),
    ("hca_cap.log_max_qp_sz", |caps| caps.general.log_max_qp_sz().into(), 10),
    ("hca_cap.log_max_srq_sz", |caps| caps.general.log_max_srq_sz().into(), 8),
    ("hca_cap.log_max_pd", |caps| caps.general.log_max_pd().into(), 6),
    ("hca_cap.log_max_transport_domain", |caps| caps.general.log_max_transport_domain().into(), 4),
    ("hca_cap.max_qp_cnt", |caps| caps.general.max_qp_cnt().into(), 4),
    ("hca_cap.log_max_msg", |caps| caps.general.log_max_msg().into(), 24),
    ("hca_cap.log_max_ra_req_qp", |caps| caps.general.log_max_ra_req_qp().into(), 4),
    ("hca_cap.log_max_ra_res_qp", |caps| caps.general.log_max_ra_res_qp().into(), 4),
    ("hca_cap.max_indirection", |caps| caps.general.max_indirection().into(), 1),
    ("hca_cap.log_max_klm_list_size", |caps| caps.general.log_max_klm_list_size().into(), 4),
];

/// The sizes that cases on Ethernet ports assume as well: Linux's source ports
/// (`rdma_flow_label_to_udp_sport`) go up to this.
const ASSUMED_OF_ROCE: [MinCap; 1] =
    [("roce_cap.r_roce_max_src_udp_port", |caps| max_source_port(caps.roce.as_deref()), 0xffff)];

/// The sizes that cases of frames assume as well.
const ASSUMED_OF_FRAMES: [MinCap; 2] = [
    ("hca_cap.log_max_wq_sz", |caps| caps.general.log_max_wq_sz().into(), 10),
    ("hca_cap.log_max_stride_sz_rq", |caps| caps.general.log_max_stride_sz_rq().into(), 6),
];

fn max_source_port(page: Option<&RoceCap>) -> u32 {
    page.map_or(0xffff, |page| page.r_roce_max_src_udp_port().into())
}

/// Name, field and minimum of a capability of NIC receive tables, for devices that have such
/// tables.
type MinTableCap = (&'static str, fn(&FlowTablePropLayout) -> u32, u32);

/// The sizes of tables that Linux needs for the rules of cases: each priority has a table of 2^16
/// entries, at a level of its own.
const ASSUMED_TABLES: [MinTableCap; 4] = [
    ("log_max_ft_size", |tables| tables.log_max_ft_size().into(), 16),
    ("max_ft_level", |tables| tables.max_ft_level().into(), 17),
    ("log_max_ft_num", |tables| tables.log_max_ft_num().into(), 5),
    ("log_max_destination", |tables| tables.log_max_destination().into(), 1),
];

/// Something that a case needs.
#[derive(Clone, Copy)]
pub enum Need {
    /// A capability of every device of the case, by its name in prm, and its reader.
    Cap(&'static str, fn(&Caps) -> bool),
    /// The registers of every device are accessible by at least one path.
    Registers,
    /// The registers are accessible by both paths.
    BothRegisterWays,
    /// Port 1 is of this kind.
    Link(LinkLayer),
    /// Port 1 requires a GRH in every packet (port flag GRH_REQUIRED).
    GrhRequired,
    /// The MTU of port 1 is below the largest of mlx5 (4096 bytes).
    ShortMtu,
    /// Port 1 has a GID of this kind.
    Gid(GidType),
    /// An entry of the GID table of port 1 is unused.
    FreeGid,
    /// The ports of the device are bonded.
    Bond,
    /// The ports are not bonded.
    NoBond,
    /// Two devices on one fabric.
    Peer,
    /// The two devices are the host's function of a DPU and the DPU's own, and the kernel knows the
    /// DPU as one.
    Sides,
    /// The device forces loopback of a reliable connected queue pair (`fl_rc_qp_when_roce_enabled`
    /// or `fl_rc_qp_when_roce_disabled`).
    Loopback,
    /// A device that manages a switch, and representors there. A kernel has them if it runs on a
    /// DPU, was built with CONFIG_MLX5_ESWITCH (and CONFIG_MLX5_SF for sub-functions), and
    /// `devlink` has put the device into switchdev mode.
    Representors,
    /// The model in this process: the case inspects it or makes it fail.
    Model,
    /// The device identifies itself as the model, in this process or behind a kernel: the case
    /// expects behaviour that only the model is known to have.
    ModelDevice,
    /// The driver may make objects of the DPA: only on the model, as the hardware's layouts are not
    /// published.
    DpaLayouts,
    /// The case may change more than its own objects: the device is the model, or the run allows
    /// it.
    Destructive,
    /// One of the devices may make partitions of the DPA's EUs. On hardware the suite tries this
    /// only if the run may change the card.
    DpaPartitions,
    /// The device has BlueFlame registers, and the kernel maps them write-combined.
    BlueFlame,
    /// DevX delivers events of SRQs: the kernel knows the type of an RMP in them (85fe9f565d2d, of
    /// 6.17 and in updates of some older series). No kernel before 5.18 is known to.
    SrqEvents,
    /// The device reuses the number of a destroyed queue pair for one of the next 64.
    NumberReuse,
    /// The process may pin this many bytes.
    Memlock(u64),
    /// The process has a limit for pinned memory of at most 1 GiB.
    MemlockLimit,
    /// Lossless links: the service does not retransmit the case's messages or the answer that it
    /// waits for.
    Lossless,
    /// The process may send and steer raw packets (CAP_NET_RAW).
    NetRaw,
    /// The device has the features of NIC receive tables without which Linux has no table for the
    /// rules of users (`FS_CHAINING_CAPS` of `fs_core.c`).
    FlowRules,
    /// Two programs: the case kills one of them, or one forks.
    TwoProcesses,
    /// The program of `crates/flexio-dev/tests/program`, compiled: `--dpa-program`.
    DpaProgram,
}

/// Compare-and-swap and fetch-and-add of 8 bytes in the host's byte order.
pub(crate) const ATOMICS: Need = Need::Cap("atomics", |caps| caps.atomics);
pub(crate) const NO_ATOMICS: Need = Need::Cap("no atomics", |caps| !caps.atomics);
/// Copies of up to 4 MiB in one request. A device without copies lacks only `dma_mmo_qp`.
pub(crate) const LARGE_COPIES: Need =
    Need::Cap("copies of 4 MiB (hca_cap.log_dma_mmo_size)", |caps| {
        !caps.general.dma_mmo_qp() || caps.general.log_dma_mmo_size() >= 22
    });
/// Receive memory pools, which SRQs are made of.
pub(crate) const SRQ: Need = cap!(log_max_rmp);
/// Keys that other functions of the card reach.
pub(crate) const SHARES_KEYS: Need = Need::Cap("shared memory keys", |caps| caps.shares_keys());
/// Send and receive queues of raw Ethernet frames.
pub(crate) const FRAME_QUEUES: Need = Need::Cap(
    "queues of frames (hca_cap.log_max_sq, log_max_rq, log_max_tis, log_max_tir, cqe_version)",
    |caps| {
        let general = &caps.general;
        let queues = [general.log_max_sq(), general.log_max_rq()];
        let ends = [general.log_max_tis(), general.log_max_tir()];
        queues.iter().chain(&ends).all(|&log| log > 0) && general.cqe_version() > 0
    },
);
/// Receive queues that strip VLAN tags. An InfiniBand port has none: the cases also need an
/// Ethernet port.
pub(crate) const STRIPS_VLAN: Need = Need::Cap("ethernet_offloads.vlan_cap", |caps| {
    caps.port_type != PortType::ETHERNET
        || caps.ethernet.as_ref().is_some_and(|page| page.vlan_cap())
});
/// Port 1 is of one kind or the other.
pub(crate) const INFINIBAND: Need = Need::Link(LinkLayer::InfiniBand);
pub(crate) const ETHERNET: Need = Need::Link(LinkLayer::Ethernet);

/// A flag that is set, or a number that is not 0.
pub(crate) trait IsSet {
    fn is_set(&self) -> bool;
}

impl IsSet for bool {
    fn is_set(&self) -> bool {
        *self
    }
}

impl IsSet for u8 {
    fn is_set(&self) -> bool {
        *self != 0
    }
}

/// Its name in `expected-skips.toml` and in the reasons of skips.
impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cap(name, _) => f.write_str(name),
            Self::Registers => f.write_str(
                "hca_cap.access_register_user, or a /dev/fwctl/fwctlN that this user may open and \
                 whose firmware has TOOLS_RESOURCES",
            ),
            Self::BothRegisterWays => f.write_str(
                "hca_cap.access_register_user and a /dev/fwctl/fwctlN that this user may open and \
                 whose firmware has TOOLS_RESOURCES",
            ),
            Self::Link(LinkLayer::InfiniBand) => f.write_str("an InfiniBand port"),
            Self::Link(LinkLayer::Ethernet) => f.write_str("an Ethernet port"),
            Self::Link(LinkLayer::Unspecified) => f.write_str("a port of unknown kind"),
            Self::GrhRequired => f.write_str("an InfiniBand port with GRH_REQUIRED"),
            Self::ShortMtu => f.write_str("an active MTU below 4096"),
            Self::Gid(kind) => write!(f, "a {kind} GID on port 1"),
            Self::FreeGid => f.write_str("an unused entry in the GID table"),
            Self::Bond => f.write_str("bonded ports"),
            Self::NoBond => f.write_str("ports that are not bonded"),
            Self::Peer => f.write_str("a second device on the fabric"),
            Self::Sides => f.write_str("a host and its DPU"),
            Self::Loopback => f.write_str("force loopback of RC queue pairs"),
            Self::Representors => f.write_str("representors (CONFIG_MLX5_ESWITCH, CONFIG_MLX5_SF)"),
            Self::Model => f.write_str("the model in this process"),
            Self::ModelDevice => f.write_str("a device of the model"),
            Self::DpaLayouts => f.write_str(
                "layouts of the DPA's objects, which are published of no hardware: a device of the \
                 model",
            ),
            Self::Destructive => f.write_str("leave to change the card (--destructive)"),
            Self::DpaPartitions => f.write_str(
                "a function that may make partitions of the DPA's EUs: the card has refused it \
                 to each that the run has",
            ),
            Self::BlueFlame => f.write_str("BlueFlame registers mapped write-combined"),
            Self::SrqEvents => {
                f.write_str("events of SRQs on DevX channels (Linux 6.17 and updates)")
            }
            Self::NumberReuse => f.write_str("numbers of queue pairs that are used again soon"),
            Self::Memlock(bytes) => write!(f, "{} MiB of memory that may be pinned", bytes >> 20),
            Self::MemlockLimit => f.write_str("a memlock limit of at most 1 GiB"),
            Self::Lossless => f.write_str("links that lose nothing"),
            Self::NetRaw => f.write_str("CAP_NET_RAW"),
            Self::FlowRules => f.write_str(
                "flow tables that can be changed (flow_modify_en, modify_root, \
                 identified_miss_table_mode, flow_table_modify)",
            ),
            Self::TwoProcesses => f.write_str("two processes"),
            Self::DpaProgram => f.write_str("a compiled program for the DPA"),
        }
    }
}

/// The available features, determined once for all cases of a run.
pub(crate) struct Facts {
    caps: Vec<Caps>,
    /// The page of flow tables of each device; `None`: the device has no such tables.
    tables: Vec<Option<Box<FlowTableCap>>>,
    registers: bool,
    both_register_ways: bool,
    link: LinkLayer,
    grh_required: bool,
    active_mtu: u32,
    gids: Vec<GidType>,
    free_gid: bool,
    bonded: bool,
    model: bool,
    model_device: bool,
    blue_flame: bool,
    srq_events: bool,
    number_reuse: bool,
    /// The two devices are functions of one card, one of them on its DPU.
    one_card: bool,
    loopback: bool,
    representors: bool,
    /// Bytes that the process may pin; `None`: no limit, or CAP_IPC_LOCK.
    pinnable: Option<u64>,
    memlock: u64,
    lossless: bool,
    net_raw: bool,
    two_processes: bool,
    /// The run may change more than its own objects.
    destructive: bool,
    /// Whether one of the devices may make partitions of the DPA's EUs, if the suite has tried.
    dpa_partitions: bool,
}

impl Facts {
    /// Queries the devices of a case and this process.
    pub(crate) fn find(
        backend: &dyn Backend,
        devices: &[DeviceInfo],
        model: bool,
        lossless: bool,
        two_processes: bool,
    ) -> Result<Self, Stop> {
        let device = Device::open(backend, &devices[0])?;
        let port = device.query_port(1)?;
        let table = device.gid_table()?;
        let on_port: Vec<_> = table.iter().filter(|entry| entry.port == 1).collect();
        let caps = |info: &DeviceInfo| Ok::<_, Stop>(Device::open(backend, info)?.caps().clone());
        let tables = |info: &DeviceInfo| flow_tables(&Device::open(backend, info)?);
        let (memlock, _) = getrlimit(Resource::RLIMIT_MEMLOCK)?;
        let limited = memlock != u64::MAX && !privilege(CAP_IPC_LOCK);
        let blue_flame = match device.uar_alloc(UarKind::BlueFlame) {
            Ok(_) => device.attributes().driver.bf_reg_size != 0,
            // The kernel has found that this machine does not combine writes.
            Err(error) if error.errno() == Some(Errno::EOPNOTSUPP) => false,
            Err(error) => return Err(error.into()),
        };
        Ok(Self {
            caps: devices.iter().map(caps).collect::<Result<_, _>>()?,
            tables: devices.iter().map(tables).collect::<Result<_, _>>()?,
            registers: reach_registers(backend, devices),
            both_register_ways: reach_registers_both_ways(backend, devices)?,
            link: port.link_layer(),
            grh_required: port.is_grh_required(),
            active_mtu: port.active_mtu().unwrap_or(256),
            gids: on_port.iter().map(|entry| entry.kind).collect(),
            free_gid: on_port.len() < port.raw.gid_tbl_len as usize,
            bonded: device.lag_ports() >= 2,
            model,
            model_device: device.adapter().is_model(),
            blue_flame,
            // Only a missing event would show a kernel without SRQ events, and stable updates of
            // older releases deliver them: a kernel that hides refusals counts as one without.
            srq_events: model || !device.hides_refusals(),
            number_reuse: number_reuse(&device)?,
            one_card: devices.len() > 1
                && devices.iter().all(|it| it.system_image_guid == devices[0].system_image_guid)
                && devices.iter().any(|it| it.embedded_cpu),
            loopback: device.forces_loopback()?,
            representors: devices
                .iter()
                .any(|it| backend.representors(it).is_ok_and(|found| !found.is_empty())),
            pinnable: limited.then_some(memlock),
            memlock,
            lossless,
            net_raw: privilege(CAP_NET_RAW),
            // A kernel before 5.18 hides why the device refuses commands.
            two_processes,
            destructive: false,
            dpa_partitions: false,
        })
    }

    /// Sets whether cases may change more than their own objects. If so, tries what can only be
    /// found out by a change.
    pub(crate) fn with_destructive(
        self,
        destructive: bool,
        backend: &dyn Backend,
        devices: &[DeviceInfo],
    ) -> Self {
        let dpa_partitions =
            (destructive || self.model_device) && makes_partitions(backend, devices);
        Self { destructive, dpa_partitions, ..self }
    }

    /// The kernel that the model is behind delivers events of SRQs, or does not.
    pub(crate) fn with_srq_events(self, srq_events: bool) -> Self {
        Self { srq_events, ..self }
    }

    /// A host and its DPU are there, though in another process.
    pub(crate) fn with_sides(self) -> Self {
        Self { one_card: true, ..self }
    }

    /// The capabilities that are smaller than a case with these needs assumes.
    pub(crate) fn small(&self, needs: &[Need]) -> Vec<String> {
        let of = |&(name, value, min): &MinCap| {
            let value = self.caps.iter().map(value).min()?;
            (value < min).then(|| format!("{name} >= {min} (here {value})"))
        };
        let tables = self.tables.iter().flatten();
        let tables = tables.map(|page| page.flow_table_properties_nic_receive());
        let of_tables = |&(name, value, min): &MinTableCap| {
            let value = tables.clone().map(value).min()?;
            (value < min).then(|| format!("flow_table_cap.{name} >= {min} (here {value})"))
        };
        let mut small: Vec<_> = ASSUMED_SIZES.iter().filter_map(of).collect();
        if self.link == LinkLayer::Ethernet {
            small.extend(ASSUMED_OF_ROCE.iter().filter_map(of));
        }
        if needs.iter().any(|need| matches!(need, Need::FlowRules)) {
            small.extend(ASSUMED_OF_FRAMES.iter().filter_map(of));
            small.extend(ASSUMED_TABLES.iter().filter_map(of_tables));
        }
        small
    }

    /// Whether a case's need is met.
    pub(crate) fn offer(&self, need: &Need) -> bool {
        match *need {
            Need::Cap(_, has) => self.caps.iter().all(has),
            Need::Registers => self.registers,
            Need::BothRegisterWays => self.both_register_ways,
            Need::Link(link) => self.link == link,
            Need::GrhRequired => self.link == LinkLayer::InfiniBand && self.grh_required,
            Need::ShortMtu => self.active_mtu < 4096,
            Need::Gid(kind) => self.gids.contains(&kind),
            Need::FreeGid => self.free_gid,
            Need::Bond => self.bonded,
            Need::NoBond => !self.bonded,
            Need::Peer => self.caps.len() > 1,
            Need::Sides => self.one_card,
            Need::Loopback => self.loopback,
            Need::Representors => self.representors,
            Need::Model => self.model,
            Need::ModelDevice | Need::DpaLayouts => self.model_device,
            Need::Destructive => self.model_device || self.destructive,
            Need::DpaPartitions => self.dpa_partitions,
            Need::BlueFlame => self.blue_flame,
            Need::SrqEvents => self.srq_events,
            Need::NumberReuse => self.number_reuse,
            Need::Memlock(bytes) => self.pinnable.is_none_or(|limit| bytes <= limit),
            Need::MemlockLimit => self.memlock <= 1 << 30,
            Need::Lossless => self.lossless,
            Need::NetRaw => self.net_raw,
            // An InfiniBand port has none: the cases also need an Ethernet port.
            Need::FlowRules if self.link != LinkLayer::Ethernet => true,
            Need::FlowRules => self.tables.iter().all(|page| {
                let tables = page.as_ref().map(|page| page.flow_table_properties_nic_receive());
                tables.is_some_and(|tables| {
                    tables.ft_support()
                        && tables.flow_modify_en()
                        && tables.modify_root()
                        && tables.identified_miss_table_mode()
                        && tables.flow_table_modify()
                })
            }),
            Need::TwoProcesses => self.two_processes,
            Need::DpaProgram => crate::dpa_program().is_some(),
        }
    }
}

/// The page of flow tables, if the device has tables of NIC receive.
fn flow_tables(device: &Device) -> Result<Option<Box<FlowTableCap>>, Stop> {
    if !device.caps().general.nic_flow_table() {
        return Ok(None);
    }
    // A device that refuses the page offers no tables: the cases of frames need them.
    let Ok(page) = device.query_hca_cap(CapPage::FLOW_TABLE, CapMode::Current) else {
        return Ok(None);
    };
    let page = FlowTableCap::from_prefix(&page[..]).ok_or_else(|| Stop::fail("a short page"))?;
    Ok(Some(Box::new(*page)))
}

/// Whether one of 64 queue pairs gets the number of a destroyed one.
fn number_reuse(device: &Device) -> Result<bool, Stop> {
    let domain = Domain::new(device)?;
    let cq = domain.completion_queue(&CqConfig::new(64))?;
    let make = || domain.queue_pair(&QpConfig::new(1, 1), &cq, &cq);
    let number = make()?.qpn();
    let mut others = Vec::new();
    for _ in 0..64 {
        others.push(make()?);
        if others.last().is_some_and(|qp| qp.qpn() == number) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether the registers of all these devices are accessible. A fault, other than absence, is left
/// for the cases to find.
fn reach_registers(backend: &dyn Backend, devices: &[DeviceInfo]) -> bool {
    devices.iter().all(|info| {
        let way = Device::open(backend, info).and_then(|device| device.register_access());
        !way.is_err_and(|error| is_absent(&error))
    })
}

/// Whether the registers of all these devices are accessible both by ACCESS_REGISTER_USER and by
/// the control file.
fn reach_registers_both_ways(backend: &dyn Backend, devices: &[DeviceInfo]) -> Result<bool, Stop> {
    for info in devices {
        let device = Device::open(backend, info)?;
        let by_control = match device.fwctl() {
            Ok(None) => false,
            Ok(Some(control)) => !control.info().is_ok_and(|info| !info.has_tools_resources()),
            Err(error) => !is_absent(&error),
        };
        if !by_control || !device.caps().general.access_register_user() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether the error is expected: the path does not exist, or this user lacks the privilege.
fn is_absent(error: &verbless_devx::Error) -> bool {
    use verbless_devx::ErrorKind::{NoDevice, NotSupported, Permission};
    matches!(error.kind(), NotSupported | Permission | NoDevice)
}

/// Whether one of the devices makes a partition of an EU of its DPA, which is destroyed at once.
fn makes_partitions(backend: &dyn Backend, devices: &[DeviceInfo]) -> bool {
    devices.iter().any(|info| {
        let made = Device::open(backend, info).and_then(|device| {
            let units = vec![device.dpa_caps()?.units.saturating_sub(1)];
            let functions = vec![device.vhca_id()];
            device.create_dpa_partition(&DpaEuPartitionAttr { units, functions, max_groups: 0 })
        });
        match made {
            // A case finds out that a partition is made and not destroyed.
            Ok(partition) => {
                let _found_out_there = partition.destroy();
                true
            }
            Err(error) if is_absent(&error) => false,
            // An error other than a refusal by the card is also left for a case.
            Err(error) => error.kind() != verbless_devx::ErrorKind::Command,
        }
    })
}

/// Numbers of Linux capabilities.
pub(crate) const CAP_NET_RAW: u32 = 13;
pub(crate) const CAP_IPC_LOCK: u32 = 14;

/// Whether the process holds a capability, where the kernel looks for it.
pub(crate) fn privilege(number: u32) -> bool {
    let read = |file| std::fs::read_to_string(file).unwrap_or_default();
    holds(number, &read("/proc/thread-self/status"), &read("/proc/self/uid_map"))
}

/// The limit of locked memory is lifted only by CAP_IPC_LOCK of the initial user namespace
/// (`capable` in `ib_umem_get`), which maps every user to itself. Without CONFIG_USER_NS there is
/// no other, and no file of its map.
fn holds(number: u32, status: &str, uid_map: &str) -> bool {
    let is_initial = uid_map.is_empty() || uid_map.split_whitespace().eq(["0", "0", "4294967295"]);
    if number == CAP_IPC_LOCK && !is_initial {
        return false;
    }
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    effective.is_some_and(|bits| bits >> number & 1 == 1)
}

#[cfg(test)]
mod tests {
    #[test]
    fn cap_ipc_lock_counts_in_the_initial_user_namespace_alone() {
        use super::{CAP_IPC_LOCK, CAP_NET_RAW, holds};
        let (all, none) = ("Name:\tx\nCapEff:\t000001ffffffffff\n", "CapEff:\t0\n");
        let (initial, rootless) = ("         0          0 4294967295\n", "0 1000 1\n");
        assert!(holds(CAP_IPC_LOCK, all, initial) && holds(CAP_IPC_LOCK, all, ""));
        assert!(holds(CAP_NET_RAW, all, rootless));
        assert!(!holds(CAP_IPC_LOCK, all, rootless) && !holds(CAP_IPC_LOCK, none, initial));
    }

    /// The needs of the cases of a group, as skips state them.
    fn needs_of(group: impl Fn(&str) -> bool) -> Vec<(String, Vec<String>)> {
        let needs = |case: &crate::Case| case.needs.iter().map(ToString::to_string).collect();
        let cases = crate::cases().filter(|case| group(case.group));
        cases.map(|case| (case.id(), needs(case))).collect()
    }

    #[test]
    fn flexio_process_cases_are_skipped_on_hardware() {
        let flexio = needs_of(|group| group.starts_with("flexio"));
        assert!(flexio.len() > 90, "{} cases", flexio.len());
        let (library, of_processes): (Vec<_>, Vec<_>) =
            flexio.into_iter().partition(|(case, _)| case.starts_with("flexio_library::"));
        for (case, needs) in of_processes {
            let reason = needs.first().expect("a need");
            assert!(reason.contains("published of no hardware"), "{case}: {reason}");
        }
        for (case, needs) in &library {
            assert!(!needs.iter().any(|it| it.contains("model")), "{case}: {needs:?}");
        }
        let bare = library.iter().filter(|(_, needs)| needs[..] == ["hca_cap.apu"]).count();
        assert!(bare > 3, "only {bare} cases need neither a program nor a process: {library:?}");
    }

    #[test]
    fn cap_net_raw_is_needed_on_the_model_alone() {
        let raw: Vec<_> = needs_of(|_| true)
            .into_iter()
            .filter(|(_, needs)| needs.iter().any(|it| it == "CAP_NET_RAW"))
            .collect();
        assert!(raw.len() > 50, "{} cases", raw.len());
        for (case, needs) in raw {
            assert!(needs.iter().any(|it| it.contains("device of the model")), "{case}: {needs:?}");
        }
    }

    #[test]
    fn makes_partitions_holds_only_for_manager() {
        let choice = crate::Choice { profile: "bluefield3".into(), ..crate::Choice::default() };
        let lab = crate::Lab::open(&choice).expect("a lab");
        let may = |info: &verbless_devx::DeviceInfo| {
            super::makes_partitions(lab.backend(), std::slice::from_ref(info))
        };
        // The DPU's function manages the EUs of the card.
        assert_eq!([lab.info(), lab.other_info()].map(may), [false, true]);
        let both = [lab.info().clone(), lab.other_info().clone()];
        assert!(super::makes_partitions(lab.backend(), &both));
        // No partition is left.
        assert!(super::makes_partitions(lab.backend(), &both));
    }

    #[test]
    fn dpa_register_cases_need_leave_for_changes() {
        let changes = |needs: &[String]| needs.iter().any(|it| it.contains("--destructive"));
        let public = needs_of(|group| group == "dpa_registers");
        let model = |needs: &[String]| needs.iter().any(|it| it.contains("model"));
        assert!(!public.iter().any(|(_, needs)| model(needs)), "{public:?}");
        let both = |needs: &[String]| {
            needs.iter().any(|it| it.contains("access_register_user") && it.contains("/dev/fwctl"))
        };
        assert!(public.iter().all(|(_, needs)| both(needs)), "{public:?}");
        let changing: Vec<_> = public.iter().filter(|(_, it)| changes(it)).collect();
        assert!(changing.len() == 1 && changing[0].0.contains("made"), "{changing:?}");
        let refused = |needs: &[String]| needs.iter().any(|it| it.contains("refused"));
        assert!(refused(&changing[0].1), "{changing:?}");
    }
}
