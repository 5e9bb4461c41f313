//! The newest results of many runs.
//!
//! A point is what was chosen for a row: the values of the columns that are [`Role::Chosen`] or [`Role::Follows`], on one model of
//! CPU. A file is newer than another by, in this order: the date that the name of its folder begins with, not being called
//! `before` there (`scripts/gate.sh` runs two builds in turns), the date in its header, its name. A file each of whose points a
//! newer file has is left out; any other one stays whole, since the rows of one run are read beside each other. Rows count that are
//! ok. Two files agree in a column that one of them lacks: an older version had not yet given it a name.
//!
//! [`Role::Chosen`]: super::Role::Chosen
//! [`Role::Follows`]: super::Role::Follows

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::chart::FileKind;
use super::run::{Run, Runs};
use super::{Catalog, Key};

/// What orders files by age.
type Age = (String, bool, String, String);

/// The points of a file.
struct Points<'a> {
    /// Files of others have no points in common with these.
    of: (String, Option<String>),
    /// Which of the columns the file has.
    has: Vec<bool>,
    rows: Vec<Vec<&'a str>>,
}

impl<'a> Points<'a> {
    fn of(run: &'a Run, chosen: &[&str]) -> Self {
        let records = &run.records;
        if run.kind == FileKind::Listing {
            // It is one finding; lists of one name take each other's place.
            return Self { of: (run.experiment(), None), has: vec![true], rows: vec![vec![run.file_name()]] };
        }
        let has: Vec<bool> = chosen.iter().map(|column| records.has(column)).collect();
        let counts = records.rows().iter().filter(|row| matches!(records.field(row, "status"), "" | "ok"));
        let rows = counts.map(|row| chosen.iter().map(|column| records.field(row, column)).collect()).collect();
        Self { of: (run.experiment(), run.fact(Key::Cpu)), has, rows }
    }

    /// The rows in the columns that both have.
    fn within(&self, both: &[bool]) -> impl Iterator<Item = Vec<&'a str>> {
        let values = move |row: &Vec<&'a str>| {
            row.iter().zip(both).filter(|(_, both)| **both).map(|(value, _)| *value).collect()
        };
        self.rows.iter().map(values)
    }
}

impl Runs {
    /// Leaves out the files each of whose points was measured again later, and those without a row that is ok. The newest file
    /// comes first.
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
        for (count, why) in
            [(again, "files each of whose points newer ones have"), (without, "files without a row that is ok")]
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

/// The date that a name begins with.
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

    /// A folder of results.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        /// A file with rows of these sizes, `!64` for one that failed.
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

        /// What is left, the newest first, and what is said of the rest.
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
    fn a_file_whose_points_a_newer_folder_has_is_left_out() {
        let tree = Tree::new();
        // The folder's date counts before the header's.
        tree.file("2026-01-01-a/all.csv", "64,128", at("2026-05-05T00:00:00Z"))
            .file("2026-01-01-a/more.csv", "64,4096", at("2026-01-01T00:00:00Z"))
            .file("2026-01-01-a/failed.csv", "!64", at("2026-01-01T00:00:00Z"))
            .file("2026-01-01-a/once.csv", "8192", at("2026-01-01T00:00:00Z"))
            // Of two newer files together.
            .file("2026-01-02-b/deeper/one.csv", "64,!8192", at("2026-01-02T00:00:00Z"))
            .file("2026-01-02-b/two.csv", "128", at("2026-01-02T00:01:00Z"));
        let (left, said) = tree.newest();
        let expected =
            ["2026-01-02-b/two.csv", "2026-01-02-b/deeper/one.csv", "2026-01-01-a/once.csv", "2026-01-01-a/more.csv"];
        assert_eq!(left, expected);
        assert_eq!(said, ["files each of whose points newer ones have: 1", "files without a row that is ok: 1"]);
    }

    #[test]
    fn within_a_folder_the_later_run_is_newer_and_what_is_called_before_is_older() {
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
        // A version that did not name the grid has measured the same.
        tree.write(
            "2026-01-01-a/older.csv",
            "schema,experiment,case,device,fabric,size_bytes,status\n1,proxy,put,gpu:H200,tcp,64,ok\n",
        );
        assert_eq!(tree.newest().0.len(), 5);
    }

    #[test]
    fn a_list_takes_the_place_of_an_older_one_of_its_name() {
        let tree = Tree::new();
        tree.write("2026-01-01-a/affinity.csv", "schema,gpu\n1,0\n")
            .write("2026-01-02-a/affinity.csv", "schema,gpu\n1,1\n");
        assert_eq!(tree.newest().0, ["2026-01-02-a/affinity.csv"]);
    }
}
