//! `cargo xtask vm --side dpu`: two guests on the two sides of one modelled BlueField, each with
//! its own kernel.
//!
//! ```text
//!   host: x86-64, Linux 6.1                        DPU: the chosen architecture and kernel
//!   hwtest --connect, first roles - mlx5_0 --- model --- mlx5_0 - second roles, hwtest serve
//!        \\--- TCP --- 10.0.2.2 === a port of this machine === :7471 ---/
//! ```
//!
//! The driver knows a BlueField's own system by a platform device, that of the SoC's boot control
//! (`MLNXBF04`). The DPU's guest has one in its device tree.
//!
//! The program is `hwtest`: on the host with `--connect`, which directs the cases and plays their
//! first roles; on the DPU with `serve`, which plays the second roles.

use std::fs::File;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::arch::{Arch, X86_64};
use super::boot::Watch;
use super::child::{Interrupted, Scratch, Signals};
use super::fdt;
use super::fetch::{self, Kernel, Qemu};
use super::initramfs::{self, Contents, Settings};
use super::model::{Model, Shape};
use super::modules;
use super::program::{self, Program};
use super::qemu::{GUEST_PORT, HostNetwork, Machine};
use super::series::{KernelFlavour, Series};
use super::{LOG, Options, verdict};
use crate::workspace::Result;

/// The profile of the device, which has both sides.
const PROFILE: &str = "bluefield3";

/// The guest's network, on which it is 10.0.2.15 and this machine 10.0.2.2.
const PREPARE: &str = "ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up\n";

/// The platform device by which the driver knows a BlueField.
const SOC: &str = "MLNXBF04";

/// One of the two guests.
struct Guest {
    arch: &'static Arch,
    series: Series,
    flavour: KernelFlavour,
    program: Program,
    network: HostNetwork,
    /// The socket of its function.
    socket: PathBuf,
    /// The name of its log below `target/vm`.
    log: &'static str,
}

/// Boots both guests; the exit code is the host's, or the DPU's if that failed alone.
pub(super) fn run(options: &Options) -> Result<ExitCode> {
    let (name, arguments) = match options.program.split_first() {
        None => ("hwtest", Vec::new()),
        Some((name, arguments)) => (name.as_str(), arguments.to_vec()),
    };
    let on_host = (name != "hwtest").then(|| PathBuf::from(name));
    if on_host.as_ref().is_some_and(|it| it.file_name() != Some("hwtest".as_ref())) {
        return Err(format!("--side dpu runs `hwtest` with its options, not {name}").into());
    }
    let [series] = options.selection().series()[..] else {
        return Err("--side dpu boots one kernel on the DPU: name one with --kernel".into());
    };
    if options.arch.target.is_none() {
        return Err("the DPU's side is an arm64 system: add --arch aarch64".into());
    }
    let flavour = match options.flavour()? {
        KernelFlavour::Cloud => KernelFlavour::Full,
        other => other,
    };
    // The port is free until QEMU takes it, unless another program is faster.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let client = ["--device", "mlx5_0", "--connect"].map(String::from);
    let client = client.into_iter().chain([format!("10.0.2.2:{port}")]).chain(arguments);
    let server = ["serve", &format!("0.0.0.0:{GUEST_PORT}"), "--device", "mlx5_0", "--once"];
    let model = match &options.model {
        Some(program) => program.clone(),
        None => program::build("verbless-model-host", "verbless-model")?,
    };
    let programs = [
        Program::suite(&X86_64, on_host.as_deref(), &client.collect::<Vec<_>>())?,
        Program::suite(options.arch, options.on_dpu.as_deref(), &server.map(String::from))?,
    ];
    let shape = Shape {
        profiles: vec![PROFILE.to_string()],
        sides: true,
        functions: 1,
        ..options.shape.clone()
    };
    let scratch = Scratch::new()?;
    let signals = Signals::catch()?;
    let mut model =
        Model::start(&model, &shape, &scratch, &fetch::folder().join("last-model.log"))?;
    let [host, dpu] = &model.sockets[0][..] else {
        return Err("the model does not have two sides".into());
    };
    let [of_host, of_dpu] = programs;
    let guests = [
        Guest {
            arch: &X86_64,
            series: X86_64.series,
            flavour: KernelFlavour::Cloud,
            program: of_host,
            network: HostNetwork::Reaches,
            socket: host.clone(),
            log: LOG,
        },
        Guest {
            arch: options.arch,
            series,
            flavour,
            program: of_dpu,
            network: HostNetwork::ReachedAt(port),
            socket: dpu.clone(),
            log: "last-dpu.log",
        },
    ];
    let [host, dpu] = guests.map(|guest| guest.prepare(options, &scratch));
    let (host, dpu) = (host?, dpu?);
    let abandoned = AtomicBool::new(false);
    // Each failure, and each exit code that is not zero, ends the other guest's boot.
    let judged = |booted: Result<u8>| {
        if !matches!(booted, Ok(0)) {
            abandoned.store(true, Ordering::Relaxed);
        }
        booted.map_err(|error| match error.is::<Interrupted>() {
            true => None,
            false => Some(error.to_string()),
        })
    };
    let (of_host, of_dpu) = std::thread::scope(|scope| {
        let dpu = scope.spawn(|| judged(dpu.boot(None, &signals, &abandoned, options)));
        let host = judged(host.boot(Some(&mut model), &signals, &abandoned, options));
        (host, dpu.join().unwrap_or_else(|_| Err(Some("its watch panicked".to_string()))))
    });
    let mut code = ExitCode::SUCCESS;
    for (side, judged) in [("host", of_host), ("DPU", of_dpu)] {
        match judged {
            Ok(0) => {}
            Ok(exit) => code = ExitCode::from(exit),
            Err(None) => {
                eprintln!("interrupted");
                return Ok(ExitCode::from(130));
            }
            Err(Some(error)) => {
                eprintln!("{side}: FAILED: {error}");
                code = ExitCode::FAILURE;
            }
        }
    }
    if code == ExitCode::SUCCESS {
        model.finish()?;
    }
    Ok(code)
}

