//! Starts roles on the other side of a BlueField. Programs that `verbless-model run --dpu` starts
//! there, or that run in the DPU's own system, are not children of the programs on the host's side.
//! One of them, the agent, starts the second role of each case for the director on the host's side,
//! and kills it for him.
//!
//! The director connects for each request. The agent greets each connection, because a forwarded
//! TCP port takes connections before the agent listens.

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use nix::unistd::Pid;
use verbless_conformance::Stop;

use crate::on::On;

/// The agent may start after the director, in a system that is still booting.
const START: Duration = Duration::from_secs(90);
/// How long the director waits for a connection's greeting before it connects again.
const GREETED: Duration = Duration::from_secs(3);
/// How long a connected director or agent may take to say something.
const ANSWERED: Duration = Duration::from_secs(20);

/// The agent's first byte on a connection.
const GREETING: u8 = b'!';
/// The line that ends the agent.
const END: &str = "end";
/// The first word of a line that kills a role, before its process id.
const KILL: &str = "kill";

/// Where the agent listens: the path of a socket, or `tcp:HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Path(PathBuf),
    Tcp(String),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("tcp:") {
            Some(address) if address.contains(':') => Ok(Self::Tcp(address.into())),
            Some(address) => Err(format!("{address} has no port: write tcp:HOST:PORT")),
            None => Ok(Self::Path(text.into())),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

/// A TCP connection as a stream socket: `UnixStream` reads, writes and times out any socket.
fn stream_of(connection: TcpStream) -> std::io::Result<UnixStream> {
    connection.set_nodelay(true)?;
    Ok(OwnedFd::from(connection).into())
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    fn at(address: &Address) -> std::io::Result<Self> {
        match address {
            Address::Path(path) => UnixListener::bind(path).map(Self::Unix),
            Address::Tcp(address) => TcpListener::bind(address).map(Self::Tcp),
        }
    }

    fn accept(&self) -> std::io::Result<UnixStream> {
        match self {
            Self::Unix(listener) => Ok(listener.accept()?.0),
            Self::Tcp(listener) => stream_of(listener.accept()?.0),
        }
    }
}

/// Starts a role for each connection that asks for one, with the connection as its director.
pub(crate) fn run(on: &On, address: &Address) -> Result<bool, Stop> {
    let listener = Listener::at(address)
        .map_err(|error| Stop::fail(format!("listening at {address}: {error}")))?;
    let mut children: Vec<Child> = Vec::new();
    loop {
        let mut stream = listener.accept()?;
        // A director that has given up on this connection makes another.
        let Some(line) = greeted(&mut stream) else { continue };
        if line == END {
            break;
        }
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            [KILL, process] => {
                let its = |child: &&mut Child| child.id().to_string() == process;
                let child = children.iter_mut().find(its);
                child.ok_or_else(|| Stop::fail(format!("no role is process {process}")))?.kill()?;
            }
            [case, life] => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["--device", &on.device, "role", case, "b", life]);
                let mut director = stream.try_clone()?;
                let child = command.stdin(Stdio::from(OwnedFd::from(stream))).spawn()?;
                director.write_all(&child.id().to_be_bytes())?;
                children.push(child);
            }
            _ => {
                let text = format!("the director says {line:?}, not a case and a life");
                return Err(Stop::fail(text));
            }
        }
    }
    if let Address::Path(socket) = address {
        let _ = std::fs::remove_file(socket);
    }
    for mut child in children {
        child.wait()?;
    }
    Ok(true)
}

/// Greets a new connection and reads its line; `None`: it has ended.
fn greeted(stream: &mut UnixStream) -> Option<String> {
    stream.set_read_timeout(Some(ANSWERED)).ok()?;
    stream.write_all(&[GREETING]).ok()?;
    let line = line(stream).ok()?;
    stream.set_read_timeout(None).ok()?;
    (!line.is_empty()).then_some(line)
}

/// Reads a line, without a byte after it.
fn line(stream: &UnixStream) -> std::io::Result<String> {
    let mut line = String::new();
    BufReader::with_capacity(1, stream).read_line(&mut line)?;
    Ok(line.trim_end().to_string())
}

/// Asks the agent to start a role; returns its process and its socket.
pub(crate) fn role(agent: &Address, case: &str, life: u32) -> Result<(Pid, UnixStream), Stop> {
    let mut stream = connect(agent)?;
    writeln!(stream, "{case} {life}")?;
    let mut id = [0; 4];
    stream.set_read_timeout(Some(ANSWERED))?;
    stream.read_exact(&mut id)?;
    stream.set_read_timeout(None)?;
    Ok((Pid::from_raw(u32::from_be_bytes(id) as i32), stream))
}

/// Kills a role that the agent has started.
pub(crate) fn kill(agent: &Address, role: Pid) -> Result<(), Stop> {
    Ok(writeln!(connect(agent)?, "{KILL} {role}")?)
}

/// Ends the agent.
pub(crate) fn end(agent: &Address) -> Result<(), Stop> {
    Ok(writeln!(connect(agent)?, "{END}")?)
}

/// Connects until the agent greets.
fn connect(agent: &Address) -> Result<UnixStream, Stop> {
    let end = Instant::now() + START;
    loop {
        match greeting(agent) {
            Ok(stream) => return Ok(stream),
            Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(20)),
            Err(error) => {
                let text = format!("no agent answers at {agent}: {error}");
                return Err(Stop::fail(text));
            }
        }
    }
}

fn greeting(agent: &Address) -> std::io::Result<UnixStream> {
    let mut stream = match agent {
        Address::Path(path) => UnixStream::connect(path)?,
        Address::Tcp(address) => stream_of(TcpStream::connect(address)?)?,
    };
    stream.set_read_timeout(Some(GREETED))?;
    let mut byte = [0];
    stream.read_exact(&mut byte)?;
    stream.set_read_timeout(None)?;
    if byte != [GREETING] {
        let text = format!("its first byte is {:#x}, not {GREETING:#x}", byte[0]);
        return Err(std::io::Error::other(text));
    }
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_parses_as_it_prints() {
        for text in ["/tmp/agent", "tcp:127.0.0.1:7471"] {
            let address: Address = text.parse().expect("an address");
            assert_eq!(address.to_string(), text);
        }
        assert!("tcp:localhost".parse::<Address>().is_err());
    }

    #[test]
    fn tcp_connection_without_greeting_is_tried_again() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = Address::Tcp(listener.local_addr().expect("its address").to_string());
        let agent = std::thread::spawn(move || {
            let (silent, _) = listener.accept().expect("a connection");
            drop(silent);
            let (second, _) = listener.accept().expect("another");
            let mut stream = stream_of(second).expect("a stream");
            greeted(&mut stream)
        });
        end(&address).expect("the agent hears it");
        assert_eq!(agent.join().expect("no panic").as_deref(), Some(END));
    }
}
