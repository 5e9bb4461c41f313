//! Options of `ginlab proxy`, and values derived from them.

mod config;
#[cfg(test)]
pub mod tests;
mod trace_to;

use super::mode::ProxyMode;
use crate::args::SizeArgs;
use crate::error::Failure;
use crate::job::{self, MemoryKind, RankArgs};
use crate::values::{self, FAULT_HELP, List, Pin, counts, fault, list, slots, usage};
use clap::builder::ArgPredicate;
use clap::{ArgAction, ValueEnum};
pub use config::ProxyConfig;
use ginlab::cuda::DeviceChoice;
use ginlab::fabric::libfabric::Level;
use ginlab::fabric::{Fabric, FabricError};
use ginlab::measure::size;
use ginlab::proxy::ProxyFault;
use ginlab::rails::strategy::Strategy;
use ginlab::ring::RingPlace;
pub use trace_to::TraceTo;

/// Default limit of a rank's source, and of its destination.
const DEFAULT_MEMORY_LIMIT: u64 = 2 << 30;

/// Default number of rails: the NICs of one GPU on a p5 instance.
const USUAL_RAILS: [usize; 1] = [4];

const EXAMPLES: &str = "\
Examples:
  ginlab proxy                                       run two ranks on this machine: 4 rails, 4 KiB to 4 MiB
  ginlab proxy -b 64 -e 64M -f 4 --rails 1,4         sweep sizes and rails
  ginlab proxy --mode quiet,nbi,quiet-every=8 --grid 1,8,32 --block 256   sweep modes and grids
  ginlab proxy --provider null -b 64 -e 64 -n 10000  measure ring and proxy only, without a network
  ginlab proxy --provider model:p5 -b 1M -e 64M      use four modelled p5 cards on this machine
  ginlab proxy -p efa-verbs/soft:p5 --cases cpu-write,put,direct   compare with the same kernel driving the NICs itself
  ginlab proxy -p null -b 64 -e 64 --trace life      show where each microsecond of a put is spent
  ginlab proxy --csv run.csv --json run.json         write rows and raw samples to files
  ginlab proxy --random 100 --seed 7                 measure random shapes: sizes, alignments, rails, windows, blocks
  mpirun -np 2 ginlab proxy --provider efa           run ranks started by MPI (build with --features mpi)
  RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 GINLAB_TOKEN=secret ginlab proxy   run one of two hosts, over TCP";

