#!/usr/bin/env bash
# Builds ginlab with what this machine has: target/release/ginlab, or by another profile of Cargo.toml. Arguments go to cargo:
#   scripts/build.sh [--profile NAME] [--features mpi]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/toolchain.sh
source scripts/toolchain.sh
# The profile of a demo on a machine without a GPU.
if [[ " $* " == *' --profile demo '* ]]; then choose_kernel_compiler project; else choose_kernel_compiler any; fi
profile=(--release)
if [[ ${1:-} == --profile ]]; then profile=(); fi
cargo build --locked "${profile[@]}" "${kernel_features[@]}" "$@"
