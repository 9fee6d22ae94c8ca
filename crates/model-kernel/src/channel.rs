//! File descriptors that a client reads records from: event channels, async event files, async
//! command files.
//!
//! Each is a SOCK_SEQPACKET socketpair, so that a read gives one record as the kernel's files do.
//! The kernel keeps unread records in a list that ends where its memory does; here the socket holds
//! what fits and a backlog of at most [`MOST_WAITING`] records the rest, which a thread feeds on
//! while there is one. The device never waits for a slow reader: what comes when the backlog is
//! full is lost. End of file stands for the kernel's EIO.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::client::{Client, FileId, identify};
use crate::descriptor;

/// How long the feeding thread waits for room before it looks whether the channel still is.
const FEED_MILLISECONDS: u8 = 20;
/// Records in the backlog of one channel: more than async commands can have there, whose bytes have
/// a limit of their own (Linux `MAX_ASYNC_BYTES_IN_USE`).
const MOST_WAITING: usize = 65536;
/// Records of which a channel remembers that it sent them, before it looks which of them were read:
/// more than a socket holds.
const MOST_SENT: usize = 4096;

/// The kernel's end of a channel.
#[derive(Debug)]
pub(super) struct Channel {
    /// The file that the client's descriptor refers to.
    pub file: FileId,
    /// The kernel's account of one record in the socket, in bytes, if all records have one size;
    /// otherwise 0.
    record_cost: usize,
    state: Mutex<ChannelState>,
}

#[derive(Debug)]
struct ChannelState {
    /// None once either side has closed.
    socket: Option<OwnedFd>,
    backlog: VecDeque<Record>,
    /// Tags and sizes of the records that the socket holds, oldest first; may lag behind the
    /// reader.
    sent: VecDeque<(u64, usize)>,
    feeding: bool,
}

#[derive(Debug)]
struct Record {
    tag: u64,
    bytes: Vec<u8>,
}

impl Channel {
    /// A channel, and the descriptor for the client. `record`: bytes of each record, so that unread
    /// ones can be counted one by one; 0 when they differ.
    pub(super) fn new(record: usize) -> Result<(Arc<Self>, OwnedFd), Errno> {
        let (ours, theirs) = descriptor::record_sockets()?;
        let mut record_cost = 0;
        if record != 0 {
            let mut probe = vec![0; record];
            descriptor::send(&ours, &probe)?;
            record_cost = descriptor::unread(&ours);
            descriptor::receive(&theirs, &mut probe)?;
        }
        let state = ChannelState {
            socket: Some(ours),
            backlog: VecDeque::new(),
            sent: VecDeque::new(),
            feeding: false,
        };
        let channel = Self { file: identify(&theirs)?, record_cost, state: Mutex::new(state) };
        Ok((Arc::new(channel), theirs))
    }

    fn lock(&self) -> MutexGuard<'_, ChannelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a record.
    pub(super) fn send(self: &Arc<Self>, bytes: Vec<u8>) {
        self.push(Record { tag: 0, bytes });
    }

    /// Queues a record that [`Channel::retract`] knows by its tag. False: it is lost, as so many
    /// wait to be read.
    pub(super) fn send_tagged(self: &Arc<Self>, tag: u64, bytes: Vec<u8>) -> bool {
        self.push(Record { tag, bytes })
    }

