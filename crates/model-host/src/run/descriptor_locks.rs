//! Locks on the descriptor numbers of processes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nix::unistd::Pid;

/// A lock per process: a descriptor number that was found free must stay free until a descriptor is
/// installed there, which would otherwise replace another.
#[derive(Debug, Default)]
pub(super) struct DescriptorLocks(Mutex<HashMap<Pid, Weak<Mutex<()>>>>);

impl DescriptorLocks {
    /// The lock of a process, held while a descriptor is installed. That waits for the process's
    /// thread, and delays no other process.
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
    fn descriptor_lock_is_per_process() {
        let locks = DescriptorLocks::default();
        let (one, other) = (Pid::from_raw(1), Pid::from_raw(2));
        let lock = locks.of(one);
        let _held = lock.lock().unwrap();
        assert!(locks.of(one).try_lock().is_err());
        assert!(locks.of(other).try_lock().is_ok());
    }
}
