//! The beginning of a page: the machine, the headline figures that experiments declare, and the pictures that tell most.

use maud::{Markup, html};

use super::{Section, picture};
use crate::chart::{Record, few, label};
use crate::figures::Figure;
use crate::run::Run;
use crate::{Best, Catalog, Headline, Key, each_once};

/// Pictures at the beginning.
pub const SHOWN: usize = 8;
/// Columns that a headline names beside its own.
const NAMED: usize = 6;

/// Takes the most telling pictures out of the sections: of each experiment its first kind, then of each its second. Pictures of
/// real hardware go before others, those with more points before those with fewer.
pub fn most_telling(sections: &mut [Section]) -> Vec<Figure> {
    let mut shown = Vec::new();
    for round in 0..SHOWN {
        for section in sections.iter_mut() {
            let lists: Vec<&mut Vec<Figure>> = section.lists().collect();
            // What stays below is still to be seen there.
            if shown.len() == SHOWN || lists.iter().map(|list| list.len()).sum::<usize>() < 2 {
                continue;
            }
            let rank = |figure: &Figure| {
                let points: usize = figure.chart.series.iter().map(|series| series.points.len()).sum();
                (figure.chart.notice.is_some(), usize::MAX - points)
            };
            let of_round = |figure: &Figure| figure.place == (round, 0);
            let best = lists
                .into_iter()
                .filter_map(|list| {
                    let place = (0..list.len()).filter(|at| of_round(&list[*at])).min_by_key(|at| rank(&list[*at]))?;
                    Some((rank(&list[place]), place, list))
                })
                .min_by_key(|(rank, ..)| *rank);
            if let Some((_, place, list)) = best {
                shown.push(list.remove(place));
            }
        }
    }
    shown
}

/// The section.
pub fn section(catalog: Catalog, runs: &[Run], sections: &[Section], shown: &[Figure]) -> Markup {
    let machine: Vec<(&str, String)> =
        [Key::Hostname, Key::Cpu, Key::Gpu, Key::Driver, Key::Libfabric, Key::Provider, Key::Commit]
            .into_iter()
            .map(|key| (key.name(), values(runs, key)))
            .filter(|(_, text)| !text.is_empty())
            .collect();
    let found: Vec<_> = sections
        .iter()
        .flat_map(|section| section.about.headlines.iter().filter_map(|headline| best(catalog, section, headline)))
        .collect();
    html! {
        section #found {
            h2 { "What was found" }
            dl { @for (key, value) in &machine { div { dt { (key) } dd { (value) } } } }
            @if !found.is_empty() {
                div.box tabindex="0" role="group" aria-label="headline figures" {
                    table {
                        thead { tr { @for title in ["", "figure", "measured as", "file"] { th scope="col" { (title) } } } }
                        tbody { @for found in &found {
                            tr.unreal[found.unreal] {
                                td { (found.what) @if found.unreal { " " strong.unreal { "emulated or modelled" } } }
                                td.number { strong { (found.figure) } }
                                td { (found.row) }
                                td { (found.file) }
                            }
                        } }
                    }
                }
            }
            @if !shown.is_empty() { div.figures { @for figure in shown { (picture(figure)) } } }
        }
    }
}

/// The values of a fact over all runs.
fn values(runs: &[Run], key: Key) -> String {
    few(&each_once(runs.iter().filter_map(|run| run.fact(key))))
}

/// A headline with its figure.
struct Found {
    what: &'static str,
    figure: String,
    row: String,
    file: String,
    unreal: bool,
}

/// The best row of a headline. What was emulated or modelled counts only where nothing else is there.
fn best(catalog: Catalog, section: &Section, headline: &Headline) -> Option<Found> {
    let rows = section.runs.iter().flat_map(|(run, _)| run.records.rows().iter().map(move |row| (*run, row)));
    let field = |(run, row): (&Run, &Record), column: &str| run.records.field(row, column).to_owned();
    // Where nothing is moved there is no bandwidth.
    let moves = |fabric: &str| fabric != "null" || !headline.column.starts_with("bandwidth");
    let counts = |(run, row): &(&Run, &Record)| {
        let records = &run.records;
        matches!(records.field(row, "status"), "" | "ok")
            && records.field(row, "suspect").is_empty()
            && moves(records.field(row, "fabric"))
            && headline.only.iter().all(|(column, value)| records.field(row, column) == *value)
    };
    let candidates = rows.filter(counts).filter_map(|(run, row)| {
        Some((run.records.unreal(row).is_some(), run.records.number(row, headline.column)?, run, row))
    });
    let key = |value: f64| if headline.best == Best::Least { value } else { -value };
    let (unreal, value, run, row) =
        candidates.min_by(|one, two| one.0.cmp(&two.0).then(key(one.1).total_cmp(&key(two.1))))?;
    let columns = catalog.columns();
    let unit = columns.iter().find(|(column, _)| column.name == headline.column).map_or("", |(column, _)| column.unit);
    let said = |name: &str| name == "experiment" || headline.only.iter().any(|(column, _)| *column == name);
    let named = catalog.chosen().into_iter().filter(|name| !said(name));
    let named = named.map(|name| (name, field((run, row), name))).filter(|(_, value)| !value.is_empty());
    let text = |(name, value): (&str, String)| match value.parse::<f64>() {
        Ok(bytes) if label::is_binary(name) => format!("{} {}", name.trim_end_matches("_bytes"), label::binary(bytes)),
        Ok(_) => format!("{name} {value}"),
        Err(_) => value,
    };
    Some(Found {
        what: headline.what,
        figure: format!("{} {unit}", label::plain((value * 1e4).round() / 1e4)),
        row: named.take(NAMED).map(text).collect::<Vec<_>>().join(", "),
        file: run.name.clone(),
        unreal,
    })
}
