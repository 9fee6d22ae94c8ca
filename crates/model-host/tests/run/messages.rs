//! Messages for users: traces, refusals, help.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{command, model, skipped};

#[test]
fn trace_lists_ioctls_and_commands() {
    let python = "import os, fcntl, struct\n\
        fd = os.open('/dev/infiniband/uverbs0', os.O_RDWR)\n\
        head = struct.pack('<HHHHQII', 24, 0, 3, 0, 0, 1, 0)\n\
        try: fcntl.ioctl(fd, 0xc0181b01, bytearray(head))\n\
        except OSError: pass\n\
        control = os.open('/dev/fwctl/fwctl0', os.O_RDWR)\n\
        try: fcntl.ioctl(control, 0x9a00, bytearray(24))\n\
        except OSError: pass\n";
    if Command::new("python3").arg("--version").output().is_err() {
        return skipped("there is no python3 here");
    }
    let output = command(&["--trace", "--fwctl-mode=666"], &["python3", "-c", python])
        .output()
        .expect("the binary runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("uverbs0 ioctl GET_CONTEXT() -> EINVAL"), "{text}");
    assert!(text.contains("fwctl0 ioctl FWCTL_INFO() -> EINVAL"), "{text}");
    assert!(text.contains("function 0 QUERY_HCA_CAP(op_mod="), "{text}");
    let file = std::env::temp_dir().join(format!("verbless-trace-{}", std::process::id()));
    let option = format!("--trace={}", file.display());
    let output = command(&[&option, "--fwctl-mode=666"], &["python3", "-c", python])
        .output()
        .expect("the command runs");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(&file).expect("the file was written");
    let _ = std::fs::remove_file(&file);
    assert!(text.contains("ENABLE_HCA(0x104)"), "{text}");
}

#[test]
fn unread_trace_does_not_block_program() {
    // The program's standard error is the pipe too; the program must not fill it itself.
    let opens = "exec 2>/dev/null; for i in $(seq 400); do : 5<>/dev/infiniband/uverbs0; done";
    let mut run = command(&["--trace"], &["sh", "-c", opens])
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let start = Instant::now();
    let status = loop {
        match run.try_wait().expect("the run is a child of this process") {
            Some(status) => break status,
            None if start.elapsed() > Duration::from_secs(60) => {
                run.kill().expect("the process runs");
                panic!("a full pipe of --trace stopped the run");
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    assert!(status.success());
    let mut text = String::new();
    run.stderr.take().expect("piped").read_to_string(&mut text).expect("text");
    // A pipe has 64 KiB; the last line that fits ends within a page of that.
    assert!(text.len() > 60 << 10, "the pipe was never full: {} bytes", text.len());
}

#[test]
fn mistyped_option_is_rejected() {
    for mistyped in [&["--profil", "connectx6dx"][..], &["--profil=connectx6dx"]] {
        let (code, text) = model(&[&["run"], mistyped, &["--", "echo", "started"]].concat());
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains("'--profile'") && !text.contains("started\n"), "{text}");
    }
    let (code, text) = model(&["run", "sh", "-c", "echo $0 $1", "--profil", "-v"]);
    assert_eq!((code, &*text), (Some(0), "--profil -v\n"), "what follows the program is its own");
}

#[test]
fn help_names_the_profiles_and_the_ranges() {
    for words in [&["--help"][..], &["run", "--help"], &["pci", "--help"]] {
        let (code, text) = model(words);
        assert_eq!(code, Some(0));
        let profiles = text.lines().find_map(|line| line.strip_prefix("Profiles: "));
        let named: Vec<_> = profiles.unwrap_or_default().split(", ").collect();
        assert!(named.contains(&"connectx6dx") && named.contains(&"bluefield3"), "{text}");
    }
    let (_, text) = model(&["run", "--help"]);
    assert!(text.contains("1 to 64") && text.contains("infiniband, ethernet"), "{text}");
    let (code, text) = model(&["run", "--devices", "65", "--", "true"]);
    assert!(code == Some(2) && text.contains("1..=64"), "{text}");
}

#[test]
fn explain_describes_codes() {
    let (code, text) = model(&["explain", "0x564c0008", "BAD_QP_STATE"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("the capabilities do not offer"), "{text}");
    assert!(text.contains("command status 0x10, BAD_QP_STATE"), "{text}");
    let (code, text) = model(&["explain", "0x12345678"]);
    assert!(code == Some(1) && text.contains("is in no table"), "{text}");
}

#[test]
fn refusals_are_logged_at_first_v() {
    // An ioctl of an unknown method.
    let python = "import fcntl, os, struct\n\
        fd = os.open('/dev/infiniband/uverbs0', os.O_RDWR)\n\
        request = bytearray(struct.pack('HHHHQII', 24, 7, 77, 0, 0, 1, 0))\n\
        try: fcntl.ioctl(fd, 0xc0181b01, request)\n\
        except OSError as error: print(error.errno)\n";
    if Command::new("python3").arg("--version").output().is_err() {
        return skipped("there is no python3 here");
    }
    let (code, text) = model(&["run", "--", "python3", "-c", python]);
    assert_eq!((code, &*text), (Some(0), "93\n"));
    let (code, text) = model(&["-v", "run", "--", "python3", "-c", python]);
    assert_eq!(code, Some(0));
    assert!(text.contains("object 0x7, method 0x4d refused with EPROTONOSUPPORT"), "{text}");
}

#[test]
fn capability_probes_are_logged_at_second_v() {
    if Command::new("ibv_devinfo").output().is_err() {
        return skipped("there is no ibv_devinfo here");
    }
    for link in ["infiniband", "ethernet"] {
        let devinfo = ["run", "--link", link, "--", "ibv_devinfo", "-v"];
        let (code, text) = model(&[&["-v"][..], &devinfo].concat());
        assert!(code == Some(0) && !text.contains("refused") && !text.contains("INFO"), "{text}");
        let (_, text) = model(&[&["-vv"][..], &devinfo].concat());
        assert!(text.contains("QUERY_DEVICE refused with ENOSPC"), "{text}");
        assert!(text.contains("QUERY_GID_ENTRY refused with ENODATA"), "{text}");
    }
}

#[test]
fn unmodelled_device_is_logged_with_reason() {
    let (_, text) = model(&["-v", "run", "--", "cat", "/dev/infiniband/rdma_cm"]);
    assert!(
        text.contains("refused with ENOENT: connections by rdma_cm are not modelled"),
        "{text}"
    );
    let (_, text) = model(&["-v", "run", "--", "cat", "/dev/infiniband/umad0"]);
    assert!(text.contains("management datagrams (umad) are not modelled"), "{text}");
}

#[test]
fn refused_open_of_an_attribute_for_writing_is_logged() {
    let config = "/sys/bus/pci/devices/fb0b:00:01.0/config";
    let (_, text) = model(&["-v", "run", "--", "sh", "-c", &format!("true >> {config}")]);
    let message = format!("open of {config} for writing refused with EACCES: attributes");
    assert!(text.contains(&message), "{text}");
}
