//! Decodes the entries of a stream into messages and writes them to its output.

use std::io;

use super::output::Output;
use super::template::Template;
use super::text::{Message, Messages, Record};
use crate::error::Error;

/// Builds messages from entries and passes them to an output.
#[derive(Debug)]
pub(super) struct Sink {
    texts: EntryDecoder,
    output: Output,
    /// The output's error, reported once.
    failed: Option<io::Error>,
    taken: u64,
}

/// How entries become messages.
#[derive(Debug)]
pub(super) enum EntryDecoder {
    /// Entries are segments of messages.
    Messages(Messages),
    /// Entries are records, to be formatted with these templates.
    Records { templates: Vec<Template>, broken: u64 },
}

impl Sink {
    pub(super) const fn new(texts: EntryDecoder, output: Output) -> Self {
        Self { texts, output, failed: None, taken: 0 }
    }

    pub(super) fn take(&mut self, number: u64, entry: &[u8]) {
        let message = match &mut self.texts {
            EntryDecoder::Messages(messages) => messages.take(number, entry),
            EntryDecoder::Records { templates, broken } => {
                let message = of_record(templates, entry);
                *broken += u64::from(message.is_none());
                message
            }
        };
        let Some(message) = message else { return };
        self.taken += 1;
        if let Err(error) = self.output.put(&message) {
            self.failed.get_or_insert(error);
        }
    }

    /// The number of messages so far.
    pub(super) const fn taken(&self) -> u64 {
        self.taken
    }

    /// The number of incomplete or invalid messages.
    pub(super) const fn broken(&self) -> u64 {
        match &self.texts {
            EntryDecoder::Messages(messages) => messages.broken,
            EntryDecoder::Records { broken, .. } => *broken,
        }
    }

    /// Reports a failed output once.
    pub(super) fn works(&mut self, name: &str) -> Result<(), Error> {
        match self.failed.take() {
            Some(error) => Err(Error::Failed(format!(
                "writing messages of {name} to its output: {error}; they are lost"
            ))),
            None => Ok(()),
        }
    }
}

/// The message of a record; `None` if the entry is not a record, or its format does not exist.
fn of_record(templates: &[Template], entry: &[u8]) -> Option<Message> {
    let record = Record::parse(entry)?;
    let template = templates.get(usize::try_from(record.id).ok()?)?;
    let text = template.text(&record.arguments);
    Some(Message { number: record.number, level: None, thread: record.thread, text })
}
