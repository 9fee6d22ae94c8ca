//! A DPA program for tests of the FlexIO device API: each entry point exercises one part of it, and
//! the host asserts the result (`tests/suite`, group `dpa device programs`).

#![no_std]
#![no_main]

mod formats;
mod posts;
// Device sides of examples: frames; RDMA writes of an event handler; arguments and results.
#[path = "../../../../flexio/programs/rdma/src/answers.rs"]
mod answers;
#[path = "../../../../flexio/programs/packets/src/reflects.rs"]
mod reflects;
#[path = "../../../../flexio/programs/rpc/src/widths.rs"]
mod widths;

use core::ptr::with_exposed_provenance;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use verbless_flexio_dev::calls::{self, with_context};
use verbless_flexio_dev::event::{CqRing, EqRing, eqe_cqn};
use verbless_flexio_dev::segment::CompletionMode;
use verbless_flexio_dev::system::Next;
use verbless_flexio_dev::trace;
use verbless_flexio_dev::{
    Failed, Level, Request, Segment, SpinLock, Status, Stream, ThreadContext, WindowEntity,
    event_handler, msg, msg_broadcast, msg_dbg, msg_dflt, msg_err, msg_info, msg_warn, print,
    program, rpc, system, tp,
};

program!();

// Arguments, results, memory.

#[rpc]
fn add(a: u64, b: u32) -> u64 {
    a + u64::from(b)
}

#[rpc]
fn widths(a: i8, b: u16, c: bool, d: i32, e: u64, f: i64, g: usize, h: u8) -> i64 {
    i64::from(a)
        + i64::from(b)
        + i64::from(c)
        + i64::from(d)
        + e as i64
        + f
        + g as i64
        + i64::from(h)
}

/// More arguments than registers hold: the sum of each argument times its position, from 1.
#[rpc]
#[expect(clippy::too_many_arguments, reason = "the most that there may be")]
fn sixteen(
    a: i8,
    b: u8,
    c: i16,
    d: u16,
    e: i32,
    f: u32,
    g: i64,
    h: bool,
    i: i8,
    j: u8,
    k: i16,
    l: u16,
    m: i32,
    n: u32,
    o: i64,
    p: bool,
) -> i64 {
    let wide = [i64::from(a), b.into(), c.into(), d.into(), e.into(), f.into(), g, h.into()];
    let more = [i64::from(i), j.into(), k.into(), l.into(), m.into(), n.into(), o, p.into()];
    (1..).zip(wide.into_iter().chain(more)).map(|(number, value): (i64, i64)| number * value).sum()
}

/// Objects for the host to read in the program's file: bytes in the file, and zeros that it omits.
#[unsafe(no_mangle)]
static SHOWN_BYTES: [u8; 7] = *b"a file\0";
#[unsafe(no_mangle)]
static SHOWN_ZEROS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// A byte of both objects.
#[rpc]
fn shown(index: usize) -> u64 {
    SHOWN_ZEROS[index % 3].fetch_add(SHOWN_BYTES[index % 7].into(), Ordering::Relaxed)
}

static COUNT: AtomicU64 = AtomicU64::new(0);
static LOCK: SpinLock = SpinLock::new();

