//! What two machines say to each other: the handshake, then frames.
//!
//! Each side begins with eight bytes that are the same in every version, the number of its
//! protocol, and its version as text. Cases on two machines are one program's: both sides must be
//! of one version. The other side may be anybody: no length is trusted, each wait has a limit, and
//! a text is shown without its control characters.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::frame::Timed;
use crate::report::{DeviceFacts, Machine, plain};
use crate::{Lab, Stop, ensure};

/// Number of this protocol.
const PROTOCOL: u32 = 1;
/// The first bytes of either side.
const MAGIC: [u8; 8] = *b"vb-peers";
/// The longest version.
const MAX_VERSION: usize = 256;
/// How long the other side's first bytes may take.
const LIMIT: Duration = Duration::from_secs(5);
/// The port of `hwtest serve`, if an address names none.
const PORT: u16 = 7472;

/// Requests of the client, and the server's answers, beside the frames of roles and directors.
pub(super) mod kind {
    /// Start a role: its life in four bytes, then the case's id. No answer but the role's frames.
    pub(crate) const START: u8 = b's';
    /// Kill the role.
    pub(crate) const KILL: u8 = b'k';
    /// Which needs of a case are missing? The answer has their names, or nothing.
    pub(crate) const NEEDS: u8 = b'n';
    /// The server describes itself: JSON.
    pub(crate) const ABOUT: u8 = b'i';
    /// The server refuses the client, with a reason.
    pub(crate) const REFUSED: u8 = b'q';
    /// The role's process has ended: how, and a text.
    pub(crate) const ENDED: u8 = b'z';
}

/// The address of a server: `HOST`, `HOST:PORT`, `[ADDRESS]:PORT`; the default port is 7472.
pub fn with_port(address: &str) -> String {
    let has_port = match address.rsplit_once(':') {
        // A bare address of IPv6 has several colons.
        Some((host, _)) => !host.contains(':') || host.ends_with(']'),
        None => false,
    };
    match address.contains(':') && !has_port && !address.starts_with('[') {
        true => format!("[{address}]:{PORT}"),
        false if has_port => address.into(),
        false => format!("{address}:{PORT}"),
    }
}

/// What an end of the cases says of itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct About {
    /// Its device, its name and its firmware, in one line.
    pub device: String,
    /// What was checked before the run.
    pub preconditions: Vec<String>,
    /// Its machine.
    pub machine: Machine,
    /// What the device says about itself, with its identity.
    pub facts: DeviceFacts,
}

impl About {
    /// What the first device of a lab says.
    pub fn of(lab: &Lab, preconditions: Vec<String>) -> Result<Self, Stop> {
        let facts = crate::report::facts(lab).into_iter().next();
        let facts = facts.ok_or_else(|| Stop::fail("the lab has no device"))?;
        let DeviceFacts { name, psid, firmware, .. } = &facts;
        let device = format!("{name} ({psid}, firmware {firmware})");
        Ok(Self { device, preconditions, machine: Machine::of_this(), facts })
    }

    /// Without what a terminal or a page would not show as it is.
    pub(super) fn plain(mut self) -> Self {
        self.device = plain(&self.device);
        self.preconditions.iter_mut().for_each(|line| *line = plain(line));
        self.facts.name = plain(&self.facts.name);
        self
    }

    /// Whether the device is the model, in words.
    pub fn sort(&self) -> &'static str {
        if self.facts.model { "the model" } else { "a card" }
    }
}

/// The ends of a run in one line. Only two cards are called hardware. A report has this line, so it
/// has no address.
pub fn describe(here: &About, there: &About) -> String {
    let both = match (here.facts.model, there.facts.model) {
        (false, false) => "hardware at both ends",
        (true, true) => "the model at both ends",
        _ => "the model at one end",
    };
    let (sort, other) = (here.sort(), there.sort());
    format!("{both}: here {sort}, {}; at the peer {other}, {}", here.device, there.device)
}

/// How a handshake ended that found nothing wrong.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Greeted {
    Done,
    /// The other side closed the connection without a byte: so does a forwarded port before the
    /// server behind it listens.
    Closed,
}

/// Sends this side's first bytes and reads the other side's; fails unless both are of one version.
pub(super) fn handshake(stream: &TcpStream, version: &str) -> Result<(), Stop> {
    match greet(stream, version)? {
        Greeted::Done => Ok(()),
        Greeted::Closed => Err(Stop::fail(CLOSED)),
    }
}

