//! Which pictures are drawn of a run: curves over sizes, sweeps of grids, queues side by side, stages of a put.
//!
//! A picture shows one figure over one column. The other columns in which rows differ keep its series apart; where that
//! would be more than a reader can follow, there is a picture for each value of some of them.

use super::chart::{Chart, Filter, Query, Record, Records};
use super::columns::CHOSEN;
use super::run::Run;

/// Pictures have this many series at most, as long as there are columns to part them by.
const SERIES: usize = 9;
/// Pictures of one kind and run.
const FACETS: usize = 4;
/// Pixels.
const SIZE: (u32, u32) = (760, 430);

/// A picture, ready for a page.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The name of its file, without an ending.
    pub name: String,
    /// What it shows.
    pub chart: Chart,
    /// The same as an SVG document.
    pub svg: String,
    /// The first ones of each kind come first.
    facet: usize,
}

/// The pictures of a run, and why others are missing.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// The pictures.
    pub drawn: Vec<Figure>,
    /// Lines for people.
    pub notes: Vec<String>,
}

/// A kind of picture.
struct Plot<'a> {
    name: &'a str,
    title: &'a str,
    x: &'a [&'a str],
    y: &'a str,
    y_label: Option<&'a str>,
    range: Option<[&'a str; 2]>,
    shape: Shape,
    log_y: Option<bool>,
}

#[derive(Clone, Copy, PartialEq)]
enum Shape {
    Curve,
    Bars,
    Stacked,
}

const CURVE: Plot = Plot {
    name: "",
    title: "",
    x: &["size_bytes"],
    y: "time_us_p50",
    y_label: None,
    range: Some(["time_us_min", "time_us_p99"]),
    shape: Shape::Curve,
    log_y: None,
};

const TIME: Plot =
    Plot { name: "time", title: "time by size", y_label: Some("time p50, to p99 and min (us)"), ..CURVE };
const BANDWIDTH: Plot = Plot {
    name: "bandwidth",
    title: "bandwidth by size",
    y: "bandwidth_gbytes_s",
    range: Some(["bandwidth_gbytes_s_low", "bandwidth_gbytes_s_high"]),
    ..CURVE
};
const RATE: Plot = Plot {
    name: "rate",
    title: "operations per second by size",
    y: "rate_mops",
    range: Some(["rate_mops_low", "rate_mops_high"]),
    ..CURVE
};
const RATIO: Plot = Plot {
    name: "ratio",
    title: "speed beside the baseline of the same run",
    y: "baseline_ratio",
    y_label: Some("baseline's time / this time"),
    range: None,
    log_y: Some(false),
    ..CURVE
};

/// The pictures of one run.
pub fn of_run(run: &Run) -> Figures {
    use super::chart::FileKind;
    match run.kind {
        FileKind::Listing => Figures::default(),
        FileKind::Stages => of_stages(run),
        FileKind::Rows => of_rows(run),
    }
}

fn of_rows(run: &Run) -> Figures {
    let mut figures = Figures::default();
    let experiment = run.experiment();
    let (name, records) = (run.name.as_str(), &run.records);
    let count = |column: &str, having: &str| {
        let rows = records.rows().iter().filter(|row| !records.field(row, having).is_empty());
        let mut values: Vec<&str> =
            rows.map(|row| records.field(row, column)).filter(|text| !text.is_empty()).collect();
        values.sort_unstable();
        values.dedup();
        values.len()
    };
    for plot in [TIME, BANDWIDTH, RATE, RATIO] {
        // Where it is bytes that count, the rate is the bandwidth once more.
        let bytes = matches!(experiment.as_str(), "ipc" | "all2all");
        if count("size_bytes", plot.y) > 2 && !(bytes && plot.name == RATE.name) {
            figures.draw(&experiment, name, records, &plot);
        }
    }
    // What else is of interest: operations of queues and proxies, the time of pushes that wait, bytes elsewhere.
    let about = match experiment.as_str() {
        "queue" if run.values("mode") == ["blocking"] => TIME,
        "queue" | "proxy" if count("case", RATE.y) > 0 => RATE,
        _ if count("case", BANDWIDTH.y) > 0 => BANDWIDTH,
        _ => TIME,
    };
    if count("grid", about.y) > 2 {
        let title = format!("{} by blocks of the grid", about.title.trim_end_matches(" by size"));
        figures.draw(&experiment, name, records, &Plot { name: "grid", title: &title, x: &["grid"], ..about });
    }
    let compared = of_queues(&experiment, name, records, &mut figures);
    if figures.drawn.is_empty() && !compared && records.rows().len() > 1 {
        // By whatever was varied most.
        let most = CHOSEN.into_iter().rev().max_by_key(|column| count(column, "time_us_p50")).unwrap_or("case");
        let title = about.title.trim_end_matches(" by size");
        figures.draw(&experiment, name, records, &Plot { title, x: &[most], shape: Shape::Bars, ..about });
    }
    figures.drawn.sort_by_key(|figure| figure.facet);
    figures
}

