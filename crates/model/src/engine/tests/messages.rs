//! Successful requests: every operation, rings that wrap, indexes that roll over.

use verbless_prm::MkeyContext;
use verbless_prm::hot::{DataSegment, UmrCtrlSegment, cqe_opcode, cqe_syndrome, opcode};

use super::rig::{Request, Rig};
use crate::hca::objects::{Klm, QpState, Translation};

#[test]
fn write_moves_bytes_and_completes_only_requester() {
    let mut rig = Rig::new();
    let (mut a, b) = rig.pair();
    let (from, lkey) = rig.region(0, 4096);
    let (to, rkey) = rig.region(1, 4096);
    let payload: Vec<u8> = (0..4000u32).map(|i| (i * 13) as u8).collect();
    rig.fill(from + 5, &payload);
    let index = rig.post(&mut a, Request::write(to + 3, rkey).sge(from + 5, 4000, lkey));
    let entry = rig.one(0, a.send_cq);
    assert_eq!((entry.opcode(), entry.index()), (cqe_opcode::REQUESTER, index));
    assert_eq!(entry.cqe.wqe_opcode().0, opcode::WRITE);
    assert_eq!(entry.cqe.qpn(), a.qpn);
    assert_eq!(rig.bytes(to + 3, 4000), payload);
    assert_eq!(rig.bytes(to + 4003, 8), [0; 8]);
    rig.none(1, b.receive_cq);
}

#[test]
fn send_fills_next_receive_with_its_length() {
    let mut rig = Rig::new();
    let (mut a, mut b) = rig.pair();
    let (from, lkey) = rig.region(0, 256);
    let (to, rlkey) = rig.region(1, 256);
    rig.fill(from, b"hello, world");
    let receive = [DataSegment::new(5, rlkey, to), DataSegment::new(100, rlkey, to + 100)];
    rig.receive(&mut b, &receive);
    rig.post(&mut a, Request::send().sge(from, 7, lkey).sge(from + 7, 5, lkey));
    rig.one(0, a.send_cq);
    let entry = rig.one(1, b.receive_cq);
    assert_eq!((entry.opcode(), entry.index()), (cqe_opcode::RESPONDER_SEND, 0));
    assert_eq!(entry.bytes(), 12);
    assert_eq!(entry.cqe.rqpn(), a.qpn);
    assert_eq!(rig.bytes(to, 5), b"hello");
    assert_eq!(rig.bytes(to + 100, 8), b", world\0");
}

#[test]
fn immediates_arrive_with_sends_and_writes() {
    let mut rig = Rig::new();
    let (mut a, mut b) = rig.pair();
    let (to, rkey) = rig.region(1, 64);
    let into = [DataSegment::new(64, rkey, to)];
    for _ in 0..2 {
        rig.receive(&mut b, &into);
    }
    rig.post(&mut a, Request::new(opcode::SEND_IMM).imm(0x1122_3344).inline(b"abc"));
    rig.run();
    assert_eq!(rig.bytes(to, 4), b"abc\0");
    rig.post(
        &mut a,
        Request::new(opcode::WRITE_IMM).imm(0x5566_7788).remote(to + 8, rkey).inline(b"defg"),
    );
    let entries = rig.all(1, b.receive_cq);
    assert_eq!(rig.bytes(to, 12), b"abc\0\0\0\0\0defg");
    let seen: Vec<_> =
        entries.iter().map(|e| (e.opcode(), e.bytes(), e.cqe.imm_inval_pkey())).collect();
    assert_eq!(
        seen,
        [
            (cqe_opcode::RESPONDER_SEND_IMM, 3, 0x1122_3344),
            (cqe_opcode::RESPONDER_WRITE_IMM, 4, 0x5566_7788),
        ]
    );
    assert_eq!(rig.all(0, a.send_cq).len(), 2);
}

#[test]
fn read_fetches_bytes_and_reports_length() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    let (into, lkey) = rig.region(0, 256);
    let (of, rkey) = rig.region(1, 256);
    rig.fill(of + 10, b"remote bytes");
    rig.post(&mut a, Request::read(of + 10, rkey).sge(into, 6, lkey).sge(into + 64, 6, lkey));
    let entry = rig.one(0, a.send_cq);
    assert_eq!(entry.bytes(), 12);
    assert_eq!(rig.bytes(into, 7), b"remote\0");
    assert_eq!(rig.bytes(into + 64, 7), b" bytes\0");
}

