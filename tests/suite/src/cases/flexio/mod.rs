//! FlexIO's host library with a compiled program: processes, memory, event handlers, and their
//! state after a fatal error.

pub(super) mod cmdq;
pub(super) mod cross;
pub(super) mod emulation;
pub(super) mod ends;
pub(super) mod frames;
pub(super) mod library;
pub(super) mod objects;
pub(super) mod peers;
pub(super) mod queues;
mod rig;
pub(super) mod streams;
pub(super) mod tracer;

use std::sync::Arc;

use verbless_command::{DpaStatus, DpaThreadState, KeyAccess};
use verbless_devx::UarKind;
use verbless_flexio::memory::MEMORY_BLOCK;
use verbless_flexio::stream::Output;
use verbless_flexio::{
    Buffer, CqElement, CqModeration, Destination, DpaCq, DpaCqConfig, DpaQp, DpaQpConfig, Error,
    EventHandler, EventHandlerConfig, Function, Handler, Level, Mkey, MkeyConfig, MsgStream,
    MsgStreamConfig, Outbox, OutboxConfig, Process, ProcessConfig, QpAttr, QpAttrMask, QpState,
    QueueMemory, Rmp, RmpConfig, RpcAttr, Source, Status, Uar, Window,
};
use verbless_prm::DpaFault;
use verbless_queue::ConnectOptions;

use self::rig::{Rig, add, ends_with};
use crate::case::cases;
use crate::endpoint::quiet;
use crate::need::cap;
use crate::{Lab, Need, Stop, ensure, ensure_eq, pattern, until};

cases!(
    "flexio",
    "FlexIO's host library: processes, memory, event handlers, and the state after a fatal error.",
    needs [Need::DpaLayouts, cap!(apu), Need::DpaProgram]:
    process_with_live_objects_rejects_destroy,
    process_uses_given_pd,
    call_rejects_types_of_another_signature,
    calls_have_up_to_sixteen_arguments,
    call_results_of_every_width_are_exact,
    slow_call_times_out_and_process_continues,
    memcpy_works_in_every_host_heap_direction,
    copy_outside_heap_is_rejected,
    alignment_is_power_of_two_from_64,
    heap_info_tracks_allocations_and_drops,
    buffer_with_mkey_rejects_free,
    recoverable_buffer_is_copied_back_on_free,
    recoverable_buffer_length_is_power_of_two_blocks,
    early_event_starts_handler_at_run,
    event_handler_has_id_storage_and_name,
    window_gives_program_access_to_host_memory,
    fatal_error_is_reported_by_every_operation,
    outbox_uses_process_or_given_uar,
);

fn failed<T>(what: &str, outcome: Result<T, Error>, with: &str) -> Result<(), Stop> {
    match outcome {
        Err(error) if error.to_string().contains(with) => {
            ensure_eq!(error.status(), Status::Failed, "the status of: {error}");
            Ok(())
        }
        Err(error) => Err(Stop::fail(format!("{what} failed with {error}, not with {with}"))),
        Ok(_) => Err(Stop::fail(format!("{what} was not refused"))),
    }
}

fn fatal<T>(what: &str, outcome: Result<T, Error>) -> Result<(), Stop> {
    match outcome {
        Err(Error::Fatal(DpaStatus(200))) => Ok(()),
        Err(error) => Err(Stop::fail(format!("{what} failed with {error}"))),
        Ok(_) => Err(Stop::fail(format!("{what} worked in a process that has ended"))),
    }
}

fn process_with_live_objects_rejects_destroy(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = Rig::new(lab)?;
    let buffer = process.alloc(100)?;
    failed("a process with a buffer", process.clone().destroy(), "in use")?;
    // The process was not destroyed.
    ensure_eq!(process.call(add(), (1, 2))?, 3, "the sum");
    buffer.free()?;
    let window = Window::create(&process, process.pd())?;
    window.destroy()?;
    Ok(process.destroy()?)
}

