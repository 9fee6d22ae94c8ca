//! Which function a LID or a GID reaches, for messages that are carried whole. One switch joins all
//! devices of a model, every port connected to it.

use verbless_prm::{RoceAddrLayout, RoceL3Type, RoceVersion};

use crate::hca::objects::Address;
use crate::hca::state::Hca;
use crate::profile::Link;

/// The addresses of all functions as they were told last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Directory {
    entries: Vec<Entry>,
    /// The ports that are up, in the order of their functions: every message is looked up here.
    reachable: Vec<Reachable>,
}

/// A port that addresses reach.
#[derive(Clone, Debug)]
struct Reachable {
    function: usize,
    link: Link,
    /// Zero: none.
    lid: u16,
    /// The LID where it is enough. A virtual port shares its LID: without a GRH nobody knows whose
    /// a packet is.
    lid_alone: u16,
    gids: Vec<[u8; 16]>,
    roce: Vec<RoceName>,
}

/// What an entry of a table of RoCE addresses says: a packet is for a port if it names the GID and
/// the MAC, in the VLAN and by the version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RoceName {
    gid: [u8; 16],
    mac: [u8; 6],
    /// 0: none.
    vlan: u16,
    version: (RoceVersion, RoceL3Type),
}

impl RoceName {
    fn of(entry: &RoceAddrLayout) -> Option<Self> {
        if *entry == RoceAddrLayout::zeroed() {
            return None;
        }
        let mac = u64::from(entry.source_mac_47_32()) << 32 | u64::from(entry.source_mac_31_0());
        let [_, _, mac @ ..] = mac.to_be_bytes();
        Some(Self {
            gid: *entry.source_l3_address(),
            mac,
            vlan: if entry.vlan_valid() { entry.vlan_id() } else { 0 },
            version: match entry.roce_version() {
                RoceVersion::V1 => (RoceVersion::V1, RoceL3Type::IPV6),
                version => (version, entry.roce_l3_type()),
            },
        })
    }
}

/// The addresses of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    link: Link,
    grh_required: bool,
    ports: Vec<PortEntry>,
    /// The table of RoCE addresses, which belong to the first port.
    roce: Vec<Option<RoceName>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct PortEntry {
    up: bool,
    lid: u16,
    gids: Vec<[u8; 16]>,
}

impl Entry {
    pub(crate) fn of(hca: &Hca) -> Self {
        let ports = (1..).zip(&hca.ports).map(|(number, port)| PortEntry {
            up: hca.is_up(number),
            lid: port.lid,
            gids: port.gids.clone(),
        });
        Self {
            link: hca.profile.link(),
            grh_required: hca.profile.hca_vport().grh_required(),
            ports: ports.collect(),
            roce: hca.roce_addresses.iter().map(RoceName::of).collect(),
        }
    }
}

impl Entry {
    fn roce_name(&self, index: u8) -> Option<RoceName> {
        *self.roce.get(usize::from(index))?
    }
}

impl Directory {
    /// Takes in what the functions are called, in their order.
    pub(crate) fn new(entries: impl IntoIterator<Item = Entry>) -> Self {
        let entries: Vec<Entry> = entries.into_iter().collect();
        Self { reachable: reachable(&entries), entries }
    }

    /// Takes in what a function is called now; whether that is something new.
    pub(crate) fn set(&mut self, function: usize, entry: Entry) -> bool {
        match self.entries.get_mut(function).filter(|known| **known != entry) {
            Some(known) => {
                *known = entry;
                self.reachable = reachable(&self.entries);
                true
            }
            None => false,
        }
    }

    /// The function that an address reaches from port `port` (from 1) of function `from`.
    #[inline]
    pub(crate) fn reach(&self, from: usize, port: u8, to: Address) -> Option<usize> {
        // What does not leave the device needs no port that is up.
        if to == Address::Own {
            return Some(from);
        }
        let source = self.entries.get(from)?;
        source.ports.get(usize::from(port).checked_sub(1)?).filter(|port| port.up)?;
        let mut there = self.reachable.iter().filter(|port| port.link == source.link);
        let found = match to {
            Address::Lid(lid) if lid != 0 => there.find(|port| port.lid_alone == lid),
            Address::Routed { lid, gid } if lid != 0 => {
                there.find(|port| port.lid == lid && port.gids.contains(&gid))
            }
            Address::Roce { gid, mac, own } => {
                let RoceName { vlan, version, .. } = source.roce_name(own)?;
                let name = RoceName { gid, mac, vlan, version };
                there.find(|port| port.roce.contains(&name))
            }
            Address::Lid(_) | Address::Routed { .. } | Address::Own => None,
        };
        found.map(|port| port.function)
    }

    /// Whether a QP of function `to`, whose peer is `peer`, takes messages that a QP of function
    /// `from` sends to `sent`: both as the QPs know each other. The way back may differ.
    #[inline]
    pub(crate) fn is_from_peer(
        &self,
        (from, sent): (usize, Address),
        (to, port, peer): (usize, u8, Address),
    ) -> bool {
        match (sent, peer) {
            (Address::Roce { gid: there, own: here, .. }, Address::Roce { gid, own, .. }) => {
                self.roce_gid(from, here) == Some(gid) && self.roce_gid(to, own) == Some(there)
            }
            _ => self.reach(to, port, peer) == Some(from),
        }
    }

    /// The GID of an entry of a function's table of RoCE addresses.
    fn roce_gid(&self, function: usize, index: u8) -> Option<[u8; 16]> {
        self.entries.get(function)?.roce_name(index).map(|name| name.gid)
    }
}

/// The ports of functions that are up.
fn reachable(entries: &[Entry]) -> Vec<Reachable> {
    let of_entry = |(function, entry): (usize, &Entry)| {
        let Entry { link, grh_required, .. } = *entry;
        let up = entry.ports.iter().zip(1..).filter(|(port, _)| port.up);
        let roce = |number| match number {
            1 => entry.roce.iter().flatten().copied().collect(),
            _ => Vec::new(),
        };
        let reachable = up.map(move |(PortEntry { lid, gids, .. }, number)| Reachable {
            roce: roce(number),
            function,
            link,
            lid: *lid,
            lid_alone: if grh_required { 0 } else { *lid },
            gids: gids.clone(),
        });
        reachable.collect::<Vec<_>>()
    };
    entries.iter().enumerate().flat_map(of_entry).collect()
}