/// The algorithms of `ginlab queue`, where there are several.
const QUEUES: [&str; 3] = ["ticket", "vyukov", "release"];

/// Queues side by side, from one run or from several: whether there was anything to draw.
fn of_queues(experiment: &str, name: &str, records: &Records, figures: &mut Figures) -> bool {
    let queues = records
        .only(|row| QUEUES.contains(&records.field(row, "case")) && !records.field(row, "time_us_p50").is_empty());
    let found: Vec<&str> =
        QUEUES.into_iter().filter(|case| queues.rows().iter().any(|row| queues.field(row, "case") == *case)).collect();
    if experiment != "queue" || found.len() < 2 {
        return false;
    }
    for (mode, y, title) in [
        ("nbi", RATE, "queues side by side: operations per second by grid and block"),
        ("blocking", TIME, "queues side by side: acknowledged pushes by grid and block"),
    ] {
        let rows = queues.only(|row| queues.field(row, "mode") == mode);
        if !rows.rows().is_empty() {
            let plot = Plot { name: "queues", title, x: &["grid", "block"], ..y };
            figures.draw(experiment, &format!("{name}-{mode}"), &rows, &plot);
        }
    }
    true
}

/// What several runs of one folder show together: queues, as memories are often measured one by one; files of one row each.
pub fn of_several(experiment: &str, runs: &[&Run]) -> Figures {
    let mut figures = Figures::default();
    let mut folders: Vec<_> = runs.iter().map(|run| run.path.parent()).collect();
    folders.dedup();
    for folder in folders {
        let name = folder.and_then(|folder| folder.file_name()).unwrap_or_default().to_string_lossy();
        let several = |run: &&&Run| QUEUES.iter().filter(|case| run.values("case").contains(case)).count() > 1;
        let inside: Vec<&&Run> = runs.iter().filter(|run| run.path.parent() == folder).filter(several).collect();
        let mut memories: Vec<&str> = inside.iter().flat_map(|run| run.values("memory")).collect();
        memories.sort_unstable();
        memories.dedup();
        if inside.len() > 1 && memories.len() > 1 {
            let joined = Records::joined(inside.iter().map(|run| &run.records));
            of_queues(experiment, &format!("{name}-memories"), &joined, &mut figures);
        }
        // Steps, each in a file of its own.
        let lone: Vec<&&Run> =
            runs.iter().filter(|run| run.path.parent() == folder && run.records.rows().len() == 1).collect();
        if lone.len() > 1 {
            let joined = Records::joined(lone.iter().map(|run| &run.records));
            let plot = Plot { title: "bandwidth, file by file", x: &["file"], shape: Shape::Bars, ..BANDWIDTH };
            figures.draw(experiment, &name, &joined, &plot);
        }
    }
    figures
}

const STAGES_X: &[&str] = &["mode", "size_bytes"];

fn of_stages(run: &Run) -> Figures {
    let mut figures = Figures::default();
    let plot = Plot { x: STAGES_X, range: None, shape: Shape::Stacked, log_y: Some(false), ..CURVE };
    let (share, time) =
        ("where the time of a put goes: share of each stage", "where the time of a put goes, stage by stage");
    for plot in [
        Plot { name: "share", title: share, y: "share_pct", y_label: Some("share of the time (%)"), ..plot },
        Plot {
            name: "stages",
            title: time,
            y: "p50_us",
            y_label: Some("medians of the stages, added up (us)"),
            ..plot
        },
    ] {
        figures.draw("stages", &run.name, &run.records, &plot);
    }
    figures
}

