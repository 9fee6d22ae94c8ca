//! `execve` under `verbless-model run`: a device never reaches the next program of a process
//! through memory that the previous one registered.
//!
//! This test binary plays the programs: a peer, and a process that execs one program after another
//! with the device open.
#![allow(unsafe_code)] // memory at a chosen address, and descriptors that outlive a program

use std::env;
use std::io::{BufRead, BufReader, Write as _};
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use verbless_command::{Device, KeyAccess};
use verbless_devx::{Backend, Kernel};
use verbless_queue::wr::{Read, Write};
use verbless_queue::{
    CompletionError, ConnectOptions, Cq, CqConfig, Domain, PeerAddress, Qp, QpConfig, Region,
    RemoteAddr, Rkey,
};

const TEST: &str = "memory_registered_before_exec_is_unreachable";
const ROLE: &str = "VERBLESS_TEST_ROLE";
const LENGTH: usize = 64 << 10;
const OLD: u8 = 0x0d;
const OWN: u8 = 0x77;
/// Number of starts of the second program.
const TRIES: &str = "VERBLESS_TEST_TRIES";
const MAX_TRIES: u32 = 10;
const TAKEN: &str = "the registered address is occupied in every program";
/// Prefix of the programs' messages, amid the test harness's output.
const MARK: &str = "@ ";

fn program(role: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("our own name"));
    command.args(["--exact", TEST, "--nocapture"]).env(ROLE, role);
    command
}

#[test]
fn memory_registered_before_exec_is_unreachable() {
    match env::var(ROLE).as_deref() {
        Ok("peer") => return peer(),
        Ok("first") => return first(),
        Ok(address) => return second(address.parse().expect("an address")),
        Err(_) => {}
    }
    let mut tries = 0;
    let text = loop {
        tries += 1;
        let peer = program("peer");
        let output = Command::new(env!("CARGO_BIN_EXE_verbless-model"))
            .args(["run", "--devices", "2", "--"])
            .arg(peer.get_program())
            .args(peer.get_args())
            .env(ROLE, "peer")
            .output()
            .expect("the binary runs");
        let text =
            [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).to_string());
        if output.status.success() {
            return;
        }
        // A sanitizer's memory has the same address in every program; the registered memory may get
        // another one on the next try.
        if tries == MAX_TRIES || !text.concat().contains(TAKEN) {
            break text;
        }
    };
    panic!("{}\n{}", text[0], text[1]);
}

/// A connected QP on a device.
struct Endpoint {
    domain: Domain,
    cq: Cq,
    qp: Qp,
    options: ConnectOptions,
}

impl Endpoint {
    fn new(device: usize) -> Self {
        let devices = Kernel::new().enumerate().expect("devices");
        let domain =
            Domain::new(&Device::open(&Kernel::new(), &devices[device]).expect("the device opens"))
                .expect("a domain");
        let cq = domain.completion_queue(&CqConfig::new(64)).expect("a completion queue");
        let qp = domain.queue_pair(&QpConfig::new(16, 16), &cq, &cq).expect("a queue pair");
        // Few retries, so that an absent peer fails the request soon.
        let options = ConnectOptions { retry_count: 1, ..ConnectOptions::default() };
        Self { domain, cq, qp, options }
    }

    fn address(&self) -> PeerAddress {
        self.domain.address(&self.qp, &self.options).expect("an address")
    }

    fn connect(&mut self, to: &PeerAddress) {
        self.domain.connect(&mut self.qp, to, &self.options).expect("the QP connects");
    }

    fn write(&mut self, from: &Region, to: RemoteAddr) -> Result<(), CompletionError> {
        let write = Write::new(from.sge(0, LENGTH).expect("room"), to);
        self.qp.post(&write.signaled(), 1).expect("room");
        self.wait()
    }

    fn read(&mut self, into: &Region, from: RemoteAddr) -> Result<(), CompletionError> {
        let read = Read::new(into.sge(0, LENGTH).expect("room"), from);
        self.qp.post(&read.signaled(), 1).expect("room");
        self.wait()
    }

    fn wait(&mut self) -> Result<(), CompletionError> {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(done) = self.qp.poll(&mut self.cq) {
                return done.map(drop);
            }
            assert!(Instant::now() < end, "nothing completes");
        }
    }
}

fn text(address: PeerAddress) -> String {
    address.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn address(text: &str) -> PeerAddress {
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("hex");
    PeerAddress::from_bytes(&std::array::from_fn(byte)).expect("an address")
}

fn send_line(what: &str) {
    println!("\n{MARK}{what}");
    std::io::stdout().flush().expect("the parent reads stdout");
}

fn receive_line() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a line");
    line.trim().into()
}

/// Offers memory to the peer, and waits until the peer has written it.
fn offer(end: &mut Endpoint) -> Region {
    let region = end.domain.region(LENGTH, KeyAccess::ALL).expect("memory");
    let remote = region.remote(0, 0).expect("a remote key");
    send_line(&format!("{} {} {}", text(end.address()), remote.address, remote.rkey.0));
    end.connect(&address(&receive_line()));
    send_line("connected");
    assert_eq!(receive_line(), "written");
    let mut arrived = vec![0; LENGTH];
    region.read_at(0, &mut arrived).expect("room");
    assert!(arrived.iter().all(|&byte| byte == OLD), "the peer's bytes arrived");
    region
}