#[test]
fn atomics_return_old_value_and_update_word() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    let (into, lkey) = rig.region(0, 64);
    let (word, rkey) = rig.region(1, 64);
    rig.fill(word, &100u64.to_ne_bytes());
    let add = |rig: &mut Rig, a: &mut _, value| {
        let request = Request::atomic(opcode::FETCH_ADD, word, rkey, value, 0);
        rig.post(a, request.sge(into, 8, lkey));
    };
    let swap = |rig: &mut Rig, a: &mut _, compare, value| {
        let request = Request::atomic(opcode::COMPARE_SWAP, word, rkey, value, compare);
        rig.post(a, request.sge(into + 8, 8, lkey));
    };
    let number = |rig: &Rig, at| u64::from_ne_bytes(rig.bytes(at, 8).try_into().unwrap());
    add(&mut rig, &mut a, 11);
    assert_eq!(rig.one(0, a.send_cq).bytes(), 8);
    assert_eq!((number(&rig, into), number(&rig, word)), (100, 111));
    swap(&mut rig, &mut a, 110, 5);
    rig.one(0, a.send_cq);
    assert_eq!((number(&rig, into + 8), number(&rig, word)), (111, 111));
    swap(&mut rig, &mut a, 111, 5);
    rig.one(0, a.send_cq);
    assert_eq!((number(&rig, into + 8), number(&rig, word)), (111, 5));
    add(&mut rig, &mut a, u64::MAX);
    rig.one(0, a.send_cq);
    assert_eq!((number(&rig, into), number(&rig, word)), (5, 4));
}

#[test]
fn atomic_works_on_misaligned_host_word() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    let (into, lkey) = rig.region(0, 64);
    let (word, rkey) = rig.region(1, 64);
    let mkey = rig.mkey_mut(1, rkey);
    mkey.start = 0x1000;
    let Translation::Pages(memory) = &mut mkey.translation else { unreachable!() };
    (memory.pages, memory.length) = ([word + 3].into(), 32);
    mkey.length = Some(32);
    rig.fill(word + 11, &7u64.to_ne_bytes());
    let request = Request::atomic(opcode::FETCH_ADD, 0x1008, rkey, 1, 0);
    rig.post(&mut a, request.sge(into, 8, lkey));
    rig.one(0, a.send_cq);
    assert_eq!(rig.bytes(word + 11, 8), 8u64.to_ne_bytes());
    assert_eq!(rig.bytes(into, 8), 7u64.to_ne_bytes());
}

#[test]
fn send_invalidate_frees_mkey() {
    let mut rig = Rig::new();
    let (mut a, mut b) = rig.pair();
    let (to, rkey) = rig.region(1, 64);
    rig.receive(&mut b, &[DataSegment::new(64, rkey, to)]);
    rig.mkey_mut(1, rkey).context.set_en_rinval(true);
    rig.post(&mut a, Request::new(opcode::SEND_INVALIDATE).imm(rkey).inline(b"bye"));
    let entry = rig.one(1, b.receive_cq);
    assert_eq!(entry.opcode(), cqe_opcode::RESPONDER_SEND_INVALIDATE);
    assert_eq!(entry.cqe.imm_inval_pkey(), rkey);
    assert!(rig.mkey_mut(1, rkey).free);
}

#[test]
fn umr_frees_mkey_only_if_umr_en() {
    for umr_en in [true, false] {
        let mut rig = Rig::new();
        let (mut a, _) = rig.pair();
        let (_, lkey) = rig.region(0, 64);
        rig.mkey_mut(0, lkey).context.set_umr_en(umr_en);
        let mut control = UmrCtrlSegment::zeroed();
        control.set_inline(true).set_translation_offset_en(true).set_check_qpn(true);
        control.set_mkey_mask(0x2000_6000);
        let mut mkey = MkeyContext::zeroed();
        mkey.set_free(true).set_qpn(0xff_ffff);
        let tail = [&control.as_bytes()[..], mkey.as_bytes()].concat();
        rig.post(&mut a, Request::new(opcode::UMR).imm(lkey).bytes(&tail));
        let entry = rig.one(0, a.send_cq);
        let mkey = rig.mkey_mut(0, lkey);
        if umr_en {
            assert_eq!((entry.opcode(), mkey.free, mkey.variant), (cqe_opcode::REQUESTER, true, 0));
        } else {
            assert_eq!((entry.syndrome(), mkey.free), (cqe_syndrome::MEMORY_WINDOW_BIND, false));
        }
    }
}