const CLOSED: &str = "the other side closes the connection: it is no hwtest";

/// As [`handshake`], but a connection that is closed at once is no failure.
pub(super) fn greet(stream: &TcpStream, version: &str) -> Result<Greeted, Stop> {
    let mut hello = MAGIC.to_vec();
    hello.extend(PROTOCOL.to_be_bytes());
    hello.extend((version.len().min(MAX_VERSION) as u32).to_be_bytes());
    hello.extend(version.bytes().take(MAX_VERSION));
    let is_closed = |error: &io::Error| {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
    };
    let mut writer = stream;
    let mut reader = Timed::new(stream, LIMIT);
    let mut magic = [0; 8];
    match writer.write_all(&hello).and_then(|()| reader.read_exact(&mut magic)) {
        Ok(()) => {}
        Err(error) if is_closed(&error) => return Ok(Greeted::Closed),
        Err(error) => return Err(unanswered(&error)),
    }
    ensure!(
        magic == MAGIC,
        "the other side is no hwtest: it begins with {:?}",
        plain(&String::from_utf8_lossy(&magic))
    );
    let mut number = || -> io::Result<u32> {
        let mut bytes = [0; 4];
        reader.read_exact(&mut bytes)?;
        Ok(u32::from_be_bytes(bytes))
    };
    let (protocol, length) = (number()?, number()? as usize);
    ensure!(length <= MAX_VERSION, "a version of {length} bytes; the limit is {MAX_VERSION}");
    let mut theirs = vec![0; length];
    reader.read_exact(&mut theirs)?;
    let theirs = plain(&String::from_utf8_lossy(&theirs));
    ensure!(
        protocol == PROTOCOL,
        "the other side speaks protocol {protocol} (hwtest {theirs}), this one protocol \
         {PROTOCOL} (hwtest {version}): run one version on both machines"
    );
    ensure!(
        theirs == version,
        "the other side is hwtest {theirs}, this one is hwtest {version}: run one version on both \
         machines"
    );
    Ok(Greeted::Done)
}

fn unanswered(error: &io::Error) -> Stop {
    Stop::fail(match error.kind() {
        ErrorKind::TimedOut => format!("no hwtest answers: {error}"),
        _ => error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn address_without_port_gets_the_default() {
        let cases = [
            ("lab2", "lab2:7472"),
            ("lab2:80", "lab2:80"),
            ("10.0.0.2", "10.0.0.2:7472"),
            ("::1", "[::1]:7472"),
            ("[::1]", "[::1]:7472"),
            ("[::1]:80", "[::1]:80"),
        ];
        for (given, expected) in cases {
            assert_eq!(with_port(given), expected);
        }
    }

    /// What a side says when the other one begins with `bytes`.
    fn against(bytes: &[u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut other = TcpStream::connect(listener.local_addr().expect("bound")).expect("there");
        let (stream, _) = listener.accept().expect("a connection");
        other.write_all(bytes).expect("room");
        other.shutdown(std::net::Shutdown::Write).expect("connected");
        handshake(&stream, "1.0 (commit a)").err().map(|Stop(why)| why).unwrap_or_default()
    }

    fn hello(protocol: u32, version: &str) -> Vec<u8> {
        let length = (version.len() as u32).to_be_bytes();
        [&MAGIC[..], &protocol.to_be_bytes(), &length, version.as_bytes()].concat()
    }

    #[test]
    fn handshake_names_both_versions_that_differ() {
        assert_eq!(against(&hello(PROTOCOL, "1.0 (commit a)")), "");
        let why = against(&hello(PROTOCOL, "1.0 (commit b)"));
        assert!(
            why.contains("is hwtest 1.0 (commit b), this one is hwtest 1.0 (commit a)"),
            "{why}"
        );
        let why = against(&hello(7, "2.0"));
        assert!(why.contains("protocol 7 (hwtest 2.0), this one protocol 1"), "{why}");
    }

    #[test]
    fn handshake_with_other_programs_says_what_they_are() {
        assert!(against(b"SSH-2.0-OpenSSH_9.2").contains("no hwtest: it begins with \"SSH-2.0-"));
        assert!(against(b"\x1b[31mab\x07").contains("\\u{1b}"), "control characters are escaped");
        assert!(against(b"vb").contains("no hwtest"));
        let mut long = hello(PROTOCOL, "");
        long.truncate(12);
        long.extend(u32::MAX.to_be_bytes());
        assert!(against(&long).contains("a version of 4294967295 bytes; the limit is 256"));
    }
}
