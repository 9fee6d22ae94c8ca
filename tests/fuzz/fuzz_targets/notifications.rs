//! The calls that `run` answers, made by a hostile program: any call and arguments, any memory, and
//! a thread that changes the memory while it is read. It is a finding if a run leaves anything
//! behind when its descriptors are closed, or if a call does not end.

#![no_main]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;
use verbless_fuzz::address::{Address, DATA};
use verbless_fuzz::machine::profile;
use verbless_fuzz::memory::{BYTES, Memory, READ_ONLY_BYTES, START};
use verbless_model::memory::ClientMemory;
use verbless_model::{Link, Model, ObjectCounts};
use verbless_model_host::run::{DeviceTree, FuzzProgram, IdleProcess};
use verbless_model_kernel::{AttrContent, FuzzFile as Kernel, Method};

/// Maximum operations and turns of one run.
const OPERATIONS: usize = 32;
const TURNS: usize = 64;
/// Places of a request, of a path, and of the attributes' data.
const REQUEST: u64 = DATA;
const PATH: u64 = DATA + 0x1000;
const SLOTS: u64 = DATA + 0x3000;
const SLOT: u64 = 0x800;
/// RDMA_VERBS_IOCTL.
const VERBS: u64 = 0xc018_1b01;
/// The number of checks of any call whether it still waits.
const UNLIMITED_CHECKS: u32 = u32::MAX;

const PATHS: &[&str] = &[
    "/dev/infiniband/uverbs0",
    "/dev/infiniband/uverbs1",
    "/dev/fwctl/fwctl0",
    "/sys/class/fwctl/fwctl0/dev",
    "/dev/infiniband",
    "/dev/infiniband/../infiniband/uverbs0/x",
    "/sys/class/infiniband/mlx5_0/ports/1/gids/0",
    "/sys/class/infiniband/mlx5_0/device",
    "/sys/class/infiniband/../../../../etc/passwd",
    "/sys/class/infiniband_verbs/uverbs0",
    "uverbs0",
    "../infiniband/uverbs0",
    "",
];

/// The calls that the filter stops, except those that need ptrace: no thread can trace another one
/// of its own process.
const CALLS: &[libc::c_long] = &[
    libc::SYS_ioctl,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getxattr,
    libc::SYS_listxattr,
    libc::SYS_readlinkat,
    libc::SYS_execve,
    libc::SYS_dup,
    libc::SYS_fcntl,
    libc::SYS_mmap,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
];

#[derive(Arbitrary, Debug)]
enum Operation {
    /// Any call.
    Call {
        which: u8,
        arguments: [Argument; 6],
        looks: Option<u8>,
        race: Vec<Change>,
    },
    /// Opens a device.
    Open,
    /// An ioctl that is nearly valid.
    Ask {
        device: u8,
        method: u8,
        attributes: Vec<Attribute>,
        looks: Option<u8>,
        race: Vec<Change>,
    },
    /// The request with which another program opens a device, so that a context exists.
    Begin {
        device: u8,
    },
    Path {
        which: u8,
        cut: Option<u8>,
    },
    Memory {
        at: Address,
        bytes: Vec<u8>,
    },
    Close(u8),
    Doorbell {
        device: u8,
        page: u16,
        at: u16,
        word: u64,
    },
    Advance(u16),
    Turns,
}

#[derive(Arbitrary, Debug, Clone, Copy)]
enum Argument {
    Number(u64),
    Small(u8),
    Here,
    Descriptor(u8),
    Request,
    Path,
    At(Address),
    Verbs,
    /// FWCTL_INFO and FWCTL_RPC.
    Control(bool),
    /// As large as `struct open_how`.
    How,
}

/// Written again and again while a call is answered, in turns with the earlier content.
#[derive(Arbitrary, Debug, Clone, Copy)]
struct Change {
    /// In the request, or in the memory that it points to.
    within: u16,
    value: u8,
}

/// An attribute that differs from its description.
#[derive(Arbitrary, Debug, Clone, Copy)]
enum Attribute {
    Right(u8),
    Data(Address),
    Length(u16, u8),
    Flags(u16),
    Id(u16),
    Missing,
}

struct Race {
    changes: Vec<Change>,
    over: AtomicBool,
}

/// State that all runs of this process share.
struct Common {
    memory: Arc<Memory>,
    process: IdleProcess,
    trees: [DeviceTree; 2],
    racer: Sender<Arc<Race>>,
}

