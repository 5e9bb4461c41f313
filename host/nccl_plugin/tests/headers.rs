//! Compares the tables with NCCL's headers. scripts/nccl-abi.sh generates `nccl-abi.txt` from the headers of NCCL
//! 2.30.7 (v13, v14), aws-ofi-nccl (v15) and NCCL's main branch (v16), and from nccl.h and the kernels' headers in the
//! wheel of 2.32.3.

use nccl_ginlab::abi::*;
use nccl_ginlab::queues::layout::*;
use std::collections::HashMap;
use std::mem::offset_of;

/// Sizes of a function's arguments and of its result.
trait Shape {
    fn shape() -> (Vec<usize>, usize);
}

macro_rules! shapes {
    ($($arguments:ident),*) => {
        impl<Answer, $($arguments),*> Shape for unsafe extern "C" fn($($arguments),*) -> Answer {
            fn shape() -> (Vec<usize>, usize) {
                (vec![$(size_of::<$arguments>()),*], size_of::<Answer>())
            }
        }
    };
}
shapes!(A);
shapes!(A, B);
shapes!(A, B, C);
shapes!(A, B, C, D);
shapes!(A, B, C, D, E);
shapes!(A, B, C, D, E, F);
shapes!(A, B, C, D, E, F, G);
shapes!(A, B, C, D, E, F, G, H);
shapes!(A, B, C, D, E, F, G, H, I);
shapes!(A, B, C, D, E, F, G, H, I, J);
shapes!(A, B, C, D, E, F, G, H, I, J, K, L, M);
shapes!(A, B, C, D, E, F, G, H, I, J, K, L, M, N);
shapes!(A, B, C, D, E, F, G, H, I, J, K, L, M, N, O);

impl<F: Shape> Shape for Option<F> {
    fn shape() -> (Vec<usize>, usize) {
        F::shape()
    }
}

fn shape_of<T, F: Shape>(_field: fn(&T) -> &F) -> String {
    let (arguments, answer) = F::shape();
    format!("{} {answer}", arguments.iter().map(usize::to_string).collect::<Vec<_>>().join(","))
}

/// Sizes and offsets of the plugin's types, with the names used in the file.
#[derive(Default)]
struct Ours(HashMap<String, String>);

impl Ours {
    fn is(&mut self, name: &str, value: impl ToString) {
        self.0.insert(name.to_owned(), value.to_string());
    }
}

macro_rules! table {
    ($ours:ident, $type:ty, $name:literal, $($field:ident = $call:literal),*) => {
        $ours.is($name, size_of::<$type>());
        $ours.is(concat!($name, ".name"), offset_of!($type, name));
        $($ours.is(
            concat!($name, ".", $call),
            format!("{} {}", offset_of!($type, $field), shape_of(|table: &$type| &table.$field)),
        );)*
    };
}

macro_rules! rma {
    ($ours:ident, $type:ty, $name:literal, $progress:literal) => {
        table!(
            $ours,
            $type,
            $name,
            init = "init",
            devices = "devices",
            get_properties = "getProperties",
            listen = "listen",
            connect = "connect",
            create_context = "createContext",
            reg_mr_sym = "regMrSym",
            reg_mr_sym_dma_buf = "regMrSymDmaBuf",
            dereg_mr_sym = "deregMrSym",
            destroy_context = "destroyContext",
            close_coll = "closeColl",
            close_listen = "closeListen",
            iput = "iput",
            iput_signal = "iputSignal",
            iget = "iget",
            iflush = "iflush",
            test = "test",
            progress = $progress,
            query_last_error = "queryLastError",
            finalize = "finalize"
        );
    };
}

