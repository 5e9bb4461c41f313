//! Parameters of the worst-case network: `worst:seed=7,delay=128`.

use ginlab_base::size;
use std::fmt;
use std::str::FromStr;

/// Provider name of these rails.
pub const NAME: &str = "worst";

/// All options, for messages.
const KEYS: &str = "seed=N, delay=1..4096 (events), packets=1..64, again=0..90 (percent of posts), resend=0..100 (percent of packets), \
                    longest=SIZE (of one transfer), queue=1..65536 (immediates), poison=on|off, watch=on|strict|off, messages=ordered|any, idle=1..4096 (polls)";

/// The parameters of a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorstSpec {
    /// Seed of all random choices.
    pub seed: u64,
    /// Maximum delay in events.
    pub delay: u64,
    /// Maximum number of packets into which a transfer is split.
    pub packets: u64,
    /// Percentage of posts that return "again", at most three in a row.
    pub again: u64,
    /// Percentage of packets that are written again.
    pub resend: u64,
    /// Maximum size of a transfer in bytes. Longer puts are split before they are posted.
    pub longest: u64,
    /// Number of immediates that a completion queue can hold; `None` for no limit. A larger number of unpolled
    /// immediates is an error.
    pub queue: Option<u64>,
    /// Whether destinations are filled with a poison value from the post to the arrival.
    pub poison: bool,
    /// Whether a rewritten source, and a destination with conflicting transfers, are errors.
    pub watch: bool,
    /// Whether a source must not be rewritten before the completion even if the target was notified of the put, as the
    /// libfabric specification requires.
    pub strict: bool,
    /// Whether messages of one sender are matched with receives in the order of their posts (FI_ORDER_SAS).
    pub ordered_messages: bool,
    /// Number of polls without an event that count as an event. Time then does not count, so that a program on one
    /// thread repeats a run exactly. `None` for 64 polls or 20 us.
    pub idle: Option<u64>,
}

impl Default for WorstSpec {
    fn default() -> Self {
        WorstSpec {
            seed: 1,
            delay: 64,
            packets: 8,
            again: 5,
            resend: 20,
            longest: 64 << 10,
            queue: None,
            poison: true,
            watch: true,
            strict: false,
            ordered_messages: true,
            idle: None,
        }
    }
}

/// Returns whether a provider's name requests such rails.
#[must_use]
pub fn is_asked(provider: &str) -> bool {
    provider.strip_prefix(NAME).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

fn within(text: &str, least: u64, most: u64) -> Option<u64> {
    text.parse().ok().filter(|number| (least..=most).contains(number))
}

fn either(text: &str, yes: &str, no: &str) -> Option<bool> {
    [(yes, true), (no, false)].into_iter().find_map(|(word, value)| (text == word).then_some(value))
}

impl WorstSpec {
    /// Returns the byte with which destinations are filled until a put arrives. Counters that consist of such bytes are
    /// large, and floating-point numbers are implausible.
    #[must_use]
    pub fn poison_byte(&self) -> u8 {
        0xDB ^ (self.seed as u8 & 0x1f)
    }

    /// Returns a note for headers.
    #[must_use]
    pub fn note(&self) -> String {
        format!(
            "{self}: deliberately the least ordered network that EFA permits: packets, immediates and completions are \
             late and in any order, bytes are rewritten until the completion; its times and rates are not those of a \
             network"
        )
    }

    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            "seed" => self.seed = value.parse().ok()?,
            "delay" => self.delay = within(value, 1, 4096)?,
            "packets" => self.packets = within(value, 1, 64)?,
            "again" => self.again = within(value, 0, 90)?,
            "resend" => self.resend = within(value, 0, 100)?,
            "longest" => self.longest = size::parse(value).ok().filter(|bytes| (1..=1 << 30).contains(bytes))?,
            "queue" => self.queue = Some(within(value, 1, 1 << 16)?),
            "watch" if !["on", "off", "strict"].contains(&value) => return None,
            "poison" => self.poison = either(value, "on", "off")?,
            "watch" => (self.watch, self.strict) = (value != "off", value == "strict"),
            "messages" => self.ordered_messages = either(value, "ordered", "any")?,
            "idle" => self.idle = Some(within(value, 1, 4096)?),
            _ => return None,
        }
        Some(())
    }
}

