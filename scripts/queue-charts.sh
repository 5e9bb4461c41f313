#!/usr/bin/env bash
# The pictures of experiments/queue, from the CSV files of scripts/gpu-check.sh or of a folder in data/.
#   scripts/queue-charts.sh FOLDER [OUTPUT]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ginlab=${GINLAB:-target/release/ginlab}
data=$1
out=${2:-experiments/queue}

"$ginlab" chart "$data/nbi.csv" "$data/four-rings.csv" -x grid,block -y rate_mops --series case,rings --where case=ticket,stores --log y \
    --title 'nbi: 32-byte commands per second by grid' -o "$out/nbi.svg"
"$ginlab" chart "$data/blocking-thread.csv" "$data/blocking-warp.csv" "$data/blocking-warp-64.csv" -x grid -y time_us_p50 \
    --series scope,slot_bytes --where case=ticket --log x \
    --title 'acknowledged pushes: time of each, by blocks that push at once' -o "$out/blocking.svg"
"$ginlab" chart "$data/compare.csv" "$data/compare-managed.csv" -x grid,block -y rate_mops --series case,memory --where mode=nbi --log y \
    --title 'nbi by algorithm and memory' -o "$out/compare.svg"
"$ginlab" chart "$data/payload.csv" -x size_bytes -y rate_mops --series case,block --where case=ticket,stores --log x,y \
    --title 'nbi by size of the element, 32 blocks' -o "$out/payload.svg"