/// Options of `ginlab proxy`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
#[command(mut_arg("begin", |arg| arg.default_value("4K").default_value_if("random", ArgPredicate::IsPresent, "1")))]
#[command(mut_arg("end", |arg| arg.default_value("4M").default_value_if("random", ArgPredicate::IsPresent, "64M")))]
#[command(mut_arg("factor", |arg| arg.default_value("4")))]
pub struct ProxyArgs {
    #[command(flatten)]
    pub sizes: SizeArgs,
    /// Timed puts per producer and repeat, reduced if a repeat would exceed --volume
    #[arg(short = 'n', long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub iterations: u32,
    /// Untimed puts per producer before the first repeat, reduced in proportion to --iterations
    #[arg(short = 'w', long, default_value_t = 5, value_name = "N")]
    pub warmup: u32,
    /// Repeats of each measurement; times are reported as median, minimum and maximum over the repeats [default: 10;
    /// fewer, but at least 3, once a measurement has taken 5 s]
    #[arg(short = 'r', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub repeats: Option<u32>,
    /// Cases to measure, interleaved: cpu-write (CPU-initiated writes of the same buffers), put (through ring and
    /// proxy), direct (the same kernel writes the NICs' queues itself; requires efa-verbs)
    #[arg(
        long,
        default_value = "cpu-write,put",
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub cases: Vec<WritePath>,
    /// Waits of the kernel: quiet (after every put), nbi (once at the end), quiet-every=K (after every K puts),
    /// nbi-batch=K (once at the end; a block publishes K puts after a single fence, or, for case direct, with a single
    /// doorbell)
    #[arg(short = 'm', long, default_value = "quiet,nbi", value_name = "LIST", value_parser = list::<ProxyMode>)]
    pub mode: List<ProxyMode>,
    /// Number of blocks; a list to sweep
    #[arg(short = 'g', long, default_value = "1", value_name = "LIST", value_parser = counts::<u32>(u32::MAX))]
    pub grid: List<u32>,
    /// Threads per block; a list to sweep [default: 256]
    #[arg(long, default_value = "256", hide_default_value = true, value_name = "LIST", value_parser = counts::<u32>(u32::MAX))]
    pub block: List<u32>,
    /// Threads that issue puts: block (thread 0 of each block) or thread (every thread)
    #[arg(long, value_enum, default_value_t = PutScope::Block, hide_possible_values = true)]
    pub scope: PutScope,
    /// Source slots per producer. In nbi mode a slot is rewritten only after its put has completed [default: 64; for
    /// large puts, as many as fit in 64 MiB, but at least 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub window: Option<u32>,
    /// Number of rails per rank; a list to sweep [default: 4, limited to the number of NICs]
    #[arg(long, value_name = "LIST", value_parser = counts::<usize>(64))]
    pub rails: Option<List<usize>>,
    /// Distribution of puts over rails: single, split, round-robin, auto; a list to sweep
    #[arg(long, default_value = "auto", value_name = "LIST", value_parser = list::<Strategy>)]
    pub strategy: List<Strategy>,
    /// libfabric provider (efa, tcp, shm, ...), null, modelled cards (model:p4d, p5, p5en, p6-b200), or worst (the
    /// least ordered network that EFA permits) [default: efa if available, else tcp; null without libfabric]
    #[arg(short = 'p', long, value_name = "NAME")]
    pub provider: Option<Fabric>,
    /// Domains on which to open rails, in this order [default: automatic, nearest to the GPU first]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub domain: Vec<String>,
    /// Modelled cards copy data only in the verification pass (for rates above memory bandwidth)
    #[arg(long, alias = "no-move")]
    pub no_copy: bool,
    /// Completion of a put: delivery (data is at the target, as quiet requires) or transmit (handed to the
    /// transport)
    #[arg(long, value_enum, value_name = "LEVEL", default_value_t = Level::Delivery, hide_possible_values = true)]
    pub completion: Level,
    /// Device that runs kernels: gpu, emulated (CPU threads), or auto (the GPU if there is one)
    #[arg(short = 'd', long, value_enum, default_value_t = DeviceChoice::Auto, hide_possible_values = true)]
    pub device: DeviceChoice,
    /// Memory that holds the payload: auto (GPU memory if every rank has a GPU whose NICs access it directly, otherwise
    /// pinned), pinned (pinned host memory) or device (GPU memory)
    #[arg(
        long,
        alias = "mem",
        value_enum,
        value_name = "MEM",
        default_value_t = MemoryKind::Auto,
        hide_possible_values = true
    )]
    pub memory: MemoryKind,
    /// Emulated device: seed for the order and grouping in which lanes run [default: in lane order]. With --random,
    /// seed of the random shapes [default: 1]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Number of random shapes to measure, with sizes from --begin to --end and at most as many rails as in --rails;
    /// --mode, --grid, --block and --window do not apply, and the kernel does not write the payload
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    #[arg(conflicts_with_all = ["mode", "grid", "block", "window", "factor", "fill", "scope", "cpu_batch", "bare", "trace"])]
    pub random: Option<u32>,
    /// Write the payload in the kernel before each put [the default]
    #[arg(long, action = ArgAction::SetTrue, overrides_with = "no_fill")]
    pub fill: bool,
    /// Put the existing contents
    #[arg(long, action = ArgAction::SetTrue, overrides_with = "fill")]
    pub no_fill: bool,
    /// Emulated device, nbi mode: payloads that a block writes between two barriers [default: as many as fit in 1 MiB,
    /// at most 16 and at most half the window]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub fill_ahead: Option<u32>,
    /// Verify every byte in a separate pass [the default]
    #[arg(short = 'c', long, action = ArgAction::SetTrue, overrides_with = "no_check")]
    pub check: bool,
    /// Do not verify
    #[arg(long, action = ArgAction::SetTrue, overrides_with = "check")]
    pub no_check: bool,
    /// Time a minimal fi_write loop in addition, in rows with one rail (uses a single buffer: compare with --window 1)
    #[arg(long)]
    pub bare: bool,
    /// Measure CPU-initiated writes in batches of each of these sizes too; all writes of a batch complete before the
    /// next batch is posted
    #[arg(long, value_name = "LIST", value_parser = counts::<u32>(1 << 16))]
    pub cpu_batch: Option<List<u32>>,
    /// Add one row per node and one for the job: totals, slowest and fastest sender and rail, percent of the
    /// node's line rate
    #[arg(long)]
    pub per_node: bool,
    /// Trace sampled puts in a separate pass. Prints a table of stages and writes NAME.csv and NAME.json (for Perfetto
    /// or chrome://tracing)
    #[arg(long, value_name = "NAME")]
    pub trace: Option<TraceTo>,
    /// Continue after wrong data; the exit code is still 1
    #[arg(long)]
    pub keep_going: bool,
    #[command(flatten)]
    pub meet: RankArgs,
    /// Proxy threads per rank, each with its own ring and rails
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = threads)]
    pub proxy_threads: usize,
    /// CPU cores for the proxy threads: auto, off, or a list
    #[arg(long, default_value = "auto", value_name = "WHICH")]
    pub pin: Pin,
    /// Memory of the rings: pinned, managed (pages migrate between GPU and CPU), or gdr (GPU memory that the CPU reads
    /// over PCIe with GDRCopy; the words that the CPU writes are pinned)
    #[arg(long, value_enum, value_name = "MEM", default_value_t = RingPlace::Pinned, hide_possible_values = true)]
    pub ring_memory: RingPlace,
    /// Slots per ring, a power of two
    #[arg(long, default_value_t = ginlab::ring::DEFAULT_SLOTS, value_name = "N", value_parser = slots)]
    pub ring_slots: usize,
    /// Maximum bytes that a repeat moves per rank; larger workloads run fewer iterations
    #[arg(long, default_value = "256M", value_name = "SIZE", value_parser = size::parse)]
    pub volume: u64,
    /// Maximum memory per rank for the source buffer, and the same again for the destination [default: 2G, limited to
    /// the free memory]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub memory_limit: Option<u64>,
    /// Fault to inject
    #[arg(long, value_name = "FAULT", help = FAULT_HELP, value_parser = fault)]
    pub fault: Option<ProxyFault>,
    /// Whether each proxy thread has its own part of the rails.
    #[arg(skip)]
    pub own_rails: bool,
    /// Reason for which null rails are used by default. `None` if they are not.
    #[arg(skip)]
    pub why_null: Option<String>,
    /// Reason why fewer rails than usual are used by default; `None` if all of them are used.
    #[arg(skip)]
    pub why_fewer: Option<String>,
}

