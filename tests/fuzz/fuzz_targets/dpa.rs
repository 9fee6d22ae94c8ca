//! The model's DPA against hostile programs and hosts: processes of arbitrary code, which accesses
//! outboxes and windows and makes system calls; threads, calls and CQs that come and go while it
//! runs. In every case turns end, a destroyed object no longer exists, and no object is left at the
//! end.
#![no_main]

use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;
use verbless_command::{
    Affinity, CqAttr, CqEventTarget, CqObject, CqeSize, Device, DpaCall, DpaEntry, DpaEq,
    DpaEqAttr, DpaOutbox, DpaProcess, DpaProcessAttr, DpaThread, DpaThreadKind, DpaWindow,
    EmulatedDevice, EmulatedDoorbell, KeyAccess, KeyMemory, MkeyAttr, MkeyObject, QueueMemory,
    UserMemory,
};
use verbless_devx::{Backend, Pd, Uar, UarKind};
use verbless_fuzz::machine::profile;
use verbless_model::{Link, Model};
use verbless_model_kernel::InProcess;
use verbless_queue::Memory;

const CODE: u64 = 0x4000_0000;
const DATA: u64 = 0x8000_0000;
const HEAP: u32 = 1 << 14;
const LOG_CQES: u8 = 2;
/// Queues of the emulated device.
const QUEUES: u16 = 4;
/// Instructions of a run, unless it polls.
const WATCHDOG: u64 = 4_000;
/// Turns of one input during its operations, and after them. A polling thread uses its whole turn.
const TURNS: u32 = 24;
/// Offsets of all registers of an outbox, and of words beside them.
const REGISTERS: [i32; 16] = [
    0x000, 0x040, 0x100, 0x140, 0x180, 0x1c0, 0x200, 0x240, 0x280, 0x2c0, 0x300, 0x340, 0x348,
    0x7c0, 0x004, 0x104,
];

/// A few instructions of a program.
#[derive(Arbitrary, Debug)]
enum Snippet {
    /// `li a7, number; ecall`; a0 keeps its value.
    System(u8),
    /// Sets a0 to a small number.
    Number(u8),
    /// Reads UCTL of outbox `which`, then stores to, or loads from, one of its registers.
    Outbox { which: bool, register: u8, waits: bool, store: bool },
    /// A window's key, or memory in the window.
    Window { which: bool, at: u16, store: bool, config: bool },
    /// Stores to the heap, or loads.
    Heap { at: u16, store: bool },
    /// A word of the context.
    Context(u8),
    /// Counts a0 down, and jumps back over this many instructions unless a0 is 0.
    Again(u8),
    /// Anything.
    Raw(u32),
}

#[derive(Arbitrary, Debug)]
enum Operation {
    Call {
        at: u8,
        argument: u8,
        unit: Option<u8>,
    },
    Thread {
        at: u8,
        polling: bool,
        continuable: bool,
        unit: Option<u8>,
    },
    Cq {
        thread: u8,
        of_eq: bool,
    },
    /// Rings a doorbell of an emulated device.
    Ring {
        queue: u8,
        value: u32,
    },
    /// Gives the doorbell a listener.
    Listen {
        queue: u8,
        cq: u8,
    },
    Take {
        what: u8,
        index: u8,
    },
    Look {
        index: u8,
    },
    Dump,
    Steps(u8),
    Another,
}

#[derive(Arbitrary, Debug)]
struct Input {
    code: Vec<Snippet>,
    operations: Vec<Operation>,
}

const A0: u32 = 10;
const A7: u32 = 17;
const T0: u32 = 5;
const T1: u32 = 6;

fn i(opcode: u32, funct3: u32, rd: u32, rs1: u32, imm: i32) -> u32 {
    (imm as u32 & 0xfff) << 20 | rs1 << 15 | funct3 << 12 | rd << 7 | opcode
}

fn s(funct3: u32, rs2: u32, rs1: u32, imm: i32) -> u32 {
    let imm = imm as u32;
    (imm >> 5 & 0x7f) << 25 | rs2 << 20 | rs1 << 15 | funct3 << 12 | (imm & 0x1f) << 7 | 0x23
}

/// t0 becomes `high` << 32.
fn high(code: &mut Vec<u32>, high: i32) {
    code.extend([i(0x13, 0, T0, 0, high), i(0x13, 1, T0, T0, 32)]);
}

