#!/bin/sh
# Compares the declarations of our crates with the headers in LIBFABRIC_INCLUDE_DIR and VERBS_INCLUDE_DIR, for
# check-libfabric2.sh and check-rdma-core65.sh.
#
#   scripts/check-headers.sh [CARGO ARGUMENTS...]
#
# The arguments must be those of the other tests: cargo would otherwise rebuild dependencies with other settings. Exit
# codes: 0 ok or skipped, otherwise a declaration differs.
set -eu
cd "$(dirname "$0")/.."

programs=$(cargo test --workspace "$@" --no-run 2>&1 | sed -n 's/^ *Executable tests\/headers\.rs (\(.*\))$/\1/p')
if [ -z "$programs" ]; then
    cargo test --workspace "$@" --no-run
    echo "cargo lists no program of tests/headers.rs"
    exit 1
fi

# clang reads headers for a second each time, so results for the same programs and headers are reused.
headers=$(for folder in "${LIBFABRIC_INCLUDE_DIR:-}" "${VERBS_INCLUDE_DIR:-}"; do
    [ -z "$folder" ] || find -L "$folder" -name '*.h'
done | sort -u)
# shellcheck disable=SC2086  # names without blanks
key=$({ echo "${LIBFABRIC_INCLUDE_DIR:-}:${VERBS_INCLUDE_DIR:-}"; cat $programs $headers; } | sha256sum | cut -d ' ' -f 1)
said=${CARGO_TARGET_DIR:-target}/tmp/passed/headers-$key
if [ -r "$said" ]; then
    cat "$said"
    exit 0
fi
mkdir -p "$(dirname "$said")"
: >"$said.part"
for program in $programs; do
    "$program" --nocapture >>"$said.part" || {
        cat "$said.part"
        rm "$said.part"
        exit 1
    }
done
cat "$said.part"
# Do not keep the result of a skipped test.
if grep -q '^skipped: ' "$said.part"; then rm "$said.part"; else mv "$said.part" "$said"; fi
