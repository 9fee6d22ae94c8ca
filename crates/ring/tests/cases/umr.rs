//! UMR WQEs: their bytes, and the requests that are refused.

use crate::support::{Sender, Settings, bytes, sge, unwrapped};
use verbless_prm::{MkeyContext, UmrCtrlSegment, UmrMkeyMask};
use verbless_ring::access::{KeyAccess, RemoteAccess};
use verbless_ring::wr::{Capability, Fence, PostError, Umr, UmrRules};
use verbless_ring::{Lkey, Rkey, Sge};

/// The bytes that libmlx5 writes for mlx5dv_wr_mr_list with two KLMs, plus the start address.
#[test]
fn umr_map_matches_libmlx5_bytes() {
    let mut sender = Sender::new(Settings { wqebbs: 8, register: None, ..Settings::default() });
    // libmlx5 writes no fence here: only mlx5_ib applies the capability `umr_fence`.
    sender.queue.set_umr_rules(UmrRules { fence: Fence::None, ..UmrRules::STRICT });
    sender.ring.fill(0xee);
    let klms = [Sge::new(0x1111, 0x20, Lkey(0xaa01)), Sge::new(0x2222, 0x30, Lkey(0xbb02))];
    let access =
        KeyAccess { remote: RemoteAccess { atomic: false, ..RemoteAccess::ALL }, ..KeyAccess::ALL };
    let request = Umr::map(Rkey(0x1234_5677), access, &klms).starting_at(0x7000).signaled();
    sender.queue.post(&request, 1).unwrap();
    let ring = bytes(&sender.ring);
    assert_eq!(ring[..16], [0, 0, 0, 0x25, 0, 1, 0x23, 12, 0, 0, 0, 8, 0x12, 0x34, 0x56, 0x77]);
    let mut umr = [0; 48];
    umr[0] = 0x80;
    umr[5] = 4;
    // Free, atomic, remote write, remote read, local write; key; start; length.
    umr[8..16].copy_from_slice(&0x203c_2041_u64.to_be_bytes());
    assert_eq!(ring[16..64], umr);
    let mut mkey = [0; 64];
    mkey[2] = 1 << 5 | 1 << 4 | 1 << 3;
    mkey[4..8].copy_from_slice(&[0xff, 0xff, 0xff, 0x77]);
    mkey[22..24].copy_from_slice(&[0x70, 0]);
    mkey[31] = 0x50;
    assert_eq!(ring[64..128], mkey);
    assert_eq!(ring[128..144], Umr::entry(&klms[0]));
    assert_eq!(ring[144..160], [0, 0, 0, 0x30, 0, 0, 0xbb, 2, 0, 0, 0, 0, 0, 0, 0x22, 0x22]);
    assert_eq!(ring[160..192], [0; 32], "the KLMs are padded to four");
    assert!(ring[192..].iter().all(|&byte| byte == 0xee));
    assert_eq!(sender.queue.free(), 5);
}

