//! UMR: keys that are filled, moved and freed, and refused changes.

use verbless_prm::hot::{DataSegment, cqe_opcode, cqe_syndrome, opcode};
use verbless_prm::{MkeyAccessMode, MkeyContext, UmrCtrlSegment, UmrMkeyMask as Mask};

use super::rig::{ALL, Endpoint, PD, Request, Rig};
use crate::engine::keys::{
    ANY_QP, AccessRight, KeyRefusal, KeyUser, Keys, NoNeighbours, Range, VISITS,
};
use crate::engine::transport::types::{RC, REG_UMR};
use crate::hca::budget::Budget;
use crate::hca::objects::{Objects, QpState, Translation};
use crate::memory::Space;

const PAGE: u64 = 4096;

/// A key as the kernel's cache holds it: free, of this mode, with room for `room` octowords.
fn cached(rig: &mut Rig, mode: MkeyAccessMode, room: u32) -> u32 {
    let key = rig.mkey(0, 0, 0, Default::default());
    let mkey = rig.mkey_mut(0, key);
    let context = &mut mkey.context;
    context.set_free(true).set_umr_en(true).set_mkey_7_0(0x42).set_qpn(ANY_QP).set_pd(99);
    context.set_access_mode_1_0(mode.0 & 3).set_translations_octword_size(room);
    context.set_log_page_size(12);
    (mkey.pd, mkey.free, mkey.table) = (99, true, Some([].into()));
    mkey.translation = Translation::Indirect { entries: [].into(), log_entry_size: None };
    key
}

/// A key without a mapping must be reported as free: its empty translation would be refused as
/// well, but only for an access with a length.
#[test]
fn unmapped_mkey_is_rejected_locally_and_remotely() {
    for of in [|_: &mut Rig| 0, |rig: &mut Rig| cached(rig, MkeyAccessMode::KLMS, 8)] {
        let mut rig = Rig::new();
        let key = of(&mut rig);
        if key != 0 {
            rig.mkey_mut(0, key).pd = PD;
            rig.mkey_mut(0, key).access = ALL;
        }
        let objects = &rig.locked.functions[0].hca.objects;
        let Objects { mkeys, aliases, limits, .. } = objects;
        let (space, neighbours) = (Space::of(0), &NoNeighbours);
        let keys = Keys { mkeys, aliases, limits, space, neighbours };
        let user = KeyUser { pd: PD, qpn: 5, reserved_lkey: false };
        let why = if key == 0 { KeyRefusal::NoKey } else { KeyRefusal::Free };
        for need in [
            AccessRight::LocalRead,
            AccessRight::LocalWrite,
            AccessRight::RemoteRead,
            AccessRight::RemoteWrite,
        ] {
            for length in [0, 8] {
                let range = Range { key, address: 0, length };
                let mut sges = Vec::new();
                let found = keys.resolve(user, range, need, &mut { VISITS }, &mut sges);
                assert_eq!((found, sges), (Err(why), vec![]), "{key:#x}, {need:?} of {length}");
            }
        }
        // The peer gets a remote access error, our QP a local protection error.
        let (_, mut peers) = rig.pair();
        rig.post(&mut peers, Request::write(0, key).inline(&[0xff; 8]));
        assert_eq!(rig.one(1, peers.send_cq).syndrome(), cqe_syndrome::REMOTE_ACCESS, "{key:#x}");
        let (mut ours, _) = rig.pair();
        rig.post(&mut ours, Request::send().sge(0, 8, key));
        assert_eq!(rig.one(0, ours.send_cq).syndrome(), cqe_syndrome::LOCAL_PROTECTION, "{key:#x}");
    }
}

/// The kernel's QP for UMR.
fn umr_qp(rig: &mut Rig) -> Endpoint {
    let end = rig.end(0);
    let qp = rig.qp(&end);
    (qp.qp_type, qp.state, qp.uid, qp.pd) = (REG_UMR, QpState::Rts, 0, 0);
    qp.context.set_fre(true).set_rlky(true);
    end
}

