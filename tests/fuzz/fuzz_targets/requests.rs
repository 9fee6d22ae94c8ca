//! The work request engine: valid queues and keys of two functions, then nearly valid or random
//! requests, wild pointers, overwritten rings and records, doorbells for any queue, packets of a
//! hostile peer, and queues that are destroyed meanwhile.
#![no_main]

use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;
use verbless_fuzz::address::{Address, DATA};
use verbless_fuzz::frame::{Ends, Frame};
use verbless_fuzz::machine::{Machine, ObjectKind};
use verbless_fuzz::object::{self, Key, LOG_SQ, Object, Receives, RemoteRange, Step};
use verbless_fuzz::wqe::{self, Endpoints, Wqe};
use verbless_model::{Fault, Link, Watch};
use verbless_prm::{AttachToMcgIn, ServiceType};

/// Maximum operations and turns of one run.
const OPERATIONS: usize = 128;
const TURNS: u32 = 128;
/// WQEBBs of a send ring, WQEs of a receive ring and of an SRQ.
const WQEBBS: u16 = 1 << LOG_SQ;
const RECEIVES: u16 = 1 << object::LOG_RQ;
const POOL: u16 = 16;

#[derive(Arbitrary, Debug)]
enum RequestStep {
    /// Posts a request, and perhaps rings the doorbell.
    Post {
        qp: u8,
        wqe: Wqe,
        ring: bool,
    },
    /// Posts a request as a BlueFlame copy to a trapped UAR page.
    Copy {
        qp: u8,
        wqe: Wqe,
        from_ring: bool,
    },
    Receive {
        qp: u8,
        data: Vec<RemoteRange>,
    },
    /// `next`: the WQE that this one names, if not the next.
    Share {
        pool: u8,
        next: Option<u16>,
        data: Vec<RemoteRange>,
    },
    Record {
        qp: u8,
        receive: bool,
        value: u16,
    },
    Ring {
        function: bool,
        register: u8,
        value: u64,
        trapped: bool,
    },
    Arm {
        cq: u8,
        word: u32,
    },
    Consume {
        cq: u8,
        index: u32,
    },
    Memory {
        function: bool,
        at: Address,
        bytes: Vec<u8>,
    },
    Turns(u8),
    Advance(u32),
    Move {
        step: Step,
        qp: u8,
    },
    Raise {
        qp: u8,
    },
    Destroy {
        function: bool,
        sort: ObjectKind,
        index: u8,
    },
    Key {
        function: bool,
        key: Key,
    },
    Port {
        function: bool,
        up: bool,
    },
    /// A packet for a QP, sent by its peer's port or by its own.
    Packet {
        qp: u8,
        frame: Frame,
        own: bool,
    },
    Lose {
        function: bool,
        what: u8,
        skip: u8,
        count: u8,
    },
}

/// The queues that exist at the start, pair by pair.
#[derive(Arbitrary, Debug)]
struct Start {
    pairs: [Pair; 2],
    big_cqes: bool,
    loopback: bool,
    klm_of_klm: bool,
    /// A watcher exists, so that messages go in packets.
    packets: bool,
}

#[derive(Arbitrary, Debug, Clone, Copy)]
enum Pair {
    Rc,
    RcShared,
    RcXrcSrq,
    RcInCqe,
    Uc,
    Ud,
    UdShared,
    Management,
    Umr,
    UmrRc,
}

impl Pair {
    fn queues(self) -> (ServiceType, Receives) {
        match self {
            Self::Rc | Self::RcInCqe => (ServiceType::RC, Receives::Own),
            Self::RcShared => (ServiceType::RC, Receives::Shared(0)),
            Self::RcXrcSrq => (ServiceType::RC, Receives::Shared(1)),
            Self::Uc => (ServiceType::UC, Receives::Own),
            Self::Ud => (ServiceType::UD, Receives::Own),
            Self::UdShared => (ServiceType::UD, Receives::Shared(0)),
            Self::Management => (ServiceType::QP1, Receives::Own),
            Self::Umr => (ServiceType::REG_UMR, Receives::None),
            Self::UmrRc => (ServiceType::RC, Receives::Own),
        }
    }
}

struct Lab {
    machine: Machine,
    /// The services of each function's QPs, in the order of `known.queues`.
    services: [Vec<ServiceType>; 2],
    loopback: bool,
    /// The next PSN of a packet for each QP of each function.
    psns: [Vec<u32>; 2],
    _watch: Option<Watch>,
}

