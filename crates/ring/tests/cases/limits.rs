//! Full queues, wrapping rings, and malformed CQEs.

use crate::support::{
    Completer, Receiver, Sender, Settings, bytes, record_of, ring_of, to_lid, unwrapped,
};
use proptest::prelude::*;
use verbless_prm::hot::{cqe_format, cqe_opcode, opcode};
use verbless_prm::{
    Cqe, CqeFormat, CqeOpcode, MkeyContext, UmrCtrlSegment, UmrMkeyMask, WqeOpcode,
};
use verbless_ring::access::{KeyAccess, RemoteAccess};
use verbless_ring::completion::{FailedRequest, InvalidCqe};
use verbless_ring::cq::CompletionQueueParts;
use verbless_ring::qp::{ReceiveQueueParts, SendQueueParts};
use verbless_ring::ring::{RecordMemory, RingMemory, SharedMemory};
use verbless_ring::uar::UarPage;
use verbless_ring::wr::{
    Capability, CompareSwap, Fence, FetchAdd, Inline, LocalInvalidate, Nop, PostError, Read, Send,
    Umr, UmrRules, Wait, WaitCondition, Write,
};
use verbless_ring::{
    CompletionError, CompletionQueue, Cqn, Lkey, QKey, Qpn, QueuePair, ReceiveQueue, RemoteAddr,
    Rkey, SendQueue, Sge, Ud, WcOpcode, WcStatus, WqeIndex,
};

const REMOTE: RemoteAddr = RemoteAddr::new(0x7000_0000, Rkey(0xabc));

fn sge(length: u32) -> Sge {
    Sge::new(0x1000, length, Lkey(7))
}

#[test]
fn full_queue_rejects_post_without_change() {
    let mut sender = Sender::new(Settings { wqebbs: 8, ..Settings::default() });
    for i in 0..7 {
        sender.queue.post(&Write::new(sge(64), REMOTE), i).unwrap();
    }
    let before = (bytes(&sender.ring), bytes(&sender.record), bytes(&sender.uar));
    let two_blocks = Write::new([sge(1); 4], REMOTE).signaled();
    assert_eq!(sender.queue.post(&two_blocks, 9), Err(PostError::Full));
    let mut batch = sender.queue.batch();
    assert_eq!(batch.post(&two_blocks, 9), Err(PostError::Full));
    batch.ring();
    assert_eq!((bytes(&sender.ring), bytes(&sender.record), bytes(&sender.uar)), before);
    assert_eq!(sender.queue.free(), 1);

    sender.queue.post(&Nop::new().signaled(), 7).unwrap();
    assert_eq!(sender.queue.post(&Nop::new(), 8), Err(PostError::Full));
    let cqe = sender.device.completion(opcode::NOP, 7);
    assert_eq!(sender.queue.complete(cqe).unwrap().cookie, 7);
    assert_eq!(sender.queue.free(), 8, "a completion frees the unsignaled requests before it");
    sender.queue.post(&two_blocks, 9).unwrap();
}

/// The bytes that libmlx5 writes for mlx5dv_wr_mr_list with two KLMs, plus the start address.
#[test]
fn umr_map_matches_libmlx5_bytes() {
    let mut sender = Sender::new(Settings { wqebbs: 8, register: None, ..Settings::default() });
    // libmlx5 leaves the fence of `umr_fence` to the kernel.
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
    assert_eq!(ring[160..192], [0; 32], "the list is padded to four");
    assert!(ring[192..].iter().all(|&byte| byte == 0xee));
    assert_eq!(sender.queue.free(), 5);
}

