//! Kernels of `ginlab shmem`, and the grids that are resident on all devices.

use super::args::{ShmemArgs, ShmemCase, ShmemConfig};
use super::{data, order};
use crate::error::Failure;
use crate::world::CallScope;
use cuda_std::Kernel;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::Device;
use ginlab::gin::{Program, World};
use ginlab::report::each_once;
use kernels::shmem::ShmemKernelArgs;
use kernels::shmem::bandwidth::*;
use kernels::shmem::exchange::*;
use kernels::shmem::latency::*;
use kernels::shmem::loaded::*;

/// Maximum bytes for which one thread's all-to-all uses messages. For larger ones puts are faster: a message requires
/// 8-byte stores for each 4 bytes, one after another, while a put copies 16 bytes at a time.
const THREADS_MESSAGE: u64 = 32;

/// Rejects grids that are not resident on the GPU, together with those of PEs that share it. Default grids are reduced
/// instead. The result is the same on every rank.
pub fn fit(
    args: &ShmemArgs,
    tuples: &mut Vec<ShmemConfig>,
    world: &World,
    ranks: &mut Bootstrap,
) -> Result<(), Failure> {
    let device = world.device();
    let mapped = (0..world.n_pes()).all(|pe| world.is_mapped(pe));
    if args.message_limit.is_none()
        && ranks.all_gather_values(&(mapped && !matches!(device, Device::Emulated)), "paths")?.iter().all(|all| *all)
    {
        for tuple in tuples.iter_mut().filter(|tuple| tuple.scope == CallScope::Thread) {
            tuple.by_messages &= tuple.bytes <= THREADS_MESSAGE;
        }
    }
    let most = |tuple: &ShmemConfig| match tuple.case {
        ShmemCase::SignalOrder => device.resident_blocks(&order::kernel(tuple), tuple.block),
        ShmemCase::DataOrder => device.resident_blocks(&data::kernel(tuple), tuple.block),
        _ => device.resident_blocks(&kernel(tuple), tuple.block),
    };
    let mine = tuples.iter().map(most).collect::<Result<Vec<u32>, _>>()?;
    let all: Vec<Vec<u32>> = ranks.all_gather_values(&mine, "number of resident blocks")?;
    for (number, tuple) in tuples.iter_mut().enumerate() {
        let most = all.iter().filter_map(|of_rank| of_rank.get(number)).copied().min().unwrap_or(0);
        if args.grid.is_none() {
            let least = tuple.case.least_blocks();
            tuple.grid = tuple.grid.min(most / least * least).max(least);
        }
        match tuple.case {
            ShmemCase::SignalOrder => device.check_resident(&order::kernel(tuple), tuple.grid, tuple.block),
            ShmemCase::DataOrder => device.check_resident(&data::kernel(tuple), tuple.grid, tuple.block),
            _ => device.check_resident(&kernel(tuple), tuple.grid, tuple.block),
        }?;
    }
    *tuples = each_once(tuples.drain(..));
    Ok(())
}

pub fn kernel(tuple: &ShmemConfig) -> Kernel<Program<ShmemKernelArgs>> {
    let [by_thread, by_warp, by_block] = match tuple.case {
        ShmemCase::PLatency => return SHMEM_P,
        ShmemCase::AtomicLatency => return SHMEM_ATOMIC,
        ShmemCase::PutLatencyLoaded => return SHMEM_PUT_LOADED,
        ShmemCase::SignalPingPong => return SHMEM_SIGNAL,
        ShmemCase::SignalSetPingPong => return SHMEM_SIGNAL_SET,
        ShmemCase::AllToAll if !tuple.by_messages => return SHMEM_ALL_TO_ALL_PUTS_BLOCK,
        ShmemCase::PutLatency => [SHMEM_PUT_THREAD, SHMEM_PUT_WARP, SHMEM_PUT_BLOCK],
        ShmemCase::GetLatency => [SHMEM_GET_THREAD, SHMEM_GET_WARP, SHMEM_GET_BLOCK],
        ShmemCase::PutSignalPingPong | ShmemCase::PutSignalSetPingPong => {
            [SHMEM_PUT_SIGNAL_THREAD, SHMEM_PUT_SIGNAL_WARP, SHMEM_PUT_SIGNAL_BLOCK]
        }
        ShmemCase::MessagePingPong => [SHMEM_MESSAGE_THREAD, SHMEM_MESSAGE_WARP, SHMEM_MESSAGE_BLOCK],
        ShmemCase::BarrierAll => [SHMEM_BARRIER_THREAD, SHMEM_BARRIER_WARP, SHMEM_BARRIER_BLOCK],
        ShmemCase::AllToAll => [SHMEM_ALL_TO_ALL_THREAD, SHMEM_ALL_TO_ALL_WARP, SHMEM_ALL_TO_ALL_BLOCK],
        // The two checking cases have their own kernels.
        ShmemCase::PutBandwidth
        | ShmemCase::PutSignalBandwidth
        | ShmemCase::GetBandwidth
        | ShmemCase::SignalOrder
        | ShmemCase::DataOrder => [SHMEM_BANDWIDTH_THREAD, SHMEM_BANDWIDTH_WARP, SHMEM_BANDWIDTH_BLOCK],
    };
    match tuple.scope {
        CallScope::Thread => by_thread,
        CallScope::Warp => by_warp,
        CallScope::Block => by_block,
    }
}