/// Initiator of writes, and their path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WritePath {
    /// The proxy threads themselves
    CpuWrite,
    /// The kernel, through ring and proxy
    Put,
    /// The kernel, through the cards' queues
    Direct,
}

/// Threads that issue puts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PutScope {
    /// Thread 0 of each block
    Block,
    /// Every thread
    Thread,
}

fn threads(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|threads| (1..=64).contains(threads))
        .ok_or_else(|| format!("{text}: must be from 1 to 64"))
}

impl ProxyArgs {
    /// Rejects options that exclude each other.
    pub fn check(&self) -> Result<(), Failure> {
        if self.sizes.begin == 0 {
            return Err(usage("--begin", "must be at least 1 byte"));
        }
        if self.sizes.end > kernels::command::MAX_OFFSET {
            return Err(usage(
                "--end",
                format!("{} exceeds the maximum offset of a command, 2^48", size::human(self.sizes.end)),
            ));
        }
        let fabric = self.fabric()?;
        if self.measures(WritePath::Direct) && !matches!(fabric, Fabric::Verbs { .. }) {
            let text = "has no queues for kernels; use efa-verbs (EFA devices) or efa-verbs/soft:p5 (software NICs)";
            return Err(usage("--cases", format!("direct: provider {fabric} {text}")));
        }
        if self.scope == PutScope::Thread && self.mode.iter().any(|mode| matches!(mode, ProxyMode::Batch(_))) {
            return Err(usage("--mode", "nbi-batch=K requires --scope block"));
        }
        if self.random.is_some() && self.measures(WritePath::Direct) {
            return Err(usage("--cases", "direct: random shapes are only measured with cpu-write and put"));
        }
        if self.trace.is_some() && !self.measures(WritePath::Put) {
            return Err(usage("--trace", "requires `put` in --cases"));
        }
        match fabric {
            Fabric::Model { name, profile } => {
                match self.rails().iter().find(|rails| **rails as f64 > profile.cards.value) {
                    Some(rails) => {
                        Err(usage("--rails", format!("{rails}: a {name} has only {} cards", profile.cards.value)))
                    }
                    None => Ok(()),
                }
            }
            _ if self.no_copy => Err(usage("--no-copy", "requires modelled cards (-p model:p5)")),
            _ => Ok(()),
        }
    }

