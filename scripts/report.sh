#!/usr/bin/env bash
# Writes an HTML page of the newest results in data/, target/report/report.html, and the pages and charts that it links
# to.
#
#   scripts/report.sh [DIR]     DIR: output directory [default: target/report]
#
#   GINLAB  program [default: target/release/ginlab]
#
# ginlab selects the newest files (experiments/report/README.md). Packed runs are unpacked temporarily. Exit codes:
# those of ginlab.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ginlab=${GINLAB:-target/release/ginlab}
out=${1:-target/report}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

results=(data)
if command -v tar >/dev/null && command -v xz >/dev/null; then
    for packed in data/*/*.tar.xz; do
        # On the page these files are named data/DIR/ARCHIVE/FILE.
        mkdir -p "$work/${packed%.tar.xz}"
        tar -xJf "$packed" -C "$work/${packed%.tar.xz}"
    done
    results+=("$work/data")
else
    echo 'omitted: runs packed in data/*/*.tar.xz, because tar or xz is missing' >&2
fi
mkdir -p "$out"
"$ginlab" report --newest "${results[@]}" -o "$out/report.html" --svg "$out/svg" --title 'ginlab: what was measured'
echo "$out/report.html"
