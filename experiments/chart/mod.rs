//! `ginlab chart`: a picture of rows that were measured before.

mod args;

use crate::error::Failure;
use crate::program::{Program, program};
use args::Args;
use args::AxisName;
use ginlab::report::chart::{Filter, Palette, Query, Records};
use ginlab::report::{Target, WholeFile, same_file};

pub const PROGRAMS: &[Program] =
    &[program!("chart", "Draw a chart, as SVG, from CSV files of earlier runs", Args, run)];

/// Draws the chart.
fn run(args: &Args) -> Result<(), Failure> {
    let output = Target::from(args.output.as_os_str());
    if let Target::File(path) = &output
        && args.files.iter().any(|file| same_file(file, path))
    {
        return Err(Failure::Usage(format!("-o {} is one of the files to read", path.display())));
    }
    let query = query(args)?;
    let records = match (args.names.len(), args.files.len()) {
        (0, _) => Records::read(&args.files)?,
        (names, files) if names == files => Records::read_as(&args.files, &args.names)?,
        (names, files) => return Err(Failure::Usage(format!("--names has {names} of {files} files"))),
    };
    let picture = query.chart(&records)?;
    let svg = picture.chart.svg(&Palette::of([&picture.chart]));
    for note in &picture.notes {
        eprintln!("# {note}");
    }
    WholeFile::create("the chart", &output)?.write(svg.as_bytes())?;
    Ok(())
}

fn query(args: &Args) -> Result<Query, Failure> {
    let filters = args.filters.iter().map(|text| Filter::parse(text)).collect::<Result<_, _>>()?;
    let range = match &args.range[..] {
        [] => None,
        [low, high] => Some([low.clone(), high.clone()]),
        other => return Err(Failure::Usage(format!("--range is two columns, LOW,HIGH, not {}", other.len()))),
    };
    let log = |axis: AxisName| match (args.log.contains(&axis), args.linear.contains(&axis)) {
        (true, true) => Err(Failure::Usage(format!("--log and --linear both name {axis:?}").to_lowercase())),
        (false, false) => Ok(None),
        (log, _) => Ok(Some(log)),
    };
    Ok(Query {
        x: args.x.clone(),
        y: args.y.clone(),
        series: args.series.clone(),
        filters,
        range,
        x_log: log(AxisName::X)?,
        y_log: log(AxisName::Y)?,
        bars: args.bars,
        stacked: args.stacked,
        title: args.title.clone(),
        x_label: args.x_label.clone(),
        y_label: args.y_label.clone(),
        width: args.width,
        height: args.height,
    })
}
