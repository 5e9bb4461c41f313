//! Charts of a run, as declared by its experiment.
//!
//! A chart shows one figure over one column. The other columns in which rows differ distinguish its series. If that
//! results in too many series, there is one chart for each value of some of these columns.

use std::collections::BTreeSet;

use super::chart::{Chart, FileKind, FileRecord, Filter, Query, Records, label};
use super::run::Run;
use super::{Catalog, ChartStyle, Plot};

/// Maximum number of series of a chart, as long as columns remain by which it can be split.
const SERIES: usize = 9;
/// Maximum number of charts of one kind and run.
const FACETS: usize = 4;
/// Width and height of a chart in pixels.
const SIZE: (u32, u32) = (760, 430);

/// A chart of a page.
#[derive(Clone, Debug)]
pub struct PageChart {
    /// File name without extension.
    pub name: String,
    /// Chart that is drawn.
    pub chart: Chart,
    /// SVG document of the chart; empty until a page has assigned colours to its series.
    pub svg: String,
    /// Index among the charts that the experiment declares, and index among those of one kind. The most informative
    /// charts come first.
    pub place: (usize, usize),
}

/// Charts of a run, and notes on missing ones.
#[derive(Clone, Debug, Default)]
pub struct RunCharts {
    /// Charts that were drawn.
    pub drawn: Vec<PageChart>,
    /// Notes for people.
    pub notes: Vec<String>,
}

/// Returns the charts of one run.
pub fn of_run(run: &Run, catalog: Catalog) -> RunCharts {
    let mut figures = RunCharts::default();
    if run.kind == FileKind::Listing {
        return figures;
    }
    let (experiment, records) = (run.experiment(), &run.records);
    for plot in catalog.about(&experiment).plots {
        figures.draw_where_it_tells(&experiment, &run.name, records, plot, catalog);
    }
    let measured = |column: &str| count(records, column, Plot::TIME.y);
    if figures.drawn.is_empty() && run.kind == FileKind::Rows && records.rows().len() > 1 {
        // Draws the figure over the column with the most values.
        let most = catalog.chosen().into_iter().rev().max_by_key(|column| measured(column)).unwrap_or("case");
        let usual = if count(records, "case", Plot::BANDWIDTH.y) > 0 { Plot::BANDWIDTH } else { Plot::TIME };
        let title = usual.title.trim_end_matches(" by size");
        figures.draw(
            &experiment,
            &run.name,
            records,
            &Plot { title, shape: ChartStyle::Bars, ..usual },
            &[most],
            catalog,
        );
    }
    figures.drawn.sort_by_key(|figure| (figure.place.1, figure.place.0));
    figures
}

/// Returns the number of values of `column` in rows in which `having` is not empty.
fn count(records: &Records, column: &str, having: &str) -> usize {
    let rows = records.rows().iter().filter(|row| !records.field(row, having).is_empty());
    let values = rows.map(|row| records.field(row, column)).filter(|text| !text.is_empty());
    values.collect::<BTreeSet<_>>().len()
}

/// Returns charts that combine several runs of one directory: sweeps with one value per file, and files of one row
/// each.
pub fn of_several(experiment: &str, runs: &[&Run], catalog: Catalog) -> RunCharts {
    let mut figures = RunCharts::default();
    let mut folders: Vec<_> = runs.iter().map(|run| run.path.parent()).collect();
    folders.dedup();
    for folder in folders {
        let name = folder.and_then(|folder| folder.file_name()).unwrap_or_default().to_string_lossy();
        let inside = || runs.iter().filter(|run| run.path.parent() == folder);
        for plot in catalog.about(experiment).plots {
            let Some(across) = plot.across else { continue };
            let joined = Records::joined(inside().map(|run| &run.records));
            let joined = joined.only(|row| passes(plot, &joined, row));
            if inside().count() > 1 && count(&joined, across, plot.y) > 1 {
                figures.draw_where_it_tells(experiment, &format!("{name}-{across}"), &joined, plot, catalog);
            }
        }
        // Draws one chart of the runs that have a single row each.
        let lone: Vec<_> = inside().filter(|run| run.records.rows().len() == 1).collect();
        if lone.len() > 1 {
            let joined = Records::joined(lone.iter().map(|run| &run.records));
            let plot = Plot { title: "bandwidth, file by file", shape: ChartStyle::Bars, ..Plot::BANDWIDTH };
            figures.draw(experiment, &name, &joined, &plot, &["file"], catalog);
        }
    }
    figures
}

