//! `cargo xtask vm`: a real Linux with its unmodified mlx5 drivers, in QEMU, with the model as its
//! PCI device.
//!
//! The guest runs the conformance suite, or any program, on the real `/dev/infiniband/uverbs0`, and
//! its exit code becomes this one's. QEMU and the kernels come from Debian and stay in `target/vm`;
//! nothing is installed, and no privilege is needed. A deleted folder is fetched again, with
//! Debian's current versions.

use std::fs::File;
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use self::arch::{Arch, X86_64};
use self::boot::{Outcome, Watch};
use self::child::{Interrupted, Scratch, Signals};
use self::fetch::{Kernel, Qemu};
use self::initramfs::{Contents, Settings};
use self::model::{Model, Shape};
use self::program::Program;
use self::qemu::{HostNetwork, Machine};
use self::series::{KernelFlavour, Selection, Series};
use crate::workspace::Result;

pub(crate) mod arch;
mod boot;
pub(crate) mod child;
mod console;
mod cpio;
mod elf;
mod fdt;
pub(crate) mod fetch;
mod initramfs;
mod model;
mod modules;
pub(crate) mod program;
mod qemu;
pub(crate) mod rxe;
pub(crate) mod series;
mod sides;

/// Options of `cargo xtask vm`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// The guest's architecture: x86_64, or aarch64, as a BlueField's own cores are.
    #[arg(long, default_value = "x86_64", value_parser = Arch::parse)]
    arch: &'static Arch,
    /// The guest's kernel: 5.10, 6.1, 6.12, 7.2, all of them one after the other, or the maintained
    /// ones, all but 5.10; by default 6.1, on aarch64 6.12.
    #[arg(long)]
    kernel: Option<Selection>,
    /// The size of the kernel's pages: 4k, or on aarch64 also 16k.
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = kibibytes)]
    pages: u32,
    #[command(flatten)]
    shape: Shape,
    /// Give the guest rdma-core's and perftest's programs, of its kernel's Debian suite.
    #[arg(long)]
    with_rdma_core: bool,
    /// With --with-rdma-core: those of this kernel's suite instead, for programs of this machine
    /// that need a newer C library than the kernel's own suite has.
    #[arg(long, value_name = "SERIES", requires = "with_rdma_core")]
    rdma_core_of: Option<Series>,
    /// Run the programs of rdma-core and perftest, between the guest's devices, with a row for
    /// each.
    #[arg(long, conflicts_with = "program")]
    rdma_core_suite: bool,
    /// Instead of the guest's modelled devices: run programs of rdma-core and perftest between the
    /// guest's rdma_rxe and the model on this machine, which a datagram socket connects.
    #[arg(long, conflicts_with_all = ["program", "rdma_core_suite", "with_rdma_core", "reload"])]
    #[arg(conflicts_with_all = ["boots", "no_device", "Shape", "arch", "pages"])]
    rxe: bool,
    /// Boot two guests on the two sides of one BlueField: this one is the DPU's own system, an
    /// x86-64 guest with Linux 6.1 is its host. PROGRAM is `hwtest` with options for `--connect`;
    /// by default all cases of two machines. The DPU runs `hwtest serve`.
    #[arg(long, value_name = "SIDE", value_parser = ["dpu"])]
    #[arg(conflicts_with_all = ["rdma_core_suite", "with_rdma_core", "reload", "shutdown"])]
    #[arg(conflicts_with_all = ["boots", "no_device", "carry", "sides", "functions"])]
    #[arg(conflicts_with_all = ["profiles", "rxe"])]
    side: Option<String>,
    /// With --side: start this `hwtest` on the DPU instead of building it. PROGRAM may name
    /// that of the host by its path.
    #[arg(long, value_name = "FILE", requires = "side")]
    on_dpu: Option<PathBuf>,
    /// Load the drivers, unload them, and load them again before the program runs.
    #[arg(long)]
    reload: bool,
    /// Leave with the drivers loaded: reboot after the program, start the same kernel by kexec when
    /// it has run again, and power off when it has run a third time. Fail if a kernel takes more
    /// than 5 s to shut its devices down.
    #[arg(long)]
    shutdown: bool,
    /// Fail when the device's drivers warn of anything.
    #[arg(long)]
    strict: bool,
    /// Boot each kernel this many times, and stop at the first boot that fails.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    boots: u32,
    /// Boot without a device.
    #[arg(long)]
    no_device: bool,
    /// Time limit of one guest, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
    /// The guest's memory, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    memory: u32,
    /// Start this program as the model instead of building it.
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Put this file of the machine into the guest's folder /program, for PROGRAM to use, and its
    /// libraries beside it. May be given several times.
    #[arg(long, value_name = "FILE")]
    carry: Vec<PathBuf>,
    /// Program to run in the guest: a program of this machine, a command of the guest, or (the
    /// default) the conformance suite, also as `hwtest` with its options.
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<String>,
}

