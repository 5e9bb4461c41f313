#!/usr/bin/env bash
# The page of the newest results in data/: target/report/report.html, its pictures beside it.
#   scripts/report.sh [OUTPUT-FOLDER]
# ginlab finds which files are the newest (experiments/report/README.md). Runs that a folder has packed are unpacked for it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ginlab=${GINLAB:-target/release/ginlab}
out=${1:-target/report}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

results=(data)
if command -v tar >/dev/null && command -v xz >/dev/null; then
    for packed in data/*/*.tar.xz; do
        # In the page its files are data/FOLDER/ARCHIVE/FILE.
        mkdir -p "$work/${packed%.tar.xz}"
        tar -xJf "$packed" -C "$work/${packed%.tar.xz}"
    done
    results+=("$work/data")
else
    echo 'left out: runs packed in data/*/*.tar.xz, since tar or xz is not here' >&2
fi
mkdir -p "$out"
"$ginlab" report --newest "${results[@]}" -o "$out/report.html" --svg "$out/svg" --title 'ginlab: what was measured'
echo "$out/report.html"