/// Returns whether a row has the values that a plot requires.
fn passes(plot: &Plot, records: &Records, row: &FileRecord) -> bool {
    plot.only.iter().all(|(column, values)| values.contains(&records.field(row, column)))
}

impl RunCharts {
    /// Draws a declared chart if the rows have enough values for it.
    fn draw_where_it_tells(&mut self, experiment: &str, of: &str, records: &Records, plot: &Plot, catalog: Catalog) {
        let records = records.only(|row| passes(plot, records, row));
        let least = if plot.shape == ChartStyle::Curve { 3 } else { 1 };
        let several = plot.several.is_none_or(|column| count(&records, column, plot.y) > 1);
        if several && count(&records, plot.x[0], plot.y) >= least {
            self.draw(experiment, of, &records, plot, plot.x, catalog);
        }
    }

    /// Draws one kind of chart over these columns, once or by facets.
    fn draw(&mut self, experiment: &str, of: &str, records: &Records, plot: &Plot, x: &[&str], catalog: Catalog) {
        let drawn = |row: &FileRecord| {
            matches!(records.field(row, "status"), "" | "ok")
                && !records.field(row, plot.y).is_empty()
                && x.iter().all(|column| !records.field(row, column).is_empty())
        };
        let (all, records) = (records, records.only(drawn));
        if records.rows().is_empty() {
            self.notes.push(format!("{}: no row that is ok has {}", plot.title, plot.y));
            return;
        }
        let (series, apart) = split(all, &records, plot, x, catalog);
        // Rows without a value, for example of a baseline without a grid, are in every chart.
        let mut facets = distinct(&records, &apart);
        let full = |facet: &Vec<String>| facet.iter().all(|value| !value.is_empty());
        if facets.iter().any(full) {
            facets.retain(full);
        }
        if facets.len() > FACETS {
            self.notes.push(format!(
                "{}: {} of {} charts are shown; the others differ in {}, and their rows are in the table",
                plot.title,
                FACETS,
                facets.len(),
                apart.join(", ")
            ));
            // From the first to the last, evenly distributed.
            let last = facets.len() - 1;
            facets = (0..FACETS).map(|index| facets[index * last / (FACETS - 1)].clone()).collect();
        }
        // Sizes and grids are swept by factors, so their axis is logarithmic.
        let positive = records.rows().iter().all(|row| records.number(row, x[0]).is_some_and(|x| x > 0.0));
        for (index, facet) in facets.into_iter().enumerate() {
            let only: Vec<String> = apart.iter().zip(&facet).map(|(column, value)| condition(column, value)).collect();
            let title = match only.is_empty() {
                true => format!("{experiment}: {}", plot.title),
                false => format!("{experiment}: {}, {}", plot.title, only.join(", ")),
            };
            let text = |list: &[&str]| list.iter().map(|name| name.to_string()).collect::<Vec<_>>();
            let query = Query {
                x: text(x),
                y: plot.y.into(),
                series: if plot.shape == ChartStyle::Stacked { text(&["stage"]) } else { text(&series) },
                filters: apart.iter().zip(&facet).map(|(column, value)| filter(&records, column, value)).collect(),
                range: plot
                    .range
                    .filter(|range| range.iter().all(|name| records.has(name)))
                    .map(|range| range.map(String::from)),
                x_log: (plot.shape == ChartStyle::Curve && x.len() == 1 && positive).then_some(true),
                y_log: plot.log_y,
                bars: plot.shape == ChartStyle::Bars,
                stacked: plot.shape == ChartStyle::Stacked,
                title: Some(title),
                x_label: None,
                y_label: plot.y_label.map(String::from),
                width: SIZE.0,
                height: SIZE.1,
            };
            match query.chart(&records) {
                Ok(picture) => {
                    self.notes.extend(picture.notes.into_iter().map(|note| format!("{}: {note}", picture.chart.title)));
                    let name = plain(&[experiment, of, plot.name, &facet.join("-")]);
                    let svg = String::new();
                    let kind = catalog.about(experiment).plots.iter().position(|known| known.name == plot.name);
                    let place = (kind.unwrap_or(usize::MAX), index);
                    self.drawn.push(PageChart { name, chart: picture.chart, svg, place });
                }
                Err(error) => self.notes.push(format!("{} was not drawn: {error}", plot.title)),
            }
        }
    }
}

