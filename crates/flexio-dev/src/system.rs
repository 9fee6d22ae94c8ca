//! System calls of a thread: they end its run or process, and yield the processor.
//!
//! NVIDIA documents the meaning of the calls, but not their encoding. These are system calls of
//! verbless's model: the number in a7, an argument in a0. Programs for hardware would need other
//! system calls, and other code for outboxes and windows than [`context`](crate::context).
#![allow(unsafe_code)]

use crate::context::ThreadContext;
use crate::mmio;
use crate::status::Failed;

/// Numbers of the system calls; `docs/dpa.md` documents them.
mod number {
    pub(super) const RESCHEDULE: u64 = 1;
    pub(super) const FINISH_THREAD: u64 = 2;
    pub(super) const RETRIGGER: u64 = 3;
    pub(super) const FINISH_PROCESS: u64 = 4;
    pub(super) const ERROR: u64 = 5;
    pub(super) const PAUSE: u64 = 6;
    pub(super) const ACTIVATE: u64 = 7;
    pub(super) const YIELD: u64 = 8;
    pub(super) const YIELD_AND_RETRIGGER: u64 = 9;
    pub(super) const EXTEND: u64 = 10;
    pub(super) const RING: u64 = 11;
    pub(super) const HAS: u64 = 12;
    pub(super) const COUNT: u64 = 13;
}

/// Makes a system call that returns a result. The thread context is the only memory of the process
/// that the system reads and writes.
#[inline(always)]
fn call_with(number: u64, arguments: [u64; 3]) -> u64 {
    let [argument, second, third] = arguments;
    #[cfg(all(target_arch = "riscv64", target_os = "none"))]
    {
        let answer;
        // SAFETY: the system changes a0 and nothing else that the compiler knows; it is not marked
        // `nomem`, so that the context is written before and read after it.
        unsafe {
            core::arch::asm!("ecall", in("a7") number, inout("a0") argument => answer,
                in("a1") second, in("a2") third, options(nostack));
        }
        answer
    }
    #[cfg(test)]
    return tests::answer(number, [argument, second, third]);
    #[cfg(not(any(test, all(target_arch = "riscv64", target_os = "none"))))]
    unreachable!(
        "system call {number} with {argument}, {second}, {third}: this is compiled for \
         documentation only"
    );
}

#[inline(always)]
fn call(number: u64, argument: u64) {
    call_with(number, [argument, 0, 0]);
}

/// Makes a system call that does not return.
#[inline(always)]
fn last_call(number: u64, argument: u64) -> ! {
    call(number, argument);
    unreachable!("system call {number} does not return");
}

impl ThreadContext {
    /// The context of the calling thread (`flexio_dev_get_thread_ctx`). It is valid until the run
    /// ends, so it must not be kept for another run.
    #[inline(always)]
    pub fn current() -> &'static Self {
        let address: *const Self;
        #[cfg(all(target_arch = "riscv64", target_os = "none"))]
        // SAFETY: it reads a register.
        unsafe {
            core::arch::asm!("mv {}, tp", out(reg) address, options(nomem, nostack, pure));
        }
        #[cfg(test)]
        {
            address = tests::context();
        }
        #[cfg(not(any(test, all(target_arch = "riscv64", target_os = "none"))))]
        {
            address = core::ptr::null();
        }
        // SAFETY: the system has put the address of the thread's context into tp, and nothing
        // changes tp. The fields that change are atomics.
        unsafe { &*address }
    }
}

/// How an event handler ends its run: the return value of a function with
/// [`#[event_handler]`](crate::event_handler). A handler without a result reschedules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use]
pub enum Next {
    /// The next event starts the thread again.
    #[default]
    Reschedule,
    /// The thread starts again at once.
    Retrigger,
    /// No event starts the thread again.
    Finish,
}

impl From<()> for Next {
    fn from((): ()) -> Self {
        Self::Reschedule
    }
}

impl Next {
    /// Ends the run accordingly.
    ///
    /// # Safety
    /// As [`reschedule`].
    #[inline(always)]
    pub unsafe fn end(self) -> ! {
        match self {
            Self::Reschedule => last_call(number::RESCHEDULE, 0),
            Self::Retrigger => last_call(number::RETRIGGER, 0),
            Self::Finish => last_call(number::FINISH_THREAD, 0),
        }
    }
}

/// Ends the run; the next event starts the thread again (`flexio_dev_thread_reschedule`). Returning
/// from a handler, with or without [`Next`], does the same.
///
/// # Safety
/// The stack disappears, with all values of functions that have not returned, without a drop: no
/// other code may rely on any of these values, nor on their drop.
pub unsafe fn reschedule() -> ! {
    last_call(number::RESCHEDULE, 0)
}

/// Ends the run, and no event starts the thread again (`flexio_dev_thread_finish`).
///
/// # Safety
/// As [`reschedule`].
pub unsafe fn finish_thread() -> ! {
    last_call(number::FINISH_THREAD, 0)
}

