//! Open devices: the program's descriptor, and the modelled kernel's file that serves it.

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

use super::call_threads::CallLock;
use super::node::Node;
use verbless_model_kernel::remote::{
    Charge, Client, DeviceFile, FileId, FwctlFile, identify, mmap_span,
};
use verbless_model_kernel::{InProcess, SystemPage};

/// The file that executes the ioctls of a descriptor.
pub(super) enum ServedFile {
    Verbs(Box<DeviceFile>),
    Fwctl(FwctlFile),
}

/// An open device file of a program.
pub(super) struct OpenFile {
    pub file: ServedFile,
    /// The node that the program opened.
    pub node: Node,
    /// Serializes the calls on this file.
    pub calls: Arc<CallLock>,
    /// `None`: max_user_watches was reached; the lock is polled instead.
    watch: Option<WatchDescriptor>,
    /// The memfd. Its OFD lock lives as long as the program's open file description.
    memory: Arc<OwnedFd>,
    _charge: Charge,
}

/// Mask of a watch, which yields one event, at the first close. A program that reopens and closes
/// its file repeatedly cannot fill the queue.
fn first_close() -> AddWatchFlags {
    AddWatchFlags::IN_CLOSE | AddWatchFlags::IN_ONESHOT
}

/// A lock of the whole file. The client's open file description holds it until its last duplicate
/// is closed.
fn whole_lock() -> libc::flock {
    let (l_type, l_whence) = (libc::F_WRLCK as libc::c_short, libc::SEEK_SET as libc::c_short);
    libc::flock { l_type, l_whence, l_start: 0, l_len: 0, l_pid: 0 }
}

/// Upper bound of the time between IN_CLOSE and the release of the lock.
const CLOSE_TO_UNLOCK: Duration = Duration::from_millis(1);

/// Makes `inotify_add_watch` fail with EEXIST if a watch exists (Linux 4.18).
const IN_MASK_CREATE: u32 = 0x1000_0000;

impl OpenFile {
    /// Whether the client's open file description still exists.
    fn is_locked(&self) -> bool {
        let mut lock = whole_lock();
        // Counts as open on error.
        fcntl(&*self.memory, FcntlArg::F_OFD_GETLK(&mut lock)).is_err()
            || lock.l_type != libc::F_UNLCK as libc::c_short
    }

    /// Number of objects that a drop destroys.
    fn close_cost(&self) -> usize {
        match &self.file {
            ServedFile::Verbs(file) => file.close_cost().unwrap_or(usize::MAX),
            ServedFile::Fwctl(_) => 0,
        }
    }
}

/// Maximum number of objects that the caller destroys itself, within milliseconds; a thread
/// destroys more.
const MAX_INLINE_DESTROYS: usize = 2000;

/// Closed files whose objects are not destroyed yet.
#[must_use = "the objects are destroyed when it is dropped, which may take long"]
pub(super) struct ClosedFiles(Vec<Arc<OpenFile>>);

/// Closed files whose objects are being destroyed. The counter includes them until that ends.
pub(super) struct Destroying {
    ended: ClosedFiles,
    counter: Arc<AtomicUsize>,
}

impl Drop for Destroying {
    fn drop(&mut self) {
        self.ended.0.clear();
        self.counter.fetch_sub(1, Ordering::AcqRel);
    }
}

impl ClosedFiles {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the files to `counter`. Call it before they leave the table.
    pub(super) fn count(self, counter: &Arc<AtomicUsize>) -> Destroying {
        counter.fetch_add(1, Ordering::AcqRel);
        Destroying { ended: self, counter: counter.clone() }
    }
}

impl Destroying {
    /// Destroys the objects, in a separate thread if they are many. The caller must hold no lock.
    pub(super) fn finish(self) {
        let costs = self.ended.0.iter().map(|open| open.close_cost());
        let cost = costs.fold(0_usize, usize::saturating_add);
        if cost <= MAX_INLINE_DESTROYS {
            return;
        }
        // If no thread starts, this thread destroys them.
        let _ = thread::Builder::new().spawn(move || drop(self));
    }
}

