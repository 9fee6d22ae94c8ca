//! Message streams: a compiled program's prints and traces reach the host by every transport,
//! losses are counted, and a fatal error loses no earlier message.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use verbless_command::{Affinity, DpaCallState, DpaEntry, DpaStatus, DpaThreadState};
use verbless_flexio::stream::report::MsgBinReport;
use verbless_flexio::stream::{
    Level, Message, MsgStream, MsgSyncMode, MsgTransport, Output, StreamLosses, deprecated,
};
use verbless_flexio::{
    Cmdq, CmdqConfig, Error, EventHandler, EventHandlerConfig, Function, Handler, MsgStreamConfig,
    Process, ProcessConfig, RpcAttr, Status,
};
use verbless_flexio_dev::stream::control::{self, Setup};
use verbless_flexio_dev::stream::entry::{LOG_TEXT_ENTRY_BYTES, TEXT_ENTRY_BYTES};
use verbless_flexio_dev::stream::table::{FAILED, first_argument, operation};
use verbless_prm::DpaFault;

use super::rig::{Rig, add, ends_with};
use super::{failed, fatal};
use crate::case::cases;
use crate::endpoint::quiet;
use crate::need::cap;
use crate::{Lab, Need, Stop, ensure, ensure_eq, until};

cases!(
    "flexio_streams",
    "FlexIO's message streams: every transport and mode, levels, losses, fatal errors.",
    needs [Need::DpaLayouts, cap!(apu), Need::DpaProgram]:
    messages_arrive_in_order_on_each_transport,
    batch_mode_delivers_without_flush,
    large_buffer_holds_messages_until_flush,
    stream_calls_time_out_without_free_eu,
    concurrent_messages_arrive_whole,
    async_mode_delivers_on_flush,
    stream_without_thread_is_polled,
    messages_lost_to_slow_host_are_counted,
    default_stream_is_unique_and_stays_at_info,
    extra_stream_filters_by_its_level,
    broadcast_reaches_every_stream,
    stream_rejects_host_of_another_version,
    qp_numbers_are_absent_only_for_window,
    flush_after_panic_delivers_last_messages,
    ended_process_rejects_new_stream,
    stream_is_destroyed_with_messages_in_flight,
    aborted_message_holds_up_others_until_flush,
    stream_destroy_survives_aborted_event_handler,
    trace_records_are_formatted_by_host,
    flush_delivers_records_beyond_sq_room,
    deprecated_names_create_default_stream,
    binary_messages_are_read_back,
);

const TRANSPORTS: [MsgTransport; 4] =
    [MsgTransport::Rc, MsgTransport::Window, MsgTransport::Uc, MsgTransport::Ud];

/// The messages that a stream has delivered.
#[derive(Clone, Default)]
pub(super) struct Seen(Arc<Mutex<Vec<Message>>>);

impl Seen {
    pub(super) fn output(&self) -> Output {
        let seen = self.0.clone();
        Output::messages(move |message| seen.lock().expect("no panic").push(message.clone()))
    }

    fn all(&self) -> Vec<Message> {
        self.0.lock().expect("no panic").clone()
    }

    pub(super) fn texts(&self) -> Vec<String> {
        self.all().into_iter().map(|message| message.text).collect()
    }

    fn count(&self, count: usize) -> Option<()> {
        (self.0.lock().expect("no panic").len() >= count).then_some(())
    }
}

/// Writes numbered messages to a stream, each with `bytes` more bytes; returns how many it wrote.
fn says_to() -> Function<(u8, u64, usize), u64> {
    Function::named("says_to")
}

/// Writes a message without a terminator to a stream.
fn says_without_end() -> Function<(u8,), ()> {
    Function::named("says_without_end")
}

fn says() -> Function<(u64,), usize> {
    Function::named("says")
}

/// The messages of [`says_to`].
fn numbered_texts(times: u64, bytes: usize) -> Vec<String> {
    (0..times).map(|n| format!("{n} {}", "x".repeat(bytes))).collect()
}

