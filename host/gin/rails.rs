//! What a world's proxies open: their rails, whatever these are, and the heap's registration on each.

use super::GinError;
use ginlab_fabric::discover::{self, Domain, Reach};
use ginlab_fabric::libfabric::{Level, LibfabricRail, RailOptions};
use ginlab_fabric::model::{self, Model, Profile};
use ginlab_fabric::same_host::SameHostRail;
use ginlab_fabric::worst::{self, Spec, Who, WorstRail};
use ginlab_fabric::{Access, FabricError, Memory, Rail, card};
use ginlab_proxy::engine::{Engine, SignalRule};
use ginlab_proxy::signal_order::unpolled;
use ginlab_proxy::{Proxy, ProxyError, Setup};
use std::time::Duration;

/// Commands in flight per proxy thread.
const IN_FLIGHT: usize = 16384;

/// What the rails of a world are.
#[derive(Clone, Debug)]
pub enum Fabric {
    /// A provider of libfabric.
    Libfabric {
        /// `efa`, `tcp`, ...; by default efa where there is one, else tcp.
        provider: Option<String>,
        /// Domains to open rails on, in this order; chosen when there are none.
        domains: Vec<String>,
        /// When a transfer counts as complete. Rules `own` and `drain` are right at [`Level::Delivery`] alone.
        level: Level,
    },
    /// Modelled cards of this profile, on one machine.
    Model(String),
    /// The worst network that EFA may legally be, on one machine: for tests, and for kernels of one's own.
    Worst(Spec),
}

impl Default for Fabric {
    fn default() -> Self {
        Fabric::Libfabric { provider: None, domains: Vec::new(), level: Level::Delivery }
    }
}

impl Fabric {
    /// By the name that a user gives: a provider, `model:p5`, `worst:seed=7`.
    ///
    /// # Errors
    /// [`GinError::Usage`] for an option of `worst` that there is not.
    pub fn named(provider: Option<&str>, domains: &[String], level: Level) -> Result<Fabric, GinError> {
        Ok(match provider {
            Some(name) if worst::is_asked(name) => Fabric::Worst(name.parse().map_err(GinError::Usage)?),
            Some(name) => match name.strip_prefix(model::PREFIX) {
                Some(profile) => Fabric::Model(profile.to_owned()),
                None => Fabric::Libfabric { provider: Some(name.to_owned()), domains: domains.to_vec(), level },
            },
            None => Fabric::Libfabric { provider: None, domains: domains.to_vec(), level },
        })
    }

    /// For the comparison of ranks.
    pub(super) fn text(&self) -> String {
        match self {
            Fabric::Libfabric { provider, .. } => provider.clone().unwrap_or_else(|| "libfabric".into()),
            Fabric::Model(profile) => format!("{}{profile}", model::PREFIX),
            Fabric::Worst(spec) => spec.to_string(),
        }
    }
}

/// Rails that can be opened.
#[derive(Clone)]
pub(super) enum Chosen {
    Libfabric { provider: String, domains: Vec<Domain>, options: RailOptions },
    Model { name: String, model: Model },
    Worst { spec: Spec, rank: usize },
}

/// Where a rank stands, for the choice of its domains.
pub(super) struct Standing {
    pub reach: Reach,
    /// PCI address of its GPU.
    pub near: Option<String>,
    pub rank: usize,
    pub local_rank: usize,
    pub local_size: usize,
    pub same_machine: bool,
}

impl Chosen {
    /// Chooses `count` rails.
    ///
    /// # Errors
    /// What is wrong with what was asked for.
    pub fn of(fabric: &Fabric, count: usize, standing: &Standing, notes: &mut Vec<String>) -> Result<Chosen, String> {
        if !standing.same_machine && !matches!(fabric, Fabric::Libfabric { .. }) {
            return Err(format!("rails {}: all ranks must be on one host", fabric.text()));
        }
        match fabric {
            Fabric::Libfabric { provider, domains, level } => {
                let choice = discover::choose_provider(provider.as_deref()).map_err(|error| error.to_string())?;
                let near = standing.near.as_ref().and_then(|address| address.parse().ok());
                let (local_rank, local_size) = (standing.local_rank, standing.local_size);
                let chosen = discover::select_domains(
                    &choice.provider,
                    count,
                    standing.reach,
                    domains,
                    near,
                    local_rank,
                    local_size,
                )
                .map_err(|error| error.to_string())?;
                notes.push(format!("provider {}: {}", choice.provider, choice.reason));
                notes.extend(chosen.note.clone());
                let options = RailOptions { level: *level, ..RailOptions::default() };
                Ok(Chosen::Libfabric { provider: choice.provider, domains: chosen.domains, options })
            }
            Fabric::Model(profile) => {
                let model = Model::new(profile, Profile::named(profile)?, count, standing.rank as u64);
                notes.push(format!("MODELLED cards of a {profile}: their bytes are moved through shared memory"));
                Ok(Chosen::Model { name: format!("{}{profile}", model::PREFIX), model })
            }
            Fabric::Worst(spec) => {
                notes.push(spec.note());
                Ok(Chosen::Worst { spec: *spec, rank: standing.rank })
            }
        }
    }

