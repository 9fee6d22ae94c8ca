//! Transport of a program's stream entries to the host, shared by message streams and the tracer.
//!
//! A channel is a ring of entries in the process's heap, its control block for the program, and the
//! transport to the host (`verbless_flexio_dev::stream` has the layouts). The host manages it by
//! calls of the program's `verbless_stream`, and reads its progress from the heap, which works
//! after a fatal error, too.
//!
//! The host checks the numbers of entries from the DPA: it drops an old entry, counts one too far
//! ahead as damaged, and counts the gap before a valid one as lost.

mod receiver;
mod sender;

use std::thread;
use std::time::{Duration, Instant};

use verbless_command::{Affinity, DpaEntry};
use verbless_flexio_dev::stream::control::{
    self, Carrier, FREED_AT, LEVEL_AT, MAX_LOG_ENTRIES, PROGRESS_BYTES, Progress, SETUP_BYTES,
    Setup, UNSEEN,
};
use verbless_flexio_dev::stream::entry::NUMBER_AT;
use verbless_flexio_dev::stream::table::{FAILED, first_argument, operation};

use crate::error::Error;
use crate::memory::Buffer;
use crate::process::Process;
use crate::window::Window;

use receiver::Receiver;
use sender::Sender;

/// The program's function for managing streams.
const MANAGER: &str = "verbless_stream";
/// Maximum number of entries that the numbers of two successive entries may skip.
const MAX_GAP: u64 = 1 << 32;
/// If an unreliable transport delivers nothing for this time, missing entries count as lost.
const QUIET_TIME: Duration = Duration::from_millis(20);
/// The pause between two polls.
const PAUSE: Duration = Duration::from_micros(50);
/// Time for threads to leave a detached channel, or to write their claimed entries.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// How entries reach the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryTransport {
    /// The host reads the heap.
    Heap,
    Window,
    Rc,
    Uc,
    Ud,
}

/// Parameters of a channel.
#[derive(Debug, Clone)]
pub(crate) struct ChannelConfig {
    /// The number of the stream, or of the tracer.
    pub(crate) number: u64,
    pub(crate) transport: EntryTransport,
    pub(crate) log_entry_bytes: u8,
    /// Bytes of the ring in the heap, a power of two.
    pub(crate) ring_bytes: u64,
    /// Address of the ring, if the user provides its memory.
    pub(crate) ring_at: Option<u64>,
    /// Bytes of the host's memory, a power of two and at least as large as the ring.
    pub(crate) host_bytes: u64,
    /// Entries per message, a power of two.
    pub(crate) batch: u32,
    /// Retries, each after a pause, before a thread without room drops its message.
    pub(crate) room_retries: u32,
    /// The execution units for the calls that manage the channel.
    pub(crate) affinity: Affinity,
}

/// Entries of one stream of a process.
#[derive(Debug)]
pub(crate) struct Channel {
    process: Process,
    config: ChannelConfig,
    receiver: Receiver,
    sender: Option<Sender>,
    window: Option<Window>,
    control: Buffer,
    ring: Option<Buffer>,
    ring_at: u64,
    /// The number of the next entry.
    next: u64,
    /// Lost or damaged entries.
    losses: EntryLosses,
    attached: bool,
    /// Whether the ring keeps its entries until tracing stops: nothing is handed over or freed, and
    /// an entry without room is dropped.
    lossless: bool,
    level: u32,
    /// Totals of earlier rings: entries, and messages that found no room.
    before: Progress,
    /// Earlier rings: threads may still write to them.
    old_rings: Vec<Channel>,
    /// The next ring, after a timeout: the program may have found it. Entries there wait until
    /// [`Self::renew`] succeeds.
    next_ring: Option<Box<Channel>>,
    /// The user's buffer for the ring, if any.
    user_buffer: Option<Buffer>,
    /// Count of the process's terminated runs when the first ring was created.
    terminated_runs: u64,
}

