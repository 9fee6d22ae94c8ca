//! `verbless-model`: the modelled device for programs that are not linked with it.

use std::ffi::OsString;
use std::fs::File;
use std::net::IpAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};

use clap::{Parser, Subcommand, ValueEnum};
use tracing::level_filters::LevelFilter;
use verbless_model::{FaultPlan, Link, Profile, QueueKind, Side};
use verbless_model_host::links::{LinkOptions, Uplink};
use verbless_model_host::pci::{self, PciOptions};
use verbless_model_host::run::{self, Control, JoinOptions, RunError, RunOptions, Trace};
use verbless_model_kernel::Neighbour;

mod explain;

/// A software model of mlx5 devices.
#[derive(Parser)]
#[command(version, about, after_help = profiles())]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Log to standard error: -v warnings and refused calls, with the reason; -vv also refused
    /// probes that libraries make of every device, and details. Without it, `run` prints only its
    /// own failures.
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    verbose: u8,
}

#[derive(Subcommand)]
enum Command {
    /// Serve PCI devices over vfio-user for QEMU's `vfio-user-pci`. Ends when all clients have
    /// disconnected.
    #[command(after_help = profiles())]
    Pci {
        /// Unix socket of a PCI function; once for each function, in the order of the devices.
        #[arg(long, required = true)]
        socket: Vec<PathBuf>,
        /// Profile of a device, once for each device: a name from the list below, or a TOML file.
        #[arg(long, default_value = "bluefield3")]
        profile: Vec<String>,
        /// Link type of the ports [default: the profile's].
        #[arg(long)]
        link: Option<LinkArgument>,
        /// Functions per device: 1 to 8.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=8))]
        functions: u16,
        /// Instead of --functions: one function for each side of a device, the host and then the
        /// Arm cores of a DPU.
        #[arg(long, conflicts_with = "functions")]
        sides: bool,
        /// Map no UAR page into the guest: every doorbell is trapped.
        #[arg(long)]
        trap: bool,
        /// Write every command and its answer to this file, as text that `cargo xtask prm decode`
        /// reads. A command returns when it is written: a slow file slows commands, not data.
        #[arg(long, value_name = "FILE")]
        record: Option<PathBuf>,
        /// Name for `verbless-model ctl`, which changes the devices while they are served.
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        links: LinkArguments,
    },
    /// Run a program with modelled RDMA devices, without root and without a virtual machine.
    ///
    /// Ends when the program and every process that it started have ended, with the program's exit
    /// code.
    #[command(after_help = profiles())]
    Run {
        /// Profile of a device, once for each kind of device: a name from the list below, or a TOML
        /// file.
        #[arg(long, default_value = "bluefield3", conflicts_with = "join")]
        profile: Vec<String>,
        /// Number of devices of each profile: 1 to 64.
        #[arg(long, default_value_t = 1, conflicts_with = "join")]
        #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
        devices: u16,
        /// Give each device all functions of its profile (bluefield3: two PFs and three VFs at the
        /// host, two PFs and two SFs at the DPU), not one for each side.
        #[arg(long, conflicts_with = "join")]
        topology: bool,
        /// Link type of the ports [default: the profile's].
        #[arg(long, conflicts_with = "join")]
        link: Option<LinkArgument>,
        /// Side of the devices that the program runs on: the host, or the Arm cores of a DPU. It
        /// sees only the devices of that side, numbered from 0.
        #[arg(long, value_enum, default_value_t = SideArgument::Host)]
        side: SideArgument,
        /// Also run this shell command, on the DPU side and with an empty standard input. The exit
        /// code is the program's or, if that is 0, this command's. If the program fails, the
        /// command is ended 5 s later by SIGTERM and 10 s later by SIGKILL.
        #[arg(long, value_name = "COMMAND", conflicts_with_all = ["side", "join"])]
        dpu: Option<OsString>,
        /// IP address of a device's network interface, which becomes two GIDs. Devices are numbered
        /// from 0; example: 0=192.0.2.1.
        #[arg(long, value_name = "DEVICE=IP", value_parser = address, conflicts_with = "join")]
        address: Vec<(usize, IpAddr)>,
        /// Static neighbour: IP and MAC of a remote host; example: 192.0.2.2=52:54:00:12:34:56.
        #[arg(long, value_name = "IP=MAC", conflicts_with = "join")]
        neighbour: Vec<Neighbour>,
        /// Name of this run, by which other programs --join it.
        #[arg(long, conflicts_with = "join")]
        name: Option<String>,
        /// Run the program on the devices of another run, by its name, while that one is running.
        #[arg(long, value_name = "NAME")]
        #[arg(conflicts_with_all = ["faults", "pcap", "uplink", "identity"])]
        join: Option<String>,
        /// Print every ioctl and command. With =FILE, write the commands to that file
        /// instead, as text that `cargo xtask prm decode` reads.
        #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
        #[arg(conflicts_with = "join")]
        trace: Option<Option<PathBuf>>,
        #[command(flatten)]
        links: LinkArguments,
        /// Permissions of /dev/fwctl/fwctlN, octal, as a udev rule sets them. The kernel's own are
        /// 600: only root may open the files.
        #[arg(long, value_name = "MODE", value_parser = permissions, default_value = "600")]
        #[arg(conflicts_with = "join")]
        fwctl_mode: u32,
        /// Serve GDB at this TCP port of this machine (0: a free port, which is printed). The first
        /// run on a DPA waits for it. `gdb-multiarch PROGRAM.elf -ex 'target remote :PORT'`.
        #[arg(long, value_name = "PORT", conflicts_with = "join")]
        gdb: Option<u16>,
        /// Attach GDB to the first DPA run whose entry is this address, as `cargo xtask dpa build`
        /// prints it.
        #[arg(long, value_name = "ADDRESS", value_parser = address_of_program, requires = "gdb")]
        gdb_entry: Option<u64>,
        /// The program and its arguments; options that follow the program's name are the program's.
        #[arg(required = true, trailing_var_arg = true)]
        program: Vec<OsString>,
    },
    /// Show or change a named run (`run --name NAME`, `pci --name NAME`) while it is running.
    /// Devices are numbered from 0, the two sides of a DPU separately: `ctl NAME show` lists them.
    Ctl {
        /// The name of the run.
        name: String,
        #[command(subcommand)]
        action: Action,
    },
    /// Explain an error code of a message, with all its meanings: ibv_wc_status and errno (12),
    /// command status and CQE syndrome (0x3), vendor syndrome (0x81 or 129), the syndrome of a
    /// command that the model refused (564c0008).
    Explain {
        /// A number as the message prints it (12, 0x15, -22), or a name or the words for one
        /// (IBV_WC_RETRY_EXC_ERR, bad parameter).
        #[arg(required = true, allow_negative_numbers = true)]
        code: Vec<String>,
    },
}

