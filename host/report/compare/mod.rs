//! Comparison of two runs, row by row.
//!
//! Two rows match if they agree in every chosen column (see [`Catalog::chosen`](super::Catalog::chosen)) that both
//! files have. Only the kind of the device must agree: two GPUs can be compared, but not a GPU with an emulated device.
//!
//! A difference is beyond noise if the times of the two rows do not overlap. Then every repeat of one row is slower
//! than every repeat of the other, according to minimum and 99th percentile. This is a statement about these two runs
//! only: medians also differ between machines and between hours, by an amount that no row contains.

mod rows;

use std::collections::BTreeSet;

use serde::Serialize;
use strum::EnumMessage;

pub use self::rows::{Compared, RowTimes, Verdict, compare, verdict};
use super::chart::{ChartError, FileKind, few};
use super::run::Run;
use super::{Catalog, Key};

/// Returns the error for a file without measurements.
fn listing(name: &str) -> ChartError {
    ChartError::Refused(format!("{name} is a listing, which has nothing to compare"))
}

/// Comparison of two runs, file by file.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Comparison {
    /// Compared rows.
    pub rows: Vec<Compared>,
    /// Files of the first run that the second does not have.
    pub files_only_in_a: Vec<String>,
    /// Files of the second run that the first does not have.
    pub files_only_in_b: Vec<String>,
    /// Header entries in which the two runs differ: name, value in the first run and value in the second.
    pub headers_differ: Vec<(String, String, String)>,
    /// Chosen columns.
    #[serde(skip)]
    chosen: Vec<&'static str>,
}

impl Comparison {
    /// Compares runs, given as one file or one directory each. Files match by name. If there is one file on each side,
    /// these two are compared.
    pub fn of(a: &[Run], b: &[Run], catalog: Catalog, ignored: &[String]) -> Result<Self, ChartError> {
        let measured =
            |runs: &[Run]| runs.iter().filter(|run| run.kind != FileKind::Listing).cloned().collect::<Vec<_>>();
        let (mut first, mut second) = (measured(a), measured(b));
        for (all, left) in [(a, &first), (b, &second)] {
            if let (true, Some(run)) = (left.is_empty(), all.first()) {
                return Err(listing(&run.name));
            }
        }
        let mut comparison = Self { chosen: catalog.chosen(), ..Self::default() };
        comparison.chosen.retain(|column| !ignored.iter().any(|ignored| ignored == column));
        if first.len() > 1 || second.len() > 1 {
            let names = |runs: &[Run]| runs.iter().map(|run| run.name.clone()).collect::<Vec<_>>();
            let (a_names, b_names) = (few(&names(&first)), few(&names(&second)));
            let apart = |ours: &mut Vec<Run>, theirs: &[Run]| {
                let found = |run: &mut Run| !theirs.iter().any(|other| other.within == run.within);
                names(&ours.extract_if(.., found).collect::<Vec<_>>())
            };
            comparison.files_only_in_a = apart(&mut first, b);
            comparison.files_only_in_b = apart(&mut second, a);
            if first.is_empty() {
                let text = format!("no file of A has the same name in B: A has {a_names}; B has {b_names}");
                return Err(ChartError::Refused(text));
            }
        }
        for (index, run) in first.iter().enumerate() {
            let other = second.iter().find(|other| other.within == run.within).or_else(|| second.get(index));
            let Some(other) = other else { continue };
            comparison.rows.extend(compare(run, other, &comparison.chosen)?);
            for key in DIFFER {
                let [one, two] = [run, other].map(|run| run.fact(key).unwrap_or_else(|| "unknown".into()));
                let line = (key.name().to_owned(), one, two);
                if line.1 != line.2 && !comparison.headers_differ.contains(&line) {
                    comparison.headers_differ.push(line);
                }
            }
        }
        if comparison.rows.iter().all(|row| matches!(row.verdict, Verdict::OnlyA | Verdict::OnlyB)) {
            let (a, b) = (first[0].name.clone(), second[0].name.clone());
            let (why, differ) = comparison.differences();
            return Err(ChartError::NoCommonRow { a, b, why, differ });
        }
        Ok(comparison)
    }

