//! One function (vhca) of a modelled device: its objects and the commands on them.

mod call;
pub(crate) mod capability;
mod counter;
mod cq;
mod domain;
mod eq;
mod execute;
pub(crate) mod fault;
pub(crate) mod identity;
pub(crate) mod klm;
mod lifecycle;
mod mad;
mod mkey;
mod multicast;
mod numbers;
pub(crate) mod objects;
mod pages;
mod path;
mod qp;
mod query;
mod refusal;
mod register;
pub(crate) mod room;
mod service;
mod shared;
mod sq;
mod transition;
mod uctx;
mod umem;
mod vport;

use std::collections::BTreeMap;
use std::sync::Arc;

use verbless_prm::RoceAddrLayout;

use crate::engine;
use crate::memory::{HostMemory, Interrupts, UarSpace};
use crate::profile::{Link, Profile};
use crate::watch::Watcher;
use crate::world::HcaId;
use capability::Capabilities;
use fault::CommandFaults;
use identity::Identity;
pub(crate) use numbers::Numbers;
use objects::{Limits, Objects, Uid};
use pages::Pages;
use room::Room;

pub(crate) use execute::{Refused, execute};
pub(crate) use lifecycle::reset;
pub(crate) use mkey::reconfigure as reconfigure_key;
pub(crate) use path::own_port;
pub use refusal::Refusal;
pub(crate) use vport::NicVport;

/// A port's physical and logical state.
#[derive(Debug, Clone)]
pub(crate) struct Port {
    /// The wire is there and the port ACTIVE; else DOWN.
    pub up: bool,
    /// The port's LID on InfiniBand, 0 on Ethernet.
    pub lid: u16,
    /// PortInfo:CapabilityMask: what the software behind an InfiniBand port says that it offers.
    pub cap_mask1: u32,
    /// What other ports may call it by: the GID table without its gaps.
    pub gids: Vec<[u8; 16]>,
}

/// How far a function has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    /// Before ENABLE_HCA.
    Disabled,
    /// After it: capabilities can be asked and set, pages given.
    Enabled,
    /// After INIT_HCA.
    Up,
}

/// The numbers that a function gives to its objects.
#[derive(Debug)]
pub(crate) struct AllNumbers {
    pub uid: Numbers,
    pub pd: Numbers,
    pub td: Numbers,
    /// UAR pages of the kernel, and those of user contexts, which a front end can treat otherwise.
    pub uar: Numbers,
    pub user_uar: Numbers,
    pub umem: Numbers,
    pub mkey: Numbers,
    pub cq: Numbers,
    pub eq: Numbers,
    /// QPs and SQs.
    pub qp: Numbers,
    pub counter: Numbers,
    pub xrcd: Numbers,
    /// XRC SRQs and RMPs.
    pub shared: Numbers,
}

impl AllNumbers {
    /// Those for UAR pages of a user context, or of the kernel.
    pub(crate) fn uars_of(&mut self, uid: Uid) -> &mut Numbers {
        if uid == 0 { &mut self.uar } else { &mut self.user_uar }
    }

    fn new(profile: &Profile) -> Self {
        // The fields that carry them in commands are so wide.
        const BYTE: u32 = 1 << 8;
        const HALF: u32 = 1 << 16;
        const THREE_BYTES: u32 = 1 << 24;
        let first = profile.first();
        Self {
            uid: Numbers::new(first.uid, HALF),
            pd: Numbers::new(first.pd, THREE_BYTES),
            td: Numbers::new(first.transport_domain, THREE_BYTES),
            uar: Numbers::new(first.uar, first.user_uar),
            user_uar: Numbers::new(first.user_uar, profile.device().uar_pages),
            umem: Numbers::new(first.umem, THREE_BYTES),
            mkey: Numbers::new(first.mkey, THREE_BYTES),
            cq: Numbers::new(first.cq, THREE_BYTES),
            eq: Numbers::new(first.eq, BYTE),
            qp: Numbers::new(first.qp, THREE_BYTES),
            counter: Numbers::new(first.q_counter, BYTE),
            xrcd: Numbers::new(first.xrcd, THREE_BYTES),
            shared: Numbers::new(first.shared_queue, THREE_BYTES),
        }
    }
}

