//! A page and where its numbers come from.
//!
//! ```toml
//! folder = "data/2026-11-21-h200-4"        # where files lie that are named without a folder
//!
//! [[figure]]
//! says = "| put + quiet | {3.36} | {3.38} |"
//! from = { file = "null-floor", where = { case = "put", mode = "quiet", block = [32, 256] }, column = "time_us_p50" }
//!
//! [[given]]
//! says = "libfabric 1.17"
//! source = "the version that was installed"
//! ```
//!
//! `says` is text that stands once in the page (line breaks are blanks); what is in braces are the numbers that the data must
//! give, in order, at the precision that is printed. `from` may be several selections, one after another. `given` is what looks
//! like a figure and is none of ours: published, a setting, a version. `data.rs` says what a selection may have.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::data::{OneOrMany, Selection};
use crate::loose;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Spec {
    /// The page, from the repository; the README.md beside this file without.
    page: Option<PathBuf>,
    #[serde(default)]
    folder: String,
    #[serde(default)]
    figure: Vec<Figure>,
    #[serde(default)]
    given: Vec<Given>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Figure {
    says: String,
    from: OneOrMany<Selection>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    says: String,
    /// Who has published it, or why it stands there.
    source: String,
}

impl Figure {
    /// The text as it stands in the page.
    fn text(&self) -> String {
        one_line(&self.says.replace(['{', '}'], ""))
    }

    /// The numbers in braces.
    fn printed(&self) -> Vec<&str> {
        self.says.split('{').skip(1).filter_map(|part| part.split_once('}')).map(|(number, _)| number).collect()
    }

    fn values(&self, root: &Path, folder: &str) -> Result<Vec<f64>, String> {
        let parts = self.from.all().iter().map(|selection| selection.values(root, folder));
        Ok(parts.collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// The text with other numbers, at the same precision.
    fn with(&self, values: &[f64]) -> String {
        let mut text = self.says.clone();
        for (printed, value) in self.printed().into_iter().zip(values) {
            text = text.replacen(&format!("{{{printed}}}"), &format!("\u{1}{value:.*}\u{2}", decimals(printed)), 1);
        }
        text.replace('\u{1}', "{").replace('\u{2}', "}")
    }
}

/// A page with its figures.
pub struct Page {
    root: PathBuf,
    path: PathBuf,
    spec_path: PathBuf,
    spec: Spec,
    text: String,
}

impl Page {
    /// Reads the page of a folder of the repository.
    pub fn read(root: &Path, folder: &Path) -> Result<Self, String> {
        let read = |path: &Path| {
            std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
        };
        let spec_path = root.join(folder).join("figures.toml");
        let spec: Spec =
            toml::from_str(&read(&spec_path)?).map_err(|error| format!("{}: {error}", spec_path.display()))?;
        let path = spec.page.as_ref().map_or_else(|| root.join(folder).join("README.md"), |page| root.join(page));
        let text = read(&path)?;
        Ok(Self { root: root.into(), path, spec_path, spec, text })
    }

    /// What is wrong: figures that the data or the page does not have, and numbers of the page without a figure.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let text = one_line(&self.text);
        for figure in &self.spec.figure {
            match text.matches(&figure.text()).count() {
                1 => {}
                count => problems.push(format!("stands {count} times in the page, not once: {}", figure.text())),
            }
            let printed = figure.printed();
            match figure.values(&self.root, &self.spec.folder) {
                Err(why) => problems.push(format!("{}: {why}", figure.says)),
                Ok(values) if values.len() != printed.len() => {
                    problems.push(format!(
                        "{}: the data gives {} values: {}",
                        figure.says,
                        values.len(),
                        list(&values)
                    ));
                }
                Ok(values) => {
                    if !printed.iter().zip(&values).all(|(printed, value)| is_printed(printed, *value)) {
                        problems.push(format!("{}: the data gives {}", figure.says, list(&values)));
                    }
                }
            }
        }
        for given in &self.spec.given {
            if !text.contains(&one_line(&given.says)) {
                problems.push(format!("does not stand in the page: {}", given.says));
            }
            if given.source.is_empty() {
                problems.push(format!("without a source: {}", given.says));
            }
        }
        let mut rest = one_line(&loose::findings(&self.text));
        for figure in &self.spec.figure {
            let known = figure.says.split('{').map(|part| part.split_once('}').map_or(part, |(_, after)| after));
            rest = rest.replace(&figure.text(), &one_line(&known.collect::<Vec<_>>().join("#")));
        }
        for given in &self.spec.given {
            let says = one_line(&given.says);
            rest = rest.replace(&says, &says.replace(|letter: char| letter.is_ascii_digit(), "#"));
        }
        problems.extend(loose::numbers(&rest).into_iter().map(|number| format!("a number without a figure: {number}")));
        problems
    }

    /// For each figure what it says, and where that is in the data.
    pub fn listing(&self) -> String {
        let mut text = String::new();
        let mut commands = Commands::default();
        let _ = writeln!(text, "{}", self.path.strip_prefix(&self.root).unwrap_or(&self.path).display());
        for figure in &self.spec.figure {
            let _ = writeln!(text, "\n{}", figure.says);
            for selection in figure.from.all() {
                let values =
                    selection.values(&self.root, &self.spec.folder).map_or_else(|why| why, |values| list(&values));
                let _ = writeln!(text, "    {values}: {selection}");
                for file in selection.files(&self.spec.folder) {
                    let command = commands.of(&self.root, &file).unwrap_or_default();
                    let _ = writeln!(text, "    {}: {command}", file.display());
                }
            }
        }
        for given in &self.spec.given {
            let _ = writeln!(text, "\n{}\n    given: {}", given.says, given.source);
        }
        text + "\n"
    }

    /// Writes the values of the data into the page and its figures, where they differ from what is printed.
    pub fn update(&mut self) -> Result<(), String> {
        let write = |path: &Path, text: &str| {
            std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
        };
        let read = |path: &Path| std::fs::read_to_string(path).map_err(|error| error.to_string());
        let mut spec = read(&self.spec_path)?;
        for figure in &mut self.spec.figure {
            let values = figure.values(&self.root, &self.spec.folder)?;
            let printed = figure.printed();
            if values.len() != printed.len() {
                return Err(format!("{}: the data gives {} values", figure.says, values.len()));
            }
            if printed.iter().zip(&values).all(|(printed, value)| is_printed(printed, *value)) {
                continue;
            }
            let (old, says) = (figure.text(), figure.with(&values));
            let Some(place) = find(&self.text, &old) else {
                return Err(format!("does not stand in the page: {old}"));
            };
            spec = spec.replace(&figure.says, &says);
            figure.says = says;
            self.text.replace_range(place, &figure.text());
        }
        write(&self.path, &self.text)?;
        write(&self.spec_path, &spec)
    }
}

/// The commands of CSV files, from the `headers.json` of their folders.
#[derive(Default)]
struct Commands(BTreeMap<PathBuf, Value>);

impl Commands {
    fn of(&mut self, root: &Path, file: &Path) -> Option<String> {
        let folder = file.ancestors().skip(1).find(|folder| root.join(folder).join("headers.json").is_file())?;
        let path = root.join(folder).join("headers.json");
        let headers = self.0.entry(path.clone()).or_insert_with(|| {
            std::fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
        });
        let name = file.strip_prefix(folder).ok()?.to_str()?;
        Some(headers.get("files")?.get(name)?.get("command")?.as_str()?.to_owned())
    }
}

/// Text with every run of blanks and line breaks as one blank.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Where a text of one line stands in a text of several.
fn find(text: &str, line: &str) -> Option<std::ops::Range<usize>> {
    let mut words = line.split(' ');
    let first = words.next()?;
    let rest: Vec<&str> = words.collect();
    text.match_indices(first).find_map(|(start, _)| {
        let mut end = start + first.len();
        for word in &rest {
            let after = text[end..].trim_start();
            let blank = text.len() - end - after.len();
            if blank == 0 || !after.starts_with(word) {
                return None;
            }
            end += blank + word.len();
        }
        Some(start..end)
    })
}

/// How many decimals a number was printed with.
fn decimals(printed: &str) -> usize {
    printed.split_once('.').map_or(0, |(_, after)| after.len())
}

/// Whether a value is what was printed, at its precision.
fn is_printed(printed: &str, value: f64) -> bool {
    let half = 0.5 * 0.1_f64.powi(decimals(printed) as i32);
    printed.parse::<f64>().is_ok_and(|printed| (printed - value).abs() <= half * (1.0 + 1e-9))
}

fn list(values: &[f64]) -> String {
    values
        .iter()
        .map(|value| format!("{value:.5}").trim_end_matches('0').trim_end_matches('.').to_owned())
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const ROWS: &str =
        "case,size_bytes,fill,time_us_p50\nput,64,true,2.5\nput,128,true,4.04\nfloor,64,true,2\nput,64,false,\n";
    const PUTS: &str = r#"{ file = "run", where = { case = "put", fill = true }, column = "time_us_p50" }"#;

    /// A repository with one page, which says this.
    fn page(page: &str, says: &str, from: &str) -> (tempfile::TempDir, Result<Page, String>) {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("data/run1")).unwrap();
        std::fs::write(root.path().join("data/run1/run.csv"), ROWS).unwrap();
        std::fs::write(root.path().join("README.md"), page).unwrap();
        let spec = format!("folder = \"data/run1\"\n[[figure]]\nsays = \"{says}\"\nfrom = {from}\n");
        std::fs::write(root.path().join("figures.toml"), spec).unwrap();
        let page = Page::read(root.path(), Path::new(""));
        (root, page)
    }

    #[track_caller]
    fn problems(text: &str, says: &str, from: &str) -> String {
        page(text, says, from).1.unwrap().problems().join("; ")
    }

    #[test]
    fn numbers_are_compared_as_they_are_printed() {
        assert_eq!(problems("puts: 2.5 and\n4.0 us", "puts: {2.5} and {4.0} us", PUTS), "");
        assert_eq!(problems("puts: 3 and 4 us", "{3} and {4} us", PUTS), "", "half a unit away is near enough");
        let wrong = problems("puts: 2.5 and 4.1 us", "puts: {2.5} and {4.1} us", PUTS);
        assert_eq!(wrong, "puts: {2.5} and {4.1} us: the data gives 2.5, 4.04");
    }

    #[test]
    fn what_the_page_does_not_say_is_told() {
        assert!(problems("puts: 2.5 us", "puts: {2.5} and {4.0} us", PUTS).contains("stands 0 times"));
        assert!(problems("2.5, 4.0; 2.5, 4.0", "{2.5}, {4.0}", PUTS).contains("stands 2 times"));
        assert!(problems("2.5, 4.0 us, 7 us", "{2.5}, {4.0} us", PUTS).contains("a number without a figure: 7 us"));
    }

    #[test]
    fn what_the_data_does_not_have_is_told() {
        for (from, part) in [
            (r#"{ file = "run", column = "time" }"#, "there is no column \"time\""),
            (r#"{ file = "run", where = { size = 1 }, column = "time_us_p50" }"#, "there is no column \"size\""),
            (r#"{ file = "run", where = { case = "put" }, column = "time_us_p50" }"#, "is \"\" in one of the rows"),
            (r#"{ file = "run", where = { case = "get" }, column = "time_us_p50" }"#, "the data gives 0 values"),
            (r#"{ file = "run", where = { case = "get" }, column = "time_us_p50", of = "max" }"#, "no row is there"),
            (r#"{ file = "other", column = "time_us_p50" }"#, "other.csv"),
        ] {
            let told = problems("puts: 2.5 us", "puts: {2.5} us", from);
            assert!(told.contains(part), "{from}: {told}");
        }
        assert!(page("2.5", "{2.5}", r#"{ file = "run", colum = "x" }"#).1.is_err(), "a key that is none");
    }

    #[test]
    fn ratios_and_what_is_told_of_several() {
        let put = r#"file = "run", where = { case = "put", fill = true }, column = "time_us_p50""#;
        for (says, more) in [
            ("{1.25}, {2.02}", r#"over = { where = { case = "floor" } }"#),
            ("{25}, {102}", r#"over = { where = { case = "floor" } }, as = "gain""#),
            ("{3.27}", r#"of = "median""#),
            ("{2.5} to {4.04}", r#"of = "range""#),
            ("{2}", r#"of = "count""#),
            ("{2500}, {4040}", "times = 1000"),
        ] {
            let from = format!("{{ {put}, {more} }}");
            assert_eq!(problems(&says.replace(['{', '}'], ""), says, &from), "", "{more}");
        }
        let files = r#"{ file = ["run", "data/run1/run"], where = { case = "floor" }, column = "time_us_p50", of = "median-of-files" }"#;
        assert_eq!(problems("2 us", "{2} us", files), "");
    }

    #[test]
    fn an_update_writes_both() {
        let (root, page) = page("puts:\n9.9 and\n  9 us, 9 ranks", "puts: {9.9} and {9} us", PUTS);
        let mut page = page.unwrap();
        page.update().unwrap();
        assert_eq!(std::fs::read_to_string(root.path().join("README.md")).unwrap(), "puts: 2.5 and 4 us, 9 ranks");
        assert_eq!(Page::read(root.path(), Path::new("")).unwrap().problems(), Vec::<String>::new());
        assert!(page.listing().contains("2.5, 4.04: time_us_p50 where case=put, fill=true\n    data/run1/run.csv: "));
    }
}
