//! Which device a LID or a GID reaches, for messages that are carried whole. One switch joins all
//! devices of a model, every port connected to it.

use crate::engine::function::Function;
use crate::hca::objects::Address;

/// The function that a packet from port `port` (from 1) of `from` to `to` reaches, by way of two
/// ports that are up.
///
/// A port's own address reaches its own device: loopback needs no special case.
pub(crate) fn reach(functions: &[Function], from: usize, port: u8, to: Address) -> Option<usize> {
    let source = &functions.get(from)?.hca;
    let link = source.profile.link();
    if !source.is_up(port) {
        return None;
    }
    functions.iter().position(|Function { hca, .. }| {
        !hca.fatal
            && hca.profile.link() == link
            && hca.ports.iter().any(|port| {
                port.up
                    && match to {
                        // A virtual port shares its LID: without a GRH nobody knows whose a packet
                        // is.
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
