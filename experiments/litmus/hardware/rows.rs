//! Rows: a case, its counts, and the verdict.

use super::cases::LitmusCase;
use crate::listing::{Field, ListingColumn};
use kernels::litmus::OUTCOMES;
use serde_json::{Value, json};

/// A case with its counts.
pub struct LitmusRow {
    pub case: LitmusCase,
    pub device: String,
    /// Whether the worst-case network shows the weak outcome of the test of the same shape, with a wait if this case
    /// forbids it.
    pub seen_in_network: Option<bool>,
    pub outcomes: [u64; OUTCOMES],
    pub seconds: f64,
}

impl LitmusRow {
    /// Returns the number of trials.
    pub fn trials(&self) -> u64 {
        self.outcomes.iter().sum()
    }

    /// Returns the number of weak outcomes.
    pub fn weak(&self) -> u64 {
        self.outcomes[self.case.test.weak]
    }

    /// Returns whether the device shows an outcome that the model forbids.
    pub fn is_violated(&self) -> bool {
        self.weak() > 0 && !self.case.is_allowed()
    }

    fn verdict(&self) -> &'static str {
        match (self.case.is_allowed(), self.weak() > 0) {
            (true, true) => "seen",
            (true, false) => "not-seen",
            (false, false) => "kept",
            (false, true) => "violated",
        }
    }

    fn weak_per_million(&self) -> Option<f64> {
        (self.trials() > 0).then(|| 1e6 * self.weak() as f64 / self.trials() as f64)
    }
}

fn yes(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

/// Columns of CSV and JSON. The elements of `outcomes` are the counts of each outcome, by its number.
pub const FIELDS: [Field<LitmusRow>; 16] = [
    ("test", |row| json!(row.case.test.name)),
    ("device", |row| json!(row.device)),
    ("scope", |row| json!(row.case.scope_name())),
    ("writer", |row| json!(row.case.writer())),
    ("reader", |row| json!(row.case.reader())),
    ("fence", |row| json!(row.case.fence.name())),
    ("placement", |row| json!(<&str>::from(row.case.placement))),
    ("memory", |row| json!(<&str>::from(row.case.memory))),
    ("allowed", |row| json!(yes(row.case.is_allowed()))),
    ("seen_in_network", |row| row.seen_in_network.map_or(Value::Null, |seen| json!(yes(seen)))),
    ("trials", |row| json!(row.trials())),
    ("weak", |row| json!(row.weak())),
    ("weak_per_million", |row| row.weak_per_million().map_or(Value::Null, |rate| json!(rate))),
    ("outcomes", |row| json!(row.outcomes[..1 << row.case.test.bits])),
    ("verdict", |row| json!(row.verdict())),
    ("seconds", |row| json!((row.seconds * 1e3).round() / 1e3)),
];

/// Columns of the table.
pub const TABLE: [ListingColumn<LitmusRow>; 12] = [
    ("test", "", |row| row.case.test.name.into()),
    ("scope", "", |row| row.case.scope_name().into()),
    ("writer", "", |row| row.case.writer().into()),
    ("reader", "", |row| row.case.reader().into()),
    ("fence", "", |row| row.case.fence.name().into()),
    ("placement", "", |row| <&str>::from(row.case.placement).into()),
    ("memory", "", |row| <&str>::from(row.case.memory).into()),
    ("weak", "outcome", |row| if row.case.is_allowed() { "allowed".into() } else { "forbidden".into() }),
    ("network", "", |row| row.seen_in_network.map_or("", yes).into()),
    ("trials", "", |row| row.trials().to_string()),
    ("seen", "weak", |row| row.weak().to_string()),
    ("verdict", "", |row| row.verdict().into()),
];