/// Adds `more` to t0.
fn add(code: &mut Vec<u32>, more: u32) {
    code.extend([(more + 0x800) & 0xffff_f000 | T1 << 7 | 0x37, i(0x13, 0, T1, T1, more as i32)]);
    code.push(T1 << 20 | T0 << 15 | T0 << 7 | 0x33);
}

/// A load into a0 from t0, or a store of it, of 4 or 8 bytes.
fn access(code: &mut Vec<u32>, at: i32, store: bool, wide: bool) {
    let size = 2 + u32::from(wide);
    code.push(if store { s(size, A0, T0, at) } else { i(0x03, size, A0, T0, at) });
}

impl Snippet {
    fn put(&self, code: &mut Vec<u32>) {
        match *self {
            Self::System(number) => code.extend([i(0x13, 0, A7, 0, (number % 12).into()), 0x73]),
            Self::Number(number) => code.push(i(0x13, 0, A0, 0, number.into())),
            Self::Outbox { which, register, waits, store } => {
                high(code, 4);
                add(code, u32::from(which) << 12);
                if waits {
                    code.push(i(0x03, 3, T1, T0, 0));
                }
                access(code, REGISTERS[usize::from(register) % 16], store, register < 0xf0);
            }
            Self::Window { which, at, store, config: true } => {
                high(code, 5);
                access(code, i32::from(which) << 6, store, at % 9 == 0);
            }
            Self::Window { which, at, store, config: false } => {
                // The top byte of windows, and their numbers below it.
                code.extend([i(0x13, 0, T0, 0, 0x80 << 1 >> 1), i(0x13, 1, T0, T0, 8)]);
                code.push(i(0x13, 0, T0, T0, which.into()));
                code.push(i(0x13, 1, T0, T0, 48));
                add(code, 0x1000 + u32::from(at));
                access(code, 0, store, at.is_multiple_of(2));
            }
            Self::Heap { at, store } => {
                high(code, 1);
                add(code, (u32::from(at) & !7) % HEAP);
                access(code, 0, store, true);
            }
            Self::Context(at) => code.push(i(0x03, 2, A0, 4, i32::from(at) & 0x3c)),
            Self::Again(over) => {
                // addi a0, a0, -1; bne a0, zero, back.
                code.push(i(0x13, 0, A0, A0, -1));
                let back = -4 * (1 + i32::from(over % 16).min(code.len() as i32 - 1));
                let at = back as u32;
                let low = (at >> 1 & 0xf) << 8 | (at >> 11 & 1) << 7;
                let top = (at >> 12 & 1) << 31 | (at >> 5 & 0x3f) << 25;
                code.push(top | A0 << 15 | 1 << 12 | low | 0x63);
            }
            Self::Raw(word) => code.push(word),
        }
    }
}

/// An ELF file of code and a page of data.
fn file(code: &[u32]) -> Vec<u8> {
    const HEADERS: usize = 64 + 2 * 56;
    let mut file = vec![0; HEADERS];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"\x7fELF\x02\x01\x01");
    put(16, &[2, 0, 243, 0, 1]);
    put(32, &64_u64.to_le_bytes());
    put(48, &1_u32.to_le_bytes());
    put(52, &[64, 0, 56, 0, 2, 0, 64]);
    let bytes = 4 * code.len() as u64;
    for (at, flags, offset, address, inside, length) in
        [(64, 5_u32, HEADERS as u64, CODE, bytes, bytes), (120, 6, 0, DATA, 0, 4096)]
    {
        put(at, &1_u32.to_le_bytes());
        put(at + 4, &flags.to_le_bytes());
        for (word, value) in [(8, offset), (16, address), (24, address), (32, inside), (40, length)]
        {
            put(at + word, &value.to_le_bytes());
        }
        put(at + 48, &1_u64.to_le_bytes());
    }
    file.extend(code.iter().flat_map(|word| word.to_le_bytes()));
    file
}

