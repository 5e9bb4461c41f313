//! Settings from environment variables, since NCCL passes no parameters to plugins. `ginlab nccl` sets the variables
//! from its options.

use crate::mover::BLOCKS;
use crate::testing::Pretend;
use ginlab_fabric::{Fabric, soft};
use ginlab_proxy::signal_order::Rule;
use ginlab_rails::strategy::Strategy;
use kernels::mover::MOST_BLOCKS;
use std::path::PathBuf;
use std::time::Duration;

/// Kind of rails, in the syntax of `--provider`.
pub const RAILS: &str = "GINLAB_RAILS";
/// Number of rails.
pub const COUNT: &str = "GINLAB_RAIL_COUNT";
/// Distribution of puts over rails, in the syntax of `--strategy`.
pub const STRATEGY: &str = "GINLAB_STRATEGY";
/// Ordering of a put and its signal, in the syntax of `--rule`.
pub const RULE: &str = "GINLAB_RULE";
/// Timeout of every wait, in seconds.
pub const TIMEOUT: &str = "GINLAB_TIMEOUT";
/// Number of threads per process that drive rails.
pub const THREADS: &str = "GINLAB_NCCL_THREADS";
/// Method of writing single words to GPU memory: `stream` (by the stream itself, if the device supports it) or `copy`
/// (by its copy engine).
pub const WORDS: &str = "GINLAB_NCCL_WORDS";
/// Method of copying between GPU memory and pinned memory: `kernel` (a ginlab kernel while there are many copies;
/// `kernel:N` with N blocks per direction) or `engine` (only the copy engines).
pub const COPIES: &str = "GINLAB_NCCL_COPIES";
/// Fault to inject.
pub const FAULT: &str = "GINLAB_NCCL_FAULT";
/// Directory in which each rank writes a record per communicator.
pub const RECORDS: &str = "GINLAB_NCCL_RECORDS";
/// Number of operations per communicator that are recorded individually.
pub const TRACE: &str = "GINLAB_NCCL_TRACE";
/// Enables tests without a GPU: memory registered as CUDA memory is host memory, and copies are delayed.
pub const PRETEND: &str = "GINLAB_NCCL_PRETEND_GPU";

/// Rails that are used if none are specified: shared memory, without a model.
const DEFAULT_RAILS: &str = "shared";
/// Timeout that is used if none is specified, the same as in ginlab's subcommands.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// An injected fault at the N-th put or get of this rank, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PluginFault {
    /// The operation is never sent, and never completes.
    Lost(u64),
    /// The operation fails.
    Error(u64),
    /// The rank performs no further action from this operation on, as if its process had died.
    Dead(u64),
    /// Every operation of this rank is delayed by this many microseconds, as if its rails were slow.
    Slow(u64),
}

impl std::str::FromStr for PluginFault {
    type Err = String;

    fn from_str(text: &str) -> Result<PluginFault, String> {
        let unknown = || {
            format!(
                "{FAULT}: invalid fault {text:?}: expected one of lost:N, error:N, dead:N (the N-th put or get, from \
                 1), slow:US"
            )
        };
        let (kind, number) = text.split_once(':').ok_or_else(unknown)?;
        let number = number.parse().ok().filter(|number| *number > 0).ok_or_else(unknown)?;
        match kind {
            "lost" => Ok(PluginFault::Lost(number)),
            "error" => Ok(PluginFault::Error(number)),
            "dead" => Ok(PluginFault::Dead(number)),
            "slow" => Ok(PluginFault::Slow(number)),
            _ => Err(unknown()),
        }
    }
}

/// Parses the value of [`COPIES`].
fn by_kernel(text: &str) -> Result<Option<u32>, String> {
    let blocks = match text {
        "engine" => return Ok(None),
        "kernel" => Some(BLOCKS),
        // Accepts only digits, without a sign or leading zeros.
        _ => text
            .strip_prefix("kernel:")
            .filter(|number| number.bytes().all(|digit| digit.is_ascii_digit()) && !number.starts_with('0'))
            .and_then(|number| number.parse().ok())
            .filter(|number| (1..=MOST_BLOCKS).contains(number)),
    };
    let none = || {
        format!(
            "{COPIES}: invalid value {text:?}: expected one of engine, kernel, kernel:N (N blocks for each direction, \
             1 to {MOST_BLOCKS})"
        )
    };
    blocks.map(Some).ok_or_else(none)
}

/// Settings of the plugin.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Value of [`RAILS`].
    pub fabric: Fabric,
    /// Value of [`COUNT`].
    pub rails: usize,
    /// Value of [`STRATEGY`].
    pub strategy: Strategy,
    /// Value of [`RULE`].
    pub rule: Rule,
    /// Value of [`TIMEOUT`].
    pub timeout: Duration,
    /// Value of [`THREADS`].
    pub threads: usize,
    /// Value of [`FAULT`].
    pub fault: Option<PluginFault>,
    /// Value of [`RECORDS`].
    pub records: Option<PathBuf>,
    /// Value of [`TRACE`], or 0 without a trace.
    pub trace: usize,
    /// Whether [`WORDS`] is `stream`.
    pub stream_words: bool,
    /// Blocks per direction according to [`COPIES`]; `None` for only the copy engines.
    pub by_kernel: Option<u32>,
    /// Settings of a rank without a GPU; `None` unless [`PRETEND`] is set.
    pub pretend_gpu: Option<Pretend>,
}