/// A number of KiB, as `16k`.
fn kibibytes(text: &str) -> std::result::Result<u32, String> {
    let number = text.strip_suffix('k').and_then(|number| number.parse().ok());
    number.ok_or_else(|| format!("{text} is not a size such as 4k"))
}

impl Options {
    /// The kernels that boot.
    fn selection(&self) -> Selection {
        self.kernel.unwrap_or(self.arch.series.into())
    }

    /// The flavour of the kernels that boot.
    fn flavour(&self) -> Result<KernelFlavour> {
        let Self { arch, pages, .. } = self;
        if !arch.pages.contains(pages) {
            return Err(format!("Debian has no kernel of {} with {pages}k pages", arch.name).into());
        }
        Ok(match pages {
            16 => KernelFlavour::Pages16K,
            _ if self.shape.sides => KernelFlavour::Full,
            _ => KernelFlavour::Cloud,
        })
    }
}

/// The name of a guest's log below `target/vm`.
const LOG: &str = "last.log";

/// How long a guest may take to shut its devices down.
const SHUTDOWN: Duration = Duration::from_secs(5);

/// How often a guest boots that leaves in every way.
const LIVES: u32 = 3;

/// The files from which a guest of one series boots.
struct Guest {
    kernel: Kernel,
    /// The archive that it unpacks as its root.
    root: Vec<u8>,
    /// The RDMA devices that it should find.
    devices: u32,
}

/// Fetches the missing parts of a guest with a kernel of `series` and rdma-core; an error says why
/// no guest can run here.
pub(crate) fn fetch(arch: &'static Arch, series: &str, flavour: KernelFlavour) -> Result {
    fetch_kernels(arch, series, flavour)?;
    for series in series.parse::<Selection>()?.series() {
        fetch::rdma_core(arch, series)?;
    }
    Ok(())
}

/// Fetches the missing parts of a guest with a kernel of `series`; an error says why no guest can
/// run here.
fn fetch_kernels(arch: &'static Arch, series: &str, flavour: KernelFlavour) -> Result {
    Qemu::get(arch)?;
    fetch::busybox(arch)?;
    for series in series.parse::<Selection>()?.series() {
        Kernel::get(arch, series, flavour)?;
    }
    Ok(())
}

/// Fetches the missing parts for `--shutdown` with each maintained kernel; an error says why no
/// guest can run
/// here.
pub(crate) fn fetch_for_shutdown() -> Result {
    fetch_kernels(&X86_64, "maintained", KernelFlavour::Cloud)?;
    for series in "maintained".parse::<Selection>()?.series() {
        fetch::kexec(&X86_64, series)?;
    }
    Ok(())
}

