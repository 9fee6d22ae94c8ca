"""A program that tries to leave its root directory through the files that `run` gives it.

Arguments: the path of a directory outside the root, and the names of attacks. Prints a line for
each attack that succeeded, and "done".
"""
import array
import ctypes
import errno
import os
import socket
import struct
import sys
import threading
import time

SECRET = sys.argv[1]
CLASS, ATTRIBUTE = '/sys/class/infiniband', '/sys/class/infiniband/mlx5_0/node_type'
libc = ctypes.CDLL(None, use_errno=True)
UPS = ['../' * depth for depth in range(1, 12)]


def leaked(how):
    print('LEAK', how, flush=True)


def sees(how, attempt):
    """Reports an attempt that returns something."""
    try:
        found = attempt()
    except (OSError, ValueError, EOFError):
        return
    if found:
        leaked(how)


def text_at(path, **options):
    fd = os.open(path, os.O_RDONLY, **options)
    try:
        return b'secret' in os.read(fd, 100)
    finally:
        os.close(fd)


def given():
    """Opens the directories and files that `run` serves, except those that it refuses."""
    for path in (CLASS, '/dev/infiniband', '/sys/class', '/sys/class/infiniband/mlx5_0/device',
                 '/dev/infiniband/..', '/sys/class/infiniband/..', CLASS + '/../..',
                 CLASS + '/mlx5_0/../../../..'):
        for flags in (os.O_RDONLY, os.O_PATH, os.O_RDONLY | os.O_DIRECTORY):
            try:
                yield path, os.open(path, flags)
            except OSError:
                continue


def names(fd):
    return 'secret' in os.listdir(fd)


def listing():
    """Attack: a served directory, or its path, is the directory outside."""
    for path, fd in given():
        sees('listing of ' + path, lambda: names(fd))
        sees('file in ' + path, lambda: text_at('secret', dir_fd=fd))
        os.close(fd)
    for path in ('/dev/infiniband/..', CLASS + '/..', CLASS + '/mlx5_0/../../..'):
        sees('stat of ' + path, lambda: os.stat(path).st_ino == int(sys.argv[3]))
        sees('list of ' + path, lambda: 'secret' in os.listdir(path))


def up():
    """Attack: `..` from a served directory, in every call that takes a descriptor."""
    for path, fd in given():
        for dots in UPS:
            there = dots + SECRET[1:]
            file = there + '/secret'
            sees('openat from ' + path, lambda: text_at(file, dir_fd=fd))
            sees('magic link of ' + path, lambda: text_at('/proc/self/fd/%d/%s' % (fd, file)))
            sees('stat from ' + path, lambda: os.stat(file, dir_fd=fd))
            sees('access from ' + path, lambda: os.access(file, os.F_OK, dir_fd=fd))
            sees('readlink from ' + path, lambda: os.readlink(there + '/link', dir_fd=fd))
            sees('mkdir from ' + path, lambda: os.mkdir(there + '/made', dir_fd=fd) is None)
            sees('mknod from ' + path, lambda: os.mknod(there + '/node', dir_fd=fd) is None)
            sees('symlink from ' + path, lambda: os.symlink('x', there + '/new', dir_fd=fd) is None)
            sees('chmod from ' + path, lambda: os.chmod(file, 0o666, dir_fd=fd) is None)
            sees('utime from ' + path, lambda: os.utime(file, dir_fd=fd) is None)
            sees('rename from ' + path, lambda: os.rename(
                there + '/moved', there + '/away', src_dir_fd=fd, dst_dir_fd=fd) is None)
            sees('link from ' + path, lambda: os.link(
                file, there + '/linked', src_dir_fd=fd, dst_dir_fd=fd) is None)
            sees('unlink from ' + path, lambda: os.unlink(there + '/gone', dir_fd=fd) is None)
            sees('statfs from ' + path, lambda: os.statvfs('/proc/self/fd/%d/%s' % (fd, file)))
            sees('execveat from ' + path, lambda: executes(fd, there + '/program'))
            handle = ctypes.create_string_buffer(struct.pack('Ii', 128, 0) + bytes(128))
            mount = ctypes.c_int()
            sees('handle from ' + path, lambda: libc.name_to_handle_at(
                fd, file.encode(), handle, ctypes.byref(mount), 0) == 0)
            sees('uring from ' + path, lambda: by_ring(fd, file))
        sees('directory of ' + path, lambda: by_directory(fd))
        os.close(fd)


