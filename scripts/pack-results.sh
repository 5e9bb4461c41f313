#!/usr/bin/env bash
# Packs a directory of results in the format of data/: headers merged, bulky files compressed.
#
#   scripts/pack-results.sh DIR [TARGET]      TARGET: output directory [default: DIR]
#
# CSV files, README.md and text files are kept unchanged. In addition:
#   headers.json      one header for all files: "common" has the most frequent value of each key, "files" what differs in
#                     each CSV file, and its command; null if a file has no such key (see host/report/headers.rs)
#   samples.tar.xz    JSON documents of the rows, with the raw samples, and the log with all printed tables
#   steps.txt         the steps in log.txt, each with its command and result
# Perfetto traces are omitted: they cover one repeat, are large, and the command can recreate them.
# Needs awk, tar and xz; without xz the archive is samples.tar.gz. Exit codes: 0 ok, 2 usage or already packed.
set -euo pipefail
if [[ $# -lt 1 || $# -gt 2 || ! -d $1 ]]; then
    echo 'usage: scripts/pack-results.sh DIR [TARGET], where DIR has CSV files of ginlab' >&2
    exit 2
fi
from=$(realpath "$1")
mkdir -p "${2:-$1}"
to=$(realpath "${2:-$1}")
if [[ -e $to/headers.json ]]; then
    echo "pack-results.sh: $to is already packed; use a new directory for each run" >&2
    exit 2
fi
cd "$from"
# Lists (efa, affinity, bootstrap) have their header only in the JSON document.
find . -type f -name '*.csv' -printf '%P\n' | while read -r file; do
    name=${file%.csv}
    if [[ ! -e $name.header.json && -e $name.json ]]; then
        awk '/^  "header": \{/ { print "{"; on = 1; next } on && /^  \}/ { print "}"; exit } on { sub(/^  /, ""); print }' "$name.json" \
            >"$name.header.json"
    fi
done
mapfile -t tables < <(find . -type f -name '*.csv' -printf '%P\n' | LC_ALL=C sort)
mapfile -t headers < <(find . -type f -name '*.header.json' -printf '%P\n' | LC_ALL=C sort)
# A document of rows, as written by --json; a Perfetto trace has no header.
mapfile -t samples < <(find . -type f -name '*.json' ! -name '*.header.json' -printf '%P\n' | LC_ALL=C sort |
    while read -r file; do if head -c 4096 "$file" | grep -q '^  "header": {'; then printf '%s\n' "$file"; fi; done)
mapfile -t drawings < <(find . -type f -name '*.json' ! -name '*.header.json' -printf '%P\n' | LC_ALL=C sort |
    while read -r file; do if head -c 4096 "$file" | grep -q '"traceEvents"'; then printf '%s\n' "$file"; fi; done)
mapfile -t logs < <(find . -type f \( -name log.txt -o -name tables.txt \) -printf '%P\n' | LC_ALL=C sort)
mapfile -t texts < <(find . -type f \( -name '*.txt' -o -name '*.md' \) ! -name log.txt ! -name tables.txt -printf '%P\n' | LC_ALL=C sort)

# ginlab's headers are pretty-printed: keys of the first level are indented by two. Values are joined to one line each.
if ((${#headers[@]})); then
    awk '
        function keep() {
            if (key == "") return
            sub(/,$/, "", value)
            if (value != "null" && value != "[]") {
                has[file, key] = value
                if (!((key, value) in times)) order[key, ++values[key]] = value
                times[key, value]++
                if (!(key in known)) { known[key] = 1; keys[++count] = key }
            }
            key = ""
        }
        FNR == 1 { keep(); file = FILENAME; sub(/^\.\//, "", file); sub(/\.header\.json$/, ".csv", file); files[++all] = file; next }
        /^}/ { keep(); next }
        /^  "/ { keep(); key = $0; sub(/^  "/, "", key); sub(/":.*/, "", key); value = $0; sub(/^  "[^"]*": /, "", value); next }
        { line = $0; sub(/^ +/, "", line); value = value (value ~ /,$/ ? " " : "") line }
        END {
            keep()
            printf "{\n  \"common\": {"
            for (k = 1; k <= count; k++) {
                key = keys[k]; most = 0
                for (v = 1; v <= values[key]; v++) if (times[key, order[key, v]] > most) {
                    most = times[key, order[key, v]]; common[key] = order[key, v]
                }
                # A key of few files is written with those files; the command always is.
                if (key == "command" || most < all / 2) { delete common[key]; continue }
                printf "%s\n    \"%s\": %s", (some++ ? "," : ""), key, common[key]
            }
            printf "\n  },\n  \"files\": {"
            for (f = 1; f <= all; f++) {
                printf "%s\n    \"%s\": {", (f > 1 ? "," : ""), files[f]; some = 0
                for (k = 1; k <= count; k++) {
                    key = keys[k]; own = (files[f], key) in has ? has[files[f], key] : "null"
                    if (own == ((key in common) ? common[key] : "null")) continue
                    printf "%s\n      \"%s\": %s", (some++ ? "," : ""), key, own
                }
                printf "\n    }"
            }
            printf "\n  }\n}\n"
        }' "${headers[@]/#/./}" >"$to/headers.json.now"
    mv "$to/headers.json.now" "$to/headers.json"
fi
if ((${#samples[@]} + ${#logs[@]})); then
    # The same files give an identical archive.
    if command -v xz >/dev/null; then archive=samples.tar.xz squeeze=(xz -9e); else archive=samples.tar.gz squeeze=(gzip -9n); fi
    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cf - -- "${samples[@]}" "${logs[@]}" | "${squeeze[@]}" >"$to/$archive.now"
    mv "$to/$archive.now" "$to/$archive"
fi
if [[ -f log.txt ]]; then grep -E '^(== |   (ok|FAILED|skipped|not run))' log.txt >"$to/steps.txt" || true; fi
if [[ $from != "$to" ]]; then
    for file in "${tables[@]}" "${texts[@]}"; do
        mkdir -p "$to/$(dirname "$file")"
        cp "$file" "$to/$file"
    done
else
    rm -f -- "${headers[@]}" "${samples[@]}" "${drawings[@]}" "${logs[@]}"
fi
printf '%s: %d CSV files, %d headers in one, %d documents and logs compressed, %d drawings left out\n' \
    "$to" "${#tables[@]}" "${#headers[@]}" "$((${#samples[@]} + ${#logs[@]}))" "${#drawings[@]}"