fn process_uses_given_pd(lab: &Lab) -> Result<(), Stop> {
    let device = lab.device()?;
    let pd = device.alloc_pd()?;
    let config = ProcessConfig { pd: Some(pd.clone()), name: "named".into(), ..<_>::default() };
    let process = Process::create(&device, &rig::app()?, &config)?;
    ensure_eq!(process.pd().pdn(), pd.pdn(), "the protection domain");
    ensure_eq!(process.name(), "named", "the name");
    let other = Process::create(&device, &rig::app()?, &ProcessConfig::default())?;
    ensure!(other.pd().pdn() != pd.pdn(), "a process without one got that of another");
    ensure!(other.dumem_id() != process.dumem_id(), "two heaps are one UMEM");
    let config = ProcessConfig { congestion_control: true, ..ProcessConfig::default() };
    failed("congestion control", Process::create(&device, &rig::app()?, &config), "en_pcc")
}

fn call_rejects_types_of_another_signature(lab: &Lab) -> Result<(), Stop> {
    type Widths = (i8, u16, bool, i32, u64, i64, usize, u8);
    let Rig { process } = Rig::new(lab)?;
    let widths = Function::<Widths, i64>::named("widths");
    let sum = process.call(widths, (-3, 300, true, -40_000, 5, -6, 7, 255))?;
    ensure_eq!(sum, -3 + 300 + 1 - 40_000 + 5 - 6 + 7 + 255, "the sum of eight widths");
    ensure_eq!(process.call(add(), (u64::MAX, 1))?, 0, "a sum that wraps");
    process.call(Function::<(), ()>::named("nothing"), ())?;
    let wrong = Function::<(u64,), u64>::named("add");
    failed("a call with other types", process.call(wrong, (1,)), "add(u64,u32)->u64")
}

fn calls_have_up_to_sixteen_arguments(lab: &Lab) -> Result<(), Stop> {
    type Sixteen = (i8, u8, i16, u16, i32, u32, i64, bool, i8, u8, i16, u16, i32, u32, i64, bool);
    let Rig { process } = Rig::new(lab)?;
    let sixteen = || Function::<Sixteen, i64>::named("sixteen");
    let given = (-1, 2, -3, 4, -5, 6, -7, true, -9, 10, -11, 12, -13, 14, -15, true);
    // The sum of 1 * -1, 2 * 2 and so on, of 8 * 1 and of 16 * 1.
    let expected = (1..=16_i64).map(|at| match at {
        8 | 16 => at,
        at if at % 2 == 1 => -at * at,
        at => at * at,
    });
    ensure_eq!(process.call(sixteen(), given)?, expected.sum::<i64>(), "sixteen arguments");
    let info = process.app().function_info("sixteen");
    ensure_eq!(info.and_then(|it| it.packed), Some(128), "bytes of its buffer");
    Ok(())
}

fn call_results_of_every_width_are_exact(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = Rig::new(lab)?;
    macro_rules! each {
        ($($name:ident $word:ident)*) => {$({
            let middle = $word::MAX / 3;
            for value in [$word::MIN, 0, 1, middle, middle.wrapping_mul(2), $word::MAX] {
                let next = Function::<($word,), $word>::named(stringify!($name));
                let expected = value.wrapping_add(1);
                ensure_eq!(process.call(next, (value,))?, expected, "what follows {value}");
            }
        })*};
    }
    each! {
        next_u8 u8 next_u16 u16 next_u32 u32 next_u64 u64 next_usize usize
        next_i8 i8 next_i16 i16 next_i32 i32 next_i64 i64 next_isize isize
    }
    for value in [false, true] {
        let not = Function::<(bool,), bool>::named("not");
        ensure_eq!(process.call(not, (value,))?, !value, "bytes other than {value}");
    }
    Ok(())
}

