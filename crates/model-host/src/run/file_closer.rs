//! Closes files of programs in separate threads. `close` can block for as long as the program
//! wants, also after the program's end: a socket lingers (SO_LINGER), or a FUSE server does not
//! answer.
//!
//! The programs behind one filter share a pool of threads and as many slots for files. While the
//! pool is full, the supervisor takes no file from them. So their files and threads are bounded,
//! however many processes they have, and other filters' pools are unaffected. The files count as
//! descriptors of the filter's account.

use std::mem::ManuallyDrop;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;

use verbless_model_kernel::remote::{Account, Charge, DescriptorClaim, Resource};

/// Slots for files, and threads that close them, of one pool.
pub(super) const MAX_FILES: usize = 64;

/// A slot for a file of a pool, free once this is dropped.
#[derive(Debug)]
pub(super) struct ClosingSlot {
    _of_pool: DescriptorClaim,
    _charge: Charge,
}

/// Its drop closes a file.
type Item = Box<dyn Send>;

#[derive(Default)]
struct Closer {
    threads: usize,
    /// Files for the next thread that is free.
    waiting: Vec<Item>,
}

impl Drop for Closer {
    /// The drop of the pool must not wait for files whose thread failed to start. If there is
    /// still no thread, they stay open.
    fn drop(&mut self) {
        if !self.waiting.is_empty() {
            let waiting = ManuallyDrop::new(std::mem::take(&mut self.waiting));
            let _ = thread::Builder::new().spawn(move || drop(ManuallyDrop::into_inner(waiting)));
        }
    }
}

/// Closes files of one filter's programs.
#[derive(Default)]
pub(super) struct FileClosers {
    closer: Mutex<Closer>,
    /// Claims on slots for files.
    slots: DescriptorClaim,
    /// The account of the filter's programs.
    pub account: Arc<Account>,
}

impl std::fmt::Debug for FileClosers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let closer = self.closer();
        write!(f, "{} threads, {} files wait", closer.threads, closer.waiting.len())
    }
}

/// Closes connections of guests, and descriptors that they sent.
static GUEST_CLOSERS: LazyLock<Arc<FileClosers>> = LazyLock::new(Arc::default);

/// Drops `item`, a connection or descriptor of a guest, in another thread.
pub(super) fn close(item: impl Send + 'static) {
    GUEST_CLOSERS.close(item);
}

impl FileClosers {
    fn closer(&self) -> MutexGuard<'_, Closer> {
        self.closer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims a slot for a file. `None`: `most` are claimed, or the filter's account has its share
    /// of descriptors.
    pub(super) fn claim_slot(self: &Arc<Self>, most: usize) -> Option<ClosingSlot> {
        let slot = self.slots.one_of(most).and_then(|of_pool| {
            let charge = self.account.charge(Resource::Descriptors, 1).ok()?;
            Some(ClosingSlot { _of_pool: of_pool, _charge: charge })
        });
        if slot.is_none() {
            // The thread of an earlier file may have failed to start.
            self.start(&mut self.closer());
        }
        slot
    }

    /// Drops `item`, a file, in another thread. If all threads are busy, the next free one drops
    /// it.
    pub(super) fn close(self: &Arc<Self>, item: impl Send + 'static) {
        let mut closer = self.closer();
        closer.waiting.push(Box::new(item));
        self.start(&mut closer);
    }

    /// Starts a thread if a file waits and the limit allows. If that fails, the file waits for the
    /// next `close`, or the next `claim_slot` that finds no slot.
    fn start(self: &Arc<Self>, closer: &mut Closer) {
        if closer.threads < MAX_FILES && !closer.waiting.is_empty() {
            closer.threads += 1;
            let pool = self.clone();
            if thread::Builder::new().spawn(move || pool.work()).is_err() {
                closer.threads -= 1;
            }
        }
    }

