//! The ioctl parser and the methods that it calls, against a hostile client: wrong lengths,
//! pointers, handles and flags, mailboxes of every kind, and memory that changes between two reads.
#![no_main]

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;
use verbless_fuzz::address::{Address, DATA, QUEUES};
use verbless_fuzz::client::{Change, ChangingMemory, Split};
use verbless_fuzz::machine::{ObjectKind, ObjectNumbers, profile};
use verbless_fuzz::memory::{BYTES, Memory, START};
use verbless_fuzz::object::{self, Object, Receives, Step};
use verbless_fuzz::tweak::{self, Tweak};
use verbless_model::{Link, Model, ObjectCounts};
use verbless_model_kernel::{AttrContent as Carries, FuzzFile, Method};
use verbless_prm::{COMMANDS, CommandInfo, ServiceType};

/// Maximum operations and turns of one run.
const OPERATIONS: usize = 48;
const TURNS: usize = 64;
/// Place of the attributes' data: this many bytes for each of eight.
const SLOTS: u64 = DATA;
const SLOT: u64 = 0x2000;

/// Objects and methods that get valid attributes.
const DEVICE: u16 = 0;
const DEVX: u16 = 0x1000;
const DEVX_OBJ: u16 = 0x1001;
const UMEM: u16 = 0x1002;
const UAR: u16 = 0x1008;

#[derive(Arbitrary, Debug)]
enum IoctlStep {
    /// A method with valid attributes, except for the given mistakes.
    Call {
        method: u8,
        content: Content,
        number: u64,
        handle: u8,
        room: u16,
        wrong: Vec<AttributeFault>,
    },
    /// OBJ_CREATE.
    Make {
        object: Object,
        tweaks: Vec<Tweak>,
        wrong: Vec<AttributeFault>,
    },
    /// OBJ_MODIFY of a QP.
    Move {
        step: Step,
        qp: u8,
        tweaks: Vec<Tweak>,
        wrong: Vec<AttributeFault>,
    },
    Umem {
        at: Address,
        length: u32,
        access: u8,
    },
    Context {
        flags: u8,
    },
    Words(Vec<u64>),
    Changes(Vec<Change>),
    Memory {
        at: Address,
        bytes: Vec<u8>,
    },
    Mmap {
        offset: u32,
        length: u16,
    },
    /// An ioctl of the control file, whose structure and mailboxes are in the client's memory.
    Control {
        request: u8,
        size: u8,
        scope: u8,
        lengths: [u16; 2],
        content: Content,
        at: Option<Address>,
    },
    Advance(u16),
    Turns,
    Kill,
}

/// Content of an input that is not inline.
#[derive(Arbitrary, Debug)]
enum Content {
    Bytes(Vec<u8>),
    Command {
        which: u8,
        tweaks: Vec<Tweak>,
        tail: Vec<u8>,
    },
    Object(Object),
    /// The core request of INVOKE_WRITE or GET_CONTEXT.
    Core([u32; 4], u8),
}

/// Something wrong with an attribute.
#[derive(Arbitrary, Debug, Clone, Copy)]
struct AttributeFault {
    attribute: u8,
    what: FaultKind,
}

#[derive(Arbitrary, Debug, Clone, Copy)]
enum FaultKind {
    Missing,
    Twice,
    Id(u16),
    Length(u16),
    Flags(u16),
    Reserved(u16),
    Data(Address),
    /// The attribute's memory is that of another attribute.
    Shared(u8),
    /// In the header: the length and the number of attributes.
    Header(u16, u16),
}

#[derive(Debug, Clone, Copy)]
struct Attr {
    id: u16,
    length: u16,
    flags: u16,
    reserved: u16,
    data: u64,
}

struct Lab {
    model: Model,
    file: FuzzFile,
    memory: Arc<Memory>,
    changing: Arc<ChangingMemory>,
    known: ObjectNumbers,
    /// The returned handles, by object id.
    handles: Vec<(u16, u64)>,
}

fn methods() -> &'static [Method] {
    static METHODS: OnceLock<Vec<Method>> = OnceLock::new();
    METHODS.get_or_init(FuzzFile::methods)
}

