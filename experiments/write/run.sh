#!/usr/bin/env bash
# Measures CPU-initiated writes between two nodes on this machine (four rails of 1 Gbit/s each way): the ladder of
# `ginlab ladder`, and large writes over one rail and over four.
#
#   experiments/write/run.sh [DIR]     DIR: new directory for results, packed like data/ [default: in data/]
#
#   GINLAB  program, relative to the repository   [default: target/release/ginlab]
#   RATE    rate of a rail and direction          [default: 1gbit]
#   MTU     bytes                                 [default: 1500]
#
# Needs root. Exit codes: 0 ok, otherwise that of the step that failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
ginlab=$PWD/${GINLAB:-target/release/ginlab}
out=${1:-data/cpu/$(date -u +%F)-lab-write}
mkdir -p "$out"
lab() { scripts/rails-lab.sh "$1" --name write "${@:2}"; }
trap 'lab down >/dev/null 2>&1 || true' EXIT
lab down >/dev/null 2>&1 || true
lab up --rate "${RATE:-1gbit}" --mtu "${MTU:-1500}"

# row NAME EXPERIMENT ARGUMENTS...: runs the same command on both nodes; node 0 writes the rows.
row() {
    local name=$1 other
    shift
    printf '== %s: ginlab %s\n' "$name" "$*" | tee -a "$out/log.txt"
    timeout 120 scripts/rails-lab.sh exec --name write 1 -- "$ginlab" "$@" -p tcp -d emulated -r 5 --no-header >/dev/null &
    other=$!
    timeout 120 scripts/rails-lab.sh exec --name write 0 -- "$ginlab" "$@" -p tcp -d emulated -r 5 --no-header \
        --csv "$out/$name.csv" --json "$out/$name.json" | tee -a "$out/log.txt"
    wait "$other"
}

# The ladder, with the size of the published study.
row ladder ladder --rails 4 -n 200
# Large writes: over one rail compared with the bare loop, and over four.
row bare write -b 4M -e 16M -f 4 -n 16 --rails 1 --strategy single --window 8 --buffers 1 --bare
row large write -b 4M -e 64M -f 16 -n 8 --rails 1,4 --strategy split,round-robin --window 4 --volume 256M
scripts/pack-results.sh "$out"
