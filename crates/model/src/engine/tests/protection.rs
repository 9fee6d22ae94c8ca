//! Refusals by a key, a QP or a state: the completions, and the states of the QPs.

use verbless_prm::hot::{DataSegment, cqe_opcode, cqe_syndrome, event_type, opcode};

use super::rig::{ALL, Endpoint, PD, Request, Rig};
use crate::hca::Effect;
use crate::hca::objects::{Access, Klm, QpState, Translation};

/// Checks that the requester's only completion is this error, and that its QP is in the error
/// state.
fn fails(rig: &mut Rig, end: &Endpoint, syndrome: u8) {
    let entry = rig.one(end.hca, end.send_cq);
    assert_eq!((entry.opcode(), entry.syndrome()), (cqe_opcode::REQUESTER_ERROR, syndrome));
    assert_eq!(rig.qp(end).state, QpState::Error);
}

#[test]
fn unpermitted_write_fails_with_remote_access_error() {
    /// Returns the WRITE's offset from the region's start, and its rkey.
    type Change = fn(&mut Rig, u32) -> (u64, u32);
    let rows: [(&str, Change); 12] = [
        ("past the region", |_, rkey| (57, rkey)),
        ("before the region", |_, rkey| (u64::MAX, rkey)),
        ("over the last address", |rig, rkey| {
            let start = rig.mkey_mut(1, rkey).start;
            (0_u64.wrapping_sub(start).wrapping_sub(4), rkey)
        }),
        ("unknown rkey", |_, rkey| (0, rkey + 0x100_0000)),
        ("rkey 0", |_, _| (0, 0)),
        ("stale variant of the rkey", |_, rkey| (0, rkey ^ 1)),
        ("foreign PD", |rig, rkey| {
            rig.mkey_mut(1, rkey).pd = PD + 1;
            (0, rkey)
        }),
        ("free mkey", |rig, rkey| {
            rig.mkey_mut(1, rkey).free = true;
            (0, rkey)
        }),
        ("mkey of another QP", |rig, rkey| {
            rig.mkey_mut(1, rkey).qpn = 5;
            (0, rkey)
        }),
        ("read-only mkey", |rig, rkey| {
            rig.mkey_mut(1, rkey).access = Access { remote_write: false, ..ALL };
            (0, rkey)
        }),
        ("indirect mkey beyond its target", |rig, rkey| {
            let (address, other) = rig.region(1, 64);
            let start = rig.mkey_mut(1, rkey).start;
            let entries = [Klm { key: rkey, length: 64, address: start + 60 }].into();
            let mkey = rig.mkey_mut(1, other);
            mkey.translation = Translation::Indirect { entries, log_entry_size: None };
            (address.wrapping_sub(start), other)
        }),
        ("mkey that refers to itself", |rig, rkey| {
            let mkey = rig.mkey_mut(1, rkey);
            let entries = vec![Klm { key: rkey, length: 1, address: mkey.start }; 64].into();
            mkey.translation = Translation::Indirect { entries, log_entry_size: None };
            (0, rkey)
        }),
    ];
    for (name, change) in rows {
        let mut rig = Rig::new();
        let (mut a, b) = rig.pair();
        let (to, rkey) = rig.region(1, 64);
        let (offset, rkey) = change(&mut rig, rkey);
        rig.post(&mut a, Request::write(to.wrapping_add(offset), rkey).inline(&[0xff; 8]));
        let entry = rig.one(0, a.send_cq);
        let error = (cqe_opcode::REQUESTER_ERROR, cqe_syndrome::REMOTE_ACCESS);
        assert_eq!((entry.opcode(), entry.syndrome()), error, "{name}");
        let states = [&a, &b].map(|end| rig.qp(end).state);
        assert_eq!(states, [QpState::Error; 2], "{name}: the responder fails, too");
        assert_eq!(rig.bytes(to, 64), [0; 64], "{name}: nothing was written");
        let events = [0, 1].map(|hca| rig.events(hca));
        assert_eq!(events, [vec![], vec![event_type::WQ_ACCESS_ERROR]], "{name}");
    }
}