/// As [`umr_map_matches_libmlx5_bytes`], with the list in memory, and without a list.
#[test]
fn umr_maps_list_in_memory_or_changes_rights_only() {
    let mut sender = Sender::new(Settings { wqebbs: 8, register: None, ..Settings::default() });
    sender.ring.fill(0xee);
    let list = Sge::new(0x4_0000, 8 * 16, Lkey(0xcc03));
    let request = Umr::map_from(Rkey(0x77), KeyAccess::LOCAL, list, 0x1_0000).starting_at(0x7000);
    sender.queue.post(&request, 1).unwrap();
    let ring = bytes(&sender.ring);
    assert_eq!(ring[7], 9, "control, UMR control, key, list");
    let (umr, mkey) = (&ring[16..64], &ring[64..128]);
    // Not inline; eight entries; the mask of the key's fields.
    assert_eq!(umr[..8], [0, 0, 0, 0, 0, 8, 0, 0]);
    assert_eq!(umr[8..16], 0x203c_2041_u64.to_be_bytes());
    assert_eq!(mkey[16..24], 0x7000_u64.to_be_bytes());
    assert_eq!(mkey[24..32], 0x1_0000_u64.to_be_bytes());
    assert_eq!(ring[128..144], [0, 0, 0, 128, 0, 0, 0xcc, 3, 0, 0, 0, 0, 0, 4, 0, 0]);
    assert!(ring[144..].iter().all(|&byte| byte == 0xee));
    assert_eq!(sender.queue.free(), 5);

    sender.queue.post(&Umr::rights(Rkey(0x77), KeyAccess::LOCAL), 1).unwrap();
    let ring = unwrapped(&sender.ring, 3 * 64, 128);
    assert_eq!(ring[7], 8, "control, UMR control, key");
    // Inline, no entries; only the rights.
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
        (Umr::map(key, writes, &[sge(1)]), PostError::Access),
        (Umr::map_from(key, atomics, Sge::new(0x800, 64, Lkey(1)), 1), PostError::Access),
        (Umr::rights(key, writes), PostError::Access),
        (Umr::map(key, access, &[sge(1); 53]), PostError::TooManyKlms),
        (Umr::map(key, access, &[sge(1), sge(0x8000_0001)]), PostError::KlmLength),
        (Umr::map(key, access, &[sge(1), sge(0), sge(1)]), PostError::KlmLength),
        (Umr::map_from(key, access, Sge::new(0x400, 64, Lkey(1)), 1), PostError::BadList),
        (Umr::map_from(key, access, Sge::new(0x800, 48, Lkey(1)), 1), PostError::BadList),
        (Umr::map_from(key, access, Sge::new(0, 1 << 20, Lkey(1)), 1), PostError::BadList),
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

/// A datagram's address fills the first wqebb, so an empty SGE after it would lie in the next one.
#[test]
fn empty_datagram_writes_nothing_behind_wqebb() {
    let mut sender: Sender<Ud> = Sender::of(Settings { wqebbs: 4, ..Settings::default() });
    let to = to_lid(7).to(Qpn(0x99), QKey(1));
    sender.ring.fill(0xee);
    sender.queue.post(&Send::new(sge(0)).to(&to), 1).unwrap();
    let ring = bytes(&sender.ring);
    assert_eq!(ring[7], 4, "units of 16 bytes");
    assert!(ring[64..].iter().all(|&byte| byte == 0xee));
    assert_eq!(sender.queue.free(), 3);

    sender.queue.post(&Send::new([sge(8), sge(0), sge(9)]).signaled().to(&to), 2).unwrap();
    let ring = bytes(&sender.ring);
    assert_eq!(ring[64 + 7], 6, "two SGEs after the address");
    assert_eq!(ring[64 + 16..64 + 64], ring[16..64], "the same address");
    assert_eq!((ring[128 + 3], ring[144 + 3]), (8, 9), "lengths of the SGEs");
    assert!(ring[160..].iter().all(|&byte| byte == 0xee));
    assert_eq!(sender.queue.free(), 1);
}

#[test]
fn request_above_limits_is_rejected_without_change() {
    let mut sender = Sender::new(Settings { max_sges: 2, max_inline: 16, ..Settings::default() });
    let before = bytes(&sender.ring);
    let queue = &mut sender.queue;
    assert_eq!(queue.post(&Write::new([sge(1); 3], REMOTE), 0), Err(PostError::TooManySges));
    assert_eq!(queue.post(&Read::new(&[sge(1); 3][..], REMOTE), 0), Err(PostError::TooManySges));
    assert_eq!(queue.post(&Send::new(Inline(&[0; 17])), 0), Err(PostError::InlineTooLong));
    assert_eq!(queue.post(&Send::new(sge(0x8000_0000)), 0), Err(PostError::SgeTooLong));
    assert_eq!(queue.post(&Send::new([sge(1), sge(u32::MAX)]), 0), Err(PostError::SgeTooLong));
    assert_eq!(queue.post(&FetchAdd::new(sge(4), REMOTE, 1), 0), Err(PostError::AtomicLength));
    assert_eq!(
        queue.post(&CompareSwap::new(sge(16), REMOTE, 1, 2), 0),
        Err(PostError::AtomicLength)
    );
    assert_eq!(queue.free(), queue.capacity());
    assert_eq!(bytes(&sender.ring), before);
    sender.queue.post(&Write::new(sge(0x7fff_ffff), REMOTE), 0).unwrap();
}

#[test]
fn largest_requests_fit_ds() {
    let mut sender = Sender::new(Settings { max_sges: 59, max_inline: 940, ..Settings::default() });
    sender.queue.post(&Write::new([sge(1); 59], REMOTE), 0).unwrap();
    assert_eq!(bytes(&sender.ring)[7], 61);
    let at = (sender.queue.capacity() - sender.queue.free()) as usize * 64;
    sender.queue.post(&Write::new(Inline(&[1; 940]), REMOTE), 0).unwrap();
    assert_eq!(bytes(&sender.ring)[at + 7], 61);
}

#[test]
fn full_receive_queue_rejects_post_without_change() {
    let mut receiver = Receiver::new(5, 4, 32);
    let mut batch = receiver.queue.batch();
    for i in 0..4 {
        batch.post(sge(64), i).unwrap();
    }
    assert_eq!(batch.post(sge(64), 4), Err(PostError::Full));
    batch.ring();
    let before = (bytes(&receiver.ring), bytes(&receiver.record));
    assert_eq!(receiver.queue.post(sge(64), 4), Err(PostError::Full));
    assert_eq!(receiver.queue.post([sge(64); 3], 4), Err(PostError::TooManySges));
    assert_eq!((bytes(&receiver.ring), bytes(&receiver.record)), before);

    let mut device = Completer::new(5);
    for i in 0..4 {
        let cqe = device.cqe(cqe_opcode::RESPONDER_SEND, 0, i as u16);
        assert_eq!(receiver.queue.complete(device.deliver(cqe)).unwrap().cookie, i);
    }
    let cqe = device.cqe(cqe_opcode::RESPONDER_SEND, 0, 4);
    let error = receiver.queue.complete(device.deliver(cqe)).unwrap_err();
    assert_eq!(error, CompletionError::InvalidCqe(InvalidCqe::Index(WqeIndex(4))));
}

#[test]
fn invalid_queue_parts_are_rejected() {
    let page = || crate::support::uar_page().1;
    let memory = SharedMemory::zeroed(4 << 20);
    let part = |offset: usize, length: usize| memory.slice(offset, length).unwrap();
    let slice = |offset: usize, length: usize| ring_of(&part(offset, length));
    let record = || record_of(&part(0, 8));
    let parts = |ring: RingMemory| SendQueueParts {
        qpn: Qpn(1),
        ring,
        record: record(),
        doorbell: page().doorbell(),
        max_sges: 1,
        max_inline: 0,
        signal_all: false,
        blueflame: Default::default(),
    };
    for (at, length) in [(0, 0), (0, 32), (0, 192), (0, 4 << 20), (8, 64)] {
        assert!(SendQueue::new(parts(slice(at, length))).is_err(), "{length} bytes at {at}");
    }
    let good = || parts(slice(0, 64));
    assert!(SendQueue::new(good()).is_ok());
    assert!(SendQueue::new(SendQueueParts { qpn: Qpn(1 << 24), ..good() }).is_err());
    assert!(SendQueue::new(SendQueueParts { max_sges: 60, ..good() }).is_err());
    assert!(SendQueue::new(SendQueueParts { max_inline: 941, ..good() }).is_err());
    assert!(RecordMemory::new(slice(0, 4)).is_err());
    assert!(RecordMemory::new(slice(2, 8)).is_err());

    let receive = |ring, stride| {
        ReceiveQueue::new(ReceiveQueueParts { qpn: Qpn(1), ring, stride, record: record() })
            .map(drop)
    };
    assert!(receive(slice(0, 64), 16).is_ok());
    for (ring, stride) in
        [(slice(0, 64), 0), (slice(0, 64), 24), (slice(0, 64), 1024), (slice(0, 8), 16)]
    {
        assert!(receive(ring, stride).is_err());
    }

    let cq = |ring, entry_size| {
        let parts =
            CompletionQueueParts { cqn: Cqn(1), ring, entry_size, record: record(), uar: page() };
        CompletionQueue::new(parts).map(drop)
    };
    assert!(cq(slice(0, 128), 64).is_ok());
    for (ring, entry_size) in
        [(slice(0, 128), 32), (slice(0, 64), 128), (slice(0, 192), 64), (slice(32, 64), 64)]
    {
        assert!(cq(ring, entry_size).is_err());
    }
    for (number, fits) in [(0xff_ffff, true), (1 << 24, false)] {
        let cqn = Cqn(number);
        let (ring, record) = (slice(0, 128), record());
        let parts = CompletionQueueParts { cqn, ring, entry_size: 64, record, uar: page() };
        assert_eq!(CompletionQueue::new(parts).is_ok(), fits, "{cqn:?}");
        let with_cqn = Completer::new(1).queue.with_cqn(cqn);
        assert_eq!(with_cqn.is_ok(), fits, "{cqn:?}");
    }
    for bad in [part(64, 4096), part(0, 2048)] {
        // SAFETY: `UarPage::new` refuses the memory, so no page exists.
        #[allow(unsafe_code, reason = "UarPage::new refuses the memory")]
        let refused = unsafe { UarPage::new(bad) };
        assert!(refused.is_err());
    }
}

#[test]
fn error_cqe_reports_failure_and_frees_slots() {
    let mut sender = Sender::new(Settings::default());
    for i in 0..3 {
        sender.queue.post(&Write::new(sge(64), REMOTE), 10 + i).unwrap();
    }
    let mut cqe = sender.device.cqe(cqe_opcode::REQUESTER_ERROR, opcode::WRITE, 1);
    cqe.set_timestamp(0x8813).set_srqn_uidx(0x77_8899).set_lro_num_seg(0xff);
    let polled = sender.device.deliver(cqe);
    let error = sender.queue.complete(polled).unwrap_err();
    let failure = FailedRequest {
        cookie: 11,
        status: WcStatus::RemoteAccess,
        vendor_syndrome: 0x88,
        wqe_index: WqeIndex(1),
        receive: false,
        qpn: Qpn(0x123),
        user_index: 0x77_8899,
    };
    assert_eq!(error, CompletionError::Failed(failure));
    assert!(error.to_string().contains("rkey"), "{error}");
    assert_eq!(sender.queue.free(), sender.queue.capacity() - 1);
}

#[test]
fn malformed_cqe_is_typed_error_and_completes_nothing() {
    let mut sender = Sender::new(Settings::default());
    sender.queue.post(&Write::new([sge(1); 4], REMOTE).signaled(), 1).unwrap();
    let free = sender.queue.free();
    let mut try_one = |edit: &dyn Fn(&mut Cqe)| {
        let mut cqe = sender.device.cqe(cqe_opcode::REQUESTER, opcode::WRITE, 0);
        edit(&mut cqe);
        let polled = sender.device.deliver(cqe);
        match sender.queue.complete(polled) {
            Err(CompletionError::InvalidCqe(malformed)) => malformed,
            other => panic!("{other:?}"),
        }
    };
    // The second wqebb of the request, and an index that was never posted; the index counts modulo
    // the ring.
    for index in [1, 2, 63, 65, 0x8001, 0xffff] {
        let edit = |cqe: &mut Cqe| _ = cqe.set_wqe_counter(index);
        assert_eq!(try_one(&edit), InvalidCqe::Index(WqeIndex(index)));
    }
    for opcode in [0x5, 0x6, 0x7, 0x8, 0xc, 0x1, 0x2] {
        let edit = |cqe: &mut Cqe| _ = cqe.set_opcode(CqeOpcode(opcode));
        assert_eq!(try_one(&edit), InvalidCqe::Opcode(opcode));
    }
    for unknown in [0x02, 0x7f, 0xff, opcode::READ] {
        let edit = |cqe: &mut Cqe| _ = cqe.set_wqe_opcode(WqeOpcode(unknown));
        assert_eq!(try_one(&edit), InvalidCqe::WorkRequest(unknown));
    }
    let compressed = |cqe: &mut Cqe| _ = cqe.set_format(CqeFormat::COMPRESSED);
    assert_eq!(try_one(&compressed), InvalidCqe::Format(cqe_format::COMPRESSED));
    assert_eq!(sender.queue.free(), free);
    let cqe = sender.device.completion(opcode::WRITE, 0);
    assert_eq!(sender.queue.complete(cqe).unwrap().operation(), WcOpcode::Write);
}

#[test]
fn inline_data_is_bounded_by_its_place() {
    let mut short = Completer::with(9, 4, 64);
    let mut cqe = short.cqe(cqe_opcode::RESPONDER_SEND, 0, 0);
    cqe.set_byte_cnt(u32::MAX);
    for (format, length) in
        [(CqeFormat::INLINE_32, 32), (CqeFormat::INLINE_64, 0), (CqeFormat::COMPRESSED, 0)]
    {
        cqe.set_format(format);
        short.deliver(cqe);
        assert_eq!(short.queue.inline_data().len(), length);
    }
    let mut long = Completer::with(9, 4, 128);
    cqe.set_format(CqeFormat::INLINE_64);
    let data: [u8; 64] = std::array::from_fn(|i| i as u8);
    long.push_with(&data, cqe);
    long.queue.poll().unwrap();
    assert_eq!(long.queue.inline_data(), data);
}

#[test]
fn owner_bit_toggles_every_lap() {
    let mut device = Completer::with(9, 4, 64);
    for _ in 0..11 {
        assert!(device.queue.poll().is_none());
        device.completion(opcode::NOP, 0);
    }
}

/// One step of a queue pair.
#[derive(Clone, Debug)]
enum Step {
    Post { sges: usize, inline: usize, signaled: bool },
    Batch(Vec<usize>),
    Complete(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0usize..5, 0usize..200, any::<bool>()).prop_map(|(sges, inline, signaled)| Step::Post {
            sges,
            inline,
            signaled
        }),
        proptest::collection::vec(0usize..5, 0..6).prop_map(Step::Batch),
        (0usize..8).prop_map(Step::Complete),
    ]
}

