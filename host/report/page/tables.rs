//! Tables of a page.

use maud::{Markup, html};

use crate::chart::{FileKind, label};
use crate::compare::{Compared, Comparison, Verdict};
use crate::run::Run;

/// Returns the table of a run's rows with the columns that are not empty. Values that all rows share are listed once
/// above it.
pub fn rows(run: &Run) -> Markup {
    let records = &run.records;
    let derived = |name: &str| name.ends_with("_low") || name.ends_with("_high");
    let columns: Vec<_> = records
        .columns()
        .filter(|name| !matches!(*name, "file" | "schema") && !derived(name))
        .filter(|name| records.rows().iter().any(|row| !records.field(row, name).is_empty()))
        .collect();
    let count = records.rows().len();
    let (same, columns): (Vec<_>, Vec<_>) =
        columns.into_iter().partition(|name| count > 1 && run.in_all(name).is_some());
    let same: Vec<String> = same
        .into_iter()
        .map(|name| format!("{} {}", label::column(name), run.in_all(name).unwrap_or_default()))
        .collect();
    let unreal = records.rows().iter().any(|row| records.unreal(row).is_some());
    html! {
        details {
            summary {
                (count) @if run.kind == FileKind::Listing { " entries" } @else if count == 1 { " row" } @else { " rows" }
            }
            @if !same.is_empty() { p.aside { "In all rows: " (same.join(", ")) "." } }
            div.box tabindex="0" role="group" aria-label={ "rows of " (run.name) } {
                table.rows {
                    thead { tr {
                        @if unreal { th scope="col" { "real?" } }
                        @for name in &columns { th scope="col" title=(name) { (label::column(name)) } }
                    } }
                    tbody {
                        @for row in records.rows() {
                            tr.unreal[records.unreal(row).is_some()] {
                                @if unreal { td.text { @if let Some(way) = records.unreal(row) { strong.unreal { (way) } } } }
                                // Most fields are numbers, so texts are marked.
                                @for name in &columns {
                                    @let field = records.field(row, name);
                                    td.text[field.parse::<f64>().is_err()] { (field) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn cell(text: &str) -> Markup {
    html! { td.number[text.parse::<f64>().is_ok()] { (text) } }
}

/// Returns the section with the comparison of two runs.
pub fn comparison(comparison: &Comparison, a: &str, b: &str) -> Markup {
    let counts: Vec<String> = comparison.counts().into_iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    html! {
        section #comparison {
            h2 { "Comparison" }
            p { "A: " code { (a) } ", B: " code { (b) } ". Ratios are B over A. " (comparison.rows.len()) " rows: " (counts.join(", ")) "." }
            p.aside { "A difference is beyond noise if the times of the two rows do not overlap (smallest time to 99th \
                       percentile). "
                "Medians also change with the machine and the time of day." }
            @if !comparison.headers_differ.is_empty() {
                div.box tabindex="0" role="group" aria-label="differences between the runs" {
                    table {
                        thead { tr { th scope="col" { "differs" } th scope="col" { "A" } th scope="col" { "B" } } }
                        tbody { @for (key, one, two) in &comparison.headers_differ {
                            tr { td { (key) } td { (one) } td { (two) } }
                        } }
                    }
                }
            }
            @for (side, files) in [("A", &comparison.files_only_in_a), ("B", &comparison.files_only_in_b)] {
                @if !files.is_empty() { p.aside { "Only in " (side) ": " (files.join(", ")) } }
            }
            @let common: Vec<String> = comparison
                .in_common().into_iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| format!("{name} {value}")).collect();
            @if !common.is_empty() { p.aside { "In all rows: " (common.join(", ")) "." } }
            @let columns = comparison.table();
            details open[comparison.rows.len() < 60] {
                summary { (comparison.rows.len()) " rows, B over A" }
                div.box tabindex="0" role="group" aria-label="comparison row by row" {
                    table {
                        thead { tr { @for (title, unit, _) in &columns { th scope="col" { (title) " " (unit) } } } }
                        tbody {
                            @for (index, row) in comparison.rows.iter().enumerate() {
                                tr.unreal[row.unreal.is_some()] {
                                    @let (verdict, others) = columns.split_last().map_or((None, &[][..]), |(last, rest)| (Some(last), rest));
                                    @for (_, _, cells) in others { (cell(&cells[index])) }
                                    @if let Some((_, _, cells)) = verdict { td class=(class(row)) { (cells[index]) } }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Returns the style class of a verdict, whose text is also shown.
fn class(row: &Compared) -> &'static str {
    match row.verdict {
        Verdict::Slower(_) | Verdict::Failed(_) => "slower",
        Verdict::Faster(_) => "faster",
        _ => "same",
    }
}