/// The objects that a host has made. Users come before the objects that they use.
struct Host {
    calls: Vec<DpaCall>,
    doorbells: Vec<EmulatedDoorbell>,
    cqs: Vec<Arc<CqObject>>,
    eq: DpaEq,
    emulated: Arc<EmulatedDevice>,
    threads: Vec<DpaThread>,
    outboxes: Vec<Arc<DpaOutbox>>,
    windows: Vec<Arc<DpaWindow>>,
    process: Arc<DpaProcess>,
    /// The key of the windows.
    _key: MkeyObject,
    uar: Arc<Uar>,
    file: Arc<UserMemory>,
    device: Device,
    turns: u32,
}

fn registered(device: &Device, bytes: &[u8]) -> Arc<UserMemory> {
    let memory = Memory::allocate(bytes.len().max(4096)).expect("there is memory");
    memory.write_at(0, bytes).expect("the memory has room");
    memory.register(device).expect("the memory is registered")
}

impl Host {
    fn new(device: &Device, code: &[u32]) -> Option<Self> {
        let token = device.as_model().expect("the device is the model");
        let bytes = file(code);
        let file = registered(device, &bytes);
        let length = bytes.len() as u64;
        let attr = DpaProcessAttr {
            file: file.clone(),
            offset: 0,
            length,
            heap: HEAP,
            watchdog: WATCHDOG,
        };
        let process = device.create_dpa_process(&token, &attr).expect("the file is a program");
        let pd: Pd = device.alloc_pd().expect("there are domains");
        let uar = Arc::new(device.uar_alloc(UarKind::NonCached).expect("there are pages"));
        let shown = registered(device, &[0x5a; 8192]);
        let attr = MkeyAttr {
            pd: pd.clone(),
            access: KeyAccess::ALL,
            start: 0x1000,
            length: 8192,
            memory: KeyMemory::Umem { umem: shown, offset: 0 },
        };
        let _key = device.create_mkey(attr).expect("there are keys");
        let outbox = || device.create_dpa_outbox(&process, &uar);
        let window = || device.create_dpa_window(&process, &pd);
        let (outboxes, windows) = (vec![outbox().ok()?], vec![window().ok()?, window().ok()?]);
        let (calls, cqs, threads) = (Vec::new(), Vec::new(), Vec::new());
        let emulated =
            device.create_emulated_device(&token, QUEUES, 1).expect("the device has queues");
        let attr = DpaEqAttr {
            raises: Some((emulated.clone(), 0)),
            ..DpaEqAttr::new(QueueMemory::new(Arc::new(process.heap()), 8192), 1, uar.clone())
        };
        let eq = device.create_dpa_eq(&token, attr).expect("the heap has room for it");
        let doorbells = Vec::new();
        let device = device.clone();
        let turns = TURNS;
        Some(Self {
            calls,
            doorbells,
            cqs,
            eq,
            emulated,
            threads,
            outboxes,
            windows,
            process,
            _key,
            uar,
            file,
            device,
            turns,
        })
    }

    fn entry(&self, at: u8, unit: Option<u8>) -> DpaEntry {
        DpaEntry {
            outbox: self.outboxes.first().cloned(),
            windows: [self.windows.first().cloned(), self.windows.get(1).cloned()],
            affinity: unit.map_or(Affinity::None, |unit| Affinity::Strict(unit.into())),
            ..DpaEntry::at(CODE + 4 * u64::from(at))
        }
    }

