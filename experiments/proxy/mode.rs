//! The modes of `ginlab proxy`: how a kernel waits for its puts.

use std::fmt;
use std::str::FromStr;

/// How the kernel waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// After every put.
    Quiet,
    /// Once at the end.
    Nbi,
    /// After every so many puts.
    QuietEvery(u32),
    /// Once at the end; so many puts of a block are published together, behind one fence.
    Batch(u32),
}

impl Mode {
    /// As the kernel takes it: 0 is once at the end.
    pub fn quiet_every(self) -> u32 {
        match self {
            Mode::Quiet => 1,
            Mode::Nbi | Mode::Batch(_) => 0,
            Mode::QuietEvery(puts) => puts,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Quiet => f.write_str("quiet"),
            Mode::Nbi => f.write_str("nbi"),
            Mode::QuietEvery(puts) => write!(f, "quiet-every={puts}"),
            Mode::Batch(puts) => write!(f, "nbi-batch={puts}"),
        }
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Mode, String> {
        match text.split_once('=') {
            None if text == "quiet" => Ok(Mode::Quiet),
            None if text == "nbi" => Ok(Mode::Nbi),
            Some(("quiet-every", puts)) => match puts.parse() {
                Ok(puts) if puts > 0 => Ok(Mode::QuietEvery(puts)),
                _ => Err(format!("quiet-every={puts}: a number of puts from 1 on")),
            },
            Some(("nbi-batch", puts)) => match puts.parse() {
                Ok(puts @ 1..=32) => Ok(Mode::Batch(puts)),
                _ => Err(format!("nbi-batch={puts}: a number of puts from 1 to 32")),
            },
            _ => Err(format!("mode {text:?} is none of quiet, nbi, quiet-every=K, nbi-batch=K")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_go_both_ways() {
        for text in ["quiet", "nbi", "quiet-every=8", "nbi-batch=16"] {
            assert_eq!(text.parse::<Mode>().expect("known").to_string(), text);
        }
    }
}
