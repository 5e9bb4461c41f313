//! The options of `ginlab proxy`, as typed.

use crate::job::{BootstrapKind, Completion, MemoryKind};
use crate::output::{DeviceKind, OutputArgs};
use clap::{ArgAction, ValueEnum};
use ginlab::ring::RingPlace;

const EXAMPLES: &str = "\
Examples:
  ginlab proxy                                       two ranks on this machine, 4 rails, 4 KiB to 4 MiB
  ginlab proxy -b 64 -e 64M -f 4 --rails 1,4         sweep sizes and rails
  ginlab proxy --mode quiet,nbi,quiet-every=8 --grid 1,8,32 --block 256
  ginlab proxy --provider null -b 64 -e 64 -n 10000  ring and proxy alone, no network
  ginlab proxy --provider model:p5 -b 1M -e 64M      four modelled cards of a p5, on this machine
  ginlab proxy -p null -b 64 -e 64 --trace life      where each microsecond of a put goes
  ginlab proxy --csv run.csv --json run.json         rows and raw samples to files
  mpirun -np 2 ginlab proxy --provider efa           ranks from MPI (build with --features mpi)
  RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 GINLAB_TOKEN=secret ginlab proxy   one of two hosts by TCP";

/// Options of `ginlab proxy`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Smallest put [K, M, G are powers of two]
    #[arg(short = 'b', long, default_value = "4K", value_name = "SIZE")]
    pub begin: String,
    /// Largest put
    #[arg(short = 'e', long, default_value = "4M", value_name = "SIZE")]
    pub end: String,
    /// Factor from one size to the next
    #[arg(short = 'f', long, default_value_t = 4, value_name = "N")]
    pub factor: u64,
    /// Timed puts per producer and repeat; fewer where a repeat would move more than --volume
    #[arg(short = 'n', long, default_value_t = 50, value_name = "N")]
    pub iterations: u32,
    /// Untimed puts per producer before the first repeat
    #[arg(short = 'w', long, default_value_t = 5, value_name = "N")]
    pub warmup: u32,
    /// Repeats of each measurement; times are given as median, min and p99 over them
    #[arg(short = 'r', long, default_value_t = 10, value_name = "N")]
    pub repeats: u32,
    /// How the kernel waits: quiet (after every put), nbi (once at the end), quiet-every=K
    #[arg(short = 'm', long, default_value = "quiet,nbi", value_name = "LIST")]
    pub mode: String,
    /// Blocks of the grid, a list that is swept
    #[arg(short = 'g', long, default_value = "1", value_name = "LIST")]
    pub grid: String,
    /// Threads per block, a list that is swept [default: 256 on a GPU, 4 emulated]
    #[arg(long, value_name = "LIST")]
    pub block: Option<String>,
    /// Who puts: one thread for its block, or every thread for itself
    #[arg(long, value_enum, default_value_t = Scope::Block)]
    pub scope: Scope,
    /// Source slots per producer; in nbi mode a slot is rewritten when its put has completed
    #[arg(long, default_value_t = 16, value_name = "N")]
    pub window: u32,
    /// Rails per rank, a list that is swept
    #[arg(long, default_value = "4", value_name = "LIST")]
    pub rails: String,
    /// How puts are laid over the rails, a list that is swept: single, split, round-robin, auto
    #[arg(long, default_value = "auto", value_name = "LIST")]
    pub strategy: String,
    /// libfabric provider (efa, tcp, shm, ...), null, or modelled cards: model:p4d, p5, p5en, p6-b200 [default: efa where there
    /// is one, else tcp; null where there is no libfabric]
    #[arg(short = 'p', long, value_name = "NAME")]
    pub provider: Option<String>,
    /// Domains to open rails on, in this order [default: chosen, nearest to the GPU first]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub domain: Vec<String>,
    /// Modelled cards move bytes only in the pass that is verified (for rates that memory cannot follow)
    #[arg(long)]
    pub no_move: bool,
    /// When a put counts as complete
    #[arg(long, value_enum, default_value_t = Completion::Delivery)]
    pub completion: Completion,
    /// Where kernels run
    #[arg(short = 'd', long, value_enum, default_value_t = DeviceKind::Auto)]
    pub device: DeviceKind,
    /// Where the payload is
    #[arg(long, value_enum, default_value_t = MemoryKind::Pinned)]
    pub mem: MemoryKind,
    /// The kernel writes the payload before each put [the default]
    #[arg(long, action = ArgAction::SetTrue, overrides_with = "no_fill")]
    pub fill: bool,
    /// The kernel puts what is there
    #[arg(long, action = ArgAction::SetTrue, overrides_with = "fill")]
    pub no_fill: bool,
    /// Verify every byte in a pass of its own [the default]
    #[arg(short = 'c', long, action = ArgAction::SetTrue, overrides_with = "no_check")]
    pub check: bool,
    /// Do not verify
    #[arg(long, action = ArgAction::SetTrue, overrides_with = "check")]
    pub no_check: bool,
    /// Also time the plainest loop of fi_write, on rows of one rail (one buffer: compare with --window 1)
    #[arg(long)]
    pub bare: bool,
    /// Trace sampled puts in a pass of its own: a table of stages, NAME.csv, and NAME.json for Perfetto or chrome://tracing
    #[arg(long, value_name = "NAME")]
    pub trace: Option<String>,
    /// Go on after wrong data; the exit code is 1 all the same
    #[arg(long)]
    pub keep_going: bool,
    /// Ranks, an even number [default: 2; 1 with the null provider; the launcher's number under mpirun or srun]
    #[arg(long, value_name = "N")]
    pub np: Option<usize>,
    /// How ranks find each other [default: by the environment: spawned here, MPI, or TCP variables]
    #[arg(long, value_enum)]
    pub bootstrap: Option<BootstrapKind>,
    /// Interfaces that other hosts may reach rank 0 by (mpi bootstrap), as eth0,ens*
    #[arg(long, value_name = "LIST")]
    pub bootstrap_if: Option<String>,
    /// Proxy threads per rank, each with its own ring and rails
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub proxy_threads: usize,
    /// Cores for the proxy threads: auto, off, or a list
    #[arg(long, default_value = "auto", value_name = "WHICH")]
    pub pin: String,
    /// Where the rings are
    #[arg(long, value_enum, default_value_t = RingPlaceArg::Pinned)]
    pub ring_memory: RingPlaceArg,
    /// Slots of a ring, a power of two
    #[arg(long, default_value_t = ginlab::ring::DEFAULT_SLOTS, value_name = "N")]
    pub ring_slots: usize,
    /// Bytes that one repeat may move per rank; fewer iterations above it
    #[arg(long, default_value = "256M", value_name = "SIZE")]
    pub volume: String,
    /// Memory for source and for destination, each, per rank [default: 2G, and no more than is free]
    #[arg(long, value_name = "SIZE")]
    pub memory_limit: Option<String>,
    /// Longest wait of any kind, in seconds
    #[arg(short = 't', long, default_value_t = 30, value_name = "SECONDS")]
    pub timeout: u64,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Inject a fault: proxy-vanish=N, proxy-stop=N or rails-silent=N (after N commands), corrupt=N (a wrong byte in the put with ticket N)
    #[arg(long, value_name = "FAULT", hide = true)]
    pub fault: Option<String>,
}

/// Where the rings are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RingPlaceArg {
    /// Pinned host memory.
    Pinned,
    /// Managed memory, whose pages travel to whoever touches them.
    Managed,
    /// GPU memory that the CPU reads over PCIe (GDRCopy); the CPU's own words are pinned.
    Gdr,
}

impl From<RingPlaceArg> for RingPlace {
    fn from(place: RingPlaceArg) -> RingPlace {
        match place {
            RingPlaceArg::Pinned => RingPlace::Pinned,
            RingPlaceArg::Managed => RingPlace::Managed,
            RingPlaceArg::Gdr => RingPlace::Gdr,
        }
    }
}

/// Who puts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scope {
    /// Thread 0 for its block.
    Block,
    /// Every thread for itself.
    Thread,
}
