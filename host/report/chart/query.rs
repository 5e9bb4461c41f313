//! Which rows and columns make a chart.

use super::filter::{Filter, shown};
use super::records::{Record, is_soft, number};
use super::{Axis, Chart, ChartError, Kind, MOST_SERIES, Mark, Point, Records, SIDES, Series, label};
use crate::each_once;

/// Values that span more than this factor are shown on a logarithmic axis, unless it is said how.
const WIDE: f64 = 50.0;
/// Integers and texts that were measured, and so never tell two measurements apart.
const MEASURED: [&str; 9] =
    ["schema", "status", "suspect", "wrong", "again", "repeats", "iterations", "rail_bytes", "baseline"];

/// What is asked of the rows. Empty texts and lists mean: as it follows from the rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// One column for the horizontal axis, or two that make categories together: grid and block as `132x256`.
    pub x: Vec<String>,
    /// The column for the vertical axis.
    pub y: String,
    /// Rows with the same values in these columns are one series.
    pub series: Vec<String>,
    /// Rows that do not pass all of these are not looked at.
    pub filters: Vec<Filter>,
    /// The columns from where to where a point spreads.
    pub range: Option<[String; 2]>,
    /// Whether the horizontal axis is logarithmic.
    pub x_log: Option<bool>,
    /// Whether the vertical axis is logarithmic.
    pub y_log: Option<bool>,
    /// Bars, grouped by the values of x.
    pub bars: bool,
    /// Bars on top of each other, one pile for each value of x.
    pub stacked: bool,
    /// The heading.
    pub title: Option<String>,
    /// What the horizontal axis is called.
    pub x_label: Option<String>,
    /// What the vertical axis is called.
    pub y_label: Option<String>,
    /// Pixels.
    pub width: u32,
    /// Pixels.
    pub height: u32,
}

/// A chart, and what there is to say about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// The chart.
    pub chart: Chart,
    /// Lines for people: how many rows were left out, and why.
    pub notes: Vec<String>,
}

/// A row that is drawn.
struct Drawn<'a> {
    row: &'a Record,
    series: usize,
    point: Point,
}

impl Query {
    /// Makes the chart.
    pub fn chart(&self, records: &Records) -> Result<Picture, ChartError> {
        if let Some(side) = [self.width, self.height].into_iter().find(|side| !SIDES.contains(side)) {
            let (least, most) = (SIDES.start(), SIDES.end());
            return Err(ChartError::Refused(format!(
                "a picture of {side} pixels; from {least} to {most} are possible"
            )));
        }
        self.check(records)?;
        let passed = self.passed(records)?;
        let mut notes = Vec::new();
        let mut rows = self.usable(records, &passed, &mut notes)?;
        if self.stacked {
            // What the pile comes to is no part of it.
            rows.retain(|row| records.field(row, "stage") != "total");
        }

        let (kind, places) = self.places(records, &rows)?;
        let (names, members) = self.series_of(records, &rows);
        if names.len() > MOST_SERIES {
            return Err(ChartError::Refused(format!(
                "{} series are more than a reader can tell apart ({MOST_SERIES}); name fewer columns, or narrow the rows",
                names.len()
            )));
        }
        let mut drawn = Vec::new();
        for ((row, x), series) in rows.iter().zip(places).zip(members) {
            let mut y = records.number(row, &self.y).unwrap_or_default();
            if self.stacked && y < 0.0 {
                // A stage between two clocks may come out below nothing, by less than they are uncertain.
                if records.number(row, "clock_uncertainty_us").is_none_or(|most| y < -most) {
                    let text = format!("bars cannot lie on each other: {} is {y} in {}", self.y, row.place());
                    return Err(ChartError::Refused(text));
                }
                notes.push(format!("{} is {y} in {}, within the clocks' uncertainty: drawn as 0", self.y, row.place()));
                y = 0.0;
            }
            let range =
                self.range.as_ref().and_then(|[low, high]| records.number(row, low).zip(records.number(row, high)));
            drawn.push(Drawn { row, series, point: Point { x, y, range } });
        }
        let text_on_x = matches!(kind, Kind::Categories(_)) && self.x.len() == 1;
        let mark = match (self.in_bars(), text_on_x) {
            (true, _) if self.stacked => Mark::Stacked,
            (true, _) => Mark::Bars,
            // A line from one name to the next would claim that there is something between them.
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
        let rows: Vec<&Record> = drawn.iter().map(|drawn| drawn.row).collect();
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

    /// Refuses columns that there are not.
    fn check(&self, records: &Records) -> Result<(), ChartError> {
        if self.x.is_empty() || self.x.len() > 2 {
            return Err(ChartError::Refused(format!("the x axis is one column or two, not {}", self.x.len())));
        }
        let mut asked = self.range.iter().flatten().chain(&self.x).chain([&self.y]).chain(&self.series);
        asked.try_for_each(|name| records.column(name))
    }

    /// The rows that pass the filters.
    fn passed<'a>(&self, records: &'a Records) -> Result<Vec<&'a Record>, ChartError> {
        let mut rows: Vec<&Record> = records.rows().iter().collect();
        if rows.is_empty() {
            return Err(ChartError::Empty("the files hold none".into()));
        }
        for filter in &self.filters {
            records.column(&filter.column)?;
            let found = each_once(rows.iter().map(|row| records.field(row, &filter.column)));
            rows.retain(|row| filter.passes(records.field(row, &filter.column)));
            if rows.is_empty() {
                let values: Vec<String> = found.iter().map(|value| shown(value)).collect();
                return Err(ChartError::Empty(format!("none has {}; there is {}", filter.text(), few(&values))));
            }
        }
        Ok(rows)
    }

