//! Declarations of experiments, for all outputs that show their rows: columns, headline figures and charts.
//!
//! This crate contains no experiment. Tables, CSV, JSON, pages, charts and comparisons follow from these declarations,
//! which are located next to each experiment. Files of experiments without a declaration can still be read: their
//! columns count as measured, and they get the default charts.

use super::column::{Column, ColumnRole};
use super::{Row, each_once};

/// Declaration of an experiment.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// Name of its subcommand, and value of the column `experiment` in its rows.
    pub name: &'static str,
    /// One-line description of the question that it answers, for `--help` and above its rows on a page.
    pub question: &'static str,
    /// Columns in addition to [`Row::COMMON`].
    pub columns: &'static [Column],
    /// Columns of [`Row::COMMON`] that the experiment never fills; the table omits them.
    pub without: &'static [&'static str],
    /// Whether the table shows the memory of the payload if the device is a GPU.
    pub shows_memory: bool,
    /// Whether the table shows the bandwidth in Gb/s and in percent of the line rate instead of in GB/s.
    pub shows_line: bool,
    /// Headline figures.
    pub headlines: &'static [Headline],
    /// Charts, the most informative one first.
    pub plots: &'static [Plot],
}

impl About {
    /// Creates a declaration without additional columns, and with the default charts.
    pub const fn new(name: &'static str, question: &'static str) -> Self {
        let (shows_memory, shows_line) = (false, false);
        Self {
            name,
            question,
            columns: &[],
            without: &[],
            shows_memory,
            shows_line,
            headlines: &[],
            plots: Plot::USUAL,
        }
    }
}

/// Headline figure: the best value of a column among selected rows.
#[derive(Clone, Copy, Debug)]
pub struct Headline {
    /// Description of the value, for example `acknowledged put of 64 B`.
    pub what: &'static str,
    /// Column of the value.
    pub column: &'static str,
    /// Whether the smallest or the largest value is the best.
    pub best: Best,
    /// Values that rows must have in these columns to be selected.
    pub only: &'static [(&'static str, &'static str)],
}

impl Headline {
    /// Creates a headline with the smallest value of a column, for times.
    pub const fn least(
        what: &'static str,
        column: &'static str,
        only: &'static [(&'static str, &'static str)],
    ) -> Self {
        Self { what, column, best: Best::Least, only }
    }

    /// Creates a headline with the largest value of a column, for rates.
    pub const fn most(what: &'static str, column: &'static str, only: &'static [(&'static str, &'static str)]) -> Self {
        Self { what, column, best: Best::Most, only }
    }
}

/// The best value of a column among rows of a file, and a reference for it: the best value among other rows of that
/// file.
#[derive(Clone, Copy, Debug)]
pub struct BestValue {
    /// Name of the experiment.
    pub experiment: &'static str,
    /// Column of the value.
    pub column: &'static str,
    /// Whether the smallest or the largest value is the best.
    pub best: Best,
    /// Description of the value, for example `put of 64 B until quiet returns`.
    pub what: &'static str,
    /// Condition that selects rows, for example `case=put mode=quiet`.
    pub rows: &'static str,
    /// Description of the reference: an alternative or a limit.
    pub beside: &'static str,
    /// Condition that selects the rows of the reference.
    pub beside_rows: &'static str,
}

impl BestValue {
    const fn new(experiment: &'static str, column: &'static str, best: Best, what: &'static str) -> Self {
        Self { experiment, column, best, what, rows: "", beside: "", beside_rows: "" }
    }

    /// Creates a finding with the smallest value, for times.
    pub const fn least(experiment: &'static str, column: &'static str, what: &'static str) -> Self {
        Self::new(experiment, column, Best::Least, what)
    }

    /// Creates a finding with the largest value, for rates and bandwidths.
    pub const fn most(experiment: &'static str, column: &'static str, what: &'static str) -> Self {
        Self::new(experiment, column, Best::Most, what)
    }

    /// Returns the finding restricted to the rows that `rows` selects.
    pub const fn of(self, rows: &'static str) -> Self {
        Self { rows, ..self }
    }

    /// Returns the finding with a reference, whose rows `beside_rows` selects.
    pub const fn beside(self, beside: &'static str, beside_rows: &'static str) -> Self {
        Self { beside, beside_rows, ..self }
    }
}

/// Rule that selects the headline value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Best {
    /// The smallest value, for times.
    Least,
    /// The largest value, for rates.
    Most,
}