impl Lab {
    fn new(start: &Start) -> Self {
        let mut lab = Self {
            machine: Machine::new(2, Link::Infiniband),
            services: [Vec::new(), Vec::new()],
            loopback: start.loopback,
            psns: [Vec::new(), Vec::new()],
            _watch: None,
        };
        if start.packets {
            lab._watch = Some(lab.machine.device.model().watch_frames(|_| ()));
        }
        for function in 0..2 {
            lab.create_objects(function, start);
        }
        for pair in start.pairs {
            lab.pair(pair);
        }
        lab
    }

    fn create_objects(&mut self, function: usize, start: &Start) {
        let machine = &mut self.machine;
        machine.bring_up(function);
        let big = start.big_cqes;
        let objects = [
            Object::Pd,
            Object::Uar,
            Object::Xrcd,
            Object::Eq { events: true, log_size: 4, uar: 0 },
            Object::Eq { events: false, log_size: 4, uar: 0 },
            Object::Cq { big, log_size: 3, umem: false, eq: 1, uar: 0 },
            Object::Cq { big: !big, log_size: 3, umem: false, eq: 1, uar: 0 },
            Object::Mkey { key: Key::Pages { umr: true, same: false }, pd: 0 },
            Object::Mkey { key: Key::Klms { keys: [0, 0, 1], length: 0x1001, count: 2 }, pd: 0 },
            Object::Mkey { key: Key::Physical, pd: 0 },
            Object::Mkey { key: Key::Free { mode: 0 }, pd: 0 },
            Object::Mkey { key: Key::Free { mode: 1 }, pd: 0 },
            Object::Rmp { pd: 0, umem: false },
            Object::XrcSrq { pd: 0, cq: 1, xrcd: 0 },
        ];
        for object in &objects {
            machine.make(function, 0, object, &[], None);
        }
        if start.klm_of_klm {
            let key = Key::Klms { keys: [1, 5, 0], length: 0x2000, count: 4 };
            machine.make(function, 0, &Object::Mkey { key, pd: 0 }, &[], None);
        }
    }

    fn pair(&mut self, pair: Pair) {
        let (service, receives) = pair.queues();
        let mut made = [0; 2];
        for (function, made) in made.iter_mut().enumerate() {
            let service = match (service, function) {
                (ServiceType::QP1, 1) => ServiceType::QP0,
                _ => service,
            };
            let cqs = if matches!(pair, Pair::RcInCqe) { [0, 1] } else { [0, 0] };
            let umem = false;
            let object = Object::Qp { service, receives, umem, pd: 0, cqs, uar: 0 };
            *made = self.machine.make(function, 0, &object, &[], None).unwrap_or(0);
            self.services[function].push(service);
        }
        let index = self.services[0].len() as u8 - 1;
        for function in 0..2 {
            self.raise(function, index);
        }
    }

    /// Brings a QP to RTS, connected to the QP of the same index on the other function, or to
    /// itself.
    fn raise(&mut self, function: usize, index: u8) {
        for step in [Step::Init, Step::Receive, Step::Send] {
            self.step(function, index, step);
        }
    }

    fn step(&mut self, function: usize, index: u8, step: Step) {
        let other = if self.loopback { function } else { 1 - function };
        let qpn = self.machine.known[function].pick(ObjectKind::Qp, index);
        let peer = (lid(other), self.machine.known[other].pick(ObjectKind::Qp, index));
        self.machine.step_queue(function, 0, step, qpn, peer, &[], None);
        if step == Step::Init && self.service(function, index) == Some(ServiceType::UD) {
            let mut attach = AttachToMcgIn::new();
            let mut group = [0; 16];
            group[0] = 0xff;
            attach.set_qpn(qpn).set_multicast_gid(&group);
            self.machine.say(function, &attach);
        }
    }

    fn service(&self, function: usize, index: u8) -> Option<ServiceType> {
        let services = &self.services[function];
        services.get(usize::from(index) % services.len().max(1)).copied()
    }

    /// Function, index among its QPs, and the QP.
    fn queue(&self, qp: u8) -> Option<(usize, usize)> {
        let function = usize::from(qp & 1);
        let count = self.machine.known[function].queues.len();
        (count > 0).then(|| (function, usize::from(qp >> 1) % count))
    }

    fn request(&self, (function, index): (usize, usize), wqe: &Wqe) -> Vec<u8> {
        let queue = &self.machine.known[function].queues[index];
        let datagram = matches!(
            self.services[function].get(index).copied(),
            Some(ServiceType::UD | ServiceType::QP0 | ServiceType::QP1)
        );
        let endpoints = Endpoints {
            known: &self.machine.known[function],
            peer: &self.machine.known[if self.loopback { function } else { 1 - function }],
            qpn: queue.qpn,
            index: queue.posted,
            datagram,
        };
        wqe.bytes(&endpoints)
    }

