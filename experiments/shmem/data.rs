//! `data-order`: is anything ever read before it is there, or written while it is read? kernels/src/data_check.rs has the ways.

use super::args::{Case, Tuple};
use super::measure::Shmem;
use crate::error::Failure;
use crate::runner::Rows;
use crate::world::Scope;
use cuda_std::Kernel;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::Place;
use ginlab::gin::{Inbox, Program, Signal, World};
use kernels::data_check::{self, DataCheck, SOURCES};

/// What is sent has lengths up to this.
pub const BYTES: u64 = 4096;

/// What all rows count on from.
pub struct Data {
    circle: Inbox,
    all: Inbox,
    checked: Signal,
    rounds: u32,
}

fn is_asked(tuples: &[Tuple]) -> bool {
    tuples.iter().any(|tuple| tuple.case == Case::DataOrder)
}

/// Bytes that are sent and received.
pub fn payload(pes: u64) -> u64 {
    BYTES * pes.max(SOURCES.into())
}

/// What these tuples need of the heap, beside that.
pub fn heap_bytes(tuples: &[Tuple], pes: u64) -> u64 {
    if is_asked(tuples) { 2 * Inbox::bytes(BYTES, pes as u32) + 4096 } else { 0 }
}

impl Data {
    /// Inboxes and signals, where a row needs them.
    pub fn open(tuples: &[Tuple], world: &mut World, ranks: &mut Bootstrap) -> Result<Option<Data>, Failure> {
        if !is_asked(tuples) {
            return Ok(None);
        }
        let (circle, all) = (world.inbox(ranks, BYTES)?, world.inbox(ranks, BYTES)?);
        Ok(Some(Data { circle, all, checked: world.signals(ranks, 2)?, rounds: 0 }))
    }
}

/// What sends, gets and looks.
pub fn kernel(tuple: &Tuple) -> Kernel<Program<DataCheck>> {
    match tuple.scope {
        Scope::Thread => data_check::DATA_CHECK_THREAD,
        Scope::Warp => data_check::DATA_CHECK_WARP,
        Scope::Block => data_check::DATA_CHECK_BLOCK,
    }
}

impl Shmem {
    /// In as many launches as there are repeats.
    pub(super) fn data_order(&mut self, tuple: &Tuple, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        let Some(mut data) = self.data.take() else { return Err(Failure::Run("data-order has no inboxes".into())) };
        let found = self.world.device().allocate(Place::Device, 16)?;
        let bytes = payload(self.world.n_pes().into());
        for _ in 0..self.args.repeats {
            let check = DataCheck {
                circle: data.circle,
                all: data.all,
                checked: data.checked,
                most: BYTES,
                from: self.from.slice(0, bytes),
                to: self.to.slice(0, bytes),
                rounds: tuple.iterations,
                before: data.rounds,
                seed: self.number,
                found: found.pointer(),
            };
            self.world.barrier(ranks)?;
            // SAFETY: the arguments are of this world.
            unsafe { self.world.launch(ranks, &kernel(tuple), tuple.grid, tuple.block, check) }?;
            data.rounds += tuple.iterations;
        }
        self.data = Some(data);
        let mut words = [0u64; 2];
        found.read(0, &mut words)?;
        let all: Vec<[u64; 2]> = ranks.all_gather_values(&words, "wrong bytes")?;
        let mut row = self.row(tuple, (self.world.my_pe() + 1) % self.world.n_pes());
        // What was looked at, by all PEs together.
        row.iterations = Some(all.iter().map(|found| found[1]).sum());
        row.repeats = Some(u64::from(self.args.repeats));
        row.verified(Some(all.iter().map(|found| found[0]).sum()));
        Ok(vec![(row, Vec::new())])
    }
}
