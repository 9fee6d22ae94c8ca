//! Opens of modelled files behave as on Linux: flags, and the rules of `openat2`.

use std::process::Command;

use super::{command, skipped};

/// Prelude of every script: `attempt` opens a path by `openat2` and returns the error's name.
const PRELUDE: &str = "import ctypes, errno, os, struct\n\
    libc = ctypes.CDLL(None, use_errno=True)\n\
    XDEV, MAGIC, LINKS, BENEATH, ROOT, CACHED = 1, 2, 4, 8, 16, 32\n\
    def attempt(path, flags=0, rules=0, at=-100, mode=0, later=b'', size=24):\n\
    \x20   how = struct.pack('QQQ', flags, mode, rules) + later\n\
    \x20   fd = libc.syscall(437, at, path.encode(), how, size + len(later))\n\
    \x20   if fd < 0: return errno.errorcode[ctypes.get_errno()]\n\
    \x20   os.close(fd)\n\
    \x20   return 'ok'\n\
    def plain(path, flags, mode=0o600):\n\
    \x20   try: os.close(os.open(path, flags, mode))\n\
    \x20   except OSError as error: return errno.errorcode[error.errno]\n\
    \x20   return 'ok'\n\
    node, link = '/dev/infiniband/uverbs0', '/sys/class/infiniband/mlx5_0/node_type'\n\
    def expect(got, *wanted):\n\
    \x20   assert got == list(wanted), got\n";

/// Runs a script under `run`.
fn python(script: &str) {
    if Command::new("python3").arg("--version").output().is_err() {
        return skipped("there is no python3 here");
    }
    let script = format!("{PRELUDE}{script}");
    let output = command(&[], &["python3", "-c", &script]).output().expect("the binary runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn no_symlinks_rule_fails_at_link() {
    python(
        "expect([attempt(link, 0, rule) for rule in (0, MAGIC, LINKS)], 'ok', 'ok', 'ELOOP')\n\
         direct = os.path.realpath(link)\n\
         expect([attempt(path, 0, LINKS) for path in (direct, node)], 'ok', 'ok')\n\
         up = '/sys/class/infiniband/mlx5_0/../..'\n\
         expect([attempt(up, 0, rule) for rule in (0, LINKS)], 'ok', 'ELOOP')\n",
    );
}

#[test]
fn open_how_extension_must_be_zero_within_page() {
    python(
        "def of(later, size=24): return attempt(link, later=later, size=size)\n\
         expect([of(bytes(n)) for n in (1, 8, 4072)], 'ok', 'ok', 'ok')\n\
         expect([of(bytes(4073)), of(bytes(7) + b'x'), of(b'x' + bytes(7))], *3 * ['E2BIG'])\n\
         expect([of(b'', 0), of(b'', 23)], 'EINVAL', 'EINVAL')\n",
    );
}

#[test]
fn no_xdev_path_must_begin_in_device_file_system() {
    python(
        "paths = (link, node, '/dev/infiniband', '/dev/infiniband/..')\n\
         expect([attempt(path, 0, XDEV) for path in paths], *4 * ['EXDEV'])\n\
         sys, dev, root = [os.open(path, os.O_PATH) for path in ('/sys', '/dev', '/')]\n\
         inner = os.open('/sys/class/infiniband', os.O_RDONLY)\n\
         short = 'class/infiniband/mlx5_0/node_type'\n\
         expect([attempt(short, 0, rule, sys) for rule in (XDEV, XDEV | LINKS)], 'ok', 'ELOOP')\n\
         expect([attempt('infiniband/uverbs0', os.O_RDWR, XDEV, dev)], 'ok')\n\
         expect([attempt('mlx5_0/node_type', 0, XDEV, inner)], 'ok')\n\
         expect([attempt('sys/' + short, 0, XDEV, root)], 'EXDEV')\n\
         expect([attempt('../sys/' + short, 0, rule, sys) for rule in (0, XDEV)], 'ok', 'EXDEV')\n",
    );
}

#[test]
fn beneath_and_in_root_paths_reach_devices() {
    python(
        "root, dev, infiniband = [os.open(path, os.O_RDONLY) for path in ('/', '/dev', \
         '/dev/infiniband')]\n\
         def of(path, rules, at):\n\
         \x20   how = struct.pack('QQQ', os.O_RDWR, 0, rules)\n\
         \x20   fd = libc.syscall(437, at, path.encode(), how, 24)\n\
         \x20   return os.major(os.fstat(fd).st_rdev) if fd >= 0 else ctypes.get_errno()\n\
         for at, path in ((root, node[1:]), (dev, 'infiniband/uverbs0'), (infiniband, \
         'uverbs0')):\n\
         \x20   expect([of(path, rule, at) for rule in (0, BENEATH, ROOT)], 231, 231, 231)\n\
         expect([of('/infiniband/uverbs0', rule, dev) for rule in (BENEATH, ROOT)], 18, 231)\n\
         expect([of('../dev/infiniband/uverbs0', rule, dev) for rule in (BENEATH, ROOT)], 18, 2)\n\
         places = os.open('/sys/class', os.O_PATH)\n\
         found = [attempt('infiniband/mlx5_0/node_type', 0, rule, places) for rule in (BENEATH, \
         ROOT)]\n\
         expect(found, 'EXDEV', 'ENOENT')\n\
         sys = os.open('/sys', os.O_PATH)\n\
         found = [attempt(link[5:], 0, rule, sys) for rule in (BENEATH, ROOT)]\n\
         expect(found, 'ok', 'ok')\n\
         expect([attempt(link, 0, rule) for rule in (CACHED, 64, BENEATH | ROOT)], \
         'EAGAIN', 'EINVAL', 'EINVAL')\n",
    );
}

#[test]
fn open_flags_are_rejected_with_the_errno_of_linux() {
    python(
        "place, missing = '/sys/class/infiniband', '/sys/class/infiniband/nothing'\n\
         paths = (place, place + '/', link, missing, missing + '/', missing + '/x', node, \
         '/dev/infiniband/..')\n\
         R, W, C, X, T = os.O_RDONLY, os.O_WRONLY, os.O_CREAT, os.O_EXCL, os.O_TRUNC\n\
         def all(flags, *wanted): expect([plain(path, flags) for path in paths], *wanted)\n\
         no, directory = 'ENOENT', 'EISDIR'\n\
         all(R, 'ok', 'ok', 'ok', no, no, no, 'ok', 'ok')\n\
         for flags in (W, os.O_RDWR, T, os.O_ACCMODE if hasattr(os, 'O_ACCMODE') else 3):\n\
         \x20   all(flags, directory, directory, 'EACCES', no, no, no, 'ok', directory)\n\
         all(C, directory, directory, 'ok', 'EACCES', directory, no, 'ok', directory)\n\
         all(C | X, 'EEXIST', directory, 'EEXIST', 'EACCES', directory, no, 'EEXIST', 'EEXIST')\n\
         all(C | os.O_DIRECTORY, *8 * ['EINVAL'])\n\
         all(os.O_TMPFILE, *8 * ['EINVAL'])\n\
         wanted = ('EACCES', 'EACCES', 'ENOTDIR', no, no, no, 'ENOTDIR', 'EACCES')\n\
         all(os.O_TMPFILE | W, *wanted)\n\
         expect([plain('/sys/class/infiniband/mlx5_0', flags) for flags in (os.O_NOFOLLOW, C | X, \
         C)], 'ELOOP', 'EEXIST', directory)\n\
         expect([plain(path, R) for path in (node + '/', link + '/')], 'ENOTDIR', 'ENOTDIR')\n",
    );
}
