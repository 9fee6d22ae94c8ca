//! The program itself: its exit code, its children, its signals, its end.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::{command, run};

#[test]
fn the_programs_exit_code_is_ours() {
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
fn a_program_starts_with_the_signals_and_the_priority_that_it_had_without_us() {
    let prints = |program: &[&str]| {
        let ours = command(&[], program).output().expect("the binary runs").stdout;
        let without = Command::new(program[0]).args(&program[1..]).output().expect("it runs");
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
    let mut lines = BufReader::new(child.stdout.take().expect("captured")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "ready");
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("it is there");
    assert_eq!(lines.next().expect("a line").expect("text"), "caught");
    assert_eq!(child.wait().expect("it ends").code(), Some(5));
}

#[test]
fn signals_reach_the_command_on_the_dpu_side_too() {
    let script =
        |code| format!("trap 'exit {code}' TERM; echo ready; while :; do sleep 0.05; done");
    let mut child = command(&["--dpu", &script(6)], &["sh", "-c", &script(0)])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let lines = BufReader::new(child.stdout.take().expect("captured")).lines();
    assert_eq!(lines.take(2).filter_map(Result::ok).collect::<Vec<_>>(), ["ready", "ready"]);
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("it is there");
    assert_eq!(child.wait().expect("it ends").code(), Some(6));
}

#[test]
fn who_uses_a_device_does_not_survive_a_run_that_is_killed() {
    // A child of the program's, in a session of its own, which has a device open.
    let user = "exec 5<>/dev/infiniband/uverbs0; echo $$; exec sleep 300";
    let script = format!("setsid sh -c '{user}' & wait");
    let mut run = command(&[], &["sh", "-c", &script])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut line = String::new();
    let mut output = BufReader::new(run.stdout.take().expect("captured"));
    output.read_line(&mut line).expect("a line");
    let pid: u32 = line.trim().parse().expect("a process");
    // It is in its last program.
    let name = |pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let start = std::time::Instant::now();
    let wait = |what: &str, is: &dyn Fn() -> bool| {
        while !is() {
            assert!(start.elapsed().as_secs() < 20, "{what}");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    };
    wait("it sleeps", &|| name(pid) == "sleep\n");
    run.kill().expect("it is ours");
    run.wait().expect("it ends");
    let state = || {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        text.rsplit_once(") ").map(|(_, rest)| rest.chars().next())
    };
    wait("it is killed", &|| matches!(state(), None | Some(Some('Z' | 'X'))));
    // Nobody holds what the run printed to either, the guardian included.
    line.clear();
    assert_eq!(output.read_line(&mut line).expect("the end"), 0, "{line}");
}

#[test]
fn what_a_program_had_open_at_its_death_is_closed_before_the_run_ends() {
    for _ in 0..10 {
        let output = run(&[], "exec 5<>/dev/infiniband/uverbs0; kill -9 $$");
        assert_eq!(output.status.code(), Some(128 + 9));
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
}

#[test]
fn a_run_within_a_run_says_plainly_why_it_cannot_be() {
    let binary = env!("CARGO_BIN_EXE_verbless-model");
    let output = command(&[], &[binary, "run", "--", "true"]).output().expect("the binary runs");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("within another run"), "{text}");
}
