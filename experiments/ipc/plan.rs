//! The options, checked: what will be run, or one line that says why not.

use super::args::Args;
use crate::error::Failure;
use crate::output::DeviceKind;
use ginlab::cuda::{Choice, Device, visible_gpus};
use ginlab::measure::size;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// What is done with the other's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Write,
    Copy,
    Read,
}

impl Operation {
    pub fn name(self) -> &'static str {
        match self {
            Operation::Write => "write",
            Operation::Copy => "copy",
            Operation::Read => "read",
        }
    }
}

/// Which pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    First,
    Matrix,
    All,
}

/// How work gets to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launch {
    Stream,
    Graph,
}

impl Launch {
    pub fn name(self) -> &'static str {
        match self {
            Launch::Stream => "stream",
            Launch::Graph => "graph",
        }
    }
}

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

/// Everything that will be run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub ranks: usize,
    pub device: Choice,
    pub emulated: bool,
    pub scenes: Vec<Scene>,
    pub operations: Vec<Operation>,
    pub sizes: Vec<u64>,
    pub widths: Vec<u32>,
    pub plain: bool,
    pub bulk: bool,
    pub launches: Vec<Launch>,
    pub blocks: Vec<u32>,
    pub grids: Vec<u32>,
    /// Whether the grids are a sweep of which the knee is wanted.
    pub knee: bool,
    pub cuda_module: Option<PathBuf>,
    iterations: u32,
    volume: u64,
    pub warmup: u32,
    pub repeats: u32,
    pub check: bool,
    /// Spoil what is checked: a test of the check.
    pub spoil: bool,
    pub timeout: Duration,
}

fn usage(option: &str, why: impl fmt::Display) -> Failure {
    Failure::Usage(format!("{option}: {why}"))
}

fn names<T: Copy>(option: &str, text: &str, known: &[(&str, T)]) -> Result<Vec<T>, Failure> {
    let one = |item: &str| {
        let found = known.iter().find(|(name, _)| *name == item.trim()).map(|(_, value)| *value);
        let all = || known.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        found.ok_or_else(|| usage(option, format!("{item:?} is none of {}", all())))
    };
    text.split(',').map(one).collect()
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
        let pairs = [("first", Pairs::First), ("matrix", Pairs::Matrix), ("all", Pairs::All)];
        let pairs = match names("--pairs", &args.pairs, &pairs)?.as_slice() {
            [one] => *one,
            _ => return Err(usage("--pairs", "one of first, matrix, all")),
        };
        let (emulated, ranks) = devices(args, pairs)?;
        let parse = |option, text: &str| size::parse(text).map_err(|why| usage(option, why));
        let begin = parse("--begin", &args.begin)?;
        let end = match &args.end {
            Some(text) => parse("--end", text)?,
            None => begin.max(if emulated { 4 << 20 } else { 1 << 30 }),
        };
        if begin == 0 || end > MOST_BYTES {
            return Err(usage("--begin, --end", "sizes from 1 B to 16 GiB"));
        }
        let counts = |option, text: &str| size::parse_list(text).map_err(|why| usage(option, why));
        let (grids, knee) = match args.grid.as_deref().map(str::trim) {
            Some("auto") => (doubled(if emulated { 8 } else { 256 }), true),
            Some(text) => (counts("--grid", text)?, false),
            None => (if emulated { vec![1, 4] } else { vec![1, 8, 32, 128] }, false),
        };
        let blocks = match &args.block {
            Some(text) => counts("--block", text)?,
            None => vec![if emulated { 4 } else { 256 }],
        };
        for (option, value, most) in [
            ("--iterations", u64::from(args.iterations.unwrap_or(1)), 1 << 20),
            ("--repeats", args.repeats.into(), 100_000),
            ("--timeout", args.timeout, 3600),
        ] {
            if !(1..=most).contains(&value) {
                return Err(usage(option, format!("{value}; from 1 to {most}")));
            }
        }
        if args.warmup > 1 << 20 {
            return Err(usage("--warmup", format!("{}; at most {}", args.warmup, 1 << 20)));
        }
        let stores = names("--store", &args.store, &[("plain", false), ("bulk", true)])?;
        let operations = [Operation::Write, Operation::Copy, Operation::Read].map(|one| (one.name(), one));
        let launches = [Launch::Stream, Launch::Graph].map(|one| (one.name(), one));
        let directions = names("--direction", &args.direction, &[("one", false), ("both", true)])?;
        Ok(Plan {
            ranks,
            device: if emulated { Choice::Emulated } else { Choice::Gpu },
            emulated,
            scenes: scenes(pairs, ranks, &directions),
            operations: names("--operation", &args.operation, &operations)?,
            sizes: size::sweep(begin, end, args.factor).map_err(|why| usage("--begin, --end, --factor", why))?,
            widths: names("--width", &args.width, &[("4", 4), ("8", 8), ("16", 16)])?,
            plain: stores.contains(&false),
            bulk: stores.contains(&true),
            launches: names("--launch", &args.launch, &launches)?,
            blocks,
            grids,
            knee,
            cuda_module: args.cuda_module.clone(),
            iterations: args.iterations.unwrap_or(if emulated { 4 } else { 100 }),
            volume: parse("--volume", &args.volume)?.max(1),
            warmup: args.warmup,
            repeats: args.repeats,
            check: !args.no_check,
            spoil: args.spoil,
            timeout: Duration::from_secs(args.timeout),
        })
    }

    /// Launches of a repeat.
    pub fn iterations(&self, bytes: u64) -> u32 {
        u64::from(self.iterations).min(self.volume / bytes).max(1) as u32
    }

    /// How many sweeps of grids a scene has.
    pub fn sweeps(&self) -> usize {
        self.operations.len() * self.sizes.len() * self.launches.len() * self.blocks.len()
    }

    /// What all ranks must have the same.
    pub fn fingerprint(&self) -> Vec<(String, String)> {
        vec![("options".into(), format!("{self:?}"))]
    }
}

