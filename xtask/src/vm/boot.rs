//! Watches one boot: the guest's log, its program's output, the model, the clock and Ctrl-C.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::child::{Guarded, Interrupted, Signals};
use super::console::{Account, Console, is_shown};
use super::model::Model;
use crate::workspace::Result;

/// How long a boot may take until `/init`: normally seconds, more on a busy machine.
const BOOT: Duration = Duration::from_secs(120);

/// The inputs and outputs of a boot other than QEMU's.
pub(crate) struct Watch<'a> {
    pub(crate) signals: &'a Signals,
    pub(crate) model: Option<&'a mut Model>,
    /// Receives the program's output.
    pub(crate) output: UnixListener,
    /// Destination of the guest's log.
    pub(crate) log: &'a mut File,
    /// The file with QEMU's own output.
    pub(crate) complaints: &'a Path,
    /// The limit of the whole boot.
    pub(crate) limit: Duration,
    /// Set when the boot must end because another guest's has failed.
    pub(crate) abandoned: Option<&'a AtomicBool>,
}

/// The result of a boot.
pub(crate) struct Outcome {
    pub(crate) account: Account,
    pub(crate) console: Console,
    /// Why it ended before the guest powered off.
    pub(crate) cut_short: Option<String>,
    /// Time from QEMU's start until the guest was off.
    pub(crate) off: Duration,
}

impl Watch<'_> {
    /// Boots, and stays until the guest powers off, the model ends, the time is over, or the user
    /// ends the run.
    pub(crate) fn run(mut self, qemu: &Command) -> Result<Outcome> {
        let start = Instant::now();
        let complaints = File::create(self.complaints)?;
        let mut qemu = Guarded::start(qemu, Stdio::piped(), complaints.into())?;
        let mut log = qemu.take_stdout()?;
        let mut output: Option<UnixStream> = None;
        let mut ended = false;
        let mut outcome = Outcome {
            account: Account::default(),
            console: Console::new(),
            cut_short: None,
            off: Duration::ZERO,
        };
        let mut buffer = vec![0; 64 << 10];
        // The log ends when QEMU does.
        'log: loop {
            let second = output.as_ref().map_or(self.output.as_fd(), AsFd::as_fd);
            let mut waiting = vec![
                PollFd::new(self.signals.descriptor().as_fd(), PollFlags::POLLIN),
                PollFd::new(log.as_fd(), PollFlags::POLLIN),
            ];
            if !ended {
                waiting.push(PollFd::new(second, PollFlags::POLLIN));
            }
            match poll(&mut waiting, PollTimeout::from(200u8)) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
            let ready: Vec<bool> =
                waiting.iter().map(|waiting| waiting.any().unwrap_or(true)).collect();

            if self.signals.came()? {
                return Err(Interrupted.into());
            }
            if ready[1] {
                let length = log.read(&mut buffer)?;
                self.log.write_all(&buffer[..length])?;
                for mark in outcome.console.take(&buffer[..length]) {
                    outcome.account.note(mark, start.elapsed());
                }
                if length == 0 {
                    break 'log;
                }
            }
            if ready.get(2) == Some(&true) {
                match &mut output {
                    None => {
                        let stream = self.output.accept()?.0;
                        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
                        output = Some(stream);
                    }
                    Some(stream) => ended = !pass_on(stream, &mut buffer)?,
                }
            }
            outcome.cut_short = self.too_much(&outcome, start.elapsed());
            if outcome.cut_short.is_some() {
                return Ok(outcome);
            }
        }
        while let (Some(stream), false) = (&mut output, ended) {
            ended = !pass_on(stream, &mut buffer)?;
        }
        if let Some(mark) = outcome.console.end() {
            outcome.account.note(mark, start.elapsed());
        }
        outcome.off = start.elapsed();
        let status = qemu.wait(Duration::from_secs(5))?;
        if !status.is_some_and(|status| status.success()) {
            let said = std::fs::read_to_string(self.complaints).unwrap_or_default();
            outcome.cut_short = Some(format!("QEMU failed: {}", said.trim()));
        }
        Ok(outcome)
    }

    /// Why the boot must end, if it must.
    fn too_much(&mut self, outcome: &Outcome, elapsed: Duration) -> Option<String> {
        if elapsed > self.limit {
            return Some(format!("the guest was not done after {} s", self.limit.as_secs()));
        }
        if outcome.account.booted.is_none() && elapsed > BOOT {
            return Some(format!("the guest did not boot in {} s", BOOT.as_secs()));
        }
        if self.abandoned.is_some_and(|abandoned| abandoned.load(Ordering::Relaxed)) {
            return Some("the other guest has failed".to_string());
        }
        if outcome.console.is_flooded() {
            return Some("the guest's log does not end".to_string());
        }
        match &mut self.model {
            // Its end before the guest's is a failure; but while the guest powers off, it may come
            // first.
            Some(model) if outcome.account.done.is_none() => {
                model.check().err().map(|error| error.to_string())
            }
            _ => None,
        }
    }
}

/// Passes the program's output on to the user; returns whether more may come.
fn pass_on(stream: &mut UnixStream, buffer: &mut [u8]) -> Result<bool> {
    let length = stream.read(buffer)?;
    let shown: Vec<u8> = buffer[..length].iter().copied().filter(|&byte| is_shown(byte)).collect();
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(&shown)?;
    stdout.flush()?;
    Ok(length > 0)
}