fn slow_call_times_out_and_process_continues(lab: &Lab) -> Result<(), Stop> {
    let timeout = std::time::Duration::from_millis(50);
    let Rig { process } = Rig::with(lab, &ProcessConfig { timeout, ..ProcessConfig::default() })?;
    let wait_for = Function::<(u64,), ()>::named("wait_for");
    match process.call(wait_for, (1,)) {
        Err(error @ Error::Timeout(after)) => {
            ensure_eq!((error.status(), after), (Status::Timeout, timeout), "the error");
        }
        other => return Err(Stop::fail(format!("a call without an end: {other:?}"))),
    }
    ensure_eq!(process.call(add(), (40, 2))?, 42, "a call after the timeout");
    Ok(())
}

fn memcpy_works_in_every_host_heap_direction(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = Rig::new(lab)?;
    // Longer than one request of the copies.
    let bytes = pattern(3, 150_001);
    let first = process.alloc_from(&bytes)?;
    let second = process.alloc(bytes.len() as u64)?;
    let length = bytes.len() as u64;
    let mut back = vec![0; bytes.len()];
    process.memcpy(Source::Dpa(first.address()), Destination::Dpa(second.address()), length)?;
    process.memcpy(Source::Dpa(second.address()), Destination::Host(&mut back), length)?;
    ensure!(back == bytes, "host to heap to heap to host changed the bytes");
    process.memcpy(Source::Host(&bytes[1..]), Destination::Dpa(second.address() + 7), 90_000)?;
    second.read_at(6, &mut back[..90_002])?;
    ensure_eq!(
        (back[0], back[90_001]),
        (bytes[6], bytes[90_007]),
        "bytes before and after the copy"
    );
    ensure!(back[1..90_001] == bytes[1..90_001], "a copy at an odd address changed the bytes");
    let mut host = [0; 5];
    process.memcpy(Source::Host(&bytes), Destination::Host(&mut host), 4)?;
    ensure_eq!(host, [bytes[0], bytes[1], bytes[2], bytes[3], 0], "host to host");
    first.fill(0xa5)?;
    first.read_at(0, &mut back)?;
    ensure!(back.iter().all(|&byte| byte == 0xa5), "a byte was not set");
    // The process reads the same bytes.
    second.write_at(0, &0x1234_5678_9abc_def0_u64.to_le_bytes())?;
    let seen = process.call(Function::<(u64,), u64>::named("load"), (second.address(),))?;
    ensure_eq!(seen, 0x1234_5678_9abc_def0, "the process's load");
    let within = |to| process.memcpy(Source::Dpa(first.address()), Destination::Dpa(to), 100);
    failed("a copy onto itself", within(first.address() + 99), "overlap")
}

fn copy_outside_heap_is_rejected(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = Rig::new(lab)?;
    let info = process.heap_info();
    let end = info.base + info.size;
    failed("a write past the heap", process.write(end - 3, &[0; 4]), "not in the heap")?;
    failed("a read before the heap", process.read(info.base - 1, &mut [0; 4]), "not in the heap")?;
    failed(
        "a fill of one byte more than the heap",
        process.fill(info.base, info.size + 1, 0),
        "heap",
    )?;
    failed("a fill to the end of all", process.fill(info.base, u64::MAX, 0), "heap")?;
    let buffer = process.alloc(16)?;
    failed("a write past a buffer", buffer.write_at(9, &[0; 8]), "buffer of 16 bytes")?;
    let short = process.memcpy(Source::Host(&[1, 2]), Destination::Dpa(buffer.address()), 3);
    failed("a copy of more than a slice has", short, "slice of 2 bytes")
}

