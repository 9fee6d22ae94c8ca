//! The file of a recording while it is written: case after case, up to a limit.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Instant;

use serde::Serialize;
use verbless_prm::CommandInfo;
use verbless_prm::dump::write_command;

use super::entry::{CaseEnd, CaseStart, Entry, Header, Ioctl, TITLE};
use super::pseudonyms::Pseudonyms;
use crate::Outcome;

/// How much is recorded.
#[derive(Clone, Copy, Debug)]
pub struct RecordLimits {
    /// Bytes of the file at most. The case that reaches them is cut short.
    pub bytes: u64,
    /// Whether GIDs, GUIDs and MAC addresses of the devices are kept; otherwise others stand for
    /// them throughout.
    pub identity: bool,
}

/// A recording that is being written.
pub struct Recording {
    limits: RecordLimits,
    begun: Instant,
    file: Mutex<Sink>,
}

struct Sink {
    out: BufWriter<File>,
    written: u64,
    /// The number of the case that is being recorded; 0 before the first.
    case: u64,
    /// Cases that are recorded whole.
    whole: u64,
    /// The case that reached the limit.
    cut: Option<String>,
    /// Why nothing more could be written.
    failed: Option<String>,
    pseudonyms: Pseudonyms,
    /// The numbers of commands by their mailboxes. Each open of a device reads all its capabilities
    /// again.
    commands: HashMap<(Vec<u8>, Vec<u8>), u32>,
}

/// Commands that are kept in memory, for those that come again.
const MOST_COMMANDS: usize = 1 << 14;
/// Bytes of the shortest of them.
const LEAST_KEPT: usize = 256;

/// Part of a recording: what one case asks. A case that ended adds nothing.
pub(crate) struct Section {
    recording: Arc<Recording>,
    number: u64,
    name: String,
    files: AtomicU32,
    channels: AtomicU32,
    threads: Mutex<Vec<ThreadId>>,
}

impl Recording {
    /// Creates the file.
    ///
    /// # Errors
    /// Those of the file.
    pub fn create(path: &Path, limits: RecordLimits) -> io::Result<Arc<Self>> {
        let file = File::create(path).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        })?;
        let out = BufWriter::new(file);
        let sink = Sink {
            out,
            written: 0,
            case: 0,
            whole: 0,
            cut: None,
            failed: None,
            pseudonyms: Pseudonyms::default(),
            commands: HashMap::new(),
        };
        Ok(Arc::new(Self { limits, begun: Instant::now(), file: Mutex::new(sink) }))
    }

    pub(crate) fn limits(&self) -> RecordLimits {
        self.limits
    }

    /// Writes what is recorded, and on which devices.
    pub(super) fn begin(&self, mut header: Header) {
        let mut sink = self.sink();
        if !self.limits.identity {
            sink.pseudonyms.learn_devices(&header.devices);
            sink.pseudonyms.rename_devices(&mut header.devices);
            header.device = sink.pseudonyms.rename_text(&header.device);
            sink.failed = sink.pseudonyms.limit_reached();
        }
        let title = format!(
            "{TITLE}: what hwtest asked of a device, and its answers; `hwtest replay FILE` answers \
             from it\n"
        );
        sink.add(self.limits.bytes, title.as_bytes());
        sink.line(self.limits.bytes, "recording", &header);
    }

    /// Begins the part of a case.
    pub(crate) fn case(self: &Arc<Self>, name: &str) -> Arc<Section> {
        let mut sink = self.sink();
        sink.case += 1;
        sink.line(self.limits.bytes, "case", &CaseStart { name: name.into() });
        Arc::new(Section {
            recording: self.clone(),
            number: sink.case,
            name: name.into(),
            files: AtomicU32::new(0),
            channels: AtomicU32::new(0),
            threads: Mutex::default(),
        })
    }

    /// Writes what is left to the file; a sentence about what the recording has and lacks.
    pub fn finish(&self) -> String {
        let mut sink = self.sink();
        if let Err(error) = sink.out.flush() {
            sink.failed.get_or_insert(error.to_string());
        }
        let size = format!("{:.1} MiB", sink.written as f64 / f64::from(1 << 20));
        let mut text = format!("Recorded {} cases in {size}", sink.whole);
        if let Some(case) = &sink.cut {
            let limit = self.limits.bytes >> 20;
            text += &format!(
                "; the limit of {limit} MiB was reached in {case}: what came after is missing \
                 (--record-limit MIB raises it, --filter records fewer cases)"
            );
        }
        if let Some(why) = &sink.failed {
            text += &format!("; the file is not whole: {why}");
        }
        text
    }

    fn sink(&self) -> MutexGuard<'_, Sink> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sink {
    /// Writes text whole, or nothing more if it does not fit.
    fn add(&mut self, limit: u64, text: &[u8]) -> bool {
        if self.cut.is_some() || self.failed.is_some() {
            return false;
        }
        if self.written + text.len() as u64 > limit {
            self.cut = Some("the first case".into());
            return false;
        }
        self.written += text.len() as u64;
        if let Err(error) = self.out.write_all(text) {
            self.failed = Some(error.to_string());
        }
        self.failed.is_none()
    }

    fn line(&mut self, limit: u64, word: &str, value: &impl Serialize) -> bool {
        match serde_json::to_string(value) {
            Ok(json) => self.add(limit, format!("{word} {json}\n").as_bytes()),
            Err(error) => {
                self.failed = Some(error.to_string());
                false
            }
        }
    }
}

impl Section {
    /// The number of the next open file of the case.
    pub(super) fn next_file(&self) -> u32 {
        self.files.fetch_add(1, Ordering::Relaxed)
    }