/// Runs the program under each kernel that was asked for; the first exit code that is not zero is
/// returned.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    if options.rxe {
        return rxe::run(options);
    }
    if options.side.is_some() {
        return sides::run(options);
    }
    let arch = options.arch;
    options.flavour()?;
    let qemu = Qemu::get(arch)?;
    let program = match options.rdma_core_suite {
        true => Program::rdma_core_suite(),
        false => Program::new(arch, &options.program, options.with_rdma_core)?,
    };
    let program = options.carry.iter().try_fold(program, |program, file| {
        program.carrying(arch, file, options.with_rdma_core || options.rdma_core_suite)
    })?;
    let model = match &options.model {
        _ if options.no_device => None,
        Some(program) => Some(program.clone()),
        None => Some(program::build("verbless-model-host", "verbless-model")?),
    };
    let mut log = File::create(fetch::folder().join(LOG))?;
    let mut code = 0;
    for series in options.selection().series() {
        match all_boots(options, &qemu, series, &program, model.as_deref(), &mut log) {
            Ok(exit) => code = if code == 0 { exit } else { code },
            Err(error) if error.is::<Interrupted>() => {
                eprintln!("interrupted");
                return Ok(ExitCode::from(130));
            }
            Err(error) => {
                eprintln!("Linux {series}: FAILED: {error}");
                code = if code == 0 { 1 } else { code };
            }
        }
    }
    Ok(ExitCode::from(code))
}

/// Runs a kernel's boots; returns the program's exit code from the first failed boot.
fn all_boots(
    options: &Options,
    qemu: &Qemu,
    series: Series,
    program: &Program,
    model: Option<&Path>,
    log: &mut File,
) -> Result<u8> {
    let shape = shape_for(series, &options.shape)?;
    let guest = prepare(options, series, program, model.map(|_| &shape))?;
    for boot in 1..=options.boots {
        let failed = |what: &str| format!("boot {boot} of {}: {what}", options.boots);
        match one(options, qemu, &guest, model.map(|model| (model, &shape)), log) {
            Ok(0) => {}
            Ok(code) if options.boots == 1 => return Ok(code),
            Ok(code) => return Err(failed(&format!("exit code {code}")).into()),
            Err(error) if options.boots == 1 || error.is::<Interrupted>() => return Err(error),
            Err(error) => return Err(failed(&error.to_string()).into()),
        }
    }
    if options.boots > 1 {
        eprintln!("Linux {}: {} boots, all well", guest.kernel.release, options.boots);
    }
    Ok(0)
}

/// The model's configuration for a kernel: a device that its driver knows, if none is named.
fn shape_for(series: Series, shape: &Shape) -> Result<Shape> {
    let mut shape = shape.clone();
    if let Some(known) = series.profile() {
        if shape.profiles.is_empty() {
            shape.profiles.push(known.to_string());
        }
        if let Some(unknown) = shape.profiles.iter().find(|it| it.starts_with("bluefield3")) {
            return Err(format!(
                "Linux {series}'s mlx5_core does not know the PCI id of {unknown}: choose another \
                 --profile, such as {known}"
            )
            .into());
        }
    }
    Ok(shape)
}

/// Gets a kernel and builds the root of its guest, whose devices are those of `shape`.
fn prepare(
    options: &Options,
    series: Series,
    program: &Program,
    shape: Option<&Shape>,
) -> Result<Guest> {
    let arch = options.arch;
    let kernel = Kernel::get(arch, series, options.flavour()?)?;
    let with_rdma_core = options.with_rdma_core || options.rdma_core_suite;
    let rdma_core = with_rdma_core
        .then(|| fetch::rdma_core(arch, options.rdma_core_of.unwrap_or(series)))
        .transpose()?;
    let kexec = options.shutdown.then(|| fetch::kexec(arch, series)).transpose()?;
    let busybox = fetch::busybox(arch)?;
    let wanted = ["mlx5_core", "mlx5_ib", "ib_uverbs"];
    let modules = modules::in_order(&kernel.modules, &wanted, &fetch::busybox(&X86_64)?)?;
    let devices = shape.map_or(0, Shape::functions_in_all);
    let settings = Settings {
        devices,
        reload: options.reload,
        shutdown: options.shutdown,
        drivers: &["mlx5_ib", "mlx5_core"],
    };
    let root = initramfs::build(&Contents {
        arch,
        busybox: &busybox,
        modules: &modules,
        settings: &settings,
        program,
        prepare: None,
        rdma_core: rdma_core.as_deref(),
        iproute: None,
        kexec: kexec.as_deref().map(|tree| (tree, &*kernel.image)),
    })?;
    Ok(Guest { kernel, root, devices })
}

