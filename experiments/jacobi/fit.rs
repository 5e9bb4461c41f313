//! Partition of a field: tiles of the launched kernel, blocks of the resident one.

use super::args::{BlockCount, JacobiConfig, SyncBy};
use super::problem::LaplaceProblem;
use super::resident::{MOST_ACROSS, Resident, SplitRows, kernel, pieces_kernel};
use super::session::FEW_REGISTERS;
use crate::error::Failure;
use ginlab::cuda::{Device, Function};
use kernels::jacobi::launched::{StepArgs, tiles};
use kernels::jacobi::pieces::{self, MOST_COLUMNS_OF_PIECE};
use kernels::jacobi::resident::{LEAST_ROWS, MOST_COLUMNS, shared_bytes};

/// Number of rows per tile, which equals the number of rows that a thread can load at the same time with 64 registers.
const STRIP: u32 = 6;
/// Number of rows per tile if there are enough tiles. The fixed cost of a block before its first and after its last
/// rows is amortized over three times as many rows.
const LONG_STRIP: u32 = 3 * STRIP;
/// Number of tiles that are considered enough: four times as many as are resident on an H200.
const TILES: u32 = 4 * 4 * 132;

/// Returns the rows per tile and the number of blocks for `rows` rows of a field.
pub fn launched(tuple: &JacobiConfig, strip: u32, rows: u32) -> (u32, u32) {
    let (across, _) = tiles(tuple.problem().pitch(), rows, tuple.block, 1);
    let strip = match strip {
        0 if across * rows.div_ceil(LONG_STRIP) >= TILES => LONG_STRIP,
        0 => STRIP,
        strip => strip,
    };
    let tiles = across * rows.div_ceil(strip);
    match tuple.grid {
        BlockCount::Auto => (strip, tiles),
        BlockCount::Blocks(blocks) => (strip, blocks.min(tiles)),
    }
}

/// Returns the reason why blocks of the launched kernel cannot wait for neighbours here; `None` if they can. If PEs
/// share a GPU, waiting blocks must leave space for the blocks that they wait for.
pub fn waiting(
    device: &Device,
    step: &Function<StepArgs>,
    tuple: &JacobiConfig,
    rows: u32,
) -> Result<Option<String>, Failure> {
    if device.sharers() < 2 || tuple.sync != SyncBy::Neighbours || tuple.block == 0 {
        return Ok(None);
    }
    // Tiles in the first and last row of tiles.
    let outer = 2 * tiles(tuple.problem().pitch(), rows, tuple.block, STRIP).0;
    let waiting = launched(tuple, 0, rows).1.min(outer);
    let most = device.resident_blocks_of(step, tuple.block)?;
    Ok((waiting >= most).then(|| {
        format!(
            "{waiting} blocks wait for neighbours, and for each of the {} PEs on the GPU only {most} blocks of {} \
             threads are resident: try a smaller --nx, or --sync barrier",
            device.sharers(),
            tuple.block
        )
    }))
}

/// Returns the resident grid for the parts of a field, whose neighbours are reached over rails if `by_rails`. The inner
/// error is the reason why the field does not fit.
pub fn resident(
    device: &Device,
    tuple: &JacobiConfig,
    ranks: u32,
    by_rails: bool,
) -> Result<Result<Resident, String>, Failure> {
    let problem = tuple.problem();
    // The first rank has the most rows, the last one the fewest.
    let rows = [0, ranks - 1].map(|rank| problem.rows(rank, ranks).len() as u32);
    if rows[1] == 0 {
        return Ok(Err(format!("resident: {} rows are too few for {ranks} ranks", problem.ny)));
    }
    let blocks = if let BlockCount::Blocks(blocks) = tuple.grid { blocks } else { 1 };
    let place = Place { device, tuple, ranks, by_rails, rows, most: device.most_shared_memory()? };
    let is_whole = problem.pitch() <= tuple.piece.min(MOST_COLUMNS) && rows[1] / blocks >= LEAST_ROWS;
    let found = if is_whole { place.whole_rows()? } else { place.pieces()? };
    Ok(match found {
        Ok(resident) if resident.grid > place.at_once(&resident, resident.shared_bytes)? => Err(format!(
            "resident: {} blocks wait for each other, but at most {} are resident on the device",
            resident.grid,
            place.at_once(&resident, resident.shared_bytes)?
        )),
        found => found.map_err(|why| format!("resident: {why}")),
    })
}

