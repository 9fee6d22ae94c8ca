//! `verbless-model run`: any program sees modelled devices, without root and without a virtual machine.
//!
//! The program runs behind a seccomp filter, and this process answers for the kernel where RDMA devices are concerned:
//!
//! ```text
//!   program (threads, children)                 verbless-model
//!   ---------------------------                 --------------------------------------------------
//!   open /dev/infiniband/uverbs0  --notify-->   paths: a memfd of its own for each open (ADDFD)
//!   open, stat, readlink /sys/..  --notify-->     tree: the same path below a private directory
//!   ioctl, magic 0x1b             --notify-->   ioctl: the modelled kernel -> hca: commands
//!   socket(NETLINK_RDMA)          -- EPROTONOSUPPORT by the filter itself
//!   mmap of the memfd             -- native: the pages are the device's UAR pages, which the engine looks at
//!   loads, stores, everything else -- native
//!   close, exit, SIGKILL          --inotify-->    the last close of the memfd: everything it held is freed
//!                                 --pidfd-->      the process is no more: its memory is none
//! ```
//!
//! - **A thread that waits for calls** (`answer`), one for each filter, takes them, answers them and waits again, in the
//!   kernel: handing over takes a few microseconds, as it wakes the answering side on the caller's CPU (SYNC_WAKE_UP,
//!   since 6.6). Another (`supervisor`) keeps house: closes, deaths, signals. The model's own thread moves data meanwhile; completion
//!   channels are sockets, and need nobody here.
//! - **What stops** is what `filter` lists: calls with a path, ioctls of RDMA devices, questions about descriptors of
//!   devices. A path that is none of ours is let go at once (`paths`).
//! - **A device's descriptor** is a memfd that was opened again through `/proc`, so that its last close, wherever duplicates
//!   went, shows in inotify; the inode tells which open an ioctl is for. Its size is sealed: nobody can take pages away
//!   from under the engine. Its offsets are those that the kernel gives out for UAR pages; `fstat` shows a character device.
//! - **Memory of the program** is read and written by `process_vm_readv` and `process_vm_writev` (`memory::clients`): payload,
//!   then the body of a CQE, then its owner byte, each call done before the next.
//! - **Nothing is trusted**: a thread's identity is looked up while its call waits, and checked after the look-up
//!   (NOTIF_ID_VALID); an ioctl is copied once and judged by its copy; paths are opened beneath a root that they cannot
//!   leave.
//!
//! What it cannot do: another filter with a listener (a `run` in a `run`) is refused by the kernel; a program that
//! changed its identity cannot be looked into; a duplicate of a device's descriptor outside the numbers that the filter
//! knows looks like a regular file; `write` to a device, the old way of its commands, goes nowhere.

mod answer;
mod directory;
mod filter;
mod ioctl;
mod open;
mod paths;
mod place;
mod process;
mod room;
mod side;
mod supervisor;
mod sys;
mod trace;
mod tree;

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;

use nix::errno::Errno;

use crate::memory::ClientMemory;
use crate::{Model, ObjectCounts, Profile, Side};
use room::Room;
use side::View;
use supervisor::{Programs, Supervisor};
use sys::StartError;

/// What to run, and on which devices.
#[derive(Debug)]
pub struct RunOptions {
    /// The devices, in the order of their numbers; each with all its sides.
    pub devices: Vec<Profile>,
    /// Whose devices the program sees.
    pub side: Side,
    /// The program and its arguments.
    pub program: Vec<OsString>,
    /// A command for a shell that runs on the DPU side meanwhile, with an empty standard input.
    pub dpu: Option<OsString>,
    /// Whether and where to tell of what passes.
    pub trace: Trace,
}

/// What becomes of the ioctls and commands that pass.
#[derive(Debug, Default)]
pub enum Trace {
    /// Nothing.
    #[default]
    Off,
    /// A line each on the standard error.
    Print,
    /// The commands go to a file, as text that `cargo xtask prm decode` reads.
    Record(File),
}

