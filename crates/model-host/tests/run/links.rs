//! Links with faults, planned failures, and runs connected over IP.

use std::process::{Command, Stdio};

use super::{client, command, model, output_of, run, skipped};

#[test]
fn pingpong_survives_faults_and_is_captured() {
    if Command::new("ibv_rc_pingpong").arg("--help").output().is_err() {
        return skipped("there is no ibv_rc_pingpong here");
    }
    let path = |name| std::env::temp_dir().join(format!("verbless-{}-{name}", std::process::id()));
    let (faults, pcap) = (path("faults.toml"), path("run.pcapng"));
    let text = "[[link]]\nlatency = \"1us\"\n[[fault]]\neffect = \"duplicate\"\nnth = 3\n\
        [[fault]]\neffect = \"lose\"\ndirection = \"out\"\nnth = 20\n";
    std::fs::write(&faults, text).unwrap();
    let (faults, pcap) = (faults.to_str().unwrap(), pcap.to_str().unwrap());
    let pingpong = "ibv_rc_pingpong -c -e -n 100 -p 18654";
    let options = ["--devices", "2", "--faults", faults, "--pcap", pcap];
    let server = format!("{pingpong} -d mlx5_0 & ");
    let client = client(&format!("{pingpong} -d mlx5_1 localhost"));
    let output = run(&options, &format!("{server}({client}); code=$?; wait; exit $code"));
    let errors = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8_lossy(&output.stdout);
    let capture = std::fs::read(pcap).unwrap_or_default();
    let _ = (std::fs::remove_file(faults), std::fs::remove_file(pcap));
    assert!(output.status.success(), "{text}{errors}");
    assert_eq!(text.matches("100 iters").count(), 2, "{text}");
    // Blocks from the first to the last byte, by their types.
    let word = |at: usize| u32::from_le_bytes(capture[at..at + 4].try_into().unwrap());
    let (mut at, mut types) = (0, Vec::new());
    while at < capture.len() {
        types.push(word(at));
        let length = word(at + 4) as usize;
        assert_eq!(word(at + length - 4) as usize, length);
        at += length;
    }
    assert_eq!(types[0], 0x0a0d_0d0a);
    let count = |of| types.iter().filter(|&&it| it == of).count();
    assert_eq!(count(1), 2, "an interface for each port");
    // Two messages of 4 KiB a round, each acknowledged; each packet is captured where it is sent
    // and where it arrives.
    assert!(count(6) >= 100 * 2 * 2 * 2, "{}", count(6));
}

#[test]
fn run_reports_frames_missing_in_capture() {
    use std::io::Read as _;
    if Command::new("ibv_rc_pingpong").arg("--help").output().is_err() {
        return skipped("there is no ibv_rc_pingpong here");
    }
    let name = format!("verbless-{}-missing.pcapng", std::process::id());
    let pipe = std::env::temp_dir().join(name);
    let made = Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs");
    assert!(made.success());
    let begun = pipe.clone();
    // A reader that stops after the section header.
    let reader = std::thread::spawn(move || {
        std::fs::File::open(begun).unwrap().read_exact(&mut [0; 52]).unwrap();
    });
    let pingpong = "ibv_rc_pingpong -n 10 -p 18656";
    let client = client(&format!("{pingpong} -d mlx5_1 localhost"));
    let script = format!("{pingpong} -d mlx5_0 & ({client}); code=$?; wait; exit $code");
    let output = run(&["--devices", "2", "--pcap", pipe.to_str().unwrap()], &script);
    reader.join().unwrap();
    std::fs::remove_file(&pipe).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let said = format!(" frames are missing in {}", pipe.display());
    assert!(errors.contains(&said), "{errors}");
}

