#!/usr/bin/env bash
# Rails of verbs over cards in software, beside libfabric over the same cards, on a machine with a GPU: scripts/gpu-check-verbs.sh [GINLAB] [POST_COST]
#
# Kernels push, the proxy posts by verbs or by libfabric, every byte is checked; then what a post and a write cost by each, in turns, on cards that
# move nothing. Writes CSV and headers to $OUT (default: a new folder under /tmp). Each step is bounded, all together stay below four
# minutes; LIMIT=SECONDS ends sooner. Without a GPU it runs on the emulated device: then it checks the script. No figure of it is a real card's.
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

# Programs of kernels, over cards whose requests overtake one another.
run shmem-verbs 60 shmem --np 2 -d "$device" --path rails --rails 1 -p efa-verbs/soft:fast,seed=7,reorder=9 --cases signal-order -n 200 -r 1 --grid 1 --block 33 -t 20
run proxy-verbs 40 proxy --np 2 -d "$device" -p efa-verbs/soft:p5 -b 4K -e 1M -f 16 -n 20 -r 2 --rails 1,4 --mode quiet,nbi --check -t 20
run collective-verbs 60 collective --np 2 -d "$device" --path rails -p efa-verbs/soft:p5 -b 64K -e 64K -n 10 -r 2 -t 20
# What libfabric costs: posts alone, and whole writes, in turns.
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