fn alignment_is_power_of_two_from_64(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = Rig::new(lab)?;
    for alignment in [64, 128, 4096, 65536] {
        let first = process.alloc_aligned(1, alignment)?;
        let second = process.alloc_aligned(100, alignment)?;
        for buffer in [&first, &second] {
            ensure_eq!(buffer.address() % alignment, 0, "an address of alignment {alignment}");
        }
        ensure!(first.address() != second.address(), "two buffers at one address");
    }
    for alignment in [0, 1, 32, 63, 65, 96, 192] {
        let refused = process.alloc_aligned(64, alignment);
        failed(&format!("an alignment of {alignment}"), refused, "power of two")?;
    }
    Ok(())
}

fn heap_info_tracks_allocations_and_drops(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } =
        Rig::with(lab, &ProcessConfig { heap: 10_000, ..ProcessConfig::default() })?;
    let empty = process.heap_info();
    ensure_eq!((empty.size, empty.requested, empty.allocated), (12_288, 0, 0), "a new heap");
    let buffers = [process.alloc(1)?, process.alloc(100)?, process.alloc(0)?];
    let info = process.heap_info();
    ensure_eq!((info.requested, info.allocated), (101, 64 + 128 + 64), "three buffers");
    ensure!(buffers[2].is_empty() && buffers[2].address() != 0, "a buffer of no bytes");
    failed("an allocation larger than the heap", process.alloc(12_288), "ProcessConfig::heap")?;
    drop(buffers);
    ensure_eq!(process.heap_info(), empty, "the heap after all were dropped");
    let all = process.alloc(12_288)?;
    ensure_eq!(all.address(), empty.base, "all of the heap");
    Ok(())
}

fn buffer_with_mkey_rejects_free(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = Rig::new(lab)?;
    let buffer = process.alloc(4096)?;
    let key = Mkey::create(&buffer, &MkeyConfig::new(KeyAccess::ALL))?;
    ensure_eq!(key.id().0, key.lkey().0, "the number");
    ensure_eq!(
        (key.remote().address, key.len()),
        (buffer.address(), 4096),
        "the memory of the mkey"
    );
    failed("to free it", buffer.free(), "in use")?;
    ensure_eq!(process.heap_info().requested, 4096, "bytes allocated while the key exists");
    ensure_eq!(key.object().query()?.pd(), process.pd().pdn(), "the PD of the mkey");
    key.destroy()?;
    ensure_eq!(process.heap_info().requested, 0, "bytes after the key");
    let pd = process.device().alloc_pd()?;
    let config = MkeyConfig { pd: Some(pd.clone()), ..MkeyConfig::new(KeyAccess::LOCAL) };
    let key = Mkey::to_range(&process, process.heap_info().base, 64, &config)?;
    ensure_eq!(key.object().query()?.pd(), pd.pdn(), "the protection domain that is given");
    drop(key);
    let range =
        |at, length| Mkey::to_range(&process, at, length, &MkeyConfig::new(KeyAccess::LOCAL));
    let info = process.heap_info();
    range(info.base, info.size)?.destroy()?;
    failed("a key past the heap", range(info.base + 64, info.size), "not in the heap")?;
    let queue = process.alloc(8192)?;
    let memory = QueueMemory::at(&queue, 4096);
    ensure_eq!(memory.address(), queue.address() + 4096, "the address of a queue");
    ensure_eq!(
        memory.umem_offset(),
        (process.dumem_id(), queue.address() + 4096 - info.base),
        "UMEM and offset"
    );
    failed("a buffer that a queue lies in", queue.free(), "in use")
}

fn recoverable_buffer_is_copied_back_on_free(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let length = 2 * MEMORY_BLOCK as usize;
    for ends in [false, true] {
        let region = rig.region(length)?;
        let buffer = rig.process.alloc_recoverable(length as u64, &region)?;
        let bytes = pattern(9 + u8::from(ends), length);
        buffer.write_at(0, &bytes)?;
        let mut back = vec![0; length];
        region.read_at(0, &mut back)?;
        ensure!(back.iter().all(|&byte| byte == 0), "the host buffer changed before the free");
        if ends {
            fatal("a call that ends its process", rig.process.call(ends_with(), (200,)))?;
        }
        buffer.free()?;
        region.read_at(0, &mut back)?;
        ensure!(back == bytes, "the copied bytes differ (ended: {ends})");
    }
    Ok(())
}

