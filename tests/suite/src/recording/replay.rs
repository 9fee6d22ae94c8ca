//! The backend that answers from a recording.
//!
//! Each request is compared with the recorded ones of its file. The first that is not yet answered
//! must be the same, unless the case sent requests from several threads: their order is chance. A
//! query may be repeated, as cases wait with queries. A request that differs gets the answer of the
//! recorded one, so that the case goes on; one that is not in the recording is refused (EPROTO).
//!
//! A thread plays the queues: it compares each WQE that is posted with the recorded one, and writes
//! the recorded CQEs once the WQEs before them are posted. It writes the recorded events to the
//! channels after the requests and CQEs before them; a completion event also waits until its CQ is
//! armed as it was.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{MsgFlags, send};
use nix::unistd::ftruncate;
use verbless_devx::abi::method;
use verbless_devx::{
    Backend, DeviceInfo, Errno, Error, Mapping, OpenDevice, OpenFwctl, Protection,
};
use verbless_prm::CommandInfo;

use super::answers::{answer, destroyed, impossible, made};
use super::compare::{Translation, differences, method_of, name, wqe_difference};
use super::document::{Recorded, RecordedCase};
use super::entry::{Cqe, Data, Entry, Event, Ioctl, OPEN_ERRORS, Wqe};
use super::recorder::note_request;
use super::rings::Rings;

/// Differences that are kept of a case.
const MOST: usize = 20;
/// Recorded requests that are looked through for one that was sent.
const WINDOW: usize = 256;

/// What a case asked, while it asks again.
pub(super) struct Script {
    case: RecordedCase,
    /// The requests of each open file, by their numbers in the case.
    requests: HashMap<u32, Vec<usize>>,
    state: Mutex<ReplayState>,
}

#[derive(Default)]
pub(super) struct ReplayState {
    /// Which entries were used.
    used: Vec<bool>,
    /// The first request of each file that was not used, as a position in its list.
    next: HashMap<u32, usize>,
    differences: Vec<String>,
    /// Further differences, beyond the kept ones.
    more: usize,
    translation: Translation,
    /// Our ends of the channels, and the numbers of channels by the case's descriptors.
    pub(super) channels: Vec<(u32, OwnedFd)>,
    pub(super) descriptors: HashMap<u64, u32>,
    /// The control file was wanted.
    control: bool,
    /// The rings of each open file.
    rings: HashMap<u32, Rings>,
    /// The handles of each open file that answers made and that are not destroyed, with the types
    /// of their objects.
    pub(super) handles: HashMap<u32, HashMap<u64, u16>>,
    /// A request or WQE contradicted the recording, other than by its place in it.
    contradicted: bool,
}

impl Script {
    pub(super) fn new(case: RecordedCase) -> Arc<Self> {
        let used = vec![false; case.entries.len()];
        let state = Mutex::new(ReplayState { used, ..ReplayState::default() });
        let mut requests: HashMap<u32, Vec<usize>> = HashMap::new();
        for (at, recorded) in case.entries.iter().enumerate() {
            if let Entry::Ioctl(ioctl) = &recorded.entry {
                requests.entry(ioctl.file).or_default().push(at);
            }
        }
        Arc::new(Self { case, requests, state })
    }

    fn state(&self) -> MutexGuard<'_, ReplayState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The differences, and a line for recorded requests that were not sent again.
    pub(super) fn finish(&self) -> Vec<String> {
        let state = self.state();
        let mut found = state.differences.clone();
        if state.more > 0 {
            found.push(format!("and {} more differences", state.more));
        }
        let missing = |(at, recorded): &(usize, &Recorded)| match &recorded.entry {
            Entry::Ioctl(ioctl) => !state.used[*at] && !is_query(ioctl, &recorded.input),
            _ => false,
        };
        let mut left = self.case.entries.iter().enumerate().filter(missing);
        if let Some((at, recorded)) = left.next()
            && let Entry::Ioctl(ioctl) = &recorded.entry
        {
            let more = left.count();
            let more = if more > 0 { format!(", and {more} more") } else { String::new() };
            let name = name(ioctl, &recorded.input);
            found.push(format!("request {at} ({name}) was not sent again{more}"));
        }
        found
    }

