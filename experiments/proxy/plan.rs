//! The options, checked: what will be run, or one line that says why not. Pure, but for the memory that is free.

use super::args::{Args, Scope};
use crate::error::Failure;
use crate::job::MemoryKind;
use ginlab::bootstrap::Kind;
use ginlab::cuda::Choice;
use ginlab::fabric::FabricError;
use ginlab::fabric::libfabric::Level;
use ginlab::fabric::model::{self, Profile};
use ginlab::measure::size;
use ginlab::proxy::Fault;
use ginlab::proxy::strategy::Strategy;
use ginlab::ring::RingPlace;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The rail kind that has no network.
pub const NULL: &str = "null";

/// Source, and destination, of a rank when the user names no limit.
const DEFAULT_MEMORY_LIMIT: u64 = 2 << 30;

/// How the kernel waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// After every put.
    Quiet,
    /// Once at the end.
    Nbi,
    /// After every so many puts.
    QuietEvery(u32),
}

impl Mode {
    /// As the kernel takes it: 0 is once at the end.
    pub fn quiet_every(self) -> u32 {
        match self {
            Mode::Quiet => 1,
            Mode::Nbi => 0,
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
            _ => Err(format!("mode {text:?} is none of quiet, nbi, quiet-every=K")),
        }
    }
}

/// One measurement: a tuple of variables, measured in every mode and by CPU-initiated writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    pub bytes: u64,
    pub rails: usize,
    pub strategy: Strategy,
    pub grid: u32,
    /// `None`: the device's default.
    pub block: Option<u32>,
}

/// Everything that will be run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub sizes: Vec<u64>,
    pub modes: Vec<Mode>,
    pub grids: Vec<u32>,
    pub blocks: Vec<Option<u32>>,
    pub rails: Vec<usize>,
    pub strategies: Vec<Strategy>,
    pub scope: Scope,
    pub window: u32,
    pub iterations: u32,
    pub warmup: u32,
    pub repeats: u32,
    pub volume: u64,
    pub memory_limit: u64,
    /// The user has named a limit: what the system calls available is not asked (some machines grow as memory is used).
    pub memory_is_promised: bool,
    pub provider: Option<String>,
    /// Why the rails are null though nobody has asked for it.
    pub why_null: Option<String>,
    /// Modelled cards, by the name of their profile.
    pub model: Option<(String, Profile)>,
    /// Whether they move bytes in the timed passes too.
    pub moves: bool,
    pub domains: Vec<String>,
    pub level: Level,
    pub device: Choice,
    pub memory: MemoryKind,
    pub fill: bool,
    pub check: bool,
    pub bare: bool,
    /// The life of sampled puts.
    pub trace: Option<TraceTo>,
    pub bootstrap: Option<Kind>,
    pub proxy_threads: usize,
    pub pin: Pin,
    pub ring_slots: usize,
    pub ring_memory: RingPlace,
    pub timeout: Duration,
    pub fault: Option<Fault>,
}

/// Which cores the proxy threads take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pin {
    /// Chosen, where there are enough.
    Auto,
    /// None.
    Off,
    /// These, by local rank and thread.
    List(Vec<usize>),
}

/// Files that begin with this path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceTo(PathBuf);

impl TraceTo {
    fn new(prefix: &str) -> Result<TraceTo, Failure> {
        let path = PathBuf::from(prefix);
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        if path.file_name().is_none() || parent.is_some_and(|parent| !parent.is_dir()) {
            return Err(usage("--trace", format!("{prefix:?} is no name in a folder that exists")));
        }
        Ok(TraceTo(path))
    }

    /// The file with this extension.
    pub fn with(&self, extension: &str) -> PathBuf {
        let mut name = self.0.clone().into_os_string();
        name.push(".");
        name.push(extension);
        name.into()
    }
}

fn usage(option: &str, why: impl fmt::Display) -> Failure {
    Failure::Usage(format!("{option}: {why}"))
}

fn at_least_one(option: &str, value: u64) -> Result<(), Failure> {
    if value == 0 { Err(usage(option, "0 is too few; from 1 on")) } else { Ok(()) }
}

