//! One role of a case in a process of its own, which is this program again.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

use super::case::Side;
use super::cases;
use super::channel::{Channel, PATIENCE, Report};
use super::files::Files;
use super::role::Role;
use crate::{Choice, Lab, Stop};

/// The program that plays roles, with its arguments before the case, the side and the life.
#[derive(Debug, Clone)]
pub struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
}

impl Program {
    /// This program, which plays a role if its arguments are these, then the id of a case, a side
    /// and a life.
    pub fn this(arguments: impl IntoIterator<Item = impl Into<OsString>>) -> io::Result<Self> {
        let arguments = arguments.into_iter().map(Into::into).collect();
        Ok(Self { path: std::env::current_exe()?, arguments })
    }

    /// Starts a role, whose director is at the other end of `director`.
    pub(super) fn start(
        &self,
        case: &str,
        side: Side,
        life: u32,
        director: UnixStream,
    ) -> io::Result<Child> {
        let side = match side {
            Side::A => "a",
            Side::B => "b",
        };
        let mut command = Command::new(&self.path);
        command.args(&self.arguments).args([case, side, &life.to_string()]);
        command.stdin(Stdio::from(OwnedFd::from(director))).spawn()
    }
}

/// The lab of the roles of this process, or of their director.
pub fn lab(choice: &Choice) -> Result<Lab, Stop> {
    let lab = Lab::open(choice)?;
    Ok(if lab.is_private() { lab } else { lab.with_two_processes() })
}

/// Plays a role in this process, which dies with its parent; the director is on standard input.
pub fn play(choice: &Choice, case: &str, side: Side, life: u32) -> Result<(), Stop> {
    set_pdeathsig(Signal::SIGKILL)?;
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut channel = Channel::new(stream, Some(PATIENCE))?;
    let prepared = || {
        let case = cases::find(case).ok_or_else(|| Stop::fail(format!("there is no {case}")))?;
        Ok((case, lab(choice)?.recorded()))
    };
    match prepared() {
        Ok((case, lab)) => {
            Role::new(&lab, side, life, channel, Files::default()).play(case.act(side))
        }
        Err(Stop(why)) => channel.report(&Report::Done(Err(why))),
    }
}