/// A window over a region that the peer may not access by the region's own key.
#[test]
fn indirect_mkey_needs_only_local_rights_of_target() {
    for (local_write, status) in [(true, true), (false, false)] {
        let mut rig = Rig::new();
        let (mut a, _b) = rig.pair();
        let (address, rkey) = rig.region(1, 64);
        let (_, window) = rig.region(1, 64);
        rig.mkey_mut(1, rkey).access =
            Access { remote_write: false, remote_read: false, local_write, ..ALL };
        let entries = [Klm { key: rkey, length: 64, address }];
        let mkey = rig.mkey_mut(1, window);
        mkey.translation = Translation::Indirect { entries: entries.into(), log_entry_size: None };
        mkey.start = address;
        rig.post(&mut a, Request::write(address, window).inline(b"by a window"));
        rig.run();
        assert_eq!(rig.bytes(address, 11) == b"by a window", status, "{local_write}");
    }
}

#[test]
fn reads_and_atomics_need_their_own_rights() {
    for atomic in [false, true] {
        let mut rig = Rig::new();
        let (mut a, b) = rig.pair();
        let (to, rkey) = rig.region(1, 64);
        let (into, lkey) = rig.region(0, 64);
        rig.mkey_mut(1, rkey).access = match atomic {
            true => Access { atomic: false, ..ALL },
            false => Access { remote_read: false, ..ALL },
        };
        let request = match atomic {
            true => Request::atomic(opcode::FETCH_ADD, to, rkey, 1, 0),
            false => Request::read(to, rkey),
        };
        rig.post(&mut a, request.sge(into, 8, lkey));
        fails(&mut rig, &a, cqe_syndrome::REMOTE_ACCESS);
        assert_eq!(rig.qp(&b).state, QpState::Error);
    }
}

#[test]
fn message_longer_than_receive_fails_both_sides() {
    let mut rig = Rig::new();
    let (mut a, mut b) = rig.pair();
    let (to, rlkey) = rig.region(1, 64);
    let index =
        rig.receive(&mut b, &[DataSegment::new(4, rlkey, to), DataSegment::new(3, rlkey, to + 8)]);
    rig.receive(&mut b, &[DataSegment::new(64, rlkey, to)]);
    rig.post(&mut a, Request::send().inline(&[1; 8]));
    fails(&mut rig, &a, cqe_syndrome::REMOTE_INVALID_REQUEST);
    let errors: Vec<_> = rig.all(1, b.receive_cq).iter().map(|entry| entry.error()).collect();
    let error = cqe_opcode::RESPONDER_ERROR;
    assert_eq!(
        errors,
        [(error, index, cqe_syndrome::LOCAL_LENGTH), (error, index + 1, cqe_syndrome::FLUSHED)]
    );
}

#[test]
fn receive_with_bad_lkey_fails_both_sides() {
    let mut rig = Rig::new();
    let (mut a, mut b) = rig.pair();
    let (to, rlkey) = rig.region(1, 64);
    rig.mkey_mut(1, rlkey).access.local_write = false;
    rig.receive(&mut b, &[DataSegment::new(64, rlkey, to)]);
    rig.post(&mut a, Request::send().inline(&[1; 8]));
    fails(&mut rig, &a, cqe_syndrome::REMOTE_OPERATION);
    let entry = rig.one(1, b.receive_cq);
    assert_eq!(entry.error(), (cqe_opcode::RESPONDER_ERROR, 0, cqe_syndrome::LOCAL_PROTECTION));
}

#[test]
fn bad_lkey_is_a_protection_error_and_spares_peer() {
    let worse: [fn(&mut Rig, u32) -> u32; 4] = [
        |_, lkey| lkey ^ 0x80,
        |rig, lkey| {
            rig.mkey_mut(0, lkey).pd = PD + 1;
            lkey
        },
        |rig, lkey| {
            rig.mkey_mut(0, lkey).access.local_read = false;
            lkey
        },
        |rig, lkey| {
            rig.mkey_mut(0, lkey).length = Some(7);
            lkey
        },
    ];
    for change in worse {
        let mut rig = Rig::new();
        let (mut a, b) = rig.pair();
        let (from, lkey) = rig.region(0, 64);
        let (to, rkey) = rig.region(1, 64);
        let lkey = change(&mut rig, lkey);
        rig.post(&mut a, Request::write(to, rkey).sge(from, 8, lkey));
        fails(&mut rig, &a, cqe_syndrome::LOCAL_PROTECTION);
        assert_eq!(rig.qp(&b).state, QpState::Rts);
    }
}

