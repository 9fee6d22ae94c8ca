//! The interface of a role: open its device, send to and receive from the other role, and pass kill
//! points.

use std::collections::VecDeque;
use std::time::Duration;

use nix::sys::signal::{Signal, raise};
use verbless_command::Device;
use verbless_devx::DeviceInfo;
use verbless_doca::{Dev, DevInfo};

use super::case::{Act, Side};
use super::channel::{Channel, Instruction, Report};
use super::files::Files;
use crate::report::plain;
use crate::{Lab, Stop};

/// The result of waiting for the other role.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Message(Vec<u8>),
    /// The other role was killed.
    Gone,
}

/// One of two programs.
pub(crate) struct Role<'a> {
    lab: &'a Lab,
    side: Side,
    life: u32,
    channel: Channel,
    files: Files,
    /// Messages received during another wait.
    early: VecDeque<Received>,
}

impl<'a> Role<'a> {
    pub(crate) fn new(lab: &'a Lab, side: Side, life: u32, channel: Channel, files: Files) -> Self {
        Self { lab, side, life, channel, files, early: VecDeque::new() }
    }

    /// Opens its device.
    pub(crate) fn device(&self) -> Result<Device, Stop> {
        self.open(self.side)
    }

    /// Opens the device of the other role.
    pub(crate) fn other_device(&self) -> Result<Device, Stop> {
        self.open(self.side.other())
    }

    /// Opens its device for DOCA.
    pub(crate) fn dev(&self) -> Result<Dev, Stop> {
        let backend = self.files.backend(self.lab.shared_backend());
        Ok(DevInfo::find_in(&backend, &self.info(self.side).name)?.open()?)
    }

    fn open(&self, side: Side) -> Result<Device, Stop> {
        self.files.device(self.lab.shared_backend(), self.info(side))
    }

    fn info(&self, side: Side) -> &DeviceInfo {
        match side {
            Side::A => self.lab.info(),
            Side::B => self.lab.other_info(),
        }
    }

    /// Sets how long it waits for the other role.
    pub(crate) fn set_patience(&self, patience: Duration) -> Result<(), Stop> {
        self.channel.set_patience(patience)
    }

    /// 1, or more after a restart.
    pub(crate) fn life(&self) -> u32 {
        self.life
    }

    /// Sends bytes to the other role, outside the device.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), Stop> {
        self.channel.report(&Report::Message(bytes.to_vec()))
    }

    /// The other role's next message, or its end.
    pub(crate) fn receive(&mut self) -> Result<Received, Stop> {
        match self.early.pop_front() {
            Some(received) => Ok(received),
            None => match self.channel.receive_instruction()? {
                Instruction::Message(bytes) => Ok(Received::Message(bytes)),
                Instruction::PeerGone => Ok(Received::Gone),
                Instruction::PeerDone(Err(why)) => {
                    Err(Stop::fail(format!("the other program: {}", plain(&why))))
                }
                instruction => {
                    Err(Stop::fail(format!("{instruction:?}, though it is at no point")))
                }
            },
        }
    }

    /// The next message of the other role, which must live.
    pub(crate) fn message(&mut self) -> Result<Vec<u8>, Stop> {
        match self.receive()? {
            Received::Message(bytes) => Ok(bytes),
            Received::Gone => Err(Stop::fail("the other program was killed")),
        }
    }

    /// Waits until the other role has been killed; discards its earlier messages.
    pub(crate) fn until_peer_is_gone(&mut self) -> Result<(), Stop> {
        while self.receive()? != Received::Gone {}
        Ok(())
    }

    /// Passes a point: if the case says so, the role is killed here or a fault happens.
    pub(crate) fn point(&mut self, name: &str) -> Result<(), Stop> {
        self.channel.report(&Report::Point(name.into()))?;
        loop {
            match self.channel.receive_instruction()? {
                Instruction::Go => return Ok(()),
                Instruction::Die if self.lab.is_private() => {
                    self.files.close();
                    return Err(Stop::fail("it was killed"));
                }
                Instruction::Die => {
                    raise(Signal::SIGKILL)?;
                    return Err(Stop::fail(format!("it outlived SIGKILL at {name:?}")));
                }
                Instruction::Message(bytes) => self.early.push_back(Received::Message(bytes)),
                Instruction::PeerGone => self.early.push_back(Received::Gone),
                instruction @ Instruction::PeerDone(_) => {
                    return Err(Stop::fail(format!("{instruction:?} at the point {name:?}")));
                }
            }
        }
    }

    /// Requests the restart of the killed other role.
    pub(crate) fn restart_peer(&mut self) -> Result<(), Stop> {
        self.channel.report(&Report::Restart)
    }

    /// Plays the role to its end and reports the result, if it was not killed; before an error, the
    /// last commands that were refused.
    pub(crate) fn play(mut self, act: Act) -> Result<(), Stop> {
        let result = act(&mut self).map_err(|Stop(why)| why);
        if self.files.are_closed() {
            return Ok(());
        }
        if result.is_err() {
            for command in self.lab.failed_commands().list() {
                self.channel.report(&Report::Refused(command))?;
            }
        }
        self.channel.report(&Report::Done(result))
    }
}
