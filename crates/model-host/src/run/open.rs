//! Open devices: the program's descriptor, and the modelled kernel's file behind it.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{Whence, lseek};

use super::call_threads::Queue;
use super::node::Node;
use verbless_model_kernel::InProcess;
use verbless_model_kernel::remote::{
    Charge, Client, DeviceFile, FileId, FwctlFile, MMAP_SPAN, identify,
};

/// The file that executes the ioctls of a descriptor.
pub(super) enum ServedFile {
    Verbs(Box<DeviceFile>),
    Fwctl(FwctlFile),
}

/// One open of a device.
pub(super) struct Open {
    pub file: ServedFile,
    /// The node that the program opened.
    pub node: Node,
    /// Serializes the calls on this open.
    pub calls: Arc<Queue>,
    /// `None`: the user's watches are used up, and the lock is polled.
    watch: Option<WatchDescriptor>,
    /// The memfd, whose lock shows whether the descriptor was closed.
    memory: Arc<OwnedFd>,
    _claim: Charge,
}

/// Mask of a watch: the first close ends the open. Each watch yields one event, so a program that
/// reopens and closes its file repeatedly cannot fill the queue.
fn first_close() -> AddWatchFlags {
    AddWatchFlags::IN_CLOSE | AddWatchFlags::IN_ONESHOT
}

/// A lock of the whole file. The client's open file description holds it until its last duplicate
/// is closed.
fn whole_lock() -> libc::flock {
    let (l_type, l_whence) = (libc::F_WRLCK as libc::c_short, libc::SEEK_SET as libc::c_short);
    libc::flock { l_type, l_whence, l_start: 0, l_len: 0, l_pid: 0 }
}

/// Time from an event to the end of the close in the kernel.
const REST_OF_CLOSE: Duration = Duration::from_millis(1);

/// Makes `inotify_add_watch` fail with EEXIST if a watch exists (Linux 4.18).
const IN_MASK_CREATE: u32 = 0x1000_0000;

impl Open {
    /// Whether the client's open file description still exists.
    fn is_locked(&self) -> bool {
        let mut lock = whole_lock();
        // Counts as open on error.
        fcntl(&*self.memory, FcntlArg::F_OFD_GETLK(&mut lock)).is_err()
            || lock.l_type != libc::F_UNLCK as libc::c_short
    }

    /// Number of objects to destroy.
    fn work(&self) -> usize {
        match &self.file {
            ServedFile::Verbs(file) => file.objects().unwrap_or(usize::MAX),
            ServedFile::Fwctl(_) => 0,
        }
    }
}

/// Objects that the caller destroys itself, within milliseconds. More get a thread.
const FEW: usize = 2000;

/// Closed opens whose objects are not destroyed yet.
#[must_use = "the objects are destroyed when it is dropped, which may take long"]
pub(super) struct ClosedOpens(Vec<Arc<Open>>);

/// Closed opens whose objects are being destroyed. The counter includes them until that ends.
pub(super) struct Destroying {
    ended: ClosedOpens,
    counter: Arc<AtomicUsize>,
}

impl Drop for Destroying {
    fn drop(&mut self) {
        self.ended.0.clear();
        self.counter.fetch_sub(1, Ordering::AcqRel);
    }
}

impl ClosedOpens {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Counts them, before other threads can see that they are gone.
    pub(super) fn count(self, counter: &Arc<AtomicUsize>) -> Destroying {
        counter.fetch_add(1, Ordering::AcqRel);
        Destroying { ended: self, counter: counter.clone() }
    }
}

impl Destroying {
    /// Destroys the objects, in a separate thread if they are many. The caller must hold no lock.
    pub(super) fn finish(self) {
        let work = self.ended.0.iter().map(|open| open.work()).fold(0_usize, usize::saturating_add);
        if work <= FEW {
            return;
        }
        // If no thread starts, this thread destroys them.
        let _ = thread::Builder::new().spawn(move || drop(self));
    }
}

