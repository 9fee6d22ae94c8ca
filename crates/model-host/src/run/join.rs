//! `run --name NAME` and `run --join NAME`: a program joins the devices of an existing run. Here
//! *host* is the named run, and *guest* the process that joins it or controls it.
//!
//! ```text
//!   run --join NAME -- PROGRAM                       run --name NAME -- …
//!     "join 1 host"                  ------------>     is there such a side?
//!                                    <------------     "yes", or "no" and the reason
//!     forks, behind a filter
//!     "program" and the listener     ------------>     may the child's memory be read?
//!                                    <------------     "yes" (the host answers its calls from
//!                                                      here on), or "no" and the reason
//!     the child executes PROGRAM; waits for it
//!                                    <------------     "done": no process left behind the filter
//! ```
//!
//! `verbless-model ctl NAME …` sends `"ctl 1 "` and a control request (`control`). The reply is
//! `"yes"` and the output in the next lines, or `"no"` and the reason. `pci --name` serves control
//! requests only.
//!
//! The program is a child of the joining process, with that process's terminal, directory, limits
//! and exit code. The host, the first `run`, answers its calls. For that, the host must be allowed
//! to read its memory: it has the same user; under Yama, the program permits it (PR_SET_PTRACER).
//!
//! Both use a socket with the run's name, in a directory of mode 0700 (`names`). The socket of a
//! killed run stays, and the next run of that name replaces it.

use std::fs::{self, File};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr,
    UnixCredentials, bind, connect, getsockopt, listen, sendmsg, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::unistd::{Uid, geteuid};

use super::control::Control;
use super::error::RunError;
use super::file_closer;
use super::names;
use super::sys::{self, Listener};
use verbless_model::Side;

/// First word of a joining guest, with the protocol version.
const HELLO: &str = "join 1";
/// First words of a `ctl` request, with the protocol version.
const CONTROL: &str = "ctl 1 ";
const YES: &[u8] = b"yes";
const NO: &str = "no ";
const PROGRAM: &[u8] = b"program";
const DONE: &[u8] = b"done";
const OTHER_VERSION: &str = "it ended, or has another version";
/// Bytes of the longest message.
const MAX_MESSAGE: usize = 1 << 16;
/// Backlog of the host's socket.
const WAITING: i32 = 16;
/// Time limit of a guest for the host's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a guest could not be accepted for lack of a descriptor.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Bytes of the longest name, bounded by the room in `sockaddr_un`.
const MAX_NAME: usize = 64;

/// Path and socket address of the run with this name.
fn address(name: &str) -> Result<(PathBuf, UnixAddr), RunError> {
    let path = names::socket(name)?;
    let address = UnixAddr::new(&path)
        .map_err(|errno| io::Error::other(format!("{}: {errno}", path.display())))?;
    Ok((path, address))
}

/// Checks a run name.
fn check(name: &str) -> Result<(), RunError> {
    let plain = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(plain) {
        return Err(RunError::BadName { name: name.into(), longest: MAX_NAME });
    }
    Ok(())
}

/// A text that lists the runs to join.
fn known() -> String {
    match names::taken() {
        names if names.is_empty() => "no run can be joined".into(),
        names => format!("your runs: {}", names.join(", ")),
    }
}

/// An endpoint of a connection.
#[derive(Debug)]
pub(crate) struct Peer(OwnedFd);

impl AsFd for Peer {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Peer {
    fn send(&self, message: &[u8], descriptor: Option<RawFd>) -> Result<(), Errno> {
        let descriptors = descriptor.map(|descriptor| [descriptor]);
        let control: Vec<ControlMessage<'_>> =
            descriptors.iter().map(|it| ControlMessage::ScmRights(it)).collect();
        let flags = MsgFlags::MSG_NOSIGNAL;
        sendmsg::<()>(self.0.as_raw_fd(), &[IoSlice::new(message)], &control, flags, None)?;
        Ok(())
    }

    /// A message, and the descriptors that came with it. Empty: the peer closed the connection.
    fn receive(&self) -> Result<(Vec<u8>, Vec<OwnedFd>), Errno> {
        sys::receive_message(self.0.as_fd(), MAX_MESSAGE)
    }

    fn credentials(&self) -> Result<UnixCredentials, Errno> {
        getsockopt(&self.0, sockopt::PeerCredentials)
    }