    fn work(&self) {
        loop {
            let item = {
                let mut closer = self.closer();
                match closer.waiting.pop() {
                    Some(item) => item,
                    None => {
                        closer.threads -= 1;
                        return;
                    }
                }
            };
            drop(item);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
    use std::time::Duration;

    use verbless_model_kernel::remote::ResourcePool;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    /// Its drop blocks until the sender is dropped.
    struct Lingers(Sender<()>, Receiver<()>);

    impl Drop for Lingers {
        fn drop(&mut self) {
            let _ = self.0.send(());
            let _ = self.1.recv();
        }
    }

    #[test]
    fn slow_close_does_not_block_others() {
        let pool = Arc::<FileClosers>::default();
        let (begun, begins) = channel();
        let (release, released) = channel();
        pool.close(Lingers(begun, released));
        begins.recv().expect("a close has begun");
        let (pair, peer) = std::os::unix::net::UnixStream::pair().expect("a pair");
        pool.close(pair);
        peer.set_read_timeout(Some(LIMIT)).expect("a time limit");
        let closed = std::io::Read::read(&mut &peer, &mut [0]).expect("the peer reads end of file");
        assert_eq!(closed, 0);
        drop(release);
    }

    #[test]
    fn pool_limits_files_closed_at_a_time() {
        let (pool, (begun, begins)) = (Arc::<FileClosers>::default(), channel());
        let close = |pool: &Arc<FileClosers>| {
            let (release, released) = channel();
            pool.close(Lingers(begun.clone(), released));
            release
        };
        let mut lingering: Vec<_> = (0..MAX_FILES).map(|_| close(&pool)).collect();
        (0..MAX_FILES).for_each(|_| begins.recv_timeout(LIMIT).expect("a close has begun"));
        // The next file waits for a free thread.
        let last = close(&pool);
        let short = Duration::from_millis(100);
        assert_eq!(begins.recv_timeout(short), Err(RecvTimeoutError::Timeout));
        let counts = |pool: &Arc<FileClosers>| {
            let closer = pool.closer();
            (closer.threads, closer.waiting.len())
        };
        assert_eq!(counts(&pool), (MAX_FILES, 1));
        // Another filter's file does not wait.
        let others = Arc::<FileClosers>::default();
        let other = close(&others);
        begins.recv_timeout(LIMIT).expect("a close has begun");
        lingering.pop();
        begins.recv_timeout(LIMIT).expect("a close has begun");
        drop((lingering, last, other));
        while [&pool, &others].map(counts) != [(0, 0); 2] {
            thread::yield_now();
        }
    }

    #[test]
    fn full_pool_starts_the_thread_that_is_missing() {
        let pool = Arc::<FileClosers>::default();
        let slots: Vec<_> = std::iter::from_fn(|| pool.claim_slot(MAX_FILES)).collect();
        let (begun, begins) = channel();
        let (release, released) = channel();
        // As if no thread could be started.
        pool.closer().waiting.push(Box::new(Lingers(begun, released)));
        drop(release);
        assert!(pool.claim_slot(MAX_FILES).is_none());
        begins.recv_timeout(LIMIT).expect("a close has begun");
        drop(slots);
    }

    #[test]
    fn drop_of_pool_waits_for_no_file() {
        let pool = Arc::<FileClosers>::default();
        let (begun, begins) = channel();
        let (finish, goes) = channel();
        // As if no thread could be started.
        pool.closer().waiting.push(Box::new(Lingers(begun, goes)));
        drop(pool);
        begins.recv_timeout(LIMIT).expect("a close has begun");
        drop(finish);
    }

    #[test]
    fn pool_leaves_slots_to_others() {
        let resources = ResourcePool::of([256, 0, 0, 0]);
        let pools = [(); 12].map(|()| {
            let account = Arc::new(Account::with(resources.clone()));
            Arc::new(FileClosers { account, ..FileClosers::default() })
        });
        let mut held = Vec::new();
        let counts = pools.each_ref().map(|pool| {
            let before = held.len();
            held.extend(std::iter::from_fn(|| pool.claim_slot(MAX_FILES)));
            held.len() - before
        });
        assert_eq!(counts, [64, 64, 64, 32, 16, 8, 4, 2, 1, 1, 0, 0]);
        drop(held);
        assert!(pools.iter().all(|pool| pool.account.taken(Resource::Descriptors) == 0));
    }

    #[test]
    fn pool_slots_are_limited() {
        let pool = Arc::<FileClosers>::default();
        let half: Vec<_> =
            (0..MAX_FILES / 2).map_while(|_| pool.claim_slot(MAX_FILES / 2)).collect();
        assert!(half.len() == MAX_FILES / 2 && pool.claim_slot(MAX_FILES / 2).is_none());
        let rest: Vec<_> = std::iter::from_fn(|| pool.claim_slot(MAX_FILES)).collect();
        assert_eq!(rest.len(), MAX_FILES / 2);
        drop((half, rest));
        assert!(pool.claim_slot(1).is_some());
    }
}