#[derive(Subcommand)]
enum Action {
    /// Print the state and the traffic counts of each port's link.
    Show,
    /// Set the link of a port up.
    Up {
        /// The device, from 0.
        device: usize,
        /// The device's port, from 1.
        #[arg(default_value_t = 1)]
        port: u8,
    },
    /// Set the link of a port down.
    Down {
        /// The device, from 0.
        device: usize,
        /// The device's port, from 1.
        #[arg(default_value_t = 1)]
        port: u8,
    },
    /// Apply a plan of faults, as `run --faults` does: docs/faults.md describes it.
    Apply {
        /// A TOML file.
        file: PathBuf,
    },
    /// Make all links perfect again.
    Reset,
    /// Make a queue pair fail: WQ_CATASTROPHIC_ERROR (IBV_EVENT_QP_FATAL).
    FailQp {
        /// The device, from 0.
        device: usize,
        /// The QPN, as 69 or 0x45.
        #[arg(value_parser = number)]
        qpn: u32,
    },
    /// Make a completion queue fail: CQ_ERROR (IBV_EVENT_CQ_ERR).
    FailCq {
        /// The device, from 0.
        device: usize,
        /// The CQN, as 18 or 0x12.
        #[arg(value_parser = number)]
        cqn: u32,
    },
    /// Put a device into a fatal error.
    Kill {
        /// The device, from 0.
        device: usize,
    },
    /// Remove a device, as by hot-unplug.
    Remove {
        /// The device, from 0.
        device: usize,
    },
}

