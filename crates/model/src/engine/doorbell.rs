//! Doorbells: takes them from UAR pages, and wakes the queues that they name.
//!
//! A doorbell is a word that names a queue: a send doorbell is the first word of a WQE. It wakes
//! that queue; the queue's record says what is posted. A queue without a doorbell stays asleep,
//! whatever its record says. The model sees a trapped store at once. Of a mapped page it sees only
//! the last word; a sweep of the page (`sweep`) finds the doorbells that this word overwrote.
//!
//! A word that names no queue of the page does nothing; the model logs and counts it.
//!
//! A queue in RESET ignores doorbells: drivers clear its record after 2RST (rdma-core
//! `providers/mlx5/verbs.c`, `mlx5_modify_qp`), and an older doorbell may arrive in between.

use std::collections::VecDeque;

use verbless_prm::SqState;

use super::function::FunctionEngine;
use super::scratch::Scratch;
use super::sender::Sender;
use super::state::MAX_STRAYS;
use crate::hca::Hca;
use crate::hca::doorbell::PageDoorbell;
use crate::hca::objects::{Objects, QpState, SendQueue};
use crate::locked::LockedFunctions;
use crate::memory::{
    BLUEFLAME, BLUEFLAME_STRIDE, CQ_ARM, EQ_ARM, EQ_CONSUMER, Fault, HostMemory, UAR_PAGE,
};