    /// The number of the next channel of the case.
    pub(super) fn next_channel(&self) -> u32 {
        self.channels.fetch_add(1, Ordering::Relaxed)
    }

    /// The number of the calling thread in the case.
    pub(super) fn thread(&self) -> u32 {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let own = thread::current().id();
        let number = threads.iter().position(|id| *id == own).unwrap_or_else(|| {
            threads.push(own);
            threads.len() - 1
        });
        number as u32
    }

    /// Adds what happened.
    pub(super) fn add(&self, mut entry: Entry) {
        let mut sink = self.recording.sink();
        if sink.case != self.number {
            return;
        }
        if !self.recording.limits.identity {
            sink.pseudonyms.rename(&mut entry);
        }
        let mut text = format!("[{:>13.6}] ", self.recording.begun.elapsed().as_secs_f64());
        let json = match &entry {
            Entry::Open(it) => serde_json::to_string(it).map(|json| ("open", json)),
            Entry::Ioctl(it) => serde_json::to_string(it).map(|json| ("ioctl", json)),
            Entry::Map(it) => serde_json::to_string(it).map(|json| ("map", json)),
            Entry::Control(it) => serde_json::to_string(it).map(|json| ("control", json)),
            Entry::Wqe(it) => serde_json::to_string(it).map(|json| ("wqe", json)),
            Entry::Cqe(it) => serde_json::to_string(it).map(|json| ("cqe", json)),
            Entry::Event(it) => serde_json::to_string(it).map(|json| ("event", json)),
            Entry::Unseen(it) => serde_json::to_string(it).map(|json| ("unseen", json)),
        };
        match json {
            Ok((word, json)) => text += &format!("{word} {json}\n"),
            Err(error) => sink.failed = Some(error.to_string()),
        }
        self.write(&mut sink, text.as_bytes());
    }

    /// Adds an ioctl with the mailboxes of its command, as the kernel took and gave them.
    pub(super) fn add_command(&self, ioctl: Ioctl, mut input: Vec<u8>, mut output: Vec<u8>) {
        let mut sink = self.recording.sink();
        if sink.case != self.number {
            return;
        }
        let mut entry = Entry::Ioctl(ioctl);
        if !self.recording.limits.identity {
            sink.pseudonyms.learn_command(&input, &output);
            if let Some(why) = sink.pseudonyms.limit_reached() {
                sink.failed.get_or_insert(why);
                return;
            }
            sink.pseudonyms.rename(&mut entry);
            sink.pseudonyms.rename_bytes(&mut input);
            sink.pseudonyms.rename_bytes(&mut output);
        }
        let Entry::Ioctl(mut ioctl) = entry else { return };
        let mailboxes = (input, output);
        let before = sink.commands.get(&mailboxes).copied();
        let long = mailboxes.0.len() + mailboxes.1.len() >= LEAST_KEPT;
        let number = sink.commands.len() as u32;
        let keeps = before.is_none() && long && sink.commands.len() < MOST_COMMANDS;
        ioctl.command = before.or(keeps.then_some(number));
        let (input, output) = &mailboxes;
        let opcode = input.first_chunk().map_or(0, |bytes| u16::from_be_bytes(*bytes));
        let name = CommandInfo::by_opcode(opcode).map_or("UNKNOWN", |command| command.name);
        let time = format!("[{:>13.6}]", self.recording.begun.elapsed().as_secs_f64());
        let origin = format!("{time} file {}", ioctl.file);
        let mut text = Vec::new();
        let written = match before {
            Some(_) => Ok(()),
            None => {
                write_command(&mut text, &origin, &format!("{name}({opcode:#x})"), input, output)
            }
        };
        match written.map_err(serde_json::Error::io).and_then(|()| serde_json::to_string(&ioctl)) {
            Ok(json) => text.extend(format!("{time} ioctl {json}\n").bytes()),
            Err(error) => sink.failed = Some(error.to_string()),
        }
        if keeps {
            sink.commands.insert(mailboxes, number);
        }
        self.write(&mut sink, &text);
    }

    /// Learns the identifiers in the answer to an asynchronous query.
    pub(super) fn learn_answer(&self, input: &[u8], output: &[u8]) {
        let mut sink = self.recording.sink();
        if self.recording.limits.identity {
            return;
        }
        sink.pseudonyms.learn_command(input, output);
        if let Some(why) = sink.pseudonyms.limit_reached() {
            sink.failed.get_or_insert(why);
        }
    }

    /// Ends the part of the case.
    pub(crate) fn end(&self, outcome: &Outcome, seconds: f64) {
        let mut sink = self.recording.sink();
        let (outcome, reason) = match outcome {
            Outcome::Passed => ("passed", ""),
            Outcome::Failed(reason) => ("failed", &**reason),
            Outcome::Skipped(reason) | Outcome::Blocked(reason) => ("skipped", &**reason),
        };
        // The reason of a failure may have addresses in it.
        let reason = match self.recording.limits.identity {
            true => reason.into(),
            false => sink.pseudonyms.rename_text(reason),
        };
        let end = CaseEnd { outcome: outcome.into(), reason, seconds };
        let limit = self.recording.limits.bytes;
        let open = sink.cut.is_none();
        if sink.line(limit, "end", &end) {
            sink.whole += 1;
        } else if open && sink.cut.is_some() {
            sink.cut = Some(self.name.clone());
        }
        sink.case += 1;
    }

    fn write(&self, sink: &mut Sink, text: &[u8]) {
        let open = sink.cut.is_none();
        if !sink.add(self.recording.limits.bytes, text) && open && sink.cut.is_some() {
            sink.cut = Some(self.name.clone());
        }
    }
}