/// All open devices, by the memfd's inode.
pub(super) struct OpenTable {
    by_file: HashMap<FileId, Arc<Open>>,
    by_watch: HashMap<WatchDescriptor, FileId>,
    inotify: Inotify,
    /// Opens without a watch.
    polled: HashSet<FileId>,
    /// When they are checked next.
    next_poll: Instant,
    /// Readable when an open without a watch is new: somebody must call [`OpenTable::closed`] every
    /// [`PERIOD`].
    pub bell: EventFd,
    /// As if the user's watches were used up.
    #[cfg(test)]
    no_watches: bool,
}

/// Maximum time between checks of the opens without a watch.
pub(super) const PERIOD: Duration = Duration::from_millis(100);
/// Minimum time between the checks, which take at most a tenth of the time.
const SHORT_PERIOD: Duration = Duration::from_millis(1);

impl AsFd for OpenTable {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

impl OpenTable {
    pub(super) fn new() -> Result<Self, Errno> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Self {
            by_file: HashMap::new(),
            by_watch: HashMap::new(),
            inotify,
            polled: HashSet::new(),
            next_poll: Instant::now(),
            bell: EventFd::from_value_and_flags(0, flags)?,
            #[cfg(test)]
            no_watches: false,
        })
    }

    /// Watches a new file; `None`: the user's watches are used up (ENOSPC), or the kernel has no
    /// memory for one.
    fn watch(&self, path: &str) -> Result<Option<WatchDescriptor>, Errno> {
        let watch = self.inotify.add_watch(path, first_close());
        #[cfg(test)]
        let watch = if self.no_watches { Err(Errno::ENOSPC) } else { watch };
        match watch {
            Err(Errno::ENOSPC | Errno::ENOMEM) => Ok(None),
            watch => watch.map(Some),
        }
    }

    /// Opens a device for a client that opened `node`. The caller gives the descriptor to the
    /// client only: when its last duplicate is closed, [`OpenTable::closed`] returns the open.
    pub(super) fn open(
        &mut self,
        backend: &InProcess,
        device: usize,
        node: Node,
        client: Arc<dyn Client>,
        claim: Charge,
    ) -> Result<(FileId, File), Errno> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let name = match node {
            Node::Verbs(_) => c"verbless-uverbs",
            Node::Fwctl(_) => c"verbless-fwctl",
        };
        let memory = memfd_create(name, flags)?;
        nix::unistd::ftruncate(&memory, MMAP_SPAN as i64)?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&memory, FcntlArg::F_ADD_SEALS(seals))?;
        let id = identify(&memory)?;
        let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
        let given = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC)
            .open(&path)
            .map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))?;
        // At this offset, every read and write exceeds the largest offset and fails with EINVAL, as
        // on a device, without trapping reads.
        lseek(&given, i64::MAX, Whence::SeekSet)?;
        fcntl(&given, FcntlArg::F_OFD_SETLK(&whole_lock()))?;
        let watch = self.watch(&path)?;
        let memory = Arc::new(memory);
        let file = match node {
            Node::Verbs(_) => DeviceFile::open(backend, device, client, memory.clone())
                .map(|file| ServedFile::Verbs(Box::new(file))),
            Node::Fwctl(_) => FwctlFile::open(backend, device).map(ServedFile::Fwctl),
        };
        let file = file.inspect_err(|_| {
            let _ = watch.map(|watch| self.inotify.rm_watch(watch));
        })?;
        let open = Open { file, node, calls: Arc::default(), watch, memory, _claim: claim };
        self.by_file.insert(id, Arc::new(open));
        match watch {
            Some(watch) => drop(self.by_watch.insert(watch, id)),
            None => {
                self.polled.insert(id);
                let _ = self.bell.write(1);
            }
        }
        Ok((id, given))
    }

    pub(super) fn get(&self, id: FileId) -> Option<Arc<Open>> {
        self.by_file.get(&id).cloned()
    }

    /// Removes a closed device. Its objects are destroyed when the result is dropped.
    pub(super) fn end(&mut self, id: FileId) -> ClosedOpens {
        let open = self.by_file.remove(&id);
        if let Some(open) = &open {
            match open.watch {
                Some(watch) => {
                    self.by_watch.remove(&watch);
                    let _ = self.inotify.rm_watch(watch);
                }
                None => drop(self.polled.remove(&id)),
            }
        }
        ClosedOpens(open.into_iter().collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_file.is_empty()
    }

    /// Removes the opens whose last descriptor was closed.
    pub(super) fn closed(&mut self) -> ClosedOpens {
        let mut ended = ClosedOpens(Vec::new());
        while let Ok(events) = self.inotify.read_events() {
            for event in events {
                if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                    thread::sleep(REST_OF_CLOSE);
                    ended.0.append(&mut self.unwatched().0);
                } else if event.mask.intersects(AddWatchFlags::IN_CLOSE)
                    && let Some(&id) = self.by_watch.get(&event.wd)
                {
                    ended.0.append(&mut self.end(id).0);
                }
            }
        }
        ended.0.append(&mut self.unlocked().0);
        ended
    }

    /// Whether an open has no watch. Takes the ring of the bell, so only the caller that waits for
    /// it with a timeout may ask.
    pub(super) fn hear_bell(&self) -> bool {
        let _ = self.bell.read();
        self.are_polled()
    }

    fn are_polled(&self) -> bool {
        !self.polled.is_empty()
    }

    /// Removes closed opens that have no watch, if their check is due.
    fn unlocked(&mut self) -> ClosedOpens {
        let mut ended = ClosedOpens(Vec::new());
        let start = Instant::now();
        if self.polled.is_empty() || start < self.next_poll {
            return ended;
        }
        let is_closed = |id: &&FileId| self.by_file.get(id).is_none_or(|open| !open.is_locked());
        let closed: Vec<FileId> = self.polled.iter().filter(is_closed).copied().collect();
        closed.into_iter().for_each(|id| ended.0.append(&mut self.end(id).0));
        self.next_poll = Instant::now() + (start.elapsed() * 9).clamp(SHORT_PERIOD, PERIOD);
        ended
    }

    /// Removes closed opens whose event was lost. If the queue was full, the kernel has removed the
    /// watch at the first close. If it had no memory for the event (Linux 4.17,
    /// `inotify_handle_inode_event`), the watch stays, but the lock is gone.
    fn unwatched(&mut self) -> ClosedOpens {
        let flags = first_close() | AddWatchFlags::from_bits_retain(IN_MASK_CREATE);
        let mut ended = ClosedOpens(Vec::new());
        let ids: Vec<FileId> = self.by_file.keys().copied().collect();
        for id in ids {
            let Some(open) = self.by_file.get(&id).filter(|it| it.watch.is_some()) else {
                continue;
            };
            let path = format!("/proc/self/fd/{}", open.memory.as_raw_fd());
            let watch = self.inotify.add_watch(path.as_str(), flags);
            if let Ok(watch) = watch {
                let _ = self.inotify.rm_watch(watch);
            }
            if watch.is_ok() || !open.is_locked() {
                ended.0.append(&mut self.end(id).0);
            }
        }
        ended
    }

    #[cfg(any(test, fuzzing))]
    pub(super) fn len(&self) -> usize {
        self.by_file.len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::process::Caller;
    use super::super::processes::Processes;
    use super::super::shared::Wakes;
    use super::*;
    use verbless_model::{Model, Profile};
    use verbless_model_kernel::remote::Resource;

    /// Opens of a device by this process, with one id and descriptor.
    fn opened(model: &Model) -> (OpenTable, FileId, File) {
        opened_in(OpenTable::new().expect("inotify"), model)
    }

    fn opened_in(mut opens: OpenTable, model: &Model) -> (OpenTable, FileId, File) {
        let wakes = Arc::new(Wakes::new().expect("an epoll"));
        let processes = Processes::new(Arc::default(), wakes);
        let own = std::process::id();
        let process = processes.of_thread(own, || true).expect("this process");
        let client: Arc<dyn Client> = Arc::new(Caller { process, tid: own, call: None });
        let charge = client.account().charge(Resource::Descriptors, 1).expect("a share");
        let (id, file) =
            opens.open(&InProcess::of(model), 0, Node::Verbs(0), client, charge).expect("it opens");
        (opens, id, file)
    }

    fn model() -> Model {
        Model::builder().device(Profile::load("bluefield3").expect("a profile")).build()
    }

    #[test]
    fn close_is_found_after_queue_overflow() {
        let model = model();
        let (mut opens, id, file) = opened(&model);
        assert!(opens.unwatched().is_empty() && opens.get(id).is_some(), "it is open");
        drop(file);
        // A child that another test forks may hold it until `execve`.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while opens.get(id).is_some() && std::time::Instant::now() < end {
            thread::yield_now();
            drop(opens.unwatched());
        }
        assert!(opens.is_empty() && opens.by_watch.is_empty());
        // Earlier events belong to no open.
        assert!(opens.closed().is_empty());
    }

    #[test]
    fn close_is_found_without_memory_for_its_event() {
        let model = model();
        let (mut opens, id, file) = opened(&model);
        let memory = opens.get(id).expect("it is open").memory.clone();
        drop(file);
        let end = std::time::Instant::now() + Duration::from_secs(10);
        while opens.get(id).is_some() && std::time::Instant::now() < end {
            thread::yield_now();
            // Drops the event and keeps a watch, as the kernel does without memory.
            let _ = opens.inotify.read_events();
            let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
            opens.inotify.add_watch(path.as_str(), first_close()).expect("a watch");
            drop(opens.unwatched());
        }
        assert!(opens.is_empty() && opens.by_watch.is_empty());
    }

    #[test]
    fn close_is_found_when_the_watches_are_used_up() {
        let model = model();
        let mut opens = OpenTable::new().expect("inotify");
        opens.no_watches = true;
        let (mut opens, id, file) = opened_in(opens, &model);
        thread::sleep(2 * SHORT_PERIOD);
        assert!(opens.closed().is_empty() && opens.get(id).is_some(), "it is open");
        // Checks of calls leave the ring of the bell to the supervisor.
        assert!(opens.hear_bell(), "the supervisor is to poll");
        assert!(opens.bell.read().is_err(), "the ring was taken");
        let copy = file.try_clone().expect("a duplicate");
        drop(file);
        thread::sleep(2 * SHORT_PERIOD);
        assert!(opens.closed().is_empty() && opens.are_polled());
        drop(copy);
        let end = Instant::now() + Duration::from_secs(10);
        while opens.get(id).is_some() && Instant::now() < end {
            thread::yield_now();
            drop(opens.closed());
        }
        assert!(opens.is_empty() && !opens.are_polled());
        assert_eq!(model.counts(0), Default::default());
    }

    #[test]
    fn open_makes_one_close_event() {
        let model = model();
        let (opens, _id, file) = opened(&model);
        for _ in 0..100 {
            drop(File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("again"));
        }
        let events = opens.inotify.read_events().expect("events");
        let closes = events.iter().filter(|it| it.mask.intersects(AddWatchFlags::IN_CLOSE));
        assert_eq!(closes.count(), 1);
    }

    #[test]
    fn open_ends_with_its_last_descriptor_and_its_objects() {
        let model = model();
        let (mut opens, id, file) = opened(&model);
        assert_ne!(model.counts(0).eqs, 0, "the modelled kernel is there");
        let copy = file.try_clone().expect("a duplicate");
        drop(file);
        drop(opens.closed());
        assert!(opens.get(id).is_some() && !opens.is_empty());
        assert!(copy.set_len(0).is_err(), "its size is sealed");
        assert_eq!(nix::unistd::read(&copy, &mut [0; 1]), Err(Errno::EINVAL));
        assert_eq!(nix::unistd::write(&copy, &[0; 8]), Err(Errno::EINVAL));
        drop(copy);
        // A child that another test forks may hold it until `execve`.
        let patience = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while opens.get(id).is_some() && std::time::Instant::now() < patience {
            thread::yield_now();
            drop(opens.closed());
        }
        assert!(opens.get(id).is_none());
        assert_eq!((opens.len(), opens.is_empty()), (0, true));
        assert_eq!(model.counts(0), Default::default());
    }
}
