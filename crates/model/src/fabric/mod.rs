//! The fabric: the frames that devices exchange, and the links that they cross.
//!
//! ```text
//!   vport (function 0, port 1) ──┐
//!                                ├─ card's switch ── physical port ══ link ══╗
//!   vport (function 1, port 1) ──┘                                           ║
//!                                                                         switch
//!   vport (function 2, port 1) ──── card's switch ── physical port ══ link ══╣
//!                                       a host outside this process ══ link ══╝
//! ```
//!
//! Functions, vports and physical ports are three things: a vport is one port of one function, and
//! the functions of a card share its physical ports through a switch inside the card. One switch
//! joins all physical ports of one kind (Ethernet, InfiniBand). It forwards by destination MAC,
//! known from [`Addresses`] or learned, or by DLID. Multicast frames, and Ethernet frames to an
//! unknown MAC, go to every port. A frame between two vports of one physical port stays in the
//! card.
//!
//! The fabric has no clock of its own: [`Fabric::transmit`] gets the time at which a frame is sent,
//! [`Fabric::next_due`] returns when the next frame arrives, [`Fabric::take`] hands a function its
//! next arrived frame. One queue orders all events by time and number, so that every run is the
//! same.
//!
//! This file has the ports and their names; [`forward`] has the paths of frames. Messages that are
//! carried whole do not come here: `directory` finds the function with an address.

pub(crate) mod address;
#[cfg(test)]
mod dissect;
pub(crate) mod fault;
mod forward;
pub(crate) mod frame;
mod link;
mod pcapng;
mod random;
mod schedule;
mod shared;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::address::Addresses;
pub use self::fault::{FrameEffect, FrameFault, FrameSelector, Occurrence};
pub(crate) use self::frame::{Buffers, Frame};
pub use self::link::{LinkSettings, Traffic};
pub(crate) use self::pcapng::Capture;
pub(crate) use self::shared::SharedFabric;

use self::link::{Cable, Direction};
use self::schedule::Schedule;
use crate::profile::Link;
use crate::watch::{Outbox, SeenFrame};
use verbless_wire::Mac;

/// A port of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Vport {
    /// The function, from 0.
    pub function: usize,
    /// The port, from 1.
    pub port: u8,
}

/// A physical port of a card, or a link out of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PhysicalPort(usize);

/// A frame that has arrived.
#[derive(Debug)]
pub(crate) struct Delivery {
    /// The receiving vport.
    pub to: Vport,
    /// Whether the receiving vport sent the frame itself, to itself or to a group.
    pub own: bool,
    /// The frame; [`Fabric::recycle`] reuses its buffer.
    pub frame: Frame,
}

/// Sends frames out of this process. The fabric is locked during the call, so it must not wait.
pub(crate) type External = Box<dyn FnMut(&[u8]) + Send>;

/// A function's gateway out of this process: a router to other hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gateway {
    /// The function.
    pub function: usize,
    /// The router's MAC.
    pub mac: Mac,
    /// The function's address on the gateway's network, as a GID.
    pub local: [u8; 16],
    /// The hosts that the gateway reaches, as GIDs.
    pub peers: Vec<[u8; 16]>,
}

/// Physical ports, vports, links, and frames in flight.
#[derive(Default)]
pub(crate) struct Fabric {
    ports: Vec<Port>,
    vports: BTreeMap<Vport, PhysicalPort>,
    /// The ports with a vport of this name, in order.
    known: BTreeMap<Name, Vec<PhysicalPort>>,
    /// Ports of learned source addresses, which no vport has.
    learned: BTreeMap<Mac, PhysicalPort>,
    schedule: Schedule<Crossing>,
    /// Frames that have arrived, by function, each with the time and number that order them.
    arrived: Vec<VecDeque<((u64, u64), Delivery)>>,
    /// Number of frames in `arrived`.
    waiting: usize,
    /// Number of frames that ever arrived.
    arrivals: u64,
    /// When the last frame was sent.
    now: u64,
    buffers: Buffers,
    /// Number of links out of the model that ever existed.
    externals: usize,
    /// Whether a link was ever changed.
    changed: bool,
    /// The queue of frames for observers.
    outbox: Option<Arc<Outbox>>,
}

