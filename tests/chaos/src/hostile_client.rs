//! A hostile client: several threads make a driver's calls with something wrong in them, and calls
//! that no driver makes, while another thread changes the memory that the calls point to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::errno::Errno;
use verbless_command::Device;
use verbless_conformance::{Endpoint, Stop};
use verbless_devx::Backend;
use verbless_devx::abi::request::{ATTRIBUTE_WORDS, HEADER_WORDS, RDMA_VERBS_IOCTL};
use verbless_queue::QpConfig;

use crate::message::{Inbox, Message, send};
use crate::random::Random;
use crate::raw::{self, Arena, End, PAGE, Window, plain};
use crate::recording::{Recorder, Request};
use crate::roles::Role;

/// Threads that make calls.
const THREADS: u64 = 3;
/// Calls of a thread between two reports.
const CALLS_PER_REPORT: u64 = 500;
/// The most devices that a thread holds open.
const MAX_OPEN: usize = 40;
/// Range of the offsets at which a device is mapped.
const SPAN: u64 = 1 << 36;
/// Descriptors that are closed, duplicated and queried whatever their owner: the range of the
/// devices' descriptors.
const DESCRIPTORS: std::ops::Range<u64> = 950..1030;

/// Open flags that change the file.
const CHANGING: u64 =
    (libc::O_CREAT | libc::O_TRUNC | libc::O_TMPFILE | libc::O_WRONLY | libc::O_RDWR) as u64;
/// Words in read-only memory: flags, modes and rules for `openat2`, all without effect on files.
const OPEN_HOW_WORDS: [u64; 9] = [
    0,
    0,
    0,
    libc::O_PATH as u64,
    0,
    libc::RESOLVE_BENEATH,
    libc::O_DIRECTORY as u64,
    0o600,
    libc::RESOLVE_IN_ROOT,
];

const PATHS: &[&str] = &[
    "/dev/infiniband/uverbs0",
    "/dev/infiniband/uverbs1",
    "/dev/infiniband/uverbs99",
    "/dev/infiniband/../infiniband/./uverbs0",
    "/dev/infiniband/uverbs0/x",
    "/dev/infiniband",
    "/dev/infiniband/",
    "/dev/infiniband/rdma_cm",
    "/sys/class/infiniband/mlx5_0/ports/1/gids/0",
    "/sys/class/infiniband/mlx5_0/device",
    "/sys/class/infiniband/mlx5_0",
    "/sys/class/infiniband/../../../../etc/passwd",
    "/sys/class/infiniband_verbs/abi_version",
    "/sys/devices/pcifb0b:00",
    "/sys/bus/pci/devices/fb0b:00:01.0",
    "infiniband",
    "../dev/infiniband/uverbs0",
    "uverbs0",
    "",
    "/",
    "/dev/null",
];

/// State shared by the threads.
struct Common {
    arena: Arena,
    requests: Vec<Request>,
    device: String,
    calls: AtomicU64,
    over: AtomicBool,
}

/// One thread of the client.
struct Caller {
    common: Arc<Common>,
    random: Random,
    devices: Vec<u64>,
    windows: Vec<Window>,
    /// Descriptors that are not devices: both ends of a pipe, and a directory.
    others: Vec<u64>,
}

/// Runs until the controlling process asks it to end.
pub(crate) fn run(name: &str, inbox: &Inbox, seed: u64) -> Result<(), Stop> {
    raw::ignore_children();
    let recorder = Recorder::new();
    let infos = recorder.enumerate()?;
    let info = infos.iter().find(|info| info.name == name);
    let device = Device::open(&recorder, info.ok_or_else(|| Stop::fail("no device"))?)?;
    let mut first = Endpoint::new(device.clone(), &QpConfig::new(8, 8), 8 << 10)?;
    let itself = first.domain.address(&first.qp, &Default::default())?;
    first.domain.connect(&mut first.qp, &itself, &Default::default())?;
    drop(Endpoint::new(device.clone(), &QpConfig::new(8, 8), 8 << 10)?);
    let requests = recorder.requests.lock().map(|requests| requests.clone()).unwrap_or_default();
    let common = Arc::new(Common {
        arena: Arena::with(&OPEN_HOW_WORDS)?,
        requests,
        device: format!("/dev/infiniband/{}", info.map_or("", |info| &info.node)),
        calls: AtomicU64::new(0),
        over: AtomicBool::new(false),
    });
    let mut random = Random::new(seed);
    let mut clients = Vec::new();
    for _ in 0..THREADS {
        clients.push(Caller::new(common.clone(), Random::new(random.next()))?);
    }
    let call = |mut client: Caller| std::thread::spawn(move || client.run());
    let mut threads: Vec<_> = clients.into_iter().map(call).collect();
    let (shared, own) = (common.clone(), Random::new(random.next()));
    threads.push(std::thread::spawn(move || write_random_words(&shared, own)));
    let exec = random.below(4) == 0;
    if exec {
        std::thread::sleep(std::time::Duration::from_millis(100 + random.below(300)));
        // The other threads are in the middle of calls.
        return Err(crate::programs::exec_role(Role::Hostile, name, random.next()).into());
    }
    while inbox.wait().is_some() {}
    common.over.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| drop(thread.join()));
    // Its driver's objects may be gone, so destructors would fail.
    std::process::exit(0)
}

