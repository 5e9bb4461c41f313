#!/usr/bin/env bash
# Runs every check and benchmark that needs a GPU: correctness of the real PTX, faults, measurements.
#
#   scripts/gpu-check.sh [DIR]     DIR: new directory for results [default: OUT, or data/DATE-HOSTNAME]
#
#   GINLAB  program                             [default: target/release/ginlab]
#   QUICK   1: a tenth of the time, to test the script
#   ONLY    one part: ring, mps, ipc, or collective (includes ipc)   [default: all]
#
# Uses one GPU, which two ranks share, and all GPUs for ipc, collective and Jacobi. Does not change GPU settings. Each
# step has a time limit; the other steps still run after a failure. Writes summary.txt, steps.txt and all results to
# DIR, packed by scripts/pack-results.sh for data/; a README.md must be added. Exit codes: 0 ok, 1 a step failed, 2
# usage.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
case ${1:-} in
-h | --help)
    sed -n '2,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit
    ;;
-*)
    echo "gpu-check.sh: $1: expected a directory; see --help" >&2
    exit 2
    ;;
esac

ginlab=${GINLAB:-target/release/ginlab}
out=${1:-${OUT:-data/$(date -u +%F)-$(hostname)}}
quick=${QUICK:-}
if [[ -e $out/headers.json ]]; then
    echo "gpu-check.sh: $out has results of an earlier run; choose another directory" >&2
    exit 2
fi
work=$(mktemp -d)
mkdir -p "$out"
# Written to DIR during the run so that it can be followed; packed with the other files at the end.
log=$out/log.txt
: >"$log"
# Keeps the results so far, however the script exits.
# shellcheck disable=SC2317  # the trap calls it
pack() {
    cp "$log" "$work/log.txt"
    if scripts/pack-results.sh "$work" "$out"; then rm -rf "$log" "$work"; else echo "not packed: $work" >&2; fi
}
trap pack EXIT
failures=0

say() { printf '%s\n' "$*" | tee -a "$log"; }
repeats() { if [[ -n $quick ]]; then echo 2; else echo "$1"; fi; }

# run NAME SECONDS ARGUMENTS...: one sweep of the experiment, into NAME.csv and NAME.json.
experiment=proxy
run() {
    local name=$1 seconds=$2 start=$SECONDS
    shift 2
    say "== $name: ginlab $experiment $*"
    if timeout "$seconds" "$ginlab" "$experiment" "$@" --csv "$work/$name.csv" --json "$work/$name.json" >>"$log" 2>&1; then
        say "   ok, $((SECONDS - start)) s"
    else
        say "   FAILED with $? after $((SECONDS - start)) s: $(tail -n 1 "$log")"
        failures=$((failures + 1))
    fi
}

# expect NAME CODE TEXT ARGUMENTS...: a run that must exit with this code and message in time.
expect() {
    local name=$1 code=$2 words=$3 start=$SECONDS got text
    shift 3
    say "== $name: ginlab $experiment $*"
    text=$(timeout 60 "$ginlab" "$experiment" "$@" --no-header 2>&1 >/dev/null)
    got=$?
    printf '%s\n' "$text" >>"$log"
    if [[ $got == "$code" && $text == *"$words"* ]]; then
        say "   ok: code $got after $((SECONDS - start)) s: $text"
    else
        say "   FAILED: code $got instead of $code, or not \"$words\": $text"
        failures=$((failures + 1))
    fi
}

# Kills the target rank while a kernel runs: the kernel must return, and rank 0 must name the rank.
kill_target() {
    say '== the target rank is killed during the run'
    timeout 60 "$ginlab" proxy -b 64 -e 64 -n 4000000 --volume 1G --mode nbi -r 3 --no-header -t 10 >>"$log" 2>"$work/killed" &
    local parent=$! child='' tries=0
    # The ginlab process is the child of timeout; its child is rank 1.
    while [[ -z $child && $tries -lt 200 ]]; do
        child=$(pgrep -P "$(pgrep -P "$parent" | head -n 1)" 2>/dev/null | head -n 1)
        tries=$((tries + 1))
        sleep 0.05
    done
    sleep 4
    kill -9 "$child" 2>>"$log"
    wait "$parent"
    local got=$?
    cat "$work/killed" >>"$log"
    if [[ $got == 1 ]] && grep -Eq '(rank|peer) 1' "$work/killed"; then
        say "   ok: code $got: $(tail -n 1 "$work/killed")"
    else
        say "   FAILED: code $got: $(tail -n 1 "$work/killed")"
        failures=$((failures + 1))
    fi
}

