//! A program on libibverbs and one on DOCA RDMA of this project, connected: the steps `run: peers`
//! and `VM: peers` of `cargo xtask test`.

use std::path::PathBuf;
use std::process::Command;

use crate::outcome::Outcome;
use crate::run::{Checks, model, on_the_path, program, target};
use crate::{Result, workspace_root};

/// Compiles the program on libibverbs; where it lies, or why it cannot be had.
fn rdma_peer() -> Result<std::result::Result<PathBuf, String>> {
    let header = "/usr/include/infiniband/verbs.h";
    if !on_the_path("cc") || !std::path::Path::new(header).exists() {
        let text = "there is no cc, or no libibverbs to link: apt-get install gcc libibverbs-dev";
        return Ok(Err(text.into()));
    }
    let built = target().join("rdma_peer");
    let status = Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&built)
        .arg(workspace_root().join("tests/clients/rdma_peer.c"))
        .arg("-libverbs")
        .status()?;
    if !status.success() {
        return Err("tests/clients/rdma_peer.c does not compile".into());
    }
    Ok(Ok(built))
}

/// Under `verbless-model run`, on both kinds of port, and between two devices.
pub(crate) fn under_run() -> Result<Outcome> {
    let peer = match rdma_peer()? {
        Ok(peer) => peer,
        Err(why) => return Ok(Outcome::Skipped(why)),
    };
    let (model, endpoint) = (model()?, program("examples/verbs_peer")?);
    let (peer, endpoint) = (peer.display(), endpoint.display());
    let mut checks = Checks::default();
    for (number, link) in ["infiniband", "ethernet"].into_iter().enumerate() {
        for device in ["mlx5_0", "mlx5_1"] {
            let port = 18640 + 2 * number + usize::from(device == "mlx5_1");
            let script = format!(
                "timeout 60 '{endpoint}' -d mlx5_0 --listen 127.0.0.1:{port} & other=$!\n\
                 timeout 60 '{peer}' {port} {device}; code=$?\n\
                 wait $other && exit $code"
            );
            let name = format!("libibverbs on {device}, DOCA RDMA on mlx5_0 ({link})");
            checks.run(&model, &["--devices", "2", "--link", link], &name, &script);
        }
    }
    Ok(checks.outcome())
}

/// What the guest of `VM: peers` gets, and what it runs. Both programs are linked with the C
/// library of this machine, and find that of the guest there: it must not be older.
pub(crate) fn in_a_guest() -> Result<std::result::Result<Vec<String>, String>> {
    let peer = match rdma_peer()? {
        Ok(peer) => peer,
        Err(why) => return Ok(Err(why)),
    };
    let endpoint = program("examples/verbs_peer")?;
    let script = workspace_root().join("tests/clients/peers.sh");
    let words = ["--with-rdma-core", "--carry"].map(String::from).into_iter();
    let words = words.chain([endpoint.display().to_string(), "--carry".into()]);
    let words = words.chain([peer.display().to_string(), "--".into()]);
    Ok(Ok(words.chain([script.display().to_string()]).collect()))
}
