//! Stores to trapped doorbell pages: distinguishes a BlueFlame copy from a doorbell.
//!
//! Both begin with the same eight bytes at the same offset. A copy continues to a multiple of 64
//! bytes; a doorbell does not. So the model holds a doorbell for a moment. If the rest of the WQE
//! follows in order, the model executes the WQE from the copied bytes, as a device does that got
//! them in one write-combined packet. Otherwise the store is a doorbell. A doorbell of another
//! queue in the middle of a copy becomes part of the copy: software must lock a BlueFlame register,
//! or use it for one queue only.

use verbless_prm::hot::{CtrlSegment, CtrlWord, WQEBB, opcode};

use super::doorbell::{self, mmio_write, store};
use super::function::FunctionEngine;
use super::ring::record;
use super::state::HeldStore;
use super::work::first_word;
use crate::hca::doorbell::PageDoorbell;
use crate::locked::LockedFunctions;
use crate::memory::{BLUEFLAME, BLUEFLAME_BUFFERS, BLUEFLAME_STRIDE, UAR_PAGE};

/// Maximum time between two stores of a copy, in nanoseconds: a few times the cost of a trapped
/// store.
const COPY_TIMEOUT: u64 = 100_000;
/// How long a NOP's doorbell may be the start of a copy. NOPs need no low latency. Kernels test
/// with NOPs, once, whether the device executes copies: a guest that loses its CPU in the middle of
/// the first copy must get the same result as any other.
const NOP_COPY_TIMEOUT: u64 = 20_000_000;

/// Handles a trapped store to a UAR page.
pub(crate) fn trapped_write(locked: &mut LockedFunctions, id: usize, offset: u64, bytes: &[u8]) {
    let register = offset % UAR_PAGE;
    let Ok(page) = u32::try_from(offset / UAR_PAGE) else {
        tracing::debug!(offset, "a store past the last UAR page");
        return;
    };
    if !(BLUEFLAME..BLUEFLAME + BLUEFLAME_BUFFERS * BLUEFLAME_STRIDE).contains(&register) {
        mmio_write(locked, id, offset, bytes);
        return;
    }
    locked.clock.tick();
    let now = locked.clock.now;
    let function = &mut locked.functions[id];
    let (buffer, at) =
        (register & !(BLUEFLAME_STRIDE - 1), (register & (BLUEFLAME_STRIDE - 1)) as usize);
    if at == 0 && overwrites_other_copy(function, (page, buffer), bytes) {
        let held = &mut function.engine.held.0;
        if let Some(copy) = held.get_mut(&(page, buffer))
            && let (Some(first), Some(bytes)) =
                (copy.bytes.first_chunk_mut::<8>(), bytes.first_chunk())
        {
            *first = *bytes;
        }
    } else if at == 0 {
        ring(function, now, (page, buffer));
        let copy =
            HeldStore { due: now.saturating_add(copy_timeout(bytes)), bytes: bytes.to_vec() };
        function.engine.held.0.insert((page, buffer), copy);
    } else {
        let held = &mut function.engine.held.0;
        // A store that continues no copy is the rest of a copy that took too long.
        let Some(copy) = held.get_mut(&(page, buffer)).filter(|copy| copy.bytes.len() == at) else {
            return;
        };
        copy.bytes.extend_from_slice(bytes);
        copy.due = now.saturating_add(copy_timeout(&copy.bytes));
    }
    let held = &mut function.engine.held.0;
    let whole = |copy: &mut HeldStore| copy.bytes.len() >= whole_length(&copy.bytes);
    if held.get_mut(&(page, buffer)).is_some_and(whole)
        && let Some(copy) = held.remove(&(page, buffer))
    {
        copied(function, page, copy.bytes, now);
    }
}

/// Whether a doorbell lands in a copy of another queue that is under way.
///
/// There is one buffer at this address, in the CPU that combines the stores and in the device that
/// receives them. The doorbell becomes the start of the buffer. When the rest of the copy arrives,
/// the device has a request that software did not post.
fn overwrites_other_copy(function: &FunctionEngine, register: (u32, u64), doorbell: &[u8]) -> bool {
    let queue = |bytes: &[u8]| first_word(bytes).map(|word| word.qpn());
    function.engine.held.0.get(&register).is_some_and(|copy| {
        doorbell.len() == 8 && copy.bytes.len() > 8 && queue(&copy.bytes) != queue(doorbell)
    })
}

/// Time within which the next store of a copy that begins with these bytes must follow.
fn copy_timeout(start: &[u8]) -> u64 {
    match first_word(start).map(|word| word.opcode()) {
        Some(opcode::NOP) => NOP_COPY_TIMEOUT,
        _ => COPY_TIMEOUT,
    }
}

/// Length of the copy that begins with these bytes: whole WQEBBs, as many as the WQE takes, and at
/// most as many as the register has.
fn whole_length(start: &[u8]) -> usize {
    let bytes = CtrlSegment::from_prefix(start).map_or(0, |control| usize::from(control.ds()) * 16);
    bytes.next_multiple_of(WQEBB).clamp(WQEBB, BLUEFLAME_STRIDE as usize)
}

/// Handles a WQE that arrived whole. If it is the next one, the device executes the copied bytes.
/// The doorbell rings in any case.
fn copied(function: &mut FunctionEngine, page: u32, mut bytes: Vec<u8>, now: u64) {
    let word = first_word(&bytes).map_or(0, CtrlWord::into_bits);
    if let Some(control) = CtrlSegment::from_prefix(&bytes).map(|it| it.ctrl_word)
        && let Some(sender) = function.hca.objects.sender(control.qpn())
        && sender.uar_page == page
        && !sender.reset
        && let Ok(producer) = record(&*function.hca.memory, sender.record)
    {
        let sq = sender.queue;
        let (index, length) = (control.wqe_index(), usize::from(control.ds()) * 16);
        let posted = (producer as u16).wrapping_sub(index);
        let next = index == sq.producer && usize::from(posted) >= length.div_ceil(WQEBB);
        if next && (1..=bytes.len()).contains(&length) {
            bytes.truncate(length);
            sq.runtime.copies.push(index, bytes);
        }
    }
    doorbell::ring(function, page, PageDoorbell::Send, word, now);
}

/// Rings the doorbell of a store that nothing followed.
fn ring(function: &mut FunctionEngine, now: u64, register: (u32, u64)) {
    if let Some(copy) = function.engine.held.0.remove(&register) {
        let (page, register) = register;
        store(function, now, u64::from(page) * UAR_PAGE + register, &copy.bytes);
    }
}

/// Forgets the stores of a queue that is reset or destroyed.
pub(super) fn forget(function: &mut FunctionEngine, number: u32) {
    let of = |copy: &HeldStore| first_word(&copy.bytes).map(|word| word.qpn()) == Some(number);
    function.engine.held.0.retain(|_, copy| !of(copy));
}

/// Rings each held doorbell whose copy was not continued in time; true if there was one.
pub(super) fn expire(function: &mut FunctionEngine, now: u64) -> bool {
    let held = &function.engine.held.0;
    let due = held.iter().filter(|(_, copy)| copy.due <= now).map(|(&register, _)| register);
    let due: Vec<_> = due.collect();
    for &register in &due {
        ring(function, now, register);
    }
    !due.is_empty()
}
