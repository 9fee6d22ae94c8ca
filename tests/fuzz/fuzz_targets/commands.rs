//! The command interface against a hostile guest: commands with one wrong field, corrupt entries
//! and mailboxes, random bytes; then doorbells for live and for destroyed queues.
#![no_main]

use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;
use verbless_fuzz::address::{Address, COMMANDS};
use verbless_fuzz::guest::Corruption;
use verbless_fuzz::machine::{Machine, ObjectKind};
use verbless_fuzz::object::{self, Object, Step};
use verbless_fuzz::tweak::Tweak;
use verbless_fuzz::wqe::{Endpoints, Wqe};
use verbless_model::Link;
use verbless_model_host::pci::Region;
use verbless_prm::{COMMANDS as ALL, CommandInfo, ServiceType};

/// Maximum operations and turns of one run.
const OPERATIONS: usize = 64;
const TURNS: u32 = 64;

#[derive(Arbitrary, Debug)]
enum CommandStep {
    Make {
        object: Object,
        uid: u8,
        tweaks: Tweaks,
        corruption: Option<Corruption>,
    },
    Move {
        step: Step,
        qp: u8,
        uid: u8,
        tweaks: Tweaks,
        corruption: Option<Corruption>,
    },
    Raise {
        qp: u8,
    },
    Destroy {
        sort: ObjectKind,
        index: u8,
        rmp: bool,
        uid: u8,
    },
    Command {
        which: u8,
        op_mod: u8,
        uid: u8,
        tweaks: Tweaks,
        list: Vec<u8>,
        room: u16,
        corruption: Option<Corruption>,
    },
    Bytes {
        input: Vec<u8>,
        room: u16,
        corruption: Option<Corruption>,
    },
    BringUp,
    Post {
        qp: u8,
        wqe: Wqe,
    },
    Record {
        qp: u8,
        receive: bool,
        value: u16,
    },
    Store {
        uar: u8,
        register: u8,
        value: u64,
        trapped: bool,
    },
    Arm {
        cq: u8,
        uar: u8,
        word: u32,
    },
    Memory {
        at: Address,
        bytes: Vec<u8>,
    },
    Write {
        at: u32,
        bytes: [u8; 8],
        length: u8,
    },
    Read {
        at: u32,
        length: u8,
        config: bool,
    },
    Config {
        at: u16,
        bytes: [u8; 4],
    },
    Queue(Address),
    Turns(u8),
    Advance(u32),
    Port(bool),
    Reset,
}

#[derive(Arbitrary, Debug)]
struct Tweaks(Option<[Tweak; 1]>, Option<[Tweak; 2]>);

impl Tweaks {
    fn all(&self) -> Vec<Tweak> {
        self.0.iter().flatten().chain(self.1.iter().flatten()).copied().collect()
    }
}

/// Mostly the kernel.
fn uid(machine: &Machine, uid: u8) -> u32 {
    match uid {
        0..0xc0 => 0,
        0xff => 0xffff,
        _ => machine.known[0].pick(ObjectKind::Uid, uid),
    }
}