fn recoverable_buffer_length_is_power_of_two_blocks(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    for blocks in [1, 2, 4] {
        let length = blocks * MEMORY_BLOCK;
        rig.process.alloc_recoverable(length, &rig.region(length as usize)?)?.free()?;
    }
    for length in [0, 64, MEMORY_BLOCK + 64, 3 * MEMORY_BLOCK] {
        let region = rig.region(MEMORY_BLOCK as usize)?;
        let refused = rig.process.alloc_recoverable(length, &region);
        failed(&format!("{length} bytes"), refused, "power of two")?;
    }
    let region = rig.region(MEMORY_BLOCK as usize)?;
    let refused = rig.process.alloc_recoverable(2 * MEMORY_BLOCK, &region);
    failed("a shorter region", refused, "must have the same length")
}

fn early_event_starts_handler_at_run(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let at = rig.process.alloc_from(&[0; 8])?;
    let config = EventHandlerConfig {
        continuable: true,
        argument: 1,
        ..EventHandlerConfig::new(Handler::named("continues"))
    };
    let handler = EventHandler::create(&rig.process, &config)?;
    rig.activate(&handler)?;
    quiet("a run in the init state", || handler.query().ok().filter(|it| it.runs != 0))?;
    handler.run(at.address())?;
    let ran = || handler.query().ok().filter(|it| it.runs == 1 && it.state == DpaThreadState::IDLE);
    let info = until("the run of the event before", ran)?;
    ensure_eq!(info.events, 1, "events that counted");
    let mut count = [0; 8];
    at.read_at(0, &mut count)?;
    ensure_eq!(u64::from_le_bytes(count), 1, "the thread's count at the argument of run()");
    Ok(())
}

fn event_handler_has_id_storage_and_name(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let first = rig.handler("drain")?;
    let storage = rig.process.alloc(64)?;
    let config = EventHandlerConfig {
        storage: Some(storage.clone()),
        name: "worker".into(),
        ..EventHandlerConfig::new(Handler::named("drain"))
    };
    let second = EventHandler::create(&rig.process, &config)?;
    // 0 is the number of a thread that has none.
    ensure_eq!((first.id().0, second.id().0), (1, 2), "numbers in the process");
    ensure!(first.activation_id() != second.activation_id(), "two threads of one number");
    ensure_eq!(second.name(), "worker", "the name");
    failed("to free the thread's storage", storage.free(), "in use")?;
    let missing = EventHandlerConfig::new(Handler::named("add"));
    failed("an RPC as a handler", EventHandler::create(&rig.process, &missing), "event handler")?;
    second.destroy()?;
    failed("a handler with a clone", first.clone().destroy(), "in use")
}

