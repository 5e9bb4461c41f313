//! The options, checked: what will be run, or one line that says why not.

use super::args::{Args, Direction, Grid, Pairs};
pub use super::args::{Launch, Operation};
use crate::error::Failure;
use crate::values::usage;
use ginlab::cuda::{Choice, Device};
use ginlab::measure::size;
use ginlab::mps;
use itertools::iproduct;
use std::fmt;
use std::time::Duration;

/// Bytes from one rank's GPU to another's; `from` does the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    pub from: usize,
    pub to: usize,
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}>{}", self.from, self.to)
    }
}

/// What goes on at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scene {
    pub flows: Vec<Flow>,
    pub direction: &'static str,
}

impl Scene {
    /// As the `pair` of a row about all flows.
    pub fn pair(&self) -> String {
        match (self.direction, self.flows.as_slice()) {
            ("both", [Flow { from, to }, ..]) => format!("{from}<>{to}"),
            (_, [flow]) => flow.to_string(),
            _ => "all".into(),
        }
    }
}

/// One measurement of a scene: every case of it is run in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    pub operation: Operation,
    pub bytes: u64,
    pub launch: Launch,
    pub block: u32,
    pub grid: u32,
}

/// Everything that will be run: the options, and what follows from them and from the GPUs that are here.
#[derive(Clone, Debug)]
pub struct Plan {
    pub args: Args,
    pub ranks: usize,
    pub emulated: bool,
    pub scenes: Vec<Scene>,
    pub sizes: Vec<u64>,
    pub grids: Vec<u32>,
    /// Whether the grids are a sweep of which the knee is wanted.
    pub knee: bool,
    pub timeout: Duration,
}

/// Grids of a sweep for the knee.
fn doubled(most: u32) -> Vec<u32> {
    std::iter::successors(Some(1), |grid| Some(grid * 2).filter(|grid| *grid <= most)).collect()
}

/// More ranks than this are a slip of the finger; the memory's head has room for their words.
pub const MOST_RANKS: usize = 64;
/// Largest size. Indices of words have 32 bits in the pattern.
const MOST_BYTES: u64 = 16 << 30;

impl Plan {
    /// Checks the options.
    pub fn new(args: &Args) -> Result<Plan, Failure> {
        let (emulated, ranks) = devices(args)?;
        let end = args.end.unwrap_or_else(|| args.begin.max(if emulated { 4 << 20 } else { 1 << 30 }));
        if args.begin == 0 || end > MOST_BYTES {
            return Err(usage("--begin, --end", "sizes from 1 B to 16 GiB"));
        }
        let (grids, knee) = match &args.grid {
            Some(Grid::Auto) => (doubled(if emulated { 8 } else { 256 }), true),
            Some(Grid::List(grids)) => (grids.to_vec(), false),
            None => (if emulated { vec![1, 4] } else { vec![1, 8, 32, 128] }, false),
        };
        Ok(Plan {
            args: args.clone(),
            ranks,
            emulated,
            scenes: scenes(args.pairs, ranks, &args.direction),
            sizes: size::sweep(args.begin, end, args.factor).map_err(|why| usage("--begin, --end, --factor", why))?,
            grids,
            knee,
            timeout: args.timeout,
        })
    }

    /// Launches of a repeat.
    pub fn iterations(&self, bytes: u64) -> u32 {
        let asked = self.args.iterations.unwrap_or(if self.emulated { 4 } else { 100 });
        u64::from(asked).min(self.args.volume / bytes).max(1) as u32
    }

    /// Every tuple of every scene. Those that differ in their grid alone are side by side.
    pub fn tuples(&self) -> Vec<(usize, Tuple)> {
        let Args { operation, launch, block, .. } = &self.args;
        iproduct!(0..self.scenes.len(), operation, &self.sizes, launch, block, &self.grids)
            .map(|(scene, &operation, &bytes, &launch, &block, &grid)| {
                (scene, Tuple { operation, bytes, launch, block, grid })
            })
            .collect()
    }

    /// What all ranks must have the same.
    pub fn fingerprint(&self) -> Vec<(String, String)> {
        vec![("options".into(), format!("{self:?}"))]
    }
}

/// Whether the emulated device is meant, and how many ranks.
fn devices(args: &Args) -> Result<(bool, usize), Failure> {
    // Not by CUDA: where ranks share a GPU it is initialised once they have a server.
    let seen = mps::gpu_count();
    let gpus = match args.device {
        Choice::Emulated => None,
        Choice::Auto => Some(seen).filter(|seen| *seen > 0),
        Choice::Gpu if seen > 0 => Some(seen),
        // It says why there is none.
        Choice::Gpu => return Device::open(Choice::Gpu, 0).map(|_| (false, 2)).map_err(Failure::from),
    };
    let ranks = args.np.unwrap_or(match (args.pairs, gpus) {
        (Pairs::First, _) | (_, None) => 2,
        (_, Some(gpus)) => gpus.max(2),
    });
    if !(2..=MOST_RANKS).contains(&ranks) {
        return Err(usage("--np", format!("{ranks}; from 2 to {MOST_RANKS}")));
    }
    Ok((gpus.is_none(), ranks))
}

fn scenes(pairs: Pairs, ranks: usize, directions: &[Direction]) -> Vec<Scene> {
    let every = || iproduct!(0..ranks, 0..ranks).map(|(from, to)| Flow { from, to });
    let mut scenes = Vec::new();
    if pairs == Pairs::All {
        // Each rank begins with the next one: where the streams of a rank are not equally fast, those of all ranks do not favour one GPU. Four H200: 1198
        // GB/s by 64 blocks, 1143 by the order of targets; what else keeps it below the 1423 of 44 blocks is not known.
        let flows =
            iproduct!(0..ranks, 1..ranks).map(|(from, step)| Flow { from, to: (from + step) % ranks }).collect();
        return vec![Scene { flows, direction: "all" }];
    }
    for &direction in directions {
        let both = direction == Direction::Both;
        for flow in every() {
            let wanted = if both { flow.from < flow.to } else { flow.from != flow.to };
            if !wanted || pairs == Pairs::First && flow != (Flow { from: 0, to: 1 }) {
                continue;
            }
            let back = Flow { from: flow.to, to: flow.from };
            scenes.push(match both {
                true => Scene { flows: vec![flow, back], direction: "both" },
                false => Scene { flows: vec![flow], direction: "one" },
            });
        }
    }
    scenes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenes_have_every_pair_once() {
        let pairs = |scenes: Vec<Scene>| scenes.iter().map(Scene::pair).collect::<Vec<_>>().join(" ");
        assert_eq!(pairs(scenes(Pairs::First, 4, &[Direction::One, Direction::Both])), "0>1 0<>1");
        assert_eq!(pairs(scenes(Pairs::Matrix, 3, &[Direction::One])), "0>1 0>2 1>0 1>2 2>0 2>1");
        assert_eq!(pairs(scenes(Pairs::Matrix, 3, &[Direction::Both])), "0<>1 0<>2 1<>2");
        let all = scenes(Pairs::All, 4, &[Direction::One, Direction::Both]);
        assert_eq!((all.len(), all[0].flows.len(), all[0].pair().as_str()), (1, 12, "all"));
    }

    #[test]
    fn the_sweep_doubles() {
        assert_eq!(doubled(8), [1, 2, 4, 8]);
        assert_eq!(doubled(9), [1, 2, 4, 8]);
    }
}
