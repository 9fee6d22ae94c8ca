//! Shared receive queues.

use verbless_prm::hot::{DataSegment, cqe_opcode, event_type};
use verbless_prm::{EqeQpSrq, EqeQueueType, RmpContext};

use super::rig::{ASYNC_EQ, PD, Request, Rig};
use crate::hca::objects::{QueueMemory, Srq, SrqContext};
use crate::memory::HostMemory;

pub(super) const NUMBER: u32 = 0x600;
const LOG_SIZE: u32 = 2;
const STRIDE: u64 = 32;

/// A shared queue at function 1: the addresses of its WQEs and its record.
pub(super) struct SrqRig {
    ring: u64,
    record: u64,
    posted: u32,
}

impl SrqRig {
    pub(super) fn new(rig: &mut Rig) -> Self {
        let (ring, record) = (rig.alloc(STRIDE << LOG_SIZE), rig.alloc(8));
        let memory = QueueMemory {
            pages: [ring].into(),
            log_page_size: 40,
            offset: 0,
            length: STRIDE << LOG_SIZE,
        };
        let queue = Srq {
            uid: 0,
            pd: PD,
            memory,
            record,
            log_size: LOG_SIZE,
            log_stride: 5,
            cyclic: false,
            head: 0,
            consumed: 0,
            limit: 0,
            cqn: None,
            xrcd: None,
            umems: Vec::new(),
            context: SrqContext::Rmp(Box::new(RmpContext::zeroed())),
        };
        rig.locked.functions[1].hca.objects.srqs.insert(NUMBER, queue);
        Self { ring, record, posted: 0 }
    }

    /// Fills the WQE at `slot`, which names `next` as the next one.
    pub(super) fn fill(&mut self, rig: &Rig, slot: u16, next: u16, segment: DataSegment) {
        let mut wqe = [0; STRIDE as usize];
        wqe[2..4].copy_from_slice(&next.to_be_bytes());
        wqe[16..].copy_from_slice(segment.as_bytes());
        rig.fill(self.ring + u64::from(slot) * STRIDE, &wqe);
        self.posted += 1;
        rig.memory().store32(self.record, self.posted.to_be()).unwrap();
    }
}

#[test]
fn messages_take_wqes_in_link_order_across_qps() {
    let mut rig = Rig::new();
    let mut shared = SrqRig::new(&mut rig);
    let (mut a, b) = rig.pair();
    let (mut c, d) = rig.pair();
    for end in [&b, &d] {
        let qp = rig.qp(end);
        (qp.srq, qp.rq) = (Some(NUMBER), None);
        qp.context.set_cqn_rcv(end.receive_cq);
    }
    let (buffer, key) = rig.region(1, 256);
    let links = [(0, 2), (2, 1), (1, 3)];
    for (slot, next) in links {
        let at = buffer + 64 * u64::from(slot);
        shared.fill(&rig, slot, next, DataSegment::new(64, key, at));
    }
    rig.post(&mut a, Request::send().inline(b"first"));
    rig.post(&mut c, Request::send().inline(b"second"));
    rig.post(&mut a, Request::send().inline(b"third"));
    rig.run();
    let indexes = |rig: &mut Rig, cqn| -> Vec<u16> {
        rig.all(1, cqn).iter().map(|entry| entry.index()).collect()
    };
    assert_eq!(indexes(&mut rig, b.receive_cq), [0, 1]);
    assert_eq!(indexes(&mut rig, d.receive_cq), [2]);
    assert_eq!(rig.bytes(buffer, 5), b"first");
    assert_eq!(rig.bytes(buffer + 128, 6), b"second");
    assert_eq!(rig.bytes(buffer + 64, 5), b"third");
}

#[test]
fn empty_srq_waits_and_short_wqe_fails_only_qp() {
    let mut rig = Rig::new();
    let mut shared = SrqRig::new(&mut rig);
    let (mut a, b) = rig.pair();
    let qp = rig.qp(&b);
    (qp.srq, qp.rq) = (Some(NUMBER), None);
    qp.context.set_cqn_rcv(b.receive_cq);
    rig.post(&mut a, Request::send().inline(b"too long"));
    rig.run();
    rig.none(1, b.receive_cq);
    let (buffer, key) = rig.region(1, 64);
    shared.fill(&rig, 0, 1, DataSegment::new(4, key, buffer));
    rig.advance(std::time::Duration::from_secs(10));
    assert_eq!(rig.one(1, b.receive_cq).opcode(), cqe_opcode::RESPONDER_ERROR);
    assert!(rig.events(1).contains(&event_type::SRQ_LAST_WQE));
    shared.fill(&rig, 1, 2, DataSegment::new(4, key, buffer));
    rig.run();
    rig.none(1, b.receive_cq);
}

