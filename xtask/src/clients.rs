//! Unmodified third-party programs on the model: UCX, Open MPI and OpenSHMEM over UCX, libfabric,
//! infiniband-diags, qperf, iproute2, DPDK's bus scan, the crate sideway. The step `run: clients`
//! of `cargo xtask test`.

use std::path::PathBuf;
use std::process::Command;

use crate::outcome::Outcome;
use crate::run::{Checks, both_of, model, on_the_path, target};
use crate::workspace::{Result, workspace_root};

/// Programs, and their Debian packages.
const NEEDED: [(&str, &str); 10] = [
    ("ucx_perftest", "ucx-utils"),
    ("fi_pingpong", "libfabric-bin"),
    ("mpicc", "libopenmpi-dev"),
    ("mpirun", "openmpi-bin"),
    ("oshcc", "openmpi-bin"),
    ("ibstat", "infiniband-diags"),
    ("qperf", "qperf"),
    ("rdma", "iproute2"),
    ("ibv_srq_pingpong", "ibverbs-utils"),
    ("cmake", "cmake"),
];
/// The library that generates sideway's bindings to libibverbs, and its package. No program in the
/// PATH proves that it is installed.
const LIBCLANG: (&str, &str) = ("libclang.so", "libclang-dev");
/// DPDK's mlx5 driver, which `tests/clients/bus_scan.py` loads, and its package.
const DPDK: (&str, &str) = ("librte_net_mlx5.so", "librte-net-mlx5-23");
const LINKS: [&str; 2] = ["infiniband", "ethernet"];
/// UCX's transports: over libibverbs, and over DevX with queues of its own.
const TRANSPORTS: [&str; 4] = ["rc_v", "rc_x", "ud_v", "ud_x"];
/// UCX 1.13 uses its own queues only on devices that it knows; it does not know BlueField-3.
const KNOWN_TO_UCX: [&str; 2] = ["--profile", "connectx6dx"];
/// One-sided tests of ucx_perftest.
const ONE_SIDED: [&str; 7] = [
    "ucp_put_bw -s 1048576",
    "ucp_put_lat -s 64",
    "ucp_get -s 1048576",
    "ucp_add",
    "ucp_fadd",
    "ucp_swap",
    "ucp_cswap",
];
/// UCX's own queues with relaxed ordering, which UCX requests by default only on some CPUs. A put
/// after a fence then uses an indirect key, at an offset that UCX derives from the device's
/// capabilities.
const RELAXED: &str = "-x UCX_TLS=rc_x,self -x UCX_NET_DEVICES=mlx5_0:1 \
                       -x UCX_IB_PCI_RELAXED_ORDERING=on";

