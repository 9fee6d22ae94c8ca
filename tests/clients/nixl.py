"""Two processes of NIXL, whose wheel has its own UCX and rdma-core, read and write each other's
memory and look at every byte of it: 1 MiB, and what lies around it.

    python3 -m venv nixl && nixl/bin/pip install --no-deps nixl-cu12 numpy
    export UCX_TLS=rc_x,self UCX_NET_DEVICES=mlx5_0:1 UCX_IB_ROCE_REACHABILITY_MODE=all
    verbless-model run -- nixl/bin/python tests/clients/nixl.py

The last variable is for --link ethernet: UCX looks for a route from the port's network interface,
which a modelled port does not have.
"""

import os
import socket
import subprocess
import sys
import time

import numpy
from nixl_cu12 import nixl_agent, nixl_agent_config

BYTES, MARGIN, UNTOUCHED, PORT = 1 << 20, 4096, 0xA5, 18977


def message(of):
    at = numpy.arange(BYTES)
    return (at * 13 + (at >> 8) + of).astype(numpy.uint8)


def send(peer, data):
    peer.sendall(len(data).to_bytes(4, "big") + data)


def receive(peer):
    def take(length):
        data = b""
        while len(data) < length:
            more = peer.recv(length - len(data))
            assert more, "the peer has ended"
            data += more
        return data

    return take(int.from_bytes(take(4), "big"))


def meet(role):
    if role == "target":
        return socket.create_server(("127.0.0.1", PORT)).accept()[0]
    for _ in range(200):
        try:
            return socket.create_connection(("127.0.0.1", PORT))
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise TimeoutError("the target does not listen")


def transfer(agent, operation, near, far, peer):
    handle = agent.initialize_xfer(operation, near, far, peer)
    state, end = agent.transfer(handle), time.time() + 30
    while state != "DONE":
        assert state != "ERR" and time.time() < end, f"{operation}: {state}"
        state = agent.check_xfer_state(handle)
    agent.release_xfer_handle(handle)


def run(role):
    agent = nixl_agent(role, nixl_agent_config(backends=["UCX"]))
    memory = numpy.full(BYTES + 2 * MARGIN, UNTOUCHED, numpy.uint8)
    inside = slice(MARGIN, MARGIN + BYTES)
    if role == "target":
        memory[inside] = message(0)
    agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], mem_type="DRAM")
    stream = meet(role)
    send(stream, agent.get_agent_metadata())
    peer = agent.add_remote_agent(receive(stream))
    send(stream, str(memory.ctypes.data).encode())
    address = int(receive(stream))
    if role == "target":
        while receive(stream) == b"show":
            send(stream, memory.tobytes())
        return
    descriptors = lambda at: agent.get_xfer_descs([(at + MARGIN, BYTES, 0)], mem_type="DRAM")
    near, far = descriptors(memory.ctypes.data), descriptors(address)
    written = 0
    for operation in "READ", "WRITE", "READ", "WRITE":
        if operation == "WRITE":
            written += 1
            memory[inside] = message(written)
        else:
            memory[inside] = UNTOUCHED
        transfer(agent, operation, near, far, peer)
        send(stream, b"show")
        there = numpy.frombuffer(receive(stream), numpy.uint8)
        expected = numpy.full(memory.size, UNTOUCHED, numpy.uint8)
        expected[inside] = message(written)
        for side, found in ("here", memory), ("there", there):
            wrong = int((found != expected).sum())
            assert wrong == 0, f"{operation}: {wrong} bytes wrong {side}"
    send(stream, b"end")
    print("0 bytes wrong")


if len(sys.argv) > 1:
    run(sys.argv[1])
    sys.stdout.flush()
    # The libraries of the wheel crash when Python ends, without the model, too.
    os._exit(0)
both = [subprocess.Popen([sys.executable, __file__, role]) for role in ("target", "initiator")]
sys.exit(any([process.wait() for process in both]))
