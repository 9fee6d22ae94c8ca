//! `run --name NAME` and `run --join NAME`: programs that are started later, on the devices of a
//! model that is there.
//!
//! ```text
//!   run --join NAME -- PROGRAM                       run --name NAME -- …
//!     "join 1 host"                  ------------>     is there such a side?
//!                                    <------------     "yes", or "no" and why
//!     forks, behind a filter
//!     "program" and the filter's end ------------>     may the child be looked into?
//!                                    <------------     "yes" (its calls are answered from now
//!                                                      on), or "no" and why
//!     the child becomes PROGRAM; waits for it
//!                                    <------------     "done": nobody is left behind the filter
//! ```
//!
//! `verbless-model ctl NAME …` says `"ctl 1 "` and what is to be done (`control`); the reply is
//! `"yes"` and, in the next lines, what there is to tell, or `"no"` and why. `pci --name` answers
//! that alone.
//!
//! The program is the child of the one who joins: its terminal, its directory, its limits and its
//! exit code are there. Who answers its calls is the first `run`, which for that must be allowed to
//! look into it (the same user; with Yama, the program itself allows it).
//!
//! The meeting place is an abstract socket with the user's number and the name in its own: it is
//! gone with its owner.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
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
use super::sys::{self, Listener};
use verbless_model::Side;

/// The first word of a guest, with the version of what follows.
const HELLO: &str = "join 1";
/// The first words of whoever changes the run, with the version of what follows.
const CONTROL: &str = "ctl 1 ";
const YES: &[u8] = b"yes";
const NO: &str = "no ";
const PROGRAM: &[u8] = b"program";
const DONE: &[u8] = b"done";
const OTHER_VERSION: &str = "it ended, or is of another version";
/// Bytes of the longest message.
const LONGEST: usize = 1 << 16;
/// Guests that may be about to join at a time.
const WAITING: i32 = 16;
/// How long a guest waits for the host's answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause after a guest could not be accepted for lack of a descriptor.
const NO_ROOM: Duration = Duration::from_millis(20);
/// Bytes of the longest name: what the kernel's addresses have room for.
const LONGEST_NAME: usize = 64;

/// The name of a socket, without the zero that makes it abstract.
fn address(name: &str) -> String {
    format!("{}{name}", prefix())
}

fn prefix() -> String {
    format!("verbless-model/{}/", geteuid())
}

/// Checks what a user gave as a name.
fn check(name: &str) -> Result<(), RunError> {
    let plain = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(plain) {
        return Err(RunError::BadName { name: name.into(), longest: LONGEST_NAME });
    }
    Ok(())
}

/// A text that lists the runs that can be joined.
fn known() -> String {
    match names() {
        names if names.is_empty() => "no run can be joined".into(),
        names => format!("your runs: {}", names.join(", ")),
    }
}

/// The names of this user's runs that can be joined.
fn names() -> Vec<String> {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let prefix = format!(" @{}", prefix());
    let mut names: Vec<String> = table
        .lines()
        .filter_map(|line| line.split_once(&prefix).map(|(_, name)| name.to_string()))
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// One end of a connection.
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

    /// A message, and the descriptor that came with it. Empty: the other side has gone.
    fn receive(&self) -> Result<(Vec<u8>, Option<OwnedFd>), Errno> {
        sys::receive_message(self.0.as_fd(), LONGEST)
    }

    fn credentials(&self) -> Result<UnixCredentials, Errno> {
        getsockopt(&self.0, sockopt::PeerCredentials)
    }

    /// Nobody is left behind the guest's filter.
    pub(super) fn done(&self) {
        let _ = self.send(DONE, None);
    }
}

/// The meeting place of a run with a name.
#[derive(Debug)]
pub(crate) struct Host(UnixListener);

impl AsFd for Host {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A request of a guest.
#[derive(Debug)]
pub(crate) enum Request {
    /// To see the devices of this side.
    Join(Side),
    /// To have the calls behind this filter answered.
    Program(Listener),
    /// To change or see the run.
    Control(Control),
}

impl Host {
    /// # Errors
    /// The name is none, or in use.
    pub(crate) fn new(name: &str) -> Result<Self, RunError> {
        check(name)?;
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        let address = UnixAddr::new_abstract(address(name).as_bytes())?;
        bind(socket.as_raw_fd(), &address).map_err(|errno| match errno {
            Errno::EADDRINUSE => in_use(name),
            other => other.into(),
        })?;
        listen(&socket, Backlog::new(WAITING)?)?;
        Ok(Self(socket.into()))
    }

