//! A log of the data path's accesses to memory and of its barriers, in order. Only this crate's
//! unit tests record it; otherwise it compiles to nothing.
//!
//! Ordinary memory cannot show a missing barrier, so the tests check the order of accesses and
//! fences.

/// An access to memory shared with the device, or a fence between two accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code, reason = "only tests read the events"))]
pub(crate) enum Event {
    /// A store into a ring, at this byte offset.
    Ring(u32),
    /// A store into a doorbell record.
    Record(u32),
    /// A store into a UAR page, at this byte offset.
    Uar(u32),
    /// A load of the last byte of a CQE.
    Owner,
    /// A load of the rest of a CQE, at this byte offset in it.
    Cqe(u32),
    /// A barrier, by its name.
    Barrier(&'static str),
}

#[cfg(test)]
std::thread_local! {
    static LOG: core::cell::RefCell<std::vec::Vec<Event>> =
        const { core::cell::RefCell::new(std::vec::Vec::new()) };
}

#[cfg(test)]
pub(crate) fn event(event: Event) {
    LOG.with_borrow_mut(|log| log.push(event));
}

#[cfg(not(test))]
#[inline(always)]
pub(crate) fn event(_: Event) {}

/// The events of this thread since the last call.
#[cfg(test)]
pub(crate) fn take() -> std::vec::Vec<Event> {
    LOG.take()
}
