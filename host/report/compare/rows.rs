//! Matching of rows, and the verdict on each pair.

use std::collections::{BTreeMap, VecDeque};

use serde::{Serialize, Serializer};
use strum::{Display, EnumMessage};

use super::listing;
use crate::chart::{ChartError, FileKind, FileRecord};
use crate::column::rounded;
use crate::run::Run;

/// Verdict on a row of the second run compared with the first. Its message omits figures and reasons.
#[derive(Clone, Debug, PartialEq, Display, EnumMessage)]
pub enum Verdict {
    /// The times overlap.
    #[strum(to_string = "same within noise", message = "same within noise")]
    Same,
    /// Faster by this many percent: the rate is higher by that much.
    #[strum(to_string = "faster by {0:.1} %", message = "faster")]
    Faster(f64),
    /// Slower by this many percent: the time is longer by that much.
    #[strum(to_string = "slower by {0:.1} %", message = "slower")]
    Slower(f64),
    /// No verdict, with the reason.
    #[strum(to_string = "cannot say: {0}", message = "cannot say")]
    CannotSay(String),
    /// Measured in the first run but not in the second, for this reason.
    #[strum(to_string = "B has {0}", message = "failed in B")]
    Failed(String),
    /// Only in the first run.
    #[strum(to_string = "only in A", message = "only in A")]
    OnlyA,
    /// Only in the second run.
    #[strum(to_string = "only in B", message = "only in B")]
    OnlyB,
}

impl Serialize for Verdict {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Times of one row in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowTimes {
    /// Median.
    pub median: f64,
    /// Lower and upper end of the times, if the row contains them.
    pub spread: Option<(f64, f64)>,
}

/// Chosen columns with their values.
type Identity = Vec<(&'static str, String)>;

/// A row of both runs, or of one of them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// File of the first run, or of the second if the first has none.
    pub file: String,
    /// Chosen columns that are not empty, for example `case=put mode=nbi`.
    pub row: String,
    /// Median time in the first run, in microseconds.
    pub a_time_us: Option<f64>,
    /// Median time in the second run, in microseconds.
    pub b_time_us: Option<f64>,
    /// Time of the second run divided by that of the first.
    pub time_ratio: Option<f64>,
    /// Bandwidth of the second run divided by that of the first.
    pub bandwidth_ratio: Option<f64>,
    /// Operations per second of the second run divided by those of the first.
    pub rate_ratio: Option<f64>,
    /// Verdict on the second run.
    pub verdict: Verdict,
    /// Emulated device or modelled network of the two rows: `emulated`, `model:p5`, or both.
    pub unreal: Option<String>,
    /// Columns that distinguish the row, with their values, in the order of `row`.
    #[serde(skip)]
    pub identity: Identity,
}

impl Compared {
    /// Returns the value of a chosen column; empty if the row has none.
    pub fn chosen(&self, column: &str) -> &str {
        self.identity.iter().find(|(name, _)| *name == column).map_or("", |(_, value)| value)
    }