fn first() {
    let mut end = Endpoint::new(1);
    let region = offer(&mut end);
    // A failed exec changes nothing.
    for _ in 0..3 {
        for missing in ["/no/such/program", "no-such-program-anywhere"] {
            let error = Command::new(missing).exec();
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
        }
    }
    send_line("still here");
    assert_eq!(receive_line(), "written again");
    let mut kept = 0;
    for entry in std::fs::read_dir("/proc/self/fd").expect("our descriptors") {
        let entry = entry.expect("a descriptor");
        let file = std::fs::read_link(entry.path()).unwrap_or_default();
        if file.to_string_lossy().contains("verbless-uverbs") {
            let number = entry.file_name().to_string_lossy().parse().expect("a number");
            // SAFETY: it is open; the device has it.
            let device = unsafe { BorrowedFd::borrow_raw(number) };
            fcntl(device, FcntlArg::F_SETFD(FdFlag::empty())).expect("the device file is open");
            kept += 1;
        }
    }
    assert_ne!(kept, 0, "the device is kept open");
    let at = region.remote(0, 0).expect("a remote key").address;
    panic!("{}", program(&at.to_string()).exec());
}

/// The next program in the same process. It maps its own memory at the address that the first one
/// registered.
fn second(at: usize) {
    let length = NonZeroUsize::new(LENGTH).expect("not zero");
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let flags = MapFlags::MAP_FIXED_NOREPLACE | MapFlags::MAP_PRIVATE;
    // SAFETY: fresh memory where nothing is.
    let mapped = unsafe { mmap_anonymous(NonZeroUsize::new(at), length, protection, flags) };
    if mapped == Err(Errno::EEXIST) {
        // This program occupies the address; the next exec has another layout.
        let tries = env::var(TRIES).map_or(0, |tries| tries.parse::<u32>().expect("a number")) + 1;
        assert!(tries < MAX_TRIES, "{TAKEN}");
        panic!("{}", program(&at.to_string()).env(TRIES, tries.to_string()).exec());
    }
    let mut memory = mapped.expect("no mapping is at the address").cast::<[u8; LENGTH]>();
    // SAFETY: the mapping is new, and no other reference to it exists.
    let memory = unsafe { memory.as_mut() };
    memory.fill(OWN);
    send_line("second");
    assert_eq!(receive_line(), "failed");
    assert!(
        std::hint::black_box(&*memory).iter().all(|&byte| byte == OWN),
        "the peer wrote to the second program's memory"
    );
    // A device that this program opens reaches memory that it registers there.
    drop(offer(&mut Endpoint::new(1)));
    assert!(
        std::hint::black_box(&*memory).iter().all(|&byte| byte == OWN),
        "the peer wrote to the second program's memory"
    );
    send_line("done");
}

/// The process with the programs.
struct Process {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Process {
    fn receive_line(&mut self) -> String {
        let mut line = String::new();
        while self.lines.read_line(&mut line).expect("text") != 0 {
            if let Some(said) = line.strip_prefix(MARK) {
                return said.trim().into();
            }
            line.clear();
        }
        panic!("the process ended: {:?}", self.child.wait());
    }

    fn send_line(&mut self, what: &str) {
        let input = self.child.stdin.as_mut().expect("piped");
        writeln!(input, "{what}").expect("the child reads stdin");
    }

    /// Connects to the offered memory and writes it.
    fn write(&mut self, end: &mut Endpoint, from: &Region) -> RemoteAddr {
        let offer = self.receive_line();
        let parts: Vec<&str> = offer.split(' ').collect();
        let number = |at: usize| parts[at].parse::<u64>().expect("a number");
        end.connect(&address(parts[0]));
        self.send_line(&text(end.address()));
        assert_eq!(self.receive_line(), "connected");
        let remote = RemoteAddr::new(number(1), Rkey(number(2) as u32));
        end.write(from, remote).expect("the WRITE completes");
        self.send_line("written");
        remote
    }
}

fn peer() {
    let mut end = Endpoint::new(0);
    let from = end.domain.region(LENGTH, KeyAccess::LOCAL).expect("memory");
    from.write_at(0, &[OLD; LENGTH]).expect("room");
    let mut child = program("first")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let lines = BufReader::new(child.stdout.take().expect("piped"));
    let mut process = Process { child, lines };
    let remote = process.write(&mut end, &from);
    assert_eq!(process.receive_line(), "still here");
    end.write(&from, remote).expect("a failed exec leaves the program in place");
    process.send_line("written again");
    assert_eq!(process.receive_line(), "second");
    // A device may write to pages that no process maps. The write need not fail, but has no effect.
    let _ = end.write(&from, remote);
    end.read(&from, remote).expect_err("the first program's memory is gone");
    process.send_line("failed");
    let mut again = Endpoint::new(0);
    let from = again.domain.region(LENGTH, KeyAccess::LOCAL).expect("memory");
    from.write_at(0, &[OLD; LENGTH]).expect("room");
    process.write(&mut again, &from);
    assert_eq!(process.receive_line(), "done");
    assert!(process.child.wait().expect("the process ends").success());
}