def executes(fd, path):
    pid = os.fork()
    if pid == 0:
        argv = (ctypes.c_char_p * 2)(b'x', None)
        libc.syscall(322 if os.uname().machine == 'x86_64' else 281, fd, path.encode(), argv, None, 0)
        os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def by_directory(fd):
    """fchdir, and relative paths from there."""
    pid = os.fork()
    if pid == 0:
        try:
            os.fchdir(fd)
            found = any(os.path.exists(dots + SECRET[1:] + '/secret') for dots in UPS)
            os._exit(0 if found else 1)
        except OSError:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def by_ring(fd, path, ring=[]):
    """openat by io_uring, which no filter sees."""
    import mmap
    if not ring:
        params = bytearray(120)
        raw = (ctypes.c_char * 120).from_buffer(params)
        number = libc.syscall(425, 4, raw)
        if number < 0:
            ring.append(None)
        else:
            ring.append((number, mmap.mmap(number, 4096, offset=0),
                         mmap.mmap(number, 4096, offset=0x10000000), struct.unpack('30I', params)))
    if ring[0] is None:
        return False
    number, rings, entries, params = ring[0]
    head, tail, mask, _, _, _, array_at = params[10:17]
    cq_head, cq_tail, cq_mask, _, _, cqes = params[20:26]
    name = ctypes.create_string_buffer(path.encode())
    at = struct.unpack_from('I', rings, tail)[0]
    entry = struct.pack('BBHiQQIIQ', 18, 0, 0, fd, 0, ctypes.addressof(name), 0, 0, 1)
    slot = at & struct.unpack_from('I', rings, mask)[0]
    entries[slot * 64:slot * 64 + 64] = entry.ljust(64, b'\0')
    struct.pack_into('I', rings, array_at + 4 * slot, slot)
    struct.pack_into('I', rings, tail, at + 1)
    if libc.syscall(426, number, 1, 1, 1, None, 0) < 0:
        return False
    done = struct.unpack_from('I', rings, cq_head)[0]
    place = cqes + 16 * (done & struct.unpack_from('I', rings, cq_mask)[0])
    result = struct.unpack_from('i', rings, place + 8)[0]
    struct.pack_into('I', rings, cq_head, done + 1)
    if result >= 0:
        os.close(result)
    return result >= 0


def change():
    """Attack: a working directory in the tree."""
    for path in (CLASS, CLASS + '/..', '/dev/infiniband', '/dev/infiniband/..'):
        os.chdir('/')
        try:
            os.chdir(path)
        except OSError:
            continue
        for _ in range(12):
            sees('directory ' + path, lambda: 'secret' in os.listdir('.'))
            for dots in UPS:
                sees('path from ' + path, lambda: os.path.exists(dots + SECRET[1:] + '/secret'))
            sees('magic link of ' + path, lambda: os.path.exists('/proc/self/cwd/../..' + SECRET))
            try:
                os.chdir('..')
            except OSError:
                break
    os.chdir('/')


def write():
    """Attack: change files of the tree, which other programs read."""
    try:
        fd = os.open(ATTRIBUTE, os.O_RDONLY)
    except OSError:
        return
    own = '/proc/self/fd/%d' % fd
    sees('chmod of an attribute', lambda: os.fchmod(fd, 0o666) is None)
    sees('write of an attribute', lambda: os.open(own, os.O_RDWR))
    sees('truncate of an attribute', lambda: os.truncate(own, 0) is None)
    for path, fd in given():
        if path == CLASS and entries(fd):
            sees('a new file in ' + path, lambda: os.mknod('verbless-new', dir_fd=fd) is None)
            sees('a lost file in ' + path, lambda: os.unlink('mlx5_0', dir_fd=fd) is None)
        os.close(fd)


def entries(fd):
    try:
        return 'mlx5_0' in os.listdir(fd)
    except OSError:
        return False


def mount():
    """Attack: take the tree's file system into a new mount namespace."""
    pid = os.fork()
    if pid == 0:
        try:
            root = os.open(CLASS, os.O_RDONLY)
            for dots in UPS:
                try:
                    root = os.open(dots, os.O_RDONLY, dir_fd=root)
                except OSError:
                    break
        except OSError:
            os._exit(1)
        libc.unshare(0x10000000 | 0x20000)
        os.makedirs('/tmp/onto', exist_ok=True)
        empty = ctypes.c_char_p(b'')
        moved = libc.syscall(429, root, empty, -100, b'/tmp/onto', 4)
        copy = libc.syscall(428, root, empty, 0x1000 | 1)
        if copy >= 0 and os.listdir(copy) != os.listdir(root):
            copy = -1
        os._exit(0 if moved == 0 or copy >= 0 else 1)
    if os.waitpid(pid, 0)[1] == 0:
        leaked('the tree is mounted elsewhere')


