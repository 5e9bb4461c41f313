//! Random shapes of `ginlab proxy`: size, alignments, rails, window, blocks and waits.

use super::args::{ProxyArgs, ProxyConfig};
use super::mode::ProxyMode;
use super::run::ProxyCase;
use crate::random::{RandomArgs, SeededChoices};
use ginlab::report::each_once;

/// Largest grid.
const BLOCKS: u64 = 8;
/// Largest window. A shape has at most [`DrawnPuts::LIMIT`] bytes of slots.
const WINDOW: u64 = 64;
/// Number of alignments that regions are registered for: the remainders of an address by 16.
pub const ALIGNMENTS: u32 = 16;

/// Parameters of a random shape in addition to those of every parameter combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrawnPuts {
    pub mode: ProxyMode,
    pub window: u32,
    /// Remainders by 16 of the addresses of targets and sources.
    pub to_at: u32,
    pub from_at: u32,
}

impl DrawnPuts {
    /// Maximum bytes of all slots.
    const LIMIT: u64 = 256 << 20;

    /// Returns the CPU-initiated writes that wait as the kernel does.
    pub fn baseline(&self, grid: u32) -> ProxyCase {
        match self.mode.quiet_every() {
            0 => ProxyCase::CpuWrite,
            puts => ProxyCase::CpuBatch(puts * grid),
        }
    }
}

/// Returns the random shapes that the options select, or `None` without `--random`.
pub fn tuples(args: &ProxyArgs) -> Option<Vec<ProxyConfig>> {
    let random = RandomArgs { random: args.random, seed: args.seed.unwrap_or(1) };
    Some(each_once(random.generators()?.map(|random| shape(args, random))))
}

fn shape(args: &ProxyArgs, mut random: SeededChoices) -> ProxyConfig {
    let grid = random.from(1, BLOCKS);
    let bytes = random.size_within(args.sizes.begin, args.sizes.end);
    let window = random.from(1, WINDOW).min((DrawnPuts::LIMIT / (grid * bytes)).max(1)) as u32;
    let mode = match random.from(0, 2) {
        0 => ProxyMode::Quiet,
        1 => ProxyMode::QuietEvery(random.from(1, window.into()) as u32),
        _ => ProxyMode::Nbi,
    };
    ProxyConfig {
        bytes,
        rails: random.from(1, args.most_rails() as u64) as usize,
        strategy: random.one(&args.strategy),
        grid: grid as u32,
        block: 32 * random.from(1, 8) as u32,
        drawn: Some(DrawnPuts { mode, window, to_at: random.from(0, 15) as u32, from_at: random.from(0, 15) as u32 }),
    }
}

/// Returns the description of a shape for the list of the lowest ratios.
pub fn told(tuple: &ProxyConfig, drawn: &DrawnPuts) -> String {
    let ProxyConfig { bytes, rails, grid, block, .. } = tuple;
    let DrawnPuts { mode, window, to_at, from_at } = drawn;
    format!("{mode} {bytes} B, {rails} rails, {grid} x {block}, window {window}, alignment {to_at}/{from_at}")
}