fn stream(
    process: &Process,
    change: impl FnOnce(&mut MsgStreamConfig),
) -> Result<(MsgStream, Seen), Stop> {
    let seen = Seen::default();
    let mut config = MsgStreamConfig::new("shown");
    change(&mut config);
    Ok((MsgStream::create(process, &config, seen.output())?, seen))
}

fn messages_arrive_in_order_on_each_transport(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = Rig::new(lab)?;
    let before = process.heap_info();
    for transport in TRANSPORTS {
        let (stream, seen) = stream(&process, |config| {
            (config.transport, config.buffer) = (transport, 64 << 10);
        })?;
        ensure!(stream.id().0 != 0, "an extra stream has the default one's number");
        let thread = stream.thread().and_then(|thread| thread.name()).map(str::to_owned);
        ensure_eq!(thread, Some(format!("dpa stream {}", stream.id())), "the reading thread");
        let mut expected = Vec::new();
        for (times, bytes) in [(3, 0), (40, 10), (5, 230), (4, 1000), (1, 9000)] {
            let written = process.call(says_to(), (stream.id().0, times, bytes))?;
            ensure_eq!(written, times, "messages of {bytes} bytes written by {transport:?}");
            expected.extend(numbered_texts(times, bytes));
        }
        // The stream's thread delivers them.
        until("all messages", || seen.count(expected.len()))?;
        ensure_eq!(seen.texts(), expected, "messages by {transport:?}");
        ensure!(seen.all().iter().all(|it| it.level == Some(Level::Info)), "levels");
        ensure_eq!(stream.lost()?, StreamLosses::default(), "lost by {transport:?}");
        stream.destroy()?;
        ensure_eq!(process.heap_info(), before, "the heap after the stream by {transport:?}");
    }
    Ok(())
}

fn large_buffer_holds_messages_until_flush(lab: &Lab) -> Result<(), Stop> {
    const BUFFER: u32 = 2 << 20;
    // Each takes 256 bytes: more than a megabyte.
    const MESSAGES: u64 = 4200;
    let config =
        ProcessConfig { heap: 8 << 20, timeout: Duration::from_secs(60), ..<_>::default() };
    let Rig { process } = Rig::with(lab, &config)?;
    let before = process.heap_info();
    let (stream, seen) = stream(&process, |config| {
        (config.buffer, config.sync_mode) = (BUFFER, MsgSyncMode::Async);
    })?;
    let written = process.call(says_to(), (stream.id().0, MESSAGES, 0))?;
    ensure_eq!(written, MESSAGES, "messages written");
    stream.flush()?;
    ensure!(seen.texts() == numbered_texts(MESSAGES, 0), "delivered messages");
    ensure_eq!(stream.lost()?, StreamLosses::default(), "lost");
    stream.destroy()?;
    ensure_eq!(process.heap_info(), before, "the heap after the stream");
    Ok(())
}

/// An EU that a polling thread of the process occupies until the handler is destroyed.
fn taken_unit(rig: &Rig, unit: u16) -> Result<EventHandler, Stop> {
    let config = EventHandlerConfig {
        polling: true,
        affinity: Affinity::Strict(unit),
        ..EventHandlerConfig::new(Handler::named("polls"))
    };
    let polls = EventHandler::create(&rig.process, &config)?;
    polls.run(0)?;
    rig.activate(&polls)?;
    let running = || polls.query().ok().filter(|it| it.state == DpaThreadState::RUNNING);
    until("the polling run", running)?;
    Ok(polls)
}