    fn perform(&mut self, operation: &Operation, model: &Model) {
        match *operation {
            Operation::Call { at, argument, unit } if self.calls.len() < 8 => {
                let entry = self.entry(at, unit);
                let arguments = [argument.into(), 0, 0, 0, 0, 0, 0, 0];
                self.calls
                    .extend(self.device.begin_dpa_call(&self.process, &entry, arguments).ok());
            }
            Operation::Thread { at, polling, continuable, unit } if self.threads.len() < 4 => {
                let entry = self.entry(at, unit);
                let kind = DpaThreadKind { polling, continuable, held: false };
                let made = self.device.create_dpa_thread(&self.process, &entry, 1, kind);
                self.threads.extend(made.ok());
            }
            Operation::Cq { thread, of_eq } if self.cqs.len() < 4 => {
                let thread = self.threads.get(usize::from(thread));
                let element = match (of_eq, thread) {
                    (true, _) => CqEventTarget::DpaEq(self.eq.id()),
                    (false, Some(thread)) => CqEventTarget::Thread(thread.id()),
                    (false, None) => return,
                };
                let heap = Arc::new(self.process.heap());
                let attr = CqAttr {
                    uar: self.uar.clone(),
                    ring: QueueMemory::new(heap.clone(), 4096),
                    record: QueueMemory::new(heap, 0),
                    log_cqes: LOG_CQES,
                    cqe_size: CqeSize::BYTES_64,
                    element,
                    ignore_overrun: false,
                };
                self.cqs.extend(self.device.create_cq(attr).ok().map(Arc::new));
            }
            Operation::Ring { queue, value } => {
                let there = self.emulated.ring(queue.into(), value).is_ok();
                assert_eq!(there, u16::from(queue) < QUEUES);
            }
            Operation::Listen { queue, cq } => {
                let Some(cq) = self.cqs.get(usize::from(cq)) else { return };
                let made = self.device.create_emulated_doorbell(&self.emulated, queue.into(), cq);
                self.doorbells.extend(made.ok());
            }
            Operation::Take { what, index } => {
                let index = usize::from(index);
                let gone = |there: usize| index % there.max(1);
                match what % 6 {
                    0 if !self.calls.is_empty() => {
                        self.calls.remove(gone(self.calls.len())).destroy().expect("calls end");
                    }
                    1 if !self.cqs.is_empty() && self.doorbells.is_empty() => {
                        drop(self.cqs.remove(gone(self.cqs.len())));
                    }
                    5 => drop(self.doorbells.pop()),
                    2 if self.cqs.is_empty() && !self.threads.is_empty() => {
                        let thread = self.threads.remove(gone(self.threads.len()));
                        thread.destroy().expect("no CQ names it");
                    }
                    3 => drop(self.windows.pop()),
                    4 => drop(self.outboxes.pop()),
                    _ => {}
                }
            }
            Operation::Look { index } => {
                let info = self.process.query().expect("a process can be queried");
                assert_eq!(info.status.runs(), info.crash.is_none());
                self.eq.query().expect("so does an EQ");
                self.emulated.raised().expect("and a device");
                for doorbell in &self.doorbells {
                    let info = doorbell.query().expect("and a doorbell");
                    assert!(!(info.armed && info.pending), "a CQE is owed");
                }
                if let Some(thread) = self.threads.get(usize::from(index)) {
                    thread.query().expect("so does a thread");
                }
            }
            Operation::Dump => {
                let room = Arc::new(self.process.heap());
                let dumped = self.device.dump_dpa_core(&self.process, &room, 0);
                drop(dumped);
            }
            Operation::Steps(turns) => {
                let turns = self.turns.min(turns.into());
                self.turns -= turns;
                (0..turns).take_while(|_| model.step()).count();
            }
            Operation::Another => {
                // A second process of the same file is created and destroyed.
                let token = self.device.as_model().expect("the device is the model");
                let (file, heap) = (self.file.clone(), 0);
                let attr = DpaProcessAttr { file, offset: 0, length: 64, heap, watchdog: 1 };
                assert!(self.device.create_dpa_process(&token, &attr).is_err(), "half a file");
            }
            _ => {}
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Ok(input) = Input::arbitrary(&mut Unstructured::new(data)) else { return };
    let mut code = Vec::new();
    input.code.iter().take(64).for_each(|snippet| snippet.put(&mut code));
    code.push(0x0000_8067);
    let model = Model::builder().device(profile(Link::Infiniband).clone()).stepped().build();
    let backend = InProcess::of(&model);
    let info = backend.find("mlx5_0").expect("the device exists");
    let device = Device::open(&backend, &info).expect("the device opens");
    let Some(mut host) = Host::new(&device, &code) else { return };
    for operation in input.operations.iter().take(48) {
        host.perform(operation, &model);
    }
    (0..TURNS).take_while(|_| model.step()).count();
    drop(host);
    let left = model.counts(0);
    assert_eq!((left.dpa_processes, left.dpa_threads, left.dpa_calls), (0, 0, 0), "{left:?}");
    assert_eq!((left.dpa_eqs, left.emulated_devices, left.emulated_doorbells), (0, 0, 0));
    assert_eq!((left.dpa_outboxes, left.dpa_windows, left.cqs, left.mkeys), (0, 0, 0, 0));
    // A destroyed object executes nothing.
    assert!(!(0..TURNS).any(|_| model.step()), "the model still has work");
});