def race():
    """Attack: threads change paths, descriptors, links and the working directory meanwhile."""
    end = time.monotonic() + 3
    good, bad = CLASS.encode(), ('../' * 11 + SECRET[1:] + '/secret').encode()
    length = max(len(good), len(bad), 120) + 1
    path = ctypes.create_string_buffer(length)
    shared = os.open('/', os.O_RDONLY)

    def swap():
        while time.monotonic() < end:
            for text in (good + b'/..', bad, b'/dev/infiniband/..', b'..', b'mlx5_0', good):
                ctypes.memmove(path, text + b'\0', len(text) + 1)
                try:
                    os.chdir(CLASS if text == bad else '/')
                except OSError:
                    pass

    def replace():
        while time.monotonic() < end:
            for place in (CLASS, '/', '/dev/infiniband', '/sys'):
                try:
                    fd = os.open(place, os.O_RDONLY)
                    os.dup2(fd, shared)
                    os.close(fd)
                except OSError:
                    pass

    def links():
        while time.monotonic() < end:
            for target in (SECRET, '/tmp'):
                try:
                    os.symlink(target, '/tmp/next')
                    os.rename('/tmp/next', '/sys/class')
                except OSError:
                    pass

    def scan():
        # Finds descriptors that exist only briefly.
        while time.monotonic() < end:
            for fd in range(3, 40):
                if fd == shared:
                    continue
                for dots in UPS[5:]:
                    try:
                        if os.path.exists('/proc/self/fd/%d/%s%s/secret' % (fd, dots, SECRET[1:])):
                            leaked('descriptor %d, for a moment' % fd)
                            return
                    except OSError:
                        pass

    threads = [threading.Thread(target=it) for it in (swap, replace, links, scan)]
    for thread in threads:
        thread.start()
    try:
        while time.monotonic() < end:
            for start in (-100, shared):
                fd = libc.syscall(257 if os.uname().machine == 'x86_64' else 56, start, path, 0)
                if fd < 0:
                    continue
                try:
                    sees('openat in a race', lambda: b'secret' in os.read(fd, 6))
                    sees('listing in a race', lambda: names(fd))
                    sees('openat up in a race', lambda: text_at(bad, dir_fd=fd))
                finally:
                    os.close(fd)
            status = ctypes.create_string_buffer(256)
            if libc.stat(path, status) == 0:
                inode = struct.unpack_from('Q', status, 8)[0]
                sees('stat in a race', lambda: inode == int(sys.argv[3]))
            libc.chdir(path)
            sees('directory in a race', lambda: 'secret' in os.listdir('.'))
    finally:
        for thread in threads:
            thread.join()


def absent_memory():
    """Memory whose page never arrives (userfaultfd)."""
    import fcntl
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [ctypes.c_long]
    number = libc.syscall(323 if os.uname().machine == 'x86_64' else 282, os.O_CLOEXEC)
    if number < 0:
        os._exit(1)
    fcntl.ioctl(number, 0xc018aa3f, bytearray(struct.pack('QQQ', 0xaa, 0, 0)))
    place = libc.mmap(None, 4096, 3, 0x22, -1, 0)
    fcntl.ioctl(number, 0xc020aa00, bytearray(struct.pack('QQQQ', place, 4096, 1, 0)))
    return ctypes.c_void_p(place)


def stall():
    """As `join`, with a first call whose path's memory never arrives; others join meanwhile."""
    join(absent=True)


def join(absent=False):
    """Attack: join a run with a filter of our own; the run tries to give it a descriptor."""
    name = sys.argv[4]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        number, architecture = (257, 0xc000003e) if os.uname().machine == 'x86_64' \
            else (56, 0xc00000b7)
        del architecture
        filters = struct.pack('HBBI' * 4, 0x20, 0, 0, 0, 0x15, 0, 1, number, 0x06, 0, 0,
                              0x7fc00000, 0x06, 0, 0, 0x7fff0000)
        program = ctypes.create_string_buffer(filters)
        header = ctypes.create_string_buffer(struct.pack('HxxxxxxQ', 4, ctypes.addressof(program)))
        libc.prctl(38, 1, 0, 0, 0)
        first, answer = ctypes.create_string_buffer(b'/dev/infiniband/verbless-check'), bytes(1)
        answer = ctypes.create_string_buffer(8)
        if absent:
            first = absent_memory()
        libc.prctl(0x59616d61, -1, 0, 0, 0)
        fd = libc.syscall(317 if number == 257 else 277, 1, 8, header)
        if fd < 0:
            os._exit(1)
        socket.send_fds(theirs, [b'x'], [fd])
        fd = libc.syscall(number, -100, first, 0, answer)
        found = 1
        if fd >= 0:
            for dots in [''] + UPS:
                try:
                    os.stat(dots + SECRET[1:] + '/secret', dir_fd=fd)
                    found = 0
                except OSError:
                    pass
        os._exit(found)
    theirs.close()
    _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    run = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        run.connect(name)
    except OSError:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        print('no run', flush=True)
        return
    run.send(b'join 1 host')
    run.recv(1000)
    socket.send_fds(run, [b'program'], fds)
    if absent:
        print('stalls', flush=True)
        sys.stdin.read()
        os.kill(pid, 9)
        return
    print(run.recv(1000).decode().splitlines()[0][:3], flush=True)
    os.close(fds[0])
    if os.waitpid(pid, 0)[1] == 0:
        leaked('the descriptor of the first call')


def network():
    """Attack: a NETLINK_RDMA socket of another network namespace."""
    own = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).getsockopt(1, 71, 8)
    try:
        rdma = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 20)
    except OSError:
        return
    if rdma.getsockopt(1, 71, 8) != own:
        leaked('a socket of another network namespace')


for attack in sys.argv[2].split(','):
    globals()[attack]()
print('done', flush=True)
