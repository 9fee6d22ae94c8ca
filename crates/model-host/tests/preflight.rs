//! `verbless-model run` in restricted environments: it works, or reports what is missing before the
//! program starts.
#![allow(unsafe_code)] // installs a seccomp filter between fork and exec

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nix::errno::Errno;

const BINARY: &str = env!("CARGO_BIN_EXE_verbless-model");
/// A program that finds a device and opens it.
const PROGRAM: &str =
    "echo started; cat /sys/class/infiniband/mlx5_0/node_type && exec 5<>/dev/infiniband/uverbs0";
const FOUND: &str = "started\n1: CA\n";

/// Reports that this thread's test is skipped. The harness hides `eprintln!` output of a passing
/// test; `cargo xtask test` counts these lines.
fn skipped(reason: &str) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a test");
    let line = format!("skipped: {name}: {reason}\n");
    io::stderr().write_all(line.as_bytes()).expect("standard error is open");
}

fn run() -> Command {
    let mut command = Command::new(BINARY);
    command.args(["run", "--", "sh", "-c", PROGRAM]);
    command
}

/// Runs [`run`] after a script, in new namespaces (a user namespace too, unless root). `None`:
/// namespaces are not allowed here.
fn run_after(script: &str) -> Option<Output> {
    binary_after(script, &["run", "--", "sh", "-c", PROGRAM])
}

fn binary_after(script: &str, arguments: &[&str]) -> Option<Output> {
    Some(after(script, arguments)?.output().expect("unshare runs"))
}

fn after(script: &str, arguments: &[&str]) -> Option<Command> {
    let unshare = || {
        let mut command = Command::new("unshare");
        if !nix::unistd::geteuid().is_root() {
            command.arg("--map-root-user");
        }
        command.args(["--mount", "--pid", "--fork", "--mount-proc"]);
        command
    };
    if !unshare().arg("true").stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        skipped("namespaces are not allowed here");
        return None;
    }
    // A mount over the binary's directory hides the path, but an open descriptor still reaches it.
    let hidden = ["/tmp", "/var/tmp", "/dev/shm"].iter().any(|it| BINARY.starts_with(it));
    let script = match hidden && script.contains("/tmp") {
        true => format!("exec 9<\"$1\" && shift && {script} && exec /proc/self/fd/9 \"$@\""),
        false => format!("{script} && exec \"$@\""),
    };
    let mut command = unshare();
    command.args(["sh", "-c", &script, "sh", BINARY]).args(arguments).env_remove("TMPDIR");
    Some(command)
}

/// A sandbox that answers one system call with an error.
fn forbid(command: &mut Command, number: libc::c_long, errno: Errno) -> &mut Command {
    forbid_towards(command, number, errno, false)
}

/// As [`forbid`]; `others`: only where the first argument is not the sandboxed process itself.
fn forbid_towards(
    command: &mut Command,
    number: libc::c_long,
    errno: Errno,
    others: bool,
) -> &mut Command {
    const LOAD: u16 = 0x20;
    const JUMP_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const ALLOW: u32 = 0x7fff_0000;
    const ERROR: u32 = 0x0005_0000;
    let install = move || {
        const FIRST_ARGUMENT: u32 = 16;
        let instruction = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        // No process has this id.
        let spared = if others { std::process::id() } else { u32::MAX };
        let mut filter = [
            instruction(LOAD, 0, 0, 0),
            instruction(JUMP_EQUAL, 0, 3, number as u32),
            instruction(LOAD, 0, 0, FIRST_ARGUMENT),
            instruction(JUMP_EQUAL, 1, 0, spared),
            instruction(RETURN, 0, 0, ERROR | errno as u32),
            instruction(RETURN, 0, 0, ALLOW),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: the program is valid for the calls, which change only this process.
        unsafe {
            Errno::result(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
            let filtered = libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const program, 0, 0);
            Errno::result(filtered)?;
        }
        io::Result::Ok(())
    };
    // SAFETY: between fork and exec, the child only makes system calls.
    unsafe { command.pre_exec(install) }
}

/// Asserts that `run` did not start the program and that it names each of `words`.
fn assert_rejected(output: &Output, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(output.stdout.is_empty(), "the program did not start");
    for word in words {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert_eq!(text.lines().count(), 1, "{text}");
}

fn assert_works(output: &Output) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), FOUND, "{text}");
}