    /// Reports that no process is left behind the guest's filter.
    pub(super) fn done(&self) {
        let _ = self.send(DONE, None);
    }
}

/// The listening socket of a named run.
#[derive(Debug)]
pub(crate) struct Host {
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl AsFd for Host {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// A guest's request.
#[derive(Debug)]
pub(crate) enum Request {
    /// To join this side.
    Join(Side),
    /// To answer the notifications of this listener.
    Program(Listener),
    /// To control the run.
    Control(Control),
}

impl Host {
    /// # Errors
    /// The name is invalid or in use.
    pub(crate) fn new(name: &str) -> Result<Self, RunError> {
        check(name)?;
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        let _alone: File = names::locked()?;
        let (path, address) = address(name)?;
        let bound = match bind(socket.as_raw_fd(), &address) {
            Err(Errno::EADDRINUSE) if is_left_behind(&address)? => {
                fs::remove_file(&path)?;
                bind(socket.as_raw_fd(), &address)
            }
            bound => bound,
        };
        bound.map_err(|errno| match errno {
            Errno::EADDRINUSE => RunError::NameInUse { name: name.into() },
            other => other.into(),
        })?;
        let host = Self { listener: socket.into(), path };
        listen(&host.listener, Backlog::new(WAITING)?)?;
        Ok(host)
    }

    /// Accepts a guest of this user or of root.
    pub(crate) fn accept(&self) -> Option<Peer> {
        let (stream, _) = self
            .listener
            .accept()
            .inspect_err(|error| {
                // The guest stays in the backlog, and would wake the supervisor again at once.
                if error.kind() != std::io::ErrorKind::WouldBlock {
                    std::thread::sleep(RETRY_PAUSE);
                }
            })
            .ok()?;
        stream.set_nonblocking(true).ok()?;
        let peer = Peer(stream.into());
        let uid = peer.credentials().map(|it| Uid::from_raw(it.uid()));
        if uid.is_ok_and(|uid| may_join(uid, geteuid())) {
            return Some(peer);
        }
        file_closer::close(peer);
        None
    }
}

/// Whether no process listens on the socket at this address.
fn is_left_behind(address: &UnixAddr) -> Result<bool, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let probe = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    Ok(connect(probe.as_raw_fd(), address) == Err(Errno::ECONNREFUSED))
}

/// Whether a user may join or control a run of this owner.
fn may_join(user: Uid, owner: Uid) -> bool {
    user == owner || user.is_root()
}

impl Peer {
    /// Receives a guest's request. EAGAIN: none has arrived.
    pub(crate) fn request(&self) -> Result<Request, Errno> {
        let (message, mut descriptors) = self.receive()?;
        let descriptor = if message == PROGRAM { descriptors.pop() } else { None };
        if !descriptors.is_empty() {
            file_closer::close((descriptors, descriptor));
            return Err(Errno::EBADMSG);
        }
        if message == PROGRAM {
            let listener = Listener::new(descriptor.ok_or(Errno::EBADMSG)?);
            return listener.map(Request::Program).map_err(|fd| {
                file_closer::close(fd);
                Errno::EBADMSG
            });
        }
        let text = std::str::from_utf8(&message).map_err(|_| Errno::EBADMSG)?;
        if let Some(control) = text.strip_prefix(CONTROL) {
            return Control::of_text(control).map(Request::Control).ok_or(Errno::EBADMSG);
        }
        match text.strip_prefix(HELLO) {
            Some(" host") => Ok(Request::Join(Side::Host)),
            Some(" dpu") => Ok(Request::Join(Side::Dpu)),
            _ => Err(Errno::EBADMSG),
        }
    }

    /// Sends the result of a control request.
    pub(crate) fn send_result(&self, result: Result<String, String>) -> Result<(), Errno> {
        match result {
            Ok(text) => self.send([YES, b"\n", text.as_bytes()].concat().as_slice(), None),
            Err(why) => self.send(format!("{NO}{why}").as_bytes(), None),
        }
    }

