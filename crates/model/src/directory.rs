//! Which function a LID or a GID reaches, for messages that are carried whole. One switch joins all
//! devices of a model, every port connected to it.

use crate::hca::objects::Address;
use crate::hca::state::Hca;
use crate::profile::Link;

/// The addresses of all functions as they were told last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Directory(Vec<Entry>);

/// What a function is called.
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
        Self(entries.into_iter().collect())
    }

    /// Takes in what a function is called now; whether that is something new.
    pub(crate) fn set(&mut self, function: usize, entry: Entry) -> bool {
        match self.0.get_mut(function).filter(|known| **known != entry) {
            Some(known) => {
                *known = entry;
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
        let source = self.0.get(from)?;
        source.ports.get(usize::from(port).checked_sub(1)?).filter(|port| port.up)?;
        self.0.iter().position(|entry| {
            entry.link == source.link
                && entry.ports.iter().any(|port| {
                    port.up
                        && match to {
                            // A virtual port shares its LID: without a GRH nobody knows whose a
                            // packet is.
                            Address::Lid(lid) => lid != 0 && port.lid == lid && !entry.grh_required,
                            Address::Routed { lid, gid } => {
                                lid != 0 && port.lid == lid && port.gids.contains(&gid)
                            }
                            Address::Gid(gid) => gid != [0; 16] && port.gids.contains(&gid),
                            Address::Own => false,
                        }
                })
        })
    }
}
