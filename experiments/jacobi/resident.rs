//! One run of the resident kernel: all iterations, or those up to a norm that is waited for, by one grid.

use super::args::{Norm, Tuple, When};
use super::run::{FEW_REGISTERS, NAME, Part, Ran};
use super::session::Session;
use crate::error::Failure;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::Buffer;
use kernels::jacobi::resident::{JACOBI_RESIDENT, JACOBI_RESIDENT_RAILS, PLACES, ResidentArgs, row_words};
use std::time::Instant;

/// The resident kernel, as a field and a device have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    pub grid: u32,
    pub block: u32,
    pub shared_bytes: u32,
}

impl Session {
    /// One run of the resident kernel, over the first of the fields.
    pub fn run_resident(
        &mut self,
        part: &Part,
        resident: Resident,
        words: &Buffer,
        ranks: &mut Bootstrap,
    ) -> Result<Ran, Failure> {
        let Tuple { norm, when, iterations, .. } = part.tuple;
        let mapped = self.neighbours().map(|pe| self.world.is_mapped(pe));
        let kernel = if mapped.contains(&false) { JACOBI_RESIDENT_RAILS } else { JACOBI_RESIDENT };
        let function = self.world.device().function(&kernel, FEW_REGISTERS)?.with_shared_memory(resident.shared_bytes)?;
        self.prepare(part)?;
        ranks.barrier("start of a run")?;
        let began = Instant::now();
        let mut done = 0;
        while done < iterations {
            let count = part.tuple.resident_turn().min(iterations - done);
            let args = ResidentArgs {
                field: part.fields[0].pointer(),
                rows: part.rows,
                nx: part.problem.nx,
                pitch: part.problem.pitch(),
                iterations: count,
                first: self.next_tag,
                shared_bytes: resident.shared_bytes,
                norm: norm as u32,
                sums: self.sums.pointer::<cuda_std::memory::Word>().wrapping_add(done as usize),
                words: words.pointer(),
                inbox: self.words.slice(0, PLACES * row_words(resident.block)),
                counted: self.counted,
                link: self.link.pointer(),
            };
            // SAFETY: as in `step`.
            unsafe { self.main.launch(&function, resident.grid, resident.block, args) }?;
            self.next_tag += count;
            done += count;
            for (counted, mapped) in self.counted.iter_mut().zip(mapped) {
                *counted += if mapped { 0 } else { u64::from(count) };
            }
            if norm != Norm::Never {
                self.rounds += 1;
                let args = self.meeting(part, done, count, self.rounds);
                self.launch_meeting(part, &self.main, args)?;
                if when != When::Delayed {
                    self.known(false, self.rounds, ranks)?;
                }
            }
        }
        self.world.wait_for_stream(ranks, NAME, &self.main)?;
        self.ran(part, began.elapsed().as_secs_f64(), 0)
    }
}
