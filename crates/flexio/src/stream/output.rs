//! Destinations of messages.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use super::report::MsgBinReport;
use super::text::Message;

/// The destination of a stream's messages; the C library takes a `FILE`.
///
/// The receiving thread uses it: the stream's reading thread, or the caller of poll or flush.
pub struct Output(OutputKind);

enum OutputKind {
    Lines(Box<dyn Write + Send>),
    Reports(Box<dyn Write + Send>),
    Messages(Box<dyn FnMut(&Message) + Send>),
}

impl Output {
    /// Writes messages as lines to any writer: a file, a pipe, a buffer. Each message ends a line,
    /// even without a final newline, and is flushed. Control characters other than newlines and
    /// tabs become escapes: a program cannot send commands to a terminal.
    pub fn lines(to: impl Write + Send + 'static) -> Self {
        Self(OutputKind::Lines(Box::new(to)))
    }

    /// Lines to a file, created or emptied.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn file(path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self::lines(File::create(path)?))
    }

    /// Lines to standard output.
    pub fn stdout() -> Self {
        Self::lines(io::stdout())
    }

    /// A [`MsgBinReport`] of each message, flushed, for a tool to read.
    pub fn binary(to: impl Write + Send + 'static) -> Self {
        Self(OutputKind::Reports(Box::new(to)))
    }

    /// Passes each message to a function, unchanged. The function must not use the stream itself.
    pub fn messages(to: impl FnMut(&Message) + Send + 'static) -> Self {
        Self(OutputKind::Messages(Box::new(to)))
    }

    pub(super) fn put(&mut self, message: &Message) -> io::Result<()> {
        match &mut self.0 {
            OutputKind::Messages(to) => {
                to(message);
                Ok(())
            }
            OutputKind::Reports(to) => {
                to.write_all(&MsgBinReport(message.clone()).to_bytes())?;
                to.flush()
            }
            OutputKind::Lines(to) => {
                let mut line = String::with_capacity(message.text.len() + 1);
                for character in message.text.trim_end_matches('\n').chars() {
                    match character {
                        '\n' | '\t' => line.push(character),
                        it if it.is_control() => line.extend(it.escape_default()),
                        it => line.push(it),
                    }
                }
                line.push('\n');
                to.write_all(line.as_bytes())?;
                to.flush()
            }
        }
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            OutputKind::Lines(_) => "Output::lines",
            OutputKind::Reports(_) => "Output::binary",
            OutputKind::Messages(_) => "Output::messages",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn message_becomes_line_without_control_characters() {
        let shared = Sink::default();
        let mut output = Output::lines(shared.clone());
        for text in ["one", "two\n", "a\tb\nc", "\x1b[2Jgone\r", ""] {
            let message = Message { number: 0, level: None, thread: 0, text: text.into() };
            output.put(&message).unwrap();
        }
        let bytes = shared.0.lock().unwrap().clone();
        let expected = "one\ntwo\na\tb\nc\n\\u{1b}[2Jgone\\r\n\n";
        assert_eq!(String::from_utf8(bytes).unwrap(), expected);
    }
}
