//! Checked options: the measurements of the run, or a one-line error.

use super::args::{Direction, GridChoice, IpcArgs, Pairs};
pub use super::args::{IpcOperation, SubmitMethod};
use crate::error::Failure;
use crate::values::usage;
use ginlab::cuda::{Device, DeviceChoice};
use ginlab::measure::size;
use ginlab::mps;
use itertools::iproduct;
use std::fmt;
use std::time::Duration;

/// Transfer from one rank's GPU to another's, executed by `from`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuFlow {
    pub from: usize,
    pub to: usize,
}

impl fmt::Display for GpuFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}>{}", self.from, self.to)
    }
}

/// Flows that run at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scene {
    pub flows: Vec<GpuFlow>,
    pub direction: &'static str,
}

impl Scene {
    /// Returns the value of column `pair` for a row about all flows.
    pub fn pair(&self) -> String {
        match (self.direction, self.flows.as_slice()) {
            ("both", [GpuFlow { from, to }, ..]) => format!("{from}<>{to}"),
            (_, [flow]) => flow.to_string(),
            _ => "all".into(),
        }
    }
}

/// One measurement of a scene, in which all cases are interleaved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpcConfig {
    pub operation: IpcOperation,
    pub bytes: u64,
    pub launch: SubmitMethod,
    pub block: u32,
    pub grid: u32,
}

/// The measurements of a run, derived from the options and the GPUs of this machine.
#[derive(Clone, Debug)]
pub struct IpcPlan {
    pub args: IpcArgs,
    pub ranks: usize,
    pub emulated: bool,
    pub scenes: Vec<Scene>,
    pub sizes: Vec<u64>,
    pub grids: Vec<u32>,
    /// Whether the grids are a sweep to find the knee.
    pub knee: bool,
    pub timeout: Duration,
}

/// Returns the grids of a sweep that determines the knee.
fn doubled(most: u32) -> Vec<u32> {
    std::iter::successors(Some(1), |grid| Some(grid * 2).filter(|grid| *grid <= most)).collect()
}

/// Maximum number of ranks, for which the head of the memory has words.
pub const MOST_RANKS: usize = 64;
/// Maximum size. The pattern indexes 4-byte words with 32 bits.
const MOST_BYTES: u64 = 16 << 30;

impl IpcPlan {
    /// Checks the options.
    pub fn new(args: &IpcArgs) -> Result<IpcPlan, Failure> {
        let (emulated, ranks) = devices(args)?;
        let end = args.end.unwrap_or_else(|| args.begin.max(if emulated { 4 << 20 } else { 1 << 30 }));
        if args.begin == 0 || end > MOST_BYTES {
            return Err(usage("--begin, --end", "sizes must be from 1 B to 16 GiB"));
        }
        let (grids, knee) = match &args.grid {
            Some(GridChoice::Auto) => (doubled(if emulated { 8 } else { 256 }), true),
            Some(GridChoice::List(grids)) => (grids.to_vec(), false),
            None => (if emulated { vec![1, 4] } else { vec![1, 8, 32, 128] }, false),
        };
        Ok(IpcPlan {
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

    /// Returns the number of launches per repeat.
    pub fn iterations(&self, bytes: u64) -> u32 {
        let asked = self.args.iterations.unwrap_or(if self.emulated { 4 } else { 100 });
        u64::from(asked).min(self.args.volume / bytes).max(1) as u32
    }

    /// Returns every parameter combination of every scene. Combinations that differ only in their grid are adjacent.
    pub fn tuples(&self) -> Vec<(usize, IpcConfig)> {
        let IpcArgs { operation, launch, block, .. } = &self.args;
        iproduct!(0..self.scenes.len(), operation, &self.sizes, launch, block, &self.grids)
            .map(|(scene, &operation, &bytes, &launch, &block, &grid)| {
                (scene, IpcConfig { operation, bytes, launch, block, grid })
            })
            .collect()
    }

    /// Returns the settings that must be equal on all ranks.
    pub fn fingerprint(&self) -> Vec<(String, String)> {
        vec![("options".into(), format!("{self:?}"))]
    }
}

/// Returns whether the emulated device is used, and the number of ranks.
fn devices(args: &IpcArgs) -> Result<(bool, usize), Failure> {
    // Does not use CUDA, because ranks that share a GPU must initialize CUDA after the MPS server has started.
    let seen = mps::gpu_count();
    let gpus = match args.device {
        DeviceChoice::Emulated => None,
        DeviceChoice::Auto => Some(seen).filter(|seen| *seen > 0),
        DeviceChoice::Gpu if seen > 0 => Some(seen),
        // Opening the device returns the reason why there is no GPU.
        DeviceChoice::Gpu => return Device::open(DeviceChoice::Gpu, 0).map(|_| (false, 2)).map_err(Failure::from),
    };
    let ranks = args.np.unwrap_or(match (args.pairs, gpus) {
        (Pairs::First, _) | (_, None) => 2,
        (_, Some(gpus)) => gpus.max(2),
    });
    if !(2..=MOST_RANKS).contains(&ranks) {
        return Err(usage("--np", format!("{ranks}: must be from 2 to {MOST_RANKS}")));
    }
    Ok((gpus.is_none(), ranks))
}

fn scenes(pairs: Pairs, ranks: usize, directions: &[Direction]) -> Vec<Scene> {
    let every = || iproduct!(0..ranks, 0..ranks).map(|(from, to)| GpuFlow { from, to });
    let mut scenes = Vec::new();
    if pairs == Pairs::All {
        // Each rank starts with its successor, so that streams of different speed do not favour one GPU over all ranks.
        let flows =
            iproduct!(0..ranks, 1..ranks).map(|(from, step)| GpuFlow { from, to: (from + step) % ranks }).collect();
        return vec![Scene { flows, direction: "all" }];
    }
    for &direction in directions {
        let both = direction == Direction::Both;
        for flow in every() {
            let wanted = if both { flow.from < flow.to } else { flow.from != flow.to };
            if !wanted || pairs == Pairs::First && flow != (GpuFlow { from: 0, to: 1 }) {
                continue;
            }
            let back = GpuFlow { from: flow.to, to: flow.from };
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
    fn scenes_contain_every_pair_once() {
        let pairs = |scenes: Vec<Scene>| scenes.iter().map(Scene::pair).collect::<Vec<_>>().join(" ");
        assert_eq!(pairs(scenes(Pairs::First, 4, &[Direction::One, Direction::Both])), "0>1 0<>1");
        assert_eq!(pairs(scenes(Pairs::Matrix, 3, &[Direction::One])), "0>1 0>2 1>0 1>2 2>0 2>1");
        assert_eq!(pairs(scenes(Pairs::Matrix, 3, &[Direction::Both])), "0<>1 0<>2 1<>2");
        let all = scenes(Pairs::All, 4, &[Direction::One, Direction::Both]);
        assert_eq!((all.len(), all[0].flows.len(), all[0].pair().as_str()), (1, 12, "all"));
    }

    #[test]
    fn auto_grid_sweep_doubles() {
        assert_eq!(doubled(8), [1, 2, 4, 8]);
        assert_eq!(doubled(9), [1, 2, 4, 8]);
    }
}
