//! File descriptors that a client reads records from: event channels, async event files, async
//! command files.
//!
//! Each channel is a SOCK_SEQPACKET socketpair, so a read returns one record, as with the kernel's
//! files. Linux bounds the list of unread records only by memory. Here the socket holds what fits,
//! and a backlog of at most [`MAX_WAITING`] records holds the rest; the [`Feeder`] feeds the
//! backlog into the socket. The device never waits for a slow reader: a record that finds the
//! backlog full is lost. A reader gets end of file where the kernel returns EIO.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::account::{Charge, Resource};
use super::client::{Client, FileId, identify};
use super::feeder::Feeder;
use super::refused::refused;
use crate::descriptor;

/// Maximum number of records in the backlog of one channel. Async commands never reach it: their
/// bytes have a separate limit (Linux `MAX_ASYNC_BYTES_IN_USE`).
const MAX_WAITING: usize = 65536;
/// Overhead of a record in a backlog, in bytes.
const RECORD: usize = 64;

/// Bytes that the kernel holds for a record in a socket, besides its data.
const SK_BUFF: usize = 768;
/// Number of sent records from which a channel checks which of them were read. If more than this
/// are unread, it checks again once their number has doubled.
const MIN_SENT: usize = 8;
/// Tag of records in the socket whose object was destroyed while no reader's end could be borrowed:
/// the next [`Retraction`] that borrows one removes them.
const STALE: u64 = u64::MAX;

/// How often [`Channel::discard`] tries to borrow the client's end, and the interval.
const DISCARD_TRIES: usize = 50;
const DISCARD_PERIOD: Duration = Duration::from_millis(20);

/// The kernel's end of a channel.
#[derive(Debug)]
pub(super) struct Channel {
    /// The file that the client's descriptor refers to.
    pub file: FileId,
    /// The kernel's account of one record in the socket, in bytes, if all records have one size;
    /// otherwise 0.
    record_cost: usize,
    state: Mutex<ChannelState>,
    /// Charges the socket to the client's account.
    claim: OnceLock<Charge>,
}

#[derive(Debug)]
struct ChannelState {
    /// None once either side has closed.
    socket: Option<OwnedFd>,
    backlog: Backlog,
    /// The records that the socket holds, oldest first; may lag behind the reader.
    sent: VecDeque<SentRecord>,
    /// Length of `sent` from which [`ChannelState::reconcile`] is due.
    reconcile_at: usize,
    /// How many records of each tag but 0 are in `sent` and `backlog`.
    tags: HashMap<u64, u32>,
    feeding: bool,
    /// Whether `sent` also has the bytes of untagged records, because they lie among tagged ones.
    keeps_bytes: bool,
    /// A [`Retraction`] exists: records go to the backlog.
    retracting: bool,
    /// How many records of each tag but 0 were unread when the channel was closed.
    lost: HashMap<u64, u32>,
}

#[derive(Debug)]
struct ChannelRecord {
    tag: u64,
    bytes: Vec<u8>,
}

/// Records that wait for room in the socket, and their bytes.
#[derive(Debug, Default)]
struct Backlog {
    records: VecDeque<ChannelRecord>,
    bytes: usize,
    /// Bytes of the records that were sent: the kernel's, and those of [`SentRecord`].
    sent_bytes: usize,
    /// Counts both, up to date after [`Backlog::settle`]; `None`: no client has the channel.
    charge: Option<Charge>,
}

impl Backlog {
    fn charge(record: &ChannelRecord) -> usize {
        RECORD + record.bytes.capacity()
    }

    /// Sets the client's charge to the bytes of all records.
    fn settle(&mut self) {
        if let Some(charge) = &mut self.charge {
            charge.set(self.bytes + self.sent_bytes);
        }
    }

    /// Whether the client's records take more bytes than its account may hold.
    fn exceeds_share(&self) -> bool {
        self.charge.as_ref().is_some_and(Charge::exceeds_share)
    }

    fn push_back(&mut self, record: ChannelRecord) {
        self.bytes += Self::charge(&record);
        self.records.push_back(record);
    }

    fn pop(
        &mut self,
        end: fn(&mut VecDeque<ChannelRecord>) -> Option<ChannelRecord>,
    ) -> Option<ChannelRecord> {
        let record = end(&mut self.records)?;
        self.bytes -= Self::charge(&record);
        Some(record)
    }

    /// Replaces the records; returns the old ones.
    fn replace(&mut self, records: VecDeque<ChannelRecord>) -> VecDeque<ChannelRecord> {
        let before = std::mem::take(&mut self.records);
        self.bytes = 0;
        records.into_iter().for_each(|record| self.push_back(record));
        self.settle();
        before
    }

    fn clear(&mut self) {
        self.replace(VecDeque::new());
    }

    /// Whether the backlog exceeds a limit.
    fn is_over(&self) -> bool {
        !self.records.is_empty() && (self.records.len() > MAX_WAITING || self.exceeds_share())
    }
}

/// A record that was sent.
#[derive(Debug)]
struct SentRecord {
    tag: u64,
    length: usize,
    /// The record's bytes, if it has a tag: [`Retraction`] finds it by them.
    bytes: Vec<u8>,
}

