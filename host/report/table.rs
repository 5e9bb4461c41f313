//! Table output for readers: fixed columns, printed row by row.

use std::io::{self, Write};

use super::{About, Row, RowStatus, Value};
use ginlab_base::size;

const BOLD: &str = "\x1b[1m";
const RED: &str = "\x1b[31m";
const YELLOW: &str = "\x1b[33m";
const RESET: &str = "\x1b[0m";

/// Function that returns the text of a cell.
type Cell = fn(&Row, &Shown) -> String;

/// Column of the table: the row's column that must be filled for it, its two-line heading, its width, and its cell.
/// Texts are left-aligned, numbers right-aligned.
#[derive(Clone, Copy, Debug)]
struct Shown {
    of: &'static str,
    title: &'static str,
    unit: &'static str,
    width: usize,
    left: bool,
    cell: Cell,
}

const fn left(of: &'static str, title: &'static str, unit: &'static str, width: usize, cell: Cell) -> Shown {
    Shown { of, title, unit, width, left: true, cell }
}

const fn right(of: &'static str, title: &'static str, unit: &'static str, width: usize, cell: Cell) -> Shown {
    Shown { of, title, unit, width, left: false, cell }
}

/// Columns with chosen values, before the experiment's own columns.
const CHOSEN: [Shown; 7] = [
    left("case", "case", "", 9, |row, _| row.case.clone()),
    right("size_bytes", "size", "", 8, |row, _| row.size_bytes.map(size::human).unwrap_or_default()),
    left("rails", "rails", "strategy", 13, |row, _| {
        let rails = row.rails.map(|rails| rails.to_string());
        rails.into_iter().chain(row.strategy.clone()).collect::<Vec<_>>().join(" ")
    }),
    left("mode", "mode", "", 14, |row, _| row.mode.clone().unwrap_or_default()),
    right("grid", "grid", "x block", 8, |row, _| match (row.grid, row.block) {
        (Some(grid), Some(block)) => format!("{grid}x{block}"),
        (grid, _) => grid.map(|grid| grid.to_string()).unwrap_or_default(),
    }),
    // The vendor's name is omitted, because the name of the model suffices.
    left("device", "device", "", 8, |row, _| row.device.replacen("gpu:NVIDIA ", "gpu:", 1)),
    left("fabric", "fabric", "", 13, |row, _| row.fabric.clone()),
];

/// Column that follows the chosen ones if the device is a GPU.
const MEMORY: Shown = left("memory", "memory", "", 8, |row, _| {
    let memory = row.memory.as_deref().unwrap_or_default();
    memory.strip_prefix("device-").unwrap_or(memory).to_owned()
});
/// Width of the column `fabric` next to [`MEMORY`].
const NARROW_FABRIC: usize = 11;

/// Columns that replace `bandwidth_gbytes_s` if the table shows the line rate.
const LINE: [Shown; 2] = [
    right("bandwidth_gbits_s", "Gb/s", "", 8, |row, shown| figure(row.bandwidth_gbits_s, shown.width)),
    right("line_rate_pct", "line", "%", 5, |row, shown| figure(row.line_rate_pct, shown.width)),
];

/// Columns with measured values, after them. The status is the last column and has no fixed width.
const MEASURED: [Shown; 7] = [
    right("time_us_p50", "p50", "us", 8, |row, shown| figure(row.time_us_p50, shown.width)),
    right("time_us_p99", "p99", "us", 8, |row, shown| figure(row.time_us_p99, shown.width)),
    right("bandwidth_gbytes_s", "GB/s", "", 7, |row, shown| figure(row.bandwidth_gbytes_s, shown.width)),
    right("rate_mops", "Mops", "", 6, |row, shown| figure(row.rate_mops, shown.width)),
    right("baseline_ratio", "base", "%", 5, |row, shown| {
        figure(row.baseline_ratio.map(|ratio| 100.0 * ratio), shown.width)
    }),
    right("wrong_bytes", "wrong", "bytes", 5, |row, _| {
        row.wrong_bytes.map(|wrong| wrong.to_string()).unwrap_or_default()
    }),
    left("status", "status", "", 6, |row, _| match &row.suspect {
        Some(why) => format!("{}, suspect: {why}", row.status),
        None => row.status.to_string(),
    }),
];

