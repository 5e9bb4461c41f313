#!/usr/bin/env bash
# Measures all-to-all between four nodes on this machine (four rails of 100 Mbit/s each), and between eight local ranks.
#
#   experiments/all2all/run.sh [DIR]     DIR: new directory for results, packed like data/ [default: in data/]
#
#   GINLAB  program, relative to the repository   [default: target/release/ginlab]
#   RATE    rate of a rail and direction          [default: 100mbit]
#   MTU     bytes                                 [default: 1500]
#
# Needs root. Exit codes: 0 ok, otherwise that of the step that failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
ginlab=$PWD/${GINLAB:-target/release/ginlab}
out=${1:-data/cpu/$(date -u +%F)-lab-all2all}
mkdir -p "$out"
nodes=4
lab() { scripts/rails-lab.sh "$1" --name all2all "${@:2}"; }
trap 'lab down >/dev/null 2>&1 || true' EXIT
lab down >/dev/null 2>&1 || true
lab up --nodes "$nodes" --rate "${RATE:-100mbit}" --mtu "${MTU:-1500}"
: >"$out/log.txt"

# step NAME ARGUMENTS...: runs the same command on all nodes; node 0 writes the rows.
step() {
    local name=$1 node others=()
    shift
    printf '== %s: one rank per node: ginlab all2all %s\n' "$name" "$*" | tee -a "$out/log.txt"
    for ((node = 1; node < nodes; node++)); do
        timeout 300 scripts/rails-lab.sh exec --name all2all "$node" -- "$ginlab" all2all -p tcp -d emulated "$@" --no-header >/dev/null &
        others+=("$!")
    done
    timeout 300 scripts/rails-lab.sh exec --name all2all 0 -- "$ginlab" all2all -p tcp -d emulated "$@" --no-header \
        --csv "$out/$name.csv" --json "$out/$name.json" | tee -a "$out/log.txt"
    for node in "${others[@]}"; do wait "$node"; done
}

# One rail and four; whole blocks distributed round-robin, and split blocks.
step all2all-rails -b 64K -e 4M -f 8 -n 12 --rails 1,2,3,4 --strategy round-robin,split --volume 64M
# Eight local ranks on the loopback, to verify data and rail balance at any size. Their times are those of the
# scheduler.
printf '== all2all-local: ginlab all2all --np 8 --rails 1,2,3,8 -b 0 -e 300763 -f 67 -n 24\n' | tee -a "$out/log.txt"
"$ginlab" all2all -p tcp -d emulated --np 8 --rails 1,2,3,8 -b 0 -e 300763 -f 67 -n 24 --no-header \
    --csv "$out/all2all-local.csv" --json "$out/all2all-local.json" | tee -a "$out/log.txt"
scripts/pack-results.py "$out"
