//! One role of a case, in its own process.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use verbless_conformance::Stop;

use crate::case::Side;
use crate::cases;
use crate::channel::{Channel, PATIENCE};
use crate::files::Files;
use crate::on::On;
use crate::role::Role;

/// Plays a role in this process; the director is on standard input.
pub(crate) fn in_this_process(on: &On, name: &str, side: Side, life: u32) -> Result<bool, Stop> {
    let case = cases::all().into_iter().find(|case| case.name == name);
    let case = case.ok_or_else(|| Stop::fail(format!("there is no case {name}")))?;
    let stream = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let lab = on.lab()?;
    let channel = Channel::new(stream, Some(PATIENCE))?;
    Role::new(&lab, side, life, channel, Files::default()).play(case.act(side))?;
    Ok(true)
}
