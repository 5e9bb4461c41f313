//! From the name of a provider to rails, for programs that post by the CPU; and the rails of those that have no ranks: servers, and
//! those who visit them.

use crate::error::Failure;
use crate::values::usage;
use ginlab::cuda::Place;
use ginlab::fabric::any::AnyRail;
use ginlab::fabric::discover::Reach;
use ginlab::fabric::libfabric::{RailOptions, require_library};
use ginlab::fabric::{Fabric, RankPlace};
use ginlab::flow::Flow;
use std::time::Duration;

/// Whose a message may be that nobody here sends. Receives are posted for anybody, and what comes with a message does not tell who has sent it.
pub const STRANGER: &str =
    "it is a stranger's, who knows this rail's address and is no part of this job, or one was lost";

/// What to open.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// As [`check_provider`] has read it.
    pub fabric: Fabric,
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

/// Refuses a provider that this machine or nobody has, before anything is started for nothing; and those that have proxies alone.
pub fn check_provider(provider: Option<&str>, domains: &[String]) -> Result<Fabric, Failure> {
    let fabric = Fabric::named(provider, domains).map_err(named)?;
    if fabric.needs_library() {
        require_library()?;
    } else if !fabric.serves_cpus() {
        let why = "such rails stand under programs with a proxy alone: proxy, shmem, collective, jacobi";
        return Err(usage("--provider", format!("{fabric}: {why}")));
    }
    Ok(fabric)
}

impl Wanted {
    /// Opens rails that reach peers there.
    pub fn open(&self, reach: Reach) -> Result<Rails, Failure> {
        let options = RailOptions { messages: self.messages, ..RailOptions::default() };
        let chosen =
            self.fabric.choose(self.rails, &RankPlace::alone(self.rank, reach), options).map_err(Failure::Usage)?;
        let flow = Flow::new(chosen.open()?, self.timeout);
        let name = |rail| flow.with_rail(rail, |rail| ginlab::fabric::Rail::name(rail).to_owned());
        let names = (0..flow.rails()).filter_map(name).collect();
        let notes = chosen.notes().to_vec();
        Ok(Rails {
            flow,
            provider: chosen.name(),
            names,
            notes,
            place: chosen.place(),
            immediates: chosen.immediates(),
        })
    }
}

/// What is wrong with a provider's name or its domains.
pub fn named(why: String) -> Failure {
    if why.starts_with("--") { Failure::Usage(why) } else { usage("--provider", why) }
}
