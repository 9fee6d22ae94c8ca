# The model's side: the server of each program, one after the other. Below this text stand the programs.
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

