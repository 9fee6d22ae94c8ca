//! The program itself: its exit code, its children, its signals, its end.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::{command, fuse, run, skipped};

#[test]
fn run_exits_with_the_code_of_the_program() {
    assert_eq!(run(&[], "exit 7").status.code(), Some(7));
    assert_eq!(run(&[], "kill -9 $$").status.code(), Some(128 + 9));
    let missing = command(&[], &["/no/such/program"]).output().expect("the binary runs");
    assert_eq!(missing.status.code(), Some(127));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("/no/such/program"));
}

#[test]
fn children_see_the_devices_too_and_are_waited_for() {
    let script = "(sleep 0.2; cat /sys/class/infiniband/mlx5_0/node_type) & exit 3";
    let output = run(&[], script);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1: CA\n");
}

#[test]
fn program_inherits_signal_mask_and_priority() {
    let prints = |program: &[&str]| {
        let ours = command(&[], program).output().expect("the binary runs").stdout;
        let without =
            Command::new(program[0]).args(&program[1..]).output().expect("the command runs");
        assert!(!without.stdout.is_empty());
        (String::from_utf8(ours), String::from_utf8(without.stdout))
    };
    for program in [&["grep", "SigBlk", "/proc/self/status"][..], &["nice"]] {
        let (ours, without) = prints(program);
        assert_eq!(ours, without, "{program:?}");
    }
}