fn stream_calls_time_out_without_free_eu(lab: &Lab) -> Result<(), Stop> {
    const UNIT: u16 = 5;
    let timeout = Duration::from_millis(100);
    let rig = Rig::with(lab, &ProcessConfig { timeout, ..ProcessConfig::default() })?;
    let process = &rig.process;
    let there = |config: &mut MsgStreamConfig| config.affinity = Affinity::Strict(UNIT);
    let timed_out = |what: &str, outcome: Result<(), Error>, begun: Instant| match outcome {
        Err(error @ Error::Timeout(after)) => {
            ensure_eq!((error.status(), after), (Status::Timeout, timeout), "the error of {what}");
            ensure!(begun.elapsed() >= timeout, "{what} gave up after {:?}", begun.elapsed());
            Ok(())
        }
        other => Err(Stop::fail(format!("{what} without an EU: {other:?}"))),
    };
    let (shown, seen) = stream(process, there)?;
    let before = process.heap_info();
    let polls = taken_unit(&rig, UNIT)?;
    let taken = process.heap_info();
    let begun = Instant::now();
    let mut config = MsgStreamConfig::new("late");
    there(&mut config);
    let made = MsgStream::create(process, &config, Seen::default().output());
    timed_out("a new stream", made.map(drop), begun)?;
    ensure_eq!(process.heap_info(), taken, "the heap after a stream that was not made");
    let begun = Instant::now();
    timed_out("a level", shown.set_level(Level::Debug), begun)?;
    let begun = Instant::now();
    timed_out("a flush", shown.flush(), begun)?;
    // The process continues; the streams continue once the EU is free.
    ensure_eq!(process.call(add(), (40, 2))?, 42, "a call on another EU");
    ensure_eq!(process.call(says_to(), (shown.id().0, 3, 0))?, 3, "messages written");
    polls.destroy()?;
    shown.set_level(Level::Debug)?;
    shown.flush()?;
    ensure_eq!(seen.texts(), numbered_texts(3, 0), "messages");
    let (late, _) = stream(process, there)?;
    ensure_eq!(late.id().0, shown.id().0 + 1, "the number of a stream that was not made is free");
    late.destroy()?;
    ensure_eq!(process.heap_info(), before, "the heap at the end");
    shown.destroy()?;
    Ok(rig.process.destroy()?)
}

fn batch_mode_delivers_without_flush(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = Rig::new(lab)?;
    let (stream, seen) = stream(&process, |config| config.sync_mode = MsgSyncMode::Batch)?;
    ensure_eq!(process.call(says_to(), (stream.id().0, 5, 20))?, 5, "messages written");
    until("all messages without a flush", || seen.count(5))?;
    ensure_eq!(seen.texts(), numbered_texts(5, 20), "messages");
    Ok(stream.destroy()?)
}

fn concurrent_messages_arrive_whole(lab: &Lab) -> Result<(), Stop> {
    let (threads, each) = (lab.times(4, 16), lab.times(30, 1000));
    let timeout = Duration::from_secs(lab.times(10, 300));
    let Rig { process } = Rig::with(lab, &ProcessConfig { timeout, ..ProcessConfig::default() })?;
    for transport in TRANSPORTS {
        let (stream, seen) = stream(&process, |config| {
            (config.transport, config.buffer) = (transport, 8 << 10);
        })?;
        let write = || process.call(says_to(), (stream.id().0, each, 300));
        let written: u64 = std::thread::scope(|scope| {
            let all: Vec<_> = (0..threads).map(|_| scope.spawn(write)).collect();
            let counts = all.into_iter().map(|it| it.join().expect("no panic"));
            counts.sum::<Result<u64, _>>()
        })?;
        stream.flush()?;
        let texts = seen.texts();
        let lost = stream.lost()?;
        ensure_eq!(written + lost.without_room, threads * each, "written by {transport:?}");
        let reliable = matches!(transport, MsgTransport::Rc | MsgTransport::Window);
        if reliable {
            ensure_eq!(texts.len() as u64, written, "messages by {transport:?}");
            ensure_eq!((lost.undelivered, lost.damaged), (0, 0), "lost by {transport:?}");
        }
        let possible: std::collections::HashSet<_> =
            numbered_texts(each, 300).into_iter().collect();
        ensure!(texts.iter().all(|it| possible.contains(it)), "a message that was never written");
        stream.destroy()?;
    }
    Ok(())
}

