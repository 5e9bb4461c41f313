//! The options of `ginlab proxy`, and what follows from them.

#[cfg(test)]
pub mod tests;

use super::mode::Mode;
use crate::error::Failure;
use crate::job::{self, MeetArgs, MemoryKind};
use crate::values::{self, List, Pin, counts, fault, list, seconds, sizes, slots, usage};
use clap::{ArgAction, ValueEnum};
use ginlab::cuda::Choice;
use ginlab::fabric::libfabric::Level;
use ginlab::fabric::{Fabric, FabricError};
use ginlab::measure::size;
use ginlab::proxy::Fault;
use ginlab::rails::strategy::Strategy;
use ginlab::ring::RingPlace;
use itertools::iproduct;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Source, and destination, of a rank when the user names no limit.
const DEFAULT_MEMORY_LIMIT: u64 = 2 << 30;

/// Rails where none are named: the cards of a GPU on a p5.
const USUAL_RAILS: [usize; 1] = [4];

const EXAMPLES: &str = "\
Examples:
  ginlab proxy                                       two ranks on this machine, 4 rails, 4 KiB to 4 MiB
  ginlab proxy -b 64 -e 64M -f 4 --rails 1,4         sweep sizes and rails
  ginlab proxy --mode quiet,nbi,quiet-every=8 --grid 1,8,32 --block 256
  ginlab proxy --provider null -b 64 -e 64 -n 10000  ring and proxy alone, no network
  ginlab proxy --provider model:p5 -b 1M -e 64M      four modelled cards of a p5, on this machine
  ginlab proxy -p efa-verbs/soft:p5 --cases cpu-write,put,direct   beside the same kernel that drives the cards itself
  ginlab proxy -p null -b 64 -e 64 --trace life      where each microsecond of a put goes
  ginlab proxy --csv run.csv --json run.json         rows and raw samples to files
  mpirun -np 2 ginlab proxy --provider efa           ranks from MPI (build with --features mpi)
  RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 GINLAB_TOKEN=secret ginlab proxy   one of two hosts by TCP";

