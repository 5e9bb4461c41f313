//! Rates of rails, the table that names each rail, and the rails that are too slow.

use crate::error::Failure;
use crate::listing::{ListingColumn, table};
use crate::values::usage;
use ginlab::measure::size;
use ginlab::measure::stats::upper_median;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display};
use std::str::FromStr;

/// Fraction of the median rate of all rails. A rail below it is reported as slow.
const SLOW: f64 = 0.85;

/// Identity of a rail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RailPlace {
    /// Name of the host.
    pub host: String,
    /// PCI address of the rank's GPU. `None` on the emulated device.
    pub gpu: Option<String>,
    /// Domain, or the provider's name of the rail.
    pub domain: String,
    /// PCI address of the NIC, if the provider reports it.
    pub pci: Option<String>,
    /// Line rate of the NIC in bits per second, if it is known.
    pub line: Option<u64>,
}

/// Rails that were in use at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RailUsage {
    /// Only this rail of the rank.
    Alone,
    /// All rails of the rank.
    Together,
}

impl RailUsage {
    /// Returns the variant for writes over this number of rails.
    pub fn of(rails: usize) -> RailUsage {
        if rails == 1 { RailUsage::Alone } else { RailUsage::Together }
    }
}

impl Display for RailUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RailUsage::Alone => "alone",
            RailUsage::Together => "together",
        })
    }
}

/// Measured rate of a rail.
#[derive(Clone, Debug, PartialEq)]
pub struct RailRate {
    /// Rank that wrote.
    pub rank: usize,
    /// Index of the rail.
    pub rail: usize,
    /// The rail.
    pub place: RailPlace,
    /// Host that was written to.
    pub peer: String,
    pub way: RailUsage,
    /// Bytes per write.
    pub bytes: u64,
    /// Rate over the rail's own time, in Gb/s.
    pub gbits_s: f64,
}

impl Display for RailRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RailPlace { host, gpu, domain, pci, .. } = &self.place;
        write!(f, "{host} rank {} rail {} ({domain}", self.rank, self.rail)?;
        pci.iter().try_for_each(|pci| write!(f, " at {pci}"))?;
        gpu.iter().try_for_each(|gpu| write!(f, ", GPU {gpu}"))?;
        write!(f, ") to {}: {} Gb/s {}", self.peer, short(self.gbits_s), self.way)
    }
}

impl RailRate {
    /// Returns each rate as a percentage of the median rate for the same number of rails and the same size.
    pub fn of_median_pct(all: &[RailRate]) -> Vec<Option<f64>> {
        let pct = |rate: &RailRate| {
            let of_way = all.iter().filter(|other| (other.way, other.bytes) == (rate.way, rate.bytes));
            let rates: Vec<f64> = of_way.map(|other| other.gbits_s).collect();
            let median = upper_median(&rates).filter(|median| *median > 0.0)?;
            Some(100.0 * rate.gbits_s / median)
        };
        all.iter().map(pct).collect()
    }

    /// Returns a line for each rail that is much slower than the median of all rails, with its slowest rate.
    pub fn slow(all: &[RailRate]) -> Vec<String> {
        let pcts = all.iter().zip(RailRate::of_median_pct(all));
        let below = pcts.filter_map(|(rate, pct)| Some((rate, pct.filter(|pct| *pct < 100.0 * SLOW)?)));
        let line = |(rate, pct)| format!("slow rail: {rate}, {pct:.0} % of the median of all rails");
        slowest_of_each(below).into_iter().map(line).collect()
    }

    /// Formats the table of rails, with one line per rail and size.
    pub fn table(all: &[RailRate]) -> String {
        let lines: Vec<Line> = all
            .iter()
            .zip(RailRate::of_median_pct(all))
            .filter(|(rate, _)| rate.way == RailUsage::Alone)
            .map(|(alone, of_median)| Line { alone: alone.clone(), together: together(all, alone), of_median })
            .collect();
        format!("\n{}", table(&COLUMNS, &lines))
    }
}

/// Line of the table.
struct Line {
    alone: RailRate,
    together: Option<f64>,
    of_median: Option<f64>,
}