    /// As rows name it.
    pub fn name(&self) -> String {
        match self {
            Chosen::Libfabric { provider, .. } => provider.split(';').next().unwrap_or_default().to_owned(),
            Chosen::Model { name, .. } => name.clone(),
            Chosen::Worst { spec, .. } => spec.to_string(),
        }
    }

    /// Line rate of the cards in bits per second, where it is known.
    pub fn line_rate(&self, count: usize) -> Option<u64> {
        match self {
            Chosen::Libfabric { domains, .. } => card::line_rate(domains),
            Chosen::Model { model, .. } => Some(model.line_rate() * count as u64),
            Chosen::Worst { .. } => None,
        }
    }

    /// Whether the rails' cards read and write this memory of a GPU themselves: proven by registering it. The error says why not.
    pub fn reaches_gpu(&mut self, memory: Memory) -> Result<(), String> {
        let Chosen::Libfabric { domains, options, .. } = self else {
            return Err("these rails have no cards".to_owned());
        };
        let Some(domain) = domains.first() else { return Err("there is no rail".to_owned()) };
        // SAFETY: the caller's memory outlives the call.
        let reaches = unsafe { LibfabricRail::prove_gpu(domain, options, memory) };
        options.cuda_memory = reaches.is_ok();
        reaches.map_err(|error| error.to_string())
    }

    /// Whether the bytes go through memory that processes of this machine share.
    pub fn shares_memory(&self) -> bool {
        !matches!(self, Chosen::Libfabric { .. })
    }
}

/// What a proxy thread is given beside its rails.
pub(super) struct Parts {
    pub heap: Memory,
    pub setup: Setup,
    pub timeout: Duration,
    pub signals: SignalRule,
}

/// Starts a proxy thread over `count` of the chosen rails.
pub(super) fn start(chosen: &Chosen, count: usize, thread: usize, parts: Parts) -> Result<Proxy, ProxyError> {
    match chosen.clone() {
        Chosen::Libfabric { domains, options, .. } => {
            let options = RailOptions { immediates: Some(unpolled(parts.signals.ranks)), ..options };
            let open = move || domains.iter().map(|domain| LibfabricRail::open(domain, &options)).collect();
            launch(open, parts)
        }
        Chosen::Model { model, .. } => {
            let near =
                move || (0..count).map(|_| SameHostRail::open("shared memory", None)).collect::<Result<Vec<_>, _>>();
            launch(move || Ok(model.rails(near()?)), parts)
        }
        Chosen::Worst { spec, rank } => {
            let who = move |rail: usize| Who { rank: rank as u32, proxy: thread as u16, rail: rail as u16 };
            launch(move || (0..count).map(|rail| WorstRail::open(&spec, who(rail), false)).collect(), parts)
        }
    }
}

fn launch<R: Rail + 'static>(
    open: impl FnOnce() -> Result<Vec<R>, FabricError> + Send + 'static,
    parts: Parts,
) -> Result<Proxy, ProxyError> {
    let Parts { heap, setup, timeout, signals } = parts;
    Proxy::start(setup, timeout, move || {
        let mut engine = Engine::new(open()?, IN_FLIGHT, timeout);
        engine.set_signals(signals)?;
        // SAFETY: the world keeps the heap longer than its proxies.
        let heap = unsafe { engine.register(heap, Access::ALL, None) }?;
        engine.accept_values()?;
        Ok((engine, vec![heap]))
    })
}
