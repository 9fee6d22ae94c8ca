//! Ethernet frames: WQEs in the ring, refused posts, CQEs, and cleaning.

use crate::support::{Completer, Sender, Settings, bytes, memory, record_of, ring_of, unwrapped};
use verbless_prm::hot::{self, cqe_opcode, opcode};
use verbless_prm::number::Rqn;
use verbless_prm::{CqeHashIp, CqeHashL4, CqeL3Type, CqeL4Type};
use verbless_ring::completion::InvalidCqe;
use verbless_ring::qp::{ReceiveQueue, ReceiveQueueParts};
use verbless_ring::raw_rq::{L3Type, L4Type, RssHash};
use verbless_ring::ring::SharedMemory;
use verbless_ring::wr::{Capability, EthSend, Inline, MIN_INLINE_HEADER, Nop, PostError};
use verbless_ring::{
    CompletionError, Dispatcher, Eth, Lkey, Qpn, RawRq, SendQueue, Sge, WcOpcode, WcStatus,
};

/// The first bytes of a frame: two addresses, a type, and more.
const HEADER: [u8; 64] = {
    let mut header = [0; 64];
    let mut i = 0;
    while i < header.len() {
        header[i] = 0x10 + i as u8;
        i += 1;
    }
    header
};
const BODY: Sge = Sge::new(0x0102_0304_0506_0708, 0x2a, Lkey(0x0a0b_0c0d));

fn sender(settings: Settings) -> Sender<Eth> {
    let sender = Sender::<Eth>::of(settings);
    // A field that stays unwritten fails the comparison.
    sender.ring.fill(0xa5);
    sender
}