impl Settings {
    /// Reads the settings. `get` returns the value of an environment variable.
    ///
    /// # Errors
    /// Returns a one-line error for the first variable with an invalid value.
    pub fn read(get: &dyn Fn(&str) -> Option<String>) -> Result<Settings, String> {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let rails = get(RAILS).unwrap_or_else(|| DEFAULT_RAILS.to_owned());
        let fabric: Fabric = rails.parse().map_err(|why| format!("{RAILS}: {why}"))?;
        if matches!(fabric, Fabric::Null) {
            return Err(format!(
                "{RAILS}=null moves no bytes, so that NCCL's kernels would wait indefinitely; {DEFAULT_RAILS} moves \
                 bytes without modelled time"
            ));
        }
        if soft::is_asked(&rails) {
            soft::load_preloaded(&rails).map_err(|error| error.to_string())?;
        }
        let number = |name: &str, otherwise: u64, most: u64| match get(name) {
            None => Ok(otherwise),
            Some(text) => match text.parse::<u64>() {
                Ok(value) if (1..=most).contains(&value) => Ok(value),
                _ => Err(format!("{name}: invalid value {text:?}: must be from 1 to {most}")),
            },
        };
        let word = |name: &str, why: String| format!("{name}: {why}");
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        Ok(Settings {
            fabric,
            rails: number(COUNT, 1, 64)? as usize,
            strategy: get(STRATEGY)
                .map_or(Ok(Strategy::RoundRobin), |text| text.parse())
                .map_err(|why| word(STRATEGY, why))?,
            rule: get(RULE).map_or(Ok(Rule::default()), |text| text.parse()).map_err(|why| word(RULE, why))?,
            timeout: Duration::from_secs(number(TIMEOUT, DEFAULT_TIMEOUT.as_secs(), 86400)?),
            threads: number(THREADS, (cores / 4).clamp(1, 4), 64)? as usize,
            fault: get(FAULT).map(|text| text.parse()).transpose()?,
            records: get(RECORDS).map(PathBuf::from),
            stream_words: match get(WORDS).as_deref() {
                None | Some("stream") => true,
                Some("copy") => false,
                Some(other) => return Err(format!("{WORDS}: invalid value {other:?}: expected one of copy, stream")),
            },
            by_kernel: get(COPIES).map_or(Ok(Some(BLOCKS)), |text| by_kernel(&text))?,
            pretend_gpu: get(PRETEND).map(|_| Pretend::of_this_thread(get(COPIES).is_some())),
            trace: get(TRACE).map_or(Ok(0), |_| number(TRACE, 0, 1 << 24))? as usize,
        })
    }

    /// Returns a human-readable description of the rails.
    pub fn rails_text(&self) -> String {
        format!("{} x {}, {}, rule {}", self.rails, self.fabric, self.strategy, self.rule)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, String> {
        let find = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Settings::read(&find)
    }

    #[test]
    fn variables_accept_command_line_values() {
        let none = read(&[]).unwrap();
        assert_eq!((none.fabric.to_string().as_str(), none.rails, none.strategy), ("shared", 1, Strategy::RoundRobin));
        let all = read(&[
            (RAILS, "worst:seed=7"),
            (COUNT, "4"),
            (STRATEGY, "split"),
            (RULE, "own"),
            (TIMEOUT, "5"),
            (THREADS, "2"),
            (FAULT, "lost:3"),
            (TRACE, "100"),
        ])
        .unwrap();
        let copies = |text| read(&[(COPIES, text)]).unwrap().by_kernel;
        assert_eq!((none.by_kernel, copies("kernel")), (Some(BLOCKS), Some(BLOCKS)));
        assert_eq!((copies("engine"), copies("kernel:1"), copies("kernel:32")), (None, Some(1), Some(32)));
        assert_eq!((all.rails, all.strategy, all.rule), (4, Strategy::Split, Rule::Own));
        assert_eq!(
            (all.timeout, all.threads, all.fault, all.trace),
            (Duration::from_secs(5), 2, Some(PluginFault::Lost(3)), 100)
        );
    }

    #[test]
    fn invalid_values_name_variable_in_one_line() {
        for (name, value) in [
            (RAILS, "null"),
            (RAILS, "model:p3"),
            (RAILS, "soft-efa:p5"),
            (COUNT, "0"),
            (COUNT, "x"),
            (STRATEGY, "both"),
            (RULE, "none"),
            (TIMEOUT, "0"),
            (THREADS, "65"),
            (FAULT, "lost"),
            (FAULT, "lost:0"),
            (FAULT, "found:1"),
            (FAULT, "slow:0"),
            (TRACE, "-1"),
            (WORDS, "both"),
            (COPIES, "both"),
            (COPIES, "kernel:"),
            (COPIES, "kernel:0"),
            (COPIES, "kernel:+4"),
            (COPIES, "kernel:04"),
            (COPIES, "kernel:33"),
            (COPIES, "kernel:4 "),
            (COPIES, "engine:4"),
        ] {
            let said = read(&[(name, value)]).unwrap_err();
            assert!(
                said.lines().count() == 1 && (said.contains(name) || value == "soft-efa:p5"),
                "{name}={value}: {said}"
            );
        }
    }
}
