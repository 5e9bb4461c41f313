//! Rows of CSV files, accessed by the names of their columns.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::ChartError;
use crate::SCHEMA;

/// Columns that every file of measurements has.
const NEEDED: [&str; 4] = ["schema", "device", "fabric", "status"];
/// Columns of a file with the time of a put per stage.
const STAGES: [&str; 4] = ["case", "fabric", "stage", "p50_us"];
/// Columns that schema 1 named differently. There, `wrong` counts errors in each experiment's own unit.
const RENAMED: [(&str, &str); 3] = [("wrong", "wrong_bytes"), ("again", "eagain"), ("of_case", "summarized_case")];
/// Name of the column with the file name, which the files do not contain.
pub const FILE: &str = "file";

/// Kind of a file's rows, determined by its columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// Measurements.
    Rows,
    /// Stages of the time of a put.
    Stages,
    /// Findings of a command such as `ginlab affinity`; not measurements.
    Listing,
}

impl FileKind {
    /// Returns the kind, or the missing columns.
    fn of(header: &::csv::StringRecord) -> Result<Self, String> {
        let has = |name: &str| header.iter().any(|column| column == name);
        let missing: Vec<&str> = NEEDED.into_iter().filter(|name| !has(name)).collect();
        match missing.is_empty() {
            true => Ok(Self::Rows),
            false if STAGES.into_iter().all(has) => Ok(Self::Stages),
            false if has("schema") => Ok(Self::Listing),
            false => Err(missing.join(", ")),
        }
    }
}

/// Rows of one or several files. Columns are identified only by name, so that files of older and newer versions, with
/// fewer or more columns, can be combined. Missing fields are empty.
#[derive(Clone, Debug, Default)]
pub struct Records {
    columns: Vec<String>,
    rows: Vec<FileRecord>,
}

/// A row of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRecord {
    /// Line at which the row starts in its file.
    pub(crate) line: u64,
    fields: Vec<String>,
}

impl FileRecord {
    /// Returns the trimmed field at the given position.
    fn get(&self, place: usize) -> &str {
        self.fields.get(place).map_or("", |field| field.trim())
    }

    /// Returns the file and the line, for errors.
    pub fn place(&self) -> String {
        format!("{}, line {}", self.get(0), self.line)
    }
}

/// Returns today's name of a column.
fn current_name(kind: FileKind, column: &str) -> &str {
    let renamed = RENAMED.iter().find(|(old, _)| kind == FileKind::Rows && *old == column);
    renamed.map_or(column, |(_, new)| new)
}

impl Records {
    fn empty() -> Self {
        Self { columns: vec![FILE.into()], rows: Vec::new() }
    }

    /// Reads files, in this order.
    pub fn read(paths: &[PathBuf]) -> Result<Self, ChartError> {
        Self::read_as(paths, &names(paths))
    }

    /// Like [`read`](Records::read), with the given names of the files.
    pub fn read_as(paths: &[PathBuf], names: &[String]) -> Result<Self, ChartError> {
        let mut records = Self::empty();
        for (path, name) in paths.iter().zip(names) {
            let file = File::open(path).map_err(|source| ChartError::Read { path: path.into(), source })?;
            if records.add(file, path, name)? == FileKind::Listing {
                let known = |needed: &&str| !records.columns.iter().any(|column| column == needed);
                let missing: Vec<&str> = NEEDED.into_iter().filter(known).collect();
                return Err(ChartError::Foreign { path: path.clone(), missing: missing.join(", ") });
            }
        }
        Ok(records)
    }

    /// Reads a text of any kind. `name` is its file name, and `path` its path in errors.
    pub fn of_text(text: impl Read, path: &Path, name: &str) -> Result<(FileKind, Self), ChartError> {
        let mut records = Self::empty();
        Ok((records.add(text, path, name)?, records))
    }

