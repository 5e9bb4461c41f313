#!/usr/bin/env bash
# Measures Jacobi iterations on the GPUs of one machine with every kind of exchange.
#
#   scripts/gpu-check-jacobi.sh [GINLAB]
#
#   OUT       directory for CSV and headers   [default: new, under /tmp]
#   RANKS     number of ranks                 [default: number of GPUs]
#   STEPS     list of: fields, large, scaling, factors, rails, artefact, dies   [default: all]
#   CHECKOUT  checkout of NVIDIA's multi-gpu-programming-models; also runs those programs (scripts/jacobi-nvidia.sh)
#
# Each step has a time limit; all take less than six minutes on two GPUs. With fewer than two GPUs it uses the emulated
# device with small sizes, which only tests the script. Exit codes: 0 ok, 1 a step failed.
set -u
cd "$(dirname "$0")/.." || exit
program=jacobi
# shellcheck source=scripts/gpu-check-program.sh
source scripts/gpu-check-program.sh
ranks=${RANKS:-${gpus:-0}}
if [ "$ranks" -ge 2 ] && [ "${gpus:-0}" -ge 1 ]; then device=gpu; else device=emulated; ranks=2; note "fewer than two GPUs: the emulated device"; fi

# dies EXCHANGE: kills a rank during the iterations; the others must exit soon and name it.
dies() {
    local began=$SECONDS text=$OUT/dies-$1.txt job
    timeout -k 5 40 "$ginlab" jacobi -d "$device" --np 2 --exchange "row,$1" --nx 1024 -n 2000 -r 300 -t 10 --no-check --no-header --csv - >"$text" 2>&1 &
    job=$!
    for _ in $(seq 300); do grep -q ',jacobi,row,' "$text" 2>/dev/null && break; sleep 0.1; done
    sleep 0.5
    # ginlab is the child of timeout and the parent of its ranks. If ranks share a GPU, there is a process in between.
    local last below
    last=$(pgrep -P "$(pgrep -P $job | head -1)" | tail -1)
    below=$(pgrep -P "$last" | tail -1)
    kill -KILL "${below:-$last}" 2>/dev/null
    wait $job
    note "dies $1: ended with $? after $((SECONDS - began)) s in all: $(grep 'rank 1' "$text" | tail -1)"
    grep -q 'rank 1' "$text" || status=1
}

if [ "$device" = gpu ]; then
    wanted fields && run 75 fields --np "$ranks" --nx 1024,4096 -r 5
    wanted large && run 75 large --np "$ranks" --nx 16384 -r 2 --exchange nccl,nccl-overlap,nccl-graph,host-write,p,block,row
    if wanted scaling; then
        for count in 1 2 4 8; do
            [ "$count" -le "$ranks" ] && run 75 "scaling-$count" --np "$count" --nx 1024,2048,4096,8192,16384 -n 200 -r 3 --no-check
        done
    fi
    wanted factors && run 45 factors --np "$ranks" --nx 4096 --exchange block,row --norm block,never --norm-when now,delayed,every=10 --sync barrier,neighbours -r 3 --no-check
    if wanted rails; then
        run 45 rails-tcp --np "$ranks" --path rails --provider tcp --nx 1024,16384 --exchange host-write,block,row,resident -n 100 -r 3
        run 45 rails-model --np "$ranks" --path rails --provider model:p5 --rails 4 --nx 1024,16384 --exchange host-write,block,row,resident -n 100 -r 3
        run 20 rails-model-p --np "$ranks" --path rails --provider model:p5 --rails 4 --nx 1024 --exchange p -n 100 -r 3
    fi
    if wanted artefact; then
        run 45 artefact --np 1 --nx 16384 --exchange row --norm block,thread-atomic -n 2 -r 1 --no-check
        run 75 artefact-all --np "$ranks" --nx 16384 --exchange nccl,nccl-overlap,nccl-graph,host-write,p,block,row --norm thread-atomic,block -n 2 -r 1 --no-check
    fi
    if wanted dies; then for exchange in nccl nccl-graph block resident; do dies "$exchange"; done; fi
    [ -z "${CHECKOUT:-}" ] || { RANKS=$ranks OUT=$OUT/nvidia scripts/jacobi-nvidia.sh "$CHECKOUT" || status=1; }
else
    run 60 fields --np 2 -n 10 -r 2 --block 64
    run 60 rails --np 2 -n 10 -r 2 --block 64 --path rails --provider worst
fi
note "results: $OUT"
exit $status