    /// Writes a request to its ring, and updates the doorbell record.
    fn post(&mut self, (function, index): (usize, usize), bytes: &[u8]) {
        let queue = &mut self.machine.known[function].queues[index];
        let memory = &self.machine.guests[function].memory;
        let ring = queue.ring + object::RQ_BYTES;
        for (number, block) in (0..).zip(bytes.chunks(64)) {
            let at = queue.posted.wrapping_add(number) % WQEBBS;
            memory.put(ring + u64::from(at) * 64, block);
        }
        queue.posted = queue.posted.wrapping_add(bytes.len().div_ceil(64) as u16);
        memory.put(queue.record + 4, &u32::from(queue.posted).to_be_bytes());
    }

    fn run(&mut self, operation: &RequestStep) {
        match operation {
            RequestStep::Post { qp, wqe, ring } => {
                let Some(at) = self.queue(*qp) else { return };
                let bytes = self.request(at, wqe);
                self.post(at, &bytes);
                if *ring {
                    self.ring(at);
                }
            }
            RequestStep::Copy { qp, wqe, from_ring } => self.copy(*qp, wqe, *from_ring),
            RequestStep::Receive { qp, data } => {
                let Some((function, index)) = self.queue(*qp) else { return };
                let known = &self.machine.known[function];
                let bytes = wqe::receive(data, known);
                let queue = &mut self.machine.known[function].queues[index];
                let at = queue.ring + u64::from(queue.received % RECEIVES) * 64;
                queue.received = queue.received.wrapping_add(1);
                let memory = &self.machine.guests[function].memory;
                memory.put(at, &bytes);
                memory.put(queue.record, &u32::from(queue.received).to_be_bytes());
            }
            RequestStep::Share { pool, next, data } => self.share(*pool, *next, data),
            RequestStep::Record { qp, receive, value } => {
                let Some((function, index)) = self.queue(*qp) else { return };
                let record = self.machine.known[function].queues[index].record;
                let at = record + if *receive { 0 } else { 4 };
                let word = u32::from(*value).to_be_bytes();
                self.machine.guests[function].memory.put(at, &word);
            }
            RequestStep::Ring { function, register, value, trapped } => {
                let function = usize::from(*function);
                let page = self.machine.known[function].pick(ObjectKind::Uar, 0);
                let register = u64::from(*register) * 0x10;
                self.machine.store(function, page, register, *value, *trapped);
            }
            RequestStep::Arm { cq, word } => {
                let Some((function, cqn, record)) = self.completions(*cq) else { return };
                let page = self.machine.known[function].pick(ObjectKind::Uar, 0);
                self.machine.guests[function].memory.put(record + 4, &word.to_be_bytes());
                let value = u64::from(*word) << 32 | u64::from(cqn);
                self.machine.store(function, page, 0x20, value, false);
            }
            RequestStep::Consume { cq, index } => {
                let Some((function, _, record)) = self.completions(*cq) else { return };
                self.machine.guests[function].memory.put(record, &index.to_be_bytes());
            }
            RequestStep::Memory { function, at, bytes } => {
                self.machine.guests[usize::from(*function)].memory.put(at.get(), bytes);
            }
            RequestStep::Turns(turns) => self.machine.turn(u32::from(*turns) % TURNS),
            RequestStep::Advance(by) => self.machine.advance(Duration::from_micros((*by).into())),
            RequestStep::Move { step, qp } => {
                self.step(usize::from(qp & 1), qp >> 1, *step);
            }
            RequestStep::Raise { qp } => {
                let (function, index) = (usize::from(qp & 1), qp >> 1);
                self.step(function, index, Step::Reset);
                if let Some((function, index)) = self.queue(*qp) {
                    let queue = &mut self.machine.known[function].queues[index];
                    (queue.posted, queue.received) = (0, 0);
                    self.machine.guests[function].memory.put(queue.record, &[0; 8]);
                }
                self.raise(function, index);
            }
            RequestStep::Destroy { function, sort, index } => {
                let function = usize::from(*function);
                let number = self.machine.known[function].pick(*sort, *index);
                let input = object::destroy(*sort, number, *index & 1 == 0);
                self.machine.send(function, 0, input, 16, &[], None);
            }
            RequestStep::Key { function, key } => {
                let object = Object::Mkey { key: *key, pd: 0 };
                self.machine.make(usize::from(*function), 0, &object, &[], None);
            }
            RequestStep::Port { function, up } => {
                self.machine.device.model().set_port(usize::from(*function), 1, *up);
            }
            RequestStep::Packet { qp, frame, own } => {
                let Some((function, index)) = self.queue(*qp) else { return };
                let from = if *own { function } else { 1 - function };
                let psns = &mut self.psns[function];
                psns.resize(psns.len().max(index + 1), 0);
                let service = match self.services[function].get(index).copied() {
                    Some(ServiceType::RC | ServiceType::REG_UMR) => 0,
                    Some(ServiceType::UC) => 1,
                    _ => 3,
                };
                let known = &self.machine.known[function];
                let (lids, qpn) = ([lid(from), lid(function)], known.queues[index].qpn);
                let (bytes, next) =
                    frame.bytes(&Ends { lids, qpn, service, psn: psns[index], known });
                psns[index] += u32::from(next);
                self.machine.device.model().fuzz_frame(from, 1, &bytes);
            }
            RequestStep::Lose { function, what, skip, count } => {
                let fault = match what % 4 {
                    0 => Fault::LoseMessage,
                    1 => Fault::LoseDoorbell,
                    2 => Fault::LoseCompletion,
                    _ => Fault::DelayCompletion(Duration::from_micros(u64::from(*what) * 10)),
                };
                let model = self.machine.device.model();
                model.inject(
                    usize::from(*function),
                    fault,
                    u32::from(*skip) % 8,
                    u32::from(*count) % 8,
                );
            }
        }
    }

