//! The CSV files of earlier runs, with their headers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;
use strum::IntoEnumIterator;

use super::chart::{ChartError, FileKind, Records, is_soft};
use super::header::plain;
use super::{Key, each_once, headers};

/// One CSV file.
#[derive(Clone, Debug)]
pub struct Run {
    /// The file.
    pub path: PathBuf,
    /// What it is called: its path as it was given, or below the folder that was given.
    pub name: String,
    /// What it is called beside other files of its folder: by this the files of two runs find each other.
    pub within: PathBuf,
    /// What its rows are.
    pub kind: FileKind,
    /// Its rows. Beside its columns it has, where they follow, `bandwidth_gbytes_s_low`, `..._high`, `rate_mops_low`,
    /// `..._high`: the figures at the largest (p99) and the smallest time.
    pub records: Records,
    header: Value,
}

/// What was found in folders.
#[derive(Clone, Debug, Default)]
pub struct Runs {
    /// The files, folder by folder, by name.
    pub runs: Vec<Run>,
    /// Lines about files that were left out.
    pub left_out: Vec<String>,
}

impl Run {
    /// Reads a file and its header, if there is one: `<stem>.header.json` beside it, or its part of `headers.json`.
    pub fn read(path: &Path, name: &str) -> Result<Self, ChartError> {
        let file = File::open(path).map_err(|source| ChartError::Read { path: path.into(), source })?;
        Self::of_text(file, headers::of(path)?, path, name)
    }

    /// The same from the text of the one and the document of the other.
    pub fn of_text(rows: impl Read, header: Option<Value>, path: &Path, name: &str) -> Result<Self, ChartError> {
        let within = path.file_name().map(PathBuf::from).unwrap_or_default();
        let (kind, mut records) = Records::of_text(rows, path, &within.to_string_lossy())?;
        for figure in ["bandwidth_gbytes_s", "rate_mops"] {
            for (end, time) in [("low", "time_us_p99"), ("high", "time_us_min")] {
                if kind == FileKind::Rows {
                    records.derive(&format!("{figure}_{end}"), |records, row| {
                        let [value, median, time] =
                            [figure, "time_us_p50", time].map(|column| records.number(row, column));
                        Some(value? * median? / time.filter(|time| *time > 0.0)?)
                    });
                }
            }
        }
        Ok(Self { path: path.into(), name: name.into(), within, kind, records, header: header.unwrap_or_default() })
    }

    /// Every key of the header that is set, in order, for people.
    pub fn header(&self) -> Vec<(&'static str, String)> {
        let known = Key::iter().map(Key::name);
        known.filter_map(|key| Some((key, plain(self.header.get(key)?)))).filter(|(_, text)| !text.is_empty()).collect()
    }

    /// The value of a key of the header, for people.
    pub fn fact(&self, key: Key) -> Option<String> {
        self.header.get(key.name()).map(plain).filter(|text| !text.is_empty())
    }

    /// The remarks of the header.
    pub fn notes(&self) -> Vec<String> {
        self.header.get("notes").and_then(Value::as_array).into_iter().flatten().map(plain).collect()
    }

    /// The values of a column, each once, in their order, without the empty one.
    pub fn values(&self, column: &str) -> Vec<&str> {
        let values = self.records.rows().iter().map(|row| self.records.field(row, column));
        each_once(values.filter(|value| !value.is_empty()))
    }

    /// The value that a column has in every row.
    pub fn in_all(&self, column: &str) -> Option<&str> {
        let mut values = self.records.rows().iter().map(|row| self.records.field(row, column));
        let first = values.next()?;
        values.all(|value| value == first).then_some(first)
    }

    /// The experiment whose rows these are; what lists has none, and is called by its file.
    pub fn experiment(&self) -> String {
        match self.kind {
            FileKind::Rows => self.values("experiment").first().unwrap_or(&"rows").to_string(),
            FileKind::Stages => "stages".into(),
            FileKind::Listing => "listings".into(),
        }
    }

    /// Its name without folders.
    pub fn file_name(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or_default()
    }

    /// The name of its folder, as it was given.
    pub fn folder(&self) -> &str {
        self.name.rsplit_once('/').map_or("", |(folder, _)| folder)
    }

    /// In which way some of these rows are no measurement of hardware: `emulated device`, `modelled network model:p5`.
    pub fn unreal(&self) -> Vec<String> {
        let mut ways = Vec::new();
        if self.values("device").contains(&"emulated") {
            ways.push("emulated device".to_owned());
        }
        for fabric in self.values("fabric") {
            if fabric.starts_with("model:") {
                ways.push(format!("modelled network {fabric}"));
            } else if is_soft(fabric) {
                ways.push(format!("cards in software {fabric}"));
            }
        }
        ways
    }
}

impl Runs {
    /// Reads files, and every CSV file of ginlab in folders and the folders in these. A file that was named must be one of
    /// ginlab; in a folder, others are left out.
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
                // Without the folder, runs of two folders would have one name.
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
            // One line for each folder: a folder of another tool's results may have hundreds.
            found.left_out.extend(foreign.into_values().filter_map(|errors| {
                let first = errors.first()?;
                Some(match errors.len() - 1 {
                    0 => first.to_string(),
                    more => format!("{first}; {more} more in its folder"),
                })
            }));
        }
        // A file that was named and is in a folder as well is one file.
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

/// The CSV files of a folder and the folders in it. Links to folders are not followed: they may lead in a circle.
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