impl SentRecord {
    fn cost(&self) -> usize {
        size_of::<Self>() + self.bytes.capacity() + SK_BUFF + self.length.next_power_of_two()
    }
}

impl Channel {
    /// Makes a channel and the descriptor for the client. `record`: bytes of each record, from
    /// which the number of unread ones follows; 0 when sizes differ.
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
            backlog: Backlog::default(),
            sent: VecDeque::new(),
            reconcile_at: MIN_SENT,
            tags: HashMap::new(),
            feeding: false,
            keeps_bytes: record != 0,
            retracting: false,
            lost: HashMap::new(),
        };
        let (file, state) = (identify(&theirs)?, Mutex::new(state));
        let channel = Self { file, record_cost, state, claim: OnceLock::new() };
        Ok((Arc::new(channel), theirs))
    }

    /// Holds a claim as long as the channel lives.
    pub(super) fn keep(&self, claim: Charge) {
        self.lock().backlog.charge = Some(claim.account().empty_charge(Resource::Bytes));
        let _ = self.claim.set(claim);
    }

    fn lock(&self) -> MutexGuard<'_, ChannelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a record. False: the backlog is full and the record is lost.
    pub(super) fn send(self: &Arc<Self>, bytes: Vec<u8>) -> bool {
        self.push(ChannelRecord { tag: 0, bytes })
    }

    /// Queues a record that a [`Retraction`] finds by its tag. False: the backlog is full and
    /// the record is lost.
    pub(super) fn send_tagged(self: &Arc<Self>, tag: u64, bytes: Vec<u8>) -> bool {
        self.push(ChannelRecord { tag, bytes })
    }

    /// Prepares to take back the unread records with a tag. EAGAIN: the socket has some, and the
    /// client's end cannot be borrowed at the moment.
    ///
    /// Linux removes them from the file's list. Here they may lie in the socket, whose other end is
    /// the client's. This borrows the client's end, and keeps other records in the backlog until
    /// the [`Retraction`] is dropped. The channel is unlocked while this searches the client's
    /// descriptors, which can take as long as the client wants: the device keeps sending meanwhile.
    pub(super) fn prepare_retraction(
        self: &Arc<Self>,
        tag: u64,
        client: &dyn Client,
    ) -> Result<Retraction, Errno> {
        let mut state = self.lock();
        state.reconcile(self.record_cost);
        state.retracting = true;
        let is_sent = state.has_sent(tag);
        drop(state);
        let mut retraction = Retraction { channel: self.clone(), tag, theirs: None };
        if is_sent {
            retraction.theirs = client.find(self.file).map_err(|errno| {
                let words = "the object has unread events, and their channel cannot be borrowed to \
                             retract them: read them, or try again later";
                refused(errno, words)
            })?;
        }
        Ok(retraction)
    }

    /// Takes back the unread records with a tag; returns their count.
    #[cfg(test)]
    fn retract(self: &Arc<Self>, tag: u64, client: &dyn Client) -> u32 {
        self.prepare_retraction(tag, client)
            .expect("the client's end can be borrowed")
            .finish(client)
    }

    /// Queues an 8-byte record, unless one with the same tag waits to be read.
    pub(super) fn send_once(self: &Arc<Self>, tag: u64, bytes: [u8; 8]) {
        let mut state = self.lock();
        state.reconcile(self.record_cost);
        if !state.tags.contains_key(&tag) {
            self.push_to(state, ChannelRecord { tag, bytes: bytes.to_vec() });
        }
    }

    fn push(self: &Arc<Self>, record: ChannelRecord) -> bool {
        self.push_to(self.lock(), record)
    }

    /// Queues a record; false if it is lost: the channel has ended, [`MAX_WAITING`] records already
    /// wait, or as many bytes as the client's account may hold. A channel without unread records
    /// takes one in any case.
    fn push_to(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, ChannelState>,
        record: ChannelRecord,
    ) -> bool {
        if state.socket.is_none() {
            return false;
        }
        if state.sent.len() >= state.reconcile_at || state.backlog.exceeds_share() {
            state.reconcile(self.record_cost);
        }
        let has_unread = !(state.sent.is_empty() && state.backlog.records.is_empty());
        if has_unread && state.backlog.exceeds_share() {
            drop(state);
            tracing::warn!("a client does not read its events: one is lost");
            return false;
        }
        state.add_tag(record.tag);
        state.backlog.push_back(record);
        state.flush();
        let waiting = state.backlog.records.len();
        if state.backlog.is_over() {
            if let Some(record) = state.backlog.pop(VecDeque::pop_back) {
                state.remove_tag(record.tag);
            }
            state.backlog.settle();
            drop(state);
            tracing::warn!(waiting, "a client does not read its events: one is lost");
            return false;
        }
        if waiting != 0 && !state.feeding {
            // Without a feeder, the next record flushes the backlog.
            let feeder = Feeder::get();
            state.feeding = feeder.is_ok();
            if let (Ok(feeder), Some(socket)) = (feeder, &state.socket) {
                feeder.watch(self, socket);
            }
        }
        true
    }

    /// Moves records from the backlog into the socket; the feeder does so again if some are left.
    pub(super) fn feed(self: &Arc<Self>, feeder: &Feeder) {
        let mut state = self.lock();
        let before = state.backlog.records.len();
        state.flush();
        let left = state.backlog.records.len();
        state.feeding = left != 0;
        match &state.socket {
            Some(socket) if left == 0 => feeder.forget(socket),
            Some(socket) if left < before => feeder.watch(self, socket),
            // The socket takes nothing although it has room, or a [`Retraction`] exists.
            Some(_) => feeder.poll(self),
            None => {}
        }
    }

    /// Bytes of all unread records, without the first `head` of each.
    pub(super) fn waiting(&self, head: usize) -> usize {
        let mut state = self.lock();
        state.reconcile(self.record_cost);
        let sent = state.sent.iter().map(|sent| sent.length);
        let waiting = state.backlog.records.iter().map(|record| record.bytes.len());
        let sizes = sent.chain(waiting);
        sizes.map(|size| size.saturating_sub(head)).sum()
    }

    /// Whether the client still has its end.
    pub(super) fn is_open(&self) -> bool {
        let mut state = self.lock();
        let Some(socket) = &state.socket else { return false };
        let mut poll_fd = [PollFd::new(socket.as_fd(), PollFlags::empty())];
        let _ = poll(&mut poll_fd, PollTimeout::ZERO);
        // With no events requested, poll reports only an error or the other end's close.
        let gone = poll_fd[0].revents().is_some_and(|events| !events.is_empty());
        if gone {
            state.end();
        }
        !gone
    }

    /// Ends the channel: a reader gets what the socket holds, then end of file. Returns whether the
    /// socket holds records.
    pub(super) fn close(&self) -> bool {
        let mut state = self.lock();
        if state.socket.is_some() {
            state.reconcile(self.record_cost);
            state.lost = std::mem::take(&mut state.tags);
            state.forget_sent(0);
        }
        let socket = state.socket.take();
        state.backlog.clear();
        socket.is_some_and(|socket| descriptor::unread(&socket) != 0)
    }

    /// Discards the unread records of a closed channel: a reader gets end of file. Linux ends the
    /// files of a removed device this way (`devx_async_event_destroy_uobj`,
    /// `devx_async_cmd_event_destroy_uobj`, `ib_uverbs_free_event_queue`). This can take as long as
    /// the client wants.
    pub(super) fn discard(&self, client: &dyn Client) {
        let find = || client.find(self.file);
        let again = || {
            thread::sleep(DISCARD_PERIOD);
            find()
        };
        let later = (1..DISCARD_TRIES).map(|_| again());
        let found = std::iter::once_with(find).chain(later).find(Result::is_ok);
        match found {
            // Stops at end of file.
            Some(Ok(Some(theirs))) => client.wait_for_client(&mut || {
                while matches!(descriptor::receive(&theirs, &mut [0; 8]), Ok(1..)) {}
            }),
            Some(_) => {}
            None => tracing::warn!("events of a removed device stay readable"),
        }
    }
}

