//! The options, checked: what will be run, or one line that says why not.

use super::args::Args;
use crate::error::Failure;
use ::kernels::queue_kernel::{self as kernels, QueueArgs, SCOPE_THREAD, SCOPE_WARP};
use ginlab::cuda::{Choice, Kernel};
use ginlab::measure::size;
use ginlab::ring::{RingPlace, check_slots};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// A queue to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    Ticket,
    Lanes,
    Release,
    Vyukov,
}

impl Algorithm {
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Ticket => "ticket",
            Algorithm::Lanes => "lanes",
            Algorithm::Release => "release",
            Algorithm::Vyukov => "vyukov",
        }
    }

    pub fn kernel(self, watched: bool) -> &'static Kernel<QueueArgs> {
        match (self, watched) {
            (Algorithm::Ticket, false) => &kernels::QUEUE_TICKET,
            (Algorithm::Ticket, true) => &kernels::QUEUE_TICKET_WATCHED,
            (Algorithm::Lanes, false) => &kernels::QUEUE_LANES,
            (Algorithm::Lanes, true) => &kernels::QUEUE_LANES_WATCHED,
            (Algorithm::Release, false) => &kernels::QUEUE_RELEASE,
            (Algorithm::Release, true) => &kernels::QUEUE_RELEASE_WATCHED,
            (Algorithm::Vyukov, false) => &kernels::QUEUE_VYUKOV,
            (Algorithm::Vyukov, true) => &kernels::QUEUE_VYUKOV_WATCHED,
        }
    }
}

/// One measurement: a tuple of variables, measured for every algorithm and mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    pub place: RingPlace,
    pub words: u32,
    pub slots: usize,
    pub scope: u32,
    pub rings: u32,
    pub grid: u32,
    /// `None`: the device's defaults.
    pub block: Option<u32>,
}

/// Everything that will be run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub algorithms: Vec<Algorithm>,
    /// Whether each push is acknowledged.
    pub modes: Vec<bool>,
    pub tuples: Vec<Tuple>,
    pub slot_words: Option<u32>,
    pub consumers: Option<u32>,
    pub pushes: Option<u32>,
    pub time: Duration,
    pub repeats: u32,
    pub pause: Option<(u64, Duration)>,
    pub check: bool,
    /// The library of the yardstick.
    pub prototype: Option<PathBuf>,
    pub pin: bool,
    pub device: Choice,
    pub timeout: Duration,
}

fn usage(option: &str, why: impl fmt::Display) -> Failure {
    Failure::Usage(format!("{option}: {why}"))
}

fn names<T: Copy>(option: &str, text: &str, known: &[(&str, T)]) -> Result<Vec<T>, Failure> {
    let one = |item: &str| {
        let found = known.iter().find(|(name, _)| *name == item.trim()).map(|(_, value)| *value);
        let all = || known.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        found.ok_or_else(|| usage(option, format!("{item:?} is none of {}", all())))
    };
    text.split(',').map(one).collect()
}

fn counts(option: &str, text: &str) -> Result<Vec<u32>, Failure> {
    size::parse_list(text).map_err(|why| usage(option, why))
}

/// Bytes as words of 8: a power of two.
fn words(option: &str, text: &str, most: u64) -> Result<u32, Failure> {
    let bytes = size::parse(text).map_err(|why| usage(option, why))?;
    if !bytes.is_power_of_two() || !(8..=most).contains(&bytes) {
        return Err(usage(option, format!("{text}; a power of two from 8 to {most}")));
    }
    Ok((bytes / 8) as u32)
}

fn pause(text: &str) -> Result<(u64, Duration), Failure> {
    let parsed = text.split_once(':').and_then(|(every, micros)| {
        let every = every.parse().ok().filter(|every| *every > 0)?;
        micros.parse().ok().filter(|micros| *micros <= 1_000_000).map(|micros| (every, Duration::from_micros(micros)))
    });
    parsed.ok_or_else(|| usage("--pause", format!("{text:?}; ELEMENTS:MICROSECONDS, as 1000:50, at most a second")))
}

