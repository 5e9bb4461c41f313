#!/usr/bin/env bash
# For each number of a page its file in data/, its rows, its column, and the command that measured it (crates/figures).
#   scripts/figures.sh experiments/ipc            scripts/figures.sh --help
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec cargo run --quiet --package figures -- "$@"
