//! Which rows and columns make a chart.

use super::records::{Column, Record};
use super::{Axis, Chart, ChartError, Kind, MOST_SERIES, Mark, Point, Records, SIDES, Series, label};
use crate::measure::size;
use crate::report::each_once;

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

/// The values that a column may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    column: String,
    values: Vec<String>,
}

impl Filter {
    /// Parses `COLUMN=VALUE[,VALUE...]`. No value at all means that the field is empty.
    pub fn parse(text: &str) -> Result<Self, ChartError> {
        match text.split_once('=') {
            Some((column, values)) if !column.trim().is_empty() => Ok(Self {
                column: column.trim().into(),
                values: values.split(',').map(|value| value.trim().into()).collect(),
            }),
            _ => Err(ChartError::Refused(format!("a condition is COLUMN=VALUE[,VALUE...], not {text:?}"))),
        }
    }

    /// Rows with exactly one of these in the column; an empty one means nothing.
    pub fn one_of(column: &str, values: &[&str]) -> Self {
        Self { column: column.into(), values: values.iter().map(|value| value.to_string()).collect() }
    }

    fn passes(&self, field: &str) -> bool {
        self.values
            .iter()
            .any(|value| value == field || number(value).is_some_and(|value| number(field) == Some(value)))
            || label::is_binary(&self.column)
                && self.values.iter().any(|value| size::parse(value) == size::parse(field))
    }

    fn text(&self) -> String {
        let values = match &self.values[..] {
            [only] => only.clone(),
            several => several.iter().map(|value| shown(value)).collect::<Vec<_>>().join(","),
        };
        format!("{}={values}", self.column)
    }
}

/// A chart, and what there is to say about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// The chart.
    pub chart: Chart,
    /// Lines for people: how many rows were left out, and why.
    pub notes: Vec<String>,
}

/// The columns of a query.
struct Columns {
    x: Vec<Column>,
    y: Column,
    series: Vec<Column>,
    range: Option<[Column; 2]>,
    status: Option<Column>,
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
        let columns = self.columns(records)?;
        let passed = self.passed(records)?;
        let mut notes = Vec::new();
        let mut rows = self.usable(&columns, &passed, &mut notes)?;
        if self.stacked {
            // What the pile comes to is no part of it.
            rows.retain(|row| records.field(row, "stage") != "total");
        }

