//! A work queue's part on one device.

use std::os::fd::AsFd;

use verbless_queue::{Cq, CqConfig, CqEvents, Parked};

use super::handle::Handle;
use crate::device::Dev;
use crate::error::{Error, ErrorKind, Result};

/// The completion queue of a work queue on one device, which all its contexts there share.
pub struct Side {
    pub(crate) dev: Dev,
    pub(crate) cq: Cq,
    /// The event channel, in event-driven mode.
    events: Option<CqEvents>,
    pub(crate) room: Room,
    /// Contexts here.
    pub(super) contexts: u32,
    /// The place of the context that brought the completion queue; no other's complete here.
    pub(super) owner: Option<u32>,
}

/// Completions of the longest job: each of its requests has one if it fails.
pub(crate) const LONGEST_JOB: u32 = 130;

/// The bits of a completion queue's index.
const INDEX: u32 = 0xff_ffff;

/// Places in a completion queue beside one for each job that the work queue takes: a job of several
/// requests takes as many completions if it fails.
pub(crate) struct Room {
    left: u32,
}

impl Room {
    /// Takes `count` places; false if there are fewer.
    pub(crate) fn take(&mut self, count: u32) -> bool {
        let enough = count <= self.left;
        if enough {
            self.left -= count;
        }
        enough
    }

    /// Gives `count` places back, because as many completions have come, or will not come any more.
    pub(crate) fn give(&mut self, count: u32) {
        self.left += count;
    }
}

/// The sides of a work queue by their places.
#[derive(Default)]
pub(super) struct Sides {
    /// The only one, if there is one alone: most work queues have one device.
    pub(super) only: Option<Box<Side>>,
    /// The index of `only`.
    place: usize,
    /// All sides, if there are several.
    several: Vec<Option<Box<Side>>>,
}

impl Sides {
    /// Places, if some may be empty.
    pub(super) fn places(&self) -> usize {
        self.several.len()
    }

    pub(super) fn get(&mut self, at: usize) -> Option<&mut Side> {
        match &mut self.only {
            Some(side) => (at == self.place).then_some(side),
            None => self.several.get_mut(at)?.as_deref_mut(),
        }
    }

    /// The place of the one on a device.
    pub(super) fn on(&mut self, dev: &Dev) -> Option<usize> {
        (0..self.places())
            .find(|&at| self.get(at).is_some_and(|side| side.dev == *dev && side.owner.is_none()))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Side> {
        self.only.iter().chain(self.several.iter().flatten()).map(|side| &**side)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Side> {
        self.only.iter_mut().chain(self.several.iter_mut().flatten()).map(|side| &mut **side)
    }

    /// Adds a side; returns its index.
    pub(super) fn add(&mut self, side: Side) -> usize {
        self.spread();
        let free = self.several.iter().position(Option::is_none);
        let at = free.unwrap_or(self.several.len());
        if at == self.several.len() {
            self.several.push(None);
        }
        self.several[at] = Some(Box::new(side));
        self.gather();
        at
    }

    pub(super) fn remove(&mut self, at: usize) {
        self.spread();
        self.several[at] = None;
        self.gather();
    }

    /// Moves the only side to its index in `several`.
    fn spread(&mut self) {
        if let Some(only) = self.only.take() {
            self.several[self.place] = Some(only);
        }
    }

    fn gather(&mut self) {
        let mut there = (0..self.several.len()).filter(|&at| self.several[at].is_some());
        if let (Some(at), None) = (there.next(), there.next()) {
            (self.place, self.only) = (at, self.several[at].take());
        }
    }
}

/// A side that is looked up when it is needed.
pub struct SideOf<'w> {
    pub(super) sides: &'w mut Sides,
    pub(super) at: &'w u32,
}

impl<'w> SideOf<'w> {
    pub(crate) fn get(self) -> &'w mut Side {
        self.sides.get(*self.at as usize).expect("a context is there")
    }
}

impl Side {
    /// Makes a side for `depth` jobs at a time. With `handle`, its events go there.
    pub(super) fn new(dev: &Dev, depth: u32, handle: Option<&Handle>) -> Result<Self> {
        let least = depth.saturating_mul(2).max(256);
        let most: u32 = 1 << dev.caps().log_max_cqes.min(22);
        if depth.saturating_add(LONGEST_JOB) > most {
            let text = format!(
                "a work queue of depth {depth} is on no context of {dev:?}, whose completion \
                 queues have {most} entries at most, {LONGEST_JOB} of which are for the longest \
                 job: make it with a smaller depth"
            );
            return Err(Error::new(ErrorKind::InvalidValue, text));
        }
        let entries = least.checked_next_power_of_two().unwrap_or(most).min(most);
        // Jobs take their places here, however long the rings are.
        let config = CqConfig { overcommit: true, ..CqConfig::new(entries) };
        let cq = dev.domain().completion_queue(&config)?;
        Self::over(dev, cq, Room { left: entries - depth }, handle)
    }

    /// Over the completion queue that the context at `owner` brought.
    pub(super) fn brought(dev: &Dev, cq: Cq, owner: u32, handle: Option<&Handle>) -> Result<Self> {
        let side = Self::over(dev, cq, Room { left: 0 }, handle)?;
        Ok(Self { owner: Some(owner), ..side })
    }

    fn over(dev: &Dev, mut cq: Cq, room: Room, handle: Option<&Handle>) -> Result<Self> {
        let events = match handle {
            Some(handle) => {
                let events = CqEvents::new(dev.device())?;
                events.add(&mut cq, 0)?;
                handle.add(events.as_fd())?;
                Some(events)
            }
            None => None,
        };
        Ok(Self { dev: dev.clone(), cq, events, room, contexts: 0, owner: None })
    }

    /// Makes a side for an engine that is tested alone.
    #[cfg(test)]
    pub(crate) fn alone(dev: &Dev, depth: u32) -> Result<Self> {
        Self::new(dev, depth, None)
    }

    /// Whether all completions have been read that were written when the completion queue had this
    /// index: the queue is empty, or its index has wrapped around since.
    pub(crate) fn has_read(&self, index: u32) -> bool {
        let read = self.cq.consumer_index().wrapping_sub(index) & INDEX;
        self.cq.is_empty() || read >= self.cq.entries()
    }

    /// Asks for an event when the next completion comes; true if one is there already.
    pub(super) fn park(&mut self) -> Result<bool> {
        match &self.events {
            Some(events) => Ok(events.park(&mut self.cq)? == Parked::Ready),
            None => Ok(false),
        }
    }

    /// Clears the events that came.
    pub(super) fn clear(&self) -> Result<()> {
        if let Some(events) = &self.events {
            while events.try_next()?.is_some() {}
        }
        Ok(())
    }

    /// Removes its events from `handle`.
    pub(super) fn leave(&self, handle: &Handle) -> Result<()> {
        match &self.events {
            Some(events) => handle.remove(events.as_fd()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_places_are_taken_than_there_are() {
        let mut room = Room { left: 3 };
        assert!(!room.take(4));
        assert!(room.take(0) && room.take(2) && room.take(1) && room.take(0));
        assert!(!room.take(1));
        room.give(2);
        assert!(!room.take(3) && room.take(2) && !room.take(1));
    }
}
