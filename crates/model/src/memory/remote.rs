//! Access to the memory of another process, by number or by file.
//!
//! `process_vm_readv` and `process_vm_writev` move many stretches at once, but identify a process
//! by its number, which another process may get once the first has ended and was waited for. A file
//! `/proc/PID/mem` refers to the memory that the process had when the file was opened, even after
//! `execve`, and to nothing once that memory is freed. The file moves a page at a time and copies
//! twice: it is faster for one stretch of a page, and slower for more.
//!
//! A client is accessed by its file where that is as fast, and by its number only while its pidfd
//! shows that it has not ended. The check comes after a read, so that the bytes are the client's,
//! and right before a write, which cannot be undone. One race remains: a process ends, is waited
//! for, and gives its number to a new one between the check and the start of the write.
//!
//! A call by number obeys the page protection that a program has set (`mprotect`); a card that has
//! the pages pinned does not. So the bytes that such a call skips are moved through the file, which
//! obeys the protection only for shared pages that are not writable.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;

use super::own;

/// Maximum bytes that one access through a file moves as fast as one by number.
const PAGE: usize = 4096;

/// An access path to the memory of another process.
#[derive(Debug, Clone)]
pub enum RemoteMemory {
    /// The memory of the program that this process or thread currently runs. The caller knows that
    /// the number is still that of this process.
    Process(Pid),
    /// The memory of a process until it ends, or runs another program.
    Client(Arc<RemoteClient>),
    /// The memory of the program that the process ran when the file was opened.
    Program(Arc<File>),
}

/// The process of [`RemoteMemory::Client`].
#[derive(Debug)]
pub struct RemoteClient {
    /// Its number.
    pub pid: Pid,
    /// Readable once it has ended.
    pub pidfd: OwnedFd,
    /// Its `/proc/PID/mem`.
    pub memory: Arc<File>,
}

impl RemoteClient {
    /// Whether the process has ended, so that another one may have its number.
    pub fn has_ended(&self) -> bool {
        let mut waiting = [PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN)];
        loop {
            match poll(&mut waiting, PollTimeout::ZERO) {
                // A signal handler ran.
                Err(Errno::EINTR) => {}
                polled => return !matches!(polled, Ok(0)),
            }
        }
    }
}

/// Whether `/proc/PID/mem` copies these stretches as fast as `process_vm_readv` does.
fn is_fast_by_file(stretches: &[RemoteIoVec]) -> bool {
    matches!(stretches, [one] if one.len <= PAGE)
}

fn read_file(file: &File, into: &mut [u8], from: &[RemoteIoVec]) -> Result<usize, Errno> {
    each(from, into.len(), |part, address| file.read_at(&mut into[part], address))
}

fn write_file(file: &File, from: &[u8], to: &[RemoteIoVec]) -> Result<usize, Errno> {
    each(to, from.len(), |part, address| file.write_at(&from[part], address))
}

fn read_number(pid: Pid, into: &mut [u8], from: &[RemoteIoVec]) -> Result<usize, Errno> {
    match process_vm_readv(pid, &mut [IoSliceMut::new(into)], from) {
        Err(Errno::ENOSYS) if pid == Pid::this() => own::read(into, from),
        read => read,
    }
}

fn write_number(pid: Pid, from: &[u8], to: &[RemoteIoVec]) -> Result<usize, Errno> {
    match process_vm_writev(pid, &[IoSlice::new(from)], to) {
        Err(Errno::ENOSYS) if pid == Pid::this() => own::write(from, to),
        written => written,
    }
}

/// Moves the rest of `length` bytes after a call by number through a file, by `go`: from the byte
/// where the call stopped, or all if the first thread has ended and others have not. `go` takes the
/// count of moved bytes, and the stretches after them.
fn finish(
    moved: Result<usize, Errno>,
    length: usize,
    stretches: &[RemoteIoVec],
    go: impl FnOnce(usize, &[RemoteIoVec]) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let done = match moved {
        Ok(done) if done >= length => return Ok(done),
        Ok(done) => done,
        Err(Errno::EFAULT | Errno::ESRCH) => 0,
        Err(other) => return Err(other),
    };
    match go(done, &skip_bytes(stretches, done)) {
        Err(_) if done > 0 => Ok(done),
        more => more.map(|more| done + more),
    }
}