proptest! {
    /// For any posts and completions, cookies return in order and the count of free WQEBBs is
    /// right.
    #[test]
    fn sends_complete_in_order_and_wqebbs_add_up(
        start in any::<u16>(),
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let mut sender = Sender::new(Settings { wqebbs: 16, ..Settings::default() });
        sender.advance(start, false);
        // (cookie, index, wqebbs, opcode) of the outstanding requests.
        let mut outstanding = std::collections::VecDeque::new();
        let (mut cookie, mut index) = (0, start);
        let four = [sge(9); 4];
        for step in steps {
            let used: u32 = outstanding.iter().map(|&(_, _, wqebbs, _)| wqebbs).sum();
            prop_assert_eq!(sender.queue.free(), 16 - used);
            let mut posted = Vec::new();
            match step {
                Step::Post { sges: 0, inline, signaled } => {
                    let data = vec![0x5a; inline];
                    let write = Write::new(Inline(&data), REMOTE);
                    let write = if signaled { write.signaled() } else { write };
                    let units = if inline == 0 { 2 } else { 2 + (inline + 4).div_ceil(16) };
                    let result = sender.queue.post(&write, cookie);
                    posted.push((result, units.div_ceil(4) as u32, opcode::WRITE));
                }
                Step::Post { sges, .. } => {
                    let read = Read::new(&four[..sges], REMOTE).signaled();
                    let result = sender.queue.post(&read, cookie);
                    posted.push((result, (2 + sges).div_ceil(4) as u32, opcode::READ));
                }
                Step::Batch(requests) => {
                    let mut batch = sender.queue.batch();
                    for (i, &sges) in requests.iter().enumerate() {
                        let send = Send::new(&four[..sges]);
                        let result = batch.post(&send, cookie + i as u64);
                        posted.push((result, (1 + sges).div_ceil(4) as u32, opcode::SEND));
                    }
                    batch.ring();
                }
                Step::Complete(which) => {
                    if let Some(&(expected, at, _, opcode)) = outstanding.get(which) {
                        let cqe = sender.device.completion(opcode, at);
                        prop_assert_eq!(sender.queue.complete(cqe).unwrap().cookie, expected);
                        outstanding.drain(..=which);
                    } else if used < 16 {
                        // In a full ring this index is the oldest request's plus the ring size.
                        let cqe = sender.device.completion(opcode::WRITE, index);
                        prop_assert!(sender.queue.complete(cqe).is_err());
                    }
                }
            }
            let mut free = 16 - outstanding.iter().map(|&(_, _, wqebbs, _)| wqebbs).sum::<u32>();
            for (i, (result, wqebbs, opcode)) in posted.into_iter().enumerate() {
                if wqebbs <= free {
                    prop_assert_eq!(result, Ok(WqeIndex(index)));
                    outstanding.push_back((cookie + i as u64, index, wqebbs, opcode));
                    index = index.wrapping_add(wqebbs as u16);
                    free -= wqebbs;
                } else {
                    prop_assert_eq!(result, Err(PostError::Full));
                }
            }
            cookie += 10;
        }
    }

    /// No CQE that a device can write panics or breaks the count of free WQEBBs.
    #[test]
    fn random_cqe_is_completion_or_error(
        cqes in proptest::collection::vec(proptest::array::uniform32(any::<[u8; 2]>()), 1..20),
        opcode in 0u8..15,
        aim in any::<bool>(),
    ) {
        let mut sender = Sender::new(Settings::default());
        let receiver = Receiver::new(0x123, 4, 32);
        sender.queue.post(&Write::new(sge(1), REMOTE), 1).unwrap();
        let Sender { queue, mut device, .. } = sender;
        let mut pair = QueuePair::new(queue, receiver.queue);
        pair.post_receive(sge(1), 2).unwrap();
        for bytes in cqes {
            let mut cqe = *Cqe::from_prefix(bytes.as_flattened()).unwrap();
            if aim {
                // Random bytes rarely name the right queue.
                cqe.set_qpn(0x123);
            }
            cqe.set_opcode(CqeOpcode(opcode));
            let polled = device.deliver(cqe);
            prop_assert!(device.queue.inline_data().len() <= 64);
            let _ = pair.complete(polled);
            prop_assert!(pair.send.free() <= pair.send.capacity());
            prop_assert!(pair.receive.free() <= pair.receive.capacity());
        }
    }
}

