//! How entries of a program's streams reach the host: what message streams and the tracer share.
//!
//! A channel is a ring of entries in the process's heap, the control block by which the program
//! finds it, and what carries entries to the host (`verbless_flexio_dev::stream` has the layouts).
//! The host manages it by calls of the program's `verbless_stream`, and reads how far it is out of
//! the heap, which it can do after a fatal error, too.
//!
//! What comes out of the DPA is checked here as far as numbers go: an entry that came before is
//! dropped, one that is too far ahead is damaged, those in between are counted as lost.

mod receiver;
mod sender;

use std::thread;
use std::time::{Duration, Instant};

use verbless_command::{Affinity, DpaEntry};
use verbless_flexio_dev::stream::control::{
    self, Carrier, FREED_AT, LEVEL_AT, MOST_LOG_ENTRIES, PROGRESS_BYTES, Progress, SETUP_BYTES,
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

/// The function by which the host manages streams.
const MANAGER: &str = "verbless_stream";
/// Entries that a message may be ahead of what came before.
const FARTHEST: u64 = 1 << 32;
/// How long nothing must come from a service that may lose messages until it is taken for lost.
const QUIET: Duration = Duration::from_millis(20);
/// The pause between two looks.
const PAUSE: Duration = Duration::from_micros(50);
/// How long threads may take to leave a channel that was detached, or to write what they have
/// claimed.
const LEAVE: Duration = Duration::from_secs(1);

/// How entries reach the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
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
    pub(crate) way: Way,
    pub(crate) log_entry_bytes: u8,
    /// Bytes of the ring in the heap, a power of two.
    pub(crate) ring_bytes: u64,
    /// Address of the ring, if the user provides its memory.
    pub(crate) ring_at: Option<u64>,
    /// Bytes of the host's memory, a power of two and no less.
    pub(crate) host_bytes: u64,
    /// Entries that are sent together, a power of two.
    pub(crate) batch: u32,
    /// How often a thread waits for room before its message is lost.
    pub(crate) patience: u32,
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
    /// The number of the entry that comes next.
    next: u64,
    /// Entries that were lost or damaged.
    missed: Missed,
    attached: bool,
    /// Whether entries that find no room are dropped when written: nothing is handed over or freed.
    lossless: bool,
    level: u32,
    /// Totals of the rings before this one: entries, and messages that found no room.
    before: Progress,
    /// The rings before this one: threads may still write to them.
    held: Vec<Channel>,
    /// The ring that is to come after this one, which the program may have found: it was not seen
    /// to, in time. What threads write there waits until [`Self::renew`] sees that it has.
    fresh: Option<Box<Channel>>,
    /// The buffer that holds the ring, if the user provided it.
    kept: Option<Buffer>,
    /// Runs of the process that had been ended where they were when the first ring was made.
    taken_away: u64,
}

/// Counts of lost and damaged entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Missed {
    /// Entries that never arrived.
    pub(crate) lost: u64,
    /// Arrivals that were no valid entries.
    pub(crate) damaged: u64,
}

impl Missed {
    /// Counts `entries` as lost. Saturates, because entry numbers come from the program and may be
    /// any.
    fn lose(&mut self, entries: u64) {
        self.lost = self.lost.saturating_add(entries);
    }
}

impl Channel {
    /// Makes a channel that the program does not know yet.
    pub(crate) fn create(process: &Process, config: ChannelConfig) -> Result<Self, Error> {
        let log_entries = config.ring_bytes.ilog2() as u8 - config.log_entry_bytes;
        if log_entries > MOST_LOG_ENTRIES {
            return Err(Error::Failed(format!(
                "a ring of {} bytes has more than the {} entries that there may be",
                config.ring_bytes,
                1_u64 << MOST_LOG_ENTRIES
            )));
        }
        let ring = match config.ring_at {
            Some(_) => None,
            None => Some(process.alloc(config.ring_bytes)?),
        };
        let ring_at = config.ring_at.or(ring.as_ref().map(Buffer::address)).unwrap_or_default();
        // No number that a place had before may pass for one of an entry.
        process.fill(ring_at, config.ring_bytes, 0)?;
        let mut setup = Setup::new(ring_at, log_entries, config.log_entry_bytes);
        setup.batch = config.batch;
        setup.patience = config.patience;
        let (mut window, mut sender) = (None, None);
        let receiver = match config.way {
            Way::Heap => Receiver::heap(),
            Way::Window => {
                let made = Window::create(process, process.pd())?;
                setup.carrier = Carrier::Window as u8;
                setup.window = made.id();
                window = Some(made);
                // As many slots as entries, so that what was claimed has one.
                Receiver::window(process, &config, &mut setup)?
            }
            Way::Rc | Way::Uc | Way::Ud => {
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
            missed: Missed::default(),
            attached: false,
            lossless: false,
            level: 0,
            before: Progress::default(),
            held: Vec::new(),
            fresh: None,
            kept: None,
            taken_away: process.taken_away(),
            config,
        })
    }

