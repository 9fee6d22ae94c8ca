//! WAIT on data: a send queue stops until a word in memory fulfils a condition.

use std::sync::atomic::Ordering;

use verbless_queue::wr::{Inline, Nop, PostError, Wait, WaitCondition, Write};
use verbless_queue::{Domain, Region, WcOpcode, WcStatus};

use crate::case::cases;
use crate::need::cap;
use crate::{Endpoint, Lab, Pair, Stop, ensure, ensure_eq, failed, pattern, quiet};

cases!(
    "wait",
    "WAIT on data: a send queue stops until a word in memory fulfils a condition.",
    needs [cap!(wait_on_data)]:
    wait_on_true_condition_ends_at_once,
    wqe_behind_wait_starts_after_store,
    peer_write_ends_wait,
    conditions_compare_as_named,
    mask_selects_compared_bits,
    waiting_sq_blocks_neither_others_nor_receives,
    waits_on_one_sq_end_in_order,
    concurrent_waits_end_by_own_words,
    wait_with_bad_lkey_fails,
    unaligned_wait_address_is_rejected,
    error_state_flushes_wait_and_later_wqes,
    waiting_sq_starts_over_after_reset,
);

/// Offset of the word in the region.
const WORD: usize = 128;

/// A wait for that word.
fn wait(region: &Region, until: WaitCondition) -> Result<Wait, Stop> {
    let word = region.sge(WORD, 8)?;
    Ok(Wait::new(word.address, word.lkey, until).signaled())
}

/// Stores a number atomically, in the device's byte order.
fn store(end: &Endpoint, number: u64) {
    // SAFETY: nothing else reaches the word meanwhile but the device.
    #[allow(unsafe_code, reason = "words take a promise")]
    let words = unsafe { end.region.words() };
    words[WORD / 8].store(number.to_be(), Ordering::Release);
}

fn wait_on_true_condition_ends_at_once(lab: &Lab) -> Result<(), Stop> {
    let Pair { mut a, b: _b } = Pair::new(lab)?;
    store(&a, 7);
    let done = a.perform(&wait(&a.region, WaitCondition::equal(7))?)?;
    ensure_eq!(done.operation(), WcOpcode::Wait, "operation of the completion");
    Ok(())
}

fn wqe_behind_wait_starts_after_store(lab: &Lab) -> Result<(), Stop> {
    let Pair { mut a, b } = Pair::new(lab)?;
    let text = pattern(1, 1000);
    a.fill(4096, &text)?;
    let (from, to) = (a.sge(4096, 1000)?, b.remote(0)?);
    a.qp.post(&wait(&a.region, WaitCondition::equal(1))?, 1)?;
    a.qp.post(&Write::new(from, to).signaled(), 2)?;
    quiet("a completion of a wait", || a.qp.poll(&mut a.send_cq))?;
    ensure!(b.bytes(0, 1000)? == vec![0; 1000], "the WRITE did not wait");
    store(&a, 1);
    ensure_eq!(a.sent()??.cookie, 1, "first completion");
    ensure_eq!(a.sent()??.cookie, 2, "second completion");
    b.placed(0, &text, "other bytes arrived")?;
    Ok(())
}

fn peer_write_ends_wait(lab: &Lab) -> Result<(), Stop> {
    let Pair { mut a, mut b } = Pair::new(lab)?;
    a.qp.post(&wait(&a.region, WaitCondition::above(4))?, 1)?;
    let to = a.remote(WORD)?;
    b.perform(&Write::new(Inline(&4u64.to_be_bytes()), to).signaled())?;
    quiet("a completion of a wait", || a.qp.poll(&mut a.send_cq))?;
    b.perform(&Write::new(Inline(&5u64.to_be_bytes()), to).signaled())?;
    ensure_eq!(a.sent()??.cookie, 1, "completion");
    Ok(())
}

/// The wait continues with one value of the word, and ends with the other.
fn turns(end: &mut Endpoint, until: WaitCondition, waits: u64, over: u64) -> Result<(), Stop> {
    store(end, waits);
    end.qp.post(&wait(&end.region, until)?, waits)?;
    quiet(&format!("{until:?} with {waits:#x}"), || end.qp.poll(&mut end.send_cq))?;
    store(end, over);
    ensure_eq!(end.sent()??.cookie, waits, "completion");
    Ok(())
}

fn conditions_compare_as_named(lab: &Lab) -> Result<(), Stop> {
    let Pair { mut a, b: _b } = Pair::new(lab)?;
    for (until, waits, over) in [
        (WaitCondition::equal(7), 8, 7),
        (WaitCondition::equal(7).not(), 7, 8),
        (WaitCondition::above(7), 7, 8),
        (WaitCondition::above(7).not(), 8, 7),
        (WaitCondition::below(7), 7, 6),
        (WaitCondition::past(u64::MAX), u64::MAX, 0),
        (WaitCondition::past(7), u64::MAX, 8),
        (WaitCondition::before(0), 1, u64::MAX),
    ] {
        turns(&mut a, until, waits, over)?;
    }
    Ok(())
}

