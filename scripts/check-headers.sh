#!/bin/sh
# Runs the tests that hold what our crates declare against the headers that the environment names (LIBFABRIC_INCLUDE_DIR,
# VERBS_INCLUDE_DIR), for check-libfabric2.sh and check-rdma-core65.sh. Arguments go to cargo, so that all tests are built as
# they are built elsewhere: asked for these alone, cargo builds some of their dependencies in another way, and then everything again.
set -eu
cd "$(dirname "$0")/.."

programs=$(cargo test --workspace "$@" --no-run 2>&1 | sed -n 's/^ *Executable tests\/headers\.rs (\(.*\))$/\1/p')
if [ -z "$programs" ]; then
    cargo test --workspace "$@" --no-run
    echo "cargo names no program of tests/headers.rs"
    exit 1
fi

# clang reads headers for a second of a core each time: what the same programs have said of the same headers is said again.
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
# A skip is no pass.
if grep -q '^skipped: ' "$said.part"; then rm "$said.part"; else mv "$said.part" "$said"; fi
