//! `hwtest serve`: plays the second role of each case for a director on another machine.
//!
//! One client at a time: another one gets a refusal at once. A client can name a case, which this
//! program knows, exchange messages with its role, and kill it; it can start nothing else. A role
//! is a process of its own, which ends with its client at the latest.

use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::case::{Case, Side};
use super::cases;
use super::channel::{DONE, FAILED, OF_DIRECTORS, OF_ROLES};
use super::frame::{self, LIMIT, MAX_BYTES};
use super::process::Program;
use super::wire::{About, handshake, kind};
use crate::report::plain;
use crate::{Lab, Need, Stop};

/// How long a client may say nothing. A case takes 60 s at most.
const IDLE: Duration = Duration::from_secs(120);

/// Clients that get a refusal at once; the connections of others are closed without a word.
const REFUSALS: usize = 8;
/// How long the server waits after a connection that it could not accept: descriptors may be short.
const PAUSE: Duration = Duration::from_millis(100);

/// Shows a line about what happens.
type Show = Arc<dyn Fn(&str) + Send + Sync>;

/// Plays roles for clients.
pub struct Server {
    lab: Lab,
    /// The program that plays a role.
    program: Program,
    /// The version that a client must have.
    version: String,
    /// What a client gets to know about this end, as JSON.
    about: String,
    show: Show,
    /// The running role.
    role: Mutex<Option<Arc<Mutex<Child>>>>,
}

impl Server {
    /// A server on the first device of a lab, with lines for `show`.
    pub fn new(
        lab: Lab,
        about: &About,
        program: Program,
        version: &str,
        show: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self, Stop> {
        Ok(Self {
            lab,
            program,
            version: version.into(),
            about: serde_json::to_string(about)?,
            show: Arc::new(show),
            role: Mutex::new(None),
        })
    }

    /// Serves clients, one after the other: only one, or without end.
    pub fn serve(self: &Arc<Self>, listener: &TcpListener, once: bool) -> Result<(), Stop> {
        let (clients, refusals) = (Arc::default(), Arc::default());
        loop {
            let (stream, client) = match accept(listener) {
                Ok(accepted) => accepted,
                // A client's doing, or that of many: it must not end the server.
                Err(error) => {
                    (self.show)(&format!("a connection could not be accepted: {error}"));
                    thread::sleep(PAUSE);
                    continue;
                }
            };
            let this = self.clone();
            let Some(place) = Place::take(&clients, 1) else {
                if let Some(place) = Place::take(&refusals, REFUSALS) {
                    self.begin("refusal", move || {
                        this.refuse(&stream);
                        drop(place);
                    });
                }
                continue;
            };
            let session = self.begin("session", move || {
                match this.session(&stream, &client) {
                    Ok(count) => (this.show)(&format!("{client}: done, {count} roles played")),
                    Err(Stop(why)) => (this.show)(&format!("{client}: {why}; disconnected")),
                }
                drop(place);
            });
            if let Some(session) = session.filter(|_| once) {
                return session.join().map_err(|_| Stop::fail("the session panicked"));
            }
        }
    }

    /// Begins a thread; shows why if there is none, which closes the connection.
    fn begin(&self, name: &str, run: impl FnOnce() + Send + 'static) -> Option<JoinHandle<()>> {
        let begun = thread::Builder::new().name(name.into()).spawn(run);
        begun.map_err(|error| (self.show)(&format!("no thread for a {name}: {error}"))).ok()
    }

    /// Kills the running role, if there is one.
    pub fn kill_role(&self) {
        if let Some(child) = self.running().as_ref() {
            // It may have ended by itself.
            let _ = child.lock().unwrap_or_else(PoisonError::into_inner).kill();
        }
    }

    fn running(&self) -> MutexGuard<'_, Option<Arc<Mutex<Child>>>> {
        self.role.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that another client is served. A client may send anything, so nothing of this is an
    /// error of the server.
    fn refuse(&self, stream: &TcpStream) {
        if handshake(stream, &self.version).is_ok() {
            let mut writer = stream;
            let _ = frame::write(&mut writer, kind::REFUSED, b"it serves another client");
            // An unread request would reset the connection before the refusal is read.
            let _ = stream.shutdown(Shutdown::Write);
            let _ = frame::read_within(stream, Duration::from_secs(1), MAX_BYTES);
        }
    }

    /// Serves one client; returns how many roles it has started.
    fn session(&self, stream: &TcpStream, client: &str) -> Result<usize, Stop> {
        handshake(stream, &self.version)?;
        (self.show)(&format!("{client}: connected"));
        let mut session = Session {
            server: self,
            stream,
            writer: Arc::new(Mutex::new(stream.try_clone()?)),
            role: None,
            roles: 0,
        };
        session.answer(kind::ABOUT, self.about.as_bytes())?;
        session.run(client)?;
        Ok(session.roles)
    }

    /// Needs of a case that this end lacks. Whether both ends are sides of one card is the
    /// client's to judge.
    fn missing(&self, case: &Case) -> Result<String, Stop> {
        let own = |need: &Need| !matches!(need, Need::Sides);
        let needs: Vec<Need> = case.needs.iter().copied().filter(own).collect();
        let missing: Vec<_> = self.lab.missing(&needs)?.iter().map(ToString::to_string).collect();
        Ok(missing.join(", "))
    }
}

/// The next connection, and the address of its client.
fn accept(listener: &TcpListener) -> std::io::Result<(TcpStream, String)> {
    let (stream, address) = listener.accept()?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(LIMIT))?;
    Ok((stream, address.to_string()))
}

