//! Start of a page: the headline figures, the machine, and the most informative charts.

use std::cmp::Reverse;

use maud::{Markup, html};

use super::{Page, Section, expected, picture};
use crate::chart::{FileRecord, few, label};
use crate::figures::PageChart;
use crate::run::Run;
use crate::{Best, BestValue, Catalog, Headline, Key, each_once};

/// Maximum number of charts at the start.
pub const SHOWN: usize = 8;
/// Maximum number of columns that a headline shows in addition to the column of its value.
const NAMED: usize = 6;

/// Moves the most informative charts out of the sections: one of the first kind from each experiment, then one of the
/// second kind, and so on. Charts of real hardware precede others. Charts of several series precede those of one, and
/// charts with more points precede those with fewer.
pub fn most_telling(sections: &mut [Section]) -> Vec<PageChart> {
    let mut shown = Vec::new();
    for round in 0..SHOWN {
        for section in sections.iter_mut() {
            let lists: Vec<&mut Vec<PageChart>> = section.lists().collect();
            // Keeps at least one chart in the section.
            if shown.len() == SHOWN || lists.iter().map(|list| list.len()).sum::<usize>() < 2 {
                continue;
            }
            let of_round = |figure: &PageChart| figure.place.0 == round;
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

/// Returns the rank of a chart, which is smallest for the most informative chart.
pub fn rank(figure: &PageChart) -> (bool, bool, Reverse<usize>) {
    let chart = &figure.chart;
    (chart.notice.is_some(), chart.series.len() < 2, Reverse(chart.points()))
}

/// Returns the first section. If findings are given, they replace the machine and the headlines that the experiments
/// declare.
pub fn section(page: &Page, sections: &[Section], shown: &[PageChart]) -> Markup {
    html! {
        section #found {
            h2 { "Findings" }
            @match page.newest {
                Some(newest) => (findings_table(page, newest.findings)),
                None => {
                    (machine(page.runs))
                    (expected::table(page.expected))
                    (bests_table(page.catalog, sections))
                }
            }
            @if !shown.is_empty() { div.figures { @for figure in shown { (picture(figure)) } } }
        }
    }
}

/// Returns facts about the machine of these runs.
fn machine(runs: &[Run]) -> Markup {
    let values = |key| few(&each_once(runs.iter().filter_map(|run| run.fact(key))));
    let facts: Vec<(&str, String)> =
        [Key::Hostname, Key::Instance, Key::Cpu, Key::Gpu, Key::Driver, Key::Libfabric, Key::Provider, Key::Commit]
            .into_iter()
            .map(|key| (key.name(), values(key)))
            .filter(|(_, text)| !text.is_empty())
            .collect();
    html! { dl { @for (key, value) in &facts { div { dt { (key) } dd { (value) } } } } }
}

/// The best row of a headline.
struct BestRow<'a> {
    unreal: Option<&'static str>,
    value: f64,
    run: &'a Run,
    row: &'a FileRecord,
}

impl BestRow<'_> {
    fn field(&self, column: &str) -> &str {
        self.run.records.field(self.row, column)
    }
}

/// Returns the best row among those with these values. Emulated and modelled rows count only if there are no others.
fn best<'a>(
    runs: impl Iterator<Item = &'a Run>,
    column: &str,
    which: Best,
    only: &[(&str, &str)],
) -> Option<BestRow<'a>> {
    // The null rail moves no bytes, so its bandwidth is meaningless.
    let moves = |fabric: &str| fabric != "null" || !column.starts_with("bandwidth");
    let found = |run: &'a Run, row: &'a FileRecord| {
        let records = &run.records;
        let counts = matches!(records.field(row, "status"), "" | "ok")
            && records.field(row, "suspect").is_empty()
            && moves(records.field(row, "fabric"))
            && only.iter().all(|(column, value)| records.field(row, column) == *value);
        let value = records.number(row, column).filter(|_| counts)?;
        Some(BestRow { unreal: records.unreal(row), value, run, row })
    };
    let key = |value: f64| if which == Best::Least { value } else { -value };
    runs.flat_map(|run| run.records.rows().iter().filter_map(move |row| found(run, row))).min_by(|one, two| {
        (one.unreal.is_some().cmp(&two.unreal.is_some())).then(key(one.value).total_cmp(&key(two.value)))
    })
}

fn unit(catalog: Catalog, column: &str) -> &'static str {
    catalog.columns().iter().find(|(known, _)| known.name == column).map_or("", |(column, _)| column.unit)
}

