//! The paths of frames: over links, through cards and the switch, to the vports that receive them.

use super::address::{Addresses, Destination, source_mac};
use super::frame::{Direction, Frame};
use super::link::Cable;
use super::{Crossing, Delivery, Fabric, Name, Passage, PhysicalPort, Vport};
use crate::profile::Link;

/// Maximum number of external source addresses that the switch remembers; one more clears the
/// table.
pub(super) const MAX_LEARNED: usize = 4096;
/// Maximum number of frames in flight; more are dropped.
pub(super) const MAX_IN_FLIGHT: usize = 1 << 16;
/// The range of lengths of frames from outside the model.
const EXTERNAL_BYTES: std::ops::RangeInclusive<usize> = 14..=0xffff;

impl Fabric {
    /// Sends a frame.
    pub(crate) fn transmit(&mut self, now: u64, from: Vport, mut frame: Frame) {
        let now = self.latest(now);
        self.advance(now);
        let port = self.vports.get(&from).copied();
        let destination =
            port.and_then(|port| Destination::of(self.ports[port.0].cable.kind(), frame.bytes()));
        let (Some(port), Some(destination)) = (port, destination) else {
            return self.buffers.recycle(frame);
        };
        self.report(now, port, true, &mut frame);
        let members = &self.ports[port.0].members;
        let inside = match destination.is_group() {
            true => true,
            false => members.iter().any(|(_, addresses)| addresses.name(destination)),
        };
        if inside && destination.is_group() {
            let copy = self.buffers.copy(&frame);
            let passage = Passage { port, direction: Direction::Inside, from: Some(from) };
            self.cross(now, passage, copy);
        }
        let direction = match inside && !destination.is_group() {
            true => Direction::Inside,
            false => Direction::Out,
        };
        self.cross(now, Passage { port, direction, from: Some(from) }, frame);
    }

    /// Receives a frame from outside the model; drops it if its length is out of range.
    pub(crate) fn receive_external(&mut self, now: u64, from: PhysicalPort, bytes: &[u8]) {
        if EXTERNAL_BYTES.contains(&bytes.len()) {
            let now = self.latest(now);
            self.advance(now);
            let mut frame = self.buffers.of_bytes(self.ports[from.0].cable.kind(), bytes);
            self.report(now, from, true, &mut frame);
            let passage = Passage { port: from, direction: Direction::Out, from: None };
            self.cross(now, passage, frame);
        }
    }

    /// The time, which never goes back: a thread may send with an older reading of its clock than
    /// another thread's.
    fn latest(&mut self, now: u64) -> u64 {
        self.now = self.now.max(now);
        self.now
    }

    /// When the next frame reaches the end of a link, or when the first waiting frame arrived.
    pub(crate) fn next_due(&self) -> Option<u64> {
        let waits = self.first().map(|((at, _), _)| at);
        waits.into_iter().chain(self.next_crossing()).min()
    }

    /// When the next frame reaches the end of a link.
    pub(super) fn next_crossing(&self) -> Option<u64> {
        self.schedule.next_due()
    }

    /// The first waiting frame: its time, its number and its function.
    fn first(&self) -> Option<((u64, u64), usize)> {
        if self.waiting == 0 {
            return None;
        }
        let heads = self.arrived.iter().zip(0..);
        heads.filter_map(|(queue, function)| Some((queue.front()?.0, function))).min()
    }

    /// The function with the next frame that has arrived.
    #[cfg(test)]
    pub(crate) fn next_receiver(&mut self, now: u64) -> Option<usize> {
        self.advance(now);
        self.first().filter(|((at, _), _)| *at <= now).map(|(_, function)| function)
    }

    /// Takes the next frame that has arrived for a function.
    pub(crate) fn take(&mut self, now: u64, function: usize) -> Option<Delivery> {
        self.advance(now);
        let (_, delivery) =
            self.arrived.get_mut(function)?.pop_front_if(|((at, _), _)| *at <= now)?;
        self.waiting -= 1;
        Some(delivery)
    }

    /// Handles every crossing that is due.
    fn advance(&mut self, now: u64) {
        while let Some((at, Crossing { passage, frame })) = self.schedule.pop_due(now) {
            match self.ports[passage.port.0].cable.arrived(passage.direction) {
                true => self.crossed(at, passage, frame),
                false => self.buffers.recycle(frame),
            }
        }
    }