/// The segments that make a key valid, as the kernel fills them.
fn enable(start: u64, length: u64) -> (UmrCtrlSegment, MkeyContext) {
    let mut control = UmrCtrlSegment::zeroed();
    let mask = Mask::KEY.0
        | Mask::FREE.0
        | Mask::PD.0
        | Mask::LEN.0
        | Mask::START_ADDR.0
        | Mask::PAGE_SIZE.0
        | Mask::LR.0
        | Mask::LW.0
        | Mask::RR.0
        | Mask::RW.0;
    control.set_mkey_mask(mask).set_check(verbless_prm::UmrCheck::NOT_FREE);
    let mut context = MkeyContext::zeroed();
    context.set_lr(true).set_lw(true).set_rw(true).set_pd(PD).set_mkey_7_0(0x42).set_qpn(ANY_QP);
    context.set_start_addr(start).set_len(length).set_log_page_size(12);
    (control, context)
}

fn umr(key: u32, control: &UmrCtrlSegment, context: &MkeyContext) -> Request {
    Request::new(opcode::UMR).imm(key).bytes(control.as_bytes()).bytes(context.as_bytes())
}

/// Pages of the arena, as translation entries padded to 64 bytes; the memory and the entries.
fn pages(rig: &mut Rig, count: u64) -> (u64, Vec<u8>) {
    let base = rig.alloc((count + 1) * PAGE).next_multiple_of(PAGE);
    let entries = (0..count).rev().flat_map(|page| ((base + page * PAGE) | 3).to_be_bytes());
    let mut entries: Vec<u8> = entries.collect();
    entries.resize(entries.len().next_multiple_of(64), 0);
    (base, entries)
}

/// Whether a write of these bytes through the key works.
fn writes(rig: &mut Rig, address: u64, key: u32, bytes: &[u8]) -> bool {
    let (mut a, _) = {
        let (a, b) = (rig.end(1), rig.end(0));
        rig.connect(&a, &b);
        (a, b)
    };
    rig.post(&mut a, Request::write(address, key).inline(bytes));
    rig.one(1, a.send_cq).opcode() == cqe_opcode::REQUESTER
}

#[test]
fn kernel_umr_maps_and_unmaps_cached_mkey() {
    let mut rig = Rig::new();
    let key = cached(&mut rig, MkeyAccessMode::MTT, 4);
    let mut q = umr_qp(&mut rig);
    let (base, entries) = pages(&mut rig, 2);
    let (list, lkey) = rig.region(0, 64);
    rig.fill(list, &entries);
    let start = 0x7000_0000_0100;
    let (mut control, context) = enable(start, PAGE);
    control.set_xlt_octowords(4);
    let pointer = DataSegment::new(64, lkey, list);
    assert!(!writes(&mut rig, start, key, b"early"));
    rig.post(&mut q, umr(key, &control, &context).bytes(pointer.as_bytes()));
    let entry = rig.one(0, q.send_cq);
    assert_eq!((entry.opcode(), entry.cqe.wqe_opcode().0), (0, opcode::UMR));
    // The entries are in descending order: the first page of the key is the second of the memory.
    assert!(writes(&mut rig, start, key, b"hello"));
    assert_eq!(rig.bytes(base + PAGE + 0x100, 5), b"hello");
    assert!(writes(&mut rig, start + 0xeff, key, b"ab"));
    assert_eq!(rig.bytes(base + PAGE + 0xfff, 1), b"a");
    assert_eq!(rig.bytes(base, 1), b"b");
    assert!(!writes(&mut rig, start + PAGE - 1, key, b"ab"), "past its end");

    // It returns to the cache, and is invalid.
    let mut control = UmrCtrlSegment::zeroed();
    control.set_inline(true).set_mkey_mask(Mask::FREE.0 | Mask::PD.0);
    let mut context = MkeyContext::zeroed();
    context.set_free(true).set_pd(99).set_mkey_7_0(0x42);
    rig.post(&mut q, umr(key, &control, &context));
    assert_eq!(rig.one(0, q.send_cq).opcode(), 0);
    assert!(!writes(&mut rig, start, key, b"late"));
    assert_eq!(rig.mkey_mut(0, key).pd, 99);
}