#[test]
fn zero_length_message_needs_no_key() {
    let mut rig = Rig::new();
    let (mut a, mut b) = rig.pair();
    rig.receive(&mut b, &[]);
    rig.post(&mut a, Request::send());
    assert_eq!(rig.one(1, b.receive_cq).bytes(), 0);
    rig.post(&mut a, Request::write(0, 0xdead));
    rig.post(&mut a, Request::read(0, 0xdead));
    rig.post(&mut a, Request::write(0, 0xdead).inline(b""));
    let entries = rig.all(0, a.send_cq);
    assert_eq!(entries.len(), 4);
    assert!(entries.iter().all(|entry| entry.opcode() == cqe_opcode::REQUESTER));
}

#[test]
fn only_signaled_requests_complete() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    let (to, rkey) = rig.region(1, 64);
    rig.post(&mut a, Request::write(to, rkey).inline(&[1; 8]).unsignaled());
    rig.post(&mut a, Request::new(opcode::NOP).unsignaled());
    let last = rig.post(&mut a, Request::new(opcode::NOP));
    let entry = rig.one(0, a.send_cq);
    assert_eq!((entry.index(), entry.cqe.wqe_opcode().0), (last, opcode::NOP));
    assert_eq!(rig.bytes(to, 8), [1; 8]);
}

#[test]
fn ring_and_wqe_index_wrap() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    let (to, rkey) = rig.region(1, 512);
    a.posted = 0xfff3;
    let qp = rig.qp(&a);
    let sq = qp.sq.as_mut().unwrap();
    (sq.consumer, sq.producer) = (a.posted, a.posted);
    for round in 0..40u32 {
        let payload: Vec<u8> = (0..200 + round).map(|i| (i + round) as u8).collect();
        let index = rig.post(&mut a, Request::write(to, rkey).inline(&payload));
        assert_eq!(rig.one(0, a.send_cq).index(), index);
        assert_eq!(rig.bytes(to, payload.len()), payload, "round {round} at index {index:#x}");
    }
    assert!(a.posted < 0x1000, "the index rolled over");
}

#[test]
fn receive_index_wraps() {
    let mut rig = Rig::new();
    let (mut a, mut b) = rig.pair();
    let (to, rkey) = rig.region(1, 64);
    b.received = 0xfffa;
    rig.qp(&b).rq.as_mut().unwrap().consumer = 0xfffa;
    for round in 0..40 {
        let index = rig.receive(&mut b, &[DataSegment::new(64, rkey, to)]);
        rig.post(&mut a, Request::send().inline(&[round; 20]));
        assert_eq!(rig.one(1, b.receive_cq).index(), index);
        assert_eq!(rig.bytes(to, 20), [round; 20]);
    }
}

#[test]
fn qp_can_talk_to_its_own_port_and_itself() {
    let mut rig = Rig::new();
    let (mut a, b) = (rig.end(0), rig.end(0));
    rig.connect(&a, &b);
    let (to, rkey) = rig.region(0, 64);
    rig.post(&mut a, Request::write(to, rkey).inline(b"next door"));
    rig.one(0, a.send_cq);
    assert_eq!(rig.bytes(to, 9), b"next door");
    let mut c = rig.end(0);
    rig.connect(&c.clone(), &c.clone());
    rig.receive(&mut c, &[DataSegment::new(64, rkey, to)]);
    rig.post(&mut c, Request::send().inline(b"self"));
    rig.one(0, c.send_cq);
    rig.one(0, c.receive_cq);
    assert_eq!(rig.bytes(to, 4), b"self");
}