    /// The rows that can be drawn. What is left out is counted by its reason.
    fn usable<'a>(
        &self,
        records: &Records,
        rows: &[&'a Record],
        notes: &mut Vec<String>,
    ) -> Result<Vec<&'a Record>, ChartError> {
        let (mut not_ok, mut without) = (0, 0);
        let mut usable = Vec::new();
        // What was not measured by ginlab itself may have none.
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
                        return Err(ChartError::Refused(format!("{what}; it cannot stand on the y axis")));
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

    /// What the horizontal axis is, and where each row stands on it.
    fn places(&self, records: &Records, rows: &[&Record]) -> Result<(Kind, Vec<f64>), ChartError> {
        let numbers: Option<Vec<f64>> = match &self.x[..] {
            [x] if !self.in_bars() => rows.iter().map(|row| records.number(row, x)).collect(),
            _ => None,
        };
        if let Some(numbers) = numbers {
            return Ok((kind('x', self.x_log, &numbers)?, numbers));
        }
        if self.x_log == Some(true) {
            return Err(no_log('x', &format!("{} makes categories", self.x.join(","))));
        }
        let name = |row: &&Record| {
            let numbers = self.x.iter().all(|name| records.number(row, name).is_some());
            let parts = self.x.iter().map(|name| match value(name, records.field(row, name)) {
                // Beside a text a number alone says nothing.
                count if !numbers && !label::is_binary(name) && number(&count).is_some() => format!("{name}={count}"),
                said => said,
            });
            parts.collect::<Vec<_>>().join(if numbers { "x" } else { " " })
        };
        let (names, members) = grouped(rows.iter().map(name));
        Ok((Kind::Categories(names), members.into_iter().map(|index| index as f64).collect()))
    }

