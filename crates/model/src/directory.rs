//! Maps a LID or a GID to a function, for messages that are carried whole. One switch joins every
//! port of all devices of a model.

use verbless_prm::{RoceAddrLayout, RoceL3Type, RoceVersion};

use crate::hca::objects::Address;
use crate::hca::state::Hca;
use crate::profile::Link;

/// The last reported addresses of all functions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Directory {
    entries: Vec<AddressEntry>,
    /// The ports that are up, in the order of their functions; every message takes a lookup here.
    reachable: Vec<Reachable>,
    /// The RoCE addresses of those ports, with their functions.
    roce: Vec<(RoceName, usize)>,
}

/// A reachable port.
#[derive(Clone, Debug)]
struct Reachable {
    function: usize,
    link: Link,
    /// 0: the port has none.
    lid: u16,
    /// The LID, if it identifies only this port. A virtual port shares its LID: a packet without a
    /// GRH does not identify its destination.
    unique_lid: u16,
    gids: Vec<[u8; 16]>,
}

/// An entry of a table of RoCE addresses. A packet is for a port if it names the GID and the MAC,
/// in the VLAN and the RoCE version. Every message takes a lookup by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RoceName {
    /// The MAC in bits 63:16, the VLAN (0: none) in bits 15:4, the version in bits 3:0.
    key: u64,
    gid: [u8; 16],
}

impl RoceName {
    fn of(entry: &RoceAddrLayout) -> Option<Self> {
        if *entry == RoceAddrLayout::zeroed() {
            return None;
        }
        let mac = u64::from(entry.source_mac_47_32()) << 32 | u64::from(entry.source_mac_31_0());
        let vlan = if entry.vlan_valid() { entry.vlan_id() & 0xfff } else { 0 };
        let version = match (entry.roce_version(), entry.roce_l3_type()) {
            (RoceVersion::V1, _) => 1,
            (_, RoceL3Type::IPV4) => 4,
            _ => 6,
        };
        let key = mac << 16 | u64::from(vlan) << 4 | version;
        Some(Self { key, gid: *entry.source_l3_address() })
    }

    /// The name of the peer with this MAC and GID, in the VLAN and RoCE version of this name.
    #[inline]
    fn of_peer(&self, mac: [u8; 6], gid: [u8; 16]) -> Self {
        let [a, b, c, d, e, f] = mac;
        let key = u64::from_be_bytes([a, b, c, d, e, f, 0, 0]) | self.key & 0xffff;
        Self { key, gid }
    }

    #[inline]
    fn is(&self, other: &Self) -> bool {
        self.key == other.key && u128::from_ne_bytes(self.gid) == u128::from_ne_bytes(other.gid)
    }
}

/// The addresses of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AddressEntry {
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

impl AddressEntry {
    pub(crate) fn of(hca: &Hca) -> Self {
        let ports = (1..=u8::MAX).zip(&hca.ports).map(|(number, port)| PortEntry {
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

impl AddressEntry {
    #[inline]
    fn roce_name(&self, index: u8) -> Option<&RoceName> {
        self.roce.get(usize::from(index))?.as_ref()
    }
}

impl Directory {
    /// Builds the directory from the functions' addresses, in function order.
    pub(crate) fn new(entries: impl IntoIterator<Item = AddressEntry>) -> Self {
        let entries: Vec<AddressEntry> = entries.into_iter().collect();
        Self { reachable: reachable(&entries), roce: roce(&entries), entries }
    }

    /// Replaces the addresses of a function; returns whether they changed.
    pub(crate) fn set(&mut self, function: usize, entry: AddressEntry) -> bool {
        match self.entries.get_mut(function).filter(|known| **known != entry) {
            Some(known) => {
                *known = entry;
                self.reachable = reachable(&self.entries);
                self.roce = roce(&self.entries);
                true
            }
            None => false,
        }
    }

    /// The function that an address reaches from port `port` (from 1) of function `from`.
    #[inline]
    pub(crate) fn reach(&self, from: usize, port: u8, to: Address) -> Option<usize> {
        // Traffic that stays in the device needs no port that is up.
        if to == Address::Own {
            return Some(from);
        }
        let source = self.entries.get(from)?;
        source.ports.get(usize::from(port).checked_sub(1)?).filter(|port| port.up)?;
        let mut there = self.reachable.iter().filter(|port| port.link == source.link);
        let found = match to {
            Address::Lid(lid) if lid != 0 => there.find(|port| port.unique_lid == lid),
            Address::Routed { lid, gid } if lid != 0 => {
                there.find(|port| port.lid == lid && port.gids.contains(&gid))
            }
            Address::Roce { gid, mac, own } => {
                let name = source.roce_name(own)?.of_peer(mac, gid);
                let found = self.roce.iter().find(|(other, _)| other.is(&name));
                return found.map(|&(_, function)| function);
            }
            Address::Lid(_) | Address::Routed { .. } | Address::Own => None,
        };
        found.map(|port| port.function)
    }

    /// Checks the addresses of two QPs. `None`: the QP of function `to`, on port `port` with peer
    /// `peer`, does not accept messages that a QP of function `from` sends to `sent`. Otherwise,
    /// whether its responses reach the sender.
    #[inline]
    pub(crate) fn answers(
        &self,
        (from, sent): (usize, Address),
        (to, port, peer): (usize, u8, Address),
    ) -> Option<bool> {
        match (sent, peer) {
            (Address::Roce { gid: there, own: here, .. }, Address::Roce { gid, mac, own }) => {
                let one = self.entries.get(from)?.roce_name(here)?;
                let other = self.entries.get(to)?.roce_name(own)?;
                if one.gid != gid || other.gid != there {
                    return None;
                }
                // Most often the name of the reply is the name that the message came from.
                let same = port == 1 && one.is(&other.of_peer(mac, gid));
                Some(same || self.reach(to, port, peer) == Some(from))
            }
            _ => (self.reach(to, port, peer) == Some(from)).then_some(true),
        }
    }
}

/// The ports that are up.
fn reachable(entries: &[AddressEntry]) -> Vec<Reachable> {
    let of_entry = |(function, entry): (usize, &AddressEntry)| {
        let AddressEntry { link, grh_required, .. } = *entry;
        let up = entry.ports.iter().filter(|port| port.up);
        let reachable = up.map(move |PortEntry { lid, gids, .. }| Reachable {
            function,
            link,
            lid: *lid,
            unique_lid: if grh_required { 0 } else { *lid },
            gids: gids.clone(),
        });
        reachable.collect::<Vec<_>>()
    };
    entries.iter().enumerate().flat_map(of_entry).collect()
}

/// The RoCE addresses of ports that are up; only a function's first port has any.
fn roce(entries: &[AddressEntry]) -> Vec<(RoceName, usize)> {
    let up =
        entries.iter().zip(0..).filter(|(entry, _)| entry.ports.first().is_some_and(|it| it.up));
    let names = |(entry, function): (&AddressEntry, usize)| {
        entry.roce.iter().flatten().map(move |&name| (name, function)).collect::<Vec<_>>()
    };
    up.flat_map(names).collect()
}
