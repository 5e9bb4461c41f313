#!/usr/bin/env bash
# Measures the cost of a signal after a put under each rule, and checks each rule: rails x rules x sizes x blocks x
# pairs.
#
#   experiments/put-signal/run.sh [DIR]     DIR: directory for results [default: OUT, or target/put-signal]
#
#   GINLAB   program                           [default: target/release/ginlab]
#   FABRICS  fabrics                           [default: tcp model:p5 worst]
#   GRIDS    numbers of blocks                 [default: 1 8 132]
#   QUICK    1: a tenth of the repetitions
#
# Writes one CSV per fabric and rule: rows put-bandwidth and put-signal-bandwidth (the same puts without and with
# signals; size_bytes is the total of all blocks), and signal-order, in which a kernel checks each byte immediately
# after the signal. Uses the emulated device if there is no GPU. Exit codes: 0 ok, 1 a step failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit
ginlab=${GINLAB:-target/release/ginlab}
out=${1:-${OUT:-target/put-signal}}
mkdir -p "$out"
read -ra fabrics <<<"${FABRICS:-tcp model:p5 worst}"
read -ra grids <<<"${GRIDS:-1 8 132}"
turns=(-n 100 -w 5 -r 5)
checked=31250
if [[ -n ${QUICK:-} ]]; then
    turns=(-n 10 -w 1 -r 2)
    checked=500
fi
failures=0

# step NAME ARGUMENTS...: appends the rows to NAME.csv.
step() {
    local name=$1 part
    shift
    part=$(mktemp "$out/part.XXXXXX.csv")
    if timeout 120 "$ginlab" shmem --path rails "$@" --csv "$part" >>"$out/tables.txt" 2>>"$out/log.txt"; then
        if [[ -s $out/$name.csv ]]; then
            tail -n +2 "$part" >>"$out/$name.csv"
        else
            # The header of the first step; the other steps differ only in sizes and grid.
            cp "$part" "$out/$name.csv"
            cp "${part%.csv}.header.json" "$out/$name.header.json"
        fi
    else
        echo "   FAILED: $name $*: $(tail -n 1 "$out/log.txt")" >&2
        failures=$((failures + 1))
    fi
    rm -f "$part" "${part%.csv}.header.json"
}

for fabric in "${fabrics[@]}"; do
    rails=1
    if [[ $fabric == model:* ]]; then rails=4; fi
    for rule in count own drain sequence; do
        name=${fabric//[:;]/-}-$rule
        echo "== $name" >&2
        rm -f "$out/$name.csv"
        args=(-p "$fabric" --rails "$rails" --rule "$rule" --block 64)
        for grid in "${grids[@]}"; do
            step "$name" "${args[@]}" --np 2 --cases put-bandwidth,put-signal-bandwidth --grid "$grid" "${turns[@]}" --volume 64M --no-check \
                -b $((64 * grid)) -e $((65536 * grid)) -f 32
        done
        # Two pairs at the same time.
        step "$name" "${args[@]}" --np 4 --cases put-bandwidth,put-signal-bandwidth --grid "${grids[0]}" "${turns[@]}" --volume 64M --no-check \
            -b $((64 * grids[0])) -e $((65536 * grids[0])) -f 32
        step "$name" "${args[@]}" --np 2 --cases signal-order --scope warp,block --grid 8 -n "$checked" -r 2
    done
done
echo "results: $out" >&2
exit $((failures > 0))