    /// Takes back the records with a tag that nobody has read; says how many there were.
    ///
    /// The kernel takes them off its list. Here they may lie in the socket, of which the other end
    /// is the client's: it is borrowed for a moment, and what it gives that has another tag goes
    /// back in. A client that reads at that very moment finds nothing, and is woken again.
    pub(super) fn retract(self: &Arc<Self>, tag: u64, client: &dyn Client) -> u32 {
        let mut state = self.lock();
        state.reconcile(self.record_cost);
        let waiting = state.backlog.len();
        state.backlog.retain(|record| record.tag != tag);
        let mut unread = waiting - state.backlog.len();
        let in_socket = state.sent.iter().filter(|&&(sent, _)| sent == tag).count();
        unread += in_socket;
        if in_socket != 0
            && let Some(theirs) = client.find(self.file)
        {
            let mut kept = VecDeque::new();
            let mut bytes = [0; 64];
            while let Ok(len) = descriptor::receive(&theirs, &mut bytes)
                && len != 0
            {
                let Some((sent, _)) = state.sent.pop_front() else { break };
                if sent != tag {
                    kept.push_back(Record { tag: sent, bytes: bytes[..len].to_vec() });
                }
            }
            state.sent.clear();
            kept.append(&mut state.backlog);
            state.backlog = kept;
            state.flush();
        }
        unread as u32
    }

    /// Queues an 8-byte record, unless one with the same tag waits to be read.
    pub(super) fn send_once(self: &Arc<Self>, tag: u64, bytes: [u8; 8]) {
        let mut state = self.lock();
        state.reconcile(self.record_cost);
        let waits = state.sent.iter().any(|&(sent, _)| sent == tag)
            || state.backlog.iter().any(|record| record.tag == tag);
        drop(state);
        if !waits {
            self.push(Record { tag, bytes: bytes.to_vec() });
        }
    }

    /// Queues a record; false if it is lost, since [`MOST_WAITING`] wait to be read.
    fn push(self: &Arc<Self>, record: Record) -> bool {
        let mut state = self.lock();
        if state.socket.is_none() {
            return true;
        }
        if state.sent.len() > MOST_SENT {
            state.reconcile(self.record_cost);
        }
        state.backlog.push_back(record);
        state.flush();
        if state.backlog.len() > MOST_WAITING {
            state.backlog.pop_back();
            drop(state);
            tracing::warn!(
                waiting = MOST_WAITING,
                "a client does not read its events: one is lost"
            );
            return false;
        }
        if !state.backlog.is_empty() && !state.feeding {
            let channel = Arc::downgrade(self);
            // Without a thread the backlog goes on with the next record.
            state.feeding = thread::Builder::new().spawn(move || feed(&channel)).is_ok();
        }
        true
    }

    /// Bytes behind the first `head` of each record that waits to be read; may count some that were
    /// read of late.
    pub(super) fn waiting(&self, head: usize) -> usize {
        let mut state = self.lock();
        state.reconcile(self.record_cost);
        let sent = state.sent.iter().map(|&(_, size)| size);
        let sizes = sent.chain(state.backlog.iter().map(|record| record.bytes.len()));
        sizes.map(|size| size.saturating_sub(head)).sum()
    }

    /// Whether the client still has its end.
    pub(super) fn is_open(&self) -> bool {
        let mut state = self.lock();
        let Some(socket) = &state.socket else { return false };
        let mut poll_fd = [PollFd::new(socket.as_fd(), PollFlags::empty())];
        let _ = poll(&mut poll_fd, PollTimeout::ZERO);
        // Nothing was asked for, so that only an error or the other end's close is told.
        let gone = poll_fd[0].revents().is_some_and(|events| !events.is_empty());
        if gone {
            state.socket = None;
            state.backlog.clear();
        }
        !gone
    }

    /// Ends the channel: a reader gets what the socket holds, then end of file.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.socket = None;
        state.backlog.clear();
    }
}

impl ChannelState {
    /// Moves records from the backlog into the socket while they fit.
    fn flush(&mut self) {
        while let (Some(socket), Some(record)) = (&self.socket, self.backlog.front()) {
            match descriptor::send(socket, &record.bytes) {
                Ok(()) => {
                    self.sent.push_back((record.tag, record.bytes.len()));
                    self.backlog.pop_front();
                }
                Err(Errno::EAGAIN | Errno::EINTR | Errno::ENOBUFS) => break,
                Err(_) => {
                    self.socket = None;
                    self.backlog.clear();
                }
            }
        }
    }

