#!/bin/busybox sh
# rxe's side: the client of each program, whose server is on the model. They agree on their queue pairs by TCP. A row for
# each; below this text stand the programs.
PATIENCE=40 # seconds for one program
passed=0 failed=0
cd /tmp || exit 2

# Hundredths of a second since boot.
now() { read -r uptime _ </proc/uptime; echo "$uptime" | tr -d .; }

# exchange PORT PROGRAM OPTION...
exchange() {
    port=$1
    shift
    tries=0
    while :; do
        start=$(now)
        timeout $PATIENCE "$@" -d rxe0 -p "$port" 10.0.2.2 >client 2>&1
        code=$?
        # The server follows the one before it.
        grep -q "Couldn't connect to 10" client && [ $tries -lt 100 ] || break
        tries=$((tries + 1))
        usleep 100000
    done
    [ $code = 0 ] && grep -q 'invalid data' client && code="0, but what arrived is wrong"
    if [ "$code" = 0 ]; then
        passed=$((passed + 1))
        printf 'pass  %-60s %8d ms\n' "$*" $((($(now) - start) * 10))
    else
        failed=$((failed + 1))
        printf 'FAIL  %s\n      exit code %s\n' "$*" "$code"
        # What went wrong is said before what was measured.
        grep -E 'rror|ailed|status|ould' client | sed 's/^/      /'
    fi
}

