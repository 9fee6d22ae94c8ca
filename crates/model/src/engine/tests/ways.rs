//! A message that is carried whole and one that goes in packets have the same results: every CQE,
//! every event, every byte, every counter, and the PSNs.

use proptest::prelude::*;
use verbless_prm::QueryQCounterOut;
use verbless_prm::hot::{DataSegment, opcode};

use super::rig::*;
use crate::cases::at_most;
use crate::engine;
use crate::engine::transport::types::{RC, UC};
use crate::hca::objects::{Access, QCounter, QpState};
use crate::hca::qp_type::QpType;

const BYTES: u64 = 5000;

/// An action of a program.
#[derive(Debug, Clone)]
enum Action {
    Receive {
        length: u32,
        bad_key: bool,
    },
    Send {
        length: u32,
        how: How,
    },
    Write {
        at: u64,
        length: u32,
        how: How,
    },
    Read {
        at: u64,
        length: u32,
        how: How,
    },
    Atomic {
        add: bool,
        at: u64,
        value: u64,
    },
    Nop,
    /// The peer revokes this access flag.
    Forbid(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Plain,
    Immediate,
    Invalidate,
    Inline,
    Unsignaled,
    Solicited,
    BadLocalKey,
    BadRemoteKey,
}

fn how() -> impl Strategy<Value = How> {
    prop_oneof![
        6 => Just(How::Plain),
        2 => Just(How::Immediate),
        1 => Just(How::Invalidate),
        2 => Just(How::Inline),
        2 => Just(How::Unsignaled),
        1 => Just(How::Solicited),
        1 => Just(How::BadLocalKey),
        1 => Just(How::BadRemoteKey),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    let length = || {
        prop_oneof![Just(0_u32), 1..70_u32, 200..1100_u32, 1900..BYTES as u32, Just(BYTES as u32)]
    };
    prop_oneof![
        4 => (length(), prop::bool::weighted(0.05))
            .prop_map(|(length, bad_key)| Action::Receive { length, bad_key }),
        4 => (length(), how()).prop_map(|(length, how)| Action::Send { length, how }),
        4 => (0..64_u64, length(), how())
            .prop_map(|(at, length, how)| Action::Write { at, length, how }),
        3 => (0..64_u64, length(), how())
            .prop_map(|(at, length, how)| Action::Read { at, length, how }),
        2 => (any::<bool>(), 0..17_u64, any::<u64>())
            .prop_map(|(add, at, value)| Action::Atomic { add, at, value }),
        1 => Just(Action::Nop),
        1 => (0..3_u8).prop_map(Action::Forbid),
    ]
}

/// The results of the requests.
#[derive(Debug, PartialEq)]
struct Outcome {
    cqes: Vec<Vec<u8>>,
    events: [Vec<u8>; 2],
    memory: [Vec<u8>; 2],
    counters: [QueryQCounterOut; 2],
    states: Vec<(QpState, Option<(u32, u32)>)>,
}

fn run(program: &[Action], service: &'static QpType, inline: u8, in_packets: bool) -> Outcome {
    let mut rig = Rig::new();
    rig.locked.in_packets = in_packets;
    let (mut a, mut b) = rig.pair();
    for end in [&a, &b] {
        let qp = rig.qp(end);
        (qp.qp_type, qp.log_mtu) = (service, 8);
        (qp.requester_inline, qp.responder_inline) = (inline, inline);
        qp.requester.psn = 0xff_fffd;
        qp.responder.psn = 0xff_fffd;
        qp.context.set_counter_set_id(7);
        let values = QueryQCounterOut::zeroed();
        rig.locked.functions[end.hca].hca.objects.counters.insert(7, QCounter { uid: 0, values });
    }
    let (local, lkey) = rig.region(0, BYTES + 64);
    let (remote, rkey) = rig.region(1, BYTES + 64);
    let (received, receive_key) = rig.region(1, BYTES + 64);
    let fill: Vec<u8> = (0..BYTES + 64).map(|at| (at * 7 % 251) as u8).collect();
    rig.fill(local, &fill);
    let mut cqes = Vec::new();
    for action in program {
        let remote_key = |how: How| if how == How::BadRemoteKey { rkey ^ 0x100 } else { rkey };
        let local_key = |how: How| if how == How::BadLocalKey { lkey ^ 1 } else { lkey };
        let finish = |request: Request, length: u32, how: How| {
            let request = match how {
                How::Unsignaled => request.unsignaled(),
                How::Solicited => request.solicited(),
                _ => request,
            };
            match (length, how) {
                (0, _) => request,
                (_, How::Inline) => request.inline(&fill[..length.min(200) as usize]),
                _ => request.sge(local, length, local_key(how)),
            }
        };
        let request = match *action {
            Action::Receive { length, bad_key } => {
                if b.received.wrapping_sub(rig.qp(&b).rq.as_ref().unwrap().consumer) < 15 {
                    let key = if bad_key { receive_key ^ 1 } else { receive_key };
                    rig.receive(&mut b, &[DataSegment::new(length.max(1), key, received)]);
                }
                None
            }
            Action::Send { length, how } => {
                let request = match how {
                    How::Immediate => Request::new(opcode::SEND_IMM).imm(0x1234_5678),
                    How::Invalidate => Request::new(opcode::SEND_INVALIDATE).imm(rkey ^ 0x100),
                    _ => Request::send(),
                };
                Some(finish(request, length, how))
            }
            Action::Write { at, length, how } => {
                // In packets only the last one needs the receive: the earlier ones are written.
                let waits = rig.qp(&b).rq.as_ref().unwrap().consumer != b.received;
                let cut = how == How::Immediate && !waits;
                let length = if cut { length.min(256) } else { length };
                let request = match how {
                    How::Immediate => Request::new(opcode::WRITE_IMM)
                        .remote(remote + at, remote_key(how))
                        .imm(0x9abc_def0),
                    _ => Request::write(remote + at, remote_key(how)),
                };
                Some(finish(request, length, how))
            }
            Action::Read { at, length, how } if how != How::Inline => {
                Some(finish(Request::read(remote + at, remote_key(how)), length, how))
            }
            Action::Read { .. } => None,
            Action::Atomic { add, at, value } => {
                let code = if add { opcode::FETCH_ADD } else { opcode::COMPARE_SWAP };
                let request = Request::atomic(code, remote + at, rkey, value, value >> 1);
                Some(request.sge(local, 8, lkey))
            }
            Action::Nop => Some(Request::new(opcode::NOP)),
            Action::Forbid(what) => {
                let key = rig.mkey_mut(1, rkey);
                let Access { remote_read, remote_write, atomic, .. } = &mut key.access;
                *[remote_read, remote_write, atomic][usize::from(what)] = false;
                None
            }
        };
        if let Some(request) = request {
            rig.post(&mut a, request);
        }
        while engine::step(&mut rig.locked) || engine::jump(&mut rig.locked) {}
        for (hca, cqn) in [(0, a.send_cq), (0, a.receive_cq), (1, b.send_cq), (1, b.receive_cq)] {
            while let Some(mut entry) = rig.poll(hca, cqn) {
                entry.cqe.set_timestamp(0);
                cqes.push([&cqn.to_be_bytes(), &entry.cqe.as_bytes()[..]].concat());
            }
        }
    }
    let size = (BYTES + 64) as usize;
    let ends = [a, b];
    // The PSNs of a failed connection may differ, and so may the memory of a message that failed
    // halfway.
    let connected = ends.iter().all(|end| rig.qp(end).state == QpState::Rts);
    let state = |rig: &mut Rig, end: &Endpoint| {
        let qp = rig.qp(end);
        (qp.state, Some((qp.requester.psn, qp.responder.psn)).filter(|_| connected))
    };
    Outcome {
        cqes,
        events: [rig.events(0), rig.events(1)],
        memory: [rig.bytes(local, size), {
            let mut bytes = rig.bytes(remote, size);
            bytes.extend(rig.bytes(received, size));
            bytes
        }],
        counters: [0, 1].map(|hca| rig.locked.functions[hca].hca.objects.counters[&7].values),
        states: vec![state(&mut rig, &a), state(&mut rig, &b)],
    }
}

proptest! {
    #![proptest_config(at_most(64))]

    #[test]
    fn whole_and_packet_modes_leave_same_state(
        program in prop::collection::vec(action(), 1..14),
        service in prop_oneof![2 => Just(RC), 1 => Just(UC)],
        inline in prop_oneof![Just(0), Just(32)],
    ) {
        let whole = run(&program, service, inline, false);
        let packets = run(&program, service, inline, true);
        prop_assert_eq!(&whole.states, &packets.states);
        prop_assert_eq!(&whole.cqes, &packets.cqes);
        prop_assert_eq!(&whole.events, &packets.events);
        prop_assert_eq!(&whole.counters, &packets.counters);
        let connected = whole.states.iter().all(|(state, _)| *state == QpState::Rts);
        prop_assert!(!connected || whole == packets, "the memory differs");
    }
}
