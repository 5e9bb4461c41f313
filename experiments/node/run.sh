#!/usr/bin/env bash
# Measures a whole node of modelled cards: one sender with 1, 4 and 32 rails on one thread, then eight senders with four
# rails and a pinned thread each, and CPU-initiated writes in batches for comparison.
#
#   experiments/node/run.sh [DIR]     DIR: directory for results [default: OUT, or target/node]
#
#   GINLAB  program                    [default: target/release/ginlab]
#   MODEL   profile of the cards       [default: p5]
#   DEVICE  gpu, or emulated           [default: gpu]
#
# Needs 32 cores or more. Exit codes: 0 ok, otherwise that of the step that failed (124: its time limit).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
ginlab=${GINLAB:-target/release/ginlab}
out=${1:-${OUT:-target/node}}
mkdir -p "$out"
common=(-p "model:${MODEL:-p5}" --no-copy -d "${DEVICE:-gpu}" --strategy round-robin --mode nbi --no-fill -r 5)
step() {
    local name=$1
    shift
    printf '== %s: ginlab proxy %s\n' "$name" "$*" | tee -a "$out/log.txt"
    timeout 120 "$ginlab" proxy "${common[@]}" "$@" --no-header --csv "$out/$name.csv" --json "$out/$name.json" | tee -a "$out/log.txt"
}
step node-one-sender --np 2 --rails 1,4,32 --window 16 --cpu-batch 16,64 -b 1M -e 64M -f 64 -n 800 -w 16 --volume 8G
step node-eight --np 16 --rails 4 --window 16 --cpu-batch 4,16,32 --per-node -b 64K -e 1M -f 16 -n 1600 -w 50 --volume 2G
step node-eight-large --np 16 --rails 4 --window 8 --cpu-batch 4,8 --per-node -b 8M -e 64M -f 8 -n 128 -w 8 --volume 8G
