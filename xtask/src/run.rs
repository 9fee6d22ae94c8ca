//! Unmodified programs on the model, by `verbless-model run`: rdma-core's tools, perftest, and the
//! conformance suite with its real-kernel backend, programs that are killed, and hostile clients.
//! Steps of `cargo xtask test`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::outcome::Outcome;
use crate::workspace::{Result, cargo, workspace_root};

/// Programs that these steps require.
const NEEDED: [&str; 2] = ["ibv_devinfo", "ib_write_bw"];
/// Seconds after which a pair of programs counts as hung.
const LIMIT: &str = "120";

/// A server and its client: the same command, the client with the server's name.
const PAIRS: &[&str] = &[
    "ibv_rc_pingpong -d mlx5_0 -n 100",
    "ibv_rc_pingpong -d mlx5_0 -n 500 -e",
    "ibv_uc_pingpong -d mlx5_0 -n 100",
    "ibv_uc_pingpong -d mlx5_0 -n 500 -e",
    "ibv_ud_pingpong -d mlx5_0 -n 100",
    "ibv_ud_pingpong -d mlx5_0 -n 500 -e",
    "ibv_srq_pingpong -d mlx5_0 -n 100",
    "ibv_srq_pingpong -d mlx5_0 -n 500 -e",
    "ib_write_bw -d mlx5_0 -n 200",
    "ib_read_lat -d mlx5_0 -n 50",
    "ib_send_bw -d mlx5_0 -n 200",
    "ib_atomic_bw -d mlx5_0 -n 200",
];
/// The same on an Ethernet port, with a RoCE v2 GID.
const ETHERNET_PAIRS: &[&str] = &[
    "ibv_rc_pingpong -d mlx5_0 -n 500 -e -g 1",
    "ibv_uc_pingpong -d mlx5_0 -n 500 -e -g 1",
    "ibv_ud_pingpong -d mlx5_0 -n 500 -e -g 1",
    "ibv_srq_pingpong -d mlx5_0 -n 500 -e -g 1",
];

/// rdma-core's tools and perftest.
pub(crate) fn rdma_core() -> Result<Outcome> {
    for program in NEEDED {
        if !on_the_path(program) {
            return Ok(Outcome::Skipped(format!(
                "{program} is not installed: apt-get install ibverbs-utils perftest"
            )));
        }
    }
    let model = model()?;
    let mut checks = Checks::default();
    checks.run(&model, &[], "ibv_devices", "ibv_devices | grep -q mlx5_0");
    checks.run(&model, &[], "ibv_devinfo -v", "ibv_devinfo -v | grep -q PORT_ACTIVE");
    for (index, pair) in PAIRS.iter().enumerate() {
        checks.run(&model, &[], pair, &both(pair, 18600 + index));
    }
    for (index, pair) in ETHERNET_PAIRS.iter().enumerate() {
        let options = ["--link", "ethernet"];
        checks.run(&model, &options, &format!("{pair} (Ethernet)"), &both(pair, 18700 + index));
    }
    let pingpong = "ibv_rc_pingpong -n 500 -e -p 18802";
    let script = format!(
        "for try in $(seq 100); do sleep 0.1; {pingpong} localhost && exit 0; done; exit 1"
    );
    let name = "ibv_rc_pingpong between a host and its DPU";
    checks.run(&model, &["--dpu", pingpong], name, &script);
    let across = "ibv_rc_pingpong -n 500 -e";
    let [one, other] = [0, 1].map(|device| format!("{across} -p 18800 -d mlx5_{device}"));
    let script = both_of(&one, &format!("{other} localhost"));
    checks.run(&model, &["--devices", "2"], "ibv_rc_pingpong between two devices", &script);
    for (side, port) in [("host", 18802), ("dpu", 18803)] {
        let pair = format!("ibv_rc_pingpong -d mlx5_0 -n 500 -e -p {port}");
        let name = format!("xtask-{}-{port}", std::process::id());
        let script = both_of(
            &format!("$MODEL run --name {name} -- {pair}"),
            &format!("$MODEL run --join {name} --side {side} -- {pair} localhost"),
        );
        checks.join(
            &model,
            &format!("ibv_rc_pingpong with one that joined on the {side} side"),
            &script,
        );
    }
    Ok(checks.outcome())
}