    /// Returns the rows in readable form, column by column: heading, unit, cells. Includes the chosen columns in which
    /// rows differ, and the other columns that are not empty.
    pub fn table(&self) -> Vec<(String, String, Vec<String>)> {
        let rows = &self.rows;
        let column = |title: &str, unit: &str, cell: &dyn Fn(&Compared) -> String| {
            (title.to_owned(), unit.to_owned(), rows.iter().map(cell).collect::<Vec<_>>())
        };
        let ratio = |value: Option<f64>| value.map(|value| format!("{value:.3}")).unwrap_or_default();
        let number = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
        let mut columns = Vec::new();
        if rows.iter().any(|row| row.file != rows[0].file) {
            columns.push(column("file", "", &|row| row.file.clone()));
        }
        let common = self.in_common();
        let differ = self.chosen.iter().filter(|name| !common.iter().any(|(common, _)| common == *name));
        columns.extend(differ.map(|name| column(name, "", &|row| row.chosen(name).to_owned())));
        columns.extend([
            column("A", "us", &|row| number(row.a_time_us)),
            column("B", "us", &|row| number(row.b_time_us)),
            column("time", "B/A", &|row| ratio(row.time_ratio)),
            column("GB/s", "B/A", &|row| ratio(row.bandwidth_ratio)),
            column("Mops", "B/A", &|row| ratio(row.rate_ratio)),
            column("real?", "", &|row| row.unreal.clone().unwrap_or_default()),
            column("verdict", "", &|row| row.verdict.to_string()),
        ]);
        columns.retain(|(_, _, cells)| cells.iter().any(|cell| !cell.is_empty()));
        columns
    }

    /// Returns the chosen columns that have the same value in all rows, with their values.
    pub fn in_common(&self) -> Vec<(&'static str, &str)> {
        let Some(first) = self.rows.first() else { return Vec::new() };
        let same = |name: &&str| self.rows.iter().all(|row| row.chosen(name) == first.chosen(name));
        self.chosen.iter().copied().filter(same).map(|name| (name, first.chosen(name))).collect()
    }

    /// Returns the number of rows for each verdict, in words, the most important verdict first.
    pub fn counts(&self) -> Vec<(&'static str, usize)> {
        let kinds = ["failed in B", "slower", "faster", "same within noise", "cannot say", "only in A", "only in B"];
        let is = |row: &Compared, kind| row.verdict.get_message() == Some(kind);
        let count = |kind| (kind, self.rows.iter().filter(|row| is(row, kind)).count());
        kinds.into_iter().map(count).filter(|(_, count)| *count > 0).collect()
    }

    /// Returns the columns in which the two sides have no value in common, also as text.
    fn differences(&self) -> (String, Vec<&'static str>) {
        let values = |side: Verdict, column: &str| -> BTreeSet<String> {
            let rows = self.rows.iter().filter(|row| row.verdict == side).flat_map(|row| &row.identity);
            rows.filter(|(name, _)| *name == column).map(|(_, value)| value.clone()).collect()
        };
        let list = |values: &BTreeSet<String>| {
            let shown = values.iter().map(|value| if value.is_empty() { "(empty)".into() } else { value.clone() });
            few(&shown.collect::<Vec<_>>())
        };
        let differ = self.chosen.iter().filter_map(|&column| {
            let (one, two) = (values(Verdict::OnlyA, column), values(Verdict::OnlyB, column));
            one.is_disjoint(&two).then(|| (column, format!("{column} is {} and {}", list(&one), list(&two))))
        });
        let (columns, texts): (Vec<&'static str>, Vec<String>) =
            differ.filter(|(_, text)| !text.ends_with("is  and ")).unzip();
        let text = if columns.is_empty() { "they have no common row".into() } else { texts.join(", ") };
        (text, columns)
    }
}

/// Header entries that are reported if they differ between the compared runs.
const DIFFER: [Key; 9] = [
    Key::Ginlab,
    Key::Commit,
    Key::Hostname,
    Key::Cpu,
    Key::Gpu,
    Key::Driver,
    Key::Libfabric,
    Key::Provider,
    Key::Environment,
];