        let (kind, places) = self.places(&columns, &rows)?;
        let (names, members) = self.series_of(&columns, &rows);
        if names.len() > MOST_SERIES {
            return Err(ChartError::Refused(format!(
                "{} series are more than a reader can tell apart ({MOST_SERIES}); name fewer columns, or narrow the rows",
                names.len()
            )));
        }
        let mut drawn = Vec::new();
        for ((row, x), series) in rows.iter().zip(places).zip(members) {
            let mut y = number(row.get(columns.y)).unwrap_or_default();
            if self.stacked && y < 0.0 {
                // A stage between two clocks may come out below nothing, by less than they are uncertain.
                if number(records.field(row, "clock_uncertainty_us")).is_none_or(|most| y < -most) {
                    let text = format!("bars cannot lie on each other: {} is {y} in {}", self.y, row.place());
                    return Err(ChartError::Refused(text));
                }
                notes.push(format!("{} is {y} in {}, within the clocks' uncertainty: drawn as 0", self.y, row.place()));
                y = 0.0;
            }
            let range = columns.range.and_then(|[low, high]| Some((number(row.get(low))?, number(row.get(high))?)));
            drawn.push(Drawn { row, series, point: Point { x, y, range } });
        }
        let text_on_x = matches!(kind, Kind::Categories(_)) && columns.x.len() == 1;
        let mark = match (self.in_bars(), text_on_x) {
            (true, _) if self.stacked => Mark::Stacked,
            (true, _) => Mark::Bars,
            // A line from one name to the next would claim that there is something between them.
            (false, true) => Mark::Points,
            (false, false) => Mark::Lines,
        };
        if let Some(note) = self.shared(records, &columns, &names, &drawn) {
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

    fn columns(&self, records: &Records) -> Result<Columns, ChartError> {
        if self.x.is_empty() || self.x.len() > 2 {
            return Err(ChartError::Refused(format!("the x axis is one column or two, not {}", self.x.len())));
        }
        let find = |names: &[String]| names.iter().map(|name| records.column(name)).collect::<Result<Vec<_>, _>>();
        let range = match &self.range {
            Some([low, high]) => Some([records.column(low)?, records.column(high)?]),
            None => None,
        };
        Ok(Columns {
            x: find(&self.x)?,
            y: records.column(&self.y)?,
            series: find(&self.series)?,
            range,
            // What was not measured by ginlab itself may have none.
            status: records.column("status").ok(),
        })
    }

    /// The rows that pass the filters.
    fn passed<'a>(&self, records: &'a Records) -> Result<Vec<&'a Record>, ChartError> {
        let mut rows: Vec<&Record> = records.rows().iter().collect();
        if rows.is_empty() {
            return Err(ChartError::Empty("the files hold none".into()));
        }
        for filter in &self.filters {
            let column = records.column(&filter.column)?;
            let found = each_once(rows.iter().map(|row| row.get(column)));
            rows.retain(|row| filter.passes(row.get(column)));
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
        columns: &Columns,
        rows: &[&'a Record],
        notes: &mut Vec<String>,
    ) -> Result<Vec<&'a Record>, ChartError> {
        let (mut not_ok, mut without) = (0, 0);
        let mut usable = Vec::new();
        for row in rows {
            let y = row.get(columns.y);
            if columns.status.is_some_and(|status| row.get(status) != "ok") {
                not_ok += 1;
            } else if columns.x.iter().any(|x| row.get(*x).is_empty()) || y.is_empty() {
                without += 1;
            } else {
                let range = columns.range.iter().flatten().zip(self.range.iter().flatten());
                let numbers = std::iter::once((&columns.y, &self.y)).chain(range);
                for (column, name) in numbers {
                    let found = row.get(*column);
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
    fn places(&self, columns: &Columns, rows: &[&Record]) -> Result<(Kind, Vec<f64>), ChartError> {
        let numbers: Option<Vec<f64>> = match columns.x[..] {
            [x] if !self.in_bars() => rows.iter().map(|row| number(row.get(x))).collect(),
            _ => None,
        };
        if let Some(numbers) = numbers {
            return Ok((kind('x', self.x_log, &numbers)?, numbers));
        }
        if self.x_log == Some(true) {
            return Err(no_log('x', &format!("{} makes categories", self.x.join(","))));
        }
        let name = |row: &&Record| {
            let parts = columns.x.iter().zip(&self.x).map(|(column, name)| value(name, row.get(*column)));
            let numbers = columns.x.iter().all(|column| number(row.get(*column)).is_some());
            parts.collect::<Vec<_>>().join(if numbers { "x" } else { " " })
        };
        let (names, members) = grouped(rows.iter().map(name));
        Ok((Kind::Categories(names), members.into_iter().map(|index| index as f64).collect()))
    }

    /// The names of the series, and to which of them each row belongs.
    fn series_of(&self, columns: &Columns, rows: &[&Record]) -> (Vec<String>, Vec<usize>) {
        grouped(rows.iter().map(|row| {
            let parts = columns.series.iter().zip(&self.series).map(|(column, name)| (name, row.get(*column)));
            // A number alone says nothing: `rails=4`.
            let bare = |field: &str| number(field).is_none() && !matches!(field, "true" | "false");
            let parts: Vec<String> = parts
                .filter(|(_, field)| !field.is_empty())
                .map(|(name, field)| if bare(field) { field.into() } else { format!("{name}={}", value(name, field)) })
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
    fn shared(&self, records: &Records, columns: &Columns, names: &[String], drawn: &[Drawn]) -> Option<String> {
        let mut order: Vec<&Drawn> = drawn.iter().collect();
        order.sort_by(|one, two| one.series.cmp(&two.series).then(one.point.x.total_cmp(&two.point.x)));
        let same = |one: &&Drawn, two: &&Drawn| one.series == two.series && one.point.x == two.point.x;
        let groups: Vec<&[&Drawn]> = order.chunk_by(same).filter(|group| group.len() > 1).collect();
        let first = groups.first()?;
        let differs = |column: Column| {
            groups.iter().any(|group| each_once(group.iter().map(|drawn| drawn.row.get(column))).len() > 1)
        };
        // Times and rates are written with a point: what is whole or a text was chosen, not measured.
        let measured = |column: Column| {
            let field = |drawn: &Drawn| drawn.row.get(column).to_owned();
            drawn.iter().map(field).any(|field| field.parse::<i64>().is_err() && number(&field).is_some())
        };
        let asked = |column| column == columns.y || columns.x.contains(&column) || columns.series.contains(&column);
        let apart: Vec<&str> = records
            .columns()
            .filter(|(column, name)| !asked(*column) && !MEASURED.contains(name) && differs(*column))
            .filter(|(column, _)| !measured(*column))
            .map(|(_, name)| name)
            .collect();
        let of = match names[first[0].series].as_str() {
            "" => String::new(),
            name => format!(" of {name:?}"),
        };
        let x: Vec<String> =
            columns.x.iter().zip(&self.x).map(|(column, name)| value(name, first[0].row.get(*column))).collect();
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

/// The field as a number, if it is one.
fn number(field: &str) -> Option<f64> {
    field.parse().ok().filter(|value: &f64| value.is_finite())
}

/// The field for people.
fn value(column: &str, field: &str) -> String {
    match number(field) {
        Some(number) if label::is_binary(column) => label::binary(number),
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

/// A value in a list of values.
fn shown(value: &str) -> String {
    if value.is_empty() { "(empty)".into() } else { value.into() }
}

fn values_of(records: &Records, rows: &[&Record], name: &str) -> Vec<String> {
    let Ok(column) = records.column(name) else { return Vec::new() };
    each_once(rows.iter().map(|row| row.get(column))).into_iter().map(shown).collect()
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
    let count = |name: &str, unreal: &dyn Fn(&str) -> bool| {
        let Ok(column) = records.column(name) else { return 0 };
        rows.iter().filter(|row| unreal(row.get(column))).count()
    };
    let reasons = [
        ("emulated device", count("device", &|device| device == "emulated")),
        ("modelled network", count("fabric", &|fabric| fabric.starts_with("model:"))),
        ("marked as suspect", count("suspect", &|why| !why.is_empty())),
    ];
    let some = |(reason, count): (&str, usize)| match count {
        0 => None,
        all if all == rows.len() => Some(reason.to_owned()),
        count => Some(format!("{reason} in {count} of {} points", rows.len())),
    };
    let reasons: Vec<String> = reasons.into_iter().filter_map(some).collect();
    (!reasons.is_empty()).then(|| format!("Not plain measurements: {}", reasons.join(", ")))
}
