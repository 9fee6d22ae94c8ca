//! Calls with a path, and `stat` of a descriptor: answers from the tree, and opens of devices.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Once, PoisonError};

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::answer::{Answer, Answerer};
use super::call_threads::in_program;
use super::node::{self, Node};
use super::open_how::OpenHow;
use super::path_walk::{PathWalk, joined};
use super::process;
use super::sys::{self, Notification, Special, Stat};
use super::sysfs;
use super::tree;
use verbless_model_kernel::remote::{Client as _, PAGE};

/// Maximum bytes of a path with its final 0, as in Linux.
const PATH_MAX: usize = 4096;

/// Largest `struct open_how` that the kernel accepts: a page.
const MAX_OPEN_HOW: usize = 4096;
/// The flags of `faccessat2`.
const ACCESS_FLAGS: i32 = libc::AT_EACCESS | libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH;

/// An absolute path that concerns the tree.
struct CallPath {
    bytes: Vec<u8>,
}

impl CallPath {
    /// A path that leads into the tree, or through it to a directory above.
    fn new(bytes: Vec<u8>) -> Option<Self> {
        tree::leads_through(&bytes).then_some(Self { bytes })
    }
}

impl Answerer {
    pub(super) fn openat2(&self, call: &Notification) -> Answer {
        let [directory, path, how, size, ..] = call.arguments;
        let mut bytes = vec![0; (size as usize).min(MAX_OPEN_HOW)];
        let read = self.read(call, how, &mut bytes);
        match OpenHow::of_bytes(&bytes).filter(|_| read.is_ok() && bytes.len() as u64 == size) {
            Some(how) => self.open(call, directory, path, &how),
            None => Answer::Kernel,
        }
    }

    pub(super) fn open(
        &self,
        call: &Notification,
        directory: u64,
        path: u64,
        how: &OpenHow,
    ) -> Answer {
        let Some(walk) = self.walk(call, directory, path, how) else { return Answer::Kernel };
        self.open_walk(call, &walk, how).unwrap_or_else(Answer::from)
    }

    fn open_walk(
        &self,
        call: &Notification,
        walk: &PathWalk,
        how: &OpenHow,
    ) -> Result<Answer, Errno> {
        how.check()?;
        if walk.crosses {
            return Err(Errno::EXDEV);
        }
        let tree = &self.view.tree;
        let node = node::of_path(&walk.whole);
        let device = node.and_then(|node| Some((node, self.view.of_node(node)?)));
        let found = walk.lookup(tree, how, device.is_some()).inspect_err(|_| {
            if !how.creates() {
                log_unmodelled_device(call.tid, &walk.whole);
            }
        })?;
        how.admits(found).inspect_err(|&errno| {
            if errno == Errno::EACCES {
                log_write_open_of_attribute(call.tid, &walk.whole);
            }
        })?;
        if let Some(device) = device {
            self.may_use(call, device.0, how.accesses())?;
            return self.open_device(call, device, how.close_on_exec());
        }
        self.check_may_receive_files(call)?;
        let file = walk.open(tree, how.open_flags())?;
        tree.record_use();
        Ok(self.install_fd(call, file.as_fd(), None, how.close_on_exec()))
    }

    /// Permission bits of a node.
    fn mode(&self, node: Node) -> u32 {
        match node {
            Node::Verbs(_) => 0o666,
            Node::Fwctl(_) => self.shared.control_mode,
        }
    }

    /// Checks whether the caller has this access to a node of root: read (4), write (2).
    fn may_use(&self, call: &Notification, node: Node, accesses: u32) -> Result<(), Errno> {
        if accesses & !(self.mode(node) & 0o6) == 0 {
            return Ok(());
        }
        let caller = self.caller(call)?;
        if caller.is_root() {
            return Ok(());
        }
        warn_of_root_only_control();
        Err(Errno::EACCES)
    }

