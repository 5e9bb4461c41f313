//! Selection of the rows and columns of a chart.

use super::filter::{Filter, shown};
use super::records::{FileRecord, is_soft, number};
use super::{Axis, AxisScale, Chart, ChartError, MOST_SERIES, Mark, Point, Records, SIDES, Series, label};
use crate::each_once;

/// Ratio of the largest to the smallest value above which an axis is logarithmic, unless the query specifies its scale.
const WIDE: f64 = 50.0;
/// Measured columns that contain integers or texts, and therefore never distinguish two measurements.
const MEASURED: [&str; 9] =
    ["schema", "status", "suspect", "wrong_bytes", "eagain", "repeats", "iterations", "rail_bytes", "baseline"];

/// A query for a chart. Empty texts and lists are derived from the rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// One column for the horizontal axis, or two that together form categories, for example grid and block as
    /// `132x256`.
    pub x: Vec<String>,
    /// Column of the vertical axis.
    pub y: String,
    /// Columns that distinguish series: rows with the same values in all of them form one series.
    pub series: Vec<String>,
    /// Conditions that rows must meet to be used.
    pub filters: Vec<Filter>,
    /// Columns with the lower and the upper end of a point's range.
    pub range: Option<[String; 2]>,
    /// Whether the horizontal axis is logarithmic; `None` to decide based on the values.
    pub x_log: Option<bool>,
    /// Whether the vertical axis is logarithmic; `None` to decide based on the values.
    pub y_log: Option<bool>,
    /// Whether to draw bars, grouped by the values of x.
    pub bars: bool,
    /// Whether to draw bars stacked on each other, one stack for each value of x.
    pub stacked: bool,
    /// Title; `None` for a default one.
    pub title: Option<String>,
    /// Label of the horizontal axis; `None` to derive it from the columns.
    pub x_label: Option<String>,
    /// Label of the vertical axis; `None` to derive it from the column.
    pub y_label: Option<String>,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
}

impl Default for Query {
    fn default() -> Self {
        Self {
            x: Vec::new(),
            y: String::new(),
            series: Vec::new(),
            filters: Vec::new(),
            range: None,
            x_log: None,
            y_log: None,
            bars: false,
            stacked: false,
            title: None,
            x_label: None,
            y_label: None,
            width: 860,
            height: 480,
        }
    }
}

/// A chart with notes for its reader.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// The chart.
    pub chart: Chart,
    /// Notes, for example on the number of omitted rows and the reason.
    pub notes: Vec<String>,
}

/// A row that is drawn.
struct Drawn<'a> {
    row: &'a FileRecord,
    series: usize,
    point: Point,
}