fn build(link: Link, memory: Arc<ClientMemory>) -> Model {
    Model::builder().device(profile(link).clone()).memory(memory).stepped().build()
}

fn common() -> &'static Common {
    static COMMON: OnceLock<Common> = OnceLock::new();
    COMMON.get_or_init(|| {
        let (memory, [writable, readable]) = Memory::with_files();
        let process = IdleProcess::start(&[
            (&writable, START, BYTES, true),
            (&readable, START + BYTES, READ_ONLY_BYTES, false),
        ]);
        let trees = [Link::Ethernet, Link::Infiniband]
            .map(|link| DeviceTree::new(&build(link, Arc::default())).expect("room for files"));
        let (racer, races) = channel::<Arc<Race>>();
        let raced = memory.clone();
        std::thread::spawn(move || races.iter().for_each(|race| run_race(&raced, &race)));
        Common { memory, process: process.expect("a process"), trees, racer }
    })
}

fn run_race(memory: &Memory, race: &Race) {
    while !race.over.load(Ordering::Relaxed) {
        for change in &race.changes {
            let at = REQUEST + u64::from(change.within) % (SLOTS + 8 * SLOT - REQUEST);
            let [before] = memory.get(at);
            memory.put(at, &[change.value]);
            std::thread::yield_now();
            memory.put(at, &[before]);
        }
    }
}

fn methods() -> &'static [Method] {
    static METHODS: OnceLock<Vec<Method>> = OnceLock::new();
    METHODS.get_or_init(Kernel::methods)
}

struct Lab {
    common: &'static Common,
    model: Model,
    program: FuzzProgram,
}

impl Lab {
    fn new(link: Link) -> Self {
        let common = common();
        common.memory.put(START, &vec![0; BYTES as usize]);
        let memory = Arc::<ClientMemory>::default();
        let model = build(link, memory.clone());
        let tree = &common.trees[usize::from(link == Link::Infiniband)];
        let program = FuzzProgram::new(&model, memory, tree, common.process).expect("descriptors");
        Self { common, model, program }
    }

    fn descriptor(&self, index: u8) -> u64 {
        let given = self.program.descriptors();
        match index {
            0xff => u64::MAX,
            _ if given.is_empty() => index.into(),
            _ => given[usize::from(index) % given.len()] as u64,
        }
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.common.memory.put(at, bytes);
    }

    /// Makes a call while its memory changes.
    fn call(&self, number: i64, arguments: [u64; 6], looks: Option<u8>, race: &[Change]) {
        let looks = looks.map_or(UNLIMITED_CHECKS, u32::from);
        let race = Arc::new(Race { changes: race.to_vec(), over: AtomicBool::new(false) });
        if !race.changes.is_empty() {
            self.common.racer.send(race.clone()).expect("the racer listens");
        }
        let _ = self.program.call(number, arguments, looks);
        race.over.store(true, Ordering::Relaxed);
    }

    fn open(&self) {
        self.put(PATH, b"/dev/infiniband/uverbs0\0");
        let flags = libc::O_RDWR as u64;
        self.call(libc::SYS_openat, [libc::AT_FDCWD as u64, PATH, flags, 0, 0, 0], None, &[]);
    }

    /// A request with the attributes that its method wants, except for the given mistakes.
    fn ask(
        &self,
        device: u8,
        method: &Method,
        wishes: &[Attribute],
        looks: Option<u8>,
        race: &[Change],
    ) {
        let mut words = vec![0, 0, 1];
        for (index, (id, sort)) in method.attributes.iter().enumerate() {
            let slot = SLOTS + index as u64 % 8 * SLOT;
            let wish = wishes.get(index).copied().unwrap_or(Attribute::Right(0));
            let number = if let Attribute::Right(number) = wish { number } else { 0 };
            let (mut id, mut flags) = (u64::from(*id), 1);
            let (mut length, mut data) = match *sort {
                AttrContent::In(bytes @ 0..=8) => (u64::from(bytes), number.into()),
                AttrContent::In(bytes) | AttrContent::Out(bytes) => {
                    (bytes.max(number.into()).into(), slot)
                }
                AttrContent::Handle(_) => (0, number.into()),
                AttrContent::New(_) => (0, 0),
                AttrContent::Descriptor => (0, self.descriptor(number)),
            };
            match wish {
                Attribute::Right(_) => {}
                Attribute::Data(at) => data = at.get(),
                Attribute::Length(other, number) => {
                    (length, data) = (other.into(), if other > 8 { slot } else { number.into() });
                }
                Attribute::Flags(other) => flags = other.into(),
                Attribute::Id(other) => id = other.into(),
                Attribute::Missing => continue,
            }
            words.extend([flags << 32 | length << 16 | id, data]);
        }
        let count = (words.len() as u64 - 3) / 2;
        let [object, id] = [method.object, method.id].map(u64::from);
        words[0] = count << 48 | id << 32 | object << 16 | (24 + 16 * count);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.put(REQUEST, &bytes);
        let arguments = [self.descriptor(device), VERBS, REQUEST, 0, 0, 0];
        self.call(libc::SYS_ioctl, arguments, looks, race);
    }

