//! `verbless-model run`: programs that know nothing of it, and what they see.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Output, Stdio};

/// Says that the test of this thread is skipped. What `eprintln!` says would be kept back of a test
/// that passes; `cargo xtask test` counts these lines.
fn skipped(reason: &str) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a test");
    let line = format!("skipped: {name}: {reason}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("standard error is open");
}

/// The binary, about to run `program` on the devices that `options` say.
fn command(options: &[&str], program: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_verbless-model"));
    command.arg("run").args(options).arg("--").args(program);
    command
}

fn run(options: &[&str], script: &str) -> Output {
    command(options, &["sh", "-c", script]).output().expect("the binary runs")
}

/// What a script prints, once it has succeeded.
fn says(options: &[&str], script: &str) -> String {
    let output = run(options, script);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {:?}\n{errors}", output.status);
    String::from_utf8(output.stdout).expect("text").trim_end().to_string()
}

#[test]
fn the_programs_exit_code_is_ours() {
    assert_eq!(run(&[], "exit 7").status.code(), Some(7));
    assert_eq!(run(&[], "kill -9 $$").status.code(), Some(128 + 9));
    let missing = command(&[], &["/no/such/program"]).output().expect("the binary runs");
    assert_eq!(missing.status.code(), Some(127));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("/no/such/program"));
}

#[test]
fn a_program_finds_the_devices_where_the_kernel_has_them() {
    let attributes = "cd / && cat sys/class/infiniband/mlx5_1/node_type \
        /sys/class/infiniband_verbs/uverbs1/dev /sys/class/infiniband/mlx5_1/ports/1/state";
    assert_eq!(says(&["--devices", "2"], attributes), "1: CA\n231:193\n4: ACTIVE");
    assert_eq!(says(&["--devices", "2"], "ls /dev/infiniband"), "uverbs0\nuverbs1");
    assert_eq!(
        says(&[], "stat -c '%F %t:%T %a' /dev/infiniband/uverbs0"),
        "character special file e7:c0 666"
    );
    let read = run(&[], "cat /dev/infiniband/uverbs0");
    assert_eq!((read.status.code(), &*read.stdout), (Some(1), &b""[..]));
    let errors = String::from_utf8_lossy(&read.stderr);
    assert!(errors.contains("Invalid argument"), "{errors}");
    assert_eq!(
        says(&[], "test -r /dev/infiniband/uverbs0 && test -w /dev/infiniband/uverbs0 && echo yes"),
        "yes"
    );
    assert_eq!(
        says(&[], "readlink /sys/class/infiniband/mlx5_0/device/driver"),
        "../../../bus/pci/drivers/mlx5_core"
    );
    assert_eq!(
        says(&[], "realpath /sys/class/infiniband/mlx5_0/device"),
        "/sys/devices/pcifb0b:00/fb0b:00:01.0"
    );
    let ethernet = "cat /sys/class/infiniband/mlx5_0/ports/1/link_layer";
    assert_eq!(says(&["--link", "ethernet"], ethernet), "Ethernet");
}

#[test]
fn a_program_sees_the_devices_of_its_side_and_no_others() {
    let profiles = ["bluefield3", "connectx6dx", "bluefield3"];
    let profiles = profiles.map(|profile| format!("--profile={profile}"));
    let on = |side, script| {
        let options: Vec<_> = profiles.iter().map(|it| &**it).chain(["--side", side]).collect();
        says(&options, script)
    };
    assert_eq!(on("host", "ls /dev/infiniband"), "uverbs0\nuverbs1\nuverbs2");
    assert_eq!(on("dpu", "ls /dev/infiniband"), "uverbs0\nuverbs1");
    assert_eq!(on("dpu", "ls /sys/class/infiniband"), "mlx5_0\nmlx5_1");
    let guids = "cd /; for name in $(ls sys/class/infiniband); do \
        cat sys/class/infiniband/$name/sys_image_guid; done";
    let (host, dpu) = (on("host", guids), on("dpu", guids));
    let [first, _, last] = host.lines().collect::<Vec<_>>()[..] else { panic!("{host}") };
    assert_eq!(dpu.lines().collect::<Vec<_>>(), [first, last], "the same cards");
    let own = "cat /sys/class/infiniband/mlx5_0/node_guid";
    assert_ne!(on("host", own), on("dpu", own));
    assert_eq!(says(&[], own), on("host", own), "the host is where a program is");
}

