//! What a run has left: the field, held against that of one device, the norm, and a trace.

use super::args::{Exchange, Norm, Tuple};
use super::part::Ran;
use super::rank::Jacobi;
use crate::error::Failure;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::Buffer;
use kernels::jacobi::{TRACE_BEGAN, TRACE_ENDED, TRACE_SENT, TRACE_WAITED, TRACE_WORDS};

/// How far the norms of two runs may lie apart: their sums are made in other orders.
const NORM_TOLERANCE: f64 = 1e-4;
impl Jacobi {
    /// Points of this rank's rows that differ in a bit from those of one device, and one more for a norm that is off.
    pub fn wrong(&self, tuple: &Tuple, ran: &Ran) -> Result<u64, Failure> {
        let (problem, world) = (tuple.problem(), &self.session()?.world);
        let mine = problem.rows(world.my_pe(), world.n_pes());
        let (fields, alone) = (self.fields()?, self.alone.as_ref());
        let Some(alone) = alone else { return Err(Failure::Run("nothing to hold the field against".into())) };
        let found = self.read(&fields.part[ran.last], 0, mine.len() as u32)?;
        let expected = self.read(&fields.whole[alone.ran.last], mine.start, mine.len() as u32)?;
        let norms = (ran.norm, alone.ran.norm);
        // Floats to which all points are added one by one stop growing: that is part of the artefact.
        let off = tuple.norm == Norm::Block && matches!(norms, (Some(one), Some(other)) if far(one, other));
        Ok(problem.wrong(&found, &expected) + u64::from(off) + alone.wrong.unwrap_or(0))
    }

    pub fn read(&self, buffer: &Buffer, first: u32, rows: u32) -> Result<Vec<f32>, Failure> {
        let problem = self.fields()?.problem;
        let mut values = vec![0.0f32; problem.bytes(rows) / 4];
        buffer.read(problem.bytes(first), &mut values)?;
        Ok(values)
    }

    /// A run that notes when blocks begin, wait, send and end: mean microseconds of an iteration in the kernel, of its longest wait for
    /// rows, and of the longest time to send them.
    pub fn trace(&mut self, tuple: &Tuple, ranks: &mut Bootstrap) -> Result<[Option<f64>; 3], Failure> {
        self.run(tuple, true, ranks)?;
        let iterations = tuple.iterations as usize;
        let mut words = vec![0u64; (iterations + 1) * TRACE_WORDS];
        self.session()?.trace.read(0, &mut words)?;
        let of = |value: &dyn Fn(&[u64]) -> u64| {
            let all = words.chunks(TRACE_WORDS).skip(1).map(value);
            all.map(|nanoseconds| nanoseconds as f64 / 1000.0).sum::<f64>() / iterations as f64
        };
        let waited = Some(of(&|words| words[TRACE_WAITED]));
        if tuple.exchange == Exchange::Resident {
            return Ok([None, waited, None]);
        }
        let kernel = of(&|words| words[TRACE_ENDED].saturating_sub(!words[TRACE_BEGAN]));
        Ok([Some(kernel), waited, Some(of(&|words| words[TRACE_SENT]))])
    }
}

/// Whether two norms are further apart than orders of addition explain.
pub fn far(one: f64, other: f64) -> bool {
    (one - other).abs() > NORM_TOLERANCE * one.abs().max(other.abs())
}
