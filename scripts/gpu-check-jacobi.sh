#!/usr/bin/env bash
# Jacobi iterations on the GPUs of one machine, every exchange beside the others: scripts/gpu-check-jacobi.sh [GINLAB]
#
# Writes CSV and headers to $OUT (default: a new folder under /tmp). Bounded: each step has a limit of its own, all together stay below
# four minutes. It takes all GPUs that it sees, or those that RANKS says; without two GPUs it runs the same on the emulated device, in
# sizes that suit it: then it checks the script and no card.
set -u
cd "$(dirname "$0")/.." || exit
ginlab=${1:-target/release/ginlab}
OUT=${OUT:-$(mktemp -d /tmp/ginlab-jacobi.XXXXXX)}
mkdir -p "$OUT"
status=0
note() { echo "gpu-check-jacobi: $*" >&2; }

gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU') || true
ranks=${RANKS:-${gpus:-0}}
if [ "$ranks" -ge 2 ] && [ "${gpus:-0}" -ge 1 ]; then device=gpu; else device=emulated; ranks=2; note "fewer than two GPUs: the emulated device"; fi

# run LIMIT NAME arguments: one call, its CSV and what it said.
run() {
    local limit=$1 name=$2
    shift 2
    note "$name"
    timeout -k 5 "$limit" "$ginlab" jacobi -d "$device" --csv "$OUT/$name.csv" "$@" >"$OUT/$name.txt" 2>&1
    local ended=$?
    [ $ended -eq 0 ] || { note "$name ended with $ended: $(tail -1 "$OUT/$name.txt")"; status=1; }
}

if [ "$device" = gpu ]; then
    run 60 fields --np "$ranks" --nx 1024,4096 -r 7
    run 60 large --np "$ranks" --nx 16384 --exchange host-write,p,block,row -r 3
    run 45 factors --np "$ranks" --nx 4096 --exchange block,row --norm block,never --norm-when now,delayed,every=10 --sync barrier,neighbours -r 3
    run 45 rails-tcp --np "$ranks" --path rails --provider tcp --nx 1024,16384 --exchange host-write,block,row -n 100 -r 3
    run 45 rails-model --np "$ranks" --path rails --provider model:p5 --rails 4 --nx 1024,16384 --exchange host-write,p,block,row,resident -n 100 -r 3
    run 60 artefact --np 1 --nx 16384 --exchange row --norm block,thread-atomic -n 10 -r 1
    run 60 artefact-all --np "$ranks" --nx 16384 --exchange host-write,block,row --norm thread-atomic -n 10 -r 1
else
    run 60 fields --np 2 -n 10 -r 2 --block 64
    run 60 rails --np 2 -n 10 -r 2 --block 64 --path rails --provider test:unordered
fi
note "results: $OUT"
exit $status
