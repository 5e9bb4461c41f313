//! From what was asked for to rails: chosen once for a rank, and opened in one place, by whichever thread shall own them.

use crate::any::AnyRail;
use crate::discover::{self, Domain, Reach};
use crate::libfabric::{BareLoop, IMMEDIATES, LibfabricRail, LibfabricRegion, RailOptions};
use crate::model::{Model, PREFIX};
use crate::null::{NullCounts, NullRail};
use crate::same_host::{Movers, SameHostRail, Stores};
use crate::verbs::{Verbs, VerbsRail};
use crate::wanted::{Fabric, NULL, SHARED};
use crate::worst::{Spec, Who, WorstRail};
use crate::{Access, FabricError, Memory, Rail, card, mistake};
use ginlab_cuda::Place;
use ginlab_topology::pci::PciAddress;
use std::sync::Arc;

/// More threads than this copy no faster: the memory is the limit.
const MOST_MOVERS: usize = 8;

/// Where a rank is, for the choice of its rails.
#[derive(Clone, Debug)]
pub struct RankPlace {
    /// Its number.
    pub rank: usize,
    /// Where its peers are.
    pub reach: Reach,
    /// Whether all of them are on this machine, be it in network namespaces of their own.
    pub one_machine: bool,
    /// Its GPU.
    pub gpu: Option<PciAddress>,
    /// Its number among the ranks of this host.
    pub local_rank: usize,
    /// The number of those.
    pub local_size: usize,
}

impl RankPlace {
    /// Of a process that is no rank of a job.
    #[must_use]
    pub fn alone(rank: usize, reach: Reach) -> RankPlace {
        RankPlace { rank, reach, one_machine: true, gpu: None, local_rank: 0, local_size: 1 }
    }
}

/// Rails that have been chosen and not been opened. Each thread that opens them gets as many of its own.
#[derive(Clone, Debug)]
pub struct Chosen {
    kind: Kind,
    count: usize,
    rank: usize,
    options: RailOptions,
    notes: Vec<String>,
}

#[derive(Clone, Debug)]
enum Kind {
    Libfabric { provider: String, domains: Vec<Domain> },
    Verbs { provider: String, domains: Vec<Domain> },
    Model { model: Model, movers: Option<Arc<Movers>> },
    Worst(Spec),
    Shared { movers: Option<Arc<Movers>> },
    Null(NullCounts),
}

/// What a rail's own plainest loop of writes is, where it has one: see [`LibfabricRail::bare_writes`].
pub type BareWrites<R> = unsafe fn(&mut R, &<R as Rail>::Region, &BareLoop) -> Result<f64, FabricError>;

/// Who takes rails of whichever kind.
pub trait TakesRails {
    /// What it makes of them.
    type Output;

    /// `open` is to be called by the thread that will own the rails; `bare` is the plainest loop of writes over one of them.
    fn take<R: Rail + 'static>(
        self,
        open: impl FnOnce() -> Result<Vec<R>, FabricError> + Send + 'static,
        bare: Option<BareWrites<R>>,
    ) -> Self::Output;
}

impl Fabric {
    /// Chooses `count` rails, opened by these options.
    ///
    /// # Errors
    /// What is wrong with what was asked for, in one line.
    pub fn choose(&self, count: usize, place: &RankPlace, options: RailOptions) -> Result<Chosen, String> {
        if self.shares_memory() && !place.one_machine {
            return Err(format!("--provider {self}: all ranks must be on one machine"));
        }
        let mut notes = Vec::new();
        let kind = match self {
            Fabric::Libfabric { .. } | Fabric::Verbs { .. } => {
                let (provider, named, is_verbs) = match self {
                    Fabric::Verbs { name, domains } => (Some(name.as_str()), domains, true),
                    Fabric::Libfabric { provider, domains } => (provider.as_deref(), domains, false),
                    _ => (None, &Vec::new(), false),
                };
                if is_verbs && options.messages {
                    return Err(format!(
                        "--provider {self}: its datagrams have no order, which messages need; -p efa has them"
                    ));
                }
                let text = |error: FabricError| error.to_string();
                let choice = discover::choose_provider(provider).map_err(text)?;
                let (local_rank, local_size) = (place.local_rank, place.local_size);
                let provider = choice.provider;
                let plan =
                    discover::select_domains(&provider, count, place.reach, named, place.gpu, local_rank, local_size)
                        .map_err(text)?;
                if plan.domains.len() < count {
                    return Err(format!("--rails {count}: only {} domains were named", plan.domains.len()));
                }
                notes.push(format!("provider {provider}: {}", choice.reason));
                notes.extend(plan.note);
                let domains = plan.domains;
                if is_verbs { Kind::Verbs { provider, domains } } else { Kind::Libfabric { provider, domains } }
            }
            Fabric::Model { name, profile } => {
                let assumed = profile.assumed().collect::<Vec<_>>().join(", ");
                notes.push(format!(
                    "MODELLED cards of a {name}: {} Gb/s each, {} us one way; assumed, not published: {assumed}",
                    profile.line_rate_gbps.value, profile.one_way_us.value,
                ));
                let model = Model::new(name, (**profile).clone(), count, place.rank as u64);
                Kind::Model { model, movers: None }
            }
            Fabric::Worst(spec) => {
                notes.push(spec.note());
                Kind::Worst(*spec)
            }
            Fabric::Shared => {
                notes.push("shared memory of this machine: as fast as it copies, no card is modelled".into());
                Kind::Shared { movers: None }
            }
            Fabric::Null => {
                notes.push(
                    "null rails: the proxy completes each put at once, nothing is moved; puts are counted, not bytes checked".into(),
                );
                Kind::Null(NullCounts::default())
            }
        };
        Ok(Chosen { kind, count, rank: place.rank, options, notes })
    }
}