#[test]
fn small_messages_arrive_inline_in_cqe() {
    let mut rig = Rig::new();
    let (mut a, mut b) = rig.pair();
    let (to, rkey) = rig.region(1, 64);
    let (into, lkey) = rig.region(0, 64);
    rig.qp(&b).responder_inline = 32;
    rig.qp(&a).requester_inline = 32;
    rig.receive(&mut b, &[DataSegment::new(64, rkey, to)]);
    rig.post(&mut a, Request::send().inline(b"thirty-two bytes at most, please"));
    let entry = rig.one(1, b.receive_cq);
    assert_eq!(entry.cqe.format().0, 1);
    assert_eq!(&entry.cqe.as_bytes()[..32], b"thirty-two bytes at most, please");
    assert_eq!(rig.bytes(to, 32), [0; 32], "memory is left for the driver to fill");
    rig.one(0, a.send_cq);
    rig.fill(to, b"0123456789");
    rig.post(&mut a, Request::read(to, rkey).sge(into, 10, lkey));
    let entry = rig.one(0, a.send_cq);
    assert_eq!((entry.bytes(), entry.cqe.format().0), (10, 1));
    assert_eq!(&entry.cqe.as_bytes()[..10], b"0123456789");
    rig.receive(&mut b, &[DataSegment::new(64, rkey, to)]);
    rig.post(&mut a, Request::send().inline(&[7; 33]));
    assert_eq!(rig.one(1, b.receive_cq).cqe.format().0, 0);
    assert_eq!(rig.bytes(to, 33), [7; 33]);
}

#[test]
fn cqe_128_carries_64_bytes_in_first_half() {
    let mut rig = Rig::new();
    let (send_cq, receive_cq) = (rig.cq(1, 4), rig.cq_of(1, 4, 128));
    let (mut a, mut b) = (rig.end(0), rig.end_on(1, send_cq, receive_cq));
    rig.connect(&a, &b);
    rig.qp(&b).responder_inline = 64;
    rig.receive(&mut b, &[DataSegment::new(64, 0x100, 0)]);
    let (to, rkey) = rig.region(1, 64);
    b.received = 0;
    rig.receive(&mut b, &[DataSegment::new(64, rkey, to)]);
    rig.post(&mut a, Request::send().inline(&[9; 50]));
    rig.run();
    let half = rig.first_half(1, b.receive_cq);
    assert_eq!(half[..50], [9; 50]);
    let entry = rig.one(1, b.receive_cq);
    assert_eq!((entry.cqe.format().0, entry.bytes()), (2, 50));
}

#[test]
fn cqe_128_carries_32_bytes_in_second_half() {
    let mut rig = Rig::new();
    let (send_cq, receive_cq) = (rig.cq_of(0, 4, 128), rig.cq(0, 4));
    let (mut a, b) = (rig.end_on(0, send_cq, receive_cq), rig.end(1));
    rig.connect(&a, &b);
    let (to, rkey) = rig.region(1, 64);
    let (into, lkey) = rig.region(0, 64);
    rig.fill(to, b"0123456789");
    for (room, format) in [(32, 1), (64, 2)] {
        rig.qp(&a).requester_inline = room;
        rig.post(&mut a, Request::read(to, rkey).sge(into, 10, lkey));
        rig.run();
        let half = rig.first_half(0, send_cq);
        let entry = rig.one(0, send_cq);
        assert_eq!((entry.cqe.format().0, entry.bytes()), (format, 10));
        let (filled, other) = match room {
            32 => (&entry.cqe.as_bytes()[..10], &half[..10]),
            _ => (&half[..10], &entry.cqe.as_bytes()[..10]),
        };
        assert_eq!((filled, other), (&b"0123456789"[..], &[0; 10][..]), "{room}");
    }
}

#[test]
fn indirect_mkey_access_reaches_its_entries_ranges() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    let (first, key1) = rig.region(1, 64);
    let (second, key2) = rig.region(1, 64);
    let klm = |key, address, length| Klm { key, address, length };
    let entries =
        [klm(key1, first + 32, 4), klm(key2, second, 0), klm(key2, second, 8), klm(key1, first, 4)];
    let (_, rkey) = rig.region(1, 64);
    let mkey = rig.mkey_mut(1, rkey);
    mkey.start = 0x10_0000;
    mkey.length = Some(16);
    mkey.translation = Translation::Indirect { entries: entries.into(), log_entry_size: None };
    rig.post(&mut a, Request::write(0x10_0002, rkey).inline(b"abcdefghijklm"));
    rig.one(0, a.send_cq);
    assert_eq!(rig.bytes(first + 32, 5), b"\0\0ab\0");
    assert_eq!(rig.bytes(second, 9), b"cdefghij\0");
    assert_eq!(rig.bytes(first, 4), b"klm\0");
}