fn window_gives_program_access_to_host_memory(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let window = Window::create(&rig.process, rig.process.pd())?;
    let region = rig.region(4096)?;
    let mut bytes = pattern(8, 4096);
    bytes[8..16].copy_from_slice(&77_u64.to_le_bytes());
    region.write_at(0, &bytes)?;
    let (key, at) = (region.lkey().0, region.address());
    let other = lab.device()?.alloc_pd()?;
    failed("a domain of another context", Window::create(&rig.process, &other), "another context")?;
    let seen = rig.process.call(peek(), (window.id().0, key, at + 8))?;
    ensure_eq!(seen, 77, "the program's read");
    // One word to the host, and bytes of the host to another host address.
    let attr = RpcAttr { windows: [Some(window.clone()), None], ..RpcAttr::default() };
    let poke = Function::<(u32, u64, u64), u64>::named("poke");
    let word = 0x0102_0304_0506_0708_u64;
    ensure_eq!(rig.process.call_with_attr(&attr, poke, (key, at + 16, word))?, 0, "status");
    let copy = Function::<(bool, u32, u64, u64, usize), u64>::named("copy");
    let arguments = (false, key, at + 101, at + 3001, 333);
    ensure_eq!(rig.process.call_with_attr(&attr, copy, arguments)?, 0, "status of a copy");
    bytes[16..24].copy_from_slice(&word.to_le_bytes());
    bytes.copy_within(101..101 + 333, 3001);
    let mut host = vec![0; 4096];
    region.read_at(0, &mut host)?;
    ensure!(host == bytes, "the host sees other bytes than the program has written");
    // An access past the end of the key ends the process: a read here, a write in another one.
    window_fault("a read", rig.process.call(peek(), (window.id().0, key, at + 4096)))?;
    let rig = Rig::new(lab)?;
    let region = rig.region(4096)?;
    region.write_at(0, &bytes)?;
    let window = Window::create(&rig.process, rig.process.pd())?;
    let attr = RpcAttr { windows: [Some(window), None], ..RpcAttr::default() };
    let poke = Function::<(u32, u64, u64), u64>::named("poke");
    let arguments = (region.lkey().0, region.address() + 4096, u64::MAX);
    window_fault("a write", rig.process.call_with_attr(&attr, poke, arguments))?;
    region.read_at(0, &mut host)?;
    ensure!(host == bytes, "a write past the key has changed the key's memory");
    Ok(())
}

fn peek() -> Function<(u16, u32, u64), u64> {
    Function::named("peek")
}

/// Expects the call to end with a fault because it left the range of its window's key.
fn window_fault(what: &str, outcome: Result<u64, Error>) -> Result<(), Stop> {
    match outcome {
        Err(Error::Fatal(DpaStatus(status))) if status == DpaFault::WINDOW.0 => Ok(()),
        other => Err(Stop::fail(format!("{what} past the key: {other:?}"))),
    }
}