impl ChannelState {
    /// Whether the socket may hold a record with a tag.
    fn has_sent(&self, tag: u64) -> bool {
        self.sent.iter().any(|sent| sent.tag == tag)
    }

    fn add_tag(&mut self, tag: u64) {
        if tag != 0 {
            *self.tags.entry(tag).or_default() += 1;
        }
    }

    fn remove_tag(&mut self, tag: u64) {
        if let Some(count) = self.tags.get_mut(&tag) {
            *count -= 1;
            if *count == 0 {
                self.tags.remove(&tag);
            }
        }
    }

    /// Handles the close of the client's end. The kernel does not report what the client had read:
    /// records in the socket count as read, those in the backlog as lost.
    fn end(&mut self) {
        self.socket = None;
        self.forget_sent(0);
        for record in self.backlog.replace(VecDeque::new()) {
            self.remove_tag(record.tag);
            if record.tag != 0 {
                *self.lost.entry(record.tag).or_default() += 1;
            }
        }
    }

    fn count_tags(&mut self) {
        self.tags.clear();
        let sent: Vec<u64> = self.sent.iter().map(|sent| sent.tag).collect();
        let waiting: Vec<u64> = self.backlog.records.iter().map(|record| record.tag).collect();
        sent.into_iter().chain(waiting).for_each(|tag| self.add_tag(tag));
    }

    /// Moves records from the backlog into the socket while they fit.
    fn flush(&mut self) {
        while !self.retracting
            && let (Some(socket), Some(record)) = (&self.socket, self.backlog.records.front())
        {
            match descriptor::send(socket, &record.bytes) {
                Ok(()) => {
                    let record = self.backlog.pop(VecDeque::pop_front);
                    let Some(ChannelRecord { tag, bytes }) = record else { break };
                    let length = bytes.len();
                    let keeps = tag != 0 || self.keeps_bytes;
                    let bytes = if keeps { bytes } else { Vec::new() };
                    let sent = SentRecord { tag, length, bytes };
                    self.backlog.sent_bytes += sent.cost();
                    self.sent.push_back(sent);
                }
                Err(Errno::EAGAIN | Errno::EINTR | Errno::ENOBUFS) => break,
                Err(_) => self.end(),
            }
        }
        self.backlog.settle();
    }

