//! Watches the commands and the send requests of a model as they are executed: for traces,
//! recordings and tests.
//!
//! Every front end's commands pass through one function, which reports the whole input, with the
//! uid stamped, and the whole output. A request is reported when its QP has finished it. A watcher
//! is called once the thread has released the functions that it held for the event ([`Outbox`]).
//!
//! A watcher that is slow delays commands and never the data path. The sender of a command
//! waits until the watchers have seen it, so a recording is complete however slow its file is. A
//! threaded model does not wait with requests: a separate thread calls their watchers. Their
//! queue drops requests that do not fit, counts them, and reports them in the log. A capture of
//! frames is the exception: the engine's threads wait for it, with nothing locked, before they send
//! more.

mod arrivals;
mod queue;

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use verbless_prm::CommandInfo;
use verbless_prm::dump::write_command;

use self::arrivals::ArrivalLog;
pub use self::arrivals::{ArrivalRecording, Arrivals, Arrived, QueueId, QueueSide};
pub(crate) use self::queue::Queue;
use crate::numbered::Numbered;
use crate::profile::Link;

/// A command that a function has executed or refused.
#[derive(Clone, Copy, Debug)]
pub struct Executed<'a> {
    /// The function, from 0, in the numbering of the methods of [`Model`](crate::Model).
    pub function: usize,
    /// The time since the start of the model, by its own clock.
    pub at: Duration,
    /// The whole input.
    pub input: &'a [u8],
    /// The whole output.
    pub output: &'a [u8],
}

impl Executed<'_> {
    /// The command in the text that `cargo xtask prm decode` reads.
    ///
    /// # Errors
    /// The errors of `sink`.
    pub fn write(&self, sink: &mut dyn Write) -> std::io::Result<()> {
        let opcode = self.input.first_chunk().map_or(0, |bytes| u16::from_be_bytes(*bytes));
        let name = CommandInfo::by_opcode(opcode).map_or("UNKNOWN", |command| command.name);
        let origin = format!("[{:>13.6}] function {}", self.at.as_secs_f64(), self.function);
        write_command(sink, &origin, &format!("{name}({opcode:#x})"), self.input, self.output)
    }
}

/// A send request that a QP has finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The function, from 0, in the numbering of the methods of [`Model`](crate::Model).
    pub function: usize,
    /// The time since the start of the model, by its own clock.
    pub at: Duration,
    /// The QP.
    pub qpn: u32,
    /// The index of its WQE in WQEBBs (64 bytes), as in the CQE's `wqe_counter`.
    pub index: u16,
    /// The request's operation, by the PRM's name; `"unknown"` for an opcode that the model does
    /// not know.
    pub operation: &'static str,
    /// Bytes in its data segments; 0 if it failed.
    pub bytes: u64,
    /// The CQE's syndrome if it failed or was flushed; `None`: it succeeded.
    pub syndrome: Option<u8>,
}

/// A frame that a physical port has sent or received.
///
/// A frame that crosses the links of two ports is seen at both, when it is sent and when it
/// arrives. A frame that is switched inside a card is seen once, when it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenFrame {
    /// The physical port of the fabric, from 0.
    pub port: usize,
    /// The port's name.
    pub name: Arc<str>,
    /// The port's link layer.
    pub link: Link,
    /// The time since the start of the model, by its own clock.
    pub at: Duration,
    /// Whether the port sent it.
    pub leaving: bool,
    /// The frame's bytes, from the Ethernet header or LRH to the ICRC.
    pub bytes: Box<[u8]>,
}

/// An executed command that watchers have not seen.
pub(crate) struct Command {
    pub function: usize,
    pub at: u64,
    pub input: Box<[u8]>,
    pub output: Box<[u8]>,
}

impl Command {
    /// The command in the form that watchers get.
    pub(crate) fn executed(&self) -> Executed<'_> {
        let Self { function, at, input, output } = self;
        Executed { function: *function, at: Duration::from_nanos(*at), input, output }
    }
}

/// Events for watchers: threads that hold functions write them, and watchers get them once these
/// threads release the functions. In a model without watchers each costs one load.
#[derive(Default)]
pub(crate) struct Outbox {
    pub commands: Queue<Command>,
    pub requests: Queue<Request>,
    pub frames: Queue<SeenFrame>,
    /// Counts of the frames that did not fit into `frames`.
    pub unseen: Arc<Unseen>,
    /// The log of arrivals, which has no watchers.
    pub arrivals: ArrivalLog,
}

impl Outbox {
    /// Reports an executed command.
    pub(crate) fn command(&self, function: usize, at: u64, input: &[u8], output: &[u8]) {
        let bytes = input.len() + output.len() + size_of::<Command>();
        let (input, output) = (input.into(), output.into());
        let _ = self.commands.push(Command { function, at, input, output }, bytes);
    }

    /// Reports a finished request.
    pub(crate) fn request(&self, request: Request) {
        let _ = self.requests.push(request, size_of::<Request>());
    }

