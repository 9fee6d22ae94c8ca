//! Messages between a role and its director: frames over a socket. Every wait has a limit.

use std::io::ErrorKind;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::frame::{self, Frame, MAX_BYTES};
use crate::{FailedCommand, Stop, ensure};

/// How long a role waits for the other role.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// How long a role waits while the other role measures.
pub(crate) const LONG_PATIENCE: Duration = Duration::from_secs(110);
/// A message of a role to the director.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// For the other role.
    Message(Vec<u8>),
    /// The role has reached a point, and waits for instructions.
    Point(String),
    /// A request to start the other role again, which has ended.
    Restart,
    /// A command that was refused to a role, before its end with an error.
    Refused(FailedCommand),
    /// The role has ended, with success or an error.
    Done(Result<(), String>),
}

/// A message of the director to a role.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Instruction {
    /// A message from the other role.
    Message(Vec<u8>),
    /// Go on from the point.
    Go,
    /// End yourself at the point.
    Die,
    /// The other role was killed.
    PeerGone,
    /// The other role has ended. Only a role without a director between receives it.
    PeerDone(Result<(), String>),
}

/// Kind of a role's last frame if it has succeeded.
pub(super) const DONE: u8 = b'd';
/// Kind of a role's last frame if it has failed.
pub(super) const FAILED: u8 = b'f';
/// Kinds of the frames that a role sends.
pub(super) const OF_ROLES: [u8; 6] = [b'm', b'p', b'r', b'c', DONE, FAILED];
/// Kinds of the frames that a director sends.
pub(super) const OF_DIRECTORS: [u8; 4] = *b"mgxe";

/// An end of the socket.
#[derive(Debug)]
pub(crate) struct Channel(UnixStream);

impl Channel {
    /// An end of the socket; a read times out after `patience`, if given.
    pub(crate) fn new(stream: UnixStream, patience: Option<Duration>) -> Result<Self, Stop> {
        stream.set_read_timeout(patience)?;
        Ok(Self(stream))
    }

    /// Sets how long a read waits.
    pub(crate) fn set_patience(&self, patience: Duration) -> Result<(), Stop> {
        Ok(self.0.set_read_timeout(Some(patience))?)
    }

    /// Another handle of the same end.
    pub(crate) fn clone(&self) -> Result<Self, Stop> {
        Ok(Self(self.0.try_clone()?))
    }

    /// Ends it for both sides.
    pub(crate) fn shut_down(&self) -> Result<(), Stop> {
        Ok(self.0.shutdown(Shutdown::Both)?)
    }

    fn write(&mut self, kind: u8, bytes: &[u8]) -> Result<(), Stop> {
        ensure!(
            bytes.len() <= MAX_BYTES,
            "a message of {} bytes; {MAX_BYTES} at most",
            bytes.len()
        );
        Ok(frame::write(&mut self.0, kind, bytes)?)
    }