fn list<T: FromStr<Err = String>>(option: &str, text: &str) -> Result<Vec<T>, Failure> {
    text.split(',').map(|item| item.trim().parse::<T>().map_err(|why| usage(option, why))).collect()
}

fn counts(option: &str, text: &str) -> Result<Vec<u32>, Failure> {
    size::parse_list(text).map_err(|why| usage(option, why))
}

fn bytes(option: &str, text: &str) -> Result<u64, Failure> {
    size::parse(text).map_err(|why| usage(option, why))
}

fn fault(text: &str) -> Result<Fault, Failure> {
    let parsed = text.split_once('=').and_then(|(name, count)| {
        let count = count.parse().ok()?;
        match name {
            "proxy-vanish" => Some(Fault::Vanish(count)),
            "proxy-stop" => Some(Fault::Stop(count)),
            "rails-silent" => Some(Fault::Silent(count)),
            "corrupt" => Some(Fault::Corrupt(count)),
            _ => None,
        }
    });
    parsed.ok_or_else(|| {
        usage("--fault", format!("{text:?} is none of proxy-vanish=N, proxy-stop=N, rails-silent=N, corrupt=N"))
    })
}

impl Plan {
    /// Checks the options.
    pub fn new(args: &Args) -> Result<Plan, Failure> {
        let begin = bytes("--begin", &args.begin)?;
        let end = bytes("--end", &args.end)?;
        if begin == 0 {
            return Err(usage("--begin", "a put of 0 bytes moves nothing; from 1 on"));
        }
        let sizes = size::sweep(begin, end, args.factor).map_err(|why| usage("-b/-e/-f", why))?;
        if end > kernels::command::MAX_OFFSET {
            return Err(usage("--end", format!("{} is beyond what a command can name, 2^48", args.end)));
        }
        for (option, value) in [
            ("--iterations", args.iterations.into()),
            ("--repeats", args.repeats.into()),
            ("--window", args.window.into()),
            ("--proxy-threads", args.proxy_threads as u64),
            ("--timeout", args.timeout),
        ] {
            at_least_one(option, value)?;
        }
        if args.proxy_threads > 64 {
            return Err(usage("--proxy-threads", format!("{} are too many; 1 to 64", args.proxy_threads)));
        }
        if args.timeout > 3600 {
            return Err(usage("--timeout", format!("{} s; 1 to 3600", args.timeout)));
        }
        ginlab::ring::check_slots(args.ring_slots).map_err(|why| usage("--ring-slots", why))?;
        let null = args.provider.as_deref() == Some(NULL);
        if null && !args.domain.is_empty() {
            return Err(usage("--domain", "the null provider has no domains"));
        }
        let model = match args.provider.as_deref().and_then(|name| name.strip_prefix(model::PREFIX)) {
            Some(_) if !args.domain.is_empty() => return Err(usage("--domain", "modelled cards have no domains")),
            Some(name) => {
                let profile = Profile::named(name).map_err(|why| usage("--provider", why))?;
                Some((name.to_owned(), profile))
            }
            None if args.no_move => return Err(usage("--no-move", "only modelled cards (-p model:p5) can do without")),
            None => None,
        };
        let rails: Vec<usize> = counts("--rails", &args.rails)?.into_iter().map(|rails| rails as usize).collect();
        if let Some(rails) = rails.iter().find(|rails| **rails > 64) {
            return Err(usage("--rails", format!("{rails} are more than any machine has; 1 to 64")));
        }
        if let Some((name, profile)) = &model
            && let Some(rails) = rails.iter().find(|rails| **rails as f64 > profile.cards.value)
        {
            return Err(usage("--rails", format!("{rails}; a {name} has {} cards", profile.cards.value)));
        }
        let blocks = match &args.block {
            Some(text) => counts("--block", text)?.into_iter().map(Some).collect(),
            None => vec![None],
        };
        Ok(Plan {
            sizes,
            modes: list("--mode", &args.mode)?,
            grids: counts("--grid", &args.grid)?,
            blocks,
            rails,
            strategies: list("--strategy", &args.strategy)?,
            scope: args.scope,
            window: args.window,
            iterations: args.iterations,
            warmup: args.warmup,
            repeats: args.repeats,
            volume: bytes("--volume", &args.volume)?,
            memory_limit: args
                .memory_limit
                .as_deref()
                .map_or(Ok(DEFAULT_MEMORY_LIMIT), |text| bytes("--memory-limit", text))?,
            memory_is_promised: args.memory_limit.is_some(),
            provider: args.provider.clone(),
            why_null: None,
            model,
            moves: !args.no_move,
            domains: args.domain.clone(),
            level: args.completion.into(),
            device: args.device.into(),
            memory: args.mem,
            fill: !args.no_fill,
            check: !args.no_check,
            bare: args.bare,
            trace: args.trace.as_deref().map(TraceTo::new).transpose()?,
            bootstrap: args.bootstrap.map(Kind::from),
            proxy_threads: args.proxy_threads,
            pin: match args.pin.as_str() {
                "auto" => Pin::Auto,
                "off" => Pin::Off,
                cores => Pin::List(
                    cores
                        .split(',')
                        .map(|core| core.trim().parse::<usize>())
                        .collect::<Result<_, _>>()
                        .map_err(|_| usage("--pin", format!("{cores:?} is none of auto, off, a list of cores")))?,
                ),
            },
            ring_slots: args.ring_slots,
            ring_memory: args.ring_memory.into(),
            timeout: Duration::from_secs(args.timeout),
            fault: args.fault.as_deref().map(fault).transpose()?,
        })
    }

