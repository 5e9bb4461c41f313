//! `data-order`: checks that data is never read before it has arrived, and never written while it is read.
//! kernels/src/data_check.rs documents the methods.

use super::args::{DATA_BYTES, ShmemCase, ShmemConfig};
use crate::error::Failure;
use crate::world::CallScope;
use cuda_std::Kernel;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::MemoryLocation;
use ginlab::gin::{Inbox, Program, Signal, Sym, World};
use kernels::data_check::{self, DataCheck, SOURCES};

/// State that all rows share. Each row continues its counts.
pub struct Data {
    circle: Inbox,
    all: Inbox,
    checked: Signal,
    rounds: u32,
}

fn is_asked(tuples: &[ShmemConfig]) -> bool {
    tuples.iter().any(|tuple| tuple.case == ShmemCase::DataOrder)
}

/// Returns the bytes of source and destination.
pub fn payload(pes: u64) -> u64 {
    DATA_BYTES * pes.max(SOURCES.into())
}

/// Returns the additional bytes of heap that these parameter combinations need.
pub fn heap_bytes(tuples: &[ShmemConfig], pes: u64) -> u64 {
    if is_asked(tuples) { 2 * Inbox::bytes(DATA_BYTES, pes as u32) + 4096 } else { 0 }
}

impl Data {
    /// Allocates inboxes and signals if a row needs them.
    pub fn open(tuples: &[ShmemConfig], world: &mut World, ranks: &mut Bootstrap) -> Result<Option<Data>, Failure> {
        if !is_asked(tuples) {
            return Ok(None);
        }
        let (circle, all) = (world.inbox(ranks, DATA_BYTES)?, world.inbox(ranks, DATA_BYTES)?);
        Ok(Some(Data { circle, all, checked: world.signals(ranks, 2)?, rounds: 0 }))
    }

    /// Runs `repeats` launches. Returns for each PE the number of wrong bytes and of checked bytes.
    pub fn look(
        &mut self,
        tuple: &ShmemConfig,
        repeats: u32,
        seed: u32,
        [from, to]: [Sym<u8>; 2],
        world: &mut World,
        ranks: &mut Bootstrap,
    ) -> Result<Vec<[u64; 2]>, Failure> {
        let found = world.device().allocate(MemoryLocation::Device, 16)?;
        let bytes = payload(world.n_pes().into());
        for _ in 0..repeats {
            let check = DataCheck {
                circle: self.circle,
                all: self.all,
                checked: self.checked,
                most: DATA_BYTES,
                from: from.slice(0, bytes),
                to: to.slice(0, bytes),
                rounds: tuple.iterations,
                before: self.rounds,
                seed,
                found: found.pointer(),
            };
            world.barrier(ranks)?;
            // SAFETY: the arguments belong to this world.
            unsafe { world.launch(ranks, &kernel(tuple), tuple.grid, tuple.block, check) }?;
            self.rounds += tuple.iterations;
        }
        let mut words = [0u64; 2];
        found.read(0, &mut words)?;
        Ok(ranks.all_gather_values(&words, "wrong bytes")?)
    }
}

/// Returns the kernel that sends, gets and checks.
pub fn kernel(tuple: &ShmemConfig) -> Kernel<Program<DataCheck>> {
    match tuple.scope {
        CallScope::Thread => data_check::DATA_CHECK_THREAD,
        CallScope::Warp => data_check::DATA_CHECK_WARP,
        CallScope::Block => data_check::DATA_CHECK_BLOCK,
    }
}