impl Action {
    fn control(self) -> Result<Control, String> {
        Ok(match self {
            Self::Show => Control::Show,
            Self::Up { device, port } => Control::Link { device, port, up: true },
            Self::Down { device, port } => Control::Link { device, port, up: false },
            Self::Apply { file } => {
                Control::Apply(std::fs::read_to_string(&file).map_err(|error| {
                    format!("cannot read the faults {}: {error}", file.display())
                })?)
            }
            Self::Reset => Control::Reset,
            Self::FailQp { device, qpn } => {
                Control::Fail { device, kind: QueueKind::Qp, number: qpn }
            }
            Self::FailCq { device, cqn } => {
                Control::Fail { device, kind: QueueKind::Cq, number: cqn }
            }
            Self::Kill { device } => Control::Kill(device),
            Self::Remove { device } => Control::Remove(device),
        })
    }
}

#[derive(clap::Args)]
struct LinkArguments {
    /// Faults of links, frames, commands, ioctls and queues: a TOML file as described in
    /// docs/faults.md.
    #[arg(long, value_name = "FILE")]
    faults: Option<PathBuf>,
    /// Write every frame that a port sends or receives to this file, in pcapng format (Wireshark).
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Connect the Ethernet switch to a datagram socket, one frame in each datagram, as QEMU's
    /// -netdev dgram does. LOCAL is bound, REMOTE is the other end; each is the path of a Unix
    /// socket, with a /, or ADDRESS:PORT. Or, with udp:LOCAL,PEER[,PEER...], connect port 1 of the
    /// first Ethernet device to hosts on the IP network, by RoCE v2 in UDP datagrams of port 4791:
    /// LOCAL is an IP address of this machine, each PEER one of a peer.
    #[arg(long, value_name = "LOCAL,REMOTE")]
    uplink: Option<Uplink>,
    /// Number from which the devices' MACs, GUIDs and link-local GIDs derive, 0 to 65535; runs on
    /// one network need different numbers.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    identity: u16,
}

