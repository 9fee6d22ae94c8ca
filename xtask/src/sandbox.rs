//! `verbless-model run` within containers and sandboxes with their default settings, and programs
//! under `run` within sandboxes. A step of `cargo xtask test`; the forbidden calls, one by one, are
//! a test of the model (`tests/preflight.rs`).

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::outcome::{Outcome, Skip};
use crate::run::{model, on_the_path};
use crate::workspace::Result;

/// The step is skipped without it.
const NEEDED: &str = "bwrap";
/// The program that runs there.
const PROGRAM: &str = "ibv_devinfo | grep -q PORT_ACTIVE";

/// A way to start a program in a sandbox: a command, up to the program's name.
struct Sandbox {
    name: &'static str,
    command: &'static str,
}

impl Sandbox {
    /// Whether a program behind a filter may enter it: it needs no privileges.
    fn is_of_a_user(&self) -> bool {
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
/// This machine's files, which the container may change, and limits that containers within one may
/// have.
const ROOT: &str = "--ulimit nofile=1024:1024 --ulimit nproc=1000:1000 --rootfs /:O";
/// podman's runtime requires cgroups v2 only.
const UNIFIED: &str =
    "umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup; exec \"$@\"";

/// The model's program within a sandbox that has a `/tmp` of its own.
const SHOWN: &str = "/tmp/verbless-model";

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
            let reason = errors.lines().last().unwrap_or("it does not start, and says nothing");
            println!("skip  {}: {reason}", sandbox.name);
            skips.push(Skip { name: sandbox.name.into(), reason: reason.into() });
            continue;
        }
        let mut outputs =
            vec![("run", start(sandbox, &model, &["run", "--", "sh", "-c", PROGRAM])?)];
        if sandbox.is_of_a_user() {
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

/// Starts the program in a sandbox, with `run` outside of it.
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
    if sandbox.is_of_a_user() && program.is_absolute() {
        command.arg("--ro-bind").arg(program).arg(SHOWN);
        command.arg(SHOWN).args(arguments);
    } else {
        command.arg(program).args(arguments);
    }
    Ok(command.env_remove("TMPDIR").stdin(Stdio::null()).output()?)
}
