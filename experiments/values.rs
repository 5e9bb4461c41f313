//! The values that options of experiments take: parsed by clap, refused in one line.

use crate::error::Failure;
use clap::ValueEnum;
use clap::builder::TypedValueParser;
pub use ginlab::cores::Pin;
use ginlab::measure::size;
use ginlab::proxy::Fault;
use ginlab::report::each_once;
use ginlab::ring::check_slots;
use std::fmt::{self, Display};
use std::str::FromStr;
use std::time::Duration;

/// Values that are swept, as `1,4`: each once, in their order, at least one. One option gives all of them; for a field that is
/// spelt `Vec`, clap takes the option several times, with one value each.
pub type List<T> = Vec<T>;

/// Reads such values.
pub fn list<T: FromStr<Err: Display> + PartialEq>(text: &str) -> Result<List<T>, String> {
    let item = |item: &str| item.trim().parse().map_err(|error: T::Err| error.to_string());
    Ok(each_once(text.split(',').map(item).collect::<Result<Vec<T>, _>>()?))
}

/// A list of counts from 1 to `most`.
pub fn counts<T: TryFrom<u32>>(most: u32) -> impl Fn(&str) -> Result<List<T>, String> + Clone + Send + Sync + 'static {
    move |text| {
        let refused = |count| format!("{count}; from 1 to {most}");
        let count = |count| T::try_from(count).ok().filter(|_| count <= most).ok_or_else(|| refused(count));
        size::parse_list(text).map_err(|error| error.to_string())?.into_iter().map(count).collect()
    }
}

/// Seconds, up to a day.
pub fn seconds() -> impl TypedValueParser<Value = Duration> {
    clap::value_parser!(u64).range(1..=86400).map(Duration::from_secs)
}

/// Slots of a ring: a power of two.
pub fn slots(text: &str) -> Result<usize, String> {
    let slots = text.parse().map_err(|_| format!("{text:?} is no number of slots"))?;
    check_slots(slots).map_err(|why| why.to_string()).map(|()| slots)
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
