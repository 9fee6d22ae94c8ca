//! Seeing the commands and the send requests of a model as they are executed: for traces,
//! recordings and tests.
//!
//! Whoever plays the kernel, a command reaches a function in one place, and there it is seen: the
//! whole input, the uid stamped, and the whole output. A request is seen when its QP is done with
//! it. Watchers are told once no function is held for it any more ([`Outbox`]).
//!
//! A watcher that is slow holds up commands and never the data path. Whoever sent a command waits
//! until its watchers have been told, so a recording is complete however slow its file is. What a
//! threaded model does with requests goes on: a thread of their own tells their watchers, and what
//! does not fit between is lost, counted, and reported in the log.

mod arrivals;
mod queue;

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use verbless_prm::CommandInfo;
use verbless_prm::dump::write_command;

use self::arrivals::ArrivalLog;
pub use self::arrivals::{ArrivalRecording, Arrivals, Arrived, QueueId, QueueSide};
pub(crate) use self::queue::Queue;
use crate::profile::Link;

/// A command that a function has executed or refused.
#[derive(Clone, Copy, Debug)]
pub struct Executed<'a> {
    /// Which function, from 0, as the methods of [`Model`](crate::Model) number them.
    pub function: usize,
    /// When, counted from the start of the model, by its own clock.
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
    /// Those of `sink`.
    pub fn write(&self, sink: &mut dyn Write) -> std::io::Result<()> {
        let opcode = self.input.first_chunk().map_or(0, |bytes| u16::from_be_bytes(*bytes));
        let name = CommandInfo::by_opcode(opcode).map_or("UNKNOWN", |command| command.name);
        let origin = format!("[{:>13.6}] function {}", self.at.as_secs_f64(), self.function);
        write_command(sink, &origin, &format!("{name}({opcode:#x})"), self.input, self.output)
    }
}

/// A send request that a QP is done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Which function, from 0, as the methods of [`Model`](crate::Model) number them.
    pub function: usize,
    /// When, counted from the start of the model, by its own clock.
    pub at: Duration,
    /// The QP.
    pub qpn: u32,
    /// The index of its WQE, in units of 64 bytes, as the CQE has it in `wqe_counter`.
    pub index: u16,
    /// The request's operation, by the PRM's name; `"unknown"` where the model knows no such
    /// opcode.
    pub operation: &'static str,
    /// Bytes that its data segments name; 0 if it failed.
    pub bytes: u64,
    /// The CQE's syndrome if it failed or was flushed; `None`: it succeeded.
    pub syndrome: Option<u8>,
}

/// A frame that a physical port has sent or received.
///
/// A frame that crosses the links of two ports is seen at both, when it is sent and when it
/// arrives; one that is switched inside a card is seen once, as it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenFrame {
    /// Which physical port of the fabric, from 0.
    pub port: usize,
    /// The port's name.
    pub name: Arc<str>,
    /// The port's link layer.
    pub link: Link,
    /// When, counted from the start of the model, by its own clock.
    pub at: Duration,
    /// Whether the port sent it.
    pub leaving: bool,
    /// The frame's bytes, from the Ethernet header or LRH to the ICRC.
    pub bytes: Box<[u8]>,
}

/// A command that was executed and is yet to be told.
pub(crate) struct Command {
    pub function: usize,
    pub at: u64,
    pub input: Box<[u8]>,
    pub output: Box<[u8]>,
}

impl Command {
    /// The command as watchers see it.
    pub(crate) fn executed(&self) -> Executed<'_> {
        let Self { function, at, input, output } = self;
        Executed { function: *function, at: Duration::from_nanos(*at), input, output }
    }
}

/// Events for watchers: written by threads that have functions, told once these are put back. In a
/// model that nobody watches each costs one load.
#[derive(Default)]
pub(crate) struct Outbox {
    pub commands: Queue<Command>,
    pub requests: Queue<Request>,
    pub frames: Queue<SeenFrame>,
    /// The log of arrivals, which is told to nobody.
    pub arrivals: ArrivalLog,
}

impl Outbox {
    /// A command was executed.
    pub(crate) fn command(&self, function: usize, at: u64, input: &[u8], output: &[u8]) {
        let bytes = input.len() + output.len() + size_of::<Command>();
        let (input, output) = (input.into(), output.into());
        self.commands.push(Command { function, at, input, output }, bytes);
    }

    /// A request is done with.
    pub(crate) fn request(&self, request: Request) {
        self.requests.push(request, size_of::<Request>());
    }

