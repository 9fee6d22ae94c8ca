//! A work queue's part on one device.

use std::os::fd::AsFd;

use verbless_queue::{Cq, CqConfig, CqEvents, Parked};

use super::handle::Handle;
use crate::device::Dev;
use crate::error::Result;

/// The completion queue of a work queue on one device, which all its contexts there share.
pub struct Side {
    pub(crate) dev: Dev,
    pub(crate) cq: Cq,
    /// In event-driven mode.
    events: Option<CqEvents>,
    /// Completions that it has room for.
    entries: u32,
    /// Completions that may still come for what was posted.
    expected: u32,
    /// Contexts here.
    pub(super) contexts: u32,
}

impl Side {
    /// For so many jobs at a time. With `handle`, events go there.
    pub(super) fn new(dev: &Dev, depth: u32, handle: Option<&Handle>) -> Result<Self> {
        // A job of several requests takes as many completions if it fails.
        let least = depth.saturating_mul(2).max(256);
        let most = 1 << dev.caps().log_max_cqes.min(22);
        let entries = least.next_power_of_two().min(most);
        let mut cq = dev.domain().completion_queue(&CqConfig::new(entries))?;
        let events = match handle {
            Some(handle) => {
                let events = CqEvents::new(dev.device())?;
                events.add(&mut cq, 0)?;
                handle.add(events.as_fd())?;
                Some(events)
            }
            None => None,
        };
        Ok(Self { dev: dev.clone(), cq, events, entries, expected: 0, contexts: 0 })
    }

    /// Makes room for `count` more completions; false if there is none.
    #[inline]
    pub(crate) fn expect(&mut self, count: u32) -> bool {
        let room = count <= self.entries - self.expected;
        if room {
            self.expected += count;
        }
        room
    }

    /// So many have come, or will not come any more.
    #[inline]
    pub(crate) fn came(&mut self, count: u32) {
        self.expected -= count;
    }

    /// Asks for an event when the next completion comes; true if one is there already.
    pub(super) fn park(&mut self) -> Result<bool> {
        match &self.events {
            Some(events) => Ok(events.park(&mut self.cq)? == Parked::Ready),
            None => Ok(false),
        }
    }

    /// Takes the events that came.
    pub(super) fn clear(&self) -> Result<()> {
        if let Some(events) = &self.events {
            while events.try_next()?.is_some() {}
        }
        Ok(())
    }

    /// Takes its events from `handle`.
    pub(super) fn leave(&self, handle: &Handle) -> Result<()> {
        match &self.events {
            Some(events) => handle.remove(events.as_fd()),
            None => Ok(()),
        }
    }
}