    /// The next guest at the door; it is this user's, or root's.
    pub(crate) fn accept(&self) -> Option<Peer> {
        let (stream, _) = self
            .0
            .accept()
            .inspect_err(|error| {
                // The guest stays at the door, and would wake us again at once.
                if error.kind() != std::io::ErrorKind::WouldBlock {
                    std::thread::sleep(NO_ROOM);
                }
            })
            .ok()?;
        stream.set_nonblocking(true).ok()?;
        let peer = Peer(stream.into());
        let uid = Uid::from_raw(peer.credentials().ok()?.uid());
        may_enter(uid, geteuid()).then_some(peer)
    }
}

/// Why a name cannot be taken: by whom it is in use. An address has no owner that could keep others
/// from it.
fn in_use(name: &str) -> RunError {
    match Joined::meet(name) {
        Err(RunError::Refused(_)) => RunError::NameTaken { name: name.into() },
        _ => RunError::NameInUse { name: name.into() },
    }
}

/// Whether a user may join or change a run of this owner.
fn may_enter(user: Uid, owner: Uid) -> bool {
    user == owner || user.is_root()
}

impl Peer {
    /// Receives a request of a guest. EAGAIN: there is none yet.
    pub(crate) fn request(&self) -> Result<Request, Errno> {
        let (message, descriptor) = self.receive()?;
        if message == PROGRAM {
            let listener = Listener::new(descriptor.ok_or(Errno::EBADMSG)?)?;
            return Ok(Request::Program(listener));
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

    /// Says what became of what was asked for.
    pub(crate) fn tell(&self, result: Result<String, String>) -> Result<(), Errno> {
        match result {
            Ok(text) => self.send([YES, b"\n", text.as_bytes()].concat().as_slice(), None),
            Err(why) => self.send(format!("{NO}{why}").as_bytes(), None),
        }
    }

    /// Lets a guest join or says why not.
    pub(super) fn reply(&self, result: Result<(), String>) -> Result<(), Errno> {
        match result {
            Ok(()) => self.send(YES, None),
            Err(why) => self.send(format!("{NO}{why}").as_bytes(), None),
        }
    }
}

/// A run that was joined.
#[derive(Debug)]
pub(super) struct Joined {
    peer: Peer,
    /// The pid of the process that answers.
    pub pid: i32,
}

impl AsFd for Joined {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.peer.as_fd()
    }
}

impl Joined {
    /// Asks the run of that name whether a program may join it.
    ///
    /// # Errors
    /// There is no such run, or it refuses.
    pub(super) fn ask(name: &str, side: Side) -> Result<Self, RunError> {
        let (peer, pid) = Self::meet(name)?;
        sys::let_look(pid);
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
    /// There is no such run, or it cannot be done.
    pub(super) fn control(name: &str, control: &Control) -> Result<String, RunError> {
        let text = format!("{CONTROL}{}", control.to_text());
        if text.len() > LONGEST {
            let why = format!("it takes {LONGEST} bytes at most, and these are {}", text.len());
            return Err(RunError::Refused(why));
        }
        let (peer, pid) = Self::meet(name)?;
        Self { peer, pid }.request(text.as_bytes(), None)
    }

    /// The run of that name, and who answers.
    fn meet(name: &str) -> Result<(Peer, i32), RunError> {
        check(name)?;
        let socket =
            socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
        let address = UnixAddr::new_abstract(address(name).as_bytes())?;
        let patience = TimeVal::milliseconds(PATIENCE.as_millis() as i64);
        setsockopt(&socket, sockopt::ReceiveTimeout, &patience)?;
        // A program that only occupies the address accepts no connection.
        setsockopt(&socket, sockopt::SendTimeout, &patience)?;
        connect(socket.as_raw_fd(), &address).map_err(|errno| match errno {
            Errno::EAGAIN => RunError::Refused("it did not answer within 10 s".into()),
            Errno::ECONNREFUSED => RunError::NoSuchRun { name: name.into(), known: known() },
            other => other.into(),
        })?;
        let peer = Peer(socket);
        let host = peer.credentials()?;
        if host.uid() != geteuid().as_raw() {
            return Err(RunError::Refused("it belongs to another user".into()));
        }
        Ok((peer, host.pid()))
    }

    /// Hands over the end of the filter that the program is about to be behind. The host answers
    /// its first call.
    pub(super) fn hand_over(&self, listener: &Listener) -> Result<(), RunError> {
        self.request(PROGRAM, Some(listener.as_fd().as_raw_fd())).map(drop)
    }

    /// Sends a request; returns the text that follows the positive answer.
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

    /// Whether the host says that nobody is left; otherwise it ended before that.
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
    fn a_name_is_one_runs_until_it_ends() {
        let name = name("unique");
        let host = Host::new(&name).expect("it is free");
        assert!(names().contains(&name));
        let stranger = Joined::ask("nobody-has-this-name", Side::Host).expect_err("there is none");
        assert!(stranger.to_string().contains("your runs: "), "{stranger}");
        let again = Host::new(&name).expect_err("it is in use").to_string();
        assert!(again.contains("--join"), "{again}");
        drop(host);
        assert!(!names().contains(&name));
        let missing = Joined::ask(&name, Side::Host).expect_err("it is gone").to_string();
        assert!(missing.contains("--name"), "{missing}");
    }

    #[test]
    fn name_error_names_another_users_program() {
        use std::os::unix::process::CommandExt;
        if !geteuid().is_root() {
            let line = "skipped: run::join: only root can start programs of another user\n";
            return std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes())
                .expect("it is open");
        }
        let name = name("squatted");
        let squat = "import os, socket, sys\n\
            os.setuid(54321)\n\
            here = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
            here.bind('\\0' + sys.argv[1]); here.listen()\n\
            print(flush=True); sys.stdin.read()\n";
        let mut other = std::process::Command::new("/usr/bin/python3")
            .args(["-c", squat, &address(&name)])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("python");
        let mut byte = [0];
        let output = other.stdout.as_mut().expect("piped");
        std::io::Read::read_exact(output, &mut byte).expect("it has the name");
        let error = Host::new(&name).expect_err("it is taken").to_string();
        let joined = Joined::ask(&name, Side::Host).expect_err("it is no run").to_string();
        other.kill().and_then(|()| other.wait()).expect("it is there");
        assert!(error.contains("another user") && !error.contains("--join"), "{error}");
        assert!(joined.contains("another user"), "{joined}");
    }