/// Adds 1 `times` times, each in two steps under a lock.
#[rpc]
fn increment(times: u64) -> u64 {
    for _ in 0..times {
        let _held = LOCK.lock();
        COUNT.store(COUNT.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
    COUNT.load(Ordering::Relaxed)
}

#[rpc]
fn nothing() {}

/// The result of [`formats`] here.
#[rpc]
fn formats_of(seed: u64) -> u64 {
    formats::all(seed)
}

// The thread and its context.

/// The number of a thread with the name `worker`, if both functions agree; 0 without metadata.
#[rpc]
fn thread_id() -> u64 {
    let context = calls::get_thread_ctx();
    let id = with_context::get_thread_id(context);
    match calls::get_current_thread() {
        Some(metadata) if metadata.id == id && metadata.name() == "worker" => id.into(),
        Some(_) => u64::MAX,
        None => 0,
    }
}

#[rpc]
fn thread_storage() -> u64 {
    with_context::get_thread_local_storage(calls::get_thread_ctx())
}

/// Reports the initial state of its runs: number and storage of its metadata, outbox, windows.
#[event_handler]
fn begins_with(at: u64) {
    let context = ThreadContext::current();
    let metadata = context.metadata();
    let windows = [WindowEntity::Primary, WindowEntity::Secondary]
        .map(|it| context.window(it).map_or(ThreadContext::NONE, |window| window.id()));
    let results = [
        metadata.as_ref().map_or(u64::MAX, |it| it.id.into()),
        metadata.as_ref().map_or(0, |it| it.storage),
        context.outbox_id().into(),
        windows[0].into(),
        windows[1].into(),
        metadata.is_some_and(|it| it.name() == "worker").into(),
    ];
    for (address, value) in (at..).step_by(8).zip(results) {
        word::<AtomicU64>(address).store(value, Ordering::Relaxed);
    }
}

/// errno after a doorbell for a CQ, the result of `get_and_rst_errno` after a second doorbell, and
/// errno after that.
#[rpc]
fn errno_of(cqn: u32) -> u64 {
    let context = ThreadContext::current();
    calls::zcqe_gen(cqn);
    // Reading the control word waits for the device's answer.
    context.outbox().control();
    let first = with_context::get_errno(context);
    with_context::rst_errno(context);
    if with_context::get_errno(context) != 0 {
        return u64::MAX;
    }
    calls::zcqe_gen(cqn);
    context.outbox().control();
    let taken = with_context::get_and_rst_errno(context);
    first << 32 | taken << 16 | with_context::get_errno(context)
}

// The ends of runs and processes.

#[rpc]
fn ends_with(code: u8) {
    system::error(code)
}

#[rpc]
fn finishes() {
    calls::process_finish()
}

/// Finishes the process by the older function.
#[rpc]
fn finishes_as_before() {
    calls::finish()
}

#[rpc]
fn panics(index: usize) -> u8 {
    [1, 2, 3][index]
}

// Error handlers.

#[event_handler]
fn on_error(status: u64) {
    msg_err!(Stream::DEFAULT, "it ends with {status}");
}

#[event_handler]
fn on_error_fails(status: u64) -> Next {
    msg_err!(Stream::DEFAULT, "it ends with {status}");
    system::error(201)
}

#[event_handler]
fn on_error_spins(status: u64) {
    msg_err!(Stream::DEFAULT, "it ends with {status}");
    loop {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
}

/// A handler that finishes by itself after `least` runs; each end both by value and by call.
#[event_handler]
fn runs(least: u64) -> Next {
    let count = COUNT.fetch_add(1, Ordering::Relaxed) + 1;
    let by_call = count.is_multiple_of(2);
    let next = match count {
        count if count < least => Next::Retrigger,
        count if count == least => Next::Reschedule,
        _ => Next::Finish,
    };
    // SAFETY: nothing on the stack needs a drop.
    unsafe {
        match next {
            Next::Retrigger if by_call => calls::thread_retrigger(),
            Next::Reschedule if by_call => calls::thread_reschedule(),
            Next::Finish if by_call => calls::thread_finish(),
            next => next,
        }
    }
}

/// Runs for as long as its process, and counts.
#[event_handler]
fn polls(_: u64) -> ! {
    loop {
        COUNT.fetch_add(1, Ordering::Relaxed);
        system::pause();
    }
}

/// Continues after each event where it yielded, and counts the events.
#[event_handler]
fn continues(at: u64) {
    let count: &AtomicU64 = word(at);
    let mut seen = 0;
    loop {
        seen += 1;
        count.store(seen, Ordering::Relaxed);
        if seen == 3 {
            calls::yield_and_retrigger();
        } else {
            calls::r#yield();
        }
    }
}

#[rpc]
fn activate(thread: u32) -> u32 {
    calls::event_handler_activate(thread);
    ThreadContext::current().take_errno()
}

#[rpc]
fn count() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// Waits for a lock that it holds.
#[rpc]
fn lock_twice() {
    let _held = LOCK.lock();
    drop(LOCK.lock());
}

/// Ends in a way that a call must not.
#[rpc]
fn reschedules() {
    // SAFETY: nothing on the stack needs a drop; the process ends.
    unsafe { system::reschedule() }
}

/// Pauses until the counter reaches `count`.
#[rpc]
fn wait_for(count: u64) {
    while COUNT.load(Ordering::Relaxed) < count {
        system::pause();
    }
}

// Windows.

const PRIMARY: WindowEntity = WindowEntity::Primary;
static BUFFER: SpinLock = SpinLock::new();

fn code(result: Result<(), Failed>) -> u64 {
    Status::from(result) as u64
}

/// Copies `length` bytes within the host's memory, through a buffer here; by window `entity`.
#[rpc]
fn copy(second: bool, mkey: u32, from: u64, to: u64, length: usize) -> u64 {
    let _held = BUFFER.lock();
    let entity = if second { WindowEntity::Secondary } else { PRIMARY };
    let mut buffer = [0; 512];
    let Some(part) = buffer.get_mut(..length) else { return 2 };
    code(
        calls::window_mkey_config(entity, mkey)
            .and_then(|()| calls::window_copy_from_host(entity, part, from))
            .and_then(|()| calls::window_copy_to_host(entity, to, part)),
    )
}

/// Copies like [`copy`], by the functions from before 24.10 and the thread's window.
#[rpc]
fn copy_with_context(mkey: u32, from: u64, to: u64, length: usize) -> u64 {
    let context = ThreadContext::current();
    let (mut here, mut there) = (0, 0);
    let Ok(window) = context.window(PRIMARY).map(|window| window.id()) else { return 3 };
    let taken = with_context::window_config(context, window, mkey);
    let found = with_context::window_ptr_acquire(context, from, &mut here);
    let same = calls::window_ptr_acquire(PRIMARY, from).inspect(|&address| there = address);
    if [taken, found].contains(&Status::Failed) || same.is_err() || here != there {
        return 4;
    }
    let mut buffer = [0; 512];
    let Some(part) = buffer.get_mut(..length) else { return 2 };
    let steps = [
        with_context::window_mkey_config(context, mkey),
        with_context::window_copy_from_host(context, part, from),
        with_context::window_copy_to_host(context, to, part),
    ];
    u64::from(steps.contains(&Status::Failed))
}

/// Selects a window, and loads the word at the host's address `host`.
#[rpc]
fn peek(window: u16, mkey: u32, host: u64) -> u64 {
    let Ok(()) = calls::window_config(WindowEntity::Secondary, window, mkey) else {
        return u64::MAX;
    };
    let window = ThreadContext::current().window(WindowEntity::Secondary);
    window.and_then(|it| it.read_u64(host)).unwrap_or(u64::MAX - 1)
}

/// Reads two words of the host, of 8 and of 4 bytes, `times` times, and writes two others with all
/// bits equal; returns the number of torn reads.
#[rpc]
fn words(mkey: u32, host: u64, times: u64) -> u64 {
    let Ok(window) = ThreadContext::current().window(PRIMARY) else { return u64::MAX };
    window.set_mkey(mkey);
    let once = |n: u64| {
        let bits = if n.is_multiple_of(2) { 0 } else { u64::MAX };
        window.write_u64(host + 16, bits)?;
        window.write_u32(host + 24, bits as u32)?;
        let long = window.read_u64(host)?;
        let short = window.read_u32(host + 8)?;
        Ok::<_, Failed>(![0, u64::MAX].contains(&long) || ![0, u32::MAX].contains(&short))
    };
    (0..times).map(|n| once(n).map_or(1 << 32, u64::from)).sum()
}

#[rpc]
fn poke(mkey: u32, host: u64, value: u64) -> u64 {
    let window = ThreadContext::current().window(PRIMARY);
    code(window.and_then(|it| {
        it.set_mkey(mkey);
        it.write_u64(host, value)
    }))
}

// Queues.

/// A word of the process's memory at an address from the host.
fn word<T>(address: u64) -> &'static T {
    // SAFETY: the host passes addresses in the heap, of atomics, which nothing else uses otherwise.
    unsafe { &*with_exposed_provenance(address as usize) }
}

/// The state of [`drain`], written by the host into the heap.
#[repr(C)]
struct Drain {
    count: AtomicU64,
    bytes: AtomicU64,
    ring: u64,
    record: u64,
    cqn: u32,
    log_cqes: u32,
    consumer: AtomicU32,
}

/// Consumes one CQE, and then arms the CQ.
#[event_handler]
fn drain_one(at: u64) {
    take(at, 1);
}

/// Consumes all CQEs of a CQ, counts them and their bytes, and arms the CQ.
#[event_handler]
fn drain(at: u64) {
    take(at, usize::MAX);
}

fn take(at: u64, most: usize) {
    let drain: &Drain = word(at);
    let words = 8_usize << drain.log_cqes;
    // SAFETY: the host passes the ring's address and length.
    let ring =
        unsafe { core::slice::from_raw_parts(with_exposed_provenance(drain.ring as usize), words) };
    let Some(mut cqes) = CqRing::new(ring, drain.consumer.load(Ordering::Relaxed)) else {
        system::error(200)
    };
    for cqe in core::iter::from_fn(|| cqes.poll()).take(most) {
        drain.bytes.fetch_add(cqe.byte_cnt().into(), Ordering::Relaxed);
        drain.count.fetch_add(1, Ordering::Release);
    }
    cqes.set_record(word(drain.record));
    drain.consumer.store(cqes.consumer(), Ordering::Relaxed);
    // By both functions, in turn.
    if cqes.consumer().is_multiple_of(2) {
        calls::cq_arm(cqes.consumer(), drain.cqn);
    } else {
        let _ = with_context::cq_arm(ThreadContext::current(), cqes.consumer(), drain.cqn);
    }
}

/// The argument of `serve`, and its results.
#[repr(C)]
struct Emulated {
    drain: Drain,
    context: u32,
    value: AtomicU32,
}

/// Serves a doorbell of an emulated device: consumes its CQE, reads its value, and arms it for the
/// next one.
#[event_handler]
fn serve(at: u64) {
    let emulated: &Emulated = word(at);
    take(at, usize::MAX);
    emulated.value.store(calls::read_db_value(emulated.context), Ordering::Release);
    calls::db_ctx_arm(emulated.drain.cqn, emulated.context);
}

/// Consumes all EQEs of an EQ from entry `consumer` on, and updates its consumer index; returns the
/// CQ of the last one, and their number.
#[rpc]
fn take_events(at: u64, log_entries: u32, consumer: u32, eqn: u32) -> u64 {
    // SAFETY: the host passes the ring's address and length.
    let ring = unsafe {
        core::slice::from_raw_parts(with_exposed_provenance(at as usize), 8_usize << log_entries)
    };
    let Some(mut events) = EqRing::new(ring, consumer) else { system::error(200) };
    let mut cqn = 0;
    while let Some(event) = events.poll() {
        cqn = eqe_cqn(&event);
    }
    calls::eq_update_ci(events.consumer(), eqn);
    u64::from(cqn) << 32 | u64::from(events.consumer().wrapping_sub(consumer))
}

#[rpc]
fn arm_events(eqn: u32, consumer: u32) {
    ThreadContext::current().outbox().arm_eq(eqn, consumer);
}

#[rpc]
fn arm(cqn: u32, consumer: u32) {
    calls::cq_arm(consumer, cqn);
}

#[rpc]
fn send_msix(cqn: u32) {
    calls::msix_send(cqn);
}

#[rpc]
fn trigger(cqn: u32) {
    calls::zcqe_gen(cqn);
}

#[rpc]
fn trigger_often(cqn: u32, times: u32) {
    (0..times).for_each(|_| calls::zcqe_gen(cqn));
}

/// Triggers a CQ by outbox `id`, selected with or without the check, and again by the functions
/// with a context.
#[rpc]
fn trigger_by(id: u16, cqn: u32, fast: bool) -> u64 {
    let context = ThreadContext::current();
    if fast {
        calls::outbox_config_fast(id);
        with_context::outbox_config_fast(context, id);
    } else if calls::outbox_config(id).is_err()
        || with_context::outbox_config(context, id) == Status::Failed
    {
        return 1;
    }
    let done = with_context::msix_send(context, cqn);
    calls::msix_send(cqn);
    context.outbox().control();
    done as u64 | u64::from(context.errno()) << 8
}

/// Every doorbell for which the model has no queue: returns how many set errno.
#[rpc]
fn refused_doorbells(number: u32) -> u64 {
    let context = ThreadContext::current();
    let rings: [fn(&ThreadContext, u32) -> Status; 3] = [
        |context, number| with_context::eq_update_ci(context, 1, number),
        |context, number| with_context::db_ctx_arm(context, number, 1),
        |context, number| with_context::db_ctx_force_trigger(context, number, 1),
    ];
    let mut refused = 0;
    for ring in rings {
        let Status::Success = ring(context, number) else { continue };
        context.outbox().control();
        refused += u64::from(context.take_errno() == 2);
    }
    calls::read_db_value(number);
    refused + u64::from(context.take_errno() == 2)
}

// UARs of other contexts, extended to the process.

/// Triggers a CQ by the thread's outbox, switched to the queues of an extended UAR; returns errno
/// after it. By both functions.
#[rpc]
fn trigger_across(device: u32, cqn: u32, by_context: bool) -> u64 {
    let context = ThreadContext::current();
    let extended = match by_context {
        true => with_context::outbox_config_uar_extension(context, device),
        false => calls::outbox_config_uar_extension(device).into(),
    };
    if extended == Status::Failed {
        return u64::MAX;
    }
    errno_of_trigger(cqn)
}

/// Triggers a CQ by the thread's outbox in its present state, or after a switch back to its own
/// queues.
#[rpc]
fn trigger_here(cqn: u32, again: bool) -> u64 {
    if again && system::extend_outbox(None).is_err() {
        return u64::MAX;
    }
    errno_of_trigger(cqn)
}

fn errno_of_trigger(cqn: u32) -> u64 {
    let context = ThreadContext::current();
    calls::zcqe_gen(cqn);
    context.outbox().control();
    context.take_errno().into()
}

/// Arms a CQ of another context, of which `ci` CQEs are consumed: by its record in the host's
/// memory, which a window shows, and by the doorbell of an extended UAR; errno.
#[rpc]
fn arm_across(device: u32, cqn: u32, mkey: u32, record: u64, ci: u32) -> u64 {
    let context = ThreadContext::current();
    let Ok(window) = context.window(PRIMARY) else { return u64::MAX };
    window.set_mkey(mkey);
    if window.copy_to_host(record, &ci.to_be_bytes()).is_err()
        || calls::outbox_config_uar_extension(device).is_err()
    {
        return u64::MAX;
    }
    context.outbox().arm_cq(cqn, ci);
    context.outbox().control();
    context.take_errno().into()
}

/// Posts a NOP to a send queue of another context, at WQEBB `pi` of its ring in the host's memory,
/// and rings for it; returns status and errno.
#[rpc]
fn post_across(device: u32, number: u32, mkey: u32, ring: u64, pi: u16) -> u64 {
    let context = ThreadContext::current();
    let Ok(window) = context.window(PRIMARY) else { return u64::MAX };
    window.set_mkey(mkey);
    let wqe = Segment::ctrl(pi, number, CompletionMode::Always, Request::Nop);
    if window.copy_to_host(ring + 64 * u64::from(pi), wqe.as_bytes()).is_err() {
        return u64::MAX;
    }
    let rung = calls::cross_device_ring_db(device, number, u32::from(pi) + 1);
    code(rung) << 32 | u64::from(context.take_errno())
}

// Messages.

#[rpc]
fn says(number: u64) -> usize {
    print!("number {number}")
        + msg!(Stream::DEFAULT, Level::Error, "and {:#x}", number)
        + with_context::puts(ThreadContext::current(), "a line")
}

/// A message by each macro; returns the count of levels that the stream shows.
#[rpc]
fn says_by_level() -> u64 {
    let stream = Stream::DEFAULT;
    let written = [
        msg_err!(stream, "error"),
        msg_warn!(stream, "warning"),
        msg_info!(stream, "info"),
        msg_dbg!(stream, "debug"),
        msg_dflt!(Level::Always, "always"),
        msg_dflt!(Level::None, "never"),
        msg_broadcast!(Level::Error, "to all"),
    ];
    (0..).zip(written).map(|(bit, bytes)| u64::from(bytes > 0) << bit).sum()
}

/// Numbered messages with `bytes` additional bytes to a stream; returns how many were written.
#[rpc]
fn says_to(stream: u8, times: u64, bytes: usize) -> u64 {
    let stream = Stream::new(stream);
    (0..times).map(|n| u64::from(msg_info!(stream, "{n} {:x>bytes$}", "") > 0)).sum()
}

/// A value whose formatting never ends.
struct Endless;

impl core::fmt::Display for Endless {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // The first formatting computes its length.
        if WRITES.fetch_add(1, Ordering::Relaxed) % 2 == 0 {
            return f.write_str("x");
        }
        loop {
            COUNT.fetch_add(1, Ordering::Relaxed);
        }
    }
}

static WRITES: AtomicU64 = AtomicU64::new(0);

/// A message to a stream that never ends.
#[rpc]
fn says_without_end(stream: u8) {
    msg_info!(Stream::new(stream), "{Endless}");
}

// Traces.

/// A record with each number of arguments to a stream; returns how many were written.
#[rpc]
fn traces(stream: u8, from: u64) -> u64 {
    let (stream, n) = (Stream::new(stream), from);
    let written = [
        trace!(stream, Level::Info, 0),
        trace!(stream, Level::Info, 1, n),
        trace!(stream, Level::Info, 2, n, n + 1),
        trace!(stream, Level::Info, 3, n, n + 1, n + 2),
        trace!(stream, Level::Info, 4, n, n + 1, n + 2, n + 3),
        trace!(stream, Level::Info, 5, n, n + 1, n + 2, n + 3, n + 4),
        trace!(stream, Level::Info, 6, n, n + 1, n + 2, n + 3, n + 4, n + 5),
        trace!(stream, Level::Debug, 6, n),
    ];
    written.iter().map(|&it| u64::from(it)).sum()
}

#[rpc]
fn flushes_trace(stream: u8) {
    trace::flush(Stream::new(stream), ThreadContext::current());
}

/// Passes trace point 7 `times` times, with `from` and the following numbers; returns how many
/// records were written.
#[rpc]
fn points(from: u64, times: u64) -> u64 {
    (from..from + times).map(|n| u64::from(tp!(7, n, !n, -1_i8))).sum()
}

// Memory accesses for a host that has no other access to the process's memory.

#[rpc]
fn load(address: u64) -> u64 {
    word::<AtomicU64>(address).load(Ordering::Relaxed)
}

#[rpc]
fn store(address: u64, value: u64) {
    word::<AtomicU64>(address).store(value, Ordering::Relaxed);
}