/// Counts of lost and damaged entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct EntryLosses {
    /// Entries that never arrived.
    pub(crate) lost: u64,
    /// Invalid arrivals.
    pub(crate) damaged: u64,
}

impl EntryLosses {
    /// Counts `entries` as lost. Saturates, because the program controls entry numbers.
    fn lose(&mut self, entries: u64) {
        self.lost = self.lost.saturating_add(entries);
    }
}

impl Channel {
    /// Creates a channel that the program does not know yet.
    pub(crate) fn create(process: &Process, config: ChannelConfig) -> Result<Self, Error> {
        let log_entries = config.ring_bytes.ilog2() as u8 - config.log_entry_bytes;
        if log_entries > MAX_LOG_ENTRIES {
            return Err(Error::Failed(format!(
                "a ring of {} bytes has more than the limit of {} entries",
                config.ring_bytes,
                1_u64 << MAX_LOG_ENTRIES
            )));
        }
        let ring = match config.ring_at {
            Some(_) => None,
            None => Some(process.alloc(config.ring_bytes)?),
        };
        let ring_at = config.ring_at.or(ring.as_ref().map(Buffer::address)).unwrap_or_default();
        // An old number in a slot must not pass as an entry's.
        process.fill(ring_at, config.ring_bytes, 0)?;
        let mut setup = Setup::new(ring_at, log_entries, config.log_entry_bytes);
        setup.batch = config.batch;
        setup.room_retries = config.room_retries;
        let (mut window, mut sender) = (None, None);
        let receiver = match config.transport {
            EntryTransport::Heap => Receiver::heap(),
            EntryTransport::Window => {
                let made = Window::create(process, process.pd())?;
                setup.carrier = Carrier::Window as u8;
                setup.window = made.id().0;
                window = Some(made);
                // As many slots as entries, so that every claimed entry has one.
                Receiver::window(process, &config, &mut setup)?
            }
            EntryTransport::Rc | EntryTransport::Uc | EntryTransport::Ud => {
                let mut receiver = Receiver::queue(process, &config)?;
                let ring = (ring_at, config.ring_bytes);
                sender = Some(Sender::create(process, &config, ring, &mut receiver, &mut setup)?);
                receiver
            }
        };
        let mut block = setup.to_bytes();
        block[LEVEL_AT..LEVEL_AT + 4].copy_from_slice(&UNSEEN.to_le_bytes());
        let control = process.alloc_from(&block)?;
        Ok(Self {
            process: process.clone(),
            receiver,
            sender,
            window,
            control,
            ring,
            ring_at,
            next: 0,
            losses: EntryLosses::default(),
            attached: false,
            lossless: false,
            level: 0,
            before: Progress::default(),
            old_rings: Vec::new(),
            next_ring: None,
            user_buffer: None,
            terminated_runs: process.terminated_runs(),
            config,
        })
    }

    /// Keeps the ring's buffer alive.
    pub(crate) fn keep(&mut self, buffer: Option<Buffer>) {
        self.user_buffer = buffer;
    }

    /// Fails if its process has ended.
    pub(crate) fn alive(&self) -> Result<(), Error> {
        self.process.alive()
    }

    /// The numbers of the host's queue pair and of the program's, if it has any.
    pub(crate) fn qp_numbers(&self) -> Option<(u32, u32)> {
        Some((self.receiver.qpn()?, self.sender.as_ref()?.qpn()))
    }

    pub(crate) const fn losses(&self) -> EntryLosses {
        self.losses
    }

    const fn entry_bytes(&self) -> usize {
        1 << self.config.log_entry_bytes
    }

    const fn entries(&self) -> u64 {
        self.config.ring_bytes >> self.config.log_entry_bytes
    }