#[test]
fn umr_rights_set_their_mkey_bits() {
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
        sender.queue.post(&Umr::rights(Rkey(0x1234), access), 0).unwrap();
        // After control (16 bytes) and UMR control (48).
        let mkey = unwrapped(&sender.ring, 64, 64);
        let mkey = MkeyContext::from_prefix(&mkey).unwrap();
        let rights = [mkey.lw(), mkey.rr(), mkey.rw(), mkey.a()];
        let rights = (3..).zip(rights).map(|(bit, right)| u8::from(right) << bit).sum::<u8>();
        assert_eq!(rights, bit, "{access:?}");
    }
}

#[test]
fn umr_skips_atomic_right_without_capability() {
    let klms = [sge(64)];
    let may =
        KeyAccess { remote: RemoteAccess { atomic: false, ..RemoteAccess::ALL }, ..KeyAccess::ALL };
    for (changes, bit) in [(true, UmrMkeyMask::A.0), (false, 0)] {
        let mut sender = Sender::new(Settings::default());
        sender.queue.set_capabilities(|it| changes || it != Capability::UmrAtomic);
        for (request, index) in [(Umr::rights(Rkey(1), may), 0), (Umr::map(Rkey(1), may, &klms), 2)]
        {
            sender.queue.post(&request, 0).unwrap();
            let umr = unwrapped(&sender.ring, 64 * index + 16, 48);
            let mask = UmrCtrlSegment::from_prefix(&umr).unwrap().mkey_mask();
            assert_eq!(mask & UmrMkeyMask::A.0, bit);
            assert_ne!(mask & UmrMkeyMask::RW.0, 0, "the other rights");
        }
        let refused = sender.queue.post(&Umr::map(Rkey(1), KeyAccess::ALL, &klms), 0);
        assert_eq!(refused.err(), (!changes).then_some(PostError::AtomicAccess));
    }
}