/// Takes every doorbell that waits on the pages of one function; true if there was one.
pub(crate) fn scan(function: &mut FunctionEngine, now: u64, scratch: &mut Scratch) -> bool {
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
        for doorbell in [PageDoorbell::Send, PageDoorbell::Arm] {
            for register in doorbell.registers() {
                let word = bar.take64(page, register);
                if takes_doorbell(function, word != 0) {
                    rung = true;
                    let named = ring(function, page, doorbell, word, now);
                    // It may have overwritten the doorbell of any other queue of the page.
                    if !(named && function.hca.objects.by_page.by(doorbell).has_one(page)) {
                        function.engine.sweeps.add(page, doorbell);
                    }
                }
            }
        }
        for (offset, arms) in [(EQ_CONSUMER, false), (EQ_ARM, true)] {
            // Takes all 64 bits: a word left in the second half would count as a doorbell at every
            // scan.
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

/// Drops the doorbells of a dead function; left there, they would keep the engine's thread awake.
pub(crate) fn discard(hca: &Hca) {
    hca.bar.for_each_allocated(|page| {
        if hca.bar.page_rung(page) {
            let [send, arm] = [PageDoorbell::Send, PageDoorbell::Arm].map(PageDoorbell::registers);
            for register in send.chain(arm).chain([EQ_CONSUMER, EQ_ARM]) {
                hca.bar.take64(page, register);
            }
        }
    });
}

/// Whether a doorbell rang and no injected fault drops it.
fn takes_doorbell(function: &mut FunctionEngine, rang: bool) -> bool {
    rang && !function.engine.faults.lose_doorbells.hits()
}

/// Executes a store to the UAR pages that was trapped, or that a front end makes for its own
/// queues.
pub(crate) fn mmio_write(locked: &mut LockedFunctions, id: usize, offset: u64, bytes: &[u8]) {
    store(&mut locked.functions[id], locked.clock.now, offset, bytes);
}

/// Executes a store to a doorbell of a locked function.
pub(super) fn store(function: &mut FunctionEngine, now: u64, offset: u64, bytes: &[u8]) {
    let Ok(page) = u32::try_from(offset / UAR_PAGE) else {
        tracing::debug!(offset, "a store past the last UAR page");
        return;
    };
    let register = offset % UAR_PAGE;
    let word32 = bytes.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
    let word64 = bytes.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
    match (register, word32, word64) {
        (EQ_ARM, Some(word), _) => function.events().doorbell(page, word, true),
        (EQ_CONSUMER, Some(word), _) => function.events().doorbell(page, word, false),
        (CQ_ARM, _, Some(word)) if takes_doorbell(function, true) => {
            ring(function, page, PageDoorbell::Arm, word, now);
        }
        (BLUEFLAME.., _, Some(word))
            if register.is_multiple_of(BLUEFLAME_STRIDE) && takes_doorbell(function, true) =>
        {
            ring(function, page, PageDoorbell::Send, word, now);
        }
        _ => tracing::debug!(page, register, length = bytes.len(), "a store to no doorbell"),
    }
}

/// Rings the queue of the page that the doorbell's word names; false if there is none.
pub(super) fn ring(
    function: &mut FunctionEngine,
    page: u32,
    doorbell: PageDoorbell,
    word: u64,
    now: u64,
) -> bool {
    let number = doorbell.queue_number(word);
    if !function.hca.objects.by_page.by(doorbell).is_of(number, page) {
        return stray(function, page, doorbell, word);
    }
    match doorbell {
        PageDoorbell::Send if function.hca.objects.sender(number).is_none() => {
            return stray(function, page, doorbell, word);
        }
        PageDoorbell::Send => wake_to(function, number, None),
        PageDoorbell::Arm => match function.context(now).cq(number) {
            Ok(mut cq) => cq.arm((word >> 32) as u32),
            Err(missing) => tracing::error!(%missing, "a doorbell page names a destroyed CQ"),
        },
    }
    true
}

/// Logs a doorbell that names no queue of its page; keeps the first few, since clients may ring
/// without limit.
#[cold]
fn stray(function: &mut FunctionEngine, page: u32, doorbell: PageDoorbell, word: u64) -> bool {
    let (number, strays) = (doorbell.queue_number(word), &mut function.engine.strays);
    if strays.len() < MAX_STRAYS {
        strays.push((page, word));
        tracing::warn!(page, ?doorbell, word, number, "a doorbell names no queue of its page");
    } else {
        tracing::debug!(page, ?doorbell, word, number, "a doorbell names no queue of its page");
    }
    false
}

/// Wakes a send queue whose doorbell may have been overwritten, by the word of its record.
pub(super) fn producer_found(function: &mut FunctionEngine, number: u32, word: Result<u32, Fault>) {
    wake_by(function, number, |queue, _, _| queue.set_producer(word));
}

/// Arms a CQ whose doorbell may have been overwritten, by the arm word of its record.
pub(super) fn arm_request_found(
    function: &mut FunctionEngine,
    number: u32,
    word: Result<u32, Fault>,
    now: u64,
) {
    match function.context(now).cq(number) {
        Ok(mut cq) => cq.arm_from_record(word),
        Err(missing) => tracing::error!(%missing, "a doorbell page names a destroyed CQ"),
    }
}

/// Handles a doorbell of the DPA. It names the send queue and its producer index, so the record is
/// not read.
pub(super) fn ring_at_index(function: &mut FunctionEngine, number: u32, index: u16) {
    if takes_doorbell(function, true) {
        wake_to(function, number, Some(index));
    }
}

/// Wakes a send queue that is posted up to `index`, or up to its record.
fn wake_to(function: &mut FunctionEngine, number: u32, index: Option<u16>) {
    if let Some(index) = index {
        wake_by(function, number, |queue, _, _| {
            queue.producer = index;
            queue.runtime.indexed = true;
            Ok(())
        });
    } else {
        wake_by(function, number, |queue, memory, record| queue.read_producer(memory, record));
    }
}

/// Wakes a send queue whose producer index `read` sets, given the memory and address of its record.
#[inline]
fn wake_by(
    function: &mut FunctionEngine,
    number: u32,
    read: impl FnOnce(&mut SendQueue, &dyn HostMemory, u64) -> Result<(), Fault>,
) {
    let FunctionEngine { hca, engine, .. } = function;
    let Some(Sender { queue, record, reset, .. }) = hca.objects.sender(number) else {
        tracing::error!(number, "a doorbell names a destroyed send queue");
        return;
    };
    // This doorbell is older than 2RST, and software may not have cleared the record yet.
    if reset {
        return;
    }
    queue.runtime.rung = true;
    if let Err(fault) = read(queue, &*hca.memory, record) {
        tracing::debug!(number, %fault, "a doorbell record cannot be read: nothing new is posted");
        return;
    }
    queue.awake = queue.producer != queue.consumer;
    if queue.awake {
        rotate(&mut engine.active, number, queue);
    }
}

/// Adds a send queue to the rotation, if it is not in there.
fn rotate(active: &mut VecDeque<u32>, number: u32, queue: &mut SendQueue) {
    if !std::mem::replace(&mut queue.runtime.queued, true) {
        active.push_back(number);
    }
}

/// Adds a QP or SQ to the rotation, if it is not in there.
pub(super) fn queue(function: &mut FunctionEngine, number: u32) {
    let FunctionEngine { hca, engine, .. } = function;
    match hca.objects.sender(number) {
        Some(sender) => rotate(&mut engine.active, number, sender.queue),
        None => tracing::error!(number, "a send queue was destroyed before its turn"),
    }
}

/// Gives a turn to a QP or SQ that may run now and whose doorbell rang before.
///
/// Reads the record of a QP whose doorbell never rang since it was created. Its driver must have
/// cleared the record, since leftovers count as posted (UCX cb229b76b0, of new QPs). Does not read
/// the record of an SQ: Linux leaves it when it recovers one (`en/reporter_tx.c`,
/// `mlx5e_reset_txqsq_cc_pc`).
pub(super) fn sender_ready(function: &mut FunctionEngine, number: u32) {
    let Objects { qps, sqs, .. } = &function.hca.objects;
    let (ready, is_new) = match (qps.get(&number), sqs.get(&number)) {
        (Some(qp), _) => match qp.sq.as_ref().filter(|_| qp.state == QpState::Rts) {
            Some(sq) => (sq.awake, !sq.runtime.rung),
            None => (false, false),
        },
        (None, Some(sq)) => (sq.state == SqState::RDY && sq.queue.awake, false),
        (None, None) => {
            tracing::error!(number, "a runnable send queue was destroyed");
            return;
        }
    };
    if is_new {
        wake_to(function, number, None);
    } else if ready {
        queue(function, number);
    }
}
