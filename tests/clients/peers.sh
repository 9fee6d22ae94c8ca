#!/bin/busybox sh
# In a guest, on each of its devices: the example verbs_peer and rdma_peer.c, which is on libibverbs, do all operations
# to each other, and the samples of RDMA meet; hwtest is at both ends of two devices. A row for each, then "N passed, N
# failed".
passed=0 failed=0 port=18620
cd /tmp || exit 2
set -- $(ls /sys/class/infiniband)
[ $# -gt 0 ] || { echo "error: there is no device"; exit 2; }

# both NAME LISTENER CONNECTOR: two commands that meet at a port, which stands for %.
both() {
    port=$((port + 1))
    eval "timeout 60 $(echo "$2" | sed "s/%/$port/")" >one 2>&1 &
    one=$!
    eval "timeout 60 $(echo "$3" | sed "s/%/$port/")" >other 2>&1
    other=$?
    wait $one
    one=$?
    if [ $one = 0 ] && [ $other = 0 ]; then
        passed=$((passed + 1))
        echo "pass  $1"
    else
        failed=$((failed + 1))
        echo "FAIL  $1"
        echo "      exit codes $one and $other"
        sed 's/^/      one: /' one
        sed 's/^/      other: /' other
    fi
}

for device in "$@"; do
    both "DOCA RDMA and libibverbs do all operations to each other on $device" \
        "/program/verbs_peer -d $device --listen 127.0.0.1:%" "/program/rdma_peer % $device"
    both "rdma_write_responder and rdma_write_requester on $device" \
        "/program/rdma_write_responder -d $device --listen 127.0.0.1:%" \
        "/program/rdma_write_requester -d $device --connect 127.0.0.1:%"
    both "rdma_send_imm_sender and rdma_send_imm_receiver on $device" \
        "/program/rdma_send_imm_sender -d $device --listen 127.0.0.1:%" \
        "/program/rdma_send_imm_receiver -d $device --connect 127.0.0.1:%"
done
# The cases of two machines, with a machine's own address between the two ends.
if [ $# -gt 1 ]; then
    both "hwtest at both ends, $1 and $2" "/program/hwtest serve 127.0.0.1:% --once --device $1" \
        "/program/hwtest --connect 127.0.0.1:% --device $2 --filter exchange:: --filter services:: --filter errors:: \
            --filter restart:: --filter that_is_killed"
fi
echo "$passed passed, $failed failed"
[ $failed = 0 ]