/// A guest that is ready to boot.
struct Prepared {
    release: String,
    qemu: Command,
    output: UnixListener,
    complaints: PathBuf,
    log: File,
    /// The log's name below `target/vm`.
    name: &'static str,
}

impl Guest {
    /// Gets its kernel, builds its root, and describes its machine.
    fn prepare(self, options: &Options, scratch: &Scratch) -> Result<Prepared> {
        let Self { arch, series, flavour, program, network, socket, log } = self;
        let kernel = Kernel::get(arch, series, flavour)?;
        let wanted = ["virtio_pci", "virtio_net", "mlx5_core", "mlx5_ib", "ib_uverbs"];
        let root = initramfs::build(&Contents {
            arch,
            busybox: &fetch::busybox(arch)?,
            modules: &modules::in_order(&kernel.modules, &wanted, &fetch::busybox(&X86_64)?)?,
            settings: &Settings {
                devices: 1,
                reload: false,
                shutdown: false,
                drivers: &["mlx5_ib", "mlx5_core"],
            },
            program: &program,
            prepare: Some(PREPARE),
            rdma_core: None,
            iproute: None,
            kexec: None,
        })?;
        let file = |what: &str| scratch.join(&format!("{what}-{log}"));
        let (initramfs, output) = (file("root"), file("output"));
        std::fs::write(&initramfs, root)?;
        let listener = UnixListener::bind(&output)?;
        let emulator = Qemu::get(arch)?;
        let mut qemu = emulator.command()?;
        let machine = Machine {
            arch,
            kernel: &kernel.image,
            initramfs: &initramfs,
            output: &output,
            memory: options.memory,
            devices: &[vec![socket]],
            cable: None,
            tap: None,
            network,
            reboots: false,
        };
        machine.describe(&mut qemu);
        if arch.target.is_some() {
            qemu.arg("-dtb").arg(bluefield_tree(&emulator, &machine, &file("tree"))?);
        }
        Ok(Prepared {
            release: kernel.release,
            qemu,
            output: listener,
            complaints: file("complaints"),
            log: File::create(fetch::folder().join(log))?,
            name: log,
        })
    }
}

/// The machine's device tree with a BlueField's platform device, as a file. No device of the
/// machine is in it: QEMU writes its tree without connecting to any socket.
fn bluefield_tree(qemu: &Qemu, machine: &Machine<'_>, file: &Path) -> Result<PathBuf> {
    let output = file.with_extension("output");
    let _listener = UnixListener::bind(&output)?;
    let mut command = qemu.command()?;
    let bare = Machine { output: &output, devices: &[], network: HostNetwork::None, ..*machine };
    bare.describe(&mut command);
    command.arg("-machine").arg(format!("dumpdtb={}", file.display()));
    crate::commands::output_of(&mut command)?;
    std::fs::write(file, fdt::with_device(&std::fs::read(file)?, SOC, "verbless,bluefield")?)?;
    Ok(file.to_path_buf())
}

impl Prepared {
    /// Boots it, and judges the boot; the program's exit code.
    fn boot(
        mut self,
        model: Option<&mut Model>,
        signals: &Signals,
        abandoned: &AtomicBool,
        options: &Options,
    ) -> Result<u8> {
        let outcome = Watch {
            signals,
            model,
            output: self.output,
            log: &mut self.log,
            complaints: Path::new(&self.complaints),
            limit: Duration::from_secs(options.timeout),
            abandoned: Some(abandoned),
        }
        .run(&self.qemu)?;
        let code = verdict(&outcome, 1, options.strict, self.name)?;
        let booted = outcome.account.booted.unwrap_or_default().as_secs_f32();
        eprintln!("Linux {}: exit code {code}, booted in {booted:.1} s", self.release);
        Ok(code)
    }
}