# value FILE COLUMN CONDITION: prints the column of the rows that an awk condition on column names selects, as
# c["mode"].
value() {
    awk -F, -v column="$2" 'NR == 1 { for (i = 1; i <= NF; i++) n[$i] = i; next }
        { for (name in n) c[name] = $n[name] } '"$3"' { print c[column] }' "$work/$1.csv" 2>/dev/null
}

"$ginlab" --version 2>&1 | tee -a "$log"
nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.width.current,clocks.sm,clocks.mem \
    --format=csv 2>&1 | tee -a "$log"

finish_only() {
    printf 'failed steps: %s\n' "$failures" | tee "$work/summary.txt" | tee -a "$log"
    exit $((failures > 0))
}
if [[ ${ONLY:-} == ring ]]; then
    # shellcheck source=scripts/gpu-check-ring.sh
    source scripts/gpu-check-ring.sh
    finish_only
fi

# Several PEs on one GPU, with MPS and time-sliced.
if [[ ${ONLY:-} == mps || -z ${ONLY:-} ]]; then
    if OUT=$work/mps timeout -k 5 260 scripts/gpu-check-mps.sh "$ginlab" 2>&1 | tee -a "$log"; then
        say '== mps: ok'
    else
        say '== mps: FAILED'
        failures=$((failures + 1))
    fi
fi
if [[ ${ONLY:-} == mps ]]; then finish_only; fi

gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
if ((gpus >= 2)); then
    # shellcheck source=scripts/gpu-check-ipc.sh
    source scripts/gpu-check-ipc.sh
else
    say "== ipc: skipped: needs two GPUs, found $gpus"
fi
if [[ ${ONLY:-} == ipc ]]; then finish_only; fi

# Collectives over NVLink on all GPUs, alternating with NCCL.
if ((gpus >= 2)); then
    mkdir -p "$work/collective"
    if OUT=$work/collective timeout -k 5 300 scripts/gpu-check-collective.sh "$ginlab" 2>&1 | tee -a "$log"; then
        say '== collective: ok'
    else
        say '== collective: FAILED'
        failures=$((failures + 1))
    fi
fi
if [[ ${ONLY:-} == collective ]]; then finish_only; fi
# Jacobi on all GPUs, every exchange; has its own limits.
if ((gpus >= 2)) && ! OUT=$work/jacobi scripts/gpu-check-jacobi.sh "$ginlab" 2>&1 | tee -a "$log"; then failures=$((failures + 1)); fi

# CUDA's checkers on all kernels.
if ! GINLAB=$ginlab scripts/gpu-check-sanitizer.sh "$work" 2>&1 | tee -a "$log"; then failures=$((failures + 1)); fi

# shellcheck source=scripts/gpu-check-ring.sh
source scripts/gpu-check-ring.sh

# Modelled cards in real time, compared with a real one, by size.
if ! scripts/model-check.sh "$ginlab" "$work/model" 2>&1 | tee -a "$log"; then failures=$((failures + 1)); fi