/// Ours only, not compared with libmlx5: a UMR with a KLM pointer in place of inline KLMs, and a
/// UMR that changes access flags only.
#[test]
fn umr_takes_klm_pointer_or_changes_access_flags_only() {
    let mut sender = Sender::new(Settings { wqebbs: 8, register: None, ..Settings::default() });
    sender.ring.fill(0xee);
    let list = Sge::new(0x4_0000, 8 * 16, Lkey(0xcc03));
    let request = Umr::map_from(Rkey(0x77), KeyAccess::LOCAL, list, 0x1_0000).starting_at(0x7000);
    sender.queue.post(&request, 1).unwrap();
    let ring = bytes(&sender.ring);
    assert_eq!(ring[7], 9, "ctrl, umr_ctrl, mkey context, KLM pointer");
    let (umr, mkey) = (&ring[16..64], &ring[64..128]);
    // Not inline; eight KLMs; mkey_mask.
    assert_eq!(umr[..8], [0, 0, 0, 0, 0, 8, 0, 0]);
    assert_eq!(umr[8..16], 0x203c_2041_u64.to_be_bytes());
    assert_eq!(mkey[16..24], 0x7000_u64.to_be_bytes());
    assert_eq!(mkey[24..32], 0x1_0000_u64.to_be_bytes());
    assert_eq!(ring[128..144], [0, 0, 0, 128, 0, 0, 0xcc, 3, 0, 0, 0, 0, 0, 4, 0, 0]);
    assert!(ring[144..].iter().all(|&byte| byte == 0xee));
    assert_eq!(sender.queue.free(), 5);

    sender.queue.post(&Umr::access_flags(Rkey(0x77), KeyAccess::LOCAL), 1).unwrap();
    let ring = unwrapped(&sender.ring, 3 * 64, 128);
    assert_eq!(ring[7], 8, "ctrl, umr_ctrl, mkey context");
    // Inline, no KLMs; only the access flags.
    assert_eq!(ring[16..24], [0x80, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(ring[24..32], 0x003c_0000_u64.to_be_bytes());
}

#[test]
fn invalid_umr_is_rejected() {
    let mut sender = Sender::new(Settings::default());
    let (key, access) = (Rkey(1), KeyAccess::LOCAL);
    let queue = &mut sender.queue;
    let peers = |remote| KeyAccess { remote, ..KeyAccess::LOCAL_READ };
    let writes = peers(RemoteAccess { write: true, ..RemoteAccess::default() });
    let atomics = peers(RemoteAccess { atomic: true, ..RemoteAccess::default() });
    for (request, why) in [
        (Umr::map(key, writes, &[sge(1)]), PostError::UmrAccess),
        (Umr::map_from(key, atomics, Sge::new(0x800, 64, Lkey(1)), 1), PostError::UmrAccess),
        (Umr::access_flags(key, writes), PostError::UmrAccess),
        (Umr::map(key, access, &[sge(1); 53]), PostError::TooManyKlms),
        (Umr::map(key, access, &[sge(1), sge(0x8000_0001)]), PostError::KlmLength),
        (Umr::map(key, access, &[sge(1), sge(0), sge(1)]), PostError::KlmLength),
        (Umr::map_from(key, access, Sge::new(0x400, 64, Lkey(1)), 1), PostError::BadKlmList),
        (Umr::map_from(key, access, Sge::new(0x800, 48, Lkey(1)), 1), PostError::BadKlmList),
        (Umr::map_from(key, access, Sge::new(0, 1 << 20, Lkey(1)), 1), PostError::BadKlmList),
    ] {
        assert_eq!(queue.post(&request, 0), Err(why));
    }
    assert_eq!(queue.free(), queue.capacity());
    let mut sender = Sender::new(Settings { wqebbs: 32, register: None, ..Settings::default() });
    let most = 65_532 * Umr::ENTRY_BYTES as u32;
    for (request, wqebbs) in [
        (Umr::map(key, access, &[sge(1); Umr::MAX_INLINE]), 15),
        (Umr::map(key, access, &[sge(0x8000_0000)]), 3),
        (Umr::map_from(key, access, Sge::new(0x800, most, Lkey(1)), 1), 3),
    ] {
        let free = sender.queue.free();
        sender.queue.post(&request, 0).expect("the limit itself");
        assert_eq!(free - sender.queue.free(), wqebbs);
    }
}

#[test]
fn umr_access_flags_set_their_mkey_bits() {
    let remote = |read, write, atomic| RemoteAccess { read, write, atomic };
    let (none, local) = (KeyAccess::LOCAL_READ, KeyAccess::LOCAL);
    for (access, bit) in [
        (none, 0),
        (local, 1 << 3),
        (KeyAccess { remote: remote(true, false, false), ..none }, 1 << 4),
        (KeyAccess { remote: remote(false, true, false), ..local }, 1 << 3 | 1 << 5),
        (KeyAccess { remote: remote(false, false, true), ..local }, 1 << 3 | 1 << 6),
    ] {
        let mut sender = Sender::new(Settings::default());
        sender.queue.post(&Umr::access_flags(Rkey(0x1234), access), 0).unwrap();
        // After ctrl (16 bytes) and umr_ctrl (48).
        let mkey = unwrapped(&sender.ring, 64, 64);
        let mkey = MkeyContext::from_prefix(&mkey).unwrap();
        let flags = [mkey.lw(), mkey.rr(), mkey.rw(), mkey.a()];
        let flags = (3..).zip(flags).map(|(bit, flag)| u8::from(flag) << bit).sum::<u8>();
        assert_eq!(flags, bit, "{access:?}");
    }
}

#[test]
fn umr_skips_atomic_flag_without_capability() {
    let klms = [sge(64)];
    let access =
        KeyAccess { remote: RemoteAccess { atomic: false, ..RemoteAccess::ALL }, ..KeyAccess::ALL };
    for (has_capability, bit) in [(true, UmrMkeyMask::A.0), (false, 0)] {
        let mut sender = Sender::new(Settings::default());
        sender.queue.set_capabilities(|it| has_capability || it != Capability::UmrAtomic);
        let (flags, map) = (Umr::access_flags(Rkey(1), access), Umr::map(Rkey(1), access, &klms));
        for (request, index) in [(flags, 0), (map, 2)] {
            sender.queue.post(&request, 0).unwrap();
            let umr = unwrapped(&sender.ring, 64 * index + 16, 48);
            let mask = UmrCtrlSegment::from_prefix(&umr).unwrap().mkey_mask();
            assert_eq!(mask & UmrMkeyMask::A.0, bit);
            assert_ne!(mask & UmrMkeyMask::RW.0, 0, "the other access flags");
        }
        let refused = sender.queue.post(&Umr::map(Rkey(1), KeyAccess::ALL, &klms), 0);
        assert_eq!(refused.err(), (!has_capability).then_some(PostError::UmrAtomicAccess));
    }
}

#[test]
fn umr_with_atomics_needs_aligned_range() {
    let mut sender = Sender::new(Settings::default());
    let refused = Some(PostError::AtomicRange);
    let (odd, even) = ([sge(100)], [sge(60), sge(44)]);
    for (klms, start, unit, expected) in [
        (&odd[..], 0, 8, refused),
        (&even[..], 0, 8, None),
        (&even[..], 4, 8, refused),
        (&even[..], 16, 16, refused),
        (&even[..], 8, 8, None),
    ] {
        sender.queue.set_umr_rules(UmrRules { max_atomic_bytes: unit, ..UmrRules::STRICT });
        let map = |access| Umr::map(Rkey(0x1234), access, klms).starting_at(start);
        assert_eq!(sender.queue.post(&map(KeyAccess::ALL), 0).err(), expected, "{start}, {unit}");
        sender.queue.post(&map(KeyAccess::READ_WRITE), 0).unwrap();
        let list = Sge::new(2048, 64, Lkey(1));
        let length = if klms.len() == 1 { 100 } else { 104 };
        let from = Umr::map_from(Rkey(0x1234), KeyAccess::ALL, list, length).starting_at(start);
        assert_eq!(sender.queue.post(&from, 0).err(), expected, "in memory: {start}, {unit}");
    }
}

#[test]
fn umr_map_length_exceeds_32_bits() {
    let mut sender = Sender::new(Settings::default());
    let klms = [sge(0x8000_0000); 3];
    sender.queue.post(&Umr::map(Rkey(1), KeyAccess::LOCAL, &klms), 0).unwrap();
    // After control (16 bytes) and UMR control (48).
    let mkey = unwrapped(&sender.ring, 64, 64);
    assert_eq!(MkeyContext::from_prefix(&mkey).unwrap().len(), 0x1_8000_0000);
}

#[test]
fn inline_klms_fit_longest_wqe_of_device() {
    for (limit, most) in [(512, 24), (575, 24), (576, 28), (959, 48), (960, 52), (1024, 52)] {
        let mut sender = Sender::new(Settings { wqebbs: 32, ..Settings::default() });
        sender.queue.set_umr_rules(UmrRules::STRICT.with_max_wqe_bytes(limit));
        let klms = vec![sge(1); most + 1];
        let map = |count| Umr::map(Rkey(1), KeyAccess::LOCAL, &klms[..count]);
        assert_eq!(sender.queue.post(&map(most + 1), 0), Err(PostError::TooManyKlms), "{limit}");
        sender.queue.post(&map(most), 0).unwrap();
        let length = usize::from(bytes(&sender.ring)[7]) * 16;
        assert!(length <= limit && length == 128 + 16 * most, "{length} of {limit} bytes");
    }
}