    /// Columns of a comparison, in order.
    pub const COLUMNS: [&'static str; 9] =
        ["file", "row", "a_time_us", "b_time_us", "time_ratio", "bandwidth_ratio", "rate_ratio", "verdict", "unreal"];
}

/// Returns the median and the range of a row's times.
fn times(run: &Run, row: &FileRecord) -> Option<RowTimes> {
    let number = |column: &str| run.records.number(row, column);
    if run.kind == FileKind::Stages {
        // Percentiles of single operations: the range below the median is assumed to equal the range above it.
        let median = number("p50_us")?;
        return Some(RowTimes { median, spread: number("p99_us").map(|p99| (2.0 * median - p99, p99)) });
    }
    let single = number("repeats").is_some_and(|repeats| repeats < 2.0);
    let ends = number("time_us_min").zip(number("time_us_p99").or_else(|| number("time_us_max")));
    Some(RowTimes { median: number("time_us_p50")?, spread: ends.filter(|_| !single) })
}

/// Returns the verdict on time `b` compared with `a`.
pub fn verdict(a: RowTimes, b: RowTimes) -> Verdict {
    if a.median <= 0.0 || b.median <= 0.0 {
        return Verdict::CannotSay("a time of zero".into());
    }
    let (Some(first), Some(second)) = (a.spread, b.spread) else {
        return Verdict::CannotSay("no spread: one repeat".into());
    };
    if a.median == b.median || first.0 <= second.1 && second.0 <= first.1 {
        return Verdict::Same;
    }
    // Percentages are symmetric: if A is slower by 25 %, B is faster by 25 %.
    match b.median > a.median {
        true => Verdict::Slower(100.0 * (b.median / a.median - 1.0)),
        false => Verdict::Faster(100.0 * (a.median / b.median - 1.0)),
    }
}

/// Compares two files. Rows are identified by the columns in `chosen` that both files have.
pub fn compare(a: &Run, b: &Run, chosen: &[&'static str]) -> Result<Vec<Compared>, ChartError> {
    if let Some(run) = [a, b].into_iter().find(|run| run.kind == FileKind::Listing) {
        return Err(listing(&run.name));
    }
    let (a_kind, b_kind) = (a.experiment(), b.experiment());
    let empty = a.records.rows().is_empty() || b.records.rows().is_empty();
    if a_kind != b_kind && !empty {
        let text = format!("{} has {a_kind}, but {} has {b_kind}: these cannot be compared", a.name, b.name);
        return Err(ChartError::Refused(text));
    }
    let both = |column: &&&str| [a, b].into_iter().all(|run| run.records.has(column));
    let columns: Vec<&'static str> = chosen.iter().filter(both).copied().collect();
    let identity = |run: &Run, row: &FileRecord| -> Identity {
        let value = |column: &'static str| match (column, run.records.field(row, column)) {
            ("device", device) => device.split_once(':').map_or(device, |(kind, _)| kind).to_owned(),
            (_, value) => value.to_owned(),
        };
        columns.iter().map(|column| (*column, value(column))).collect()
    };
    // Rows that are equal in all of these columns are repeats of one measurement, and are matched in order.
    let mut theirs: BTreeMap<_, VecDeque<&FileRecord>> = BTreeMap::new();
    for row in b.records.rows() {
        theirs.entry(identity(b, row)).or_default().push_back(row);
    }
    let mut compared = Vec::new();
    for row in a.records.rows() {
        let identity = identity(a, row);
        let other = theirs.get_mut(&identity).and_then(VecDeque::pop_front);
        compared.push(pair(identity, Some((a, row)), other.map(|other| (b, other))));
    }
    // The remaining rows, in the order of the file.
    let mut left: Vec<&FileRecord> = theirs.into_values().flatten().collect();
    left.sort_by_key(|row| row.line);
    compared.extend(left.into_iter().map(|row| pair(identity(b, row), None, Some((b, row)))));
    Ok(compared)
}

type Side<'a> = Option<(&'a Run, &'a FileRecord)>;

fn pair(identity: Identity, a: Side, b: Side) -> Compared {
    let number = |side: Side, column: &str| side.and_then(|(run, row)| run.records.number(row, column));
    let text = |side: Side, column: &str| side.map_or("", |(run, row)| run.records.field(row, column)).to_owned();
    let ratio = |one: Option<f64>, two: Option<f64>| Some(two? / one.filter(|one| *one > 0.0)?).and_then(rounded);
    let time = |side: Side| side.and_then(|(run, row)| times(run, row));
    let failed = |side: Side| Some(text(side, "status")).filter(|status| !matches!(status.as_str(), "" | "ok"));
    let verdict = match (a, b) {
        (_, None) => Verdict::OnlyA,
        (None, _) => Verdict::OnlyB,
        _ => match (failed(a), failed(b), time(a), time(b)) {
            (None, Some(why), ..) => Verdict::Failed(why),
            (Some(why), ..) => Verdict::CannotSay(format!("A has {why}")),
            (None, None, Some(one), Some(two)) => verdict(one, two),
            _ => Verdict::CannotSay("no time".into()),
        },
    };
    let named = identity.iter().filter(|(_, value)| !value.is_empty());
    let row: Vec<String> = named.map(|(column, value)| format!("{column}={value}")).collect();
    let mut unreal: Vec<String> = ["device", "fabric"].iter().flat_map(|name| [text(a, name), text(b, name)]).collect();
    unreal.retain(|text| text == "emulated" || text.starts_with("model:"));
    unreal.dedup();
    let median = |side: Side| time(side).map(|times| times.median);
    Compared {
        file: a.or(b).map(|(run, _)| run.name.clone()).unwrap_or_default(),
        row: row.join(" "),
        a_time_us: median(a),
        b_time_us: median(b),
        time_ratio: ratio(median(a), median(b)),
        bandwidth_ratio: ratio(number(a, "bandwidth_gbytes_s"), number(b, "bandwidth_gbytes_s")),
        rate_ratio: ratio(number(a, "rate_mops"), number(b, "rate_mops")),
        verdict,
        unreal: (!unreal.is_empty()).then(|| unreal.join(", ")),
        identity,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn times() -> impl Strategy<Value = RowTimes> {
        (0.001f64..1e6, 0.0f64..0.9, 0.0f64..3.0, any::<bool>()).prop_map(|(median, below, above, known)| RowTimes {
            median,
            spread: known.then_some((median * (1.0 - below), median * (1.0 + above))),
        })
    }

    proptest! {
        #[test]
        fn verdict_is_symmetric(a in times(), b in times()) {
            match (verdict(a, b), verdict(b, a)) {
                (Verdict::Slower(one), Verdict::Faster(two)) | (Verdict::Faster(one), Verdict::Slower(two)) => {
                    prop_assert!(one > 0.0 && (one - two).abs() <= 1e-9 * one, "{one} {two}");
                }
                (one, two) => prop_assert_eq!(one, two),
            }
            let itself = verdict(a, a);
            prop_assert_eq!(itself == Verdict::Same, a.spread.is_some());
        }

        #[test]
        fn noise_wider_than_difference_hides_it(median in 0.001f64..1e6, by in 0.0f64..0.5) {
            let wide = |median: f64| RowTimes { median, spread: Some((0.5 * median, 1.5 * median)) };
            prop_assert_eq!(verdict(wide(median), wide(median * (1.0 + by))), Verdict::Same);
            let narrow = |median: f64| RowTimes { median, spread: Some((median, median)) };
            if by > 1e-6 {
                prop_assert!(matches!(verdict(narrow(median), narrow(median * (1.0 + by))), Verdict::Slower(_)));
            }
        }
    }
}
