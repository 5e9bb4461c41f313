//! One HTML page of runs: their headers, pictures and rows, and the comparison with another run.
//!
//! The page needs nothing but itself: style and pictures are in it, there is no script. The same files give the same bytes.
//! maud escapes every text; the pictures escape their own.

mod found;
mod tables;

use std::cmp::Reverse;
use std::collections::BTreeSet;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::chart::Palette;
use super::compare::Comparison;
use super::each_once;
use super::figures::{self, Figure, Figures};
use super::run::Run;
use super::{About, Catalog, Finding, Key, Role};

/// Pictures of a run that are in sight.
const AT_ONCE: usize = 4;

const STYLE: &str = include_str!("page.css");

/// What goes into a page.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    /// The heading.
    pub title: &'a str,
    /// The runs.
    pub runs: &'a [Run],
    /// The comparison, with the names of both sides.
    pub comparison: Option<(&'a Comparison, &'a str, &'a str)>,
    /// What the experiments say of themselves.
    pub catalog: Catalog<'a>,
    /// Where the runs are the newest of many: what a reader wants to know of them. Of each file the page then has one picture of a
    /// kind.
    pub newest: Option<&'a [Finding]>,
}

/// A page, and its pictures once more.
#[derive(Clone, Debug)]
pub struct Built {
    /// The document.
    pub html: String,
    /// The pictures. No two have one name.
    pub figures: Vec<Figure>,
}

struct Section<'a> {
    experiment: String,
    about: &'a About,
    runs: Vec<(&'a Run, Figures)>,
    several: Figures,
}

impl Section<'_> {
    /// The pictures of several runs together, and those of each run.
    fn lists(&mut self) -> impl Iterator<Item = &mut Vec<Figure>> {
        std::iter::once(&mut self.several)
            .chain(self.runs.iter_mut().map(|(_, figures)| figures))
            .map(|figures| &mut figures.drawn)
    }
}

impl Page<'_> {
    /// Draws the pictures and writes the document.
    pub fn build(&self) -> Built {
        let mut sections = self.sections();
        let few = sections.iter_mut().flat_map(Section::lists).map(|list| list.len()).sum::<usize>() <= found::SHOWN;
        let mut shown = if few { Vec::new() } else { found::most_telling(&mut sections) };
        let below = sections.iter_mut().flat_map(Section::lists).flatten();
        let mut all: Vec<&mut Figure> = shown.iter_mut().chain(below).collect();
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
        Built { html: self.document(&sections, &shown).into_string(), figures }
    }

    /// The runs by experiment, in the order of the catalog, others last.
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

    fn figures(&self, run: &Run) -> Figures {
        let mut figures = figures::of_run(run, self.catalog);
        if self.newest.is_some() {
            let all = figures.drawn.len();
            // The fullest of each kind.
            figures.drawn.sort_by_key(|figure| (figure.place.0, Reverse(figure.chart.points())));
            figures.drawn.dedup_by_key(|figure| figure.place.0);
            if figures.drawn.len() < all {
                let (left, place) = (all - figures.drawn.len(), run.folder());
                figures.notes.push(format!("{left} more: ginlab report {place} draws them"));
            }
        }
        figures
    }

    fn document(&self, sections: &[Section], shown: &[Figure]) -> Markup {
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    meta name="generator" content=(concat!("ginlab ", env!("CARGO_PKG_VERSION")));
                    title { (self.title) }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    header {
                        h1 { (self.title) }
                        p.lead { (summary(self.runs)) @if self.newest.is_some() { " Files each of whose rows was measured again later are left out." } }
                    }
                    (contents(sections, self.comparison.is_some()))
                    main {
                        (found::section(self, sections, shown))
                        @if let Some((comparison, a, b)) = self.comparison {
                            (tables::comparison(comparison, a, b))
                        }
                        @for section in sections { (self::section(section, shown.is_empty())) }
                        (words(self.catalog))
                    }
                }
            }
        }
    }
}

/// How much there is, and from when.
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
    let files = if runs.len() == 1 { "file" } else { "files" };
    format!("{rows} rows of {} {files}{when}.", runs.len())
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

