#!/usr/bin/env bash
# Checks and measures several PEs on one GPU, with MPS and time-sliced: results, rejected grids, and leftovers.
#
#   scripts/gpu-check-mps.sh [GINLAB]
#
#   OUT      directory for one CSV and JSON per call, steps.csv and summary.json   [default: new, under /tmp]
#   LIMIT    seconds for all steps   [default: 235]
#   STEPS    list of: pes, rails, collective, jacobi, others, turns, refused, ends, servers, crowd   [default: all]
#   PRETEND  1: use the emulated device and a test double of NVIDIA's daemon, to test the script
#
# Uses one GPU. Each step has a time limit; steps beyond LIMIT are reported as not run. Exit codes: 0 ok, 1 a step
# failed.
set -u
cd "$(dirname "$0")/.." || exit
ginlab=${1:-target/release/ginlab}
OUT=${OUT:-$(mktemp -d /tmp/ginlab-mps-check.XXXXXX)}
LIMIT=${LIMIT:-235}
mkdir -p "$OUT"
status=0
pretend=()
# Threads per block; size of a field and iterations; largest size.
block=256 nx=1024 field=(--nx 1000 --ny 777) iterations=500 largest=64M
if [ -n "${PRETEND:-}" ]; then
    pretend=(--pretend-gpus 1)
    block=32 nx=64 field=(--nx 64 --ny 48) iterations=20 largest=1M
    PATH=$PWD/tests/fixtures/mps:$PATH
else
    first=$(echo "${CUDA_VISIBLE_DEVICES:-0}" | cut -d, -f1)
    export CUDA_VISIBLE_DEVICES=$first
fi
# Our servers are found by this directory. The path is short enough for a socket.
TMPDIR=$(mktemp -d /tmp/gm.XXXXXX)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
note() { echo "gpu-check-mps: $*" >&2; }
wanted() { [ -z "${STEPS:-}" ] || [[ " ${STEPS//,/ } " == *" $1 "* ]]; }
echo 'step,result,seconds,text' >"$OUT/steps.csv"

