//! Options of experiments whose kernels use the device API: how many PEs there are, how they are reached, by which rails.

use crate::columns::RULE;
use crate::error::Failure;
use crate::job::MeetArgs;
use crate::mps;
use crate::rails;
use crate::runner::{Ranks, added};
use crate::values::{Pin, fault, seconds};
use clap::ValueEnum;
use ginlab::bootstrap::{self, Bootstrap};
use ginlab::cuda::{self, Buffer, Choice, DeviceError};
use ginlab::gin::{Fabric, GinError, Options, Path, Rule, World};
use ginlab::nccl::{Communicator, NcclError};
use ginlab::proxy::Fault;
use ginlab::rails::strategy::Strategy;
use ginlab::report::{Header, Key, Row, each_once};
use ginlab::signals;
use ginlab::versions::Versions;
use kernels::signal_check::{SCOPE_BLOCK, SCOPE_THREAD, SCOPE_WARP};
use std::time::Duration;

/// How other PEs are reached, as rows say it: by mappings, by rails, or by several, joined by `+`.
pub fn ways(world: &World) -> String {
    let others = (0..world.n_pes()).filter(|pe| *pe != world.my_pe());
    each_once(others.map(|pe| world.path_to(pe))).join("+")
}

/// Who calls, by the number that kernels take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[repr(u32)]
pub enum Scope {
    /// One thread of each block.
    Thread = SCOPE_THREAD,
    /// One warp of each block.
    Warp = SCOPE_WARP,
    /// All threads of each block.
    Block = SCOPE_BLOCK,
}

/// Options of a world.
#[derive(clap::Args, Clone, Debug)]
pub struct WorldArgs {
    /// What rails are, where some are needed: a provider of libfabric, efa-verbs, model:p5, or worst[:seed=N,delay=N,...]: the worst
    /// network that EFA may be, for tests (docs/worst-network.md)
    #[arg(short = 'p', long, value_name = "NAME")]
    pub provider: Option<String>,
    /// Domains to open rails on, in this order [default: chosen, nearest to the GPU first]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub domain: Vec<String>,
    /// Rails of each proxy
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=64))]
    pub rails: usize,
    /// How puts are laid over rails: single, split, round-robin, auto
    #[arg(long, default_value = "auto", value_name = "NAME")]
    pub strategy: Strategy,
    /// How a put and its signal are kept in order on rails: count, own, drain, sequence; by path direct: count (a CPU thread reads what arrives),
    /// kernel (the kernel that waits does) or counter (so, and the card counts the first signals, on p5en and p6)
    #[arg(long, default_value_t = Rule::default(), value_name = "RULE")]
    pub rule: Rule,
    /// Pin proxy threads: auto (one core each, near the GPU or the cards, where there are enough), off, or a list by rank and thread
    #[arg(long, value_name = "WHICH", default_value = "auto", num_args = 0..=1, default_missing_value = "auto")]
    pub pin: Pin,
    /// Proxy threads; by path direct: queue pairs of the card
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=16))]
    pub proxies: usize,
    /// Where kernels run
    #[arg(short = 'd', long, value_enum, default_value_t = Choice::Auto)]
    pub device: Choice,
    /// Longest wait of any kind, in seconds; of ranks for one another twice that and 6 s: one may be in a wait of its own
    #[arg(short = 't', long, default_value = "30", value_name = "SECONDS", value_parser = seconds())]
    pub timeout: Duration,
    #[command(flatten)]
    pub meet: MeetArgs,
    /// Inject a fault into each proxy: proxy-vanish=N, proxy-stop=N or rails-silent=N (after N commands)
    #[arg(long, value_name = "FAULT", hide = true, value_parser = fault)]
    fault: Option<Fault>,
}

impl WorldArgs {
    /// Whether kernels will run on CPU threads; asked without opening a device.
    pub fn is_emulated(&self) -> bool {
        let no_gpu = || cuda::ptx().modules.is_empty() || cuda::visible_gpus().is_ok_and(|gpus| gpus.is_empty());
        match self.device {
            Choice::Emulated => true,
            Choice::Gpu => false,
            Choice::Auto => no_gpu(),
        }
    }