#[test]
fn long_mtt_list_is_mapped_in_parts() {
    let mut rig = Rig::new();
    let key = cached(&mut rig, MkeyAccessMode::MTT, 8);
    let mut q = umr_qp(&mut rig);
    let (base, entries) = pages(&mut rig, 16);
    let (mut first, context) = enable(0, 16 * PAGE);
    let (mut second, _) = enable(0, 16 * PAGE);
    first.set_mkey_mask(0).set_inline(true).set_xlt_octowords(4);
    second.set_inline(true).set_xlt_octowords(4).set_translation_offset_en(true).set_xlt_offset(4);
    rig.post(&mut q, umr(key, &first, &context).bytes(&entries[..64]));
    rig.post(&mut q, umr(key, &second, &context).bytes(&entries[64..]));
    assert_eq!(rig.all(0, q.send_cq).iter().map(|entry| entry.opcode()).max(), Some(0));
    assert!(writes(&mut rig, 0, key, b"first") && writes(&mut rig, 15 * PAGE, key, b"last"));
    assert_eq!(rig.bytes(base + 15 * PAGE, 5), b"first");
    assert_eq!(rig.bytes(base, 4), b"last");
}

#[test]
fn offset_high_bits_address_far_entries() {
    // Octwords before the changed entries; each holds two MTTs.
    const BEFORE: u32 = 1 << 16;
    const FAR: u64 = 2 * BEFORE as u64 * PAGE;
    let mut rig = Rig::new();
    let key = cached(&mut rig, MkeyAccessMode::MTT, BEFORE + 4);
    let mut q = umr_qp(&mut rig);
    let (base, entries) = pages(&mut rig, 8);
    let (mut control, context) = enable(0, FAR + 8 * PAGE);
    control.set_inline(true).set_xlt_octowords(4).set_translation_offset_en(true);
    control.set_xlt_offset_47_16(BEFORE >> 16);
    rig.post(&mut q, umr(key, &control, &context).bytes(&entries));
    assert_eq!(rig.one(0, q.send_cq).opcode(), 0);
    assert!(writes(&mut rig, FAR, key, b"far"));
    assert_eq!(rig.bytes(base + 7 * PAGE, 3), b"far");
    assert!(!writes(&mut rig, 0, key, b"near"), "no entry covers it");
}

#[test]
fn missing_page_is_out_of_bounds() {
    let mut rig = Rig::new();
    let key = cached(&mut rig, MkeyAccessMode::MTT, 4);
    let mut q = umr_qp(&mut rig);
    let (_, entries) = pages(&mut rig, 2);
    let (mut control, context) = enable(0, 9 * PAGE);
    control.set_inline(true).set_xlt_octowords(4);
    rig.post(&mut q, umr(key, &control, &context).bytes(&entries));
    assert_eq!(rig.one(0, q.send_cq).opcode(), 0);
    assert!(writes(&mut rig, 0, key, b"x"));
    assert!(!writes(&mut rig, 2 * PAGE, key, b"x"), "an empty entry");
    assert!(!writes(&mut rig, 8 * PAGE, key, b"x"), "no entry at all");
}

#[test]
fn umr_fills_klm_mkey_with_other_mkeys() {
    let mut rig = Rig::new();
    let key = cached(&mut rig, MkeyAccessMode::KLMS, 4);
    let mut q = umr_qp(&mut rig);
    let (one, one_key) = rig.region(0, 64);
    let (two, two_key) = rig.region(0, 64);
    let mut klms = vec![];
    for (length, key, address) in [(3_u32, one_key, one), (5, two_key, two + 8)] {
        klms.extend(length.to_be_bytes().into_iter().chain(key.to_be_bytes()));
        klms.extend(address.to_be_bytes());
    }
    klms.resize(64, 0);
    let (mut control, context) = enable(0x100, 8);
    control.set_inline(true).set_xlt_octowords(4);
    rig.post(&mut q, umr(key, &control, &context).bytes(&klms));
    assert_eq!(rig.one(0, q.send_cq).opcode(), 0);
    assert!(writes(&mut rig, 0x100, key, b"abcdefgh"));
    assert_eq!((rig.bytes(one, 3), rig.bytes(two + 8, 5)), (b"abc".to_vec(), b"defgh".to_vec()));
}