/// Ends the run and starts the thread again at once (`flexio_dev_thread_retrigger`).
///
/// # Safety
/// As [`reschedule`].
pub unsafe fn retrigger() -> ! {
    last_call(number::RETRIGGER, 0)
}

/// Ends the process, all its threads with it, without an error: its status is 0x40
/// (`flexio_dev_process_finish`, before `flexio_dev_finish`).
pub fn finish_process() -> ! {
    last_call(number::FINISH_PROCESS, 0)
}

/// The smallest code for [`error`]: the headers of 25.1 say 128, the reference of 2022 says 129.
pub const FIRST_ERROR: u8 = 128;
/// Status of a process whose program used a code below [`FIRST_ERROR`]
/// (`FLEXIO_DEV_ERROR_ILLEGAL_ERR`).
pub const ILLEGAL_ERROR: u8 = 0x42;
/// Status of a process whose program panicked ([`program!`](crate::program)); the project's own.
pub const PANIC: u8 = 0x43;

/// Ends the process with an error code, which the host gets as its status (`flexio_dev_error`): 128
/// to 255. Another code becomes [`ILLEGAL_ERROR`].
pub fn error(code: u8) -> ! {
    end(if code < FIRST_ERROR { ILLEGAL_ERROR } else { code })
}

/// Ends the process because its program panicked: its status is [`PANIC`].
pub fn panicked() -> ! {
    end(PANIC)
}

fn end(status: u8) -> ! {
    last_call(number::ERROR, status.into())
}

/// Yields the core to other threads for a moment, for loops that wait. The run continues, and keeps
/// its execution unit.
pub fn pause() {
    call(number::PAUSE, 0);
}

/// Starts a run of thread `number` of the same process, like an event of a CQ
/// (`flexio_dev_event_handler_activate`). If the process has no such thread, this sets
/// [`errno`](ThreadContext::errno).
///
/// The other thread sees this thread's earlier stores.
pub fn activate(number: u32) {
    mmio::in_order();
    call(number::ACTIVATE, number.into());
}

/// The result of a system call for a doorbell or outbox, which the system may refuse.
fn checked(answer: u64) -> Result<(), Failed> {
    if answer == 0 { Ok(()) } else { Err(Failed) }
}

/// Makes the outbox of the thread's context ring for the queues of the extended UAR with the id
/// `device` (`flexio_uar_get_extended_id`), or with `None` for its own again
/// (`flexio_dev_outbox_config_uar_extension`). This affects all users of the outbox, also in later
/// runs.
///
/// # Errors
/// The thread has no outbox. If there is no such extension, ringing the outbox sets
/// [`errno`](ThreadContext::errno).
pub fn extend_outbox(device: Option<u32>) -> Result<(), Failed> {
    mmio::in_order();
    checked(call_with(number::EXTEND, [device.unwrap_or(u32::MAX).into(), 0, 0]))
}

/// Rings for QP or SQ `number` of the extended UAR `device`: WQEs up to the WQEBB index `pi` are
/// posted (`flexio_dev_cross_device_ring_db`). It needs no outbox.
///
/// # Errors
/// The process has no such extension, or the extension reaches no such queue; this also sets
/// [`errno`](ThreadContext::errno).
pub fn ring_device(device: u32, number: u32, pi: u16) -> Result<(), Failed> {
    mmio::before_doorbell();
    checked(call_with(number::RING, [device.into(), number.into(), pi.into()]))
}

/// Checks that the process has outbox `id`.
///
/// # Errors
/// It has none; this also sets [`errno`](ThreadContext::errno).
pub fn has_outbox(id: u16) -> Result<(), Failed> {
    checked(call_with(number::HAS, [id.into(), 0, 0]))
}

/// Checks that the process has window `id`.
///
/// # Errors
/// It has none; this also sets [`errno`](ThreadContext::errno).
pub fn has_window(id: u16) -> Result<(), Failed> {
    checked(call_with(number::HAS, [id.into(), 1, 0]))
}

/// Cycles of the thread (`__dpa_thread_cycles`). The model has no timing: an instruction takes one.
pub fn cycles() -> u64 {
    call_with(number::COUNT, [0, 0, 0])
}

/// Instructions that the thread has executed (`__dpa_thread_inst_ret`).
pub fn instructions() -> u64 {
    call_with(number::COUNT, [1, 0, 0])
}

/// Suspends the run: the next event continues after this call, with stack and registers preserved
/// (`flexio_dev_yield`). A thread that was not made continuable continues at once.
pub fn yield_until_event() {
    mmio::in_order();
    call(number::YIELD, 0);
    mmio::in_order();
}

/// Suspends the run and continues it at once, as if an event arrived
/// (`flexio_dev_yield_and_retrigger`).
pub fn yield_and_retrigger() {
    mmio::in_order();
    call(number::YIELD_AND_RETRIGGER, 0);
    mmio::in_order();
}

