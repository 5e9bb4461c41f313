//! Selection of values from CSV files, and their formats.

use ginlab_base::size;

use super::Data;
use crate::chart::{FileRecord, Filter, Records, few, label};
use crate::each_once;

/// Values of a column that a row may have.
pub type Condition = (String, Vec<String>);

/// A word of a marker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MarkerWord {
    /// `NAME=VALUE,VALUE`
    Condition(String, Vec<String>),
    /// `NAME:VALUE`
    Option(String, String),
    /// `NAME,NAME`: files or columns.
    Names(Vec<String>),
}

/// Splits a marker into words. Quoted text may contain blanks, commas, `=` and `:`.
pub fn words(text: &str) -> Result<Vec<MarkerWord>, String> {
    const QUOTED: [(char, char); 4] = [(' ', '\u{1}'), (',', '\u{2}'), ('=', '\u{3}'), (':', '\u{4}')];
    let parts: Vec<&str> = text.split('"').collect();
    if parts.len().is_multiple_of(2) {
        return Err("a quotation mark is missing".into());
    }
    let hidden = parts.iter().enumerate().map(|(place, part)| match place % 2 {
        1 => QUOTED.iter().fold(part.to_string(), |text, (plain, hidden)| text.replace(*plain, &hidden.to_string())),
        _ => part.to_string(),
    });
    let shown = |text: &str| {
        QUOTED.iter().fold(text.to_owned(), |text, (plain, hidden)| text.replace(*hidden, &plain.to_string()))
    };
    let list = |text: &str| text.split(',').map(shown).collect();
    let word = |word: &str| match word.find(['=', ':']).map(|at| (&word[..at], &word[at..=at], &word[at + 1..])) {
        Some((name, "=", values)) => MarkerWord::Condition(name.into(), list(values)),
        Some((name, _, value)) => MarkerWord::Option(name.into(), shown(value)),
        None => MarkerWord::Names(list(word)),
    };
    Ok(hidden.collect::<String>().split_whitespace().map(word).collect())
}

/// Aggregation of all values.
#[derive(Clone, Copy, Debug)]
enum Of {
    Min,
    Max,
    Median,
    Range,
}

/// Files, rows, columns and the format of their values.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    pub files: Vec<String>,
    pub conditions: Vec<Condition>,
    columns: Vec<String>,
    /// Conditions of the rows by whose values the result is divided. They replace conditions on the same columns.
    over: Vec<Condition>,
    of: Option<Of>,
    times: Option<f64>,
    round: Option<usize>,
    /// Text that is shown if there is no value.
    or: Option<String>,
}