    /// Whether the rails are libfabric's.
    pub fn needs_library(&self) -> bool {
        !self.is_null() && self.model.is_none()
    }

    /// There is no libfabric: a run that leaves the choice to us takes null rails and says why, any other is refused.
    pub fn do_without_library(&mut self, missing: &FabricError) -> Result<(), Failure> {
        if self.provider.is_some() || !self.domains.is_empty() {
            return Err(Failure::Usage(missing.to_string()));
        }
        self.provider = Some(NULL.to_owned());
        self.why_null = Some(format!("provider null, by which puts end in the proxy and nothing is moved: {missing}"));
        Ok(())
    }

    /// Whether puts end in the proxy, without a network.
    pub fn is_null(&self) -> bool {
        self.provider.as_deref() == Some(NULL)
    }

    /// Ranks of a local job when the user names no number.
    pub fn default_ranks(&self) -> usize {
        if self.is_null() { 1 } else { 2 }
    }

    /// Refuses a number of ranks that cannot be paired.
    pub fn check_ranks(&self, ranks: usize) -> Result<(), Failure> {
        if self.is_null() || (ranks > 0 && ranks.is_multiple_of(2)) {
            return Ok(());
        }
        Err(usage(
            "--np",
            format!(
                "{ranks} ranks cannot be paired: an even number (half of them puts to the other half), or --provider null"
            ),
        ))
    }

