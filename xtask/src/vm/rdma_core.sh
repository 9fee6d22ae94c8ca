#!/bin/busybox sh
# Unmodified programs of rdma-core and perftest, each as server and client: on one port, and from each device to the next.
# A row for each; a program that can check the received data does. perftest's programs have no such check: they only
# check that all data arrives.
PATIENCE=60 # seconds for one program
passed=0 failed=0 port=20000
cd /tmp || exit 2

# Whether a server listens on a port.
listens() { grep -qi ":$(printf %04X "$1") 0*:0000 0A" /proc/net/tcp /proc/net/tcp6 2>/dev/null; }

# Hundredths of a second since boot.
now() { read -r uptime _ </proc/uptime; echo "$uptime" | tr -d .; }

# result CODE START NAME: a row, and for a failure the program's output.
result() {
    if [ "$1" = 0 ]; then
        passed=$((passed + 1))
        printf 'pass  %-60s %8d ms\n' "$3" $((($(now) - $2) * 10))
    else
        failed=$((failed + 1))
        printf 'FAIL  %s\n      exit code %s\n' "$3" "$1"
        for side in server client; do
            [ -s $side ] && sed "s/^/      $side: /" $side | tail -n 12
        done
    fi
}

# Every port is ACTIVE and has a LID.
devinfo() {
    start=$(now)
    rm -f server client
    timeout $PATIENCE ibv_devinfo -v >client 2>&1
    code=$?
    [ $code = 0 ] && [ "$(grep -c 'state:.*PORT_ACTIVE' client)" != "$devices" ] && code="0, but not every port is ACTIVE"
    [ "$code" = 0 ] && grep -q 'port_lid:[[:space:]]*0$' client && code="0, but a port has no LID"
    result "$code" "$start" "ibv_devinfo -v"
}

# exchange FROM TO PROGRAM OPTION...: the program's server on TO, its client on FROM.
exchange() {
    from=$1 to=$2
    shift 2
    name="$*, $from to $to"
    program=$1
    shift
    port=$((port + 1))
    start=$(now)
    rm -f server client
    timeout $PATIENCE "$program" -d "$to" -p $port "$@" >server 2>&1 &
    server=$!
    tries=0
    until listens $port || [ $tries -gt 1000 ] || ! kill -0 $server 2>/dev/null; do
        usleep 20000
        tries=$((tries + 1))
    done
    timeout $PATIENCE "$program" -d "$from" -p $port "$@" 127.0.0.1 >client 2>&1
    code=$?
    [ $code = 0 ] || kill $server 2>/dev/null
    wait $server
    other=$?
    [ $code = 0 ] && [ $other != 0 ] && code="$other of the server"
    # The pingpongs only print that the received data is wrong.
    [ "$code" = 0 ] && grep -q 'invalid data' server client && code="0, but what arrived is wrong"
    result "$code" "$start" "$name"
}

set -- $(ls /sys/class/infiniband)
devices=$#
[ $devices -gt 0 ] || { echo "error: there is no device"; exit 2; }
devinfo
while [ $# -gt 0 ]; do
    # The last device reaches itself, and so does a single one.
    from=$1 to=${2:-$1}
    shift
    for service in rc uc ud srq; do
        # Two polling programs alternate by scheduler slices on a guest's only processor, so they use fewer messages.
        exchange "$from" "$to" ibv_${service}_pingpong -c -n 200
        exchange "$from" "$to" ibv_${service}_pingpong -c -e
    done
    exchange "$from" "$to" ib_write_bw -F
    exchange "$from" "$to" ib_read_lat -F -n 300
    exchange "$from" "$to" ib_send_bw -F
    exchange "$from" "$to" ib_send_bw -F -e
    exchange "$from" "$to" ib_atomic_bw -F
done
echo
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