const COLUMNS: [ListingColumn<Line>; 13] = [
    ("host", "", |line| line.alone.place.host.clone()),
    ("to", "", |line| line.alone.peer.clone()),
    ("rank", "", |line| line.alone.rank.to_string()),
    ("GPU", "address", |line| line.alone.place.gpu.clone().unwrap_or_default()),
    ("rail", "", |line| line.alone.rail.to_string()),
    ("domain", "", |line| line.alone.place.domain.clone()),
    ("PCI", "address", |line| line.alone.place.pci.clone().unwrap_or_default()),
    ("size", "", |line| size::human(line.alone.bytes)),
    ("alone", "Gb/s", |line| short(line.alone.gbits_s)),
    ("alone", "GB/s", |line| short(line.alone.gbits_s / 8.0)),
    ("together", "Gb/s", |line| line.together.map(short).unwrap_or_default()),
    ("of line", "%", |line| {
        let of_line = line.alone.place.line.map(|line_rate| 100.0 * line.alone.gbits_s / (line_rate as f64 / 1e9));
        of_line.map(|pct| format!("{pct:.0}")).unwrap_or_default()
    }),
    ("of median", "%", |line| line.of_median.map(|pct| format!("{pct:.0}")).unwrap_or_default()),
];

/// Returns the rate of the same rail while all rails were in use.
fn together(all: &[RailRate], alone: &RailRate) -> Option<f64> {
    let same = |other: &&RailRate| {
        other.way == RailUsage::Together
            && (other.rank, other.rail, other.bytes) == (alone.rank, alone.rail, alone.bytes)
    };
    all.iter().find(same).map(|rate| rate.gbits_s)
}

/// Formats a rate with about three significant digits.
fn short(rate: f64) -> String {
    match rate {
        rate if rate < 1.0 => format!("{rate:.3}"),
        rate if rate < 10.0 => format!("{rate:.2}"),
        rate => format!("{rate:.1}"),
    }
}

/// Minimum rate of every rail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AtLeast {
    /// Percentage of the NIC's line rate.
    Percent(f64),
    /// Gb/s.
    Gbits(f64),
}

impl FromStr for AtLeast {
    type Err = String;

    fn from_str(text: &str) -> Result<AtLeast, String> {
        let number = |text: &str| text.trim().parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
        let parsed = match text.strip_suffix('%') {
            Some(percent) => number(percent).filter(|percent| *percent <= 100.0).map(AtLeast::Percent),
            None => number(text).map(AtLeast::Gbits),
        };
        parsed.ok_or_else(|| {
            format!("invalid rate {text:?}: expected percent of the line rate, such as 85%, or Gb/s, such as 90")
        })
    }
}

impl Display for AtLeast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AtLeast::Percent(percent) => write!(f, "{percent} % of the line rate"),
            AtLeast::Gbits(gbits) => write!(f, "{gbits} Gb/s"),
        }
    }
}

impl AtLeast {
    /// Returns the minimum rate of a rail in Gb/s, or `None` if this requires an unknown line rate.
    fn limit(self, place: &RailPlace) -> Option<f64> {
        match self {
            AtLeast::Percent(0.0) => Some(0.0),
            AtLeast::Percent(percent) => place.line.map(|line| line as f64 / 1e9 * percent / 100.0),
            AtLeast::Gbits(gbits) => Some(gbits),
        }
    }

    /// Rejects a percentage if the line rate is unknown.
    pub fn check(self, places: &[Vec<RailPlace>]) -> Result<(), Failure> {
        match places.iter().flatten().find(|place| self.limit(place).is_none()) {
            Some(RailPlace { host, domain, .. }) => Err(usage(
                "--at-least",
                format!("the line rate of {domain} on {host} is not known; specify Gb/s, such as --at-least 90"),
            )),
            None => Ok(()),
        }
    }

    /// Returns one line that names the rails below the minimum, each with its slowest rate. `None` if there are none.
    pub fn verdict(self, rates: &[RailRate]) -> Option<String> {
        let is_below = |rate: &&RailRate| self.limit(&rate.place).is_some_and(|limit| rate.gbits_s < limit);
        let below = slowest_of_each(rates.iter().filter(is_below).map(|rate| (rate, rate.gbits_s)));
        let rails = slowest_of_each(rates.iter().map(|rate| (rate, rate.gbits_s))).len();
        let names: Vec<String> = below.iter().map(|(rate, _)| rate.to_string()).collect();
        let are = if below.len() == 1 { "is" } else { "are" };
        (!below.is_empty())
            .then(|| format!("{} of {rails} rails {are} below {self}: {}", below.len(), names.join("; ")))
    }
}

