//! The host's side: the servers of each round, one after the other at the same end of the cable.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::rounds::{GUEST, IPV4_OF_MODEL, Network, Peer, Round};
use super::tap;
use crate::vm::child::{Guarded, Scratch};
use crate::vm::fetch;
use crate::vm::qemu::Cable;
use crate::workspace::Result;

/// The model's link: an emulated guest is slow, and frames that exceed its socket's queue are lost.
const LINK: &str = "[[link]]\nbandwidth = \"20Mb/s\"\n";
/// One frame in a hundred is lost, in each direction.
const LOSS: &str = "[[fault]]\neffect = \"lose\"\nchance = 0.01\n";

/// After [`LOSS`]: only packets of RC SENDs of several packets.
const LOSS_OF_SENDS: &str = "opcode = [\"RC_SEND_FIRST\", \"RC_SEND_MIDDLE\", \"RC_SEND_LAST\"]\n";

/// The twentieth datagram is lost.
const LOSS_OF_ONE: &str = "[[fault]]\neffect = \"lose\"\nopcode = [\"UD_SEND_ONLY\"]\nnth = 20\n";

/// How long the servers may run after the guest's end.
const PATIENCE: Duration = Duration::from_secs(10);

/// The programs that serve: `verbless-model` and `rxe-peer`.
pub(super) struct Binaries {
    pub(super) model: PathBuf,
    pub(super) peer: PathBuf,
}

/// The servers, in a thread.
pub(super) struct Servers {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<std::result::Result<(), String>>>,
    log: PathBuf,
}

impl Servers {
    pub(super) fn start(
        rounds: &[Round],
        binaries: &Binaries,
        cable: &Cable,
        scratch: &Scratch,
    ) -> Result<Self> {
        let rounds = rounds
            .iter()
            .map(|&round| Ok((round, command(round, binaries, cable, scratch)?)))
            .collect::<Result<Vec<_>>>()?;
        let log = fetch::folder().join("last-model.log");
        let output = File::create(&log)?;
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = stop.clone();
        let thread = std::thread::Builder::new()
            .spawn(move || serve_all(&rounds, &output, &is_over).map_err(|e| e.to_string()))?;
        Ok(Self { stop, thread: Some(thread), log })
    }

    /// Waits for the servers after the guest's end; an error if one failed. Returns their lines
    /// about rounds, links and frames.
    pub(super) fn finish(&mut self) -> Result<String> {
        let end = Instant::now() + PATIENCE;
        let Some(thread) = self.thread.take() else { return Ok(String::new()) };
        while !thread.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.stop.store(true, Ordering::Relaxed);
        let outcome = thread.join().map_err(|_| "the thread of the servers panicked")?;
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        match outcome {
            Ok(()) => Ok(summary(&text)),
            Err(error) => Err(format!("{error}\n{text}").into()),
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The user sees the earlier failure.
            let _ = thread.join();
        }
    }
}

/// Serves each round to its end, even after a failure.
fn serve_all(rounds: &[(Round, Command)], output: &File, stop: &AtomicBool) -> Result {
    let mut failed = Vec::new();
    for (round, command) in rounds {
        writeln!(&mut &*output, "=== {}", round.title())?;
        let mut process =
            Guarded::start(command, output.try_clone()?.into(), output.try_clone()?.into())?;
        let status = loop {
            match process.wait(Duration::from_millis(100))? {
                Some(status) => break status,
                None if stop.load(Ordering::Relaxed) => {
                    // A model that is killed by SIGKILL leaves its programs behind.
                    process.terminate(Duration::from_secs(5));
                    return Err(format!("with {}: the servers do not end", round.title()).into());
                }
                None => {}
            }
        };
        if !status.success() {
            failed.push(format!("with {}: the servers failed ({status})", round.title()));
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("; ").into()) }
}

/// The lines of a log about rounds, links and frames.
fn summary(log: &str) -> String {
    let starts = ["=== ", "--- device ", "pass  "];
    let is_summary = |line: &&str| starts.iter().any(|start| line.starts_with(start));
    log.lines().filter(is_summary).map(|line| format!("{line}\n")).collect()
}

/// The command that serves a round.
fn command(round: Round, binaries: &Binaries, cable: &Cable, scratch: &Scratch) -> Result<Command> {
    let port = round.port();
    let uplink = match round.network {
        Network::Udp => format!("udp:{},{}", tap::HOST, tap::GUEST),
        Network::LinkLocal | Network::Ipv4 => format!("{},{}", cable.outside, cable.guest),
    };
    let faults = scratch.join(&format!("faults-{port}.toml"));
    std::fs::write(&faults, [LINK, if round.loses { LOSS } else { "" }].concat())?;
    let of_sends = scratch.join(&format!("faults-{port}-of-sends.toml"));
    std::fs::write(&of_sends, [LINK, LOSS, LOSS_OF_SENDS].concat())?;
    match round.peer {
        Peer::Programs => {
            let script = scratch.join(&format!("servers-{port}.sh"));
            std::fs::write(&script, round.servers())?;
            let name = format!("rxe-{}-{port}", std::process::id());
            let words = [&binaries.model, Path::new("run")];
            let mut command = Command::new("env");
            command.arg(format!("MODEL={}", binaries.model.display()));
            command.arg(format!("LOSSES={}", faults.display()));
            let of_one = scratch.join(&format!("faults-{port}-of-one.toml"));
            std::fs::write(&of_one, [LINK, LOSS_OF_ONE].concat())?;
            command.arg(format!("ONE_DATAGRAM={}", of_one.display()));
            command.arg(format!("RUN={name}")).args(words);
            command.args(["--name", &name, "--link", "ethernet", "--uplink", &uplink]);
            if round.network == Network::Ipv4 {
                command.args(["--address", &format!("0={IPV4_OF_MODEL}"), "--neighbour", GUEST]);
            }
            let first = if round.loses { of_sends } else { faults };
            command.arg("--faults").arg(first).args(["--", "bash"]).arg(script);
            Ok(command)
        }
        Peer::Ours => {
            let mut command = Command::new(&binaries.peer);
            command.args(["--uplink", &uplink, "--port", &port.to_string()]);
            command.args(["--gid", &round.gid_of_model().to_string()]);
            if round.network == Network::Ipv4 {
                command.args(["--address", IPV4_OF_MODEL, "--neighbour", GUEST]);
            }
            command.arg("--faults").arg(faults);
            command.args(round.programs());
            Ok(command)
        }
    }
}
