# The model's side: the server of each program, one after the other. Below this text stand the programs. The environment
# says which program is the model (MODEL), what this run of it is called (RUN), and what may be lost of all frames (LOSSES).
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
    # Its client never came: none will.
    [ $code != 124 ] || exit 1
}

# A pingpong ends as soon as it has its last message, and leaves nobody to repeat an acknowledgement. Until then only
# messages are lost, from here on all frames.
lose_all() { "$MODEL" ctl "$RUN" reset && "$MODEL" ctl "$RUN" apply "$LOSSES" || failed=1; }

# The program before was worth nothing unless the model's link has lost frames of it.
lost=0
must_have_lost() {
    local links before=$lost count
    links=$("$MODEL" ctl "$RUN" show | grep 'device 0 .* port 1:')
    echo "--- $links"
    lost=0
    for count in $(grep -o '[0-9]* lost' <<<"$links" | cut -d ' ' -f 1); do lost=$((lost + count)); done
    [ "$lost" -gt "$before" ] || { echo 'FAIL  no frame was lost'; failed=1; }
}


# stall PORT PROGRAM OPTION...: one datagram is lost, and nobody repeats it: the program, which takes less than a second
# otherwise, waits for it when two have passed.
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