#[test]
fn read_into_read_only_memory_is_a_protection_error() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    let (into, lkey) = rig.region(0, 64);
    let (of, rkey) = rig.region(1, 64);
    rig.mkey_mut(0, lkey).access.local_write = false;
    rig.post(&mut a, Request::read(of, rkey).sge(into, 8, lkey));
    fails(&mut rig, &a, cqe_syndrome::LOCAL_PROTECTION);
}

#[test]
fn more_than_a_gibibyte_is_a_local_length_error() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    let (from, lkey) = rig.region(0, 64);
    rig.post(&mut a, Request::send().sge(from, 0, lkey));
    fails(&mut rig, &a, cqe_syndrome::LOCAL_LENGTH);
}

#[test]
fn unknown_opcode_is_a_local_operation_error() {
    let mut rig = Rig::new();
    let (mut a, b) = rig.pair();
    let index = rig.post(&mut a, Request::new(0x7f));
    let entry = rig.one(0, a.send_cq);
    assert_eq!(
        entry.error(),
        (cqe_opcode::REQUESTER_ERROR, index, cqe_syndrome::LOCAL_QP_OPERATION)
    );
    assert_eq!(entry.cqe.wqe_opcode().0, 0x7f);
    assert_eq!(rig.qp(&b).state, QpState::Rts);
}

#[test]
fn wqes_behind_failure_flush_in_order_once() {
    let mut rig = Rig::new();
    let (mut a, mut b) = rig.pair();
    let (to, rkey) = rig.region(1, 64);
    for end in [&mut a, &mut b] {
        for _ in 0..2 {
            rig.receive(end, &[]);
        }
    }
    let good = Request::write(to, rkey).inline(&[1; 8]);
    let requests = [
        good.clone().unsignaled(),
        Request::write(to, rkey ^ 1).inline(&[1; 8]).unsignaled(),
        good.clone().unsignaled(),
        Request::write(to, rkey).inline(&[1; 100]),
        good,
    ];
    for request in requests {
        let wqe = request.wqe(a.qpn, a.posted);
        rig.write_wqe(&mut a, &wqe);
    }
    rig.ring(&a);
    let errors: Vec<_> = rig.all(0, a.send_cq).iter().map(|entry| entry.error()).collect();
    let error = cqe_opcode::REQUESTER_ERROR;
    let flushed = cqe_syndrome::FLUSHED;
    assert_eq!(
        errors,
        [
            (error, 1, cqe_syndrome::REMOTE_ACCESS),
            (error, 2, flushed),
            (error, 3, flushed),
            (error, 6, flushed)
        ]
    );
    for (end, count) in [(&a, 2), (&b, 2)] {
        let errors: Vec<_> =
            rig.all(end.hca, end.receive_cq).iter().map(|entry| entry.error()).collect();
        let error = cqe_opcode::RESPONDER_ERROR;
        assert_eq!(errors, (0..count).map(|i| (error, i, flushed)).collect::<Vec<_>>());
    }
}

#[test]
fn wqes_posted_in_error_state_are_flushed() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    rig.effect(0, Effect::QpToError(a.qpn));
    rig.none(0, a.send_cq);
    let index = rig.receive(&mut a, &[]);
    let entry = rig.one(0, a.receive_cq);
    assert_eq!(entry.error(), (cqe_opcode::RESPONDER_ERROR, index, cqe_syndrome::FLUSHED));
    let index = rig.post(&mut a, Request::new(opcode::NOP));
    let entry = rig.one(0, a.send_cq);
    assert_eq!(entry.error(), (cqe_opcode::REQUESTER_ERROR, index, cqe_syndrome::FLUSHED));
}

#[test]
fn self_connected_qp_fails_with_one_cqe() {
    let mut rig = Rig::new();
    let mut a = rig.end(0);
    rig.connect(&a.clone(), &a.clone());
    rig.post(&mut a, Request::write(0, 0x1234).inline(&[1]));
    let entry = rig.one(0, a.send_cq);
    assert_eq!(entry.opcode(), cqe_opcode::REQUESTER_ERROR);
}

