//! `cargo xtask vm --rxe`: programs of rdma-core and perftest between Linux's rdma_rxe, an
//! independent software implementation of RoCE, and the modelled device.
//!
//! ```text
//!   guest                                                    host
//!   client - rxe0 - eth0 === QEMU's -netdev dgram === --uplink - model - mlx5_0 - server
//!        \--- TCP --- eth1 === QEMU's -netdev user === 10.0.2.2 ---------------/
//!   client - rxe1 - eth2 === QEMU's -netdev tap === UDP 4791 == --uplink - model - mlx5_0 - server
//! ```
//!
//! The network through the tap device needs root, and is skipped without it.
//!
//! The server is the same program under `verbless-model run`, or one of ours on our own driver,
//! which checks the received data. Both serve over a link without faults, over one that loses a
//! frame in a hundred, each way, and over IPv4. UD and UC do not retransmit, so their programs run
//! only without faults; one round also shows that ibv_ud_pingpong waits forever for a lost
//! datagram. A socket between the two may lose frames even without faults, if one side is too slow.
//!
//! - `rounds`: the programs, their servers and their links; the scripts for them.
//! - `servers`: the host's side.
//! - `tap`: the network between rxe1 and the host.

mod rounds;
mod servers;
mod tap;

use std::fs::File;
use std::net::UdpSocket;
use std::os::unix::net::UnixListener;
use std::process::ExitCode;
use std::time::Duration;

use super::arch::X86_64;
use super::boot::Watch;
use super::child::{Interrupted, Scratch, Signals};
use super::fetch::{self, Kernel, Qemu};
use super::initramfs::{self, Contents, Settings};
use super::modules;
use super::program::{self, Program};
use super::qemu::{Cable, HostNetwork, Machine};
use super::series::{KernelFlavour, Series};
use super::{LOG, Options, verdict};
use crate::run::on_the_path;
use crate::workspace::Result;
#[cfg(test)]
pub(crate) use rounds::BY_UDP;
use rounds::{Network, ROUNDS, Round};
use servers::{Binaries, Servers};

/// The script that makes rxe0.
const PREPARE: &str = include_str!("prepare.sh");

/// The modules that the guest loads. Only [`KernelFlavour::Full`] has rdma_rxe. It requests the
/// ICRC's algorithm by name, so that modprobe does not see the dependency; Linux 7.2 has the
/// algorithm built in.
fn modules(series: Series) -> Vec<&'static str> {
    let mut modules = vec!["virtio_pci", "virtio_net", "ib_uverbs", "rdma_rxe"];
    if series != Series::Linux7_2 {
        modules.push("crc32_generic");
    }
    modules
}

/// Fetches the parts of a run; an error says what this machine lacks.
pub(crate) fn fetch(series: Series) -> Result {
    for program in ["ibv_rc_pingpong", "ib_write_bw"] {
        if !on_the_path(program) {
            let packages = "apt-get install ibverbs-utils perftest";
            return Err(format!("{program} is not installed: {packages}").into());
        }
    }
    Qemu::get(&X86_64)?;
    fetch::busybox(&X86_64)?;
    Kernel::get(&X86_64, series, KernelFlavour::Full)?;
    fetch::rdma_core(&X86_64, series)?;
    fetch::iproute(&X86_64, series)?;
    Ok(())
}

/// Runs all programs under each kernel that was chosen.
pub(super) fn run(options: &Options) -> Result<ExitCode> {
    let model = match &options.model {
        Some(program) => program.clone(),
        None => program::build("verbless-model-host", "verbless-model")?,
    };
    let binaries = Binaries { model, peer: crate::run::program("rxe-peer")? };
    std::fs::create_dir_all(fetch::folder())?;
    let mut log = File::create(fetch::folder().join(LOG))?;
    let mut code = 0;
    // Downloads come first: the network namespace of the tap has no route out.
    let selection = options.selection();
    selection.series().into_iter().try_for_each(fetch)?;
    let tap = tap::enter();
    if let Err(why) = &tap {
        println!("skipped: {}: {why}", rounds::BY_UDP);
    }
    let rounds: Vec<Round> = ROUNDS.into_iter().filter(|it| it.is_possible(tap.is_ok())).collect();
    for series in selection.series() {
        println!("=== rdma_rxe of Linux {series} and the model");
        match boot(options, series, &rounds, &binaries, &mut log) {
            Ok(0) => {}
            Ok(exit) => code = exit,
            Err(error) if error.is::<Interrupted>() => {
                eprintln!("interrupted");
                return Ok(ExitCode::from(130));
            }
            Err(error) => {
                eprintln!("Linux {series}: FAILED: {error}");
                code = 1;
            }
        }
    }
    Ok(ExitCode::from(code))
}

/// One boot with all rounds; the guest's exit code.
fn boot(
    options: &Options,
    series: Series,
    rounds: &[Round],
    binaries: &Binaries,
    log: &mut File,
) -> Result<u8> {
    let kernel = Kernel::get(&X86_64, series, KernelFlavour::Full)?;
    let busybox = fetch::busybox(&X86_64)?;
    let modules = modules::in_order(&kernel.modules, &modules(series), &busybox)?;
    let rdma_core = fetch::rdma_core(&X86_64, series)?;
    let iproute = fetch::iproute(&X86_64, series)?;
    let root = initramfs::build(&Contents {
        arch: &X86_64,
        busybox: &busybox,
        modules: &modules,
        settings: &Settings { devices: 1, reload: false, shutdown: false, drivers: &["rdma_rxe"] },
        program: &Program::script("rxe", rounds::clients(rounds)),
        prepare: Some(PREPARE),
        rdma_core: Some(&rdma_core),
        iproute: Some(&iproute),
        kexec: None,
    })?;
    let scratch = Scratch::new()?;
    let initramfs = scratch.join("root.cpio");
    std::fs::write(&initramfs, root)?;
    let output = scratch.join("output");
    let listener = UnixListener::bind(&output)?;
    let cable = cable()?;
    let mut servers = Servers::start(rounds, binaries, &cable, &scratch)?;
    // After the servers' thread started: its processes would inherit the blocked signals.
    let signals = Signals::catch()?;
    let mut command = Qemu::get(&X86_64)?.command()?;
    Machine {
        arch: &X86_64,
        kernel: &kernel.image,
        initramfs: &initramfs,
        output: &output,
        memory: options.memory,
        devices: &[],
        cable: Some(&cable),
        tap: rounds.iter().any(|round| round.network == Network::Udp).then_some(tap::NAME),
        network: HostNetwork::None,
        reboots: false,
    }
    .describe(&mut command);
    let watch = Watch {
        signals: &signals,
        model: None,
        output: listener,
        log,
        complaints: &scratch.join("qemu.log"),
        limit: Duration::from_secs(options.timeout),
        abandoned: None,
    };
    let outcome = watch.run(&command)?;
    let code = verdict(&outcome, 1, options.strict, LOG)?;
    print!("{}", servers.finish()?);
    Ok(code)
}

/// Two unused UDP sockets: they queue more frames than Unix sockets.
fn cable() -> Result<Cable> {
    let [guest, outside] = [UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?];
    Ok(Cable { guest: guest.local_addr()?, outside: outside.local_addr()? })
}
