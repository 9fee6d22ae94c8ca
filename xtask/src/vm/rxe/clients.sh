#!/bin/busybox sh
# rxe's side: the client of each program, whose server is on the model. They agree on their queue pairs by TCP. A row for
# each; the programs follow this text, with their rxe devices.
PATIENCE=40 # seconds for one program
passed=0 failed=0
device=rxe0 round=
cd /tmp || exit 2

# Hundredths of a second since boot.
now() { read -r uptime _ </proc/uptime; echo "$uptime" | tr -d .; }

# client SECONDS PORT PROGRAM OPTION...: its exit code, 143 when it took longer.
client() {
    patience=$1 port=$2
    shift 2
    tries=0
    while :; do
        start=$(now)
        timeout "$patience" "$@" -d "$device" -p "$port" 10.0.2.2 >client 2>&1
        code=$?
        # The server starts after the one before it.
        grep -q "Couldn't connect to 10" client && [ $tries -lt 100 ] || break
        tries=$((tries + 1))
        usleep 100000
    done
}

# verdict CODE PROGRAM...: a row for a client that must end with this code.
verdict() {
    expected=$1
    shift
    if [ "$code" = "$expected" ]; then
        passed=$((passed + 1))
        printf 'pass  %-60s %8d ms\n' "$*" $((($(now) - start) * 10))
    else
        failed=$((failed + 1))
        printf 'FAIL  %s\n      exit code %s, not %s, with %s\n' "$*" "$code" "$expected" "$round"
        # Errors come before measurements.
        grep -E 'rror|ailed|status|ould' client | sed 's/^/      /'
        # What rxe has counted since it was made: retries, errors, discarded packets.
        (cd /sys/class/infiniband/$device/ports/1/hw_counters && grep -v '^0$' ./*) | tr '\n' ' '
        echo
    fi
}

# exchange PORT PROGRAM OPTION...
exchange() {
    client $PATIENCE "$@"
    shift
    [ $code = 0 ] && grep -q 'invalid data' client && code="0, but what arrived is wrong"
    verdict 0 "$@"
}

# stall PORT PROGRAM OPTION...: it waits forever for a lost datagram.
stall() {
    client 6 "$@"
    shift
    verdict 143 "$@" '(stalls)'
}