    /// The lookup of an open, if its path leads into the tree or through it to a directory above.
    fn walk(
        &self,
        call: &Notification,
        directory: u64,
        path: u64,
        how: &OpenHow,
    ) -> Option<PathWalk> {
        let path = self.written_path(call, path)?;
        if how.scope().is_empty() {
            let start = match path.starts_with(b"/") || !how.no_xdev() {
                true => b"/".to_vec(),
                false => self.base(call, directory)?,
            };
            let whole = self.whole(call, directory, path)?;
            return tree::leads_through(&whole).then(|| PathWalk::from_root(whole, &start, how));
        }
        if !self.view.tree.may_be_reached_by(&path) {
            return None;
        }
        PathWalk::within(self.base(call, directory)?, path, how)
    }

    /// Checks whether the caller may get files of the tree; EACCES with one warning if not.
    pub(super) fn check_may_receive_files(&self, call: &Notification) -> Result<(), Errno> {
        if self.view.tree.may_receive_files(call.tid) && self.gate.is_waiting(call.id) {
            return Ok(());
        }
        warn_of_another_root();
        Err(Errno::EACCES)
    }

    fn install_fd(
        &self,
        call: &Notification,
        file: BorrowedFd<'_>,
        number: Option<u32>,
        close_on_exec: bool,
    ) -> Answer {
        match self.gate.install_fd(call.id, file, number, close_on_exec, true) {
            Ok(_) => Answer::Installed,
            Err(errno) => errno.into(),
        }
    }

    fn open_device(
        &self,
        call: &Notification,
        (node, device): (Node, usize),
        close_on_exec: bool,
    ) -> Result<Answer, Errno> {
        let caller = self.caller(call)?;
        let claim = caller.claim()?;
        let owner = caller.between_calls();
        let room = self.shared.descriptor_lock(owner.process.pid);
        let (id, file) =
            self.shared.opens().open(&self.shared.backend, device, node, Arc::new(owner), claim)?;
        // The table of opens is unlocked until the descriptor is installed, which takes until the
        // caller's thread runs. Another thread of the process may hold `room` while it waits for
        // the program.
        let _alone = in_program(|| room.lock().unwrap_or_else(PoisonError::into_inner));
        let numbers = self.numbers(call, 0).map(Some);
        let mut given = Answer::from(Errno::EMFILE);
        // RLIMIT_NOFILE may be below the trapped numbers; then the kernel picks a number.
        let mut tried_all = false;
        for number in numbers.chain([None]) {
            tried_all = number.is_none();
            given = self.install_fd(call, file.as_fd(), number, close_on_exec);
            if !matches!(given, Answer::Ours(Err(Errno::EBADF | Errno::EMFILE | Errno::EINVAL))) {
                break;
            }
        }
        if tried_all {
            warn_of_a_descriptor_that_the_filter_does_not_know();
        }
        if !matches!(given, Answer::Installed) {
            self.shared.end_open(id);
        }
        Ok(given)
    }

    pub(super) fn stat(
        &self,
        call: &Notification,
        directory: u64,
        path: u64,
        flags: u64,
        how: Stat,
    ) -> Answer {
        let empty = flags as i32 & libc::AT_EMPTY_PATH != 0;
        // With a non-empty path, the descriptor is only the start directory.
        if empty
            && (path == 0 || self.text(call, path).is_ok_and(|path| path.is_empty()))
            && let Some(open) = self.opened(call, directory)
        {
            let path = open.node.path();
            return self.stat_file(call, path.as_bytes(), OFlag::empty(), how);
        }
        if path == 0 {
            return Answer::Kernel;
        }
        let Some(whole) = self.whole_path(call, directory, path) else { return Answer::Kernel };
        let Some(named) = CallPath::new(whole) else { return Answer::Kernel };
        if !how.accepts_flags(flags as i32) {
            return Errno::EINVAL.into();
        }
        let follow = if flags as i32 & libc::AT_SYMLINK_NOFOLLOW != 0 {
            OFlag::O_NOFOLLOW
        } else {
            OFlag::empty()
        };
        self.stat_file(call, &named.bytes, follow, how)
    }