/// Returns the table of the best figures of each experiment.
fn bests_table(catalog: Catalog, sections: &[Section]) -> Markup {
    let found: Vec<(&Headline, BestRow)> = sections
        .iter()
        .flat_map(|section| section.about.headlines.iter().map(move |headline| (headline, section)))
        .filter_map(|(headline, section)| {
            let runs = section.runs.iter().map(|(run, _)| *run);
            Some((headline, best(runs, headline.column, headline.best, headline.only)?))
        })
        .collect();
    if found.is_empty() {
        return html! {};
    }
    let measured_as = |headline: &Headline, found: &BestRow| {
        let said = |name: &str| name == "experiment" || headline.only.iter().any(|(column, _)| *column == name);
        let named = catalog.chosen().into_iter().filter(|name| !said(name));
        let named = named.map(|name| (name, found.field(name))).filter(|(_, value)| !value.is_empty());
        let text = |(name, value): (&str, &str)| match value.parse::<f64>() {
            Ok(bytes) if label::is_binary(name) => {
                format!("{} {}", name.trim_end_matches("_bytes"), label::binary(bytes))
            }
            Ok(_) => format!("{name} {value}"),
            Err(_) => value.to_owned(),
        };
        named.take(NAMED).map(text).collect::<Vec<_>>().join(", ")
    };
    html! {
        div.box tabindex="0" role="group" aria-label="headline figures" {
            table {
                thead { tr { @for title in ["", "figure", "measured as", "file"] { th scope="col" { (title) } } } }
                tbody { @for (headline, found) in &found {
                    tr.unreal[found.unreal.is_some()] {
                        td { (headline.what) @if found.unreal.is_some() { " " strong.unreal { "emulated or modelled" } } }
                        td.number { strong { (label::plain((found.value * 1e4).round() / 1e4)) " " (unit(catalog, headline.column)) } }
                        td { (measured_as(headline, found)) }
                        td { (found.run.name) }
                    }
                } }
            }
        }
    }
}

/// Returns the table of findings with their references. A finding without a measurement also has a row.
fn findings_table(page: &Page, findings: &[BestValue]) -> Markup {
    let figure = |finding: &BestValue, found: &Option<BestRow>| match found {
        Some(found) => {
            html! { td.number { strong { (label::short(found.value)) " " (unit(page.catalog, finding.column)) } } }
        }
        None => html! { td.aside { "not measured" } },
    };
    html! {
        div.box tabindex="0" role="group" aria-label="headline figures" {
            table.findings {
                thead { tr {
                    @for title in ["", "figure", "beside", "its figure", "ratio", "measured on", "by"] { th scope="col" { (title) } }
                } }
                tbody { @for finding in findings {
                    @let (found, beside) = newest(page.runs, finding);
                    @let unreal = found.as_ref().and_then(|found| found.unreal);
                    tr.unreal[unreal.is_some()] {
                        td { (finding.what) @if let Some(way) = unreal { " " strong.unreal { (way) } } }
                        (figure(finding, &found))
                        td { (finding.beside) }
                        (figure(finding, &beside))
                        (ratio(finding, &found, &beside))
                        td { @if let Some(found) = &found { (place(found)) } }
                        td { @if let Some(command) = found.and_then(|found| found.run.fact(Key::Command)) { code { (shortened(&command)) } } }
                    }
                } }
            }
        }
        p.aside { "Both figures of a row are from one file, the newest that has both. Ratio: the first over the \
                   second; for times, less is better, for "
            "rates, more. A file's whole command is shown with its rows." }
    }
}

/// Returns the figures of the newest file that has both values, or of the newest that has the first one. Measured
/// figures take precedence over modelled ones.
fn newest<'a>(runs: &'a [Run], finding: &BestValue) -> (Option<BestRow<'a>>, Option<BestRow<'a>>) {
    let of = runs.iter().filter(|run| run.experiment() == finding.experiment);
    let both = of.filter_map(|run| {
        let of = |rows: &str| {
            let only: Vec<(&str, &str)> =
                rows.split_whitespace().filter_map(|condition| condition.split_once('=')).collect();
            best(std::iter::once(run), finding.column, finding.best, &only)
        };
        Some((of(finding.rows)?, of(finding.beside_rows)))
    });
    let (found, beside) = both.min_by_key(|(found, beside)| (found.unreal.is_some(), beside.is_none())).unzip();
    (found, beside.flatten())
}

/// Returns the cell with the ratio of the two figures.
fn ratio(finding: &BestValue, found: &Option<BestRow>, beside: &Option<BestRow>) -> Markup {
    let ratio = found.as_ref().zip(beside.as_ref()).map(|(found, beside)| found.value / beside.value);
    // Ratios that are shown as 1.00 are not marked as better.
    let better = ratio.is_some_and(|ratio| if finding.best == Best::Least { ratio < 0.995 } else { ratio >= 1.005 });
    html! { td.number.faster[better] { @if let Some(ratio) = ratio { (format!("{ratio:.2}")) } } }
}

