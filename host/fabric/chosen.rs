//! Selection of rails. Rails are selected once for a rank, and later opened by the thread that will own them.

use crate::any::AnyRail;
use crate::discover::{self, Domain, Reach};
use crate::libfabric::{BareLoop, IMMEDIATES, LibfabricRail, LibfabricRegion, RailOptions};
use crate::model::ModelledNics;
use crate::null::{NullCounts, NullRail};
use crate::same_host::{CopyThreads, SameHostRail, Stores};
use crate::verbs::{Verbs, VerbsRail};
use crate::wanted::{Fabric, SHARED};
use crate::worst::{Who, WorstRail, WorstSpec};
use crate::{Access, FabricError, MemoryRange, Rail, card, mistake};
use ginlab_cuda::MemoryLocation;
use ginlab_topology::pci::PciAddress;
use std::sync::Arc;

/// Maximum number of copy threads. More threads do not increase the rate, because memory bandwidth is the limit.
const MOST_MOVERS: usize = 8;

/// Location of a rank, which determines its rails.
#[derive(Clone, Debug)]
pub struct RankPlace {
    /// Index of the rank.
    pub rank: usize,
    /// Location of its peers.
    pub reach: Reach,
    /// Whether all ranks are on this machine, possibly in separate network namespaces.
    pub one_machine: bool,
    /// PCI address of its GPU.
    pub gpu: Option<PciAddress>,
    /// Index of the rank among the ranks of this host.
    pub local_rank: usize,
    /// Number of ranks of this host.
    pub local_size: usize,
}

impl RankPlace {
    /// Returns the place of a process that is not part of a job.
    #[must_use]
    pub fn alone(rank: usize, reach: Reach) -> RankPlace {
        RankPlace { rank, reach, one_machine: true, gpu: None, local_rank: 0, local_size: 1 }
    }
}

/// Rails that are selected but not opened. Each thread that opens them gets its own `count` rails.
#[derive(Clone, Debug)]
pub struct RailPlan {
    fabric: Fabric,
    /// Name for result rows.
    name: String,
    /// Domains of libfabric or verbs rails; empty for others.
    domains: Vec<Domain>,
    /// Cards of modelled rails.
    model: Option<ModelledNics>,
    /// Index of the first rail's modelled card.
    first: usize,
    /// Counters of null rails.
    counts: NullCounts,
    /// Threads that copy the bytes of modelled or shared-memory rails.
    movers: Option<Arc<CopyThreads>>,
    count: usize,
    rank: usize,
    options: RailOptions,
    notes: Vec<String>,
}

/// Function that runs the minimal write loop on a rail. See [`LibfabricRail::bare_writes`].
pub type BareWrites<R> = unsafe fn(&mut R, &<R as Rail>::Region, &BareLoop) -> Result<f64, FabricError>;

/// Receiver of selected rails, of any kind.
pub trait RailVisitor {
    /// Result of the receiver.
    type Output;

    /// Receives the rails of one proxy thread. `open` opens them, and must be called by the thread that will own them.
    /// `bare` is the minimal write loop on one of them, if the rails have one.
    fn take<R: Rail + 'static>(
        self,
        open: impl FnOnce() -> Result<Vec<R>, FabricError> + Send + 'static,
        bare: Option<BareWrites<R>>,
    ) -> Self::Output;
}

impl Fabric {
    /// Selects `count` rails, to be opened with `options`.
    ///
    /// # Errors
    /// Returns a one-line description if the request is invalid or cannot be satisfied.
    pub fn choose(&self, count: usize, place: &RankPlace, options: RailOptions) -> Result<RailPlan, String> {
        if self.shares_memory() && !place.one_machine {
            return Err(format!("provider {self}: all ranks must be on one machine"));
        }
        let mut plan = RailPlan {
            fabric: self.clone(),
            name: self.to_string(),
            domains: Vec::new(),
            model: None,
            first: 0,
            counts: NullCounts::default(),
            movers: None,
            count,
            rank: place.rank,
            options,
            notes: Vec::new(),
        };
        match self {
            Fabric::Libfabric { provider, domains } => plan.select(provider.as_deref(), domains, place)?,
            Fabric::Verbs { name, domains } => plan.select(Some(name), domains, place)?,
            Fabric::Model { name, profile } => {
                let assumed = profile.assumed().collect::<Vec<_>>().join(", ");
                plan.notes.push(format!(
                    "MODELLED cards of a {name}: {} Gb/s each, {} us one way; assumed, not published: {assumed}",
                    profile.line_rate_gbps.value, profile.one_way_us.value,
                ));
                plan.model = Some(ModelledNics::new(name, (**profile).clone(), count, place.rank as u64));
            }
            Fabric::Worst(spec) => plan.notes.push(spec.note()),
            Fabric::Shared => {
                plan.notes.push("shared memory of this machine: as fast as it copies, no NIC is modelled".into());
            }
            Fabric::Null => plan.notes.push(
                "null rails: the proxy completes each put immediately and moves no bytes; puts are counted, bytes are \
                 not checked"
                    .into(),
            ),
        }
        Ok(plan)
    }
}