/// The stretches without their first `done` bytes.
#[cold]
fn skip_bytes(stretches: &[RemoteIoVec], mut done: usize) -> Vec<RemoteIoVec> {
    let mut rest = stretches.to_vec();
    rest.retain_mut(|stretch| {
        let skip = done.min(stretch.len);
        done -= skip;
        stretch.base += skip;
        stretch.len -= skip;
        stretch.len > 0
    });
    rest
}

impl RemoteMemory {
    /// Reads stretches in order; returns the number of bytes before the first unmapped one.
    ///
    /// # Errors
    /// ESRCH: the memory no longer exists. EFAULT: the first address is not mapped.
    pub fn read(&self, into: &mut [u8], from: &[RemoteIoVec]) -> Result<usize, Errno> {
        match self {
            &Self::Process(pid) => read_number(pid, into, from),
            Self::Program(file) => read_file(file, into, from),
            Self::Client(client) if is_fast_by_file(from) => read_file(&client.memory, into, from),
            Self::Client(client) => {
                let read = read_number(client.pid, into, from);
                if client.has_ended() {
                    // The bytes may be another process's.
                    into.fill(0);
                    return Err(Errno::ESRCH);
                }
                finish(read, into.len(), from, |done, rest| {
                    read_file(&client.memory, &mut into[done..], rest)
                })
            }
        }
    }

    /// Writes stretches, as [`read`](Self::read) reads them.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write(&self, from: &[u8], to: &[RemoteIoVec]) -> Result<usize, Errno> {
        match self {
            &Self::Process(pid) => write_number(pid, from, to),
            Self::Program(file) => write_file(file, from, to),
            Self::Client(client) if is_fast_by_file(to) => write_file(&client.memory, from, to),
            Self::Client(client) if client.has_ended() => Err(Errno::ESRCH),
            Self::Client(client) => {
                finish(write_number(client.pid, from, to), from.len(), to, |done, rest| {
                    write_file(&client.memory, &from[done..], rest)
                })
            }
        }
    }

    /// Whether the memory no longer exists.
    pub fn is_gone(&self) -> bool {
        // Address 0 is never mapped: an error other than ESRCH shows that the memory exists.
        self.read(&mut [0], &[RemoteIoVec { base: 0, len: 1 }]) == Err(Errno::ESRCH)
    }
}

/// Maximum number of reads of a word that changes while it is read.
const MAX_READS: usize = 64;

/// The aligned 64-bit word at an address: read twice until both agree, as the system may copy it
/// byte by byte. `None` if it is not mapped.
pub(super) fn settled_word(access: &RemoteMemory, base: usize) -> Option<u64> {
    let mut words = [0u8; 16];
    for _ in 0..MAX_READS {
        let remote = RemoteIoVec { base, len: 8 };
        if access.read(&mut words, &[remote, remote]) != Ok(16) {
            return None;
        }
        let (first, second) = words.split_at(8);
        if first == second {
            break;
        }
    }
    words.first_chunk().map(|word| u64::from_ne_bytes(*word))
}

