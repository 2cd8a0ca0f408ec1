# Prints a line for each vgpuctl command that still runs: it holds the lock on its file in /run/vgpuctl/operations.
list_running() {
    for file in /run/vgpuctl/operations/*; do
        if [ -f "$file" ] && ! (flock -s -n 9) 9<"$file"; then
            echo "  $(head -c 300 "$file")"
        fi
    done
}

# Its modules would be exchanged under a running command: wait a minute for its end, then name it and fail.
wait_for_running() {
    for second in $(seq 60); do
        running=$(list_running)
        [ -n "$running" ] || return 0
        [ "$second" -gt 1 ] || printf 'vgpuctl: waiting up to 60 seconds for these commands:\n%s\n' "$running"
        sleep 1
    done
    printf 'vgpuctl: these commands still run; wait for their end, then do this again:\n%s\n' "$running" >&2
    exit 1
}
