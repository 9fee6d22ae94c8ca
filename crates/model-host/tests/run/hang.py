"""Calls with arguments in memory that never arrives: an unanswered userfaultfd, or a page of a file
whose server does not answer.

Arguments: the number of threads that make such a call, and the file if there is one; or the number
of processes that make one call each, and "processes": a killed one is replaced. Prints "hangs" when
they hang, and "no" without userfaultfd.
"""
import ctypes
import fcntl
import os
import struct
import sys
import threading
import time

libc = ctypes.CDLL(None, use_errno=True)
x86 = os.uname().machine == 'x86_64'
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [ctypes.c_long]


def absent():
    """Memory of a userfaultfd."""
    number = libc.syscall(323 if x86 else 282, os.O_CLOEXEC)
    if number < 0:
        print('no', flush=True)
        sys.exit(0)
    fcntl.ioctl(number, 0xc018aa3f, bytearray(struct.pack('QQQ', 0xaa, 0, 0)))
    size = 8 << 20
    memory = libc.mmap(None, size, 3, 0x22, -1, 0)
    fcntl.ioctl(number, 0xc020aa00, bytearray(struct.pack('QQQQ', memory, size, 1, 0)))
    return memory


def crowd(count):
    """Processes that make one call each."""
    def start():
        if os.fork() == 0:
            libc.prctl(1, 9)
            libc.open(ctypes.c_void_p(absent()), 0)
            os._exit(0)
    absent()
    for _ in range(count):
        start()
    print('hangs', flush=True)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        os.wait()
        start()


if sys.argv[2:] == ['processes']:
    crowd(int(sys.argv[1]))
    sys.exit(0)
if len(sys.argv) > 2:
    page = 0
    memory = libc.mmap(None, 4096, 3, 2, os.open(sys.argv[2], os.O_RDONLY), 0)
else:
    page = 4096
    memory = absent()
node = b'/dev/infiniband/uverbs0'
device = os.open(node, os.O_RDWR)


def call(index):
    place = ctypes.c_void_p(memory + page * index)
    kind = index % 4
    if kind == 0:
        libc.open(place, 0)
    elif kind == 1:
        libc.stat(node, place)
    elif kind == 2:
        libc.ioctl(device, ctypes.c_ulong(0xc0181b01), place)
    else:
        libc.readlink(b'/sys/class/infiniband/mlx5_0', place, 100)


for index in range(int(sys.argv[1])):
    if index == 1 and (page == 0 or int(sys.argv[1]) > 256):
        # A fault of a file may block mmap in this process, which another thread needs; or the
        # process is about to be killed.
        print('hangs', flush=True)
    threading.Thread(target=call, args=(index,), daemon=True).start()
time.sleep(1)
print('hangs', flush=True)
time.sleep(60)