impl Selection {
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut selection = Self::default();
        for word in words(text)? {
            match word {
                MarkerWord::Names(names) if names[0].ends_with(".csv") => selection.files = names,
                MarkerWord::Names(names) => selection.columns = names,
                MarkerWord::Condition(name, values) => selection.conditions.push((name, values)),
                MarkerWord::Option(name, value) => selection.option(&name, &value)?,
            }
        }
        Ok(selection)
    }

    fn option(&mut self, name: &str, value: &str) -> Result<(), String> {
        let invalid = |allowed: &str| format!("invalid {name}:{value}: expected {allowed}");
        match name {
            "over" => match words(value)?.pop() {
                Some(MarkerWord::Condition(name, values)) => self.over.push((name, values)),
                _ => return Err(invalid("over:COLUMN=VALUE")),
            },
            "of" => {
                self.of = Some(match value {
                    "min" => Of::Min,
                    "max" => Of::Max,
                    "median" => Of::Median,
                    "range" => Of::Range,
                    _ => return Err(invalid("min, max, median or range")),
                });
            }
            "times" => self.times = Some(value.parse().map_err(|_| invalid("a number"))?),
            "round" => self.round = Some(value.parse().map_err(|_| invalid("a number of decimals"))?),
            "or" => self.or = Some(value.into()),
            _ => return Err(format!("unknown option {name}:; options: over, of, times, round, or")),
        }
        Ok(())
    }

    /// Returns this selection with the parts of another, which replace the corresponding parts.
    pub fn with(&self, other: &Self) -> Self {
        let list = |own: &[String], other: &[String]| if other.is_empty() { own.to_vec() } else { other.to_vec() };
        Self {
            files: list(&self.files, &other.files),
            conditions: replaced(&self.conditions, &other.conditions),
            columns: list(&self.columns, &other.columns),
            over: replaced(&self.over, &other.over),
            of: other.of.or(self.of),
            times: other.times.or(self.times),
            round: other.round.or(self.round),
            or: other.or.clone().or_else(|| self.or.clone()),
        }
    }

    /// Returns a label and a selection for each value of the conditions that the label names, such as `{size_bytes}`.
    pub fn expanded(self, label: &str) -> Result<Vec<(String, Self)>, String> {
        let Some((_, rest)) = label.split_once('{') else { return Ok(vec![(label.into(), self)]) };
        let name = rest.split_once('}').map_or(rest, |(name, _)| name);
        let Some(place) = self.conditions.iter().position(|(column, _)| column == name) else {
            return Err(format!("no condition on {{{name}}}, which the label {label:?} names"));
        };
        let one = |value: &String| {
            let mut only = self.clone();
            only.conditions[place].1 = vec![value.clone()];
            let bytes = label::is_binary(name).then(|| size::parse(value).ok()).flatten();
            let shown = bytes.map_or_else(|| value.clone(), size::human);
            only.expanded(&label.replace(&format!("{{{name}}}"), &shown))
        };
        let each: Result<Vec<_>, String> = self.conditions[place].1.iter().map(one).collect();
        Ok(each?.concat())
    }

    /// Returns the selected values as text.
    pub fn cell(&self, data: &Data) -> Result<String, String> {
        if self.files.is_empty() || self.columns.is_empty() {
            return Err("a marker names at least one file (FILE.csv) and one column".into());
        }
        let fields = match (self.fields(data, &self.conditions), &self.or) {
            (Err(_), Some(or)) => return Ok(or.clone()),
            (fields, _) => fields?,
        };
        if self.over.is_empty() && self.of.is_none() && self.times.is_none() {
            let whole = self.round.is_none();
            let one = |field: &String| match field.parse::<f64>() {
                Ok(value) if !(whole && field.chars().all(|digit| digit.is_ascii_digit())) => number(value, self.round),
                _ => field.clone(),
            };
            return Ok(fields.iter().map(one).collect::<Vec<_>>().join(" / "));
        }
        let mut values = numbers(&fields)?;
        if !self.over.is_empty() {
            let over = numbers(&self.fields(data, &replaced(&self.conditions, &self.over))?)?;
            if over.len() != 1 && over.len() != values.len() {
                return Err(format!("{} values over {}", values.len(), over.len()));
            }
            values.iter_mut().zip(over.iter().cycle()).for_each(|(value, over)| *value /= over);
        }
        let factor = self.times.unwrap_or(1.0);
        values.iter_mut().for_each(|value| *value *= factor);
        if let Some(of) = self.of {
            values.sort_by(f64::total_cmp);
            let (first, last, half) = (values[0], values[values.len() - 1], values.len() / 2);
            values = match of {
                Of::Min => vec![first],
                Of::Max => vec![last],
                Of::Range => vec![first, last],
                Of::Median if values.len() % 2 == 1 => vec![values[half]],
                Of::Median => vec![(values[half - 1] + values[half]) / 2.0],
            };
        }
        let separator = if matches!(self.of, Some(Of::Range)) { " to " } else { " / " };
        Ok(values.iter().map(|value| number(*value, self.round)).collect::<Vec<_>>().join(separator))
    }

    /// Returns the fields of the columns in the rows that meet the conditions. There is at least one, and none is
    /// empty.
    fn fields(&self, data: &Data, conditions: &[Condition]) -> Result<Vec<String>, String> {
        let mut fields = Vec::new();
        let mut none = String::new();
        for file in &self.files {
            let records = data.records(file)?;
            let column = |name: &str| records.column(name).map_err(|error| format!("{file}: {error}"));
            self.columns.iter().try_for_each(|name| column(name))?;
            let mut rows: Vec<&FileRecord> = records.rows().iter().collect();
            for (name, values) in conditions {
                column(name)?;
                let values: Vec<&str> = values.iter().map(String::as_str).collect();
                let filter = Filter::one_of(name, &values);
                let before = rows.clone();
                rows.retain(|row| filter.passes(records.field(row, name)));
                if rows.is_empty() && !before.is_empty() {
                    none =
                        format!("{file}: no row with {name}={}: {}", values.join(","), found(&records, &before, name));
                }
            }
            for (row, name) in rows.iter().flat_map(|row| self.columns.iter().map(move |name| (row, name))) {
                let field = records.field(row, name);
                if field.is_empty() {
                    return Err(format!("{name} is empty in {}", row.place()));
                }
                fields.push(field.into());
            }
        }
        if fields.is_empty() { Err(none) } else { Ok(fields) }
    }
}

/// Returns the values of a column in these rows.
fn found(records: &Records, rows: &[&FileRecord], name: &str) -> String {
    let values = each_once(rows.iter().map(|row| records.field(row, name).to_owned()));
    format!("the rows have {}", few(&values))
}

/// Returns `own` with the conditions of `other` replacing those on the same columns. A value of `other` replaces `{}`
/// in a value of `own`.
fn replaced(own: &[Condition], other: &[Condition]) -> Vec<Condition> {
    let same = |list: &[Condition], name: &str| list.iter().position(|(known, _)| known == name);
    let one = |(name, values): &Condition| match same(other, name).map(|place| &other[place].1) {
        None => (name.clone(), values.clone()),
        Some(new) if values.iter().any(|value| value.contains("{}")) => {
            let filled = |value: &String| new.iter().map(|new| value.replace("{}", new)).collect::<Vec<_>>();
            (name.clone(), values.iter().flat_map(filled).collect())
        }
        Some(new) => (name.clone(), new.clone()),
    };
    let added = other.iter().filter(|(name, _)| same(own, name).is_none()).cloned();
    own.iter().map(one).chain(added).collect()
}

fn numbers(fields: &[String]) -> Result<Vec<f64>, String> {
    fields.iter().map(|field| field.parse().map_err(|_| format!("not a number: {field:?}"))).collect()
}

/// Formats a number with this many decimals, or with three significant digits if `round` is `None`.
fn number(value: f64, round: Option<usize>) -> String {
    let digits = if value == 0.0 { 0.0 } else { value.abs().log10().floor() };
    format!("{value:.*}", round.unwrap_or((2.0 - digits).clamp(0.0, 9.0) as usize))
}
