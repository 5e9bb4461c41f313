#!/usr/bin/env bash
# Prints a table of unsafe code per package for docs/packages.md: blocks, functions, implementations, without tests.
#
#   scripts/unsafe.sh
#
# Counts text outside comments: an `unsafe` in a macro's body counts once. Tests are files and directories of that name,
# and everything after a `#[cfg(test)]` that opens a module.
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