fn mask_selects_compared_bits(lab: &Lab) -> Result<(), Stop> {
    let Pair { mut a, b: _b } = Pair::new(lab)?;
    for (until, waits, over) in [
        (WaitCondition::equal(0x12).masked(0xff), 0x1213, 0xab12),
        (WaitCondition::equal(0x1200).masked(0xff00), 0x12, 0x12ff),
        (WaitCondition::above(0x7f).masked(0xff), 0xff00, 0xff80),
        (WaitCondition::past(0xfe).masked(0xff), 0x1_00fe, 0x1_0000),
    ] {
        turns(&mut a, until, waits, over)?;
    }
    Ok(())
}

fn waiting_sq_blocks_neither_others_nor_receives(lab: &Lab) -> Result<(), Stop> {
    let Pair { mut a, mut b } = Pair::new(lab)?;
    let mut others = Pair::new(lab)?;
    a.qp.post(&wait(&a.region, WaitCondition::equal(1))?, 1)?;
    for round in 0..50 {
        let to = others.b.remote(round)?;
        others.a.perform(&Write::new(Inline(b"x"), to).signaled())?;
        let to = a.remote(8 << 10)?;
        b.perform(&Write::new(Inline(&[round as u8]), to).signaled())?;
        a.placed(8 << 10, &[round as u8], "the arrived bytes")?;
    }
    quiet("a completion of a wait", || a.qp.poll(&mut a.send_cq))?;
    store(&a, 1);
    ensure_eq!(a.sent()??.cookie, 1, "completion");
    Ok(())
}

fn waits_on_one_sq_end_in_order(lab: &Lab) -> Result<(), Stop> {
    let Pair { mut a, b: _b } = Pair::new(lab)?;
    for number in 1..=10 {
        a.qp.post(&wait(&a.region, WaitCondition::below(number).not())?, number)?;
    }
    for number in 1..=10 {
        store(&a, number);
        ensure_eq!(a.sent()??.cookie, number, "completion");
        ensure!(a.qp.poll(&mut a.send_cq).is_none(), "the next wait is over with {number}");
    }
    Ok(())
}

fn concurrent_waits_end_by_own_words(lab: &Lab) -> Result<(), Stop> {
    let (device, ends) = (lab.device()?, 20);
    let mut waiting = Vec::new();
    for _ in 0..ends {
        let mut pair = Pair::new(lab)?;
        for number in 1..=5 {
            pair.a.qp.post(&wait(&pair.a.region, WaitCondition::equal(number))?, number)?;
        }
        waiting.push(pair);
    }
    for number in 1..=5 {
        for pair in waiting.iter_mut().rev() {
            store(&pair.a, number);
            ensure_eq!(pair.a.sent()??.cookie, number, "completion");
        }
    }
    drop((waiting, device));
    Ok(())
}

fn wait_with_bad_lkey_fails(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let other = Domain::new(&pair.a.device)?;
    let foreign = other.region(4096, verbless_command::KeyAccess::ALL)?;
    let mut past = pair.a.sge(0, 8)?;
    past.address += pair.a.region.len() as u64;
    for word in [foreign.sge(0, 8)?, past] {
        pair.a.qp.post(&Wait::new(word.address, word.lkey, WaitCondition::equal(0)), 3)?;
        ensure_eq!(failed(pair.a.sent()?, WcStatus::LocalProtection)?, 3, "cookie");
        pair.restart()?;
    }
    Ok(())
}

fn unaligned_wait_address_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let Pair { mut a, b: _b } = Pair::new(lab)?;
    let word = a.sge(0, 8)?;
    for at in 1..8 {
        let wait = Wait::new(word.address + at, word.lkey, WaitCondition::equal(0));
        ensure_eq!(a.qp.post(&wait, 0), Err(PostError::UnalignedWait), "an address that is odd");
    }
    a.perform(&Nop::new().signaled())?;
    Ok(())
}

fn error_state_flushes_wait_and_later_wqes(lab: &Lab) -> Result<(), Stop> {
    let Pair { mut a, b: _b } = Pair::new(lab)?;
    a.qp.post(&wait(&a.region, WaitCondition::equal(1))?, 1)?;
    a.qp.post(&Nop::new(), 2)?;
    quiet("a completion of a wait", || a.qp.poll(&mut a.send_cq))?;
    a.qp.to_error()?;
    for cookie in [1, 2] {
        ensure_eq!(failed(a.sent()?, WcStatus::Flushed)?, cookie, "cookie");
    }
    store(&a, 1);
    quiet("a completion after the flush", || a.qp.poll(&mut a.send_cq))
}

fn waiting_sq_starts_over_after_reset(lab: &Lab) -> Result<(), Stop> {
    let mut pair = Pair::new(lab)?;
    let wait = wait(&pair.a.region, WaitCondition::equal(1))?;
    pair.a.qp.post(&wait, 1)?;
    quiet("a completion of a wait", || pair.a.qp.poll(&mut pair.a.send_cq))?;
    pair.restart()?;
    let to = pair.b.remote(0)?;
    pair.a.perform(&Write::new(Inline(b"after it"), to).signaled())?;
    pair.b.placed(0, b"after it", "the arrived bytes")?;
    // It may also be dropped while it waits.
    pair.a.qp.post(&wait, 2)?;
    drop(pair);
    Ok(())
}