    fn manage(&self, operation: u64, level: u32) -> Result<u64, Error> {
        let app = self.process.app();
        let address = app.symbol(MANAGER).ok_or_else(|| {
            Error::Failed(format!(
                "{} has no {MANAGER}, which verbless_flexio_dev::program! defines, so it has no \
                 streams",
                app.name()
            ))
        })?;
        let entry = DpaEntry { affinity: self.config.affinity, ..DpaEntry::at(address) };
        let (first, number) = (first_argument(operation, level), self.config.number);
        let words = [first, number, self.control.address(), 0, 0, 0, 0, 0];
        match self.process.finish(self.process.begin(&entry, words)?)? {
            FAILED => Err(Error::Failed(format!(
                "{} refuses stream {number}: its streams are of another version than {}",
                app.name(),
                control::VERSION
            ))),
            result => Ok(result),
        }
    }

    /// Attaches the channel in the program, with this level. After a timeout the program may have
    /// attached it; a drop then detaches it.
    pub(crate) fn attach(&mut self, level: u32) -> Result<(), Error> {
        let outcome = self.manage(operation::ATTACH, level);
        self.attached = match &outcome {
            Ok(_) => true,
            Err(Error::Failed(_) | Error::Fatal(_)) => false,
            Err(_) => self.is_seen(),
        };
        self.level = level;
        outcome.map(drop)
    }

    /// Whether the program has attached the channel, as far as the host can see.
    fn is_seen(&self) -> bool {
        let mut level = [0; 4];
        let read = self.read(self.control.address() + LEVEL_AT as u64, &mut level);
        read.is_err() || u32::from_le_bytes(level) != UNSEEN
    }

    pub(crate) fn set_level(&mut self, level: u32) -> Result<(), Error> {
        self.manage(operation::LEVEL, level)?;
        self.level = level;
        self.lossless = level & control::HOLDS != 0;
        Ok(())
    }

    /// Whether the host reads the heap, and nothing is sent.
    fn by_host(&self) -> bool {
        self.lossless || self.config.transport == EntryTransport::Heap
    }

    /// Empties the ring: the program hands over its remaining entries, and the host acknowledges
    /// them. No thread may write meanwhile.
    pub(crate) fn empty_ring(&mut self, deliver: &mut dyn FnMut(u64, &[u8])) -> Result<(), Error> {
        if self.config.transport == EntryTransport::Heap {
            return self.give_back();
        }
        let begun = Instant::now();
        loop {
            self.manage(operation::FLUSH, 0)?;
            self.receive(deliver)?;
            let Progress { claimed, carried, freed, error_syndrome, .. } = self.progress()?;
            let free = self.config.transport == EntryTransport::Window || freed == claimed;
            if error_syndrome != 0 || carried == claimed && free || begun.elapsed() > LEAVE_TIMEOUT
            {
                return Ok(());
            }
            thread::sleep(PAUSE);
        }
    }

    /// The program's progress.
    pub(crate) fn progress(&self) -> Result<Progress, Error> {
        let mut bytes = [0; PROGRESS_BYTES];
        self.read(self.control.address() + SETUP_BYTES as u64, &mut bytes)?;
        Ok(Progress::from_bytes(&bytes))
    }

    /// Messages that found no room, in this ring and earlier ones.
    pub(crate) fn without_room(&self) -> Result<u64, Error> {
        Ok(self.before.lost.saturating_add(self.progress()?.lost))
    }