#[test]
fn opening_a_device_of_the_dpu_brings_up_the_embedded_cpus_function() {
    let options = ["--devices", "2", "--side", "dpu", "--trace"];
    let output = run(&options, "exec 5<>/dev/infiniband/uverbs1");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    // Of each card first the host's function, then the DPU's.
    let enabled: Vec<_> = text.lines().filter(|line| line.contains(" ENABLE_HCA(")).collect();
    let [line] = enabled[..] else { panic!("{text}") };
    assert!(line.contains("function 3 ENABLE_HCA(embedded_cpu_function=1) -> ok"), "{line}");
}

#[test]
fn a_side_that_no_device_has_is_refused_and_told_of() {
    let output = run(&["--profile", "connectx6dx", "--side", "dpu"], "echo started");
    assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b""[..]));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains("no device of this run has a DPU side") && text.contains("bluefield3"),
        "{text}"
    );
    let output = run(&["--profile", "connectx6dx", "--dpu", "echo there"], "echo here");
    assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b""[..]));
}

#[test]
fn a_command_on_the_dpu_side_runs_beside_the_program_and_each_sees_its_own() {
    let file = std::env::temp_dir().join(format!("verbless-sides-{}", std::process::id()));
    let own = "cat /sys/class/infiniband/mlx5_0/node_guid";
    let dpu = format!("cat; {own} > {0}.new; mv {0}.new {0}", file.display());
    let script = format!("until test -e {0}; do sleep 0.05; done; {own}; cat {0}", file.display());
    let text = says(&["--dpu", &dpu], &script);
    let _ = std::fs::remove_file(&file);
    assert_eq!(text.lines().collect::<Vec<_>>(), [says(&[], own), says(&["--side", "dpu"], own)]);
}

#[test]
fn a_failure_on_either_side_is_told_and_the_programs_own_goes_first() {
    let status = |dpu: &str, script: &str| run(&["--dpu", dpu], script).status.code();
    assert_eq!(status("exit 0", "exit 0"), Some(0));
    assert_eq!(status("exit 5", "exit 0"), Some(5));
    assert_eq!(status("sleep 0.2; exit 5", "exit 3"), Some(3));
    assert_eq!(status("sleep 0.2; exit 5", "exit 0"), Some(5), "both are waited for");
    assert_eq!(status("no-such-program 2>&-", "exit 0"), Some(127));
}

/// A script that runs `command` as a client, again until its server listens.
fn client(command: &str) -> String {
    format!("for try in $(seq 50); do sleep 0.1; {command} && exit 0; done; exit 1")
}

#[test]
fn programs_of_rdma_core_on_two_sides_send_each_other_data() {
    if Command::new("ibv_rc_pingpong").arg("--help").output().is_err() {
        return skipped("there is no ibv_rc_pingpong here");
    }
    for (port, (link, path)) in (18650..).zip([("infiniband", ""), ("ethernet", " -g 1")]) {
        // With -c they check what arrives.
        let pingpong = format!("ibv_rc_pingpong -c -e -n 100 -p {port}{path}");
        let options = ["--link", link, "--dpu", &pingpong];
        let output = run(&options, &client(&format!("{pingpong} localhost")));
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}{errors}");
        assert_eq!(text.matches("100 iters").count(), 2, "{text}");
        assert!(!errors.contains("outlive"), "{errors}");
    }
}

#[test]
fn a_program_sends_over_links_with_faults_and_its_frames_are_captured() {
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
    // Two messages of 4 KiB a round, each acknowledged, each seen where it is sent and where it
    // arrives.
    assert!(count(6) >= 100 * 2 * 2 * 2, "{}", count(6));
}