    /// Whether a request or WQE has other bytes than in the recording, or is not in it.
    pub(super) fn was_contradicted(&self) -> bool {
        self.state().contradicted
    }

    /// Writes the recorded CQEs as their WQEs are posted, until the case ends.
    pub(super) fn play_queues(self: &Arc<Self>) {
        let script = Arc::downgrade(self);
        let play = move || {
            let mut player = Player::default();
            while let Some(script) = script.upgrade() {
                player.step(&script);
                drop(script);
                std::thread::sleep(PAUSE);
            }
        };
        // Without the thread the case gets no CQE, and fails.
        let _ = std::thread::Builder::new().name("replay".into()).spawn(play);
    }

    /// Whether the case wanted the control file, which recordings do not have.
    pub(super) fn wanted_control(&self) -> bool {
        self.state().control
    }
}

/// Time between two looks at the queues.
const PAUSE: Duration = Duration::from_micros(20);
/// Looks without progress, after which CQEs may overtake WQEs that the recording has before them:
/// it does not know the order of two queues within a look.
const PATIENT: u32 = 200;
/// Looks without progress, after which an event no longer waits for its CQ to be armed: a program
/// may poll another number of CQEs before it arms.
const UNARMED: u32 = 4000;
/// Entries that CQEs may overtake.
const AHEAD: usize = 256;

/// The place of a replay in the WQEs and CQEs of a recording.
#[derive(Default)]
struct Player {
    /// The first entry that has not happened.
    next: usize,
    /// CQEs after it that were written.
    early: HashSet<usize>,
    /// Looks without progress.
    idle: u32,
}

impl Player {
    /// Goes on as far as the posted WQEs allow.
    fn step(&mut self, script: &Script) {
        let mut state = script.state();
        let entries = &script.case.entries;
        while let Some(recorded) = entries.get(self.next) {
            let happened = match &recorded.entry {
                Entry::Wqe(wqe) => posted(&mut state, wqe),
                Entry::Cqe(cqe) => self.early.remove(&self.next) || complete(&mut state, cqe),
                Entry::Data(data) => self.early.remove(&self.next) || write(&state, data),
                Entry::Event(event) => {
                    is_due(&state, entries, self.next, event)
                        && (self.idle > UNARMED || is_armed(&state, event))
                        && deliver(&state, event)
                }
                _ => true,
            };
            if !happened {
                break;
            }
            self.next += 1;
            self.idle = 0;
        }
        self.idle += 1;
        if self.idle < PATIENT {
            return;
        }
        let mut blocked: HashSet<(u32, u32)> = HashSet::new();
        for (at, recorded) in entries.iter().enumerate().skip(self.next).take(AHEAD) {
            let Entry::Cqe(cqe) = &recorded.entry else { continue };
            if self.early.contains(&at) {
                continue;
            }
            let cq = (cqe.file, cqe.number);
            if !blocked.contains(&cq) && own_wqe_is_posted(&state, cqe) {
                // What its message wrote comes right before it.
                for before in (self.next..at).rev() {
                    let Entry::Data(data) = &entries[before].entry else { break };
                    if self.early.insert(before) {
                        write(&state, data);
                    }
                }
                if complete(&mut state, cqe) {
                    self.early.insert(at);
                    self.idle = 0;
                    return;
                }
            }
            // The CQEs of a CQ come in order.
            blocked.insert(cq);
        }
    }
}

/// Writes what a message wrote. Memory that is gone needs it no more.
fn write(state: &ReplayState, data: &Data) -> bool {
    if let Some(rings) = state.rings.get(&data.file) {
        rings.write(data.umem, data.offset, &data.bytes.0);
    }
    true
}

