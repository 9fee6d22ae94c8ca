//! `cargo xtask vm --rxe`: programs of rdma-core and perftest between Linux's rdma_rxe, a software
//! implementation of RoCE that nobody here wrote, and the modelled device.
//!
//! ```text
//!   guest                                                    host
//!   client - rxe0 - eth0 === QEMU's -netdev dgram === --uplink - model - mlx5_0 - server
//!        \--- TCP --- eth1 === QEMU's -netdev user === 10.0.2.2 ---------------/
//! ```
//!
//! The server is the same program under `verbless-model run`. Everything runs twice: over a link
//! without faults, and over one that loses a frame in a hundred, each way; datagrams, which nobody
//! repeats, only over the first. A socket between the two may lose frames even there, where one
//! side is too slow.

use std::fs::File;
use std::net::UdpSocket;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::process::ExitCode;
use std::time::Duration;

use super::boot::Watch;
use super::child::{Guarded, Scratch, Signals};
use super::fetch::{self, Kernel, Qemu};
use super::initramfs::{self, Contents, Settings};
use super::modules;
use super::program::{self, Program};
use super::qemu::{Cable, Machine};
use super::series::{Series, Sort};
use super::{Options, verdict};
use crate::Result;
use crate::run::on_the_path;

/// The guest's side: see there.
const CLIENTS: &str = include_str!("rxe.sh");
/// What makes rxe0: see there.
const PREPARE: &str = include_str!("rxe_prepare.sh");
/// The host's side: see there.
const SERVERS: &str = include_str!("rxe_server.sh");

/// What the guest loads. Only the kernel for any machine has rdma_rxe, which asks for the ICRC's
/// algorithm by its name; later kernels have it built in.
fn modules(series: Series) -> Vec<&'static str> {
    let mut modules = vec!["virtio_pci", "virtio_net", "ib_uverbs", "rdma_rxe"];
    if series != Series::Linux7_2 {
        modules.push("crc32_generic");
    }
    modules
}

/// The programs. perftest's send from both ends at once, so that each is requester and responder.
/// Of READs and atomics the model answers 16 at a time. With `-u` they repeat for 2 s: an emulated
/// guest on a busy machine may be silent for the half second that is usual.
const PROGRAMS: [&str; 6] = [
    "ibv_rc_pingpong -c -e -n 100",
    DATAGRAMS,
    "ib_write_bw -F -b -m 1024 -s 16384 -n 50 -u 16",
    "ib_read_bw -F -b -m 1024 -s 16384 -n 50 -o 16 -u 16",
    "ib_send_bw -F -b -m 1024 -s 16384 -n 50 -u 16",
    "ib_atomic_bw -F -b -m 1024 -n 100 -o 16 -u 16",
];
/// rxe's path MTU is 1024 bytes, that of an Ethernet link of 1500.
const DATAGRAMS: &str = "ibv_ud_pingpong -c -e -n 100 -s 1000";

/// The index of a RoCE v2 GID with a link-local address: rxe's, and that of the model.
const GID_OF_RXE: u8 = 0;
const GID_OF_MODEL: u8 = 1;

/// The TCP port of the first program.
const FIRST_PORT: u16 = 19000;

/// The model's link: an emulated guest is slow, and what its socket does not take is lost.
const LINK: &str = "[[link]]\nbandwidth = \"20Mb/s\"\n";
/// One frame in a hundred is lost, on its way to the model and from it.
const LOSS: &str = "[[fault]]\neffect = \"lose\"\nchance = 0.01\n";

/// Why nothing can be run here, if so; what it needs is fetched.
pub(crate) fn fetch(series: Series) -> Result {
    for program in ["ibv_rc_pingpong", "ib_write_bw"] {
        if !on_the_path(program) {
            let packages = "apt-get install ibverbs-utils perftest";
            return Err(format!("{program} is not installed: {packages}").into());
        }
    }
    Qemu::get()?;
    fetch::busybox()?;
    Kernel::get(series, Sort::Whole)?;
    fetch::rdma_core(series)?;
    fetch::iproute(series)?;
    Ok(())
}

/// Runs all programs under each kernel that was asked for.
pub(super) fn run(options: &Options) -> Result<ExitCode> {
    let model = match &options.model {
        Some(program) => program.clone(),
        None => program::build("verbless-model-host", "verbless-model", false)?,
    };
    let mut log = File::create(fetch::folder().join("last.log"))?;
    let mut code = 0;
    for series in options.kernel.series() {
        fetch(series)?;
        for loses in [false, true] {
            let how = if loses { "with 1 % of frames lost" } else { "without faults" };
            println!("=== rdma_rxe of Linux {series} and the model, {how}");
            match round(options, series, &model, loses, &mut log) {
                Ok(0) => {}
                Ok(exit) => code = exit,
                Err(error) if error.is::<super::Interrupted>() => {
                    eprintln!("interrupted");
                    return Ok(ExitCode::from(130));
                }
                Err(error) => {
                    eprintln!("Linux {series}, {how}: FAILED: {error}");
                    code = 1;
                }
            }
        }
    }
    Ok(ExitCode::from(code))
}

