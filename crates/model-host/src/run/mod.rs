//! `verbless-model run`: shows modelled devices to an unmodified program, without root and without
//! a virtual machine.
//!
//! The program runs behind a seccomp filter. This process, the supervisor, answers the system calls
//! that concern RDMA devices:
//!
//! ```text
//!   program (threads, children)                 verbless-model
//!   ---------------------------                 --------------------------------------------------
//!   open /dev/infiniband/uverbs0  --notify-->   paths: each open gets its own memfd (ADDFD)
//!   open /dev/fwctl/fwctl0        --notify-->     the same
//!   open, stat, readlink /sys/..  --notify-->     tree: the same path in a private tmpfs
//!   ioctl, magic 0x1b or 0x9a     --notify-->   ioctl: the modelled kernel -> hca: commands
//!   socket(NETLINK_RDMA), sendmsg --notify-->   netlink: a socket on which nldev answers
//!   mmap of the memfd             -- native:    the device's UAR pages, which the engine polls
//!   loads, stores, other calls    -- native
//!   close, exit, SIGKILL          --inotify-->    last close of the memfd: its objects are freed
//!                                 --pidfd-->      end of the process: its memory is gone
//! ```
//!
//! - **Notification thread** (`answer`), one per filter: blocks in the kernel for a notification,
//!   answers it, and blocks again. If an answer takes too long, another thread takes its place
//!   (`call_threads`). A round trip takes a few microseconds, because the kernel wakes the
//!   supervisor on the caller's CPU (SYNC_WAKE_UP, since 6.6). A separate thread (`supervisor`)
//!   handles closes, process ends and signals. The model's thread moves data. Completion channels
//!   are sockets that the kernel serves.
//! - **Trapped calls** (`filter`): calls with a path, ioctls of RDMA devices, calls on descriptors
//!   of devices. A call whose path is outside the modelled tree continues in the kernel at once
//!   (`paths`).
//! - **Device descriptor**: a memfd that is reopened through `/proc`. inotify reports its last
//!   close, wherever its duplicates went. Its inode identifies the open to which an ioctl belongs.
//!   Its size is sealed: no client can remove pages that the engine uses. Its mmap offsets are the
//!   kernel's offsets of UAR pages. `fstat` shows a character device.
//! - **Memory of the program**: `process_vm_readv` and `process_vm_writev` (`memory::clients`). One
//!   call serves many messages: first payload, then the bodies of CQEs, then their owner bytes,
//!   each call complete before the next. Memory belongs to one program: after `execve`, the process
//!   is another client (`exec`).
//! - **Joining** (`join`): a program that is started elsewhere sends its filter's listener. It sees
//!   the devices of one side (`view`) in that side's tree.
//! - **Death of this process**: the guardian kills the program and all processes that use a device
//!   (`guardian`).
//! - **Trust**: none. A thread's identity is looked up while its call waits, and checked afterwards
//!   (NOTIF_ID_VALID). An ioctl is copied once; the copy is checked and executed. Nothing is opened
//!   in the program's root. No descriptor that a program receives leads outside the modelled files.
//!   `docs/run-security.md` lists every access with its test.
//!
//! Limits: the kernel refuses a second filter with a listener (a `run` in a `run`). The supervisor
//! cannot access the memory of a program that changed its identity. If `dup2` or a socket moves a
//! duplicate of a device's descriptor outside the numbers that the filter traps, the duplicate
//! looks like a regular file. `write` to a device, the legacy command interface, fails.

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
mod holders;
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
mod proc_stat;
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
mod wakes;

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

/// Options of `run`: the program, and its devices.
#[derive(Debug)]
pub struct RunOptions {
    /// The devices in the order of their numbers, each with all its sides.
    pub devices: Vec<Profile>,
    /// Whether each device has all functions that its profile lists, instead of one per side.
    pub topology: bool,
    /// IP addresses of network devices, by device.
    pub addresses: Vec<(usize, IpAddr)>,
    /// Static neighbours: IP address and MAC of remote hosts.
    pub neighbours: Vec<Neighbour>,
    /// The side whose devices the program sees.
    pub side: Side,
    /// Name under which other programs can join, with [`join`](fn@join).
    pub name: Option<String>,
    /// The program and its arguments.
    pub program: Vec<OsString>,
    /// A shell command that runs on the DPU side at the same time, with empty standard input and in
    /// its own process group. If the program fails, the command has a few seconds to end.
    pub dpu: Option<OsString>,
    /// Whether ioctls and commands are traced, and where to.
    pub trace: Trace,
    /// Link options.
    pub links: LinkOptions,
    /// Mode of `/dev/fwctl/fwctlN`, which root owns.
    pub fwctl_mode: u32,
    /// Local TCP port on which the gdb stub for DPA programs listens; 0 picks a free port.
    pub gdb: Option<u16>,
    /// Entry address: gdb attaches to the first DPA run that begins there.
    pub gdb_entry: Option<u64>,
}

