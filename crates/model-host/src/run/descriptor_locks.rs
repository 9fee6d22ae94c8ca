//! Locks on the numbers of processes' descriptors.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nix::unistd::Pid;

/// Locks on the numbers of processes' descriptors: a number that was found to be free must be free
/// until a descriptor is given there, or that would replace another.
#[derive(Debug, Default)]
pub(super) struct DescriptorLocks(Mutex<HashMap<Pid, Weak<Mutex<()>>>>);

impl DescriptorLocks {
    /// The lock of a process, which is held while the process is given a descriptor: that waits for
    /// its thread, and holds up no other process.
    pub(super) fn of(&self, pid: Pid) -> Arc<Mutex<()>> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        locks.retain(|_, lock| lock.strong_count() != 0);
        let lock = locks.get(&pid).and_then(Weak::upgrade).unwrap_or_default();
        locks.insert(pid, Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_lock_is_per_process() {
        let locks = DescriptorLocks::default();
        let (one, other) = (Pid::from_raw(1), Pid::from_raw(2));
        let lock = locks.of(one);
        let _held = lock.lock().unwrap();
        assert!(locks.of(one).try_lock().is_err());
        assert!(locks.of(other).try_lock().is_ok());
    }
}
