//! A part of a field on this device, the parameters of its run, and the results of a run.

use super::args::{HaloExchange, JacobiConfig, Norm, SyncBy, When};
use super::problem::LaplaceProblem;
use crate::nccl_baseline::Communicator;
use kernels::jacobi::launched::tiles;
use kernels::jacobi::{EXCHANGE_BLOCK, EXCHANGE_HOST, EXCHANGE_NONE, EXCHANGE_P, EXCHANGE_ROW};
use std::ops::Range;

/// Number of delayed norms that the CPU receives at a time. An event and a grid per iteration would separate the
/// stencil's grids.
pub const DELAYED_NORMS: u32 = 8;

/// A part of a field on this device, and the parameters of its run.
pub struct FieldPart<'a> {
    pub tuple: JacobiConfig,
    pub problem: LaplaceProblem,
    /// Whether this is the whole field, without exchange with other PEs.
    pub alone: bool,
    pub traced: bool,
    /// Whether rows that neighbours send overwrite poison, so that the exchange can be verified.
    pub poisoned: bool,
    /// Number of rows on this device.
    pub rows: u32,
    /// Addresses of the current field and of the next one, which alternate.
    pub fields: [u64; 2],
    /// Addresses of received rows outside of the heap, by parity and side.
    pub received: Option<[[u64; 2]; 2]>,
    pub grid: u32,
    /// Rows per tile.
    pub strip: u32,
    /// NCCL, if it exchanges the rows.
    pub nccl: Option<&'a Communicator>,
}

/// Results of a run.
pub struct PartResult {
    /// Microseconds per iteration.
    pub each_us: f64,
    /// Index of the field that holds the last values.
    pub last: usize,
    /// Norm of the last iteration.
    pub norm: Option<f64>,
}

impl HaloExchange {
    /// Returns the number of the exchange in kernels, or `EXCHANGE_NONE` if the launched kernel does not send the rows.
    pub fn number(self) -> u32 {
        match self {
            HaloExchange::HostWrite => EXCHANGE_HOST,
            HaloExchange::P => EXCHANGE_P,
            HaloExchange::Block => EXCHANGE_BLOCK,
            HaloExchange::Row => EXCHANGE_ROW,
            HaloExchange::Resident
            | HaloExchange::Nccl
            | HaloExchange::NcclOverlap
            | HaloExchange::NcclGraph
            | HaloExchange::NcclWindow => EXCHANGE_NONE,
        }
    }
}

impl FieldPart<'_> {
    /// Returns the number of tiles across, and of all tiles.
    pub fn tiles(&self) -> (u32, u32) {
        let (across, strips) = tiles(self.problem.pitch(), self.rows, self.tuple.block, self.strip);
        (across, across * strips)
    }

    /// Returns all tiles.
    pub fn all(&self) -> Range<u32> {
        0..self.tiles().1
    }

    /// Returns the tiles of the first and last rows of tiles, and the tiles in between.
    pub fn outer_and_inner(&self) -> [Range<u32>; 2] {
        let (across, all) = self.tiles();
        let outer = all.min(2 * across);
        [0..outer, outer..all]
    }

    /// Returns the number that an iteration adds to a signal.
    pub fn each(&self) -> u64 {
        match self.tuple.exchange {
            HaloExchange::P | HaloExchange::Block => u64::from(self.tiles().0),
            _ => 1,
        }
    }

    /// Returns whether neighbours notify each other by signals that rows have arrived.
    pub fn by_signals(&self) -> bool {
        !self.alone && self.tuple.sync == SyncBy::Neighbours && !self.tuple.exchange.by_nccl()
    }

    /// Returns the number of iterations after which norms are due. With delayed norms, several are due at a time.
    pub fn turn(&self) -> u32 {
        match self.tuple.when {
            _ if self.tuple.norm == Norm::Never => DELAYED_NORMS,
            When::Now => 1,
            When::Delayed => DELAYED_NORMS,
            When::Every(count) => count,
        }
        .min(self.tuple.iterations)
    }

    /// Returns the number of norms that the CPU receives after this iteration. Iterations are counted from 1.
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
