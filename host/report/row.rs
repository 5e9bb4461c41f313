//! A row: one combination of parameters, and its results.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, de};

use super::column::{Column, Value};
use ginlab_base::stats::{Micros, Summary};

/// Version of the row's columns and of the JSON document. Must be raised if a column changes its meaning or is removed.
pub const SCHEMA: u32 = 2;

/// Outcome of the measurement of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RowStatus {
    /// The measurement succeeded.
    #[default]
    Ok,
    /// The measurement failed, with the reason.
    Failed(String),
    /// The measurement was not attempted, with the reason.
    Skipped(String),
}

impl fmt::Display for RowStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ok => f.write_str("ok"),
            Self::Failed(why) => write!(f, "failed: {}", one_line(why)),
            Self::Skipped(why) => write!(f, "skipped: {}", one_line(why)),
        }
    }
}

impl From<RowStatus> for Value {
    fn from(status: RowStatus) -> Self {
        Self::Text(status.to_string())
    }
}

impl<'de> Deserialize<'de> for RowStatus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "ok" {
            Ok(Self::Ok)
        } else if let Some(why) = text.strip_prefix("failed: ") {
            Ok(Self::Failed(why.into()))
        } else if let Some(why) = text.strip_prefix("skipped: ") {
            Ok(Self::Skipped(why.into()))
        } else {
            Err(de::Error::custom(format!("invalid status {text:?}: expected one of ok, failed: why, skipped: why")))
        }
    }
}