    /// Keeps the buffer alive that holds the ring.
    pub(crate) fn keep(&mut self, buffer: Option<Buffer>) {
        self.kept = buffer;
    }

    /// Fails if its process has ended.
    pub(crate) fn alive(&self) -> Result<(), Error> {
        self.process.alive()
    }

    /// The numbers of the host's queue pair and of the program's, if it has any.
    pub(crate) fn qp_numbers(&self) -> Option<(u32, u32)> {
        Some((self.receiver.qpn()?, self.sender.as_ref()?.qpn()))
    }

    pub(crate) const fn missed(&self) -> Missed {
        self.missed
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
                "{} has no {MANAGER}, which verbless_flexio_dev::program! makes: it has no streams",
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

    /// Attaches the channel in the program, with this level. If that times out, the program may
    /// have attached it all the same; then a drop detaches it.
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
        self.lossless || self.config.way == Way::Heap
    }

    /// Makes all of the ring free again: the program hands over what it still has, the host says
    /// that it has it. Nobody may write meanwhile.
    pub(crate) fn settle(&mut self, deliver: &mut dyn FnMut(u64, &[u8])) -> Result<(), Error> {
        if self.config.way == Way::Heap {
            return self.give_back();
        }
        let begun = Instant::now();
        loop {
            self.manage(operation::FLUSH, 0)?;
            self.receive(deliver)?;
            let Progress { claimed, carried, freed, broken, .. } = self.progress()?;
            let free = self.config.way == Way::Window || freed == claimed;
            if broken != 0 || carried == claimed && free || begun.elapsed() > LEAVE {
                return Ok(());
            }
            thread::sleep(PAUSE);
        }
    }

    /// How far the program is.
    pub(crate) fn progress(&self) -> Result<Progress, Error> {
        let mut bytes = [0; PROGRESS_BYTES];
        self.read(self.control.address() + SETUP_BYTES as u64, &mut bytes)?;
        Ok(Progress::from_bytes(&bytes))
    }

    /// Messages that found no room, in this ring and those before.
    pub(crate) fn without_room(&self) -> Result<u64, Error> {
        Ok(self.before.lost.saturating_add(self.progress()?.lost))
    }

    /// Whether an entry that was claimed is not written, or not handed over, and stays so: the run
    /// that was to do it was taken away, and all behind it waits. So does what is written to the
    /// ring to come.
    pub(crate) fn is_held_up(
        &mut self,
        deliver: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<bool, Error> {
        if self.fresh.is_some() {
            return Ok(true);
        }
        let begun = Instant::now();
        let mut first = None;
        loop {
            let Progress { claimed, written, carried, broken, .. } = self.progress()?;
            let at = (written, if self.by_host() { self.next } else { carried });
            if broken != 0 || at.1 >= claimed || *first.get_or_insert(at) != at {
                return Ok(false);
            }
            if begun.elapsed() > LEAVE {
                return Ok(true);
            }
            thread::sleep(PAUSE);
            match self.by_host() {
                true => self.receive(deliver)?,
                false => self.manage(operation::FLUSH, 0)?,
            };
        }
    }

    /// Makes the stream anew, with a ring in which nothing is held up, and delivers what is whole
    /// in the old one. What threads still write there is lost; its memory stays until the stream is
    /// detached, and so does memory that the user gave: the new ring is in the heap.
    ///
    /// After an error that leaves open whether the program has found the new ring, or what is in
    /// the old one, the old one is in use, and the stream is held up until this is called again,
    /// which goes on with both.
    pub(crate) fn renew(&mut self, deliver: &mut dyn FnMut(u64, &[u8])) -> Result<(), Error> {
        let mut fresh = match self.fresh.take() {
            Some(fresh) => fresh,
            None => {
                // Who is held up in memory that the user gives may still write there, too.
                let config = ChannelConfig { ring_at: None, ..self.config.clone() };
                Box::new(Self::create(&self.process, config)?)
            }
        };
        if let Err(error) = fresh.attach(self.level) {
            // To detach the stream is this one's part.
            fresh.attached = false;
            self.fresh = fresh.is_seen().then_some(fresh);
            return Err(error);
        }
        let read = self.receive(deliver).and_then(|_| self.read_all(true, deliver));
        let progress = match read.and_then(|_| self.progress()) {
            // No run of the process will read it better.
            Err(Error::Fatal(why)) => Err(Error::Fatal(why)),
            Err(error) => {
                // Detaching this one detaches what has its number.
                fresh.attached = false;
                self.fresh = Some(fresh);
                return Err(error);
            }
            progress => progress,
        };
        (fresh.lossless, fresh.taken_away) = (self.lossless, self.taken_away);
        self.attached = false;
        let mut old = std::mem::replace(self, *fresh);
        let Progress { claimed, lost, .. } = *progress.as_ref().unwrap_or(&Progress::default());
        // What the block says is the program's word: no more than the ring has.
        let claimed = claimed.min(old.next.saturating_add(old.entries())).max(old.next);
        self.before.claimed = old.before.claimed.saturating_add(claimed);
        self.before.lost = old.before.lost.saturating_add(lost);
        self.missed = old.missed;
        self.missed.lose(claimed.saturating_sub(old.next));
        self.held.append(&mut old.held);
        self.held.push(old);
        progress.map(drop)
    }

    /// Reads the heap, also after a fatal error.
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.process.copying(|copier| copier.read(address, bytes))
    }

