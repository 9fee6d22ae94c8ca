"""A FUSE file system with one file, `file`, mounted at the first argument.

The file opens, has a page that never arrives, and refuses each ioctl with ENOENT. With `silent` as the
second argument its attributes last for no time, and never arrive once it is open. Prints "up" once
it is mounted, or "no".
"""
import ctypes
import errno
import os
import struct
import sys

libc = ctypes.CDLL(None, use_errno=True)
place = sys.argv[1]
silent, opened = sys.argv[2:] == ['silent'], False
try:
    device = os.open('/dev/fuse', os.O_RDWR)
except OSError:
    print('no', flush=True)
    sys.exit(0)
options = 'fd=%d,rootmode=40000,user_id=%d,group_id=%d' % (device, os.getuid(), os.getgid())
if libc.mount(b'fuse', place.encode(), b'fuse', 0, options.encode()) != 0:
    print('no', flush=True)
    sys.exit(0)
print('up', flush=True)


def attributes(node):
    mode, size = (0o40755, 0) if node == 1 else (0o100666, 4096)
    return struct.pack('QQQQQQIIIIIIIIII', node, size, 8, 0, 0, 0, 0, 0, 0, mode, 1, os.getuid(),
                       os.getgid(), 0, 4096, 0)


while True:
    try:
        request = os.read(device, 1 << 20)
    except OSError:
        break
    _, opcode, unique, node, _, _, _, _ = struct.unpack('IIQQIIII', request[:40])
    error, answer = 0, b''
    if opcode == 26:  # INIT
        answer = struct.pack('IIIIHHIIHHI', 7, 31, 4096, 0, 0, 0, 4096, 1, 0, 0, 0) + bytes(24)
    elif opcode == 1:  # LOOKUP
        if request[40:-1] == b'file':
            answer = struct.pack('QQQQII', 2, 0, 100, 0 if silent else 100, 0, 0) + attributes(2)
        else:
            error = -errno.ENOENT
    elif opcode == 3 and silent and opened:  # GETATTR: never
        continue
    elif opcode == 3:  # GETATTR
        answer = struct.pack('QII', 100, 0, 0) + attributes(node)
    elif opcode in (14, 27):  # OPEN, OPENDIR
        answer = struct.pack('QII', 1, 0, 0)
        opened = True
    elif opcode == 15:  # READ: never
        continue
    elif opcode in (2, 42):  # FORGET, BATCH_FORGET
        continue
    elif opcode == 39:  # IOCTL
        error = -errno.ENOENT
    elif opcode in (18, 25, 29):  # RELEASE, FLUSH, RELEASEDIR
        pass
    else:
        error = -errno.ENOSYS
    os.write(device, struct.pack('IiQ', 16 + len(answer), error, unique) + answer)
