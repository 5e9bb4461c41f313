//! A run of the resident kernel: one grid computes all iterations, or those up to a norm that the CPU waits for.

use super::args::{Norm, Tuple, When};
use super::part::{Part, Ran};
use super::run::NAME;
use super::session::{FEW_REGISTERS, Session};
use crate::error::Failure;
use cuda_std::Kernel;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::Buffer;
use kernels::jacobi::resident::{JACOBI_RESIDENT, JACOBI_RESIDENT_RAILS, PLACES, ResidentArgs, row_words};
use std::time::Instant;

/// Launch parameters of the resident kernel for a field and a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    pub grid: u32,
    pub block: u32,
    pub shared_bytes: u32,
    /// Whether a neighbour is reached over rails.
    pub by_rails: bool,
}

/// Returns the kernel for a field whose neighbours are reached over rails if `by_rails` is set. The two kernels use
/// different numbers of registers, which determines how many of their blocks are resident.
pub fn kernel(by_rails: bool) -> Kernel<ResidentArgs> {
    if by_rails { JACOBI_RESIDENT_RAILS } else { JACOBI_RESIDENT }
}

impl Resident {
    /// Returns the kernel to launch.
    pub fn kernel(&self) -> Kernel<ResidentArgs> {
        kernel(self.by_rails)
    }
}

impl Session {
    /// Runs the resident kernel on the first of the fields.
    pub fn run_resident(
        &mut self,
        part: &Part,
        resident: Resident,
        words: &Buffer,
        ranks: &mut Bootstrap,
    ) -> Result<Ran, Failure> {
        let Tuple { norm, when, iterations, .. } = part.tuple;
        let kernel = resident.kernel();
        let function =
            self.world.device().function(&kernel, FEW_REGISTERS)?.with_shared_memory(resident.shared_bytes)?;
        ranks.barrier("end of the previous run")?;
        self.prepare(part)?;
        ranks.barrier("start of a run")?;
        let began = Instant::now();
        let mut done = 0;
        while done < iterations {
            let count = part.tuple.resident_turn().min(iterations - done);
            let args = ResidentArgs {
                field: part.fields[0] as *mut _,
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
                link: self.link.pointer(),
            };
            // SAFETY: the buffers belong to the part and this session, which wait for the stream before they are
            // dropped.
            unsafe { self.main.launch(&function, resident.grid, resident.block, args) }?;
            self.next_tag += count;
            done += count;
            if norm != Norm::Never {
                self.norms += 1;
                let args = self.meeting(part, done, count, self.norms);
                self.launch_meeting(part, &self.main, args)?;
                if when != When::Delayed {
                    self.known(false, self.norms, ranks)?;
                }
            }
        }
        self.world.wait_for_stream(ranks, NAME, &self.main)?;
        self.ran(part, began.elapsed().as_secs_f64(), 0)
    }
}