/// All open devices, by the memfd's inode.
pub(super) struct OpenTable {
    by_file: HashMap<FileId, Arc<OpenFile>>,
    by_watch: HashMap<WatchDescriptor, FileId>,
    inotify: Inotify,
    /// Files without a watch.
    polled: HashSet<FileId>,
    /// Time of the next check of `polled`.
    next_poll: Instant,
    /// Becomes readable when a file without a watch is added. The supervisor must then call
    /// [`OpenTable::take_closed`] every [`MAX_POLL_PERIOD`].
    pub poll_request: EventFd,
    /// Makes `watch` fail as with ENOSPC.
    #[cfg(test)]
    no_watches: bool,
}

/// Maximum time between checks of the files without a watch.
pub(super) const MAX_POLL_PERIOD: Duration = Duration::from_millis(100);
/// Minimum time between checks. Up to [`MAX_POLL_PERIOD`], the pause is nine times the last check.
const MIN_POLL_PERIOD: Duration = Duration::from_millis(1);

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
            poll_request: EventFd::from_value_and_flags(0, flags)?,
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
    /// client only: when its last duplicate is closed, [`OpenTable::take_closed`] returns the file.
    pub(super) fn open(
        &mut self,
        backend: &InProcess,
        device: usize,
        node: Node,
        client: Arc<dyn Client>,
        charge: Charge,
    ) -> Result<(FileId, File), Errno> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let name = match node {
            Node::Verbs(_) => c"verbless-uverbs",
            Node::Fwctl(_) => c"verbless-fwctl",
        };
        let memory = memfd_create(name, flags)?;
        nix::unistd::ftruncate(&memory, mmap_span(SystemPage::default()) as i64)?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&memory, FcntlArg::F_ADD_SEALS(seals))?;
        let id = identify(&memory)?;
        let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC)
            .open(&path)
            .map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))?;
        // At this offset, every read and write exceeds the largest offset and fails with EINVAL, as
        // on a device, without trapping reads.
        lseek(&opened, i64::MAX, Whence::SeekSet)?;
        fcntl(&opened, FcntlArg::F_OFD_SETLK(&whole_lock()))?;
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
        let open = OpenFile { file, node, calls: Arc::default(), watch, memory, _charge: charge };
        self.by_file.insert(id, Arc::new(open));
        match watch {
            Some(watch) => drop(self.by_watch.insert(watch, id)),
            None => {
                self.polled.insert(id);
                let _ = self.poll_request.write(1);
            }
        }
        Ok((id, opened))
    }

    pub(super) fn get(&self, id: FileId) -> Option<Arc<OpenFile>> {
        self.by_file.get(&id).cloned()
    }

    /// Removes a closed device. Its objects are destroyed when the result is dropped.
    pub(super) fn end(&mut self, id: FileId) -> ClosedFiles {
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
        ClosedFiles(open.into_iter().collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_file.is_empty()
    }

    /// Removes and returns the files whose last descriptor was closed.
    pub(super) fn take_closed(&mut self) -> ClosedFiles {
        let mut ended = ClosedFiles(Vec::new());
        while let Ok(events) = self.inotify.read_events() {
            for event in events {
                if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                    thread::sleep(CLOSE_TO_UNLOCK);
                    ended.0.append(&mut self.take_lost().0);
                } else if event.mask.intersects(AddWatchFlags::IN_CLOSE)
                    && let Some(&id) = self.by_watch.get(&event.wd)
                {
                    ended.0.append(&mut self.end(id).0);
                }
            }
        }
        ended.0.append(&mut self.take_unlocked().0);
        ended
    }

    /// Clears the eventfd; returns whether files must be polled. Only the supervisor, which polls
    /// with a timeout, may call this.
    pub(super) fn clear_poll_request(&self) -> bool {
        let _ = self.poll_request.read();
        self.are_polled()
    }

    fn are_polled(&self) -> bool {
        !self.polled.is_empty()
    }

    /// Removes and returns closed files that have no watch, if their check is due.
    fn take_unlocked(&mut self) -> ClosedFiles {
        let mut ended = ClosedFiles(Vec::new());
        let start = Instant::now();
        if self.polled.is_empty() || start < self.next_poll {
            return ended;
        }
        let is_closed = |id: &&FileId| self.by_file.get(id).is_none_or(|open| !open.is_locked());
        let closed: Vec<FileId> = self.polled.iter().filter(is_closed).copied().collect();
        closed.into_iter().for_each(|id| ended.0.append(&mut self.end(id).0));
        self.next_poll =
            Instant::now() + (start.elapsed() * 9).clamp(MIN_POLL_PERIOD, MAX_POLL_PERIOD);
        ended
    }

    /// Removes and returns closed files whose event was lost. On IN_Q_OVERFLOW the one-shot watch
    /// is gone. If the kernel could not allocate the event (Linux 4.17,
    /// `inotify_handle_inode_event`), the watch stays, but the lock is gone.
    fn take_lost(&mut self) -> ClosedFiles {
        let flags = first_close() | AddWatchFlags::from_bits_retain(IN_MASK_CREATE);
        let mut ended = ClosedFiles(Vec::new());
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

    /// A device that this process opened: the table, its id and the descriptor.
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
        let (id, file) = opens
            .open(&InProcess::of(model), 0, Node::Verbs(0), client, charge)
            .expect("the device opens");
        (opens, id, file)
    }

    fn model() -> Model {
        Model::builder().device(Profile::load("bluefield3").expect("a profile")).build()
    }

    /// Calls `step` until the file is no longer in the table. A child that another test forks may
    /// hold the descriptor until `execve`.
    fn wait_until_closed(opens: &mut OpenTable, id: FileId, mut step: impl FnMut(&mut OpenTable)) {
        let end = Instant::now() + Duration::from_secs(10);
        while opens.get(id).is_some() {
            assert!(Instant::now() < end, "the file is still open");
            thread::yield_now();
            step(opens);
        }
    }

    #[test]
    fn close_is_found_after_queue_overflow() {
        let model = model();
        let (mut opens, id, file) = opened(&model);
        assert!(opens.take_lost().is_empty() && opens.get(id).is_some(), "the file is open");
        drop(file);
        wait_until_closed(&mut opens, id, |opens| drop(opens.take_lost()));
        assert!(opens.is_empty() && opens.by_watch.is_empty());
        // Earlier events belong to no file.
        assert!(opens.take_closed().is_empty());
    }

    #[test]
    fn close_is_found_without_memory_for_its_event() {
        let model = model();
        let (mut opens, id, file) = opened(&model);
        let memory = opens.get(id).expect("the file is open").memory.clone();
        drop(file);
        wait_until_closed(&mut opens, id, |opens| {
            // Drops the event and keeps a watch, as the kernel does without memory.
            let _ = opens.inotify.read_events();
            let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
            opens.inotify.add_watch(path.as_str(), first_close()).expect("a watch");
            drop(opens.take_lost());
        });
        assert!(opens.is_empty() && opens.by_watch.is_empty());
    }

    #[test]
    fn close_is_found_without_watches() {
        let model = model();
        let mut opens = OpenTable::new().expect("inotify");
        opens.no_watches = true;
        let (mut opens, id, file) = opened_in(opens, &model);
        thread::sleep(2 * MIN_POLL_PERIOD);
        assert!(opens.take_closed().is_empty() && opens.get(id).is_some(), "the file is open");
        // `take_closed` does not clear the eventfd.
        assert!(opens.clear_poll_request(), "the supervisor must poll");
        assert!(opens.poll_request.read().is_err(), "the poll request is cleared");
        let copy = file.try_clone().expect("a duplicate");
        drop(file);
        thread::sleep(2 * MIN_POLL_PERIOD);
        assert!(opens.take_closed().is_empty() && opens.are_polled());
        drop(copy);
        wait_until_closed(&mut opens, id, |opens| drop(opens.take_closed()));
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
    fn last_close_destroys_objects() {
        let model = model();
        let (mut opens, id, file) = opened(&model);
        assert_ne!(model.counts(0).eqs, 0, "the modelled kernel created EQs");
        let copy = file.try_clone().expect("a duplicate");
        drop(file);
        drop(opens.take_closed());
        assert!(opens.get(id).is_some() && !opens.is_empty());
        assert!(copy.set_len(0).is_err(), "its size is sealed");
        assert_eq!(nix::unistd::read(&copy, &mut [0; 1]), Err(Errno::EINVAL));
        assert_eq!(nix::unistd::write(&copy, &[0; 8]), Err(Errno::EINVAL));
        drop(copy);
        wait_until_closed(&mut opens, id, |opens| drop(opens.take_closed()));
        assert_eq!((opens.len(), opens.is_empty()), (0, true));
        assert_eq!(model.counts(0), Default::default());
    }
}
