#!/usr/bin/env bash
# Measures CPU-initiated writes step by step between two nodes on this machine (four rails of 1 Gbit/s each way).
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

# rung NAME ARGUMENTS...: runs the same command on both nodes; node 0 writes the rows.
experiment="write"
rung() {
    local name=$1 other
    shift
    printf '== %s: ginlab %s %s\n' "$name" "$experiment" "$*" | tee -a "$out/log.txt"
    timeout 120 scripts/rails-lab.sh exec --name write 1 -- "$ginlab" "$experiment" -p tcp -d emulated -r 5 "$@" --no-header >/dev/null &
    other=$!
    timeout 120 scripts/rails-lab.sh exec --name write 0 -- "$ginlab" "$experiment" -p tcp -d emulated -r 5 "$@" --no-header \
        --csv "$out/$name.csv" --json "$out/$name.json" | tee -a "$out/log.txt"
    wait "$other"
}

# Each rung changes one thing. The size is that of the published study.
rung 1-blocking -b 64K -e 64K -n 200 --rails 1 --strategy single --window 1 --batch 1
rung 2-window -b 64K -e 64K -n 200 --rails 1 --strategy single --window 16 --batch 1
rung 3-batched -b 64K -e 64K -n 200 --rails 1 --strategy single --window 16 --batch 8
rung 4-deferred -b 64K -e 64K -n 200 --rails 1 --strategy single --window 16 --completion transmit --batch 1
rung 5-rails -b 64K -e 64K -n 800 --rails 4 --strategy round-robin --window 16 --batch 1
rung 6-pinned -b 64K -e 64K -n 800 --rails 4 --strategy round-robin --window 16 --pin --batch 1
# A flow runs on one thread. Several threads with their own rails are measured by the row cpu-write of `proxy`.
experiment="proxy"
rung 7-one-thread -b 64K -e 64K -n 800 --rails 4 --strategy round-robin --window 16 --mode nbi --proxy-threads 1
rung 8-two-threads -b 64K -e 64K -n 800 --rails 4 --strategy round-robin --window 16 --grid 2 --mode nbi --proxy-threads 2
experiment="write"
# Rail bandwidth: compared with the bare loop, with split, round-robin over eight buffers, and with one large buffer.
rung one-rail-bare -b 4M -e 16M -f 4 -n 16 --rails 1 --strategy single --window 8 --buffers 1 --bare
rung split -b 4M -e 64M -f 4 -n 8 --rails 1,4 --strategy split --window 4 --buffers 2 --volume 256M
rung round-robin -b 4M -e 4M -n 64 --rails 1,4 --strategy round-robin --window 8 --buffers 8 --volume 256M
rung lone-buffer -b 64M -e 64M -n 1 --rails 4 --strategy single,split --window 1 --buffers 1 --volume 64M
scripts/pack-results.py "$out"