/// Options of `ginlab proxy`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Smallest put [K, M, G are powers of two]
    #[arg(short = 'b', long, default_value = "4K", value_name = "SIZE", value_parser = size::parse)]
    pub begin: u64,
    /// Largest put
    #[arg(short = 'e', long, default_value = "4M", value_name = "SIZE", value_parser = size::parse)]
    pub end: u64,
    /// Factor from one size to the next
    #[arg(short = 'f', long, default_value_t = 4, value_name = "N")]
    pub factor: u64,
    /// Timed puts per producer and repeat; fewer where a repeat would move more than --volume
    #[arg(short = 'n', long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub iterations: u32,
    /// Untimed puts per producer before the first repeat; fewer in proportion where --volume leaves fewer timed ones
    #[arg(short = 'w', long, default_value_t = 5, value_name = "N")]
    pub warmup: u32,
    /// Repeats of each measurement; times are given as median, min and p99 over them [default: 10, but no more than 3 of what has
    /// taken 5 s by then]
    #[arg(short = 'r', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub repeats: Option<u32>,
    /// What is measured, in turns: cpu-write (CPU-initiated writes of the same buffers), put (by ring and proxy), direct (the same kernel
    /// writes the cards' own queues; over efa-verbs)
    #[arg(
        long,
        default_value = "cpu-write,put",
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub cases: Vec<Way>,
    /// How the kernel waits: quiet (after every put), nbi (once at the end), quiet-every=K; nbi-batch=K: once at the end, and K puts of
    /// a block go out together, behind one fence (direct: one doorbell)
    #[arg(short = 'm', long, default_value = "quiet,nbi", value_name = "LIST", value_parser = list::<Mode>)]
    pub mode: List<Mode>,
    /// Blocks of the grid, a list that is swept
    #[arg(short = 'g', long, default_value = "1", value_name = "LIST", value_parser = counts::<u32>(u32::MAX))]
    pub grid: List<u32>,
    /// Threads per block, a list that is swept [default: 256]
    #[arg(long, default_value = "256", hide_default_value = true, value_name = "LIST", value_parser = counts::<u32>(u32::MAX))]
    pub block: List<u32>,
    /// Who puts: one thread for its block, or every thread for itself
    #[arg(long, value_enum, default_value_t = Scope::Block)]
    pub scope: Scope,
    /// Source slots per producer; in nbi mode a slot is rewritten when its put has completed [default: 64, of large puts as many as take
    /// 64 MiB, but 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub window: Option<u32>,
    /// Rails per rank, a list that is swept [default: 4, and no more than there are cards]
    #[arg(long, value_name = "LIST", value_parser = counts::<usize>(64))]
    pub rails: Option<List<usize>>,
    /// How puts are laid over the rails, a list that is swept: single, split, round-robin, auto
    #[arg(long, default_value = "auto", value_name = "LIST", value_parser = list::<Strategy>)]
    pub strategy: List<Strategy>,
    /// libfabric provider (efa, tcp, shm, ...), null, modelled cards (model:p4d, p5, p5en, p6-b200), or worst: the worst network
    /// that EFA may be [default: efa where there is one, else tcp; null where there is no libfabric]
    #[arg(short = 'p', long, value_name = "NAME")]
    pub provider: Option<Fabric>,
    /// Domains to open rails on, in this order [default: chosen, nearest to the GPU first]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub domain: Vec<String>,
    /// Modelled cards move bytes only in the pass that is verified (for rates that memory cannot follow)
    #[arg(long)]
    pub no_move: bool,
    /// When a put counts as complete
    #[arg(long, value_enum, default_value_t = Level::Delivery)]
    pub completion: Level,
    /// Where kernels run
    #[arg(short = 'd', long, value_enum, default_value_t = Choice::Auto)]
    pub device: Choice,
    /// Where the payload is
    #[arg(long, value_enum, default_value_t = MemoryKind::Pinned)]
    pub mem: MemoryKind,
    /// Emulated device: lanes take turns in an order, and come together in groups, drawn from this number [default: in turn]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// The kernel writes the payload before each put [the default]
    #[arg(long, action = ArgAction::SetTrue, overrides_with = "no_fill")]
    pub fill: bool,
    /// The kernel puts what is there
    #[arg(long, action = ArgAction::SetTrue, overrides_with = "fill")]
    pub no_fill: bool,
    /// Emulated device, nbi mode: payloads that a block writes between two barriers [default: as many as fit 1 MiB, at most 16 and
    /// half the window]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub fill_ahead: Option<u32>,
    /// Verify every byte in a pass of its own [the default]
    #[arg(short = 'c', long, action = ArgAction::SetTrue, overrides_with = "no_check")]
    pub check: bool,
    /// Do not verify
    #[arg(long, action = ArgAction::SetTrue, overrides_with = "check")]
    pub no_check: bool,
    /// Also time the plainest loop of fi_write, on rows of one rail (one buffer: compare with --window 1)
    #[arg(long)]
    pub bare: bool,
    /// Also CPU-initiated writes in batches, a list: so many are posted, and all awaited before the next
    #[arg(long, value_name = "LIST", value_parser = counts::<u32>(1 << 16))]
    pub cpu_batch: Option<List<u32>>,
    /// Also a row per node and one for the job: sums, slowest and fastest sender and rail, percent of the node's line
    #[arg(long)]
    pub per_node: bool,
    /// Trace sampled puts in a pass of its own: a table of stages, NAME.csv, and NAME.json for Perfetto or chrome://tracing
    #[arg(long, value_name = "NAME")]
    pub trace: Option<TraceTo>,
    /// Go on after wrong data; the exit code is 1 all the same
    #[arg(long)]
    pub keep_going: bool,
    #[command(flatten)]
    pub meet: MeetArgs,
    /// Proxy threads per rank, each with its own ring and rails
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = threads)]
    pub proxy_threads: usize,
    /// Cores for the proxy threads: auto, off, or a list
    #[arg(long, default_value = "auto", value_name = "WHICH")]
    pub pin: Pin,
    /// Where the rings are
    #[arg(long, value_enum, default_value_t = RingPlace::Pinned)]
    pub ring_memory: RingPlace,
    /// Slots of a ring, a power of two
    #[arg(long, default_value_t = ginlab::ring::DEFAULT_SLOTS, value_name = "N", value_parser = slots)]
    pub ring_slots: usize,
    /// Bytes that one repeat may move per rank; fewer iterations above it
    #[arg(long, default_value = "256M", value_name = "SIZE", value_parser = size::parse)]
    pub volume: u64,
    /// Memory for source and for destination, each, per rank [default: 2G, and no more than is free]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub memory_limit: Option<u64>,
    /// Longest wait of any kind, in seconds; of ranks for one another twice that and 6 s: one may be in a wait of its own
    #[arg(short = 't', long, default_value = "30", value_name = "SECONDS", value_parser = seconds())]
    pub timeout: Duration,
    /// Inject a fault: proxy-vanish=N, proxy-stop=N or rails-silent=N (after N commands), corrupt=N (a wrong byte in the put with ticket N)
    #[arg(long, value_name = "FAULT", hide = true, value_parser = fault)]
    pub fault: Option<Fault>,
    /// Why the rails are null though nobody has asked for it.
    #[arg(skip)]
    pub why_null: Option<String>,
    /// Why there are fewer rails than usual though nobody has asked for it.
    #[arg(skip)]
    pub why_fewer: Option<String>,
}