    /// Forgets records that were read. With records of one known cost exactly; else only once all
    /// were.
    fn reconcile(&mut self, record_cost: usize) {
        let unread = self.socket.as_ref().map_or(0, descriptor::unread);
        let records = match (unread, record_cost) {
            (0, _) => 0,
            (_, 0) => return,
            (unread, cost) => unread.div_ceil(cost),
        };
        while self.sent.len() > records {
            self.sent.pop_front();
        }
    }
}

/// Feeds a channel's backlog into its socket until there is none.
fn feed(channel: &Weak<Channel>) {
    loop {
        // A duplicate of the socket keeps it open only while this waits.
        let waiting = {
            let Some(channel) = channel.upgrade() else { return };
            let mut state = channel.lock();
            state.flush();
            if state.backlog.is_empty() {
                state.feeding = false;
                return;
            }
            state.socket.as_ref().and_then(|socket| socket.try_clone().ok())
        };
        let Some(socket) = waiting else { continue };
        let mut poll_fd = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
        let _ = poll(&mut poll_fd, PollTimeout::from(FEED_MILLISECONDS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(fd: &OwnedFd) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; 4096];
        let len = descriptor::receive(fd, &mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    }

    #[test]
    fn each_read_gives_one_record_in_order() {
        let (channel, fd) = Channel::new(0).expect("a socketpair");
        channel.send(vec![1; 72]);
        channel.send(vec![2; 16]);
        assert_eq!(read(&fd), Ok(vec![1; 72]));
        assert_eq!(read(&fd), Ok(vec![2; 16]));
        assert_eq!(read(&fd), Err(Errno::EAGAIN));
    }

    #[test]
    fn a_slow_reader_blocks_nobody_and_loses_nothing() {
        let (channel, fd) = Channel::new(0).expect("a socketpair");
        for number in 0..5000u32 {
            channel.send(number.to_ne_bytes().to_vec());
        }
        let mut bytes = [0; 4];
        for number in 0..5000u32 {
            nix::unistd::read(&fd, &mut bytes).expect("a record comes");
            assert_eq!(u32::from_ne_bytes(bytes), number);
        }
    }

    #[test]
    fn what_nobody_reads_is_kept_up_to_a_limit_and_the_rest_lost() {
        let (channel, fd) = Channel::new(8).expect("a socketpair");
        let (mut kept, mut number) = (0, 0u64);
        while channel.send_tagged(1, number.to_ne_bytes().to_vec()) {
            number += 1;
            assert!(number < 1 << 20, "there is no limit");
        }
        assert_eq!(channel.lock().backlog.len(), MOST_WAITING, "besides what the socket holds");
        assert!(!channel.send_tagged(1, vec![0xff; 8]), "it stays so until somebody reads");
        let mut bytes = [0; 8];
        while kept < number {
            nix::unistd::read(&fd, &mut bytes).expect("a record comes");
            assert_eq!(u64::from_ne_bytes(bytes), kept, "in order, and none is missing");
            kept += 1;
        }
        assert!(channel.send_tagged(1, vec![1; 8]));
        assert_eq!(read(&fd), Ok(vec![1; 8]));
    }

    #[test]
    fn a_tag_that_waits_to_be_read_is_not_queued_twice() {
        let (channel, fd) = Channel::new(8).expect("a socketpair");
        for _ in 0..3 {
            channel.send_once(1, [1; 8]);
            channel.send_once(2, [2; 8]);
        }
        assert_eq!(read(&fd), Ok(vec![1; 8]));
        channel.send_once(1, [1; 8]);
        channel.send_once(2, [2; 8]);
        assert_eq!(read(&fd), Ok(vec![2; 8]));
        assert_eq!(read(&fd), Ok(vec![1; 8]));
        assert_eq!(read(&fd), Err(Errno::EAGAIN));
    }

    #[test]
    fn records_that_nobody_read_are_taken_back_by_their_tag() {
        let client = super::super::client::Ourselves::default();
        let (channel, fd) = Channel::new(8).expect("a socketpair");
        for (tag, byte) in [(1, 1), (2, 2), (1, 3), (2, 4), (1, 5)] {
            channel.send_tagged(tag, vec![byte; 8]);
        }
        assert_eq!(read(&fd), Ok(vec![1; 8]));
        assert_eq!(channel.retract(1, &client), 2);
        assert_eq!(channel.retract(1, &client), 0);
        assert_eq!(read(&fd), Ok(vec![2; 8]));
        assert_eq!(read(&fd), Ok(vec![4; 8]));
        assert_eq!(read(&fd), Err(Errno::EAGAIN));
        assert_eq!(channel.retract(2, &client), 0);
    }

    /// A channel with so many records that its backlog has some, of tags 1 and 2 in turn.
    fn crowded() -> (Arc<Channel>, OwnedFd) {
        let (channel, fd) = Channel::new(8).expect("a socketpair");
        for number in 0..4096u64 {
            channel.send_tagged(1 + number % 2, number.to_ne_bytes().to_vec());
        }
        assert!(!channel.lock().backlog.is_empty(), "the socket holds them all");
        (channel, fd)
    }

    /// Reads a record, waiting for it.
    fn number(fd: &OwnedFd) -> u64 {
        let mut bytes = [0; 8];
        assert_eq!(nix::unistd::read(fd, &mut bytes), Ok(8));
        u64::from_ne_bytes(bytes)
    }

    #[test]
    fn records_of_the_backlog_too_are_taken_back_by_their_tag() {
        let client = super::super::client::Ourselves::default();
        let (channel, fd) = crowded();
        assert_eq!(channel.retract(1, &client), 2048);
        assert_eq!(channel.waiting(0), 2048 * 8);
        for expected in (1..4096).step_by(2) {
            assert_eq!(number(&fd), expected);
        }
        assert_eq!(read(&fd), Err(Errno::EAGAIN));
    }

    #[test]
    fn a_tag_that_waits_in_the_backlog_is_not_queued_twice() {
        let (channel, fd) = crowded();
        for _ in 0..2 {
            channel.send_once(3, [0xff; 8]);
            channel.send_once(2, [0xfe; 8]);
        }
        (0..4096).for_each(|expected| assert_eq!(number(&fd), expected));
        assert_eq!(number(&fd), u64::MAX);
        assert_eq!(read(&fd), Err(Errno::EAGAIN));
    }

    #[test]
    fn what_was_read_long_ago_is_not_remembered() {
        for record in [0, 8] {
            let (channel, fd) = Channel::new(record).expect("a socketpair");
            for count in 1..=MOST_SENT + 1 {
                channel.send(vec![1; 8]);
                assert_eq!(read(&fd), Ok(vec![1; 8]));
                assert_eq!(channel.lock().sent.len(), count);
            }
            channel.send(vec![2; 8]);
            assert_eq!(channel.lock().sent.len(), 1);
        }
    }

    #[test]
    fn a_closed_channel_reads_as_end_of_file() {
        let (channel, fd) = Channel::new(0).expect("a socketpair");
        channel.send(vec![1; 8]);
        channel.close();
        channel.send(vec![2; 8]);
        assert_eq!(read(&fd), Ok(vec![1; 8]));
        assert_eq!(read(&fd), Ok(vec![]));
    }

    #[test]
    fn a_client_that_closed_its_end_is_noticed() {
        let (channel, fd) = Channel::new(0).expect("a socketpair");
        assert!(channel.is_open());
        drop(fd);
        assert!(!channel.is_open());
        channel.send(vec![1; 8]);
        assert_eq!(channel.waiting(0), 0);
    }

    #[test]
    fn what_waits_is_counted_until_it_is_read() {
        let (channel, fd) = Channel::new(0).expect("a socketpair");
        channel.send(vec![1; 100]);
        channel.send(vec![1; 20]);
        assert_eq!((channel.waiting(0), channel.waiting(8)), (120, 104));
        let _ = (read(&fd), read(&fd));
        assert_eq!(channel.waiting(0), 0);
    }
}
