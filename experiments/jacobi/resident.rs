//! A run of the resident kernel: one grid computes all iterations, or those up to a norm that the CPU waits for.

use super::args::{JacobiConfig, Norm, When};
use super::part::{FieldPart, PartResult};
use super::run::NAME;
use super::session::{FEW_REGISTERS, JacobiSession};
use crate::error::Failure;
use cuda_std::Kernel;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::Buffer;
use kernels::jacobi::pieces::{JACOBI_PIECES, JACOBI_PIECES_RAILS, PiecesArgs, WORDS_BESIDE};
use kernels::jacobi::resident::{JACOBI_RESIDENT, JACOBI_RESIDENT_RAILS, PLACES, ResidentArgs, row_words};
use std::time::Instant;

/// Maximum number of blocks that share a row.
pub const MOST_ACROSS: u32 = 256;

/// Launch parameters of the resident kernel for a field and a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    pub grid: u32,
    pub block: u32,
    pub shared_bytes: u32,
    /// Whether a neighbour is reached over rails.
    pub by_rails: bool,
    /// `None` if each block has whole rows.
    pub pieces: Option<SplitRows>,
}

/// Blocks that have some columns of some rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitRows {
    /// Number of blocks that share a row.
    pub across: u32,
    /// Maximum number of rows of a block.
    pub most_rows: u32,
}

/// Returns the kernel for a field whose neighbours are reached over rails if `by_rails` is set. The two kernels use
/// different numbers of registers, which determines how many of their blocks are resident.
pub fn kernel(by_rails: bool) -> Kernel<ResidentArgs> {
    if by_rails { JACOBI_RESIDENT_RAILS } else { JACOBI_RESIDENT }
}

/// Like [`kernel`], for blocks that have some columns of some rows.
pub fn pieces_kernel(by_rails: bool) -> Kernel<PiecesArgs> {
    if by_rails { JACOBI_PIECES_RAILS } else { JACOBI_PIECES }
}

impl Resident {
    /// Returns the number of words by which blocks exchange rows, followed by points between blocks of a row.
    pub fn words(&self) -> [u64; 2] {
        let beside = self.pieces.map_or(0, |pieces| WORDS_BESIDE * u64::from(pieces.most_rows));
        [PLACES * row_words(self.block), beside].map(|words| words * u64::from(self.grid))
    }

    /// Returns the number of blocks that share a row.
    pub fn across(&self) -> u32 {
        self.pieces.map_or(1, |pieces| pieces.across)
    }
}

impl JacobiSession {
    /// Runs the resident kernel on the first of the fields.
    pub fn run_resident(
        &mut self,
        part: &FieldPart,
        resident: Resident,
        words: &Buffer,
        ranks: &mut Bootstrap,
    ) -> Result<PartResult, Failure> {
        let JacobiConfig { norm, when, iterations, .. } = part.tuple;
        let device = self.world.device().clone();
        let by_rails = resident.by_rails;
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
                inbox: self.words.slice(0, PLACES * row_words(resident.block) * u64::from(resident.across())),
                link: self.link.pointer(),
            };
            // SAFETY: the buffers belong to the part and this session, which wait for the stream before they are
            // dropped.
            unsafe {
                match resident.pieces {
                    None => {
                        let function = device.function(&kernel(by_rails), FEW_REGISTERS)?;
                        let function = function.with_shared_memory(resident.shared_bytes)?;
                        self.main.launch(&function, resident.grid, resident.block, args)
                    }
                    Some(SplitRows { across, most_rows }) => {
                        let beside = args.words.wrapping_add(resident.words()[0] as usize);
                        let args = PiecesArgs { field: args, across, most_rows, beside };
                        let function = device.function(&pieces_kernel(by_rails), FEW_REGISTERS)?;
                        let function = function.with_shared_memory(resident.shared_bytes)?;
                        self.main.launch(&function, resident.grid, resident.block, args)
                    }
                }
            }?;
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
