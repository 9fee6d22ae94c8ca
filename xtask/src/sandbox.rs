//! `verbless-model run` within containers and sandboxes with their default settings, and sandboxes
//! started under `run`. A step of `cargo xtask test`; `crates/model-host/tests/preflight.rs` tests
//! each forbidden system call by itself.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::outcome::{Outcome, Skip};
use crate::run::{model, on_the_path};
use crate::workspace::Result;

/// The sandbox that the step needs; podman is optional.
const NEEDED: &str = "bwrap";
/// The shell command that runs in each sandbox.
const PROGRAM: &str = "ibv_devinfo | grep -q PORT_ACTIVE";

/// A sandbox, and the command that starts a program in it, up to the program's name.
struct Sandbox {
    name: &'static str,
    command: &'static str,
}

impl Sandbox {
    /// Whether it needs no privileges, so that it starts under `run`, too.
    fn is_unprivileged(&self) -> bool {
        self.command.starts_with(NEEDED)
    }
}

const SANDBOXES: &[Sandbox] = &[
    Sandbox {
        name: "bubblewrap, nothing shared",
        command: "bwrap --unshare-all --ro-bind / / --dev /dev --proc /proc --tmpfs /tmp",
    },
    Sandbox {
        name: "bubblewrap without /dev/shm",
        command: "bwrap --unshare-all --ro-bind / / --proc /proc --tmpfs /dev \
            --dev-bind /dev/null /dev/null --tmpfs /tmp",
    },
    Sandbox { name: "podman", command: "podman run --rm --network none --cgroups=disabled ROOT" },
    Sandbox {
        name: "podman without capabilities",
        command: "podman run --rm --network none --cgroups=disabled --cap-drop=all --security-opt \
            no-new-privileges ROOT",
    },
];
/// This machine's files in an overlay, and limits that a nested container may set.
const ROOT: &str = "--ulimit nofile=1024:1024 --ulimit nproc=1000:1000 --rootfs /:O";
/// A shell script that mounts cgroups v2 alone, as podman's runtime requires, and starts the rest.
const UNIFIED: &str =
    "umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup; exec \"$@\"";

/// The path of the model's program in a sandbox that has a `/tmp` of its own.
const MODEL_IN_SANDBOX: &str = "/tmp/verbless-model";

/// Checks all sandboxes; those that cannot start `true` here are skipped.
pub(crate) fn check() -> Result<Outcome> {
    if !on_the_path(NEEDED) {
        return Ok(Outcome::Skipped(format!(
            "{NEEDED} is not installed: apt-get install bubblewrap"
        )));
    }
    let model = model()?;
    let (mut passed, mut failed, mut skips) = (0, 0, Vec::new());
    for sandbox in SANDBOXES {
        let bare = start(sandbox, Path::new("true"), &[])?;
        if !bare.status.success() {
            let errors = String::from_utf8_lossy(&bare.stderr);
            let reason = errors.lines().last().unwrap_or("it fails without an error message");
            println!("skip  {}: {reason}", sandbox.name);
            skips.push(Skip { name: sandbox.name.into(), reason: reason.into() });
            continue;
        }
        let mut outputs =
            vec![("run", start(sandbox, &model, &["run", "--", "sh", "-c", PROGRAM])?)];
        if sandbox.is_unprivileged() {
            outputs.push(("program", start_within(sandbox, &model)?));
        }
        for (what, output) in outputs {
            let good = output.status.success();
            println!("{}  {}: {what}", if good { "pass" } else { "FAIL" }, sandbox.name);
            if good {
                passed += 1;
            } else {
                failed += 1;
                println!("{}", String::from_utf8_lossy(&output.stderr));
            }
        }
    }
    Ok(Outcome::Ran { passed, failed, skips, more: 0 })
}

/// Whether a sandbox of this name exists.
#[cfg(test)]
pub(crate) fn has(name: &str) -> bool {
    SANDBOXES.iter().any(|sandbox| sandbox.name == name)
}

/// Starts the sandbox under `run`, with the program in it.
fn start_within(sandbox: &Sandbox, model: &Path) -> Result<Output> {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "60"]).arg(model).args(["run", "--"]);
    command.args(sandbox.command.split_whitespace()).args(["sh", "-c", PROGRAM]);
    Ok(command.env_remove("TMPDIR").stdin(Stdio::null()).output()?)
}

fn start(sandbox: &Sandbox, program: &Path, arguments: &[&str]) -> Result<Output> {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "60"]);
    if sandbox.command.starts_with("podman")
        && !Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
    {
        command.args(["unshare", "--mount", "sh", "-c", UNIFIED, "sh"]);
    }
    let words = sandbox.command.replace("ROOT", ROOT);
    command.args(words.split_whitespace());
    // The sandbox has a /tmp of its own, which may hide the program.
    if sandbox.is_unprivileged() && program.is_absolute() {
        command.arg("--ro-bind").arg(program).arg(MODEL_IN_SANDBOX);
        command.arg(MODEL_IN_SANDBOX).args(arguments);
    } else {
        command.arg(program).args(arguments);
    }
    Ok(command.env_remove("TMPDIR").stdin(Stdio::null()).output()?)
}
