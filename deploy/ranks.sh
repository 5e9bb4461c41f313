#!/usr/bin/env bash
# One rank per GPU of this node, without MPI: where a launcher starts one process per node (SkyPilot, a plain Kubernetes Job).
#
#   RANKS_PER_NODE=8 NODE=0 NODES=2 MASTER_ADDR=host-a GINLAB_TOKEN=secret deploy/ranks.sh ginlab proxy --rails 4
#
# For bash 4.3 and later. NODE and NODES come from SkyPilot's variables or an Indexed Job's where they are not set. Rank 0 speaks for all. When a rank
# fails the others are ended, and its exit code is the script's.
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
    echo 'ranks.sh: no command; as: ranks.sh ginlab proxy --rails 4' >&2
    exit 2
fi
# SkyPilot's own variables speak of one rank per node.
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
    # `wait -n -p` would name it, from bash 5.1 on. A shell keeps the exit codes of those that have ended.
    failed=
    for index in "${!pids[@]}"; do
        if ! kill -0 "${pids[index]}" 2>/dev/null && ! wait "${pids[index]}"; then failed=$((node * ranks + index)); fi
    done
    echo "ranks.sh: rank ${failed:-?} of node $node ended with exit code $code" >&2
    exit "$code"
done
pids=()
