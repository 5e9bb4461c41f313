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
for program in $programs; do "$program" --nocapture; done