#[test]
fn forbidden_syscall_is_reported_before_start() {
    let memory = ["--cap-add=SYS_PTRACE", "seccomp=unconfined"];
    for (number, errno, words) in [
        (libc::SYS_process_vm_readv, Errno::EPERM, ["process_vm_readv", memory[0]]),
        (libc::SYS_process_vm_readv, Errno::ENOSYS, ["process_vm_readv", memory[1]]),
        (libc::SYS_process_vm_writev, Errno::EPERM, ["process_vm_writev", memory[0]]),
        (libc::SYS_pidfd_open, Errno::ENOSYS, ["pidfd_open", memory[1]]),
        (libc::SYS_memfd_create, Errno::EPERM, ["memfd_create", memory[1]]),
        (libc::SYS_openat2, Errno::ENOSYS, ["openat2", memory[1]]),
        (libc::SYS_inotify_init1, Errno::EMFILE, ["watched", "fs.inotify.max_user_instances"]),
        (libc::SYS_seccomp, Errno::EPERM, ["seccomp filters are refused", memory[1]]),
        (libc::SYS_seccomp, Errno::EINVAL, ["user notification", "Linux 5.14"]),
        (libc::SYS_seccomp, Errno::ENOSYS, ["user notification", "CONFIG_SECCOMP_FILTER"]),
    ] {
        let output = forbid(&mut run(), number, errno).output().expect("the command starts");
        assert_rejected(&output, &words);
    }
}

#[test]
fn unreachable_program_is_distinct_from_seccomp() {
    // As with Yama and security modules: a process may read itself only.
    let mut run = run();
    let output = forbid_towards(&mut run, libc::SYS_process_vm_readv, Errno::EPERM, true).output();
    let output = output.expect("the command starts");
    assert!(!String::from_utf8_lossy(&output.stderr).contains("seccomp"));
    assert_rejected(&output, &["process_vm_readv", "user namespace"]);
}

#[test]
fn optional_syscalls_may_be_forbidden() {
    // As docker does by default.
    let output = forbid(&mut run(), libc::SYS_pidfd_getfd, Errno::EPERM).output();
    assert_works(&output.expect("the command starts"));
    let output = forbid(&mut run(), libc::SYS_sched_setattr, Errno::EPERM).output();
    assert_works(&output.expect("the command starts"));
}

