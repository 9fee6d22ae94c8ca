//! `verbless-model run`: any program sees modelled devices, without root and without a virtual
//! machine.
//!
//! The program runs behind a seccomp filter, and this process answers for the kernel where RDMA
//! devices are concerned:
//!
//! ```text
//!   program (threads, children)                 verbless-model
//!   ---------------------------                 --------------------------------------------------
//!   open /dev/infiniband/uverbs0  --notify-->   paths: a memfd of its own for each open (ADDFD)
//!   open /dev/fwctl/fwctl0        --notify-->     the same
//!   open, stat, readlink /sys/..  --notify-->     tree: the same path in a file system of its own
//!   ioctl, magic 0x1b or 0x9a     --notify-->   ioctl: the modelled kernel -> hca: commands
//!   socket(NETLINK_RDMA), sendmsg --notify-->   netlink: a socket, on which nldev answers
//!   mmap of the memfd             -- native:    the device's UAR pages, which the engine polls
//!   loads, stores, all the rest   -- native
//!   close, exit, SIGKILL          --inotify-->    the memfd's last close: all it held is freed
//!                                 --pidfd-->      the process is no more: its memory is none
//! ```
//!
//! - **A thread that waits for calls** (`answer`), one for each filter, takes them, answers them
//!   and waits again (another takes its place if it does not come back, `turns`), in the kernel:
//!   handing over takes a few microseconds, as it wakes the answering side on the caller's CPU
//!   (SYNC_WAKE_UP, since 6.6). Another (`supervisor`) keeps house: closes, deaths, signals. The
//!   model's own thread moves data meanwhile; completion channels are sockets, which the
//!   kernel serves.
//! - **What stops** is what `filter` lists: calls with a path, ioctls of RDMA devices, questions
//!   about descriptors of devices. A path that is none of ours is let go at once (`paths`).
//! - **A device's descriptor** is a memfd that was opened again through `/proc`, so that its last
//!   close, wherever duplicates went, shows in inotify; the inode tells which open an ioctl is for.
//!   Its size is sealed: no client can remove pages that the engine uses. Its offsets are those
//!   that the kernel gives out for UAR pages; `fstat` shows a character device.
//! - **Memory of the program** is read and written by `process_vm_readv` and `process_vm_writev`
//!   (`memory::clients`), that of many messages by one call: payload, then the bodies of CQEs, then
//!   their owner bytes, each call done before the next. It is that of one program: what a process
//!   runs after `execve` is another client (`exec`).
//! - **Others may join** (`join`): their programs are started elsewhere and hand over the end of
//!   their filter; they see the devices of one side (`side`) in a tree of that side.
//! - **When this process is killed**, so are the program and all who use a device (`guardian`).
//! - **Nothing is trusted**: a thread's identity is looked up while its call waits, and checked
//!   after the look-up (NOTIF_ID_VALID); an ioctl is copied once and judged by its copy; nothing is
//!   opened in a program's root; what is given leads nowhere else. `docs/run-security.md` lists
//!   every access, and its test.
//!
//! What it cannot do: another filter with a listener (a `run` in a `run`) is refused by the kernel;
//! a program that changed its identity cannot be looked into; a duplicate of a device's descriptor,
//! if `dup2` or a socket puts it outside the numbers that the filter knows looks like a regular
//! file; `write` to a device, the old way of its commands, goes nowhere.

mod answer;
mod call_threads;
mod control;
mod cwd;
mod descendants;
mod descriptor;
mod descriptor_locks;
mod detached;
mod directory;
mod error;
mod exec;
mod file_closer;
mod filter;
#[cfg(fuzzing)]
mod fuzz;
mod guardian;
mod ioctl;
mod join;
mod names;
mod namespaces;
mod netlink;
mod nldev;
mod node;
mod open;
mod open_how;
mod path_walk;
mod paths;
mod preflight;
mod process;
mod processes;
#[cfg(target_arch = "x86_64")]
mod ptrace;
#[cfg(test)]
mod rig;
mod shared;
mod supervisor;
mod sys;
mod sysfs;
mod trace;
mod tree;
mod view;

pub use control::Control;
pub use error::RunError;
#[cfg(fuzzing)]
pub use fuzz::{DeviceTree, FuzzProgram, IdleProcess};
pub(crate) use join::{Host, Peer, Request};

use std::ffi::OsString;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::SigSet;

use crate::links::LinkOptions;
use crate::log::TraceLines;
use guardian::Guardian;
use join::Joined;
use shared::SharedRun;
use supervisor::{Programs, Supervisor};
use sys::{Listener, StartError};
use verbless_model::memory::ClientMemory;
use verbless_model::{Builder, Link, Model, ObjectCounts, Profile, Side};
use verbless_model_kernel::{InProcess, Neighbour};
use view::Views;