/// Moves stretches by `go`, which takes a range of the local bytes and an address, until one is
/// moved incompletely.
fn each(
    stretches: &[RemoteIoVec],
    room: usize,
    mut go: impl FnMut(std::ops::Range<usize>, u64) -> io::Result<usize>,
) -> Result<usize, Errno> {
    let mut done = 0;
    for stretch in stretches {
        let end = room.min(done + stretch.len);
        let start = done;
        while done < end {
            match go(done..end, (stretch.base + (done - start)) as u64) {
                Ok(0) if done == 0 => return Err(Errno::ESRCH),
                Err(_) if done == 0 => return Err(Errno::EFAULT),
                Ok(0) | Err(_) => return Ok(done),
                Ok(moved) => done += moved,
            }
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::{Read as _, Write as _};
    use std::process::{Command, Stdio};
    use std::sync::atomic::AtomicU8;

    /// The file of a process's memory.
    fn memory(pid: Pid) -> Arc<File> {
        let file = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"));
        Arc::new(file.expect("ours or our child's"))
    }

    /// A process as a client that has ended once the second result is dropped.
    fn client(pid: Pid, memory: Arc<File>) -> (RemoteMemory, io::PipeWriter) {
        let (ends, lives) = io::pipe().expect("a pipe");
        let client = RemoteClient { pid, pidfd: ends.into(), memory };
        (RemoteMemory::Client(Arc::new(client)), lives)
    }

    /// This process, by each access path.
    fn access_paths() -> ([RemoteMemory; 3], io::PipeWriter) {
        let own = Pid::this();
        let (client, lives) = client(own, memory(own));
        ([RemoteMemory::Process(own), client, RemoteMemory::Program(memory(own))], lives)
    }

    #[test]
    fn every_access_path_stops_at_first_missing_stretch() {
        let source = [1u8, 2, 3, 4, 5, 6, 7, 8];
        let (access_paths, _lives) = access_paths();
        for access in access_paths {
            let at =
                |index: usize, len| RemoteIoVec { base: source.as_ptr() as usize + index, len };
            let unmapped = RemoteIoVec { base: 64, len: 2 };
            let mut back = [0; 6];
            assert_eq!(access.read(&mut back, &[at(6, 2), at(0, 4)]), Ok(6));
            assert_eq!(back, [7, 8, 1, 2, 3, 4]);
            assert_eq!(access.read(&mut back[..4], &[at(0, 2), unmapped]), Ok(2));
            assert_eq!(access.read(&mut back[..2], &[unmapped]), Err(Errno::EFAULT));
            assert_eq!(access.write(&[0; 2], &[unmapped]), Err(Errno::EFAULT));
            let target: [AtomicU8; 4] = Default::default();
            let to = |index: usize| RemoteIoVec { base: target[index..].as_ptr() as usize, len: 2 };
            assert_eq!(access.write(&[1, 2, 3, 4], &[to(2), to(0)]), Ok(4));
            assert_eq!(target.map(AtomicU8::into_inner), [3, 4, 1, 2]);
            assert!(!access.is_gone());
        }
    }

    #[test]
    fn process_memory_lasts_until_its_last_thread_ends() {
        let python = "import ctypes, threading, time, sys\n\
            text = ctypes.create_string_buffer(b'seen')\n\
            print(ctypes.addressof(text), flush=True)\n\
            threading.Thread(target=time.sleep, args=(60,)).start()\n\
            sys.stdin.readline()\n\
            ctypes.CDLL(None).syscall(60 if sys.argv[1] == 'x86_64' else 93, 0)\n";
        let child = Command::new("python3")
            .args(["-c", python, std::env::consts::ARCH])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(error) => {
                let line = format!("skipped: memory::remote: python3: {error}\n");
                return std::io::stderr().write_all(line.as_bytes()).expect("stderr is open");
            }
        };
        let mut line = String::new();
        let mut output = std::io::BufReader::new(child.stdout.take().expect("piped"));
        std::io::BufRead::read_line(&mut output, &mut line).expect("a line");
        let base = line.trim().parse().expect("an address");
        let input = child.stdin.take().expect("piped");
        let pid = Pid::from_raw(child.id() as i32);
        let (process, _lives) = client(pid, memory(pid));
        let first_has_ended = || {
            fs::read_to_string(format!("/proc/{pid}/task/{pid}/stat"))
                .is_ok_and(|stat| stat.contains(") Z"))
        };
        (&input).write_all(b"\n").expect("the child reads");
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !first_has_ended() && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert!(first_has_ended());
        let stretch = |len| RemoteIoVec { base, len };
        for stretches in [vec![stretch(4)], vec![stretch(3), stretch(1)]] {
            let mut back = [0; 4];
            assert_eq!(process.read(&mut back, &stretches), Ok(4));
            assert_eq!(back[..3], *b"see");
            assert_eq!(process.write(b"seen", &stretches[..1]), Ok(stretches[0].len));
            assert_eq!(process.write(b"seen", &stretches), Ok(4));
            assert_eq!(process.write(b"seen", &[stretch(4)]), Ok(4));
        }
        assert!(!process.is_gone());
        child.kill().expect("the process exists");
        child.wait().expect("the child ends");
        assert!(process.is_gone());
    }

    #[test]
    fn program_memory_ends_at_execve() {
        let mut child = Command::new("sh")
            .args(["-c", "read line; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let pid = Pid::from_raw(child.id() as i32);
        let (program, process) = (RemoteMemory::Program(memory(pid)), RemoteMemory::Process(pid));
        assert!(!program.is_gone());
        let mut input = child.stdin.take().expect("piped");
        input.write_all(b"\nanswer").expect("the child reads");
        let mut answer = [0; 6];
        child.stdout.take().expect("piped").read_exact(&mut answer).expect("the next program");
        assert!(program.is_gone() && !process.is_gone());
        drop(input);
        child.wait().expect("the child ends");
        assert!(process.is_gone());
    }

    #[test]
    #[allow(unsafe_code, reason = "only mprotect changes the protection of pages")]
    fn client_moves_pages_whatever_their_protection() {
        use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
        const BYTES: usize = 5 * PAGE;
        let read_write = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let length = std::num::NonZeroUsize::new(BYTES).expect("not 0");
        let (access, _lives) = client(Pid::this(), memory(Pid::this()));
        // SAFETY: the mapping is new, and only system calls access it.
        let pages = unsafe { mmap_anonymous(None, length, read_write, MapFlags::MAP_PRIVATE) };
        let pages = pages.expect("memory");
        let at = |index: usize, len| RemoteIoVec { base: pages.as_ptr() as usize + index, len };
        // The first page keeps its protection, so that a call by number stops after it.
        let all = [at(100, 2 * PAGE), at(3 * PAGE, 2 * PAGE)];
        for (fill, protection) in [(1, ProtFlags::PROT_READ), (2, ProtFlags::PROT_NONE)] {
            // SAFETY: the mapping's second page and those after it.
            unsafe { mprotect(pages.add(PAGE), BYTES - PAGE, protection) }
                .expect("the mapping is ours");
            assert_eq!(access.write(&[fill; 4 * PAGE], &all), Ok(4 * PAGE));
            let mut back = [0; 4 * PAGE];
            assert_eq!(access.read(&mut back, &all), Ok(4 * PAGE));
            assert!(back.iter().all(|&byte| byte == fill), "{protection:?}");
            let unmapped = RemoteIoVec { base: 64, len: 8 };
            let some = [at(0, PAGE), at(PAGE, 8), unmapped];
            assert_eq!(access.write(&[fill; PAGE + 16], &some), Ok(PAGE + 8));
            assert_eq!(access.write(&[fill; 8], &[at(PAGE, 4), unmapped]), Ok(4));
        }
        // SAFETY: the mapping is unused from here on.
        unsafe { munmap(pages, BYTES) }.expect("the mapping is ours");
    }

    #[test]
    fn number_of_an_ended_client_is_not_used() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("a child");
        let gone = memory(Pid::from_raw(child.id() as i32));
        child.kill().and_then(|()| child.wait()).expect("the child ends");
        // As if this process had its number.
        let (access, lives) = client(Pid::this(), gone);
        drop(lives);
        let own: [AtomicU8; 4] = [1, 2, 3, 4].map(AtomicU8::new);
        let at = |index: usize, len| RemoteIoVec { base: own[index..].as_ptr() as usize, len };
        for stretches in [vec![at(0, 4)], vec![at(0, 2), at(2, 2)]] {
            let mut back = [9; 4];
            assert_eq!(access.read(&mut back, &stretches), Err(Errno::ESRCH));
            assert!(!back.contains(&1), "{back:?}");
            assert_eq!(access.write(&[5; 4], &stretches), Err(Errno::ESRCH));
        }
        assert_eq!(own.map(AtomicU8::into_inner), [1, 2, 3, 4]);
        assert!(access.is_gone());
    }
}