#[test]
fn forbidden_umr_leaves_mkey_unchanged() {
    type Edit = fn(&mut Rig, u32, &mut Endpoint, &mut UmrCtrlSegment, &mut MkeyContext);
    let bind = cqe_syndrome::MEMORY_WINDOW_BIND;
    let operation = cqe_syndrome::LOCAL_QP_OPERATION;
    let cases: [(&str, Edit, u8); 12] = [
        (
            "a key without umr_en",
            |rig, key, _, _, _| {
                rig.mkey_mut(0, key).context.set_umr_en(false);
            },
            bind,
        ),
        (
            "check for a free key",
            |_, _, _, control, _| {
                control.set_check(verbless_prm::UmrCheck::FREE);
            },
            bind,
        ),
        (
            "no such check",
            |_, _, _, control, _| {
                control.set_check(verbless_prm::UmrCheck(3));
            },
            operation,
        ),
        (
            "an unknown field",
            |_, _, _, control, _| {
                control.set_mkey_mask(control.mkey_mask() | 1 << 60);
            },
            operation,
        ),
        (
            "a user's QP, another domain",
            |rig, _, q, _, _| {
                (rig.qp(q).qp_type, rig.qp(q).uid, rig.qp(q).pd) = (RC, 1, PD);
            },
            bind,
        ),
        (
            "a user's QP, page addresses",
            |rig, key, q, control, _| {
                (rig.qp(q).qp_type, rig.qp(q).uid, rig.qp(q).pd) = (RC, 1, 99);
                rig.mkey_mut(0, key).context.set_pd(99);
                control.set_mkey_mask(control.mkey_mask() & !Mask::PD.0);
            },
            bind,
        ),
        (
            "no room",
            |_, _, _, control, _| {
                control.set_translation_offset_en(true).set_xlt_offset(4);
            },
            bind,
        ),
        (
            "no room at all",
            |_, _, _, control, _| {
                control.set_translation_offset_en(true).set_xlt_offset_47_16(u32::MAX);
            },
            bind,
        ),
        (
            "half a unit of 64 bytes",
            |_, _, _, control, _| {
                control.set_xlt_octowords(3);
            },
            operation,
        ),
        (
            "more than the key has room for",
            |_, _, _, control, _| {
                control.set_xlt_octowords(8);
            },
            bind,
        ),
        (
            "a range that overflows",
            |_, _, _, _, context| {
                context.set_start_addr(u64::MAX).set_len(2);
            },
            bind,
        ),
        (
            "tiny pages",
            |_, _, _, _, context| {
                context.set_log_page_size(3);
            },
            bind,
        ),
    ];
    for (name, edit, syndrome) in cases {
        let mut rig = Rig::new();
        let key = cached(&mut rig, MkeyAccessMode::MTT, 4);
        let mut q = umr_qp(&mut rig);
        let (_, entries) = pages(&mut rig, 2);
        let (mut control, mut context) = enable(0, PAGE);
        control.set_inline(true).set_xlt_octowords(4);
        edit(&mut rig, key, &mut q, &mut control, &mut context);
        rig.post(&mut q, umr(key, &control, &context).bytes(&entries));
        let entry = rig.one(0, q.send_cq);
        assert_eq!(entry.error(), (cqe_opcode::REQUESTER_ERROR, 0, syndrome), "{name}");
        assert!(rig.mkey_mut(0, key).free, "{name}");
        assert!(rig.mkey_mut(0, key).table.as_ref().unwrap().is_empty(), "{name}");
    }
}

#[test]
fn each_umr_field_has_its_own_capability() {
    type SetCapability = fn(&mut verbless_prm::HcaCap, bool);
    let cases: [(&str, Mask, SetCapability); 4] = [
        ("atomic", Mask::A, |caps, disabled| {
            caps.set_umr_modify_atomic_disabled(disabled);
        }),
        ("page size", Mask::PAGE_SIZE, |caps, disabled| {
            caps.set_umr_modify_entity_size_disabled(disabled);
        }),
        ("relaxed writes", Mask::RELAXED_ORDERING_WRITE, |caps, disabled| {
            caps.set_relaxed_ordering_write_umr(!disabled);
        }),
        ("relaxed reads", Mask::RELAXED_ORDERING_READ, |caps, disabled| {
            caps.set_relaxed_ordering_read_umr(!disabled);
        }),
    ];
    for disabled in [false, true] {
        for (at, (name, mask, _)) in cases.iter().enumerate() {
            let mut rig = Rig::new();
            for (other, (.., set_capability)) in cases.iter().enumerate() {
                let general = rig.locked.functions[0].hca.caps.general_mut();
                // The condition of another field does not refuse this one.
                set_capability(general, (other == at) == disabled);
            }
            let key = cached(&mut rig, MkeyAccessMode::MTT, 4);
            let mut q = umr_qp(&mut rig);
            let mut control = UmrCtrlSegment::zeroed();
            control.set_mkey_mask(mask.0);
            let mut context = MkeyContext::zeroed();
            context.set_log_page_size(13);
            rig.post(&mut q, umr(key, &control, &context));
            let entry = rig.one(0, q.send_cq);
            let refused = entry.opcode() == cqe_opcode::REQUESTER_ERROR;
            assert_eq!(refused, disabled, "{name}");
            if disabled {
                assert_eq!(entry.syndrome(), cqe_syndrome::MEMORY_WINDOW_BIND, "{name}");
            }
        }
    }
}