/// Whether the request before an event was sent again. Queries may be left out.
fn is_due(state: &ReplayState, entries: &[Recorded], at: usize, event: &Event) -> bool {
    let before = entries[..at].iter().enumerate().rev().find(|(_, it)| {
        matches!(&it.entry, Entry::Ioctl(ioctl)
            if ioctl.file == event.file && !is_query(ioctl, &it.input))
    });
    before.is_none_or(|(at, _)| state.used[at])
}

/// Whether a CQ is armed as it was when its event was read.
fn is_armed(state: &ReplayState, event: &Event) -> bool {
    event.arm.is_none_or(|[number, word]| {
        state.rings.get(&event.file).and_then(|it| it.arm_word(number)) == Some(word)
    })
}

/// Writes an event to its channel; false if there is none, or no room in it.
fn deliver(state: &ReplayState, event: &Event) -> bool {
    let Some((_, file)) = state.channels.iter().find(|(number, _)| *number == event.channel) else {
        return false;
    };
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    // A program that has closed its end gets no event.
    send(file.as_raw_fd(), &event.bytes.0, flags) != Err(Errno::EAGAIN)
}

/// Whether a WQE of an SRQ is posted; if it is another one than in the recording, says so.
fn posted_shared(state: &mut ReplayState, wqe: &Wqe) -> bool {
    let rings = state.rings.get_mut(&wqe.file);
    let Some((index, mut sent)) = rings.and_then(|it| it.take_shared(wqe.number)) else {
        return false;
    };
    sent.truncate(wqe.bytes.0.len());
    let what = match wqe_difference(&wqe.bytes.0, &sent, &state.translation) {
        _ if index != wqe.index => {
            Some(format!("recorded at index {:#x}, posted at {index:#x}", wqe.index))
        }
        what => what,
    };
    if let Some(what) = what {
        state.contradicts(format!("WQE {:#x} of srq {:#x}: {what}", wqe.index, wqe.number));
    }
    state.translation.learn_keys(&wqe.bytes.0, &sent);
    true
}

/// Whether a WQE is posted; if it is another one than in the recording, says so.
fn posted(state: &mut ReplayState, wqe: &Wqe) -> bool {
    if wqe.queue == "srq" {
        return posted_shared(state, wqe);
    }
    let recorded = &wqe.bytes.0;
    let rings = state.rings.get(&wqe.file);
    let sent = rings.and_then(|it| it.wqe(&wqe.queue, wqe.number, wqe.index, recorded.len()));
    let Some(sent) = sent else { return false };
    if let Some(what) = wqe_difference(recorded, &sent, &state.translation) {
        let (queue, number, index) = (&wqe.queue, wqe.number, wqe.index);
        state.contradicts(format!("WQE {index:#x} of {queue} {number:#x}: {what}"));
    }
    state.translation.learn_keys(recorded, &sent);
    true
}

/// Whether the WQE that a CQE names is posted.
fn own_wqe_is_posted(state: &ReplayState, cqe: &Cqe) -> bool {
    let bytes = &cqe.bytes.0;
    let (Some(&[_, a, b, c]), Some(&[high, low, _, owner])) =
        (bytes.get(56..60).and_then(|it| it.first_chunk()), bytes.last_chunk())
    else {
        return false;
    };
    // A requester's CQE, or its error (0xd).
    let queue = if matches!(owner >> 4, 0x0 | 0xd) { "sq" } else { "rq" };
    let (number, index) = (u32::from_be_bytes([0, a, b, c]), u16::from_be_bytes([high, low]));
    let rings = state.rings.get(&cqe.file);
    rings.is_some_and(|rings| match queue {
        "rq" if !rings.has_receives(number) => rings.is_outstanding(index.into()),
        _ => rings.wqe(queue, number, index.into(), 0).is_some(),
    })
}