    /// Whether a claimed entry stays unwritten or not handed over, because its run was terminated:
    /// all entries after it wait, and so do entries in the next ring.
    pub(crate) fn is_held_up(
        &mut self,
        deliver: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<bool, Error> {
        if self.next_ring.is_some() {
            return Ok(true);
        }
        let begun = Instant::now();
        let mut first = None;
        loop {
            let Progress { claimed, written, carried, error_syndrome, .. } = self.progress()?;
            let at = (written, if self.by_host() { self.next } else { carried });
            if error_syndrome != 0 || at.1 >= claimed || *first.get_or_insert(at) != at {
                return Ok(false);
            }
            if begun.elapsed() > LEAVE_TIMEOUT {
                return Ok(true);
            }
            thread::sleep(PAUSE);
            match self.by_host() {
                true => self.receive(deliver)?,
                false => self.manage(operation::FLUSH, 0)?,
            };
        }
    }

    /// Replaces the ring by an empty one without blocked entries, and delivers the complete entries
    /// of the old one. Later entries of threads in the old ring are lost; its memory stays until
    /// the stream is detached, and so does the user's memory: the new ring is in the heap.
    ///
    /// An error may leave it unknown whether the program uses the new ring already, or what the old
    /// ring contains. The old ring then stays in use, and the stream is blocked until another call
    /// of this function, which continues with both rings.
    pub(crate) fn renew(&mut self, deliver: &mut dyn FnMut(u64, &[u8])) -> Result<(), Error> {
        let mut next_ring = match self.next_ring.take() {
            Some(next_ring) => next_ring,
            None => {
                // A blocked thread may still write to the user's memory, too.
                let config = ChannelConfig { ring_at: None, ..self.config.clone() };
                Box::new(Self::create(&self.process, config)?)
            }
        };
        if let Err(error) = next_ring.attach(self.level) {
            // Detaching the stream is the old ring's part.
            next_ring.attached = false;
            self.next_ring = next_ring.is_seen().then_some(next_ring);
            return Err(error);
        }
        let read = self.receive(deliver).and_then(|_| self.read_all(true, deliver));
        let progress = match read.and_then(|_| self.progress()) {
            // The process has ended, so no thread writes any more: the new ring replaces the old
            // one.
            Err(Error::Fatal(why)) => Err(Error::Fatal(why)),
            Err(error) => {
                // Both rings have the stream's number: detaching the old ring detaches the stream.
                next_ring.attached = false;
                self.next_ring = Some(next_ring);
                return Err(error);
            }
            progress => progress,
        };
        (next_ring.lossless, next_ring.terminated_runs) = (self.lossless, self.terminated_runs);
        self.attached = false;
        let mut old = std::mem::replace(self, *next_ring);
        let Progress { claimed, lost, .. } = *progress.as_ref().unwrap_or(&Progress::default());
        // The program writes this counter, so it is untrusted: at most the ring is full.
        let claimed = claimed.min(old.next.saturating_add(old.entries())).max(old.next);
        self.before.claimed = old.before.claimed.saturating_add(claimed);
        self.before.lost = old.before.lost.saturating_add(lost);
        self.losses = old.losses;
        self.losses.lose(claimed.saturating_sub(old.next));
        self.old_rings.append(&mut old.old_rings);
        self.old_rings.push(old);
        progress.map(drop)
    }

    /// Reads the heap, even after a fatal error.
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.process.copying(|copier| copier.read(address, bytes))
    }

    /// Receives the available entries; `deliver` gets the number and the bytes of each, in order.
    /// Returns the number of delivered entries.
    pub(crate) fn receive(&mut self, deliver: &mut dyn FnMut(u64, &[u8])) -> Result<u64, Error> {
        if self.by_host() {
            return self.read_heap(deliver);
        }
        let mut count = 0;
        let (next, losses, base) = (&mut self.next, &mut self.losses, self.before.claimed);
        let deliver = &mut |index, entry: &[u8]| deliver(base.saturating_add(index), entry);
        self.receiver.take(self.config.log_entry_bytes, next, &mut |next, entry| {
            count += u64::from(accept(next, losses, entry, deliver));
        })?;
        Ok(count)
    }