fn async_mode_delivers_on_flush(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = Rig::new(lab)?;
    for transport in TRANSPORTS {
        let (stream, seen) = stream(&process, |config| {
            (config.transport, config.sync_mode) = (transport, MsgSyncMode::Async);
            config.buffer = 2 << 10;
        })?;
        ensure_eq!(process.call(says_to(), (stream.id().0, 6, 0))?, 6, "messages written");
        quiet("messages were delivered before the flush", || seen.count(1))?;
        stream.flush()?;
        ensure_eq!(seen.texts(), numbered_texts(6, 0), "messages by {transport:?}");
        stream.flush()?;
        ensure_eq!(seen.all().len(), 6, "messages after another flush");
        stream.destroy()?;
    }
    Ok(())
}

fn stream_without_thread_is_polled(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = Rig::new(lab)?;
    for transport in TRANSPORTS {
        let (stream, seen) = stream(&process, |config| {
            (config.transport, config.thread) = (transport, false);
        })?;
        ensure!(stream.thread().is_none(), "the library takes messages");
        ensure_eq!(stream.poll()?, 0, "messages before the first write");
        ensure_eq!(process.call(says_to(), (stream.id().0, 3, 0))?, 3, "messages written");
        let mut polled = 0;
        until("the messages", || {
            polled += stream.poll().ok()?;
            (polled == 3).then_some(())
        })?;
        ensure_eq!(seen.texts(), numbered_texts(3, 0), "messages by {transport:?}");
    }
    Ok(())
}

fn messages_lost_to_slow_host_are_counted(lab: &Lab) -> Result<(), Stop> {
    const TIMES: u64 = 60;
    let Rig { process } = Rig::new(lab)?;
    for transport in TRANSPORTS {
        // Eight segments on either side; a message takes two.
        let (stream, seen) = stream(&process, |config| {
            (config.transport, config.sync_mode) = (transport, MsgSyncMode::Async);
            config.buffer = 2 << 10;
        })?;
        let written = process.call(says_to(), (stream.id().0, TIMES, 300))?;
        ensure!(
            written < TIMES || matches!(transport, MsgTransport::Uc | MsgTransport::Ud),
            "room"
        );
        stream.flush()?;
        let lost = stream.lost()?;
        ensure_eq!(lost.without_room, TIMES - written, "lost for lack of room by {transport:?}");
        let texts = seen.texts();
        ensure!(texts.len() as u64 <= TIMES / 4, "{} messages by {transport:?}", texts.len());
        let possible = numbered_texts(TIMES, 300);
        ensure!(texts.iter().all(|it| possible.contains(it)), "a message that was never written");
        let segments = 2 * texts.len() as u64 + lost.undelivered + lost.damaged;
        if matches!(transport, MsgTransport::Rc | MsgTransport::Window) {
            ensure_eq!(texts.len() as u64, written, "messages delivered by {transport:?}");
            ensure_eq!((lost.undelivered, lost.damaged), (0, 0), "lost by {transport:?}");
        } else {
            ensure_eq!(segments, 2 * written, "segments delivered or lost by {transport:?}");
        }
        // The stream continues.
        ensure_eq!(process.call(says_to(), (stream.id().0, 2, 0))?, 2, "messages after that");
        stream.flush()?;
        let last = seen.texts().split_off(texts.len());
        ensure_eq!(
            last,
            numbered_texts(2, 0),
            "messages after those that were lost by {transport:?}"
        );
    }
    Ok(())
}