    /// Returns the fabric of the rails.
    pub fn fabric(&self) -> Result<Fabric, Failure> {
        self.provider.clone().unwrap_or_default().on(&self.domain).map_err(|why| usage("--domain", why))
    }

    /// Handles a missing libfabric: uses null rails and records the reason if the user specified no provider, and fails
    /// otherwise.
    pub fn do_without_library(&mut self, missing: &FabricError) -> Result<(), Failure> {
        if self.provider.is_some() || !self.domain.is_empty() {
            return Err(Failure::Usage(missing.to_string()));
        }
        self.provider = Some(Fabric::Null);
        self.why_null =
            Some(format!("using provider null, with which puts end in the proxy and move no bytes: {missing}"));
        Ok(())
    }

    /// Returns whether the kernel writes the payload.
    pub fn fills(&self) -> bool {
        !self.no_fill && self.random.is_none()
    }

    /// Returns whether the case is measured.
    pub fn measures(&self, way: WritePath) -> bool {
        self.cases.contains(&way)
    }

    /// Returns whether the rails require libfabric.
    pub fn needs_library(&self) -> bool {
        self.provider.as_ref().is_none_or(Fabric::needs_library)
    }

    /// Returns whether puts end in the proxy, without a network.
    pub fn is_null(&self) -> bool {
        matches!(self.provider, Some(Fabric::Null))
    }

    /// Returns whether the NICs are modelled.
    pub fn is_model(&self) -> bool {
        matches!(self.provider, Some(Fabric::Model { .. }))
    }

    /// Returns whether NICs also move bytes in timed passes.
    pub fn moves(&self) -> bool {
        !self.no_copy
    }

    /// Returns the numbers of rails to sweep.
    fn rails(&self) -> &[usize] {
        self.rails.as_deref().unwrap_or(&USUAL_RAILS)
    }

    /// Sets the number of rails if the user specified none.
    pub fn settle_rails(&mut self) {
        // Modelled NICs and null rails have no physical limit.
        let provider = match &self.provider {
            None => None,
            Some(fabric) => match fabric.counted_as() {
                Some(name) => name,
                None => return,
            },
        };
        self.why_fewer = job::usual_rails(&mut self.rails, &USUAL_RAILS, provider, &self.domain);
    }

    /// Returns the maximum number of rails of any parameter combination.
    pub fn most_rails(&self) -> usize {
        self.rails().iter().copied().max().unwrap_or(1)
    }

    /// Returns the maximum bytes of a rank's source, and of its destination.
    pub fn memory_limit(&self) -> u64 {
        self.memory_limit.unwrap_or(DEFAULT_MEMORY_LIMIT)
    }

    /// Returns the completion level for rows and header.
    pub fn completion(&self) -> String {
        if self.is_null() { "proxy".into() } else { values::name(self.completion) }
    }

    /// Returns a check that rejects a number of ranks that cannot be paired.
    pub fn check_ranks(&self) -> impl Fn(usize) -> Result<(), Failure> + use<> {
        let null = self.is_null();
        move |ranks| {
            if null || (ranks > 0 && ranks.is_multiple_of(2)) {
                return Ok(());
            }
            let text = "must be a positive even number, because half of the ranks put to the other half";
            Err(usage("--np", format!("{ranks}: {text} (or use --provider null)")))
        }
    }
}