    fn ring(&mut self, (function, index): (usize, usize)) {
        let page = self.machine.known[function].queues[index].uar;
        self.machine.store(function, page, 0x800, 1, false);
    }

    /// A BlueFlame copy, eight bytes at a time; the ring holds the same WQE or another one.
    fn copy(&mut self, qp: u8, wqe: &Wqe, same: bool) {
        let Some((function, index)) = self.queue(qp) else { return };
        let bytes = self.request((function, index), wqe);
        let queue = &mut self.machine.known[function].queues[index];
        let page = queue.uar;
        let record = queue.record;
        queue.posted = queue.posted.wrapping_add(bytes.len().div_ceil(64) as u16);
        let posted = u32::from(queue.posted);
        if same {
            queue.posted = queue.posted.wrapping_sub(bytes.len().div_ceil(64) as u16);
            self.post((function, index), &bytes);
        }
        self.machine.guests[function].memory.put(record + 4, &posted.to_be_bytes());
        for (number, word) in bytes.chunks_exact(8).take(32).enumerate() {
            let value = u64::from_be_bytes(word.try_into().unwrap_or_default());
            self.machine.store(function, page, 0x800 + 8 * number as u64, value, true);
        }
    }

    fn share(&mut self, pool: u8, next: Option<u16>, data: &[RemoteRange]) {
        let function = usize::from(pool & 1);
        let count = self.machine.known[function].pools.len();
        if count == 0 {
            return;
        }
        let segments = wqe::receive(data, &self.machine.known[function]);
        let pool = &mut self.machine.known[function].pools[usize::from(pool >> 1) % count];
        let index = pool.received % POOL;
        let mut wqe = vec![0; 16];
        wqe[2..4].copy_from_slice(&next.unwrap_or((index + 1) % POOL).to_be_bytes());
        wqe.extend(&segments[..segments.len().min(48)]);
        pool.received = pool.received.wrapping_add(1);
        let memory = &self.machine.guests[function].memory;
        memory.put(pool.ring + u64::from(index) * 64, &wqe);
        memory.put(pool.record, &u32::from(pool.received).to_be_bytes());
    }

    /// Function, number and record of a CQ.
    fn completions(&self, cq: u8) -> Option<(usize, u32, u64)> {
        let function = usize::from(cq & 1);
        let records = &self.machine.known[function].records;
        let &(cqn, record) = records.get(usize::from(cq >> 1) % records.len().max(1))?;
        Some((function, cqn, record))
    }
}

/// The LID of a function's port.
fn lid(function: usize) -> u16 {
    function as u16 + 1
}

fuzz_target!(|data: &[u8]| {
    let mut input = Unstructured::new(data);
    let Ok(start) = input.arbitrary::<Start>() else { return };
    let mut lab = Lab::new(&start);
    // The data that atomics and READs find.
    for guest in &lab.machine.guests {
        guest.memory.put(DATA, &[0x11; 64]);
    }
    for _ in 0..OPERATIONS {
        if input.is_empty() || lab.machine.is_over_budget() {
            break;
        }
        let Ok(operation) = input.arbitrary::<RequestStep>() else { break };
        lab.run(&operation);
    }
    lab.machine.turn(TURNS);
    lab.machine.finish();
});
