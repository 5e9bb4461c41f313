#!/usr/bin/env bash
# The page of the newest results of each experiment in data/: target/report/report.html, its pictures beside it.
#   scripts/report.sh [OUTPUT-FOLDER]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ginlab=${GINLAB:-target/release/ginlab}
out=${1:-target/report}

# Which folder holds the newest of what: see the README of each.
newest=(
    data/2026-11-21-h200-4/{null-floor,null-threads,tcp-sizes,tcp-grids,tcp-bare,tcp-device-memory,shm}.csv
    data/2026-11-21-h200-4/{nbi,four-rings,blocking-thread,blocking-warp,blocking-warp-64,compare,compare-managed,payload}.csv
    data/2026-11-22-h200-ring/{ring,ring-small}.csv
    data/2026-11-21-h200x4/*.csv
    data/2026-11-21-lab/{all2all*,echo*}.csv
    data/2026-11-21-lab-2/*.csv
    data/2026-11-21-virtual
    data/2026-11-21-h200-4/quiet-vs-nbi/{0-as-it-was-pinned,0-as-it-was-managed,0b-no-fill,3-four-buffers,5-whole-puts-quiet}.csv
    data/2026-11-21-h200-4/quiet-vs-nbi/{0-as-it-was-pinned-8M,0-as-it-was-managed-8M}.life.csv
    data/2026-11-21-h200-4/life/*.csv
)
mkdir -p "$out"
"$ginlab" report "${newest[@]}" -o "$out/report.html" --svg "$out/svg" --title 'ginlab: what was measured'
echo "$out/report.html"
