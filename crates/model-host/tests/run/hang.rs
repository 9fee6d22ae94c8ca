//! Programs whose memory never arrives: other programs continue.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::escape::{ATTACK, socket_of, start_named_run};
use super::fuse::Server;
use super::{command, skipped};

const HANG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run/hang.py");

/// Starts a run whose program hangs in `threads` and then runs `then`. `None`: no userfaultfd here
/// that blocks the kernel.
fn hanging(threads: &str, then: &str) -> Option<(Child, BufReader<ChildStdout>)> {
    let script = format!(
        "/usr/bin/python3 {HANG} {threads} > /tmp/hang-$$ & pid=$!; \
         for i in $(seq 600); do sleep 0.1; test -s /tmp/hang-$$ && break; done; sleep 1; \
         head -n 1 /tmp/hang-$$; rm /tmp/hang-$$; {then}; kill -9 $pid 2>/dev/null; wait"
    );
    let mut run = command(&[], &["sh", "-c", &script])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut output = BufReader::new(run.stdout.take().expect("piped"));
    let mut line = String::new();
    output.read_line(&mut line).expect("text");
    if line != "hangs\n" {
        run.wait().expect("the process ends");
        skipped("userfaultfd is not allowed, or there is no python3");
        return None;
    }
    Some((run, output))
}

fn line(output: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    output.read_line(&mut line).expect("text");
    line
}

#[test]
fn absent_memory_stalls_no_other_program() {
    let others = "cat /sys/class/infiniband/mlx5_0/node_type; exec 5<>/dev/infiniband/uverbs0; \
        stat -c %F /dev/infiniband/uverbs0";
    let Some((mut run, mut output)) = hanging("9", others) else { return };
    let start = Instant::now();
    assert_eq!(line(&mut output), "1: CA\n");
    assert_eq!(line(&mut output), "character special file\n");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert!(run.wait().expect("the process ends").success());
}

#[test]
fn hung_file_server_does_not_stall_others() {
    let Some(server) = Server::start("hang") else { return };
    let others = "cat /sys/class/infiniband/mlx5_0/node_type; stat -c %F /dev/infiniband/uverbs0";
    let threads = format!("9 {}", server.file().display());
    let Some((mut run, mut output)) = hanging(&threads, others) else { return };
    let start = Instant::now();
    assert_eq!(line(&mut output), "1: CA\n");
    assert_eq!(line(&mut output), "character special file\n");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    // Without the server, reads of the pages fail and the run can end.
    drop(server);
    assert!(run.wait().expect("the process ends").success());
}

/// A joining program whose first call's path never arrives, and its output.
fn stalling(name: &str) -> (Child, BufReader<ChildStdout>) {
    let mut guest = Command::new("/usr/bin/python3")
        .args([ATTACK, "/", "stall", "0", &socket_of(name)])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python runs");
    let output = BufReader::new(guest.stdout.take().expect("piped"));
    (guest, output)
}

#[test]
fn joining_succeeds_despite_stalled_guests() {
    let name = format!("stalls-{}", std::process::id());
    let mut host = start_named_run(&name);
    let mut guests: Vec<_> = (0..16).map(|_| stalling(&name)).collect();
    for (_, output) in &mut guests {
        assert_eq!(line(output), "stalls\n");
    }
    let start = Instant::now();
    let joins = || command(&["--join", &name], &["true"]).output().expect("the binary runs");
    let mut joined = joins();
    while !joined.status.success() && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(200));
        joined = joins();
    }
    let (elapsed, errors) = (start.elapsed(), String::from_utf8_lossy(&joined.stderr));
    for (guest, _) in &mut guests {
        drop(guest.stdin.take());
        guest.wait().expect("the process ends");
    }
    drop(host.stdin.take());
    host.wait().expect("the process ends");
    assert!(joined.status.success(), "{elapsed:?}: {errors}");
}

#[test]
fn stalled_guest_does_not_delay_joining() {
    let name = format!("stall-{}", std::process::id());
    let mut host = start_named_run(&name);
    let (mut guest, mut output) = stalling(&name);
    let mut text = String::new();
    output.read_line(&mut text).expect("text");
    // The run has begun to read its memory.
    std::thread::sleep(Duration::from_millis(500));
    let start = Instant::now();
    let joined = command(&["--join", &name], &["true"]).output().expect("the binary runs");
    let elapsed = start.elapsed();
    drop((guest.stdin.take(), host.stdin.take()));
    guest.wait().expect("the process ends");
    host.wait().expect("the process ends");
    assert_eq!(text, "stalls\n");
    let errors = String::from_utf8_lossy(&joined.stderr);
    assert!(joined.status.success() && elapsed < Duration::from_secs(5), "{elapsed:?}: {errors}");
}

#[test]
fn too_many_absent_pages_kill_the_program() {
    let others = "cat /sys/class/infiniband/mlx5_0/node_type; wait $pid; echo status $?";
    let Some((mut run, mut output)) = hanging("1200", others) else { return };
    let start = Instant::now();
    assert_eq!(line(&mut output), "1: CA\n");
    assert_eq!(line(&mut output), "status 137\n");
    assert!(start.elapsed() < Duration::from_secs(40), "{:?}", start.elapsed());
    run.wait().expect("the process ends");
}

#[test]
fn crowd_of_absent_pages_stalls_no_other_program() {
    let others = "cat /sys/class/infiniband/mlx5_0/node_type; exec 5<>/dev/infiniband/uverbs0; \
        stat -c %F /dev/infiniband/uverbs0";
    // The script that waits for the crowd is another program, too.
    let start = Instant::now();
    let Some((mut run, mut output)) = hanging("400 processes", others) else { return };
    assert_eq!(line(&mut output), "1: CA\n");
    assert_eq!(line(&mut output), "character special file\n");
    assert!(start.elapsed() < Duration::from_secs(40), "{:?}", start.elapsed());
    run.wait().expect("the process ends");
}
