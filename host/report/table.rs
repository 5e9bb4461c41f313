//! Rows for people: fixed columns, printed as they are measured.

use std::io::{self, Write};

use super::{Row, Status};
use crate::measure::size;

const BOLD: &str = "\x1b[1m";
const RED: &str = "\x1b[31m";
const YELLOW: &str = "\x1b[33m";
const RESET: &str = "\x1b[0m";

/// A column: its two-line heading and its width. Texts stand left, numbers right.
struct Column {
    title: &'static str,
    unit: &'static str,
    width: usize,
    left: bool,
}

const fn left(title: &'static str, unit: &'static str, width: usize) -> Column {
    Column { title, unit, width, left: true }
}

const fn right(title: &'static str, unit: &'static str, width: usize) -> Column {
    Column { title, unit, width, left: false }
}

/// Fixed from the start, because rows are printed before the next ones are known. The status stands last and is as long as
/// it must be.
const COLUMNS: [Column; 15] = [
    left("case", "", 9),
    right("size", "", 8),
    left("rails", "strategy", 13),
    left("mode", "", 14),
    right("grid", "x block", 8),
    left("device", "", 8),
    left("fabric", "", 13),
    right("post", "us", 7),
    right("p50", "us", 8),
    right("p99", "us", 8),
    right("GB/s", "", 7),
    right("Mops", "", 6),
    right("base", "%", 5),
    right("wrong", "bytes", 5),
    left("status", "", 6),
];

/// Prints the columns a person needs, row by row, within 140 characters.
#[derive(Debug)]
pub struct Table<W: Write> {
    out: W,
    color: bool,
    begun: bool,
}

impl<W: Write> Table<W> {
    /// A table on `out`.
    pub fn new(out: W, color: bool) -> Self {
        Self { out, color, begun: false }
    }

    /// Prints one row, before the first one the heading.
    pub fn row(&mut self, row: &Row) -> io::Result<()> {
        let mut text = String::new();
        if !self.begun {
            self.begun = true;
            for heading in [COLUMNS.map(|column| column.title), COLUMNS.map(|column| column.unit)] {
                text += &self.painted(BOLD, &line(&heading.map(String::from)));
                text.push('\n');
            }
        }
        let color = match (&row.status, &row.suspect) {
            (Status::Failed(_), _) => RED,
            _ if row.wrong.is_some_and(|wrong| wrong > 0) => RED,
            (Status::Skipped(_), _) | (_, Some(_)) => YELLOW,
            _ => "",
        };
        text += &self.painted(color, &line(&cells(row)));
        text.push('\n');
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    /// Ends the table.
    pub fn finish(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn painted(&self, color: &str, text: &str) -> String {
        if self.color && !color.is_empty() { format!("{color}{text}{RESET}") } else { text.into() }
    }
}

fn cells(row: &Row) -> [String; COLUMNS.len()] {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let rails = match row.rails {
        Some(rails) => format!("{rails} {}", text(&row.strategy)).trim_end().into(),
        None => row.pair.clone().unwrap_or_else(|| text(&row.strategy)),
    };
    // What rows between GPUs and of collectives have instead of a mode.
    let mode = row.mode.clone().unwrap_or_else(|| {
        let width = row.width_bytes.map(|bytes| format!("{bytes} B"));
        let imbalance = row.imbalance_pct.map(|percent| format!("imbal. {percent:.1} %"));
        [width, row.launch.clone(), imbalance].into_iter().flatten().collect::<Vec<_>>().join(" ")
    });
    let grid = match (row.grid, row.block) {
        (Some(grid), Some(block)) => format!("{grid}x{block}"),
        (Some(grid), None) => grid.to_string(),
        // GB/s, the unit of the column of bandwidths.
        _ => row.pair_gbytes_s.map(|rate| format!("{}/pair", figure(Some(rate), 6))).unwrap_or_default(),
    };
    let status = match &row.suspect {
        Some(why) => format!("{}, suspect: {why}", row.status),
        None => row.status.to_string(),
    };
    [
        row.case.clone(),
        row.size_bytes.map(size::human).unwrap_or_default(),
        rails,
        mode,
        grid,
        // The maker's name says nothing that the model does not.
        row.device.replacen("gpu:NVIDIA ", "gpu:", 1),
        row.fabric.clone(),
        figure(row.post_us_p50, 7),
        figure(row.time_us_p50, 8),
        figure(row.time_us_p99, 8),
        figure(row.bandwidth_gbytes_s, 7),
        figure(row.rate_mops, 6),
        figure(row.baseline_ratio.map(|ratio| 100.0 * ratio), 5),
        row.wrong.map(|wrong| wrong.to_string()).unwrap_or_default(),
        status,
    ]
}

/// Lays out one line. A text that is too long for its column is cut and marked; a number is never cut.
fn line(cells: &[String; COLUMNS.len()]) -> String {
    let mut text = String::new();
    for (cell, column) in cells.iter().zip(&COLUMNS[..COLUMNS.len() - 1]) {
        let width = column.width;
        if !column.left {
            text += &format!("{cell:>width$} ");
        } else if cell.chars().count() <= width {
            text += &format!("{cell:<width$} ");
        } else {
            let cut: String = cell.chars().take(width - 1).collect();
            text += &format!("{cut}~ ");
        }
    }
    text += &cells[COLUMNS.len() - 1];
    text.truncate(text.trim_end().len());
    text
}

/// A number in at most `width` characters with about four significant digits: as many decimals as say something.
fn figure(value: Option<f64>, width: usize) -> String {
    let Some(value) = value.filter(|value| value.is_finite()) else { return String::new() };
    let decimals: usize = match value.abs() {
        size if size < 1.0 => 4,
        size if size < 10.0 => 3,
        size if size < 100.0 => 2,
        _ => 1,
    };
    (0..=decimals)
        .rev()
        .map(|decimals| format!("{value:.decimals$}"))
        .find(|text| text.len() <= width)
        .unwrap_or_else(|| format!("{value:.0e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_full_line_fits() {
        let width: usize = COLUMNS.iter().map(|column| column.width + 1).sum();
        assert!(width - 1 <= 140, "{width}");
    }

    #[test]
    fn figures() {
        let shown: Vec<String> = [0.0, 0.012345, 9.87654, 12.3456, 123.456, 123456.7, 1.0e7, 1.0e12]
            .into_iter()
            .map(|value| figure(Some(value), 8))
            .collect();
        insta::assert_snapshot!(shown.join(" | "), @"0.0000 | 0.0123 | 9.877 | 12.35 | 123.5 | 123456.7 | 10000000 | 1e12");
        assert_eq!(figure(Some(f64::NAN), 8), "");
        assert_eq!(figure(None, 8), "");
    }

    proptest! {
        #[test]
        fn figures_fit(value in 0.0f64..1e300, width in 5usize..9) {
            prop_assert!(figure(Some(value), width).len() <= width);
        }
    }
}
