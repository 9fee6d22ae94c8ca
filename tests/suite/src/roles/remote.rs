//! The director's connection to [`serve`](super::server): it starts the second role of each case on
//! another machine.

use std::io::ErrorKind;
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::channel::{OF_DIRECTORS, OF_ROLES};
use super::frame::{self, LIMIT, MAX_BYTES};
use super::server::{KILLED, SUCCESS};
use super::wire::{About, Greeted, greet, kind};
use crate::report::plain;
use crate::{Stop, ensure};

/// How long the server may be absent: its machine may start it later.
const START: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 20 });
/// How long a connection may be closed at once: behind a forwarded port, a machine may be booting.
const FORWARDED: Duration = Duration::from_secs(if cfg!(test) { 0 } else { 180 });
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(5);
/// The most bytes that a server says about itself. Those of a card with all pages are a tenth.
const MAX_ABOUT: usize = 4 << 20;

/// How a role's process on the other machine ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ended {
    Success,
    /// By SIGKILL.
    Killed,
    Otherwise(String),
}

/// A server of roles on another machine.
pub struct Peer {
    stream: TcpStream,
    about: About,
    /// The role that runs there.
    role: Mutex<Option<Running>>,
}

/// A role on the other machine: the threads that carry its frames.
struct Running {
    ended: mpsc::Receiver<Result<Ended, String>>,
    threads: [JoinHandle<()>; 2],
}

impl Peer {
    /// Connects to the server at `address`, `HOST:PORT`, which must be of the same version. Waits
    /// up to 20 s for it.
    pub fn connect(address: &str, version: &str) -> Result<Self, Stop> {
        let failed = |Stop(why): Stop| Stop::fail(format!("{address}: {why}"));
        let stream = greeted(address, version).map_err(failed)?;
        let said = frame::read_within(&stream, LIMIT, MAX_ABOUT);
        let (kind, bytes) = said.map_err(|error| Stop::fail(format!("{address}: {error}")))?;
        let text = String::from_utf8_lossy(&bytes);
        match kind {
            kind::ABOUT => {}
            kind::REFUSED => return Err(Stop::fail(format!("{address}: {}", plain(&text)))),
            kind => return Err(Stop::fail(format!("{address}: a frame of kind {kind:#x}"))),
        }
        let about: About = serde_json::from_str(&text).map_err(|error| {
            Stop::fail(format!("{address}: what it says of itself: {}", plain(&error.to_string())))
        })?;
        about.facts.check().map_err(|why| {
            Stop::fail(format!("{address}: what it says of itself: {}", plain(&why)))
        })?;
        let about = about.plain();
        Ok(Self { stream, about, role: Mutex::new(None) })
    }

    /// What it says of itself.
    pub fn about(&self) -> &About {
        &self.about
    }