#[test]
fn reset_qp_forgets_posted_wqes() {
    let mut rig = Rig::new();
    let (mut a, _) = rig.pair();
    rig.post(&mut a, Request::new(opcode::NOP));
    rig.qp(&a).state = QpState::Reset;
    let qp = rig.qp(&a);
    let (runtime, send) = (
        std::mem::take(&mut qp.runtime),
        qp.sq.as_mut().map(crate::hca::objects::SendQueue::reset),
    );
    rig.effect(0, Effect::QpForgotten(a.qpn, runtime, send));
    rig.none(0, a.send_cq);
}

#[test]
fn sge_list_has_one_budget_of_indirect_entries() {
    for (segments, syndrome) in [(1, None), (3, Some(cqe_syndrome::LOCAL_PROTECTION))] {
        let mut rig = Rig::new();
        let (mut a, _) = rig.pair();
        let (address, lkey) = rig.region(0, 64);
        let (to, rkey) = rig.region(1, 64);
        let indirect = rig.mkey(0, 0, 64, ALL);
        let mut entries = vec![Klm { key: lkey, length: 0, address }; 100_000];
        entries.push(Klm { key: lkey, length: 64, address });
        let list = Translation::Indirect { entries: entries.into(), log_entry_size: None };
        rig.mkey_mut(0, indirect).translation = list;
        let mut request = Request::write(to, rkey);
        for _ in 0..segments {
            request = request.sge(0, 1, indirect);
        }
        rig.post(&mut a, request);
        let entry = rig.one(0, a.send_cq);
        let failed = entry.opcode() == cqe_opcode::REQUESTER_ERROR;
        assert_eq!(failed.then(|| entry.syndrome()), syndrome);
    }
}

#[test]
fn reserved_lkey_needs_rlky_and_is_no_rkey() {
    let mut rig = Rig::new();
    let (mut a, mut b) = rig.pair();
    let (from, to) = (rig.alloc(64), rig.alloc(64));
    rig.fill(from, b"any bytes");
    let reserved = rig.locked.functions[0].hca.objects.limits.reserved_lkey;
    for end in [&a, &b] {
        rig.qp(end).context.set_rlky(true);
    }
    rig.receive(&mut b, &[DataSegment::new(64, reserved, to)]);
    rig.post(&mut a, Request::send().sge(from, 9, reserved));
    assert_eq!(rig.one(0, a.send_cq).opcode(), cqe_opcode::REQUESTER);
    assert_eq!(rig.bytes(to, 9), b"any bytes");
    rig.post(&mut a, Request::write(to, reserved).inline(b"x"));
    assert_eq!(rig.one(0, a.send_cq).syndrome(), cqe_syndrome::REMOTE_ACCESS);
    let (mut c, _) = rig.pair();
    rig.post(&mut c, Request::send().sge(from, 9, reserved));
    assert_eq!(rig.one(0, c.send_cq).syndrome(), cqe_syndrome::LOCAL_PROTECTION);
}

#[test]
fn indirection_depth_is_limited_by_device() {
    for (depth, works) in [(2, true), (1, false)] {
        let mut rig = Rig::new();
        rig.locked.functions[0].hca.objects.limits.max_indirection = depth;
        let (mut a, mut b) = rig.pair();
        let (at, mut key) = rig.region(0, 64);
        for _ in 0..2 {
            let upper = rig.mkey(0, at, 64, Access { local_read: true, ..Default::default() });
            let entries = vec![Klm { key, length: 64, address: at }].into();
            rig.mkey_mut(0, upper).translation =
                Translation::Indirect { entries, log_entry_size: None };
            key = upper;
        }
        let (to, lkey) = rig.region(1, 64);
        rig.receive(&mut b, &[DataSegment::new(64, lkey, to)]);
        rig.post(&mut a, Request::send().sge(at, 8, key));
        assert_eq!(rig.one(0, a.send_cq).opcode() == cqe_opcode::REQUESTER, works, "{depth}");
    }
}