    fn add(&mut self, text: impl Read, path: &Path, name: &str) -> Result<FileKind, ChartError> {
        let broken = |error: ::csv::Error| match error.kind() {
            ::csv::ErrorKind::Io(_) => ChartError::Read { path: path.into(), source: error.into() },
            _ => ChartError::Broken { path: path.into(), why: error.to_string() },
        };
        let mut reader = ::csv::Reader::from_reader(text);
        let header = reader.headers().map_err(broken)?.clone();
        let kind = FileKind::of(&header).map_err(|missing| ChartError::Foreign { path: path.into(), missing })?;
        let places: Vec<usize> = header.iter().map(|column| self.add_column(current_name(kind, column))).collect();
        let schema = header.iter().any(|column| column == "schema");
        for row in reader.into_records() {
            let row = row.map_err(broken)?;
            let line = row.position().map_or(0, |position| position.line());
            let mut fields = vec![String::new(); self.columns.len()];
            fields[0] = name.into();
            for (place, field) in places.iter().zip(&row) {
                fields[*place] = field.into();
            }
            let record = FileRecord { line, fields };
            let found = self.field(&record, "schema");
            if schema && !found.parse().is_ok_and(|found| (1..=SCHEMA).contains(&found)) {
                let place = format!("{}, line {line}", path.display());
                return Err(ChartError::Refused(format!(
                    "{place}: schema {found:?}, but this ginlab reads schemas 1 to {SCHEMA}"
                )));
            }
            self.rows.push(record);
        }
        Ok(kind)
    }

    /// Concatenates records. Names of files are unchanged.
    pub fn joined<'a>(parts: impl Iterator<Item = &'a Self>) -> Self {
        let mut joined = Self::empty();
        for part in parts {
            let places: Vec<usize> = part.columns.iter().map(|column| joined.add_column(column)).collect();
            for row in &part.rows {
                let mut fields = vec![String::new(); joined.columns.len()];
                places.iter().zip(&row.fields).for_each(|(place, field)| fields[*place] = field.clone());
                joined.rows.push(FileRecord { line: row.line, fields });
            }
        }
        joined
    }

    /// Returns records with the same columns and only the rows that pass.
    pub fn only(&self, passes: impl Fn(&FileRecord) -> bool) -> Self {
        let rows = self.rows.iter().filter(|row| passes(row)).cloned().collect();
        Self { columns: self.columns.clone(), rows }
    }

    /// Adds a column that is computed for each row.
    pub fn derive(&mut self, name: &str, of: impl Fn(&Self, &FileRecord) -> Option<f64>) {
        let fields: Vec<String> =
            self.rows.iter().map(|row| of(self, row).map(|value| format!("{value:.5e}")).unwrap_or_default()).collect();
        let place = self.add_column(name);
        for (row, field) in self.rows.iter_mut().zip(fields) {
            row.fields.resize(self.columns.len(), String::new());
            row.fields[place] = field;
        }
    }

    /// Returns the field of a row by the name of its column; empty if there is none.
    pub fn field<'a>(&self, row: &'a FileRecord, name: &str) -> &'a str {
        self.columns.iter().position(|known| known == name).map_or("", |place| row.get(place))
    }

    /// Returns the field as a number, if it is one.
    pub fn number(&self, row: &FileRecord, name: &str) -> Option<f64> {
        number(self.field(row, name))
    }

    /// Returns which part of a row was not measured on the hardware that it describes, if any.
    pub fn unreal(&self, row: &FileRecord) -> Option<&'static str> {
        let fabric = self.field(row, "fabric");
        match (self.field(row, "device") == "emulated", fabric.starts_with("model:")) {
            (true, true) => Some("emulated, modelled"),
            (true, false) => Some("emulated"),
            (false, true) => Some("modelled"),
            (false, false) => is_soft(fabric).then_some("software NICs"),
        }
    }

    fn add_column(&mut self, name: &str) -> usize {
        self.columns.iter().position(|known| known == name).unwrap_or_else(|| {
            self.columns.push(name.into());
            self.columns.len() - 1
        })
    }

    /// Returns whether a column has this name.
    pub fn has(&self, name: &str) -> bool {
        self.columns().any(|known| known == name)
    }

    /// Returns an error if no column has this name. The error includes a similar name, whose search is expensive; to
    /// test for a column, use [`Records::has`].
    pub fn column(&self, name: &str) -> Result<(), ChartError> {
        if self.has(name) {
            return Ok(());
        }
        let nearness = |known: &String| strsim::jaro_winkler(known, name);
        let nearest = self.columns.iter().max_by(|one, two| nearness(one).total_cmp(&nearness(two)));
        let nearest = nearest.filter(|known| nearness(known) > 0.7).map(|near| format!(", did you mean {near}?"));
        let (nearest, known) = (nearest.unwrap_or_default(), self.columns.join(", "));
        Err(ChartError::Refused(format!("unknown column {name:?}{nearest}; columns: {known}")))
    }

    /// Returns the names of all columns.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(String::as_str)
    }

    /// Returns all rows, in the order of the files.
    pub fn rows(&self) -> &[FileRecord] {
        &self.rows
    }
}

/// Returns whether the NICs of a fabric are simulated in software, for example `efa/soft:p5`.
pub(crate) fn is_soft(fabric: &str) -> bool {
    fabric.contains("/soft")
}