    fn read(&mut self) -> Result<Frame, Stop> {
        frame::read(&mut self.0, MAX_BYTES).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => Stop::fail("the other program says nothing"),
            _ => error.into(),
        })
    }

    /// Sends a role's message.
    pub(crate) fn report(&mut self, report: &Report) -> Result<(), Stop> {
        match report {
            Report::Message(bytes) => self.write(b'm', bytes),
            Report::Point(name) => self.write(b'p', name.as_bytes()),
            Report::Restart => self.write(b'r', &[]),
            Report::Refused(command) => self.write(b'c', &command.to_bytes()),
            Report::Done(Ok(())) => self.write(DONE, &[]),
            Report::Done(Err(why)) => self.write(FAILED, why.as_bytes()),
        }
    }

    /// Receives a role's message, at the director.
    pub(crate) fn receive_report(&mut self) -> Result<Report, Stop> {
        let (kind, bytes) = self.read()?;
        let text = || String::from_utf8_lossy(&bytes).into_owned();
        match kind {
            b'm' => Ok(Report::Message(bytes)),
            b'p' => Ok(Report::Point(text())),
            b'r' => Ok(Report::Restart),
            b'c' => match FailedCommand::from_bytes(&bytes) {
                Some(command) => Ok(Report::Refused(command)),
                None => Err(Stop::fail("a refused command that is none")),
            },
            DONE => Ok(Report::Done(Ok(()))),
            FAILED => Ok(Report::Done(Err(text()))),
            kind => Err(Stop::fail(format!("a frame of kind {kind:#x}"))),
        }
    }

    /// Sends a director's message to a role.
    pub(crate) fn send_instruction(&mut self, instruction: &Instruction) -> Result<(), Stop> {
        match instruction {
            Instruction::Message(bytes) => self.write(b'm', bytes),
            Instruction::Go => self.write(b'g', &[]),
            Instruction::Die => self.write(b'x', &[]),
            Instruction::PeerGone => self.write(b'e', &[]),
            Instruction::PeerDone(result) => self.report(&Report::Done(result.clone())),
        }
    }

    /// Receives the director's message, at a role.
    pub(crate) fn receive_instruction(&mut self) -> Result<Instruction, Stop> {
        match self.read()? {
            (b'm', bytes) => Ok(Instruction::Message(bytes)),
            (b'g', _) => Ok(Instruction::Go),
            (b'x', _) => Ok(Instruction::Die),
            (b'e', _) => Ok(Instruction::PeerGone),
            (DONE, _) => Ok(Instruction::PeerDone(Ok(()))),
            (FAILED, why) => {
                Ok(Instruction::PeerDone(Err(String::from_utf8_lossy(&why).into_owned())))
            }
            (kind, _) => Err(Stop::fail(format!("a frame of kind {kind:#x}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use verbless_devx::Errno;

    use super::*;

    #[test]
    fn channel_messages_round_trip() {
        let (one, other) = UnixStream::pair().expect("a pair of sockets");
        let mut role = Channel::new(one, Some(PATIENCE)).expect("a channel");
        let mut director = Channel::new(other, Some(PATIENCE)).expect("a channel");
        for report in [
            Report::Message(vec![0, 1, 255]),
            Report::Point("connected".into()),
            Report::Restart,
            Report::Refused(refused()),
            Report::Done(Ok(())),
            Report::Done(Err("it broke".into())),
        ] {
            role.report(&report).expect("a report");
            assert_eq!(director.receive_report().expect("a report"), report);
        }
        for instruction in [
            Instruction::Message(Vec::new()),
            Instruction::Go,
            Instruction::Die,
            Instruction::PeerGone,
        ] {
            director.send_instruction(&instruction).expect("an instruction");
            assert_eq!(role.receive_instruction().expect("an instruction"), instruction);
        }
    }

    /// CREATE_CQ, refused with BAD_PARAM.
    fn refused() -> FailedCommand {
        let (input, output) = ([&[4, 0][..], &[0; 270]].concat(), vec![3, 0, 0, 0, 0, 0, 0, 9]);
        FailedCommand::new(input, output, Errno::EREMOTEIO).expect("a command")
    }

    #[test]
    fn refused_command_that_is_none_is_an_error() {
        let bytes = refused().to_bytes();
        assert_eq!(FailedCommand::from_bytes(&bytes), Some(refused()));
        let long = [&bytes[..], &[0; 8 << 10]].concat();
        // No length, a length past the end, no header, a mailbox longer than any that is kept.
        for other in [&bytes[..5], &bytes[..100], &[0; 8], &long] {
            assert_eq!(FailedCommand::from_bytes(other), None, "{} bytes", other.len());
        }
    }

    #[test]
    fn silent_peer_times_out() {
        let (one, _other) = UnixStream::pair().expect("a pair of sockets");
        let patience = Some(Duration::from_millis(10));
        let mut channel = Channel::new(one, patience).expect("a channel");
        let Stop(why) = channel.receive_instruction().expect_err("no instruction");
        assert!(why.contains("says nothing"), "{why}");
    }
}