impl Figures {
    /// Draws one kind of picture, once or by facets.
    fn draw(&mut self, experiment: &str, of: &str, records: &Records, plot: &Plot) {
        let drawn = |row: &Record| {
            matches!(records.field(row, "status"), "" | "ok")
                && !records.field(row, plot.y).is_empty()
                && plot.x.iter().all(|column| !records.field(row, column).is_empty())
        };
        let records = records.only(drawn);
        if records.rows().is_empty() {
            self.notes.push(format!("{}: no row that is ok has {}", plot.title, plot.y));
            return;
        }
        let (series, apart) = split(&records, plot);
        // Rows without a value, as of a baseline that has no grid, stand in every picture.
        let mut facets = distinct(&records, &apart);
        let full = |facet: &Vec<String>| facet.iter().all(|value| !value.is_empty());
        if facets.iter().any(full) {
            facets.retain(full);
        }
        if facets.len() > FACETS {
            self.notes.push(format!(
                "{}: {} of {} pictures are shown; the others differ in {}, and their rows are in the table",
                plot.title,
                FACETS,
                facets.len(),
                apart.join(", ")
            ));
            // From the first to the last, as evenly as may be.
            let last = facets.len() - 1;
            facets = (0..FACETS).map(|index| facets[index * last / (FACETS - 1)].clone()).collect();
        }
        // Sizes and grids are varied by factors.
        let positive = records.rows().iter().all(|row| records.number(row, plot.x[0]).is_some_and(|x| x > 0.0));
        for (index, facet) in facets.into_iter().enumerate() {
            let only: Vec<String> =
                apart.iter().zip(&facet).map(|(column, value)| format!("{column}={value}")).collect();
            let title = match only.is_empty() {
                true => format!("{experiment}: {}", plot.title),
                false => format!("{experiment}: {}, {}", plot.title, only.join(", ")),
            };
            let text = |list: &[&str]| list.iter().map(|name| name.to_string()).collect::<Vec<_>>();
            let query = Query {
                x: text(plot.x),
                y: plot.y.into(),
                series: if plot.shape == Shape::Stacked { text(&["stage"]) } else { text(&series) },
                filters: apart.iter().zip(&facet).map(|(column, value)| filter(&records, column, value)).collect(),
                range: plot
                    .range
                    .filter(|range| range.iter().all(|name| records.column(name).is_ok()))
                    .map(|range| range.map(String::from)),
                x_log: (plot.shape == Shape::Curve && plot.x.len() == 1 && positive).then_some(true),
                y_log: plot.log_y,
                bars: plot.shape == Shape::Bars,
                stacked: plot.shape == Shape::Stacked,
                title: Some(title),
                x_label: (plot.x == STAGES_X).then(|| "mode and size (bytes)".into()),
                y_label: plot.y_label.map(String::from),
                width: SIZE.0,
                height: SIZE.1,
            };
            let made = query.chart(&records).and_then(|picture| Ok((picture.chart.svg()?, picture)));
            match made {
                Ok((svg, picture)) => {
                    self.notes.extend(picture.notes.into_iter().map(|note| format!("{}: {note}", picture.chart.title)));
                    let name = plain(&[experiment, of, plot.name, &facet.join("-")]);
                    self.drawn.push(Figure { name, chart: picture.chart, svg, facet: index });
                }
                Err(error) => self.notes.push(format!("{} was not drawn: {error}", plot.title)),
            }
        }
    }
}

/// Rows with this value, and those without any.
fn filter(records: &Records, column: &str, value: &str) -> Filter {
    let empty = records.rows().iter().any(|row| records.field(row, column).is_empty());
    let values = [value, ""];
    Filter::one_of(column, if empty && !value.is_empty() { &values } else { &values[..1] })
}

/// Columns that often follow from others, as a window from the size: they part rows that nothing else does.
const FOLLOWING: [&str; 9] =
    ["slot_bytes", "ring_slots", "window", "fill", "proxy_threads", "completion", "ranks", "device", "file"];

/// The columns that keep series apart, and those that keep pictures apart.
fn split<'a>(records: &Records, plot: &Plot<'a>) -> (Vec<&'a str>, Vec<&'a str>) {
    let mut series: Vec<&str> = Vec::new();
    // A row for each file: nothing else is needed to tell them apart.
    if plot.x == ["file"] {
        return (Vec::new(), Vec::new());
    }
    for column in CHOSEN.into_iter().chain(["file"]) {
        if plot.x.contains(&column) || column == "stage" || records.column(column).is_err() {
            continue;
        }
        let mut before = series.clone();
        if FOLLOWING.contains(&column) {
            before.extend(plot.x.iter().copied());
        }
        let with: Vec<&str> = before.iter().copied().chain([column]).collect();
        let needed = distinct(records, &with).len() > distinct(records, &before).len();
        if needed {
            series.push(column);
        }
    }
    let mut apart = Vec::new();
    if plot.shape == Shape::Stacked {
        return (Vec::new(), series);
    }
    // What is compared stays together; of the rest, whatever has the most values goes first.
    while distinct(records, &series).len() > SERIES {
        let free = series.iter().filter(|column| !matches!(**column, "case" | "mode"));
        let Some(most) = free.copied().max_by_key(|column| distinct(records, &[column]).len()) else { break };
        series.retain(|column| *column != most);
        apart.push(most);
    }
    (series, apart)
}

/// The combinations of values in these columns, each once, in the order of the rows.
fn distinct(records: &Records, columns: &[&str]) -> Vec<Vec<String>> {
    let mut seen = std::collections::BTreeSet::new();
    let mut found = Vec::new();
    for row in records.rows() {
        let values: Vec<String> = columns.iter().map(|column| records.field(row, column).to_owned()).collect();
        if seen.insert(values.clone()) {
            found.push(values);
        }
    }
    if found.is_empty() { vec![Vec::new()] } else { found }
}

/// A name that any file system takes.
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