fn fatal_error_is_reported_by_every_operation(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let process = &rig.process;
    let buffer = process.alloc_from(&[1; 100])?;
    let handler = rig.handler("drain")?;
    let (outbox, window) = (rig.outbox()?, Window::create(process, process.pd())?);
    let (other, uar, region) = (lab.device()?, process.uar(), rig.region(MEMORY_BLOCK as usize)?);
    let polled = DpaCqConfig::new(4, CqElement::NonDpa { vector: 0 });
    let cq = DpaCq::create(process, &polled)?;
    let mut qp = DpaQp::create(process, &DpaQpConfig::rc(&cq, &cq, 4))?;
    let options = ConnectOptions::default();
    let itself = qp.address(&options)?;
    let stream =
        MsgStream::create(process, &MsgStreamConfig::new("shown"), Output::lines(std::io::sink()))?;
    ensure!(process.status()?.status.runs(), "the process has ended too early");
    fatal("the call that ends it", process.call(ends_with(), (200,)))?;
    fatal("a call", process.call(add(), (1, 2)))?;
    fatal("an allocation", process.alloc(1))?;
    fatal("an aligned one", process.alloc_aligned(1, 4096))?;
    fatal("a recoverable one", process.alloc_recoverable(MEMORY_BLOCK, &region))?;
    fatal("one with bytes", process.alloc_from(&[1]))?;
    fatal("a copy", buffer.write_at(0, &[2]))?;
    let (from, to) = (Source::Dpa(buffer.address()), Destination::Dpa(buffer.address() + 64));
    fatal("a copy in the heap", process.memcpy(from, to, 8))?;
    let mut bytes = [0; 8];
    let (from, to) = (Source::Dpa(buffer.address()), Destination::Host(&mut bytes));
    fatal("a copy to the host", process.memcpy(from, to, 8))?;
    let (from, to) = (Source::Host(&[1; 8]), Destination::Dpa(buffer.address()));
    fatal("a copy to the heap", process.memcpy(from, to, 8))?;
    let (from, to) = (Source::Host(&[1; 8]), Destination::Host(&mut bytes));
    fatal("a copy on the host", process.memcpy(from, to, 8))?;
    fatal("a copy back", buffer.read_at(0, &mut [0]))?;
    fatal("a fill", buffer.fill(0))?;
    fatal("an event handler", rig.handler("drain"))?;
    fatal("a run", handler.run(0))?;
    fatal("an outbox", Outbox::create(process, &OutboxConfig::default()))?;
    fatal("a window", Window::create(process, process.pd()))?;
    fatal("a UAR", Uar::create(process))?;
    fatal("an extended UAR", uar.extend(&other))?;
    fatal("a CQ", DpaCq::create(process, &polled))?;
    fatal("a pool", Rmp::create(process, &RmpConfig::new(3)))?;
    fatal("a queue pair", DpaQp::create(process, &DpaQpConfig::rc(&cq, &cq, 4)))?;
    fatal("a connection", qp.connect(&itself, &options))?;
    let init = QpAttr { next_state: QpState::Init, ..QpAttr::default() };
    fatal("a transition", qp.modify(&init, &QpAttrMask::default()))?;
    fatal("moderation", cq.modify_moderation(CqModeration::default()))?;
    fatal("a call with attributes", process.call_with_attr(&RpcAttr::default(), add(), (1, 2)))?;
    fatal("a level", stream.set_level(Level::Debug))?;
    fatal("a key", Mkey::create(&buffer, &MkeyConfig::new(KeyAccess::LOCAL)))?;
    let info = process.status()?;
    ensure_eq!(info.status, DpaStatus(200), "the status");
    ensure!(info.crash.is_some_and(|crash| crash.in_call), "no word of the call that ended it");
    ensure_eq!(qp.state()?, QpState::Rst, "the state of the QP");
    ensure_eq!(cq.query_moderation()?, CqModeration::default(), "the CQ's moderation");
    stream.flush()?;
    stream.destroy()?;
    qp.destroy()?;
    cq.destroy()?;
    drop(uar);
    handler.destroy()?;
    outbox.destroy()?;
    window.destroy()?;
    Buffer::free(buffer)?;
    Ok(rig.process.destroy()?)
}

fn outbox_uses_process_or_given_uar(lab: &Lab) -> Result<(), Stop> {
    let rig = Rig::new(lab)?;
    let own = Uar::create(&rig.process)?;
    ensure!(own.id() != rig.process.uar().id(), "a new UAR is the process's");
    let config = OutboxConfig { uar: Some(own.clone()), ..OutboxConfig::default() };
    let (first, second) = (rig.outbox()?, Outbox::create(&rig.process, &config)?);
    ensure_eq!(first.uar().id(), rig.process.uar().id(), "the UAR without a choice");
    ensure_eq!(second.uar().id(), own.id(), "the UAR that was chosen");
    ensure!(first.id() != second.id(), "two outboxes of one number");
    // Of a page of DevX, as in 2022.
    let page = Arc::new(rig.process.device().uar_alloc(UarKind::NonCached)?);
    let config =
        OutboxConfig { uar: Some(Uar::of(&rig.process, page.clone())), ..OutboxConfig::default() };
    let third = Outbox::create(&rig.process, &config)?;
    ensure_eq!(third.uar().id().0, page.page_id(), "the UAR of the given page");
    let page = Arc::new(lab.device()?.uar_alloc(UarKind::NonCached)?);
    let config = OutboxConfig { uar: Some(Uar::of(&rig.process, page)), ..OutboxConfig::default() };
    failed("a page of another context", Outbox::create(&rig.process, &config), "another device")?;
    let config = OutboxConfig { congestion_control: true, ..OutboxConfig::default() };
    failed("congestion control", Outbox::create(&rig.process, &config), "not supported")
}