#[cfg(test)]
pub(crate) mod tests {
    use core::cell::{Cell, RefCell};
    use std::boxed::Box;
    use std::panic::{UnwindSafe, catch_unwind};
    use std::vec;
    use std::vec::Vec;

    use super::*;

    /// A system call: its number and arguments.
    type Call = (u64, [u64; 3]);

    std::thread_local! {
        static CONTEXT: Cell<Option<&'static ThreadContext>> = const { Cell::new(None) };
        static CALLS: RefCell<Option<Vec<Call>>> = const { RefCell::new(None) };
        static ANSWER: Cell<u64> = const { Cell::new(0) };
    }

    /// The system of the tests: records the call if a test collects calls, and returns the
    /// configured result.
    pub(super) fn answer(number: u64, arguments: [u64; 3]) -> u64 {
        CALLS.with_borrow_mut(|calls| {
            calls.iter_mut().for_each(|calls| calls.push((number, arguments)));
        });
        ANSWER.get()
    }

    pub(super) fn context() -> *const ThreadContext {
        CONTEXT.get().expect("the test has set no context")
    }

    /// Makes `context` that of the calling thread.
    pub(crate) fn enter(context: ThreadContext) -> &'static ThreadContext {
        let context = Box::leak(Box::new(context));
        CONTEXT.set(Some(context));
        context
    }

    /// The system calls that `what` makes.
    pub(crate) fn calls(what: impl FnOnce()) -> Vec<Call> {
        CALLS.set(Some(Vec::new()));
        what();
        CALLS.take().unwrap()
    }

    /// The only system call of a function that ends a run.
    fn end(ends: impl FnOnce() + UnwindSafe) -> Call {
        let calls = calls(|| assert!(catch_unwind(ends).is_err(), "it came back"));
        assert_eq!(calls.len(), 1);
        calls[0]
    }

    /// Makes the system return `with` for all calls of `what`.
    pub(crate) fn answering<T>(with: u64, what: impl FnOnce() -> T) -> T {
        ANSWER.set(with);
        let result = what();
        ANSWER.set(0);
        result
    }

    /// Calls once with the system's result 0, and once with another.
    fn both(call: impl Fn() -> Result<(), Failed>) -> [Result<(), Failed>; 2] {
        [0, 2].map(|answer| answering(answer, &call))
    }

    #[test]
    fn thread_ends_map_to_system_calls() {
        // SAFETY: a call to the tests' system unwinds, and nothing relies on the stack.
        let ends: [(fn(), u64, u64); 10] = unsafe {
            [
                (|| reschedule(), 1, 0),
                (|| Next::from(()).end(), 1, 0),
                (|| Next::default().end(), 1, 0),
                (|| finish_thread(), 2, 0),
                (|| Next::Finish.end(), 2, 0),
                (|| retrigger(), 3, 0),
                (|| Next::Retrigger.end(), 3, 0),
                (|| finish_process(), 4, 0),
                (|| panicked(), 5, 0x43),
                (|| error(255), 5, 255),
            ]
        };
        for (index, (ends, number, argument)) in ends.into_iter().enumerate() {
            assert_eq!(end(ends), (number, [argument, 0, 0]), "row {index}");
        }
        assert_eq!(end(|| error(128)), (5, [128, 0, 0]), "the first code of a program");
        assert_eq!(end(|| error(127)), (5, [0x42, 0, 0]), "programs have no code below 128");
    }

    #[test]
    fn returning_calls_make_one_system_call() {
        let one = |what: fn(), number, argument| {
            assert_eq!(calls(what), vec![(number, [argument, 0, 0])]);
        };
        one(pause, 6, 0);
        one(|| activate(0x1_2345), 7, 0x1_2345);
        one(yield_until_event, 8, 0);
        one(yield_and_retrigger, 9, 0);
    }

    #[test]
    fn outbox_and_doorbell_calls_report_failure() {
        assert_eq!(both(|| extend_outbox(Some(3))), [Ok(()), Err(Failed)]);
        assert_eq!(both(|| ring_device(3, 4, 5)), [Ok(()), Err(Failed)]);
        assert_eq!(both(|| has_outbox(3)), [Ok(()), Err(Failed)]);
        assert_eq!(both(|| has_window(3)), [Ok(()), Err(Failed)]);
        let made = calls(|| {
            extend_outbox(Some(3)).unwrap();
            extend_outbox(None).unwrap();
            ring_device(3, 0x12_3456, 0xffff).unwrap();
        });
        let made_calls = calls(|| {
            has_outbox(3).unwrap();
            has_window(4).unwrap();
            assert_eq!((cycles(), answering(7, instructions)), (0, 7));
        });
        assert_eq!(
            made_calls,
            [(12, [3, 0, 0]), (12, [4, 1, 0]), (13, [0, 0, 0]), (13, [1, 0, 0])]
        );
        let own = u32::MAX.into();
        assert_eq!(made, [(10, [3, 0, 0]), (10, [own, 0, 0]), (11, [3, 0x12_3456, 0xffff])]);
    }
}
