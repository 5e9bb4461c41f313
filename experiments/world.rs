//! Options of experiments whose kernels use the device API: number of PEs, paths, and rails.

use crate::columns::RULE;
use crate::error::Failure;
use crate::job::{self, RankArgs};
use crate::mps;
use crate::nccl_baseline::{Communicator, NcclError};
use crate::rails;
use crate::ranks::Ranks;
use crate::runner::added;
use crate::values::{FAULT_HELP, Pin, fault};
use ginlab::bootstrap::{self, Bootstrap};
use ginlab::cuda::{self, Buffer, DeviceChoice, DeviceError};
use ginlab::gin::{GinError, PePath, PutSignalRule, World, WorldOptions};
use ginlab::proxy::ProxyFault;
use ginlab::rails::Counters;
use ginlab::rails::strategy::Strategy;
use ginlab::report::{Header, Key, Row};
use ginlab::signals;
use ginlab::versions::Versions;

pub use ginlab::gin::collective::CallScope;

/// Options of a world.
#[derive(clap::Args, Clone, Debug)]
pub struct WorldArgs {
    /// Provider of rails, if rails are used: a libfabric provider, efa-verbs, model:p5, or worst[:seed=N,delay=N,...]
    /// (the least ordered network that EFA permits, for tests; docs/worst-network.md)
    #[arg(short = 'p', long, value_name = "NAME")]
    pub provider: Option<String>,
    /// Domains on which to open rails, in this order [default: automatic, nearest to the GPU first]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub domain: Vec<String>,
    /// Number of rails of each proxy
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=64))]
    pub rails: usize,
    /// Distribution of puts over rails: single, split, round-robin, auto
    #[arg(long, default_value = "auto", value_name = "NAME")]
    pub strategy: Strategy,
    /// Rule that keeps a put and its signal in order on rails: count, own, drain, sequence. For path direct: count (a
    /// CPU thread reads arrivals), kernel (the waiting kernel reads them) or counter (like kernel, and the NIC counts
    /// the first signals, on p5en and p6)
    #[arg(long, default_value_t = PutSignalRule::default(), value_name = "RULE")]
    pub rule: PutSignalRule,
    /// Pin proxy threads: auto (one core each, near the GPU or the NICs, if there are enough), off, or a list by rank
    /// and thread
    #[arg(long, value_name = "WHICH", default_value = "auto", num_args = 0..=1, default_missing_value = "auto")]
    pub pin: Pin,
    /// Number of proxy threads; for path direct, of queue pairs of the NIC
    #[arg(long, alias = "proxies", default_value_t = 1, value_name = "N", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=16))]
    pub proxy_threads: usize,
    /// Device that runs kernels: gpu, emulated (CPU threads), or auto (the GPU if there is one)
    #[arg(short = 'd', long, value_enum, default_value_t = DeviceChoice::Auto, hide_possible_values = true)]
    pub device: DeviceChoice,
    #[command(flatten)]
    pub meet: RankArgs,
    /// Fault to inject
    #[arg(long, value_name = "FAULT", help = FAULT_HELP, value_parser = fault)]
    fault: Option<ProxyFault>,
}

impl WorldArgs {
    /// Returns whether kernels will run on CPU threads, without opening a device.
    pub fn is_emulated(&self) -> bool {
        let no_gpu = || cuda::ptx().modules.is_empty() || cuda::visible_gpus().is_ok_and(|gpus| gpus.is_empty());
        match self.device {
            DeviceChoice::Emulated => true,
            DeviceChoice::Gpu => false,
            DeviceChoice::Auto => no_gpu(),
        }
    }

    /// Returns the ranks of the world.
    pub fn ranks(
        &self,
        fingerprint: Vec<(String, String)>,
        check: impl Fn(usize) -> Result<(), Failure> + 'static,
    ) -> Ranks {
        let mps = Some(self.meet.mps.on(self.device));
        Ranks { mps, ..self.meet.ranks(fingerprint, check) }
    }

    /// Returns the options for opening the world with `heap_bytes` of heap.
    pub fn options(&self, path: PePath, heap_bytes: u64) -> Result<WorldOptions, Failure> {
        Ok(WorldOptions {
            device: self.device,
            heap_bytes,
            path,
            fabric: rails::fabric(self.provider.as_deref(), &self.domain)?,
            pin: self.pin.clone(),
            rails: self.rails,
            strategy: self.strategy,
            rule: self.rule,
            proxies: self.proxy_threads,
            timeout: self.meet.timeout,
            fault: self.fault,
            ..WorldOptions::default()
        })
    }

    /// Opens NCCL on the device of a world. The inner error is the reason if NCCL is not available.
    pub fn nccl(&self, world: &World, ranks: &mut Bootstrap) -> Result<Result<Communicator, String>, Failure> {
        // With a different NCCL_HOSTID for each rank, NCCL treats them as separate nodes.
        if world.sharing().is_shared() && bootstrap::process_env("NCCL_HOSTID").is_none() {
            return Ok(Err("NCCL rejects two ranks of one node on one GPU".into()));
        }
        match Communicator::open(world.device(), ranks, self.meet.timeout) {
            Err(NcclError::Missing(why)) => Ok(Err(why)),
            opened => Ok(Ok(opened?)),
        }
    }

    /// Sets the columns that describe the rails used by puts.
    pub fn name_rails(&self, row: &mut Row) {
        row.rails = Some(self.rails as u32);
        row.strategy = Some(self.strategy.to_string());
        row.set(&RULE, self.rule.to_string());
    }
}

/// Returns the bytes that this rank's proxies have moved so far, by rail.
pub fn rail_bytes(world: &World) -> Result<Vec<u64>, Failure> {
    let snapshots = world.snapshots().map_err(GinError::from)?;
    Ok(added(snapshots.iter().map(|snapshot| &snapshot.counters.rail_bytes)))
}

/// Returns the totals of this rank's proxies so far.
pub fn rail_counters(world: &World) -> Result<Counters, Failure> {
    let snapshots = world.snapshots().map_err(GinError::from)?;
    Ok(job::of_threads(snapshots.iter().map(|snapshot| &snapshot.counters)))
}

/// Returns the time from the first start to the last end of any block, in microseconds. Each block stamps both in
/// nanoseconds.
pub fn stamped_us(stamps: &Buffer, blocks: u32) -> Result<f64, DeviceError> {
    let mut blocks = vec![[0u64; 2]; blocks as usize];
    stamps.read(0, &mut blocks)?;
    let first = blocks.iter().map(|[begun, _]| *begun).min().unwrap_or(0);
    let last = blocks.iter().map(|[_, ended]| *ended).max().unwrap_or(0);
    Ok(last.saturating_sub(first) as f64 / 1000.0)
}

/// Returns the header of a world's rows.
pub fn header(world: &World, ranks: &Bootstrap) -> Header {
    let mut header = Versions::header();
    header.set(Key::Provider, world.fabric()).set(Key::Rails, world.rail_names()).set(Key::Memory, world.memory());
    mps::describe(&mut header, world.sharing());
    if let Some(affinity) = world.affinity() {
        header.set(Key::Affinity, affinity);
    }
    header.notes(world.notes()).notes(ranks.notes()).note(format!(
        "{} ranks by the {} bootstrap",
        ranks.size(),
        ranks.kind()
    ));
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
