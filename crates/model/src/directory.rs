//! Which function a LID or a GID reaches, for messages that are carried whole. One switch joins all
//! devices of a model, every port connected to it.

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
}

/// The addresses of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    link: Link,
    grh_required: bool,
    ports: Vec<PortEntry>,
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
        }
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
            Address::Gid(gid) if gid != [0; 16] => there.find(|port| port.gids.contains(&gid)),
            Address::Lid(_) | Address::Routed { .. } | Address::Gid(_) | Address::Own => None,
        };
        found.map(|port| port.function)
    }
}

/// The ports of functions that are up.
fn reachable(entries: &[Entry]) -> Vec<Reachable> {
    let of_entry = |(function, entry): (usize, &Entry)| {
        let Entry { link, grh_required, .. } = *entry;
        let up = entry.ports.iter().filter(|port| port.up);
        let reachable = up.map(move |PortEntry { lid, gids, .. }| Reachable {
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
