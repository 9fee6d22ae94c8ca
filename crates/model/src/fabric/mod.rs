//! The fabric: the frames that devices exchange, and the links that they cross.
//!
//! ```text
//!   vport (function 0, port 1) ──┐
//!                                ├─ card's switch ── physical port ══ link ══╗
//!   vport (function 1, port 1) ──┘                                           ║
//!                                                                         switch
//!   vport (function 2, port 1) ──── card's switch ── physical port ══ link ══╣
//!                                     somebody outside this process ══ link ══╝
//! ```
//!
//! Functions, vports and physical ports are three things: a vport is one port of one function, and
//! the functions of a card share its physical ports through a switch inside the card. All physical
//! ports of one kind (Ethernet, InfiniBand) are joined by one switch. It forwards by destination
//! MAC, known from [`Addresses`] or learned, or by DLID; groups, and on Ethernet what nobody is
//! known by, go to every port. A frame between two vports of one physical port stays in the card.
//!
//! The caller's clock is the only one: [`Fabric::transmit`] says when a frame is sent,
//! [`Fabric::next_due`] when the next arrives somewhere, [`Fabric::take`] hands a function what has
//! arrived for it. One queue orders all by time and number, so what happens is the same in every
//! run.
//!
//! [`reach`] is the way of messages that are carried whole: which function a port's address
//! reaches.

pub(crate) mod address;
#[cfg(test)]
mod dissect;
pub(crate) mod fault;
pub(crate) mod frame;
mod link;
mod pcapng;
mod random;
mod reach;
mod schedule;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::address::Addresses;
pub use self::fault::{FrameEffect, FrameFault, FrameSelector, Occurrence};
pub(crate) use self::frame::{Buffers, Frame};
pub use self::link::{LinkSettings, Traffic};
pub(crate) use self::pcapng::Pcapng;
pub(crate) use self::reach::reach;

use self::address::{Destination, source_mac};
use self::link::{Cable, Direction};
use self::schedule::Schedule;
use crate::profile::Link;
use crate::watch::{Outbox, SeenFrame};
#[cfg(test)]
use crate::wire::Headers;
use crate::wire::Mac;

/// One port of one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Vport {
    /// The function, from 0.
    pub function: usize,
    /// The port, from 1.
    pub port: u8,
}

/// A physical port of a card, or a link to somebody outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PhysicalPort(usize);

/// A frame that has arrived.
#[derive(Debug)]
pub(crate) struct Delivery {
    /// Who gets it.
    pub to: Vport,
    /// Whether it is a vport's own, sent to itself or to a group.
    pub own: bool,
    /// What was sent; [`Fabric::recycle`] takes it back.
    pub frame: Frame,
}

/// Where frames for somebody outside this process go. It is called with the fabric in hand, so it
/// must not wait.
pub(crate) type External = Box<dyn FnMut(&[u8]) + Send>;

/// Addresses that the switch remembers of those outside; more make it forget all.
const MOST_LEARNED: usize = 4096;
/// Frames that may be on their way; more are dropped.
const MOST_IN_FLIGHT: usize = 1 << 16;
/// The shortest and the longest frame from outside.
const EXTERNAL_BYTES: std::ops::RangeInclusive<usize> = 14..=0xffff;

/// Physical ports, vports, links, and what is on its way.
#[derive(Default)]
pub(crate) struct Fabric {
    ports: Vec<Port>,
    vports: BTreeMap<Vport, PhysicalPort>,
    /// Which ports have a vport of this name, in order.
    known: BTreeMap<Name, Vec<PhysicalPort>>,
    /// Where frames from an address that no vport has came from.
    learned: BTreeMap<Mac, PhysicalPort>,
    schedule: Schedule<Crossing>,
    /// What has arrived, by function, each with its time and number, by which they are ordered.
    arrived: Vec<VecDeque<((u64, u64), Delivery)>>,
    /// How many wait there.
    waiting: usize,
    /// How many ever arrived.
    arrivals: u64,
    buffers: Buffers,
    /// How many links there ever were to somebody outside.
    externals: usize,
    /// Whether a link was ever changed.
    changed: bool,
    /// Where those who watch are shown frames.
    outbox: Option<Arc<Outbox>>,
}