/// Adds the table of type 5 and the data that kernels read.
fn queues(ours: &mut Ours) {
    ours.is("NCCL_NET_DEVICE_GIN_EFA_GDA", DEVICE_EFA);
    ours.is("ncclGinProperties_v14_t", size_of::<GinProperties>());
    ours.is("ncclGinConfig_v14_t", size_of::<GinConfig>());
    ours.is("ncclNetDeviceHandle_v11_t", size_of::<DeviceHandle>());
    ours.is("efa_cuda_wq_v0", size_of::<WorkQueue>());
    ours.is("efa_cuda_wr_ctx_v0", size_of::<RequestPlaces>());
    ours.is("efa_cuda_qp_v1", size_of::<EfaCudaQp>());
    ours.is("nccl_ofi_gin_gdaki_dev_endpoint_handle", size_of::<Poster>());
    ours.is("nccl_ofi_gin_gdaki_dev_counter_handle", size_of::<CounterHandle>());
    ours.is("nccl_ofi_gin_gdaki_dev_handle", size_of::<ContextHandle>());
    ours.is("nccl_ofi_gin_gdaki_mr_handle", size_of::<MemoryHandle>());
    ours.is("nccl_ofi_gin_gdaki_mr_peer", size_of::<MemoryPeer>());
    for (name, offset) in [
        ("ncclGinProperties_v14_t.supportsStrongSignals", offset_of!(GinProperties, strong_signals)),
        ("ncclGinProperties_v14_t.supportsVASignals", offset_of!(GinProperties, address_signals)),
    ] {
        ours.is(name, offset);
    }
    for (name, offset) in [
        ("C.nSignals", offset_of!(GinConfig, signals)),
        ("C.nCounters", offset_of!(GinConfig, counters)),
        ("C.nContexts", offset_of!(GinConfig, contexts)),
        ("C.queueDepth", offset_of!(GinConfig, queue_depth)),
        ("C.trafficClass", offset_of!(GinConfig, traffic_class)),
        ("C.backendVersion", offset_of!(GinConfig, backend_version)),
        ("C.rankStride", offset_of!(GinConfig, rank_stride)),
    ] {
        ours.is(name, offset);
    }
    for (name, offset) in [
        ("D.netDeviceType", offset_of!(DeviceHandle, device_type)),
        ("D.netDeviceVersion", offset_of!(DeviceHandle, device_version)),
        ("D.handle", offset_of!(DeviceHandle, handle)),
        ("D.size", offset_of!(DeviceHandle, size)),
        ("D.needsProxyProgress", offset_of!(DeviceHandle, needs_progress)),
    ] {
        ours.is(name, offset);
    }
    for (name, offset) in [
        ("W.max_sge", offset_of!(WorkQueue, max_sge)),
        ("W.max_wqes", offset_of!(WorkQueue, max_wqes)),
        ("W.queue_mask", offset_of!(WorkQueue, queue_mask)),
        ("W.queue_size_shift", offset_of!(WorkQueue, queue_size_shift)),
        ("W.max_batch", offset_of!(WorkQueue, max_batch)),
        ("W.wqes_pending", offset_of!(WorkQueue, wqes_pending)),
        ("W.wqes_posted", offset_of!(WorkQueue, wqes_posted)),
        ("W.wqes_completed", offset_of!(WorkQueue, wqes_completed)),
        ("W.pc", offset_of!(WorkQueue, pc)),
        ("W.phase", offset_of!(WorkQueue, phase)),
        ("W.buf", offset_of!(WorkQueue, buf)),
        ("W.db", offset_of!(WorkQueue, db)),
    ] {
        ours.is(name, offset);
    }
    for (name, offset) in [
        ("X.remote_mem_offset", offset_of!(RequestPlaces, remote_mem_offset)),
        ("X.local_mem_offset", offset_of!(RequestPlaces, local_mem_offset)),
        ("X.sgl_offset", offset_of!(RequestPlaces, sgl_offset)),
        ("X.send_inline_data_offset", offset_of!(RequestPlaces, send_inline_data_offset)),
        ("X.write_inline_data_offset", offset_of!(RequestPlaces, write_inline_data_offset)),
        ("X.max_inline_data", offset_of!(RequestPlaces, max_inline_data)),
        ("X.max_rdma_sges", offset_of!(RequestPlaces, max_rdma_sges)),
        ("X.wqe_size", offset_of!(RequestPlaces, wqe_size)),
    ] {
        ours.is(name, offset);
    }
    for (name, offset) in [
        ("Q.comp_mask", offset_of!(EfaCudaQp, comp_mask)),
        ("Q.sq.wq", offset_of!(EfaCudaQp, send)),
        ("Q.sq.wr_ctx", offset_of!(EfaCudaQp, places)),
        ("Q.rq.wq", offset_of!(EfaCudaQp, receive)),
    ] {
        ours.is(name, offset);
    }
    for (name, offset) in [
        ("E.qp", offset_of!(Poster, qp)),
        ("E.cq", offset_of!(Poster, cq)),
        ("E.target_address_handles", offset_of!(Poster, target_address_handles)),
        ("E.target_remote_qpns", offset_of!(Poster, target_remote_qpns)),
        ("E.target_qkey", offset_of!(Poster, target_qkey)),
        ("E.sq_lock", offset_of!(Poster, sq_lock)),
        ("E.local_cntr_value", offset_of!(Poster, local_cntr_value)),
        ("E.submitted_count", offset_of!(Poster, submitted_count)),
        ("E.sq_size", offset_of!(Poster, sq_size)),
        ("E.putvalue_pad", offset_of!(Poster, putvalue_pad)),
        ("E.putvalue_slice_base", offset_of!(Poster, putvalue_slice_base)),
    ] {
        ours.is(name, offset);
    }
    for (name, offset) in [
        ("K.base", offset_of!(CounterHandle, base)),
        ("K.cntr_value", offset_of!(CounterHandle, cntr_value)),
        ("K.cntr_offset", offset_of!(CounterHandle, cntr_offset)),
    ] {
        ours.is(name, offset);
    }
    for (name, offset) in [
        ("H.data", offset_of!(ContextHandle, data)),
        ("H.pvdata", offset_of!(ContextHandle, pvdata)),
        ("H.counter_handles", offset_of!(ContextHandle, counter_handles)),
        ("H.signal_handles", offset_of!(ContextHandle, signal_handles)),
        ("H.nCounters", offset_of!(ContextHandle, counters)),
        ("H.nSignals", offset_of!(ContextHandle, signals)),
        ("H.nranks", offset_of!(ContextHandle, nranks)),
        ("H.rank", offset_of!(ContextHandle, rank)),
        ("H.rail_id", offset_of!(ContextHandle, rail_id)),
        ("H.scratch_lkey", offset_of!(ContextHandle, scratch_lkey)),
        ("H.scratch_pad", offset_of!(ContextHandle, scratch_pad)),
        ("H.scratch_local_addr", offset_of!(ContextHandle, scratch_local_addr)),
        ("H.scratch_remote_addrs", offset_of!(ContextHandle, scratch_remote_addrs)),
        ("H.scratch_remote_rkeys", offset_of!(ContextHandle, scratch_remote_rkeys)),
        ("H.putvalue_lkey", offset_of!(ContextHandle, putvalue_lkey)),
        ("H.putvalue_slot_size", offset_of!(ContextHandle, putvalue_slot_size)),
    ] {
        ours.is(name, offset);
    }
    for (name, offset) in [
        ("M.lkey", offset_of!(MemoryHandle, lkey)),
        ("M.nranks", offset_of!(MemoryHandle, nranks)),
        ("M.local_addr", offset_of!(MemoryHandle, local_addr)),
    ] {
        ours.is(name, offset);
    }
    // Peers follow the handle.
    ours.is("M.peers", size_of::<MemoryHandle>());
    for (name, offset) in [
        ("N.remote_addr", offset_of!(MemoryPeer, remote_addr)),
        ("N.rkey", offset_of!(MemoryPeer, rkey)),
        ("N.pad", offset_of!(MemoryPeer, pad)),
    ] {
        ours.is(name, offset);
    }
    table!(
        ours,
        Gin14,
        "G",
        init = "init",
        devices = "devices",
        get_gin_properties = "getGinProperties",
        get_properties = "getProperties",
        listen = "listen",
        connect = "connect",
        create_context = "createContext",
        reg_mr_sym = "regMrSym",
        reg_mr_sym_dma_buf = "regMrSymDmaBuf",
        dereg_mr_sym = "deregMrSym",
        destroy_context = "destroyContext",
        close_coll = "closeColl",
        close_listen = "closeListen",
        progress = "ginProgress",
        query_last_error = "queryLastError",
        finalize = "finalize"
    );
    let whole = ours.0.remove("G").unwrap_or_default();
    ours.is("ncclGin_v14_t", whole);
}