/// Declares the common part of a row: its fields, from which its columns and values are generated. Each field's doc
/// comment is also the column's description in reports.
macro_rules! row {
    ($($role:ident $unit:literal $(#[doc = $doc:literal])* $name:ident: $type:ty,)*) => {
        /// One row of a report: the columns that every experiment has, and those of its experiment.
        #[derive(Clone, Debug, Default, PartialEq, Deserialize)]
        pub struct Row {
            $($(#[doc = $doc])* pub $name: $type,)*
            #[serde(flatten, deserialize_with = "without_empty")]
            own: BTreeMap<String, Value>,
        }

        impl Row {
            /// Columns with which every experiment's row starts, in order.
            pub const COMMON: &'static [Column] =
                &[$(Column::$role(stringify!($name), $unit, concat!($($doc),*).trim_ascii())),*];

            /// Returns the values of the common columns, in order, followed by those of `own`.
            pub fn values(&self, own: &[Column]) -> Vec<Value> {
                let common = [$(Value::from(self.$name.clone())),*];
                common.into_iter().chain(own.iter().map(|column| self.own(column.name).clone())).collect()
            }
        }
    };
}

row! {
    measured "" /// Version of the columns.
    schema: u32,
    chosen "" /// Name of the experiment's subcommand.
    experiment: String,
    chosen "" /// Case that the row measures; baselines refer to it.
    case: String,
    chosen "" /// `gpu:<name>`, `emulated`, or `cpu` if no device was used.
    device: String,
    chosen "" /// Fabric that was opened: `efa`, `tcp`, `shm`, `nvlink`, `null`, `model:p5`, ...
    fabric: String,
    chosen "" /// Number of ranks in the job.
    ranks: u32,
    chosen "" /// Number of rails used per rank.
    rails: Option<u32>,
    chosen "" /// Distribution of operations over the rails: `single`, `split`, `round-robin`, `auto`.
    strategy: Option<String>,
    chosen "" /// Method of waiting in the kernel (`quiet`, `nbi`, `quiet-every=K`), or another mode of the experiment.
    mode: Option<String>,
    chosen "" /// Location of the payload and how the network accesses it: `pinned`, `device`, `staged`, ...
    memory: Option<String>,
    chosen "B" /// Number of bytes per operation.
    size_bytes: Option<u64>,
    chosen "" /// Number of blocks in the grid.
    grid: Option<u32>,
    chosen "" /// Number of threads per block.
    block: Option<u32>,
    measured "" /// Number of timed iterations per repeat.
    iterations: Option<u64>,
    measured "us" /// Minimum time: of single operations, or of repeats' means over `iterations` operations each.
    time_us_min: Option<f64>,
    measured "us" /// Median of these times.
    time_us_p50: Option<f64>,
    measured "us" /// 99th percentile of single operations' times, nearest rank; empty for times of repeats' means.
    time_us_p99: Option<f64>,
    measured "GB/s" /// Bandwidth at the median time, in 10^9 B/s.
    bandwidth_gbytes_s: Option<f64>,
    measured "Mops" /// Operations completed per second at the median time, in 10^6.
    rate_mops: Option<f64>,
    measured "%" /// Bandwidth as a percentage of the line rate of the rails used.
    line_rate_pct: Option<f64>,
    measured "" /// Case that this row is compared with.
    baseline: Option<String>,
    measured "" /// The baseline's time divided by this row's, median over repeats; above 1 is faster than the baseline.
    baseline_ratio: Option<f64>,
    measured "B" /// Number of wrong bytes found by verification; empty if nothing was verified.
    wrong_bytes: Option<u64>,
    measured "" /// Outcome of the measurement: `ok`, `failed: why`, `skipped: why`.
    status: RowStatus,
    measured "us" /// Maximum time.
    time_us_max: Option<f64>,
    measured "%" /// Coefficient of variation of the times, in percent.
    cv_pct: Option<f64>,
    measured "" /// Number of times measured.
    repeats: Option<u64>,
    measured "Gb/s" /// Bandwidth in 10^9 bit/s, for comparison with line rates.
    bandwidth_gbits_s: Option<f64>,
    measured "" /// Reason why the figure is not credible; empty otherwise.
    suspect: Option<String>,
}

/// Deserializes an experiment's own columns, without empty fields.
fn without_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Value>, D::Error> {
    let mut own = BTreeMap::<String, Value>::deserialize(deserializer)?;
    own.retain(|_, value| *value != Value::None && value.text() != Some(""));
    Ok(own)
}

impl Row {
    /// Creates a row without measurements, with one rank and the status ok.
    pub fn new(
        experiment: impl Into<String>,
        case: impl Into<String>,
        device: impl Into<String>,
        fabric: impl Into<String>,
    ) -> Self {
        Self {
            schema: SCHEMA,
            experiment: experiment.into(),
            case: case.into(),
            device: device.into(),
            fabric: fabric.into(),
            ranks: 1,
            ..Self::default()
        }
    }

    /// Sets one of the experiment's own columns.
    pub fn set(&mut self, column: &Column, value: impl Into<Value>) -> &mut Self {
        self.own.insert(column.name.into(), value.into());
        self
    }

    /// Returns the value of one of the experiment's own columns; [`Value::None`] if the row has none.
    pub fn own(&self, name: &str) -> &Value {
        self.own.get(name).unwrap_or(&Value::None)
    }

    /// Sets the columns that are computed from these times in microseconds, except the 99th percentile. Does nothing if
    /// there are no times.
    pub fn times(&mut self, times: &[f64]) -> &mut Self {
        let Some(summary) = Summary::of(times) else { return self };
        self.time_us_min = Some(summary.min);
        self.time_us_p50 = Some(summary.p50);
        self.time_us_max = Some(summary.max);
        self.cv_pct = summary.cv_pct;
        self.repeats = Some(summary.count as u64);
        self
    }

    /// Sets the 99th percentile of `times`, which must be of single operations: the maximum of a few means is not a
    /// percentile.
    pub fn tail(&mut self, times: &[f64]) -> &mut Self {
        self.time_us_p99 = Summary::of(times).map(|summary| summary.p99);
        self
    }

    /// Sets bandwidth and rate from the median time, in which `operations` operations have moved `bytes` bytes.
    pub fn throughput(&mut self, bytes: u64, operations: u64) -> &mut Self {
        let time = Micros(self.time_us_p50.unwrap_or(0.0));
        self.bandwidth_gbytes_s = time.gbytes_s(bytes);
        self.bandwidth_gbits_s = self.bandwidth_gbytes_s.map(|gbytes| gbytes * 8.0);
        self.rate_mops = time.mops(operations);
        self
    }

    /// Sets the percentage of the line rate of the rails used, if it is known. Marks the row as suspect if its
    /// bandwidth exceeds the line rate, since the payload cannot be faster than the line.
    pub fn line_rate(&mut self, bits_per_second: Option<u64>) -> &mut Self {
        if let (Some(gbits), Some(bits @ 1..)) = (self.bandwidth_gbits_s, bits_per_second) {
            let line = bits as f64 / 1e9;
            self.line_rate_pct = Some(100.0 * gbits / line);
            if gbits > line {
                self.suspect = Some(format!("above the line rate of {line} Gb/s"));
            }
        }
        self
    }

    /// Sets the number of wrong bytes that verification found; `None` if no verification took place. The row fails if
    /// there are any.
    pub fn verified(&mut self, wrong: Option<u64>) -> &mut Self {
        self.wrong_bytes = wrong;
        if wrong.is_some_and(|wrong| wrong > 0) {
            self.status = RowStatus::Failed("wrong bytes".into());
        }
        self
    }

    /// Marks the row as suspect: its figures are not credible for the reason `why`, in addition to any earlier reason.
    pub fn doubt(&mut self, why: String) -> &mut Self {
        self.suspect = Some(match self.suspect.take() {
            Some(earlier) => format!("{earlier}; {why}"),
            None => why,
        });
        self
    }

    /// Sets the baseline row with which this row is compared. The two must have been measured alternately, repeat by
    /// repeat, and must move the same bytes in each time. The ratio is the median of the ratios of single repeats, so
    /// that drift between repeats (clocks, other processes) cancels out.
    pub fn against(&mut self, baseline: &Row, ours: &[f64], theirs: &[f64]) -> &mut Self {
        self.baseline = Some(baseline.case.clone());
        let ratios: Vec<f64> =
            ours.iter().zip(theirs).filter(|(ours, _)| **ours > 0.0).map(|(ours, theirs)| theirs / ours).collect();
        self.baseline_ratio = Summary::of(&ratios).map(|summary| summary.p50);
        self
    }
}

/// Removes line breaks from a provider's text, for line-oriented outputs.
pub(super) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::column::rounded;
    use super::*;
    use proptest::prelude::*;

    /// Scripts depend on the columns with which every experiment's row starts. A change requires a new [`SCHEMA`].
    #[test]
    fn columns_are_fixed() {
        let names: Vec<&str> = Row::COMMON.iter().map(|column| column.name).collect();
        insta::assert_snapshot!(names.join(", "), @"schema, experiment, case, device, fabric, ranks, rails, strategy, mode, memory, size_bytes, grid, block, iterations, time_us_min, time_us_p50, time_us_p99, bandwidth_gbytes_s, rate_mops, line_rate_pct, baseline, baseline_ratio, wrong_bytes, status, time_us_max, cv_pct, repeats, bandwidth_gbits_s, suspect");
        assert!(Row::COMMON.iter().all(|column| !column.meaning.is_empty()));
        assert_eq!(Row::new("e", "c", "d", "f").values(&[]).len(), names.len());
    }

    #[test]
    fn figures_follow_from_times() {
        let mut row = Row::new("e", "c", "d", "f");
        row.times(&[10.0]).throughput(100_000, 20).line_rate(Some(100_000_000_000));
        assert_eq!((row.bandwidth_gbytes_s, row.bandwidth_gbits_s, row.rate_mops), (Some(10.0), Some(80.0), Some(2.0)));
        assert_eq!((row.line_rate_pct, &row.suspect), (Some(80.0), &None));
        row.line_rate(Some(40_000_000_000));
        assert_eq!(row.suspect.as_deref(), Some("above the line rate of 40 Gb/s"));
        row.doubt("slower than the modelled card".into());
        assert_eq!(row.suspect.as_deref(), Some("above the line rate of 40 Gb/s; slower than the modelled card"));
        assert_eq!(row.time_us_p99, None, "a repeat's mean has no tail");
        assert_eq!(row.clone().tail(&[1.0, 3.0, 2.0]).time_us_p99, Some(3.0));
        let mut other = row.clone();
        // The ratios are 0.5, 0.5 and 2.0: a single disturbed repeat does not change the median.
        other.against(&row, &[20.0, 40.0, 5.0], &[10.0, 20.0, 10.0]);
        assert_eq!((other.baseline.as_deref(), other.baseline_ratio), (Some("c"), Some(0.5)));
    }

    #[test]
    fn unknown_status_is_rejected() {
        assert!(serde_json::from_str::<RowStatus>("\"fine\"").is_err());
    }

    proptest! {
        #[test]
        fn any_row_survives_csv_and_json(
            why in ".*",
            time in any::<f64>(),
            wrong in any::<Option<u64>>(),
            rails in prop::option::of(prop::collection::vec(any::<u64>(), 1..5)),
            fill in any::<Option<bool>>(),
        ) {
            const OWN: [Column; 3] = [
                Column::measured("rail_bytes", "", "a list"),
                Column::chosen("fill", "", "a flag"),
                Column::measured("push_us", "us", "a number"),
            ];
            let mut row = Row::new("e", "c,\"x\"", "d", "f");
            row.status = RowStatus::Failed(why);
            row.time_us_p50 = Some(time);
            row.wrong_bytes = wrong;
            row.set(&OWN[0], rails.clone()).set(&OWN[1], fill).set(&OWN[2], time);
            let written = |row: &Row| row.values(&OWN).iter().map(Value::as_written).collect::<Vec<_>>();
            let names = Row::COMMON.iter().chain(&OWN).map(|column| column.name);
            let json: serde_json::Map<String, serde_json::Value> =
                names.clone().zip(row.values(&OWN)).map(|(name, value)| (name.into(), serde_json::to_value(value).unwrap())).collect();
            // serde_json reads some numbers with an error of one unit in the last place; rounding again removes it.
            let back: Row = serde_json::from_value(json.into()).unwrap();
            prop_assert_eq!(written(&back), written(&row));
            prop_assert_eq!(back.own("rail_bytes").list(), rails);
            let mut writer = csv::Writer::from_writer(Vec::new());
            writer.write_record(names).unwrap();
            writer.serialize(row.values(&OWN)).unwrap();
            let bytes = writer.into_inner().unwrap();
            let back: Row = csv::Reader::from_reader(&bytes[..]).deserialize().next().unwrap().unwrap();
            let numbers = |row: &Row| row.values(&OWN).into_iter().map(|value| value.number().and_then(rounded).map(Value::Number).unwrap_or(value.as_written())).collect::<Vec<_>>();
            prop_assert_eq!(numbers(&back), numbers(&row));
        }
    }
}