#[test]
fn many_qps_take_turns() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    let (mut c, _) = rig.pair();
    let (to, rkey) = rig.region(1, 64);
    let cq = a.send_cq;
    rig.qp(&c).sq.as_mut().unwrap().cqn = cq;
    for end in [&mut a, &mut c] {
        for _ in 0..3 {
            let wqe = Request::write(to, rkey).inline(&[1]).wqe(end.qpn, end.posted);
            rig.write_wqe(end, &wqe);
        }
    }
    rig.ring(&a);
    rig.ring(&c);
    let order: Vec<_> = rig.all(0, cq).iter().map(|e| e.cqe.qpn()).collect();
    // One ACK completes all packets before it, so that in packets each QP gets all completions at
    // once.
    let expected = match rig.locked.in_packets {
        true => [a.qpn, a.qpn, a.qpn, c.qpn, c.qpn, c.qpn],
        false => [a.qpn, c.qpn, a.qpn, c.qpn, a.qpn, c.qpn],
    };
    assert_eq!(order, expected);
}

#[test]
fn first_message_in_rtr_raises_comm_established_once() {
    let mut rig = Rig::new();
    let (mut a, b) = rig.pair();
    let (to, rkey) = rig.region(1, 64);
    rig.qp(&b).state = QpState::Rtr;
    for _ in 0..2 {
        rig.post(&mut a, Request::write(to, rkey).inline(&[1]));
        rig.one(0, a.send_cq);
    }
    assert_eq!(rig.events(1), [2]);
}

#[test]
fn message_length_is_limited_by_qps_and_device() {
    for (at, syndrome) in [
        (0, cqe_syndrome::LOCAL_LENGTH),
        (1, cqe_syndrome::REMOTE_INVALID_REQUEST),
        (2, cqe_syndrome::LOCAL_LENGTH),
    ] {
        let mut rig = Rig::new();
        let (mut a, b) = rig.pair();
        let ((from, lkey), (to, rkey)) = (rig.region(0, 256), rig.region(1, 256));
        match at {
            0 => {
                rig.qp(&a).context.set_log_msg_max(6);
            }
            1 => {
                rig.qp(&b).context.set_log_msg_max(6);
            }
            _ => rig.locked.functions[0].hca.objects.limits.log_max_msg = 6,
        }
        rig.post(&mut a, Request::write(to, rkey).sge(from, 64, lkey));
        assert_eq!(rig.one(0, a.send_cq).opcode(), cqe_opcode::REQUESTER);
        rig.post(&mut a, Request::write(to, rkey).sge(from, 65, lkey));
        assert_eq!(rig.one(0, a.send_cq).syndrome(), syndrome);
    }
}

#[test]
fn wqe_above_max_size_is_an_operation_error() {
    let mut rig = Rig::new();
    rig.locked.functions[0].hca.objects.limits.max_wqe_sz_sq = 64;
    let (mut a, _) = rig.pair();
    let (to, rkey) = rig.region(1, 256);
    rig.post(&mut a, Request::write(to, rkey).inline(&[1; 28]));
    assert_eq!(rig.one(0, a.send_cq).opcode(), cqe_opcode::REQUESTER);
    rig.post(&mut a, Request::write(to, rkey).inline(&[1; 29]));
    rig.run();
    let failed = rig.poll(0, a.send_cq).map(|entry| entry.syndrome());
    assert_eq!(failed, Some(cqe_syndrome::LOCAL_QP_OPERATION));
}

#[test]
fn cqe_timestamps_count_device_clock_ticks() {
    let mut rig = Rig::new();
    for hca in 0..2 {
        rig.locked.functions[hca].hca.objects.limits.khz = 156_250;
    }
    rig.advance(std::time::Duration::from_millis(16));
    let (mut a, mut b) = rig.pair();
    let (to, lkey) = rig.region(1, 64);
    rig.receive(&mut b, &[DataSegment::new(64, lkey, to)]);
    rig.post(&mut a, Request::send().inline(b"now"));
    assert_eq!(rig.one(0, a.send_cq).cqe.timestamp(), 2_500_000);
    assert_eq!(rig.one(1, b.receive_cq).cqe.timestamp(), 2_500_000);
}