/// Folded where the pictures that tell most stand above.
fn section(section: &Section, open: bool) -> Markup {
    html! {
        section id=(section.experiment) {
            h2 { (section.experiment) }
            @if !section.about.question.is_empty() { p { (section.about.question) "." } }
            details open[open] {
                summary {
                    (section.runs.len()) @if section.runs.len() == 1 { " run" } @else { " runs" } ": pictures, facts, rows"
                }
                (drawn(&section.several))
                @let folders: Vec<_> = section.runs.chunk_by(|(one, _), (two, _)| one.folder() == two.folder()).collect();
                @for runs in &folders {
                    @if folders.len() == 1 || open {
                        @for (run, figures) in *runs { (article(run, figures)) }
                    } @else {
                        (folder(runs))
                    }
                }
            }
        }
    }
}

/// The runs of a folder, one step away.
fn folder(runs: &[(&Run, Figures)]) -> Markup {
    let place = runs.first().map_or("", |(run, _)| run.folder());
    let ways = each_once(runs.iter().flat_map(|(run, _)| run.unreal()));
    html! {
        details {
            summary {
                (place) ": " (runs.len()) @if runs.len() == 1 { " file" } @else { " files" }
                @for way in ways { " " span.unreal { (way) } }
            }
            @for (run, figures) in runs { (article(run, figures)) }
        }
    }
}

fn article(run: &Run, figures: &Figures) -> Markup {
    html! {
        article {
            h3 { (run.name) @for way in run.unreal() { " " span.unreal { (way) } } }
            (facts(run))
            (drawn(figures))
            (tables::rows(run))
        }
    }
}

/// The header of a run: what a reader looks for first in sight, the rest one step away.
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
            p.aside { "No header lies beside this file: machine, versions and command are not known." }
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

fn drawn(figures: &Figures) -> Markup {
    html! {
        @let (first, more) = figures.drawn.split_at(figures.drawn.len().min(AT_ONCE));
        @if !first.is_empty() { div.figures { @for figure in first { (picture(figure)) } } }
        @if !more.is_empty() {
            details {
                summary { (more.len()) @if more.len() == 1 { " more picture" } @else { " more pictures" } }
                div.figures { @for figure in more { (picture(figure)) } }
            }
        }
        @match figures.notes.len() {
            0 => {}
            1 | 2 => { @for note in &figures.notes { p.aside { (note) } } }
            many => {
                details {
                    summary { (many) " remarks on the pictures" }
                    @for note in &figures.notes { p.aside { (note) } }
                }
            }
        }
    }
}

fn picture(figure: &Figure) -> Markup {
    html! {
        figure {
            // Wide pictures move within their own box; the keyboard reaches it.
            div.box tabindex="0" role="group" aria-label=(figure.chart.title) { (PreEscaped(&figure.svg)) }
            // The title is in the picture; what must not be missed is said once more.
            @if let Some(notice) = &figure.chart.notice { figcaption { strong.unreal { (notice) } } }
        }
    }
}

fn words(catalog: Catalog) -> Markup {
    html! {
        section #words {
            h2 { "How to read it" }
            ul {
                li { "Times are medians over repeats; whiskers go from the smallest time to the 99th percentile. Those of bandwidth and "
                    "rate follow from the same times." }
                li { "GB/s is 10" sup { "9" } " bytes per second. Sizes are powers of two: 4K is 4096 bytes." }
                li { "A row whose device is " code { "emulated" } " or whose fabric begins with " code { "model:" }
                    " is no measurement of that hardware. Pictures and tables say so." }
                li { "Rows that are not " code { "ok" } " are in the tables and not in the pictures." }
                li { "What tells rows apart: " (catalog.chosen().join(", ")) "." }
            }
            details {
                summary { "What the columns say" }
                div.box tabindex="0" role="group" aria-label="columns" {
                    table {
                        thead { tr { @for title in ["column", "unit", "", "says", "of"] { th scope="col" { (title) } } } }
                        tbody { @for (column, experiments) in catalog.columns() { tr {
                            td { code { (column.name) } }
                            td { (column.unit) }
                            td { @if column.role == Role::Measured { "measured" } @else { "chosen" } }
                            td { (column.meaning) }
                            td { @if experiments.is_empty() { "all" } @else { (experiments.join(", ")) } }
                        } } }
                    }
                }
            }
        }
    }
}
