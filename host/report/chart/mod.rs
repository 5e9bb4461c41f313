//! Charts of rows: from CSV files to one SVG document.
//!
//! [`Records`] reads the files by the names of their columns, a [`Query`] selects rows and columns, and the resulting
//! [`Chart`] draws itself as SVG. Figures from other sources can be put into a [`Chart`] directly.
//!
//! The same chart always results in the same bytes. kuva provides scales, ticks, legends and margins; a [`Palette`]
//! assigns a colour to the name of each series. If rows were not measured on the hardware that they describe (an
//! emulated device, a modelled network), the chart contains a notice of this, because charts are passed on without
//! their files.

mod draw;
mod filter;
pub(crate) mod label;
mod palette;
mod query;
mod records;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;

pub use self::filter::Filter;
pub use self::palette::Palette;
pub(crate) use self::query::few;
pub use self::query::{Picture, Query};
pub(crate) use self::records::is_soft;
pub use self::records::{FileKind, FileRecord, Records};

/// Maximum number of series that colours, dashes and markers can distinguish.
pub const MOST_SERIES: usize = 24;
/// Range of a chart's width and height, in pixels.
pub const SIDES: std::ops::RangeInclusive<u32> = 200..=8000;

/// A chart, ready to be drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// Title.
    pub title: String,
    /// Notice below the title that a reader must not miss, for example that a device was emulated.
    pub notice: Option<String>,
    /// Origin of the figures, in small type.
    pub caption: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis. It has no categories.
    pub y: Axis,
    /// Style of the points.
    pub mark: Mark,
    /// Series, in the order of colours.
    pub series: Vec<Series>,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
}

impl Chart {
    /// Returns the number of points.
    pub fn points(&self) -> usize {
        self.series.iter().map(|series| series.points.len()).sum()
    }

    /// Returns a description of the chart, for readers who cannot see it.
    pub fn description(&self) -> String {
        let names: Vec<&str> =
            self.series.iter().map(|series| series.name.as_str()).filter(|name| !name.is_empty()).collect();
        let mut parts = vec![format!("{} by {}", self.y.label, self.x.label)];
        if !names.is_empty() {
            parts.push(format!("series: {}", names.join(", ")));
        }
        parts.extend(self.notice.clone());
        parts.push(self.caption.clone());
        parts.join(". ")
    }
}

/// An axis of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// Quantity that the axis shows, with the unit.
    pub label: String,
    /// Scale of the axis.
    pub kind: AxisScale,
    /// Whether the values are sizes: ticks are at powers of two, and written as 64, 4K, 1M.
    pub binary: bool,
}

/// Scale of an axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AxisScale {
    /// Linear.
    Linear,
    /// Logarithmic.
    Log,
    /// Categories next to each other; the value of a point is the index of a name.
    Categories(Vec<String>),
}

/// Style of the points of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Markers, connected by a line unless several points have the same x.
    Lines,
    /// Only markers.
    Points,
    /// Bars from zero, grouped by category.
    Bars,
    /// Bars stacked on each other, one stack per category. They have no ranges.
    Stacked,
}

/// Points with a common name.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Name of the series; a chart of one series without a name has no legend.
    pub name: String,
    /// Points, from left to right.
    pub points: Vec<Point>,
}

/// One point of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Position on the horizontal axis, or the index of a category.
    pub x: f64,
    /// Value on the vertical axis.
    pub y: f64,
    /// Lower and upper end of its range.
    pub range: Option<(f64, f64)>,
}

/// Errors that prevent a chart or a comparison, each a one-line message.
#[derive(Debug, thiserror::Error)]
pub enum ChartError {
    /// A file could not be read.
    #[error("cannot read {}: {source}", .path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file is not valid CSV, or is truncated.
    #[error("{}: {why}", .path.display())]
    Broken {
        /// Path of the file.
        path: PathBuf,
        /// The parser's error.
        why: String,
    },
    /// A CSV file that was not written by ginlab.
    #[error("{} is not a CSV file of ginlab: it has no column {missing}", .path.display())]
    Foreign {
        /// Path of the file.
        path: PathBuf,
        /// Required columns that this file lacks.
        missing: String,
    },
    /// No rows are left to draw.
    #[error("no rows are left to draw: {0}")]
    Empty(String),
    /// Names and labels that leave no space for the chart.
    #[error("{side} {given} is too small for the chart; at least {least} is needed")]
    TooSmall {
        /// `width` or `height`.
        side: &'static str,
        /// Requested size in pixels.
        given: u32,
        /// Minimum size in pixels.
        least: u32,
    },
    /// Bars that would hide each other.
    #[error("bars would hide each other: {0}")]
    Overlap(String),
    /// Two runs have no row in common.
    #[error("no row of {a} is in {b}: {why}")]
    NoCommonRow {
        /// File of the first run.
        a: String,
        /// File of the second run.
        b: String,
        /// Differences of the rows.
        why: String,
        /// Columns in which all rows differ. The runs can be compared if these are ignored. Empty if there are none.
        differ: Vec<&'static str>,
    },
    /// An invalid query, or one that these rows cannot answer.
    #[error("{0}")]
    Refused(String),
}
