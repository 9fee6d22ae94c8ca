//! Why a program did not run, and the exit code that says so.

use std::io;

use nix::errno::Errno;

use crate::links::LinkError;

/// Why a program did not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No program was named.
    #[error("no program was given: use `run -- PROGRAM [ARGUMENTS]`")]
    NoProgram,
    /// The socket for debuggers of DPA programs cannot be opened.
    #[error("cannot serve a debugger: {0}")]
    Debugger(io::Error),
    /// The program itself could not be started.
    #[error("cannot run {program}: {source}")]
    Program {
        /// The program.
        program: String,
        /// The system's error.
        source: io::Error,
    },
    /// No device has a function on the side that the program is on.
    #[error(
        "no device of this run has a DPU side for the program: choose a profile with an embedded \
         CPU ({known})"
    )]
    NoDpu {
        /// The built-in profiles that have one.
        known: String,
    },
    /// The given name is not a valid name of a run.
    #[error(
        "'{name}' is not a valid run name: use 1 to {longest} letters, digits, '-', '_' and '.'"
    )]
    BadName {
        /// The name that was given.
        name: String,
        /// Characters of the longest name.
        longest: usize,
    },
    /// Another run has that name.
    #[error(
        "you already have a run named {name}: join it with --join {name}, or choose another name"
    )]
    NameInUse {
        /// The name.
        name: String,
    },
    /// No run has that name.
    #[error(
        "you have no run named {name} ({known}); start one with `run --name {name} -- PROGRAM`"
    )]
    NoSuchRun {
        /// The name.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// A run refuses a program that wants to join it, or a request of `ctl`.
    #[error("the run refuses: {0}")]
    Refused(String),
    /// The run that was joined ended, and its devices with it.
    #[error("the joined run ended, and its devices with it: the program was killed")]
    HostGone,
    /// The environment forbids an operation that answering a program's calls needs.
    #[error("`run` cannot serve a program in this environment: {what} ({errno}): {remedy}")]
    Preflight {
        /// The operation that the environment forbids.
        what: &'static str,
        /// The system's error.
        errno: Errno,
        /// How to allow it.
        remedy: &'static str,
    },
    /// The link options cannot be applied.
    #[error(transparent)]
    Links(#[from] LinkError),
    /// A network device cannot have an address.
    #[error(transparent)]
    Address(#[from] verbless_devx::Error),
    /// An address was given for a device that none of the run's programs sees, or that has no IP
    /// addresses.
    #[error("--address {device}={address}: {why}")]
    NoAddress {
        /// The device's number.
        device: usize,
        /// The address.
        address: std::net::IpAddr,
        /// What to do.
        why: String,
    },
    /// Something else that the system refused.
    #[error("{0}")]
    System(#[from] io::Error),
}

impl RunError {
    /// The exit code that a shell would give: 127 for no such program, 126 for one that cannot be
    /// run.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Program { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            Self::Program { .. } => 126,
            _ => 1,
        }
    }
}

impl From<Errno> for RunError {
    fn from(errno: Errno) -> Self {
        Self::System(errno.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_start_error_has_shell_exit_code() {
        let program = |kind: io::ErrorKind| {
            RunError::Program { program: "it".into(), source: kind.into() }.exit_code()
        };
        assert_eq!(program(io::ErrorKind::NotFound), 127);
        assert_eq!(program(io::ErrorKind::PermissionDenied), 126);
        assert_eq!(RunError::NoProgram.exit_code(), 1);
        let error = RunError::from(Errno::ENOSPC);
        assert_eq!(
            (error.exit_code(), &*error.to_string()),
            (1, "No space left on device (os error 28)")
        );
    }
}