    /// Forgets records that were read.
    fn reconcile(&mut self, record_cost: usize) {
        let unread = self.socket.as_ref().map_or(0, descriptor::unread);
        let records = match (unread, record_cost) {
            (0, _) => 0,
            // The unread records are the newest ones that together have this cost.
            (unread, 0) => {
                let mut left = unread;
                let costs = self.sent.iter().rev().map(|it| descriptor::record_cost(it.length));
                costs
                    .take_while(|cost| left.checked_sub(*cost).map(|rest| left = rest).is_some())
                    .count()
            }
            (unread, cost) => unread.div_ceil(cost),
        };
        self.forget_sent(records);
        self.reconcile_at = MIN_SENT.max(2 * self.sent.len());
        self.sent.shrink_to(self.reconcile_at);
    }

    /// Forgets all but the last `most` sent records: the older ones were read.
    fn forget_sent(&mut self, most: usize) {
        while self.sent.len() > most {
            if let Some(sent) = self.sent.pop_front() {
                self.backlog.sent_bytes -= sent.cost();
                self.remove_tag(sent.tag);
            }
        }
        self.backlog.settle();
    }
}

/// Takes back a channel's unread records with a tag. Until this is dropped, no record goes into the
/// socket.
#[derive(Debug)]
pub(super) struct Retraction {
    channel: Arc<Channel>,
    tag: u64,
    /// The client's end. `None`: none of its records is in the socket, or no descriptor of the end
    /// is found: all are closed, or in messages, or in processes that this one may not access.
    theirs: Option<OwnedFd>,
}

impl Retraction {
    /// Takes the records back; returns their count. Records of other tags are sent again. A client
    /// that reads at that moment finds nothing, and is woken again. The channel is unlocked while
    /// this reads the client's socket, which can take as long as the client wants.
    pub(super) fn finish(mut self, client: &dyn Client) -> u32 {
        let (channel, tag) = (self.channel.clone(), self.tag);
        let mut state = channel.lock();
        state.reconcile(channel.record_cost);
        let mut records = state.backlog.replace(VecDeque::new());
        let waiting = records.len();
        records.retain(|record| record.tag != tag);
        let lost = state.lost.remove(&tag).unwrap_or(0) as usize;
        let mut unread = waiting - records.len() + lost;
        state.backlog.replace(records);
        match self.theirs.take() {
            Some(theirs) if state.has_sent(tag) => {
                let sent = std::mem::take(&mut state.sent);
                state.backlog.sent_bytes = 0;
                drop(state);
                let mut kept = VecDeque::new();
                // A reader whose buffer is a page that never arrives keeps the socket locked
                // meanwhile.
                client.wait_for_client(&mut || (kept, unread) = taken(&theirs, &sent, tag, unread));
                let mut state = channel.lock();
                let mut behind = state.backlog.replace(VecDeque::new());
                kept.append(&mut behind);
                state.backlog.replace(kept);
                state.count_tags();
            }
            _ => {
                for sent in state.sent.iter_mut().filter(|sent| sent.tag == tag) {
                    sent.tag = STALE;
                    unread += 1;
                }
                state.count_tags();
            }
        }
        unread as u32
    }
}

impl Drop for Retraction {
    fn drop(&mut self) {
        let mut state = self.channel.lock();
        state.retracting = false;
        match state.socket {
            Some(_) => state.flush(),
            None => state.backlog.clear(),
        }
    }
}