impl FromStr for WorstSpec {
    type Err = String;

    /// Parses `worst`, `worst:seed=7,delay=128`.
    fn from_str(text: &str) -> Result<WorstSpec, String> {
        let refused = |what: String| format!("invalid provider {text:?}: {what}; options are {KEYS}");
        let options = match text.strip_prefix(NAME) {
            Some("") => return Ok(WorstSpec::default()),
            Some(rest) => {
                rest.strip_prefix(':').ok_or_else(|| refused("expected a colon before the options".into()))?
            }
            None => return Err(refused(format!("it does not start with {NAME}"))),
        };
        let mut spec = WorstSpec::default();
        for option in options.split(',') {
            let Some((key, value)) = option.split_once('=') else {
                return Err(refused(format!("{option:?} is not an option with a value")));
            };
            spec.set(key.trim(), value.trim()).ok_or_else(|| refused(format!("{option:?} is not valid")))?;
        }
        Ok(spec)
    }
}

/// Formats the seed and the parameters that differ from the defaults.
impl fmt::Display for WorstSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = WorstSpec::default();
        write!(f, "{NAME}:seed={}", self.seed)?;
        for (key, value, default) in [
            ("delay", self.delay, usual.delay),
            ("packets", self.packets, usual.packets),
            ("again", self.again, usual.again),
            ("resend", self.resend, usual.resend),
            ("longest", self.longest, usual.longest),
        ] {
            if value != default {
                write!(f, ",{key}={value}")?;
            }
        }
        if let Some(queue) = self.queue {
            write!(f, ",queue={queue}")?;
        }
        if !self.poison {
            f.write_str(",poison=off")?;
        }
        match (self.watch, self.strict) {
            (false, _) => f.write_str(",watch=off")?,
            (true, true) => f.write_str(",watch=strict")?,
            (true, false) => {}
        }
        if !self.ordered_messages {
            f.write_str(",messages=any")?;
        }
        self.idle.map_or(Ok(()), |idle| write!(f, ",idle={idle}"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends by panicking")]
    use super::*;

    #[test]
    fn spec_formats_back_to_its_source() {
        assert_eq!("worst".parse(), Ok(WorstSpec::default()));
        assert_eq!(WorstSpec::default().to_string(), "worst:seed=1");
        let all = "worst:seed=18446744073709551615,delay=9,packets=1,again=0,resend=100,longest=4096,queue=7,poison=off,watch=off,messages=any,idle=4";
        let spec: WorstSpec = all.parse().unwrap();
        assert_eq!(spec.to_string(), all);
        assert_eq!("worst:watch=strict".parse::<WorstSpec>().unwrap().to_string(), "worst:seed=1,watch=strict");
        assert_eq!(
            "worst: longest = 4K , seed=3".parse::<WorstSpec>().unwrap().to_string(),
            "worst:seed=3,longest=4096"
        );
        assert!(is_asked("worst") && is_asked("worst:") && !is_asked("worster") && !is_asked("tcp"));
    }

    #[test]
    fn invalid_spec_error_lists_all_keys() {
        for bad in [
            "worst:",
            "worst:seed",
            "worst:seed=",
            "worst:seed=-1",
            "worst:delay=0",
            "worst:delay=5000",
            "worst:packets=0",
            "worst:again=100",
            "worst:resend=101",
            "worst:longest=0",
            "worst:longest=2G",
            "worst:queue=0",
            "worst:poison=yes",
            "worst:watch=1",
            "worst:idle=0",
            "worst:speed=3",
            "worst:seed=1,,delay=3",
            "worst seed=3",
            "best",
        ] {
            let error = bad.parse::<WorstSpec>().unwrap_err();
            assert!(
                error.contains(bad) && error.contains("options are seed=N, delay=") && !error.contains('\n'),
                "{error}"
            );
        }
    }
}
