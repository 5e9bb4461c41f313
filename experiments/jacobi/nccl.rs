//! NCCL's exchanges: rows sent and received on streams, behind the stencil or beside most of it, launched one by one or in graphs.
//!
//! ```text
//! nccl            main:   all tiles -> rows
//! nccl-overlap    push:   outer tiles -> rows            of the highest priority
//!                 main:   inner tiles       each waits for what the other has computed in the iteration before
//! ```

use super::args::{Exchange, Tuple};
use super::part::Part;
use super::session::Session;
use crate::error::Failure;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{DeviceError, Graph, Stream};
use ginlab::gin::Sym;
use ginlab::nccl::{Communicator, NcclError, Type};
use kernels::jacobi::{ABOVE, BELOW};

impl Session {
    /// NCCL makes its connections at the first operation, which must not be a recorded one, nor one that is timed.
    pub fn connect(&self, nccl: &Communicator, ranks: &mut Bootstrap) -> Result<(), Failure> {
        let [above, below] = self.neighbours().map(|pe| pe as usize);
        let row = |row: Sym<f32>| self.world.address_of(row, self.world.my_pe());
        let (Some(from), Some(first), Some(second)) = (row(self.out[0][0]), row(self.halo[0][0]), row(self.halo[0][1]))
        else {
            return Ok(());
        };
        let pairs = [(from, below, first, above), (from, above, second, below)];
        // SAFETY: rows of the heap, which nobody uses yet; every rank is here.
        unsafe { nccl.exchange(pairs.into_iter(), self.out[0][0].len() as usize, Type::F32, &self.main) }?;
        self.world.wait_for_stream(ranks, "NCCL's first exchange", &self.main)?;
        Ok(())
    }

    /// Appends an iteration whose rows NCCL sends.
    pub fn step_by_nccl(&self, part: &Part, nccl: &Communicator, iteration: u32) -> Result<(), DeviceError> {
        if part.tuple.exchange == Exchange::Nccl {
            self.step(part, iteration, &self.main, part.all())?;
            return self.send_by_nccl(part, nccl, iteration, &self.main);
        }
        let [outer, inner] = part.outer_and_inner();
        // The iteration before has computed the inner tiles, and read what the outer ones now write.
        self.push.wait_for(&self.main.mark()?)?;
        self.step(part, iteration, &self.push, outer)?;
        let computed = self.push.mark()?;
        self.send_by_nccl(part, nccl, iteration, &self.push)?;
        if !inner.is_empty() {
            self.step(part, iteration, &self.main, inner)?;
        }
        // What the next inner tiles read, and the norm. The rows that come are read by the next outer tiles alone, behind them in their
        // own stream.
        self.main.wait_for(&computed)
    }

    /// Appends the exchange of the rows that an iteration has computed.
    fn send_by_nccl(
        &self,
        part: &Part,
        nccl: &Communicator,
        iteration: u32,
        stream: &Stream,
    ) -> Result<(), DeviceError> {
        let parity = (iteration as usize + 1) % 2;
        let [above, below] = self.neighbours().map(|pe| pe as usize);
        let halo = |side: usize| {
            let row = self.world.address_of(self.halo[parity][side], self.world.my_pe());
            row.ok_or_else(|| DeviceError::Refused("the heap has no address".into()))
        };
        let first = part.fields[iteration as usize % 2].address();
        let last = first + part.problem.bytes(part.rows - 1) as u64;
        // Of two ranks one is above and below the other: what it sends down it sends first, and what comes from above is received first.
        let pairs = [(last, below, halo(ABOVE)?, above), (first, above, halo(BELOW)?, below)];
        let count = part.problem.pitch() as usize;
        // SAFETY: rows of the fields and of the heap, which live until the streams were waited for; every rank has the same iterations.
        unsafe { nccl.exchange(pairs.into_iter(), count, Type::F32, stream) }.map_err(said)
    }

    /// The iterations of a run as graphs, each up to where something is due; none where they are launched one by one.
    pub fn record(&self, part: &Part) -> Result<Vec<Graph>, Failure> {
        let Tuple { exchange, iterations, .. } = part.tuple;
        let Some(nccl) = part.nccl.filter(|_| exchange == Exchange::NcclGraph) else { return Ok(Vec::new()) };
        let firsts = (1..=iterations).step_by(part.turn() as usize);
        let graphs = firsts.map(|first| {
            self.main.record(|main| {
                for iteration in first..(first + part.turn()).min(iterations + 1) {
                    self.step_by_nccl(part, nccl, iteration)?;
                }
                // The rows that came last.
                main.wait_for(&self.push.mark()?)
            })
        });
        Ok(graphs.collect::<Result<Vec<Graph>, DeviceError>>()?)
    }
}

fn said(error: NcclError) -> DeviceError {
    DeviceError::Driver { call: "NCCL's exchange of rows".into(), text: error.to_string() }
}