    /// Receives all entries written so far; after a fatal error, from the heap.
    pub(crate) fn flush(&mut self, deliver: &mut dyn FnMut(u64, &[u8])) -> Result<(), Error> {
        if self.by_host() {
            return self.read_heap(deliver).map(drop);
        }
        if self.next_ring.is_some() {
            // The program may hand over entries of the next ring, whose numbers are not this one's.
            return self.receive(deliver).map(drop);
        }
        // The program writes this counter, so it is untrusted: at most the ring is full.
        let claimed = self.progress()?.claimed.min(self.next.saturating_add(self.entries()));
        let (mut end, mut moved) = (0, Instant::now());
        loop {
            let before = end;
            end = match self.manage(operation::FLUSH, 0) {
                Ok(carried) => self.at_most(carried),
                Err(Error::Fatal(_)) => {
                    // Entries on the transport come before those in the heap.
                    self.receive_until(u64::MAX, deliver)?;
                    return self.read_heap(deliver).map(drop);
                }
                Err(error) => return Err(error),
            };
            self.receive_until(end, deliver)?;
            if end != before {
                moved = Instant::now();
            }
            // The send queue may be shorter than the ring: the next pass sends the rest.
            if end >= claimed || moved.elapsed() > QUIET_TIME {
                break;
            }
            thread::sleep(PAUSE);
        }
        if self.next < end && self.progress()?.error_syndrome != 0 {
            self.read_heap(deliver)?;
        }
        if self.next < end {
            self.losses.lose(end - self.next);
            self.next = end;
        }
        Ok(())
    }

