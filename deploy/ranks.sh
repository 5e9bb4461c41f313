#!/usr/bin/env bash
# Starts one rank per GPU of this node, for launchers that start one process per node (SkyPilot, a Kubernetes Job).
#
#   RANKS_PER_NODE=8 NODE=0 NODES=2 MASTER_ADDR=host-a GINLAB_TOKEN=secret deploy/ranks.sh ginlab proxy --rails 4
#
#   RANKS_PER_NODE  ranks on this node      [default: SKYPILOT_NUM_GPUS_PER_NODE]
#   NODE, NODES     this node, all nodes    [default: variables of SkyPilot or of an Indexed Job]
#   MASTER_ADDR     host of rank 0          [default: first of SKYPILOT_NODE_IPS]
#   MASTER_PORT     port of rank 0          [default: 29400]
#   GINLAB_TOKEN    token of the job
#
# Needs bash 4.3 or later. Rank 0 prints the results. If a rank fails, the others are terminated. Exit codes: that of
# the failed rank, 2 usage.
set -euo pipefail
ranks=${RANKS_PER_NODE:-${SKYPILOT_NUM_GPUS_PER_NODE:-}}
node=${NODE:-${SKYPILOT_NODE_RANK:-${JOB_COMPLETION_INDEX:-}}}
nodes=${NODES:-${SKYPILOT_NUM_NODES:-}}
master=${MASTER_ADDR:-$(head -n 1 <<<"${SKYPILOT_NODE_IPS:-}")}
for name in ranks node nodes master; do
    if [[ -z ${!name} ]]; then
        echo "ranks.sh: $name is not known: set RANKS_PER_NODE, NODE, NODES and MASTER_ADDR" >&2
        exit 2
    fi
done
if (($# == 0)); then
    echo 'ranks.sh: no command; usage: ranks.sh ginlab proxy --rails 4' >&2
    exit 2
fi
# SkyPilot's variables describe one rank per node.
unset SKYPILOT_NODE_RANK
export MASTER_ADDR=$master MASTER_PORT=${MASTER_PORT:-29400} WORLD_SIZE=$((ranks * nodes))
pids=()
trap 'if ((${#pids[@]})); then kill "${pids[@]}" 2>/dev/null || true; fi' EXIT
for ((local = 0; local < ranks; local++)); do
    RANK=$((node * ranks + local)) LOCAL_RANK=$local "$@" &
    pids+=("$!")
done
for ((left = ranks; left > 0; left--)); do
    code=0
    wait -n || code=$?
    if ((code == 0)); then continue; fi
    # `wait -n -p` would name it, but needs bash 5.1. A shell keeps the exit codes of exited processes.
    failed=
    for index in "${!pids[@]}"; do
        if ! kill -0 "${pids[index]}" 2>/dev/null && ! wait "${pids[index]}"; then failed=$((node * ranks + index)); fi
    done
    echo "ranks.sh: rank ${failed:-?} of node $node ended with exit code $code" >&2
    exit "$code"
done
pids=()
