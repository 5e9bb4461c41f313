//! HTML page of runs: their headers, charts and rows, and the comparison with another run.
//!
//! The page is self-contained: it includes the style and the charts, and has no script. The same files always result in
//! the same bytes. maud escapes all texts; charts escape their own.

mod expected;
mod found;
mod tables;

pub use expected::Expected;

use std::cmp::Reverse;
use std::collections::BTreeSet;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::chart::Palette;
use super::compare::Comparison;
use super::each_once;
use super::figures::{self, PageChart, RunCharts};
use super::run::Run;
use super::{About, BestValue, Catalog, ColumnRole, Key};

/// Number of charts of a run that are not folded.
const AT_ONCE: usize = 4;

const STYLE: &str = include_str!("page.css");

/// Contents of a page.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    /// Heading of the page.
    pub title: &'a str,
    /// Runs to show.
    pub runs: &'a [Run],
    /// Comparison, with the names of both sides.
    pub comparison: Option<(&'a Comparison, &'a str, &'a str)>,
    /// Figures with those expected of the machine.
    pub expected: &'a [Expected],
    /// Declarations of the experiments.
    pub catalog: Catalog<'a>,
    /// Set if the runs are the newest of many.
    pub newest: Option<Newest<'a>>,
}

/// Overview of the newest of many runs: findings, and one chart of each experiment. Each experiment has its own page,
/// with one chart of each kind per file.
#[derive(Clone, Copy, Debug)]
pub struct Newest<'a> {
    /// Findings to show.
    pub findings: &'a [BestValue],
    /// File name of the overview without `.html`. The names of the other pages start with it.
    pub stem: &'a str,
}

/// A page, and its charts as separate documents.
#[derive(Clone, Debug)]
pub struct Built {
    /// HTML document.
    pub html: String,
    /// File name and HTML document of the page of each experiment, to which an overview links.
    pub parts: Vec<(String, String)>,
    /// Charts, with distinct names.
    pub figures: Vec<PageChart>,
}

struct Section<'a> {
    experiment: String,
    about: &'a About,
    runs: Vec<(&'a Run, RunCharts)>,
    several: RunCharts,
}

impl Section<'_> {
    /// Returns the lists of charts: of several runs together, then of each run.
    fn lists(&mut self) -> impl Iterator<Item = &mut Vec<PageChart>> {
        std::iter::once(&mut self.several)
            .chain(self.runs.iter_mut().map(|(_, figures)| figures))
            .map(|figures| &mut figures.drawn)
    }

    /// Returns the most informative chart of the experiment's first kind.
    fn telling(&self) -> Option<&PageChart> {
        let all = std::iter::once(&self.several).chain(self.runs.iter().map(|(_, figures)| figures));
        all.flat_map(|figures| &figures.drawn).min_by_key(|figure| (figure.place.0, found::rank(figure)))
    }
}

