//! One function (vhca) of a modelled device: its objects and its state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use verbless_dpa::{Dpa, DpaLimits};
use verbless_prm::{MacAddressLayout, PmtuReg, RegisterId, RoceAddrLayout, VportListType};

use crate::fabric::address::Addresses;
use crate::hca::allocators::NumberAllocators;
use crate::hca::budget::Budget;
use crate::hca::capability::Capabilities;
use crate::hca::dump::DumpInProgress;
use crate::hca::effect::Effect;
use crate::hca::fault::Countdowns;
use crate::hca::identity::Identity;
use crate::hca::objects::{Foreign, Limits, Objects, Uid};
use crate::hca::pages::Pages;
use crate::hca::qp_type::QpTypes;
use crate::hca::refusal::Refused;
use crate::hca::vport::NicVport;
use crate::ioctl::Ioctl;
use crate::memory::{Heaps, with_heaps};
use crate::memory::{HostMemory, Interrupts, Iommu, UarSpace};
use crate::numbered::Numbered;
use crate::profile::{DpaNumbers, FunctionPlace, Link, Profile};
use verbless_wire::Mac;

/// A port's physical and logical state.
#[derive(Debug, Clone)]
pub(crate) struct Port {
    /// The port is ACTIVE and its link is up; else DOWN.
    pub up: bool,
    /// The port's LID on InfiniBand, 0 on Ethernet.
    pub lid: u16,
    /// PortInfo:CapabilityMask: capabilities that the software of an InfiniBand port declares.
    pub cap_mask1: u32,
    /// The port's GIDs: the GID table without its empty entries.
    pub gids: Vec<[u8; 16]>,
    pub violations: Violations,
}

/// Packets that a port dropped because of a wrong key. The counts saturate, as PortInfo's do.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Violations {
    /// Packets of another partition, or of a limited member if the receiver is one too.
    pub pkey: u16,
    /// Packets for a QP with another Q_Key.
    pub qkey: u16,
}

/// A function of the host, as the manager of its switch may query it. It is constant while the
/// model runs; the capabilities in force are those from before SET_HCA_CAP.
pub(crate) struct HostFunction {
    pub on_card: FunctionPlace,
    pub caps: Capabilities,
    pub vuid: [u8; 128],
}

impl HostFunction {
    /// The function's number in commands: 0 is the PF, and the VFs count from 1.
    pub(crate) fn id(&self) -> u16 {
        self.on_card.number.map_or(0, |number| number.wrapping_add(1))
    }
}

/// The state of a function's bring-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    /// Before ENABLE_HCA.
    Disabled,
    /// After ENABLE_HCA: capabilities can be queried and set, and pages given.
    Enabled,
    /// After INIT_HCA.
    Up,
}

/// A function of a device.
pub(crate) struct Hca {
    pub profile: Arc<Profile>,
    pub identity: Identity,
    /// The available QP types.
    pub qp_types: QpTypes,
    /// Index among the functions of its side of the device, from 0.
    pub function: u16,
    /// The function's side, role and numbers on the card.
    pub on_card: FunctionPlace,
    /// Whether it is not the first function of its card.
    pub shares_card: bool,
    pub life: Life,
    /// Set from a forced or fast TEARDOWN_HCA until the function is disabled or up again.
    pub closed: bool,
    pub caps: Capabilities,
    pub objects: Objects,
    pub numbers: NumberAllocators,
    /// The budget of the host's memory for objects and their lists.
    pub budget: Budget,
    pub pages: Pages,
    /// Registers that the driver wrote, by number.
    pub registers: Numbered<u16, Box<[u8]>>,
    /// The version of the software interface in force.
    pub issi: u16,
    /// The GID table of an Ethernet port; empty entries are all 0. InfiniBand ports have none.
    pub roce_addresses: Vec<RoceAddrLayout>,
    pub memory: Arc<dyn HostMemory>,
    /// The IOMMU, by which a kernel may map registered memory.
    pub iommu: Arc<Iommu>,
    /// The DPA, and the part of `memory` that its processes own.
    pub dpa: Option<Arc<Dpa>>,
    pub heaps: Heaps,
    pub bar: Arc<UarSpace>,
    /// The receiver of interrupts; set by the front end.
    pub interrupts: Option<Arc<dyn Interrupts>>,
    /// Vectors raised under the lock; delivered after its release.
    pub raised: Vec<u32>,
    /// Refusals under the lock; logged after its release.
    pub refused: Vec<Refused>,
    pub ports: Vec<Port>,
    /// The Ethernet vport context as software set it; `None`: the profile's.
    pub nic_vport: Option<NicVport>,
    /// The device died (fault injection): it answers no command and moves no data.
    pub fatal: bool,
    /// Whether the function was removed, and not only died.
    pub removed: bool,
    /// How often the function was reset.
    pub resets: u64,
    pub faults: Countdowns<u16, (u8, u32)>,
    /// Ioctls of the function's driver that must fail, each with its errno.
    pub ioctl_faults: Countdowns<Ioctl, i32>,
    /// The functions of the card that this one may reach, itself included: their numbers in the
    /// model by vhca_id.
    pub neighbours: Numbered<u16, usize>,
    /// The host's functions at the embedded switch that this PF manages.
    pub host_functions: Vec<HostFunction>,
    /// Functions of the card with a DPA that may reach this one: vhca_id, and number in the model.
    pub reached_by: BTreeSet<(u16, usize)>,
    /// The DPAs of those functions, by number in the model: CQs of this function may start their
    /// threads.
    pub reaching_dpas: BTreeMap<usize, Weak<Dpa>>,
    /// Target functions of this one's aliases and crossing keys, with the count of those.
    pub key_owners: Numbered<usize, u32>,
    /// How many objects were opened to other functions so far.
    pub offers: u64,
    /// The offer of another function for the object in the current command.
    pub answer: Option<Foreign>,
    /// The effects of the current command, for the engine.
    pub effects: Vec<Effect>,
    /// The core dump that the current command writes.
    pub dumping: Option<Box<DumpInProgress>>,
}