#[test]
fn programs_of_two_runs_reach_each_other_over_the_ip_network() {
    if Command::new("ibv_rc_pingpong").arg("--help").output().is_err() {
        return skipped("there is no ibv_rc_pingpong here");
    }
    // Addresses of this machine that no other process's test has.
    let [.., a, b] = std::process::id().to_be_bytes();
    let [one, other] = [1, 2].map(|host| format!("127.{a}.{b}.{host}"));
    let faults = std::env::temp_dir().join(format!("verbless-{}-network.toml", std::process::id()));
    std::fs::write(&faults, "[[fault]]\neffect = \"lose\"\nchance = 0.02\n").unwrap();
    let (to, from) = (format!("udp:{one},{other}"), format!("udp:{other},{one}"));
    let options = |uplink| ["--link", "ethernet", "--uplink", uplink];
    // RoCE v2 over IPv4 is the fourth entry; with -c they check what arrives.
    let pingpong = "ibv_rc_pingpong -c -e -n 100 -p 18662 -g 3";
    let lossy = [&options(&to)[..], &["--faults", faults.to_str().unwrap()]].concat();
    let server = command(&lossy, &["sh", "-c", pingpong]).stdout(Stdio::piped()).spawn();
    let server = server.expect("the binary runs");
    let output = run(&options(&from), &client(&format!("{pingpong} localhost")));
    let served = server.wait_with_output().expect("it ends");
    let _ = std::fs::remove_file(&faults);
    let text = [output.stdout, output.stderr, served.stdout].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success() && served.status.success(), "{text}");
    let gid = |address: &str| format!("GID ::ffff:{address}");
    assert!([&one, &other].into_iter().all(|it| text.matches(&gid(it)).count() >= 2), "{text}");
    assert_eq!(text.matches("100 iters").count(), 2, "{text}");
}

#[test]
fn two_runs_of_different_identity_are_on_one_ethernet() {
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
    // RoCE v2 over the link-local addresses, which tell the MACs; with -c they check what arrives.
    let pingpong = "ibv_rc_pingpong -c -e -n 100 -p 18666 -g 1";
    let server = command(&options(0), &["sh", "-c", pingpong]).stdout(Stdio::piped()).spawn();
    let server = server.expect("the binary runs");
    let output = run(&options(1), &client(&format!("{pingpong} localhost")));
    let served = server.wait_with_output().expect("it ends");
    let text = [output.stdout, output.stderr, served.stdout].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success() && served.status.success(), "{text}");
    assert_eq!(text.matches("100 iters").count(), 2, "{text}");
    let own = "cat /sys/class/infiniband/mlx5_0/node_guid";
    assert_ne!(says(&["--identity", "7"], own), says(&[], own));
    let (status, text) = model(&["run", "--identity", "65536", "--", "true"]);
    assert!(status == Some(2) && text.contains("65536 is not in 0..=65535"), "{text}");
}

#[test]
fn an_ioctl_that_a_plan_lets_fail_fails_under_a_program_of_rdma_core() {
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
    // What is no name is refused, and a guest's ioctls are not ours.
    std::fs::write(&faults, "[[ioctl]]\nerrno = 5\n").unwrap();
    let socket = std::env::temp_dir().join(format!("verbless-{}-pci", std::process::id()));
    let (status, text) =
        model(&["pci", "--socket", socket.to_str().unwrap(), "--faults", faults.to_str().unwrap()]);
    let _ = std::fs::remove_file(&faults);
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("a guest's own kernel answers its ioctls"), "{text}");
}