/// Boots a guest once; returns the program's exit code.
fn one(
    options: &Options,
    qemu: &Qemu,
    guest: &Guest,
    model: Option<(&Path, &Shape)>,
    log: &mut File,
) -> Result<u8> {
    let Guest { kernel, root, devices } = guest;
    // From here on, cleanup is necessary.
    let start = Instant::now();
    let signals = Signals::catch()?;
    let scratch = Scratch::new()?;
    let initramfs = scratch.join("root.cpio");
    std::fs::write(&initramfs, root)?;
    let output = scratch.join("output");
    let listener = UnixListener::bind(&output)?;
    let mut model = model
        .map(|(program, shape)| {
            let log = fetch::folder().join("last-model.log");
            Model::start(program, shape, &scratch, &log)
        })
        .transpose()?;
    let mut command = qemu.command()?;
    Machine {
        arch: options.arch,
        kernel: &kernel.image,
        initramfs: &initramfs,
        output: &output,
        memory: options.memory,
        devices: model.as_ref().map_or(&[], |model| &model.sockets),
        cable: None,
        tap: None,
        network: HostNetwork::None,
        reboots: options.shutdown,
    }
    .describe(&mut command);
    writeln!(log, "=== Linux {}", kernel.release)?;
    let watch = Watch {
        signals: &signals,
        model: model.as_mut(),
        output: listener,
        log,
        complaints: &scratch.join("qemu.log"),
        limit: Duration::from_secs(options.timeout),
        abandoned: None,
    };
    let outcome = watch.run(&command)?;
    let code = verdict(&outcome, *devices, options.strict, LOG)?;
    if let Some(model) = model {
        model.finish()?;
    }
    let booted = outcome.account.booted.unwrap_or_default();
    let off = outcome.off.saturating_sub(outcome.account.done.unwrap_or(outcome.off));
    let shutdown = off.max(outcome.account.shutdown);
    eprintln!(
        "Linux {}: exit code {code}, booted in {:.1} s, shut down in {:.1} s, all in {:.1} s",
        kernel.release,
        booted.as_secs_f32(),
        shutdown.as_secs_f32(),
        start.elapsed().as_secs_f32()
    );
    if options.shutdown {
        left_in_time(outcome.account.lives, shutdown)?;
    }
    Ok(code)
}

/// Fails unless a guest has had all its lives, and shut its devices down quickly.
fn left_in_time(lives: u32, shutdown: Duration) -> Result {
    let limit = SHUTDOWN.as_secs();
    match () {
        () if lives != LIVES => {
            Err(format!("the guest booted {lives} times, not {LIVES}: it did not come back").into())
        }
        () if shutdown > SHUTDOWN => {
            Err(format!("the guest was not off {limit} s after its shutdown began").into())
        }
        () => Ok(()),
    }
}

