//! The loop that answers the program's calls, and what each answer is.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use super::filter::{DESCRIPTORS, FIRST_DESCRIPTOR};
use super::open::Opens;
use super::process::{self, Caller, Processes};
use super::side::View;
use super::sys::{self, Listener, Notification, Stat};
use super::trace;
use super::tree::{self, FIRST_MINOR, MAJOR};
use crate::Model;
use crate::uverbs::{InProcess, PAGE, ioctl_name};

/// RDMA_VERBS_IOCTL: the one ioctl that uverbs devices have.
const VERBS: u32 = 0xc018_1b01;
/// The longest path that the kernel takes.
const LONGEST_PATH: usize = 4096;
/// Bytes of an ioctl's header.
const HEADER: usize = 24;

/// What is passed on to the program when somebody sends it to us. From a terminal it reaches both by itself.
const FORWARDED: [Signal; 6] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// Keeps signals from this thread, and from those that it starts; they come as records instead. The program is to get the
/// mask that was in force before, which is the second result.
pub(super) fn block_signals() -> Result<(SignalFd, SigSet), Errno> {
    let mut set = SigSet::from_iter(FORWARDED);
    set.add(Signal::SIGCHLD);
    let before = set.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let records = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    Ok((records, before))
}

/// Who answers.
pub(super) struct Supervisor {
    backend: InProcess,
    view: View,
    processes: Processes,
    opens: Opens,
    listener: Arc<Listener>,
    signals: SignalFd,
    program: Pid,
    /// How the program ended, once it has.
    status: Option<i32>,
    warned: bool,
    /// Every ioctl is printed.
    printing: bool,
}

/// What there is to do.
struct Ready {
    call: bool,
    /// Nobody is left behind the filter.
    gone: bool,
    closes: bool,
    deaths: bool,
    signals: bool,
}

/// What a call gets.
enum Answer {
    /// The kernel's own.
    Kernel,
    Ours(Result<i64, Errno>),
    /// It was given with a descriptor.
    Given,
}

impl From<Errno> for Answer {
    fn from(errno: Errno) -> Self {
        Self::Ours(Err(errno))
    }
}

/// A path as the program means it.
struct Named {
    bytes: Vec<u8>,
}

impl Supervisor {
    pub(super) fn new(
        model: &Model,
        view: View,
        processes: Processes,
        listener: Listener,
        signals: SignalFd,
        program: u32,
    ) -> Result<Self, Errno> {
        listener.wake_in_place();
        Ok(Self {
            backend: model.backend(),
            view,
            processes,
            opens: Opens::new()?,
            listener: Arc::new(listener),
            signals,
            program: Pid::from_raw(program as i32),
            status: None,
            warned: false,
            printing: false,
        })
    }

    /// Prints every ioctl, or does not.
    pub(super) fn printing(self, printing: bool) -> Self {
        Self { printing, ..self }
    }

    /// Answers until nobody is left behind the filter; gives the program's status as `wait` does.
    pub(super) fn run(mut self) -> Result<i32, Errno> {
        loop {
            let ready = self.wait()?;
            if ready.closes {
                self.opens.closed();
            }
            if ready.deaths {
                self.bury();
            }
            if ready.signals {
                self.hear_signals();
            }
            if ready.call {
                self.answer_next();
            } else if ready.gone {
                break;
            }
        }
        while self.status.is_none() {
            self.reap(libc::WEXITED);
        }
        Ok(self.status.unwrap_or_default())
    }