#[test]
fn pingpong_crosses_runs_over_roce_v2() {
    if Command::new("ibv_rc_pingpong").arg("--help").output().is_err() {
        return skipped("there is no ibv_rc_pingpong here");
    }
    // Loopback addresses that no other test process uses.
    let [.., a, b] = std::process::id().to_be_bytes();
    let [one, other] = [1, 2].map(|host| format!("127.{a}.{b}.{host}"));
    let faults = std::env::temp_dir().join(format!("verbless-{}-network.toml", std::process::id()));
    std::fs::write(&faults, "[[fault]]\neffect = \"lose\"\nchance = 0.02\n").unwrap();
    let (to, from) = (format!("udp:{one},{other}"), format!("udp:{other},{one}"));
    let options = |uplink| ["--link", "ethernet", "--uplink", uplink];
    // GID 3 is RoCE v2 over IPv4; -c checks the received data.
    let pingpong = "ibv_rc_pingpong -c -e -n 100 -p 18662 -g 3";
    let lossy = [&options(&to)[..], &["--faults", faults.to_str().unwrap()]].concat();
    let server = command(&lossy, &["sh", "-c", pingpong]).stdout(Stdio::piped()).spawn();
    let server = server.expect("the binary runs");
    let output = run(&options(&from), &client(&format!("{pingpong} localhost")));
    let served = server.wait_with_output().expect("the process ends");
    let _ = std::fs::remove_file(&faults);
    let text = [output.stdout, output.stderr, served.stdout].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success() && served.status.success(), "{text}");
    let gid = |address: &str| format!("GID ::ffff:{address}");
    assert!([&one, &other].into_iter().all(|it| text.matches(&gid(it)).count() >= 2), "{text}");
    assert_eq!(text.matches("100 iters").count(), 2, "{text}");
}

#[test]
fn runs_of_distinct_identity_share_ethernet() {
    if Command::new("ibv_rc_pingpong").arg("--help").output().is_err() {
        return skipped("there is no ibv_rc_pingpong here");
    }
    let path = |end| {
        let name = format!("verbless-{}-ethernet-{end}", std::process::id());
        std::env::temp_dir().join(name).to_str().unwrap().to_string()
    };
    let (one, other) = (path("one"), path("other"));
    let uplinks = [format!("{one},{other}"), format!("{other},{one}")];
    let options = |run: usize| {
        let identity = ["7", "300"][run];
        ["--link", "ethernet", "--identity", identity, "--uplink", &uplinks[run]]
    };
    // RoCE v2 over link-local GIDs, which contain the MACs; -c checks the received data.
    let pingpong = "ibv_rc_pingpong -c -e -n 100 -p 18666 -g 1";
    let server = command(&options(0), &["sh", "-c", pingpong]).stdout(Stdio::piped()).spawn();
    let server = server.expect("the binary runs");
    let output = run(&options(1), &client(&format!("{pingpong} localhost")));
    let served = server.wait_with_output().expect("the process ends");
    let text = [output.stdout, output.stderr, served.stdout].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success() && served.status.success(), "{text}");
    assert_eq!(text.matches("100 iters").count(), 2, "{text}");
    let own = "cat /sys/class/infiniband/mlx5_0/node_guid";
    assert_ne!(output_of(&["--identity", "7"], own), output_of(&[], own));
    let (status, text) = model(&["run", "--identity", "65536", "--", "true"]);
    assert!(status == Some(2) && text.contains("65536 is not in 0..=65535"), "{text}");
}

#[test]
fn planned_ioctl_fault_fails_pingpong() {
    if Command::new("ibv_rc_pingpong").arg("--help").output().is_err() {
        return skipped("there is no ibv_rc_pingpong here");
    }
    let faults = std::env::temp_dir().join(format!("verbless-{}-ioctl.toml", std::process::id()));
    let run = |plan: &str, options: &[&str]| {
        std::fs::write(&faults, plan).unwrap();
        let options = [&["--faults", faults.to_str().unwrap()], options].concat();
        let output = run(&options, "ibv_rc_pingpong");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && !text.contains("outlive"), "{text}");
        text
    };
    let text = run("[[ioctl]]\nmethod = \"CQ_CREATE\"\nerrno = \"ENOMEM\"", &["--trace"]);
    assert!(text.contains("Couldn't create CQ") && text.contains("-> ENOMEM"), "{text}");
    let text = run("[[ioctl]]\nmethod = \"REG_MR\"\nerrno = 14", &[]);
    assert!(text.contains("Couldn't register MR"), "{text}");
    // `pci` refuses ioctl faults: a guest's own kernel answers its ioctls.
    std::fs::write(&faults, "[[ioctl]]\nerrno = 5\n").unwrap();
    let socket = std::env::temp_dir().join(format!("verbless-{}-pci", std::process::id()));
    let (status, text) =
        model(&["pci", "--socket", socket.to_str().unwrap(), "--faults", faults.to_str().unwrap()]);
    let _ = std::fs::remove_file(&faults);
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("a guest's own kernel answers its ioctls"), "{text}");
}