/// Kind of chart: one column over others. Rows that differ in other columns belong to different series.
#[derive(Clone, Copy, Debug)]
pub struct Plot {
    /// Part of the file name.
    pub name: &'static str,
    /// Title of the chart.
    pub title: &'static str,
    /// Columns of the horizontal axis.
    pub x: &'static [&'static str],
    /// Column of the vertical axis.
    pub y: &'static str,
    /// Label of the vertical axis; `None` if it follows from the column.
    pub y_label: Option<&'static str>,
    /// Columns with the lower and the upper end of a point's range.
    pub range: Option<[&'static str; 2]>,
    /// Style of drawing.
    pub shape: ChartStyle,
    /// Whether the vertical axis is logarithmic; `None` to decide based on the values.
    pub log_y: Option<bool>,
    /// Values that rows may have in these columns to be drawn.
    pub only: &'static [(&'static str, &'static [&'static str])],
    /// Column that must have at least two values for the chart to be drawn.
    pub several: Option<&'static str>,
    /// Column that has several values only across the files of a directory. The chart is then also drawn for all files
    /// together.
    pub across: Option<&'static str>,
}

/// Style of a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChartStyle {
    /// Markers, connected by lines if the axis has three values or more.
    Curve,
    /// Bars next to each other.
    Bars,
    /// Bars stacked on each other.
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
        shape: ChartStyle::Curve,
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
    /// Speed relative to the baseline, by size.
    pub const RATIO: Self = Self {
        name: "ratio",
        title: "speed relative to the baseline of the same run",
        y: "baseline_ratio",
        y_label: Some("baseline's time / this time"),
        range: None,
        log_y: Some(false),
        ..Self::TIME
    };
    /// Charts of an experiment that declares none.
    pub const USUAL: &'static [Self] = &[
        Self::BANDWIDTH,
        Self::TIME,
        Self::RATE,
        Self::RATIO,
        Self::BANDWIDTH.by("grid", "bandwidth by blocks of the grid", &["grid"]),
    ];

    /// Returns the plot over other columns.
    pub const fn by(self, name: &'static str, title: &'static str, x: &'static [&'static str]) -> Self {
        Self { name, title, x, ..self }
    }

    /// Returns the plot restricted to rows with these values.
    pub const fn only(self, only: &'static [(&'static str, &'static [&'static str])]) -> Self {
        Self { only, ..self }
    }
}

/// Declarations of all experiments.
#[derive(Clone, Copy, Debug, Default)]
pub struct Catalog<'a>(pub &'a [About]);

/// Common columns with chosen values, in the order in which they are shown.
const FIRST: [&str; 10] =
    ["experiment", "case", "mode", "memory", "rails", "strategy", "fabric", "size_bytes", "grid", "block"];
/// Common columns with chosen values that are shown last.
const LAST: [&str; 2] = ["ranks", "device"];

impl<'a> Catalog<'a> {
    /// Returns the declaration of the experiment `name`, or a default one with the default charts.
    pub fn about(&self, name: &str) -> &'a About {
        const OTHER: About = About::new("", "");
        self.0.iter().find(|about| about.name == name).unwrap_or(&OTHER)
    }

    fn own(&self, role: ColumnRole) -> impl Iterator<Item = &'static str> {
        let own = self.0.iter().flat_map(|about| about.columns);
        own.filter(move |column| column.role == role).map(|column| column.name)
    }

    /// Returns the columns with chosen values, in the order in which they are shown. Two rows with the same values in
    /// all of them are two measurements of the same configuration. Columns without a declaration, for example of a
    /// later version, count as measured.
    pub fn chosen(&self) -> Vec<&'static str> {
        each_once(
            FIRST.into_iter().chain(self.own(ColumnRole::Chosen)).chain(self.own(ColumnRole::Follows)).chain(LAST),
        )
    }

    /// Returns whether the values of a column are usually determined by other columns. Such a column distinguishes rows
    /// only if no other column does.
    pub fn follows(&self, name: &str) -> bool {
        LAST.contains(&name) || name == "file" || self.own(ColumnRole::Follows).any(|own| own == name)
    }

    /// Returns every column once, with the names of the experiments that have it. Common columns have no names.
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
    fn common_columns_are_named_if_chosen() {
        let chosen: Vec<&str> = FIRST.into_iter().chain(LAST).collect();
        for column in Row::COMMON {
            assert_eq!(column.role != ColumnRole::Measured, chosen.contains(&column.name), "{}", column.name);
        }
        assert_eq!(Catalog::default().chosen(), chosen);
    }
}
