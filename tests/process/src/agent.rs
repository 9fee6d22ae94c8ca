//! Starts roles on the other side of a BlueField. Programs that `verbless-model run --dpu` starts
//! there are not children of the programs on the host's side. One of them, the agent, starts the
//! second role of each case for the director on the host's side.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::unistd::Pid;
use verbless_conformance::Stop;

use crate::on::On;

/// The agent may start after the director.
const START: Duration = Duration::from_secs(20);

/// The line that ends the agent.
const END: &str = "end";

/// Starts a role for each connection to the socket, with the connection as its director.
pub(crate) fn run(on: &On, socket: &Path) -> Result<bool, Stop> {
    let listener = UnixListener::bind(socket)
        .map_err(|error| Stop::fail(format!("socket {}: {error}", socket.display())))?;
    let mut children = Vec::new();
    loop {
        let (stream, _) = listener.accept()?;
        let line = line(&stream)?;
        if line == END {
            break;
        }
        let words: Vec<&str> = line.split(' ').collect();
        let [case, life] = words[..] else {
            return Err(Stop::fail(format!("the director says {line:?}, not a case and a life")));
        };
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--device", &on.device, "role", case, "b", life]);
        let mut director = stream.try_clone()?;
        let child = command.stdin(Stdio::from(OwnedFd::from(stream))).spawn()?;
        director.write_all(&child.id().to_be_bytes())?;
        children.push(child);
    }
    let _ = std::fs::remove_file(socket);
    for mut child in children {
        child.wait()?;
    }
    Ok(true)
}

/// Reads a line, without a byte after it.
fn line(stream: &UnixStream) -> Result<String, Stop> {
    let mut line = String::new();
    BufReader::with_capacity(1, stream).read_line(&mut line)?;
    Ok(line.trim_end().to_string())
}

/// Asks the agent to start a role; returns its process and its socket.
pub(crate) fn role(socket: &Path, case: &str, life: u32) -> Result<(Pid, UnixStream), Stop> {
    let mut stream = connect(socket)?;
    writeln!(stream, "{case} {life}")?;
    let mut id = [0; 4];
    stream.read_exact(&mut id)?;
    Ok((Pid::from_raw(u32::from_be_bytes(id) as i32), stream))
}

/// Ends the agent.
pub(crate) fn end(socket: &Path) -> Result<(), Stop> {
    Ok(writeln!(connect(socket)?, "{END}")?)
}

fn connect(socket: &Path) -> Result<UnixStream, Stop> {
    let end = Instant::now() + START;
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return Ok(stream),
            Err(error)
                if [ErrorKind::NotFound, ErrorKind::ConnectionRefused].contains(&error.kind())
                    && Instant::now() < end =>
            {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) => {
                let text = format!("no agent answers at {}: {error}", socket.display());
                return Err(Stop::fail(text));
            }
        }
    }
}