impl Query {
    /// Creates the chart.
    ///
    /// # Errors
    /// Returns an error if the query is invalid, or if no rows are left to draw.
    pub fn chart(&self, records: &Records) -> Result<Picture, ChartError> {
        if let Some(side) = [self.width, self.height].into_iter().find(|side| !SIDES.contains(side)) {
            let (least, most) = (SIDES.start(), SIDES.end());
            return Err(ChartError::Refused(format!(
                "invalid chart size of {side} pixels: must be from {least} to {most}"
            )));
        }
        self.check(records)?;
        let passed = self.passed(records)?;
        let mut notes = Vec::new();
        let mut rows = self.usable(records, &passed, &mut notes)?;
        if self.stacked {
            // The total of a stack is not one of its parts.
            rows.retain(|row| records.field(row, "stage") != "total");
        }

        let (kind, places) = self.places(records, &rows)?;
        let (names, members) = self.series_of(records, &rows);
        if names.len() > MOST_SERIES {
            return Err(ChartError::Refused(format!(
                "{} series exceed the limit of {MOST_SERIES} that a reader can distinguish; name fewer columns, or \
                 narrow the rows",
                names.len()
            )));
        }
        let mut drawn = Vec::new();
        for ((row, x), series) in rows.iter().zip(places).zip(members) {
            let mut y = records.number(row, &self.y).unwrap_or_default();
            if self.stacked && y < 0.0 {
                // A stage between two clocks can be negative by up to the clocks' uncertainty.
                if records.number(row, "clock_uncertainty_us").is_none_or(|most| y < -most) {
                    let text = format!("bars cannot be stacked: {} is {y} in {}", self.y, row.place());
                    return Err(ChartError::Refused(text));
                }
                notes.push(format!("{} is {y} in {}, within the clocks' uncertainty: drawn as 0", self.y, row.place()));
                y = 0.0;
            }
            let range =
                self.range.as_ref().and_then(|[low, high]| records.number(row, low).zip(records.number(row, high)));
            drawn.push(Drawn { row, series, point: Point { x, y, range } });
        }
        let text_on_x = matches!(kind, AxisScale::Categories(_)) && self.x.len() == 1;
        let mark = match (self.in_bars(), text_on_x) {
            (true, _) if self.stacked => Mark::Stacked,
            (true, _) => Mark::Bars,
            // A line between names would imply values in between.
            (false, true) => Mark::Points,
            (false, false) => Mark::Lines,
        };
        if let Some(note) = self.shared(records, &names, &drawn) {
            if self.in_bars() {
                return Err(ChartError::Overlap(note));
            }
            notes.push(note);
        }
        let mut series: Vec<Series> = names.into_iter().map(|name| Series { name, points: Vec::new() }).collect();
        drawn.iter().for_each(|drawn| series[drawn.series].points.push(drawn.point));
        series.iter_mut().for_each(|series| series.points.sort_by(|one, two| one.x.total_cmp(&two.x)));

        let x = Axis {
            label: self
                .x_label
                .clone()
                .unwrap_or_else(|| self.x.iter().map(|name| label::column(name)).collect::<Vec<_>>().join(" x ")),
            kind,
            binary: label::is_binary(&self.x[0]),
        };
        let y = Axis {
            label: self.y_label.clone().unwrap_or_else(|| label::column(&self.y)),
            kind: self.y_kind(&drawn)?,
            binary: label::is_binary(&self.y),
        };
        let rows: Vec<&FileRecord> = drawn.iter().map(|drawn| drawn.row).collect();
        let title = self.title.clone().unwrap_or_else(|| default_title(records, &rows, &x.label, &y.label));
        let chart = Chart {
            title,
            notice: notice(records, &rows),
            caption: self.caption(records, &rows),
            x,
            y,
            mark,
            series,
            width: self.width,
            height: self.height,
        };
        chart.check_room()?;
        Ok(Picture { chart, notes })
    }

    fn in_bars(&self) -> bool {
        self.bars || self.stacked
    }

    /// Returns an error if the query names columns that do not exist.
    fn check(&self, records: &Records) -> Result<(), ChartError> {
        if self.x.is_empty() || self.x.len() > 2 {
            return Err(ChartError::Refused(format!("the x axis must be one or two columns, not {}", self.x.len())));
        }
        let mut asked = self.range.iter().flatten().chain(&self.x).chain([&self.y]).chain(&self.series);
        asked.try_for_each(|name| records.column(name))
    }