fn default_stream_is_unique_and_stays_at_info(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = Rig::new(lab)?;
    ensure_eq!(process.call(says(), (5,))?, 0, "bytes of messages without a stream");
    let seen = Seen::default();
    let config = MsgStreamConfig::default_stream();
    let create = || MsgStream::create(&process, &config, seen.output());
    let stream = create()?;
    ensure_eq!((stream.id().0, stream.name()), (0, "default stream"), "number and name");
    failed("another default stream", create(), "has a default stream")?;
    for level in [Level::None, Level::Debug, Level::Info] {
        failed("another level", stream.set_level(level), "stays Info")?;
    }
    let expected = ["number 5", "and 0x5", "a line"];
    let bytes = expected.concat().len();
    ensure_eq!(process.call(says(), (5,))?, bytes, "bytes of three messages");
    stream.flush()?;
    ensure_eq!(seen.texts(), expected, "messages");
    let levels: Vec<_> = seen.all().iter().map(|it| it.level).collect();
    let expected = [Level::Info, Level::Error, Level::Info].map(Some);
    ensure_eq!(levels, expected, "levels");
    stream.destroy()?;
    ensure_eq!(process.call(says(), (5,))?, 0, "bytes written after the stream's end");
    create()?.destroy()?;
    Ok(())
}

fn extra_stream_filters_by_its_level(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = Rig::new(lab)?;
    let (stream, _) = stream(&process, |config| config.level = Level::Error)?;
    let written = || process.call(says_to(), (stream.id().0, 1, 0));
    ensure_eq!(written()?, 0, "information by a stream of errors");
    stream.set_level(Level::Debug)?;
    ensure_eq!(written()?, 1, "information written at level Debug");
    stream.set_level(Level::None)?;
    ensure_eq!(written()?, 0, "information written at level None");
    failed("the level of messages", stream.set_level(Level::Always), "Always")
}

fn broadcast_reaches_every_stream(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = Rig::new(lab)?;
    let default = Seen::default();
    let config = MsgStreamConfig::default_stream();
    let first = MsgStream::create(&process, &config, default.output())?;
    let others = [MsgTransport::Window, MsgTransport::Ud]
        .map(|transport| stream(&process, |config| config.transport = transport));
    let written = process.call(Function::<(), u64>::named("says_by_level"), ())?;
    ensure_eq!(written, 0b101_0111, "the messages that return bytes: not debug, and not none");
    first.flush()?;
    let expected = ["error", "warning", "info", "always", "to all"];
    ensure_eq!(default.texts(), expected, "messages of the default stream");
    let levels: Vec<_> = default.all().iter().take(4).map(|it| it.level).collect();
    let expected = [Level::Error, Level::Warn, Level::Info, Level::Always].map(Some);
    ensure_eq!(levels, expected, "the levels of the macros");
    for other in others {
        let (stream, seen) = other?;
        stream.flush()?;
        let id = stream.id();
        ensure_eq!(seen.texts(), ["to all"], "messages of stream {id}");
    }
    Ok(())
}

fn stream_rejects_host_of_another_version(lab: &Lab) -> Result<(), Stop> {
    const NUMBER: u64 = 5;
    let process = Rig::new(lab)?.process;
    let manager = process.app().symbol("verbless_stream");
    let manager = manager.ok_or_else(|| Stop::fail("the program has no streams"))?;
    let ring = process.alloc_aligned(4 * TEXT_ENTRY_BYTES as u64, 64)?;
    let block = process.alloc_aligned(control::BYTES as u64, 64)?;
    let ask = |operation| -> Result<u64, Stop> {
        let words = [first_argument(operation, 4), NUMBER, block.address(), 0, 0, 0, 0, 0];
        let entry = DpaEntry::at(manager);
        let call = process.device().begin_dpa_call(process.object(), &entry, words)?;
        until("the answer", || match call.state().ok()? {
            DpaCallState::Returned(word) => Some(word),
            _ => None,
        })
    };
    for version in [control::VERSION - 1, control::VERSION + 1] {
        let setup = Setup::new(ring.address(), 2, LOG_TEXT_ENTRY_BYTES);
        block.write_at(0, &Setup { version, ..setup }.to_bytes())?;
        ensure_eq!(ask(operation::ATTACH)?, FAILED, "attaching a stream of version {version}");
    }
    block.write_at(0, &Setup::new(ring.address(), 2, LOG_TEXT_ENTRY_BYTES).to_bytes())?;
    ensure_eq!(ask(operation::ATTACH)?, 0, "to attach a host of this version");
    ensure_eq!(ask(operation::DETACH)?, 0, "users after the detach");
    Ok(())
}