/// Returns the rate with the smallest value for each rail, in order of their first occurrence.
fn slowest_of_each<'a>(rates: impl Iterator<Item = (&'a RailRate, f64)>) -> Vec<(&'a RailRate, f64)> {
    let mut found: Vec<(&RailRate, f64)> = Vec::new();
    for (rate, value) in rates {
        match found.iter_mut().find(|(known, _)| (known.rank, known.rail) == (rate.rank, rate.rail)) {
            Some(known) if known.1 > value => *known = (rate, value),
            Some(_) => {}
            None => found.push((rate, value)),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn rate(rank: usize, rail: usize, way: RailUsage, gbits_s: f64) -> RailRate {
        let place = RailPlace {
            host: format!("host-{rank}"),
            domain: format!("rdmap{rail}"),
            pci: Some(format!("0000:5{rail}:00.0")),
            gpu: Some("0000:10:00.0".to_owned()),
            line: Some(100_000_000_000),
        };
        RailRate { rank, rail, place, peer: format!("host-{}", 1 - rank), way, bytes: 1 << 20, gbits_s }
    }

    fn rates() -> Vec<RailRate> {
        let of = |rank: usize| {
            let slow = move |rail| rank == 1 && rail == 2;
            (0..4).flat_map(move |rail| {
                [
                    rate(rank, rail, RailUsage::Alone, if slow(rail) { 24.0 } else { 97.0 }),
                    rate(rank, rail, RailUsage::Together, if slow(rail) { 23.0 } else { 96.0 }),
                ]
            })
        };
        (0..2).flat_map(of).collect()
    }

    #[test]
    fn slow_rail_is_named_once() {
        let name = "host-1 rank 1 rail 2 (rdmap2 at 0000:52:00.0, GPU 0000:10:00.0) to host-0";
        let line = format!("slow rail: {name}: 23.0 Gb/s together, 24 % of the median of all rails");
        assert_eq!(RailRate::slow(&rates()), [line]);
        let verdict = AtLeast::Percent(85.0).verdict(&rates()).unwrap();
        assert!(
            verdict.starts_with(&format!("1 of 8 rails is below 85 % of the line rate: {name}: 23.0")),
            "{verdict}"
        );
        assert_eq!(AtLeast::Gbits(20.0).verdict(&rates()), None);
        assert_eq!(RailRate::slow(&rates()[..8]), Vec::<String>::new());
        let table = RailRate::table(&rates());
        let line = table.lines().find(|line| line.starts_with("host-1") && line.contains("rdmap2")).unwrap();
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(
            cells[2..],
            ["1", "0000:10:00.0", "2", "rdmap2", "0000:52:00.0", "1", "MiB", "24.0", "3.00", "23.0", "24", "25"]
        );
    }

    #[test]
    fn minimum_is_percentage_or_rate() {
        assert_eq!("85%".parse(), Ok(AtLeast::Percent(85.0)));
        assert_eq!("12.5".parse(), Ok(AtLeast::Gbits(12.5)));
        for wrong in ["", "%", "fast", "-1", "101%", "85 % of it", "inf"] {
            assert!(wrong.parse::<AtLeast>().unwrap_err().contains("such as 85%"), "{wrong}");
        }
        let unknown = RailPlace { host: "a".into(), domain: "rail0".into(), ..RailPlace::default() };
        let refused = AtLeast::Percent(85.0).check(&[vec![unknown.clone()]]).unwrap_err();
        assert_eq!(
            refused.text().unwrap(),
            "--at-least: the line rate of rail0 on a is not known; specify Gb/s, such as --at-least 90"
        );
        assert!(AtLeast::Gbits(1.0).check(&[vec![unknown.clone()]]).is_ok());
        assert!(AtLeast::Percent(0.0).check(&[vec![unknown]]).is_ok());
    }
}
