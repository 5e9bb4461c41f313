//! From the name of a provider to rails, for programs that post by the CPU; and the rails of those that have no ranks: servers, and
//! those who visit them.

use crate::error::Failure;
use crate::values::usage;
use ginlab::cuda::Place;
use ginlab::fabric::FabricError;
use ginlab::fabric::any::{AnyRail, Chosen};
use ginlab::fabric::discover::{self, Reach};
use ginlab::fabric::libfabric::{RailOptions, require_library};
use ginlab::flow::Flow;
use std::time::Duration;

/// What to open.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// libfabric provider, or the worst network; chosen where there is none.
    pub provider: Option<String>,
    /// Domains to open rails on, in this order; chosen where there are none.
    pub domains: Vec<String>,
    pub rails: usize,
    /// Send and receive too.
    pub messages: bool,
    pub timeout: Duration,
    /// 0 for a server and 1 for whoever visits it: what messages of the worst network call it.
    pub rank: usize,
}

/// What was opened.
pub struct Rails {
    pub flow: Flow<AnyRail>,
    pub provider: String,
    pub names: Vec<String>,
    pub notes: Vec<String>,
    /// Where memory has to lie that peers write to.
    pub place: Place,
    /// Immediates that each rail's completion queue has room for while nobody polls it.
    pub immediates: usize,
}

/// Refuses a provider that this machine or nobody has, before anything is started for nothing.
pub fn check_provider(provider: Option<&str>, domains: &[String]) -> Result<(), Failure> {
    match worst_rails(provider, domains, 0)? {
        Some(_) => Ok(()),
        None => Ok(require_library()?),
    }
}

/// So many rails of the worst network, where that is what the provider is.
pub fn worst_rails(provider: Option<&str>, domains: &[String], count: usize) -> Result<Option<Chosen>, Failure> {
    let chosen = Chosen::worst(provider, count).map_err(|why| usage("--provider", why))?;
    if chosen.is_some() && !domains.is_empty() {
        return Err(usage("--domain", "the worst network has no domains"));
    }
    Ok(chosen)
}

impl Wanted {
    /// Opens rails that reach peers there.
    pub fn open(&self, reach: Reach) -> Result<Rails, Failure> {
        let (provider, chosen, mut notes) = match worst_rails(self.provider.as_deref(), &self.domains, self.rails)? {
            Some(chosen) => (chosen.label().unwrap_or_default(), chosen, Vec::new()),
            None => self.choose(reach)?,
        };
        notes.extend(chosen.note());
        let options = RailOptions { messages: self.messages, ..RailOptions::default() };
        let flow = Flow::new(chosen.open(&options, self.rank)?, self.timeout);
        let name = |rail| flow.with_rail(rail, |rail| ginlab::fabric::Rail::name(rail).to_owned());
        let names = (0..flow.rails()).filter_map(name).collect();
        Ok(Rails { flow, provider, names, notes, place: chosen.place(), immediates: chosen.immediates() })
    }

    /// Domains of libfabric.
    fn choose(&self, reach: Reach) -> Result<(String, Chosen, Vec<String>), Failure> {
        // What cannot be opened because of how it was asked for is a usage error.
        let as_usage = |error: FabricError| Failure::Usage(error.to_string());
        let choice = discover::choose_provider(self.provider.as_deref()).map_err(as_usage)?;
        let chosen = discover::select_domains(&choice.provider, self.rails, reach, &self.domains, None, 0, 1)
            .map_err(as_usage)?;
        if chosen.domains.len() < self.rails {
            let text = format!("--rails {}: only {} domains were named", self.rails, chosen.domains.len());
            return Err(Failure::Usage(text));
        }
        let mut notes = vec![format!("provider {}: {}", choice.provider, choice.reason)];
        notes.extend(chosen.note);
        Ok((choice.provider, Chosen::Libfabric(chosen.domains), notes))
    }
}
