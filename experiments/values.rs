//! Values of options: parsed by clap, with errors in one line.

use crate::error::Failure;
use clap::ValueEnum;
use clap::builder::TypedValueParser;
pub use ginlab::cores::Pin;
use ginlab::cuda::Device;
use ginlab::measure::size;
use ginlab::proxy::ProxyFault;
use ginlab::report::each_once;
use ginlab::ring::check_slots;
use std::fmt::{self, Display};
use std::str::FromStr;
use std::time::Duration;

/// Values to sweep, such as `1,4`: at least one, in order, without duplicates. One option gives the whole list. (For a
/// field written as `Vec`, clap would take the option several times, with one value each.)
pub type List<T> = Vec<T>;

/// Parses a list of values.
pub fn list<T: FromStr<Err: Display> + PartialEq>(text: &str) -> Result<List<T>, String> {
    let item = |item: &str| item.trim().parse().map_err(|error: T::Err| error.to_string());
    Ok(each_once(text.split(',').map(item).collect::<Result<Vec<T>, _>>()?))
}

/// Returns a parser of lists of counts from 1 to `most`.
pub fn counts<T: TryFrom<u32>>(most: u32) -> impl Fn(&str) -> Result<List<T>, String> + Clone + Send + Sync + 'static {
    move |text| {
        let refused = |count| format!("{count}: must be from 1 to {most}");
        let count = |count| T::try_from(count).ok().filter(|_| count <= most).ok_or_else(|| refused(count));
        size::parse_list(text).map_err(|error| error.to_string())?.into_iter().map(count).collect()
    }
}

/// Returns a parser of seconds, from 1 to one day.
pub fn seconds() -> impl TypedValueParser<Value = Duration> {
    clap::value_parser!(u64).range(1..=86400).map(Duration::from_secs)
}

/// Parses the number of slots of a ring, a power of two.
pub fn slots(text: &str) -> Result<usize, String> {
    let slots = text.parse().map_err(|_| format!("invalid number of slots {text:?}"))?;
    check_slots(slots).map_err(|why| why.to_string()).map(|()| slots)
}

/// Returns the name of a value on the command line and in rows.
pub fn name<T: ValueEnum>(value: T) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Returns the error for options that exclude each other or are not supported on this machine.
pub fn usage(option: &str, why: impl fmt::Display) -> Failure {
    Failure::Usage(format!("{option}: {why}"))
}

/// Checks that a device supports a grid.
pub fn check_grid(device: &Device, grid: u32, block: u32) -> Result<(), Failure> {
    device.check_grid(grid, block).map_err(|error| usage("--grid, --block", error))
}

/// Returns the sizes of a sweep by -b, -e and -f. A sweep that starts with 0 continues with 1.
pub fn sizes(begin: u64, end: u64, factor: u64) -> Result<Vec<u64>, Failure> {
    let sweep = |begin| size::sweep(begin, end, factor).map_err(|error| usage("-b/-e/-f", error));
    match (begin, end) {
        (0, 1..) => Ok([vec![0], sweep(1)?].concat()),
        _ => sweep(begin),
    }
}

/// Help of `--fault`.
pub const FAULT_HELP: &str = "Fault to inject into each proxy, for tests (docs/faults.md): proxy-vanish=N, \
                              proxy-stop=N or rails-silent=N after N commands; corrupt=N: command N, counted from 0, \
                              is sent one byte short";

/// Parses a fault of CPU-initiated programs, for tests. Returns the number of the write or message to send one byte
/// short.
pub fn corruption(text: &str) -> Result<u64, String> {
    match fault(text) {
        Ok(ProxyFault::Corrupt(number)) => Ok(number),
        _ => Err(format!(
            "invalid fault {text:?}: expected corrupt=N (write or message N, counted from 0, is sent one byte short)"
        )),
    }
}

/// Parses the fault of programs without proxies that can only corrupt their payload, for tests.
pub fn corrupt(text: &str) -> Result<(), String> {
    if text == "corrupt" { Ok(()) } else { Err(format!("invalid fault {text:?}: expected corrupt")) }
}

/// Parses a fault for proxies, for tests.
pub fn fault(text: &str) -> Result<ProxyFault, String> {
    let parsed = text.split_once('=').and_then(|(name, count)| {
        let count = count.parse().ok()?;
        match name {
            "proxy-vanish" => Some(ProxyFault::Vanish(count)),
            "proxy-stop" => Some(ProxyFault::Stop(count)),
            "rails-silent" => Some(ProxyFault::Silent(count)),
            "corrupt" => Some(ProxyFault::Corrupt(count)),
            _ => None,
        }
    });
    parsed.ok_or_else(|| {
        format!("invalid fault {text:?}: expected proxy-vanish=N, proxy-stop=N, rails-silent=N or corrupt=N")
    })
}
