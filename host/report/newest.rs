//! Selection of the newest results of many runs.
//!
//! A point is the set of a row's values in the columns with the role [`ColumnRole::Chosen`] or `ColumnRole::Follows`,
//! on one CPU model. Only rows with the status ok count. The age of a file is determined, in this order, by:
//!
//! 1. The date at the start of its directory's name.
//! 2. Whether its path contains the word `before` (`scripts/gate.sh` alternates between two builds), which marks an
//!    older file.
//! 3. The date in its header.
//! 4. Its name.
//!
//! A file is left out if newer files contain each of its points. Any other file is kept as a whole, since the rows of
//! one run belong together. A column that one of two files lacks is not compared, because an older version may not have
//! had it.
//!
//! [`ColumnRole::Chosen`]: super::ColumnRole::Chosen

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::chart::FileKind;
use super::run::{Run, Runs};
use super::{Catalog, Key};

/// Sort key for the age of a file.
type Age = (String, bool, String, String);

/// Points of a file.
struct Points<'a> {
    /// Experiment and CPU model. Files that differ in these have no points in common.
    of: (String, Option<String>),
    /// Whether the file has each of the chosen columns.
    has: Vec<bool>,
    rows: Vec<Vec<&'a str>>,
}

impl<'a> Points<'a> {
    fn of(run: &'a Run, chosen: &[&str]) -> Self {
        let records = &run.records;
        if run.kind == FileKind::Listing {
            // A listing counts as one point, so that a newer listing of the same name replaces it.
            return Self { of: (run.experiment(), None), has: vec![true], rows: vec![vec![run.file_name()]] };
        }
        let has: Vec<bool> = chosen.iter().map(|column| records.has(column)).collect();
        let counts = records.rows().iter().filter(|row| matches!(records.field(row, "status"), "" | "ok"));
        let rows = counts.map(|row| chosen.iter().map(|column| records.field(row, column)).collect()).collect();
        Self { of: (run.experiment(), run.fact(Key::Cpu)), has, rows }
    }

    /// Returns the rows restricted to the columns that both files have.
    fn within(&self, both: &[bool]) -> impl Iterator<Item = Vec<&'a str>> {
        let values = move |row: &Vec<&'a str>| {
            row.iter().zip(both).filter(|(_, both)| **both).map(|(value, _)| *value).collect()
        };
        self.rows.iter().map(values)
    }
}

impl Runs {
    /// Leaves out the files whose points are all in newer files, and those without a row with status ok. Sorts the
    /// files, the newest first.
    pub fn newest(mut self, catalog: Catalog) -> Self {
        self.runs.sort_by_cached_key(|run| Reverse(age(run)));
        let chosen = catalog.chosen();
        let points: Vec<Points> = self.runs.iter().map(|run| Points::of(run, &chosen)).collect();
        let mut known: BTreeMap<(usize, Vec<bool>), BTreeSet<Vec<&str>>> = BTreeMap::new();
        let mut fates = Vec::new();
        for (place, this) in points.iter().enumerate() {
            let mut left = vec![true; this.rows.len()];
            for (newer, other) in points[..place].iter().enumerate().filter(|(_, other)| other.of == this.of) {
                let both: Vec<bool> = this.has.iter().zip(&other.has).map(|(this, other)| *this && *other).collect();
                let theirs = known.entry((newer, both.clone())).or_insert_with(|| other.within(&both).collect());
                left.iter_mut().zip(this.within(&both)).for_each(|(left, row)| *left &= !theirs.contains(&row));
            }
            fates.push((!left.is_empty(), left.contains(&true)));
        }
        let mut fates = fates.into_iter();
        let (mut again, mut without) = (0, 0);
        self.runs.retain(|_| {
            let (any, stays) = fates.next().unwrap_or((true, true));
            again += usize::from(any && !stays);
            without += usize::from(!any);
            stays
        });
        for (count, why) in [(again, "files whose points are all in newer files"), (without, "files without an ok row")]
        {
            if count > 0 {
                self.left_out.push(format!("{why}: {count}"));
            }
        }
        self
    }
}

fn age(run: &Run) -> Age {
    let header = run.fact(Key::Date).unwrap_or_default();
    let folder = run.name.split('/').find_map(day).map(str::to_owned);
    let before = run.name.split('/').any(|part| part.split(['-', '.']).any(|word| word == "before"));
    (folder.or_else(|| day(&header).map(str::to_owned)).unwrap_or_default(), !before, header, run.name.clone())
}

