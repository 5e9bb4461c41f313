//! What an experiment says of itself, for everything that shows its rows: columns, headline figures, pictures.
//!
//! The report knows no experiment. Tables, CSV, JSON, pages, pictures and comparisons follow from these declarations, which
//! stand beside each experiment. Files of experiments that nobody declares any more are still read: their columns then count
//! as measured, and their pictures are the usual ones.

use super::column::{Column, Role};
use super::{Row, each_once};

/// An experiment, declared.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// As its subcommand is called, and as its rows say.
    pub name: &'static str,
    /// What it measures, in a line: for `--help` and above its rows in a page.
    pub question: &'static str,
    /// The columns that it has beside [`Row::COMMON`].
    pub columns: &'static [Column],
    /// Columns of [`Row::COMMON`] that it never fills: the table leaves them out.
    pub without: &'static [&'static str],
    /// What a reader wants to know first.
    pub headlines: &'static [Headline],
    /// Its pictures, the most telling first.
    pub plots: &'static [Plot],
}

impl About {
    /// An experiment without columns of its own, and with the usual pictures.
    pub const fn new(name: &'static str, question: &'static str) -> Self {
        Self { name, question, columns: &[], without: &[], headlines: &[], plots: Plot::USUAL }
    }
}

/// The best value of a column among rows of a kind.
#[derive(Clone, Copy, Debug)]
pub struct Headline {
    /// What the value is: `acknowledged put of 64 B`.
    pub what: &'static str,
    /// The column.
    pub column: &'static str,
    /// Which value of several counts.
    pub best: Best,
    /// Rows that count have these values in these columns.
    pub only: &'static [(&'static str, &'static str)],
}

impl Headline {
    /// The smallest value of a column, as of times.
    pub const fn least(
        what: &'static str,
        column: &'static str,
        only: &'static [(&'static str, &'static str)],
    ) -> Self {
        Self { what, column, best: Best::Least, only }
    }

    /// The largest value of a column, as of rates.
    pub const fn most(what: &'static str, column: &'static str, only: &'static [(&'static str, &'static str)]) -> Self {
        Self { what, column, best: Best::Most, only }
    }
}

/// The best value of a column in rows of a file, and what a reader holds it against: the best value in other rows of that file.
#[derive(Clone, Copy, Debug)]
pub struct Finding {
    /// The experiment.
    pub experiment: &'static str,
    /// The column.
    pub column: &'static str,
    /// Which value of several counts.
    pub best: Best,
    /// What the value is: `put of 64 B until quiet returns`.
    pub what: &'static str,
    /// Rows that count, as `case=put mode=quiet`.
    pub rows: &'static str,
    /// The peer or the limit.
    pub beside: &'static str,
    /// Its rows.
    pub beside_rows: &'static str,
}

impl Finding {
    const fn new(experiment: &'static str, column: &'static str, best: Best, what: &'static str) -> Self {
        Self { experiment, column, best, what, rows: "", beside: "", beside_rows: "" }
    }

    /// Of times.
    pub const fn least(experiment: &'static str, column: &'static str, what: &'static str) -> Self {
        Self::new(experiment, column, Best::Least, what)
    }

    /// Of rates and bandwidths.
    pub const fn most(experiment: &'static str, column: &'static str, what: &'static str) -> Self {
        Self::new(experiment, column, Best::Most, what)
    }

    /// The same of these rows.
    pub const fn of(self, rows: &'static str) -> Self {
        Self { rows, ..self }
    }

    /// The same beside this, which has these rows.
    pub const fn beside(self, beside: &'static str, beside_rows: &'static str) -> Self {
        Self { beside, beside_rows, ..self }
    }
}

/// Which of several values is the headline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Best {
    /// The smallest, as of times.
    Least,
    /// The largest, as of rates.
    Most,
}

/// A kind of picture: one column over others. The columns in which rows differ besides keep its series apart.
#[derive(Clone, Copy, Debug)]
pub struct Plot {
    /// For the name of the file.
    pub name: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// The columns of the horizontal axis.
    pub x: &'static [&'static str],
    /// The column of the vertical axis.
    pub y: &'static str,
    /// What the vertical axis is called, where that does not follow from the column.
    pub y_label: Option<&'static str>,
    /// The columns from where to where a point spreads.
    pub range: Option<[&'static str; 2]>,
    /// How it is drawn.
    pub shape: Shape,
    /// Whether the vertical axis is logarithmic; by the values where it is not said.
    pub log_y: Option<bool>,
    /// Only rows with one of these values in these columns.
    pub only: &'static [(&'static str, &'static [&'static str])],
    /// Drawn only where this column has two values or more.
    pub several: Option<&'static str>,
    /// Also drawn of all files of a folder together, where this column has several values only so.
    pub across: Option<&'static str>,
}

