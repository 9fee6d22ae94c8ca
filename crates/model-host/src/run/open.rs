//! Open devices: the descriptor that a program gets, and the modelled kernel's file behind it.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{Whence, lseek};

use super::node::Node;
use verbless_model_kernel::InProcess;
use verbless_model_kernel::remote::{Client, ControlFile, DeviceFile, FileId, MMAP_SPAN, identify};

/// The file that answers the ioctls of a descriptor.
pub(super) enum Served {
    Verbs(Box<DeviceFile>),
    Control(ControlFile),
}

/// One open of a device.
pub(super) struct Open {
    pub file: Served,
    /// The node by which programs opened it.
    pub node: Node,
    watch: WatchDescriptor,
}

/// All open devices, by the inode of their memfd.
pub(super) struct Opens {
    by_file: HashMap<FileId, Arc<Open>>,
    by_watch: HashMap<WatchDescriptor, FileId>,
    inotify: Inotify,
}

impl AsFd for Opens {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

impl Opens {
    pub(super) fn new() -> Result<Self, Errno> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        Ok(Self { by_file: HashMap::new(), by_watch: HashMap::new(), inotify })
    }

    /// Opens a device for a client, which opened it as `node`. The descriptor is only given to the
    /// client: when its last duplicate is closed, [`Opens::closed`] notices.
    pub(super) fn open(
        &mut self,
        backend: &InProcess,
        device: usize,
        node: Node,
        client: Arc<dyn Client>,
    ) -> Result<(FileId, File), Errno> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let name = match node {
            Node::Verbs(_) => c"verbless-uverbs",
            Node::Control(_) => c"verbless-fwctl",
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
        // No read or write fits between there and the end of all offsets, so that both are EINVAL,
        // as Linux answers them, without a trap of every read.
        lseek(&given, i64::MAX, Whence::SeekSet)?;
        let watch = self.inotify.add_watch(path.as_str(), AddWatchFlags::IN_CLOSE)?;
        let file = match node {
            Node::Verbs(_) => DeviceFile::open(backend, device, client, Arc::new(memory))
                .map(|file| Served::Verbs(Box::new(file))),
            Node::Control(_) => ControlFile::open(backend, device).map(Served::Control),
        };
        let file = file.inspect_err(|_| {
            let _ = self.inotify.rm_watch(watch);
        })?;
        self.by_file.insert(id, Arc::new(Open { file, node, watch }));
        self.by_watch.insert(watch, id);
        Ok((id, given))
    }

    pub(super) fn get(&self, id: FileId) -> Option<Arc<Open>> {
        self.by_file.get(&id).cloned()
    }

    /// Closes an open device; frees its objects.
    pub(super) fn end(&mut self, id: FileId) {
        if let Some(open) = self.by_file.remove(&id) {
            self.by_watch.remove(&open.watch);
            let _ = self.inotify.rm_watch(open.watch);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_file.is_empty()
    }

    /// Ends the opens of which the last descriptor was closed.
    pub(super) fn closed(&mut self) {
        while let Ok(events) = self.inotify.read_events() {
            for event in events {
                if event.mask.intersects(AddWatchFlags::IN_CLOSE)
                    && let Some(&id) = self.by_watch.get(&event.wd)
                {
                    self.end(id);
                }
            }
        }
    }

    #[cfg(any(test, fuzzing))]
    pub(super) fn len(&self) -> usize {
        self.by_file.len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::process::{Caller, Processes};
    use super::super::shared::Wakes;
    use super::*;
    use verbless_model::{Model, Profile};

    #[test]
    fn an_open_ends_with_its_last_descriptor_and_frees_what_it_held() {
        let model =
            Model::builder().device(Profile::load("bluefield3").expect("a profile")).build();
        let wakes = Arc::new(Wakes::new().expect("an epoll"));
        let mut processes = Processes::new(Arc::default(), wakes);
        let own = std::process::id();
        let process = processes.of_thread(own, || true).expect("this process");
        let client: Arc<dyn Client> = Arc::new(Caller { process, tid: own, call: None });
        let mut opens = Opens::new().expect("inotify");
        let (id, file) =
            opens.open(&InProcess::of(&model), 0, Node::Verbs(0), client).expect("it opens");
        assert_ne!(model.counts(0).eqs, 0, "the modelled kernel is there");
        let copy = file.try_clone().expect("a duplicate");
        drop(file);
        opens.closed();
        assert!(opens.get(id).is_some() && !opens.is_empty());
        assert!(copy.set_len(0).is_err(), "its size is sealed");
        assert_eq!(nix::unistd::read(&copy, &mut [0; 1]), Err(Errno::EINVAL));
        assert_eq!(nix::unistd::write(&copy, &[0; 8]), Err(Errno::EINVAL));
        drop(copy);
        // A child that another test starts may have it too until it has become its program.
        let patience = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while opens.get(id).is_some() && std::time::Instant::now() < patience {
            std::thread::yield_now();
            opens.closed();
        }
        assert!(opens.get(id).is_none());
        assert_eq!((opens.len(), opens.is_empty()), (0, true));
        assert_eq!(model.counts(0), Default::default());
    }
}
