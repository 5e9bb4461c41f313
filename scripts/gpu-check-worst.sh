#!/usr/bin/env bash
# Runs programs over `worst`, the least ordered network that EFA permits, on a GPU, and injects failures into each.
#
#   scripts/gpu-check-worst.sh [GINLAB]
#
#   OUT    directory for results          [default: new, under /tmp]
#   SEEDS  seeds of the matrix            [default: 3]
#   STEPS  list of: matrix, faults, sanitizer   [default: all]
#   JOBS   runs at the same time          [default: 4]
#   LIMIT  seconds for the matrix         [default: 120]
#
# Results: worst/ (scripts/worst-matrix.sh with kernels on the GPU), faults.csv (exit code, seconds and message of each
# injected failure), sanitizer-*.txt (synccheck and racecheck over failing runs). All ranks share one GPU. Takes about
# four minutes. Exit codes: 0 ok, 1 failed.
set -u
cd "$(dirname "$0")/.." || exit
program=worst
# shellcheck source=scripts/gpu-check-program.sh
source scripts/gpu-check-program.sh
if [ "${gpus:-0}" -ge 1 ]; then device=gpu; else device=emulated; note "no GPU: the emulated device"; fi

if wanted matrix; then
    DEVICE=$device SEEDS=${SEEDS:-3} JOBS=${JOBS:-4} LIMIT=${LIMIT:-120} EACH=60 ONLY='shmem|collective|jacobi|proxy' scripts/worst-matrix.sh "$ginlab" "$OUT/worst" >&2 || status=1
fi

# Commands into which faults are injected, long enough for the fault to occur in the middle. (Jacobi on one PE runs the
# same number of iterations first. With host-write only the norms use a proxy.)
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
# Fault, and the valid exit codes: with proxy-vanish, the code depends on which rank detects the failure first.
faults=("proxy-stop=300 1" "proxy-vanish=300 1|124" "rails-silent=300 124")

# fails CODES SECONDS COMMAND: a run that must exit with one of these codes within this time; appends a line to
# faults.csv.
# shellcheck disable=SC2317  # xargs calls it
fails() {
    local code=$1 seconds=$2 began=$EPOCHREALTIME got took said text
    text=$(mktemp "$OUT/said.XXXXXX")
    shift 2
    # shellcheck disable=SC2086,SC2048  # the command is words
    # A run that is ended here has code 130 or 137; 124 is the program's own deadline.
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

# checked TOOL COMMAND: a failing run under a tool that must report nothing, so that the exit code is that of the run.
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
            # Under the tools an iteration of Jacobi takes a second, so the fault occurs after a few.
            case $line in jacobi*) after=20 ;; *) after=100 ;; esac
            printf '%s %s -d gpu --np 2 --path rails -p worst:seed=5 -t 8 --no-header --fault proxy-stop=%s %s\0' "$tool" "${line%% *}" "$after" "${line#* }"
        done
    done | xargs -0 -P "${JOBS:-4}" -I{} bash -c 'checked {}'
    if [ -e "$OUT/sanitizer-failed.txt" ]; then grep -h FAILED "$OUT"/sanitizer-*.txt >&2; status=1; fi
fi
note "results: $OUT"
exit $status