    /// The names of the series, and to which of them each row belongs.
    fn series_of(&self, records: &Records, rows: &[&Record]) -> (Vec<String>, Vec<usize>) {
        grouped(rows.iter().map(|row| {
            let parts = self.series.iter().map(|name| (name, records.field(row, name)));
            // A number alone says nothing: `rails=4`.
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

    fn y_kind(&self, drawn: &[Drawn]) -> Result<Kind, ChartError> {
        if self.in_bars() && self.y_log == Some(true) {
            return Err(no_log('y', "bars stand on zero"));
        }
        let spread = |point: Point| [Some(point.y), point.range.map(|range| range.0), point.range.map(|range| range.1)];
        let values: Vec<f64> = drawn.iter().flat_map(|drawn| spread(drawn.point)).flatten().collect();
        kind('y', if self.in_bars() { Some(false) } else { self.y_log }, &values)
    }

    /// Which points of a series share one place, and the columns that would keep them apart.
    fn shared(&self, records: &Records, names: &[String], drawn: &[Drawn]) -> Option<String> {
        let mut order: Vec<&Drawn> = drawn.iter().collect();
        order.sort_by(|one, two| one.series.cmp(&two.series).then(one.point.x.total_cmp(&two.point.x)));
        let same = |one: &&Drawn, two: &&Drawn| one.series == two.series && one.point.x == two.point.x;
        let groups: Vec<&[&Drawn]> = order.chunk_by(same).filter(|group| group.len() > 1).collect();
        let first = groups.first()?;
        let differs = |name: &str| {
            groups.iter().any(|group| each_once(group.iter().map(|drawn| records.field(drawn.row, name))).len() > 1)
        };
        // Times and rates are written with a point: what is whole or a text was chosen, not measured.
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
                format!("{place}; they differ in {}: name some in --series, or narrow with --where", apart.join(", "))
            }
        })
    }

    /// Device, fabric, conditions and files.
    fn caption(&self, records: &Records, rows: &[&Record]) -> String {
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

/// The field for people.
fn value(column: &str, field: &str) -> String {
    match number(field) {
        Some(number) if label::is_binary(column) => label::binary(number),
        _ if column == super::records::FILE => label::file(field),
        _ => field.into(),
    }
}

/// The names, each once, in their order, and the index of each of the values among them.
fn grouped(values: impl Iterator<Item = String>) -> (Vec<String>, Vec<usize>) {
    let values: Vec<String> = values.collect();
    let names = each_once(values.iter().cloned());
    let members = values.iter().filter_map(|value| names.iter().position(|name| name == value)).collect();
    (names, members)
}

/// A list that is not too long to read.
pub fn few(values: &[String]) -> String {
    const MANY: usize = 6;
    match values.len() {
        0..=MANY => values.join(", "),
        count => format!("{} and {} more", values[..MANY - 1].join(", "), count - MANY + 1),
    }
}

fn values_of(records: &Records, rows: &[&Record], name: &str) -> Vec<String> {
    if !records.has(name) {
        return Vec::new();
    }
    each_once(rows.iter().map(|row| records.field(row, name))).into_iter().map(shown).collect()
}

/// A logarithmic axis was asked for values that have no logarithm.
fn no_log(axis: char, why: &str) -> ChartError {
    ChartError::Refused(format!("the {axis} axis cannot be logarithmic: {why}"))
}

/// Linear or logarithmic, as asked, or as the values want it.
fn kind(axis: char, asked: Option<bool>, values: &[f64]) -> Result<Kind, ChartError> {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    match asked {
        Some(true) if low <= 0.0 => Err(no_log(axis, &format!("there is a value of {low}"))),
        Some(true) => Ok(Kind::Log),
        None if low > 0.0 && high / low > WIDE => Ok(Kind::Log),
        _ => Ok(Kind::Linear),
    }
}

fn default_title(records: &Records, rows: &[&Record], x: &str, y: &str) -> String {
    match values_of(records, rows, "experiment").join(", ") {
        none if none.is_empty() => format!("{y} by {x}"),
        experiments => format!("{experiments}: {y} by {x}"),
    }
}

/// What keeps these figures from being measurements of the hardware.
fn notice(records: &Records, rows: &[&Record]) -> Option<String> {
    let count =
        |name: &str, unreal: fn(&str) -> bool| rows.iter().filter(|row| unreal(records.field(row, name))).count();
    let reasons = [
        ("emulated device", count("device", |device| device == "emulated")),
        ("modelled network", count("fabric", |fabric| fabric.starts_with("model:"))),
        ("cards in software", count("fabric", is_soft)),
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