/// Takes all `sent` records out of the client's end of a channel. Returns the records with other
/// tags, and `unread` plus the number of records with `tag`. The client may have read some of them:
/// each is found by its bytes.
fn taken(
    theirs: &OwnedFd,
    sent: &VecDeque<SentRecord>,
    tag: u64,
    mut unread: usize,
) -> (VecDeque<ChannelRecord>, usize) {
    let (mut kept, mut bytes) = (VecDeque::new(), [0; 64]);
    let mut sent = sent.iter();
    while let Ok(length) = descriptor::receive(theirs, &mut bytes)
        && let Some(bytes) = bytes.get(..length).filter(|bytes| !bytes.is_empty())
        && let Some(of) = sent.by_ref().find(|sent| sent.bytes == bytes)
    {
        match of.tag {
            STALE => {}
            of if of == tag => unread += 1,
            of => kept.push_back(ChannelRecord { tag: of, bytes: bytes.to_vec() }),
        }
    }
    (kept, unread)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::fd::AsRawFd;

    use super::super::account::{Account, ResourcePool};
    use super::super::client::{OwnProcess, numbers};
    use super::*;

    fn read(fd: &OwnedFd) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; 4096];
        let len = descriptor::receive(fd, &mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    }

    #[test]
    fn read_returns_one_record_in_order() {
        let (channel, fd) = Channel::new(0).expect("a socketpair");
        channel.send(vec![1; 72]);
        channel.send(vec![2; 16]);
        assert_eq!(read(&fd), Ok(vec![1; 72]));
        assert_eq!(read(&fd), Ok(vec![2; 16]));
        assert_eq!(read(&fd), Err(Errno::EAGAIN));
    }

    #[test]
    fn slow_reader_loses_no_record() {
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
    fn tagged_backlog_is_bounded() {
        let (channel, fd) = Channel::new(8).expect("a socketpair");
        let (mut kept, mut number) = (0, 0u64);
        while channel.send_tagged(1, number.to_ne_bytes().to_vec()) {
            number += 1;
            assert!(number < 1 << 20, "there is no limit");
        }
        assert_eq!(
            channel.lock().backlog.records.len(),
            MAX_WAITING,
            "besides what the socket holds"
        );
        assert!(!channel.send_tagged(1, vec![0xff; 8]), "the backlog is full until a read");
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
    fn tags_are_counted_until_their_records_are_read() {
        let (channel, fd) = crowded();
        let counted = || {
            let state = channel.lock();
            (state.tags.get(&1).copied(), state.tags.len())
        };
        assert_eq!(counted(), (Some(2048), 2));
        assert_eq!(channel.retract(1, &OwnProcess::default()), 2048);
        assert_eq!(counted(), (None, 1));
        assert!((0..2048).all(|at| number(&fd) == 2 * at + 1));
        channel.lock().reconcile(channel.record_cost);
        assert_eq!(counted(), (None, 0));
    }

    #[test]
    fn retract_keeps_records_without_a_tag() {
        let (channel, fd) = Channel::new(8).expect("a socketpair");
        channel.send(vec![1; 8]);
        channel.send_tagged(1, vec![2; 8]);
        channel.send(vec![3; 8]);
        assert_eq!(channel.retract(1, &OwnProcess::default()), 1);
        let records = [read(&fd), read(&fd), read(&fd)];
        assert_eq!(records, [Ok(vec![1; 8]), Ok(vec![3; 8]), Err(Errno::EAGAIN)]);
    }

    #[test]
    fn reader_that_leaves_one_record_makes_no_list_grow() {
        let (channel, fd) = Channel::new(0).expect("a socketpair");
        channel.send(vec![1; 72]);
        for _ in 0..4096 {
            channel.send(vec![1; 72]);
            assert_eq!(read(&fd).map(|record| record.len()), Ok(72));
        }
        let state = channel.lock();
        assert!(state.sent.len() <= MIN_SENT && state.sent.capacity() <= 4 * MIN_SENT);
    }

    /// The account of the only process behind its filter.
    fn account_of(pool: &Arc<ResourcePool>) -> Arc<Account> {
        Arc::new(Arc::new(Account::with(pool.clone())).of_process())
    }

    /// A channel that is kept for a process.
    fn kept_for(account: &Arc<Account>) -> (Arc<Channel>, OwnedFd) {
        let (channel, fd) = Channel::new(8).expect("a socketpair");
        channel.keep(account.charge(Resource::Descriptors, 1).expect("one"));
        (channel, fd)
    }

    /// Fills a channel until the socket is full; returns the bytes that its records take there.
    fn fill_socket() -> usize {
        let (channel, _fd) = Channel::new(8).expect("a socketpair");
        while channel.lock().backlog.records.is_empty() {
            channel.send(vec![1; 8]);
        }
        channel.lock().backlog.sent_bytes
    }

    #[test]
    fn unread_records_count_for_their_filter() {
        // The only process of the only filter gets 3 of 7 parts: a full socket, and 100 records.
        let of_socket = fill_socket();
        let most = of_socket + 100 * (RECORD + 8);
        let pool = ResourcePool::of([10, 0, (most * 7).div_ceil(3), 0]);
        let [account, other] = [(); 2].map(|()| account_of(&pool));
        let (channel, fd) = kept_for(&account);
        let mut sent = 0_u64;
        while channel.send(sent.to_ne_bytes().to_vec()) {
            sent += 1;
            assert!(sent < MAX_WAITING as u64, "there is no limit");
        }
        let bytes = || {
            // The lock keeps the feeder out of the channel.
            let _state = channel.lock();
            account.taken(Resource::Bytes)
        };
        let waiting = channel.lock().backlog.records.len();
        assert_eq!((waiting, bytes()), (100, most));
        let (second, _theirs) = kept_for(&account);
        // A channel without unread records takes one.
        assert_eq!([(); 3].map(|()| second.send(vec![1; 8])), [true, false, false]);
        let (third, _theirs) = kept_for(&other);
        assert!((0..50).all(|_| third.send(vec![1; 8])), "another filter's");
        (0..sent).for_each(|expected| assert_eq!(number(&fd), expected));
        assert_eq!(read(&fd), Err(Errno::EAGAIN));
        assert!(channel.send(vec![1; 8]) && second.send(vec![1; 8]));
        assert!(bytes() < MIN_SENT * 1000);
        channel.close();
        second.close();
        assert_eq!(bytes(), 0);
    }

    #[test]
    fn record_of_ended_channel_is_lost() {
        let (channel, fd) = Channel::new(8).expect("a socketpair");
        drop(fd);
        // Sending the first record shows that the client's end is closed.
        channel.send_tagged(1, vec![1; 8]);
        assert!(!channel.send_tagged(1, vec![2; 8]));
        assert_eq!(channel.retract(1, &OwnProcess::default()), 1);
        let (channel, _fd) = Channel::new(8).expect("a socketpair");
        channel.close();
        assert!(!channel.send_tagged(1, vec![1; 8]));
        assert_eq!(channel.retract(1, &OwnProcess::default()), 0);
    }

    #[test]
    fn one_thread_feeds_all_channels_by_their_own_sockets() {
        let channels: Vec<_> = (0..50).map(|_| crowded()).collect();
        let name = |task: i32| {
            std::fs::read_to_string(format!("/proc/self/task/{task}/comm")).unwrap_or_default()
        };
        let feeders = numbers("/proc/self/task").expect("a list").into_iter().map(name);
        assert_eq!(feeders.filter(|name| name == "verbless-feed\n").count(), 1);
        let links = || {
            let link = |fd: i32| std::fs::read_link(format!("/proc/self/fd/{fd}")).ok();
            numbers("/proc/self/fd")
                .expect("a list")
                .into_iter()
                .filter_map(link)
                .collect::<Vec<_>>()
        };
        let all = links();
        for (channel, fd) in &channels {
            let ours = channel.lock().socket.as_ref().expect("open").as_raw_fd();
            let ours = std::fs::read_link(format!("/proc/self/fd/{ours}")).expect("open");
            assert_eq!(all.iter().filter(|link| **link == ours).count(), 1, "no duplicate");
            (0..4096).for_each(|expected| assert_eq!(number(fd), expected));
        }
    }

    #[test]
    fn backlog_that_cannot_be_watched_is_fed() {
        let (channel, fd) = crowded();
        let feeder = Feeder::get().expect("the feeder runs");
        // As if the user's epoll watches were used up.
        feeder.forget(channel.lock().socket.as_ref().expect("open"));
        feeder.poll(&channel);
        (0..4096).for_each(|expected| assert_eq!(number(&fd), expected));
    }

    #[test]
    fn unread_tag_is_queued_once() {
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
    fn retract_skips_record_read_meanwhile() {
        let (channel, fd) = Channel::new(8).expect("a socketpair");
        for (tag, byte) in [(1, 1), (1, 1), (2, 2), (1, 1), (3, 3)] {
            channel.send_tagged(tag, vec![byte; 8]);
        }
        let reads = || assert_eq!(read(&fd), Ok(vec![1; 8]));
        assert_eq!(channel.retract(1, &Slow(OwnProcess::default(), &|| Ok(()), &reads)), 2);
        let records = [read(&fd), read(&fd), read(&fd)];
        assert_eq!(records, [Ok(vec![2; 8]), Ok(vec![3; 8]), Err(Errno::EAGAIN)]);
    }

    #[test]
    fn retract_removes_unread_records_by_tag() {
        let client = OwnProcess::default();
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

    /// A client that runs one closure, which can fail, when its descriptors are searched, and
    /// another while the kernel waits for it.
    pub(crate) struct Slow<'a>(
        pub(crate) OwnProcess,
        pub(crate) Search<'a>,
        pub(crate) &'a (dyn Fn() + Sync),
    );

    type Search<'a> = &'a (dyn Fn() -> Result<(), Errno> + Sync);

    impl Client for Slow<'_> {
        fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Errno> {
            self.0.read(address, into)
        }

        fn write(&self, address: u64, from: &[u8]) -> Result<(), Errno> {
            self.0.write(address, from)
        }

        fn pin(&self, address: u64, length: u64, writable: bool) -> Result<(), Errno> {
            self.0.pin(address, length, writable)
        }

        fn dma_address(&self, address: u64) -> u64 {
            self.0.dma_address(address)
        }

        fn memlock(&self) -> u64 {
            self.0.memlock()
        }

        fn pinned(&self) -> &std::sync::atomic::AtomicU64 {
            self.0.pinned()
        }

        fn eventfds(&self) -> &crate::eventfds::Eventfds {
            self.0.eventfds()
        }

        fn capable(&self, capability: crate::client::Capability) -> bool {
            self.0.capable(capability)
        }

        fn install(&self, fd: OwnedFd) -> Result<i32, Errno> {
            self.0.install(fd)
        }

        fn identify(&self, fd: i32) -> Result<FileId, Errno> {
            self.0.identify(fd)
        }

        fn borrow(&self, fd: i32) -> Result<OwnedFd, Errno> {
            self.0.borrow(fd)
        }

        fn descriptors(&self) -> Result<Vec<i32>, Errno> {
            self.1()?;
            self.0.descriptors()
        }

        fn wait_for_client(&self, work: &mut dyn FnMut()) {
            self.2();
            work();
        }
    }

    #[test]
    fn retraction_fails_while_unread_records_cannot_be_borrowed() {
        let (channel, fd) = Channel::new(8).expect("a socketpair");
        channel.send_tagged(1, vec![1; 8]);
        let full = Slow(OwnProcess::default(), &|| Err(Errno::EAGAIN), &|| ());
        let prepared = |tag| channel.prepare_retraction(tag, &full).map(drop);
        assert_eq!((prepared(1), prepared(2)), (Err(Errno::EAGAIN), Ok(())));
        channel.send_tagged(1, vec![2; 8]);
        assert_eq!((read(&fd), read(&fd)), (Ok(vec![1; 8]), Ok(vec![2; 8])));
        // Records that the device sends between preparation and end need no borrowed end.
        let retraction = channel.prepare_retraction(1, &full).expect("the tag has no sent record");
        channel.send_tagged(1, vec![3; 8]);
        channel.send_tagged(2, vec![4; 8]);
        assert_eq!(retraction.finish(&full), 1);
        assert_eq!((read(&fd), read(&fd)), (Ok(vec![4; 8]), Err(Errno::EAGAIN)));
    }

    #[test]
    fn channel_is_unlocked_during_retract_lookup() {
        let (channel, fd) = Channel::new(8).expect("a socketpair");
        channel.send_tagged(1, vec![1; 8]);
        let meanwhile = || {
            assert!(channel.state.try_lock().is_ok(), "the channel is locked");
            channel.send_tagged(2, vec![2; 8]);
            channel.send_tagged(1, vec![3; 8]);
            Ok(())
        };
        assert_eq!(channel.retract(1, &Slow(OwnProcess::default(), &meanwhile, &|| ())), 2);
        assert_eq!((read(&fd), read(&fd)), (Ok(vec![2; 8]), Err(Errno::EAGAIN)));
    }

    #[test]
    fn channel_is_unlocked_while_draining_socket() {
        let (channel, fd) = Channel::new(8).expect("a socketpair");
        channel.send_tagged(1, vec![1; 8]);
        channel.send_tagged(2, vec![2; 8]);
        let meanwhile = || {
            assert!(channel.state.try_lock().is_ok(), "the channel is locked");
            channel.send_tagged(3, vec![3; 8]);
            assert_eq!(channel.lock().backlog.records.len(), 1, "behind those that are taken back");
        };
        assert_eq!(channel.retract(1, &Slow(OwnProcess::default(), &|| Ok(()), &meanwhile)), 1);
        let records = [read(&fd), read(&fd), read(&fd)];
        assert_eq!(records, [Ok(vec![2; 8]), Ok(vec![3; 8]), Err(Errno::EAGAIN)]);
    }

    #[test]
    fn client_cannot_send_to_a_channel() {
        let (channel, fd) = Channel::new(8).expect("a socketpair");
        assert_eq!(descriptor::send(&fd, &[1]), Err(Errno::EPIPE));
        channel.send(vec![1; 8]);
        assert!(channel.is_open());
        assert_eq!(read(&fd), Ok(vec![1; 8]));
    }

    #[test]
    fn records_sent_during_a_retraction_are_charged() {
        let account = account_of(&ResourcePool::of([10, 0, 10_000, 0]));
        let (channel, fd) = kept_for(&account);
        channel.send_tagged(1, vec![1; 8]);
        let in_socket = account.taken(Resource::Bytes);
        let meanwhile = || {
            channel.send_tagged(2, vec![2; 8]);
            assert_eq!(account.taken(Resource::Bytes), RECORD + 8);
        };
        assert_eq!(channel.retract(1, &Slow(OwnProcess::default(), &|| Ok(()), &meanwhile)), 1);
        assert_eq!((read(&fd), account.taken(Resource::Bytes)), (Ok(vec![2; 8]), in_socket));
        assert_eq!((channel.waiting(0), account.taken(Resource::Bytes)), (0, 0));
    }

    #[test]
    fn stale_record_is_removed_by_next_retraction() {
        use std::io::{IoSlice, IoSliceMut};

        use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
        let (client, (channel, fd)) =
            (OwnProcess::default(), Channel::new(8).expect("a socketpair"));
        for (tag, byte) in [(1, 1), (2, 2), (1, 3), (3, 4)] {
            channel.send_tagged(tag, vec![byte; 8]);
        }
        let (from, to) = descriptor::record_sockets().expect("a socketpair");
        let (passed, bytes) = ([fd.as_raw_fd()], [IoSlice::new(&[0])]);
        let passed = [ControlMessage::ScmRights(&passed)];
        sendmsg::<()>(from.as_raw_fd(), &bytes, &passed, MsgFlags::empty(), None).expect("sent");
        drop(fd);
        assert_eq!(channel.retract(1, &client), 2);
        let (mut byte, mut space) = ([0], nix::cmsg_space!([i32; 1]));
        let mut bytes = [IoSliceMut::new(&mut byte)];
        let flags = MsgFlags::empty();
        let message = recvmsg::<()>(to.as_raw_fd(), &mut bytes, Some(&mut space), flags);
        let message = message.expect("a message");
        let Some(ControlMessageOwned::ScmRights(passed)) = message.cmsgs().expect("whole").next()
        else {
            panic!("the message has no descriptor");
        };
        let fd = descriptor::duplicate(passed[0]).expect("the file is open");
        assert_eq!(channel.retract(2, &client), 1);
        assert_eq!((read(&fd), read(&fd)), (Ok(vec![4; 8]), Err(Errno::EAGAIN)));
    }

    /// A channel with records of tags 1 and 2 in turn, enough to fill its backlog partly.
    fn crowded() -> (Arc<Channel>, OwnedFd) {
        let (channel, fd) = Channel::new(8).expect("a socketpair");
        for number in 0..4096u64 {
            channel.send_tagged(1 + number % 2, number.to_ne_bytes().to_vec());
        }
        assert!(!channel.lock().backlog.records.is_empty(), "the socket holds them all");
        (channel, fd)
    }

    /// Reads a record, waiting for it.
    fn number(fd: &OwnedFd) -> u64 {
        let mut bytes = [0; 8];
        assert_eq!(nix::unistd::read(fd, &mut bytes), Ok(8));
        u64::from_ne_bytes(bytes)
    }

    #[test]
    fn backlog_records_are_retracted_by_tag() {
        let client = OwnProcess::default();
        let (channel, fd) = crowded();
        assert_eq!(channel.retract(1, &client), 2048);
        assert_eq!(channel.waiting(0), 2048 * 8);
        for expected in (1..4096).step_by(2) {
            assert_eq!(number(&fd), expected);
        }
        assert_eq!(read(&fd), Err(Errno::EAGAIN));
    }

    #[test]
    fn backlogged_tag_is_queued_once() {
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
    fn read_records_are_forgotten() {
        for record in [0, 8] {
            let (channel, fd) = Channel::new(record).expect("a socketpair");
            for count in 1..=MIN_SENT {
                channel.send(vec![1; 8]);
                assert_eq!(read(&fd), Ok(vec![1; 8]));
                assert_eq!(channel.lock().sent.len(), count);
            }
            channel.send(vec![2; 8]);
            assert_eq!(channel.lock().sent.len(), 1);
            // Unread ones stay, and are looked at again when their number has doubled.
            (0..19).for_each(|_| assert!(channel.send(vec![3; 8])));
            let state = channel.lock();
            assert_eq!((state.sent.len(), state.reconcile_at), (20, 32));
        }
    }

    #[test]
    fn closed_channel_reads_end_of_file() {
        let (channel, fd) = Channel::new(0).expect("a socketpair");
        channel.send(vec![1; 8]);
        channel.close();
        channel.send(vec![2; 8]);
        assert_eq!(read(&fd), Ok(vec![1; 8]));
        assert_eq!(read(&fd), Ok(vec![]));
    }

    #[test]
    fn retraction_counts_records_lost_by_close() {
        for (read_before, with_socket) in [(0, true), (2, true), (3, true), (0, false)] {
            let (channel, fd) = Channel::new(8).expect("a socketpair");
            (0..3_u8).for_each(|byte| assert!(channel.send_tagged(1, vec![byte; 8])));
            assert!(channel.send_tagged(2, vec![9; 8]));
            (0..read_before).for_each(|_| drop(read(&fd).expect("a record")));
            channel.close();
            if with_socket {
                channel.discard(&OwnProcess::default());
            }
            assert_eq!(channel.retract(1, &OwnProcess::default()), 3 - read_before);
            assert_eq!(channel.retract(2, &OwnProcess::default()), 1);
        }
    }

    #[test]
    fn discard_removes_unread_records() {
        for records in [0, 3, 4096] {
            let (channel, fd) = Channel::new(0).expect("a socketpair");
            assert!((0..records).all(|_| channel.send(vec![1; 72])));
            assert_eq!(channel.close(), records != 0);
            channel.discard(&OwnProcess::default());
            channel.send(vec![2; 8]);
            assert_eq!(read(&fd), Ok(vec![]), "{records} records");
        }
    }

    #[test]
    fn discard_is_tried_again() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let (channel, fd) = Channel::new(0).expect("a socketpair");
        assert!(channel.send(vec![1; 8]) && channel.close());
        let (tries, most) = (AtomicUsize::new(0), AtomicUsize::new(DISCARD_TRIES + 1));
        let search = || {
            let number = tries.fetch_add(1, Ordering::Relaxed) + 1;
            if number < most.load(Ordering::Relaxed) { Err(Errno::EAGAIN) } else { Ok(()) }
        };
        let client = Slow(OwnProcess::default(), &search, &|| ());
        channel.discard(&client);
        assert_eq!(tries.swap(0, Ordering::Relaxed), DISCARD_TRIES);
        most.store(3, Ordering::Relaxed);
        channel.discard(&client);
        assert_eq!((tries.into_inner(), read(&fd)), (3, Ok(vec![])));
    }

    #[test]
    fn is_open_ends_when_reader_closes() {
        let (channel, fd) = Channel::new(0).expect("a socketpair");
        assert!(channel.is_open());
        drop(fd);
        assert!(!channel.is_open());
        channel.send(vec![1; 8]);
        assert_eq!(channel.waiting(0), 0);
    }

    #[test]
    fn records_of_any_size_are_forgotten_once_read() {
        let (channel, fd) = Channel::new(0).expect("a socketpair");
        let sizes = [72, 1, 4000, 20_000, 65_543, 8, 300, 9000];
        for (index, size) in sizes.into_iter().enumerate() {
            channel.send(vec![1; size]);
            if let Some(before) = index.checked_sub(1) {
                let mut bytes = vec![0; 1 << 17];
                assert_eq!(descriptor::receive(&fd, &mut bytes), Ok(sizes[before]));
                assert_eq!(channel.waiting(0), size, "the reader is one record behind");
            }
        }
    }

    #[test]
    fn waiting_counts_unread_bytes() {
        let (channel, fd) = Channel::new(0).expect("a socketpair");
        channel.send(vec![1; 100]);
        channel.send(vec![1; 20]);
        assert_eq!((channel.waiting(0), channel.waiting(8)), (120, 104));
        let _ = (read(&fd), read(&fd));
        assert_eq!(channel.waiting(0), 0);
    }
}