#[test]
fn planned_queue_fault_flushes_pingpong() {
    if Command::new("ibv_rc_pingpong").arg("--help").output().is_err() {
        return skipped("there is no ibv_rc_pingpong here");
    }
    let faults = std::env::temp_dir().join(format!("verbless-{}-queue.toml", std::process::id()));
    std::fs::write(&faults, "[[queue]]\nkind = \"qp\"\nnth = 20\n").unwrap();
    let options = ["--devices", "2", "--faults", faults.to_str().unwrap()];
    let pingpong = "ibv_rc_pingpong -n 100 -p 18664";
    // The client's queue pair fails; nothing reaches the server.
    let script = format!(
        "{pingpong} -d mlx5_1 & sleep 1; {pingpong} -d mlx5_0 localhost; code=$?; kill $!; \
         exit $code"
    );
    let output = run(&options, &script);
    let _ = std::fs::remove_file(&faults);
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("Failed status Work Request Flushed Error (5)"), "{text}");
}

#[test]
fn bad_uplink_is_rejected_before_start() {
    let refused = |options: &[&str]| {
        let output = run(options, "echo started");
        assert_eq!(output.stdout, [], "{options:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let text = refused(&["--link", "infiniband", "--uplink", "127.0.0.1:5,127.0.0.1:6"]);
    let expected = "verbless-model: the uplink 127.0.0.1:5,127.0.0.1:6 has no port to \
        serve: no device has Ethernet ports; choose --link ethernet\n";
    assert_eq!(text, expected);
    let text = refused(&["--link", "ethernet", "--uplink", "/nonexistent/a,/tmp/b"]);
    let expected = "verbless-model: the local end of the uplink /nonexistent/a,/tmp/b cannot be \
        bound: No such file or directory (os error 2); it must be an address of this machine that \
        is not in use, or a file that does not exist\n";
    assert_eq!(text, expected);
    assert!(refused(&["--uplink", "a,b"]).contains("has no address and port in 'a'"));
    // An address of documentation (RFC 5737), which no machine has.
    let text = refused(&["--link", "ethernet", "--uplink", "udp:192.0.2.1,192.0.2.2"]);
    let expected = "the local end of the uplink udp:192.0.2.1,192.0.2.2 cannot be bound: Cannot \
        assign requested address (os error 99); it must be an address of this machine that is \
        not in use, or a file that does not exist; rdma_rxe uses UDP port 4791 where it is \
        loaded\n";
    assert_eq!(text, format!("verbless-model: {expected}"));
    assert!(refused(&["--uplink", "udp:a"]).contains("'a' has no IP address in 'a'"));
}

#[test]
fn bad_faults_are_rejected_before_start() {
    let file = std::env::temp_dir().join(format!("verbless-{}-bad.toml", std::process::id()));
    let path = file.to_str().unwrap();
    let refused = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let output = run(&["--faults", path], "echo started");
        assert_eq!((output.status.code(), output.stdout), (Some(1), Vec::new()), "{text}");
        String::from_utf8(output.stderr).unwrap()
    };
    let [wrong, absent] =
        ["[[fault]]\neffect = \"drop\"", "\n[[link]]\ndevice = 2\nup = false"].map(refused);
    let _ = std::fs::remove_file(&file);
    let expected = format!(
        "verbless-model: {path}: line 2: [[fault]] effect is \"drop\": there are lose, duplicate, \
         delay, corrupt\n"
    );
    assert_eq!(wrong, expected);
    let expected = "verbless-model: the faults cannot be applied: line 2: there is no device 2: \
        there are 2, numbered from 0\n";
    assert_eq!(absent, expected);
}

#[test]
fn address_for_device_hidden_from_programs_is_rejected() {
    let refused = |options: &[&str]| {
        let output = command(options, &["true"]).output().expect("the binary runs");
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let two = ["--profile", "bluefield3", "--devices", "2", "--link", "ethernet"];
    for (options, address, expected) in [
        (&two[..], "1=192.0.2.1", "device 1 is on the other side of its card"),
        (&two[..], "1=192.0.2.1", "its devices are 0, 2"),
        (&two[..], "4=192.0.2.1", "there is no device 4: the program's devices are 0, 2"),
        (&[], "0=192.0.2.1", "give --link ethernet"),
    ] {
        let text = refused(&[options, &["--address", address]].concat());
        assert!(text.contains(expected), "{text}");
    }
    let both = [&two[..], &["--address", "1=192.0.2.1", "--dpu", "true"]].concat();
    let output = command(&both, &["true"]).output().expect("the binary runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
