#!/usr/bin/env bash
# Runs the fault table's cells on one GPU, and random programs on the CPU at the same time.
#
#   scripts/gpu-check-faults.sh [GINLAB] [DIR]     DIR gets faults.csv and soak.csv [default: OUT, or new under /tmp]
#
#   HOURS  duration of the random programs [default: 0.17]
#
# Needs root, and nvcc for a second program on the GPU. Takes about 20 minutes. Exit codes: 0 ok, 1 a cell or seed
# failed, 2 usage.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ginlab=$(realpath "${1:-target/release/ginlab}")
folder=${2:-${OUT:-$(mktemp -d /tmp/ginlab-gpu-faults.XXXXXX)}}
[[ -x $ginlab ]] || { echo "gpu-check-faults.sh: no program $ginlab: run make build, or name another" >&2; exit 2; }
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