    /// Returns the rows that pass the filters.
    fn passed<'a>(&self, records: &'a Records) -> Result<Vec<&'a FileRecord>, ChartError> {
        let mut rows: Vec<&FileRecord> = records.rows().iter().collect();
        if rows.is_empty() {
            return Err(ChartError::Empty("the files have none".into()));
        }
        for filter in &self.filters {
            records.column(&filter.column)?;
            let found = each_once(rows.iter().map(|row| records.field(row, &filter.column)));
            rows.retain(|row| filter.passes(records.field(row, &filter.column)));
            if rows.is_empty() {
                let values: Vec<String> = found.iter().map(|value| shown(value)).collect();
                return Err(ChartError::Empty(format!("none has {}; available: {}", filter.text(), few(&values))));
            }
        }
        Ok(rows)
    }

    /// Returns the rows that can be drawn. Adds a note with the number of omitted rows by reason.
    fn usable<'a>(
        &self,
        records: &Records,
        rows: &[&'a FileRecord],
        notes: &mut Vec<String>,
    ) -> Result<Vec<&'a FileRecord>, ChartError> {
        let (mut not_ok, mut without) = (0, 0);
        let mut usable = Vec::new();
        // Files that ginlab did not measure itself may have no status.
        let has_status = records.has("status");
        for row in rows {
            if has_status && records.field(row, "status") != "ok" {
                not_ok += 1;
            } else if self.x.iter().chain([&self.y]).any(|name| records.field(row, name).is_empty()) {
                without += 1;
            } else {
                for name in self.range.iter().flatten().chain([&self.y]) {
                    let found = records.field(row, name);
                    if !found.is_empty() && number(found).is_none() {
                        let what = format!("{name} is not a number in {}: {found:?}", row.place());
                        return Err(ChartError::Refused(format!("{what}; it cannot be on the y axis")));
                    }
                }
                usable.push(*row);
            }
        }
        let mut reasons = Vec::new();
        if not_ok > 0 {
            reasons.push(format!("{not_ok} with a status other than ok"));
        }
        if without > 0 {
            reasons.push(format!("{without} without {} or {}", self.x.join(", "), self.y));
        }
        if usable.is_empty() {
            return Err(ChartError::Empty(reasons.join(", ")));
        }
        if !reasons.is_empty() {
            notes.push(format!("left out {} of {} rows: {}", not_ok + without, rows.len(), reasons.join(", ")));
        }
        Ok(usable)
    }

    /// Returns the kind of the horizontal axis, and the position of each row on it.
    fn places(&self, records: &Records, rows: &[&FileRecord]) -> Result<(AxisScale, Vec<f64>), ChartError> {
        let numbers: Option<Vec<f64>> = match &self.x[..] {
            [x] if !self.in_bars() => rows.iter().map(|row| records.number(row, x)).collect(),
            _ => None,
        };
        if let Some(numbers) = numbers {
            return Ok((kind('x', self.x_log, &numbers)?, numbers));
        }
        if self.x_log == Some(true) {
            return Err(no_log('x', &format!("{} consists of categories", self.x.join(","))));
        }
        let name = |row: &&FileRecord| {
            let numbers = self.x.iter().all(|name| records.number(row, name).is_some());
            let parts = self.x.iter().map(|name| match value(name, records.field(row, name)) {
                // A number next to a text needs the name of its column.
                count if !numbers && !label::is_binary(name) && number(&count).is_some() => format!("{name}={count}"),
                said => said,
            });
            parts.collect::<Vec<_>>().join(if numbers { "x" } else { " " })
        };
        let (names, members) = grouped(rows.iter().map(name));
        Ok((AxisScale::Categories(names), members.into_iter().map(|index| index as f64).collect()))
    }

    /// Returns the names of the series, and the index of each row's series.
    fn series_of(&self, records: &Records, rows: &[&FileRecord]) -> (Vec<String>, Vec<usize>) {
        grouped(rows.iter().map(|row| {
            let parts = self.series.iter().map(|name| (name, records.field(row, name)));
            // A number needs the name of its column, as in `rails=4`.
            let bare = |field: &str| number(field).is_none() && !matches!(field, "true" | "false");
            let parts: Vec<String> = parts
                .filter(|(_, field)| !field.is_empty())
                .map(
                    |(name, field)| {
                        if bare(field) { value(name, field) } else { format!("{name}={}", value(name, field)) }
                    },
                )
                .collect();
            if parts.is_empty() && !self.series.is_empty() {
                return format!("no {}", self.series.join(", "));
            }
            parts.join(" ")
        }))
    }

    fn y_kind(&self, drawn: &[Drawn]) -> Result<AxisScale, ChartError> {
        if self.in_bars() && self.y_log == Some(true) {
            return Err(no_log('y', "bars start at zero"));
        }
        let spread = |point: Point| [Some(point.y), point.range.map(|range| range.0), point.range.map(|range| range.1)];
        let values: Vec<f64> = drawn.iter().flat_map(|drawn| spread(drawn.point)).flatten().collect();
        kind('y', if self.in_bars() { Some(false) } else { self.y_log }, &values)
    }

    /// Returns a note if points of a series share a position, with the columns that would distinguish them.
    fn shared(&self, records: &Records, names: &[String], drawn: &[Drawn]) -> Option<String> {
        let mut order: Vec<&Drawn> = drawn.iter().collect();
        order.sort_by(|one, two| one.series.cmp(&two.series).then(one.point.x.total_cmp(&two.point.x)));
        let same = |one: &&Drawn, two: &&Drawn| one.series == two.series && one.point.x == two.point.x;
        let groups: Vec<&[&Drawn]> = order.chunk_by(same).filter(|group| group.len() > 1).collect();
        let first = groups.first()?;
        let differs = |name: &str| {
            groups.iter().any(|group| each_once(group.iter().map(|drawn| records.field(drawn.row, name))).len() > 1)
        };
        // Times and rates are written with a decimal point. Integers and texts were chosen, not measured.
        let measured = |name: &str| {
            let mut fields = drawn.iter().map(|drawn| records.field(drawn.row, name));
            fields.any(|field| field.parse::<i64>().is_err() && number(field).is_some())
        };
        let asked = |name: &str| self.x.iter().chain([&self.y]).chain(&self.series).any(|asked| asked == name);
        let tells = |name: &&str| !asked(name) && !MEASURED.contains(name) && differs(name) && !measured(name);
        let apart: Vec<&str> = records.columns().filter(tells).collect();
        let of = match names[first[0].series].as_str() {
            "" => String::new(),
            name => format!(" of {name:?}"),
        };
        let x: Vec<String> = self.x.iter().map(|name| value(name, records.field(first[0].row, name))).collect();
        let place = format!("{} rows{of} share {} {}", first.len(), self.x.join(","), x.join("x"));
        Some(match apart.is_empty() {
            true => format!("{place}: they are repeats of one measurement"),
            false => {
                let columns = apart.join(", ");
                format!("{place}; they differ in {columns}: make some of these columns series, or select rows by them")
            }
        })
    }

    /// Returns the caption: device, fabric, conditions and files.
    fn caption(&self, records: &Records, rows: &[&FileRecord]) -> String {
        let mut parts: Vec<String> = ["device", "fabric"]
            .into_iter()
            .map(|name| (name, values_of(records, rows, name)))
            .filter(|(_, values)| !values.is_empty())
            .map(|(name, values)| format!("{name} {}", few(&values)))
            .collect();
        parts.extend(self.filters.iter().map(|filter| format!("only {}", filter.text())));
        parts.push(few(&values_of(records, rows, super::records::FILE)));
        parts.join(" · ")
    }
}