/// The bytes of a WQE: of the control segment, the Ethernet segment and what follows.
fn wqe(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

#[test]
fn frame_wqe_matches_linux_bytes() {
    // mlx5e_sq_xmit_wqe of Linux 7.2 for a frame of which 18 bytes are inline, both checksums and a
    // completion wanted: control with opcode SEND and the SQ's number, Ethernet segment with
    // cs_flags 0xc0 and inline_hdr.sz 18, whose last two bytes begin the header.
    let mut sender = sender(Settings { qpn: 0x00ab_cdef, ..Settings::default() });
    sender.advance(3, false);
    sender.ring.fill(0xa5);
    let frame = EthSend::new(&HEADER[..18], BODY).ip_checksum().l4_checksum().signaled();
    assert_eq!(sender.queue.post(&frame, 9).unwrap().0, 3);
    let expected = wqe(&[
        &[0, 0, 3, 0x0a, 0xab, 0xcd, 0xef, 4, 0, 0, 0, 0x08, 0, 0, 0, 0],
        &[0, 0, 0, 0, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 18, 0x10, 0x11],
        &HEADER[2..18],
        &[0, 0, 0, 0x2a, 0x0a, 0x0b, 0x0c, 0x0d, 1, 2, 3, 4, 5, 6, 7, 8],
    ]);
    assert_eq!(unwrapped(&sender.ring, 3 * 64, 64), expected);
    assert_eq!(bytes(&sender.record), [0, 0, 0, 0, 0, 0, 0, 4], "the sends are the second word");
    let cqe = sender.device.completion(opcode::SEND, 3);
    let completion = sender.queue.complete(cqe).unwrap();
    assert_eq!((completion.cookie, completion.operation()), (9, WcOpcode::Send));
}

#[test]
fn header_of_any_length_is_padded_to_segments() {
    for length in 0..=HEADER.len() {
        let mut sender = sender(Settings::default());
        sender.queue.set_min_inline_header(0).unwrap();
        sender.queue.post(&EthSend::new(&HEADER[..length], BODY), 0).unwrap();
        let ring = bytes(&sender.ring);
        // DIV_ROUND_UP(ihs - INL_HDR_START_SZ, MLX5_SEND_WQE_DS) of mlx5e_sq_calc_wqe_attr.
        let behind = length.saturating_sub(2).div_ceil(16);
        assert_eq!(usize::from(ring[7]), 3 + behind, "ds with {length} bytes");
        assert_eq!(ring[28..30], (length as u16).to_be_bytes());
        assert_eq!(ring[30..30 + length], HEADER[..length]);
        if length < 2 {
            assert_eq!(ring[30 + length..32], [0; 2][length..], "no stale bytes");
        }
        let body = 32 + 16 * behind;
        assert_eq!(ring[body..body + 8], [0, 0, 0, 0x2a, 0x0a, 0x0b, 0x0c, 0x0d]);
    }
}

#[test]
fn frame_wraps_at_ring_end() {
    let mut sender = sender(Settings { wqebbs: 4, ..Settings::default() });
    sender.advance(3, false);
    sender.ring.fill(0xa5);
    sender.queue.post(&EthSend::new(&HEADER, BODY), 0).unwrap();
    let wqe = unwrapped(&sender.ring, 3 * 64, 7 * 16);
    assert_eq!(wqe[7], 7);
    assert_eq!(wqe[30..30 + 64], HEADER);
    assert_eq!(wqe[96..112], [&[0, 0, 0, 0x2a, 0x0a, 0x0b, 0x0c, 0x0d][..], &wqe[104..]].concat());
    assert_eq!(wqe[104..112], [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn body_is_inline_gathered_or_empty() {
    let ds_and_rest = |post: &dyn Fn(&mut SendQueue<Eth>)| {
        let mut sender = sender(Settings::default());
        post(&mut sender.queue);
        let ring = bytes(&sender.ring);
        (ring[7], ring[48..].to_vec())
    };
    let header = &HEADER[..18];
    let (ds, _) = ds_and_rest(&|queue| {
        queue.post(&EthSend::new(header, []), 0).unwrap();
    });
    assert_eq!(ds, 3);
    let (ds, rest) = ds_and_rest(&|queue| {
        queue.post(&EthSend::new(header, Inline(&HEADER[18..30])), 0).unwrap();
    });
    assert_eq!((ds, &rest[..4]), (4, &[0x80, 0, 0, 12][..]));
    assert_eq!(rest[4..16], HEADER[18..30]);
    let (ds, rest) = ds_and_rest(&|queue| {
        queue.post(&EthSend::new(header, &[BODY, BODY, BODY][..]), 0).unwrap();
    });
    assert_eq!(ds, 6);
    assert_eq!(rest[..16], rest[32..48]);
}

#[test]
fn vlan_tag_replaces_inline_header() {
    // eseg->insert.type = MLX5_ETH_WQE_INSERT_VLAN | MLX5_ETH_WQE_SVLAN, insert.vlan_tci.
    for (frame, kind) in [
        (EthSend::new(&[], BODY).vlan(0x2abc), [0x80, 0]),
        (EthSend::new(&[], BODY).service_vlan(0x2abc), [0x80, 1]),
    ] {
        let mut sender = sender(Settings::default());
        sender.queue.set_min_inline_header(0).unwrap();
        sender.queue.post(&frame, 0).unwrap();
        let ring = bytes(&sender.ring);
        assert_eq!(ring[16..32], [&[0; 12][..], &kind, &[0x2a, 0xbc]].concat());
        let beside = EthSend::new(&HEADER[..14], BODY).vlan(1);
        assert_eq!(sender.queue.post(&beside, 0), Err(PostError::VlanWithInlineHeader));
        sender.queue.set_capabilities(|capability| capability != Capability::VlanInsertion);
        assert_eq!(sender.queue.post(&frame, 0), Err(PostError::NoVlanInsertion));
        assert!(sender.queue.post(&EthSend::new(&[], BODY), 0).is_ok());
    }
}

#[test]
fn unsupported_frame_is_rejected_without_change() {
    let mut sender = sender(Settings { max_inline: 40, max_sges: 2, ..Settings::default() });
    let queue = &mut sender.queue;
    assert_eq!(queue.min_inline_header(), MIN_INLINE_HEADER);
    let free = queue.free();
    let mut refuses = |header: usize, body: &[Sge], why: PostError| {
        assert_eq!(queue.post(&EthSend::new(&HEADER[..header], body), 0), Err(why), "{header}");
        assert_eq!(queue.free(), free);
    };
    refuses(17, &[BODY], PostError::HeaderTooShort);
    refuses(0, &[BODY], PostError::HeaderTooShort);
    refuses(41, &[BODY], PostError::InlineTooLong);
    refuses(18, &[BODY; 3], PostError::TooManySges);
    refuses(18, &[Sge { length: 1 << 31, ..BODY }], PostError::SgeTooLong);
    // Header and inline body share the limit.
    let header = &HEADER[..18];
    let beyond = EthSend::new(header, Inline(&HEADER[18..41]));
    assert_eq!(queue.post(&beyond, 0), Err(PostError::InlineTooLong), "41 bytes");
    assert_eq!(queue.free(), free);
    queue.post(&EthSend::new(header, Inline(&HEADER[18..40])), 0).expect("40 bytes");
    assert!(PostError::HeaderTooShort.to_string().contains("min_inline_header"));
    assert!(queue.set_min_inline_header(41).unwrap_err().to_string().contains("0x29"));
    queue.set_min_inline_header(0).unwrap();
    assert_eq!(queue.post(&EthSend::new(&[], []), 0), Err(PostError::HeaderTooShort), "no bytes");
    queue.set_capabilities(|capability| capability != Capability::FrameChecksums);
    for length in [0, 14, 18] {
        let frame = EthSend::new(&HEADER[..length], BODY);
        assert_eq!(queue.post(&frame.ip_checksum(), 0), Err(PostError::NoChecksums));
        assert_eq!(queue.post(&frame.l4_checksum(), 0), Err(PostError::NoChecksums));
        assert!(queue.post(&frame, 0).is_ok());
    }
    let mut long =
        Sender::<Eth>::of(Settings { max_inline: 940, max_sges: 59, ..Settings::default() });
    let header = [0; 940];
    let too_long = EthSend::new(&header[..800], &[BODY; 20][..]);
    assert_eq!(long.queue.post(&too_long, 0), Err(PostError::TooManySges), "of 63 ds at most");
    let too_long = EthSend::new(&header[..500], Inline(&header[..600]));
    assert_eq!(long.queue.post(&too_long, 0), Err(PostError::InlineTooLong));
    assert!(long.queue.post(&EthSend::new(&header, []), 0).is_ok(), "61 ds");
}

#[test]
fn raw_sq_takes_batch_and_nop() {
    let mut sender = sender(Settings::default());
    let mut batch = sender.queue.batch();
    batch.post(&Nop::new(), 1).unwrap();
    batch.post(&EthSend::new(&HEADER[..14], BODY), 2).unwrap_err();
    batch.post(&EthSend::new(&HEADER[..18], BODY).signaled(), 3).unwrap();
    batch.ring();
    assert_eq!(bytes(&sender.record)[4..], [0, 0, 0, 2]);
    let cqe = sender.device.completion(opcode::SEND, 1);
    assert_eq!(sender.queue.complete(cqe).unwrap().cookie, 3);
    assert_eq!(sender.queue.free(), sender.queue.capacity());
}

const RQN: u32 = 0x321;
const USER: u32 = 0x77;

fn receiver(user_index: u32) -> RawRq {
    let queue = ReceiveQueue::new(ReceiveQueueParts {
        qpn: Qpn(RQN),
        ring: ring_of(&memory(8 * 16)),
        stride: 16,
        record: record_of(&memory(8)),
    });
    RawRq::new(queue.unwrap(), user_index).unwrap()
}

/// The CQE of a frame.
fn frame_cqe(user_index: u32, flow_tag: u32, index: u16) -> hot::Cqe {
    let mut cqe = hot::Cqe::zeroed();
    cqe.set_opcode(verbless_prm::CqeOpcode(cqe_opcode::RESPONDER_SEND));
    cqe.set_qpn(flow_tag).set_srqn_uidx(user_index).set_wqe_counter(index);
    cqe
}

#[test]
fn frame_cqe_fields_are_decoded() {
    let (mut frames, mut device) = (receiver(USER), Completer::new(0));
    frames.post(BODY, 41).unwrap();
    frames.post(BODY, 42).unwrap();
    let mut cqe = frame_cqe(USER, 0xabcdef, 0);
    cqe.set_byte_cnt(1234).set_imm_inval_pkey(0x0102_0304).set_rx_hash_result(0xdead_beef);
    cqe.set_rx_hash_ip(CqeHashIp::IPV6).set_rx_hash_l4(CqeHashL4::UDP).set_check_sum(0x5678);
    cqe.set_l2_ok(true).set_l3_ok(false).set_l4_ok(true);
    cqe.set_l3_hdr_type(CqeL3Type::IPV6).set_l4_hdr_type(CqeL4Type::UDP);
    cqe.set_has_vlan(true).set_vlan_info(0x2001);
    device.push(cqe);
    let frame = frames.poll(&mut device.queue).unwrap().unwrap();
    assert_eq!((frame.cookie, frame.byte_len(), frame.flow_tag()), (41, 1234, 0xabcdef));
    assert_eq!((frame.l2_ok(), frame.l3_ok(), frame.l4_ok()), (true, false, true));
    assert_eq!((frame.l3_type(), frame.l4_type()), (Some(L3Type::Ipv6), Some(L4Type::Udp)));
    assert_eq!(
        (frame.vlan(), frame.checksum(), frame.metadata()),
        (Some(0x2001), 0x5678, 0x0102_0304)
    );
    let (l3_type, l4_type) = (Some(L3Type::Ipv6), Some(L4Type::Udp));
    assert_eq!(frame.hash(), Some(RssHash { value: 0xdead_beef, l3_type, l4_type }));
    assert_eq!(bytes(&device.record)[..4], [0, 0, 0, 1], "the CQ slot is free again");

    let mut cqe = frame_cqe(USER, 0, 1);
    cqe.set_l3_ok(true).set_l3_hdr_type(CqeL3Type::IPV4).set_l4_hdr_type(CqeL4Type::TCP_NO_ACK);
    device.push(cqe);
    let frame = frames.poll(&mut device.queue).unwrap().unwrap();
    assert_eq!((frame.cookie, frame.byte_len(), frame.flow_tag()), (42, 0, 0));
    assert_eq!((frame.l2_ok(), frame.l3_ok(), frame.l4_ok()), (false, true, false));
    assert_eq!((frame.l3_type(), frame.l4_type()), (Some(L3Type::Ipv4), Some(L4Type::Tcp)));
    assert_eq!((frame.vlan(), frame.hash()), (None, None));
    assert!(frames.poll(&mut device.queue).is_none());
    assert_eq!(frames.free(), frames.capacity());
}

#[test]
fn poll_into_fills_available_places() {
    let (mut frames, mut device) = (receiver(USER), Completer::new(0));
    let mut batch = frames.batch();
    for cookie in 0..8 {
        batch.post(BODY, cookie).unwrap();
    }
    batch.ring();
    assert_eq!(frames.post(BODY, 8), Err(PostError::Full));
    (0..5).for_each(|index| device.push(frame_cqe(USER, 0, index)));
    let mut into = [const { None }; 3];
    let mut cookies = vec![];
    for expected in [3, 2, 0] {
        assert_eq!(frames.poll_into(&mut device.queue, &mut into), expected);
        cookies.extend(into[..expected].iter_mut().map(|it| it.take().unwrap().unwrap().cookie));
        assert_eq!(
            u32::from_be_bytes(bytes(&device.record)[..4].try_into().unwrap()) as usize,
            cookies.len()
        );
    }
    assert_eq!(cookies, [0, 1, 2, 3, 4]);
}

#[test]
fn error_cqe_names_failed_receive() {
    let (mut frames, mut device) = (receiver(USER), Completer::new(0));
    frames.post(BODY, 5).unwrap();
    let mut cqe = hot::CqeError::zeroed();
    cqe.set_opcode(verbless_prm::CqeOpcode(cqe_opcode::RESPONDER_ERROR));
    cqe.set_srqn_uidx(USER).set_syndrome(verbless_prm::CqeSyndrome::FLUSHED).set_qpn(RQN);
    device.push(*hot::Cqe::from_prefix(cqe.as_bytes()).unwrap());
    let Some(Err(CompletionError::Failed(failure))) = frames.poll(&mut device.queue) else {
        panic!("no failure");
    };
    assert_eq!((failure.cookie, failure.status), (5, WcStatus::Flushed));
    assert_eq!((failure.user_index, failure.receive), (USER, true));
    assert_eq!(frames.free(), frames.capacity());
}

#[test]
fn forged_cqe_completes_only_posted_receive() {
    let mut frames = receiver(USER);
    frames.post(BODY, 5).unwrap();
    for opcode in 0..16 {
        for format in 0..4 {
            for (user_index, index) in [(USER, 1), (USER, 0), (USER ^ 1, 0), (0xff_ffff, 0)] {
                if opcode == cqe_opcode::INVALID {
                    continue;
                }
                let mut device = Completer::new(0);
                let mut cqe = frame_cqe(user_index, 0xff_ffff, index);
                cqe.set_opcode(verbless_prm::CqeOpcode(opcode));
                cqe.set_format(verbless_prm::CqeFormat(format)).set_byte_cnt(u32::MAX);
                device.push(cqe);
                let polled = frames.poll(&mut device.queue);
                let what = format!("{opcode:#x} {format} {user_index:#x} {index} {polled:?}");
                let fits = (user_index, index) == (USER, 0);
                match polled {
                    Some(Ok(frame)) => {
                        assert!(
                            fits && opcode == cqe_opcode::RESPONDER_SEND && format != 3,
                            "{what}"
                        );
                        assert_eq!((frame.cookie, frame.byte_len()), (5, u32::MAX));
                        frames.post(BODY, 5).unwrap();
                        // Receives complete in order; the next one has the next index.
                        frames = receiver(USER);
                        frames.post(BODY, 5).unwrap();
                    }
                    Some(Err(CompletionError::Failed(failure))) => {
                        assert!(fits && opcode == cqe_opcode::RESPONDER_ERROR, "{what}");
                        assert_eq!(failure.cookie, 5);
                        frames = receiver(USER);
                        frames.post(BODY, 5).unwrap();
                    }
                    Some(Err(CompletionError::InvalidCqe(why))) => {
                        assert_eq!(frames.free(), frames.capacity() - 1, "{what}");
                        match why {
                            InvalidCqe::Index(it) => assert_eq!(it.0, index, "{what}"),
                            InvalidCqe::Format(it) => assert_eq!((it, format), (3, 3), "{what}"),
                            InvalidCqe::Opcode(it) => assert_eq!(it, opcode, "{what}"),
                            other => panic!("{what}: {other}"),
                        }
                    }
                    Some(Err(CompletionError::OtherRawRq(it))) => {
                        assert_eq!(frames.free(), frames.capacity() - 1, "{what}");
                        let requests = [cqe_opcode::REQUESTER, cqe_opcode::REQUESTER_ERROR];
                        assert!(user_index != USER || requests.contains(&opcode), "{what}");
                        assert_eq!(it.cqe().user_index(), user_index, "{what}");
                    }
                    other => panic!("{what}: {other:?}"),
                }
                assert_eq!(bytes(&device.record)[..4], [0, 0, 0, 1], "{what}: consumed");
            }
        }
    }
}

#[test]
fn receivers_and_sq_share_cq() {
    let mut device = Completer::new(0);
    let mut sender = sender(Settings { qpn: 0x99, ..Settings::default() });
    let mut receivers = [receiver(1), receiver(2)];
    for frames in &mut receivers {
        frames.post(BODY, frames.user_index().into()).unwrap();
    }
    sender.queue.post(&EthSend::new(&HEADER[..18], BODY).signaled(), 3).unwrap();
    // The flow tag of a frame is the number of the send queue.
    device.push(frame_cqe(2, 0x99, 0));
    let mut sent = device.cqe(cqe_opcode::REQUESTER, opcode::SEND, 0);
    sent.set_qpn(0x99);
    device.push(sent);
    device.push(frame_cqe(1, 0x99, 0));
    let mut cookies = vec![];
    while let Some(cqe) = device.queue.poll_eth() {
        let user = cqe.cqe().user_index();
        cookies.push(if cqe.cqe().is_receive() {
            // Another frame queue returns the CQE unchanged.
            let described = cqe.frame(0);
            let error = receivers[2 - user as usize].complete(cqe).unwrap_err();
            let CompletionError::OtherRawRq(cqe) = error else { panic!("{error}") };
            assert_eq!(cqe.frame(0), described);
            let frame = receivers[user as usize - 1].complete(cqe).unwrap();
            assert_eq!(frame.flow_tag(), 0x99);
            frame.cookie
        } else {
            assert_eq!(cqe.frame(0), None, "the CQE belongs to no frame");
            sender.queue.complete(cqe.into_cqe()).unwrap().cookie
        });
    }
    assert_eq!(cookies, [2, 3, 1]);
    assert_eq!(bytes(&device.record)[..4], [0, 0, 0, 3]);
}

#[test]
fn dispatcher_finds_receiver_by_user_index() {
    let mut device = Completer::new(0);
    let mut table = Dispatcher::new();
    for user in [5, 6] {
        let mut frames = receiver(user);
        frames.post(BODY, user.into()).unwrap();
        table.insert(user, frames).unwrap();
    }
    device.push(frame_cqe(6, 0x123, 0));
    let (user, completion) = table.poll_by_user_index(&mut device.queue).unwrap();
    let completion = completion.unwrap();
    assert_eq!((user, completion.cookie, completion.operation()), (6, 6, WcOpcode::Receive));
}

/// The CQEs that `clean` leaves in a completion queue that held receive CQEs of two RQs and CQEs of
/// an SQ.
fn left(clean: impl FnOnce(&verbless_ring::CqCleaner)) -> Vec<(bool, u32)> {
    let mut device = Completer::new(0);
    let cleaner = device.queue.cleaner();
    for user in [1, 2, 1] {
        device.push(frame_cqe(user, 0x99, 0));
        let mut sent = device.cqe(cqe_opcode::REQUESTER, opcode::SEND, 0);
        sent.set_qpn(if user == 2 { 0x99 } else { 0x98 }).set_srqn_uidx(user);
        device.push(sent);
    }
    clean(&cleaner);
    let mut left = vec![];
    while let Some(cqe) = device.queue.poll_eth() {
        left.push((cqe.cqe().is_receive(), cqe.cqe().user_index()));
    }
    assert_eq!(device.queue.consumer_index(), 6);
    assert_eq!(bytes(&device.record)[..4], [0, 0, 0, 6], "cleaned CQEs count as consumed");
    left
}

#[test]
fn clean_removes_cqes_of_one_queue_only() {
    let all = [(true, 1), (false, 1), (true, 2), (false, 2), (true, 1), (false, 1)];
    assert_eq!(left(|_| ()), all);
    assert_eq!(
        left(|cleaner| _ = cleaner.clean_raw_rq(1)),
        [(false, 1), (true, 2), (false, 2), (false, 1)]
    );
    assert_eq!(
        left(|cleaner| _ = cleaner.clean_raw_rq(2)),
        [all[0], all[1], all[3], all[4], all[5]]
    );
    assert_eq!(left(|cleaner| _ = cleaner.clean_raw_rq(3)), all);
    assert_eq!(
        left(|cleaner| _ = cleaner.clean_sends(Qpn(0x99))),
        [all[0], all[1], all[2], all[4], all[5]]
    );
    let none = left(|cleaner| {
        cleaner.clean_raw_rq(1);
        cleaner.clean_raw_rq(2);
        cleaner.clean_raw_rq(1);
        cleaner.clean_sends(Qpn(0x98));
        cleaner.clean_sends(Qpn(0x99));
    });
    assert_eq!(none, []);
}

#[test]
fn cleaned_cqes_are_skipped_by_every_poll() {
    for way in 0..4 {
        let mut device = Completer::new(0);
        let mut frames = receiver(USER);
        frames.post(BODY, 1).unwrap();
        device.push(frame_cqe(9, 0, 0));
        device.queue.cleaner().clean_raw_rq(9);
        device.push(frame_cqe(USER, 0, 0));
        let cookie = match way {
            0 => frames.poll(&mut device.queue).unwrap().unwrap().cookie,
            1 => {
                let mut into = [const { None }; 2];
                assert_eq!(frames.poll_into(&mut device.queue, &mut into), 1);
                into[0].take().unwrap().unwrap().cookie
            }
            2 => frames.complete(device.queue.poll_eth().unwrap()).unwrap().cookie,
            _ => {
                use verbless_ring::WorkQueue;
                WorkQueue::complete(&mut frames, device.queue.poll().unwrap()).unwrap().cookie
            }
        };
        assert_eq!(cookie, 1, "way {way}");
        assert_eq!(bytes(&device.record)[..4], [0, 0, 0, 2], "way {way}");
    }
}

#[test]
fn reserved_user_index_is_rejected() {
    let queue = |memory: &SharedMemory| {
        let (ring, record) = (ring_of(memory), record_of(&crate::support::memory(8)));
        ReceiveQueue::new(ReceiveQueueParts { qpn: Qpn(1), ring, stride: 16, record }).unwrap()
    };
    for user_index in [0xff_ffff, 0x100_0000, u32::MAX] {
        let refused = RawRq::new(queue(&memory(128)), user_index);
        assert!(refused.unwrap_err().to_string().contains("user index"));
    }
    assert!(RawRq::new(queue(&memory(128)), 0xff_fffe).is_ok());
}

#[test]
fn reset_forgets_posted_receives() {
    let mut frames = receiver(USER);
    frames.post(BODY, 1).unwrap();
    frames.reset();
    assert_eq!(frames.free(), frames.capacity());
    let mut device = Completer::new(0);
    device.push(frame_cqe(USER, 0, 0));
    assert!(matches!(
        frames.poll(&mut device.queue),
        Some(Err(CompletionError::InvalidCqe(InvalidCqe::Index(_))))
    ));
}

#[test]
fn publish_rewrites_receive_count_until_reset() {
    let record = memory(8);
    let queue = ReceiveQueue::new(ReceiveQueueParts {
        qpn: Qpn(RQN),
        ring: ring_of(&memory(8 * 16)),
        stride: 16,
        record: record_of(&record),
    });
    let mut frames = RawRq::new(queue.unwrap(), USER).unwrap();
    assert_eq!(frames.rqn(), Rqn(RQN));
    for _ in 0..3 {
        frames.post(BODY, 0).unwrap();
    }
    record.fill(0);
    frames.publish();
    assert_eq!(bytes(&record), [0, 0, 0, 3, 0, 0, 0, 0]);
    frames.reset();
    frames.publish();
    assert_eq!(bytes(&record), [0; 8]);
}