/// Options of `run`: the program, and the devices that it sees.
#[derive(Debug)]
pub struct RunOptions {
    /// The devices, in the order of their numbers; each with all its sides.
    pub devices: Vec<Profile>,
    /// Whether each device has all functions that its profile lists, not only one for each side.
    pub topology: bool,
    /// IP addresses of network devices, by device.
    pub addresses: Vec<(usize, IpAddr)>,
    /// Static neighbours: remote hosts by IP address and MAC.
    pub neighbours: Vec<Neighbour>,
    /// The side whose devices the program sees.
    pub side: Side,
    /// Name by which others may join, with [`join`](fn@join).
    pub name: Option<String>,
    /// The program and its arguments.
    pub program: Vec<OsString>,
    /// A command for a shell that runs on the DPU side meanwhile, with an empty standard input and
    /// in a process group of its own. If the program fails, it has some seconds to end.
    pub dpu: Option<OsString>,
    /// Whether and where to tell of what passes.
    pub trace: Trace,
    /// Options for the links.
    pub links: LinkOptions,
    /// The permissions of `/dev/fwctl/fwctlN`, which is root's.
    pub fwctl_mode: u32,
    /// The TCP port of this machine at which debuggers find programs of the DPA; 0: any.
    pub gdb: Option<u16>,
    /// The run that a debugger gets begins here.
    pub gdb_entry: Option<u64>,
}

/// Options of a program that joins the devices of another run.
#[derive(Debug)]
pub struct JoinOptions {
    /// The name of that run.
    pub name: String,
    /// The side whose devices the program sees.
    pub side: Side,
    /// The program and its arguments.
    pub program: Vec<OsString>,
}

/// What is printed of ioctls and commands.
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

/// Runs a program with modelled devices, until it and all its descendants have ended; returns the
/// program's status, or if that is success, that of the command on the DPU side. That command is
/// ended if it goes on for long after the program has failed.
///
/// SIGTERM is passed on to the program, as other signals are. After it, this does not wait for
/// descendants of a program that has ended, such as daemons, and a second SIGTERM waits for no
/// program either: all that are left are killed.
///
/// # Errors
/// The program cannot be started, or its calls cannot be answered.
pub fn run(options: RunOptions) -> Result<ExitStatus, RunError> {
    // Before there is any other thread, which would have them come its way.
    let (signals, mask) = supervisor::block_signals()?;
    let guardian = Guardian::new()?;
    let functions = |device: &Profile| match options.topology {
        true => device.topology().len().max(device.sides().count()),
        false => device.sides().count(),
    };
    preflight::check(options.devices.iter().map(functions).sum())?;
    let memory = Arc::<ClientMemory>::default();
    let model = build(&options, &memory);
    let printed = matches!(options.trace, Trace::Print).then(TraceLines::new);
    let _last_words = printed.as_ref().map(TraceLines::flush_on_drop);
    let _watch = match options.trace {
        Trace::Off => None,
        Trace::Print => printed.clone().map(|lines| {
            model.watch_commands(move |executed| lines.print(&trace::command(executed)))
        }),
        Trace::Record(file) => Some(model.record_commands(file)),
    };
    let _links = options.links.apply(&model)?;
    if let Some(port) = options.gdb {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(RunError::Debugger)?;
        let address = listener.local_addr().map_err(RunError::Debugger)?;
        model.debug_programs(listener, options.gdb_entry).map_err(RunError::Debugger)?;
        eprintln!("waiting for a debugger of the DPA's programs on {address}");
    }
    let kernel = InProcess::of(&model);
    // Programs on the other side may come later.
    let side = (options.dpu.is_none() && options.name.is_none()).then_some(options.side);
    for (device, address) in options.addresses {
        check_address(&model, side, device).map_err(|why| RunError::NoAddress {
            device,
            address,
            why,
        })?;
        kernel.add_address(device, address)?;
    }
    options.neighbours.iter().for_each(|neighbour| kernel.add_neighbour(neighbour));
    let host = options.name.as_deref().map(Host::new).transpose()?;
    let mut views = Views::new(model.clone());
    let mut commands = vec![(command(&options.program)?, views.of(options.side)?)];
    if let Some(text) = options.dpu {
        let mut shell = Command::new("/bin/sh");
        // A process group of its own: if it must end, so must all that it started.
        shell.arg("-c").arg(text).stdin(Stdio::null()).process_group(0);
        commands.push((shell, views.of(Side::Dpu)?));
    }
    let mut shared = SharedRun::new(&model, memory, printed).map_err(preflight::no_watch)?;
    shared.control_mode = options.fwctl_mode;
    let shared = Arc::new(shared);
    shared.processes.guarded_as(guardian.wards());
    let (mut pids, mut started) = (Vec::new(), Vec::new());
    for (command, view) in commands {
        let (child, listener) = start(command, mask, None, preflight::check_call)?;
        pids.push(child.id());
        started.push((listener, view));
    }
    // Only now, so that the program does not inherit it.
    process::allow_many_descriptors();
    for thread in process::threads() {
        sys::take_short_turns(thread);
    }
    let programs = Programs::new(pids[0], pids.get(1).copied(), signals)?;
    let programs = programs.guarded_by(guardian.pid());
    let mut supervisor = Supervisor::new(shared, programs, views, host)?;
    for (listener, view) in started {
        supervisor.answer(listener, &view)?;
    }
    let status = supervisor.run()?;
    for device in 0..model.devices() {
        let left = model.counts(device);
        // A dead device cannot be told to destroy anything.
        if left != ObjectCounts::default() && model.device(device).is_alive() {
            tracing::error!(
                device,
                ?left,
                "objects outlive all programs: the memory of a call never arrived, or this is a \
                 bug of the model"
            );
        }
    }
    Ok(ExitStatus::from_raw(status))
}

