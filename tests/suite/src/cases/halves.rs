//! Queue pairs split into a sending and a receiving half.

use verbless_prm as prm;
use verbless_prm::CommandStatus;
use verbless_queue::wr::{Inline, Nop, Send, Write};
use verbless_queue::{
    Cq, CqConfig, Domain, Qp, QpConfig, ReceiveHalf, SendHalf, WcStatus, WorkQueue,
};

use crate::case::cases;
use crate::{Endpoint, Lab, Need, Pair, Stop, ensure, ensure_eq, failed, until};

cases!(
    "halves",
    "Queue pairs split into two halves, for two threads.":
    two_threads_drive_one_split_qp,
    half_outlives_other_and_last_cleans_up,
    ring_memory_stays_while_wqes_are_in_flight,
    unreset_qp_keeps_memory_of_both_halves [Need::Model],
    error_state_of_one_half_flushes_other,
    halves_of_two_qps_do_not_join,
    equal_qpns_of_two_devices_do_not_join [Need::Model],
    qp_with_one_cq_rejects_split,
);

/// Waits for a completion of a half.
fn completed(
    half: &mut impl WorkQueue,
    cq: &mut Cq,
) -> Result<Result<verbless_queue::Completion, verbless_queue::CompletionError>, Stop> {
    let cqe = until("a completion", || cq.poll())?;
    Ok(half.complete(cqe))
}

/// The address of a queue pair's rings.
fn rings_of(qp: &Qp) -> (u32, u64) {
    let rings = &qp.object().attr().rings;
    (rings.umem().id(), rings.offset())
}

/// Fails if a new queue pair gets the memory at `taken`.
fn ensure_memory_not_reused(domain: &Domain, cq: &Cq, taken: (u32, u64)) -> Result<(), Stop> {
    for _ in 0..4 {
        let other = domain.queue_pair(&QpConfig::new(64, 64), cq, cq)?;
        ensure!(rings_of(&other) != taken, "another queue pair got the memory of the rings");
    }
    Ok(())
}

/// The payload of message `number`, by direction.
fn message(number: u64, back: bool) -> [u8; 8] {
    (if back { !number } else { number }).to_le_bytes()
}

fn two_threads_drive_one_split_qp(lab: &Lab) -> Result<(), Stop> {
    const MESSAGES: u64 = 1000;
    const SLOTS: u64 = 32;
    let at = |number: u64| (number % SLOTS * 64) as usize;
    let Pair { a, mut b } = Pair::new(lab)?;
    let Endpoint { mut send_cq, mut receive_cq, qp, domain, region, .. } = a;
    let (mut sender, mut receiver) = qp.split()?;
    for number in 0..SLOTS {
        b.receive(at(number), 8, number)?;
        receiver.post(region.sge(32768 + at(number), 8)?, number)?;
    }
    let region = &region;
    let (sender, receiver) = std::thread::scope(|scope| {
        let sending = scope.spawn(move || -> Result<SendHalf, Stop> {
            for number in 0..MESSAGES + 16 {
                if number >= 16 {
                    let done = completed(&mut sender, &mut send_cq)??;
                    ensure_eq!(done.cookie, number - 16, "cookie of a send");
                }
                if number < MESSAGES {
                    region.write_at(at(number), &message(number, false))?;
                    let from = region.sge(at(number), 8)?;
                    sender.post(&Send::new(from).signaled(), number)?;
                }
            }
            Ok(sender)
        });
        let receiving = scope.spawn(move || -> Result<ReceiveHalf, Stop> {
            for number in 0..MESSAGES {
                let done = completed(&mut receiver, &mut receive_cq)??;
                ensure_eq!(done.cookie, number, "cookie of a receive");
                let (mut found, offset) = ([0; 8], 32768 + at(number));
                region.read_at(offset, &mut found)?;
                ensure_eq!(found, message(number, true), "the returned bytes");
                receiver.post(region.sge(offset, 8)?, number + SLOTS)?;
            }
            Ok(receiver)
        });
        // The peer has one thread for both.
        for number in 0..MESSAGES {
            ensure_eq!(b.received()??.cookie, number, "cookie of the peer's receive");
            ensure!(b.bytes(at(number), 8)? == message(number, false), "message {number}");
            b.receive(at(number), 8, number + SLOTS)?;
            b.perform(&Send::new(Inline(&message(number, true))).signaled())?;
        }
        let panicked = |_| Stop::fail("a thread panicked");
        let sender = sending.join().map_err(panicked)??;
        Ok::<_, Stop>((sender, receiving.join().map_err(panicked)??))
    })?;
    // Joined again, it supports the operations that need both halves.
    let mut qp = Qp::join(sender, receiver)?;
    qp.reset()?;
    ensure_eq!(qp.receive.free(), qp.receive.capacity(), "room for receives");
    ensure_eq!(domain.device().leaked(), 0, "leaks");
    Ok(())
}

