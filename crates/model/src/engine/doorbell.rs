//! Doorbells: taking them from UAR pages, and waking the queues of the page.
//!
//! Any doorbell on a page wakes every SQ that names the page, and an arm doorbell every CQ; what
//! they then do is in their records. So a doorbell that another overwrote before the engine saw it
//! is not lost, and a queue that nobody rang for stays asleep whatever its record says. A queue in
//! RESET hears none: drivers clear its record behind 2RST (rdma-core `providers/mlx5/verbs.c`,
//! `mlx5_modify_qp`), and a doorbell from before may come meanwhile.

use std::collections::VecDeque;

use verbless_prm::SqState;
use verbless_prm::hot::CqArmDoorbell;

use super::function::Function;
use super::scratch::Scratch;
use super::sender::Sender;
use crate::hca::Hca;
use crate::hca::index::PageDoorbell;
use crate::hca::objects::{Objects, QpState, SendQueue};
use crate::memory::{CQ_ARM, EQ_ARM, EQ_CONSUMER, SEND, SEND_BUFFERS, SEND_STRIDE, UAR_PAGE};
use crate::world::World;

/// Takes every doorbell that waits on the pages of one function; true if there was one.
pub(crate) fn scan(function: &mut Function, now: u64, scratch: &mut Scratch) -> bool {
    scratch.pages.clear();
    let bar = &function.hca.bar;
    bar.for_each_allocated(|page| {
        if bar.page_rung(page) {
            scratch.pages.push(page);
        }
    });
    if scratch.pages.is_empty() {
        return false;
    }
    let bar = bar.clone();
    let mut worked = false;
    for &page in &scratch.pages {
        let mut rung = false;
        for k in 0..SEND_BUFFERS {
            rung |= heard(function, bar.take64(page, SEND + k * SEND_STRIDE) != 0);
        }
        if rung {
            wake(function, page);
        }
        let word = bar.take64(page, CQ_ARM);
        if heard(function, word != 0) {
            arm(function, page, word, now);
            rung = true;
        }
        for (offset, arms) in [(EQ_CONSUMER, false), (EQ_ARM, true)] {
            // All of it: what a client stores into the second half would be found for ever.
            let register = bar.take64(page, offset);
            rung |= register != 0;
            let word = (register >> 32) as u32;
            if word != 0 {
                function.events().doorbell(page, word, arms);
            }
        }
        worked |= rung;
    }
    worked
}

/// Takes the doorbells of a dead function, which means nothing any more; left there, they would
/// keep the engine's thread awake.
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
fn heard(function: &mut Function, rang: bool) -> bool {
    rang && !function.engine.faults.lose_doorbells.strikes()
}

/// A store to the UAR pages that was trapped, or that a front end makes for queues of its own.
pub(crate) fn mmio_write(world: &mut World, id: usize, offset: u64, bytes: &[u8]) {
    store(&mut world.functions[id], world.clock.now, offset, bytes);
}

/// Executes a store to a doorbell of a function that is at hand.
pub(super) fn store(function: &mut Function, now: u64, offset: u64, bytes: &[u8]) {
    let Ok(page) = u32::try_from(offset / UAR_PAGE) else {
        tracing::debug!(offset, "a store behind the last UAR page");
        return;
    };
    let register = offset % UAR_PAGE;
    let word32 = bytes.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
    let word64 = bytes.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
    match (register, word32, word64) {
        (EQ_ARM, Some(word), _) => function.events().doorbell(page, word, true),
        (EQ_CONSUMER, Some(word), _) => function.events().doorbell(page, word, false),
        (CQ_ARM, _, Some(word)) if heard(function, true) => arm(function, page, word, now),
        (SEND.., _, Some(_)) if register.is_multiple_of(SEND_STRIDE) && heard(function, true) => {
            wake(function, page);
        }
        _ => tracing::debug!(page, register, length = bytes.len(), "a store to no doorbell"),
    }
}

