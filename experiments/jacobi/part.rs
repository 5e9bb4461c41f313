//! A part of a field on this device, how it is run, and what a run has shown.

use super::args::{Exchange, Norm, SyncBy, Tuple, When};
use super::problem::Problem;
use ginlab::cuda::Buffer;
use ginlab::nccl::Communicator;
use kernels::jacobi::launched::tiles;
use kernels::jacobi::{EXCHANGE_BLOCK, EXCHANGE_HOST, EXCHANGE_NONE, EXCHANGE_P, EXCHANGE_ROW};
use std::ops::Range;

/// Norms that the CPU gets at a time where nobody waits for them: an event and a grid for each iteration would stand between its grids.
pub const DELAYED_NORMS: u32 = 8;

/// A part of a field on this device, and how it is run.
pub struct Part<'a> {
    pub tuple: Tuple,
    pub problem: Problem,
    /// Whether it is the whole field, and not joined to other PEs' parts.
    pub alone: bool,
    pub traced: bool,
    /// Rows here.
    pub rows: u32,
    /// The field, and where the next one goes.
    pub fields: [&'a Buffer; 2],
    pub grid: u32,
    /// Rows of a tile.
    pub strip: u32,
    /// Where NCCL joins it.
    pub nccl: Option<&'a Communicator>,
}

/// What a run has shown.
pub struct Ran {
    /// Microseconds of one iteration.
    pub each_us: f64,
    /// Which of the fields holds the last values.
    pub last: usize,
    /// Norm of the last iteration.
    pub norm: Option<f64>,
}

impl Exchange {
    /// As the kernels count them; nothing where others than the launched kernel send the rows.
    pub fn number(self) -> u32 {
        match self {
            Exchange::HostWrite => EXCHANGE_HOST,
            Exchange::P => EXCHANGE_P,
            Exchange::Block => EXCHANGE_BLOCK,
            Exchange::Row => EXCHANGE_ROW,
            Exchange::Resident | Exchange::Nccl | Exchange::NcclOverlap | Exchange::NcclGraph => EXCHANGE_NONE,
        }
    }
}

impl Part<'_> {
    /// Tiles beside each other, and all.
    pub fn tiles(&self) -> (u32, u32) {
        let (across, strips) = tiles(self.problem.pitch(), self.rows, self.tuple.block, self.strip);
        (across, across * strips)
    }

    /// All tiles.
    pub fn all(&self) -> Range<u32> {
        0..self.tiles().1
    }

    /// Those of the first and the last rows, and those between.
    pub fn outer_and_inner(&self) -> [Range<u32>; 2] {
        let (across, all) = self.tiles();
        let outer = all.min(2 * across);
        [0..outer, outer..all]
    }

    /// What an iteration adds to a signal.
    pub fn each(&self) -> u64 {
        match self.tuple.exchange {
            Exchange::P | Exchange::Block => u64::from(self.tiles().0),
            _ => 1,
        }
    }

    /// Whether neighbours tell one another by signals that their rows are there.
    pub fn by_signals(&self) -> bool {
        !self.alone && self.tuple.sync == SyncBy::Neighbours && !self.tuple.exchange.by_nccl()
    }

    /// Iterations behind which something is due: of norms that are delayed, some at a time.
    pub fn turn(&self) -> u32 {
        match self.tuple.when {
            _ if self.tuple.norm == Norm::Never => DELAYED_NORMS,
            When::Now => 1,
            When::Delayed => DELAYED_NORMS,
            When::Every(count) => count,
        }
        .min(self.tuple.iterations)
    }

    /// How many norms the CPU is told behind this iteration, counted from 1.
    pub fn norms_due(&self, iteration: u32) -> u32 {
        let turn = self.turn();
        if self.tuple.norm == Norm::Never || !(iteration.is_multiple_of(turn) || iteration == self.tuple.iterations) {
            return 0;
        }
        match self.tuple.when {
            When::Delayed => (iteration - 1) % turn + 1,
            _ => 1,
        }
    }
}