fn method(object: u16, id: u16) -> &'static Method {
    let found = methods().iter().find(|method| (method.object, method.id) == (object, id));
    found.expect("a method that there is")
}

impl Lab {
    fn new(link: Link, rights: bool) -> Self {
        let memory = Memory::new();
        let split = Arc::new(Split(memory.clone()));
        let model = Model::builder().device(profile(link).clone()).memory(split).stepped().build();
        let changing = ChangingMemory::new(memory.clone());
        let file =
            FuzzFile::open(&model, 0, changing.clone(), rights).expect("the device comes up");
        Self { model, file, memory, changing, known: ObjectNumbers::default(), handles: Vec::new() }
    }

    /// The start of most runs.
    fn create_objects(&mut self) {
        self.context(1);
        let pd = Content::Core([0; 4], 8);
        self.call(method(DEVICE, 0), &pd, 3, 0, 64, &[]);
        self.call(method(UAR, 0x1000), &Content::Bytes(Vec::new()), 0, 0, 16, &[]);
        self.call(method(DEVX, 0x1002), &Content::Bytes(Vec::new()), 0, 0, 16, &[]);
        self.umem(QUEUES, START + BYTES - QUEUES, 7);
        let service = ServiceType::RC;
        let receives = Receives::Own;
        for object in [
            Object::Cq { big: false, log_size: 3, umem: true, eq: 0, uar: 0 },
            Object::Qp { service, receives, umem: true, pd: 0, cqs: [0, 0], uar: 0 },
        ] {
            self.make(&object, &[], &[]);
        }
    }

    fn context(&mut self, flags: u8) {
        let core = Content::Core([0x0000_0010, 4, flags.into(), 0], 32);
        self.call(method(DEVICE, 3), &core, 0, 0, 72, &[]);
    }

    fn umem(&mut self, at: u64, length: u64, access: u8) {
        let method = method(UMEM, 0x1000);
        let attributes = [
            Attr { id: 0x1000, length: 0, flags: 1, reserved: 0, data: 0 },
            Attr { id: 0x1001, length: 8, flags: 1, reserved: 0, data: at },
            Attr { id: 0x1002, length: 8, flags: 1, reserved: 0, data: length },
            Attr { id: 0x1003, length: 4, flags: 1, reserved: 0, data: access.into() },
            Attr { id: 0x1004, length: 4, flags: 1, reserved: 0, data: SLOTS },
        ];
        if self.send(method, &attributes, None) {
            let id = u32::from_ne_bytes(self.memory.get(SLOTS));
            self.known.add(ObjectKind::Umem, id);
        }
    }

    fn make(&mut self, object: &Object, tweaks: &[Tweak], wrong: &[AttributeFault]) {
        let built = object::build(object, &mut self.known);
        let mut input = built.input;
        tweak::apply(&mut input, tweaks, &self.known);
        if let Some((at, bytes)) = &built.memory {
            self.memory.put(*at, bytes);
        }
        let content = Content::Bytes(input);
        if self.call(method(DEVX_OBJ, 0x1000), &content, 0, 0, 16, wrong) {
            let number = u32::from_be_bytes(self.memory.get(SLOTS + 2 * SLOT + 8)) & built.mask;
            self.known.add(built.sort, number);
            if built.sort == ObjectKind::Mkey {
                self.known.add(ObjectKind::Key, number << 8 | u32::from(object::VARIANT));
            }
        }
    }

    /// The handle of an object of a kind, or of any.
    fn handle(&self, object: u16, index: u8) -> u64 {
        let fits = |kind: u16| object == 0xffff || kind == object;
        let fitting: Vec<u64> =
            self.handles.iter().filter(|(kind, _)| fits(*kind)).map(|&(_, it)| it).collect();
        match index {
            0xff => u64::MAX,
            _ if fitting.is_empty() => index.into(),
            _ => fitting[usize::from(index) % fitting.len()],
        }
    }