impl Page<'_> {
    /// Draws the charts and writes the document.
    pub fn build(&self) -> Built {
        let mut sections = self.sections();
        let few = sections.iter_mut().flat_map(Section::lists).map(|list| list.len()).sum::<usize>() <= found::SHOWN;
        let whole = few || self.newest.is_some();
        let mut shown = if whole { Vec::new() } else { found::most_telling(&mut sections) };
        let below = sections.iter_mut().flat_map(Section::lists).flatten();
        let mut all: Vec<&mut PageChart> = shown.iter_mut().chain(below).collect();
        let palette = Palette::of(all.iter().map(|figure| &figure.chart));
        let mut names = BTreeSet::new();
        for figure in &mut all {
            let first = figure.name.clone();
            let mut count = 1;
            while !names.insert(figure.name.clone()) {
                count += 1;
                figure.name = format!("{first}-{count}");
            }
            figure.svg = figure.chart.svg(&palette);
        }
        let figures = all.into_iter().map(|figure| figure.clone()).collect();
        let (html, parts) = match self.newest {
            None => (self.document(&sections, &shown), Vec::new()),
            Some(newest) => (self.overview(&sections, newest), self.parts(&sections, newest)),
        };
        Built { html: html.into_string(), parts, figures }
    }

    /// Returns the runs by experiment, in the order of the catalog, with unknown experiments last.
    fn sections(&self) -> Vec<Section<'_>> {
        let mut experiments: Vec<String> = self.runs.iter().map(Run::experiment).collect();
        let known = self.catalog.0;
        let place = |name: &String| known.iter().position(|about| about.name == name).unwrap_or(known.len());
        experiments.sort_by_key(|name| (place(name), name.clone()));
        experiments.dedup();
        let section = |experiment: String| {
            let runs: Vec<&Run> = self.runs.iter().filter(|run| run.experiment() == experiment).collect();
            let several = figures::of_several(&experiment, &runs, self.catalog);
            let runs = runs.into_iter().map(|run| (run, self.figures(run))).collect();
            Section { about: self.catalog.about(&experiment), experiment, runs, several }
        };
        experiments.into_iter().map(section).collect()
    }

    fn figures(&self, run: &Run) -> RunCharts {
        let mut figures = figures::of_run(run, self.catalog);
        if self.newest.is_some() {
            let all = figures.drawn.len();
            // Keeps the chart with the most points of each kind.
            figures.drawn.sort_by_key(|figure| (figure.place.0, Reverse(figure.chart.points())));
            figures.drawn.dedup_by_key(|figure| figure.place.0);
            if figures.drawn.len() < all {
                let (left, place) = (all - figures.drawn.len(), run.folder());
                figures.notes.push(format!("{left} more: ginlab report {place} draws them"));
            }
        }
        figures
    }

    fn document(&self, sections: &[Section], shown: &[PageChart]) -> Markup {
        let main = html! {
            (found::section(self, sections, shown))
            @if let Some((comparison, a, b)) = self.comparison {
                (tables::comparison(comparison, a, b))
            }
            @for section in sections { (self::section(section, shown.is_empty(), shown.is_empty())) }
            (words(self.catalog))
        };
        frame(self.title, html! { (summary(self.runs)) }, contents(sections, self.comparison.is_some()), main)
    }

    /// Returns the page with the findings and one chart of each experiment. It links to the other pages.
    fn overview(&self, sections: &[Section], newest: Newest) -> Markup {
        let main = html! {
            (found::section(self, sections, &[]))
            @for section in sections {
                section id=(section.experiment) {
                    h2 { (section.experiment) }
                    @if !section.about.question.is_empty() { p { (section.about.question) "." } }
                    @if let Some(figure) = section.telling() { div.figures { (picture(figure)) } }
                    p { a href=(newest.part(section)) {
                        "All charts, facts and rows of " (files(section.runs.len()))
                    } }
                }
            }
            (words(self.catalog))
        };
        let lead = html! { (summary(self.runs)) " Files whose rows were all measured again later are left out." };
        frame(self.title, lead, contents(sections, false), main)
    }

    /// Returns the page of each experiment.
    fn parts(&self, sections: &[Section], newest: Newest) -> Vec<(String, String)> {
        let one = |section: &Section| {
            let back = html! { nav { ul { li { a href={ (newest.stem) ".html" } { (self.title) } } } } };
            let lead = html! { (files(section.runs.len())) ", the newest first." };
            let page = frame(&section.experiment, lead, back, self::section(section, true, false));
            (newest.part(section), page.into_string())
        };
        sections.iter().map(one).collect()
    }
}

impl Newest<'_> {
    /// Returns the file name of an experiment's page.
    fn part(&self, section: &Section) -> String {
        format!("{}-{}.html", self.stem, section.experiment)
    }
}

/// Returns an HTML document.
fn frame(title: &str, lead: Markup, navigation: Markup, main: Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="generator" content=(concat!("ginlab ", env!("CARGO_PKG_VERSION")));
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { (title) }
                    p.lead { (lead) }
                }
                (navigation)
                main { (main) }
            }
        }
    }
}

/// Returns the number of rows and files, and their dates.
fn summary(runs: &[Run]) -> String {
    let rows: usize = runs.iter().map(|run| run.records.rows().len()).sum();
    let mut days: Vec<String> =
        runs.iter().filter_map(|run| Some(run.fact(Key::Date)?.get(..10)?.to_owned())).collect();
    days.sort();
    let when = match (days.first(), days.last()) {
        (Some(first), Some(last)) if first == last => format!(", of {first}"),
        (Some(first), Some(last)) => format!(", of {first} to {last}"),
        _ => String::new(),
    };
    format!("{rows} rows of {}{when}.", files(runs.len()))
}

fn files(count: usize) -> String {
    if count == 1 { "1 file".into() } else { format!("{count} files") }
}

fn contents(sections: &[Section], compared: bool) -> Markup {
    html! {
        nav aria-label="Contents" {
            ul {
                li { a href="#found" { "found" } }
                @if compared { li { a href="#comparison" { "comparison" } } }
                @for section in sections {
                    li { a href={ "#" (section.experiment) } { (section.experiment) } " (" (section.runs.len()) ")" }
                }
                li { a href="#words" { "how to read it" } }
            }
        }
    }
}

/// Returns the section of an experiment, which is folded if the most informative charts are at the start of the page.
/// The runs of each directory are folded unless `flat`.
fn section(section: &Section, open: bool, flat: bool) -> Markup {
    html! {
        section id=(section.experiment) {
            h2 { (section.experiment) }
            @if !section.about.question.is_empty() { p { (section.about.question) "." } }
            details open[open] {
                summary {
                    (section.runs.len()) @if section.runs.len() == 1 { " run" } @else { " runs" } ": charts, facts, \
                                                                                                   rows"
                }
                (drawn(&section.several))
                @let folders: Vec<_> = section.runs.chunk_by(|(one, _), (two, _)| one.folder() == two.folder()).collect();
                @for runs in &folders {
                    @if folders.len() == 1 || flat {
                        @for (run, figures) in *runs { (article(run, figures)) }
                    } @else {
                        (folder(runs))
                    }
                }
            }
        }
    }
}

