#!/usr/bin/env bash
# Builds ginlab with what this machine has: target/release/ginlab, or by another profile of Cargo.toml. Arguments go to cargo:
#   scripts/build.sh [--profile NAME] [--features mpi]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/toolchain.sh
source scripts/toolchain.sh
choose_kernel_compiler
profile=(--release)
if [[ ${1:-} == --profile ]]; then profile=(); fi
cargo build --locked "${profile[@]}" "${kernel_features[@]}" "$@"
