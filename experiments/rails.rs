//! Opens rails by provider name, for programs that post from the CPU, and for servers and clients without ranks.

use crate::error::Failure;
use crate::values::usage;
use ginlab::cuda::MemoryLocation;
use ginlab::fabric::any::AnyRail;
use ginlab::fabric::discover::Reach;
use ginlab::fabric::libfabric::{RailOptions, require_library};
use ginlab::fabric::{Fabric, RankPlace};
use ginlab::flow::Flow;
use std::time::Duration;

/// Explanation of an unexpected message. Receives accept messages from any peer, and a completion does not identify the
/// sender.
pub const UNEXPECTED_MESSAGE: &str = "a message was lost, or a process outside this job sent to this rail's address";

/// Rails to open.
#[derive(Clone, Debug)]
pub struct RailRequest {
    /// Fabric as parsed by [`check_provider`].
    pub fabric: Fabric,
    pub rails: usize,
    /// Whether the rails also send and receive messages.
    pub messages: bool,
    pub timeout: Duration,
    /// 0 for a server and 1 for a client. Identifies this side in messages of the worst-case network model.
    pub rank: usize,
}

/// Rails that were opened.
pub struct Rails {
    pub flow: Flow<AnyRail>,
    pub provider: String,
    pub names: Vec<String>,
    pub notes: Vec<String>,
    /// Memory in which destinations of peers' writes must be allocated.
    pub place: MemoryLocation,
    /// Number of immediates that each rail's completion queue holds while it is not polled.
    pub immediates: usize,
}

/// Rejects a provider that does not exist, is not available on this machine, or works only with a proxy. Called before
/// any process is spawned.
pub fn check_provider(provider: Option<&str>, domains: &[String]) -> Result<Fabric, Failure> {
    let fabric = fabric(provider, domains)?;
    if fabric.needs_library() {
        require_library()?;
    } else if !fabric.serves_cpus() {
        let why = "such rails are supported only by programs with a proxy: proxy, shmem, collective, jacobi";
        return Err(usage("--provider", format!("{fabric}: {why}")));
    }
    Ok(fabric)
}

impl RailRequest {
    /// Opens rails that reach peers within `reach`.
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

/// Parses the values of `--provider` and `--domain`.
pub fn fabric(provider: Option<&str>, domains: &[String]) -> Result<Fabric, Failure> {
    let fabric = Fabric::named(provider, &[]).map_err(|why| usage("--provider", why))?;
    fabric.on(domains).map_err(|why| usage("--domain", why))
}