/// Returns the runs of a directory, folded.
fn folder(runs: &[(&Run, RunCharts)]) -> Markup {
    let place = runs.first().map_or("", |(run, _)| run.folder());
    let ways = each_once(runs.iter().flat_map(|(run, _)| run.unreal()));
    html! {
        details {
            summary {
                (place) ": " (files(runs.len()))
                @for way in ways { " " span.unreal { (way) } }
            }
            @for (run, figures) in runs { (article(run, figures)) }
        }
    }
}

fn article(run: &Run, figures: &RunCharts) -> Markup {
    html! {
        article {
            h3 { (run.name) @for way in run.unreal() { " " span.unreal { (way) } } }
            (facts(run))
            (drawn(figures))
            (tables::rows(run))
        }
    }
}

/// Returns the header of a run: the most important keys visible, the others folded.
fn facts(run: &Run) -> Markup {
    const FIRST: [Key; 6] = [Key::Date, Key::Hostname, Key::Gpu, Key::Provider, Key::Commit, Key::Memory];
    let shown: Vec<(&str, String)> = FIRST.into_iter().filter_map(|key| Some((key.name(), run.fact(key)?))).collect();
    let rest: Vec<(&str, String)> =
        run.header().into_iter().filter(|(key, _)| !FIRST.iter().any(|first| first.name() == *key)).collect();
    let list = |facts: &[(&str, String)]| {
        html! { dl { @for (key, value) in facts { div { dt { (key) } dd { (value) } } } } }
    };
    html! {
        @if run.header().is_empty() {
            p.aside { "This file has no header: machine, versions and command are unknown." }
        } @else {
            (list(&shown))
            details {
                summary { "command, versions, notes" }
                (list(&rest))
                @for note in run.notes() { p.aside { (note) } }
            }
        }
    }
}

fn drawn(figures: &RunCharts) -> Markup {
    html! {
        @let (first, more) = figures.drawn.split_at(figures.drawn.len().min(AT_ONCE));
        @if !first.is_empty() { div.figures { @for figure in first { (picture(figure)) } } }
        @if !more.is_empty() {
            details {
                summary { (more.len()) @if more.len() == 1 { " more chart" } @else { " more charts" } }
                div.figures { @for figure in more { (picture(figure)) } }
            }
        }
        @match figures.notes.len() {
            0 => {}
            1 | 2 => { @for note in &figures.notes { p.aside { (note) } } }
            many => {
                details {
                    summary { (many) " remarks on the charts" }
                    @for note in &figures.notes { p.aside { (note) } }
                }
            }
        }
    }
}

fn picture(figure: &PageChart) -> Markup {
    html! {
        figure {
            // Wide charts scroll within their own box, which the keyboard can focus.
            div.box tabindex="0" role="group" aria-label=(figure.chart.title) { (PreEscaped(&figure.svg)) }
            // The chart contains its title. The notice is repeated here so that readers do not miss it.
            @if let Some(notice) = &figure.chart.notice { figcaption { strong.unreal { (notice) } } }
        }
    }
}

fn words(catalog: Catalog) -> Markup {
    html! {
        section #words {
            h2 { "How to read it" }
            ul {
                li { "Times are medians over repeats; whiskers extend from the smallest time to the 99th percentile. \
                      Those of bandwidth and "
                    "rate follow from the same times." }
                li { "GB/s is 10" sup { "9" } " bytes per second. Sizes are powers of two: 4K is 4096 bytes." }
                li { "A row whose device is " code { "emulated" } " or whose fabric begins with " code { "model:" }
                    " is not a measurement of that hardware. Charts and tables mark such rows." }
                li { "Rows that are not " code { "ok" } " are in the tables, but not in the charts." }
                li { "Rows are identified by: " (catalog.chosen().join(", ")) "." }
            }
            details {
                summary { "Columns" }
                div.box tabindex="0" role="group" aria-label="columns" {
                    table {
                        thead { tr { @for title in ["column", "unit", "", "meaning", "of"] { th scope="col" { (title) } } } }
                        tbody { @for (column, experiments) in catalog.columns() { tr {
                            td { code { (column.name) } }
                            td { (column.unit) }
                            td { @if column.role == ColumnRole::Measured { "measured" } @else { "chosen" } }
                            td { (column.meaning) }
                            td { @if experiments.is_empty() { "all" } @else { (experiments.join(", ")) } }
                        } } }
                    }
                }
            }
        }
    }
}