    /// Sends a frame from the switch to a port.
    fn arrive(&mut self, now: u64, port: PhysicalPort, frame: Frame) {
        self.cross(now, Passage { port, direction: Direction::In, from: None }, frame);
    }

    /// Applies the link's faults to a frame, and sends it over the link or through the card.
    fn cross(&mut self, now: u64, passage: Passage, mut frame: Frame) {
        let Passage { port, direction, .. } = passage;
        let outcome = self.ports[port.0].cable.draw_faults(direction, &frame);
        if !outcome.lost {
            for _ in 0..outcome.copies {
                let copy = self.buffers.copy(&frame);
                self.depart(now, passage, copy, 0);
            }
        }
        if let Some((bits, seed)) = outcome.corrupt {
            frame.corrupt(bits, seed);
        }
        match outcome.lost {
            // A lost frame still takes the link's time.
            true => {
                self.ports[port.0].cable.cross(direction, now, frame.bytes().len(), 0);
                self.buffers.recycle(frame);
            }
            false => self.depart(now, passage, frame, outcome.delay),
        }
    }

    /// Schedules a frame's arrival, `delay` later than the link's own time; it arrives at once if
    /// that time is now and no frame is ahead of it.
    fn depart(&mut self, now: u64, passage: Passage, frame: Frame, delay: u64) {
        let Passage { port, direction, .. } = passage;
        let full = self.in_flight() >= MAX_IN_FLIGHT;
        let cable = &mut self.ports[port.0].cable;
        match cable.cross(direction, now, frame.bytes().len(), delay) {
            Some(at) if at <= now && cable.is_empty(direction) => {
                self.crossed(now, passage, frame);
            }
            Some(_) if full => {
                cable.overflow(direction);
                self.buffers.recycle(frame);
            }
            Some(at) => {
                cable.departed(direction);
                self.schedule.add(at, Crossing { passage, frame });
            }
            None => self.buffers.recycle(frame),
        }
    }

    /// Handles a frame that has crossed a link, or a card.
    fn crossed(&mut self, now: u64, passage: Passage, mut frame: Frame) {
        let Passage { port, direction, from } = passage;
        if direction == Direction::In {
            self.report(now, port, false, &mut frame);
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

    /// Forwards a frame from a port through the switch.
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
            // A switch does not send a frame back.
            Some(to) if to == from => self.buffers.recycle(frame),
            Some(to) => self.arrive(now, to, frame),
            None if matches!(name, Name::Mac(_)) => self.flood(now, from, frame),
            None => self.buffers.recycle(frame),
        }
    }

    /// Remembers the port of a frame's source address, if no vport has that address.
    fn learn(&mut self, from: PhysicalPort, frame: &Frame) {
        if self.ports[from.0].cable.kind() != Link::Ethernet {
            return;
        }
        let Some(mac) = source_mac(frame.bytes()).filter(|mac| !mac.is_group()) else { return };
        if self.known.contains_key(&Name::Mac(mac)) || self.learned.get(&mac) == Some(&from) {
            return;
        }
        if self.learned.len() >= MAX_LEARNED {
            self.learned.clear();
        }
        self.learned.insert(mac, from);
    }

    /// Sends a frame to every port except the one that it came from.
    fn flood(&mut self, now: u64, from: PhysicalPort, frame: Frame) {
        for at in 0..self.ports.len() {
            let cable = &self.ports[at].cable;
            if at != from.0 && are_joined(cable, &self.ports[from.0].cable) {
                let copy = self.buffers.copy(&frame);
                self.arrive(now, PhysicalPort(at), copy);
            }
        }
        self.buffers.recycle(frame);
    }

    /// Delivers a frame to the vports of a card; `from` is the vport that sent it.
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
        let receivers = members.iter().filter(takes).count();
        if self.in_flight() + receivers > MAX_IN_FLIGHT {
            self.ports[port.0].cable.overflow(Direction::In);
            return self.buffers.recycle(frame);
        }
        let mut frame = Some(frame);
        for (at, &(to, _)) in members.iter().filter(takes).enumerate() {
            let copy = match at + 1 == receivers {
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
