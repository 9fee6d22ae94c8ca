//! The wires: which device a LID or a GID reaches. One switch joins all devices of a model, every port connected to it.

use crate::hca::objects::Address;
use crate::world::{HcaId, World};

/// The function that a packet from port `port` (from 1) of `from` to `to` reaches, by way of two ports that are up.
///
/// A port's own address reaches its own device: loopback needs no special case.
pub(crate) fn reach(world: &World, from: HcaId, port: u8, to: Address) -> Option<HcaId> {
    let source = world.hcas.get(from)?;
    let link = source.profile.link();
    if source.fatal || !source.ports.get(usize::from(port).checked_sub(1)?)?.up {
        return None;
    }
    world.hcas.iter().position(|hca| {
        !hca.fatal
            && hca.profile.link() == link
            && hca.ports.iter().any(|port| {
                port.up
                    && match to {
                        // A virtual port shares its LID: without a GRH nobody knows whose a packet is.
                        Address::Lid(lid) => {
                            lid != 0 && port.lid == lid && !hca.profile.hca_vport().grh_required()
                        }
                        Address::Routed { lid, gid } => {
                            lid != 0 && port.lid == lid && port.gids.contains(&gid)
                        }
                        Address::Gid(gid) => gid != [0; 16] && port.gids.contains(&gid),
                    }
            })
    })
}