    /// Receives until entry `end`, or until nothing comes for a while.
    fn receive_until(
        &mut self,
        end: u64,
        deliver: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(), Error> {
        let reliable = matches!(self.config.transport, EntryTransport::Rc | EntryTransport::Window)
            && end != u64::MAX;
        // On a reliable transport entries arrive unless the queue pair fails, which takes as long
        // as its retries.
        let timeout = if reliable { self.process.timeout() } else { QUIET_TIME };
        let mut since = Instant::now();
        while self.next < end && since.elapsed() < timeout {
            if self.receive(deliver)? > 0 {
                since = Instant::now();
            } else if reliable
                && since.elapsed() > QUIET_TIME
                && self.progress()?.error_syndrome != 0
            {
                break;
            } else {
                thread::sleep(PAUSE);
            }
        }
        Ok(())
    }

    /// Reads the complete entries from the heap. No thread overwrites them: the host has not
    /// acknowledged them, the process has ended, or its queue pair has failed.
    fn read_heap(&mut self, deliver: &mut dyn FnMut(u64, &[u8])) -> Result<u64, Error> {
        let ended = matches!(self.process.alive(), Err(Error::Fatal(_)));
        self.read_all(ended, deliver)
    }

    /// Reads the entries in the heap in order up to an incomplete one; if `ended`, because nothing
    /// more is written, it also reads past that entry.
    fn read_all(&mut self, ended: bool, deliver: &mut dyn FnMut(u64, &[u8])) -> Result<u64, Error> {
        let base = self.before.claimed;
        let deliver = &mut |index, entry: &[u8]| deliver(base.saturating_add(index), entry);
        let claimed = self.at_most(self.progress()?.claimed);
        // The program writes this counter, so it is untrusted: at most the ring is full.
        let first = self.next.max(claimed.saturating_sub(self.entries()));
        let mut bytes = vec![0; self.entry_bytes()];
        let (mut count, mut at) = (0, first);
        while at < claimed {
            let within = at & (self.entries() - 1);
            let most = (claimed - at).min(self.entries() - within).min(MAX_READ_ENTRIES);
            bytes.resize(most as usize * self.entry_bytes(), 0);
            let from = self.ring_at + (within << self.config.log_entry_bytes);
            self.read(from, &mut bytes)?;
            let numbered = |(entry, index): (&[u8], u64)| number_of(entry) == index + 1;
            let whole = bytes.chunks_exact(self.entry_bytes()).zip(at..);
            let whole = whole.take_while(|&it| ended || numbered(it)).count();
            // The second copy begins after the numbers were seen, so these entries are complete in
            // it.
            bytes.truncate(whole * self.entry_bytes());
            if !bytes.is_empty() {
                self.read(from, &mut bytes)?;
            }
            for (entry, index) in bytes.chunks_exact(self.entry_bytes()).zip(at..) {
                if number_of(entry) == index + 1 {
                    let (next, losses) = (&mut self.next, &mut self.losses);
                    count += u64::from(accept(next, losses, entry, deliver));
                }
            }
            at += whole as u64;
            if (whole as u64) < most {
                break;
            }
        }
        if self.config.transport == EntryTransport::Heap && !self.lossless && count > 0 {
            match self.give_back() {
                // No thread needs the room any more.
                Err(Error::Fatal(_)) => {}
                other => other?,
            }
        }
        Ok(count)
    }

    /// The program's counter of entries, limited to [`MAX_GAP`] above the next one.
    const fn at_most(&self, claimed: u64) -> u64 {
        let most = self.next.saturating_add(MAX_GAP);
        if claimed < most { claimed } else { most }
    }

    /// Acknowledges all received entries to the program.
    fn give_back(&mut self) -> Result<(), Error> {
        let freed = self.next.to_le_bytes();
        self.process.write(self.control.address() + FREED_AT as u64, &freed)
    }

    /// Detaches the channel in the program. If the program does not confirm it, this fails, and the
    /// memory stays allocated until the process is destroyed.
    pub(crate) fn detach(&mut self) -> Result<(), Error> {
        if !self.attached {
            return Ok(());
        }
        self.attached = false;
        let begun = Instant::now();
        let outcome = loop {
            match self.manage(operation::DETACH, 0) {
                Ok(0) => return Ok(()),
                // No thread of the process runs any more.
                Err(Error::Fatal(_)) => return Ok(()),
                // The remaining users are runs that were terminated during a write. The program
                // never subtracts them from the user count of this stream number.
                Ok(users) if begun.elapsed() > LEAVE_TIMEOUT && users <= self.may_be_left() => {
                    self.process.streams().left.insert(self.config.number, users);
                    return Ok(());
                }
                Ok(users) if begun.elapsed() > LEAVE_TIMEOUT => {
                    break Error::Failed(format!(
                        "{users} threads of the process still write to stream {} after \
                         {LEAVE_TIMEOUT:?}; its memory stays allocated until the process is gone",
                        self.config.number
                    ));
                }
                Ok(_) => thread::sleep(PAUSE),
                Err(error) => break error,
            }
        };
        self.leak();
        Err(outcome)
    }

    /// The number of runs that may have been terminated during a write: users of the number's
    /// former owner, and all terminated runs since the creation.
    fn may_be_left(&self) -> u64 {
        let before = self.process.streams().left.get(&self.config.number).copied();
        before.unwrap_or(0) + self.process.terminated_runs().saturating_sub(self.terminated_runs)
    }

    /// Leaks all memory that a thread may still use; the process's heap then stays in use.
    fn leak(&mut self) {
        std::mem::forget((self.control.clone(), self.ring.clone(), self.user_buffer.take()));
        std::mem::forget((self.sender.take(), self.window.take()));
        std::mem::forget(std::mem::replace(&mut self.receiver, Receiver::heap()));
        std::mem::forget((std::mem::take(&mut self.old_rings), self.next_ring.take()));
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if let Err(error) = self.detach() {
            crate::log::error!("{error}");
        }
    }
}

/// Maximum number of entries per read.
const MAX_READ_ENTRIES: u64 = 1024;

fn number_of(entry: &[u8]) -> u64 {
    let bytes = entry.get(NUMBER_AT..NUMBER_AT + 8).and_then(|bytes| bytes.first_chunk());
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Delivers an entry if its number may be the next; returns whether it did.
fn accept(
    next: &mut u64,
    losses: &mut EntryLosses,
    entry: &[u8],
    deliver: &mut dyn FnMut(u64, &[u8]),
) -> bool {
    let Some(index) = number_of(entry).checked_sub(1) else {
        losses.damaged += 1;
        return false;
    };
    match index.checked_sub(*next) {
        // The host has already read this entry from the heap.
        None => false,
        Some(ahead) if ahead > MAX_GAP => {
            losses.damaged += 1;
            false
        }
        Some(ahead) => {
            losses.lose(ahead);
            *next = index + 1;
            deliver(index, entry);
            true
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