impl RailPlan {
    /// Selects the domains, from those `named` if there are any, and the name of the provider.
    fn select(&mut self, provider: Option<&str>, named: &[String], place: &RankPlace) -> Result<(), String> {
        let text = |error: FabricError| error.to_string();
        let RankPlace { reach, gpu, local_rank, local_size, .. } = *place;
        let choice = discover::choose_provider(provider).map_err(text)?;
        let count = self.count;
        let selected = discover::select_domains(&choice.provider, count, reach, named, gpu, local_rank, local_size)
            .map_err(text)?;
        if selected.domains.len() < count {
            return Err(format!("{count} rails: only {} domains are named", selected.domains.len()));
        }
        self.notes.push(format!("provider {}: {}", choice.provider, choice.reason));
        self.notes.extend(selected.note);
        (self.name, self.domains) = (choice.provider, selected.domains);
        Ok(())
    }

    /// Returns the fabric name shown in result rows: the opened provider (`tcp;ofi_rxm`), `model:p5`,
    /// `worst:seed=1,...`, `null`.
    #[must_use]
    pub fn name(&self) -> String {
        self.name.clone()
    }

    /// Returns notes on the selection, for headers.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the domains of libfabric or verbs rails. Empty for other rails.
    #[must_use]
    pub fn domains(&self) -> &[Domain] {
        &self.domains
    }

    /// Returns the model of modelled cards.
    #[must_use]
    pub fn model(&self) -> Option<&ModelledNics> {
        self.model.as_ref()
    }

    /// Returns the counters of null rails.
    #[must_use]
    pub fn counts(&self) -> Option<&NullCounts> {
        matches!(self.fabric, Fabric::Null).then_some(&self.counts)
    }

    /// Starts up to `threads` threads that copy the bytes of modelled cards or shared-memory rails with `stores`.
    /// Without such threads, the posting thread copies. The call has no effect on other rails.
    ///
    /// # Errors
    /// Returns the system's error if a thread cannot be started.
    pub fn start_movers(&mut self, threads: usize, stores: Stores) -> std::io::Result<()> {
        if !matches!(self.fabric, Fabric::Model { .. } | Fabric::Shared) {
            return Ok(());
        }
        let threads = threads.min(MOST_MOVERS);
        if threads == 0 {
            self.notes.push("no free core for copying: the proxies copy the bytes themselves".into());
            return Ok(());
        }
        self.movers = Some(Arc::new(CopyThreads::start(threads, stores)?));
        self.notes.push(format!("{threads} threads copy the bytes of each rank that puts"));
        Ok(())
    }

    /// Returns whether copy threads were started.
    #[must_use]
    pub fn has_movers(&self) -> bool {
        self.movers.is_some()
    }

    /// Returns the total line rate of the NICs of the first `rails` rails in bits per second, if known.
    #[must_use]
    pub fn line_rate(&self, rails: usize) -> Option<u64> {
        if let Some(model) = &self.model {
            return Some(model.line_rate() * rails as u64);
        }
        if self.domains.is_empty() {
            return None;
        }
        card::line_rate(&self.domains[..rails.min(self.domains.len())])
    }

    /// Returns the line rate of the NIC of one rail in bits per second, if known.
    #[must_use]
    pub fn line_rate_of(&self, rail: usize) -> Option<u64> {
        match &self.model {
            Some(model) => Some(model.line_rate()),
            None => card::line_rate(self.domains.get(rail..=rail)?),
        }
    }

    /// Returns the plan for part `index` of the rails in `parts` equal parts.
    #[must_use]
    pub fn part(&self, index: usize, parts: usize) -> RailPlan {
        let count = self.count / parts.max(1);
        let first = index * count;
        let domains = self.domains.get(first..first + count).unwrap_or_default().to_vec();
        RailPlan { domains, count, first: self.first + first, ..self.clone() }
    }

    /// Returns whether the bytes go through memory that processes of this machine share.
    #[must_use]
    pub fn shares_memory(&self) -> bool {
        self.fabric.shares_memory()
    }

    /// Returns the kind of host memory that peers can read and write.
    #[must_use]
    pub fn place(&self) -> MemoryLocation {
        if self.shares_memory() { MemoryLocation::File } else { MemoryLocation::Host }
    }

    /// Returns the number of immediates that the completion queue of each rail can hold while no thread polls it.
    #[must_use]
    pub fn immediates(&self) -> usize {
        match &self.fabric {
            Fabric::Worst(WorstSpec { queue: Some(queue), .. }) => *queue as usize,
            _ => self.options.immediates.unwrap_or(IMMEDIATES),
        }
    }

    /// Checks whether the NICs can access this GPU memory directly, by registering it on the first rail. Afterwards
    /// rails are opened accordingly.
    ///
    /// # Safety
    /// The memory must be valid during the call.
    ///
    /// # Errors
    /// Returns the reason why the memory must be staged or be host memory.
    pub unsafe fn prove_gpu(&mut self, memory: MemoryRange) -> Result<(), String> {
        let Some(domain) = self.domains.first() else { return Err("these rails have no NICs".to_owned()) };
        let reaches = match &self.fabric {
            Fabric::Verbs { .. } => Verbs::open(&domain.name).and_then(|card| {
                // SAFETY: the caller guarantees that the memory is valid during the call, and the region is dropped in
                // this expression.
                unsafe { card.register(memory, Access::ALL) }.map(drop)
            }),
            // SAFETY: the caller guarantees that the memory is valid during the call.
            _ => unsafe { LibfabricRail::prove_gpu(domain, &self.options, memory) },
        };
        self.options.cuda_memory = reaches.is_ok();
        reaches.map_err(|error| error.to_string())
    }