fn half_outlives_other_and_last_cleans_up(lab: &Lab) -> Result<(), Stop> {
    for sender_first in [true, false] {
        let Pair { a, mut b } = Pair::new(lab)?;
        let Endpoint { mut send_cq, mut receive_cq, mut qp, domain, region, .. } = a;
        let to = b.remote(0)?;
        for cookie in 0..3 {
            qp.post_receive(region.sge(0, 8)?, cookie)?;
        }
        let (mut sender, mut receiver) = qp.split()?;
        // Each half has an unpolled completion.
        sender.post(&Nop::new().signaled(), 0)?;
        until("a completion of a send", || (!send_cq.is_empty()).then_some(()))?;
        b.perform(&Send::new(Inline(b"first")).signaled())?;
        if sender_first {
            drop(sender);
            let done = completed(&mut receiver, &mut receive_cq)??;
            ensure_eq!((done.cookie, done.byte_len()), (0, 5), "receive");
            b.perform(&Send::new(Inline(b"second")).signaled())?;
            let done = completed(&mut receiver, &mut receive_cq)??;
            ensure_eq!((done.cookie, done.byte_len()), (1, 6), "receive");
            b.perform(&Send::new(Inline(b"third")).signaled())?;
            ensure!(!receive_cq.is_empty(), "no completion of the third");
            drop(receiver);
        } else {
            drop(receiver);
            ensure_eq!(completed(&mut sender, &mut send_cq)??.cookie, 0, "cookie");
            sender.post(&Write::new(Inline(b"here"), to).signaled(), 1)?;
            ensure_eq!(completed(&mut sender, &mut send_cq)??.cookie, 1, "cookie");
            b.placed(0, b"here", "the WRITE did not arrive")?;
            sender.post(&Nop::new().signaled(), 2)?;
            until("a completion of a send", || (!send_cq.is_empty()).then_some(()))?;
            drop(sender);
        }
        ensure_eq!(send_cq.poll(), None, "a completion of a discarded send");
        ensure_eq!(receive_cq.poll(), None, "a completion of a discarded receive");
        send_cq.destroy()?;
        receive_cq.destroy()?;
        ensure_eq!(domain.device().leaked(), 0, "leaks");
    }
    Ok(())
}

fn ring_memory_stays_while_wqes_are_in_flight(lab: &Lab) -> Result<(), Stop> {
    let Pair { a, mut b } = Pair::new(lab)?;
    let Endpoint { mut send_cq, receive_cq, qp, domain, region, .. } = a;
    let taken = rings_of(&qp);
    let others = domain.completion_queue(&CqConfig::new(192))?;
    let (mut sender, receiver) = qp.split()?;
    // The peer has no receive: the message waits, and its bytes are in the ring.
    sender.post(&Send::new(Inline(b"from the ring")).signaled(), 1)?;
    drop(sender);
    ensure_memory_not_reused(&domain, &others, taken)?;
    b.receive(0, 64, 2)?;
    ensure_eq!(b.received()??.byte_len(), 13, "bytes received");
    ensure!(b.bytes(0, 13)? == b"from the ring", "the received bytes");
    drop(receiver);
    ensure_eq!(send_cq.poll(), None, "a completion of a discarded send");
    // The memory is free again.
    let other = domain.queue_pair(&QpConfig::new(64, 64), &send_cq, &receive_cq)?;
    ensure_eq!(rings_of(&other), taken, "rings of the next QP");
    drop(region);
    Ok(())
}

fn unreset_qp_keeps_memory_of_both_halves(lab: &Lab) -> Result<(), Stop> {
    let Pair { a, b } = Pair::new(lab)?;
    let taken = rings_of(&a.qp);
    let others = a.domain.completion_queue(&CqConfig::new(192))?;
    let (sender, receiver) = a.qp.split()?;
    lab.model()?.fail_command(
        0,
        verbless_prm::Opcode(prm::QP_2RST.opcode),
        1,
        CommandStatus::NO_RES,
        1,
    );
    lab.excuse(0);
    drop(receiver);
    ensure_eq!(a.device.leaked(), 0, "leaks while one half exists");
    drop(sender);
    ensure_eq!(a.device.leaked(), 1, "leaks");
    ensure_memory_not_reused(&a.domain, &others, taken)?;
    drop(b);
    Ok(())
}