# The GPU-to-CPU queue.
experiment=queue
run nbi 60 -d gpu -a ticket -m nbi --grid 1,4,8,32,64,132 --block 1,32,256,1024 -r "$(repeats 9)"
run blocking-thread 60 -d gpu -a ticket -m blocking --grid 1,2,8,32,64,132 --block 1 -r "$(repeats 9)"
run blocking-warp 60 -d gpu -a ticket -m blocking --scope warp --grid 1,2,8,32,64,132 --block 32 -r "$(repeats 9)"
run blocking-warp-64 60 -d gpu -a ticket -m blocking --scope warp --grid 1,2,8,32,64,132 --block 32 -r "$(repeats 9)" --slot-bytes 64
run four-rings 60 -d gpu -a ticket -m nbi --grid 132 --block 32,256,1024 -r "$(repeats 9)" --rings 4
run compare 60 -d gpu --grid 1,8,32 --block 1,32 -r "$(repeats 5)"
run compare-managed 60 -d gpu --memory managed --grid 1,8,32 --block 1,32 -r "$(repeats 3)" -a ticket,vyukov -m nbi --time 10
run compare-gdr 60 -d gpu --memory gdr --grid 1,8,32 --block 1,32 -r "$(repeats 3)" -a ticket,vyukov -m nbi --time 10
run payload 60 -d gpu -a ticket -m nbi --payload 8,16,32,64,128,256,512,1024 --grid 32 --block 32,256 -r "$(repeats 5)"
run stress 60 -d gpu -a ticket,release --ring-slots 1,2,16,64 --grid 8 --block 32,48 -r 2 -n 50 --pause 100:50
run stress-vyukov 60 -d gpu -a vyukov --ring-slots 2,16,64 --grid 8 --block 32 -r 2 -n 20 --pause 100:50
experiment=proxy

# Ring and proxy without a network.
run null-floor 60 -d gpu -p null -b 64 -e 64 -n 5000 -r "$(repeats 15)" --block 32,256
run null-grids 100 -d gpu -p null -b 64 -e 64 -n 2000 -r "$(repeats 10)" --grid 1,8,32,132 --block 256
run null-grids-no-fill 60 -d gpu -p null -b 64 -e 64 -n 2000 -r "$(repeats 10)" --grid 1,8,32,132 --block 256 --no-fill
run null-threads 100 -d gpu -p null -b 64 -e 64 -n 200 -r "$(repeats 10)" --grid 1,8,32,132 --block 32,256 --scope thread --window 1
run null-two-slots 100 -d gpu -p null -b 64 -e 64 -n 20 -r 3 --grid 1,8,132 --block 32,256 --scope thread --window 1 --ring-slots 2
run null-four-proxies 60 -d gpu -p null -b 64 -e 64 -n 200 -r "$(repeats 10)" --grid 132 --block 256 --scope thread --window 1 --proxy-threads 4

# Over tcp on the loopback: sizes, rails, grids.
run tcp-sizes 300 -d gpu -p tcp -b 64 -e 64M -f 4 -r "$(repeats 21)" --rails 1,4
run tcp-no-fill 200 -d gpu -p tcp -b 1M -e 64M -f 4 -r "$(repeats 21)" --rails 1,4 --no-fill
run tcp-grids 400 -d gpu -p tcp -b 64 -e 64M -f 16 -r "$(repeats 4)" -w 1 --rails 4 --grid 1,8,32,132 --window 2 --memory-limit 9G
run tcp-device-memory 100 -d gpu -p tcp -b 64 -e 64M -f 16 -r "$(repeats 5)" --rails 4 --memory device
run tcp-transmit 100 -d gpu -p tcp -b 64 -e 16M -f 4 -r "$(repeats 10)" --rails 1 --completion transmit
# CPU-initiated writes, compared with a minimal fi_write loop: the same buffer, rail and completion level.
run tcp-bare 200 -d gpu -p tcp -b 64 -e 16M -f 4 -r "$(repeats 15)" --rails 1 --mode nbi --no-fill --window 1 --bare
run tcp-bare-transmit 200 -d gpu -p tcp -b 64 -e 16M -f 4 -r "$(repeats 15)" --rails 1 --mode nbi --no-fill --window 1 --bare --completion transmit
# The same comparison for the layer of futures, without a GPU.
experiment="write"
run write-bare 200 -d emulated -p tcp -b 64 -e 16M -f 4 --rails 1 --strategy single --window 64 --buffers 1 --bare -n 20000 --volume 256M --pin -r "$(repeats 15)"
experiment=proxy
run shm 60 -d gpu -p shm -b 64 -e 4M -f 16 -r "$(repeats 5)" --rails 1