fn complete(state: &mut ReplayState, cqe: &Cqe) -> bool {
    let mut bytes = cqe.bytes.0.clone();
    // The key that a message has invalidated (RESP_SEND_INV, 0x4).
    if bytes.last().is_some_and(|owner| owner >> 4 == 0x4)
        && let Some(key) = bytes.get_mut(36..40).and_then(|it| it.first_chunk_mut::<4>())
    {
        *key = state.translation.key(u32::from_be_bytes(*key)).to_be_bytes();
    }
    let Some(rings) = state.rings.get_mut(&cqe.file) else { return false };
    let written = rings.complete(cqe.number, cqe.index, &bytes);
    if written && let Some(&[high, low, _, owner]) = bytes.last_chunk() {
        // Opcodes of requesters are 0x0 and 0xd.
        if !matches!(owner >> 4, 0x0 | 0xd) {
            rings.complete_shared(u16::from_be_bytes([high, low]).into());
        }
    }
    written
}

impl ReplayState {
    /// Notes a difference that a case's early end does not explain.
    fn contradicts(&mut self, what: String) {
        self.contradicted = true;
        self.differs(what);
    }

    fn differs(&mut self, what: String) {
        match self.differences.len() {
            MOST.. => self.more += 1,
            _ => self.differences.push(what),
        }
    }
}

/// Whether a request only asks, so that it may be repeated.
fn is_query(ioctl: &Ioctl, input: &[u8]) -> bool {
    match method_of(ioctl) {
        method::QUERY_PORT
        | method::QUERY_GID_TABLE
        | method::QUERY_GID_ENTRY
        | method::QUERY_CONTEXT
        | method::DEVX_QUERY_EQN
        | method::DEVX_OBJ_QUERY => true,
        method::DEVX_OTHER => {
            CommandInfo::of_input(input).is_some_and(|info| info.name.starts_with("QUERY_"))
        }
        _ => false,
    }
}

/// A backend whose devices answer as one case was answered.
pub(super) struct Replay {
    pub(super) devices: Vec<DeviceInfo>,
    pub(super) script: Arc<Script>,
    /// Bytes of a page of the recorded kernel.
    pub(super) page_size: usize,
}

impl Backend for Replay {
    fn name(&self) -> &str {
        "recording"
    }

    fn enumerate(&self) -> Result<Vec<DeviceInfo>, Error> {
        Ok(self.devices.clone())
    }

    fn open(&self, device: &DeviceInfo) -> Result<Arc<dyn OpenDevice>, Error> {
        let mut state = self.script.state();
        let refused = |kind: &str, why: &str| {
            let kind = OPEN_ERRORS.iter().find(|(_, name)| *name == kind);
            let kind = kind.unwrap_or(&OPEN_ERRORS[0]).0;
            Error::new(kind, format!("opening {}", device.name), why.to_owned())
        };
        for (at, recorded) in self.script.case.entries.iter().enumerate() {
            let Entry::Open(open) = &recorded.entry else { continue };
            if state.used[at] || open.device != device.name {
                continue;
            }
            state.used[at] = true;
            return match open.file {
                Some(file) => {
                    let threads = several_threads(&self.script.case, file);
                    let (script, page_size) = (self.script.clone(), self.page_size);
                    Ok(Arc::new(Replayed { script, file, threads, page_size }))
                }
                None => Err(refused(&open.kind, open.error.as_deref().unwrap_or_default())),
            };
        }
        let what = format!("{} was opened more often than in the recording", device.name);
        state.differs(what.clone());
        Err(refused("", &what))
    }
}

/// Whether the requests of a file came from several threads.
fn several_threads(case: &RecordedCase, file: u32) -> bool {
    let mut threads = case.entries.iter().filter_map(|recorded| match &recorded.entry {
        Entry::Ioctl(ioctl) if ioctl.file == file => Some(ioctl.thread),
        _ => None,
    });
    let first = threads.next();
    threads.any(|thread| Some(thread) != first)
}

/// An open device of a recording.
struct Replayed {
    script: Arc<Script>,
    file: u32,
    threads: bool,
    page_size: usize,
}

/// How long a request waits until another thread destroys what has its recorded handle.
const HANDLE_WAIT: Duration = Duration::from_secs(1);