    /// Makes subsequently opened rails use host memory, even if [`prove_gpu`](RailPlan::prove_gpu) has succeeded.
    pub fn use_host_memory(&mut self) {
        self.options.cuda_memory = false;
    }

    /// Passes the rails of proxy thread number `proxy` to `taker`.
    pub fn give<T: RailVisitor>(&self, proxy: u16, taker: T) -> T::Output {
        let RailPlan { domains, options, movers, count, first, .. } = self.clone();
        let rank = self.rank as u32;
        match self.fabric {
            Fabric::Libfabric { .. } => {
                let open = move || domains.iter().map(|domain| LibfabricRail::open(domain, &options)).collect();
                let bare: BareWrites<LibfabricRail> = bare_writes;
                taker.take(open, Some(bare))
            }
            Fabric::Verbs { .. } => {
                taker.take(move || domains.iter().map(|domain| open_verbs(domain, &options)).collect(), None)
            }
            Fabric::Worst(spec) => {
                let open = move |rail: usize| WorstRail::open(&spec, Who { rank, proxy, rail: rail as u16 }, false);
                taker.take(move || (0..count).map(open).collect(), None)
            }
            Fabric::Model { .. } | Fabric::Shared => {
                let open = move || (0..count).map(|_| SameHostRail::open(SHARED, movers.clone())).collect();
                match self.model.clone() {
                    // Modelled cards move their bytes through shared memory.
                    Some(model) => taker.take(move || Ok(model.rails::<SameHostRail>(first, open()?)), None),
                    None => taker.take(open, None),
                }
            }
            Fabric::Null => {
                let counts = self.counts.clone();
                taker.take(move || Ok((0..count).map(|_| NullRail::counted_by(&counts)).collect()), None)
            }
        }
    }

    /// Opens the rails for posting by the CPU.
    ///
    /// # Errors
    /// Returns an error if a rail cannot be opened, and for modelled, shared and null rails, which have no messages.
    pub fn open(&self) -> Result<Vec<AnyRail>, FabricError> {
        match &self.fabric {
            Fabric::Libfabric { .. } => {
                let open = |domain| LibfabricRail::open(domain, &self.options).map(AnyRail::Libfabric);
                self.domains.iter().map(open).collect()
            }
            Fabric::Verbs { .. } => {
                self.domains.iter().map(|domain| open_verbs(domain, &self.options).map(AnyRail::Verbs)).collect()
            }
            Fabric::Worst(spec) => {
                let who = |rail| Who { rank: self.rank as u32, proxy: 0, rail: rail as u16 };
                let open = |rail| WorstRail::open(spec, who(rail), self.options.messages);
                (0..self.count).map(|rail| open(rail).map(|rail| AnyRail::Worst(Box::new(rail)))).collect()
            }
            _ => Err(mistake(
                &self.name,
                "opening rails for the CPU",
                "only programs with a proxy (proxy, shmem, collective, jacobi) support modelled, shared and null rails",
            )),
        }
    }
}

fn open_verbs(domain: &Domain, options: &RailOptions) -> Result<VerbsRail, FabricError> {
    let open = if options.messages { VerbsRail::with_messages } else { VerbsRail::open };
    open(&domain.name, options.immediates.unwrap_or(IMMEDIATES), options.max_outstanding)
}

/// Wraps the method in a function without lifetime parameters.
///
/// # Safety
/// The caller must uphold the contract of [`LibfabricRail::bare_writes`].
unsafe fn bare_writes(rail: &mut LibfabricRail, region: &LibfabricRegion, run: &BareLoop) -> Result<f64, FabricError> {
    // SAFETY: forwards the call; the caller upholds the contract of `LibfabricRail::bare_writes`.
    unsafe { rail.bare_writes(region, run) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::select::Reach;

    #[test]
    fn only_null_rails_count_transfers() {
        let chosen =
            |fabric: Fabric| fabric.choose(2, &RankPlace::alone(0, Reach::SameHost), RailOptions::default()).unwrap();
        assert!(chosen(Fabric::Null).counts().is_some());
        assert!(chosen(Fabric::Shared).counts().is_none());
    }

    #[test]
    fn parts_divide_rails() {
        let fabric = Fabric::named(Some("model:p5"), &[]).unwrap();
        let plan = fabric.choose(4, &RankPlace::alone(0, Reach::SameHost), RailOptions::default()).unwrap();
        let half = plan.part(1, 2);
        assert_eq!((half.first, half.count), (2, 2));
        let quarter = half.part(1, 2);
        assert_eq!((quarter.first, quarter.count, quarter.domains.len()), (3, 1, 0));
    }
}
