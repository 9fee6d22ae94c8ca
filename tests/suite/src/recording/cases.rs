//! The cases of a recording, run again on its answers.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use verbless_devx::abi::{attr, method};
use verbless_devx::{DeviceInfo, page_size};
use verbless_prm::{ModifyRqIn, ModifySqIn, Opcode, RqState, SqState};

use super::compare::method_of;
use super::document::{Document, RecordedCase};
use super::entry::{Entry, Header, Ioctl};
use super::replay::{Replay, Script};
use super::writer::Recording;
use crate::run::{is_hung, supervise};
use crate::{Case, Choice, Lab, Need, Outcome, Row, Stop, cases};

impl Recording {
    /// Writes what is recorded, and on which devices. `program`: its version in words.
    pub fn describe(&self, lab: &Lab, program: &str, device: &str) {
        let limits = self.limits();
        self.begin(Header {
            format: super::entry::FORMAT,
            program: program.into(),
            device: device.into(),
            identity: limits.identity,
            limit: limits.bytes,
            page_bytes: lab.device().map_or(page_size(), |device| device.page_size()) as u64,
            destructive: lab.destructive(),
            long: lab.is_long(),
            devices: lab.devices().iter().map(Into::into).collect(),
        });
    }
}

/// A recording whose cases are run again.
pub struct Replayed {
    header: Header,
    devices: Vec<DeviceInfo>,
    cases: Vec<RecordedCase>,
}

impl Replayed {
    /// Reads a file of `hwtest --record`.
    ///
    /// # Errors
    /// It cannot be read, is too large, or is no recording.
    pub fn read(path: &Path) -> Result<Self, Stop> {
        Self::of(Document::read(path).map_err(Stop)?)
    }

    pub(super) fn of(document: Document) -> Result<Self, Stop> {
        let Document { header, cases } = document;
        let devices = header.devices.iter().map(|device| device.info());
        let devices = devices.collect::<Result<_, _>>().map_err(Stop)?;
        Ok(Self { header, devices, cases })
    }

    /// What the recording has, one line each.
    pub fn describe(&self) -> Vec<String> {
        let Header { program, device, identity, .. } = &self.header;
        let identity = if *identity { "has" } else { "does not have" };
        let mut lines = vec![
            format!("recorded by {program}"),
            format!("on {device}"),
            format!("it {identity} the devices' own addresses"),
        ];
        if self.header.long {
            lines.push("of a long run: replay it with --long".into());
        }
        let own = page_size() as u64;
        if self.header.page_bytes != own {
            lines.push(format!(
                "its kernel has pages of {} bytes, this one of {own}: memory may be registered \
                 at other offsets",
                self.header.page_bytes
            ));
        }
        lines
    }

    /// Runs the cases whose names `selects`, in the order of the recording. `long`: cases repeat
    /// something for minutes, as in the recording of a long run; the file, a stranger's, cannot ask
    /// for it. After a case that hangs, the others are skipped: its thread goes on.
    ///
    /// # Errors
    /// Those of `done`.
    pub fn run<E>(
        self,
        selects: impl Fn(&str) -> bool,
        long: bool,
        mut done: impl FnMut(Row) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut hung: Option<String> = None;
        for case in self.cases.into_iter().filter(|case| selects(&case.name)) {
            let begun = Instant::now();
            let name = case.name.clone();
            let outcome = match &hung {
                Some(before) => Outcome::Skipped(format!("{before} hung before it")),
                None => {
                    let mut hangs = false;
                    let outcome = run_again(&self.header, &self.devices, case, long, &mut hangs);
                    hung = hangs.then(|| name.clone());
                    outcome
                }
            };
            let seconds = begun.elapsed().as_secs_f64();
            let (failed_commands, kernel_log) = (Vec::new(), Vec::new());
            done(Row { case: name, outcome, seconds, failed_commands, kernel_log })?;
        }
        Ok(())
    }
}