/// Why a program did not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No program was named.
    #[error("there is no program to run")]
    NoProgram,
    /// The program itself could not be started.
    #[error("cannot run {program}: {source}")]
    Program {
        /// Its name.
        program: String,
        /// What the system says.
        source: io::Error,
    },
    /// No device has a function on the side that the program is on.
    #[error(
        "no device has a DPU side, where a program is to be: give it one with an embedded CPU ({known})"
    )]
    NoDpu {
        /// The profiles that come along and have one.
        known: String,
    },
    /// The system does not let this process answer a program's calls.
    #[error("no program's calls can be answered here: {what} ({errno}): {remedy}")]
    Place {
        /// What was refused.
        what: &'static str,
        /// What the system says.
        errno: Errno,
        /// What to do about it.
        remedy: &'static str,
    },
    /// Something else that the system refused.
    #[error("{0}")]
    System(#[from] io::Error),
}

impl RunError {
    /// The exit code that a shell would give: 127 for no such program, 126 for one that cannot be run.
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

/// Runs a program with modelled devices, until it and all that was started have ended; gives the program's own status, or if
/// that is success, the one of the command on the DPU side.
///
/// # Errors
/// The program cannot be started, or its calls cannot be answered.
pub fn run(options: RunOptions) -> Result<ExitStatus, RunError> {
    let (name, arguments) = options.program.split_first().ok_or(RunError::NoProgram)?;
    // Before there is any other thread, which would have them come its way.
    let (signals, mask) = supervisor::block_signals()?;
    place::check()?;
    let memory = Arc::<ClientMemory>::default();
    let model = build(&options.devices, &memory);
    let printing = matches!(options.trace, Trace::Print);
    match options.trace {
        Trace::Off => {}
        Trace::Print => model.watch_commands(|executed| eprintln!("{}", trace::command(executed))),
        Trace::Record(file) => model.record_commands(file),
    }
    let mut program = Command::new(name);
    program.args(arguments);
    let mut commands = vec![(program, View::new(&model, options.side)?)];
    if let Some(text) = options.dpu {
        let mut shell = Command::new("/bin/sh");
        shell.arg("-c").arg(text).stdin(Stdio::null());
        commands.push((shell, View::new(&model, Side::Dpu)?));
    }
    place::check_tree(&commands[0].1.tree)?;
    let room = Arc::new(Room::new(model.backend(), memory, printing)?);
    sys::adopt_orphans();
    let (mut pids, mut started) = (Vec::new(), Vec::new());
    for (command, view) in commands {
        let name = command.get_program().to_string_lossy().into_owned();
        let (child, listener) = sys::start(command, filter::program(), mask, place::check_call)
            .map_err(|error| match error {
                StartError::Filter(error) => place::no_filter(error),
                StartError::Check(error) => error,
                StartError::Program(source) => RunError::Program { program: name, source },
            })?;
        pids.push(child.id());
        started.push((listener, Arc::new(view)));
    }
    // Only now, so that the program does not inherit it.
    for thread in process::threads() {
        sys::take_short_turns(thread);
    }
    let mut supervisor = Supervisor::new(room, Programs::new(&pids, signals))?;
    let mut views = Vec::new();
    for (listener, view) in started {
        supervisor.take(listener, view.clone())?;
        views.push(view);
    }
    let status = supervisor.run()?;
    for view in views {
        view.tree.remove();
    }
    for device in 0..model.devices() {
        let left = model.counts(device);
        if left != ObjectCounts::default() {
            tracing::warn!(device, ?left, "objects outlive all programs");
        }
    }
    Ok(ExitStatus::from_raw(status))
}

fn build(devices: &[Profile], memory: &Arc<ClientMemory>) -> Model {
    let builder = Model::builder().memory(memory.clone());
    devices.iter().cloned().fold(builder, crate::Builder::device_with_sides).build()
}