/// Returns the date at the start of a name, if any.
fn day(name: &str) -> Option<&str> {
    let day = name.get(..10)?;
    let fits = |(at, letter): (usize, char)| if matches!(at, 4 | 7) { letter == '-' } else { letter.is_ascii_digit() };
    day.chars().enumerate().all(fits).then_some(day)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;

    use super::*;

    /// A directory of results.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        /// Writes a file with rows of these sizes, `!64` for one that failed.
        fn file(&self, name: &str, sizes: &str, header: serde_json::Value) -> &Self {
            let row = |size: &str| match size.strip_prefix('!') {
                Some(size) => format!("1,proxy,put,gpu:H200,tcp,{size},failed: x\n"),
                None => format!("1,proxy,put,gpu:H200,tcp,{size},ok\n"),
            };
            let rows: String = sizes.split(',').map(row).collect();
            self.write(name, &format!("schema,experiment,case,device,fabric,size_bytes,status\n{rows}"));
            self.write(&name.replace(".csv", ".header.json"), &header.to_string());
            self
        }

        fn write(&self, name: &str, text: &str) -> &Self {
            let path = self.0.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
            self
        }

        /// Returns the names of the files that remain, the newest first, and the notes on the others.
        fn newest(&self) -> (Vec<String>, Vec<String>) {
            let found = Runs::find(&[self.0.path().to_owned()]).unwrap().newest(Catalog::default());
            let root = Path::new(self.0.path().file_name().unwrap());
            let name = |run: &Run| Path::new(&run.name).strip_prefix(root).unwrap().display().to_string();
            (found.runs.iter().map(name).collect(), found.left_out)
        }
    }

    fn at(date: &str) -> serde_json::Value {
        serde_json::json!({ "date": date, "cpu": "x" })
    }

    #[test]
    fn file_superseded_by_newer_directory_is_omitted() {
        let tree = Tree::new();
        // The directory's date takes precedence over that of the header.
        tree.file("2026-01-01-a/all.csv", "64,128", at("2026-05-05T00:00:00Z"))
            .file("2026-01-01-a/more.csv", "64,4096", at("2026-01-01T00:00:00Z"))
            .file("2026-01-01-a/failed.csv", "!64", at("2026-01-01T00:00:00Z"))
            .file("2026-01-01-a/once.csv", "8192", at("2026-01-01T00:00:00Z"))
            // The points of `all.csv` are in two newer files together.
            .file("2026-01-02-b/deeper/one.csv", "64,!8192", at("2026-01-02T00:00:00Z"))
            .file("2026-01-02-b/two.csv", "128", at("2026-01-02T00:01:00Z"));
        let (left, said) = tree.newest();
        let expected =
            ["2026-01-02-b/two.csv", "2026-01-02-b/deeper/one.csv", "2026-01-01-a/once.csv", "2026-01-01-a/more.csv"];
        assert_eq!(left, expected);
        assert_eq!(said, ["files whose points are all in newer files: 1", "files without an ok row: 1"]);
    }

    #[test]
    fn later_run_is_newer_and_before_is_older() {
        let tree = Tree::new();
        tree.file("2026-01-01-a/after/1.csv", "64", at("2026-01-01T00:00:00Z"))
            .file("2026-01-01-a/after/2.csv", "64", at("2026-01-01T00:02:00Z"))
            .file("2026-01-01-a/before/2.csv", "64", at("2026-01-01T00:03:00Z"));
        assert_eq!(tree.newest().0, ["2026-01-01-a/after/2.csv"]);
    }

    #[test]
    fn other_machines_and_other_settings_stay() {
        let tree = Tree::new();
        let columns = "schema,experiment,case,device,fabric,size_bytes,grid,status\n";
        tree.file("2026-01-01-a/1.csv", "64", serde_json::json!({ "cpu": "y" }))
            .write("2026-01-01-a/emulated.csv", &format!("{columns}1,proxy,put,emulated,tcp,64,1,ok\n"))
            .write("2026-01-02-a/grids.csv", &format!("{columns}1,proxy,put,gpu:H200,tcp,64,1,ok\n"))
            .write("2026-01-02-b/grid.csv", &format!("{columns}1,proxy,put,gpu:H200,tcp,64,2,ok\n"))
            .file("2026-01-03-b/1.csv", "64", at("2026-01-03T00:00:00Z"));
        assert_eq!(tree.newest().0.len(), 5);
        // A file of a version without the column `grid` contains the same measurement.
        tree.write(
            "2026-01-01-a/older.csv",
            "schema,experiment,case,device,fabric,size_bytes,status\n1,proxy,put,gpu:H200,tcp,64,ok\n",
        );
        assert_eq!(tree.newest().0.len(), 5);
    }

    #[test]
    fn listing_replaces_older_listing_of_same_name() {
        let tree = Tree::new();
        tree.write("2026-01-01-a/affinity.csv", "schema,gpu\n1,0\n")
            .write("2026-01-02-a/affinity.csv", "schema,gpu\n1,1\n");
        assert_eq!(tree.newest().0, ["2026-01-02-a/affinity.csv"]);
    }
}
