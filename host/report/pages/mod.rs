//! Tables, figures and charts of the repository's pages, generated from CSV files.
//!
//! A marker is an HTML comment that selects rows and columns; the text between it and `<!-- end -->` is generated.
//! CONTRIBUTING.md documents the markers.

mod chart;
mod select;
mod table;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::chart::{ChartError, Records};
use crate::{OutputTarget, ReportError, WholeFile};
use select::Selection;

/// Parts of a repository that contain pages.
const ROOMS: [&str; 4] = ["README.md", "docs", "experiments", "data"];
const START: &str = "<!-- ";
const END: &str = "<!-- end -->";

/// Errors when generating pages, each a one-line message.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// The directory is not a repository with pages.
    #[error("no {} in {}: run it in the root of ginlab's repository, or name that directory", ROOMS[0], .0.display())]
    NoPages(PathBuf),
    /// A marker is invalid, or the data has no answer to it.
    #[error("{place}: {why}")]
    Marker {
        /// Page, line and start of the marker.
        place: String,
        /// Description of the fault.
        why: String,
    },
    /// A page could not be read.
    #[error("cannot read {}: {source}", .path.display())]
    Read {
        /// Path of the page.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A page or a chart could not be written.
    #[error(transparent)]
    Write(#[from] ReportError),
}

/// Generated files of a repository.
#[derive(Debug, Default)]
pub struct Generated {
    /// Page, line and start of each marker whose text or chart in the repository is outdated.
    pub stale: Vec<String>,
    /// Number of markers.
    pub markers: usize,
    files: Vec<(PathBuf, String)>,
}

impl Generated {
    /// Generates the pages and charts of a repository from its CSV files, without writing them.
    pub fn of(root: &Path) -> Result<Self, PageError> {
        if !root.join(ROOMS[0]).is_file() {
            return Err(PageError::NoPages(root.into()));
        }
        let mut generated = Self::default();
        let mut pages = Vec::new();
        ROOMS.iter().try_for_each(|room| find(&root.join(room), &mut pages))?;
        for path in pages {
            let text =
                std::fs::read_to_string(&path).map_err(|source| PageError::Read { path: path.clone(), source })?;
            let mut page = Page { data: Data::new(root), path: &path, text: &text, generated: &mut generated };
            let new = page.generate()?;
            if new != text {
                generated.files.push((path, new));
            }
        }
        Ok(generated)
    }

    /// Writes the pages and charts that have changed.
    pub fn write(&self) -> Result<(), PageError> {
        for (path, text) in &self.files {
            WholeFile::create("the page", &OutputTarget::File(path.clone()))?.write(text.as_bytes())?;
        }
        Ok(())
    }
}

/// Adds the Markdown files of a directory and its subdirectories.
fn find(path: &Path, pages: &mut Vec<PathBuf>) -> Result<(), PageError> {
    if !path.is_dir() {
        if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path.into());
        }
        return Ok(());
    }
    let unreadable = |source| PageError::Read { path: path.into(), source };
    let entries =
        path.read_dir().and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, _>>());
    let mut entries = entries.map_err(unreadable)?;
    entries.sort();
    entries.iter().try_for_each(|entry| find(entry, pages))
}

/// A page that is generated.
struct Page<'a> {
    data: Data<'a>,
    path: &'a Path,
    text: &'a str,
    generated: &'a mut Generated,
}

impl<'a> Page<'a> {
    /// Returns the text with generated tables and figures.
    fn generate(&mut self) -> Result<String, PageError> {
        let mut new = String::new();
        let mut rest = self.text;
        while let Some((before, comment)) = rest.find(START).map(|at| rest.split_at(at)) {
            new += before;
            let Some((marker, after)) = comment.split_once("-->") else { break };
            let shown = &comment[..marker.len() + 3];
            new += shown;
            rest = after;
            let at = self.text.len() - comment.len();
            let body = marker[START.len()..].trim();
            let Some((kind, body)) = body.split_once(':').map(|(kind, body)| (kind, body.trim_start_matches(' ')))
            else {
                continue;
            };
            match kind {
                "data" => self.data.folder = body.trim().into(),
                "chart" => {
                    let chart = chart::svg(body, &self.data).map_err(|why| self.error(at, body, why))?;
                    self.chart(at, body, chart);
                }
                "rows" | "value" => {
                    let made = match kind {
                        "rows" => table::table(body, &self.data).map(|table| format!("\n{table}")),
                        _ => Selection::parse(body).and_then(|wanted| wanted.cell(&self.data)),
                    };
                    let made = made.map_err(|why| self.error(at, body, why))?;
                    let first = kind == "value" && self.text[..at].ends_with('\n');
                    let (old, after) = match after.split_once(END) {
                        _ if first => {
                            Err("a value marker may not start a line, which would then be no Markdown".into())
                        }
                        Some((old, after)) if !old.contains(START) => Ok((old, after)),
                        _ => Err(format!("no {END} before the next marker")),
                    }
                    .map_err(|why| self.error(at, body, why))?;
                    self.count(at, body, old == made);
                    new += &made;
                    new += END;
                    rest = after;
                }
                _ => {}
            }
        }
        Ok(new + rest)
    }

    fn chart(&mut self, at: usize, body: &str, (name, svg): (String, String)) {
        let path = self.path.with_file_name(name);
        let current = std::fs::read_to_string(&path).is_ok_and(|old| old == svg);
        self.count(at, body, current);
        if !current {
            self.generated.files.push((path, svg));
        }
    }

    fn count(&mut self, at: usize, body: &str, current: bool) {
        self.generated.markers += 1;
        if !current {
            let place = self.place(at, body);
            self.generated.stale.push(place);
        }
    }

    /// Returns page, line and the start of the marker at this byte.
    fn place(&self, at: usize, body: &str) -> String {
        let page = self.path.strip_prefix(self.data.root).unwrap_or(self.path).display();
        let line = self.text[..at].matches('\n').count() + 1;
        let start: String = body.lines().next().unwrap_or_default().chars().take(60).collect();
        format!("{page}:{line}: {start}")
    }

    fn error(&self, at: usize, body: &str, why: String) -> PageError {
        PageError::Marker { place: self.place(at, body), why }
    }
}

/// CSV files of a repository, read once each.
struct Data<'a> {
    root: &'a Path,
    /// Directory of files without a path, relative to the root.
    folder: String,
    read: RefCell<BTreeMap<PathBuf, Rc<Records>>>,
}

impl<'a> Data<'a> {
    fn new(root: &'a Path) -> Self {
        Self { root, folder: String::new(), read: RefCell::default() }
    }

    /// Returns the path of a file: in the page's directory of data, or relative to the root.
    fn path(&self, name: &str) -> PathBuf {
        let near = self.root.join(&self.folder).join(name);
        if near.is_file() { near } else { self.root.join(name) }
    }

    fn records(&self, name: &str) -> Result<Rc<Records>, String> {
        let path = self.path(name);
        if let Some(known) = self.read.borrow().get(&path) {
            return Ok(known.clone());
        }
        let short = |error: ChartError| error.to_string().replace(&format!("{}/", self.root.display()), "");
        let file = File::open(&path).map_err(|source| short(ChartError::Read { path: path.clone(), source }))?;
        let (_, records) = Records::of_text(file, &path, name).map_err(short)?;
        Ok(self.read.borrow_mut().entry(path).or_insert(Rc::new(records)).clone())
    }
}