#[test]
fn signals_reach_the_program() {
    let script = "trap 'echo caught; exit 5' TERM; echo ready; while :; do sleep 0.05; done";
    let mut child = command(&[], &["sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut lines = BufReader::new(child.stdout.take().expect("the output is piped")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "ready");
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("the process exists");
    assert_eq!(lines.next().expect("a line").expect("text"), "caught");
    assert_eq!(child.wait().expect("the process ends").code(), Some(5));
}

#[test]
fn signals_reach_the_command_on_the_dpu_side_too() {
    let script =
        |code| format!("trap 'exit {code}' TERM; echo ready; while :; do sleep 0.05; done");
    let mut child = command(&["--dpu", &script(6)], &["sh", "-c", &script(0)])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let lines = BufReader::new(child.stdout.take().expect("the output is piped")).lines();
    assert_eq!(lines.take(2).filter_map(Result::ok).collect::<Vec<_>>(), ["ready", "ready"]);
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("the process exists");
    assert_eq!(child.wait().expect("the process ends").code(), Some(6));
}

#[test]
fn device_user_dies_with_killed_run() {
    // A child of the program in its own session, with a device open.
    let user = "exec 5<>/dev/infiniband/uverbs0; echo $$; exec sleep 300";
    let script = format!("setsid sh -c '{user}' & wait");
    let mut run = command(&[], &["sh", "-c", &script])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut line = String::new();
    let mut output = BufReader::new(run.stdout.take().expect("the output is piped"));
    output.read_line(&mut line).expect("a line");
    let pid: u32 = line.trim().parse().expect("a process");
    // The child ends up in `sleep`.
    let name = |pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let start = std::time::Instant::now();
    let wait = |what: &str, is: &dyn Fn() -> bool| {
        while !is() {
            assert!(start.elapsed().as_secs() < 20, "{what}");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    };
    wait("the program sleeps", &|| name(pid) == "sleep\n");
    run.kill().expect("the run is a child of this process");
    run.wait().expect("the process ends");
    wait("the program is killed", &|| has_ended(pid));
    // No process holds the output pipe of the run either, the guardian included.
    line.clear();
    assert_eq!(output.read_line(&mut line).expect("the end"), 0, "{line}");
}

/// Sends SIGTERM to a run.
fn terminate(run: &std::process::Child) {
    let pid = nix::unistd::Pid::from_raw(run.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("the process exists");
}

/// Whether a process has ended.
fn has_ended(pid: impl std::fmt::Display) -> bool {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    text.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}

#[test]
fn sigterm_ends_run_with_live_daemon() {
    // The last daemon ignores SIGTERM, as its parent does.
    for (script, second) in [
        ("setsid sleep 300 >/dev/null & echo $!; exit 4", false),
        // A daemon with the name of `run`'s own child.
        (
            "setsid sh -c 'echo verbless-guard > /proc/$$/comm; sleep 300; :' >/dev/null & \
             echo $!; exit 4",
            false,
        ),
        ("trap '' TERM; sleep 300 >/dev/null & echo $!; sleep 300; exit 4", true),
    ] {
        let mut run = command(&[], &["sh", "-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let mut line = String::new();
        let mut output = BufReader::new(run.stdout.take().expect("the output is piped"));
        output.read_line(&mut line).expect("a line");
        let daemon = line.trim();
        std::thread::sleep(std::time::Duration::from_millis(500));
        assert!(run.try_wait().expect("a child").is_none(), "the daemon lives: {script}");
        let start = std::time::Instant::now();
        terminate(&run);
        if second {
            std::thread::sleep(std::time::Duration::from_millis(500));
            assert!(run.try_wait().expect("a child").is_none(), "the program lives");
            terminate(&run);
        }
        let status = run.wait().expect("the process ends");
        assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
        assert_eq!(status.code(), Some(if second { 128 + 9 } else { 4 }));
        assert!(has_ended(daemon), "{script}");
    }
}

/// Starts a program in Python; `None`: Python is not installed.
fn python(script: &str) -> Option<Command> {
    let exists = std::path::Path::new("/usr/bin/python3").exists();
    if !exists {
        skipped("there is no python3");
    }
    exists.then(|| command(&[], &["/usr/bin/python3", "-c", script]))
}

#[test]
fn run_ends_when_a_chdir_is_cut_short() {
    let script = "import os, sys, threading, time\n\
        def end():\n time.sleep(float(sys.argv[1])); os.kill(os.getpid(), 9)\n\
        threading.Thread(target=end).start()\n\
        while True: os.chdir('/sys/class/infiniband')";
    for round in 0..20 {
        let Some(mut run) = python(script) else { return };
        let delay = f64::from(2000 + round * 137) / 1e6;
        let mut run = run.arg(delay.to_string()).spawn().expect("the binary runs");
        let start = std::time::Instant::now();
        let status = loop {
            if let Some(status) = run.try_wait().expect("a child") {
                break status;
            }
            if start.elapsed().as_secs() > 20 {
                run.kill().and_then(|()| run.wait()).expect("a child");
                panic!("round {round} does not end");
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        };
        assert_eq!(status.code(), Some(128 + 9), "{round}");
    }
}

#[test]
fn status_is_kept_where_sigchld_is_ignored() {
    let script = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); \
        os.execv(sys.argv[1], sys.argv[1:])";
    let binary = env!("CARGO_BIN_EXE_verbless-model");
    let program = "import signal, sys; \
        sys.exit(3 if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN else 4)";
    let output = Command::new("/usr/bin/python3")
        .args(["-c", script, binary, "run", "--", "/usr/bin/python3", "-c", program])
        .output();
    let Ok(output) = output else { return skipped("there is no python3") };
    assert_eq!(output.status.code(), Some(3), "it ignores SIGCHLD, too: {output:?}");
}

#[test]
fn sigterm_ends_a_run_stuck_in_its_own_fuse() {
    let Some(place) = fuse::MountPoint::new("stuck") else { return };
    let script = format!(
        "setsid /usr/bin/python3 {} {} & sleep 1; echo $$; exec cat {}",
        fuse::SERVER,
        place.path().display(),
        place.path().join("file").display()
    );
    let mut run = command(&[], &["sh", "-c", &script])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut output = BufReader::new(run.stdout.take().expect("the output is piped"));
    let mut lines = [String::new(), String::new()];
    lines.iter_mut().for_each(|line| drop(output.read_line(line)));
    let [up, program] = lines;
    let waits = || std::fs::read_to_string(format!("/proc/{}/wchan", program.trim()));
    let start = std::time::Instant::now();
    while up == "up\n" && waits().is_ok_and(|it| !it.contains("wait_answer")) {
        if start.elapsed().as_secs() > 20 {
            break;
        }
        std::thread::yield_now();
    }
    let start = std::time::Instant::now();
    terminate(&run);
    while run.try_wait().expect("a child").is_none() && start.elapsed().as_secs() < 30 {
        // The second SIGTERM waits for no program.
        std::thread::sleep(std::time::Duration::from_millis(500));
        if run.try_wait().expect("a child").is_none() {
            terminate(&run);
        }
    }
    let elapsed = start.elapsed();
    run.kill().and_then(|()| run.wait()).expect("a child");
    if up != "up\n" {
        return skipped("FUSE cannot be mounted here");
    }
    assert!(elapsed.as_secs() < 15, "{elapsed:?}");
    assert!(has_ended(program.trim()));
}

#[test]
fn devices_of_killed_program_close_before_run_ends() {
    for _ in 0..10 {
        let output = run(&[], "exec 5<>/dev/infiniband/uverbs0; kill -9 $$");
        assert_eq!(output.status.code(), Some(128 + 9));
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
}

#[test]
fn nested_run_is_rejected() {
    let binary = env!("CARGO_BIN_EXE_verbless-model");
    let output = command(&[], &[binary, "run", "--", "true"]).output().expect("the binary runs");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("within another run"), "{text}");
}
