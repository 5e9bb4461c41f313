#!/usr/bin/env bash
# The page of the newest results of each experiment in data/: target/report/report.html, its pictures beside it.
#   scripts/report.sh [OUTPUT-FOLDER]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ginlab=${GINLAB:-target/release/ginlab}
out=${1:-target/report}

# Which folder holds the newest of what: see the README of each.
newest=(
    data/2026-11-20-h200/run3/{tcp-sizes,tcp-grids,tcp-bare,tcp-device-memory,shm}.csv
    data/2026-11-21-h200x4/proxy-after-ring
    data/2026-11-21-h200-2/{nbi,four-rings,blocking-thread,blocking-warp,compare,compare-managed,payload}.csv
    data/2026-11-21-h200x4/*.csv
    data/2026-11-21-lab/{all2all*,echo*}.csv
    data/2026-11-21-lab-2/*.csv
    data/2026-11-21-virtual
    data/2026-11-21-h200-3/quiet-vs-nbi/{0-as-it-was-pinned,0-as-it-was-managed,0b-no-fill,3-four-buffers,5-whole-puts-quiet}.csv
    data/2026-11-21-h200-3/quiet-vs-nbi/{0-as-it-was-pinned-8M,0-as-it-was-managed-8M}.life.csv
    data/2026-11-21-h200-3/life/{life-null-no-fill,life-tcp-no-fill}.life.csv
)
mkdir -p "$out"
"$ginlab" report "${newest[@]}" -o "$out/report.html" --svg "$out/svg" --title 'ginlab: what was measured'
echo "$out/report.html"
