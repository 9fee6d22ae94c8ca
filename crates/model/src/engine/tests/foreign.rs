//! Packets that our requester never sends, from a peer that writes its own: too many READs and
//! atomics at a time, and keys of other partitions. Also the credits and counts in answers.

use std::sync::{Arc, Mutex};

use verbless_prm::hot::{DataSegment, cqe_opcode, cqe_syndrome, event_type, opcode};
use verbless_prm::{Aeth, AethNak, AtomicEth, Bth, BthOpcode, Deth, Lrh, Reth};

use super::rig::{Endpoint, Request, Rig};
use crate::engine::transport::types::{UC, UD};
use crate::fabric::Vport;
use crate::hca::objects::QpState;
use crate::hca::qp_type::QpType;
use crate::hca::state::Violations;
use verbless_wire::{Extensions, Headers, Message, Packet, Route, Transport};

const Q_KEY: u32 = 0x1111_1111;

/// The fields of a peer's packet.
#[derive(Clone, Copy)]
struct Foreign {
    opcode: BthOpcode,
    psn: u32,
    pkey: u16,
    extensions: Extensions,
}

impl Foreign {
    fn new(opcode: BthOpcode, psn: u32) -> Self {
        Self { opcode, psn, pkey: 0xffff, extensions: Extensions::default() }
    }

    fn read(psn: u32, address: u64, rkey: u32, length: u32) -> Self {
        let mut reth = Reth::zeroed();
        reth.set_virtual_address(address).set_rkey(rkey).set_dma_length(length);
        let extensions = Extensions { reth: Some(reth), ..Extensions::default() };
        Self { extensions, ..Self::new(BthOpcode::RC_READ_REQUEST, psn) }
    }

    fn write(opcode: BthOpcode, psn: u32, address: u64, rkey: u32) -> Self {
        Self { opcode, ..Self::read(psn, address, rkey, PAYLOAD.len() as u32) }
    }

    fn add(psn: u32, address: u64, rkey: u32, by: u64) -> Self {
        let mut atomic = AtomicEth::zeroed();
        atomic.set_virtual_address(address).set_rkey(rkey).set_swap_or_add(by);
        let extensions = Extensions { atomic_eth: Some(atomic), ..Extensions::default() };
        Self { extensions, ..Self::new(BthOpcode::RC_FETCH_ADD, psn) }
    }

    fn datagram(q_key: u32) -> Self {
        let mut deth = Deth::zeroed();
        deth.set_queue_key(q_key).set_source_qp(5);
        let extensions = Extensions { deth: Some(deth), ..Extensions::default() };
        Self { extensions, ..Self::new(BthOpcode::UD_SEND_ONLY, 0) }
    }

    fn pkey(self, pkey: u16) -> Self {
        Self { pkey, ..self }
    }

    /// Sends the packet to QP `to` from the port of QP `from`.
    fn send(&self, rig: &mut Rig, from: &Endpoint, to: &Endpoint, payload: &[u8]) {
        let lid = |end: &Endpoint| rig.locked.functions[end.hca].hca.ports[0].lid;
        let mut lrh = Lrh::zeroed();
        lrh.set_destination_lid(lid(to)).set_source_lid(lid(from));
        let mut bth = Bth::zeroed();
        bth.set_opcode(self.opcode)
            .set_acknowledge(true)
            .set_migrated(true)
            .set_partition_key(self.pkey)
            .set_destination_qp(to.qpn)
            .set_psn(self.psn);
        let transport = Transport { bth, extensions: self.extensions };
        let headers = Headers { route: Route::Local(lrh), transport };
        let buffers = &mut rig.locked.functions[from.hca].engine.buffers;
        let frame = buffers.packet(&headers, payload.len(), |into| into.copy_from_slice(payload));
        let now = rig.locked.clock.now;
        let from = Vport { function: from.hca, port: 1 };
        rig.locked.fabric().lock().transmit(now, from, frame);
    }
}

const PAYLOAD: &[u8] = b"not from here";

/// The AETHs that a port sends after this call, with their opcodes and PSNs.
fn answers(rig: &Rig, of: usize) -> Arc<Mutex<Vec<(Message, u32, Aeth)>>> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = seen.clone();
    rig.locked.outbox().frames.add(move |frame: &crate::watch::SeenFrame| {
        if frame.port != of || !frame.leaving {
            return;
        }
        let packet = Packet::parse_infiniband(&frame.bytes).expect("a packet");
        let transport = packet.headers.transport;
        if let (Some(opcode), Some(aeth)) = (transport.opcode(), transport.extensions.aeth) {
            sink.lock().unwrap().push((opcode.message, transport.bth.psn(), aeth));
        }
    });
    seen
}

