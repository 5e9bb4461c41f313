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

/// Why words that carry their round are no rule of signals. Not as a second write behind its put: a card keeps no order of writes, so it may be there
/// first. Not as a counter: there is no remote add, so of two adds that are under way one is lost, or undone by the other.
const NO_WORDS: &str = "rule words: a word that carries its round tells of itself alone, not of a put, and nobody can add to it, so it is no signal: \
                        kernels send one by p_round and wait_value (moe --count word does); signals by path direct: count, kernel, counter";

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
            "words" => Err(NO_WORDS.to_owned()),
            _ => text.parse().map(Rule::Proxies).map_err(|error: String| format!("{error}, kernel, counter")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_go_both_ways_and_words_are_refused_by_what_to_use() {
        for text in ["count", "own", "drain", "sequence", "kernel", "counter"] {
            assert_eq!(text.parse::<Rule>().map(|rule| rule.to_string()), Ok(text.to_owned()));
        }
        let refused = |text: &str| text.parse::<Rule>().expect_err(text);
        let words = refused("words");
        assert!(words.contains("p_round and wait_value (moe --count word does)") && !words.contains('\n'), "{words}");
        assert!(refused("word").ends_with("none of count, own, drain, sequence, kernel, counter"));
    }
}
