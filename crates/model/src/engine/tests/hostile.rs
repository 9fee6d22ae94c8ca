//! Clients with arbitrary rings, records and lists: the engine survives, and other QPs still work.

use proptest::prelude::*;
use verbless_prm::hot::{cqe_opcode, cqe_syndrome, opcode};

use super::rig::{Request, Rig};
use crate::cases::at_most;
use crate::hca::objects::{QpState, QueueMemory};
use crate::memory::HostMemory;

/// Asserts that a new pair of QPs of the same two functions works.
fn assert_others_work(rig: &mut Rig) {
    let (mut c, _) = rig.pair();
    let (to, rkey) = rig.region(1, 64);
    rig.post(&mut c, Request::write(to, rkey).inline(b"alive"));
    rig.one(0, c.send_cq);
    assert_eq!(rig.bytes(to, 5), b"alive");
}

#[test]
fn empty_or_overlong_wqe_is_an_operation_error() {
    for ds in [0, 5, 63] {
        let mut rig = Rig::new();
        let (mut a, _) = rig.pair();
        let mut wqe = Request::new(opcode::NOP).wqe(a.qpn, 0);
        wqe[7] = ds;
        rig.write_wqe(&mut a, &wqe);
        rig.ring(&a);
        let entry = rig.one(0, a.send_cq);
        assert_eq!(
            entry.error(),
            (cqe_opcode::REQUESTER_ERROR, 0, cqe_syndrome::LOCAL_QP_OPERATION)
        );
        assert_others_work(&mut rig);
    }
}

#[test]
fn wqe_longer_than_ring_is_an_operation_error() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    let sq = rig.qp(&a).sq.as_mut().unwrap();
    (sq.log_size, sq.memory.length) = (2, 256);
    let mut wqe = Request::new(opcode::NOP).wqe(a.qpn, 0);
    wqe[7] = 17;
    rig.write_wqe(&mut a, &wqe);
    a.posted = 8;
    let record = rig.qp(&a).record;
    rig.memory().store32(record + 4, 8u32.to_be()).unwrap();
    rig.ring(&a);
    assert_eq!(rig.all(0, a.send_cq)[0].syndrome(), cqe_syndrome::LOCAL_QP_OPERATION);
}

#[test]
fn wild_records_and_page_lists_spare_other_qps() {
    let mut rig = Rig::new();
    for which in 0..6 {
        let (mut a, b) = rig.pair();
        let nowhere = QueueMemory { pages: [].into(), log_page_size: 12, offset: 0, length: 1024 };
        let cq = a.send_cq;
        let wqe = Request::send().inline(b"x").wqe(a.qpn, 0);
        rig.write_wqe(&mut a, &wqe);
        match which {
            0 => rig.qp(&a).record = 0,
            1 => rig.qp(&a).sq.as_mut().unwrap().memory = nowhere,
            2 => rig.qp(&b).record = u64::MAX,
            3 => rig.qp(&b).rq.as_mut().unwrap().memory = nowhere,
            4 => rig.cq_mut(0, cq).memory = nowhere,
            _ => rig.cq_mut(0, cq).record = 1,
        }
        rig.ring(&a);
        rig.locked.functions[0].hca.bar.store64(super::rig::PAGE, 0x20, 7 << 32 | u64::from(cq));
        rig.advance(std::time::Duration::from_secs(10));
        assert_others_work(&mut rig);
    }
}

#[test]
fn bogus_consumer_index_ends_in_cq_overrun() {
    let mut rig = Rig::new();
    let cq = rig.cq(0, 1);
    let mut a = rig.end_on(0, cq, cq);
    rig.connect(&a.clone(), &a.clone());
    let record = rig.cq_mut(0, cq).record;
    rig.memory().store32(record, u32::MAX).unwrap();
    for _ in 0..5 {
        rig.post(&mut a, Request::new(opcode::NOP));
        rig.run();
    }
    assert!(rig.cq_mut(0, cq).failure.is_some());
    assert_others_work(&mut rig);
}

proptest! {
    #![proptest_config(at_most(300))]

    #[test]
    fn random_ring_bytes_spare_other_qps(
        bytes in proptest::collection::vec(any::<u8>(), 1024),
        posted in any::<u16>(),
        receives in any::<u16>(),
    ) {
        let mut rig = Rig::new();
        let (a, b) = rig.pair();
        let (qp, record) = (rig.qp(&a).sq.as_ref().unwrap().memory.pages[0], rig.qp(&a).record);
        rig.fill(qp, &bytes);
        rig.memory().store32(record + 4, u32::from(posted).to_be()).unwrap();
        let record = rig.qp(&b).record;
        rig.memory().store32(record, u32::from(receives).to_be()).unwrap();
        rig.ring(&a);
        rig.advance(std::time::Duration::from_secs(100));
        assert_others_work(&mut rig);
    }

    #[test]
    fn nearly_valid_request_completes_at_most_once(
        opcode in prop_oneof![
            Just(opcode::SEND), Just(opcode::SEND_IMM), Just(opcode::SEND_INVALIDATE),
            Just(opcode::WRITE), Just(opcode::WRITE_IMM), Just(opcode::READ),
            Just(opcode::COMPARE_SWAP), Just(opcode::FETCH_ADD),
        ],
        flags in any::<[u8; 8]>(),
        offset in -80i64..80,
        keys in any::<(bool, bool, bool)>(),
        tail in proptest::collection::vec(any::<u8>(), 0..64),
        lengths in proptest::collection::vec(0u32..200, 0..4),
        receives in proptest::collection::vec(proptest::collection::vec(0u32..200, 0..4), 0..3),
    ) {
        let mut rig = Rig::new();
        let (mut a, mut b) = rig.pair();
        let (local, lkey) = rig.region(0, 64);
        let (remote, rkey) = rig.region(1, 64);
        let guard = rig.alloc(64);
        let (lkey, rkey) = (lkey ^ u32::from(keys.0 && keys.1), rkey ^ u32::from(keys.1 && keys.2));
        for entries in &receives {
            let entries: Vec<_> = entries
                .iter()
                .map(|&length| verbless_prm::hot::DataSegment::new(length, rkey, remote))
                .collect();
            rig.receive(&mut b, &entries);
        }
        let mut request = Request::new(opcode);
        if opcode >= opcode::READ || matches!(opcode, opcode::WRITE | opcode::WRITE_IMM) {
            request = request.remote(remote.wrapping_add_signed(offset), rkey);
        }
        if opcode > opcode::READ {
            request = request.remote(1, 2);
        }
        for length in lengths {
            request = request.sge(local.wrapping_add_signed(offset / 8), length, lkey);
        }
        let mut wqe = request.wqe(a.qpn, 0);
        wqe[8..16].copy_from_slice(&flags);
        if keys.0 && !keys.1 {
            let at = wqe.len().saturating_sub(tail.len()).max(16);
            let end = wqe.len();
            wqe[at..].copy_from_slice(&tail[..end - at]);
        }
        rig.write_wqe(&mut a, &wqe);
        rig.ring(&a);
        rig.advance(std::time::Duration::from_secs(100));
        prop_assert_eq!(rig.bytes(guard, 64), vec![0u8; 64]);
        let entries = rig.all(0, a.send_cq);
        prop_assert!(entries.len() <= 1);
        prop_assert!(entries.len() == 1 || rig.qp(&a).state == QpState::Rts, "an error completes");
        assert_others_work(&mut rig);
    }
}