/// What the switch knows a port by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    Mac(Mac),
    Lid(u16),
}

struct Port {
    /// What captures call it.
    name: Arc<str>,
    cable: Cable,
    members: Vec<(Vport, Addresses)>,
    external: Option<External>,
}

/// A frame that is at the end of its way over a link.
struct Crossing {
    port: PhysicalPort,
    direction: Direction,
    /// The vport, inside a card.
    from: Option<Vport>,
    frame: Frame,
}

impl Fabric {
    /// Adds a card with so many physical ports, which these functions share: port `n` of each is
    /// behind physical port `n`.
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
            self.ports.push(Port { name, cable, members: Vec::new(), external: None });
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

    /// Adds a link to somebody outside: `external` gets, sealed, what the switch sends there.
    pub(crate) fn add_external(&mut self, kind: Link, external: External) -> PhysicalPort {
        let name = format!("external {}", self.externals).into();
        self.externals += 1;
        let cable = Cable::new(kind, self.ports.len());
        self.ports.push(Port { name, cable, members: Vec::new(), external: Some(external) });
        PhysicalPort(self.ports.len() - 1)
    }

    /// Takes the link to somebody outside away; its number is given to no other.
    pub(crate) fn remove_external(&mut self, port: PhysicalPort) {
        self.ports[port.0].external = None;
        self.ports[port.0].cable.set(LinkSettings { up: false, ..LinkSettings::default() });
        self.learned.retain(|_, learned| *learned != port);
    }

    /// Says what a vport takes from now on. Nothing happens if there is no such vport.
    pub(crate) fn set_addresses(&mut self, vport: Vport, addresses: Addresses) {
        let Some(&PhysicalPort(port)) = self.vports.get(&vport) else { return };
        let members = &mut self.ports[port].members;
        let Some((_, now)) = members.iter_mut().find(|(member, _)| *member == vport) else {
            return;
        };
        if *now != addresses {
            *now = addresses;
            self.know();
        }
    }

    fn know(&mut self) {
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

    /// Shows frames to those who watch `outbox`.
    pub(crate) fn show(&mut self, outbox: Arc<Outbox>) {
        self.outbox = Some(outbox);
    }

    fn is_watched(&self) -> bool {
        self.outbox.as_ref().is_some_and(|outbox| outbox.frames.is_watched())
    }

    /// Shows a frame to those who watch.
    fn see(&self, now: u64, port: PhysicalPort, leaving: bool, frame: &mut Frame) {
        let Some(outbox) = self.outbox.as_ref().filter(|it| it.frames.is_watched()) else { return };
        frame.seal();
        let Port { name, cable, .. } = &self.ports[port.0];
        let (name, link) = (name.clone(), cable.kind());
        let bytes = frame.bytes().into();
        let at = Duration::from_nanos(now);
        outbox.frame(SeenFrame { port: port.0, name, link, at, leaving, bytes });
    }

    /// The physical port that a vport is behind.
    pub(crate) fn physical_port(&self, vport: Vport) -> Option<PhysicalPort> {
        self.vports.get(&vport).copied()
    }

    /// The physical ports.
    pub(crate) fn ports(&self) -> impl Iterator<Item = PhysicalPort> + use<> {
        (0..self.ports.len()).map(PhysicalPort)
    }

    /// The vports behind a physical port.
    pub(crate) fn vports(&self, port: PhysicalPort) -> Vec<Vport> {
        self.ports[port.0].members.iter().map(|&(vport, _)| vport).collect()
    }

    /// Whether no frame is on its way, and none waits to be taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.in_flight() == 0
    }

    fn in_flight(&self) -> usize {
        self.schedule.len() + self.waiting
    }