    /// Accepts a joining guest, or refuses with the reason.
    pub(super) fn reply(&self, result: Result<(), String>) -> Result<(), Errno> {
        match result {
            Ok(()) => self.send(YES, None),
            Err(why) => self.send(format!("{NO}{why}").as_bytes(), None),
        }
    }
}

/// A joined run.
#[derive(Debug)]
pub(super) struct Joined {
    peer: Peer,
    /// Pid of the host.
    pub pid: i32,
}

impl AsFd for Joined {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.peer.as_fd()
    }
}

impl Joined {
    /// Asks the run of that name to let a program join.
    ///
    /// # Errors
    /// The run does not exist, or it refuses.
    pub(super) fn join(name: &str, side: Side) -> Result<Self, RunError> {
        let (peer, pid) = Self::connect_to(name)?;
        sys::allow_ptrace_by(pid);
        let side = match side {
            Side::Host => "host",
            Side::Dpu => "dpu",
        };
        let joined = Self { peer, pid };
        match &*joined.request(format!("{HELLO} {side}").as_bytes(), None)? {
            "" => Ok(joined),
            _ => Err(RunError::Refused(OTHER_VERSION.into())),
        }
    }

    /// Sends a control request to the run of that name; returns its answer.
    ///
    /// # Errors
    /// The run does not exist, or the request fails.
    pub(super) fn control(name: &str, control: &Control) -> Result<String, RunError> {
        let text = format!("{CONTROL}{}", control.to_text());
        if text.len() > MAX_MESSAGE {
            let why =
                format!("a request has at most {MAX_MESSAGE} bytes, and this one {}", text.len());
            return Err(RunError::Refused(why));
        }
        let (peer, pid) = Self::connect_to(name)?;
        Self { peer, pid }.request(text.as_bytes(), None)
    }

    /// Connects to the run of that name; returns the host's pid.
    fn connect_to(name: &str) -> Result<(Peer, i32), RunError> {
        check(name)?;
        let socket =
            socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
        let (_, address) = address(name)?;
        let timeout = TimeVal::milliseconds(ANSWER_TIMEOUT.as_millis() as i64);
        setsockopt(&socket, sockopt::ReceiveTimeout, &timeout)?;
        // A process may own the address without accepting.
        setsockopt(&socket, sockopt::SendTimeout, &timeout)?;
        connect(socket.as_raw_fd(), &address).map_err(|errno| match errno {
            Errno::EAGAIN => RunError::Refused("it did not answer within 10 s".into()),
            Errno::ECONNREFUSED | Errno::ENOENT => {
                RunError::NoSuchRun { name: name.into(), known: known() }
            }
            other => other.into(),
        })?;
        let peer = Peer(socket);
        let host = peer.credentials()?;
        if host.uid() != geteuid().as_raw() {
            return Err(RunError::Refused("it belongs to another user".into()));
        }
        Ok((peer, host.pid()))
    }

    /// Sends the listener of the program's filter. The host answers the first call.
    pub(super) fn send_listener(&self, listener: &Listener) -> Result<(), RunError> {
        self.request(PROGRAM, Some(listener.as_fd().as_raw_fd())).map(drop)
    }

    /// Sends a request; returns the text after "yes".
    fn request(&self, message: &[u8], descriptor: Option<RawFd>) -> Result<String, RunError> {
        let refused = |errno| match errno {
            Errno::EAGAIN => RunError::Refused("it did not answer within 10 s".into()),
            _ => RunError::Refused("it ended during the request".into()),
        };
        self.peer.send(message, descriptor).map_err(refused)?;
        let (reply, _) = self.peer.receive().map_err(refused)?;
        if let Some(text) = reply.strip_prefix(YES) {
            let text = text.strip_prefix(b"\n").unwrap_or(text);
            return Ok(String::from_utf8_lossy(text).into_owned());
        }
        let reply = String::from_utf8_lossy(&reply);
        let why = reply.strip_prefix(NO).unwrap_or(OTHER_VERSION);
        Err(RunError::Refused(why.into()))
    }

