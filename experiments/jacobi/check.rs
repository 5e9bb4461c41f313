//! Results of a run: comparison of field and norm with those of a run on one device, and a trace.

use super::args::{HaloExchange, JacobiConfig, Norm, When};
use super::part::PartResult;
use super::rank::{How, Jacobi};
use super::run::POISON;
use crate::error::Failure;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::Buffer;
use kernels::jacobi::{ABOVE, BELOW, TRACE_BEGAN, TRACE_ENDED, TRACE_SENT, TRACE_WAITED, TRACE_WORDS};

/// Maximum relative difference of the norms of two runs, whose sums are computed in different orders.
const NORM_TOLERANCE: f64 = 1e-4;
/// Number of runs whose exchanged rows are verified.
const VERIFIED_RUNS: u32 = 4;

impl Jacobi {
    /// Runs single iterations into poisoned rows. Returns the number of points in neighbours' rows that differ from the
    /// computed ones, or `None` if there is nothing to verify.
    pub fn wrong_rows(&mut self, tuple: &JacobiConfig, ranks: &mut Bootstrap) -> Result<Option<u64>, Failure> {
        if self.args.repeat.no_check || tuple.exchange.by_nccl() || ranks.size() < 2 {
            return Ok(None);
        }
        let once = JacobiConfig { iterations: 1, norm: Norm::Never, when: When::Delayed, ..*tuple };
        let mut wrong = 0;
        for _ in 0..VERIFIED_RUNS {
            self.run_part(&once, How { poisoned: true, ..How::default() }, ranks)?;
            // Puts are complete when the kernels of all neighbours have ended.
            ranks.barrier("rows exchanged")?;
            wrong += self.wrong_halo(&once)?;
        }
        Ok(Some(wrong))
    }

    /// Returns the number of points in the received rows of the neighbours that differ from the first iteration's
    /// result.
    fn wrong_halo(&self, tuple: &JacobiConfig) -> Result<u64, Failure> {
        let (problem, session) = (tuple.problem(), self.session()?);
        let world = &session.world;
        let (mine, pitch) = (problem.rows(world.my_pe(), world.n_pes()), u64::from(problem.pitch()));
        let is_resident = tuple.exchange == HaloExchange::Resident;
        let mut wrong = 0;
        for (side, row) in [(ABOVE, (mine.start + problem.ny - 1) % problem.ny), (BELOW, mine.end % problem.ny)] {
            // Resident blocks of mapped neighbours exchange words, which are verified by the field.
            if is_resident && world.is_mapped(session.neighbours()[side]) {
                continue;
            }
            let found = |parity: usize| world.read(session.halo[parity][side].slice(0, pitch));
            if !is_resident {
                wrong += problem.wrong(&found(0)?, &problem.second_values(row));
                continue;
            }
            let first = (session.next_tag - tuple.iterations) as usize % 2;
            wrong += problem.wrong(&found(first)?, &problem.first_values(row));
            let next = found(1 - first)?;
            // The last iteration sends no rows.
            if next.iter().any(|value| value.to_bits() != POISON.to_bits()) {
                wrong += problem.wrong(&next, &problem.second_values(row));
            }
        }
        Ok(wrong)
    }

    /// Returns the number of points of this rank's rows that differ in any bit from those of a run on one device, plus
    /// one if the norm differs too much.
    pub fn wrong(&self, tuple: &JacobiConfig, ran: &PartResult) -> Result<u64, Failure> {
        let (problem, world) = (tuple.problem(), &self.session()?.world);
        let mine = problem.rows(world.my_pe(), world.n_pes());
        let (fields, alone) = (self.fields()?, self.alone.as_ref());
        let Some(alone) = alone else { return Err(Failure::Run("no reference for the field".into())) };
        let found = self.read(&fields.part[ran.last], 0, mine.len() as u32)?;
        let expected = self.read(&fields.whole[alone.ran.last], mine.start, mine.len() as u32)?;
        let norms = (ran.norm, alone.ran.norm);
        // With `thread-atomic`, a float to which all points are added one by one stops growing; such norms are not
        // compared.
        let off = tuple.norm == Norm::Block && matches!(norms, (Some(one), Some(other)) if far(one, other));
        Ok(problem.wrong(&found, &expected) + u64::from(off) + alone.wrong.unwrap_or(0))
    }

    pub fn read(&self, buffer: &Buffer, first: u32, rows: u32) -> Result<Vec<f32>, Failure> {
        let problem = self.fields()?.problem;
        let mut values = vec![0.0f32; problem.bytes(rows) / 4];
        buffer.read(problem.bytes(first), &mut values)?;
        Ok(values)
    }

    /// Runs the parameter combination with a trace of the times at which blocks start, wait, send and end. Returns
    /// means per iteration, in microseconds: time in the kernel, the longest wait for rows, and the longest time to
    /// send them.
    pub fn trace(&mut self, tuple: &JacobiConfig, ranks: &mut Bootstrap) -> Result<[Option<f64>; 3], Failure> {
        self.run(tuple, true, ranks)?;
        let iterations = tuple.iterations as usize;
        let mut words = vec![0u64; (iterations + 1) * TRACE_WORDS];
        self.session()?.trace.read(0, &mut words)?;
        let of = |value: &dyn Fn(&[u64]) -> u64| {
            let all = words.chunks(TRACE_WORDS).skip(1).map(value);
            all.map(|nanoseconds| nanoseconds as f64 / 1000.0).sum::<f64>() / iterations as f64
        };
        let waited = Some(of(&|words| words[TRACE_WAITED]));
        if tuple.exchange == HaloExchange::Resident {
            return Ok([None, waited, None]);
        }
        let kernel = of(&|words| words[TRACE_ENDED].saturating_sub(!words[TRACE_BEGAN]));
        Ok([Some(kernel), waited, Some(of(&|words| words[TRACE_SENT]))])
    }
}

/// Returns whether the difference of two norms exceeds the effect of different orders of addition.
pub fn far(one: f64, other: f64) -> bool {
    (one - other).abs() > NORM_TOLERANCE * one.abs().max(other.abs())
}