/// Runs a program on the devices of a run that has a name, until it and all that it started have
/// ended; gives the program's own status.
///
/// # Errors
/// There is no such run, it cannot be joined or ends before the program does, or the program cannot
/// be started.
pub fn join(options: JoinOptions) -> Result<ExitStatus, RunError> {
    let (signals, mask) = supervisor::block_signals()?;
    let program = command(&options.program)?;
    let joined = Joined::ask(&options.name, options.side)?;
    preflight::warn_of_children();
    // The host answers from now on, with an end of the filter of its own.
    let (child, _) = start(program, mask, Some(joined.pid), |listener| joined.hand_over(listener))?;
    let mut program = Programs::new(child.id(), None, signals)?;
    // Whether no process is left behind the filter: the program is about to end then.
    let mut done = false;
    loop {
        let input = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut waiting = [input(program.signals()), input(joined.as_fd())];
        let looked_at = if done { 1 } else { 2 };
        match poll(&mut waiting[..looked_at], PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let [signals, host] = waiting.map(|it| it.any().unwrap_or(false));
        if signals {
            program.hear_signals();
        }
        if program.is_over() {
            return Ok(ExitStatus::from_raw(program.end()));
        }
        if host && !joined.is_done() {
            program.kill();
            return Err(RunError::HostGone);
        }
        done |= host;
        if done && program.have_ended() {
            return Ok(ExitStatus::from_raw(program.wait()));
        }
    }
}

/// Does something to the run of a name, while it runs; gives what there is to print.
///
/// # Errors
/// There is no such run, or it refuses.
pub fn control(name: &str, control: &Control) -> Result<String, RunError> {
    Joined::control(name, control)
}

/// Starts a program behind a filter. `supervisor`: who looks into it, if that is not us; `check`
/// answers its first call.
fn start(
    command: Command,
    mask: SigSet,
    supervisor: Option<i32>,
    check: impl FnOnce(&Listener) -> Result<(), RunError> + Send,
) -> Result<(Child, Listener), RunError> {
    let name = command.get_program().to_string_lossy().into_owned();
    sys::adopt_orphans();
    let started = sys::start(command, filter::program, mask, supervisor, check);
    started.map_err(|error| match error {
        StartError::Filter(error) => preflight::no_filter(error),
        StartError::Check(error) => error,
        StartError::Program(source) => RunError::Program { program: name, source },
    })
}

/// A program and its arguments.
fn command(words: &[OsString]) -> Result<Command, RunError> {
    let (name, arguments) = words.split_first().ok_or(RunError::NoProgram)?;
    let mut command = Command::new(name);
    command.args(arguments);
    Ok(command)
}

/// Refuses an address for a device that programs do not see, which are on one side or on both, or
/// whose ports have none.
fn check_address(model: &Model, side: Option<Side>, device: usize) -> Result<(), String> {
    let is_seen = |&device: &usize| side.is_none_or(|side| model.side(device) == side);
    let seen: Vec<usize> = (0..model.devices()).filter(is_seen).collect();
    if !seen.contains(&device) {
        let numbers: Vec<_> = seen.iter().map(usize::to_string).collect();
        let numbers = numbers.join(", ");
        return Err(match device < model.devices() {
            true => format!(
                "device {device} is on the other side of its card, which the program does not \
                 see: its devices are {numbers}"
            ),
            false => format!("there is no device {device}: the program's devices are {numbers}"),
        });
    }
    match model.device(device).profile().link() {
        Link::Ethernet => Ok(()),
        _ => {
            Err("its ports are InfiniBand, which have no IP addresses: give --link ethernet".into())
        }
    }
}

fn build(options: &RunOptions, memory: &Arc<ClientMemory>) -> Model {
    let builder = Model::builder().memory(memory.clone()).identity(options.links.identity);
    let add = match options.topology {
        true => Builder::device_with_topology,
        false => Builder::device_with_sides,
    };
    options.devices.iter().cloned().fold(builder, add).build()
}
