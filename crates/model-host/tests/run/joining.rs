//! Programs that join a run, and `ctl` during a run.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::{client, command, model, output_of, skipped};

/// A run with a name, whose program waits for its input to end.
pub(super) struct Host {
    pub(super) name: String,
    child: Child,
}

impl Host {
    pub(super) fn start(what: &str, options: &[&str], script: &str) -> Self {
        let name = format!("{what}-{}", std::process::id());
        let script = format!("echo ready; {script}");
        let mut child = command(&[options, &["--name", &name]].concat(), &["sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let mut line = String::new();
        let output = child.stdout.as_mut().expect("the output is piped");
        BufReader::new(output).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        Self { name, child }
    }

    pub(super) fn join(&self, options: &[&str], script: &str) -> Command {
        command(&[options, &["--join", &self.name]].concat(), &["sh", "-c", script])
    }

    /// Ends its program; returns the exit code.
    pub(super) fn end(mut self) -> Option<i32> {
        drop(self.child.stdin.take());
        self.child.wait().expect("the process ends").code()
    }
}

#[test]
fn ctl_changes_links_and_devices_of_run() {
    if Command::new("ibv_devinfo").arg("--help").output().is_err() {
        return skipped("there is no ibv_devinfo here");
    }
    let host = Host::start("ctl", &[], "read line; exit 0");
    let ctl = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_verbless-model"));
        let output =
            command.args(["ctl", &host.name]).args(words).output().expect("the command runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let state = || {
        let output =
            host.join(&[], "ibv_devinfo | grep state:").output().expect("the command runs");
        String::from_utf8(output.stdout).unwrap().trim().to_string()
    };
    let silent = (Some(0), String::new());
    assert_eq!(state(), "state:\t\t\tPORT_ACTIVE (4)");
    assert_eq!(ctl(&["down", "0"]), silent);
    assert_eq!(state(), "state:\t\t\tPORT_DOWN (1)");
    assert!(ctl(&["show"]).1.starts_with("device 0 (Host) port 1: down; out 0 frames"));
    assert_eq!(ctl(&["reset"]), silent);
    assert_eq!(state(), "state:\t\t\tPORT_ACTIVE (4)");
    let file = std::env::temp_dir().join(format!("verbless-{}-ctl.toml", std::process::id()));
    std::fs::write(&file, "[[link]]\nup = false\n").unwrap();
    assert_eq!(ctl(&["apply", file.to_str().unwrap()]), silent);
    assert_eq!(state(), "state:\t\t\tPORT_DOWN (1)");
    std::fs::write(&file, "\nlink = 1").unwrap();
    let wrong = ctl(&["apply", file.to_str().unwrap()]);
    std::fs::remove_file(&file).unwrap();
    let expected = "verbless-model: the run refuses: line 2: link is a list of entries: write \
        [[link]]\n";
    assert_eq!(wrong, (Some(1), expected.into()));
    let expected = "verbless-model: the run refuses: there is no device 7: there are 2, numbered \
        from 0\n";
    assert_eq!(ctl(&["kill", "7"]), (Some(1), expected.into()));
    assert_eq!(ctl(&["kill", "0"]), silent);
    assert!(ctl(&["show"]).1.starts_with("device 0 (Host, dead) port 1: down"));
    let (name, ended) = (host.name.clone(), host.end());
    assert_eq!(ended, Some(0));
    let mut late = Command::new(env!("CARGO_BIN_EXE_verbless-model"));
    let late = late.args(["ctl", &name, "show"]).output().expect("the command runs");
    assert!(String::from_utf8_lossy(&late.stderr).contains(&format!("no run named {name}")));
}

#[test]
fn ctl_changes_devices_of_pci_server() {
    let name = format!("pci-{}", std::process::id());
    let socket = std::env::temp_dir().join(format!("verbless-{name}"));
    let serve = ["pci", "--socket", socket.to_str().unwrap(), "--name", &name];
    let mut server = Command::new(env!("CARGO_BIN_EXE_verbless-model"));
    let mut server = server.args(serve).spawn().expect("the binary runs");
    let ctl = |words: &[&str]| model(&[&["ctl", &name][..], words].concat());
    let silent = (Some(0), String::new());
    let start = std::time::Instant::now();
    while ctl(&["show"]).0 != Some(0) {
        assert!(start.elapsed().as_secs() < 20, "the host did not answer");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(ctl(&["down", "0"]), silent);
    assert!(ctl(&["show"]).1.starts_with("device 0 (Host) port 1: down; out 0 frames"));
    assert_eq!(ctl(&["kill", "0"]), silent);
    assert!(ctl(&["show"]).1.starts_with("device 0 (Host, dead) port 1: down"));
    let (status, text) = ctl(&["fail-qp", "0", "0x45"]);
    assert!(status == Some(1) && text.contains("device 0 has no QP 0x45"), "{text}");
    let (status, text) = model(&["run", "--join", &name, "--", "true"]);
    let expected = "verbless-model: the run refuses: it serves PCI devices to virtual machines, \
        which no program can join\n";
    assert_eq!((status, &*text), (Some(1), expected));
    let mut again = serve;
    let other = format!("{}-other", socket.display());
    again[2] = &other;
    let (status, text) = model(&again);
    assert!(status == Some(1) && text.contains("you already have a run named"), "{text}");
    server.kill().expect("the server is a child of this process");
    server.wait().expect("the process ends");
    assert!(ctl(&["show"]).1.contains(&format!("no run named {name}")));
    let _ = std::fs::remove_file(socket);
}

#[test]
fn joined_program_sees_devices_of_its_side() {
    let host = Host::start("sides", &["--devices", "2"], "read line; exit 3");
    let guid = "cat /sys/class/infiniband/*/node_guid";
    let joined = |options: &[&str]| {
        let output = host.join(options, guid).output().expect("the binary runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let same = joined(&[]);
    assert_eq!(same, output_of(&["--devices", "2"], guid) + "\n");
    let other = joined(&["--side", "dpu"]);
    assert_eq!(other.lines().count(), 2);
    assert!(other.lines().all(|guid| !same.contains(guid)), "{same}{other}");
    assert_eq!(host.join(&[], "exit 7").status().expect("the program ends").code(), Some(7));
    assert_eq!(host.end(), Some(3));
}

#[test]
fn pingpong_crosses_sides_of_joined_runs() {
    if Command::new("ibv_rc_pingpong").arg("--help").output().is_err() {
        return skipped("there is no ibv_rc_pingpong here");
    }
    let pingpong = "ibv_rc_pingpong -c -e -n 100 -p 18652";
    let host = Host::start("pingpong", &[], &format!("exec {pingpong} >&2"));
    let script = client(&format!("{pingpong} localhost"));
    let joined = host.join(&["--side", "dpu"], &script).output().expect("the binary runs");
    let text = String::from_utf8_lossy(&joined.stdout);
    assert!(joined.status.success(), "{text}{}", String::from_utf8_lossy(&joined.stderr));
    assert!(text.contains("100 iters"), "{text}");
    assert_eq!(host.end(), Some(0));
}

#[test]
fn devices_live_until_last_joined_program() {
    let host = Host::start("last", &[], "read line; true");
    let mut last = host
        .join(&[], "echo in; read line; exec 5<>/dev/infiniband/uverbs0 && echo open")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut lines = BufReader::new(last.stdout.take().expect("the output is piped")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "in");
    let name = host.name.clone();
    let ending = std::thread::spawn(|| host.end());
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(!ending.is_finished(), "a joined program is left");
    drop(last.stdin.take());
    assert_eq!(lines.next().expect("a line").expect("text"), "open");
    assert!(last.wait().expect("the process ends").success());
    assert_eq!(ending.join().expect("no panic"), Some(0));
    let late = command(&["--join", &name], &["true"]).output().expect("the binary runs");
    let text = String::from_utf8_lossy(&late.stderr);
    assert!(text.contains(&format!("--name {name}")), "{text}");
    assert_eq!(late.status.code(), Some(1));
}

#[test]
fn joined_program_fails_when_host_is_killed() {
    let mut host = Host::start("killed", &[], "read line");
    let mut joined = host
        .join(&[], "echo in; exec sleep 100")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut line = String::new();
    let output = joined.stdout.as_mut().expect("the output is piped");
    BufReader::new(output).read_line(&mut line).expect("a line");
    host.child.kill().expect("the host process exists");
    host.child.wait().expect("the process ends");
    let joined = joined.wait_with_output().expect("the process ends");
    let errors = String::from_utf8_lossy(&joined.stderr);
    assert!(errors.contains("the joined run ended"), "{errors}");
    assert_eq!(joined.status.code(), Some(1));
}

#[test]
fn sigterm_reaches_joined_program() {
    let host = Host::start("signals", &[], "read line");
    let again = command(&["--name", &host.name], &["true"]).output().expect("the binary runs");
    let text = String::from_utf8_lossy(&again.stderr);
    assert!(text.contains(&format!("--join {}", host.name)), "{text}");
    let script = "trap 'exit 5' TERM; echo in; while :; do sleep 0.05; done";
    let mut joined =
        host.join(&[], script).stdout(Stdio::piped()).spawn().expect("the binary runs");
    let mut line = String::new();
    let output = joined.stdout.as_mut().expect("the output is piped");
    BufReader::new(output).read_line(&mut line).expect("a line");
    let pid = nix::unistd::Pid::from_raw(joined.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("the process exists");
    assert_eq!(joined.wait().expect("the process ends").code(), Some(5));
    assert_eq!(host.end(), Some(1), "`read` met the end of its input");
}
