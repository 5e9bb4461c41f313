#!/usr/bin/env bash
# Programs over the worst legal network on a GPU, and failures injected into each of them: scripts/gpu-check-worst.sh [GINLAB]
#
# One GPU is enough: all ranks share it. Results go to $OUT (default: a new folder under /tmp): worst/ (scripts/worst-matrix.sh with
# kernels on the GPU), faults.csv (each injected failure: exit code, seconds, the line that was said), sanitizer-*.txt (synccheck and
# racecheck over failing runs). Bounded: about four minutes.
# Environment: SEEDS (default 3), STEPS (a list; default matrix faults sanitizer).
set -u
cd "$(dirname "$0")/.." || exit
program=worst
# shellcheck source=scripts/gpu-check-program.sh
source scripts/gpu-check-program.sh
if [ "${gpus:-0}" -ge 1 ]; then device=gpu; else device=emulated; note "no GPU: the emulated device"; fi

if wanted matrix; then
    DEVICE=$device SEEDS=${SEEDS:-3} JOBS=${JOBS:-4} LIMIT=${LIMIT:-120} EACH=60 ONLY='shmem|collective|jacobi|proxy' scripts/worst-matrix.sh "$ginlab" "$OUT/worst" >&2 || status=1
fi

# What each program runs while it is disturbed: long enough to be met in the middle. (A PE alone runs as often first; of host-write only the norms go by a proxy.)
programs=(
    "jacobi --exchange host-write --norm-when now --nx 64 --ny 32 -n 400 -r 2 --no-check"
    "jacobi --exchange p --nx 64 --ny 32 -n 400 -r 2 --no-check"
    "jacobi --exchange block --nx 64 --ny 32 -n 400 -r 2 --no-check"
    "jacobi --exchange row --nx 64 --ny 32 -n 400 -r 2 --no-check"
    "jacobi --exchange resident --nx 64 --ny 32 -n 2000 -r 2 --no-check"
    "collective --cases gin-all-to-all --launch persistent -b 4K -e 4K -n 2000 -r 9 --no-check"
    "collective --cases gin-all-gather --launch persistent -b 64K -e 64K -n 2000 -r 9 --no-check"
    "collective --cases gin-reduce-scatter --launch persistent -b 64K -e 64K -n 2000 -r 9 --no-check"
    "collective --cases gin-all-reduce --launch stream -b 4K -e 4K -n 2000 -r 9 --no-check"
    "collective --cases gin-broadcast --launch persistent -b 4K -e 4K -n 2000 -r 9 --no-check"
    "shmem --cases put-signal-ping-pong --scope block -b 512 -e 512 -n 4000 -r 9 --block 96"
    "shmem --cases message-ping-pong --scope warp -b 512 -e 512 -n 4000 -r 9 --block 96"
    "shmem --cases all-to-all --scope block -b 512 -e 512 -n 4000 -r 9 --block 96"
    "shmem --cases barrier-all --scope thread -n 4000 -r 9 --block 96"
)
# Fault, and the exit codes of README: a proxy that has gone is told by whoever notices first.
faults=("proxy-stop=300 1" "proxy-vanish=300 1|124" "rails-silent=300 124")

# fails CODES SECONDS COMMAND: a run that must end with one of these codes in this time; a line of faults.csv.
# shellcheck disable=SC2317  # xargs calls it
fails() {
    local code=$1 seconds=$2 began=$EPOCHREALTIME got took said text
    text=$(mktemp "$OUT/said.XXXXXX")
    shift 2
    # shellcheck disable=SC2086,SC2048  # the command is words
    # A run that is ended here for its time has a code of its own (130, 137): 124 is the program's, by its own deadline.
    timeout --preserve-status -k 5 "$seconds" "$ginlab" $* >/dev/null 2>"$text"
    got=$?
    took=$(awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.2f", b - a }')
    said=$(grep '^ginlab' "$text" | tail -n 1 | tr -d '"')
    echo "\"$*\",$code,$got,$took,\"$said\"" >>"$OUT/faults.csv"
    rm -f "$text"
}
export -f fails
export ginlab OUT device
if wanted faults; then
    echo 'command,expected,code,seconds,said' >"$OUT/faults.csv"
    for line in "${programs[@]}"; do
        for fault in "${faults[@]}"; do
            printf '"%s" 40 %s -d %s --np 2 --path rails -p worst:seed=5 -t 2 --no-header --fault %s %s\0' \
                "${fault#* }" "${line%% *}" "$device" "${fault% *}" "${line#* }"
        done
    done | xargs -0 -P "${JOBS:-4}" -I{} bash -c 'fails {}'
    wrong=$(awk -F'",' 'NR > 1 { split($2, n, ","); if ("|" n[1] "|" !~ "[|]" n[2] "[|]") print }' "$OUT/faults.csv")
    [ -z "$wrong" ] || { note "other codes than expected:"; echo "$wrong" >&2; status=1; }
fi

# checked TOOL COMMAND: a failing run under a tool, which must find nothing: then its code is the run's.
# shellcheck disable=SC2317  # xargs calls it
checked() {
    local tool=$1 text got
    shift
    text=$(mktemp "$OUT/checked.XXXXXX")
    # shellcheck disable=SC2086,SC2048
    timeout -k 5 100 "$sanitizer" --tool "$tool" --target-processes all --error-exitcode 99 "$ginlab" $* >"$text" 2>&1
    got=$?
    {
        echo "== $tool: $*: ended with $got"
        grep -E 'SUMMARY|^ginlab' "$text"
    } >>"$OUT/sanitizer-$tool.txt"
    if [ "$got" != 1 ] || grep -qE 'ERROR SUMMARY: [1-9]|RACECHECK SUMMARY: [1-9]' "$text"; then
        echo "FAILED: $tool: $*: ended with $got: $(grep -m 1 '=====' "$text")" >>"$OUT/sanitizer-$tool.txt"
        cat "$text" >>"$OUT/sanitizer-failed.txt"
    fi
    rm -f "$text"
}
export -f checked
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
export sanitizer
if wanted sanitizer && [ "$device" = gpu ] && [ -n "$sanitizer" ]; then
    for tool in synccheck racecheck; do
        for line in "${programs[@]}"; do
            # Under the tools a turn of a Jacobi takes a second: few of them before the fault.
            case $line in jacobi*) after=20 ;; *) after=100 ;; esac
            printf '%s %s -d gpu --np 2 --path rails -p worst:seed=5 -t 8 --no-header --fault proxy-stop=%s %s\0' "$tool" "${line%% *}" "$after" "${line#* }"
        done
    done | xargs -0 -P "${JOBS:-4}" -I{} bash -c 'checked {}'
    if [ -e "$OUT/sanitizer-failed.txt" ]; then grep -h FAILED "$OUT"/sanitizer-*.txt >&2; status=1; fi
fi
note "results: $OUT"
exit $status