    /// Reports a frame that a port sent or received.
    pub(crate) fn frame(&self, frame: SeenFrame) {
        let bytes = frame.bytes.len() + size_of::<SeenFrame>();
        if let Some(lost) = self.frames.push(frame, bytes) {
            self.unseen.add(lost);
        }
    }
}

/// Counts of frames that watchers did not get, by physical port, with each port's last one.
#[derive(Default)]
pub(crate) struct Unseen(Mutex<Numbered<usize, (u64, SeenFrame)>>);

impl Unseen {
    pub(crate) fn add(&self, frame: SeenFrame) {
        let mut ports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = ports.get(&frame.port).map_or(0, |(count, _)| *count);
        ports.insert(frame.port, (count + 1, frame));
    }

    /// The count and the last one of each port that has lost frames.
    pub(crate) fn counts(&self) -> Vec<(u64, SeenFrame)> {
        let ports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ports.values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::sync::{Arc, Mutex};
    use std::time::Instant;

    use verbless_prm::dump::parse_log;

    use super::*;
    use crate::locked::LockedFunctions;
    use crate::{Model, Profile};

    #[derive(Clone, Default)]
    struct Text(Arc<Mutex<Vec<u8>>>);

    impl Write for Text {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn model() -> Model {
        Model::builder().device(Profile::load("bluefield3").unwrap()).stepped().build()
    }

    /// Executes a command whose input is 6 bytes longer than needed; returns its status.
    fn send(model: &Model, opcode: u16) -> u8 {
        let mut input = vec![0; 16];
        input[..2].copy_from_slice(&opcode.to_be_bytes());
        input.extend(b"a mark");
        let mut output = [0; 16];
        model.device(0).execute(&input, &mut output);
        output[0]
    }

    #[test]
    fn recording_holds_every_command_and_reads_back() {
        let model = model();
        let text = Text::default();
        let _watch = model.record_commands(text.clone());
        for command in [&verbless_prm::ENABLE_HCA, &verbless_prm::NOP, &verbless_prm::DISABLE_HCA] {
            assert_eq!(send(&model, command.opcode), 0);
        }
        let text = String::from_utf8(text.0.lock().unwrap().clone()).unwrap();
        let commands = parse_log(&text).unwrap();
        let titles: Vec<_> = commands.iter().map(|command| &*command.title).collect();
        assert_eq!(titles, ["ENABLE_HCA(0x104)", "NOP(0x80d)", "DISABLE_HCA(0x105)"]);
        assert_eq!(commands[1].input[..4], [0x08, 0x0d, 0, 0]);
        assert_eq!(commands[1].input[16..], *b"a mark");
        assert_eq!(commands[1].output.as_deref(), Some(&[0; 16][..]));
        assert!(commands[1].origin.ends_with("] function 0"), "{}", commands[1].origin);
    }

    #[test]
    fn rejected_command_is_seen_with_its_status() {
        let model = model();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = seen.clone();
        let _watch =
            model.watch_commands(move |executed| sink.lock().unwrap().push(executed.output[0]));
        model.fail_command(
            0,
            verbless_prm::Opcode(verbless_prm::NOP.opcode),
            1,
            verbless_prm::CommandStatus(0x0f),
            1,
        );
        assert_eq!(send(&model, verbless_prm::NOP.opcode), 0x0f);
        assert_eq!(*seen.lock().unwrap(), [0x0f]);
    }

    #[test]
    fn watcher_may_call_the_model() {
        let model = model();
        let received = Arc::new(Mutex::new(Vec::new()));
        let (sink, called) = (received.clone(), model.clone());
        let _watch = model.watch_commands(move |executed| {
            let opcode = u16::from_be_bytes([executed.input[0], executed.input[1]]);
            sink.lock().unwrap().push(opcode);
            if opcode == verbless_prm::ENABLE_HCA.opcode {
                assert_eq!(called.counts(0).qps, 0);
                assert_eq!(send(&called, verbless_prm::NOP.opcode), 0);
            }
        });
        assert_eq!(send(&model, verbless_prm::ENABLE_HCA.opcode), 0);
        let [enable, nop] = [verbless_prm::ENABLE_HCA.opcode, verbless_prm::NOP.opcode];
        assert_eq!(*received.lock().unwrap(), [enable, nop]);
    }

    #[test]
    fn model_owned_by_its_watcher_is_freed_with_guard() {
        for stepped in [true, false] {
            let builder = Model::builder().device(Profile::load("bluefield3").unwrap());
            let model = if stepped { builder.stepped() } else { builder }.build();
            let shared = Arc::downgrade(&model.shared);
            let (commands, requests) = (model.clone(), model.clone());
            let watches = [
                model.watch_commands(move |_| assert_eq!(commands.devices(), 1)),
                model.watch_requests(move |_| assert_eq!(requests.devices(), 1)),
            ];
            send(&model, verbless_prm::NOP.opcode);
            drop(model);
            assert!(shared.strong_count() > 0, "the watchers keep it");
            drop(watches);
            let start = Instant::now();
            while shared.strong_count() > 0 {
                // The model's own threads hold it for a moment at a time.
                assert!(
                    !stepped && start.elapsed() < Duration::from_secs(20),
                    "the function is not freed"
                );
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn watch_ends_with_guard_or_model() {
        let received = Arc::new(());
        for ends_first in [true, false] {
            let model = model();
            let count = Arc::new(Mutex::new(0));
            let (mine, counted) = (received.clone(), count.clone());
            let watch = model.watch_commands(move |_| {
                let _ = &mine;
                *counted.lock().unwrap() += 1;
            });
            send(&model, verbless_prm::NOP.opcode);
            if ends_first {
                drop(watch);
                send(&model, verbless_prm::NOP.opcode);
            } else {
                drop(model);
                drop(watch);
            }
            assert_eq!(*count.lock().unwrap(), 1);
            assert_eq!(Arc::strong_count(&received), 1, "the watcher was dropped");
        }
    }

    #[test]
    fn watcher_may_end_another_from_within() {
        let model = model();
        let received = Arc::new(Mutex::new(Vec::new()));
        let (first, second) = (received.clone(), received.clone());
        let other = Arc::new(Mutex::new(None));
        let ends = other.clone();
        let _watch = model.watch_commands(move |_| {
            first.lock().unwrap().push(1);
            drop(ends.lock().unwrap().take());
        });
        *other.lock().unwrap() =
            Some(model.watch_commands(move |_| second.lock().unwrap().push(2)));
        send(&model, verbless_prm::NOP.opcode);
        send(&model, verbless_prm::NOP.opcode);
        assert_eq!(*received.lock().unwrap(), [1, 2, 1], "both get the current command");
    }

    #[test]
    fn slow_watcher_delays_commands_and_misses_none() {
        let model = model();
        let (go, goes) = std::sync::mpsc::sync_channel::<()>(0);
        let received = Arc::new(Mutex::new(0));
        let count = received.clone();
        let watch = model.watch_commands(move |_| {
            goes.recv().unwrap();
            *count.lock().unwrap() += 1;
        });
        let done = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    send(&model, verbless_prm::NOP.opcode);
                    done.fetch_add(1, Ordering::SeqCst);
                });
            }
            for delivered in 1..=3 {
                std::thread::sleep(Duration::from_millis(5));
                assert!(
                    done.load(Ordering::SeqCst) < delivered,
                    "a command returns before its watcher"
                );
                go.send(()).unwrap();
            }
        });
        drop(watch);
        assert_eq!(*received.lock().unwrap(), 3);
    }