/// Wakes every SQ that names the page and has something posted.
pub(super) fn wake(function: &mut Function, page: u32) {
    let index = std::mem::take(&mut function.hca.objects.by_page);
    for &number in index.by(PageDoorbell::Send).of(page).into_iter().flatten() {
        wake_send_queue(function, number);
    }
    function.hca.objects.by_page = index;
}

/// A doorbell of the DPA's, which names the send queue and how far it was posted to: its record is
/// not read.
#[cfg(feature = "dpa")]
pub(super) fn ring_one(function: &mut Function, number: u32, index: u16) {
    if heard(function, true) {
        wake_to(function, number, Some(index));
    }
}

fn wake_send_queue(function: &mut Function, number: u32) {
    wake_to(function, number, None);
}

/// Wakes a send queue that was posted up to `index`, or to what its record says.
fn wake_to(function: &mut Function, number: u32, index: Option<u16>) {
    let Function { hca, engine, .. } = function;
    let Some(Sender { queue, record, reset, .. }) = hca.objects.sender(number) else {
        // A QP without a send queue names a page, too.
        if !hca.objects.qps.contains_key(&number) {
            tracing::error!(number, "a page names a send queue that is gone");
        }
        return;
    };
    // What rings here was posted before 2RST, and its record may not have been cleared yet.
    if reset {
        return;
    }
    if let Some(index) = index {
        queue.producer = index;
    } else if let Err(fault) = queue.read_producer(&*hca.memory, record) {
        tracing::debug!(number, %fault, "a doorbell record cannot be read: nothing new is posted");
        return;
    }
    queue.awake = queue.producer != queue.consumer;
    if queue.awake {
        rotate(&mut engine.active, number, queue);
    }
}

/// Gives a send queue a place in the rotation, if it has none.
fn rotate(active: &mut VecDeque<u32>, number: u32, queue: &mut SendQueue) {
    if !std::mem::replace(&mut queue.runtime.queued, true) {
        active.push_back(number);
    }
}

/// Gives a QP or SQ a place in the rotation, if it has none.
pub(super) fn queue(function: &mut Function, number: u32) {
    let Function { hca, engine, .. } = function;
    match hca.objects.sender(number) {
        Some(sender) => rotate(&mut engine.active, number, sender.queue),
        None => tracing::error!(number, "a send queue that was to have a turn is gone"),
    }
}

/// Executes an arm doorbell: arms the CQ that it names, and those of the page whose doorbell it may
/// have overwritten.
fn arm(function: &mut Function, page: u32, word: u64, now: u64) {
    let bytes = word.to_be_bytes();
    let Some(doorbell) = CqArmDoorbell::from_prefix(&bytes) else { return };
    let cqn = doorbell.cqn();
    let index = std::mem::take(&mut function.hca.objects.by_page);
    let cqs = index.by(PageDoorbell::Arm).of(page).into_iter().flatten();
    // The one that was rung for comes first: it may take the last place in an event queue.
    let (rung, others): (Vec<u32>, Vec<u32>) = cqs.partition(|&&number| number == cqn);
    for number in rung.into_iter().chain(others) {
        match function.context(now).cq(number) {
            Ok(mut cq) if number == cqn => cq.arm((word >> 32) as u32),
            Ok(mut cq) => cq.arm_from_record(),
            Err(missing) => tracing::error!(%missing, "a page names a CQ that is gone"),
        }
    }
    function.hca.objects.by_page = index;
}

/// Gives a QP or SQ that may run now a turn, if its doorbell rang before it could run.
pub(super) fn sender_ready(function: &mut Function, number: u32) {
    let Objects { qps, sqs, .. } = &function.hca.objects;
    let ready = match (qps.get(&number), sqs.get(&number)) {
        (Some(qp), _) => qp.state == QpState::Rts && qp.sq.as_ref().is_some_and(|sq| sq.awake),
        (None, Some(sq)) => sq.state == SqState::RDY && sq.queue.awake,
        (None, None) => {
            tracing::error!(number, "a send queue that may run now is gone");
            return;
        }
    };
    if ready {
        queue(function, number);
    }
}
