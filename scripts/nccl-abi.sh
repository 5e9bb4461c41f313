#!/usr/bin/env bash
# Prints sizes, offsets and argument sizes of the tables that host/nccl_plugin exports, from NCCL's headers.
#
#   scripts/nccl-abi.sh INCLUDE... >host/nccl_plugin/tests/nccl-abi.txt
#
# INCLUDE: directories with plugin/rma/rma_v13.h to rma_v16.h and gin/gin_v14.h (src/include and src/include/plugin of
# NCCL's source), and with nccl.h and nccl_device/ (wheel nvidia-nccl-cu13). aws-ofi-nccl also has v15
# (3rd-party/nccl/cuda/include). Needs g++. host/nccl_plugin/tests/headers.rs compares the plugin with the output and
# needs no headers. Exit codes: 0 ok, 2 usage, otherwise that of the compiler.
set -euo pipefail
if [[ $# == 0 ]]; then
    sed -n '2,/^set/{/^set/d;s/^# \?//p}' "${BASH_SOURCE[0]}" >&2
    exit 2
fi
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# NCCL's source headers include CUDA's, but the tables need nothing from those.
touch "$work/cuda_runtime.h" "$work/cuda_fp16.h" "$work/cuda_bf16.h" "$work/cuda_fp8.h"
includes=()
for folder in "$@"; do includes+=(-I "$folder"); done
g++ -std=c++17 -w -I "$work" "${includes[@]}" -o "$work/abi" "$here/../host/nccl_plugin/tests/nccl-abi.cc"
"$work/abi"