/// Closing a file ends its registrations: no CQE is written there afterwards.
impl Drop for Replayed {
    fn drop(&mut self) {
        let mut state = self.script.state();
        state.rings.remove(&self.file);
        state.handles.remove(&self.file);
    }
}

#[allow(unsafe_code, reason = "the trait's method is unsafe to call; it follows no pointer itself")]
// SAFETY: answers are written by `own_memory`, within the lengths of the outputs. CQEs are written
// only into rings, which lie in memory that is registered: a ring ends when its queue or memory is
// destroyed, by their handles, and with the file. Handles come from a stranger's file, so
// `impossible` refuses an answer whose new handle is missing or belongs to something live; `made`
// takes new handles from no other attributes. It also refuses an answer that lacks a new channel,
// so each descriptor is one that `answer` has opened for this caller. Mappings are of new memory
// files.
unsafe impl OpenDevice for Replayed {
    unsafe fn ioctl(&self, request: &mut [u64]) -> Result<(), Errno> {
        let mut state = self.script.state();
        let channel = |descriptor| state.descriptors.get(&descriptor).map_or(-1, |&it| it.into());
        let (sent, input) = note_request(self.file, request, channel);
        let input = input.unwrap_or_default();
        let Some(at) = self.find(&mut state, &sent, &input) else { return Err(Errno::EPROTO) };
        state.used[at] = true;
        let recorded = &self.script.case.entries[at];
        let Entry::Ioctl(ioctl) = &recorded.entry else { return Err(Errno::EPROTO) };
        // The order of several threads is chance: a handle may be in use for a moment more.
        let end = Instant::now() + if self.threads { HANDLE_WAIT } else { Duration::ZERO };
        while let Some(why) = impossible(&state, self.file, ioctl, request) {
            if Instant::now() >= end {
                state.contradicts(format!("request {at} ({}): {why}", name(&sent, &input)));
                return Err(Errno::EPROTO);
            }
            drop(state);
            std::thread::sleep(Duration::from_millis(1));
            state = self.script.state();
        }
        state.translation.learn_memory(ioctl, &sent);
        state.translation.learn_chosen(&recorded.input, &input);
        if ioctl.errno == 0 {
            state.translation.learn_key(&recorded.input, &input, &recorded.output);
        }
        let output = state.translation.output(&recorded.input, &recorded.output);
        answer(&mut state, ioctl, &output, request)?;
        match ioctl.errno {
            0 => {
                let made = made(&sent, ioctl);
                let handles = state.handles.entry(self.file).or_default();
                let new = made.attributes.iter().filter_map(|attr| attr.new_handle);
                handles.extend(new.map(|handle| (handle, sent.object)));
                if let Some(handle) = destroyed(&sent)
                    && handles.get(&handle) == Some(&sent.object)
                {
                    handles.remove(&handle);
                }
                let rings = state.rings.entry(self.file);
                let rings = rings.or_insert_with(|| Rings::new(None, self.file));
                // A replay needs no thread for each device.
                let _ = rings.follow(&made, &input, &output);
                Ok(())
            }
            errno => Err(Errno::from_raw(errno)),
        }
    }

    fn page_size(&self) -> usize {
        self.page_size
    }

    fn mmap(&self, offset: u64, length: usize, protection: Protection) -> Result<Mapping, Errno> {
        let mut state = self.script.state();
        for (at, recorded) in self.script.case.entries.iter().enumerate() {
            let Entry::Map(map) = &recorded.entry else { continue };
            let same = (map.file, map.offset, map.length) == (self.file, offset, length as u64);
            if state.used[at] || !same {
                continue;
            }
            state.used[at] = true;
            if map.errno != 0 {
                return Err(Errno::from_raw(map.errno));
            }
            let memory = memfd_create(c"recorded device", MFdFlags::MFD_CLOEXEC)?;
            ftruncate(&memory, length.try_into().map_err(|_| Errno::EINVAL)?)?;
            return Mapping::shared(memory.as_fd(), 0, length, protection);
        }
        state.differs(format!("mmap of {length:#x} bytes at {offset:#x} is not in the recording"));
        Err(Errno::EINVAL)
    }

