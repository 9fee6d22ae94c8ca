//! A work queue's state on one device.

use std::os::fd::AsFd;

use verbless_queue::{Cq, CqConfig, CqEvents, ErrorKind as LowerKind, Parked};

use super::handle::Handle;
use crate::device::Dev;
use crate::error::{Error, ErrorKind, Result};

/// The completion queue of a work queue on one device, shared by all its contexts there.
pub struct DeviceCq {
    pub(crate) dev: Dev,
    pub(crate) cq: Cq,
    /// The event channel, in event-driven mode.
    events: Option<CqEvents>,
    /// Whether the device is removed. Its channel is then no longer in the handle.
    removed: bool,
    pub(crate) spare: SpareCqEntries,
    /// The completion queue takes no more CQEs: new contexts get another.
    pub(super) failed: bool,
    /// Contexts here.
    pub(super) contexts: u32,
    /// The slot of the context that brought the completion queue; other contexts do not complete
    /// here.
    pub(super) owner: Option<u32>,
}

/// Completions of the longest job: each of its requests has one if the job fails.
pub(crate) const MAX_JOB_CQES: u32 = 130;

/// The bits of a completion queue's index.
const INDEX_MASK: u32 = 0xff_ffff;

/// Entries of a completion queue beyond one per job of the work queue: a job of several requests
/// takes as many completions if it fails.
pub(crate) struct SpareCqEntries {
    left: u32,
    /// Entries of CQEs without a waiting job, possibly unread.
    pending: u32,
    /// The index of the completion queue after the last of these CQEs.
    pending_until: u32,
}

impl SpareCqEntries {
    fn new(left: u32) -> Self {
        Self { left, pending: 0, pending_until: 0 }
    }

    /// Takes `count` entries; false if fewer are free.
    pub(crate) fn take(&mut self, count: u32) -> bool {
        let enough = count <= self.left;
        if enough {
            self.left -= count;
        }
        enough
    }

    /// Returns `count` entries once the completion queue has been read past its contents at this
    /// index.
    pub(crate) fn release_after_poll(&mut self, count: u32, index: u32) {
        if count > 0 {
            let later =
                index.wrapping_sub(self.pending_until) & INDEX_MASK < INDEX_MASK.div_ceil(2);
            if self.pending == 0 || later {
                self.pending_until = index;
            }
            self.pending += count;
        }
    }

    /// Returns `count` entries, because as many completions have come, or will never come.
    pub(crate) fn release(&mut self, count: u32) {
        self.left += count;
    }
}

/// The device CQs of a work queue, by slot.
#[derive(Default)]
pub(super) struct DeviceCqs {
    /// The device CQ, if there is exactly one, as in most work queues.
    pub(super) only: Option<Box<DeviceCq>>,
    /// The index of `only`.
    slot: usize,
    /// All device CQs, if there are several.
    several: Vec<Option<Box<DeviceCq>>>,
}

impl DeviceCqs {
    /// The number of slots, including empty ones.
    pub(super) fn slots(&self) -> usize {
        self.several.len()
    }

    pub(super) fn get(&mut self, at: usize) -> Option<&mut DeviceCq> {
        match &mut self.only {
            Some(device_cq) => (at == self.slot).then_some(device_cq),
            None => self.several.get_mut(at)?.as_deref_mut(),
        }
    }

    /// The slot of a device.
    pub(super) fn on(&mut self, dev: &Dev) -> Option<usize> {
        (0..self.slots())
            .find(|&at| self.get(at).is_some_and(|device_cq| device_cq.takes_contexts_of(dev)))
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &DeviceCq> {
        self.only.iter().chain(self.several.iter().flatten()).map(|device_cq| &**device_cq)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut DeviceCq> {
        self.only
            .iter_mut()
            .chain(self.several.iter_mut().flatten())
            .map(|device_cq| &mut **device_cq)
    }

    /// Adds a device CQ; returns its index.
    pub(super) fn add(&mut self, device_cq: DeviceCq) -> usize {
        self.spread();
        let free = self.several.iter().position(Option::is_none);
        let at = free.unwrap_or(self.several.len());
        if at == self.several.len() {
            self.several.push(None);
        }
        self.several[at] = Some(Box::new(device_cq));
        self.gather();
        at
    }

    pub(super) fn remove(&mut self, at: usize) {
        self.spread();
        self.several[at] = None;
        self.gather();
    }

    /// Moves the only one to its index in `several`.
    fn spread(&mut self) {
        if let Some(only) = self.only.take() {
            self.several[self.slot] = Some(only);
        }
    }

    fn gather(&mut self) {
        let mut there = (0..self.several.len()).filter(|&at| self.several[at].is_some());
        if let (Some(at), None) = (there.next(), there.next()) {
            (self.slot, self.only) = (at, self.several[at].take());
        }
    }
}

/// A device CQ that is looked up on use.
pub struct DeviceCqLookup<'w> {
    pub(super) device_cqs: &'w mut DeviceCqs,
    pub(super) at: &'w u32,
}

impl<'w> DeviceCqLookup<'w> {
    pub(crate) fn get(self) -> &'w mut DeviceCq {
        self.device_cqs.get(*self.at as usize).expect("a context is there")
    }
}