/// Programs that are killed, and hostile clients, while others use the device. A failure prints the
/// seed of the random choices.
pub(crate) fn chaos() -> Result<Outcome> {
    let model = model()?;
    let chaos = program("chaos")?;
    let chaos = chaos.display();
    let mut checks = Checks::default();
    let two = ["--devices", "2"];
    checks.run(&model, &two, "1,000 programs killed", &format!("{chaos} kills"));
    let ethernet = ["--devices", "2", "--link", "ethernet"];
    let script = format!("{chaos} kills --kills 200");
    checks.run(&model, &ethernet, "200 programs killed (Ethernet)", &script);
    checks.run(&model, &two, "hostile clients for 10 s", &format!("{chaos} hostile"));
    let script = format!("{chaos} hostile --seconds 5");
    checks.run(&model, &ethernet, "hostile clients for 5 s (Ethernet)", &script);
    Ok(checks.outcome())
}

/// Cases of two programs on one model, on both kinds of port, over perfect links and over links
/// that lose, duplicate and delay one frame in a hundred; cases of two machines; the example
/// `kv` with its server and clients as processes; and the examples `graph` and `representors`.
pub(crate) fn process() -> Result<Outcome> {
    let model = model()?;
    let process = program("process")?;
    let (mut passed, mut failed) = (0, 0);
    for link in ["infiniband", "ethernet"] {
        let mut command = Command::new(&model);
        command.args(["run", "--devices", "2", "--link", link, "--"]).arg(&process);
        command.args(["--device", "mlx5_0", "--expect", "process run"]);
        let counts = crate::commands::count(command)?;
        (passed, failed) = (passed + counts.passed, failed + counts.failed);
        let counts = crate::commands::count(lossy_process(&model, &process, link))?;
        (passed, failed) = (passed + counts.passed, failed + counts.failed);
    }
    let kv = program("examples/kv")?;
    let mut checks = Checks::default();
    crate::ends::check(&model, &mut checks)?;
    checks.run(
        &model,
        &[],
        "example kv: a server, and clients in other processes",
        &key_value(&kv),
    );
    let graph = program("examples/graph")?;
    checks.run(&model, &[], "example graph: hash, copy, compare", &graph.display().to_string());
    of_both_sides(&model, &mut checks)?;
    let representors = program("examples/representors")?;
    checks.run(
        &model,
        &["--topology", "--side", "dpu"],
        "example representors: the one of a host's VF, by its PCI address",
        &format!("{} -r 0b:00.4", representors.display()),
    );
    Ok(Outcome::ran(passed + checks.passed, failed + checks.failed))
}

/// The examples of a host and its DPU: `sync_event` in both modes, and `dma_copy` of files of
/// several lengths. Either side starts first.
fn of_both_sides(model: &PathBuf, checks: &mut Checks) -> Result<()> {
    let path = |name: &str| program(&format!("examples/{name}"));
    let (host, dpu) = (path("sync_event_host")?, path("sync_event_dpu")?);
    let (host, dpu) = (host.display(), dpu.display());
    let mut port = 18900;
    let mut meeting = || {
        port += 1;
        (format!("--listen 127.0.0.1:{port}"), format!("--connect 127.0.0.1:{port}"))
    };
    for flags in ["", "--atomic", "--async", "--async --atomic", "--async --qdepth 1"] {
        let (listen, connect) = meeting();
        let dpu_first = format!("'{dpu}' {listen} {flags}");
        let options = ["--profile", "bluefield3", "--dpu", &dpu_first];
        let script = format!("sleep 0.5; '{host}' {connect} {flags}");
        checks.run(model, &options, &format!("example sync_event {flags}, DPU first"), &script);
        let (listen, connect) = meeting();
        let dpu_last = format!("sleep 0.5; '{dpu}' {connect} {flags}");
        let options = ["--profile", "bluefield3", "--dpu", &dpu_last];
        let script = format!("'{host}' {listen} {flags}");
        checks.run(model, &options, &format!("example sync_event {flags}, host first"), &script);
    }
    // The device and the representor, by name and by PCI address.
    for (d, r) in [("mlx5_0", "pf0hpf"), ("fb0b:03:00.0", "fb0b:0b:00.0"), ("03:00.1", "0b:00.4")] {
        let (listen, connect) = meeting();
        let there = format!("'{dpu}' -d {d} -r {r} -l 60 {listen}");
        let options = ["--profile", "bluefield3", "--topology", "--dpu", &there];
        let own = if r == "0b:00.4" { r } else { "mlx5_0" };
        let script = format!("'{host}' -d {own} -l 20 {connect}");
        checks.run(model, &options, &format!("example sync_event -d {d} -r {r}"), &script);
    }
    let (host, dpu) = (path("dma_copy_host")?, path("dma_copy_dpu")?);
    let (host, dpu) = (host.display(), dpu.display());
    for bytes in [0, 1, 5_000_000] {
        let (listen, connect) = meeting();
        let file = target().join(format!("xtask-{}-dma-copy", std::process::id()));
        let file = file.display();
        let there = format!("'{dpu}' {listen} --out '{file}.got'");
        let options = ["--profile", "bluefield3", "--dpu", &there];
        let script = format!(
            "head -c {bytes} /dev/urandom > '{file}' && '{host}' {connect} '{file}' && \
             cmp '{file}' '{file}.got'; code=$?; rm -f '{file}' '{file}.got'; exit $code"
        );
        checks.run(model, &options, &format!("example dma_copy of {bytes} bytes"), &script);
    }
    let (listen, connect) = meeting();
    let script = on_a_terminal(&format!("'{host}' {connect}"), &format!("'{dpu}' {listen}"));
    checks.join(model, "example dma_copy of 1 GiB on a terminal shows its progress", &script);
    let (listen, connect) = meeting();
    let script = format!(
        "said=$($MODEL run --profile bluefield3 --topology \
             --dpu \"'{dpu}' -r pf9hpf {listen} --out /dev/null\" -- \
             timeout 5 '{host}' {connect} /dev/null 2>&1) && exit 1\n\
         grep 'pf9hpf is none of .* pf0hpf' <<<\"$said\""
    );
    checks.join(model, "example dma_copy lists the representors if -r names none", &script);
    Ok(())
}

