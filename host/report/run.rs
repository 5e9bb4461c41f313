//! CSV files of earlier runs, with their headers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;
use strum::IntoEnumIterator;

use super::chart::{ChartError, FileKind, Records, is_soft};
use super::header::plain;
use super::{Key, each_once, headers};

/// A CSV file with its header.
#[derive(Clone, Debug)]
pub struct Run {
    /// Path of the file.
    pub path: PathBuf,
    /// Name in messages: its path as given, or its path below the given directory.
    pub name: String,
    /// Path below the given directory, or the file name. The files of two runs are matched by this path.
    pub within: PathBuf,
    /// Kind of the file's rows.
    pub kind: FileKind,
    /// Rows of the file. If they can be computed, there are additional columns `bandwidth_gbytes_s_low`, `..._high`,
    /// `rate_mops_low` and `..._high`: the figures at the maximum time (p99, or the maximum if there is none) and at
    /// the minimum time.
    pub records: Records,
    header: Value,
}

/// Files found in directories.
#[derive(Clone, Debug, Default)]
pub struct Runs {
    /// The files, by directory and name.
    pub runs: Vec<Run>,
    /// Messages about files that were left out.
    pub left_out: Vec<String>,
}

impl Run {
    /// Reads a file and its header, if there is one: `<stem>.header.json` next to it, or its part of `headers.json`.
    pub fn read(path: &Path, name: &str) -> Result<Self, ChartError> {
        let file = File::open(path).map_err(|source| ChartError::Read { path: path.into(), source })?;
        Self::of_text(file, headers::of(path)?, path, name)
    }

    /// Like [`read`](Run::read), from the text of the file and the JSON document of its header.
    pub fn of_text(rows: impl Read, header: Option<Value>, path: &Path, name: &str) -> Result<Self, ChartError> {
        let within = path.file_name().map(PathBuf::from).unwrap_or_default();
        let (kind, mut records) = Records::of_text(rows, path, &within.to_string_lossy())?;
        for figure in ["bandwidth_gbytes_s", "rate_mops"] {
            for (end, times) in [("low", ["time_us_p99", "time_us_max"]), ("high", ["time_us_min"; 2])] {
                if kind == FileKind::Rows {
                    records.derive(&format!("{figure}_{end}"), |records, row| {
                        let [value, median] = [figure, "time_us_p50"].map(|column| records.number(row, column));
                        let time = times.iter().find_map(|column| records.number(row, column));
                        Some(value? * median? / time.filter(|time| *time > 0.0)?)
                    });
                }
            }
        }
        Ok(Self { path: path.into(), name: name.into(), within, kind, records, header: header.unwrap_or_default() })
    }

    /// Returns every key of the header that is set, in order and in readable form.
    pub fn header(&self) -> Vec<(&'static str, String)> {
        let known = Key::iter().map(Key::name);
        known.filter_map(|key| Some((key, plain(self.header.get(key)?)))).filter(|(_, text)| !text.is_empty()).collect()
    }

    /// Returns the value of a key of the header, in readable form.
    pub fn fact(&self, key: Key) -> Option<String> {
        self.header.get(key.name()).map(plain).filter(|text| !text.is_empty())
    }

    /// Returns the notes of the header.
    pub fn notes(&self) -> Vec<String> {
        self.header.get("notes").and_then(Value::as_array).into_iter().flatten().map(plain).collect()
    }

    /// Returns the distinct values of a column in order of their first occurrence, without the empty one.
    pub fn values(&self, column: &str) -> Vec<&str> {
        let values = self.records.rows().iter().map(|row| self.records.field(row, column));
        each_once(values.filter(|value| !value.is_empty()))
    }

    /// Returns the value that a column has in every row; `None` if rows differ.
    pub fn in_all(&self, column: &str) -> Option<&str> {
        let mut values = self.records.rows().iter().map(|row| self.records.field(row, column));
        let first = values.next()?;
        values.all(|value| value == first).then_some(first)
    }

    /// Returns the experiment of the rows, or a group name for files without one.
    pub fn experiment(&self) -> String {
        match self.kind {
            FileKind::Rows => self.values("experiment").first().unwrap_or(&"rows").to_string(),
            FileKind::Stages => "stages".into(),
            FileKind::Listing => "listings".into(),
        }
    }

    /// Returns the file name without directories.
    pub fn file_name(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or_default()
    }

    /// Returns the name of its directory, as given.
    pub fn folder(&self) -> &str {
        self.name.rsplit_once('/').map_or("", |(folder, _)| folder)
    }

    /// Returns the reasons why some rows are not measurements of hardware: `emulated device`, `modelled network
    /// model:p5`.
    pub fn unreal(&self) -> Vec<String> {
        let mut ways = Vec::new();
        if self.values("device").contains(&"emulated") {
            ways.push("emulated device".to_owned());
        }
        for fabric in self.values("fabric") {
            if fabric.starts_with("model:") {
                ways.push(format!("modelled network {fabric}"));
            } else if is_soft(fabric) {
                ways.push(format!("software NICs {fabric}"));
            }
        }
        ways
    }
}

impl Runs {
    /// Reads the given files, and all CSV files of ginlab in the given directories and their subdirectories. A given
    /// file that ginlab did not write is an error; such files in a directory are left out.
    pub fn find(paths: &[PathBuf]) -> Result<Self, ChartError> {
        let mut found = Self::default();
        for path in paths {
            if !path.is_dir() {
                found.runs.push(Run::read(path, &path.display().to_string())?);
                continue;
            }
            let mut files = Vec::new();
            list(path, &mut files)?;
            files.sort();
            let mut foreign = BTreeMap::<_, Vec<ChartError>>::new();
            for file in files {
                // Includes the directory's name, because otherwise runs of two directories could have the same name.
                let within = file.strip_prefix(path).unwrap_or(&file);
                let folder = path.file_name().map(Path::new).unwrap_or(path);
                match Run::read(&file, &folder.join(within).display().to_string()) {
                    Ok(run) => found.runs.push(Run { within: within.into(), ..run }),
                    Err(error @ ChartError::Foreign { .. }) => {
                        foreign.entry(file.parent().map(Path::to_path_buf)).or_default().push(error);
                    }
                    Err(error) => return Err(error),
                }
            }
            // Prints one line per directory, since a directory with results of another tool may have hundreds of files.
            found.left_out.extend(foreign.into_values().filter_map(|errors| {
                let first = errors.first()?;
                Some(match errors.len() - 1 {
                    0 => first.to_string(),
                    more => format!("{first}; {more} more in its directory"),
                })
            }));
        }
        // A file that is given and is also in a given directory is listed once.
        let mut seen = BTreeSet::new();
        found.runs.retain(|run| seen.insert(run.path.canonicalize().unwrap_or_else(|_| run.path.clone())));
        match found.runs.is_empty() {
            true => {
                let places: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
                Err(ChartError::Refused(format!("no CSV file of ginlab in {}", places.join(", "))))
            }
            false => Ok(found),
        }
    }
}

/// Lists the CSV files of a directory and its subdirectories. Does not follow links to directories, which may form a
/// cycle.
fn list(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), ChartError> {
    let unreadable = |source| ChartError::Read { path: folder.into(), source };
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let path = entry.path();
        if entry.file_type().map_err(unreadable)?.is_dir() {
            list(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "csv") {
            files.push(path);
        }
    }
    Ok(())
}