fn error_state_of_one_half_flushes_other(lab: &Lab) -> Result<(), Stop> {
    let Pair { a, b } = Pair::new(lab)?;
    let Endpoint { mut send_cq, mut receive_cq, mut qp, region, .. } = a;
    qp.post_receive(region.sge(0, 8)?, 7)?;
    let (mut sender, mut receiver) = qp.split()?;
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| completed(&mut receiver, &mut receive_cq));
        sender.to_error()?;
        let flushed = waiting.join().map_err(|_| Stop::fail("the receiver panicked"))??;
        ensure_eq!(failed(flushed, WcStatus::Flushed)?, 7, "cookie of the receive");
        Ok::<_, Stop>(())
    })?;
    sender.post(&Nop::new().signaled(), 8)?;
    let flushed = completed(&mut sender, &mut send_cq)?;
    ensure_eq!(failed(flushed, WcStatus::Flushed)?, 8, "cookie of the send");
    drop(b);
    Ok(())
}

fn halves_of_two_qps_do_not_join(lab: &Lab) -> Result<(), Stop> {
    let Pair { a, b } = Pair::new(lab)?;
    let numbers = [a.qp.qpn(), b.qp.qpn()].map(|qpn| format!("QP {qpn}"));
    let ((sender, receiver), (other_sender, other_receiver)) = (a.qp.split()?, b.qp.split()?);
    let Err(error) = Qp::join(sender, other_receiver) else {
        return Err(Stop::fail("halves of two queue pairs were joined"));
    };
    let text = error.to_string();
    for number in &numbers {
        ensure!(text.contains(number), "{text:?} does not say {number}");
    }
    let (sender, other_receiver) = error.into_halves();
    let mut send_cq = a.send_cq;
    let mut qp = Qp::join(sender, receiver)?;
    Qp::join(other_sender, other_receiver)?;
    qp.post(&Nop::new().signaled(), 3)?;
    ensure_eq!(until("a completion", || qp.poll(&mut send_cq))??.cookie, 3, "cookie");
    Ok(())
}

fn equal_qpns_of_two_devices_do_not_join(lab: &Lab) -> Result<(), Stop> {
    let mut sides = [lab.device()?, lab.other_device()?].map(|device| (device, vec![]));
    let (mut one, mut other) = loop {
        for (device, made) in &mut sides {
            made.push(Endpoint::new(device.clone(), &QpConfig::new(1, 1), 64)?);
        }
        let [(_, these), (_, those)] = &mut sides;
        let found = these.iter().enumerate().find_map(|(at, one)| {
            let same = those.iter().position(|other| other.qp.qpn() == one.qp.qpn())?;
            Some((at, same))
        });
        if let Some((at, same)) = found {
            break (these.swap_remove(at), those.swap_remove(same));
        }
        ensure!(these.len() < 256, "no number is that of queue pairs of both devices");
    };
    let (qpn, devices) = (one.qp.qpn(), [&one.device, &other.device]);
    ensure!(!std::ptr::eq(devices[0], devices[1]), "both QPs are on one device");
    let ((sender, receiver), (other_sender, other_receiver)) = (one.qp.split()?, other.qp.split()?);
    let Err(error) = Qp::join(sender, other_receiver) else {
        return Err(Stop::fail("halves of two devices' queue pairs were joined"));
    };
    let text = error.to_string();
    ensure!(text.contains(&format!("QP {qpn} of another device")), "{text:?}");
    let (sender, other_receiver) = error.into_halves();
    one.qp = Qp::join(sender, receiver)?;
    other.qp = Qp::join(other_sender, other_receiver)?;
    Ok(())
}

fn qp_with_one_cq_rejects_split(lab: &Lab) -> Result<(), Stop> {
    let domain = Domain::new(&lab.device()?)?;
    let cq = domain.completion_queue(&CqConfig::new(8))?;
    let other = domain.completion_queue(&CqConfig::new(8))?;
    let qp = domain.queue_pair(&QpConfig::new(1, 1), &cq, &cq)?;
    let qpn = qp.qpn();
    let Err(error) = qp.split() else {
        return Err(Stop::fail("two halves got one completion queue"));
    };
    let text = error.to_string();
    for part in [format!("QP {qpn}"), format!("CQ {}", cq.cqn())] {
        ensure!(text.contains(&part), "{text:?} does not say {part}");
    }
    let mut qp = error.into_queue_pair();
    qp.post_receive([], 1)?;
    ensure_eq!(qp.qpn(), qpn, "the returned queue pair");
    domain.queue_pair(&QpConfig::new(1, 1), &cq, &other)?.split()?;
    Ok(())
}