/// Who writes, by which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Way {
    /// The proxy threads themselves.
    CpuWrite,
    /// The kernel, by ring and proxy.
    Put,
    /// The kernel, by the cards' queues.
    Direct,
}

/// Who puts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scope {
    /// Thread 0 for its block.
    Block,
    /// Every thread for itself.
    Thread,
}

/// Files that begin with this path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceTo(PathBuf);

impl FromStr for TraceTo {
    type Err = String;

    fn from_str(prefix: &str) -> Result<TraceTo, String> {
        let path = PathBuf::from(prefix);
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        if path.file_name().is_none() || parent.is_some_and(|parent| !parent.is_dir()) {
            return Err(format!("{prefix:?} is no name in a folder that exists"));
        }
        Ok(TraceTo(path))
    }
}

impl TraceTo {
    /// The file with this extension.
    pub fn with(&self, extension: &str) -> PathBuf {
        let mut name = self.0.clone().into_os_string();
        name.push(".");
        name.push(extension);
        name.into()
    }
}

fn threads(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|threads| (1..=64).contains(threads)).ok_or_else(|| format!("{text}; from 1 to 64"))
}

/// One measurement: a tuple of variables, measured in every mode and by CPU-initiated writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    pub bytes: u64,
    pub rails: usize,
    pub strategy: Strategy,
    pub grid: u32,
    pub block: u32,
}

impl Args {
    /// Refuses options that do not go together.
    pub fn check(&self) -> Result<(), Failure> {
        if self.begin == 0 {
            return Err(usage("--begin", "a put of 0 bytes moves nothing; from 1 on"));
        }
        if self.end > kernels::command::MAX_OFFSET {
            return Err(usage("--end", format!("{} is beyond what a command can name, 2^48", size::human(self.end))));
        }
        let fabric = self.fabric()?;
        if self.measures(Way::Direct) && !matches!(fabric, Fabric::Verbs { .. }) {
            let text =
                "has no queues for a kernel: efa-verbs (EFA's cards) and efa-verbs/soft:p5 (cards in software) have";
            return Err(usage("--cases", format!("direct: provider {fabric} {text}")));
        }
        if self.scope == Scope::Thread && self.mode.iter().any(|mode| matches!(mode, Mode::Batch(_))) {
            return Err(usage("--mode", "nbi-batch=K: puts of a block are batched; leave --scope at block"));
        }
        if self.trace.is_some() && !self.measures(Way::Put) {
            return Err(usage("--trace", "the life of a put by ring and proxy: with put among the --cases"));
        }
        match fabric {
            Fabric::Model { name, profile } => {
                match self.rails().iter().find(|rails| **rails as f64 > profile.cards.value) {
                    Some(rails) => {
                        Err(usage("--rails", format!("{rails}; a {name} has {} cards", profile.cards.value)))
                    }
                    None => Ok(()),
                }
            }
            _ if self.no_move => Err(usage("--no-move", "only modelled cards (-p model:p5) can do without")),
            _ => Ok(()),
        }
    }

    /// What the rails shall be.
    pub fn fabric(&self) -> Result<Fabric, Failure> {
        self.provider.clone().unwrap_or_default().on(&self.domain).map_err(Failure::Usage)
    }

    /// There is no libfabric: a run that leaves the choice to us takes null rails and says why, any other is refused.
    pub fn do_without_library(&mut self, missing: &FabricError) -> Result<(), Failure> {
        if self.provider.is_some() || !self.domain.is_empty() {
            return Err(Failure::Usage(missing.to_string()));
        }
        self.provider = Some(Fabric::Null);
        self.why_null = Some(format!("provider null, by which puts end in the proxy and nothing is moved: {missing}"));
        Ok(())
    }

    /// Whether this way is measured.
    pub fn measures(&self, way: Way) -> bool {
        self.cases.contains(&way)
    }

