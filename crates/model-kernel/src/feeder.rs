//! The thread that feeds the backlogs of all channels into their sockets.
//!
//! It waits by epoll until a reader has made room. If epoll cannot watch a channel, or its socket
//! takes nothing although it has room, the thread tries the channel again every [`PERIOD`].

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::Builder;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::channel::Channel;

/// Interval between tries of a channel that epoll does not watch.
const PERIOD: Duration = Duration::from_millis(20);
/// Size of `Fed::watched` at the first purge of dropped channels.
const MIN_PURGE: usize = 256;
/// The epoll data of `Feeder::bell`.
const BELL: u64 = 0;

/// The thread's channels.
#[derive(Debug)]
pub(super) struct Feeder {
    epoll: Epoll,
    /// Wakes the thread for `Fed::polled`.
    bell: EventFd,
    fed: Mutex<Fed>,
}

#[derive(Debug, Default)]
struct Fed {
    /// Channels whose sockets the epoll watches, by its data.
    watched: HashMap<u64, Weak<Channel>>,
    polled: Vec<Weak<Channel>>,
    last: u64,
    /// Size of `watched` at the next purge.
    purge_at: usize,
}

impl Feeder {
    /// The feeder of this process, with its thread.
    pub(super) fn get() -> Result<&'static Self, Errno> {
        static FEEDER: OnceLock<Feeder> = OnceLock::new();
        static STARTING: Mutex<()> = Mutex::new(());
        let _alone = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(feeder) = FEEDER.get() {
            return Ok(feeder);
        }
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let bell = EventFd::from_value_and_flags(0, flags)?;
        epoll.add(&bell, EpollEvent::new(EpollFlags::EPOLLIN, BELL))?;
        let run = || {
            // Until `FEEDER` is set.
            drop(STARTING.lock());
            if let Some(feeder) = FEEDER.get() {
                feeder.run();
            }
        };
        Builder::new().name("verbless-feed".into()).spawn(run).map_err(|_| Errno::EAGAIN)?;
        let feeder = Self { epoll, bell, fed: Mutex::default() };
        Ok(FEEDER.get_or_init(|| feeder))
    }

    fn fed(&self) -> MutexGuard<'_, Fed> {
        self.fed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Feeds a channel once its socket has room.
    pub(super) fn watch(&self, channel: &Arc<Channel>, socket: &OwnedFd) {
        let number = {
            let mut fed = self.fed();
            if fed.watched.len() > fed.purge_at {
                fed.watched.retain(|_, channel| channel.strong_count() != 0);
                fed.purge_at = MIN_PURGE.max(2 * fed.watched.len());
            }
            fed.last += 1;
            let number = fed.last;
            fed.watched.insert(number, Arc::downgrade(channel));
            number
        };
        let mut event = EpollEvent::new(EpollFlags::EPOLLOUT | EpollFlags::EPOLLONESHOT, number);
        let watched = match self.epoll.add(socket, event) {
            Err(Errno::EEXIST) => self.epoll.modify(socket, &mut event),
            added => added,
        };
        // ENOSPC: the user's epoll watches are used up.
        if watched.is_err() {
            self.fed().watched.remove(&number);
            self.poll(channel);
        }
    }

    /// Feeds a channel after [`PERIOD`].
    pub(super) fn poll(&self, channel: &Arc<Channel>) {
        self.fed().polled.push(Arc::downgrade(channel));
        let _ = self.bell.write(1);
    }

    /// Ends the wait for a channel's socket.
    pub(super) fn forget(&self, socket: &OwnedFd) {
        let _ = self.epoll.delete(socket.as_fd());
    }

    fn run(&self) {
        let mut events = [EpollEvent::empty(); 64];
        // When the polled channels are tried.
        let mut due: Option<Instant> = None;
        loop {
            let left = due.map(|due| due.saturating_duration_since(Instant::now()));
            let timeout = left.map_or(EpollTimeout::NONE, |left| {
                // One more: the timeout excludes the current partial millisecond.
                EpollTimeout::from(u8::try_from(left.as_millis() + 1).unwrap_or(u8::MAX))
            });
            let ready = self.epoll.wait(&mut events, timeout).unwrap_or(0);
            for event in &events[..ready] {
                let number = event.data();
                if number == BELL {
                    let _ = self.bell.read();
                    continue;
                }
                let channel = self.fed().watched.remove(&number);
                channel.iter().for_each(|channel| self.feed(channel));
            }
            if due.is_some_and(|due| due <= Instant::now()) {
                due = None;
                let polled = std::mem::take(&mut self.fed().polled);
                polled.iter().for_each(|channel| self.feed(channel));
            }
            if due.is_none() && !self.fed().polled.is_empty() {
                due = Some(Instant::now() + PERIOD);
            }
        }
    }

    fn feed(&self, channel: &Weak<Channel>) {
        if let Some(channel) = channel.upgrade() {
            channel.feed(self);
        }
    }
}
