#!/usr/bin/env bash
# Compares quiet with nbi over modelled cards: first the published experiment, then changes that remove the losses.
#
#   experiments/quiet-vs-nbi/run.sh [DIR]     DIR: directory for results [default: OUT, or target/quiet-vs-nbi]
#
#   GINLAB  program                         [default: target/release/ginlab]
#   MODEL   profile of the cards            [default: p5]
#   MEM     memory of the payload           [default: device]
#   QUICK   1: two repeats
#
# Each step writes one CSV and its stages (STEP.life.csv). Uses the emulated device if there is no GPU. Exit codes: 0
# ok, 1 a step failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit
ginlab=${GINLAB:-target/release/ginlab}
out=${1:-${OUT:-target/quiet-vs-nbi}}
model=${MODEL:-p5}
mkdir -p "$out"
failures=0
repeats=10
[[ -n ${QUICK:-} ]] && repeats=2

# The payload is in GPU memory, read by the modelled cards. Timed passes move no bytes; a separate pass verifies all.
step() {
    local name=$1
    shift
    echo "== $name: $*" >&2
    timeout 240 "$ginlab" proxy -p "model:$model" --no-copy --memory "${MEM:-device}" --rails 1,4 --strategy split -n 200 -w 3 -r "$repeats" \
        --volume 1G --memory-limit 2G "$@" --csv "$out/$name.csv" --json "$out/$name.json" --trace "$out/$name.life" \
        >>"$out/tables.txt" 2>>"$out/log.txt" || { echo "   FAILED: $(tail -n 1 "$out/log.txt")" >&2; failures=$((failures + 1)); }
}

# 0: as published. One block of 256 threads fills the buffer, puts it, and waits.
for ring in pinned managed; do
    step "0-as-it-was-$ring" --grid 1 --window 1 --mode quiet -b 64K -e 256M -f 4 --ring-memory "$ring"
    step "0-as-it-was-$ring-8M" --grid 1 --window 1 --mode quiet -b 8M -e 512M -f 8 --ring-memory "$ring"
done
# 0a: payload in pinned host memory, so that the fill crosses PCIe.
MEM=pinned step 0a-pinned-payload --grid 1 --window 1 --mode quiet -b 1M -e 64M -f 8
# 0b: without the fill, so that only ring, proxy and wire remain.
step 0b-no-fill --grid 1 --window 1 --mode quiet --no-fill --no-check -b 1M -e 512M -f 8
# 1: a block of 1024 threads.
step 1-block-1024 --grid 1 --block 1024 --window 1 --mode quiet -b 1M -e 64M -f 8
# 2: the same 8 MiB (and 1 MiB) divided among more blocks, quiet after each put.
for blocks in 8 32 128; do
    step "2-blocks-$blocks-of-8M" --grid "$blocks" --window 1 --mode quiet -b $((8388608 / blocks)) -e $((8388608 / blocks))
    step "2-blocks-$blocks-of-1M" --grid "$blocks" --window 1 --mode quiet -b $((1048576 / blocks)) -e $((1048576 / blocks))
done
# 3: one block with two or four buffers: fills one while another is being sent. A put is complete before its buffer is
# filled again.
step 3-four-buffers --grid 1 --window 4 --mode nbi -b 64K -e 64M -f 4
step 3-double-buffer --grid 1 --window 2 --mode nbi -b 1M -e 64M -f 8
step 3-double-buffer-1024 --grid 1 --block 1024 --window 2 --mode nbi -b 1M -e 64M -f 8
# 4: several blocks and several buffers.
for blocks in 8 32; do
    for window in 2 4; do
        step "4-blocks-$blocks-window-$window-of-8M" --grid "$blocks" --window "$window" --mode nbi -b $((8388608 / blocks)) -e $((8388608 / blocks))
        step "4-blocks-$blocks-window-$window-of-1M" --grid "$blocks" --window "$window" --mode nbi -b $((1048576 / blocks)) -e $((1048576 / blocks))
    done
done
# 5: a few blocks with whole puts, quiet after each.
step 5-whole-puts-quiet --grid 2,4,8 --window 1 --mode quiet -b 64K -e 16M -f 4
step 5-whole-puts-quiet-8M --grid 2,4,8 --window 1 --mode quiet -b 8M -e 8M
# 6: quiet every K.
step 6-quiet-every --grid 1 --block 1024 --window 16 --mode quiet-every=4,quiet-every=16 -b 1M -e 8M -f 8
# 7: two rings and two proxy threads.
step 7-two-rings --grid 8 --window 2 --mode nbi --proxy-threads 2 -b 128K -e 1M -f 8
echo "$failures steps failed" >&2
exit $((failures > 0))
