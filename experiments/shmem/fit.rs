//! Kernels of `ginlab shmem`, and the grids that are resident on all devices.

use super::args::{Args, Case, Tuple};
use super::{data, order};
use crate::error::Failure;
use crate::world::Scope;
use cuda_std::Kernel;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::Device;
use ginlab::gin::{Program, World};
use ginlab::report::each_once;
use kernels::shmem::ShmemArgs;
use kernels::shmem::bandwidth::*;
use kernels::shmem::exchange::*;
use kernels::shmem::latency::*;
use kernels::shmem::loaded::*;

/// Maximum bytes for which one thread's all-to-all uses messages. For larger ones puts are faster: a message requires
/// 8-byte stores for each 4 bytes, one after another, while a put copies 16 bytes at a time.
const THREADS_MESSAGE: u64 = 32;

/// Rejects grids that are not resident on the GPU, together with those of PEs that share it. Default grids are reduced
/// instead. The result is the same on every rank.
pub fn fit(args: &Args, tuples: &mut Vec<Tuple>, world: &World, ranks: &mut Bootstrap) -> Result<(), Failure> {
    let device = world.device();
    let mapped = (0..world.n_pes()).all(|pe| world.is_mapped(pe));
    if args.message_limit.is_none()
        && ranks.all_gather_values(&(mapped && !matches!(device, Device::Emulated)), "paths")?.iter().all(|all| *all)
    {
        for tuple in tuples.iter_mut().filter(|tuple| tuple.scope == Scope::Thread) {
            tuple.by_messages &= tuple.bytes <= THREADS_MESSAGE;
        }
    }
    let most = |tuple: &Tuple| match tuple.case {
        Case::SignalOrder => device.resident_blocks(&order::kernel(tuple), tuple.block),
        Case::DataOrder => device.resident_blocks(&data::kernel(tuple), tuple.block),
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
            Case::SignalOrder => device.check_resident(&order::kernel(tuple), tuple.grid, tuple.block),
            Case::DataOrder => device.check_resident(&data::kernel(tuple), tuple.grid, tuple.block),
            _ => device.check_resident(&kernel(tuple), tuple.grid, tuple.block),
        }?;
    }
    *tuples = each_once(tuples.drain(..));
    Ok(())
}

pub fn kernel(tuple: &Tuple) -> Kernel<Program<ShmemArgs>> {
    let [by_thread, by_warp, by_block] = match tuple.case {
        Case::PLatency => return SHMEM_P,
        Case::AtomicLatency => return SHMEM_ATOMIC,
        Case::PutLatencyLoaded => return SHMEM_PUT_LOADED,
        Case::SignalPingPong => return SHMEM_SIGNAL,
        Case::SignalSetPingPong => return SHMEM_SIGNAL_SET,
        Case::AllToAll if !tuple.by_messages => return SHMEM_ALL_TO_ALL_PUTS_BLOCK,
        Case::PutLatency => [SHMEM_PUT_THREAD, SHMEM_PUT_WARP, SHMEM_PUT_BLOCK],
        Case::GetLatency => [SHMEM_GET_THREAD, SHMEM_GET_WARP, SHMEM_GET_BLOCK],
        Case::PutSignalPingPong | Case::PutSignalSetPingPong => {
            [SHMEM_PUT_SIGNAL_THREAD, SHMEM_PUT_SIGNAL_WARP, SHMEM_PUT_SIGNAL_BLOCK]
        }
        Case::MessagePingPong => [SHMEM_MESSAGE_THREAD, SHMEM_MESSAGE_WARP, SHMEM_MESSAGE_BLOCK],
        Case::BarrierAll => [SHMEM_BARRIER_THREAD, SHMEM_BARRIER_WARP, SHMEM_BARRIER_BLOCK],
        Case::AllToAll => [SHMEM_ALL_TO_ALL_THREAD, SHMEM_ALL_TO_ALL_WARP, SHMEM_ALL_TO_ALL_BLOCK],
        // The two checking cases have their own kernels.
        Case::PutBandwidth | Case::PutSignalBandwidth | Case::GetBandwidth | Case::SignalOrder | Case::DataOrder => {
            [SHMEM_BANDWIDTH_THREAD, SHMEM_BANDWIDTH_WARP, SHMEM_BANDWIDTH_BLOCK]
        }
    };
    match tuple.scope {
        Scope::Thread => by_thread,
        Scope::Warp => by_warp,
        Scope::Block => by_block,
    }
}