#[test]
fn a_queue_that_a_plan_lets_fail_fails_under_a_program_of_rdma_core() {
    if Command::new("ibv_rc_pingpong").arg("--help").output().is_err() {
        return skipped("there is no ibv_rc_pingpong here");
    }
    let faults = std::env::temp_dir().join(format!("verbless-{}-queue.toml", std::process::id()));
    std::fs::write(&faults, "[[queue]]\nkind = \"qp\"\nnth = 20\n").unwrap();
    let options = ["--devices", "2", "--faults", faults.to_str().unwrap()];
    let pingpong = "ibv_rc_pingpong -n 100 -p 18664";
    // Its queue pair is in error; the server is never told.
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
fn an_uplink_that_cannot_be_is_refused_before_anything_starts() {
    let refused = |options: &[&str]| {
        let output = run(options, "echo started");
        assert_eq!(output.stdout, [], "{options:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let text = refused(&["--link", "infiniband", "--uplink", "127.0.0.1:5,127.0.0.1:6"]);
    let expected = "verbless-model: the uplink 127.0.0.1:5,127.0.0.1:6 would reach nobody: no \
        device has Ethernet ports; choose --link ethernet\n";
    assert_eq!(text, expected);
    let text = refused(&["--link", "ethernet", "--uplink", "/nonexistent/a,/tmp/b"]);
    let expected = "verbless-model: the local end of the uplink /nonexistent/a,/tmp/b cannot be \
        bound: No such file or directory (os error 2); it must be an address of this machine that \
        nobody uses, or a file that does not exist\n";
    assert_eq!(text, expected);
    assert!(refused(&["--uplink", "a,b"]).contains("has no address and port in 'a'"));
    // An address of documentation (RFC 5737), which no machine has.
    let text = refused(&["--link", "ethernet", "--uplink", "udp:192.0.2.1,192.0.2.2"]);
    let expected = "the local end of the uplink udp:192.0.2.1,192.0.2.2 cannot be bound: Cannot \
        assign requested address (os error 99); it must be an address of this machine that nobody \
        uses, or a file that does not exist; UDP port 4791 is rdma_rxe's where that is loaded\n";
    assert_eq!(text, format!("verbless-model: {expected}"));
    assert!(refused(&["--uplink", "udp:a"]).contains("'a' has no IP address in 'a'"));
}

#[test]
fn faults_that_cannot_be_used_are_refused_before_anything_starts() {
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
fn what_is_not_a_device_is_as_it_was() {
    assert_eq!(says(&[], "cat /proc/self/comm"), "cat");
    assert_eq!(run(&[], "cat /sys/class/infiniband/mlx5_7/node_type").status.code(), Some(1));
    assert_eq!(
        run(&[], "cat /sys/class/infiniband/../../../etc/shadow-of-nothing").status.code(),
        Some(1)
    );
    let attempts = "echo x 2>/dev/null > /sys/class/infiniband/mlx5_0/node_desc; \
        echo x 2>/dev/null > /dev/infiniband/new; test ! -e /dev/infiniband/new && echo untouched";
    assert_eq!(says(&[], attempts), "untouched");
}

#[test]
fn an_open_device_is_a_character_device_and_its_ioctls_are_answered() {
    // The descriptor that the shell duplicates is another number; the device goes with its last
    // one.
    let script = "exec 5<>/dev/infiniband/uverbs0 && readlink /proc/self/fd/5 && exec 5<&-";
    assert!(says(&[], script).contains("verbless-uverbs"));
    let python = "import os, ctypes, fcntl, errno, stat\n\
        fd = os.open('/dev/infiniband/uverbs0', os.O_RDWR)\n\
        assert stat.S_ISCHR(os.fstat(fd).st_mode), 'fstat'\n\
        assert os.fstat(fd).st_rdev == os.makedev(231, 192)\n\
        for request in (0xc0181b01, 0x1b02):\n\
        \x20   try: fcntl.ioctl(os.dup(fd), request, bytes(24))\n\
        \x20   except OSError as error: print(errno.errorcode[error.errno])\n\
        libc, room = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(256)\n\
        for path in (b'/no/such/file', b'no-such-file', b''):\n\
        \x20   result = libc.statx(fd, path, 0x1000, 0x7ff, room)\n\
        \x20   print(result and errno.errorcode[ctypes.get_errno()])\n\
        try: os.truncate('/proc/self/fd/%d' % fd, 0)\n\
        except OSError as error: print(errno.errorcode[error.errno])\n";
    if Command::new("python3").arg("--version").output().is_ok() {
        let output = command(&[], &["python3", "-c", python]).output().expect("the binary runs");
        let text = String::from_utf8_lossy(&output.stdout).to_string();
        assert_eq!(
            text,
            "EINVAL\nENOTTY\nENOENT\nENOTDIR\n0\nEPERM\n",
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn a_path_that_begins_in_a_directory_is_not_one_of_a_device() {
    // openat2 with RESOLVE_IN_ROOT, as programs that make containers open paths.
    let python = "import ctypes, os, struct, tempfile\n\
        with tempfile.TemporaryDirectory() as root:\n\
        \x20   os.makedirs(root + '/dev/infiniband/here')\n\
        \x20   how = struct.pack('QQQ', os.O_RDONLY, 0, 0x10)\n\
        \x20   fd = os.open(root, os.O_PATH)\n\
        \x20   found = ctypes.CDLL(None).syscall(437, fd, b'/dev/infiniband', how, 24)\n\
        \x20   print(os.listdir(found))\n";
    if Command::new("python3").arg("--version").output().is_ok() {
        let output = command(&[], &["python3", "-c", python]).output().expect("it runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "['here']\n", "{errors}");
    }
}

#[test]
fn a_duplicate_of_a_device_is_one_too_and_what_suits_no_device_is_refused() {
    let python = "import os, fcntl, errno, mmap, stat\n\
        fd = os.open('/dev/infiniband/uverbs0', os.O_RDWR)\n\
        copies = [os.dup(fd), fcntl.fcntl(fd, fcntl.F_DUPFD, 3), fcntl.fcntl(fd, \
        fcntl.F_DUPFD_CLOEXEC, 1000)]\n\
        assert all(stat.S_ISCHR(os.fstat(copy).st_mode) for copy in copies), copies\n\
        assert copies[2] >= 1000 and len(set(copies + [fd])) == 4, copies\n\
        assert [fcntl.fcntl(copy, fcntl.F_GETFD) for copy in copies[1:]] == [0, 1]\n\
        assert os.dup(0) < 48, 'what is no device is as it was'\n\
        os.close(fd)\n\
        def attempt(what, *arguments, **named):\n\
        \x20   try: what(*arguments, **named)\n\
        \x20   except OSError as error: print(errno.errorcode[error.errno])\n\
        attempt(fcntl.ioctl, copies[1], 0xc0181b01, bytes(24))\n\
        attempt(fcntl.ioctl, copies[1], 0x1b02, bytes(24))\n\
        attempt(os.ftruncate, copies[0], 0)\n\
        attempt(os.posix_fallocate, copies[0], 0, 4096)\n\
        attempt(mmap.mmap, copies[0], 4096, mmap.MAP_SHARED, offset=0x900000)\n\
        attempt(os.stat, '/dev/infiniband/uverbs7')\n";
    if Command::new("python3").arg("--version").output().is_ok() {
        let output = command(&[], &["python3", "-c", python]).output().expect("the binary runs");
        let text = String::from_utf8_lossy(&output.stdout).to_string();
        let expected = "EINVAL\nENOTTY\nEINVAL\nENODEV\nEINVAL\nENOENT\n";
        assert_eq!(text, expected, "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn the_page_of_the_clock_is_mapped_to_be_read_only_as_linux_has_it() {
    let python = "import os, ctypes, fcntl, errno, mmap, struct\n\
        fd = os.open('/dev/infiniband/uverbs0', os.O_RDWR)\n\
        request = struct.pack('<HHHHQII', 40, 0, 3, 1, 0, 1, 0)\n\
        request += struct.pack('<HHHHQ', 0x1000, 8, 1, 0, 0x400000010)\n\
        fcntl.ioctl(fd, 0xc0181b01, bytearray(request))\n\
        for protection in (3, 2, 5, 1):\n\
        \x20   try:\n\
        \x20       page = mmap.mmap(fd, 4096, mmap.MAP_SHARED, protection, offset=0x700000)\n\
        \x20       print(struct.unpack_from('I', page, 32)[0] > 0)\n\
        \x20   except OSError as error: print(errno.errorcode[error.errno])\n";
    if Command::new("python3").arg("--version").output().is_err() {
        return skipped("there is no python3 here");
    }
    let output = command(&[], &["python3", "-c", python]).output().expect("the binary runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(text, "EPERM\nEPERM\nEPERM\nTrue\n", "{errors}");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_program_goes_into_the_places_of_devices_and_out_of_them() {
    let script = "cd /sys/class/infiniband && pwd -P && echo * && cat mlx5_1/node_type && cd \
                  mlx5_1/ports && (cd / && cd /dev/infiniband && ls && cd .. && pwd -P) && env pwd \
                  -P && cd .. && cat node_type && cd /tmp && pwd -P";
    let expected = "/sys/class/infiniband\nmlx5_0 mlx5_1\n1: CA\nuverbs0\nuverbs1\n/dev\n\
        /sys/devices/pcifb0b:00/fb0b:00:02.0/infiniband/mlx5_1/ports\n1: CA\n/tmp";
    assert_eq!(says(&["--devices", "2"], script), expected);
    for (place, why) in [
        ("/sys/class/infiniband/mlx5_7", "No such file"),
        ("/sys/class/infiniband/mlx5_0/node_type", "Not a directory"),
    ] {
        let output = command(&[], &["env", "-C", place, "true"]).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(why), "{place}: {text}");
    }
    // Signals that arrive meanwhile are neither lost nor in the way, and no descriptor is left.
    let python = "import os, signal\n\
        rung = []\n\
        signal.signal(signal.SIGALRM, lambda *_: rung.append(1))\n\
        signal.siginterrupt(signal.SIGALRM, False)\n\
        before = os.listdir('/proc/self/fd')\n\
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\n\
        for _ in range(100):\n\
        \x20   os.chdir('/dev/infiniband'); assert os.getcwd() == '/dev/infiniband'\n\
        \x20   os.chdir('..'); assert os.getcwd() == '/dev'\n\
        signal.setitimer(signal.ITIMER_REAL, 0)\n\
        assert rung and os.listdir('/proc/self/fd') == before\n\
        directory = os.open('/dev/infiniband', os.O_PATH)\n\
        assert os.major(os.stat('uverbs0', dir_fd=directory).st_rdev) == 231\n";
    if Command::new("python3").arg("--version").output().is_ok() {
        let output = command(&[], &["python3", "-c", python]).output().expect("the binary runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_trace_tells_of_every_ioctl_and_command() {
    let python = "import os, fcntl, struct\n\
        fd = os.open('/dev/infiniband/uverbs0', os.O_RDWR)\n\
        head = struct.pack('<HHHHQII', 24, 0, 3, 0, 0, 1, 0)\n\
        try: fcntl.ioctl(fd, 0xc0181b01, bytearray(head))\n\
        except OSError: pass\n";
    if Command::new("python3").arg("--version").output().is_err() {
        return skipped("there is no python3 here");
    }
    let output =
        command(&["--trace"], &["python3", "-c", python]).output().expect("the binary runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("uverbs0 ioctl GET_CONTEXT() -> EINVAL"), "{text}");
    assert!(text.contains("function 0 QUERY_HCA_CAP(op_mod="), "{text}");
    let file = std::env::temp_dir().join(format!("verbless-trace-{}", std::process::id()));
    let option = format!("--trace={}", file.display());
    let output = command(&[&option], &["python3", "-c", python]).output().expect("it runs");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(&file).expect("the file was written");
    let _ = std::fs::remove_file(&file);
    assert!(text.contains("ENABLE_HCA(0x104)"), "{text}");
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

/// A run with a name, whose program waits for its input to end.
struct Host {
    name: String,
    child: Child,
}

impl Host {
    fn start(what: &str, options: &[&str], script: &str) -> Self {
        let name = format!("{what}-{}", std::process::id());
        let script = format!("echo ready; {script}");
        let mut child = command(&[options, &["--name", &name]].concat(), &["sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let mut line = String::new();
        let output = child.stdout.as_mut().expect("captured");
        BufReader::new(output).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        Self { name, child }
    }

    fn join(&self, options: &[&str], script: &str) -> Command {
        command(&[options, &["--join", &self.name]].concat(), &["sh", "-c", script])
    }

    /// Lets its program end; its exit code.
    fn end(mut self) -> Option<i32> {
        drop(self.child.stdin.take());
        self.child.wait().expect("it ends").code()
    }
}

#[test]
fn the_links_and_devices_of_a_run_change_while_it_runs() {
    if Command::new("ibv_devinfo").arg("--help").output().is_err() {
        return skipped("there is no ibv_devinfo here");
    }
    let host = Host::start("ctl", &[], "read line; exit 0");
    let ctl = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_verbless-model"));
        let output = command.args(["ctl", &host.name]).args(words).output().expect("it runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let state = || {
        let output = host.join(&[], "ibv_devinfo | grep state:").output().expect("it runs");
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
    let late = late.args(["ctl", &name, "show"]).output().expect("it runs");
    assert!(String::from_utf8_lossy(&late.stderr).contains(&format!("no run named {name}")));
}

#[test]
fn devices_that_a_virtual_machine_has_change_while_they_are_served() {
    let name = format!("pci-{}", std::process::id());
    let socket = std::env::temp_dir().join(format!("verbless-{name}"));
    let serve = ["pci", "--socket", socket.to_str().unwrap(), "--name", &name];
    let mut server = Command::new(env!("CARGO_BIN_EXE_verbless-model"));
    let mut server = server.args(serve).spawn().expect("the binary runs");
    let ctl = |words: &[&str]| model(&[&["ctl", &name][..], words].concat());
    let silent = (Some(0), String::new());
    let start = std::time::Instant::now();
    while ctl(&["show"]).0 != Some(0) {
        assert!(start.elapsed().as_secs() < 20, "it never answered");
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
    server.kill().expect("it is ours");
    server.wait().expect("it ends");
    assert!(ctl(&["show"]).1.contains(&format!("no run named {name}")));
    let _ = std::fs::remove_file(socket);
}

#[test]
fn a_program_that_joins_sees_the_same_devices_or_those_of_the_other_side() {
    let host = Host::start("sides", &["--devices", "2"], "read line; exit 3");
    let guid = "cat /sys/class/infiniband/*/node_guid";
    let joined = |options: &[&str]| {
        let output = host.join(options, guid).output().expect("the binary runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let same = joined(&[]);
    assert_eq!(same, says(&["--devices", "2"], guid) + "\n");
    let other = joined(&["--side", "dpu"]);
    assert_eq!(other.lines().count(), 2);
    assert!(other.lines().all(|guid| !same.contains(guid)), "{same}{other}");
    assert_eq!(host.join(&[], "exit 7").status().expect("it ends").code(), Some(7));
    assert_eq!(host.end(), Some(3));
}

#[test]
fn programs_of_rdma_core_send_each_other_data_when_one_joins_on_the_other_side() {
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
fn devices_stay_for_as_long_as_anybody_who_joined_does() {
    let host = Host::start("last", &[], "read line; true");
    let mut last = host
        .join(&[], "echo in; read line; exec 5<>/dev/infiniband/uverbs0 && echo open")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut lines = BufReader::new(last.stdout.take().expect("captured")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "in");
    let name = host.name.clone();
    let ending = std::thread::spawn(|| host.end());
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(!ending.is_finished(), "somebody is left");
    drop(last.stdin.take());
    assert_eq!(lines.next().expect("a line").expect("text"), "open");
    assert!(last.wait().expect("it ends").success());
    assert_eq!(ending.join().expect("no panic"), Some(0));
    let late = command(&["--join", &name], &["true"]).output().expect("the binary runs");
    let text = String::from_utf8_lossy(&late.stderr);
    assert!(text.contains(&format!("--name {name}")), "{text}");
    assert_eq!(late.status.code(), Some(1));
}

#[test]
fn who_joined_is_told_when_the_devices_are_gone_and_does_not_hang() {
    let mut host = Host::start("killed", &[], "read line");
    let mut joined = host
        .join(&[], "echo in; exec sleep 100")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut line = String::new();
    let output = joined.stdout.as_mut().expect("captured");
    BufReader::new(output).read_line(&mut line).expect("a line");
    host.child.kill().expect("it is there");
    host.child.wait().expect("it ends");
    let joined = joined.wait_with_output().expect("it ends");
    let errors = String::from_utf8_lossy(&joined.stderr);
    assert!(errors.contains("the joined run ended"), "{errors}");
    assert_eq!(joined.status.code(), Some(1));
}

#[test]
fn a_name_is_taken_once_and_signals_reach_a_program_that_joined() {
    let host = Host::start("signals", &[], "read line");
    let again = command(&["--name", &host.name], &["true"]).output().expect("the binary runs");
    let text = String::from_utf8_lossy(&again.stderr);
    assert!(text.contains(&format!("--join {}", host.name)), "{text}");
    let script = "trap 'exit 5' TERM; echo in; while :; do sleep 0.05; done";
    let mut joined =
        host.join(&[], script).stdout(Stdio::piped()).spawn().expect("the binary runs");
    let mut line = String::new();
    let output = joined.stdout.as_mut().expect("captured");
    BufReader::new(output).read_line(&mut line).expect("a line");
    let pid = nix::unistd::Pid::from_raw(joined.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("it is there");
    assert_eq!(joined.wait().expect("it ends").code(), Some(5));
    assert_eq!(host.end(), Some(1), "`read` met the end of its input");
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

/// What the binary says of wrong or special arguments.
fn model(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_verbless-model"));
    let output = command.args(arguments).output().expect("the binary runs");
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn a_mistyped_option_is_not_taken_for_the_program() {
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
fn a_code_is_explained() {
    let (code, text) = model(&["explain", "0x564c0008", "BAD_QP_STATE"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("the capabilities do not offer"), "{text}");
    assert!(text.contains("command status 0x10, BAD_QP_STATE"), "{text}");
    let (code, text) = model(&["explain", "0x12345678"]);
    assert!(code == Some(1) && text.contains("not published"), "{text}");
}

#[test]
fn refusals_are_told_when_they_are_asked_for_and_else_nothing_is() {
    // The ioctl of a method that there is not.
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
fn what_libraries_ask_of_every_device_is_told_at_the_second_v_alone() {
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
fn every_attribute_that_the_kernel_has_of_a_port_can_be_read_and_listed() {
    let script = "cd /sys/class/infiniband/mlx5_0; cd ports/1; for name in lid lid_mask_count \
                  sm_lid sm_sl rate cap_mask state phys_state link_layer; do cat $name; done; ls \
                  counters | wc -l; cat counters/port_xmit_data hw_counters/out_of_sequence; ls -a \
                  .. | tr '\\n' ' '";
    let infiniband = says(&[], script);
    let [lid, lmc, sm_lid, sm_sl, rate, _, state, physical, layer, ..] =
        infiniband.lines().collect::<Vec<_>>()[..]
    else {
        panic!("{infiniband}")
    };
    assert!(lid.starts_with("0x") && lid != "0x0" && sm_lid.starts_with("0x"), "{infiniband}");
    assert_eq!((lmc, sm_sl), ("0", "0"));
    assert!(rate.contains(" Gb/sec (4X "), "{rate}");
    assert_eq!([state, physical, layer], ["4: ACTIVE", "5: LinkUp", "InfiniBand"]);
    assert!(infiniband.ends_with("21\n0\n0\n. .. 1"), "{infiniband}");
    let ethernet = says(&["--link", "ethernet"], script);
    assert!(ethernet.starts_with("0x0\n0\n0x0\n0\n"), "{ethernet}");
    assert!(ethernet.contains("\n0x04010000\n") && ethernet.contains("\nEthernet\n"), "{ethernet}");
    let device = "cd /sys/class/infiniband/mlx5_0/device/ && cat numa_node class && wc -l < \
                  resource && test -s local_cpus && ls -d /sys/class/infiniband/mlx5_*/ports/*/lid \
                  && ls -la /dev/infiniband/ | grep -c uverbs && test -d /dev/infiniband/.. && ls \
                  /dev/infiniband/.. | grep -cx null";
    assert_eq!(
        says(&[], device),
        "-1\n0x020700\n13\n/sys/class/infiniband/mlx5_0/ports/1/lid\n1\n1"
    );
    assert!(says(&[], "ls -la /sys/class/infiniband/ 2>&1 | grep -c '[?]' || true") == "0");
}

#[test]
fn what_is_no_uverbs_device_is_told_of() {
    let (_, text) = model(&["-v", "run", "--", "cat", "/dev/infiniband/rdma_cm"]);
    assert!(
        text.contains("refused with ENOENT: connections by rdma_cm are not modelled"),
        "{text}"
    );
    let (_, text) = model(&["-v", "run", "--", "cat", "/dev/infiniband/umad0"]);
    assert!(text.contains("management datagrams (umad) are not modelled"), "{text}");
}

#[test]
fn devices_and_links_are_told_of_by_netlink() {
    let python = "import socket, struct, sys\n\
        def ask(sock, kind, flags, body=b'', scatter=False):\n\
        \x20   head = struct.pack('IHHII', 16 + len(body), kind, flags, 5, 0)\n\
        \x20   if scatter: sock.sendmsg([head, body], [], 0, (0, 0))\n\
        \x20   else: assert sock.sendto(head + body, (0, 0)) == 16 + len(body)\n\
        \x20   return sock.recv(4096)\n\
        sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 20)\n\
        sock.settimeout(10)\n\
        sock.bind((0, 0))\n\
        assert sock.getsockname()[0] != 0\n\
        one = ask(sock, 5 << 10 | 1, 0x301)\n\
        print(b'mlx5_0\\0' in one, struct.unpack('IHHII', one[:16])[1:4] == (5 << 10 | 1, 2, 5))\n\
        print(b'mlx5_1\\0' in sock.recv(4096), struct.unpack('IHH', sock.recv(4096)[:8])[1:])\n\
        body = struct.pack('HHI', 8, 1, 1) + struct.pack('HH7sx', 11, 69, b'uverbs')\n\
        print(b'uverbs1\\0' in ask(sock, 5 << 10 | 15, 1, body, True))\n\
        unbound = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, 20)\n\
        print(struct.unpack('i', ask(unbound, 5 << 10 | 99, 1)[16:20])[0])\n\
        try: socket.socket(socket.AF_NETLINK, socket.SOCK_STREAM, 20)\n\
        except OSError as error: print(error.errno)\n\
        print(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).fileno() < 48)\n";
    if Command::new("python3").arg("--version").output().is_ok() {
        let output =
            command(&["--devices", "2"], &["python3", "-c", python]).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(text, "True True\nTrue (3, 2)\nTrue\n-22\n94\nTrue\n", "{errors}");
    }
    if Command::new("rdma").arg("-V").output().is_ok() {
        let text = says(&["--devices", "2"], "rdma link; rdma dev");
        assert!(text.contains("link mlx5_1/1 ") && text.contains("state ACTIVE"), "{text}");
        assert!(text.contains("mlx5_0: node_type ca fw ") && text.contains("node_guid"), "{text}");
    }
}