/// An address by which the switch knows a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    Mac(Mac),
    Lid(u16),
}

struct Port {
    /// The port's name in captures.
    name: Arc<str>,
    cable: Cable,
    members: Vec<(Vport, Addresses)>,
    external: Option<External>,
    gateway: Option<Gateway>,
}

/// A frame's path over the link of a port, or through the port's card.
#[derive(Clone, Copy)]
struct Passage {
    port: PhysicalPort,
    direction: Direction,
    /// The vport that sent the frame, if it is in the card of `port`.
    from: Option<Vport>,
}

/// A frame that has crossed a link, or its card.
struct Crossing {
    passage: Passage,
    frame: Frame,
}

impl Fabric {
    /// Adds a card with `ports` physical ports, which these functions share: port `n` of each
    /// function is on physical port `n`.
    pub(crate) fn add_card(
        &mut self,
        kind: Link,
        ports: u8,
        functions: impl IntoIterator<Item = usize>,
    ) {
        let first = self.ports.len();
        let functions: Vec<usize> = functions.into_iter().collect();
        let card = functions.first().copied().unwrap_or_default();
        for number in 1..=ports {
            let name = format!("device {card} port {number}").into();
            let cable = Cable::new(kind, self.ports.len());
            self.ports.push(Port {
                name,
                cable,
                members: Vec::new(),
                external: None,
                gateway: None,
            });
        }
        for function in functions {
            if self.arrived.len() <= function {
                self.arrived.resize_with(function + 1, VecDeque::new);
            }
            for port in 1..=ports {
                let (vport, physical) = (Vport { function, port }, first + usize::from(port) - 1);
                self.vports.insert(vport, PhysicalPort(physical));
                self.ports[physical].members.push((vport, Addresses::default()));
            }
        }
    }

    /// Adds a link out of the model: `external` gets every frame, sealed, that the switch sends
    /// there.
    pub(crate) fn add_external(
        &mut self,
        kind: Link,
        gateway: Option<Gateway>,
        external: External,
    ) -> PhysicalPort {
        let name = format!("external {}", self.externals).into();
        self.externals += 1;
        let (cable, at) = (Cable::new(kind, self.ports.len()), PhysicalPort(self.ports.len()));
        if let Some(gateway) = &gateway {
            self.learned.insert(gateway.mac, at);
        }
        let (members, external) = (Vec::new(), Some(external));
        self.ports.push(Port { name, cable, members, external, gateway });
        at
    }

    /// Removes a link out of the model; its number is not reused.
    pub(crate) fn remove_external(&mut self, port: PhysicalPort) {
        self.ports[port.0].external = None;
        self.ports[port.0].gateway = None;
        self.ports[port.0].cable.set(LinkSettings { up: false, ..LinkSettings::default() });
        self.learned.retain(|_, learned| *learned != port);
    }

    /// Sets the addresses that a vport accepts. Does nothing if there is no such vport.
    pub(crate) fn set_addresses(&mut self, vport: Vport, addresses: Addresses) {
        let Some(&PhysicalPort(port)) = self.vports.get(&vport) else { return };
        let members = &mut self.ports[port].members;
        let Some((_, now)) = members.iter_mut().find(|(member, _)| *member == vport) else {
            return;
        };
        if *now != addresses {
            *now = addresses;
            self.update_known();
        }
    }

    fn update_known(&mut self) {
        self.known.clear();
        for (at, port) in self.ports.iter().enumerate() {
            for (_, addresses) in &port.members {
                let macs = addresses.macs.iter().map(|&mac| Name::Mac(mac));
                let lid = Some(Name::Lid(addresses.lid)).filter(|_| addresses.lid != 0);
                for name in macs.chain(lid) {
                    let ports = self.known.entry(name).or_default();
                    if ports.last() != Some(&PhysicalPort(at)) {
                        ports.push(PhysicalPort(at));
                    }
                }
            }
        }
    }

