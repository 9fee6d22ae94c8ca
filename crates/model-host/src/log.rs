//! The log of `verbless-model`. A client that makes the model log repeatedly can neither flood the
//! log nor slow the model.
//!
//! A log statement prints at most `LINES_A_SECOND` lines a second, and counts the rest. A separate
//! thread writes the lines: a thread that logs, often with the model's lock held, never waits for a
//! terminal or a pipe. When the writer cannot keep up, the log drops lines and counts them too.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, SigmaskHow};
use tracing::callsite::Identifier;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, Filter, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Maximum number of lines per second of one log statement.
const LINES_A_SECOND: u32 = 20;
const SECOND: Duration = Duration::from_secs(1);
/// Maximum number of lines that wait to be written: of the log, and of a trace, which has no rate
/// limit.
const MAX_QUEUED_LINES: usize = 4096;
const MAX_QUEUED_TRACE_LINES: usize = 1 << 18;
/// How long the end of the process waits for lines to be written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Logs events of `level` and above to standard error. Drop the result last: it waits until every
/// line is written.
pub fn init(level: LevelFilter) -> LogFlush {
    let queue = Arc::new(LineQueue::new(MAX_QUEUED_LINES, io::stderr));
    let throttles = Throttles::default();
    let sink = queue.clone();
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(move || Line(sink.clone()))
        .with_target(false)
        .with_filter(PerCallsite { queue: queue.clone(), throttles });
    tracing_subscriber::registry().with(layer.with_filter(level)).init();
    LogFlush(queue)
}

/// On drop, waits briefly until logged lines are written.
#[must_use]
pub struct LogFlush(Arc<LineQueue>);

impl Drop for LogFlush {
    fn drop(&mut self) {
        self.0.flush();
    }
}

/// Lines of a trace on standard error. A slow terminal or pipe never blocks the caller.
#[derive(Clone)]
pub(crate) struct TraceLines(Arc<LineQueue>);

impl TraceLines {
    pub(crate) fn new() -> Self {
        Self(Arc::new(LineQueue::new(MAX_QUEUED_TRACE_LINES, io::stderr)))
    }

    pub(crate) fn print(&self, line: &str) {
        self.0.send(format!("{line}\n").into_bytes());
    }

    /// Drop it last.
    pub(crate) fn flush_on_drop(&self) -> LogFlush {
        LogFlush(self.0.clone())
    }
}

/// A line, or a request to be notified when all earlier lines were written.
enum LogMessage {
    Line(Vec<u8>),
    Flush(SyncSender<()>),
}

/// Lines on their way to the writer thread, which starts with the first line.
struct LineQueue {
    lines: OnceLock<SyncSender<LogMessage>>,
    /// Maximum number of lines that wait.
    capacity: usize,
    sink: Box<dyn Fn() -> Box<dyn Write> + Send + Sync>,
    lost: AtomicU64,
}

impl LineQueue {
    fn new<W: Write + 'static>(
        capacity: usize,
        sink: impl Fn() -> W + Send + Sync + 'static,
    ) -> Self {
        let sink = Box::new(move || Box::new(sink()) as Box<dyn Write>);
        Self { lines: OnceLock::new(), capacity, sink, lost: AtomicU64::new(0) }
    }

    fn send(self: &Arc<Self>, line: Vec<u8>) {
        let lines = self.lines.get_or_init(|| {
            let (sender, receiver) = sync_channel(self.capacity);
            let queue = self.clone();
            // Only threads that wait for signals take them.
            let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK);
            let thread = std::thread::Builder::new().name("verbless-log".into());
            // If the thread cannot start, only log lines are lost.
            let _ = thread.spawn(move || queue.write_all(&receiver));
            if let Ok(before) = before {
                let _ = before.thread_set_mask();
            }
            sender
        });
        if lines.try_send(LogMessage::Line(line)).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn write_all(&self, lines: &Receiver<LogMessage>) {
        let mut sink = (self.sink)();
        for message in lines {
            let lost = self.lost.swap(0, Ordering::Relaxed);
            if lost != 0 {
                let _ = writeln!(sink, "{lost} lines of the log were lost: its reader is too slow");
            }
            match message {
                LogMessage::Line(line) => _ = sink.write_all(&line),
                LogMessage::Flush(done) => _ = done.try_send(()),
            }
        }
    }

    fn flush(&self) {
        let Some(lines) = self.lines.get() else { return };
        let (done, written) = sync_channel(1);
        let end = Instant::now() + FLUSH_TIMEOUT;
        let mut message = LogMessage::Flush(done);
        while let Err(std::sync::mpsc::TrySendError::Full(back)) = lines.try_send(message) {
            if Instant::now() > end {
                return;
            }
            message = back;
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = written.recv_timeout(end.saturating_duration_since(Instant::now()));
    }
}

/// Sends each write as one line.
struct Line(Arc<LineQueue>);

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(bytes.to_vec());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The number of lines of each log statement in the current second.
#[derive(Default)]
struct Throttles(Mutex<HashMap<Identifier, Throttle>>);

struct Throttle {
    since: Instant,
    lines: u32,
    left_out: u64,
}