    fn bytes(&mut self, content: &Content) -> Vec<u8> {
        match content {
            Content::Bytes(bytes) => bytes.clone(),
            Content::Command { which, tweaks, tail } => {
                let command: &CommandInfo = COMMANDS[usize::from(*which) % COMMANDS.len()];
                let mut input = vec![0; command.input.bytes.max(16)];
                input[..2].copy_from_slice(&command.opcode.to_be_bytes());
                tweak::apply(&mut input, tweaks, &self.known);
                input.extend(tail);
                input
            }
            Content::Object(object) => object::build(object, &mut self.known).input,
            Content::Core(words, bytes) => {
                let mut core = vec![0; usize::from(*bytes)];
                for (word, at) in words.iter().zip(core.chunks_exact_mut(4)) {
                    at.copy_from_slice(&word.to_ne_bytes());
                }
                if let (Some(byte), true) = (core.get_mut(24), *bytes == 32) {
                    *byte = 3;
                }
                core
            }
        }
    }

    /// Calls a method with the attributes of its description, changed by the mistakes; true if the
    /// method succeeded.
    fn call(
        &mut self,
        method: &Method,
        content: &Content,
        number: u64,
        handle: u8,
        room: u16,
        wrong: &[AttributeFault],
    ) -> bool {
        let bytes = self.bytes(content);
        let mut attributes = Vec::new();
        for ((id, sort), slot) in method.attributes.iter().zip(0_u64..) {
            let at = SLOTS + slot % 8 * SLOT;
            let (length, data) = match *sort {
                Carries::In(min @ 4..=8) if bytes.len() < 9 || min == 8 => (min, number),
                Carries::In(min) => {
                    let length = bytes.len().clamp(min.into(), SLOT as usize);
                    self.memory.put(at, &bytes[..bytes.len().min(length)]);
                    (length as u16, if length <= 8 { inline(&bytes) } else { at })
                }
                Carries::Out(min) => (min.max(room % SLOT as u16), at),
                Carries::Handle(object) => (0, self.handle(object, handle)),
                Carries::New(_) => (0, 0),
                Carries::Descriptor => (0, u64::from(handle) % 4),
            };
            // An output of fixed length gets no more room.
            let length = match sort {
                Carries::Out(min @ (4 | 8)) => *min,
                _ => length,
            };
            attributes.push(Attr { id: *id, length, flags: 1, reserved: 0, data });
        }
        let mut header = None;
        for wrong in wrong.iter().take(8) {
            let at = usize::from(wrong.attribute) % attributes.len().max(1);
            let other = match wrong.what {
                FaultKind::Shared(other) => attributes.get(usize::from(other) % 8).copied(),
                _ => None,
            };
            let Some(attr) = attributes.get_mut(at) else { break };
            match wrong.what {
                FaultKind::Missing => {
                    attributes.remove(at);
                }
                FaultKind::Twice => {
                    let attr = *attr;
                    attributes.push(attr);
                }
                FaultKind::Id(id) => attr.id = id,
                FaultKind::Length(length) => attr.length = length,
                FaultKind::Flags(flags) => attr.flags = flags,
                FaultKind::Reserved(reserved) => attr.reserved = reserved,
                FaultKind::Data(address) => attr.data = address.get(),
                FaultKind::Shared(_) => attr.data = other.map_or(0, |other| other.data),
                FaultKind::Header(length, count) => header = Some((length, count)),
            }
        }
        self.send(method, &attributes, header)
    }

    fn send(&mut self, method: &Method, attributes: &[Attr], header: Option<(u16, u16)>) -> bool {
        let count = attributes.len() as u16;
        let (length, count) = header.unwrap_or((24 + 16 * count, count));
        let [length, count, object, id] = [length, count, method.object, method.id].map(u64::from);
        let mut words = vec![count << 48 | id << 32 | object << 16 | length, 0, 1];
        for attr in attributes {
            let [id, length, flags, reserved] =
                [attr.id, attr.length, attr.flags, attr.reserved].map(u64::from);
            words.extend([reserved << 48 | flags << 32 | length << 16 | id, attr.data]);
        }
        let done = self.file.ioctl(&mut words).is_ok();
        if done {
            self.learn(method, attributes, &words);
        }
        done
    }