/// Parses a field as a finite number.
pub(super) fn number(field: &str) -> Option<f64> {
    field.parse().ok().filter(|value: &f64| value.is_finite())
}

/// Returns the names of files in a chart: their last component, or the whole path if the last components are not
/// distinct.
fn names(paths: &[PathBuf]) -> Vec<String> {
    let last = |path: &PathBuf| path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let mut known: Vec<String> = paths.iter().map(last).collect();
    known.sort();
    known.dedup();
    if known.len() == paths.len() {
        return paths.iter().map(last).collect();
    }
    paths.iter().map(|path| path.display().to_string()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(texts: &[&str]) -> Result<Records, String> {
        let dir = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> = (0..texts.len()).map(|index| dir.path().join(format!("{index}.csv"))).collect();
        for (path, text) in paths.iter().zip(texts) {
            std::fs::write(path, text).unwrap();
        }
        Records::read(&paths).map_err(|error| error.to_string().replace(&dir.path().display().to_string(), "DIR"))
    }

    #[test]
    fn files_with_different_columns_are_merged() {
        let records = read(&[
            "schema,device,fabric,status,grid\n1,emulated,null,ok,8\n",
            "status,schema,fabric,device,warps\n\"failed: x\",1,model:p5,cpu,4\n",
        ])
        .unwrap();
        let shown: Vec<String> = records
            .rows()
            .iter()
            .map(|row| records.columns().map(|name| format!("{name}={} ", records.field(row, name))).collect())
            .collect();
        insta::assert_snapshot!(shown.join("\n"), @r"
        file=0.csv schema=1 device=emulated fabric=null status=ok grid=8 warps= 
        file=1.csv schema=1 device=cpu fabric=model:p5 status=failed: x grid= warps=4
        ");
        assert_eq!(records.rows()[1].place(), "1.csv, line 2");
    }

    #[test]
    fn columns_of_schema_1_have_todays_names() {
        let old = "schema,device,fabric,status,wrong,again,of_case\n1,cpu,null,ok,3,4,put\n";
        let new = "schema,device,fabric,status,wrong_bytes,eagain,summarized_case\n2,cpu,null,ok,5,6,get\n";
        let records = read(&[old, new]).unwrap();
        let values = |row: &FileRecord| RENAMED.map(|(_, name)| records.field(row, name).to_owned()).join(" ");
        assert_eq!(records.rows().iter().map(values).collect::<Vec<_>>(), ["3 4 put", "5 6 get"]);
        assert!(RENAMED.iter().all(|(old, _)| !records.has(old)));
    }

    #[test]
    fn errors_describe_invalid_files() {
        let columns = "schema,device,fabric,status\n";
        let refusals: Vec<String> = [
            String::new(),
            "a,b\n1,2\n".into(),
            format!("{columns}1,cpu,null\n"),
            format!("{columns}3,cpu,null,ok\n"),
            format!("{columns},cpu,null,ok\n"),
        ]
        .iter()
        .map(|text| read(&[text]).unwrap_err())
        .collect();
        insta::assert_snapshot!(refusals.join("\n"), @r#"
        DIR/0.csv is not a CSV file of ginlab: it has no column schema, device, fabric, status
        DIR/0.csv is not a CSV file of ginlab: it has no column schema, device, fabric, status
        DIR/0.csv: CSV error: record 1 (line: 2, byte: 28): found record with 3 fields, but the previous record has 4 fields
        DIR/0.csv, line 2: schema "3", but this ginlab reads schemas 1 to 2
        DIR/0.csv, line 2: schema "", but this ginlab reads schemas 1 to 2
        "#);
        let records = read(&[columns]).unwrap();
        let refusals: Vec<String> =
            ["fabrik", "devices", "xyz"].iter().map(|name| records.column(name).unwrap_err().to_string()).collect();
        insta::assert_snapshot!(refusals.join("\n"), @r#"
        unknown column "fabrik", did you mean fabric?; columns: file, schema, device, fabric, status
        unknown column "devices", did you mean device?; columns: file, schema, device, fabric, status
        unknown column "xyz"; columns: file, schema, device, fabric, status
        "#);
    }

    #[test]
    fn files_keep_apart() {
        let named = |paths: &[&str]| names(&paths.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(named(&["a/x.csv", "b/y.csv"]), ["x.csv", "y.csv"]);
        assert_eq!(named(&["a/x.csv", "b/x.csv"]), ["a/x.csv", "b/x.csv"]);
    }
}
