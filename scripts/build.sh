#!/usr/bin/env bash
# Builds ginlab with the tools of this machine: target/release/ginlab, or another profile of Cargo.toml.
#
#   scripts/build.sh [--profile NAME] [--features mpi]     all arguments go to cargo
#
# Exit codes: those of cargo.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/toolchain.sh
source scripts/toolchain.sh
# Profile `demo` is for machines without a GPU.
if [[ " $* " == *' --profile demo '* ]]; then choose_kernel_compiler project; else choose_kernel_compiler any; fi
profile=(--release)
if [[ ${1:-} == --profile ]]; then profile=(); fi
cargo build --locked "${profile[@]}" "${kernel_features[@]}" "$@"
