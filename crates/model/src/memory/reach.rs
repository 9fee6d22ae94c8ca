//! Ways to the memory of another process.
//!
//! `process_vm_readv` and `process_vm_writev` reach whatever program the process runs at that
//! moment. While it may be about to run another (`execve`), its memory is reached through a file of
//! it, `/proc/PID/mem`: that is the memory that the process had when the file was opened, whatever
//! it runs since, and none once nobody has that memory any more. The file moves a page at a time
//! and copies twice, so it is not for every day.

use std::fs::{self, File};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;

/// A way to the memory of another process.
#[derive(Debug, Clone)]
pub enum Reach {
    /// The memory of the program that this process currently runs.
    Process(Pid),
    /// The memory of the program that the process ran when the file was opened.
    Program(Arc<File>),
}

impl Reach {
    /// Reads stretches, one after another; gives how many bytes came before the first that is not
    /// there.
    ///
    /// # Errors
    /// ESRCH: there is no such memory any more. EFAULT: nothing is at the first address.
    pub fn read(&self, into: &mut [u8], from: &[RemoteIoVec]) -> Result<usize, Errno> {
        match self {
            &Self::Process(pid) => by_a_thread(pid, |thread| {
                process_vm_readv(thread, &mut [IoSliceMut::new(into)], from)
            }),
            Self::Program(file) => {
                each(from, into.len(), |part, address| file.read_at(&mut into[part], address))
            }
        }
    }

    /// Writes stretches, as [`read`](Self::read) reads them.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write(&self, from: &[u8], to: &[RemoteIoVec]) -> Result<usize, Errno> {
        match self {
            &Self::Process(pid) => {
                by_a_thread(pid, |thread| process_vm_writev(thread, &[IoSlice::new(from)], to))
            }
            Self::Program(file) => {
                each(to, from.len(), |part, address| file.write_at(&from[part], address))
            }
        }
    }

    /// Whether the memory no longer exists.
    pub fn is_gone(&self) -> bool {
        // An address that nobody has: what fails otherwise says that there is a memory.
        self.read(&mut [0], &[RemoteIoVec { base: 0, len: 1 }]) == Err(Errno::ESRCH)
    }
}

/// How often a word is read anew that changes while it is read.
const TRIES: usize = 64;

/// The aligned 64-bit word at an address: read twice until both agree, as the system may copy it
/// byte by byte. Nothing if there is none.
pub(super) fn settled_word(reach: &Reach, base: usize) -> Option<u64> {
    let mut words = [0u8; 16];
    for _ in 0..TRIES {
        let remote = RemoteIoVec { base, len: 8 };
        if reach.read(&mut words, &[remote, remote]) != Ok(16) {
            return None;
        }
        let (first, second) = words.split_at(8);
        if first == second {
            break;
        }
    }
    words.first_chunk().map(|word| u64::from_ne_bytes(*word))
}

/// Goes by the first thread of a process, which has the process's number, or by another when that
/// one has ended.
fn by_a_thread(pid: Pid, mut go: impl FnMut(Pid) -> Result<usize, Errno>) -> Result<usize, Errno> {
    let first = go(pid);
    if first != Err(Errno::ESRCH) {
        return first;
    }
    let others = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    others
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .map(|thread| go(Pid::from_raw(thread)))
        .find(|result| *result != Err(Errno::ESRCH))
        .unwrap_or(Err(Errno::ESRCH))
}

/// Moves stretches by `go`, which takes a part of the near bytes and an address, until one is not
/// moved whole.
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
    use std::io::{Read as _, Write as _};
    use std::process::{Command, Stdio};
    use std::sync::atomic::AtomicU8;

    /// This process, in both ways.
    fn ways() -> [Reach; 2] {
        let file = File::options().read(true).write(true).open("/proc/self/mem");
        [Reach::Process(Pid::this()), Reach::Program(Arc::new(file.expect("our own memory")))]
    }

    #[test]
    fn either_way_moves_stretches_up_to_the_first_that_is_not_there() {
        let source = [1u8, 2, 3, 4, 5, 6, 7, 8];
        for reach in ways() {
            let at =
                |index: usize, len| RemoteIoVec { base: source.as_ptr() as usize + index, len };
            let nothing = RemoteIoVec { base: 64, len: 2 };
            let mut back = [0; 6];
            assert_eq!(reach.read(&mut back, &[at(6, 2), at(0, 4)]), Ok(6));
            assert_eq!(back, [7, 8, 1, 2, 3, 4]);
            assert_eq!(reach.read(&mut back[..4], &[at(0, 2), nothing]), Ok(2));
            assert_eq!(reach.read(&mut back[..2], &[nothing]), Err(Errno::EFAULT));
            assert_eq!(reach.write(&[0; 2], &[nothing]), Err(Errno::EFAULT));
            let target: [AtomicU8; 4] = Default::default();
            let to = |index: usize| RemoteIoVec { base: target[index..].as_ptr() as usize, len: 2 };
            assert_eq!(reach.write(&[1, 2, 3, 4], &[to(2), to(0)]), Ok(4));
            assert_eq!(target.map(AtomicU8::into_inner), [3, 4, 1, 2]);
            assert!(!reach.is_gone());
        }
    }

    #[test]
    fn a_process_has_its_memory_for_as_long_as_any_thread_of_it_lives() {
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
                let line = format!("skipped: memory::reach: python3: {error}\n");
                return std::io::stderr().write_all(line.as_bytes()).expect("it is open");
            }
        };
        let mut line = String::new();
        let mut output = std::io::BufReader::new(child.stdout.take().expect("piped"));
        std::io::BufRead::read_line(&mut output, &mut line).expect("a line");
        let base = line.trim().parse().expect("an address");
        let input = child.stdin.take().expect("piped");
        let pid = Pid::from_raw(child.id() as i32);
        let first_has_ended = || {
            fs::read_to_string(format!("/proc/{pid}/task/{pid}/stat"))
                .is_ok_and(|stat| stat.contains(") Z"))
        };
        (&input).write_all(b"\n").expect("it reads");
        let patience = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !first_has_ended() && std::time::Instant::now() < patience {
            std::thread::yield_now();
        }
        assert!(first_has_ended());
        let mut back = [0; 4];
        let process = Reach::Process(pid);
        assert_eq!(process.read(&mut back, &[RemoteIoVec { base, len: 4 }]), Ok(4));
        assert_eq!(&back, b"seen");
        assert!(!process.is_gone());
        child.kill().expect("it is there");
        child.wait().expect("it ends");
        assert!(process.is_gone());
    }

    #[test]
    fn the_memory_of_a_program_goes_with_it_and_not_with_its_process() {
        let mut child = Command::new("sh")
            .args(["-c", "read line; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let mem = format!("/proc/{}/mem", child.id());
        let file = File::options().read(true).write(true).open(mem).expect("our child's memory");
        let program = Reach::Program(Arc::new(file));
        let process = Reach::Process(Pid::from_raw(child.id() as i32));
        assert!(!program.is_gone());
        let mut input = child.stdin.take().expect("piped");
        input.write_all(b"\nanswer").expect("it reads");
        let mut answer = [0; 6];
        child.stdout.take().expect("piped").read_exact(&mut answer).expect("the next program");
        assert!(program.is_gone() && !process.is_gone());
        drop(input);
        child.wait().expect("it ends");
        assert!(process.is_gone());
    }
}