/// One of a limited number of places, until it is dropped: also when its thread panics.
struct Place(Arc<AtomicUsize>);

impl Place {
    /// A place, if less than `most` are taken.
    fn take(taken: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let more = |count: usize| (count < most).then_some(count + 1);
        let took = taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        took.is_ok().then(|| Self(taken.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A client's session.
struct Session<'a> {
    server: &'a Server,
    stream: &'a TcpStream,
    /// For whole frames, of the session and of the role.
    writer: Arc<Mutex<TcpStream>>,
    role: Option<Played>,
    roles: usize,
}

/// A role that was started.
struct Played {
    child: Arc<Mutex<Child>>,
    /// The role's director is the client.
    director: UnixStream,
    /// Carries the role's frames to the client.
    carrier: JoinHandle<()>,
    /// Whether the client knows that the role has ended.
    ended: Arc<AtomicBool>,
}

impl Session<'_> {
    fn answer(&self, kind: u8, bytes: &[u8]) -> Result<(), Stop> {
        Ok(send(&self.writer, kind, bytes)?)
    }

    /// Handles requests until the client closes the connection.
    fn run(&mut self, client: &str) -> Result<(), Stop> {
        loop {
            let (kind, bytes) = match frame::read_within(self.stream, IDLE, MAX_BYTES) {
                Ok(frame) => frame,
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            match kind {
                kind::NEEDS => {
                    let missing = self.server.missing(&self.case(&bytes)?)?;
                    self.answer(kind::NEEDS, missing.as_bytes())?;
                }
                kind::START => {
                    let (life, id) = bytes
                        .split_first_chunk()
                        .ok_or_else(|| Stop::fail("a request to start a role without its life"))?;
                    let life = u32::from_be_bytes(*life);
                    let case = self.case(id)?;
                    self.start(&case, life, client)?;
                }
                kind::KILL => self.server.kill_role(),
                kind if OF_DIRECTORS.contains(&kind) => {
                    if let Some(role) = &mut self.role {
                        // A role that has ended does not receive it.
                        let _ = frame::write(&mut role.director, kind, &bytes);
                    }
                }
                kind => return Err(Stop::fail(format!("it sends a frame of kind {kind:#x}"))),
            }
        }
    }

    /// The case with this id that two machines can run.
    fn case(&self, id: &[u8]) -> Result<Case, Stop> {
        let id = String::from_utf8_lossy(id);
        cases::find(&id).filter(Case::spans_machines).ok_or_else(|| {
            let id: String = plain(&id).chars().take(100).collect();
            Stop::fail(format!("it asks for {id:?}, which is no case of two machines"))
        })
    }

    fn start(&mut self, case: &Case, life: u32, client: &str) -> Result<(), Stop> {
        if let Some(before) = self.role.take() {
            let ended = before.ended.load(Ordering::Acquire);
            if !ended {
                self.role = Some(before);
                return Err(Stop::fail("it starts a role while another one runs"));
            }
            let _ = before.carrier.join();
        }
        let (director, theirs) = UnixStream::pair()?;
        director.set_write_timeout(Some(LIMIT))?;
        theirs.set_write_timeout(Some(LIMIT))?;
        let child = self.server.program.start(&case.id(), Side::B, life, theirs)?;
        let child = Arc::new(Mutex::new(child));
        *self.server.running() = Some(child.clone());
        let ended = Arc::new(AtomicBool::new(false));
        let carrier = Carrier {
            reports: director.try_clone()?,
            child: child.clone(),
            writer: self.writer.clone(),
            ended: ended.clone(),
            show: self.server.show.clone(),
            role: format!("{client}: {}, life {life}", case.id()),
        };
        let begun = thread::Builder::new().name("carrier".into()).spawn(move || carrier.run());
        let carrier = begun.inspect_err(|_| self.server.kill_role())?;
        self.role = Some(Played { child, director, carrier, ended });
        self.roles += 1;
        Ok(())
    }
}

/// No role outlives its client.
impl Drop for Session<'_> {
    fn drop(&mut self) {
        if let Some(role) = self.role.take() {
            let _ = role.child.lock().unwrap_or_else(PoisonError::into_inner).kill();
            let _ = role.carrier.join();
        }
        *self.server.running() = None;
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Carries a role's frames to the client until the role ends, then its end.
struct Carrier {
    reports: UnixStream,
    child: Arc<Mutex<Child>>,
    writer: Arc<Mutex<TcpStream>>,
    ended: Arc<AtomicBool>,
    show: Show,
    /// The client, the case and the life.
    role: String,
}

impl Carrier {
    fn run(mut self) {
        let (mut gone, mut result) = (false, String::new());
        while let Ok((kind, bytes)) = frame::read(&mut self.reports, MAX_BYTES) {
            match kind {
                DONE => result = "passed".into(),
                FAILED => result = format!("failed: {}", String::from_utf8_lossy(&bytes)),
                _ => {}
            }
            if OF_ROLES.contains(&kind) && !gone {
                gone = send(&self.writer, kind, &bytes).is_err();
            }
        }
        let status = self.child.lock().unwrap_or_else(PoisonError::into_inner).wait();
        let (how, text) = match status {
            Ok(status) => (how(status), status.to_string()),
            Err(error) => (OTHERWISE, error.to_string()),
        };
        if result.is_empty() {
            result = text.clone();
        }
        (self.show)(&format!("{}: {}", self.role, plain(&result)));
        self.ended.store(true, Ordering::Release);
        // A client that is gone need not know.
        let _ = send(&self.writer, kind::ENDED, &[&[how][..], text.as_bytes()].concat());
    }
}

/// The first byte of [`kind::ENDED`].
pub(super) const SUCCESS: u8 = 0;
pub(super) const KILLED: u8 = 1;
pub(super) const OTHERWISE: u8 = 2;

fn how(status: ExitStatus) -> u8 {
    match status.signal() {
        _ if status.success() => SUCCESS,
        Some(signal) if signal == Signal::SIGKILL as i32 => KILLED,
        _ => OTHERWISE,
    }
}

/// Sends a whole frame, whichever threads send.
fn send(writer: &Mutex<TcpStream>, kind: u8, bytes: &[u8]) -> std::io::Result<()> {
    let mut stream = writer.lock().unwrap_or_else(PoisonError::into_inner);
    frame::write(&mut *stream, kind, bytes)?;
    stream.flush()
}