/// Runs, and returns the recorded answers.
fn received<T: Clone>(rig: &mut Rig, seen: &Mutex<Vec<T>>) -> Vec<T> {
    rig.run();
    rig.locked.outbox().frames.deliver();
    seen.lock().unwrap().clone()
}

const INVALID_REQUEST: u8 = 0x60 | AethNak::INVALID_REQUEST.0;

#[test]
fn excess_reads_and_atomics_are_invalid_requests() {
    const DEST_RD_ATOMIC: u8 = 3;
    for (reads, atomics) in [(4, 0), (0, 4), (2, 2), (1, 2)] {
        let mut rig = Rig::new();
        rig.locked.in_packets = true;
        let (a, b) = rig.pair();
        rig.qp(&b).responder.max_dest_rd_atomic = DEST_RD_ATOMIC;
        let (at, rkey) = rig.region(1, 64);
        let seen = answers(&rig, 1);
        let requests = (0..reads).map(|psn| Foreign::read(psn, at + 8, rkey, 8));
        let atomics = (reads..reads + atomics).map(|psn| Foreign::add(psn, at, rkey, 1));
        let requests: Vec<_> = requests.chain(atomics.clone()).collect();
        // They arrive in a row: the last one arrives before the first answer.
        requests.iter().for_each(|request| request.send(&mut rig, &a, &b, &[]));
        let received = received(&mut rig, &seen);
        let refused = requests.len() > usize::from(DEST_RD_ATOMIC);
        let last = received.last().expect("an answer");
        let nak = (last.0 == Message::Acknowledge).then_some((last.1, last.2.syndrome()));
        let case = (reads, atomics.len());
        assert_eq!(nak, refused.then_some((DEST_RD_ATOMIC.into(), INVALID_REQUEST)), "{case:?}");
        let state = if refused { QpState::Error } else { QpState::Rts };
        assert_eq!(rig.qp(&b).state, state, "{case:?}");
        let events = rig.events(1);
        assert_eq!(events.contains(&event_type::WQ_INVALID_REQUEST_ERROR), refused, "{events:?}");
        // A refused atomic is not executed.
        let executed = atomics.len() - usize::from(refused && atomics.len() > 0);
        let value = u64::from_ne_bytes(rig.bytes(at, 8).try_into().unwrap());
        assert_eq!(value, executed as u64, "{case:?}");
    }
}

