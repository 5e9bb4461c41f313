//! Rules that order a put and its signal, and that determine who counts signals.

use ginlab_proxy::signal_order;
use std::fmt;
use std::str::FromStr;

/// Rule that orders a put and its signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutSignalRule {
    /// A rule of the proxies. Path `direct`, which has no proxies, supports only [`signal_order::Rule::Count`]: a put
    /// is one request, its immediate arrives with it, and a CPU thread counts.
    Proxies(signal_order::Rule),
    /// Path `direct` only: like [`signal_order::Rule::Count`], but the waiting kernel reads the immediate from the
    /// NIC's queue.
    Kernel,
    /// Path `direct` only: like `Kernel`, but the NIC counts increments by 1 of the first signals. Each of these
    /// signals has a counter, which the waiting kernel reads. Requires the NICs of p5en or p6.
    Counter,
}

impl PutSignalRule {
    /// Returns whether kernels read the arrivals, so that no thread counts signals.
    pub(super) fn is_by_kernel(self) -> bool {
        matches!(self, PutSignalRule::Kernel | PutSignalRule::Counter)
    }
}

impl Default for PutSignalRule {
    fn default() -> Self {
        PutSignalRule::Proxies(signal_order::Rule::Count)
    }
}

impl fmt::Display for PutSignalRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PutSignalRule::Proxies(rule) => rule.fmt(f),
            PutSignalRule::Kernel => f.write_str("kernel"),
            PutSignalRule::Counter => f.write_str("counter"),
        }
    }
}

impl FromStr for PutSignalRule {
    type Err = String;

    fn from_str(text: &str) -> Result<PutSignalRule, String> {
        match text {
            "kernel" => Ok(PutSignalRule::Kernel),
            "counter" => Ok(PutSignalRule::Counter),
            _ => text.parse().map(PutSignalRule::Proxies).map_err(|error: String| format!("{error}, kernel, counter")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_round_trip_and_others_are_refused() {
        for text in ["count", "own", "drain", "sequence", "kernel", "counter"] {
            assert_eq!(text.parse::<PutSignalRule>().map(|rule| rule.to_string()), Ok(text.to_owned()));
        }
        let refused = "words".parse::<PutSignalRule>().expect_err("no rule");
        assert!(refused.ends_with("expected one of count, own, drain, sequence, kernel, counter"), "{refused}");
    }
}
