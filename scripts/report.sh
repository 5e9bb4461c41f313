#!/usr/bin/env bash
# The page of the newest results in data/: target/report/report.html, its pictures beside it.
#   scripts/report.sh [OUTPUT-FOLDER]
# Which files are the newest, ginlab finds: experiments/report/README.md. Here, what folders have packed is unpacked for it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ginlab=${GINLAB:-target/release/ginlab}
out=${1:-target/report}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

results=(data)
for packed in data/*/*.tar.xz; do
    # As it will be called in the page: data/FOLDER/ARCHIVE/FILE.
    to=$work/${packed%.tar.xz}
    mkdir -p "$to"
    if tar -xJf "$packed" -C "$to" 2>"$work/why"; then
        results[1]=$work/data
    else
        echo "left out: $packed cannot be unpacked here (tar and xz): $(tail -n 1 "$work/why")" >&2
    fi
done
mkdir -p "$out"
"$ginlab" report --newest "${results[@]}" -o "$out/report.html" --svg "$out/svg" --title 'ginlab: what was measured'
echo "$out/report.html"