    fn role(&self) -> MutexGuard<'_, Option<Running>> {
        self.role.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, kind: u8, bytes: &[u8]) -> Result<(), Stop> {
        let mut writer = &self.stream;
        frame::write(&mut writer, kind, bytes).map_err(|error| Self::lost(&error))
    }

    fn lost(error: &std::io::Error) -> Stop {
        let why = match error.kind() {
            ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
            _ => error.to_string(),
        };
        Stop::fail(format!("the peer is lost: {why}"))
    }

    /// Needs of a case that the other end lacks, as text; empty if none is missing.
    pub(super) fn missing(&self, case: &str) -> Result<String, Stop> {
        self.settle()?;
        self.send(kind::NEEDS, case.as_bytes())?;
        let answer = frame::read_within(&self.stream, LIMIT, MAX_BYTES);
        let (kind, bytes) = answer.map_err(|error| Self::lost(&error))?;
        ensure!(kind == kind::NEEDS, "the peer answers with a frame of kind {kind:#x}");
        Ok(plain(&String::from_utf8_lossy(&bytes)))
    }

    /// Starts the second role of a case there; returns its end of a channel.
    pub(super) fn start(&self, case: &str, life: u32) -> Result<UnixStream, Stop> {
        self.settle()?;
        let (ours, theirs) = UnixStream::pair()?;
        for end in [&ours, &theirs] {
            end.set_write_timeout(Some(LIMIT))?;
        }
        self.send(kind::START, &[&life.to_be_bytes()[..], case.as_bytes()].concat())?;
        let (sender, ended) = mpsc::channel();
        let (network, mut local) = (self.stream.try_clone()?, theirs.try_clone()?);
        network.set_read_timeout(None)?;
        let mut incoming = network.try_clone()?;
        let from_there = std::thread::spawn(move || {
            // The director judges the end; it is gone if it has given up on the case.
            let _ = sender.send(from_role(&mut incoming, &mut local));
            let _ = local.shutdown(Shutdown::Both);
        });
        let (mut outgoing, mut local) = (network, theirs);
        let to_there = std::thread::spawn(move || {
            while let Ok((kind, bytes)) = frame::read(&mut local, MAX_BYTES) {
                if OF_DIRECTORS.contains(&kind)
                    && frame::write(&mut outgoing, kind, &bytes).is_err()
                {
                    break;
                }
            }
        });
        *self.role() = Some(Running { ended, threads: [from_there, to_there] });
        Ok(ours)
    }

    /// Kills the role.
    pub(super) fn kill(&self) -> Result<(), Stop> {
        self.send(kind::KILL, &[])
    }

    /// Waits until the role has ended, if one runs; returns how.
    pub(super) fn settle(&self) -> Result<Ended, Stop> {
        let Some(Running { ended, threads }) = self.role().take() else {
            return Ok(Ended::Success);
        };
        let result = ended.recv_timeout(LIMIT);
        if result.is_err() {
            // Ends the thread that waits for the other machine.
            let _ = self.stream.shutdown(Shutdown::Both);
        }
        for thread in threads {
            let _ = thread.join();
        }
        match result {
            Ok(Ok(ended)) => Ok(ended),
            Ok(Err(why)) => Err(Stop::fail(format!("the peer is lost: {why}"))),
            Err(_) => Err(Stop::fail(format!(
                "the peer is lost: its role has not ended within {} s",
                LIMIT.as_secs()
            ))),
        }
    }
}

/// Carries the frames of a role on the other machine until it ends.
fn from_role(network: &mut TcpStream, local: &mut UnixStream) -> Result<Ended, String> {
    let mut gone = false;
    loop {
        let (kind, bytes) =
            frame::read(network, MAX_BYTES).map_err(|error| match error.kind() {
                ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
                _ => error.to_string(),
            })?;
        match kind {
            kind if OF_ROLES.contains(&kind) => {
                // The director may be gone already; the end is still to come. One that takes no
                // frame within the limit gets no more: a part of one may be there.
                if !gone && frame::write(local, kind, &bytes).is_err() {
                    gone = true;
                    let _ = local.shutdown(Shutdown::Both);
                }
            }
            kind::ENDED => {
                let how = bytes.split_first();
                let (how, text) = how.ok_or("it does not say how its role ended")?;
                return Ok(match *how {
                    SUCCESS => Ended::Success,
                    KILLED => Ended::Killed,
                    _ => Ended::Otherwise(plain(&String::from_utf8_lossy(text))),
                });
            }
            kind => return Err(format!("it sends a frame of kind {kind:#x}")),
        }
    }
}

/// Connects to the server at `address` and shakes hands. Connects again while the connection is
/// closed at once.
fn greeted(address: &str, version: &str) -> Result<TcpStream, Stop> {
    let end = Instant::now() + FORWARDED;
    let mut is_told = false;
    loop {
        let stream = reach(address)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(LIMIT))?;
        match greet(&stream, version)? {
            Greeted::Done => return Ok(stream),
            Greeted::Closed if Instant::now() < end => {}
            Greeted::Closed => {
                let limit = FORWARDED.as_secs();
                return Err(Stop::fail(format!(
                    "each connection is closed at once, for {limit} s: no `hwtest serve` is there"
                )));
            }
        }
        if !std::mem::replace(&mut is_told, true) {
            eprintln!("waiting for `hwtest serve` at {address}: each connection is closed at once");
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Connects to the first of the addresses that answers.
fn reach(address: &str) -> Result<TcpStream, Stop> {
    let end = Instant::now() + START;
    loop {
        let mut last = None;
        for address in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = Some(error),
            }
        }
        match last {
            Some(error) if error.kind() == ErrorKind::ConnectionRefused && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(100));
            }
            Some(error) => {
                return Err(Stop::fail(format!(
                    "{error}; start `hwtest serve` on the other machine, and open its port in its \
                     firewall"
                )));
            }
            None => return Err(Stop::fail("the name has no address")),
        }
    }
}