#[test]
fn umr_for_atomics_requires_whole_operands() {
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

/// The fence modes of the requests in the ring.
fn fences(sender: &Sender, places: &[usize]) -> Vec<u8> {
    places.iter().map(|at| unwrapped(&sender.ring, 64 * at, 16)[11] >> 5).collect()
}

#[test]
fn request_after_umr_has_small_fence() {
    const NONE: u8 = 0;
    const SMALL: u8 = 1;
    const STRONG: u8 = 3;
    const FULL: u8 = 4;
    let (write, key) = (Write::new(sge(8), REMOTE), Rkey(0x1234));
    for (rule, own) in [(Fence::None, NONE), (Fence::Small, SMALL), (Fence::Strong, STRONG)] {
        let mut sender = Sender::new(Settings::default());
        sender.queue.set_umr_rules(UmrRules { fence: rule, ..UmrRules::STRICT });
        let mut batch = sender.queue.batch();
        batch.post(&write, 0).unwrap();
        batch.post(&write.fence_with(Fence::Reads), 0).unwrap();
        batch.post(&Umr::rights(key, KeyAccess::LOCAL), 0).unwrap();
        batch.post(&write, 0).unwrap();
        batch.ring();
        sender.queue.post(&write.fence(), 0).unwrap();
        sender.queue.post(&write.fence_with(Fence::Strong), 0).unwrap();
        sender.queue.post(&LocalInvalidate::new(key), 0).unwrap();
        sender.queue.post(&write, 0).unwrap();
        let expected = [NONE, 2, own, SMALL, FULL, STRONG, SMALL, SMALL];
        assert_eq!(fences(&sender, &[0, 1, 2, 4, 5, 6, 7, 9]), expected, "{rule:?}");
        // READs plus the small fence are at least the fence of verbs.
        sender.queue.post(&write.fence_with(Fence::Reads), 0).unwrap();
        assert!([STRONG, FULL].contains(&fences(&sender, &[10])[0]));
    }
}

#[test]
fn dropped_batch_keeps_fence_after_umr() {
    let mut sender = Sender::new(Settings::default());
    let write = Write::new(sge(8), REMOTE);
    sender.queue.post(&write, 0).unwrap();
    sender.queue.post(&LocalInvalidate::new(Rkey(0x1234)), 0).unwrap();
    let mut batch = sender.queue.batch();
    batch.post(&write, 0).unwrap();
    drop(batch);
    sender.queue.post(&write, 0).unwrap();
    assert_eq!(fences(&sender, &[0, 3]), [0, 1]);
}

#[test]
fn is_solicited_follows_cqe_bit() {
    let mut device = Completer::new(1);
    for solicited in [true, false] {
        for opcode in [cqe_opcode::REQUESTER, cqe_opcode::RESPONDER_SEND] {
            let mut cqe = device.cqe(opcode, 0, 0);
            cqe.set_se(solicited);
            assert_eq!(device.deliver(cqe).is_solicited(), solicited);
        }
    }
}

#[test]
fn drain_inline_data_is_of_last_cqe() {
    let mut device = Completer::with(9, 4, 64);
    for byte in [0x11, 0x22] {
        let mut cqe = device.cqe(cqe_opcode::RESPONDER_SEND, 0, 0);
        cqe.set_format(CqeFormat::INLINE_32).set_byte_cnt(3);
        cqe.as_bytes_mut()[..3].fill(byte);
        device.push(cqe);
    }
    let mut drain = device.queue.drain(2);
    for byte in [0x11, 0x22] {
        assert!(drain.next().is_some());
        assert_eq!(drain.inline_data(), [byte; 3]);
    }
}

#[test]
fn poll_into_takes_as_many_cqes_as_places() {
    let mut device = Completer::new(1);
    for index in 0..5 {
        let cqe = device.cqe(cqe_opcode::REQUESTER, opcode::NOP, index);
        device.push(cqe);
    }
    let mut places = [const { None }; 3];
    let mut found = Vec::new();
    for expected in [3, 2, 0] {
        assert_eq!(device.queue.poll_into(&mut places), expected);
        found.extend(places.iter_mut().take(expected).flatten().map(|cqe| cqe.wqe_index().0));
    }
    assert_eq!(found, [0, 1, 2, 3, 4]);
    assert_eq!(bytes(&device.record)[..4], [0, 0, 0, 5], "the doorbell record counts all of them");
}

#[test]
fn halves_work_on_two_threads() {
    const COUNT: u64 = 100;
    let Sender { queue: send, mut device, ring: _sends, record: _sent, uar: _uar } =
        Sender::new(Settings::default());
    let Receiver { queue: receive, ring: _receives, record: _received } =
        Receiver::new(0x123, 8, 16);
    let (mut send, mut receive) = QueuePair::new(send, receive).split();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for cookie in 0..COUNT {
                let index = send.post(&Write::new(sge(64), REMOTE).signaled(), cookie).unwrap();
                let cqe = device.completion(opcode::WRITE, index.0);
                assert_eq!(send.complete(cqe).unwrap().cookie, cookie);
            }
        });
        scope.spawn(move || {
            let mut device = Completer::new(0x123);
            for cookie in 0..COUNT {
                let index = receive.post(sge(64), cookie).unwrap();
                let cqe = device.cqe(cqe_opcode::RESPONDER_SEND, 0, index.0);
                assert_eq!(receive.complete(device.deliver(cqe)).unwrap().cookie, cookie);
            }
        });
    });
}

