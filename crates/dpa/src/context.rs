//! The environment of a run when it starts: the thread context of the public headers, and the
//! layout of a process's address space.
//!
//! Source of the context: the FlexIO SDK's device headers, 25.1 (BSD-3-Clause). The addresses are
//! the model's own.

use verbless_riscv::{PAGE, Ram};

/// The first address of the heap.
pub const HEAP: u64 = 0x1_0000_0000;
/// The stacks: one at each multiple of [`STACK_STRIDE`]; the lower half of each stride stays empty.
pub(super) const STACKS: u64 = 0x2_0000_0000;
pub(super) const STACK: u64 = 0x1_0000;
pub(super) const STACK_STRIDE: u64 = 2 * STACK;
/// The thread contexts, a page each.
pub(super) const CONTEXTS: u64 = 0x3_0000_0000;
/// The address to which functions return.
pub(super) const RETURN: u64 = 0x3_f000_0000;
/// The outboxes, a page each.
pub(super) const OUTBOXES: u64 = 0x4_0000_0000;
/// The configuration of the windows.
pub const WINDOW_CONFIGS: u64 = 0x5_0000_0000;
pub(super) const LOG_WINDOW_CONFIG: u8 = 6;
/// The windows: the top byte of their addresses, the number of bits of a window's number, and of an
/// address in a window.
pub(super) const WINDOW_MSBS: u8 = 0x80;
pub(super) const LOG_WINDOWS: u8 = 8;
pub(super) const LOG_WINDOW: u8 = 48;
/// The first address of the windows.
pub const WINDOWS: u64 = (WINDOW_MSBS as u64) << 56;

/// Maximum number of outboxes, and of windows, of a process.
pub(super) const MAX_CONFIGS: u16 = 1 << LOG_WINDOWS;
/// Maximum number of threads and calls of a process at a time.
pub(super) const MAX_RUNNERS: usize = 256;

/// The id that names no outbox or window.
pub const NO_ID: u16 = 0xffff;

/// `li a7, 0; ecall`: the system call that ends a run.
pub(super) const RETURN_CODE: [u32; 2] = [0x0000_0893, 0x0000_0073];

/// The version of the outbox page's layout that contexts show.
const VERSION: u32 = 9;
/// Offset of default_outbox_config_id.
const OUTBOX: usize = 0x04;
/// Offset of os_errno.
const ERRNO: u64 = 0x28;

/// Writes the context in slot `slot`, with errno 0.
pub(super) fn write(contexts: &Ram, slot: usize, outbox: u16, windows: [u16; 2], metadata: u64) {
    let mut bytes = [0; 64];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0x00, &VERSION.to_le_bytes());
    put(OUTBOX, &outbox.to_le_bytes());
    put(0x06, &windows[0].to_le_bytes());
    // The page of this outbox; without an outbox, an address after all pages.
    put(0x08, &(OUTBOXES + u64::from(outbox) * PAGE).to_le_bytes());
    put(0x18, &WINDOW_CONFIGS.to_le_bytes());
    put(0x20, &metadata.to_le_bytes());
    put(0x2d, &[LOG_WINDOW_CONFIG]);
    put(0x2e, &windows[1].to_le_bytes());
    put(0x30, &[WINDOW_MSBS, LOG_WINDOW, LOG_WINDOWS]);
    contexts.write(slot as u64 * PAGE, &bytes);
}

/// The outbox that the context in this slot names, which its run may have changed.
pub(super) fn outbox(contexts: &Ram, slot: usize) -> u16 {
    let mut id = [0; 2];
    contexts.read(slot as u64 * PAGE + OUTBOX as u64, &mut id);
    u16::from_le_bytes(id)
}

/// Address of the context of this slot.
pub(super) const fn address(slot: usize) -> u64 {
    CONTEXTS + slot as u64 * PAGE
}

/// The top of the stack in slot `slot`.
pub(super) const fn stack_top(slot: usize) -> u64 {
    STACKS + (slot as u64 + 1) * STACK_STRIDE
}

/// Stores an error number in a run's context, for an error that does not end the run.
pub(super) fn set_errno(contexts: &Ram, slot: usize, errno: u32) {
    contexts.store32(slot as u64 * PAGE + ERRNO, errno);
}