/// Changes memory all the time: mostly the beginning of a request.
fn write_random_words(common: &Common, mut random: Random) {
    while !common.over.load(Ordering::Relaxed) {
        for _ in 0..64 {
            let offset = random.below(common.arena.len());
            let old = common.arena.get(offset);
            let new = match random.below(4) {
                0 => random.next(),
                1 => old ^ 1 << random.below(64),
                2 => common.arena.get(random.below(common.arena.len())),
                _ => old,
            };
            common.arena.put(offset, new);
        }
        std::thread::sleep(std::time::Duration::from_micros(50));
    }
}

impl Caller {
    fn new(common: Arc<Common>, random: Random) -> Result<Self, Stop> {
        let mut others = Vec::new();
        for path in ["/dev/null", "/sys/class/infiniband", "/"] {
            common.arena.fill(0, format!("{path}\0").as_bytes());
            others.push(raw::call(plain::OPEN, [common.arena.at(0), 0, 0, 0, 0, 0])?);
        }
        // No value with a lower half of 0, 1 or 2: these descriptors carry messages.
        others.extend([u64::MAX, 0xffff_ffff, 123_456, 1 << 40 | 123_456]);
        Ok(Self { common, random, devices: Vec::new(), windows: Vec::new(), others })
    }

    fn run(&mut self) {
        let mut calls = 0;
        while !self.common.over.load(Ordering::Relaxed) {
            match self.random.below(100) {
                0..50 => self.send_changed_request(),
                50..55 => self.send_random_request(),
                55..75 => self.path(),
                75..81 => self.open(),
                81..88 => self.doorbells(),
                88..96 => self.descriptors(),
                96..98 => self.child(),
                _ => self.thread(),
            }
            calls += 1;
            if calls % CALLS_PER_REPORT == 0 {
                let all = self.common.calls.fetch_add(CALLS_PER_REPORT, Ordering::Relaxed)
                    + CALLS_PER_REPORT;
                if send(Message::Rounds(all)).is_err() {
                    return;
                }
            }
        }
    }

    fn call(&self, number: libc::c_long, arguments: &[u64]) -> Result<u64, Errno> {
        let mut all = [0; 6];
        all[..arguments.len()].copy_from_slice(arguments);
        raw::call(number, all)
    }

    /// An address: mostly of mapped memory.
    fn address(&mut self) -> u64 {
        let arena = self.common.arena;
        match self.random.below(16) {
            0 => self.random.one_of(&[
                0,
                1,
                8,
                PAGE,
                1 << 47,
                (1 << 47) - PAGE,
                1 << 63,
                u64::MAX,
                u64::MAX - 7,
            ]),
            1 => arena.unmapped() - self.random.below(64),
            2 => arena.read_only() + self.random.below(PAGE),
            3 => arena.read_only() - self.random.below(64),
            4 => arena.unmapped() + self.random.below(PAGE),
            5 => arena.at(self.random.next()),
            _ => arena.at(self.random.next() & !7),
        }
    }

    fn device(&mut self) -> u64 {
        match self.random.below(12) {
            0 => self.random.one_of(&self.others),
            1 => DESCRIPTORS.start + self.random.below(DESCRIPTORS.end - DESCRIPTORS.start),
            _ if self.devices.is_empty() => DESCRIPTORS.start + 10,
            _ => self.random.one_of(&self.devices),
        }
    }

    /// A recorded request with a few words changed.
    fn send_changed_request(&mut self) {
        let common = self.common.clone();
        let request = &common.requests[self.random.below(common.requests.len() as u64) as usize];
        let mut words = request.words.clone();
        // Addresses of the request itself and of its payloads: ranges of the arena, which may
        // overlap.
        let at = self.random.below(30) * PAGE;
        for (index, input) in request.inputs.iter().enumerate() {
            let data = HEADER_WORDS + ATTRIBUTE_WORDS * index + 1;
            if !input.is_empty() || words[data] >> 32 != 0 {
                let offset = self.random.below(30) * PAGE + 8 * index as u64;
                common.arena.fill(offset, input);
                words[data] = common.arena.at(offset);
            }
        }
        for _ in 0..self.random.below(4) {
            let index = self.random.below(words.len() as u64) as usize;
            words[index] = match self.random.below(6) {
                0 => words[index] ^ 1 << self.random.below(64),
                1 => words[index] ^ self.random.below(1 << 16) << (16 * self.random.below(4)),
                2 => self.address(),
                3 => self.random.below(64),
                4 => self.device(),
                _ => words[self.random.below(words.len() as u64) as usize],
            };
        }
        for (index, word) in words.iter().enumerate() {
            common.arena.put(at + 8 * index as u64, *word);
        }
        let descriptor = self.device();
        let at = common.arena.at(at);
        let _ = self.call(libc::SYS_ioctl, &[descriptor, RDMA_VERBS_IOCTL.into(), at]);
    }