/// One function of a device.
pub(crate) struct Hca {
    pub profile: Arc<Profile>,
    pub identity: Identity,
    /// Which function of its side of the device it is, from 0.
    pub function: u16,
    pub life: Life,
    pub caps: Capabilities,
    pub objects: Objects,
    pub numbers: AllNumbers,
    /// What objects and their lists may take of the host's memory.
    pub room: Room,
    pub pages: Pages,
    /// Registers that were written, by number.
    pub registers: BTreeMap<u16, Box<[u8]>>,
    /// The version of the software interface in force.
    pub issi: u16,
    /// The GID table of an Ethernet port; empty entries are all 0. InfiniBand ports have none.
    pub roce_addresses: Vec<RoceAddrLayout>,
    pub memory: Arc<dyn HostMemory>,
    pub bar: Arc<UarSpace>,
    /// Where interrupts go; set by the front end.
    pub interrupts: Option<Arc<dyn Interrupts>>,
    /// Vectors raised under the lock, delivered after it is released.
    pub raised: Vec<u32>,
    /// Refusals under the lock, told to the log after it is released.
    pub refused: Vec<Refused>,
    pub ports: Vec<Port>,
    /// The Ethernet side of the port as software set it; unset: as the profile has it.
    pub nic_vport: Option<NicVport>,
    /// The device died (fault injection): nothing answers, nothing moves.
    pub fatal: bool,
    /// It was taken out altogether, and not only dead.
    pub removed: bool,
    pub faults: CommandFaults,
    /// Who sees its commands.
    pub watcher: Option<Watcher>,
    pub engine: engine::State,
}

impl Hca {
    pub(crate) fn new(index: HcaId, profile: Arc<Profile>, memory: Arc<dyn HostMemory>) -> Self {
        let caps = Capabilities::new(&profile, 0);
        let identity = Identity::new(index as u32, caps.general().num_ports().into());
        let link = profile.link();
        let ports = identity.ports.iter().map(|port| Port {
            up: true,
            cap_mask1: profile.hca_vport().cap_mask1(),
            lid: if link == Link::Infiniband { port.lid } else { 0 },
            gids: if link == Link::Infiniband { vec![port.link_local_gid()] } else { Vec::new() },
        });
        let roce_entries = match link {
            Link::Infiniband => 0,
            Link::Ethernet => caps.roce().roce_address_table_size().into(),
        };
        Self {
            ports: ports.collect(),
            identity,
            function: 0,
            life: Life::Disabled,
            objects: Objects {
                limits: Limits::new(caps.general(), profile.keys()),
                ..Objects::default()
            },
            numbers: AllNumbers::new(&profile),
            room: Room::default(),
            pages: Pages::default(),
            registers: BTreeMap::new(),
            issi: 0,
            nic_vport: None,
            roce_addresses: vec![RoceAddrLayout::zeroed(); roce_entries],
            memory,
            bar: Arc::new(UarSpace::new(profile.device().uar_pages)),
            interrupts: None,
            raised: Vec::new(),
            refused: Vec::new(),
            fatal: false,
            removed: false,
            faults: CommandFaults::default(),
            watcher: None,
            engine: engine::State::default(),
            caps,
            profile,
        }
    }

    /// The same as function `number` of its side of a device, whose first function is `first`.
    pub(crate) fn of_function(mut self, first: HcaId, number: u16) -> Self {
        let first = Identity::new(first as u32, self.ports.len() as u32);
        self.identity.system_image_guid = first.system_image_guid;
        self.function = number;
        self.caps = Capabilities::new(&self.profile, number);
        self
    }

    /// Brings what the data path looks at in line with the capabilities.
    pub(crate) fn capabilities_changed(&mut self) {
        self.objects.limits = Limits::new(self.caps.general(), self.profile.keys());
    }

    /// Forgets everything that commands did, as DISABLE_HCA does; there are no objects any more.
    pub(crate) fn start_afresh(&mut self) {
        self.life = Life::Disabled;
        self.caps = Capabilities::new(&self.profile, self.function);
        self.capabilities_changed();
        self.pages = Pages::default();
        self.registers.clear();
        self.issi = 0;
        self.nic_vport = None;
        self.roce_addresses.fill(RoceAddrLayout::zeroed());
    }
}

#[cfg(test)]
mod tests;
