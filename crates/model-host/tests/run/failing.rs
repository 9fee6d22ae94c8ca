//! Failures injected by `verbless-model ctl`, as the programs of a run see them.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::joining::Host;
use super::{model, run, skipped};

/// Runs `ctl NAME what 0 NUMBER` for each of `numbers` until one succeeds; returns its number.
fn fail_one(host: &Host, what: &str, numbers: std::ops::Range<u32>) -> u32 {
    let start = std::time::Instant::now();
    while start.elapsed().as_secs() < 20 {
        for number in numbers.clone() {
            if model(&["ctl", &host.name, what, "0", &number.to_string()]).0 == Some(0) {
                return number;
            }
        }
    }
    panic!("{what}: nothing of this kind in {numbers:?}");
}

/// Fails a queue of one of two programs that talk to each other; one of them reports it.
fn check_failed_queue(what: &str, numbers: std::ops::Range<u32>, port: u16) {
    if Command::new("ibv_rc_pingpong").arg("--help").output().is_err() {
        return skipped("there is no ibv_rc_pingpong here");
    }
    let host = Host::start(what, &[], "read line; exit 0");
    // A program whose peer is silent sleeps forever, hence the timeout.
    let pingpong = format!("timeout 20 ibv_rc_pingpong -e -p {port} -n 1000000000");
    let start = |script: &str| {
        let mut program = host.join(&[], script);
        program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
    };
    let server = start(&pingpong);
    // The server listens soon; a client that finds no server prints an error.
    let client = start(&format!(
        "for try in $(seq 50); do sleep 0.1; said=$({pingpong} localhost 2>&1); \
         case $said in *Couldn*) ;; *) echo \"$said\"; exit;; esac; done"
    ));
    // Enough time to connect, under a sanitizer too.
    std::thread::sleep(std::time::Duration::from_millis(2500));
    let number = fail_one(&host, what, numbers);
    let again = model(&["ctl", &host.name, what, "0", &number.to_string()]);
    let outputs = [server, client].map(|it| it.wait_with_output().expect("the process ends"));
    let text: String = outputs
        .iter()
        .map(|it| String::from_utf8_lossy(&[&it.stdout[..], &it.stderr].concat()).into_owned())
        .collect();
    assert!(text.contains("Failed status"), "{what} {number:#x}: {text}");
    assert!(again.0 == Some(1) && again.1.contains("that can fail"), "{}", again.1);
    assert_eq!(host.end(), Some(0));
}

#[test]
fn fail_qp_fails_running_program() {
    check_failed_queue("fail-qp", 0x80..0x100, 18861);
}

#[test]
fn fail_cq_fails_running_program() {
    check_failed_queue("fail-cq", 0x400..0x480, 18862);
}

#[test]
fn removed_device_raises_fatal_event() {
    if Command::new("ibv_asyncwatch").arg("--help").output().is_err() {
        return skipped("there is no ibv_asyncwatch here");
    }
    let host = Host::start("remove", &[], "read line; exit 0");
    let works = || host.join(&[], "ibv_devinfo -d mlx5_0").output().expect("the command runs");
    assert!(works().status.success());
    let mut watch = host.join(&[], "stdbuf -oL timeout 20 ibv_asyncwatch -d mlx5_0");
    let mut watch = watch.stdout(Stdio::piped()).spawn().expect("the watch starts");
    let mut lines = BufReader::new(watch.stdout.take().expect("the output is piped")).lines();
    let mut line = || lines.next().expect("a line").expect("text");
    assert!(line().contains("async event FD"), "ibv_asyncwatch has opened the device");
    assert_eq!(model(&["ctl", &host.name, "remove", "0"]), (Some(0), String::new()));
    assert!(line().contains("event_type"), "ibv_asyncwatch gets an event");
    assert!(!works().status.success(), "the device is removed");
    watch.wait().expect("the process ends");
    assert_eq!(host.end(), Some(0));
}

#[test]
fn removed_device_keeps_objects_silently() {
    let name = format!("keeps-{}", std::process::id());
    let tool = env!("CARGO_BIN_EXE_verbless-model");
    let script = format!("exec 5<>/dev/infiniband/uverbs0; {tool} ctl {name} remove 0");
    let output = run(&["--name", &name], &script);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !errors.contains("a bug of the model"), "{errors}");
}