#[test]
fn wait_encodes_condition_and_rejects_odd_address() {
    let mut sender = Sender::new(Settings::default());
    let until = WaitCondition::past(0x0102_0304_0506_0708).masked(0xff00).not();
    sender.queue.post(&Wait::new(0x1_0000_2008, Lkey(0x1234), until).signaled(), 0).unwrap();
    let ring = bytes(&sender.ring);
    assert_eq!(ring[..4], [1, 0, 0, 0x0f], "op_mod, index and opcode");
    assert_eq!(ring[7], 3, "ds");
    let mut segment = [0; 32];
    // Inverted, and CYCLIC_SMALLER: the value is behind the word in wrap-around order.
    segment[3] = 0x15;
    segment[4..8].copy_from_slice(&0x1234_u32.to_be_bytes());
    segment[8..16].copy_from_slice(&0x1_0000_2008_u64.to_be_bytes());
    // The mask applies to the value too.
    segment[16..24].copy_from_slice(&0x0700_u64.to_be_bytes());
    segment[24..].copy_from_slice(&0xff00_u64.to_be_bytes());
    assert_eq!(ring[16..48], segment);
    let odd = Wait::new(0x1004, Lkey(1), WaitCondition::equal(0));
    assert_eq!(sender.queue.post(&odd, 0), Err(PostError::Unaligned));
}