    /// Whether the host reported that no process is left. False: the host ended earlier.
    pub(super) fn is_done(&self) -> bool {
        self.peer.receive().is_ok_and(|(message, _)| message == DONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(what: &str) -> String {
        format!("{what}-{}", std::process::id())
    }

    #[test]
    fn run_name_is_unique_until_host_ends() {
        let name = name("unique");
        let host = Host::new(&name).expect("the name is free");
        assert!(names::taken().contains(&name));
        let stranger = Joined::join("no-run-has-this-name", Side::Host).expect_err("there is none");
        assert!(stranger.to_string().contains("your runs: "), "{stranger}");
        let again = Host::new(&name).expect_err("the name is in use").to_string();
        assert!(again.contains("--join"), "{again}");
        drop(host);
        assert!(!names::taken().contains(&name));
        let missing = Joined::join(&name, Side::Host).expect_err("the run is gone").to_string();
        assert!(missing.contains("--name"), "{missing}");
    }

    #[test]
    fn socket_of_a_killed_run_is_replaced() {
        let name = name("killed");
        let mut host = Host::new(&name).expect("the name is free");
        let path = std::mem::take(&mut host.path);
        drop(host);
        assert!(path.exists() && !names::taken().contains(&name));
        let missing = Joined::join(&name, Side::Host).expect_err("the run is gone");
        assert!(matches!(missing, RunError::NoSuchRun { .. }), "{missing}");
        drop(Host::new(&name).expect("the name is free"));
        assert!(!path.exists());
    }

    #[test]
    fn bad_run_names_are_rejected() {
        for bad in ["", "a/b", "a b", "ä", &"a".repeat(MAX_NAME + 1)] {
            assert!(matches!(Host::new(bad), Err(RunError::BadName { .. })), "{bad}");
            assert!(matches!(Joined::join(bad, Side::Host), Err(RunError::BadName { .. })));
        }
    }

    #[test]
    fn name_and_request_of_maximum_length_are_accepted() {
        let longest = format!("{:a<64}", name("longest"));
        assert!(Host::new(&longest).is_ok());
        let request = |bytes: usize| {
            let rest = bytes - CONTROL.len() - "apply ".len();
            Joined::control("no-run-has-this-name", &Control::Apply("x".repeat(rest)))
        };
        assert!(matches!(request(MAX_MESSAGE), Err(RunError::NoSuchRun { .. })));
        let refused = request(MAX_MESSAGE + 1).expect_err("the message is too long").to_string();
        assert!(refused.contains("at most 65536 bytes, and this one 65537"), "{refused}");
    }

    #[test]
    fn run_admits_only_owner_and_root() {
        let [root, one, other] = [0, 1000, 1001].map(Uid::from_raw);
        assert!(may_join(one, one) && may_join(root, one) && may_join(root, root));
        assert!(!may_join(other, one) && !may_join(one, root));
    }

    #[test]
    fn malformed_guest_messages_are_rejected() {
        let host = Host::new(&name("nonsense")).expect("the name is free");
        let flags = SockFlag::SOCK_CLOEXEC;
        let (_, address) = address(&name("nonsense")).unwrap();
        let guest = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
        connect(guest.as_raw_fd(), &address).expect("the host listens");
        let (guest, peer) = (Peer(guest), host.accept().expect("a pending connection"));
        assert_eq!(peer.request().err(), Some(Errno::EAGAIN));
        let stdin = std::io::stdin();
        for (message, descriptor) in [
            (&b"join 2 host"[..], None),
            (b"join 1 moon", None),
            (b"\xff\xff", None),
            (PROGRAM, None),
            (PROGRAM, Some(stdin.as_raw_fd())),
            (PROGRAM, Some(guest.0.as_raw_fd())),
        ] {
            guest.send(message, descriptor).expect("the host exists");
            let refused = peer.request().expect_err("the request is invalid");
            assert_eq!(refused, Errno::EBADMSG, "{message:?}");
        }
        // Too many descriptors, or one where none belongs.
        let two_descriptors = [stdin.as_raw_fd(); 2];
        for (message, descriptors) in
            [(PROGRAM, &two_descriptors[..]), (b"join 1 dpu", &two_descriptors[..1])]
        {
            let control = [ControlMessage::ScmRights(descriptors)];
            let (bytes, flags) = ([IoSlice::new(message)], MsgFlags::MSG_NOSIGNAL);
            sendmsg::<()>(guest.0.as_raw_fd(), &bytes, &control, flags, None)
                .expect("the host exists");
            assert_eq!(peer.request().err(), Some(Errno::EBADMSG), "{message:?}");
        }
        guest.send(b"join 1 dpu", None).expect("the host exists");
        assert!(matches!(peer.request(), Ok(Request::Join(Side::Dpu))));
        drop(guest);
        // The guest's duplicate is closed by another thread.
        let mut end = peer.request().err();
        while end == Some(Errno::EAGAIN) {
            std::thread::yield_now();
            end = peer.request().err();
        }
        assert_eq!(end, Some(Errno::EBADMSG));
    }
}
