//! The values that options of experiments take: parsed by clap, refused in one line.

use crate::error::Failure;
use clap::ValueEnum;
use ginlab::measure::size;
use ginlab::proxy::Fault;
use ginlab::ring::{self, check_slots};
use std::fmt::{self, Display};
use std::ops::Deref;
use std::str::FromStr;

/// Values that are swept, as `1,4`: each once, in their order, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<T>(Vec<T>);

impl<T> Deref for List<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: FromStr<Err: Display> + PartialEq> FromStr for List<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<List<T>, String> {
        let mut list = Vec::new();
        for item in text.split(',') {
            let value = item.trim().parse().map_err(|error: T::Err| error.to_string())?;
            if !list.contains(&value) {
                list.push(value);
            }
        }
        Ok(List(list))
    }
}

impl<T> From<Vec<T>> for List<T> {
    fn from(list: Vec<T>) -> List<T> {
        List(list)
    }
}

/// A list of counts from 1 to `most`.
pub fn counts<T: From<u32>>(most: u32) -> impl Fn(&str) -> Result<List<T>, String> + Clone + Send + Sync + 'static {
    move |text| {
        let list = size::parse_list(text).map_err(|error| error.to_string())?;
        match list.iter().find(|count| **count > most) {
            Some(count) => Err(format!("{count}; from 1 to {most}")),
            None => Ok(List(list.into_iter().map(T::from).collect())),
        }
    }
}

/// Slots of a ring: a power of two.
pub fn slots(text: &str) -> Result<usize, String> {
    let slots = text.parse().map_err(|_| format!("{text:?} is no number of slots"))?;
    check_slots(slots).map_err(|why| why.to_string()).map(|()| slots)
}

/// Rails: a count that indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rails(pub usize);

impl From<u32> for Rails {
    fn from(rails: u32) -> Rails {
        Rails(rails as usize)
    }
}

/// Which cores busy threads take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pin {
    /// Chosen, where there are enough.
    Auto,
    /// None.
    Off,
    /// These.
    List(Vec<usize>),
}

impl FromStr for Pin {
    type Err = String;

    fn from_str(text: &str) -> Result<Pin, String> {
        let cores = || text.split(',').map(|core| core.trim().parse().ok()).collect::<Option<_>>();
        match text {
            "auto" => Ok(Pin::Auto),
            "off" => Ok(Pin::Off),
            _ => cores().map(Pin::List).ok_or_else(|| format!("{text:?} is none of auto, off, a list of cores")),
        }
    }
}

/// Where memory that GPU and CPU share is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RingPlace {
    /// Pinned host memory.
    Pinned,
    /// Managed memory, whose pages travel to whoever touches them.
    Managed,
    /// GPU memory that the CPU reads over PCIe (GDRCopy); the CPU's own words are pinned.
    Gdr,
}

impl From<RingPlace> for ring::RingPlace {
    fn from(place: RingPlace) -> ring::RingPlace {
        match place {
            RingPlace::Pinned => ring::RingPlace::Pinned,
            RingPlace::Managed => ring::RingPlace::Managed,
            RingPlace::Gdr => ring::RingPlace::Gdr,
        }
    }
}

/// How a value is written on the command line and in rows.
pub fn name<T: ValueEnum>(value: T) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Options that do not go together, or not with what is here.
pub fn usage(option: &str, why: impl fmt::Display) -> Failure {
    Failure::Usage(format!("{option}: {why}"))
}

/// The sizes of a sweep by -b, -e and -f. One that begins with 0 goes on with 1.
pub fn sizes(begin: u64, end: u64, factor: u64) -> Result<Vec<u64>, Failure> {
    let sweep = |begin| size::sweep(begin, end, factor).map_err(|error| usage("-b/-e/-f", error));
    match (begin, end) {
        (0, 1..) => Ok([vec![0], sweep(1)?].concat()),
        _ => sweep(begin),
    }
}

/// A fault for proxies, for tests.
pub fn fault(text: &str) -> Result<Fault, String> {
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
    parsed.ok_or_else(|| format!("{text:?} is none of proxy-vanish=N, proxy-stop=N, rails-silent=N, corrupt=N"))
}