    /// Receives the entries that have come; `deliver` gets the number and the bytes of each, in
    /// order. Returns the number of entries delivered.
    pub(crate) fn receive(&mut self, deliver: &mut dyn FnMut(u64, &[u8])) -> Result<u64, Error> {
        if self.by_host() {
            return self.read_heap(deliver);
        }
        let mut count = 0;
        let (next, missed, base) = (&mut self.next, &mut self.missed, self.before.claimed);
        let deliver = &mut |index, entry: &[u8]| deliver(base.saturating_add(index), entry);
        self.receiver.take(self.config.log_entry_bytes, next, &mut |next, entry| {
            count += u64::from(accept(next, missed, entry, deliver));
        })?;
        Ok(count)
    }

    /// Receives all entries that the program has written so far; after a fatal error, from the
    /// heap.
    pub(crate) fn flush(&mut self, deliver: &mut dyn FnMut(u64, &[u8])) -> Result<(), Error> {
        if self.by_host() {
            return self.read_heap(deliver).map(drop);
        }
        if self.fresh.is_some() {
            // The program may hand over what is in that one: its numbers are not this one's.
            return self.receive(deliver).map(drop);
        }
        // What the block says is the program's word: no more than the ring has.
        let claimed = self.progress()?.claimed.min(self.next.saturating_add(self.entries()));
        let (mut end, mut moved) = (0, Instant::now());
        loop {
            let before = end;
            end = match self.manage(operation::FLUSH, 0) {
                Ok(carried) => self.at_most(carried),
                Err(Error::Fatal(_)) => {
                    // What was sent before arrives first.
                    self.receive_until(u64::MAX, deliver)?;
                    return self.read_heap(deliver).map(drop);
                }
                Err(error) => return Err(error),
            };
            self.receive_until(end, deliver)?;
            if end != before {
                moved = Instant::now();
            }
            // The send queue may have less room than the ring: the rest goes out behind this.
            if end >= claimed || moved.elapsed() > QUIET {
                break;
            }
            thread::sleep(PAUSE);
        }
        if self.next < end && self.progress()?.broken != 0 {
            self.read_heap(deliver)?;
        }
        if self.next < end {
            self.missed.lose(end - self.next);
            self.next = end;
        }
        Ok(())
    }