/// The program's exit code, unless something else went wrong: that counts first. `log` is the name
/// of the guest's log.
fn verdict(outcome: &Outcome, devices: u32, strict: bool, log: &str) -> Result<u8> {
    let Outcome { account, console, cut_short, .. } = outcome;
    for warning in &account.warnings {
        eprintln!("the guest's kernel warned: {warning}");
    }
    let mut wrong: Vec<String> = cut_short.iter().cloned().collect();
    if let [first, ..] = console.trouble() {
        wrong.push(format!("the guest's kernel is in trouble: {first}"));
    }
    wrong.extend(account.failures.iter().cloned());
    if let Some(found) = account.devices.filter(|&found| found < devices) {
        wrong.push(format!("the guest has {found} RDMA devices and should have {devices}"));
    }
    if strict && !account.warnings.is_empty() {
        wrong.push("the drivers warned".to_string());
    }
    if account.done.is_none() && cut_short.is_none() {
        let hint = match account.left_early {
            true => ": its program ended it; to leave with the drivers loaded, use --shutdown",
            false => "",
        };
        wrong.push(format!("the guest ended before its time{hint}"));
    }
    match account.exit {
        Some(code) if wrong.is_empty() => return Ok(code),
        None if wrong.is_empty() => wrong.push("the program did not run".to_string()),
        _ => {}
    }
    let mut lines: String = console.trouble().iter().map(|line| format!("  {line}\n")).collect();
    if lines.is_empty() {
        lines = console.tail();
    }
    let log = fetch::folder().join(log);
    Err(format!("{}\n{lines}the whole log is in {}", wrong.join("; "), log.display()).into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::boot::Outcome;
    use super::console::{Account, Console};
    use super::model::Shape;
    use super::series::Series;
    use super::{LIVES, LOG, left_in_time, shape_for, verdict};

    /// The result of a run with one device, from a guest's log.
    fn judge(log: &str, strict: bool) -> Result<u8, String> {
        let mut outcome = Outcome {
            account: Account::default(),
            console: Console::new(),
            cut_short: None,
            off: Duration::ZERO,
        };
        for mark in outcome.console.take(log.as_bytes()) {
            outcome.account.note(mark, Duration::ZERO);
        }
        verdict(&outcome, 1, strict, LOG).map_err(|error| error.to_string())
    }

    const GOOD: &str = "verbless: init\nverbless: devices 1\nverbless: exit 7\nverbless: unloaded \
        0\nverbless: done\n";

    #[test]
    fn log_decides_outcome_of_run() {
        let trace = GOOD.replace("verbless: exit", "[ 1.0] Call Trace:\n<TASK>\nverbless: exit");
        let warning =
            GOOD.replace("verbless: done", "verbless: warning mlx5_core: bad\nverbless: done");
        let begun = "verbless: init\nverbless: devices";
        let off = format!("{begun} 1\n[    4.0] reboot: Power down\n");
        for (what, log, strict, expected) in [
            ("good", GOOD, true, Ok(7)),
            ("a warning", &warning, false, Ok(7)),
            ("a warning, strict", &warning, true, Err(&[][..])),
            ("a call trace", &trace, false, Err(&["in trouble", "<TASK>"])),
            ("no program", &format!("{begun} 1\nverbless: done\n"), false, Err(&["did not run"])),
            (
                "no device",
                &format!("{begun} 0\nverbless: done\n"),
                false,
                Err(&["has 0 RDMA devices"]),
            ),
            (
                "ended early",
                &format!("{begun} 1\nverbless: exit 0\n"),
                false,
                Err(&["before its time\n"]),
            ),
            ("powered off", &off, false, Err(&["use --shutdown"])),
        ] {
            match (judge(log, strict), expected) {
                (Ok(code), Ok(expected)) => assert_eq!(code, expected, "{what}"),
                (Err(error), Err(words)) => {
                    assert!(words.iter().all(|word| error.contains(word)), "{what}: {error}");
                }
                (got, _) => panic!("{what}: {got:?}"),
            }
        }
    }

    #[test]
    fn old_kernel_gets_a_device_that_it_knows() {
        let shape = |profiles: &[&str]| Shape {
            profiles: profiles.iter().map(ToString::to_string).collect(),
            link: "infiniband".into(),
            functions: 1,
            sides: false,
            trap: false,
            record: None,
        };
        let chosen = |series, profiles: &[&str]| shape_for(series, &shape(profiles));
        assert_eq!(chosen(Series::Linux5_10, &[]).unwrap().profiles, ["connectx6dx"]);
        assert_eq!(chosen(Series::Linux5_10, &["x.toml"]).unwrap().profiles, ["x.toml"]);
        assert!(chosen(Series::Linux6_1, &["bluefield3"]).is_ok());
        assert!(chosen(Series::Linux6_1, &[]).unwrap().profiles.is_empty());
        let error = chosen(Series::Linux5_10, &["connectx6dx", "bluefield3-fwctl"]).unwrap_err();
        assert!(error.to_string().contains("bluefield3-fwctl"), "{error}");
    }

    #[test]
    fn guest_leaves_in_every_way_in_time() {
        let soon = Duration::from_millis(100);
        assert!(left_in_time(LIVES, soon).is_ok());
        assert!(left_in_time(LIVES - 1, soon).is_err());
        assert!(left_in_time(LIVES, Duration::from_secs(65)).is_err());
    }
}
