//! Doorbells: which writes ring, which do not, and the recovery from a missed one.

use verbless_devx::UarKind;
use verbless_model::Fault;
use verbless_queue::cq::Notify;
use verbless_queue::wr::{Inline, Nop, Write};

use crate::case::cases;
use crate::{Endpoint, Lab, Need, Pair, Stop, ensure_eq, quiet, raw, until};

cases!(
    "doorbells",
    "Doorbells: which writes ring, which do not, and the recovery from a lost one.":
    unrung_wqe_waits_for_next_doorbell,
    doorbell_on_another_uar_is_ignored,
    doorbell_with_repeated_value_counts [Need::ModelDevice],
    doorbell_with_arbitrary_value_is_harmless [Need::ModelDevice],
    next_doorbell_recovers_lost_doorbell [Need::Model],
    next_arm_recovers_lost_arm [Need::Model],
);

/// Posts WRITEs of one byte each, counted in the doorbell record but not rung for.
fn hold(end: &mut Endpoint, requests: &[(verbless_queue::RemoteAddr, u8)]) -> Result<(), Stop> {
    let mut batch = end.qp.batch();
    for (cookie, (to, byte)) in (0..).zip(requests) {
        batch.post(&Write::new(Inline(&[*byte]), *to).signaled(), cookie)?;
    }
    batch.hold();
    Ok(())
}

fn unrung_wqe_waits_for_next_doorbell(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let requests = [(pair.b.remote(0)?, 1), (pair.b.remote(1)?, 2)];
    hold(&mut pair.a, &requests)?;
    let Endpoint { qp, send_cq, .. } = &mut pair.a;
    for _ in 0..4 {
        quiet("a request ran without a doorbell", || qp.poll(send_cq))?;
    }
    ensure_eq!(pair.b.bytes(0, 2)?, [0, 0], "the peer's memory");
    // The next doorbell covers them.
    pair.a.qp.post(&Nop::new().signaled(), 2)?;
    for cookie in 0..3 {
        ensure_eq!(pair.a.sent()??.cookie, cookie, "cookie");
    }
    pair.b.placed(0, &[1, 2], "the peer's memory")?;
    Ok(())
}

fn doorbell_on_another_uar_is_ignored(lab: &Lab) -> Result<(), Stop> {
    lab.rings_strays();
    let mut pair = Pair::new(lab)?;
    let other = pair.a.device.uar_alloc(UarKind::NonCached)?;
    let requests = [(pair.b.remote(0)?, 1)];
    hold(&mut pair.a, &requests)?;
    let index_and_queue = u64::from(pair.a.qp.qpn().0) << 8 | 1;
    raw::ring(&other, index_and_queue.to_be());
    let Endpoint { qp, send_cq, .. } = &mut pair.a;
    quiet("a doorbell on another page rang", || qp.poll(send_cq))?;
    pair.a.qp.post(&Nop::new(), 1)?;
    ensure_eq!(pair.a.sent()??.cookie, 0, "cookie");
    Ok(())
}

fn doorbell_with_repeated_value_counts(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let uar = pair.a.qp.object().attr().uar.clone();
    let requests = [(pair.b.remote(0)?, 1)];
    // The model's doorbells name only the queue; hardware's doorbells carry the producer index.
    let queue = u64::from(pair.a.qp.qpn().0) << 8;
    for _ in 0..20 {
        hold(&mut pair.a, &requests)?;
        raw::ring(&uar, queue.to_be());
        ensure_eq!(pair.a.sent()??.cookie, 0, "cookie");
    }
    Ok(())
}

fn doorbell_with_arbitrary_value_is_harmless(lab: &Lab) -> Result<(), Stop> {
    lab.rings_strays();
    let mut pair = Pair::new(lab)?;
    let uar = pair.a.qp.object().attr().uar.clone();
    let mut word = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..1000 {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        raw::ring(&uar, word);
    }
    let to = pair.b.remote(0)?;
    pair.a.perform(&Write::new(Inline(b"fine"), to).signaled())?;
    let Endpoint { qp, send_cq, .. } = &mut pair.a;
    quiet("a doorbell without a posted WQE made a completion", || qp.poll(send_cq))
}

fn next_doorbell_recovers_lost_doorbell(lab: &Lab) -> Result<(), Stop> {
    let model = lab.model()?;
    let mut pair = Pair::new(lab)?;
    model.inject(0, Fault::LoseDoorbell, 0, 1);
    pair.a.qp.post(&Nop::new().signaled(), 0)?;
    let Endpoint { qp, send_cq, .. } = &mut pair.a;
    quiet("a lost doorbell rang", || qp.poll(send_cq))?;
    pair.a.qp.post(&Nop::new().signaled(), 1)?;
    for cookie in 0..2 {
        ensure_eq!(pair.a.sent()??.cookie, cookie, "cookie");
    }
    Ok(())
}

fn next_arm_recovers_lost_arm(lab: &Lab) -> Result<(), Stop> {
    let model = lab.model()?;
    let mut pair = Pair::new(lab)?;
    let channel = pair.a.device.event_channel(true)?;
    pair.a.send_cq.subscribe(&channel, 5)?;
    model.inject(0, Fault::LoseDoorbell, 0, 1);
    pair.a.send_cq.arm(Notify::Next);
    // Let it be lost before the next doorbell comes.
    quiet("an event without a completion", || channel.read().transpose())?;
    pair.a.perform(&Nop::new().signaled())?;
    quiet("an event of a lost arm", || channel.read().transpose())?;
    pair.a.send_cq.arm(Notify::Next);
    pair.a.perform(&Nop::new().signaled())?;
    until("an event", || channel.read().transpose())??;
    Ok(())
}