    /// Whether the rails are libfabric's.
    pub fn needs_library(&self) -> bool {
        self.provider.as_ref().is_none_or(Fabric::needs_library)
    }

    /// Whether puts end in the proxy, without a network.
    pub fn is_null(&self) -> bool {
        matches!(self.provider, Some(Fabric::Null))
    }

    /// Whether the cards are modelled.
    pub fn is_model(&self) -> bool {
        matches!(self.provider, Some(Fabric::Model { .. }))
    }

    /// Whether cards move bytes in the timed passes too.
    pub fn moves(&self) -> bool {
        !self.no_move
    }

    /// Rails by tuple.
    fn rails(&self) -> &[usize] {
        self.rails.as_deref().unwrap_or(&USUAL_RAILS)
    }

    /// Settles how many rails there are, where that is left to us.
    pub fn settle_rails(&mut self) {
        // Cards that are modelled, or none, are as many as one likes.
        let provider = match &self.provider {
            None => None,
            Some(fabric) => match fabric.counted_as() {
                Some(name) => name,
                None => return,
            },
        };
        self.why_fewer = job::usual_rails(&mut self.rails, &USUAL_RAILS, provider, &self.domain);
    }

    /// The most rails of any tuple.
    pub fn most_rails(&self) -> usize {
        self.rails().iter().copied().max().unwrap_or(1)
    }

    /// Bytes of source, and of destination, of a rank.
    pub fn memory_limit(&self) -> u64 {
        self.memory_limit.unwrap_or(DEFAULT_MEMORY_LIMIT)
    }

    /// The completion level for rows and header.
    pub fn completion(&self) -> String {
        if self.is_null() { "proxy".into() } else { values::name(self.completion) }
    }

    /// Refuses a number of ranks that cannot be paired.
    pub fn check_ranks(&self) -> impl Fn(usize) -> Result<(), Failure> + use<> {
        let null = self.is_null();
        move |ranks| {
            if null || (ranks > 0 && ranks.is_multiple_of(2)) {
                return Ok(());
            }
            let text =
                "ranks cannot be paired: an even number (half of them puts to the other half), or --provider null";
            Err(usage("--np", format!("{ranks} {text}")))
        }
    }

    /// Every tuple, in the order it is measured.
    pub fn tuples(&self) -> Result<Vec<Tuple>, Failure> {
        let sizes = sizes(self.begin, self.end, self.factor)?;
        let tuples = iproduct!(self.rails(), &self.strategy, &self.grid, &self.block, &sizes);
        let tuple = |(&rails, &strategy, &grid, &block, &bytes)| Tuple { bytes, rails, strategy, grid, block };
        Ok(tuples.map(tuple).collect())
    }

    /// What must be the same on all ranks.
    pub fn fingerprint(&self, tuples: &[Tuple]) -> Vec<(String, String)> {
        let text = |name: &str, value: String| (name.to_owned(), value);
        let provider = self.provider.clone().unwrap_or_default().to_string();
        let mut sizes: Vec<u64> = tuples.iter().map(|tuple| tuple.bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let joined = |list: &mut dyn Iterator<Item = String>| list.collect::<Vec<_>>().join(",");
        vec![
            text("provider", provider),
            text("rails", job::rails_text(self.rails())),
            text("strategies", joined(&mut self.strategy.iter().map(Strategy::to_string))),
            text("sizes", joined(&mut sizes.iter().map(u64::to_string))),
            text("rows", format!("{tuples:?}")),
            text("cases", joined(&mut self.cases.iter().map(|way| values::name(*way)))),
            text("modes", joined(&mut self.mode.iter().map(Mode::to_string))),
            text("iterations", format!("{}+{}x{:?}", self.warmup, self.iterations, self.repeats)),
            text("window", format!("{:?}", self.window)),
            text("fill-ahead", format!("{:?}", self.fill_ahead)),
            text("volume", self.volume.to_string()),
            text("memory limit", self.memory_limit().to_string()),
            text(
                "payload",
                format!(
                    "{:?} fill={} check={} bare={} cpu batches={:?}",
                    self.mem, !self.no_fill, !self.no_check, self.bare, self.cpu_batch
                ),
            ),
            text("scope", format!("{:?}", self.scope)),
            text("proxy threads", self.proxy_threads.to_string()),
            text("trace", self.trace.is_some().to_string()),
            text("ring memory", values::name(self.ring_memory)),
            text("moved bytes", self.moves().to_string()),
            text("completion", self.completion()),
        ]
    }
}
