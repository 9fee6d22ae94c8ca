#!/bin/busybox sh
# In a guest: the example verbs_peer and rdma_peer.c, which is on libibverbs, do all operations to each other, on each of the
# guest's devices. A row for each, then "N passed, N failed".
passed=0 failed=0 port=18620
cd /tmp || exit 2
set -- $(ls /sys/class/infiniband)
[ $# -gt 0 ] || { echo "error: there is no device"; exit 2; }
for device in "$@"; do
    port=$((port + 1))
    timeout 60 /program/verbs_peer -d "$device" --listen 127.0.0.1:$port >endpoint 2>&1 &
    endpoint=$!
    timeout 60 /program/rdma_peer $port "$device" >peer 2>&1
    peer=$?
    wait $endpoint
    endpoint=$?
    name="DOCA RDMA and libibverbs do all operations to each other on $device"
    if [ $peer = 0 ] && [ $endpoint = 0 ]; then
        passed=$((passed + 1))
        echo "pass  $name"
    else
        failed=$((failed + 1))
        echo "FAIL  $name"
        echo "      exit codes $endpoint of verbs_peer, $peer of rdma_peer"
        sed 's/^/      verbs_peer: /' endpoint
        sed 's/^/      rdma_peer: /' peer
    fi
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