/// A script that copies 1 GiB on a pseudo-terminal, and looks for the bar there.
fn on_a_terminal(host: &str, dpu: &str) -> String {
    let file = target().join(format!("xtask-{}-terminal", std::process::id()));
    let file = file.display();
    format!(
        "seq 999999999 | head -c 1G > '{file}'\n\
         run=\"$MODEL run --profile bluefield3 --dpu \\\"{dpu} --out '{file}.got'\\\" -- \
             {host} '{file}'\"\n\
         said=$(script --quiet --return --command \"$run\" /dev/null) && \
             cmp '{file}' '{file}.got' && grep -q '1.00 GiB [0-9.]* .iB/s' <<<\"$said\"\n\
         code=$?; rm -f '{file}' '{file}.got'; [ $code = 0 ] || echo \"$said\"; exit $code"
    )
}

/// The cases over links that lose, duplicate and delay frames. It fails unless each fault has
/// happened.
fn lossy_process(model: &Path, process: &Path, link: &str) -> Command {
    const PLAN: &str = "tests/suite/lossy.toml";
    let name = format!("xtask-{}-lossy-{link}", std::process::id());
    let (binary, process) = (model.display(), process.display());
    let script = format!(
        "{process} --device mlx5_0 --faults {PLAN} --expect 'process run lossy' || exit 1\n\
         {binary} ctl {name} show | tee /dev/stderr >seen || exit 1\n\
         for what in lost duplicated delayed; do\n\
             grep -q \" $what\" seen || {{ echo \"no frame was $what\"; exit 1; }}\n\
         done"
    );
    let script = script.replace("seen", &format!("target/{name}.txt"));
    let mut command = Command::new(model);
    command.args(["run", "--name", &name, "--devices", "2", "--link", link, "--faults", PLAN]);
    command.args(["--", "sh", "-c", &script]).current_dir(crate::workspace::workspace_root());
    command
}

/// A script that starts the server of `kv`, sets a key, changes it, and reads it, each in its own
/// process. The first client retries until the server listens.
fn key_value(kv: &Path) -> String {
    let (kv, address) = (kv.display(), "127.0.0.1:18810");
    format!(
        "{kv} serve {address} & server=$!; result=1\n\
         for try in $(seq 100); do\n\
             sleep 0.1; kill -0 $server || break\n\
             if {kv} {address} set apple red; then result=0; break; fi\n\
         done\n\
         {kv} {address} set apple green || result=1\n\
         test \"$({kv} {address} get apple)\" = green || result=1\n\
         {kv} {address} get pear && result=1\n\
         kill $server; wait $server; exit $result"
    )
}

/// The conformance suite, which sees the modelled devices as the kernel's.
pub(crate) fn conformance() -> Result<Command> {
    let model = model()?;
    let suite = program("hwtest")?;
    let mut command = Command::new(model);
    command
        .args(["run", "--devices", "2", "--"])
        .arg(suite)
        .args(["--device", "mlx5_0", "--expect", "run"]);
    Ok(command)
}

/// Checks that run one after the other, and their results.
#[derive(Default)]
pub(crate) struct Checks {
    passed: u64,
    failed: u64,
}

