//! Rails of programs that have no ranks: servers, and those who visit them.

use crate::error::Failure;
use ginlab::fabric::FabricError;
use ginlab::fabric::discover::{self, Reach};
use ginlab::fabric::libfabric::{LibfabricRail, RailOptions};
use ginlab::flow::Flow;
use std::time::Duration;

/// What to open.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// libfabric provider; chosen where there is none.
    pub provider: Option<String>,
    /// Domains to open rails on, in this order; chosen where there are none.
    pub domains: Vec<String>,
    pub rails: usize,
    /// Send and receive too.
    pub messages: bool,
    pub timeout: Duration,
}

/// What was opened.
pub struct Rails {
    pub flow: Flow<LibfabricRail>,
    pub provider: String,
    pub names: Vec<String>,
    pub notes: Vec<String>,
}

impl Wanted {
    /// Opens rails that reach peers there.
    pub fn open(&self, reach: Reach) -> Result<Rails, Failure> {
        // What cannot be opened because of how it was asked for is a usage error.
        let as_usage = |error: FabricError| Failure::Usage(error.to_string());
        let choice = discover::choose_provider(self.provider.as_deref()).map_err(as_usage)?;
        let chosen = discover::select_domains(&choice.provider, self.rails, reach, &self.domains, None, 0, 1)
            .map_err(as_usage)?;
        if chosen.domains.len() < self.rails {
            let text = format!("--rails {}: only {} domains were named", self.rails, chosen.domains.len());
            return Err(Failure::Usage(text));
        }
        let options = RailOptions { messages: self.messages, ..RailOptions::default() };
        let rails = chosen.domains.iter().map(|domain| LibfabricRail::open(domain, &options));
        let flow = Flow::new(rails.collect::<Result<Vec<_>, _>>()?, self.timeout);
        let name = |rail| flow.with_rail(rail, |rail| ginlab::fabric::Rail::name(rail).to_owned());
        let names = (0..flow.rails()).filter_map(name).collect();
        let mut notes = vec![format!("provider {}: {}", choice.provider, choice.reason)];
        notes.extend(chosen.note);
        Ok(Rails { flow, provider: choice.provider, names, notes })
    }
}