/// Returns the condition of a facet as shown in the title.
fn condition(column: &str, value: &str) -> String {
    if column == "file" { label::file(value) } else { format!("{column}={value}") }
}

/// Returns a filter for rows with this value, and for rows without any value.
fn filter(records: &Records, column: &str, value: &str) -> Filter {
    let empty = records.rows().iter().any(|row| records.field(row, column).is_empty());
    let values = [value, ""];
    Filter::one_of(column, if empty && !value.is_empty() { &values } else { &values[..1] })
}

/// Returns the columns that distinguish series, and those that distinguish charts. Case and mode are part of a series'
/// name even if the drawn rows do not need them, so that a series has the same name and colour in all charts.
fn split(
    all: &Records,
    records: &Records,
    plot: &Plot,
    x: &[&str],
    catalog: Catalog,
) -> (Vec<&'static str>, Vec<&'static str>) {
    let mut series: Vec<&'static str> = Vec::new();
    // There is one row per file, so no other column is needed to distinguish rows.
    if x == ["file"] {
        return (Vec::new(), Vec::new());
    }
    for column in catalog.chosen().into_iter().chain(["file"]) {
        if x.contains(&column) || column == "stage" || !records.has(column) {
            continue;
        }
        let mut before: Vec<&str> = series.clone();
        // Series are not split by a column that is determined by the horizontal axis, or by a grid that is specific to
        // a size.
        let at: Vec<&str> = x.iter().copied().chain([column]).collect();
        let follows = distinct(records, &at).len() == distinct(records, x).len();
        if follows || catalog.follows(column) || matches!(column, "grid" | "block") {
            before.extend(x);
        }
        let with: Vec<&str> = before.iter().copied().chain([column]).collect();
        // Case and mode are part of the name if any rows of the run differ in them.
        let rows = if matches!(column, "case" | "mode") { all } else { records };
        let needed = distinct(rows, &with).len() > distinct(rows, &before).len();
        if needed {
            series.push(column);
        }
    }
    let mut apart = Vec::new();
    if plot.shape == ChartStyle::Stacked {
        return (Vec::new(), series);
    }
    // Case and mode stay in one chart. Among the other columns, the one with the most values is split off first.
    while distinct(records, &series).len() > SERIES {
        let free = series.iter().filter(|column| !matches!(**column, "case" | "mode"));
        let Some(most) = free.copied().max_by_key(|column| distinct(records, &[column]).len()) else { break };
        series.retain(|column| *column != most);
        apart.push(most);
    }
    (series, apart)
}

/// Returns the distinct combinations of values in these columns, in the order of the rows.
fn distinct(records: &Records, columns: &[&str]) -> Vec<Vec<String>> {
    let values = |row| columns.iter().map(|column| records.field(row, column).to_owned()).collect();
    let mut seen = BTreeSet::new();
    let mut found: Vec<Vec<String>> = records.rows().iter().map(values).collect();
    found.retain(|values| seen.insert(values.clone()));
    if found.is_empty() { vec![Vec::new()] } else { found }
}

/// Returns a name that is valid in any file system.
fn plain(parts: &[&str]) -> String {
    let mut name = String::new();
    for char in parts.join("-").trim_end_matches(".csv").replace(".csv", "").chars() {
        let char = if char.is_ascii_alphanumeric() || char == '.' { char.to_ascii_lowercase() } else { '-' };
        if char != '-' || !name.ends_with('-') {
            name.push(char);
        }
    }
    name.trim_matches(['-', '.']).to_owned()
}