    /// A port has sent or received a frame.
    pub(crate) fn frame(&self, frame: SeenFrame) {
        let bytes = frame.bytes.len() + size_of::<SeenFrame>();
        self.frames.push(frame, bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::sync::{Arc, Mutex};
    use std::time::Instant;

    use verbless_prm::dump::parse_log;

    use super::*;
    use crate::world::World;
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

    /// Executes a command whose input is 6 bytes longer than it needs; gives its status.
    fn send(model: &Model, opcode: u16) -> u8 {
        let mut input = vec![0; 16];
        input[..2].copy_from_slice(&opcode.to_be_bytes());
        input.extend(b"a mark");
        let mut output = [0; 16];
        model.device(0).execute(&input, &mut output);
        output[0]
    }

    #[test]
    fn a_recording_holds_every_command_with_its_output_and_reads_back() {
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
    fn a_refused_command_is_seen_with_its_status() {
        let model = model();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = seen.clone();
        let _watch =
            model.watch_commands(move |executed| sink.lock().unwrap().push(executed.output[0]));
        model.fail_command(0, verbless_prm::NOP.opcode, 1, 0x0f, 1);
        assert_eq!(send(&model, verbless_prm::NOP.opcode), 0x0f);
        assert_eq!(*seen.lock().unwrap(), [0x0f]);
    }

    #[test]
    fn a_watcher_may_call_the_model_and_hears_of_what_that_did_next() {
        let model = model();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (sink, called) = (heard.clone(), model.clone());
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
        assert_eq!(*heard.lock().unwrap(), [enable, nop]);
    }

    #[test]
    fn a_model_whose_watcher_owns_it_is_freed_when_the_guard_is_dropped() {
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
                // The model's own threads have it for a moment at a time.
                assert!(!stepped && start.elapsed() < Duration::from_secs(20), "it is not freed");
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn the_watching_ends_with_the_guard_or_with_the_model() {
        let heard = Arc::new(());
        for ends_first in [true, false] {
            let model = model();
            let count = Arc::new(Mutex::new(0));
            let (mine, counted) = (heard.clone(), count.clone());
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
            assert_eq!(Arc::strong_count(&heard), 1, "the watcher is gone");
        }
    }

    #[test]
    fn two_watch_at_once_and_one_may_end_the_other_from_within() {
        let model = model();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (first, second) = (heard.clone(), heard.clone());
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
        assert_eq!(*heard.lock().unwrap(), [1, 2, 1], "the command at hand is told to both");
    }

    #[test]
    fn a_slow_recording_holds_up_the_next_command_and_misses_none() {
        let model = model();
        let (go, goes) = std::sync::mpsc::sync_channel::<()>(0);
        let heard = Arc::new(Mutex::new(0));
        let count = heard.clone();
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
            for told in 1..=3 {
                std::thread::sleep(Duration::from_millis(5));
                assert!(done.load(Ordering::SeqCst) < told, "one returns before it is told");
                go.send(()).unwrap();
            }
        });
        drop(watch);
        assert_eq!(*heard.lock().unwrap(), 3);
    }

    #[test]
    fn requests_that_do_not_fit_are_counted_and_the_data_path_does_not_wait() {
        let model =
            Model::builder().device(Profile::load("bluefield3").unwrap()).threaded().build();
        let (go, goes) = std::sync::mpsc::channel::<()>();
        let (enter, entered) = std::sync::mpsc::channel::<()>();
        let heard = Arc::new(Mutex::new(0));
        let count = heard.clone();
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
            let mut pushed = |world: &mut World| {
                (0..count).for_each(|_| world.outbox().request(request));
            };
            // Not while the engine's own thread has the function.
            while model.shared.work(0, &mut Default::default(), &mut pushed).is_none() {
                std::thread::yield_now();
            }
        };
        // It goes before the watch, which waits for the watcher, also if something fails below.
        let go = go;
        // The watcher hears the first; until it has, the log may be told of what is lost, and the
        // count begins anew.
        push(1);
        entered.recv().unwrap();
        push(fit + 9);
        let lost = model.shared.common.outbox.requests.lost();
        assert!((9..=10).contains(&lost), "one may be on its way to the watcher: {lost}");
        drop(go);
        drop(watch);
        assert_eq!(*heard.lock().unwrap(), fit + 10 - lost);
    }

    #[test]
    fn commands_of_several_threads_are_told_in_the_order_in_which_they_were_executed() {
        let model = model();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let sink = heard.clone();
        // A stepped model's clock stands still, so the order is that of the marks.
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
                        model.shared.with(|world| {
                            order.lock().unwrap().push(thread);
                            crate::engine::execute(world, 0, &input, &mut [0; 16]);
                        });
                    }
                });
            }
        });
        model.shared.with(|_| ());
        assert_eq!(*heard.lock().unwrap(), order.into_inner().unwrap());
    }
}
