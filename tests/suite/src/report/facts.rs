//! What a report says of devices and the machine: it only reads, by commands that DevX passes to
//! any user, by uverbs queries and from sysfs.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::unistd::{Gid, Group, Uid, User};
use verbless_command::{CapMode, CapPage, Device};
use verbless_devx::{DeviceInfo, FunctionKind, LinkLayer, page_size};
use verbless_prm as prm;
use verbless_prm::{CommandInput, PortType};
use zerocopy::IntoBytes;

use super::document::{
    CaseResult, DeviceFacts, DeviceFile, FORMAT, FactFunction, FactLink, FactSide, GidEntry,
    Identity, Machine, Page, Pci, PciLink, Port, Program, Query, Report,
};
use super::fields::page_name;
use super::hex::Hex;
use super::run::Run;
use crate::{Lab, Stop};

/// The capability pages that a report asks for.
const PAGES: std::ops::Range<u16> = 0..0x40;
/// Users and groups below this number belong to the system; a person's name is left out.
pub(crate) const FIRST_PERSON: u32 = 1000;

impl Report {
    /// The report of a run that has ended on these devices.
    pub fn of(program: Program, devices: Vec<DeviceFacts>, run: &Run) -> Self {
        let (passed, failed, skipped) = run.counts();
        Self {
            format: FORMAT,
            program,
            machine: Machine::of_this(),
            peer: None,
            device: run.device.clone(),
            preconditions: run.preconditions.clone(),
            devices,
            passed,
            failed,
            skipped,
            blocked: run.blocked(),
            cases: run.cases.iter().map(CaseResult::from).collect(),
            performance: Vec::new(),
        }
    }
}

/// What the devices of a lab say about themselves, with all that identifies them.
pub fn facts(lab: &Lab) -> Vec<DeviceFacts> {
    lab.devices().iter().map(|info| of_device(lab, info)).collect()
}

impl Machine {
    /// The machine that this program runs on.
    pub fn of_this() -> Self {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").ok();
        Self {
            kernel: release.map(|release| release.trim().to_owned()),
            architecture: std::env::consts::ARCH.into(),
            page_bytes: page_size() as u64,
        }
    }
}

fn of_device(lab: &Lab, info: &DeviceInfo) -> DeviceFacts {
    let in_process = lab.is_private();
    let mut facts = DeviceFacts {
        name: info.name.clone(),
        model: false,
        side: if info.embedded_cpu { FactSide::Dpu } else { FactSide::Host },
        function: match info.function {
            FunctionKind::Physical => FactFunction::Physical,
            FunctionKind::Virtual => FactFunction::Virtual,
            FunctionKind::Sub => FactFunction::Sub,
        },
        psid: info.board_id.clone(),
        firmware: info.firmware.clone(),
        pci: Pci {
            address: info.pci_address.clone(),
            vendor_id: info.vendor_id,
            device_id: info.device_id,
            link: info.pci_address.as_deref().filter(|_| !in_process).and_then(pci_link),
        },
        file: if in_process { None } else { device_file(&info.node) },
        ports: Vec::new(),
        pages: Vec::new(),
        queries: Vec::new(),
        incomplete: None,
        identity: Some(identity(info)),
    };
    if let Err(Stop(why)) = ask(lab, info, &mut facts) {
        facts.incomplete = Some(why);
    }
    facts
}

/// Asks the device itself.
fn ask(lab: &Lab, info: &DeviceInfo, facts: &mut DeviceFacts) -> Result<(), Stop> {
    let device = Device::open(lab.backend(), info)?;
    facts.model = device.adapter().is_model();
    for number in PAGES {
        facts.pages.extend(page(&device, number));
    }
    facts.queries = queries(&device);
    for port in &info.ports {
        let kinds = port.gids.iter().map(|entry| entry.kind.to_string()).collect();
        facts.ports.push(of_port(&device, port.number, kinds)?);
    }
    Ok(())
}

/// A capability page; `None` if the device refuses it.
fn page(device: &Device, number: u16) -> Option<Page> {
    let read = |mode| device.query_hca_cap(CapPage(number), mode).ok();
    let (maximum, current) = (read(CapMode::Maximum)?, read(CapMode::Current)?);
    let mut page = Page {
        number,
        name: page_name(number).map(str::to_lowercase),
        current: Hex::new(&current[..]),
        maximum: Hex::new(&maximum[..]),
        fields: Vec::new(),
    };
    page.fields = page.set_fields();
    Some(page)
}

