//! How a field is laid over a device: tiles of the launched kernel, blocks of the resident one.

use super::args::{Grid, SyncBy, Tuple};
use super::problem::Problem;
use super::resident::{Resident, kernel};
use super::session::FEW_REGISTERS;
use crate::error::Failure;
use ginlab::cuda::{Device, Function};
use kernels::jacobi::launched::{StepArgs, tiles};
use kernels::jacobi::resident::{LEAST_ROWS, MOST_COLUMNS, shared_bytes};

/// Rows of a tile: as many as a thread has under way at once in 64 registers. (A CUDA probe of the same kernel, one H200, 16384 x 8192 points,
/// blocks of 256: 2, 4 and 8 rows take 299, 262 and 257 us, and 8 rows are best at 1024 x 512, too.)
const STRIP: u32 = 6;
/// The same where there are tiles enough: what a block does before its first rows and behind its last ones is spread over three times as many.
const LONG_STRIP: u32 = 3 * STRIP;
/// Tiles enough: four times as many as are on an H200 at once.
const TILES: u32 = 4 * 4 * 132;

/// Rows of a tile and blocks of a grid, for so many rows of a field.
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

/// Why the launched kernel's blocks that wait for neighbours cannot wait here, if they cannot: where PEs share a GPU, those of all PEs must
/// leave room for the ones that they wait for.
pub fn waiting(
    device: &Device,
    step: &Function<StepArgs>,
    tuple: &Tuple,
    rows: u32,
) -> Result<Option<String>, Failure> {
    if device.sharers() < 2 || tuple.sync != SyncBy::Neighbours || tuple.block == 0 {
        return Ok(None);
    }
    // Tiles of the first and the last row of tiles.
    let outer = 2 * tiles(tuple.problem().pitch(), rows, tuple.block, STRIP).0;
    let waiting = launched(tuple, 0, rows).1.min(outer);
    let most = device.resident_blocks_of(step, tuple.block)?;
    Ok((waiting >= most).then(|| {
        format!(
            "{waiting} blocks wait for neighbours, and of a GPU that {} PEs share each has {most} blocks of {} threads at once: try a \
             smaller --nx, or --sync barrier",
            device.sharers(),
            tuple.block
        )
    }))
}

/// The resident grid for the parts of a field, whose neighbours are reached by rails or not; the reason where it does not fit.
pub fn resident(
    device: &Device,
    tuple: &Tuple,
    ranks: u32,
    by_rails: bool,
) -> Result<Result<Resident, String>, Failure> {
    let problem = tuple.problem();
    let no = |why: String| Ok(Err(format!("resident: {why}")));
    if problem.pitch() > MOST_COLUMNS {
        return no(format!("{} columns; a row of a block is at most {MOST_COLUMNS} columns", problem.nx));
    }
    let block = problem.threads();
    let most = device.most_shared_memory()?;
    let blocks_at_once = |shared_bytes: u32| {
        let function = device.function(&kernel(by_rails), FEW_REGISTERS)?.with_shared_memory(shared_bytes)?;
        device.resident_blocks_of(&function, block)
    };
    let processors = blocks_at_once(most)?;
    let most_rows = (LEAST_ROWS..).find(|rows| shared_bytes(rows + 1, block) > most).unwrap_or(LEAST_ROWS);
    // The first rank has most rows, the last one least.
    let rows = problem.rows(0, ranks).len() as u32;
    let least = problem.rows(ranks - 1, ranks).len() as u32;
    if least < LEAST_ROWS {
        return no(format!("{least} rows of a rank; a block has {LEAST_ROWS} rows or more"));
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
            "{nx} x {ny} does not fit on the chips of {ranks} devices in {grid} blocks each; the largest field of {nx} columns that \
             does has {largest} rows"
        ));
    }
    if least / grid < LEAST_ROWS {
        let blocks = least / LEAST_ROWS;
        return no(format!(
            "{grid} blocks for {least} rows of a rank; a block has {LEAST_ROWS} rows or more, so at most {blocks} blocks"
        ));
    }
    let shared_bytes = shared_bytes(of_block, block);
    let at_once = blocks_at_once(shared_bytes)?;
    if grid > at_once {
        return no(format!("{grid} blocks wait for one another, and at most {at_once} are on the device at once"));
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
    fn a_field_that_does_not_fit_is_refused_with_the_largest_that_does() {
        let why = |nx, ny, grid| resident(&Device::Emulated, &tuple(nx, ny, grid), 2, false).unwrap().unwrap_err();
        let text = why(4096, 8192, Grid::Auto);
        assert!(text.contains("4096 x 8192 does not fit on the chips of 2 devices"), "{text}");
        let largest: u32 = text.split_whitespace().rev().nth(1).unwrap().parse().unwrap();
        assert!((4096..8192).contains(&largest), "{text}");
        let fits = resident(&Device::Emulated, &tuple(4096, largest, Grid::Auto), 2, false).unwrap().unwrap();
        assert_eq!((fits.grid, fits.block), (132, 1024));
        assert!(why(4096, largest + 1, Grid::Auto).contains(&format!("has {largest} rows")));
        assert!(why(4100, 64, Grid::Auto).contains("at most 4096 columns"));
        assert!(why(64, 64, Grid::Blocks(9)).contains("at most 8 blocks"));
        assert!(why(64, 7, Grid::Auto).contains("3 rows of a rank"));
    }

    #[test]
    fn the_fields_of_the_page_lie_as_it_says() {
        let fits = |n| resident(&Device::Emulated, &tuple(n, n, Grid::Auto), 2, false).unwrap().unwrap();
        assert_eq!((fits(1024).grid, fits(1024).block), (128, 256));
        assert_eq!((fits(4096).grid, fits(4096).block), (128, 1024));
        let launched = |n: u32| launched(&Tuple { block: 256, ..tuple(n, n, Grid::Auto) }, 0, n / 2);
        assert_eq!([launched(1024), launched(4096), launched(16384)], [(6, 86), (6, 1368), (18, 7296)]);
    }

    #[test]
    fn the_kernel_that_is_asked_is_the_one_that_is_launched() {
        for (by_rails, name) in [(false, "jacobi_resident"), (true, "jacobi_resident_rails")] {
            let resident = resident(&Device::Emulated, &tuple(64, 64, Grid::Auto), 2, by_rails).unwrap().unwrap();
            assert_eq!((resident.kernel().name(), kernel(by_rails).name()), (name, name));
        }
    }
}