#[test]
fn umr_cannot_order_always_relaxed_writes() {
    for (only, relaxed) in [(false, false), (true, false), (true, true)] {
        let mut rig = Rig::new();
        let key = cached(&mut rig, MkeyAccessMode::MTT, 4);
        let general = rig.locked.functions[0].hca.caps.general_mut();
        general.set_relaxed_ordering_write_umr(true);
        general.set_mkc_order_write_after_write_ro_only(only);
        let mut q = umr_qp(&mut rig);
        let mut control = UmrCtrlSegment::zeroed();
        control.set_mkey_mask(Mask::RELAXED_ORDERING_WRITE.0);
        let mut context = MkeyContext::zeroed();
        context.set_relaxed_ordering_write(relaxed);
        rig.post(&mut q, umr(key, &control, &context));
        let refused = rig.one(0, q.send_cq).opcode() == cqe_opcode::REQUESTER_ERROR;
        assert_eq!(refused, only && !relaxed, "{only} {relaxed}");
    }
}

#[test]
fn page_size_low_and_high_bits_change_separately() {
    let (low, high) = (Mask::PAGE_SIZE.0, Mask::PAGE_SIZE_5.0);
    // PAGE_SIZE selects the lower five bits of log_page_size, PAGE_SIZE_5 the sixth.
    for (mask, new) in [(low, 0b01_0101), (high, 0b10_1100), (low | high, 0b11_0101), (0, 12)] {
        let mut rig = Rig::new();
        let key = cached(&mut rig, MkeyAccessMode::KSM, 4);
        let mut q = umr_qp(&mut rig);
        let mut control = UmrCtrlSegment::zeroed();
        control.set_mkey_mask(mask);
        let mut context = MkeyContext::zeroed();
        context.set_log_page_size(0b11_0101 & if mask & low != 0 { 0x3f } else { 0x20 });
        rig.post(&mut q, umr(key, &control, &context));
        assert_eq!(rig.one(0, q.send_cq).opcode(), cqe_opcode::REQUESTER, "{mask:#x}");
        let now = rig.mkey_mut(0, key).context.log_page_size();
        assert_eq!(now, new, "{mask:#x}: {now:#b}");
    }
}

#[test]
fn entries_need_a_readable_lkey() {
    let mut rig = Rig::new();
    let key = cached(&mut rig, MkeyAccessMode::MTT, 4);
    let mut q = umr_qp(&mut rig);
    let (list, lkey) = rig.region(0, 64);
    rig.mkey_mut(0, lkey).access.local_read = false;
    let (mut control, context) = enable(0, PAGE);
    control.set_xlt_octowords(4);
    let pointer = DataSegment::new(64, lkey, list);
    rig.post(&mut q, umr(key, &control, &context).bytes(pointer.as_bytes()));
    assert_eq!(rig.one(0, q.send_cq).syndrome(), cqe_syndrome::LOCAL_PROTECTION);
    assert!(rig.mkey_mut(0, key).free);
}

