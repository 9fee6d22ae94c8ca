//! One function (vhca) of a modelled device: its objects and the commands on them.

pub(crate) mod identity;
pub(crate) mod objects;

use std::sync::Arc;

use crate::engine;
use crate::memory::{HostMemory, Interrupts, UarSpace};
use crate::profile::Profile;
use crate::world::{HcaId, World};
use identity::Identity;
use objects::Objects;

/// A port's physical and logical state.
#[derive(Debug, Clone)]
pub(crate) struct Port {
    /// The wire is there and the port ACTIVE; else DOWN.
    pub up: bool,
    /// The port's LID on InfiniBand, 0 on Ethernet.
    pub lid: u16,
    /// What other ports may call it by: the GID table without its gaps.
    pub gids: Vec<[u8; 16]>,
}

/// One function of a device.
pub(crate) struct Hca {
    pub profile: Arc<Profile>,
    pub identity: Identity,
    pub objects: Objects,
    pub memory: Arc<dyn HostMemory>,
    pub bar: Arc<UarSpace>,
    /// Where interrupts go; set by the front end.
    pub interrupts: Option<Arc<dyn Interrupts>>,
    /// Vectors raised under the lock, delivered after it is released.
    pub raised: Vec<u32>,
    pub ports: Vec<Port>,
    /// The device died (fault injection): nothing answers, nothing moves.
    pub fatal: bool,
    pub engine: engine::State,
}

impl Hca {
    pub(crate) fn new(index: HcaId, profile: Arc<Profile>, memory: Arc<dyn HostMemory>) -> Self {
        let identity = Identity::new(index as u32, 1);
        let ports = (0..identity.ports.len())
            .map(|port| Port {
                up: true,
                lid: identity.ports[port].lid,
                gids: vec![identity.ports[port].link_local_gid()],
            })
            .collect();
        Self {
            profile,
            identity,
            objects: Objects::default(),
            memory,
            bar: Arc::new(UarSpace::new(64)),
            interrupts: None,
            raised: Vec::new(),
            ports,
            fatal: false,
            engine: engine::State::default(),
        }
    }
}

/// Executes one command of function `hca`: the whole inbox, uid stamped by who plays the kernel, and the whole outbox.
///
/// The outcome is in the outbox's status and syndrome, and nowhere else; a command that is not modelled answers BAD_OP.
pub(crate) fn execute(world: &mut World, hca: HcaId, _input: &[u8], output: &mut [u8]) {
    engine::queues_changed(world, hca);
    const BAD_OP: u8 = 0x2;
    output.fill(0);
    if let Some(status) = output.first_mut() {
        *status = BAD_OP;
    }
}
