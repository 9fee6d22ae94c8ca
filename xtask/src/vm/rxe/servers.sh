# The model's side: the server of each program, one after the other. The programs follow this text. The environment
# names the model's program (MODEL), its run (RUN), and the faults of all frames (LOSSES).
failed=0

# serve PORT PROGRAM OPTION...
serve() {
    local port=$1
    shift
    timeout 60 "$@" -d mlx5_0 -p "$port" &
    trap "kill $!; exit 1" TERM
    wait $!
    local code=$?
    echo "--- $*: exit code $code"
    [ $code = 0 ] || failed=1
    # Its client never came: no other will.
    [ $code != 124 ] || exit 1
}

# A pingpong ends as soon as it has its last message, and cannot repeat an acknowledgement afterwards. Until then only
# messages are lost, from here on all frames.
lose_all() { "$MODEL" ctl "$RUN" reset && "$MODEL" ctl "$RUN" apply "$LOSSES" || failed=1; }

# A round is void unless the model's link has lost frames of it.
lost=0
must_have_lost() {
    local links before=$lost count
    links=$("$MODEL" ctl "$RUN" show | grep 'device 0 .* port 1:')
    echo "--- $links"
    lost=0
    for count in $(grep -o '[0-9]* lost' <<<"$links" | cut -d ' ' -f 1); do lost=$((lost + count)); done
    [ "$lost" -gt "$before" ] || { echo 'FAIL  no frame was lost'; failed=1; }
}


# stall PORT PROGRAM OPTION...: one datagram is lost and not retransmitted: the program, which otherwise takes less than
# a second, must still wait for it after two.
stall() {
    local port=$1 tries=0
    shift
    "$MODEL" ctl "$RUN" reset && "$MODEL" ctl "$RUN" apply "$ONE_DATAGRAM" || failed=1
    "$@" -d mlx5_0 -p "$port" &
    trap "kill $!; exit 1" TERM
    until "$MODEL" ctl "$RUN" show | grep 'device 0 .* port 1:' | grep -q '[1-9][0-9]* lost' || [ $tries = 100 ]; do
        sleep 0.2
        tries=$((tries + 1))
    done
    sleep 2
    if kill $! 2>/dev/null; then echo "--- $*: it stalls"; else echo "FAIL  $*: it has ended"; failed=1; fi
    wait $!
    lost=0
    must_have_lost
}