/// The limits of a profile's DPA.
fn dpa_limits(numbers: &DpaNumbers) -> DpaLimits {
    let units = numbers.cores * numbers.units_per_core - numbers.reserved_units;
    let DpaNumbers { groups, partitions, memory, watchdog, .. } = *numbers;
    DpaLimits { units, groups, partitions, memory, watchdog }
}

impl Hca {
    pub(crate) fn new(
        index: usize,
        profile: Arc<Profile>,
        memory: Arc<dyn HostMemory>,
        qp_types: QpTypes,
    ) -> Self {
        let caps = Capabilities::new(&profile, 0);
        let identity = Identity::new(index as u32, caps.general().num_ports().into());
        let link = profile.link();
        let ports = identity.ports.iter().map(|port| Port {
            up: true,
            cap_mask1: profile.hca_vport().cap_mask1(),
            lid: if link == Link::Infiniband { port.lid } else { 0 },
            gids: if link == Link::Infiniband { vec![port.link_local_gid()] } else { Vec::new() },
            violations: Violations::default(),
        });
        let dpa = profile.dpa().map(|numbers| Arc::new(Dpa::new(dpa_limits(numbers))));
        let (memory, heaps) = with_heaps(memory, dpa.is_some());
        let roce_entries = match link {
            Link::Infiniband => 0,
            Link::Ethernet => caps.roce().roce_address_table_size().into(),
        };
        Self {
            ports: ports.collect(),
            identity,
            qp_types,
            function: 0,
            on_card: FunctionPlace::default(),
            shares_card: false,
            life: Life::Disabled,
            closed: false,
            objects: Objects {
                limits: Limits::new(caps.general(), profile.keys()),
                ..Objects::default()
            },
            numbers: NumberAllocators::new(&profile),
            budget: Budget::default(),
            pages: Pages::default(),
            registers: Numbered::new(),
            issi: 0,
            nic_vport: None,
            roce_addresses: vec![RoceAddrLayout::zeroed(); roce_entries],
            memory,
            iommu: Arc::default(),
            dpa,
            heaps,
            bar: Arc::new(UarSpace::new(profile.device().uar_pages)),
            interrupts: None,
            raised: Vec::new(),
            refused: Vec::new(),
            fatal: false,
            removed: false,
            resets: 0,
            faults: Countdowns::default(),
            ioctl_faults: Countdowns::default(),
            neighbours: Numbered::new(),
            host_functions: Vec::new(),
            reached_by: BTreeSet::new(),
            reaching_dpas: BTreeMap::new(),
            key_owners: Numbered::new(),
            offers: 0,
            answer: None,
            dumping: None,
            effects: Vec::new(),
            caps,
            profile,
        }
    }

    /// The function as the manager of its switch may query it.
    pub(crate) fn as_host_function(&self) -> HostFunction {
        HostFunction {
            on_card: self.on_card.clone(),
            caps: self.caps.clone(),
            vuid: self.identity.vuid(),
        }
    }

    /// Counts an added alias or crossing key to function `to`.
    pub(crate) fn add_key_owner(&mut self, to: usize) {
        *self.key_owners.get_or_insert_with(to, || 0) += 1;
    }

    /// Counts a removed alias or crossing key to function `from`.
    pub(crate) fn remove_key_owner(&mut self, from: usize) {
        let Some(count) = self.key_owners.get_mut(&from) else {
            tracing::error!(from, "an alias or crossing key is removed that was not counted");
            return;
        };
        *count -= 1;
        if *count == 0 {
            self.key_owners.remove(&from);
        }
    }

    /// Makes this function `number` of its side of a device with first function `first`.
    pub(crate) fn of_function(mut self, first: usize, number: u16, on_card: FunctionPlace) -> Self {
        self.shares_card = self.identity.node_guid != Identity::new(first as u32, 1).node_guid;
        let first = Identity::new(first as u32, self.ports.len() as u32);
        self.identity.system_image_guid = first.system_image_guid;
        self.function = number;
        self.on_card = on_card;
        self.caps = Capabilities::new(&self.profile, number);
        self
    }