/// One boot with all programs; the guest's exit code.
fn round(
    options: &Options,
    series: Series,
    model: &Path,
    loses: bool,
    log: &mut File,
) -> Result<u8> {
    let programs: Vec<&str> =
        PROGRAMS.into_iter().filter(|&program| !loses || program != DATAGRAMS).collect();
    let kernel = Kernel::get(series, Sort::Whole)?;
    let busybox = fetch::busybox()?;
    let modules = modules::in_order(&kernel.modules, &modules(series), &busybox)?;
    let rdma_core = fetch::rdma_core(series)?;
    let iproute = fetch::iproute(series)?;
    let root = initramfs::build(&Contents {
        busybox: &busybox,
        modules: &modules,
        settings: &Settings { devices: 1, reload: false, drivers: &["rdma_rxe"] },
        program: &Program::script("rxe", clients(&programs, loses)),
        prepare: Some(PREPARE),
        rdma_core: Some(&rdma_core),
        iproute: Some(&iproute),
    })?;
    let scratch = Scratch::new()?;
    let initramfs = scratch.join("root.cpio");
    std::fs::write(&initramfs, root)?;
    let output = scratch.join("output");
    let listener = UnixListener::bind(&output)?;
    let cable = cable()?;
    let mut servers = Servers::start(model, &programs, loses, &cable, &scratch)?;
    // From here on, since a process inherits which signals do not reach it.
    let signals = Signals::catch()?;
    let mut command = Qemu::get()?.command()?;
    Machine {
        kernel: &kernel.image,
        initramfs: &initramfs,
        output: &output,
        memory: options.memory,
        devices: &[],
        cable: Some(&cable),
    }
    .describe(&mut command);
    let watch = Watch {
        signals: &signals,
        model: None,
        output: listener,
        log,
        complaints: &scratch.join("qemu.log"),
        limit: Duration::from_secs(options.timeout),
    };
    let outcome = watch.run(&command)?;
    let code = verdict(&outcome, 1, options.strict)?;
    if code == 0 {
        servers.finish()?;
    }
    Ok(code)
}

/// Two UDP sockets that nobody uses: they queue more frames than Unix sockets.
fn cable() -> Result<Cable> {
    let [guest, outside] = [UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?];
    Ok(Cable { guest: guest.local_addr()?, outside: outside.local_addr()? })
}

/// The guest's script.
fn clients(programs: &[&str], loses: bool) -> String {
    let mut script = CLIENTS.to_string();
    for (port, program) in (FIRST_PORT..).zip(programs) {
        script += &format!("exchange {port} {}\n", with_gid(program, GID_OF_RXE));
    }
    script += "echo \"rxe repeated or missed packets $(retries) times\"\n";
    if loses {
        // The round is worth nothing without losses.
        script += "[ \"$(retries)\" -gt 0 ] || { echo 'FAIL  no frame was lost'; failed=1; }\n";
    }
    script + "echo \"$passed passed, $failed failed, 0 skipped\"\n[ $failed = 0 ]\n"
}

/// The host's script.
fn servers(programs: &[&str]) -> String {
    let mut script = SERVERS.to_string();
    for (port, program) in (FIRST_PORT..).zip(programs) {
        script += &format!("serve {port} {}\n", with_gid(program, GID_OF_MODEL));
    }
    script + "exit $failed\n"
}

/// A program's command line with the GID that it uses.
fn with_gid(program: &str, index: u8) -> String {
    let option = if program.starts_with("ibv_") { "-g" } else { "-x" };
    format!("{program} {option} {index}")
}

/// The servers under `verbless-model run`.
struct Servers {
    process: Guarded,
    log: PathBuf,
}

impl Servers {
    fn start(
        model: &Path,
        programs: &[&str],
        loses: bool,
        cable: &Cable,
        scratch: &Scratch,
    ) -> Result<Self> {
        let script = scratch.join("servers.sh");
        std::fs::write(&script, servers(programs))?;
        let uplink = format!("{},{}", cable.outside, cable.guest);
        let mut command = Command::new(model);
        let faults = scratch.join("faults.toml");
        std::fs::write(&faults, [LINK, if loses { LOSS } else { "" }].concat())?;
        command.args(["run", "--link", "ethernet", "--uplink", &uplink]);
        command.arg("--faults").arg(faults).args(["--", "bash"]).arg(script);
        let log = fetch::folder().join("last-model.log");
        let output = File::create(&log)?;
        let process = Guarded::start(&command, output.try_clone()?.into(), output.into())?;
        Ok(Self { process, log })
    }

    /// After the guest has gone: all servers have ended well.
    fn finish(&mut self) -> Result {
        let status = self.process.wait(Duration::from_secs(10))?;
        if status.is_some_and(|status| status.success()) {
            return Ok(());
        }
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let how = status.map_or("they do not end".to_string(), |status| status.to_string());
        Err(format!("the servers on the model failed ({how})\n{text}").into())
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        // Killed outright, the model leaves its programs behind.
        self.process.terminate(Duration::from_secs(5));
    }
}

#[cfg(test)]
mod tests {
    use super::{PROGRAMS, clients, servers};

    #[test]
    fn both_sides_run_the_same_programs_at_the_same_ports() {
        let lines = |script: String, word: &str| {
            let of = |line: &str| {
                let (command, gid) = line.strip_prefix(word)?.rsplit_once(' ')?;
                Some((command.to_string(), gid.to_string()))
            };
            script.lines().filter_map(of).collect::<Vec<_>>()
        };
        let guest = lines(clients(&PROGRAMS, true), "exchange 190");
        let host = lines(servers(&PROGRAMS), "serve 190");
        assert_eq!((guest.len(), host.len()), (PROGRAMS.len(), PROGRAMS.len()));
        for ((client, of_rxe), (server, of_model)) in guest.iter().zip(&host) {
            assert_eq!(client, server);
            assert_eq!((of_rxe.as_str(), of_model.as_str()), ("0", "1"));
        }
    }
}
