# Prints a line for each vgpuctl command that still runs: it holds the lock on its file in /run/vgpuctl/operations.
# Version 0.1.0 had no such files: there a claim names its process and the time of its start.
list_running() {
    for file in /run/vgpuctl/operations/*; do
        if [ -f "$file" ] && ! (flock -s -n 9) 9<"$file"; then
            echo "  $(head -c 300 "$file")"
        fi
    done
    for file in /run/vgpuctl/claims/*; do
        [ -f "$file" ] || continue
        pid=$(sed -n '/"operation"/!s/.*"pid": *\([0-9]*\).*/\1/p' "$file")
        start=$(sed -n 's/.*"start_ticks": *\([0-9]*\).*/\1/p' "$file")
        if [ -n "$pid" ] && [ "$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | cut -d' ' -f20)" = "$start" ]; then
            echo "  process $pid, which holds ${file##*/}: $(tr '\0' ' ' <"/proc/$pid/cmdline")"
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
