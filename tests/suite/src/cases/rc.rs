//! The reliable connected service: every operation succeeds.

use verbless_queue::wr::{CompareSwap, Fence, FetchAdd, Inline, PostError, Read, Send, Write};
use verbless_queue::{QpConfig, Sge, WcOpcode};

use crate::case::cases;
use crate::need::{ATOMICS, NO_ATOMICS};
use crate::{Lab, Pair, Stop, ensure, ensure_eq};

cases!(
    "rc",
    "The reliable connected service: cases beyond the matrix, such as atomics and ordering.":
    compare_swap_swaps_only_on_match [ATOMICS],
    fetch_add_returns_old_value [ATOMICS],
    bidirectional_atomics_lose_no_update [ATOMICS],
    device_without_atomics_rejects_atomic_post [NO_ATOMICS],
    write_is_visible_before_later_send,
    fenced_wqe_sees_data_of_prior_read,
    receive_larger_than_message_keeps_its_rest,
    invalid_wqe_is_rejected_at_post,
    both_sides_send_concurrently,
);

/// The number at an offset of one side's region.
fn number(end: &crate::Endpoint, offset: usize) -> Result<u64, Stop> {
    let mut bytes = [0; 8];
    end.region.read_at(offset, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

fn compare_swap_swaps_only_on_match(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let (old, at) = (pair.a.sge(0, 8)?, pair.b.remote(64)?);
    for (there, compare, swap, expected) in [
        (7, 7, 9, 9),
        (7, 8, 9, 7),
        (u64::MAX, u64::MAX, 0, 0),
        (0x0102_0304_0506_0708, 0x0807_0605_0403_0201, 1, 0x0102_0304_0506_0708),
    ] {
        pair.b.fill(64, &u64::to_ne_bytes(there))?;
        let done = pair.a.perform(&CompareSwap::new(old, at, compare, swap).signaled())?;
        ensure_eq!((done.operation(), done.byte_len()), (WcOpcode::CompareSwap, 8), "completion");
        ensure_eq!(number(&pair.a, 0)?, there, "old value");
        ensure_eq!(number(&pair.b, 64)?, expected, format!("{there}, compared with {compare}"));
    }
    Ok(())
}

fn fetch_add_returns_old_value(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let (old, at) = (pair.a.sge(8, 8)?, pair.b.remote(0)?);
    for (there, add) in [(0, 1), (41, 1), (5, 0), (u64::MAX, 2), (1 << 40, 1 << 63)] {
        pair.b.fill(0, &u64::to_ne_bytes(there))?;
        let done = pair.a.perform(&FetchAdd::new(old, at, add).signaled())?;
        ensure_eq!((done.operation(), done.byte_len()), (WcOpcode::FetchAdd, 8), "completion");
        ensure_eq!(number(&pair.a, 8)?, there, "old value");
        ensure_eq!(number(&pair.b, 0)?, there.wrapping_add(add), "new value");
    }
    Ok(())
}

fn bidirectional_atomics_lose_no_update(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    // Each side adds to the other's number and to its own: a queue pair connected to itself could
    // do no more.
    for round in 0..50u64 {
        let (old, at) = (pair.a.sge(8, 8)?, pair.b.remote(0)?);
        pair.a.qp.post(&FetchAdd::new(old, at, round).signaled(), round)?;
        let (old, at) = (pair.b.sge(8, 8)?, pair.a.remote(0)?);
        pair.b.qp.post(&FetchAdd::new(old, at, 2 * round).signaled(), round)?;
        for end in [&mut pair.a, &mut pair.b] {
            ensure_eq!(end.sent()??.cookie, round, "cookie");
        }
    }
    let sum = 49 * 50 / 2;
    ensure_eq!((number(&pair.b, 0)?, number(&pair.a, 0)?), (sum, 2 * sum), "sums");
    Ok(())
}

fn write_is_visible_before_later_send(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let to = pair.b.remote(8192)?;
    for round in 1..=200u8 {
        pair.b.receive(0, 64, 0)?;
        pair.a.fill(0, &[round; 8192])?;
        let from = pair.a.sge(0, 8192)?;
        pair.a.qp.post(&Write::new(from, to), 0)?;
        pair.a.qp.post(&Send::new(Inline(b"there")).signaled(), 0)?;
        pair.b.received()??;
        ensure!(
            pair.b.bytes(8192, 8192)? == [round; 8192],
            "round {round}: the SEND arrived before all bytes of the WRITE"
        );
        pair.a.sent()??;
    }
    Ok(())
}

fn fenced_wqe_sees_data_of_prior_read(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    for (round, fence) in (1u8..).zip([Fence::Reads, Fence::Full, Fence::Strong, Fence::Reads]) {
        pair.b.fill(0, &[round; 4096])?;
        let there = pair.a.sge(0, 4096)?;
        let (source, target) = (pair.b.remote(0)?, pair.b.remote(8192)?);
        pair.a.qp.post(&Read::new(there, source), 0)?;
        pair.a.qp.post(&Write::new(there, target).fence_with(fence).signaled(), 0)?;
        pair.a.sent()??;
        pair.b.placed(8192, &[round; 4096], format!("{fence:?} did not hold it back"))?;
    }
    Ok(())
}

fn receive_larger_than_message_keeps_its_rest(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    pair.b.fill(0, &[0xee; 256])?;
    pair.b.receive(10, 200, 0)?;
    pair.a.perform(&Send::new(Inline(&[1; 50])).signaled())?;
    ensure_eq!(pair.b.received()??.byte_len(), 50, "bytes received");
    let mut expected = [0xee; 256];
    expected[10..60].fill(1);
    ensure_eq!(pair.b.bytes(0, 256)?, expected, "the memory");
    Ok(())
}

fn invalid_wqe_is_rejected_at_post(lab: &Lab) -> Result<(), Stop> {
    let config = QpConfig { send_sges: 2, receive_sges: 2, inline: 32, ..QpConfig::new(4, 4) };
    let mut pair = Pair::with(lab, &config, 4096)?;
    let (sge, at) = (pair.a.sge(0, 8)?, pair.b.remote(0)?);
    let long = Sge { length: 0x8000_0000, ..sge };
    let short = Sge { length: 4, ..sge };
    let free = pair.a.qp.send.free();
    let qp = &mut pair.a.qp;
    let refused = [
        (qp.post(&Write::new([sge; 3], at), 0), PostError::TooManySges),
        (qp.post(&Write::new(Inline(&[0; 33]), at), 0), PostError::InlineTooLong),
        (qp.post(&Write::new(long, at), 0), PostError::SgeTooLong),
        (qp.post(&FetchAdd::new(short, at, 1), 0), PostError::AtomicLength),
        (qp.post_receive([sge; 3], 0), PostError::TooManySges),
        (qp.post_receive(long, 0), PostError::SgeTooLong),
    ];
    for (got, why) in refused {
        ensure_eq!(got, Err(why), "what cannot be posted");
    }
    ensure_eq!(pair.a.qp.send.free(), free, "free WQEBBs");
    pair.a.perform(&Write::new(sge, at).signaled())?;
    Ok(())
}

fn both_sides_send_concurrently(lab: &Lab) -> Result<(), Stop> {
    const MESSAGES: u64 = 1000;
    let mut pair = Pair::new(lab)?;
    let mut done = [0; 4];
    let mut posted = [0; 2];
    for end in [&mut pair.a, &mut pair.b] {
        (0..32).try_for_each(|cookie| end.receive(64 * cookie as usize, 64, cookie))?;
    }
    crate::until("all messages of both sides", || {
        for (side, end) in [&mut pair.a, &mut pair.b].into_iter().enumerate() {
            while posted[side] < MESSAGES && posted[side] - done[side] < 16 {
                let message = posted[side].to_ne_bytes();
                if end.qp.post(&Send::new(Inline(&message)).signaled(), posted[side]).is_err() {
                    break;
                }
                posted[side] += 1;
            }
            if let Some(Ok(_)) = end.qp.poll(&mut end.send_cq) {
                done[side] += 1;
            }
            if let Some(Ok(message)) = end.qp.poll(&mut end.receive_cq) {
                let at = 64 * message.cookie as usize;
                if number(end, at).ok() == Some(done[2 + side]) {
                    done[2 + side] += 1;
                }
                let _ = end.receive(at, 64, message.cookie);
            }
        }
        (done == [MESSAGES; 4]).then_some(())
    })
}

fn device_without_atomics_rejects_atomic_post(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let context = pair.b.qp.object().query()?;
    ensure!(!context.rae() && context.rre() && context.rwe(), "rights");
    let (old, at) = (pair.a.sge(0, 8)?, pair.b.remote(0)?);
    let posted = pair.a.qp.post(&FetchAdd::new(old, at, 1).signaled(), 0);
    ensure_eq!(posted.unwrap_err(), PostError::Unsupported, "an atomic");
    ensure_eq!(pair.b.bytes(0, 8)?, [0; 8], "the peer's memory");
    Ok(())
}