impl LinkArguments {
    fn read(self) -> Result<LinkOptions, Box<dyn std::error::Error>> {
        let faults = self.faults.map_or(Ok(FaultPlan::default()), |it| FaultPlan::load(&it))?;
        let pcap = self.pcap.map(|path| create(&path).map(|file| (path, file))).transpose()?;
        Ok(LinkOptions { faults, pcap, uplink: self.uplink, identity: self.identity })
    }
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
    let is_run = matches!(arguments.command, Command::Run { .. });
    let _log_flush = verbless_model_host::log::init(level(arguments.verbose, is_run));
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

/// The log level for the number of `-v`.
fn level(verbose: u8, is_run: bool) -> LevelFilter {
    match verbose {
        // `run` shares standard error with the program.
        0 if is_run => LevelFilter::ERROR,
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

fn execute(command: Command) -> Result<ExitCode, Box<dyn std::error::Error>> {
    match command {
        Command::Pci { socket, profile, link, functions, sides, trap, record, name, links } => {
            let links = links.read()?;
            let devices: Result<Vec<_>, _> = profile
                .iter()
                .map(|name| Profile::load(name).map(|it| link_of(it, link)))
                .collect();
            let record = record.as_deref().map(create).transpose()?;
            let (devices, sockets) = (devices?, socket);
            let options =
                PciOptions { devices, functions, sides, sockets, trap, record, links, name };
            pci::serve(options)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Ctl { name, action } => {
            print!("{}", run::control(&name, &action.control()?)?);
            Ok(ExitCode::SUCCESS)
        }
        Command::Explain { code } => {
            println!("{}", explain::explain_all(&code)?);
            Ok(ExitCode::SUCCESS)
        }
        Command::Run {
            profile,
            devices,
            topology,
            link,
            side,
            dpu,
            address,
            neighbour,
            name,
            join,
            trace,
            links,
            fwctl_mode,
            gdb,
            gdb_entry,
            program,
        } => {
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
            let links = links.read()?;
            let options = RunOptions {
                devices,
                topology,
                addresses: address,
                neighbours: neighbour,
                side,
                name,
                program,
                dpu,
                trace,
                links,
                fwctl_mode,
                gdb,
                gdb_entry,
            };
            Ok(exit_code(run::run(options)?))
        }
    }
}

/// Permissions of a file, octal.
fn permissions(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| mode & !0o777 == 0);
    mode.ok_or_else(|| format!("{text:?} are no permissions: give octal digits, up to 777"))
}

/// An address, hexadecimal.
fn address_of_program(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u64::from_str_radix(digits, 16).map_err(|_| "an address is written as 0x40000010".into())
}

/// A number, decimal or hexadecimal.
fn number(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.map_err(|_| "a number is written as 69 or 0x45".into())
}

fn address(text: &str) -> Result<(usize, IpAddr), String> {
    let parsed = text
        .split_once('=')
        .and_then(|(device, address)| Some((device.parse().ok()?, address.parse().ok()?)));
    parsed.ok_or_else(|| "give the number of a device and an IP address, as 0=192.0.2.1".into())
}

/// The end of `--help`.
fn profiles() -> String {
    let names: Vec<_> = Profile::names().collect();
    format!("Profiles: {}", names.join(", "))
}

/// The exit code that a shell would report.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.unwrap_or(1) as u8)
}

fn create(path: &Path) -> Result<File, String> {
    File::create(path).map_err(|error| format!("cannot create {}: {error}", path.display()))
}

fn link_of(profile: Profile, link: Option<LinkArgument>) -> Profile {
    match link {
        None => profile,
        Some(LinkArgument::Infiniband) => profile.with_link(Link::Infiniband),
        Some(LinkArgument::Ethernet) => profile.with_link(Link::Ethernet),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn verbosity_flags_raise_log_level() {
        use LevelFilter as Level;
        let levels = [0, 1, 2, 3, 9].map(|verbose| [true, false].map(|run| level(verbose, run)));
        let [info, debug, trace] = [Level::INFO, Level::DEBUG, Level::TRACE].map(|it| [it; 2]);
        assert_eq!(levels, [[Level::ERROR, Level::WARN], info, debug, trace, trace]);
    }

    #[test]
    fn numbers_and_addresses_parse() {
        assert_eq!((number("69"), number("0x45")), (Ok(69), Ok(0x45)));
        assert!(number("x").is_err() && number("-1").is_err());
        for text in ["0x40000010", "40000010"] {
            assert_eq!(address_of_program(text), Ok(0x4000_0010));
        }
        assert!(address_of_program("here").unwrap_err().contains("0x40000010"));
        assert_eq!(address("7=192.0.2.1"), Ok((7, [192, 0, 2, 1].into())));
        for text in ["192.0.2.1", "x=192.0.2.1", "0=x"] {
            assert!(address(text).unwrap_err().contains("0=192.0.2.1"), "{text}");
        }
    }

    #[test]
    fn exit_code_is_status_or_128_plus_signal() {
        for (status, expected) in [(0, 0), (7 << 8, 7), (9, 137), (15, 143)] {
            assert_eq!(exit_code(ExitStatus::from_raw(status)), ExitCode::from(expected));
        }
    }

    #[test]
    fn control_actions_map_to_requests() {
        use Action::{Down, FailCq, FailQp, Kill, Remove, Reset, Show, Up};
        let (cq, qp) = (QueueKind::Cq, QueueKind::Qp);
        for (action, expected) in [
            (Show, Control::Show),
            (Up { device: 1, port: 2 }, Control::Link { device: 1, port: 2, up: true }),
            (Down { device: 1, port: 2 }, Control::Link { device: 1, port: 2, up: false }),
            (Reset, Control::Reset),
            (FailQp { device: 3, qpn: 4 }, Control::Fail { device: 3, kind: qp, number: 4 }),
            (FailCq { device: 3, cqn: 4 }, Control::Fail { device: 3, kind: cq, number: 4 }),
            (Kill { device: 5 }, Control::Kill(5)),
            (Remove { device: 6 }, Control::Remove(6)),
        ] {
            assert_eq!(action.control(), Ok(expected));
        }
        let missing = Action::Apply { file: "/no/such/file".into() }.control();
        assert!(missing.unwrap_err().contains("cannot read the faults /no/such/file"));
    }

    #[test]
    fn link_argument_overrides_profile_link() {
        let profile = || Profile::load("bluefield3").unwrap();
        assert_eq!(link_of(profile(), None).link(), profile().link());
        for (link, expected) in
            [(LinkArgument::Infiniband, Link::Infiniband), (LinkArgument::Ethernet, Link::Ethernet)]
        {
            assert_eq!(link_of(profile(), Some(link)).link(), expected);
        }
    }
}
