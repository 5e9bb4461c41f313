//! What a user asks rails for, by the name of a provider: read here, once, for every program.

use crate::model::{self, Profile};
use crate::verbs;
use crate::worst::{self, Spec};
use std::fmt;
use std::str::FromStr;

/// How rails that move nothing are asked for.
pub const NULL: &str = "null";
/// How rails of shared memory are asked for, which move bytes and have no times of their own.
pub const SHARED: &str = "shared";

/// What the rails shall be.
#[derive(Clone, Debug)]
pub enum Fabric {
    /// A provider of libfabric.
    Libfabric {
        /// `efa`, `tcp`, ...; by default efa where there is one, else tcp.
        provider: Option<String>,
        /// Domains to open rails on, in this order; chosen when there are none.
        domains: Vec<String>,
    },
    /// EFA's cards by verbs, without libfabric.
    Verbs {
        /// As it was asked for: `efa-verbs`, `efa-verbs/soft:p5`.
        name: String,
        /// Cards to open rails on, in this order; chosen when there are none.
        domains: Vec<String>,
    },
    /// Modelled cards, on one machine.
    Model {
        /// Of the profile: `p5`.
        name: String,
        /// Its figures.
        profile: Box<Profile>,
    },
    /// The worst network that EFA may legally be, on one machine: for tests, and for kernels of one's own.
    Worst(Spec),
    /// Shared memory of one machine: bytes and signals, as fast as it copies. No card is modelled.
    Shared,
    /// No network: puts end in the proxy, and nothing is moved.
    Null,
}

impl Default for Fabric {
    fn default() -> Self {
        Fabric::Libfabric { provider: None, domains: Vec::new() }
    }
}

impl Fabric {
    /// By what `--provider` and `--domain` say.
    ///
    /// # Errors
    /// A profile or an option that there is not; domains of what has none. In one line.
    pub fn named(provider: Option<&str>, domains: &[String]) -> Result<Fabric, String> {
        provider.map_or(Ok(Fabric::default()), str::parse).and_then(|fabric| fabric.on(domains))
    }

    /// The same, on these domains.
    ///
    /// # Errors
    /// Where it has none.
    pub fn on(self, named: &[String]) -> Result<Fabric, String> {
        match self {
            Fabric::Libfabric { provider, .. } => Ok(Fabric::Libfabric { provider, domains: named.to_vec() }),
            Fabric::Verbs { name, .. } => Ok(Fabric::Verbs { name, domains: named.to_vec() }),
            other if named.is_empty() => Ok(other),
            Fabric::Model { .. } => Err("--domain: modelled cards have no domains".into()),
            Fabric::Worst(_) => Err("--domain: the worst network has no domains".into()),
            Fabric::Shared => Err("--domain: shared memory has no domains".into()),
            Fabric::Null => Err("--domain: the null provider has no domains".into()),
        }
    }

    /// Whether it takes libfabric.
    #[must_use]
    pub fn needs_library(&self) -> bool {
        matches!(self, Fabric::Libfabric { .. })
    }

    /// Whether the bytes go through memory that processes of one machine share, and so between those alone.
    #[must_use]
    pub fn shares_memory(&self) -> bool {
        matches!(self, Fabric::Model { .. } | Fabric::Worst(_) | Fabric::Shared)
    }
}

impl FromStr for Fabric {
    type Err = String;

    /// Reads a provider's name: `tcp`, `null`, `model:p5`, `worst:seed=7`, `efa-verbs`.
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

/// As ranks compare it.
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
    fn names_say_what_rails_shall_be() {
        for name in ["tcp", "efa/soft:p5", "null", "shared", "model:p5", "efa-verbs", "efa-verbs/soft:fast,seed=3"] {
            assert_eq!(name.parse::<Fabric>().expect(name).to_string(), name);
        }
        assert_eq!(Fabric::named(None, &["lo".into()]).expect("good").to_string(), "default");
        assert!(matches!("efa-verbs/soft:p5".parse(), Ok(Fabric::Verbs { .. })));
        assert!(matches!("efa-verbsx".parse(), Ok(Fabric::Libfabric { .. })));
        assert!(matches!("worst:seed=7".parse(), Ok(Fabric::Worst(Spec { seed: 7, .. }))));
        let refused = |name: &str, domains: &[String]| Fabric::named(Some(name), domains).expect_err(name);
        assert!(refused("model:p3", &[]).contains("known are model:p4d, model:p5"));
        for name in ["null", "model:p5", "worst", "shared"] {
            assert!(refused(name, &["lo".into()]).ends_with("has no domains") || name == "model:p5", "{name}");
        }
    }
}