/// Each program's report of the devices, and messages between two of them, on both links.
pub(crate) fn clients() -> Result<Outcome> {
    let mut missing: Vec<_> =
        NEEDED.into_iter().filter(|(program, _)| !on_the_path(program)).collect();
    if !has_libclang() {
        missing.push(LIBCLANG);
    }
    if !has_dpdk() {
        missing.push(DPDK);
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
    let exchange = compile("mpicc", "exchange")?;
    let window = compile("mpicc", "window")?;
    let symmetric = compile("oshcc", "symmetric")?;
    let loopback = build_loopback()?;
    let mut checks = Checks::default();
    for (index, link) in LINKS.into_iter().enumerate() {
        let port = 18900 + 30 * index;
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
        let scan = workspace_root().join("tests/clients/bus_scan.py");
        let scan = format!("/usr/bin/python3 {} 2>&1", scan.display());
        let said = ["Probe PCI driver: mlx5_pci (15b3:", "device \"mlx5_1\"", "DevX is supported"];
        checks.run(&model, &both, &name("DPDK's scan of the PCI bus"), &finds(&scan, &said));
        let fabric = "fi_pingpong -p verbs -e rdm -d mlx5_0-dgram -I 20 -S 4096 -c";
        let script =
            both_of(&format!("{fabric} -B {port}"), &format!("{fabric} -P {port} localhost"));
        checks.run(&model, &on, &name("fi_pingpong, rdm"), &script);
        let options = [&KNOWN_TO_UCX[..], &on].concat();
        let tests = TRANSPORTS.map(|transport| (transport, "tag_lat -s 4096"));
        let tests = tests.into_iter().chain(ONE_SIDED.map(|test| ("rc_x", test)));
        for (port, (transport, test)) in (port + 1..).zip(tests) {
            let perftest = format!(
                "env UCX_TLS={transport},self UCX_NET_DEVICES=mlx5_0:1 \
                 ucx_perftest -p {port} -t {test} -n 100 -w 10"
            );
            let script = both_of(&perftest, &format!("{perftest} localhost"));
            checks.run(&model, &options, &name(&format!("UCX, {transport}, {test}")), &script);
        }
        let two = "--allow-run-as-root --oversubscribe -np 2 --mca btl ^openib";
        let script = format!(
            "mpirun {two} --mca pml ucx -x UCX_TLS=rc_v,self -x UCX_NET_DEVICES=mlx5_0:1 {exchange}"
        );
        checks.run(&model, &options, &name("Open MPI over UCX, every byte checked"), &script);
        let script = format!("mpirun {two} --mca pml ucx --mca osc ucx {RELAXED} {window}");
        let what = name("one-sided Open MPI over UCX, every byte checked");
        checks.run(&model, &options, &what, &script);
        let script = format!("oshrun {two} --mca spml ucx {RELAXED} {symmetric}");
        checks.run(&model, &options, &name("OpenSHMEM over UCX, every byte checked"), &script);
        let what = name("sideway in Rust, every byte checked");
        checks.run(&model, &on, &what, &loopback.display().to_string());
    }
    // `rdma res` shows the SRQ and the queue pairs of a server that waits for its client.
    let script = "ibv_srq_pingpong -d mlx5_0 -q 3 -p 18951 >/dev/null & server=$!\n\
        for try in $(seq 100); do\n\
            sleep 0.1; all=$(rdma res show srq)\n\
            qpn=$(sed -n 's/.* lqpn \\([0-9]*\\),.*/\\1/p' <<<\"$all\")\n\
            [ -n \"$qpn\" ] && break\n\
        done\n\
        one=$(rdma res show qp link mlx5_0/1 lqpn \"$qpn\")\n\
        echo \"$all\"; echo \"$one\"; rdma stat; kill $server\n\
        grep -q \"^link mlx5_0/1 lqpn $qpn .* type RC state INIT \" <<<\"$one\"";
    checks.run(&model, &[], "rdma res", script);
    // Without rdma_cm it sets no GID, which an Ethernet port needs.
    let script = "qperf -lp 18950 & server=$!; sleep 0.5\n\
        qperf localhost -lp 18950 -t 1 -cm 0 rc_lat rc_bw uc_bw ud_lat; result=$?\n\
        kill $server; exit $result";
    checks.run(&model, &["--link", "infiniband"], "qperf (infiniband)", script);
    Ok(checks.outcome())
}

/// A script that succeeds if the program does and prints all these words.
fn finds(program: &str, words: &[&str]) -> String {
    let greps: String =
        words.iter().map(|word| format!(" && grep -q '{word}' <<<\"$said\"")).collect();
    format!("said=$({program}) && echo \"$said\"{greps}")
}

/// Compiles a program of two processes that check each other's bytes; returns its path.
fn compile(compiler: &str, name: &str) -> Result<String> {
    let program = target().join(format!("clients-{name}"));
    let source = format!("tests/clients/{name}.c");
    let status = Command::new(compiler)
        .args(["-O2", "-Wall", "-Werror", "-o"])
        .arg(&program)
        .arg(workspace_root().join(&source))
        .status()?;
    if !status.success() {
        return Err(format!("{source} does not compile").into());
    }
    Ok(program.display().to_string())
}

/// Builds the program that uses sideway, in half a minute the first time; returns its path.
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

/// Whether DPDK's driver lies where Debian puts it.
fn has_dpdk() -> bool {
    let folders = |of: PathBuf| std::fs::read_dir(of).into_iter().flatten().flatten();
    let versions = folders("/usr/lib".into()).flat_map(|it| folders(it.path().join("dpdk")));
    // Some versions of the package have only the name with the ABI's number.
    let mut libraries = versions.flat_map(|it| folders(it.path()));
    libraries.any(|it| it.file_name().to_string_lossy().starts_with(DPDK.0))
}

/// Whether a libclang lies where Debian puts it, or the environment names one.
fn has_libclang() -> bool {
    if std::env::var_os("LIBCLANG_PATH").is_some() {
        return true;
    }
    let versions = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    versions.map(|it| it.path().join("lib").join(LIBCLANG.0)).any(|it| it.exists())
}
