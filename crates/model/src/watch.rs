//! Seeing the commands of a model as they are executed: for traces, recordings and tests.
//!
//! Whoever plays the kernel, a command reaches a function in one place, and there it is seen: the whole input, the uid
//! stamped, and the whole output. A model that nobody watches pays one comparison a command.

use std::fmt;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use verbless_prm::CommandInfo;
use verbless_prm::dump::write_command;

use crate::model::Model;
use crate::world::HcaId;

/// A command that a function has executed or refused.
#[derive(Clone, Copy, Debug)]
pub struct Executed<'a> {
    /// Which function, from 0, as the methods of [`Model`] number them.
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

/// Who watches the commands of a function.
#[derive(Clone)]
pub(crate) struct Watcher(Arc<Mutex<See>>);

type See = dyn FnMut(&Executed<'_>) + Send;

impl Watcher {
    pub(crate) fn see(&self, function: HcaId, now: u64, input: &[u8], output: &[u8]) {
        let executed = Executed { function, at: Duration::from_nanos(now), input, output };
        self.0.lock().unwrap_or_else(PoisonError::into_inner)(&executed);
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watcher")
    }
}

impl Model {
    /// Calls `watcher` after every command that any function executes from now on, refused ones too, in their order; it
    /// takes the place of the one before. It runs under the model's lock: it must not call the model.
    pub fn watch_commands(&self, watcher: impl FnMut(&Executed<'_>) + Send + 'static) {
        let watcher = Watcher(Arc::new(Mutex::new(watcher)));
        for hca in &mut self.shared.lock().hcas {
            hca.watcher = Some(watcher.clone());
        }
    }

    /// Writes every command from now on to `sink`, as text that `cargo xtask prm decode` reads. What cannot be written
    /// is lost, and the log says so once.
    pub fn record_commands(&self, mut sink: impl Write + Send + 'static) {
        let mut lost = false;
        self.watch_commands(move |executed| {
            let mut text = Vec::new();
            let written = executed.write(&mut text).and_then(|()| sink.write_all(&text));
            if let Err(error) = written
                && !lost
            {
                tracing::warn!(%error, "the recording of commands is not complete");
                lost = true;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use verbless_devx::{Backend, Context};
    use verbless_prm::dump::parse_log;

    use super::*;
    use crate::Profile;

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

    fn open(model: &Model) -> Context {
        let backend = model.backend();
        let devices = backend.enumerate().unwrap();
        Context::open(&backend, &devices[0]).unwrap()
    }

    #[test]
    fn a_recording_holds_every_command_with_its_output_and_reads_back() {
        let model = Model::builder().device(Profile::load("bluefield3").unwrap()).stepped().build();
        let text = Text::default();
        model.record_commands(text.clone());
        let context = open(&model);
        let mut nop = vec![0x08, 0x0d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        nop.extend(b"a mark");
        context.devx_other(&nop, &mut [0; 16]).unwrap();
        drop(context);
        let text = String::from_utf8(text.0.lock().unwrap().clone()).unwrap();
        let commands = parse_log(&text).unwrap();
        assert_eq!(commands[0].title, "ENABLE_HCA(0x104)");
        assert_eq!(commands.last().unwrap().title, "DISABLE_HCA(0x105)");
        let marked = commands.iter().find(|command| command.title == "NOP(0x80d)").unwrap();
        assert_eq!(marked.input.len(), nop.len());
        assert_eq!(marked.input[16..], nop[16..]);
        assert_ne!(marked.input[2..4], [0, 0], "the kernel's stamp is there");
        assert_eq!(marked.output.as_deref(), Some(&[0; 16][..]));
        assert!(marked.origin.ends_with("] function 0"), "{}", marked.origin);
    }

    #[test]
    fn a_refused_command_is_seen_with_its_status() {
        let model = Model::builder().device(Profile::load("bluefield3").unwrap()).stepped().build();
        let context = open(&model);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = seen.clone();
        model
            .watch_commands(move |it| sink.lock().unwrap().push((it.input.to_vec(), it.output[0])));
        model.fail_command(0, verbless_prm::NOP.opcode, 1, 0x0f, 1);
        let mut nop = [0; 16];
        nop[..2].copy_from_slice(&verbless_prm::NOP.opcode.to_be_bytes());
        context.devx_other(&nop, &mut [0; 16]).unwrap_err();
        assert_eq!(
            seen.lock().unwrap().iter().map(|(_, status)| *status).collect::<Vec<_>>(),
            [0x0f]
        );
    }
}