/// Whether the emulated device is meant, and how many ranks.
fn devices(args: &Args, pairs: Pairs) -> Result<(bool, usize), Failure> {
    let seen = visible_gpus()?.len();
    let gpus = match args.device {
        DeviceKind::Emulated => None,
        DeviceKind::Auto => Some(seen).filter(|seen| *seen > 0),
        DeviceKind::Gpu if seen > 0 => Some(seen),
        // It says why there is none.
        DeviceKind::Gpu => return Device::open(Choice::Gpu, 0).map(|_| (false, 2)).map_err(Failure::from),
    };
    let ranks = args.ranks.unwrap_or(match (pairs, gpus) {
        (Pairs::First, _) | (_, None) => 2,
        (_, Some(gpus)) => gpus.max(2),
    });
    if !(2..=MOST_RANKS).contains(&ranks) {
        return Err(usage("--ranks", format!("{ranks}; from 2 to {MOST_RANKS}")));
    }
    if let Some(gpus) = gpus.filter(|gpus| *gpus < ranks) {
        let plural = if gpus == 1 { "" } else { "s" };
        return Err(usage(
            "--ranks",
            format!(
                "{ranks} ranks need {ranks} GPUs, and this process sees {gpus} GPU{plural} (CUDA_VISIBLE_DEVICES?); \
                 -d emulated runs without"
            ),
        ));
    }
    Ok((gpus.is_none(), ranks))
}

fn scenes(pairs: Pairs, ranks: usize, directions: &[bool]) -> Vec<Scene> {
    let every = || (0..ranks).flat_map(|from| (0..ranks).map(move |to| Flow { from, to }));
    let mut scenes = Vec::new();
    if pairs == Pairs::All {
        let flows = every().filter(|flow| flow.from != flow.to).collect();
        return vec![Scene { flows, direction: "all" }];
    }
    for &both in directions {
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
        assert_eq!(pairs(scenes(Pairs::First, 4, &[false, true])), "0>1 0<>1");
        assert_eq!(pairs(scenes(Pairs::Matrix, 3, &[false])), "0>1 0>2 1>0 1>2 2>0 2>1");
        assert_eq!(pairs(scenes(Pairs::Matrix, 3, &[true])), "0<>1 0<>2 1<>2");
        let all = scenes(Pairs::All, 4, &[false, true]);
        assert_eq!((all.len(), all[0].flows.len(), all[0].pair().as_str()), (1, 12, "all"));
    }

    #[test]
    fn the_sweep_doubles() {
        assert_eq!(doubled(8), [1, 2, 4, 8]);
        assert_eq!(doubled(9), [1, 2, 4, 8]);
    }
}