    /// Keeps the handles and numbers that a call returned.
    fn learn(&mut self, method: &Method, attributes: &[Attr], words: &[u64]) {
        for (index, attr) in attributes.iter().enumerate() {
            let sort = method.attributes.iter().find(|(id, _)| *id == attr.id);
            if let Some((_, Carries::New(object))) = sort {
                self.handles.push((*object, words[3 + 2 * index + 1]));
            }
        }
        let first = |index: usize| attributes.get(index).map_or(0, |attr| attr.data);
        let number = |at| u32::from_ne_bytes(self.memory.get(at));
        match (method.object, method.id) {
            (DEVICE, 0) => {
                let (pd, handle) = (number(first(4)), number(first(2)));
                self.known.add(ObjectKind::Pd, pd);
                self.handles.push((1, handle.into()));
            }
            (DEVX, 0x1002) => {
                let eqn = number(first(1));
                self.known.add(ObjectKind::Eq, eqn);
            }
            (UAR, 0x1000) => {
                let page = number(first(2));
                self.known.add(ObjectKind::Uar, page);
            }
            _ => {}
        }
    }

    fn run(&mut self, operation: &IoctlStep) {
        match operation {
            IoctlStep::Call { method, content, number, handle, room, wrong } => {
                let method = &methods()[usize::from(*method) % methods().len()];
                self.call(method, content, *number, *handle, *room, wrong);
            }
            IoctlStep::Make { object, tweaks, wrong } => self.make(object, tweaks, wrong),
            IoctlStep::Move { step, qp, tweaks, wrong } => {
                let qpn = self.known.pick(ObjectKind::Qp, *qp);
                let mut input = object::step(*step, qpn, (1, qpn));
                tweak::apply(&mut input, tweaks, &self.known);
                let content = Content::Bytes(input);
                self.call(method(DEVX_OBJ, 0x1002), &content, 0, *qp, 16, wrong);
            }
            IoctlStep::Umem { at, length, access } => {
                self.umem(at.get(), u64::from(*length), *access);
            }
            IoctlStep::Context { flags } => self.context(*flags),
            IoctlStep::Words(words) => {
                let _ = self.file.ioctl(&mut words.clone());
            }
            IoctlStep::Changes(changes) => self.changing.set(changes.clone()),
            IoctlStep::Memory { at, bytes } => self.memory.put(at.get(), bytes),
            IoctlStep::Mmap { offset, length } => {
                let length = usize::from(*length);
                self.file.mmap(u64::from(*offset) << 8, length);
            }
            IoctlStep::Control { request, size, scope, lengths, content, at } => {
                let mailbox = self.bytes(content);
                let [structure, input, output] = [0, 1, 2].map(|slot| SLOTS + slot * SLOT);
                self.memory.put(input, &mailbox[..mailbox.len().min(SLOT as usize)]);
                let fields =
                    [(*size).into(), (*scope % 5).into(), lengths[0].into(), lengths[1].into()];
                let fields: Vec<u8> = fields.into_iter().flat_map(u32::to_ne_bytes).collect();
                let addresses = [input, at.map_or(output, |at| at.get())].map(u64::to_ne_bytes);
                self.memory.put(structure, &[&fields, addresses.as_flattened()].concat());
                let _ = self.file.control(0x9a00 | u32::from(*request % 3), structure);
            }
            IoctlStep::Advance(by) => self.model.advance(Duration::from_micros((*by).into())),
            IoctlStep::Turns => self.turn(),
            IoctlStep::Kill => self.model.kill(0),
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

fn inline(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    let length = bytes.len().min(8);
    word[..length].copy_from_slice(&bytes[..length]);
    u64::from_ne_bytes(word)
}

fuzz_target!(|data: &[u8]| {
    let mut input = Unstructured::new(data);
    let Ok(start) = input.arbitrary::<u8>() else { return };
    let link = if start & 1 == 0 { Link::Ethernet } else { Link::Infiniband };
    let mut lab = Lab::new(link, start & 2 == 0);
    if start & 12 != 12 {
        lab.create_objects();
    }
    let mut killed = false;
    for _ in 0..OPERATIONS {
        if input.is_empty() {
            break;
        }
        let Ok(operation) = input.arbitrary::<IoctlStep>() else { break };
        killed |= matches!(operation, IoctlStep::Kill);
        lab.run(&operation);
    }
    lab.turn();
    let Lab { model, file, .. } = lab;
    drop(file);
    if !killed {
        assert_eq!(model.counts(0), ObjectCounts::default());
    }
});