# Stages of a put; modelled cards: the cost of quiet and how to avoid it.
mkdir -p "$work/life"
run life-null 60 -d gpu -p null -b 64 -e 64K -f 1024 -n 2000 -r "$(repeats 10)" --rails 1,4 --strategy split --trace "$work/life/null"
run life-tcp 60 -d gpu -p tcp -b 64 -e 64K -f 1024 -n 2000 -r "$(repeats 10)" --rails 1,4 --strategy split --trace "$work/life/tcp"
say '== experiments/quiet-vs-nbi/run.sh'
if GINLAB=$ginlab timeout 600 experiments/quiet-vs-nbi/run.sh "$work/quiet-vs-nbi" >>"$log" 2>&1; then
    say '   ok'
else
    say "   FAILED: $(tail -n 1 "$log")"
    failures=$((failures + 1))
fi

# Faults: every run must exit with a reason.
expect proxy-vanishes 124 'deadline passed on the device' -d gpu -b 64 -e 64 -n 100000 -r 3 --mode nbi --fault proxy-vanish=20000 -t 3
expect proxy-vanishes-quiet 124 'deadline passed on the device' -d gpu -b 64 -e 64 -n 100000 -r 3 --mode quiet --fault proxy-vanish=2000 -t 3
expect proxy-vanishes-full-ring 124 'deadline passed on the device' -d gpu -p null -b 64 -e 64 -n 1000 -r 3 --grid 132 --block 256 --scope thread --window 1 --mode nbi --ring-slots 64 --fault proxy-vanish=20000 -t 3
expect proxy-stops 1 'proxy stopped' -d gpu -b 64 -e 64 -n 100000 -r 3 --mode nbi --fault proxy-stop=20000 -t 3
expect too-large-a-block 2 'refused' -d gpu -p null --block 2048 -b 64 -e 64
kill_target

{
    "$ginlab" --version | head -n 1
    nvidia-smi --query-gpu=name --format=csv,noheader
    printf 'rows: %s, of which not ok: %s\n' \
        "$(cat "$work"/*.csv | grep -vc '^schema,')" "$(cat "$work"/*.csv | grep -v '^schema,' | grep -Evc ',ok,')"
    printf 'put + quiet of 64 B on the null rail, us (blocks of 32 and 256): %s\n' \
        "$(value null-floor time_us_p50 'c["mode"] == "quiet"' | paste -sd' ')"
    printf 'bare ping-pong with payload and fence, same run, us:             %s\n' \
        "$(value null-floor time_us_p50 'c["case"] == "ping-pong"' | paste -sd' ')"
    printf 'nbi puts of 64 B on the null rail, one proxy thread, Mops by grid (no fill): %s\n' \
        "$(value null-grids-no-fill rate_mops 'c["mode"] == "nbi" && c["case"] == "put"' | paste -sd' ')"
    printf 'the same, every thread puts (132 x 256 last): %s\n' \
        "$(value null-threads rate_mops 'c["mode"] == "nbi" && c["case"] == "put"' | paste -sd' ')"
    for file in tcp-sizes tcp-no-fill; do
        for rails in 1 4; do
            printf '%s, %s rails, nbi over CPU-initiated from 1 MiB on: %s\n' "$file" "$rails" \
                "$(value "$file" baseline_ratio "c[\"mode\"] == \"nbi\" && c[\"case\"] == \"put\" && c[\"rails\"] == $rails && c[\"size_bytes\"] >= 1048576" | paste -sd' ')"
        done
    done
    for file in tcp-bare tcp-bare-transmit; do
        printf '%s, CPU-initiated over the bare loop, by size: %s\n' "$file" \
            "$(value "$file" baseline_ratio 'c["case"] == "cpu-write"' | paste -sd' ')"
    done
    printf 'write, our layer over the bare loop, by size: %s\n' \
        "$(value write-bare baseline_ratio 'c["case"] == "write"' | paste -sd' ')"
    printf 'failed steps: %s\n' "$failures"
} | tee "$work/summary.txt" | tee -a "$log"

exit $((failures > 0))