    /// The ranks of such a world.
    pub fn ranks(
        &self,
        fingerprint: Vec<(String, String)>,
        check: impl Fn(usize) -> Result<(), Failure> + 'static,
    ) -> Ranks {
        let mps = Some(self.meet.mps.on(self.device));
        Ranks { mps, ..self.meet.ranks(self.timeout, fingerprint, check) }
    }

    /// How the world is opened, with so many bytes of heap.
    pub fn options(&self, path: Path, heap_bytes: u64) -> Result<Options, Failure> {
        Ok(Options {
            device: self.device,
            heap_bytes,
            path,
            fabric: Fabric::named(self.provider.as_deref(), &self.domain).map_err(rails::named)?,
            pin: self.pin.clone(),
            rails: self.rails,
            strategy: self.strategy,
            rule: self.rule,
            proxies: self.proxies,
            timeout: self.timeout,
            fault: self.fault,
            ..Options::default()
        })
    }

    /// NCCL on the device of a world, or why it is not to be had.
    pub fn nccl(&self, world: &World, ranks: &mut Bootstrap) -> Result<Result<Communicator, String>, Failure> {
        // It takes them for nodes of their own where each is given another NCCL_HOSTID.
        if world.sharing().is_shared() && bootstrap::process_env("NCCL_HOSTID").is_none() {
            return Ok(Err("NCCL refuses two ranks of one node on one GPU".into()));
        }
        match Communicator::open(world.device(), ranks, self.timeout) {
            Err(NcclError::Missing(why)) => Ok(Err(why)),
            opened => Ok(Ok(opened?)),
        }
    }

    /// What a row says of the rails that its puts take.
    pub fn name_rails(&self, row: &mut Row) {
        row.rails = Some(self.rails as u32);
        row.strategy = Some(self.strategy.to_string());
        row.set(&RULE, self.rule.to_string());
    }
}

/// Bytes that this rank's proxies have moved so far, by rail.
pub fn rail_bytes(world: &World) -> Result<Vec<u64>, Failure> {
    let snapshots = world.snapshots().map_err(GinError::from)?;
    Ok(added(snapshots.iter().map(|snapshot| &snapshot.counters.rail_bytes)))
}

/// Microseconds from the first of these blocks' begins to the last one's end, of what each has stamped: both in nanoseconds.
pub fn stamped_us(stamps: &Buffer, blocks: u32) -> Result<f64, DeviceError> {
    let mut blocks = vec![[0u64; 2]; blocks as usize];
    stamps.read(0, &mut blocks)?;
    let first = blocks.iter().map(|[begun, _]| *begun).min().unwrap_or(0);
    let last = blocks.iter().map(|[_, ended]| *ended).max().unwrap_or(0);
    Ok(last.saturating_sub(first) as f64 / 1000.0)
}

/// The header of a world's rows.
pub fn header(world: &World, ranks: &Bootstrap) -> Header {
    let mut header = Versions::header();
    header.set(Key::Provider, world.fabric()).set(Key::Rails, world.rail_names()).set(Key::Memory, world.memory());
    mps::describe(&mut header, world.sharing());
    if let Some(affinity) = world.affinity() {
        header.set(Key::Affinity, affinity);
    }
    header.notes(world.notes()).note(format!("{} ranks by the {} bootstrap", ranks.size(), ranks.kind()));
    header
}

impl From<GinError> for Failure {
    fn from(error: GinError) -> Failure {
        match error {
            GinError::Interrupted => Failure::Interrupted,
            GinError::Usage(text) => Failure::Usage(text),
            GinError::Ranks(error) => error.into(),
            GinError::Device(error) => error.into(),
            GinError::Fabric(error) => error.into(),
            _ if signals::interrupted() => Failure::Interrupted,
            error if error.is_timeout() => Failure::Timeout(error.to_string()),
            error => Failure::Run(error.to_string()),
        }
    }
}