/// Commands that read what the capability pages do not have.
fn queries(device: &Device) -> Vec<Query> {
    let general = &device.caps().general;
    let mut queries = vec![
        query(device, &prm::QueryAdapterIn::new()),
        query(device, &prm::QueryIssiIn::new()),
        query(device, &prm::QueryVportStateIn::new()),
        query(device, &prm::QueryNicVportContextIn::new()),
    ];
    if general.port_type() == PortType::INFINIBAND {
        let mut input = prm::QueryHcaVportContextIn::new();
        input.set_port_num(1);
        queries.push(query(device, &input));
    }
    if general.num_lag_ports() >= 2 {
        queries.push(query(device, &prm::QueryLagIn::new()));
    }
    queries
}

fn query<I: CommandInput>(device: &Device, input: &I) -> Query {
    let info = <I as CommandInput>::INFO;
    let mut output = I::Output::default();
    let result = device.devx_other(input.as_bytes(), output.as_mut_bytes());
    Query {
        command: info.name.into(),
        input: Hex::new(input.as_bytes()),
        output: Hex::new(output.as_bytes()),
        error: result.err().map(|error| error.to_string()),
    }
}

fn of_port(device: &Device, number: u8, gid_kinds: Vec<String>) -> Result<Port, Stop> {
    let port = device.query_port(number)?;
    let raw = &port.raw;
    let mtu = verbless_devx::abi::core::mtu_bytes;
    Ok(Port {
        number,
        link_layer: match port.link_layer() {
            LinkLayer::Unspecified => FactLink::Unspecified,
            LinkLayer::InfiniBand => FactLink::Infiniband,
            LinkLayer::Ethernet => FactLink::Ethernet,
        },
        state: raw.state,
        physical_state: raw.phys_state,
        max_mtu: mtu(raw.max_mtu),
        active_mtu: mtu(raw.active_mtu),
        active_width: raw.active_width,
        active_speed: match raw.active_speed_ex {
            0 => raw.active_speed.into(),
            speed => speed,
        },
        gid_table_len: raw.gid_tbl_len,
        pkey_table_len: raw.pkey_tbl_len,
        grh_required: port.is_grh_required(),
        gid_kinds,
    })
}

fn identity(info: &DeviceInfo) -> Identity {
    let gids = info.ports.iter().flat_map(|port| {
        port.gids.iter().map(|entry| GidEntry {
            port: port.number,
            index: entry.index,
            gid: entry.gid.to_string(),
            kind: entry.kind.to_string(),
            netdev: entry.netdev.clone(),
        })
    });
    Identity {
        node_guid: format!("{:016x}", info.node_guid),
        system_image_guid: format!("{:016x}", info.system_image_guid),
        netdevs: info.netdevs.clone(),
        gids: gids.collect(),
    }
}

fn pci_link(address: &str) -> Option<PciLink> {
    let folder = Path::new("/sys/bus/pci/devices").join(address);
    let read = |name: &str| {
        let text = fs::read_to_string(folder.join(name)).ok()?;
        Some(text.trim().to_owned())
    };
    Some(PciLink {
        speed: read("current_link_speed")?,
        width: read("current_link_width")?,
        max_speed: read("max_link_speed"),
        max_width: read("max_link_width"),
    })
}

fn device_file(node: &str) -> Option<DeviceFile> {
    let path = Path::new("/dev/infiniband").join(node);
    let found = fs::metadata(&path).ok()?;
    let user = User::from_uid(Uid::from_raw(found.uid())).ok().flatten().map(|user| user.name);
    let group = Group::from_gid(Gid::from_raw(found.gid())).ok().flatten().map(|group| group.name);
    let shown = |number: u32, name: Option<String>| {
        name.filter(|_| number < FIRST_PERSON).unwrap_or_else(|| number.to_string())
    };
    Some(DeviceFile {
        path: path.display().to_string(),
        mode: format!("{:04o}", found.mode() & 0o7777),
        owner: shown(found.uid(), user),
        group: shown(found.gid(), group),
    })
}