impl Plan {
    /// Checks the options.
    pub fn new(args: &Args) -> Result<Plan, Failure> {
        let known =
            [Algorithm::Ticket, Algorithm::Lanes, Algorithm::Release, Algorithm::Vyukov].map(|one| (one.name(), one));
        let places = [("pinned", RingPlace::Pinned), ("managed", RingPlace::Managed), ("gdr", RingPlace::Gdr)];
        let scopes = names("--scope", &args.scope, &[("thread", SCOPE_THREAD), ("warp", SCOPE_WARP)])?;
        let blocks = match &args.block {
            Some(text) => counts("--block", text)?.into_iter().map(Some).collect(),
            None => vec![None],
        };
        let payloads: Vec<u32> =
            args.payload.split(',').map(|text| words("--payload", text, 1024)).collect::<Result<_, _>>()?;
        let slot_words = args.slot_bytes.as_deref().map(|text| words("--slot-bytes", text, 4096)).transpose()?;
        if let Some(slot) = slot_words
            && let Some(large) = payloads.iter().find(|payload| **payload > slot)
        {
            return Err(usage("--slot-bytes", format!("{} are too few for elements of {}", slot * 8, large * 8)));
        }
        let slots = counts("--ring-slots", &args.ring_slots)?;
        for &slots in &slots {
            check_slots(slots as usize).map_err(|why| usage("--ring-slots", why))?;
        }
        for (option, value, most) in [
            ("--repeats", u64::from(args.repeats), 100_000),
            ("--time", args.time, 60_000),
            ("--timeout", args.timeout, 3600),
            ("--pushes", args.pushes.unwrap_or(1).into(), 1 << 31),
            ("--consumers", args.consumers.unwrap_or(1).into(), 64),
        ] {
            if !(1..=most).contains(&value) {
                return Err(usage(option, format!("{value}; from 1 to {most}")));
            }
        }
        let rings = counts("--rings", &args.rings)?;
        if let Some(rings) = rings.iter().find(|rings| !(1..=64).contains(*rings)) {
            return Err(usage("--rings", format!("{rings}; from 1 to 64")));
        }
        let grids = counts("--grid", &args.grid)?;
        let mut tuples = Vec::new();
        for place in names("--memory", &args.memory, &places)? {
            for &words in &payloads {
                for &slots in &slots {
                    for &scope in &scopes {
                        for &rings in &rings {
                            for &grid in &grids {
                                for &block in &blocks {
                                    let slots = slots as usize;
                                    tuples.push(Tuple { place, words, slots, scope, rings, grid, block });
                                }
                            }
                        }
                    }
                }
            }
        }
        let algorithms = names("--algorithm", &args.algorithm, &known)?;
        let modes = names("--mode", &args.mode, &[("blocking", true), ("nbi", false)])?;
        let known_to_it = |tuple: &Tuple| {
            (tuple.place, tuple.words, tuple.scope, tuple.rings) == (RingPlace::Pinned, 4, SCOPE_THREAD, 1)
        };
        let beside = algorithms.contains(&Algorithm::Ticket) && modes.contains(&false);
        if args.prototype.is_some() && !(beside && tuples.iter().all(known_to_it)) {
            let allowed = "-a ticket, -m nbi, -p 32, --rings 1, --scope thread and --memory pinned";
            return Err(usage("--prototype", format!("it is compared with {allowed} alone")));
        }
        Ok(Plan {
            algorithms,
            modes,
            tuples,
            prototype: args.prototype.clone(),
            slot_words,
            consumers: args.consumers,
            pushes: args.pushes,
            time: Duration::from_millis(args.time),
            repeats: args.repeats,
            pause: args.pause.as_deref().map(pause).transpose()?,
            check: !args.no_check,
            pin: !args.no_pin,
            device: args.device.into(),
            timeout: Duration::from_secs(args.timeout),
        })
    }
}