/// How a picture is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Markers and lines; of three places or more.
    Curve,
    /// Bars, side by side.
    Bars,
    /// Bars on top of each other.
    Stacked,
}

impl Plot {
    /// Time by size.
    pub const TIME: Self = Self {
        name: "time",
        title: "time by size",
        x: &["size_bytes"],
        y: "time_us_p50",
        y_label: Some("time p50, to p99 and min (us)"),
        range: Some(["time_us_min", "time_us_p99"]),
        shape: Shape::Curve,
        log_y: None,
        only: &[],
        several: None,
        across: None,
    };
    /// Bandwidth by size.
    pub const BANDWIDTH: Self = Self {
        name: "bandwidth",
        title: "bandwidth by size",
        y: "bandwidth_gbytes_s",
        y_label: None,
        range: Some(["bandwidth_gbytes_s_low", "bandwidth_gbytes_s_high"]),
        ..Self::TIME
    };
    /// Operations per second by size.
    pub const RATE: Self = Self {
        name: "rate",
        title: "operations per second by size",
        y: "rate_mops",
        y_label: None,
        range: Some(["rate_mops_low", "rate_mops_high"]),
        ..Self::TIME
    };
    /// Speed beside the baseline by size.
    pub const RATIO: Self = Self {
        name: "ratio",
        title: "speed beside the baseline of the same run",
        y: "baseline_ratio",
        y_label: Some("baseline's time / this time"),
        range: None,
        log_y: Some(false),
        ..Self::TIME
    };
    /// The pictures of an experiment that declares none.
    pub const USUAL: &'static [Self] = &[
        Self::BANDWIDTH,
        Self::TIME,
        Self::RATE,
        Self::RATIO,
        Self::BANDWIDTH.by("grid", "bandwidth by blocks of the grid", &["grid"]),
    ];

    /// The same over other columns.
    pub const fn by(self, name: &'static str, title: &'static str, x: &'static [&'static str]) -> Self {
        Self { name, title, x, ..self }
    }

    /// The same of rows with these values alone.
    pub const fn only(self, only: &'static [(&'static str, &'static [&'static str])]) -> Self {
        Self { only, ..self }
    }
}

/// All experiments that declare themselves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Catalog<'a>(pub &'a [About]);

/// Common columns that were chosen, in the order in which they are worth being named.
const FIRST: [&str; 10] =
    ["experiment", "case", "mode", "memory", "rails", "strategy", "fabric", "size_bytes", "grid", "block"];
/// The same, named last.
const LAST: [&str; 2] = ["ranks", "device"];

impl<'a> Catalog<'a> {
    /// The experiment of this name; one that says nothing of itself has the usual pictures.
    pub fn about(&self, name: &str) -> &'a About {
        const OTHER: About = About::new("", "");
        self.0.iter().find(|about| about.name == name).unwrap_or(&OTHER)
    }

    fn own(&self, role: Role) -> impl Iterator<Item = &'static str> {
        let own = self.0.iter().flat_map(|about| about.columns);
        own.filter(move |column| column.role == role).map(|column| column.name)
    }

    /// The columns that were chosen, in the order in which they are worth being named. Two rows with the same values in all of
    /// them are two measurements of one thing. Columns that nobody declares, as of a later version, count as measured.
    pub fn chosen(&self) -> Vec<&'static str> {
        each_once(FIRST.into_iter().chain(self.own(Role::Chosen)).chain(self.own(Role::Follows)).chain(LAST))
    }

    /// Whether a column often follows from others: it parts rows that nothing else does.
    pub fn follows(&self, name: &str) -> bool {
        LAST.contains(&name) || name == "file" || self.own(Role::Follows).any(|own| own == name)
    }

    /// Every column, each once, with the experiments that have it; none for those that all have.
    pub fn columns(&self) -> Vec<(&'static Column, Vec<&'static str>)> {
        let mut columns: Vec<(&Column, Vec<&str>)> = Row::COMMON.iter().map(|column| (column, Vec::new())).collect();
        for about in self.0 {
            for column in about.columns {
                match columns.iter_mut().find(|(known, _)| known.name == column.name) {
                    Some((_, experiments)) => experiments.push(about.name),
                    None => columns.push((column, vec![about.name])),
                }
            }
        }
        columns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_common_column_is_named_where_it_was_chosen() {
        let chosen: Vec<&str> = FIRST.into_iter().chain(LAST).collect();
        for column in Row::COMMON {
            assert_eq!(column.role != Role::Measured, chosen.contains(&column.name), "{}", column.name);
        }
        assert_eq!(Catalog::default().chosen(), chosen);
    }
}
