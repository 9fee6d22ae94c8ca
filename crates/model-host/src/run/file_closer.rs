//! Closes files of programs in threads of their own: closing can block for as long as a program
//! wants, as with a socket that lingers (SO_LINGER) or a file of FUSE whose server does not answer,
//! and goes on when the program has ended.
//!
//! The programs behind one filter have a pool of such threads, and room for as many files: none is
//! taken from them while it is full. So they take of ours no more than that, however many processes
//! they are, and nothing of what others have.

use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;

use verbless_model_kernel::remote::DescriptorClaim;

/// Files of one pool that may be about to be closed, and threads that close them.
pub(super) const MOST: usize = 64;

/// Something that closes a file when it is dropped.
type Item = Box<dyn Send>;

#[derive(Default)]
struct Closer {
    threads: usize,
    /// What is closed when a thread comes back.
    waiting: Vec<Item>,
}

/// Closes files of the programs behind one filter.
#[derive(Default)]
pub(super) struct FileClosers {
    closer: Mutex<Closer>,
    /// Those of what may be closed here.
    places: DescriptorClaim,
    /// Those of its processes' numbers.
    numbers: DescriptorClaim,
}

impl std::fmt::Debug for FileClosers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let closer = self.closer();
        write!(f, "{} threads, {} files wait", closer.threads, closer.waiting.len())
    }
}

/// Closes connections of guests, and what they sent.
static DOOR: LazyLock<Arc<FileClosers>> = LazyLock::new(Arc::default);

/// Drops `item`, which closes what came over the run's own socket, elsewhere.
pub(super) fn close(item: impl Send + 'static) {
    DOOR.close(item);
}

impl FileClosers {
    fn closer(&self) -> MutexGuard<'_, Closer> {
        self.closer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room for a file of a program, until this is dropped; `None`: there are `most`.
    pub(super) fn place(self: &Arc<Self>, most: usize) -> Option<DescriptorClaim> {
        let place = self.places.one_of(most);
        if place.is_none() {
            // A thread may not have started when its file came.
            self.start(&mut self.closer());
        }
        place
    }

    /// Room for the number of a process behind the filter, until this is dropped; `None`: they have
    /// as many as are `free` for all others. So those behind another filter always find some.
    pub(super) fn number(&self, free: usize) -> Option<DescriptorClaim> {
        self.numbers.one_of(free)
    }

    /// Drops `item`, which closes a file, elsewhere. If all threads are busy, the next one that
    /// comes back does it.
    pub(super) fn close(self: &Arc<Self>, item: impl Send + 'static) {
        let mut closer = self.closer();
        closer.waiting.push(Box::new(item));
        self.start(&mut closer);
    }

    /// Starts a thread if a file waits and there may be another. Without one the file stays until
    /// the next is closed, or finds no place.
    fn start(self: &Arc<Self>, closer: &mut Closer) {
        if closer.threads < MOST && !closer.waiting.is_empty() {
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

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    /// Something whose drop blocks until it is let go.
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
        let (drop_pending, goes) = channel();
        pool.close(Lingers(begun, goes));
        begins.recv().expect("it is being closed");
        let (pair, peer) = std::os::unix::net::UnixStream::pair().expect("a pair");
        pool.close(pair);
        peer.set_read_timeout(Some(LIMIT)).expect("a time limit");
        let closed = std::io::Read::read(&mut &peer, &mut [0]).expect("it is closed");
        assert_eq!(closed, 0);
        drop(drop_pending);
    }

    #[test]
    fn pool_closes_so_many_files_at_a_time() {
        let (pool, (begun, begins)) = (Arc::<FileClosers>::default(), channel());
        let close = |pool: &Arc<FileClosers>| {
            let (drop_pending, goes) = channel();
            pool.close(Lingers(begun.clone(), goes));
            drop_pending
        };
        let mut lingering: Vec<_> = (0..MOST).map(|_| close(&pool)).collect();
        (0..MOST).for_each(|_| begins.recv_timeout(LIMIT).expect("it is being closed"));
        // The next waits until a thread comes back.
        let last = close(&pool);
        let short = Duration::from_millis(100);
        assert_eq!(begins.recv_timeout(short), Err(RecvTimeoutError::Timeout));
        let counts = |pool: &Arc<FileClosers>| {
            let closer = pool.closer();
            (closer.threads, closer.waiting.len())
        };
        assert_eq!(counts(&pool), (MOST, 1));
        // Another filter's does not.
        let others = Arc::<FileClosers>::default();
        let other = close(&others);
        begins.recv_timeout(LIMIT).expect("it is being closed");
        lingering.pop();
        begins.recv_timeout(LIMIT).expect("it is being closed");
        drop((lingering, last, other));
        while [&pool, &others].map(counts) != [(0, 0); 2] {
            thread::yield_now();
        }
    }

    #[test]
    fn full_pool_starts_the_thread_that_is_missing() {
        let pool = Arc::<FileClosers>::default();
        let places: Vec<_> = std::iter::from_fn(|| pool.place(MOST)).collect();
        let (begun, begins) = channel();
        let (drop_pending, goes) = channel();
        // As where no thread could be started.
        pool.closer().waiting.push(Box::new(Lingers(begun, goes)));
        drop(drop_pending);
        assert!(pool.place(MOST).is_none());
        begins.recv_timeout(LIMIT).expect("it is being closed");
        drop(places);
    }

    #[test]
    fn pool_has_so_many_places() {
        let pool = Arc::<FileClosers>::default();
        let half: Vec<_> = (0..MOST / 2).map_while(|_| pool.place(MOST / 2)).collect();
        assert!(half.len() == MOST / 2 && pool.place(MOST / 2).is_none());
        let rest: Vec<_> = std::iter::from_fn(|| pool.place(MOST)).collect();
        assert_eq!(rest.len(), MOST / 2);
        drop((half, rest));
        assert!(pool.place(1).is_some());
    }
}