proptest::proptest! {
    #[test]
    fn random_umrs_leave_device_alive(
        bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 47..60),
        mask: u64,
    ) {
        let mut rig = Rig::new();
        let key = cached(&mut rig, MkeyAccessMode::MTT, 4);
        let mut q = umr_qp(&mut rig);
        let mut body = vec![0; 240];
        for (i, byte) in bytes.iter().enumerate() {
            body[i * 37 % 240] = *byte;
        }
        body[8..16].copy_from_slice(&(mask & 0x2001_e0c3).to_be_bytes());
        rig.post(&mut q, Request::new(opcode::UMR).imm(key).bytes(&body));
        rig.run();
        let mut b = rig.end(1);
        let a = rig.end(0);
        rig.connect(&a, &b);
        rig.post(&mut b, Request::write(u64::from(bytes[0]) << 10, key).inline(b"wild"));
        rig.advance(std::time::Duration::from_secs(1));
        let (mut later, _) = rig.pair();
        rig.post(&mut later, Request::new(opcode::NOP));
        rig.one(0, later.send_cq);
    }
}

#[test]
fn umr_beyond_function_budget_fails() {
    let mut rig = Rig::new();
    let key = cached(&mut rig, MkeyAccessMode::MTT, 4);
    let mut q = umr_qp(&mut rig);
    let (_, entries) = pages(&mut rig, 2);
    let (list, lkey) = rig.region(0, 64);
    rig.fill(list, &entries);
    let (mut control, context) = enable(0, PAGE);
    control.set_xlt_octowords(4);
    let pointer = DataSegment::new(64, lkey, list);
    let hca = &mut rig.locked.functions[0].hca;
    hca.budget = Budget::of(0);
    hca.budget.set_objects(hca.objects.bytes());
    rig.post(&mut q, umr(key, &control, &context).bytes(pointer.as_bytes()));
    assert_eq!(rig.one(0, q.send_cq).syndrome(), cqe_syndrome::MEMORY_WINDOW_BIND);
    assert!(rig.mkey_mut(0, key).free);
}

