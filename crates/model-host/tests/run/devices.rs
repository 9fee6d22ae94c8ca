//! Devices under `run`: nodes, sysfs, netlink, descriptors.

use std::process::Command;

use super::{command, output_of, run, skipped};

#[test]
fn devices_have_the_paths_of_the_kernel() {
    let attributes = "cd / && cat sys/class/infiniband/mlx5_1/node_type \
        /sys/class/infiniband_verbs/uverbs1/dev /sys/class/infiniband/mlx5_1/ports/1/state";
    assert_eq!(output_of(&["--devices", "2"], attributes), "1: CA\n231:193\n4: ACTIVE");
    assert_eq!(output_of(&["--devices", "2"], "ls /dev/infiniband"), "uverbs0\nuverbs1");
    assert_eq!(
        output_of(&[], "stat -c '%F %t:%T %a' /dev/infiniband/uverbs0"),
        "character special file e7:c0 666"
    );
    let read = run(&[], "cat /dev/infiniband/uverbs0");
    assert_eq!((read.status.code(), &*read.stdout), (Some(1), &b""[..]));
    let errors = String::from_utf8_lossy(&read.stderr);
    assert!(errors.contains("Invalid argument"), "{errors}");
    assert_eq!(
        output_of(
            &[],
            "test -r /dev/infiniband/uverbs0 && test -w /dev/infiniband/uverbs0 && echo yes"
        ),
        "yes"
    );
    assert_eq!(
        output_of(&[], "readlink /sys/class/infiniband/mlx5_0/device/driver"),
        "../../../bus/pci/drivers/mlx5_core"
    );
    assert_eq!(
        output_of(&[], "realpath /sys/class/infiniband/mlx5_0/device"),
        "/sys/devices/pcifb0b:00/fb0b:00:01.0"
    );
    let ethernet = "cat /sys/class/infiniband/mlx5_0/ports/1/link_layer";
    assert_eq!(output_of(&["--link", "ethernet"], ethernet), "Ethernet");
}

#[test]
fn other_files_are_untouched() {
    assert_eq!(output_of(&[], "cat /proc/self/comm"), "cat");
    assert_eq!(run(&[], "cat /sys/class/infiniband/mlx5_7/node_type").status.code(), Some(1));
    assert_eq!(
        run(&[], "cat /sys/class/infiniband/../../../etc/shadow-of-nothing").status.code(),
        Some(1)
    );
    let attempts = "echo x 2>/dev/null > /sys/class/infiniband/mlx5_0/node_desc; \
        echo x 2>/dev/null > /dev/infiniband/new; test ! -e /dev/infiniband/new && echo untouched";
    assert_eq!(output_of(&[], attempts), "untouched");
}