/// Runs one case on the answers that it got.
fn run_again(
    header: &Header,
    devices: &[DeviceInfo],
    recorded: RecordedCase,
    long: bool,
    hangs: &mut bool,
) -> Outcome {
    let skip = |why: &str| Outcome::Skipped(format!("not replayable: {why}"));
    let Some(end) = recorded.end.clone() else {
        return skip("the recording ends within it");
    };
    let Some(case) = cases().find(|case| case.id() == recorded.name) else {
        return skip("this program has no such case");
    };
    if end.outcome == "skipped" {
        return Outcome::Skipped(end.reason);
    }
    if let Some(why) = beyond_recordings(case) {
        return skip(why);
    }
    if let Some(why) = unrecorded(&recorded) {
        return skip(why);
    }
    let is_played = |entry: &Entry| matches!(entry, Entry::Wqe(_) | Entry::Event(_));
    let has_queues = recorded.entries.iter().any(|it| is_played(&it.entry));
    let choice = Choice { destructive: header.destructive, long, ..Choice::default() };
    let script = Script::new(recorded);
    let page_size = header.page_bytes as usize;
    let backend = Replay { devices: devices.to_vec(), script: script.clone(), page_size };
    if has_queues {
        script.play_queues();
    }
    let lab = Lab::on_recording(Arc::new(backend), devices.to_vec(), choice);
    let ended = supervise(lab, case);
    *hangs = is_hung(&ended);
    let differences = script.finish();
    // What a case reads of its memory is not what the device wrote there.
    if has_queues
        && let Err(Stop(why)) = &ended
        && end.outcome == "passed"
        && !script.was_contradicted()
    {
        return skip(&format!("it needs bytes of messages that are not recorded: {why}"));
    }
    if !differences.is_empty() {
        let why = ended.err().map(|Stop(why)| format!("it ends with: {why}"));
        let lines: Vec<_> = why.into_iter().chain(differences).collect();
        return Outcome::Failed(lines.join("\n      "));
    }
    match ended {
        _ if script.wanted_control() => skip("it needs /dev/fwctl/fwctlN, which is not recorded"),
        Ok(()) if end.outcome == "passed" => Outcome::Passed,
        Ok(()) => Outcome::Failed(format!("it passes; in the recording it failed: {}", end.reason)),
        Err(_) if end.outcome == "failed" => Outcome::Passed,
        Err(Stop(why)) => Outcome::Failed(why),
    }
}

/// Why no recording can replay a case.
fn beyond_recordings(case: &Case) -> Option<&'static str> {
    case.needs.iter().find_map(|need| match need {
        Need::Model => Some("it inspects the model or makes it fail"),
        Need::TwoProcesses => Some("it needs two processes"),
        _ => None,
    })
}

/// What a case did of which its recording lacks a part.
fn unrecorded(case: &RecordedCase) -> Option<&'static str> {
    let mut initialized = HashSet::new();
    case.entries.iter().find_map(|recorded| {
        let opcode = recorded.input.first_chunk().map(|bytes| u16::from_be_bytes(*bytes));
        match (&recorded.entry, opcode.map(Opcode)) {
            (Entry::Unseen(_), _) => Some("its queues were faster than the recorder"),
            (Entry::Ioctl(ioctl), _) if signals_eventfd(ioctl) => {
                Some("its events signal an eventfd, which is not recorded")
            }
            (Entry::Ioctl(_), Some(Opcode::CREATE_XRC_SRQ)) => {
                Some("it has XRC SRQs, which are not recorded")
            }
            (Entry::Ioctl(ioctl), Some(opcode)) if leaves_reset(opcode, &recorded.input) => {
                let handle = ioctl.attributes.iter().find_map(|attr| attr.handle);
                (!initialized.insert((ioctl.file, handle)))
                    .then_some("it uses a queue again after a reset: its indexes repeat")
            }
            _ => None,
        }
    })
}

/// Whether a request subscribes an eventfd to events.
fn signals_eventfd(ioctl: &Ioctl) -> bool {
    method_of(ioctl) == method::DEVX_SUBSCRIBE_EVENT
        && ioctl.attributes.iter().any(|it| it.id == attr::devx_subscribe_event::FD_NUM)
}

/// Whether a command takes a queue out of RST.
fn leaves_reset(opcode: Opcode, input: &[u8]) -> bool {
    match opcode {
        Opcode::RST2INIT_QP => true,
        Opcode::MODIFY_SQ => {
            ModifySqIn::from_prefix(input).is_some_and(|it| it.sq_state() == SqState::RST)
        }
        Opcode::MODIFY_RQ => {
            ModifyRqIn::from_prefix(input).is_some_and(|it| it.rq_state() == RqState::RST)
        }
        _ => false,
    }
}
