//! Runs this project's programs on DOCA RDMA: one connects to a program on libibverbs, the samples
//! of the guide connect to each other, and clients connect to a file server. The steps `run: peers`
//! and `VM: peers` of `cargo xtask test`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::outcome::Outcome;
use crate::run::{Checks, model, on_the_path, program, target};
use crate::workspace::{Result, workspace_root};

/// Compiles the program on libibverbs; returns its path, or why there is none.
fn rdma_peer() -> Result<std::result::Result<PathBuf, String>> {
    let header = "/usr/include/infiniband/verbs.h";
    if !on_the_path("cc") || !Path::new(header).exists() {
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

/// The samples of the guide's chapter 6, in pairs: responder and requester.
const SAMPLES: [(&str, &str); 2] = [
    ("rdma_write_responder", "rdma_write_requester"),
    ("rdma_send_imm_receiver", "rdma_send_imm_sender"),
];
const LINKS: [&str; 2] = ["infiniband", "ethernet"];

fn example(name: &str) -> Result<String> {
    Ok(program(&format!("examples/{name}"))?.display().to_string())
}

/// Runs all programs under `verbless-model run`.
pub(crate) fn under_run() -> Result<Outcome> {
    let peer = match rdma_peer()? {
        Ok(peer) => peer,
        Err(why) => return Ok(Outcome::Skipped(why)),
    };
    let model = model()?;
    let mut checks = Checks::default();
    with_libibverbs(&model, &peer, &mut checks)?;
    samples(&model, &mut checks)?;
    files(&model, &mut checks)?;
    Ok(checks.outcome())
}

/// A program on libibverbs as the peer, on both kinds of port, on the same device and on another.
fn with_libibverbs(model: &PathBuf, peer: &Path, checks: &mut Checks) -> Result<()> {
    let (peer, endpoint) = (peer.display(), example("verbs_peer")?);
    for (number, link) in LINKS.into_iter().enumerate() {
        for device in ["mlx5_0", "mlx5_1"] {
            let port = 18640 + 2 * number + usize::from(device == "mlx5_1");
            let script = format!(
                "timeout 60 '{endpoint}' -d mlx5_0 --listen 127.0.0.1:{port} & other=$!\n\
                 timeout 60 '{peer}' {port} {device}; code=$?\n\
                 wait $other && exit $code"
            );
            let name = format!("libibverbs on {device}, DOCA RDMA on mlx5_0 ({link})");
            checks.run(model, &["--devices", "2", "--link", link], &name, &script);
        }
    }
    Ok(())
}

/// The samples between two devices. Either side starts first.
fn samples(model: &PathBuf, checks: &mut Checks) -> Result<()> {
    let mut port = 18660;
    for link in LINKS {
        for (asked, asks) in SAMPLES {
            for (first, second) in [(asked, asks), (asks, asked)] {
                port += 1;
                let (one, other) = (example(first)?, example(second)?);
                let script = format!(
                    "'{one}' -d mlx5_0 --listen 127.0.0.1:{port} & other=$!\n\
                     '{other}' -d mlx5_1 --connect 127.0.0.1:{port}; code=$?\n\
                     wait $other && exit $code"
                );
                let name = format!("{first} and then {second} ({link})");
                checks.run(model, &["--devices", "2", "--link", link], &name, &script);
            }
        }
    }
    Ok(())
}

/// A link so slow that a file of some MiB takes a while.
const SLOW: &str = "[[link]]\nbandwidth = \"400Mb/s\"\nloopback = true\n";

/// A file server and its clients.
fn files(model: &PathBuf, checks: &mut Checks) -> Result<()> {
    let (serve, get) = (example("rdma_serve")?, example("rdma_get")?);
    let folder = target().join(format!("xtask-{}-files", std::process::id()));
    let dir = folder.join("dir");
    std::fs::create_dir_all(&dir)?;
    for (name, length) in [("empty", 0), ("one", 1), ("some", 5_000_000), ("long", 30_000_000)] {
        let bytes: Vec<u8> = (0_u32..length).map(|at| (at * 7 + (at >> 8)) as u8).collect();
        std::fs::write(dir.join(name), bytes)?;
    }
    std::fs::write(folder.join("slow.toml"), SLOW)?;
    std::os::unix::fs::symlink("/etc/passwd", dir.join("out"))?;
    let (plan, here) = (folder.join("slow.toml").display().to_string(), folder.display());
    let mut port = 18680;
    let mut with_server = |commands: &str| {
        port += 1;
        format!(
            "cd '{here}'; at=127.0.0.1:{port}\n\
             serve() {{ '{serve}' dir --listen $at & server=$!; sleep 0.5; }}\n\
             get='{get}'; get() {{ timeout 60 \"$get\" $at \"$@\"; }}\n\
             part() {{ until [ \"$(stat -c %s $1.part 2>/dev/null || echo 0)\" -gt 8000000 ]; do \
             kill -0 $2 || return 1; sleep 0.01; done; }}\n\
             serve; {commands}; code=$?; kill $server; rm -f got*; exit $code"
        )
    };
    for name in ["empty", "one", "some"] {
        let script = with_server(&format!("get {name} --out got && cmp got dir/{name}"));
        checks.run(model, &[], &format!("rdma_get {name}"), &script);
    }
    let both = "get some --out got1 & other=$!; get long --out got2 && wait $other && \
                cmp got1 dir/some && cmp got2 dir/long";
    checks.run(model, &["--link", "ethernet"], "two clients at once", &with_server(both));
    let refused = "! get ../slow.toml --out got && ! get out --out got && ! get none --out got && \
                   [ ! -e got ] && get one --out got && cmp got dir/one";
    checks.run(model, &[], "names that are not served", &with_server(refused));
    let zeros = [&[0, 0, 0, 69, b'C'][..], &[0; 68]].concat();
    let hostile: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\n\r\n",
        // A length without its data, a greeting of zeros, a short one, one of 4 GiB, and a request
        // without a greeting.
        &[0, 0, 1],
        &zeros,
        &[0, 0, 0, 5, b'C', 1, 2, 3, 4],
        &[0xff, 0xff, 0xff, 0xff, b'C'],
        &[0, 0, 0, 4, b'O', b'o', b'n', b'e'],
    ];
    for (number, bytes) in hostile.iter().enumerate() {
        std::fs::write(folder.join(format!("hostile.{number}")), bytes)?;
    }
    let sent = "for it in hostile.*; do exec 3<>/dev/tcp/${at/:/\\/} && cat $it >&3; \
                timeout 1 cat <&3 >/dev/null; exec 3>&-; done; \
                kill -0 $server && get one --out got && cmp got dir/one";
    checks.run(model, &[], "clients that send invalid requests", &with_server(sent));
    let slow = ["--faults", &plan];
    let restart = "get long --out got & client=$!; part got $client && kill -9 $server && serve && \
                   wait $client && cmp got dir/long";
    checks.run(model, &slow, "the server is killed and restarted", &with_server(restart));
    let again = "\"$get\" $at long --out got & client=$!; part got $client && kill -9 $client && \
                 get long --out got && cmp got dir/long";
    checks.run(model, &slow, "a client is killed and restarted", &with_server(again));
    let other = "\"$get\" $at long --out got1 & one=$!; get long --out got2 & two=$!; \
                 part got1 $one && kill -9 $one; wait $two && cmp got2 dir/long";
    checks.run(model, &slow, "a client is killed, and another continues", &with_server(other));
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

/// The files and the program of the guest of `VM: peers`. The programs are linked with this
/// machine's C library, and use the guest's there: the guest's must not be older.
pub(crate) fn in_a_guest() -> Result<std::result::Result<Vec<String>, String>> {
    let peer = match rdma_peer()? {
        Ok(peer) => peer.display().to_string(),
        Err(why) => return Ok(Err(why)),
    };
    let mut words = vec!["--with-rdma-core".to_owned()];
    let examples = SAMPLES.into_iter().flat_map(|(asked, asks)| [asked, asks]);
    for name in examples.chain(["verbs_peer"]) {
        words.extend(["--carry".to_owned(), example(name)?]);
    }
    let hwtest = program("hwtest")?.display().to_string();
    words.extend(["--carry".to_owned(), hwtest, "--carry".to_owned(), peer, "--".to_owned()]);
    words.push(workspace_root().join("tests/clients/peers.sh").display().to_string());
    Ok(Ok(words))
}
