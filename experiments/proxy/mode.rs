//! Modes of `ginlab proxy`: the waits of a kernel for its puts.

use std::fmt;
use std::str::FromStr;

/// Waits of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyMode {
    /// Wait after every put.
    Quiet,
    /// Wait once at the end.
    Nbi,
    /// Wait after every given number of puts.
    QuietEvery(u32),
    /// Wait once at the end. A block publishes the given number of puts together after a single fence.
    Batch(u32),
}

impl ProxyMode {
    /// Returns the number of puts between two waits, or 0 to wait once at the end.
    pub fn quiet_every(self) -> u32 {
        match self {
            ProxyMode::Quiet => 1,
            ProxyMode::Nbi | ProxyMode::Batch(_) => 0,
            ProxyMode::QuietEvery(puts) => puts,
        }
    }
}

impl fmt::Display for ProxyMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProxyMode::Quiet => f.write_str("quiet"),
            ProxyMode::Nbi => f.write_str("nbi"),
            ProxyMode::QuietEvery(puts) => write!(f, "quiet-every={puts}"),
            ProxyMode::Batch(puts) => write!(f, "nbi-batch={puts}"),
        }
    }
}

impl FromStr for ProxyMode {
    type Err = String;

    fn from_str(text: &str) -> Result<ProxyMode, String> {
        match text.split_once('=') {
            None if text == "quiet" => Ok(ProxyMode::Quiet),
            None if text == "nbi" => Ok(ProxyMode::Nbi),
            Some(("quiet-every", puts)) => match puts.parse() {
                Ok(puts) if puts > 0 => Ok(ProxyMode::QuietEvery(puts)),
                _ => Err(format!("invalid mode quiet-every={puts}: must be at least 1 put")),
            },
            Some(("nbi-batch", puts)) => match puts.parse() {
                Ok(puts @ 1..=32) => Ok(ProxyMode::Batch(puts)),
                _ => Err(format!("invalid mode nbi-batch={puts}: must be from 1 to 32 puts")),
            },
            _ => Err(format!("invalid mode {text:?}: expected quiet, nbi, quiet-every=K or nbi-batch=K")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_round_trip() {
        for text in ["quiet", "nbi", "quiet-every=8", "nbi-batch=16"] {
            assert_eq!(text.parse::<ProxyMode>().expect("known").to_string(), text);
        }
    }
}