    fn open_fwctl(&self) -> Result<Option<Arc<dyn OpenFwctl>>, Error> {
        let mut state = self.script.state();
        let found = self.script.case.entries.iter().any(|recorded| match &recorded.entry {
            Entry::Control(control) => control.file == self.file && control.found,
            _ => false,
        });
        state.control |= found;
        Ok(None)
    }
}

impl Replayed {
    /// The recorded request that was sent, or the one in its place.
    fn find(&self, state: &mut ReplayState, sent: &Ioctl, input: &[u8]) -> Option<usize> {
        let all = self.script.requests.get(&self.file).map_or(&[][..], |it| it);
        let mut from = state.next.get(&self.file).copied().unwrap_or(0);
        while all.get(from).is_some_and(|&at| state.used[at]) {
            from += 1;
        }
        state.next.insert(self.file, from);
        let differences_of = |state: &ReplayState, at: usize| {
            let recorded = &self.script.case.entries[at];
            match &recorded.entry {
                Entry::Ioctl(ioctl) => {
                    differences((ioctl, &recorded.input), (sent, input), &state.translation)
                }
                _ => vec!["it is no request".into()],
            }
        };
        let asks = is_query(sent, input);
        let unused = all[from..].iter().copied().filter(|&at| !state.used[at]);
        let next: Vec<usize> = unused.take(WINDOW).collect();
        let is_asked = |&&at: &&usize| {
            let recorded = &self.script.case.entries[at];
            matches!(&recorded.entry, Entry::Ioctl(it) if is_query(it, &recorded.input))
        };
        let like = |&&at: &&usize| {
            let recorded = &self.script.case.entries[at];
            matches!(&recorded.entry, Entry::Ioctl(it)
                if method_of(it) == method_of(sent)
                    && recorded.input.get(..2) == input.get(..2))
        };
        // One thread sends its requests in order: the next of the same kind is this one.
        let in_order = (!self.threads && !asks)
            .then(|| next.iter().find(|at| !is_asked(at)).filter(like).copied())
            .flatten();
        let same = match in_order {
            Some(at) => Some(at).filter(|&at| differences_of(state, at).is_empty()),
            None => next.iter().find(|&&at| differences_of(state, at).is_empty()).copied(),
        };
        let first = next.first().copied();
        if let Some(at) = same {
            // Queries that a case repeated until something happened may be skipped.
            let skips = |at: &&usize| !is_asked(at);
            let skipped = next.iter().take_while(|&&before| before < at).find(skips);
            if let Some(&skipped) = skipped
                && !self.threads
                && !asks
            {
                let before = &self.script.case.entries[skipped];
                if let Entry::Ioctl(ioctl) = &before.entry {
                    let (name, before) = (name(sent, input), name(ioctl, &before.input));
                    state.differs(format!(
                        "request {at} ({name}) was sent before request {skipped} ({before})"
                    ));
                }
            }
            return Some(at);
        }
        if asks {
            let mut before = all.iter().rev().filter(|&&at| state.used[at]).take(WINDOW);
            if let Some(&at) = before.find(|&&at| differences_of(state, at).is_empty()) {
                return Some(at);
            }
        }
        // One of the same kind, which differs.
        let Some(at) = in_order.or_else(|| next.iter().find(like).copied()) else {
            let expected = first.map_or_else(
                || "its requests are at an end".to_owned(),
                |at| {
                    let recorded = &self.script.case.entries[at];
                    match &recorded.entry {
                        Entry::Ioctl(it) => format!("the next is {}", name(it, &recorded.input)),
                        _ => String::new(),
                    }
                },
            );
            let name = name(sent, input);
            state.contradicts(format!("a request ({name}) is not in the recording: {expected}"));
            return None;
        };
        for what in differences_of(state, at) {
            state.contradicts(format!("request {at} ({}): {what}", name(sent, input)));
        }
        Some(at)
    }
}
