//! Errors of `run`, and the exit code of each.

use std::io;

use nix::errno::Errno;

use crate::links::LinkError;

/// Reason why a program did not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No program was named.
    #[error("no program was given: use `run -- PROGRAM [ARGUMENTS]`")]
    NoProgram,
    /// The socket for debuggers of DPA programs cannot be opened.
    #[error("cannot serve a debugger: {0}")]
    Debugger(io::Error),
    /// The program could not be started.
    #[error("cannot run {program}: {source}")]
    Program {
        /// The program.
        program: String,
        /// The system's error.
        source: io::Error,
    },
    /// No device has a DPU side.
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
        /// The given name.
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
        /// The existing names.
        known: String,
    },
    /// The run refused a joining program, or a request of `ctl`.
    #[error("the run refuses: {0}")]
    Refused(String),
    /// The joined run ended, and its devices with it.
    #[error("the joined run ended, and its devices with it: the program was killed")]
    HostGone,
    /// The environment forbids an operation that the supervisor needs.
    #[error("`run` cannot serve a program in this environment: {what} ({errno}): {remedy}")]
    Preflight {
        /// The operation that the environment forbids.
        what: std::borrow::Cow<'static, str>,
        /// The system's error.
        errno: Errno,
        /// How to allow it.
        remedy: &'static str,
    },
    /// The link options cannot be applied.
    #[error(transparent)]
    Links(#[from] LinkError),
    /// The address of a network device is invalid.
    #[error(transparent)]
    Address(#[from] verbless_devx::Error),
    /// An address was given for a device that no program of the run sees, or that has no IP
    /// addresses.
    #[error("--address {device}={address}: {why}")]
    NoAddress {
        /// The device's number.
        device: usize,
        /// The address.
        address: std::net::IpAddr,
        /// Why the address cannot be used.
        why: String,
    },
    /// Another error of the system.
    #[error("{0}")]
    System(#[from] io::Error),
}

impl RunError {
    /// The shell's exit code: 127 if the program was not found, 126 if it could not be executed.
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
