//! Headline figures of the project's newest results, each with that of a reference or a limit.
//!
//! Both figures of an entry are taken from one file, the newest that contains both. A new headline requires a new entry
//! here: the experiment, the column, the rows of the figure, and the rows of its reference. The table states if there
//! are no such rows.

use ginlab::report::BestValue;

const TIME: &str = "time_us_p50";
const RATE: &str = "rate_mops";
const BANDWIDTH: &str = "bandwidth_gbytes_s";
const BUS: &str = "busbw_gbytes_s";

pub const HEADLINES: &[BestValue] = &[
    BestValue::least("proxy", TIME, "put of 64 B until quiet returns, no network")
        .of("case=put mode=quiet fabric=null size_bytes=64 grid=1 block=32")
        .beside("a flag to the CPU and back", "case=ping-pong fabric=null size_bytes=64 grid=1 block=32"),
    BestValue::least("proxy", TIME, "put of 64 B until quiet returns, EFA cards")
        .of("case=put mode=quiet fabric=efa size_bytes=64 grid=1")
        .beside("CPU-initiated write", "case=cpu-write fabric=efa size_bytes=64 grid=1"),
    BestValue::most("proxy", RATE, "puts of 64 B without waiting, 132 blocks, no network")
        .of("case=put mode=nbi fabric=null size_bytes=64 grid=132 block=32")
        .beside("CPU-initiated writes", "case=cpu-write fabric=null size_bytes=64 grid=132 block=32"),
    BestValue::most("queue", RATE, "commands through one ring, 132 blocks")
        .of("case=ticket mode=nbi grid=132 block=256 rings=1")
        .beside("the prototype", "case=prototype mode=nbi grid=132 block=256"),
    BestValue::most("proxy", BANDWIDTH, "puts of 4 MiB over four rails, tcp")
        .of("case=put mode=nbi fabric=tcp;ofi_rxm size_bytes=4194304 rails=4 grid=1")
        .beside("over one rail", "case=put mode=nbi fabric=tcp;ofi_rxm size_bytes=4194304 rails=1 grid=1"),
    BestValue::least("write", TIME, "CPU-initiated write of 64 B, tcp")
        .of("case=write fabric=tcp;ofi_rxm size_bytes=64 rails=1")
        .beside("bare loop of fi_write", "case=bare-write fabric=tcp;ofi_rxm size_bytes=64"),
    BestValue::most("proxy", RATE, "puts of 64 B in batches of 32, one block, four p5 cards")
        .of("case=put mode=nbi-batch=32 fabric=model:p5/unmoved size_bytes=64 rails=4 grid=1")
        .beside("CPU-initiated writes", "case=cpu-write fabric=model:p5/unmoved size_bytes=64 rails=4 grid=1"),
    BestValue::most("proxy", BANDWIDTH, "puts of 8 MiB with quiet after each, one block, four p5 cards")
        .of("case=put mode=quiet fabric=model:p5/unmoved size_bytes=8388608 rails=4 grid=1 block=256 ring_memory=pinned memory=device-modelled fill=true window=1 ranks=2")
        .beside(
            "CPU-initiated writes",
            "case=cpu-write fabric=model:p5/unmoved size_bytes=8388608 rails=4 grid=1 ranks=2",
        ),
    BestValue::most("ipc", BANDWIDTH, "a kernel's writes of 1 GiB over NVLink")
        .of("case=write fabric=nvlink operation=write direction=one store=plain size_bytes=1073741824 grid=128 ranks=2")
        .beside("copy engine", "case=copy-engine operation=write direction=one size_bytes=1073741824 ranks=2"),
    BestValue::least("shmem", TIME, "put of 8 B by a block, NVLink")
        .of("case=put-latency fabric=nvlink size_bytes=8 scope=block ranks=2")
        .beside("NVSHMEM", "case=nvshmem-put-latency size_bytes=8 scope=block ranks=2"),
    BestValue::least("shmem", TIME, "barrier of two PEs by a block, NVLink")
        .of("case=barrier-all fabric=nvlink scope=block block=256 ranks=2")
        .beside("NVSHMEM", "case=nvshmem-barrier-all scope=block block=256 ranks=2"),
    BestValue::least("shmem", TIME, "all-to-all of 8 B, two PEs, NVLink")
        .of("case=all-to-all fabric=nvlink size_bytes=8 ranks=2")
        .beside("NVSHMEM", "case=nvshmem-all-to-all size_bytes=8 ranks=2"),
    BestValue::least("collective", TIME, "all-reduce of 8 B, two GPUs, in a graph")
        .of("case=gin-all-reduce launch=graph size_bytes=8 ranks=2")
        .beside("NCCL", "case=nccl-all-reduce launch=graph size_bytes=8 ranks=2"),
    BestValue::most("collective", BUS, "all-reduce of 512 MiB, two GPUs, bus bandwidth")
        .of("case=gin-all-reduce launch=graph size_bytes=536870912 ranks=2")
        .beside("NCCL", "case=nccl-all-reduce launch=graph size_bytes=536870912 ranks=2"),
    BestValue::least("jacobi", TIME, "iteration of 4096 x 4096, kernel that stays, two GPUs")
        .of("case=resident fabric=nvlink nx=4096 ny=4096 ranks=2 norm_when=delayed")
        .beside("host-driven, NCCL", "case=nccl nx=4096 ny=4096 ranks=2 norm_when=delayed"),
    BestValue::least("jacobi", TIME, "iteration of 4096 x 4096, kernels that send, two GPUs")
        .of("case=block fabric=nvlink nx=4096 ny=4096 ranks=2 norm_when=delayed")
        .beside("host-driven, NCCL", "case=nccl nx=4096 ny=4096 ranks=2 norm_when=delayed"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::catalog;

    #[test]
    fn headlines_name_columns_of_their_experiments() {
        crate::register();
        for finding in HEADLINES {
            let columns = catalog().columns();
            let known = |name: &str| {
                let of = columns.iter().find(|(column, _)| column.name == name).map(|(_, of)| of);
                of.is_some_and(|of| of.is_empty() || of.contains(&finding.experiment))
            };
            assert!(known(finding.column), "{}: {}", finding.what, finding.column);
            for condition in [finding.rows, finding.beside_rows].into_iter().flat_map(str::split_whitespace) {
                assert!(
                    condition.split_once('=').is_some_and(|(name, _)| known(name)),
                    "{}: {condition}",
                    finding.what
                );
            }
        }
    }
}