impl Checks {
    /// Runs a script under the model; it passes if it succeeds and no process outlives its
    /// programs.
    pub(crate) fn run(&mut self, model: &PathBuf, options: &[&str], name: &str, script: &str) {
        let mut command = within_limit();
        command.arg(model).arg("run").args(options).args(["--", "bash", "-c", script]);
        self.check(name, command);
    }

    /// Runs a script that starts the model itself, as `$MODEL`.
    pub(crate) fn join(&mut self, model: &PathBuf, name: &str, script: &str) {
        let mut command = within_limit();
        command.args(["bash", "-c", script]).env("MODEL", model);
        self.check(name, command);
    }

    pub(crate) fn outcome(&self) -> Outcome {
        Outcome::ran(self.passed, self.failed)
    }

    fn check(&mut self, name: &str, mut command: Command) {
        let output = command.stdin(Stdio::null()).output();
        let (good, text) = match output {
            Ok(output) => {
                let errors = String::from_utf8_lossy(&output.stderr).to_string();
                let text = format!("{}{errors}", String::from_utf8_lossy(&output.stdout));
                (output.status.success() && !errors.contains("outlive"), text)
            }
            Err(error) => (false, error.to_string()),
        };
        println!("{}  {name}", if good { "pass" } else { "FAIL" });
        if good {
            self.passed += 1;
        } else {
            self.failed += 1;
            println!("{text}");
        }
    }
}

/// The beginning of a command with a time limit.
fn within_limit() -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", LIMIT]);
    command
}

/// A script that runs a server and its client, and succeeds if both do.
fn both(command: &str, port: usize) -> String {
    both_of(&format!("{command} -p {port}"), &format!("{command} -p {port} localhost"))
}

/// The client retries until the server listens.
pub(crate) fn both_of(server: &str, client: &str) -> String {
    format!(
        "{server} >/dev/null & server=$!; result=1\n\
         for try in $(seq 100); do\n\
             sleep 0.1; kill -0 $server 2>/dev/null || break\n\
             if {client}; then result=0; break; fi\n\
         done\n\
         wait $server && exit $result"
    )
}

/// Packages of the programs that steps of `cargo xtask test` run in release mode.
const PACKAGES: [&str; 9] = [
    "verbless-model-host",
    "verbless-conformance",
    "verbless-chaos",
    "verbless-process",
    "verbless-rxe",
    "verbless-model-kernel",
    "verbless",
    "verbless-doca",
    "verbless-flexio",
];
/// The examples among them, with those that [`dpa::examples`](crate::dpa::examples) names.
const EXAMPLES: [&str; 20] = [
    "bridge",
    "busy",
    "dma_copy_dpu",
    "dma_copy_host",
    "graph",
    "growth",
    "kv",
    "perf",
    "rdma_get",
    "rdma_send_imm_receiver",
    "rdma_send_imm_sender",
    "rdma_serve",
    "rdma_write_requester",
    "rdma_write_responder",
    "representors",
    "speed",
    "stepped",
    "sync_event_dpu",
    "sync_event_host",
    "verbs_peer",
];

/// Benchmarks that count the instructions of users' release builds.
const BENCHES: [&str; 2] = ["jobs", "rdma"];

/// The program that runs others on the model; returns its path.
pub(crate) fn model() -> Result<PathBuf> {
    program("verbless-model")
}

/// The path of one of our programs in release mode, by its path below the release directory.
pub(crate) fn program(path: &str) -> Result<PathBuf> {
    let status = programs()?.arg("--quiet").current_dir(workspace_root()).status()?;
    if !status.success() {
        return Err(format!("{path} does not build").into());
    }
    Ok(target().join("release").join(path))
}

/// cargo, with arguments that build all of our programs in release mode. One build does all:
/// features of shared crates depend on the programs in a build, so single builds would compile most
/// crates several times.
pub(crate) fn programs() -> Result<Command> {
    let mut cargo = cargo();
    cargo
        .args(["build", "--release", "--bins"])
        .args(EXAMPLES.iter().flat_map(|example| ["--example", example]))
        .args(crate::dpa::examples::names()?.iter().flat_map(|example| ["--example", example]))
        .args(BENCHES.iter().flat_map(|bench| ["--bench", bench]))
        .args(PACKAGES.iter().flat_map(|package| ["--package", package]));
    Ok(cargo)
}

/// Where cargo builds.
pub(crate) fn target() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    target.unwrap_or_else(|| workspace_root().join("target"))
}

pub(crate) fn on_the_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}