#[test]
fn low_descriptor_limit_still_opens_device() {
    let python = "import os, stat\n\
        assert stat.S_ISCHR(os.fstat(os.open('/dev/infiniband/uverbs0', os.O_RDWR)).st_mode)";
    let script = "ulimit -n 64; exec \"$0\" -v run -- python3 -c \"$1\"";
    if Command::new("python3").arg("--version").output().is_err() {
        return skipped("there is no python3 here");
    }
    let output = Command::new("sh").args(["-c", script, BINARY, python]).output();
    let output = output.expect("the command runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let script = script.replace("64", "40");
    let output = Command::new("sh").args(["-c", &script, BINARY, python]).output();
    let text = output.expect("the command runs").stderr;
    assert!(String::from_utf8_lossy(&text).contains("ulimit -n"), "the error names the limit");
}

#[test]
fn many_processes_open_device_under_low_limit() {
    let script = "ulimit -S -n 64; exec \"$0\" run -- sh -c \"$1\"";
    let each = "ulimit -S -n; for i in $(seq 40); do \
        (exec 5<>/dev/infiniband/uverbs0 && sleep 0.5 && echo open) & done; wait";
    let output =
        Command::new("sh").args(["-c", script, BINARY, each]).output().expect("the command runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("64\n"), "the program's limit is as it was");
    assert_eq!(text.matches("open").count(), 40, "{errors}");
}

#[test]
fn run_works_in_new_namespaces() {
    let Some(output) = run_after("true") else { return };
    assert_works(&output);
}

#[test]
fn hidden_proc_is_rejected_before_start() {
    const HIDDEN: &str = "mount -t tmpfs none /proc";
    // Sanitizers read /proc themselves.
    let Some(version) = binary_after(HIDDEN, &["--version"]) else { return };
    if !version.status.success() || !version.stderr.is_empty() {
        skipped("this binary does not even start there, or complains");
        return;
    }
    let output = run_after(HIDDEN).expect("as before");
    assert_rejected(&output, &["/proc cannot be read", "mount -t proc proc /proc"]);
}

#[test]
fn one_writable_tmp_directory_suffices() {
    let read_only = "mount -t tmpfs -o ro none /dev/shm && mount -t tmpfs -o ro none /var/tmp";
    let small = "mount -t tmpfs -o size=64k,nr_inodes=20 none /tmp";
    for (script, can_mount) in [
        (format!("{read_only} && mount -t tmpfs -o noexec none /tmp"), false),
        (format!("{read_only} && {small}"), true),
    ] {
        let Some(mut command) = after(&script, &["run", "--", "sh", "-c", PROGRAM]) else { return };
        if !can_mount {
            forbid(&mut command, libc::SYS_fsopen, Errno::ENOSYS);
        }
        assert_works(&command.output().expect("unshare runs"));
    }
    let full = format!("{read_only} && {small}");
    let mut command = after(&full, &["run", "--", "sh", "-c", PROGRAM]).expect("as before");
    let output = forbid(&mut command, libc::SYS_fsopen, Errno::ENOSYS).output();
    let output = output.expect("unshare runs");
    assert_rejected(&output, &["/dev/shm: Read-only", "/tmp: No space left", "set TMPDIR"]);
}

#[test]
fn fallback_tree_is_not_given_across_roots() {
    let script = "cat /sys/class/infiniband/mlx5_0/node_type; ls /sys/class/infiniband; \
        cd /sys/class/infiniband && ls; ls /dev/infiniband/..; \
        test -e /sys/class/infiniband/mlx5_0 && exec 5<>/dev/infiniband/uverbs0 && echo opened";
    let sandbox = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"];
    let started = Command::new(sandbox[0]).args(&sandbox[1..]).arg("true").output();
    if !started.is_ok_and(|output| output.status.success()) {
        return skipped("bwrap does not start here");
    }
    let mut command = Command::new(BINARY);
    command.args(["-v", "run", "--"]).args(sandbox).args(["sh", "-c", script]);
    let output =
        forbid(&mut command, libc::SYS_fsopen, Errno::EPERM).output().expect("the command starts");
    let (text, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(text, "opened\n", "an absolute path is opened: {errors}");
    assert!(errors.contains("another root directory or mount namespace"), "{errors}");
    assert_works(
        &forbid(&mut run(), libc::SYS_fsopen, Errno::EPERM).output().expect("the command starts"),
    );
}

#[test]
fn next_run_removes_files_of_killed_run() {
    let place = std::env::temp_dir().join(format!("killed-{}", std::process::id()));
    std::fs::create_dir(&place).expect("a new directory");
    let entries = |place: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(place).expect("the directory exists").flatten();
        entries.map(|entry| entry.path()).collect()
    };
    // A mounted file system leaves nothing behind.
    let without_mount = |command: &mut Command| {
        forbid(command, libc::SYS_fsopen, Errno::EPERM).env("TMPDIR", &place).output()
    };
    let mut killed = Command::new(BINARY);
    killed.args(["run", "--", "sh", "-c", "echo started; read forever"]);
    let mut killed = forbid(&mut killed, libc::SYS_fsopen, Errno::EPERM)
        .env("TMPDIR", &place)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut line = String::new();
    let mut output = io::BufReader::new(killed.stdout.take().expect("the output is piped"));
    io::BufRead::read_line(&mut output, &mut line).expect("the program started");
    let left = entries(&place);
    assert_eq!(left.len(), 1);
    assert_works(&without_mount(&mut run()).expect("the command starts"));
    assert_eq!(entries(&place), left, "the files of a live run stay");
    killed.kill().expect("the process exists");
    killed.wait().expect("the process ends");
    assert_eq!(io::Read::read_to_string(&mut output, &mut line).ok(), Some(0), "the program too");
    assert_works(&without_mount(&mut run()).expect("the command starts"));
    assert!(entries(&place).is_empty());
    std::fs::remove_dir(place).expect("the directory is empty");
}

#[test]
fn low_address_space_is_rejected_before_start() {
    // A sanitizer needs more address space than the limit.
    let version = "ulimit -v 1000000; exec \"$0\" --version";
    let output =
        Command::new("sh").args(["-c", version, BINARY]).output().expect("the command runs");
    if !output.status.success() {
        skipped("this binary does not even start with a limit");
        return;
    }
    for limit in [40_000, 100_000] {
        let script = format!("ulimit -v {limit}; exec \"$0\" run -- echo started");
        let output =
            Command::new("sh").args(["-c", &script, BINARY]).output().expect("the command runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("ulimit -v"), "{limit}: {text}");
        assert_eq!((output.status.code(), output.stdout), (Some(1), Vec::new()));
    }
    let script = "ulimit -v 1000000; exec \"$0\" run -- echo started";
    let output =
        Command::new("sh").args(["-c", script, BINARY]).output().expect("the command runs");
    assert_eq!(output.stdout, b"started\n", "{}", String::from_utf8_lossy(&output.stderr));
}
