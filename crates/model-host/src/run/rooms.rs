//! Locks on the descriptor numbers of processes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nix::unistd::Pid;

/// A lock per process: a descriptor number that was found free must stay free until a descriptor is
/// installed there, which would otherwise replace another.
#[derive(Debug, Default)]
pub(super) struct Rooms(Mutex<HashMap<Pid, Weak<Mutex<()>>>>);

impl Rooms {
    /// The lock of a process, held while a descriptor is installed. That waits for the process's
    /// thread, and delays no other process.
    pub(super) fn of(&self, pid: Pid) -> Arc<Mutex<()>> {
        let mut rooms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rooms.retain(|_, room| room.strong_count() != 0);
        let room = rooms.get(&pid).and_then(Weak::upgrade).unwrap_or_default();
        rooms.insert(pid, Arc::downgrade(&room));
        room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_lock_is_per_process() {
        let rooms = Rooms::default();
        let (one, other) = (Pid::from_raw(1), Pid::from_raw(2));
        let room = rooms.of(one);
        let _held = room.lock().unwrap();
        assert!(rooms.of(one).try_lock().is_err());
        assert!(rooms.of(other).try_lock().is_ok());
    }
}