fn qp_numbers_are_absent_only_for_window(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = Rig::new(lab)?;
    let mut numbers = Vec::new();
    for transport in TRANSPORTS {
        let (stream, _) = stream(&process, |config| config.transport = transport)?;
        match (transport, stream.qp_numbers()) {
            (MsgTransport::Window, None) => {}
            (_, Some((host, program))) => numbers.extend([host, program]),
            (_, None) => return Err(Stop::fail(format!("no queue pairs by {transport:?}"))),
        }
    }
    ensure!(numbers.len() == 6 && !numbers.contains(&0), "numbers of queue pairs: {numbers:?}");
    ensure!(numbers.chunks(2).all(|pair| pair[0] != pair[1]), "one queue pair for both sides");
    Ok(())
}

fn flush_after_panic_delivers_last_messages(lab: &Lab) -> Result<(), Stop> {
    for transport in TRANSPORTS {
        for sync_mode in [MsgSyncMode::Sync, MsgSyncMode::Async] {
            let Rig { process } = Rig::new(lab)?;
            let seen = Seen::default();
            let config =
                MsgStreamConfig { transport, sync_mode, ..MsgStreamConfig::default_stream() };
            let stream = MsgStream::create(&process, &config, seen.output())?;
            process.call(says(), (7,))?;
            match process.call(Function::<(usize,), u8>::named("panics"), (3,)) {
                Err(Error::Fatal(DpaStatus(status))) if status == DpaFault::PANIC.0 => {}
                other => return Err(Stop::fail(format!("a call that panics: {other:?}"))),
            }
            stream.flush()?;
            let texts = seen.texts();
            ensure_eq!(texts.len(), 4, "messages by {transport:?}: {texts:?}");
            ensure_eq!(
                texts[..3],
                ["number 7", "and 0x7", "a line"],
                "messages before the unterminated one"
            );
            let panic = &texts[3];
            ensure!(panic.contains("main.rs:"), "the panic has no location: {panic:?}");
            ensure!(panic.contains("the len is 3"), "the panic's message: {panic:?}");
            stream.flush()?;
            ensure_eq!(seen.all().len(), 4, "messages after another flush");
            ensure!(stream.set_level(Level::Debug).is_err(), "a level after the end");
            stream.destroy()?;
            process.destroy()?;
        }
    }
    Ok(())
}

fn ended_process_rejects_new_stream(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = Rig::new(lab)?;
    fatal("the call", process.call(ends_with(), (200,)))?;
    for transport in TRANSPORTS {
        let config = MsgStreamConfig { transport, ..MsgStreamConfig::new("late") };
        fatal("a new stream", MsgStream::create(&process, &config, Seen::default().output()))?;
    }
    Ok(process.destroy()?)
}

fn stream_is_destroyed_with_messages_in_flight(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = Rig::new(lab)?;
    let before = process.heap_info();
    for transport in TRANSPORTS {
        let (stream, seen) = stream(&process, |config| {
            (config.transport, config.buffer) = (transport, 2 << 10);
        })?;
        let id = stream.id();
        std::thread::scope(|scope| -> Result<(), Stop> {
            let process = &process;
            let writes = scope.spawn(move || process.call(says_to(), (id.0, 2_000, 300)));
            until("the first messages", || seen.count(3))?;
            stream.destroy()?;
            let count = seen.all().len();
            let written = writes.join().map_err(|_| Stop::fail("a panic"))??;
            ensure!(written < 2_000, "all messages were written before the stream's end");
            ensure_eq!(seen.all().len(), count, "messages after the stream's end");
            Ok(())
        })?;
        let possible = numbered_texts(2_000, 300);
        ensure!(seen.texts().iter().all(|it| possible.contains(it)), "no such message");
        ensure_eq!(process.heap_info(), before, "the heap after the stream by {transport:?}");
    }
    ensure_eq!(process.call(add(), (40, 2))?, 42, "the process continues");
    Ok(())
}

