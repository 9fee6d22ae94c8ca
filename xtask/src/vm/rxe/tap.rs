//! A network namespace with a tap device, whose other end is the guest's third network device: the
//! IP stack of this machine's kernel is between the guest and the model.

use std::path::Path;
use std::process::{Command, Stdio};

use nix::sched::{CloneFlags, unshare};

use crate::run::on_the_path;

/// The tap, and the addresses at its ends; `prepare.sh` repeats the guest's.
pub(super) const NAME: &str = "verbless0";
pub(super) const HOST: &str = "198.51.100.1";
pub(super) const GUEST: &str = "198.51.100.2";

/// Moves this thread and its later children to a network namespace with a loopback device and the
/// tap. An error says what failed.
pub(super) fn enter() -> Result<(), String> {
    const TUN: &str = "/dev/net/tun";
    if !nix::unistd::geteuid().is_root() {
        return Err("a network namespace needs root: run it as root".into());
    }
    if !Path::new(TUN).exists() {
        return Err(format!("there is no {TUN}: load the module tun"));
    }
    if !on_the_path("ip") {
        return Err("ip is not installed: apt-get install iproute2".into());
    }
    unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| format!("unshare: {errno}"))?;
    // The loopback device comes first: the rest of the step needs it.
    ip("link set lo up")?;
    ip(&format!("tuntap add dev {NAME} mode tap"))?;
    ip(&format!("address add {HOST}/24 dev {NAME}"))?;
    ip(&format!("link set {NAME} up"))
}

fn ip(words: &str) -> Result<(), String> {
    let mut command = Command::new("ip");
    let output = command.args(words.split(' ')).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("ip: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("ip {words}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}