    /// Waits for something to do.
    fn wait(&self) -> Result<Ready, Errno> {
        let input = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut waiting = vec![
            input(self.listener.as_fd()),
            input(self.opens.as_fd()),
            input(self.signals.as_fd()),
        ];
        waiting.extend(self.processes.all().map(|process| input(process.pidfd.as_fd())));
        match poll(&mut waiting, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
        let events = |of: &PollFd<'_>| of.revents().unwrap_or(PollFlags::empty());
        let calls = events(&waiting[0]);
        let ready = |of: &PollFd<'_>| !events(of).is_empty();
        Ok(Ready {
            call: calls.contains(PollFlags::POLLIN),
            gone: calls.intersects(PollFlags::POLLHUP | PollFlags::POLLERR),
            closes: ready(&waiting[1]),
            signals: ready(&waiting[2]),
            deaths: waiting[3..].iter().any(ready),
        })
    }

    /// Takes leave of processes that have ended.
    fn bury(&mut self) {
        let ended: Vec<Pid> = self
            .processes
            .all()
            .filter(|process| process.has_ended())
            .map(|process| process.pid)
            .collect();
        for pid in ended {
            self.processes.forget(pid);
        }
    }

    fn hear_signals(&mut self) {
        while let Ok(Some(record)) = self.signals.read_signal() {
            let Ok(signal) = Signal::try_from(record.ssi_signo as i32) else { continue };
            if signal == Signal::SIGCHLD {
                self.reap(libc::WEXITED | libc::WNOHANG);
            } else if record.ssi_code <= 0 && self.status.is_none() {
                let _ = kill(self.program, signal);
            }
        }
    }

    /// Takes note of children that ended: the program, and orphans that became ours.
    fn reap(&mut self, flags: i32) {
        while let Some((pid, status)) = sys::wait_for_child(flags) {
            if pid == self.program {
                self.status = Some(status);
                return;
            }
        }
    }

    fn answer_next(&mut self) {
        let Ok(call) = self.listener.receive() else { return };
        match self.answer(&call) {
            Answer::Kernel => self.listener.go_on(call.id),
            Answer::Ours(result) => self.listener.answer(call.id, result),
            Answer::Given => {}
        }
    }

    fn answer(&mut self, call: &Notification) -> Answer {
        const HERE: u64 = libc::AT_FDCWD as u64;
        let [first, second, third, fourth, ..] = call.arguments;
        match i64::from(call.number) {
            libc::SYS_ioctl => self.ioctl(call),
            libc::SYS_openat => self.open(call, first, second, third),
            libc::SYS_openat2 => self.openat2(call),
            libc::SYS_newfstatat => self.stat(call, first, second, fourth, Stat::Plain(third)),
            libc::SYS_statx => {
                let [_, _, flags, mask, buffer, _] = call.arguments;
                self.stat(call, first, second, flags, Stat::Extended(mask as u32, buffer))
            }
            libc::SYS_fstat => {
                self.stat(call, first, 0, libc::AT_EMPTY_PATH as u64, Stat::Plain(second))
            }
            libc::SYS_faccessat | libc::SYS_faccessat2 => self.access(call, first, second, third),
            libc::SYS_getxattr | libc::SYS_lgetxattr => {
                self.no_attribute(call, Err(Errno::ENODATA))
            }
            libc::SYS_listxattr | libc::SYS_llistxattr => self.no_attribute(call, Ok(0)),
            libc::SYS_readlinkat => self.readlink(call, first, second, third, fourth),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open => self.open(call, HERE, first, second),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_stat => self.stat(call, HERE, first, 0, Stat::Plain(second)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_lstat => {
                let flags = libc::AT_SYMLINK_NOFOLLOW as u64;
                self.stat(call, HERE, first, flags, Stat::Plain(second))
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_access => self.access(call, HERE, first, second),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_readlink => self.readlink(call, HERE, first, second, third),
            _ => Answer::Kernel,
        }
    }

    fn thread(call: &Notification) -> Pid {
        Pid::from_raw(call.tid as i32)
    }

    /// The path at an address of the caller's, when it leads into the tree.
    fn path(&mut self, call: &Notification, directory: u64, address: u64) -> Option<Named> {
        let bytes = match self.text(call, address) {
            Ok(bytes) => bytes,
            Err(Errno::EPERM) => {
                if !std::mem::replace(&mut self.warned, true) {
                    tracing::warn!(
                        tid = call.tid,
                        "a program may not be looked into (it changed its identity, or kernel.yama.ptrace_scope is \
                         above 1): it sees no modelled device"
                    );
                }
                return None;
            }
            Err(_) => return None,
        };
        if bytes.starts_with(b"/") {
            return tree::is_ours(&bytes).then_some(Named { bytes });
        }
        let base = match directory as i32 {
            libc::AT_FDCWD => format!("/proc/{}/cwd", call.tid),
            fd => format!("/proc/{}/fd/{fd}", call.tid),
        };
        let base: PathBuf = std::fs::read_link(base).ok()?;
        let base = self.view.tree.shown(&base).unwrap_or(base);
        let whole = base.join(std::ffi::OsStr::from_bytes(&bytes)).as_os_str().as_bytes().to_vec();
        tree::is_ours(&whole).then_some(Named { bytes: whole })
    }

    /// The text at an address of the caller's, up to its zero.
    fn text(&self, call: &Notification, address: u64) -> Result<Vec<u8>, Errno> {
        const PIECE: u64 = 256;
        let mut text = Vec::new();
        let mut at = address;
        while text.len() < LONGEST_PATH {
            // Never across a page that may not be there.
            let here = PIECE.min(PAGE - at % PAGE) as usize;
            let mut piece = [0; PIECE as usize];
            process::read(Self::thread(call), at, &mut piece[..here])?;
            if let Some(end) = piece[..here].iter().position(|&byte| byte == 0) {
                text.extend(&piece[..end]);
                return Ok(text);
            }
            text.extend(&piece[..here]);
            at = at.checked_add(here as u64).ok_or(Errno::EFAULT)?;
        }
        Err(Errno::ENAMETOOLONG)
    }

    fn openat2(&mut self, call: &Notification) -> Answer {
        let [directory, path, how, ..] = call.arguments;
        let mut flags = [0; 8];
        match process::read(Self::thread(call), how, &mut flags) {
            Ok(()) => self.open(call, directory, path, u64::from_ne_bytes(flags)),
            Err(_) => Answer::Kernel,
        }
    }

    fn open(&mut self, call: &Notification, directory: u64, path: u64, flags: u64) -> Answer {
        let Some(named) = self.path(call, directory, path) else { return Answer::Kernel };
        let flags = OFlag::from_bits_truncate(flags as i32);
        let number = tree::device(&named.bytes);
        let device = number.and_then(|number| Some((number, self.view.device(number)?)));
        if let Some(device) =
            device.filter(|_| !flags.intersects(OFlag::O_PATH | OFlag::O_DIRECTORY))
        {
            return self.open_device(call, device, flags).unwrap_or_else(Answer::from);
        }
        let reads = flags & OFlag::O_ACCMODE == OFlag::O_RDONLY;
        let kept = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_PATH | OFlag::O_NONBLOCK;
        match self.view.tree.open(&named.bytes, flags & kept) {
            Ok(_) if flags.contains(OFlag::O_CREAT | OFlag::O_EXCL) => Errno::EEXIST.into(),
            Ok(_) if !reads && !flags.contains(OFlag::O_PATH) => Errno::EACCES.into(),
            Ok(file) => {
                let close_on_exec = flags.contains(OFlag::O_CLOEXEC);
                self.give(call, file.as_fd(), None, close_on_exec)
            }
            Err(Errno::ENOENT) if flags.contains(OFlag::O_CREAT) => Errno::EACCES.into(),
            Err(errno) => errno.into(),
        }
    }

    fn give(
        &self,
        call: &Notification,
        file: BorrowedFd<'_>,
        number: Option<u32>,
        close_on_exec: bool,
    ) -> Answer {
        match self.listener.give(call.id, file, number, close_on_exec, true) {
            Ok(_) => Answer::Given,
            Err(errno) => errno.into(),
        }
    }

    fn open_device(
        &mut self,
        call: &Notification,
        (number, device): (usize, usize),
        flags: OFlag,
    ) -> Result<Answer, Errno> {
        let caller = self.caller(call)?;
        let owner = Caller { call: None, ..caller };
        let (id, file) = self.opens.open(&self.backend, device, number, Arc::new(owner))?;
        let descriptor = (FIRST_DESCRIPTOR..FIRST_DESCRIPTOR + DESCRIPTORS)
            .find(|&number| process::identify(call.tid, number as i32) == Err(Errno::EBADF));
        let close_on_exec = flags.contains(OFlag::O_CLOEXEC);
        let given = match self.give(call, file.as_fd(), descriptor, close_on_exec) {
            // A process that may not have as many descriptors gets the lowest.
            Answer::Ours(Err(Errno::EBADF | Errno::EMFILE | Errno::EINVAL)) => {
                self.give(call, file.as_fd(), None, close_on_exec)
            }
            other => other,
        };
        if !matches!(given, Answer::Given) {
            self.opens.end(id);
        }
        Ok(given)
    }

    /// Who made the call. The call still waits, so the thread was not another's in between.
    fn caller(&mut self, call: &Notification) -> Result<Caller, Errno> {
        let process = self.processes.of_thread(call.tid)?;
        if !self.listener.is_waiting(call.id) {
            return Err(Errno::EINTR);
        }
        let through = Some((self.listener.clone(), call.id));
        Ok(Caller { process, tid: call.tid, call: through })
    }

    fn stat(
        &mut self,
        call: &Notification,
        directory: u64,
        path: u64,
        flags: u64,
        how: Stat,
    ) -> Answer {
        let empty = flags as i32 & libc::AT_EMPTY_PATH != 0;
        if empty
            && let Ok(id) = process::identify(call.tid, directory as i32)
            && let Some(open) = self.opens.get(id)
        {
            let node = format!("/dev/infiniband/uverbs{}", open.number);
            return self.stat_file(call, node.as_bytes(), OFlag::empty(), how);
        }
        if path == 0 {
            return Answer::Kernel;
        }
        let Some(named) = self.path(call, directory, path) else { return Answer::Kernel };
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
        let node = tree::device(path).map(|device| (MAJOR, FIRST_MINOR + device as u32));
        let (address, bytes) = match how.of(&file, node) {
            Ok(stat) => stat,
            Err(errno) => return errno.into(),
        };
        let written = process::write(Self::thread(call), address, &bytes);
        Answer::Ours(written.map(|()| 0).map_err(|_| Errno::EFAULT))
    }

    fn access(&mut self, call: &Notification, directory: u64, path: u64, mode: u64) -> Answer {
        let Some(named) = self.path(call, directory, path) else { return Answer::Kernel };
        let result = self.view.tree.open(&named.bytes, OFlag::O_PATH).and_then(|file| {
            let mode = mode as i32;
            let directory = sys::is_directory(&file)?;
            let device = tree::device(&named.bytes).is_some();
            let refused =
                (mode & libc::W_OK != 0 && !device) || (mode & libc::X_OK != 0 && !directory);
            if refused { Err(Errno::EACCES) } else { Ok(0) }
        });
        Answer::Ours(result)
    }

    /// A file of the tree has no extended attribute.
    fn no_attribute(&mut self, call: &Notification, answer: Result<i64, Errno>) -> Answer {
        let Some(named) = self.path(call, libc::AT_FDCWD as u64, call.arguments[0]) else {
            return Answer::Kernel;
        };
        let there = self.view.tree.open(&named.bytes, OFlag::O_PATH | OFlag::O_NOFOLLOW);
        Answer::Ours(there.and(answer))
    }

    fn readlink(
        &mut self,
        call: &Notification,
        directory: u64,
        path: u64,
        to: u64,
        room: u64,
    ) -> Answer {
        let Some(named) = self.path(call, directory, path) else { return Answer::Kernel };
        let target = self.view.tree.open(&named.bytes, OFlag::O_PATH | OFlag::O_NOFOLLOW).and_then(
            |file: OwnedFd| match nix::fcntl::readlinkat(&file, "") {
                // What is no link is ENOENT with an empty path.
                Err(Errno::ENOENT) => Err(Errno::EINVAL),
                other => other,
            },
        );
        let result = target.and_then(|target| {
            let bytes = target.as_bytes();
            let len = bytes.len().min(usize::try_from(room).map_err(|_| Errno::EINVAL)?);
            process::write(Self::thread(call), to, &bytes[..len]).map_err(|_| Errno::EFAULT)?;
            Ok(len as i64)
        });
        Answer::Ours(result)
    }

    fn ioctl(&mut self, call: &Notification) -> Answer {
        let [descriptor, request, argument, ..] = call.arguments;
        let open =
            process::identify(call.tid, descriptor as i32).ok().and_then(|id| self.opens.get(id));
        let Some(open) = open else { return Answer::Kernel };
        if request as u32 != VERBS {
            return Errno::ENOTTY.into();
        }
        let result = self.caller(call).and_then(|caller| {
            let mut words = read_request(Self::thread(call), argument)?;
            if !self.listener.is_waiting(call.id) {
                return Err(Errno::EINTR);
            }
            let before = words.clone();
            let client: Arc<dyn crate::uverbs::Client> = Arc::new(caller);
            let result = open.file.ioctl(&client, &mut words);
            if self.printing {
                let name = ioctl_name(&before);
                eprintln!("{}", trace::ioctl(call.tid, open.number, &name, &result));
            }
            for (index, (old, new)) in before.iter().zip(&words).enumerate() {
                if old != new {
                    let at = argument.wrapping_add(8 * index as u64);
                    client.write(at, &new.to_ne_bytes())?;
                }
            }
            result
        });
        Answer::Ours(result.map(|()| 0))
    }
}

/// The header and the attributes of an ioctl, copied once.
fn read_request(thread: Pid, address: u64) -> Result<Vec<u64>, Errno> {
    let mut header = [0; HEADER];
    process::read(thread, address, &mut header).map_err(|_| Errno::EFAULT)?;
    let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
    if length as u64 > PAGE || length < HEADER || !length.is_multiple_of(8) {
        return Err(Errno::EINVAL);
    }
    let mut bytes = vec![0; length];
    bytes[..HEADER].copy_from_slice(&header);
    let rest = &mut bytes[HEADER..];
    if !rest.is_empty() {
        process::read(thread, address.wrapping_add(HEADER as u64), rest)
            .map_err(|_| Errno::EFAULT)?;
    }
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
    Ok(bytes.chunks_exact(8).map(word).collect())
}