/// Options of a program that joins another run.
#[derive(Debug)]
pub struct JoinOptions {
    /// The name of that run.
    pub name: String,
    /// The side whose devices the program sees.
    pub side: Side,
    /// The program and its arguments.
    pub program: Vec<OsString>,
}

/// Destination of the trace of ioctls and commands.
#[derive(Debug, Default)]
pub enum Trace {
    /// No trace.
    #[default]
    Off,
    /// One line each on standard error.
    Print,
    /// Commands go to a file, as text that `cargo xtask prm decode` reads.
    Record(File),
}

/// Runs a program with modelled devices until the program and all its descendants have ended.
/// Returns the program's status; if that is success, the status of the command on the DPU side.
/// Kills that command if it runs on too long after the program has failed.
///
/// SIGTERM and other signals are forwarded to the program. After SIGTERM, `run` does not wait for
/// descendants of an ended program, such as daemons. A second SIGTERM makes it wait for no program.
/// It kills all remaining processes.
///
/// # Errors
/// The program cannot be started, or its calls cannot be answered.
pub fn run(options: RunOptions) -> Result<ExitStatus, RunError> {
    // Other threads inherit the mask.
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
    let _log_flush = printed.as_ref().map(TraceLines::flush_on_drop);
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
    // With --dpu or --name, programs can join on the other side later.
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
        // The process group lets `run` end everything that the shell started.
        shell.arg("-c").arg(text).stdin(Stdio::null()).process_group(0);
        commands.push((shell, views.of(Side::Dpu)?));
    }
    let mut shared = SharedRun::new(&model, memory, printed).map_err(preflight::no_watch)?;
    shared.control_mode = options.fwctl_mode;
    let shared = Arc::new(shared);
    shared.processes.set_guarded(guardian.sender());
    let (mut pids, mut started) = (Vec::new(), Vec::new());
    for (command, view) in commands {
        let (child, listener) = start(command, mask, None, preflight::check_call)?;
        pids.push(child.id());
        started.push((listener, view));
    }
    // Later than the fork: the program must not inherit the limit.
    process::allow_many_descriptors();
    for thread in process::threads() {
        sys::shorten_time_slices(thread);
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
        // A dead device refuses every destroy command.
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

/// Runs a program on the devices of a named run until the program and everything that it started
/// have ended. Returns the program's status.
///
/// # Errors
/// The run does not exist, cannot be joined, or ends before the program does; or the program cannot
/// be started.
pub fn join(options: JoinOptions) -> Result<ExitStatus, RunError> {
    let (signals, mask) = supervisor::block_signals()?;
    let program = command(&options.program)?;
    let joined = Joined::join(&options.name, options.side)?;
    preflight::warn_of_children();
    // From here on, the host answers on its own duplicate of the listener.
    let (child, _) =
        start(program, mask, Some(joined.pid), |listener| joined.send_listener(listener))?;
    let mut program = Programs::new(child.id(), None, signals)?;
    // No process is left behind the filter: the program is about to end.
    let mut done = false;
    loop {
        let input = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut waiting = [input(program.signals()), input(joined.as_fd())];
        let polled = if done { 1 } else { 2 };
        match poll(&mut waiting[..polled], PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let [signals, host] = waiting.map(|it| it.any().unwrap_or(false));
        if signals {
            program.handle_signals();
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

/// Sends a control request to a running, named run. Returns the text to print.
///
/// # Errors
/// The run does not exist, or it refuses.
pub fn control(name: &str, control: &Control) -> Result<String, RunError> {
    Joined::control(name, control)
}

/// Starts a program behind a filter. `supervisor`: the process that reads the program's memory, if
/// not this one. `check` answers the program's first call.
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

fn command(words: &[OsString]) -> Result<Command, RunError> {
    let (name, arguments) = words.split_first().ok_or(RunError::NoProgram)?;
    let mut command = Command::new(name);
    command.args(arguments);
    Ok(command)
}

/// Refuses an address for a device that programs on `side` (`None`: either side) do not see, or
/// whose ports have no IP addresses.
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