    /// GET_CONTEXT, with DevX.
    fn begin(&self, device: u8) {
        let core: Vec<u8> =
            [16_u32, 4, 1, 0, 0, 0, 3, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let attributes = [
            (0_u64, 4_u64, SLOTS),
            (1, 8, SLOTS + SLOT),
            (0x1000, 32, SLOTS + 2 * SLOT),
            (0x1001, 72, SLOTS + 3 * SLOT),
        ];
        self.put(SLOTS + 2 * SLOT, &core);
        let mut words = vec![4 << 48 | 3 << 32 | (24 + 64), 0, 1];
        for (id, length, data) in attributes {
            words.extend([1 << 32 | length << 16 | id, data]);
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.put(REQUEST, &bytes);
        self.call(libc::SYS_ioctl, [self.descriptor(device), VERBS, REQUEST, 0, 0, 0], None, &[]);
    }

    fn argument(&self, argument: Argument) -> u64 {
        match argument {
            Argument::Number(number) => number,
            Argument::Small(number) => number.into(),
            Argument::Here => libc::AT_FDCWD as u64,
            Argument::Descriptor(index) => self.descriptor(index),
            Argument::Request => REQUEST,
            Argument::Path => PATH,
            Argument::At(address) => address.get(),
            Argument::Verbs => VERBS,
            Argument::Control(rpc) => 0x9a00 | u64::from(rpc),
            Argument::How => 24,
        }
    }

    fn run(&self, operation: &Operation) {
        match operation {
            Operation::Call { which, arguments, looks, race } => {
                let number = CALLS[usize::from(*which) % CALLS.len()];
                self.call(number, arguments.map(|it| self.argument(it)), *looks, race);
            }
            Operation::Open => self.open(),
            Operation::Ask { device, method, attributes, looks, race } => {
                let method = &methods()[usize::from(*method) % methods().len()];
                self.ask(*device, method, attributes, *looks, race);
            }
            Operation::Begin { device } => self.begin(*device),
            Operation::Path { which, cut } => {
                let path = PATHS[usize::from(*which) % PATHS.len()].as_bytes();
                let length = cut.map_or(path.len(), |cut| path.len().min(cut.into()));
                self.put(PATH, &[&path[..length], &[0]].concat());
            }
            Operation::Memory { at, bytes } => self.put(at.get(), bytes),
            Operation::Close(index) => self.program.close((*index).into()),
            Operation::Doorbell { device, page, at, word } => {
                let offset = u64::from(*page) << 12 | u64::from(*at) & 0xff8;
                self.program.store((*device).into(), offset, *word);
            }
            Operation::Advance(by) => self.model.advance(Duration::from_micros((*by).into())),
            Operation::Turns => self.turn(),
        }
    }

    fn turn(&self) {
        for _ in 0..TURNS {
            if !self.model.step() {
                break;
            }
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Unstructured::new(data);
    let Ok(start) = input.arbitrary::<u8>() else { return };
    let lab = Lab::new(if start & 1 == 0 { Link::Ethernet } else { Link::Infiniband });
    if start & 2 == 0 {
        lab.open();
        lab.begin(0);
    }
    for _ in 0..OPERATIONS {
        if input.is_empty() {
            break;
        }
        let Ok(operation) = input.arbitrary::<Operation>() else { break };
        lab.run(&operation);
    }
    lab.turn();
    let Lab { model, program, .. } = lab;
    assert_eq!(program.end(), 0, "devices are open after the program closed them");
    assert_eq!(model.counts(0), ObjectCounts::default());
});