impl DeviceCq {
    /// Creates a CQ for `depth` jobs at a time. With `handle`, its events go there.
    pub(super) fn new(dev: &Dev, depth: u32, handle: Option<&Handle>) -> Result<Self> {
        let least = depth.saturating_mul(2).max(256);
        let most: u32 = 1 << dev.caps().log_max_cqes.min(22);
        if depth.saturating_add(MAX_JOB_CQES) > most {
            let text = format!(
                "a work queue of depth {depth} is on no context of {dev:?}, parent completion \
                 queues have {most} entries at most, {MAX_JOB_CQES} of which are for the longest \
                 job: make it with a smaller depth"
            );
            return Err(Error::new(ErrorKind::InvalidValue, text));
        }
        let entries = least.checked_next_power_of_two().unwrap_or(most).min(most);
        // Jobs take their entries from `SpareCqEntries`, whatever the length of the rings.
        let config = CqConfig { overcommit: true, ..CqConfig::new(entries) };
        let cq = dev.domain().completion_queue(&config)?;
        Self::over(dev, cq, SpareCqEntries::new(entries - depth), handle)
    }

    /// Takes over the completion queue that the context at `owner` brought.
    pub(super) fn with_own_cq(
        dev: &Dev,
        cq: Cq,
        owner: u32,
        handle: Option<&Handle>,
    ) -> Result<Self> {
        let device_cq = Self::over(dev, cq, SpareCqEntries::new(0), handle)?;
        Ok(Self { owner: Some(owner), ..device_cq })
    }

    fn over(dev: &Dev, mut cq: Cq, spare: SpareCqEntries, handle: Option<&Handle>) -> Result<Self> {
        let events = match handle {
            Some(handle) => {
                let events = CqEvents::new(dev.device())?;
                events.add(&mut cq, 0)?;
                handle.add(events.as_fd())?;
                Some(events)
            }
            None => None,
        };
        let dev = dev.clone();
        Ok(Self { dev, cq, events, removed: false, spare, failed: false, contexts: 0, owner: None })
    }

    /// Creates a `DeviceCq` for a test of a single engine.
    #[cfg(test)]
    pub(crate) fn for_test(dev: &Dev, depth: u32) -> Result<Self> {
        Self::new(dev, depth, None)
    }

    /// Whether another context of `dev` may complete here.
    fn takes_contexts_of(&self, dev: &Dev) -> bool {
        self.dev == *dev && self.owner.is_none() && !self.failed
    }

    /// Takes `count` entries for requests of a job; false if fewer are free.
    #[inline(always)]
    pub(crate) fn take_room(&mut self, count: u32) -> bool {
        self.spare.take(count) || (self.spare.pending > 0 && self.take_pending(count))
    }

    #[cold]
    fn take_pending(&mut self, count: u32) -> bool {
        if self.has_read(self.spare.pending_until) {
            let pending = std::mem::take(&mut self.spare.pending);
            self.spare.release(pending);
        }
        self.spare.take(count)
    }

    /// Whether all completions up to this index of the completion queue have been read: the queue
    /// is empty, or its index has wrapped around since.
    pub(crate) fn has_read(&self, index: u32) -> bool {
        let read = self.cq.consumer_index().wrapping_sub(index) & INDEX_MASK;
        self.cq.is_empty() || read >= self.cq.entries()
    }

    /// Requests an event for the next completion; true if one is already there.
    pub(super) fn park(&mut self) -> std::result::Result<bool, verbless_queue::DeviceError> {
        match &self.events {
            Some(events) => Ok(events.park(&mut self.cq)? == Parked::Ready),
            None => Ok(false),
        }
    }

    /// Clears the pending events; false if the device is removed. Its channel, which would stay
    /// readable forever, then leaves `handle`.
    pub(super) fn clear(&mut self, handle: &Handle) -> Result<bool> {
        let Some(events) = self.events.as_ref().filter(|_| !self.removed) else { return Ok(true) };
        loop {
            match events.try_next() {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(true),
                Err(error) if error.kind() == LowerKind::DeviceGone => {
                    self.removed = true;
                    return handle.remove(events.as_fd()).map(|()| false);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Removes its events from `handle`.
    pub(super) fn leave(&self, handle: &Handle) -> Result<()> {
        match &self.events {
            Some(events) if !self.removed => handle.remove(events.as_fd()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_take_is_bounded_by_remaining_count() {
        let mut spare = SpareCqEntries::new(3);
        assert!(!spare.take(4));
        assert!(spare.take(0) && spare.take(2) && spare.take(1) && spare.take(0));
        assert!(!spare.take(1));
        spare.release(2);
        assert!(!spare.take(3) && spare.take(2) && !spare.take(1));
        spare.release_after_poll(3, 20);
        spare.release_after_poll(1, 10);
        assert_eq!((spare.pending, spare.pending_until), (4, 20), "the later index counts");
    }
}
