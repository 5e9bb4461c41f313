//! The kind of rails that a user requests with the name of a provider. Parsed only here, for all subcommands.

use crate::model::{self, Profile};
use crate::verbs;
use crate::worst::{self, WorstSpec};
use std::fmt;
use std::str::FromStr;

/// Provider name of null rails, which move nothing.
pub const NULL: &str = "null";
/// Provider name of shared-memory rails, which move bytes and model no times.
pub const SHARED: &str = "shared";

/// The requested kind of rails.
#[derive(Clone, Debug)]
pub enum Fabric {
    /// A provider of libfabric.
    Libfabric {
        /// `efa`, `tcp`, ...; `None` selects efa if a device exists, and otherwise tcp.
        provider: Option<String>,
        /// Domains on which to open rails, in this order. Selected automatically if empty.
        domains: Vec<String>,
    },
    /// EFA devices through verbs, without libfabric.
    Verbs {
        /// The requested name: `efa-verbs`, `efa-verbs/soft:p5`.
        name: String,
        /// NICs on which to open rails, in this order. Selected automatically if empty.
        domains: Vec<String>,
    },
    /// Modelled cards, on one machine.
    Model {
        /// Name of the profile: `p5`.
        name: String,
        /// Parameters of the profile.
        profile: Box<Profile>,
    },
    /// The least ordered network that EFA permits, on one machine. Used for tests, and for users' own kernels.
    Worst(WorstSpec),
    /// Shared memory of one machine: bytes and signals are copied as fast as possible. No card is modelled.
    Shared,
    /// No network: puts end in the proxy, and no bytes are moved.
    Null,
}

impl Default for Fabric {
    fn default() -> Self {
        Fabric::Libfabric { provider: None, domains: Vec::new() }
    }
}

impl Fabric {
    /// Parses a provider, which defaults to the best available one, on these domains.
    ///
    /// # Errors
    /// Returns a one-line description of an unknown profile or option, or if domains are named for a kind without
    /// domains.
    pub fn named(provider: Option<&str>, domains: &[String]) -> Result<Fabric, String> {
        provider.map_or(Ok(Fabric::default()), str::parse).and_then(|fabric| fabric.on(domains))
    }

    /// Returns the same kind of rails on the domains `named`.
    ///
    /// # Errors
    /// Returns an error if this kind has no domains.
    pub fn on(mut self, named: &[String]) -> Result<Fabric, String> {
        let Traits { without_domains, .. } = self.traits();
        match &mut self {
            Fabric::Libfabric { domains, .. } | Fabric::Verbs { domains, .. } => *domains = named.to_vec(),
            _ if named.is_empty() => {}
            _ => return Err(format!("{without_domains} no domains")),
        }
        Ok(self)
    }

    /// Returns whether libfabric is required.
    #[must_use]
    pub fn needs_library(&self) -> bool {
        matches!(self, Fabric::Libfabric { .. })
    }

    /// Returns whether applications that post from the CPU can use this kind. Modelled, shared and null rails work only
    /// under a proxy.
    #[must_use]
    pub fn serves_cpus(&self) -> bool {
        self.traits().serves_cpus
    }

    /// Returns the provider name with which [`crate::discover::cards`] counts the NICs. `None` if the number of rails
    /// is not limited by NICs.
    #[must_use]
    pub fn counted_as(&self) -> Option<Option<&str>> {
        match self {
            Fabric::Libfabric { provider, .. } => Some(provider.as_deref()),
            Fabric::Verbs { name, .. } => Some(Some(name)),
            _ => None,
        }
    }

    /// Returns whether the bytes are transferred through memory that processes of one machine share, so that all ranks
    /// must be on one machine.
    #[must_use]
    pub fn shares_memory(&self) -> bool {
        self.traits().shares_memory
    }

    fn traits(&self) -> Traits {
        let (without_domains, serves_cpus, shares_memory) = match self {
            Fabric::Libfabric { .. } | Fabric::Verbs { .. } => ("", true, false),
            Fabric::Model { .. } => ("modelled cards have", false, true),
            Fabric::Worst(_) => ("the worst-case network has", true, true),
            Fabric::Shared => ("shared memory has", false, true),
            Fabric::Null => ("the null provider has", false, false),
        };
        Traits { without_domains, serves_cpus, shares_memory }
    }
}

/// Properties of a kind of rails.
struct Traits {
    /// Start of the message that refuses domains; empty if this kind has domains.
    without_domains: &'static str,
    serves_cpus: bool,
    shares_memory: bool,
}

impl FromStr for Fabric {
    type Err = String;

    /// Parses a provider's name: `tcp`, `null`, `model:p5`, `worst:seed=7`, `efa-verbs`.
    fn from_str(name: &str) -> Result<Fabric, String> {
        if let Some(profile) = name.strip_prefix(model::PREFIX) {
            return Ok(Fabric::Model { profile: Box::new(Profile::named(profile)?), name: profile.to_owned() });
        }
        match name {
            NULL => Ok(Fabric::Null),
            name if verbs::is_asked(name) => Ok(Fabric::Verbs { name: name.to_owned(), domains: Vec::new() }),
            SHARED => Ok(Fabric::Shared),
            name if worst::is_asked(name) => name.parse().map(Fabric::Worst),
            name => Ok(Fabric::Libfabric { provider: Some(name.to_owned()), domains: Vec::new() }),
        }
    }
}

/// Formats the name that is compared between ranks.
impl fmt::Display for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fabric::Libfabric { provider, .. } => f.write_str(provider.as_deref().unwrap_or("default")),
            Fabric::Verbs { name, .. } => f.write_str(name),
            Fabric::Model { name, .. } => write!(f, "{}{name}", model::PREFIX),
            Fabric::Worst(spec) => spec.fmt(f),
            Fabric::Shared => f.write_str(SHARED),
            Fabric::Null => f.write_str(NULL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provider_names_parse_to_rail_requests() {
        for name in ["tcp", "efa/soft:p5", "null", "shared", "model:p5", "efa-verbs", "efa-verbs/soft:fast,seed=3"] {
            assert_eq!(name.parse::<Fabric>().expect(name).to_string(), name);
        }
        assert_eq!(Fabric::named(None, &["lo".into()]).expect("good").to_string(), "default");
        assert!(matches!("efa-verbs/soft:p5".parse(), Ok(Fabric::Verbs { .. })));
        assert!(matches!("efa-verbsx".parse(), Ok(Fabric::Libfabric { .. })));
        assert!(matches!("worst:seed=7".parse(), Ok(Fabric::Worst(WorstSpec { seed: 7, .. }))));
        let refused = |name: &str, domains: &[String]| Fabric::named(Some(name), domains).expect_err(name);
        assert!(refused("model:p3", &[]).contains("expected one of model:p4d, model:p5"));
        for name in ["null", "model:p5", "worst", "shared"] {
            assert!(refused(name, &["lo".into()]).ends_with("has no domains") || name == "model:p5", "{name}");
        }
    }
}
