#!/usr/bin/env bash
# Builds target/release/ginlab with what this machine has. Arguments go to cargo: scripts/build.sh --features mpi
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/toolchain.sh
source scripts/toolchain.sh
choose_kernel_compiler
cargo build --release --locked "${kernel_features[@]}" "$@"
