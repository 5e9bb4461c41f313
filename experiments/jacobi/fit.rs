//! Partition of a field: tiles of the launched kernel, blocks of the resident one.

use super::args::{Grid, SyncBy, Tuple};
use super::problem::Problem;
use super::resident::{Resident, kernel};
use super::session::FEW_REGISTERS;
use crate::error::Failure;
use ginlab::cuda::{Device, Function};
use kernels::jacobi::launched::{StepArgs, tiles};
use kernels::jacobi::resident::{LEAST_ROWS, MOST_COLUMNS, shared_bytes};

/// Number of rows per tile, which equals the number of rows that a thread can load at the same time with 64 registers.
const STRIP: u32 = 6;
/// Number of rows per tile if there are enough tiles. The fixed cost of a block before its first and after its last
/// rows is amortized over three times as many rows.
const LONG_STRIP: u32 = 3 * STRIP;
/// Number of tiles that are considered enough: four times as many as are resident on an H200.
const TILES: u32 = 4 * 4 * 132;

/// Returns the rows per tile and the number of blocks for `rows` rows of a field.
pub fn launched(tuple: &Tuple, strip: u32, rows: u32) -> (u32, u32) {
    let (across, _) = tiles(tuple.problem().pitch(), rows, tuple.block, 1);
    let strip = match strip {
        0 if across * rows.div_ceil(LONG_STRIP) >= TILES => LONG_STRIP,
        0 => STRIP,
        strip => strip,
    };
    let tiles = across * rows.div_ceil(strip);
    match tuple.grid {
        Grid::Auto => (strip, tiles),
        Grid::Blocks(blocks) => (strip, blocks.min(tiles)),
    }
}

/// Returns the reason why blocks of the launched kernel cannot wait for neighbours here; `None` if they can. If PEs
/// share a GPU, waiting blocks must leave space for the blocks that they wait for.
pub fn waiting(
    device: &Device,
    step: &Function<StepArgs>,
    tuple: &Tuple,
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
    tuple: &Tuple,
    ranks: u32,
    by_rails: bool,
) -> Result<Result<Resident, String>, Failure> {
    let problem = tuple.problem();
    let no = |why: String| Ok(Err(format!("resident: {why}")));
    if problem.pitch() > MOST_COLUMNS {
        return no(format!("{} columns: a row of a block has at most {MOST_COLUMNS} columns", problem.nx));
    }
    let block = problem.threads();
    let most = device.most_shared_memory()?;
    let blocks_at_once = |shared_bytes: u32| {
        let function = device.function(&kernel(by_rails), FEW_REGISTERS)?.with_shared_memory(shared_bytes)?;
        device.resident_blocks_of(&function, block)
    };
    let processors = blocks_at_once(most)?;
    let most_rows = (LEAST_ROWS..).find(|rows| shared_bytes(rows + 1, block) > most).unwrap_or(LEAST_ROWS);
    // The first rank has the most rows, the last one the fewest.
    let rows = problem.rows(0, ranks).len() as u32;
    let least = problem.rows(ranks - 1, ranks).len() as u32;
    if least < LEAST_ROWS {
        return no(format!("{least} rows of a rank: a block requires at least {LEAST_ROWS} rows"));
    }
    let grid = match tuple.grid {
        Grid::Auto => rows.div_ceil(rows.div_ceil(processors.max(1)).max(LEAST_ROWS)).min(least / LEAST_ROWS),
        Grid::Blocks(blocks) => blocks,
    };
    let of_block = rows.div_ceil(grid);
    if of_block > most_rows {
        let largest = u64::from(most_rows) * u64::from(processors) * u64::from(ranks);
        let Problem { nx, ny } = problem;
        return no(format!(
            "{nx} x {ny} does not fit on the chips of {ranks} devices in {grid} blocks each: the maximum for {nx} \
             columns is {largest} rows"
        ));
    }
    if least / grid < LEAST_ROWS {
        let blocks = least / LEAST_ROWS;
        return no(format!(
            "{grid} blocks for {least} rows of a rank: a block requires at least {LEAST_ROWS} rows, so that at most \
             {blocks} blocks are possible"
        ));
    }
    let shared_bytes = shared_bytes(of_block, block);
    let at_once = blocks_at_once(shared_bytes)?;
    if grid > at_once {
        return no(format!("{grid} blocks wait for each other, but at most {at_once} are resident on the device"));
    }
    Ok(Ok(Resident { grid, block, shared_bytes, by_rails }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::args::{Exchange, Norm, When};
    use super::*;
    use ginlab::gin::Path;

    fn tuple(nx: u32, ny: u32, grid: Grid) -> Tuple {
        Tuple {
            exchange: Exchange::Resident,
            norm: Norm::Block,
            when: When::Delayed,
            sync: SyncBy::Neighbours,
            path: Path::Auto,
            nx,
            ny,
            iterations: 10,
            grid,
            block: 0,
        }
    }

    #[test]
    fn oversized_field_is_rejected_with_maximum() {
        let why = |nx, ny, grid| resident(&Device::Emulated, &tuple(nx, ny, grid), 2, false).unwrap().unwrap_err();
        let text = why(4096, 8192, Grid::Auto);
        assert!(text.contains("4096 x 8192 does not fit on the chips of 2 devices"), "{text}");
        let largest: u32 = text.split_whitespace().rev().nth(1).unwrap().parse().unwrap();
        assert!((4096..8192).contains(&largest), "{text}");
        let fits = resident(&Device::Emulated, &tuple(4096, largest, Grid::Auto), 2, false).unwrap().unwrap();
        assert_eq!((fits.grid, fits.block), (132, 1024));
        assert!(why(4096, largest + 1, Grid::Auto).contains(&format!("is {largest} rows")));
        assert!(why(4100, 64, Grid::Auto).contains("at most 4096 columns"));
        assert!(why(64, 64, Grid::Blocks(9)).contains("at most 8 blocks"));
        assert!(why(64, 7, Grid::Auto).contains("3 rows of a rank"));
    }

    #[test]
    fn fields_of_page_have_documented_layout() {
        let fits = |n| resident(&Device::Emulated, &tuple(n, n, Grid::Auto), 2, false).unwrap().unwrap();
        assert_eq!((fits(1024).grid, fits(1024).block), (128, 256));
        assert_eq!((fits(4096).grid, fits(4096).block), (128, 1024));
        let launched = |n: u32| launched(&Tuple { block: 256, ..tuple(n, n, Grid::Auto) }, 0, n / 2);
        assert_eq!([launched(1024), launched(4096), launched(16384)], [(6, 86), (6, 1368), (18, 7296)]);
    }

    #[test]
    fn queried_kernel_matches_launched_kernel() {
        for (by_rails, name) in [(false, "jacobi_resident"), (true, "jacobi_resident_rails")] {
            let resident = resident(&Device::Emulated, &tuple(64, 64, Grid::Auto), 2, by_rails).unwrap().unwrap();
            assert_eq!((resident.kernel().name(), kernel(by_rails).name()), (name, name));
        }
    }
}