    /// Every tuple, in the order it is measured.
    pub fn rows(&self) -> impl Iterator<Item = Tuple> + '_ {
        self.rails.iter().flat_map(move |&rails| {
            self.strategies.iter().flat_map(move |&strategy| {
                self.grids.iter().flat_map(move |&grid| {
                    self.blocks.iter().flat_map(move |&block| {
                        self.sizes.iter().map(move |&bytes| Tuple { bytes, rails, strategy, grid, block })
                    })
                })
            })
        })
    }

    /// What must be the same on all ranks.
    pub fn fingerprint(&self) -> Vec<(String, String)> {
        let joined = |values: Vec<String>| values.join(",");
        let text = |name: &str, value: String| (name.to_owned(), value);
        vec![
            text("provider", self.provider.clone().unwrap_or_else(|| "default".into())),
            text("rails", joined(self.rails.iter().map(usize::to_string).collect())),
            text("strategies", joined(self.strategies.iter().map(Strategy::to_string).collect())),
            text("sizes", joined(self.sizes.iter().map(u64::to_string).collect())),
            text("modes", joined(self.modes.iter().map(Mode::to_string).collect())),
            text("grids", format!("{:?}", self.grids)),
            text("blocks", format!("{:?}", self.blocks)),
            text("iterations", format!("{}+{}x{}", self.warmup, self.iterations, self.repeats)),
            text("window", self.window.to_string()),
            text("volume", self.volume.to_string()),
            text("memory limit", self.memory_limit.to_string()),
            text("payload", format!("{:?} fill={} check={} bare={}", self.memory, self.fill, self.check, self.bare)),
            text("scope", format!("{:?}", self.scope)),
            text("proxy threads", self.proxy_threads.to_string()),
            text("trace", self.trace.is_some().to_string()),
            text("ring memory", self.ring_place().into()),
            text("moved bytes", self.moves.to_string()),
            text("completion", self.completion().into()),
        ]
    }

    /// Where the rings are, for rows.
    pub fn ring_place(&self) -> &'static str {
        match self.ring_memory {
            RingPlace::Pinned => "pinned",
            RingPlace::Managed => "managed",
            RingPlace::Gdr => "gdr",
        }
    }

    /// The completion level for rows and header.
    pub fn completion(&self) -> &'static str {
        match self.level {
            _ if self.is_null() => "proxy",
            Level::Delivery => "delivery",
            Level::Transmit => "transmit",
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Wrapper {
        #[command(flatten)]
        args: Args,
    }

    /// The plan of a command line; the text of the usage error otherwise.
    pub fn plan(options: &str) -> Result<Plan, String> {
        let words = std::iter::once("ginlab").chain(options.split_whitespace());
        let args = Wrapper::try_parse_from(words).map_err(|error| error.to_string())?.args;
        Plan::new(&args).map_err(|failure| match failure {
            Failure::Usage(text) => text,
            other => panic!("a usage error was expected: {other:?}"),
        })
    }

    #[test]
    fn bad_input_is_one_line_that_names_the_option() {
        for (options, expected) in [
            ("-b 0", "from 1 on"),
            ("-b 8 -e 4", "-b/-e/-f"),
            ("-f 1", "-b/-e/-f"),
            ("-b 1X", "--begin"),
            ("-e 1T -b 512T", "-b/-e/-f"),
            ("-n 0", "--iterations"),
            ("-r 0", "--repeats"),
            ("--window 0", "--window"),
            ("--rails 0", "--rails"),
            ("--rails 65", "1 to 64"),
            ("--rails 1,,2", "--rails"),
            ("--grid 0", "--grid"),
            ("--grid one", "--grid"),
            ("--block 0", "--block"),
            ("--mode fast", "quiet, nbi, quiet-every=K"),
            ("--mode quiet-every=0", "from 1 on"),
            ("--strategy stripe", "round-robin"),
            ("--ring-slots 3", "power of two"),
            ("--ring-slots 0", "power of two"),
            ("--proxy-threads 0", "--proxy-threads"),
            ("--timeout 0", "--timeout"),
            ("--pin first", "--pin"),
            ("--provider null --domain lo", "no domains"),
            ("-p model:p3", "known are model:p4d, model:p5"),
            ("-p model:p5 --domain lo", "no domains"),
            ("-p model:p4d --rails 8", "a p4d has 4 cards"),
            ("--no-move", "only modelled cards"),
            ("--fault fire=3", "--fault"),
            ("-e 512T", "2^48"),
        ] {
            let error = plan(options).expect_err(options);
            assert!(error.contains(expected), "{options}: {error}");
            assert!(!error.contains('\n'), "{options}: {error}");
        }
    }

    #[test]
    fn rows_are_all_combinations() {
        let plan =
            plan("-b 1K -e 4K -f 2 --rails 1,4 --strategy single,split --grid 1,8,32 --block 32,64").expect("good");
        let rows: Vec<Tuple> = plan.rows().collect();
        assert_eq!(rows.len(), 3 * 2 * 2 * 3 * 2);
        assert!(rows.iter().enumerate().all(|(index, row)| !rows[..index].contains(row)));
    }

    #[test]
    fn ranks_must_pair() {
        let plan_of = |options| plan(options).expect("good");
        assert!(plan_of("").check_ranks(1).is_err() && plan_of("").check_ranks(3).is_err());
        assert!(plan_of("").check_ranks(2).is_ok() && plan_of("").check_ranks(8).is_ok());
        assert!(plan_of("-p null").check_ranks(1).is_ok());
    }

    #[test]
    fn modes_go_both_ways() {
        for text in ["quiet", "nbi", "quiet-every=8"] {
            assert_eq!(text.parse::<Mode>().expect("known").to_string(), text);
        }
    }
}
