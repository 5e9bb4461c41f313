//! The values that a figure names: rows of CSV files, a column, and what is made of them.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

/// One or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum OneOrMany<T> {
    /// Several, in this order. Before `One`: a `T` may be any value, lists too.
    Many(Vec<T>),
    /// One.
    One(T),
}

impl<T> OneOrMany<T> {
    /// All of them.
    pub fn all(&self) -> &[T] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

/// Whether a cell is this number, flag or text.
fn is(wanted: &Value, cell: &str) -> bool {
    wanted.as_f64().map_or_else(|| cell == text(wanted), |number| cell.parse() == Ok(number))
}

/// Without quotes.
fn text(wanted: &Value) -> String {
    wanted.as_str().map_or_else(|| wanted.to_string(), str::to_owned)
}

/// By column, what its cells may be.
pub type Filter = BTreeMap<String, OneOrMany<Value>>;

/// Rows, their column, and what is made of the values.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Selection {
    /// CSV files without `.csv`: below the page's folder of data, or from `data/` on.
    file: OneOrMany<String>,
    /// Which rows. They come in the order of the files, and within one in its order.
    #[serde(default, rename = "where")]
    filter: Filter,
    column: String,
    /// What each value is divided by: by the one value that this finds, or by as many.
    over: Option<Over>,
    /// How the value is printed, without this as it is.
    #[serde(rename = "as")]
    shown: Option<Shown>,
    /// What is told of all values, without this each.
    of: Option<Of>,
    /// A factor, such as 0.001 from microseconds to milliseconds.
    times: Option<f64>,
}

/// The divisor: what is not said is as in the selection.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Over {
    file: Option<OneOrMany<String>>,
    /// Conditions that replace those on the same columns.
    #[serde(default, rename = "where")]
    filter: Filter,
    column: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Shown {
    /// 0.25 as 25.
    Percent,
    /// 0.75 as 25: what is missing to 1.
    Loss,
    /// 1.25 as 25: what is beyond 1.
    Gain,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Of {
    Median,
    Mean,
    Min,
    Max,
    Sum,
    /// How many rows there are.
    Count,
    /// Two values: the smallest and the largest.
    Range,
    /// Of the n-th rows of all files the median, for each n: the files are runs of the same tuples.
    MedianOfFiles,
    MinOfFiles,
}

/// The values of a column, in the rows of a file that a filter lets through.
fn values(path: &Path, filter: &Filter, column: &str) -> Result<Vec<f64>, Box<dyn Error>> {
    let mut reader = csv::Reader::from_path(path)?;
    let columns = reader.headers()?.clone();
    let place = |name: &str| {
        columns.iter().position(|column| column == name).ok_or_else(|| format!("there is no column {name:?}"))
    };
    let conditions: Vec<_> =
        filter.iter().map(|(name, wanted)| Ok((place(name)?, wanted.all()))).collect::<Result<_, String>>()?;
    let of = place(column)?;
    let mut values = Vec::new();
    for row in reader.records() {
        let row = row?;
        if conditions.iter().all(|(place, wanted)| wanted.iter().any(|wanted| is(wanted, &row[*place]))) {
            let cell = &row[of];
            values.push(cell.parse().map_err(|_| format!("{column} is {cell:?} in one of the rows"))?);
        }
    }
    Ok(values)
}

impl Selection {
    /// The files, below the repository.
    pub fn files(&self, folder: &str) -> Vec<PathBuf> {
        paths(&self.file, folder)
    }

    /// The values, in order; `folder` is where files lie that do not name theirs.
    pub fn values(&self, root: &Path, folder: &str) -> Result<Vec<f64>, String> {
        let mut by_file = read(root, &paths(&self.file, folder), &self.filter, &self.column)?;
        if let Some(over) = &self.over {
            let mut filter = self.filter.clone();
            filter.extend(over.filter.clone());
            let column = over.column.as_ref().unwrap_or(&self.column);
            let paths = paths(over.file.as_ref().unwrap_or(&self.file), folder);
            let divisors = read(root, &paths, &filter, column)?.concat();
            let count = by_file.iter().map(Vec::len).sum::<usize>();
            if divisors.len() != 1 && divisors.len() != count {
                return Err(format!("{count} values over {}", divisors.len()));
            }
            let mut divisors = divisors.iter().cycle();
            for value in by_file.iter_mut().flatten() {
                *value /= divisors.next().ok_or("nothing to divide by")?;
            }
        }
        for value in by_file.iter_mut().flatten() {
            *value = match self.shown {
                None => *value,
                Some(Shown::Percent) => *value * 100.0,
                Some(Shown::Loss) => (1.0 - *value) * 100.0,
                Some(Shown::Gain) => (*value - 1.0) * 100.0,
            } * self.times.unwrap_or(1.0);
        }
        self.told(by_file)
    }

    /// What is told of the values of each file.
    fn told(&self, by_file: Vec<Vec<f64>>) -> Result<Vec<f64>, String> {
        let mut all = by_file.concat();
        let Some(of) = self.of else { return Ok(all) };
        if all.is_empty() {
            return Err("no row is there".into());
        }
        all.sort_by(f64::total_cmp);
        let sum = all.iter().sum::<f64>();
        let (least, most) = (all[0], all[all.len() - 1]);
        Ok(match of {
            Of::Median => vec![median(all)],
            Of::Mean => vec![sum / all.len() as f64],
            Of::Min => vec![least],
            Of::Max => vec![most],
            Of::Sum => vec![sum],
            Of::Count => vec![all.len() as f64],
            Of::Range => vec![least, most],
            Of::MedianOfFiles => across(&by_file)?.into_iter().map(median).collect(),
            Of::MinOfFiles => {
                across(&by_file)?.into_iter().map(|values| values.into_iter().fold(f64::MAX, f64::min)).collect()
            }
        })
    }
}

impl fmt::Display for Selection {
    /// Column and filter, as a reader would look them up.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(of) = self.of {
            write!(f, "{of:?} of ")?;
        }
        write!(f, "{}{}", self.column, conditions(&self.filter))?;
        if let Some(over) = &self.over {
            write!(f, ", over {}", over.column.as_ref().unwrap_or(&self.column))?;
            if let Some(file) = &over.file {
                write!(f, " of {}", file.all().join(", "))?;
            }
            f.write_str(&conditions(&over.filter))?;
        }
        if let Some(shown) = self.shown {
            write!(f, ", as {shown:?}")?;
        }
        self.times.map_or(Ok(()), |factor| write!(f, ", times {factor}"))
    }
}

