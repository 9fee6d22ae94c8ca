//! Entries of a ring in the process's memory: claimed by many threads, complete once they have
//! their number, and handed to the carrier in order.
//!
//! Entry `n` is at slot `n` modulo the ring's entries. Its number plus 1 is stored last, after a
//! fence, so that a reader of the number sees the entry. A slot is claimed again only after its
//! entry was freed: the host has taken it, or the SEND that carries it has completed.

use core::hint::spin_loop;
use core::sync::atomic::Ordering;

use super::control::{Carrier, Control, HOLDS};
use super::entry::{HEAD_BYTES, NUMBER_AT};
use crate::context::ThreadContext;
use crate::mmio;
use crate::status::Failed;

impl Control {
    pub(crate) const fn entries(&self) -> u64 {
        1 << self.setup.log_entries
    }

    /// Bytes of an entry.
    pub(crate) const fn entry_bytes(&self) -> u64 {
        1 << self.setup.log_entry_bytes
    }

    /// Address of entry `index`.
    pub(super) const fn entry_address(&self, index: u64) -> u64 {
        let within = index & (self.entries() - 1);
        self.setup.ring + (within << self.setup.log_entry_bytes)
    }

    /// The level, and whether entries stay in the process's memory ([`HOLDS`]).
    pub(crate) fn level(&self) -> (u8, bool) {
        let word = self.level.load(Ordering::Relaxed);
        (word as u8, word & HOLDS != 0)
    }

    /// Claims `count` entries; returns the number of the first. Without room, retries as often as
    /// the host has configured, and then counts a loss.
    pub(crate) fn claim(&self, context: &ThreadContext, count: u64) -> Option<u64> {
        let fits = count <= self.entries();
        for attempt in 0..u64::from(self.setup.room_retries) + 2 {
            if fits && let Ok(Some(first)) = self.try_claim(context, count) {
                return Some(first);
            }
            if !fits || self.level().1 {
                break;
            }
            // Other entries fill the ring: this frees those that are sent, and sends the others.
            self.hand_over(context, 1);
            if attempt > 0 {
                pause();
            }
        }
        self.lost.fetch_add(1, Ordering::Relaxed);
        None
    }

    fn try_claim(&self, context: &ThreadContext, count: u64) -> Result<Option<u64>, Failed> {
        let mut claimed = self.claimed.load(Ordering::Relaxed);
        loop {
            let freed = match self.setup.carrier() {
                Some(Carrier::Window) => self.taken_by_host(context)?,
                _ => self.freed.load(Ordering::Relaxed),
            };
            // The load of `freed` comes before this thread's stores into a freed slot.
            mmio::in_order();
            let used = claimed.wrapping_sub(freed);
            if used.saturating_add(count) > self.entries() {
                // `claimed` may be stale: other threads may have claimed entries, which were freed
                // since.
                match self.claimed.load(Ordering::Relaxed) {
                    same if same == claimed => return Ok(None),
                    other => claimed = other,
                }
                continue;
            }
            let (order, next) = (Ordering::Relaxed, claimed + count);
            match self.claimed.compare_exchange_weak(claimed, next, order, order) {
                Ok(first) => return Ok(Some(first)),
                Err(other) => claimed = other,
            }
        }
    }

    /// Writes the claimed entry `index`, and drops content beyond its length. Returns the count of
    /// complete entries.
    pub(crate) fn fill(&self, index: u64, head: u64, rest: impl Iterator<Item = u64>) -> u64 {
        let at = self.entry_address(index);
        let room = (self.entry_bytes() as usize - HEAD_BYTES) / 8;
        mmio::write64(at, head);
        for (word, value) in (at + HEAD_BYTES as u64..).step_by(8).zip(rest.take(room)) {
            mmio::write64(word, value);
        }
        mmio::in_order();
        mmio::write64(at + NUMBER_AT as u64, index + 1);
        self.written.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The end of the run of completely written entries that begins at `from`.
    pub(super) fn whole_until(&self, from: u64, limit: u64) -> u64 {
        let whole = |&index: &u64| {
            mmio::read64(self.entry_address(index) + NUMBER_AT as u64) == index.wrapping_add(1)
        };
        let end = (from..limit).take_while(whole).last().map_or(from, |index| index + 1);
        // The entries are read after their numbers.
        mmio::in_order();
        end
    }

    /// The first entry that was not handed over, and the end of the complete entries, rounded down
    /// to whole batches of `batch`.
    fn ready_until(&self, batch: u64) -> (u64, u64) {
        let carried = self.carried.load(Ordering::Relaxed);
        let claimed = self.claimed.load(Ordering::Relaxed);
        let end = self.whole_until(carried, claimed.min(carried + self.entries()));
        (carried, end - end % batch)
    }

    /// Hands all complete batches of `batch` entries to the carrier, in order. If another thread is
    /// doing so, that thread hands over these as well.
    pub(crate) fn hand_over(&self, context: &ThreadContext, batch: u64) {
        if self.setup.carrier() == Some(Carrier::Host) {
            return;
        }
        loop {
            // Either the other thread sees the new entries, or this thread sees the lock free.
            mmio::in_order();
            if self.level().1 || self.lock.swap(1, Ordering::Acquire) != 0 {
                return;
            }
            let stuck = self.carry_all(context, batch);
            self.lock.store(0, Ordering::Release);
            mmio::in_order();
            let (carried, end) = self.ready_until(batch);
            if stuck || end <= carried {
                return;
            }
        }
    }

    /// Hands all complete batches to the carrier; the caller holds the lock. Returns whether the
    /// carrier accepts no more for now.
    fn carry_all(&self, context: &ThreadContext, batch: u64) -> bool {
        loop {
            let (carried, end) = self.ready_until(batch);
            let reached = self.carry(context, carried, end.max(carried));
            self.carried.store(reached.unwrap_or(carried), Ordering::Relaxed);
            match reached {
                Ok(reached) if reached == end.max(carried) => {
                    if end <= carried {
                        return false;
                    }
                }
                _ => return true,
            }
        }
    }
}

/// Yields the core to other threads for a moment.
fn pause() {
    #[cfg(any(test, all(target_arch = "riscv64", target_os = "none")))]
    crate::system::pause();
    spin_loop();
}