fn aborted_message_holds_up_others_until_flush(lab: &Lab) -> Result<(), Stop> {
    for transport in TRANSPORTS {
        let process = Rig::new(lab)?.process;
        let (stream, seen) = stream(&process, |config| config.transport = transport)?;
        ensure_eq!(process.call(says_to(), (stream.id().0, 2, 0))?, 2, "messages before");
        let attr = RpcAttr { timeout: Some(Duration::from_millis(100)), ..RpcAttr::default() };
        let endless = process.call_with_attr(&attr, says_without_end(), (stream.id().0,));
        ensure!(matches!(endless, Err(Error::Timeout(_))), "{transport:?}: {endless:?}");
        ensure_eq!(
            process.call(says_to(), (stream.id().0, 3, 0))?,
            3,
            "messages after the timeout"
        );
        stream.flush()?;
        let expected = [numbered_texts(2, 0), numbered_texts(3, 0)].concat();
        ensure_eq!(seen.texts(), expected, "{transport:?}, what a flush delivers");
        ensure_eq!(process.call(says_to(), (stream.id().0, 1, 0))?, 1, "a message after that");
        stream.flush()?;
        ensure_eq!(
            seen.texts(),
            [expected, numbered_texts(1, 0)].concat(),
            "all messages by {transport:?}"
        );
        ensure_eq!(stream.lost()?.undelivered, 1, "{transport:?}, lost");
    }
    Ok(())
}

fn stream_destroy_survives_aborted_event_handler(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = Rig::new(lab)?;
    let before = process.heap_info();
    let (stream, _seen) = stream(&process, |_| {})?;
    let mut queue = Cmdq::create(&process, &CmdqConfig::default())?;
    queue.task_add(says_without_end(), stream.id().0)?;
    let counts = || process.call(Function::<(), u64>::named("count"), ());
    until("the worker's message", || counts().is_ok_and(|count| count > 0).then_some(()))?;
    queue.destroy();
    stream.destroy()?;
    ensure_eq!(process.heap_info(), before, "the heap after both");
    Ok(())
}

fn formats() -> Vec<String> {
    let formats = ["zero", "%lu", "%lu %lu", "%lu %lu %lu", "%lu %lu %lu %lu"];
    let more = ["%lu %lu %lu %lu %lu", "%#lx %lu %lu %lu %lu %03lu"];
    formats.into_iter().chain(more).map(String::from).collect()
}

/// Writes a record of each number of arguments.
fn traces() -> Function<(u8, u64), u64> {
    Function::named("traces")
}

fn trace_records_are_formatted_by_host(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = Rig::new(lab)?;
    for transport in TRANSPORTS {
        let (stream, seen) = stream(&process, |config| {
            (config.transport, config.sync_mode) = (transport, MsgSyncMode::Tracer);
            (config.buffer, config.formats) = (2 << 10, formats());
        })?;
        // Each quarter of 32 records is sent together: the thread delivers 8 of 14.
        for from in [10, 20] {
            ensure_eq!(process.call(traces(), (stream.id().0, from))?, 7, "records written");
        }
        until("a batch", || seen.count(8))?;
        quiet("records were delivered before their batch was full", || seen.count(9))?;
        let flush = Function::<(u8,), ()>::named("flushes_trace");
        process.call(flush, (stream.id().0,))?;
        until("the rest", || seen.count(14))?;
        process.call(traces(), (stream.id().0, 30))?;
        stream.flush()?;
        let expected = [10, 20, 30].into_iter().flat_map(|n: u64| {
            let words: Vec<_> = (n..n + 6).map(|it| it.to_string()).collect();
            let plain = (1..6).map(move |count| words[..count].join(" "));
            let last = format!("{n:#x} {} {} {} {} {:03}", n + 1, n + 2, n + 3, n + 4, n + 5);
            ["zero".to_string()].into_iter().chain(plain).chain([last]).collect::<Vec<_>>()
        });
        ensure_eq!(seen.texts(), expected.collect::<Vec<_>>(), "records by {transport:?}");
        ensure_eq!(stream.lost()?, StreamLosses::default(), "lost by {transport:?}");
        stream.destroy()?;
    }
    Ok(())
}

