// Prints sizes, offsets and argument sizes of the tables that the plugin exports, from NCCL's headers. See scripts/nccl-abi.sh.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
#define CUDART_VERSION 13000
#include "nccl.h"
#include "nccl_device/net_device.h"
#include "nccl_common.h"
#include "nccl_net.h"
#include "gin/gin_v13.h"
#include "rma/rma_v13.h"
#include "rma/rma_v14.h"
#include "rma/rma_v15.h"
#include "rma/rma_v16.h"
#include "gin/gin_v14.h"
#include "nccl_device/gin/efa_gda/gin_efa_gda_dev.h"
#include "nccl_device/transport/net_efa_gda/efa-dp-direct/include/common/efa_cuda_dp_types.h"
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
    CONST(NCCL_NET_DEVICE_GIN_EFA_GDA); STRUCT(ncclGinProperties_v14_t); STRUCT(ncclGinConfig_v14_t);
    FIELD(ncclGinProperties_v14_t, supportsStrongSignals); FIELD(ncclGinProperties_v14_t, supportsVASignals);
    typedef ncclGinConfig_v14_t C;
    FIELD(C, nSignals); FIELD(C, nCounters); FIELD(C, nContexts); FIELD(C, queueDepth); FIELD(C, trafficClass); FIELD(C, backendVersion);
    FIELD(C, rankStride);
    typedef ncclNetDeviceHandle_v11_t D;
    STRUCT(ncclNetDeviceHandle_v11_t); FIELD(D, netDeviceType); FIELD(D, netDeviceVersion); FIELD(D, handle); FIELD(D, size);
    FIELD(D, needsProxyProgress);
    typedef ncclGin_v14_t G;
    STRUCT(ncclGin_v14_t); FIELD(G, name); CALL(G, init); CALL(G, devices); CALL(G, getGinProperties); CALL(G, getProperties); CALL(G, listen);
    CALL(G, connect); CALL(G, createContext); CALL(G, regMrSym); CALL(G, regMrSymDmaBuf); CALL(G, deregMrSym); CALL(G, destroyContext);
    CALL(G, closeColl); CALL(G, closeListen); CALL(G, ginProgress); CALL(G, queryLastError); CALL(G, finalize);
    typedef efa_cuda_wq_v0 W;
    STRUCT(efa_cuda_wq_v0); FIELD(W, max_sge); FIELD(W, max_wqes); FIELD(W, queue_mask); FIELD(W, queue_size_shift); FIELD(W, max_batch);
    FIELD(W, wqes_pending); FIELD(W, wqes_posted); FIELD(W, wqes_completed); FIELD(W, pc); FIELD(W, phase); FIELD(W, buf); FIELD(W, db);
    typedef efa_cuda_wr_ctx_v0 X;
    STRUCT(efa_cuda_wr_ctx_v0); FIELD(X, remote_mem_offset); FIELD(X, local_mem_offset); FIELD(X, sgl_offset);
    FIELD(X, send_inline_data_offset); FIELD(X, write_inline_data_offset); FIELD(X, max_inline_data); FIELD(X, max_rdma_sges); FIELD(X, wqe_size);
    typedef efa_cuda_qp_v1 Q;
    STRUCT(efa_cuda_qp_v1); FIELD(Q, comp_mask); FIELD(Q, sq.wq); FIELD(Q, sq.wr_ctx); FIELD(Q, rq.wq);
    typedef nccl_ofi_gin_gdaki_dev_endpoint_handle E;
    STRUCT(nccl_ofi_gin_gdaki_dev_endpoint_handle); FIELD(E, qp); FIELD(E, cq); FIELD(E, target_address_handles); FIELD(E, target_remote_qpns);
    FIELD(E, target_qkey); FIELD(E, sq_lock); FIELD(E, local_cntr_value); FIELD(E, submitted_count); FIELD(E, sq_size); FIELD(E, putvalue_pad);
    FIELD(E, putvalue_slice_base);
    typedef nccl_ofi_gin_gdaki_dev_counter_handle K;
    STRUCT(nccl_ofi_gin_gdaki_dev_counter_handle); FIELD(K, base); FIELD(K, cntr_value); FIELD(K, cntr_offset);
    typedef nccl_ofi_gin_gdaki_dev_handle H;
    STRUCT(nccl_ofi_gin_gdaki_dev_handle); FIELD(H, data); FIELD(H, pvdata); FIELD(H, counter_handles); FIELD(H, signal_handles);
    FIELD(H, nCounters); FIELD(H, nSignals); FIELD(H, nranks); FIELD(H, rank); FIELD(H, rail_id); FIELD(H, scratch_lkey); FIELD(H, scratch_pad);
    FIELD(H, scratch_local_addr); FIELD(H, scratch_remote_addrs); FIELD(H, scratch_remote_rkeys); FIELD(H, putvalue_lkey);
    FIELD(H, putvalue_slot_size);
    typedef nccl_ofi_gin_gdaki_mr_handle M;
    STRUCT(nccl_ofi_gin_gdaki_mr_handle); FIELD(M, lkey); FIELD(M, nranks); FIELD(M, local_addr); FIELD(M, peers);
    typedef nccl_ofi_gin_gdaki_mr_peer N;
    STRUCT(nccl_ofi_gin_gdaki_mr_peer); FIELD(N, remote_addr); FIELD(N, rkey); FIELD(N, pad);
}
