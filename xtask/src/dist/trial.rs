//! Runs the shipped programs in an empty sandbox: no library, no network, no file of the machine,
//! and only `/tmp` is writable.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::build::Built;
use super::program::{AARCH64, Arch};
use crate::run::on_the_path;
use crate::workspace::Result;

const SANDBOX: &str = "bwrap";
/// QEMU's user mode, for programs of the other architecture.
pub(super) const EMULATOR: &str = "qemu-aarch64";

/// The directory of the programs in the sandbox.
const PROGRAMS: &str = "/d";
/// Seconds after which a program counts as hung.
const LIMIT: &str = "120";

/// A trial: a program with its arguments, and what its output has.
struct Trial {
    program: &'static str,
    arguments: &'static str,
    expected: &'static str,
    /// Whether it starts programs under the supervision of the kernel, which no emulator has.
    supervises: bool,
}

const fn trial(program: &'static str, arguments: &'static str, expected: &'static str) -> Trial {
    Trial { program, arguments, expected, supervises: false }
}

const TRIALS: &[Trial] = &[
    trial("hwtest", "--version", "PRM "),
    trial("hwtest", "--filter open:: --jobs 1 --json /tmp/a.json --junit /tmp/a.xml", " 0 failed"),
    trial("hwtest", "perf write_lat --size 8 -n 100", "t_typical"),
    trial("kv", "", "changes by"),
    trial("perf", "write_bw 4096", "MsgRate"),
    trial("devinfo", "--caps", "mlx5_0"),
    trial("verbless-model", "explain 12", "12"),
    Trial {
        supervises: true,
        ..trial("verbless-model", "run -- /d/devinfo --device mlx5_0", "mlx5_0")
    },
];

/// Why this machine cannot run programs of an architecture.
pub(super) fn obstacle(arch: Arch) -> Option<String> {
    if !on_the_path(SANDBOX) {
        return Some(format!("{SANDBOX} is not installed: apt-get install bubblewrap"));
    }
    if is_own(arch) || arch.0 == AARCH64.0 && on_the_path(EMULATOR) {
        return None;
    }
    Some(match arch.0 == AARCH64.0 {
        true => format!("{EMULATOR} is not installed: apt-get install qemu-user"),
        false => format!("programs for {} are tried only on such a machine", arch.0),
    })
}

fn is_own(arch: Arch) -> bool {
    arch.0 == std::env::consts::ARCH
}

/// Runs the trials of these programs; returns how many passed and failed.
pub(super) fn run(arch: Arch, built: &[Built]) -> Result<(u64, u64)> {
    let (mut passed, mut failed) = (0, 0);
    let here = |trial: &&Trial| {
        let has = |name| built.iter().any(|built| built.program.name == name);
        has(trial.program) && (is_own(arch) || !trial.supervises)
    };
    for trial in TRIALS.iter().filter(here) {
        let Output { status, stdout, stderr } = start(arch, built, trial)?;
        let text = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        let good = status.success() && text[0].contains(trial.expected);
        let Trial { program, arguments, expected, .. } = trial;
        let mark = if good { "pass" } else { "FAIL" };
        println!("{mark}  {}: {program} {arguments}", arch.0);
        if good {
            passed += 1;
        } else {
            failed += 1;
            println!("{status}; expected {expected:?} in its output:\n{}", text.concat());
        }
    }
    Ok((passed, failed))
}

fn start(arch: Arch, built: &[Built], trial: &Trial) -> Result<Output> {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", LIMIT, SANDBOX, "--unshare-all", "--clearenv"]);
    command.args(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--chdir", "/tmp"]);
    for Built { program, path, .. } in built {
        command.arg("--ro-bind").arg(path).arg(format!("{PROGRAMS}/{}", program.name));
    }
    if !is_own(arch) {
        // The emulator has libraries, which are useless to a program of another architecture.
        for directory in ["/lib", "/lib64", "/usr/lib", "/usr/bin"] {
            if Path::new(directory).exists() {
                command.args(["--ro-bind", directory, directory]);
            }
        }
    }
    command.args(["--remount-ro", "/"]);
    if !is_own(arch) {
        command.arg(format!("/usr/bin/{EMULATOR}"));
    }
    command.arg(format!("{PROGRAMS}/{}", trial.program));
    command.args(trial.arguments.split_whitespace());
    Ok(command.stdin(Stdio::null()).output()?)
}