#[test]
fn tables_are_as_nccls_headers_declare_them() {
    let mut ours = Ours::default();
    ours.is("ncclSuccess", NcclResult::SUCCESS.0);
    ours.is("ncclSystemError", NcclResult::SYSTEM.0);
    ours.is("ncclInternalError", NcclResult::INTERNAL.0);
    ours.is("ncclInvalidArgument", NcclResult::ARGUMENT.0);
    ours.is("ncclInvalidUsage", NcclResult::USAGE.0);
    ours.is("ncclRemoteError", NcclResult::REMOTE.0);
    ours.is("NCCL_PTR_HOST", PTR_HOST);
    ours.is("NCCL_PTR_CUDA", PTR_CUDA);
    ours.is("NCCL_NET_MR_FLAG_SIGNAL_NEVER_RESET", MR_NEVER_RESET);
    ours.is("NCCL_NET_SIGNAL_OP_INC", SIGNAL_INC);
    ours.is("NCCL_NET_SIGNAL_OP_ADD", SIGNAL_ADD);
    ours.is("NCCL_NET_HANDLE_MAXSIZE", HANDLE_BYTES);
    ours.is("NCCL_NET_DEVICE_GIN_PROXY", DEVICE_PROXY);
    ours.is("ncclNetProperties_v12_t", size_of::<Properties>());
    for (name, offset) in [
        ("name", offset_of!(Properties, name)),
        ("pciPath", offset_of!(Properties, pci_path)),
        ("guid", offset_of!(Properties, guid)),
        ("ptrSupport", offset_of!(Properties, pointers)),
        ("regIsGlobal", offset_of!(Properties, global_registration)),
        ("forceFlush", offset_of!(Properties, force_flush)),
        ("speed", offset_of!(Properties, speed)),
        ("port", offset_of!(Properties, port)),
        ("latency", offset_of!(Properties, latency)),
        ("maxComms", offset_of!(Properties, most_communicators)),
        ("maxRecvs", offset_of!(Properties, most_receives)),
        ("netDeviceType", offset_of!(Properties, device_type)),
        ("netDeviceVersion", offset_of!(Properties, device_version)),
        ("vProps", offset_of!(Properties, virtual_device)),
        ("maxP2pBytes", offset_of!(Properties, most_p2p_bytes)),
        ("maxCollBytes", offset_of!(Properties, most_collective_bytes)),
        ("maxMultiRequestSize", offset_of!(Properties, most_requests)),
        ("railId", offset_of!(Properties, rail)),
        ("planeId", offset_of!(Properties, plane)),
    ] {
        ours.is(&format!("P.{name}"), offset);
    }
    ours.is("ncclRmaConfig_v16_t", size_of::<RmaConfig>());
    ours.is("ncclGinConfig_v13_t", size_of::<GinConfig13>());
    ours.is("ncclRmaProperties_v16_t", size_of::<RmaProperties>());
    queues(&mut ours);
    rma!(ours, Rma13, "ncclGin_v13_t", "ginProgress");
    rma!(ours, Rma14, "ncclRma_v14_t", "rmaProgress");
    rma!(ours, Rma15, "ncclRma_v15_t", "rmaProgress");
    rma!(ours, Rma16, "ncclRma_v16_t", "rmaProgress");
    ours.is(
        "ncclRma_v16_t.getRmaProperties",
        format!("{} {}", offset_of!(Rma16, get_rma_properties), shape_of(|table: &Rma16| &table.get_rma_properties)),
    );
    let file = include_str!("nccl-abi.txt");
    let theirs: HashMap<String, String> = file
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    assert!(theirs.len() > 120, "the file has {} lines", theirs.len());
    for (name, value) in &theirs {
        assert_eq!(ours.0.get(name), Some(value), "{name}");
    }
    assert_eq!(ours.0.len(), theirs.len());
}
