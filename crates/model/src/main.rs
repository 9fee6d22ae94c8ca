//! `verbless-model`: the modelled device for programs that are not linked with it.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};

use clap::{Parser, Subcommand, ValueEnum};
use tracing::level_filters::LevelFilter;
use verbless_model::pci::{self, PciOptions};
use verbless_model::run::{self, JoinOptions, RunError, RunOptions, Trace};
use verbless_model::{Link, Profile, Side};

mod explain;

/// A software model of mlx5 devices.
#[derive(Parser)]
#[command(version, about, after_help = profiles())]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Say on the standard error what goes on: -v warnings and what is refused, with the reason; -vv everything. Without it `run`
    /// leaves the program's output alone, but for its own failures.
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    verbose: u8,
}

#[derive(Subcommand)]
enum Command {
    /// Be PCI devices, over vfio-user, for QEMU's `vfio-user-pci` to attach. Ends when all clients have gone.
    #[command(after_help = profiles())]
    Pci {
        /// Where a function listens, once for each; those of the first device first.
        #[arg(long, required = true)]
        socket: Vec<PathBuf>,
        /// What a device is, once for each: a profile's name (see below), or a TOML file.
        #[arg(long, default_value = "bluefield3")]
        profile: Vec<String>,
        /// What their ports are connected to; without it, what the profile says.
        #[arg(long)]
        link: Option<LinkArgument>,
        /// Functions per device: 1 to 8.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=8))]
        functions: u16,
        /// Instead, a function for each side that a device has: the host's, then that of a DPU's Arm cores.
        #[arg(long, conflicts_with = "functions")]
        sides: bool,
        /// Map no UAR page into the guest: every doorbell is a message.
        #[arg(long)]
        trap: bool,
        /// Write every command with its answer to this file, as text that `cargo xtask prm decode` reads.
        #[arg(long, value_name = "FILE")]
        record: Option<PathBuf>,
    },
    /// Run a program that sees modelled devices, without root and without a virtual machine.
    ///
    /// Ends when the program and all that was started have ended, with the program's exit code.
    #[command(after_help = profiles())]
    Run {
        /// What the devices are, one for each: a profile's name (see below), or a TOML file.
        #[arg(long, default_value = "bluefield3", conflicts_with = "join")]
        profile: Vec<String>,
        /// How many devices of each profile: 1 to 64.
        #[arg(long, default_value_t = 1, conflicts_with = "join", value_parser = clap::value_parser!(u16).range(1..=64))]
        devices: u16,
        /// What their ports are connected to; without it, what the profile says.
        #[arg(long, conflicts_with = "join")]
        link: Option<LinkArgument>,
        /// Which side of the devices the program is on: the machine that they are plugged into, or the Arm cores on a DPU.
        /// It sees that side's devices alone, numbered from 0.
        #[arg(long, value_enum, default_value_t = SideArgument::Host)]
        side: SideArgument,
        /// Meanwhile run this shell command on the DPU side, with an empty standard input. The exit code is the program's, or if that
        /// is 0, this command's.
        #[arg(long, value_name = "COMMAND", conflicts_with_all = ["side", "join"])]
        dpu: Option<OsString>,
        /// Let others join under this name.
        #[arg(long, conflicts_with = "join")]
        name: Option<String>,
        /// Run the program on the devices of the run that has this name, beside that one's own.
        #[arg(long, value_name = "NAME")]
        join: Option<String>,
        /// Print every ioctl and command as it passes; with a file, write the commands there, as text that `cargo xtask
        /// prm decode` reads.
        #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, conflicts_with = "join")]
        trace: Option<Option<PathBuf>>,
        /// The program and its arguments; from the program's name on, nothing is an option of `run`.
        #[arg(required = true, trailing_var_arg = true)]
        program: Vec<OsString>,
    },
    /// Say in words what a code means: a syndrome of the model's (564c0008), a command status (0x3, BAD_PARAM), or the
    /// syndrome of a failed WQE's CQE (0x13).
    Explain {
        /// In hexadecimal, with or without 0x, or a name.
        #[arg(required = true)]
        code: Vec<String>,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum LinkArgument {
    Infiniband,
    Ethernet,
}

#[derive(Clone, Copy, ValueEnum)]
enum SideArgument {
    Host,
    Dpu,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let _last_words = verbless_model::log::init(match arguments.verbose {
        // The standard error is the program's, too.
        0 if matches!(arguments.command, Command::Run { .. }) => LevelFilter::ERROR,
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    });
    match execute(arguments.command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("verbless-model: {error}");
            match error.downcast_ref::<RunError>() {
                Some(error) => error.exit_code().into(),
                None => ExitCode::FAILURE,
            }
        }
    }
}

fn execute(command: Command) -> Result<ExitCode, Box<dyn std::error::Error>> {
    match command {
        Command::Pci { socket, profile, link, functions, sides, trap, record } => {
            let devices: Result<Vec<_>, _> = profile
                .iter()
                .map(|name| Profile::load(name).map(|it| link_of(it, link)))
                .collect();
            let record = record.as_deref().map(create).transpose()?;
            let devices = devices?;
            pci::serve(PciOptions { devices, functions, sides, sockets: socket, trap, record })?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Explain { code } => {
            for code in code {
                println!("{}", explain::explain(&code)?);
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Run { profile, devices, link, side, dpu, name, join, trace, program } => {
            let side = match side {
                SideArgument::Host => Side::Host,
                SideArgument::Dpu => Side::Dpu,
            };
            if let Some(name) = join {
                return Ok(exit_code(run::join(JoinOptions { name, side, program })?));
            }
            let profiles: Result<Vec<_>, _> = profile
                .iter()
                .map(|name| Profile::load(name).map(|it| link_of(it, link)))
                .collect();
            let devices = profiles?
                .into_iter()
                .flat_map(|profile| std::iter::repeat_n(profile, devices.into()))
                .collect();
            let trace = match trace {
                None => Trace::Off,
                Some(None) => Trace::Print,
                Some(Some(file)) => Trace::Record(create(&file)?),
            };
            let options = RunOptions { devices, side, name, program, dpu, trace };
            Ok(exit_code(run::run(options)?))
        }
    }
}

/// The end of `--help`.
fn profiles() -> String {
    let names: Vec<_> = Profile::names().collect();
    format!("Profiles: {}", names.join(", "))
}

/// As shells say it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.unwrap_or(1) as u8)
}

fn create(path: &Path) -> Result<File, String> {
    File::create(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn link_of(profile: Profile, link: Option<LinkArgument>) -> Profile {
    match link {
        None => profile,
        Some(LinkArgument::Infiniband) => profile.with_link(Link::Infiniband),
        Some(LinkArgument::Ethernet) => profile.with_link(Link::Ethernet),
    }
}
