#!/usr/bin/env bash
# Checks and measures verbs rails over software NICs, compared with libfabric over the same NICs, on a machine with a
# GPU: kernels through the proxy with verification, then the cost of a post and of a write on NICs that move no data.
#
#   scripts/gpu-check-verbs.sh [GINLAB] [POST_COST]
#
#   OUT    directory for CSV and headers   [default: new, under /tmp]
#   LIMIT  seconds for all steps           [default: 230]
#
# Each step has a time limit; steps beyond LIMIT are reported as not run. Without a GPU it uses the emulated device,
# which only tests the script. The figures are not those of a real NIC. Exit codes: 0 ok, 1 a step failed.
set -u
ginlab=$(realpath "${1:-target/release/ginlab}")
post_cost=${2:-target/release/examples/post_cost}
OUT=${OUT:-$(mktemp -d /tmp/gpu-check-verbs.XXXXXX)}
mkdir -p "$OUT"
limit=${LIMIT:-230}
device=gpu
nvidia-smi -L >"$OUT/gpus.txt" 2>/dev/null && [ -s "$OUT/gpus.txt" ] || device=emulated
export FI_EFA_RX_SIZE=1024
failures=0

# step NAME SECONDS COMMAND...
step() {
    local name=$1 seconds=$2 left=$((limit - SECONDS - 5)) code
    shift 2
    if [ "$left" -lt 5 ]; then echo "$name: not run, no time is left"; return; fi
    timeout -k 5 "$((seconds < left ? seconds : left))" "$@" >>"$OUT/log.txt" 2>&1
    code=$?
    [ "$code" = 0 ] || failures=$((failures + 1))
    echo "$name: $([ "$code" = 0 ] && echo ok || echo "FAILED with $code: $(tail -n 1 "$OUT/log.txt" | cut -c1-200)") at $SECONDS s"
}
run() { # NAME SECONDS ARGUMENTS...
    local name=$1 seconds=$2
    shift 2
    step "$name" "$seconds" "$ginlab" "$@" --csv "$OUT/$name.csv" --json "$OUT/$name.json"
}

# Programs with kernels, over NICs that reorder requests.
run shmem-verbs 60 shmem --np 2 -d "$device" --path rails --rails 1 -p efa-verbs/soft:fast,seed=7,reorder=9 --cases signal-order -n 200 -r 1 --grid 1 --block 33 -t 20
run proxy-verbs 40 proxy --np 2 -d "$device" -p efa-verbs/soft:p5 -b 4K -e 1M -f 16 -n 20 -r 2 --rails 1,4 --mode quiet,nbi --check -t 20
run collective-verbs 60 collective --np 2 -d "$device" --path rails -p efa-verbs/soft:p5 -b 64K -e 64K -n 10 -r 2 -t 20
# Cost of libfabric: only posts, and whole writes, alternating with verbs.
for turn in 1 2; do
    if [ -x "$post_cost" ]; then
        step "post-libfabric-$turn" 20 "$post_cost" --csv "$OUT/post-libfabric-$turn.csv"
        step "post-verbs-$turn" 20 "$post_cost" --verbs --csv "$OUT/post-verbs-$turn.csv"
    fi
    for provider in soft-efa efa-verbs/soft; do
        run "write-${provider%%/*}-$turn" 20 write --np 2 -d emulated -p "$provider:p5en,unmoved" -b 64 -e 64K -f 4 -n 200 -r 9 --window 64 --rails 1 --no-check -t 10
        run "proxy-${provider%%/*}-$turn" 30 proxy --np 2 -d "$device" -p "$provider:p5en,unmoved" -b 64 -e 64 -n 200 -r 5 --rails 1 --mode quiet --no-check -t 10
    done
done
echo "$failures steps failed; results in $OUT"
exit $((failures > 0))