    /// Reports frames to the observers of `outbox`.
    pub(crate) fn report_to(&mut self, outbox: Arc<Outbox>) {
        self.outbox = Some(outbox);
    }

    /// Reports a frame to the observers.
    fn report(&self, now: u64, port: PhysicalPort, leaving: bool, frame: &mut Frame) {
        let Some(outbox) = self.outbox.as_ref().filter(|it| it.frames.is_watched()) else { return };
        frame.seal();
        let Port { name, cable, .. } = &self.ports[port.0];
        let (name, link) = (name.clone(), cable.kind());
        let bytes = frame.bytes().into();
        let at = Duration::from_nanos(now);
        outbox.frame(SeenFrame { port: port.0, name, link, at, leaving, bytes });
    }

    /// The physical port of a vport.
    pub(crate) fn physical_port(&self, vport: Vport) -> Option<PhysicalPort> {
        self.vports.get(&vport).copied()
    }

    /// The physical ports.
    #[cfg(feature = "toml")]
    pub(crate) fn ports(&self) -> impl Iterator<Item = PhysicalPort> + use<> {
        (0..self.ports.len()).map(PhysicalPort)
    }

    /// The vports of a physical port.
    pub(crate) fn vports(&self, port: PhysicalPort) -> Vec<Vport> {
        self.ports[port.0].members.iter().map(|&(vport, _)| vport).collect()
    }

    fn in_flight(&self) -> usize {
        self.schedule.len() + self.waiting
    }

    /// Whether messages of connections may be carried whole: no fault can hit a frame, no frame is
    /// in flight on a link, no observer exists, and no link leads out of the model.
    #[cfg(test)]
    pub(crate) fn is_undisturbed(&self) -> bool {
        !self.is_disturbed() && !self.outbox.as_ref().is_some_and(|it| it.frames.is_watched())
    }

    /// Whether a fault can hit frames, a frame is in flight on a link, or a link leads out of the
    /// model.
    fn is_disturbed(&self) -> bool {
        self.schedule.len() > 0
            || self.has_external_peer()
            || self.changed && !self.ports.iter().all(|port| port.cable.is_undisturbed())
    }

    /// Whether a link leads out of the model.
    pub(crate) fn has_external_peer(&self) -> bool {
        self.externals != 0 && self.ports.iter().any(|port| port.external.is_some())
    }

    /// Whether a link for any frame, and not only a gateway, leads out of the model.
    pub(crate) fn has_neighbours(&self) -> bool {
        self.ports.iter().any(|port| port.external.is_some() && port.gateway.is_none())
    }

    /// The gateways of a function.
    pub(crate) fn gateways(&self, function: usize) -> impl Iterator<Item = &Gateway> {
        let gateways = self.ports.iter().filter_map(|port| port.gateway.as_ref());
        gateways.filter(move |gateway| gateway.function == function)
    }

    /// The settings of a physical port's link.
    pub(crate) fn link(&self, port: PhysicalPort) -> &LinkSettings {
        self.ports[port.0].cable.settings()
    }

    /// Changes the settings of a physical port's link.
    pub(crate) fn set_link(&mut self, port: PhysicalPort, settings: LinkSettings) {
        self.changed = true;
        self.ports[port.0].cable.set(settings);
    }

    /// Counts of frames from the card to the switch, and from the switch to the card.
    pub(crate) fn traffic(&self, port: PhysicalPort) -> [Traffic; 2] {
        [Direction::Out, Direction::In].map(|way| self.ports[port.0].cable.traffic(way))
    }

    /// Counts of frames that stay in the card, from one vport to another or to itself.
    pub(crate) fn traffic_inside(&self, port: PhysicalPort) -> Traffic {
        self.ports[port.0].cable.traffic(Direction::Inside)
    }

    /// Gives free buffers to `with`, if it has none.
    pub(crate) fn share_buffers(&mut self, with: &mut Buffers) {
        if with.is_empty() {
            std::mem::swap(&mut self.buffers, with);
        }
    }

    /// Takes back a frame that was handled.
    pub(crate) fn recycle(&mut self, frame: Frame) {
        self.buffers.recycle(frame);
    }
}
