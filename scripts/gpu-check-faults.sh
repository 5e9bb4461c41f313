#!/usr/bin/env bash
# Faults on a machine with a GPU: the table's cells on one GPU, one after the other, and random programs on the processors beside them.
#
#   scripts/gpu-check-faults.sh [GINLAB] [FOLDER]     FOLDER gets faults.csv, soak.csv (default: $OUT, then a new one under /tmp)
#   HOURS=0.17    how long random programs run
#
# Root, and nvcc for a neighbour on the GPU. About 20 minutes. Exit code 1 if a cell or a seed has failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ginlab=$(realpath "${1:-target/release/ginlab}")
folder=${2:-${OUT:-$(mktemp -d /tmp/ginlab-gpu-faults.XXXXXX)}}
[[ -x $ginlab ]] || { echo "gpu-check-faults.sh: no program $ginlab: make build, or name one" >&2; exit 2; }
if [[ ! -e /dev/nvidiactl ]]; then
    echo 'gpu-check-faults.sh: not run: no GPU on this machine' >&2
    exit 2
fi
mkdir -p "$folder"
nice -n 5 "$ginlab" soak --random --hours "${HOURS:-0.17}" --csv "$folder/soak.csv" >"$folder/soak.txt" 2>&1 &
soak=$!
JOBS=1 ONLY=' / same GPU / ' scripts/faults.sh "$ginlab" "$folder" && code=0 || code=$?
wait "$soak" || code=1
tail -n 3 "$folder/soak.txt"
exit "$code"