    /// Any bytes of the arena as a request, or an unknown request code.
    fn send_random_request(&mut self) {
        let request = match self.random.below(3) {
            0 => RDMA_VERBS_IOCTL.into(),
            1 => 0x1b00 | self.random.below(256),
            _ => self.random.next() & !0xff00 | 0x1b00,
        };
        let (descriptor, address) = (self.device(), self.address());
        let _ = self.call(libc::SYS_ioctl, &[descriptor, request, address]);
    }

    /// The address of a path: one of a list, the device's, or one that ends at the end of memory.
    fn some_path(&mut self) -> u64 {
        let arena = self.common.arena;
        let path = self.random.one_of(PATHS);
        match self.random.below(8) {
            0 => self.address(),
            1 => {
                // Without a terminator.
                let offset = arena.len() - (path.len() as u64).next_multiple_of(8);
                arena.fill(offset, path.as_bytes());
                arena.at(offset)
            }
            _ => {
                let offset = self.random.below(arena.len() - PAGE) & !7;
                arena.fill(offset, format!("{path}\0").as_bytes());
                arena.at(offset)
            }
        }
    }

    /// The address of flags for `openat2`, in constant memory; or 0.
    fn how(&mut self) -> u64 {
        let arena = self.common.arena;
        match self.random.below(4) {
            0 => self.random.one_of(&[0, arena.unmapped(), arena.unmapped() - 8, u64::MAX - 7]),
            _ => arena.read_only() + 24 * self.random.below(PAGE / 24),
        }
    }

    fn directory(&mut self) -> u64 {
        match self.random.below(3) {
            0 => libc::AT_FDCWD as u64,
            1 => self.random.one_of(&self.others),
            _ => self.device(),
        }
    }

    /// A call that takes a path or a descriptor.
    fn path(&mut self) {
        let (directory, path, to) = (self.directory(), self.some_path(), self.address());
        let (flags, more) = (self.random.next() & self.random.next(), self.random.next());
        let room = self.random.one_of(&[0, 1, 16, 4096, u64::MAX, 1 << 31]);
        let empty = self.random.one_of(&[0, 0, libc::AT_EMPTY_PATH as u64, flags & 0xffff]);
        let _ = match self.random.below(12) {
            0 => self.call(plain::STAT, &[path, to]),
            1 => self.call(plain::LSTAT, &[path, to]),
            2 => self.call(libc::SYS_newfstatat, &[directory, path, to, empty]),
            3 => self.call(libc::SYS_statx, &[directory, path, empty, more, to]),
            4 => self.call(plain::ACCESS, &[path, flags]),
            5 => self.call(libc::SYS_faccessat2, &[directory, path, flags, empty]),
            6 => self.call(plain::READLINK, &[path, to, room]),
            7 => self.call(libc::SYS_readlinkat, &[directory, path, to, room]),
            8 => self.call(libc::SYS_getxattr, &[path, to, to, room]),
            9 => self.call(libc::SYS_listxattr, &[path, to, room]),
            10 => self.call(libc::SYS_fstat, &[directory, to]),
            _ => {
                // The path may change meanwhile into that of a user's file: no call may create or
                // empty one.
                let flags = flags & !CHANGING | libc::O_CLOEXEC as u64;
                let how = self.how();
                let size = self.random.one_of(&[24, 24, 24, room]);
                let opened = match self.random.below(2) {
                    0 => self.call(libc::SYS_openat, &[directory, path, flags, 0]),
                    _ => self.call(libc::SYS_openat2, &[directory, path, how, size]),
                };
                opened.and_then(|descriptor| self.call(libc::SYS_close, &[descriptor]))
            }
        };
    }

    /// Opens a device or closes one.
    fn open(&mut self) {
        if self.devices.len() < MAX_OPEN && self.random.below(3) > 0 {
            let (arena, offset) =
                (self.common.arena, self.random.below(self.common.arena.len()) & !7);
            arena.fill(offset, format!("{}\0", self.common.device).as_bytes());
            let flags = self.random.one_of(&[libc::O_RDWR, libc::O_RDWR | libc::O_CLOEXEC]);
            if let Ok(device) = self.call(plain::OPEN, &[arena.at(offset), flags as u64]) {
                self.devices.push(device);
                self.context(device);
            }
        } else if !self.devices.is_empty() {
            let index = self.random.below(self.devices.len() as u64) as usize;
            let device = self.devices.swap_remove(index);
            let _ = self.call(libc::SYS_close, &[device]);
        }
    }

