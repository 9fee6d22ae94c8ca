//! The streams of a program, and the host's operations on them: [`manage`], which
//! [`program!`](crate::program) exports as `verbless_stream`.
//!
//! Threads that found a stream before its detach may still use it. The count of users is in the
//! slot, not in the stream, because the host frees the stream's memory once the count is 0.
#![allow(unsafe_code)]

use core::ptr::{null_mut, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use super::control::Control;
use crate::context::ThreadContext;

/// Maximum number of streams (`FLEXIO_MSG_DEV_MAX_STREAMS_AMOUNT`).
pub const MAX_STREAMS: usize = 255;
/// The stream number by which the host names the tracer.
pub const TRACER: u64 = 256;
/// Result of [`manage`] if the operation fails.
pub const FAILED: u64 = u64::MAX;

/// The host's operations on a stream, in bits 7:0 of the first argument of [`manage`].
pub mod operation {
    /// Attaches the stream whose [`Control`](super::Control) is at the address in the third
    /// argument, with the level in bits 31:16 of the first. Returns 0.
    pub const ATTACH: u64 = 0;
    /// Detaches the stream. Returns the count of threads that still use it.
    pub const DETACH: u64 = 1;
    /// Sets the level to bits 31:16 of the first argument. Returns 0.
    pub const LEVEL: u64 = 2;
    /// Hands over the complete entries. Returns the total count of entries handed over.
    pub const FLUSH: u64 = 3;
}

/// The first argument of [`manage`].
pub const fn first_argument(operation: u64, level: u32) -> u64 {
    operation | (level as u64 & 0xffff) << 16
}

/// A slot of the table, to which the host attaches a stream.
struct StreamSlot {
    control: AtomicPtr<Control>,
    users: AtomicU32,
}

impl StreamSlot {
    const fn new() -> Self {
        Self { control: AtomicPtr::new(null_mut()), users: AtomicU32::new(0) }
    }

    /// Calls `f` with the stream, if there is one.
    fn with<R>(&self, f: impl FnOnce(&Control) -> R) -> Option<R> {
        // Either DETACH sees this user, or the load below sees no stream.
        self.users.fetch_add(1, Ordering::SeqCst);
        let control = self.control.load(Ordering::SeqCst);
        // SAFETY: the host has promised that the stream stays while it has users, and this is one.
        let result = unsafe { control.as_ref() }.map(f);
        self.users.fetch_sub(1, Ordering::SeqCst);
        result
    }
}

static STREAMS: [StreamSlot; MAX_STREAMS] = [const { StreamSlot::new() }; MAX_STREAMS];
static TRACER_SLOT: StreamSlot = StreamSlot::new();

fn slot_of(number: u64) -> Option<&'static StreamSlot> {
    if number == TRACER {
        return Some(&TRACER_SLOT);
    }
    STREAMS.get(usize::try_from(number).ok()?)
}

/// Calls `f` with stream `number` or the [`TRACER`], if the host has attached it.
pub(crate) fn with<R>(number: u64, f: impl FnOnce(&Control) -> R) -> Option<R> {
    slot_of(number)?.with(f)
}

/// Executes an [`operation`] for the host; returns [`FAILED`] if there is no such stream or
/// operation, or if the [`Control`] to attach is misaligned or its parameters are invalid.
///
/// # Safety
/// For [`operation::ATTACH`], `address` is that of a [`Control`] of this process. Its ring and
/// queues are memory of the process that nothing else uses. All of it stays until the stream is
/// detached and has no users.
pub unsafe fn manage(context: &ThreadContext, first: u64, number: u64, address: u64) -> u64 {
    let Some(slot) = slot_of(number) else { return FAILED };
    let level = (first >> 16) as u32 & 0xffff;
    match first & 0xff {
        operation::ATTACH => {
            let control: *mut Control = with_exposed_provenance_mut(address as usize);
            if control.is_null() || !control.is_aligned() {
                return FAILED;
            }
            // SAFETY: the caller's promise.
            let block = unsafe { &*control };
            if !block.setup.is_sound() {
                return FAILED;
            }
            if block.setup.carrier() == Some(super::control::Carrier::Window) {
                context.window_at(block.setup.window).set_mkey(block.setup.key);
            }
            block.level.store(level, Ordering::SeqCst);
            slot.control.store(control, Ordering::SeqCst);
            0
        }
        operation::DETACH => {
            slot.control.store(null_mut(), Ordering::SeqCst);
            slot.users.load(Ordering::SeqCst).into()
        }
        operation::LEVEL => {
            let set = slot.with(|control| control.level.store(level, Ordering::SeqCst));
            set.map_or(FAILED, |()| 0)
        }
        operation::FLUSH => {
            let flushed = slot.with(|control| {
                control.hand_over(context, 1);
                control.carried.load(Ordering::SeqCst)
            });
            flushed.unwrap_or(FAILED)
        }
        _ => FAILED,
    }
}
