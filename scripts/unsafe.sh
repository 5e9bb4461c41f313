#!/usr/bin/env bash
# Counts unsafe code per package: blocks, functions, implementations, in the sources without tests. A table for docs/packages.md.
#
#   scripts/unsafe.sh
#
# By text, comments left out: an `unsafe` inside a macro's body counts once, however often the macro is used. Tests are files and folders of
# that name, and what stands behind a `#[cfg(test)]` that opens a module.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# Reads sources, prints one row.
# shellcheck disable=SC2016  # awk's own
program='
    FNR == 1 { tested = for_tests = 0 }
    tested { next }
    /^#\[cfg\((all\()?test/ { for_tests = 1; next }
    for_tests && /^#/ { next }
    for_tests { for_tests = 0; tested = /^(pub(\([a-z]+\))? )?mod .*\{$/; next }
    /^ *\/\// { next }
    { code++; sub(/\/\/.*/, "") }
    /unsafe +fn|unsafe +extern +"C" +fn/ { functions++ }
    /unsafe +impl/ { implementations++ }
    { blocks += gsub(/unsafe *\{/, "") }
    END { printf "| `%s` | %d | %d | %d | %d |\n", package, blocks, functions, implementations, code }'
count() { # PACKAGE FOLDER OTHER-PACKAGES-BELOW...
    local package=$1 folder=$2
    shift 2
    local without=() below
    for below in "$@"; do without+=(-not -path "./$below/*"); done
    find "./$folder" -name '*.rs' -not -path '*/tests/*' -not -name 'tests.rs' -not -path './target/*' -not -path './.venv/*' "${without[@]}" -print0 |
        xargs -0 --no-run-if-empty awk -v package="$package" "$program"
}
mapfile -t folders < <(git ls-files '*Cargo.toml' | xargs -n 1 dirname | grep -v '^\.$' | grep -v '^tests/\|^kernels/tests' | sort)
printf '| package | blocks | functions | implementations | lines of code |\n|---|---|---|---|---|\n'
for folder in "${folders[@]}"; do
    below=()
    for other in "${folders[@]}"; do if [[ $other == "$folder"/* ]]; then below+=("$other"); fi; done
    package=$(sed -n 's/^name = "\(.*\)"/\1/p' "$folder/Cargo.toml" | head -n 1)
    count "$package" "$folder" "${below[@]}"
done