    /// Receives until entry `end` or, for a while, nothing comes.
    fn receive_until(
        &mut self,
        end: u64,
        deliver: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(), Error> {
        let reliable = matches!(self.config.way, Way::Rc | Way::Window) && end != u64::MAX;
        // What is reliable comes unless its queue pair breaks, which takes as long as its retries.
        let patience = if reliable { self.process.timeout() } else { QUIET };
        let mut since = Instant::now();
        while self.next < end && since.elapsed() < patience {
            if self.receive(deliver)? > 0 {
                since = Instant::now();
            } else if reliable && since.elapsed() > QUIET && self.progress()?.broken != 0 {
                break;
            } else {
                thread::sleep(PAUSE);
            }
        }
        Ok(())
    }

    /// Takes the entries that are whole out of the heap. Nobody overwrites them: the host has not
    /// said that it has them, or the process has ended, or its queue pair is broken.
    fn read_heap(&mut self, deliver: &mut dyn FnMut(u64, &[u8])) -> Result<u64, Error> {
        let ended = matches!(self.process.alive(), Err(Error::Fatal(_)));
        self.read_all(ended, deliver)
    }

    /// Reads the entries in the heap in order up to an incomplete one; if `ended`, because nothing
    /// more is written, also behind it.
    fn read_all(&mut self, ended: bool, deliver: &mut dyn FnMut(u64, &[u8])) -> Result<u64, Error> {
        let base = self.before.claimed;
        let deliver = &mut |index, entry: &[u8]| deliver(base.saturating_add(index), entry);
        let claimed = self.at_most(self.progress()?.claimed);
        // What the block says is the program's word: no more than the ring has.
        let first = self.next.max(claimed.saturating_sub(self.entries()));
        let mut bytes = vec![0; self.entry_bytes()];
        let (mut count, mut at) = (0, first);
        while at < claimed {
            let within = at & (self.entries() - 1);
            let most = (claimed - at).min(self.entries() - within).min(PIECE);
            bytes.resize(most as usize * self.entry_bytes(), 0);
            let from = self.ring_at + (within << self.config.log_entry_bytes);
            self.read(from, &mut bytes)?;
            let numbered = |(entry, index): (&[u8], u64)| number_of(entry) == index + 1;
            let whole = bytes.chunks_exact(self.entry_bytes()).zip(at..);
            let whole = whole.take_while(|&it| ended || numbered(it)).count();
            // A number is read with the first copy, so that the second has the entry before it.
            bytes.truncate(whole * self.entry_bytes());
            if !bytes.is_empty() {
                self.read(from, &mut bytes)?;
            }
            for (entry, index) in bytes.chunks_exact(self.entry_bytes()).zip(at..) {
                if number_of(entry) == index + 1 {
                    let (next, missed) = (&mut self.next, &mut self.missed);
                    count += u64::from(accept(next, missed, entry, deliver));
                }
            }
            at += whole as u64;
            if (whole as u64) < most {
                break;
            }
        }
        if self.config.way == Way::Heap && !self.lossless && count > 0 {
            match self.give_back() {
                // Nobody needs the room any more.
                Err(Error::Fatal(_)) => {}
                other => other?,
            }
        }
        Ok(count)
    }

    /// The number of entries that the program claims, limited to what is possible.
    const fn at_most(&self, claimed: u64) -> u64 {
        let most = self.next.saturating_add(FARTHEST);
        if claimed < most { claimed } else { most }
    }

    /// Tells the program that the host has what it was given so far.
    fn give_back(&mut self) -> Result<(), Error> {
        let freed = self.next.to_le_bytes();
        self.process.write(self.control.address() + FREED_AT as u64, &freed)
    }

    /// Detaches the channel in the program. If that cannot be confirmed, this fails, and the memory
    /// stays allocated for as long as the process lives.
    pub(crate) fn detach(&mut self) -> Result<(), Error> {
        if !self.attached {
            return Ok(());
        }
        self.attached = false;
        let begun = Instant::now();
        let outcome = loop {
            match self.manage(operation::DETACH, 0) {
                Ok(0) => return Ok(()),
                // Nothing of it runs any more.
                Err(Error::Fatal(_)) => return Ok(()),
                // Those who do not leave are the runs that were ended while they wrote. The
                // program counts them for good, for whatever has the number next.
                Ok(users) if begun.elapsed() > LEAVE && users <= self.may_be_left() => {
                    self.process.streams().left.insert(self.config.number, users);
                    return Ok(());
                }
                Ok(users) if begun.elapsed() > LEAVE => {
                    break Error::Failed(format!(
                        "{users} threads of the process still write to stream {} after {LEAVE:?}; \
                         its memory stays allocated until the process is gone",
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

    /// The number of runs that may have been ended while they wrote: those that still use the
    /// number's former owner, and all that were ended since this was made.
    fn may_be_left(&self) -> u64 {
        let before = self.process.streams().left.get(&self.config.number).copied();
        before.unwrap_or(0) + self.process.taken_away().saturating_sub(self.taken_away)
    }

    /// Leaves everything that a thread may still use to the process, whose heap then stays in use.
    fn leak(&mut self) {
        std::mem::forget((self.control.clone(), self.ring.clone(), self.kept.take()));
        std::mem::forget((self.sender.take(), self.window.take()));
        std::mem::forget(std::mem::replace(&mut self.receiver, Receiver::heap()));
        std::mem::forget((std::mem::take(&mut self.held), self.fresh.take()));
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if let Err(error) = self.detach() {
            crate::log::error!("{error}");
        }
    }
}

/// Entries that are read at a time.
const PIECE: u64 = 1024;

fn number_of(entry: &[u8]) -> u64 {
    let bytes = entry.get(NUMBER_AT..NUMBER_AT + 8).and_then(|bytes| bytes.first_chunk());
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Delivers an entry if its number may be the next; returns whether it was delivered.
fn accept(
    next: &mut u64,
    missed: &mut Missed,
    entry: &[u8],
    deliver: &mut dyn FnMut(u64, &[u8]),
) -> bool {
    let Some(index) = number_of(entry).checked_sub(1) else {
        missed.damaged += 1;
        return false;
    };
    match index.checked_sub(*next) {
        // It came before: out of the heap.
        None => false,
        Some(ahead) if ahead > FARTHEST => {
            missed.damaged += 1;
            false
        }
        Some(ahead) => {
            missed.lose(ahead);
            *next = index + 1;
            deliver(index, entry);
            true
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
