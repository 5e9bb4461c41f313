//! One HTML page of runs: their headers, pictures and rows, and the comparison with another run.
//!
//! The page needs nothing but itself: style and pictures are in it, there is no script. The same files give the same bytes.
//! maud escapes every text; the pictures escape their own.

mod tables;

use std::collections::BTreeSet;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::compare::Comparison;
use super::figures::{self, Figure, Figures};
use super::run::Run;
use super::{Catalog, Key};

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
}

/// A page, and its pictures once more.
#[derive(Clone, Debug)]
pub struct Built {
    /// The document.
    pub html: String,
    /// The pictures. No two have one name.
    pub figures: Vec<Figure>,
}

/// What is said of an experiment above its runs.
const QUESTIONS: [(&str, &str); 9] = [
    (
        "proxy",
        "GPU-initiated puts through ring and CPU proxy: quiet against nbi, beside CPU-initiated writes of the same buffers.",
    ),
    (
        "queue",
        "The queue from GPU to CPU alone: the ticket ring, the ring with a release store per element, Vyukov's queue.",
    ),
    ("ipc", "Writes between GPUs of one host over NVLink: which grid is enough, beside the copy engine."),
    ("write", "CPU-initiated writes through the fabric layer, beside the plainest loop of fi_write."),
    ("sendrecv", "Two-sided messages through the fabric layer."),
    ("all2all", "CPU-initiated all-to-all: every rank writes a block to every other one."),
    ("echo", "Sockets and the fabric on one thread."),
    ("stages", "Where the time of a put goes."),
    ("listings", "What commands have found that measure nothing."),
];

struct Section<'a> {
    experiment: String,
    runs: Vec<(&'a Run, Figures)>,
    several: Figures,
}

impl Page<'_> {
    /// Draws the pictures and writes the document.
    pub fn build(&self) -> Built {
        let mut sections = self.sections();
        let mut names = BTreeSet::new();
        let figures = sections.iter_mut().flat_map(|section| {
            let own = section.runs.iter_mut().flat_map(|(_, figures)| &mut figures.drawn);
            section.several.drawn.iter_mut().chain(own)
        });
        let mut all = Vec::new();
        for figure in figures {
            let first = figure.name.clone();
            let mut count = 1;
            while !names.insert(figure.name.clone()) {
                count += 1;
                figure.name = format!("{first}-{count}");
            }
            all.push(figure.clone());
        }
        Built { html: self.document(&sections).into_string(), figures: all }
    }

    /// The runs by experiment, in the order of `QUESTIONS`, others last.
    fn sections(&self) -> Vec<Section<'_>> {
        let mut experiments: Vec<String> = self.runs.iter().map(Run::experiment).collect();
        let place = |name: &String| QUESTIONS.iter().position(|(known, _)| known == name).unwrap_or(QUESTIONS.len());
        experiments.sort_by_key(|name| (place(name), name.clone()));
        experiments.dedup();
        let section = |experiment: String| {
            let runs: Vec<&Run> = self.runs.iter().filter(|run| run.experiment() == experiment).collect();
            let several = figures::of_several(&experiment, &runs, self.catalog);
            Section {
                experiment,
                runs: runs.into_iter().map(|run| (run, figures::of_run(run, self.catalog))).collect(),
                several,
            }
        };
        experiments.into_iter().map(section).collect()
    }

    fn document(&self, sections: &[Section]) -> Markup {
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
                        p.lead { (summary(self.runs)) }
                    }
                    (contents(sections, self.comparison.is_some()))
                    main {
                        @if let Some((comparison, a, b)) = self.comparison {
                            (tables::comparison(comparison, a, b))
                        }
                        @for section in sections { (self::section(section)) }
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
                @if compared { li { a href="#comparison" { "comparison" } } }
                @for section in sections {
                    li { a href={ "#" (section.experiment) } { (section.experiment) } " (" (section.runs.len()) ")" }
                }
                li { a href="#words" { "how to read it" } }
            }
        }
    }
}

fn section(section: &Section) -> Markup {
    let question = QUESTIONS.iter().find(|(name, _)| *name == section.experiment).map(|(_, question)| question);
    html! {
        section id=(section.experiment) {
            h2 { (section.experiment) }
            @if let Some(question) = question { p { (question) } }
            (drawn(&section.several))
            @for (run, figures) in &section.runs { (article(run, figures)) }
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
            div.box tabindex="0" role="group" aria-label=(figure.chart.title) { (PreEscaped(figure.chart.svg().unwrap_or_default())) }
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
        }
    }
}