impl Throttles {
    /// Whether a log statement may print another line; and, when a new second begins, how many
    /// lines it left out in the last one.
    fn admit(&self, callsite: Identifier, now: Instant) -> (bool, u64) {
        let mut by_callsite = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Throttle { since: now, lines: 0, left_out: 0 };
        let throttle = by_callsite.entry(callsite).or_insert_with(new);
        let mut left_out = 0;
        if now.saturating_duration_since(throttle.since) >= SECOND {
            left_out = throttle.left_out;
            *throttle = new();
        }
        let admitted = throttle.lines < LINES_A_SECOND;
        throttle.lines += u32::from(admitted);
        throttle.left_out += u64::from(!admitted);
        (admitted, left_out)
    }
}

/// Limits the lines of each log statement per second.
struct PerCallsite {
    queue: Arc<LineQueue>,
    throttles: Throttles,
}

impl<S: Subscriber> Filter<S> for PerCallsite {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let of = event.metadata();
        let (admitted, left_out) = self.throttles.admit(of.callsite(), Instant::now());
        if left_out != 0 {
            let (file, line) = (of.file().unwrap_or_default(), of.line().unwrap_or_default());
            let line = format!("{left_out} more lines of {file}:{line} were left out\n");
            self.queue.send(line.into_bytes());
        }
        admitted
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    struct Sink(Sender<String>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.send(String::from_utf8_lossy(bytes).into_owned());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn log_rate_limit_reports_dropped_lines() {
        let (sender, lines) = channel();
        let queue = Arc::new(LineQueue::new(MAX_QUEUED_LINES, move || Sink(sender.clone())));
        let sink = queue.clone();
        let filter = PerCallsite { queue: queue.clone(), throttles: Throttles::default() };
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(move || Line(sink.clone()))
            .with_filter(filter);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let log_again = |number: u32| tracing::warn!(number, "a client does it again");
            (0..1000).for_each(log_again);
            tracing::warn!("something else");
            std::thread::sleep(SECOND);
            log_again(1000);
        });
        queue.flush();
        let lines: Vec<String> = lines.try_iter().collect();
        let count = |part: &str| lines.iter().filter(|line| line.contains(part)).count();
        // A slow machine may take more than a second for the thousand.
        assert!((21..200).contains(&count("does it again")), "{lines:?}");
        assert_eq!(count("something else"), 1);
        assert!(count("were left out") > 0, "{lines:?}");
        assert!(lines.iter().all(|line| !line.starts_with("0 more")), "{lines:?}");
    }

    #[test]
    fn throttle_reports_dropped_count_in_next_second() {
        let everything = tracing_subscriber::registry();
        let span = tracing::subscriber::with_default(everything, || tracing::info_span!("a place"));
        let place = || span.metadata().expect("the span has metadata").callsite();
        let (throttles, start) = (Throttles::default(), Instant::now());
        let nanosecond = Duration::from_nanos(1);
        for _ in 0..LINES_A_SECOND {
            assert_eq!(throttles.admit(place(), start), (true, 0));
        }
        for _ in 0..3 {
            assert_eq!(throttles.admit(place(), start + SECOND - nanosecond), (false, 0));
        }
        assert_eq!(throttles.admit(place(), start + SECOND), (true, 3));
        for _ in 1..LINES_A_SECOND {
            assert_eq!(throttles.admit(place(), start + SECOND), (true, 0));
        }
        assert_eq!(throttles.admit(place(), start + SECOND), (false, 0));
        assert_eq!(throttles.admit(place(), start + 2 * SECOND), (true, 1));
        assert_eq!(throttles.admit(place(), start + 4 * SECOND), (true, 0));
    }

    #[test]
    fn end_waits_for_lines_within_limit() {
        let (sender, lines) = channel();
        let queue = Arc::new(LineQueue::new(MAX_QUEUED_LINES, move || {
            // The sink starts slowly.
            std::thread::sleep(Duration::from_millis(20));
            Sink(sender.clone())
        }));
        let written = Line(queue.clone()).write(b"the last words\n");
        assert_eq!(written.ok(), Some(15));
        drop(LogFlush(queue));
        assert_eq!(lines.try_iter().collect::<Vec<_>>(), ["the last words\n"]);
        let (sender, receiver) = sync_channel::<()>(0);
        let stuck = Mutex::new(Some(receiver));
        let queue = Arc::new(LineQueue::new(MAX_QUEUED_LINES, move || {
            let _ = stuck.lock().unwrap().take().and_then(|it| it.recv().ok());
            io::sink()
        }));
        (0..2 * MAX_QUEUED_LINES).for_each(|_| queue.send(b"\n".to_vec()));
        let start = Instant::now();
        drop(LogFlush(queue));
        let taken = start.elapsed();
        assert!(taken >= FLUSH_TIMEOUT / 2 && taken < 5 * FLUSH_TIMEOUT, "{taken:?}");
        drop(sender);
    }

    #[test]
    fn log_queue_does_not_block_on_stuck_writer() {
        let (sender, receiver) = sync_channel::<()>(0);
        let stuck = Mutex::new(Some(receiver));
        let queue = Arc::new(LineQueue::new(MAX_QUEUED_LINES, move || {
            let receiver = stuck.lock().unwrap().take();
            let _ = receiver.and_then(|receiver| receiver.recv().ok());
            io::sink()
        }));
        for number in 0..2 * MAX_QUEUED_LINES {
            queue.send(format!("{number}\n").into_bytes());
        }
        assert!(queue.lost.load(Ordering::Relaxed) >= (MAX_QUEUED_LINES - 1) as u64);
        drop(sender);
        queue.flush();
        assert_eq!(queue.lost.load(Ordering::Relaxed), 0, "the log reports the lost lines");
    }
}