fn flush_delivers_records_beyond_sq_room(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = Rig::new(lab)?;
    let (stream, seen) = stream(&process, |config| {
        (config.transport, config.sync_mode) = (MsgTransport::Rc, MsgSyncMode::Tracer);
        (config.thread, config.formats) = (false, formats());
    })?;
    // Each flush sends the waiting records; the queue is sized for batches.
    for _ in 0..25 {
        ensure_eq!(process.call(traces(), (stream.id().0, 10))?, 7, "records written");
        process.call(Function::<(u8,), ()>::named("flushes_trace"), (stream.id().0,))?;
    }
    stream.flush()?;
    ensure_eq!(seen.texts().len(), 175, "delivered records");
    ensure_eq!(stream.lost()?, StreamLosses::default(), "lost");
    stream.destroy()?;
    Ok(())
}

#[allow(deprecated, reason = "the case tests them")]
fn deprecated_names_create_default_stream(lab: &Lab) -> Result<(), Stop> {
    let rigs = [Rig::new(lab)?, Rig::new(lab)?];
    let process = &rigs[0].process;
    let seen = Seen::default();
    for is_async in [false, true] {
        let init =
            |bytes| deprecated::print_init(process, &process.uar(), bytes, seen.output(), is_async);
        failed("a buffer of 1 KiB", init(1 << 10), "from 2048")?;
        let stream = init(4 << 10)?;
        ensure_eq!(stream.id().0, 0, "the number of the stream");
        process.call(says(), (5,))?;
        if is_async {
            quiet("messages were delivered before the flush", || seen.count(4))?;
        }
        failed("a process that prints", process.clone().destroy(), "in use")?;
        deprecated::print_flush(&stream)?;
        let expected = ["number 5", "and 0x5", "a line"].repeat(1 + usize::from(is_async));
        ensure_eq!(seen.texts(), expected, "printed messages (async: {is_async})");
        deprecated::print_destroy(stream)?;
    }
    let other = rigs[1].process.uar();
    let wrong = deprecated::print_init(process, &other, 4 << 10, seen.output(), false);
    failed("the UAR of another process", wrong, "of another process")?;
    let extra = deprecated::log_dev_init(process, &MsgStreamConfig::new("extra"), seen.output());
    failed("another stream than the default one", extra, "creates only the default stream")?;
    let config = MsgStreamConfig::default_stream();
    let stream = deprecated::log_dev_init(process, &config, seen.output())?;
    process.call(says(), (6,))?;
    deprecated::log_dev_flush(&stream)?;
    ensure_eq!(seen.texts()[6..], ["number 6", "and 0x6", "a line"], "logged messages");
    Ok(deprecated::log_dev_destroy(stream)?)
}

/// A file in memory.
#[derive(Clone, Default)]
struct Bytes(Arc<Mutex<Vec<u8>>>);

impl io::Write for Bytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn binary_messages_are_read_back(lab: &Lab) -> Result<(), Stop> {
    let Rig { process } = Rig::new(lab)?;
    let file = Bytes::default();
    let config = MsgStreamConfig::default_stream();
    let stream = MsgStream::create(&process, &config, Output::binary(file.clone()))?;
    process.call(says(), (9,))?;
    stream.destroy()?;
    let bytes = file.0.lock().expect("no panic").clone();
    let (mut from, mut read) = (&bytes[..], Vec::new());
    while let Some(MsgBinReport(message)) = MsgBinReport::read(&mut from)? {
        ensure_eq!(message.thread, 0, "the thread of a call");
        read.push((message.level, message.text));
    }
    let texts = ["number 9", "and 0x9", "a line"].map(String::from);
    let levels = [Level::Info, Level::Error, Level::Info].map(Some);
    ensure_eq!(read, levels.into_iter().zip(texts).collect::<Vec<_>>(), "read messages");
    Ok(())
}