impl Chosen {
    /// What rows call them: the provider that is opened (`tcp;ofi_rxm`), `model:p5`, `worst:seed=1,...`, `null`.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.kind {
            Kind::Libfabric { provider, .. } | Kind::Verbs { provider, .. } => provider.clone(),
            Kind::Model { model, .. } => format!("{PREFIX}{}", model.name()),
            Kind::Worst(spec) => spec.to_string(),
            Kind::Shared { .. } => SHARED.into(),
            Kind::Null(_) => NULL.into(),
        }
    }

    /// What a header should say of them.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The domains, of libfabric or of verbs.
    #[must_use]
    pub fn domains(&self) -> &[Domain] {
        match &self.kind {
            Kind::Libfabric { domains, .. } | Kind::Verbs { domains, .. } => domains,
            _ => &[],
        }
    }

    /// The modelled cards.
    #[must_use]
    pub fn model(&self) -> Option<&Model> {
        match &self.kind {
            Kind::Model { model, .. } => Some(model),
            _ => None,
        }
    }

    /// What null rails have been given.
    #[must_use]
    pub fn counts(&self) -> Option<&NullCounts> {
        match &self.kind {
            Kind::Null(counts) => Some(counts),
            _ => None,
        }
    }

    /// Starts threads that copy the bytes of modelled cards, at most so many, and store them so; without any, whoever posts copies. Other rails
    /// need none.
    ///
    /// # Errors
    /// The system's.
    pub fn start_movers(&mut self, threads: usize, stores: Stores) -> std::io::Result<()> {
        let (Kind::Model { movers, .. } | Kind::Shared { movers }) = &mut self.kind else { return Ok(()) };
        let threads = threads.min(MOST_MOVERS);
        if threads == 0 {
            self.notes.push("no core is left for copying: the proxies copy the bytes themselves".into());
            return Ok(());
        }
        *movers = Some(Arc::new(Movers::start(threads, stores)?));
        self.notes.push(format!("{threads} threads copy the bytes of each rank that puts"));
        Ok(())
    }

    /// Whether threads copy the bytes of modelled cards.
    #[must_use]
    pub fn has_movers(&self) -> bool {
        matches!(&self.kind, Kind::Model { movers: Some(_), .. } | Kind::Shared { movers: Some(_) })
    }

    /// Line rate of the cards of the first `rails` rails together in bits per second, where it is known.
    #[must_use]
    pub fn line_rate(&self, rails: usize) -> Option<u64> {
        match &self.kind {
            Kind::Libfabric { domains, .. } | Kind::Verbs { domains, .. } => {
                card::line_rate(domains.get(..rails.min(domains.len()))?)
            }
            Kind::Model { model, .. } => Some(model.line_rate() * rails as u64),
            Kind::Worst(_) | Kind::Shared { .. } | Kind::Null(_) => None,
        }
    }

    /// Whether the bytes go through memory that processes of this machine share.
    #[must_use]
    pub fn shares_memory(&self) -> bool {
        matches!(self.kind, Kind::Model { .. } | Kind::Worst(_) | Kind::Shared { .. })
    }

    /// Where host memory has to lie that peers write to or read.
    #[must_use]
    pub fn place(&self) -> Place {
        if self.shares_memory() { Place::File } else { Place::Host }
    }

    /// Immediates that the completion queue of each rail has room for while nobody polls it.
    #[must_use]
    pub fn immediates(&self) -> usize {
        match &self.kind {
            Kind::Worst(Spec { queue: Some(queue), .. }) => *queue as usize,
            _ => self.options.immediates.unwrap_or(IMMEDIATES),
        }
    }

    /// Whether the cards read and write this memory of a GPU themselves: proven by registering it on the first rail. From then on rails are
    /// opened for it. The error says why they do not.
    ///
    /// # Safety
    /// The memory is valid while this runs.
    ///
    /// # Errors
    /// Why the memory has to be staged, or be the host's.
    pub unsafe fn prove_gpu(&mut self, memory: Memory) -> Result<(), String> {
        let (Kind::Libfabric { domains, .. } | Kind::Verbs { domains, .. }) = &self.kind else {
            return Err("these rails have no cards".to_owned());
        };
        let Some(domain) = domains.first() else { return Err("there is no rail".to_owned()) };
        let reaches = match &self.kind {
            Kind::Verbs { .. } => Verbs::open(&domain.name).and_then(|card| {
                // SAFETY: the caller's contract; the region ends in this expression.
                unsafe { card.register(memory, Access::ALL) }.map(drop)
            }),
            // SAFETY: the caller's contract.
            _ => unsafe { LibfabricRail::prove_gpu(domain, &self.options, memory) },
        };
        self.options.cuda_memory = reaches.is_ok();
        reaches.map_err(|error| error.to_string())
    }

    /// Gives the rails of proxy thread number `proxy` to whoever takes them.
    pub fn give<T: TakesRails>(&self, proxy: u16, taker: T) -> T::Output {
        let (count, rank) = (self.count, self.rank as u32);
        match self.kind.clone() {
            Kind::Libfabric { domains, .. } => {
                let options = self.options.clone();
                let open = move || domains.iter().map(|domain| LibfabricRail::open(domain, &options)).collect();
                let bare: BareWrites<LibfabricRail> = bare_writes;
                taker.take(open, Some(bare))
            }
            Kind::Verbs { domains, .. } => {
                let options = self.options.clone();
                taker.take(move || domains.iter().map(|domain| open_verbs(domain, &options)).collect(), None)
            }
            Kind::Model { model, movers } => {
                let open = move || {
                    let below = (0..count).map(|_| SameHostRail::open("shared memory", movers.clone()));
                    Ok(model.rails(below.collect::<Result<Vec<_>, _>>()?))
                };
                taker.take(open, None)
            }
            Kind::Worst(spec) => {
                let open = move |rail: usize| WorstRail::open(&spec, Who { rank, proxy, rail: rail as u16 }, false);
                taker.take(move || (0..count).map(open).collect(), None)
            }
            Kind::Shared { movers } => {
                let open = move || (0..count).map(|_| SameHostRail::open(SHARED, movers.clone())).collect();
                taker.take(open, None)
            }
            Kind::Null(counts) => {
                taker.take(move || Ok((0..count).map(|_| NullRail::counted_by(&counts)).collect()), None)
            }
        }
    }

    /// Opens them for who posts by the CPU.
    ///
    /// # Errors
    /// What could not be opened; modelled and null rails, which have no messages.
    pub fn open(&self) -> Result<Vec<AnyRail>, FabricError> {
        match &self.kind {
            Kind::Libfabric { domains, .. } => {
                let open = |domain| LibfabricRail::open(domain, &self.options).map(AnyRail::Libfabric);
                domains.iter().map(open).collect()
            }
            Kind::Verbs { domains, .. } => {
                domains.iter().map(|domain| open_verbs(domain, &self.options).map(AnyRail::Verbs)).collect()
            }
            Kind::Worst(spec) => {
                let who = |rail| Who { rank: self.rank as u32, proxy: 0, rail: rail as u16 };
                let open = |rail| WorstRail::open(spec, who(rail), self.options.messages);
                (0..self.count).map(|rail| open(rail).map(|rail| AnyRail::Worst(Box::new(rail)))).collect()
            }
            Kind::Model { .. } | Kind::Shared { .. } | Kind::Null(_) => Err(mistake(
                &self.name(),
                "opening rails for the CPU",
                "programs with a proxy alone (proxy, shmem, collective, jacobi) take modelled, shared and null rails",
            )),
        }
    }
}

fn open_verbs(domain: &Domain, options: &RailOptions) -> Result<VerbsRail, FabricError> {
    VerbsRail::open(&domain.name, options.immediates.unwrap_or(IMMEDIATES), options.max_outstanding)
}

/// As a function of no lifetime.
///
/// # Safety
/// As [`LibfabricRail::bare_writes`].
unsafe fn bare_writes(rail: &mut LibfabricRail, region: &LibfabricRegion, run: &BareLoop) -> Result<f64, FabricError> {
    // SAFETY: passed on.
    unsafe { rail.bare_writes(region, run) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::select::Reach;

    #[test]
    fn null_rails_alone_count_what_they_are_given() {
        let chosen =
            |fabric: Fabric| fabric.choose(2, &RankPlace::alone(0, Reach::SameHost), RailOptions::default()).unwrap();
        assert!(chosen(Fabric::Null).counts().is_some());
        assert!(chosen(Fabric::Shared).counts().is_none());
    }
}