#[test]
fn packet_length_must_match_its_opcode_and_order() {
    use BthOpcode as B;
    const MTU: usize = 1024;
    let (first, middle) = (B::RC_SEND_FIRST, B::RC_SEND_MIDDLE);
    let (last, only) = (B::RC_SEND_LAST, B::RC_SEND_ONLY);
    type Packets<'a> = &'a [(BthOpcode, usize)];
    let cases: [(Packets<'_>, bool); 14] = [
        (&[(only, 0)], true),
        (&[(only, MTU)], true),
        (&[(only, MTU + 4)], false),
        (&[(first, MTU), (last, 4)], true),
        (&[(first, MTU), (middle, MTU), (last, MTU)], true),
        (&[(first, MTU - 4)], false),
        (&[(first, MTU + 4)], false),
        (&[(first, MTU), (middle, MTU - 4)], false),
        (&[(first, MTU), (last, 0)], false),
        (&[(first, MTU), (last, MTU + 4)], false),
        (&[(middle, MTU)], false),
        (&[(last, 4)], false),
        (&[(first, MTU), (first, MTU)], false),
        (&[(first, MTU), (only, 4)], false),
    ];
    for (packets, fits) in cases {
        let mut rig = Rig::new();
        rig.locked.in_packets = true;
        let (a, mut b) = rig.pair();
        rig.qp(&b).log_mtu = 10;
        let (into, key) = rig.region(1, 8192);
        rig.receive(&mut b, &[DataSegment::new(8192, key, into)]);
        let seen = answers(&rig, 1);
        for (&(opcode, length), psn) in packets.iter().zip(0..) {
            Foreign::new(opcode, psn).send(&mut rig, &a, &b, &vec![7; length]);
        }
        let received = received(&mut rig, &seen);
        let said = received.last().map(|(_, psn, aeth)| (*psn as usize, aeth.syndrome()));
        let nak = said.filter(|&(_, syndrome)| syndrome == INVALID_REQUEST);
        assert_eq!(nak.map(|(psn, _)| psn), (!fits).then_some(packets.len() - 1), "{packets:?}");
        let state = if fits { QpState::Rts } else { QpState::Error };
        assert_eq!(rig.qp(&b).state, state, "{packets:?}");
        let received = packets.iter().map(|(_, length)| *length as u32).sum();
        let cqes = rig.all(1, b.receive_cq);
        if fits {
            assert_eq!(cqes.iter().map(|it| it.bytes()).collect::<Vec<u32>>(), [received]);
        }
    }
}

#[test]
fn read_response_first_opcode_is_required_once() {
    for opcodes in [
        [BthOpcode::RC_READ_RESPONSE_MIDDLE].as_slice(),
        &[BthOpcode::RC_READ_RESPONSE_FIRST, BthOpcode::RC_READ_RESPONSE_FIRST],
    ] {
        let mut rig = Rig::new();
        rig.locked.in_packets = true;
        let (mut a, b) = rig.pair();
        // The QP ignores its own answers: the peer writes them.
        rig.qp(&b).state = QpState::Init;
        let (to, lkey) = rig.region(0, 4096);
        let (from, rkey) = rig.region(1, 4096);
        let index = rig.post(&mut a, Request::read(from, rkey).sge(to, 4096, lkey));
        for (psn, &opcode) in opcodes.iter().enumerate() {
            rig.none(0, a.send_cq);
            let mut answer = Foreign::new(opcode, psn as u32);
            let begins = opcode == BthOpcode::RC_READ_RESPONSE_FIRST;
            answer.extensions.aeth = begins.then(|| *Aeth::zeroed().set_syndrome(0x1f));
            answer.send(&mut rig, &b, &a, &[7; 1024]);
        }
        let error = (cqe_opcode::REQUESTER_ERROR, index, cqe_syndrome::BAD_RESPONSE);
        assert_eq!(rig.one(0, a.send_cq).error(), error, "{opcodes:?}");
    }
}

#[test]
fn answered_reads_and_atomics_free_their_slots() {
    let mut rig = Rig::new();
    rig.locked.in_packets = true;
    let (a, b) = rig.pair();
    rig.qp(&b).responder.max_dest_rd_atomic = 1;
    let (at, rkey) = rig.region(1, 64);
    for psn in 0..6 {
        match psn % 2 {
            0 => Foreign::read(psn, at, rkey, 8).send(&mut rig, &a, &b, &[]),
            _ => Foreign::add(psn, at, rkey, 1).send(&mut rig, &a, &b, &[]),
        }
        rig.run();
    }
    assert_eq!(rig.qp(&b).state, QpState::Rts);
    assert_eq!(rig.bytes(at, 8), 3_u64.to_ne_bytes());
}

#[test]
fn read_with_zero_max_dest_rd_atomic_is_invalid() {
    for atomic in [false, true] {
        let mut rig = Rig::new();
        rig.locked.in_packets = true;
        let (a, b) = rig.pair();
        rig.qp(&b).responder.max_dest_rd_atomic = 0;
        let (at, rkey) = rig.region(1, 64);
        let seen = answers(&rig, 1);
        match atomic {
            true => Foreign::add(0, at, rkey, 1).send(&mut rig, &a, &b, &[]),
            false => Foreign::read(0, at, rkey, 8).send(&mut rig, &a, &b, &[]),
        }
        let received = received(&mut rig, &seen);
        let syndromes: Vec<_> =
            received.iter().map(|(_, psn, aeth)| (*psn, aeth.syndrome())).collect();
        assert_eq!(syndromes, [(0, INVALID_REQUEST)]);
        assert_eq!(rig.bytes(at, 8), [0; 8]);
    }
}

fn violations(rig: &Rig) -> (u16, u16) {
    let Violations { pkey, qkey } = rig.locked.functions[1].hca.ports[0].violations;
    (pkey, qkey)
}

/// P_Keys, and whether a QP that is a full member of the default partition accepts them.
const P_KEYS: [(u16, bool); 5] =
    [(0xffff, true), (0x7fff, true), (0x8001, false), (0x0001, false), (0x8000, false)];

#[test]
fn rc_and_uc_drop_and_count_foreign_pkeys() {
    for (qp_type, opcode) in
        [(None, BthOpcode::RC_WRITE_ONLY), (Some(UC), BthOpcode::UC_WRITE_ONLY)]
    {
        let mut rig = Rig::new();
        let (a, b) = rig.pair();
        if let Some(qp_type) = qp_type {
            rig.qp(&b).qp_type = qp_type;
        }
        let (at, rkey) = rig.region(1, 64);
        let seen = answers(&rig, 1);
        let (mut psn, mut dropped) = (0, 0);
        for (pkey, listens) in P_KEYS {
            rig.fill(at, &[0; 64]);
            Foreign::write(opcode, psn, at, rkey).pkey(pkey).send(&mut rig, &a, &b, PAYLOAD);
            let answers = received(&mut rig, &seen).len();
            let arrived = rig.bytes(at, PAYLOAD.len()) == PAYLOAD;
            assert_eq!(arrived, listens, "{pkey:#x}");
            psn += u32::from(listens);
            dropped += u16::from(!listens);
            assert_eq!(answers, if qp_type.is_none() { psn as usize } else { 0 }, "{pkey:#x}");
            assert_eq!(violations(&rig), (dropped, 0), "{pkey:#x}");
        }
        assert_eq!(rig.qp(&b).state, QpState::Rts);
    }
}

/// A datagram QP in RTS.
fn datagrams(rig: &mut Rig, qp_type: &'static QpType) -> Endpoint {
    let end = rig.end(1);
    let qp = rig.qp(&end);
    (qp.qp_type, qp.state, qp.log_mtu) = (qp_type, QpState::Rts, 12);
    qp.context.set_q_key(Q_KEY);
    rig.locked.functions[1].hca.objects.index_again();
    end
}

#[test]
fn ud_drops_and_counts_wrong_pkey_and_qkey() {
    let mut rig = Rig::new();
    let a = rig.end(0);
    let mut b = datagrams(&mut rig, UD);
    let (at, lkey) = rig.region(1, 256);
    for _ in 0..4 {
        rig.receive(&mut b, &[DataSegment::new(256, lkey, at)]);
    }
    let mut dropped = 0;
    for (pkey, listens) in P_KEYS {
        Foreign::datagram(Q_KEY).pkey(pkey).send(&mut rig, &a, &b, PAYLOAD);
        let got = rig.all(1, b.receive_cq);
        assert_eq!(got.len(), usize::from(listens), "{pkey:#x}");
        dropped += u16::from(!listens);
        assert_eq!(violations(&rig), (dropped, 0), "{pkey:#x}");
    }
    Foreign::datagram(Q_KEY + 1).send(&mut rig, &a, &b, PAYLOAD);
    // A wrong P_Key comes first.
    Foreign::datagram(Q_KEY + 1).pkey(0x8001).send(&mut rig, &a, &b, PAYLOAD);
    rig.none(1, b.receive_cq);
    assert_eq!(violations(&rig), (dropped + 1, 1));
    // A QP that takes no datagrams yet has no violations.
    rig.qp(&b).state = QpState::Init;
    Foreign::datagram(Q_KEY + 1).send(&mut rig, &a, &b, PAYLOAD);
    rig.run();
    assert_eq!(violations(&rig), (dropped + 1, 1));
}

#[test]
fn pkey_and_qkey_violation_counters_saturate() {
    let mut rig = Rig::new();
    let a = rig.end(0);
    let b = datagrams(&mut rig, UD);
    let largest = Violations { pkey: u16::MAX, qkey: u16::MAX };
    rig.locked.functions[1].hca.ports[0].violations = largest;
    Foreign::datagram(Q_KEY + 1).send(&mut rig, &a, &b, PAYLOAD);
    Foreign::datagram(Q_KEY).pkey(0x8001).send(&mut rig, &a, &b, PAYLOAD);
    rig.run();
    assert_eq!(violations(&rig), (u16::MAX, u16::MAX));
}

#[test]
fn packet_answer_msn_includes_whole_messages() {
    let mut rig = Rig::new();
    rig.locked.in_packets = false;
    let (mut a, mut b) = rig.pair();
    let (from, lkey) = rig.region(0, 9000);
    let (to, rkey) = rig.region(1, 9000);
    rig.receive(&mut b, &[DataSegment::new(9000, rkey, to)]);
    // Carried whole: a message of several parts, a READ, a SEND, an atomic, and a request that the
    // sender's own keys refuse.
    rig.post(&mut a, Request::write(to, rkey).sge(from, 9000, lkey));
    rig.post(&mut a, Request::read(to, rkey).sge(from, 9000, lkey));
    rig.post(&mut a, Request::send().sge(from, 9000, lkey));
    rig.post(&mut a, Request::atomic(opcode::FETCH_ADD, to, rkey, 1, 0).sge(from, 8, lkey));
    let whole = rig.all(0, a.send_cq);
    assert!(whole.iter().all(|it| it.opcode() == cqe_opcode::REQUESTER), "{whole:?}");
    assert_eq!(whole.len(), 4);
    // With an observer, messages go in packets.
    let seen = answers(&rig, 1);
    rig.post(&mut a, Request::write(to, rkey).sge(from, 3000, lkey));
    rig.post(&mut a, Request::read(to, rkey).sge(from, 8, lkey));
    rig.post(&mut a, Request::atomic(opcode::FETCH_ADD, to, rkey, 1, 0).sge(from, 8, lkey));
    let received = received(&mut rig, &seen);
    let msns: Vec<_> = received.iter().map(|(message, _, aeth)| (*message, aeth.msn())).collect();
    let expected =
        [(Message::Acknowledge, 5), (Message::ReadResponse, 6), (Message::AtomicAcknowledge, 7)];
    assert_eq!(msns, expected);
    assert_eq!(rig.all(0, a.send_cq).len(), 3);
}
