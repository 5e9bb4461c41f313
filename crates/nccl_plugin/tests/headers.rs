//! The tables against NCCL's headers: `nccl-abi.txt` is what scripts/nccl-abi.sh has read from those of 2.30.7 (v13, v14), aws-ofi-nccl (v15)
//! and NCCL's main branch (v16), with nccl.h of the wheel of 2.32.3.

use nccl_ginlab::abi::*;
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

/// What the plugin has, in the words of the file.
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