    fn stat_file(&self, call: &Notification, path: &[u8], follow: OFlag, how: Stat) -> Answer {
        let file = match self.view.tree.open(path, OFlag::O_PATH | follow) {
            Ok(file) => file,
            Err(errno) => return errno.into(),
        };
        let special = node::of_path(path)
            .map(|node| Special { number: sysfs::numbers(node), mode: self.mode(node) });
        let (address, bytes) = match how.of(&file, special) {
            Ok(stat) => stat,
            Err(errno) => return errno.into(),
        };
        let written = process::write_to_caller(&*self.gate, call, address, &bytes);
        Answer::Ours(written.map(|()| 0))
    }

    pub(super) fn access(
        &self,
        call: &Notification,
        directory: u64,
        path: u64,
        mode: u64,
        flags: u64,
    ) -> Answer {
        let Some(named) = self.path(call, directory, path) else { return Answer::Kernel };
        let mode = mode as i32;
        if mode & !(libc::R_OK | libc::W_OK | libc::X_OK) != 0 || flags as i32 & !ACCESS_FLAGS != 0
        {
            return Errno::EINVAL.into();
        }
        let result = self.view.tree.open(&named.bytes, OFlag::O_PATH).and_then(|file| {
            let directory = sys::is_directory(&file)?;
            let device = node::of_path(&named.bytes);
            let refused = (mode & libc::W_OK != 0 && device.is_none())
                || (mode & libc::X_OK != 0 && !directory);
            if refused {
                return Err(Errno::EACCES);
            }
            device.map_or(Ok(()), |node| self.may_use(call, node, mode as u32)).map(|()| 0)
        });
        Answer::Ours(result)
    }

    /// Files of the tree have no extended attributes.
    pub(super) fn no_xattr(&self, call: &Notification, answer: Result<i64, Errno>) -> Answer {
        let Some(named) = self.path(call, libc::AT_FDCWD as u64, call.arguments[0]) else {
            return Answer::Kernel;
        };
        let there = self.view.tree.open(&named.bytes, OFlag::O_PATH | OFlag::O_NOFOLLOW);
        Answer::Ours(there.and(answer))
    }

    pub(super) fn readlink(
        &self,
        call: &Notification,
        directory: u64,
        path: u64,
        to: u64,
        room: u64,
    ) -> Answer {
        let room = room as i32;
        if room <= 0 {
            return Errno::EINVAL.into();
        }
        let Some(named) = self.path(call, directory, path) else { return Answer::Kernel };
        let target = self.view.tree.open(&named.bytes, OFlag::O_PATH | OFlag::O_NOFOLLOW).and_then(
            |file: OwnedFd| match nix::fcntl::readlinkat(&file, "") {
                // With an empty path, `readlinkat` gives ENOENT for a file that is not a symlink.
                Err(Errno::ENOENT) => Err(Errno::EINVAL),
                other => other,
            },
        );
        let result = target.and_then(|target| {
            let bytes = target.as_bytes();
            let len = bytes.len().min(room as usize);
            process::write_to_caller(&*self.gate, call, to, &bytes[..len])?;
            Ok(len as i64)
        });
        Answer::Ours(result)
    }

    /// The path at an address of the caller, if it leads into the tree.
    fn path(&self, call: &Notification, directory: u64, address: u64) -> Option<CallPath> {
        self.whole_path(call, directory, address).and_then(CallPath::new)
    }

    /// The absolute path at an address of the caller, if it leads into the tree, or starts in a
    /// directory from which it could.
    pub(super) fn whole_path(
        &self,
        call: &Notification,
        directory: u64,
        address: u64,
    ) -> Option<Vec<u8>> {
        self.whole(call, directory, self.written_path(call, address)?)
    }

    fn whole(&self, call: &Notification, directory: u64, bytes: Vec<u8>) -> Option<Vec<u8>> {
        if bytes.starts_with(b"/") {
            return tree::leads_through(&bytes).then_some(bytes);
        }
        if !self.view.tree.may_be_reached_by(&bytes) {
            return None;
        }
        Some(joined(&self.base(call, directory)?, &bytes))
    }