    #[test]
    fn excess_requests_are_counted_without_blocking() {
        let model =
            Model::builder().device(Profile::load("bluefield3").unwrap()).threaded().build();
        let (go, goes) = std::sync::mpsc::channel::<()>();
        let (enter, entered) = std::sync::mpsc::channel::<()>();
        let received = Arc::new(Mutex::new(0));
        let count = received.clone();
        let watch = model.watch_requests(move |_| {
            let _ = enter.send(());
            let _ = goes.recv();
            *count.lock().unwrap() += 1;
        });
        let request = Request {
            function: 0,
            at: Duration::ZERO,
            qpn: 1,
            index: 0,
            operation: "NOP",
            bytes: 0,
            syndrome: None,
        };
        let fit = 16 * 1024 * 1024 / size_of::<Request>();
        let push = |count: usize| {
            let mut pushed = |locked: &mut LockedFunctions| {
                (0..count).for_each(|_| locked.outbox().request(request));
            };
            // Not while the engine's own thread holds the function.
            while model.shared.work(0, &mut Default::default(), &mut pushed).is_none() {
                std::thread::yield_now();
            }
        };
        // Drops before the watch, which waits for the watcher, also if an assertion below fails.
        let go = go;
        // The watcher gets the first; until then the log may report a loss, which restarts the
        // count.
        push(1);
        entered.recv().unwrap();
        push(fit + 9);
        let lost = model.shared.common.outbox.requests.lost();
        assert!((9..=10).contains(&lost), "one may be on its way to the watcher: {lost}");
        drop(go);
        drop(watch);
        assert_eq!(*received.lock().unwrap(), fit + 10 - lost);
    }

    #[test]
    fn commands_are_reported_in_execution_order() {
        let model = model();
        let received = Arc::new(Mutex::new(Vec::new()));
        let sink = received.clone();
        // The clock of a stepped model does not run, so the marks decide the order.
        let _watch =
            model.watch_commands(move |executed| sink.lock().unwrap().push(executed.input[15]));
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (model, order) = (&model, &order);
                scope.spawn(move || {
                    for _ in 0..50 {
                        let mut input = [0; 16];
                        input[..2].copy_from_slice(&verbless_prm::NOP.opcode.to_be_bytes());
                        input[15] = thread;
                        model.shared.with(|locked| {
                            order.lock().unwrap().push(thread);
                            crate::engine::execute(locked, 0, &input, &mut [0; 16]);
                        });
                    }
                });
            }
        });
        model.shared.with(|_| ());
        assert_eq!(*received.lock().unwrap(), order.into_inner().unwrap());
    }
}