    /// Whether port `number` (from 1) exists and is up, on a live device.
    pub(crate) fn is_up(&self, number: u8) -> bool {
        let port = usize::from(number).checked_sub(1).and_then(|index| self.ports.get(index));
        port.is_some_and(|port| port.up) && !self.fatal
    }

    /// The LID of port `number` (from 1); 0 if the port does not exist or has none.
    pub(crate) fn lid(&self, number: u8) -> u16 {
        let port = usize::from(number).checked_sub(1).and_then(|index| self.ports.get(index));
        port.map_or(0, |port| port.lid)
    }

    /// The addresses of a port (from 1) on the fabric.
    pub(crate) fn addresses(&self, number: u8) -> Addresses {
        let index = usize::from(number).wrapping_sub(1);
        let (port, identity) = (self.ports.get(index), self.identity.ports.get(index));
        match self.profile.link() {
            Link::Ethernet => {
                let entries = self.roce_addresses.iter();
                let used = entries.filter(|entry| **entry != RoceAddrLayout::zeroed());
                let roce = used.map(|entry| {
                    let (high, low) = (entry.source_mac_47_32(), entry.source_mac_31_0());
                    u64::from(high) << 32 | u64::from(low)
                });
                let own = identity
                    .map(|port| port.mac)
                    .into_iter()
                    .chain(roce)
                    .map(|mac| Mac(mac.to_be_bytes()[2..].try_into().unwrap_or_default()));
                // Addresses that the driver added.
                let vport = self.nic_vport.as_ref();
                let list = vport.and_then(|vport| vport.lists.get(&VportListType::UC.0));
                let list = list.map(Vec::as_slice).unwrap_or_default();
                let listed = list.chunks_exact(MacAddressLayout::BYTES);
                let listed = listed.map(|entry| Mac(entry[2..].try_into().unwrap_or_default()));
                let mut macs: Vec<Mac> = own.chain(listed).collect();
                macs.sort_unstable();
                macs.dedup();
                let promiscuous = vport
                    .is_some_and(|vport| vport.context.promisc_uc() || vport.context.promisc_all());
                Addresses { macs, promiscuous, ..Addresses::default() }
            }
            Link::Infiniband => Addresses {
                lid: port.map_or(0, |port| port.lid),
                gids: port.map_or(Vec::new(), |port| port.gids.clone()),
                grh_required: self.profile.hca_vport().grh_required(),
                ..Addresses::default()
            },
        }
    }

    /// Bytes of the longest frame of a port, with its check sequence.
    pub(crate) fn port_mtu(&self) -> usize {
        let register = self.profile.registers().get(&RegisterId::PMTU.0);
        let register = register.and_then(|register| PmtuReg::from_prefix(&register.bytes));
        register.map_or(usize::MAX, |register| register.oper_mtu().into())
    }

    /// Whether the vport blocks its own frames: multicast ones if `group`, else unicast ones.
    pub(crate) fn blocks_own(&self, group: bool) -> bool {
        self.nic_vport.as_ref().is_some_and(|vport| match group {
            false => vport.context.disable_uc_local_lb(),
            true => vport.context.disable_mc_local_lb(),
        })
    }

    /// Updates the data path's limits after a change of the capabilities.
    pub(crate) fn capabilities_changed(&mut self) {
        self.objects.limits = Limits::new(self.caps.general(), self.profile.keys());
    }

    /// Undoes everything that commands did, as DISABLE_HCA does; all objects must be gone.
    pub(crate) fn restore_defaults(&mut self) {
        self.life = Life::Disabled;
        self.closed = false;
        self.caps = Capabilities::new(&self.profile, self.function);
        self.capabilities_changed();
        self.numbers.set_uars_per_page(&self.profile, self.caps.uars_per_page());
        self.pages = Pages::default();
        self.registers.clear();
        self.issi = 0;
        self.nic_vport = None;
        self.roce_addresses.fill(RoceAddrLayout::zeroed());
        self.remove_groups(None);
    }

    /// Removes the groups of DPA execution units of one user context, or all groups.
    pub(crate) fn remove_groups(&self, uid: Option<Uid>) {
        if let Some(dpa) = &self.dpa {
            dpa.remove_groups(uid);
        }
    }

    /// Makes the function dead: it answers no command, and its programs stop.
    pub(crate) fn die(&mut self) {
        self.fatal = true;
        if let Some(dpa) = &self.dpa {
            dpa.halt();
        }
    }

    /// Revives a dead function after a reset. A function that was removed stays dead.
    pub(crate) fn revive(&mut self) {
        if self.fatal && !self.removed {
            self.fatal = false;
            if let Some(dpa) = &self.dpa {
                dpa.unhalt();
            }
        }
    }
}
