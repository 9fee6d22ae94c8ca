//! Doorbells: taking them from UAR pages, and waking the queues of the page.
//!
//! Any doorbell on a page wakes every SQ that names the page, and an arm doorbell every CQ; what they then do is in
//! their records. So a doorbell that another overwrote before the engine saw it is not lost, and a queue that nobody
//! rang for stays asleep whatever its record says.

use verbless_prm::SqState;

use super::state::Bench;
use super::{completion, events};
use crate::hca::Hca;
use crate::hca::objects::{Objects, QpState};
use crate::memory::{CQ_ARM, EQ_ARM, EQ_CONSUMER, SEND, SEND_BUFFERS, SEND_STRIDE, UAR_PAGE};
use crate::world::{HcaId, World};

/// Takes every doorbell that waits on the pages of one function; true if there was one.
pub(crate) fn scan(world: &mut World, id: HcaId, bench: &mut Bench) -> bool {
    let hca = &mut world.hcas[id];
    bench.pages.clear();
    hca.bar.for_each_allocated(|page| {
        if hca.bar.page_rung(page) {
            bench.pages.push(page);
        }
    });
    let mut worked = false;
    for &page in &bench.pages {
        let mut rung = false;
        for k in 0..SEND_BUFFERS {
            rung |= heard(hca, hca.bar.take64(page, SEND + k * SEND_STRIDE) != 0);
        }
        if rung {
            wake(hca, page);
        }
        let word = hca.bar.take64(page, CQ_ARM);
        if heard(hca, word != 0) {
            arm(hca, page, word);
            rung = true;
        }
        for (offset, arms) in [(EQ_CONSUMER, false), (EQ_ARM, true)] {
            let word = hca.bar.take32(page, offset);
            if word != 0 {
                events::doorbell(hca, page, word, arms);
                rung = true;
            }
        }
        worked |= rung;
    }
    worked
}

/// Takes the doorbells of a dead function, which means nothing any more; left there, they would keep the model's thread awake.
pub(crate) fn ignore(hca: &Hca) {
    hca.bar.for_each_allocated(|page| {
        if hca.bar.page_rung(page) {
            for k in 0..SEND_BUFFERS {
                hca.bar.take64(page, SEND + k * SEND_STRIDE);
            }
            for register in [CQ_ARM, EQ_CONSUMER, EQ_ARM] {
                hca.bar.take64(page, register);
            }
        }
    });
}

/// Whether a doorbell rang and no injected fault swallows it.
fn heard(hca: &mut Hca, rang: bool) -> bool {
    rang && !hca.engine.faults.lose_doorbells.strikes()
}

/// A store to the UAR pages that was trapped, or that a front end makes for queues of its own.
pub(crate) fn mmio_write(world: &mut World, id: HcaId, offset: u64, bytes: &[u8]) {
    let hca = &mut world.hcas[id];
    let Ok(page) = u32::try_from(offset / UAR_PAGE) else { return };
    let register = offset % UAR_PAGE;
    let word32 = bytes.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
    let word64 = bytes.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
    match (register, word32, word64) {
        (EQ_ARM, Some(word), _) => events::doorbell(hca, page, word, true),
        (EQ_CONSUMER, Some(word), _) => events::doorbell(hca, page, word, false),
        (CQ_ARM, _, Some(word)) if heard(hca, true) => arm(hca, page, word),
        (SEND.., _, Some(_)) if register.is_multiple_of(SEND_STRIDE) && heard(hca, true) => {
            wake(hca, page);
        }
        _ => tracing::debug!(page, register, length = bytes.len(), "a store to no doorbell"),
    }
}

/// Wakes every SQ that names the page and has something posted.
pub(super) fn wake(hca: &mut Hca, page: u32) {
    let index = std::mem::take(&mut hca.engine.index);
    for &number in index.senders.of(page).into_iter().flatten() {
        wake_send_queue(hca, number);
    }
    hca.engine.index = index;
}

fn wake_send_queue(hca: &mut Hca, number: u32) {
    let Some(mut sender) = hca.objects.sender(number) else { return };
    if sender.read_producer(&*hca.memory).is_err() {
        return;
    }
    let sq = sender.queue;
    sq.awake = sq.producer != sq.consumer;
    if sq.awake {
        queue(hca, number);
    }
}

/// Gives a QP or SQ a place in the rotation, if it has none.
pub(crate) fn queue(hca: &mut Hca, number: u32) {
    let Some(sender) = hca.objects.sender(number) else { return };
    if !std::mem::replace(&mut sender.queue.runtime.queued, true) {
        hca.engine.active.push_back(number);
    }
}

/// Takes the place in the rotation from a QP or SQ, if it has one.
pub(super) fn unqueue(hca: &mut Hca, number: u32) {
    let Some(sender) = hca.objects.sender(number) else { return };
    if std::mem::take(&mut sender.queue.runtime.queued) {
        hca.engine.active.retain(|&active| active != number);
    }
}

/// An arm doorbell: the CQ that it names, and those whose doorbell it may have overwritten.
fn arm(hca: &mut Hca, page: u32, word: u64) {
    let cqn = word as u32 & 0xff_ffff;
    let index = std::mem::take(&mut hca.engine.index);
    if let Some(cqs) = index.cqs.of(page) {
        if cqs.contains(&cqn) {
            completion::arm(hca, cqn, (word >> 32) as u32);
        }
        for &other in cqs.iter().filter(|&&other| other != cqn) {
            completion::arm_from_record(hca, other);
        }
    }
    hca.engine.index = index;
}

/// A QP or SQ came, went, names another page or may run now: if it was rung before it could run, it wakes.
pub(crate) fn sender_changed(hca: &mut Hca, number: u32) {
    let Objects { qps, sqs, .. } = &hca.objects;
    let (page, ready) = if let Some(qp) = qps.get(&number) {
        let ready = qp.state == QpState::Rts
            && qp.requester.resume_at.is_none()
            && qp.sq.as_ref().is_some_and(|sq| sq.awake);
        (Some(qp.uar_page), ready)
    } else {
        let sq = sqs.get(&number);
        let ready = sq.is_some_and(|sq| sq.state == SqState::RDY && sq.queue.awake);
        (sq.map(|sq| sq.uar_page), ready)
    };
    hca.engine.index.senders.set(number, page);
    if ready {
        queue(hca, number);
    }
}

/// A CQ came, went or names another page.
pub(crate) fn cq_changed(hca: &mut Hca, number: u32) {
    let page = hca.objects.cqs.get(&number).map(|cq| cq.uar_page);
    hca.engine.index.cqs.set(number, page);
    if page.is_none() {
        // What a fault holds back for it is not for the next CQ of this number.
        hca.engine.delayed.retain(|_, delayed| delayed.cqn != number);
    }
}

/// Whether a QP, SQ or CQ names the page.
pub(crate) fn is_named(hca: &Hca, page: u32) -> bool {
    let index = &hca.engine.index;
    index.senders.of(page).is_some() || index.cqs.of(page).is_some()
}