# result NAME ok|failed|not-run SECONDS TEXT: appends a line to steps.csv.
result() {
    local text=${4//\"/\'}
    printf '%s,%s,%s,"%s"\n' "$1" "$2" "$3" "${text//$'\n'/ }" >>"$OUT/steps.csv"
    note "$1: $2 after $3 s${4:+: $4}"
    [ "$2" != failed ] || status=1
}

# bounded SECONDS: prints the time limit of a step within the remaining time; 0 if there is none.
bounded() {
    local left=$((LIMIT - SECONDS - 5))
    if [ "$left" -lt 5 ]; then echo 0; elif [ "$left" -lt "$1" ]; then echo "$left"; else echo "$1"; fi
}

# run LIMIT NAME SUBCOMMAND ARGUMENTS...: writes verified rows to NAME.csv and NAME.json.
run() {
    local limit name=$2 start=$SECONDS ended
    limit=$(bounded "$1")
    shift 2
    [ "$limit" -gt 0 ] || { result "$name" not-run 0 'no time is left'; return 1; }
    timeout -k 5 "$limit" "$ginlab" "$@" "${pretend[@]}" --csv "$OUT/$name.csv" --json "$OUT/$name.json" >"$OUT/$name.txt" 2>&1
    ended=$?
    if [ $ended -eq 0 ]; then
        result "$name" ok $((SECONDS - start)) "$(grep -m1 '^# sharing' "$OUT/$name.txt")"
    else
        result "$name" failed $((SECONDS - start)) "code $ended: $(tail -1 "$OUT/$name.txt")"
    fi
    return $ended
}

# expect LIMIT NAME CODE WORDS SUBCOMMAND ARGUMENTS...: a run that must exit with this code and message.
expect() {
    local limit name=$2 code=$3 words=$4 start=$SECONDS text got
    limit=$(bounded "$1")
    shift 4
    [ "$limit" -gt 0 ] || { result "$name" not-run 0 'no time is left'; return 1; }
    text=$(timeout -k 5 "$limit" "$ginlab" "$@" "${pretend[@]}" --no-header 2>&1 >/dev/null)
    got=$?
    if [ "$got" = "$code" ] && [[ $text == *"$words"* ]]; then
        result "$name" ok $((SECONDS - start)) "$text"
    else
        result "$name" failed $((SECONDS - start)) "code $got instead of $code, or not \"$words\": $text"
    fi
}

# Prints the processes of NVIDIA's daemon that serve this directory.
servers() {
    local process
    for process in /proc/[0-9]*; do
        if grep -q '^nvidia-cuda-mps' "$process/comm" && tr '\0' '\n' <"$process/environ" | grep -q "^CUDA_MPS_PIPE_DIRECTORY=$1"; then
            echo "${process#/proc/}"
        fi
    done 2>/dev/null
}
runs() { find "$TMPDIR" -mindepth 2 -maxdepth 2 -type d -path "$TMPDIR/ginlab-mps-*" 2>/dev/null; }
used() { nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -i "${CUDA_VISIBLE_DEVICES:-0}" 2>/dev/null; }
# nothing_left NAME SECONDS: checks for leftover servers, directories, and GPU memory (with a margin for other
# programs).
nothing_left() {
    local left memory
    memory=$(used)
    left="$(servers "$TMPDIR/ginlab-mps-" | wc -l) servers, $(runs | wc -l) folders, ${memory:-no} MiB on the GPU (${before:-no} before)"
    if [ -z "$(servers "$TMPDIR/ginlab-mps-")$(runs)" ] && [ "${memory:-0}" -le $((${before:-0} + 64)) ]; then
        result "$1" ok "$2" "$left"
    else
        result "$1" failed "$2" "$left"
    fi
}

"$ginlab" --version >"$OUT/version.txt" 2>&1
nvidia-smi --query-gpu=name,driver_version,compute_mode,mig.mode.current --format=csv >"$OUT/gpu.txt" 2>&1
"$ginlab" doctor --only mps,gpu,visible --no-smoke >"$OUT/doctor.txt" 2>&1
note "$(grep -m1 "  *mps " "$OUT/doctor.txt")"
before=$(used)

if wanted pes; then
    # The driver compiles each module of kernels once per machine: the first call of a program is not measured.
    for np in 2 4 8; do
        run 40 "shmem-$np" shmem --np $np -t 10 -n 1000 -w 100 -r 3 -b 8 -e 4K -f 8 --block $block --grid 1 --volume 64M \
            --cases signal-ping-pong,p-latency,put-latency,get-latency,put-signal-ping-pong,message-ping-pong,barrier-all,all-to-all
    done
    run 30 signal-order shmem --np 2 -t 10 --cases signal-order -n 20000 -r 1 --block $block
fi
if wanted turns; then
    # Time slices of the driver: few iterations, of milliseconds each.
    run 30 turns-shmem shmem --np 2 --mps off -t 10 -n 20 -w 2 -r 2 -b 8 -e 8 --cases signal-ping-pong,put-signal-ping-pong,barrier-all --block $block
    run 30 turns-jacobi jacobi --np 2 --mps off -t 10 "${field[@]}" --exchange row,resident -n 100 -r 1
fi
if wanted collective; then
    # The blocks of all PEs on the GPU must fit together.
    run 60 collective-4 collective --np 4 -t 10 -b 16 -e 1M -f 16 -n 10 -r 3 --block $block \
        --cases gin-all-to-all,gin-all-gather,gin-reduce-scatter,gin-all-reduce,gin-broadcast --launch graph,persistent
    run 60 collective-8 collective --np 8 -t 10 -b 1K -e $largest -f 256 -n 5 -r 2 --block $block \
        --cases gin-all-to-all,gin-all-gather,gin-reduce-scatter,gin-all-reduce,gin-broadcast
    run 40 collective-2 collective --np 2 -t 10 -b 32 -e $largest -f 128 -n 5 -r 2 --block $block --cases gin-all-to-all,gin-all-reduce
fi
if wanted jacobi; then
    for np in 2 4 8; do run 30 "jacobi-$np" jacobi --np $np -t 10 --nx $nx --exchange row,resident -n $iterations -r 3; done
fi
if wanted rails; then
    run 30 rails-model shmem --np 2 --path rails -p model:p5 --rails 4 -t 10 -n 500 -w 50 -r 3 -b 8 -e 4K -f 512 --block $block \
        --cases signal-ping-pong,put-signal-ping-pong,barrier-all
    run 30 rails-tcp shmem --np 2 --path rails -p tcp -t 10 -n 300 -w 30 -r 2 -b 8 -e 4K -f 512 --cases signal-ping-pong,put-signal-ping-pong,barrier-all --block $block
    run 30 rails-jacobi jacobi --np 2 --path rails -p model:p5 --rails 4 -t 10 "${field[@]}" --exchange row,resident -n 100 -r 2
fi
if wanted others; then
    [ -n "${PRETEND:-}" ] || run 30 ipc ipc -d gpu --np 2 -t 10 -b 64K -e 64M -f 32 --grid 8,32 -n 20 -r 3
    run 30 proxy-null proxy --np 4 -p null -t 10 -b 64 -e 64 -n 1000 -r 3
fi
if wanted refused; then
    expect 20 refused-shmem 2 'must be resident, and at most' shmem --np 4 -t 10 --cases put-bandwidth --grid 60000 --block 1024 -b 8 -e 8 -n 1 -w 1 -r 1
    expect 20 refused-collective 2 'must be resident, and at most' collective --np 4 -t 10 --cases gin-all-gather --grid 500 --block 1024 -b 16M -e 16M -n 1 -r 1
fi
if wanted ends; then
    # Interrupts, terminates and kills a run; a later run removes what a killed one has left.
    for signal in INT TERM KILL; do
        start=$SECONDS
        [ "$(bounded 30)" -ge 15 ] || { result "ends-$signal" not-run 0 'no time is left'; continue; }
        "$ginlab" shmem --np 4 -t 10 "${pretend[@]}" -n 2000 -r 1000 --cases barrier-all --no-header --csv - >"$OUT/ends-$signal.txt" 2>&1 &
        job=$!
        for _ in $(seq 80); do [ -n "$(runs)" ] && [ "$(pgrep -P "$(pgrep -P $job | head -1)" 2>/dev/null | wc -l)" -ge 3 ] && break; sleep 0.1; done
        sleep 2
        kill "-$signal" $job
        wait $job 2>/dev/null
        got=$?
        if [ $signal = KILL ]; then
            sleep 1
            note "left by a killed run: $(servers "$TMPDIR/ginlab-mps-" | wc -l) processes"
            run 20 ends-sweep shmem --np 2 -t 10 -n 100 -r 1 --cases signal-ping-pong
        elif [ $got != 130 ]; then
            result "ends-$signal-code" failed $((SECONDS - start)) "code $got instead of 130"
        fi
        nothing_left "ends-$signal" $((SECONDS - start))
    done
fi
if wanted servers; then
    # A server that another user has started is used if it is named, and is never stopped.
    start=$SECONDS
    other=$TMPDIR/other/run
    mkdir -p "$other/pipe" "$other/log"
    if [ "$(bounded 40)" -ge 20 ]; then
        CUDA_MPS_PIPE_DIRECTORY=$other/pipe CUDA_MPS_LOG_DIRECTORY=$other/log timeout 10 nvidia-cuda-mps-control -d >"$OUT/server.txt" 2>&1
        CUDA_MPS_PIPE_DIRECTORY=$other/pipe CUDA_MPS_LOG_DIRECTORY=$other/log run 20 servers-named shmem --np 2 -t 10 -n 500 -r 2 --cases signal-ping-pong
        [ -n "${PRETEND:-}" ] || grep -q 'by the existing server in' "$OUT/servers-named.txt" || result servers-said failed 0 'the header does not name the server'
        run 20 servers-beside shmem --np 2 -t 10 -n 500 -r 2 --cases signal-ping-pong
        if [ -n "$(servers "$other/pipe")" ]; then
            result servers-alone ok $((SECONDS - start)) 'still there'
        else
            result servers-alone failed $((SECONDS - start)) 'gone'
        fi
    else
        result servers not-run 0 'no time is left'
    fi
    if wanted crowd && [ "$(bounded 45)" -ge 25 ]; then
        # Two jobs on one GPU do not coordinate: if not all of their blocks are resident, waits must time out.
        start=$SECONDS
        export CUDA_MPS_PIPE_DIRECTORY=$other/pipe CUDA_MPS_LOG_DIRECTORY=$other/log
        for job in 1 2; do
            timeout -k 5 40 "$ginlab" collective --np 2 -t 3 "${pretend[@]}" --cases gin-all-gather -b $largest -e $largest -n 20 -r 5 --csv "$OUT/crowd-$job.csv" >"$OUT/crowd-$job.txt" 2>&1 &
            eval "crowd$job=$!"
        done
        # shellcheck disable=SC2154  # set by eval
        wait "$crowd1"; one=$?
        # shellcheck disable=SC2154
        wait "$crowd2"; two=$?
        unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
        took=$((SECONDS - start))
        # After 40 s, 124 is timeout's own exit code.
        if [ $took -lt 38 ]; then result crowd ok $took "codes $one and $two"; else result crowd failed $took "codes $one and $two"; fi
    fi
    echo quit | CUDA_MPS_PIPE_DIRECTORY=$other/pipe CUDA_MPS_LOG_DIRECTORY=$other/log timeout 10 nvidia-cuda-mps-control >>"$OUT/server.txt" 2>&1
    for _ in $(seq 50); do [ -z "$(servers "$other/pipe")" ] && break; sleep 0.1; done
    for process in $(servers "$other/pipe"); do kill "$process"; done
fi
nothing_left at-the-end 0

# figure NAME CONDITION: prints p50 of the first row of NAME.csv that an awk condition on the columns c selects.
figure() {
    awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) n[$i] = i; next }
        { for (name in n) c[name] = $n[name] } '"$2"' { print c["time_us_p50"]; exit }' "$OUT/$1.csv" 2>/dev/null
}
# cell NAME CASE: prints p50 of the smallest size.
cell() { local found; found=$(figure "$1" "c[\"case\"] == \"$2\""); echo "${found:-null}"; }
{
    printf '{\n  "seconds": %s,\n  "failed": %s,\n' "$SECONDS" "$(grep -c ',failed,' "$OUT/steps.csv")"
    printf '  "not_run": %s,\n  "time_us_p50": {\n' "$(grep -c ',not-run,' "$OUT/steps.csv")"
    for np in 2 4 8; do
        for case in signal-ping-pong put-signal-ping-pong barrier-all all-to-all; do printf '    "mps-%s-%s": %s,\n' $np $case "$(cell shmem-$np $case)"; done
        for case in row resident; do printf '    "mps-%s-jacobi-%s": %s,\n' $np $case "$(cell jacobi-$np $case)"; done
    done
    for case in signal-ping-pong put-signal-ping-pong barrier-all; do
        printf '    "turns-2-%s": %s,\n    "mps-2-model-p5-%s": %s,\n' $case "$(cell turns-shmem $case)" $case "$(cell rails-model $case)"
    done
    for case in gin-all-to-all gin-all-reduce; do
        found=$(figure collective-4 "c[\"case\"] == \"$case\" && c[\"size_bytes\"] == 1048576")
        printf '    "mps-4-%s-1M": %s,\n' $case "${found:-null}"
    done
    printf '    "turns-2-jacobi-row": %s,\n    "turns-2-jacobi-resident": %s\n  }\n}\n' "$(cell turns-jacobi row)" "$(cell turns-jacobi resident)"
} >"$OUT/summary.json"
note "results: $OUT ($SECONDS s)"
exit $status
