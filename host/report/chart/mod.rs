//! Pictures of rows: from CSV files to one SVG.
//!
//! [`Records`] reads the files by the names of their columns, a [`Query`] picks rows and columns from them, and the
//! [`Chart`] that it gives draws itself as SVG. Who has figures of another origin fills a [`Chart`] directly.
//!
//! The same chart gives the same bytes. Scales, ticks, legends and margins are kuva's; a series has the colour that a
//! [`Palette`] gives its name. (plotters, which drew these pictures before, has no legend beside a plot, no broken titles, no
//! whiskers and no grouped bars: all of that was written here.) What was not measured on the hardware that it speaks of (an emulated device, a modelled network)
//! says so in the picture itself, because pictures travel without their files.

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
pub use self::records::{Kind as FileKind, Record, Records};

/// The most series that colours, dashes and markers keep apart.
pub const MOST_SERIES: usize = 24;
/// The smallest and the largest picture, in pixels, along each side.
pub const SIDES: std::ops::RangeInclusive<u32> = 200..=8000;

/// A picture, ready to be drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// The heading.
    pub title: String,
    /// What a reader must not miss, below the heading: that a device was emulated, for one.
    pub notice: Option<String>,
    /// Where the figures come from, small, below the picture.
    pub caption: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis. It has no categories.
    pub y: Axis,
    /// How the points of a series are shown.
    pub mark: Mark,
    /// What is drawn, in the order of colours.
    pub series: Vec<Series>,
    /// Pixels.
    pub width: u32,
    /// Pixels.
    pub height: u32,
}

impl Chart {
    /// How many points it has.
    pub fn points(&self) -> usize {
        self.series.iter().map(|series| series.points.len()).sum()
    }

    /// What is to be seen, for readers who cannot.
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

/// An axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// What it shows, with the unit.
    pub label: String,
    /// How values lie along it.
    pub kind: Kind,
    /// Its values are sizes: ticks at powers of two, written as 64, 4K, 1M.
    pub binary: bool,
}

/// How values lie along an axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// In proportion.
    Linear,
    /// By their logarithm.
    Log,
    /// Side by side; the value of a point is the index into these names.
    Categories(Vec<String>),
}

/// How the points of a series are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// As markers, joined by a line unless several stand at one place.
    Lines,
    /// As markers alone.
    Points,
    /// As bars from zero, grouped by category.
    Bars,
    /// As bars on top of each other, one pile for each category. They have no ranges.
    Stacked,
}

/// The points of one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// The name; a chart of one series without a name has no legend.
    pub name: String,
    /// The points, from left to right.
    pub points: Vec<Point>,
}

/// One point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The place along the horizontal axis, or the index of a category.
    pub x: f64,
    /// The value.
    pub y: f64,
    /// From where to where it spreads.
    pub range: Option<(f64, f64)>,
}

/// Why there is no picture, or no comparison, in one line for people.
#[derive(Debug, thiserror::Error)]
pub enum ChartError {
    /// A file could not be read.
    #[error("cannot read {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is no CSV, or was cut off.
    #[error("{}: {why}", .path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// What the reader said.
        why: String,
    },
    /// A CSV file of something else.
    #[error("{} is not a CSV file of ginlab: it has no column {missing}", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The columns that every file of ginlab has and this one has not.
        missing: String,
    },
    /// Nothing remains to be drawn.
    #[error("no rows are left to draw: {0}")]
    Empty(String),
    /// Names and labels leave no room for the picture.
    #[error("{side} {given} is too small for what is to be shown; at least {least} is needed")]
    TooSmall {
        /// `width` or `height`.
        side: &'static str,
        /// What was asked for.
        given: u32,
        /// What would do.
        least: u32,
    },
    /// Bars would hide each other.
    #[error("bars would hide each other: {0}")]
    Overlap(String),
    /// A question that makes no sense, or none of these rows.
    #[error("{0}")]
    Refused(String),
}