/// Formats a field for people.
fn value(column: &str, field: &str) -> String {
    match number(field) {
        Some(number) if label::is_binary(column) => label::binary(number),
        _ if column == super::records::FILE => label::file(field),
        _ => field.into(),
    }
}

/// Returns the distinct values in order of their first occurrence, and the index of each value among them.
fn grouped(values: impl Iterator<Item = String>) -> (Vec<String>, Vec<usize>) {
    let values: Vec<String> = values.collect();
    let names = each_once(values.iter().cloned());
    let members = values.iter().filter_map(|value| names.iter().position(|name| name == value)).collect();
    (names, members)
}

/// Formats a list, shortened if it is long.
pub fn few(values: &[String]) -> String {
    const MANY: usize = 6;
    match values.len() {
        0..=MANY => values.join(", "),
        count => format!("{} and {} more", values[..MANY - 1].join(", "), count - MANY + 1),
    }
}

fn values_of(records: &Records, rows: &[&FileRecord], name: &str) -> Vec<String> {
    if !records.has(name) {
        return Vec::new();
    }
    each_once(rows.iter().map(|row| records.field(row, name))).into_iter().map(shown).collect()
}

/// Returns the error for a logarithmic axis of values that have no logarithm.
fn no_log(axis: char, why: &str) -> ChartError {
    ChartError::Refused(format!("the {axis} axis cannot be logarithmic: {why}"))
}

/// Returns the scale of an axis: as requested, or according to the values.
fn kind(axis: char, asked: Option<bool>, values: &[f64]) -> Result<AxisScale, ChartError> {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    match asked {
        Some(true) if low <= 0.0 => Err(no_log(axis, &format!("one value is {low}"))),
        Some(true) => Ok(AxisScale::Log),
        None if low > 0.0 && high / low > WIDE => Ok(AxisScale::Log),
        _ => Ok(AxisScale::Linear),
    }
}

fn default_title(records: &Records, rows: &[&FileRecord], x: &str, y: &str) -> String {
    match values_of(records, rows, "experiment").join(", ") {
        none if none.is_empty() => format!("{y} by {x}"),
        experiments => format!("{experiments}: {y} by {x}"),
    }
}

/// Returns the reasons why these figures are not measurements of the hardware, if any.
fn notice(records: &Records, rows: &[&FileRecord]) -> Option<String> {
    let count =
        |name: &str, unreal: fn(&str) -> bool| rows.iter().filter(|row| unreal(records.field(row, name))).count();
    let reasons = [
        ("emulated device", count("device", |device| device == "emulated")),
        ("modelled network", count("fabric", |fabric| fabric.starts_with("model:"))),
        ("software NICs", count("fabric", is_soft)),
        ("marked as suspect", count("suspect", |why| !why.is_empty())),
    ];
    let some = |(reason, count): (&str, usize)| match count {
        0 => None,
        all if all == rows.len() => Some(reason.to_owned()),
        count => Some(format!("{reason} in {count} of {} points", rows.len())),
    };
    let reasons: Vec<String> = reasons.into_iter().filter_map(some).collect();
    (!reasons.is_empty()).then(|| format!("Not plain measurements: {}", reasons.join(", ")))
}