#[test]
fn srq_limit_event_fires_once() {
    let mut rig = Rig::new();
    let mut shared = SrqRig::new(&mut rig);
    let (mut a, b) = rig.pair();
    let qp = rig.qp(&b);
    (qp.srq, qp.rq) = (Some(NUMBER), None);
    qp.context.set_cqn_rcv(b.receive_cq);
    let (buffer, key) = rig.region(1, 64);
    for slot in 0..4 {
        shared.fill(&rig, slot, slot + 1, DataSegment::new(64, key, buffer));
    }
    rig.locked.functions[1].hca.objects.srqs.get_mut(&NUMBER).unwrap().limit = 3;
    for expected in [0, 1, 0, 0] {
        rig.post(&mut a, Request::send().inline(b"x"));
        rig.run();
        let mut limits = 0;
        while let Some(eqe) = rig.eqe(1, ASYNC_EQ) {
            if eqe.event_type().0 == event_type::SRQ_LIMIT {
                // Linux's DevX finds a pool's subscribers by the queue type of receive queues.
                let data = EqeQpSrq::from_prefix(eqe.event_data()).unwrap();
                assert_eq!((data.r#type(), data.qpn_rqn_sqn()), (EqeQueueType::RQ, NUMBER));
                limits += 1;
            }
        }
        assert_eq!(limits, expected);
    }
}

#[test]
fn wqe_lkeys_belong_to_pd_of_srq() {
    for (domain, taken) in [(PD, true), (PD + 1, false)] {
        let mut rig = Rig::new();
        let mut shared = SrqRig::new(&mut rig);
        rig.locked.functions[1].hca.objects.srqs.get_mut(&NUMBER).unwrap().pd = domain;
        let (mut a, b) = rig.pair();
        let qp = rig.qp(&b);
        (qp.srq, qp.rq, qp.pd) = (Some(NUMBER), None, PD + 1);
        qp.context.set_cqn_rcv(b.receive_cq);
        let (buffer, key) = rig.region(1, 64);
        shared.fill(&rig, 0, 1, DataSegment::new(64, key, buffer));
        rig.post(&mut a, Request::send().inline(b"x"));
        let got = rig.one(1, b.receive_cq).opcode();
        assert_eq!(got == cqe_opcode::RESPONDER_SEND, taken);
    }
}

#[test]
fn cyclic_srq_uses_wqes_in_ring_order() {
    for bare in [false, true] {
        let mut rig = Rig::new();
        let mut shared = SrqRig::new(&mut rig);
        let queue = rig.locked.functions[1].hca.objects.srqs.get_mut(&NUMBER).unwrap();
        queue.cyclic = true;
        if let SrqContext::Rmp(context) = &mut queue.context {
            context.set_basic_cyclic_rcv_wqe(bare);
        }
        let (mut a, b) = rig.pair();
        let qp = rig.qp(&b);
        (qp.srq, qp.rq) = (Some(NUMBER), None);
        qp.context.set_cqn_rcv(b.receive_cq);
        let (buffer, key) = rig.region(1, 256);
        for index in 0..6_u16 {
            let slot = index % 4;
            let at = buffer + 64 * u64::from(slot);
            let segment = DataSegment::new(64, key, at);
            // The link field holds no valid index.
            shared.fill(&rig, slot, 0xffff, segment);
            if bare {
                let mut wqe = segment.as_bytes().to_vec();
                wqe.extend_from_slice(DataSegment::END.as_bytes());
                rig.fill(shared.ring + u64::from(slot) * STRIDE, &wqe);
            }
            rig.post(&mut a, Request::send().inline(&[b'a' + index as u8]));
            let entry = rig.one(1, b.receive_cq);
            assert_eq!((entry.opcode(), entry.index()), (cqe_opcode::RESPONDER_SEND, index));
            assert_eq!(rig.bytes(at, 1), [b'a' + index as u8]);
        }
    }
}