fn run(machine: &mut Machine, operation: &CommandStep) {
    match operation {
        CommandStep::Make { object, uid: u, tweaks, corruption } => {
            machine.make(0, uid(machine, *u), object, &tweaks.all(), *corruption);
        }
        CommandStep::Move { step, qp, uid: u, tweaks, corruption } => {
            let qpn = machine.known[0].pick(ObjectKind::Qp, *qp);
            machine.step_queue(
                0,
                uid(machine, *u),
                *step,
                qpn,
                (1, qpn),
                &tweaks.all(),
                *corruption,
            );
        }
        CommandStep::Raise { qp } => {
            let qpn = machine.known[0].pick(ObjectKind::Qp, *qp);
            for step in [Step::Init, Step::Receive, Step::Send] {
                machine.step_queue(0, 0, step, qpn, (1, qpn), &[], None);
            }
        }
        CommandStep::Destroy { sort, index, rmp, uid: u } => {
            let input = object::destroy(*sort, machine.known[0].pick(*sort, *index), *rmp);
            machine.send(0, uid(machine, *u), input, 16, &[], None);
        }
        CommandStep::Command { which, op_mod, uid: u, tweaks, list, room, corruption } => {
            let command: &CommandInfo = ALL[usize::from(*which) % ALL.len()];
            let mut input = vec![0; command.input.bytes.max(8)];
            input[..2].copy_from_slice(&command.opcode.to_be_bytes());
            input[7] = *op_mod;
            input.extend(list);
            let room = command.output.bytes + usize::from(*room) % 0x2000;
            machine.send(0, uid(machine, *u), input, room, &tweaks.all(), *corruption);
        }
        CommandStep::Bytes { input, room, corruption } => {
            machine.send(0, 0, input.clone(), usize::from(*room), &[], *corruption);
        }
        CommandStep::BringUp => machine.bring_up(0),
        CommandStep::Post { qp, wqe } => post(machine, *qp, wqe),
        CommandStep::Record { qp, receive, value } => {
            let queues = &machine.known[0].queues;
            if let Some(queue) = queues.get(usize::from(*qp) % queues.len().max(1)) {
                let at = queue.record + if *receive { 0 } else { 4 };
                machine.guests[0].memory.put(at, &u32::from(*value).to_be_bytes());
            }
        }
        CommandStep::Store { uar, register, value, trapped } => {
            let page = machine.known[0].pick(ObjectKind::Uar, *uar);
            machine.store(0, page, u64::from(*register) * 0x20, *value, *trapped);
        }
        CommandStep::Arm { cq, uar, word } => {
            let page = machine.known[0].pick(ObjectKind::Uar, *uar);
            let cqn = machine.known[0].pick(ObjectKind::Cq, *cq);
            machine.store(0, page, 0x20, u64::from(*word) << 32 | u64::from(cqn), false);
        }
        CommandStep::Memory { at, bytes } => machine.guests[0].memory.put(at.get(), bytes),
        CommandStep::Write { at, bytes, length } => {
            let length = usize::from(*length) % 9;
            machine.device.write(0, Region::Bar, (*at).into(), &bytes[..length]);
        }
        CommandStep::Read { at, length, config } => {
            let region = if *config { Region::Config } else { Region::Bar };
            machine.device.read(0, region, (*at).into(), &mut vec![0; usize::from(*length)]);
        }
        CommandStep::Config { at, bytes } => {
            machine.device.write(0, Region::Config, (*at).into(), bytes);
        }
        CommandStep::Queue(address) => {
            let queue = if address.get() & 1 == 0 { COMMANDS } else { address.page() };
            machine.guests[0].set_queue(&mut machine.device, queue);
        }
        CommandStep::Turns(turns) => machine.turn(u32::from(*turns) % TURNS),
        CommandStep::Advance(by) => machine.advance(Duration::from_micros((*by).into())),
        CommandStep::Port(up) => machine.device.model().set_port(0, 1, *up),
        CommandStep::Reset => machine.device.reset(0),
    }
}

/// Posts a request, and rings for it.
fn post(machine: &mut Machine, qp: u8, wqe: &Wqe) {
    let known = &machine.known[0];
    let index = usize::from(qp) % known.queues.len().max(1);
    let Some(&queue) = known.queues.get(index) else { return };
    let endpoints = Endpoints {
        known,
        peer: known,
        qpn: queue.qpn,
        index: queue.posted,
        datagram: qp & 0x80 != 0,
    };
    let bytes = wqe.bytes(&endpoints);
    let posted = queue.posted.wrapping_add(bytes.len().div_ceil(64) as u16);
    let memory = &machine.guests[0].memory;
    let at = queue.ring + object::RQ_BYTES + u64::from(queue.posted % 16) * 64;
    memory.put(at, &bytes[..bytes.len().min(64 * (16 - usize::from(queue.posted % 16)))]);
    memory.put(queue.record + 4, &u32::from(posted).to_be_bytes());
    machine.known[0].queues[index].posted = posted;
    machine.store(0, queue.uar, 0x800, 1, false);
}

/// The start of most runs: one object of each kind, so that later operations have numbers to name.
fn create_objects(machine: &mut Machine) {
    use verbless_fuzz::object::{Key, Receives};
    machine.bring_up(0);
    let basics = [
        Object::Pd,
        Object::Uar,
        Object::Eq { events: true, log_size: 4, uar: 0 },
        Object::Eq { events: false, log_size: 4, uar: 0 },
        Object::Cq { big: false, log_size: 4, umem: false, eq: 1, uar: 0 },
        Object::Mkey { key: Key::Pages { umr: true, same: false }, pd: 0 },
        Object::Rmp { pd: 0, umem: false },
        Object::Qp {
            service: ServiceType::RC,
            receives: Receives::Own,
            umem: false,
            pd: 0,
            cqs: [0, 0],
            uar: 0,
        },
    ];
    for object in &basics {
        machine.make(0, 0, object, &[], None);
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Unstructured::new(data);
    let Ok(start) = input.arbitrary::<u8>() else { return };
    let link = if start & 1 == 0 { Link::Infiniband } else { Link::Ethernet };
    let mut machine = Machine::new(1, link);
    if start & 6 != 6 {
        create_objects(&mut machine);
    }
    for _ in 0..OPERATIONS {
        if input.is_empty() || machine.is_over_budget() {
            break;
        }
        let Ok(operation) = input.arbitrary::<CommandStep>() else { break };
        run(&mut machine, &operation);
    }
    machine.turn(TURNS);
    machine.finish();
});
