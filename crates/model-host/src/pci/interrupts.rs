//! MSI-X vectors: the client provides an eventfd for each, and keeps the table and the mask bits.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use verbless_model::memory::Interrupts;
use verbless_model_kernel::remote::signal_eventfd;

/// The vectors of one function.
#[derive(Debug)]
pub(super) struct Vectors {
    eventfds: RwLock<Vec<Option<File>>>,
    /// The function may send messages.
    bus_master: AtomicBool,
}

impl Vectors {
    /// Creates `count` vectors without eventfds, with bus mastering on.
    pub(super) fn new(count: u32) -> Self {
        let eventfds = RwLock::new((0..count).map(|_| None).collect());
        Self { eventfds, bus_master: AtomicBool::new(true) }
    }

    /// Sets whether the function may send messages; returns whether that changed.
    pub(super) fn set_bus_master(&self, on: bool) -> bool {
        self.bus_master.swap(on, Ordering::AcqRel) != on
    }

    /// Number of vectors.
    pub(super) fn count(&self) -> u32 {
        self.eventfds.read().unwrap_or_else(PoisonError::into_inner).len() as u32
    }

    /// Connects the vectors from `start` on with these eventfds; `None` disconnects a vector.
    /// Returns false if the range exceeds the vectors.
    pub(super) fn set(&self, start: u32, new: impl ExactSizeIterator<Item = Option<File>>) -> bool {
        let mut eventfds = self.eventfds.write().unwrap_or_else(PoisonError::into_inner);
        let start = start as usize;
        let Some(range) = eventfds.get_mut(start..start.saturating_add(new.len())) else {
            return false;
        };
        range.iter_mut().zip(new).for_each(|(slot, new)| *slot = new);
        true
    }

    /// Disconnects all vectors from their eventfds.
    pub(super) fn clear(&self) {
        self.eventfds.write().unwrap_or_else(PoisonError::into_inner).fill_with(|| None);
    }
}

impl Interrupts for Vectors {
    fn raise(&self, vector: u32) {
        if !self.bus_master.load(Ordering::Acquire) {
            tracing::debug!(vector, "interrupt dropped: bus mastering is off");
            return;
        }
        let eventfds = self.eventfds.read().unwrap_or_else(PoisonError::into_inner);
        let Some(Some(eventfd)) = eventfds.get(vector as usize) else {
            tracing::debug!(vector, "interrupt dropped: the vector has no eventfd");
            return;
        };
        // A plain write would block on a full counter.
        if let Err(error) = signal_eventfd(eventfd.as_fd()) {
            tracing::warn!(vector, %error, "an interrupt cannot be delivered");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::eventfd::{EfdFlags, EventFd};
    use std::os::fd::OwnedFd;

    fn eventfd() -> (File, EventFd) {
        let eventfd = EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK).unwrap();
        let copy: OwnedFd = eventfd.as_fd().try_clone_to_owned().unwrap();
        (copy.into(), eventfd)
    }

    #[test]
    fn raise_signals_only_own_eventfd() {
        let vectors = Vectors::new(4);
        let (first, first_counter) = eventfd();
        let (second, second_counter) = eventfd();
        assert!(vectors.set(1, [Some(first), Some(second)].into_iter()));
        for vector in [2, 2, 1, 0, 3, 4, u32::MAX] {
            vectors.raise(vector);
        }
        assert_eq!(first_counter.read(), Ok(1));
        assert_eq!(second_counter.read(), Ok(2));
        assert!(vectors.set(2, [None].into_iter()));
        vectors.raise(2);
        assert!(second_counter.read().is_err());
        vectors.clear();
        vectors.raise(1);
        assert!(first_counter.read().is_err());
    }

    #[test]
    fn raise_does_not_block_on_full_eventfd() {
        let vectors = Vectors::new(1);
        let full = EventFd::from_flags(EfdFlags::empty()).unwrap();
        full.write(u64::MAX - 1).unwrap();
        let copy: OwnedFd = full.as_fd().try_clone_to_owned().unwrap();
        assert!(vectors.set(0, [Some(copy.into())].into_iter()));
        let (sender, done) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..3).for_each(|_| vectors.raise(0));
                sender.send(()).unwrap();
            });
            let done = done.recv_timeout(std::time::Duration::from_secs(20));
            // The read releases a writer that waits for room.
            assert_eq!(full.read(), Ok(u64::MAX));
            assert_eq!(done, Ok(()));
        });
    }

    #[test]
    fn set_rejects_vectors_out_of_range() {
        let vectors = Vectors::new(4);
        assert!(!vectors.set(4, [None].into_iter()));
        assert!(!vectors.set(u32::MAX, [None, None].into_iter()));
        assert!(vectors.set(4, [].into_iter()));
    }
}