/// Returns device, fabric and date of a figure.
fn place(found: &BestRow) -> Markup {
    let device = found.field("device").trim_start_matches("gpu:").trim_start_matches("NVIDIA ");
    let date = found.run.fact(Key::Date).unwrap_or_default();
    html! { (device) ", " (found.field("fabric")) @if let Some(day) = date.get(..10) { ", " span { (day) } } }
}

/// Shortens a command: without directories, output options, and quoted arguments.
fn shortened(command: &str) -> String {
    let parts: Vec<&str> = command.split('\'').collect();
    let unquoted = parts.iter().enumerate().map(|(at, part)| if at % 2 == 0 { *part } else { "..." });
    let text = unquoted.collect::<Vec<_>>().join("'");
    let mut words = text.split(' ').skip(1);
    let mut kept = vec!["ginlab"];
    while let Some(word) = words.next() {
        match word {
            "--csv" | "--json" | "--trace" => drop(words.next()),
            _ if word.starts_with('-') => kept.push(word),
            _ => kept.push(word.rsplit('/').next().unwrap_or(word)),
        }
    }
    kept.join(" ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;

    use super::super::Newest;
    use super::*;

    #[test]
    fn commands_are_shortened() {
        let command = "/tmp/x/before queue -p /a/lib.so --csv /tmp/a.csv --nvshmem '. /x.sh; mpirun y >z' -n 5 --json /tmp/a.json";
        assert_eq!(shortened(command), "ginlab queue -p lib.so --nvshmem '...' -n 5");
    }

    /// Creates a run from rows of puts.
    fn run(name: &str, rows: &str) -> Run {
        let text = format!("schema,experiment,case,device,fabric,time_us_p50,status\n{rows}");
        let header = serde_json::json!({ "command": format!("ginlab {name}"), "date": "2026-11-22T01:02:03Z" });
        Run::of_text(text.as_bytes(), Some(header), Path::new(name), name).unwrap()
    }

    /// Returns the cells of the table's only row.
    fn cells(runs: &[Run]) -> Vec<String> {
        let finding = BestValue::least("proxy", "time_us_p50", "a put").of("case=put").beside("a peer", "case=peer");
        let findings = [finding];
        let page = Page {
            title: "t",
            runs,
            comparison: None,
            expected: &[],
            catalog: Catalog::default(),
            newest: Some(Newest { findings: &findings, stem: "t" }),
        };
        let html = page.build().html;
        let table = html.split_once("<tbody>").unwrap().1.split_once("</tbody>").unwrap().0;
        let text =
            |cell: &str| cell.split('<').map(|part| part.split_once('>').map_or(part, |(_, text)| text)).collect();
        table.split("<td").skip(1).map(|cell| text(&format!("<td{cell}"))).collect()
    }

    #[test]
    fn headline_shows_reference_and_missing_figures() {
        let alone = run("alone", "1,proxy,put,gpu:H200,tcp,3,ok\n");
        let both = run("both", "1,proxy,put,gpu:H200,tcp,2,ok\n1,proxy,peer,gpu:H200,tcp,4,ok\n");
        let modelled = run("model", "1,proxy,put,gpu:H200,model:p5,1,ok\n1,proxy,peer,gpu:H200,model:p5,4,ok\n");
        let failed = run("failed", "1,proxy,put,gpu:H200,tcp,,failed: x\n");
        let other = run("other", "1,queue,put,gpu:H200,tcp,1,ok\n");
        let shown = |runs: &[&Run]| cells(&runs.iter().map(|run| (*run).clone()).collect::<Vec<_>>()).join(" | ");
        let when = "2026-11-22";
        assert_eq!(
            shown(&[&failed, &alone, &both]),
            format!("a put | 2.00 us | a peer | 4.00 us | 0.50 | H200, tcp, {when} | ginlab both")
        );
        assert_eq!(
            shown(&[&alone]),
            format!("a put | 3.00 us | a peer | not measured |  | H200, tcp, {when} | ginlab alone")
        );
        assert_eq!(
            shown(&[&modelled]),
            format!("a put modelled | 1.00 us | a peer | 4.00 us | 0.25 | H200, model:p5, {when} | ginlab model")
        );
        assert!(shown(&[&modelled, &alone]).starts_with("a put | 3.00 us"), "what was measured goes first");
        assert_eq!(shown(&[&failed, &other]), "a put | not measured | a peer | not measured |  |  | ");
    }
}