fn conditions(filter: &Filter) -> String {
    let one = |(column, wanted): (&String, &OneOrMany<Value>)| {
        format!("{column}={}", wanted.all().iter().map(text).collect::<Vec<_>>().join("|"))
    };
    let all: Vec<String> = filter.iter().map(one).collect();
    if all.is_empty() { String::new() } else { format!(" where {}", all.join(", ")) }
}

fn paths(files: &OneOrMany<String>, folder: &str) -> Vec<PathBuf> {
    let below = |file: &String| match file.starts_with("data/") {
        true => format!("{file}.csv"),
        false => format!("{folder}/{file}.csv"),
    };
    files.all().iter().map(|file| below(file).into()).collect()
}

/// The values of each file.
fn read(root: &Path, paths: &[PathBuf], filter: &Filter, column: &str) -> Result<Vec<Vec<f64>>, String> {
    let one =
        |path: &PathBuf| values(&root.join(path), filter, column).map_err(|why| format!("{}: {why}", path.display()));
    paths.iter().map(one).collect()
}

/// Of values that are in order, the middle; of an even number, between the two.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    if values.len() % 2 == 1 { values[half] } else { (values[half - 1] + values[half]) / 2.0 }
}

/// The n-th values of all files, for each n.
fn across(by_file: &[Vec<f64>]) -> Result<Vec<Vec<f64>>, String> {
    let count = by_file[0].len();
    if by_file.iter().any(|values| values.len() != count) {
        return Err("the files have different numbers of rows".into());
    }
    Ok((0..count).map(|row| by_file.iter().map(|values| values[row]).collect()).collect())
}
