#!/usr/bin/env bash
# What NCCL's headers say of the tables that crates/nccl_plugin exports: sizes, offsets, and the sizes of each function's arguments.
#   scripts/nccl-abi.sh INCLUDE... >crates/nccl_plugin/tests/nccl-abi.txt
# INCLUDE: folders with plugin/rma/rma_v13.h to rma_v16.h (src/include and src/include/plugin of NCCL's source) and nccl.h (of the wheel
# nvidia-nccl-cu13). v15 is also in aws-ofi-nccl (3rd-party/nccl/cuda/include). Needs g++. The test crates/nccl_plugin/tests/headers.rs holds the
# plugin against the file, so it needs no headers.
set -euo pipefail
if [[ $# == 0 ]]; then
    sed -n '2,/^set/{/^set/d;s/^# \?//p}' "${BASH_SOURCE[0]}" >&2
    exit 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Headers of NCCL's own sources ask for CUDA's, of which the tables need nothing.
touch "$work/cuda_runtime.h" "$work/cuda_fp16.h" "$work/cuda_bf16.h" "$work/cuda_fp8.h"
cat >"$work/abi.cc" <<'END'
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
#define CUDART_VERSION 13000
#include "nccl.h"
#include "nccl_common.h"
#include "nccl_net.h"
#include "gin/gin_v13.h"
#include "rma/rma_v13.h"
#include "rma/rma_v14.h"
#include "rma/rma_v15.h"
#include "rma/rma_v16.h"
template <class T> void shape(T) {}
template <class R, class... A> void shape(R (*)(A...)) {
    const char* between = " ";
    for (size_t size : {sizeof(A)...}) { printf("%s%zu", between, size); between = ","; }
    printf(" %zu", sizeof(R));
}
#define STRUCT(T) printf("%s %zu\n", #T, sizeof(T))
#define FIELD(T, F) printf("%s.%s %zu\n", #T, #F, offsetof(T, F))
#define CALL(T, F) do { printf("%s.%s %zu", #T, #F, offsetof(T, F)); shape(T().F); printf("\n"); } while (0)
#define CONST(C) printf("%s %ld\n", #C, (long)(C))
#define TABLE(T, PROGRESS) STRUCT(T); FIELD(T, name); CALL(T, init); CALL(T, devices); CALL(T, getProperties); CALL(T, listen); \
    CALL(T, connect); CALL(T, createContext); CALL(T, regMrSym); CALL(T, regMrSymDmaBuf); CALL(T, deregMrSym); CALL(T, destroyContext); \
    CALL(T, closeColl); CALL(T, closeListen); CALL(T, iput); CALL(T, iputSignal); CALL(T, iget); CALL(T, iflush); CALL(T, test); \
    CALL(T, PROGRESS); CALL(T, queryLastError); CALL(T, finalize)
int main() {
    CONST(ncclSuccess); CONST(ncclSystemError); CONST(ncclInternalError); CONST(ncclInvalidArgument); CONST(ncclInvalidUsage);
    CONST(ncclRemoteError); CONST(NCCL_PTR_HOST); CONST(NCCL_PTR_CUDA); CONST(NCCL_NET_MR_FLAG_SIGNAL_NEVER_RESET);
    CONST(NCCL_NET_SIGNAL_OP_INC); CONST(NCCL_NET_SIGNAL_OP_ADD); CONST(NCCL_NET_HANDLE_MAXSIZE); CONST(NCCL_NET_DEVICE_GIN_PROXY);
    typedef ncclNetProperties_v12_t P;
    STRUCT(ncclNetProperties_v12_t);
    FIELD(P, name); FIELD(P, pciPath); FIELD(P, guid); FIELD(P, ptrSupport); FIELD(P, regIsGlobal); FIELD(P, forceFlush); FIELD(P, speed);
    FIELD(P, port); FIELD(P, latency); FIELD(P, maxComms); FIELD(P, maxRecvs); FIELD(P, netDeviceType); FIELD(P, netDeviceVersion);
    FIELD(P, vProps); FIELD(P, maxP2pBytes); FIELD(P, maxCollBytes); FIELD(P, maxMultiRequestSize); FIELD(P, railId); FIELD(P, planeId);
    STRUCT(ncclRmaConfig_v16_t); STRUCT(ncclGinConfig_v13_t); STRUCT(ncclRmaProperties_v16_t);
    TABLE(ncclGin_v13_t, ginProgress);
    TABLE(ncclRma_v14_t, rmaProgress);
    TABLE(ncclRma_v15_t, rmaProgress);
    TABLE(ncclRma_v16_t, rmaProgress);
    CALL(ncclRma_v16_t, getRmaProperties);
}
END
includes=()
for folder in "$@"; do includes+=(-I "$folder"); done
g++ -std=c++17 -w -I "$work" "${includes[@]}" -o "$work/abi" "$work/abi.cc"
"$work/abi"