/// Returns the columns of an experiment's table. They are fixed from the start, because rows are printed before later
/// ones are known.
fn columns(about: &About, on_gpu: bool) -> Vec<Shown> {
    let own = about.columns.iter().filter_map(|column| {
        let (title, width) = column.shown?;
        let cell = |row: &Row, shown: &Shown| match row.own(shown.of) {
            Value::Number(number) => figure(Some(*number), shown.width),
            Value::Count(count) => count.to_string(),
            Value::Flag(flag) => flag.to_string(),
            Value::Text(text) => text.clone(),
            Value::None => String::new(),
        };
        Some(Shown { of: column.name, title, unit: column.unit, width, left: column.unit.is_empty(), cell })
    });
    let filled = |shown: &Shown| !about.without.contains(&shown.of);
    let memory = (on_gpu && about.shows_memory).then_some(MEMORY);
    let narrowed = |shown: Shown| match shown.of {
        "fabric" if memory.is_some() => Shown { width: NARROW_FABRIC, ..shown },
        _ => shown,
    };
    let chosen = CHOSEN.into_iter().filter(filled).map(narrowed).chain(memory);
    let line = |shown: Shown| match shown.of {
        "bandwidth_gbytes_s" if about.shows_line => LINE.to_vec(),
        _ => vec![shown],
    };
    chosen.chain(own).chain(MEASURED.into_iter().flat_map(line).filter(filled)).collect()
}

/// Prints the most important columns, row by row, within 140 characters.
#[derive(Debug)]
pub struct Table<W: Write> {
    out: W,
    color: bool,
    begun: bool,
    columns: Vec<Shown>,
}

impl<W: Write> Table<W> {
    /// Creates a table that prints to `out`. With `on_gpu`, the device is a GPU.
    pub fn new(out: W, color: bool, about: &About, on_gpu: bool) -> Self {
        Self { out, color, begun: false, columns: columns(about, on_gpu) }
    }

    /// Prints one row, preceded by the heading if it is the first, and flushes the output.
    pub fn row(&mut self, row: &Row) -> io::Result<()> {
        let mut text = String::new();
        if !self.begun {
            self.begun = true;
            for heading in [|shown: &Shown| shown.title, |shown: &Shown| shown.unit] {
                let cells: Vec<String> = self.columns.iter().map(|shown| heading(shown).to_owned()).collect();
                text += &self.painted(BOLD, &line(&cells, &self.columns));
                text.push('\n');
            }
        }
        let color = match (&row.status, &row.suspect) {
            (RowStatus::Failed(_), _) => RED,
            _ if row.wrong_bytes.is_some_and(|wrong| wrong > 0) => RED,
            (RowStatus::Skipped(_), _) | (_, Some(_)) => YELLOW,
            _ => "",
        };
        let cells: Vec<String> = self.columns.iter().map(|shown| (shown.cell)(row, shown)).collect();
        text += &self.painted(color, &line(&cells, &self.columns));
        text.push('\n');
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    fn painted(&self, color: &str, text: &str) -> String {
        if self.color && !color.is_empty() { format!("{color}{text}{RESET}") } else { text.into() }
    }
}

/// Formats one line. A text that is too long for its column is truncated and marked. A number is never truncated.
fn line(cells: &[String], columns: &[Shown]) -> String {
    let (Some((status, cells)), mut text) = (cells.split_last(), String::new()) else { return String::new() };
    for (cell, column) in cells.iter().zip(columns) {
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
    text += status;
    text.truncate(text.trim_end().len());
    text
}

/// Returns the width in characters of a full line of an experiment's table, without the status. It is the maximum of
/// the tables with and without a GPU.
pub fn width(about: &About) -> usize {
    let width = |on_gpu| line_width(&columns(about, on_gpu));
    width(false).max(width(true))
}

fn line_width(columns: &[Shown]) -> usize {
    columns.iter().map(|shown| shown.width + 1).sum::<usize>() - 7
}

/// Formats a number in at most `width` characters with about four significant digits.
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
    fn figures_are_formatted_by_magnitude() {
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