/// The device and the field for which a resident grid is chosen.
struct Place<'a> {
    device: &'a Device,
    tuple: &'a JacobiConfig,
    ranks: u32,
    by_rails: bool,
    /// Rows of the rank with the most rows, and of the one with the fewest.
    rows: [u32; 2],
    /// Maximum shared memory of a block.
    most: u32,
}

impl Place<'_> {
    /// Returns the number of blocks that are resident on the device.
    fn at_once(&self, resident: &Resident, shared_bytes: u32) -> Result<u32, Failure> {
        Ok(match resident.pieces {
            Some(_) => {
                let function = self.device.function(&pieces_kernel(self.by_rails), FEW_REGISTERS)?;
                self.device.resident_blocks_of(&function.with_shared_memory(shared_bytes)?, resident.block)?
            }
            None => {
                let function = self.device.function(&kernel(self.by_rails), FEW_REGISTERS)?;
                self.device.resident_blocks_of(&function.with_shared_memory(shared_bytes)?, resident.block)?
            }
        })
    }

    fn too_large(&self, blocks: u32, most_rows: u64) -> String {
        let LaplaceProblem { nx, ny } = self.tuple.problem();
        format!(
            "{nx} x {ny} does not fit on the chips of {} devices in {blocks} blocks each: the maximum for {nx} columns \
             is {most_rows} rows",
            self.ranks
        )
    }

    /// Returns a grid whose blocks have whole rows, at least [`LEAST_ROWS`].
    fn whole_rows(&self) -> Result<Result<Resident, String>, Failure> {
        let (block, [rows, least]) = (self.tuple.problem().threads(), self.rows);
        let mut found = Resident { grid: 1, block, shared_bytes: self.most, by_rails: self.by_rails, pieces: None };
        let processors = self.at_once(&found, self.most)?;
        found.grid = match self.tuple.grid {
            BlockCount::Auto => rows.div_ceil(rows.div_ceil(processors.max(1)).max(LEAST_ROWS)).min(least / LEAST_ROWS),
            BlockCount::Blocks(blocks) => blocks,
        };
        let most_rows = (LEAST_ROWS..).find(|rows| shared_bytes(rows + 1, block) > self.most).unwrap_or(LEAST_ROWS);
        let of_block = rows.div_ceil(found.grid);
        if of_block > most_rows {
            let largest = u64::from(most_rows) * u64::from(processors) * u64::from(self.ranks);
            return Ok(Err(self.too_large(found.grid, largest)));
        }
        found.shared_bytes = shared_bytes(of_block, block);
        Ok(Ok(found))
    }

    /// Returns a grid whose blocks have some columns of some rows: the one with the fewest blocks in a row that fits.
    fn pieces(&self) -> Result<Result<Resident, String>, Failure> {
        let (quads, [rows, least]) = (self.tuple.problem().pitch() / 4, self.rows);
        let most_threads = self.tuple.piece.min(MOST_COLUMNS_OF_PIECE) / 4;
        let made = |block, across, most_rows, grid| Resident {
            grid,
            block,
            shared_bytes: pieces::shared_bytes(most_rows, block),
            by_rails: self.by_rails,
            pieces: Some(SplitRows { across, most_rows }),
        };
        let processors = self.at_once(&made(most_threads, 1, 1, 1), self.most)?.min(MOST_ACROSS);
        let first = quads.div_ceil(most_threads);
        let mut largest = 0;
        for across in first..=processors {
            let block = quads.div_ceil(across).next_multiple_of(32);
            if (across - 1) * block >= quads {
                // The last block would have no columns.
                continue;
            }
            let down = match self.tuple.grid {
                BlockCount::Auto => rows.div_ceil(rows.div_ceil(processors / across)).min(least),
                BlockCount::Blocks(blocks) if blocks.is_multiple_of(across) && blocks / across <= least => {
                    blocks / across
                }
                BlockCount::Blocks(_) => continue,
            };
            let most_rows = (1..).find(|rows| pieces::shared_bytes(rows + 1, block) > self.most).unwrap_or(1);
            let of_block = rows.div_ceil(down);
            if of_block <= most_rows {
                return Ok(Ok(made(block, across, of_block, across * down)));
            }
            largest = largest.max(u64::from(most_rows) * u64::from(processors / across) * u64::from(self.ranks));
        }
        let LaplaceProblem { nx, .. } = self.tuple.problem();
        Ok(Err(match self.tuple.grid {
            BlockCount::Blocks(blocks) if largest > 0 => self.too_large(blocks, largest),
            BlockCount::Auto if largest > 0 => self.too_large(processors, largest),
            BlockCount::Blocks(blocks) if first <= processors => format!(
                "{blocks} blocks for {least} rows of a rank: {nx} columns require a multiple of {first} blocks, up to \
                 {}",
                u64::from(first) * u64::from(least)
            ),
            _ => format!(
                "{nx} columns do not fit: the maximum of {processors} blocks of {} columns is {} columns",
                most_threads * 4,
                processors * most_threads * 4
            ),
        }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::args::{HaloExchange, Norm, When};
    use super::*;
    use ginlab::gin::PePath;

    fn tuple(nx: u32, ny: u32, grid: BlockCount) -> JacobiConfig {
        JacobiConfig {
            exchange: HaloExchange::Resident,
            norm: Norm::Block,
            when: When::Delayed,
            sync: SyncBy::Neighbours,
            path: PePath::Auto,
            nx,
            ny,
            iterations: 10,
            grid,
            block: 0,
            piece: MOST_COLUMNS,
        }
    }

    #[test]
    fn oversized_field_is_rejected_with_maximum() {
        let why = |nx, ny, grid| resident(&Device::Emulated, &tuple(nx, ny, grid), 2, false).unwrap().unwrap_err();
        let text = why(4096, 8192, BlockCount::Auto);
        assert!(text.contains("4096 x 8192 does not fit on the chips of 2 devices"), "{text}");
        let largest: u32 = text.split_whitespace().rev().nth(1).unwrap().parse().unwrap();
        assert!((4096..8192).contains(&largest), "{text}");
        let fits = resident(&Device::Emulated, &tuple(4096, largest, BlockCount::Auto), 2, false).unwrap().unwrap();
        assert_eq!((fits.grid, fits.block), (132, 1024));
        assert!(why(4096, largest + 1, BlockCount::Auto).contains(&format!("is {largest} rows")));
        assert!(why(64, 64, BlockCount::Blocks(33)).contains("a multiple of 1 blocks, up to 32"));
        assert!(why(8000, 64, BlockCount::Blocks(2)).contains("a multiple of 3 blocks, up to 96"));
        assert!(why(1 << 20, 64, BlockCount::Auto).contains("columns is"), "{}", why(1 << 20, 64, BlockCount::Auto));
    }

    #[test]
    fn rows_are_split_over_blocks_only_if_required() {
        let fits = |nx, ny, piece| {
            let tuple = JacobiConfig { piece, ..tuple(nx, ny, BlockCount::Auto) };
            let found = resident(&Device::Emulated, &tuple, 2, false).unwrap().unwrap();
            (found.pieces.map(|pieces| pieces.across), found.grid, found.block)
        };
        assert_eq!(fits(4096, 64, 4096), (None, 8, 1024));
        assert_eq!(fits(4097, 64, 4096), (Some(2), 64, 544));
        assert_eq!(fits(16384, 64, 4096), (Some(5), 80, 832));
        // Few rows, and pieces of one column.
        assert_eq!(fits(64, 7, 4096), (Some(1), 3, 32));
        assert_eq!(fits(129, 8, 128), (Some(2), 8, 32));
    }

    #[test]
    fn largest_wide_field_fits() {
        for nx in [4097, 5000, 16384, 20_001, 65_536] {
            let at = |ny| resident(&Device::Emulated, &tuple(nx, ny, BlockCount::Auto), 3, false).unwrap();
            let why = at(1 << 20).unwrap_err();
            let largest: u32 = why.split_whitespace().rev().nth(1).unwrap().parse().unwrap();
            assert!(at(largest).is_ok() && at(largest + 1).is_err(), "{why}");
        }
    }

    #[test]
    fn fields_of_page_have_documented_layout() {
        let fits = |n| resident(&Device::Emulated, &tuple(n, n, BlockCount::Auto), 2, false).unwrap().unwrap();
        assert_eq!((fits(1024).grid, fits(1024).block), (128, 256));
        assert_eq!((fits(4096).grid, fits(4096).block), (128, 1024));
        let launched = |n: u32| launched(&JacobiConfig { block: 256, ..tuple(n, n, BlockCount::Auto) }, 0, n / 2);
        assert_eq!([launched(1024), launched(4096), launched(16384)], [(6, 86), (6, 1368), (18, 7296)]);
    }

    #[test]
    fn queried_kernel_matches_launched_kernel() {
        for (by_rails, name) in [(false, "jacobi_resident"), (true, "jacobi_resident_rails")] {
            let resident = resident(&Device::Emulated, &tuple(64, 64, BlockCount::Auto), 2, by_rails).unwrap().unwrap();
            assert_eq!(kernel(resident.by_rails).name(), name);
        }
    }
}