#[test]
fn open_device_is_char_device_with_ioctls() {
    // The shell duplicates the descriptor to another number; the device closes with its last one.
    let script = "exec 5<>/dev/infiniband/uverbs0 && readlink /proc/self/fd/5 && exec 5<&-";
    assert!(output_of(&[], script).contains("verbless-uverbs"));
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
    if Command::new("python3").arg("--version").output().is_err() {
        return skipped("there is no python3 here");
    }
    let output = command(&[], &["python3", "-c", python]).output().expect("the binary runs");
    let text = String::from_utf8_lossy(&output.stdout).to_string();
    assert_eq!(
        text,
        "EINVAL\nENOTTY\nENOENT\nENOTDIR\n0\nEPERM\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn in_root_path_does_not_reach_device_tree() {
    // openat2 with RESOLVE_IN_ROOT, as container runtimes open paths.
    let python = "import ctypes, os, struct, tempfile\n\
        with tempfile.TemporaryDirectory() as root:\n\
        \x20   os.makedirs(root + '/dev/infiniband/here')\n\
        \x20   how = struct.pack('QQQ', os.O_RDONLY, 0, 0x10)\n\
        \x20   fd = os.open(root, os.O_PATH)\n\
        \x20   found = ctypes.CDLL(None).syscall(437, fd, b'/dev/infiniband', how, 24)\n\
        \x20   print(os.listdir(found))\n";
    if Command::new("python3").arg("--version").output().is_err() {
        return skipped("there is no python3 here");
    }
    let output = command(&[], &["python3", "-c", python]).output().expect("the command runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "['here']\n", "{errors}");
}

#[test]
fn duplicated_descriptor_is_device() {
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
    if Command::new("python3").arg("--version").output().is_err() {
        return skipped("there is no python3 here");
    }
    let output = command(&[], &["python3", "-c", python]).output().expect("the binary runs");
    let text = String::from_utf8_lossy(&output.stdout).to_string();
    let expected = "EINVAL\nENOTTY\nEINVAL\nENODEV\nEINVAL\nENOENT\n";
    assert_eq!(text, expected, "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[cfg(target_arch = "x86_64")]
fn clock_page_maps_read_only() {
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
fn chdir_enters_and_leaves_device_tree() {
    let script = "cd /sys/class/infiniband && pwd -P && echo * && cat mlx5_1/node_type && cd \
                  mlx5_1/ports && (cd / && cd /dev/infiniband && ls && cd .. && pwd -P) && env pwd \
                  -P && cd .. && cat node_type && cd /tmp && pwd -P";
    let expected = "/sys/class/infiniband\nmlx5_0 mlx5_1\n1: CA\nuverbs0\nuverbs1\n/dev\n\
        /sys/devices/pcifb0b:00/fb0b:00:02.0/infiniband/mlx5_1/ports\n1: CA\n/tmp";
    assert_eq!(output_of(&["--devices", "2"], script), expected);
    for (place, why) in [
        ("/sys/class/infiniband/mlx5_7", "No such file"),
        ("/sys/class/infiniband/mlx5_0/node_type", "Not a directory"),
    ] {
        let output =
            command(&[], &["env", "-C", place, "true"]).output().expect("the command runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(why), "{place}: {text}");
    }
    // Signals that arrive meanwhile are delivered and disturb nothing; no descriptor is left.
    let python = "import errno, os, resource, signal\n\
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
        assert os.major(os.stat('uverbs0', dir_fd=directory).st_rdev) == 231\n\
        resource.setrlimit(resource.RLIMIT_NOFILE, (directory + 1, directory + 1))\n\
        try: os.chdir('/sys/class/infiniband')\n\
        except OSError as error: assert error.errno == errno.EMFILE\n\
        assert os.getcwd() == '/dev'\n";
    if Command::new("python3").arg("--version").output().is_err() {
        return skipped("there is no python3 here");
    }
    let output = command(&[], &["python3", "-c", python]).output().expect("the binary runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn port_attributes_are_readable() {
    let script = "cd /sys/class/infiniband/mlx5_0; cd ports/1; for name in lid lid_mask_count \
                  sm_lid sm_sl rate cap_mask state phys_state link_layer; do cat $name; done; ls \
                  counters | wc -l; cat counters/port_xmit_data hw_counters/out_of_sequence; ls -a \
                  .. | tr '\\n' ' '";
    let infiniband = output_of(&[], script);
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
    let ethernet = output_of(&["--link", "ethernet"], script);
    assert!(ethernet.starts_with("0x0\n0\n0x0\n0\n"), "{ethernet}");
    assert!(ethernet.contains("\n0x04010000\n") && ethernet.contains("\nEthernet\n"), "{ethernet}");
    let device = "cd /sys/class/infiniband/mlx5_0/device/ && cat numa_node class && wc -l < \
                  resource && test -s local_cpus && ls -d /sys/class/infiniband/mlx5_*/ports/*/lid \
                  && ls -la /dev/infiniband/ | grep -c uverbs && test -d /dev/infiniband/.. && ls \
                  /dev/infiniband/.. | grep -cx infiniband";
    assert_eq!(
        output_of(&[], device),
        "-1\n0x020700\n13\n/sys/class/infiniband/mlx5_0/ports/1/lid\n1\n1"
    );
    assert!(output_of(&[], "ls -la /sys/class/infiniband/ 2>&1 | grep -c '[?]' || true") == "0");
}

#[test]
fn netlink_lists_devices_and_links() {
    let python = "import fcntl, socket, struct, sys\n\
        def waits(sock): return fcntl.fcntl(sock, fcntl.F_GETFL) & 0o4000 == 0\n\
        def ask(sock, kind, flags, body=b'', scatter=False):\n\
        \x20   head = struct.pack('IHHII', 16 + len(body), kind, flags, 5, 0)\n\
        \x20   if scatter: sock.sendmsg([head, body], [], 0, (0, 0))\n\
        \x20   else: assert sock.sendto(head + body, (0, 0)) == 16 + len(body)\n\
        \x20   return sock.recv(4096)\n\
        sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 20)\n\
        assert waits(sock)\n\
        sock.settimeout(10)\n\
        sock.bind((0, 0))\n\
        assert sock.getsockname()[0] != 0\n\
        one = ask(sock, 5 << 10 | 1, 0x301)\n\
        print(b'mlx5_0\\0' in one, struct.unpack('IHHII', one[:16])[1:4] == (5 << 10 | 1, 2, 5))\n\
        print(b'mlx5_1\\0' in sock.recv(4096), struct.unpack('IHH', sock.recv(4096)[:8])[1:])\n\
        body = struct.pack('HHI', 8, 1, 1) + struct.pack('HH7sx', 11, 69, b'uverbs')\n\
        print(b'uverbs1\\0' in ask(sock, 5 << 10 | 15, 1, body, True))\n\
        unbound = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, 20)\n\
        assert not waits(unbound)\n\
        print(struct.unpack('i', ask(unbound, 5 << 10 | 99, 1)[16:20])[0])\n\
        try: socket.socket(socket.AF_NETLINK, socket.SOCK_STREAM, 20)\n\
        except OSError as error: print(error.errno)\n\
        print(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).fileno() < 48)\n";
    if Command::new("python3").arg("--version").output().is_err() {
        return skipped("there is no python3 here");
    }
    let output = command(&["--devices", "2"], &["python3", "-c", python])
        .output()
        .expect("the command runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(text, "True True\nTrue (3, 2)\nTrue\n-22\n94\nTrue\n", "{errors}");
    if Command::new("rdma").arg("-V").output().is_err() {
        return skipped("there is no rdma here");
    }
    let text = output_of(&["--devices", "2"], "rdma link; rdma dev");
    assert!(text.contains("link mlx5_1/1 ") && text.contains("state ACTIVE"), "{text}");
    assert!(text.contains("mlx5_0: node_type ca fw ") && text.contains("node_guid"), "{text}");
}

#[test]
fn rdma_tool_counts_only_contexts_of_programs() {
    if Command::new("rdma").arg("-V").output().is_err() {
        return skipped("there is no rdma here");
    }
    let python = "import ctypes, subprocess\n\
        ibv = ctypes.CDLL('libibverbs.so.1')\n\
        ibv.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)\n\
        ibv.ibv_open_device.restype = ctypes.c_void_p\n\
        ibv.ibv_open_device.argtypes = [ctypes.c_void_p]\n\
        devices = ibv.ibv_get_device_list(None)\n\
        held = ibv.ibv_open_device(devices[0])\n\
        print(bool(held), subprocess.check_output(['rdma', 'res']).decode())\n";
    let output = command(&[], &["python3", "-c", python]).output().expect("the command runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(text.starts_with("True") && text.contains(" ctx 1 "), "{text}{errors}");
}

#[test]
fn pci_listing_adds_modelled_functions() {
    let list = "ls /sys/bus/pci/devices";
    let own = std::fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten();
    let mut expected: Vec<String> =
        own.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    if let Some(name) = expected.first() {
        let file = format!("/sys/bus/pci/devices/{name}/vendor");
        let vendor = std::fs::read_to_string(&file).expect("the file exists");
        assert_eq!(
            output_of(&[], &format!("cat {file}")),
            vendor.trim_end(),
            "the kernel's own file is read"
        );
        let relative = format!("cd /sys/bus/pci/devices; cat {name}/vendor");
        assert_eq!(output_of(&[], &relative), vendor.trim_end());
    }
    expected.extend(["fb0b:00:01.0".into(), "fb0b:00:02.0".into()]);
    expected.sort_unstable();
    let mut found: Vec<String> =
        output_of(&["--devices", "2"], list).lines().map(str::to_string).collect();
    found.sort_unstable();
    assert_eq!(found, expected);
    let at = "/sys/bus/pci/devices/fb0b:00:01.0";
    let module = format!("basename $(realpath {at}/driver/module); ls {at}/driver/");
    assert_eq!(output_of(&[], &module), "mlx5_core\nfb0b:00:01.0\nmodule");
    assert_eq!(output_of(&[], "cat /sys/module/mlx5_core/initstate"), "live");
    // Vendor and device; the capabilities: power, Express, MSI-X, vendor specific.
    let words = format!("od -An -v -tx1 -w256 -N256 {at}/config");
    let bytes: Vec<u8> = output_of(&["--profile", "connectx6dx"], &words)
        .split_whitespace()
        .map(|byte| u8::from_str_radix(byte, 16).expect("a byte"))
        .collect();
    assert_eq!(bytes[..4], [0xb3, 0x15, 0x1d, 0x10]);
    let (mut next, mut list) = (usize::from(bytes[0x34]), Vec::new());
    while next != 0 {
        list.push(bytes[next]);
        next = bytes[next + 1].into();
    }
    assert_eq!(list, [1, 0x10, 0x11, 9]);
}
