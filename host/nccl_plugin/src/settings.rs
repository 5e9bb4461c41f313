//! What the plugin is told, by variables: NCCL gives it no words of its own. `ginlab nccl` sets them from its options.

use crate::mover::BLOCKS;
use ginlab_fabric::{Fabric, soft};
use ginlab_proxy::signal_order::Rule;
use ginlab_rails::strategy::Strategy;
use kernels::mover::MOST_BLOCKS;
use std::path::PathBuf;
use std::time::Duration;

/// The rails, by the words of `--provider`.
pub const RAILS: &str = "GINLAB_RAILS";
/// How many.
pub const COUNT: &str = "GINLAB_RAIL_COUNT";
/// How puts are laid over them, by the words of `--strategy`.
pub const STRATEGY: &str = "GINLAB_STRATEGY";
/// How a put and its signal are ordered, by the words of `--rule`.
pub const RULE: &str = "GINLAB_RULE";
/// Seconds of every wait.
pub const TIMEOUT: &str = "GINLAB_TIMEOUT";
/// Threads that drive rails, of a process.
pub const THREADS: &str = "GINLAB_NCCL_THREADS";
/// How single words get into a GPU's memory: `stream` (by the stream itself, where the device can) or `copy` (by its copy engine).
pub const WORDS: &str = "GINLAB_NCCL_WORDS";
/// Who copies between a GPU's memory and pinned memory: `kernel` (one of ours while copies follow each other; `kernel:N`, with N blocks for each
/// way) or `engine` (the copy engines alone).
pub const COPIES: &str = "GINLAB_NCCL_COPIES";
/// A fault to inject.
pub const FAULT: &str = "GINLAB_NCCL_FAULT";
/// A folder that each communicator of each rank leaves its record in.
pub const RECORDS: &str = "GINLAB_NCCL_RECORDS";
/// How many puts of each communicator are recorded one by one.
pub const TRACE: &str = "GINLAB_NCCL_TRACE";
/// For tests without a GPU: memory that is registered as CUDA's is the host's, and copies happen late.
pub const PRETEND: &str = "GINLAB_NCCL_PRETEND_GPU";

/// Rails of a run that names none: shared memory, without a model.
const DEFAULT_RAILS: &str = "shared";
/// As long as ginlab's own programs wait.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// A fault, at the N-th put or get of this rank, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is never sent, and never complete.
    Lost(u64),
    /// It fails.
    Error(u64),
    /// From then on this rank does nothing more, as if it had died.
    Dead(u64),
    /// Not at one put: each of this rank's is held back so many microseconds, as if its rails were slow.
    Slow(u64),
}

impl std::str::FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Fault, String> {
        let unknown =
            || format!("{FAULT}: {text:?} is none of lost:N, error:N, dead:N (the N-th put or get, from 1), slow:US");
        let (kind, number) = text.split_once(':').ok_or_else(unknown)?;
        let number = number.parse().ok().filter(|number| *number > 0).ok_or_else(unknown)?;
        match kind {
            "lost" => Ok(Fault::Lost(number)),
            "error" => Ok(Fault::Error(number)),
            "dead" => Ok(Fault::Dead(number)),
            "slow" => Ok(Fault::Slow(number)),
            _ => Err(unknown()),
        }
    }
}

/// Reads [`COPIES`].
fn by_kernel(text: &str) -> Result<Option<u32>, String> {
    let blocks = match text {
        "engine" => return Ok(None),
        "kernel" => Some(BLOCKS),
        // Digits alone: the number as people write it.
        _ => text
            .strip_prefix("kernel:")
            .filter(|number| number.bytes().all(|digit| digit.is_ascii_digit()) && !number.starts_with('0'))
            .and_then(|number| number.parse().ok())
            .filter(|number| (1..=MOST_BLOCKS).contains(number)),
    };
    let none = || {
        format!("{COPIES}: {text:?} is none of engine, kernel, kernel:N (N blocks for each way, 1 to {MOST_BLOCKS})")
    };
    blocks.map(Some).ok_or_else(none)
}

/// All of them.
#[derive(Clone, Debug)]
pub struct Settings {
    /// See [`RAILS`].
    pub fabric: Fabric,
    /// See [`COUNT`].
    pub rails: usize,
    /// See [`STRATEGY`].
    pub strategy: Strategy,
    /// See [`RULE`].
    pub rule: Rule,
    /// See [`TIMEOUT`].
    pub timeout: Duration,
    /// See [`THREADS`].
    pub threads: usize,
    /// See [`FAULT`].
    pub fault: Option<Fault>,
    /// See [`RECORDS`].
    pub records: Option<PathBuf>,
    /// See [`TRACE`].
    pub trace: usize,
    /// See [`WORDS`].
    pub stream_words: bool,
    /// See [`COPIES`]: blocks for each way; `None`: the copy engines alone.
    pub by_kernel: Option<u32>,
    /// For tests without a GPU.
    pub pretend_gpu: bool,
}

impl Settings {
    /// Reads them; `get` is the environment.
    ///
    /// # Errors
    /// The first variable that says what cannot be, in one line.
    pub fn read(get: &dyn Fn(&str) -> Option<String>) -> Result<Settings, String> {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let rails = get(RAILS).unwrap_or_else(|| DEFAULT_RAILS.to_owned());
        let fabric: Fabric = rails.parse().map_err(|why| format!("{RAILS}: {why}"))?;
        if matches!(fabric, Fabric::Null) {
            return Err(format!(
                "{RAILS}=null moves nothing, and NCCL's kernels would wait for ever; {DEFAULT_RAILS} moves bytes and costs no modelled time"
            ));
        }
        if soft::is_asked(&rails) {
            soft::load_preloaded(&rails).map_err(|error| error.to_string())?;
        }
        let number = |name: &str, otherwise: u64, most: u64| match get(name) {
            None => Ok(otherwise),
            Some(text) => match text.parse::<u64>() {
                Ok(value) if (1..=most).contains(&value) => Ok(value),
                _ => Err(format!("{name}: {text:?} is no number from 1 to {most}")),
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
                Some(other) => return Err(format!("{WORDS}: {other:?} is none of copy, stream")),
            },
            by_kernel: get(COPIES).map_or(Ok(Some(BLOCKS)), |text| by_kernel(&text))?,
            pretend_gpu: get(PRETEND).is_some(),
            trace: get(TRACE).map_or(Ok(0), |_| number(TRACE, 0, 1 << 24))? as usize,
        })
    }

    /// The rails in words, for people.
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
    fn variables_have_the_words_of_the_command_line() {
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
            (Duration::from_secs(5), 2, Some(Fault::Lost(3)), 100)
        );
    }

    #[test]
    fn what_cannot_be_is_one_line_that_names_the_variable() {
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
