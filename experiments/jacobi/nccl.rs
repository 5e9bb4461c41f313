//! NCCL's exchanges: rows are sent and received on streams, after the stencil or overlapping with most of it.
//! Iterations are launched one by one or in graphs.
//!
//! ```text
//! nccl            main:   all tiles -> rows
//! nccl-overlap    push:   outer tiles -> rows            of the highest priority
//!                 main:   inner tiles       each waits for what the other computed in the previous iteration
//! ```

use super::args::{HaloExchange, JacobiConfig};
use super::part::FieldPart;
use super::problem::LaplaceProblem;
use super::session::JacobiSession;
use crate::error::Failure;
use crate::nccl_baseline::{Communicator, NcclError, NcclType, Window};
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{DeviceError, Graph, Stream};
use ginlab::gin::Sym;
use kernels::jacobi::{ABOVE, BELOW};
use std::time::Duration;

impl JacobiSession {
    /// Runs a first exchange, in which NCCL connects its ranks. It must not be recorded or timed.
    pub fn connect(&self, nccl: &Communicator, ranks: &mut Bootstrap) -> Result<(), Failure> {
        let [above, below] = self.neighbours().map(|pe| pe as usize);
        let row = |row: Sym<f32>| self.world.address_of(row, self.world.my_pe());
        let (Some(from), Some(first), Some(second)) = (row(self.out[0][0]), row(self.halo[0][0]), row(self.halo[0][1]))
        else {
            return Ok(());
        };
        let pairs = [(from, below, first, above), (from, above, second, below)];
        // SAFETY: the rows are in the heap and not in use yet. Every rank makes this call.
        unsafe { nccl.exchange(pairs.into_iter(), self.out[0][0].len() as usize, NcclType::F32, &self.main) }?;
        self.world.wait_for_stream(ranks, "NCCL's first exchange", &self.main)?;
        Ok(())
    }

    /// Appends an iteration whose rows NCCL sends.
    pub fn step_by_nccl(&self, part: &FieldPart, nccl: &Communicator, iteration: u32) -> Result<(), DeviceError> {
        if part.tuple.exchange == HaloExchange::Nccl {
            self.step(part, iteration, &self.main, part.all())?;
            return self.send_by_nccl(part, nccl, iteration, &self.main);
        }
        let [outer, inner] = part.outer_and_inner();
        // The previous iteration must have computed the inner tiles, and must have read the values that the outer tiles
        // now overwrite.
        self.push.wait_for(&self.main.mark()?)?;
        self.step(part, iteration, &self.push, outer)?;
        let computed = self.push.mark()?;
        self.send_by_nccl(part, nccl, iteration, &self.push)?;
        if !inner.is_empty() {
            self.step(part, iteration, &self.main, inner)?;
        }
        // The next inner tiles and the norm read the outer tiles. Received rows are only read by the next outer tiles,
        // which follow in the same stream.
        self.main.wait_for(&computed)
    }

    /// Appends the exchange of the rows that an iteration has computed.
    fn send_by_nccl(
        &self,
        part: &FieldPart,
        nccl: &Communicator,
        iteration: u32,
        stream: &Stream,
    ) -> Result<(), DeviceError> {
        let parity = (iteration as usize + 1) % 2;
        let [above, below] = self.neighbours().map(|pe| pe as usize);
        let halo = |side: usize| {
            if let Some(rows) = part.received {
                return Ok(rows[parity][side]);
            }
            let row = self.world.address_of(self.halo[parity][side], self.world.my_pe());
            row.ok_or_else(|| DeviceError::Refused("the heap has no address".into()))
        };
        let first = part.fields[iteration as usize % 2];
        let last = first + part.problem.bytes(part.rows - 1) as u64;
        // With two ranks, the neighbours above and below are the same rank. Each rank therefore sends its last row
        // first, and first receives the row from above.
        let pairs = [(last, below, halo(ABOVE)?, above), (first, above, halo(BELOW)?, below)];
        let count = part.problem.pitch() as usize;
        // SAFETY: the rows are in the fields, and in the heap or a window, which are valid until the wait for the
        // streams has ended.
        // Every rank runs the same iterations.
        unsafe { nccl.exchange(pairs.into_iter(), count, NcclType::F32, stream) }.map_err(said)
    }

    /// Copies the row that the first iteration reads from the heap to the window, if rows are received there.
    pub fn copy_to_window(&self, part: &FieldPart, side: usize) -> Result<(), Failure> {
        let Some(rows) = part.received else { return Ok(()) };
        let from = self.world.description().local(self.halo[1][side]) as u64;
        // SAFETY: both rows have the pitch of the field, and the run that follows in this stream is the next to use
        // them.
        Ok(unsafe { self.main.copy(rows[1][side], from, part.problem.bytes(1) as u64) }?)
    }

    /// Records the iterations of a run as graphs, each up to the next norm. Returns no graphs if iterations are
    /// launched one by one.
    pub fn record(&self, part: &FieldPart) -> Result<Vec<Graph>, Failure> {
        let JacobiConfig { exchange, iterations, .. } = part.tuple;
        let Some(nccl) = part.nccl.filter(|_| exchange.in_graphs()) else { return Ok(Vec::new()) };
        let firsts = (1..=iterations).step_by(part.turn() as usize);
        let graphs = firsts.map(|first| {
            self.main.record(|main| {
                for iteration in first..(first + part.turn()).min(iterations + 1) {
                    self.step_by_nccl(part, nccl, iteration)?;
                }
                // Wait for the rows received last.
                main.wait_for(&self.push.mark()?)
            })
        });
        Ok(graphs.collect::<Result<Vec<Graph>, DeviceError>>()?)
    }
}

/// Memory for fields and received rows that is registered with NCCL.
pub struct WindowFields {
    /// The field for which the window has memory.
    pub problem: LaplaceProblem,
    /// Number of rows of each of the two fields.
    rows: u32,
    window: Result<Window, String>,
}

impl WindowFields {
    /// Allocates memory for fields of `rows` rows. Collective.
    pub fn new(
        problem: LaplaceProblem,
        rows: u32,
        nccl: &Communicator,
        limit: Duration,
        ranks: &mut Bootstrap,
    ) -> Result<WindowFields, Failure> {
        let window = match nccl.window(2 * problem.bytes(rows) + 4 * problem.bytes(1), ranks, limit) {
            Err(NcclError::Missing(why)) => Err(why),
            opened => Ok(opened?),
        };
        Ok(WindowFields { problem, rows, window })
    }

    /// Returns the reason for which there is no window. `None` if there is one.
    pub fn refused(&self) -> Option<String> {
        self.window.as_ref().err().cloned()
    }

    /// Deregisters and frees the memory. All ranks must call this, before the communicator is closed.
    pub fn close(self, nccl: &Communicator, limit: Duration) -> Result<(), NcclError> {
        self.window.map_or(Ok(()), |window| nccl.close_window(window, limit))
    }

    /// Returns the addresses of the two fields, and of the received rows by parity and side.
    pub fn addresses(&self) -> Option<([u64; 2], [[u64; 2]; 2])> {
        let first = self.window.as_ref().ok()?.address();
        let (field, row) = (self.problem.bytes(self.rows) as u64, self.problem.bytes(1) as u64);
        let at = |index: u64| first + 2 * field + index * row;
        Some(([first, first + field], [[at(0), at(1)], [at(2), at(3)]]))
    }
}

fn said(error: NcclError) -> DeviceError {
    DeviceError::Driver { call: "NCCL's exchange of rows".into(), text: error.to_string() }
}