    /// Replays the first requests of the driver on a device, so that later calls get past the first
    /// checks.
    fn context(&mut self, device: u64) {
        let common = self.common.clone();
        let arena = common.arena;
        for request in common.requests.iter().take(1 + self.random.below(12) as usize) {
            let mut words = request.words.clone();
            for (index, input) in request.inputs.iter().enumerate() {
                let data = HEADER_WORDS + ATTRIBUTE_WORDS * index + 1;
                if !input.is_empty() || words[data] >> 32 != 0 {
                    let offset = (1 + index as u64) * PAGE;
                    arena.fill(offset, input);
                    words[data] = arena.at(offset);
                }
            }
            words.iter().enumerate().for_each(|(index, word)| arena.put(8 * index as u64, *word));
            let _ = self.call(libc::SYS_ioctl, &[device, RDMA_VERBS_IOCTL.into(), arena.at(0)]);
        }
    }

    /// Maps pages of a device at valid and invalid offsets, and writes any words to them.
    fn doorbells(&mut self) {
        if self.windows.len() > 16 {
            let index = self.random.below(self.windows.len() as u64) as usize;
            drop(self.windows.swap_remove(index));
        }
        let device = self.device();
        let offset = match self.random.below(3) {
            0 => self.random.below(64) * PAGE,
            1 => self.random.below(64) << 12 | self.random.below(16) << 20,
            _ => self.random.below(SPAN) & !(PAGE - 1),
        };
        if self.devices.contains(&device)
            && let Ok(window) = Window::new(device, offset)
        {
            self.windows.push(window);
        }
        for window in &self.windows {
            for _ in 0..self.random.below(8) {
                let (at, word) = (self.random.next(), self.random.next() & self.random.next());
                window.store(at, word, self.random.below(2) == 0);
            }
        }
    }

    /// Other operations on a descriptor.
    fn descriptors(&mut self) {
        let (one, other) = (self.device(), DESCRIPTORS.start + self.random.below(80));
        let (address, size) = (self.address(), self.random.below(1 << 37));
        let _ = match self.random.below(10) {
            0 => {
                let copy = self.call(libc::SYS_dup, &[one]);
                self.devices.extend(copy);
                copy
            }
            1 => self.call(plain::DUP2, &[one, other]),
            2 => self.call(libc::SYS_dup3, &[one, other, libc::O_CLOEXEC as u64]),
            3 => self.call(libc::SYS_close, &[other]),
            4 => self.call(libc::SYS_ftruncate, &[one, size]),
            5 => self.call(libc::SYS_pwrite64, &[one, address, 64, size]),
            6 => self.call(libc::SYS_pread64, &[one, address, 64, size]),
            7 => {
                let punch = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u64;
                self.call(libc::SYS_fallocate, &[one, punch, size & !(PAGE - 1), PAGE])
            }
            8 => self.call(libc::SYS_fcntl, &[one, libc::F_ADD_SEALS as u64, size & 0xff]),
            _ => self.call(libc::SYS_fcntl, &[one, libc::F_SETFD as u64, size & 1]),
        };
        if self.devices.len() > MAX_OPEN {
            let device = self.devices.swap_remove(0);
            let _ = self.call(libc::SYS_close, &[device]);
        }
    }

    /// A child that uses the descriptors of its parent, and exits, execs or is killed.
    fn child(&mut self) {
        let calls: Vec<_> = (0..8)
            .map(|_| {
                let (device, address, path) = (self.device(), self.address(), self.some_path());
                match self.random.below(4) {
                    0 => (plain::STAT, [path, address, 0, 0, 0, 0]),
                    1 => (libc::SYS_close, [device.max(3), 0, 0, 0, 0, 0]),
                    2 => (plain::OPEN, [path, libc::O_CLOEXEC as u64, 0, 0, 0, 0]),
                    _ => (libc::SYS_ioctl, [device, RDMA_VERBS_IOCTL.into(), address, 0, 0, 0]),
                }
            })
            .collect();
        let end = self.random.one_of(&[End::Exit, End::Kill, End::Exec]);
        raw::fork(&calls, end);
    }

    /// A thread that makes two calls and ends.
    fn thread(&mut self) {
        let (device, address, path) = (self.device(), self.address(), self.some_path());
        // There may be too many threads already.
        let _ = std::thread::Builder::new().spawn(move || {
            let _ = raw::call(libc::SYS_ioctl, [device, RDMA_VERBS_IOCTL.into(), address, 0, 0, 0]);
            let _ = raw::call(plain::STAT, [path, address, 0, 0, 0, 0]);
        });
    }
}