/// A header and two entries as libmlx5's mlx5dv_wr_mr_interleaved writes them, padded to 64 bytes:
/// (address, bytes, skip, key) each.
fn interleaved(rounds: u32, pieces: [(u64, u16, u16, u32); 2]) -> Vec<u8> {
    let together: u32 = pieces.iter().map(|piece| u32::from(piece.1)).sum();
    let mut bytes = [together, 0x400, rounds, 2].map(u32::to_be_bytes).concat();
    for (address, length, skip, key) in pieces {
        bytes.extend((length + skip).to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes.extend(key.to_be_bytes());
        bytes.extend(address.to_be_bytes());
    }
    bytes.resize(64, 0);
    bytes
}

#[test]
fn interleaved_mkey_alternates_pieces_with_skips() {
    let mut rig = Rig::new();
    let key = cached(&mut rig, MkeyAccessMode::KLMS, 4);
    let mut q = umr_qp(&mut rig);
    let ((one, first), (two, second)) = (rig.region(0, 256), rig.region(0, 256));
    for lkey in [first, second] {
        rig.mkey_mut(0, lkey).pd = PD;
    }
    let (mut control, context) = enable(0, 18);
    control.set_xlt_octowords(4).set_inline(true);
    let entries = interleaved(3, [(one, 4, 6, first), (two, 2, 1, second)]);
    rig.post(&mut q, umr(key, &control, &context).bytes(&entries));
    assert_eq!(rig.one(0, q.send_cq).opcode(), 0);
    assert!(writes(&mut rig, 0, key, b"AAAAbbCCCCddEEEEff"));
    for (round, part) in [b"AAAA", b"CCCC", b"EEEE"].iter().enumerate() {
        assert_eq!(&rig.bytes(one + 10 * round as u64, 5), &[*part as &[u8], &[0]].concat());
    }
    assert_eq!(rig.bytes(two, 9), b"bb\0dd\0ff\0");
    // From the middle of one round to the middle of the next.
    assert!(writes(&mut rig, 5, key, b"123456"));
    assert_eq!(
        (rig.bytes(two, 6), rig.bytes(one + 10, 4)),
        (b"b1\x006d\0".to_vec(), b"2345".to_vec())
    );
    assert!(!writes(&mut rig, 17, key, b"ab"), "past the last round");
}

#[test]
fn bad_interleaved_layout_is_rejected_unchanged() {
    for edit in [0, 3, 15, 16] {
        let mut rig = Rig::new();
        let key = cached(&mut rig, MkeyAccessMode::KLMS, 4);
        let mut q = umr_qp(&mut rig);
        let (at, lkey) = rig.region(0, 256);
        let (mut control, context) = enable(0, 18);
        control.set_xlt_octowords(4).set_inline(true);
        let mut entries = interleaved(3, [(at, 4, 6, lkey), (at, 2, 1, lkey)]);
        match edit {
            0 => entries[8..12].fill(0),
            16 => rig.locked.functions[0].hca.objects.limits.repeated_block_disabled = true,
            edit => entries[edit] += 2,
        }
        rig.post(&mut q, umr(key, &control, &context).bytes(&entries));
        assert_eq!(rig.one(0, q.send_cq).syndrome(), cqe_syndrome::MEMORY_WINDOW_BIND, "{edit}");
        assert!(rig.mkey_mut(0, key).free);
    }
}

#[test]
fn page_addresses_need_a_fast_register_qp() {
    let mut rig = Rig::new();
    let key = cached(&mut rig, MkeyAccessMode::MTT, 4);
    let mut q = umr_qp(&mut rig);
    rig.qp(&q).context.set_fre(false);
    let (_, entries) = pages(&mut rig, 2);
    let (mut control, context) = enable(0x7000_0000, PAGE);
    control.set_xlt_octowords(4).set_inline(true);
    rig.post(&mut q, umr(key, &control, &context).bytes(&entries));
    assert_eq!(rig.one(0, q.send_cq).syndrome(), cqe_syndrome::MEMORY_WINDOW_BIND);
}

#[test]
fn umr_offset_is_a_multiple_of_four_octowords() {
    for (offset, expected) in [(0, 0), (4, 0), (2, cqe_syndrome::LOCAL_QP_OPERATION)] {
        let mut rig = Rig::new();
        let key = cached(&mut rig, MkeyAccessMode::KLMS, 8);
        let mut q = umr_qp(&mut rig);
        let mut control = UmrCtrlSegment::zeroed();
        control.set_inline(true).set_xlt_octowords(4);
        control.set_translation_offset_en(true).set_xlt_offset(offset);
        let request = umr(key, &control, &MkeyContext::zeroed()).bytes(&[0; 64]);
        rig.post(&mut q, request);
        let end = rig.one(0, q.send_cq);
        let found = if end.opcode() == cqe_opcode::REQUESTER { 0 } else { end.syndrome() };
        assert_eq!(found, expected, "offset {offset}");
    }
}

/// The first of two requests makes a key valid, the second sends from its memory: how that ends.
fn send_after_umr(fm: u8, together: bool) -> u8 {
    let mut rig = Rig::new();
    let (mut a, mut b) = rig.pair();
    let (address, lkey) = rig.region(0, 64);
    let (into, key) = rig.region(1, 64);
    rig.receive(&mut b, &[DataSegment::new(64, key, into)]);
    let mkey = rig.mkey_mut(0, lkey);
    mkey.free = true;
    mkey.context.set_umr_en(true).set_free(true).set_pd(mkey.pd).set_qpn(ANY_QP).set_lr(true);
    mkey.context.set_mkey_7_0(mkey.variant).set_start_addr(address).set_len(64);
    let mut control = UmrCtrlSegment::zeroed();
    control.set_inline(true).set_mkey_mask(Mask::FREE.0);
    let map = umr(lkey, &control, &MkeyContext::zeroed()).unsignaled();
    let send = Request::send().sge(address, 8, lkey).fence_mode(fm);
    if together {
        let wqe = map.wqe(a.qpn, a.posted);
        rig.write_wqe(&mut a, &wqe);
    } else {
        rig.post(&mut a, map);
        rig.run();
    }
    rig.post(&mut a, send);
    let end = rig.one(0, a.send_cq);
    if end.opcode() == cqe_opcode::REQUESTER { 0 } else { end.syndrome() }
}

#[test]
fn unfenced_request_after_umr_sees_old_mapping() {
    use verbless_prm::hot::fence;
    let refused = cqe_syndrome::LOCAL_PROTECTION;
    for (fm, together, expected) in [
        (fence::NONE, true, refused),
        (fence::FENCE, true, refused),
        (fence::INITIATOR_SMALL, true, 0),
        (fence::STRONG_ORDERING, true, 0),
        (fence::FENCE_AND_INITIATOR_SMALL, true, 0),
        (fence::NONE, false, 0),
    ] {
        assert_eq!(send_after_umr(fm, together), expected, "mode {fm}, together: {together}");
    }
}
