//! Unmodified programs of others on the model: UCX, Open MPI over UCX, libfabric, infiniband-diags,
//! qperf, iproute2, the crate sideway. The step `run: clients` of `cargo xtask test`.

use std::path::PathBuf;
use std::process::Command;

use crate::outcome::Outcome;
use crate::run::{Checks, both_of, model, on_the_path, target};
use crate::workspace::{Result, workspace_root};

/// Programs, and the Debian packages that have them.
const NEEDED: [(&str, &str); 8] = [
    ("ucx_perftest", "ucx-utils"),
    ("fi_pingpong", "libfabric-bin"),
    ("mpicc", "libopenmpi-dev"),
    ("mpirun", "openmpi-bin"),
    ("ibstat", "infiniband-diags"),
    ("qperf", "qperf"),
    ("rdma", "iproute2"),
    ("cmake", "cmake"),
];
/// The library by which sideway's bindings to libibverbs are made, and the package that has it: no
/// program tells of it.
const LIBCLANG: (&str, &str) = ("libclang.so", "libclang-dev");
const LINKS: [&str; 2] = ["infiniband", "ethernet"];
/// UCX's transports: over libibverbs, and over DevX with queues of its own.
const TRANSPORTS: [&str; 4] = ["rc_v", "rc_x", "ud_v", "ud_x"];
/// UCX 1.13 has its own queues on devices that it knows: BlueField-3 is not one of them.
const KNOWN_TO_UCX: [&str; 2] = ["--profile", "connectx6dx"];

/// What each program says of the devices, and messages between two of them, on both links.
pub(crate) fn clients() -> Result<Outcome> {
    let mut missing: Vec<_> =
        NEEDED.into_iter().filter(|(program, _)| !on_the_path(program)).collect();
    if !has_libclang() {
        missing.push(LIBCLANG);
    }
    if !missing.is_empty() {
        let (programs, packages): (Vec<_>, Vec<_>) = missing.into_iter().unzip();
        return Ok(Outcome::Skipped(format!(
            "not installed: {}: apt-get install {}",
            programs.join(", "),
            packages.join(" ")
        )));
    }
    let model = model()?;
    let exchange = compile()?;
    let loopback = build_loopback()?;
    let mut checks = Checks::default();
    for (index, link) in LINKS.into_iter().enumerate() {
        let port = 18900 + 20 * index;
        let on = ["--link", link];
        let name = |what: &str| format!("{what} ({link})");
        let layer = ["InfiniBand", "Ethernet"][index];
        checks.run(&model, &on, &name("ibstat"), &finds("ibstat", &["State: Active", layer]));
        checks.run(&model, &on, &name("ibstatus"), &finds("ibstatus", &["4: ACTIVE", layer]));
        let both = ["--link", link, "--devices", "2"];
        let said = ["link mlx5_1/1", "state ACTIVE"];
        checks.run(&model, &both, &name("rdma link"), &finds("rdma link", &said));
        checks.run(
            &model,
            &both,
            &name("rdma dev"),
            &finds("rdma dev", &["1: mlx5_1: node_type ca"]),
        );
        let fabric = "fi_pingpong -p verbs -e rdm -d mlx5_0-dgram -I 20 -S 4096 -c";
        let script =
            both_of(&format!("{fabric} -B {port}"), &format!("{fabric} -P {port} localhost"));
        checks.run(&model, &on, &name("fi_pingpong, rdm"), &script);
        let options = [&KNOWN_TO_UCX[..], &on].concat();
        for (port, transport) in (port + 1..).zip(TRANSPORTS) {
            let perftest = format!(
                "env UCX_TLS={transport},self UCX_NET_DEVICES=mlx5_0:1 ucx_perftest -p {port} -t \
                 tag_lat \
                 -n 100 -w 10 -s 4096"
            );
            let script = both_of(&perftest, &format!("{perftest} localhost"));
            checks.run(&model, &options, &name(&format!("UCX, {transport}")), &script);
        }
        let script = format!(
            "mpirun --allow-run-as-root --oversubscribe -np 2 --mca pml ucx --mca btl ^openib \
             -x UCX_TLS=rc_v,self -x UCX_NET_DEVICES=mlx5_0:1 {exchange}"
        );
        checks.run(&model, &options, &name("Open MPI over UCX, every byte checked"), &script);
        let what = name("sideway in Rust, every byte checked");
        checks.run(&model, &on, &what, &loopback.display().to_string());
    }
    // Without rdma_cm it names no GID, which an Ethernet port needs.
    let script = "qperf -lp 18950 & server=$!; sleep 0.5\n\
        qperf localhost -lp 18950 -t 1 -cm 0 rc_lat rc_bw uc_bw ud_lat; result=$?\n\
        kill $server; exit $result";
    checks.run(&model, &["--link", "infiniband"], "qperf (infiniband)", script);
    Ok(checks.outcome())
}

/// A script that succeeds when a program does and says all these.
fn finds(program: &str, words: &[&str]) -> String {
    let greps: String =
        words.iter().map(|word| format!(" && grep -q '{word}' <<<\"$said\"")).collect();
    format!("said=$({program}) && echo \"$said\"{greps}")
}

/// Compiles the program of two processes that check each other's bytes; where it lies.
fn compile() -> Result<String> {
    let program = target().join("clients-exchange");
    let status = Command::new("mpicc")
        .args(["-O2", "-Wall", "-Werror", "-o"])
        .arg(&program)
        .arg(workspace_root().join("tests/clients/exchange.c"))
        .status()?;
    if !status.success() {
        return Err("tests/clients/exchange.c does not compile".into());
    }
    Ok(program.display().to_string())
}

/// Builds the program that uses sideway, in half a minute at first; where it lies.
fn build_loopback() -> Result<PathBuf> {
    let built = target().join("clients-loopback");
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--quiet", "--locked", "--manifest-path"])
        .arg(workspace_root().join("tests/clients/loopback/Cargo.toml"))
        .arg("--target-dir")
        .arg(&built)
        .status()?;
    if !status.success() {
        return Err("tests/clients/loopback does not build".into());
    }
    Ok(built.join("debug/verbless-loopback"))
}

/// Whether a libclang lies where Debian puts it, or the environment names one.
fn has_libclang() -> bool {
    if std::env::var_os("LIBCLANG_PATH").is_some() {
        return true;
    }
    let versions = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    versions.map(|it| it.path().join("lib").join(LIBCLANG.0)).any(|it| it.exists())
}