    /// The path as the caller wrote it.
    fn written_path(&self, call: &Notification, address: u64) -> Option<Vec<u8>> {
        let path = self.text(call, address);
        if path == Err(Errno::EPERM) {
            self.shared.warn_of_a_closed_process(call.tid);
        }
        path.ok()
    }

    /// The start directory of a relative path, as the program names it.
    fn base(&self, call: &Notification, directory: u64) -> Option<Vec<u8>> {
        let base = match directory as i32 {
            libc::AT_FDCWD => format!("/proc/{}/cwd", call.tid),
            fd => format!("/proc/{}/fd/{fd}", call.tid),
        };
        let link = std::fs::read_link(base).ok()?;
        if !self.gate.is_waiting(call.id) {
            return None;
        }
        let base = self.view.tree.shown(link);
        Some(base.as_os_str().as_bytes().to_vec())
    }

    /// The string at an address of the caller, without its NUL.
    fn text(&self, call: &Notification, address: u64) -> Result<Vec<u8>, Errno> {
        const PIECE: u64 = 256;
        let mut text = Vec::new();
        let mut at = address;
        while text.len() < PATH_MAX {
            // Reads stay within a page: the next may be unmapped.
            let here = PIECE.min(PAGE - at % PAGE) as usize;
            let mut piece = [0; PIECE as usize];
            self.read(call, at, &mut piece[..here])?;
            if let Some(end) = piece[..here].iter().position(|&byte| byte == 0) {
                text.extend(&piece[..end]);
                return Ok(text);
            }
            text.extend(&piece[..here]);
            at = at.checked_add(here as u64).ok_or(Errno::EFAULT)?;
        }
        Err(Errno::ENAMETOOLONG)
    }
}

/// Logs an open of an RDMA device of a kind that is not modelled.
fn log_unmodelled_device(thread: u32, path: &[u8]) {
    let Some(name) =
        node::clean(path).and_then(|it| it.strip_prefix(b"/dev/infiniband/").map(<[u8]>::to_vec))
    else {
        return;
    };
    let what = match &*name {
        b"rdma_cm" => "connections by rdma_cm are not modelled",
        name if name.starts_with(b"umad") => "management datagrams (umad) are not modelled",
        name if name.starts_with(b"issm") => "subnet managers (issm) are not modelled",
        _ => "there is no such device",
    };
    let name = name.escape_ascii();
    tracing::info!("thread {thread}: open of /dev/infiniband/{name} refused with ENOENT: {what}");
}

/// Logs an open of an attribute for writing, such as a device's settings or a function's
/// configuration space.
fn log_write_open_of_attribute(thread: u32, path: &[u8]) {
    let name = path.escape_ascii();
    tracing::info!(
        "thread {thread}: open of {name} for writing refused with EACCES: attributes of modelled \
         devices can only be read, also by root"
    );
}

/// Warns once that only root may open a control device.
fn warn_of_root_only_control() {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        tracing::warn!(
            "/dev/fwctl/fwctlN belongs to root with mode 600, as in the kernel: start the program \
             as root, or allow all users, as a udev rule does, with `run --fwctl-mode 666`"
        );
    });
}

/// Warns once that a program with another root gets no files of the tree.
fn warn_of_another_root() {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        tracing::warn!(
            "a program with another root directory or mount namespace than this process gets no \
             file of the modelled devices below /sys (EACCES), because the file would lead out of \
             its root: allow this process to mount a file system (unprivileged user namespaces, \
             or CAP_SYS_ADMIN), or start `run` within that root"
        );
    });
}

/// Warns once that a device looks like a regular file to its program.
fn warn_of_a_descriptor_that_the_filter_does_not_know() {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        tracing::warn!(
            "fstat shows a device's descriptor as a regular file, which libibverbs refuses: the \
             program's limit of open files may be too low (raise it with ulimit -n: 64 are \
             enough), or it has more than 80 devices open"
        );
    });
}

#[cfg(test)]
mod tests;
