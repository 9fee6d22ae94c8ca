//! Which queues report to a completion queue.
//!
//! The CQE of a frame has a flow tag in the place of the queue's number, and the user index tells
//! whose it is. So receivers of frames on one completion queue need different ones, and queue
//! pairs, whose CQEs are cleaned away by their numbers, complete elsewhere.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use verbless_command::{Error, ErrorKind};

/// The queues that report to a completion queue.
#[derive(Debug, Default)]
pub(super) struct CqUsers(Mutex<Users>);

#[derive(Debug, Default)]
struct Users {
    pairs: usize,
    /// User indexes.
    receivers: BTreeSet<u32>,
}

/// A queue's entry among the users of a completion queue; removed when this is dropped.
#[derive(Debug)]
pub(super) struct CqUse {
    users: Arc<CqUsers>,
    user: User,
}

#[derive(Debug, Clone, Copy)]
enum User {
    Pair,
    Receiver(u32),
}

impl CqUsers {
    fn lock(&self) -> MutexGuard<'_, Users> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A queue pair more.
    pub(super) fn pair(self: &Arc<Self>) -> Result<CqUse, Error> {
        let mut users = self.lock();
        if !users.receivers.is_empty() {
            let hint = "frames are received into this completion queue: give queue pairs another \
                        one";
            return Err(Error::new(ErrorKind::Input, "making a queue pair", hint));
        }
        users.pairs += 1;
        Ok(CqUse { users: self.clone(), user: User::Pair })
    }

    /// A receiver of frames more.
    pub(super) fn receiver(self: &Arc<Self>, user_index: u32) -> Result<CqUse, Error> {
        const WHAT: &str = "making a receive queue of frames";
        let mut users = self.lock();
        if users.pairs != 0 {
            let hint = "queue pairs complete in this completion queue: give the frames another one";
            return Err(Error::new(ErrorKind::Input, WHAT, hint));
        }
        if !users.receivers.insert(user_index) {
            let hint = format!(
                "another one with the user index {user_index:#x} completes in this completion \
                 queue: set `user_index`, by which their CQEs are told apart"
            );
            return Err(Error::new(ErrorKind::Input, WHAT, hint));
        }
        Ok(CqUse { users: self.clone(), user: User::Receiver(user_index) })
    }
}

impl Drop for CqUse {
    fn drop(&mut self) {
        let mut users = self.users.lock();
        match self.user {
            User::Pair => users.pairs -= 1,
            User::Receiver(user_index) => {
                users.receivers.remove(&user_index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receivers_on_one_completion_queue_have_different_user_indexes_and_no_pairs_beside_them() {
        let users = Arc::new(CqUsers::default());
        let pairs = [users.pair().unwrap(), users.pair().unwrap()];
        assert!(users.receiver(1).unwrap_err().to_string().contains("give the frames another one"));
        drop(pairs);
        let one = users.receiver(1).unwrap();
        let _two = users.receiver(2).unwrap();
        assert!(users.receiver(1).unwrap_err().to_string().contains("user index 0x1"));
        assert!(users.pair().is_err());
        drop(one);
        assert!(users.receiver(1).is_ok(), "the place is free again");
    }
}