    /// Whether nothing can happen to any frame, none is under way on a link, nobody watches, and
    /// nobody is outside: messages may be carried whole.
    pub(crate) fn is_undisturbed(&self) -> bool {
        let perfect = !self.changed || self.ports.iter().all(|port| port.cable.is_undisturbed());
        perfect && !self.leads_outside() && self.schedule.len() == 0 && !self.is_watched()
    }

    /// Whether somebody outside is joined.
    pub(crate) fn leads_outside(&self) -> bool {
        self.externals != 0 && self.ports.iter().any(|port| port.external.is_some())
    }

    /// How the link of a physical port is.
    pub(crate) fn link(&self, port: PhysicalPort) -> &LinkSettings {
        self.ports[port.0].cable.settings()
    }

    /// Changes the link of a physical port.
    pub(crate) fn set_link(&mut self, port: PhysicalPort, settings: LinkSettings) {
        self.changed = true;
        self.ports[port.0].cable.set(settings);
    }

    /// What happened to frames from the card to the switch, and to those that came.
    pub(crate) fn traffic(&self, port: PhysicalPort) -> [Traffic; 2] {
        [Direction::Out, Direction::In].map(|way| self.ports[port.0].cable.traffic(way))
    }

    /// A packet to send: its headers, and a payload of so many bytes, which `fill` writes.
    ///
    /// # Panics
    /// If the extension headers are not those of the opcode.
    #[cfg(test)]
    pub(crate) fn packet(
        &mut self,
        headers: &Headers,
        payload: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Frame {
        self.buffers.packet(headers, payload, fill)
    }

    /// A frame of these bytes to send, as raw Ethernet has it.
    #[cfg(test)]
    pub(crate) fn frame(&mut self, kind: Link, bytes: &[u8]) -> Frame {
        self.buffers.of_bytes(kind, bytes)
    }

    /// Gives the buffers that are free to one who has none.
    pub(crate) fn share_buffers(&mut self, with: &mut Buffers) {
        if with.is_empty() {
            std::mem::swap(&mut self.buffers, with);
        }
    }

    /// Takes back a frame that has been dealt with.
    pub(crate) fn recycle(&mut self, frame: Frame) {
        self.buffers.recycle(frame);
    }

    #[allow(dead_code, reason = "the engine does not pace senders yet")]
    /// From when on a vport may send without its frames waiting long for the link. Who sends on
    /// fills a queue that drops what is too much.
    pub(crate) fn clear_to_send(&self, now: u64, from: Vport) -> u64 {
        self.vports.get(&from).map_or(now, |port| self.ports[port.0].cable.clear_to_send(now))
    }

    /// Sends a frame.
    pub(crate) fn transmit(&mut self, now: u64, from: Vport, mut frame: Frame) {
        self.advance(now);
        let port = self.vports.get(&from).copied();
        let destination =
            port.and_then(|port| Destination::of(self.ports[port.0].cable.kind(), frame.bytes()));
        let (Some(port), Some(destination)) = (port, destination) else {
            return self.buffers.recycle(frame);
        };
        self.see(now, port, true, &mut frame);
        let members = &self.ports[port.0].members;
        let inside = match destination.is_group() {
            true => true,
            false => members.iter().any(|(_, addresses)| addresses.name(destination)),
        };
        if inside && destination.is_group() {
            let copy = self.buffers.copy(&frame);
            self.cross(now, port, Direction::Inside, Some(from), copy);
        }
        let direction = match inside && !destination.is_group() {
            true => Direction::Inside,
            false => Direction::Out,
        };
        self.cross(now, port, direction, Some(from), frame);
    }

    /// Takes a frame from somebody outside, any bytes. What is no frame is dropped.
    pub(crate) fn inject(&mut self, now: u64, from: PhysicalPort, bytes: &[u8]) {
        if EXTERNAL_BYTES.contains(&bytes.len()) {
            self.advance(now);
            let mut frame = self.buffers.of_bytes(self.ports[from.0].cable.kind(), bytes);
            self.see(now, from, true, &mut frame);
            self.cross(now, from, Direction::Out, None, frame);
        }
    }

    /// When the next frame arrives somewhere, or when the first of those arrived that wait.
    pub(crate) fn next_due(&self) -> Option<u64> {
        let waits = self.first().map(|((at, _), _)| at);
        waits.into_iter().chain(self.schedule.next_due()).min()
    }

    /// The first of the frames that wait: its time, its number and its function.
    fn first(&self) -> Option<((u64, u64), usize)> {
        if self.waiting == 0 {
            return None;
        }
        let heads = self.arrived.iter().zip(0..);
        heads.filter_map(|(queue, function)| Some((queue.front()?.0, function))).min()
    }

    /// The function that the next frame has arrived for.
    pub(crate) fn next_receiver(&mut self, now: u64) -> Option<usize> {
        self.advance(now);
        self.first().filter(|((at, _), _)| *at <= now).map(|(_, function)| function)
    }

    /// Hands over the next frame that has arrived for a function.
    pub(crate) fn take(&mut self, now: u64, function: usize) -> Option<Delivery> {
        self.advance(now);
        let (_, delivery) =
            self.arrived.get_mut(function)?.pop_front_if(|((at, _), _)| *at <= now)?;
        self.waiting -= 1;
        Some(delivery)
    }

    /// Lets everything arrive that is due.
    fn advance(&mut self, now: u64) {
        while let Some((at, Crossing { port, direction, from, frame })) = self.schedule.pop_due(now)
        {
            match self.ports[port.0].cable.arrived(direction) {
                true => self.crossed(at, port, direction, from, frame),
                false => self.buffers.recycle(frame),
            }
        }
    }

    /// Lets a frame cross a link, or a card, with what its faults do to it.
    fn cross(
        &mut self,
        now: u64,
        port: PhysicalPort,
        direction: Direction,
        from: Option<Vport>,
        mut frame: Frame,
    ) {
        let outcome = self.ports[port.0].cable.disturb(direction, &frame);
        if !outcome.lost {
            for _ in 0..outcome.copies {
                let copy = self.buffers.copy(&frame);
                self.depart(now, port, direction, from, copy, 0);
            }
        }
        if let Some((bits, seed)) = outcome.corrupt {
            frame.corrupt(bits, seed);
        }
        match outcome.lost {
            // It takes the link's time all the same.
            true => {
                self.ports[port.0].cable.cross(direction, now, frame.bytes().len(), 0);
                self.buffers.recycle(frame);
            }
            false => self.depart(now, port, direction, from, frame, outcome.delay),
        }
    }

    fn depart(
        &mut self,
        now: u64,
        port: PhysicalPort,
        direction: Direction,
        from: Option<Vport>,
        frame: Frame,
        delay: u64,
    ) {
        let full = self.in_flight() >= MOST_IN_FLIGHT;
        let cable = &mut self.ports[port.0].cable;
        match cable.cross(direction, now, frame.bytes().len(), delay) {
            Some(at) if at <= now && cable.is_empty(direction) => {
                self.crossed(now, port, direction, from, frame);
            }
            Some(_) if full => {
                cable.overflow(direction);
                self.buffers.recycle(frame);
            }
            Some(at) => {
                cable.departed(direction);
                self.schedule.add(at, Crossing { port, direction, from, frame });
            }
            None => self.buffers.recycle(frame),
        }
    }

    /// A frame has crossed a link, or a card.
    fn crossed(
        &mut self,
        now: u64,
        port: PhysicalPort,
        direction: Direction,
        from: Option<Vport>,
        mut frame: Frame,
    ) {
        if direction == Direction::In {
            self.see(now, port, false, &mut frame);
        }
        let here = &mut self.ports[port.0];
        let Some(destination) = Destination::of(here.cable.kind(), frame.bytes()) else {
            return self.buffers.recycle(frame);
        };
        match direction {
            Direction::Out => self.forward(now, port, destination, frame),
            Direction::In if let Some(external) = &mut here.external => {
                frame.seal();
                external(frame.bytes());
                self.buffers.recycle(frame);
            }
            Direction::In | Direction::Inside => {
                self.deliver(now, port, destination, from, frame);
            }
        }
    }

    /// The switch has a frame from a port.
    fn forward(&mut self, now: u64, from: PhysicalPort, destination: Destination, frame: Frame) {
        self.learn(from, &frame);
        let name = match destination {
            Destination::Mac(mac) => Name::Mac(mac),
            Destination::Lid(lid, _) => Name::Lid(lid),
            Destination::EthernetGroup | Destination::InfinibandGroup => {
                return self.flood(now, from, frame);
            }
        };
        let named = self.known.get(&name).into_iter().flatten().copied().find(|port| {
            let members = &self.ports[port.0].members;
            are_joined(&self.ports[port.0].cable, &self.ports[from.0].cable)
                && members.iter().any(|(_, addresses)| addresses.name(destination))
        });
        let learned = match name {
            Name::Mac(mac) => self.learned.get(&mac).copied(),
            Name::Lid(_) => None,
        };
        match named
            .or(learned
                .filter(|port| are_joined(&self.ports[port.0].cable, &self.ports[from.0].cable)))
        {
            // A switch does not send back.
            Some(to) if to == from => self.buffers.recycle(frame),
            Some(to) => self.cross(now, to, Direction::In, None, frame),
            None if matches!(name, Name::Mac(_)) => self.flood(now, from, frame),
            None => self.buffers.recycle(frame),
        }
    }

    /// Remembers where a frame came from, if no vport has its address.
    fn learn(&mut self, from: PhysicalPort, frame: &Frame) {
        if self.ports[from.0].cable.kind() != Link::Ethernet {
            return;
        }
        let Some(mac) = source_mac(frame.bytes()).filter(|mac| !mac.is_group()) else { return };
        if self.known.contains_key(&Name::Mac(mac)) || self.learned.get(&mac) == Some(&from) {
            return;
        }
        if self.learned.len() >= MOST_LEARNED {
            self.learned.clear();
        }
        self.learned.insert(mac, from);
    }

    /// Sends a frame to every port but the one it came from.
    fn flood(&mut self, now: u64, from: PhysicalPort, frame: Frame) {
        for at in 0..self.ports.len() {
            let cable = &self.ports[at].cable;
            if at != from.0 && are_joined(cable, &self.ports[from.0].cable) {
                let copy = self.buffers.copy(&frame);
                self.cross(now, PhysicalPort(at), Direction::In, None, copy);
            }
        }
        self.buffers.recycle(frame);
    }

    /// A card has a frame for its vports; `from`: the one that sent it.
    fn deliver(
        &mut self,
        now: u64,
        port: PhysicalPort,
        destination: Destination,
        from: Option<Vport>,
        frame: Frame,
    ) {
        let takes = |(_, addresses): &&(Vport, Addresses)| addresses.take(destination);
        let members = &self.ports[port.0].members;
        let takers = members.iter().filter(takes).count();
        if self.schedule.len() + self.waiting + takers > MOST_IN_FLIGHT {
            self.ports[port.0].cable.overflow(Direction::In);
            return self.buffers.recycle(frame);
        }
        let mut frame = Some(frame);
        for (at, &(to, _)) in members.iter().filter(takes).enumerate() {
            let copy = match at + 1 == takers {
                true => frame.take(),
                false => frame.as_ref().map(|frame| self.buffers.copy(frame)),
            };
            if let Some(frame) = copy {
                let delivery = Delivery { to, own: from == Some(to), frame };
                self.arrived[to.function].push_back(((now, self.arrivals), delivery));
                self.arrivals += 1;
                self.waiting += 1;
            }
        }
        if let Some(frame) = frame {
            self.buffers.recycle(frame);
        }
    }
}

/// Whether the switch forwards between two links.
fn are_joined(one: &Cable, other: &Cable) -> bool {
    one.kind() == other.kind() && one.settings().partition == other.settings().partition
}
