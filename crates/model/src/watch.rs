//! Seeing the commands and the send requests of a model as they are executed: for traces,
//! recordings and tests.
//!
//! Whoever plays the kernel, a command reaches a function in one place, and there it is seen: the
//! whole input, the uid stamped, and the whole output. A request is seen when its QP is done with
//! it. Watchers are told in order, after the lock of the model is released ([`Outbox`]).

use std::collections::VecDeque;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use verbless_prm::CommandInfo;
use verbless_prm::dump::write_command;

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
    /// What it asked for, by the PRM's name; `"unknown"` where the model knows no such opcode.
    pub operation: &'static str,
    /// Bytes that its data segments name; 0 if it failed.
    pub bytes: u64,
    /// The CQE's syndrome if it failed or was flushed; `None`: it succeeded.
    pub syndrome: Option<u8>,
}

/// What was seen under the world's lock and is yet to be told.
enum Seen {
    Command { function: usize, at: u64, input: Box<[u8]>, output: Box<[u8]> },
    Request(Request),
}

type SeeCommand = dyn FnMut(&Executed<'_>) + Send;
type SeeRequest = dyn FnMut(&Request) + Send;

/// Those who watch.
#[derive(Default)]
struct Watchers {
    commands: Option<Box<SeeCommand>>,
    requests: Option<Box<SeeRequest>>,
}

/// What watchers are to be told: filled under the world's lock, emptied after it is released, in
/// the same order whichever thread empties it. A model that nobody watches pays one load for each.
#[derive(Default)]
pub(crate) struct Outbox {
    watches_commands: AtomicBool,
    watches_requests: AtomicBool,
    queue: Mutex<VecDeque<Seen>>,
    watchers: Mutex<Watchers>,
}

impl Outbox {
    pub(crate) fn watch_commands(&self, watcher: impl FnMut(&Executed<'_>) + Send + 'static) {
        self.watchers().commands = Some(Box::new(watcher));
        self.watches_commands.store(true, Ordering::Release);
    }

    pub(crate) fn watch_requests(&self, watcher: impl FnMut(&Request) + Send + 'static) {
        self.watchers().requests = Some(Box::new(watcher));
        self.watches_requests.store(true, Ordering::Release);
    }

    fn watchers(&self) -> MutexGuard<'_, Watchers> {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Seen>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody watches commands.
    pub(crate) fn takes_commands(&self) -> bool {
        self.watches_commands.load(Ordering::Acquire)
    }

    /// Whether somebody watches requests.
    pub(crate) fn takes_requests(&self) -> bool {
        self.watches_requests.load(Ordering::Acquire)
    }

    /// A command was executed.
    pub(crate) fn command(&self, function: usize, at: u64, input: &[u8], output: &[u8]) {
        let (input, output) = (input.into(), output.into());
        self.queue().push_back(Seen::Command { function, at, input, output });
    }

    /// A request is done with.
    pub(crate) fn request(&self, request: Request) {
        self.queue().push_back(Seen::Request(request));
    }

    /// Tells the watchers; with the world's lock released. Where another thread does so already, or
    /// a watcher has called the model, what is new is left to whoever is at it.
    ///
    /// `all`: what comes meanwhile is told, too, as nobody else would. Without it, as many are told
    /// as there are now: whoever tells is not kept from its work by those who go on pushing, and
    /// the model's thread comes back soon.
    ///
    /// # Panics
    /// When a watcher does; it is told nothing any more.
    pub(crate) fn deliver(&self, all: bool) {
        let mut left = self.queue().len();
        while left > 0 {
            let mut watchers = match self.watchers.try_lock() {
                Ok(watchers) => watchers,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            while left > 0
                && let Some(seen) = self.pop()
            {
                left = if all { left } else { left - 1 };
                self.tell(&mut watchers, &seen);
            }
            drop(watchers);
            left = if all { self.queue().len() } else { 0 };
        }
    }

    fn tell(&self, watchers: &mut Watchers, seen: &Seen) {
        let told = catch_unwind(AssertUnwindSafe(|| watchers.tell(seen)));
        if let Err(panic) = told {
            match seen {
                Seen::Command { .. } => {
                    self.watches_commands.store(false, Ordering::Release);
                    watchers.commands = None;
                }
                Seen::Request(_) => {
                    self.watches_requests.store(false, Ordering::Release);
                    watchers.requests = None;
                }
            }
            resume_unwind(panic);
        }
    }

    /// With the queue free again when a watcher is told.
    fn pop(&self) -> Option<Seen> {
        self.queue().pop_front()
    }
}

impl Watchers {
    fn tell(&mut self, seen: &Seen) {
        match seen {
            Seen::Command { function, at, input, output } => {
                if let Some(watcher) = &mut self.commands {
                    let at = Duration::from_nanos(*at);
                    watcher(&Executed { function: *function, at, input, output });
                }
            }
            Seen::Request(request) => {
                if let Some(watcher) = &mut self.requests {
                    watcher(request);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use verbless_prm::dump::parse_log;

    use super::*;
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
        model.record_commands(text.clone());
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
        model.watch_commands(move |executed| {
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
        // It owns the model that owns it.
        model.watch_commands(|_| ());
    }

    #[test]
    fn whoever_tells_is_not_held_up_by_what_is_pushed_meanwhile() {
        for (all, most) in [(false, 1), (true, 10)] {
            let outbox = Arc::new(Outbox::default());
            let told = Arc::new(Mutex::new(0));
            let (count, again) = (told.clone(), Arc::downgrade(&outbox));
            outbox.watch_commands(move |_| {
                *count.lock().unwrap() += 1;
                if *count.lock().unwrap() < 10 {
                    again.upgrade().unwrap().command(0, 0, &[], &[]);
                }
            });
            outbox.command(0, 0, &[], &[]);
            outbox.deliver(all);
            assert_eq!(*told.lock().unwrap(), most);
        }
    }

    #[test]
    fn commands_of_several_threads_are_told_in_the_order_in_which_they_were_executed() {
        let model = model();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let sink = heard.clone();
        // A stepped model's clock stands still, so the order is that of the marks.
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
