//! `/dev/fwctl/fwctlN` under `run`: files, ioctls, close.

use std::process::Command;

use super::{command, output_of, run, skipped};

/// Output of a Python program with `rpc(fd, scope, input, room)`, which returns the output or the
/// name of an errno. `None` without Python.
fn python(options: &[&str], program: &str) -> Option<String> {
    if Command::new("python3").arg("--version").output().is_err() {
        skipped("there is no python3 here");
        return None;
    }
    let prelude = "import ctypes, errno, fcntl, mmap, os, stat, struct, sys\n\
        def attempt(what, *arguments):\n\
        \x20   try: return what(*arguments)\n\
        \x20   except OSError as error:\n\
        \x20       name = errno.errorcode[error.errno]\n\
        \x20       return 'EOPNOTSUPP' if name == 'ENOTSUP' else name\n\
        def rpc(fd, scope, data, room=16):\n\
        \x20   into, out = ctypes.create_string_buffer(data, len(data)), \
        ctypes.create_string_buffer(room)\n\
        \x20   call = struct.pack('IIIIQQ', 32, scope, len(data), room, \
        ctypes.addressof(into), ctypes.addressof(out))\n\
        \x20   answer = attempt(fcntl.ioctl, fd, 0x9a01, bytearray(call))\n\
        \x20   return answer if answer != 0 else out.raw\n\
        def head(opcode, op_mod=0): return struct.pack('>HHHHII', opcode, 0, 0, op_mod, 0, 0)\n\
        fd = os.open('/dev/fwctl/fwctl0', os.O_RDWR)\n";
    let program = format!("{prelude}{program}");
    let options = [&["--fwctl-mode", "666"], options].concat();
    let output = command(&options, &["python3", "-c", &program]).output().expect("the binary runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert_eq!(errors, "");
    Some(String::from_utf8(output.stdout).expect("text"))
}

#[test]
fn control_files_have_the_paths_of_the_kernel() {
    assert_eq!(output_of(&["--devices", "2"], "ls /dev/fwctl"), "fwctl0\nfwctl1");
    let attributes = "cat /sys/class/infiniband/mlx5_1/device/fwctl/fwctl1/dev && \
        cat /sys/class/fwctl/fwctl1/device/vendor && realpath /sys/class/fwctl/fwctl1";
    let found = output_of(&["--devices", "2"], attributes);
    let expected = "240:1\n0x15b3\n/sys/devices/pcifb0b:00/fb0b:00:02.0/fwctl/fwctl1";
    assert_eq!(found, expected);
    let node = "stat -c '%F %t:%T' /dev/fwctl/fwctl0";
    assert_eq!(output_of(&[], node), "character special file f0:0");
    let read = run(&["--fwctl-mode", "666"], "cat /dev/fwctl/fwctl0");
    assert!(String::from_utf8_lossy(&read.stderr).contains("Invalid argument"), "{read:?}");
    assert_eq!(
        run(&["--fwctl-mode", "666"], "cat /dev/fwctl/fwctl1").status.code(),
        Some(1),
        "there is no other"
    );
    // Linux makes no fwctl device for a sub-function; the DPU side of a card has two PFs and two
    // sub-functions.
    let options = ["--profile", "bluefield3", "--topology", "--side", "dpu"];
    let counts = "ls /dev/infiniband | wc -l; ls /dev/fwctl | wc -l";
    assert_eq!(output_of(&options, counts), "4\n2");
}

#[test]
fn fwctl_rpc_is_checked_by_scope_and_size() {
    let program = "data = ctypes.create_string_buffer(8)\n\
        info = bytearray(struct.pack('IIIIQ', 24, 0, 0, 8, ctypes.addressof(data)))\n\
        print(attempt(fcntl.ioctl, fd, 0x9a00, info), struct.unpack('IIII', info[:16])[2:])\n\
        uid, caps = struct.unpack('II', data.raw)\n\
        print(uid > 0, caps)\n\
        print(b'VBL0000000001' in rpc(fd, 0, head(0x101), 0x110))\n\
        print(rpc(fd, 0, head(0x100, 1), 0x1010)[0], rpc(fd, 0, head(0x200)), \
        rpc(fd, 2, head(0x200)))\n\
        print(rpc(fd, 0, head(0x50b)), rpc(fd, 1, head(0x50b))[0] != 0)\n\
        print(rpc(fd, 0, b''), rpc(fd, 9, head(0x101)), attempt(fcntl.ioctl, fd, 0x9a02, info))\n\
        info[0] = 8\n\
        print(attempt(fcntl.ioctl, fd, 0x9a00, info), attempt(mmap.mmap, fd, 4096))\n\
        print(attempt(fcntl.ioctl, fd, 0xc0181b01, bytes(24)), attempt(os.ftruncate, fd, 0))\n\
        verbs = os.open('/dev/infiniband/uverbs0', os.O_RDWR)\n\
        print(attempt(fcntl.ioctl, verbs, 0x9a00, info))\n\
        print(stat.S_ISCHR(os.fstat(fd).st_mode), os.fstat(fd).st_rdev == os.makedev(240, 0))\n";
    let Some(said) = python(&["--profile", "bluefield3"], program) else { return };
    let expected = "0 (1, 8)\n\
        True 4\n\
        True\n\
        0 EBADMSG EBADMSG\n\
        EBADMSG True\n\
        EMSGSIZE EOPNOTSUPP ENOTTY\n\
        EINVAL ENODEV\n\
        ENOTTY EINVAL\n\
        ENOTTY\n\
        True True\n";
    assert_eq!(said, expected);
}

#[test]
fn fwctl_reads_registers_if_firmware_allows() {
    // ACCESS_REGISTER of NIC_CAP_EXT, group 1: the number of execution units comes first.
    let program = "head = struct.pack('>HHHHHHI', 0x805, 0, 0, 1, 0, 0xc011, 0)\n\
        out = rpc(fd, 1, head + struct.pack('>HH', 1, 0) + bytes(0x7c), 0x90)\n\
        print(out[0], any(out[0x20:]), rpc(fd, 0, head + bytes(0x80), 0x90))\n";
    let of = |profile| python(&["--profile", profile], program);
    let Some(said) = of("bluefield3-fwctl") else { return };
    assert_eq!(said, "0 True EBADMSG\n");
    assert_eq!(of("connectx6dx").as_deref(), Some("2 False EBADMSG\n"), "BAD_OP");
}

#[test]
fn fwctl_context_lives_until_last_close() {
    let program = "copy = os.dup(fd)\n\
        os.close(fd)\n\
        child = os.fork()\n\
        if child == 0:\n\
        \x20   print(rpc(copy, 0, head(0x101), 0x110)[0], flush=True)\n\
        \x20   os._exit(0)\n\
        os.waitpid(child, 0)\n\
        print(rpc(copy, 0, head(0x101), 0x110)[0])\n\
        os.close(copy)\n\
        for _ in range(50):\n\
        \x20   os.close(os.open('/dev/fwctl/fwctl0', os.O_RDWR))\n\
        fd = os.open('/dev/fwctl/fwctl0', os.O_RDWR)\n\
        data = ctypes.create_string_buffer(8)\n\
        info = bytearray(struct.pack('IIIIQ', 24, 0, 0, 8, ctypes.addressof(data)))\n\
        fcntl.ioctl(fd, 0x9a00, info)\n\
        print(struct.unpack('II', data.raw)[0] < 20)\n";
    let Some(said) = python(&[], program) else { return };
    assert_eq!(said, "0\n0\nTrue\n", "closed files destroy their user contexts");
    // A killed program leaves no object behind: `run` would report one.
    for _ in 0..5 {
        let output = run(&["--fwctl-mode", "666"], "exec 5<>/dev/fwctl/fwctl0; kill -9 $$");
        assert_eq!(output.status.code(), Some(128 + 9));
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
}

#[test]
fn fwctl_node_is_root_only_by_default() {
    let shown = "stat -c '%a %u %g' /dev/fwctl/fwctl0 /dev/infiniband/uverbs0";
    assert_eq!(output_of(&[], shown), "600 0 0\n666 0 0");
    assert_eq!(output_of(&["--fwctl-mode", "640"], shown), "640 0 0\n666 0 0");
    let used = "test -r /dev/fwctl/fwctl0; echo $?; (exec 5<>/dev/fwctl/fwctl0) 2>&1; echo $?";
    let is_root = nix::unistd::geteuid().is_root();
    if is_root {
        assert_eq!(output_of(&[], used), "0\n0");
    }
    let other: &[&str] = if is_root {
        &["setpriv", "--reuid=54321", "--clear-groups", "sh", "-c"]
    } else {
        &["sh", "-c"]
    };
    let by_other = |options: &[&str]| {
        let output =
            command(options, &[other, &[used]].concat()).output().expect("the command runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let refused = by_other(&[]);
    assert!(refused.starts_with("1\n") && refused.contains("Permission denied"), "{refused}");
    assert_eq!(by_other(&["--fwctl-mode", "666"]), "0\n0\n");
}