    #[test]
    fn names_that_are_none_are_refused() {
        for bad in ["", "a/b", "a b", "ä", &"a".repeat(LONGEST_NAME + 1)] {
            assert!(matches!(Host::new(bad), Err(RunError::BadName { .. })), "{bad}");
            assert!(matches!(Joined::ask(bad, Side::Host), Err(RunError::BadName { .. })));
        }
    }

    #[test]
    fn the_longest_name_and_the_longest_request_are_taken() {
        let longest = format!("{:a<64}", name("longest"));
        assert!(Host::new(&longest).is_ok());
        let request = |bytes: usize| {
            let rest = bytes - CONTROL.len() - "apply ".len();
            Joined::control("nobody-has-this-name", &Control::Apply("x".repeat(rest)))
        };
        assert!(matches!(request(LONGEST), Err(RunError::NoSuchRun { .. })));
        let refused = request(LONGEST + 1).expect_err("it is too long").to_string();
        assert!(refused.contains("65536 bytes at most, and these are 65537"), "{refused}");
    }

    #[test]
    fn a_run_is_its_owners_and_roots() {
        let [root, one, other] = [0, 1000, 1001].map(Uid::from_raw);
        assert!(may_enter(one, one) && may_enter(root, one) && may_enter(root, root));
        assert!(!may_enter(other, one) && !may_enter(one, root));
    }

    #[test]
    fn what_no_guest_says_is_refused_and_no_other_descriptor_passes_for_a_filters() {
        let host = Host::new(&name("nonsense")).expect("it is free");
        let flags = SockFlag::SOCK_CLOEXEC;
        let address = UnixAddr::new_abstract(address(&name("nonsense")).as_bytes()).unwrap();
        let guest = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
        connect(guest.as_raw_fd(), &address).expect("it listens");
        let (guest, peer) = (Peer(guest), host.accept().expect("we are at the door"));
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
            guest.send(message, descriptor).expect("it is there");
            let refused = peer.request().expect_err("it is nonsense");
            assert_eq!(refused, Errno::EBADMSG, "{message:?}");
        }
        guest.send(b"join 1 dpu", None).expect("it is there");
        assert!(matches!(peer.request(), Ok(Request::Join(Side::Dpu))));
        drop(guest);
        assert_eq!(peer.request().err(), Some(Errno::EBADMSG));
    }
}
