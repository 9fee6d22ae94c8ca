//! A program that forks: the child has copies of its descriptors and of its memory, and the device
//! continues to use the parent's.
#![allow(unsafe_code, reason = "fork is unsafe; this module holds it")]

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use verbless_queue::ConnectOptions;
use verbless_queue::wr::{Inline, Write};

use super::link::{connect, endpoint};
use crate::roles::case::Case;
use crate::roles::role::Role;
use crate::{Need, Stop, ensure_eq};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("forking_program_continues_after_child_ends", forks, is_written_to)
            .needs(Need::TwoProcesses),
    ]
}

/// Ends with this code.
const CODE: i32 = 3;

fn forks(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    let there = connect(role, &mut end, &ConnectOptions::default())?;
    end.perform(&Write::new(Inline(b"one"), there).signaled())?;
    // SAFETY: the child calls nothing but _exit, which is safe after fork, whatever locks other
    // threads held.
    match unsafe { fork() }? {
        ForkResult::Child => {
            // SAFETY: as above; the child drops no object, so no object of the parent is destroyed.
            unsafe { nix::libc::_exit(CODE) }
        }
        ForkResult::Parent { child } => {
            ensure_eq!(waitpid(child, None)?, WaitStatus::Exited(child, CODE), "end of the child");
        }
    }
    // Only the parent owns the pages again, and the device still uses these.
    end.fill(0, b"two")?;
    let from = end.sge(0, 3)?;
    end.perform(&Write::new(from, there).signaled())?;
    end.device.nop()?;
    role.send(b"look")?;
    ensure_eq!(role.message()?, b"seen", "answer");
    Ok(())
}

fn is_written_to(role: &mut Role) -> Result<(), Stop> {
    let mut end = endpoint(role)?;
    connect(role, &mut end, &ConnectOptions::default())?;
    ensure_eq!(role.message()?, b"look", "message");
    ensure_eq!(end.bytes(0, 3)?, b"two", "the written bytes");
    role.send(b"seen")
}
