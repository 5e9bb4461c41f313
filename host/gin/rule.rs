//! Who makes the order of a put and its signal, and counts signals.

use ginlab_proxy::signal_order;
use std::fmt;
use std::str::FromStr;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The proxies, by one of their rules. By path direct, which has none, [`signal_order::Rule::Count`] alone: a put is one request, its immediate
    /// arrives with it, and a CPU thread counts.
    Proxies(signal_order::Rule),
    /// By path direct: the same immediate, read from the card's queue by the kernel that waits for it.
    Kernel,
    /// By path direct: as `Kernel`, and what adds 1 to one of the first signals is counted by the card, in a counter of that signal's, which the
    /// kernel that waits reads. Cards of p5en and p6.
    Counter,
}

impl Default for Rule {
    fn default() -> Self {
        Rule::Proxies(signal_order::Rule::Count)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Proxies(rule) => rule.fmt(f),
            Rule::Kernel => f.write_str("kernel"),
            Rule::Counter => f.write_str("counter"),
        }
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Rule, String> {
        match text {
            "kernel" => Ok(Rule::Kernel),
            "counter" => Ok(Rule::Counter),
            _ => text.parse().map(Rule::Proxies).map_err(|error: String| format!("{error}, kernel, counter")),
        }
    }
}
